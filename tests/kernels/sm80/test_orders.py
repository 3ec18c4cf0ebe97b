"""Orders of tiles in the mma.sync kernel: of some tiles, too, where they have a formula."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.errors import PlanError
from layoutgemm.kernels import Sm80Config, Sm80Plan
from layoutgemm.kernels.orders import stored_elements
from layoutgemm.schedule import Linear, Rotated
from tests import needs

SMALL = Sm80Config((64, 32), warps=(2, 1), stages=3)
needs_dsl = needs.DSL
DEVICES = ["reference", pytest.param("emulator", marks=[needs_dsl, pytest.mark.dsl])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("persistent", [False, True])
def test_the_tiles_of_a_triangle_are_stored_and_no_others(persistent: bool, device: str) -> None:
    config = Sm80Config((64, 32), warps=(2, 1), stages=3, persistent=persistent)
    plan = Sm80Plan.derive(136, 100, 72, c="f32", config=config, order="lower")
    plan.check().require()
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((136, 72), (72, 100)))
    out, stored = np.full((136, 100), 7, np.float32), stored_elements(plan, {})
    assert stored is not None and not stored.all() and "of 12 tiles" in plan.explain()
    plan.run(a, b, device=device, out=out)
    assert np.array_equal(out, np.where(stored, a @ b, 7))


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("hilbert", "it reads tiles, tile_count, and sm_80's kernel has no parameter"),
        (Rotated(Linear("N"), ranks=2), "it reads rank"),
        ("symmetric", "sm_80's kernel stores no transposed tile"),
    ],
)
def test_orders_that_need_more_are_refused_by_name(order: object, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Sm80Plan.derive(128, 128, 64, config=SMALL, order=order)
