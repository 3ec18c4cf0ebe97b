"""All interleavings of a small pipeline with K fixed, by search: an oracle that shares none of the prover's ideas.

Plain values instead of happens-before: an access is in flight from its start to its end, and two conflicting ones in
flight are the error. A stage holds the number of the k tile that was loaded into it, and a reader compares. A load at a
fixed stage, as in a prologue, brings the tile of that number; else a warp's n-th load brings tile n. An asynchronous
read (wgmma, TMA store) or cp.async write stays in flight until its group is waited for, which is the worst it can do.
The landing of a TMA load is a step of its own. Barriers start initialised. One CTA, one output tile.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from layoutgemm.checks import Mbarrier, NamedBarrier, Pipeline
from layoutgemm.checks.pipeline import actions as act
from layoutgemm.checks.pipeline import program as code
from layoutgemm.checks.pipeline.program import Agent, agents_of

IGNORED = (act.InitBarriers, act.FenceInit, act.FenceProxy)
Warp = tuple[Any, ...]  # pc, k, cursors, doing, waiting in, groups, loads issued


def broken(pipeline: Pipeline, k_tiles: int, limit: int = 200_000) -> str | None:
    """The fault of the shortest faulty interleaving, or None when all of them end well."""
    agents = agents_of(pipeline)
    roles = {role.name: role for role in pipeline.roles}
    mbarriers = {(b.name, s): b for b in pipeline.barriers if isinstance(b, Mbarrier) for s in range(b.stages)}
    warps = tuple(
        (0, 0, tuple((c.name, c.index, c.phase) for c in roles[a.role].cursors), None, None, (), 0) for a in agents
    )
    barriers = tuple((key, 0, b.count_of(0), 0) for key, b in mbarriers.items())  # key, phase, pending, tx
    named = tuple((b.name, ()) for b in pipeline.barriers if isinstance(b, NamedBarrier))
    start = (warps, barriers, named, (), ())  # ..., content of stages, landings under way
    seen = {start}
    todo = deque([start])
    search = Search(pipeline, agents, k_tiles)
    while todo:
        state = todo.popleft()
        moves = 0
        for following in search.steps(state):
            if isinstance(following, str):
                return following
            moves += 1
            if following not in seen:
                seen.add(following)
                todo.append(following)
                assert len(seen) < limit, "too many interleavings for this oracle"
        if not moves and any(warp[0] >= 0 for warp in state[0]):
            return "deadlock"
    return None


class Search:
    """The steps from a state."""

    def __init__(self, pipeline: Pipeline, agents: tuple[Agent, ...], k_tiles: int) -> None:
        self.pipeline = pipeline
        self.agents = agents
        self.k_tiles = k_tiles
        self.registers = {b.name for b in pipeline.buffers if b.space == "reg"}

    def steps(self, state: Any) -> Any:
        """Every following state, or what is wrong."""
        warps, barriers, named, content, landings = state
        for i, landing in enumerate(landings):
            key, size, place, k = landing
            rest = landings[:i] + landings[i + 1 :]
            after = self._count(barriers, key, 0, -size)
            yield after if isinstance(after, str) else (warps, after, named, _put(content, place, k), rest)
        for a, warp in enumerate(warps):
            if warp[0] >= 0 and warp[4] is None:
                following = self._step(state, a)
                if following is not None:
                    yield following

    def _count(self, barriers: Any, key: tuple[str, int], arrivals: int, tx: int) -> Any:
        found = []
        for entry in barriers:
            name, phase, pending, bytes_ = entry
            if name == key:
                pending, bytes_ = pending - arrivals, bytes_ + tx
                if pending < 0 or (pending == 0 and bytes_ < 0):
                    return "overflow"
                if pending == 0 and bytes_ == 0:
                    phase, pending = (phase + 1) % 2, self.pipeline.mbarrier(name[0]).count_of(0)
                entry = (name, phase, pending, bytes_)
            found.append(entry)
        return tuple(found)

    def _step(self, state: Any, a: int) -> Any:
        warps, barriers, named, content, landings = state
        pc, k, cursors, doing, waiting, groups, loads = warps[a]
        agent = self.agents[a]
        if doing is not None:  # a generic access ends
            return self._with(state, a, (pc + 1, k, cursors, None, waiting, groups, loads))
        ins = agent.code[pc]
        if ins.kind == code.EXIT:
            return self._with(state, a, (-1, 0, (), None, None, groups, loads))
        if ins.kind == code.JUMP:
            return self._with(state, a, (ins.jump, k, cursors, None, None, groups, loads))
        if ins.kind == code.K_NEXT:
            return self._with(state, a, (ins.jump, k + 1, cursors, None, None, groups, loads))
        if ins.kind == code.K_HEAD:
            pc = pc + 1 if k < self.k_tiles else ins.jump
            return self._with(state, a, (pc, k, cursors, None, None, groups, loads))
        if ins.kind == code.TEST:
            test = ins.condition
            holds = k + test.distance < self.k_tiles if isinstance(test, act.Ahead) else k >= test.k
            return self._with(state, a, (pc + 1 if holds else ins.jump, k, cursors, None, None, groups, loads))
        x = ins.action
        places = {name: (index, phase) for name, index, phase in cursors}

        def stage(at: Any) -> int:
            return at if isinstance(at, int) else places[at][0]

        if isinstance(x, act.Wait):
            parity = x.parity if x.parity is not None else (0 if isinstance(x.at, int) else places[x.at][1]) ^ x.flip
            current = next(entry[1] for entry in barriers if entry[0] == (x.barrier, stage(x.at)))
            if current == parity:
                return None
        elif isinstance(x, (act.Arrive, act.ArriveExpect)):
            times = 32 if x.by == "lanes" else 1
            size = 0
            if isinstance(x, act.ArriveExpect):
                size = times * (self.pipeline.mbarrier(x.barrier).bytes if x.bytes is None else x.bytes)
            barriers = self._count(barriers, (x.barrier, stage(x.at)), times, size)
            if isinstance(barriers, str):
                return barriers
            state = (warps, barriers, named, content, landings)
        elif isinstance(x, act.Sync):
            threads = self.pipeline.named_barrier(x.barrier).threads
            here = dict(named)
            here[x.barrier] = (*here[x.barrier], a)
            me = (pc + 1, k, cursors, None, x.barrier, groups, loads)
            state = self._with(state, a, me)
            if 32 * len(here[x.barrier]) >= threads:
                here[x.barrier] = ()
                freed = tuple((*w[:4], None, *w[5:]) if w[4] == x.barrier else w for w in state[0])
                state = (freed, *state[1:])
            return (state[0], state[1], tuple(here.items()), *state[3:])
        elif isinstance(x, act.Advance):
            stages = next(c.stages for c in self.pipeline.role(agent.role).cursors if c.name == x.cursor)
            moved = []
            for name, index, phase in cursors:
                if name == x.cursor:
                    index += 1
                    if index == stages:
                        index, phase = 0, phase ^ int(x.flip)
                moved.append((name, index, phase))
            cursors = tuple(moved)
        elif isinstance(x, act.TmaLoad):
            place = (x.buffer, stage(x.at))
            if self._clash(state, place, None, True):
                return "race"
            size = self.pipeline.mbarrier(x.barrier).bytes if x.bytes is None else x.bytes
            landing = ((x.barrier, stage(x.at)), size, place, x.at if isinstance(x.at, int) else loads)
            state = (warps, barriers, named, content, tuple(sorted((*landings, landing))))
            loads += 1
        elif isinstance(x, act.Mma):
            for name in x.reads:
                if self._clash(state, (name, stage(x.at)), None, False):
                    return "race"
                if dict(content).get((name, stage(x.at))) != k:
                    return "data"
            operations = tuple((name, stage(x.at), None, False) for name in x.reads) + ((x.into, a, None, True),)
            groups = _open(groups, "wgmma", operations)
        elif isinstance(x, act.CpAsync):
            place = (x.buffer, stage(x.at))
            if self._clash(state, place, a, True):
                return "race"
            groups = _open(groups, "cp.async", ((*place, a, True),))
            item = x.at if isinstance(x.at, int) and k == 0 else loads
            state = (warps, barriers, named, _put(content, (*place, a), item), landings)
            loads += 1
        elif isinstance(x, act.TmaStore):
            if self._clash(state, (x.buffer, stage(x.at)), None, False):
                return "race"
            groups = _open(groups, "bulk", ((x.buffer, stage(x.at), None, False),))
        elif isinstance(x, act.Commit):
            groups = tuple((pipe, i + 1 if pipe == x.pipe else i, op) for pipe, i, op in groups)
        elif isinstance(x, act.WaitGroup):
            # i counts the commits since the operation: 0 is open, 1 the newest group
            groups = tuple((p, i, op) for p, i, op in groups if p != x.pipe or i == 0 or i <= x.pending)
        elif isinstance(x, (act.Read, act.Write)):
            place = (x.buffer, a if x.buffer in self.registers else stage(x.at))
            write = isinstance(x, act.Write)
            part = a if write else None
            if self._clash(state, place, part, write):
                return "race"
            if not write and x.buffer not in self.registers:
                found = dict(content)
                parts = [found.get((*place, b.index)) for b in self.agents]
                if any(value != k for value in parts):
                    return "data"
            return self._with(state, a, (pc, k, cursors, (*place, part, write), None, groups, loads))
        else:
            assert isinstance(x, IGNORED), x
        return self._with(state, a, (pc + 1, k, cursors, None, None, groups, loads))

    @staticmethod
    def _with(state: Any, a: int, warp: Warp) -> Any:
        warps = state[0]
        return (warps[:a] + (warp,) + warps[a + 1 :], *state[1:])

    @staticmethod
    def _clash(state: Any, place: tuple[str, int], part: Any, write: bool) -> bool:
        """Is a conflicting access in flight there."""
        flying = [(*landing[2], None, True) for landing in state[4]]
        for warp in state[0]:
            flying += [op for _, _, op in warp[5]] + ([warp[3]] if warp[3] else [])
        return any(
            (name, number) == place and (write or other) and (part is None or p is None or p == part)
            for name, number, p, other in flying
        )


def _put(content: Any, place: Any, k: int) -> Any:
    return tuple(sorted([(p, v) for p, v in content if p != place] + [(place, k)], key=repr))


def _open(groups: Any, pipe: str, operations: Any) -> Any:
    return groups + tuple((pipe, 0, op) for op in operations)
