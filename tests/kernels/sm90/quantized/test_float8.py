"""Packed weights times float8 activations: conversions by exhaustion, plans, executor, emulator, mutants, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm.checks import bank_conflicts
from layoutgemm.checks.pipeline.actions import WaitGroup
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import Bias, VectorScale
from layoutgemm.kernels.quantized import float8, fragments
from layoutgemm.kernels.quantized.checks import conversion_check
from layoutgemm.kernels.quantized.formats import MXFP4, MXFP8, NVFP4, QuantizedFormat
from layoutgemm.kernels.quantized.fragments import block_scales, block_values
from layoutgemm.kernels.quantized.order import PackedOrder
from layoutgemm.kernels.quantized.packing import PackedWeights, QuantizedWeights, pack, quantize, unpack
from layoutgemm.kernels.run.emulated import emulate_plan
from layoutgemm.kernels.run.hardware_model import GlobalMatrix
from layoutgemm.kernels.sm90.pipeline_model import HopperPipeline
from layoutgemm.kernels.sm90.quantized.choose import packed_config
from tests import needs

needs_dsl = needs.DSL
ROOT = Path(__file__).resolve().parents[4]
INT4, ZEROS = QuantizedFormat("int4", 128), QuantizedFormat("int4", 32, zeros=True)
FORMATS = [INT4, ZEROS, QuantizedFormat("int4"), MXFP4, QuantizedFormat("e4m3"), MXFP8]
FEW = {"store": "direct", "loader": "warp"}
# Format, x, (out features, rows, in features), configuration
FORMS = {
    "self": (INT4, "e4m3", (100, 13, 384), Sm90Config((64, 16), consumers=1, store="direct", stages=3)),
    "split": (
        ZEROS, "e4m3", (150, 20, 416), Sm90Config((128, 32), consumers=2, split=2, one_tile_per_cluster=True, **FEW),
    ),
    "warps": (
        MXFP4, "e5m2", (136, 13, 384),
        Sm90Config((128, 16), split=2, one_tile_per_cluster=True, products="warp", stages=2, **FEW),
    ),
    "sliced": (
        QuantizedFormat("int4", 64), "e4m3", (100, 13, 640),
        Sm90Config((64, 32), consumers=3, split=2, one_tile_per_cluster=True, schedule="sliced", stages=6, **FEW),
    ),
    "two blocks": (QuantizedFormat("e4m3"), "e5m2", (264, 40, 300), Sm90Config((256, 32), tile_k=64, stages=2)),
    "cluster": (
        QuantizedFormat("int4", 64), "e4m3", (328, 70, 192),
        Sm90Config((128, 64), cluster=(2, 1), loader="warpgroup", tile_k=64, stages=3),
    ),
}  # fmt: skip


def problem(form: str) -> tuple[Sm90Plan, PackedWeights, np.ndarray, np.ndarray, np.ndarray]:
    """The plan, packed weights, B, the product in float64, and its bound of error: float32 sums of exact products."""
    fmt, kind, (m, n, k), config = FORMS[form]
    epilogue = fmt.epilogue() or None
    plan = Sm90Plan.derive(
        m, n, k, a="e4m3", b=f"{kind}:col", c="bf16:col", weights=fmt, config=config, epilogue=epilogue
    )
    rng = np.random.default_rng(3)
    packed = pack(quantize(rng.standard_normal((m, k)), fmt, "e4m3"), "e4m3")
    b = np.asarray(plan.b.dtype.decode(plan.b.dtype.encode(rng.standard_normal((k, n)))), np.float32)
    dense = unpack(packed).dense()
    want, size = dense @ b, np.abs(dense) @ np.abs(b)
    return plan, packed, b, want, plan.c.dtype.unit_roundoff * np.abs(want) + 2.0**-18 * size


# ------------------------------------------------------------------------------------------- conversions and the order


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_every_code_becomes_its_value_at_each_place_with_each_zero_point(fmt: QuantizedFormat) -> None:
    order = PackedOrder(fmt, "e4m3")
    assert conversion_check(order)
    assert order.codes.is_bijective() and order.codes.size == 64 * 128
    assert order.scales.is_bijective()


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_threads_make_fragments_and_scales_of_their_own_vectors(fmt: QuantizedFormat) -> None:
    weights = quantize(np.random.default_rng(1).standard_normal((64, 128)), fmt, "e4m3")
    packed = pack(weights, "e4m3")
    assert np.array_equal(unpack(packed).codes, weights.codes)
    assert np.array_equal(unpack(packed).dense(), weights.dense())
    block = packed.units[0, 0]
    values, factors = block_values(packed.order, block), block_scales(packed.order, block)
    multiplied = values * np.repeat(factors, 128 // factors.shape[1], axis=1)
    plain = fmt.facts.values()[weights.codes] / packed.order.factor  # the totals are multiplied by it
    assert np.array_equal(multiplied, weights.dense() if fmt.group else plain)
    lanes = np.arange(32)
    assert bank_conflicts(np.asarray(packed.order.vector_bytes(32 + lanes, 0)), 16).conflict_free


def test_the_order_is_that_of_a_fragment_of_32_of_k() -> None:
    order = PackedOrder(INT4, "e4m3")
    assert str(order.codes) == "((4,2),(2,2),(4,8,4),2):((64,8),(1024,2048),(256,1,16),4096)"
    row, column = order.atom.coords("A")(77, 9)  # value 9: code 1 of the fragment's second word
    assert order.codes((1, 1, 77, 0)) == row + 64 * column


@pytest.mark.parametrize(
    ("fmt", "name", "wrong", "witness"),
    [
        (INT4, "stored", lambda fmt: (*range(8), *range(8, 16)), "code 0 at 0 of a word becomes 0.0"),
        (INT4, "_SIGN", 0x80, "code 0 at 0 of a word becomes -7.5"),
        (MXFP4, "_E2M1", frozenset((1, 2, 3, 7)), "code 1 at 0 of a word becomes 0.25"),
    ],
)  # fmt: skip
def test_a_wrong_digit_is_found(fmt: QuantizedFormat, name: str, wrong: Any, witness: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(float8, name, wrong)
    monkeypatch.setattr(float8, "bits_of_places", float8.bits_of_places.__wrapped__)
    assert conversion_check(PackedOrder(fmt, "e4m3")).witness == witness


def test_a_word_of_int4_has_a_sign_and_a_magnitude_in_each_digit() -> None:
    order = PackedOrder(INT4, "e4m3")
    for value, digit in ((0, 0), (7, 14), (-1, 1), (-8, 15)):  # twice the magnitude, in ones' complement, and the sign
        weights = QuantizedWeights(INT4, np.full((64, 128), value + 8, np.uint8), np.ones((64, 1)))
        assert (pack(weights, "e4m3").units[0, 0, : order.code_bytes] == 17 * digit).all()


def test_a_scale_that_times_the_factor_is_infinite_is_refused() -> None:
    for fmt, power in ((INT4, 8), (ZEROS, 9), (QuantizedFormat("e2m1", 32), 6)):
        zeros = np.full((64, 4), 8, np.uint8) if fmt.zeros else None
        at = QuantizedWeights(
            fmt, np.full((64, 128), 1, np.uint8), np.full((64, fmt.groups), 2.0 ** (127 - power)), zeros
        )
        assert unpack(pack(at, "e4m3")).scales[0, 0] == 2.0 ** (127 - power)
        with pytest.raises(OperandError, match=f"a kernel multiplies it by {2**power}, and f32 does not hold"):
            pack(replace(at, scales=2 * at.scales), "e4m3")


def test_a_zero_point_of_another_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = problem("split")[0]
    monkeypatch.setattr(PackedOrder, "row_of", lambda self, register: 0)
    assert "fragments A" in [check.name for check in plan.check().checks if not check]


def test_a_scale_of_another_group_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, right = problem("cluster")[0], fragments._numbers
    monkeypatch.setattr(fragments, "_numbers", lambda order, words, *at: right(order, np.roll(words, 1), *at))
    failed = [check for check in plan.check().checks if not check]
    assert [check.name for check in failed] == ["fragments A"] and "is multiplied by" in failed[0].witness


# -------------------------------------------------------------------------------------------------------------- kernels


@pytest.mark.parametrize("form", FORMS)
def test_the_checks_hold_and_the_executor_is_right(form: str) -> None:
    plan, packed, b, want, bound = problem(form)
    plan.check().require()
    if not plan.epilogue:
        assert (np.abs(plan.run(packed, b, device="reference").c - want) <= bound).all()


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize(
    "form",
    ["split", "warps", *[pytest.param(form, marks=pytest.mark.slow) for form in ("two blocks", "cluster")]],
)
def test_the_compiled_kernel_is_right_and_free_of_races(form: str) -> None:
    plan, packed, b, want, bound = problem(form)
    assert (np.abs(plan.run(packed, b, device="emulator").c - want) <= bound).all()


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize(
    "policy",
    [
        Policy(loads="early", stores="early", pick="random", waits="reluctant"),
        pytest.param(Policy(products="early", lands="oldest", elect="highest"), marks=pytest.mark.slow),
    ],
)
def test_orders_of_copies_and_products_change_nothing(policy: Policy) -> None:
    plan, packed, b, want, bound = problem("self")
    bits = packed.units.reshape(-1)
    lines = np.ascontiguousarray(plan.b.dtype.encode(b.T)).reshape(-1)
    matrix = GlobalMatrix(lines, plan.k, (plan.k, plan.n), lines.size)
    words, done = emulate_plan(plan, GlobalMatrix(bits, bits.size, (bits.size, 1)), matrix, policy, False, (0,) * 16)
    done.raise_for_findings()
    assert (np.abs(np.asarray(plan.c.dtype.decode(words), np.float64) - want) <= bound).all()
    compiled = plan.compile()
    assert compiled.sass().serialised_wgmma(2) is None
    assert not compiled.sass().local_memory


@needs_dsl
@pytest.mark.dsl
def test_scales_of_columns_and_of_rows_come_before_the_bias() -> None:
    fmt = QuantizedFormat("int4")
    plan = Sm90Plan.derive(
        72, 9, 100, a="e4m3", b="e4m3:col", c="bf16:col", weights=fmt,
        config=Sm90Config((64, 16), consumers=1, stages=2),
        epilogue=fmt.epilogue(VectorScale("n", "f32", "scale_x"), Bias("m")),
    )  # fmt: skip
    plan.check().require()
    rng = np.random.default_rng(4)
    packed = pack(quantize(rng.integers(-7, 8, (72, 100)), fmt), "e4m3")
    b, bias = rng.integers(-3, 4, (100, 9)).astype(np.float32), rng.standard_normal(72).astype(np.float32)
    scale = rng.uniform(0.5, 2, 9).astype(np.float32)
    want = unpack(packed).dense() @ b * scale + bias[:, None]
    found = plan.run(packed, b, given={"bias": bias, "scale_x": scale}, device="emulator").c
    assert np.allclose(found, want, rtol=2**-8, atol=1e-3)


def test_sums_read_before_their_products_are_done_fail_their_check(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, right = problem("self")[0], HopperPipeline._apart

    def hasty(self: HopperPipeline, earlier: Any) -> Any:
        return tuple(step for step in right(self, earlier) if step != WaitGroup("wgmma", 0))

    monkeypatch.setattr(HopperPipeline, "_apart", hasty)
    assert "pipeline" in [check.name for check in plan.check().checks if not check]


def test_a_plan_explains_its_sums() -> None:
    lines = problem("split")[0].explain().splitlines()
    assert (
        "  4 sum(s) of 32 of K in a K tile, each in registers of its own, multiplied by its row's scale, times 512 and "
        "added in float32"
    ) in lines


def test_chosen_configurations_have_plans_that_hold() -> None:
    for fmt in (INT4, ZEROS):
        for rows in (1, 17, 64, 65, 200, 4096):
            for n, k in ((8192, 8192), (6144, 4096), (100, 128)):
                config = packed_config(n, rows, k, become="e4m3")
                plan = Sm90Plan.derive(
                    n, rows, k, a="e4m3", b="e4m3:col", c="bf16:col", weights=fmt, config=config
                )  # fmt: skip
                if fmt is ZEROS and n == 6144 and rows in (17, 200, 4096):
                    plan.check().require()
    kinds = {rows: packed_config(8192, rows, 8192, become="e4m3") for rows in (64, 128, 256, 1024, 4096)}
    tiles = {rows: (config.tile, config.tile_k, config.split, config.launch) for rows, config in kinds.items()}
    assert tiles == {
        64: ((64, 64), None, 1, "tiles"), 128: ((128, 128), None, 2, "tiles"), 256: ((128, 128), None, 1, "tiles"),
        1024: ((128, 176), None, 1, "workers"), 4096: ((128, 192), None, 1, "workers"),
    }  # fmt: skip


def test_choices_are_within_3_percent_of_the_fastest_of_the_record() -> None:
    record = json.loads((ROOT / "benchmarks/results/float8_digits_h200.json").read_text())
    cases = 0
    for row in record["rows"] + record["second run"]["rows"]:
        config = packed_config(row["n"], row["rows"], row["k"], become="e4m3", weights=INT4)
        features, columns = config.tile
        few, many = f"{features} c{config.consumers}", f"{features}x{columns}"
        few, many = (few + " s2", many + " s2 p2") if config.split == 2 else (few, many)
        own, tiles = row["us"], config.launch == "tiles"
        if row["rows"] <= 64:
            names = [few] * tiles  # as those of few rows were timed
        else:
            names = [many + end for end in ((" t", "") if tiles else (" N", " w", ""))]
        if found := [own[name] for name in names if name in own]:
            cases += 1
            others = [us for name, us in own.items() if "quack" not in name and name != "bf16 x"]
            assert found[0] <= 1.03 * min(others), row
    assert cases >= 60


# ------------------------------------------------------------------------------------------------------------- refusals


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "int8": ({"weights": QuantizedFormat("int8", 128)}, "code 17 of int8 is 17, and the nearest e4m3 16"),
    "e5m2": ({"weights": QuantizedFormat("e5m2", 128)}, "code 1 of e5m2 is 1.52588e-05, and the nearest e4m3 0"),
    "small groups": ({"weights": NVFP4}, "groups of 16: an instruction of float8 sums 32 of K"),
    "b": ({"b": "bf16:col"}, "a is e4m3 and b bf16: packed weights become bf16 or f16, as b is, or e4m3 for a b"),
    "a": ({"a": "e5m2"}, "a is e5m2 and b e4m3: packed weights become bf16 or f16, as b is, or e4m3 for a b of float8"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_the_obstacle(what: str) -> None:
    change, said = REFUSED[what]
    usual = {
        "a": "e4m3", "b": "e4m3:col", "c": "bf16:col", "weights": INT4, "config": Sm90Config((64, 16), consumers=1),
    }  # fmt: skip
    with pytest.raises(PlanError) as refused:
        Sm90Plan.derive(128, 16, 256, **{**usual, **change})
    assert said in str(refused.value)


def test_codes_that_e4m3_does_not_hold_are_not_packed() -> None:
    weights = quantize(np.eye(64, 128), QuantizedFormat("int8"))
    with pytest.raises(OperandError, match="for float8 activations: code 17 of int8 is 17, and the nearest e4m3 16"):
        pack(weights, "e4m3")
    plan, packed, b, _, _ = problem("self")
    with pytest.raises(OperandError, match="a is 100x384, int4 in groups of 128, for bf16; the plan takes"):
        plan.run(replace(packed, activations="bf16"), b)
