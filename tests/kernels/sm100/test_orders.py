"""Orders of tiles in Blackwell's kernel: of some tiles, too, where they have a formula."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.errors import PlanError
from layoutgemm.kernels import Sm100Config, Sm100Plan
from layoutgemm.kernels.orders import stored_elements
from tests import needs

needs_dsl = needs.DSL


@pytest.mark.parametrize("device", ["reference", pytest.param("emulator", marks=[needs_dsl, pytest.mark.dsl])])
def test_the_tiles_of_a_triangle_are_stored_and_no_others(device: str) -> None:
    config = Sm100Config((128, 64), stages=2)
    plan = Sm100Plan.derive(300, 200, 72, b="bf16:col", c="f32", batch=2, config=config, order="lower")
    plan.check().require()
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (2, *shape)).astype(np.float32) for shape in ((300, 72), (72, 200)))
    out, stored = np.full((2, 300, 200), 7, np.float32), stored_elements(plan, {})
    assert stored is not None and not stored.all() and "10 of 12 tiles" in plan.explain()
    plan.run(a, b, device=device, out=out)
    assert np.array_equal(out, np.where(stored, a @ b, 7))


def test_orders_that_need_more_are_refused_by_name() -> None:
    for order, said in (("hilbert", "it reads tiles"), ("symmetric", "sm_100a's kernel stores no transposed tile")):
        with pytest.raises(PlanError, match=said):
            Sm100Plan.derive(256, 256, 64, order=order)
