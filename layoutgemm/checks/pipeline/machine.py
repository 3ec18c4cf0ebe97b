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

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ...atoms.copy.base import WARP
from .actions import (
    OWN,
    Action,
    Advance,
    Ahead,
    Commit,
    CommitTo,
    CpAsync,
    CpAsyncArrive,
    FenceProxy,
    KIs,
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
from .happens_before import ASYNC, GENERIC, Hazard, ModelAccess, Place, Records, RepeatedAccess
from .model import PIPES, PRIVATE, Pipeline
from .program import (
    ACT,
    JUMP,
    K_HEAD,
    K_NEXT,
    PHASE,
    TEST,
    TILE_HEAD,
    TILE_NEXT,
    Agent,
    State,
    agents_of,
    offsets_of,
    start_of,
)
from .symmetry import SimulatedWarps, everyone

if TYPE_CHECKING:
    from .trace import Trace

GO, BLOCKED, ASK_K, ASK_TILE = range(4)
WGMMA, CP_ASYNC, BULK, TCGEN05 = (PIPES.index(pipe) for pipe in ("wgmma", "cp.async", "bulk", "tcgen05"))
MOST_GROUPS = 64


class _Kind(NamedTuple):
    """The common fields of an action's accesses; `what` is the text before the place's name."""

    write: bool
    part: object
    proxy: str
    pipe: str
    what: str


_READ = _Kind(False, None, GENERIC, "", "read of ")


@dataclass(frozen=True, slots=True)
class _Spot:
    """A warp's access of a place.

    number  of the place in `State.unread`; -1 where nobody has to read what is written
    fills   readers that have to read what is written there; takes: this warp's as a reader
    """

    place: Place
    name: str
    reach: RepeatedAccess
    number: int = -1
    fills: int = 0
    takes: int = 0


def _names(spots: Iterable[_Spot]) -> str:
    return ", ".join(spot.name for spot in spots)


class Machine:
    """Runs a pipeline's programs from a state to the next question about loop lengths.

    trace  collects every step when given
    cast   the warps and CTAs that are run: all of them when not given, see `checks.pipeline.symmetry`
    """

    def __init__(
        self, pipeline: Pipeline, fences: str, trace: Trace | None = None, cast: SimulatedWarps | None = None
    ) -> None:
        self.pipeline = pipeline
        self.cast = cast or everyone(pipeline)
        self.agents = agents_of(pipeline, self.cast)
        self.records = Records(self.agents, fences)
        self.trace = trace
        self.offsets = offsets_of(pipeline, self.agents, len(self.cast.ctas))
        self.barriers = Barriers(pipeline, self.cast, self.agents, self.records, self.offsets, trace)
        self.reached = self.barriers.reached
        self.places = [
            Place(b.name, cta, s)
            for b in pipeline.buffers if b.space not in PRIVATE
            for cta in range(len(self.cast.ctas))
            for s in range(b.stages)
        ]  # fmt: skip
        self.number = {place: i for i, place in enumerate(self.places)}
        self.parts: dict[tuple[str, int], set[object]] = {}
        self.readers: dict[tuple[str, int], list[tuple[str, int]]] = {}
        self.buffers = {b.name: b for b in pipeline.buffers}
        self.roles = {role.name: role for role in pipeline.roles}
        self.spots: dict[tuple[int, int, bool, int], list[_Spot]] = {}  # see `_spots`
        self._survey()
        for parts in self.parts.values():  # a buffer that is written whole has all of its parts
            if len(parts) > 1:
                parts.discard(None)
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
        """Run until a loop length must be decided or all have exited. Returns ASK_K or ASK_TILE (`asked` says which
        tile's), or GO.

        Raises Hazard.
        """
        agents, looked = self.agents, self.barriers.looked
        looked.clear()
        order = sorted((state.tile[a], state.k[a], a) for a in range(len(agents)) if state.pc[a] >= 0)
        while order:
            for place, (_, _, a) in enumerate(order):
                if a in looked and (found := looked[a])[0][PHASE] == found[1]:
                    continue  # it would find what it has found
                result = self._run_one(state, agents[a])
                if result >= ASK_K:
                    self.records.settle(state)
                    return result
                if result == GO:
                    del order[place]
                    if state.pc[a] >= 0:
                        insort(order, (state.tile[a], state.k[a], a))
                    break
            else:
                raise Hazard("deadlock", self.barriers.all_stuck(state, [a for _, _, a in order]))
        self._finish(state)
        return GO

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
        if isinstance(condition, KIs):
            return state.k[agent.index] % condition.modulus == condition.remainder
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
        for agent in self.agents:
            for instruction in agent.code:
                act = instruction.action
                if isinstance(act, TmaLoad):
                    for cta, _ in self.cast.reached(act.to, agent.cta):
                        self.parts.setdefault((act.buffer, cta), set()).add(self._part(agent, act.part))
                elif isinstance(act, StoreAsync):
                    for cta, _ in self.cast.reached(act.to, agent.cta):
                        self.parts.setdefault((act.buffer, cta), set()).add((agent.cta, self._part(agent, "warp")))
                elif isinstance(act, Write) and act.new:
                    for cta, _ in self.cast.reached(act.to, agent.cta):
                        self.parts.setdefault((act.buffer, cta), set()).add(self._share(agent, act))
                elif isinstance(act, (CpAsync, CpAsyncArrive)):
                    self.parts.setdefault((act.buffer, agent.cta), set()).add(self._part(agent, "warp"))
                elif isinstance(act, CommitTo):
                    for name in act.publishes:
                        for cta, _ in self.cast.reached(act.to, agent.cta):
                            self.parts.setdefault((name, cta), set()).add(None)
                reads = act.reads if isinstance(act, Mma) else ()
                reads += (act.buffer,) if isinstance(act, (Read, TmaStore)) else ()
                for name in reads:
                    where = act.ctas if isinstance(act, Mma) else "own"
                    reader = (f"{self.buffers[name].reader(agent.role)}@{agent.cta}", agent.warp)
                    for cta, _ in self.cast.reached(where, agent.cta):
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

    def _spots(
        self, state: State, agent: Agent, act: Action, names: tuple[str, ...], at: str | int,
        reached: tuple[tuple[int, int], ...], kind: _Kind,
    ) -> list[_Spot]:  # fmt: skip
        """The places of an action at a stage, and its access of each; made once for each warp and stage."""
        stage = at if isinstance(at, int) else state.cursors[agent.index][agent.cursors[at]][0]
        key = (agent.index, id(act), kind.write, stage)
        found = self.spots.get(key)
        if found is None:
            found = self.spots[key] = [
                self._spot(agent, name, stage, cta, kind) for cta, _ in reached for name in names
            ]
        return found

    def _own_spots(
        self, state: State, agent: Agent, act: TmaStore | CpAsync | CpAsyncArrive | Read, kind: _Kind
    ) -> list[_Spot]:
        """The place of an action in the own CTA's buffer."""
        return self._spots(state, agent, act, (act.buffer,), act.at, ((agent.cta, 1),), kind)

    def _spot(self, agent: Agent, buffer: str, stage: int, cta: int, kind: _Kind) -> _Spot:
        own = self.buffers[buffer]
        place = Place(buffer, cta, stage, agent.index if own.space in PRIVATE else -1)
        name = self._name(place)
        reach = RepeatedAccess(
            ModelAccess(place, kind.part, kind.write, agent.index, kind.proxy, kind.pipe, f"{kind.what}{name}")
        )
        number, flags = self.number.get(place), self.flags.get((buffer, cta))
        if number is None or flags is None:
            return _Spot(place, name, reach)
        reader = (f"{own.reader(agent.role)}@{agent.cta}", agent.warp)
        fills = sum(bit for (_, part), bit in flags.items() if part == kind.part or kind.part is None)
        takes = sum(bit for (each, _), bit in flags.items() if each == reader)
        return _Spot(place, name, reach, number, fills, takes)

    def _name(self, place: Place) -> str:
        stages = self.buffers[place.buffer].stages
        where = f" of cta {place.cta}" if self.pipeline.cluster > 1 else ""
        return place.buffer + (f"[{place.stage}]" if stages > 1 else "") + where

    def _filled(self, state: State, agent: Agent, spot: _Spot, publish: bool, how: str) -> None:
        """A write of a part: no warp may still have to read it. If it publishes, all have to from now on."""
        if spot.number < 0:
            return
        if left := state.unread[spot.number] & spot.fills:
            reader = self._reader_of(spot.place, left)
            slots = tuple(b for b in self.records.at.get(spot.place, ()) if state.live & b)
            text = f"{spot.reach.access.what}{how} before {reader} has read what is there"
            raise Hazard("data", text, agent.index, slots)
        if publish:
            state.unread[spot.number] |= spot.fills

    def _reader_of(self, place: Place, flags: int) -> str:
        for ((role, warp), _), bit in self.flags[(place.buffer, place.cta)].items():
            if flags & bit:
                name, _, cta = role.partition("@")
                prefix = f"cta {cta} " if self.pipeline.cluster > 1 else ""
                return prefix + name + (f" warp {warp}" if self.roles[name].warps > 1 else "")
        return "nobody"

    def _taken(self, state: State, agent: Agent, spot: _Spot, last: bool) -> None:
        """A read: the data must be complete, and not read before by this reader."""
        if spot.number < 0:
            return
        mask = spot.takes
        if state.unread[spot.number] & mask != mask or not mask:
            old = "what it has read before: nothing new is there yet" if mask else "what nobody writes"
            accesses = self.records.accesses
            slots = tuple(b for b in self.records.at.get(spot.place, ()) if state.live & b and accesses[b].write)
            raise Hazard("data", f"{spot.reach.access.what} takes {old}", agent.index, slots)
        if last:
            state.unread[spot.number] &= ~mask

    def _record(self, state: State, spots: list[_Spot], event: int) -> int:
        """Record accesses that were checked; the slots of their records."""
        slots = self.records.record(state, [spot.reach for spot in spots])
        if self.trace is not None:
            for spot in spots:
                self.trace.records[spot.reach.slot] = event
        return slots

    def _access(self, state: State, agent: Agent, spots: list[_Spot], event: int, then: Callable[[_Spot], None]) -> int:
        """Check accesses of one operation, each followed by `then`, and record them; the slots of their records.

        A traced run records each before the next: a hazard tells of the records that are there.
        """
        know, slots = state.sets[agent.index], 0
        for spot in spots:
            self.records.check(state, spot.reach, know)
            if self.trace is not None:
                slots |= self._record(state, [spot], event)
                know = state.sets[agent.index]
            then(spot)
        return slots if self.trace is not None else self._record(state, spots, event)

    def _log(self, state: State, agent: Agent, text: Callable[[], str]) -> int:
        if self.trace is None:
            return -1
        return self.trace.step(agent.index, state.k[agent.index], state.tile[agent.index], text())

    # ---------------------------------------------------------------------------------------------- copies and accesses
    def _tma_load(self, state: State, agent: Agent, act: TmaLoad) -> int:
        reached = self.reached(act, act.to, agent)
        size = self.barriers.mbarriers[act.barrier].bytes if act.bytes is None else act.bytes
        times = WARP if act.by == "lanes" else 1
        kind = _Kind(True, self._part(agent, act.part), ASYNC, "", "TMA load of ")
        spots = self._spots(state, agent, act, (act.buffer,), act.at, reached, kind)
        targets = reached if act.signal == OWN else [(int(act.signal), count) for _, count in reached]
        event = self._log(
            state, agent, lambda: f"issues TMA loads of {_names(spots)}, {size} bytes each"
            + (f", {times} times" if times > 1 else "")
        )  # fmt: skip
        if times > 1:
            text = f"all {times} lanes issue the TMA load of {_names(spots)}: {times} copies of {size} bytes for one"
            raise Hazard("bytes", f"{text} expected", agent.index)
        for cta, _ in targets:
            self.barriers.may_land(state, agent, act.barrier, act.at, cta, size)
        slots = self._access(state, agent, spots, event, lambda spot: self._filled(state, agent, spot, True, " lands"))
        for cta, count in targets:
            know = state.sets[agent.index] | self.records.added(state, slots)  # a phase that completes changes both
            self.barriers.landed(state, agent, act.barrier, act.at, cta, count * size, know, event)
        return GO

    def _issue(self, state: State, agent: Agent, pipe: int, slots: int) -> None:
        state.sets[self.offsets.open + agent.index * len(PIPES) + pipe] |= self.records.added(state, slots)

    def _tma_store(self, state: State, agent: Agent, act: TmaStore) -> int:
        kind = _Kind(False, None, ASYNC, "bulk", "TMA store of ")
        spots = self._own_spots(state, agent, act, kind)
        event = self._log(state, agent, lambda: f"issues the TMA store of {_names(spots)}")
        slots = self._access(state, agent, spots, event, lambda spot: self._taken(state, agent, spot, True))
        self._issue(state, agent, BULK, slots)
        return GO

    def _cp_async(self, state: State, agent: Agent, act: CpAsync) -> int:
        kind = _Kind(True, self._part(agent, "warp"), GENERIC, "cp.async", "cp.async into ")
        spots = self._own_spots(state, agent, act, kind)
        event = self._log(state, agent, lambda: f"issues cp.async of its share of {_names(spots)}")
        self.records.check(state, spots[0].reach, state.sets[agent.index])
        self._issue(state, agent, CP_ASYNC, self._record(state, spots, event))
        if act.new:
            self._filled(state, agent, spots[0], True, "")
        return GO

    def _cp_async_arrive(self, state: State, agent: Agent, act: CpAsyncArrive) -> int:
        kind = _Kind(True, self._part(agent, "warp"), GENERIC, "", "cp.async into ")
        spots = self._own_spots(state, agent, act, kind)
        event = self._log(state, agent, lambda: f"issues cp.async into {_names(spots)}, and arrives when they land")
        self.records.check(state, spots[0].reach, state.sets[agent.index])
        slots = self._record(state, spots, event)
        self._filled(state, agent, spots[0], True, " lands")
        know = state.sets[agent.index] | self.records.added(state, slots)
        self.barriers.arrive(state, agent, act.barrier, act.at, agent.cta, WARP * agent.count, 0, know, event)
        return GO

    def _write(self, state: State, agent: Agent, act: Write) -> int:
        kind = _Kind(True, self._share(agent, act), GENERIC, "", "write of ")
        reached = self.reached(act, act.to, agent)
        for spot in self._spots(state, agent, act, (act.buffer,), act.at, reached, kind):
            event = self._log(state, agent, lambda at=spot.name: f"writes {at}")  # type: ignore[misc]
            self.records.check(state, spot.reach, state.sets[agent.index])
            slots = self._record(state, [spot], event)
            state.sets[agent.index] |= self.records.added(state, slots)
            if act.new:
                self._filled(state, agent, spot, True, "")
        return GO

    def _store_async(self, state: State, agent: Agent, act: StoreAsync) -> int:
        reached = self.reached(act, act.to, agent)
        kind = _Kind(True, (agent.cta, self._part(agent, "warp")), GENERIC, "", "st.async into ")
        spots = self._spots(state, agent, act, (act.buffer,), act.at, reached, kind)
        event = self._log(state, agent, lambda: f"issues st.async into {_names(spots)}, {act.bytes} bytes each")
        for (cta, count), spot in zip(reached, spots, strict=True):
            self.barriers.may_land(state, agent, act.barrier, act.at, cta, act.bytes)
            self.records.check(state, spot.reach, state.sets[agent.index])
            slots = self._record(state, [spot], event)
            self._filled(state, agent, spot, True, " lands")
            know = state.sets[agent.index] | self.records.added(state, slots)
            self.barriers.landed(state, agent, act.barrier, act.at, cta, count * act.bytes, know, event)
        return GO

    def _read(self, state: State, agent: Agent, act: Read) -> int:
        spots = self._own_spots(state, agent, act, _READ)
        event = self._log(state, agent, lambda: f"reads {_names(spots)}")
        self.records.check(state, spots[0].reach, state.sets[agent.index])
        slots = self._record(state, spots, event)
        state.sets[agent.index] |= self.records.added(state, slots)
        self._taken(state, agent, spots[0], act.last)
        return GO

    def _fence(self, state: State, agent: Agent, act: FenceProxy) -> int:
        self._log(state, agent, lambda: "fence.proxy.async")
        self.records.fence(state, agent.index)
        self.barriers.init_visible(state, agent)
        return GO

    # --------------------------------------------------------------------------------------------------------- products
    def _mma(self, state: State, agent: Agent, act: Mma) -> int:
        reached = self.reached(act, act.ctas, agent)
        into = _Kind(True, None, ASYNC, act.pipe, f"{act.pipe} into ")
        of = _Kind(False, None, ASYNC, act.pipe, f"{act.pipe} on ")
        reads = self._spots(state, agent, act, act.reads, act.at, reached, of)
        writes = self._spots(state, agent, act, (act.into,), act.into_at, reached, into)
        event = self._log(state, agent, lambda: f"issues {act.pipe} on {_names(reads)}")
        slots = self._access(state, agent, reads, event, lambda spot: self._taken(state, agent, spot, act.last))
        slots |= self._access(state, agent, writes, event, lambda spot: self._filled(state, agent, spot, False, ""))
        self._issue(state, agent, PIPES.index(act.pipe), slots)
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
        reached = self.reached(act, act.to, agent)
        event = self._log(state, agent, lambda: f"tcgen05.commit to {act.barrier}")
        for cta, count in reached:
            know = state.sets[agent.index] | state.sets[self.offsets.open + agent.index * len(PIPES) + TCGEN05]
            self.barriers.arrive(state, agent, act.barrier, act.at, cta, count, 0, know, event)
        kind = _Kind(True, None, ASYNC, "tcgen05", "tcgen05 into ")
        for spot in self._spots(state, agent, act, act.publishes, act.published_at, reached, kind):
            self._filled(state, agent, spot, True, "")
        return GO

    # ---------------------------------------------------------------------------------------------------------- cursors
    def _advance(self, state: State, agent: Agent, act: Advance) -> int:
        which = agent.cursors[act.cursor]
        cursors = list(state.cursors[agent.index])
        index, phase = cursors[which]
        stages = self.roles[agent.role].cursors[which].stages
        index += 1
        if index == stages:
            index, phase = 0, phase ^ int(act.flip)
        cursors[which] = (index, phase)
        state.cursors[agent.index] = tuple(cursors)
        return GO

    def _reset(self, state: State, agent: Agent, act: Reset) -> int:
        which = agent.cursors[act.cursor]
        cursors = list(state.cursors[agent.index])
        declared = self.roles[agent.role].cursors[which]
        cursors[which] = (declared.index, declared.phase)
        state.cursors[agent.index] = tuple(cursors)
        return GO
