"""The store of an Ampere kernel. Accumulators of a warp, round by round, through its buffers to global memory."""

from __future__ import annotations

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, const_expr

from ....atoms.copy.base import VECTOR_BYTES, WARP
from ...dsl import ampere, bridge
from ..plan import Sm80Plan
from ..store import BUFFERS, matrix_row


class RowPlaces:
    """The rows of C that the product's rows are: the same, of those inside."""

    def place(self, row: Int32, m: Int32) -> tuple[Int32 | Int64, Boolean]:
        """(row of C, whether it is stored) of a row of the product."""
        return row, row < m


class Sm80Epilogue:
    """The store for one plan. Everything that it reads of the plan is a compile-time constant."""

    def __init__(self, plan: Sm80Plan):
        self.plan = plan

    def store(
        self, sums: cute.Tensor, shared: cute.Pointer, warp: Int32, lane: Int32, c: Int64, ldc: Int64, m: Int32,
        n: Int32, row: Int32, column: Int32, rows: RowPlaces,
    ) -> None:  # fmt: skip
        """All accumulators of a warp, whose part of C begins at (row, column). `rows` says where its rows go."""
        store = self.plan.store
        buffers = shared + (self.plan.smem.c_offset + warp * (BUFFERS * store.buffer_bytes))
        put = [store.tile.byte(*store.place(lane, store.registers[at][0])) for (at,) in store.pairs.bases]
        if store.matrices is not None:
            put = [store.tile.byte(*matrix_row(store.mma, lane, at)) for (at,) in store.matrices.bases]
        taken = [store.tile.byte(*self.inside(lane, at[0])) for at in store.chunks.bases]
        for block in range(self.plan.blocks[0]):
            buffer = buffers + block % BUFFERS * store.buffer_bytes
            self.fill(sums, block, buffer, put)
            bridge.warp_sync()
            first = row + block * self.plan.mma.shape_mnk[0]
            places = [rows.place(first + store.chunk_of(lane, drain)[0], m) for drain in range(store.drains)]
            self.drain(buffer, taken, lane, c, ldc, n, tuple(places), column)

    def inside(self, lane: Int32, drain: int) -> tuple[Int32, Int32]:
        """(row, column) of the chunk that a lane takes; beyond the last row, another lane's."""
        store = self.plan.store
        row, chunk = store.chunk_of(lane, drain)
        return row % store.tile.extent[0], chunk * (VECTOR_BYTES // store.c.dtype.bytes)

    def fill(self, sums: cute.Tensor, block: int, buffer: cute.Pointer, put: list[cute.Pointer]) -> None:
        """The pairs of neighbours of one row of blocks, converted, into a buffer."""
        store, mma = self.plan.store, self.plan.mma
        values, dtype = mma.accumulator_registers, store.c.dtype
        if store.matrices is not None:
            for (group,), (base, constant) in store.matrices.of.items():
                packed: list[Int32] = []
                for at in (values * (block + self.plan.blocks[0] * j) for j in (2 * group, 2 * group + 1)):
                    packed += [bridge.convert_pair(sums[at + v], sums[at + v + 1], dtype) for v in range(0, values, 2)]
                bridge.store_matrices(buffer + put[base] + constant, packed)
            return
        for (number,), (base, constant) in store.pairs.of.items():
            low, high = (
                sums[values * (block + self.plan.blocks[0] * (register // values)) + register % values]
                for register in store.registers[number]
            )
            words = (low, high) if dtype.bits == 32 else (bridge.convert_pair(low, high, dtype),)
            bridge.store_shared((buffer + put[base] + constant).toint(), words)

    @cute.jit
    def drain(
        self, buffer: cute.Pointer, taken: list[cute.Pointer], lane: Int32, c: Int64, ldc: Int64, n: Int32,
        places: tuple[tuple[Int32 | Int64, Boolean], ...], column: Int32,
    ) -> None:  # fmt: skip
        """A round from its buffer to C. 16 bytes a lane, whole lines of a warp's columns.

        places  (row of C, whether it is stored) of each chunk that a lane takes
        """
        store = self.plan.store
        size = store.c.dtype.bytes
        width = VECTOR_BYTES // size
        for drain in cutlass.range_constexpr(store.drains):
            base, constant = store.chunks.of[drain,]
            words = ampere.load_words(buffer + taken[base] + constant, VECTOR_BYTES // 4)
            i, chunk = store.chunk_of(lane, drain)
            room = n - column - chunk * width
            row, there = places[drain]
            if const_expr((drain + 1) * WARP > store.tile.extent[0] * store.per_row):
                there = there and i < store.tile.extent[0]
            if there:
                address = c + (Int64(row) * ldc + (column + chunk * width)) * size
                if room >= width:
                    self.store_chunk(address, words)
                else:
                    for e in cutlass.range_constexpr(width):
                        if e < room:
                            per = 4 // size
                            ampere.store_part(address + e * size, words[e // per], e % per, size * 8)

    def store_chunk(self, address: Int64, words: Sequence[Int32]) -> None:
        """16 bytes of a line that are all there, in the accesses that C's alignment allows."""
        vector, size = self.plan.store.vector, self.plan.store.c.dtype.bytes
        if vector >= 4:
            each = vector // 4
            for w in range(0, len(words), each):
                ampere.store_vector(address + 4 * w, words[w : w + each])
        else:
            per = 4 // size
            for e in range(VECTOR_BYTES // size):
                ampere.store_part(address + e * size, words[e // per], e % per, size * 8)
