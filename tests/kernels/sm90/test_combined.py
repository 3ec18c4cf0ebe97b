"""Several matrices B: one loop over A's tiles, sums of one element in one thread, C their traced function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.compile.worker import Kernel, plan_of, received, sent
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, RowReduce
from layoutgemm.kernels.epilogue.numpy_math import Math
from layoutgemm.kernels.operands.combined import Combined, side_by_side
from layoutgemm.kernels.operands.gated import Gated
from layoutgemm.kernels.quantized.formats import MXFP4
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice, choose
from layoutgemm.kernels.sm90.shards import Gathered
from layoutgemm.kernels.sm90.triangular.operands import Triangles
from tests import needs

needs_dsl = needs.DSL
SMALL = Sm90Config((64, 64), consumers=1, stages=2)
SIZES = (72, 88, 136)  # ragged along each
TWO = Combined.of(lambda g, u, ops: ops.maximum(g, 0.0) * u)
THREE = Combined.of(lambda x, y, z, ops: x * y + z)
FOUR = Combined.of(lambda w, x, y, z, ops, s: (w - s * x) * y + z, numbers=("s",))
FORMS: dict[str, tuple[Combined, str, str, Sm90Config]] = {
    "two": (TWO, "bf16:col", "f32", SMALL),
    "two of sixteen columns": (TWO, "bf16:col", "bf16", replace(SMALL, tile=(64, 16))),
    "two row-major": (TWO, "bf16:row", "f32", replace(SMALL, tile=(64, 128))),
    "three in a pair": (THREE, "bf16:col", "f32", replace(SMALL, tile=(64, 96), cluster=(2, 1))),
    "three row-major": (THREE, "bf16:row", "bf16:col", replace(SMALL, tile=(64, 192), cluster=(2, 1), tile_k=128)),
    "four": (FOUR, "bf16:col", "f32", replace(SMALL, tile=(64, 96), store="direct")),
    "four in turn": (FOUR, "bf16:col", "f32", Sm90Config((64, 96), schedule="pingpong", loader="warp", stages=2)),
    "early": (TWO, "bf16:col", "bf16", Sm90Config((256, 64), staged_epilogue_k_tiles=1, chunks=1, buffers=2, stages=2)),
    "few rows": (TWO, "bf16:col", "bf16", replace(SMALL, loaded_a_rows=8, one_tile_per_cluster=True)),
    "parts of K": (THREE, "bf16:col", "f32", replace(SMALL, tile=(64, 96), one_tile_per_cluster=True, split=4)),
}
EMULATED = ("two row-major", "three in a pair", "four in turn")


def integers(shape: tuple[int, ...], seed: int, most: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-most, most + 1, shape).astype(np.float32)


def problem(form: str) -> tuple[Sm90Plan, np.ndarray, list[np.ndarray], dict[str, Any], np.ndarray]:
    """A plan, its operands, what is given by name, and C by definition."""
    how, b, c, config = FORMS[form]
    m, n, k = 8 if form == "few rows" else SIZES[0], *SIZES[1:]
    plan = Sm90Plan.derive(m, n, k, b=b, c=c, config=config, gated=how)
    a, matrices = integers((m, k), 1), [integers((k, n), 2 + i) for i in range(how.matrices)]
    numbers = dict.fromkeys(how.numbers, 2.0)
    want = how.apply([a @ b for b in matrices], Math, {name: np.float32(x) for name, x in numbers.items()})
    given = {**{f"b{i}": matrices[i] for i in range(1, how.matrices)}, **numbers}
    return plan, a, matrices, given, np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(want)))


@pytest.mark.parametrize("form", FORMS)
def test_executor_is_exact_and_the_checks_hold(form: str) -> None:
    plan, a, matrices, given, want = problem(form)
    plan.check().require()
    assert np.array_equal(plan.run(a, matrices[0], given=given, device="reference").c, want)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", EMULATED)
def test_compiled_kernel_is_exact(form: str) -> None:
    plan, a, matrices, given, want = problem(form)
    assert np.array_equal(plan.run(a, matrices[0], given=given, device="emulator").c, want)
    code, steps = plan.compile(), len(plan.a.descriptor.k_steps)
    assert code.sass().serialised_wgmma(steps * plan.blocks) is None and code.resources.local_bytes == 0


@needs_dsl
@pytest.mark.dsl
def test_a_list_of_tiles() -> None:
    """The words of the order come behind those of the further matrices."""
    _, a, matrices, given, want = problem("two")
    plan = Sm90Plan.derive(*SIZES, b="bf16:col", c="f32", config=SMALL, gated=TWO, order="list")
    assert plan.words == ("b1", "ldb1", "tiles", "tile_count")
    given["tiles"] = np.array([[1, 2], [0, 1]])
    stored = np.zeros(want.shape, bool)
    stored[64:, 64:] = stored[:64, 32:64] = True
    for device in ("reference", "emulator"):
        found = plan.run(a, matrices[0], given=given, device=device).c
        assert np.array_equal(np.where(stored, found, 0), np.where(stored, want, 0))


@needs_dsl
@pytest.mark.dsl
def test_an_epilogue_follows_the_function() -> None:
    _, a, matrices, given, want = problem("four")
    epilogue = Epilogue(Bias(), RowReduce())
    config = replace(SMALL, tile=(64, 96))
    plan = Sm90Plan.derive(*SIZES, b="bf16:col", c="f32", config=config, gated=FOUR, epilogue=epilogue)
    bias = integers((SIZES[1],), 9)
    plan.check().require()
    found = plan.run(a, matrices[0], given={**given, "bias": bias}, device="emulator")
    assert np.array_equal(found.c, want + bias)
    assert np.array_equal(found.written["row_sum"], (want + bias).sum(1))


def test_a_named_gate_is_the_same_function_of_one_matrix() -> None:
    """The forms of two halves and of two matrices share one expression."""
    plan, a, (gate, up), _, want = problem("two")
    stacked = Sm90Plan.derive(*SIZES, b="bf16:col", c="f32", config=SMALL, gated="relu")
    assert stacked.gated is not None and stacked.gated.expression == TWO.expression and stacked.gated != TWO
    both = np.concatenate([gate, up], 1)
    assert np.array_equal(stacked.run(a, both, device="reference").c, want)
    assert stacked.full_bytes == plan.full_bytes and stacked.tile_c == plan.tile_c


def moved(plan: Sm90Plan, number: int, **changes: Any) -> Sm90Plan:
    """The plan with a changed copy of one of B's further matrices."""
    others = list(plan.b.others)
    first, *rest = others[number].instructions
    others[number] = replace(others[number], instructions=(replace(first, **changes), *rest))
    return replace(plan, b=replace(plan.b, others=tuple(others)))


def failed(plan: Sm90Plan) -> list[str]:
    return [check.name for check in plan.check() if not check]


def test_wrong_plans_are_found() -> None:
    plan, a, matrices, given, _ = problem("three in a pair")
    at = plan.b.others[1].instructions[0].smem_offset
    assert "copy B" in failed(moved(plan, 1, smem_offset=at - 128))
    assert "copy B" in failed(moved(plan, 1, smem_offset=at + 64))  # TMA writes at multiples of 128 bytes
    assert "copy B" in failed(moved(plan, 0, coord_offset=(0, 4)))
    assert "copy B" in failed(replace(plan, b=replace(plan.b, others=plan.b.others[:1])))
    wide = Sm90Plan.derive(*SIZES, b="bf16:col", config=replace(SMALL, tile=(64, 192)))
    assert "gated" in failed(replace(plan, mma=wide.mma))
    with pytest.raises(PlanError):  # fewer bytes land than the barrier waits for
        replace(plan, b=replace(plan.b, others=plan.b.others[:1])).run(
            a, matrices[0], given=given, device="reference"
        )  # fmt: skip


def derive(**given: Any) -> Sm90Plan:
    return Sm90Plan.derive(64, 64, 64, **{"b": "bf16:col", "config": SMALL, "gated": TWO, **given})


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: derive(a="i8", b="i8:col"), "c is i32, and several sums are combined in f32"),
    (lambda: derive(gated=THREE), r"64 columns, of 3 matrices B: a multiple of 3 \* 8"),
    (lambda: derive(b="bf16"), r"64 columns, of 2 matrices B: .* 2 \* 64: its row-major lines fill spans of 128 bytes"),
    (lambda: derive(config=replace(SMALL, one_tile_per_cluster=True, split=8)), "and 8 parts of K: a multiple of "),
    (
        lambda: derive(order="symmetric", config=replace(SMALL, tile=(64, 128))),
        "several matrices B and a symmetric order",
    ),
    (lambda: derive(triangles=Triangles(b="lower")), "b = 'lower', and a tile has columns of 2 places of B"),
    (lambda: derive(weights=MXFP4, c="bf16:col"), "gated: no kernel has several matrices B and packed weights"),
    (lambda: derive(shards=Gathered()), "gated: no kernel has several matrices B and shards"),
    (lambda: derive(config=replace(SMALL, staged_epilogue_k_tiles=1)), "gated products halve them, too"),
    (lambda: Combined.of(lambda x, ops: x), "1 matrices B: a kernel combines 2 to 4"),
    (lambda: Combined.of(lambda x, y: x), r"a function of \(x, y\): it takes the sums, then ops"),
    (lambda: Combined.of(lambda x, y, ops: x, 3), r"called with \(sum0, sum1, sum2, ops\)"),
    (lambda: Combined.of(lambda x, y, ops: None), "returned nothing"),
    (lambda: Combined.of("silu"), "must be a function, not 'silu'"),
    (lambda: Sm90Choice(SMALL, swapped=True).plan(64, 64, 64, b="bf16:col", gated=TWO), "change places"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refusals(number: int) -> None:
    call, text = REFUSED[number]
    with pytest.raises(PlanError, match=text):
        call()


def test_operands_of_a_run_are_checked_by_name() -> None:
    plan, a, matrices, given, _ = problem("four")
    for changed, text in (
        ({"b2": None}, "b2 is missing: the plan reads b1, b2, b3, s"),
        ({"s": "x"}, "s is a number"),
        ({"b3": matrices[0].T}, r"b3 has shape \(88, 136\), the plan takes \(136, 88\)"),
        ({"b3": matrices[0].astype(np.float64)}, "b3 is float64; the plan's bf16"),
        ({"more": 1}, "given = more: the plan reads b1, b2, b3, s"),
    ):
        with pytest.raises(OperandError, match=text):
            plan.run(a, matrices[0], given={**given, **changed}, device="reference")


def test_the_explanation_and_the_kernel_of_another_process() -> None:
    plan = problem("four")[0]
    assert str(plan).endswith("4 matrices B combined")
    assert "function of values v, v + 12, v + 24, v + 36 of a thread, for v < 12; numbers s" in plan.explain()
    assert plan.words == ("b1", "ldb1", "b2", "ldb2", "b3", "ldb3", "s") and list(plan.further) == ["b1", "b2", "b3"]
    for gated in (FOUR, "silu"):
        kernel = Kernel(Sm90Choice(SMALL), ("bf16:row", "bf16:col", "f32:row"), gated=gated)
        assert received(sent(plan_of(kernel))) == plan_of(kernel).for_any_size()
        assert kernel.takes_words == (gated is FOUR)
    assert side_by_side(plan.b, 4).copies == plan.b.copies and Gated("silu") != Gated("gelu")


def test_every_tile_that_may_be_chosen_is_derived() -> None:
    found = set()
    for how in (TWO, THREE, FOUR):
        for a, major in (("bf16", "K"), ("bf16", "MN"), ("e4m3", "K"), ("tf32", "K"), ("i8", "K")):
            for n in (8, 104, 1000, 5000):
                for m in (1, 17, 65, 600, 3000):
                    choice, why = choose(m, n, 2048, a=a, b_major=major, gated=how)
                    order = "col" if major == "K" else "row"
                    tile = choice.config.tile[1]
                    columns = f"{tile // how.matrices} columns of C from {tile} of B"
                    assert why.endswith(f"{how.matrices} matrices B, A loaded once: {columns}")
                    if tile % (how.matrices * 64) == 0 or major == "K":
                        choice.plan(m, n, 2048, a=a, b=f"{a}:{order}", c="f32", gated=how)
                        found.add((how.matrices, major))
    assert len(found) == 6
