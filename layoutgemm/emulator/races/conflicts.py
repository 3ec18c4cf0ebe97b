"""Two accesses that nothing orders, and the instructions that would order them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ptx.values import FULL

if TYPE_CHECKING:
    from ..machine.interpreter import Fiber, Warp
    from ..ptx.parser import PtxInstruction

WHO = re.compile(r"CTA (\(\d+, \d+, \d+\)) warp (\d+)")
FENCE = (
    "fence.proxy.async by each thread that wrote, after its writes and before the barrier that leads to the "
    "asynchronous access, orders them."
)
FENCE_READS = (
    "fence.proxy.async by each thread that read, after its reads and before it releases the buffer, orders them by "
    "PTX's word."
)
ANOTHERS_FENCE = (
    "the fence.proxy.async between the two is another thread's than the one that wrote: PTX's proxy order counts it, "
    'CUTLASS\'s practice is that each writer fences, and Policy(fences="writers") asks for that'
)
REFILL = (
    "no fence.proxy.async stands between the read and the copy that overwrites it: PTX asks for one, and pipelines of "
    "CUTLASS go without; Policy(strict=True) makes this a finding"
)
ALLOCATED = (
    "no fence.proxy.async stands between tcgen05.alloc's write and the copy that overwrites it: PTX asks for one "
    "between the proxies, and has an allocation keep the order of accesses to one address; "
    "Policy(strict=True) makes this a race"
)
NARROW = (
    "only an mbarrier orders the two blocks, and its arrival or its wait has one block's scope (.cta, the default): "
    "PTX orders nothing by that, CUTLASS's remote arrivals count on it, and Policy(strict=True) makes this a finding"
)
WARPGROUP = (
    "the product has completed for another warp of its warpgroup, and the second knows that: PTX counts a warp's own "
    "wgmma.wait_group, pipelines of CUTLASS release a buffer by one thread for four warps, and "
    'Policy(fences="writers") makes this a finding'
)
# What is missing between two accesses to tensor memory that practice orders, and what would order them.
_TENSOR = "PTX asks for {}, kernels go without, and Policy(tensor_strict=True) makes this a finding"
NOT_HANDED_ON = (
    "the warp of the first hands it on without tcgen05.wait and tcgen05.fence::before_thread_sync: "
    + _TENSOR.format("both"),
    "tcgen05.wait::ld or ::st by the warp of the first, and tcgen05.fence::before_thread_sync where another warp is "
    "told of it, order them.",
)
NOT_TAKEN_OVER = (
    "no tcgen05.fence::after_thread_sync stands between the wait for the first and the second: "
    + _TENSOR.format("one"),
    "tcgen05.fence::after_thread_sync by the warp of the second, after its wait for the first, orders them.",
)
TOGETHER = (
    'ordered only because lanes of a warp run together: `--lanes strict` (Policy(lanes="strict")) makes it a finding'
)
WAITED = "its lanes have waited for each other since, where PTX orders no memory: "
TOLD_BY_ONE = "one lane released it for lanes of its warp that read it"
RELAYED = "another lane of its warp acquired that at a word of memory, and lane {} has it by a shuffle or vote"
RELAY = "bar.warp.sync (sync_warp, __syncwarp) between the lane that acquires and the others' accesses orders them."
WARP_BARRIER = (
    "bar.warp.sync (sync_warp, __syncwarp) between the reads and the lane that releases or overwrites them orders them."
)
BETWEEN_LANES = "bar.warp.sync (sync_warp, __syncwarp) between the two orders them."
CLUSTER_SCOPE = "mbarrier.arrive.release.cluster by the first block and mbarrier.try_wait.acquire.cluster order them."
# The beginning of the first access's opcode -> how a thread learns that it has happened.
_COMPLETED = (
    (r"cp\.(reduce\.)?async\.bulk\.(tensor\.\dd\.)?global\.shared", "cp.async.bulk.wait_group by the thread that "
     "issued the first, then a barrier that the second's thread waits at"),
    (r"cp\.(reduce\.)?async\.bulk", "a wait for the mbarrier that the first completes on"),
    (r"cp\.async", "cp.async.wait_group by each thread that issued the first, then a barrier"),
    (r"wgmma", "wgmma.wait_group by the warps of the first, then an arrival that the second's thread waits for"),
    (r"tcgen05\.(ld|st)", "tcgen05.wait by the first's warp, then tcgen05.fence on both sides of a barrier"),
    (r"tcgen05", "tcgen05.commit to an mbarrier after the first, and a wait for that mbarrier before the second"),
    (r"(st|red)\.async", "a wait for the mbarrier that the first completes on"),
)  # fmt: skip


@dataclass(frozen=True)
class Conflict:
    """Two accesses to one place, one of them a write.

    message  both, and what is missing between them
    orders   one sentence: the instructions that would order them
    lint     True if practice or PTX's word, one of the two, does order them
    also     a lint beside it
    reads    the pc of the one that is a load from global memory, if the other is a store; else None
    """

    message: str
    orders: str
    lint: bool = False
    also: Conflict | None = None
    reads: int | None = None

    def __str__(self) -> str:
        return self.message


def remedy(first: str, first_is_asynchronous: bool, second: str, second_is_asynchronous: bool) -> str:
    """One sentence: the instructions that would order two accesses, as they are described.

    >>> remedy("st.shared at PTX line 9 by CTA (0, 0, 0) warp 0", False, "ld.shared by CTA (0, 0, 0) warp 1", False)
    'bar.sync of both warps (__syncthreads) between the two orders them; so does an mbarrier that the first arrives at.'
    """
    if first_is_asynchronous or first.startswith(("cp.async", "st.async", "red.async")):
        how = next((said for opcode, said in _COMPLETED if re.match(opcode, first)), "a wait for the first's end")
        return f"What orders them: {how}."
    ours, theirs = WHO.search(second), WHO.search(first)
    if ours is None or theirs is None:
        return "A barrier between the two orders them."
    if ours[1] != theirs[1]:
        return "barrier.cluster.arrive and .wait between the two order them; so does an mbarrier of one of the blocks."
    if ours[2] == theirs[2]:
        return BETWEEN_LANES
    if second_is_asynchronous:
        return (
            "An arrival of every warp that does the first, at an mbarrier or a named barrier that the second's thread "
            "waits for, orders them."
        )
    return (
        "bar.sync of both warps (__syncthreads) between the two orders them; so does an mbarrier that the first "
        "arrives at."
    )


def described(warp: Warp, lanes: int) -> str:
    """Some lanes of a warp in words."""
    return str(warp) if lanes == FULL else f"{warp} lanes {lanes:#x}"


class SaidAccess:
    """The description of an instruction and its warp; descriptions of the same two are equal."""

    __slots__ = ("fiber", "ins")

    def __init__(self, fiber: Fiber, ins: PtxInstruction) -> None:
        self.fiber, self.ins = fiber, ins

    def __call__(self) -> str:
        """The opcode, its place and its warp."""
        return str(self.now())

    def now(self) -> SaidLanes:
        """The same with the lanes of now; a fiber may have others later."""
        return SaidLanes(self.fiber.warp, self.fiber.lanes, self.ins)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SaidAccess) and self.ins is other.ins and self.fiber is other.fiber

    def __hash__(self) -> int:
        return self.ins.pc


class SaidLanes:
    """An instruction by some lanes of a warp. Its `str` is made when it is asked for."""

    __slots__ = ("ins", "lanes", "warp")

    def __init__(self, warp: Warp, lanes: int, ins: PtxInstruction) -> None:
        self.warp, self.lanes, self.ins = warp, lanes, ins

    def __str__(self) -> str:
        return f"{self.ins.opcode} at {self.ins.where} by {described(self.warp, self.lanes)}"
