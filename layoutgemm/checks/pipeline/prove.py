"""Safety of a pipeline for any number of k tiles and of output tiles. A proof, or the interleaving that breaks it.

**One order is enough.** Fix the loop lengths. A program then has no choice of its own: what a warp does next depends on
its place alone, and a barrier only says when. Run it once, in any order, and call T the partial order of its events. It
has each warp's own steps, an operation's landing after its issue, and a passed wait after everything that was counted
in the phases it waited for. Suppose that in T (`checks.pipeline.barriers` checks each as it runs)

    1. who waits for a phase knows that the phase of the same parity before it is over,
    2. who completes a phase knows of every wait for the phase before it,
    3. who arrives, or asks for bytes, in a phase knows that the phase before it is over, and finds a count left,
    4. every expect_tx comes before an arrival of its phase.

Then every other execution runs through prefixes of T. For suppose one has so far, and takes a step next that T has not
ready there. The step is no access, fence or cursor: these are always ready. It is no arrival in another phase, by 3. It
is no wait that passes too soon. The parity it looks for is that of the current phase from the moment named in 1 until
the phase completes; by 2 the parity cannot turn back before the wait has looked. And a phase completes only when all
its arrivals are in, hence by 4 all that it expects, hence all its bytes. So each execution is T, in another order that
T allows. Where T gets stuck, all do, and where T does not, none does (a deadlock is a prefix that cannot go on, and a
prefix of T can). Two accesses that T leaves unordered are next to each other in some execution: that is the race. What
a read finds is the same in all executions. Where one of the four fails, two orders differ: that is reported as is.

The order that `checks.pipeline.machine` takes is lock step, with every asynchronous operation done as soon as it is
issued. An operation is a thread of its own in T, ordered after its issue and before what waits for it. So nothing is
lost: a later access to the same place races with it unless a warp waited.

**Finitely many states are enough.** Control depends on k only through cursors (index and phase) and the first few k
that a condition names. It also depends on the answers to "is there another k tile" and "another output tile". Both
answers are explored at every question, in step for all roles: a path is a choice of K for each output tile. A state is
every warp's place and cursors, every barrier (phase modulo 2 beyond the first two, pending arrivals and bytes), pending
groups, and the readers that still owe a read. It also has the answers that the fastest warp has had and the slowest has
not. Tiles and k tiles count from the slowest warp. In lock step, warps are never far apart, so there are finitely many
states, and when no new one turns up, all K are covered. A pipeline that does not close within a limit is refused, not
passed.

**What is known.** Beside this control state each warp and each barrier has the set of records it knows of. Checks only
ask that a record be known, and control never looks: less knowledge fails earlier. So at one control state the
intersection of what the paths to it know stands for all of them (the usual must-analysis). A failure found with such an
intersection is run again along its path, exactly; if it does not repeat, the search starts over and keeps every
incomparable set apart.

**Few warps are enough.** Warps that run the same code, and CTAs that are alike, are not all run
(`checks.pipeline.symmetry`). A refuted pipeline is explored again with all of them.

The tests hold both halves against a search through all interleavings of small pipelines.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from ...arguments import shown
from ...errors import PlanError
from .actions import KIs
from .happens_before import Hazard
from .machine import ASK_K, ASK_TILE, GO, Machine
from .model import Pipeline, proof_of
from .program import State, key_of, largest_later, set_unknown, tile_period
from .symmetry import SimulatedWarps, fewest
from .trace import Trace, TraceStep


@dataclass(frozen=True, slots=True)
class PipelineProof:
    """No deadlock, race, lost or stale stage, for any number of tiles. Tiles are k tiles and output tiles. Truthy.

    states   control states between two questions about loop lengths, until none was new
    runs     from one of them to the next questions
    """

    pipeline: str
    states: int
    runs: int

    @property
    def method(self) -> str:
        """The method of the decision."""
        return f"happens-before, closed after {self.states} states"

    @property
    def invariant(self) -> str:
        """The reasons that make the argument finite, in words."""
        return (
            "what happens next depends on k only through stage index, phase bit and whether there is another k tile; "
            f"{self.states} states lead only to one another in {self.runs} runs, whichever loop ends where, and in "
            "each the barriers order every arrival, wait and access that must not change places"
        )

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"{self.pipeline}: no deadlock and no race for any number of k tiles: {self.invariant}"


@dataclass(frozen=True, slots=True)
class Interleaving:
    """A run that breaks the pipeline. Every step that must come first, in an order that can happen. Falsy.

    kind    of `checks.pipeline.machine`'s hazards
    what    the last thing that happens, and why it is wrong
    who     the warp that does it
    lengths K of each output tile so far; "3+" is three or more
    """

    pipeline: str
    kind: str
    who: str
    what: str
    steps: tuple[TraceStep, ...]
    lengths: tuple[str, ...]

    @property
    def method(self) -> str:
        """The method of the decision."""
        return f"interleaving of {len(self.steps)} steps"

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        many = any(step.tile for step in self.steps)
        lines = [f"{self.pipeline}: {self.kind}, with K = {', '.join(self.lengths) or '0+'}"]
        for number, step in enumerate(self.steps, 1):
            tile = f"tile {step.tile} " if many else ""
            lines.append(f"{number:4}  {step.who:<22} {tile}k={step.k}  {step.text}")
        lines.append(f"   !  {self.who + ': ' if self.who else ''}{self.what}")
        return "\n".join(lines)


@proof_of.register(Pipeline)
def prove_pipeline(pipeline: Pipeline, *, fences: str = "writer", limit: int = 20000) -> PipelineProof | Interleaving:
    """See `Pipeline.prove`. Raises PlanError when more than `limit` states are met."""
    if fences not in ("writer", "any"):
        raise PlanError(f"fences = {shown(fences)}: 'writer' or 'any'")
    few = fewest(pipeline)
    for merge, cast in ((True, few), *(() if few.whole else ((True, None),)), (False, None)):
        found = _explore(pipeline, fences, limit, merge, cast)
        if isinstance(found, PipelineProof):
            return found
        if (story := _replay(pipeline, fences, found)) is not None:
            return story
    raise AssertionError("a hazard found without merging must repeat")


@dataclass
class _Node:
    """A control state at a question, with the records that may be unknown there."""

    state: State
    asked: tuple[int, int]  # the question, and the output tile it is about
    unknown: tuple[int, ...]
    path: object
    number: int  # in the order in which the states were met


def _explore(
    pipeline: Pipeline, fences: str, limit: int, merge: bool, cast: SimulatedWarps | None = None
) -> PipelineProof | list[bool]:
    """Walk through the states; a proof, or the answers that lead to a hazard."""
    machine = Machine(pipeline, fences, cast=cast)
    later, periods = largest_later(machine.agents), (tile_period(machine.agents), tile_period(machine.agents, KIs))
    seen: dict[object, list[_Node]] = {}
    # The state met first is walked first: a later one's set grows by its walk, and is then walked once for all of it.
    todo: list[tuple[int, bool, _Node]] = []
    waiting: set[tuple[int, bool]] = set()  # in todo: a node whose set grows before its turn is walked once
    visits = states = 0
    always = machine.records.always

    def arrive(state: State, path: object) -> None:
        """Run to the next question, and record new control states."""
        nonlocal visits, states
        visits += 1
        if visits > limit:
            raise PlanError(
                f"{pipeline.name}: {visits} runs and no end: the roles are not bound to one another, or bound so "
                "loosely that a larger limit is needed"
            )
        if machine.run(state) == GO:
            return
        first = min((state.tile[a.index] for a in machine.agents if state.pc[a.index] >= 0 and a.uses_tiles), default=0)
        for old in [t for t in state.tiles if t < first]:
            del state.tiles[old]
        control, unknown = key_of(machine.agents, state, later, periods, always)
        before = seen.setdefault(control, [])
        node = _Node(state, machine.asked, unknown, path, states)
        if merge and before:
            node, new = before[0], tuple(a | b for a, b in zip(before[0].unknown, unknown))
            if new == node.unknown:
                return
            node.unknown = new
        elif any(_within(unknown, old.unknown) for old in before):
            return
        else:
            before.append(node)
            states += 1
        for more in (False, True):
            if (id(node), more) not in waiting:
                waiting.add((id(node), more))
                heappush(todo, (node.number, more, node))

    path: object = None
    try:
        arrive(machine.start(), None)
        while todo:
            _, more, node = heappop(todo)
            waiting.discard((id(node), more))
            child = node.state.copy()
            set_unknown(child, node.unknown, always)
            _answer(child, *node.asked, more, pipeline.k_tiles)
            path = (node.path, more)
            arrive(child, path)
    except Hazard:
        return _answers(path)
    assert always == machine.records.always, "a control slot appeared on the way"
    return PipelineProof(pipeline.name, states, visits)


def _within(less: tuple[int, ...], more: tuple[int, ...]) -> bool:
    """Is everything that is not known in the first not known in the second either."""
    return all(a & ~b == 0 for a, b in zip(less, more))


def _answer(state: State, asked: int, tile: int, more: bool, k_tiles: tuple[int, bool]) -> None:
    """Decide: is there another k tile in this output tile, or another output tile."""
    if asked == ASK_K:
        least, _ = state.tiles.get(tile, k_tiles)
        state.tiles[tile] = (least + 1, False) if more else (least, True)
    else:
        assert asked == ASK_TILE
        least, _ = state.tile_count
        state.tile_count = (least + 1, False) if more else (least, True)


def _answers(path: object) -> list[bool]:
    answers: list[bool] = []
    while isinstance(path, tuple):
        path, more = path
        answers.append(more)
    return answers[::-1]


def _replay(pipeline: Pipeline, fences: str, answers: list[bool]) -> Interleaving | None:
    """Run once more with these answers, exactly and with every step noted; None when nothing breaks."""
    trace = Trace()
    machine = Machine(pipeline, fences, trace)
    state = machine.start()
    source = iter(answers)
    try:
        while (asked := machine.run(state)) != GO:
            more = next(source, None)
            if more is None:
                return None
            _answer(state, asked, machine.asked[1], more, pipeline.k_tiles)
    except Hazard as hazard:
        seeds = list(hazard.events)
        if hazard.agent >= 0 and hazard.agent in trace.last and hazard.kind != "exit":
            seeds.append(trace.last[hazard.agent])
        for slot in hazard.slots:
            event = trace.records.get(slot)
            if event is not None:
                seeds += trace.events[event].behind if hazard.before else (event,)
        if hazard.kind == "deadlock":
            seeds += [trace.last[a] for a in range(len(machine.agents)) if a in trace.last]
        lengths = tuple(f"{least}" if exact else f"{least}+" for _, (least, exact) in sorted(state.tiles.items()))
        who = machine.agents[hazard.agent].name if hazard.agent >= 0 and hazard.kind != "exit" else ""
        return Interleaving(
            pipeline.name, hazard.kind, who, hazard.text, trace.story(seeds, machine.agents), lengths
        )  # fmt: skip
    return None
