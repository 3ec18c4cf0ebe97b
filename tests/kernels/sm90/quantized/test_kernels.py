"""Kernels with packed weights: plans are proven, executed, and emulated under adverse orders; what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.checks.pipeline.prove import prove_pipeline
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import Activation, Bias, Epilogue, RowReduce
from layoutgemm.kernels.quantized.formats import MXFP8, NVFP4, QuantizedFormat
from layoutgemm.kernels.quantized.packing import PackedWeights, QuantizedWeights, pack, quantize, unpack
from layoutgemm.kernels.run.emulated import emulate_plan
from layoutgemm.kernels.run.hardware_model import GlobalMatrix
from layoutgemm.kernels.sm90.budget_checks import registers_fit
from layoutgemm.kernels.sm90.checks import pipeline_of
from layoutgemm.kernels.sm90.quantized.checks import packed_checks
from layoutgemm.kernels.sm90.quantized.choose import packed_candidates, packed_config, packed_parts
from layoutgemm.kernels.sm90.quantized.operand import PackedOperand
from layoutgemm.kernels.sm90.quantized.warp_products import WarpProducts, warp_checks
from layoutgemm.kernels.sm90.store_checks import exchange_check
from tests import needs

needs_dsl = needs.DSL
INT4 = QuantizedFormat("int4", 128)
FEW: dict[str, Any] = {"store": "direct", "loader": "warp"}
SLICED: dict[str, Any] = {**FEW, "schedule": "sliced", "one_tile_per_cluster": True}
# Format, activations, (out features, rows, in features), configuration
FORMS = {
    "self": (INT4, "bf16", (100, 13, 384), Sm90Config((64, 16), consumers=1, store="direct", stages=3)),
    "split": (
        QuantizedFormat("int4", 32, True), "f16", (150, 20, 416),
        Sm90Config((128, 32), consumers=2, split=2, one_tile_per_cluster=True, **FEW),
    ),
    "cluster": (
        QuantizedFormat("e4m3", 64), "bf16", (328, 70, 192),
        Sm90Config((128, 40), cluster=(2, 1), loader="warpgroup", tile_k=64, stages=3),
    ),
    "half units": (
        NVFP4, "bf16", (64, 8, 272),
        Sm90Config((64, 8), consumers=1, tile_k=64, stages=2, launch="tiles", **FEW),
    ),
    "warps, split": (
        INT4, "bf16", (136, 13, 384),
        Sm90Config((128, 16), split=2, one_tile_per_cluster=True, products="warp", stages=2, **FEW),
    ),
    "warps, half units": (
        QuantizedFormat("int8"), "f16", (72, 9, 300),
        Sm90Config((64, 24), consumers=1, loader="warpgroup", tile_k=64, products="warp", stages=3),
    ),
    "sliced, cluster": (
        INT4, "bf16", (100, 13, 640),
        Sm90Config((64, 16), cluster=(2, 1), consumers=2, stages=4, scales="sums", **SLICED),
    ),
    "sliced, split": (
        QuantizedFormat("int4", 64, True), "f16", (150, 20, 1024),
        Sm90Config((128, 32), consumers=4, split=2, stages=4, **SLICED),
    ),
    "four warpgroups": (
        INT4, "bf16", (200, 13, 256),
        Sm90Config((256, 16), consumers=4, stages=2, scales="sums", one_tile_per_cluster=True, overlap=True, prefetch=2,
                   launch="tiles", **FEW),
    ),
    "two CTAs an SM": (
        INT4, "bf16", (72, 13, 512),
        Sm90Config((64, 16), consumers=2, split=2, stages=4, scales="sums", blocks_per_sm=2, launch="tiles", **SLICED),
    ),
    "more slices than K tiles": (
        QuantizedFormat("int8"), "bf16", (128, 8, 128),
        Sm90Config((64, 8), cluster=(2, 1), consumers=4, stages=8, **SLICED),
    ),
    "sliced, warps": (
        INT4, "bf16", (136, 13, 640), Sm90Config((64, 16), consumers=3, products="warp", stages=6, **SLICED),
    ),
    "sliced, by tensor stores": (
        INT4, "bf16", (136, 24, 640), Sm90Config((64, 32), consumers=2, stages=4, **{**SLICED, "store": "tma"}),
    ),
    "sliced, scaled sums": (
        QuantizedFormat("int4", 64, True), "f16", (136, 13, 640),
        Sm90Config((64, 16), consumers=2, stages=4, scales="sums", **SLICED),
    ),
    "two blocks, scaled sums": (INT4, "bf16", (264, 13, 384), Sm90Config((256, 16), stages=3, scales="sums", **FEW)),
    "in turns": (
        QuantizedFormat("e4m3", 32), "bf16", (200, 100, 192),
        Sm90Config((256, 112), tile_k=64, consumers=4, stages=2, **FEW),
    ),
    "in turns, of half vectors": (
        QuantizedFormat("int4", 32, True), "f16", (200, 100, 192),
        Sm90Config((256, 112), tile_k=64, consumers=4, stages=2, **FEW),
    ),
    "two blocks": (QuantizedFormat("int8", 128), "f16", (264, 40, 256), Sm90Config((256, 32), stages=2)),
    "strips, sliced": (
        INT4, "bf16", (100, 9, 384),
        Sm90Config((64, 16), consumers=3, stages=6, scales="sums", launch="tiles", features=48, overlap=True,
                   prefetch=2, **SLICED),
    ),
    "strips, split": (
        QuantizedFormat("int4", 32, True), "f16", (90, 9, 256),
        Sm90Config((128, 16), consumers=1, split=2, stages=2, launch="tiles", features=80, one_tile_per_cluster=True,
                   **FEW),
    ),
    "strips, a loading warpgroup": (
        INT4, "bf16", (100, 9, 256),
        Sm90Config((64, 16), consumers=1, stages=2, scales="sums", launch="tiles", features=48,
                   one_tile_per_cluster=True, overlap=True, prefetch=1, **FEW | {"loader": "warpgroup"}),
    ),
}  # fmt: skip


SUMMED = ("four warpgroups", "two CTAs an SM")
WARPS = ("warps, split", "warps, half units")
TURNS = ("in turns", "in turns, of half vectors")
STRIPS = ("strips, sliced", "strips, split", "strips, a loading warpgroup")
SLICES = [form for form in FORMS if "slice" in form and form not in STRIPS]


def problem(form: str) -> tuple[Sm90Plan, PackedWeights, np.ndarray, np.ndarray, np.ndarray]:
    """The plan, packed weights, B, the product in float64, and its bound of error."""
    fmt, kind, (m, n, k), config = FORMS[form]
    epilogue = fmt.epilogue() or None
    plan = Sm90Plan.derive(
        m, n, k, a=kind, b=f"{kind}:col", c=f"{kind}:col", weights=fmt, config=config, epilogue=epilogue
    )
    rng = np.random.default_rng(3)
    packed = pack(quantize(rng.standard_normal((m, k)), fmt, kind), kind)
    b = np.asarray(plan.b.dtype.decode(plan.b.dtype.encode(rng.standard_normal((k, n)))), np.float32)
    wide = unpack(packed).dense()
    rounded = fmt.group is not None and not plan.sums_apart
    dense = np.asarray(plan.b.dtype.decode(plan.b.dtype.encode(wide)) if rounded else wide, np.float64)
    want, size = dense @ b, np.abs(dense) @ np.abs(b)
    return plan, packed, b, want, plan.c.dtype.unit_roundoff * np.abs(want) + 2.0**-18 * size


@pytest.mark.parametrize("form", [pytest.param(form, marks=[pytest.mark.slow] * (form == STRIPS[1])) for form in FORMS])
def test_the_checks_hold_and_the_executor_is_right(form: str) -> None:
    plan, packed, b, want, bound = problem(form)
    plan.check().require()
    if not plan.epilogue:
        assert (np.abs(plan.run(packed, b, device="reference").c - want) <= bound).all()


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize(
    "form",
    [
        "split",
        pytest.param("cluster", marks=pytest.mark.slow),
        "half units",
        *SUMMED,
        TURNS[0],
        pytest.param(TURNS[1], marks=pytest.mark.slow),
        *WARPS,
        *SLICES,
        *[pytest.param(form, marks=pytest.mark.slow) for form in STRIPS],
    ],
)
def test_the_compiled_kernel_is_right_and_free_of_races(form: str) -> None:
    plan, packed, b, want, bound = problem(form)
    assert (np.abs(plan.run(packed, b, device="emulator").c - want) <= bound).all()
    # compute-sanitizer stops a kernel with st.async to its own block: "Cluster needs to have at least 2 blocks".
    assert ("st.async" in plan.compile().ptx) == (plan.exchange is not None and plan.cluster_size > 1)


@needs_dsl
@pytest.mark.dsl
def test_scales_whose_multiple_is_infinite_are_right() -> None:
    """Values are divided by four: 4 * 2**126 is no float32, and the totals are finite."""
    plan, _, b, _, _ = problem("two CTAs an SM")
    codes = np.random.default_rng(5).integers(5, 12, (plan.m, plan.k)).astype(np.uint8)
    packed = pack(QuantizedWeights(INT4, codes, np.full((plan.m, plan.k // 128), 2.0**126)))
    small = (b * np.float32(2.0**-20)).astype(np.float32)
    want = unpack(packed).dense() @ small.astype(np.float64)
    found = plan.run(packed, small, device="emulator").c
    assert np.abs(want).max() > 2.0**108 and np.allclose(found, want, rtol=2**-8, atol=2.0**92)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize(
    "policy",
    [
        Policy(loads="early", stores="early", pick="random", waits="reluctant", lanes="strict"),
        pytest.param(Policy(products="early", lands="oldest", elect="highest"), marks=pytest.mark.slow),
    ],
)
def test_orders_of_copies_and_products_change_nothing(policy: Policy) -> None:
    plan, packed, b, want, bound = problem("half units")
    bits = packed.units.reshape(-1)
    lines = np.ascontiguousarray(plan.b.dtype.encode(b.T)).reshape(-1)
    matrix = GlobalMatrix(lines, plan.k, (plan.k, plan.n), lines.size)
    given = (0,) * 16
    words, done = emulate_plan(plan, GlobalMatrix(bits, bits.size, (bits.size, 1)), matrix, policy, False, given)
    done.raise_for_findings()
    assert (np.abs(np.asarray(plan.c.dtype.decode(words), np.float64) - want) <= bound).all()


@needs_dsl
@pytest.mark.dsl
def test_column_scales_bias_and_activation_are_applied_in_this_order() -> None:
    fmt = QuantizedFormat("int4")
    config = Sm90Config((64, 16), consumers=1, stages=2)
    plan = Sm90Plan.derive(
        72, 9, 100, a="bf16", b="bf16:col", c="bf16:col", weights=fmt, config=config,
        epilogue=fmt.epilogue(Bias("m"), Activation("relu")),
    )  # fmt: skip
    plan.check().require()
    rng = np.random.default_rng(4)
    packed = pack(quantize(rng.integers(-7, 8, (72, 100)), fmt))
    b, bias = rng.integers(-3, 4, (100, 9)).astype(np.float32), rng.standard_normal(72).astype(np.float32)
    want = np.maximum(unpack(packed).dense() @ b + bias[:, None], 0)
    found = plan.run(packed, b, given={"bias": bias}, device="emulator").c
    assert np.allclose(found, want, rtol=2**-8, atol=1e-3)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", ["self", *SUMMED])
def test_products_overlap_and_nothing_spills(form: str) -> None:
    compiled = problem(form)[0].compile()
    assert compiled.sass().serialised_wgmma(4) is None
    assert not compiled.sass().local_memory


@needs_dsl
@pytest.mark.dsl
def test_two_row_blocks_of_a_warpgroup_overlap() -> None:
    """Lanes that meet between products that run would serialise them: 42 us for 31 on an H200."""
    config = packed_config(28672, 64, 4096, 132, "bf16", INT4)
    plan = Sm90Plan.derive(28672, 64, 4096, a="bf16", b="bf16:col", c="bf16:col", weights=INT4, config=config)
    assert plan.blocks == 2 and plan.compile().sass().serialised_wgmma(4) is None


@needs_dsl
@pytest.mark.dsl
def test_turns_leave_registers_to_overlap_products() -> None:
    """192x256 has 128 accumulators of 168 registers: with two sets of fragments of 32 of K ptxas waits for each one."""
    fmt = QuantizedFormat("e4m3", 32)
    config = Sm90Config((192, 256), tile_k=64, consumers=3, one_tile_per_cluster=True, launch="tiles")
    plan = Sm90Plan.derive(6144, 1024, 4096, a="bf16", b="bf16:col", c="bf16:col", weights=fmt, config=config)
    plan.check().require()
    sass = plan.compile().sass()
    waits = [each.operands[-3:] for each in sass.instructions if each.opcode.startswith("WARPGROUP.DEPBAR")]
    assert (plan.a.turns, sass.wgmma_runs, waits) == (2, (1, 1), ["0x1", "0x1", "0x0"]) and not sass.local_memory
    turns = {}
    for width in range(136, 256, 8):
        plan = Sm90Plan.derive(
            6144, 1024, 4096, b="bf16:col", c="bf16:col", weights=fmt, config=replace(config, tile=(192, width))
        )  # fmt: skip
        assert registers_fit(plan), width
        turns[width] = plan.a.turns
    assert turns == {width: 2 if width >= 240 else 1 for width in turns}


def test_words_of_another_turn_fail_their_check(monkeypatch: pytest.MonkeyPatch) -> None:
    for form in TURNS:
        plan = problem(form)[0]
        for name in ("turn_words", "turn_scales"):
            with monkeypatch.context() as patch:
                whole = getattr(PackedOperand, name)
                patch.setattr(PackedOperand, name, lambda self, turn, whole=whole: whole(self, 0))
                assert [check.name for check in packed_checks(plan, 4) if not check] == ["turns A"]


@needs_dsl
@pytest.mark.dsl
def test_one_shift_converts_a_word() -> None:
    sass = problem("four warpgroups")[0].compile().sass()
    assert (sass.count("HFMA2"), sass.count("HADD2"), sass.count("HGMMA")) == (32, 0, 8)  # of 64 codes


@needs_dsl
@pytest.mark.dsl
def test_first_addresses_are_derived_before_the_kernel_before_has_ended() -> None:
    lines = problem("four warpgroups")[0].compile().sass().text.splitlines()
    wait, load = [next(i for i, line in enumerate(lines) if name in line) for name in ("ACQBULK", "UBLKCP")]
    assert wait < load < wait + 75  # lines: 62, and 106 where the compiler may move the addresses behind the wait


def test_strips_share_features_that_tiles_of_64_do_not() -> None:
    config = Sm90Config((64, 16), consumers=3, features=48, launch="tiles", **SLICED)
    plan = Sm90Plan.derive(6144, 16, 4096, a="bf16", b="bf16:col", c="bf16:col", weights=INT4, config=config)
    assert (plan.tile_c, plan.tiles, plan.full_arrivals, plan.full_bytes) == ((48, 16), (128, 1), 33, plan.b.bytes)
    by_four = Sm90Plan.derive(
        6144, 16, 4096, a="bf16", b="bf16:col", c="bf16:col", weights=INT4, config=replace(config, loader="warpgroup")
    )
    assert (by_four.full_arrivals, by_four.threads, by_four.registers) == (129, 512, (56, 152))
    for each in (plan, by_four):
        wrong = replace(each, a=replace(each.a, strips=replace(each.a.strips, features=32)))  # a strip less is copied
        assert [c.name for c in packed_checks(wrong, 1) if not c] == ["strips A"]


STRIPS_REFUSED = {
    "features = 40 of a tile of 64: a multiple of 16": ({"features": 40}, None),
    "features = 48 of a tile of 128: .* more than 64": ({"tile": (128, 16)}, None),
    "features = 48, loader = 'self'": ({"loader": "self", "consumers": 1, "schedule": "cooperative"}, None),
    "tile_k = 64: features = 48": ({"tile_k": 64}, None),
    "features = 48 and rowmax": ({}, Epilogue(RowReduce("max", name="rowmax"))),
}


@pytest.mark.parametrize("said", STRIPS_REFUSED)
def test_tiles_of_strips_that_no_kernel_has_are_refused(said: str) -> None:
    changes, epilogue = STRIPS_REFUSED[said]
    config = replace(Sm90Config((64, 16), consumers=4, features=48, launch="tiles", **SLICED), **changes)
    with pytest.raises(PlanError, match=said):
        Sm90Plan.derive(
            100, 13, 384, a="bf16", b="bf16:col", c="bf16:col", weights=INT4, config=config, epilogue=epilogue
        )
    with pytest.raises(PlanError, match="features = 48: only packed weights have strips of 16"):
        Sm90Plan.derive(64, 16, 128, config=Sm90Config((64, 16), consumers=1, features=48))


def test_loads_of_other_columns_fail_their_check(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = problem("warps, split")[0]
    monkeypatch.setattr(WarpProducts, "load_of", lambda self, column, fragment: (0, 0))
    assert [check.name for check in warp_checks(plan) if not check] == ["fragments B"]


def test_accumulators_of_another_order_fail_their_check() -> None:
    plan = problem("warps, split")[0]
    other = Layout(((4, 8, 4), (2, 2, 2)), ((128, 1, 16), (64, 512, 8)))  # the halves of rows last
    wrong = replace(plan, mma=replace(plan.mma, layout_C=other))
    assert [check.name for check in warp_checks(wrong) if not check] == ["warp products"]


@needs_dsl
@pytest.mark.dsl
def test_products_of_warps_are_mma_sync_without_spills() -> None:
    sass = problem("warps, split")[0].compile().sass()
    assert (sass.count("HMMA"), sass.count("LDSM"), sass.count("HGMMA")) == (16, 8, 0)
    assert not sass.local_memory


CHANGED_PIPELINES = {
    "a stage of both slices": ("sliced, cluster", {"stages": 3}, "early wait"),
    "arrivals of both slices": ("sliced, cluster", {"empty_arrivals": 16}, "deadlock"),
    "half the arrivals": ("sliced, cluster", {"empty_arrivals": 4}, "arrival"),
    "bytes of fewer sums": ("sliced, cluster", {"sums_bytes": 2032}, "bytes"),
    "sums of three warps": ("sliced, scaled sums", {"sums_arrivals": 3}, "data"),
    "sums of five warps": ("sliced, scaled sums", {"sums_arrivals": 5}, "deadlock"),
}


@pytest.mark.parametrize("what", CHANGED_PIPELINES)
def test_a_changed_pipeline_of_slices_is_no_proof(what: str) -> None:
    """Slices that share a stage would take the phase before for their own."""
    form, changes, hazard = CHANGED_PIPELINES[what]
    (case,) = pipeline_of(problem(form)[0]).cases()
    assert prove_pipeline(case)
    (case,) = replace(pipeline_of(problem(form)[0]), **changes).cases()
    assert f": {hazard}, with K" in str(prove_pipeline(case))


def test_the_exchange_of_slices_is_checked() -> None:
    plan = problem("sliced, split")[0]
    assert exchange_check(plan)
    wrong = replace(plan, exchange=replace(plan.exchange, layout=Layout((128, 2, 1, 2, 1))))  # of parts of K alone
    assert not exchange_check(wrong)


CHANGES = {
    "copy A": lambda plan: replace(plan.a, packing=replace(plan.a.packing, format=QuantizedFormat("int4", 32))),
    "fragments A": lambda plan: replace(plan.a, packing=replace(plan.a.packing, activations="f16")),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_operand_fails_its_check(what: str) -> None:
    plan = problem("half units" if what == "copy A" else "self")[0]
    report = replace(plan, a=CHANGES[what](plan)).check()
    assert not report
    assert any(check.name in (what, "derivation") and not check for check in report.checks)


REFUSED = {
    "group": ({"k": 200}, "k = 200 with groups of 128: the last group has 72 weights"),
    "batch": ({"batch": 2}, "batch = 2: no kernel has a batch and packed weights: one matrix"),
    "type": ({"a": "tf32", "b": "tf32:col", "c": "bf16:col"}, "a is tf32 and b tf32: packed weights become bf16 or"),
    "depth": ({"config": Sm90Config((64, 16), consumers=1, tile_k=32)}, "tile_k = 32: a K tile is half a packed unit"),
    "cluster": ({"config": Sm90Config((64, 16), consumers=1, cluster=(1, 2))}, "packed weights are not shared along N"),
    "pingpong": (
        {"config": Sm90Config((64, 64), schedule="pingpong", loader="warp")},
        "schedule = 'pingpong': a product with packed weights takes 'sliced' or 'cooperative'",
    ),
    "odd stages": (
        {"config": Sm90Config((64, 16), consumers=2, stages=3, **SLICED)},
        "stages = 3 of 2 slices: each stage is one slice's; take a multiple",
    ),
    "few stages": (
        {"config": Sm90Config((64, 16), consumers=4, stages=4, **SLICED)},
        "4 stage(s), and at least 8, of A 4224 + B 4096 bytes",
    ),
    "gated": ({"gated": "silu", "n": 16}, "gated: no kernel has a gate and packed weights"),
    "split": (
        {"config": Sm90Config((64, 8), consumers=1, split=2, one_tile_per_cluster=True)},
        "split = 2 of 8 columns: a thread has 4 sums, and sends vectors of 4 to each part; take a multiple of 16",
    ),
    "CTAs of several tiles": (
        {"config": {"consumers": 1, "loader": "warp", "blocks_per_sm": 2}},
        "blocks_per_sm = 2 with loader = 'warp', one_tile_per_cluster = False: CTAs that share an SM have one tile",
    ),
    "stages of two CTAs": (
        {"config": Sm90Config((64, 16), consumers=2, stages=14, blocks_per_sm=2, **SLICED)},
        "13 fit where 2 CTAs share an SM",
    ),
    "scale": ({"epilogue": INT4.epilogue(Bias("m"), Bias("m", name="weight_scale"))}, "the epilogue has weight_scale"),
    "no scale": ({"weights": QuantizedFormat("int8"), "epilogue": Epilogue(Bias("m"))}, "has no weight_scale"),
    "warps that load": (
        {"config": Sm90Config((64, 16), consumers=1, products="warp")},
        "products = 'warp' by consumers that load for themselves: give loader='warp'",
    ),
    "warps and rows": (
        {"b": "bf16", "config": Sm90Config((64, 16), consumers=1, products="warp", loader="warp")},
        "products = 'warp' with b row-major: ldmatrix reads a 'col'",
    ),
    "slices alone": (
        {"weights": None, "config": Sm90Config((64, 16), consumers=2, **SLICED)},
        "schedule = 'sliced': only the loop of packed weights takes K tiles in turn",
    ),
    "warps alone": (
        {"weights": None, "config": Sm90Config((64, 16), consumers=1, products="warp")},
        "products = 'warp': only those of packed weights are by mma.sync",
    ),
    "sums without weights": (
        {"weights": None, "config": Sm90Config((64, 16), consumers=1, scales="sums")},
        "scales = 'sums' of no packed weights: there are no scales of groups",
    ),
    "sums without groups": (
        {"weights": QuantizedFormat("int8"), "epilogue": QuantizedFormat("int8").epilogue(),
         "config": Sm90Config((64, 16), consumers=1, scales="sums")},
        "scales = 'sums' of weights int8 with a scale a column: there are no scales of groups",
    ),
    "format": ({"weights": "int4"}, "be a QuantizedFormat (as QuantizedFormat('int4', 128)) or None"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_the_obstacle(what: str) -> None:
    change, said = REFUSED[what]
    usual = {
        "m": 128, "n": 16, "k": 256, "a": "bf16", "b": "bf16:col", "c": "bf16:col", "weights": INT4,
        "config": Sm90Config((64, 16), consumers=1),
    }  # fmt: skip
    if what == "gated":
        usual["config"] = Sm90Config((64, 32), consumers=1)
    given = {**usual, **change}
    with pytest.raises(PlanError) as refused:
        if isinstance(given["config"], dict):
            given["config"] = Sm90Config((64, 16), **given["config"])
        Sm90Plan.derive(given.pop("m"), given.pop("n"), given.pop("k"), **given)
    assert said in str(refused.value)


def test_wide_tiles_of_8_bits_have_stages_of_half_units() -> None:
    """128 rows of 16384 x 8192: stages of 128 of K took 66.0 us, of 64 53.0 (an H200)."""
    found = {
        bits: packed_config(16384, 128, 8192, weights=QuantizedFormat(code))
        for bits, code in ((4, "int4"), (8, "e4m3"))
    }
    assert [(c.tile, c.tile_k) for c in found.values()] == [((256, 128), None), ((256, 128), 64)]
    plan = Sm90Plan.derive(
        16384, 128, 8192, a="bf16", b="bf16:col", c="bf16:col", weights=QuantizedFormat("e4m3", 32), config=found[8]
    )
    assert plan.stages == 4


# (out features, in features) -> tile, warpgroups, parts of K, stages of 16 rows: the fastest that were timed
FASTEST = {
    (6144, 4096): ((64, 16), 3, 1, 18), (8192, 8192): ((64, 16), 3, 1, 18), (28672, 4096): ((256, 16), 4, 1, 6),
    (4096, 14336): ((64, 16), 2, 2, 18), (7168, 20480): ((128, 16), 4, 2, 10), (16384, 8192): ((128, 16), 4, 1, 10),
    (128256, 4096): ((256, 16), 2, 1, None),
}  # fmt: skip


def test_sixteen_rows_take_the_fastest_kernels() -> None:
    for (n, k), want in FASTEST.items():
        config = packed_config(n, 16, k, weights=INT4)
        assert (config.tile, config.consumers, config.split, config.stages) == want, (n, k)
        assert config.one_tile_per_cluster == (n < 128256) == (config.launch == "tiles")


def test_weights_of_bytes_take_other_warpgroups_and_stages() -> None:
    for code in ("e4m3", "e5m2", "int8"):
        fmt = QuantizedFormat(code)
        for n, k in FASTEST:
            plan = Sm90Plan.derive(
                n, 16, k, a="bf16", b="bf16:col", c="bf16:col", weights=fmt, epilogue=fmt.epilogue(),
                config=packed_config(n, 16, k, weights=fmt),
            )  # fmt: skip
            assert registers_fit(plan), (code, n, k)
            if n in (28672, 8192):
                assert (plan.config.consumers, plan.stages) == {28672: (4, 6), 8192: (3, 12)}[n]
    groups = packed_config(8192, 16, 8192, weights=QuantizedFormat("int8", 128))
    assert (groups.consumers, groups.stages) == (4, None)


RESULTS = Path(__file__).parents[4] / "benchmarks/results"
# A case is that of the last one.
RECORDS = tuple(f"quantized_{name}_h200.json" for name in ("bytes_overlap", "turns", "widths", "widths_all"))

SLOWER = {("mxfp8", 7168, 768): 1.017}  # tiles of 256x192 have too many registers by the plan's sum


def early(config: Sm90Config) -> str:
    """The configuration's part of a name. One K tile ahead is no slower: results/quantized_ahead_h200.json."""
    return " pdl" * (config.tuning.overlap and config.tuning.prefetch != 1)


def named(config: Sm90Config) -> str:
    """The configuration as the records name it; 256 rows of x are of 64 of K there."""
    name = "x".join(map(str, config.tile)) + f" s{config.split}" * (config.split > 1)
    name += " k64" * (config.tile_k == 64 and config.tile[1] != 256) + " (2,1)" * (config.cluster[0] > 1)
    return name + early(config) + " N" * (config.tuning.along == "N")


def test_kernels_with_k_in_two_parts_are_grids_of_tiles_within_1_percent_of_the_fastest() -> None:
    for row in json.loads((RESULTS / "quantized_grids_h200.json").read_text())["rows"]:
        for name, fmt in {"e4m3": QuantizedFormat("e4m3"), "int4": INT4}.items():
            config = packed_config(row["n"], row["rows"], row["k"], weights=fmt)
            assert (config.launch == "tiles") == (config.split == 2), (name, row)
            label = f"{name} {config.launch}{early(config)} k{config.tile_k or 128}"
            fastest = min(us for each, us in row["us"].items() if each.startswith(name))
            assert row["us"].get(label, row["us"][f"{name} choice"]) <= 1.01 * fastest, (label, row)


def test_weights_of_bytes_and_17_to_64_rows_take_tiles_within_4_percent_of_the_fastest() -> None:
    """Features of a tile, warpgroups and parts of K, by results/quantized_few_bytes_h200.json."""
    fmt = QuantizedFormat("e4m3")
    for row in json.loads((RESULTS / "quantized_few_bytes_h200.json").read_text())["rows"]:
        config = packed_config(row["n"], row["rows"], row["k"], weights=fmt)
        own = {name.removeprefix("e4m3 "): us for name, us in row["us"].items() if name.startswith("e4m3")}
        parts = f"{config.tile[0]}/{config.split}" if config.split > 1 else f"{config.tile[0]}"
        apart = " wg p2" if config.loader == "warpgroup" else ""
        label = "" if config.schedule == "sliced" else f"{parts} c{config.consumers}{apart}"  # "": the choice before
        if 16 < row["rows"] <= 64:
            assert own.get(label, own["choice"]) <= 1.04 * min(own.values()), (row["n"], row["k"], row["rows"], label)


def chosen(row: dict[str, Any]) -> Sm90Config:
    """The choice for a row of a record."""
    name, _, become = row["format"].removesuffix(" x").rpartition(", ")
    fmt = INT4 if name == str(INT4) else QuantizedFormat("e4m3")
    return packed_config(row["n"], row["rows"], row["k"], 132, become, fmt)


def test_strips_are_taken_where_they_are_fastest() -> None:
    """Features of a tile and parts of K, by results/quantized_strips_h200.json: a warp loads."""
    for row in json.loads((RESULTS / "quantized_strips_h200.json").read_text())["rows"]:
        config = chosen(row)
        features, parts = config.tuning.features, " s2" * (config.split == 2)
        kinds = {re.sub(r" c\d.*", "", name): us for name, us in sorted(row["us"].items(), key=lambda each: -each[1])}
        label = "default" if features is None else f"{features}{parts}"
        assert kinds[label] <= 1.01 * min(kinds.values()), (row["n"], row["rows"], label)


def test_k_tiles_ahead_and_loaders_of_strips_are_within_2_percent_of_the_fastest() -> None:
    """By results/quantized_ahead_h200.json: "wg" is a loading warpgroup, "default" the choice before."""
    found = json.loads((RESULTS / "quantized_ahead_h200.json").read_text())["rows"]
    for row in found:
        config, before = chosen(row), next(name for name in row["us"] if name.startswith("default"))
        ahead = f"p{config.tuning.prefetch}"
        label = "wg " * (config.loader == "warpgroup" and config.tuning.features is not None) + ahead
        us = row["us"].get(label, row["us"][before] if before.split()[1] == ahead else np.inf)
        assert us <= 1.02 * min(row["us"].values()), (row["format"], row["n"], row["rows"], label)
    assert len(found) == 46


def test_groups_of_bytes_and_64_rows_take_tiles_within_1_percent_of_the_fastest() -> None:
    """Their tiles differ from those of bytes with a scale a column: results/quantized_bytes_kinds_h200.json."""
    record = json.loads((RESULTS / "quantized_bytes_kinds_h200.json").read_text())
    tried = [row for row in record["rows"] if row["rows"] == 64 and row["format"] == "mxfp8"]
    for row in tried:
        config = packed_config(row["n"], 64, row["k"], weights=MXFP8)
        depth = f" k{config.tile_k}" if config.tile_k else ""
        own = {name: us for name, us in row["us"].items() if name == "choice" or name[:1].isdigit()}
        assert own[f"{config.tile[0]} c{config.consumers} s{config.split}{depth}"] <= 1.01 * min(own.values()), row["n"]
    assert len(tried) == 5


def test_weights_of_bytes_and_many_rows_take_kernels_within_1_5_percent_of_the_fastest() -> None:
    formats = {"e4m3": QuantizedFormat("e4m3"), "int8": QuantizedFormat("int8"), "mxfp8": QuantizedFormat("e4m3", 32)}
    found = [row for name in RECORDS for row in json.loads((RESULTS / name).read_text())["rows"]]
    for (n, rows, k), row in {(row["n"], row["rows"], row["k"]): row for row in found}.items():
        for name, fmt in formats.items():
            config = packed_config(n, rows, k, weights=fmt)
            own = {label[len(name) + 1 :]: us for label, us in row["us"].items() if label.startswith(f"{name} ")}
            if not own:
                continue
            own = {label.replace(" wg", ""): us for label, us in own.items()}
            within = SLOWER.get((name, n, rows), 1.015)
            assert own.get(named(config), own["choice"]) <= within * min(own.values()), (name, n, rows, k, config)
            plan = Sm90Plan.derive(
                n, rows, k, b="bf16:col", c="bf16:col", weights=fmt, config=config, epilogue=fmt.epilogue() or None
            )  # fmt: skip
            assert registers_fit(plan)


# (out features, in features), rows -> tile, parts of K: rows are shared evenly where the widest tiles do more work
EVEN = {
    ((6144, 4096), 768): ((192, 192), 1), ((6144, 4096), 1024): ((192, 256), 1), ((6144, 4096), 192): ((192, 96), 2),
    ((8192, 8192), 160): ((128, 160), 2), ((28672, 4096), 137): ((128, 144), 1), ((8192, 8192), 4096): ((128, 256), 1),
}  # fmt: skip


def test_one_round_of_192_features_has_stages_of_64_and_groups_a_grid_of_tiles() -> None:
    for rows, width in ((448, 112), (512, 128)):
        column, groups = (packed_config(6144, rows, 4096, weights=fmt) for fmt in (QuantizedFormat("e4m3"), MXFP8))
        assert column.tile == groups.tile == (192, width) and column.tile_k == groups.tile_k == 64
        assert (column.launch, groups.launch) == ("workers", "tiles") and groups.tuning.overlap
        assert packed_config(6144, rows, 4096, weights=INT4).tile_k is None
    alone, shared = (packed_config(4096, rows, 14336, weights=MXFP8) for rows in (768, 1024))
    assert (alone.tile, alone.cluster, shared.cluster) == ((128, 192), (1, 1), (2, 1))


def test_two_launches_are_taken_where_they_were_faster() -> None:
    record = json.loads((RESULTS / "quantized_two_launches_h200.json").read_text())
    for row, (name, fmt) in product(record["rows"], {"e4m3": QuantizedFormat("e4m3"), "int4": INT4}.items()):
        us = {what.removeprefix(name + " "): each for what, each in row["us"].items() if what.startswith(name)}
        parts = packed_parts(row["n"], row["rows"], row["k"], weights=fmt)
        sizes = "+".join(str(features) for features, _ in parts)
        taken = us[f"{sizes} early"] if parts else us["one"]
        assert taken <= 1.01 * us["one"] and taken <= 1.035 * min(us.values()), row
        assert sum(features for features, _ in parts) in (0, row["n"])
    assert packed_parts(28672, 255, 4096) == packed_parts(128256, 1024, 4096) == packed_parts(64, 300, 4096) == ()
    assert packed_parts(7168, 1024, 20480, become="e4m3") == ()


def test_tiles_share_rows_evenly_where_that_gains() -> None:
    for ((n, k), rows), want in EVEN.items():
        config = packed_config(n, rows, k, weights=MXFP8)
        assert (config.tile, config.split) == want, (n, k, rows)
    for n, k in FASTEST:
        for rows in range(65, 1100, 71):
            plan = Sm90Plan.derive(
                n, rows, k, b="bf16:col", c="bf16:col", weights=MXFP8, config=packed_config(n, rows, k, weights=MXFP8)
            )  # fmt: skip
            assert registers_fit(plan), (n, k, rows)
    sizes = {config.tile for config in packed_candidates(6144, 768, 4096, weights=MXFP8)}
    assert {(192, 192), (192, 256), (128, 192), (192, 112)} <= sizes


def test_few_rows_take_as_many_sums_as_registers_hold() -> None:
    for fmt in (INT4, QuantizedFormat("int4", 128, True)):
        for n, k in FASTEST:
            for rows in (1, 8, 16, 24, 32, 40, 48, 56, 64):
                config = packed_config(n, rows, k, weights=fmt)
                plan = Sm90Plan.derive(n, rows, k, a="bf16", b="bf16:col", c="bf16:col", weights=fmt, config=config)
                assert registers_fit(plan), (n, k, rows)
                assert plan.sums_apart == (config.tile != (256, 64)), (n, k, rows)


def test_one_cta_has_an_sm_unless_several_are_asked_for() -> None:
    plan = problem("two CTAs an SM")[0]
    alone = replace(plan, config=plan.config.tuned(overlap=True, blocks_per_sm=1))
    assert plan.launch_bytes == plan.smem.total == alone.smem.total < alone.launch_bytes
    assert alone.launch_bytes == plan.arch.smem_of_one_block
    assert "115713 are asked for" in alone.explain() and "asked for" not in plan.explain()


def test_operands_of_another_plan_are_refused() -> None:
    plan, packed, b, _, _ = problem("self")
    with pytest.raises(OperandError, match="a is a ndarray: the plan multiplies PackedWeights"):
        plan.run(b.T, b)
    with pytest.raises(OperandError, match="a is 100x384, int4 in groups of 128, for f16; the plan takes"):
        plan.run(replace(packed, activations="f16"), b)


def test_chosen_configurations_have_plans_that_hold() -> None:
    for rows in (1, 8, 17, 64, 65, 200, 4096):
        for n, k in ((8192, 8192), (6144, 4096), (100, 128)):
            plan = Sm90Plan.derive(
                n, rows, k, a="bf16", b="bf16:col", c="bf16:col", weights=INT4,
                config=packed_config(n, rows, k, weights=INT4),
            )  # fmt: skip
            assert plan.config.tile[1] >= min(rows, 64)
            assert plan.sums_apart == (rows <= 64)
            if n == 6144 and rows in (1, 200):
                plan.check().require()
    for fmt, become in ((QuantizedFormat("int4", 32), "bf16"), (QuantizedFormat("int8", 128), "bf16"), (INT4, "e4m3")):
        assert packed_config(8192, 16, 8192, become=become, weights=fmt).tuning.scales == "weights"
