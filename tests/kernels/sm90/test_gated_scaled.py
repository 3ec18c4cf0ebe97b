"""Gated products with scales: those of K blocks, of two places of one table, and those of sums before the gate."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from layoutgemm import plan as plan_of
from layoutgemm.atoms import smem_tile
from layoutgemm.atoms.smem.descriptor import derive as derive_descriptor
from layoutgemm.checks import read_by
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.compile.worker import Kernel, received, sent
from layoutgemm.kernels.compile.worker import plan_of as plan_of_kernel
from layoutgemm.kernels.epilogue.chain import Activation, Bias, Clamp, Epilogue, Scale, VectorScale
from layoutgemm.kernels.epilogue.numpy_math import Math
from layoutgemm.kernels.operands.combined import Combined
from layoutgemm.kernels.operands.gated import Gated
from layoutgemm.kernels.ragged import Ragged
from layoutgemm.kernels.sm80.plan import Sm80Config
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice
from layoutgemm.kernels.sm90.mainloop import mainloop_of, product_of
from layoutgemm.kernels.sm100.plan import Sm100Config
from tests import needs
from tests.kernels.sm90.other_orders import each_policy, stored_in_order

needs_dsl = needs.DSL
SLOW = [pytest.mark.slow]
SMALL = Sm90Config((64, 64), consumers=1, stages=2, loader="warp")
K = 272  # three K blocks, the last of 16
# Configuration, groups of scales, rows (a list: of groups, "masked" in front of counts) or M, columns of C, C, batch.
FORMS: dict[str, tuple[Sm90Config, tuple[int, ...], Any, int, str, int]] = {
    "whole groups": (SMALL, (1, 128), 70, 128, "bf16", 1),
    "between groups": (SMALL, (1, 128), 70, 88, "f32", 1),  # up's groups begin after 40 of its columns
    "odd": (replace(SMALL, store="direct"), (1, 128), 70, 97, "f16", 1),
    "each column": (SMALL, (1, 1), 70, 88, "f32", 1),
    "squares of a batch": (replace(SMALL, loader="self"), (128, 128), 70, 88, "bf16", 2),
    "across": (Sm90Config((128, 64), cluster=(1, 2)), (1, 128), 130, 72, "bf16:col", 1),
    "wide": (Sm90Config((256, 128), cluster=(1, 2), loader="warpgroup", chunks=1), (1, 128), 300, 136, "e4m3", 1),
    "halves": (Sm90Config((128, 256), stages=2, loader="warpgroup", chunks=1), (1, 128), 130, 144, "bf16", 1),
    "of A alone": (replace(SMALL, loaded_a_rows=8), (1,), 8, 88, "f32", 1),
    "no scales": (SMALL, (), 70, 88, "f32", 1),
    "parts": (replace(SMALL, one_tile_per_cluster=True, split=2), (1, 128), 70, 88, "bf16", 1),
    "rows": (SMALL, (1, 128), [0, 30, 1, 0, 65], 88, "f32", 5),
    "masked": (replace(SMALL, cluster=(1, 2)), (1, 128), ["masked", 66, 0, 1], 72, "bf16", 3),
}
ADDED = Combined.of(lambda x, y, ops: x + 2 * y)
EMULATED = ("between groups", "masked", "parts")
Case = tuple[Sm90Plan, np.ndarray, np.ndarray, dict[str, Any], np.ndarray]


def case(form: str, kind: str = "relu", **others: Any) -> Case:
    """Small integers and scales that are powers of two: every sum is exact. C in float64, then rounded."""
    config, groups, rows, n, c, batch = FORMS[form]
    masked = isinstance(rows, list) and rows[0] == "masked"
    counts = rows[masked:] if isinstance(rows, list) else []
    m = (max(counts) if masked else sum(counts)) if counts else rows
    loop, ragged = mainloop_of(groups), Ragged.of(batch, masked=masked) if counts else None
    plan = Sm90Plan.derive(
        m, n, K, batch=batch, a="e4m3", b="e4m3:col", c=c, config=config, mainloop=loop, gated=kind, ragged=ragged,
        **others,
    )  # fmt: skip
    rng, front = np.random.default_rng(3), (batch,) if batch > 1 else ()
    of_a = () if counts and not masked else front
    most = 1 if c == "e4m3" else 3
    a, w = (rng.integers(-most, most + 1, x).astype(np.float32) for x in ((*of_a, m, K), (*front, 2 * n, K)))
    given: dict[str, Any] = {}
    for table in loop.tables:
        shape = (*(of_a if table.axis == "m" else front), *table.shape(m, 2 * n, -(-K // 128)))
        given[table.name] = np.exp2(rng.integers(-2, 2, shape) - 4 * (c == "e4m3")).astype(np.float32)
    b = w.swapaxes(-1, -2)
    if ragged is None or masked:
        want = gated(kind, loop.reference(a, b, **given))
    else:
        ends = np.cumsum([0, *counts])
        parts = [
            loop.reference(a[x:y], b[e], **{name: v[x:y] if name == "scale_a" else v[e] for name, v in given.items()})
            for e, (x, y) in enumerate(pairwise(ends))
        ]
        want = gated(kind, np.concatenate(parts))
        given["offsets"] = ends.astype(np.int32)
    want = np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(want.astype(np.float32))))
    if masked:
        given["counts"] = np.asarray(counts, np.int32)
        want[np.arange(m)[None, :] >= given["counts"][:, None]] = np.nan
    return plan, a, b, given, want


def gated(kind: str, sums: np.ndarray) -> np.ndarray:
    """The definition, of sums in float64."""
    return Gated(kind).apply([x.astype(np.float32) for x in np.split(sums, 2, -1)], Math)


@pytest.mark.parametrize("form", [pytest.param(x, marks=SLOW * (x in ("wide", "across"))) for x in FORMS])
def test_executor_is_exact_and_the_checks_hold(form: str) -> None:
    plan, a, b, given, want = case(form)
    plan.check().require()
    assert np.array_equal(plan.run(a, b, given=given, device="reference").c, want, equal_nan=True)
    assert want[~np.isnan(want)].any()


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", [x if x in EMULATED else pytest.param(x, marks=SLOW) for x in FORMS])
def test_compiled_kernel_is_exact(form: str) -> None:
    plan, a, b, given, want = case(form)
    assert np.array_equal(plan.run(a, b, given=given, device="emulator").c, want, equal_nan=True)


@needs_dsl
@pytest.mark.dsl
@each_policy
@pytest.mark.parametrize("form", ["rows", *[pytest.param(x, marks=SLOW) for x in ("between groups", "halves")]])
def test_in_other_orders_of_events(form: str, policy: Policy) -> None:
    plan, a, b, given, want = case(form)
    found = stored_in_order(plan, a, b, given, policy)
    assert np.array_equal(plan.c.dtype.decode(found), want)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("kind", ["silu", pytest.param("gelu", marks=SLOW)])
def test_functions_are_within_their_bound(kind: str) -> None:
    plan, a, b, given, _ = case("between groups", kind)
    given["scale_a"] = given["scale_a"] / 16
    sums = mainloop_of((1, 128)).reference(a, b, **given)
    gate, up = np.split(sums, 2, -1)
    found, want = plan.run(a, b, given=given, device="emulator").c, gated(kind, sums)
    assert np.all(np.abs(found - want) <= 3e-6 * (1 + np.abs(gate)) * np.abs(up))
    assert np.abs(want).max() > 1


@needs_dsl
@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        Sm90Config((256, 128), loader="warpgroup", cluster=(1, 2), chunks=1, buffers=1),
        Sm90Config((64, 192), consumers=1, loader="warp", chunks=1, buffers=2),
        Sm90Config((128, 256), loader="warpgroup", cluster=(2, 1), chunks=1, buffers=1),
    ],
)
def test_production_tiles_have_no_local_memory(config: Sm90Config) -> None:
    plan = Sm90Plan.derive(
        4096, 4096, 4096, a="e4m3", b="e4m3:col", config=config, mainloop=mainloop_of((1, 128)), gated="silu"
    )
    plan.check().require()
    compiled = plan.compile()
    assert compiled.sass().local_memory == () and compiled.resources.local_bytes == compiled.resources.stack_bytes == 0
    assert compiled.sass().serialised_wgmma(len(plan.a.descriptor.k_steps)) is None


def failing(plan: Sm90Plan) -> set[str]:
    return {check.name for check in plan.check() if not check} - {"derivation"}


def test_numbers_of_the_wrong_columns_are_found() -> None:
    """Tables of other columns, and other columns of the same tables."""
    plan = case("between groups")[0]
    assert [table.unit for table in plan.mainloop.tables] == [0, 8]
    assert failing(replace(plan, mainloop=mainloop_of((1, 128)))) == {"promotion"}
    witness = next(x.witness for x in replace(plan, n=84).check() if x.name == "promotion")
    assert witness == "scale_b: 84 columns, a multiple of 8"
    wide = case("whole groups")[0]
    assert failing(replace(wide, n=96)) == set()  # 32 columns of each half in a tile, all of one group
    assert "promotion" in failing(replace(wide, n=80))
    assert "a thread reads 4 number(s) of scale_a, scale_b" in str(wide.check())


def test_halves_that_are_not_the_total_s_are_found() -> None:
    """256 columns are multiplied by an instruction of 128, whose registers and columns of B are checked."""
    plan = case("halves")[0]
    half, descriptor, parts = product_of(plan)
    assert (half.shape_mnk[1], parts, descriptor.mn_steps) == (128, 2, (0, 128 * 128))
    assert "in 2 parts of 128 columns" in plan.explain()
    (check,) = [x for x in plan.check() if x.name == "products"]
    assert check and "value v of part i is value v + 64 i of the total" in check.statement
    other = derive_descriptor(smem_tile((256, 128), "e4m3", "K", "64B"), half, "B")
    assert not read_by("products", plan.b.smem, other, half, "B")
    assert product_of(case("whole groups")[0])[2] == 1


def test_tables_and_refusals() -> None:
    plan, a, b, given, _ = case("between groups")
    with pytest.raises(OperandError, match=r"scale_b is float32 of shape \(1, 3\): it takes float32 of shape \(2, 3\)"):
        plan.run(a, b, given={**given, "scale_b": given["scale_b"][:1]}, device="reference")
    usual = {"a": "e4m3", "b": "e4m3:col", "config": SMALL, "mainloop": mainloop_of((1, 128)), "gated": "silu"}
    for changed, text in (
        ({"config": replace(SMALL, one_tile_per_cluster=True, split=8)}, "and K in 8 parts: a multiple of 128"),
        ({"config": replace(SMALL, tile=(64, 24))}, "24 columns, half of them the gate's"),
    ):
        with pytest.raises(PlanError, match=text):
            Sm90Plan.derive(64, 64, 256, **{**usual, **changed})


# ------------------------------------------------------------------------------------------------ steps before the gate

BEFORE = {  # steps, configuration, columns of C, C, batch
    "rows and columns": (
        Epilogue(VectorScale("m", name="sa"), VectorScale("n", name="sb"), Bias("n", "bf16"), Clamp(-50, 50), sums=3),
        SMALL, 88, "bf16", 1,
    ),
    "pairs": (Epilogue(VectorScale("n", name="sb"), Bias(), sums=2).in_pairs(), SMALL, 88, "f32", 2),
    "tensors": (
        Epilogue(Scale("sa", device=True), Scale("sb"), VectorScale("n", name="after"), sums=2),
        replace(SMALL, store="direct"), 97, "f32", 1,
    ),
}  # fmt: skip


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", [x if x == "rows and columns" else pytest.param(x, marks=SLOW) for x in BEFORE])
def test_an_epilogue_has_steps_before_the_gate(form: str) -> None:
    epilogue, config, n, c, batch = BEFORE[form]
    m, k, front = 70, 144, (batch,) if batch > 1 else ()
    plan = Sm90Plan.derive(
        m, n, k, batch=batch, a="e4m3", b="e4m3:col", c=c, config=config, gated="relu", epilogue=epilogue
    )
    plan.check().require()
    rng = np.random.default_rng(1)
    a, w = (rng.integers(-3, 4, x).astype(np.float32) for x in ((*front, m, k), (*front, 2 * n, k)))
    given: dict[str, Any] = {}
    for operand in epilogue.given:
        shape = () if operand.host else (*(front if operand.axes else ()), *operand.shape(m, n))
        given[operand.name] = np.exp2(rng.integers(-2, 2, shape)).astype(np.float32)
    assert given["sb"].shape[-1:] in ((2 * n,), ())
    b = w.swapaxes(-1, -2)
    sums = np.matmul(a, b, dtype=np.float64).astype(np.float32)
    wide = sums.astype(np.float64)  # from the definition, whatever the steps' own reference
    for name in ("sa", "sb", "bias"):
        if name in given:
            value = given[name][..., None] if name == "sa" and given[name].ndim else given[name]
            value = value[..., None, :] if name != "sa" and value.ndim else value
            wide = wide + value if name == "bias" else wide * value
    want = gated("relu", wide)
    want = np.clip(want, -50, 50) if c == "bf16" else want * given["after"] if "after" in given else want
    found = epilogue.reference_of_sums(sums, lambda both: Gated("relu").apply(both, Math), **given).c
    assert np.array_equal(found, want)
    want = np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(want.astype(np.float32))))
    assert np.array_equal(plan.run(a, b, given=given, device="emulator").c, want)


def test_what_may_not_precede_a_gate() -> None:
    before = Epilogue(VectorScale("m"), sums=1)
    assert [operand.places for operand in Epilogue(Bias(), VectorScale(), sums=1).given] == [2, 1]
    assert before.in_pairs().sums == 1 and before != Epilogue(VectorScale("m"))
    for make, text in (
        (lambda: Epilogue(Activation("relu"), sums=1), "before a gate are Scale, VectorScale and Bias, not Activation"),
        (lambda: Epilogue(Bias(), sums=2), "sums = 2: before a gate are 0 to 1 steps"),
        (lambda: before.transposed(), "a gated product's operands do not change places"),
        (lambda: before.reference(np.ones((2, 2)), scale=np.ones(2)), "steps before a gate, which `reference_of_sums`"),
        (lambda: Sm90Plan.derive(64, 64, 64, epilogue=before), "sums = 1: .* before a gate, and there is none"),
    ):
        with pytest.raises(PlanError, match=text):
            make()
    kernel = Kernel(Sm90Choice(SMALL), ("e4m3:row", "e4m3:col", "bf16:row"), False, before, "silu")
    plan = received(sent(plan_of_kernel(kernel)))
    assert plan == plan_of_kernel(kernel).for_any_size() and plan.epilogue.sums == 1


@pytest.mark.parametrize("arch", ["sm_90a", "sm_89", "sm_100a"])
def test_several_b_have_scales_of_their_own(arch: str) -> None:
    """24 columns are no whole group of 128: the second matrix's numbers begin at a group."""
    configs = {"sm_90a": SMALL, "sm_89": Sm80Config((16, 32), warps=(1, 1)), "sm_100a": Sm100Config((128, 64))}
    config: Any = configs[arch]
    m, n, k = 8, 24, 144
    rng = np.random.default_rng(0)
    a, b, b1 = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n), (k, n)))
    of_a, of_b = (2.0 ** rng.integers(-1, 2, shape).astype(np.float32) for shape in ((m, 2), (2, 2)))
    made = plan_of(
        m, n, k, arch=arch, a="e4m3", b="e4m3:col", c="f32", gated=ADDED, mainloop=mainloop_of((1, 128)), config=config
    )
    scaled = np.repeat(of_a, 128, 1)[:, :k] * a
    left, right = (scaled @ (np.repeat(of_b[i], 128)[:k, None] * x) for i, x in enumerate((b, b1)))
    given = {"b1": b1, "scale_a": of_a, "scale_b": of_b}
    assert np.array_equal(made.run(a, b, given=given, device="reference").c, left + 2 * right)
    with pytest.raises(OperandError, match=r"scale_b is float32 of shape \(1, 2\): it takes float32 of shape \(2, 2\)"):
        made.run(a, b, given={**given, "scale_b": of_b[:1]}, device="reference")
