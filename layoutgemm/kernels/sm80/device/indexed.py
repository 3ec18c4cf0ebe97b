"""An mma.sync GEMM that gathers rows of A, or scatters rows of C. See `kernels.indexed.rows`.

    part      in order                            with indices
    ------    --------------------------------    ------------------------------------------------------------------
    copies    rows of A one pitch apart           a thread reads the indices of its rows once for each tile of C; of a
                                                  row outside, no byte is read, and cp.async writes zeros
    store     rows of C one pitch apart           a lane reads the index of its row in each round; a row outside is not
                                                  stored

The tiles in shared memory, the waits and the products are the same. Where A's rows are gathered, B comes by cp.async
too. Rows of C are scattered behind TMA loads as well.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...dsl import bridge
from ...dsl.tables import load_index
from ...indexed.rows import OUT_ROWS, ROWS
from ...plan import present
from ..plan import Sm80Plan
from .epilogue import RowPlaces
from .fused import Sm80FusedKernel, Sm80FusedPersistentKernel, Sm120FusedKernel
from .gemm import Copies


class GatheredCopies(Copies):
    """A thread's copies of the rows of A that the indices name."""

    def __init__(self, plan: Sm80Plan, job: bridge.Carried, *at: Any):
        """See `Copies`, whose arguments `at` has; `job` holds m, the matrix and the launch's words."""
        self.indexed, self.job = present(plan.indexed), job
        super().__init__(plan.a, *at)

    def lines(self, start: Int32) -> tuple[list[Int64], list[Int32]]:
        """Addresses of the thread's rows at K = 0, and a vector's bytes. 0 of rows outside."""
        depth, _, mn, matrix, pitch, m = self.others
        size, anchors, rooms = self.operand.dtype.bytes, [], []
        for i in range(self.copy.parts[0]):
            row = load_index(self.indexed, self.job, ROWS, start + mn + self.away[i, 0][0], m, self.job.of_batch)
            anchors.append(matrix + (cutlass.max(row, Int64(0)) * pitch + depth) * size)
            rooms.append(Int32(cutlass.select_(row >= 0, Int32(self.copy.vector_bytes), Int32(0))))
        return anchors, rooms


class IndexedPlaces(RowPlaces):
    """Rows of C by their indices."""

    def __init__(self, plan: Sm80Plan, job: bridge.Carried):
        self.indexed, self.job = present(plan.indexed), job

    def place(self, row: Int32, m: Int32) -> tuple[Int64, Any]:
        """(row of C, whether it is stored) of a row of the product."""
        found = load_index(self.indexed, self.job, OUT_ROWS, row, m, self.job.of_batch)
        return found, found >= 0


class IndexedPlacesKernel:
    """The copies and the store of a plan with indexed rows."""

    plan: Any

    def job(self, m: Int32, words: tuple[Int64, ...]) -> bridge.Carried:
        """The words by name, and the matrix of the batch."""
        plan = self.plan
        _, _, matrix = cute.arch.block_idx()
        given = bridge.Carried(**dict(zip(plan.words, words, strict=True)))
        return bridge.Carried(m=m, given=given, of_batch=matrix if plan.matrices_of_c > 1 else None)

    def copies_of_a(
        self, thread: Int32, a: Int64, lda: Int64, start: Int32, m: Int32, k: Int32, words: tuple[Int64, ...]
    ) -> Copies:
        """A thread's copies of A, whose tile begins at row `start` of the product."""
        if not self.plan.gathers:
            return super().copies_of_a(thread, a, lda, start, m, k, words)  # type: ignore[misc, no-any-return]
        first = self.plan.smem.a_offset
        return GatheredCopies(self.plan, self.job(m, words), first, thread, a, lda, start, m, k)

    def row_places(self, m: Int32, words: tuple[Int64, ...]) -> RowPlaces:
        """The rows of C of the product's rows."""
        return IndexedPlaces(self.plan, self.job(m, words)) if self.plan.scatters else RowPlaces()


class Sm80IndexedKernel(IndexedPlacesKernel, Sm80FusedKernel):
    """A block for each tile."""


class Sm80IndexedPersistentKernel(IndexedPlacesKernel, Sm80FusedPersistentKernel):
    """Blocks that take tile after tile."""


class Sm120IndexedKernel(IndexedPlacesKernel, Sm120FusedKernel):
    """A block for each tile, fed by TMA: rows of C are scattered."""
