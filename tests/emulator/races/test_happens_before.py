"""Each rule of the happens-before checker by itself, and that forgetting changes no verdict."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

import layoutgemm.emulator.machine.interpreter as machine
from layoutgemm.emulator.machine.interpreter import Policy, PtxMachine
from layoutgemm.emulator.races.happens_before import Knowledge, Ledger, MemoryEvent, ShadowMemory
from tests.emulator.ops.copy import test_bulk as test_copy_bulk
from tests.emulator.ops.copy import test_cp_async as test_copy_async
from tests.emulator.run_ptx import run


class Actor:
    """A fiber, as the ledger sees one."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self.ledger, self.name = ledger, name
        self.warp = SimpleNamespace(accessing=False, settles=None, turn=1, partly_told={})
        self.knows: Knowledge = ledger.knowledge()
        self.epoch: MemoryEvent = ledger.event(False, self.describe)

    def describe(self) -> str:
        return self.name


class World:
    lint = ""  # of the last access

    def __init__(self, writers: bool = True, count: int = 3, refills: bool = False) -> None:
        self.ledger = Ledger(writers, refills=refills)
        self.shadow = ShadowMemory(self.ledger, lambda place: f"place {place}")
        self.actors = [Actor(self.ledger, f"actor {i}") for i in range(count)]

    def touch(
        self, actor, places: int, write: bool, event: MemoryEvent | None = None, engine: bool = False
    ) -> str | None:
        """A generic access of the actor; or one of an event that it issues, `engine`: by the async proxy."""
        found = self.shadow.access(
            places, write, event or actor.epoch, actor.knows, engine, lambda: f"access by {actor.name}", actor.epoch
        )
        self.lint = str(found) if found is not None and found.lint else ""
        return None if found is None or found.lint else str(found)

    def pass_on(self, source: Actor, target: Actor) -> None:
        barrier = self.ledger.knowledge()
        self.ledger.release(source, barrier)
        self.ledger.acquire(target, barrier)


@pytest.fixture
def world() -> World:
    return World()


def test_reads_do_not_race_and_writes_do(world):
    a, b, _ = world.actors
    assert world.touch(a, 0b11, False) is None and world.touch(b, 0b11, False) is None
    assert "access by actor 1 and, before it, access by actor 0 both touch place 1" in world.touch(b, 0b10, True)
    assert world.touch(b, 0b100, True) is None
    assert "nothing orders them" in world.touch(a, 0b100, False)


def test_an_actor_does_not_race_with_itself(world):
    a = world.actors[0]
    assert world.touch(a, 1, True) is None and world.touch(a, 1, False) is None and world.touch(a, 1, True) is None
    world.ledger.renew(a)
    assert world.touch(a, 1, True) is None


def test_a_release_and_an_acquire_order(world):
    a, b, c = world.actors
    world.touch(a, 1, True)
    world.pass_on(a, b)
    assert world.touch(b, 1, True) is None
    assert world.touch(c, 1, False) is not None
    # What a does after its release is not handed on.
    world.touch(a, 2, True)
    assert world.touch(b, 2, False) is not None


def test_a_release_passes_on_acquired_knowledge(world):
    a, b, c = world.actors
    world.touch(a, 1, True)
    world.pass_on(a, b)
    world.pass_on(b, c)
    assert world.touch(c, 1, True) is None


def test_an_asynchronous_event_is_unknown_even_to_its_issuer(world):
    a = world.actors[0]
    copy = world.ledger.event(True, a.describe)
    assert world.touch(a, 1, True, copy, True) is None
    assert world.touch(a, 1, False) is not None
    world = World()
    a = world.actors[0]
    copy = world.ledger.event(True, a.describe)
    world.touch(a, 1, True, copy, True)
    world.ledger.learn(a.knows, copy)
    assert world.touch(a, 1, False) is None


def test_a_generic_write_needs_the_writers_fence(world):
    a, b, _ = world.actors

    def read_by_engine(by: Actor) -> str | None:
        return world.touch(by, 1, False, world.ledger.event(True, by.describe), True)

    world.touch(a, 1, True)
    assert "no fence.proxy.async" in read_by_engine(a)
    world.ledger.proxy_fence(a)
    assert read_by_engine(a) is None
    world.pass_on(a, b)
    assert read_by_engine(b) is None
    # A generic read needs none before an asynchronous write.
    world.touch(a, 2, False)
    assert world.touch(a, 2, True, world.ledger.event(True, a.describe), True) is None
    # A write after the fence needs another.
    world.touch(a, 4, True)
    assert world.touch(a, 4, False, world.ledger.event(True, a.describe), True) is not None


@pytest.mark.parametrize("writers", [True, False])
def test_a_readers_fence_counts_as_ptx_has_it(writers):
    world = World(writers)
    a, b, _ = world.actors
    world.touch(a, 1, True)
    world.pass_on(a, b)
    world.ledger.proxy_fence(b)
    assert (world.touch(b, 1, False, world.ledger.event(True, b.describe), True) is None) == (not writers)
    assert ("another thread's than the one that wrote" in world.lint) == (not writers)
    # The writer's own fence is beyond doubt, in either case.
    world.touch(a, 2, True)
    world.ledger.proxy_fence(a)
    world.pass_on(a, b)
    assert world.touch(b, 2, False, world.ledger.event(True, b.describe), True) is None and not world.lint


@pytest.mark.parametrize("refills", [True, False])
@pytest.mark.parametrize("who", ["nobody", "reader", "copier"])
def test_a_copy_over_what_was_read_needs_a_fence(refills, who):
    world = World(False, refills=refills)
    a, b, _ = world.actors
    world.touch(a, 1, False)
    if who == "reader":
        world.ledger.proxy_fence(a)
    world.pass_on(a, b)
    if who == "copier":
        world.ledger.proxy_fence(b)
    found = world.touch(b, 1, True, world.ledger.event(True, b.describe), True)
    assert (found is not None) == (refills and who == "nobody")
    assert bool(world.lint) == (not refills and who == "nobody")
    # A copy out of what was read overwrites nothing, and a generic write after it needs no fence.
    world.touch(a, 2, False)
    world.pass_on(a, b)
    assert world.touch(b, 2, False, world.ledger.event(True, b.describe), True) is None and not world.lint
    world.touch(a, 4, False)
    world.pass_on(a, b)
    assert world.touch(b, 4, True) is None and not world.lint


@pytest.mark.parametrize("through_barrier", [True, False])
def test_asynchronous_generic_writes_are_fenced_by_the_thread_that_learns_of_them(through_barrier):
    """cp.async: its thread fences after the wait; what completed on an mbarrier, whoever waited there."""
    world = World()
    a, b, _ = world.actors
    copy = world.ledger.event(False, a.describe)
    world.touch(a, 1, True, copy)
    if through_barrier:
        barrier = world.ledger.knowledge()
        world.ledger.learn_open(barrier, copy)
        world.ledger.acquire(b, barrier)
        fencer = b
    else:
        world.ledger.learn(a.knows, copy)
        world.pass_on(a, b)
        world.ledger.proxy_fence(b)
        assert world.touch(b, 1, False, world.ledger.event(True, b.describe), True) is not None
        fencer = a
    assert world.touch(fencer, 1, False, world.ledger.event(True, b.describe), True) is not None
    world.ledger.proxy_fence(fencer)
    assert world.touch(fencer, 1, False, world.ledger.event(True, b.describe), True) is None


def test_operations_of_one_engine_do_not_race(world):
    a, b, _ = world.actors
    engine = object()
    first, second = (world.ledger.event(True, x.describe, engine) for x in (a, b))
    world.touch(a, 1, True, first, True)
    assert world.touch(b, 1, True, second, True) is None
    other = world.ledger.event(True, b.describe, object())
    assert world.touch(b, 1, True, other, True) is not None


def test_an_overwritten_access_is_forgotten_and_the_last_one_counts(world):
    a, b, c = world.actors
    world.touch(a, 1, True)
    world.pass_on(a, b)
    world.touch(b, 1, True)
    world.pass_on(b, c)
    assert world.touch(c, 1, True) is None
    assert len(world.shadow.records) == 1


def test_initialisations_are_handed_on_by_a_relaxed_arrive(world):
    a, b, _ = world.actors
    init = a.epoch
    barrier = world.ledger.knowledge()
    world.ledger.release_inits(a, barrier)
    world.ledger.acquire(b, barrier)
    assert not b.knows.inits & world.ledger.bit(init)
    world.ledger.init_fence(a)
    world.ledger.release_inits(a, barrier)
    world.ledger.acquire(b, barrier)
    assert b.knows.inits & world.ledger.bit(init) and not world.ledger.knows(b.knows, init)


def test_a_ledger_that_is_off_finds_nothing():
    world = World()
    world.ledger.enabled = False
    a, b, _ = world.actors
    assert world.touch(a, 1, True) is None and world.touch(b, 1, True) is None and not world.shadow.records


# Forgetting -----------------------------------------------------------------------------------------------------------


def story(seed: int, compact: bool) -> tuple[list[bool], int]:
    """Verdicts of a random run of actors, and how many events are still told apart."""
    rng, world = random.Random(seed), World(count=4)
    ledger, verdicts, flying = world.ledger, [], []
    barriers = [ledger.knowledge() for _ in range(3)]
    for step in range(400):
        actor, places = rng.choice(world.actors), rng.getrandbits(4) or 1
        way = rng.randrange(10)
        if way < 3:
            verdicts.append(world.touch(actor, places, rng.random() < 0.4) is None)
        elif way < 5:
            ledger.release(actor, rng.choice(barriers))
        elif way < 7:
            ledger.acquire(actor, rng.choice(barriers))
        elif way == 7:
            ledger.proxy_fence(actor)
        elif way == 8:
            event = ledger.event(rng.random() < 0.7, actor.describe)
            verdicts.append(world.touch(actor, places, rng.random() < 0.5, event, event.asynchronous) is None)
            flying.append(event)
        elif flying:
            event = flying.pop(rng.randrange(len(flying)))
            if rng.random() < 0.5:
                ledger.learn(actor.knows, event)
            else:
                ledger.learn_open(rng.choice(barriers), event)
        if step % 40 == 39:  # everybody meets
            meeting = ledger.knowledge()
            for one in world.actors:
                ledger.proxy_fence(one)
                ledger.release(one, meeting)
            for one in world.actors:
                ledger.acquire(one, meeting)
        if compact:
            ledger.compact(world.actors, flying)
    return verdicts, ledger.next - ledger.base


def test_forgetting_changes_no_verdict_and_keeps_the_sets_short(monkeypatch):
    monkeypatch.setattr(Ledger, "SWEEP", 4)  # so that sets are looked through all the time
    lengths = []
    for seed in range(60):
        whole, _ = story(seed, False)
        short, length = story(seed, True)
        assert whole == short, seed
        lengths.append(length)
        assert 0 < sum(whole) < len(whole)
    assert sorted(lengths)[30] < 600  # of 1,700


def test_unreferenced_sets_are_dropped(world):
    ledger, event = world.ledger, world.actors[0].epoch
    kept = [ledger.knowledge() for _ in range(10)]
    for one in kept:
        ledger.learn(one, event)
    for _ in range(20 * Ledger.SWEEP):
        ledger.knowledge()
    assert len(ledger._knowledges) < 3 * Ledger.SWEEP
    assert {*map(id, ledger.knowledges)} == {*map(id, kept), *[id(actor.knows) for actor in world.actors]}


@pytest.mark.parametrize("module", [test_copy_async, test_copy_bulk], ids=["cp.async", "bulk"])
def test_kernels_are_judged_the_same_when_everything_is_forgotten_at_once(module, monkeypatch):
    monkeypatch.setattr(PtxMachine, "COMPACT", 1)
    if module is test_copy_async:
        for missing in (test_copy_async.COMMIT, "cp.async.wait_group 0;", "both"):
            module.test_without_commit_or_wait_the_read_is_a_race(missing)
        module.test_a_wait_counts_the_most_recent_groups()
        module.test_groups_belong_to_threads()
        module.test_a_barrier_after_the_wait_shows_the_copy_to_others()
        module.test_a_buffer_that_others_still_read_is_not_overwritten()
        module.test_an_mbarrier_is_told_of_the_copies(Policy())
        module.test_an_mbarrier_that_is_not_told_of_the_copies()
    else:
        for policy in (module.LATE, module.EARLY):
            module.test_a_load_into_a_buffer_still_being_read_is_a_race(policy)
            module.test_a_store_needs_a_fence_before_and_a_wait_after(policy)
            module.test_multicast(policy)
            module.test_a_copy_to_the_other_block(policy)


def test_a_long_run_forgets():
    body = """mov.u32 %r30, %tid.x; mov.u32 %r29, fixed; setp.eq.u32 %p0, %r30, 0; mov.u32 %r28, smem;
    @%p0 mbarrier.init.shared.b64 [%r29], 64; mov.u32 %r1, 0; bar.sync 0; mad.lo.u32 %r27, %r30, 4, %r28;
    L: and.b32 %r2, %r1, 1; st.shared.u32 [%r27], %r1; mbarrier.arrive.shared.b64 _, [%r29];
    W: mbarrier.try_wait.parity.shared.b64 %p1, [%r29], %r2; @!%p1 bra W; ld.shared.u32 %r3, [%r28]; bar.sync 1;
    add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 200; @%p2 bra L;"""
    lengths = []

    class Watched(Ledger):
        def compact(self, fibers, also=()):
            super().compact(fibers, also)
            lengths.append(self.next - self.base)

    keep, compact = machine.Ledger, PtxMachine.COMPACT
    machine.Ledger, PtxMachine.COMPACT = Watched, 20
    try:
        assert not run(body, block=64, shared=1024, static=16, policy=Policy(pick="random")).findings
    finally:
        machine.Ledger, PtxMachine.COMPACT = keep, compact
    assert len(lengths) > 10 and max(lengths[5:]) < 60


def test_a_race_after_reconvergence_is_found_after_compaction(monkeypatch):
    monkeypatch.setattr(PtxMachine, "COMPACT", 1)
    import numpy as np

    # A relaxed flag makes the read come after the write, and orders nothing.
    body = """mov.u32 %r30, %tid.x; mov.u32 %r29, smem; setp.ge.u32 %p0, %r30, 32; @%p0 bra READ;
    setp.lt.u32 %p1, %r30, 7; @%p1 bra A; bar.warp.sync 0; fence.proxy.async; fence.proxy.async; bra B;
    A: fence.proxy.async; bar.warp.sync 0;
    B: st.shared.u32 [%r29], %r30; st.relaxed.gpu.global.u32 [%flag], 1; bra END;
    READ: ld.relaxed.gpu.global.u32 %r1, [%flag]; fence.proxy.async; setp.ne.u32 %p2, %r1, 1; @%p2 bra READ;
    ld.shared.u32 %r0, [%r29]; END:"""
    for seed in range(8):
        buffers = {"flag": np.zeros(1, np.uint32)}
        found = run(body, buffers, block=64, shared=1024, policy=Policy(pick="random", seed=seed))
        assert "race" in found.kinds


def test_asynchronous_generic_writes_stay_distinct_after_compaction(world):
    a, b, _ = world.actors
    for _ in range(20):
        world.ledger.renew(a)
    copy = world.ledger.event(False, a.describe)
    world.touch(a, 1, True, copy)
    world.ledger.learn_open(b.knows, copy)
    world.ledger.compact(world.actors)
    assert world.ledger.base > 1
    world.ledger.proxy_fence(b)
    assert world.touch(b, 1, False, world.ledger.event(True, b.describe), True) is None
