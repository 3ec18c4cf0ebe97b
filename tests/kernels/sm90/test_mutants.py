"""The production kernel's mutants: each is caught by a few shapes, or provably changes nothing.

There are four forms, on small tiles. Three have few workers, so that each block computes several tiles: self-loading, a
loader warpgroup in a multicast cluster, and pingpong. The fourth is split-K by two, with multicast clusters.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.emulator.mutation.api import mutate
from layoutgemm.emulator.mutation.mutants import alterations, deletions, fields
from layoutgemm.emulator.mutation.run import EARLY, LaunchCase, sample
from layoutgemm.emulator.mutation.survivors import Explainer
from layoutgemm.emulator.ptx.parser import PtxKernel
from layoutgemm.kernels.run.emulated import linked
from layoutgemm.kernels.sm90.plan import Sm90Config, Sm90Plan
from tests import needs
from tests.kernels.launch_cases import integers, launch_case, unproven

pytestmark = [
    needs.DSL,
    needs.C_COMPILER,
]
FORMS = {
    "self": Sm90Config((128, 128), stages=3),
    "cluster": Sm90Config((128, 64), stages=3, loader="warpgroup", cluster=(2, 1)),
    "pingpong": Sm90Config((64, 64), stages=3, schedule="pingpong", loader="warpgroup"),
    "parts": Sm90Config(
        (64, 64), stages=2, consumers=1, loader="warp", one_tile_per_cluster=True, split=2, cluster=(1, 2)
    ),
}
# k tiles: fewer than the stages, as many, more; edges along M, N and K; more tiles than blocks. The last of each is how
# many clusters there are: of several, one begins at another row and one at another column than 0.
SIZES = ((192, 136, 320, 1), (128, 64, 64, 1), (72, 200, 136, 1), (192, 136, 64, 3))
ORDERS = (Policy(fences="writers"), Policy(fences="writers", waits="reluctant"), EARLY)


def case(plan: Sm90Plan, m: int, n: int, k: int, workers: int, policy: Policy) -> tuple[PtxKernel, LaunchCase]:
    bits, want = integers(m, n, k, plan)
    rest = (m, n, k, 1, k, k, n, 0, 0, 0, workers)
    return launch_case(
        linked(plan), f"{m}x{n}x{k} by {workers}", [*bits, np.full_like(want, 0xFFFF)], rest, want, policy
    )


@lru_cache
def everything(form: str) -> tuple[PtxKernel, tuple[LaunchCase, ...]]:
    plan = Sm90Plan.derive(*SIZES[0][:3], b="bf16:col", config=FORMS[form])
    found = [case(plan, *size, policy) for policy in ORDERS for size in SIZES]
    return found[0][0], tuple(one for _, one in found)


@lru_cache
def explainer(form: str) -> Explainer:
    """It has run the kernel over all cases: in the first order with a trace."""
    kernel, cases = everything(form)
    return Explainer(kernel, cases[: len(SIZES)], cases[len(SIZES) :])


@pytest.mark.parametrize("form", FORMS)
def test_every_instruction_is_reached(form: str) -> None:
    judge = explainer(form)
    assert [str(ins) for ins in judge.kernel.instructions if not judge.executed[ins.pc]] == []


@pytest.mark.parametrize("form", FORMS)
def test_a_sample_of_mutants_is_caught_or_changes_nothing(form: str) -> None:
    """A few of each kind; the longer run has all of them."""
    judge = explainer(form)
    rows = [judge.row(mutant) for mutant in sample([*deletions(judge.kernel), *fields(judge.kernel)], 10)]
    assert unproven(rows) == []


def test_coordinates_of_tensor_loads_and_stores_are_changed() -> None:
    changed = [mutant for mutant in fields(explainer("self").kernel) if mutant.kind == "coordinate"]
    assert sum("2d.shared::cta.global" in mutant.place for mutant in changed) >= 12
    assert any("2d.global.shared::cta" in mutant.place for mutant in changed)


def test_mutants_of_a_compiled_function() -> None:
    m, n, k, _ = SIZES[1]
    a, b, c = (np.zeros((rows, columns), np.uint16) for rows, columns in ((m, k), (n, k), (m, n)))
    a += 0x3F80  # ones
    b += 0x3F80
    plan = Sm90Plan.derive(m, n, k, b="bf16:col", config=FORMS["pingpong"])
    found = mutate(linked(plan), a, b, c, m, n, k, 1, k, k, n, 0, 0, 0, 1, count=12)
    assert not c.any() and len(found.rows) == 12
    assert sum(row.caught for row in found.rows) >= 6 and all(row.caught or row.reason for row in found.rows)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_all_mutants_are_caught_or_change_nothing(form: str) -> None:
    judge = explainer(form)
    launch = everything(form)[1][0].launch()
    mutants = [*deletions(judge.kernel), *fields(judge.kernel), *alterations(judge.kernel, launch)]
    rows = [judge.row(mutant) for mutant in mutants]
    assert unproven(rows) == []
    assert sum(not row.caught for row in rows) < len(rows) / 5
