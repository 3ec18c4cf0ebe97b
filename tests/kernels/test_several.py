"""Several matrices B, gates and second pairs by mma.sync and tcgen05: values, proofs, refusals, mutants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from layoutgemm import Sm80Config, Sm100Config, plan
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Combined, Prologue
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, RowReduce, VectorScale
from layoutgemm.kernels.epilogue.numpy_math import Math
from layoutgemm.kernels.indexed.rows import IndexedRows, RowIndices
from layoutgemm.kernels.operands.pair import passes_on
from layoutgemm.kernels.operands.product import SideBySide
from tests import needs

SWIGLU = Combined.of(lambda g, u, ops, s: g * ops.sigmoid(g) * u + s * u, numbers=("s",))
THREE = Combined.of(lambda x, y, z, ops: x * y + z)
FOUR = Combined.of(lambda a, b, c, d, ops: a * d - b * c)
SMALL, BY_MMA, BY_TENSOR = (72, 40, 72), Sm80Config((64, 64), 32, 3, (2, 2)), Sm100Config((128, 64))


class Case(NamedTuple):
    """A plan's arguments, and what `run` draws beside A and B."""

    arch: str
    options: dict[str, Any]
    sizes: tuple[int, int, int] = SMALL


CASES = {
    "sm_80, two matrices": Case("sm_80", {"gated": SWIGLU, "config": BY_MMA}),
    "sm_80, N contiguous, a pair": Case("sm_80", {"b": "bf16", "gated": SWIGLU, "pair": 40, "config": BY_MMA}),
    "sm_80, a gate and a pair": Case("sm_80", {"gated": "silu", "pair": 80, "config": replace(BY_MMA, ahead=False)}),
    "sm_80, persistent": Case("sm_80", {"gated": SWIGLU, "config": replace(BY_MMA, persistent=True)}, (200, 40, 72)),
    "sm_86, three of bytes": Case(
        "sm_86", {"a": "i8", "b": "i8", "gated": THREE, "config": Sm80Config((64, 96), 64, 2, (2, 2))}, (72, 48, 80)
    ),
    "sm_89, fp8": Case("sm_89", {"a": "e4m3", "b": "e5m2:col", "gated": SWIGLU, "config": replace(BY_MMA, tile_k=64)}),
    "sm_120a, four and odd lines": Case(
        "sm_120a", {"gated": FOUR, "config": Sm80Config((64, 128), 32, 2, (2, 2), align=(2, 2, 4))}, (72, 41, 71)
    ),
    "sm_120a, a pair": Case("sm_120a", {"pair": 16, "b": "bf16", "config": BY_MMA}),
    "sm_100a, two matrices": Case("sm_100a", {"gated": SWIGLU, "config": BY_TENSOR}),
    "sm_100a, a CTA pair, a gate and a pair": Case(
        "sm_100a", {"gated": "silu", "pair": 40, "config": Sm100Config((256, 128))}, (300, 40, 72)
    ),
    "sm_100a, three, N contiguous, a pair": Case(
        "sm_100a", {"b": "bf16", "gated": THREE, "pair": 16, "config": Sm100Config((128, 192))}
    ),
    "sm_80, a batch of three": Case(
        "sm_80", {"gated": THREE, "batch": 3, "config": Sm80Config((64, 96), 32, 2, (2, 2))}
    ),
    "sm_80, a batch of pairs": Case("sm_80", {"gated": SWIGLU, "pair": 40, "batch": 2, "b": "bf16", "config": BY_MMA}),
    "sm_100a, a batch of pairs": Case("sm_100a", {"gated": SWIGLU, "pair": 16, "batch": 2, "config": BY_TENSOR}),
    "sm_100a, a batch, a gate and a pair": Case(
        "sm_100a", {"gated": "silu", "pair": 16, "batch": 2, "config": Sm100Config((256, 128))}
    ),
    "sm_100a, four by a CTA pair": Case("sm_100a", {"gated": FOUR, "config": Sm100Config((256, 256))}, (300, 100, 72)),
}


SLOW = ("sm_80, a batch of three", "sm_100a, a batch, a gate and a pair")  # kernels that others have the parts of


def planned(case: Case, **more: Any) -> Any:
    return plan(*case.sizes, arch=case.arch, **{"b": "bf16:col", "c": "f32", **case.options, **more})


def drawn(made: Any) -> tuple[list[np.ndarray], dict[str, Any], np.ndarray]:
    """(A and B, what the plan reads by name, its product in float64)."""
    rng, whole = np.random.default_rng(7), made.a.dtype.kind != "float"

    def matrix(*shape: int) -> np.ndarray:
        return rng.integers(-8, 8, shape).astype(np.int8 if whole else np.float32) / (1 if whole else np.float32(8))

    def cast(x: np.ndarray) -> np.ndarray:
        return x.astype(np.int8) if whole else x

    a = cast(matrix(*made.front("a"), made.m, made.k))
    b = cast(matrix(*made.front("b"), made.k, made.n * made.halves))
    given: dict[str, Any] = {name: cast(matrix(*shape)) for name, (_, shape) in made.further.items()}
    firsts = [b, *[given[name] for name, _ in (made.gated.places if made.gated else ())]]
    sums = [a.astype(np.float64) @ x for x in firsts]
    if made.pair is not None:
        second = [given["a2"].astype(np.float64) @ given[name] for name in made.pair.of_b]
        sums = [x + y for x, y in zip(sums, second, strict=True)]
    given |= dict.fromkeys(made.numbers_given, 0.5)
    if made.gated is None:
        return [a, b], given, sums[0]
    parts = np.split(sums[0], 2, -1) if made.halves > 1 else sums
    value = made.gated.apply(
        [x.astype(np.float32) for x in parts], Math, dict.fromkeys(made.numbers_given, np.float32(0.5))
    )
    return [a, b], given, value


@pytest.mark.parametrize("name", CASES)
def test_the_executor_has_the_formula(name: str) -> None:
    made = planned(CASES[name])
    made.check().require()
    operands, given, want = drawn(made)
    found = made.run(*operands, given=given or None, device="reference").c
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.slow) if x in SLOW else x for x in CASES])
def test_the_kernel_has_the_formula(name: str) -> None:
    made = planned(CASES[name])
    operands, given, want = drawn(made)
    found = made.run(*operands, given=given or None, device="emulator").c
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.parametrize("name", ["sm_80, N contiguous, a pair", "sm_100a, two matrices"])
def test_an_epilogue_follows(name: str) -> None:
    steps = Epilogue(Bias(), RowReduce("sum", "row"))
    made = planned(CASES[name], epilogue=steps)
    operands, given, value = drawn(made)
    bias = np.arange(40, dtype=np.float32)
    found, want = made.run(*operands, given={**given, "bias": bias}), steps.reference(value, bias=bias)
    np.testing.assert_allclose(found.c, want.c, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found.written["row"], want.written["row"], rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("matrices, parts", [(2, 1), (3, 2), (4, 4)])
def test_rows_of_the_tile_are_columns_of_the_matrices(matrices: int, parts: int) -> None:
    beside = SideBySide(matrices * parts * 16, matrices, parts)
    every = [beside.source(row) for row in range(beside.rows)]
    assert [int(beside.row(*at)) for at in every] == list(range(beside.rows))
    assert sorted(every) == [(j, i) for j in range(16 * parts) for i in range(matrices)]


def test_a_wrong_place_fails_a_check() -> None:
    made = planned(CASES["sm_80, two matrices"])
    wrong = replace(made, b=replace(made.b, beside=SideBySide(64, 2, 1)))
    assert not wrong.check() and "gated" in [check.name for check in wrong.check() if not check]
    made = planned(CASES["sm_100a, two matrices"])
    wrong = replace(made, b=replace(made.b, others=(made.b.tma,)))
    assert "copy B" in [check.name for check in wrong.check() if not check]


def test_a_cursor_passes_on_once() -> None:
    assert [bool(passes_on(left, behind)) for left, behind in ((1, 8), (0, 8), (-3, 8), (-3, 0))] == [0, 1, 1, 0]


REFUSED = [
    (
        "sm_80",
        {"gated": SWIGLU, "config": Sm80Config((64, 48), 32, 2, (2, 1))},
        "48 columns, 1 warp.s. along N, of 2 matrices B",
    ),
    ("sm_80", {"gated": SWIGLU, "c": "i32", "a": "i8", "b": "i8"}, "c is i32, and several sums are combined in f32"),
    ("sm_80", {"gated": "silu", "b": "bf16"}, "b is bf16 row-major: a gated product takes the weights as one"),
    (
        "sm_80",
        {"gated": THREE, "epilogue": Epilogue(Bias(), sums=1)},
        "sums = 1: .* pair = 1, a2 of .* ones, b3, b4, b5",
    ),
    ("sm_100a", {"gated": THREE, "epilogue": Epilogue(Bias(), sums=1)}, "of each sum are of 2 sums, and these are 3"),
    ("sm_80", {"pair": 16, "config": replace(BY_MMA, persistent=True)}, "pair: copies of a persistent kernel run on"),
    (
        "sm_120a",
        {"pair": 16, "config": replace(BY_MMA, loads="tma")},
        "loads = 'tma': several matrices come by cp.async",
    ),
    ("sm_100a", {"pair": 16, "indexed": IndexedRows(RowIndices(9))}, "no kernel has a second pair and gathered rows"),
    (
        "sm_100a",
        {"gated": THREE, "config": Sm100Config((128, 256))},
        "a tile of 256 columns, of 3 matrices B: a multiple of 3",
    ),
    (
        "sm_100a",
        {"gated": SWIGLU, "b": "bf16", "config": Sm100Config((256, 128))},
        "a CTA's tile of 64 columns, .* 2 . 64",
    ),
    (
        "sm_100a",
        {"gated": SWIGLU, "config": Sm100Config((256, 64))},
        "each CTA of the pair has 16 columns of each sum; width = 16",
    ),
    ("sm_100a", {"gated": FOUR, "pair": 16}, "the kernel takes 16 words, and these are 17"),
]


@pytest.mark.parametrize("arch, options, message", REFUSED)
def test_refusals(arch: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(72, 40, 72, arch=arch, **{"b": "bf16:col", "c": "f32", **options})


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.parametrize(
    "arch, config", [("sm_80", Sm80Config((64, 96), 32, 2, (2, 2))), ("sm_100a", Sm100Config((128, 96)))]
)
def test_a_pair_adds_a_bias_to_each_sum(arch: str, config: Any) -> None:
    """As the refusal of steps of sums says: query, key and value with biases of their own."""
    made = planned(Case(arch, {"gated": THREE, "pair": 1, "config": config}))
    (a, b), given, _ = drawn(made)
    given["a2"], biases = np.ones_like(given["a2"]), [given[name] for name in ("b3", "b4", "b5")]
    x, y, z = [a @ w + bias for w, bias in zip((b, given["b1"], given["b2"]), biases, strict=True)]
    found = made.run(a, b, given=given, device="emulator").c
    np.testing.assert_allclose(found, x * y + z, rtol=1e-5, atol=1e-4)


STEPS = Epilogue(VectorScale("m", "f32", "rows"), Bias(), RowReduce("max"), sums=2)
FUNCTION = Prologue.of(lambda x, i, k, ops, w: x * w, w="k")


def sums_of(made: Any) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Operands of a plan with steps of each of two sums."""
    operands, given, _ = drawn(made)
    rng = np.random.default_rng(3)
    given |= {"rows": rng.integers(1, 5, made.m) / 4, "bias": rng.integers(-8, 8, 2 * made.n) / 8}
    return operands, given | ({} if made.prologue is None else {"w": rng.integers(1, 3, made.k) / 2})


@pytest.mark.parametrize("options", [{"gated": SWIGLU, "prologue": FUNCTION}, {"gated": "silu", "pair": 16}])
def test_the_reference_of_an_epilogue_has_the_other_parts(options: dict[str, Any]) -> None:
    made: Any = plan(72, 40, 64, b="bf16:col", c="f32", epilogue=STEPS, **options)
    (a, b), given = sums_of(made)
    left = a * given["w"] if made.prologue is not None else a
    sums = np.split(left @ b, 2, -1) if made.halves > 1 else [left @ b, left @ given["b1"]]
    if made.pair is not None:
        sums = [x + y for x, y in zip(sums, np.split(given["a2"] @ given["b2"], 2, -1), strict=True)]
    sums = [x * given["rows"][:, None] + bias for x, bias in zip(sums, np.split(given["bias"], 2), strict=True)]
    want = made.gated.apply(sums, Math, {"s": 0.5})
    found = made.run(a, b, given=given, device="reference")
    np.testing.assert_allclose(found.c, want, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found.written["row_max"], want.max(1), rtol=1e-5)


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.slow
def test_steps_of_each_sum_precede_a_function_of_two_matrices() -> None:
    made: Any = plan(72, 40, 72, arch="sm_80", b="bf16:col", c="f32", epilogue=STEPS, gated=SWIGLU, config=BY_MMA)
    operands, given = sums_of(made)
    found, want = (made.run(*operands, given=given, device=on) for on in ("emulator", "reference"))
    np.testing.assert_allclose(found.c, want.c, rtol=1e-5, atol=1e-4)


def test_operands_are_checked_by_name() -> None:
    made = planned(CASES["sm_80, two matrices"])
    (a, b), given, _ = drawn(made)
    for wrong, message in (
        ({"b1": b}, "s is missing: the plan reads b1, s"),
        ({**given, "b2": b}, "given = b2: the plan reads b1, s"),
        ({**given, "b1": b[:, 1:]}, "b1 has shape"),
        ({**given, "b1": b.astype(np.int32)}, "b1"),
    ):
        with pytest.raises(OperandError, match=message):
            made.run(a, b, given=wrong, device="reference")


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_the_rule_has_a_kernel_for_each(arch: str) -> None:
    for gated, pair in ((SWIGLU, None), (THREE, 64), (FOUR, None), ("gelu", 64)):
        made: Any = plan(4096, 512, 256, arch=arch, b="bf16:col", gated=gated, pair=pair)
        said = made.explain()
        assert ("gated: " if gated == "gelu" else "combined: ") in said
        assert ("second pair: " in said) == (pair is not None)
