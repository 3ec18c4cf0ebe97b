"""The bridge's synchronisation: mbarriers, block, named and cluster barriers, fences, register counts, launch order.

Each function is one instruction, named after what it does. Sources: PTX ISA, "mbarrier", "barrier{.cta}",
"barrier.cluster", "membar / fence", "setmaxnreg", "griddepcontrol", "elect.sync".
"""

from __future__ import annotations

from collections.abc import Callable

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32
from cutlass.experimental import primitives

# ------------------------------------------------------------------------------------------------------------ mbarriers


def barrier_init(barrier: cute.Pointer, arrivals: int) -> None:
    """mbarrier.init: the phase completes after `arrivals` arrivals and all bytes promised by `barrier_expect`."""
    cute.arch.mbarrier_init(barrier, arrivals)


def init_barriers(barrier: Callable[[int], cute.Pointer], count: int, arrivals: int) -> None:
    """Initialise the barriers 0 to count - 1, and make that visible. One thread does it, before the block
    synchronises."""
    for number in range(count):
        barrier_init(barrier(number), arrivals)
    barriers_visible()


def barriers_visible() -> None:
    """Make the calling thread's barrier initialisations visible to the async proxy, which TMA belongs to.

    The initialising thread calls it, then the block synchronises: a fence covers the writes of the thread that runs it.
    """
    cute.arch.mbarrier_init_fence()
    cute.arch.fence_proxy("async.shared", space="cta")


def barrier_expect(barrier: cute.Pointer, nbytes: int) -> None:
    """mbarrier.arrive.expect_tx. It is one arrival, and the promise that `nbytes` bytes will arrive in this phase."""
    cute.arch.mbarrier_arrive_and_expect_tx(barrier, nbytes)


def barrier_expect_more(barrier: cute.Pointer, nbytes: int) -> None:
    """mbarrier.expect_tx: the promise of `nbytes` bytes more in this phase, without an arrival."""
    cute.arch.mbarrier_expect_tx(barrier, nbytes)


def barrier_wait(barrier: cute.Pointer, phase: Int32 | int) -> None:
    """Wait until the barrier's phase with parity `phase` (0 or 1) has completed. Acquires what arrived."""
    cute.arch.mbarrier_wait(barrier, phase)


def barrier_done(barrier: cute.Pointer, phase: Int32) -> Boolean:
    """True if that phase has completed, and then acquires what arrived; does not wait."""
    return cute.arch.mbarrier_test_wait(barrier, phase)


@cute.jit
def next_in_ring(
    stage: Int32, parity: Int32, stages: cutlass.Constexpr, step: cutlass.Constexpr = 1
) -> tuple[Int32, Int32]:
    """The stage some steps on in a ring. The parity of its barriers flips at the ring's end.

    step  at most `stages`
    """
    stage += step
    if cutlass.const_expr(step == 1):  # with the other form the compiler serialises some loops' wgmma
        if stage == stages:
            stage = Int32(0)
            parity ^= 1
    else:
        if stage >= stages:
            stage -= stages
            parity ^= 1
    return stage, parity


def barrier_arrive(barrier: cute.Pointer) -> None:
    """mbarrier.arrive: one arrival at a barrier of this block."""
    cute.arch.mbarrier_arrive(barrier)


def barrier_arrive_copied(barrier: cute.Pointer) -> None:
    """cp.async.mbarrier.arrive.noinc, one of the barrier's arrivals. It comes when this thread's cp.async so far have
    landed."""
    cute.arch.cp_async_mbarrier_arrive_noinc(barrier)


def barrier_arrive_at(barrier: cute.Pointer, block: Int32) -> None:
    """One arrival at the barrier of the same address in block `block` of the cluster."""
    cute.arch.mbarrier_arrive(barrier, block)


# ------------------------------------------------------------------------------------------- blocks, warps and clusters


def block_sync() -> None:
    """bar.sync 0: every thread of the block arrives, then every thread goes on."""
    cute.arch.sync_threads()


def warp_sync() -> None:
    """bar.warp.sync: the warp's lanes meet, and see each other's writes."""
    cute.arch.sync_warp()


def named_sync(barrier: Int32 | int, threads: int) -> None:
    """bar.sync on a named barrier. Goes on when `threads` threads have come, those of `named_arrive` included."""
    cute.arch.barrier(barrier_id=barrier, number_of_threads=threads)


def named_arrive(barrier: Int32 | int, threads: int) -> None:
    """bar.arrive: counts the calling warp at a named barrier and does not wait."""
    cute.arch.barrier_arrive(barrier_id=barrier, number_of_threads=threads)


def cluster_arrive(relaxed: bool = False) -> None:
    """barrier.cluster.arrive, with release semantics unless relaxed."""
    if relaxed:
        cute.arch.cluster_arrive_relaxed()
    else:
        cute.arch.cluster_arrive()


def cluster_wait() -> None:
    """barrier.cluster.wait: until every thread of the cluster has arrived; acquires."""
    cute.arch.cluster_wait()


def rank_in_cluster() -> Int32:
    """This CTA's rank in its cluster, a warp-uniform value."""
    return uniform(cute.arch.block_idx_in_cluster())


def elect() -> Boolean:
    """True in one thread of the warp, which is converged here."""
    return primitives.elect_sync()


def uniform(value: Int32) -> Int32:
    """A value that all threads of a warp share, put into a uniform register."""
    return cute.arch.make_warp_uniform(Int32(value))


def uniform_address(value: Int64) -> Int64:
    """The same of 64 bits."""
    halves = [uniform(Int32(value >> shift)) for shift in (0, 32)]
    low, high = [Int64(Uint32(half)) for half in halves]
    return high << 32 | low


def lane_address(value: Int64) -> Int64:
    """A lane's own address, computed here. The compiler does not move it to where it is used."""
    lane = cute.arch.lane_idx()
    low, high = [Int64(Uint32(cute.arch.shuffle_sync(Int32(value >> shift), lane))) for shift in (0, 32)]
    return high << 32 | low


# -------------------------------------------------------------------------------------------- fences, registers, launch


def shared_writes_visible() -> None:
    """fence.proxy.async for this thread's earlier writes to shared memory. Tensor stores and wgmma can read them
    then."""
    cute.arch.fence_proxy("async.shared", space="cta")


def give_registers(count: int) -> None:
    """setmaxnreg.dec, by all warps of a warpgroup."""
    cute.arch.setmaxregister_decrease(count)


def take_registers(count: int) -> None:
    """setmaxnreg.inc, by all warps of a warpgroup. It waits until the block has the registers to give."""
    cute.arch.setmaxregister_increase(count)


def wait_for_previous_kernel() -> None:
    """griddepcontrol.wait: until the kernels before this one have finished. Their writes can be read then."""
    cute.arch.griddepcontrol_wait()


def allow_next_kernel() -> None:
    """griddepcontrol.launch_dependents: the next kernel's blocks may start. They do as far as there is room for
    them."""
    cute.arch.griddepcontrol_launch_dependents()
