"""`layoutgemm desc` and `layoutgemm box`: the matrix descriptor and the TMA copies of a shared-memory tile."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace

from ..arch import ARCHES
from ..arch import arch as arch_of
from ..atoms import (
    SWIZZLES,
    MmaAtom,
    OperandRead,
    SmemDescriptor,
    SmemTile,
    TmaPlan,
    decode,
    describe,
    operand_read,
    tcgen05_read,
    tma_load,
    tma_store,
    wgmma,
)
from ..atoms.mma.tcgen05 import KINDS, legal_m, legal_n
from ..atoms.smem.bit_fields import FieldTable
from ..atoms.smem.descriptor import OperandDescriptor
from ..atoms.smem.descriptor import derive as derive_descriptor
from ..atoms.smem.descriptor_words import smem_table
from ..atoms.smem.instruction_descriptor import CODES, InstructionDescriptor
from ..atoms.smem.tile import MAJORS
from ..atoms.tma.derive import derive as derive_tma
from ..dtypes import DType, dtype
from ..errors import AtomError, DescriptorError, LayoutError
from ..layouts import Layout
from ..view import box_svg, fields_svg
from .arguments import add, add_picture, answer, drawn, size_pair
from .commands import Commands
from .texts import parts_of_tile, plain_tile

DESC_EXAMPLES = (
    "layoutgemm desc 128x64 --element bf16 --major K --swizzle 128B",
    "layoutgemm desc 256x64 --element e4m3 --operand B --arch sm_100a --json",
    "layoutgemm desc 0x4000004000010040",
    "layoutgemm desc 0x8400490 --kind f16",
    "layoutgemm desc 128x64 --svg descriptor.svg",
)
BOX_EXAMPLES = (
    "layoutgemm box 128x64 --element bf16 --major K",
    "layoutgemm box 64x128 --element f16 --major MN --json",
    "layoutgemm box smem:128x64:bf16:K:128B --of 4096x1024 --at 3,2",
    "layoutgemm box 128x128 --of 200x104 --at 1,0 --svg box.svg",
)
ELEMENT, MAJOR = "bf16", "K"  # of a tile that does not say them
WORD = re.compile(r"0[xX][0-9a-fA-F_]+")
PRINTED_WORD = re.compile(r"\s*\w*Descriptor:\s*(0x[0-9a-fA-F]{1,16})\b")  # as CuTe prints one


def _tile_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--element", metavar="TYPE", help=f"the type of an element ({ELEMENT})")
    parser.add_argument("--major", type=str.upper, choices=MAJORS, help=f"which mode is contiguous ({MAJOR})")
    parser.add_argument("--swizzle", choices=tuple(SWIZZLES), help="default: the widest that fits")


def asked(text: str, args: argparse.Namespace, form: str) -> tuple[tuple[int, int], DType, str, str | None]:
    """The extent, type, major and swizzle of the tile that a command asks for: smem:... or sizes and options."""
    if not text.startswith("smem:"):
        return size_pair(text, form), dtype(args.element or ELEMENT), args.major or MAJOR, args.swizzle
    for option in ("element", "major", "swizzle"):
        if getattr(args, option) is not None:
            raise LayoutError(f"--{option} {getattr(args, option)} beside {text}, which states it: omit one of them")
    return parts_of_tile(text)


# ------------------------------------------------------------------------------------------------------ descriptors


def add_desc(commands: Commands) -> None:
    """The subcommand desc."""
    parser = add(
        commands, "desc", DESC_EXAMPLES, desc,
        says="Derives the 64-bit word by which wgmma or tcgen05.mma finds a tile of MN x K elements in shared memory, "
        "field by field; of a word in hexadecimal, says what its fields hold.",
    )  # fmt: skip
    parser.add_argument(
        "what",
        metavar="MNxK | WORD",
        help="a tile, as in 128x64 or smem:128x64:bf16:K:128B, or a word, as in 0x4000004000010040",
    )
    _tile_arguments(parser)
    parser.add_argument("--arch", default="sm_90a", help="sm_90a (default) or sm_100a")
    parser.add_argument("--operand", type=str.upper, choices=("A", "B"), default="A", help="(%(default)s)")
    parser.add_argument("--kind", choices=tuple(CODES), help="of tcgen05.mma; with a word, its instruction descriptor")
    parser.add_argument("--address", type=number, default=0, help="where the tile starts, bytes (%(default)s)")
    add_picture(parser, "the word's bits and fields")


def number(text: str) -> int:
    """`1024` or `0x400`."""
    return int(text, 0)


def desc(args: argparse.Namespace) -> int:
    """Derive or decode a descriptor and print it; returns the exit status."""
    printed = PRINTED_WORD.match(args.what)
    args.what = printed[1] if printed is not None else args.what
    if WORD.fullmatch(args.what):
        word = int(args.what, 16)
        found = decoded(word, args.arch, args.kind)
        if drawn(args, lambda: fields_svg(found.table, word)):
            return 0
        element = dtype(args.element or ELEMENT)
        text = describe(word, args.arch, element, args.kind)
        answer(args, lambda: text, lambda: {**word_data(found.table, word), **meaning(found, element)})
        return 0
    form = "a tile is written MNxK, as in 128x64, a word in hexadecimal, as in 0x400000400001"
    extent, element, major, swizzle = asked(args.what, args, form)
    read = read_of(args.arch, args.operand, element, fitting(extent, element)[0], args.kind)
    tile = plain_tile(extent, element, major, swizzle, read.packing)
    derived = derive_descriptor(tile, read, args.operand)
    if args.address % derived.alignment:
        up = (args.address // derived.alignment + 1) * derived.alignment
        raise DescriptorError(
            f"--address {args.address:#x}: the tile starts at a multiple of {derived.alignment}, as {up:#x}"
        )
    placed = derived.at(args.address)
    if drawn(args, lambda: fields_svg(placed.table, placed.word, reasons=dict(derived.reasons))):
        return 0

    def text_() -> str:
        head = f"{read.text}, which reads {read.rows}x{read.depth} of the tile {tile}"
        at = f"\nat address {args.address:#x}: {placed.word:#018x}" if args.address else ""
        return f"{head}\n{derived.explain()}{at}"

    answer(args, text_, lambda: derived_data(derived, placed, tile, read))
    return 0


def decoded(word: int, arch: str, kind: str | None) -> SmemDescriptor | InstructionDescriptor:
    """The fields of a word. For a word of another architecture, raises DescriptorError that names it."""
    try:
        return decode(word, arch, kind)
    except DescriptorError as error:
        if kind is None and word < 1 << 32:
            raise DescriptorError(f"{error}; of an instruction descriptor give its --kind, as in f16") from None
        for other in ARCHES:
            try:
                decode(word, other, kind)
            except DescriptorError:
                continue
            raise DescriptorError(f"{error}; it is a word of {other}: give --arch {other}") from None
        raise


def read_of(arch: str, operand: str, element: DType, rows: int, kind: str | None) -> OperandRead:
    """The largest read of the operand by one instruction of that architecture."""
    if smem_table(arch) is smem_table("sm_90a"):
        if kind is not None:
            raise DescriptorError(f"{arch_of(arch).name} has wgmma, without kinds: omit --kind {kind}")
        if operand == "A":
            read = operand_read(wgmma(8, element), "A")
            return replace(read, text=f"operand A of wgmma m{read.rows}k{read.depth}")  # whatever its N
        return operand_read(_widest_wgmma(rows, element), "B")
    if kind is None:
        kind = next((name for name, entry in KINDS.items() if element.name in entry.types), None)
    if kind is None:
        known = ", ".join(dict.fromkeys(name for entry in KINDS.values() for name in entry.types))
        raise DescriptorError(f"tcgen05.mma multiplies {known}, not {element}")
    sizes = legal_m(kind) if operand == "A" else legal_n(kind)
    fitting = [size for size in sizes if rows % size == 0]
    if not fitting:
        raise DescriptorError(
            f"{rows} rows of operand {operand}: tcgen05.mma.kind::{kind} takes {_listed(sizes)} rows, and none divides"
        )
    return tcgen05_read(kind, element, fitting[-1], operand)


def _widest_wgmma(rows: int, element: DType) -> MmaAtom:
    wgmma(8, element)  # refuses the type
    for n in range(min(rows, 256) // 8 * 8, 0, -8):
        if rows % n == 0:
            try:
                return wgmma(n, element)
            except AtomError:  # integers have fewer N
                continue
    raise DescriptorError(f"{rows} rows of operand B: wgmma takes a multiple of 8 of them, and none divides")


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes)) if len(sizes) < 6 else f"{sizes[0]}, {sizes[1]}, ..., {sizes[-1]}"


def word_data(table: FieldTable, word: int) -> dict[str, object]:
    """A word and its fields for programs. Bits [low, high), the raw number there, the value and its name."""
    values = table.decode(word)
    fields = {
        field.name: {
            "bits": [field.low, field.low + field.width], "raw": values[field.name] >> field.shift,
            "value": values[field.name], "name": field.label(values[field.name]), "unit": field.unit,
        }
        for field in table.fields
    }  # fmt: skip
    return {"word": f"{word:#0{table.bits // 4 + 2}x}", "table": table.name, "fields": fields}


def meaning(found: SmemDescriptor | InstructionDescriptor, element: DType) -> dict[str, object]:
    """The meaning of a decoded word: a matrix descriptor's layouts, or an instruction descriptor's product."""
    if isinstance(found, SmemDescriptor):
        return {"arch": found.arch, "swizzle": found.swizzle_name, "layouts": found.layouts(element)}
    types = {"a": str(found.a), "b": str(found.b), "d": str(found.d)}
    return {"kind": found.kind, "shape": [found.m, found.n, found.k], **types}


def derived_data(
    derived: OperandDescriptor, placed: SmemDescriptor, tile: SmemTile, read: OperandRead
) -> dict[str, object]:
    """A derived descriptor for programs; steps and stages in bytes."""
    return {
        **word_data(placed.table, placed.word), "arch": read.arch, "operand": read.name, "layout": str(tile),
        "major": derived.major, "swizzle": tile.swizzle_name, "instruction": [read.rows, read.depth],
        "reasons": dict(derived.reasons), "k_steps": derived.k_steps, "mn_steps": derived.mn_steps,
        "alignment": derived.alignment, "stage_bytes": derived.stage_bytes,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ boxes


def add_box(commands: Commands) -> None:
    """The subcommand box."""
    parser = add(
        commands, "box", BOX_EXAMPLES, box,
        says="Derives the box, the instructions with their coordinates, and the bytes that the barrier expects, for a "
        "tile of ROWS x COLUMNS elements, and with --of holds a matrix against the rules of the tensor map.",
    )  # fmt: skip
    parser.add_argument(
        "tile", metavar="ROWSxCOLUMNS", help="the tile, as in 128x64 or smem:128x64:bf16:K:128B; columns are K"
    )
    _tile_arguments(parser)
    parser.add_argument("--store", action="store_true", help="the TMA stores that empty the tile instead")
    parser.add_argument("--of", metavar="ROWSxCOLUMNS", help="the matrix in global memory, without gaps")
    parser.add_argument("--at", metavar="I,J", help="with --of: which tile of the matrix (0,0)")
    add_picture(parser, "the tile's boxes in the matrix")


def box(args: argparse.Namespace) -> int:
    """Derive the copies and print them; returns the exit status."""
    if args.at is not None and args.of is None:
        raise LayoutError(f"--at {args.at} is a tile of a matrix: give the matrix too, as in --of 4096x1024")
    form = "a tile is written ROWSxCOLUMNS, as in 128x64, or smem:128x64:bf16:K:128B"
    extent, element, major, swizzle = asked(args.tile, args, form)
    tile = plain_tile(fitting(extent, element), element, major, swizzle)
    starts: tuple[tuple[int, ...], ...] | None = None
    at: tuple[int, int] | None = None
    if args.of is None:
        names = ("column", "row") if tile.major == "K" else ("row", "column")
        plan = derive_tma(tile, names, "store" if args.store else "load")
    else:
        rows, columns = size_pair(args.of, "--of is a matrix written ROWSxCOLUMNS, as in 4096x1024")
        matrix = Layout((rows, columns), (columns, 1) if tile.major == "K" else (1, rows))
        plan = (tma_store if args.store else tma_load)(matrix, tile, names=("row", "column"))
        at = place(args.at or "0,0", (rows, columns), tile.extent)
        starts = plan.coordinates(at)
    if drawn(args, lambda: box_svg(plan, at)):
        return 0

    def text() -> str:
        lines = [plan.explain(), f"the tile: {tile}, at a multiple of {plan.alignment} bytes",
                 f"{'the barrier expects' if plan.operation == 'load' else 'the copies move'} {plan.bytes} bytes",
                 plan.ptx]  # fmt: skip
        if starts is not None:
            named = [", ".join(f"{dim} {x}" for dim, x in zip(plan.dims, start)) for start in starts]
            lines.append(f"tile {args.at or '0,0'}: " + "; ".join(f"at ({start})" for start in named))
        return "\n".join(lines)

    answer(args, text, lambda: box_data(plan, tile, starts))
    return 0


def fitting(extent: tuple[int, int], element: DType) -> tuple[int, int]:
    """The extent of a tile that fits the shared memory of some architecture. Raises LayoutError.

    >>> fitting((128, 64), dtype("bf16"))
    (128, 64)
    """
    size, most = extent[0] * extent[1] * element.bits // 8, max(arch_of(name).smem_per_block for name in ARCHES)
    if size > most:
        tile = f"a tile of {extent[0]}x{extent[1]} {element}"
        raise LayoutError(f"{tile} is {size} bytes, and the shared memory of a block {most} at most: ask for less")
    return extent


def place(text: str, matrix: tuple[int, int], tile: tuple[int, int]) -> tuple[int, int]:
    """`3,2` as the number of a tile along rows and columns. Raises LayoutError for one outside the matrix."""
    counts = tuple([-(-size // part) for size, part in zip(matrix, tile)])
    found = re.fullmatch(r"(\d+),(\d+)", text)
    at = (int(found[1]), int(found[2])) if found else None
    if at is None or at[0] >= counts[0] or at[1] >= counts[1]:
        raise LayoutError(f"--at {text}: the matrix has tiles 0,0 to {counts[0] - 1},{counts[1] - 1}")
    return at


def box_data(plan: TmaPlan, tile: SmemTile, starts: tuple[tuple[int, ...], ...] | None) -> dict[str, object]:
    """The copies for programs: elements along the dimensions, innermost first; offsets in bytes."""
    data = {
        "operation": plan.operation, "element": plan.dtype.name, "layout": str(tile), "dims": plan.dims,
        "box": plan.box, "swizzle": plan.swizzle, "driver_swizzle": plan.driver_swizzle, "box_bytes": plan.box_bytes,
        "bytes": plan.bytes, "alignment": plan.alignment, "ptx": plan.ptx,
        "instructions": [
            {"coordinates": copy.coord_offset, "shared_byte": copy.smem_offset} for copy in plan.instructions
        ],
    }  # fmt: skip
    if starts is not None:
        data |= {"extents": plan.extents, "strides": plan.strides, "tile_coordinates": starts}
    return data
