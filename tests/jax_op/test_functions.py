"""layoutgemm.jax.matmul with epilogues and prologues: values, transforms, derivatives, refusals, and its launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import needs

jax = needs.module("jax")
jnp = jax.numpy
from layoutgemm.dtypes import f32
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.jax import grouped_matmul, matmul
from layoutgemm.jax_op.functions import gpu
from layoutgemm.jax_op.functions.product import FunctionProduct
from layoutgemm.jax_op.functions.reference import JaxMath
from layoutgemm.jax_op.gpu import Target
from layoutgemm.kernels import Prologue
from layoutgemm.kernels.epilogue.chain import (
    Activation,
    Bias,
    ColumnGroup,
    Custom,
    Dropout,
    Epilogue,
    EpilogueOperand,
    Residual,
    RowReduce,
    Scale,
    VectorScale,
)
from layoutgemm.kernels.epilogue.numpy_math import Math

M, N, K = 6, 8, 16
NORM = Prologue.of(lambda x, i, k, ops, rstd, w: x * rstd * w + ops.where(k > i, 1.0, 0.0), rstd="m", w="k:bf16")
DECAY = Custom.of(lambda x, i, j, ops, slope: x * ops.exp(slope * (j - i)), EpilogueOperand("slope", "m", f32))
MIXED = ColumnGroup.of(lambda x, i, j, ops: (x[1] * 0.5, x[0] + 0.1 * j), distance=2)
CHAIN = (Scale(), DECAY, Residual(beta=None, order="col"), MIXED, Activation("gelu"))
WITH_DROPOUT = Epilogue(*CHAIN, Dropout(0.5))
ONES = {"alpha": 1.0}


def normal(*shape: int, kind: str = "float32", seed: int = 0) -> Any:
    values = np.random.default_rng((seed, *shape)).standard_normal(shape) * 0.5
    return jnp.asarray(values.astype(np.float32), jnp.dtype(kind))  # rounded by NumPy, which compiles nothing


A, B = normal(M, K, kind="bfloat16"), normal(K, N, kind="bfloat16", seed=1)
ARRAYS = {
    "rstd": abs(normal(M)),
    "w": normal(K, kind="bfloat16"),
    "slope": normal(M) * 0.2,
    "d": normal(M, N, kind="bfloat16"),
}
NUMBERS = {"alpha": 0.5, "seed": 7}


def made(a: Any, b: Any, **more: Any) -> Any:
    return matmul(a, b, prologue=NORM, epilogue=WITH_DROPOUT, given={**NUMBERS, **ARRAYS, **more}, out_dtype="float32")


def by_numpy() -> np.ndarray:
    def array(x: Any) -> np.ndarray:
        return np.asarray(x, np.float32)

    x = NORM.reference(array(A), {name: array(ARRAYS[name]) for name in NORM.names})
    sums = array(jnp.asarray(x).astype(jnp.bfloat16)).astype(np.float64) @ np.asarray(B, np.float64)
    values = {name: array(ARRAYS[name]) for name in ("slope", "d")}
    return WITH_DROPOUT.reference(sums.astype(np.float32), **values, **NUMBERS).c


def test_values_are_those_of_numpy() -> None:
    want = by_numpy()
    assert 0 < (want == 0).sum() < want.size  # dropped by the same bits
    np.testing.assert_allclose(np.asarray(made(A, B)), want, atol=2e-6)
    turned = matmul(
        A.T, B.T, prologue=NORM, epilogue=WITH_DROPOUT, given={**NUMBERS, **ARRAYS}, out_dtype="float32",
        transpose_a=True, transpose_b=True,
    )  # fmt: skip
    np.testing.assert_allclose(np.asarray(turned), want, atol=2e-6)
    found = matmul(
        A, B, prologue=NORM, given={n: ARRAYS[n] for n in NORM.names}, bias=jnp.arange(8.0), activation="relu"
    )
    assert found.dtype == "bfloat16" and found.shape == (M, N)


@pytest.mark.parametrize("kinds", [("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn")])
def test_a_prologue_of_float8_is_rounded_once_and_ends_at_the_largest(kinds: tuple[str, str]) -> None:
    """A conversion beyond the range gives NaN or infinity; a kernel's gives the end of the range."""
    a, b = normal(M, K, kind=kinds[0]), normal(K, N, kind=kinds[1], seed=1)
    largest = float(jnp.finfo(kinds[0]).max)
    given = {"rstd": jnp.full(M, 1.37).at[0].set(largest * 8), "w": ARRAYS["w"]}
    found = matmul(a, b, prologue=NORM, given=given, out_dtype="float32")
    x = NORM.reference(np.asarray(a, np.float32), {name: np.asarray(given[name], np.float32) for name in NORM.names})
    assert np.abs(x[0]).max() > 2 * largest
    rounded = np.clip(x, -largest, largest).astype(jnp.dtype(kinds[0])).astype(np.float64)
    np.testing.assert_allclose(np.asarray(found), rounded @ np.asarray(b, np.float64), rtol=1e-5, atol=1e-5)
    turned = matmul(
        a.T, b.T, prologue=NORM, given=given, out_dtype="float32", transpose_a=True, transpose_b=True
    )  # fmt: skip
    np.testing.assert_array_equal(np.asarray(turned), np.asarray(found))
    own = FunctionProduct(a.T.shape, b.shape, (*kinds, "bfloat16"), (True, False), None, NORM, ((M,), (K,)))
    assert own.k_contiguous.sizes == own.sizes and own.k_contiguous.turned == (False, True)
    assert gpu.plan_of(own.k_contiguous, Target()).check()
    with pytest.raises(OperandError, match="products of 8-bit types have no derivative"):
        jax.grad(lambda a: matmul(a, b, prologue=NORM, given=given).astype("float32").sum())(a)


def test_the_operations_are_numpys() -> None:
    ends = np.array([-1.5, 2.5, np.nan, np.inf, -np.inf, 2.0**31, -(2.0**31), 2.0**31 - 128], np.float32)
    assert JaxMath.whole(jnp.asarray(ends)).tolist() == Math.whole(ends).tolist()
    assert Math.whole(ends).tolist() == [-1, 2, 0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 2**31 - 128]
    names = {name for name in vars(Math) if not name.startswith("_")}
    assert names <= {*vars(JaxMath)}
    x = np.array([-1.5, 0.25, 2.5, 3.0, np.nan], np.float32)
    for name in sorted(
        names & {"exp", "tanh", "erf", "normal", "sigmoid", "sqrt", "rsqrt", "log", "abs", "floor", "round"}
    ):
        ours = getattr(JaxMath, name)(jnp.asarray(x))
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(np.asarray(ours), getattr(Math, name)(x), rtol=2e-6)
    for name in ("maximum", "minimum", "largest", "smallest", "floordiv", "mod"):
        y = np.array([2.0, -0.5, 4.0, np.nan, 1.0], np.float32)
        np.testing.assert_array_equal(np.asarray(getattr(JaxMath, name)(jnp.asarray(x), y)), getattr(Math, name)(x, y))


def test_vmap_makes_a_batch() -> None:
    a = jnp.stack([A, -A])
    rstd, d = jnp.stack([ARRAYS["rstd"], ARRAYS["rstd"] * 2]), jnp.stack([ARRAYS["d"], -ARRAYS["d"]])
    found = jax.vmap(lambda a, rstd, d: made(a, B, rstd=rstd, d=d))(a, rstd, d)
    want = [made(a[i], B, rstd=rstd[i], d=d[i]) for i in range(2)]
    np.testing.assert_array_equal(np.asarray(found), np.stack(want))
    b, w = jnp.stack([B, B]), jnp.stack([ARRAYS["w"]] * 2)

    def batch(a: Any, rstd: Any) -> Any:
        given = {"rstd": rstd, "w": w, "slope": ARRAYS["slope"]}
        return matmul(a, b, prologue=NORM, epilogue=Epilogue(DECAY), given=given)

    twice = jax.vmap(batch)(jnp.stack([a, -a]), jnp.stack([rstd, rstd + 1]))
    np.testing.assert_array_equal(np.asarray(twice[1], np.float32), np.asarray(batch(-a, rstd + 1), np.float32))


def test_gradients_are_those_of_jax() -> None:
    steps = Epilogue(*CHAIN)
    names = list(ARRAYS)

    def ours(a: Any, b: Any, *arrays: Any) -> Any:
        given = {"alpha": 0.5, **dict(zip(names, arrays, strict=True))}
        return (matmul(a, b, prologue=NORM, epilogue=steps, given=given, out_dtype="float32") ** 2).sum()

    def theirs(a: Any, b: Any, rstd: Any, w: Any, slope: Any, d: Any) -> Any:
        i, j, k = jnp.arange(M)[:, None], jnp.arange(N), jnp.arange(K)
        x = (a.astype(jnp.float32) * rstd[:, None] * w.astype(jnp.float32) + (k > i)).astype(a.dtype)
        sums = jnp.matmul(x.astype(jnp.float32), b.astype(jnp.float32), precision="highest") * 0.5
        sums = sums * jnp.exp(slope[:, None] * (j - i)) + d.astype(jnp.float32)
        pairs, column = sums.reshape(M, N // 4, 2, 2), j.reshape(N // 4, 2, 2)
        sums = jnp.stack([pairs[:, :, 1] * 0.5, pairs[:, :, 0] + 0.1 * column[:, 0]], 2).reshape(M, N)
        return (jax.nn.gelu(sums, approximate=False) ** 2).sum()

    given = A, B, *ARRAYS.values()
    pairs = zip(*[jax.jit(jax.grad(f, range(6)))(*given) for f in (ours, theirs)], strict=True)
    for x, y in [(np.asarray(x, np.float32), np.asarray(y, np.float32)) for x, y in pairs]:
        assert x.shape == y.shape and np.abs(x - y).max() <= 0.01 * np.abs(y).max()


def test_a_mesh_has_the_product_of_one_device(mesh: Any) -> None:
    spec = jax.sharding.PartitionSpec
    a, steps = jnp.concatenate([A, -A])[:8], Epilogue(DECAY)
    slope = normal(8)

    def product(a: Any, slope: Any) -> Any:
        return matmul(a, B, epilogue=steps, given={"slope": slope}, out_dtype="float32")

    parts = [jax.device_put(x, jax.sharding.NamedSharding(mesh, spec("x"))) for x in (a, slope)]
    found = jax.jit(product)(*parts)
    np.testing.assert_allclose(np.asarray(found), np.asarray(product(a, slope)), rtol=1e-5, atol=1e-6)
    by_part = jax.shard_map(product, mesh=mesh, in_specs=spec(("x", "y")), out_specs=spec(("x", "y")))(a, slope)
    want = jnp.concatenate([product(a[i : i + 2], slope[i : i + 2]) for i in range(0, 8, 2)])
    np.testing.assert_allclose(np.asarray(by_part), np.asarray(want), rtol=1e-5, atol=1e-6)


def test_empty_products() -> None:
    assert matmul(A[:0], B, epilogue=Epilogue(Scale()), given=ONES).shape == (0, N)
    found = matmul(A[:, :0], B[:0], epilogue=Epilogue(Bias()), given={"bias": jnp.arange(8.0)})
    assert found[0].tolist() == [*range(8)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"epilogue": Epilogue(Scale()), "activation": "relu", "given": ONES}, "activation and epilogue: one or the"),
        ({"epilogue": lambda x: x}, "epilogue is a function"),
        ({"prologue": lambda x: x}, "prologue is a function"),
        ({"given": ONES}, "there is neither"),
        ({"epilogue": Epilogue(Scale()), "given": [1.0]}, "given is a list"),
        ({"epilogue": Epilogue(Scale()), "given": {**ONES, "z": 1}}, "the epilogue takes alpha: z is no operand of it"),
        ({"prologue": NORM, "given": {"rstd": ARRAYS["rstd"]}}, "the prologue takes rstd, w: w is missing"),
        ({"epilogue": Epilogue(DECAY), "given": {"slope": jnp.ones(7)}}, "slope is float32 of shape (7,): it takes"),
        ({"epilogue": Epilogue(DECAY), "given": {"slope": jnp.ones(6, "bfloat16")}}, "slope is bfloat16 of shape (6,)"),
        ({"prologue": NORM, "epilogue": Epilogue(VectorScale("m", name="rstd"))}, "of the prologue and of the"),
        ({"a": A[0], "epilogue": Epilogue(Scale()), "given": ONES}, "not of shapes (16,) and (16, 8)"),
        ({"a": A.astype("float32"), "b": B.astype("float32"), "allow_tf32": True, "prologue": NORM}, "a prologue is"),
        ({"a": A.astype("int8"), "b": B.astype("int8"), "epilogue": Epilogue(Scale()), "given": ONES}, "is int32"),
    ],
)  # fmt: skip
def test_refusals(more: dict[str, Any], message: str) -> None:
    given = {"a": A, "b": B, **more}
    if "prologue" in more and "given" not in more:
        given["given"] = {name: ARRAYS[name] for name in NORM.names}
    with pytest.raises(OperandError) as found:
        matmul(given.pop("a"), given.pop("b"), **given)
    assert message in str(found.value)


def test_groups_of_columns_that_no_kernel_reduces_are_refused_on_the_cpu_too() -> None:
    with pytest.raises(PlanError, match="parts: each = 4: a multiple of 8 columns"):
        matmul(A, B, epilogue=Epilogue(RowReduce("sum", "parts", each=4)))


def test_numbers_of_a_launch_are_known_when_it_is_traced() -> None:
    with pytest.raises(OperandError, match="alpha is traced"):
        jax.jit(lambda s: matmul(A, B, epilogue=Epilogue(Scale()), given={"alpha": s}))(2.0)
    by_array = Epilogue(Scale(device=True))
    found = jax.jit(lambda s: matmul(A, B, epilogue=by_array, given={"alpha": s}))(jnp.float32(2.0))
    np.testing.assert_array_equal(np.asarray(found), np.asarray(matmul(A * 2, B)))
    with pytest.raises(OperandError, match="alpha is mapped by vmap"):
        jax.vmap(lambda s: matmul(A, B, epilogue=by_array, given={"alpha": s}))(jnp.ones(3))


# ------------------------------------------------------------------------------------------------------ without a GPU


def of_sizes(
    m: int, n: int, k: int, batch: tuple[int, ...], epilogue: Epilogue, prologue: Prologue | None
) -> FunctionProduct:
    shapes = {"rstd": (*batch, m), "w": (*batch, k), "slope": (*batch, m), "d": (m, n)}
    product = FunctionProduct(
        (*batch, m, k), (*batch, n, k), ("bfloat16",) * 3, (False, True), epilogue, prologue, (), (("alpha", 0.5),)
    )
    own = tuple([shapes[operand.name] for operand in product.operands])
    return FunctionProduct(
        *[getattr(product, name) for name in ("a", "b", "types", "turned")], epilogue, prologue, own, product.numbers
    )


@pytest.mark.parametrize("batch", [(), (3,)])
def test_words_of_a_launch(batch: tuple[int, ...]) -> None:
    epilogue, places = Epilogue(*CHAIN[:3]), {"rstd": 64, "w": 128, "slope": 192, "d": 256}
    strides = {"rstd_batch": 100, "w_batch": 72, "slope_batch": 100 if batch else 0, "d_ld": 40, "d_batch": 0}
    want = {"alpha": 0x3F000000, **places, **strides}
    product = of_sizes(100, 40, 72, batch, epilogue, NORM)
    plan = gpu.plan_of(product, Target())
    assert plan.check() and plan.batch == (batch or (1,))[0]
    words = gpu.words_for(plan.words, product, plan.epilogue, places)
    assert dict(zip(plan.words, words)) == want and words[len(plan.words) :] == (0,) * (16 - len(plan.words))
    plain = of_sizes(100, 40, 72, batch, epilogue, None)
    solution = gpu.solution_of(plain, Target())
    steps = solution.kernel.epilogue
    assert steps is not None and len(solution.launches) == 1
    found = dict(zip(steps.words, gpu.words_for(steps.words, plain, steps, places)))
    assert found == {name: want[name] for name in steps.words}


@pytest.mark.dsl
def test_xla_turns_arrays_of_8_bits_in_front_of_a_prologue() -> None:
    def product(a: Any, b: Any, rstd: Any, w: Any) -> Any:
        return matmul(a, b, transpose_a=True, prologue=NORM, given={"rstd": rstd, "w": w})

    shapes = (((128, 64), "float8_e4m3fn"), ((128, 32), "float8_e4m3fn"), ((64,), "float32"), ((128,), "bfloat16"))
    arrays = [jax.ShapeDtypeStruct(shape, jnp.dtype(kind)) for shape, kind in shapes]
    text = jax.jit(product).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    assert (text.count("stablehlo.custom_call"), text.count("stablehlo.transpose")) == (1, 2)
    assert "stablehlo.convert" not in text and "stablehlo.dot_general" not in text


@pytest.mark.dsl
def test_lowering_compiles_one_call_of_a_kernel() -> None:
    def product(a: Any, b: Any, rstd: Any, w: Any, slope: Any) -> Any:
        given = {"rstd": rstd, "w": w, "slope": slope}
        return matmul(a, b, transpose_b=True, prologue=NORM, epilogue=Epilogue(DECAY), given=given)

    shapes = (
        ((64, 128), "bfloat16"),
        ((64, 128), "bfloat16"),
        ((64,), "float32"),
        ((128,), "bfloat16"),
        ((64,), "float32"),
    )
    arrays = [jax.ShapeDtypeStruct(shape, jnp.dtype(kind)) for shape, kind in shapes]
    text = jax.jit(product).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call") == 1 and "CuteDSLRT" in text
    assert not any(f"stablehlo.{op}" in text for op in ("transpose", "pad", "add", "multiply", "dot_general"))


# ----------------------------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("with_prologue", [False, True])
def test_on_a_gpu(with_prologue: bool) -> None:
    m, n, k = 200, 136, 328
    a, b = normal(3, m, k, kind="bfloat16"), normal(3, n, k, kind="bfloat16", seed=1)
    given = {"alpha": 0.5, "slope": normal(m) * 0.01, "d": normal(m, n, kind="bfloat16")}
    prologue = NORM if with_prologue else None
    given |= {"rstd": abs(normal(3, m)), "w": normal(3, k, kind="bfloat16")} if with_prologue else {}
    steps = Epilogue(*CHAIN[:3])

    def product(a: Any, b: Any) -> Any:
        return matmul(a, b, transpose_b=True, prologue=prologue, epilogue=steps, given=given, out_dtype="float32")

    found = np.asarray(jax.jit(product)(a, b), np.float64)
    x = np.asarray(a, np.float32)
    if with_prologue:
        x = NORM.reference(x, {name: np.asarray(given[name], np.float32) for name in NORM.names})
        x = np.asarray(jnp.asarray(x).astype("bfloat16"), np.float32)
    sums = np.asarray(x, np.float64) @ np.swapaxes(np.asarray(b, np.float64), 1, 2)
    values = {name: np.asarray(given[name], np.float32) for name in ("slope", "d")}
    want = steps.reference(sums.astype(np.float32), alpha=0.5, **values).c
    assert np.abs(found - want).max() <= 1e-4 * np.abs(want).max()


def test_numbers_that_differ_in_their_sign_are_two_programs() -> None:
    ones = jnp.ones((4, 8), jnp.bfloat16), jnp.ones((8, 4), jnp.bfloat16)
    for alpha in (0.0, -0.0, 0.0):
        found = np.asarray(matmul(*ones, epilogue=Epilogue(Scale()), given={"alpha": alpha}))
        assert np.signbit(found).tolist() == np.full((4, 4), np.signbit(alpha)).tolist()


def test_programs_that_promote_nothing_in_silence_run() -> None:
    """A caller's jax_numpy_rank_promotion="raise" and jax_numpy_dtype_promotion="strict" hold for our steps too."""
    steps = Epilogue(
        Custom.of(
            lambda x, i, j, ops, s, v: ops.where(j <= i, x * s + v, 0.0),
            EpilogueOperand("s", "m", "f32"), EpilogueOperand("v", "n", "f32"),
        )
    )  # fmt: skip
    scaled = Prologue.of(lambda x, i, k, ops, s: x * s + k, s="m")
    x, w, bias = jnp.ones((4, 8), jnp.bfloat16), jnp.ones((2, 8, 6), jnp.bfloat16), jnp.arange(6.0)
    xs, biases, ends = jnp.stack([x, x]), jnp.stack([bias, bias]), jnp.array([0, 1, 4])
    calls = (
        lambda v: matmul(xs, w[0], bias=v, activation="gelu"),
        lambda v: jax.vmap(lambda one: matmul(x, w[0], bias=one))(jnp.stack([v, v])),
        lambda v: matmul(xs, w, epilogue=steps, given={"s": jnp.ones((2, 4)), "v": jnp.stack([v, v])}),
        lambda v: matmul(xs, w, prologue=scaled, given={"s": jnp.ones((2, 4)) * v[:1, None]}),
        lambda v: grouped_matmul(x, w, ends, bias=biases * v[None]),
    )
    wanted = [jax.grad(lambda v, f=f: f(v).astype(jnp.float32).sum())(bias) for f in calls]
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        found = [jax.grad(lambda v, f=f: f(v).astype(jnp.float32).sum())(bias) for f in calls]
    assert all(np.array_equal(*pair) for pair in zip(found, wanted, strict=True))
