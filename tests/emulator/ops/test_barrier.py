"""Barriers and fences: what they order, what they wait for, and the report of each misuse."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from layoutgemm import emulate_ptx
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import DeadlockError, EmulatorError, PtxError
from tests.emulator.run_ptx import run
from tests.micro import ended_threads

HEAD = """mov.u32 %r30, %tid.x; mov.u32 %r29, smem; mov.u32 %r20, fixed; mad.lo.u32 %r28, %r30, 4, %r29;
setp.eq.u32 %p0, %r30, 0; xor.b32 %r27, %r30, 32; mad.lo.u32 %r27, %r27, 4, %r29;
"""
WRITE, READ = "st.shared.u32 [%r28], %r30;", "ld.shared.u32 %r0, [%r27];"
POLICIES = [Policy(), Policy(pick="random", seed=1), Policy(pick="random", seed=2)]


def kinds(body: str, block: int = 64, policy: Policy | None = None, **more) -> list[str]:
    return run(HEAD + body, {}, block=block, shared=1024, static=64, policy=policy, **more).kinds


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.pick}{p.seed}")
@pytest.mark.parametrize(
    "barrier", ["bar.sync 0;", "barrier.sync 3;", "barrier.cta.sync.aligned 4, 64;", "bar.cta.sync 5, 64;"]
)
def test_barriers_of_a_block_order(barrier, policy):
    assert kinds(WRITE + barrier + READ, policy=policy) == []
    assert kinds((WRITE + barrier + READ) * 3, policy=policy) == [
        "race"
    ]  # a second one is needed before the next write
    assert kinds((WRITE + barrier + READ + barrier) * 3, policy=policy) == []


def test_arrive_hands_on_and_does_not_wait():
    body = (
        "setp.ge.u32 %p1, %r30, 32; @%p1 bra B; "
        + WRITE
        + "bar.arrive 1, 64; bra END; B: bar.sync 1, 64;"
        + READ
        + "END:"
    )
    assert kinds(body) == []
    assert "race" in kinds(body.replace("B: bar.sync", "B: bar.arrive"))


def test_arrivals_that_are_left_at_a_named_barrier():
    """Warp 0 arrives once more than warp 1 waits, and warp 1 has ended: nothing misses it."""
    body = f"""setp.ge.u32 %p1, %r30, 32; @%p1 bra B; {WRITE} bar.arrive 1, 64; bar.sync 2, 64; MORE bra END;
    B: bar.sync 1, 64; {READ} bar.sync 2, 64; END:"""
    assert kinds(body.replace("MORE", "")) == []
    extra = body.replace("MORE", "bar.arrive 1, 64;")
    (found,) = run(HEAD + extra, {}, block=64, shared=1024, static=64).findings
    assert found.kind == "lint" and "32 of 64 threads have arrived at barrier 1: warp 0 (works in" in found.message
    assert "Policy(strict=True)" in found.message
    assert kinds(extra, policy=Policy(strict=True)) == ["exit"]
    # A thread that waits for the missing ones is stuck, whether they have ended or not.
    with pytest.raises(DeadlockError, match=r"not there: none that still runs"):
        kinds(body.replace("MORE", "bar.sync 1, 64;"))


def test_threads_that_ended_are_not_waited_for():
    assert kinds("setp.ge.u32 %p1, %r30, 32; @%p1 exit; bar.sync 0;") == []
    assert kinds("setp.ge.u32 %p1, %r30, 32; @!%p1 bra A; bar.warp.sync -1; exit; A: bar.sync 0;") == []
    with pytest.raises(DeadlockError, match=r"bar\.sync 0, 64"):
        kinds("setp.ge.u32 %p1, %r30, 32; @%p1 exit; bar.sync 0, 64;")


@pytest.mark.parametrize("form", ["bar.red", "barrier.cta.red"])
def test_a_barrier_reduces_predicates(form):
    """PTX ISA, "bar.red": each thread gets the result of all that meet there, and they are ordered."""
    body = f"""setp.lt.u32 %p3, %r30, 40; setp.lt.u32 %p4, %r30, 0;
    {form}.popc.u32 %r1, 1, %p3; {form}.and.pred %p5, 2, 64, !%p4; {form}.and.pred %p6, 2, 64, %p3;
    {form}.or.pred %p7, 1, %p3; {form}.or.pred %p8, 3, %p4;
    selp.u32 %r2, 100, 0, %p5; add.u32 %r1, %r1, %r2; selp.u32 %r2, 200, 0, %p6; add.u32 %r1, %r1, %r2;
    selp.u32 %r2, 400, 0, %p7; add.u32 %r1, %r1, %r2; selp.u32 %r2, 800, 0, %p8; add.u32 %r1, %r1, %r2;
    mul.wide.u32 %d30, %r30, 4; add.s64 %d1, %out, %d30; st.global.u32 [%d1], %r1;"""
    done = run("mov.u32 %r30, %tid.x;" + body, {"out": np.zeros(64, np.uint32)}, block=64)
    assert done["out"].tolist() == [540] * 64 and not done.findings
    assert kinds(WRITE + f"setp.eq.u32 %p3, %r30, 0; {form}.or.pred %p4, 0, %p3;" + READ) == []


def test_misuse_of_barriers_of_a_block():
    with pytest.raises(EmulatorError, match=r"barriers 0\.\.15"):
        kinds("mov.u32 %r1, 16; bar.sync %r1;")
    with pytest.raises(EmulatorError, match="no whole number of warps"):
        kinds("mov.u32 %r1, 40; bar.sync 1, %r1;")
    assert "protocol" in kinds(
        "setp.ge.u32 %p1, %r30, 32; @%p1 bra A; bar.arrive 1, 96; bra B; A: bar.arrive 1, 128; B:"
    )
    assert "divergence" in kinds("setp.lt.u32 %p1, %r30, 16; @%p1 bar.sync 1, 32;", 32)


def test_lanes_of_a_warp():
    assert kinds("bar.warp.sync -1;", 32) == []
    assert kinds("setp.lt.u32 %p1, %r30, 16; @%p1 bar.warp.sync 0xFFFF;", 32) == []
    assert kinds("setp.lt.u32 %p1, %r30, 16; @%p1 bar.warp.sync -1;", 32) == ["divergence"]


# Clusters -------------------------------------------------------------------------------------------------------------

CLUSTER = "mov.u32 %r25, %cluster_ctarank; xor.b32 %r24, %r25, 1; mapa.shared::cluster.u32 %r23, %r29, %r24;"
REMOTE = "ld.shared::cluster.u32 %r0, [%r23];"
SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def cluster(body: str, **more) -> list[str]:
    return kinds(CLUSTER + body, 32, grid=2, cluster=2, **more)


def test_the_barrier_of_a_cluster_orders():
    write = "@%p0 st.shared.u32 [%r29], %r30;"
    assert cluster(write + SYNC + REMOTE + SYNC) == []
    assert "race" in cluster(write + SYNC.replace("arrive", "arrive.relaxed") + REMOTE + SYNC)
    fenced = "fence.acq_rel.cluster;" + SYNC.replace("arrive", "arrive.relaxed")
    assert cluster(write + fenced + REMOTE + SYNC) == []
    remote = "@%p0 st.shared::cluster.u32 [%r23], %r30;"
    assert cluster(SYNC + remote + SYNC) == []
    # A block ends without knowing of a write to its memory.
    assert "exit" in cluster(SYNC + remote + SYNC.replace("arrive", "arrive.relaxed"))
    assert "exit" in cluster(remote)


FAR = ["st.shared::cluster.u32 [%r23], %r30;", "ld.shared::cluster.u32 %r0, [%r23];",
       "red.relaxed.cluster.shared::cluster.add.u32 [%r23], 1;"]  # fmt: skip


@pytest.mark.parametrize("access", FAR, ids=[one.split(".")[0] for one in FAR])
def test_another_blocks_memory_is_used_after_the_cluster_has_met(access):
    """A block's shared memory is there once the block has begun."""
    fill = "@%p0 st.shared.u32 [%r29], 0;" if access.startswith(("ld", "red")) else ""
    one = f"@%p0 {access}"
    relaxed = SYNC.replace("arrive", "arrive.relaxed")
    assert cluster(fill + SYNC + one + SYNC) == []
    if not fill:
        assert cluster(relaxed + one + SYNC) == []  # it orders no accesses, and the block has begun
    found = run(HEAD + CLUSTER + one + SYNC, {}, block=32, grid=2, cluster=2, shared=1024, static=64).findings
    assert [f.message.split(", and nothing")[1] for f in found if "begun" in f.message] == [
        " orders it after that block has begun"
    ]
    assert "barrier.cluster.arrive and .wait" in found[0].orders
    # The block's own memory, through the same window, is there from the beginning.
    assert cluster(one.replace("%r23", "%r22").join(["mapa.shared::cluster.u32 %r22, %r29, %r25; " + fill, SYNC])) == []


def test_an_arrival_of_a_remote_thread_tells_that_its_block_has_begun():
    """Block 1 arrives at block 0: then block 0 may write to block 1, but block 1 knew nothing of block 0."""
    body = """setp.eq.u32 %p4, %r25, 0; mapa.shared::cluster.u32 %r22, %r20, %r24;
    @%p4 bra WAITS; @%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r22]; bra END;
    WAITS: L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r20], 0; @!%p2 bra L;
    @%p0 st.shared::cluster.u32 [%r23], %r30; END:"""
    init = "@%p0 mbarrier.init.shared.b64 [%r20], 1; fence.mbarrier_init.release.cluster;"
    assert cluster(init + SYNC.replace("arrive", "arrive.relaxed") + body + SYNC) == []
    found = run(HEAD + CLUSTER + init + body + SYNC, {}, block=32, grid=2, cluster=2, shared=1024, static=64,
                policy=Policy(pick="random", seed=3)).findings  # fmt: skip
    begun = [f for f in found if "begun" in f.message]
    assert [f.cta[0] for f in begun] == [1] and "mbarrier.arrive" in begun[0].message


def test_an_initialisation_that_came_before_a_copy_that_has_completed():
    """Block 1 initialises, then loads into block 0, which waits and arrives at block 1."""
    begin = """@%p0 mbarrier.init.shared.b64 [%r20], 1; fence.mbarrier_init.release.cluster; SYNC
    setp.eq.u32 %p4, %r25, 0; mapa.shared::cluster.u32 %r22, %r20, %r24; @%p4 bra WAITS; INIT
    @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r23], [%a], 16, [%r22];
    M: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r20+8], 0; @!%p2 bra M; bra END;
    WAITS: @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r20], 16;
    L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r20], 0; @!%p2 bra L;
    @%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r22+8]; END:"""
    late = "@%p0 mbarrier.init.shared.b64 [%r20+8], 1; fence.mbarrier_init.release.cluster; bar.sync 0;"
    settings = {"block": 32, "grid": 2, "cluster": 2, "shared": 1024, "static": 64}

    def found(body, policy=None):
        text = HEAD + CLUSTER + body.replace("SYNC", SYNC) + SYNC
        return run(text, {"a": np.zeros(4, np.uint32)}, policy=policy, **settings).findings

    (lint,) = found(begin.replace("INIT", late))
    assert lint.kind == "lint" and "it came before in time" in lint.message and "barrier.cluster" in lint.orders
    assert [one.kind for one in found(begin.replace("INIT", late), Policy(strict=True))] == ["race"]
    assert found(begin.replace("SYNC", late + "SYNC").replace("INIT", "")) == []


def test_lanes_that_initialise_one_mbarrier():
    """A warp without elect: 32 equal inits in one instruction. A second instruction is an init of a live mbarrier."""
    body = "mbarrier.init.shared.b64 [%r20], 1;"
    (lint,) = run(HEAD + body, {}, block=32, shared=1024, static=64).findings
    assert lint.kind == "lint" and "32 lanes initialise the mbarrier" in lint.message
    assert kinds(body, block=32, policy=Policy(fences="writers")) == ["protocol"]
    assert kinds(body.replace("mbar", "@%p0 mbar"), block=32) == []
    each = "shl.b32 %r26, %r30, 3; add.u32 %r26, %r26, %r29; mbarrier.init.shared.b64 [%r26], 1;"
    assert kinds(each, block=32) == []
    twice = body.replace("mbar", "@%p0 mbar") * 2
    assert kinds(twice, block=32) == ["lint"] and kinds(twice, block=32, policy=Policy(fences="writers")) == [
        "protocol"
    ]
    assert kinds(body, block=64) == ["lint", "lint"]  # of a warp's lanes, and of two warps
    assert "protocol" in kinds("mov.u32 %r26, %warpid; add.u32 %r26, %r26, 1;" + body.replace("1;", "%r26;"), block=64)
    used = twice.replace("1;@", "1; @%p0 mbarrier.arrive.shared.b64 _, [%r20]; @")
    assert used != twice and kinds(used, block=32) == ["protocol"]


def test_misuse_of_the_barrier_of_a_cluster():
    with pytest.raises(EmulatorError, match=r"second barrier\.cluster\.arrive"):
        cluster("barrier.cluster.arrive; barrier.cluster.arrive;")
    with pytest.raises(EmulatorError, match="without an arrive"):
        cluster("barrier.cluster.wait;")
    with pytest.raises(DeadlockError, match=r"barrier\.cluster\.wait"):
        cluster("setp.eq.u32 %p1, %r25, 0; @%p1 bra W; mbarrier.init.shared.b64 [%r20], 1;"
                "L: mbarrier.try_wait.parity.shared.b64 %p2, [%r20], 0; @!%p2 bra L; W:" + SYNC)  # fmt: skip
    # Threads that have ended count as arrived.
    assert cluster("setp.eq.u32 %p1, %r25, 0; @%p1 exit; " + SYNC) == []


# Memory barriers ------------------------------------------------------------------------------------------------------

INIT = "@%p0 mbarrier.init.shared.b64 [%r20], COUNT; bar.sync 0;"
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r20], PHASE; @!%p2 bra W;"


def mbarrier(body: str, count: int = 64, **more) -> list[str]:
    return kinds(INIT.replace("COUNT", str(count)) + body, **more)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.pick}{p.seed}")
def test_an_mbarrier_orders(policy):
    arrive = "mbarrier.arrive.shared.b64 _, [%r20];"
    assert mbarrier(WRITE + arrive + WAIT.replace("PHASE", "0") + READ, policy=policy) == []
    assert "race" in mbarrier(arrive + WRITE + WAIT.replace("PHASE", "0") + READ, policy=policy)
    relaxed = arrive.replace("arrive.", "arrive.relaxed.cta.")
    assert "race" in mbarrier(WRITE + relaxed + WAIT.replace("PHASE", "0") + READ, policy=policy)


def test_the_phase_before_a_fresh_barriers_first_has_ended():
    assert mbarrier(WAIT.replace("PHASE", "1")) == []
    with pytest.raises(DeadlockError, match=r"mbarrier\.try_wait"):
        mbarrier(WAIT.replace("PHASE", "0"))


def test_the_lowest_bit_of_a_parity_counts():
    """ptxas shifts the operand left by 31 (SHF.L.U32 by 0x1f before SYNCS.PHASECHK); Triton's kernels wait for -1."""
    assert mbarrier(WAIT.replace("PHASE", "-1")) == ["lint"]
    with pytest.raises(DeadlockError, match=r"mbarrier\.try_wait"):
        mbarrier(WAIT.replace("PHASE", "2"))


def test_a_phase_by_its_state():
    body = (
        WRITE + "mbarrier.arrive.shared.b64 %d5, [%r20]; W: mbarrier.try_wait.shared.b64 %p2, [%r20], %d5; @!%p2 bra W;"
    )
    assert mbarrier(body + READ) == []


def test_counts_and_bytes():
    each = "mbarrier.arrive.shared.b64 _, [%r20], 2;"
    assert mbarrier(each + WAIT.replace("PHASE", "0"), 128) == []
    tx = "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r20], 16;" + WAIT.replace("PHASE", "0")
    with pytest.raises(DeadlockError):
        mbarrier(tx, 1)
    assert mbarrier(tx.replace("W:", "@%p0 mbarrier.complete_tx.shared.b64 [%r20], 16; W:"), 1) == []
    # Bytes may come before they are expected.
    assert mbarrier("@%p0 mbarrier.complete_tx.shared.b64 [%r20], 16; bar.sync 1;" + tx, 1) == []
    dropped = "setp.ge.u32 %p1, %r30, 32; @%p1 mbarrier.arrive_drop.shared.b64 _, [%r20]; @!%p1 bra A; bra END; A:"
    rounds = "mbarrier.arrive.shared.b64 _, [%r20];" + WAIT.replace("PHASE", "0")
    again = rounds.replace("W", "V").replace(", 0;", ", 1;")
    assert mbarrier(dropped + rounds + again + "END:") == []


def test_misuse_of_mbarriers():
    arrive = "mbarrier.arrive.shared.b64 _, [%r20];"
    with pytest.raises(EmulatorError, match="gets 50 arrivals where 40 of 40 are pending"):
        mbarrier(arrive.replace("];", "], 50;"), 40)
    with pytest.raises(EmulatorError, match="no mbarrier is initialised at 0x408"):
        mbarrier("mbarrier.arrive.shared.b64 _, [%r20+8];")
    with pytest.raises(EmulatorError, match="count 0: it is 1 to"):
        mbarrier("", 0)
    with pytest.raises(
        EmulatorError, match="at shared offset 0x404: it takes 8 bytes, 8-byte aligned, and the launch gives"
    ):
        kinds("@%p0 mbarrier.init.shared.b64 [%r20+4], 1;")
    with pytest.raises(EmulatorError, match=r"at shared offset 0x\w+: .* gives the CTA \d+ bytes of shared memory"):
        kinds("@%p0 mbarrier.init.shared.b64 [%r20+8192], 1;")
    assert "protocol" in mbarrier("@%p0 mbarrier.init.shared.b64 [%r20], 3;")
    assert mbarrier("@%p0 mbarrier.inval.shared.b64 [%r20]; @%p0 mbarrier.init.shared.b64 [%r20], 3;") == []
    assert "race" in kinds(INIT.replace("bar.sync 0;", "").replace("COUNT", "2") + "setp.eq.u32 %p1, %r30, 32;"
                           "@%p1 bra A; bar.arrive 1, 64; bra B; A: nanosleep.u32 20; B: bar.warp.sync -1;"
                           "@%p1 mbarrier.arrive.shared.b64 _, [%r20];")  # fmt: skip


ALL_BUT_ONE = "setp.ne.u32 %p1, %r30, 31; "


def test_a_missing_arrival_with_a_waiter_is_a_deadlock():
    arrive, wait = "@%p1 mbarrier.arrive.shared.b64 _, [%r20];", WAIT.replace("PHASE", "0")
    assert mbarrier(arrive.replace("@%p1 ", "") + wait) == []
    with pytest.raises(DeadlockError, match=r"mbarrier\.try_wait"):
        mbarrier(ALL_BUT_ONE + arrive + wait)
    with pytest.raises(DeadlockError, match=r"barrier\.sync 2, 64"):
        kinds(ALL_BUT_ONE + "@%p1 barrier.sync 2, 64;")


def test_a_missing_arrival_without_a_waiter_is_reported_at_the_end():
    for body, says in (
        (INIT.replace("COUNT", "64") + ALL_BUT_ONE + "@%p1 mbarrier.arrive.shared.b64 _, [%r20];", "63 of 64 arrivals"),
        (INIT.replace("COUNT", "65") + "mbarrier.arrive.shared.b64 _, [%r20];", "64 of 65 arrivals"),
        (INIT.replace("COUNT", "1") + "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r20], 16;", "and 16 bytes out"),
        (ALL_BUT_ONE + "@%p1 barrier.arrive 2, 64;", "63 of 64 threads have arrived at barrier 2"),
        ("setp.lt.u32 %p1, %r30, 32; @%p1 bar.arrive 2, 64;", "32 of 64 threads have arrived at barrier 2"),
    ):
        found = run(HEAD + body, {}, block=64, shared=1024, static=64, policy=Policy(strict=True))
        assert found.kinds == ["exit"] and says in found.findings[0].message, found.findings
        # PTX asks nothing of a barrier at the end: lint, but by the strict word.
        assert run(HEAD + body, {}, block=64, shared=1024, static=64).kinds == ["lint"]
        writers = run(HEAD + body, {}, block=64, shared=1024, static=64, policy=Policy(fences="writers")).kinds
        assert writers == ["lint" if "barrier 2" in says else "exit"]
    gone = "mbarrier.arrive.shared.b64 _, [%r20]; bar.sync 1; @%p0 mbarrier.inval.shared.b64 [%r20];"
    assert kinds(INIT.replace("COUNT", "65") + gone) == []


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.pick}{p.seed}")
def test_a_relaxed_wait_acquires_by_a_fence_behind_it(policy):
    """The waits of `cute.experimental`: relaxed ones, then fence.acquire restricted to mbarriers."""
    arrive = "mbarrier.arrive.shared.b64 _, [%r20];"
    wait = WAIT.replace("PHASE", "0").replace("parity.", "parity.relaxed.cluster.", 1)
    assert wait != WAIT.replace("PHASE", "0")
    for fence in ("fence.acquire.sync_restrict::shared::cluster.cluster;", "fence.acq_rel.cta;"):
        assert mbarrier(WRITE + arrive + wait + fence + READ, policy=policy) == []
    for fence in ("", "fence.release.sync_restrict::shared::cta.cluster;"):
        assert "race" in mbarrier(WRITE + arrive + wait + fence + READ, policy=policy)
    assert "race" in mbarrier(WRITE + arrive + "fence.acq_rel.cta;" + wait + READ, policy=policy)


def test_an_extra_arrival_begins_the_next_phase():
    """63 of 64 lanes end the phase, the last lane's arrival counts for another: whoever waits goes on too early."""
    body = "mbarrier.arrive.shared.b64 _, [%r20];" + WAIT.replace("PHASE", "0")
    found = run(HEAD + INIT.replace("COUNT", "63") + body, {}, block=64, shared=1024, static=64)
    assert set(found.kinds) == {"protocol", "lint"}
    assert "lanes of one arrive fall into two phases" in found.findings[0].message
    # Lanes may arrive at barriers of their own, and at different phases of these.
    own = "shl.b32 %r26, %r30, 3; add.u32 %r26, %r26, %r29; mbarrier.init.shared.b64 [%r26], 1;"
    arrive = "mbarrier.arrive.shared.b64 _, [%r26];"
    assert kinds(f"{own} bar.sync 0; @%p0 {arrive} {arrive}") == []


def test_an_arrival_that_another_schedule_counts_for_another_phase():
    """With a count of one warp's threads, two warps that arrive end two phases; which one ends which is chance."""
    arrive = "mbarrier.arrive.shared.b64 _, [%r20];"
    relaxed = arrive.replace("arrive.", "arrive.relaxed.cta.")
    one = "setp.ge.u32 %p1, %r30, 32; @%p1 bra END; "
    for each in (arrive, relaxed):
        found = run(HEAD + INIT.replace("COUNT", "32") + each, {}, block=64, shared=1024, static=64)
        assert found.kinds == ["protocol"] and "counts this arrival for its phase 1" in found.findings[0].message
        # One warp's own arrivals come one after the other, and a wait or a barrier puts the other's after them.
        assert mbarrier(one + each * 3 + "END:", 32) == []
    # The last lane's is chance, too, and stands alone at the end.
    assert mbarrier(one + arrive + "END:", 31) == ["protocol", "lint"]
    second = "setp.lt.u32 %p1, %r30, 32; @%p1 bra A; WAIT bar.warp.sync -1; A: " + arrive
    assert mbarrier(second.replace("WAIT", WAIT.replace("PHASE", "0")), 32) == []
    assert mbarrier(second.replace("WAIT", ""), 32) == ["protocol"]
    order = "setp.lt.u32 %p1, %r30, 32; @%p1 ARRIVE bar.sync 1; @!%p1 ARRIVE".replace("ARRIVE", arrive)
    assert mbarrier(order, 32) == []


def test_a_wait_that_another_schedule_ends_two_phases_earlier():
    arrive = "mbarrier.arrive.shared.b64 _, [%r20];"
    rounds = "setp.ge.u32 %p1, %r30, 32; @%p1 bra READER;" + arrive * 3 + "bra END; READER: SKIP"
    first, second = WAIT.replace("PHASE", "0"), WAIT.replace("PHASE", "1").replace("W", "V")
    third = WAIT.replace("PHASE", "0").replace("W", "U")
    late = HEAD + INIT.replace("COUNT", "32") + rounds.replace("SKIP", first) + "END:"
    found = run(late, {}, block=64, shared=1024, static=64)
    assert found.kinds == ["protocol"] and "may end after phase 0 already" in found.findings[0].message
    # Where all threads arrive and wait for each phase in turn, no thread mistakes a phase.
    for seed in range(3):
        policy = Policy(pick="random", seed=seed)
        assert mbarrier("".join(arrive + wait for wait in (first, second, third)), policy=policy) == []


def test_remote_arrivals():
    body = (
        CLUSTER
        + INIT.replace("COUNT", "32")
        + "mapa.shared::cluster.u32 %r22, %r20, %r24;"
        + "FENCE"
        + """
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r22];"""
        + WAIT.replace("PHASE", "0")
    )
    start = "fence.mbarrier_init.release.cluster; barrier.cluster.arrive.relaxed; barrier.cluster.wait;"
    more = {"grid": 2, "cluster": 2}
    assert kinds(body.replace("FENCE", start), 32, **more) == []
    assert "race" in kinds(body.replace("FENCE", start.replace("fence.mbarrier_init.release.cluster;", "")), 32, **more)
    # Without the wait the other block may have ended.
    assert "exit" in kinds(body.replace("FENCE", start).replace(WAIT.replace("PHASE", "0"), ""), 32, **more)


@pytest.mark.parametrize(
    "text", ["bar.red.popc.pred %p1, 0, %p0;", "fence.proxy.foo;",
             "barrier.cluster.foo;", "bar.sync.foo 0;"]
)  # fmt: skip
def test_unknown_forms_are_refused(text):
    with pytest.raises(PtxError, match=r"PTX line \d+"):
        run(text)


def test_instructions_that_change_nothing():
    assert (
        kinds("griddepcontrol.wait; griddepcontrol.launch_dependents; nanosleep.u32 20; prefetch.global.L2 [%d0];")
        == []
    )


def test_proxy_fences_of_global_memory_alone_do_not_order_shared_memory():
    store = WRITE + "FENCE bar.sync 1; @%p0 cp.async.bulk.global.shared::cta.bulk_group [%out], [%r29], 256;"
    store += "@%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group 0;"
    for fence, found in (("fence.proxy.async;", []), ("fence.proxy.async.shared::cta;", []), ("fence.proxy.async.global;", ["race"]),  # noqa: E501
                         ("membar.cta;", ["race"])):  # fmt: skip
        out = {"out": np.zeros(64, np.uint32)}
        assert run(HEAD + store.replace("FENCE", fence), out, block=64, shared=1024, static=64).kinds == found


@pytest.mark.parametrize(("use", "ends"), [("arrive", True), ("sync", False)])
def test_ended_threads_at_a_named_barrier(use: str, ends: bool) -> None:
    """A barrier left in a phase is harmless. Ended threads do not count at a barrier of a number."""
    out = np.zeros(1, np.uint32)
    if ends:
        found = emulate_ptx(ended_threads.text(use, "sm_90a"), block=64, args=[out], progress=False)
        assert found.ok and out[0] == 1 and [one.kind for one in found.findings] == ["lint"]
    else:
        with pytest.raises(DeadlockError, match="not there: none that still runs"):
            emulate_ptx(ended_threads.text(use, "sm_90a"), block=64, args=[out], progress=False)


@pytest.mark.gpu
@pytest.mark.parametrize(("use", "ends"), [("arrive", True), ("sync", False)])
def test_ended_threads_at_a_named_barrier_on_a_gpu(use: str, ends: bool) -> None:
    """A process of its own: a kernel that hangs is killed with it."""
    command = [sys.executable, "-m", "tests.micro.ended_threads", use]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        assert not ends, "it hangs"
        return
    assert done.returncode == 0, done.stderr
    assert ends and done.stdout.strip() == "done", done.stdout


def test_pending_count_of_a_state():
    out = np.zeros(32, np.uint32)
    body = "mov.u32 %r30, %tid.x; setp.eq.u32 %p0, %r30, 0; @%p0 mbarrier.init.shared.b64 [smem], 33; bar.sync 0;"
    body += "mbarrier.arrive.shared.b64 %d1, [smem]; mbarrier.pending_count.b64 %r0, %d1; mul.wide.u32 %d2, %r30, 4;"
    body += "add.s64 %d2, %d2, %out; st.global.u32 [%d2], %r0; @%p0 mbarrier.arrive.shared.b64 _, [smem];"
    body += "WAIT: mbarrier.test_wait.shared.b64 %p1, [smem], %d1; @!%p1 bra WAIT;"
    assert not run(body, {"out": out}, shared=64).findings
    assert out.tolist() == [*range(33, 1, -1)]


def test_lanes_that_meet_the_cluster_in_two_branches():
    out = np.zeros(64, np.uint32)
    meet = "barrier.cluster.arrive; barrier.cluster.wait;"
    body = (
        f"mov.u32 %r30, %tid.x; mov.u32 %r29, %ctaid.x; setp.eq.u32 %p0, %r30, 0; @%p0 bra ONE; {meet} {meet} bra END;"
    )
    body += (
        f"ONE: st.shared.u32 [smem], %r29; {meet} {meet} END: mad.lo.u32 %r1, %r29, 32, %r30; mul.wide.u32 %d0, %r1, 4;"
    )
    body += "bar.sync 0; ld.shared.u32 %r2, [smem]; add.s64 %d0, %d0, %out; st.global.u32 [%d0], %r2;"
    assert not run(body, {"out": out}, grid=2, cluster=2, shared=64).findings
    assert out.tolist() == [0] * 32 + [1] * 32


# Warp 0 polls two mbarriers in turn, until it has seen both; warp 1 arrives at the first, then at the second.
POLLED = """setp.ge.u32 %p1, %r30, 32; @!%p0 bra SET;
    mbarrier.init.shared.b64 [%r20], 1; mbarrier.init.shared.b64 [%r20+8], 1;
    SET: bar.sync 0; mov.u32 %r1, 0; mov.u32 %r2, 0; @%p1 bra B;
    L: setp.eq.u32 %p3, %r1, 1; @%p3 bra M; TEST.shared.b64 %p2, [%r20], 0; selp.u32 %r1, 1, 0, %p2;
    M: setp.eq.u32 %p3, %r2, 1; @%p3 bra N; TEST.shared.b64 %p2, [%r20+8], 0; selp.u32 %r2, 1, 0, %p2;
    N: nanosleep.u32 10; and.b32 %r4, %r1, %r2; setp.eq.u32 %p3, %r4, 1; @!%p3 bra L; bra END;
    B: setp.eq.u32 %p4, %r30, 32; ARRIVE END:"""
BOTH = "@%p4 mbarrier.arrive.shared.b64 _, [%r20]; @%p4 mbarrier.arrive.shared.b64 _, [%r20+8];"


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.pick}{p.seed}")
@pytest.mark.parametrize("test", ["mbarrier.test_wait.parity", "mbarrier.try_wait.parity"])
def test_a_thread_may_poll_mbarriers_in_turn(test, policy):
    polled = POLLED.replace("TEST", test)
    few = replace(policy, limit=2000)
    assert kinds(polled.replace("ARRIVE", BOTH), policy=few) == []
    with pytest.raises(DeadlockError, match=r"^no thread can go on:(?s:.*)mbarrier at 0x400 (?s:.*)mbarrier at 0x408 "):
        kinds(polled.replace("ARRIVE", ""), policy=few)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.pick}{p.seed}")
@pytest.mark.parametrize("test", ["mbarrier.test_wait.parity", "mbarrier.try_wait.parity"])
def test_a_thread_may_ask_again_for_a_phase_that_it_has_seen_end(test, policy):
    """It asks for a phase that has ended and for a late copy, in turn."""
    again = POLLED.replace("setp.eq.u32 %p3, %r1, 1; @%p3 bra M; ", "").replace("TEST", test)
    again = again.replace("SET: bar", "fence.mbarrier_init.release.cluster; SET: bar")
    few = replace(policy, limit=2000)
    copy = """@%p4 mbarrier.arrive.shared.b64 _, [%r20]; @%p4 mbarrier.arrive.expect_tx.shared.b64 _, [%r20+8], 16;
        @!%p4 bra END; add.u32 %r9, %r20, 64;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r9], [%data], 16, [%r20+8];"""
    assert run(HEAD + again.replace("ARRIVE", copy), {"data": np.zeros(4, np.uint32)}, block=64,
               shared=1024, static=64, policy=few).kinds == []  # fmt: skip
    with pytest.raises(DeadlockError, match=r"^no thread can go on:(?s:.*)mbarrier at 0x408 "):
        kinds(again.replace("ARRIVE", "@%p4 mbarrier.arrive.shared.b64 _, [%r20];"), policy=few)
