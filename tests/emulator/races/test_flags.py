"""Flags between the blocks of a cluster: order and scope of the write, the read, and the fences beside them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.run_ptx import LANE, Result, run

MEET = "barrier.cluster.arrive; barrier.cluster.wait;"
# Block 0 writes into block 1's shared memory and sets a flag there; block 1 polls the flag and reads.
SEND = """mov.u32 %r30, smem; mov.u32 %r29, %cluster_ctarank; setp.eq.u32 %p31, %r31, 0;
shl.b32 %r28, %r31, 2; add.u32 %r27, %r30, %r28; mov.u32 %r1, 0; @%p31 st.shared.b32 [%r30+512], %r1; {meet}
setp.ne.u32 %p0, %r29, 0; @%p0 bra READ;
mapa.shared::cluster.u32 %r2, %r27, 1; st.shared::cluster.b32 [%r2], %r31; bar.sync 0; @!%p31 bra END;
mapa.shared::cluster.u32 %r3, %r30, 1; mov.u32 %r4, 1; {tell} bra END;
READ: @!%p31 bra GO; POLL: {ask} setp.eq.u32 %p1, %r5, 0; @%p1 bra POLL; {then}
GO: bar.sync 0; ld.shared.b32 %r6, [%r27]; add.u64 %d0, %o, %d31; st.global.b32 [%d0], %r6; END: {meet}"""


def send(tell: str, ask: str, then: str = "") -> Result:
    body = f"{LANE} {SEND.format(meet=MEET, tell=tell, ask=ask, then=then)}"
    found = run(body, {"o": np.zeros(32, np.uint32)}, grid=2, cluster=2, shared=1024)
    assert found["o"].tolist() == list(range(32))
    return found


def store(words: str) -> str:
    return f"st.{words}.shared::cluster.b32 [%r3+512], %r4;"


def load(words: str) -> str:
    return f"ld.{words}.shared::cluster.b32 %r5, [%r30+512];"


RELEASE, ACQUIRE = store("release.cluster"), load("acquire.cluster")
WRITE, READ = store("relaxed.cluster"), load("relaxed.cluster")


def fence(words: str) -> str:
    return f"fence.{words};"


@pytest.mark.parametrize(
    ("tell", "ask", "then"),
    [(RELEASE, ACQUIRE, ""), (RELEASE, READ, fence("acquire.cluster")),
     (fence("acq_rel.cluster") + WRITE, READ, fence("acq_rel.cluster")),
     (fence("release.cluster") + WRITE, READ, fence("acquire.cluster")), (fence("sc.gpu") + WRITE, ACQUIRE, ""),
     ("red.release.gpu.shared::cluster.add.u32 [%r3+512], %r4;", ACQUIRE, ""),
     # A release pattern may end with a later strong store of the same thread.
     (RELEASE + WRITE, ACQUIRE, "")],
)  # fmt: skip
def test_a_flag_orders(tell: str, ask: str, then: str) -> None:
    assert send(tell, ask, then).kinds == []


@pytest.mark.parametrize(
    ("tell", "ask", "then"),
    [(WRITE, READ, ""), (WRITE, ACQUIRE, ""), (RELEASE, READ, ""),
     # A scope of .cta does not reach the other block.
     (store("release.cta"), ACQUIRE, ""), (RELEASE, load("acquire.cta"), ""),
     (RELEASE, load("relaxed.cta"), fence("acquire.cluster")),
     (fence("acq_rel.cta") + WRITE, READ, fence("acq_rel.cluster")),
     (fence("acq_rel.cluster") + WRITE, READ, fence("acq_rel.cta")),
     (fence("acq_rel.cluster") + store("relaxed.cta"), READ, fence("acq_rel.cluster")),
     # A fence of one direction does not do for the other.
     (fence("acquire.cluster") + WRITE, READ, fence("acquire.cluster")),
     (fence("release.cluster") + WRITE, READ, fence("release.cluster"))],
)  # fmt: skip
def test_a_flag_does_not_order(tell: str, ask: str, then: str) -> None:
    assert set(send(tell, ask, then).kinds) == {"race"}


def test_a_scope_of_the_block_orders_its_threads() -> None:
    body = f"""{LANE} mov.u32 %r30, smem; and.b32 %r9, %r31, 31; shl.b32 %r28, %r9, 2; add.u32 %r27, %r30, %r28;
    setp.eq.u32 %p31, %r9, 0; setp.eq.u32 %p30, %r31, 0; mov.u32 %r1, 0; @%p30 st.shared.b32 [%r30+512], %r1;
    bar.sync 0;
    setp.ge.u32 %p0, %r31, 32; @%p0 bra READ; st.shared.b32 [%r27], %r31; bar.warp.sync -1; @!%p31 bra END;
    {{tell}} bra END;
    READ: @!%p31 bra GO; POLL: {{ask}} setp.eq.u32 %p1, %r5, 0; @%p1 bra POLL;
    GO: bar.warp.sync -1; ld.shared.b32 %r6, [%r27]; mul.wide.u32 %d1, %r9, 4; add.u64 %d0, %o, %d1;
    st.global.b32 [%d0], %r6; END:"""

    def found(tell: str, ask: str) -> list[str]:
        text = body.format(tell=tell, ask=f"ld.{ask}.shared.b32 %r5, [%r30+512];")
        return run(text, {"o": np.zeros(32, np.uint32)}, block=64, shared=1024).kinds

    tell = "mov.u32 %r4, 1; st.{}.shared.b32 [%r30+512], %r4;"
    assert found(tell.format("release.cta"), "acquire.cta") == []
    assert set(found(tell.format("relaxed.cta"), "acquire.cta")) == {"race"}


# Block 0 writes x and sets the flag to 1. Block 1 sees that and sets it to 2. Block 2 waits for 2 and reads x.
RELAY = """mov.u32 %r9, %ctaid.x; mov.u32 %r4, 1; mov.u32 %r8, 2; setp.ne.u32 %p0, %r9, 0; @%p0 bra SECOND;
st.global.b32 [%x], %r8; st.release.gpu.global.b32 [%f], %r4; bra END;
SECOND: setp.ne.u32 %p0, %r9, 1; @%p0 bra THIRD; ONE: ld.relaxed.gpu.global.b32 %r5, [%f]; setp.eq.u32 %p1, %r5, 0;
@%p1 bra ONE; {relay} bra END;
THIRD: TWO: ld.acquire.gpu.global.b32 %r5, [%f]; setp.lt.u32 %p1, %r5, 2; @%p1 bra TWO; ld.global.b32 %r6, [%x];
st.global.b32 [%o], %r6; END:"""


@pytest.mark.parametrize("cluster", [1, 3])
@pytest.mark.parametrize(
    ("relay", "kinds"),
    [("red.relaxed.gpu.global.add.u32 [%f], %r4;", []),  # an atomic operation keeps what the word's release has told
     ("st.relaxed.gpu.global.b32 [%f], %r8;", ["race"]),  # another thread's store does not
     ("st.release.gpu.global.b32 [%f], %r8;", ["race"]),  # and this thread has not acquired it
     ("fence.acq_rel.gpu; st.relaxed.gpu.global.b32 [%f], %r8;", [])],
)  # fmt: skip
def test_a_word_that_another_thread_writes_again(cluster: int, relay: str, kinds: list[str]) -> None:
    buffers = {name: np.zeros(1, np.uint32) for name in "xfo"}
    found = run(RELAY.format(relay=relay), buffers, block=1, grid=3, cluster=cluster)
    assert found["o"][0] == 2 and found.kinds == kinds
