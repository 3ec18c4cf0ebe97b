"""The second store of a symmetric product's tile, transposed, behind the transposed epilogue.

See `triangular.mirror`.

step      threads                          does
------    -----------------------------    ---------------------------------------------------------------------------
drain     those that issued C's stores     wait until these have read the buffers
meet      the warpgroup                    at its store's named barrier
store     the warpgroup                    round by round, as any store: convert, wait, write, fence, issue
drain     the one that issued these        waits until they have read the buffers
meet      the warpgroup                    before the next tile's store
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import cutlass.cute as cute
from cutlass import Int32, const_expr

from ...dsl import bridge
from ...dsl.fused import FusedBlock, PartPlan
from ...plan import present
from ...store import WARPS_OF_GROUP
from ..plan import Sm90Plan
from ..triangular.mirror import is_mirrored, is_off_diagonal
from .epilogue import Sm90Epilogue


class MirrorEpilogue(Sm90Epilogue):
    """The epilogue of a transposed tile, and its store's rounds.

    `plan.epilogue` is transposed, and `plan.store` the second store; `first` is the one whose buffers it uses. A
    product without a C has neither.
    """

    def __init__(self, plan: Sm90Plan):
        mirror, self.first = plan.mirror, plan.store
        c, epilogue = plan.c if mirror is None else mirror.c, plan.epilogue.transposed()
        super().__init__(replace(plan, c=c, store=mirror, epilogue=epilogue))
        self.partials = tuple([partial.transposed for partial in plan.partials])

    def fused(self, job: bridge.Carried, place: bridge.Place, thread: Int32, part: int) -> FusedBlock | None:
        """The transposed epilogue on 64 rows of the tile."""
        if not self.plan.epilogue:
            return None
        view = PartPlan(self.plan, self.plan.mma)
        view.partials = self.partials
        return FusedBlock(view, job, place, thread, part)

    def buffer(self, job: bridge.Carried, owner: Int32, number: int) -> cute.Pointer:
        """A round's buffer, in the room of the warpgroup's own."""
        store, first = present(self.plan.store), present(self.first)
        owners = WARPS_OF_GROUP // store.warps
        group = job.shared.c(owner // owners * (WARPS_OF_GROUP // first.warps) * first.buffers)
        return group + (owner % owners * store.buffers + number % store.buffers) * store.buffer_bytes


class MirrorStore:
    """The second store of one plan, if it has one."""

    def __init__(self, plan: Sm90Plan):
        self.plan = plan
        self.epilogue = MirrorEpilogue(plan) if is_mirrored(plan.order.schedule) else None

    @cute.jit
    def store(
        self, job: bridge.Carried, maps: bridge.Maps, accumulators: Sequence[cute.Tensor], at: tuple[Int32, ...],
        origin: bridge.Place,
    ) -> None:  # fmt: skip
        """Store all blocks of a consumer's tile, if its cluster lies off the diagonal."""
        if is_off_diagonal(self.plan, origin[0], origin[1]):
            self.store_blocks(job, maps, accumulators, at, origin)

    def store_blocks(
        self, job: bridge.Carried, maps: bridge.Maps, accumulators: Sequence[cute.Tensor], at: tuple[Int32, ...],
        origin: bridge.Place,
    ) -> None:  # fmt: skip
        """All blocks of rows, one after the other."""
        epilogue = present(self.epilogue)
        if self.plan.mirror is None:  # no C: the epilogue reduces, or writes other outputs
            for block in range(self.plan.blocks):
                epilogue.store_direct(job, accumulators[block], at, origin, block, 0)
            return
        first, mirror = present(self.plan.store), self.plan.mirror
        self.hand_over(at, first.warps)
        for block in range(self.plan.blocks):
            own = maps[len(first.maps) :]
            epilogue.store_tensor(job, own, accumulators[block], at, origin, block, 0)
        self.hand_over(at, mirror.warps)

    @cute.jit
    def hand_over(self, at: tuple[Int32, ...], warps: int) -> None:
        """All stores that were issued have read their buffers, and the warpgroup knows it.

        warps  that share a buffer: the first thread of each issued its stores
        """
        plan = self.plan
        consumer, thread = at
        issuer = thread % 32 if const_expr(warps == 1) else thread
        if issuer == 0:
            bridge.wait_stores_read(0)
        bridge.named_sync(plan.store_barrier(consumer), plan.store_threads)
