"""Derivatives of every product in both modes, and what jax makes of them: beside jax's own products in float32."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tests import needs

jax = needs.module("jax")
jnp = jax.numpy
from layoutgemm.errors import OperandError
from layoutgemm.jax import dot_general, grouped_matmul, matmul, scaled_matmul
from layoutgemm.jax_op.reference import activated
from layoutgemm.kernels.epilogue.chain import Activation, Bias, Epilogue, RowReduce

M, N, K = 6, 4, 8
ENDS = [0, 2, 2, M]
OFFSETS = jnp.array(ENDS)


def normal(*shape: int, seed: int = 0, kind: str = "bfloat16") -> Any:
    return jnp.asarray(np.random.default_rng((seed, *shape)).standard_normal(shape) / 2, jnp.dtype(kind))


def plain(a: Any, b: Any) -> Any:
    return jnp.matmul(a.astype("float32"), b.astype("float32"), precision="highest")


def groups(a: Any, b: Any) -> Any:
    return jnp.concatenate([plain(a[first:end], w) for first, end, w in zip(ENDS, ENDS[1:], b)])


SUMS = Epilogue(Bias(), Activation("tanh"), RowReduce("log_sum_exp", "total"))


def with_total(c: Any, x: Any) -> Any:
    return c + x["total"][:, None]


def by_hand(a: Any, b: Any, bias: Any) -> Any:
    sums = jnp.tanh(plain(a, b) + bias)
    return sums + jax.nn.logsumexp(sums, -1)[:, None]


WIDE = {"out_dtype": "float32"}
# Ours, jax's, and shapes of the operands.
PRODUCTS = {
    "plain": (functools.partial(matmul, **WIDE), plain, ((M, K), (K, N))),
    "a batch": (functools.partial(matmul, **WIDE), plain, ((3, M, K), (K, N))),
    "stretched": (functools.partial(matmul, **WIDE), plain, ((M, K), (3, K, N))),
    "turned": (
        functools.partial(matmul, transpose_a=True, transpose_b=True, **WIDE), lambda a, b: plain(a.T, b.T),
        ((K, M), (N, K)),
    ),
    "relu": (
        lambda a, b, bias: matmul(a, b, bias=bias, activation="relu", **WIDE),
        lambda a, b, bias: jax.nn.relu(plain(a, b) + bias), ((M, K), (K, N), (N,)),
    ),
    "silu": (
        lambda a, b, bias: matmul(a, b, bias=bias, activation="silu", **WIDE),
        lambda a, b, bias: jax.nn.silu(plain(a, b) + bias), ((M, K), (K, N), (N,)),
    ),
    "a gate": (
        lambda a, b: matmul(a, b, activation="swiglu", transpose_b=True, **WIDE),
        lambda a, b: activated(plain(a, b.T), "swiglu"), ((M, K), (2 * N, K)),
    ),
    "an epilogue": (
        lambda a, b, bias: with_total(*matmul(a, b, epilogue=SUMS, given={"bias": bias.astype("float32")}, **WIDE)),
        by_hand, ((M, K), (K, N), (N,)),
    ),
    "two matrices": (
        lambda a, b, d: matmul(a, (b, d), combine="silu", **WIDE),
        lambda a, b, d: jax.nn.silu(plain(a, b)) * plain(a, d), ((M, K), (K, N), (K, N)),
    ),
    "groups of rows": (
        lambda a, b, bias: grouped_matmul(a, b, OFFSETS, bias=bias, activation="gelu", **WIDE),
        lambda a, b, bias: activated(groups(a, b) + bias[jnp.array([0, 0, 2, 2, 2, 2])], "gelu"),
        ((M, K), (3, K, N), (3, N)),
    ),
    "groups of K": (
        lambda a, b: grouped_matmul(a, b, jnp.array([0, 3, 3, K]), **WIDE),
        lambda a, b: jnp.stack([plain(a[:, i:j], b[i:j]) for i, j in ((0, 3), (3, 3), (3, K))]), ((M, K), (K, N)),
    ),
    "groups with an epilogue": (
        lambda a, b, bias: with_total(
            *grouped_matmul(a, b, OFFSETS, epilogue=SUMS, given={"bias": bias.astype("float32")}, **WIDE)
        ),
        lambda a, b, bias: (lambda y: y + jax.nn.logsumexp(y, -1)[:, None])(jnp.tanh(groups(a, b) + bias)),
        ((M, K), (3, K, N), (N,)),
    ),
    "dot_general": (
        lambda a, b: dot_general(a, b, (((2,), (1,)), ((0,), (0,))), preferred_element_type="float32"),
        lambda a, b: jnp.einsum("bmk,bkn->bmn", a.astype("float32"), b.astype("float32"), precision="highest"),
        ((2, M, K), (2, K, N)),
    ),
}  # fmt: skip


def near(found: Any, wanted: Any, bound: float = 2**-7) -> None:
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        off = np.asarray(x, np.float64) - np.asarray(y, np.float64)
        assert np.abs(off).max(initial=0) <= bound * max(1.0, np.abs(np.asarray(y, np.float64)).max(initial=0))


@pytest.mark.parametrize("name", PRODUCTS)
def test_both_modes_are_jaxs(name: str) -> None:
    ours, theirs, shapes = PRODUCTS[name]
    given = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    moved = [normal(*shape, seed=9 + i) for i, shape in enumerate(shapes)]

    def both(f: Any) -> Any:
        value, tangent = jax.jvp(f, given, moved)
        _, of_last = jax.jvp(lambda last: f(*given[:-1], last), given[-1:], moved[-1:])
        again, linear = jax.linearize(f, *given)
        _, pull = jax.vjp(f, *given)
        return value, tangent, of_last, again, linear(*moved), pull(jnp.cos(value))

    near(jax.jit(lambda: both(ours))(), jax.jit(lambda: both(theirs))())


@pytest.mark.parametrize("name", ["plain", "silu", "a gate", "an epilogue", "groups of rows", "groups of K"])
def test_second_derivatives_of_both_orders(name: str) -> None:
    ours, theirs, shapes = PRODUCTS[name]
    given = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    moved = [normal(*shape, seed=9 + i) for i, shape in enumerate(shapes)]

    def seconds(f: Any) -> Any:
        def loss(*arrays: Any) -> Any:
            return jnp.sin(f(*arrays)).sum()

        slope = jax.grad(loss, range(len(given)))
        reverse = jax.grad(lambda *x: sum((g.astype("float32") ** 2).sum() for g in slope(*x)), range(len(given)))
        _, over = jax.jvp(slope, given, moved)
        under = jax.grad(lambda *x: jax.jvp(loss, x, tuple(moved))[1], range(len(given)))
        return over, under(*given), reverse(*given)

    near(jax.jit(lambda: seconds(ours))(), jax.jit(lambda: seconds(theirs))(), 2**-4)


def test_hessian_of_a_layer() -> None:
    x, w = normal(3, 4, kind="float32"), normal(4, 2, seed=1, kind="float32")

    def loss(multiply: Any) -> Any:
        return lambda w: jnp.sin(multiply(x, w)).sum()

    ours = jax.hessian(loss(functools.partial(matmul, allow_tf32=True)))(w)
    near(ours, jax.hessian(loss(plain))(w), 1e-5)


def steps(x: Any, w: Any, multiply: Any) -> Any:
    """A scan, a while loop with jvp, a branch and a map of products."""
    x, _ = jax.lax.scan(lambda x, _: (jnp.tanh(multiply(x, w)), None), x, None, length=3)
    x = jax.lax.fori_loop(0, 2, lambda _, x: jnp.tanh(multiply(x, w)), x)  # of known length: a scan
    x = jax.lax.cond(x.sum() > -1e9, lambda x: multiply(x, w), lambda x: x, x)
    return jax.lax.map(lambda row: multiply(row[None], w)[0], x)


def test_control_flow_in_both_modes() -> None:
    x, w = normal(3, 5, kind="float32"), normal(5, 5, seed=1, kind="float32")
    found = []
    for multiply in (functools.partial(matmul, allow_tf32=True), plain):
        f = functools.partial(steps, multiply=multiply)
        found.append((jax.jvp(f, (x, w), (w[:3], w)), jax.jit(jax.grad(lambda x, w, f=f: f(x, w).sum(), (0, 1)))(x, w)))
    near(*found, 1e-4)

    def looped(x: Any, multiply: Any) -> Any:
        return jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, jnp.tanh(multiply(s[1], w))), (0, x))[1]

    near(*[
        jax.jvp(functools.partial(looped, multiply=m), (x,), (w[:3],))
        for m in (functools.partial(matmul, allow_tf32=True), plain)
    ], 1e-4)  # fmt: skip


def products_kept(policy: Any) -> int:
    """Products in the jaxpr of a checkpointed layer's gradient."""

    def loss(x: Any, w: Any) -> Any:
        return jnp.sin(matmul(x, w, activation="silu").astype("float32")).sum()

    text = str(jax.make_jaxpr(jax.grad(jax.checkpoint(loss, policy=policy), (0, 1)))(normal(M, K), normal(K, N)))
    return text.count("= layoutgemm_product[")


def test_policies_keep_products_by_name() -> None:
    keeps = jax.checkpoint_policies.save_only_these_names("layoutgemm")
    assert products_kept(keeps) == products_kept(None) - 1


def test_a_gradient_of_one_operand_multiplies_for_no_other() -> None:
    def count(*which: int) -> int:
        f = jax.grad(lambda a, b: matmul(a, b, **WIDE).sum(), which)
        return str(jax.make_jaxpr(f)(normal(M, K), normal(K, N))).count("= layoutgemm_product[")

    assert count(0, 1) == 3 and count(0) == count(1) == 2


def test_exported_gradients_are_those_of_jax() -> None:
    export = needs.module("jax.export")
    x, w = normal(M, K), normal(K, N)
    made = export.export(jax.jit(jax.grad(lambda x, w: matmul(x, w, **WIDE).sum())))(x, w)
    near(made.call(x, w), jax.grad(lambda x, w: plain(x, w).sum())(x, w))


def test_donated_operands_and_pmap() -> None:
    x, w = normal(1, M, K), normal(K, N)
    step = jax.jit(lambda w, x: w - jax.grad(lambda w: matmul(x[0], w, **WIDE).sum())(w), donate_argnums=0)
    near(step(w + 0, x), w - jax.grad(lambda w: plain(x[0], w).sum())(w))
    near(jax.pmap(lambda x: jax.jvp(lambda x: matmul(x, w), (x,), (x,))[1])(x), matmul(x, w))


@pytest.mark.parametrize("f", [
    lambda x: scaled_matmul(x, jnp.ones((M, 1)), x, jnp.ones((M, 1)), transpose_b=True),
    lambda x: matmul(x, x, transpose_b=True),
])  # fmt: skip
def test_products_of_8_bits_have_no_tangents(f: Any) -> None:
    x = normal(M, K, kind="float8_e4m3fn")
    with pytest.raises(OperandError, match="products of 8-bit types have no derivative; multiply in bfloat16"):
        jax.jvp(f, (x,), (x,))
