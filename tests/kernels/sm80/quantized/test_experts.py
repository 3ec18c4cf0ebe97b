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
from layoutgemm.kernels.run.hardware_model import unwritten
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
# Counts and the rows of each: none, all, one, and part of a tile more than one tile
MASKED = {"empty and wide groups": ((3, 0, 17, 20, 1), 20), "scale a column": ((0, 9, 33, 40), 40)}


def problem(
    form: str, masked: bool = False
) -> tuple[Sm80Plan, list[PackedWeights], np.ndarray, dict[str, Any], np.ndarray, np.ndarray]:
    """The plan, all packed weights, x, the offsets, the product in float64, its bound.

    The product is NaN where nothing is stored.
    """
    fmt, (n, k), offsets, config = FORMS[form]
    counts, each = MASKED[form]
    groups = [(e * each, e * each + count) for e, count in enumerate(counts)] if masked else list(pairwise(offsets))
    m, experts, rng = each * len(groups) if masked else offsets[-1], len(groups), np.random.default_rng(7)
    plan = Sm80Plan.derive(
        m, n, k, batch=experts, weights=fmt, experts=Ragged.of(experts, masked=masked), config=config,
        epilogue=fmt.epilogue(axis="n") or None,
    )  # fmt: skip
    packed = [pack(quantize(rng.standard_normal((n, k)), fmt)) for _ in range(experts)]
    x = np.asarray(plan.a.dtype.decode(plan.a.dtype.encode(rng.standard_normal((m, k)))), np.float32)
    want, size = np.full((m, n), np.nan), np.zeros((m, n))
    for weights, (start, end) in zip(packed, groups, strict=True):
        dense = unpack(weights).dense()
        wide = np.asarray(plan.a.dtype.decode(plan.a.dtype.encode(dense)) if fmt.group else dense, np.float64)
        want[start:end], size[start:end] = x[start:end] @ wide.T, np.abs(x[start:end]) @ np.abs(wide.T)
    bound = plan.c.dtype.unit_roundoff * np.abs(want) + 2.0**-18 * size
    given = {"counts": np.asarray(counts, np.int32)} if masked else {"offsets": np.asarray(offsets, np.int32)}
    return plan, packed, x, given, want, bound


def is_right(found: np.ndarray, want: np.ndarray, bound: np.ndarray, unwritten: float) -> bool:
    """True for sums within the bound, and elements that nothing wrote."""
    left = np.isnan(want)
    others = np.full(left.sum(), unwritten, found.dtype)
    return bool((np.abs(found - want) <= bound)[~left].all()) and np.array_equal(found[left], others, equal_nan=True)


@pytest.mark.parametrize("masked", [False, True])
def test_the_checks_hold_and_the_executor_is_right(masked: bool) -> None:
    plan, packed, x, given, want, bound = problem("empty and wide groups", masked)
    plan.check().require()
    found = plan.run(x, packed, given=given, device="reference").c
    assert is_right(found, want, bound, 0.0) and np.isnan(want).any() == masked
    said = "100 rows in 5 groups, their counts" if masked else "37 rows in 5 groups, their offsets"
    assert f"experts      5 weight matrices; {said} i32" in plan.explain()
    assert plan.explain().count("tile r is of group r // 2") == masked


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("form", ["scale a column", pytest.param("empty and wide groups", marks=pytest.mark.slow)])
def test_the_compiled_kernel_is_right_and_free_of_races(form: str, masked: bool) -> None:
    plan, packed, x, given, want, bound = problem(form, masked)
    found = plan.run(x, packed, given=given, device="emulator").c
    assert is_right(found, want, bound, float(plan.c.dtype.decode(unwritten(plan.c.dtype, (1,)))[0]))


WRONG: dict[str, Any] = {
    "a tile too few": ("row_tiles", lambda m, groups, height: m // height + groups - 1),
    "rows of the group before": (
        "rows_of_tile",
        lambda experts, offset, r, height, choose=None: (0, r * height, offset(1)),
    ),
    "masked rows of the group before": (
        "rows_of_tile",
        lambda experts, count, r, height, each: (0, r * height, count(0)),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_tiles_fail_their_check(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = problem("empty and wide groups", masked="masked" in what)[0]
    monkeypatch.setattr(experts_of, *WRONG[what])
    assert [check.name for check in experts_of.group_checks(plan) if not check] == ["groups"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no weights": ({"weights": None}, "experts without weights: they are groups of rows"),
    "room": ({"batch": 65}, "batch = 65: Ragged.of(groups) has room for them"),
    "ends": ({"experts": Ragged.of(3, ends=True)}, "groups of packed weights have offsets or counts, not ends"),
    "size": ({"experts": Ragged.of(3, masked=True)}, "m = 16 = 5 * 3 + 1: masked groups are of one size, 3 of them"),
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
