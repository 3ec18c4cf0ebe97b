"""Epilogues: the steps in NumPy against formulas, and compiled into the production kernel, in the emulator."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutgemm import Sm90Config
from layoutgemm.dtypes import dtype
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels.compile.cache import facts_of
from layoutgemm.kernels.derive import padded_leading
from layoutgemm.kernels.epilogue.arrays import Arrays
from layoutgemm.kernels.epilogue.chain import (
    ACTIVATIONS,
    GRADIENTS,
    Activation,
    ActivationGradient,
    Amax,
    Aux,
    Bias,
    Clamp,
    Custom,
    Dropout,
    Epilogue,
    EpilogueOperand,
    Reduction,
    Residual,
    RowReduce,
    Scale,
    SeveralOutputs,
    VectorScale,
)
from layoutgemm.kernels.epilogue.parameters import PlacedOperand, words_of
from layoutgemm.kernels.run.emulated import emulate_launch
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice
from layoutgemm.kernels.sm90.plan import Sm90Plan
from layoutgemm.kernels.sm100.plan import Sm100Plan
from tests import needs

F32 = dtype("f32")
SMALL = Sm90Config((64, 64), consumers=1)
needs_dsl = needs.DSL


def numbers(shape: Any, seed: int) -> np.ndarray:
    """Integers from -3 to 3: sums of their products are exact."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


# ------------------------------------------------------------------------------------------------------------- in NumPy
def test_activations_are_the_formulas() -> None:
    x = np.linspace(-6, 6, 241, dtype=np.float32).reshape(1, -1)
    exact = {
        "relu": [max(v, 0.0) for v in x[0].tolist()],
        "relu_sq": [max(v, 0.0) ** 2 for v in x[0].tolist()],
        "gelu": [v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x[0].tolist()],
        "gelu_tanh": [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x[0].tolist()],
        "silu": [v / (1 + math.exp(-v)) for v in x[0].tolist()],
        "tanh": [math.tanh(v) for v in x[0].tolist()],
        "sigmoid": [1 / (1 + math.exp(-v)) for v in x[0].tolist()],
    }
    assert set(exact) == set(ACTIVATIONS) == set(GRADIENTS)
    for kind, values in exact.items():
        found = Epilogue(Activation(kind)).reference(x).c
        assert np.allclose(found[0], values, rtol=1e-5, atol=1e-6), kind


@pytest.mark.parametrize("kind", sorted(ACTIVATIONS))
def test_gradients_are_the_derivatives(kind: str) -> None:
    z = np.array([[-2.5, -1.0, -0.3, 0.2, 0.9, 3.1]])
    step = 1e-2
    ones = np.ones_like(z, np.float32)
    high, low = (Epilogue(Activation(kind)).reference(z + s).c.astype(np.float64) for s in (step, -step))
    found = Epilogue(ActivationGradient(kind, "f32")).reference(ones, aux=z).c
    assert np.allclose(found, (high - low) / (2 * step), atol=2e-4), kind


def test_steps_in_order() -> None:
    acc, d, bias = numbers((3, 4), 0), numbers((3, 4), 1), numbers(4, 2)
    epilogue = Epilogue(Scale(), Residual("f32"), Bias(), Aux("f32"), Clamp(-2, 5), Amax())
    found = epilogue.reference(acc, alpha=2.0, d=d, beta=0.5, bias=bias)
    before = 2 * acc + 0.5 * d + bias
    assert np.array_equal(found.written["aux"], before)
    assert np.array_equal(found.c, np.clip(before, -2, 5))
    assert found.written["amax"] == np.abs(np.clip(before, -2, 5)).max()


def test_a_mask_is_as_dense_as_it_says_and_follows_from_its_seed() -> None:
    ones = np.ones((512, 768), np.float32)
    masks = [Epilogue(Dropout(0.3)).reference(ones, seed=seed).c for seed in (1, 1, 2)]
    assert np.array_equal(masks[0], masks[1]) and not np.array_equal(masks[0], masks[2])
    kept = masks[0] > 0
    assert abs(kept.mean() - 0.7) < 4 * math.sqrt(0.21 / kept.size)
    assert np.allclose(masks[0][kept], 1 / 0.7, rtol=1e-4)
    for a, b in ((kept[:, 1:], kept[:, :-1]), (kept[1:], kept[:-1]), (kept, masks[2] > 0)):  # neighbours, seeds
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / math.sqrt(a.size)


def test_the_transposed_epilogue_does_the_same() -> None:
    acc = numbers((5, 7), 0)
    own = Custom.of(lambda x, i, j, ops, w: ops.where(i > 2 * j, x + w, x * 3), EpilogueOperand("w", "m", F32))
    epilogue = Epilogue(Bias(), VectorScale("m"), Residual("f32"), own, Dropout(0.5), Aux("f32"))
    given = {"bias": numbers(7, 1), "scale": numbers(5, 2), "beta": 2.0, "w": numbers(5, 3), "seed": 11}
    d = numbers((5, 7), 4)
    straight = epilogue.reference(acc, d=d, **given)
    turned = epilogue.transposed().reference(acc.T, d=d.T, **given)
    assert np.array_equal(straight.c, turned.c.T)
    assert np.array_equal(straight.written["aux"], turned.written["aux"].T)
    assert epilogue.transposed().transposed() == epilogue


def test_supported_operations_of_a_function() -> None:
    own = Custom.of(lambda x, i, j, ops: (i // 2 + j % 3) * ops.exp(-abs(x)) / 2 - ops.minimum(i & 1, j ^ 1))
    acc = numbers((4, 6), 0)
    i, j = np.mgrid[:4, :6]
    expected = (i // 2 + j % 3) * np.exp(-np.abs(acc)) / 2 - np.minimum(i & 1, j ^ 1)
    assert np.allclose(Epilogue(own).reference(acc).c, expected, rtol=1e-6)
    for function, text in (
        (lambda x, i, j, ops: x if i > 3 else 0.0, "ops.where"),
        (lambda x, i, j, ops: ops.cot(x), "no operation 'cot'"),
        (lambda x, i, j, ops: (i << 32) * x, "a shift by 32"),
        (lambda x, i, j, ops: (-2.0) ** x, "of a positive number"),
        (lambda x, i, j, ops: x > 0, "a comparison is no number"),
        (lambda x, i, j, ops: x % 2, "for coordinates"),
        (lambda x, i, j, ops: x + "1", "not with '1'"),
        (lambda x, i, j, ops: None, "returned nothing"),
        (lambda x, i, j, ops: np.tanh(x), "as in ops.tanh"),
        (lambda x, i, j, ops: np.ones(2) * x, "not with"),
        (lambda x: x, r"called with \(x, i, j, ops\): too many"),
    ):
        with pytest.raises(PlanError, match=text):
            Custom.of(function)


def test_shifts_and_complements_are_those_of_int32() -> None:
    acc = numbers((40, 6), 0)
    i, j = (x.astype(np.int32) for x in np.mgrid[:40, :6])
    hashed = Custom.of(lambda x, i, j, ops: ops.float((~(i - 20) << 27 ^ j) >> 3) + ops.where(~(i < j), x, -x))
    with np.errstate(over="ignore"):
        whole = (~(i - 20) << np.int32(27) ^ j) >> np.int32(3)
    assert np.array_equal(Epilogue(hashed).reference(acc).c, whole.astype(np.float32) + np.where(~(i < j), acc, -acc))
    ends = Custom.of(lambda x, i, j, ops: ops.float((i - 20) >> 31) + ops.float((i >> 0) << 31))
    want = (((i - 20) >> 31) + np.where(i % 2, -(2.0**31), 0.0)).astype(np.float32)
    assert np.array_equal(Epilogue(ends).reference(acc).c, want)
    near = Custom.of(
        lambda x, i, j, ops: ops.exp2(x) - 2.0**x + ops.log2(ops.exp2(x)) + ops.relu(x) + ops.clamp(x, -1, 2)
    )
    want = acc + np.maximum(acc, 0) + np.clip(acc, -1, 2)
    assert np.allclose(Epilogue(near).reference(acc).c, want, atol=1e-5)


def test_numpy_numbers_stand_in_the_arithmetic() -> None:
    own = Custom.of(lambda x, i, j, ops: np.float32(2) * x - np.float64(1) / (x + np.int64(3)))
    assert own == Custom.of(lambda x, i, j, ops: 2.0 * x - 1.0 / (x + 3))


def test_powers_are_products() -> None:
    x = np.array([[-1.5, 0.5, 3.0]], np.float32)
    for power in (1, 2, 3, 5, 16):
        found = Epilogue(Custom.of(lambda x, i, j, ops, n=power: x**n)).reference(x).c
        assert np.allclose(found, x.astype(np.float64) ** power, rtol=1e-6), power
    assert Epilogue(Custom.of(lambda x, i, j, ops: x + i**2)).reference(np.zeros((3, 1))).c[2, 0] == 4


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: Custom.of(lambda x: x**2), r"is called with \(x, i, j, ops\)"),
        (lambda: Custom.of(lambda x, i, j, ops: math.exp(x)), "raised TypeError.*those of ops: exp"),
        (lambda: Custom.of(lambda x, i, j, ops: x.exp()), "raised AttributeError.*'exp'.*those of ops"),
        (lambda: Custom.of(lambda x, i, j, ops: sum(x)), "raised TypeError"),
        (lambda: Custom.of(lambda x, i, j, ops: x + 1 // 0), "raised ZeroDivisionError"),
        (lambda: Custom.of(lambda x, i, j, ops: x**0.5), r"x \*\* 0.5: a whole number from 1 to 16"),
        (lambda: Custom.of(lambda x, i, j, ops: x**0), r"x \*\* 0"),
        (lambda: Custom.of(lambda x, i, j, ops: x * 1e39), "1e[+]39 is beyond float32"),
        (lambda: Custom.of(lambda x, i, j, ops: x * 10**5000), "bits is beyond float32"),
        (lambda: Custom.of(lambda x, i, j, ops: ops.where(i < 2**40, x, 0.0)), "41 bits is beyond int32"),
        (lambda: Custom.of(5), "5 is not a callable"),
        (lambda: Custom.of(lambda x, i, j, ops, w: x, "w"), "'w': an EpilogueOperand"),
        (lambda: EpilogueOperand(5, "m", F32), "named 5"),
        (lambda: EpilogueOperand("w", ["m"], F32), "axes"),
        (lambda: EpilogueOperand("w", "m", "i8"), "w is i8"),
        (lambda: EpilogueOperand("w", "m", "f99"), "unknown number format 'f99'"),
        (lambda: Activation(["relu"]), "activation"),
        (lambda: Clamp("a", "b"), "low = 'a'"),
        (lambda: Clamp(-(10**400)), "low = an integer of 1329 bits: an integer of 1329 bits is beyond float32"),
        (lambda: Clamp(0.0, 1e39), r"high = 1e\+39: 1e\+39 is beyond float32"),
        (lambda: Dropout("x"), "p = 'x'"),
        (lambda: Epilogue.named(5), "named by text"),
        (
            lambda: Sm90Plan.derive(64, 64, 64, b="bf16:col", config=SMALL, gated=lambda x: x),
            "gated of Sm90Plan.derive must be a Combined",
        ),
        (
            lambda: Sm90Plan.derive(64, 64, 64, b="bf16:col", config=SMALL, gated=["silu"]),
            "gated of Sm90Plan.derive must be a Combined",
        ),
        (lambda: Epilogue(Bias()).reference(np.zeros((2, 2)), bias="x"), "bias is of <U1"),
        (lambda: Epilogue(Bias()).reference(np.zeros((2, 2)), bias=[1j, 2]), "bias is of complex"),
        (lambda: Epilogue(Bias()).reference(np.zeros(2), bias=[1, 2]), r"accumulator has shape \(2,\)"),
        (lambda: Epilogue(Dropout(0.5)).reference(np.zeros((2, 2)), seed=1.5), "seed is a number"),
        (lambda: Epilogue(Dropout(0.5)).reference(np.zeros((2, 2)), seed=2**40), "41 bits"),
        (lambda: words_of(Epilogue(Scale()), {"alpha": 1e39}), "alpha = 1e[+]39 is beyond float32"),
    ],
    ids=range(30),
)
def test_meaningless_functions_are_refused_with_a_reason(make: Any, text: str) -> None:
    with pytest.raises((PlanError, OperandError), match=text):
        make()


def test_operands_are_rounded_once_to_their_type() -> None:
    near = 1 + 2**-8 + 2**-40  # float32 would be the tie
    for dtypes, want in (("bf16", 1.0078125), ("f32", 1.00390625)):
        found = Epilogue(Bias("n", dtypes)).reference(np.zeros((1, 1)), bias=[near]).c
        arrays = Arrays(Epilogue(Bias("n", dtypes)), (1, 1), {"bias": [near]})
        assert found.item() == want == dtype(dtypes).decode(arrays.words[0]).item()
    assert EpilogueOperand("w", "m", "f32") == EpilogueOperand("w", "m", F32)


def test_names_of_cublaslt() -> None:
    names = ("DEFAULT", "BIAS", "RELU", "RELU_BIAS", "RELU_AUX", "RELU_AUX_BIAS", "GELU", "GELU_BIAS", "GELU_AUX",
             "GELU_AUX_BIAS", "DRELU", "DGELU")  # fmt: skip
    kinds = {name: [type(step).__name__ for step in Epilogue.named(name).steps] for name in names}
    assert kinds["DEFAULT"] == [] and kinds["BIAS"] == ["Bias"] and kinds["GELU"] == ["Activation"]
    assert kinds["RELU_AUX_BIAS"] == ["Bias", "Aux", "Activation"] and kinds["DGELU"] == ["ActivationGradient"]
    assert Epilogue.named("GELU").steps == (Activation("gelu_tanh"),)
    for wrong in ("", "AUX", "GELU_GELU", "BIAS_BIAS", "DRELU_BGRAD", "gelu"):
        with pytest.raises(PlanError, match="epilogue"):
            Epilogue.named(wrong)


def test_functions_read_one_operand_of_a_name() -> None:
    """The launch has one parameter for it. Other steps, and other operands, have names of their own."""
    label = EpilogueOperand("label", "m", "f32")
    doubled = Custom.of(lambda x, i, j, ops, label: x + label, label)
    least = Reduction.of(
        lambda x, i, j, ops, label: x - label, lambda a, b, ops: ops.minimum(a, b), 1e38, operands=[label]
    )
    made = Epilogue(doubled, RowReduce(least, "least"), doubled, Bias("m", name="label"))
    assert [x.name for x in made.given] == ["label", "least"] and Epilogue.from_json(made.json) == made
    found = made.reference(np.array([[1.0, 2.0]]), label=[10.0])
    assert found.c.tolist() == [[31.0, 32.0]] and found.written["least"].tolist() == [1.0]
    other = Custom.of(lambda x, i, j, ops, label: x + label, EpilogueOperand("label", "n", "f32"))
    for steps in ((doubled, other), (Bias(), Bias()), (RowReduce(), RowReduce())):
        with pytest.raises(PlanError, match="two operands of the epilogue are named"):
            Epilogue(*steps)


def test_refusals_name_the_error() -> None:
    with pytest.raises(PlanError, match="two operands of the epilogue are named bias"):
        Epilogue(Bias(), Bias("m"))
    with pytest.raises(PlanError, match="take 18 parameters; a kernel has 16"):
        Epilogue(*[Aux(name=f"aux{i}") for i in range(6)])
    with pytest.raises(PlanError, match="made of steps"):
        Epilogue("relu")
    for arch in ("sm_90a", "sm_100a"):
        derive = Sm90Plan.derive if arch == "sm_90a" else Sm100Plan.derive
        with pytest.raises(PlanError, match="made of steps, as in Epilogue"):
            derive(64, 64, 64, b="bf16:col", epilogue=lambda x: x)
        assert derive(64, 64, 64, b="bf16:col", epilogue=Bias()).epilogue == Epilogue(Bias())
    with pytest.raises(PlanError, match="known are relu"):
        Activation("mish")
    with pytest.raises(PlanError, match="axis 'k'"):
        Bias("k")
    with pytest.raises(PlanError, match="is e4m3"):
        Epilogue(Bias(dtype="e4m3"))
    with pytest.raises(PlanError, match="p = 1"):
        Dropout(1)
    with pytest.raises(PlanError, match=r"clamp\(low=2, high=1\): low must not exceed high"):
        Clamp(2, 1)
    with pytest.raises(PlanError, match="bias has shape"):
        Epilogue(Bias()).reference(np.ones((2, 3)), bias=np.ones(2))
    with pytest.raises(PlanError, match="bias is missing"):
        Epilogue(Bias()).reference(np.ones((2, 3)))
    for given, text in (
        ({}, "bias is missing"),
        ({"bias": PlacedOperand(1), "d": 1}, "d is no operand"),
        ({"bias": 3.0}, "lies in memory"),
    ):
        with pytest.raises(OperandError, match=text):
            words_of(Epilogue(Bias()), given)
    with pytest.raises(OperandError, match="alpha is a number"):
        words_of(Epilogue(Scale()), {"alpha": PlacedOperand(16)})


def test_equal_functions_are_one_kernel_and_others_are_not() -> None:
    def facts(function: Any) -> Any:
        return facts_of(Epilogue(Custom.of(function)))

    factor = 2.0
    assert facts(lambda x, i, j, ops: x * factor) == facts(lambda v, row, column, o: v * 2)
    assert facts(lambda x, i, j, ops: x * factor) != facts(lambda x, i, j, ops: x * 3.0)
    assert facts_of(Epilogue(Bias())) != facts_of(Epilogue(Bias("m")))
    assert facts_of(Epilogue(Bias())) != facts_of(Epilogue(Bias()).in_pairs())


# ----------------------------------------------------------------------------------------------------- in the emulator
def emulate(plan: Sm90Plan, given: dict[str, Any], accumulator: np.ndarray, operands: tuple[Any, Any]) -> Any:
    """Run a compiled plan in the emulator: C's values and what else was written, in the plan's own coordinates."""
    epilogue = plan.epilogue
    placed: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for operand in epilogue.given:
        value = given.get(operand.name)
        if operand.host:
            placed[operand.name] = value
            continue
        if operand.written:
            shape = accumulator.shape if operand.axes else (1,)
            value = np.zeros(shape, np.float32)
        value = np.atleast_1d(np.asarray(value, np.float32))
        if operand.axes == "mn" and operand.order == "col":
            value = value.swapaxes(-1, -2)
        padded = np.full((*value.shape[:-1], value.shape[-1] + (6 if operand.axes == "mn" else 0)), np.nan, np.float32)
        padded[..., : value.shape[-1]] = value
        bits = arrays[operand.name] = operand.dtype.encode(padded)
        own = math.prod(padded.shape[-len(operand.axes) :])  # elements of one matrix's share of a batch
        placed[operand.name] = PlacedOperand(bits, padded.shape[-1], own if plan.batch > 1 else 0)
    a, b = operands
    lines = a if plan.a.order == "row" else a.swapaxes(-1, -2), b if plan.b.order == "row" else b.swapaxes(-1, -2)
    bits, pitch = [], []
    for op, x in zip((plan.a, plan.b), lines, strict=True):
        leading = padded_leading(op.dtype, x.shape[-1])
        buffer = np.full((*x.shape[:-1], leading), np.nan, np.float32)
        buffer[..., : x.shape[-1]] = x
        bits.append(op.dtype.encode(buffer))
        pitch.append((leading, leading * x.shape[-2]))
    by_row = plan.c.order == "row"
    rows, inner = (plan.m, plan.n) if by_row else (plan.n, plan.m)
    leading = padded_leading(plan.c.dtype, inner) + 16
    words = plan.c.dtype.encode(np.full((plan.batch, rows, leading), np.nan, np.float32))
    strides = (pitch[0][1], pitch[1][1], rows * leading)
    sizes = (plan.m, plan.n, plan.k, plan.batch, pitch[0][0], pitch[1][0], leading, *strides, 3)
    arguments = (*bits, words, *sizes, *words_of(epilogue, placed))
    done = emulate_launch(plan, arguments, Policy(edges=False), progress=False)
    done.raise_for_findings()
    c = plan.c.dtype.decode(words)[..., :inner]
    c = c if by_row else c.swapaxes(-1, -2)
    written = {}
    for name, encoded in arrays.items():
        operand = epilogue.named_given(name)
        if operand.written:
            value = operand.dtype.decode(encoded)
            if operand.axes == "mn":
                value, beyond = value[..., :-6], value[..., -6:]
                assert np.isnan(beyond).all(), f"{name}: written beyond its lines"
                value = value if operand.order == "row" else value.swapaxes(-1, -2)
            written[name] = value
    return (c if plan.batch > 1 else c[0]), written


EVERYTHING = Epilogue(
    Scale(), Residual("bf16"), Bias(), VectorScale("m"), Aux("f32"), Activation("relu"),
    Custom.of(lambda x, i, j, ops, w: x + w * (i - j), EpilogueOperand("w", "n", F32)), Amax(),
)  # fmt: skip
OUTPUTS = SeveralOutputs.of(
    lambda x, i, j, ops, w: (x * w, x - j, ops.float(i) + w), EpilogueOperand("w", "n", F32), left="f32", below="bf16"
)
FORMS = {
    "plain": (Sm90Config((64, 64), consumers=1), "f32", False, 1, EVERYTHING),
    "pairs": (Sm90Config((128, 64), chunks=1, buffers=2), "bf16", False, 1, EVERYTHING.in_pairs()),
    "col": (Sm90Config((64, 32), consumers=1), "bf16:col", False, 1, EVERYTHING),
    "swapped": (Sm90Config((64, 16), consumers=1), "bf16", True, 1, EVERYTHING),
    "batch": (Sm90Config((64, 64), consumers=1), "f16", False, 3, EVERYTHING.in_pairs()),
    "direct": (Sm90Config((64, 64), consumers=1, store="direct"), "f32", False, 1, EVERYTHING),
    "split": (Sm90Config((64, 64), consumers=1, one_tile_per_cluster=True, split=2), "f32", False, 1, EVERYTHING),
    "early": (
        Sm90Config((256, 64), staged_epilogue_k_tiles=1, chunks=1, buffers=2),
        "bf16",
        False,
        1,
        EVERYTHING.in_pairs(),
    ),
    "pingpong": (Sm90Config((64, 64), schedule="pingpong", loader="warpgroup"), "bf16", False, 1, EVERYTHING),
    "fp8": (SMALL, "e4m3", False, 1, Epilogue(Scale("c_scale", device=True), Clamp(-448, 448))),
    "swapped outputs": (Sm90Config((64, 16), consumers=1), "bf16", True, 1, Epilogue(Bias(), OUTPUTS, Aux("f32"))),
}


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", [pytest.param(x, marks=pytest.mark.slow if "outputs" in x else ()) for x in FORMS])
def test_a_kernel_equals_numpy(form: str) -> None:
    config, c, swapped, batch, epilogue = FORMS[form]
    m, n, k = 72, 134, 136
    plan = Sm90Choice(config, swapped).plan(m, n, k, batch=batch, a="bf16", b="bf16:col", c=c, epilogue=epilogue)
    front = (batch,) if batch > 1 else ()
    a, b = numbers((*front, m, k), 1), numbers((*front, k, n), 2)
    values = {
        "alpha": 0.5, "beta": 2.0, "d": numbers((*front, m, n), 3), "bias": numbers((*front, n), 4),
        "scale": numbers((*front, m), 5), "w": numbers((*front, n), 6), "c_scale": np.float32(0.25),
    }  # fmt: skip
    given = {g.name: values[g.name] for g in epilogue.given if not g.written}
    expected = epilogue.reference(a @ b, **given)
    if swapped:
        values["d"] = values["d"].swapaxes(-1, -2)
        operands, accumulator = (b.swapaxes(-1, -2), a.swapaxes(-1, -2)), (a @ b).swapaxes(-1, -2)
    else:
        operands, accumulator = (a, b), a @ b
    found, written = emulate(plan, values, accumulator, operands)
    if swapped:
        found, written = found.T, {x: v.T if v.ndim > 1 else v for x, v in written.items()}
    kind = plan.c.dtype
    assert np.array_equal(found, kind.decode(kind.encode(np.asarray(expected.c))))
    for name, value in expected.written.items():
        assert np.array_equal(np.squeeze(written[name]), np.squeeze(value)), name


def test_a_function_of_several_outputs() -> None:
    """The values are those of NumPy; the text and the transpose have all; other counts and types are refused."""
    steps, x, w = Epilogue(Bias(), OUTPUTS), numbers((3, 4), 1), numbers((4,), 2)
    found = steps.reference(x, bias=w, w=w)
    rows, columns = np.arange(3, dtype=np.float32)[:, None], np.arange(4, dtype=np.float32)
    assert np.array_equal(found.c, (x + w) * w) and np.array_equal(found.written["left"], x + w - columns)
    assert np.array_equal(found.written["below"], rows + w)
    assert Epilogue.from_json(steps.json) == steps and steps.transposed().transposed() == steps
    turned = Epilogue(Bias("m"), OUTPUTS.transposed()).reference(x.T, bias=w, w=w)
    assert np.array_equal(turned.c, found.c.T) and np.array_equal(turned.written["left"], found.written["left"].T)
    for call, message in (
        (lambda: SeveralOutputs.of(lambda x, i, j, ops: x, d="f32"), "gave x: it gives 2 values, x, d"),
        (lambda: SeveralOutputs.of(lambda x, i, j, ops: (x,)), "1 values, for x and 0 matrices"),
        (lambda: SeveralOutputs.of(lambda x, i, j, ops: (x, i), d="i32"), "d is i32: a function's values are f32"),
        (lambda: Custom.of(lambda x, i, j, ops: (x, x)), "2 values, .* SeveralOutputs.of.function, name='bf16'. is a"),
    ):
        with pytest.raises(PlanError, match=message):
            call()


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("c", ["bf16", "f32"])
@pytest.mark.parametrize("swapped", [False, True])
def test_functions_are_as_near_as_they_say(c: str, swapped: bool) -> None:
    # A function of one element is compiled for each type of C, in one of both orders; one that knows its row, for both.
    steps = [Activation(kind) for kind in ("tanh", "gelu", "gelu_tanh", "silu", "sigmoid")][swapped ^ (c == "f32") :: 2]
    m, n, k = 64, 64, 32
    rng = np.random.default_rng(3)
    a, b = (numbers(shape, 7) / 8 for shape in ((m, k), (k, n)))
    mask = Dropout(0.25)
    own = Custom.of(
        lambda x, i, j, ops: ops.log(1.0 + ops.sqrt(x * x)) * ops.rsqrt(1.0 + ops.float(i))
        + (ops.where(~(j > 3), ops.sin(x * 900.0), ops.cos(x * 900.0)) + 2.0) * ops.float(((i << 9) ^ ~j) >> 3)
    )  # fmt: skip
    for step in (*steps, own, mask) if c == "f32" else steps:
        epilogue = Epilogue(step)
        given = {"seed": int(rng.integers(2**31))} if step is mask else {}
        # Tiles of eight columns: the compiler sees a fourth of the elements of one of 32, and the values are the same.
        config = replace(SMALL, tile=(64, 8))
        plan = Sm90Choice(config, swapped).plan(m, n, k, b="bf16:col", c=c, epilogue=epilogue)
        expected = epilogue.reference(a @ b, **given).c
        operands = (b.T, a.T) if swapped else (a, b)
        found, _ = emulate(plan, given, a @ b, operands)
        found = found.T if swapped else found
        if step is mask:
            assert np.array_equal(found, expected)
        else:
            # relative, so that a tail which cancels is seen: gelu(-5) is -1.4e-6
            # bf16 rounds by 2**-8, and its normal distribution is off by half as much at most
            unit, least = (1.5 * 2.0**-8, 2e-7) if c == "bf16" else (3e-6, 3e-7)
            off = np.abs(found - expected) / (unit * np.abs(expected) + least)
            assert off.max() <= 1, (step, off.max(), (a @ b).flat[off.argmax()])


def test_operands_are_not_named_as_the_products_own() -> None:
    for name in ("c", "lda", "workers"):
        with pytest.raises(PlanError, match=f"named {name}, as a parameter of the product"):
            Epilogue(Residual(name=name))
