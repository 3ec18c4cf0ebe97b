"""The call of a kernel: lowered for CUDA without a GPU, its copies and arguments, and on a GPU beside float64."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest

from tests import needs

jax = needs.module("jax")
jnp = jax.numpy
from layoutgemm.jax import dot_general, matmul
from layoutgemm.jax_op import gpu
from layoutgemm.jax_op.product import Product
from layoutgemm.torch_op.problem import arguments, workers

BF16 = ("bfloat16",) * 3
TARGET = gpu.Target()


def lowered(f: Any, *shapes: tuple[tuple[int, ...], str]) -> str:
    given = [jax.ShapeDtypeStruct(shape, jnp.dtype(kind)) for shape, kind in shapes]
    text: str = jax.jit(f).trace(*given).lower(lowering_platforms=("cuda",)).as_text()
    return text


# ------------------------------------------------------------------------------------------------------ without a GPU


@pytest.mark.dsl
def test_lowering_compiles_one_call_of_a_kernel() -> None:
    text = lowered(
        lambda a, b, c: matmul(a, b, bias=c, activation="relu", transpose_b=True),
        ((256, 128), "bfloat16"), ((512, 128), "bfloat16"), ((512,), "float32"),
    )  # fmt: skip
    assert text.count("stablehlo.custom_call") == 1 and "CuteDSLRT" in text
    assert not any(f"stablehlo.{op}" in text for op in ("transpose", "pad", "add", "maximum", "dot_general"))


@pytest.mark.dsl
def test_gradients_copy_no_operand() -> None:
    text = lowered(
        jax.grad(lambda a, b: matmul(a, b).astype(jnp.float32).sum(), (0, 1)),
        ((128, 64), "bfloat16"), ((64, 256), "bfloat16"),
    )  # fmt: skip
    assert text.count("stablehlo.custom_call") >= 2
    assert "stablehlo.transpose" not in text


@pytest.mark.dsl
def test_empty_sizes_launch_nothing() -> None:
    text = lowered(matmul, ((16, 0), "bfloat16"), ((0, 8), "bfloat16"))
    assert "custom_call" not in text


COPIED = [
    Product((2048, 4098), (4098, 2048), BF16),
    Product((2048, 4096), (4096, 2048), ("float8_e4m3fn", "float8_e4m3fn", "bfloat16")),
    Product((4098, 2048), (2048, 4098), BF16, (True, True)),
]


@pytest.mark.parametrize("product", COPIED, ids=str)
def test_copies_lie_as_the_solution_says(product: Product) -> None:
    """A copy, read through the solution's strides, holds the operand's elements."""
    problem = gpu.problem_of(product, TARGET)
    copies = gpu.solution_of(product, TARGET).copies[:2]
    assert any(copies), "choose an example that is copied"
    for operand, copy, turned, shape in zip(
        (problem.a, problem.b), copies, product.turned, (product.a, product.b), strict=True
    ):
        if copy is None:
            continue
        x = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
        logical = x.T if turned else x
        flat = np.asarray(gpu.copied(jnp.asarray(logical), copy)).ravel()
        at = np.add.outer(*[np.arange(n) * step for n, step in zip(copy.shape, copy.strides, strict=True)])
        assert operand.shape == logical.shape
        np.testing.assert_array_equal(flat[at], logical)


@pytest.mark.dsl
@pytest.mark.parametrize(
    "product",
    [
        Product((300, 128), (128, 512), BF16),
        Product((16, 128), (4096, 128), BF16, (False, True), "float32", "relu"),
        Product((3, 64, 128), (128, 64), BF16),
        Product((64, 77), (77, 33), BF16),
    ],
    ids=str,
)
@pytest.mark.parametrize("on", [TARGET, gpu.Target("sm_80", 99 << 10)], ids=lambda on: on.code)
def test_the_call_passes_the_solutions_arguments(product: Product, on: gpu.Target) -> None:
    found = gpu.solution_of(product, on)
    assert (found.kernel.epilogue is None) == (product.bias is None and product.activation is None)
    plan = found.kernel.plan(*found.sizes)
    seen: list[list[int]] = []

    def kernel(*values: Any) -> None:
        seen.append([int(getattr(x, "value", x)) for x in values])

    names = ("a", "b", *(() if product.bias is None else ("bias",)), "c")
    pointers = {name: 0x1000 * (i + 1) for i, name in enumerate(names)}
    clusters = workers(found, on.places)
    gpu._start(plan.parameters, found, [2, 2, 2], gpu._bias_words, clusters, kernel, 99, pointers)
    words = () if product.bias is None else (0x3000, 0)
    wanted = [
        [
            *arguments(
                found,
                [pointers[name] + 2 * o for name, o in zip("abc", at, strict=True)],
                clusters,
                words,
            ),
            99,
        ]
        for at in found.launches
    ]
    assert seen == wanted and len(seen[0]) == len(plan.parameters) + 1


# ----------------------------------------------------------------------------------------------------------- on a GPU


def normal(*shape: int, kind: str = "bfloat16", seed: int = 0) -> Any:
    x = np.random.default_rng((seed, *shape)).standard_normal(shape, np.float32) * 0.1
    return jnp.asarray(x, jnp.dtype(kind))


def beside_float64(value: Any, a: Any, b: Any, bias: Any = None) -> None:
    wanted = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    wanted = wanted if bias is None else np.maximum(wanted + np.asarray(bias, np.float64), 0)
    scale = np.abs(np.asarray(a, np.float64)) @ np.abs(np.asarray(b, np.float64))
    # one rounding to bfloat16, and float32 sums
    assert (np.abs(np.asarray(value, np.float64) - wanted) <= 2**-8 * np.abs(wanted) + 2**-20 * scale + 1e-6).all()


@pytest.mark.gpu
@pytest.mark.dsl
@pytest.mark.parametrize(
    ("m", "n", "k"), [(64, 64, 64), (64, 64, 256), *[(n, n, n) for n in (128, 256, 512, 1024, 2048, 4096)]]
)
def test_products_match_float64_on_a_gpu(m: int, n: int, k: int) -> None:
    a, b = normal(m, k), normal(n, k, seed=1)
    value = jax.jit(functools.partial(matmul, transpose_b=True, out_dtype=jnp.float32))(a, b)
    beside_float64(value, a, np.asarray(b, np.float64).T)
    beside_float64(jax.jit(matmul)(a, b.T), a, np.asarray(b, np.float64).T)


@pytest.mark.gpu
@pytest.mark.dsl
@pytest.mark.parametrize(("m", "n", "k"), [(1, 4096, 4096), (300, 77, 129), (4096, 1024, 4098), (16, 14336, 4096)])
def test_bias_and_activation_match_float64_on_a_gpu(m: int, n: int, k: int) -> None:
    a, b, bias = normal(m, k), normal(k, n, seed=1), normal(n, kind="float32")
    beside_float64(jax.jit(functools.partial(matmul, activation="relu"))(a, b, bias=bias), a, b, bias)


@pytest.mark.gpu
@pytest.mark.dsl
def test_gradients_and_vmap_match_float64_on_a_gpu() -> None:
    a, b, g = normal(4, 256, 512), normal(512, 384, seed=1), normal(4, 256, 384, seed=2)
    value, pull = jax.vjp(jax.vmap(matmul, (0, None)), a, b)
    beside_float64(value, a, b)
    of_a, of_b = pull(g)
    beside_float64(of_a, g, np.asarray(b, np.float64).T)
    rows = np.asarray(a, np.float64).reshape(-1, 512)
    wanted = rows.T @ np.asarray(g, np.float64).reshape(-1, 384)
    np.testing.assert_allclose(np.asarray(of_b, np.float64), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.dsl
def test_float8_matches_float64_on_a_gpu() -> None:
    a, b = normal(256, 512, kind="float8_e4m3fn"), normal(384, 512, kind="float8_e4m3fn", seed=1)
    value = jax.jit(functools.partial(matmul, transpose_b=True))(a, b)
    wanted = np.asarray(a, np.float64) @ np.asarray(b, np.float64).T
    np.testing.assert_allclose(np.asarray(value, np.float64), wanted, rtol=2**-7, atol=1e-3)


# Letters of the operands and the result, their sizes, and the numbers of dimensions that `dot_general` takes.
CONTRACTIONS = {
    "xyk,kn->xyn": ((3, 77, 520), (520, 264), (((2,), (0,)), ((), ()))),
    "xyk,nk->xyn": ((2, 33, 77), (51, 77), (((2,), (1,)), ((), ()))),
    "xyhd,hdn->xyn": ((3, 77, 8, 64), (8, 64, 264), (((2, 3), (0, 1)), ((), ()))),
    "byk,bkn->byn": ((3, 77, 520), (3, 520, 264), (((2,), (1,)), ((0,), (0,)))),
    "bqhd,bkhd->bhqk": ((2, 45, 3, 24), (2, 77, 3, 24), (((3,), (3,)), ((0, 2), (0, 2)))),
}


@pytest.mark.gpu
@pytest.mark.dsl
@pytest.mark.parametrize("letters", CONTRACTIONS)
def test_dot_general_matches_float64_on_a_gpu(letters: str) -> None:
    of_a, of_b, dimensions = CONTRACTIONS[letters]
    a, b = normal(*of_a), normal(*of_b, seed=1)
    value = jax.jit(functools.partial(dot_general, dimension_numbers=dimensions))(a, b)
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    wanted, scale = np.einsum(letters, x, y), np.einsum(letters, np.abs(x), np.abs(y))
    assert value.shape == wanted.shape
    assert (np.abs(np.asarray(value, np.float64) - wanted) <= 2**-8 * np.abs(wanted) + 2**-20 * scale + 1e-6).all()
