"""The Blackwell kernel's mutants: each is caught by a few shapes, or provably changes nothing.

By one block and by a pair, on small tiles with one worker, so that tensor memory's accumulators are used again.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.emulator.mutation.mutants import alterations, deletions, fields
from layoutgemm.emulator.mutation.run import EARLY, LaunchCase, sample
from layoutgemm.emulator.mutation.survivors import Explainer
from layoutgemm.emulator.ptx.parser import PtxKernel
from layoutgemm.kernels.sm100.plan import Sm100Config, Sm100Plan
from tests import needs
from tests.kernels.sm90.test_mutants import case, unproven

pytestmark = [
    needs.DSL,
    needs.C_COMPILER,
]
FORMS = {"one block": Sm100Config((128, 64), stages=3), "a pair": Sm100Config((256, 64), stages=3)}
# k tiles: fewer than the stages, as many, more; edges along M, N and K; more tiles than accumulators. The last of each
# is how many clusters there are.
SIZES = ((300, 136, 264, 1), (128, 64, 64, 1), (72, 200, 136, 1))
ORDERS = tuple(Policy(tensor_strict=True, fences="writers", waits=waits) for waits in ("prompt", "reluctant"))
ORDERS += (replace(EARLY, tensor_strict=True),)


@lru_cache
def everything(form: str) -> tuple[PtxKernel, tuple[LaunchCase, ...]]:
    plan = Sm100Plan.derive(*SIZES[0][:3], b="bf16:col", config=FORMS[form])
    found = [case(plan, *size, policy) for policy in ORDERS for size in SIZES]
    return found[0][0], tuple(one for _, one in found)


@lru_cache
def explainer(form: str) -> Explainer:
    kernel, cases = everything(form)
    return Explainer(kernel, cases[: len(SIZES)], cases[len(SIZES) :])


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_instruction_is_reached(form: str) -> None:
    judge = explainer(form)
    assert [str(ins) for ins in judge.kernel.instructions if not judge.executed[ins.pc]] == []


def test_a_sample_of_mutants_is_caught_or_changes_nothing() -> None:
    judge = explainer("a pair")
    rows = [judge.row(mutant) for mutant in sample([*deletions(judge.kernel), *fields(judge.kernel)], 8)]
    assert unproven(rows) == []


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_all_mutants_are_caught_or_change_nothing(form: str) -> None:
    judge = explainer(form)
    launch = everything(form)[1][0].launch()
    mutants = [*deletions(judge.kernel), *fields(judge.kernel), *alterations(judge.kernel, launch)]
    rows = [judge.row(mutant) for mutant in mutants]
    print(f"\n{form}: {len(rows)} mutants, {sum(row.caught for row in rows)} caught, the others change nothing")
    assert unproven(rows) == []
    assert sum(not row.caught for row in rows) < len(rows) / 5
