"""Gathered rows, copied first. A kernel writes A's chosen rows to a workspace, and the product reads that by TMA.

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

from ...arguments import settle
from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...atoms.smem.tile import SPANS
from ...errors import PlanError
from ...layouts import Layout
from ..numbers import W
from ..plan import check_sizes, tile_count

COPIED = "copied_rows"  # the word that has the workspace's address
LINE = SPANS["128B"]  # bytes of a line of memory


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
        """The first element of a lane's vector in a run. Lanes beside each other copy vectors beside each other."""
        return Layout((WARP, self.vectors))(lane, vector) * (VECTOR_BYTES // size)

    @staticmethod
    def pitch(k: W, size: int) -> W:
        """Elements from row to row of the workspace: whole lines of 128 bytes. Ints or traced integers."""
        line = LINE // size
        return tile_count(k, line) * line
