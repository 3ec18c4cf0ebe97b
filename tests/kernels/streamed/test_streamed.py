"""Streamed products of packed weights: plans are proven, executed and emulated; what is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutgemm import Layout, QuantizedFormat
from layoutgemm.arch import arch
from layoutgemm.emulator.api import ORDERS
from layoutgemm.errors import LayoutError, OperandError, PlanError
from layoutgemm.kernels import StreamedConfig, StreamedPlan
from layoutgemm.kernels.compile.compiler import kernel_facts
from layoutgemm.kernels.epilogue.chain import Activation, Amax, Bias, Epilogue, Residual, RowReduce
from layoutgemm.kernels.pictures import plan_table
from layoutgemm.kernels.quantized.formats import MXFP4, MXFP8, NVFP4
from layoutgemm.kernels.quantized.packing import PackedWeights, pack, quantize, unpack
from layoutgemm.kernels.run.emulated import emulate_launch
from layoutgemm.kernels.streamed.choose import MOST_ROWS, streamed_config
from layoutgemm.kernels.streamed.operands import StreamedRows, StreamedWeights
from tests import needs

needs_dsl = needs.DSL
INT4 = QuantizedFormat("int4", 128)
# Format, x, (out features, rows, in features), configuration, C, architecture
FORMS: dict[str, tuple[QuantizedFormat, str, tuple[int, int, int], StreamedConfig, str, str]] = {
    "one row": (INT4, "bf16", (100, 1, 1152), StreamedConfig(4, 3, 2, overlap=True, prefetch=2), "bf16", "sm_90a"),
    "odd features": (QuantizedFormat("int4", 64), "bf16", (71, 3, 320), StreamedConfig(2, 2, 1), "f32", "sm_90a"),
    "eight rows": (
        QuantizedFormat("int4", 32, True), "f16", (50, 8, 416), StreamedConfig(2, 4, 4), "f16", "sm_90a",
    ),
    "groups of 16": (NVFP4, "bf16", (40, 5, 528), StreamedConfig(4, 2, 2, 2), "bf16", "sm_90a"),
    "fused multiply-adds": (
        QuantizedFormat("int8", 128), "bf16", (48, 2, 384), StreamedConfig(2, 2, 4), "bf16", "sm_80",
    ),
    "many turns": (INT4, "bf16", (32, 1, 2432), StreamedConfig(2, 3, 2), "bf16", "sm_90a"),
    "scales of columns": (QuantizedFormat("e4m3"), "bf16", (35, 2, 300), StreamedConfig(2, 2, 4), "f32", "sm_90a"),
    "blocks that share K": (
        INT4, "bf16", (150, 7, 1152),
        StreamedConfig(2, 2, 4, overlap=True, prefetch=2, band=4, split=2, one_shift=True), "bf16", "sm_90a",
    ),
    "four blocks": (
        QuantizedFormat("int4", 32, True), "f16", (200, 8, 544),
        StreamedConfig(2, 2, 4, band=2, split=4, one_shift=True), "f32", "sm_90a",
    ),
    "bands": (
        QuantizedFormat("int4", 64, True), "bf16", (70, 3, 704), StreamedConfig(4, 2, 4, band=4, one_shift=True),
        "bf16", "sm_80",
    ),
    "constant weights": (
        INT4, "bf16", (100, 3, 1152),
        StreamedConfig(4, 3, 2, overlap=True, constant_weights=True, one_shift=True), "bf16", "sm_90a",
    ),
    "narrow scales": (MXFP8, "f16", (33, 4, 256), StreamedConfig(2, 3, 4), "f16", "sm_90a"),
}  # fmt: skip
FORMATS = [
    *[QuantizedFormat("int4", group) for group in (32, 64, 128, None)],
    *[QuantizedFormat("int4", group, zeros=True) for group in (32, 128)],
    QuantizedFormat("e4m3"), QuantizedFormat("e5m2"), QuantizedFormat("int8"), MXFP4, MXFP8, NVFP4,
]  # fmt: skip


def problem(form: str) -> tuple[StreamedPlan, PackedWeights, np.ndarray, np.ndarray, np.ndarray]:
    """The plan, packed weights, x, the product in float64, and its bound of error."""
    fmt, kind, (m, n, k), config, c, target = FORMS[form]
    plan = StreamedPlan.derive(
        m, n, k, a=kind, c=f"{c}:col", weights=fmt, config=config, arch=target, epilogue=fmt.epilogue() or None
    )
    rng = np.random.default_rng(3)
    packed = pack(quantize(rng.standard_normal((m, k)), fmt, kind), kind)
    x = np.asarray(plan.b.dtype.decode(plan.b.dtype.encode(rng.standard_normal((k, n)))), np.float32)
    dense = unpack(packed).dense()
    want, size = dense @ x.astype(np.float64), np.abs(dense) @ np.abs(x)
    return plan, packed, x, want, plan.c.dtype.unit_roundoff * np.abs(want) + 2.0**-18 * size


def right(
    plan: StreamedPlan, packed: PackedWeights, x: np.ndarray, want: np.ndarray, bound: np.ndarray, on: str
) -> bool:
    given = {} if packed.scales is None else None
    return bool((np.abs(plan.run(packed, x, given=given or {}, device=on).c - want) <= bound).all())


@pytest.mark.parametrize("form", FORMS)
def test_the_checks_hold_and_the_executor_is_right(form: str) -> None:
    plan, *rest = problem(form)
    plan.check().require()
    if not plan.epilogue:
        assert right(plan, *rest, "reference")


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", ["odd features", "constant weights", "groups of 16", *[
    pytest.param(form, marks=pytest.mark.slow)
    for form in ("eight rows", "many turns", "scales of columns", "narrow scales")
]])  # fmt: skip
def test_the_compiled_kernel_is_right_and_free_of_races(form: str) -> None:
    plan, *rest = problem(form)
    assert right(plan, *rest, "emulator")


@needs_dsl
@pytest.mark.dsl
def test_orders_of_copies_change_no_bit() -> None:
    plan, packed, x, want, bound = problem("one row")
    lines, found = np.ascontiguousarray(plan.b.dtype.encode(x.T)), []
    for policy in ORDERS:
        c = np.full((1, 104), -1).astype(np.uint16)
        sizes = (100, 1, 1152, 1, 1152, 1152, 104, 0, 0, 0, 3)
        done = emulate_launch(plan, (packed.units.reshape(-1), lines, c, *sizes, *[0] * 16), policy, progress=False)
        assert not done.findings, done.report()
        assert (c[:, 100:] == 0xFFFF).all()
        found.append(c[:, :100].copy())
    assert all(np.array_equal(each, found[0]) for each in found)
    assert (np.abs(np.asarray(plan.c.dtype.decode(found[0]), np.float64).T - want) <= bound).all()


@needs_dsl
@pytest.mark.dsl
def test_epilogue_steps_are_applied_in_order() -> None:
    fmt, rng = QuantizedFormat("int4"), np.random.default_rng(4)
    steps = (Bias("m"), Activation("relu"), Residual("f32"))
    plan = StreamedPlan.derive(
        72, 3, 300, weights=fmt, config=StreamedConfig(2, 2, 2), epilogue=fmt.epilogue(*steps), c="f32:col"
    )
    plan.check().require()
    packed = pack(quantize(rng.integers(-7, 8, (72, 300)), fmt))
    x, bias = rng.integers(-3, 4, (300, 3)).astype(np.float32), rng.standard_normal(72).astype(np.float32)
    residual = rng.integers(-9, 9, (72, 3)).astype(np.float32)
    found = plan.run(packed, x, given={"bias": bias, "d": residual, "beta": 2.0}, device="emulator")
    sums = unpack(packed).dense() @ x + bias[:, None]
    assert np.allclose(found.c, np.maximum(sums, 0) + 2 * residual, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_every_format_has_a_plan_that_holds(fmt: QuantizedFormat) -> None:
    for kind in ("bf16", "f16"):
        config = streamed_config(fmt, 128, 2, 2048, 132, arch("sm_90a"), kind)
        assert config is not None
        plan = StreamedPlan.derive(
            128, 2, 2048, a=kind, weights=fmt, config=config, epilogue=fmt.epilogue() or None
        )  # fmt: skip
        plan.check().require()
        assert f"{plan.stages} of {plan.a.slot_bytes} bytes a warp" in plan.explain()


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize(("rows", "k", "shifts"), [(1, 8192, 3), (4, 4096, 1)])
def test_the_chosen_kernel_of_a_decoder_spills_nothing(rows: int, k: int, shifts: int) -> None:
    config = streamed_config(INT4, 6144, rows, k, 132, arch("sm_90a"))
    assert config is not None and config.one_shift == (shifts == 1)
    compiled = StreamedPlan.derive(6144, rows, k, weights=INT4, config=config).compile()
    sass = compiled.sass()
    assert not sass.local_memory
    assert (sass.count("HADD2"), sass.count("HFMA2")) == ((0, 64) if shifts == 1 else (128, 0))
    assert "griddepcontrol.wait" in compiled.ptx


@pytest.mark.parametrize("name", ["sm_90a", "sm_120a"])
def test_a_multiprocessor_holds_the_blocks_that_a_chosen_grid_has_for_it(name: str) -> None:
    """Two blocks of a grid with one for each never share one."""
    facts = arch(name)
    for rows, n, k in itertools.product((1, 2, 3, 4), (1024, 4096, 28672), (2048, 4096, 14336)):
        config = streamed_config(INT4, n, rows, k, 132, facts, shared=facts.smem_per_block)
        if config is not None:
            plan = StreamedPlan.derive(n, rows, k, weights=INT4, arch=facts, config=config)
            each = plan.launch_bytes + facts.smem_reserved_per_block
            assert facts.smem_per_sm // each == config.blocks_per_sm, (rows, n, k)
            assert plan.smem.total <= plan.launch_bytes <= facts.smem_per_block
            assert replace(plan, config=replace(config, overlap=False, prefetch=0)).launch_bytes == plan.smem.total


def test_the_choice_knows_what_it_does_not_stream() -> None:
    hopper, blackwell, ada = arch("sm_90a"), arch("sm_100a"), arch("sm_80")
    assert streamed_config(INT4, 8192, MOST_ROWS + 1, 8192, 132, blackwell) is None
    assert streamed_config(INT4, 28672, 4, 4096, 132, hopper) is not None
    assert streamed_config(INT4, 8192, 4, 8192, 132, hopper) is None  # x is a quarter of a block's weights
    assert streamed_config(replace(INT4, group=64), 8192, 4, 8192, 132, hopper) is not None  # not timed
    assert streamed_config(INT4, 8192, 5, 8192, 132, hopper) is None  # by wgmma
    assert streamed_config(INT4, 8192, 1, 1024, 132, hopper) is None  # fewer units than warps
    assert streamed_config(INT4, 8192, 1, 8192, 132, hopper, "e4m3") is None
    assert streamed_config(INT4, 8192, 8, 131072, 132, blackwell) is None  # x is 262,144 bytes of each of eight blocks
    assert streamed_config(INT4, 8192, 8, 8192, 108, ada) is None  # x is 131,072 bytes, and there are no clusters
    shared = [streamed_config(INT4, 8192, rows, k, 132, blackwell) for rows, k in ((1, 8192), (8, 8192), (8, 20480))]
    assert [config.split for config in shared if config is not None] == [1, 2, 4]
    small = streamed_config(INT4, 8192, 1, 8192, 108, ada, "bf16", 99 * 1024)
    assert small is not None and not small.overlap
    assert StreamedPlan.derive(8192, 1, 8192, weights=INT4, arch=ada, config=small).smem.total <= 99 * 1024


def test_rows_up_to_a_power_of_two_share_a_kernel_and_depths_do_not() -> None:
    facts = [kernel_facts(StreamedPlan.derive(m, n, k, weights=INT4)) for m, n, k in SHARED]
    assert facts[0] == facts[1] != facts[2] and facts[0] != facts[3]


SHARED = ((64, 3, 2048), (8192, 4, 2048), (64, 2, 2048), (64, 4, 2176))


def test_pictures_and_pages_say_what_there_is() -> None:
    plan = problem("one row")[0]
    assert "3 slots of 1152 bytes for each warp" in plan_table(plan, "smem") and plan.svg(of="smem").startswith("<svg")
    assert plan.svg(of="a").startswith("<svg") and plan.svg(of="fragment").startswith("<svg")
    with pytest.raises(LayoutError, match="a streamed product has no picture of it"):
        plan.svg(of="order")
    with pytest.raises(PlanError, match="weights are packed"):
        plan.html()


CHANGED: dict[str, tuple[str, Any]] = {
    "B's map": ("fragments B", lambda p: replace(p, mma=replace(p.mma, layout_B=_OTHER))),
    "A's map": ("fragments A", lambda p: replace(p, mma=replace(p.mma, layout_A=_OTHER_A))),
    "fewer lines": ("copies B", lambda p: replace(p, b=replace(p.b, depth=512))),
    "sums over x": ("map", lambda p: replace(p, smem=replace(p.smem, c_offset=p.smem.c_offset - 64))),
    "slots too close": ("map", lambda p: replace(p, smem=replace(p.smem, b_offset=p.smem.b_offset - 16))),
    "smaller sums": ("sums", lambda p: replace(p, smem=replace(p.smem, c_buffer_bytes=64))),
    "fewer sums of blocks": ("sums of blocks", lambda p: replace(p, smem=replace(p.smem, received_bytes=64))),
    "sums of blocks over sums": (
        "map", lambda p: replace(p, smem=replace(p.smem, received_offset=p.smem.received_offset - 16)),
    ),
}  # fmt: skip
_OTHER_A = Layout(((4, 8), (2, 2, 2)), ((1, 32), (16, 8, 128)))
_OTHER = Layout(((4, 8), (2, 2)), ((8, 1), (32, 64)))


@pytest.mark.parametrize("what", CHANGED)
def test_a_changed_plan_fails_its_check(what: str) -> None:
    name, change = CHANGED[what]
    plan = problem("blocks that share K" if "blocks" in what else "one row")[0]
    failed = [check.name for check in change(plan).check().checks if not check]
    assert "derivation" in failed
    assert name in failed


FORMULAS: dict[str, tuple[type, str, str, Any]] = {
    "shares that overlap": (StreamedPlan, "share", "bands",
                            staticmethod(lambda b, n, s, least=min: (b * (s // n), (b + 1) * (s // n) + 1))),
    "units of one warp": (StreamedPlan, "unit_of", "units", lambda self, w, t, p: w * 0 + t),
    "places of one warp": (StreamedPlan, "place_of", "copies B", lambda self, w, t: w * 0 + t),
    "blocks of one part": (StreamedPlan, "unit_of", "units", lambda self, w, t, p: self.place_of(w, t) * 2),
    "bands of two row blocks": (StreamedWeights, "unit", "bands", lambda self, b: (b // 2, b % 2)),
    "items out of order": (StreamedPlan, "item", "units", lambda self, i: (i % self.turns, i // self.turns)),
    "one slot for all warps": (StreamedPlan, "slot", "units", lambda self, w, s: s * self.a.slot_bytes),
    "rows of the first quarter": (StreamedWeights, "copies", "slots",
                                  lambda self, lane, q, real=StreamedWeights.copies: real(self, lane, 0)),
    "too few bytes ahead": (StreamedWeights, "runs", "bytes ahead",
                            lambda self, q, real=StreamedWeights.runs: real(self, q)[:-1]),
    "lines without a gap": (StreamedRows, "chunk", "copies B", lambda self, i: (i * 0, i * 16)),
    "registers of the other": (StreamedRows, "load_of", "fragments B", lambda self, f: (f // 2, 2 - 2 * (f % 2))),
    "columns of one pair": (StreamedPlan, "coords_C", "sums", lambda self, t, v: (t % 16, v % 2)),
}  # fmt: skip


@pytest.mark.parametrize("what", FORMULAS)
def test_a_wrong_formula_fails_its_check(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of, method, name, wrong = FORMULAS[what]
    blocks = "block" in what
    plan = problem("blocks that share K" if blocks else "odd features" if name != "units" else "one row")[0]
    monkeypatch.setattr(of, method, wrong)
    assert name in [check.name for check in plan.check().checks if not check]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "rows": ({"n": 9}, "n = 9: a streamed product has 1 to 8 rows of x"),
    "group": ({"k": 200}, "k = 200 with groups of 128: the last group has 72 weights"),
    "type": ({"a": "tf32"}, "a is tf32 and b tf32: packed weights become bf16 or f16, as b is"),
    "float8": ({"a": "e4m3"}, "a is e4m3 and b e4m3: streamed products are of bf16 and f16"),
    "order of x": ({"b": "bf16:row"}, "a streamed product takes K contiguous, a 'row' and a 'col'"),
    "order of C": ({"c": "bf16"}, "a streamed product stores bf16, f16 or f32, 'col'"),
    "architecture": ({"arch": "sm_80", "config": StreamedConfig(overlap=True)}, "overlap=True needs griddepcontrol"),
    "memory": ({"n": 8, "k": 32768}, "of 18432 bytes for 16 warps beside x 524416 and sums 40960: 0 fit"),
    "warps": ({"config": StreamedConfig(34)}, "34 warps are 1088 threads; a block has 1024"),
    "column scale": ({"epilogue": QuantizedFormat("int4").epilogue()}, "the epilogue has weight_scale, and weights"),
    "reductions": ({"epilogue": Epilogue(RowReduce("sum"))}, "RowReduce reduces C, and a streamed product"),
    "largest value": ({"epilogue": Epilogue(Amax())}, "reduces C, and a streamed product has no reductions"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_the_argument_and_the_numbers(what: str) -> None:
    change, said = REFUSED[what]
    given = {"m": 64, "n": 2, "k": 256, "weights": INT4} | change
    with pytest.raises(PlanError, match=said.replace("(", r"\(")):
        StreamedPlan.derive(given.pop("m"), given.pop("n"), given.pop("k"), **given)


def test_configurations_and_operands_are_refused() -> None:
    with pytest.raises(PlanError, match="band = 3: 1, 2 or 4 of the 4 strips"):
        StreamedConfig(band=3)
    with pytest.raises(PlanError, match="strips = 4: a multiple of split = 3"):
        StreamedConfig(split=3)
    with pytest.raises(PlanError, match="prefetch = 2 before the kernel before has ended"):
        StreamedConfig(prefetch=2)
    plan, packed, x, *_ = problem("one row")
    other = pack(quantize(np.ones((100, 1152)), QuantizedFormat("int4", 64)))
    with pytest.raises(OperandError, match="the plan takes"):
        plan.run(other, x)
    with pytest.raises(OperandError, match="b"):
        plan.run(packed, x[:-1])
