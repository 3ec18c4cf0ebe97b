"""Barriers of a pipeline: mbarriers with phases, counts and bytes; named barriers; the cluster barrier.

Each operation carries on what arriving warps know, and must satisfy what makes its phase certain (PTX ISA, "mbarrier";
`checks.pipeline.prove` has the reasons for these conditions):

    wait      knows that the last phase of the same parity is over; else an earlier one could let it through
    complete  knows of every wait for the phase before it; else a waiter could find the parity turned twice
    arrive    knows that the phase before is over; else it could be counted there
    expect    is known to an arrival of its phase; else the phase could complete without its bytes

To know that a phase is over is to have waited for it, or to have heard from someone who has. A warp that knows of every
single arrival of the phase, but of no warp that waited, could know too. No kernel counts on that, and it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...atoms.copy.base import WARP
from .actions import (
    Action,
    Arrive,
    ArriveExpect,
    ClusterArrive,
    ClusterWait,
    Expect,
    FenceInit,
    InitBarriers,
    Sync,
    Targets,
    Wait,
)
from .happens_before import Hazard, Records
from .model import Mbarrier, NamedBarrier, Pipeline
from .program import ACT, EXPECTS, LIVE, PENDING, PHASE, TX, Agent, KnowledgeOffsets, State
from .symmetry import SimulatedWarps
from .trace import warps_text

if TYPE_CHECKING:
    from .trace import Trace

GO, BLOCKED = 0, 1


class Barriers:
    """Every barrier of every CTA, and the actions on them."""

    def __init__(
        self, pipeline: Pipeline, cast: SimulatedWarps, agents: tuple[Agent, ...], records: Records,
        offsets: KnowledgeOffsets, trace: Trace | None,
    ) -> None:  # fmt: skip
        self.pipeline = pipeline
        self.cast = cast
        self.agents = agents
        self.records = records
        self.offsets = offsets
        self.waits: dict[int, int] = {}  # mbarrier and stage -> slots of waits for it
        self.waiters: dict[int, int] = {}  # slot of a wait -> warp
        self.looked: dict[int, tuple[list[int], int]] = {}  # warp -> mbarrier that it waits for, and the phase it found
        self.trace = trace
        self.targets: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}  # see `reached`
        self.mbarriers = {b.name: b for b in pipeline.barriers if isinstance(b, Mbarrier)}
        self.labels: list[str] = []
        self.ctas: list[int] = []
        self.starts: list[int] = []  # arrivals that complete a phase
        self.base: dict[tuple[str, int], int] = {}
        self.named: dict[tuple[str, int], int] = {}
        self.counts: list[NamedBarrier] = []
        for cta, (rank, *_) in enumerate(cast.ctas):
            where = f" of cta {cta}" if pipeline.cluster > 1 else ""
            for barrier in pipeline.barriers:
                if isinstance(barrier, NamedBarrier):
                    self.named[(barrier.name, cta)] = len(self.counts)
                    self.counts.append(barrier)
                    continue
                self.base[(barrier.name, cta)] = len(self.labels)
                for s in range(barrier.stages):
                    self.labels.append(barrier.name + (f"[{s}]" if barrier.stages > 1 else "") + where)
                    self.ctas.append(cta)
                    self.starts.append(barrier.count_of(rank))
        self.remote: dict[int, tuple[int, int, str]] = {}  # slot -> CTA reached, warp, what
        # All control slots exist from the start: `key_of` relies on it, to tell "not known" from "not there yet".
        ctas = range(len(cast.ctas))
        self.inits = [(records.slot(("init", cta)), records.slot(("init fenced", cta))) for cta in ctas]
        records.data |= sum(bit for bit, _ in self.inits)
        self.over: list[tuple[int, int]] = []  # of a phase of each parity, as only the last two matter
        for number in range(len(self.labels)):
            self.over.append((records.slot(("over", number, 0)), records.slot(("over", number, 1))))
            for agent in agents:
                if any(isinstance(i.action, Expect) for i in agent.code):
                    records.slot(("expect", number, agent.index))
        self.turns = [records.slot(("turn", number)) for number in range(len(self.counts))]
        self.acts: dict[type, Callable[[State, Agent, Any], int]] = {
            InitBarriers: self._init, FenceInit: self._fence_init, Wait: self._wait, Arrive: self._arrive,
            ArriveExpect: self._arrive_expect, Expect: self._expect, Sync: self._sync,
            ClusterArrive: self._cluster_arrive, ClusterWait: self._cluster_wait,
        }  # fmt: skip

    def reached(self, act: Action, to: Targets, agent: Agent) -> tuple[tuple[int, int], ...]:
        """The CTAs that an action of a warp reaches, and how often it counts there."""
        key = (id(act), agent.index)
        found = self.targets.get(key)
        if found is None:
            found = tuple((cta, agent.count * times) for cta, times in self.cast.reached(to, agent.cta))
            self.targets[key] = found
        return found

    # -------------------------------------------------------------------------------------------------- initialisation
    def _init(self, state: State, agent: Agent, act: InitBarriers) -> int:
        names = act.barriers or tuple(b.name for b in self.pipeline.barriers if isinstance(b, Mbarrier))
        event = self._log(state, agent, lambda: f"mbarrier.init of {', '.join(names)}")
        for name in names:
            first = self.base[(name, agent.cta)]
            for number in range(first, first + self.mbarriers[name].stages):
                m = state.mbarriers[number]
                if m[LIVE]:
                    text = (
                        f"{self.labels[number]} is initialised again while live, in phase {m[PHASE]} with "
                        f"{m[PENDING]} of {self.starts[number]} arrivals pending: undefined without mbarrier.inval"
                    )
                    raise Hazard("init", text, agent.index)
                m[LIVE], m[PENDING] = 1, self.starts[number]
        bit, _ = self.inits[agent.cta]
        state.sets[agent.index] |= bit
        if self.trace is not None:
            self.trace.records[bit] = event
        return GO

    def _fence_init(self, state: State, agent: Agent, act: FenceInit) -> int:
        self._log(state, agent, lambda: "fence.mbarrier_init")
        self.init_visible(state, agent)
        return GO

    def init_visible(self, state: State, agent: Agent) -> None:
        """A fence by the warp that initialised. TMA and other CTAs that know of the fence may use the barriers."""
        done, fenced = self.inits[agent.cta]
        if state.sets[agent.index] & done:
            state.sets[agent.index] |= fenced

    def _usable(self, state: State, agent: Agent, number: int, far: bool, what: str) -> None:
        """Raise unless the warp knows that the barrier is initialised; `far`: used by TMA or from another CTA."""
        know, (done, fenced) = state.sets[agent.index], self.inits[self.ctas[number]]
        fenced &= know
        if not state.mbarriers[number][LIVE] or not (fenced or know & done):
            text = f"{what} {self.labels[number]}, of which nothing says that it is initialised"
            raise Hazard("init", text, agent.index)
        if far and not fenced:
            text = f"{what} {self.labels[number]}, whose initialisation no fence.mbarrier_init has made visible to it"
            raise Hazard("init", text, agent.index)

    def _number(self, state: State, agent: Agent, name: str, at: str | int, cta: int) -> int:
        stage = at if isinstance(at, int) else state.cursors[agent.index][agent.cursors[at]][0]
        return self.base[(name, cta)] + stage

    # -------------------------------------------------------------------------------------------------------- mbarriers
    def _wait(self, state: State, agent: Agent, act: Wait) -> int:
        a = agent.index
        number = self._number(state, agent, act.barrier, act.at, agent.cta)
        phase_of_cursor = 0 if isinstance(act.at, int) else state.cursors[a][agent.cursors[act.at]][1]
        parity = act.parity if act.parity is not None else phase_of_cursor ^ int(act.flip)
        self._usable(state, agent, number, False, "waits for")
        m = state.mbarriers[number]
        if m[PHASE] % 2 == parity:
            self.looked[a] = m, m[PHASE]
            return BLOCKED
        label = self.labels[number]
        if m[PHASE] >= 2 and not self.records.known(state, state.sets[a], self.over[number][m[PHASE] % 2]):
            before = f"after phase {m[PHASE] - 3}" if m[PHASE] > 2 else "while it is fresh"
            text = (
                f"waits for {label} with parity {parity}, which lets it through after phase {m[PHASE] - 1} and "
                f"{before} alike: it does not know that phase {m[PHASE] - 2} is over, and may pass early"
            )
            hazard = Hazard("early wait", text, a)
            if self.trace is not None:
                hazard.events = self.trace.completion(number, m[PHASE] - 3)
            raise hazard
        done = "nothing: the barrier is fresh" if m[PHASE] == 0 else f"phase {m[PHASE] - 1}"
        behind = self.trace.completion(number, m[PHASE] - 1) if self.trace is not None else ()
        event = self._log(state, agent, lambda: f"waits for {label}, parity {parity}: passes after {done}", behind)
        state.sets[a] |= state.sets[self.offsets.done + number]
        bit = self.records.slot(("wait", number, a))
        self.records.forget(state, bit)
        state.sets[a] |= self.records.added(state, bit)
        state.live |= bit
        self.records.records |= bit
        self.waits[number] = self.waits.get(number, 0) | bit
        self.waiters[bit] = a
        if self.trace is not None:
            self.trace.records[bit] = event
        return GO

    def _known_phase(self, state: State, agent: Agent, number: int, know: int, what: str) -> None:
        """Raise unless whoever counts down the current phase knows that the one before is over."""
        phase = state.mbarriers[number][PHASE]
        if phase and not self.records.known(state, know, self.over[number][(phase - 1) % 2]):
            text = (
                f"{what} {self.labels[number]} without knowing that its phase {phase - 1} is over: it may be counted "
                "for that phase"
            )
            hazard = Hazard("arrival", text + self._ledger(number, phase - 1), agent.index)
            raise hazard

    def _ledger(self, number: int, phase: int) -> str:
        """Landed arrivals and bytes of a phase, when traced: sums that do not add up are then plain to see."""
        if self.trace is None or not (entries := self.trace.landed.get((number, phase))):
            return ""
        total = sum(size for size, _ in entries)
        terms = " + ".join(f"{size} ({who})" for size, who in entries)
        return f", which has had all its bytes: {terms} = {total}"

    def arrive(
        self, state: State, agent: Agent, name: str, at: str | int, cta: int, times: int, tx: int, know: int, event: int
    ) -> None:
        """So many arrivals at a CTA's barrier by one warp, with `tx` more bytes expected."""
        number = self._number(state, agent, name, at, cta)
        far = cta != agent.cta
        self._usable(state, agent, number, far, "arrives at")
        self._known_phase(state, agent, number, know, "arrives at")
        m = state.mbarriers[number]
        label, count = self.labels[number], self.starts[number]
        if times > m[PENDING]:
            text = (
                f"arrives {times} time(s) at {label}, phase {m[PHASE]}, which waits for {m[PENDING]} more of its "
                f"{count}: the count is too small, and the phase completes before everyone has arrived"
            )
            hazard = Hazard("arrival", text, agent.index)
            if self.trace is not None:
                hazard.events = tuple(self.trace.arrived.get(number, ()))
            raise hazard
        if far:
            bit = self.records.slot(("remote", number, agent.index))
            self.records.records |= bit
            self.records.data |= bit  # a memory operation like any other: a relaxed arrival does not order it
            self.remote[bit] = (cta, agent.index, f"arrival at {label}")
            know = self.records.forget(state, bit, know)
            know |= (mark := self.records.added(state, bit))
            state.sets[agent.index] |= mark
            state.live |= bit
            if self.trace is not None:
                self.trace.records[bit] = event
        m[PENDING] -= times
        m[TX] += tx
        m[EXPECTS] ^= self.records.known(state, know, m[EXPECTS])
        state.sets[self.offsets.arrived + number] |= know
        if self.trace is not None:
            self.trace.arrived.setdefault(number, []).append(event)
        self._settle(state, agent, number)

    def landed(
        self, state: State, agent: Agent, name: str, at: str | int, cta: int, size: int, know: int, event: int
    ) -> None:
        """Bytes of a copy or store that `agent` issued arrive at a CTA's barrier."""
        number = self._number(state, agent, name, at, cta)
        m = state.mbarriers[number]
        if self.trace is not None:
            event = self.trace.landing(event, f"{size} bytes land, counted at {self.labels[number]}")
            self.trace.arrived.setdefault(number, []).append(event)
            self.trace.landed.setdefault((number, m[PHASE]), []).append((size, agent.name))
        m[TX] -= size
        state.sets[self.offsets.arrived + number] |= know
        self._settle(state, agent, number)

    def may_land(self, state: State, agent: Agent, name: str, at: str | int, cta: int, size: int) -> None:
        """Raise unless the bytes that the warp asks for now count in the current phase."""
        number = self._number(state, agent, name, at, cta)
        self._usable(state, agent, number, True, "issues a copy that counts at")
        what = f"issues a copy whose {size} bytes land at"
        self._known_phase(state, agent, number, state.sets[agent.index], what)

    def _settle(self, state: State, agent: Agent, number: int) -> None:
        """Complete the phase when nothing is pending; raise if its count is uncertain."""
        m = state.mbarriers[number]
        label = self.labels[number]
        if m[PENDING] or m[TX] > 0:
            return
        events = tuple(self.trace.arrived.get(number, ())) if self.trace is not None else ()
        if m[TX] < 0:
            text = f"{label}, phase {m[PHASE]}: {-m[TX]} bytes more land than are expected" + self._ledger(
                number, m[PHASE]
            ).replace(", which has had all its bytes", "")
            hazard = Hazard("bytes", text, agent.index)
            hazard.events = events
            raise hazard
        if m[EXPECTS]:
            text = f"{label}, phase {m[PHASE]}, may complete before expect_tx: no arrival of the phase comes after it"
            raise Hazard("bytes", text, agent.index)
        arrived = state.sets[self.offsets.arrived + number]
        waits = state.live & self.waits.get(number, 0)
        if late := waits ^ self.records.known(state, arrived, waits):
            slot = late & -late
            waiter = self.agents[self.waiters[slot]]
            since = f"since phase {m[PHASE] - 1}" if m[PHASE] else "while it was fresh"
            text = (
                f"completes phase {m[PHASE]} of {label}, and {waiter.name} may not have looked {since}: it then finds "
                "the parity turned once too often, and waits for ever or for a later phase"
            )
            raise Hazard("missed wait", text, agent.index, (slot,), before=True)
        over = self.over[number][m[PHASE] % 2]
        self.records.forget(state, over)
        state.live &= ~waits
        known = state.sets[self.offsets.arrived + number]  # without what is forgotten
        state.sets[self.offsets.done + number] = known | self.records.added(state, over)
        state.sets[self.offsets.arrived + number] = m[EXPECTS] = 0
        if self.trace is not None:
            self.trace.complete(number, m[PHASE], f"phase {m[PHASE]} of {label} completes")
        m[PHASE] += 1
        m[PENDING] = self.starts[number]

    def _arrive(self, state: State, agent: Agent, act: Arrive) -> int:
        times = WARP if act.by == "lanes" else 1
        for cta, count in self.reached(act, act.to, agent):
            number = self._number(state, agent, act.barrier, act.at, cta)
            event = self._log(state, agent, lambda n=number: f"arrives at {self.labels[n]}")  # type: ignore[misc]
            self.arrive(state, agent, act.barrier, act.at, cta, count * times, 0, state.sets[agent.index], event)
        return GO

    def _expected(self, state: State, agent: Agent, act: ArriveExpect | Expect) -> tuple[int, int, int]:
        """The barrier of the own CTA, its times, and the bytes of each."""
        size = self.mbarriers[act.barrier].bytes if act.bytes is None else act.bytes
        times = agent.count * (WARP if act.by == "lanes" else 1)
        return self._number(state, agent, act.barrier, act.at, agent.cta), times, size

    def _arrive_expect(self, state: State, agent: Agent, act: ArriveExpect) -> int:
        number, times, size = self._expected(state, agent, act)
        event = self._log(state, agent, lambda: f"arrives at {self.labels[number]}, expecting {size} bytes")
        know = state.sets[agent.index]
        self.arrive(state, agent, act.barrier, act.at, agent.cta, times, times * size, know, event)
        return GO

    def _expect(self, state: State, agent: Agent, act: Expect) -> int:
        number, times, size = self._expected(state, agent, act)
        self._usable(state, agent, number, False, "expects bytes at")
        self._log(state, agent, lambda: f"expects {size} bytes at {self.labels[number]}")
        self._known_phase(state, agent, number, state.sets[agent.index], "expects bytes at")
        bit = self.records.slot(("expect", number, agent.index))
        self.records.forget(state, bit)
        state.sets[agent.index] |= self.records.added(state, bit)
        m = state.mbarriers[number]
        m[EXPECTS] |= bit
        m[TX] += times * size
        return GO

    # ------------------------------------------------------------------------------------- named and cluster barriers
    def _sync(self, state: State, agent: Agent, act: Sync) -> int:
        a = agent.index
        number = self.named[(act.barrier, agent.cta)]
        spec, n = self.counts[number], state.named[number]
        over = self.turns[number]
        if n[1] and not self.records.known(state, state.sets[a], over):
            text = f"arrives at {spec.name} without knowing that its last turn is over: it may be counted there"
            raise Hazard("arrival", text, a)
        event = self._log(state, agent, lambda: f"bar.{'sync' if act.wait else 'arrive'} {spec.name}")
        n[0] += WARP * agent.count
        if n[0] > spec.threads:  # of warps that others stand for, some are counted in the next turn
            raise Hazard("arrival", f"arrives at {spec.name} with more threads than its turn waits for", a)
        gathered = self.offsets.named + number
        state.sets[gathered] |= state.sets[a]
        if act.wait:
            state.blocked[a] = number
        if self.trace is not None:
            self.trace.named.setdefault(number, []).append(event)
        if n[0] < spec.threads:
            return GO
        self.records.forget(state, over)
        known = state.sets[gathered] | self.records.added(state, over)
        state.sets[gathered] = n[0] = 0
        n[1] += 1
        for b, blocked in enumerate(state.blocked):
            if blocked == number:
                state.blocked[b] = -1
                state.sets[b] |= known
                if self.trace is not None:
                    self.trace.after(b, self.trace.named[number])
        if self.trace is not None:
            self.trace.named[number] = []
        return GO

    def _cluster_arrive(self, state: State, agent: Agent, act: ClusterArrive) -> int:
        a = agent.index
        if state.cluster[a]:
            raise Hazard("arrival", "arrives at the cluster barrier a second time without waiting", a)
        event = self._log(state, agent, lambda: "barrier.cluster.arrive" + (".relaxed" if act.relaxed else ""))
        state.cluster[a] = 1
        state.sets[self.offsets.cluster] |= state.sets[a] & ~(self.records.data * 3) if act.relaxed else state.sets[a]
        if self.trace is not None:
            self.trace.cluster.append(event)
        self._cluster_settle(state)
        return GO

    def _cluster_settle(self, state: State) -> None:
        if any(state.pc[a] >= 0 and state.cluster[a] != 1 for a in range(len(self.agents))):
            return
        if not any(state.cluster[a] == 1 for a in range(len(self.agents))):
            return
        state.cluster = [2 if c == 1 else c for c in state.cluster]
        first = self.offsets.cluster
        state.sets[first + 1], state.sets[first] = state.sets[first], 0
        if self.trace is not None:
            self.trace.cluster_done, self.trace.cluster = self.trace.cluster, []

    def exited(self, state: State) -> None:
        """A warp has exited: the cluster barrier no longer waits for it."""
        self._cluster_settle(state)

    def _cluster_wait(self, state: State, agent: Agent, act: ClusterWait) -> int:
        a = agent.index
        if state.cluster[a] == 0:
            raise Hazard("deadlock", "waits at the cluster barrier without having arrived", a)
        if state.cluster[a] == 1:
            return BLOCKED
        state.cluster[a] = 0
        state.sets[a] |= state.sets[self.offsets.cluster + 1]
        if self.trace is not None:
            self.trace.after(a, self.trace.cluster_done)
        self._log(state, agent, lambda: "barrier.cluster.wait passes")
        return GO

    # ------------------------------------------------------------------------------------------------------------- ends
    def finish(self, state: State) -> None:
        """All have exited. Each remote arrival must be known to a warp of the CTA it reached."""
        for bit, (cta, agent, what) in self.remote.items():
            if state.live & bit and not self.records.known(state, state.sets[self.offsets.exits + cta], bit):
                text = (
                    f"cta {cta} may have exited before the {what} by {self.agents[agent].name}: no warp of it waits "
                    "for that"
                )
                raise Hazard("exit", text, agent, (bit,))

    def all_stuck(self, state: State, alive: list[int]) -> str:
        """The waits of all warps. Warps of a role that wait for the same are together."""
        waiting: dict[tuple[str, str], list[str]] = {}
        for a in sorted(alive):
            role, _, warp = self.agents[a].name.partition(" warp ")
            waiting.setdefault((role, self._stuck(state, self.agents[a])), []).append(warp)
        parts = []
        for (role, what), warps in waiting.items():
            parts.append(f"{role} {warps_text(warps) + ' ' if warps[0] else ''}{what}")
        return "nobody can go on: " + "; ".join(parts)

    def _stuck(self, state: State, agent: Agent) -> str:
        a = agent.index
        if state.blocked[a] >= 0:
            n, spec = state.named[state.blocked[a]], self.counts[state.blocked[a]]
            return f"waits in bar.sync {spec.name}, where {n[0]} of {spec.threads} threads are"
        instruction = agent.code[state.pc[a]]
        assert instruction.kind == ACT
        act = instruction.action
        if not isinstance(act, Wait):
            return "waits at the cluster barrier"
        number = self._number(state, agent, act.barrier, act.at, agent.cta)
        m, count = state.mbarriers[number], self.starts[number]
        lacks = [f"{m[PENDING]} of {count} arrivals"] * bool(m[PENDING]) + [f"{m[TX]} bytes"] * bool(m[TX])
        return f"waits for {self.labels[number]}: phase {m[PHASE]} lacks {' and '.join(lacks)}"

    def _log(self, state: State, agent: Agent, text: Callable[[], str], behind: tuple[int, ...] = ()) -> int:
        if self.trace is None:
            return -1
        return self.trace.step(agent.index, state.k[agent.index], state.tile[agent.index], text(), behind)
