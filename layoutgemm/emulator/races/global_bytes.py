"""Races in global memory between the warps of one launch, and with its copy engines.

The latest reader, ordinary writer and strong writers of each byte are kept. Ordinary loads and stores, cp.async, and
bulk and tensor copies count. Strong writes (volatile, relaxed, release, atomic sums, an engine's reductions) race with
ordinary accesses, not with each other. A strong read, which may poll, is compared with ordinary writes and not kept.
Other atomics, of which locks and counters are built, do not count.

Two accesses are ordered if the second's thread knows the first's turn (`clocks.py`). It learns of it by the barriers of
a block or a cluster, and by a wait for a copy. Between clusters a word of global memory is released and acquired. An
ordinary write comes before a copy engine's read only with a proxy fence between them, by either thread.

What a lane acquires at a word counts for that lane, until a barrier of the warp (`lanes.py`).

Lanes of one warp have a file of their own (`global_words.py`). PTX ISA, "Memory Consistency Model", "Data races".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ..machine.memory import GRANULE
from ..ptx.values import lane_bits, lanes_among
from .clocks import NO_CLOCKS, Clock, Clocks, Stamp
from .conflicts import FENCE, WARP_BARRIER, Conflict, SaidAccess, remedy
from .conflicts import TOGETHER as RUN_TOGETHER
from .global_words import READ, READ_STRONGLY, NotedRead, note_read, untold, written_over
from .lanes import LaneAccess, Same, clocks_of

if TYPE_CHECKING:
    from ..machine.interpreter import Fiber, Warp
    from .dependent_launches import DependentLaunch
    from .happens_before import MemoryEvent
    from .unordered_launches import UnorderedLaunches

PAGE_BITS = 16
PAGE = 1 << PAGE_BITS  # bytes that are watched by one array
MOST = 1 << 12  # pages: what lies beyond is not watched
TOGETHER = 32  # strong writes of one place that are kept where nothing orders them
COARSE = GRANULE.bit_length() - 1
BETWEEN_BLOCKS = (
    "A fence and an atomic by the first's thread, or st.release, on a word that the second's thread acquires before, "
    "orders them; so does a launch of its own for the second."
)
DOUBTED = (
    "only an atomic or volatile read of a flag without a fence after it, or an mbarrier operation of one block's scope "
    "(.cta, the default), stands between them: PTX orders nothing by that, practice counts on it, and "
    "Policy(strict=True) makes this a finding"
)
ACQUIRE = (
    "A fence (fence.acq_rel) after the read of the flag, or an acquiring read of it, orders them; at an mbarrier, "
    ".release.cluster and .acquire.cluster do."
)
POLLED = (
    "a volatile, relaxed or acquiring read of what an ordinary store wrote is a race by PTX; flags are written so in "
    "practice, and Policy(strict=True) makes this a finding"
)
FLAG = (
    "For data, a fence by the writer before it sets the flag, and an acquiring read of the flag, order them. For the "
    "flag itself, an st.release or atomic operation is no race."
)
WARP = "bar.warp.sync (__syncwarp) of the writing warp, before one of its lanes releases, orders them."
ALONE = "other lanes of the warp have acquired it"
AFTER = "bar.warp.sync (__syncwarp) between the lane that acquires, or waits, and the others' accesses orders them."
SHUFFLED = f"other lanes of the warp have acquired it, and a shuffle or vote told the rest: {RUN_TOGETHER}"
LINTS = (DOUBTED, SHUFFLED)
UNFENCED = "no fence.proxy.async between the write and the read by a copy engine"
Numbers = npt.NDArray[np.int32]
Addresses = npt.NDArray[np.int64]


class GlobalAccess(NamedTuple):
    """An instruction's accesses in one turn of a source.

    event         of a copy whose end the ledger of its cluster knows of, or None
    asynchronous  whether it is of the async proxy
    text          its `str` says what it is: few are ever asked
    pc            of a thread's own load or store, or None
    """

    warp: Warp
    stamp: Stamp
    event: MemoryEvent | None
    asynchronous: bool
    text: object
    pc: int | None

    @property
    def what(self) -> str:
        """The access in words."""
        return str(self.text)


class CopyAccess(NamedTuple):
    """A copy that accesses global memory in a turn of its own. The rest as in `GlobalAccess`."""

    stamp: Stamp
    event: MemoryEvent | None = None
    asynchronous: bool = True


class MadeGlobalAccess(NamedTuple):
    """An access that is examined, as `GlobalWatch.access` has its arguments."""

    fiber: Fiber
    what: Callable[[], str]
    copying: CopyAccess | None
    addresses: Addresses
    size: int
    lanes: int

    def at(self, units: Addresses, shift: int) -> int:
        """The lanes that touch one of these units of 2**shift bytes."""
        lanes = self.lanes or self.fiber.lanes
        if self.copying is not None or len(self.addresses) == 1:
            return lanes
        low, high = self.addresses >> shift, self.addresses + self.size - 1 >> shift
        touch = np.asarray(((low[:, None] <= units) & (units <= high[:, None])).any(axis=1))
        return lanes_among(lanes, touch)


class WatchedPage:
    """The numbers of the latest accesses to each unit of a page, or None.

    changers  those of strong writes
    Copies of whole units of 16 bytes have a page of their own, so that few numbers are kept of them.
    """

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.writers: Numbers | None = None
        self.readers: Numbers | None = None
        self.changers: Numbers | None = None

    def _numbers(self) -> Numbers:
        return np.zeros(PAGE >> self.shift, np.int32)

    def note_write(self, units: slice | Numbers, number: int) -> None:
        """Note an ordinary write."""
        if self.writers is None:
            self.writers = self._numbers()
        self.writers[units] = number

    def note_read(self, units: slice | Numbers, number: int) -> None:
        """Note a read."""
        if self.readers is None:
            self.readers = self._numbers()
        self.readers[units] = number

    def changed(self) -> Numbers:
        """The numbers of strong writes."""
        if self.changers is None:
            self.changers = self._numbers()
        return self.changers


class PagePlaces:
    """Bytes of one page: `size` of them at each start, or at one start."""

    def __init__(self, page: int, starts: Numbers | int, size: int) -> None:
        self.page, self.starts, self.size = page, starts, size

    def units(self, shift: int) -> slice | Numbers:
        """The units of 2**shift bytes that they touch."""
        if isinstance(self.starts, int):
            return slice(self.starts >> shift, (self.starts + self.size - 1 >> shift) + 1)
        if self.size >> shift <= 1:
            return self.starts >> shift
        every = self.starts[:, None] + np.arange(self.size, dtype=np.int32)
        return every.astype(np.int32, copy=False).reshape(-1)


class GlobalWatch:
    """The latest accesses to each byte of global memory, of one launch.

    strict   as `Policy.strict`
    flagged  whether the kernel has strong accesses, by which blocks tell each other of what they did
    dependent  launches that may run beside this one, or None (`dependent_launches.py`)
    beside   earlier work that nothing orders with this launch, or None (`unordered_launches.py`)
    """

    def __init__(self, strict: bool = False, flagged: bool = True) -> None:
        self.strict, self.flagged = strict, flagged
        self.dependent: DependentLaunch | None = None
        self.beside: UnorderedLaunches | None = None
        self.accesses: list[GlobalAccess | None] = [None]  # by their numbers; 0: none
        self.numbers: dict[tuple[Stamp, int], int] = {}  # (turn, pc) -> number
        self.groups: dict[int, tuple[int, ...]] = {}  # number of several strong writes -> theirs
        self.group_numbers: dict[tuple[int, ...], int] = {}
        self.joined: dict[tuple[int, int], int] = {}  # (of earlier ones, of a strong write) -> of both
        self.pages: dict[int, WatchedPage] = {}
        self.coarse: dict[int, WatchedPage] = {}  # of copies of whole units
        # A word's address -> what its releases hand on, and the warp that stored it last, if any.
        self.flags: dict[int, tuple[Clocks, object]] = {}
        # A word's address -> the turns of its latest strong store and of the atomic operations since, and the warps
        # that have read it strongly since the last of them.
        self.observed: dict[int, tuple[set[Stamp], set[object]]] = {}
        self.sources: dict[object, int] = {}  # an mbarrier, or a warp's engine and lanes -> source
        self.turns: dict[int, int] = {}  # of the sources beside warps

    def next_turn(self, owner: object, turn: int = 0) -> Stamp:
        """A turn of a source that is no warp. This one, or with 0 its next."""
        source = self.sources.setdefault(owner, len(self.sources) + 1)
        self.turns[source] = turn = turn or self.turns.get(source, 0) + 1
        return source, turn

    def release(self, clocks: Clocks, addresses: Addresses, stored: object = None) -> None:
        """Hand on what is known of global memory at these words.

        stored  the warp whose store ends what other warps handed on there; None: an atomic operation adds to it
        """
        for at in set(addresses.tolist()):
            before, by = self.flags.get(at, (NO_CLOCKS, None))
            if stored is not None and by is not stored:
                before, by = NO_CLOCKS, stored
            self.flags[at] = before.merged(clocks), by

    def wrote(self, warp: Warp, addresses: Addresses, atomic: bool) -> None:
        """Note strong writes of words, of this warp's turn. An atomic one follows those before it."""
        for at in set(addresses.tolist()):
            turns, readers = self.observed.setdefault(at, (set(), set()))
            if not atomic:
                turns.clear()
            turns.add((warp.source, warp.turn))
            readers.clear()

    def observe(self, warp: Warp, addresses: Addresses) -> None:
        """Note that a warp reads words strongly."""
        for at in set(addresses.tolist()):
            if at in self.observed:
                self.observed[at][1].add(warp)

    def _has_observed(self, warp: Warp, at: int, size: int, stamp: Stamp) -> bool:
        """True if a warp has read a strong write's value in the accessed word.

        PTX ISA, "Causality Order": a write precedes what follows the read that observes it, also a relaxed one.
        """
        if size > 4 and (size > 8 or at + 4 in self.observed):
            return False
        turns, readers = self.observed.get(at, ((), ()))
        return stamp in turns and warp in readers

    def told(self, address: int) -> Clocks:
        """Return the clocks that were handed on at a word."""
        return self.flags[address][0] if address in self.flags else NO_CLOCKS

    def access(
        self, fiber: Fiber, pc: int, what: Callable[[], str], addresses: Addresses, size: int,
        same: Same | None, copying: CopyAccess | None = None, strong: bool = False, lanes: int = 0,
    ) -> Conflict | None:  # fmt: skip
        """Record an access and return its race, or None.

        addresses  each a multiple of `size`, a power of two; of the lanes in their order, or one for all of them
        same       of a write, whether memory holds what it writes; None: a read
        copying    of a copy that goes on after its instruction
        strong     of a write, whether it is atomic or strong
        """
        number, coarse = self._number(fiber, pc, what, copying), copying is not None and size == GRANULE
        source = fiber.warp.source if copying is None else copying.stamp[0]
        race: Conflict | None = None
        if self.dependent is not None:
            race = self.dependent.race(fiber, what, addresses, size, same is not None, lanes or fiber.lanes)
        if race is None and self.beside is not None:
            race = self.beside.race(fiber, what, addresses, size, same is not None, strong)
        made = MadeGlobalAccess(fiber, what, copying, addresses, size, lanes)
        for places in _places(addresses, size):
            if race is None or race.lint:
                race = self._examined(made, places, same, strong) or race
            if (
                race is None
                and same is not None
                and copying is None
                and not strong
                and READ_STRONGLY in fiber.warp.scratch
            ):
                race = self._over(made, fiber.warp.scratch[READ_STRONGLY].get(places.page, ()), same)
            pages, shift = (self.coarse, COARSE) if coarse else (self.pages, 0)
            page = pages.get(places.page)
            if page is None:
                if len(pages) >= MOST:
                    continue
                page = pages[places.page] = WatchedPage(shift)
            if same is None:
                page.note_read(places.units(shift), number)
                if copying is None:
                    note_read(fiber, what, number, addresses, size, lanes or fiber.lanes, READ)
            elif strong:
                self._add(page.changed(), places.units(shift), number, source, fiber.knows.clocks.known)
            else:
                page.note_write(places.units(shift), number)
        return race

    def polled(
        self, fiber: Fiber, what: Callable[[], str], addresses: Addresses, size: int, lanes: int
    ) -> Conflict | None:
        """The conflict of some lanes' strong read with an unordered ordinary write, or None."""
        made = MadeGlobalAccess(fiber, what, None, addresses, size, lanes)
        for places in _places(addresses, size):
            note_read(fiber, what, places.page, addresses, size, lanes, READ_STRONGLY)
            page = self.pages.get(places.page)
            if page is None or page.writers is None:
                continue
            where = places.units(page.shift)
            found = (page.writers[where], True, False, where, page.shift)
            race = self._race(made, places.page, found, None)
            if race is not None and not race.lint:  # a relaxed read of a flag before this one is enough in practice
                message = race.message.partition("; nothing orders them: ")[0]
                return Conflict(f"{message}; nothing orders them: {POLLED}", FLAG, not self.strict)
        return None

    def stored_elsewhere(self, fiber: Fiber, addresses: Addresses, size: int) -> npt.NDArray[np.bool_]:
        """[address] whether a warp other than the fiber's stored one of its `size` bytes last."""
        own = fiber.cta.coordinate, fiber.warp.number
        found = np.zeros(len(addresses), bool)
        for row, first in enumerate(addresses.tolist()):
            for at in range(first, first + size):
                page = self.pages.get(at >> PAGE_BITS)
                number = 0 if page is None or page.writers is None else int(page.writers[at & PAGE - 1])
                last = self.accesses[number]
                if last is not None and (last.warp.cta.coordinate, last.warp.number) != own:
                    found[row] = True
        return found

    def written_by(self, addresses: Addresses, size: int) -> str | None:
        """The text of an access that wrote one of these bytes, or None."""
        return self.touched_by(addresses, size, False)

    def touched_by(self, addresses: Addresses, size: int, reads: bool) -> str | None:
        """The text of an access that wrote one of these bytes, or None. With `reads`, or that read one."""
        for places in _places(addresses, size):
            for pages in (self.pages, self.coarse):
                page = pages.get(places.page)
                if page is None:
                    continue
                for numbers in (page.writers, page.changers, *([page.readers] if reads else [])):
                    written = numbers[places.units(page.shift)] if numbers is not None else None
                    if written is not None and (number := int(written.max(initial=0))):
                        return self._text(number) or None
        return None

    def _text(self, number: int) -> str:
        access = self.accesses[self.groups.get(number, (number,))[0]]
        return "" if access is None else access.what

    def ranges(self, low: int, size: int) -> Iterator[tuple[str, Addresses, Addresses, list[str]]]:
        """The ranges in [low, low + size) that were touched: (kind, low ends, high ends, texts).

        The kinds are "read", "write" and "strong": atomic and strong writes.
        """
        for pages in (self.pages, self.coarse):
            touched = [page for page in pages if low >> PAGE_BITS <= page <= low + size - 1 >> PAGE_BITS]
            for kind in ("read", "write", "strong") if touched else ():
                lows, highs, texts = list[Addresses](), list[Addresses](), list[str]()
                for number in sorted(touched):
                    page = pages[number]
                    values = {"read": page.readers, "write": page.writers, "strong": page.changers}[kind]
                    if values is None:
                        continue
                    base = number << PAGE_BITS
                    first = max(low - base, 0) >> page.shift
                    part = values[first : -(-(low + size - base) >> page.shift)]
                    edges = np.flatnonzero(np.diff(part != 0, prepend=False, append=False))
                    begins = edges[::2]
                    texts += [self._text(one) for one in part[begins].tolist()]
                    lows.append((begins + first << page.shift) + base)
                    highs.append((edges[1::2] + first << page.shift) + base)
                if texts:
                    yield kind, np.concatenate(lows), np.concatenate(highs), texts

    def _examined(self, made: MadeGlobalAccess, places: PagePlaces, same: Same | None, strong: bool) -> Conflict | None:
        """The race of an access to some places of a page, or None."""
        race: Conflict | None = None
        for pages in (self.pages, self.coarse):
            page = pages.get(places.page)
            if page is None:
                continue
            changers, writers = None if strong else page.changers, page.writers
            if changers is None and writers is None and (same is None or page.readers is None):
                continue
            where = places.units(page.shift)
            if changers is not None:
                found = (changers[where], True, same is not None, where, page.shift)
                race = self._race(made, places.page, found, same)
            if writers is not None and (race is None or race.lint):
                found = (writers[where], True, same is not None, where, page.shift)
                race = self._race(made, places.page, found, same) or race
            if page.readers is not None and same is not None and (race is None or race.lint):
                found = (page.readers[where], False, True, where, page.shift)
                race = self._race(made, places.page, found, None) or race
                race = race or self._over_reads(made, found[0], same)
            if race is not None:
                return race
        return None

    def _over_reads(self, made: MadeGlobalAccess, numbers: Numbers, same: Same) -> Conflict | None:
        """The lint of a write over what lanes of a warp read together, or None. numbers: of the reads there."""
        if made.copying is not None:
            return None
        first = numbers[0]
        for number in np.unique(numbers).tolist() if np.count_nonzero(numbers != first) else [int(first)]:
            earlier = self.accesses[number]
            if earlier is not None and earlier.warp.cta.cluster is made.fiber.cta.cluster:
                lint = self._over(made, earlier.warp.scratch.get(READ, {}).get(number, ()), same)
                if lint is not None:
                    return lint
        return None

    @staticmethod
    def _over(made: MadeGlobalAccess, kept: Sequence[NotedRead], same: Same) -> Conflict | None:
        """The lint of a write over one of these reads, or None; not of the bytes that memory holds."""
        if not kept:
            return None
        why = written_over(made.fiber, kept, LaneAccess(made.lanes or made.fiber.lanes, made.addresses, made.size))
        if why is None or same(lambda at: np.ones(at.shape, bool)):
            return None
        buffer, offset = made.fiber.machine.launch.memory.find(int(made.addresses[0]))
        both = f"{made.what()}, from byte {offset} of {buffer.name} on, and, before it, {why}"
        return Conflict(both, WARP_BARRIER, lint=True)

    def _add(self, changers: Numbers, where: slice | Numbers, number: int, source: int, known: Clock) -> None:
        """Record a strong write beside those that it does not follow: a later read has to follow all of them."""
        had = changers[where]
        different = set(had.tolist()) - {0, number}
        if not different:
            changers[where] = number
            return
        new = np.full_like(had, number)
        for old in different:
            joined = self.joined.get((old, number))
            if joined is None:
                rest = [one for one in self.groups.get(old, (old,)) if self._apart(one, source, known)]
                joined = self._group((*rest[1 - TOGETHER :], number)) if rest else number
                self.joined[old, number] = joined
            if joined != number:
                new[had == old] = joined
        changers[where] = new

    def _apart(self, number: int, source: int, known: Clock) -> bool:
        """True if an access is of another source than this, and not known."""
        access = self.accesses[number]
        return access is not None and access.stamp[0] != source and known.get(access.stamp[0], 0) < access.stamp[1]

    def _group(self, members: tuple[int, ...]) -> int:
        """The number of several strong writes."""
        if members not in self.group_numbers:
            self.group_numbers[members] = len(self.accesses)
            self.groups[len(self.accesses)] = members
            self.accesses.append(None)
        return self.group_numbers[members]

    def _number(self, fiber: Fiber, pc: int, what: Callable[[], str], copying: CopyAccess | None) -> int:
        warp = fiber.warp
        if copying is None:
            if not warp.source:
                warp.source = self.next_turn(warp)[0]
            warp.accessing = True
        stamp = (warp.source, warp.turn) if copying is None else copying.stamp
        found = self.numbers.get((stamp, pc))
        if found is None:
            found = self.numbers[stamp, pc] = len(self.accesses)
            event, of_engine = (None, False) if copying is None else (copying.event, copying.asynchronous)
            text = what.now() if isinstance(what, SaidAccess) else what()
            own = pc if copying is None else None
            self.accesses.append(GlobalAccess(warp, stamp, event, of_engine, text, own))
        return found

    def _race(
        self, made: MadeGlobalAccess, page: int, found: tuple[Numbers, bool, bool, slice | Numbers, int],
        same: Same | None,
    ) -> Conflict | None:  # fmt: skip
        """The race with one of these earlier accesses, or None.

        found  their numbers, whether they wrote, whether it is written now; the units of 2**(the last) bytes
        same   of a write after a write, whether memory holds the same bytes
        """
        numbers, wrote, writes, where, shift = found
        fiber, what = made.fiber, made.what
        first = numbers[0]
        doubt: Conflict | None = None
        different = np.unique(numbers).tolist() if np.count_nonzero(numbers != first) else [int(first)]
        for number, one in [(every, one) for every in different for one in self.groups.get(every, (every,))]:
            earlier = self.accesses[one]
            if earlier is None:
                continue
            lacks = self._lacks(made, earlier, wrote, writes)
            if lacks is not None and fiber.knows.apart:
                theirs = np.flatnonzero(numbers == number)
                inside = theirs + where.start if isinstance(where, slice) else where[theirs].astype(np.int64)
                units = inside + (page << PAGE_BITS - shift)
                lacks = self._lacking(made, earlier, wrote, writes, lacks, units, shift)
            source, turn = earlier.stamp
            partly = lacks in (None, SHUFFLED) and source == earlier.warp.source != fiber.warp.source
            partly = partly and (wrote or fiber.cta.cluster.ledger.reads)
            if lacks is None and not (partly and turn in earlier.warp.partly_told):
                continue
            theirs = np.flatnonzero(numbers == number)
            inside = theirs + where.start if isinstance(where, slice) else where[theirs].astype(np.int64)
            units = inside + (page << PAGE_BITS - shift)
            if partly and turn in earlier.warp.partly_told:
                alone = self._untold(made, earlier, units, shift, wrote)
                if alone is not None:
                    units, lacks = units[units == alone[0] >> shift], alone[1]
            if lacks is None:
                continue
            if same is not None and same(partial(_among, units, shift)):
                continue  # memory holds these bytes in either order
            at = int(units[0]) << shift
            if wrote and self._has_observed(fiber.warp, at, len(numbers), earlier.stamp):
                continue
            buffer, offset = fiber.machine.launch.memory.find(at)
            both = f"both touch byte {offset} of {buffer.name}"
            message = f"{what()} and, before it, {earlier.what}, which {'wrote' if wrote else 'read'} it, {both}"
            why, lint = lacks, (lacks is DOUBTED and not self.strict) or lacks is SHUFFLED
            orders = (
                WARP
                if partly and lacks is not SHUFFLED
                else AFTER
                if lacks.startswith(ALONE)
                else ACQUIRE
                if lacks is DOUBTED
                else FENCE
                if lacks is UNFENCED
                else self._orders(fiber, earlier, what)
            )
            says = f"{message}; {why}" if lacks in (UNFENCED, SHUFFLED) else f"{message}; nothing orders them: {why}"
            if not lint:
                return Conflict(says, orders, reads=self._load(made, earlier, wrote, writes))
            doubt = doubt or Conflict(says, orders, True)
        return doubt

    @staticmethod
    def _load(made: MadeGlobalAccess, earlier: GlobalAccess, wrote: bool, writes: bool) -> int | None:
        """The load's pc, where a thread's load meets a thread's store; else None."""
        if made.copying is not None or earlier.pc is None or wrote == writes:
            return None
        loads = made.fiber.ins.pc if wrote and made.fiber.ins is not None else earlier.pc
        return loads if made.fiber.machine.program.kernel.instructions[loads].words[0] == "ld" else None

    def _lacking(
        self, made: MadeGlobalAccess, earlier: GlobalAccess, wrote: bool, writes: bool, lacks: str,
        units: Addresses, shift: int,
    ) -> str | None:  # fmt: skip
        """`_lacks` of each lane that touches one of these units; of a copy, of the lanes together."""
        lanes = made.at(units, shift)
        if made.copying is not None:
            return self._lacks(made, earlier, wrote, writes, lanes)
        each = [(bit, self._lacks(made, earlier, wrote, writes, bit)) for bit in lane_bits(lanes)]
        missing = sorted([(why in LINTS, bit, why) for bit, why in each if why is not None])
        if len(missing) == len(each) and lacks not in LINTS:
            return lacks
        if not missing or missing[0][2] in (*LINTS, UNFENCED):
            return missing[0][2] if missing else None
        return f"{ALONE}, lane {missing[0][1].bit_length() - 1} has not, and no bar.warp.sync tells it"

    @staticmethod
    def _untold(
        made: MadeGlobalAccess, earlier: GlobalAccess, units: Addresses, shift: int, wrote: bool
    ) -> tuple[int, str] | None:
        """(first address, reason) of a unit whose writer or reader did not tell, or None; lane by lane."""
        knows, (source, turn) = made.fiber.knows, earlier.stamp
        lanes = made.at(units, shift)
        for bit in lane_bits(lanes) if knows.apart and made.copying is None else (lanes,):
            own = units if bit == lanes else [unit for unit in units.tolist() if made.at(np.array([unit]), shift) & bit]
            clocks = clocks_of(knows, bit)
            known = (clocks.practice or clocks).known[source]
            found = untold(earlier.warp, turn, known, [int(unit) << shift for unit in own], wrote)
            if found is not None:
                return found
        return None

    def _lacks(
        self, made: MadeGlobalAccess, earlier: GlobalAccess, wrote: bool, writes: bool, lanes: int = 0
    ) -> str | None:
        """The reason why an earlier access is unordered before this one, or None.

        lanes  whose knowledge counts, beside that of all
        """
        fiber, copying = made.fiber, made.copying
        (source, turn), every = earlier.stamp, clocks_of(fiber.knows, lanes)
        clocks = every.practice or every
        own, alone = source == fiber.warp.source, earlier.warp.cta.cluster is fiber.cta.cluster
        if not own and clocks.known.get(source, 0) < turn and not (alone and self._ended(fiber, earlier, lanes)):
            if clocks.doubted.get(source, 0) >= turn:
                return DOUBTED
            if earlier.warp is fiber.warp:
                # The stores of one warp's engine that overlap each other are left alone.
                stores = wrote and writes and copying is not None and earlier.asynchronous
                return None if stores else "no wait for the first's end"
            return "no barrier" if alone else "no barrier, and no word that the one releases and the other acquires"
        crosses = wrote and copying is not None and copying.asynchronous and not earlier.asynchronous
        if crosses and clocks.crossed.get(source, 0) < turn:
            return UNFENCED
        by_word = own or every.known.get(source, 0) >= turn or (alone and self._ended(fiber, earlier, lanes))
        return None if by_word and not (crosses and every.crossed.get(source, 0) < turn) else SHUFFLED

    def _ended(self, fiber: Fiber, earlier: GlobalAccess, lanes: int) -> bool:
        """True if the fiber, or one of these lanes, knows that a copy has ended."""
        knows, ledger, event = fiber.knows, fiber.cta.cluster.ledger, earlier.event
        if event is None:
            return False
        known = ledger.came_before if earlier.warp is fiber.warp else ledger.knows
        every = (knows, *[more for members, more in knows.apart if members & lanes])
        return any(known(one, part) for one in every for part in (event, *event.divided))

    def _orders(self, fiber: Fiber, earlier: GlobalAccess, what: Callable[[], str]) -> str:
        """One sentence: the instructions that would order them."""
        if earlier.warp is fiber.warp or earlier.warp.cta.cluster is fiber.cta.cluster:
            return remedy(earlier.what, earlier.asynchronous, what(), False)
        return BETWEEN_BLOCKS


def _places(addresses: Addresses, size: int) -> Iterator[PagePlaces]:
    """`size` bytes at each address, page by page."""
    first, extent = int(addresses[0]), size * len(addresses)
    page, offset = first >> PAGE_BITS, first & PAGE - 1
    if offset + extent <= PAGE and int(addresses[-1]) - first == extent - size:  # the lanes' bytes follow each other
        if len(addresses) == 1 or np.count_nonzero(addresses[1:] - addresses[:-1] != size) == 0:
            yield PagePlaces(page, offset, extent)
            return
    pages, inside = addresses >> PAGE_BITS, (addresses & PAGE - 1).astype(np.int32)
    low, high = int(pages.min()), int(pages.max())
    if low == high:
        yield PagePlaces(low, inside, size)
        return
    for one in (low, high) if high == low + 1 else set(pages.tolist()):
        yield PagePlaces(one, inside[pages == one], size)


def _among(units: npt.NDArray[np.int64], shift: int, at: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """True for each address in one of these units of 2**shift bytes."""
    return np.isin(at >> shift, units)
