"""`layoutgemm show`: a layout, a shared-memory tile or the fragment of a matrix instruction, as a grid or a picture."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..atoms import MmaAtom, SmemTile, mma_sync, wgmma
from ..errors import LayoutError
from ..view import fragment_svg, layout_svg, layout_table, swizzle_svg, tv_table
from ..view.grid import offsets_of, owners_of
from .arguments import LAYOUT_HELP, add, answer, layout_of
from .page import add_page, paged

EXAMPLES = (
    'layoutgemm show "(4,(2,2)):(2,(1,8))"',
    'layoutgemm show "S<2,3,3> o 0 o (8,32):(32,1)" --svg swizzled.svg',
    "layoutgemm show mma:m16n8k16:bf16 --smem-a smem:64x64:bf16 --smem-b smem:32x64:bf16 --html linked.html",
    "layoutgemm show smem:8x64:bf16:K:128B --columns 0:64:8",
    "layoutgemm show wgmma:64:bf16:C --rows 0:16 --columns 0:16",
    "layoutgemm show mma:m16n8k16:f16:A --json",
)
ATOMS = "wgmma:64:bf16:C, mma:m16n8k16:bf16:A"


def add_show(commands: Any) -> None:
    """The subcommand show."""
    parser = add(
        commands, "show", "a layout, a tile or an atom's fragment as text, as SVG, or as a page", EXAMPLES, run,
        says="Prints the offset of every coordinate of a layout (mode 0 downwards, mode 1 across), or for an atom "
        "which thread holds an element in which value, as in 5:2.",
    )  # fmt: skip
    parser.add_argument("what", metavar="LAYOUT", help=f"{LAYOUT_HELP}; or an atom: {ATOMS}")
    parser.add_argument("--rows", type=part, metavar="FROM:TO[:STEP]", help="a part of the rows")
    parser.add_argument("--columns", type=part, metavar="FROM:TO[:STEP]", help="a part of the columns")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw it there instead")
    add_page(parser)


def part(text: str) -> range:
    """`0:16` or `0:64:8` as a range.

    >>> part("0:16"), part("0:64:8")
    (range(0, 16), range(0, 64, 8))
    """
    found = re.fullmatch(r"(\d+):(\d+)(?::([1-9]\d*))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no part: write FROM:TO, as in 0:16")
    return range(int(found[1]), int(found[2]), int(found[3] or 1))


def run(args: argparse.Namespace) -> int:
    """Print or draw it; returns the exit status."""
    try:
        return _show(args)
    except LayoutError as error:
        if "=range(" not in str(error):
            raise
        # The view names its own arguments as the way out.
        way_out = re.sub(r"(rows|columns)=range\((\d+)\)", r"--\1 0:\2", str(error))
        raise LayoutError(way_out) from None


def _show(args: argparse.Namespace) -> int:
    is_atom = args.what.partition(":")[0] in FAMILIES
    if paged(args, is_atom, lambda: atom_of(args.what)[0] if is_atom else layout_of(args.what)):
        return 0
    part_ = {"rows": args.rows, "columns": args.columns}
    draw: Callable[[], str]
    if is_atom:
        atom, operand = atom_of(args.what)
        tv, tile = atom.layout(operand), atom.tile_of(operand)

        def text() -> str:
            return f"{atom}, {operand}: {tv_table(tv, tile, **part_)}"

        def draw() -> str:
            return fragment_svg(atom, operand, **part_)

        def data() -> dict[str, Any]:
            found = owners_of(tv, tile, **part_)
            return {
                "atom": atom.ptx, "operand": operand, "layout": str(tv), "tile": tile, "threads": atom.threads,
                "rows": list(found.rows), "columns": list(found.columns), "thread_value": found.held,
            }  # fmt: skip
    else:
        given = layout_of(args.what)
        layout = given.composed if isinstance(given, SmemTile) else given

        def text() -> str:
            return layout_table(layout, **part_)

        def draw() -> str:
            if isinstance(given, SmemTile):
                return swizzle_svg(layout, given.slot_bits, **part_)
            return layout_svg(layout, **part_)

        def data() -> dict[str, Any]:
            found = offsets_of(layout, **part_)
            named = {"rows": list(found.rows), "columns": list(found.columns), "offsets": found.values}
            return {"layout": str(given), "shape": layout.shape, **named}

    if args.svg is None:
        answer(args, lambda: fitting(text()), data)
        return 0
    picture = draw()
    args.svg.parent.mkdir(parents=True, exist_ok=True)
    args.svg.write_text(picture, encoding="utf-8")
    answer(args, lambda: f"written to {args.svg}", lambda: {"svg": str(args.svg)})
    return 0


def fitting(text: str, width: int | None = None) -> str:
    """A table cut to whole columns where it is wider than the terminal; into a file or a pipe it goes whole.

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
    title, head, *body = text.split("\n")
    if len(head) <= width:
        return text
    columns = head.split()
    gutter = body[0].index("+") + 1
    cell = (len(head) - gutter) // len(columns)
    fit = max(1, (width - gutter) // cell)
    lines = [line[: gutter + fit * cell] for line in (head, *body)]
    note = f"{fit} of {len(columns)} columns fit into {width} characters: --columns FROM:TO shows others"
    return "\n".join([title, *lines, f"{note}, --svg FILE draws all"])


# ------------------------------------------------------------------------------------------------------------ atoms


def _wgmma(size: str, a: str, b: str, operand: str) -> MmaAtom:
    if not size.isdigit():
        raise LayoutError(f"wgmma:{size}: its N is written as a number, as in wgmma:64:bf16:C")
    if operand == "B":
        raise LayoutError("no thread holds B of wgmma, shared memory does: show its tile, as in smem:64x16:bf16:K")
    return wgmma(int(size), a, b, a_source="rmem" if operand == "A" else "smem")


def _mma(size: str, a: str, b: str, operand: str) -> MmaAtom:
    return mma_sync(size, a, b)


def _tcgen05(size: str, a: str, b: str, operand: str) -> MmaAtom:
    raise LayoutError("no thread holds operands of tcgen05.mma: show a tile in shared memory, as in smem:128x64:bf16:K")


FAMILIES: dict[str, Callable[[str, str, str, str], MmaAtom]] = {"wgmma": _wgmma, "mma": _mma, "tcgen05": _tcgen05}


def atom_of(text: str) -> tuple[MmaAtom, str]:
    """`FAMILY:SIZE[:TYPE[xTYPE]][:OPERAND]` as the atom and its operand, bf16 and C unless said. Raises LayoutError.

    >>> atom, operand = atom_of("wgmma:64:e4m3xe5m2:A")
    >>> print(atom, operand)
    wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e5m2 A
    """
    family, *rest = text.split(":")
    operand = rest.pop() if len(rest) > 1 and rest[-1].upper() in ("A", "B", "C") else "C"
    if not 1 <= len(rest) <= 2:
        raise LayoutError(f"{text!r}: an atom is written FAMILY:SIZE[:TYPE][:OPERAND], as in {ATOMS}")
    a, _, b = (rest[1] if len(rest) > 1 else "bf16").partition("x")
    return FAMILIES[family](rest[0], a, b or a, operand.upper()), operand.upper()
