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
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from ...races.dependent_launches import PreviousLaunch
from ...races.unordered_launches import BESIDE, Copied, Footprint, Touched, TouchedBytes, UnorderedLaunches
from ..arguments import gpu_memory_at

Clock: TypeAlias = dict[int, int]  # stream -> the last of its turns that is over
LEGACY = (0, 1)  # none, and cudaStreamLegacy
PER_THREAD = 2  # cudaStreamPerThread
MOST = 1 << 12  # footprints of one stream that are kept; the oldest are forgotten
# Of the one stream that there is: launches whose watches are kept to be read when there is another, and their pages.
MOST_UNREAD, MOST_PAGES = 4, 256


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


class StreamOrder:
    """The clocks of streams, events and the host, and the bytes that streams have touched.

    nonblocking  the streams that do not wait for the legacy stream
    """

    def __init__(self, nonblocking: set[int]) -> None:
        self.nonblocking = nonblocking
        self._behind: dict[int, Clock] = {0: {}}  # of each stream; its own turn is among them
        self._host: Clock = {}
        self._events: dict[int, Clock] = {}
        self._kept: dict[int, dict[object, tuple[int, Footprint | Copied]]] = {}
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
        for stream, kept in list(self._kept.items()):
            turn = host.get(stream, 0)
            self._kept[stream] = {key: one for key, one in kept.items() if one[0] > turn}
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
        self, handle: int, run: Callable[[], object], label: str = "", touched: Sequence[TouchedBytes] = (),
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

    def note_alone(self, name: str, piece: TouchedBytes) -> None:
        """Note a write that has run on the legacy stream, the only one."""
        with self._lock:
            self._settle(0)
            clock = self._behind[0]
            clock[0] = clock.get(0, 0) + 1
            self._keep(0, clock[0], [(piece, Copied(piece, name, next(self._times)))])

    def is_over(self, handle: int, turn: int) -> bool:
        """True if the host has waited for a turn of a stream."""
        return self._host.get(self.stream_of(handle), 0) >= turn

    def turn_of(self, handle: int) -> int:
        """The number of a stream's latest turn."""
        return self._behind.get(stream := self.stream_of(handle), {}).get(stream, 0)

    def _scope(self, stream: int, launches: bool) -> tuple[UnorderedLaunches, int]:
        """(The scope of work that begins, its turn of the stream.)"""
        if stream not in self._used:
            self._read(self._used)
            self._used.add(stream)
        clock = self._clock(stream)
        last = self._last.get(stream) if launches else None
        front = last.front if last is not None and last.clock == clock else None
        clock[stream] = clock.get(stream, 0) + 1
        others = []
        for other in {*self._kept, *self._last} - {stream}:
            turn, done = clock.get(other, 0), self._last.get(other)
            beside = Touched(stream=self.name_of(other))
            if done is not None and done.turn > turn:
                beside.footprints += [footprint for one in done.touched for footprint in one.all()]
            for its, item in self._kept.get(other, {}).values():
                if its > turn:
                    beside.footprints.append(item if isinstance(item, Footprint) else item.footprint)
            if beside.footprints:
                others.append(beside)
        scope = UnorderedLaunches(others, front, self.name_of(stream), next(self._times), self._born)
        return scope, clock[stream]

    def _over(self, stream: int, turn: int, scope: UnorderedLaunches) -> None:
        self._settle(stream)
        if scope.front is not None:
            scope.front.watch.dependent = None  # the launches before it: a later launch is behind them, or has them
        self._last[stream] = _Latest(turn, scope.seen, scope.last, dict(self._behind[stream]))

    def _settle(self, stream: int) -> None:
        """Keep the footprints of a stream's last work, without its launches."""
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
        kept = self._kept.setdefault(stream, {})
        for key, item in found:
            kept.pop(key, None)  # the latest last
            kept[key] = turn, item
        while len(kept) > MOST:
            del kept[next(iter(kept))]


def _pages(done: _Latest) -> int:
    """The pages of the watches of a stream's work."""
    watches = [one.launch.watch for one in done.touched if one.launch is not None]
    return sum(len(watch.pages) + len(watch.coarse) for watch in watches)
