"""Races of unordered work: of two streams, or of two nodes of a CUDA graph.

They run one after another here and may run at once on a GPU. An access of the later one is compared with the bytes that
the earlier ones touched. Atomic operations and strong writes of both are no race. CUDA C++ Programming Guide, "Streams"
and "CUDA Graphs": work may begin when all that it is ordered behind has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..findings import Finding
from ..turns import OwnStack
from .conflicts import Conflict
from .dependent_launches import PreviousLaunch

if TYPE_CHECKING:
    from ..machine.interpreter import Fiber
    from ..machine.memory import GlobalMemory

Addresses = npt.NDArray[np.int64]
NODES = "nothing orders the two nodes of the graph"
NODES_ORDER = "A dependency between the two nodes, or an event between their streams in the capture, orders them."
STREAMS_ORDER = (
    "An event that the earlier one's stream records and the later one's waits for, or a wait of the host between the "
    "two, orders them."
)


FOUND: list[list[Finding]] = []  # where the races of copies go: of each session


class TouchedBytes(NamedTuple):
    """Bytes that a copy or a fill touches, by their address in this process. `verb`: the text, if not read or write."""

    address: int
    size: int
    writes: bool
    verb: str = ""


class Footprint(NamedTuple):
    """Ranges of bytes that were touched in one way.

    They are addresses of this process, in rising order.

    kind   "read", "write", or "strong": atomic and strong writes
    texts  the access to each range
    time   when: memory that is allocated later is another's
    """

    kind: str
    lows: Addresses
    highs: Addresses
    texts: Sequence[str]
    time: int = 0

    def hit(self, addresses: Addresses, size: int, writes: bool, strong: bool = False) -> tuple[int, str] | None:
        """(address, text) of a conflict with `size` bytes at each address, or None."""
        if (self.kind == "read" and not writes) or (self.kind == "strong" and strong):
            return None
        if self.highs[-1] <= addresses.min() or addresses.max() + size <= self.lows[0]:
            return None
        before = np.searchsorted(self.lows, addresses + size) - 1  # the last range that begins before an access ends
        hits = np.flatnonzero((before >= 0) & (self.highs[before] > addresses))
        if not len(hits):
            return None
        number = int(before[hits[0]])
        return max(int(self.lows[number]), int(addresses[hits[0]])), self.texts[number]


class Copied(NamedTuple):
    """Bytes that a copy or a fill has touched, its name, and when. They become a footprint where others run beside.

    name  its `str` is the name
    """

    piece: TouchedBytes
    name: object
    time: int

    @property
    def text(self) -> str:
        """The access."""
        address, size, writes, verb = self.piece
        return f"{self.name} {verb or ('writes' if writes else 'reads')} {size} bytes at {address:#x}"

    @property
    def footprint(self) -> Footprint:
        """The bytes as ranges."""
        low = np.array([self.piece.address])
        return Footprint("write" if self.piece.writes else "read", low, low + self.piece.size, (self.text,), self.time)


@dataclass(eq=False)
class Touched:
    """The bytes that a launch, a copy or a fill has touched.

    copies  of copies and fills
    stream  on which it ran, for the text; "" for a node of the same graph
    launch  its watch, until that is read
    time    of a launch, as of its footprints
    """

    footprints: list[Footprint] = field(default_factory=list)
    copies: list[Copied] = field(default_factory=list)
    stream: str = ""
    launch: PreviousLaunch | None = None
    time: int = 0
    _memory: GlobalMemory | None = None

    def near(self, low: int, high: int) -> list[Footprint]:
        """Footprints, those with bytes in [low, high) among them."""
        return self.all()

    def all(self) -> list[Footprint]:
        """All footprints. The launch's watch is read the first time, and forgotten."""
        self.footprints += [one.footprint for one in self.copies]
        self.copies = []
        return self.of_launches()

    def of_launches(self) -> list[Footprint]:
        """The footprints but for those of copies."""
        if self.launch is not None:
            (name, self._memory, watch), self.launch = self.launch, None  # what is freed may be another's memory
            for buffer in (*self._memory.buffers, *self._memory.followed):
                there = buffer.data.__array_interface__["data"][0] - buffer.address
                for kind, lows, highs, texts in watch.ranges(buffer.address, len(buffer.data)):
                    said = [f"{text} of {name}" for text in texts]
                    self.footprints.append(Footprint(kind, lows + there, highs + there, said, self.time))
        return self.footprints


class EarlierWork(Protocol):
    """Earlier work. stream: as of `Touched`."""

    @property
    def stream(self) -> str:
        """On which it ran."""

    def near(self, low: int, high: int) -> Iterable[Footprint]:
        """Footprints in their order, those with bytes in [low, high) among them."""


@dataclass
class UnorderedLaunches:
    """The earlier work that nothing orders with what runs now.

    front  the launch in front of it, beside which a dependent one may run; `last`: its own last launch
    stream  on which it runs, for the text
    time   when it runs
    born   the time of the allocation that holds an address; None: memory that is not the device's
    seen   what it touches
    """

    others: Sequence[EarlierWork] = ()
    front: PreviousLaunch | None = None
    stream: str = ""
    time: int = 0
    born: Callable[[int], int | None] = lambda address: 0

    def __post_init__(self) -> None:
        self.seen: list[Touched] = []
        self.last: PreviousLaunch | None = None
        self._told: set[tuple[int, str]] = set()  # earlier work and its access of which a race has been found

    def begun(self) -> PreviousLaunch | None:
        """The launch in front, where a run of its launches begins. A run may be repeated."""
        self.seen.clear()
        self._told.clear()
        self.last = None
        return self.front

    def launched(self, launch: PreviousLaunch) -> None:
        """Note a launch that is about to run."""
        self.last = launch
        self.seen.append(Touched(launch=launch, time=self.time))

    def copied(self, pieces: Sequence[TouchedBytes], name: object) -> None:
        """Note a copy or a fill that is about to run, and its race."""
        made = Touched(copies=[Copied(piece, name, self.time) for piece in pieces if piece.size])
        if not made.copies:
            return
        self.seen.append(made)
        for one in made.copies if self.others else ():
            address, size, writes, _ = one.piece
            earlier = self._earlier(np.array([address]), size, writes, False)
            if earlier is not None:
                if FOUND:
                    FOUND[-1].append(Finding("race", f"{one.text}; {earlier[0]}", cta=None, orders=earlier[1]))
                return

    def race(
        self, fiber: Fiber, what: Callable[[], str], addresses: Addresses, size: int, writes: bool, strong: bool
    ) -> Conflict | None:
        """The race of some lanes' access with earlier work, or None."""
        find = fiber.machine.launch.memory.find
        low, high = int(addresses.min()), int(addresses.max())
        alike = find(low)[0] is find(high)[0]
        for some in [addresses] if alike else np.split(addresses, len(addresses)):
            buffer, offset = find(first := int(some.min()))
            there = buffer.data.__array_interface__["data"][0] + offset - first
            earlier = self._earlier(some + there, size, writes, strong)
            if earlier is not None:
                does = f"{what()} {'writes' if writes else 'reads'} {buffer.name} from byte {offset}"
                return Conflict(f"{does}; {earlier[0]}", earlier[1])
        return None

    def _earlier(self, addresses: Addresses, size: int, writes: bool, strong: bool) -> tuple[str, str] | None:
        """(The access of earlier work that conflicts, what would order them), or None. Each access once."""
        low, high = int(addresses.min()), int(addresses.max()) + size
        for one in self.others:
            for footprint in one.near(low, high):
                hit = footprint.hit(addresses, size, writes, strong)
                if hit is None or (id(one), hit[1]) in self._told:
                    continue
                born = self.born(hit[0]) if one.stream else 0
                if born is None or born > footprint.time:
                    continue  # not of the device, or the earlier one's memory has been freed since
                self._told.add((id(one), hit[1]))
                if not one.stream:
                    return f"{hit[1]}; {NODES}", NODES_ORDER
                why = f"which may still run on {one.stream}; nothing orders this behind it, on {self.stream}"
                return f"{hit[1]}, {why}", STREAMS_ORDER
        return None


class _Beside(OwnStack[UnorderedLaunches]):
    """The work that runs now, in each thread."""

    @property
    def now(self) -> UnorderedLaunches | None:
        """The scope of the work that runs now, or None outside of a session's."""
        return self.items[-1] if self.items else None

    @contextmanager
    def entered(self, scope: UnorderedLaunches) -> Iterator[None]:
        """Within it that work runs."""
        self.items.append(scope)
        try:
            yield
        finally:
            self.items.pop()


BESIDE = _Beside()
