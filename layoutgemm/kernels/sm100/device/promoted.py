"""A Blackwell GEMM whose sums are promoted. See `sm100.promoted`."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ....atoms.tmem.layout import WARP_LANES
from ...dsl import bridge
from ...dsl import tcgen05 as tensor
from ...operands.device.promotion import Promotion
from ...plan import present
from ..plan import Sm100Plan
from ..store import load_of
from .fused import Sm100FusedKernel
from .grouped import GroupsOfRows
from .indexed import Sm100IndexedKernel


class Sm100Promoted(Sm100FusedKernel):
    """The production kernel with the plan's `mainloop` in place of the plain sum."""

    plan: Sm100Plan

    @cute.jit
    def multiply(self, job: bridge.Carried) -> None:
        """The mma warp, of a pair the even block's: an accumulator for each K block."""
        plan = self.plan
        a = tensor.TensorOperand(plan.a.descriptor, job.shared.a(0), plan.smem.a_stage_bytes)
        b = tensor.TensorOperand(plan.b.descriptor, job.shared.b(0), plan.smem.b_stage_bytes)
        tile, stage, parity = job.first, Int32(0), Int32(0)
        number, turn = Int32(0), Int32(1)  # an accumulator is free at first
        while tile < job.tiles:
            for _ in cutlass.range(job.k_tiles, unroll=1):
                stage, number = bridge.uniform(stage), bridge.uniform(number)
                bridge.barrier_wait(job.shared.acc_empty(number), turn)
                tensor.fence_after_sync()
                bridge.barrier_wait(job.shared.full(stage), parity)
                if bridge.elect():
                    target = job.accumulators + number * plan.mma.accumulator.columns
                    for k_block in cutlass.range_constexpr(len(plan.a.descriptor.k_steps)):
                        words = a.word_at(stage, k_block), b.word_at(stage, k_block)
                        tensor.tensor_multiply(plan.mma, plan.word.word, target, *words, k_block > 0)
                    tensor.tensor_commit(job.shared.empty(stage), plan.blocks, plan.both)
                    tensor.tensor_commit(job.shared.acc_full(number), plan.blocks, plan.both)
                stage, parity = bridge.next_in_ring(stage, parity, plan.stages)
                number, turn = bridge.next_in_ring(number, turn, plan.accumulators)
            tile += job.workers

    @cute.jit
    def drain(self, job: bridge.Carried, maps: bridge.Maps) -> None:
        """An epilogue warp: its rows of every tile, K block by K block."""
        plan = self.plan
        lane = cute.arch.lane_idx()
        tile, number, turn = job.first, Int32(0), Int32(0)
        while tile < job.tiles:
            origin = self.origin(job, tile)
            own = self.of_stored_tile(job, origin[0], origin[2])
            place = origin[0] + job.warp * WARP_LANES, origin[1], origin[2], self.epilogue.end(own)
            given = {word: getattr(job.given, word) for word in present(plan.mainloop).words}
            promotion = Promotion(plan, lane, place, job.n, job.k_tiles, given)
            numbers = cute.make_rmem_tensor(promotion.count, Float32)
            totals = cute.make_rmem_tensor(plan.sums * plan.fragment.accumulator_registers, Float32)
            totals.fill(0)
            keep(numbers, promotion.load(Int32(0)))
            for k_tile in cutlass.range(job.k_tiles, unroll=1):
                number = bridge.uniform(number)
                coming = promotion.load(k_tile + 1)
                bridge.barrier_wait(job.shared.acc_full(number), turn)
                tensor.fence_after_sync()
                self.promote(job, (number, lane), promotion, totals, numbers)
                keep(numbers, coming)
                number, turn = bridge.next_in_ring(number, turn, plan.accumulators)
            self.epilogue.store_totals(own, maps, totals, origin)
            tile += job.workers
        bridge.wait_stores_read(0)

    def promote(
        self, job: bridge.Carried, at: tuple[Int32, Int32], promotion: Promotion, totals: cute.Tensor,
        numbers: cute.Tensor,
    ) -> None:  # fmt: skip
        """The totals after another K block, load by load. `at`: its accumulator, and the lane."""
        (number, lane), chunks = at, self.plan.fragment.chunks
        own = self.epilogue.accumulator_at(job, number)
        for chunk in chunks:
            values = self.epilogue.loaded(job, load_of(chunk), own, chunk.column)
            if chunk is chunks[-1]:
                self.epilogue.give_back(job, number, lane)
            for i, x in enumerate(values):
                half, value = i // chunk.width, chunk.first_value + i % chunk.width
                place = promotion.register(value, half)
                totals[place] = promotion.next_total(totals[place], x, numbers, value, half)


def keep(numbers: cute.Tensor, found: list[Float32]) -> None:
    """Copy a K block's numbers into registers that a loop carries."""
    for i, x in enumerate(found):
        numbers[i] = x


class Sm100PromotedIndexed(Sm100Promoted, Sm100IndexedKernel):
    """Rows that are gathered, or scattered."""


class Sm100PromotedGroups(Sm100Promoted, GroupsOfRows):
    """Groups of rows."""


class Sm100PromotedIndexedGroups(Sm100Promoted, GroupsOfRows, Sm100IndexedKernel):
    """Groups of rows that are gathered, or scattered."""
