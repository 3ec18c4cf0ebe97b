"""Races between launches, copies and fills that nothing orders: nodes of a CUDA graph.

They run one after another here and may run at once on a GPU. An access of the later one is compared with those of the
earlier ones, as kept by their watches. Atomic operations and strong writes of both are no race. CUDA C++ Programming
Guide, "CUDA Graphs": a node may begin when all those that it depends on have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..findings import Finding
from ..turns import OwnStack
from .conflicts import Conflict
from .dependent_launches import PreviousLaunch

if TYPE_CHECKING:
    from ..machine.interpreter import Fiber

ORDER = "A dependency between the two nodes, or an event between their streams in the capture, orders them."


FOUND: list[list[Finding]] = []  # where the races of copies go: of each session


class TouchedBytes(NamedTuple):
    """Bytes that a copy or a fill touches, by their address in this process."""

    address: int
    size: int
    writes: bool


class Copied(NamedTuple):
    """A copy or a fill that has run, and its bytes."""

    name: str
    pieces: tuple[TouchedBytes, ...]

    def touching(self, low: int, high: int, writes: bool) -> str | None:
        """The text of its access to bytes [low, high) that conflicts, or None. `writes`: of the other access."""
        for address, size, wrote in self.pieces:
            if (writes or wrote) and address < high and low < address + size:
                return f"{self.name} {'writes' if wrote else 'reads'} {size} bytes at {address:#x}"
        return None


Touched: TypeAlias = "PreviousLaunch | Copied"


@dataclass
class UnorderedLaunches:
    """The earlier launches and copies that nothing orders with the node that runs now.

    seen  accesses of the node that runs now
    """

    others: Sequence[Touched]

    def __post_init__(self) -> None:
        self.seen: list[Touched] = []

    def copied(self, pieces: tuple[TouchedBytes, ...], name: str) -> None:
        """Note a copy or a fill that is about to run, and its races."""
        if not pieces:
            return
        self.seen.append(Copied(name, pieces))
        for address, size, writes in pieces:
            for one in self.others:
                earlier = (
                    one.touching(address, address + size, writes)
                    if isinstance(one, Copied)
                    else _touching(one, address, address + size, writes)
                )
                if earlier is not None:
                    does = f"{name} {'writes' if writes else 'reads'} {size} bytes at {address:#x}"
                    text = f"{does}; {earlier}; nothing orders the two nodes of the graph"
                    if FOUND:
                        FOUND[-1].append(Finding("race", text, cta=None, orders=ORDER))

    def race(
        self, fiber: Fiber, what: Callable[[], str], addresses: npt.NDArray[np.int64], size: int, writes: bool,
        strong: bool,
    ) -> Conflict | None:  # fmt: skip
        """The race of some lanes' access with an earlier launch or copy, or None."""
        find = fiber.machine.launch.memory.find
        low, high = int(addresses.min()), int(addresses.max())
        alike = find(low)[0] is find(high)[0]
        for some in [addresses] if alike else np.split(addresses, len(addresses)):
            buffer, offset = find(first := int(some.min()))
            place = buffer.data.__array_interface__["data"][0] + offset - first
            for one in self.others:
                earlier: str | None
                if isinstance(one, Copied):
                    earlier = next(
                        (text for at in some.tolist() if (text := one.touching(place + at, place + at + size, writes))),
                        None,
                    )
                else:
                    there = one.memory.address_of(buffer, offset)
                    if there is None:
                        continue
                    earlier = one.watch.touched_by(some + (there - first), size, writes, strong)
                if earlier is not None:
                    does = f"{what()} {'writes' if writes else 'reads'} {buffer.name} from byte {offset}"
                    of = "" if isinstance(one, Copied) else f" of {one.name}"
                    return Conflict(f"{does}; {earlier}{of}; nothing orders the two nodes of the graph", ORDER)
        return None


def _touching(one: PreviousLaunch, low: int, high: int, writes: bool) -> str | None:
    """The text of a launch's access that conflicts with a copy of [low, high), or None."""
    for buffer in (*one.memory.buffers, *one.memory.followed):
        first = buffer.data.__array_interface__["data"][0]
        begin, end = max(low, first), min(high, first + len(buffer.data))
        if begin < end:
            there = buffer.address - first
            if (text := one.watch.touched_within(begin + there, end + there, writes)) is not None:
                return f"{text} of {one.name}"
    return None


class _Beside(OwnStack[UnorderedLaunches]):
    """The node that runs now, in each thread."""

    @property
    def now(self) -> UnorderedLaunches | None:
        """The scope of the node that runs now, or None where all is ordered."""
        return self.items[-1] if self.items else None

    @contextmanager
    def entered(self, scope: UnorderedLaunches) -> Iterator[None]:
        """Within it that node runs."""
        self.items.append(scope)
        try:
            yield
        finally:
            self.items.pop()


BESIDE = _Beside()
