"""Races between the lanes of one warp.

PTX orders the accesses of one thread, and those of two threads where one synchronises with the other. Two lanes of a
warp are two threads: executing together orders nothing (PTX ISA, "Causality Order" and "Memory synchronization").
bar.warp.sync orders them ("guarantees memory ordering among the threads participating"), and so does whatever orders
threads of different warps: bar.sync, mbarriers, the cluster's barrier. shfl, vote, match, redux, elect, activemask and
convergence do not. ldmatrix and stmatrix are weak memory operations, and their .sync makes lanes wait for each other
without ordering memory. CUDA's guide says so of its intrinsics: they "do not imply a memory barrier". That is
`Policy(lanes="strict")`.

Practice relies on one thing more: after a warp executes a load together, all its lanes have read when one lane goes on.
CUTLASS's pipelines release a buffer by one lane's arrive for a warp whose lanes have all read it (the
`is_signalling_thread` of PipelineTmaAsync). So "converged", the default, takes reads as made by all lanes that execute
them. Where nothing since has made these lanes wait for each other, a write over what they read in shared memory is lint
(`read_together`, `have_read`). Reads of some lanes are made when all have waited for each other in shfl, vote, match,
redux or elect. A sum over a block depends on it: some lanes read a word of each warp, all lanes shuffle them, and then
write over them. There they also learn what some of them acquired at a word of memory: one lane's atomic operation, and
a shuffle of its result, are the barriers of cooperative groups. Writes, and the waits of some lanes at mbarriers,
follow PTX's definition.

A bulk or tensor store reads shared memory for the lane that issues it. Each other lane must fence its own writes
(fence.proxy.async), and a barrier must order them before the store. Only the lane that waits for the store's group
knows that it has read. Equal tensor stores of all lanes count as one, except under "strict": the hardware issues one
for a warp.

So the knowledge of a warp, or of a part of one (`happens_before.Knowledge`), is kept once for all of its lanes, with
three additions:

    mine   events of the warp itself that touched memory lane by lane, and that no barrier has ordered since: each lane
           knows its own part of them
    apart  what some lanes know beside: those that a branch sent the other way, and that waited for something there;
           and those that acquired at a word of their own
    fenced events of `mine` that each lane has fenced its own part of, since the last barrier

They are empty at most times. `synchronise` empties them. Acquiring a barrier at which the lanes arrived does so too,
since it hands each lane's part to all. Where lanes diverge, `fork` divides the events of `mine` between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from ..machine.memory import granules, parts_of
from ..ptx.values import FULL, Lanes, any_of, bool_of
from .clocks import Clocks

if TYPE_CHECKING:
    from ..machine.interpreter import Fiber
    from .happens_before import Knowledge, Ledger, MemoryEvent, ShadowMemory


class StrongAccess:
    """The engine of strong accesses, two of which are no race. `warp`: whose own lanes are told apart, or None."""

    def __init__(self, warp: object = None) -> None:
        self.warp = warp


STRONG = StrongAccess()
EVERY = 0xFFFF  # byte of a granule
NOTHING = "nothing orders them: no barrier, mbarrier or wait group leads from the first to the second"
FILTER = 32  # number of events in `mine` at which a search for the ones that matter pays
MOST_READS = 64  # events of reads together that a warp keeps
MANY = 8  # number of sets apart at which they are kept lane by lane
Offsets = npt.NDArray[np.int64]
# Whether memory holds what a write puts where an earlier access was; the argument: which bytes those are.
Meets: TypeAlias = Callable[[Offsets], npt.NDArray[np.bool_]]
Same: TypeAlias = Callable[[Meets], bool]


class LaneAccess:
    """One instruction's accesses to a memory, lane by lane. `size` bytes at each offset, a multiple of `size`.

    offsets  of the lanes in `lanes`, in their order, or one for all of them
    """

    __slots__ = ("_places", "lanes", "offsets", "size")

    def __init__(self, lanes: int, offsets: Offsets, size: int) -> None:
        self.lanes, self.offsets, self.size = lanes, offsets, size
        self._places = -1

    @property
    def places(self) -> int:
        """The granules that it touches, as a bit set."""
        if self._places < 0:
            self._places = granules(self.offsets, self.size)
        return self._places

    def of(self, lanes: int) -> LaneAccess | None:
        """The accesses of some lanes."""
        both = self.lanes & lanes
        if both == self.lanes or not both:
            return self if both else None
        if len(self.offsets) == 1:
            return LaneAccess(both, self.offsets, self.size)
        return LaneAccess(both, self.offsets[bool_of(lanes)[bool_of(self.lanes)]], self.size)

    def units(self, size: int) -> dict[int, int]:
        """The lanes that touch each piece of `size` bytes: number of the piece -> lanes."""
        found: dict[int, int] = {}
        each = max(1, self.size // size)
        if len(self.offsets) == 1:
            first = int(self.offsets[0]) // size
            return dict.fromkeys(range(first, first + each), self.lanes)
        lanes = np.flatnonzero(bool_of(self.lanes)).tolist()
        for lane, first in zip(lanes, (self.offsets // size).tolist(), strict=True):
            for piece in range(first, first + each):
                found[piece] = found.get(piece, 0) | 1 << lane
        return found


def one_lane(lanes: int) -> bool:
    """True if a set of lanes has exactly one."""
    return lanes & lanes - 1 == 0


def lanes_at(touch: LaneAccess | None, lanes: int, places: int) -> int:
    """The lanes that touch some of these places. All lanes of an access without lane detail."""
    if touch is None or touch.places & ~places == 0:
        return lanes
    found = 0
    for place, who in touch.units(16).items():
        if places >> place & 1:
            found |= who
    return found


def bytes_met(places: int, parts: Mapping[int, int]) -> Meets:
    """A function that finds the bytes of an earlier access among addresses. `parts`: as in `meeting`."""

    def meets(at: Offsets) -> npt.NDArray[np.bool_]:
        found = [places >> (x >> 4) & parts.get(x >> 4, EVERY) >> (x & 15) & 1 for x in at.reshape(-1).tolist()]
        return np.array(found, dtype=bool).reshape(at.shape)

    return meets


def meeting(touch: LaneAccess | None, lanes: int, places: int, parts: Mapping[int, int]) -> int:
    """The lanes that touch bytes of an earlier access.

    places  granules that both touch; parts: granule -> the bytes of the earlier access, as a bit set, if not all
    """
    if touch is None or not parts:
        return lanes_at(touch, lanes, places)
    found, size = 0, min(touch.size, 16)
    for piece, who in touch.units(size).items():
        place, first = piece * size >> 4, piece * size & 15
        if places >> place & 1 and parts.get(place, EVERY) >> first & ((1 << size) - 1):
            found |= who
    return found


def crossing(
    earlier: MemoryEvent,
    shadow: ShadowMemory,
    ways: tuple[bool, bool],
    touch: LaneAccess | None,
    lanes: int,
    places: int,
) -> tuple[int, int] | None:
    """Two lanes that conflict: one in the event, one now, as (earlier, later), or None.

    A lane that reads its own write also does so where other lanes wrote with the same instruction: they wrote the same
    value, or that was reported.

    ways    whether the event's writes are meant, or its reads; whether it is written now
    touch   what is touched now, by `lanes`; None: the same by all of them, or it is open by which
    places  that both touch
    """
    write, writes = ways
    for at, wrote, before in earlier.touches:
        if at is not shadow or wrote is not write or not before.places & places:
            continue
        if touch is None:
            others = lanes_at(before, before.lanes, places)
            if one_lane(lanes) and others == lanes:
                continue
            return _pair(others, lanes)
        size = min(touch.size, before.size)
        now = touch.units(size)
        for piece, had in before.units(size).items():
            has = now.get(piece)
            if has is None or not places >> (piece * size >> 4) & 1 or (one_lane(had) and had == has):
                continue
            if writes or has & ~had:
                return _pair(had, has)
    return None


def _pair(had: int, has: int) -> tuple[int, int]:
    """One lane of each set, two different ones."""
    for lane in range(32):
        others = has & ~(1 << lane)
        if had >> lane & 1 and others:
            return lane, (others & -others).bit_length() - 1
    raise AssertionError((had, has))


def uninformed(ledger: Ledger, knows: Knowledge, event: MemoryEvent, lanes: int) -> int:
    """The lanes that lack an event that not all lanes know."""
    for members, more in knows.apart:
        if ledger.knows(more, event):
            lanes &= ~members
    return lanes


def clocks_of(knows: Knowledge, lanes: int) -> Clocks:
    """The accesses to global memory that some of these lanes know of."""
    found = knows.clocks
    for members, more in knows.apart:
        if members & lanes:
            found = found.merged(more.clocks)
    return found


def unknown(
    ledger: Ledger,
    knows: Knowledge,
    earlier: MemoryEvent,
    record: tuple[ShadowMemory, tuple[bool, bool], int, Mapping[int, int]],
    lanes: int,
    touch: LaneAccess | None,
    mine: bool,
) -> str | None:
    """The reason why some lanes' access is unordered after a partly known event, or None.

    record  the memory, whether the event's writes are meant and whether it is written now, the places that both touch,
            and the event's bytes of places that it does not touch whole
    mine    the event is of these lanes themselves, each of which knows its part
    """
    shadow, ways, places, parts = record
    every = lanes
    lanes = uninformed(ledger, knows, earlier, lanes)
    if touch is not None and (touch := touch.of(lanes)) is None:
        return None
    if not lanes:
        return None
    if not mine:
        late = meeting(touch, lanes, places, parts)
        if not late:
            return None
        if lanes == every:
            return NOTHING
        lane = (late & -late).bit_length() - 1
        return f"other lanes of the warp know of the first, lane {lane} does not: no bar.warp.sync tells it"
    found = crossing(earlier, shadow, ways, touch, lanes, places)
    if found is None:
        return None
    return f"lanes {found[0]} and {found[1]} of one warp do this, and no bar.warp.sync or other barrier orders them"


# Where lanes part and meet --------------------------------------------------------------------------------------------


def unordered(ledger: Ledger, knows: Knowledge) -> list[MemoryEvent]:
    """The events of `mine` on record that some lane or the async proxy misses."""
    out = []
    for event in knows.mine:
        bit = ledger.bit(event)
        if bit and not (knows.seen & bit and (not event.wrote or knows.proxied & bit)):
            latest = event.near is not None and event in event.near
            if latest or any((event.id, way) in shadow.records for shadow, way, _ in event.touches):
                out.append(event)
    return out


def each_alone(ledger: Ledger, knows: Knowledge) -> int:
    """Events whose writes each lane has fenced for itself only, as a bit set."""
    out = 0
    for event in knows.mine:
        if event.wrote and event.lanes:
            out |= ledger.bit(event)
    return out & ~knows.proxied


def read_together(ledger: Ledger, fiber: Fiber, event: MemoryEvent, lanes: int, waited: bool = False) -> None:
    """Note reads of the fiber's lanes as one. PTX orders each before its own lane's accesses alone.

    waited  the lanes wait for each other at the reads themselves
    """
    knows = fiber.knows
    event.readers |= lanes
    bit = ledger.bit(event)
    if not (knows.together | knows.waited if waited else knows.together) & bit and not one_lane(fiber.lanes):
        if waited:
            knows.waited |= bit
        else:
            knows.together |= bit
        open_ = knows.together | knows.waited
        knows.reads = [*[one for one in knows.reads if open_ & ledger.bit(one)], event][-MOST_READS:]


def have_read(ledger: Ledger, fiber: Fiber, lanes: int) -> None:
    """Note that these lanes waited for each other: each has read what it did before. Later reads are told apart."""
    knows, open_ = fiber.knows, 0
    for event in knows.reads:
        bit = knows.together & ledger.bit(event)
        if bit and event.readers & fiber.warp.alive & ~lanes:
            open_ |= bit
    knows.waited |= (knows.together | knows.loose & knows.own) & ~open_
    knows.together &= open_
    knows.loose &= open_ | ~knows.own
    fiber.joint = None


def _of_others(ledger: Ledger, knows: Knowledge, lanes: int) -> int:
    """The events of reads together that have some of other lanes, as a bit set."""
    out = 0
    for event in knows.reads:
        if event.readers & ~lanes:
            out |= ledger.bit(event)
    return out & (knows.together | knows.waited)


def fork(ledger: Ledger, knows: Knowledge, lanes: int) -> Knowledge:
    """The knowledge of some lanes that take another path than the rest."""
    out = ledger.knowledge(knows)
    mine: list[MemoryEvent] = []
    knows.mine = unordered(ledger, knows)
    for event in list(knows.mine):
        inside = event.lanes & lanes
        own = event
        if inside and inside != event.lanes:
            own = divide(ledger, event, inside)
            knows.mine.append(own)
            out.seen |= knows.seen & ledger.bit(own)
            out.proxied |= knows.proxied & ledger.bit(own)
            out.crossed |= knows.crossed & ledger.bit(own)
            out.own |= ledger.bit(own)
        if inside:
            mine.append(own)
        if not inside or own is not event:
            out.own &= ~ledger.bit(event)
    out.mine = mine
    kept = 0
    for event in mine:
        kept |= ledger.bit(event)
    out.fenced &= kept
    out.loose |= _of_others(ledger, knows, lanes)
    if one_lane(lanes):
        for event in mine:
            out.seen |= ledger.bit(event)
    for members, more in knows.apart:
        inside = members & lanes
        if inside == lanes:
            out.merge(more)
            open_ = ~knows.seen
            out.loose |= _of_others(ledger, more, lanes) & open_
            out.together |= more.together & open_ & ~knows.met
            out.waited |= (more.waited | more.together & knows.met) & open_
            if (more.together | more.waited) & open_:
                out.reads = [*out.reads, *more.reads]
        elif inside:
            out.apart.append((inside, ledger.knowledge(more)))
    return out


def join(
    ledger: Ledger, knows: Knowledge, children: Iterable[tuple[int, Knowledge]], ended: Iterable[Knowledge],
    source: int = 0,
) -> None:  # fmt: skip
    """Merge the knowledge of reconverging lanes into `knows`.

    ended   knowledge of lanes that exited
    source  the warp's own in `Clocks`, or 0
    """
    arrived = list(children)
    for gone in ended:
        knows.past |= gone.seen | gone.past
    common = arrived[0][1]
    clocks = common.clocks
    for _, one in arrived[1:]:
        clocks = clocks.common(one.clocks)
    if len(arrived) > 1 and source:  # what the warp itself did is told apart by its lanes elsewhere
        clocks = clocks.after((source, max(one.clocks.known.get(source, 0) for _, one in arrived)), False)
    seen, proxied, inits, opened, crossed = common.seen, common.proxied, common.inits, common.open, common.crossed
    met, reads, loose = common.met, common.reads, common.loose
    for _, one in arrived[1:]:
        met &= one.met
        loose |= one.loose
        reads = [*reads, *[event for event in one.reads if event not in reads]]
        seen &= one.seen
        proxied &= one.proxied
        crossed &= one.crossed
        inits &= one.inits
        opened &= one.open
    knows.apart, knows.mine, knows.fenced, knows.narrow, knows.unfenced = [], [], 0, 0, 0
    knows.clocks = clocks
    for lanes, one in arrived:
        knows.past |= one.seen | one.past
        knows.own |= one.own
        knows.fenced |= one.fenced
        knows.narrow |= one.narrow & seen
        knows.unfenced |= one.unfenced & seen
        knows.time = max(knows.time, one.time)
        knows.mine += [event for event in one.mine if event not in knows.mine]
        if (one.seen & ~seen or one.proxied & ~proxied or one.inits & ~inits or one.open & ~opened
                or one.crossed & ~crossed or not clocks.covers(one.clocks)):  # fmt: skip
            _add(ledger, knows, lanes, one)
        for some, more in one.apart:
            _add(ledger, knows, some, more)
    knows.seen, knows.proxied, knows.inits, knows.open, knows.crossed = seen, proxied, inits, opened, crossed
    every = sum(lanes for lanes, _ in arrived)
    kept = [(event, ledger.bit(event)) for event in reads if seen & ledger.bit(event)]
    kept = [(event, bit) for event, bit in kept if all((one.together | one.waited) & bit for _, one in arrived)]
    knows.met, knows.reads, knows.together, knows.waited = met, [event for event, _ in kept], 0, 0
    for event, bit in kept:
        if all(one.together & bit for _, one in arrived):
            knows.together |= bit
        else:
            knows.waited |= bit
        loose = loose & ~bit if not event.readers & ~every else loose
    knows.loose = loose & seen
    if len(knows.apart) > MANY:
        _by_lane(ledger, knows)


def _add(ledger: Ledger, knows: Knowledge, lanes: int, more: Knowledge) -> None:
    for members, known in knows.apart:
        if members == lanes:
            known.merge(more)
            return
    made = ledger.knowledge()
    made.merge(more)
    made.together, made.waited, made.reads = more.together, more.waited, more.reads
    knows.apart.append((lanes, made))


def _by_lane(ledger: Ledger, knows: Knowledge) -> None:
    """One set for each lane; equal sets share lanes."""
    names = ("seen", "proxied", "inits", "open", "crossed", "narrow", "loose", "unfenced")
    found: dict[tuple[object, ...], tuple[int, Knowledge]] = {}
    for lane in range(32):
        made = ledger.knowledge()
        for members, more in knows.apart:
            if members >> lane & 1:
                made.merge(more)
        key: tuple[object, ...] = tuple([getattr(made, name) for name in names])
        key += tuple([frozenset(clock.items()) for clock in made.clocks])
        if any(key):
            found[key] = found.get(key, (0, made))[0] | 1 << lane, made
    knows.apart = list(found.values())


def synchronise(ledger: Ledger, fiber: Fiber) -> None:
    """bar.warp.sync of a fiber. Each of its lanes knows what any of them knew and did."""
    ledger.renew(fiber)
    ledger.end_turn(fiber)
    fiber.warp.meet(fiber.lanes)
    knows = fiber.knows
    for _, more in knows.apart:
        knows.merge(more)
    knows.apart = []
    knows.proxied |= knows.fenced
    knows.crossed |= knows.fenced
    knows.fenced = 0
    for event in knows.mine:
        knows.seen |= ledger.bit(event)
    knows.mine = unordered(ledger, knows)
    if knows.waited:
        kept = 0
        for event in knows.reads:
            kept |= ledger.bit(event) if event.readers & fiber.warp.alive & ~fiber.lanes else 0
        knows.waited &= kept


def strong(ledger: Ledger, fiber: Fiber, warp: object = None) -> MemoryEvent:
    """The event of a strong access, such as an atomic. Two of them do not race, unless both are of `warp`."""
    return ledger.event(False, fiber.describe, STRONG if warp is None else StrongAccess(warp))


def both_strong(one: object, other: object) -> bool:
    """True if these are the engines of two strong accesses."""
    return isinstance(one, StrongAccess) and isinstance(other, StrongAccess)


def never_race(one: object, other: object) -> bool:
    """True if accesses of two events with these engines never race."""
    if isinstance(one, StrongAccess) and isinstance(other, StrongAccess):
        return one.warp is None or one.warp is not other.warp
    return one is not None and one is other


def did(ledger: Ledger, fiber: Fiber, event: MemoryEvent) -> None:
    """End an event that the fiber made in addition to its epoch. Each lane knows its own part."""
    knows, bit = fiber.knows, ledger.bit(event)
    knows.own |= bit
    if not ledger.lanes or one_lane(fiber.lanes):
        knows.seen |= bit
    if ledger.lanes:
        knows.mine.append(event)


ROUNDING = 2.0**-10  # a sum's terms may cancel, so that its rounding is many times a float's last bit
_FLOATS: dict[int, tuple[type[np.floating], float]] = {  # bytes of an element -> its type, the least normal number
    4: (np.float32, 2.0**-126),
    8: (np.float64, 2.0**-1022),
}


def conflicting(offsets: Lanes, data: npt.NDArray[np.uint8], width: int) -> tuple[int, bool] | None:
    """The first offset where lanes store different bytes, and whether rounding explains all of them.

    data   [lane, bytes]; width: bytes of an element. PTX leaves the result open ("st"). Triton's reductions store a
           sum from several lanes, whose last bits differ where a product was fused with the first addition.
    """
    if np.count_nonzero(offsets[1:] > offsets[:-1]) == len(offsets) - 1:
        return None  # the most frequent order, without duplicates
    order = np.argsort(offsets, kind="stable")
    same = offsets[order][1:] == offsets[order][:-1]
    if not any_of(same):
        return None
    wrong = same & (data[order][1:] != data[order][:-1]).any(axis=1)
    if not wrong.any():
        return None
    return int(offsets[order][1:][wrong][0]), apart_by_rounding(data[order][1:][wrong], data[order][:-1][wrong], width)


def apart_by_rounding(a: npt.NDArray[np.uint8], b: npt.NDArray[np.uint8], width: int) -> bool:
    """True if all elements are equal, or normal floats that differ in their last bits."""
    if width not in _FLOATS:
        return False
    kind, least = _FLOATS[width]
    x, y = a.view(kind).astype(np.float64), b.view(kind).astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = (np.abs(x - y) <= ROUNDING * np.abs(x)) & (np.minimum(np.abs(x), np.abs(y)) >= least)
    return bool((near | (a.view(kind) == b.view(kind))).all())


def learn(ledger: Ledger, fiber: Fiber, lanes: int, event: MemoryEvent) -> None:
    """Teach some of the fiber's lanes their part of an asynchronous operation that has happened."""
    knows = fiber.knows
    if not ledger.lanes or (lanes & fiber.lanes == fiber.lanes and (event.lanes == 0 or one_lane(fiber.lanes))):
        ledger.learn(knows, event)
        if ledger.lanes and event.wrote and not event.asynchronous:
            knows.mine.append(event)
    elif event.lanes:
        if event.stamp is not None:
            knows.clocks = knows.clocks.after(event.stamp, event.asynchronous)
        knows.mine.append(event)
        knows.own |= ledger.bit(event)
        knows.time = max(knows.time, event.time)
        knows.past |= ledger.bit(event)
    else:
        more = ledger.knowledge()
        ledger.learn(more, event)
        _add(ledger, knows, lanes & fiber.lanes, more)
        knows.past |= more.seen | more.past


def acquire(ledger: Ledger, fiber: Fiber, lanes: int, told: Knowledge) -> None:
    """Teach some of the fiber's lanes what was handed on to them."""
    if not ledger.lanes or lanes & fiber.lanes == fiber.lanes:
        fiber.knows.merge(told)
    else:
        _add(ledger, fiber.knows, lanes & fiber.lanes, told)
        fiber.knows.past |= told.seen | told.past


def divide(ledger: Ledger, event: MemoryEvent, lanes: int) -> MemoryEvent:
    """Move some lanes' accesses into a new event, known to the same fibers."""
    made = ledger.event(event.asynchronous, event.describe, event.engine)
    made.time, made.wrote, made.stamp, made.turn = event.time, event.wrote, event.stamp, event.turn
    made.lanes, event.lanes = lanes, event.lanes & ~lanes
    event.divided += (made,)
    kept: list[tuple[ShadowMemory, bool, LaneAccess]] = []
    sums: dict[tuple[ShadowMemory, bool], tuple[list[LaneAccess], list[LaneAccess]]] = {}
    for shadow, write, touch in event.touches:
        theirs, ours = sums.setdefault((shadow, write), ([], []))
        if (inside := touch.of(lanes)) is not None:
            theirs.append(inside)
            made.touches.append((shadow, write, inside))
        if (outside := touch.of(FULL & ~lanes)) is not None:
            ours.append(outside)
            kept.append((shadow, write, outside))
    event.touches = kept
    for (shadow, write), (theirs, ours) in sums.items():
        shadow.divide(event, made, _sum(theirs), _sum(ours), write)
    if event.near is not None:
        made.near = event.near
        made.near.append(made)
    for form, pieces in event.pieces.items():
        made.pieces[form] = {piece: who & lanes for piece, who in pieces.items() if who & lanes}
        event.pieces[form] = {piece: who & ~lanes for piece, who in pieces.items() if who & ~lanes}
    bit, new = ledger.bit(event), ledger.bit(made)
    for knowledge in ledger.knowledges:
        # One by one: a loop over the names was the slowest part of a run with many elections.
        if knowledge.seen & bit:
            knowledge.seen |= new
        if knowledge.proxied & bit:
            knowledge.proxied |= new
        if knowledge.crossed & bit:
            knowledge.crossed |= new
        if knowledge.fenced & bit:
            knowledge.fenced |= new
        if knowledge.inits & bit:
            knowledge.inits |= new
        if knowledge.own & bit:
            knowledge.own |= new
        if knowledge.open & bit:
            knowledge.open |= new
        if knowledge.past & bit:
            knowledge.past |= new
        if knowledge.narrow & bit:
            knowledge.narrow |= new
    if ledger.divided is not None:
        ledger.divided(event, made)
    return made


def _sum(touches: list[LaneAccess]) -> tuple[int, dict[int, int]]:
    """(places, parts) of some accesses together."""
    places = whole = 0
    parts: dict[int, int] = {}
    for touch in touches:
        rest = touch.places
        places |= rest
        for place, mask in parts_of(touch.offsets, touch.size).items():
            parts[place] = parts.get(place, 0) | mask
            rest &= ~(1 << place)
        whole |= rest
    return places, {place: mask for place, mask in parts.items() if not whole >> place & 1 and mask != EVERY}
