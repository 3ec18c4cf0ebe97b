"""Divergence, joins, exits, predicated instructions, deadlocks, and reports that name what and where."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layoutgemm import emulate_ptx
from layoutgemm.emulator.findings import Finding, Findings, joined
from layoutgemm.emulator.machine.interpreter import Cluster, Policy
from layoutgemm.emulator.ptx.parser import SourceLine
from layoutgemm.errors import DeadlockError, EmulatorError
from tests.emulator.run_ptx import LANE, run

HEAD = "mov.u32 %r30, %tid.x; mul.wide.u32 %d30, %r30, 4; add.s64 %d0, %out, %d30;"
STORE = "st.global.u32 [%d0], %r0;"
POLICIES = [Policy(), *[Policy(pick="random", seed=seed) for seed in range(3)]]


def result(body: str, threads: int = 32, policy: Policy | None = None, **more) -> list[int]:
    out = np.zeros(threads, np.uint32)
    found = run(HEAD + body + STORE, {"out": out}, block=threads, policy=policy, **more)
    assert not found.findings
    return out.tolist()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.pick}{p.seed}")
def test_both_sides_of_a_branch_and_nested_ones(policy):
    body = """
    mov.u32 %r0, 100; setp.lt.u32 %p0, %r30, 8; setp.lt.u32 %p1, %r30, 4; setp.gt.u32 %p2, %r30, 20;
    @%p0 bra A;
    mov.u32 %r0, 1;
    @%p2 bra B;
    add.u32 %r0, %r0, 1;
    bra C;
    B: add.u32 %r0, %r0, %r30;
    C: add.u32 %r0, %r0, 10;
    bra D;
    A: @!%p1 bra E;
    mul.lo.u32 %r0, %r30, 7;
    E: add.u32 %r0, %r0, 1000;
    D: add.u32 %r0, %r0, 5;
    """

    def one(i: int) -> int:
        if i < 8:
            return (i * 7 if i < 4 else 100) + 1000 + 5
        return (1 + i if i > 20 else 2) + 15

    assert result(body, policy=policy) == [one(i) for i in range(32)]


def test_loops_with_a_different_number_of_rounds_in_each_lane():
    body = """
    mov.u32 %r0, 0; mov.u32 %r1, 0;
    L: setp.ge.u32 %p0, %r1, %r30; @%p0 bra X;
    add.u32 %r1, %r1, 1; add.u32 %r0, %r0, %r1; bra L;
    X:
    """
    assert result(body) == [i * (i + 1) // 2 for i in range(32)]
    nested = """
    mov.u32 %r0, 0; mov.u32 %r1, 0;
    L: and.b32 %r2, %r30, 3; mov.u32 %r3, 0;
    M: add.u32 %r0, %r0, 1; add.u32 %r3, %r3, 1; setp.le.u32 %p1, %r3, %r2; @%p1 bra M;
    add.u32 %r1, %r1, 1; setp.lt.u32 %p0, %r1, 3; @%p0 bra L;
    """
    assert result(nested) == [3 * ((i & 3) + 1) for i in range(32)]


def test_lanes_that_end_early():
    body = "mov.u32 %r0, 7; setp.ge.u32 %p0, %r30, 10; " + STORE + "@%p0 exit; mov.u32 %r0, 9; bar.warp.sync -1;"
    assert result(body) == [9] * 10 + [7] * 22
    inside = """mov.u32 %r0, 7; st.global.u32 [%d0], %r0; setp.ge.u32 %p0, %r30, 10; setp.eq.u32 %p1, %r30, 12;
    @!%p0 bra L; @%p1 ret; mov.u32 %r0, 8; L: add.u32 %r0, %r0, 1;"""
    assert result(inside) == [8 if i < 10 else 7 if i == 12 else 9 for i in range(32)]
    every = "mov.u32 %r0, 7; st.global.u32 [%d0], %r0; @%p0 bra L; exit; L: exit;"
    assert result("setp.lt.u32 %p0, %r30, 5;" + every) == [7] * 32


def test_registers_of_every_width_are_joined():
    body = """setp.lt.u32 %p0, %r30, 5; mov.u64 %d1, 5; mov.u32 %r1, 1; setp.eq.u32 %p1, %r30, %r30;
    @%p0 bra A; mov.u64 %d1, 3; setp.ne.u32 %p1, %r30, %r30; bra B;
    A: mov.u64 %d1, 4; mov.u64 %d2, 1;
    B: cvt.u64.u32 %d3, %r30; add.u64 %d1, %d1, %d3; cvt.u32.u64 %r0, %d1; @%p1 add.u32 %r0, %r0, 100;"""
    assert result(body) == [104 + i if i < 5 else 3 + i for i in range(32)]
    big = body.replace("mov.u64 %d1, 3", "mov.u64 %d1, 0x8000000000000003")
    assert result(big.replace("cvt.u32.u64 %r0, %d1", "shr.u64 %d1, %d1, 60; cvt.u32.u64 %r0, %d1"))[:6] == [
        100
    ] * 5 + [8]


def test_predicated_instructions_keep_other_lanes():
    body = "setp.lt.u32 %p0, %r30, 5; mov.u32 %r0, %r30; @%p0 mov.u32 %r0, 50; @!%p0 activemask.b32 %r1;"
    assert result(body) == [50 if i < 5 else i for i in range(32)]
    loads = "mov.u32 %r0, 9; setp.lt.u32 %p0, %r30, 5; @%p0 ld.global.u32 %r0, [%d0];"
    assert result(loads) == [0] * 5 + [9] * 27


def test_a_warp_that_is_not_full():
    assert result("mov.u32 %r0, 3; bar.sync 0;", threads=40) == [3] * 40


def test_special_registers():
    out = np.zeros((2, 3, 2, 2, 8), np.uint32)
    body = """mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ctaid.y;
    mad.lo.u32 %r5, %r4, 3, %r3; mad.lo.u32 %r5, %r5, 2, 0; mov.u32 %r6, %tid.z; add.u32 %r5, %r5, %r6;
    mad.lo.u32 %r5, %r5, 2, %r2; mad.lo.u32 %r5, %r5, 8, %r1; mul.wide.u32 %d1, %r5, 4; add.s64 %d1, %d1, %out;
    mov.u32 %r7, %nctaid.x; mad.lo.u32 %r7, %r7, 10, %r3; mov.u32 %r8, %ntid.z; mad.lo.u32 %r7, %r7, 10, %r8;
    mov.u32 %r9, %laneid; mad.lo.u32 %r7, %r7, 100, %r9; st.global.u32 [%d1], %r7;"""
    run(body, {"out": out}, block=(8, 2, 2), grid=(3, 2, 1))
    for cy, cx, z, y, x in np.ndindex(out.shape):
        assert out[cy, cx, z, y, x] == ((3 * 10 + cx) * 10 + 2) * 100 + x + 8 * y + 16 * z


def test_blocks_of_a_launch_are_on_processors_of_their_own():
    """Slots of a buffer are found by %smid, as the DSL does for tensor maps."""
    body = """mov.u32 %r1, %tid.x; setp.eq.u32 %p0, %r1, 0; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %smid;
    mul.wide.u32 %d1, %r3, 4; add.u64 %d1, %d1, %out; @%p0 st.global.u32 [%d1], %r2;"""
    found = run(body, {"out": np.full(8, 9, np.uint32)}, block=64, grid=(2, 3, 1))
    assert found["out"].tolist() == [0, 0, 1, 1, 2, 2, 9, 9] and found.kinds == []


def test_an_unwritten_register_is_named_with_its_place():
    with pytest.raises(EmulatorError) as caught:
        run(".loc 1 41 2\nadd.u32 %r1, %r30, 1;\nst.shared.u32 [%r30], 1;\n", shared=64)
    assert "register %r30 is read and was never written" in str(caught.value)
    assert "CTA (0, 0, 0) warp 0 (works in shared memory) at PTX line 16 (file 1:41): st.shared.u32 [%r30], 1" in str(
        caught.value
    )
    # A branch goes on, to some side.
    (found,) = run("mov.u32 %r1, 1; mul.lo.u32 %r2, %r1, %r7; setp.lt.u32 %p0, %r2, 3; @%p0 bra end; end:").findings
    assert found.message == "register %r7 is read and was never written, and %p0 depends on it"


def test_lanes_that_did_not_write_a_register_may_not_read_it():
    # Defined on one side of a branch: behind it the lanes of that side may read the register, and no other.
    body = HEAD + "setp.lt.u32 %p0, %r30, 5; @%p0 bra A; bra B; A: mov.u32 %r1, 1; B: "
    done = run(f"{body} @%p0 add.u32 %r0, %r1, 1; @%p0 {STORE}", {"out": np.zeros(32, np.uint32)})
    assert not done.findings and done["out"].tolist() == [2] * 5 + [0] * 27
    (found,) = run(f"{body} add.u32 %r0, %r1, 1; {STORE}", {"out": np.zeros(32, np.uint32)}).findings
    assert found.message == "register %r1 is read and was never written, and it is stored"


def test_a_deadlock_names_the_event_of_each_warp():
    body = "mov.u32 %r30, %tid.x; setp.lt.u32 %p0, %r30, 32; @%p0 bra A; bar.sync 1, 96; bra B; A: bar.sync 2, 64; B:"
    with pytest.raises(DeadlockError) as caught:
        run(body, block=64)
    assert str(caught.value).splitlines() == [
        "no thread can go on:",
        "  likely cause: warp 1 waits at barrier 1, and not at 2.",
        "  likely cause: warp 0 waits at barrier 2, and not at 1.",
        "  CTA (0, 0, 0) warp 0 (waits): PTX line 14: bar.sync 2, 64",
        "  CTA (0, 0, 0) warp 1 (waits): PTX line 14: bar.sync 1, 96",
        "  barrier 2 of CTA (0, 0, 0): 32 of 64 threads have arrived",
        "    waits: warp 0 (waits)",
        "    arrived: warp 0 (waits)",
        "    not there: warp 1 (waits)",
        "    cause: warp 1 waits at barrier 1, and not at 2.",
        "  barrier 1 of CTA (0, 0, 0): 32 of 96 threads have arrived",
        "    waits: warp 1 (waits)",
        "    arrived: warp 1 (waits)",
        "    not there: warp 0 (waits)",
        "    cause: warp 0 waits at barrier 2, and not at 1.",
    ]


def test_a_deadlock_says_the_state_of_each_mbarrier():
    """Warp 0 announces 256 bytes, of which a copy brings 128; warp 1 waits for them."""
    body = """mov.u32 %r30, %tid.x; mov.u32 %r20, fixed; mov.u32 %r29, smem; setp.eq.u32 %p0, %r30, 0;
    @%p0 mbarrier.init.shared.b64 [%r20], 2; bar.sync 0; setp.lt.u32 %p1, %r30, 32; @%p1 bra LOADS;
    .loc 1 77 5
    L: mbarrier.try_wait.parity.shared.b64 %p2, [%r20], 0; @!%p2 bra L; ld.shared.b32 %r1, [%r29]; bra END;
    LOADS: @!%p0 bra END; mbarrier.arrive.expect_tx.shared.b64 _, [%r20], 256;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r29], [%a], 128, [%r20];
    END:"""
    with pytest.raises(DeadlockError) as caught:
        run(body, {"a": np.zeros(512, np.uint8)}, block=64, shared=1024, static=64)
    bytes_ = (
        "cause: expect_tx announces 256 bytes, and the copies that complete on it bring 128: the number is too large, "
        "or a copy is missing."
    )
    arrivals = (
        "cause: 1 of the 2 arrivals of a phase have come: the count of its mbarrier.init is 1 too large, or arrivals "
        "are missing."
    )
    assert str(caught.value).splitlines() == [
        "no thread can go on:",
        f"  likely {bytes_}",
        f"  likely {arrivals}",
        "  CTA (0, 0, 0) warp 1 (waits): PTX line 19 (file 1:77): mbarrier.try_wait.parity.shared.b64 %p2, [%r20], 0",
        "  mbarrier at 0x400 of CTA (0, 0, 0), phase 0 (parity 0): 1 of 2 arrivals pending, 128 of 256 expected bytes "
        "have come",
        "    waits: CTA (0, 0, 0) warp 1 (waits): PTX line 19 (file 1:77): mbarrier.try_wait.parity.shared.b64 %p2, "
        "[%r20], 0",
        "    arrived: CTA (0, 0, 0) warp 0 (loads by TMA) lanes 0x1",
        f"    {bytes_}",
        f"    {arrivals}",
    ]


PINGPONG = """mov.u32 %r30, %tid.x; mov.u32 %r20, fixed; setp.eq.u32 %p0, %r30, 0;
    @%p0 mbarrier.init.shared.b64 [%r20], COUNT; @%p0 mbarrier.init.shared.b64 [%r20+8], 32; bar.sync 0;
    setp.lt.u32 %p1, %r30, 32; mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, FIRST; @%p1 bra PRODUCE;
    C: mbarrier.try_wait.parity.shared.b64 %p2, [%r20], %r2; @!%p2 bra C;
    RELEASE
    xor.b32 %r2, %r2, 1; add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 3; @%p3 bra C; bra END;
    PRODUCE: mbarrier.try_wait.parity.shared.b64 %p2, [%r20+8], %r3; @!%p2 bra PRODUCE;
    mbarrier.arrive.shared.b64 _, [%r20];
    xor.b32 %r3, %r3, 1; add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 3; @%p3 bra PRODUCE;
    END:"""


@pytest.mark.parametrize(
    ("count", "first", "release", "said"),
    [
        ("33", "1", True, "32 of the 33 arrivals of a phase have come: the count of its mbarrier.init is 1 too large"),
        ("32", "0", True, "the first wait for a buffer that is free asks for parity 1"),
        ("32", "1", False, "arrived in phase 0: now it waits at PTX line"),
    ],
)
def test_a_deadlock_of_a_ring_says_its_cause(count, first, release, said):
    arrive = "mbarrier.arrive.shared.b64 _, [%r20+8];" if release else ""
    body = PINGPONG.replace("COUNT", count).replace("FIRST", first).replace("RELEASE", arrive)
    with pytest.raises(DeadlockError) as caught:
        run(body, block=64, static=64)
    assert said in str(caught.value)


def test_the_same_ring_without_a_fault_ends():
    arrive = "mbarrier.arrive.shared.b64 _, [%r20+8];"
    body = PINGPONG.replace("COUNT", "32").replace("FIRST", "1").replace("RELEASE", arrive)
    assert run(body, block=64, static=64).findings == []


def test_a_deadlock_says_who_is_missing_at_the_clusters_barrier():
    body = """mov.u32 %r25, %cluster_ctarank; setp.eq.u32 %p1, %r25, 0; @%p1 bra MEET; bar.sync 1, 64; bra END;
    MEET: barrier.cluster.arrive; barrier.cluster.wait; END:"""
    with pytest.raises(DeadlockError) as caught:
        run(body, block=32, grid=2, cluster=2)
    lines = str(caught.value).splitlines()
    assert "  barrier of the cluster, phase 0: 32 of 64 threads have arrived, 0 have ended" in lines
    assert "    CTA (0, 0, 0): arrived warp 0 (waits); not there none" in lines
    assert "    CTA (1, 0, 0): arrived none; not there warp 0 (waits)" in lines
    assert "  barrier 1 of CTA (1, 0, 0): 32 of 64 threads have arrived" in lines


def test_a_livelock_is_given_up():
    with pytest.raises(DeadlockError, match="livelock"):
        run("L: bar.warp.sync -1; bra L;", policy=Policy(limit=1000))


def test_a_trap():
    with pytest.raises(EmulatorError, match=r"trap was executed\n.*PTX line"):
        run("trap;")


def test_counts_and_coverage():
    body = "mov.u32 %r0, %ctaid.x; setp.eq.u32 %p0, %r0, 9; @%p0 bra A; bar.sync 0; bra B; A: bar.sync 1; B:"
    found = run(body, grid=3, block=64).machine
    assert found.counts.instructions["bar.sync"] == 6
    assert [i.text for i in found.counts.unreached(found.program.kernel)] == ["bar.sync 1"]


def test_registers_are_not_changed_in_place():
    copy = "mov.u32 %r0, %r30; mov.u32 %r1, %r0; setp.lt.u32 %p0, %r30, 5;"
    for change in ("@%p0 mov.u32 %r1, 40;", "@%p0 ld.global.u32 %r1, [%d0];", "@%p0 bra A; mov.u32 %r1, 1; A:"):
        assert result(copy + change) == list(range(32))


def test_too_many_findings_are_given_up():
    many = "mov.u32 %r90, smem; mov.u32 %r1, %warpid;"
    many += "".join(f"st.shared.u32 [%r90+{4 * i}], %r1;\n" for i in range(60))
    with pytest.raises(EmulatorError, match="50 different findings"):
        run(many, shared=1024, block=64)


def test_a_cluster_must_divide_the_grid():
    with pytest.raises(EmulatorError, match="not a whole number of clusters"):
        run("ret;", grid=3, cluster=2)


MEET = """
.version 8.7
.target sm_90a
.visible .entry meet(.param .u64 count, .param .u64 out)
{
  .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %d<5>;
  ld.param.u64 %d0, [count];
  ld.param.u64 %d1, [out];
  mov.u32 %r0, %tid.x;
  mov.u32 %r6, %ctaid.x;
  setp.ne.u32 %p0, %r0, 0;
  @%p0 bra after;
  atom.add.release.gpu.global.u32 %r1, [%d0], 1;
spin:
  ld.acquire.gpu.global.u32 %r2, [%d0];
  setp.lt.u32 %p1, %r2, 5;
  @%p1 bra spin;
after:
  bar.sync 0;
  ld.acquire.gpu.global.u32 %r3, [%d0];
  mul.wide.u32 %d2, %r6, 4;
  add.u64 %d1, %d1, %d2;
  st.global.b32 [%d1], %r3;
  ret;
}
"""


@pytest.mark.parametrize("policy", [Policy(), Policy(pick="random", seed=1)], ids=["in turn", "random"])
def test_blocks_that_wait_for_each_other_take_turns(policy: Policy) -> None:
    """A barrier of the whole grid: each block polls a counter that all others raise."""
    count, out = np.zeros(1, np.uint32), np.zeros(5, np.uint32)
    emulate_ptx(MEET, grid=5, block=64, args=[count, out], policy=policy).raise_for_findings()
    assert out.tolist() == [5] * 5


def test_a_poll_is_known_by_its_qualifiers_in_any_order() -> None:
    """ptxas takes the state space before the order, too."""
    text = MEET.replace("ld.acquire.gpu.global.u32", "ld.global.acquire.gpu.b32")
    count, out = np.zeros(1, np.uint32), np.zeros(5, np.uint32)
    emulate_ptx(text, grid=5, block=64, args=[count, out], policy=Policy(limit=100_000)).raise_for_findings()
    assert out.tolist() == [5] * 5


def test_a_timeline_keeps_the_clusters_that_take_turns_apart() -> None:
    """A block's copy ends in that block's time, while other blocks begin."""
    copy = "cp.async.ca.shared.global [buf], [%d1], 4; cp.async.commit_group;\n  mov.u32 %r0, %tid.x;"
    text = MEET.replace("mov.u32 %r0, %tid.x;", copy).replace(
        "  bar.sync 0;", "  cp.async.wait_all;\n  bar.sync 0;"
    ).replace("  .reg .pred", "  .shared .align 16 .b8 buf[16];\n  .reg .pred")  # fmt: skip
    count, out = np.zeros(1, np.uint32), np.zeros(5, np.uint32)
    done = emulate_ptx(text, grid=5, block=1, args=[count, out], timeline=True)
    (launch,) = done.launches
    assert launch.timeline is not None
    copies = {row.cta: span for row in launch.timeline.rows for span in row.spans if span.kind == "load"}
    waits = {row.cta: row.spans[-1].end for row in launch.timeline.rows if row.warp == 0}
    assert len(copies) == 5
    assert all(span.end > span.begin + 1 and span.end <= waits[cta] for cta, span in copies.items()), (copies, waits)


def test_lint_does_not_end_a_run() -> None:
    found = Findings(limit=3)
    for line, what in enumerate("abcdefghi"):
        found.add(Finding("lint", f"legal and suspicious: {what}", line=line))
        found.add(Finding("race", "two writes", line=min(line, 1)))
    assert len(found.found) == 11 and not found.full
    found.add(Finding("exit", "left under way", line=1))
    assert found.full


def test_a_lint_lists_the_lines_of_an_unrolled_loop() -> None:
    """One cause is one lint: other places, lanes and numbers do not count; another opcode or remedy does."""
    found, source = Findings(), [SourceLine("f.py", line) for line in (3, 3, 4, 5, 6, 7, 8)]
    says = (
        "ld.x{0} at PTX line {0} (f.py:{1}) by CTA (0, 0, {0}) warp {0} lanes 0x{0} meets st at PTX line 9 (a (b.py:3))"
    )
    for line, at in enumerate(source, 10):
        found.add(Finding("lint", says.format(line, at.line), line, source=at, orders="a wait"))
        found.add(Finding("race", "one", line, source=at))
    (lint,) = [one for one in found.found if one.kind == "lint"]
    assert lint.sites == tuple(enumerate(source, 10)) and len(found.found) == 8
    assert "also at 6 more instructions: f.py:3; f.py:4; f.py:5; f.py:6; and 2 more lines\n  a wait" in str(lint)
    found.add(Finding("lint", says.replace("meets st", "meets red").format(20, 1), 20, orders="a wait"))
    found.add(Finding("lint", says.format(21, 1), 21, orders="a fence"))
    assert sum(one.kind == "lint" for one in found.found) == 3
    assert joined([lint, replace(lint, line=30)]).also == (*lint.also, (30, source[0]))


def test_a_grids_workspace_is_memory_beside_the_heap():
    """CUDA's grid barrier counts arrivals in the words that %envreg1 and %envreg2 lead to."""
    result = run(
        "mov.u32 %r0, %envreg1; mov.u32 %r1, %envreg2; mov.b64 %d0, {%r1, %r0};"
        "atom.add.release.gpu.u32 %r2, [%d0+4], 1; mov.u32 %r3, %tid.x; mul.wide.u32 %d1, %r3, 4;"
        "add.u64 %d1, %d1, %out; st.global.u32 [%d1], %r2;",
        {"out": np.zeros(32, np.uint32)},
        block=32,
    )
    assert sorted(result["out"].tolist()) == list(range(32))


def test_lanes_that_have_met_again_keep_no_registers(monkeypatch):
    """Events on record keep their fibers: two for every turn of this loop."""
    started = []
    start = Cluster.start
    monkeypatch.setattr(
        Cluster, "start", lambda self, fiber, parent: (started.append(fiber), start(self, fiber, parent))[1]
    )
    out = np.zeros(32, np.uint32)
    run(
        f"""{LANE} mov.u32 %r0, 0; add.s64 %d0, %d31, %out; setp.lt.u32 %p0, %r31, 7;
        LOOP: @%p0 bra LOW; st.shared.b32 [smem+4], %r0; bra MEET; LOW: st.shared.b32 [smem], %r0; MEET:
        add.u32 %r0, %r0, 1; setp.lt.u32 %p1, %r0, 9; @%p1 bra LOOP; st.global.b32 [%d0], %r0;""",
        {"out": out},
        shared=64,
    )
    assert (out == 9).all()
    children = [fiber for fiber in started if fiber.parent is not None]
    assert len(children) == 18
    assert not any(fiber.registers or hasattr(fiber, "knows") for fiber in children)
