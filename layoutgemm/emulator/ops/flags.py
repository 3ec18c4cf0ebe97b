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
from ..races.clocks import NO_CLOCKS
from ..races.happens_before import Knowledge

FENCED, WAITED = "fenced", "relaxed waits"  # in a warp's scratch: what fences hand on; what the next one acquires
FLAGS = "flags"  # in a cluster's scratch: address -> what was handed on there
Addresses = npt.NDArray[np.int64]


@dataclass
class ReleasedKnowledge:
    """Knowledge that a block's threads have handed on at an address: to their own block, and to other ones."""

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


def tell(fiber: Fiber, access: FlagAccess, addresses: Addresses, in_global: bool) -> None:
    """Hand on at these addresses what a strong write releases: all of it, or what came before a fence."""
    ledger = fiber.cta.cluster.ledger
    flags: dict[int, Flag] = fiber.cta.cluster.scratch.setdefault(FLAGS, {})
    fenced: list[Knowledge] | None = fiber.warp.scratch.get(FENCED)
    watch = fiber.machine.global_watch if in_global and access.wide else None
    if watch is not None:
        watch.wrote(fiber.warp, addresses, access.atomic)
    for at in set(addresses.tolist()):
        flag = flags.get(at)
        if flag is None or (flag.warp is not fiber.warp and not access.atomic):
            if not access.releases and fenced is None:
                flags.pop(at, None)
                continue
            flag = flags[at] = Flag(fiber.warp, {})
        elif not access.releases and fenced is None:
            continue
        part = flag.of(fiber.cta)
        if access.releases:
            ledger.release(fiber, part.near)
            if access.far:
                part.far.merge(part.near)
        elif fenced is not None:
            part.near.merge(fenced[0])
            if access.far:
                part.far.merge(fenced[1])
    if watch is not None:
        clocks = fiber.knows.clocks if access.releases else fiber.knows.clocks.handed_relaxed()
        watch.release(clocks, addresses, None if access.atomic else fiber.warp)


def learn(fiber: Fiber, access: FlagAccess, addresses: Addresses, in_global: bool) -> None:
    """Take what was handed on at these addresses: now, or when a fence follows."""
    ledger = fiber.cta.cluster.ledger
    flags: dict[int, Flag] = fiber.cta.cluster.scratch.get(FLAGS, {})
    for at in set(addresses.tolist()):
        if at not in flags:
            continue
        for part in flags[at].parts.values():
            own = part.cta is fiber.cta
            if not own and not access.far:
                continue
            told = part.near if own else part.far
            if access.acquires:
                ledger.acquire(fiber, told)
                fiber.asked(told)
            else:
                waited(fiber)[0 if own else 1].merge(told)
    watch = fiber.machine.global_watch if in_global and access.wide else None
    if watch is not None:
        watch.observe(fiber.warp, addresses)
    if watch is not None and (clocks := watch.told(addresses)) is not NO_CLOCKS:
        knows = fiber.knows
        known = knows.clocks.merged(clocks) if access.acquires else knows.clocks.after_relaxed(clocks, access.practice)
        knows.clocks = known


def release_at(fiber: Fiber, addresses: Addresses) -> None:
    """Hand the thread's knowledge on at these global addresses, as an atomic operation does."""
    tell(fiber, FlagAccess(True, False, True, True, True, False), addresses, True)


def waited(fiber: Fiber) -> list[Knowledge]:
    """Knowledge that the next fence of the warp acquires: from its own block, and from other ones."""
    if WAITED not in fiber.warp.scratch:
        ledger = fiber.cta.cluster.ledger
        fiber.warp.scratch[WAITED] = [ledger.knowledge(), ledger.knowledge()]
    found: list[Knowledge] = fiber.warp.scratch[WAITED]
    return found


def fenced(fiber: Fiber, far: bool) -> Knowledge | None:
    """Knowledge that a relaxed write hands on. None without a fence before it; far: to other blocks."""
    found: list[Knowledge] | None = fiber.warp.scratch.get(FENCED)
    return None if found is None else found[far]


def fence(fiber: Fiber, acquires: bool, releases: bool, far: bool, wide: bool, shared_alone: bool = False) -> None:
    """A fence: what relaxed reads have told is acquired, and relaxed writes after it hand on earlier accesses.

    far           its scope has more than the block; wide: more than a cluster
    shared_alone  it orders shared memory alone (.sync_restrict): the clocks of global memory stay
    """
    ledger, scratch = fiber.cta.cluster.ledger, fiber.warp.scratch
    clocks = fiber.knows.clocks
    if acquires and WAITED in scratch:
        near, others = waited(fiber)
        ledger.acquire(fiber, near)
        if far:
            ledger.acquire(fiber, others)
        if shared_alone:
            fiber.knows.clocks = clocks
        elif far:
            del scratch[WAITED]
    if wide:
        ledger.gpu_fence(fiber, acquires, releases)
    if releases:
        own = ledger.knowledge()
        ledger.release(fiber, own)
        before: list[Knowledge] | None = scratch.get(FENCED)
        if shared_alone:
            own.clocks = NO_CLOCKS if before is None else before[1].clocks
        others = own if far else before[1] if before is not None else ledger.knowledge()
        scratch[FENCED] = [own, others]
