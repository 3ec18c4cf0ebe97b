"""A second pair of matrices into the same accumulators: C = A @ B + A2 @ B2, K tiles of one pair after the other's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import AlongK, Sm90Config, Sm90Plan
from layoutgemm.kernels import plan as choose_plan
from layoutgemm.kernels.compile.worker import Kernel, plan_of, received, sent
from layoutgemm.kernels.epilogue.chain import Bias, ColumnReduce, Epilogue
from layoutgemm.kernels.operands import pair
from layoutgemm.kernels.operands.combined import Combined
from layoutgemm.kernels.operands.pair import SecondPair, pair_check
from layoutgemm.kernels.orders import order_values, stored_elements
from layoutgemm.kernels.quantized.formats import MXFP4
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice
from layoutgemm.kernels.sm90.shards import Gathered
from layoutgemm.schedule import Linear, Rotated
from tests import needs

needs_dsl = needs.DSL
SMALL = Sm90Config((64, 64), consumers=1, stages=2)
SIZES = (72, 88, 136)  # ragged along each
FORMS: dict[str, tuple[str, str, str, int, Sm90Config]] = {
    "self": ("bf16", "bf16:col", "f32", 16, SMALL),
    "last span in part": ("bf16:col", "bf16:row", "f32", 72, replace(SMALL, tile=(64, 80), cluster=(2, 1))),
    "in turn": ("bf16", "bf16:col", "bf16", 8, Sm90Config((64, 64), schedule="pingpong", loader="warp", stages=2)),
    "parts of K": ("bf16", "bf16:col", "f32", 136, replace(SMALL, one_tile_per_cluster=True, split=2)),
    "reversed": ("bf16", "bf16:col", "f32", 200, replace(SMALL, tuning=replace(SMALL.tuning, reverse_odd_tiles=True))),
    "fetched ahead": ("f16", "f16:col", "f16", 24, SMALL.tuned(overlap=True, prefetch=2)),
    "chunks of two widths": ("bf16", "bf16:row", "f32", 16, replace(SMALL, tile=(64, 120))),
    "e4m3": ("e4m3", "e4m3:col", "f32", 16, replace(SMALL, cluster=(1, 2))),
}
EMULATED = ("last span in part", "in turn", "parts of K", "fetched ahead")


def integers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


def problem(form: str) -> tuple[Sm90Plan, np.ndarray, np.ndarray, dict[str, Any], np.ndarray]:
    """A plan, A and B, the second pair by name, and C by definition."""
    a, b, c, k2, config = FORMS[form]
    m, n, k = SIZES if a != "e4m3" else (72, 88, 144)
    plan = Sm90Plan.derive(m, n, k, a=a, b=b, c=c, config=config, pair=k2)
    one, two, three, four = (integers(s, i) for i, s in enumerate(((m, k), (k, n), (m, k2), (k2, n))))
    want = plan.c.dtype.decode(plan.c.dtype.encode(one @ two + three @ four))
    return plan, one, two, {"a2": three, "b2": four}, np.asarray(want)


@pytest.mark.parametrize("form", FORMS)
def test_executor_is_exact_and_the_checks_hold(form: str) -> None:
    plan, a, b, given, want = problem(form)
    plan.check().require()
    assert np.array_equal(plan.run(a, b, given=given, device="reference").c, want)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", EMULATED)
def test_compiled_kernel_is_exact(form: str) -> None:
    plan, a, b, given, want = problem(form)
    assert np.array_equal(plan.run(a, b, given=given, device="emulator").c, want)
    code, steps = plan.compile(), len(plan.a.descriptor.k_steps)
    assert code.sass().serialised_wgmma(steps * plan.blocks) is None and code.resources.local_bytes == 0


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize(
    ("order", "more"), [("lower", {}), (Rotated(Linear("N"), ranks=4), {"rank": 3})], ids=["lower", "rank"]
)
def test_orders_of_tiles(order: Any, more: dict[str, int]) -> None:
    """The words of the order come behind those of the second pair."""
    _, a, b, given, want = problem("self")
    plan = Sm90Plan.derive(*SIZES, b="bf16:col", c="f32", config=SMALL, pair=16, order=order)
    assert plan.words == ("a2", "lda2", "b2", "ldb2", "k2", *more)
    plan.check().require()
    stored = stored_elements(plan, order_values(plan, more))
    for device in ("reference", "emulator"):
        found = plan.run(a, b, given={**given, **more}, device=device).c
        inside = np.ones(want.shape, bool) if stored is None else stored
        assert np.array_equal(np.where(inside, found, 0), np.where(inside, want, 0))
    assert (stored is None) == bool(more)


@needs_dsl
@pytest.mark.dsl
def test_an_epilogue_follows_the_sum() -> None:
    _, a, b, given, want = problem("self")
    epilogue = Epilogue(Bias(), ColumnReduce(), stores_c=False)
    plan = Sm90Plan.derive(*SIZES, b="bf16:col", c="f32", config=SMALL, pair=16, epilogue=epilogue)
    bias = integers((SIZES[1],), 9)
    found = plan.run(a, b, given={**given, "bias": bias}, device="emulator")
    assert found.c is None and np.array_equal(found.written["column_sum"], (want + bias).sum(0))
    with pytest.raises(OperandError, match="a2 is missing"):
        plan.run(a, b, given={"bias": bias}, device="emulator")


def test_a_k_tile_of_the_wrong_pair_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = problem("self")[0]
    assert pair_check(plan)
    right = pair.place_in_pairs
    monkeypatch.setattr(pair, "place_in_pairs", lambda t, first, depth, choose: right(t, first + 1, depth, choose))
    assert "K = 1 and 1" in pair_check(plan).witness
    monkeypatch.setattr(pair, "place_in_pairs", lambda t, first, depth, choose: right(t, 0, depth, choose))
    assert not pair_check(plan)


def test_one_kernel_serves_every_k() -> None:
    plan = problem("self")[0]
    other = Sm90Plan.derive(200, 40, 64, b="bf16:col", c="f32", config=SMALL, pair=1000)
    assert plan.for_any_size() == other.for_any_size() and plan.pair != other.pair
    assert plan.words == ("a2", "lda2", "b2", "ldb2", "k2") and plan.k_tiles == 4
    assert "second pair: 1 of 4 K tiles, the last ones, are of A2 and B2" in plan.explain()
    kernel = Kernel(Sm90Choice(SMALL), ("bf16:row", "bf16:col", "f32:row"), paired=True)
    assert received(sent(plan_of(kernel))) == plan_of(kernel).for_any_size() and kernel.takes_words


# Of each sum: the function, its numbers, B's order, columns of C, and the configuration.
BOTH = Combined.of(lambda x, y, ops, s: x * y + s * x, numbers=("s",))
THREE = Combined.of(lambda x, y, z, ops: x * y - z)
FOUR = Combined.of(lambda x, y, z, w, ops: x * y - z * w)
OF_SUMS: dict[str, tuple[Any, dict[str, float], str, int, Sm90Config]] = {
    "two sums": (BOTH, {"s": 3.0}, "col", 40, SMALL),
    "two sums, shared loads": (BOTH, {"s": 3.0}, "col", 40, replace(SMALL, cluster=(2, 1), tile=(64, 112))),
    "two sums, parts of K": (BOTH, {"s": 3.0}, "row", 40, Sm90Config((64, 128), consumers=1, stages=2, split=2,
                             one_tile_per_cluster=True)),
    "three sums": (THREE, {}, "col", 40, replace(SMALL, tile=(64, 96), store="direct")),
    "a gate": ("relu", {}, "col", 40, replace(SMALL, cluster=(1, 2))),
}  # fmt: skip
EMULATED_SUMS = (
    "two sums, shared loads", pytest.param("three sums", marks=pytest.mark.slow),
    pytest.param("a gate", marks=pytest.mark.slow),
)  # fmt: skip


def problem_of_sums(form: str) -> tuple[Sm90Plan, np.ndarray, np.ndarray, dict[str, Any], np.ndarray]:
    """A plan of several sums of two pairs each, its operands, and C by definition."""
    how, numbers, order, n, config = OF_SUMS[form]
    (m, _, k), k2 = SIZES, 72
    plan = Sm90Plan.derive(m, n, k, b=f"bf16:{order}", c="f32", config=config, gated=how, pair=k2)
    assert plan.gated is not None and plan.pair is not None
    width = n * plan.halves
    given: dict[str, Any] = {**numbers, "a2": integers((m, k2), 1)}
    first = ["b", *[name for name, _ in plan.gated.places]]
    given |= {name: integers((k, width), 2 + i) for i, name in enumerate(first)}
    given |= {name: integers((k2, width), 7 + i) for i, name in enumerate(plan.pair.of_b)}
    a, b = integers((m, k), 0), given["b"]
    sums = [a @ given[x] + given["a2"] @ given[y] for x, y in zip(first, plan.pair.of_b, strict=True)]
    if plan.halves > 1:
        return plan, a, given.pop("b"), given, np.maximum(sums[0][:, :n], 0) * sums[0][:, n:]
    del given["b"]
    return plan, a, b, given, sums[0] * sums[1] - sums[2] if len(sums) > 2 else sums[0] * (sums[1] + 3)


@pytest.mark.parametrize("form", OF_SUMS)
def test_each_of_several_sums_has_both_products(form: str) -> None:
    plan, a, b, given, want = problem_of_sums(form)
    plan.check().require()
    assert np.array_equal(plan.run(a, b, given=given, device="reference").c, want)
    for name in [x for x in given if x[0] in "ab"]:
        other = {**given, name: given[name] + 1}
        assert not np.array_equal(plan.run(a, b, given=other, device="reference").c, want), name


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", EMULATED_SUMS)
def test_compiled_kernel_of_several_sums_is_exact(form: str) -> None:
    plan, a, b, given, want = problem_of_sums(form)
    assert np.array_equal(plan.run(a, b, given=given, device="emulator").c, want)


def test_matrices_are_numbered_through() -> None:
    found = [SecondPair(8, matrices) for matrices in (1, 2, 3)]
    assert [x.of_b for x in found] == [("b2",), ("b2", "b3"), ("b3", "b4", "b5")]
    plan = problem_of_sums("two sums")[0]
    assert plan.words == ("b1", "ldb1", "s", "a2", "lda2", "b2", "ldb2", "b3", "ldb3", "k2")
    assert "are of A2 and B2, B3, with tensor maps of their own" in plan.explain()
    kernel = Kernel(Sm90Choice(SMALL), ("bf16:row", "bf16:col", "f32:row"), gated=BOTH, paired=True)
    assert kernel.plan(1, 1, 1, 1).for_any_size() == plan.for_any_size()
    chosen = choose_plan(512, 512, 512, b="bf16:col", gated=THREE, pair=16)
    assert isinstance(chosen, Sm90Plan) and chosen.store is None and chosen.check()


def derive(**given: Any) -> Sm90Plan:
    return Sm90Plan.derive(64, 64, 64, **{"b": "bf16:col", "config": SMALL, "pair": 16, **given})


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: derive(pair=0), "K of the second pair"),
    (lambda: derive(pair=1.5), "pair of Sm90Plan.derive must be a SecondPair or an integer"),
    (lambda: derive(gated=THREE, config=replace(SMALL, tile=(64, 96))), "1 tensor maps of C's chunks and 6 further"),
    (lambda: derive(gated=FOUR, config=replace(SMALL, store="direct")), "0 tensor maps of C's chunks and 8 further"),
    (
        lambda: derive(a="bf16:col", b="bf16", along_k=AlongK.of(1), config=replace(SMALL, loader="warp")),
        "along_k: no kernel has groups along K and a second pair",
    ),
    (
        lambda: derive(weights=MXFP4, c="bf16:col"),
        "pair: no kernel has a second pair and packed weights",
    ),
    (lambda: derive(shards=Gathered()), "pair: no kernel has a second pair and shards"),
    (lambda: Sm90Choice(SMALL, swapped=True).plan(64, 64, 64, b="bf16:col", pair=16), "change places"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refusals(number: int) -> None:
    call, text = REFUSED[number]
    with pytest.raises(PlanError, match=text):
        call()


def test_operands_of_a_run_are_checked_by_name() -> None:
    plan, a, b, given, _ = problem("self")
    for changed, text in (
        ({"a2": None}, "a2 is missing: the plan reads a2, b2"),
        ({"b2": b}, r"b2 has shape \(136, 88\), the plan takes \(16, 88\)"),
    ):
        with pytest.raises(OperandError, match=text):
            plan.run(a, b, given={**given, **changed}, device="reference")
