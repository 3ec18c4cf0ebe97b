"""Races in global memory between the lanes of one warp.

Races between warps are found in `global_bytes.py`. Between the lanes of a warp, each event (`happens_before.py`) keeps
the pieces that each lane wrote. They stay until all lanes know of the event (`lanes.py`) or the checker forgets it, for
the latest `KEPT` events of a warp that touched global memory. An event ends where the warp releases something. A race
across more than `KEPT` events, without a barrier of the warp in between, is not seen. Reads are kept so only under
`Policy(lanes="strict")`.

Otherwise a warp keeps its latest reads as they were made (`note_read`). A write over what the warp has read, or another
that told of it by one lane, is compared with them: lint (`written_over`).

Where one lane releases its warp's writes, another warp knows those of that lane alone, until a barrier of the warp
(`untold`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..ptx.values import lane_bits
from .conflicts import TOGETHER, TOLD_BY_ONE, WAITED
from .lanes import LaneAccess, Same, lanes_that_meet, one_lane, read_together, uninformed

if TYPE_CHECKING:
    from ..machine.interpreter import Fiber, Warp
    from .happens_before import MemoryEvent

KEPT = 256
# In a warp's scratch: the number of an access -> its latest reads; the number of a page -> the latest strong ones.
READ, READ_STRONGLY = "noted reads", "noted strong reads"
READS, AT_ONCE = 64, 8  # numbers of accesses whose reads a warp keeps, and of the latest reads of each


class NotedRead:
    """A load of global memory by lanes that made it together. `event` stands for it in the ledger."""

    __slots__ = ("_bounds", "_rises", "event", "touch", "what")

    def __init__(self, event: MemoryEvent, touch: LaneAccess, what: Callable[[], str]) -> None:
        self.event, self.touch, self.what = event, touch, what
        self._bounds: tuple[int, int] | None = None
        self._rises: bool | None = None  # each lane's bytes lie behind those of the lane before it

    def again(self, event: MemoryEvent, touch: LaneAccess) -> bool:
        """True if a read of this event is the same."""
        had = self.touch
        return (
            self.event is event
            and had.lanes == touch.lanes
            and had.size == touch.size
            and np.array_equal(had.offsets, touch.offsets)
        )

    def pair(self, written: LaneAccess, bounds: tuple[int, int]) -> tuple[int, int] | None:
        """Two lanes, one of which reads what the other writes, or None. bounds: of what is written."""
        before = self.touch
        if self._bounds is None:
            self._bounds = bounds_of(before)
        if self._bounds[1] < bounds[0] or bounds[1] < self._bounds[0]:
            return None
        if before.size == written.size and before.lanes == written.lanes and len(before.offsets) > 1:
            if self._rises is None:
                self._rises = bool((before.offsets[:-1] < before.offsets[1:]).all())
            if self._rises and np.array_equal(before.offsets, written.offsets):
                return None  # the most frequent: each lane its own
        return lanes_that_meet(before, written, True)


def bounds_of(touch: LaneAccess) -> tuple[int, int]:
    """The first and the last byte that it touches."""
    return int(touch.offsets.min()), int(touch.offsets.max()) + touch.size - 1


def touch(
    fiber: Fiber, addresses: npt.NDArray[np.int64], size: int, lanes: int, write: bool, strong: bool = False,
    kept: bool = True, same: Same | None = None,
) -> str | None:  # fmt: skip
    """Record an access to global memory and return its race, or None.

    size       bytes at each address
    addresses  of the lanes, in order, or one for all
    strong     two such accesses do not race; kept: it is recorded, unlike an atomic
    same       of a write, whether memory holds what it writes: no race with another write, as between warps
    """
    ledger, knows, epoch = fiber.cta.cluster.ledger, fiber.knows, fiber.epoch
    if not ledger.lanes:
        return None
    near = fiber.warp.scratch.get("global")
    pending = [event for event in near or () if not ledger.knows(knows, event)]
    kept = kept and (write or ledger.reads)
    if not pending and not kept:
        return None
    numbers = (addresses // size).tolist()
    who = lane_bits(lanes) if len(numbers) > 1 else (lanes,)
    each = dict(zip(numbers, who, strict=True))
    race = None
    for event in pending:
        groups = [
            (other, wrote, pieces)
            for (other, wrote, strongly), pieces in event.pieces.items()
            if (write or wrote) and not (strong and strongly) and not (other == size and _apart(each, pieces, who))
        ]
        if not groups:
            continue
        left = uninformed(ledger, knows, event, lanes)
        for number, members in zip(numbers, who, strict=True):
            mask = members & left
            if mask and race is None and (found := _crossing(groups, number, size, mask, write, same)) is not None:
                buffer, offset = fiber.machine.launch.memory.find(number * size)
                race = (
                    f"byte {offset} of {buffer.name}, that lanes {found[0]:#x} of the same warp {found[1]} before, and "
                    "no bar.warp.sync or other barrier orders them"
                )
    if kept:
        pieces = epoch.pieces.setdefault((size, write, strong), {})
        if len(each) == len(numbers) and (pieces.keys().isdisjoint(each) or each.items() <= pieces.items()):
            pieces.update(each)
        else:
            for number, members in zip(numbers, who, strict=True):
                pieces[number] = pieces.get(number, 0) | members
        epoch.lanes |= lanes
        if epoch.near is None:
            epoch.turn = fiber.warp.turn
            epoch.near = fiber.warp.scratch.setdefault("global", deque(maxlen=KEPT))
            epoch.near.append(epoch)
    return race


def note_read(
    fiber: Fiber, what: Callable[[], str], number: int, addresses: npt.NDArray[np.int64], size: int, lanes: int,
    into: str,
) -> None:  # fmt: skip
    """Keep a read for writes that follow. number: of its access, or of its page; into: `READ` or `READ_STRONGLY`."""
    ledger = fiber.cta.cluster.ledger
    if not ledger.lanes or ledger.reads or one_lane(lanes):
        return
    event = fiber.joint or ledger.joint(fiber)
    read_together(ledger, fiber, event, lanes)
    kept: dict[int, deque[NotedRead]] | None = fiber.warp.scratch.get(into)
    if kept is None:
        kept = fiber.warp.scratch[into] = {}
    latest = kept.get(number)
    if latest is None:
        if len(kept) >= READS:
            del kept[next(iter(kept))]
        latest = kept[number] = deque(maxlen=AT_ONCE)
    access = LaneAccess(lanes, addresses, size)
    if not latest or not latest[-1].again(event, access):  # a loop reads what it writes
        latest.append(NotedRead(event, access, what))


def written_over(fiber: Fiber, kept: Iterable[NotedRead], touch: LaneAccess) -> str | None:
    """A warp's read, and why practice alone orders a write over it; or None. touch: what is written."""
    ledger, knows, bounds = fiber.cta.cluster.ledger, fiber.knows, None
    open_ = knows.together | knows.waited
    for one in kept:
        bit = ledger.bit(one.event)
        if not (open_ | knows.loose) & bit:
            continue
        bounds = bounds or bounds_of(touch)
        pair = one.pair(touch, bounds)
        if pair is None:
            continue
        if not open_ & bit:
            return f"{one.what()}, which read it; {TOLD_BY_ONE}; {TOGETHER}"
        waited = WAITED if knows.waited & bit else ""
        return (
            f"{one.what()}, which read it; lane {pair[0]} reads, lane {pair[1]} of its warp writes; {waited}{TOGETHER}"
        )
    return None


def _apart(each: dict[int, int], pieces: dict[int, int], who: Sequence[int]) -> bool:
    """True if each lane touches pieces that none has, or its own. each: number -> lanes, those of `who`."""
    return pieces.keys().isdisjoint(each) or (len(each) == len(who) > 1 and each.items() <= pieces.items())


def _crossing(
    groups: Iterable[tuple[int, bool, dict[int, int]]], number: int, size: int, mask: int, write: bool,
    same: Same | None,
) -> tuple[int, str] | None:  # fmt: skip
    """The lanes of an event that race with `mask`'s, and what they did; or None.

    groups  of each: bytes of a piece, whether it wrote, and the lanes at each piece
    """
    for other, wrote, pieces in groups:
        for piece in _same(number, size, other):
            had = pieces.get(piece, 0)
            if not had or (one_lane(had) and had == mask) or (not write and not mask & ~had):
                continue
            if wrote and same is not None and same(lambda at: at // size == number):
                continue
            return had, "wrote" if wrote else "read"
    return None


def _same(number: int, size: int, other: int) -> Iterator[int]:
    """The numbers of the pieces of `other` bytes that overlap a piece of `size`."""
    first = number * size // other
    yield from range(first, max(first + 1, (number + 1) * size // other))


def note_partly_told(fiber: Fiber) -> None:
    """Note that some lanes end their warp's turn and do not know of others' writes."""
    warp, ledger = fiber.warp, fiber.cta.cluster.ledger
    near = warp.scratch.get("global", ()) if fiber.lanes != warp.alive else ()
    others = [one.turn for one in near if one.lanes & ~fiber.lanes and not ledger.knows(fiber.knows, one)]
    if others:
        warp.partly_told[warp.turn] = fiber.lanes, min(others)


def untold(warp: Warp, turn: int, known: int, addresses: Iterable[int], wrote: bool = True) -> tuple[int, str] | None:
    """(first address, reason) of a byte that only other lanes told of, or None.

    turn   in which it was written; wrote: or read
    known  the warp's last turn that another warp knows. A turn that all lanes ended, or a barrier, tells of all before.
    """
    tellers = 0
    for ended in range(turn, known + 1):
        lanes, since = warp.partly_told.get(ended, (0, 0))
        if not lanes or since > turn:
            return None
        tellers |= lanes
    open_ = [event for event in warp.scratch.get("global", ()) if event.turn == turn and event.lanes & ~tellers]
    written = [(size, each) for one in open_ for (size, way, _), each in one.pieces.items() if way is wrote]
    for at in addresses:
        who = reduce(or_, [each.get(at // size, 0) for size, each in written], 0)
        if who & ~tellers:
            did = "wrote" if wrote else "read"
            return at, f"lanes {who:#x} {did} it, {tellers:#x} told of it, and no bar.warp.sync stands between"
    return None
