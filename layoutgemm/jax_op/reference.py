"""Products by jax on the CPU; bias and activation outside of kernels. In float32, rounded once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from ..kernels.epilogue.chain import ACTIVATIONS as IN_KERNEL
from ..kernels.operands.gated import GATES, HALVES
from .product import Product, check_exact

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "relu_sq": lambda x: jnp.square(jax.nn.relu(x)),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
}
assert set(ACTIVATIONS) == set(IN_KERNEL)


def activated(sums: jax.Array, activation: str) -> jax.Array:
    """An activation of each sum, or a gate of the sums of [gate | up].

    >>> activated(jnp.array([[0.0, 2.0, 3.0, 5.0]]), "geglu").round(3).tolist()
    [[0.0, 9.772000312805176]]
    """
    if activation not in GATES:
        return ACTIVATIONS[activation](sums)
    gate, up = jnp.split(sums, HALVES, axis=-1)
    return ACTIVATIONS[GATES[activation]](gate) * up


def with_rank(x: jax.Array, rank: int) -> jax.Array:
    """The array with dimensions of 1 in front: a program may have jax_numpy_rank_promotion="raise".

    >>> with_rank(jnp.ones(3), 2).shape, with_rank(jnp.float32(1), 2).shape
    ((1, 3), ())
    """
    return jnp.expand_dims(x, range(rank - x.ndim)) if 0 < x.ndim < rank else x


def multiply(product: Product, a: jax.Array, b: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """The product by jax: sums in float32, of integers in int32, rounded once.

    float32 is multiplied as it is, without rounding to tf32.

    Raises OperandError for integers whose sums may leave int32.
    """
    check_exact(product)
    wide = jnp.dtype(product.wide)
    a = jnp.swapaxes(a, -1, -2) if product.turned[0] else a
    b = jnp.swapaxes(b, -1, -2) if product.turned[1] else b
    sums = jnp.matmul(a.astype(wide), b.astype(wide), precision=jax.lax.Precision.HIGHEST)
    return finish(sums, bias, product.activation, product.types[2])


def finish(sums: jax.Array, bias: jax.Array | None, activation: str | None, kind: str) -> jax.Array:
    """activation(sums + bias) as `kind`, rounded once.

    sums  in float32, or in int32; before a gate those of all columns of b
    """
    if bias is not None or activation is not None:
        sums = sums.astype(jnp.float32)
    if bias is not None:
        rank = max(sums.ndim, bias.ndim)
        sums = with_rank(sums, rank) + with_rank(bias.astype(jnp.float32), rank)
    if activation is not None:
        sums = activated(sums, activation)
    if kind.startswith("float8"):  # beyond the range its end, as in the kernels; a conversion gives NaN or inf
        most = float(jnp.finfo(kind).max)
        sums = jnp.clip(sums.astype(jnp.float32), -most, most)
    return sums.astype(kind)
