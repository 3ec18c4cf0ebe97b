"""The host's entry of a kernel: the launch parameters in the plans' order.

The DSL takes a host function's parameters from its signature, each with its type: they are spelled out here, once. A
kernel inherits one of these and has a `start`, which encodes what is to be encoded and launches:

    entry         parameters                                                     kernels
    ----------    -----------------------------------------------------------    ---------------------------------------
    TileEntry     addresses, sizes, pitches                                      one block for each tile of C
    GemmEntry     the same, and how many workers run at a time                   persistent
    FusedEntry    the same, and sixteen words, the first the plan's `words`      any, with more to read

a, b, c: global addresses of the first element; lda, ldb, ldc: elements between consecutive lines; stride_*: elements
between matrices of a batch (not read for a plan of one). All are asynchronous on `stream`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ..plan import MAX_WORDS, GemmPlan
from . import bridge
from .added_rows import AddedRowsKernel


class TileEntry:
    """A kernel of one block for each tile of C."""

    plan: GemmPlan

    @cute.jit
    def __call__(
        self,
        a: Int64,
        b: Int64,
        c: Int64,
        m: Int32,
        n: Int32,
        k: Int32,
        batch: Int32,
        lda: Int64,
        ldb: Int64,
        ldc: Int64,
        stride_a: Int64,
        stride_b: Int64,
        stride_c: Int64,
        stream: bridge.Stream,
    ) -> None:
        """Host side: one block for each tile."""
        pitches = {"a": (lda, stride_a), "b": (ldb, stride_b), "c": (ldc, stride_c)}
        self.start((a, b, c), (m, n, k, batch), pitches, None, (), stream)

    def start(
        self, matrices: Sequence[Int64], sizes: Sequence[Int32], pitches: Mapping[str, tuple[Int64, Int64]],
        workers: Int32 | None, words: Sequence[Int64], stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Encode and launch.

        matrices, sizes   (a, b, c), (m, n, k, batch)
        pitches           "a", "b", "c" -> (pitch of lines, distance of matrices)
        workers           blocks, or clusters, that run at a time, at most; None of a kernel of one block a tile
        words             what the epilogue takes besides
        """
        raise NotImplementedError


class GemmEntry(TileEntry):
    """A persistent kernel."""

    @cute.jit
    def __call__(
        self,
        a: Int64,
        b: Int64,
        c: Int64,
        m: Int32,
        n: Int32,
        k: Int32,
        batch: Int32,
        lda: Int64,
        ldb: Int64,
        ldc: Int64,
        stride_a: Int64,
        stride_b: Int64,
        stride_c: Int64,
        workers: Int32,
        stream: bridge.Stream,
    ) -> None:
        """Host side: at most `workers` blocks or clusters."""
        pitches = {"a": (lda, stride_a), "b": (ldb, stride_b), "c": (ldc, stride_c)}
        self.start((a, b, c), (m, n, k, batch), pitches, workers, (), stream)


class FusedEntry(TileEntry):
    """A kernel that reads more; w0 ... are the plan's `words`, in order, then anything."""

    @cute.jit
    def __call__(
        self,
        a: Int64,
        b: Int64,
        c: Int64,
        m: Int32,
        n: Int32,
        k: Int32,
        batch: Int32,
        lda: Int64,
        ldb: Int64,
        ldc: Int64,
        stride_a: Int64,
        stride_b: Int64,
        stride_c: Int64,
        workers: Int32,
        w0: Int64,
        w1: Int64,
        w2: Int64,
        w3: Int64,
        w4: Int64,
        w5: Int64,
        w6: Int64,
        w7: Int64,
        w8: Int64,
        w9: Int64,
        w10: Int64,
        w11: Int64,
        w12: Int64,
        w13: Int64,
        w14: Int64,
        w15: Int64,
        stream: bridge.Stream,
    ) -> None:
        """Host side: at most `workers` blocks or clusters."""
        words = (w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15)
        used = words[: len(self.plan.words)]
        pitches = {"a": (lda, stride_a), "b": (ldb, stride_b), "c": (ldc, stride_c)}
        if cutlass.const_expr(not getattr(self.plan, "adds_rows", False)):
            self.start((a, b, c), (m, n, k, batch), pitches, workers, used, stream)
        else:
            added, named = AddedRowsKernel(self.plan), dict(zip(self.plan.words, used, strict=True))
            rows, own = added.workspace((m, n), named)
            self.start((a, b, rows), (m, n, k, batch), {**pitches, "c": own}, workers, used, stream)
            added.launch((c, ldc, stride_c), (m, n, k, batch), used, stream)


assert MAX_WORDS == 16, "FusedEntry's signature and the epilogue's limit are one number"
