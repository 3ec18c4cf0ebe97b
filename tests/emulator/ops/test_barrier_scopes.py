"""Scopes and semantics of mbarriers and fences: what a relaxed or a narrow operation orders, and what it does not.

PTX ISA, "mbarrier.arrive", "mbarrier.try_wait", "membar", "Morally strong operations".

A release and an acquire order two threads only where the scope of each has the other thread.
"""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.emulator.findings import Finding
from layoutgemm.emulator.machine.interpreter import Policy
from tests.emulator.run_ptx import run

MEET = "barrier.cluster.arrive; barrier.cluster.wait;"
STRICT = Policy(strict=True)
# Block 0 writes its shared memory, arrives at block 1's mbarrier; block 1 waits, and reads block 0's memory.
SEND = """mov.u32 %r30, %tid.x; mov.u32 %r20, fixed; mov.u32 %r29, smem; mov.u32 %r25, %cluster_ctarank;
setp.eq.u32 %p0, %r30, 0; mad.lo.u32 %r28, %r30, 4, %r29; setp.ne.u32 %p1, %r25, 0;
@%p0 mbarrier.init.shared.b64 [%r20], 32; fence.mbarrier_init.release.cluster; {meet} @%p1 bra WAITS;
{write} {before} mapa.shared::cluster.u32 %r22, %r20, 1; {arrive} bra END;
WAITS: L: {wait} @!%p2 bra L; {after} mapa.shared::cluster.u32 %r23, %r28, 0; {read} END: {meet}"""
WRITE, READ = "st.shared.u32 [%r28], %r30;", "ld.shared::cluster.u32 %r0, [%r23];"


def arrive(words: str) -> str:
    return f"mbarrier.arrive{words}.shared::cluster.b64 _, [%r22];"


def wait(words: str) -> str:
    return f"mbarrier.try_wait.parity{words}.shared::cta.b64 %p2, [%r20], 0;"


WIDE, WIDE_WAIT = arrive(".release.cluster"), wait(".acquire.cluster")


def sent(
    arriving: str, waiting: str, before: str = "", after: str = "", policy: Policy | None = None, **texts: str
) -> list[Finding]:
    chosen = {"write": WRITE, "read": READ, **texts}
    body = SEND.format(meet=MEET, arrive=arriving, wait=waiting, before=before, after=after, **chosen)
    given = {"o": np.zeros(32, np.uint32)}
    return run(body, given, grid=2, cluster=2, shared=1024, static=64, policy=policy).findings


def test_the_scope_of_the_cluster_orders_two_blocks() -> None:
    for policy in (None, STRICT, Policy(pick="random", seed=1)):
        assert sent(WIDE, WIDE_WAIT, policy=policy) == []


@pytest.mark.parametrize(
    ("arriving", "waiting"),
    [(arrive(""), WIDE_WAIT), (arrive(".release.cta"), WIDE_WAIT), (WIDE, wait("")), (WIDE, wait(".acquire.cta")),
     (arrive(""), wait(""))],
)  # fmt: skip
def test_the_scope_of_one_block_does_not(arriving: str, waiting: str) -> None:
    """The default is .cta. CUTLASS's remote arrivals have it, so it is lint, and a race under `strict`."""
    (lint,) = sent(arriving, waiting)
    assert lint.kind == "lint" and "one block's scope" in lint.message and "Policy(strict=True)" in lint.message
    assert "mbarrier.arrive.release.cluster" in lint.orders
    assert [one.kind for one in sent(arriving, waiting, policy=STRICT)] == ["race"]


def test_another_barrier_of_the_clusters_scope_orders_what_a_narrow_one_did_not() -> None:
    assert sent(arrive(""), wait(""), policy=STRICT) != []
    # Both meet at the cluster's barrier after the arrival: that orders the accesses.
    assert sent(arrive("") + MEET, wait(""), after=MEET, policy=STRICT) == []


def test_global_memory_by_an_mbarrier_of_one_blocks_scope() -> None:
    lane = "mul.wide.u32 %d1, %r30, 4; add.u64 %d0, %o, %d1;"
    texts = {"write": f"{lane} st.global.u32 [%d0], %r30;", "read": f"{lane} ld.global.u32 %r0, [%d0];"}
    assert sent(WIDE, WIDE_WAIT, policy=STRICT, **texts) == []
    (lint,) = sent(arrive(""), WIDE_WAIT, **texts)
    assert lint.kind == "lint" and "mbarrier" in lint.message
    assert [one.kind for one in sent(arrive(""), WIDE_WAIT, policy=STRICT, **texts)] == ["race"]


def test_what_one_block_has_read_and_another_writes_over_is_lint_too() -> None:
    texts = {"write": "ld.shared.u32 %r0, [%r28];", "read": "st.shared::cluster.u32 [%r23], %r30;"}
    for policy, kind in ((None, "lint"), (STRICT, "race")):
        found, unwritten = sent(arrive(""), WIDE_WAIT, policy=policy, **texts)
        assert (found.kind, unwritten.kind) == (kind, "uninitialised") and "Policy(strict=True)" in found.message
        assert [one.kind for one in sent(WIDE, WIDE_WAIT, policy=policy, **texts)] == ["uninitialised"]


RELAXED, RELAXED_WAIT = arrive(".relaxed.cluster"), wait(".relaxed.cluster")


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [("fence.acq_rel.cluster;", "fence.acq_rel.cluster;", []),
     ("fence.release.cluster;", "fence.acquire.cluster;", []),
     ("fence.release.sync_restrict::shared::cta.cluster;", "fence.acquire.sync_restrict::shared::cluster.cluster;", []),
     ("", "fence.acq_rel.cluster;", ["race"]), ("fence.acq_rel.cluster;", "", ["race"]),
     ("fence.acq_rel.cta;", "fence.acq_rel.cluster;", ["race"]),
     ("fence.acq_rel.cluster;", "fence.acq_rel.cta;", ["race"]),
     ("fence.acquire.cluster;", "fence.acquire.cluster;", ["race"]),
     ("fence.release.cluster;", "fence.release.cluster;", ["race"])],
)  # fmt: skip
def test_relaxed_operations_order_by_the_fences_around_them(before: str, after: str, kinds: list[str]) -> None:
    assert [one.kind for one in sent(RELAXED, RELAXED_WAIT, before, after)] == kinds


def test_a_fence_beside_an_operation_that_is_not_relaxed() -> None:
    assert sent(WIDE, RELAXED_WAIT, after="fence.acquire.cluster;") == []
    assert sent(RELAXED, WIDE_WAIT, before="fence.release.cluster;") == []
    assert [one.kind for one in sent(WIDE, RELAXED_WAIT)] == ["race"]
    assert [one.kind for one in sent(RELAXED, WIDE_WAIT)] == ["race"]


def test_a_fence_of_shared_memory_alone_orders_no_global_memory() -> None:
    lane = "mul.wide.u32 %d1, %r30, 4; add.u64 %d0, %o, %d1;"
    texts = {"write": f"{lane} st.global.u32 [%d0], %r30;", "read": f"{lane} ld.global.u32 %r0, [%d0];"}
    full, acquire = "fence.acq_rel.cluster;", "fence.acquire.sync_restrict::shared::cluster.cluster;"
    release = "fence.release.sync_restrict::shared::cta.cluster;"
    assert sent(RELAXED, RELAXED_WAIT, full, full, **texts) == []
    assert sent(RELAXED, RELAXED_WAIT, full, acquire + full, **texts) == []
    assert [one.kind for one in sent(RELAXED, RELAXED_WAIT, release, full, **texts)] == ["race"]
    assert [one.kind for one in sent(RELAXED, RELAXED_WAIT, full, acquire, **texts)] == ["race"]


# A buffer of block 0 is read by it, then block 1 refills it by a bulk copy from its own shared memory.
COPY = """@%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r23], [%r29], 128, [%r21];"""
REFILL = """mov.u32 %r30, %tid.x; mov.u32 %r20, fixed; mov.u32 %r29, smem; mov.u32 %r25, %cluster_ctarank;
setp.eq.u32 %p0, %r30, 0; mad.lo.u32 %r28, %r30, 4, %r29; setp.ne.u32 %p1, %r25, 0; st.shared.u32 [%r28], %r30;
fence.proxy.async.shared::cta; bar.sync 0;
@%p0 mbarrier.init.shared.b64 [%r20], 32; @%p0 mbarrier.init.shared.b64 [%r20+8], 1;
fence.mbarrier_init.release.cluster; {meet} @%p1 bra WAITS;
@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r20+8], 128; ld.shared.u32 %r0, [%r28]; {before}
mapa.shared::cluster.u32 %r22, %r20, 1; {arrive} M: mbarrier.try_wait.parity.shared.b64 %p2, [%r20+8], 0; @!%p2 bra M;
bra END;
WAITS: L: {wait} @!%p2 bra L; {after} mapa.shared::cluster.u32 %r23, %r29, 0; mapa.shared::cluster.u32 %r21, %r20, 0;
add.u32 %r21, %r21, 8; {copy} END: {meet}"""


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;",
      "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;", []),
     ("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;", "", ["race"]),
     ("", "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;", ["race"])],
)  # fmt: skip
def test_proxy_fences_of_one_direction_go_with_relaxed_operations(before: str, after: str, kinds: list[str]) -> None:
    """PTX ISA, "membar / fence", its example of .async::generic: a buffer is released to another block's copies."""
    texts = {"arrive": RELAXED, "wait": RELAXED_WAIT, "meet": MEET, "copy": COPY, "before": before, "after": after}
    found = run(REFILL.format(**texts), {}, grid=2, cluster=2, shared=1024, static=64, policy=STRICT)
    assert found.kinds == kinds


def test_a_proxy_fence_of_shared_memory_leaves_global_memory_out() -> None:
    store = "mov.u32 %r30, %tid.x; mul.wide.u32 %d1, %r30, 4; add.u64 %d0, %a, %d1; setp.eq.u32 %p0, %r30, 0;"
    store += "@%p0 mbarrier.init.shared.b64 [fixed], 1; st.global.u32 [%d0], %r30; FENCE bar.sync 0;"
    store += "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [fixed], 128; @%p0 cp.async.bulk.shared::cluster.global"
    store += ".mbarrier::complete_tx::bytes [smem], [%a], 128, [fixed];"
    store += "L: mbarrier.try_wait.parity.shared.b64 %p1, [fixed], 0; @!%p1 bra L;"
    words = "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;"
    for fence, kinds in (("fence.proxy.async;", []), (words, ["race"])):
        given = {"a": np.zeros(32, np.uint32)}
        assert run(store.replace("FENCE", fence), given, shared=1024, static=64).kinds == kinds


def test_an_arrival_without_completion_that_completes() -> None:
    body = "mov.u32 %r30, %tid.x; setp.eq.u32 %p0, %r30, 0; @%p0 mbarrier.init.shared.b64 [smem], COUNT; bar.sync 0;"
    body += "@%p0 mbarrier.arrive.noComplete.shared.b64 %d1, [smem], 1;"
    body += "@%p0 mbarrier.arrive.shared.b64 _, [smem], MORE;"
    assert run(body.replace("COUNT", "2").replace("MORE", "1"), {}, shared=64).kinds == []
    found = run(body.replace("COUNT", "1").replace("MORE", "1"), {}, shared=64).findings
    assert [one.kind for one in found] == ["protocol"] and "ends phase 0" in found[0].message
