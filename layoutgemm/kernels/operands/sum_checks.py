"""The check of B's tile of several matrices: the copies fill it."""

from __future__ import annotations

import numpy as np

from ...atoms.tma.engine import shared_bits
from ...checks.coverage import not_once
from ...report import Check
from ..derive import OperandPlan, one_matrix


def filled_side_by_side(operand: OperandPlan, sums: int) -> Check:
    """Every byte of B's tile is copied once. Row r from line r % w of matrix r // w, for w columns of a matrix."""
    tile = operand.smem
    width = tile.extent[0] // sums
    size = tile.dtype.bytes
    times = np.zeros(tile.bytes, dtype=np.int64)
    witness = "" if len(operand.copies) == sums else f"{len(operand.copies)} tensor maps of {sums} matrices"
    for matrix, tma in enumerate(map(one_matrix, operand.copies)):
        box = tma.over([1 << 31] * len(tma.box), (1 << 20,) * (len(tma.box) - 1))
        for copy in tma.instructions:
            at = shared_bits(box, copy.smem_offset) // 8
            steps = [first + np.arange(n) for first, n in zip(copy.coord_offset, at.shape, strict=True)]
            along = dict(zip(tma.dims, np.meshgrid(*steps, indexing="ij"), strict=True))
            k, n = along["k"], along["n"]
            inside = (n < width) & (k < tile.extent[1])
            place = tile.byte((matrix * width + n) % tile.extent[0], k % tile.extent[1])
            wrong = np.argwhere(~inside | (at != place))
            if len(wrong) and not witness:
                where = tuple(int(x) for x in wrong[0])
                of = f"k {int(k[where])} of line {int(n[where])} of matrix {matrix}"
                witness = f"{of} lands at byte {int(at[where])}"
            np.add.at(times, np.clip(at[..., None] + np.arange(size), 0, tile.bytes - 1).ravel(), 1)
    witness = witness or not_once(times, "byte {} of the tile is written {} times, should be 1")
    boxes = sum(len(tma.instructions) for tma in operand.copies)
    statement = (
        f"{boxes} box(es) bring {width} columns of each of {sums} matrices B, one matrix beside the other, each "
        "element once, in its place"
    )
    return Check("copy B", statement, not witness, f"exhaustion ({tile.bytes} bytes)", witness)
