"""The programs of a pipeline as flat code for each warp, and their mutable state."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, NamedTuple

from .actions import Action, Ahead, Condition, ForK, ForTiles, If, KIs, Later, OnRank, Onward, Program, TileIs
from .model import PIPES, Mbarrier, NamedBarrier, Pipeline, Role

if TYPE_CHECKING:
    from .symmetry import SimulatedWarps

ACT, TEST, JUMP, K_HEAD, K_NEXT, TILE_HEAD, TILE_NEXT, EXIT = range(8)


class Instruction(NamedTuple):
    """One step of a warp. An action, or flow with the place it may jump to."""

    kind: int
    action: Action | None = None
    condition: Condition | None = None
    jump: int = 0


@dataclass(frozen=True)
class Agent:
    """One warp of one role in one CTA: what the machine schedules."""

    index: int
    role: str
    cta: int
    warp: int
    name: str
    code: tuple[Instruction, ...]
    cursors: dict[str, int]
    uses_k: bool
    uses_tiles: bool
    count: int = 1  # warps that it stands for


class KnowledgeOffsets(NamedTuple):
    """The first index of knowledge in `State.sets`. The warps' own sets come first, by their numbers."""

    arrived: int  # gathered in the current phase of each mbarrier and stage
    done: int  # handed out by its last complete phase
    named: int  # gathered in each named barrier and CTA
    cluster: int  # gathered in the cluster barrier, then handed out by its last turn
    exits: int  # what the exited warps of each CTA knew
    open: int  # of each warp and pipe: operations not yet in a group
    total: int


@dataclass
class State:
    """The state of all warps and barriers. Lists run over warps unless said otherwise; a set is an int with a bit for
    each slot."""

    sets: list[int]  # all that anybody or anything knows, see KnowledgeOffsets
    pc: list[int]
    tile: list[int]
    k: list[int]
    k_state: list[int]  # 0 before the tile's k loop, 1 in it, 2 after it (or has none)
    cursors: list[tuple[tuple[int, int], ...]]
    blocked: list[int]  # number of the named barrier a warp waits in, or -1
    cluster: list[int]  # 0 none, 1 arrived, 2 arrived and complete
    groups: list[list[tuple[int, ...]]]  # pipe -> set of each pending group, oldest first
    mbarriers: list[list[int]]  # [live, phase, pending, tx, expects] of each mbarrier and stage
    named: list[list[int]]  # [threads arrived, turns] of each named barrier and CTA
    unread: list[int]  # per buffer stage: readers that have not read what is there
    tiles: dict[int, tuple[int, bool]]  # tile -> (K is at least, K is exactly that)
    tile_count: tuple[int, bool]
    live: int = 0  # slots that hold a record
    pending: int = 0  # groups in all
    moved: int = 0  # slots whose bit is the next one, see `Records`

    def copy(self) -> State:
        """An independent copy."""
        return State(
            self.sets[:], self.pc[:], self.tile[:], self.k[:], self.k_state[:], self.cursors[:], self.blocked[:],
            self.cluster[:], [row[:] for row in self.groups], [row[:] for row in self.mbarriers],
            [row[:] for row in self.named], self.unread[:], dict(self.tiles), self.tile_count, self.live,
            self.pending, self.moved,
        )  # fmt: skip


LIVE, PHASE, PENDING, TX, EXPECTS = range(5)


def agents_of(pipeline: Pipeline, cast: SimulatedWarps | None = None) -> tuple[Agent, ...]:
    """Every warp of every CTA with its code; or those of a cast."""
    agents: list[Agent] = []
    for cta in range(len(cast.ctas) if cast else pipeline.cluster):
        for role in pipeline.roles:
            for warp, count in cast.warps[role.name] if cast else [(warp, 1) for warp in range(role.warps)]:
                code = code_of(role, cast.ctas[cta][0] if cast else cta, warp)
                uses_k = any(i.kind == K_HEAD or isinstance(i.condition, (Ahead, Onward)) for i in code)
                uses_tiles = any(i.kind == TILE_HEAD for i in code)
                prefix = f"cta {cta} " if pipeline.cluster > 1 else ""
                name = f"{prefix}{role.name}" + (f" warp {warp}" if role.warps > 1 else "")
                cursors = {cursor.name: i for i, cursor in enumerate(role.cursors)}
                agents.append(Agent(len(agents), role.name, cta, warp, name, code, cursors, uses_k, uses_tiles, count))
    return tuple(agents)


def code_of(role: Role, rank: int, warp: int) -> tuple[Instruction, ...]:
    """The code of one warp of a role in the CTA of a rank."""
    code: list[Instruction] = []
    _flatten(role.program, rank, warp, code)
    return (*code, Instruction(EXIT))


def _flatten(program: Program, cta: int, warp: int, code: list[Instruction]) -> None:
    """Append a program without the actions that this warp or rank never performs."""
    for action in program:
        if isinstance(action, If):
            if isinstance(action.condition, OnRank):
                _flatten(action.then if cta in action.condition.ranks else action.orelse, cta, warp, code)
                continue
            test = len(code)
            code.append(Instruction(TEST))
            _flatten(action.then, cta, warp, code)
            skip = len(code)
            if action.orelse:
                code.append(Instruction(JUMP))
            code[test] = Instruction(TEST, None, action.condition, len(code))
            _flatten(action.orelse, cta, warp, code)
            if action.orelse:
                code[skip] = Instruction(JUMP, jump=len(code))
        elif isinstance(action, (ForK, ForTiles)):
            head, to = (K_HEAD, K_NEXT) if isinstance(action, ForK) else (TILE_HEAD, TILE_NEXT)
            start = len(code)
            code.append(Instruction(head))
            _flatten(action.body, cta, warp, code)
            code.append(Instruction(to, jump=start))
            code[start] = Instruction(head, jump=len(code))
        elif warp == 0 or getattr(action, "by", "warp") != "one":
            code.append(Instruction(ACT, action))


def offsets_of(pipeline: Pipeline, agents: tuple[Agent, ...], ctas: int) -> KnowledgeOffsets:
    """The bit positions of known records in `State.sets`."""
    stages = sum(b.stages for b in pipeline.barriers if isinstance(b, Mbarrier)) * ctas
    named = sum(isinstance(b, NamedBarrier) for b in pipeline.barriers) * ctas
    sizes = [len(agents), stages, stages, named, 2, ctas, len(agents) * len(PIPES)]
    return KnowledgeOffsets(*(sum(sizes[: i + 1]) for i in range(len(sizes))))


def start_of(pipeline: Pipeline, agents: tuple[Agent, ...], offsets: KnowledgeOffsets, stages_of_buffers: int) -> State:
    """The state at launch: nothing initialised, nothing known."""
    count = len(agents)
    roles = {role.name: role for role in pipeline.roles}
    persistent = any(i.kind == TILE_HEAD for agent in agents for i in agent.code)
    return State(
        sets=[0] * offsets.total,
        pc=[0] * count,
        tile=[0] * count,
        k=[0] * count,
        k_state=[0 if agent.uses_k else 2 for agent in agents],
        cursors=[tuple((c.index, c.phase) for c in roles[agent.role].cursors) for agent in agents],
        blocked=[-1] * count,
        cluster=[0] * count,
        groups=[[()] * len(PIPES) for _ in agents],
        mbarriers=[[0] * 5 for _ in range(offsets.done - offsets.arrived)],
        named=[[0, 0] for _ in range(offsets.cluster - offsets.named)],
        unread=[0] * stages_of_buffers,
        tiles={},
        tile_count=(0, False) if persistent else (1, True),
    )


def largest_later(agents: tuple[Agent, ...]) -> int:
    """The largest k that a condition compares with: beyond it, k is all the same."""
    bounds = [i.condition.k for a in agents for i in a.code if isinstance(i.condition, Later)]
    return max(bounds, default=0)


def tile_period(agents: tuple[Agent, ...], kind: type[TileIs] | type[KIs] = TileIs) -> int:
    """The period, in tiles or k tiles, of all conditions on their number."""
    return lcm(*(i.condition.modulus for agent in agents for i in agent.code if isinstance(i.condition, kind)))


def _folded(k: int, later: int, period: int) -> int:
    """A k tile's number, modulo the period from `later` on.

    >>> [_folded(k, 1, 2) for k in range(6)]
    [0, 1, 2, 1, 2, 1]
    """
    return k if k < later else later + (k - later) % period


def key_of(
    agents: tuple[Agent, ...], state: State, later: int, periods: tuple[int, int], always: int
) -> tuple[object, tuple[int, ...]]:
    """The state with every unbounded number made relative. What is not known stands apart from it, in a fixed order.

    later    of `largest_later`
    periods  of conditions on the number of a tile, and of a k tile

    The second is the set of slots in use (live records, and `always` those of control) and, for everybody and
    everything that knows, which of them it does not know. Larger sets are worse. Tiles
    count from the slowest warp's, and k tiles of a tile from the slowest warp that still has to walk them.
    """
    alive = [a for a in range(len(agents)) if state.pc[a] >= 0]
    first = min((state.tile[a] for a in alive if agents[a].uses_tiles), default=0)
    base: dict[int, int] = {}
    walkers = [a for a in alive if agents[a].uses_k]
    oldest = min((state.tile[a] for a in walkers), default=0)
    for tile in state.tiles:
        ks = [0] if oldest < tile else []
        ks += [state.k[a] for a in walkers if state.tile[a] == tile and state.k_state[a] < 2]
        if ks:
            base[tile] = min(ks)
    control = (
        tuple(state.pc),
        tuple(
            (
                state.tile[a] - first if agents[a].uses_tiles else 0,
                state.k[a] - base.get(state.tile[a], 0) if state.k_state[a] < 2 else -1,
                _folded(state.k[a], later, periods[1]),
            )
            for a in alive
        ),
        tuple(state.k_state),
        first % periods[0],
        tuple(state.cursors),
        tuple(state.blocked),
        tuple(state.cluster),
        tuple(tuple(len(group) for group in row) for row in state.groups),
        tuple(
            (m[LIVE], m[PHASE] if m[PHASE] < 4 else 2 + m[PHASE] % 2, m[PENDING], m[TX], m[EXPECTS])
            for m in state.mbarriers
        ),
        tuple((n[0], min(n[1], 1)) for n in state.named),
        tuple(state.unread),
        tuple((tile - first, state.tiles[tile][0] - base[tile], state.tiles[tile][1]) for tile in sorted(base)),
        (state.tile_count[0] - first, state.tile_count[1]),
    )
    used = state.live | always
    unknown = [state.live, *(used & ~known for known in state.sets)]
    for row in state.groups:
        for groups in row:
            unknown += [used & ~group for group in groups]
    return control, tuple(unknown)


def set_unknown(state: State, unknown: tuple[int, ...], always: int) -> None:
    """Inverse of the second half of `key_of`."""
    source = iter(unknown)
    state.live = next(source)
    used = state.live | always
    state.sets = [used & ~next(source) for _ in state.sets]
    state.groups = [[tuple(used & ~next(source) for _ in groups) for groups in row] for row in state.groups]
