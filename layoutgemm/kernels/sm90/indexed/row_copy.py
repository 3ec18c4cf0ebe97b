"""Gathered rows, copied first: a kernel writes A's chosen rows to a workspace, and the product reads that by TMA.

    launch     reads                        writes
    -------    -------------------------    ------------------------------------------------------------------------
    copy       row indices, A's rows        the workspace: row i is row rows[i] of A; zeros for an index outside of A
    product    the workspace, B             C

A warp copies a run of one row: each lane loads all its vectors of 16 bytes before it stores the first. Lines of the
workspace are whole lines of memory, whatever A's pitch is. Of masked groups the rows that do not count are left.

Both launches are of one host function, on one stream. The copy waits for the kernel before it, and the product for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....arguments import settle
from ....atoms.copy.base import VECTOR_BYTES, WARP
from ....dtypes import DType
from ....errors import PlanError
from ....layouts import Layout
from ....report import Check
from ...numbers import W
from ...plan import check_sizes, tile_count
from ..multicast import LINE

if TYPE_CHECKING:
    from ..plan import Sm90Plan

COPIED = "copied_rows"  # the word that has the workspace's address


@dataclass(frozen=True, slots=True)
class RowCopy:
    """The kernel that copies A's chosen rows to a workspace.

    vectors  of 16 bytes that a lane copies, all in flight together
    warps    of a CTA

    Raises PlanError for fewer than one of either, and for more than 32 warps.

    >>> copy = RowCopy()
    >>> copy.run, copy.runs(4096, 2), copy.place(9, 4096, 2), copy.element(1, 1, 2), copy.pitch(1000, 2)
    (2048, 4, (2, 1024), 264, 1024)
    """

    vectors: int = 4
    warps: int = 8

    def __post_init__(self) -> None:
        settle(self, PlanError)
        check_sizes(vectors=self.vectors, warps=self.warps)
        if self.warps > WARP:
            raise PlanError(f"warps = {self.warps}: a CTA has 32 at most")

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.warps * WARP

    @property
    def run(self) -> int:
        """Bytes of a row that a warp copies."""
        return self.vectors * WARP * VECTOR_BYTES

    def runs(self, k: W, size: int) -> W:
        """Runs of a row of k elements of `size` bytes; ints or traced integers."""
        return tile_count(k, self.run // size)

    def place(self, number: W, k: W, size: int) -> tuple[W, W]:
        """(row, first element) of a warp of the launch; ints, arrays or traced integers."""
        runs = self.runs(k, size)
        return number // runs, number % runs * (self.run // size)

    def element(self, lane: W, vector: int, size: int) -> W:
        """The first element of a lane's vector in a run: lanes beside each other copy vectors beside each other."""
        return Layout((WARP, self.vectors))(lane, vector) * (VECTOR_BYTES // size)

    @staticmethod
    def pitch(k: W, size: int) -> W:
        """Elements from row to row of the workspace: whole lines of 128 bytes; ints or traced integers."""
        line = LINE // size
        return tile_count(k, line) * line


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
