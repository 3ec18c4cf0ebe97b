"""Global memory between warps, blocks and clusters: what orders two accesses, and what does not."""

from __future__ import annotations

import numpy as np
import pytest

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
        assert "bar.sync of both warps between the two orders them" in races[0].orders
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
RELAXED, VOLATILE = "red.relaxed.gpu.global.add.u32 [%flag], 1;", "ld.volatile.global.b32 %r3, [%flag];"


@pytest.mark.parametrize(
    ("tell", "ask", "races"),
    [(RELEASE, ACQUIRE, 0), ("fence.acq_rel.gpu; " + RELAXED, VOLATILE, 0), (RELAXED, ACQUIRE, 1),
     ("membar.gl; st.volatile.global.b32 [%flag], 1;", ACQUIRE, 0)],
)  # fmt: skip
def test_blocks_that_exchange_through_a_flag(tell, ask, races):
    body = BLOCKS.format(tid=LANE, write=WRITE, read=READ, tell=tell, ask=ask)
    seen = found(body, block=64, grid=2)
    assert len(seen) == races and all("orders it" not in one.orders for one in seen)
    if seen:
        assert "CTA (1, 0, 0)" in seen[0].message and "acquires" in seen[0].message


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
