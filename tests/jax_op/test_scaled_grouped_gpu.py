"""Calls of the kernels with scales and of groups: lowered without a GPU, emulated, and on a GPU beside float64."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests import needs

jax = needs.module("jax")
jnp = jax.numpy
from layoutgemm.jax import grouped_matmul, scaled_matmul
from layoutgemm.jax_op import gpu as plain_gpu
from layoutgemm.jax_op.scaled_grouped import gpu, reference
from layoutgemm.jax_op.scaled_grouped.product import ScaledProduct
from layoutgemm.torch_op.scaled_grouped.recipes import Recipes
from tests.jax_op.emulated import emulate_calls

E4M3, BF16, F32 = "float8_e4m3fn", "bfloat16", "float32"
ROW, BLOCK, SQUARE = "RowWise", "BlockWise1x128", "BlockWise128x128"
OFFSETS = np.array([0, 20, 20, 50], np.int32)
BLOCK_ENDS = np.array([0, 128, 128, 300], np.int32)


def lowered(f: Any, *shapes: tuple[tuple[int, ...], str]) -> str:
    given = [jax.ShapeDtypeStruct(shape, jnp.dtype(kind)) for shape, kind in shapes]
    text: str = jax.jit(f).trace(*given).lower(lowering_platforms=("cuda",)).as_text()
    return text


@pytest.mark.dsl
def test_each_product_lowers_to_one_call_of_a_kernel() -> None:
    scaled = lowered(
        functools.partial(scaled_matmul, transpose_b=True),
        ((256, 256), E4M3), ((256, 2), F32), ((128, 256), E4M3), ((1, 2), F32),
    )  # fmt: skip
    grouped = lowered(grouped_matmul, ((256, 128), BF16), ((4, 128, 64), BF16), ((5,), "int32"))
    for text in (scaled, grouped):
        assert text.count("stablehlo.custom_call") == 1 and "CuteDSLRT" in text
        assert not any(f"stablehlo.{op}" in text for op in ("transpose", "pad", "slice", "dot_general"))


@pytest.mark.dsl
def test_gradients_of_groups_copy_no_operand() -> None:
    text = lowered(
        jax.grad(lambda a, b, offsets: grouped_matmul(a, b, offsets).astype(F32).sum(), (0, 1)),
        ((256, 128), BF16), ((4, 128, 64), BF16), ((5,), "int32"),
    )  # fmt: skip
    assert text.count("stablehlo.custom_call") >= 2
    assert "stablehlo.transpose" not in text and "stablehlo.pad" not in text


@pytest.mark.dsl
def test_a_bias_of_each_group_is_another_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step is a constant of the host function, compiled once for each key."""
    keys = []
    monkeypatch.setattr(plain_gpu, "called", lambda *x: keys.append(x[3]) or (lambda *arrays: arrays[:1]))
    monkeypatch.setattr(gpu, "target", lambda: plain_gpu.Target())
    for shape in ((40,), (3, 40)):
        product = ScaledProduct("rows", (50, 72), (3, 72, 40), (BF16,) * 3, False, "int32", 3, bias=(F32, shape))
        gpu.multiply(product, small(50, 72, kind=BF16), small(3, 72, 40, kind=BF16), OFFSETS, small(*shape, kind=F32))
    assert keys[0] != keys[1]


def small(*shape: int, kind: str, seed: int = 0) -> Any:
    """Small integers, so that sums are exact."""
    return jnp.asarray(np.random.default_rng((seed, *shape)).integers(-3, 4, shape), jnp.dtype(kind))


def powers(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(2.0 ** np.random.default_rng((seed, *shape)).integers(-1, 2, shape), jnp.float32)


CASES = {
    "rows of groups, a pitch of its own": (
        ScaledProduct("rows", (50, 72), (3, 72, 41), (BF16, BF16, F32), False, "int32", 3, bias=(F32, (3, 41))),
        [small(50, 72, kind=BF16), small(3, 72, 41, kind=BF16), OFFSETS, small(3, 41, kind=F32)],
    ),
    "rows of groups with scales": (
        ScaledProduct("rows", (50, 144), (3, 48, 144), (E4M3, E4M3, F32), True, "int32", 3, Recipes(BLOCK, SQUARE),
                  ((50, 2), (3, 1, 2))),
        [small(50, 144, kind=E4M3), small(3, 48, 144, kind=E4M3), OFFSETS, powers(50, 2), powers(3, 1, 2)],
    ),
    "gated rows of groups": (
        ScaledProduct("rows", (50, 72), (3, 80, 72), (BF16, BF16, F32), True, "int32", 3, bias=(F32, (3, 80)),
                  activation="swiglu"),
        [small(50, 72, kind=BF16), small(3, 80, 72, kind=BF16), OFFSETS, small(3, 80, kind=F32)],
    ),
    "a gated batch with scales of blocks": (
        ScaledProduct("plain", (2, 40, 144), (2, 96, 144), (E4M3, E4M3, F32), True, recipes=Recipes(BLOCK, SQUARE),
                  scales=((2, 40, 2), (2, 1, 2)), activation="geglu"),
        [small(2, 40, 144, kind=E4M3), small(2, 96, 144, kind=E4M3), powers(2, 40, 2), powers(2, 1, 2)],
    ),
    "gated rows and columns": (
        ScaledProduct("plain", (2, 40, 144), (2, 96, 144), (E4M3, E4M3, F32), True, recipes=Recipes(ROW, ROW),
                  scales=((2, 40, 1), (2, 1, 96)), bias=(F32, (96,)), activation="swiglu"),
        [small(2, 40, 144, kind=E4M3), small(2, 96, 144, kind=E4M3), powers(2, 40, 1), powers(2, 1, 96),
         small(96, kind=F32)],
    ),
    "groups of K": (
        ScaledProduct("K", (50, 72), (50, 40), (BF16, BF16, BF16), False, "int32", 3),
        [small(50, 72, kind=BF16), small(50, 40, kind=BF16), OFFSETS],
    ),
    "groups of K with scales of blocks": (
        ScaledProduct("K", (72, 300), (40, 300), (E4M3, E4M3, F32), True, "int32", 3, Recipes(BLOCK, BLOCK),
                  ((72, 3), (40, 3))),
        [small(72, 300, kind=E4M3), small(40, 300, kind=E4M3), BLOCK_ENDS, powers(72, 3), powers(40, 3)],
    ),
    "groups of K with scales of rows": (
        ScaledProduct("K", (72, 300), (40, 300), (E4M3, E4M3, BF16), True, "int32", 3, Recipes(ROW, ROW),
                  ((3, 72, 1), (3, 1, 40))),
        [small(72, 300, kind=E4M3), small(40, 300, kind=E4M3), BLOCK_ENDS, powers(3, 72, 1), powers(3, 1, 40)],
    ),
    "a batch with scales of blocks": (
        ScaledProduct("plain", (2, 40, 144), (2, 48, 144), (E4M3, E4M3, BF16), True, recipes=Recipes(BLOCK, BLOCK),
                  scales=((2, 40, 2), (2, 48, 2))),
        [small(2, 40, 144, kind=E4M3), small(2, 48, 144, kind=E4M3), powers(2, 40, 2), powers(2, 48, 2)],
    ),
    "rows and columns, by matmul's kernel": (
        ScaledProduct("plain", (2, 40, 144), (2, 48, 144), (E4M3, E4M3, BF16), True, recipes=Recipes(ROW, ROW),
                  scales=((2, 40, 1), (2, 1, 48)), bias=(F32, (48,)), activation="relu"),
        [small(2, 40, 144, kind=E4M3), small(2, 48, 144, kind=E4M3), powers(2, 40, 1), powers(2, 1, 48),
         small(48, kind=F32)],
    ),
}  # fmt: skip


@pytest.mark.dsl
@pytest.mark.parametrize("name", CASES)
def test_the_arguments_of_a_call_compute_the_product(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel, in the emulator, with the arguments that the traced host function passes."""
    product, operands = CASES[name]
    emulate_calls(monkeypatch, gpu)
    value = gpu.multiply(product, *[jnp.asarray(x) for x in operands])
    want = reference.multiply(product, *[jnp.asarray(x) for x in operands])
    assert value.shape == want.shape and value.dtype == want.dtype
    if product.gate is None:
        np.testing.assert_array_equal(np.asarray(value, np.float64), np.asarray(want, np.float64))
    else:  # the kernel's exponential is the hardware's
        np.testing.assert_allclose(np.asarray(value, np.float64), np.asarray(want, np.float64), rtol=2**-10, atol=1e-4)


# ----------------------------------------------------------------------------------------------------------- on a GPU


def normal(*shape: int, kind: str = BF16, seed: int = 0) -> Any:
    x = np.random.default_rng((seed, *shape)).standard_normal(shape, np.float32) * 0.1
    return jnp.asarray(x, jnp.dtype(kind))


def exact(x: Any) -> np.ndarray:
    return np.asarray(x, np.float64)


def near(value: Any, want: np.ndarray, bound: float) -> None:
    assert np.linalg.norm(exact(value) - want) <= bound * np.linalg.norm(want)


@pytest.mark.gpu
@pytest.mark.dsl
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(64, 64, 64), (64, 64, 256), *[(n, n, n) for n in (128, 256, 512, 1024, 2048, 4096)], (300, 77, 272)],
)
def test_scaled_products_match_float64_on_a_gpu(m: int, n: int, k: int) -> None:
    a, b = normal(m, k, kind=E4M3), normal(n, k, kind=E4M3, seed=1)
    sa, sb = powers(m, -(-k // 128)), powers(-(-n // 128), -(-k // 128), seed=1)
    wide = exact(a) * np.repeat(exact(sa), 128, 1)[:, :k]
    other = exact(b) * np.repeat(np.repeat(exact(sb), 128, 0)[:n], 128, 1)[:, :k]
    near(
        jax.jit(functools.partial(scaled_matmul, transpose_b=True, out_dtype=F32))(a, sa, b, sb), wide @ other.T, 2**-10
    )
    rows, columns = powers(m, 1), powers(1, n, seed=2)
    got = jax.jit(functools.partial(scaled_matmul, transpose_b=True))(a, rows, b, columns)
    near(got, exact(rows) * (exact(a) @ exact(b).T) * exact(columns), 2**-8)


@pytest.mark.gpu
@pytest.mark.dsl
@pytest.mark.parametrize(("rows", "n", "k"), [(128, 128, 128), (1024, 512, 256), (4096, 2048, 1024), (300, 77, 130)])
def test_groups_and_their_gradients_match_float64_on_a_gpu(rows: int, n: int, k: int) -> None:
    cuts = np.sort(np.random.default_rng(rows).integers(0, rows, 7))
    offsets = np.array([0, *cuts, rows], np.int32)
    a, b, g = normal(rows, k), normal(8, k, n, seed=1), normal(rows, n, seed=2)
    value, pull = jax.vjp(lambda a, b: grouped_matmul(a, b, offsets), a, b)
    of_a, of_b = pull(g)
    for e, (x, y) in enumerate(pairwise(offsets)):
        if x == y:
            assert not exact(of_b)[e].any()
            continue
        near(value[x:y], exact(a)[x:y] @ exact(b)[e], 2**-8)
        near(of_a[x:y], exact(g)[x:y] @ exact(b)[e].T, 2**-8)
        near(of_b[e], exact(a)[x:y].T @ exact(g)[x:y], 2**-8)
