"""The first kernel's own mutants: whatever synchronises it cannot be left out unseen, and every instruction is reached.

The PTX is what the compiler made, the launches come from its host function, and inputs are small integers, of which
every sum is exact. One run in the emulator's order that lands everything late is all that a mutant gets.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import pytest

from layoutgemm.emulator.mutation.mutants import Mutant, deletions, edited, fields
from layoutgemm.emulator.mutation.run import LaunchCase, Survey, sample, verdict
from layoutgemm.emulator.mutation.survivors import Explainer
from layoutgemm.emulator.ptx.parser import PtxKernel
from layoutgemm.kernels import TeachingPlan
from layoutgemm.kernels.run.emulated import linked
from tests import needs
from tests.kernels.launch_cases import launch_case

pytestmark = [
    needs.DSL,
    needs.C_COMPILER,
]
# One k tile, fewer than the stages, as many, more; edges along M, N and K.
SIZES = ((64, 64, 64), (70, 66, 100), (64, 130, 192), (33, 64, 328))


def case(m: int, n: int, k: int) -> tuple[PtxKernel, LaunchCase]:
    plan = TeachingPlan.derive(m, n, k, a="bf16", b="bf16:col", c="f32")
    rng = np.random.default_rng(m + n + k)
    pitch = -(-k // 8) * 8
    a, b = (rng.integers(-3, 4, size=(rows, pitch)).astype(np.float32) for rows in (m, n))
    want = plan.c.dtype.encode(a[:, :k] @ b[:, :k].T)
    matrices = plan.a.dtype.encode(a), plan.b.dtype.encode(b), np.full_like(want, 0xFFFFFFFF)
    return launch_case(linked(plan), f"{m}x{n}x{k}", matrices, (m, n, k, pitch, pitch, n), want)


@lru_cache
def everything() -> tuple[PtxKernel, tuple[LaunchCase, ...]]:
    found = [case(*size) for size in SIZES]
    return found[0][0], tuple(one for _, one in found)


@lru_cache
def explainer() -> Explainer:
    """It has run the kernel over all cases, with a trace."""
    return Explainer(*everything())


def survey(mutants: Iterable[Mutant]) -> Survey:
    return Survey(tuple([explainer().row(mutant) for mutant in mutants]))


def test_every_instruction_is_reached() -> None:
    judge = explainer()
    assert [str(ins) for ins in judge.kernel.instructions if not judge.executed[ins.pc]] == []


def test_every_synchronisation_is_needed() -> None:
    """Every deletion is caught but those of the two fences after the barriers' initialisation: either of them shows the
    barriers to the copy engine, so that one may go. Without both it is a race."""
    kernel, cases = everything()
    found = survey(deletions(kernel))
    fences = [ins for ins in kernel.instructions if ins.words[0] == "fence"]
    assert len(found.rows) >= 12 and len(fences) == 2
    assert len(found.survivors) == 2, found.table()
    assert {mutant.edits[0][0] for mutant in found.survivors} == {ins.pc for ins in fences}
    assert {row.reason.split(":")[0] for row in found.rows if not row.caught} == {"same"}, found.table()
    one, other = found.survivors
    assert explainer().partner(one, found.survivors) is other
    wrong, _ = verdict(edited(kernel, {ins.pc: () for ins in fences}), cases[0])
    assert wrong.startswith("race"), wrong


@pytest.mark.parametrize("count", [35, pytest.param(10**6, marks=pytest.mark.slow)], ids=("some", "all"))
def test_wrong_fields_are_seen(count: int) -> None:
    """All fields but the leading offsets, which hardware ignores for an operand within one span."""
    every = list(fields(everything()[0]))
    unread = [mutant for mutant in every if "leading offset" in mutant.change]
    assert len(every) > 150 and len(unread) == 16
    read = [mutant for mutant in every if mutant not in unread]
    found = survey(sample(read, min(count, len(read))))
    left = [row for row in found.rows if not row.caught]  # a coordinate of 0 where every case has 0: the first k tile's
    assert all(row.mutant.kind == "coordinate" and row.reason.startswith("idle:") for row in left), found.table()
    found = survey(unread[::3])
    assert len(found.survivors) == 6 and {row.reason.split(":")[0] for row in found.rows} == {"same"}
