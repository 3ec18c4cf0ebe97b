"""Causes of a deadlock, read from the state of a barrier.

A cause is certain only of the barrier that it stands at: a wrong count there may come of a branch that some thread did
not take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..machine.deadlocks import numbered, polled
from ..races.conflicts import WHO

if TYPE_CHECKING:
    from ..machine.interpreter import Cta, Fiber
    from .barrier import EmulatedMbarrier, EmulatedNamedBarrier

CAUSE, NOTE = "  cause: ", "  note: "


def mbarrier_causes(barrier: EmulatedMbarrier) -> list[str]:
    """Lines about an mbarrier whose phase does not end."""
    arrived, lines = barrier.count - barrier.pending, []
    come = barrier.announced - barrier.bytes
    if barrier.bytes > 0 and come:
        lines.append(
            f"{CAUSE}expect_tx announces {barrier.announced} bytes, and the copies that complete on it bring {come}: "
            "the number is too large, or a copy is missing."
        )
    elif barrier.bytes > 0:
        lines.append(f"{NOTE}expect_tx announces {barrier.announced} bytes, and no copy has completed on it.")
    elif barrier.bytes < 0:
        lines.append(
            f"{CAUSE}copies bring {-barrier.bytes} bytes more than expect_tx announces ({barrier.announced}): the "
            "number is too small, or the expect_tx of a copy is missing."
        )
    if arrived and barrier.pending:
        lines.append(_too_few(barrier, arrived))
    if not arrived and not barrier.bytes and barrier.waiting:
        lines += [*_untouched(barrier), *_uncommitted(barrier.cta)]
    return lines


def _uncommitted(cta: Cta) -> list[str]:
    """Lines about tensor-core operations whose completion no mbarrier is told."""
    engines = [warp.scratch.get("engine") for one in cta.cluster.ctas for warp in one.warps]
    return [f"{NOTE}no tcgen05.commit follows {one.open()} so far." for one in engines if one is not None and one.open]


def _too_few(barrier: EmulatedMbarrier, arrived: int) -> str:
    """A line: some arrivals have come, and others not."""
    said = f"{arrived} of the {barrier.count} arrivals of a phase have come"
    now = {_who(who()) for who, _ in barrier.arrivals}
    gone = [who for who in dict.fromkeys(_who(who()) for who, _ in barrier.before) if who not in now]
    if gone:
        doing = _doing(barrier.cta, gone[0])
        return f"{NOTE}{said}; {gone[0]} arrived in the phase before and not in this one: it {doing}."
    return f"{CAUSE}{said}: the count of its mbarrier.init is {barrier.pending} too large, or arrivals are missing."


def _untouched(barrier: EmulatedMbarrier) -> list[str]:
    """Lines about a phase in which nothing has arrived."""
    waiting = barrier.waiting[0]
    if not barrier.phase:
        return [
            f"{NOTE}nothing has arrived at it so far: an arrival is missing, or comes behind a wait; the first wait "
            "for a buffer that is free asks for parity 1, which ends at once."
        ]
    if barrier.unordered(waiting.knows):
        return [
            f"{CAUSE}{waiting.describe()} has not waited for phase {barrier.phase - 1}, which has ended, and asks for "
            f"phase {barrier.phase}: its parity is one phase ahead."
        ]
    last = _arrived_before(barrier)
    if not last:
        return []
    circle = _circle(barrier, last)
    if circle is not None:
        return [circle]
    return [f"{NOTE}{last[0]} arrived in phase {barrier.phase - 1}: now it {_doing(barrier.cta, last[0])}."]


def _arrived_before(barrier: EmulatedMbarrier) -> list[str]:
    """The warps that arrived in the last phase that has ended."""
    return list(dict.fromkeys(_who(who()) for who, _ in barrier.before))


def _live(cta: Cta) -> list[EmulatedMbarrier]:
    """The mbarriers of the cluster's blocks."""
    return [barrier for one in cta.cluster.ctas for barrier in one.scratch.get("mbarriers", {}).values()]


def _circle(barrier: EmulatedMbarrier, last: Sequence[str]) -> str | None:
    """A line at the first of two barriers where two warps wait for each other; last: those that arrived before."""
    for warp in dict.fromkeys(str(fiber.warp) for fiber in barrier.waiting):
        for other in _live(barrier.cta):
            held = {str(fiber.warp) for fiber in other.waiting} & set(last)
            if held and warp in _arrived_before(other) and not other.unordered(other.waiting[0].knows):
                if (barrier.cta.rank, barrier.offset) > (other.cta.rank, other.offset):
                    return None
                circle = f"{warp} waits here for {min(held)}, which waits for it at the {other}"
                return f"{CAUSE}{circle}: an arrival of one of the two is missing before its wait."
    return None


def _who(text: str) -> str:
    """The warp that an event's description names."""
    found = WHO.search(text)
    return text if found is None else found[0]


def _doing(cta: Cta, who: str) -> str:
    """A predicate: the warp's present place."""
    mine = [fiber for fiber in cta.cluster.fibers if str(fiber.warp) == who]
    if not mine:
        return "has ended"
    place = polled(mine[0]) or mine[0].ins
    return f"waits at {place.where}" if place is not None else "has not begun"


def named_causes(
    barrier: EmulatedNamedBarrier, cta: Cta, number: int, others: dict[int, EmulatedNamedBarrier]
) -> list[str]:
    """Lines about a named barrier at which threads are missing."""
    missing = [warp.number for warp in cta.warps if warp.alive and warp.number not in barrier.warps]
    expected = barrier.expected or cta.alive
    if not missing:
        return [
            f"{CAUSE}it is for {expected} threads, and {barrier.arrived} of the block's can arrive: the count is too "
            "large, or some threads ended before."
        ]
    for other, held in others.items():
        there = [warp for warp in missing if warp in held.warps]
        if other != number and there:
            return [f"{CAUSE}{_warps(there)} wait{'s' * (len(there) == 1)} at barrier {other}, and not at {number}."]
    if barrier.expected is None:
        return []
    who = f"{cta.coordinate} warp {missing[0]}"
    return [
        f"{CAUSE}it is for {expected} threads, and {barrier.arrived} have arrived: the count is {expected} in place of "
        f"{barrier.arrived}, or {_warps(missing)} should arrive, of which the first {_doing(cta, f'CTA {who}')}."
    ]


def cluster_causes(missing: Sequence[Fiber], arrived: int) -> list[str]:
    """Lines about the cluster's barrier; missing: threads that wait elsewhere."""
    if not arrived or not missing:
        return []
    one = missing[0]
    where = f" at {one.ins.where}" if one.ins is not None else ""
    return [f"{CAUSE}{one.describe()} waits elsewhere{where}: every thread of the cluster arrives here."]


def _warps(numbers: list[int]) -> str:
    return f"warp{'s' * (len(numbers) > 1)} {numbered(numbers)}"
