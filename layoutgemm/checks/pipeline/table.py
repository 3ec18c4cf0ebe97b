"""The table of a pipeline for a kernel's docstring, computed from its roles' programs.

    ring of 4: 9 warps
      producer     1 warp      TMA
      math0        4 warps     wgmma
      math1        4 warps     wgmma
      ab           TMA: producer -> math0, math1, 4 stages
        full       1 arrival: producer expecting 32768 bytes; lands 32768 = producer ab 32768
        empty      8 arrivals: math0 4 warps + math1 4 warps; waited for by producer

For each buffer: who fills it and who reads it. For each mbarrier, in one CTA: how many arrivals complete a phase and
who makes them, the bytes expected and the bytes that land, and who waits.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...atoms.copy.base import WARP
from .actions import (
    Action,
    Arrive,
    ArriveExpect,
    CommitTo,
    CpAsync,
    CpAsyncArrive,
    ForK,
    ForTiles,
    If,
    Mma,
    OnRank,
    Program,
    Read,
    StoreAsync,
    Sync,
    TmaLoad,
    TmaStore,
    Wait,
    Write,
)
from .model import Mbarrier, Pipeline, Role, ranks_of, table_of, walk

KINDS = (
    (TmaLoad, "TMA"), (CpAsync, "cp.async"), (Mma, ""), (TmaStore, "TMA store"), (Write, "stores"),
    (CpAsyncArrive, "cp.async"), (StoreAsync, "st.async"), (Read, "loads"),
)  # fmt: skip


@table_of.register(Pipeline)
def explain_pipeline(pipeline: Pipeline) -> str:
    """The table; see the module."""
    warps = sum(role.warps for role in pipeline.roles)
    clusters = f", in each of {pipeline.cluster} CTAs" if pipeline.cluster > 1 else ""
    lines = [f"{pipeline.name}: {_many(warps, 'warp')}{clusters}"]
    for role in pipeline.roles:
        registers = f", {role.registers} registers" if role.registers is not None else ""
        lines.append(f"  {role.name:<12} {_many(role.warps, 'warp'):<11} {work_of(role)}{registers}")
    told: set[str] = set()
    for buffer in pipeline.buffers:
        if buffer.space == "reg":
            continue
        kinds, fillers = fillers_of(pipeline, buffer.name)
        readers = readers_of(pipeline, buffer.name)
        joint = " or " if buffer.either else ", "
        stages = _many(buffer.stages, "stage")
        lines.append(f"  {buffer.name:<12} {kinds}: {', '.join(fillers)} -> {joint.join(readers)}, {stages}")
        for name in barriers_of(pipeline, buffer.name, fillers, readers):
            if name not in told:
                told.add(name)
                lines.append("    " + _mbarrier(pipeline, pipeline.mbarrier(name), 10))
    for barrier in pipeline.barriers:
        if isinstance(barrier, Mbarrier):
            if barrier.name not in told:
                lines.append("  " + _mbarrier(pipeline, barrier, 12))
            continue
        users = [
            role for role in pipeline.roles
            if any(isinstance(a, Sync) and a.barrier == barrier.name for a in walk(role.program))
        ]  # fmt: skip
        who = " + ".join(f"{role.name} {WARP * role.warps}" for role in users) or "nobody"
        lines.append(f"  {barrier.name:<12} bar.sync: {barrier.threads} threads = {who}")
    return "\n".join(lines)


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'s' * (count != 1)}"


def work_of(role: Role) -> str:
    """The kinds of work of a role: TMA, wgmma, stores; "waits" where it does none."""
    kinds: list[str] = []
    for action in walk(role.program):
        for kind, word in KINDS:
            if isinstance(action, kind) and not (isinstance(action, Read) and action.buffer == "acc"):
                word = word or action.pipe if isinstance(action, Mma) else word
                if word not in kinds:
                    kinds.append(word)
    return ", ".join(kinds) or "waits"


def _reads(action: Action, buffer: str) -> bool:
    if isinstance(action, Mma):
        return buffer in action.reads
    return isinstance(action, (Read, TmaStore)) and action.buffer == buffer


def readers_of(pipeline: Pipeline, buffer: str) -> list[str]:
    """The roles that read a buffer."""
    return [role.name for role in pipeline.roles if any(_reads(action, buffer) for action in walk(role.program))]


def fillers_of(pipeline: Pipeline, buffer: str) -> tuple[str, list[str]]:
    """The kinds of actions that fill a buffer, and their roles."""
    kinds: list[str] = []
    fillers: list[str] = []
    for role in pipeline.roles:
        for action in walk(role.program):
            kind = ""
            if isinstance(action, (TmaLoad, CpAsync, CpAsyncArrive, Write, StoreAsync)) and action.buffer == buffer:
                kind = dict(KINDS)[type(action)]
                size = pipeline.cluster
                if isinstance(action, TmaLoad) and any(len(ranks_of(action.to, r, size)) > 1 for r in range(size)):
                    kind = "TMA multicast"
            elif isinstance(action, Mma) and action.into == buffer:
                kind = action.pipe
            if kind and kind not in kinds:
                kinds.append(kind)
            if kind and role.name not in fillers:
                fillers.append(role.name)
    return " and ".join(kinds) or "nobody", fillers


def barriers_of(pipeline: Pipeline, buffer: str, fillers: list[str], readers: list[str]) -> list[str]:
    """The mbarriers of a buffer. Writers complete full, readers arrive at empty and writers wait there."""
    full: list[str] = []
    arrived: set[str] = set()
    waited: set[str] = set()
    for role in pipeline.roles:
        for a in walk(role.program):
            if (isinstance(a, (TmaLoad, CpAsyncArrive, StoreAsync)) and a.buffer == buffer) or (
                isinstance(a, CommitTo) and buffer in a.publishes
            ):
                full += [a.barrier] * (a.barrier not in full)
            elif isinstance(a, (Arrive, CommitTo)) and role.name in readers:
                arrived.add(a.barrier)
            elif isinstance(a, Wait) and role.name in fillers:
                waited.add(a.barrier)
    empty = [b.name for b in pipeline.barriers if b.name in arrived & waited and b.name not in full]
    return full + empty


def _mbarrier(pipeline: Pipeline, barrier: Mbarrier, width: int) -> str:
    """The completion of a phase of the barrier of CTA 0, and its waiters."""
    arrivals: dict[str, int] = {}  # what -> from how many CTAs
    landing: dict[tuple[str, str, int], int] = {}
    waiters: list[str] = []
    for rank in range(pipeline.cluster):
        for role in pipeline.roles:
            seen: set[object] = set()  # the same action twice in the text, as in a prologue, is one
            for action in _in_rank(role.program, rank):
                if getattr(action, "barrier", None) != barrier.name:
                    continue
                text = ""
                if isinstance(action, (Arrive, ArriveExpect, CommitTo, CpAsyncArrive)):
                    to = "own" if isinstance(action, (ArriveExpect, CpAsyncArrive)) else action.to
                    if 0 in ranks_of(to, rank, pipeline.cluster):
                        text = _arrival(barrier, role, action)
                elif isinstance(action, TmaLoad):
                    ctas = ranks_of(action.to, rank, pipeline.cluster)
                    times = ctas.count(0) if action.signal == "own" else len(ctas) * (action.signal == 0)
                    size = (barrier.bytes if action.bytes is None else action.bytes) * times
                    what = (role.name, action.buffer, size)
                    if size and what not in seen:
                        seen.add(what)
                        landing[what] = landing.get(what, 0) + 1
                elif isinstance(action, StoreAsync):
                    what = (role.name, action.buffer, role.warps * action.bytes)
                    if 0 in ranks_of(action.to, rank, pipeline.cluster):
                        landing[what] = landing.get(what, 0) + 1
                elif isinstance(action, Wait) and role.name not in waiters:
                    waiters.append(role.name)
                if text and text not in seen:
                    seen.add(text)
                    arrivals[text] = arrivals.get(text, 0) + 1
    who = " + ".join(text + (f" in {count} CTAs" if count > 1 else "") for text, count in arrivals.items())
    first, *others = (barrier.count_of(rank) for rank in range(pipeline.cluster))
    apart = "".join([f" ({count} in CTA {rank})" for rank, count in enumerate(others, 1) if count != first])
    told = f"{_many(first, 'arrival')}{apart}: {who or 'nobody'}"
    if landing:
        each = [(f"{name} {buffer} {size}", count) for (name, buffer, size), count in landing.items()]
        terms = [text + f" * {count}" * (count > 1) for text, count in each]
        total = sum(size * count for (_, _, size), count in landing.items())
        return f"{barrier.name:<{width}} {told}; lands {total} = {' + '.join(terms)}"
    return f"{barrier.name:<{width}} {told}; waited for by {', '.join(waiters) or 'nobody'}"


def _arrival(barrier: Mbarrier, role: Role, action: Arrive | ArriveExpect | CommitTo | CpAsyncArrive) -> str:
    warps = 1 if action.by == "one" else role.warps
    if isinstance(action, CpAsyncArrive):
        times = f" {warps} warps" * (warps > 1)
        return f"{role.name}{times} of {WARP} lanes, when their cp.async have landed"
    times = f" {warps} warps" * (warps > 1) + f" of {WARP} lanes" * (action.by == "lanes")
    if isinstance(action, ArriveExpect):
        return f"{role.name}{times} expecting {barrier.bytes if action.bytes is None else action.bytes} bytes"
    return f"{role.name}{times}" + " (tcgen05.commit)" * isinstance(action, CommitTo)


def _in_rank(program: Program, rank: int) -> Iterator[Action]:
    """The actions that a CTA of this rank may perform, each place once."""
    for action in program:
        if isinstance(action, (ForK, ForTiles)):
            yield from _in_rank(action.body, rank)
        elif isinstance(action, If):
            if isinstance(action.condition, OnRank):
                yield from _in_rank(action.then if rank in action.condition.ranks else action.orelse, rank)
            else:
                yield from _in_rank(action.then, rank)
                yield from _in_rank(action.orelse, rank)
        else:
            yield action
