"""Global memory between warps, blocks and clusters: what orders two accesses, and what does not."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.emulator.findings import Finding
from layoutgemm.emulator.machine.interpreter import Policy
from tests.emulator.run_ptx import LANE, run

WRITE = f"{LANE} add.s64 %d1, %a, %d31; st.global.b32 [%d1], %r31;"
READ = "xor.b32 %r1, %r31, 32; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %a, %d2; ld.global.b32 %r2, [%d2];"


def found(body: str, count: int = 64, **more):
    return run(body, {"a": np.zeros(count, np.uint32), "flag": np.zeros(1, np.uint32)}, **more).findings


def test_warps_of_a_block():
    assert not found(f"{WRITE} bar.sync 0; {READ}", block=64)
    for policy in (Policy(), Policy(pick="random", seed=3)):
        races = found(f"{WRITE} {READ}", block=64, policy=policy)
        assert {one.kind for one in races} == {"race"}
        assert "bar.sync of both warps (__syncthreads) between the two orders them" in races[0].orders
    assert "of a" in races[0].message and "both touch byte" in races[0].message
    assert not found(f"{WRITE} {READ}", block=64, policy=Policy(races=False))


def test_equal_writes_and_strong_accesses_are_no_race():
    assert not found("st.global.b32 [%a], 7;", block=64)
    assert found("mov.u32 %r1, %warpid; st.global.b32 [%a], %r1;", block=64)
    assert not found("mov.u32 %r1, %warpid; st.relaxed.gpu.global.b32 [%a], %r1; red.global.add.u32 [%a], 1;", block=64)


# Block 1 writes and sets a flag; block 0 waits for the flag and reads.
BLOCKS = """mov.u32 %r9, %ctaid.x; setp.eq.u32 %p0, %r9, 0; {tid} setp.eq.u32 %p2, %r31, 0; @%p0 bra WAIT; {write}
    bar.sync 0; @!%p2 bra END; {tell} bra END; WAIT: @!%p2 bra READY; POLL: {ask} setp.eq.u32 %p1, %r3, 0;
    @%p1 bra POLL; READY: bar.sync 0; {read} END:"""
RELEASE, ACQUIRE = "st.release.gpu.global.b32 [%flag], 1;", "ld.acquire.gpu.global.b32 %r3, [%flag];"
FENCE = "fence.acq_rel.gpu;"
RELAXED, VOLATILE = "red.relaxed.gpu.global.add.u32 [%flag], 1;", "ld.volatile.global.b32 %r3, [%flag];"


@pytest.mark.parametrize(
    ("tell", "ask", "races"),
    [(RELEASE, ACQUIRE, 0), (FENCE + RELAXED, VOLATILE + FENCE, 0), (RELAXED, ACQUIRE, 1),
     ("membar.gl; st.volatile.global.b32 [%flag], 1;", ACQUIRE, 0), (RELEASE.replace("gpu", "cluster"), ACQUIRE, 1),
     (FENCE.replace("gpu", "cta") + RELAXED, ACQUIRE, 1), (RELEASE, ACQUIRE.replace("gpu", "cta"), 1)],
)  # fmt: skip
def test_blocks_that_exchange_through_a_flag(tell, ask, races):
    body = BLOCKS.format(tid=LANE, write=WRITE, read=READ, tell=tell, ask=ask)
    seen = found(body, block=64, grid=2)
    assert len(seen) == races and all("orders it" not in one.orders for one in seen)
    if seen:
        assert "CTA (1, 0, 0)" in seen[0].message and "acquires" in seen[0].message


def exchange(write=WRITE, read=READ, tell=RELEASE, ask=ACQUIRE, **more):
    return found(BLOCKS.format(tid=LANE, write=write, read=read, tell=tell, ask=ask), block=64, grid=2, **more)


RESET = "@%p2 st.global.b32 [%flag], 0;"


def test_a_word_is_reset_by_the_thread_that_read_what_was_added():
    """As a lock is for the next launch. The additions may be relaxed: the thread has observed them."""
    for tell in (RELAXED, FENCE + RELAXED, RELAXED.replace("add.u32", "or.b32") + RELAXED):
        assert not exchange(write="", read=RESET, tell=tell)
    (race,) = exchange(write="", read=RESET, tell=FENCE + RELAXED, ask="mov.u32 %r3, 1;")
    assert "red.relaxed.gpu.global.add.u32" in race.message and "st.global.b32" in race.message


def test_each_step_between_the_flag_and_a_blocks_threads_counts():
    text = BLOCKS.format(tid=LANE, write=WRITE, read=READ, tell=RELEASE, ask=ACQUIRE)
    for barrier, alone in (("bar.sync 0; @!%p2 bra END;", 0), ("READY: bar.sync 0;", 1)):
        races = found(text.replace(barrier, barrier.replace("bar.sync 0;", "")), block=64, grid=2)
        assert {race.kind for race in races} == {"race"}, barrier
        assert sum("other lanes of the warp have acquired it" in race.message for race in races) == alone
    # All threads fence, then a barrier, and one thread's relaxed atomic: what CUDA's samples do.
    assert not exchange(write=WRITE + FENCE, tell=RELAXED)
    assert not exchange(read=FENCE + READ, ask=VOLATILE)


# Block 1 writes a word a lane and sets flags; block 0 polls some of them, and its lane i reads word i ^ 1.
WARP = """mov.u32 %r9, %ctaid.x; setp.eq.u32 %p0, %r9, 0; {lane} setp.eq.u32 %p2, %r31, 0; add.s64 %d1, %a, %d31;
    add.s64 %d3, %flag, %d31; @%p0 bra WAIT; st.global.b32 [%d1], %r31; {tell} bra END;
    WAIT: {ask} READY: {meet} xor.b32 %r1, %r31, 1; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %a, %d2;
    ld.global.b32 %r2, [%d2]; END:"""
POLL_ONE = "mov.u32 %r3, 0; @!%p2 bra READY; POLL: {} setp.eq.u32 %p1, %r3, 0; @%p1 bra POLL;"
BY_ONE = f"bar.warp.sync -1; @%p2 {RELEASE}"
BY_EACH = "st.release.gpu.global.b32 [%d3], 1;"
POLL_EACH = "POLL: ld.acquire.gpu.global.b32 %r3, [%d3]; setp.eq.u32 %p1, %r3, 0; @%p1 bra POLL;"
SHUFFLE = "shfl.sync.idx.b32 %r3, %r3, 0, 31, -1;"


@pytest.mark.parametrize(
    ("tell", "ask", "meet", "races"),
    [(BY_ONE, POLL_ONE.format(ACQUIRE), "bar.warp.sync -1;", ""),
     (BY_ONE, POLL_ONE.format(ACQUIRE), "bar.sync 0;", ""),
     (BY_ONE, POLL_ONE.format(ACQUIRE), "", "other lanes of the warp have acquired it, lane 1 has not"),
     (BY_ONE, POLL_ONE.format(ACQUIRE), SHUFFLE, "strict"),
     # All lanes poll one word.
     (BY_ONE, "POLL: ld.acquire.gpu.global.b32 %r3, [%flag]; setp.eq.u32 %p1, %r3, 0; @%p1 bra POLL;", "", ""),
     # Each lane acquires its own flag, and reads what its neighbour's tells of.
     (BY_EACH, POLL_EACH, "bar.warp.sync -1;", ""),
     (BY_EACH, POLL_EACH, "", "told of it, and no bar.warp.sync stands between"),
     # A fence acquires what its own lane has read, and releases for its own lane's later writes.
     (BY_ONE, POLL_ONE.format(VOLATILE + FENCE), "bar.warp.sync -1;", ""),
     (BY_ONE, POLL_ONE.format("ld.relaxed.gpu.global.b32 %r3, [%flag];"), FENCE, "other lanes of the warp"),
     (f"{FENCE} bar.warp.sync -1; @%p2 {RELAXED}", POLL_ONE.format(ACQUIRE), "bar.warp.sync -1;", ""),
     (f"setp.eq.u32 %p5, %r31, 1; bar.warp.sync -1; @!%p5 bra OVER; {FENCE} OVER: @%p2 {RELAXED}",
      POLL_ONE.format(ACQUIRE), "bar.warp.sync -1;", "no word that the one releases")],
)  # fmt: skip
def test_a_lanes_acquire_is_its_own_until_a_barrier_of_the_warp(tell: str, ask: str, meet: str, races: str):
    body = WARP.format(lane=LANE, tell=tell, ask=ask, meet=meet)

    def seen(policy: Policy) -> list[Finding]:
        return run(
            body, {"a": np.zeros(32, np.uint32), "flag": np.zeros(32, np.uint32)}, grid=2, policy=policy
        ).findings

    for policy in (Policy(), Policy(lanes="strict"), Policy(pick="random", seed=2)):
        expected = races if races != "strict" else "other lanes"
        got, kind = seen(policy), "lint" if races == "strict" != policy.lanes else "race"
        assert [one.kind for one in got] == [kind] * bool(expected) and all(expected in one.message for one in got)
    if "other lanes" in races:
        assert "bar.warp.sync (__syncwarp) between the lane that acquires" in got[0].orders
        assert not seen(Policy(lanes="off"))


def test_a_relaxed_poll_without_a_fence():
    (relaxed,) = exchange(ask="ld.relaxed.gpu.global.b32 %r3, [%flag];")
    assert relaxed.kind == "race"
    (volatile,) = exchange(ask=VOLATILE)  # older code counts on it
    assert volatile.kind == "lint" and "an acquiring read of it" in volatile.orders
    assert exchange(ask=VOLATILE, policy=Policy(strict=True))[0].kind == "race"


def test_a_strong_read_of_an_ordinary_store():
    """The last block of a sum reads the others' parts by volatile loads; each counts itself in after a fence."""
    strong = READ.replace("ld.global", "ld.volatile.global")
    assert not exchange(read=strong)
    assert not exchange(write=WRITE + FENCE, tell=RELAXED, read=strong, ask=VOLATILE)
    (lint,) = exchange(write=WRITE, tell=RELAXED, read=strong, ask=VOLATILE)
    assert lint.kind == "lint" and "what an ordinary store wrote is a race by PTX" in lint.message
    assert exchange(write=WRITE, tell=RELAXED, read=strong, policy=Policy(strict=True))[0].kind == "race"
    # The flag itself: the poll may see the store, or not.
    (flag,) = exchange(write="", read="", tell="st.global.b32 [%flag], 1;", ask=VOLATILE)
    assert flag.kind == "lint" and "of flag" in flag.message
    assert not exchange(write=WRITE.replace("st.", "st.volatile."), tell=RELAXED, read=strong, ask=VOLATILE)


# Thread 0 of a block stores 16 bytes of shared memory, or loads 16 bytes of `a`, by the copy engine.
ONE = f"{LANE} setp.eq.u32 %p2, %r31, 0; @!%p2 bra OVER;"
STORE = (ONE + "st.shared.v4.b32 [smem], {{%r31, %r31, %r31, %r31}}; "
         "fence.proxy.async.shared::cta; cp.async.bulk.global.shared::cta.bulk_group [%a], [smem], 16; "
         "cp.async.bulk.commit_group; {wait} OVER:")  # fmt: skip
LOAD = (
    f"{ONE} mbarrier.init.shared.b64 [smem+64], 1; fence.mbarrier_init.release.cluster; "
    "mbarrier.arrive.expect_tx.shared.b64 %d9, [smem+64], 16; "
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [smem], [%a], 16, [smem+64]; {wait} OVER:"
)
WAIT = "cp.async.bulk.wait_group 0;"
HALVES = "setp.ge.u32 %p1, %r31, 16; @%p1 bra B; {one} bra OVER; B: {one} OVER:"
LANDED = "TRY: mbarrier.try_wait.parity.shared.b64 %p5, [smem+64], 0; @!%p5 bra TRY;"


def test_a_bulk_store_and_another_blocks_read():
    assert not exchange(write=STORE.format(wait=WAIT), shared=128)
    (race,) = exchange(write=STORE.format(wait="cp.async.bulk.wait_group.read 0;"), shared=128)
    assert race.kind == "race" and "cp.async.bulk.global" in race.message
    own = "{wait} ld.global.b32 %r3, [%a];"
    assert not found(STORE.format(wait=own.format(wait=WAIT)), block=32, shared=128)
    race, ended = found(STORE.format(wait=own.format(wait="")), block=32, shared=128)
    assert ended.kind == "exit"
    assert "no wait for the first's end" in race.message and "cp.async.bulk.wait_group" in race.orders


def test_a_bulk_load_of_what_threads_wrote_needs_a_proxy_fence():
    load, proxy = LOAD.format(wait=LANDED), "fence.proxy.async.global;"
    for fenced in ({"write": WRITE + proxy, "read": load}, {"read": proxy + load}):
        assert not exchange(**fenced, shared=128)
    for read in (load, "fence.proxy.async.shared::cta;" + load):
        (race,) = exchange(read=read, shared=128)
        assert race.kind == "race" and "no fence.proxy.async between" in race.message
    assert exchange(read=proxy + load, tell=RELAXED, shared=128)[0].kind == "race"


def test_a_bulk_load_and_a_later_write():
    """Block 1 loads, and block 0 overwrites when the flag says so: the load has to be waited for."""
    assert not exchange(write=LOAD.format(wait=LANDED), read=WRITE, shared=128)
    late = LOAD.format(wait="").replace("OVER:", "OVER: ")
    body = BLOCKS.format(tid=LANE, write=late, read=WRITE, tell=RELEASE + LANDED, ask=ACQUIRE)
    assert [one.kind for one in found(body, block=64, grid=2, shared=128)] == ["race"]


def test_cp_async_of_what_another_block_wrote():
    copy = f"{ONE} cp.async.ca.shared.global [smem], [%a], 4; cp.async.wait_all; OVER:"
    assert not exchange(read=copy, shared=128)
    assert [one.kind for one in exchange(read=copy, tell=RELAXED, shared=128)] == ["race"]


@pytest.mark.parametrize("ways", ["{one}", HALVES])
def test_cp_async_of_what_its_warp_stores_afterwards(ways):
    copy = "cp.async.ca.shared.global [{to}], [%d1], 4;"
    body = f"{LANE} add.s64 %d1, %a, %d31; mov.u32 %r3, smem; mad.lo.u32 %r2, %r31, 4, %r3; {copy.format(to='%r2')}"
    wait, store, second = "cp.async.wait_all;", "st.global.b32 [%d1], %r31;", copy.format(to="%r2+128")
    assert not found(body + ways.format(one=wait + store), block=32, shared=256)
    for late in (store, wait + second + store):
        race = found(body + ways.format(one=late), block=32, shared=256)[0]
        assert "no wait for the first's end" in race.message and "cp.async.wait_group" in race.orders


def test_blocks_without_a_flag():
    one = "mov.u32 %r9, %ctaid.x; add.u32 %r9, %r9, 1; st.global.b32 [%a], %r9;"
    assert {x.kind for x in found(one, block=1, grid=2)} == {"race"}
    halo = (
        f"{LANE} mov.u32 %r9, %ctaid.x; mad.lo.u32 %r8, %r9, 32, %r31; mul.wide.u32 %d1, %r8, 4; add.s64 %d1, %a, %d1;"
    )
    apart = "ld.global.b32 %r1, [%d1]; add.u32 %r1, %r1, 1; st.global.b32 [%d1], %r1;"
    assert not found(halo + apart, count=65, grid=2)
    assert found(halo + apart.replace("[%d1];", "[%d1+4];", 1), count=65, grid=2)  # a neighbour's first element


def test_bytes_of_one_word():
    body = "mov.u32 %r31, %tid.x; cvt.u64.u32 %d1, %r31; add.s64 %d1, %a, %d1; st.global.b8 [%d1], %r31;"
    assert not found(body.replace("%r31;", "%r31;"), block=64)


# Every block adds to the sums; the last one that adds to the flag reads them.
SUMS = f"""{LANE} mov.u32 %r7, 1; setp.eq.u32 %p2, %r31, 0; add.s64 %d1, %a, %d31; {{add}} bar.sync 0;
mov.u32 %r30, smem;
@%p2 st.shared.b32 [%r30], 0; {{before}} @!%p2 bra WAIT; {{tell}} st.shared.b32 [%r30], %r3; WAIT: bar.sync 0;
ld.shared.b32 %r4, [%r30]; mov.u32 %r5, %nctaid.x; add.u32 %r4, %r4, 1; setp.ne.u32 %p1, %r4, %r5; @%p1 bra END;
{{after}} ld.global.b32 %r6, [%d1]; st.global.b32 [%d1], %r6; END:"""
ADD, COUNT = "red.global.add.u32 [%d1], %r7;", "atom.global.add.u32 %r3, [%flag], 1;"
FULL = "fence.acq_rel.gpu;"


@pytest.mark.parametrize(
    ("add", "before", "tell", "after", "kinds"),
    [(ADD, FULL, COUNT, FULL, set()), (ADD, "", "atom.acq_rel.gpu.global.add.u32 %r3, [%flag], 1;", "", set()),
     (ADD, "", COUNT, FULL, {"race"}), (ADD, FULL, COUNT, "", {"lint"}),
     (ADD.replace("add", "max"), "", COUNT, "", set()),  # of other atomic operations locks are built: not checked
     # The last block sets the counter to zero again, as CUDA's sample of a reduction in one launch does.
     (ADD, FULL, COUNT, FULL + "@%p2 st.global.b32 [%flag], 0;", set())],
)  # fmt: skip
def test_sums_by_atomic_operations(add: str, before: str, tell: str, after: str, kinds: set[str]) -> None:
    body = SUMS.format(add=add, before=before, tell=tell, after=after)
    assert {one.kind for one in found(body, block=64, grid=3, shared=64)} == kinds


# A thread reduces shared memory into the sums; then the block reads them.
REDUCED = f"""{LANE} mov.u32 %r30, smem; shl.b32 %r28, %r31, 2; add.u32 %r27, %r30, %r28; setp.eq.u32 %p2, %r31, 0;
add.s64 %d1, %a, %d31; {{first}} st.shared.b32 [%r27], %r31; fence.proxy.async{{space}}; bar.sync 0; @!%p2 bra READ;
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%a], [%r30], 256; cp.async.bulk.commit_group;
cp.async.bulk.wait_group{{how}} 0; READ: bar.sync 0; ld.global.b32 %r2, [%d1];"""


@pytest.mark.parametrize(
    ("first", "space", "how", "races"),
    [("", ".shared::cta", "", 0), ("", "", ".read", 1), ("st.global.b32 [%d1], %r31;", "", "", 0),
     ("st.global.b32 [%d1], %r31;", ".shared::cta", "", 1)],  # the fence has to be of global memory, too
)  # fmt: skip
def test_a_reduction_by_a_copy_engine(first: str, space: str, how: str, races: int) -> None:
    seen = found(REDUCED.format(first=first, space=space, how=how), block=64, shared=256)
    assert len(seen) == races and {one.kind for one in seen} <= {"race"}


def test_a_load_of_read_only_data() -> None:
    """The cache of .nc is not coherent with writes of the launch, whatever orders them."""
    for write in (WRITE, f"{LANE} add.s64 %d1, %a, %d31; red.global.add.u32 [%d1], 1;"):
        assert not found(f"{write} bar.sync 0; {READ}", block=64)
        seen = found(f"{write} bar.sync 0; {READ.replace('ld.global', 'ld.global.nc')}", block=64)
        assert {one.kind for one in seen} == {"race"} and "as data that is read only" in seen[0].message
    read_first = f"{LANE} add.s64 %d2, %a, %d31; ld.global.nc.b32 %r2, [%d2]; st.global.b32 [%d2], %r31;"
    assert not found(read_first, block=64)
