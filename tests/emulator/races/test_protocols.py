"""Protocols between warps and blocks, each right, and wrong in one place at a time."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.errors import DeadlockError, EmulatorError
from tests.emulator.run_ptx import Result, run

START = """mov.u32 %r31, %tid.x; mov.u32 %r30, smem; mov.u32 %r29, %cluster_ctarank; setp.eq.u32 %p31, %r31, 0;
and.b32 %r26, %r31, 31; shl.b32 %r28, %r26, 2; add.u32 %r27, %r30, %r28; mul.wide.u32 %d31, %r26, 4;"""
MEET = "barrier.cluster.arrive; barrier.cluster.wait;"
WANT = np.arange(32, dtype=np.uint32)


def outcome(body: str, want: np.ndarray, buffers: dict[str, np.ndarray], **more: int) -> set[str]:
    """The kinds of the findings; "deadlock" where no thread can go on, "error" where a barrier is misused."""
    try:
        found: Result = run(START + body, {**buffers, "o": np.zeros_like(want)}, shared=1024, **more)
    except DeadlockError:
        return {"deadlock"}
    except EmulatorError:
        return {"error"}
    assert found.findings or (found["o"] == want).all()
    return set(found.kinds)


def changed(body: str, old: str, new: str) -> str:
    assert old in body, old
    return body.replace(old, new, 1)


# Block 0 copies 128 bytes of its shared memory into block 1's, whose mbarrier counts them.
SENDS = f"""@!%p31 bra A; mbarrier.init.shared.b64 [%r30+512], 1; fence.mbarrier_init.release.cluster; A: bar.sync 0;
setp.eq.u32 %p5, %r29, 1; and.pred %p5, %p5, %p31; @%p5 mbarrier.arrive.expect_tx.shared.b64 _, [%r30+512], 128; {MEET}
setp.ne.u32 %p0, %r29, 0; @%p0 bra READ; st.shared.b32 [%r27], %r31; fence.proxy.async.shared::cta; bar.sync 1;
@!%p31 bra END; mapa.shared::cluster.u32 %r2, %r30, 1; add.u32 %r3, %r2, 512;
cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r2], [%r30], 128, [%r3]; bra END;
READ: mov.u32 %r5, 0; W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r30+512], %r5; @!%p1 bra W;
ld.shared.b32 %r6, [%r27]; add.u64 %d0, %o, %d31; st.global.b32 [%d0], %r6; END: {MEET}"""


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("END", "END", set()),
        ("fence.proxy.async.shared::cta;", "", {"race"}),
        ("bar.sync 1;", "", {"race"}),
        ("fence.proxy.async.shared::cta; bar.sync 1;", "bar.sync 1; fence.proxy.async.shared::cta;", {"lint"}),
        (f"128; {MEET}", "128;", {"race"}),
        (f"END: {MEET}", "END:", {"exit"}),
        ("acquire.cluster", "relaxed.cluster", {"race", "exit"}),
        ("@!%p1 bra W;", "", {"race", "exit", "uninitialised"}),
        ("[%r30+512], 128", "[%r30+512], 144", {"deadlock"}),
        ("[%r30+512], 128", "[%r30+512], 112", {"deadlock"}),
    ],
)
def test_a_copy_between_blocks(old: str, new: str, kinds: set[str]) -> None:
    assert outcome(changed(SENDS, old, new), WANT, {}, grid=2, cluster=2) == kinds


# A warp brings seven rows through a ring of two, and another adds them.
RING = """@!%p31 bra A; mbarrier.init.shared.b64 [%r30], 1; mbarrier.init.shared.b64 [%r30+8], 1;
mbarrier.init.shared.b64 [%r30+16], 32; mbarrier.init.shared.b64 [%r30+24], 32; fence.mbarrier_init.release.cluster;
A: bar.sync 0; mov.u32 %r1, 0; setp.ge.u32 %p0, %r31, 32; @%p0 bra CONSUME; @!%p31 bra END;
P: and.b32 %r2, %r1, 1; shl.b32 %r3, %r2, 3; add.u32 %r4, %r30, %r3; shr.u32 %r5, %r1, 1; and.b32 %r5, %r5, 1;
xor.b32 %r6, %r5, 1; PW: mbarrier.try_wait.parity.shared.b64 %p1, [%r4+16], %r6; @!%p1 bra PW;
mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 128; shl.b32 %r7, %r2, 7; add.u32 %r7, %r7, %r30;
mul.wide.u32 %d2, %r1, 128; add.u64 %d2, %x, %d2;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r7+128], [%d2], 128, [%r4];
add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 7; @%p2 bra P; bra END; CONSUME: mov.u32 %r20, 0;
C: and.b32 %r2, %r1, 1; shl.b32 %r3, %r2, 3; add.u32 %r4, %r30, %r3; shr.u32 %r5, %r1, 1; and.b32 %r5, %r5, 1;
CW: mbarrier.try_wait.parity.shared.b64 %p1, [%r4], %r5; @!%p1 bra CW; shl.b32 %r7, %r2, 7; add.u32 %r7, %r7, %r27;
ld.shared.b32 %r8, [%r7+128]; add.u32 %r20, %r20, %r8; fence.proxy.async.shared::cta;
mbarrier.arrive.shared.b64 _, [%r4+16]; add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 7; @%p2 bra C;
add.u64 %d0, %o, %d31; st.global.b32 [%d0], %r20; END:"""


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("END", "END", set()),
        ("fence.proxy.async.shared::cta;", "", {"lint"}),  # PTX asks for it, and practice leaves it out
        ("mbarrier.arrive.shared.b64 _, [%r4+16];", "mbarrier.arrive.relaxed.cta.shared.b64 _, [%r4+16];", {"race"}),
        ("add.u32 %r20, %r20, %r8;", "add.u32 %r20, %r20, %r8; mbarrier.arrive.shared.b64 _, [%r4+16];", {"deadlock"}),
        ("mbarrier.arrive.shared.b64 _, [%r4+16];", "", {"deadlock"}),
        ("xor.b32 %r6, %r5, 1;", "mov.b32 %r6, %r5;", {"deadlock"}),
        ("%p1, [%r4+16], %r6; @!%p1 bra PW;", "%p1, [%r4+16], %r6;", {"error"}),
    ],
)  # fmt: skip
def test_a_ring_of_two(old: str, new: str, kinds: set[str]) -> None:
    rows = np.arange(7 * 32, dtype=np.uint32).reshape(7, 32)
    assert kinds <= outcome(changed(RING, old, new), rows.sum(0).astype(np.uint32), {"x": rows.copy()}, block=64)
    assert kinds or not outcome(RING, rows.sum(0).astype(np.uint32), {"x": rows.copy()}, block=64)


# A thread of each block takes a lock, adds to a word by ordinary accesses, and gives the lock back.
LOCK = """mov.u32 %r9, 1; mov.u32 %r10, 0; @!%p31 bra END;
L: atom.acquire.gpu.global.cas.b32 %r11, [%l], %r10, %r9; setp.ne.u32 %p1, %r11, 0; nanosleep.u32 20; @%p1 bra L;
ld.global.b32 %r12, [%o]; add.u32 %r12, %r12, 1; st.global.b32 [%o], %r12; st.release.gpu.global.b32 [%l], %r10; END:"""


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("END", "END", set()),
        ("st.release.gpu.global.b32 [%l], %r10;", "membar.gl; atom.global.exch.b32 %r13, [%l], %r10;", set()),
        ("st.release.gpu", "st.relaxed.gpu", {"race"}),
        ("st.release.gpu", "st.release.cta", {"race"}),
        ("atom.acquire.gpu", "atom.relaxed.gpu", {"lint"}),  # PTX orders nothing by it, older code counts on it
    ],
)
def test_a_lock(old: str, new: str, kinds: set[str]) -> None:
    want, lock = np.array([4], np.uint32), np.zeros(1, np.uint32)
    assert outcome(changed(LOCK, old, new), want, {"l": lock}, grid=4) == kinds
