"""Flags: words by which threads tell each other of their accesses.

A release at an address hands on the thread's knowledge, and an acquire of that address takes it. So do a fence before
another strong write of it, and a fence after a strong read. A scope of .cta reaches the threads of the block alone:
both the writing and the reading side have to reach the other. A store by another warp ends what was handed on there;
an atomic operation adds to it.

PTX ISA, "Memory Consistency Model", "Release and Acquire Patterns", "Observation order", "Morally strong operations".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..machine.interpreter import Cta, Fiber, Warp
from ..ptx.values import lane_bits
from ..races.clocks import NO_CLOCKS, Clocks
from ..races.happens_before import Knowledge, Ledger
from ..races.lanes import acquire, clocks_of

FLAGS = "flags"  # in a cluster's scratch: address -> what was handed on there
Addresses = npt.NDArray[np.int64]


@dataclass
class ReleasedKnowledge:
    """Knowledge that a block's threads have handed on at an address. It went to their own block, and to other ones."""

    cta: Cta
    near: Knowledge
    far: Knowledge


@dataclass
class Flag:
    """Knowledge handed on at an address, by blocks; warp: the last that wrote it."""

    warp: Warp
    parts: dict[int, ReleasedKnowledge]

    def of(self, cta: Cta) -> ReleasedKnowledge:
        """Knowledge that this block's threads have handed on."""
        if cta.rank not in self.parts:
            ledger = cta.cluster.ledger
            self.parts[cta.rank] = ReleasedKnowledge(cta, ledger.knowledge(), ledger.knowledge())
        return self.parts[cta.rank]


@dataclass(frozen=True)
class FlagAccess:
    """The order and reach of a strong access.

    releases, acquires  its own order
    atomic              it reads and writes as one
    far                 its scope has more than the block; wide: more than a cluster
    practice            older code counts on a fence that follows a read of it
    """

    releases: bool
    acquires: bool
    atomic: bool
    far: bool
    wide: bool
    practice: bool


def tell(fiber: Fiber, access: FlagAccess, addresses: Addresses, lanes: int, in_global: bool) -> None:
    """Hand on at these lanes' addresses what a strong write releases. All of it, or what came before their fence."""
    ledger = fiber.cta.cluster.ledger
    flags: dict[int, Flag] = fiber.cta.cluster.scratch.setdefault(FLAGS, {})
    before = [known for some, known in fiber.warp.fenced.items() if some & lanes]
    watch = fiber.machine.global_watch if in_global and access.wide else None
    if watch is not None:
        watch.wrote(fiber.warp, addresses, access.atomic)
    for at in set(addresses.tolist()):
        flag = flags.get(at)
        if flag is None or (flag.warp is not fiber.warp and not access.atomic):
            if not access.releases and not before:
                flags.pop(at, None)
                continue
            flag = flags[at] = Flag(fiber.warp, {})
        elif not access.releases and not before:
            continue
        part = flag.of(fiber.cta)
        if access.releases:
            ledger.release(fiber, part.near)
            if access.far:
                part.far.merge(part.near)
        else:
            for near, far in before:
                part.near.merge(near)
                if access.far:
                    part.far.merge(far)
    if watch is not None:
        clocks = clocks_of(fiber.knows, lanes)
        watch.release(
            clocks if access.releases else clocks.handed_relaxed(), addresses, None if access.atomic else fiber.warp
        )


def learn(fiber: Fiber, access: FlagAccess, addresses: Addresses, lanes: int, in_global: bool) -> None:
    """Let each of these lanes take what was handed on at its address. It does now, or when a fence of its own
    follows."""
    ledger = fiber.cta.cluster.ledger
    flags: dict[int, Flag] = fiber.cta.cluster.scratch.get(FLAGS, {})
    watch = fiber.machine.global_watch if in_global and access.wide else None
    for at, who in _readers(addresses, lanes).items():
        for part in flags[at].parts.values() if at in flags else ():
            own = part.cta is fiber.cta
            if not own and not access.far:
                continue
            told = part.near if own else part.far
            if access.acquires:
                acquire(ledger, fiber, who, told)
                fiber.asked(told, who)
            else:
                waited(fiber, who)[0 if own else 1].merge(told)
        if watch is not None and (clocks := watch.told(at)) is not NO_CLOCKS:
            clocks = clocks if access.acquires else NO_CLOCKS.after_relaxed(clocks, access.practice)
            if not fiber.knows.clocks.covers(clocks):
                handed = _of_clocks(ledger, clocks)
                acquire(ledger, fiber, who, handed)
                fiber.asked(handed, who)
    if watch is not None:
        watch.observe(fiber.warp, addresses)


def _readers(addresses: Addresses, lanes: int) -> dict[int, int]:
    """Address -> the lanes that have it; one address is that of all."""
    if len(addresses) == 1:
        return {int(addresses[0]): lanes}
    found: dict[int, int] = {}
    for at, bit in zip(addresses.tolist(), lane_bits(lanes), strict=True):
        found[at] = found.get(at, 0) | bit
    return found


def _of_clocks(ledger: Ledger, clocks: Clocks) -> Knowledge:
    """Knowledge of accesses to global memory alone."""
    made = ledger.knowledge()
    made.clocks = clocks
    return made


def release_at(fiber: Fiber, addresses: Addresses) -> None:
    """Hand the thread's knowledge on at these global addresses, as an atomic operation does."""
    tell(fiber, FlagAccess(True, False, True, True, True, False), addresses, fiber.lanes, True)


def waited(fiber: Fiber, lanes: int) -> tuple[Knowledge, Knowledge]:
    """Knowledge that the next fence of these lanes acquires. It comes from their own block, and from other ones."""
    ledger, found = fiber.cta.cluster.ledger, fiber.warp.waited
    if lanes not in found:
        found[lanes] = ledger.knowledge(), ledger.knowledge()
    return found[lanes]


def fenced(fiber: Fiber, far: bool) -> Knowledge | None:
    """Knowledge that the fiber's relaxed writes hand on. None without a fence before; far: to other blocks."""
    found = [known[far] for some, known in fiber.warp.fenced.items() if some & fiber.lanes]
    if len(found) < 2:
        return found[0] if found else None
    made = fiber.cta.cluster.ledger.knowledge()
    for one in found:
        made.merge(one)
    return made


def fence(fiber: Fiber, acquires: bool, releases: bool, far: bool, wide: bool, shared_alone: bool = False) -> None:
    """Acquires at a fence what relaxed reads have told. Relaxed writes after it hand on earlier accesses.

    far           its scope has more than the block; wide: more than a cluster
    shared_alone  it orders shared memory alone (.sync_restrict): the clocks of global memory stay
    """
    ledger, warp, lanes = fiber.cta.cluster.ledger, fiber.warp, fiber.lanes
    for some in [some for some in warp.waited if acquires and some & lanes]:
        for told in warp.waited[some] if far else warp.waited[some][:1]:
            if shared_alone:
                told = ledger.knowledge(told)
                told.clocks = NO_CLOCKS
            acquire(ledger, fiber, some, told)
        if far and not shared_alone:
            told_near, told_far = warp.waited.pop(some)
            if rest := some & ~lanes:
                for kept, told in zip(waited(fiber, rest), (told_near, told_far), strict=True):
                    kept.merge(told)
    if wide:
        ledger.gpu_fence(fiber, acquires, releases)
    if releases:
        own = ledger.knowledge()
        ledger.release(fiber, own)
        before = fenced(fiber, True)
        if shared_alone:
            own.clocks = NO_CLOCKS if before is None else before.clocks
        others = own if far else before if before is not None else ledger.knowledge()
        for some in [some for some in warp.fenced if not some & ~lanes]:
            del warp.fenced[some]
        warp.fenced[lanes] = own, others
