"""Records of accesses, and of who knows of them: the base of happens-before.

A record has a slot, one bit of a Python int. The knowledge of a warp, a barrier or a group of operations is such an
int. A slot is reused by the next record of the same kind at the same place by the same warp. The newer one comes after
the older one in the warp's own order, so exactly those that know of it know of the older one too.

There are hundreds of such ints of thousands of bits, and each new record makes all of them forget the one before.
Clearing its bit in all of them would take most of a proof's time. So the bit above each slot is left free. `forget`
moves the slot to that bit (`State.moved`), which no int has set. The old bit then counts for nothing. `settle` puts all
slots back at once: between two runs, and before a slot moves a second time. A set that a caller holds meanwhile has to
be put back too, so `forget` takes it and returns it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .program import Agent, State

GENERIC, ASYNC = "generic", "async"


class Hazard(Exception):
    """A hazard and the records that show it. A finding, raised to leave the run, never out of the package.

    agent  the warp about to act, or -1
    slots  records whose history belongs to the story
    before True when the story ends before those records' own steps
    """

    def __init__(self, kind: str, text: str, agent: int = -1, slots: tuple[int, ...] = (), before: bool = False):
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.agent = agent
        self.slots = slots
        self.before = before
        self.events: tuple[int, ...] = ()


class Place(NamedTuple):
    """One stage of a buffer. It is in a CTA's memory, or in the registers of one warp (then `owner` is its number)."""

    buffer: str
    cta: int
    stage: int
    owner: int = -1


class ModelAccess(NamedTuple):
    """A read or write of a place, by a warp or its asynchronous operation.

    part  which share of the place; None is all of it
    pipe  operations of one warp in the same pipe complete in order; "" for none
    """

    place: Place
    part: object
    write: bool
    agent: int
    proxy: str
    pipe: str
    what: str

    @property
    def key(self) -> tuple[object, ...]:
        """The key of a slot."""
        return (self.place, self.part, self.write, self.agent, self.pipe)


@dataclass(slots=True)
class RepeatedAccess:
    """An access that a warp repeats, and the records that matter to it.

    met     records of the place that the other fields are about
    slot    its own
    twin    the slot that says a proxy fence covers it, of a generic write
    needed  slots that it has to know of where they hold a record
    gone    slots that hold no record afterwards
    """

    access: ModelAccess
    met: int = -1
    slot: int = 0
    twin: int = 0
    needed: int = 0
    gone: int = 0


class Records:
    """The slots, and the rules for a new access.

    fences  "writer" or "any": see `Pipeline.prove`
    """

    def __init__(self, agents: tuple[Agent, ...], fences: str) -> None:
        self.agents = agents
        self.fences = fences
        self.slots: dict[object, int] = {}
        self.all = 0  # every slot
        self.accesses: dict[int, ModelAccess] = {}
        self.at: dict[Place, list[int]] = {}
        self.fenced: dict[int, int] = {}  # slot of a generic write -> slot that says a proxy fence covers it
        self.own_writes: dict[int, list[int]] = {}
        self.data = 0  # slots that a relaxed arrival does not pass on
        self.records = 0  # slots that hold a record only while `State.live` says so

    def slot(self, key: object) -> int:
        """The bit of a control record: a completion, a wait, an initialisation."""
        bit = self.slots.get(key)
        if bit is None:
            bit = self.slots[key] = 1 << 2 * len(self.slots)
            self.all |= bit
        return bit

    @property
    def always(self) -> int:
        """The slots that are not records."""
        return self.all & ~self.records

    @staticmethod
    def known(state: State, know: int, slots: int) -> int:
        """Those of the slots that are in `know`, a set of `State`."""
        moved = slots & state.moved
        return know & (slots ^ moved) | know >> 1 & moved if moved else know & slots

    @staticmethod
    def added(state: State, slots: int) -> int:
        """The bits that put slots into a set of `State`."""
        return slots + (slots & state.moved)

    def _slot_of(self, access: ModelAccess) -> int:
        key = access.key
        bit = self.slots.get(key)
        if bit is None:
            bit = self.slot(key)
            self.data |= bit
            self.records |= bit
            self.accesses[bit] = access
            self.at.setdefault(access.place, []).append(bit)
            if access.write and access.proxy == GENERIC:
                twin = self.slot(("fenced", key))
                self.data |= twin
                self.records |= twin
                self.fenced[bit] = twin
                self.own_writes.setdefault(access.agent, []).append(bit)
        return bit

    def check(self, state: State, reach: RepeatedAccess, know: int) -> None:
        """Check an access against every record of its place. Raises Hazard for a race or a missing fence."""
        if reach.met != len(self.at.get(reach.access.place, ())):
            self._meet(reach)
        needed = state.live & reach.needed
        if needed and needed != self.known(state, know, needed):
            raise self._hazard(state, reach.access, know)

    def record(self, state: State, reaches: Iterable[RepeatedAccess]) -> int:
        """Record accesses of different places that were checked; the slots of their records."""
        slots = twins = gone = 0
        for reach in reaches:
            slots |= reach.slot
            twins |= reach.twin
            gone |= reach.gone
        self.forget(state, slots | twins)
        state.live = state.live & ~gone | slots | twins
        return slots

    def _meet(self, reach: RepeatedAccess) -> None:
        """Find the records that an access must know of, and those that it ends."""
        access = reach.access
        bit = self._slot_of(access)
        reach.slot, reach.twin, reach.needed, reach.gone = bit, self.fenced.get(bit, 0), 0, 0
        others = self.at[access.place]
        for other in others:
            old, twin = self.accesses[other], self.fenced.get(other, 0)
            if not self._conflict(old, access):
                continue
            if not self._in_order(old, access):
                reach.needed |= other | (twin if access.proxy == ASYNC else 0)
            if access.write and (access.part is None or old.part == access.part):
                reach.gone |= other | twin
        reach.met = len(others)

    @staticmethod
    def _conflict(old: ModelAccess, new: ModelAccess) -> bool:
        """True if one of two accesses of a place writes what the other one accesses."""
        return (new.write or old.write) and (old.part is None or new.part is None or old.part == new.part)

    @staticmethod
    def _in_order(old: ModelAccess, new: ModelAccess) -> bool:
        """True if the accesses complete in order by themselves."""
        return old.agent == new.agent and bool(new.pipe) and old.pipe == new.pipe

    def _hazard(self, state: State, access: ModelAccess, know: int) -> Hazard:
        """The first record that an access conflicts with and does not know of."""
        for other in self.at[access.place]:
            old, twin = self.accesses[other], self.fenced.get(other, 0)
            if not state.live & other or not self._conflict(old, access) or self._in_order(old, access):
                continue
            if not self.known(state, know, other):
                return Hazard("race", self._race(old, access), access.agent, (other,))
            if twin and access.proxy == ASYNC and not self.known(state, know, twin):
                return Hazard("fence", self._unfenced(old, access), access.agent, (other,))
        raise AssertionError("a record that is needed and not known must be found")

    def _race(self, old: ModelAccess, new: ModelAccess) -> str:
        return f"{new.what} while {self.agents[old.agent].name} may still be at its {old.what}: nothing orders the two"

    def _unfenced(self, old: ModelAccess, new: ModelAccess) -> str:
        who = self.agents[old.agent].name
        return (
            f"{new.what} may not see the {old.what} of {who}: it goes through the generic proxy, this through the "
            f"async proxy, and no fence.proxy.async of {'the writer' if self.fences == 'writer' else 'anyone'} comes "
            "between write and barrier"
        )

    def fence(self, state: State, agent: int) -> None:
        """fence.proxy.async by a warp. Its own generic writes, or all it knows of, reach the async proxy."""
        know = state.sets[agent]
        bits = self.own_writes.get(agent, []) if self.fences == "writer" else list(self.fenced)
        for bit in bits:
            if self.known(state, know, bit):
                state.sets[agent] |= self.added(state, self.fenced[bit])

    @classmethod
    def forget(cls, state: State, slots: int, held: int = 0) -> int:
        """Take slots that are about to be recorded anew out of everything that anybody knows.

        A record that is only gone needs no such call: `State.live` lacks it.

        held  a set that the caller goes on with; it is returned as it reads afterwards
        """
        if slots & state.moved:
            held = _put_back(held, state.moved)
            cls.settle(state)
        state.moved |= slots
        return held

    @staticmethod
    def settle(state: State) -> None:
        """Put back the slots that were moved since the last time."""
        if moved := state.moved:
            state.sets = [_put_back(known, moved) if known else 0 for known in state.sets]
            if state.pending:
                state.groups = [
                    [tuple([_put_back(known, moved) for known in groups]) if groups else () for groups in pipes]
                    for pipes in state.groups
                ]
            state.moved = 0


def _put_back(known: int, moved: int) -> int:
    """A set whose moved slots have their own bits again."""
    return known & ~(moved * 3) | known >> 1 & moved
