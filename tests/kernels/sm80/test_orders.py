"""Orders of tiles in the mma.sync kernel: of some tiles, too, where they have a formula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Sm80Config, Sm80Plan
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, Scale
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


LIST = [(2, 1), (0, 0), (1, 3), (0, 2)]
FORMS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "a list of the order's own": ("hilbert", {}, {}),
    "a launch's list, persistent": ("list", {"tiles": np.array(LIST)}, {"config": replace(SMALL, persistent=True)}),
    "a rank, a batch": (Rotated(Linear("N"), ranks=2), {"rank": 1}, {"batch": 2}),
    "a rank, persistent": (Rotated(Linear(), ranks=3), {"rank": 2}, {"config": replace(SMALL, persistent=True)}),
    "a launch's list, by tensor copies": (
        "list", {"tiles": np.array(LIST)}, {"config": replace(SMALL, loads="tma"), "arch": "sm_120a"}
    ),
}  # fmt: skip


def ordered(form: str, device: str, arch: str | None = None) -> None:
    """Run the form: tiles of its list hold the product, the others what was there."""
    order, given, more = FORMS[form]
    more = {"config": SMALL, **more, **({} if arch is None else {"arch": arch})}
    plan = Sm80Plan.derive(136, 100, 72, c="f32", order=order, **more)
    plan.check().require()
    front, rng = (plan.batch,) if plan.batch > 1 else (), np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (*front, *shape)).astype(np.float32) for shape in ((136, 72), (72, 100)))
    out, stored = np.full((*front, 136, 100), 7, np.float32), np.zeros((136, 100), bool)
    for row, column in LIST if order == "list" else np.ndindex(*plan.tiles):
        stored[row * 64 : (row + 1) * 64, column * 32 : (column + 1) * 32] = True
    plan.run(a, b, device=device, out=out, given=given)
    assert np.array_equal(out, np.where(stored, a @ b, 7)) and len(plan.parameters) == 14 + 16


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
def test_an_order_reads_a_list_or_numbers(form: str, device: str) -> None:
    ordered(form, device)


def test_words_of_an_order_are_checked() -> None:
    a, b = np.ones((128, 64), np.float32), np.ones((64, 128), np.float32)
    listed = Sm80Plan.derive(128, 128, 64, config=SMALL, order="list")
    rotated = Sm80Plan.derive(128, 128, 64, config=SMALL, order=Rotated(Linear("N"), ranks=2))
    for plan, given, said in (
        (listed, {}, "tiles is missing"),
        (listed, {"tiles": [(0, 0), (0, 0)]}, "tile"),
        (listed, {"tiles": [(0, 0)], "rank": 1}, "given = rank: the order reads tiles"),
        (rotated, {"rank": 2}, "rank = 2: the order is of 2 ranks"),
        (rotated, {}, "rank is an integer from 0 on"),
    ):
        with pytest.raises(OperandError, match=said):
            plan.run(a, b, device="reference", given=given)
    both = Sm80Plan.derive(128, 128, 64, config=SMALL, order="list", epilogue=Epilogue(Scale()))
    assert both.check() and both.words == ("alpha", "tiles", "tile_count")
    with pytest.raises(OperandError, match="tiles is missing"):
        both.run(a, b, device="emulator", given={"alpha": 1.0})


@needs_dsl
@pytest.mark.dsl
def test_an_epilogue_follows_an_order_that_reads_a_list() -> None:
    plan = Sm80Plan.derive(128, 128, 64, config=SMALL, c="f32", order="list", epilogue=Epilogue(Scale()))
    a, b = np.ones((128, 64), np.float32), np.ones((64, 128), np.float32)
    found = plan.run(a, b, device="emulator", given={"alpha": 2.0, "tiles": [(0, 0)]}).c
    (tile_m, tile_n), right = SMALL.tile, np.zeros((128, 128), np.float32)
    right[:tile_m, :tile_n] = 128
    assert np.array_equal(found, right)


def test_orders_that_need_more_are_refused_by_name() -> None:
    for order, more, said in (
        ("symmetric", {}, "kernel of mma.sync stores no transposed tile"),
        (Rotated(Linear("N"), ranks=2, name="lda"), {}, "two parameters of the kernel are named lda"),
        ("list", {"epilogue": Epilogue(Bias(name="tiles"))}, "two parameters of the kernel are named tiles"),
    ):
        with pytest.raises(PlanError, match=said):
            Sm80Plan.derive(128, 128, 64, config=SMALL, order=order, **more)
