"""A Hopper GEMM with an epilogue: the production kernel with sixteen more 64-bit words.

The epilogue says what the words are; `dsl.fused` applies it.
"""

from __future__ import annotations

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ....checks.budgets import WARPGROUP
from ...dsl import bridge
from ...dsl.entry import FusedEntry
from ...dsl.reductions import WholeRows, launch_finish
from ...plan import present
from .gemm import Sm90GemmKernel
from .group_scales import GroupScaling
from .row_copy import RowCopyKernel


class Sm90FusedKernel(FusedEntry, Sm90GemmKernel):
    """The production kernel with room for an epilogue's operands."""

    def prepare_rows(
        self, a: Int64, pitches: tuple[Int64, Int64], sizes: Sequence[Int32], words: Sequence[Int64],
        stream: bridge.Stream,
    ) -> tuple[Int64, tuple[Int64, Int64]]:  # fmt: skip
        """The copy of A's chosen rows, where they are copied first. The product reads the copy."""
        if not self.plan.copies_rows:
            return a, pitches
        named = dict(zip(self.plan.words, words, strict=True))
        return RowCopyKernel(self.plan).launch((a, *pitches), sizes, named, stream)

    def finish(self, sizes: Sequence[Int32], words: Sequence[Int64], stream: bridge.Stream) -> None:
        """A launch for each reduction of which tiles have partial results."""
        m, n, _, batch = sizes
        launch_finish(self.plan, words, (m, n, batch), stream)

    def scale_rows(
        self, job: bridge.Carried, accumulators: Sequence[cute.Tensor], at: tuple[Int32, Int32], origin: bridge.Place
    ) -> None:  # fmt: skip
        """Leave the factors of the groups of rows, by which the store multiplies."""
        GroupScaling(self.epilogue, job, at, origin).leave_factors(accumulators)

    @cute.jit
    def finish_rows(self, job: bridge.Carried, tile: Int32, thread: Int32) -> None:
        """Combine the tuples of the cluster's rows in its first column of blocks. A consumer's thread a row."""
        rows, consumers = present(self.plan.row_exchange), WARPGROUP * self.plan.config.consumers
        if job.cluster_column == 0 and thread < consumers:
            first_row, _, _ = self.origin(job, tile)
            for first in cutlass.range_constexpr(0, rows.rows, consumers):
                if thread + first < rows.rows:
                    WholeRows(self.plan).store(job, rows, first_row, thread + first)
