"""Gated products of layoutgemm.jax: values, derivatives, vmap and meshes on the CPU, and the call of the kernel."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests import needs

jax = needs.module("jax")
jnp = jax.numpy
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from layoutgemm.errors import OperandError, TensorError
from layoutgemm.jax import grouped_matmul, matmul, scaled_matmul
from layoutgemm.jax_op import gpu
from layoutgemm.jax_op.product import Product
from tests.jax_op.test_scaled_grouped import OFFSETS, exact, normal, scaled_want, scales

E4M3 = "float8_e4m3fn"
M, H, K = 130, 24, 144
ACTS = {"swiglu": jax.nn.silu, "geglu": functools.partial(jax.nn.gelu, approximate=False)}
GROUP = np.repeat(np.arange(4), np.diff(OFFSETS))


@functools.partial(jax.jit, static_argnames="activation")  # one program, not one for each operation
def gated(sums: Any, activation: str = "swiglu") -> Any:
    """From the definition: gate columns first."""
    gate, up = jnp.asarray(sums)[..., : sums.shape[-1] // 2], jnp.asarray(sums)[..., sums.shape[-1] // 2 :]
    return ACTS[activation](gate) * up


def near(value: Any, want: Any, bound: float = 2**-8) -> None:
    assert value.shape == want.shape
    np.testing.assert_allclose(exact(value), exact(want), rtol=bound, atol=5e-4)


@pytest.mark.parametrize("activation", ACTS)
@pytest.mark.parametrize("shapes", [((5,), (5, 6)), ((4, 5), (5, 6)), ((2, 4, 5), (3, 1, 5, 6)), ((4, 0), (0, 6))])
def test_the_definition_on_the_cpu(shapes: Any, activation: str) -> None:
    a, b, bias = normal(*shapes[0]), normal(*shapes[1], seed=1), normal(6, kind="float32")
    sums = jnp.asarray(exact(a) @ exact(b), jnp.float32)
    near(matmul(a, b, activation=activation), gated(sums, activation))
    near(matmul(a, b, activation=activation, bias=bias), gated(sums + bias, activation))
    turned = matmul(a, jnp.swapaxes(b, -1, -2), activation=activation, transpose_b=True, out_dtype="float32")
    near(turned, gated(sums, activation), 1e-5)


def test_groups_and_scales_on_the_cpu() -> None:
    a, b = normal(M, K), normal(4, K, 2 * H, seed=1)
    sums = np.einsum("mk,mkn->mn", exact(a), exact(b)[GROUP])
    near(grouped_matmul(a, b, OFFSETS, activation="geglu"), gated(sums, "geglu"))
    bias = normal(4, 2 * H, kind="float32", seed=2)
    got = grouped_matmul(a, jnp.swapaxes(b, 1, 2), OFFSETS, bias=bias, activation="swiglu", transpose_b=True)
    near(got, gated(sums + exact(bias)[GROUP]))
    x, y = normal(M, K, kind=E4M3), normal(2 * H, K, kind=E4M3, seed=1)
    for of_a, of_b in (((M, 2), (1, 2)), ((M, 1), (1, 2 * H)), ((1,), (1,))):
        sa, sb = scales(*of_a), scales(*of_b)
        if of_a == (M, 2):
            want = (exact(x) * np.repeat(exact(sa), 128, 1)[:, :K]) @ (exact(y) * np.repeat(exact(sb), 128, 1)[:, :K]).T
        else:
            want = scaled_want(x, y, sa, sb)
        near(scaled_matmul(x, sa, y, sb, activation="swiglu", transpose_b=True), gated(want))


def test_gradients_once_and_twice_are_those_of_jax() -> None:
    a, b, bias = normal(3, 4, 6, kind="float32"), normal(6, 10, kind="float32"), normal(10, kind="float32")
    x, w = normal(M, 16, kind="float16"), normal(4, 16, 8, kind="float16", seed=1)
    of_groups = normal(4, 8, kind="float32", seed=2)
    pairs = [
        (
            (a, b, bias),
            lambda a, b, c: matmul(a, b, bias=c, activation="swiglu", allow_tf32=True),
            lambda a, b, c: gated(jnp.matmul(a, b, precision="highest") + c),
        ),
        (
            (x, w, of_groups),
            lambda a, b, c: grouped_matmul(a, b, OFFSETS, bias=c, activation="geglu", out_dtype="float32"),
            lambda a, b, c: gated(
                jnp.einsum("mk,mkn->mn", a.astype("float32"), b.astype("float32")[GROUP], precision="highest")
                + c[GROUP],
                "geglu",
            ),
        ),
    ]
    for given, ours, theirs in pairs:
        found = []
        for f in (ours, theirs):
            first = jax.grad(lambda *x, f=f: (f(*x) ** 2).sum(), (0, 1, 2))
            found.append(list(jax.jit(first)(*given)))
            if given[0] is a:
                second = jax.grad(lambda b, first=first: (first(a, b, bias)[0] ** 2).sum() * 1e-3)
                found[-1].append(jax.jit(second)(b))
        for mine, want in zip(*found, strict=True):
            assert (mine.shape, mine.dtype) == (want.shape, want.dtype)
            assert np.linalg.norm(exact(mine) - exact(want)) <= 4e-3 * np.linalg.norm(exact(want)) > 0


def test_vmap_is_a_batch_or_one_product_after_another() -> None:
    a, b = normal(3, 4, 6), normal(6, 10, seed=1)
    call = functools.partial(matmul, activation="swiglu")
    np.testing.assert_array_equal(exact(jax.vmap(call, (0, None))(a, b)), exact(call(a, b)))
    assert "while" not in str(jax.make_jaxpr(jax.vmap(call, (0, None)))(a, b))
    biases = normal(3, 10, kind="float32", seed=2)
    found = jax.vmap(lambda x, c: call(x, b, bias=c))(a, biases)
    near(found[1], call(a[1], b, bias=biases[1]))
    x, w = normal(2, M, 16), normal(4, 16, 8, seed=1)
    groups = functools.partial(grouped_matmul, activation="swiglu")
    got = jax.vmap(groups, (0, None, None))(x, w, OFFSETS)
    np.testing.assert_array_equal(exact(got[1]), exact(groups(x[1], w, OFFSETS)))
    e, y, s = normal(3, 40, K, kind=E4M3), normal(2 * H, K, kind=E4M3), scales(3, 40, 1)
    scaled = functools.partial(scaled_matmul, activation="swiglu", transpose_b=True)
    got = jax.vmap(scaled, (0, 0, None))(e, s, y)
    near(got[2], scaled(e[2], s[2], y))


@pytest.mark.parametrize("spec", [("x", None, None), (None, "x", None), ("y", None, "x"), (None, None, ("x", "y"))])
def test_any_sharding_gives_the_same_product(spec: Any, mesh: Mesh) -> None:
    """Rows and K stay sharded; columns of [gate | up] are gathered."""
    m, k, n = spec

    def placed(x: Any, *names: Any) -> Any:
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*names)))

    a, b, bias = normal(8, 16), normal(16, 8, seed=1), normal(8, kind="float32")
    layer = jax.jit(lambda a, b, c: matmul(a, b, bias=c, activation="swiglu", out_dtype="float32"))
    compiled = layer.lower(placed(a, m, k), placed(b, k, n), placed(bias, n)).compile()
    near(compiled(placed(a, m, k), placed(b, k, n), placed(bias, n)), layer(a, b, bias), 1e-5)
    assert ("all-reduce" in compiled.as_text()) == (k is not None)
    w = normal(4, 16, 8, seed=2)
    groups = jax.jit(lambda a, b: grouped_matmul(a, b, np.array([0, 2, 2, 7, 8], np.int32), activation="geglu"))
    near(groups(placed(a, m, k), placed(w, None, k, n)), groups(a, w))


def test_refusals_name_the_operand() -> None:
    x, e = normal(2, 3), normal(M, 16, kind=E4M3)
    for call, error, text in (
        (lambda: matmul(x, normal(3, 5), activation="swiglu"), TensorError, "b has 5 columns: .* an even number"),
        (lambda: matmul(x, x[0], activation="swiglu"), TensorError, "b is a vector: a gated product"),
        (lambda: matmul(x, x.T, activation="reglu"), OperandError, "known are 'relu'.*'swiglu', 'geglu'"),
        (lambda: matmul(x, x.T, activation="swiglu", bias=normal(1)), TensorError, r"bias has shape \(1,\).*b has 2"),
        (lambda: scaled_matmul(e, scales(M, 1), e.T[:, :5], activation="swiglu"), TensorError, "b has 5 columns"),
        (lambda: grouped_matmul(x, x, np.array([0, 2], np.int32), transpose_a=True, activation="swiglu"), OperandError,
         "activation: groups of K take none, groups of rows do; the product of each is the gradient of a weight"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            call()


# ---------------------------------------------------------------------------------------------- the kernel, without one


def lowered(f: Any, *shapes: tuple[tuple[int, ...], str]) -> str:
    given = [jax.ShapeDtypeStruct(shape, jnp.dtype(kind)) for shape, kind in shapes]
    text: str = jax.jit(f).trace(*given).lower(lowering_platforms=("cuda",)).as_text()
    return text


@pytest.mark.dsl
def test_the_kernel_gates_a_k_major_b_and_xla_others() -> None:
    call = functools.partial(matmul, activation="swiglu")
    fused = lowered(functools.partial(call, transpose_b=True), ((256, 128), "bfloat16"), ((512, 128), "bfloat16"))
    others = lowered(call, ((256, 128), "bfloat16"), ((128, 512), "bfloat16"))
    for text, gates in ((fused, False), (others, True)):
        assert text.count("stablehlo.custom_call") == 1 and "CuteDSLRT" in text
        assert ("stablehlo.exponential" in text) == gates and ("stablehlo.slice" in text) == gates
    assert "256x256xbf16" in fused and "256x512xf32" in others


def test_the_solution_is_the_gated_kernels() -> None:
    bf16, on = ("bfloat16",) * 3, gpu.Target()
    product = Product((256, 128), (512, 128), bf16, (False, True), activation="swiglu")
    found = gpu.solution_of(product, on)
    assert gpu.fuses(product, on) and found.kernel.gated == "silu" and found.sizes == (256, 256, 128, 1)
    for other in (
        Product((256, 128), (128, 512), bf16, activation="swiglu"),
        Product((256, 128), (512, 128), bf16, (False, True), "float32", "swiglu"),
    ):
        assert not gpu.fuses(other, on)
        assert gpu.solution_of(other, on).sizes == (256, 512, 128, 1) and gpu.problem_of(other, on).c.dtype == "f32"


# ----------------------------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.dsl
@pytest.mark.parametrize("turned", [False, True])
def test_gated_products_match_float64_on_a_gpu(turned: bool) -> None:
    for m, h, k in ((64, 64, 64), (300, 88, 136), (4096, 1024, 512)):
        a, b = normal(m, k), normal(k, 2 * h, seed=1) * jnp.bfloat16(0.1)
        given = b.T if turned else b
        value = jax.jit(functools.partial(matmul, activation="swiglu", transpose_b=turned))(a, given)
        want = exact(a) @ exact(b)
        near(value, want[:, :h] / (1 + np.exp(-want[:, :h])) * want[:, h:], 2**-7)
    a, b = normal(M, K), normal(4, K, 2 * H, seed=1)
    given = jnp.swapaxes(b, 1, 2) if turned else b
    got = jax.jit(functools.partial(grouped_matmul, activation="geglu", transpose_b=turned))(a, given, OFFSETS)
    sums = np.concatenate([exact(a)[x:y] @ exact(b)[e] for e, (x, y) in enumerate(pairwise(OFFSETS))])
    near(got, gated(sums, "geglu"), 2**-7)
