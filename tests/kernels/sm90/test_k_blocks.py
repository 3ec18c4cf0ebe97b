"""Groups along K of 8-bit floats: they begin at K blocks of 128, each with its scales."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import AlongK, Promoted, Sm90Config, Sm90Plan, Table
from layoutgemm.kernels.grouped import along_k as module
from layoutgemm.kernels.run.arrays import global_matrix
from layoutgemm.kernels.run.cpu import executed
from layoutgemm.kernels.run.epilogue_operands import words_read
from layoutgemm.kernels.sm90.mainloop import mainloop_of
from tests import needs
from tests.kernels.sm90.other_orders import each_policy, stored_in_order

SLOW = [pytest.mark.slow]
LOADER = Sm90Config((64, 64), consumers=1, stages=3, loader="warp")
PAIR = Sm90Config((128, 64), stages=2, loader="warpgroup", cluster=(2, 1), chunks=1, buffers=1)
SIZES = (128, 0, 256, 72)
# Configuration, rows and columns that share a scale, lines of each group, and lines of none behind them.
FORMS: dict[str, tuple[Sm90Config, tuple[int, ...] | None, tuple[int, ...], int]] = {
    "blocks": (LOADER, (1, 128), SIZES, 0),
    "columns": (replace(LOADER, stages=2), (1, 1), (0, 128, 128), 130),
    "pair": (PAIR, (1, 128), (256, 0, 128), 0),
    "alone": (LOADER, (1, 128), (128,), 40),
    "no scales": (LOADER, None, SIZES, 0),
    "self": (replace(LOADER, loader="self"), None, SIZES, 0),
    "added": (LOADER, (), (128, 128), 0),
    "halves": (replace(LOADER, tile_k=64), None, (128, 0, 256), 0),
}
M, N = 136, 88
Problem = tuple[Sm90Plan, np.ndarray, np.ndarray, dict[str, Any], np.ndarray]


@lru_cache
def problem(form: str, ends: bool = False) -> Problem:
    """A plan, its operands of small integers, and C in float64."""
    config, scales, sizes, more = FORMS[form]
    groups, k = len(sizes), sum(sizes) + more
    plan = Sm90Plan.derive(
        M, N, k, batch=groups, a="e4m3", b="e5m2:col", c="f32", config=config,
        along_k=AlongK.of(groups, ends=ends, multiple=128), mainloop=None if scales is None else mainloop_of(scales),
    )  # fmt: skip
    rng, blocks = np.random.default_rng(1), -(-k // 128)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((M, k), (k, N)))
    offsets = np.cumsum([0, *sizes]).astype(np.int32)
    given: dict[str, Any] = {"ends": offsets[1:]} if ends else {"offsets": offsets}
    wide = [a.astype(np.float64), b.astype(np.float64)]
    if scales:
        tables = [np.exp2(rng.integers(-2, 3, (-(-x // of), blocks))) for x, of in zip((M, N), scales, strict=True)]
        given["scale_a"] = np.asfortranarray(tables[0].astype(np.float32))  # bulk copies take whole tiles' rows
        given["scale_b"] = tables[1].astype(np.float32)
        wide[0] *= np.repeat(tables[0], 128, 1)[:, :k]
        wide[1] *= np.repeat(np.repeat(tables[1], scales[1], 0)[:N], 128, 1)[:, :k].T
    want = np.stack([wide[0][:, s:e] @ wide[1][s:e] for s, e in pairwise(offsets)])
    return plan, a, b, given, want if groups > 1 else want[0]


@pytest.mark.parametrize("form", [pytest.param(x, marks=SLOW * (x in ("halves", "added", "alone"))) for x in FORMS])
def test_executor_is_exact_and_the_checks_hold(form: str) -> None:
    plan, a, b, given, want = problem(form, ends=FORMS[form][3] > 0)
    plan.check().require()
    assert np.array_equal(plan.run(a, b, given=given, device="reference").c, want)
    assert "groups begin at multiples of 128" in plan.explain()


@needs.DSL
@pytest.mark.dsl
@pytest.mark.parametrize("form", [pytest.param(x, marks=SLOW * (x not in ("columns", "self"))) for x in FORMS])
def test_compiled_kernel_is_exact(form: str) -> None:
    plan, a, b, given, want = problem(form, ends=FORMS[form][3] > 0)
    assert np.array_equal(plan.run(a, b, given=given, device="emulator").c, want)


@needs.DSL
@pytest.mark.dsl
@pytest.mark.parametrize("form", ["blocks", pytest.param("pair", marks=SLOW)])
@each_policy
def test_in_other_orders_of_events(form: str, policy: Policy) -> None:
    plan, a, b, given, want = problem(form)
    given = {name: np.ascontiguousarray(x) for name, x in given.items()}  # copied one by one, without a lint
    assert np.array_equal(plan.c.dtype.decode(stored_in_order(plan, a, b, given, policy)), want)


def unseen(form: str, offsets: tuple[int, ...], device: str) -> np.ndarray:
    """C by offsets that no host has checked."""
    plan, a, b, given, _ = problem(form)
    values = {**given, "offsets": np.asarray(offsets, np.int64)}
    lying = [global_matrix(operand, x, [], True) for operand, x in ((plan.a, a), (plan.b, b))]
    return executed(plan, lying[0], lying[1], device, values, words_read(plan, values))


@needs.DSL
@pytest.mark.dsl
@pytest.mark.parametrize("form", ["blocks", pytest.param("no scales", marks=SLOW)])
def test_a_group_inside_of_a_block_is_nan_and_no_other_is(form: str) -> None:
    """The third group begins inside of a block, where the second ends; the fourth is right."""
    want = problem(form)[-1]
    for device in ("reference", "emulator"):
        got = unseen(form, (0, 128, 200, 384, 456), device)
        assert np.array_equal(got[0], want[0]) and np.isnan(got[1:3]).all()
        assert not np.isnan(got[3]).any()
        # Beyond both ends of K, and backwards: held to K, and empty.
        got = unseen(form, (-500, 128, 128, 0, 9999), device)
        assert np.array_equal(got[0], want[0]) and not got[1:3].any() and not np.isnan(got[3]).any()


@needs.DSL
@pytest.mark.dsl
def test_an_empty_group_is_zeros_whatever_the_scales() -> None:
    plan, a, b, given, want = problem("blocks")
    offsets = np.array([0, 0, 128, 256, 256], np.int32)  # the last one begins at a block of no group
    more = AlongK.of(4, ends=True, multiple=128)
    made = replace(plan, along_k=more)
    scales = {
        name: np.where(np.arange(4) < 2, given[name], np.nan).astype(np.float32) for name in ("scale_a", "scale_b")
    }
    got = made.run(a, b, given={**scales, "ends": offsets[1:]}, device="emulator").c
    assert not got[0].any() and not got[3].any() and np.array_equal(got[1], want[0])


def failing(plan: Sm90Plan) -> set[str]:
    return {check.name for check in plan.check() if not check} - {"derivation"}


def test_wrong_plans_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = problem("blocks")[0]
    right = module.block_place
    starts = {"starts of groups A", "starts of groups B"}
    for wrong in (
        lambda plan, start, end, k_tile, k, choose: right(plan, start, k, k_tile, k, choose),  # an empty group reads
        lambda plan, start, end, k_tile, k, choose: right(plan, start + 16, end, k_tile, k, choose),
        lambda plan, start, end, k_tile, k, choose: right(plan, start, end, 0, k, choose),
    ):
        monkeypatch.setattr(module, "block_place", wrong)
        assert failing(plan) == starts
    monkeypatch.undo()
    monkeypatch.setattr(module, "is_inside", lambda line, multiple, k: line % multiple != 0)
    assert failing(plan) == {"groups inside of blocks"}
    monkeypatch.undo()
    assert failing(plan) == set()


def test_the_first_block_is_one_of_k() -> None:
    plan = problem("blocks")[0]
    assert [module.first_block(plan, start, 456, min) for start in (0, 128, 384, 456)] == [0, 1, 3, 3]


def test_refusals() -> None:
    def derive(**given: Any) -> Sm90Plan:
        usual = {"a": "e4m3", "b": "e4m3:col", "config": LOADER, "batch": 2, "along_k": AlongK.of(2, multiple=128)}
        return Sm90Plan.derive(64, 64, 512, **{**usual, **given})

    self_loading = replace(LOADER, loader="self")
    for given, text in (
        ({"a": "bf16", "b": "bf16:col"}, "a is bf16 row-major: groups at multiples of 128 are of floats of 8 bits"),
        ({"a": "i8", "b": "i8:col"}, "a is i8 row-major: groups at multiples of 128 are of floats of 8 bits"),
        ({"config": replace(LOADER, tile_k=96)}, "tile_k = 96: groups end at multiples of 128, which K tiles have to"),
        ({"config": self_loading, "mainloop": mainloop_of((1, 1))}, "loader = 'self': a main loop that promotes"),
        ({"mainloop": mainloop_of((1, 128), 4)}, "span = 4: groups begin at any K block"),
        (
            {"mainloop": Promoted.of(lambda t, x, s: t + s * x, Table("s", "m"), depth=64),
             "a": "bf16:col", "b": "bf16:row", "along_k": AlongK.of(2)},
            "mainloop: K blocks begin at multiples of their depth, and groups along K at any line",
        ),
    ):  # fmt: skip
        with pytest.raises(PlanError, match=text):
            derive(**given)
    with pytest.raises(PlanError, match="multiple = 64: groups along K begin at any line, 1, or at 128"):
        AlongK.of(2, multiple=64)
    plan, a, b, given, _ = problem("blocks")
    inside = given["offsets"].copy()
    inside[2] = 200
    with pytest.raises(OperandError, match=r"offsets\[2\] = 200 = 1 \* 128 \+ 72: groups of K in blocks begin at"):
        plan.run(a, b, given={**given, "offsets": inside}, device="reference")
    with pytest.raises(
        OperandError, match=r"scale_a is float32 of shape \(2, 4\): it takes float32 of shape \(136, 4\)"
    ):
        plan.run(a, b, given={**given, "scale_a": given["scale_a"][:2]}, device="reference")
