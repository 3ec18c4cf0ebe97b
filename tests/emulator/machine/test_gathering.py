"""Lanes that took different ways execute one instruction together, or are reported."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Policy
from tests.emulator.run_ptx import run

HEAD = (
    "mov.u32 %r30, %tid.x; mul.wide.u32 %d30, %r30, 4; add.s64 %d0, %out, %d30; mov.u32 %r29, smem; "
    "mad.lo.u32 %r28, %r30, 4, %r29; mov.u32 %r0, 0; setp.eq.u32 %p0, %r30, 0; setp.lt.u32 %p1, %r30, 16; "
)
TAIL = "END: st.global.u32 [%d0], %r0;"


def go(body: str, threads: int = 32, **more) -> tuple[list[str], list[int]]:
    """(kinds of findings, each thread's %r0)."""
    out = np.zeros(threads, np.uint32)
    found = run(HEAD + body + TAIL, {"out": out}, block=threads, shared=1024, **more)
    return found.kinds, out.tolist()


# Lane 0 jumps over the test that the other lanes make, to the same barrier, as nvcc compiles a lock's release.
BARRIER = "@%p0 bra A; setp.eq.u32 %p2, %r30, 99; @%p2 bra END; {also} A: {barrier} mov.u32 %r0, 7;"


@pytest.mark.parametrize("pick", ["in turn", "random"])
@pytest.mark.parametrize("barrier", ["bar.sync 0;", "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"])
def test_lanes_come_to_one_barrier_by_different_ways(barrier, pick):
    policy = Policy(pick=pick, lanes="strict")
    assert go(BARRIER.format(barrier=barrier, also=""), 64, policy=policy) == ([], [7] * 64)
    # The barrier orders the lanes' accesses: lane 0 reads what lane 31 wrote.
    read = barrier + "xor.b32 %r3, %r30, 31; mad.lo.u32 %r3, %r3, 4, %r29; ld.shared.u32 %r5, [%r3];"
    write = "st.shared.u32 [%r28], %r30;"
    kinds, _ = go(write + BARRIER.format(barrier=read, also=""), 64, policy=policy)
    assert kinds == []
    kinds, _ = go(write + BARRIER.format(barrier=read.replace(barrier, ""), also=""), 64, policy=policy)
    assert "race" in kinds


def test_lanes_that_go_to_two_barriers_diverge():
    assert go("@%p0 bra A; bar.sync 0; bra END;\nA: bar.sync 0;", 64)[0] == ["divergence"] * 2
    assert go("@%p0 ret; bar.sync 0; mov.u32 %r0, 1;") == ([], [0] + [1] * 31)


NESTED = "@%p0 bra X; setp.lt.u32 %p2, %r30, 4; @%p2 bra X; setp.lt.u32 %p3, %r30, 9; @%p3 bra X; mov.u32 %r1, 5; X:"


def test_lanes_of_nested_branches_come_together():
    sums = "redux.sync.add.u32 %r0, %r30, -1;"
    assert go(f"mov.u32 %r1, 0; {NESTED} {sums}") == ([], [496] * 32)
    # The mask names lanes of two branches, and the other lanes go elsewhere.
    some = "@%p0 bra A; setp.lt.u32 %p2, %r30, 4; @!%p2 bra END; A: redux.sync.add.u32 %r0, %r30, 0xF;"
    assert go(some) == ([], [6] * 4 + [0] * 28)
    assert go(some.replace("0xF;", "0x1F;"))[0] == ["divergence"]


# Each half of the warp has its own instruction, with its own registers.
HALVES = "@%p1 bra A; add.u32 %r1, %r30, 100; {} bra END; A: mov.u32 %r5, %r30; {} mov.u32 %r0, %r6;"


def halves(one: str, other: str) -> tuple[list[str], list[int]]:
    return go(HALVES.format(one, other))


def test_instructions_with_a_mask_meet_at_different_places():
    swap = "shfl.sync.bfly.b32 %r{}, %r{}, 16, 31, -1;"
    assert halves(swap.format(0, 1), swap.format(6, 5)) == ([], [*range(116, 132), *range(16)])
    votes = "setp.gt.u32 %p{0}, %r{1}, 10; vote.sync.ballot.b32 %r{2}, %p{0}, -1;"
    assert halves(votes.format(4, 1, 0), votes.format(5, 5, 6)) == ([], [0xFFFFF800] * 32)
    order = "st.shared.u32 [%r28], %r30; bar.warp.sync -1; xor.b32 %r2, %r30, 16; mad.lo.u32 %r2, %r2, 4, %r29;"
    order += "ld.shared.u32 %r{}, [%r2];"
    assert halves(order.format(0), order.format(6)) == ([], [*range(16, 32), *range(16)])
    # Another mode, mask or operand is another instruction.
    for change in (("bfly", "down"), ("-1", "0xFFFF0000"), ("16,", "%r9,")):
        kinds, _ = halves(swap.format(0, 1), "mov.u32 %r9, 16;" + swap.format(6, 5).replace(*change))
        assert "divergence" in kinds, change


def test_products_of_lanes_on_different_ways():
    product = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r1,%r2}, {%r3}, {%f4,%f5,%f6,%f7};"
    zeros = "".join(f"mov.f32 %f{n}, 0f00000000;" for n in range(4, 8))
    ones = "mov.u32 %r2, 0x3C003C00; mov.u32 %r3, 0x3C003C00;"
    # Lane 0 has rows of twos; a second product follows at once.
    body = f"{zeros}{ones} @%p0 bra A; mov.u32 %r1, 0x3C003C00; bra B; A: mov.u32 %r1, 0x40004000; @%p0 bra B; bra END;"
    body += f"B: {product} {product.replace('%f3}', '%f8}')} {product.replace('%f3}', '%f9}')} mov.b32 %r0, %f0;"
    kinds, found = go(body)
    values = np.array(found, np.uint32).view(np.float32)
    assert kinds == [] and values.tolist() == [10.0] * 4 + [8.0] * 28


def test_a_lane_that_waits_comes_later():
    """Lane 0 waits for another warp, and the other lanes wait for lane 0."""
    late = (
        "setp.gt.u32 %p3, %r30, 31; @%p3 bra W; @!%p0 bra S; barrier.sync 1, 32; @!%p0 bra END; S: "
        "shfl.sync.idx.b32 %r0, %r30, 3, 31, -1; bra END; "
        "W: setp.eq.u32 %p4, %r30, 32; @%p4 bra END; barrier.arrive 1, 32;"  # 31 threads of warp 1
    )
    assert go(late, 64) == ([], [3] * 32 + [0] * 32)
