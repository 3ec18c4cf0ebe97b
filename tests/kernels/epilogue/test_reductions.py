"""Reductions in epilogues: the laws of operations, the NumPy reference, and compiled kernels in the emulator."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from layoutgemm import Sm80Config, Sm80Plan, Sm90Config, Sm90Plan, Sm100Config, Sm100Plan
from layoutgemm.atoms import wgmma
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Promoted, Table
from layoutgemm.kernels.compile.worker import Kernel, plan_of, received, sent
from layoutgemm.kernels.epilogue.arrays import Arrays
from layoutgemm.kernels.epilogue.chain import (
    REDUCTIONS,
    Activation,
    Amax,
    Bias,
    ColumnReduce,
    Custom,
    Epilogue,
    EpilogueOperand,
    Quantize,
    Reduction,
    RowReduce,
)
from layoutgemm.kernels.epilogue.numpy_math import Math
from layoutgemm.kernels.epilogue.parameters import PlacedOperand, words_of
from layoutgemm.kernels.orders import stored_elements
from layoutgemm.kernels.partials import exchanges_of, lanes_of, reductions_check
from layoutgemm.kernels.run.arrays import global_matrix
from layoutgemm.kernels.run.emulated import emulate_plan
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice
from layoutgemm.kernels.sm90.store_checks import store_checks
from tests import needs

SMALL = Sm90Config((64, 64), consumers=1, stages=2)
needs_dsl = needs.DSL


def numbers(shape: Any, seed: int) -> np.ndarray:
    """Integers from -3 to 3: sums of their products are exact."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def signed_sum(name: str = "checkerboard") -> Reduction:
    """An operation that reads both coordinates, and so tells rows from columns."""
    return Reduction.of(
        lambda x, i, j, ops: (ops.where((i + 2 * j) % 3 == 0, x, 0.0), ops.where(x > 0, i, j)),
        lambda a, b, ops: (a[0] + b[0], ops.maximum(a[1], b[1])),
        (0.0, -1),
        results=("sum", "place"),
        name=name,
    )


# ----------------------------------------------------------------------------------------------------------- operations
@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_the_packages_own_operations_keep_the_laws(name: str) -> None:
    REDUCTIONS[name].check_laws()
    REDUCTIONS[name].transposed().check_laws()


def test_operations_are_the_formulas() -> None:
    x = np.random.default_rng(0).standard_normal((3, 7, 45)).astype(np.float32)
    wide = x.astype(np.float64)
    exponentials = np.log(np.exp(wide).sum(-1))
    want = {
        "sum": [wide.sum(-1)], "sum_of_squares": [(wide**2).sum(-1)], "max": [x.max(-1)], "min": [x.min(-1)],
        "amax": [np.abs(x).max(-1)], "log_sum_exp": [exponentials], "softmax": [x.max(-1), exponentials],
        "argmax": [x.max(-1), x.argmax(-1)], "argmin": [x.min(-1), x.argmin(-1)],
    }  # fmt: skip
    falling = np.argsort(-x, axis=-1)
    for count in (2, 4, 8):
        order = falling[..., :count]
        both = np.take_along_axis(x, order, -1), order
        want[f"top{count}"] = [part for each in both for part in np.moveaxis(each, -1, 0)]
    assert set(want) == set(REDUCTIONS)
    for name, values in want.items():
        found = REDUCTIONS[name].reduce(x, -1)
        for value, expected in zip(found, values, strict=True):
            assert np.allclose(value, expected, rtol=1e-5, atol=1e-5), name


def test_infinities_and_nans_are_those_of_torch() -> None:
    inf, nan = np.inf, np.nan
    rows = np.array([[-inf, -inf, -inf], [1, inf, inf], [-inf, 0, -inf], [1, nan, 2], [nan, inf, nan]], np.float32)
    most, exponentials = REDUCTIONS["softmax"].reduce(rows, -1)
    assert np.array_equal(most, [-inf, inf, 0, nan, nan], equal_nan=True)
    assert np.array_equal(exponentials, [-inf, inf, 0, nan, nan], equal_nan=True)
    value, index = REDUCTIONS["argmax"].reduce(rows, -1)
    assert np.array_equal(value, most, equal_nan=True) and index.tolist() == [0, 1, 1, 1, 0]
    value, index = REDUCTIONS["argmin"].reduce(rows, -1)
    assert np.array_equal(value, [-inf, 1, -inf, nan, nan], equal_nan=True) and index.tolist() == [0, 0, 0, 1, 0]
    assert np.isnan(REDUCTIONS["amax"].reduce(rows[3:], -1)[0]).all()
    *values, first, second = REDUCTIONS["top2"].reduce(rows, -1)
    assert np.array_equal(values[1], [-inf, inf, -inf, 2, nan], equal_nan=True)
    assert first.tolist() == [0, 1, 1, 1, 0] and second.tolist() == [1, 2, 0, 2, 2]


def test_elements_inserted_in_turn_are_those_combined() -> None:
    """Infinities, NaN and equal values, some outside of C, in any order of their columns."""
    reduction, rng = REDUCTIONS["top4"], np.random.default_rng(0)
    x = rng.choice([-np.inf, -1.0, 0.0, 2.0, np.inf, np.nan], (200, 9)).astype(np.float32)
    inside, columns = rng.random(x.shape) < 0.7, rng.permuted(np.tile(np.arange(9, dtype=np.int32), (200, 1)), axis=1)
    found: Any = [np.full(200, value, kind) for value, kind in zip(reduction.identity, "ffffiiii", strict=True)]
    with np.errstate(invalid="ignore"):
        for e in range(9):
            at: Any = SimpleNamespace(i=np.zeros(200, np.int32), j=columns[:, e], math=Math)
            found = reduction.inserted(found, x[:, e], at, inside[:, e])
    placed, there = np.zeros_like(x), np.zeros_like(inside)
    np.put_along_axis(placed, columns, x, 1)
    np.put_along_axis(there, columns, inside, 1)
    for value, want in zip(found, reduction.reduce(placed, -1, inside=there), strict=True):
        assert np.array_equal(value, want, equal_nan=True)


@pytest.mark.parametrize("name", [name for name, made in sorted(REDUCTIONS.items()) if made.about is not None])
@pytest.mark.parametrize("transposed", [False, True])
def test_several_elements_at_once_are_those_combined_in_turn(name: str, transposed: bool) -> None:
    """Some lie outside of C; infinities and NaN stand at every place, and largest values are equal."""
    reduction = REDUCTIONS[name].transposed() if transposed else REDUCTIONS[name]
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        for trial in range(400):
            count = int(rng.integers(2, 9))
            x = rng.integers(-2, 3, count).astype(np.float32)
            for special in (np.inf, -np.inf, np.nan):
                x[rng.random(count) < (0.0, 0.2, 0.6)[trial % 3]] = special
            own = int(rng.integers(1, count + 1))
            axis = {"i": 3, "j": 3, "i" if transposed else "j": None}
            places = [
                SimpleNamespace(**{k: np.array([v or e]) for k, v in axis.items()}, math=Math) for e in range(count)
            ]
            elements = [(x[e : e + 1], place) for e, place in enumerate(places)]
            found = reduction.tuple_of(elements, [np.array([e < own]) for e in range(count)], range(count))
            tuples = [reduction.lifted(*element) for element in elements[:own]]
            combined = functools.reduce(lambda a, b: reduction.combined(a, b, Math), tuples)
            if own < count:  # elements outside change nothing beside one of C
                found = reduction.combined(found, tuples[0], Math) if name.startswith("arg") else found
            for value, want in zip(reduction.finished(found, Math), reduction.finished(combined, Math), strict=True):
                assert np.allclose(value, want, rtol=1e-6, equal_nan=True), (x, own)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: Reduction.of(lambda x, i, j, ops: x, lambda a, b, ops: a[0] - b[0], [0.0]),
         r"not commutative: a = \(-3.0,\), b = \(-0.5,\)"),
        (lambda: Reduction.of(lambda x, i, j, ops: x, lambda a, b, ops: a[0] * b[0] + a[0] + b[0] + 1, [0.0]),
         r"not associative: a = \(-3.0,\), b = .*combine\(combine\(a, b\), c\) ="),
        (lambda: Reduction.of(lambda x, i, j, ops: x, lambda a, b, ops: a[0] + b[0], [1.0]),
         r"identity = \(1.0,\): combine\(\(-3.0,\), identity\) = \(-2.0,\)"),
        (lambda: Reduction.of(lambda x, i, j, ops: x, lambda a, b, ops: (a[0], b[0]), [1.0]),
         "combine gives 2 number.*lift 1"),
        (lambda: Reduction.of(lambda x, i, j, ops: (x, j), lambda a, b, ops: a, [1.0]), "one number for each of 2"),
        (lambda: Reduction.of(lambda x, i, j, ops: (x, j), lambda a, b, ops: (a[0], a[0]), [1.0, 0]), "whole number"),
        (lambda: Reduction.of(lambda x, i, j, ops: None, lambda a, b, ops: a, [1.0]), "gives None"),
        (lambda: Reduction.of(lambda x, i, j, ops: (x,) * 17, lambda a, b, ops: a, [1.0] * 17), "up to 16"),
        (lambda: Reduction.of(lambda x, j: x, lambda a, b, ops: a, [1.0]), r"called with \(x, i, j, ops\)"),
        (lambda: RowReduce("mean"), "a reduction by 'mean': known are sum"),
        (lambda: RowReduce("sum", each=0), "each"),
        (lambda: RowReduce("sum", dtype="i8").given, "i8"),
        (lambda: RowReduce("argmax", ordered=False), "ordered=False is for a sum"),
        (lambda: RowReduce("sum", dtype="bf16", ordered=False), "not for sum in bf16"),
        (lambda: ColumnReduce("sum", each=16), "is for RowReduce"),
        (lambda: RowReduce("sum", each=16).transposed(), "computed transposed"),
        (lambda: RowReduce("top2", each=8).given, "each = 8, and row_top2_value has 2 numbers"),
        (lambda: Reduction.of(lambda x, i, j, ops: (x, j), lambda a, b, ops: (a[0] + b[0], ops.maximum(a[1], b[1])),
                              [0.0, -1], results=("best", "best")), "all f32 or all whole numbers"),
        (lambda: Quantize(dtype="bf16"), "values of 'bf16'"),
        (lambda: Quantize(least=0.0), "least = 0.0"),
        (lambda: Epilogue(Quantize(), Activation("relu")), "last step"),
        (lambda: Epilogue(Bias(), stores_c=False), "no step writes anything"),
        (
            lambda: words_of(Epilogue(RowReduce()), {"row_sum": PlacedOperand(16)}),
            "row_sum has partial results: workspace=",
        ),
        (lambda: Epilogue(RowReduce(), RowReduce()), "two operands of the epilogue are named row_sum"),
    ],
    ids=range(24),
)  # fmt: skip
def test_refused_with_the_first_witness(make: Any, text: str) -> None:
    with pytest.raises((PlanError, OperandError), match=text):
        make()


def test_a_long_function_is_kept_in_steps() -> None:
    """A network that keeps four of eight: written out, its results have 4e17 operations."""

    def combine(a: Any, b: Any, ops: Any) -> tuple[Any, ...]:
        found = [*a, *b]
        for first in range(4):
            for at in range(7, first, -1):
                low, high = found[at - 1 : at + 1]
                found[at - 1], found[at] = ops.maximum(low, high), ops.minimum(low, high)
        return tuple(found[:4])

    top = Reduction.of(lambda x, i, j, ops: (x, *[-1e30] * 3), combine, [-1e30] * 4, lambda a, ops: a, ["best"] * 4)
    steps = Epilogue(RowReduce(top, "of"), stores_c=False)
    x = np.random.default_rng(0).standard_normal((5, 33)).astype(np.float32)
    assert np.array_equal(steps.reference(x).written["of_best"], -np.sort(-x, axis=1)[:, :4])
    assert Epilogue.from_json(steps.json) == steps and len(steps.json) < 10_000
    assert steps.given[0].shape(5, 33) == (5, 4) and steps.words == ("of_best", "of_best_batch", "workspace")


@pytest.mark.parametrize("kind", [RowReduce, ColumnReduce])
def test_an_operation_of_the_package_is_its_name(kind: Any) -> None:
    """It counts along the axis that it reduces, and its text has all of it."""
    made, named = (Epilogue(kind(own, "least")) for own in (REDUCTIONS["argmin"], "argmin"))
    assert made == named and Epilogue.from_json(made.json) == made
    own = replace(REDUCTIONS["argmin"], name="mine")
    again = Epilogue.from_json(Epilogue(kind(own, "least")).json).reductions[0].reduction
    assert again.about == own.about


def test_a_wrong_insert_is_refused() -> None:
    def total(insert: Any) -> Reduction:
        return Reduction.of(lambda x, i, j, ops: x * j, lambda a, b, ops: a[0] + b[0], [0.0], insert=insert)

    assert total(lambda a, x, i, j, ops: a[0] + x * j).insert
    with pytest.raises(PlanError, match=r"insert\(.*i = 4, j = 6\) = .*combine\(a, lift\(x\)\) ="):
        total(lambda a, x, i, j, ops: a[0] + x * i)


# ---------------------------------------------------------------------------------------------------------------- plans
def test_lanes_follow_from_the_fragment_map() -> None:
    for n in (8, 64, 256):
        assert [str(lanes_of(wgmma(n), axis)) for axis in ("m", "n", "")] == ["4:1", "8:4", "32:1"]
        assert exchanges_of(wgmma(n), "m") == (1, 2) and exchanges_of(wgmma(n), "n") == (4, 8, 16)


def test_a_wrong_exchange_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Sm90Plan.derive(64, 64, 64, config=SMALL, epilogue=Epilogue(RowReduce(), ColumnReduce()))
    values = range(plan.mma.accumulator_registers)
    assert reductions_check(plan, plan.mma, values)
    for wrong, text in (((4, 8), "value 0 of lanes 0 and 4 is of"), ((1,), "two groups of lanes"), ((1, 1), "twice")):
        monkeypatch.setattr("layoutgemm.kernels.partials.exchanges_of", lambda mma, axis, wrong=wrong: wrong)
        found = reductions_check(plan, plan.mma, values)
        assert not found and text in found.witness


def test_plans_without_such_kernels_are_refused() -> None:
    def refused(text: str, epilogue: Epilogue, **more: Any) -> None:
        with pytest.raises(PlanError, match=text):
            Sm90Plan.derive(64, 64, 64, **{"b": "bf16:col", "config": SMALL, **more}, epilogue=epilogue)

    refused("each = 48 columns, and a tile is stored 64 columns at a time", Epilogue(RowReduce("sum", each=48)))
    refused("a multiple of 8", Epilogue(RowReduce("sum", each=4)))
    split = replace(SMALL, split=2, one_tile_per_cluster=True)
    refused("stored 32 columns at a time", Epilogue(RowReduce("sum", each=64)), config=split)
    refused("Quantize gives e4m3, and c is bf16", Epilogue(Quantize(each=64)))
    refused("Quantize gives e4m3, and c is e5m2", Epilogue(Quantize(each=64)), c="e5m2")
    refused("takes integers|an epilogue computes in f32", Epilogue(RowReduce()), a="i8", b="i8:col")


PLANS: dict[str, Any] = {
    "sm_80": (Sm80Plan, Sm80Config((64, 64), warps=(2, 2))),
    "sm_90a": (Sm90Plan, SMALL),
    "sm_100a": (Sm100Plan, Sm100Config((128, 64), stages=2)),
}


@pytest.mark.parametrize("arch", PLANS)
def test_partial_results_of_tiles_left_out_are_identities(arch: str) -> None:
    kind, config = PLANS[arch]
    for step in (RowReduce("sum"), ColumnReduce("argmax")):
        found = kind.derive(260, 260, 64, b="bf16:col", config=config, order="lower", epilogue=Epilogue(step))
        assert [value for _, value in found.first_partials] == list(step.reduction.identity)
        assert 4 * sum(count for count, _ in found.first_partials) == found.partial_bytes
        whole = kind.derive(260, 260, 64, b="bf16:col", config=config, order="rows", epilogue=Epilogue(step))
        assert whole.partials and whole.first_partials == ()
    some = Epilogue(RowReduce("max", ordered=False), ColumnReduce("sum", ordered=False), Amax())
    assert kind.derive(260, 260, 64, b="bf16:col", config=config, order="lower", epilogue=some).check()


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("arch", [pytest.param(a, marks=[pytest.mark.slow] * (a == "sm_90a")) for a in PLANS])
def test_some_tiles_are_combined_in_memory(arch: str) -> None:
    kind, config = PLANS[arch]
    epilogue = Epilogue(
        RowReduce("max", ordered=False), ColumnReduce("sum", ordered=False), ColumnReduce("argmax", "best")
    )
    plan = kind.derive(200, 200, 64, b="bf16:col", c="f32", config=config, order="lower", epilogue=epilogue)
    a, b = numbers((200, 64), 1), numbers((64, 200), 2)
    product, stored = a @ b, stored_elements(plan, {})
    assert stored is not None and not stored.all()
    found = plan.run(a, b, device="emulator").written
    assert np.array_equal(found["row_max"], np.where(stored, product, -np.inf).max(1))
    assert np.array_equal(found["column_sum"], np.where(stored, product, 0).sum(0))
    assert np.array_equal(found["best_index"], np.where(stored, product, -np.inf).argmax(0))
    want = epilogue.reference_of_sums(product, None, stored).written
    assert all(np.array_equal(found[name], value) for name, value in want.items())


def test_the_reference_reduces_visited_elements_alone() -> None:
    sums, lower = np.array([[1.0, 9.0, 9.0], [2.0, 5.0, 9.0]], np.float32), np.tri(2, 3, dtype=bool)
    steps = Epilogue(RowReduce("sum"), ColumnReduce("max"), RowReduce("max", "each", each=2), Amax())
    found = steps.reference_of_sums(sums, None, lower).written
    assert found["row_sum"].tolist() == [1.0, 7.0] and found["column_max"].tolist() == [2.0, 5.0, -np.inf]
    assert found["each"].tolist() == [[1.0, -np.inf], [5.0, -np.inf]] and found["amax"] == 5.0


def test_kernels_with_reductions_go_to_other_processes() -> None:
    epilogue = Epilogue(RowReduce(signed_sum()), ColumnReduce("max"), Amax(), stores_c=False)
    kernel = Kernel(Sm90Choice(SMALL), ("bf16:row", "bf16:col", "f32:row"), False, epilogue.in_pairs(whole=64))
    quantized = Kernel(Sm90Choice(SMALL), ("bf16:row", "bf16:col", "e4m3:row"), False, Epilogue(Quantize(each=64)))
    for plan in (plan_of(kernel), plan_of(quantized)):
        assert received(sent(plan)) == plan.for_any_size()


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
def test_rows_of_whole_tiles_are_reduced_without_selects() -> None:
    """N is a multiple of the tile's columns: the same bits, by a kernel that asks no element whether it is in C."""
    steps = Epilogue(RowReduce(), RowReduce("argmax", "best"), Amax())
    a, b, found, words = numbers((70, 64), 0), numbers((64, 128), 1), [], []
    for whole in (1, 128):
        made = Sm90Plan.derive(70, 128, 64, b="bf16:col", config=SMALL, epilogue=steps.in_pairs(whole=whole))
        assert steps.in_pairs(whole=whole).has_whole_columns(made.tile_c[1]) == (whole == 128)
        found.append(made.run(a, b, device="emulator").written)
        words.append(made.compile().ptx.count("selp.f32"))
    assert all(np.array_equal(value, found[1][name]) for name, value in found[0].items()) and words[1] < words[0] / 2
    with pytest.raises(PlanError, match="whole = 128: C has 120 columns, 120 beyond a multiple"):
        Sm90Plan.derive(70, 120, 64, b="bf16:col", config=SMALL, epilogue=steps.in_pairs(whole=128))


def test_the_transposed_reductions_give_the_same() -> None:
    acc = numbers((5, 7), 0)
    epilogue = Epilogue(RowReduce(signed_sum()), ColumnReduce("argmax"), RowReduce("softmax"), Amax())
    straight, turned = epilogue.reference(acc), epilogue.transposed().reference(acc.T)
    assert sorted(straight.written) == sorted(turned.written)
    for name, value in straight.written.items():
        assert np.array_equal(value, turned.written[name]), name
    assert epilogue.transposed().transposed() == epilogue


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("kind", [RowReduce, ColumnReduce])
def test_the_transposed_reduction_writes_to_the_same_places(kind: Any, order: str) -> None:
    """The caller's tensor keeps its order when operands change places."""
    epilogue = Epilogue(kind("top4", "most", order=order))
    for operand, turned in zip(epilogue.given, epilogue.transposed().given, strict=True):
        shape, order_of = operand.shape(30, 50), {"row": 1, "col": -1}[operand.order]
        assert turned.shape(50, 30) == shape[::-1] and turned.order != operand.order
        for k in range(4):
            for line in range(max(shape)):
                place = (line, k) if kind is RowReduce else (k, line)
                offset = sum(np.array(place[::order_of]) * [shape[::order_of][1], 1])
                for each in (operand, turned):
                    step, apart = each.strides(max(shape))
                    assert line * step + k * apart == offset, (place, each)


# ----------------------------------------------------------------------------------------------------- in the emulator
EVERYTHING = Epilogue(
    RowReduce("log_sum_exp"), Bias(), RowReduce(signed_sum(), "row"), ColumnReduce("argmax"), Activation("relu"),
    RowReduce("sum", "late", dtype="bf16"), Amax(),
)  # fmt: skip
ONLY = Epilogue(
    ColumnReduce(signed_sum(), "column"), RowReduce("max", "most", ordered=False), RowReduce("min", "least", "bf16"),
    ColumnReduce("sum_of_squares", "below", ordered=False), stores_c=False,
)  # fmt: skip
# In half of the rows. A thread takes a row's values at once behind it.
SOME_NANS = Custom.of(lambda x, i, j, ops: ops.where((i & 15) * 16 == j, x * math.inf * 0.0, x))
FORMS = {
    "pairs": (Sm90Config((128, 64), chunks=1, buffers=2), "bf16", False, 1, EVERYTHING.in_pairs()),
    "swapped": (Sm90Config((64, 16), consumers=1), "bf16", True, 1, EVERYTHING),
    "batch": (SMALL, "f16:col", False, 2, EVERYTHING),
    "split": (Sm90Config((64, 64), consumers=1, one_tile_per_cluster=True, split=2), "f32", False, 1, EVERYTHING),
    "halves": (
        Sm90Config((128, 64), staged_epilogue_k_tiles=1, chunks=1, buffers=2), "bf16", False, 1, EVERYTHING.in_pairs(),
    ),
    "pingpong": (
        Sm90Config((64, 64), schedule="pingpong", loader="warpgroup"), "bf16", False, 1,
        Epilogue(
            *ONLY.steps[:2], RowReduce("amax", each=32), SOME_NANS, RowReduce("argmax", "first"),
            RowReduce("log_sum_exp"), stores_c=False, pairs=True, whole=64,
        ),
    ),
    "without C": (Sm90Config((128, 32), overlap=True), "bf16", False, 1,
        Epilogue(*ONLY.steps, ColumnReduce("top2", "two", order="col"), stores_c=False),
    ),
}  # fmt: skip


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", list(FORMS))
def test_a_kernel_equals_numpy(form: str) -> None:
    config, c, swapped, batch, epilogue = FORMS[form]
    m, n, k = 40 if swapped else 72, 128 if form == "pingpong" else 134, 72
    plan = Sm90Choice(config, swapped).plan(m, n, k, batch=batch, b="bf16:col", c=c, epilogue=epilogue)
    assert plan.check()
    front = (batch,) if batch > 1 else ()
    a, b = numbers((*front, m, k), 1), numbers((*front, k, n), 2)
    given = {"bias": numbers((*front, n), 3)} if "bias" in epilogue.words else {}
    want = epilogue.reference(a @ b, **given)
    operands = (b.swapaxes(-1, -2), a.swapaxes(-1, -2)) if swapped else (a, b)
    result = plan.run(*operands, given=given, device="emulator")
    if epilogue.stores_c:
        kind, found = plan.c.dtype, result.c.swapaxes(-1, -2) if swapped else result.c
        assert np.array_equal(found, kind.decode(kind.encode(np.asarray(want.c))))
    else:
        assert result.c is None
    assert set(result.written) == set(want.written)
    for name, value in want.written.items():
        found = result.written[name]
        assert found.shape == value.shape and found.dtype == value.dtype, name
        if "exp" in name:
            assert np.allclose(found, value, rtol=1e-5, equal_nan=True), name
        else:
            assert np.array_equal(found, value, equal_nan=True), name
    assert form != "pingpong" or (np.isnan(result.written["first_value"]).sum() == 40 and len(epilogue.ahead) == 2)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", ["plain", "promoted", "halves"])
def test_values_quantised_to_the_bit(form: str) -> None:
    m, n, k = 72, 150, 136
    step, more = Quantize(each=64 if form == "plain" else 32), {}
    config = Sm90Config((64, 64), consumers=1, stages=2)
    if form == "halves":
        config = Sm90Config((64, 64), consumers=1, staged_epilogue_k_tiles=1, chunks=1)
    a, b = numbers((m, k), 1) / 3, numbers((k, n), 2) / 7
    a[:2] *= np.float32([2.0**120, 2.0**124])[:, None]
    a[2:4], a[2:4, 0], b[0] = 0, [np.inf, np.nan], np.abs(b[0]) + 1
    types = {"a": "bf16", "b": "bf16:col"}
    given: dict[str, Any] = {"bias": np.linspace(-1e-3, 5, n).astype(np.float32)}
    if form == "promoted":
        a, b, types = numbers((m, k), 1), numbers((k, n), 2), {"a": "e4m3", "b": "e4m3:col"}
        loop = Promoted.of(lambda total, product, scale: total + scale * product, Table("scale", "m"))
        given["scale"] = numbers((m, 2), 4) / 5 + 1
        more = {"mainloop": loop}
    epilogue = Epilogue(Bias(), step)
    plan = Sm90Plan.derive(m, n, k, **types, c="e4m3", config=config, epilogue=epilogue, **more)
    assert plan.check()
    result = plan.run(a, b, given=given, device="emulator")
    # The accumulator's own f32 values, so that C and scales are compared to the bit.
    same = replace(plan.c, dtype=plan.mma.c_dtype)
    wide = Sm90Plan.derive(
        m, n, k, **types, c=same, config=replace(config, staged_epilogue_k_tiles=0), epilogue=Epilogue(Bias()), **more
    )
    sums = wide.run(a, b, given=given, device="emulator").c
    if form != "promoted":  # inverses that are normal, subnormal and 0, in rows of one thread and of others
        largest = np.abs(sums[:4]).max(1)
        assert largest[0] < 2.0**126 < largest[1] < largest[2] == np.inf and np.isnan(largest[3])
    want = Epilogue(step).reference(sums)
    assert np.array_equal(result.written["scales"], want.written["scales"], equal_nan=True)
    assert np.array_equal(result.c, plan.c.dtype.decode(plan.c.dtype.encode(np.asarray(want.c))), equal_nan=True)
    assert np.nanmax(np.abs(result.c)) == 448 and result.written["scales"].shape == (m, -(-n // step.each))


TURNED = {  # of the transposed product: tile and settings, rows of a scale, batch, steps before
    "all warps and blocks": (Sm90Config((256, 24), chunks=1, buffers=2), 128, 1, ()),
    "own stores": (Sm90Config((128, 16), consumers=1, store="direct"), 64, 2, (Bias(),)),
}


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", list(TURNED))
def test_groups_of_the_transposed_product_to_the_bit(form: str) -> None:
    config, each, batch, before = TURNED[form]
    m, n, k = 20, 272 if batch == 1 else 144, 40
    front = (batch,) if batch > 1 else ()
    a, b = numbers((*front, m, k), 1) / 3, numbers((*front, k, n), 2) / 7
    a[..., :2, :] *= np.float32([2.0**120, 2.0**124])[:, None]
    a[..., 2:4, :], a[..., 2, 0], a[..., 3, 0], b[..., 0, :] = 0, np.inf, np.nan, np.abs(b[..., 0, :]) + 1
    given = {"bias": np.linspace(-1e-3, 5, n).astype(np.float32)} if before else {}

    def run(c: str, *steps: Any) -> Any:
        epilogue = Epilogue(*before, *steps) if before or steps else None
        plan = Sm90Choice(config, swapped=True).plan(m, n, k, batch=batch, b="bf16:col", c=c, epilogue=epilogue)
        assert plan.check()
        return plan, plan.run(b.swapaxes(-1, -2), a.swapaxes(-1, -2), given=given or None, device="emulator")

    step = Quantize(each=each)
    _, sums = run("f32")
    sums = sums if isinstance(sums, np.ndarray) else sums.c
    plan, found = run("e4m3", step)
    want = Epilogue(step).reference(sums.swapaxes(-1, -2))
    assert np.array_equal(found.written["scales"].swapaxes(-1, -2), want.written["scales"], equal_nan=True)
    kind = plan.c.dtype
    c = kind.decode(kind.encode(np.asarray(want.c)))
    assert np.array_equal(found.c.swapaxes(-1, -2), c, equal_nan=True) and np.nanmax(np.abs(c)) == 448


def test_plans_with_scales_of_rows_are_checked_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    turned = Epilogue(Quantize()).transposed()
    more: dict[str, Any] = {"b": "bf16:col", "c": "e4m3:col"}
    plan = Sm90Plan.derive(256, 64, 64, **more, config=Sm90Config((256, 32)), epilogue=turned)
    assert plan.check() and plan.group_scales is not None and plan.store is not None
    wrong = replace(plan, group_scales=replace(plan.group_scales, warps=3))
    assert "for 2 consumers of 4 warps" in str(wrong.check())
    monkeypatch.setattr("layoutgemm.kernels.store.ByteExchange.selector", lambda self, lane: 0x5140 + 0 * lane)
    found = next(each for each in store_checks(plan, plan.store) if each.name == "rows of C")
    assert not found and "warp 0, instruction 0, matrix 0, lane 16" in found.witness
    for text, epilogue, config in (
        ("128 rows a scale, and a warpgroup has 64 rows", turned, Sm90Config((128, 32))),
        ("no staged epilogue", turned, Sm90Config((256, 32), staged_epilogue_k_tiles=1)),
        ("amax is written once", Epilogue(Amax(), Quantize()).transposed(), Sm90Config((256, 32))),
    ):
        with pytest.raises(PlanError, match=text):
            Sm90Plan.derive(256, 64, 64, **more, config=config, epilogue=epilogue)
    with pytest.raises(PlanError, match="QuantizeRows: groups of rows"):
        Epilogue(*turned.steps)
    with pytest.raises(PlanError, match="no warpgroup of this kernel"):
        Sm100Plan.derive(256, 64, 64, b="bf16:col", c="e4m3", config=Sm100Config((128, 64), stages=2), epilogue=turned)


@needs_dsl
@pytest.mark.dsl
def test_the_same_bits_in_every_order_of_threads() -> None:
    epilogue = Epilogue(RowReduce(), ColumnReduce(), stores_c=False)
    plan = Sm90Plan.derive(72, 136, 40, b="bf16:col", config=SMALL, epilogue=epilogue)
    kind, rng = plan.a.dtype, np.random.default_rng(5)
    a, b = (kind.decode(kind.encode(rng.standard_normal(shape))) for shape in ((72, 40), (40, 136)))
    bits = [global_matrix(operand, value, [], True) for operand, value in ((plan.a, a), (plan.b, b))]
    found = []
    for policy in (Policy(), Policy(pick="random", seed=3, loads="early", lands="oldest")):
        arrays = Arrays(epilogue, (72, 136), {}, plan.workspace)
        emulate_plan(plan, *bits, policy, progress=False, given=arrays.words)[1].raise_for_findings()
        found.append(arrays.written())
    exact = a.astype(np.float64) @ b
    for name, axis in (("row_sum", 1), ("column_sum", 0)):
        assert np.array_equal(found[0][name], found[1][name])
        assert np.allclose(found[0][name], exact.sum(axis), atol=1e-3), name


def test_torch_rounds_quantised_values_as_the_reference_does() -> None:
    torch = needs.module("torch")
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(1)) * torch.logspace(-12, 9, 64)[:, None]
    x[3] = 0
    found = Epilogue(Quantize()).reference(x.numpy())
    groups = x.reshape(64, 2, 128)
    amax = groups.abs().amax(-1).clamp_min(1e-10)
    values = (groups * (448.0 / amax)[..., None]).reshape(64, 256).to(torch.float8_e4m3fn)
    assert np.array_equal(found.written["scales"], (amax / 448.0).numpy())
    kind = Sm90Plan.derive(64, 64, 64, c="e4m3").c.dtype
    assert np.array_equal(kind.encode(np.asarray(found.c)), values.view(torch.uint8).numpy())
    own = Custom.of(lambda x, i, j, ops: x)
    assert np.array_equal(Epilogue(own, Quantize()).reference(x.numpy()).c, found.c)


def _larger(a: Any, b: Any, ops: Any) -> list[Any]:
    first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] <= b[1]))
    return [ops.where(first, p, q) for p, q in zip(a, b, strict=True)]


CHOSEN = Reduction.of(
    lambda x, i, j, ops, bias, w: (x + bias, j, x * w), _larger, [-1e38, 2**31 - 1, 0.0],
    lambda a, ops: (a[1], a[2]), results=("expert", "score"),
    operands=[EpilogueOperand("bias", "n", "f32"), EpilogueOperand("w", "mn", "bf16")],
)  # fmt: skip
WEIGHTED = Reduction.of(
    lambda x, i, j, ops, v: x * v, lambda a, b, ops: a[0] + b[0], [0.0], operands=[EpilogueOperand("v", "m", "f32")],
    insert=lambda a, x, i, j, ops, v: a[0] + x * v,
)  # fmt: skip
READING = Epilogue(RowReduce(CHOSEN, "top"), ColumnReduce(WEIGHTED, "weighted"), stores_c=False)


def _reading() -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A and B, what the reductions read, and their results by definition."""
    rng = np.random.default_rng(3)
    a, b, bias, w, v = (
        rng.integers(-8, 9, shape).astype(np.float32) / 8 for shape in ((72, 64), (64, 40), 40, (72, 40), 72)
    )
    x = a @ b
    best = (x + bias).argmax(1)
    at = np.arange(72), best
    want = {"top_expert": best, "top_score": (x * w)[at], "weighted": (x * v[:, None]).sum(0)}
    return a, b, {"bias": bias, "w": w, "v": v}, want


def test_a_reduction_reads_operands_where_the_element_is() -> None:
    a, b, given, want = _reading()
    found = READING.reference(a @ b, **given).written
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-5)
    assert Epilogue.from_json(READING.json) == READING and READING.reads == ("bias", "w", "v")
    each = Epilogue(RowReduce(CHOSEN, "part", each=8), stores_c=False).reference(
        a @ b, bias=given["bias"], w=given["w"]
    )
    assert np.array_equal(each.written["part_expert"][:, 1], 8 + (a @ b + given["bias"])[:, 8:16].argmax(1))
    turned = ColumnReduce(CHOSEN, "top").transposed()
    assert [x.axes for x in turned.taken] == ["m", "mn", "m", "m"]


@needs.DSL
@pytest.mark.dsl
def test_the_kernel_reads_a_reductions_operands() -> None:
    a, b, given, want = _reading()
    config = Sm90Config((64, 64), consumers=1, stages=2)
    plan = Sm90Plan.derive(72, 40, 64, b="bf16:col", config=config, epilogue=READING)
    found = plan.run(a, b, given=given, device="emulator").written
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    "operands, text",
    [
        ([EpilogueOperand("a0", "n", "f32")], "an operand of the reduction is named a0, as a component"),
        ([EpilogueOperand("aux", "mn", "f32", written=True)], "reads its operands"),
        (["w"], "an operand of the function is 'w'"),
    ],
)
def test_operands_that_no_reduction_reads(operands: Any, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        Reduction.of(lambda x, i, j, ops, w: x * w, lambda a, b, ops: a[0] + b[0], [0.0], operands=operands)
