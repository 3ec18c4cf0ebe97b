"""layoutgemm.jax.scaled_matmul and grouped_matmul on the CPU: values, derivatives, vmap, meshes, refusals."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import needs

jax = needs.module("jax")
jnp = jax.numpy
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from layoutgemm.errors import OperandError, TensorError
from layoutgemm.jax import fp8_grouped_matmul, grouped_matmul, scaled_matmul
from layoutgemm.jax_op.scaled_grouped.product import ScaledProduct
from layoutgemm.jax_op.scaled_grouped.sharded import cut, labels_of
from layoutgemm.jax_op.scaled_grouped.training import quantized

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
M, N, K = 130, 140, 272
OFFSETS = np.array([0, 30, 30, 100, 130], np.int32)


def normal(*shape: int, kind: str = "bfloat16", seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng((seed, *shape)).standard_normal(shape) * 0.5, jnp.dtype(kind))


def scales(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng((seed, *shape)).uniform(0.5, 2, shape), jnp.float32)


def exact(x: Any) -> np.ndarray:
    return np.asarray(x, np.float64)


def spread(scale: Any, shape: tuple[int, ...], rows: int) -> np.ndarray:
    """Scales of blocks, one for each element of lines along K."""
    wide = np.repeat(np.repeat(exact(scale), rows, -2)[..., : shape[-2], :], 128, -1)
    return wide[..., : shape[-1]]


def near(value: Any, wanted: np.ndarray, bound: float = 2**-8) -> None:
    np.testing.assert_allclose(exact(value), wanted, rtol=bound, atol=2e-4)


BLOCKS = -(-K // 128)
SCALED = {
    "1x128, 128x128": ((M, BLOCKS), (2, BLOCKS)),
    "1x128, 1x128": ((M, BLOCKS), (N, BLOCKS)),
    "128x128": ((2, BLOCKS), (2, BLOCKS)),
    "rows": ((M, 1), (1, N)),
    "vectors": ((M,), (N,)),
    "tensors": ((1,), (1, 1)),
    "one": ((M, BLOCKS), None),
}


def scaled_want(a: Any, b: Any, sa: Any, sb: Any) -> np.ndarray:
    """In float64, by the definition; b is (N, K)."""

    def wide(x: Any, scale: Any) -> np.ndarray:
        if scale is None:
            return exact(x)
        if scale.size == 1 or scale.shape[-1] != BLOCKS or scale.ndim < 2:
            return exact(x) * (exact(scale).reshape(-1, 1) if scale.size > 1 else float(scale.reshape(())))
        return exact(x) * spread(scale, x.shape, 1 if scale.shape[-2] == x.shape[-2] else 128)

    return wide(a, sa) @ wide(b, sb).T


@pytest.mark.parametrize("name", SCALED)
def test_scales_of_each_recipe(name: str) -> None:
    a, b = normal(M, K, kind=E4M3), normal(N, K, kind=E5M2, seed=1)
    sa, sb = [None if shape is None else scales(*shape) for shape in SCALED[name]]
    want = scaled_want(a, b, sa, sb)
    near(scaled_matmul(a, sa, b, sb, transpose_b=True), want)
    bias = normal(N, kind="float32")
    got = jax.jit(lambda a, sa, b: scaled_matmul(a, sa, b, sb, bias=bias, activation="relu", out_dtype="float32"))(
        a, sa, b.T
    )
    near(got, np.maximum(want + exact(bias), 0), 1e-4)


def test_a_batch_and_vmap_are_the_same_products() -> None:
    a, b = normal(3, M, K, kind=E4M3), normal(3, N, K, kind=E4M3, seed=1)
    sa, sb = scales(3, M, BLOCKS), scales(3, 2, BLOCKS)
    batch = scaled_matmul(a, sa, b, sb, transpose_b=True, out_dtype="float32")

    def one(a: Any, sa: Any, b: Any, sb: Any) -> Any:
        return scaled_matmul(a, sa, b, sb, transpose_b=True, out_dtype="float32")

    mapped = jax.vmap(one)(a, sa, b, sb)
    for i in range(3):
        near(batch[i], scaled_want(a[i], b[i], sa[i], sb[i]), 1e-5)
    np.testing.assert_array_equal(batch, mapped)
    text = str(jax.make_jaxpr(jax.vmap(one, (0, 0, None, None)))(a, sa, b[0], sb[0]))
    assert "a=(3, 130, 272)" in text and "while" not in text and "scan" not in text  # a batch, not a loop
    np.testing.assert_allclose(jax.vmap(one, (0, 0, None, None))(a, sa, b[0], sb[0])[2], one(a[2], sa[2], b[0], sb[0]))
    one_scale = jax.vmap(lambda a, s: scaled_matmul(a, s, b[0].T, out_dtype="float32"))(a, scales(3, 1))
    assert one_scale.shape == (3, M, N)


def group_want(a: Any, b: Any) -> np.ndarray:
    return np.concatenate([exact(a)[x:y] @ exact(b)[e] for e, (x, y) in enumerate(pairwise(OFFSETS))])


@pytest.mark.parametrize("kind", ["bfloat16", "float16", E4M3])
@pytest.mark.parametrize("turned", [False, True])
def test_groups_of_rows(kind: str, turned: bool) -> None:
    a, b = normal(M, 40, kind=kind), normal(4, 40, 24, kind=kind, seed=1)
    given = jnp.swapaxes(b, 1, 2) if turned else b
    got = jax.jit(grouped_matmul, static_argnames="transpose_b")(a, given, OFFSETS, transpose_b=turned)
    assert got.dtype == ("bfloat16" if kind == E4M3 else kind) and got.shape == (M, 24)
    near(got, group_want(a, b))
    bias = normal(4, 24, seed=2)
    which = np.repeat(np.arange(4), np.diff(OFFSETS))
    got = grouped_matmul(a, b, OFFSETS, bias=bias, activation="relu", out_dtype="float32")
    near(got, np.maximum(group_want(a, b) + exact(bias)[which], 0), 1e-4)


def test_groups_with_scales() -> None:
    a, b = normal(M, K, kind=E4M3), normal(4, N, K, kind=E4M3, seed=1)
    which = np.repeat(np.arange(4), np.diff(OFFSETS))
    for shape_a, shape_b, rows in (((M, BLOCKS), (4, 2, BLOCKS), 128), ((M, BLOCKS), (4, N, BLOCKS), 1)):
        sa, sb = scales(*shape_a), scales(*shape_b)
        got = grouped_matmul(a, b, OFFSETS, scale_a=sa, scale_b=sb, transpose_b=True, out_dtype="float32")
        left, right = exact(a) * spread(sa, a.shape, 1), exact(b) * spread(sb, b.shape, rows)
        near(got, np.einsum("mk,mnk->mn", left, right[which]), 1e-5)
    sa, sb = scales(M, 1), scales(4, 1, N)
    got = grouped_matmul(a, b, OFFSETS, scale_a=sa, scale_b=sb, transpose_b=True, out_dtype="float32")
    near(got, exact(sa) * np.einsum("mk,mnk->mn", exact(a), exact(b)[which]) * exact(sb)[which, 0], 1e-5)


def test_groups_of_k() -> None:
    a, b = normal(M, 40), normal(M, 24, seed=1)
    want = np.stack([exact(a)[x:y].T @ exact(b)[x:y] for x, y in pairwise(OFFSETS)])
    near(grouped_matmul(a, b, OFFSETS, transpose_a=True), want)
    near(grouped_matmul(a.T, b.T, OFFSETS, transpose_b=True, out_dtype="float32"), want, 1e-5)
    assert (exact(grouped_matmul(a, b, OFFSETS, transpose_a=True))[1] == 0).all()  # an empty group


BLOCK_ENDS = np.array([0, 128, 128, 256, K], np.int32)
ALONG_K = {
    "1x128": ((40, BLOCKS), (24, BLOCKS)), "128x128": ((1, BLOCKS), (1, BLOCKS)), "one": ((40, BLOCKS), None),
    "rows": ((4, 40, 1), (4, 1, 24)), "tensors": ((1,), (1,)), "none": (None, None),
}  # fmt: skip


@pytest.mark.parametrize("name", ALONG_K)
def test_groups_of_k_with_scales(name: str) -> None:
    """Groups that begin or end inside of a block of 128 are NaN, and no others."""
    a, b = normal(40, K, kind=E4M3), normal(24, K, kind=E5M2, seed=1)
    sa, sb = [None if shape is None else scales(*shape, seed=i) for i, shape in enumerate(ALONG_K[name])]
    blocks = name in ("1x128", "128x128", "one")
    left, right = [
        exact(x) * spread(scale, x.shape, 128 if name == "128x128" else 1) if blocks and scale is not None else exact(x)
        for x, scale in ((a, sa), (b, sb))
    ]
    want = np.stack([left[:, x:y] @ right[:, x:y].T for x, y in pairwise(BLOCK_ENDS)])
    if name in ("rows", "tensors"):
        want = want * exact(sa) * exact(sb)

    def product(a: Any, b: Any, ends: Any, turned: bool) -> Any:
        return grouped_matmul(a, b, ends, scale_a=sa, scale_b=sb, out_dtype="float32", transpose_b=turned)

    near(jax.jit(product, static_argnums=3)(a, b, BLOCK_ENDS, True), want, 1e-4)
    near(product(a, b.T, BLOCK_ENDS, False), want, 1e-4)
    got = exact(product(a, b, np.array([0, 128, 200, 256, K]), True))
    assert [bool(np.isnan(x).all()) for x in got] == [False, True, True, False] and np.isfinite(got[[0, 3]]).all()


@pytest.mark.parametrize("multiple", [1, 128])
@pytest.mark.parametrize("turned", [False, True])
def test_gradients_in_fp8_are_products_of_what_is_quantised(multiple: int, turned: bool) -> None:
    """Each within float32's sums of the values that are multiplied, twice."""
    a, b, grad = normal(K, 40), normal(4, 40, 24, seed=1), normal(K, 24, seed=2)

    def ours(a: Any, b: Any) -> Any:
        b = jnp.swapaxes(b, 1, 2) if turned else b
        return fp8_grouped_matmul(a, b, BLOCK_ENDS, multiple=multiple, transpose_b=turned)

    def seen(x: Any, rows: int = 1) -> np.ndarray:
        values, of = quantized(x, "BlockWise1x128" if rows == 1 else "BlockWise128x128")
        return exact(values) * spread(of, x.shape, rows)

    value, pull = jax.vjp(jax.jit(ours), a, b)
    of_a, of_b = pull(grad)
    parts = [slice(x, y) for x, y in pairwise(BLOCK_ENDS)]
    right, turned_right = seen(jnp.swapaxes(b, 1, 2), 128), seen(b, 128)
    near(value, np.concatenate([seen(a)[part] @ right[e].T for e, part in enumerate(parts)]))
    near(of_a, np.concatenate([seen(grad)[part] @ turned_right[e].T for e, part in enumerate(parts)]))
    lines = (seen(a.T), seen(grad.T)) if multiple == 128 else (exact(a).T, exact(grad).T)
    near(of_b, np.stack([lines[0][:, part] @ lines[1][:, part].T for part in parts]))
    moved = normal(K, 40, seed=3), normal(4, 40, 24, seed=4)
    found, tangent = jax.jit(lambda a, b, *moved: jax.jvp(ours, (a, b), moved))(a, b, *moved)
    np.testing.assert_array_equal(exact(found), exact(value))
    of_moved = [(seen(moved[0]), right), (seen(a), seen(jnp.swapaxes(moved[1], 1, 2), 128))]
    near(tangent, np.concatenate([sum(x[part] @ y[e].T for x, y in of_moved) for e, part in enumerate(parts)]))
    alone = jax.jvp(lambda b: ours(a, b), (b,), (moved[1],))[1]
    near(alone, np.concatenate([of_moved[1][0][part] @ of_moved[1][1][e].T for e, part in enumerate(parts)]))
    first = jax.grad(lambda a, b: (ours(a, b).astype(jnp.float32) ** 2).sum(), (0, 1))
    second = jax.jit(jax.grad(lambda b: sum((g.astype(jnp.float32) ** 2).sum() for g in first(a, b))))(b)
    assert second.shape == b.shape and np.isfinite(exact(second)).all() and exact(second)[0].any()


@pytest.mark.parametrize("form", ["rows", pytest.param("rows, turned", marks=pytest.mark.slow), "K"])
def test_gradients_once_and_twice_are_those_of_jax(form: str) -> None:
    a = normal(M, 16, kind="float16")
    b = normal(M, 8, kind="float16", seed=1) if form == "K" else normal(4, 16, 8, kind="float16", seed=1)
    bias = normal(4, 8, kind="float32", seed=2)
    group = jnp.asarray(np.repeat(np.arange(4), np.diff(OFFSETS)))

    def ours(a: Any, b: Any, bias: Any) -> Any:
        if form == "K":
            return grouped_matmul(a, b, OFFSETS, transpose_a=True, out_dtype="float32")
        turned = form != "rows"
        b = jnp.swapaxes(b, 1, 2) if turned else b
        return grouped_matmul(a, b, OFFSETS, bias=bias, activation="silu", transpose_b=turned, out_dtype="float32")

    def theirs(a: Any, b: Any, bias: Any) -> Any:
        x, y = a.astype(jnp.float32), b.astype(jnp.float32)
        if form == "K":
            one_hot = jax.nn.one_hot(group, 4)
            return jnp.einsum("le,lm,ln->emn", one_hot, x, y, precision="highest")
        return jax.nn.silu(jnp.einsum("mk,mkn->mn", x, y[group], precision="highest") + bias[group])

    def both(f: Any) -> list[Any]:
        first = jax.grad(lambda *x: (f(*x) ** 2).sum(), (0, 1, 2))
        second = jax.grad(lambda *x: sum((g.astype(jnp.float32) ** 2).sum() for g in first(*x)[:2]) * 1e-3, (0, 1))
        return [*first(a, b, bias), *second(a, b, bias)]

    # As one program each: without jit, XLA compiles every operation by itself.
    for mine, want in zip(jax.jit(both, static_argnums=0)(ours), jax.jit(both, static_argnums=0)(theirs), strict=True):
        assert (mine.shape, mine.dtype) == (want.shape, want.dtype)
        assert np.linalg.norm(exact(mine) - exact(want)) <= 4e-3 * np.linalg.norm(exact(want))


def test_vmap_of_groups_is_one_product_after_another() -> None:
    a, b, offsets = normal(2, M, 16), normal(4, 16, 8, seed=1), jnp.stack([OFFSETS, OFFSETS[[0, 0, 2, 3, 4]]])
    got = jax.vmap(grouped_matmul, (0, None, 0))(a, b, offsets)
    for i in range(2):
        np.testing.assert_array_equal(exact(got[i]), exact(grouped_matmul(a[i], b, offsets[i])))
    found = jax.vmap(jax.grad(lambda a, b: grouped_matmul(a, b, OFFSETS).astype(jnp.float32).sum()), (0, None))(a, b)
    assert found.shape == a.shape


def test_empty_sizes() -> None:
    zeros = jnp.zeros(4, jnp.int32)
    assert grouped_matmul(normal(0, 8), normal(3, 8, 4), zeros).shape == (0, 4)
    assert (
        exact(grouped_matmul(normal(5, 0), normal(1, 0, 4), jnp.array([0, 5]), bias=normal(4, kind="float32"))) != 0
    ).any()
    assert grouped_matmul(normal(0, 8), normal(0, 4), zeros, transpose_a=True).shape == (3, 8, 4)


X, Y = normal(M, 16), normal(4, 16, 8)
EIGHT = normal(M, 16, kind=E4M3)
REFUSED = [
    (lambda: scaled_matmul(X, scales(M, 1), X.T), OperandError, "a is bfloat16: a product with scales is of float8"),
    (lambda: scaled_matmul(EIGHT, scales(M, 2), EIGHT.T), TensorError, r"scale_a has shape \[130, 2\]"),
    (lambda: scaled_matmul(EIGHT, scales(M, 1).astype(jnp.bfloat16), EIGHT.T), OperandError, "scale_a is bfloat16"),
    (lambda: scaled_matmul(EIGHT, scales(M, 1), EIGHT), TensorError, r"a and b have shapes \(130, 16\)"),
    (lambda: scaled_matmul(EIGHT, scales(M, 1), EIGHT.T, recipe_a="BlockWise1x32"), OperandError, "capability 10.0"),
    (lambda: scaled_matmul(EIGHT, scales(M, 1), EIGHT.T, bias=normal(M)[:5]), TensorError, r"bias has shape \(5,\)"),
    (lambda: scaled_matmul(EIGHT, scales(M, 1), EIGHT.T, activation="reglu"), OperandError, "activation 'reglu'"),
    (lambda: jax.grad(lambda s: scaled_matmul(EIGHT, s, EIGHT.T, out_dtype="float32").sum())(scales(M, 1)),
     OperandError, "no derivative"),
    (lambda: grouped_matmul(X, Y, OFFSETS[1:]), OperandError, r"offsets is int32 of shape \(4,\): .* \(5,\)"),
    (lambda: grouped_matmul(X, Y, OFFSETS.astype(np.float32)), OperandError, "offsets is float32"),
    (lambda: grouped_matmul(X, Y[..., :9, :], OFFSETS), TensorError, "K is 16 in a of shape"),
    (lambda: grouped_matmul(X.astype(jnp.float32), Y, OFFSETS), OperandError, "a is float32: a grouped product is of"),
    (lambda: grouped_matmul(X, X, OFFSETS, transpose_a=True, activation="relu"), OperandError, "activation: groups"),
    (lambda: grouped_matmul(EIGHT, EIGHT, OFFSETS, transpose_a=True, scale_a=scales(16, 1)), TensorError,
     r"scale_a has shape \[16, 1\]: \[16, 2\], or \[1, 2\] for a scale of 128; \[4, 16, 1\] for"),
    (lambda: fp8_grouped_matmul(EIGHT, Y, OFFSETS), OperandError, "a is float8_e4m3fn: fp8_grouped_matmul quantises"),
    (lambda: fp8_grouped_matmul(X, Y, OFFSETS, transpose_b=True), TensorError, r"\(4, 16, 8\): .*\(groups, N, K\)"),
    (lambda: fp8_grouped_matmul(X, Y, OFFSETS, multiple=64), OperandError, "multiple = 64: groups begin at any row"),
    (lambda: jax.grad(lambda b: fp8_grouped_matmul(X.astype(jnp.float32), b, OFFSETS).sum())(Y), OperandError,
     "a is float32, and b's gradient of groups that begin at any row"),
    (lambda: grouped_matmul(X, Y, OFFSETS, scale_b=scales(4, 1, 8)), OperandError, "scale_b without a scale_a"),
    (lambda: grouped_matmul(X[None], Y, OFFSETS), TensorError, r"a and b have shapes \(1, 130, 16\)"),
    (lambda: grouped_matmul(EIGHT, Y.astype(E4M3), OFFSETS, scale_a=scales(2, 1), scale_b=scales(4, 1, 1)),
     TensorError, r"scale_a has shape \[2, 1\]: \[130, 1\], as groups end at any row"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "said"), REFUSED, ids=[said[:24] for *_, said in REFUSED])
def test_refusals_name_the_operand(call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([0, 30, 20, 100, 130], r"offsets\[1\] = 30, offsets\[2\] = 20: they go from 0"),
        ([0, 30, 30, 100, 131], r"offsets\[4\] = 131: they go from 0"),
        ([0, 30, 30, 100, 120], r"offsets\[4\] = 120: "),
        ([5, 30, 30, 100, 130], r"offsets\[0\] = 5: "),
    ],
)
def test_offsets_that_are_no_groups_are_refused_where_the_host_has_them(ends: list[int], said: str) -> None:
    wrong = np.array(ends, np.int32)
    for offsets in (wrong, jnp.asarray(wrong)):
        with pytest.raises(OperandError, match=said + ".*rows"):
            grouped_matmul(X, Y, offsets)
    with pytest.raises(OperandError, match=said + ".*columns, K"):
        grouped_matmul(X, X, wrong, transpose_a=True)
    with pytest.raises(OperandError, match=said + ".*rows"):
        fp8_grouped_matmul(X, Y, wrong)
    assert jax.eval_shape(grouped_matmul, X, Y, wrong).shape == (M, 8)  # traced: the host has none


# -------------------------------------------------------------------------------------------------------------- meshes


def placed(mesh: Mesh, x: Any, *spec: Any) -> Any:
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))


def test_rows_and_columns_of_scaled_products_stay_where_they_are(mesh: Mesh) -> None:
    a, b = normal(M, K, kind=E4M3), normal(N, K, kind=E4M3, seed=1)
    sa, sb, bias = scales(M, BLOCKS), scales(N, BLOCKS), normal(N, kind="float32")

    def layer(a: Any, sa: Any, b: Any, sb: Any, bias: Any) -> Any:
        return scaled_matmul(a, sa, b, sb, bias=bias, transpose_b=True, out_dtype="float32")

    given = (
        placed(mesh, a, "x", None), placed(mesh, sa, "x", None), placed(mesh, b, "y", None),
        placed(mesh, sb, "y", None), placed(mesh, bias, "y"),
    )  # fmt: skip
    compiled = jax.jit(layer).lower(*given).compile()
    assert not any(word in compiled.as_text() for word in ("all-gather", "all-reduce", "collective-permute"))
    got = compiled(*given)
    assert got.sharding.spec == PartitionSpec("x", "y")
    near(got, scaled_want(a, b, sa, sb) + exact(bias), 1e-4)


@pytest.mark.parametrize("spec", [(("x", None), ("x", None)), ((None, "x"), (None, "x")), ((None, "y"), ("y", "x"))])
def test_any_sharding_gives_the_same_scaled_product(mesh: Mesh, spec: Any) -> None:
    """Blocks of 128 and K are gathered: a shard would end inside of a block."""
    a, b, sa, sb = normal(M, K, kind=E4M3), normal(N, K, kind=E4M3, seed=1), scales(M, BLOCKS), scales(2, BLOCKS)
    got = jax.jit(lambda a, b: scaled_matmul(a, sa, b, sb, transpose_b=True, out_dtype="float32"))(
        placed(mesh, a, *spec[0]), placed(mesh, b, *spec[1])
    )
    near(got, scaled_want(a, b, sa, sb), 1e-5)


def test_a_sharded_k_of_groups_is_reduced_before_bias_and_activation(mesh: Mesh) -> None:
    a, b, bias = normal(M, 16), normal(4, 16, 8, seed=1), normal(4, 8, kind="float32", seed=2)
    given = placed(mesh, a, None, "x"), placed(mesh, b, None, "x", "y"), placed(mesh, bias, None, "y")

    def layer(a: Any, b: Any, bias: Any) -> Any:
        return grouped_matmul(a, b, OFFSETS, bias=bias, activation="relu", out_dtype="float32")

    compiled = jax.jit(layer).lower(*given).compile()
    text = compiled.as_text()
    assert "all-reduce" in text and "all-gather" not in text
    which = np.repeat(np.arange(4), np.diff(OFFSETS))
    near(compiled(*given), np.maximum(group_want(a, b) + exact(bias)[which], 0), 1e-4)
    rows = jax.jit(layer)(placed(mesh, a, "x", None), b, bias)  # rows are gathered: groups end anywhere
    near(rows, exact(layer(a, b, bias)), 1e-6)
    found = jax.jit(jax.grad(lambda *x: (layer(*x) ** 2).sum(), (0, 1, 2)))(*given)
    alone = jax.jit(jax.grad(lambda *x: (layer(*x) ** 2).sum(), (0, 1, 2)))(a, b, bias)
    for mine, want in zip(found, alone, strict=True):
        near(mine, exact(want), 2e-2)


@pytest.mark.parametrize("name", ["1x128", "128x128", "rows"])
def test_sharded_rows_and_columns_of_groups_of_k(mesh: Mesh, name: str) -> None:
    """No operand is gathered, but for squares, which a shard would cut."""
    a, b = normal(40, K, kind=E4M3), normal(24, K, kind=E4M3, seed=1)
    sa, sb = [scales(*shape, seed=i) for i, shape in enumerate(ALONG_K[name])]

    def product(a: Any, b: Any) -> Any:
        return grouped_matmul(a, b, BLOCK_ENDS, scale_a=sa, scale_b=sb, transpose_b=True, out_dtype="float32")

    given = placed(mesh, a, "x", None), placed(mesh, b, "y", None)
    compiled = jax.jit(product).lower(*given).compile()
    assert ("all-gather" in compiled.as_text()) == (name == "128x128")
    got = compiled(*given)
    assert got.sharding.spec == PartitionSpec(None, "x", "y")
    near(got, exact(product(a, b)), 1e-5)


def test_factors_have_names() -> None:
    plain = ScaledProduct("plain", (2, M, K), (2, N, K), (E4M3,) * 3, True, scales=((2, M, 3), (2, 2, 3)))
    along_k = plain.__class__("K", (8, 4), (8, 5), (E4M3,) * 3)
    assert cut(plain) == ("l", "m", "n") and labels_of(along_k).results == (("e", "m", "n"),)


def test_neither_torch_nor_the_dsl_is_loaded() -> None:
    """Each product in turn, in one process: it takes longer to start than to multiply."""
    code = (
        "import sys, jax.numpy as jnp, layoutgemm; x = jnp.ones((2, 2), jnp.bfloat16)\n"
        "e = x.astype(jnp.float8_e4m3fn)\n"
        "for product in (\n"
        "    lambda: layoutgemm.jax.matmul(x, x), lambda: layoutgemm.jax.scaled_matmul(e, jnp.ones((2, 1)), e),\n"
        "    lambda: layoutgemm.jax.grouped_matmul(x, x[None], jnp.array([0, 2])),\n"
        "    lambda: layoutgemm.jax.matmul(x, (x, x), combine='silu', order='lower'),\n"
        "): product(); print([m for m in ('torch', 'cutlass') if m in sys.modules])\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n") == ["[]"] * 4 + [""], done.stderr
