"""The prover against a search through all interleavings: one verdict on hundreds of small pipelines, most broken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from layoutgemm.checks import Interleaving, Mbarrier, Pipeline, deletions, multistage, ring, self_loading
from layoutgemm.checks.pipeline.actions import Advance, ForK, If, Program, Wait, WaitGroup
from tests.checks.pipeline.interleavings import broken

BASES = [
    ring(1, 64, warps=1),
    ring(2, 64, warps=1),
    ring(1, 64, warps=2),
    ring(2, 64, warps=1, lag=1),
    self_loading(1, 64, warps=2),
    self_loading(2, 64, warps=2),
    multistage(1, warps=2),
    multistage(2, warps=2),
    multistage(3, warps=2),
]

# What the search does not look at: initialisation, proxies, and what is left when all have exited.
BEYOND = ("init", "fence", "exit")
# The prover asks that every arrival belong to a certain phase, even where no warp waits for the barrier again.
STRICTER = {"ring of 2: math swap 0 of If: arrival"}


def changes(program: Program, where: str = "") -> Iterator[tuple[str, Program]]:
    """Mutants: two neighbours exchanged, a parity or flip turned over, one more group left pending."""
    for i, x in enumerate(program):
        head, tail = program[:i], program[i + 1 :]
        if tail and x != tail[0]:
            yield f"swap {i}{where}", (*head, tail[0], x, *tail[1:])
        if isinstance(x, Wait):
            yield f"other parity {i}{where}", (*head, replace(x, flip=not x.flip), *tail)
        if isinstance(x, Advance):
            yield f"no flip {i}{where}", (*head, replace(x, flip=False), *tail)
        if isinstance(x, WaitGroup):
            yield f"one more pending {i}{where}", (*head, replace(x, pending=x.pending + 1), *tail)
        if isinstance(x, ForK):
            for name, body in changes(x.body, " of ForK"):
                yield name, (*head, replace(x, body=body), *tail)
        if isinstance(x, If):
            for name, then in changes(x.then, " of If"):
                yield name, (*head, replace(x, then=then), *tail)


def mutants(pipeline: Pipeline) -> Iterator[tuple[str, Pipeline]]:
    yield "as it is", pipeline
    yield from deletions(pipeline)
    for role in pipeline.roles:
        for name, program in changes(role.program):
            yield f"{role.name} {name}", pipeline.with_program(role.name, program)
    for i, barrier in enumerate(pipeline.barriers):
        if isinstance(barrier, Mbarrier):
            for count in (barrier.count_of(0) - 1, barrier.count_of(0) + 1):
                if count:
                    other = (*pipeline.barriers[:i], replace(barrier, count=count), *pipeline.barriers[i + 1 :])
                    yield f"{barrier.name} counts {count}", replace(pipeline, barriers=other)


@pytest.mark.parametrize("pipeline", BASES, ids=[f"{b.name}, {b.roles[-1].warps} warps" for b in BASES])
def test_same_verdict(pipeline: Pipeline) -> None:
    """Proven exactly when no interleaving goes wrong, for K of 0 to twice the ring plus 1."""
    refuted = 0
    for name, mutant in mutants(pipeline):
        found = mutant.prove()
        wrong = next(filter(None, (broken(mutant, k) for k in range(2 * pipeline.buffers[0].stages + 2))), None)
        if isinstance(found, Interleaving):
            refuted += 1
            case = f"{pipeline.name}: {name}: {found.kind}"
            assert wrong or found.kind in BEYOND or case in STRICTER, f"{case}, yet no interleaving goes wrong\n{found}"
        else:
            assert wrong is None, f"{pipeline.name}: {name} was proven, and an interleaving has: {wrong}"
    assert refuted >= 5


def test_the_search_sees_what_is_wrong() -> None:
    loop = ring(1, 64, warps=1)
    verdicts = {name: broken(mutant, 3) for name, mutant in deletions(loop)}
    assert verdicts["producer: Wait('empty', 'load', flip=True, by='one')"] in ("race", "overflow")
    assert verdicts["math: Wait('full', 'read')"] in ("race", "data")
    assert verdicts["math: Arrive('empty', 'read')"] == "deadlock"
