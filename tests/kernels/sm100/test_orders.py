"""Orders of tiles in Blackwell's kernel: of some tiles, too, where they have a formula."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.errors import PlanError
from layoutgemm.kernels import Sm100Config, Sm100Plan
from layoutgemm.kernels.orders import stored_elements
from layoutgemm.schedule import Linear, Rotated
from tests import needs

needs_dsl = needs.DSL


@pytest.mark.parametrize("device", ["reference", pytest.param("emulator", marks=[needs_dsl, pytest.mark.dsl])])
def test_the_tiles_of_a_triangle_are_stored_and_no_others(device: str) -> None:
    config = Sm100Config((128, 64), stages=2)
    plan = Sm100Plan.derive(140, 200, 72, b="bf16:col", c="f32", batch=2, config=config, order="lower")
    plan.check().require()
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (2, *shape)).astype(np.float32) for shape in ((140, 72), (72, 200)))
    out, stored = np.full((2, 140, 200), 7, np.float32), stored_elements(plan, {})
    assert stored is not None and not stored.all() and "6 of 8 tiles" in plan.explain()
    plan.run(a, b, device=device, out=out)
    assert np.array_equal(out, np.where(stored, a @ b, 7))


def test_orders_that_need_more_are_refused_by_name() -> None:
    with pytest.raises(PlanError, match="sm_100a's kernel stores no transposed tile"):
        Sm100Plan.derive(256, 256, 64, order="symmetric")
    with pytest.raises(PlanError, match="two parameters of the kernel are named lda"):
        Sm100Plan.derive(256, 256, 64, order=Rotated(Linear(), ranks=2, name="lda"))


@pytest.mark.parametrize("device", ["reference", pytest.param("emulator", marks=[needs_dsl, pytest.mark.dsl])])
@pytest.mark.parametrize("rows", [128, 256])
def test_an_order_reads_a_list_or_a_rank(rows: int, device: str) -> None:
    tiles = [(0, 2), (1, 1), (0, 0)]
    for order, given, batch in (("list", {"tiles": tiles}, 1), (Rotated(Linear("N"), ranks=2), {"rank": 1}, 2)):
        plan = Sm100Plan.derive(
            rows + 44, 70, 72, b="bf16:col", c="f32", batch=batch, config=Sm100Config((rows, 32), stages=2), order=order
        )
        plan.check().require()
        front, rng = (batch,) if batch > 1 else (), np.random.default_rng(0)
        a, b = (rng.integers(-3, 4, (*front, *shape)).astype(np.float32) for shape in ((rows + 44, 72), (72, 70)))
        out, stored = np.full((*front, rows + 44, 70), 7, np.float32), np.zeros((rows + 44, 70), bool)
        for row, column in tiles if order == "list" else np.ndindex(*plan.tiles):
            stored[row * rows : (row + 1) * rows, column * 32 : (column + 1) * 32] = True
        plan.run(a, b, device=device, out=out, given=given)
        assert np.array_equal(out, np.where(stored, a @ b, 7)) and plan.parameters[plan.words[0]] == "word"
