"""Packed weights of several experts by mma.sync: proven, executed, emulated, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Ragged, Sm80Config, Sm80Plan
from layoutgemm.kernels.epilogue.chain import RowReduce
from layoutgemm.kernels.quantized.formats import QuantizedFormat
from layoutgemm.kernels.quantized.packing import PackedWeights, pack, quantize, unpack
from layoutgemm.kernels.sm80 import groups as experts_of
from tests import needs

needs_dsl = needs.DSL
INT4 = QuantizedFormat("int4", 128)
# Format, out and in features, offsets, configuration
FORMS = {
    "empty and wide groups": (INT4, (72, 256), (0, 3, 3, 14, 20, 37), Sm80Config((16, 64), 128, 3, (1, 4))),
    "scale a column": (
        QuantizedFormat("int8"), (71, 100), (0, 0, 9, 40, 41), Sm80Config((32, 64), 64, 2, (2, 2), ahead=False,
                                                                        align=(8, 16, 2)),
    ),
}  # fmt: skip


def problem(form: str) -> tuple[Sm80Plan, list[PackedWeights], np.ndarray, dict[str, Any], np.ndarray, np.ndarray]:
    """The plan, all packed weights, x, the offsets, the product in float64, its bound."""
    fmt, (n, k), offsets, config = FORMS[form]
    m, experts, rng = offsets[-1], len(offsets) - 1, np.random.default_rng(7)
    plan = Sm80Plan.derive(
        m, n, k, batch=experts, weights=fmt, experts=Ragged.of(experts), config=config,
        epilogue=fmt.epilogue(axis="n") or None,
    )  # fmt: skip
    packed = [pack(quantize(rng.standard_normal((n, k)), fmt)) for _ in range(experts)]
    x = np.asarray(plan.a.dtype.decode(plan.a.dtype.encode(rng.standard_normal((m, k)))), np.float32)
    want, size = np.zeros((m, n)), np.zeros((m, n))
    for weights, (start, end) in zip(packed, pairwise(offsets), strict=True):
        dense = unpack(weights).dense()
        wide = np.asarray(plan.a.dtype.decode(plan.a.dtype.encode(dense)) if fmt.group else dense, np.float64)
        want[start:end], size[start:end] = x[start:end] @ wide.T, np.abs(x[start:end]) @ np.abs(wide.T)
    bound = plan.c.dtype.unit_roundoff * np.abs(want) + 2.0**-18 * size
    return plan, packed, x, {"offsets": np.asarray(offsets, np.int32)}, want, bound


def test_the_checks_hold_and_the_executor_is_right() -> None:
    plan, packed, x, given, want, bound = problem("empty and wide groups")
    plan.check().require()
    assert (np.abs(plan.run(x, packed, given=given, device="reference").c - want) <= bound).all()
    assert "experts      5 weight matrices; 37 rows in 5 groups" in plan.explain()


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", ["scale a column", pytest.param("empty and wide groups", marks=pytest.mark.slow)])
def test_the_compiled_kernel_is_right_and_free_of_races(form: str) -> None:
    plan, packed, x, given, want, bound = problem(form)
    assert (np.abs(plan.run(x, packed, given=given, device="emulator").c - want) <= bound).all()


WRONG: dict[str, Any] = {
    "a tile too few": ("row_tiles", lambda m, groups, height: m // height + groups - 1),
    "rows of the group before": (
        "rows_of_tile",
        lambda experts, offset, r, height, choose=None: (0, r * height, offset(1)),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_tiles_fail_their_check(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = problem("empty and wide groups")[0]
    monkeypatch.setattr(experts_of, *WRONG[what])
    assert [check.name for check in experts_of.group_checks(plan) if not check] == ["groups"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no weights": ({"weights": None}, "experts without weights: they are groups of rows"),
    "room": ({"batch": 65}, "batch = 65: Ragged.of(groups) has room for them, by offsets"),
    "counts": ({"experts": Ragged.of(3, masked=True)}, "Ragged.of(groups) has room for them, by offsets"),
    "parts of K": (
        {"config": Sm80Config((16, 64), 128, split=2, warps=(1, 4))}, "split = 2: a product of several experts takes 1"
    ),
    "reduction": ({"epilogue": INT4.epilogue(RowReduce())}, "a tile reaches into the next group, and would write"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_the_obstacle(what: str) -> None:
    change, said = REFUSED[what]
    with pytest.raises(PlanError) as refused:
        Sm80Plan.derive(16, 128, 256, **{"batch": 3, "weights": INT4, "experts": Ragged.of(3), **change})
    assert said in str(refused.value)


def test_operands_of_another_plan_are_refused() -> None:
    plan, packed, x, given, _, _ = problem("empty and wide groups")
    with pytest.raises(OperandError, match="b is 4 PackedWeights: the plan takes a list of 5"):
        plan.run(x, packed[1:], given=given)
    with pytest.raises(OperandError, match="offsets is missing: where the groups of rows begin and end, 6 numbers"):
        plan.run(x, packed)
