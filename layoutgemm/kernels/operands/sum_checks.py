"""The check of B's tile of several matrices: the copies fill it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...atoms import SmemTile, TmaPlan
from ...atoms.tma.engine import shared_bits
from ...atoms.tma.rules import SMEM_UNIT
from ...checks.coverage import not_once
from ...report import Check
from ..derive import OperandPlan, one_matrix


def filled_side_by_side(operand: OperandPlan, sums: int) -> Check:
    """Every byte of B's tile is copied once. Row r from line r % w of matrix r // w, for w columns of a matrix."""
    width, count = operand.smem.extent[0] // sums, len(operand.copies)
    witness = "" if count == sums else f"{count} tensor maps of {sums} matrices"
    witness = witness or misplaced_columns(
        operand.unit_tile, width, [one_matrix(tma) for tma in operand.copies], "matrix"
    )
    boxes = sum(len(tma.instructions) for tma in operand.copies)
    statement = (
        f"{boxes} box(es) bring {width} columns of each of {sums} matrices B, one matrix beside the other, each "
        "element once, in its place"
    )
    return Check("copy B", statement, not witness, f"exhaustion ({operand.smem.bytes} bytes)", witness)


def misplaced_columns(tile: SmemTile, width: int, maps: Sequence[TmaPlan], part: str) -> str:
    """The first misplaced element of B's tile of several matrices, or "".

    Its copies bring every element once, to its place.

    width  columns of each
    maps   the copies of each matrix; or one of all, with a dimension of that name
    part   the name of a matrix
    """
    times, witness, size = np.zeros(tile.bytes, dtype=np.int64), "", tile.dtype.bytes
    for number, tma in enumerate(maps):
        box = tma.over([1 << 31] * len(tma.box), (0,) * (len(tma.box) - 1))
        for copy in tma.instructions:
            if copy.smem_offset % SMEM_UNIT:
                witness = witness or f"the box at {copy.coord_offset} starts at shared byte {copy.smem_offset}"
                continue
            at = shared_bits(box, copy.smem_offset) // 8
            steps = [first + np.arange(n) for first, n in zip(copy.coord_offset, at.shape, strict=True)]
            along = dict(zip(tma.dims, np.meshgrid(*steps, indexing="ij"), strict=True))
            k, n = along["k"], along["n"]
            of = along.get(part, np.full_like(n, number))
            row, count = of * width + n, tile.extent[0] // width
            inside = (n < width) & (of < count) & (k < tile.extent[1])
            wrong = np.argwhere(~inside | (at != tile.byte(row % tile.extent[0], k % tile.extent[1])))
            if len(wrong):
                where = tuple(int(x) for x in wrong[0])
                found = f"k {int(k[where])} of line {int(n[where])} of {part} {int(of[where])}"
                witness = witness or f"{found} lands at byte {int(at[where])}"
            np.add.at(times, np.clip(at[..., None] + np.arange(size), 0, tile.bytes - 1).ravel(), 1)
    return witness or not_once(times, "byte {} of the tile is written {} times, should be 1")
