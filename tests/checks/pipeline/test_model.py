"""Pipelines of kernels: proven for every ring size, their tables, their registers, and what is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from layoutgemm.checks import (
    Buffer,
    Cursor,
    Interleaving,
    Mbarrier,
    NamedBarrier,
    Pipeline,
    PipelineProof,
    Role,
    check_pipeline,
    cluster_ring,
    multistage,
    pingpong,
    register_check,
    ring,
    self_loading,
    tcgen05_ring,
)
from layoutgemm.checks.pipeline.actions import (
    Action,
    Advance,
    Arrive,
    ArriveExpect,
    ClusterArrive,
    ClusterWait,
    Commit,
    CpAsync,
    Expect,
    FenceInit,
    ForK,
    ForTiles,
    If,
    InitBarriers,
    Later,
    Mma,
    OnRank,
    Read,
    Sync,
    TmaLoad,
    Wait,
    WaitGroup,
    Write,
)
from layoutgemm.checks.pipeline.prove import _explore
from layoutgemm.errors import PlanError

EVERY_SIZE = range(1, 9)
KINDS = {
    "ring": lambda s: ring(s, 32768),
    "two consumers, store": lambda s: ring(s, 32768, consumers=2, warps=1, persistent=True, store=(2, 2)),
    "cluster 2x1": lambda s: cluster_ring(s, 16384, 16384, (2, 1), warps=1),
    "cluster 1x2, sync": lambda s: cluster_ring(s, 16384, 16384, (1, 2), warps=1, tail="sync"),
    "self-loading": lambda s: self_loading(s, 16384, warps=2),
    "pingpong": lambda s: pingpong(s, 32768, warps=1, store=None),
    "cp.async": lambda s: multistage(s),
    "tcgen05": lambda s: tcgen05_ring(s, 32768, warps=1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_proven_for_every_ring_size(kind: str) -> None:
    states = []
    for stages in EVERY_SIZE:
        found = KINDS[kind](stages).prove()
        assert isinstance(found, PipelineProof), str(found)
        assert f"{found.states} states" in found.method and f"{found.states} states" in found.invariant
        states.append(found.states)
    assert states == sorted(states) and len(set(states)) == len(states)  # a longer ring has more states, always


@pytest.mark.parametrize(
    "pipeline",
    [
        cluster_ring(2, 16384, 16384, (2, 2), consumers=2, warps=1),
        cluster_ring(2, 16384, 16384, (2, 1), warps=2, persistent=True),
        ring(3, 32768, consumers=2, warps=2, lag=1, persistent=True),
        ring(4, 32768, warps=2, lag=2),
        pingpong(2, 32768, warps=4, store=None),
        tcgen05_ring(2, 32768, warps=4, store=(2, 2)),
        tcgen05_ring(2, 32768, warps=2, pair=True),
        tcgen05_ring(3, 32768, warps=1, accumulators=1),
    ],
    ids=lambda p: f"{p.name}, {len(p.roles)} roles",
)
def test_proven(pipeline: Pipeline) -> None:
    assert pipeline.prove(), str(pipeline.prove())
    assert check_pipeline(pipeline).ok


def test_a_consumer_that_holds_all_stages_starves_the_producer() -> None:
    """One wgmma group in flight holds one stage back: a ring of one never comes free."""
    found = ring(1, 1024, warps=1, lag=1).prove()
    assert isinstance(found, Interleaving) and found.kind == "deadlock"
    assert "producer waits for empty: phase 0 lacks 1 of 1 arrivals" in found.what
    assert ring(2, 1024, warps=1, lag=1).prove()
    assert not ring(2, 1024, warps=1, lag=2).prove()


def test_the_steps_can_happen_and_name_k() -> None:
    loop = (Wait("full", "read"), Mma(("ab",), "read", "acc"), Commit("wgmma"), WaitGroup("wgmma"), Advance("read"))
    found = ring(2, 64, warps=1).with_program("math", (Sync("cta"), ForK(loop))).prove()
    assert isinstance(found, Interleaving)
    text = str(found)
    assert text.splitlines()[0] == "ring of 2: deadlock, with K = 3+"
    assert "waits for full[1], parity 0: passes after phase 0" in text
    check = check_pipeline(ring(2, 64, warps=1).with_program("math", (Sync("cta"), ForK(loop))))
    assert not check and check.witness == text and check.method == f"interleaving of {len(found.steps)} steps"
    assert pickle.loads(pickle.dumps(found)) == found


# ---------------------------------------------------------------------------------------------------- single conditions
def small(*body: Action, count: int = 1, bytes: int = 64, warps: int = 2) -> Pipeline:
    """A warp that fills one stage, and readers with the given k loop."""
    load = (Wait("empty", "p", flip=True), ArriveExpect("full", "p"), TmaLoad("ab", "p", "full", 64), Advance("p"))
    return Pipeline(
        "small",
        (
            Role("load", 1, (InitBarriers(), FenceInit(), Sync("cta"), ForK(load)), (Cursor("p", 1),)),
            Role("math", warps, (Sync("cta"), ForK(body)), (Cursor("c", 1),)),
        ),
        (Mbarrier("full", 1, 1, bytes), Mbarrier("empty", count), NamedBarrier("cta", 32 + 32 * warps),
         NamedBarrier("math", 32 * warps)),
        (Buffer("ab"), Buffer("acc", space="reg")),
    )  # fmt: skip


READ = (Wait("full", "c"), Read("ab", 0))
FREE = (Arrive("empty", 0), Advance("c"))


def test_one_arrival_for_both_warps_needs_a_barrier_before() -> None:
    one = Arrive("empty", 0, by="one")
    assert small(*READ, *FREE, count=2).prove()
    assert small(*READ, Sync("math"), one, Advance("c"), count=1).prove()
    found = small(*READ, one, Advance("c"), count=1).prove()
    assert isinstance(found, Interleaving) and found.kind in ("data", "race", "missed wait")


def test_counts_that_do_not_fit() -> None:
    too_many = small(*READ, *FREE, count=3).prove()
    assert isinstance(too_many, Interleaving) and too_many.kind == "deadlock"
    assert "phase 0 lacks 1 of 3 arrivals" in too_many.what
    too_few = small(*READ, *FREE, count=1).prove()
    assert isinstance(too_few, Interleaving) and too_few.kind in ("missed wait", "arrival", "data")
    lanes = small(*READ, Arrive("empty", 0, by="lanes"), Advance("c"), count=2).prove()
    assert isinstance(lanes, Interleaving) and "arrives 32 time(s)" in lanes.what
    assert small(*READ, Arrive("empty", 0, by="lanes"), Advance("c"), count=64).prove()


def test_bytes_that_do_not_add_up() -> None:
    more = small(*READ, *FREE, count=2, bytes=128).prove()
    assert isinstance(more, Interleaving) and more.kind == "deadlock" and "lacks 64 bytes" in more.what
    fewer = small(*READ, *FREE, count=2, bytes=32).prove()
    assert isinstance(fewer, Interleaving) and fewer.kind == "bytes"
    assert "32 bytes more land than are expected: 64 (load) = 64" in fewer.what


def test_a_wait_that_skips_rounds_may_pass_early() -> None:
    """Pingpong without its order barrier: the second warpgroup looks for a parity that an older round also had."""
    pipeline = pingpong(2, 64, warps=1, store=None)
    for i in range(2):
        role = pipeline.role(f"math{i}")
        tiles = role.program[-1]
        assert isinstance(tiles, ForTiles)
        turn = tiles.body[0]
        assert isinstance(turn, If)
        free = tuple(a for a in turn.then if not isinstance(a, (Wait, Arrive)) or "turn" not in a.barrier)
        program = (*role.program[:-1], ForTiles((replace(turn, then=free),)))
        pipeline = pipeline.with_program(role.name, program)
    found = pipeline.prove()
    assert isinstance(found, Interleaving) and found.kind == "early wait", str(found)
    assert "which lets it through after phase 1 and while it is fresh alike" in found.what
    assert found.who == "math1" and not any("full[0] completes" in step.text for step in found.steps)


def test_a_watcher_that_nobody_waits_for_may_miss_a_phase() -> None:
    pipeline = small(*READ, *FREE, count=2)
    watcher = Role("watch", 1, (Sync("cta"), ForK((Wait("full", "w"), Advance("w")))), (Cursor("w", 1),))
    named = tuple(NamedBarrier("cta", 128) if b.name == "cta" else b for b in pipeline.barriers)
    found = replace(pipeline, roles=(*pipeline.roles, watcher), barriers=named).prove()
    assert isinstance(found, Interleaving) and found.kind == "missed wait"
    assert "watch may not have looked since phase 0" in found.what


def test_two_turns_of_a_named_barrier_may_be_taken_for_one() -> None:
    def meeting(*second: Action) -> Pipeline:
        roles = (Role("a", 1, (ForK(second),)), Role("b", 1, (ForK((Sync("x"), Sync("y"))),)))
        return Pipeline("meeting", roles, (NamedBarrier("x", 64), NamedBarrier("y", 64)), ())

    assert meeting(Sync("x"), Sync("y")).prove()
    assert meeting(Sync("x", wait=False), Sync("y")).prove()  # y says that x is over
    found = meeting(Sync("x", wait=False), Sync("y", wait=False)).prove()
    assert isinstance(found, Interleaving) and found.kind == "arrival"


def test_named_barriers_have_numbers_of_their_own() -> None:
    """Behind that of all threads, whether the pipeline has it or not."""
    meeting = cluster_ring(4, 16384, 16384, consumers=2, persistent=True, meet=True, store=(1, 2))
    assert [meeting.barrier_number(name) for name in ("store0", "store1", "cta")] == [1, 2, 0]
    apart = cluster_ring(4, 16384, 16384, consumers=2, persistent=True, store=(1, 2))
    assert [apart.barrier_number(name) for name in ("store0", "store1")] == [1, 2]
    with pytest.raises(PlanError, match=r"no named barrier 'cta'; there are store0, store1"):
        apart.barrier_number("cta")
    many = tuple(NamedBarrier(f"x{i}", 32) for i in range(16))
    pipeline = Pipeline("many", (Role("a", 1, ()),), many, ())
    assert pipeline.barrier_number("x14") == 15
    with pytest.raises(PlanError, match=r"many: 'x15' would be hardware barrier 16; a CTA has 16"):
        pipeline.barrier_number("x15")


def test_a_group_that_is_done_says_nothing_of_a_newer_one() -> None:
    one = (Mma((), 0, "acc"), Commit("wgmma"))
    for pending, good in ((0, True), (1, False)):
        program = (*one, *one, WaitGroup("wgmma", pending), Read("acc"))
        assert bool(Pipeline("groups", (Role("a", 1, program),), (), (Buffer("acc", space="reg"),)).prove()) is good


def test_a_stage_filled_twice_before_it_is_read() -> None:
    roles = (Role("a", 1, (Write("x"), Write("x"), Sync("s"))), Role("b", 1, (Sync("s"), Read("x"))))
    found = Pipeline("twice", roles, (NamedBarrier("s", 64),), (Buffer("x"),)).prove()
    assert isinstance(found, Interleaving) and found.what == "write of x before b has read what is there"
    unread = Pipeline("unread", (Role("a", 1, (Write("x"),)), Role("b", 1, (ForK((Read("x"),)),))), (), (Buffer("x"),))
    found = unread.prove()
    assert isinstance(found, Interleaving) and "is filled, and b exits without reading it" in found.what


def test_paths_that_know_less_are_not_covered_by_those_that_know_more() -> None:
    """The roles meet once more after an output tile without k tiles; only then is the next write ordered."""
    meet = If(Later(1), (), (Sync("x"),))
    always = Sync("x")

    def roles(last: Action) -> tuple[Role, ...]:
        return (
            Role("a", 1, (Sync("x"), ForTiles((Write("c"), Sync("y"), ForK(()), last)))),
            Role("b", 1, (Sync("x"), ForTiles((Sync("y"), Read("c"), ForK(()), last)))),
        )

    barriers = (NamedBarrier("x", 64), NamedBarrier("y", 64))
    assert Pipeline("meets always", roles(always), barriers, (Buffer("c"),)).prove()
    found = Pipeline("meets at times", roles(meet), barriers, (Buffer("c"),)).prove()
    assert isinstance(found, Interleaving) and found.kind == "race", str(found)


def test_paths_that_know_different_things_are_told_apart() -> None:
    """Whoever met the writer, p or q, passes it on to r: on no path is it lost, though neither p nor q always knows."""
    z, all_, wp, wq = Sync("z"), Sync("all"), Sync("wp"), Sync("wq")
    pipeline = Pipeline(
        "relay",
        (
            Role("w", 1, (Write("c"), wp, ForTiles((all_, Write("c"), ForK(()), If(Later(1), (wq,), (wp,)))))),
            Role("p", 1, (wp, ForTiles((z, all_, ForK(()), If(Later(1), (), (wp,)))), z)),
            Role("q", 1, (ForTiles((z, all_, ForK(()), If(Later(1), (wq,)))), z)),
            Role("r", 1, (ForTiles((z, Read("c"), all_)), z, Read("c"))),
        ),
        (NamedBarrier("z", 96), NamedBarrier("all", 128), NamedBarrier("wp", 64), NamedBarrier("wq", 64)),
        (Buffer("c"),),
    )
    assert isinstance(_explore(pipeline, "writer", 20000, merge=True), list)  # their intersection knows too little
    assert pipeline.prove()
    without = replace(pipeline, barriers=(NamedBarrier("z", 64), *pipeline.barriers[1:]))
    silent = without.with_program("q", (ForTiles((all_, ForK(()), If(Later(1), (wq,)))),))
    assert not silent.prove()


def test_expect_tx_apart_from_the_arrival() -> None:
    """The expectation must come before an arrival of its phase; before it in program order is enough."""
    pipeline = small(*READ, *FREE, count=2)
    wait, load, step = Wait("empty", "p", flip=True), TmaLoad("ab", "p", "full", 64), Advance("p")
    head = pipeline.role("load").program[:3]
    for order, good in (
        ((wait, Expect("full", "p"), Arrive("full", "p"), load, step), True),
        ((wait, Expect("full", "p"), load, Arrive("full", "p"), step), True),
        ((wait, load, Expect("full", "p"), Arrive("full", "p"), step), True),
        ((wait, load, Arrive("full", "p"), Expect("full", "p"), step), False),
        ((wait, Arrive("full", "p"), Expect("full", "p"), load, step), False),
    ):
        assert bool(pipeline.with_program("load", (*head, ForK(order))).prove()) is good, order
    # Expected by another warp than the one that arrives: nothing says that it comes first.
    other = Role("expect", 1, (Sync("cta"), ForK((wait, Expect("full", "p"), step))), (Cursor("p", 1),))
    split = pipeline.with_program("load", (*head, ForK((wait, Arrive("full", "p"), load, step))))
    named = tuple(NamedBarrier("cta", 128) if b.name == "cta" else b for b in split.barriers)
    found = replace(split, roles=(other, *split.roles), barriers=named).prove()
    assert isinstance(found, Interleaving) and found.kind == "bytes", str(found)


def test_wgmma_must_be_committed_to_be_waited_for() -> None:
    product = Mma(("ab",), 0, "acc")
    done = (Commit("wgmma"), WaitGroup("wgmma"))
    assert small(Wait("full", "c"), product, *done, *FREE, count=2).prove()
    for broken in ((WaitGroup("wgmma"),), (Commit("wgmma"),), (WaitGroup("wgmma"), Commit("wgmma"))):
        found = small(Wait("full", "c"), product, *broken, *FREE, count=2).prove()
        assert isinstance(found, Interleaving) and found.kind in ("race", "exit"), broken


def test_relaxed_cluster_arrival_orders_no_data() -> None:
    """Initialisations are ordered by fence.mbarrier_init; a TMA load or a store to shared memory would not be."""
    pipeline = cluster_ring(2, 64, 64, (2, 1), warps=1, tail="sync")
    assert pipeline.prove()

    def relaxed(program: tuple[Action, ...]) -> tuple[Action, ...]:
        return tuple(ClusterArrive(relaxed=True) if isinstance(a, ClusterArrive) else a for a in program)

    for role in ("producer", "math"):
        pipeline = pipeline.with_program(role, relaxed(pipeline.role(role).program))
    found = pipeline.prove()
    assert isinstance(found, Interleaving) and found.kind == "exit", str(found)


def test_missing_last_cluster_sync() -> None:
    pipeline = cluster_ring(2, 64, 64, (2, 1), warps=1, tail="sync")
    for role in ("producer", "math"):
        pipeline = pipeline.with_program(role, pipeline.role(role).program[:-2])
    found = pipeline.prove()
    assert isinstance(found, Interleaving) and found.kind == "exit"
    assert "may have exited before the arrival at empty[0]" in found.what


def test_roles_that_are_not_bound_are_refused_not_passed() -> None:
    """A warp that copies without ever waiting has unbounded groups; one that disagrees about k never closes."""
    found = Pipeline(
        "loose",
        (Role("a", 1, (ForK((CpAsync("x", 0), Commit("cp.async"))), WaitGroup("cp.async"))),),
        (),
        (Buffer("x"),),
    ).prove()
    assert isinstance(found, Interleaving) and "64 cp.async groups are pending" in found.what
    with pytest.raises(PlanError, match="41 runs and no end"):
        pingpong(2, 64, warps=1).prove(limit=40)
    with pytest.raises(PlanError, match="fences = 'reader'"):
        ring(1, 64).prove(fences="reader")


# ------------------------------------------------------------------------------------------------- tables and registers
TABLE = """\
cluster 2x1, ring of 4: 9 warps, in each of 2 CTAs
  producer     1 warp      TMA
  math0        4 warps     wgmma
  math1        4 warps     wgmma
  a            TMA: producer -> math0, math1, 4 stages
    full       1 arrival: producer expecting 49152 bytes; lands 49152 = producer a 16384 + producer b 16384 * 2
    empty      16 arrivals: math0 4 warps in 2 CTAs + math1 4 warps in 2 CTAs; waited for by producer
  b            TMA multicast: producer -> math0, math1, 4 stages"""

TCGEN05_TABLE = """\
tcgen05, ring of 4, 2 accumulators: 6 warps
  load         1 warp      TMA
  mma          1 warp      tcgen05
  epilogue     4 warps     stores, TMA store
  ab           TMA: load -> mma, 4 stages
    full       1 arrival: load expecting 32768 bytes; lands 32768 = load ab 32768
    empty      1 arrival: mma (tcgen05.commit); waited for by load
  acc          tcgen05: mma -> epilogue, 2 stages
    acc_full   1 arrival: mma (tcgen05.commit); waited for by epilogue
    acc_empty  4 arrivals: epilogue 4 warps; waited for by mma
  c            stores: epilogue -> epilogue, 2 stages
  cta          bar.sync: 192 threads = load 32 + mma 32 + epilogue 128
  store        bar.sync: 128 threads = epilogue 128"""


def test_tables() -> None:
    assert cluster_ring(4, 16384, 32768, (2, 1), consumers=2).explain() == TABLE
    assert tcgen05_ring(4, 32768, store=(2, 4)).explain() == TCGEN05_TABLE
    # Computed, not written: what the programs do changes the line.
    fewer = ring(2, 64).with_program("math", (Sync("cta"), ForK((Arrive("empty", "read", by="one"),))))
    assert "empty        4 arrivals: math; waited for by producer" in fewer.explain()
    assert "empty        4 arrivals: nobody" in ring(2, 64).with_program("math", (Sync("cta"),)).explain()


def test_registers() -> None:
    good = ring(4, 32768, consumers=2, registers=(40, 232))
    assert len(good.check()) == 2 and good.check()
    check = register_check(good)
    assert check is not None and "= 64512 registers" in check.statement
    greedy = ring(4, 32768, consumers=2, registers=(40, 240)).check()
    assert [c.ok for c in greedy] == [False, True] and "2048 registers too many" in greedy.failures[0].witness
    part = register_check(ring(4, 32768, warps=2, registers=(40, 232)))
    assert part is not None and not part.ok and "no whole number of warpgroups" in part.witness
    assert register_check(ring(4, 32768)) is None
    with pytest.raises(PlanError, match="1 of 2 roles set their registers"):
        Pipeline("some", (Role("a", 4, (), registers=40), Role("b", 4, ())), (), ())


# ------------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Wait("fulll", "c"), "no mbarrier 'fulll'; there are full, empty"),
        (Wait("full", "x"), "the role has no cursor 'x'"),
        (Wait("full", 1), "stage 1 goes up to 1, and full has 1 stage"),
        (Sync("full"), "no named barrier 'full'"),
        (Read("abc"), "no buffer 'abc'; there are ab, acc"),
        (Mma(("ab",), 0, "d"), "no buffer 'd'"),
        (Arrive("empty", 0, by="thread"), "by is one of warp, one, lanes, not 'thread'"),
        (Arrive("empty", 0, to="both"), "targets are 'own', 'all' or ranks, not 'both'"),
        (Arrive("empty", 0, to=((0, 1), (0, 1))), "do not name ranks of a cluster of 1"),
        (Commit("tcgen05"), "pipe is one of wgmma, cp.async, bulk, not 'tcgen05'"),
        (If(OnRank((1,)), ()), "rank 1 of a cluster of 1"),
        (Advance("d"), "the role has no cursor 'd'"),
    ],
)
def test_actions_that_mean_nothing(action: Action, message: str) -> None:
    with pytest.raises(PlanError) as error:
        small(action)
    assert message in str(error.value) and "small, math" in str(error.value)


def test_values_that_mean_nothing() -> None:
    base = small(*READ, *FREE, count=2)
    for change, message in (
        ({"cluster": 0}, "cluster of small must be at least 1, not 0"),
        ({"cluster": True}, "cluster of Pipeline must be an integer"),
        ({"roles": (*base.roles, base.roles[0])}, "two roles are named 'load'"),
        ({"barriers": (*base.barriers, NamedBarrier("x", 48))}, "x counts 48 threads"),
        ({"barriers": (*base.barriers, Mbarrier("x", 0))}, "count of x of small must be at least 1"),
        ({"barriers": (*base.barriers, Mbarrier("x", (1, 2)))}, "x has 2 counts for a cluster of 1"),
        ({"buffers": (*base.buffers, Buffer("x", space="l2"))}, "x is in 'l2'"),
        ({"buffers": (*base.buffers, Buffer("x", either=("load", "other")))}, "no role 'other'"),
    ):
        with pytest.raises(PlanError, match=message):
            replace(base, **change)
    with pytest.raises(PlanError, match="no whole bytes"):
        cluster_ring(2, 100, 101, (2, 1))
    with pytest.raises(PlanError, match="tail = 'none'"):
        cluster_ring(2, 64, 64, tail="none")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ((ForK(()), ForK(())), "2 k loops one after another"),
        ((ForK((ForK(()),)),), "a k loop inside a k loop"),
        ((ForK((ForTiles(()),)),), "inside another loop"),
        ((ForTiles(()), ForK(())), "beside another loop"),
    ],
)
def test_loops_whose_lengths_are_not_told_apart(program: tuple[Action, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Pipeline("loops", (Role("a", 1, program),), (), ())


def test_cluster_waits_need_arrivals() -> None:
    for program, message in (
        ((ClusterWait(),), "without having arrived"),
        ((ClusterArrive(), ClusterArrive()), "a second time without waiting"),
    ):
        found = Pipeline("cluster", (Role("a", 1, program),), (), (), cluster=2).prove()
        assert isinstance(found, Interleaving) and message in found.what
