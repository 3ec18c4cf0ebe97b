"""The order of the work of streams, and races of unordered work.

Work runs when it is asked for. Each stream, each event and the host know how far they are behind every stream: by the
streams' turns, as vector clocks. What all later work is behind, since the host has waited for it, is forgotten. Of work
that touches the same ranges of bytes again on one stream the latest is kept.

CUDA C++ Programming Guide, "Streams", "Implicit Synchronization"; CUDA Runtime API, "API synchronization behavior" and
"Stream synchronization behavior".
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from ...races.dependent_launches import PreviousLaunch
from ...races.unordered_launches import BESIDE, Copied, Footprint, Touched, TouchedBytes, UnorderedLaunches
from ..arguments import gpu_memory_at

Clock: TypeAlias = dict[int, int]  # stream -> the last of its turns that is over
_Kept: TypeAlias = tuple[int, int, Footprint | Copied]  # (turn of the stream, number among its footprints, footprint)
LEGACY = (0, 1)  # none, and cudaStreamLegacy
PER_THREAD = 2  # cudaStreamPerThread
MOST = 1 << 12  # footprints of one stream that are kept; the oldest are forgotten
# Of the one stream that there is: launches whose watches are kept to be read when there is another, and their pages.
MOST_UNREAD, MOST_PAGES = 4, 256
LEAST_BITS, BITS_STEP = 8, 4  # of the pages by which footprints are found: 256 bytes, and each 16 times the last


def _join(clock: Clock, other: Clock) -> None:
    for stream, turn in other.items():
        if clock.get(stream, 0) < turn:
            clock[stream] = turn


class HostCopy(NamedTuple):
    """A copy between pinned memory and the GPU that the host has not waited for.

    writes  whether it writes the host's memory
    """

    storage: weakref.ref[object]
    low: int
    high: int
    writes: bool
    stream: int
    turn: int
    text: str


class _Latest(NamedTuple):
    """The latest work of a stream.

    turn   its place there
    front  its launch, beside which a dependent one may run
    clock  what the stream is behind; a wait in between leaves no launch in front
    """

    turn: int
    touched: list[Touched]
    front: PreviousLaunch | None
    clock: Clock


class _Footprints:
    """The kept footprints of a stream, by their turns and by their bytes.

    When they are first asked for, each gets one or two pages, of the smallest size that is no less than its own.
    """

    def __init__(self) -> None:
        self._kept: dict[object, _Kept] = {}  # in the order of their turns
        self._pages: dict[int, dict[int, dict[int, _Kept]]] | None = None  # bits of a page -> page -> number -> one
        self.number = 0  # of the latest
        self.turn = 0  # of the latest
        self.first = 0  # the turn that is named first: of the stream's latest work, if it is kept

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, turn: int, key: object, item: Footprint | Copied) -> None:
        """Keep a footprint. It replaces an earlier one of the same bytes; beyond `MOST` the oldest goes."""
        kept = self._kept
        old = kept.pop(key, None)
        if old is not None or len(kept) >= MOST:
            self._leave(old or kept.pop(next(iter(kept))))
        self.number += 1
        self.turn = turn
        made = kept[key] = turn, self.number, item
        if self._pages is not None:
            self._enter(made)

    def forget(self, turn: int) -> None:
        """Forget all up to a turn."""
        kept = self._kept
        while kept and next(iter(kept.values()))[0] <= turn:
            self._leave(kept.pop(next(iter(kept))))

    def near(self, low: int, high: int, turn: int, number: int, first: int = 0) -> list[Footprint]:
        """Those that may have bytes in [low, high), in order.

        They are behind a turn, and up to a number; those of the turn `first` come before the others.
        """
        if self._pages is None:
            self._pages = {}
            for one in self._kept.values():
                self._enter(one)
        found: dict[tuple[bool, int], Footprint | Copied] = {}
        for bits, pages in list(self._pages.items()):
            begin, end = low >> bits, (high - 1 >> bits) + 1
            few = end - begin <= len(pages)
            for page in range(begin, end) if few else [one for one in list(pages) if begin <= one < end]:
                for its, own, item in list(pages.get(page, {}).values()):
                    if its > turn and own <= number:
                        found[its != first, own] = item
        return [one if isinstance(one, Footprint) else one.footprint for _, one in sorted(found.items())]

    def _enter(self, one: _Kept) -> None:
        assert self._pages is not None
        bits, places = _pages_of(one[2])
        pages = self._pages.setdefault(bits, {})
        for page in places:
            pages.setdefault(page, {})[one[1]] = one

    def _leave(self, old: _Kept) -> None:
        if self._pages is not None:
            bits, places = _pages_of(old[2])
            for page in places:
                del self._pages[bits][page][old[1]]
                if not self._pages[bits][page]:
                    del self._pages[bits][page]


def _pages_of(item: Footprint | Copied) -> tuple[int, set[int]]:
    """(Bits of a page, the pages that a footprint touches)."""
    if isinstance(item, Copied):
        low, high = item.piece.address, item.piece.address + item.piece.size
    else:
        low, high = int(item.lows[0]), int(item.highs[-1])
    bits = max(LEAST_BITS, -(-(high - low).bit_length() // BITS_STEP) * BITS_STEP)
    return bits, {low >> bits, high - 1 >> bits}


class _Unordered:
    """The work of a stream behind a turn, up to now. `latest`: its work of which no footprints are kept yet."""

    def __init__(self, stream: str, kept: _Footprints | None, turn: int, latest: _Latest | None) -> None:
        self.stream, self._kept, self._turn, self._latest = stream, kept, turn, latest
        self._number, self._first = (0, 0) if kept is None else (kept.number, kept.first)

    def near(self, low: int, high: int) -> Iterator[Footprint]:
        """Footprints, those with bytes in [low, high) among them."""
        if self._latest is not None:
            for one in self._latest.touched:
                yield from one.all()
        if self._kept is not None:
            yield from self._kept.near(low, high, self._turn, self._number, self._first)


class StreamOrder:
    """The clocks of streams, events and the host, and the bytes that streams have touched.

    nonblocking  the streams that do not wait for the legacy stream
    """

    def __init__(self, nonblocking: set[int]) -> None:
        self.nonblocking = nonblocking
        self._behind: dict[int, Clock] = {0: {}}  # of each stream; its own turn is among them
        self._host: Clock = {}
        self._events: dict[int, Clock] = {}
        self._kept: dict[int, _Footprints] = {}
        self._last: dict[int, _Latest] = {}
        self._unread: deque[_Latest] = deque()
        self._used: set[int] = set()  # streams that have had work
        self._births: dict[int, int] = {}  # first address of an allocation -> when
        self._times = itertools.count(1)
        self._lock = threading.RLock()
        self._running = threading.local()
        self.host_copies: list[HostCopy] = []  # of pinned memory, as torch's device keeps them
        self.is_kept = True  # False: races are not looked for
        self.are_several = False  # True once a stream beside the default ones has been made

    # ------------------------------------------------------------------------------------ what is behind what

    @staticmethod
    def stream_of(handle: int) -> int:
        """The stream of a handle. The legacy stream has two, and each thread its per-thread stream."""
        return 0 if handle in LEGACY else -threading.get_ident() if handle == PER_THREAD else handle

    def _clock(self, stream: int) -> Clock:
        """The clock of what is asked of a stream now."""
        clock = self._behind.setdefault(stream, {})
        _join(clock, self._host)
        if stream == 0:
            for other, known in self._behind.items():
                if other not in self.nonblocking and other != 0:
                    _join(clock, known)
        elif stream not in self.nonblocking:
            _join(clock, self._behind[0])
        return clock

    def record(self, event: int, handle: int) -> None:
        """Record an event behind the stream's work so far; in a graph behind what runs."""
        with self._lock:
            stream = getattr(self._running, "stream", None)
            self._events[event] = dict(self._clock(self.stream_of(handle) if stream is None else stream))

    def wait(self, handle: int, event: int) -> None:
        """Put a stream's later work behind an event."""
        with self._lock:
            _join(self._clock(self.stream_of(handle)), self._events.get(event, {}))

    def wait_all(self, handle: int) -> None:
        """Put a stream's later work behind all that has been asked for."""
        with self._lock:
            for known in list(self._behind.values()):
                _join(self._clock(self.stream_of(handle)), known)

    def host_waits(self, handle: int | None = None, event: int | None = None) -> None:
        """Put all later work behind a stream's, an event, or with neither behind all."""
        with self._lock:
            if event is not None:
                found = [self._events.get(event, {})]
            else:
                found = list(self._behind.values()) if handle is None else [self._clock(self.stream_of(handle))]
            known = self._host
            before = dict(known)
            for one in found:
                _join(known, one)
            if known != before:
                self._forget()

    def _forget(self) -> None:
        """Forget what all later work is behind."""
        host = self._host
        for stream, done in list(self._last.items()):
            if done.turn <= host.get(stream, 0):
                del self._last[stream]
        while self._unread and self._unread[0].turn <= host.get(next(iter(self._used)), 0):
            self._unread.popleft()
        for stream, kept in self._kept.items():
            kept.forget(host.get(stream, 0))
        self._events = {
            event: known for event, known in self._events.items()
            if any(turn > host.get(stream, 0) for stream, turn in known.items())
        }  # fmt: skip
        if not self._last and not self._unread and not any(self._kept.values()):
            self._births.clear()

    def allocated(self, address: int) -> None:
        """Note that an allocation begins at an address: what was there before was another's."""
        if self._last or self._kept:
            self._births[address] = next(self._times)

    def _born(self, address: int) -> int | None:
        found = gpu_memory_at(address)
        return None if found is None else self._births.get(found[1], 0)

    # ------------------------------------------------------------------------------------ work

    def name_of(self, stream: int) -> str:
        """A stream for the text."""
        return "the legacy stream" if stream == 0 else "a per-thread stream" if stream < 0 else f"stream {stream:#x}"

    def run(
        self, handle: int, run: Callable[[], object], label: object = "", touched: Sequence[TouchedBytes] = (),
        launches: bool = False,
    ) -> None:  # fmt: skip
        """Do work of a stream, and find its races with work of others.

        launches  whether it launches kernels, one of which may be dependent
        """
        if BESIDE.now is not None or not self.is_kept:  # a part of work that runs already
            run()
            return
        with self._lock:
            stream = self.stream_of(handle)
            scope, turn = self._scope(stream, launches)
        scope.copied(touched, label)
        self._running.stream = stream
        try:
            with BESIDE.entered(scope):
                run()
        finally:
            self._running.stream = None
            with self._lock:
                self._over(stream, turn, scope)

    def note(self, handle: int, name: object, pieces: Sequence[TouchedBytes]) -> None:
        """Note work of a stream that has run, and find its races as `run` does."""
        if BESIDE.now is not None or not self.is_kept:
            return
        with self._lock:
            stream = self.stream_of(handle)
            clock, others = self._began(stream)
            time, turn = next(self._times), clock[stream]
            if others:
                scope = UnorderedLaunches(others, None, self.name_of(stream), time, self._born)
                scope.copied(pieces, name)
            self._settle(stream)
            kept = self._footprints(stream)
            kept.first = turn
            for piece in pieces:
                kept.keep(turn, piece, Copied(piece, name, time))

    def note_alone(self, name: object, piece: TouchedBytes) -> None:
        """Note a write that has run on the legacy stream, the only one."""
        with self._lock:
            if self._last:
                self._settle(0)
            clock = self._behind[0]
            clock[0] = turn = clock.get(0, 0) + 1
            kept = self._footprints(0)
            kept.first = 0
            kept.keep(turn, piece, Copied(piece, name, next(self._times)))

    def is_over(self, handle: int, turn: int) -> bool:
        """True if the host has waited for a turn of a stream."""
        return self._host.get(self.stream_of(handle), 0) >= turn

    def turn_of(self, handle: int) -> int:
        """The number of a stream's latest turn."""
        return self._behind.get(stream := self.stream_of(handle), {}).get(stream, 0)

    def _scope(self, stream: int, launches: bool) -> tuple[UnorderedLaunches, int]:
        """(The scope of work that begins, its turn of the stream.)"""
        last = self._last.get(stream) if launches else None
        before = None if last is None else dict(self._clock(stream))
        front = last.front if last is not None and last.clock == before else None
        clock, others = self._began(stream)
        scope = UnorderedLaunches(others, front, self.name_of(stream), next(self._times), self._born)
        return scope, clock[stream]

    def _began(self, stream: int) -> tuple[Clock, list[_Unordered]]:
        """(The clock of work that begins, the work of others that nothing orders with it.)"""
        if stream not in self._used:
            self._read(self._used)
            self._used.add(stream)
        clock = self._clock(stream)
        clock[stream] = clock.get(stream, 0) + 1
        others = []
        for other in {*self._kept, *self._last} - {stream}:
            turn, done, kept = clock.get(other, 0), self._last.get(other), self._kept.get(other)
            latest = done if done is not None and done.turn > turn and done.touched else None
            if latest is not None or (kept is not None and kept.turn > turn):
                others.append(_Unordered(self.name_of(other), kept, turn, latest))
        return clock, others

    def _over(self, stream: int, turn: int, scope: UnorderedLaunches) -> None:
        self._settle(stream)
        if scope.front is not None:
            scope.front.watch.dependent = None  # the launches before it: a later launch is behind them, or has them
        self._last[stream] = _Latest(turn, scope.seen, scope.last, dict(self._behind[stream]))

    def _settle(self, stream: int) -> None:
        """Keep the footprints of a stream's last work, without its launches."""
        if stream in self._kept:
            self._kept[stream].first = 0
        done = self._last.pop(stream, None)
        if done is None:
            return
        for one in done.touched:
            self._keep(stream, done.turn, [(copy.piece, copy) for copy in one.copies])
            one.copies = []
        if len(self._used) > 1:
            self._read_one(stream, done)
        elif any(one.launch is not None for one in done.touched):
            self._unread.append(done)
            while len(self._unread) > MOST_UNREAD or sum(map(_pages, self._unread)) > MOST_PAGES:
                self._unread.popleft()

    def _read(self, streams: set[int]) -> None:
        """Read the watches of the launches of the one stream that there was."""
        while self._unread:
            self._read_one(next(iter(streams)), self._unread.popleft())

    def _read_one(self, stream: int, done: _Latest) -> None:
        for one in done.touched:
            found = [((x.kind, x.lows.tobytes(), x.highs.tobytes()), x) for x in one.of_launches()]
            self._keep(stream, done.turn, found)

    def _keep(self, stream: int, turn: int, found: Sequence[tuple[object, Footprint | Copied]]) -> None:
        """Keep footprints. They replace earlier ones of the same bytes."""
        kept = self._footprints(stream)
        for key, item in found:
            kept.keep(turn, key, item)

    def _footprints(self, stream: int) -> _Footprints:
        kept = self._kept.get(stream)
        if kept is None:
            kept = self._kept[stream] = _Footprints()
        return kept


def _pages(done: _Latest) -> int:
    """The pages of the watches of a stream's work."""
    watches = [one.launch.watch for one in done.touched if one.launch is not None]
    return sum(len(watch.pages) + len(watch.coarse) for watch in watches)
