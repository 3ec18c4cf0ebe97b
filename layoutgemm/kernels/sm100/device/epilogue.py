"""The end of a tile in a Blackwell kernel. An accumulator in tensor memory becomes rows, or columns, of C.

Everything here runs in one epilogue warp, for the 32 lanes that it reaches. Loads, addresses and boxes come from the
plan's store (`kernels.sm100.store`); conversions and TMA stores are those of the Hopper kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from layoutgemm.atoms.tmem.layout import WARP_LANES, tmem_address

from ....atoms import TmemCopyAtom
from ....atoms.copy.base import VECTOR_BYTES
from ...dsl import bridge
from ...dsl import tcgen05 as tensor
from ...dsl.fused import CombinedSums, FusedBlock, PartPlan
from ...store import StoreChunk, StoreRound
from ..plan import Sm100Plan
from ..store import alike, load_of
from .loaded import fused_values


class Sm100Epilogue:
    """The store of one plan; `job` is what the kernel knows at run time."""

    def __init__(self, plan: Sm100Plan):
        self.plan = plan

    @cute.jit
    def store(self, job: bridge.Carried, maps: bridge.Maps, number: Int32, origin: bridge.Place) -> None:
        """Store accumulator `number`: round by round, through the warp's buffers. `origin`: row, column, matrix."""
        plan, store = self.plan, self.plan.store
        lane = cute.arch.lane_idx()
        at = (number, self.accumulator_at(job, number), lane)
        first, count = store.rounds[0], len(store.rounds)
        if const_expr(plan.loads_whole_rows):
            self.store_rows(job, maps, at, origin, {})
        elif const_expr(alike(store)):
            width = sum(chunk.width for chunk in first.chunks)
            for i in cutlass.range(count, unroll=1):
                self.store_round(job, maps, at, origin, first, (i % store.buffers, store.pending(0)), i * width)
        else:
            for i, round_ in store.rounds_of(0, 0):
                self.store_round(job, maps, at, origin, round_, (i % store.buffers, store.pending(i)), 0)

    @cute.jit
    def store_totals(self, job: bridge.Carried, maps: bridge.Maps, totals: cute.Tensor, origin: bridge.Place) -> None:
        """Store a lane's totals as `store` does sums in tensor memory."""
        held = {v: totals[v] for v in range(self.plan.sums * self.plan.fragment.accumulator_registers)}
        self.store_rows(job, maps, (Int32(0), Int32(0), cute.arch.lane_idx()), origin, held)

    def accumulator_at(self, job: bridge.Carried, number: Int32) -> Int32:
        """The address of an accumulator in the warp's lanes."""
        lanes = job.accumulators + job.warp * tmem_address(WARP_LANES, 0)
        return lanes + number * self.plan.mma.accumulator.columns

    @cute.jit
    def store_round(
        self, job: bridge.Carried, maps: bridge.Maps, at: bridge.Place, origin: bridge.Place, round_: StoreRound,
        ring: tuple[int, int], past: Int32 | int,
    ) -> None:  # fmt: skip
        """Load, convert, write and store one round's columns, `past` columns further on.

        at    accumulator's number, its address in the warp's lanes, lane
        ring  which buffer, and how many groups of stores may still read theirs

        The accumulator is given back as soon as the last of it is in registers.
        """
        plan, store = self.plan, self.plan.store
        (number, own, lane), (row, column, matrix) = at, origin
        buffer = job.shared.c(job.warp * store.buffers + ring[0])
        # One lane issues the stores, so it alone can wait until they have read the buffer; then it tells.
        if lane == 0:
            bridge.wait_stores_read(ring[1])
        bridge.warp_sync()
        for chunk in round_.chunks:
            ld = load_of(chunk)
            here = past + chunk.column
            values = self.loaded(job, ld, own, here)
            if here + chunk.width == plan.tile_c[1]:
                self.give_back(job, number, lane)
            if const_expr(bool(plan.epilogue) or plan.gated is not None):
                corner = (row + job.warp * WARP_LANES, column + here, matrix)
                values = self.fused(job, corner, ld, lane, values)
            self.fill(values, buffer + chunk.offset, chunk, ld, lane)
        self.issue(job, maps, (row + job.warp * WARP_LANES, column + past, matrix), round_, buffer, lane)

    @cute.jit
    def store_rows(
        self, job: bridge.Carried, maps: bridge.Maps, at: bridge.Place, origin: bridge.Place,
        held: dict[int, Float32],
    ) -> None:  # fmt: skip
        """The same for an epilogue that sees all columns of a row. Every round of its own, and one block of values.

        held  values that are loaded already, by number

        A chunk is loaded before its round, or with the first chunk of its group of columns.
        """
        plan, store = self.plan, self.plan.store
        (_, _, lane), (row, column, matrix) = at, origin
        corner = (row + job.warp * WARP_LANES, column, matrix)
        fused = FusedBlock(PartPlan(plan, plan.fragment), job, corner, lane, end=self.end(job))
        sums: dict[int, Float32] | CombinedSums = held
        if const_expr(plan.gated is not None):
            sums = CombinedSums(plan, job, held, fused, plan.fragment.accumulator_registers)
        for i, round_ in store.rounds_of(0, 0):
            done = []
            for chunk in round_.chunks:
                self.load(job, at, held, plan.columns_before(chunk))
                done.append(fused.values(sums, chunk.first_value, chunk.values))
            if const_expr(plan.epilogue.stores_c):
                buffer = job.shared.c(job.warp * store.buffers + i % store.buffers)
                if lane == 0:
                    bridge.wait_stores_read(store.pending(i))
                bridge.warp_sync()
                for chunk, values in zip(round_.chunks, done, strict=True):
                    self.fill(values, buffer + chunk.offset, chunk, load_of(chunk), lane)
                self.issue(job, maps, corner, round_, buffer, lane)
        fused.finish()

    def loaded(self, job: bridge.Carried, ld: TmemCopyAtom, own: Int32, column: Int32 | int) -> list[Float32]:
        """The values of each sum for the columns of C from `column` on. `own`: the accumulator in the warp's lanes.

        Sums of integers are f32 then, unless C has them as they are.
        """
        plan = self.plan
        found = [x for i in range(plan.sums) for x in tensor.tensor_load(ld, own + plan.beside.row(column, i))]
        if plan.mma.c_dtype.kind == "float":
            return found
        whole = bridge.from_floats(found, plan.mma.c_dtype)
        return whole if plan.c.dtype.kind == "int" else [bridge.number(x) for x in whole]

    def load(self, job: bridge.Carried, at: bridge.Place, held: dict[int, Float32], columns: int) -> None:
        """Load the first columns of the accumulator that are not held yet. With the last it is given back."""
        number, own, lane = at
        for chunk in self.plan.fragment.chunks:
            if chunk.column < columns and chunk.first_value not in held:
                count, each = self.plan.fragment.accumulator_registers, chunk.values
                for v, value in enumerate(self.loaded(job, load_of(chunk), own, chunk.column)):
                    held[chunk.first_value + v // each * count + v % each] = value
                if chunk.column + chunk.width == self.plan.tile_c[1]:
                    self.give_back(job, number, lane)

    @cute.jit
    def issue(
        self, job: bridge.Carried, maps: bridge.Maps, corner: bridge.Place, round_: StoreRound, buffer: cute.Pointer,
        lane: Int32,
    ) -> None:  # fmt: skip
        """The tensor stores of a round whose chunks are in their buffer. `corner`: the warp's row, column, matrix."""
        bridge.shared_writes_visible()
        bridge.warp_sync()
        if lane == 0:
            for chunk in round_.chunks:
                place = self.place(job, corner, chunk.column)
                bridge.store_tile(maps[chunk.map], self.plan.store.maps[chunk.map], place, buffer + chunk.offset)
            bridge.commit_stores()

    def end(self, job: bridge.Carried) -> Int32:
        """The row behind the last that a tile stores."""
        return job.m

    def place(self, job: bridge.Carried, corner: bridge.Place, column: int) -> dict[str, Int32]:
        """The box of a warp's rows from a column of the tile on."""
        return {"m": corner[0], "n": corner[1] + column, "l": corner[2]}

    def fused(
        self, job: bridge.Carried, place: bridge.Place, ld: TmemCopyAtom, lane: Int32, values: Sequence[Float32]
    ) -> list[Float32]:
        """The plan's epilogue, applied to what one load brought. `place`: row, column and matrix of its first value."""
        return fused_values(self.plan, job, (place, self.end(job)), ld, lane, values)

    @cute.jit
    def give_back(self, job: bridge.Carried, number: Int32, lane: Int32) -> None:
        """This warp has loaded all its lanes of the accumulator. One arrival, of a pair at the even block."""
        tensor.fence_before_sync()
        if lane == 0:
            if const_expr(self.plan.blocks > 1):
                bridge.barrier_arrive_at(job.shared.acc_empty(number), 0)
            else:
                bridge.barrier_arrive(job.shared.acc_empty(number))

    def fill(
        self, values: Sequence[Float32], tile: cute.Pointer, chunk: StoreChunk, ld: TmemCopyAtom, lane: Int32
    ) -> None:
        """One load's registers into the chunk's tile. Value v of a lane is where the load's map says."""
        dtype, count = self.plan.c.dtype, len(values)
        if self.plan.c.order == "row":
            words = self.packed(values)
            step = VECTOR_BYTES // dtype.bytes
            for v in range(0, count, step):
                i, j = ld.tmem(lane, v)
                vector = words[v * dtype.bytes // 4 : (v + step) * dtype.bytes // 4]
                bridge.store_shared((tile + chunk.tile.byte(i, j)).toint(), vector)
            return
        for v in range(0, count, 2):
            pair = (values[v], values[v + 1])
            if dtype.bits < 32:
                pair = bridge.split_pair((bridge.convert_pair(*pair, dtype),), dtype)
            for step, value in enumerate(pair):
                i, j = ld.tmem(lane, v + step)
                bridge.store_shared((tile + chunk.tile.byte(i, j)).toint(), (value,))

    def packed(self, values: Sequence[Float32]) -> list[Int32]:
        """A lane's neighbours of a row in C's type, as 32-bit words."""
        dtype = self.plan.c.dtype
        if dtype.bits == 32:
            return list(values)
        pairs = [bridge.convert_pair(values[v], values[v + 1], dtype) for v in range(0, len(values), 2)]
        if dtype.bits == 16:
            return pairs
        return [Int32(low) & 0xFFFF | Int32(high) << 16 for low, high in zip(pairs[::2], pairs[1::2], strict=True)]
