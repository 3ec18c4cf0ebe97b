"""A Hopper GEMM with an epilogue: the production kernel with sixteen more 64-bit words.

The epilogue says what the words are; `dsl.fused` applies it.
"""

from __future__ import annotations

from collections.abc import Sequence

from cutlass import Int32, Int64

from ...dsl import bridge
from ...dsl.entry import FusedEntry
from ...dsl.reductions import launch_finish
from .gemm import Sm90GemmKernel
from .row_copy import RowCopyKernel


class Sm90FusedKernel(FusedEntry, Sm90GemmKernel):
    """The production kernel with room for an epilogue's operands."""

    def prepare_rows(
        self, a: Int64, pitches: tuple[Int64, Int64], sizes: Sequence[Int32], words: Sequence[Int64],
        stream: bridge.Stream,
    ) -> tuple[Int64, tuple[Int64, Int64]]:  # fmt: skip
        """The copy of A's chosen rows, where they are copied first: the product reads the copy."""
        if not self.plan.copies_rows:
            return a, pitches
        named = dict(zip(self.plan.words, words, strict=True))
        return RowCopyKernel(self.plan).launch((a, *pitches), sizes, named, stream)

    def finish(self, sizes: Sequence[Int32], words: Sequence[Int64], stream: bridge.Stream) -> None:
        """A launch for each reduction of which tiles have partial results."""
        m, n, _, batch = sizes
        launch_finish(self.plan, words, (m, n, batch), stream)
