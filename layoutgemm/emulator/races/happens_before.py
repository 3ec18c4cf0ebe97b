"""Happens-before order of accesses: the race checker, independent of any instruction.

Every fiber (a warp, or some of its lanes) lives in *epochs*: it enters a new one whenever it releases its accesses to
others. An epoch and an asynchronous operation are both *events*. `Knowledge` is a set of events that a fiber, a barrier
or a group of operations knows to have happened. Releasing at a barrier adds the fiber's set to the barrier's; acquiring
adds the barrier's to the fiber's. A `ShadowMemory` keeps accesses to a memory that later ones could conflict with. An
access to the place of an earlier one, one of them a write, is a race unless the fiber knows the earlier event.

Two proxies see shared memory: ordinary instructions (generic) and the asynchronous engines (async). A generic access
comes before an async one only if a `fence.proxy.async` stands between them, anywhere on the path. That is in the PTX
ISA, "Memory Consistency Model", "Proxy-preserved base causality order". A second set, `crossed`, records the
events that went through one. Practice differs in two ways:

    writes  In CUTLASS every writer fences and then a barrier follows. A third set, `proxied`, records the events that
            their own thread fenced. With `writers` only those count; else a fence of another thread's is lint.
    reads   No pipeline fences what it has read before a copy engine refills the buffer. So a missing fence there is
            lint, and a finding with `refills`.

A fiber's lanes are threads of their own: before a barrier, no lane knows another lane's accesses or knowledge
(`emulator/races/lanes.py`, which defines `Knowledge.mine` and `apart`).

Sets are bit sets in Python ints. `compact` forgets the events that no record needs, so the sets grow with the number of
accesses in flight, not with the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from weakref import ref

from ..machine.memory import GRANULE
from ..ptx.program import SHARED_START
from .clocks import NO_CLOCKS, Stamp
from .conflicts import (
    ALLOCATED,
    ANOTHERS_FENCE,
    CLUSTER_SCOPE,
    FENCE,
    FENCE_READS,
    NARROW,
    NOT_HANDED_ON,
    NOT_TAKEN_OVER,
    REFILL,
    TOGETHER,
    TOLD_BY_ONE,
    WAITED,
    WARP_BARRIER,
    WARPGROUP,
    Conflict,
    remedy,
)
from .global_words import note_partly_told
from .lanes import (
    FILTER,
    NOTHING,
    LaneAccess,
    Same,
    both_strong,
    bytes_met,
    crossing,
    each_alone,
    never_race,
    one_lane,
    unknown,
    unordered,
)

if TYPE_CHECKING:
    from ..machine.interpreter import Fiber

SAME = (
    "both write the same bytes, or floats apart by rounding, so that memory holds them in either order; PTX calls it a "
    'race all the same, and so does Policy(fences="writers")'
)
PROXY, SCOPE, TENSOR = "proxy", "scope", "tensor"  # what makes an ordered pair doubtful
WHOLE = 0xFFFF  # every byte of a place
Parts = Mapping[int, int]
NO_PARTS: Parts = MappingProxyType({})


class MemoryEvent:
    """A source of memory accesses: an epoch of a fiber, or one asynchronous operation.

    describe  a function that says what it is, for reports
    engine    for operations of one engine that runs them in their order: equal engines never race
    time      the logical time at which it can have happened, where a timeline is recorded
    issued    what had happened before its issue (`Knowledge.past`), or None
    lanes     those that touched memory, where that is told apart; touches: what they touched: (memory, whether it was
              written, access)
    pieces    the same of global memory: (bytes of a piece, whether it was written, whether strongly) -> number -> lanes
    near      the latest events of the warp with such
    joint     whether its lanes do it as one
    wrote     whether it wrote through the generic proxy
    stamp     the turn of its accesses to global memory (`clocks.py`), or None
    turn      the turn of its warp in which it first wrote global memory, or 0
    divided   the events that have some of its lanes' accesses since those lanes waited alone
    fellows   of a warp's part of a product: those of its warpgroup, None where a warp has not issued it
    told      whether a finding says already that its mbarriers are signalled without a fence
    settled   whether PTX orders its write before later writes of the same address by other instructions
    readers   the lanes whose reads it has as one, which practice takes as made
    """

    __slots__ = (
        "asynchronous", "describe", "divided", "engine", "fellows", "id", "issued", "joint", "lanes", "near", "pieces",
        "readers", "settled", "stamp", "time", "told", "touches", "turn", "wrote",
    )  # fmt: skip

    def __init__(self, number: int, asynchronous: bool, describe: Callable[[], str], engine: object = None) -> None:
        self.id, self.asynchronous, self.describe, self.engine = number, asynchronous, describe, engine
        self.time = self.turn = self.readers = 0
        self.issued: Knowledge | None = None
        self.stamp: Stamp | None = None
        self.lanes, self.joint, self.wrote, self.told, self.settled = 0, False, False, False, False
        self.touches: list[tuple[ShadowMemory, bool, LaneAccess]] = []
        self.pieces: dict[tuple[int, bool, bool], dict[int, int]] = {}
        self.near: deque[MemoryEvent] | None = None
        self.divided: tuple[MemoryEvent, ...] = ()
        self.fellows: Sequence[MemoryEvent | None] = ()


class Knowledge:
    """Events that are known to have happened, as bit sets relative to the ledger's base.

    seen     events
    proxied  events whose generic writes the async proxy sees, by a fence of the thread that wrote
    crossed  events that came before a proxy fence, of any thread that knew of them
    fenced   a fiber's own events of which each lane made what it wrote visible to the async proxy; the other lanes do
             not know that it did
    inits    events whose initialisations of mbarriers are seen (fence.mbarrier_init)
    own      epochs of the fiber itself, and its own asynchronous generic writes
    met      of those, events before an instruction for which these lanes waited for each other: their reads are made
    narrow   events among the seen that an mbarrier of too small a scope told of: PTX does not order them
    unfenced loads and stores of tensor memory among the seen that no tcgen05.wait and fence handed on: likewise
    together events of own reads that the warp's lanes made as one, and at no instruction since have waited for each
             other; waited: those with such an instruction since, which orders no memory by PTX; reads: the events of
             both, and some others
    loose    events among the seen with reads of lanes that told nobody: another lane of their warp did
    open     asynchronous generic writes that completed on a barrier: no thread can fence them before it knows of them,
             so that a proxy fence of any that does counts
    past     events beside those seen that came before in time, though nothing orders their accesses: what the issuer
             of a copy knew that has completed on a barrier
    time     a logical clock that goes along, for a timeline
    mine     a fiber's own events of which each lane knows its part alone, and those that own writes were left unfenced
    apart    (lanes, what they know beside)
    clocks   accesses to global memory
    """

    __slots__ = (
        "__weakref__", "apart", "clocks", "crossed", "fenced", "inits", "loose", "met", "mine", "narrow", "open", "own",
        "past", "proxied", "reads", "seen", "time", "together", "unfenced", "waited",
    )  # fmt: skip

    def __init__(self) -> None:
        self.seen = self.proxied = self.crossed = self.inits = self.own = self.open = self.past = self.time = 0
        self.fenced = self.narrow = self.met = self.together = self.loose = self.unfenced = self.waited = 0
        self.clocks = NO_CLOCKS
        self.mine: list[MemoryEvent] = []
        self.apart: list[tuple[int, Knowledge]] = []
        self.reads: list[MemoryEvent] = []

    def merge(self, other: Knowledge) -> None:
        """Learn the events that another set knows."""
        if self.narrow or other.narrow:
            self.narrow = (self.narrow | other.narrow) & ~(self.seen & ~self.narrow | other.seen & ~other.narrow)
        if self.unfenced or other.unfenced:
            told = self.seen & ~self.unfenced | other.seen & ~other.unfenced
            self.unfenced = (self.unfenced | other.unfenced) & ~told
        if self.loose or other.loose:
            self.loose = (self.loose | other.loose) & ~(self.seen & ~self.loose | other.seen & ~other.loose)
        if self.together or self.waited:
            told = other.seen & ~(other.loose | other.together | other.waited)
            self.together &= ~told
            self.waited &= ~told
        self.seen |= other.seen
        self.proxied |= other.proxied
        self.crossed |= other.crossed
        self.inits |= other.inits
        self.open |= other.open
        if other.time > self.time:
            self.time = other.time
        self.past |= other.past
        if other.clocks is not self.clocks:
            self.clocks = self.clocks.merged(other.clocks)

    def merge_narrow(self, other: Knowledge) -> None:
        """Learn what another set knows by way of too small a scope. Practice counts on it, PTX does not."""
        narrow, clocks = self.narrow | other.seen & ~(self.seen | self.own), self.clocks
        self.merge(other)
        self.narrow, self.clocks = narrow, clocks.after_relaxed(other.clocks, True)


class AccessRecord:
    """Places that an event accessed and no later access overwrote. `parts` maps a place to its bytes, if not all.

    spans  its accesses' first and last pages -> the number of the first access with them
    lists  the keys of the shadow's `pages` that list it
    seen   the latest access that examined it
    told   what each of the event's instructions is -> its places, in their order
    """

    __slots__ = ("event", "lists", "parts", "places", "seen", "spans", "told", "what", "write")

    def __init__(self, write: bool, event: MemoryEvent, what: Callable[[], str]) -> None:
        self.write, self.event, self.what = write, event, what
        self.places = 0
        self.parts: dict[int, int] = {}
        self.spans: dict[tuple[int, int], int] = {}
        self.lists: set[int] = set()
        self.seen = 0
        self.told: dict[Callable[[], str], int] = {}

    def meets(self, first: int, last: int) -> tuple[int, bool, int]:
        """(The first page that it shares with an access, whether it writes, its number there)."""
        found = [(max(first, low), turn) for (low, high), turn in self.spans.items() if low <= last and first <= high]
        page, turn = min(found)
        return page, self.write, turn

    def add(self, places: int, parts: Parts) -> None:
        """Add an access of the same event."""
        if not parts and not self.parts:
            self.places |= places
            return
        for place, mask in parts.items():
            known = 0 if not self.places >> place & 1 else self.parts.get(place, WHOLE)
            self.parts[place] = known | mask
        if self.parts:
            whole = places & ~_set_of(parts)
            self.parts = {place: mask for place, mask in self.parts.items() if not whole >> place & 1 and mask != WHOLE}
        self.places |= places

    def first(self, common: int, check: Callable[[int], Conflict | None]) -> Conflict | None:
        """The conflict that `check` finds at these places; it names the first instruction with one."""
        found = check(common)
        if found is None or len(self.told) < 2:
            return found
        for what, places in self.told.items():
            if places & common:
                self.what = what
                one = check(places & common)
                if one is not None:
                    return one
        return found

    def common(self, places: int, parts: Parts) -> int:
        """The places where the record and an access touch the same bytes."""
        common = self.places & places
        if common and parts and self.parts:
            for place in parts.keys() & self.parts.keys():
                if not parts[place] & self.parts[place]:
                    common &= ~(1 << place)
        return common

    def overwritten(self, places: int, parts: Parts) -> None:
        """Remove the bytes that a later access overwrites."""
        if parts:
            for place, mask in parts.items():
                if self.places >> place & 1 and self.parts.get(place, WHOLE) & ~mask:
                    places &= ~(1 << place)
        self.places &= ~places
        if self.parts:
            self.parts = {place: mask for place, mask in self.parts.items() if self.places >> place & 1}


def _set_of(parts: Parts) -> int:
    out = 0
    for place in parts:
        out |= 1 << place
    return out


class Ledger:
    """The source of all events, which keeps their sets short.

    writers  True: a proxy fence covers the fencing fiber's own writes alone, and two writes of the same bytes race
    refills  True: a copy over what was read needs a proxy fence, too
    scopes   True: what another block's mbarrier operation hands on needs the scope of the cluster
    enabled  False: nothing is recorded and nothing is a race
    lanes    True: the lanes of a warp can race; reads: also where one reads what another overwrites or releases
    created  a list of new events, where a timeline is recorded; clock: their time
    divided  called when an event becomes two
    """

    divided: Callable[[MemoryEvent, MemoryEvent], None] | None = None
    SWEEP = 256

    def __init__(
        self,
        writers: bool = True,
        enabled: bool = True,
        lanes: str = "off",
        refills: bool = False,
        scopes: bool = False,
    ) -> None:
        self.writers, self.enabled, self.refills, self.scopes = writers, enabled, refills, scopes
        self.lanes, self.reads = enabled and lanes != "off", enabled and lanes == "strict"
        self.base = 0
        self.next = 0
        self.created: list[MemoryEvent] | None = None
        self.clock = 0
        # Weak references, some of them dead. A WeakSet hears of each death, which took much of a run's time.
        self._knowledges: list[ref[Knowledge]] = []
        self._sweep = self.SWEEP  # the number of references at which dead ones are dropped
        self.shadows: list[ShadowMemory] = []

    def event(
        self, asynchronous: bool, describe: Callable[[], str], engine: object = None, by: Fiber | None = None
    ) -> MemoryEvent:
        """A new event that no fiber knows yet. `by`: the fiber whose operation ends on an mbarrier."""
        self.next += 1
        made = MemoryEvent(self.next, asynchronous, describe, engine)
        if by is not None:
            made.issued = self.knowledge()
            made.issued.past = by.knows.seen | by.knows.past
        if self.created is not None:
            made.time = self.clock
            self.created.append(made)
        return made

    def knowledge(self, of: Knowledge | None = None) -> Knowledge:
        """An empty set, or a copy of what all lanes know of one."""
        out = Knowledge()
        if of is not None:
            out.seen, out.proxied, out.inits, out.own, out.open = of.seen, of.proxied, of.inits, of.own, of.open
            out.crossed, out.time, out.met, out.unfenced = of.crossed, of.time, of.met, of.unfenced
            out.loose, out.together, out.reads, out.waited = of.loose, of.together, of.reads, of.waited
            out.past, out.fenced, out.clocks, out.narrow = of.past, of.fenced, of.clocks, of.narrow
        self._knowledges.append(ref(out))
        if len(self._knowledges) > self._sweep:
            self._knowledges = [one for one in self._knowledges if one() is not None]
            self._sweep = self.SWEEP + 2 * len(self._knowledges)
        return out

    @property
    def knowledges(self) -> Iterator[Knowledge]:
        """All knowledge sets in use."""
        for one in self._knowledges:
            found = one()
            if found is not None:
                yield found

    def bit(self, event: MemoryEvent) -> int:
        """The event in a bit set; 0 when it has been forgotten."""
        return 1 << event.id - self.base if event.id >= self.base else 0

    def knows(self, knowledge: Knowledge, event: MemoryEvent) -> bool:
        """True if the event is known; a forgotten one is known to all."""
        return event.id < self.base or bool(knowledge.seen >> event.id - self.base & 1)

    def came_before(self, knowledge: Knowledge, event: MemoryEvent) -> bool:
        """True if the event is known, or came before in time."""
        return event.id < self.base or bool((knowledge.seen | knowledge.past) >> event.id - self.base & 1)

    def fenced(self, knowledge: Knowledge) -> int:
        """The events whose generic writes the async proxy sees, as a bit set. They are seen by each writer's fence, or
        by any."""
        return knowledge.proxied if self.writers else knowledge.crossed

    def learn(self, knowledge: Knowledge, event: MemoryEvent) -> None:
        """Add a completed asynchronous operation. It is of the async proxy, which sees it, or one of the knower's
        own."""
        self._completed(knowledge, event)
        if not event.asynchronous:
            knowledge.own |= self.bit(event)

    def learn_open(self, knowledge: Knowledge, event: MemoryEvent) -> None:
        """Add a completed asynchronous operation to what a barrier knows."""
        self._completed(knowledge, event)
        if not event.asynchronous:
            knowledge.open |= self.bit(event)

    def _completed(self, knowledge: Knowledge, event: MemoryEvent) -> None:
        bit = self.bit(event)
        knowledge.seen |= bit
        knowledge.narrow &= ~bit
        knowledge.unfenced &= ~bit
        knowledge.time = max(knowledge.time, event.time)
        if event.asynchronous:
            knowledge.proxied |= bit
            knowledge.crossed |= bit
        if event.issued is not None:
            knowledge.past |= event.issued.past
        if event.stamp is not None:
            knowledge.clocks = knowledge.clocks.after(event.stamp, event.asynchronous)

    # ------------------------------------------------------------ what fibers do

    def renew(self, fiber: Fiber) -> None:
        """The fiber knows its epoch, and enters a new one."""
        epoch, knows = fiber.epoch, fiber.knows
        bit = self.bit(epoch)
        knows.own |= bit
        if not epoch.lanes or one_lane(fiber.lanes):
            knows.seen |= bit
        if epoch.lanes and (epoch.wrote or not knows.seen & bit):
            knows.mine.append(epoch)
            if len(knows.mine) % FILTER == 0:
                knows.mine = unordered(self, knows)
        fiber.epoch = self.event(False, fiber.describe)
        fiber.joint = None

    def joint(self, fiber: Fiber) -> MemoryEvent:
        """The event of the fiber's accesses as a whole, which all its lanes know."""
        if not self.lanes:
            return fiber.epoch
        if fiber.joint is None:
            fiber.joint = self.event(False, fiber.describe)
            fiber.joint.joint = True
            bit = self.bit(fiber.joint)
            fiber.knows.seen |= bit
            fiber.knows.own |= bit
        return fiber.joint

    def release(self, fiber: Fiber, into: Knowledge) -> None:
        """Hand the fiber's knowledge and accesses to a barrier or a fiber. Each lane its part."""
        if fiber.warp.settles is not None:
            fiber.warp.settles(fiber)
        self.renew(fiber)
        self.end_turn(fiber)
        knows = fiber.knows
        into.merge(knows)
        for event in knows.mine:
            into.seen |= self.bit(event)
        into.proxied |= knows.fenced
        into.crossed |= knows.fenced
        for _, more in knows.apart:
            into.merge(more)

    def release_inits(self, fiber: Fiber, into: Knowledge) -> None:
        """Hand on the initialised mbarriers alone: a relaxed arrive."""
        into.inits |= fiber.knows.inits
        into.time = max(into.time, fiber.knows.time)
        into.past |= fiber.knows.past | fiber.knows.seen
        for _, more in fiber.knows.apart:
            into.inits |= more.inits

    def acquire(self, fiber: Fiber, source: Knowledge) -> None:
        """Learn all that was handed to a barrier or completed with an operation."""
        fiber.knows.merge(source)

    def end_turn(self, fiber: Fiber) -> None:
        """End the turn of a warp's accesses to global memory, which the fiber then knows."""
        warp = fiber.warp
        # A turn without accesses counts where some lanes alone have ended the one before: it may tell of the others'.
        if warp.accessing or warp.turn - 1 in warp.partly_told:
            note_partly_told(fiber)
            warp.accessing = False
            warp.turn += 1
            fiber.knows.clocks = fiber.knows.clocks.after((warp.source, warp.turn - 1), False)

    def gpu_fence(self, fiber: Fiber, acquires: bool, releases: bool) -> None:
        """fence.gpu: acquire what relaxed reads saw, and release through later relaxed writes."""
        self.end_turn(fiber)
        for one in (fiber.knows, *[more for _, more in fiber.knows.apart]):
            one.clocks = one.clocks.after_fence(acquires, releases)

    def global_fence(self, fiber: Fiber) -> None:
        """fence.proxy.async.global: earlier accesses to global memory become visible to the async proxy."""
        self.end_turn(fiber)
        for one in (fiber.knows, *[more for _, more in fiber.knows.apart]):
            one.clocks = one.clocks.after_proxy_fence()

    def proxy_fence(self, fiber: Fiber) -> None:
        """fence.proxy.async: earlier accesses become visible to the async proxy, each lane's own."""
        self.renew(fiber)
        knows = fiber.knows
        fenced, crossed = knows.own | knows.open, knows.own | knows.seen
        if self.lanes and not one_lane(fiber.lanes):
            apart = each_alone(self, knows)
            knows.fenced |= fenced & apart
            fenced &= ~apart
            crossed &= ~apart | knows.seen
        knows.proxied |= fenced
        knows.crossed |= crossed
        for _, more in knows.apart:
            more.proxied |= more.open
            more.crossed |= more.seen

    def init_fence(self, fiber: Fiber) -> None:
        """fence.mbarrier_init: the initialisations before it become visible to the cluster."""
        self.renew(fiber)
        fiber.knows.inits |= fiber.knows.seen
        for _, more in fiber.knows.apart:
            more.inits |= more.seen

    # ------------------------------------------------------------ forgetting

    def compact(self, fibers: Iterable[Fiber], also: Iterable[MemoryEvent] = ()) -> None:
        """Forget events that no record needs.

        fibers  all that can still access anything
        also    events that are asked for later, beside those of the records
        """
        alive = list(fibers)
        for shadow in self.shadows:
            self.prune(shadow, alive)
        needed = {r.event.id for shadow in self.shadows for r in shadow.records.values()}
        for fiber in alive:
            fiber.joint = None
            if fiber.epoch.id not in needed:
                fiber.epoch = self.event(False, fiber.describe)
        needed |= {event.id for event in also} | {fiber.epoch.id for fiber in alive}
        base = min(needed, default=self.next + 1)
        shift = base - self.base
        if shift > 0:
            for knowledge in self.knowledges:
                knowledge.seen >>= shift
                knowledge.proxied >>= shift
                knowledge.crossed >>= shift
                knowledge.inits >>= shift
                knowledge.own >>= shift
                knowledge.met >>= shift
                knowledge.open >>= shift
                knowledge.past >>= shift
                knowledge.fenced >>= shift
                knowledge.narrow >>= shift
                knowledge.unfenced >>= shift
                knowledge.loose >>= shift
                knowledge.together >>= shift
                knowledge.waited >>= shift
            self.base = base

    def prune(self, shadow: ShadowMemory, fibers: Iterable[Fiber]) -> None:
        """Drop a memory's records that cannot race with any fiber still running."""
        seen = proxied = crossed = -1
        alone = not self.lanes
        for fiber in fibers:
            knows = fiber.knows
            open_ = knows.narrow | knows.loose | knows.together | knows.waited | knows.unfenced
            seen &= knows.seen & ~open_ | (self.bit(fiber.epoch) if alone or one_lane(fiber.lanes) else 0)
            proxied &= knows.proxied
            crossed &= knows.crossed
        if not self.refills or not shadow.refilled:
            crossed = -1
        if seen != -1:
            shadow.forget(lambda record: self._harmless(record, seen, proxied if record.write else crossed))
        shadow.full = max(ShadowMemory.FULL, 2 * len(shadow.records))

    def _harmless(self, record: AccessRecord, seen: int, proxied: int) -> bool:
        """True if every fiber knows the record's event, so it can conflict with nothing."""
        bit = self.bit(record.event)
        return bool(seen & bit) and (record.event.asynchronous or bool(proxied & bit))


# Records are listed by pages of 2**PAGE places, so that few are examined. An access that covers half of a wide page of
# 2**WIDE pages is listed there once in place of its pages. Pages begin where dynamic shared memory does, as buffers do.
PAGE, WIDE = 7, 4
SHIFT = (1 << PAGE + WIDE) - SHARED_START // GRANULE


@lru_cache(1 << 12)
def _listed(first: int, last: int, write: bool) -> tuple[int, ...]:
    """The keys of an access from one page to another: twice a page's number, one more for a write; wide ones < 0."""
    keys: list[int] = []
    for wide in range(first >> WIDE, (last >> WIDE) + 1):
        low, high = max(first, wide << WIDE), min(last, (wide + 1 << WIDE) - 1)
        if high - low + 1 << 1 >= 1 << WIDE:
            keys.append(-2 * wide - 2 + write)
        else:
            keys += range(2 * low + write, 2 * high + 2, 2)
    return tuple(keys)


@lru_cache(1 << 12)
def _examined(first: int, last: int, write: bool) -> tuple[int, ...]:
    """The keys of the pages whose records an access may conflict with: a read examines only the writes."""
    ways = (0, 1) if write else (1,)
    narrow = [2 * page + way for page in range(first, last + 1) for way in ways]
    wide = [-2 * page - 2 + way for page in range(first >> WIDE, (last >> WIDE) + 1) for way in ways]
    return (*narrow, *wide)


class MadeAccess(NamedTuple):
    """An access that is checked, as `ShadowMemory.access` has its arguments."""

    knows: Knowledge
    asynchronous: bool
    what: Callable[[], str]
    event: MemoryEvent
    own: MemoryEvent | None
    lanes: int
    touch: LaneAccess | None
    write: bool


# An earlier record that an access meets: its place in the order of reports, the record, the places and bytes that both
# have, and what makes an ordered pair doubtful.
Met: TypeAlias = tuple[tuple[int, bool, int], AccessRecord, int, str, Parts]


class ShadowMemory:
    """The accesses to one memory that later ones could conflict with.

    name   of the memory, for reports
    unit   what one bit of a set of places stands for, for reports
    """

    FULL = 64  # number of records at which a search for useless ones pays

    def __init__(self, ledger: Ledger, name: Callable[[int], str]) -> None:
        self.ledger, self.name = ledger, name
        self.records: dict[tuple[int, bool], AccessRecord] = {}  # by event and by whether it writes
        # Keys of pages (`_listed`) -> records, some of which may have been overwritten meanwhile.
        self.pages: dict[int, list[AccessRecord]] = {}
        self.accesses = 0
        self.refilled = False  # a copy engine has written here
        self.full = ShadowMemory.FULL  # number of records at which `prune` is due
        ledger.shadows.append(self)

    def forget(self, useless: Callable[[AccessRecord], bool]) -> None:
        """Drop records."""
        self.records = {key: record for key, record in self.records.items() if not useless(record)}
        self.pages = {}
        for record in self.records.values():
            for key in record.lists:
                self.pages.setdefault(key, []).append(record)

    def clear(self, places: int) -> None:
        """Forget the accesses to these places, which have a new owner."""
        for record in self.records.values():
            record.places &= ~places
        self.forget(lambda record: not record.places)

    def divide(
        self,
        event: MemoryEvent,
        other: MemoryEvent,
        theirs: tuple[int, Parts],
        ours: tuple[int, Parts],
        write: bool | None = None,
    ) -> None:
        """Split an event. `other` takes `theirs`, and it keeps `ours`; write: only its writes, or only its reads."""
        for way in (False, True):
            record = self.records.get((event.id, way))
            if record is None or (write is not None and way is not write):
                continue
            before = record.places
            new = self.records[other.id, way] = AccessRecord(way, other, record.what)
            new.spans, new.lists = dict(record.spans), set(record.lists)
            for key in record.lists:
                self.pages[key].append(new)
            for one, (places, parts) in ((new, theirs), (record, ours)):
                one.places = before & places
                one.parts = {place: part for place, part in parts.items() if one.places >> place & 1}

    def access(
        self,
        places: int,
        write: bool,
        event: MemoryEvent,
        knows: Knowledge,
        asynchronous: bool,
        what: Callable[[], str],
        own: MemoryEvent | None = None,
        parts: Parts = NO_PARTS,
        lanes: int = 0,
        touch: LaneAccess | None = None,
        ends: tuple[int, int] | None = None,
        same: Same | None = None,
        unfenced: int = 0,
    ) -> Conflict | None:
        """Record an access and return its race, or lint, or None.

        places        a bit set
        parts         place -> the bytes of it, as a bit set, where it is not all of them
        event         that accesses
        knows, own    what the issuing fiber knows, and its epoch
        asynchronous  through the async proxy
        what          says what the access is
        lanes         that do it, where they are told apart; touch: what each of them touches, None where it is open
        ends          the first and the last place, where the caller knows them
        same          of a write: whether memory holds what it writes there, but for rounding, asked before it does
        unfenced      events among the known that PTX orders before it only with a tcgen05.wait or fence that is missing
        """
        ledger = self.ledger
        if not ledger.enabled or not places:
            return None
        base, seen, proxied, narrow = ledger.base, knows.seen, ledger.fenced(knows), knows.narrow
        together = knows.together | knows.loose | knows.waited if write else 0
        doubts = asynchronous or narrow or together
        self.refilled = self.refilled or (asynchronous and write)
        between = touch is not None and event.lanes != 0  # the event's own earlier accesses, by other lanes
        self.accesses = turn = self.accesses + 1
        low, high = ends or ((places & -places).bit_length() - 1, places.bit_length() - 1)
        first, last = low + SHIFT >> PAGE, high + SHIFT >> PAGE
        found: list[Met] = []
        unordered_reads: list[tuple[AccessRecord, int]] = []
        for key in _examined(first, last, write):
            gone = False
            for record in self.pages.get(key, ()):
                if record.seen == turn or not record.places:
                    gone = gone or not record.places
                    continue
                record.seen = turn
                earlier, wrote = record.event, record.write
                if earlier is event and not between:
                    continue
                # Most are known and their writes are visible: nothing more is checked for those, and a read leaves
                # them unchanged. Sets of places are long, so they are compared last.
                at = earlier.id - base
                harmless = at < 0 or (
                    seen >> at & 1 and (not asynchronous or not wrote or earlier.asynchronous or proxied >> at & 1)
                )
                doubtful, loose = TENSOR if unfenced and harmless and at >= 0 and unfenced >> at & 1 else "", False
                if doubts and harmless and at >= 0 and not earlier.asynchronous:
                    if asynchronous and self._doubtful(earlier, wrote, write, knows):
                        doubtful = PROXY
                    elif narrow and narrow >> at & 1:
                        doubtful = SCOPE
                    loose = bool(together >> at & 1) and not wrote
                if harmless and not write and not doubtful:
                    continue
                common = record.places & places
                if common and parts and record.parts:
                    common = record.common(places, parts)
                if not common:
                    continue
                if not harmless or doubtful:
                    found.append((record.meets(first, last), record, common, doubtful, dict(record.parts)))
                if loose:
                    unordered_reads.append((record, common))
                # An atomic operation hides no other warp's that it does not follow: what comes later follows both.
                beside = not harmless and both_strong(earlier.engine, event.engine) and not knows.own >> at & 1
                if write and earlier is not event and not beside:
                    if parts or record.parts:
                        record.overwritten(places, parts)
                    else:
                        record.places ^= common
                    gone = gone or not record.places
            if gone:
                self._drop(key)
        race = None
        if found:
            made = MadeAccess(knows, asynchronous, what, event, own, lanes, touch, write)
            race = self._race_among(sorted(found, key=itemgetter(0)), made, same)
        for record, common in unordered_reads:
            lint = record.first(common, partial(self._together, record, what, knows, lanes, touch))
            if lint is not None:
                race = lint if race is None else replace(race, also=lint)
                break
        if touch is not None and not event.joint:
            event.touches.append((self, write, touch))
            event.lanes |= touch.lanes
        elif touch is not None and event.readers:
            event.touches.append((self, write, touch))
        event.wrote = event.wrote or (write and not asynchronous)
        self._keep(event, write, what, places, parts, (first, last))
        return race

    def _keep(
        self, event: MemoryEvent, write: bool, what: Callable[[], str], places: int, parts: Parts,
        pages: tuple[int, int],
    ) -> None:  # fmt: skip
        """Add an access to its event's record."""
        mine = self.records.get((event.id, write))
        if mine is None:
            mine = self.records[event.id, write] = AccessRecord(write, event, what)
        mine.add(places, parts)
        mine.told[what] = mine.told.get(what, 0) | places
        if pages not in mine.spans:
            self._list(mine, *pages)

    def _race_among(self, found: Sequence[Met], made: MadeAccess, same: Same | None) -> Conflict | None:
        """The first race of an access, else the first lint, else None."""
        race: Conflict | None = None
        for _, record, common, crossed, bytes_of in found:
            if crossed:
                if race is None or race.lint:
                    if crossed == TENSOR and never_race(record.event.engine, made.event.engine):
                        continue
                    says = self._crossed if crossed == PROXY else self._narrow
                    if crossed == TENSOR:
                        says = partial(self._unfenced, made.knows)
                    doubt = record.first(common, partial(says, record, made.what))
                    race = doubt if race is None or (doubt is not None and not doubt.lint) else race
            elif race is None or race.lint:
                new = record.first(common, partial(self._conflict, record, bytes_of, *made))
                if (
                    new is not None
                    and record.write
                    and not record.event.asynchronous
                    and not self.ledger.writers
                    and same is not None
                    and same(bytes_met(common, bytes_of))
                ):
                    new = replace(new, message=f"{new.message}; {SAME}", lint=True)
                race = new or race
        return race

    def _list(self, record: AccessRecord, first: int, last: int) -> None:
        """List a record by the pages of an access."""
        record.spans[first, last] = self.accesses
        lists = record.lists
        for key in _listed(first, last, record.write):
            if key not in lists:
                lists.add(key)
                self.pages.setdefault(key, []).append(record)

    def _drop(self, key: int) -> None:
        """Remove a page's records that stand for nothing; other pages drop them when they are next examined."""
        live = []
        for record in self.pages[key]:
            if record.places:
                live.append(record)
            elif self.records.get((record.event.id, record.write)) is record:
                del self.records[record.event.id, record.write]
        self.pages[key] = live

    def _conflict(
        self,
        record: AccessRecord,
        parts: Parts,
        knows: Knowledge,
        asynchronous: bool,
        what: Callable[[], str],
        event: MemoryEvent,
        own: MemoryEvent | None,
        lanes: int,
        touch: LaneAccess | None,
        writes: bool,
        common: int,
    ) -> Conflict | None:
        earlier, ledger = record.event, self.ledger
        if never_race(earlier.engine, event.engine):
            return None
        known = ledger.knows(knows, earlier)
        missing = NOTHING
        if not known:
            mine = earlier is own or earlier is event or earlier in knows.mine
            known = mine
            if lanes and (earlier.lanes if mine else knows.apart):
                place = (self, (record.write, writes), common, parts)
                one = unknown(ledger, knows, earlier, place, lanes, touch, mine)
                known = one is None
                missing = one or ""
                if one is not None and not mine and not record.write and knows.met & ledger.bit(earlier):
                    says = f"{self._both(record, common, what)}; {WAITED}{TOGETHER}"
                    return Conflict(says, WARP_BARRIER, lint=True)
        visible = (
            earlier.asynchronous
            or not asynchronous
            or not record.write
            or earlier.id < ledger.base
            or bool(ledger.fenced(knows) >> earlier.id - ledger.base & 1)
        )
        alone = None
        if not visible and knows.fenced & ledger.bit(earlier):
            alone = crossing(earlier, self, (True, writes), touch, lanes, common)
            visible = alone is None
        if known and visible:
            doubtful = asynchronous and self._doubtful(earlier, record.write, writes, knows)
            return self._crossed(record, what, common) if doubtful else None
        if known and alone is not None:
            missing = (
                f"lane {alone[0]} wrote it and fenced that (fence.proxy.async), lane {alone[1]} has it accessed by an "
                "asynchronous engine, and no bar.warp.sync or other barrier stands between the two"
            )
        elif known and earlier.settled and writes:
            return Conflict(f"{self._both(record, common, what)}; {ALLOCATED}", FENCE, lint=not ledger.refills)
        elif known:
            missing = "no fence.proxy.async between the write and the access by an asynchronous engine"
        orders = FENCE if known else remedy(record.what(), earlier.asynchronous, what(), asynchronous)
        completed = any(one is not None and ledger.knows(knows, one) for one in earlier.fellows)
        if completed and asynchronous and not known and not ledger.writers:
            return Conflict(f"{self._both(record, common, what)}; {WARPGROUP}", orders, lint=True)
        return Conflict(f"{self._both(record, common, what)}; {missing}", orders)

    def _both(self, record: AccessRecord, common: int, what: Callable[[], str]) -> str:
        lowest = (common & -common).bit_length() - 1
        return f"{what()} and, before it, {record.what()} both touch {self.name(lowest)}"

    def _doubtful(self, earlier: MemoryEvent, wrote: bool, writes: bool, knows: Knowledge) -> bool:
        """True if practice only, or PTX only, orders a generic access before an asynchronous one."""
        at = earlier.id - self.ledger.base
        if earlier.asynchronous or at < 0:
            return False
        if wrote:
            return not (knows.proxied | knows.fenced) >> at & 1
        return writes and not (knows.crossed | knows.fenced) >> at & 1

    def _together(
        self, record: AccessRecord, what: Callable[[], str], knows: Knowledge, lanes: int, touch: LaneAccess | None,
        common: int,
    ) -> Conflict | None:  # fmt: skip
        """The lint of a write over reads that are ordered by running together alone."""
        both, bit = self._both(record, common, what), self.ledger.bit(record.event)
        if not (knows.together | knows.waited) & bit:
            return Conflict(f"{both}; {TOLD_BY_ONE}; {TOGETHER}", WARP_BARRIER, lint=True)
        pair = crossing(record.event, self, (False, True), touch, lanes, common)
        if pair is None:
            return None
        waited = WAITED if knows.waited & bit else ""
        says = f"{both}; lane {pair[0]} reads, lane {pair[1]} of its warp writes; {waited}{TOGETHER}"
        return Conflict(says, WARP_BARRIER, lint=True)

    def _narrow(self, record: AccessRecord, what: Callable[[], str], common: int) -> Conflict:
        """Describe a pair that an mbarrier of too small a scope orders in practice alone."""
        return Conflict(f"{self._both(record, common, what)}; {NARROW}", CLUSTER_SCOPE, lint=not self.ledger.scopes)

    def _unfenced(self, knows: Knowledge, record: AccessRecord, what: Callable[[], str], common: int) -> Conflict:
        """Describe a pair in tensor memory that lacks a tcgen05.wait or fence."""
        says, orders = NOT_HANDED_ON if knows.unfenced & self.ledger.bit(record.event) else NOT_TAKEN_OVER
        return Conflict(f"{self._both(record, common, what)}; {says}", orders, lint=True)

    def _crossed(self, record: AccessRecord, what: Callable[[], str], common: int) -> Conflict:
        """Describe a doubtful pair: the proxy fence of practice or that of PTX is missing."""
        both = self._both(record, common, what)
        if record.write:
            return Conflict(f"{both}; {ANOTHERS_FENCE}", FENCE, lint=True)
        return Conflict(f"{both}; {REFILL}", FENCE_READS, lint=not self.ledger.refills)
