"""The last writers of bytes of global memory that two runs leave different."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ..findings import Finding
from ..races.conflicts import remedy

if TYPE_CHECKING:
    from ..ptx.parser import PtxInstruction
    from .interpreter import Fiber

SUMS = (
    "The sum's rounding follows the order of its terms: add them in a fixed order, as by one thread or in the order of "
    "a counter, or compare within the rounding."
)
READS = (
    "The same store has other values: its thread reads what another writes, in either order. A race that is found "
    "names the two; else it is a value of an atomic operation, or of a clock."
)


class LastWrite(NamedTuple):
    """A write to global memory: its launch, its text, and the place of its instruction."""

    launch: int
    what: str
    ins: PtxInstruction
    cta: tuple[int, int, int]
    warp: int
    lanes: int
    adds: bool


class LastWriters:
    """The last write to each of some bytes, over the launches of a run."""

    def __init__(self, addresses: Iterable[int]) -> None:
        self.of: dict[int, LastWrite | None] = dict.fromkeys(addresses)
        self.launch = 0
        self._low, self._high = min(self.of), max(self.of)

    def note(
        self, fiber: Fiber, ins: PtxInstruction, what: Callable[[], str], addresses: npt.NDArray[np.int64], size: int,
        lanes: int, adds: bool,
    ) -> None:  # fmt: skip
        """Note a write of `size` bytes at each address; adds: by atomic additions or reductions."""
        if int(addresses.min()) > self._high or int(addresses.max()) + size <= self._low:
            return
        for at in self.of:
            if ((addresses <= at) & (at < addresses + size)).any():
                place = fiber.cta.coordinate, fiber.warp.number, lanes
                self.of[at] = LastWrite(self.launch, what(), ins, *place, adds)


def disagreement(text: str, one: LastWrite | None, other: LastWrite | None, race: Finding | None) -> Finding:
    """The finding of a byte that two orders leave different, by its last writes.

    text  which byte, and which two orders
    race  the first race of these runs, or None
    """
    if one is None or other is None:
        found = one or other
        wrote = "one order alone writes it" if found else "an operation that is not recorded wrote it"
        orders = READS if found else ""
    elif one.what == other.what:
        found, wrote = one, "both have it from"
        orders = SUMS if one.adds else READS
    else:
        found, wrote = one, "the last writes are"
        orders = SUMS if one.adds and other.adds else remedy(one.what, False, other.what, False)
    writes = list(dict.fromkeys([each.what for each in (one, other) if each is not None]))
    message = f"{text}: {wrote}" + (": " if writes else "") + "; and ".join(writes)
    if race is not None and orders is READS:
        message, orders = f"{message}. Before it, {race.message}", race.orders
    if found is None:
        return Finding("race", message, orders=orders)
    ins = found.ins
    return Finding("race", message, ins.line, ins.text, ins.source, found.cta, found.warp, found.lanes, orders=orders)
