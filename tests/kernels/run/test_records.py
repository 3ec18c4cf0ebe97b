"""Bank counts and a timeline of derived plans, from `plan.run`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from layoutgemm.errors import PlanError
from layoutgemm.kernels import Sm80Plan, Sm90Config, Sm90Plan, Sm100Plan, TeachingPlan
from tests import needs

M, N, K = 72, 40, 136
A, B = (np.random.default_rng(i).integers(-3, 4, s).astype(np.float32) for i, s in enumerate(((M, K), (K, N))))
CONFIG = {Sm90Plan: {"config": Sm90Config((64, 64), consumers=1, loader="warp")}}


@needs.DSL
@needs.C_COMPILER
@pytest.mark.parametrize(
    ("plan", "role"),
    [
        (TeachingPlan, "loads by TMA + multiplies + stores"),
        (Sm80Plan, "loads by cp.async + multiplies + stores"),
        (Sm90Plan, "loads by TMA"),
        (Sm100Plan, "reads accumulators + stores"),
    ],
)
def test_a_plan_is_run_with_records(plan: Any, role: str) -> None:
    """With either the emulator runs it, and the result has both."""
    derived = plan.derive(M, N, K, **CONFIG.get(plan, {}))
    result = derived.run(A, B, banks=True, timeline=True)
    assert result.ran_on == "emulator" and np.array_equal(result.c, A @ B)
    (launch,) = result.emulation.launches
    rows = launch.timeline.rows
    assert role in {row.role for row in rows} and all(row.role for row in rows if row.warp is not None)
    assert not any("epilogue" in row.role or "idle" in row.role for row in rows)
    if plan is not TeachingPlan:  # its epilogue writes from registers
        assert sum(row.use.requests for row in launch.banks) > 0
    assert len(repr(result).splitlines()) <= 30 and len(repr(result)) < 2000


def test_records_are_the_emulators() -> None:
    plan = TeachingPlan.derive(M, N, K)
    for device in ("reference", "cuda"):
        with pytest.raises(PlanError, match="records of the emulator"):
            plan.run(A, B, device=device, timeline=True)
    assert plan.run(A, B, device="reference").emulation is None
