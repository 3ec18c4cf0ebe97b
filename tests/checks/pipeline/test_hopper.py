"""The pipelines of a Hopper GEMM: every form proven, every deletion refuted or explained, and real mistakes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layoutgemm.checks import Interleaving, Mbarrier, Pipeline, PipelineProof, deletions
from layoutgemm.checks.pipeline.actions import (
    Advance,
    Arrive,
    ArriveExpect,
    ClusterArrive,
    ClusterWait,
    FenceInit,
    FenceProxy,
    ForK,
    ForTiles,
    If,
    InitBarriers,
    MoreTiles,
    Onward,
    Read,
    StoreAsync,
    Sync,
    TmaLoad,
    Wait,
    Write,
)
from layoutgemm.checks.pipeline.model import Buffer, Cursor, Role
from layoutgemm.errors import PlanError
from layoutgemm.kernels.sm90.pipeline_model import HopperPipeline
from layoutgemm.kernels.store_ring import StoreRing

LANDS = (1024, 2048)


def store(warps: int, buffers: int, rounds: int, blocks: int = 1) -> StoreRing:
    """Buffers in turn, in whole turns."""
    each = [tuple(((block * rounds + i) % buffers, buffers - 1) for i in range(rounds)) for block in range(blocks)]
    return StoreRing(warps, buffers, tuple(each))


FORMS = {
    "self": HopperPipeline(2, LANDS),
    "self, two consumers, early": HopperPipeline(
        3, LANDS, consumers=2, blocks=2, staged_epilogue_k_tiles=1, store=store(1, 2, 2, 2)
    ),
    "self, cluster": HopperPipeline(2, LANDS, cluster=(2, 1)),
    "self, turns": HopperPipeline(2, LANDS, cluster=(2, 1), turns=True),
    "a loader, turns": HopperPipeline(2, LANDS, loader=4, cluster=(2, 1), consumers=2, promoted=True, turns=True),
    "warp, cluster": HopperPipeline(2, LANDS, loader=1, cluster=(1, 2)),
    "warpgroup, cluster 2x2": HopperPipeline(2, LANDS, loader=4, cluster=(2, 2), registers=(24, 240)),
    "pingpong": HopperPipeline(2, LANDS, loader=1, consumers=2, pingpong=True),
    "pingpong, cluster, early": HopperPipeline(
        2, LANDS, loader=4, consumers=2, blocks=2, pingpong=True, staged_epilogue_k_tiles=1, cluster=(2, 1)
    ),
    "self, two k tiles by block": HopperPipeline(
        3, LANDS, consumers=2, blocks=2, staged_epilogue_k_tiles=2, cluster=(2, 1)
    ),
    "warpgroup, two k tiles of three blocks": HopperPipeline(3, LANDS, loader=4, blocks=3, staged_epilogue_k_tiles=2),
    "early": HopperPipeline(2, LANDS, loader=1, blocks=2, staged_epilogue_k_tiles=1),
    "one tile": HopperPipeline(2, LANDS, loader=1, one_tile_per_cluster=True, consumers=2, store=store(4, 1, 1)),
    "one tile, self": HopperPipeline(2, LANDS, one_tile_per_cluster=True, store=store(1, 1, 2)),
    "K in parts": HopperPipeline(2, LANDS, loader=1, one_tile_per_cluster=True, split=2, store=store(1, 2, 2)),
    "K in parts, self, cluster": HopperPipeline(2, LANDS, one_tile_per_cluster=True, split=2, cluster=(1, 2)),
    "K in three parts, two consumers": HopperPipeline(
        2, LANDS, loader=1, one_tile_per_cluster=True, split=3, consumers=2, store=store(1, 1, 3)
    ),
    "K in parts, cluster": HopperPipeline(
        2, LANDS, loader=1, one_tile_per_cluster=True, split=2, cluster=(2, 1), store=store(1, 1, 2)
    ),
    "few rows": HopperPipeline(2, LANDS, loader=1, padding=True),
    "promoted": HopperPipeline(2, LANDS, promoted=True),
    "promoted, self, two consumers, cluster": HopperPipeline(2, LANDS, consumers=2, promoted=True, cluster=(1, 2)),
    "promoted, a loader, two consumers": HopperPipeline(
        2, LANDS, loader=1, consumers=2, promoted=True, store=store(1, 2, 2)
    ),
    "columns": HopperPipeline(2, LANDS, loader=1, store=store(4, 2, 2)),
    "numbers, self": HopperPipeline(2, LANDS, promoted=True, numbers=True, full_arrivals=33),
    "numbers, a loader, two consumers": HopperPipeline(
        2, LANDS, loader=2, consumers=2, blocks=2, promoted=True, numbers=True, full_arrivals=33
    ),
    "numbers, K in parts, cluster": HopperPipeline(
        2,
        LANDS,
        loader=4,
        one_tile_per_cluster=True,
        split=2,
        cluster=(2, 1),
        promoted=True,
        numbers=True,
        full_arrivals=33,
    ),
}


def refuted(form: HopperPipeline) -> Interleaving:
    """The first case that does not hold."""
    found = next(answer for case in form.cases() if not (answer := case.prove()))
    assert isinstance(found, Interleaving)
    return found


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_proven(name: str) -> None:
    for case in FORMS[name].cases():
        found = case.prove()
        assert isinstance(found, PipelineProof), found


FRESH = "the stages are empty when a block begins, and the barriers fresh"
LAST = "of the waits before a CTA leaves that for the last stage stands for the others, which are released before it"
END = "no stage is waited for after the last one"
MEETS = "a meeting that the store's own pipeline needs"
ONCE = "no buffer is used twice"
REDUNDANT = {
    ("self", "math0: Wait('empty', 'load', flip=True, by='one')"): (2, FRESH),
    ("promoted", "math0: Wait('empty', 'load', flip=True, by='one')"): (2, FRESH),
    ("self, cluster", "math0: Wait('empty', 'load', flip=True, by='one')"): (3, f"{FRESH}; {LAST}"),
    ("self, cluster", "math0: Advance('load')"): (1, END),
    ("warp, cluster", "loader: Wait('empty', 'load', flip=True, by='one')"): (1, LAST),
    ("warp, cluster", "loader: Advance('load')"): (1, END),
    ("one tile", "math0: Sync('store0')"): (1, MEETS),
    ("one tile", "math1: Sync('store1')"): (1, MEETS),
    ("one tile", "store: math: WaitGroup('bulk', by='one')"): (1, ONCE),
    ("one tile", "store: math: Sync('store')"): (1, ONCE),
    ("K in parts", "store: math: WaitGroup('bulk', 1)"): (2, ONCE),
    ("K in parts", "store: math: Commit('bulk')"): (1, ONCE),
    ("K in parts, cluster", "loader: Wait('empty', 'load', flip=True, by='one')"): (1, LAST),
    ("K in parts, cluster", "loader: Advance('load')"): (1, END),
    ("K in parts, cluster", "math0: Advance('release')"): (1, "no stage is released after the last one"),
    ("K in parts, cluster", "store: math: WaitGroup('bulk')"): (1, ONCE),
    ("columns", "math0: Sync('store0')"): (1, MEETS),
}
DELETED = (
    "self", "self, cluster", "warp, cluster", "early", "one tile", "K in parts", "K in parts, cluster", "few rows",
    "columns", "promoted", "numbers, a loader, two consumers",
)  # fmt: skip


@pytest.mark.parametrize("name", DELETED)
def test_every_deletion_is_refuted_or_redundant(name: str) -> None:
    """A deletion counts as refuted when one case of the same programs refutes it."""
    cases = FORMS[name].cases()
    kernel = [list(deletions(case)) for case in cases if case.barriers and len(case.roles) == len(cases[0].roles)]
    kernel = [mutants for mutants in kernel if [n for n, _ in mutants] == [n for n, _ in kernel[0]]]
    survivors: dict[str, int] = {}
    for same in zip(*kernel):
        if all(mutant.prove() for _, mutant in same):
            survivors[same[0][0]] = survivors.get(same[0][0], 0) + 1
    if FORMS[name].store:
        for deleted, mutant in deletions(FORMS[name].store_pipeline()):
            if mutant.prove():
                survivors[f"store: {deleted}"] = survivors.get(f"store: {deleted}", 0) + 1
    assert survivors == {deleted: count for (of, deleted), (count, _) in REDUNDANT.items() if of == name}


def test_a_consumer_that_loads_for_both_starves_the_other() -> None:
    """It waits for its turn. The other one, whose turn it is, waits for a k tile that it would have to load."""
    found = refuted(HopperPipeline(2, LANDS, consumers=2, pingpong=True))
    assert found.kind == "deadlock" and "full" in found.what


def test_a_buffer_that_the_last_tile_used_last() -> None:
    """Three rounds through two buffers: the next tile's first round writes the one that the newest store reads."""
    rounds = ((0, 1), (1, 1), (0, 1))
    wrong = HopperPipeline(2, LANDS, loader=1, store=StoreRing(1, 2, (rounds,)))
    assert refuted(wrong).kind == "race" and "bulk" not in refuted(wrong).pipeline
    right = StoreRing(1, 2, (((0, 0), (1, 2), (0, 1)),))
    assert replace(wrong, store=right).store_pipeline().prove()
    assert not replace(wrong, store=StoreRing(1, 2, (((0, 0), (1, 2), (0, 2)),))).store_pipeline().prove()
    # One tile alone has no tile before it.
    assert replace(wrong, one_tile_per_cluster=True).store_pipeline().prove()


def test_zeros_are_met_over_before_they_are_multiplied() -> None:
    """The consumers' barrier and fences stand between the zeros and their first product."""
    for case in FORMS["few rows"].cases():
        program = case.role("math0").program
        for left_out, kind in ((Sync("stages"), "race"), (FenceProxy(), "fence")):
            assert left_out in program
            found = case.with_program("math0", tuple(a for a in program if a != left_out)).prove()
            assert isinstance(found, Interleaving) and found.kind == kind and "zeros" in found.what


def test_an_arrival_where_nobody_sends_from() -> None:
    """In a cluster of 2x2 the block across shares nothing: it may be a round behind, and count an arrival too early."""
    (case,) = HopperPipeline(2, LANDS, loader=1, cluster=(2, 2), empty_arrivals=16).cases()

    def to_all(program: object) -> object:
        if isinstance(program, tuple):
            return tuple(map(to_all, program))
        if isinstance(program, (ForK, ForTiles)):
            return replace(program, body=to_all(program.body))
        if isinstance(program, If):
            return replace(program, then=to_all(program.then))
        return replace(program, to="all") if isinstance(program, Arrive) and program.barrier == "empty" else program

    found = case.with_program("math0", to_all(case.role("math0").program)).prove()
    assert isinstance(found, Interleaving) and found.kind == "arrival"
    assert "without knowing that its phase 0 is over" in found.what


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"full_bytes": 3073}, "deadlock"),
        ({"full_bytes": 3071}, "bytes"),
        ({"full_arrivals": 2}, "deadlock"),
        ({"empty_arrivals": 5}, "deadlock"),
        ({"empty_arrivals": 3}, "arrival"),
        ({"split": 2, "one_tile_per_cluster": True, "sums_bytes": 4 * 512 + 1}, "deadlock"),
        ({"split": 2, "one_tile_per_cluster": True, "sums_bytes": 4 * 512 - 1}, "bytes"),
        ({"split": 2, "one_tile_per_cluster": True, "sums_arrivals": 2}, "deadlock"),
    ],
)
def test_numbers_that_do_not_fit(change: dict[str, int], kind: str) -> None:
    assert refuted(replace(HopperPipeline(2, LANDS, loader=1), **change)).kind == kind


def test_what_is_no_pipeline() -> None:
    with pytest.raises(PlanError, match="two consumers in turn, not 3"):
        HopperPipeline(2, LANDS, loader=1, consumers=3, pingpong=True).cases()
    with pytest.raises(PlanError, match="one output tile a cluster"):
        HopperPipeline(2, LANDS, loader=1, split=2).cases()
    with pytest.raises(PlanError, match="no buffers"):
        HopperPipeline(2, LANDS).store_pipeline()


# --------------------------------------------------------------------------------------------- what the language gained


def looking_ahead(stages: int, distance: int, least: int = 1) -> Pipeline:
    """One warp that loads `distance` k tiles ahead into a ring. It goes on through the borders of output tiles."""
    load = (ArriveExpect("full", "load"), TmaLoad("a", "load", "full"), Advance("load"))
    body = (Wait("full", "read"), Read("a", "read"), Advance("read"), If(Onward(distance), load))
    first = tuple(If(Onward(i), load) for i in range(distance))
    role = Role(
        "one", 1, (InitBarriers(), FenceInit(), *first, ForTiles((ForK(body),))),
        (Cursor("load", stages), Cursor("read", stages)),
    )  # fmt: skip
    return Pipeline(
        "ahead", (role,), (Mbarrier("full", 1, stages, 64),), (Buffer("a", stages),), k_tiles=(least, False)
    )


def test_loads_through_the_borders_of_tiles() -> None:
    for stages in range(1, 5):
        for least in range(1, 4):
            assert looking_ahead(stages, stages, least).prove()
        # Further ahead than there are stages: the stage is still to be read, or its barrier's phase not over.
        assert not looking_ahead(stages, stages + 1).prove()
    assert replace(looking_ahead(3, 3), k_tiles=(2, True)).prove()
    with pytest.raises(PlanError, match="a k tile in each of them"):
        looking_ahead(2, 2, least=0)


def test_turns_are_passed_only_to_who_takes_them() -> None:
    """Turns need the question whether there is another tile. Without it, the last arrival at a turn's barrier is left
    over there. With one tile too many asked for, a turn that is waited for is not passed."""
    (case,) = FORMS["pingpong"].cases()

    def asking(program: object, distance: int) -> object:
        if isinstance(program, tuple):
            return tuple(asking(action, distance) for action in program)
        if isinstance(program, ForTiles):
            return replace(program, body=asking(program.body, distance))
        if isinstance(program, If) and isinstance(program.condition, MoreTiles):
            return replace(program, condition=MoreTiles(distance))
        if isinstance(program, If):
            return replace(program, then=asking(program.then, distance))
        return program

    found = case.with_program("math0", asking(case.role("math0").program, 2)).prove()
    assert isinstance(found, Interleaving) and found.kind == "deadlock"


def test_writes_into_another_block() -> None:
    """A write to another CTA needs a barrier before its read. It needs one before that CTA exits too."""

    def two(*after: object) -> Pipeline:
        meet = (ClusterArrive(), ClusterWait())
        program = (*meet, Write("sums", to=((1,), (0,))), *after)
        role = Role("all", 2, program)
        return Pipeline("two", (role,), (), (Buffer("sums"),), cluster=2)

    meet = (ClusterArrive(), ClusterWait())
    assert two(*meet, Read("sums")).prove()
    found = two(Read("sums")).prove()
    assert isinstance(found, Interleaving) and found.kind in ("race", "data")
    found = two(ClusterArrive(relaxed=True), ClusterWait(), Read("sums")).prove()
    assert isinstance(found, Interleaving) and found.kind == "race"
    # Scratch need not be read, and the CTA has to know of it all the same.
    role = Role("all", 1, (*meet, Write("sums", to=((1,), (0,)), new=False)))
    found = Pipeline("two", (role,), (), (Buffer("sums"),), cluster=2).prove()
    assert isinstance(found, Interleaving) and found.kind == "exit"


def test_stores_that_another_block_counts() -> None:
    """st.async: its bytes are what the reader waits for, and what a CTA has to wait for before it exits."""
    meet = (ClusterArrive(relaxed=True), ClusterWait())
    sent = StoreAsync("sums", 0, "sums", 64, ((1,), (0,)))

    def two(*after: object, first: tuple[object, ...] = (ArriveExpect("sums", 0),)) -> Pipeline:
        role = Role("all", 1, (InitBarriers(), FenceInit(), *first, *meet, sent, *after))
        return Pipeline("two", (role,), (Mbarrier("sums", 1, bytes=64),), (Buffer("sums"),), cluster=2)

    good = two(Wait("sums", 0), Read("sums"))
    assert good.prove() and "st.async: all -> all" in good.explain()
    assert "sums       1 arrival: all expecting 64 bytes; lands 64 = all sums 64" in good.explain()
    for wrong, kinds in (
        (two(Read("sums")), ("race", "data")),
        (two(), ("exit",)),
        (two(Wait("sums", 0), Read("sums"), first=()), ("bytes", "deadlock")),
        (two(ClusterArrive(), ClusterWait(), Read("sums")), ("race",)),  # a meeting does not say that it has landed
        (two(sent, Wait("sums", 0), Read("sums")), ("arrival",)),  # no warp knows that the first ones were counted
        (replace(good, roles=(replace(good.roles[0], program=good.roles[0].program[3:]),)), ("init",)),
    ):
        found = wrong.prove()
        assert isinstance(found, Interleaving) and found.kind in kinds, (found.kind, kinds)


@pytest.mark.parametrize("form", [
    HopperPipeline(16, LANDS, loader=1, cluster=(2, 4)),  # 2185 runs where loops end last
    HopperPipeline(5, LANDS, loader=4, consumers=2, blocks=2, pingpong=True, staged_epilogue_k_tiles=1, cluster=(2, 1)),
])  # fmt: skip
def test_states_are_walked_about_once(form: HopperPipeline) -> None:
    """Each state has two answers: two runs a state are the fewest."""
    found = form.cases()[0].prove()
    assert isinstance(found, PipelineProof) and found.runs < 3 * found.states, found
