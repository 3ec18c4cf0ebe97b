"""The meaning of each pipeline action, run in one order, with its happens-before knowledge.

The machine runs warps in lock step (the one that is least far goes first) and lets every asynchronous operation act at
once. It keeps, for every warp and every barrier, the set of records that happen before. An mbarrier's phase gathers
what the arriving warps and the landing copies know, and hands it to the warps that wait. It raises `Hazard` as soon as
an order that the program does not enforce would matter:

    race         two accesses to a stage, one of them a write, and the second does not know of the first
    fence        a generic-proxy write that an async-proxy access knows of without fence.proxy.async in between
    data         a stage read before it is filled anew, or filled anew before everyone has read it
    early wait   a wait that an earlier phase of the same parity would also let through
    missed wait  a phase may complete twice before a waiting warp looks
    arrival      an arrival, or bytes, that may be counted in an earlier phase; more arrivals than the count
    bytes        a phase that completes early, or with more bytes than it expects
    init         a barrier used before its initialisation is visible, or initialised while live
    exit         a copy or a remote arrival that nobody in the CTA it reaches waits for before exiting
    deadlock     nobody can go on

Why one order is enough is told in `checks.pipeline.prove`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .actions import (
    OWN,
    Advance,
    Ahead,
    Commit,
    CommitTo,
    CpAsync,
    CpAsyncArrive,
    FenceProxy,
    Later,
    Mma,
    MoreTiles,
    Onward,
    Read,
    Reset,
    StoreAsync,
    TileIs,
    TmaLoad,
    TmaStore,
    WaitGroup,
    Write,
)
from .barriers import Barriers
from .happens_before import ASYNC, GENERIC, Hazard, ModelAccess, Place, Records
from .model import PIPES, PRIVATE, WARP, Pipeline, ranks_of
from .program import (
    ACT,
    JUMP,
    K_HEAD,
    K_NEXT,
    TEST,
    TILE_HEAD,
    TILE_NEXT,
    Agent,
    State,
    agents_of,
    offsets_of,
    start_of,
)

if TYPE_CHECKING:
    from .trace import Trace

GO, BLOCKED, ASK_K, ASK_TILE = range(4)
WGMMA, CP_ASYNC, BULK, TCGEN05 = (PIPES.index(pipe) for pipe in ("wgmma", "cp.async", "bulk", "tcgen05"))
MOST_GROUPS = 64


class Machine:
    """Runs a pipeline's programs from a state to the next question about loop lengths.

    trace  collects every step when given
    """

    def __init__(self, pipeline: Pipeline, fences: str, trace: Trace | None = None) -> None:
        self.pipeline = pipeline
        self.agents = agents_of(pipeline)
        self.records = Records(self.agents, fences)
        self.trace = trace
        self.offsets = offsets_of(pipeline, self.agents)
        self.barriers = Barriers(pipeline, self.agents, self.records, self.offsets, trace)
        self.places = [
            Place(b.name, cta, s)
            for b in pipeline.buffers if b.space not in PRIVATE
            for cta in range(pipeline.cluster)
            for s in range(b.stages)
        ]  # fmt: skip
        self.number = {place: i for i, place in enumerate(self.places)}
        self.parts: dict[tuple[str, int], set[object]] = {}
        self.readers: dict[tuple[str, int], list[tuple[str, int]]] = {}
        self.buffers = {b.name: b for b in pipeline.buffers}
        self._survey()
        self.flags = {
            at: {(reader, part): 1 << i for i, (reader, part) in enumerate(
                (reader, part) for reader in readers for part in sorted(self.parts.get(at, ()), key=repr)
            )}
            for at, readers in self.readers.items()
            if not self.buffers[at[0]].kept
        }  # fmt: skip
        self.asked = (0, 0)  # kind of question, tile it is about
        self.acts: dict[type, Callable[[State, Agent, Any], int]] = {
            TmaLoad: self._tma_load, TmaStore: self._tma_store, CpAsync: self._cp_async, Write: self._write,
            CpAsyncArrive: self._cp_async_arrive,
            StoreAsync: self._store_async, Read: self._read, FenceProxy: self._fence, Mma: self._mma,
            Commit: self._commit, WaitGroup: self._wait_group, CommitTo: self._commit_to, Advance: self._advance,
            Reset: self._reset, **self.barriers.acts,
        }  # fmt: skip

    def start(self) -> State:
        """The state at launch."""
        return start_of(self.pipeline, self.agents, self.offsets, len(self.places))

    # ------------------------------------------------------------------------------------------------------- scheduling
    def run(self, state: State) -> int:
        """Run until a loop length must be decided (ASK_K, ASK_TILE; `asked` says which tile's) or all have exited (GO).

        Raises Hazard.
        """
        agents = self.agents
        while True:
            alive = [a for a in range(len(agents)) if state.pc[a] >= 0]
            if not alive:
                self._finish(state)
                return GO
            alive.sort(key=lambda a: (state.tile[a], state.k[a], a))
            moved = False
            for a in alive:
                result = self._run_one(state, agents[a])
                if result >= ASK_K:
                    self.records.settle(state)
                    return result
                if result == GO:
                    moved = True
                    break
            if not moved:
                raise Hazard("deadlock", self.barriers.all_stuck(state, alive))

    def _run_one(self, state: State, agent: Agent) -> int:
        """Run one warp until it blocks, changes k or tile, or needs a loop length."""
        a = agent.index
        moved = BLOCKED
        code = agent.code
        while state.blocked[a] < 0:
            kind, action, condition, jump = code[state.pc[a]]
            pc = state.pc[a] + 1
            if kind == ACT:
                if self.acts[type(action)](state, agent, action) == BLOCKED:
                    return moved
            elif kind == JUMP:
                pc = jump
            elif kind == TEST:
                holds = self._holds(state, agent, condition)
                if holds is None:
                    return self.asked[0]
                pc = pc if holds else jump
            elif kind == K_HEAD:
                state.k_state[a] = 1
                holds = self._exists(state, agent, 0)
                if holds is None:
                    return self.asked[0]
                if not holds:
                    state.k_state[a] = 2
                    pc = jump
            elif kind == K_NEXT:
                state.k[a] += 1
                state.pc[a] = jump
                return GO
            elif kind == TILE_HEAD:
                holds = self._more(state, state.tile[a])
                if holds is None:
                    return self.asked[0]
                if not holds:
                    pc = jump
            elif kind == TILE_NEXT:
                state.tile[a] += 1
                state.k[a] = 0
                state.k_state[a] = 0 if agent.uses_k else 2
                state.pc[a] = jump
                return GO
            else:  # EXIT
                state.pc[a] = -1
                state.sets[self.offsets.exits + agent.cta] |= state.sets[a]
                self.barriers.exited(state)
                return GO
            state.pc[a] = pc
            moved = GO
        return moved

    def _exists(self, state: State, agent: Agent, distance: int) -> bool | None:
        """Has the current output tile a k tile so far ahead? None: `asked` says what has to be decided."""
        tile = state.tile[agent.index]
        least, exact = state.tiles.get(tile, self.pipeline.k_tiles)
        if state.k[agent.index] + distance < least:
            return True
        self.asked = (ASK_K, tile)
        return False if exact else None

    def _more(self, state: State, tile: int) -> bool | None:
        """Is there an output tile of that number?"""
        least, exact = state.tile_count
        if tile < least:
            return True
        self.asked = (ASK_TILE, tile)
        return False if exact else None

    def _onward(self, state: State, agent: Agent, distance: int) -> bool | None:
        """True if there is a k tile so far ahead. Those of the following output tiles count."""
        tile, ahead = state.tile[agent.index], state.k[agent.index] + distance
        while True:
            found = self._more(state, tile)
            if not found:
                return found
            least, exact = state.tiles.get(tile, self.pipeline.k_tiles)
            if ahead < least:
                return True
            if not exact:
                self.asked = (ASK_K, tile)
                return None
            tile, ahead = tile + 1, ahead - least

    def _holds(self, state: State, agent: Agent, condition: object) -> bool | None:
        if isinstance(condition, Ahead):
            return self._exists(state, agent, condition.distance)
        if isinstance(condition, Onward):
            return self._onward(state, agent, condition.distance)
        if isinstance(condition, MoreTiles):
            return self._more(state, state.tile[agent.index] + condition.distance)
        if isinstance(condition, Later):
            return state.k[agent.index] >= condition.k
        assert isinstance(condition, TileIs)
        return state.tile[agent.index] % condition.modulus == condition.remainder

    def _finish(self, state: State) -> None:
        """All have exited: was every landing waited for, and everything that was loaded read?"""
        for bit, access in self.records.accesses.items():
            known = state.sets[self.offsets.exits + access.place.cta]
            away = access.place.cta != self.agents[access.agent].cta
            waited = access.proxy == ASYNC or access.pipe or away
            if state.live & bit and waited and not self.records.known(state, known, bit):
                cta = f"cta {access.place.cta}" if self.pipeline.cluster > 1 else "the CTA"
                text = f"{cta} may exit during the {access.what}: no warp of it waits for that before exiting"
                raise Hazard("exit", text, access.agent, (bit,))
        self.barriers.finish(state)
        for place, flags in zip(self.places, state.unread):
            if flags:
                reader = self._reader_of(place, flags)
                raise Hazard("data", f"{self._name(place)} is filled, and {reader} exits without reading it")

    # ---------------------------------------------------------------------------------------------------------- buffers
    def _survey(self) -> None:
        """Which parts of a buffer are written, and which warps read it, in each CTA."""
        group = {role: b.either for b in self.pipeline.buffers for role in b.either}
        either = {b.name: b.either for b in self.pipeline.buffers}
        for agent in self.agents:
            for instruction in agent.code:
                act = instruction.action
                if isinstance(act, TmaLoad):
                    for cta in ranks_of(act.to, agent.cta, self.pipeline.cluster):
                        self.parts.setdefault((act.buffer, cta), set()).add(self._part(agent, act.part))
                elif isinstance(act, StoreAsync):
                    for cta in ranks_of(act.to, agent.cta, self.pipeline.cluster):
                        self.parts.setdefault((act.buffer, cta), set()).add((agent.cta, self._part(agent, "warp")))
                elif isinstance(act, Write) and act.new:
                    for cta in ranks_of(act.to, agent.cta, self.pipeline.cluster):
                        self.parts.setdefault((act.buffer, cta), set()).add(self._share(agent, act))
                elif isinstance(act, (CpAsync, CpAsyncArrive)):
                    self.parts.setdefault((act.buffer, agent.cta), set()).add(self._part(agent, "warp"))
                elif isinstance(act, CommitTo):
                    for name in act.publishes:
                        for cta in ranks_of(act.to, agent.cta, self.pipeline.cluster):
                            self.parts.setdefault((name, cta), set()).add(None)
                reads = act.reads if isinstance(act, Mma) else ()
                reads += (act.buffer,) if isinstance(act, (Read, TmaStore)) else ()
                for name in reads:
                    where = act.ctas if isinstance(act, Mma) else "own"
                    who = (group[agent.role][0] if agent.role in either[name] else agent.role, agent.warp)
                    reader = (f"{who[0]}@{agent.cta}", who[1])
                    for cta in ranks_of(where, agent.cta, self.pipeline.cluster):
                        known = self.readers.setdefault((name, cta), [])
                        if reader not in known:
                            known.append(reader)

    @staticmethod
    def _part(agent: Agent, part: str) -> object:
        if part == "whole":
            return None
        return agent.cta if part == "rank" else (agent.role, agent.warp)

    def _share(self, agent: Agent, act: Write) -> object:
        """The share of a generic write: of each warp in its CTA, or of each warp of the cluster."""
        part = self._part(agent, act.part)
        return part if act.to == OWN else (agent.cta, part)

    def _place(self, state: State, agent: Agent, buffer: str, at: str | int, cta: int) -> Place:
        stage = at if isinstance(at, int) else state.cursors[agent.index][agent.cursors[at]][0]
        return Place(buffer, cta, stage, agent.index if self.buffers[buffer].space in PRIVATE else -1)

    def _name(self, place: Place) -> str:
        stages = self.buffers[place.buffer].stages
        where = f" of cta {place.cta}" if self.pipeline.cluster > 1 else ""
        return place.buffer + (f"[{place.stage}]" if stages > 1 else "") + where

    def _filled(self, state: State, agent: Agent, place: Place, part: object, publish: bool, what: str) -> None:
        """A write of a part: no warp may still have to read it. If it publishes, all have to from now on."""
        at = (place.buffer, place.cta)
        number = self.number.get(place)
        if number is None or at not in self.flags:
            return
        mask = sum(bit for (_, p), bit in self.flags[at].items() if p == part or part is None)
        if left := state.unread[number] & mask:
            reader = self._reader_of(place, left)
            slots = tuple(b for b in self.records.at.get(place, ()) if state.live & b)
            raise Hazard("data", f"{what} before {reader} has read what is there", agent.index, slots)
        if publish:
            state.unread[number] |= mask

    def _reader_of(self, place: Place, flags: int) -> str:
        for ((role, warp), _), bit in self.flags[(place.buffer, place.cta)].items():
            if flags & bit:
                name, _, cta = role.partition("@")
                prefix = f"cta {cta} " if self.pipeline.cluster > 1 else ""
                return prefix + name + (f" warp {warp}" if self.pipeline.role(name).warps > 1 else "")
        return "nobody"

    def _taken(self, state: State, agent: Agent, place: Place, last: bool, what: str) -> None:
        """A read: what is there must be whole, and not read before by this reader."""
        at = (place.buffer, place.cta)
        number = self.number.get(place)
        if number is None or at not in self.flags:
            return
        either = self.buffers[place.buffer].either
        reader = (f"{either[0] if agent.role in either else agent.role}@{agent.cta}", agent.warp)
        mask = sum(bit for (r, _), bit in self.flags[at].items() if r == reader)
        if state.unread[number] & mask != mask or not mask:
            old = "what it has read before: nothing new is there yet" if mask else "what nobody writes"
            accesses = self.records.accesses
            slots = tuple(b for b in self.records.at.get(place, ()) if state.live & b and accesses[b].write)
            raise Hazard("data", f"{what} takes {old}", agent.index, slots)
        if last:
            state.unread[number] &= ~mask

    def _touch(self, state: State, agent: Agent, access: ModelAccess, know: int, event: int) -> int:
        bit = self.records.touch(state, access, know)
        if self.trace is not None:
            self.trace.records[bit] = event
        return self.records.added(state, bit)

    def _log(self, state: State, agent: Agent, text: Callable[[], str]) -> int:
        if self.trace is None:
            return -1
        return self.trace.step(agent.index, state.k[agent.index], state.tile[agent.index], text())

    # ---------------------------------------------------------------------------------------------- copies and accesses
    def _tma_load(self, state: State, agent: Agent, act: TmaLoad) -> int:
        cluster = self.pipeline.cluster
        ctas = ranks_of(act.to, agent.cta, cluster)
        size = self.pipeline.mbarrier(act.barrier).bytes if act.bytes is None else act.bytes
        part = self._part(agent, act.part)
        times = WARP if act.by == "lanes" else 1
        places = [self._place(state, agent, act.buffer, act.at, cta) for cta in ctas]
        targets = ctas if act.signal == "own" else tuple(int(act.signal) for _ in ctas)
        event = self._log(
            state, agent, lambda: f"issues TMA loads of {', '.join(map(self._name, places))}, {size} bytes each"
            + (f", {times} times" if times > 1 else "")
        )  # fmt: skip
        what = f"TMA load of {', '.join(map(self._name, places))}"
        if times > 1:
            text = f"all {times} lanes issue the {what}: {times} copies of {size} bytes for one expected"
            raise Hazard("bytes", text, agent.index)
        for cta in targets:
            self.barriers.may_land(state, agent, act.barrier, act.at, cta, size)
        bits = 0
        for place in places:
            what = f"TMA load of {self._name(place)}"
            access = ModelAccess(place, part, True, agent.index, ASYNC, "", what)
            bits |= self._touch(state, agent, access, state.sets[agent.index], event)
            self._filled(state, agent, place, part, True, f"{what} lands")
        for cta in targets:
            know = state.sets[agent.index] | bits  # read anew: a phase that has just completed changed it
            self.barriers.landed(state, agent, act.barrier, act.at, cta, size, know, event)
        return GO

    def _issue(self, state: State, agent: Agent, pipe: int, bits: int) -> None:
        state.sets[self.offsets.open + agent.index * len(PIPES) + pipe] |= bits

    def _tma_store(self, state: State, agent: Agent, act: TmaStore) -> int:
        place = self._place(state, agent, act.buffer, act.at, agent.cta)
        event = self._log(state, agent, lambda: f"issues the TMA store of {self._name(place)}")
        what = f"TMA store of {self._name(place)}"
        access = ModelAccess(place, None, False, agent.index, ASYNC, "bulk", what)
        self._issue(state, agent, BULK, self._touch(state, agent, access, state.sets[agent.index], event))
        self._taken(state, agent, place, True, what)
        return GO

    def _cp_async(self, state: State, agent: Agent, act: CpAsync) -> int:
        place, part = self._place(state, agent, act.buffer, act.at, agent.cta), self._part(agent, "warp")
        event = self._log(state, agent, lambda: f"issues cp.async of its share of {self._name(place)}")
        what = f"cp.async into {self._name(place)}"
        access = ModelAccess(place, part, True, agent.index, GENERIC, "cp.async", what)
        self._issue(state, agent, CP_ASYNC, self._touch(state, agent, access, state.sets[agent.index], event))
        if act.new:
            self._filled(state, agent, place, part, True, what)
        return GO

    def _cp_async_arrive(self, state: State, agent: Agent, act: CpAsyncArrive) -> int:
        place, part = self._place(state, agent, act.buffer, act.at, agent.cta), self._part(agent, "warp")
        event = self._log(state, agent, lambda: f"issues cp.async into {self._name(place)}, and arrives when they land")
        what = f"cp.async into {self._name(place)}"
        access = ModelAccess(place, part, True, agent.index, GENERIC, "", what)
        bit = self._touch(state, agent, access, state.sets[agent.index], event)
        self._filled(state, agent, place, part, True, f"{what} lands")
        know = state.sets[agent.index] | bit
        self.barriers.arrive(state, agent, act.barrier, act.at, agent.cta, WARP, 0, know, event)
        return GO

    def _write(self, state: State, agent: Agent, act: Write) -> int:
        part = self._share(agent, act)
        for cta in ranks_of(act.to, agent.cta, self.pipeline.cluster):
            place = self._place(state, agent, act.buffer, act.at, cta)
            what = f"write of {self._name(place)}"
            event = self._log(state, agent, lambda p=place: f"writes {self._name(p)}")  # type: ignore[misc]
            access = ModelAccess(place, part, True, agent.index, GENERIC, "", what)
            bit = self._touch(state, agent, access, state.sets[agent.index], event)
            state.sets[agent.index] |= bit
            if act.new:
                self._filled(state, agent, place, part, True, what)
        return GO

    def _store_async(self, state: State, agent: Agent, act: StoreAsync) -> int:
        part, ctas = (agent.cta, self._part(agent, "warp")), ranks_of(act.to, agent.cta, self.pipeline.cluster)
        places = [self._place(state, agent, act.buffer, act.at, cta) for cta in ctas]
        event = self._log(
            state, agent, lambda: f"issues st.async into {', '.join(map(self._name, places))}, {act.bytes} bytes each"
        )
        for cta, place in zip(ctas, places, strict=True):
            what = f"st.async into {self._name(place)}"
            self.barriers.may_land(state, agent, act.barrier, act.at, cta, act.bytes)
            access = ModelAccess(place, part, True, agent.index, GENERIC, "", what)
            bit = self._touch(state, agent, access, state.sets[agent.index], event)
            self._filled(state, agent, place, part, True, f"{what} lands")
            know = state.sets[agent.index] | bit
            self.barriers.landed(state, agent, act.barrier, act.at, cta, act.bytes, know, event)
        return GO

    def _read(self, state: State, agent: Agent, act: Read) -> int:
        place = self._place(state, agent, act.buffer, act.at, agent.cta)
        event = self._log(state, agent, lambda: f"reads {self._name(place)}")
        what = f"read of {self._name(place)}"
        access = ModelAccess(place, None, False, agent.index, GENERIC, "", what)
        bit = self._touch(state, agent, access, state.sets[agent.index], event)
        state.sets[agent.index] |= bit
        self._taken(state, agent, place, act.last, what)
        return GO

    def _fence(self, state: State, agent: Agent, act: FenceProxy) -> int:
        self._log(state, agent, lambda: "fence.proxy.async")
        self.records.fence(state, agent.index)
        self.barriers.init_visible(state, agent)
        return GO

    # --------------------------------------------------------------------------------------------------------- products
    def _mma(self, state: State, agent: Agent, act: Mma) -> int:
        ctas = ranks_of(act.ctas, agent.cta, self.pipeline.cluster)
        reads = [self._place(state, agent, name, act.at, cta) for cta in ctas for name in act.reads]
        writes = [self._place(state, agent, act.into, act.into_at, cta) for cta in ctas]
        event = self._log(state, agent, lambda: f"issues {act.pipe} on {', '.join(map(self._name, reads))}")
        bits = 0
        for place in reads:
            what = f"{act.pipe} on {self._name(place)}"
            access = ModelAccess(place, None, False, agent.index, ASYNC, act.pipe, what)
            bits |= self._touch(state, agent, access, state.sets[agent.index], event)
            self._taken(state, agent, place, act.last, what)
        for place in writes:
            what = f"{act.pipe} into {self._name(place)}"
            access = ModelAccess(place, None, True, agent.index, ASYNC, act.pipe, what)
            bits |= self._touch(state, agent, access, state.sets[agent.index], event)
            self._filled(state, agent, place, None, False, what)
        self._issue(state, agent, PIPES.index(act.pipe), bits)
        return GO

    def _commit(self, state: State, agent: Agent, act: Commit) -> int:
        pipe = PIPES.index(act.pipe)
        self._log(state, agent, lambda: f"commits its {act.pipe} group")
        opened = self.offsets.open + agent.index * len(PIPES) + pipe
        groups = (*state.groups[agent.index][pipe], state.sets[opened])
        if len(groups) > MOST_GROUPS:
            raise Hazard("deadlock", f"{MOST_GROUPS} {act.pipe} groups are pending: nobody waits for them", agent.index)
        state.groups[agent.index][pipe] = groups
        state.pending += 1
        state.sets[opened] = 0
        return GO

    def _wait_group(self, state: State, agent: Agent, act: WaitGroup) -> int:
        pipe = PIPES.index(act.pipe)
        self._log(state, agent, lambda: f"waits until {act.pipe} groups pending <= {act.pending}")
        groups = state.groups[agent.index][pipe]
        done = len(groups) - act.pending
        if done > 0:
            for group in groups[:done]:
                state.sets[agent.index] |= group
            state.groups[agent.index][pipe] = groups[done:]
            state.pending -= done
        return GO

    def _commit_to(self, state: State, agent: Agent, act: CommitTo) -> int:
        ctas = ranks_of(act.to, agent.cta, self.pipeline.cluster)
        event = self._log(state, agent, lambda: f"tcgen05.commit to {act.barrier}")
        for cta in ctas:
            know = state.sets[agent.index] | state.sets[self.offsets.open + agent.index * len(PIPES) + TCGEN05]
            self.barriers.arrive(state, agent, act.barrier, act.at, cta, 1, 0, know, event)
        for name in act.publishes:
            for cta in ctas:
                place = self._place(state, agent, name, act.published_at, cta)
                self._filled(state, agent, place, None, True, f"tcgen05 into {self._name(place)}")
        return GO

    # ---------------------------------------------------------------------------------------------------------- cursors
    def _advance(self, state: State, agent: Agent, act: Advance) -> int:
        which = agent.cursors[act.cursor]
        cursors = list(state.cursors[agent.index])
        index, phase = cursors[which]
        stages = self.pipeline.role(agent.role).cursors[which].stages
        index += 1
        if index == stages:
            index, phase = 0, phase ^ int(act.flip)
        cursors[which] = (index, phase)
        state.cursors[agent.index] = tuple(cursors)
        return GO

    def _reset(self, state: State, agent: Agent, act: Reset) -> int:
        which = agent.cursors[act.cursor]
        cursors = list(state.cursors[agent.index])
        declared = self.pipeline.role(agent.role).cursors[which]
        cursors[which] = (declared.index, declared.phase)
        state.cursors[agent.index] = tuple(cursors)
        return GO
