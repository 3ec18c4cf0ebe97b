"""Races in global memory between the lanes of one warp.

Races between warps are found in `global_bytes.py`. Between the lanes of a warp, each event (`happens_before.py`) keeps
the pieces that each lane wrote. They stay until all lanes know of the event (`lanes.py`) or the checker forgets it, for
the latest `KEPT` events of a warp that touched global memory. An event ends where the warp releases something. A race
across more than `KEPT` events, without a barrier of the warp in between, is not seen. Reads are kept only under
`Policy(lanes="strict")`.

Where one lane releases its warp's writes, another warp knows those of that lane alone, until a barrier of the warp
(`untold`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..ptx.values import lane_bits
from .lanes import one_lane, uninformed

if TYPE_CHECKING:
    from ..machine.interpreter import Fiber, Warp
    from .happens_before import MemoryEvent

KEPT = 256


def touch(
    fiber: Fiber, addresses: npt.NDArray[np.int64], size: int, lanes: int, write: bool, strong: bool = False,
    kept: bool = True,
) -> str | None:  # fmt: skip
    """Record an access to global memory and return its race, or None.

    size       bytes at each address
    addresses  of the lanes, in order, or one for all
    strong     two such accesses do not race; kept: it is recorded, unlike an atomic
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
    race = None
    for event in pending:
        if all(other == size and pieces.keys().isdisjoint(numbers) for (other, *_), pieces in event.pieces.items()):
            continue
        left = uninformed(ledger, knows, event, lanes)
        for number, members in zip(numbers, who, strict=True):
            mask = members & left
            if mask and race is None:
                race = _crossing(event, number, size, mask, write, strong)
    if kept:
        pieces = epoch.pieces.setdefault((size, write, strong), {})
        new = dict(zip(numbers, who, strict=True))
        if len(new) == len(numbers) and pieces.keys().isdisjoint(new):
            pieces.update(new)
        else:
            for number, members in zip(numbers, who, strict=True):
                pieces[number] = pieces.get(number, 0) | members
        epoch.lanes |= lanes
        if epoch.near is None:
            epoch.turn = fiber.warp.turn
            epoch.near = fiber.warp.scratch.setdefault("global", deque(maxlen=KEPT))
            epoch.near.append(epoch)
    return race


def _crossing(event: MemoryEvent, number: int, size: int, mask: int, write: bool, strong: bool) -> str | None:
    """The race of `mask`'s lanes with accesses of the event, or None."""
    for (other, wrote, strongly), pieces in event.pieces.items():
        if not (write or wrote) or (strong and strongly):
            continue
        for piece in _same(number, size, other):
            had = pieces.get(piece, 0)
            if not had or (one_lane(had) and had == mask) or (not write and not mask & ~had):
                continue
            return (
                f"global memory at {number * size:#x}, that lanes {had:#x} of the same warp "
                f"{'wrote' if wrote else 'read'} before, and no bar.warp.sync or other barrier orders them"
            )
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


def untold(warp: Warp, turn: int, known: int, addresses: Iterable[int]) -> tuple[int, str] | None:
    """(first address, reason) of a byte that only other lanes told of, or None.

    turn   in which it was written
    known  the warp's last turn that another warp knows. A turn that all lanes ended, or a barrier, tells of all before.
    """
    tellers = 0
    for ended in range(turn, known + 1):
        lanes, since = warp.partly_told.get(ended, (0, 0))
        if not lanes or since > turn:
            return None
        tellers |= lanes
    open_ = [event for event in warp.scratch.get("global", ()) if event.turn == turn and event.lanes & ~tellers]
    written = [(size, each) for one in open_ for (size, writes, _), each in one.pieces.items() if writes]
    for at in addresses:
        wrote = reduce(or_, [each.get(at // size, 0) for size, each in written], 0)
        if wrote & ~tellers:
            return at, f"lanes {wrote:#x} wrote it, {tellers:#x} told of it, and no bar.warp.sync stands between"
    return None
