"""Epilogues that write more than C, in each product of layoutgemm.jax: values, derivatives, transforms, launches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests import needs

jax = needs.module("jax")
jnp = jax.numpy
from layoutgemm.errors import OperandError
from layoutgemm.jax import grouped_matmul, matmul, scaled_matmul
from layoutgemm.jax_op.composed import api as composed
from layoutgemm.jax_op.composed import gpu as composed_gpu
from layoutgemm.jax_op.functions import api as functions
from layoutgemm.jax_op.functions import gpu as functions_gpu
from layoutgemm.jax_op.scaled_grouped import api as scaled
from layoutgemm.jax_op.scaled_grouped import gpu as scaled_gpu
from layoutgemm.kernels import Prologue
from layoutgemm.kernels.epilogue.chain import (
    Activation,
    Amax,
    Aux,
    Bias,
    ColumnReduce,
    Custom,
    Epilogue,
    EpilogueOperand,
    Quantize,
    Reduction,
    RowReduce,
)
from tests.jax_op.emulated import emulate_calls

M, N, K = 24, 48, 32
E4M3 = "float8_e4m3fn"
CAUSAL = Custom.of(lambda x, i, j, ops: ops.where(j <= i + 8, x, -4.0))
LARGEST = Reduction.of(  # of one's own, that reads its row
    lambda x, i, j, ops: ops.where(i < 20, x, 0.0), lambda a, b, ops: ops.maximum(a[0], b[0]), [-1e30]
)
STEPS = Epilogue(
    Bias(), Aux("f32"), RowReduce("softmax", "row"), ColumnReduce("argmax", "best"), Amax(), Activation("relu")
)
MORE = Epilogue(
    Bias(), RowReduce("max", "most", dtype="bf16", each=16), ColumnReduce(LARGEST, "own"),
    ColumnReduce("sum", "total", ordered=False), Activation("relu"),
)  # fmt: skip
BOTH = pytest.mark.parametrize("steps", [STEPS, MORE], ids=["ordered", "more"])
CHOSEN = Reduction.of(  # the column of the largest x + extra, and its x
    lambda x, i, j, ops, extra: (x + extra, j, x),
    lambda a, b, ops: [ops.where((a[0] > b[0]) | ((a[0] == b[0]) & (a[1] <= b[1])), p, q) for p, q in zip(a, b)],
    [-1e38, 2**31 - 1, 0.0], lambda a, ops: (a[1], a[2]), results=("column", "score"),
    operands=[EpilogueOperand("extra", "n", "f32")],
)  # fmt: skip
WEIGHED = Reduction.of(
    lambda x, i, j, ops, weight: x * weight, lambda a, b, ops: a[0] + b[0], [0.0],
    operands=[EpilogueOperand("weight", "m", "f32")],
)  # fmt: skip
READING = Epilogue(RowReduce(CHOSEN, "best"), ColumnReduce(WEIGHED, "own"), stores_c=False)
STATISTICS = Epilogue(CAUSAL, RowReduce("log_sum_exp", "total"), stores_c=False)


def small(*shape: int, kind: str = "bfloat16", seed: int = 0) -> Any:
    """Small integers, whose sums are exact."""
    return jnp.asarray(np.random.default_rng((seed, *shape)).integers(-3, 4, shape), jnp.dtype(kind))


A, B, BIAS = small(M, K), small(K, N, seed=1), small(N, kind="float32", seed=2)
WIDE = small(300, K, seed=3)
OFFSETS = np.array([0, 7, 7, M], np.int32)


def normal(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng((seed, *shape)).standard_normal(shape) * 0.3, jnp.bfloat16)


def sums(a: Any, b: Any) -> np.ndarray:
    return (np.asarray(a, np.float64) @ np.asarray(b, np.float64)).astype(np.float32)


def same(found: Any, want: Any, rtol: float = 2e-6) -> None:
    """The arrays of a product beside those of the epilogue's NumPy reference."""
    c, written = found
    if c is not None:
        np.testing.assert_allclose(np.asarray(c, np.float64), want.c, rtol=rtol)
    assert sorted(written) == sorted(want.written)
    for name, value in want.written.items():
        np.testing.assert_allclose(np.asarray(written[name], np.float64), value, rtol=rtol, err_msg=name)


def ours(a: Any = A, given: Any = None, steps: Epilogue = STEPS, **more: Any) -> Any:
    return matmul(a, B, epilogue=steps, given=given or {"bias": BIAS}, out_dtype="float32", **more)


READ = {"extra": small(N, kind="float32", seed=4) * 8, "weight": small(M, kind="float32", seed=5)}
TWICE = Prologue.of(lambda x, i, k, ops: x * 2.0)


@BOTH
def test_values_are_those_of_numpy(steps: Epilogue) -> None:
    bias = np.asarray(BIAS)
    same(ours(steps=steps), steps.reference(sums(A, B), bias=bias))
    same(ours(steps=steps, prologue=TWICE), steps.reference(2 * sums(A, B), bias=bias))


def test_results_have_the_types_of_the_steps() -> None:
    found = jax.eval_shape(lambda: ours()[1] | ours(steps=MORE)[1])
    kinds = {name: (x.shape, str(x.dtype)) for name, x in found.items()}
    assert kinds == {
        "aux": ((M, N), "float32"), "row_max": ((M,), "float32"), "row_log_sum_exp": ((M,), "float32"),
        "best_value": ((N,), "float32"), "best_index": ((N,), "int32"), "amax": ((), "float32"),
        "most": ((M, 3), "bfloat16"), "own": ((N,), "float32"), "total": ((N,), "float32"),
    }  # fmt: skip
    c, written = matmul(A, B, epilogue=STATISTICS)
    assert c is None
    same((c, written), STATISTICS.reference(sums(A, B)))


def test_quantize_has_the_bits_of_numpy() -> None:
    steps = Epilogue(Quantize(each=16))
    wanted = steps.reference(sums(A, B))
    c, written = jax.jit(lambda a: matmul(a, B, epilogue=steps, out_dtype=E4M3))(A)
    np.testing.assert_array_equal(np.asarray(written["scales"]), wanted.written["scales"])
    np.testing.assert_array_equal(np.asarray(c, np.float32), np.asarray(jnp.asarray(wanted.c).astype(E4M3), np.float32))
    with pytest.raises(OperandError, match="the epilogue quantizes to e4m3: say out_dtype='float8_e4m3fn', not bfloat"):
        matmul(A, B, epilogue=steps)
    with pytest.raises(OperandError, match="values of 8 bits have no derivative"):
        jax.grad(lambda a: matmul(a, B, epilogue=steps, out_dtype=E4M3)[1]["scales"].sum())(A)


@BOTH
def test_groups_reduce_columns_of_their_own(steps: Epilogue) -> None:
    experts, given = jnp.stack([B, -B, B + 1]), {"epilogue": steps, "given": {"bias": BIAS}, "out_dtype": "float32"}
    ends = [(int(x), int(y)) for x, y in pairwise(OFFSETS)]
    products = np.concatenate([sums(A[x:y], experts[e]) for e, (x, y) in enumerate(ends)])
    want = steps.reference_of_groups(products, ends, bias=np.asarray(BIAS))
    same(grouped_matmul(A, experts, OFFSETS, **given), want)
    found = scaled_matmul(A.astype(E4M3), jnp.full((M, 1), 0.5), B.astype(E4M3), jnp.ones((1, N)), **given)
    same(found, steps.reference(sums(A, B) / 2, bias=np.asarray(BIAS)))


def test_parts_go_with_reductions() -> None:
    """Several products, chosen rows, and an order's tiles."""
    steps, rows = Epilogue(RowReduce("argmax", "best"), Aux("f32")), np.arange(M)[::-1].copy()
    found = matmul(A, (B, -B), combine=lambda p, q, ops: p - q, epilogue=steps, rows=rows, out_dtype="float32")
    same(found, steps.reference(2 * sums(A, B)[rows]))
    wide = WIDE
    _, written = matmul(wide, wide, transpose_b=True, order="lower", epilogue=steps, out_dtype="float32")
    ones = jnp.ones_like(wide)
    inside = np.asarray(matmul(ones, ones, transpose_b=True, order="lower", epilogue=steps)[0]) > 0
    whole = sums(wide, wide.T)
    assert 0 < inside.sum() < inside.size
    np.testing.assert_array_equal(np.asarray(written["aux"]), np.where(inside, whole, 0))
    np.testing.assert_array_equal(np.asarray(written["best_value"]), np.where(inside, whole, -np.inf).max(1))


def test_reductions_read_operands() -> None:
    """In each product, with their derivatives."""
    how, read = {"epilogue": READING, "given": READ}, {name: np.asarray(x) for name, x in READ.items()}
    want = READING.reference(sums(A, B), **read)
    assert (want.written["best_column"] != sums(A, B).argmax(1)).any()
    same(matmul(A, B, **how), want)
    same(matmul((A, A), (B, B), **how), READING.reference(2 * sums(A, B), **read))
    eight = A.astype(E4M3), jnp.full((M, 1), 0.5), B.astype(E4M3), jnp.ones((1, N))
    same(scaled_matmul(*eight, **how), READING.reference(sums(A, B) / 2, **read))
    ends = [(int(x), int(y)) for x, y in pairwise(OFFSETS)]
    each = {**READ, "extra": jnp.stack([READ["extra"], -READ["extra"], READ["extra"]])}  # of each group
    found = grouped_matmul(A, jnp.stack([B] * 3), OFFSETS, epilogue=READING, given=each)
    same(found, READING.reference_of_groups(sums(A, B), ends, **{name: np.asarray(x) for name, x in each.items()}))

    def theirs(a: Any, weight: Any) -> Any:
        x = jnp.matmul(a, B.astype("float32"), precision="highest")
        best = jnp.take_along_axis(x, want.written["best_column"][:, None], 1)
        return best.sum() + ((x * weight[:, None]).sum(0) ** 2).sum()

    def of_ours(a: Any, weight: Any) -> Any:
        _, found = matmul(a, B, epilogue=READING, given={**READ, "weight": weight})
        return found["best_score"].sum() + (found["own"] ** 2).sum()

    wanted = jax.grad(theirs, (0, 1))(A.astype("float32"), READ["weight"])
    for x, y in zip(jax.grad(of_ours, (0, 1))(A, READ["weight"]), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float64), y, atol=0.005 * np.abs(y).max())
    with pytest.raises(OperandError, match="the epilogue takes extra, weight: extra is missing"):
        matmul(A, B, epilogue=READING, given={"weight": READ["weight"]})


def test_gradients_are_those_of_jax() -> None:
    steps = Epilogue(
        Bias(), CAUSAL, RowReduce("softmax", "row"), ColumnReduce("sum_of_squares", "squares"), Activation("gelu"),
        RowReduce("argmax", "best"), Aux("f32"),
    )  # fmt: skip
    weights = [small(*shape, kind="float32", seed=5) for shape in ((M, N), (M,), (M,), (N,))]

    def loss(*results: Any) -> Any:
        return sum((w * x).sum() for w, x in zip(weights, results, strict=True))

    def by_kernel(a: Any, b: Any, bias: Any) -> Any:
        c, x = matmul(a, b, epilogue=steps, given={"bias": bias}, out_dtype="float32")
        return loss(c + x["aux"], x["row_log_sum_exp"] + x["best_value"], x["row_max"], x["squares"])

    def by_jax(a: Any, b: Any, bias: Any) -> Any:
        x = jnp.matmul(a.astype("float32"), b.astype("float32"), precision="highest") + bias
        x = jnp.where(jnp.arange(N) <= jnp.arange(M)[:, None] + 8, x, -4.0)
        y = jax.nn.gelu(x, approximate=False)
        return loss(2 * y, jax.nn.logsumexp(x, -1) + y.max(-1), x.max(-1), (x**2).sum(0))

    given = normal(M, K), normal(K, N, seed=1), BIAS
    pairs = zip(*[jax.jit(jax.grad(f, range(3)))(*given) for f in (by_kernel, by_jax)], strict=True)
    for x, y in [(np.asarray(x, np.float32), np.asarray(y, np.float32)) for x, y in pairs]:
        assert x.shape == y.shape and np.abs(x - y).max() <= 0.01 * np.abs(y).max()


def test_equal_and_masked_elements_share_a_derivative() -> None:
    """A traced maximum of equal elements would halve the derivative at each level."""
    steps = Epilogue(Custom.of(lambda x, i, j, ops: ops.where(j < 3, x, float("-inf"))), RowReduce("log_sum_exp", "t"))
    found = jax.grad(lambda b: matmul(jnp.ones((1, 1), "float16"), b, epilogue=steps)[1]["t"].sum())(
        jnp.zeros((1, 4), "float16")
    )
    np.testing.assert_allclose(np.asarray(found), [[1 / 3, 1 / 3, 1 / 3, 0]], rtol=1e-3)


def test_gradients_of_groups() -> None:
    steps = Epilogue(RowReduce("sum_of_squares", "rows"), ColumnReduce("sum", "columns"))
    experts = jnp.stack([normal(K, N, seed=e) for e in range(3)])
    weights = small(3, N, kind="float32")

    def by_kernel(a: Any, b: Any) -> Any:
        _, x = grouped_matmul(a, b, OFFSETS, epilogue=steps, out_dtype="float32")
        return x["rows"].sum() + (weights * x["columns"]).sum()

    def by_jax(a: Any, b: Any) -> Any:
        parts = [a[x:y].astype("float32") @ b[e].astype("float32") for e, (x, y) in enumerate(pairwise(OFFSETS))]
        return sum((x**2).sum() + (weights[e] * x.sum(0)).sum() for e, x in enumerate(parts))

    for x, y in zip(*[jax.grad(f, (0, 1))(normal(M, K), experts) for f in (by_kernel, by_jax)], strict=True):
        x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
        assert np.abs(x - y).max() <= 0.01 * np.abs(y).max()


def test_vmap_has_the_results_of_each() -> None:
    stacked = jnp.stack([A, -A])
    alone = [ours(x) for x in stacked]
    without_a_number = Epilogue(*[step for step in STEPS.steps if not isinstance(step, Amax)])
    for found in (jax.vmap(ours)(stacked), jax.vmap(lambda a: ours(a, steps=without_a_number))(stacked)):
        for i, one in enumerate(alone):
            np.testing.assert_array_equal(np.asarray(found[0][i]), np.asarray(one[0]))
            for name, x in found[1].items():
                np.testing.assert_array_equal(np.asarray(x[i]), np.asarray(one[1][name]), err_msg=name)


def test_a_mesh_cuts_what_nothing_is_reduced_along(mesh: Any) -> None:
    spec, steps = jax.sharding.PartitionSpec, Epilogue(Bias(), RowReduce("argmax", "best"), Aux("f32"))

    def product(a: Any, bias: Any) -> Any:
        return matmul(a, B, epilogue=steps, given={"bias": bias}, out_dtype="float32")

    parts = jax.device_put(A, jax.sharding.NamedSharding(mesh, spec("x"))), BIAS
    compiled = jax.jit(product).lower(*parts).compile()
    c, written = compiled(*parts)
    same((c, written), steps.reference(sums(A, B), bias=np.asarray(BIAS)))
    assert written["best_index"].sharding.spec == spec("x") and c.sharding.spec[0] == "x"
    assert "all-gather" not in compiled.as_text()
    whole = jax.jit(lambda a: matmul(a, B, epilogue=Epilogue(ColumnReduce("sum", "s")), out_dtype="float32"))(parts[0])
    np.testing.assert_array_equal(np.asarray(whole[1]["s"]), sums(A, B).sum(0))


def test_of_no_element_results_are_the_identity() -> None:
    steps = Epilogue(ColumnReduce("max", "most"), ColumnReduce("argmax", "best"), Amax())
    c, written = matmul(A[:0], B, epilogue=steps)
    assert c.shape == (0, N) and np.asarray(written["most"]).tolist() == [-np.inf] * N
    assert written["amax"] == 0 and written["best_index"].tolist() == [2**31 - 1] * N


def test_refusals() -> None:
    with pytest.raises(OperandError, match="row_max is given, and the epilogue writes it: JAX arrays are results"):
        ours(given={"bias": BIAS, "row_max": jnp.ones(M)})
    steps, given = Epilogue(Bias(name="workspace")), {"workspace": BIAS}
    with pytest.raises(OperandError, match="an operand of the functions is named workspace, as one of the product"):
        matmul(A, B, epilogue=steps, given=given)
    with pytest.raises(OperandError, match="two operands of the product are named workspace"):
        matmul(A, B, epilogue=steps, given=given, rows=np.arange(M))
    with pytest.raises(OperandError, match="named workspace, as one of the product is"):
        grouped_matmul(A, B[None], np.array([0, M]), epilogue=steps, given=given)


# ------------------------------------------------------------------------------------------------------ without a GPU

EIGHT, TALL = Quantize(each=16), jnp.tile(A, (-(-520 // A.shape[0]), 1))[:520]  # rows enough for one wave of tiles
MOST_CALLS = "no c", "prologue", "quantized", "scaled", "order", "groups that read"


@pytest.mark.dsl
@pytest.mark.parametrize(
    "name",
    ["functions", "whole rows", "groups", "reads", *[pytest.param(x, marks=pytest.mark.slow) for x in MOST_CALLS]],
)
def test_the_arguments_of_a_call_compute_the_product(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels, in the emulator, with the arguments that a call passes: workspaces and results included."""
    few = Epilogue(Bias(), Aux("f32"), RowReduce("argmax", "best"), Amax(), ColumnReduce("sum", "s", ordered=False))
    given, out = {"bias": BIAS}, {"out_dtype": "float32"}
    both, more = jnp.stack([A, -A]), jnp.stack([B, B[:, ::-1]])
    one, extra = Epilogue(READING.steps[0], stores_c=False), {"extra": READ["extra"]}
    calls = {
        "functions": (functions, functions_gpu, lambda: ours()),
        "whole rows": (functions, functions_gpu, lambda: matmul(TALL, B, epilogue=Epilogue(few.steps[2]), **out)),
        "no c": (functions, functions_gpu, lambda: matmul(A, B, epilogue=STATISTICS)),
        "prologue": (functions, functions_gpu, lambda: matmul(A, B, prologue=TWICE, epilogue=few, given=given, **out)),
        "quantized": (functions, functions_gpu, lambda: matmul(A, B, epilogue=Epilogue(EIGHT), out_dtype=E4M3)),
        "groups": (
            scaled, scaled_gpu,
            lambda: grouped_matmul(A, jnp.stack([B] * 3), OFFSETS, epilogue=few, given=given, transpose_b=False, **out),
        ),
        "scaled": (
            scaled, scaled_gpu,
            lambda: scaled_matmul(
                A.astype(E4M3), jnp.ones(()), B.T.astype(E4M3), jnp.ones(()), epilogue=MORE, given=given,
                transpose_b=True, **out,
            ),
        ),
        "order": (
            composed, composed_gpu,
            lambda: matmul(WIDE, WIDE, transpose_b=True, order="lower", epilogue=Epilogue(*few.steps[1:]), **out),
        ),
        "reads": (
            composed, composed_gpu, lambda: matmul((both, -both), (more, more * 2), epilogue=one, given=extra)
        ),
        "groups that read": (
            scaled, scaled_gpu, lambda: grouped_matmul(A, jnp.stack([B] * 3), OFFSETS, epilogue=READING, given=READ)
        ),
    }  # fmt: skip
    api, gpu, call = calls[name]
    want = call()
    emulate_calls(monkeypatch, gpu)
    monkeypatch.setattr(api, "_compiled", gpu.multiply)
    for x, y in zip(jax.tree.leaves(call()), jax.tree.leaves(want), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=1e-5)


@pytest.mark.dsl
def test_lowering_compiles_one_call_of_a_kernel() -> None:
    shapes = (((64, 128), "bfloat16"), ((128, 64), "bfloat16"), ((64,), "float32"))
    arrays = [jax.ShapeDtypeStruct(shape, jnp.dtype(kind)) for shape, kind in shapes]

    def product(a: Any, b: Any, bias: Any) -> Any:
        return matmul(a, b, epilogue=Epilogue(Bias(), RowReduce("argmax", "best"), Amax()), given={"bias": bias})

    text = jax.jit(product).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call") == 1 and "CuteDSLRT" in text and "output_operand_alias" in text
    assert not any(f"stablehlo.{op}" in text for op in ("transpose", "pad", "add", "reduce", "dot_general"))
