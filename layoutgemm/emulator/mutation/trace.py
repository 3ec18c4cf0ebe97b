"""Traces of a run's accesses and their order, to tell whether a mutant changes anything.

A machine with an `AccessTrace` keeps each access to shared or tensor memory, each mbarrier initialisation, and the
end of each warp. An access is named by its warp, its instruction, and the count of earlier executions. So the accesses
of two runs match in any order of execution. Each entry lists the earlier ones known to have happened
(`races/happens_before.py`). That relation is the same in every schedule of a kernel without races, and synchronising
instructions exist to create it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..machine.interpreter import Cta, Fiber
from ..machine.launch import Triple
from ..races.happens_before import NO_PARTS, Knowledge, MemoryEvent, Parts
from ..races.lanes import one_lane

END = -1  # the end of a warp, among pcs
KINDS = ("seen", "proxied", "inits")  # fields of `Knowledge` that make up the order


@dataclass(frozen=True, slots=True)
class AccessName:
    """An access: its warp, its instruction in the unchanged kernel (or `END`), and a count."""

    cta: Triple
    warp: int
    pc: int
    time: int


@dataclass(slots=True)
class ClusterTrace:
    """The accesses of one cluster.

    touched  number of an access -> what it touched: memory, places, parts, whether it writes, its proxy
    before   number -> for each of `KINDS`, the numbers of those known to have happened, as a bit set
    used     mbarrier operations: warp, instruction, and which barrier
    driven   the mbarriers, (block, offset), that something else than an mbarrier instruction arrives at: an engine does
    """

    names: dict[AccessName, int]
    touched: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    before: dict[int, tuple[int, ...]] = field(default_factory=dict)
    used: set[tuple[Any, ...]] = field(default_factory=set)
    driven: set[tuple[Triple, int]] = field(default_factory=set)
    times: dict[tuple[Any, ...], int] = field(default_factory=dict)
    of_event: dict[int, int] = field(default_factory=dict)  # event -> its accesses, as a bit set
    events: int = 0  # those that have any, as a bit set
    # Accesses that were split over several events, as a bit set, by all of those events, as a bit set.
    shares: dict[int, int] = field(default_factory=dict)
    cache: dict[tuple[Any, str], tuple[int, int]] = field(default_factory=dict)

    def known(self, fiber: Fiber, kind: str, events: int) -> int:
        """The accesses of known events. A fiber's knowledge only grows, so only new events are examined."""
        had, out = self.cache.get((fiber, kind), (0, 0))
        if not had and fiber.parent is not None:
            had, out = self.cache.get((fiber.parent, kind), (0, 0))
            if had & ~events:
                had = out = 0
        new = events & self.events & ~had
        had |= new
        while new:
            low = new & -new
            new ^= low
            out |= self.of_event[low.bit_length() - 1]
        self.cache[fiber, kind] = had, out
        for needed, numbers in self.shares.items():
            if not needed & ~events:
                out |= numbers
        return out

    def divide(self, event: MemoryEvent, other: MemoryEvent) -> None:
        """Some lanes' part of an event became another event. An access is known where all its parts are."""
        both = 1 << event.id | 1 << other.id
        numbers = self.of_event.pop(event.id, 0)
        for needed in [needed for needed in self.shares if needed >> event.id & 1]:
            moved = self.shares.pop(needed)
            self.shares[needed | both] = self.shares.get(needed | both, 0) | moved
        if numbers:
            self.shares[both] = self.shares.get(both, 0) | numbers
        self.events &= ~both
        shared = 0
        for several in self.shares.values():
            shared |= several
        for key, (had, out) in self.cache.items():
            self.cache[key] = had & ~both, out & ~shared


class AccessTrace:
    """The accesses of a run, cluster by cluster.

    like     a trace of the unchanged kernel, whose numbers this one uses
    origins  pc -> pc in the unchanged kernel, where it was changed
    """

    def __init__(self, like: AccessTrace | None = None, origins: Sequence[int] | None = None) -> None:
        self.parts: dict[Triple, ClusterTrace] = {}
        self.like, self.origins = like, origins

    def part(self, cta: Cta) -> ClusterTrace:
        """The part of the block's cluster."""
        corner = cta.cluster.ctas[0].coordinate
        found = self.parts.get(corner)
        if found is None:
            same = None if self.like is None else self.like.parts.get(corner)
            found = self.parts[corner] = ClusterTrace({} if same is None else dict(same.names))
            cta.cluster.ledger.divided = found.divide
        return found

    def access(
        self,
        fiber: Fiber,
        memory: str,
        cta: Cta,
        places: int,
        write: bool,
        event: MemoryEvent,
        knows: Knowledge,
        asynchronous: bool,
        parts: Parts = NO_PARTS,
    ) -> None:
        """Record an access when it is issued."""
        masks = tuple(sorted(parts.items())) if parts else ()
        self._add(fiber, ((memory, cta.coordinate), places, masks, write, asynchronous), event, knows)

    def initialised(self, fiber: Fiber, offset: int) -> None:
        """Record the initialisation of an mbarrier."""
        self._add(fiber, (("mbarrier", fiber.cta.coordinate), offset), fiber.epoch, fiber.knows)

    def uses(self, fiber: Fiber, cta: Cta, offset: int) -> None:
        """Record an operation on an mbarrier; tests show in the order of later accesses instead."""
        assert fiber.ins is not None
        if fiber.ins.opcode.startswith(("mbarrier.try_wait", "mbarrier.test_wait")):
            return
        part = self.part(cta)
        part.used.add((fiber.cta.coordinate, fiber.warp.number, self._pc(fiber), cta.coordinate, offset))
        if not fiber.ins.opcode.startswith("mbarrier."):
            part.driven.add((cta.coordinate, offset))

    def ended(self, fiber: Fiber) -> None:
        """Record the end of some lanes of a warp."""
        self._add(fiber, (("end",),), None, fiber.knows, END)

    def _pc(self, fiber: Fiber) -> int:
        assert fiber.ins is not None
        pc = fiber.ins.pc
        return pc if self.origins is None else self.origins[pc]

    def _add(
        self,
        fiber: Fiber,
        touched: tuple[object, ...],
        event: MemoryEvent | None,
        knows: Knowledge,
        pc: int | None = None,
    ) -> None:
        part = self.part(fiber.cta)
        key = (fiber.cta.coordinate, fiber.warp.number, self._pc(fiber) if pc is None else pc)
        time = part.times.get(key, 0)
        part.times[key] = time + 1
        number = part.names.setdefault(AccessName(*key, time), len(part.names))
        alone = not fiber.cta.cluster.ledger.lanes or one_lane(fiber.lanes)
        own = part.of_event.get(fiber.epoch.id, 0) if alone else 0  # other lanes' accesses are not in a lane's order
        part.touched[number] = touched
        part.before[number] = tuple(
            part.known(fiber, kind, getattr(knows, kind)) | (own if kind == "seen" else 0) for kind in KINDS
        )
        if event is not None:
            part.of_event[event.id] = part.of_event.get(event.id, 0) | 1 << number
            part.events |= 1 << event.id


@dataclass(frozen=True)
class TraceDifference:
    """The differences of a run from the unchanged kernel's run.

    accesses  the first access that one of them does not have, or has otherwise; "" for none
    uses      the first mbarrier that one of them uses where the other uses another; "" for none
    lost      (earlier, later): pcs of accesses of which the second is no longer ordered after the first
    hidden    (earlier, later): of which the second, of the async proxy, may no longer see the first
    gained    whether some access is ordered after more than before
    """

    accesses: str = ""
    uses: str = ""
    lost: frozenset[tuple[int, int]] = frozenset()
    hidden: frozenset[tuple[int, int]] = frozenset()
    gained: bool = False


def difference(before: AccessTrace, after: AccessTrace, say: Callable[[int], str] = str) -> TraceDifference:
    """The differences of a run from the unchanged kernel's. `say` names an instruction by its pc."""
    if before.parts.keys() != after.parts.keys():
        return TraceDifference("other clusters were run")
    lost: tuple[set[tuple[int, int]], set[tuple[int, int]]] = (set(), set())
    gained, uses = False, ""
    for corner, old in before.parts.items():
        new = after.parts[corner]
        if (place := _first(old, new)) is not None:
            return TraceDifference(_said(old, new, place, say))
        if old.used != new.used:
            one = min(old.used ^ new.used)
            uses = f"mbarrier {one[4]:#x} of CTA {one[3]} is used at {say(one[2])} in one of the two only"
        pcs = {number: name.pc for name, number in old.names.items()}
        gone = sum(1 << number for number in old.touched if number not in new.touched)  # mbarriers that nothing uses
        sets = _sets(old, old.driven | new.driven)
        for number, had in old.before.items():
            if gone >> number & 1:
                continue
            asynchronous = old.touched[number][-1] is True
            one_way = zip(_orders(had, *sets), _orders(new.before[number], *sets), strict=True)
            for kind, (was, is_now) in enumerate(one_way):
                if kind and not asynchronous:
                    continue
                gained = gained or bool(is_now & ~was)
                less = was & ~is_now & ~gone
                while less:
                    low = less & -less
                    less ^= low
                    lost[kind].add((pcs[low.bit_length() - 1], pcs[number]))
    return TraceDifference("", uses, frozenset(lost[0]), frozenset(lost[1]), gained)


def _sets(part: ClusterTrace, driven: set[tuple[Triple, int]]) -> tuple[int, int, int]:
    """Bit sets of ordinary writes, mbarrier initialisations, and initialisations that engines see."""
    writes = inits = shown = 0
    for number, touched in part.touched.items():
        if touched[0][0] == "mbarrier":
            inits |= 1 << number
            if (touched[0][1], touched[1]) in driven:
                shown |= 1 << number
        elif len(touched) > 2 and touched[3] and not touched[4]:
            writes |= 1 << number
    return writes, inits, shown


def _orders(known: tuple[int, ...], writes: int, inits: int, shown: int) -> tuple[int, int]:
    """The accesses that precede an access, and those that the async proxy sees.

    Either kind of fence shows an mbarrier to the async proxy. An initialisation must be visible to the async proxy if
    an engine arrives at the mbarrier, because the engine's proxy accesses it there (PTX ISA, "cp.async.bulk":
    complete-tx on the mbarrier). An mbarrier of threads alone needs only a barrier between the threads, without a
    fence.
    """
    seen, proxied, initialised = known
    return seen & ~inits | (seen | initialised) & inits, proxied & writes | (initialised | proxied) & shown


def _first(old: ClusterTrace, new: ClusterTrace) -> int | None:
    """The first access that differs. Initialisations of mbarriers are left out: their uses show them."""
    if old.touched == new.touched:
        return None
    both = sorted(old.touched.keys() | new.touched.keys())
    for number in both:
        one, other = old.touched.get(number), new.touched.get(number)
        if one != other and (one or other or ((),))[0][0] != "mbarrier":
            return number
    return None


def _said(old: ClusterTrace, new: ClusterTrace, number: int, say: Callable[[int], str]) -> str:
    name = next(name for name, at in new.names.items() if at == number)
    who = f"access {name.time} of CTA {name.cta} warp {name.warp} by {say(name.pc)}"
    if number not in new.touched:
        return f"no {who}"
    return f"one more {who}" if number not in old.touched else f"other places in {who}"
