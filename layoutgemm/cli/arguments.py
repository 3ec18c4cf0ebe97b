"""Shared parts of the subcommands: one-line errors, help examples, layouts and tiles from text, JSON."""

from __future__ import annotations

import argparse
import difflib
import json
import numbers
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeAlias

from ..arguments import shown
from ..atoms import SmemTile, smem_tile
from ..dtypes import DType
from ..errors import LayoutError, ParseError
from ..layouts import ComposedLayout, CoordinateTensor, Layout, LinearLayout, Swizzle, parse
from ..layouts.listing import Listing
from ..layouts.notation import Parsed, stated_extents
from ..layouts.symbols.facts import Facts
from ..view import png, save

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
AnyLayout: TypeAlias = "Layout | ComposedLayout | CoordinateTensor"
Tile: TypeAlias = "AnyLayout | SmemTile"
LAYOUT_HELP = "a layout, as in '(8,64):(64,1)', 'S<3,3,3> o 0 o (8,64):(64,1)', or a tile, as in smem:64x64:bf16:K:128B"
STATED = "a layout is written '(M,N):(N,1)' or 'S<3,3,3> o 0 o (8,64):(64,1)', a tile smem:64x64:bf16:K:128B"
FORMS = "a layout is written '(8,64):(64,1)' or 'S<3,3,3> o 0 o (8,64):(64,1)', a tile smem:64x64:bf16:K:128B"

MESSAGE = 1000  # characters of a message about arguments: a longer one repeats a long argument

# Objects that only `show` takes, by their prefix.
NO_TILES = dict.fromkeys(("wgmma", "mma", "tcgen05", "tiled", "copy"), "an instruction, held by threads") | {
    "schedule": "an order of tiles"
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line that names the help. Exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit. For a misspelt choice, the nearest one comes first."""
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        near = difflib.get_close_matches(found[1], re.findall(r"[\w.-]+", found[2]), 1) if found else []
        if found and near:
            message = message.replace(" (choose from", f"; do you mean {near[0]!r}? (choose from")
        self.exit(2, f"{self.prog}: {bounded(message)}; see {self.prog} --help\n")


def add(
    commands: Commands, name: str, help_: str, examples: Sequence[str], run: Callable[[argparse.Namespace], int], *,
    says: str = "", aliases: Sequence[str] = (),
) -> argparse.ArgumentParser:  # fmt: skip
    """Add a subcommand whose help ends with examples. The tests run each one; `# status 1` gives its exit status."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, aliases=list(aliases), help=help_,
        description=textwrap.fill(says or f"{help_[0].upper()}{help_[1:]}.", 79),
        epilog="\n".join(["examples:" if len(examples) > 1 else "example:", *(f"  {text}" for text in examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def answer(args: argparse.Namespace, text: Callable[[], str], data: Callable[[], Mapping[str, object]]) -> None:
    """Print for people, or with --json for programs."""
    print(json.dumps(data()) if args.json else text())


def add_picture(parser: argparse.ArgumentParser, what: str) -> None:
    """The options that draw instead of printing."""
    parser.add_argument("--svg", type=Path, metavar="FILE", help=f"draw {what} there instead")
    parser.add_argument("--png", type=Path, metavar="FILE", help="the same as PNG (needs the extra png)")
    parser.add_argument("--dark", action="store_true", help="dark; otherwise an SVG follows the viewer's theme")


def drawn(args: argparse.Namespace, draw: Callable[[], str]) -> bool:
    """Draw into the files of --svg and --png and say so; return False without either."""
    files = [file for file in (args.svg, args.png) if file is not None]
    if not files and args.dark:
        raise LayoutError("--dark applies to a picture: give --svg FILE or --png FILE too")
    if not files:
        return False
    if args.svg is not None and args.svg.suffix.lower() not in ("", ".svg", ".png"):
        raise LayoutError(f"--svg {args.svg}: a picture is an .svg or a .png")
    picture = draw()
    for file in files:
        if file is args.png and file.suffix.lower() != ".png":  # --png decides, not the name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(picture, dark=args.dark))
        else:
            save(picture, file, dark=args.dark)
    names = {name: str(file) for name, file in (("svg", args.svg), ("png", args.png)) if file is not None}
    answer(args, lambda: "\n".join(f"written to {name}" for name in names.values()), lambda: dict(names))
    return True


def plain(value: object) -> object:
    """Numbers and tuples as JSON has them; anything else, a symbol or an array, as its text.

    >>> plain((0, (1, 2))), plain(None), plain(Layout(4))
    ([0, [1, 2]], None, '4:1')
    """
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):  # NumPy's and SymPy's, too
        return int(value)
    return value if value is None or isinstance(value, (bool, float, str)) else str(value)


def failed(error: Exception, as_json: bool) -> int:
    """Report an error: one line on stderr, or with --json an object on stdout. Returns the exit status, 2."""
    said = f"{type(error).__name__}: {bounded(one_line(error))}"
    if as_json:
        print(json.dumps({"ok": False, "error": said}))
    else:
        print(f"layoutgemm: {said}", file=sys.stderr)
    return 2


def bounded(message: str) -> str:
    """A message without the middle of a long argument that it repeats."""
    half = MESSAGE // 2
    return message if len(message) <= MESSAGE else f"{message[:half]} ... {message[-half:]}"


def one_line(error: Exception) -> str:
    """The error's message on one line. A parse error names the place instead of a pointer below the text.

    >>> try:
    ...     parse("(4,8):(8,x")
    ... except ParseError as error:
    ...     print(one_line(error))
    expected ',' or ')', at the end of '(4,8):(8,x'
    """
    if isinstance(error, ParseError) and error.text:
        rest = error.text[error.position :]
        place = f"{shown(rest)} in" if rest else "the end of"
        return f"{error.reason}, at {place} {shown(error.text)}"
    return "; ".join(line.strip() for line in str(error).splitlines()) or type(error).__name__


def size_pair(text: str, what: str = "sizes are written ROWSxCOLUMNS, as in 64x64") -> tuple[int, int]:
    """`64x128` as two positive ints. Raises LayoutError.

    >>> size_pair("64x128")
    (64, 128)
    """
    found = re.fullmatch(r"([1-9]\d*)[x,]([1-9]\d*)", text)
    if found is None:
        raise LayoutError(f"{shown(text)}: {what}")
    return int(found[1]), int(found[2])


def tile_of(text: str) -> SmemTile:
    """`smem:MNxK:TYPE[:MAJOR[:SWIZZLE]]` as a shared-memory tile. Defaults: K-major, the widest swizzle that fits.

    >>> print(tile_of("smem:8x64:bf16"), tile_of("smem:64x8:f32:MN:32B"))
    S<3,4,3>[bytes] o (8,64):(64,1) x bf16 S<1,4,3>[bytes] o ((8,8),8):((1,64),8) x f32
    """
    parts = text.split(":")
    if parts[0] != "smem" or not 3 <= len(parts) <= 5:
        raise LayoutError(f"{text!r}: a tile is written smem:MNxK:TYPE[:MAJOR[:SWIZZLE]], as in smem:64x64:bf16:K:128B")
    extent = size_pair(parts[1], "a tile's extent is written MNxK, as in smem:64x64:bf16")
    return plain_tile(extent, parts[2], parts[3] if len(parts) > 3 else "K", parts[4] if len(parts) > 4 else None)


def plain_tile(
    extent: tuple[int, int], element: DType | str, major: str, swizzle: str | None, packing: str | None = None
) -> SmemTile:
    """`smem_tile` with its layout coalesced mode by mode, as a user writes it."""
    tile = smem_tile(extent, element, major, swizzle, packing)
    return replace(tile, layout=tile.layout.coalesce((1, 1)))


def stated(text: str, facts: Facts) -> Tile:
    """A layout or a tile of a statement; its names are symbols under the facts.

    Raises LayoutError with the expected form.

    >>> print(stated("(64,M//64):(1,64)", Facts("64 | M")))
    (64,M//64):(1,64)
    """
    return tile_of(text) if text.startswith("smem:") else _parsed(text, STATED, facts)


def parsed(text: str, forms: str = FORMS, facts: Facts | tuple[()] = ()) -> Parsed:
    """The value of a text in any notation that is read. Raises LayoutError with the expected form."""
    try:
        return parse(text, facts)
    except ParseError as error:
        raise LayoutError(f"{one_line(error)}: {forms}") from None


def _parsed(text: str, forms: str, facts: Facts | tuple[()] = ()) -> AnyLayout:
    found = parsed(text, forms, facts)
    if isinstance(found, Swizzle):
        raise LayoutError(f"{text} is a swizzle alone, without extent: write '{found} o 0 o (8,64):(64,1)'")
    if isinstance(found, Listing):
        raise LayoutError(
            f"a listing of {', '.join(found)}: paste the line of one layout, as in LayoutA_TV: (4,2):(1,4)"
        )
    if isinstance(found, LinearLayout):
        return layout_of_bases(found)
    if not isinstance(found, Layout | ComposedLayout | CoordinateTensor):
        raise LayoutError(f"{text} is an instruction, held by threads, and no layout: {forms}; `show` takes both")
    return found


def layout_of_bases(found: LinearLayout) -> Layout | ComposedLayout:
    """A linear layout of Triton as a layout, under a swizzle if need be; inputs of one value are left out.

    Raises LayoutError where no layout under a swizzle is it.
    """
    found = LinearLayout(found.columns, tuple([n for n in found.bits if n]), (), found.width, found.offset)
    try:
        return found.to_layout()
    except LayoutError:
        return found.to_composed()


def is_buffer(text: str) -> bool:
    """True for Triton's layout of a buffer in shared memory, offset -> element.

    >>> is_buffer('{"offset": [[0, 1], [1, 0]]}'), is_buffer("(4,8):(8,1)"), is_buffer("smem:64x64:bf16")
    (True, False, False)
    """
    try:
        found = None if text.startswith("smem:") else parse(text)
    except LayoutError:
        return False
    return isinstance(found, LinearLayout) and found.names[:1] == ("offset",)


def tile_in_memory(text: str) -> Tile:
    """`layout_of` of a tile: of a buffer of Triton, offset -> element, the inverse. Raises LayoutError.

    >>> swizzled = "#ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>"
    >>> print(tile_in_memory(f"!ttg.memdesc<64x64xf16, {swizzled}, #ttg.shared_memory>"))
    S<3,3,3> o 0 o (64,64):(64,1)
    """
    found = None if text.partition(":")[0] in ("smem", *NO_TILES) else parsed(text)
    if not isinstance(found, LinearLayout):
        return layout_of(text)
    if found.names[:1] != ("offset",):
        raise LayoutError(f"{text} is held by threads, and banks are of shared memory: paste a !ttg.memdesc<...>")
    extents = stated_extents(text)
    if extents is None or any(bits > 0 for bits in found.bits[1:]):
        raise LayoutError(
            f"{text} is no buffer of one block with a shape: paste its type, !ttg.memdesc<64x64xf16, ...>"
        )
    to_offset = found.inverse()
    bits = tuple([extent.bit_length() - 1 for extent in extents])
    return layout_of_bases(LinearLayout(to_offset.columns, bits, (), to_offset.width))


def layout_of(text: str) -> Tile:
    """A layout, a swizzled layout or a tile from its text. Raises LayoutError with the expected form.

    >>> print(layout_of("tCsA: Sw<3,4,3>_smem_ptr[16b](0x400) o (_8,_64):(_64,_1)"))
    S<3,3,3>[16b] o 0 o (8,64):(64,1)
    >>> print(layout_of("{'register': [[0, 1]], 'lane': [[1, 0], [2, 0]]}"))
    (2,4):(4,1)
    """
    if text.startswith("smem:"):
        return tile_of(text)
    family = text.partition(":")[0]
    if family in NO_TILES:
        raise LayoutError(f"{text} is {NO_TILES[family]}, and shared memory holds tiles: {FORMS}; `show` takes both")
    return _parsed(text, FORMS)
