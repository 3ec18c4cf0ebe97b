"""Groups along K, the gradients of experts' weights. C[e] = A[:, g] @ B[g] for the rows g of B of group e.

A is column-major and B row-major: a group begins at any line of either. Where groups end is known on the device alone.
The tiles of C are those of a batch, group after group; each tile has as many K tiles as its group needs:

    a table in shared memory, made by every block at its start
        starts[e]    offsets[e], or ends[e - 1] behind a 0, from 0 to K: the group's first line
    K tiles          of lines starts[e] to starts[e + 1] - 1: enough to cover them, and `least_k_tiles` or more

K tiles are counted from the group's end. The last of them reaches into the lines of the group before, and a TMA load
ends at its tensor's extents. So both operands' maps have the first line as a dimension:

    dimension   extent      distance     coordinate
    m, or n     M, or N     1            row, or column, of C
    k           T           a line       lines from `start` to the tile's first line: 0, or less
    start       K           a line       the first line that is read: the greater of the tile's and the group's first

Line r of the box is line k + r + start of the operand. Lines before `start` have negative coordinates along k: they are
out of bounds, and TMA fills them with zeros. It does so in both operands: no NaN of another group meets a zero. No
tensor map is made on the device, and no thread writes to the stages. An empty group has K tiles of zeros alone.

A map that begins before its operand, and takes the end of a group as a dimension, reads the same lines. But an H100
reports an illegal memory access where nothing is mapped at a tensor map's address, though no box reads there.

Floats of 8 bits have K contiguous, and a scale for each block of 128 of K. A is row-major, B column-major, and groups
begin at multiples of 128: their K blocks are those of K. Only K may end inside of a block. The maps are a plain
product's, and K tile i of a group begins at starts[e] + 128 i:

    group                                     C
    --------------------------------------    ------------------------------------------------------------------------
    begins and ends at such multiples, or K   the product
    empty                                     zeros: its K tile lies behind K, and the sums are replaced
    begins or ends inside of a block          NaN: a box would read lines of another group, and a block has one scale
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...arguments import shown
from ...atoms import TmaPlan
from ...atoms.tma.engine import global_bits
from ...errors import PlanError
from ...report import Check
from ..derive import either, with_copies
from ..numbers import W
from ..operands.promoted import DEPTH
from ..plan import MAX_COORDINATE, present, rounded_up
from ..ragged import AlongK, check_room, is_inside
from .plan import GroupedPlan

if TYPE_CHECKING:
    from ..derive import Operand, OperandPlan
    from ..run.hardware_model import GlobalMatrix

START = "start"  # the dimension of the operands' tensor maps that says where a group begins
_MARGIN = 1 << 20  # lines of K from a group's end to the end of its K tiles, at most
_TMA_BYTES = 16  # that the innermost coordinate of a TMA load is a multiple of


def check_along_k(
    along_k: AlongK, sizes: tuple[int, int, int, int], operands: tuple[Operand, Operand],
    reads: tuple[str, tuple[int, ...]], tile_k: int | None,
) -> None:  # fmt: skip
    """Raise PlanError, naming the obstacle, for groups along K without a kernel.

    reads   the instruction, and bits of elements that it reads with K not contiguous
    tile_k  of the configuration
    """
    check_room("along_k", along_k, AlongK, sizes[3])
    for (name, order), spec in zip((("a", "col"), ("b", "row")), operands, strict=True):
        if along_k.in_blocks and (spec.dtype.bits != 8 or spec.dtype.kind != "float"):
            raise PlanError(
                f"{name} is {spec}: groups at multiples of {along_k.multiple} are of floats of 8 bits; others begin at "
                "any line of K: multiple=1"
            )
        if not along_k.in_blocks and spec.dtype.bits not in reads[1]:
            way = f"; of {spec.dtype} they begin at multiples of {DEPTH}: AlongK.of(groups, multiple={DEPTH})"
            raise PlanError(
                f"{name} is {spec}: {reads[0]} reads {spec.dtype} with K contiguous alone, a TMA load begins at "
                "multiples of 16 bytes of it, and groups begin at any element: such groups along K are of bf16 and f16"
                + way
                * (spec.dtype.bits == 8 and spec.dtype.kind == "float")
            )
        if not along_k.in_blocks and spec.order != order:
            raise PlanError(
                f"{name} is {spec}: groups begin at any line of K, and K is not to be contiguous: {shown(order)}"
            )
    if along_k.in_blocks and tile_k is not None and along_k.multiple % tile_k:
        raise PlanError(
            f"tile_k = {tile_k}: groups end at multiples of {along_k.multiple}, which K tiles have to divide"
        )
    if sizes[2] > MAX_COORDINATE - _MARGIN:
        raise PlanError(f"k = {sizes[2]}: a coordinate of K and some K tiles are a signed 32-bit integer")


def is_refused(plan: GroupedPlan, start: W, end: W, k: W) -> bool:
    """True if a group begins or ends inside of a block: its C is NaN. Ints or traced integers."""
    multiple = present(plan.along_k).multiple
    return is_inside(start, multiple, k) | is_inside(end, multiple, k)


def k_tiles_of(plan: GroupedPlan, lines: W, maximum: Callable[..., W]) -> W:
    """K tiles of a group with `lines` lines; ints or traced integers."""
    return maximum(-(-lines // plan.tile[2]), plan.least_k_tiles)


def line_table(plan: GroupedPlan, offsets: npt.NDArray[np.int64]) -> list[int]:
    """starts, as every block makes them."""
    last, entries = len(offsets) - 1, present(plan.along_k).entries
    return [min(max(int(offsets[min(e, last)]), 0), plan.k) for e in range(entries)]


def load_extents(k: W, tile_k: int) -> dict[str, W | int]:
    """The extents of the operands' tensor maps along K."""
    return {"k": tile_k, START: k}


def load_place(plan: GroupedPlan, start: W, end: W, k_tile: W, maximum: Callable[..., W]) -> dict[str, W]:
    """Coordinates along K of a group's K tile, counted from the group's end. Ints or traced integers."""
    first = end - (k_tile + 1) * plan.tile[2]
    begin = maximum(first, start)
    return {"k": first - begin, START: begin}


def block_place(plan: GroupedPlan, start: W, end: W, k_tile: W, k: W, choose: Callable[..., W]) -> dict[str, W]:
    """Coordinates along K of a K tile of a group of blocks. Behind K beyond the group's end.

    A TMA load takes multiples of 16 bytes, so one of a group that is refused begins with its block.
    """
    depth, multiple = plan.tile[2], present(plan.along_k).multiple
    further = k_tile * depth
    first = start // multiple * multiple + further
    return {"k": choose(start + further < end, first, (k + depth - 1) // depth * depth)}


def place_in_group(
    plan: GroupedPlan, lines: tuple[W, W], k_tile: W, k: W, choose: Callable[..., W], maximum: Callable[..., W]
) -> dict[str, W]:
    """Coordinates along K of one of a group's K tiles. Ints or traced integers.

    lines  the group's first line and its end
    """
    if present(plan.along_k).in_blocks:
        return block_place(plan, *lines, k_tile, k, choose)
    return load_place(plan, *lines, k_tile, maximum)


def first_block(plan: GroupedPlan, start: W, k: W, minimum: Callable[..., W]) -> W:
    """The K block that a group begins with, of K's own. The last one for an empty group behind it."""
    return minimum(start, k - 1) // plan.tile[2]


def with_starts(operand: OperandPlan) -> OperandPlan:
    """The operand, its tensor maps with the first line that is read as a dimension."""
    return with_copies(operand, [tma.batched(START) for tma in operand.copies])


def of_lines(plan: GroupedPlan, matrix: GlobalMatrix) -> GlobalMatrix:
    """An operand as its tensor maps have it. With the first line that is read as a dimension."""
    of = load_extents(matrix.extents[1], plan.tile[2])
    return replace(matrix, extents=(matrix.extents[0], int(of["k"]), int(of[START])), pitch=matrix.leading)


# ---------------------------------------------------------------------------------------------------------------- proof


def along_k_checks(plan: GroupedPlan, proven: int) -> list[Check]:
    """The K tiles of a group have its lines, each once, and else zeros.

    proven  K tiles that every tile has at least in the pipeline that is proven
    """
    blocks = present(plan.along_k).in_blocks
    lines = [(_blocks if blocks else _lines)(plan, operand) for operand in (plan.a, plan.b)]
    return [_tiles_of_groups(plan, proven), *lines, *([_refused(plan)] if blocks else [])]


def _tiles_of_groups(plan: GroupedPlan, proven: int) -> Check:
    """K tiles cover groups of every length; the table holds offsets to 0 and K."""
    depth, least, witness = plan.tile[2], max(1, proven), ""
    lengths = range((least + 2) * depth + 2)
    for lines in lengths:
        count = k_tiles_of(plan, lines, max)
        if count * depth < lines or count < least or (count > least and (count - 1) * depth >= lines):
            witness = witness or f"{lines} lines in {count} K tiles of {depth}"
    deep = plan.a.smem.extent[1], plan.b.smem.extent[1]
    if deep != (depth, depth):
        witness = witness or f"K tiles of {depth}, tiles of A {deep[0]} and of B {deep[1]} deep"
    for offsets in ([0, plan.k], [-5, 3, plan.k + 7, 0]):
        starts = line_table(plan, np.asarray(offsets))
        if (
            starts[: len(offsets)] != np.clip(offsets, 0, plan.k).tolist()
            or len(starts) != present(plan.along_k).entries
        ):
            witness = witness or f"offsets {offsets}: the table begins with {starts[: len(offsets)]}"
    statement = (
        f"a group has K tiles of {depth} lines that cover it, and {least} or more, as in the pipeline that is proven "
        "for different numbers of them; offsets are held to 0 and K"
    )
    return Check("groups along K", statement, not witness, f"exhaustion ({len(lengths)} lengths)", witness)


def _lines(plan: GroupedPlan, operand: OperandPlan) -> Check:
    """Boxes of one K tile read a group's first lines, for any number of them."""
    depth, witness, boxes = plan.tile[2], "", 0
    start, dim = 3, "m" if operand.name == "A" else "n"
    for tma in operand.copies:
        if tma.dims != (dim, "k", START):
            witness = witness or f"the map's dimensions are {tma.dims}"
            continue
        for left in range(-1, depth + 2):
            end = start + depth + left  # of the group: this is its second K tile
            found = _read(plan, tma, operand.smem.extent[0], load_place(plan, start, end, 1, max), end + depth)
            for line, size, rows, columns in found:
                boxes += 1
                first = end - 2 * depth + line
                want = np.arange(max(first, start), max(first + size, start))
                if not np.array_equal(np.unique(rows), want) or columns != tma.box[0] * want.size:
                    witness = witness or f"{left} lines left, box from line {line}: lines {np.unique(rows).tolist()}"
    statement = (
        f"a box of {operand.name} reads the lines of its K tile from its group's first, each once, and zeros else, for "
        f"each of {boxes} boxes and ends"
    )
    return Check(f"starts of groups {operand.name}", statement, not witness, "exhaustion", witness)


def _blocks(plan: GroupedPlan, operand: OperandPlan) -> Check:
    """Boxes read a group's lines up to K once, and none of an empty group."""
    multiple, depth, witness, found_boxes = present(plan.along_k).multiple, plan.tile[2], "", 0
    rows, dim = operand.smem.extent[0], "m" if operand.name == "A" else "n"
    for tail in (0, 1, depth - 1):  # of K behind its whole blocks
        k = 3 * multiple + tail
        for start, end in ((0, 0), (0, multiple), (multiple, 3 * multiple), (2 * multiple, k), (k, k)):
            read: list[int] = []
            for k_tile in range(k_tiles_of(plan, end - start, max)):
                place = {**block_place(plan, start, end, k_tile, k, either), dim: 0}
                for tma in operand.copies:
                    tmap = tma.over([{dim: rows, "k": k}[name] for name in tma.dims], (rounded_up(k, _TMA_BYTES),))
                    for copy in tma.instructions:
                        found_boxes += 1
                        where = [place[name] + at for name, at in zip(tma.dims, copy.coord_offset, strict=True)]
                        bits, inside = global_bits(tmap, where)
                        read += (bits[inside] // tma.dtype.bits % rounded_up(k, _TMA_BYTES)).tolist()
            counts = np.bincount(np.asarray(read, np.int64), minlength=k)
            want = np.zeros(k, np.int64)
            want[start:end] = rows
            if not np.array_equal(counts, want):
                line = int(np.argmax(counts != want))
                witness = witness or (
                    f"lines {start} to {end} of {k}: line {line} is read {counts[line]} times for {want[line]} rows"
                )
    statement = (
        f"boxes of {operand.name} read the lines of a group's K tiles, each once, no line behind K, and none for an "
        f"empty group: {found_boxes} boxes"
    )
    return Check(f"starts of groups {operand.name}", statement, not witness, "exhaustion", witness)


def _refused(plan: GroupedPlan) -> Check:
    """NaN stands for each group that ends inside of a block, and for no other."""
    multiple, witness = present(plan.along_k).multiple, ""
    for k in (2 * multiple, 2 * multiple + 7):
        for line in range(k + 1):
            want = line != k and bool(line % multiple)
            for start, end in ((line, k), (0, line)):
                if bool(is_refused(plan, start, end, k)) != want:
                    witness = witness or f"lines {start} to {end} of {k}: refused is {not want}"
                if unaligned := block_place(plan, start, end, 0, k, either)["k"] % _TMA_BYTES:
                    witness = witness or f"lines {start} to {end} of {k}: a load {unaligned} bytes off a multiple of 16"
    if plan.tile[2] > multiple or multiple % plan.tile[2]:
        witness = witness or f"K tiles of {plan.tile[2]}, blocks of {multiple}"
    statement = (
        f"C of a group is NaN exactly if it begins or ends inside of a block of {multiple}, and not at K; all loads "
        "begin at multiples of 16 bytes"
    )
    return Check("groups inside of blocks", statement, not witness, "exhaustion", witness)


def _read(
    plan: GroupedPlan, tma: TmaPlan, across: int, place: dict[str, int], k: int
) -> list[tuple[int, int, npt.NDArray[np.int64], int]]:
    """(first line, lines, lines of the operand, elements) of each box of a K tile."""
    pitch, depth = 2 * across, plan.tile[2]
    extents = {**load_extents(k, depth), tma.dims[0]: across}
    tmap = tma.over([int(extents[name]) for name in tma.dims], (pitch * tma.dtype.bytes,) * 2)
    found = []
    for copy in tma.instructions:
        where = [{**place, tma.dims[0]: 0}[name] + at for name, at in zip(tma.dims, copy.coord_offset, strict=True)]
        bits, inside = global_bits(tmap, where)
        lines = bits[inside] // tma.dtype.bits // pitch
        found.append((copy.coord_offset[1], tma.box[1], lines, int(inside.sum())))
    return found


def explain_along_k(plan: GroupedPlan) -> list[str]:
    """The groups, their table and where loads end."""
    along_k = present(plan.along_k)
    dims = ", ".join(plan.a.tma.dims)
    return [
        f"groups along K: {plan.batch} of {plan.k} lines in all, their ends {along_k.offsets} in global memory; a "
        f"table of {along_k.entries} first lines at {plan.smem.table_offset}, {along_k.bytes} bytes; "
        f"{plan.least_k_tiles} K tile(s) or more each",
        f"  groups begin at multiples of {along_k.multiple} and end there, or at K: C of any other is NaN"
        if along_k.in_blocks
        else f"  K tiles are counted from a group's end, and a load begins with its group: the maps are along ({dims})",
    ]
