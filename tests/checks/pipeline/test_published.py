"""The faulty loops of published guides, refuted by an interleaving, and their repairs, proven.

The guide "From Zero to 800 TFLOPS" (C16, C21 to C24) and the pyptx Hopper walkthrough (C27); the numbers are the rows
of this project's list of claims.
"""

from __future__ import annotations

from dataclasses import replace

from layoutgemm.checks import (
    Buffer,
    Cursor,
    Interleaving,
    Mbarrier,
    NamedBarrier,
    Pipeline,
    Role,
    cluster_ring,
    ring,
    self_loading,
)
from layoutgemm.checks.pipeline.actions import (
    Advance,
    Arrive,
    ArriveExpect,
    Commit,
    FenceInit,
    FenceProxy,
    ForK,
    ForTiles,
    If,
    InitBarriers,
    Mma,
    OnRank,
    Program,
    Read,
    Reset,
    Sync,
    TmaLoad,
    TmaStore,
    Wait,
    WaitGroup,
    Write,
)

STAGES = 4
BYTES = 32768
MULTIPLY: Program = (Wait("full", "read"), Mma(("ab",), "read", "acc"), Commit("wgmma"), WaitGroup("wgmma"))


def refuted(pipeline: Pipeline, kind: str, *parts: str) -> Interleaving:
    """The interleaving, which must be of this kind and tell these parts."""
    found = pipeline.prove()
    assert isinstance(found, Interleaving), f"{pipeline.name} was proven"
    assert found.kind == kind, str(found)
    for part in parts:
        assert part in str(found), f"{part!r} is not in\n{found}"
    return found


# ------------------------------------------------------------------------- C21: section 6.2, producer and consumer loop
def guide_ring(first_wait_passes: bool, one_thread: bool, flips: bool) -> Pipeline:
    """Section 6.2 as printed, or with some of its three faults repaired."""
    by = "one" if one_thread else "lanes"
    produce: Program = (
        Wait("empty", "load", flip=first_wait_passes, by="one" if one_thread else "warp"),
        TmaLoad("ab", "load", "full", by=by),
        ArriveExpect("full", "load", by=by),
        Advance("load", flip=flips),
    )
    consume: Program = (*MULTIPLY, Arrive("empty", "read"), Advance("read", flip=flips))
    return Pipeline(
        "guide 6.2",
        (
            Role("producer", 4, (InitBarriers(), FenceInit(), Sync("cta"), ForK(produce)), (Cursor("load", STAGES),)),
            Role("math", 4, (Sync("cta"), ForK(consume), Read("acc")), (Cursor("read", STAGES),)),
        ),
        (Mbarrier("full", 1, STAGES, BYTES), Mbarrier("empty", 4, STAGES), NamedBarrier("cta", 256)),
        (Buffer("ab", STAGES), Buffer("acc", space="reg")),
    )


def test_c21_the_first_wait_for_empty_never_passes() -> None:
    found = refuted(guide_ring(False, False, False), "deadlock", "waits for empty[0]: phase 0 lacks 4 of 4 arrivals")
    assert found.lengths == ("1+",)  # the very first k tile


def test_c21_all_threads_issue_the_tma() -> None:
    refuted(guide_ring(True, False, False), "bytes", "all 32 lanes issue", "32 copies of 32768 bytes for one expected")


def test_c21_the_phase_never_flips() -> None:
    found = refuted(guide_ring(True, True, False), "data", "takes what it has read before", "k=4")
    # The wait that lets it through is the one of k = 4, on the parity that k = 0 left behind.
    waits = [step for step in found.steps if step.k == STAGES and "waits for full[0], parity 0" in step.text]
    assert waits and "passes after phase 0" in waits[0].text


def test_c21_only_the_producer_does_not_flip() -> None:
    """Then its wait passes when it should not and blocks when it should: the next fault behind the first."""
    pipeline = guide_ring(True, True, True)
    producer = pipeline.role("producer").program
    loop = producer[-1]
    assert isinstance(loop, ForK)
    still = pipeline.with_program("producer", (*producer[:-1], ForK((*loop.body[:-1], Advance("load", flip=False)))))
    refuted(still, "deadlock", "waits for empty[0]: phase 1 lacks 4 of 4 arrivals")


def test_c21_repaired() -> None:
    assert guide_ring(True, True, True).prove()
    assert ring(STAGES, BYTES).prove()


# -------------------------------------------------------------------- C22: sections 7.4 and 11.1, barriers of each tile
def guide_persistent(init_each_tile: bool) -> Pipeline:
    setup: Program = (InitBarriers(), FenceInit())
    load: Program = (
        Wait("empty", "load", flip=True), ArriveExpect("full", "load"), TmaLoad("ab", "load", "full"), Advance("load"),
    )  # fmt: skip
    math: Program = (ForK((*MULTIPLY, Arrive("empty", "read"), Advance("read"))), Read("acc"))
    if init_each_tile:
        producer: Program = (ForTiles((*setup, Reset("load"), Sync("cta"), ForK(load), Sync("cta"))),)
        consumer: Program = (ForTiles((Reset("read"), Sync("cta"), *math, Sync("cta"))),)
    else:
        producer = (*setup, Sync("cta"), ForTiles((ForK(load),)))
        consumer = (Sync("cta"), ForTiles(math))
    return Pipeline(
        "guide 7.4",
        (
            Role("producer", 1, producer, (Cursor("load", STAGES),)),
            Role("math", 4, consumer, (Cursor("read", STAGES),)),
        ),
        (Mbarrier("full", 1, STAGES, BYTES), Mbarrier("empty", 4, STAGES), NamedBarrier("cta", 160)),
        (Buffer("ab", STAGES), Buffer("acc", space="reg")),
    )


def test_c22_barriers_are_initialised_again_while_live() -> None:
    found = refuted(guide_persistent(True), "init", "full[0] is initialised again while live", "mbarrier.inval")
    assert len(found.lengths) <= 2  # the second output tile


def test_c22_repaired() -> None:
    assert guide_persistent(False).prove()


# -------------------------------------------------------------------------- C23: section 11.1, empty arrives at cta ^ 1
def arriving_at(to: tuple[tuple[int, ...], ...], count: int) -> Pipeline:
    pipeline = cluster_ring(STAGES, 16384, 16384, (2, 1))
    program = pipeline.role("math").program
    loop = next(action for action in program if isinstance(action, ForK))
    body = tuple(replace(action, to=to) if isinstance(action, Arrive) else action for action in loop.body)
    changed = pipeline.with_program("math", tuple(ForK(body) if action is loop else action for action in program))
    empty = replace(pipeline.mbarrier("empty"), count=count)
    return replace(changed, barriers=tuple(empty if b.name == "empty" else b for b in changed.barriers))


def test_c23_empty_arrives_only_at_the_other_cta() -> None:
    other = ((1,), (0,))
    # The guide's count is CLUSTER_SIZE * consumer warps: half of them never arrive.
    refuted(arriving_at(other, 8), "deadlock", "waits for empty[0] of cta 0: phase 0 lacks 4 of 8 arrivals")
    # With the count made to fit, the producer does not wait for the consumers of its own CTA.
    found = refuted(arriving_at(other, 4), "arrival", "full[0] of cta 0")
    assert any("empty[0] of cta 0, parity 0: passes after phase 0" in step.text for step in found.steps)


def test_c23_empty_arrives_only_at_the_own_cta() -> None:
    own = ((0,), (1,))
    refuted(arriving_at(own, 4), "arrival", "full[0] of cta 1")


def test_c23_repaired() -> None:
    assert arriving_at(((0, 1), (0, 1)), 8).prove()


# --------------------------------------------------------------- C24: sections 7.2 and 11.1, two multicasts of one tile
def multicasting(b_loads: Program, expected: int) -> Pipeline:
    pipeline = cluster_ring(STAGES, 16384, 16384, (2, 1))
    program = pipeline.role("producer").program
    loop = next(action for action in program if isinstance(action, ForK))
    body = tuple(a for action in loop.body for a in (b_loads if getattr(action, "buffer", "") == "b" else (action,)))
    changed = pipeline.with_program("producer", tuple(ForK(body) if action is loop else action for action in program))
    full = replace(pipeline.mbarrier("full"), bytes=expected)
    return replace(changed, barriers=tuple(full if b.name == "full" else b for b in changed.barriers))


WHOLE_B = TmaLoad("b", "load", "full", 16384, to="all")


def test_c24_both_ctas_multicast_the_same_tile() -> None:
    refuted(
        multicasting((WHOLE_B,), 32768), "arrival", "16384 bytes land at full[0] of cta 0",
        "which has had all its bytes: 16384 (cta 0 producer) + 16384 (cta 0 producer) = 32768",
    )  # fmt: skip
    # Expecting what arrives makes the bytes add up, and leaves the two copies racing into one stage.
    two = multicasting((WHOLE_B,), 49152)
    refuted(two, "race", "TMA load of b[0] of cta 0 while cta 0 producer may still be at its TMA load")


def test_c24_too_few_bytes() -> None:
    half = TmaLoad("b", "load", "full", 8192, to="all")
    refuted(multicasting((If(OnRank((0,)), (half,)),), 32768), "deadlock", "full[0] of cta 0: phase 0 lacks 8192 bytes")


def test_c24_repaired() -> None:
    assert multicasting((replace(WHOLE_B, bytes=8192, part="rank"),), 32768).prove()  # each sends a half
    # One rank sends. Then CTA 1 sends nothing to CTA 0, and CTA 0 must not arrive at CTA 1's empty barrier: nothing
    # there holds it back, so it may lap CTA 1's own arrivals and have its next one counted for them.
    one_sends = multicasting((If(OnRank((0,)), (WHOLE_B,)),), 32768)
    refuted(one_sends, "arrival", "arrives at empty[0] of cta 1 without knowing that its phase 0 is over")
    program = one_sends.role("math").program
    loop = next(action for action in program if isinstance(action, ForK))
    body = tuple(replace(a, to=((0,), (0, 1))) if isinstance(a, Arrive) else a for a in loop.body)
    repaired = one_sends.with_program("math", tuple(ForK(body) if a is loop else a for a in program))
    counts = replace(repaired.mbarrier("empty"), count=(8, 4))
    assert replace(repaired, barriers=tuple(counts if b.name == "empty" else b for b in repaired.barriers)).prove()


# --------------------------------------------------------------------------------- C27: the walkthrough's single buffer
def walkthrough(meets_after_its_wait: bool) -> Pipeline:
    body: Program = (
        ArriveExpect("full", 0), TmaLoad("ab", 0, "full"), Sync("cta"), Wait("full", "read"), Mma(("ab",), 0, "acc"),
        Commit("wgmma"), WaitGroup("wgmma"), *((Sync("cta"),) if meets_after_its_wait else ()), Advance("read"),
    )  # fmt: skip
    return Pipeline(
        "walkthrough",
        (Role("math", 4, (InitBarriers(), FenceInit(), Sync("cta"), ForK(body), Read("acc")), (Cursor("read", 1),)),),
        (Mbarrier("full", 1, 1, 4096), NamedBarrier("cta", 128)),
        (Buffer("ab"), Buffer("acc", space="reg")),
    )


def test_c27_the_next_load_knows_of_one_warp_only() -> None:
    found = refuted(walkthrough(False), "race", "TMA load of ab while math warp 3 may still be at its wgmma on ab")
    last = found.steps[-1]
    assert (last.who, last.k) == ("math warp 0", 1)  # warp 0 is a k tile ahead of a warp that still multiplies k = 0
    assert not any("warps 0-3" in step.who and "waits until wgmma" in step.text for step in found.steps)


def test_c27_repaired() -> None:
    assert walkthrough(True).prove()
    assert self_loading(1, 4096).prove()


# -------------------------------------------------------------------------------------- C16: sections 5.6, 8.3 and 10.2
def copied_by_hand(between: Program) -> Pipeline:
    body: Program = (
        Write("ab"), *between, Mma(("ab",), 0, "acc"), Commit("wgmma"), WaitGroup("wgmma"), Sync("cta"),
    )  # fmt: skip
    return Pipeline(
        "guide 5.6",
        (Role("math", 4, (ForK(body), Read("acc"))),),
        (NamedBarrier("cta", 128),),
        (Buffer("ab"), Buffer("acc", space="reg")),
    )


def test_c16_the_fence_comes_after_the_barrier() -> None:
    late = copied_by_hand((Sync("cta"), FenceProxy()))
    found = refuted(late, "fence", "may not see the write of ab of math warp", "no fence.proxy.async of the writer")
    assert "bar.sync cta" in str(found)
    # PTX's proxy order alone lets a fence by the reader pass; CUTLASS places it with the writer, and so do we.
    assert late.prove(fences="any")
    refuted(copied_by_hand((Sync("cta"),)), "fence")
    assert not copied_by_hand((Sync("cta"),)).prove(fences="any")


def test_c16_repaired() -> None:
    assert copied_by_hand((FenceProxy(), Sync("cta"))).prove()


def stored(before: Program, after: Program) -> Pipeline:
    body: Program = (
        Write("c"), FenceProxy(), *before, TmaStore("c", 0), Commit("bulk", by="one"), WaitGroup("bulk", by="one"),
        *after,
    )  # fmt: skip
    return Pipeline(
        "guide 8.3", (Role("math", 4, (ForTiles(body),)),), (NamedBarrier("cta", 128),), (Buffer("c"),)
    )  # fmt: skip


def test_c16_the_tma_store_has_no_barrier() -> None:
    meet: Program = (Sync("cta"),)
    refuted(stored((), meet), "data", "TMA store of c takes what it has read before")
    refuted(stored(meet, ()), "race", "write of c while math warp 0 may still be at its TMA store of c")
    assert stored(meet, meet).prove()
