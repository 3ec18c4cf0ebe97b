"""Races between a dependent launch and those before it: programmatic dependent launch (PDL).

A launch with that attribute may begin before the launch in front of it has ended. Its threads may touch what earlier
launches touch only after griddepcontrol.wait, which waits for the whole grid in front and makes its memory visible.
griddepcontrol.launch_dependents makes nothing visible: what the grid in front wrote before it is no exception.

The launch before the one in front may run, too. It has ended when the grid in front has executed its own wait, in some
thread: a grid ends with its last thread. If the grid in front never waits, the launch before it may run on after it.

A thread has waited if it executed griddepcontrol.wait, or if a barrier leads to it from one that did (`clocks.py`).
PTX ISA, "griddepcontrol". CUDA's programming guide, "Programmatic Dependent Launch".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from .conflicts import Conflict

if TYPE_CHECKING:
    from ..machine.interpreter import Fiber
    from ..machine.memory import GlobalMemory
    from .clocks import Stamp
    from .global_bytes import GlobalWatch
    from .happens_before import Knowledge

MOST = 8  # launches that may run beside a dependent one: where none waits, those before them are left out
WAITS = "griddepcontrol.wait by the thread, or by one that a barrier leads from, before the access orders them."
WAITS_BEFORE = "griddepcontrol.wait in the kernel between the two, before its end, orders them."


class PreviousLaunch(NamedTuple):
    """A launch that may still run. Its kernel's name, its memory, and what it touched there."""

    name: str
    memory: GlobalMemory
    watch: GlobalWatch


class DependentLaunch:
    """The launches that may run beside a dependent one, before its wait and after it.

    waited  whether some thread has executed griddepcontrol.wait
    held    whether some block makes sure that no later launch begins before the wait: it triggers after it, or at its
            end
    """

    def __init__(self, before: tuple[PreviousLaunch, ...], after: tuple[PreviousLaunch, ...], stamp: Stamp) -> None:
        self.before, self.after, self.stamp = before, after, stamp
        self.waited = self.held = False

    def knows(self, fiber: Fiber, lanes: int) -> bool:
        """True if each of these lanes has waited, or knows of a thread that has."""

        def has(knows: Knowledge) -> bool:
            source, turn = self.stamp
            return (knows.clocks.practice or knows.clocks).known.get(source, 0) >= turn

        told = [members for members, more in fiber.knows.apart if has(more)]
        return has(fiber.knows) or not lanes & ~reduce(or_, told, 0)

    def wait(self, fiber: Fiber) -> None:
        """griddepcontrol.wait."""
        self.waited = True
        fiber.knows.clocks = fiber.knows.clocks.after(self.stamp, True)
        scratch = fiber.cta.scratch
        if not scratch.get("waited"):
            scratch["waited"] = True
            scratch.setdefault("at exit", []).append(lambda: self._ends(bool(scratch.get("triggered"))))

    def trigger(self, fiber: Fiber) -> None:
        """griddepcontrol.launch_dependents: the block's first counts."""
        if not fiber.cta.scratch.get("triggered"):
            fiber.cta.scratch["triggered"] = True
            self.held = self.held or self.knows(fiber, fiber.lanes)

    def _ends(self, triggered: bool) -> None:
        self.held = self.held or not triggered

    def race(
        self, fiber: Fiber, what: Callable[[], str], addresses: npt.NDArray[np.int64], size: int, writes: bool,
        lanes: int,
    ) -> Conflict | None:  # fmt: skip
        """The race of some lanes' access with a launch that may still run, or None."""
        waited = self.knows(fiber, lanes)
        for one in self.after if waited else self.before:
            find = fiber.machine.launch.memory.find
            low, high = int(addresses.min()), int(addresses.max())
            buffer, offset = find(low)
            alike = find(high)[0] is buffer  # one buffer, one step from its addresses to the earlier launch's
            for some in [addresses] if alike else np.split(addresses, len(addresses)):
                buffer, offset = find(first := int(some.min()))
                at = one.memory.address_of(buffer, offset)
                if at is None:
                    continue
                earlier = one.watch.touched_by(some + (at - first), size, writes)
                if earlier is not None:
                    does = f"{what()} {'writes' if writes else 'reads'} {buffer.name} from byte {offset}"
                    return self._conflict(does, earlier, one.name, waited)
        return None

    def _conflict(self, what: str, earlier: str, name: str, waited: bool) -> Conflict:
        why = "the launch is dependent (PDL) and may begin before that one has ended"
        if waited:
            why = "the launch between the two never waits (griddepcontrol.wait), so its end does not tell of that one's"
        else:
            why += ", and no griddepcontrol.wait comes before the access"
        return Conflict(f"{what}, which an earlier launch touches, of {name}: {earlier}; {why}",
                        WAITS_BEFORE if waited else WAITS)  # fmt: skip


def dependent(watch: GlobalWatch, front: PreviousLaunch | None) -> DependentLaunch | None:
    """The launches that may run beside a dependent one, whose watch this is. `front` is the launch before it."""
    if front is None:
        return None
    its = front.watch.dependent
    before: tuple[PreviousLaunch, ...] = (front,)
    after: tuple[PreviousLaunch, ...] = ()
    if its is not None:
        before += () if its.held else its.before
        after = its.after if its.waited else its.before
    return DependentLaunch(before[:MOST], after[:MOST], watch.next_turn("griddepcontrol.wait", 1))
