"""Sums of A's rows beside a product, as a bias's gradient beside its weight's."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from layoutgemm.dtypes import dtype
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import AlongK, Sm90Config, Sm90Plan
from layoutgemm.kernels.run.arrays import global_matrix
from layoutgemm.kernels.run.emulated import emulate_plan
from layoutgemm.kernels.run.epilogue_operands import values_read, words_read
from layoutgemm.kernels.sm90.operands import row_sums as module
from layoutgemm.kernels.sm90.operands.row_sums import RowSums
from tests import needs
from tests.kernels.sm90.other_orders import each_policy

SLOW = [pytest.mark.slow]
LOADER = Sm90Config((64, 64), consumers=1, stages=3, loader="warp")
# Configuration, type of the sums, M, N, K or the lines of groups along K, and the batch.
FORMS: dict[str, tuple[Sm90Config, str, int, int, int | tuple[int, ...], int]] = {
    "loader": (LOADER, "f32", 136, 136, 200, 1),
    "self": (Sm90Config((128, 128), stages=3), "bf16", 136, 200, 200, 1),
    "pair": (Sm90Config((128, 64), stages=3, cluster=(2, 1), loader="warpgroup"), "f32", 200, 72, 136, 2),
    "rows": (Sm90Config((256, 64), stages=3), "f16", 300, 72, 130, 1),
    "pingpong": (Sm90Config((64, 64), stages=3, schedule="pingpong", loader="warpgroup"), "f32", 136, 136, 130, 1),
    "groups": (LOADER, "f32", 136, 88, (70, 0, 64, 33), 1),
}
Problem = tuple[Sm90Plan, np.ndarray, np.ndarray, dict[str, Any], np.ndarray, np.ndarray]


@lru_cache
def problem(form: str) -> Problem:
    """A plan, its operands of small integers, C, and the sums."""
    config, kind, m, n, of_k, batch = FORMS[form]
    lines = of_k if isinstance(of_k, tuple) else ()
    k, groups = (sum(of_k), len(of_k)) if isinstance(of_k, tuple) else (of_k, batch)
    plan = Sm90Plan.derive(
        m, n, k, batch=groups, a="bf16:col", b="bf16:row", c="f32", config=config, row_sums=RowSums(kind),
        along_k=AlongK.of(groups) if lines else None,
    )  # fmt: skip
    rng, front = np.random.default_rng(0), (batch,) if batch > 1 else ()
    a, b = (rng.integers(-2, 3, (*front, *shape)).astype(np.float32) for shape in ((m, k), (k, n)))
    if not lines:
        return plan, a, b, {}, a @ b, a.sum(-1)
    offsets = np.cumsum([0, *lines]).astype(np.int32)
    parts = list(pairwise(offsets))
    want = np.stack([a[:, s:e] @ b[s:e] for s, e in parts])
    return plan, a, b, {"offsets": offsets}, want, np.stack([a[:, s:e].sum(1) for s, e in parts])


def memory(plan: Sm90Plan, shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, 7, np.float32 if plan.row_sums.kind == "f32" else np.uint16)


def run(form: str, device: str) -> None:
    plan, a, b, given, want, sums = problem(form)
    into = memory(plan, sums.shape)
    assert np.array_equal(plan.run(a, b, given={**given, "row_sums": into}, device=device).c, want)
    kind = plan.row_sums.kind
    assert np.array_equal(into if kind == "f32" else dtype(kind).decode(into), sums)


@pytest.mark.parametrize("form", [pytest.param(x, marks=SLOW * (x in ("rows", "pingpong"))) for x in FORMS])
def test_executor_and_checks(form: str) -> None:
    problem(form)[0].check().require()
    run(form, "reference")


@needs.DSL
@pytest.mark.dsl
@pytest.mark.parametrize("form", [pytest.param(x, marks=SLOW * (x not in ("self", "groups"))) for x in FORMS])
def test_compiled_kernel(form: str) -> None:
    run(form, "emulator")


@needs.DSL
@pytest.mark.dsl
@pytest.mark.slow
@each_policy
def test_in_other_orders_of_events(policy: Policy) -> None:
    plan, a, b, given, want, sums = problem("groups")
    into = memory(plan, sums.shape)
    lying = [global_matrix(operand, x, [], True) for operand, x in ((plan.a, a), (plan.b, b))]
    words = words_read(plan, values_read(plan, {**given, "row_sums": into}))
    found, done = emulate_plan(plan, lying[0], lying[1], policy, progress=False, given=words)
    done.raise_for_findings()
    assert np.array_equal(plan.c.dtype.decode(found), want) and np.array_equal(into, sums)


@needs.DSL
@pytest.mark.dsl
@pytest.mark.slow
def test_the_compiled_code() -> None:
    """No spills, and products of a K tile are issued together."""
    for config in (Sm90Config((128, 256), cluster=(2, 1), chunks=1), Sm90Config((256, 192), cluster=(1, 2), chunks=1)):
        plan = Sm90Plan.derive(512, 512, 4096, a="bf16:col", b="bf16:row", config=config, row_sums=RowSums("bf16"))
        plan.check().require()
        sass, steps = plan.compile().sass(), len(plan.a.descriptor.k_steps)
        assert sass.local_memory == () and max(sass.wgmma_runs) == steps * plan.blocks
        assert sass.serialised_wgmma(steps) is None
    large = Sm90Config((256, 224), cluster=(2, 1))
    plan = Sm90Plan.derive(512, 512, 4096, a="bf16:col", b="bf16:row", config=large, row_sums=RowSums())
    assert [check.name for check in plan.check() if not check] == ["registers"]


def test_wrong_plans_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = problem("loader")[0]

    def failing() -> set[str]:
        return {check.name for check in plan.check() if not check} - {"derivation"}

    assert failing() == set()
    for name, wrong in (
        ("FIRST_ROW", lambda lane, warp: 16 * warp + lane // 2 % 2 * 8),  # lanes that meet have other rows
        ("column_of", lambda lane, load: lane // 2 + load * 16),  # right, but with bank conflicts
        ("column_of", lambda lane, load: lane // 4 + load * 16),  # half of the elements, twice
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, wrong)
            assert failing() == {"sums of A's rows"}


def test_refusals() -> None:
    def derive(**given: Any) -> Sm90Plan:
        usual = {"a": "bf16:col", "b": "bf16:row", "config": LOADER, "row_sums": RowSums()}
        return Sm90Plan.derive(64, 64, 128, **{**usual, **given})

    early = Sm90Config((256, 64), staged_epilogue_k_tiles=1)
    for given, text in (
        ({"a": "bf16"}, "a is bf16 row-major: sums of its rows are of bf16 and f16 with M contiguous"),
        ({"a": "e4m3", "b": "e4m3:col"}, "a is e4m3 row-major: sums of its rows"),
        ({"config": replace(LOADER, split=2, one_tile_per_cluster=True)}, "split = 2: sums of A's rows take 1"),
        ({"config": early}, "staged_epilogue_k_tiles = 1"),
        ({"gated": "silu", "b": "bf16:col"}, "no kernel has a gate and sums of A's rows"),
        ({"order": "lower"}, "no kernel has sums of A's rows and an order of some tiles"),
    ):
        with pytest.raises(PlanError, match=text):
            derive(**given)
    with pytest.raises(PlanError, match="row_sums of 'i32': 'f32', 'bf16' or 'f16'"):
        RowSums("i32")
    plan, a, b, _, _, sums = problem("loader")
    for into, text in (
        (None, "row_sums is None: it takes contiguous float32 of"),
        (sums.astype(np.float64), r"row_sums is float64 of shape \(136,\): it takes contiguous float32"),
        (sums[:5].astype(np.float32), r"row_sums is float32 of shape \(5,\)"),
        (np.zeros(272, np.float32)[::2], "it must be contiguous"),
    ):
        with pytest.raises(OperandError, match=text):
            plan.run(a, b, given={"row_sums": into}, device="reference")
    assert str(plan).endswith("sums of A's rows in f32") and "sums of A's rows: f32 of 136" in plan.explain()
