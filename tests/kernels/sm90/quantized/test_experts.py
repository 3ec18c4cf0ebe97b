"""Packed weights of several experts in one launch: proven, executed, emulated; operators and refusals."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import RowReduce
from layoutgemm.kernels.quantized.formats import QuantizedFormat
from layoutgemm.kernels.quantized.packing import PackedWeights, pack, quantize, unpack
from layoutgemm.kernels.ragged import Ragged
from layoutgemm.kernels.run.hardware_model import unwritten
from layoutgemm.kernels.sm90.quantized import experts as experts_of
from tests import needs

needs_dsl = needs.DSL
INT4 = QuantizedFormat("int4", 128)
# Format, activations, out and in features, offsets, configuration
FORMS = {
    "empty and wide groups": (
        INT4, "bf16", (136, 256), (0, 3, 3, 14, 20, 21),
        Sm90Config((128, 8), consumers=2, loader="warp", store="direct", stages=4),
    ),
    "scale a column": (
        QuantizedFormat("e4m3"), "f16", (72, 100), (0, 9, 9, 11),
        Sm90Config((64, 8), consumers=1, store="direct", stages=3),
    ),
}  # fmt: skip
# Counts and the columns of each: none, all, one, a part of a tile more than one tile
MASKED = {"empty and wide groups": ((3, 0, 11, 10, 1), 11), "scale a column": ((9, 0, 4), 9)}


def groups_of(form: str, masked: bool) -> list[tuple[int, int]]:
    """(first column, end) of each group."""
    if not masked:
        return list(pairwise(FORMS[form][3]))
    counts, each = MASKED[form]
    return [(e * each, e * each + count) for e, count in enumerate(counts)]


def problem(
    form: str, masked: bool = False
) -> tuple[Sm90Plan, list[PackedWeights], np.ndarray, np.ndarray, np.ndarray]:
    """The plan, all packed weights, B, the product in float64, its bound of error: NaN where nothing is stored."""
    fmt, kind, (m, k), offsets, config = FORMS[form]
    groups, n = groups_of(form, masked), offsets[-1]
    n, experts = MASKED[form][1] * len(groups) if masked else n, len(groups)
    plan = Sm90Plan.derive(
        m, n, k, batch=experts, a=kind, b=f"{kind}:col", c=f"{kind}:col", weights=fmt,
        experts=Ragged.of(experts, masked=masked), config=config, epilogue=fmt.epilogue() or None,
    )  # fmt: skip
    rng, stored = np.random.default_rng(7), plan.b.dtype
    packed = [pack(quantize(rng.standard_normal((m, k)), fmt, kind), kind) for _ in range(experts)]
    b = np.asarray(stored.decode(stored.encode(rng.standard_normal((k, n)))), np.float32)
    want, size = np.full((m, n), np.nan), np.zeros((m, n))
    for weights, (start, end) in zip(packed, groups, strict=True):
        dense = unpack(weights).dense()
        wide = np.asarray(stored.decode(stored.encode(dense)) if fmt.group else dense, np.float64)
        want[:, start:end], size[:, start:end] = wide @ b[:, start:end], np.abs(wide) @ np.abs(b[:, start:end])
    return plan, packed, b, want, plan.c.dtype.unit_roundoff * np.abs(want) + 2.0**-18 * size


def given(form: str, masked: bool = False) -> dict[str, np.ndarray]:
    numbers = MASKED[form][0] if masked else FORMS[form][3]
    return {"counts" if masked else "offsets": np.asarray(numbers, np.int32)}


def unwritten_of(plan: Sm90Plan) -> float:
    """The value of an element of C that is not stored."""
    return float(plan.c.dtype.decode(unwritten(plan.c.dtype, (1,)))[0])


def is_right(plan: Sm90Plan, found: np.ndarray, want: np.ndarray, bound: np.ndarray) -> bool:
    """True for sums within the bound, and elements that nothing wrote."""
    left, stored = np.isnan(want), unwritten_of(plan)
    return bool((np.abs(found - want) <= bound)[~left].all()) and np.array_equal(
        found[left], np.full(left.sum(), stored, found.dtype), equal_nan=True
    )


@pytest.mark.parametrize("masked", [False, True])
def test_the_checks_hold_and_the_executor_is_right(masked: bool) -> None:
    plan, packed, b, want, bound = problem("empty and wide groups", masked)
    plan.check().require()
    found = plan.run(packed, b, given=given("empty and wide groups", masked), device="reference").c
    assert is_right(plan, found, want, bound) and np.isnan(want).any() == masked
    said = "55 columns in as many groups, their counts" if masked else "21 columns in as many groups, their offsets"
    assert f"experts: 5 weight matrices; {said} i32" in plan.explain()


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_the_compiled_kernel_is_right_and_free_of_races(form: str, masked: bool) -> None:
    plan, packed, b, want, bound = problem(form, masked)
    assert is_right(plan, plan.run(packed, b, given=given(form, masked), device="emulator").c, want, bound)


def test_weights_read_from_another_expert_fail_their_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts_of, "weight_block", lambda m, matrix, block: block)
    report = problem("empty and wide groups")[0].check()
    assert [check.name for check in report.checks if not check] == ["weights of experts"]


def test_tiles_counted_without_their_rest_fail_their_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts_of, "tiles_of_group", lambda plan, columns, rows: columns // plan.tile_c[1] * rows)
    report = problem("empty and wide groups")[0].check()
    assert [check.name for check in report.checks if not check] == ["groups"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no weights": ({"weights": None}, "experts without weights: they are groups of columns"),
    "room": ({"batch": 65}, "batch = 65: Ragged.of(groups) has room for them"),
    "size": (
        {"experts": Ragged.of(3, masked=True)}, "n = 16 = 5 * 3 + 1: masked groups are of one size, 3 of them"
    ),
    "order": ({"c": "bf16"}, "c is bf16 row-major: a group of rows of x is a group of columns of C, a 'col'"),
    "store": (
        {"config": Sm90Config((64, 16), consumers=1)}, "store = 'tma': a product of several experts takes 'direct'"
    ),
    "cluster": (
        {"config": Sm90Config((64, 16), consumers=1, cluster=(2, 1), store="direct")}, "cluster = (2, 1): a product of"
    ),
    "reduction": ({"epilogue": INT4.epilogue(RowReduce())}, "a tile reaches into the next group, and would write"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_the_obstacle(what: str) -> None:
    change, said = REFUSED[what]
    usual = {
        "batch": 3, "a": "bf16", "b": "bf16:col", "c": "bf16:col", "weights": INT4, "experts": Ragged.of(3),
        "config": Sm90Config((64, 16), consumers=1, store="direct"),
    }  # fmt: skip
    with pytest.raises(PlanError) as refused:
        Sm90Plan.derive(128, 16, 256, **{**usual, **change})
    assert said in str(refused.value)


def test_operands_of_another_plan_are_refused() -> None:
    plan, packed, b, _, _ = problem("empty and wide groups")
    with pytest.raises(OperandError, match="a is 4 PackedWeights: the plan takes a list of 5"):
        plan.run(packed[1:], b, given=given("empty and wide groups"))
    with pytest.raises(OperandError, match="offsets is missing: where the groups of rows begin and end, 6 numbers"):
        plan.run(packed, b)
    plan, packed, b, _, _ = problem("scale a column", masked=True)
    with pytest.raises(OperandError, match="counts is missing: how many rows of each group count, 3 numbers"):
        plan.run(packed, b)
    with pytest.raises(OperandError, match=r"counts\[1\] = 10: a has 0 to 9 rows in a group"):
        plan.run(packed, b, given={"counts": np.array([9, 10, 0], np.int32)})
    plan, packed, b, _, _ = problem("empty and wide groups")
    with pytest.raises(OperandError, match="for f16; the plan takes"):
        wrong = [replace(packed[0], activations="f16"), *packed[1:]]
        plan.run(wrong, b, given=given("empty and wide groups"))
