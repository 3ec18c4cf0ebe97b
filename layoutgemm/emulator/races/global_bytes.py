"""Races in global memory between warps, and between blocks of one launch.

Ordinary loads and stores are watched: for each byte, the latest one that wrote it and the latest that read it. Strong
accesses (atomics, volatile, relaxed, release, acquire) and copies by an engine are not. Two accesses of one cluster are
ordered if the second's thread knows the first's epoch (`happens_before.py`). Two clusters are ordered by a word that
the first releases and the second acquires. A fence before a strong write releases, a strong read acquires. Both count
for all threads of their cluster, so some races are missed.

Lanes of one warp have a file of their own (`global_words.py`). PTX ISA, "Memory Consistency Model", "Data races".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from .conflicts import Conflict, remedy

if TYPE_CHECKING:
    from ..machine.interpreter import Cluster, Fiber, Warp
    from .happens_before import MemoryEvent

PAGE_BITS = 16
PAGE = 1 << PAGE_BITS  # bytes that are watched by one array
MOST = 1 << 12  # pages: what lies beyond is not watched
BETWEEN_BLOCKS = (
    "A fence and an atomic by the first's thread, or st.release, on a word that the second's thread acquires before, "
    "orders them; so does a launch of its own for the second."
)
Clock = dict[int, int]  # a cluster's number -> the last of its releases that is known
Numbers = npt.NDArray[np.int32]


class GlobalAccess(NamedTuple):
    """An instruction's accesses in one epoch of a warp; `releases`: of its cluster, before it."""

    warp: Warp
    cluster: int
    epoch: MemoryEvent
    releases: int
    what: str


class GlobalWatch:
    """The latest accesses to each byte of global memory, of one launch."""

    def __init__(self) -> None:
        self.accesses: list[GlobalAccess | None] = [None]  # by their numbers; 0: none
        self.numbers: dict[tuple[int, int, int], int] = {}  # (cluster, epoch, pc) -> number
        self.pages: dict[int, tuple[Numbers, Numbers]] = {}  # page -> the numbers of its bytes' (writers, readers)
        self.flags: dict[int, Clock] = {}  # a word's address -> what its releases hand on
        self.clocks: dict[int, Clock] = {}  # cluster -> what it has acquired
        self.releases: dict[int, int] = {}  # cluster -> releases so far

    def release(self, cluster: Cluster, addresses: npt.NDArray[np.int64]) -> None:
        """Hand on what the cluster did so far, and what it knows, at these words."""
        count = self.releases[cluster.number] = self.releases.get(cluster.number, 0) + 1
        told = self.clocks.get(cluster.number, {}) | {cluster.number: count}
        for at in set(addresses.tolist()):
            _merge(self.flags.setdefault(at, {}), told)

    def acquire(self, cluster: Cluster, addresses: npt.NDArray[np.int64]) -> None:
        """Learn what was handed on at these words."""
        for at in set(addresses.tolist()):
            if at in self.flags:
                _merge(self.clocks.setdefault(cluster.number, {}), self.flags[at])

    def access(
        self, fiber: Fiber, pc: int, what: Callable[[], str], addresses: npt.NDArray[np.int64], size: int,
        same: Callable[[], bool] | None,
    ) -> Conflict | None:  # fmt: skip
        """Record an access and return its race, or None; same: of a write, whether memory holds what it writes."""
        number = self._number(fiber, pc, what)
        race: Conflict | None = None
        for page, where in _places(addresses, size):
            if page not in self.pages:
                if len(self.pages) >= MOST:
                    continue
                self.pages[page] = (np.zeros(PAGE, np.int32), np.zeros(PAGE, np.int32))
            writers, readers = self.pages[page]
            if race is None:
                race = self._race(fiber, what, writers[where], "wrote", (page, where))
                if race is not None and same is not None and same():
                    race = None  # memory holds these bytes in either order
            if same is None:
                readers[where] = number
                continue
            if race is None:
                race = self._race(fiber, what, readers[where], "read", (page, where))
            writers[where] = number
        return race

    def _number(self, fiber: Fiber, pc: int, what: Callable[[], str]) -> int:
        cluster = fiber.cta.cluster.number
        key = (cluster, fiber.epoch.id, pc)
        found = self.numbers.get(key)
        if found is None:
            found = self.numbers[key] = len(self.accesses)
            releases = self.releases.get(cluster, 0) + 1
            self.accesses.append(GlobalAccess(fiber.warp, cluster, fiber.epoch, releases, what()))
        return found

    def _race(
        self, fiber: Fiber, what: Callable[[], str], numbers: Numbers, did: str, place: tuple[int, slice | Numbers]
    ) -> Conflict | None:
        """The race with one of these earlier accesses, or None."""
        first = numbers[0]
        different = np.unique(numbers).tolist() if np.count_nonzero(numbers != first) else [int(first)]
        for number in different:
            earlier = self.accesses[number]
            if earlier is None or self._ordered(fiber, earlier):
                continue
            page, where = place
            inside = int((numbers == number).argmax())
            at = (page << PAGE_BITS) + (where.start + inside if isinstance(where, slice) else int(where[inside]))
            said, alone = what(), earlier.cluster == fiber.cta.cluster.number
            why = "no barrier" if alone else "no barrier, and no word that the one releases and the other acquires"
            buffer, offset = fiber.machine.launch.memory.find(at)
            both = f"both touch byte {offset} of {buffer.name}"
            message = f"{said} and, before it, {earlier.what}, which {did} it, {both}"
            orders = remedy(earlier.what, False, said, False) if alone else BETWEEN_BLOCKS
            return Conflict(f"{message}; nothing orders them: {why}", orders)
        return None

    def _ordered(self, fiber: Fiber, earlier: GlobalAccess) -> bool:
        cluster, knows = fiber.cta.cluster, fiber.knows
        if earlier.warp is fiber.warp:
            return True
        if earlier.cluster != cluster.number:
            return self.clocks.get(cluster.number, {}).get(earlier.cluster, 0) >= earlier.releases
        known = [knows, *[more for _, more in knows.apart]]
        return any(cluster.ledger.knows(one, earlier.epoch) for one in known)


def _merge(into: Clock, more: Clock) -> None:
    for cluster, count in more.items():
        into[cluster] = max(count, into.get(cluster, 0))


def _places(addresses: npt.NDArray[np.int64], size: int) -> Iterator[tuple[int, slice | Numbers]]:
    """(page, the bytes in it) of `size` bytes at each address."""
    first, extent = int(addresses[0]), size * len(addresses)
    page, offset = first >> PAGE_BITS, first & PAGE - 1
    if offset + extent <= PAGE and int(addresses[-1]) - first == extent - size:  # the lanes' bytes follow each other
        if len(addresses) == 1 or np.count_nonzero(addresses[1:] - addresses[:-1] != size) == 0:
            yield page, slice(offset, offset + extent)
            return
    every = (addresses[:, None] + np.arange(size)).reshape(-1)
    pages = every >> PAGE_BITS
    for one in np.unique(pages).tolist():
        yield one, (every[pages == one] & PAGE - 1).astype(np.int32)
