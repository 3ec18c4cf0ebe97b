"""Asynchronous pipelines of a kernel as values: roles, barriers, buffers, loop programs. Proven, or refuted by a run.

A `Pipeline` says who waits for what, in which order, for k = 0, 1, ... `prove()` answers for every number of k tiles
and of output tiles at once, with a proof or with the interleaving that breaks the kernel. `explain()` prints the table
that a kernel's docstring shows. Constructors for the usual kernels are in `checks.pipeline.patterns`. The argument of
the proof is in `checks.pipeline.prove`, the meaning of each action in `checks.pipeline.machine`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from ...arch import Arch
from ...arch import arch as arch_named
from ...arguments import as_int, checked, settle, shown
from ...atoms.copy.base import WARP
from ...errors import PlanError
from ...layouts.display import HasPicture
from ...layouts.registries import Registry
from ...report import Check, Report
from ..budgets import role_registers
from .actions import (
    ALL,
    BY,
    OWN,
    SYNCHRONISING,
    Action,
    Commit,
    ForK,
    ForTiles,
    If,
    OnRank,
    Onward,
    Program,
    Sync,
    Targets,
    WaitGroup,
)

if TYPE_CHECKING:
    from .prove import Interleaving, PipelineProof

# of a pipeline: its proof, or the run that breaks it; its table of roles and barriers
proof_of = Registry("proof", "layoutgemm.checks.pipeline.prove")
table_of = Registry("table", "layoutgemm.checks.pipeline.table")

PIPES = ("wgmma", "cp.async", "bulk", "tcgen05")
SPACES = ("smem", "tmem", "warp", "reg")
PRIVATE = ("warp", "reg")  # each warp has its own, and no other warp touches it
CTA = "cta"  # the named barrier of all threads of a CTA
MOST_NAMED = 16  # hardware barriers of a CTA (PTX ISA, "bar")
MOST_BLOCKS = 16  # CTAs of a cluster, beyond the portable 8 (CUDA C++ Programming Guide, "Thread Block Clusters")


@dataclass(frozen=True, slots=True)
class Cursor:
    """A role's place in a ring of stages. Which stage, and the parity of the round it is in.

    >>> cursor = Cursor("load", stages=2)
    >>> cursor.after(0), cursor.after(1), cursor.after(2)      # (index, phase) after 0, 1 and 2 steps
    ((0, 0), (1, 0), (0, 1))
    """

    name: str
    stages: int
    index: int = 0
    phase: int = 0

    @checked(PlanError)
    def after(self, steps: int) -> tuple[int, int]:
        """(index, phase) after `steps` advances."""
        turns, index = divmod(self.index + steps, self.stages)
        return index, (self.phase + turns) % 2


@dataclass(frozen=True, slots=True)
class Role:
    """Warps that run one program in every CTA.

    cursors    the places in rings that the role keeps
    registers  a thread, after setmaxnreg; None when the kernel does not set them
    """

    name: str
    warps: int
    program: Program
    cursors: tuple[Cursor, ...] = ()
    registers: int | None = None


@dataclass(frozen=True, slots=True)
class Mbarrier:
    """One mbarrier a stage. A phase completes after `count` arrivals and as many bytes as were expected in it.

    count  the same in every CTA, or one for each rank of the cluster
    bytes  that a stage expects (0: only arrivals)
    """

    name: str
    count: int | tuple[int, ...]
    stages: int = 1
    bytes: int = 0

    @property
    def arrivals(self) -> int:
        """Arrivals that complete a phase in every CTA. Raises PlanError where ranks of the cluster differ.

        >>> Mbarrier("full", (3, 3)).arrivals
        3
        """
        counts = set(self.count) if isinstance(self.count, tuple) else {self.count}
        if len(counts) != 1:
            raise PlanError(f"{self.name}: a phase completes after {self.count} arrivals by rank; see `count_of`")
        return counts.pop()

    @checked(PlanError)
    def count_of(self, rank: int) -> int:
        """Arrivals that complete a phase in the CTA of that rank."""
        return self.count[rank] if isinstance(self.count, tuple) else self.count


@dataclass(frozen=True, slots=True)
class NamedBarrier:
    """A hardware barrier of the CTA (bar.sync, bar.arrive) for `threads` threads."""

    name: str
    threads: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """A place that actions write and read. Stages in shared memory or TMEM of each CTA, or what each warp has for
    itself.

    space   "smem", "tmem", "warp" (shared memory that one warp alone uses) or "reg" (its registers)
    either  roles of which one reads each filling, or several tuples of such roles; roles not named here each read
            every filling
    kept    written once and read for good, any number of times: only the order of accesses is held
    """

    name: str
    stages: int = 1
    space: str = "smem"
    either: tuple[str, ...] | tuple[tuple[str, ...], ...] = ()
    kept: bool = False

    @property
    def turns(self) -> tuple[tuple[str, ...], ...]:
        """Roles that read fillings in turn: of each tuple one reads a filling.

        >>> Buffer("a", either=("math0", "math1")).turns
        (('math0', 'math1'),)
        """
        several = tuple(names for names in self.either if not isinstance(names, str))
        single = tuple(name for name in self.either if isinstance(name, str))
        return (*several, single) if single else several

    @checked(PlanError)
    def reader(self, role: str) -> str:
        """The role in whose name another one reads. The first of those in turn with it.

        >>> Buffer("a", either=("math0", "math1")).reader("math1")
        'math0'
        """
        return next((names[0] for names in self.turns if role in names), role)


@dataclass(frozen=True)
class Pipeline(HasPicture):
    """The roles of one kernel, with their barriers and buffers. Raises PlanError, naming the inconsistent action.

    cluster  CTAs of a cluster: every role runs in each
    arch     whose register file the roles share
    k_tiles  (number, whether exactly): how many k tiles an output tile has, at least or exactly; (0, False) is any
             number

    >>> from layoutgemm.checks import ring
    >>> ring(stages=2, bytes=16384).prove().states
    8
    """

    name: str
    roles: tuple[Role, ...]
    barriers: tuple[Mbarrier | NamedBarrier, ...]
    buffers: tuple[Buffer, ...]
    cluster: int = 1
    arch: str | Arch = field(default="sm_90a")
    k_tiles: tuple[int, bool] = (0, False)
    _drawn_by: ClassVar[str] = "layoutgemm.view.diagrams.pipeline"

    def __post_init__(self) -> None:
        settle(self, PlanError)
        validate(self)

    @checked(PlanError)
    def role(self, name: str) -> Role:
        """The role of that name; raises PlanError for an unknown name."""
        return _named(self.roles, name, "role")

    @checked(PlanError)
    def mbarrier(self, name: str) -> Mbarrier:
        """The mbarrier of that name; raises PlanError for an unknown name."""
        return _named(tuple(b for b in self.barriers if isinstance(b, Mbarrier)), name, "mbarrier")

    @checked(PlanError)
    def named_barrier(self, name: str) -> NamedBarrier:
        """The named barrier of that name; raises PlanError for an unknown name."""
        return _named(self._named_barriers, name, "named barrier")

    @checked(PlanError)
    def barrier_number(self, name: str) -> int:
        """Which of the CTA's hardware barriers the named barrier is. 0 is that of all threads, the others follow.

        Raises PlanError when there is no barrier of that name, or the hardware has none left for it.

        >>> from layoutgemm.checks import ring
        >>> stores = ring(4, 32768, consumers=2, store=(2, 4))
        >>> [stores.barrier_number(name) for name in ("cta", "store0", "store1")]
        [0, 1, 2]
        """
        self.named_barrier(name)
        order = [CTA, *(b.name for b in self._named_barriers if b.name != CTA)]
        if (number := order.index(name)) >= MOST_NAMED:
            raise PlanError(f"{self.name}: {shown(name)} would be hardware barrier {number}; a CTA has {MOST_NAMED}")
        return number

    @property
    def _named_barriers(self) -> tuple[NamedBarrier, ...]:
        return tuple(b for b in self.barriers if isinstance(b, NamedBarrier))

    @checked(PlanError)
    def buffer(self, name: str) -> Buffer:
        """The buffer of that name; raises PlanError for an unknown name."""
        return _named(self.buffers, name, "buffer")

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return WARP * sum(role.warps for role in self.roles)

    @checked(PlanError)
    def with_program(self, role: str, program: Program) -> Pipeline:
        """The same pipeline with another program of one role."""
        self.role(role)
        return replace(self, roles=tuple(replace(r, program=program) if r.name == role else r for r in self.roles))

    # ------------------------------------------------------------------------------------------------------------ verbs
    @checked(PlanError)
    def prove(self, *, fences: str = "writer", limit: int = 20000) -> PipelineProof | Interleaving:
        """A proof for every number of tiles, or the interleaving that breaks the kernel. Tiles are k tiles and output
        tiles.

        fences  "writer": fence.proxy.async covers the writes of the thread that runs it, as CUTLASS places it;
                "any": it covers every write the thread knows of, which is what PTX's proxy order demands
        limit   states after which PlanError is raised; a pipeline whose roles are bound by rings stays far below

        >>> from layoutgemm.checks import ring
        >>> proof = ring(stages=4, bytes=16384).prove()
        >>> bool(proof), proof.method
        (True, 'happens-before, closed after 16 states')
        """
        found: PipelineProof | Interleaving = proof_of(self, fences=fences, limit=limit)
        return found

    def check(self) -> Report:
        """Registers, and safety for any number of k tiles, as checks of a report."""
        checks = [] if (registers := register_check(self)) is None else [registers]
        return Report((*checks, check_pipeline(self)))

    def explain(self) -> str:
        """The table of roles, pipelines and barriers, computed from the programs."""
        return str(table_of(self))

    def __str__(self) -> str:
        return f"{self.name}: " + ", ".join(f"{role.name} ({role.warps} warps)" for role in self.roles)


@checked(PlanError)
def check_pipeline(pipeline: Pipeline) -> Check:
    """Is the pipeline free of deadlock and of races for any number of k tiles. The witness is the interleaving.

    >>> from layoutgemm.checks import ring
    >>> print(check_pipeline(ring(stages=3, bytes=8192)).statement)
    ring of 3: no deadlock, no race, for any number of k tiles
    """
    found = pipeline.prove()
    statement = f"{pipeline.name}: no deadlock, no race, for any number of k tiles"
    return Check("pipeline", statement, bool(found), found.method, "" if found else str(found))


@checked(PlanError)
def register_check(pipeline: Pipeline) -> Check | None:
    """Can setmaxnreg give each role its registers (see `role_registers`); None when no role sets any.

    >>> from layoutgemm.checks import ring
    >>> register_check(ring(4, 32768, consumers=2, registers=(40, 232))).ok
    True
    """
    roles = {r.name: (WARP * r.warps, r.registers) for r in pipeline.roles if r.registers is not None}
    return role_registers(arch_named(pipeline.arch), roles) if roles else None


# ------------------------------------------------------------------------------------------------------------ programs
def walk(program: Program) -> Iterator[Action]:
    """Every action of a program in order, nested ones included."""
    for action in program:
        yield action
        if isinstance(action, (ForK, ForTiles)):
            yield from walk(action.body)
        elif isinstance(action, If):
            yield from walk(action.then)
            yield from walk(action.orelse)


@checked(PlanError)
def deletions(pipeline: Pipeline) -> Iterator[tuple[str, Pipeline]]:
    """Mutants for tests: each pipeline without one synchronising action, and the action's name.

    >>> from layoutgemm.checks import ring
    >>> names = [name for name, _ in deletions(ring(stages=2, bytes=16384))]
    >>> len(names), names[4]
    (12, "producer: ArriveExpect('full', 'load')")
    """
    for role in pipeline.roles:
        for deleted, program in _without_one(role.program):
            yield f"{role.name}: {_brief(deleted)}", pipeline.with_program(role.name, program)


def _without_one(program: Program) -> Iterator[tuple[Action, Program]]:
    for i, action in enumerate(program):
        head, tail = program[:i], program[i + 1 :]
        if isinstance(action, SYNCHRONISING):
            yield action, head + tail
        elif isinstance(action, (ForK, ForTiles)):
            for deleted, body in _without_one(action.body):
                yield deleted, (*head, replace(action, body=body), *tail)
        elif isinstance(action, If):
            for deleted, then in _without_one(action.then):
                yield deleted, (*head, replace(action, then=then), *tail)
            for deleted, orelse in _without_one(action.orelse):
                yield deleted, (*head, replace(action, orelse=orelse), *tail)


def _brief(action: Action) -> str:
    """The action as one would write it, without the fields that have their default."""
    parts: list[str] = []
    for f in fields(action):
        value = getattr(action, f.name)
        if value != f.default:
            required = not parts or f.name in ("at", "pending", "cursor")
            parts.append(repr(value) if required else f"{f.name}={value!r}")
    return f"{type(action).__name__}({', '.join(parts)})"


def ranks_of(to: Targets, rank: int, cluster: int) -> tuple[int, ...]:
    """The ranks that a target reaches from a CTA. "own", "all", or a row for each rank.

    >>> ranks_of("all", 1, 2), ranks_of(((1,), (0,)), 1, 2)
    ((0, 1), (0,))
    """
    if to == OWN:
        return (rank,)
    if to == ALL:
        return tuple(range(cluster))
    return tuple(int(r) for r in to[rank])


# ---------------------------------------------------------------------------------------------------------- validation
class _HasName(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_HasName)


def _named(entries: Sequence[N], name: str, what: str) -> N:
    for entry in entries:
        if entry.name == name:
            return entry
    raise PlanError(f"no {what} {shown(name)}; there are {', '.join(entry.name for entry in entries) or 'none'}")


def validate(pipeline: Pipeline) -> None:
    """Raise PlanError, naming the role and the action, for anything that has no meaning."""
    if 0 < (setting := sum(role.registers is not None for role in pipeline.roles)) < len(pipeline.roles):
        raise PlanError(f"{pipeline.name}: {setting} of {len(pipeline.roles)} roles set their registers; all or none")
    for what, group in (("role", pipeline.roles), ("barrier", pipeline.barriers), ("buffer", pipeline.buffers)):
        names = [entry.name for entry in group]
        for name in names:
            if names.count(name) > 1:
                raise PlanError(f"{pipeline.name}: two {what}s are named {shown(name)}")
    as_int(pipeline.cluster, f"cluster of {pipeline.name}", PlanError, least=1, most=MOST_BLOCKS)
    numbers = [*((f"warps of {r.name}", r.warps) for r in pipeline.roles)]
    for barrier in pipeline.barriers:
        if isinstance(barrier, Mbarrier):
            counts = barrier.count if isinstance(barrier.count, tuple) else (barrier.count,) * pipeline.cluster
            if len(counts) != pipeline.cluster:
                raise PlanError(f"{barrier.name} has {len(counts)} counts for a cluster of {pipeline.cluster}")
            numbers += [(f"count of {barrier.name}", count) for count in counts]
            numbers += [(f"stages of {barrier.name}", barrier.stages)]
            numbers += [(f"bytes of {barrier.name} + 1", barrier.bytes + 1)]
        elif barrier.threads < WARP or barrier.threads % WARP:
            raise PlanError(f"{barrier.name} counts {barrier.threads} threads, which are no whole warps of {WARP}")
    numbers += [(f"stages of {b.name}", b.stages) for b in pipeline.buffers]
    numbers += [(f"stages of cursor {c.name}", c.stages) for r in pipeline.roles for c in r.cursors]
    for label, number in numbers:
        as_int(number, f"{label} of {pipeline.name}", PlanError, least=1)
    for buffer in pipeline.buffers:
        if buffer.space not in SPACES:
            raise PlanError(f"{buffer.name} is in {shown(buffer.space)}, which is none of {', '.join(SPACES)}")
        for turn in buffer.turns:
            for name in turn:
                pipeline.role(name)
    for role in pipeline.roles:
        if (loops := _loops(role.program)) > 1:
            raise PlanError(f"{pipeline.name}, {role.name}: {loops} k loops one after another in an output tile")
        for action in walk(role.program):
            try:
                _validate_action(pipeline, role, action)
            except PlanError as error:
                raise PlanError(f"{pipeline.name}, {role.name}, {_brief(action)}: {error}") from None


def _loops(program: Program, inside: str = "") -> int:
    """The most k loops that an output tile walks; raises PlanError for loops inside k loops or tile loops twice."""
    count = 0
    for action in program:
        if isinstance(action, ForK):
            if inside == "k":
                raise PlanError("a k loop inside a k loop")
            _loops(action.body, "k")
            count += 1
        elif isinstance(action, ForTiles):
            if inside:
                raise PlanError("a loop over output tiles inside another loop")
            if any(isinstance(other, (ForK, ForTiles)) for other in program if other is not action):
                raise PlanError("a loop over output tiles beside another loop: would the tiles be the same ones?")
            count = max(count, _loops(action.body, "tiles"))
        elif isinstance(action, If):
            count += max(_loops(action.then, inside), _loops(action.orelse, inside))
    return count


def _validate_action(pipeline: Pipeline, role: Role, action: Action) -> None:
    by = getattr(action, "by", "warp")
    if by not in BY:
        raise PlanError(f"by is one of {', '.join(BY)}, not {shown(by)}")
    stages: list[tuple[str, int | str, int]] = []
    at = getattr(action, "at", 0)
    if isinstance(action, Sync):
        pipeline.named_barrier(action.barrier)
    elif (barrier := getattr(action, "barrier", None)) is not None:
        stages.append((barrier, at, pipeline.mbarrier(barrier).stages))
    for name in getattr(action, "barriers", ()):
        pipeline.mbarrier(name)
    names = [*getattr(action, "reads", ()), *([action.buffer] if hasattr(action, "buffer") else [])]
    stages += [(name, at, pipeline.buffer(name).stages) for name in names]
    if (into := getattr(action, "into", None)) is not None:
        stages.append((into, getattr(action, "into_at", 0), pipeline.buffer(into).stages))
    for name in getattr(action, "publishes", ()):
        stages.append((name, getattr(action, "published_at", 0), pipeline.buffer(name).stages))
    cursors = {cursor.name: cursor for cursor in role.cursors}
    if (cursor := getattr(action, "cursor", None)) is not None and cursor not in cursors:
        raise PlanError(f"the role has no cursor {shown(cursor)}")
    for name, place, have in stages:
        if isinstance(place, str) and place not in cursors:
            raise PlanError(f"the role has no cursor {shown(place)}")
        need = cursors[place].stages if isinstance(place, str) else place + 1
        if not 1 <= need <= have:
            raise PlanError(f"stage {shown(place)} goes up to {need - 1}, and {name} has {have} stage(s)")
    if isinstance(action, (Commit, WaitGroup)) and action.pipe not in PIPES[:3]:
        raise PlanError(f"pipe is one of {', '.join(PIPES[:3])}, not {shown(action.pipe)}")
    for to in (getattr(action, "to", OWN), getattr(action, "ctas", OWN)):
        if isinstance(to, str):
            if to not in (OWN, ALL):
                raise PlanError(f"targets are 'own', 'all' or ranks, not {shown(to)}")
        elif len(to) != pipeline.cluster or any(not 0 <= r < pipeline.cluster for row in to for r in row):
            raise PlanError(f"targets {to} do not name ranks of a cluster of {pipeline.cluster} for each rank")
    if isinstance(action, If) and isinstance(action.condition, Onward) and pipeline.k_tiles[0] < 1:
        raise PlanError("counting on through output tiles needs a k tile in each of them: k_tiles is at least 1")
    if isinstance(action, If) and isinstance(action.condition, OnRank):
        for rank in action.condition.ranks:
            if not 0 <= rank < pipeline.cluster:
                raise PlanError(f"rank {rank} of a cluster of {pipeline.cluster}")
