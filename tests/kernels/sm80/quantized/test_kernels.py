"""mma.sync with packed weights as B: plans are proven, executed, and emulated under adverse orders; what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.emulator.api import ORDERS
from layoutgemm.errors import LayoutError, OperandError, PlanError
from layoutgemm.kernels import Sm80Config, Sm80Plan, Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import Activation, Amax, Aux, Bias, ColumnReduce, Epilogue, Residual, RowReduce
from layoutgemm.kernels.quantized.formats import MXFP4, MXFP8, NVFP4, QuantizedFormat
from layoutgemm.kernels.quantized.packing import PackedWeights, pack, quantize, unpack
from layoutgemm.kernels.run.emulated import emulate_launch
from layoutgemm.kernels.sm80.quantized.choose import packed_config
from layoutgemm.kernels.sm80.quantized.operand import Sm80PackedOperand
from layoutgemm.kernels.sm80.quantized.split import SplitK
from tests import needs

needs_dsl = needs.DSL
INT4 = QuantizedFormat("int4", 128)
# Format, A, (rows, out features, in features), configuration, C
FORMS = {
    "few rows": (INT4, "bf16", (13, 100, 384), Sm80Config((16, 64), 128, 3, (1, 4)), "bf16"),
    "half units": (
        QuantizedFormat("int4", 32, True), "f16", (20, 150, 416),
        Sm80Config((32, 128), 64, 2, (1, 2), align=(16, 16, 4)), "f16",
    ),
    "odd lines": (
        QuantizedFormat("int8"), "bf16", (35, 71, 300), Sm80Config((64, 64), 64, 3, (2, 2), ahead=False,
                                                                    align=(8, 16, 2)), "bf16",
    ),
    "sixteen features a warp": (MXFP8, "f16", (17, 65, 160), Sm80Config((32, 64), 128, 2, (2, 4)), "f32"),
    "groups of 16": (NVFP4, "bf16", (33, 130, 144), Sm80Config((32, 128), 64, 2, (2, 2)), "bf16"),
    "x by column": (INT4, "bf16:col", (24, 64, 128), Sm80Config((32, 64), 64, 2, (2, 2)), "bf16"),
    "warps across units": (
        QuantizedFormat("int4", 64), "bf16", (16, 190, 192), Sm80Config((16, 192), 64, 2, (1, 4)), "bf16",
    ),
    "K in parts, one of them empty": (
        QuantizedFormat("int8"), "bf16", (35, 71, 250),
        Sm80Config((64, 64), 64, 3, (2, 2), ahead=False, align=(4, 16, 2), split=3), "bf16",
    ),
    "K in parts": (INT4, "bf16", (13, 100, 640), Sm80Config((16, 64), 128, 3, (1, 4), split=2), "bf16"),
}  # fmt: skip
FORMATS = [
    *[QuantizedFormat("int4", group) for group in (32, 64, 128, None)],
    *[QuantizedFormat("int4", group, zeros=True) for group in (32, 128)],
    QuantizedFormat("e4m3"), QuantizedFormat("e5m2"), QuantizedFormat("int8"), MXFP4, MXFP8, NVFP4,
]  # fmt: skip


def problem(form: str) -> tuple[Sm80Plan, np.ndarray, PackedWeights, np.ndarray, np.ndarray]:
    """The plan, A, packed weights, the product in float64, and its bound of error."""
    fmt, a, (m, n, k), config, c = FORMS[form]
    kind = a.removesuffix(":col")
    plan = Sm80Plan.derive(
        m, n, k, a=a, c=c, weights=fmt, config=config, epilogue=fmt.epilogue(axis="n") or None
    )  # fmt: skip
    rng = np.random.default_rng(3)
    packed = pack(quantize(rng.standard_normal((n, k)), fmt, kind), kind)
    x = rounded(plan, rng.standard_normal((m, k)))
    dense = unpack(packed).dense()
    dense = rounded(plan, dense) if fmt.group else dense
    want, size = x @ dense.T.astype(np.float64), np.abs(x) @ np.abs(dense.T)
    return plan, x, packed, want, plan.c.dtype.unit_roundoff * np.abs(want) + 2.0**-18 * size


def rounded(plan: Sm80Plan, values: np.ndarray) -> np.ndarray:
    return np.asarray(plan.a.dtype.decode(plan.a.dtype.encode(values)), np.float32)


@pytest.mark.parametrize("form", FORMS)
def test_the_checks_hold_and_the_executor_is_right(form: str) -> None:
    plan, x, packed, want, bound = problem(form)
    plan.check().require()
    if not plan.epilogue:
        assert (np.abs(plan.run(x, packed, device="reference").c - want) <= bound).all()


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", ["half units", "odd lines", "K in parts, one of them empty", *[
    pytest.param(form, marks=pytest.mark.slow)
    for form in (
        "few rows", "K in parts", "sixteen features a warp", "groups of 16", "x by column", "warps across units",
    )
]])  # fmt: skip
def test_the_compiled_kernel_is_right_and_free_of_races(form: str) -> None:
    plan, x, packed, want, bound = problem(form)
    assert (np.abs(plan.run(x, packed, device="emulator").c - want) <= bound).all()


@needs_dsl
@pytest.mark.dsl
def test_orders_of_copies_and_products_change_nothing() -> None:
    plan, x, packed, want, bound = problem("few rows")
    for policy in ORDERS[1:]:
        c = np.full((13, 104), -1).astype(np.uint16)
        sizes = (13, 100, 384, 1, 384, 384, 104, 0, 0, 0, 1)
        given = (plan.a.dtype.encode(x), packed.units.reshape(-1), c, *sizes, *[0] * 16)
        done = emulate_launch(plan, given, policy, progress=False)
        assert not done.findings, done.report()
        assert (np.abs(np.asarray(plan.c.dtype.decode(c), np.float64)[:, :100] - want) <= bound).all()
        assert (c[:, 100:] == 0xFFFF).all()


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("order", ["snake", "lower"])
def test_orders_visit_their_tiles(order: str) -> None:
    plan, x, packed, want, bound = problem("few rows")
    found = Sm80Plan.derive(
        plan.m, plan.n, plan.k, c=plan.c, config=replace(plan.config, tile=(16, 64)), weights=plan.weights, order=order
    )
    found.check().require()
    stored = np.arange(plan.n) < 64 if order == "lower" else np.ones(plan.n, bool)  # the first of two tiles
    c = found.run(x, packed, device="reference").c
    assert (np.abs(c - want) <= bound)[:, stored].all() and not c[:, ~stored].any()


def test_epilogue_steps_are_applied_in_order() -> None:
    fmt, rng = QuantizedFormat("int4"), np.random.default_rng(4)
    steps = (Bias("n"), Aux("f32"), Activation("relu"), Residual("f32"))
    config = Sm80Config((32, 64), 64, 2, (2, 2))
    plan = Sm80Plan.derive(21, 72, 100, weights=fmt, config=config, epilogue=fmt.epilogue(*steps, axis="n"))
    plan.check().require()
    packed = pack(quantize(rng.integers(-7, 8, (72, 100)), fmt))
    x, bias = rng.integers(-3, 4, (21, 100)).astype(np.float32), rng.standard_normal(72).astype(np.float32)
    residual = rng.integers(-9, 9, (21, 72)).astype(np.float32)
    sums = x @ unpack(packed).dense().T + bias
    given = {"bias": bias, "d": residual, "beta": 2.0}
    found = plan.run(x, packed, given=given, device="emulator")
    assert np.allclose(found.written["aux"], sums, rtol=1e-6, atol=1e-5)
    assert np.allclose(found.c, np.maximum(sums, 0) + 2 * residual, rtol=2**-8, atol=1e-2)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("split", [1, 2])
def test_rows_columns_and_all_of_a_packed_product_are_reduced(split: int) -> None:
    fmt, rng = QuantizedFormat("int4"), np.random.default_rng(7)
    epilogue = fmt.epilogue(Bias("n"), RowReduce("argmax", "best"), ColumnReduce("sum"), Amax(), axis="n")
    plan = Sm80Plan.derive(
        21, 136, 100, weights=fmt, config=Sm80Config((32, 64), 64, 2, (2, 2), split=split), epilogue=epilogue
    )
    plan.check().require()
    assert plan.split_bytes == (split > 1) * 3 * split * 32 * 64 * 4 == plan.workspace - plan.partial_bytes
    packed = pack(quantize(rng.integers(-7, 8, (136, 100)), fmt))
    x, bias = rng.integers(-3, 4, (21, 100)).astype(np.float32), rng.standard_normal(136).astype(np.float32)
    sums = x @ unpack(packed).dense().T + bias
    found = plan.run(x, packed, given={"bias": bias}, device="emulator").written
    assert np.array_equal(found["best_index"], sums.argmax(1)) and plan.workspace > 0
    assert np.allclose(found["column_sum"], sums.sum(0), rtol=1e-5, atol=1e-3)
    assert np.allclose(found["amax"], np.abs(sums).max(), rtol=1e-6)


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_every_format_has_a_plan_that_holds(fmt: QuantizedFormat, kind: str) -> None:
    epilogue = fmt.epilogue(axis="n") or None
    plan = Sm80Plan.derive(48, 128, 256, a=kind, weights=fmt, epilogue=epilogue)
    plan.check().require()
    assert plan.b.fused == (kind == "bf16")
    assert f"B            packed {fmt}, converted to {kind} in registers" in plan.explain()


def test_hopper_and_ampere_multiply_the_same_packed_bytes() -> None:
    rng = np.random.default_rng(5)
    packed = pack(quantize(rng.integers(-7, 8, (72, 128)), INT4))
    x = rng.integers(-3, 4, (9, 128)).astype(np.float32)
    hopper = Sm90Plan.derive(
        72, 9, 128, b="bf16:col", c="bf16:col", weights=INT4,
        config=Sm90Config((64, 16), consumers=1, store="direct", stages=2),
    )  # fmt: skip
    ampere = Sm80Plan.derive(9, 72, 128, weights=INT4, config=Sm80Config((16, 64), 128, 2, (1, 4)))
    assert hopper.a.packing == ampere.b.packing
    left, right = hopper.run(packed, x.T, device="reference").c, ampere.run(x, packed, device="reference").c
    assert np.array_equal(left.T, right)


@needs_dsl
@pytest.mark.dsl
def test_bf16_is_converted_by_fma_and_nothing_spills() -> None:
    for rows in (1, 4096):
        config = packed_config(INT4, rows, 8192)
        compiled = Sm80Plan.derive(rows, 8192, 8192, weights=INT4, config=config).compile()
        assert "fma.rn.bf16x2" in compiled.ptx
        assert not any(f"{name}.rn.bf16x2" in compiled.ptx for name in ("sub", "mul"))
        assert not compiled.sass().local_memory


MUTANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "other halves": ("fragments B", {"halves": ((0, 1), (2, 3))}),
    "one half twice": ("fragments B", {"halves": ((0, 2), (0, 2))}),
    "fewer threads": ("chunks B", {"threads": 96}),
}


@pytest.mark.parametrize("what", MUTANTS)
def test_a_changed_operand_fails_its_check(what: str) -> None:
    name, change = MUTANTS[what]
    plan = problem("few rows")[0]
    report = replace(plan, b=replace(plan.b, **change)).check()
    failed = [check.name for check in report.checks if not check]
    assert "derivation" in failed
    assert what == "fewer threads" or name in failed


@pytest.mark.parametrize("what", ["registers", "threads", "range"])
def test_changed_parts_of_k_fail_their_checks(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = problem("K in parts")[0]
    assert plan.split is not None
    changed = {"registers": {"registers": 4}, "threads": {"threads": 64}, "range": {}}[what]
    if what == "range":
        monkeypatch.setattr(SplitK, "range_of", lambda self, part, k_tiles: (part * 2, part * 2 + 2))
    failed = [check.name for check in replace(plan, split=replace(plan.split, **changed)).check().checks if not check]
    assert ("parts of K" if what == "range" else "kept sums") in failed


FORMULAS: dict[str, tuple[str, str, Any]] = {
    "blocks that do not advance": ("chunk", "chunks B", lambda self, t, i: (t * 0, (t + i * self.threads) * 16)),
    "scales of the first half": ("source", "chunks B", lambda self, inside: (inside, self.code_bytes)),
    "pieces of the first warp": ("place", "addresses B", lambda self, warp, piece: (piece // 4, piece % 4)),
}


@pytest.mark.parametrize("what", FORMULAS)
def test_a_wrong_formula_fails_its_check(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, name, wrong = FORMULAS[what]
    plan = problem("half units")[0]
    monkeypatch.setattr(Sm80PackedOperand, method, wrong)
    assert name in [check.name for check in plan.check().checks if not check]


def test_a_fragment_map_of_another_order_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = problem("few rows")[0]
    other = replace(plan.mma, layout_B=Layout(((4, 8), (2, 2)), ((8, 1), (32, 64))))
    report = replace(plan, mma=other).check()
    assert "fragments B" in [check.name for check in report.checks if not check]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "group": ({"k": 200}, "k = 200 with groups of 128: the last group has 72 weights"),
    "batch": ({"batch": 2}, "batch = 2: packed weights are one matrix"),
    "type": ({"a": "tf32"}, "a is tf32 and b tf32: packed weights become bf16 or"),
    "float8": ({"a": "e4m3", "arch": "sm_90a"}, "scales of groups multiply the sums of float8"),
    "two types": ({"b": "f16:col"}, "a is bf16 and b f16: packed weights become bf16 or f16, as a is"),
    "order of b": ({"b": "bf16"}, "b is bf16 row-major: packed weights have K contiguous, a 'col'"),
    "order": ({"order": "hilbert"}, "a launch of packed weights has no words of an order"),
    "depth": ({"config": Sm80Config((16, 64), 32, 2, (1, 4))}, "tile_k = 32: a K tile is half a packed unit or a"),
    "tile": ({"config": Sm80Config((16, 96), 64, 2, (1, 2))}, "tile = (16, 96): whole packed units, a multiple of 64"),
    "persistent": ({"config": Sm80Config((64, 64), persistent=True)}, "persistent = True: a product with packed"),
    "tensor copies": (
        {"arch": "sm_90a", "config": Sm80Config((64, 64), loads="tma")}, "loads = 'tma': a product with packed weights"
    ),
    "parts": ({"config": Sm80Config((16, 64), 128, 2, (1, 4), split=3)}, "split = 3: K has 2 K tile(s), fewer than"),
    "parts of dense weights": (
        {"weights": None, "b": "bf16:col", "config": Sm80Config((64, 64), split=2)}, "split = 2: K is split for packed"
    ),
    "alignment": ({"config": Sm80Config((16, 64), 64, align=(16, 8, 16))}, "packed weights are aligned to 16 bytes"),
    "scale": ({"epilogue": INT4.epilogue(Bias("n", name="weight_scale"))}, "the epilogue has weight_scale"),
    "no scale": ({"weights": QuantizedFormat("int8"), "epilogue": Epilogue(Bias("n"))}, "has no weight_scale"),
    "groups of a warp": ({"epilogue": INT4.epilogue(RowReduce("sum", each=64))}, "a tile is stored 32 columns"),
    "format": ({"weights": "int4"}, "be a QuantizedFormat (as QuantizedFormat('int4', 128)) or None"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_the_obstacle(what: str) -> None:
    change, said = REFUSED[what]
    given = {"m": 16, "n": 128, "k": 256, "weights": INT4, **change}
    with pytest.raises(PlanError) as refused:
        Sm80Plan.derive(given.pop("m"), given.pop("n"), given.pop("k"), **given)
    assert said in str(refused.value)


def test_operands_of_another_plan_are_refused() -> None:
    plan, x, packed, _, _ = problem("few rows")
    for given, said in (
        ((x, x.T), "b is a ndarray: the plan multiplies PackedWeights, as `pack` makes them"),
        ((x, replace(packed, activations="f16")), "b is 100x384, int4 in groups of 128, for f16; the plan takes"),
        ((packed, packed), "a is a PackedWeights: a NumPy array; for tensors call layoutgemm.quantized_matmul"),
        ((x[:5], packed), "a has shape (5, 384), the plan takes (13, 384)"),
    ):
        with pytest.raises(OperandError) as refused:
            plan.run(*given)
        assert said in str(refused.value)
    with pytest.raises(LayoutError, match="weights are packed"):
        plan.html()


RECORD = Path(__file__).parents[4] / "benchmarks/results/quantized_mma_split_h200.json"


def test_parts_of_k_are_chosen_within_seven_percent_of_the_fastest() -> None:
    for row in json.loads(RECORD.read_text())["rows"]:
        config = packed_config(INT4, row["rows"], row["n"], 132, 0, "sm_80", row["k"])
        name = f"{config.tile[0]}x{config.tile[1]} s{config.split}" + f" st{config.stages}" * (config.tile[1] == 64)
        timed = {label: us for label, us in row["us"].items() if label[:2].isdigit()}
        assert timed[name] <= 1.07 * min(timed.values()), (row["n"], row["k"], row["rows"], name)


@pytest.mark.parametrize("shared", [0, 99 << 10])  # of 8.0; of 8.6 and 8.9
def test_chosen_configurations_have_plans_that_hold(shared: int) -> None:
    for fmt in (INT4, QuantizedFormat("int8", 32)):
        for rows in (1, 17, 64, 65, 4096):
            for n in (100, 4096, 8192):
                config = packed_config(fmt, rows, n, 108, shared)
                plan = Sm80Plan.derive(rows, n, 256, weights=fmt, config=config)
                assert plan.stages >= 2 and plan.config.tile[0] >= min(rows, 64)
                assert plan.smem.total <= (shared or plan.arch.smem_per_block)
                if n == 4096 and fmt is INT4:
                    plan.check().require()
    with pytest.raises(PlanError, match="2 stages of packed weights do not fit"):
        packed_config(INT4, 4096, 8192, 108, 8 << 10)
