"""`layoutgemm swizzle` and `layoutgemm banks`: the swizzle that frees a tile of bank conflicts, and the conflicts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..atoms import SmemTile
from ..checks import (
    AccessPattern,
    BankReport,
    bank_conflicts,
    column_access,
    find_swizzle,
    row_access,
    thread_access,
)
from ..checks.smem.access_patterns import contiguous, element_bits, extent_of
from ..checks.smem.bank_conflicts import WAVEFRONT, lanes_of_phase
from ..dtypes import DType, dtype
from ..errors import AtomError, LayoutError
from ..layouts import ComposedLayout, CoordinateTensor, Layout, make_layout_tv
from ..layouts.notation import stated_element
from ..layouts.proofs.sizes import entries_of
from ..layouts.symbols.symbolic_layout import generators
from ..view import access_svg, swizzle_pair_svg
from .arguments import FROM_INPUT, add, add_full, add_picture, answer, drawn, head_of_lines, layout_text
from .commands import Commands
from .texts import LAYOUT_HELP, layout_of, tile_in_memory

SWIZZLE_EXAMPLES = (
    'layoutgemm swizzle "(64,64):(64,1)" --element bf16',
    'layoutgemm swizzle "(128,64):(64,1)" --element bf16 --access rows --access columns  # status 1: none',
    'layoutgemm swizzle "(32,32):(32,1)" --element f32 --threads "(32,1):(1,0)" --vector 4',
    'layoutgemm swizzle "(8,64):(64,1)" --svg swizzle.svg',
)
BANKS_EXAMPLES = (
    'layoutgemm banks "(64,64):(64,1)" --element bf16  # status 1: conflicts',
    "layoutgemm banks smem:64x64:bf16:K:128B --json",
    'layoutgemm banks "(32,32):(33,1)" --element f32 --access columns',
    'layoutgemm banks "(32,32):(32,1)" --element f32 --threads "(4,8):(8,1)" --vector 4',
    'layoutgemm banks "(32,32):(32,1)" --element f32 --threads "(32,1):(1,0)" --vector 4  # status 1: conflicts',
    'layoutgemm banks "(64,64):(64,1)" --svg banks.svg  # status 1: conflicts',
)
ACCESSES: dict[str, Callable[[Layout | ComposedLayout, DType], AccessPattern]] = {
    "rows": row_access,
    "columns": lambda tile, element: column_access(tile),
}
Tile = Layout | ComposedLayout | SmemTile


def add_swizzle(commands: Commands) -> None:
    """The subcommand swizzle."""
    parser = add(
        commands, "swizzle", SWIZZLE_EXAMPLES, swizzle,
        says="Searches every swizzle for one under which nothing conflicts, and proves it where none exists. Exit "
        "status: 0 found, 1 none.",
    )  # fmt: skip
    _arguments(parser)
    parser.add_argument("--tma", action="store_true", help="only the swizzle modes of TMA: 32B, 64B, 128B")
    add_picture(parser, "the tile before and after the swizzle found, or the best one,")


def add_banks(commands: Commands) -> None:
    """The subcommand banks."""
    parser = add(
        commands, "banks", BANKS_EXAMPLES,
        banks, says="Counts the wavefronts of each access to shared memory. Exit status: 0 free, 1 conflicts.",
    )  # fmt: skip
    _arguments(parser)
    add_picture(parser, "the tile by banks, and the phase that costs most lane by lane,")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "layout", type=layout_text, metavar="LAYOUT", help=f"(mn, k) -> element: {LAYOUT_HELP}{FROM_INPUT}"
    )
    parser.add_argument("--element", metavar="TYPE", help="as in bf16, where LAYOUT does not say (bf16)")
    parser.add_argument(
        "--access", action="append", choices=tuple(ACCESSES),
        help="rows: 16-byte rows along the contiguous mode, as ldmatrix reads them (default); columns: one element for "
        "each lane, along the other mode; repeatable, for all of them together",
    )  # fmt: skip
    parser.add_argument(
        "--threads", metavar="LAYOUT",
        help="an access of your own: tile coordinate -> thread, as in (4,8):(8,1) for 32 threads, 8 in a row",
    )  # fmt: skip
    parser.add_argument(
        "--vector", type=int, metavar="N",
        help="with --threads: neighbours that each thread moves at once, as 4 for float4 (1)",
    )  # fmt: skip
    parser.add_argument(
        "--tv", metavar="LAYOUT", help="with --vector: (thread, value) -> flat index of the tile, instead of --threads"
    )
    parser.add_argument("--store", action="store_true", help="with --threads or --tv: stores, not loads")
    add_full(parser)


def swizzle(args: argparse.Namespace) -> int:
    """Search for a swizzle and print it; returns the exit status."""
    with way_out(args):
        tile, element, accesses = asked(args)
        found = find_swizzle(tile, accesses, element=element, tma=args.tma)

    def draw() -> str:
        plain = tile.layout if isinstance(tile, SmemTile | ComposedLayout) else tile
        if not isinstance(plain, Layout):
            raise LayoutError(f"{plain} is swizzled twice: draw it before and after the last swizzle from Python")
        return swizzle_pair_svg(plain, found.best, element.bits, access=accesses[0])

    with way_out(args):
        if drawn(args, draw):
            return 0 if found else 1

    def data() -> dict[str, object]:
        in_elements = None if found.swizzle is None else str(found.on_elements(element))
        return {
            "layout": args.layout, "element": element.name, "found": bool(found),
            "swizzle": None if found.swizzle is None else str(found.swizzle), "on_elements": in_elements,
            "best": str(found.best), "method": found.method, "candidates": found.candidates, "reason": found.reason,
            "banks": report_data(found.report),
        }  # fmt: skip

    def text() -> str:
        counted = f"\ncounted in elements: {found.on_elements(element)}" if found else ""
        return head_of_lines(found.explain() + counted, args.full)

    answer(args, text, data)
    return 0 if found else 1


def banks(args: argparse.Namespace) -> int:
    """Count bank conflicts and print the report; returns the exit status."""
    with way_out(args):
        tile, element, accesses = asked(args)
        report = bank_conflicts(tile, accesses, element=element)
    with way_out(args):
        if drawn(args, lambda: access_svg(tile, accesses, element)):
            return 0 if report else 1
    head = {"layout": args.layout, "element": element.name}
    answer(args, lambda: head_of_lines(report.explain(), args.full), lambda: head | report_data(report))
    return 0 if report else 1


@contextmanager
def way_out(args: argparse.Namespace) -> Iterator[None]:
    """Add the remedy to errors about 16-byte rows or about the size of a picture."""
    try:
        yield
    except AtomError as error:
        if "rows" not in (args.access or ([] if args.threads or args.tv else ["rows"])):
            raise
        raise AtomError(
            f"{error}; rows are 16 bytes at multiples of 16, 8 of them a matrix: pad the layout to that, or ask for "
            "--access columns, single elements"
        ) from None
    except LayoutError as error:
        cells, too_many, _ = str(error).partition(": show a part")
        if not too_many:
            raise
        raise LayoutError(f"{cells}: draw a part of it, as in (64,64):(1024,1), or omit the picture") from None


def asked(args: argparse.Namespace) -> tuple[Tile, DType, list[AccessPattern]]:
    """The tile, its element type and the accesses to it. Raises LayoutError."""
    tile = tile_in_memory(args.layout)
    own = tile.dtype if isinstance(tile, SmemTile) else None
    element = dtype(args.element) if args.element else own or stated_element(args.layout) or dtype("bf16")
    composed = tile.composed if isinstance(tile, SmemTile) else tile
    if isinstance(composed, ComposedLayout) and composed.swizzle.unit not in (None, element.bits):
        raise LayoutError(
            f"{composed} counts units of {composed.swizzle.unit} bits, {element} has {element.bits}: give --element a "
            f"type of that width, or the tile as smem:MNxK:{element}:K:128B"
        )
    if isinstance(tile, CoordinateTensor) or isinstance(composed, CoordinateTensor) or composed.has_basis:
        raise LayoutError(f"{args.layout} leads to coordinates, and banks are of elements in shared memory")
    element_bits(tile, element)
    extent_of(composed)
    own_access = given_access(args, composed)
    accesses = args.access or ([] if own_access else ["rows"])
    return tile, element, [*own_access, *(ACCESSES[name](composed, element) for name in accesses)]


def given_access(args: argparse.Namespace, layout: Layout | ComposedLayout) -> list[AccessPattern]:
    """The access of --threads or --tv, over the whole tile; [] without either. Raises LayoutError."""
    if args.threads is None and args.tv is None:
        if args.vector is not None or args.store:
            raise LayoutError("--vector and --store are for --threads LAYOUT or --tv LAYOUT")
        return []
    if args.threads is not None and args.tv is not None:
        raise LayoutError("--threads and --tv are two ways to say one access: give one of them")
    vector = 1 if args.vector is None else args.vector
    kind = "st.shared" if args.store else "ld.shared"
    found = layout_of(args.threads if args.threads is not None else args.tv)
    if not isinstance(found, Layout) or vector < 1:
        raise LayoutError(f"threads take a plain layout and vectors of 1 element or more, not {found} and {vector}")
    if generators(*entries_of(found)):
        raise LayoutError(f"--{'threads' if args.tv is None else 'tv'} {found} has symbols: give them values")
    moved = f" x {vector}" if vector > 1 else ""
    if args.tv is not None:
        return [thread_access(found, vector, kind, f"{kind} by {found}{moved}")]
    if found.rank != 2:
        raise LayoutError(
            f"threads are numbered in rows and columns, as in (4,8):(8,1); {found} has {found.rank} modes"
        )
    value = Layout((1, vector)) if vector == 1 or contiguous(layout) == "K" else Layout((vector, 1))
    _, tv = make_layout_tv(found, value)
    block = tuple(int(found[i].size * value[i].size) for i in (0, 1))
    return [thread_access(tv, vector, kind, f"{kind}{moved}, threads {found}").over(block, extent_of(layout))]


def report_data(report: BankReport) -> dict[str, object]:
    """A bank report for programs. Counts, and the lanes of the first phase that conflicts at its worst bank."""
    first = report.witness
    conflict = None
    if first is not None:
        width = next(part.width for part in report.parts if part.name == first.access)
        conflict = {
            "access": first.access, "request": first.request, "phase": first.index, "ways": first.ways,
            "bank": first.bank, "lanes": [{"lane": lane, "byte": byte} for lane, byte in first.hits],
            "lanes_of_phase": lanes_of_phase(width),
        }  # fmt: skip
    return {
        "ways": report.ways, "conflict_free": report.conflict_free, "phases": report.phases,
        "wavefronts": report.wavefronts, "minimum": report.minimum, "bytes_of_wavefront": WAVEFRONT,
        "conflicting_phases": sum(int((part.phase_ways > 1).sum()) for part in report.parts), "first": conflict,
    }  # fmt: skip
