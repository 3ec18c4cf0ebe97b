"""layoutgemm.jax.matmul on the CPU: values beside NumPy's, derivatives beside JAX's own, shapes, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import needs

jax = needs.module("jax")
jnp = jax.numpy
from layoutgemm.errors import OperandError, TensorError
from layoutgemm.jax import grouped_matmul, matmul
from layoutgemm.jax_op.product import Product
from layoutgemm.jax_op.reference import ACTIVATIONS


def normal(*shape: int, kind: str = "bfloat16", seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng((seed, *shape)).standard_normal(shape) * 0.5, jnp.dtype(kind))


def exact(a: Any, b: Any) -> np.ndarray:
    return np.asarray(a, np.float64) @ np.asarray(b, np.float64)


def near(value: Any, wanted: np.ndarray, bound: float = 2**-8) -> None:
    """Equal up to the rounding of bfloat16."""
    np.testing.assert_allclose(np.asarray(value, np.float64), wanted, rtol=bound, atol=1e-5)


SHAPES = [
    ((5,), (5,)), ((5,), (5, 3)), ((4, 5), (5,)), ((4, 5), (5, 3)), ((2, 4, 5), (5, 3)), ((4, 5), (2, 5, 3)),
    ((7, 1, 4, 5), (6, 5, 3)), ((2, 4, 5), (5,)), ((5,), (2, 5, 3)), ((0, 5), (5, 3)), ((4, 0), (0, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_shapes_and_values_are_numpys(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = normal(*a), normal(*b, seed=1)
    near(matmul(x, y), exact(x, y))
    assert jax.eval_shape(matmul, x, y).shape == jnp.matmul(x, y).shape


@pytest.mark.parametrize("kind", ["float16", "float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_types(kind: str) -> None:
    x, y = normal(8, 16, kind=kind), normal(16, 4, kind=kind)
    value = matmul(x, y)
    assert value.dtype == ("float16" if kind == "float16" else "bfloat16")
    near(value, exact(x, y))
    near(matmul(x, y, out_dtype=jnp.float32), exact(x, y), 1e-6)


def test_integers_are_exact() -> None:
    x = jnp.asarray(np.arange(-64, 64).reshape(8, 16), jnp.int8)
    y = jnp.asarray(np.arange(128, 256).reshape(16, 8), jnp.uint8)
    value = matmul(x, y)
    assert value.dtype == "int32" and (np.asarray(value) == exact(x, y)).all()


def test_float8_results_stop_at_the_largest_number() -> None:
    x = jnp.full((1, 64), 8.0, jnp.float8_e4m3fn)
    assert float(matmul(x, x.T, out_dtype="float8_e4m3fn")[0, 0]) == 448.0  # 4096 exceeds it


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_bias_and_activation_are_rounded_once(activation: str) -> None:
    x, y, bias = normal(6, 16), normal(16, 5), normal(5, kind="float32")
    sums = jnp.asarray(exact(x, y), jnp.float32) + bias
    near(matmul(x, y, bias=bias, activation=activation), np.asarray(ACTIVATIONS[activation](sums), np.float64))


@pytest.mark.parametrize(
    ("turned", "batch", "activation"),
    [
        *[(t, ((), ()), None) for t in ((False, False), (True, False), (False, True), (True, True))],
        *[(t, ((3,), ()), "relu") for t in ((False, False), (True, True))],
        ((True, False), ((3, 1), (2,)), "gelu"),
        pytest.param((False, True), ((3, 1), (2,)), "gelu", marks=pytest.mark.slow),
        ((False, False), ((), (3,)), "silu"),
    ],
)
def test_gradients_are_those_of_jax(turned: tuple[bool, bool], batch: Any, activation: str | None) -> None:
    a, b, bias = normal(*batch[0], 4, 6, kind="float32"), normal(*batch[1], 6, 5, kind="float32"), normal(5)
    a, b = jnp.swapaxes(a, -1, -2) if turned[0] else a, jnp.swapaxes(b, -1, -2) if turned[1] else b
    act = (lambda x: x) if activation is None else ACTIVATIONS[activation]

    def ours(a: Any, b: Any, bias: Any) -> Any:
        c = matmul(
            a, b, bias=bias, activation=activation, transpose_a=turned[0], transpose_b=turned[1], allow_tf32=True
        )
        return (c * c).sum()

    def theirs(a: Any, b: Any, bias: Any) -> Any:
        a, b = jnp.swapaxes(a, -1, -2) if turned[0] else a, jnp.swapaxes(b, -1, -2) if turned[1] else b
        return (act(jnp.matmul(a, b, precision="highest") + bias.astype(jnp.float32)) ** 2).sum()

    found, wanted = (f(a, b, bias) for f in (jax.grad(ours, (0, 1, 2)), jax.jit(jax.grad(theirs, (0, 1, 2)))))
    for x, y in zip(found, wanted, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=2e-4, atol=2e-4)


def test_second_derivatives() -> None:
    a, b = normal(3, 4, kind="float32"), normal(4, 2, kind="float32")
    first = jax.grad(lambda a, b: (matmul(a, b, allow_tf32=True) ** 2).sum())
    value = jax.grad(lambda b: (first(a, b) ** 2).sum())(b)
    plain = jax.grad(lambda a, b: (jnp.matmul(a, b, precision="highest") ** 2).sum())
    np.testing.assert_allclose(value, jax.grad(lambda b: (plain(a, b) ** 2).sum())(b), rtol=1e-4)


@pytest.mark.parametrize("axes", [(0, None, None), (None, 0, None), (0, 0, None), (1, 2, 0), (None, None, 0)])
def test_vmap_maps_to_a_batch(axes: tuple[int | None, ...]) -> None:
    def mapped(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
        return shape if axis is None else (*shape[:axis], 7, *shape[axis:])

    shapes = ((2, 4, 6), (6, 5), (5,))
    a, b, bias = (normal(*mapped(shape, axis), seed=i) for i, (shape, axis) in enumerate(zip(shapes, axes)))

    def one(a: Any, b: Any, bias: Any) -> Any:
        return matmul(a, b, bias=bias, activation="relu")

    value = jax.jit(jax.vmap(one, axes))(a, b, bias)
    pick = [lambda x, i, axis=axis: x if axis is None else jnp.take(x, i, axis) for axis in axes]
    for i in range(7):
        alone = one(*[f(x, i) for f, x in zip(pick, (a, b, bias), strict=True)])
        np.testing.assert_array_equal(np.asarray(value[i], np.float32), np.asarray(alone, np.float32))
    if axes[2] is None:
        text = str(jax.make_jaxpr(jax.vmap(one, axes))(a, b, bias))
        assert "bias='bfloat16'" in text  # one product with its bias, not a loop


def test_vmap_of_a_gradient() -> None:
    a, b = normal(7, 4, 6, kind="float32"), normal(6, 5, kind="float32")
    first = jax.grad(lambda a, b: (matmul(a, b, allow_tf32=True) ** 2).sum(), (0, 1))
    value = jax.vmap(first, (0, None))(a, b)
    for i in range(7):
        for x, y in zip(value, first(a[i], b), strict=True):
            np.testing.assert_allclose(x[i], y, rtol=1e-5, atol=1e-5)


REFUSED = [
    (lambda x: matmul(x, normal(5, 4)), TensorError, r"K is 3 in a of shape \(2, 3\) and 5 in b of shape \(5, 4\)$"),
    (lambda x: matmul(x, normal(4, 3)), TensorError, r"4 in b of shape \(4, 3\); transpose_b=True reads b as \(N, K\)"),
    (lambda x: matmul(normal(2, 2, 3), normal(3, 3, 4)), TensorError, r"a \(2,\) and of b \(3,\).*2 meets 3"),
    (lambda x: matmul(x, normal()), TensorError, "b is a scalar"),
    (lambda x: matmul(normal(3), normal(3, 2), transpose_a=True), TensorError, "transpose_a=True, and a is a vector"),
    (lambda x: matmul(x, x.T.astype(jnp.float16)), TensorError, "a is bfloat16 and b is float16"),
    (lambda x: matmul(x.astype(jnp.float32), x.T.astype(jnp.float32)), OperandError, "allow_tf32=True"),
    (lambda x: matmul(x.astype(jnp.int32), x.T.astype(jnp.int32)), OperandError, "a and b are int32"),
    (lambda x: matmul([[1.0]], x), OperandError, "a is a list"),
    (lambda x: matmul(x, np.ones((3, 2))), OperandError, "b is float64, which JAX would round to float32"),
    (lambda x: matmul(x, np.full((3, 2), 1 << 40)), OperandError, "b has 1099511627776, which JAX would cut to int32"),
    (lambda x: matmul(x, x.T, transpose_a="no"), OperandError, r"transpose_a must be True or False, not 'no' \(str\)"),
    (
        lambda x: jax.jit(lambda t: matmul(x, x, transpose_b=t))(True), OperandError,
        "transpose_b is traced.*static_argnames",
    ),
    (lambda x: matmul(x, x.T, out_dtype="int32"), OperandError, "out_dtype int32: a product of bfloat16 is stored as"),
    (lambda x: matmul(x, x.T, out_dtype="fp99"), OperandError, "out_dtype is 'fp99'"),
    (lambda x: matmul(x, x.T, activation="swish"), OperandError, "activation 'swish': known are 'relu'"),
    (lambda x: matmul(x, x.T, activation="gelo"), OperandError, "activation 'gelo': do you mean 'gelu'"),
    (lambda x: matmul(x, x.T, bias=normal(3)), TensorError, r"bias has shape \(3,\).*b has 2"),
    (lambda x: matmul(x, x.T, bias=jnp.ones(2, jnp.int32)), OperandError, "bias is int32"),
    (lambda x: matmul(x, x[0], bias=normal(2)), TensorError, "b is a vector, and the result has no columns"),
    (
        lambda x: matmul(*(jnp.ones(s, jnp.int8) for s in ((1, 1 << 18), (1 << 18, 1)))),
        OperandError,
        r"262144 \* 16384 = 4294967296 leave int32",
    ),
    (
        lambda x: matmul(x.astype(jnp.int8), x.T.astype(jnp.int8), bias=normal(2)),
        OperandError,
        "a bias, and the product is stored as int32",
    ),
    (
        lambda x: jax.grad(lambda y: matmul(y, y.T).astype(jnp.float32).sum())(x.astype(jnp.float8_e4m3fn)),
        OperandError,
        "a is float8_e4m3fn.*no derivative",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "said"), REFUSED, ids=[said[:24] for *_, said in REFUSED])
def test_refusals_name_the_operand(call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call(normal(2, 3))


def test_symbolic_sizes_are_refused() -> None:
    export = needs.module("jax.export")
    (m,) = export.symbolic_shape("m")
    x = jax.ShapeDtypeStruct((m, 8), jnp.bfloat16)
    with pytest.raises(TensorError, match="compiled for known sizes, and m is a symbol"):
        jax.eval_shape(matmul, x, jax.ShapeDtypeStruct((8, 4), jnp.bfloat16))


def test_without_jit_a_product_is_computed() -> None:
    with jax.disable_jit():
        assert matmul(normal(2, 3), jnp.ones((3, 2), jnp.bfloat16)).shape == (2, 2)
        ends = np.array([0, 1, 2])  # int64, whose values int32 has
        assert grouped_matmul(normal(2, 3), normal(2, 3, 4), ends).shape == (2, 4)


def test_platforms_without_kernels_are_refused() -> None:
    x = jax.ShapeDtypeStruct((8, 8), jnp.bfloat16)
    with pytest.raises(OperandError, match="this is for tpu"):
        jax.jit(matmul).trace(x, x).lower(lowering_platforms=("tpu",))


def test_a_product_is_a_value() -> None:
    product = Product((7, 1, 2, 3), (5, 4, 3), ("bfloat16",) * 3, (False, True))
    assert product.sizes == (2, 4, 3) and product.result == (7, 5, 2, 4)
    assert hash(product) == hash(Product((7, 1, 2, 3), (5, 4, 3), ("bfloat16",) * 3, (False, True)))
