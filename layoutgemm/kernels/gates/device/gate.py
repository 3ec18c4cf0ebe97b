"""The kernel of gates and of their gradients: see `gates.plan` for what it computes.

A thread's number is its vector's, along rows. h's rows are `ldh` elements apart; y, dy and dh have contiguous rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, const_expr

from ....dtypes import dtype
from ...dsl import bridge
from ...dsl.ampere import store_vector
from ...dsl.fp8 import load_bytes
from ...dsl.math import ElementMath, as_words, from_words, parts_of
from ...epilogue.steps import ACTIVATIONS
from ...plan import tile_count
from ..plan import SLOPES, THREADS, GatePlan

F32 = dtype("f32")


class GateKernel:
    """The common part of both: a vector's place, loads and stores."""

    def __init__(self, plan: GatePlan):
        self.plan, self.ops = plan, ElementMath(exact=True)
        self.act, self.slope = ACTIVATIONS[plan.kind], SLOPES[plan.kind]

    def launch(self, addresses: tuple, m: Int32, n: Int32, ldh: Int64, stream: bridge.Stream) -> None:
        """Host side: a thread for each vector of gates."""
        vectors = n // self.plan.vector
        self.kernel(addresses, m * vectors, vectors, n, ldh).launch(
            grid=(tile_count(m * vectors, THREADS), 1, 1),
            block=(THREADS, 1, 1),
            use_pdl=self.plan.overlaps,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, addresses: tuple, count: Int32, vectors: Int32, n: Int32, ldh: Int64) -> None:
        """Device side."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        if const_expr(self.plan.overlaps):
            bridge.wait_for_previous_kernel()
            bridge.allow_next_kernel()
        number = block * THREADS + thread
        if number < count:
            row, place = parts_of(number, vectors)
            self.run(addresses, Int64(row), Int64(place) * self.plan.vector, Int64(n), ldh)

    def run(self, addresses: tuple, row: Int64, column: Int64, n: Int64, ldh: Int64) -> None:
        """One vector."""
        raise NotImplementedError

    def load(self, address: Int64, element: Int64) -> list[Float32]:
        """A vector at an element."""
        words = load_bytes(address + element * self.plan.x.bytes, Boolean(True), self.plan.access)
        return from_words(words, self.plan.x)

    def store(self, address: Int64, element: Int64, values: Sequence[Float32]) -> None:
        """A vector at an element, each value rounded."""
        store_vector(address + element * self.plan.x.bytes, as_words(values, self.plan.x))


class Gate(GateKernel):
    """y = act(gate) * up."""

    @cute.jit
    def __call__(self, h: Int64, y: Int64, m: Int32, n: Int32, ldh: Int64, stream: bridge.Stream) -> None:
        """Host side."""
        self.launch((h, y), m, n, ldh, stream)

    def run(self, addresses: tuple, row: Int64, column: Int64, n: Int64, ldh: Int64) -> None:
        """Two loads and a store."""
        h, y = addresses
        first = row * ldh + column
        gates, ups = self.load(h, first), self.load(h, first + n)
        self.store(y, row * n + column, [self.act(g, self.ops) * up for g, up in zip(gates, ups, strict=True)])


class Gradient(GateKernel):
    """dh = [dy * up * act'(gate) | dy * act(gate)]."""

    @cute.jit
    def __call__(self, h: Int64, dy: Int64, dh: Int64, m: Int32, n: Int32, ldh: Int64, stream: bridge.Stream) -> None:
        """Host side."""
        self.launch((h, dy, dh), m, n, ldh, stream)

    def run(self, addresses: tuple, row: Int64, column: Int64, n: Int64, ldh: Int64) -> None:
        """Three loads and two stores."""
        h, dy, dh = addresses
        first, own = row * ldh + column, row * n + column
        gates, ups, grads = self.load(h, first), self.load(h, first + n), self.load(dy, own)
        into = own + row * n  # dh's rows have 2n elements
        of_gates = [d * up * self.slope(g, self.ops) for g, up, d in zip(gates, ups, grads, strict=True)]
        self.store(dh, into, of_gates)
        self.store(dh, into + n, [d * self.act(g, self.ops) for g, d in zip(gates, grads, strict=True)])


class RowGradient(GateKernel):
    """The gradient of rows with a factor each, weighted rows, and sums.

    A sum is that of dy * y, over a warp's part of a row.
    """

    @cute.jit
    def __call__(
        self, h: Int64, dy: Int64, dh: Int64, factors: Int64, y: Int64, sums: Int64, m: Int32, n: Int32, ldh: Int64,
        stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side."""
        self.launch((h, dy, dh, factors, y, sums), m, n, ldh, stream)

    @cute.jit
    def run(self, addresses: tuple, row: Int64, column: Int64, n: Int64, ldh: Int64) -> None:
        """Three loads and three stores. A warp's vectors are of one row."""
        h, dy, dh, factors, y, sums = addresses
        first, own = row * ldh + column, row * n + column
        gates, ups, grads = self.load(h, first), self.load(h, first + n), self.load(dy, own)
        factor = from_words(load_bytes(factors + row * F32.bytes, Boolean(True), F32.bytes), F32)[0]
        acts = [self.act(g, self.ops) for g in gates]
        values, into = [act * up for act, up in zip(acts, ups, strict=True)], own + row * n
        slopes = [factor * d * up * self.slope(g, self.ops) for g, up, d in zip(gates, ups, grads, strict=True)]
        self.store(dh, into, slopes)
        self.store(dh, into + n, [factor * d * act for act, d in zip(acts, grads, strict=True)])
        self.store(y, own, [factor * value for value in values])
        total = grads[0] * values[0]
        for d, value in list(zip(grads, values, strict=True))[1:]:
            total = total + d * value
        for distance in (16, 8, 4, 2, 1):
            total = total + cute.arch.shuffle_sync_bfly(total, distance)
        if cute.arch.lane_idx() == 0:
            store_vector(sums + own // self.plan.part * F32.bytes, as_words([total], F32))


def kernel_of(plan: GatePlan) -> GateKernel:
    """The kernel of a plan."""
    if plan.weighted:
        return RowGradient(plan)
    return Gradient(plan) if plan.gradient else Gate(plan)
