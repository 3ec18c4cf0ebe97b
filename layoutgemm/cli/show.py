"""`layoutgemm show`: a layout, tile, atom, copy or tile order as text or as a picture."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from .. import atoms, view
from ..arguments import shown as bounded
from ..atoms import SmemTile
from ..errors import LayoutError
from ..layouts import Swizzle
from ..layouts.display import table
from ..layouts.listing import Listing
from ..layouts.proofs.sizes import entries_of
from ..layouts.symbols.symbolic_layout import generators
from ..view.grid import Drawable, UnwrappedLayout, extent, owners_of, planes_of
from .arguments import FROM_INPUT, add, add_picture, answer, drawn, layout_text, plain
from .commands import Commands
from .object_names import ATOMS, FAMILIES, atom_of, cutlass_named, has_operand, is_atom, object_of
from .pages import add_page, paged
from .texts import FORMS as WRITTEN
from .texts import LAYOUT_HELP, AnyLayout, Tile, held_tile, layout_of, parsed

SWIZZLE = "a swizzle is written S<3,4,3> or S<3,4,3>[bytes]"
OTHERS = f"{SWIZZLE}, an atom {ATOMS}, a copy copy:ldmatrix:4, an order schedule:grouped:8:16x12"

EXAMPLES = (
    'layoutgemm show "(4,(2,2)):(2,(1,8))"',
    'layoutgemm show "zipped_divide((8,16):(16,1), (4,8))"',
    'layoutgemm show "S<2,3,3> o 0 o (8,32):(32,1)" --svg swizzled.svg',
    "layoutgemm show mma:m16n8k16:bf16 --smem-a smem:64x64:bf16 --smem-b smem:32x64:bf16 --html linked.html",
    "layoutgemm show smem:8x64:bf16:K:128B --columns 0:64:8",
    "layoutgemm show wgmma:64:bf16:C --rows 0:16 --columns 0:16",
    "layoutgemm show mma:m16n8k16:f16:A --json",
    "layoutgemm show mma:m16n8k64:e2m1:mxf4:SFA",
    "layoutgemm show mma:m16n8k16:bf16 --svg product.svg",
    "layoutgemm show tiled:2x2x1:mma:m16n8k16:bf16 --svg tiled.svg",
    "layoutgemm show copy:ldmatrix:4 --html copy.html",
    "layoutgemm show schedule:grouped:4:12x8",
    "layoutgemm show 'S<3,4,3>[bytes]'",
)
FORMS = (
    f"{LAYOUT_HELP}; an operand of an atom: {ATOMS}, or all of it: mma:m16n8k16:bf16, mma:m16n8k64:e2m1:mxf4, "
    "tiled:2x2x1:mma:m16n8k16:bf16; a copy: copy:ldmatrix:4[:trans], copy:stmatrix:2, copy:movmatrix, "
    "copy:cp_async:BYTES, copy:ld:BITS, copy:tcgen05_ld:32x32b:4; an order of tiles: "
    "schedule:linear|grouped|serpentine|hilbert[:SIZE][:ROWSxCOLUMNS]; a swizzle: S<3,4,3>; an atom by its name in "
    "CUTLASS: SM80_16x8x16_F32BF16BF16F32_TN[:A], SM75_U32x4_LDSM_N"
)


def add_show(commands: Commands) -> None:
    """The subcommand show."""
    parser = add(
        commands, "show", EXAMPLES,
        run,
        says="Prints the offset of every coordinate of a layout (mode 0 downwards, mode 1 across); for an atom or a "
        "copy which thread holds an element in which value, as in 5:2; for an order the number of every tile; for a "
        "swizzle its lanes and banks before and after.",
    )  # fmt: skip
    parser.add_argument("what", type=layout_text, metavar="LAYOUT", help=FORMS + FROM_INPUT)
    parser.add_argument("--rows", type=part, metavar="FROM:TO[:STEP]", help="a part of the rows")
    parser.add_argument("--columns", type=part, metavar="FROM:TO[:STEP]", help="a part of the columns")
    parser.add_argument("--planes", type=part, metavar="FROM:TO[:STEP]", help="of three modes and more: a part of them")
    parser.add_argument(
        "--color", choices=("warp", "quad", "quad_lane", "thread", "register"), help="colours in a picture"
    )
    parser.add_argument("--thread", type=int, metavar="T", help="outline the elements of thread T in a picture")
    add_picture(parser, "it")
    add_page(parser)


def part(text: str) -> range:
    """`0:16` or `0:64:8` as a range.

    >>> part("0:16"), part("0:64:8")
    (range(0, 16), range(0, 64, 8))
    """
    found = re.fullmatch(r"(\d+):(\d+)(?::([1-9]\d*))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{bounded(text)} is not a part: write FROM:TO, as in 0:16")
    return range(int(found[1]), int(found[2]), int(found[3] or 1))


def run(args: argparse.Namespace) -> int:
    """Print or draw an object; returns the exit status."""
    if not named(args.what):
        given = parsed(args.what, f"{WRITTEN}, {OTHERS}" if args.what[:1].isalpha() else f"{WRITTEN}, {SWIZZLE}")
        refuse_word(args.what, str(given))
        args.what = str(given) if isinstance(given, Swizzle) else args.what
    try:
        return _show(args)
    except LayoutError as error:
        if "=range(" not in str(error):
            raise
        raise LayoutError(as_options(str(error), args.what)) from None


def refuse_word(what: str, layout: str) -> None:
    """Raises LayoutError for a word, as in ldmatrix:x4, read as a mode of symbols.

    >>> refuse_word("m16n8k16:A", "m16n8k16:A")
    Traceback (most recent call last):
        ...
    layoutgemm.errors.LayoutError: m16n8k16:A is a mode of symbols alone, and no instruction; one is mma:m16n8k16:A
    """
    if re.fullmatch(r"[a-z]\w+:\w+", layout) is None:
        return
    mma = re.fullmatch(r"m\d+n\d+k\d+:\w+", layout) is not None
    hint = f"mma:{layout}" if mma else "mma:m16n8k16:bf16 or copy:ldmatrix:4"
    raise LayoutError(f"{what} is a mode of symbols alone, and no instruction; one is {hint}")


def named(what: str) -> bool:
    """True for the name of an atom, copy, order or tile. False for a layout's text."""
    return what.partition(":")[0] in (*FAMILIES, "tiled", "copy", "schedule", "smem") or cutlass_named(what) is not None


def is_whole(what: str) -> bool:
    """True for the name of an object that is shown whole. No part of it, and no operand."""
    if what.partition(":")[0] in ("tiled", "copy", "schedule") or is_swizzle(what):
        return True
    return not has_operand(what) if is_atom(what) else cutlass_named(what) is not None


def as_options(said: str, what: str) -> str:
    """A view's message with this command's options in place of Python arguments.

    >>> as_options("too many, for example rows=range(64), columns=range(3, 9)", "(4,8):(8,1)")
    'too many, for example --rows 0:64, --columns 3:9'
    """
    if what.startswith("S<") and " o " not in what:
        return f"{what}: the tile that shows all of it is too large: write '{what} o 0 o (8,64):(64,1)'"
    if is_whole(what):
        return f"{said.partition(': show a part')[0]}; {what} is shown whole"
    said = re.sub(r"(rows|columns|planes)=range\((\d+)\)", r"--\1 0:\2", said)
    return re.sub(r"(rows|columns|planes)=range\((\d+), (\d+)(?:, \d+)?\)", r"--\1 \2:\3", said)


def _show(args: argparse.Namespace) -> int:
    by_cutlass = cutlass_named(args.what)
    of_products = args.what.startswith("tiled:") or is_atom(args.what)
    of_products = of_products or (by_cutlass is not None and isinstance(by_cutlass, atoms.TiledMma))
    if paged(args, of_products, lambda: paged_object(args.what)):
        return 0
    found = shown(args)
    if not drawn(args, found.draw):
        answer(args, lambda: fitting(found.text()), found.data)
    return 0


def paged_object(what: str) -> object:
    """The object of a page: the whole atom if one of its operands is named."""
    if is_atom(what) and has_operand(what):
        return atom_of(what)[0]
    if what.startswith("smem:") or not (named(what) or is_swizzle(what)):
        return layout_of(what)
    return object_of(what)[0]


def is_swizzle(what: str) -> bool:
    """True for a swizzle alone, as str() prints it."""
    return what.startswith("S<") and " o " not in what


PRINTED, WIDEST = 1 << 11, 64  # cells, and columns, that are printed: more have a head
HEAD = 16  # rows and columns of it


@dataclass(frozen=True)
class ShownObject:
    """An object to show: its text, its picture, its data for programs."""

    text: Callable[[], str]
    draw: Callable[[], str]
    data: Callable[[], Mapping[str, object]]


def shown(args: argparse.Namespace) -> ShownObject:
    """The object that the arguments ask for. Raises LayoutError, also for an option that it does not take."""
    part_: dict[str, Any] = {
        name: value for name in ("rows", "columns", "planes") if (value := getattr(args, name)) is not None
    }
    colors = {name: value for name in ("color", "thread") if (value := getattr(args, name)) is not None}
    whole, held = is_whole(args.what), is_atom(args.what)
    of_triton = None if whole or named(args.what) else held_tile(args.what)
    if whole and part_:
        raise LayoutError(f"{args.what} is shown whole: --rows and --columns are for layouts, tiles, operands")
    if "planes" in part_ and (held or of_triton or args.what.startswith("smem:")):
        raise LayoutError(f"{args.what} has rows and columns alone: --planes is for layouts of three modes and more")
    if colors and (is_swizzle(args.what) or args.what.startswith("schedule:") or not (held or whole or of_triton)):
        raise LayoutError(f"{args.what} is not held by threads: --color and --thread are for atoms and copies")
    if colors and args.svg is None and args.png is None:
        raise LayoutError("--color and --thread apply to a picture: give --svg FILE or --png FILE too")
    if whole:
        return object_shown(args.what, colors)
    if held:
        return operand_shown(args.what, part_, colors)
    if of_triton is not None:
        return held_shown(*of_triton, part_, colors)
    if not named(args.what) and isinstance(listing := parsed(args.what), Listing):
        return listing_shown(listing)
    return layout_shown(layout_of(args.what), part_)


def layout_shown(given: Tile, part_: dict[str, Any]) -> ShownObject:
    """A layout or a tile: a table, a grid of cells, its offsets."""
    layout = given.composed if isinstance(given, SmemTile) else given

    def draw() -> str:
        if isinstance(given, SmemTile):
            return view.swizzle_svg(layout, given.slot_bits, **part_)
        return view.layout_svg(layout, **part_)

    symbolic = bool(generators(*entries_of(layout)))

    def data() -> dict[str, object]:
        if symbolic:
            return {"layout": str(given), "shape": plain(layout.shape), "offsets": None}
        planes = planes_of(layout, **part_)
        found = planes[0][1]
        said: dict[str, object] = {"layout": str(given), "shape": plain(layout.shape)}
        said |= {"rows": list(found.rows), "columns": list(found.columns)}
        if len(planes) == 1 and not planes[0][0]:
            return {**said, "offsets": found.values}
        return {**said, "planes": [at for at, _ in planes], "offsets": [plane.values for _, plane in planes]}

    def text() -> str:
        if symbolic:
            return f"{layout}\nno table: some of its extents and strides are symbols; write numbers in their place"
        large = layout.size > PRINTED or shape_of_table(layout)[1] > WIDEST
        return head_of(layout) if large and not part_ else view.layout_table(layout, **part_)

    return ShownObject(text, draw, data)


def shape_of_table(layout: AnyLayout) -> list[int]:
    """Rows, columns and planes of a layout's table. One row of a layout without two modes."""
    shape = UnwrappedLayout.of(layout).shape
    return [*map(extent, shape)] if isinstance(shape, tuple) and len(shape) > 1 else [1, int(layout.size)]


def head_of(layout: AnyLayout) -> str:
    """The head of a large layout, and how to print the rest.

    >>> from layoutgemm.layouts import Layout
    >>> print(head_of(Layout((1000, 1000)))[-65:])
    of 1000 columns: --rows FROM:TO and --columns FROM:TO show others
    """
    sizes = shape_of_table(layout)
    counts = dict(zip(("rows", "columns", "planes"), (*sizes[:2], prod(sizes[2:])), strict=True))
    if len(sizes) == 2:
        del counts["planes"]
    heads = {name: min(count, 1 if name == "planes" else HEAD) for name, count in counts.items()}
    table_ = view.layout_table(layout, **{name: range(head) for name, head in heads.items()})
    told = ", ".join([f"{heads[name]} of {count} {name}" for name, count in counts.items()])
    *others, last = [f"--{name} FROM:TO" for name in counts]
    return f"{table_}\n{told}: {', '.join(others)} and {last} show others"


def listing_shown(listing: Listing) -> ShownObject:
    """A listing of a tiled MMA or copy. Its values, then each layout of two modes as a table."""

    def text() -> str:
        tables = [
            f"{name}: {view.layout_table(layout)}" for name, layout in listing.layouts.items() if layout.rank == 2
        ]
        return "\n\n".join([str(listing), *tables])

    def draw() -> str:
        raise LayoutError(f"a picture is of one layout: give the line of one of {', '.join(listing.layouts)}")

    return ShownObject(
        text, draw, lambda: {"listing": listing.title, **{name: plain(listing[name]) for name in listing}}
    )


def operand_shown(what: str, part_: dict[str, Any], colors: dict[str, Any]) -> ShownObject:
    """One operand of an atom."""
    atom, operand = atom_of(what)
    shown_ = held_shown(atom.layout(operand), atom.tile_of(operand), part_, colors)
    return ShownObject(
        lambda: f"{atom}, {operand}: {shown_.text()}",
        lambda: view.fragment_svg(atom, operand, **part_, **colors),
        lambda: {"atom": atom.ptx, "operand": operand, **shown_.data()},
    )


def held_shown(tv: Drawable, tile: tuple[int, int], part_: dict[str, Any], colors: dict[str, Any]) -> ShownObject:
    """A tile that threads hold: in every cell thread and value."""

    def data() -> dict[str, object]:
        found = owners_of(tv, tile, **part_)
        return {
            "layout": str(tv), "tile": tile, "threads": found.threads,
            "rows": list(found.rows), "columns": list(found.columns), "thread_value": found.held,
        }  # fmt: skip

    return ShownObject(lambda: view.tv_table(tv, tile, **part_), lambda: view.tv_svg(tv, tile, **part_, **colors), data)


def object_shown(what: str, colors: dict[str, Any]) -> ShownObject:
    """An atom, copy, tile order or swizzle, by its own picture and text."""
    made, data, options = object_of(what)
    return ShownObject(
        lambda: table(made, **options), lambda: made.svg(**options, **colors), lambda: {"what": what, **data}
    )


def fitting(text: str, width: int | None = None) -> str:
    """A table cut to whole columns that fit the terminal. Output to a file or a pipe is not cut.

    >>> print(fitting("a title\\n    0 1 2\\n  +------\\n0 | 7 8 9", 8))
    a title
        0 1
      +----
    0 | 7 8
    2 of 3 columns fit into 8 characters: --columns FROM:TO shows others, --svg FILE draws all
    """
    if width is None:
        if not sys.stdout.isatty():
            return text
        width = shutil.get_terminal_size().columns
    lines, least, most = text.split("\n"), 0, 0
    for place, rule in enumerate(lines):
        if not re.fullmatch(r" *\+-+", rule):
            continue
        # A table: the line of column numbers, the rule, then rows with a bar under its cross.
        gutter, end = rule.index("+") + 1, place + 1
        while end < len(lines) and lines[end][gutter - 1 : gutter] == "|":
            end += 1
        columns = lines[place - 1].split()
        cell = (len(rule) - gutter) // len(columns)
        fit = max(1, (width - gutter) // cell)
        if fit < len(columns):
            lines[place - 1 : end] = [line[: gutter + fit * cell] for line in lines[place - 1 : end]]
            least, most = (fit, len(columns)) if len(columns) > most else (least, most)
    if not most:
        return text
    note = f"{least} of {most} columns fit into {width} characters: --columns FROM:TO shows others"
    return "\n".join([*lines, f"{note}, --svg FILE draws all"])
