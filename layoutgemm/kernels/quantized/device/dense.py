"""The kernel that unpacks weights: see `quantized.dense` for its tiles.

step    who          does
----    ---------    --------------------------------------------------------------
1       a thread     loads the words and scales of its two rows of a unit
2       a thread     converts them, and writes each register to shared memory
3       a warp       meets: the rows are its own
4       a thread     reads vectors of 16 bytes of rows, and stores those inside

It waits for the kernel before it, and lets the next one begin at once: that one waits for all that this writes.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ....dtypes import f32
from ...dsl import ampere, bridge
from ...dsl import math as element
from ...dsl.packed_weights import DevicePairs
from ...dsl.tables import load_word
from ...plan import tile_count
from ..dense import DensePlan
from ..formats import UNIT_K, UNIT_ROWS
from ..fragments import ROWS, fragment, rows_of, words_of
from ..order import NUMBER_BYTES, THREADS


class DenseKernel:
    """The kernel for one plan. What is reachable through `self.plan` is a compile-time constant of the trace."""

    def __init__(self, plan: DensePlan):
        self.plan = plan

    @cute.jit
    def __call__(
        self, units: Int64, scales: Int64, dense: Int64, n: Int32, columns: Int32, experts: Int32, stream: bridge.Stream
    ) -> None:
        """Host side: a CTA for each unit. `n` rows of an expert; `columns` of the result, a multiple of 8."""
        blocks, along_k = tile_count(n, UNIT_ROWS), tile_count(columns, UNIT_K)
        self.kernel(units, scales, dense, n, columns, blocks, along_k).launch(
            grid=(experts * blocks * along_k, 1, 1), block=(THREADS, 1, 1), smem=self.plan.shared_bytes,
            use_pdl=self.plan.overlaps, stream=stream,
        )  # fmt: skip

    @cute.kernel
    def kernel(
        self, units: Int64, scales: Int64, dense: Int64, n: Int32, columns: Int32, blocks: Int32, along_k: Int32
    ) -> None:
        """Device side: the CTA's unit."""
        thread, _, _ = cute.arch.thread_idx()
        unit, _, _ = cute.arch.block_idx()
        shared = cutlass.memory.SmemAllocator().allocate(self.plan.shared_bytes, 128)
        block, column = element.parts_of(unit, along_k)
        expert, row = element.parts_of(block, blocks)
        if const_expr(self.plan.overlaps):
            bridge.wait_for_previous_kernel()
            bridge.allow_next_kernel()
        row, column = row * UNIT_ROWS, column * UNIT_K
        first = units + Int64(unit) * self.plan.order.unit_bytes
        factors = self.factors(scales + Int64(expert) * n * f32.bytes, thread, row, n)
        self.convert(first, factors, thread, shared.toint())
        bridge.warp_sync()
        self.store(dense + Int64(expert) * n * columns * NUMBER_BYTES, (row, column), (n, columns), thread, shared)

    def factors(self, scales: Int64, thread: Int32, row: Int32, n: Int32) -> list[Float32]:
        """The scales of whole columns, of the thread's two rows; empty where groups have them."""
        plan = self.plan
        if plan.format.group is not None:
            return []
        own = []
        for half in range(ROWS):
            register = next(i for i in range(plan.order.atom.registers("A")) if plan.order.row_of(i) == half)
            at = plan.order.atom.layout_A(thread, plan.order.target.values * register) % UNIT_ROWS
            place = cutlass.min(row + at, n - 1)  # rows beyond are not stored
            own.append(element.load_value(scales + Int64(place) * f32.bytes, f32))
        return own

    def convert(self, unit: Int64, factors: list[Float32], thread: Int32, shared: Int32) -> None:
        """The thread's registers of all fragments, to shared memory."""
        plan, order = self.plan, self.plan.order
        ops = DevicePairs(order.activations, plan.fused)
        words = [
            word
            for v in range(order.vectors)
            for word in element.load_sixteen_bytes(unit + Int64(order.vector_bytes(thread, v)))
        ]
        numbers = [
            self.numbers(unit + Int64(order.code_bytes + order.scale_bytes(thread, group)))
            for group in range(plan.format.groups)
        ]
        each = [rows_of(order, own, ops) for own in numbers]
        size = int(order.atom.layout_A[1].size)
        for number in range(plan.fragments):
            rows, zeros = each[order.group_of(number)] if each else ([], [])
            registers = fragment(order, [words[w] for w in words_of(order, number)], rows, zeros, ops)
            for i, register in enumerate(registers):
                if factors:
                    values = [x * factors[order.row_of(i)] for x in bridge.floats_of(register, order.target.dtype)]
                    register = bridge.join(values, order.target.dtype)
                place = plan.written(thread, number * size + order.target.values * i)
                bridge.store_shared(shared + place * NUMBER_BYTES, [register])

    def numbers(self, address: Int64) -> list[Int32]:
        """The scales of the thread's two rows in a group; with zero points, theirs too."""
        count = self.plan.order.scale_words
        return [load_word(address)] if count == 1 else ampere.load_vector(address, count)

    @cute.jit
    def store(
        self, dense: Int64, first: tuple[Int32, Int32], size: tuple[Int32, Int32], thread: Int32, shared: cute.Pointer
    ) -> None:
        """The thread's vectors that are inside the matrix."""
        plan = self.plan
        for vector in cutlass.range_constexpr(int(plan.stored[1].size)):
            at = plan.stored(thread, vector)
            row, column = first[0] + at // UNIT_K, first[1] + at % UNIT_K
            words = ampere.load_words(shared + plan.tile(at // UNIT_K, at % UNIT_K) * NUMBER_BYTES, 4)
            if (row < size[0]) & (column < size[1]):
                ampere.store_vector(dense + (Int64(row) * size[1] + column) * NUMBER_BYTES, words)
