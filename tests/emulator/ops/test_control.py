"""Indexed branches, early exits, locks among the lanes of a warp, polls, clocks."""

from __future__ import annotations

import re

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import PtxMachine
from layoutgemm.errors import DeadlockError, EmulatorError, PtxError
from tests.emulator.run_ptx import LANE, run

STORE = "add.s64 %d1, %out, %d31; st.global.u32 [%d1], %r0;"
TABLE = "T: .branchtargets A, B, A, C;"
CASES = "A: mov.b32 %r0, 10; bra.uni END; B: mov.b32 %r0, 20; bra.uni END; C: mov.b32 %r0, 30; END:"


def test_an_indexed_branch():
    out = np.zeros(32, np.uint32)
    found = run(f"{LANE} and.b32 %r1, %r31, 3; {TABLE} brx.idx %r1, T; {CASES} {STORE}", {"out": out})
    assert out.tolist() == [10, 20, 10, 30] * 8 and not found.findings
    guarded = f"{LANE} mov.b32 %r0, 5; setp.ge.u32 %p0, %r31, 8; {TABLE} @%p0 brx.idx.uni 3, T; bra END; {CASES}"
    run(guarded + STORE, {"out": out})
    assert out.tolist() == [5] * 8 + [30] * 24
    with pytest.raises(EmulatorError, match="index 4 of 4 targets"):
        run(f"{LANE} mov.b32 %r1, 4; {TABLE} brx.idx %r1, T; {CASES} {STORE}", {"out": out})
    with pytest.raises(PtxError, match=r"no \.branchtargets of the label U"):
        run(f"{LANE} {TABLE} brx.idx %r31, U; {CASES} {STORE}", {"out": out})


@pytest.mark.parametrize("leave", ["@%p0 bra LEAVE;", "@!%p0 bra STAY; bra LEAVE; STAY:"])
def test_threads_that_have_ended_are_missed_by_no_barrier(leave):
    out = np.zeros(96, np.uint32)
    body = f"{LANE} setp.ge.u32 %p0, %r31, 70; {leave} mov.b32 %r1, smem; mad.lo.u32 %r2, %r31, 4, %r1;"
    body += "st.shared.b32 [%r2], %r31; bar.sync 0; ld.shared.b32 %r0, [%r1+276];"
    found = run(body + STORE + "LEAVE:", {"out": out}, block=96, shared=512)
    assert out.tolist() == [69] * 70 + [0] * 26 and not found.findings


# Each thread takes a lock, adds its number to a word, and releases the lock.
TAKE = "LOOP: atom.{space}.cas.b32 %r1, [{lock}], 0, 1; setp.ne.u32 %p0, %r1, 0; @%p0 bra LOOP; {fence}"
GIVE = "{fence} atom.{space}.exch.b32 %r3, [{lock}], 0;"
ADD = "ld.{space}.b32 %r2, [{sum}]; add.u32 %r2, %r2, %r31; st.{space}.b32 [{sum}], %r2;"
SHARED = {"space": "shared", "lock": "smem", "sum": "smem+4"}


def locked(body: str, fence: str = "membar.cta;") -> str:
    return body.format(**SHARED, fence=fence)


@pytest.mark.parametrize("fence", ["membar.cta;", ""])
def test_a_lock_that_the_lanes_of_a_warp_take_in_turn(fence, monkeypatch):
    monkeypatch.setattr(PtxMachine, "PATIENCE", 512)
    out = np.zeros(1, np.uint32)
    zero = f"{LANE} mov.b32 %r9, 0; setp.eq.u32 %p1, %r31, 0; @%p1 st.shared.v2.b32 [smem], {{%r9, %r9}}; bar.sync 0;"
    last = "bar.sync 0; ld.shared.b32 %r2, [smem+4]; @%p1 st.global.b32 [%out], %r2;"
    found = run(zero + locked(TAKE + ADD + GIVE, fence) + last, {"out": out}, block=34, shared=64)
    assert out[0] == sum(range(34)) and set(found.kinds) - {"lint"} == ({"race"} if not fence else set())


@pytest.mark.parametrize("write", ["st.release.cta.shared.b32", "membar.cta; st.volatile.shared.b32"])
@pytest.mark.parametrize("read", ["ld.acquire.cta.shared.b32", "ld.volatile.shared.b32"])
def test_a_flag_in_shared_memory(write, read, monkeypatch):
    monkeypatch.setattr(PtxMachine, "PATIENCE", 512)
    fence = "" if "acquire" in read else "membar.cta;"
    out = np.zeros(64, np.uint32)
    zero = f"{LANE} mov.b32 %r9, 0; setp.eq.u32 %p1, %r31, 0; @%p1 st.shared.b32 [smem], %r9; bar.sync 0;"
    body = f"{zero} setp.ge.u32 %p2, %r31, 32; @%p2 bra READ; @!%p1 bra END; st.shared.b32 [smem+4], 7; {write} "
    body += f"[smem], 1; bra END; READ: {read} %r1, [smem]; setp.ne.u32 %p3, %r1, 1; @%p3 bra READ; {{}}"
    body += f"ld.shared.b32 %r0, [smem+4]; {STORE} END:"
    found = run(body.format(fence), {"out": out}, block=64, shared=64)
    assert out[32:].tolist() == [7] * 32 and not found.findings
    if fence:
        assert set(run(body.format(""), {"out": out}, block=64, shared=64).kinds) == {"race"}


@pytest.mark.parametrize("space", ["global", "shared"])
def test_a_poll_for_what_never_comes_is_a_deadlock(space, monkeypatch):
    monkeypatch.setattr(PtxMachine, "PATIENCE", 512)
    where = "%flag" if space == "global" else "smem"
    body = f"{LANE} st.{space}.b32 [{where}+4], 3; LOOP: ld.volatile.{space}.b32 %r1, [{where}+4]; nanosleep.u32 20;"
    body += "setp.ne.u32 %p0, %r1, 5; @%p0 bra LOOP;"
    said = rf"(?s)threads poll, and nothing else goes on.*ld\.volatile\.{space}"
    with pytest.raises(DeadlockError, match=said) as stuck:
        run(body, {"flag": np.zeros(2, np.uint32)}, block=1, shared=64)
    assert ("; byte 4 of flag holds 3" in str(stuck.value)) == (space == "global")


def test_clocks_go_on():
    out = np.zeros(1, np.uint64)
    body = (
        "mov.u64 %d0, %globaltimer; LOOP: mov.u64 %d1, %globaltimer; sub.u64 %d1, %d1, %d0; setp.lt.u64 %p0, %d1, 5000;"
    )
    run(body + "@%p0 bra LOOP; st.global.u64 [%out], %d1;", {"out": out}, block=1)
    assert out[0] >= 5000


def test_the_global_timer_counts_from_a_date_and_on_from_launch_to_launch():
    timer, clock = (np.zeros(2, np.uint64) for _ in range(2))
    body = "mov.u64 %d0, %globaltimer; mov.u64 %d1, %clock64; mov.u32 %r0, %globaltimer_hi; cvt.u64.u32 %d2, %r0;"
    for launch in range(2):
        out = np.zeros(3, np.uint64)
        run(
            f"{body} st.global.u64 [%out], %d0; st.global.u64 [%out+8], %d1; st.global.u64 [%out+16], %d2;",
            {"out": out},
        )
        timer[launch], clock[launch] = out[:2]
        assert out[0] > 1 << 40 and out[2] == out[0] >> np.uint64(32)
    assert timer[1] > timer[0] and clock[0] == clock[1] < 1 << 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 %f0;", "has 6 operands and its immediates, not 1"),
        ("tex.acube.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%d0, {%f4, %f5}];", "of textures 1d, 2d, 3d, a1d, a2d"),
        ("shfl.up.b32 %r0, %r1, 1, 0;", "does not know shfl.up.b32; .sync and a member mask come with sm_70"),
        ("vote.ballot.b32 %r0, %p0;", "does not know vote.ballot.b32; .sync and a member mask come with sm_70"),
        ("sured.b.add.2d.u32.trap [%d0, {%r1, %r2}], %r0;", "atom.global of the surface's array is"),
    ],
)
def test_what_is_not_emulated_has_a_name_and_a_way_out(text, said):
    with pytest.raises(PtxError, match=re.escape(said)):
        run(text, target="sm_100a")
