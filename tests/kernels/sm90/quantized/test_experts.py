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


def problem(form: str) -> tuple[Sm90Plan, list[PackedWeights], np.ndarray, np.ndarray, np.ndarray]:
    """The plan, all packed weights, B, the product in float64, its bound of error."""
    fmt, kind, (m, k), offsets, config = FORMS[form]
    n, experts = offsets[-1], len(offsets) - 1
    plan = Sm90Plan.derive(
        m, n, k, batch=experts, a=kind, b=f"{kind}:col", c=f"{kind}:col", weights=fmt, experts=Ragged.of(experts),
        config=config, epilogue=fmt.epilogue() or None,
    )  # fmt: skip
    rng, stored = np.random.default_rng(7), plan.b.dtype
    packed = [pack(quantize(rng.standard_normal((m, k)), fmt, kind), kind) for _ in range(experts)]
    b = np.asarray(stored.decode(stored.encode(rng.standard_normal((k, n)))), np.float32)
    want, size = np.zeros((m, n)), np.zeros((m, n))
    for weights, (start, end) in zip(packed, pairwise(offsets), strict=True):
        dense = unpack(weights).dense()
        wide = np.asarray(stored.decode(stored.encode(dense)) if fmt.group else dense, np.float64)
        want[:, start:end], size[:, start:end] = wide @ b[:, start:end], np.abs(wide) @ np.abs(b[:, start:end])
    return plan, packed, b, want, plan.c.dtype.unit_roundoff * np.abs(want) + 2.0**-18 * size


def given(form: str) -> dict[str, np.ndarray]:
    return {"offsets": np.asarray(FORMS[form][3], np.int32)}


def test_the_checks_hold_and_the_executor_is_right() -> None:
    plan, packed, b, want, bound = problem("empty and wide groups")
    plan.check().require()
    found = plan.run(packed, b, given=given("empty and wide groups"), device="reference").c
    assert (np.abs(found - want) <= bound).all()
    assert "experts: 5 weight matrices; 21 columns in as many groups" in plan.explain()


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", FORMS)
def test_the_compiled_kernel_is_right_and_free_of_races(form: str) -> None:
    plan, packed, b, want, bound = problem(form)
    assert (np.abs(plan.run(packed, b, given=given(form), device="emulator").c - want) <= bound).all()


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
    with pytest.raises(OperandError, match="for f16; the plan takes"):
        wrong = [replace(packed[0], activations="f16"), *packed[1:]]
        plan.run(wrong, b, given=given("empty and wide groups"))
