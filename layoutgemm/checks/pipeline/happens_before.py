"""Records of accesses, and of who knows of them: the base of happens-before.

A record has a slot, one bit of a Python int. The knowledge of a warp, a barrier or a group of operations is such an
int. A slot is reused by the next record of the same kind at the same place by the same warp. The newer one comes after
the older one in the warp's own order, so exactly those that know of it know of the older one too.

There are hundreds of such ints of thousands of bits, and each new record makes all of them forget the one before.
Clearing its bit in all of them would take most of a proof's time. So the bit above each slot is left free. The first
`forget` of a slot in a run moves the slot to that bit (`State.moved`), which no int has set. The old bit then counts
for nothing, and `settle` puts all slots back at once, between two runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from .program import Agent, State

GENERIC, ASYNC = "generic", "async"


class Hazard(Exception):
    """A hazard and the records that show it: a finding, raised to leave the run, never out of the package.

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
    """One stage of a buffer: in a CTA's memory, or in the registers of one warp (then `owner` is its number)."""

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
        """The slots that are not records: what is not known of them is not known."""
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

    def touch(self, state: State, access: ModelAccess, know: int) -> int:
        """Check an access against every record of its place, record it, and return its slot.

        Raises Hazard for a race or a missing fence.
        """
        gone = 0
        for other in self.at.get(access.place, ()):
            if not state.live & other:
                continue
            old = self.accesses[other]
            if not (access.write or old.write):
                continue
            if old.part is not None and access.part is not None and old.part != access.part:
                continue
            ordered = old.agent == access.agent and bool(access.pipe) and old.pipe == access.pipe
            if not ordered and not self.known(state, know, other):
                raise Hazard("race", self._race(old, access), access.agent, (other,))
            twin = self.fenced.get(other, 0)
            if not ordered and old.write and twin and access.proxy == ASYNC and not self.known(state, know, twin):
                raise Hazard("fence", self._unfenced(old, access), access.agent, (other,))
            if access.write and (access.part is None or old.part == access.part):
                gone |= other | twin
        bit = self._slot_of(access)
        both = bit | self.fenced.get(bit, 0)
        self.forget(state, both)
        state.live = state.live & ~gone | both
        return bit

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
        """fence.proxy.async by a warp: its own generic writes, or all it knows of, reach the async proxy."""
        know = state.sets[agent]
        bits = self.own_writes.get(agent, []) if self.fences == "writer" else list(self.fenced)
        for bit in bits:
            if self.known(state, know, bit):
                state.sets[agent] |= self.added(state, self.fenced[bit])

    @staticmethod
    def forget(state: State, slots: int) -> None:
        """Take slots that are about to be recorded anew out of everything that anybody knows.

        A record that is only gone needs no such call: `State.live` lacks it.
        """
        if again := (slots & state.moved) << 1:
            # Most know nothing of it, and making a new large int is what costs.
            _rewrite(state, lambda sets: [known & ~again if known & again else known for known in sets])
        state.moved |= slots

    @staticmethod
    def settle(state: State) -> None:
        """Put back the slots that were moved since the last time."""
        if moved := state.moved:
            keep = ~(moved * 3)
            _rewrite(state, lambda sets: [known & keep | known >> 1 & moved for known in sets])
            state.moved = 0


def _rewrite(state: State, change: Callable[[Iterable[int]], list[int]]) -> None:
    """Change all that anybody or anything knows."""
    state.sets = change(state.sets)
    if state.pending:
        state.groups = [[tuple(change(groups)) if groups else () for groups in pipes] for pipes in state.groups]
