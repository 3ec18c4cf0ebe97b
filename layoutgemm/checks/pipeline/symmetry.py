"""Interchangeable warps and CTAs of a pipeline. A proof runs a few of them, each for all that are like it.

A symmetry is a permutation of warps, or of CTAs, that maps the pipeline onto itself. Two warps of a CTA may be
exchanged where they run the same code. Two rows or columns of a cluster may be exchanged where their code, arrive
counts and multicast targets agree. `checks.pipeline.prove` shows that all executions have one partial order T of
events. So a symmetry maps T onto itself.

The machine runs one warp of each kind, and a second one for all others of its kind. The second one's arrivals, bytes
and threads at named barriers count once for each warp. CTAs alike: along each direction of the cluster the first one is
run, and the second one for all others. The events that are run are a part of T, and so is their order. For CTAs that
needs a condition: an operation reaches a CTA that is run only if it does in the cluster (`_closed`).

Suppose that no check fails in the events that are run. Then none fails in T, for these reasons.

- A check asks that one warp's step know of one other warp's record, in the memory or at a barrier of one CTA. A
  symmetry maps the two warps and the CTA to ones that are run, where the same was asked. This needs that no check is
  about three CTAs. It would be, if operations of two CTAs conflicted in the memory of a third (`_far_writes_apart`).
- What is known in the events that are run is known in T: their order is a part of T's.
- Arrivals and bytes of a phase add up as in T. If warps of a kind arrived in different phases, the warp that stands for
  them would arrive more often than the phase's count has left, which fails.

A kind that writes nothing to shared memory needs one warp (`_writes`): two of its warps never conflict. The other
checks ask that the end of a phase or of a CTA come after a step of each warp. In T that follows from the warp's own
later steps, as it does for the warp that is run.

Whatever fails is run again with every warp and CTA, so that its story names them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from .actions import OWN, Action, CommitTo, CpAsync, CpAsyncArrive, Mma, StoreAsync, Targets, TmaLoad, Write
from .model import PRIVATE, Mbarrier, Pipeline, ranks_of
from .program import Instruction, code_of

Rank = int
Code = tuple[Instruction, ...]


@dataclass(frozen=True)
class SimulatedWarps:
    """The warps and CTAs that are run.

    ctas   of each CTA that is run, the ranks that it stands for: its own rank comes first
    warps  of each role, the warps that are run, with the number of warps that each one stands for
    """

    ctas: tuple[tuple[Rank, ...], ...]
    warps: dict[str, tuple[tuple[int, int], ...]]

    @property
    def whole(self) -> bool:
        """True if every warp and CTA is run."""
        return all(len(ranks) == 1 for ranks in self.ctas) and all(
            count == 1 for warps in self.warps.values() for _, count in warps
        )

    def reached(self, to: Targets, cta: int) -> tuple[tuple[int, int], ...]:
        """The CTAs that an operation reaches, by number, and how often it counts there.

        Numbers are places in `ctas`. The operation counts once for each rank that its CTA stands for and that reaches
        the CTA.
        """
        size = sum(map(len, self.ctas))
        if size == len(self.ctas):
            return tuple((rank, 1) for rank in ranks_of(to, cta, size))
        reached = [rank for source in self.ctas[cta] for rank in ranks_of(to, source, size)]
        own = {ranks[0]: number for number, ranks in enumerate(self.ctas)}
        order = dict.fromkeys(own[rank] for rank in ranks_of(to, self.ctas[cta][0], size) if rank in own)
        return tuple((number, reached.count(self.ctas[number][0])) for number in order)


def everyone(pipeline: Pipeline) -> SimulatedWarps:
    """The cast in which each warp of each CTA is run."""
    warps = {role.name: tuple((warp, 1) for warp in range(role.warps)) for role in pipeline.roles}
    return SimulatedWarps(tuple((rank,) for rank in range(pipeline.cluster)), warps)


def fewest(pipeline: Pipeline) -> SimulatedWarps:
    """The cast that runs as few warps and CTAs as a proof needs.

    >>> from layoutgemm.checks import cluster_ring
    >>> cast = fewest(cluster_ring(2, 64, 64, (4, 1)))
    >>> cast.ctas, cast.warps["producer"], cast.warps["math"]
    (((0,), (1, 2, 3)), ((0, 1),), ((0, 4),))
    """
    return SimulatedWarps(_ctas(pipeline), _warps(pipeline))


def _warps(pipeline: Pipeline) -> dict[str, tuple[tuple[int, int], ...]]:
    """The warps to run of each role: warps are alike where their code is.

    Warps of roles that read a buffer in turn are exchanged together.
    """
    shared = {buffer.name for buffer in pipeline.buffers if buffer.space not in PRIVATE}
    found = {}
    for role in pipeline.roles:
        turns = [names for b in pipeline.buffers for names in b.turns if role.name in names]
        linked = {name for names in turns for name in names} | {role.name}
        roles = [other for other in pipeline.roles if other.name in linked]
        kinds: dict[tuple[Code, ...], list[int]] = {}
        for warp in range(role.warps):
            kind = tuple(code_of(other, cta, warp) for other in roles for cta in range(pipeline.cluster))
            kinds.setdefault(kind, []).append(warp)
        run: list[tuple[int, int]] = []
        for kind, alike in kinds.items():
            first = int(any(_writes(i.action, shared) for code in kind for i in code))
            run += [(warp, 1) for warp in alike[:first]]
            run += [(warp, len(alike) - first) for warp in alike[first : first + 1]]
        found[role.name] = tuple(sorted(run))
    return found


def _writes(action: Action | None, shared: set[str]) -> bool:
    """True if an action writes to a buffer that warps share."""
    writes = (CpAsync, CpAsyncArrive, StoreAsync, TmaLoad, Write)
    if isinstance(action, writes):
        return action.buffer in shared
    return isinstance(action, Mma) and action.into in shared


def _ctas(pipeline: Pipeline) -> tuple[tuple[Rank, ...], ...]:
    """The fewest CTAs over all ways to see the cluster as a box of ranks."""
    size = pipeline.cluster
    whole = tuple((rank,) for rank in range(size))
    codes = [
        [code_of(role, rank, warp) for role in pipeline.roles for warp in range(role.warps)] for rank in range(size)
    ]
    actions = list({id(i.action): i.action for code in codes for some in code for i in some if i.action}.values())
    if size < 3 or not _far_writes_apart(actions):
        return whole
    targets = [to for act in actions for to in [getattr(act, "to", OWN)] if to != OWN]
    targets = list(dict.fromkeys(targets))
    best: tuple[tuple[Rank, ...], ...] = whole
    for extents in _boxes(size):
        ctas = _folded(pipeline, extents, codes, targets)
        if len(ctas) < len(best) and all(_closed(to, ctas, size) for to in targets):
            best = ctas
    return best


def _boxes(size: int) -> Iterator[tuple[int, int, int]]:
    """All (a, b, c) with a product of `size`: rank = i + a * (j + b * l)."""
    for a in range(1, size + 1):
        for b in range(1, size // a + 1):
            if size % (a * b) == 0:
                yield a, b, size // (a * b)


def _folded(
    pipeline: Pipeline,
    extents: tuple[int, int, int],
    codes: list[list[Code]],
    targets: list[Targets],
) -> tuple[tuple[Rank, ...], ...]:
    """The CTAs to run in a box of ranks: along each symmetric direction the first, and the second for all others."""
    steps = (1, extents[0], extents[0] * extents[1])
    along: list[list[tuple[int, ...]]] = []
    for extent, step in zip(extents, steps):
        swaps = (_swapped(pipeline.cluster, extent, step, first) for first in range(extent - 1))
        if extent > 2 and all(_is_symmetry(pipeline, swap, codes, targets) for swap in swaps):
            along.append([(0,), (*range(1, extent),)])
        else:
            along.append([(i,) for i in range(extent)])
    return tuple(
        tuple(sum(i * step for i, step in zip(place, steps)) for place in product(*places))
        for places in product(*along)
    )


def _swapped(size: int, extent: int, step: int, first: int) -> tuple[Rank, ...]:
    """[rank] -> rank, where two neighbours along one direction are exchanged."""
    turned = {first: step, first + 1: -step}
    return tuple(rank + turned.get(rank // step % extent, 0) for rank in range(size))


def _is_symmetry(pipeline: Pipeline, swap: tuple[Rank, ...], codes: list[list[Code]], targets: list[Targets]) -> bool:
    """True if exchanged CTAs have the same code and arrive counts, and reach exchanged CTAs."""
    size, counts = len(swap), [b for b in pipeline.barriers if isinstance(b, Mbarrier)]
    return all(
        codes[rank] == codes[swap[rank]]
        and all(barrier.count_of(rank) == barrier.count_of(swap[rank]) for barrier in counts)
        and all(
            {swap[r] for r in ranks_of(to, rank, size)} == set(ranks_of(to, swap[rank], size)) for to in targets
        )
        for rank in range(size)
    )  # fmt: skip


def _closed(to: Targets, ctas: tuple[tuple[Rank, ...], ...], size: int) -> bool:
    """True if CTAs that are run reach each other as they do in the cluster.

    A CTA that stands for others must itself reach each CTA that is run and that they reach.
    """
    run = {ranks[0] for ranks in ctas}
    reach = {rank: run & set(ranks_of(to, rank, size)) for rank in range(size)}
    return all(reach[rank] <= reach[ranks[0]] for ranks in ctas for rank in ranks)


def _far_writes_apart(actions: list[Action]) -> bool:
    """True if no two CTAs' operations conflict in the memory of a third CTA.

    An operation may write to another CTA's memory, each CTA its own share, and has to signal in that CTA.
    """
    for act in actions:
        if isinstance(act, Mma) and act.ctas != OWN:
            return False
        if isinstance(act, TmaLoad) and (act.signal != OWN or (act.to != OWN and act.part != "rank")):
            return False
        if isinstance(act, CommitTo) and act.publishes and act.to != OWN:
            return False
    return True
