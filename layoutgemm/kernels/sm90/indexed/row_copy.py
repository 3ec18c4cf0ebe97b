"""The workspace of a Hopper plan's copied rows, and the check of their copy. See `kernels.indexed.row_copy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ....atoms.copy.base import VECTOR_BYTES, WARP
from ....dtypes import DType
from ....report import Check
from ...indexed.row_copy import LINE, RowCopy

if TYPE_CHECKING:
    from ..plan import Sm90Plan


def copied_shape(plan: Sm90Plan) -> tuple[int, int, int]:
    """The workspace's matrices, the rows of each, and elements from row to row."""
    matrices = 1 if plan.joined_rows else plan.batch
    return matrices, plan.m, RowCopy.pitch(plan.k, plan.a.dtype.bytes)


def copied_bytes(plan: Sm90Plan) -> int:
    """Bytes of the workspace of copied rows; 0 where none are copied."""
    if not plan.copies_rows:
        return 0
    matrices, rows, pitch = copied_shape(plan)
    return matrices * rows * pitch * plan.a.dtype.bytes


def row_copy_check(copy: RowCopy, dtype: DType) -> Check:
    """Each vector of a row is copied once, to whole lines of the workspace."""
    size, witness, count = dtype.bytes, "", 0
    width, lane = VECTOR_BYTES // size, np.arange(WARP)
    for k in (1, width + 1, copy.run // size, copy.run // size + 1, 3 * copy.run // size - 1):
        pitch, times = copy.pitch(k, size), np.zeros((2, copy.pitch(k, size) // width), np.int64)
        for number in range(2 * copy.runs(k, size)):
            row, first = copy.place(number, k, size)
            for vector in range(copy.vectors):
                element = first + np.asarray(copy.element(lane, vector, size))
                np.add.at(times[row], element[element < k] // width, 1)
        count += times.size
        wanted = np.arange(times.shape[1]) * width < k
        if (times != wanted).any() and not witness:
            at = int(np.nonzero(times != wanted)[1][0])
            witness = f"of K = {k}, vector {at} of a row is copied {int(times[:, at].max())} times"
        if pitch * size % LINE or pitch < k:
            witness = witness or f"of K = {k}, rows lie {pitch} elements apart"
    statement = f"a warp copies {copy.run} bytes of a row: each vector of 16 bytes once, to whole lines of {LINE} bytes"
    return Check("copy rows", statement, not witness, f"exhaustion ({count} vectors)", witness)
