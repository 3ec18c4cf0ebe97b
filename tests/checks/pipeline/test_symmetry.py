"""The warps and CTAs that a proof runs: the same verdict as with all of them, and nothing folded that is not alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from layoutgemm.checks import Buffer, Interleaving, Mbarrier, Pipeline, Role, cluster_ring, deletions
from layoutgemm.checks.pipeline import symmetry
from layoutgemm.checks.pipeline.actions import If, OnRank, Read, Sync, TmaLoad, Write
from layoutgemm.checks.pipeline.model import NamedBarrier
from layoutgemm.checks.pipeline.prove import PipelineProof, _explore
from layoutgemm.checks.pipeline.symmetry import everyone, fewest
from layoutgemm.kernels.sm90.pipeline_model import HopperPipeline
from layoutgemm.kernels.sm100.pipeline_model import BlackwellPipeline

CASES = [
    cluster_ring(2, 64, 64, (4, 1)),
    cluster_ring(1, 64, 64, (2, 4), consumers=2),
    HopperPipeline(2, (64, 64), loader=4, cluster=(1, 4), consumers=2).cases()[-1],
    HopperPipeline(2, (64, 64), consumers=2, cluster=(3, 1)).cases()[-1],
    HopperPipeline(2, (64, 64), loader=1, consumers=2, pingpong=True).cases()[-1],
    HopperPipeline(2, (64, 64), one_tile_per_cluster=True, split=3).cases()[-1],
    HopperPipeline(2, (64, 64), consumers=2, blocks=2, staged_epilogue_k_tiles=1).cases()[-1],
    BlackwellPipeline(2, (64, 64)).cases()[0],
]


def broken(pipeline: Pipeline) -> Iterator[Pipeline]:
    """The pipeline without an action, or with another count or number of bytes."""
    yield from (mutant for _, mutant in deletions(pipeline))
    for i, barrier in enumerate(pipeline.barriers):
        if isinstance(barrier, Mbarrier):
            count = barrier.count_of(0)
            for other in (count - 1, count + 1, 4 * count):
                if other:
                    mutant = replace(barrier, count=other)
                    yield replace(pipeline, barriers=(*pipeline.barriers[:i], mutant, *pipeline.barriers[i + 1 :]))


def verdict(pipeline: Pipeline, cast: Any) -> Any:
    found = _explore(pipeline, "writer", 3000, True, cast)
    return (found.states, found.runs) if isinstance(found, PipelineProof) else "refuted"


@pytest.mark.parametrize("pipeline", CASES, ids=lambda pipeline: pipeline.name)
def test_few_warps_and_ctas_say_what_all_say(pipeline: Pipeline) -> None:
    assert not fewest(pipeline).whole
    same = verdict(pipeline, everyone(pipeline))
    assert same != "refuted" and verdict(pipeline, fewest(pipeline)) == same
    mutants = list(broken(pipeline))[::4]
    answers = [(verdict(mutant, fewest(mutant)), verdict(mutant, everyone(mutant))) for mutant in mutants]
    assert all(few == all_ for few, all_ in answers) and sum(few == "refuted" for few, _ in answers) > 2


def test_a_story_names_every_warp() -> None:
    """A few warps refute it, and the interleaving is of all."""
    pipeline = HopperPipeline(2, (64, 64), loader=1, consumers=2, empty_arrivals=7).cases()[-1]
    found = pipeline.prove()
    assert isinstance(found, Interleaving) and any("warps 0-3" in step.who for step in found.steps), str(found)


def test_the_fewest() -> None:
    cast = fewest(HopperPipeline(2, (64, 64), loader=1, cluster=(2, 4)).cases()[-1])
    assert cast.ctas == ((0,), (2, 4, 6), (1,), (3, 5, 7)) and cast.warps["math0"] == ((0, 1), (1, 3))
    # An operation that reaches a row of the cluster counts there once for each column that its CTA stands for.
    row = tuple(tuple(r for r in range(8) if (r - rank) % 2 == 0) for rank in range(8))
    assert cast.reached(row, 0) == ((0, 1), (1, 1)) and cast.reached(row, 1) == ((0, 3), (1, 3))
    assert cast.reached("own", 1) == ((1, 1),)
    assert cast.reached("all", 3) == ((0, 3), (2, 3), (1, 3), (3, 3))


# -------------------------------------------------------------------------------------------------- not to be folded
def one_role(*program: Any, warps: int = 4, **more: Any) -> Pipeline:
    barriers = (NamedBarrier("all", 32 * warps), Mbarrier("full", 1, bytes=64))
    return Pipeline("one role", (Role("a", warps, program),), barriers, (Buffer("x"),), **more)


def test_two_warps_alike_may_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writes all of a buffer: one warp alone would never race."""
    pipeline = one_role(Write("x", part="whole", new=False))
    assert fewest(pipeline).warps["a"] == ((0, 1), (1, 3))
    found = pipeline.prove()
    assert isinstance(found, Interleaving) and found.kind == "race"
    assert one_role(Write("x"), Sync("all"), Read("x")).prove()
    monkeypatch.setattr(symmetry, "_writes", lambda action, shared: False)
    assert fewest(pipeline).warps["a"] == ((0, 4),)
    assert verdict(pipeline, fewest(pipeline)) != "refuted"  # which is wrong: the rule is needed


def test_ctas_that_differ_are_all_run() -> None:
    ring = cluster_ring(1, 64, 64, (4, 1))
    assert len(fewest(ring).ctas) == 2
    whole = everyone(ring).ctas
    empty = ring.mbarrier("empty").count_of(0)
    counts = tuple(
        replace(b, count=(empty, empty, empty, empty + 1)) if b.name == "empty" else b for b in ring.barriers
    )
    assert fewest(replace(ring, barriers=counts)).ctas == whole
    extra = (*ring.role("math").program, If(OnRank((2,)), (Read("c"),)))
    other = replace(ring, buffers=(*ring.buffers, Buffer("c"))).with_program("math", extra)
    assert fewest(other).ctas == whole
    for row in ((0, 1), (1, 2, 3), (0, 1, 3)):
        to = ((0, 1, 2, 3), row, (0, 1, 2, 3), (0, 1, 2, 3))
        assert fewest(one_role(Write("x", to=to), cluster=4)).ctas == whole, row


def test_ctas_that_others_reach_in_ways_of_their_own_are_all_run() -> None:
    """No CTA stands for CTAs that reach each other or write to a third's place."""
    whole = tuple((rank,) for rank in range(4))
    others = tuple(tuple(r for r in range(4) if r != rank) for rank in range(4))
    assert fewest(one_role(Write("x", to=others), cluster=4)).ctas == whole
    assert fewest(one_role(Write("x", to="all"), cluster=4)).ctas == ((0,), (1, 2, 3))
    load = TmaLoad("x", 0, "full", to="all", part="rank")
    assert fewest(one_role(load, cluster=4)).ctas == ((0,), (1, 2, 3))
    for alike in (replace(load, part="whole"), replace(load, signal=0)):
        assert fewest(one_role(alike, cluster=4)).ctas == whole
