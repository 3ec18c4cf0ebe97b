"""Barriers and fences: bar, barrier, barrier.cluster, mbarrier, fence, membar.

PTX ISA, "Parallel Synchronization and Communication Instructions". Each barrier carries the knowledge handed to it
(`happens_before.Knowledge`): arriving releases, waiting acquires.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from ...errors import EmulatorError
from ...moved import old_names
from ..machine.deadlocks import STATES, fibers, warps
from ..machine.interpreter import BLOCKED, Cluster, Cta, Fiber, Warp
from ..machine.memory import GRANULE
from ..ptx.parser import PtxInstruction, PtxOperand
from ..ptx.program import Program, Reader, Run
from ..ptx.values import Value, compact, mask_of
from ..races.happens_before import Knowledge, MemoryEvent, Parts
from ..races.lanes import EVERY, synchronise
from .deadlock_causes import cluster_causes, mbarrier_causes, named_causes
from .flags import fence as flag_fence
from .flags import fenced, waited
from .memory import block_of, said
from .registry import ELECT, by_mask, constant, known, operation

PASSED = object()  # marks a fiber that a barrier released while it waited
# In a warp's scratch, of tensor memory alone: what a relaxed arrive hands on, what relaxed waits have acquired.
HANDED, RELAXED = "tensor handed", "tensor relaxed"
NAMED = 16  # named barriers of a block
PHASES = "cluster phases"  # in a warp's scratch: phase of the cluster's barrier -> lanes that arrived in it
BARRIER_BYTES = 8
LAST_WAIT = "last wait"  # in a warp's scratch: the mbarrier for which it waited last
INIT = (
    "fence.mbarrier_init after the initialisation, then a barrier of all threads that use it, orders them: "
    "barrier.cluster where they are in several blocks."
)
REUSE = "A barrier of all threads that use the mbarrier, then mbarrier.inval by one of them, ends its life."
TWO_PHASES = "lanes of one arrive fall into two phases of the {}"
ANNOUNCED = "An expect_tx of all bytes that a phase gets, before the wait for it, orders them."
PHASE_ENDS = "Arrivals and bytes as the barrier counts them, or a wait for the last phase, end it."
COUNT = "mbarrier.init with as many arrivals as come in each phase keeps them in one."
IN_TURN = "A wait for the end of the phase before, by this thread or one that it follows, orders them."
# The opaque state that an arrive returns: the phase, and the arrivals that were pending before it.
PHASE_BITS = 32
PHASE_MASK = (1 << PHASE_BITS) - 1
SCOPES = (
    "shared", "shared::cta", "shared::cluster", "b64", "release", "acquire", "relaxed", "cta", "cluster", "aligned",
)  # fmt: skip


# Barriers of a block --------------------------------------------------------------------------------------------------


class EmulatedNamedBarrier:
    """A named barrier of a block (of sixteen) at which threads are arriving."""

    def __init__(self, knows: Knowledge, expected: int | None) -> None:
        self.knows, self.expected = knows, expected
        self.arrived = self.yes = self.no = 0  # threads; of those of bar.red, by their predicates
        self.waiting: list[Fiber] = []
        self.warps: list[int] = []  # that have arrived
        self.last: PtxInstruction | None = None  # that arrived

    def state(self, cta: Cta, number: int) -> list[str]:
        """Lines of a deadlock's report."""
        missing = [w.number for w in cta.warps if w.alive and w.number not in self.warps]
        lines = [
            f"barrier {number} of CTA {cta.coordinate}: {self.arrived} of "
            f"{self.expected or f'all {cta.alive}'} threads have arrived",
            f"  arrived: {warps(cta, self.warps) or 'none'}",
            f"  not there: {warps(cta, missing) or 'none that still runs'}",
        ]
        if self.waiting:
            lines.insert(1, f"  waits: {warps(cta, [fiber.warp.number for fiber in self.waiting])}")
            lines += named_causes(self, cta, number, cta.scratch["named"])
        return lines


def _named(fiber: Fiber, number: int, expected: int | None) -> EmulatedNamedBarrier:
    barriers = fiber.cta.scratch.get("named")
    if barriers is None:
        barriers = fiber.cta.scratch["named"] = {}
        fiber.cta.cluster.scratch.setdefault("on exit", []).append(_recount)
        fiber.cta.scratch.setdefault("at end", []).append(lambda cta=fiber.cta: _named_left(cta))
        fiber.cta.scratch.setdefault(STATES, []).append(
            lambda cta=fiber.cta: [x for n, one in cta.scratch["named"].items() for x in one.state(cta, n)]
        )
    if not 0 <= number < NAMED:
        raise EmulatorError(f"barrier {number}: a block has barriers 0..{NAMED - 1}")
    found = barriers.get(number)
    if found is None:
        found = barriers[number] = EmulatedNamedBarrier(fiber.cta.cluster.ledger.knowledge(), expected)
    elif found.expected != expected:
        fiber.machine.problem(
            "protocol",
            f"barrier {number} is used with {expected or 'all'} threads, and before with {found.expected or 'all'}",
            fiber,
            orders="One thread count for all bar instructions of a phase, or another barrier, mends it.",
        )
    return found


def _named_left(cta: Cta) -> None:
    """Report named barriers with too few arrivals at the end. No thread waited there, or the kernel would hang.

    The last round of a loop often arrives (bar.arrive) for warps that have ended, as in FlashAttention 3. No thread
    waits for those arrivals, and the barrier goes with the block.
    """
    machine = cta.cluster.machine
    for number, barrier in cta.scratch["named"].items():
        machine.problem(
            "exit" if machine.policy.strict else "lint",
            f"CTA {cta.coordinate} ends when {barrier.arrived} of {barrier.expected or 'all'} threads have arrived at "
            f"barrier {number}: {warps(cta, barrier.warps)}. PTX says nothing of it, and the hardware frees the "
            "barrier with the block; Policy(strict=True) makes this a finding",
            ins=barrier.last,
            orders="A wait for it, or one arrival less in the last round, ends the barrier's phase.",
            cta=cta,
        )


def _complete(cta: Cta, number: int, barrier: EmulatedNamedBarrier) -> bool:
    """Release the waiting threads if all have arrived."""
    if barrier.arrived < (cta.alive if barrier.expected is None else barrier.expected):
        return False
    for waiting in barrier.waiting:
        cta.cluster.ledger.acquire(waiting, barrier.knows)
        waiting.scratch = PASSED
    del cta.scratch["named"][number]
    cta.cluster.wake(barrier.waiting)
    return True


def _recount(fiber: Fiber, count: int) -> None:
    """Threads that have ended no longer count for barriers of the whole block."""
    for number, barrier in list(fiber.cta.scratch.get("named", {}).items()):
        if barrier.expected is None and barrier.arrived and fiber.cta.alive:
            _complete(fiber.cta, number, barrier)


def _within(operand: PtxOperand, low: int, top: int, step: int = 1) -> None:
    """Refuse a constant outside of a range, or not a multiple of `step`."""
    if operand.kind == "number" and not (low <= (number := constant(operand)) <= top and number % step == 0):
        raise ValueError(f"{operand.text} is not {low} to {top}" + f", a multiple of {step}" * (step > 1))


@operation("bar.sync", "bar.arrive", "bar.cta.sync", "bar.cta.arrive", "barrier.sync", "barrier.arrive",
           "barrier.cta.sync", "barrier.cta.arrive")  # fmt: skip
def named_barrier(program: Program, ins: PtxInstruction) -> Run:
    """bar, barrier: arrive at barrier a with b threads. Wait for the others unless it is .arrive."""
    known(ins, "sync", "arrive", "cta", "aligned")
    number = program.value(ins.operands[0], "u32")
    threads = program.value(ins.operands[1], "u32") if len(ins.operands) > 1 else None
    _within(ins.operands[0], 0, NAMED - 1)
    if len(ins.operands) > 1:
        _within(ins.operands[1], 32, 1024, 32)
    waits = "sync" in ins.words
    aligned = ins.words[0] == "bar" or "aligned" in ins.words

    def go(fiber: Fiber) -> int | None:
        if fiber.scratch is PASSED:
            fiber.scratch = None
            return None
        at, barrier = _arrive(fiber, number, threads, aligned)
        if waits:
            return _wait(fiber, at, barrier)
        _complete(fiber.cta, at, barrier)
        return None

    return go


def _arrive(fiber: Fiber, number: Reader, threads: Reader | None, aligned: bool) -> tuple[int, EmulatedNamedBarrier]:
    """Arrive at a barrier of the block: its number, and its state."""
    if aligned:
        fiber.whole()
    at, expected = fiber.one(number(fiber)), None
    if threads is not None:
        expected = fiber.one(threads(fiber))
        if expected % 32 or expected == 0:
            raise EmulatorError(f"barrier {at} of {expected} threads, no whole number of warps")
    barrier = _named(fiber, at, expected)
    fiber.cta.cluster.ledger.release(fiber, barrier.knows)
    barrier.warps.append(fiber.warp.number)
    barrier.last = fiber.ins
    barrier.arrived += 32 if aligned and expected is not None else fiber.lanes.bit_count()
    if barrier.expected is not None and barrier.arrived > barrier.expected:
        raise EmulatorError(f"{barrier.arrived} threads arrive at barrier {at}, which is for {barrier.expected}")
    return at, barrier


def _wait(fiber: Fiber, at: int, barrier: EmulatedNamedBarrier) -> int | None:
    """Wait for the other threads; the last one goes on at once."""
    barrier.waiting.append(fiber)
    if not _complete(fiber.cta, at, barrier):
        return BLOCKED
    fiber.cta.cluster.ready.remove(fiber)  # it is among the woken fibers
    fiber.scratch = None
    return None


@operation("bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red")
def reducing_barrier(program: Program, ins: PtxInstruction) -> Run:
    """bar.red, a barrier with a reduction. All threads get the and, the or, or the count of their predicates."""
    words = known(ins, "red", "cta", "aligned", "popc", "and", "or", "u32", "pred")
    kind = next((word for word in ("popc", "and", "or") if word in words), "")
    if not kind or (kind == "popc") != ("u32" in words) or len(ins.operands) not in (3, 4):
        raise ValueError(f"{ins.opcode} is not emulated")
    target, number = program.result(ins.operands[0], ins.words[-1]), program.value(ins.operands[1], "u32")
    threads = program.value(ins.operands[2], "u32") if len(ins.operands) == 4 else None
    predicate, aligned = program.value(ins.operands[-1], "pred"), ins.words[0] == "bar" or "aligned" in words

    def go(fiber: Fiber) -> int | None:
        if fiber.scratch is not PASSED:
            at, barrier = _arrive(fiber, number, threads, aligned)
            yes = mask_of(predicate(fiber), fiber.lanes).bit_count()
            barrier.yes += yes
            barrier.no += fiber.lanes.bit_count() - yes
            fiber.warp.scratch["votes"] = {**fiber.warp.scratch.get("votes", {}), fiber.lanes: barrier}
            if _wait(fiber, at, barrier) is not None:
                return BLOCKED
        fiber.scratch = None
        barrier = fiber.warp.scratch["votes"].pop(fiber.lanes)
        results = {"popc": barrier.yes, "and": not barrier.no, "or": barrier.yes > 0}
        fiber.registers[target] = results[kind]
        return None

    return go


@operation("bar.warp.sync")
def warp_barrier(program: Program, ins: PtxInstruction) -> Run:
    """bar.warp.sync of lanes that are together in a fiber. They learn each other's accesses."""
    mask = program.value(ins.operands[0], "u32")

    def go(fiber: Fiber) -> None:
        members = fiber.members(fiber.one(mask(fiber)))
        if members == fiber.lanes and fiber.cta.cluster.ledger.lanes:
            synchronise(fiber.cta.cluster.ledger, fiber)

    return by_mask(ins, mask, go)


# Barrier of the cluster -----------------------------------------------------------------------------------------------


class ClusterBarrier:
    """The barrier of all threads of a cluster; threads that have ended count as arrived."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.arrived = self.ended = self.generation = 0
        self.knows, self.sealed = cluster.ledger.knowledge(), cluster.ledger.knowledge()
        self.waiting: list[Fiber] = []

    def state(self) -> list[str]:
        """Lines of a deadlock's report."""
        lines = [
            f"barrier of the cluster, phase {self.generation}: {self.arrived} of {self.cluster.threads} threads have "
            f"arrived, {self.ended} have ended"
        ]
        for cta in self.cluster.ctas:
            there = [w.number for w in cta.warps if w.alive and w.scratch.get("arrived") == self.generation]
            away = [w.number for w in cta.warps if w.alive and w.number not in there]
            lines.append(
                f"  CTA {cta.coordinate}: arrived {warps(cta, there) or 'none'}; not there {warps(cta, away) or 'none'}"
            )
        here = {id(fiber) for fiber in self.waiting}
        others = [
            f for f in self.cluster.fibers if id(f) not in here and f.warp.scratch.get("arrived") != self.generation
        ]
        return lines + cluster_causes(others, self.arrived)

    def check(self) -> None:
        """Begin the next generation if all threads have arrived."""
        if self.arrived and self.arrived + self.ended >= self.cluster.threads:
            self.sealed.merge(self.knows)
            self.knows = self.cluster.ledger.knowledge()
            self.arrived = 0
            self.generation += 1
            self.cluster.wake(self.waiting)


def _cluster_barrier(cluster: Cluster) -> ClusterBarrier:
    found = cluster.scratch.get("barrier")
    if found is None:
        found = cluster.scratch["barrier"] = ClusterBarrier(cluster)
        found.ended = cluster.threads - sum(cta.alive for cta in cluster.ctas)

        def ended(fiber: Fiber, count: int) -> None:
            found.ended += count
            found.check()

        cluster.scratch.setdefault("on exit", []).append(ended)
        cluster.scratch.setdefault(STATES, []).append(lambda: found.state() if found.arrived else [])
    return found


@operation("barrier.cluster.arrive")
def cluster_arrive(program: Program, ins: PtxInstruction) -> Run:
    """barrier.cluster.arrive. A relaxed one hands on initialised mbarriers and the releases of an earlier fence."""
    known(ins, "cluster", "arrive", "aligned", "relaxed", "release")
    relaxed, aligned = "relaxed" in ins.words, "aligned" in ins.words

    def go(fiber: Fiber) -> None:
        if aligned:
            fiber.whole()
        cluster = fiber.cta.cluster
        barrier = _cluster_barrier(cluster)
        phases = fiber.warp.scratch.setdefault(PHASES, {})
        lanes = phases.get(barrier.generation, 0)
        if lanes & fiber.lanes:
            raise EmulatorError("a second barrier.cluster.arrive before the wait for the first")
        phases[barrier.generation] = lanes | fiber.lanes
        phases.pop(barrier.generation - 2, None)  # for which no lane waits any more
        fiber.warp.scratch["arrived"] = barrier.generation
        if relaxed:
            cluster.ledger.release_inits(fiber, barrier.knows)
            if (handed := fenced(fiber, True)) is not None:
                barrier.knows.merge(handed)
        else:
            cluster.ledger.release(fiber, barrier.knows)
        barrier.arrived += fiber.lanes.bit_count()
        barrier.check()

    return go


@operation("barrier.cluster.wait")
def cluster_wait(program: Program, ins: PtxInstruction) -> Run:
    """barrier.cluster.wait: until all threads of the cluster have arrived."""
    known(ins, "cluster", "wait", "aligned", "acquire")

    def go(fiber: Fiber) -> int | None:
        barrier = _cluster_barrier(fiber.cta.cluster)
        phases = fiber.warp.scratch.get(PHASES, {})
        arrived = max((phase for phase, lanes in phases.items() if lanes & fiber.lanes), default=None)
        if arrived is None:
            raise EmulatorError("barrier.cluster.wait without an arrive")
        if barrier.generation > arrived:
            fiber.cta.cluster.ledger.acquire(fiber, barrier.sealed)
            return None
        barrier.waiting.append(fiber)
        return BLOCKED

    return go


# Memory barriers ------------------------------------------------------------------------------------------------------


class EmulatedMbarrier:
    """An mbarrier: a phase ends when no arrival is pending and no byte is outstanding.

    count    arrivals of a phase; pending: those still missing
    bytes    transactions outstanding; it may be negative for a while. announced: by this phase's expect_tx
    phase    phases that have ended
    arrivals (who, how many) of this phase, for reports; before: of the phase before
    far      what threads of other blocks have handed on in this phase, or None; far_sealed: in the phases before
    members  arrivals in this phase; ended: in the phase before, or None; earlier: in the phase before that
    users    warp -> its last operation on the barrier
    made     the instruction that initialised it
    """

    def __init__(self, cta: Cta, offset: int, count: int, init: MemoryEvent, made: PtxInstruction) -> None:
        self.cta, self.offset, self.count, self.init, self.made = cta, offset, count, init, made
        self.ledger = cta.cluster.ledger
        self.pending = count
        self.bytes = self.phase = self.announced = 0
        self.transacted = False
        self.arrivals: list[tuple[Callable[[], str], int]] = []
        self.before: list[tuple[Callable[[], str], int]] = []
        self.waiting: list[Fiber] = []
        self.users: dict[Warp, MemoryEvent] = {}
        self.knows, self.sealed, self.members = (self.ledger.knowledge() for _ in range(3))
        self.tensor, self.tensor_sealed = self.ledger.knowledge(), self.ledger.knowledge()
        self.far: Knowledge | None = None
        self.far_sealed: Knowledge | None = None
        self.ended: Knowledge | None = None
        self.earlier: Knowledge | None = None

    def __str__(self) -> str:
        return f"mbarrier at {self.offset:#x} of CTA {self.cta.coordinate}"

    @property
    def fresh(self) -> bool:
        """True until a thread has arrived, announced bytes or waited, or bytes have come."""
        return self.pending == self.count and not (self.phase or self.bytes or self.transacted or self.waiting)

    def state(self) -> list[str]:
        """Lines of a deadlock's report."""
        arrived = self.count - self.pending
        if not self.waiting and not arrived and not self.bytes:
            return []
        head = f"{self}, phase {self.phase} (parity {self.phase & 1}): {self.pending} of {self.count} arrivals pending"
        if self.transacted:
            head += f", {self.announced - self.bytes} of {self.announced} expected bytes have come"
        lines = [head]
        if self.waiting:
            lines += [f"  waits: {line}" for line in fibers(self.waiting)]
        lines += [f"  arrived: {who()}" + (f", {count} times" if count > 1 else "") for who, count in self.arrivals[:8]]
        if len(self.arrivals) > 8:
            lines.append(f"  and {len(self.arrivals) - 8} more arrivals")
        return lines + mbarrier_causes(self)

    def in_use(self, fiber: Fiber) -> MemoryEvent | None:
        """Another warp's operation that nothing orders before this fiber, or None."""
        if not self.ledger.enabled:
            return None
        others = (event for warp, event in self.users.items() if warp is not fiber.warp)
        return next((event for event in others if not self.ledger.came_before(fiber.knows, event)), None)

    def unordered(self, knows: Knowledge) -> bool:
        """True if nothing orders a thread after the end of the phase before."""
        return not self._after(knows, self.ended)

    def expect(self, count: int) -> None:
        """Announce bytes, or take some back."""
        self.bytes += count
        self.announced += max(count, 0)
        self.transacted = True

    def arrive(
        self, count: int, by: MemoryEvent, knows: Knowledge, after: EmulatedMbarrier | None = None
    ) -> str | None:
        """Add `count` arrivals; return the error of the phase that counts them, or None.

        after  the barrier for which the arriving thread waited last

        An arrival that is not ordered after all of the previous phase may precede part of it in another schedule. So
        may the arrival of another lane in the same instruction.
        """
        if count > self.pending:
            says = f"{self} gets {count} arrivals where {self.pending} of {self.count} are pending: more than its count"
            if after is not None and after is not self:
                says += (
                    f"; the wait before it was for the {after}, of count {after.count}: it ends too soon if more come"
                )
            raise EmulatorError(says)
        early = None
        alike = self.ended is not None and self.ledger.enabled and self.ended.past & self.ledger.bit(by)
        if alike or not self._after(knows, self.ended):
            early = (
                f"the {self} counts this arrival for its phase {self.phase}, and nothing orders it after the end of "
                f"phase {self.phase - 1}, for which it counts in another schedule"
            )
        self.members.past |= self.ledger.bit(by)
        self.arrivals.append((by.describe, count))
        self.pending -= count
        self.check()
        return early

    def hand(self, by: Cta, handed: Knowledge, wide: bool) -> None:
        """Take what a block's threads hand on; wide: by an operation of the cluster's scope."""
        if by is self.cta:
            self.knows.merge(handed)
            return
        if self.far is None:
            self.far = self.ledger.knowledge()
        if wide:
            self.far.merge(handed)
        else:
            self.far.merge_narrow(handed)

    def tell(self, fiber: Fiber, relaxed: bool, wide: bool) -> None:
        """Let a thread that has waited learn what the ended phases tell. It learns now, or if relaxed, at its next
        fence."""
        near, others = waited(fiber, fiber.lanes) if relaxed else (fiber.knows, fiber.knows)
        near.merge(self.sealed)
        if self.far_sealed is not None:
            if wide:
                others.merge(self.far_sealed)
            else:
                others.merge_narrow(self.far_sealed)

    def _after(self, knows: Knowledge, phase: Knowledge | None) -> bool:
        return phase is None or not self.ledger.enabled or not phase.past & ~(knows.seen | knows.past)

    def stale(self, knows: Knowledge) -> str | None:
        """The error of a wait by parity that has just ended, or None.

        The wait ends after any phase of that parity. So it must be ordered after the previous phase, of the other
        parity. Otherwise it may end two phases earlier in another schedule.
        """
        if self._after(knows, self.earlier):
            return None
        return (
            f"the wait for phase {self.phase - 1} of the {self} may end after phase {self.phase - 3} already, of the "
            f"same parity, in another schedule: nothing orders it after the end of phase {self.phase - 2}"
        )

    def check(self) -> None:
        """End the phase if nothing is outstanding."""
        if self.pending == 0 and self.bytes == 0:
            if self.transacted:
                self.members.past |= self.ledger.bit(self.ledger.event(True, self.__str__))
            self.sealed.merge(self.knows)
            self.sealed.past |= self.members.past
            if self.far is not None:
                if self.far_sealed is None:
                    self.far_sealed = self.ledger.knowledge()
                self.far_sealed.merge(self.far)
                self.far = None
            if self.tensor.seen:
                self.tensor_sealed.merge(self.tensor)
                self.tensor = self.ledger.knowledge()
            self.earlier, self.ended = self.ended, self.members
            self.knows, self.members = self.ledger.knowledge(), self.ledger.knowledge()
            self.transacted = False
            self.announced = 0
            self.before, self.arrivals = self.arrivals, []
            self.pending = self.count
            self.phase += 1
            self.cta.cluster.wake(self.waiting)


def barriers_of(cta: Cta) -> dict[int, EmulatedMbarrier]:
    """The live mbarriers of a block, by offset."""
    if "mbarriers" not in cta.scratch:
        cta.scratch["mbarriers"] = {}
        cta.scratch["events"] = []
        cta.overwrites = partial(_overwritten, cta)
        cta.scratch.setdefault("at end", []).append(lambda: _mbarriers_left(cta))
        cta.scratch.setdefault(STATES, []).append(
            lambda: [line for one in cta.scratch["mbarriers"].values() for line in one.state()]
        )
    return cta.scratch["mbarriers"]


def _ended_life(barrier: EmulatedMbarrier) -> None:
    """Take a barrier off the list of its block."""
    live = barriers_of(barrier.cta)
    del live[barrier.offset]
    barrier.cta.guarded = sum({1 << offset // GRANULE for offset in live})


def _overwritten(
    cta: Cta, fiber: Fiber, places: int, parts: Parts, what: Callable[[], str], asynchronous: bool
) -> None:
    """Report a write over live mbarriers. What comes after all their operations is lint, and ends their lives.

    PTX has mbarrier.inval come first.
    """
    for barrier in list(barriers_of(cta).values()):
        place, first = divmod(barrier.offset, GRANULE)
        if not places >> place & 1 or not parts.get(place, EVERY) >> first & (1 << BARRIER_BYTES) - 1:
            continue
        message, user = f"{what()} overwrites the {barrier}, which is live", barrier.in_use(fiber)
        if user is not None:
            message += f": nothing orders this after its use by {user.describe()}"
        elif not asynchronous and not barrier.waiting and fiber.machine.policy.fences != "writers":
            message += '. PTX asks for mbarrier.inval before; Policy(fences="writers") makes this a finding'
            fiber.machine.problem("lint", message, fiber, orders=REUSE)
            _ended_life(barrier)
            cta.scratch.setdefault("overwritten", {})[barrier.offset] = what()
            continue
        fiber.machine.problem("protocol", message, fiber, orders=REUSE)


def _mbarriers_left(cta: Cta) -> None:
    """Report phases that began and have not ended: a count is wrong, or a producer's last acquire armed the barrier.

    PTX asks nothing of an mbarrier at the end; what is still under way to it is a finding of its own. Bytes that came
    and that no expect_tx announced are one, too: a wait for them may have ended before.
    """
    machine = cta.cluster.machine
    for barrier in cta.scratch["mbarriers"].values():
        arrived = barrier.count - barrier.pending
        if arrived or barrier.bytes:
            left = f"{arrived} of {barrier.count} arrivals" + f" and {barrier.bytes} bytes out" * bool(barrier.bytes)
            said = f"the {barrier} is left in a phase with {left}"
            if barrier.bytes < 0:
                more = f"{-barrier.bytes} bytes came that no expect_tx announced, so a wait may end before they come"
                machine.problem("exit", f"{said}: {more}", None, barrier.made, cta=cta, orders=ANNOUNCED)
            elif machine.policy.fences == "writers":
                machine.problem("exit", said, None, barrier.made, cta=cta, orders=PHASE_ENDS)
            else:
                ask = f"{said}. PTX says nothing of it; Policy(fences={'writers'!r}) makes this a finding"
                machine.problem("lint", ask, None, barrier.made, cta=cta, orders=PHASE_ENDS)


def complete(barrier: EmulatedMbarrier, count: int, event: MemoryEvent) -> None:
    """Count the bytes of an asynchronous operation down; the barrier's waiters will know of it."""
    barrier.ledger.learn_open(barrier.knows, event)
    barrier.bytes -= count
    barrier.check()


def barrier_in(cta: Cta, offset: int) -> EmulatedMbarrier:
    """The mbarrier of a block at an offset. Raises EmulatorError without a live one."""
    found = barriers_of(cta).get(offset)
    if found is None:
        last = cta.scratch.get("overwritten", {}).get(offset)
        lost = (
            f"{last} has overwritten it"
            if last is not None
            else ("mbarrier.init, fence.mbarrier_init and a barrier of all threads that use it come first")
        )
        raise EmulatorError(f"no mbarrier is initialised at {offset:#x} of CTA {cta.coordinate}: {lost}")
    return found


def mbarrier_at(fiber: Fiber, address: int) -> EmulatedMbarrier:
    """The mbarrier at a shared address. Raises EmulatorError without a live one; reports a race with its init."""
    cta, offset = block_of(fiber, address)
    found = barrier_in(cta, offset)
    ledger = cta.cluster.ledger
    if fiber.machine.trace is not None:
        fiber.machine.trace.uses(fiber, cta, offset)
    if ledger.enabled and found.init is not fiber.epoch and not ledger.knows(fiber.knows, found.init):
        bit = ledger.bit(found.init)
        if not fiber.knows.inits & bit:
            message, timely = f"the initialisation of the {found} is not ordered before this", False
            fenced = any(other.knows.inits & bit for other in cta.cluster.fibers)
            if fenced and ledger.came_before(fiber.knows, found.init) and not fiber.machine.policy.strict:
                message += "; it came before in time, as a copy issued after it has completed"
                message, timely = f"{message}; Policy(strict=True) makes this a race", True
            fiber.machine.problem("lint" if timely else "race", message, fiber, orders=INIT)
    return found


def signals(fiber: Fiber, barrier: EmulatedMbarrier, copy: str) -> None:
    """Report an initialisation that no fence shows to a copy that signals the barrier.

    Without clusters it is lint where a barrier of the block orders both: Triton's kernels have no such fence.
    """
    cluster = barrier.cta.cluster
    ledger, knows = cluster.ledger, fiber.knows
    if not ledger.enabled or barrier.init.id < ledger.base:
        return
    unfenced = not (knows.inits | ledger.fenced(knows)) & ledger.bit(barrier.init)
    if unfenced and not barrier.init.told:  # one finding for all that one thread initialises at once
        barrier.init.told = True
        ordered = barrier.init is fiber.epoch or ledger.knows(knows, barrier.init)
        practice = ordered and len(cluster.ctas) == 1 and not ledger.writers
        switch = '; PTX asks for one, and Policy(fences="writers") makes this a race' * practice
        fiber.machine.problem(
            "lint" if practice else "race",
            f"the {barrier} is signalled by {copy}, and no fence.mbarrier_init or fence.proxy.async stands "
            f"between its initialisation and this{switch}",
            fiber,
            orders=INIT,
        )


@operation("mbarrier.init")
def mbarrier_init(program: Program, ins: PtxInstruction) -> Run:
    """mbarrier.init: a barrier of `count` arrivals a phase."""
    known(ins, "init", *SCOPES)
    address, count = program.address(ins.operands[0]), program.value(ins.operands[1], "u32")

    def go(fiber: Fiber) -> None:
        arrivals = fiber.one(count(fiber))
        if not 1 <= arrivals < 1 << 20:
            raise EmulatorError(f"mbarrier.init with count {arrivals}: it is 1 to {(1 << 20) - 1}")
        for at, lanes in Counter(fiber.each(address(fiber)).tolist()).items():
            cta, offset = block_of(fiber, int(at))
            if offset % BARRIER_BYTES or offset + BARRIER_BYTES > cta.shared.size:
                raise EmulatorError(
                    f"mbarrier at shared offset {offset:#x}: it takes {BARRIER_BYTES} bytes, {BARRIER_BYTES}-byte "
                    f"aligned, and the launch gives the CTA {cta.shared.size} bytes of shared memory"
                )
            live = barriers_of(cta)
            alike = "protocol" if fiber.machine.policy.fences == "writers" else "lint"  # the same bytes once more
            ask = '; Policy(fences="writers") makes this a finding' * (alike == "lint")
            if (before := live.get(offset)) is not None:
                kind = alike if before.fresh and before.count == arrivals else "protocol"
                message = f"mbarrier.init of the {before}, which is live: one thread does it{ask * (kind == alike)}"
                fiber.machine.problem(kind, message, fiber, orders=REUSE)
            live[offset] = EmulatedMbarrier(cta, offset, arrivals, fiber.epoch, ins)
            live[offset].users[fiber.warp] = fiber.epoch
            cta.guarded |= 1 << offset // GRANULE
            if lanes > 1:  # of PTX the second lane's is of a live one
                message = f"{lanes} lanes initialise the {live[offset]}: elect one{ask}"
                fiber.machine.problem(alike, message, fiber, orders=ELECT)
            cta.scratch["events"].append(fiber.epoch)
            if fiber.machine.trace is not None:
                fiber.machine.trace.initialised(fiber, offset)
            cta.shared.written[offset : offset + BARRIER_BYTES] = True

    return go


@operation("mbarrier.inval")
def mbarrier_inval(program: Program, ins: PtxInstruction) -> Run:
    """mbarrier.inval: end the life of the barrier."""
    known(ins, "inval", *SCOPES)
    address = program.address(ins.operands[0])

    def go(fiber: Fiber) -> None:
        barrier = mbarrier_at(fiber, fiber.one(address(fiber)))
        if barrier.waiting or barrier.bytes:
            message = f"mbarrier.inval of the {barrier} while it is waited for"
            fiber.machine.problem("protocol", message, fiber, orders=REUSE)
        elif (user := barrier.in_use(fiber)) is not None:
            message = f"mbarrier.inval of the {barrier} after its use by {user.describe()}, and nothing orders the two"
            fiber.machine.problem("protocol", message, fiber, orders=REUSE)
        _ended_life(barrier)

    return go


@operation("mbarrier.arrive", "mbarrier.arrive_drop")
def mbarrier_arrive(program: Program, ins: PtxInstruction) -> Run:
    """mbarrier.arrive: each active lane arrives; with expect_tx it first announces bytes.

    PTX ISA, "mbarrier.arrive": its scope is .cta unless it is written, for another block's barrier too.
    """
    known(ins, "arrive", "arrive_drop", "expect_tx", "noComplete", *SCOPES)
    operands = list(ins.operands)
    state = None
    if operands[0].kind != "address":
        first = operands.pop(0)
        state = None if first.kind == "sink" else program.result(first, "u64")
    address = program.address(operands[0])
    extra = program.value(operands[1], "u32") if len(operands) > 1 else None
    expects, drops, relaxed = "expect_tx" in ins.words, "arrive_drop" in ins.words, "relaxed" in ins.words
    wide, open_phase = "cluster" in ins.words, "noComplete" in ins.words

    def go(fiber: Fiber) -> None:
        ledger, acted = fiber.cta.cluster.ledger, fiber.epoch
        amount = 1 if extra is None else fiber.one(extra(fiber))
        handed = ledger.knowledge()
        if relaxed:
            ledger.renew(fiber)
            ledger.release_inits(fiber, handed)
            tensor = fiber.warp.scratch.get(HANDED)
        else:
            ledger.release(fiber, handed)
            tensor = None
        phases: dict[EmulatedMbarrier, int] = {}
        states: list[int] = []  # of the barrier before each lane's arrival
        for at in fiber.each(address(fiber)).tolist():
            barrier = mbarrier_at(fiber, int(at))
            if phases.setdefault(barrier, barrier.phase) != barrier.phase:
                fiber.machine.problem("protocol", TWO_PHASES.format(barrier), fiber, orders=COUNT)
            if state is not None:
                states.append(barrier.phase | barrier.pending << PHASE_BITS)
            barrier.hand(fiber.cta, handed, wide or relaxed)  # of a relaxed one, initialisations alone
            if relaxed and (more := fenced(fiber, barrier.cta is not fiber.cta)) is not None:
                barrier.hand(fiber.cta, more, wide)
            if tensor is not None:
                barrier.tensor.merge(tensor)
            if barrier.cta is not fiber.cta:
                barrier.cta.remote.append((acted, said(fiber, ins)(), ins))
            if drops:
                barrier.count -= 1
            if expects:
                barrier.expect(amount)
            barrier.users[fiber.warp] = acted
            last_wait: EmulatedMbarrier | None = fiber.warp.scratch.get(LAST_WAIT)
            early = barrier.arrive(1 if expects else amount, acted, handed, last_wait)
            if early is not None:
                fiber.machine.problem("protocol", early, fiber, ins, orders=IN_TURN)
            if open_phase and barrier.phase != phases[barrier]:
                text = (
                    f"a .noComplete arrival ends phase {phases[barrier]} of the {barrier}: PTX leaves open what comes"
                )
                fiber.machine.problem("protocol", text, fiber, ins, orders=COUNT)
        if state is not None:
            fiber.registers[state] = compact(fiber.spread(np.array(states, dtype=np.uint64)))

    return go


@operation("mbarrier.pending_count")
def mbarrier_pending(program: Program, ins: PtxInstruction) -> Run:
    """mbarrier.pending_count: the arrivals that a state, as an arrive returned it, still waited for."""
    known(ins, "pending_count", "b64")
    target, state = program.result(ins.operands[0], "u32"), program.value(ins.operands[1], "u64")

    def go(fiber: Fiber) -> None:
        found = state(fiber)
        pending = found >> (np.uint64(PHASE_BITS) if isinstance(found, np.ndarray) else PHASE_BITS)
        fiber.registers[target] = pending.astype(np.int64) if isinstance(pending, np.ndarray) else pending

    return go


@operation("mbarrier.expect_tx", "mbarrier.complete_tx")
def mbarrier_bytes(program: Program, ins: PtxInstruction) -> Run:
    """mbarrier.expect_tx, complete_tx: change the bytes outstanding."""
    known(ins, "expect_tx", "complete_tx", *SCOPES)
    address, amount = program.address(ins.operands[0]), program.value(ins.operands[1], "u32")
    sign = 1 if ins.words[1] == "expect_tx" else -1

    def go(fiber: Fiber) -> None:
        for at in fiber.each(address(fiber)).tolist():
            barrier = mbarrier_at(fiber, int(at))
            barrier.users[fiber.warp] = fiber.epoch
            barrier.expect(sign * fiber.one(amount(fiber)))
            if sign < 0:
                barrier.check()

    return go


class Poll(NamedTuple):
    """A test of an mbarrier that failed, by its place in the program."""

    barrier: EmulatedMbarrier
    asked: int
    by_parity: bool
    pc: int

    def ended(self) -> bool:
        """True if the phase has ended since."""
        return self.barrier.phase & 1 != self.asked if self.by_parity else self.barrier.phase > self.asked


@operation("mbarrier.try_wait", "mbarrier.test_wait")
def mbarrier_wait(program: Program, ins: PtxInstruction) -> Run:
    """mbarrier.try_wait, test_wait: has a phase ended? A second test that fails waits until it has."""
    known(ins, "try_wait", "test_wait", "parity", *SCOPES)
    target = program.result(ins.operands[0], "pred")
    address = program.address(ins.operands[1])
    phase = program.value(ins.operands[2], "u32" if "parity" in ins.words else "u64")
    for limit in ins.operands[3:]:
        program.value(limit, "u32")
    by_parity, relaxed, tries = "parity" in ins.words, "relaxed" in ins.words, "try_wait" in ins.words
    wide = "cluster" in ins.words

    def go(fiber: Fiber) -> int | None:
        barrier = mbarrier_at(fiber, fiber.one(address(fiber)))
        asked = fiber.one(phase(fiber)) if by_parity else _phase_of(fiber, phase(fiber))
        if by_parity and asked > 1:  # ptxas shifts the operand left by 31: Triton passes -1 as parity 1
            message = f"phase parity {asked:#x}: PTX has 0 and 1; ptxas takes the lowest bit, {asked & 1}"
            fiber.machine.problem("lint", message, fiber, orders="The phase number & 1 is its parity.")
            asked &= 1
        question = Poll(barrier, asked, by_parity, ins.pc)
        barrier.users[fiber.warp] = fiber.epoch
        again = question in fiber.polls
        rested, fiber.rests = fiber.rests, False
        if question.ended() and (again or not tries or fiber.machine.policy.waits == "prompt"):
            fiber.registers[target] = True
            if by_parity and (wrong := barrier.stale(fiber.knows)) is not None:
                fiber.machine.problem("protocol", wrong, fiber, orders=IN_TURN)
            ledger = fiber.cta.cluster.ledger
            barrier.tell(fiber, relaxed, wide)
            fiber.warp.scratch[LAST_WAIT] = barrier
            if relaxed or barrier.tensor_sealed.seen:
                told = fiber.warp.scratch.setdefault(RELAXED, ledger.knowledge())
                told.merge(barrier.tensor_sealed)
                if relaxed:
                    told.merge(barrier.sealed)
                    if barrier.far_sealed is not None:
                        told.merge(barrier.far_sealed)
            fiber.spin = None
            fiber.polls = set()
            return None
        if fiber.spin == question:
            fiber.polls = {question}
            barrier.waiting.append(fiber)
            return BLOCKED
        # A thread that polls several barriers in turn waits for any of them. Woken by another, it asks that one next.
        if again and not rested and not any(one.ended() for one in fiber.polls):
            for one in {poll.barrier for poll in fiber.polls}:
                one.waiting.append(fiber)
            fiber.rests = True
            return BLOCKED
        fiber.spin = question
        fiber.polls.add(question)
        fiber.registers[target] = False
        return None

    return go


def _phase_of(fiber: Fiber, state: Value) -> int:
    """The phase of the barrier's state in each lane, which arrived in one phase together."""
    return fiber.one(state & np.uint64(PHASE_MASK) if isinstance(state, np.ndarray) else state & PHASE_MASK)


# Fences ---------------------------------------------------------------------------------------------------------------


@operation("fence", "membar")
def fence(program: Program, ins: PtxInstruction) -> Run:
    """fence: of the async proxy, of mbarrier initialisations, or of ordinary accesses."""
    words = set(ins.words[1:])
    if "mbarrier_init" in words:
        return lambda fiber: fiber.cta.cluster.ledger.init_fence(fiber)
    if "proxy" in words and any(word.startswith("async") for word in words):
        return _proxy_fence(words)
    if "proxy" in words and "alias" not in words:
        raise ValueError(f"{ins.opcode} is not emulated")

    acquires, releases = "release" not in words, "acquire" not in words
    far, wide = "cta" not in words, not {"cta", "cluster"} & words
    shared_alone = any(word.startswith("sync_restrict") for word in words)
    return lambda fiber: flag_fence(fiber, acquires, releases, far, wide, shared_alone)


def _proxy_fence(words: set[str]) -> Run:
    """fence.proxy.async: of all memory, of shared memory, or of global memory alone.

    .async::generic with .release or .acquire is a fence of that direction too, for shared memory and the cluster: it
    goes with relaxed operations of an mbarrier.
    """
    in_global, in_shared = "global" in words, any("shared" in word for word in words)

    def go(fiber: Fiber) -> None:
        ledger = fiber.cta.cluster.ledger
        if "acquire" in words:
            flag_fence(fiber, True, False, True, False, True)
        if not in_global:
            ledger.proxy_fence(fiber)
        if not in_shared:
            ledger.global_fence(fiber)
        if "release" in words:
            flag_fence(fiber, False, True, True, False, True)

    return go


__getattr__ = old_names(__name__)
