"""Products with scales and of groups by jax on the CPU: in float32, rounded once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp

from ...kernels.operands.promoted import DEPTH
from ...torch_op.scaled_grouped.recipes import ROW, SQUARE, TENSOR
from ..functions.math import Number
from ..functions.reference import JaxElement, finished_outputs, spread, with_steps
from ..outputs import Arrays
from ..reference import finish
from .product import ALONG_K, ROWS, ScaledProduct


def multiply(product: ScaledProduct, *operands: jax.Array) -> Arrays:
    """The product by jax, operands in the order of its names."""
    given = dict(zip(product.names, operands, strict=True))
    a, b = given["a"].astype(jnp.float32), given["b"].astype(jnp.float32)
    if product.form == ALONG_K:
        return finished(product, _groups_of_k(product, a, b, given), given)
    b = jnp.swapaxes(b, -1, -2) if product.turned else b
    a, b = _scaled(product, a, b, given)
    if product.form == ROWS:
        sums = _rows(a, b, given["offsets"])
    else:
        sums = jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
    return finished(product, sums, given)


def finished(product: ScaledProduct, sums: jax.Array, given: Mapping[str, jax.Array]) -> Arrays:
    """The epilogue, or bias and activation, on sums in float32, rounded once."""
    if product.epilogue is not None:
        values: dict[str, Number] = dict(product.numbers)
        for operand, shape in zip(product.operands, product.shapes, strict=True):
            x = given[operand.name]
            if product.form == ROWS and operand.axes == "n" and len(shape) > 1:  # one vector for each group
                values[operand.name] = spread(replace(operand, axes="mn"), x)[
                    groups_of_rows(given["offsets"], sums.shape[0])
                ]
            else:
                values[operand.name] = spread(operand, x)
        groups = None
        if product.form == ROWS:
            groups = groups_of_rows(given["offsets"], sums.shape[0]), product.groups
        at = JaxElement(sums.shape, values, groups=groups)
        return finished_outputs(product, with_steps(product.epilogue, sums, at), at.written)
    bias = given.get("bias")
    if bias is not None and bias.ndim > 1:
        bias = bias[groups_of_rows(given["offsets"], sums.shape[0])]
    return finish(sums, bias, product.activation, product.types[2])


def groups_of_rows(offsets: jax.Array, rows: int) -> jax.Array:
    """The group of each row.

    >>> groups_of_rows(jnp.array([0, 1, 1, 3]), 3).tolist()
    [0, 2, 2]
    """
    return jnp.searchsorted(offsets[1:], jnp.arange(rows), side="right").clip(0, max(offsets.shape[0] - 2, 0))


def _scaled(
    product: ScaledProduct, a: jax.Array, b: jax.Array, given: Mapping[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """The operands times their scales."""
    if product.recipes is None:
        return a, b
    a = a * _spread(given["scale_a"], product.recipes.a, a.shape)
    if "scale_b" in given:
        of_b = jnp.swapaxes(b, -1, -2)
        b = b * jnp.swapaxes(_spread(given["scale_b"], product.recipes.b, of_b.shape), -1, -2)
    return a, b


def _spread(scale: jax.Array, recipe: str, shape: tuple[int, ...]) -> jax.Array:
    """Scales that broadcast to lines along K, of that shape."""
    if recipe == TENSOR:
        return scale.reshape((1,) * len(shape))
    if recipe == ROW:
        return scale.reshape(*shape[:-1], 1)
    if recipe == SQUARE:
        scale = jnp.repeat(scale, DEPTH, -2)[..., : shape[-2], :]
    return jnp.repeat(scale, DEPTH, -1)[..., : shape[-1]]


def _rows(a: jax.Array, b: jax.Array, offsets: jax.Array) -> jax.Array:
    """Each row by its group's matrix; the groups one after the other."""
    group = groups_of_rows(offsets, a.shape[0])

    def add(e: int, sums: jax.Array) -> jax.Array:
        own = jnp.matmul(a, b[e], precision=jax.lax.Precision.HIGHEST)
        return jnp.where((group == e)[:, None], own, sums)

    return jax.lax.fori_loop(0, b.shape[0], add, jnp.zeros((a.shape[0], b.shape[-1]), jnp.float32))


def _groups_of_k(product: ScaledProduct, a: jax.Array, b: jax.Array, given: Mapping[str, jax.Array]) -> jax.Array:
    """The sums of groups of K; NaN for groups that end inside of a block of 128, where these are turned."""
    offsets, recipes = given["offsets"], product.recipes
    if not product.turned:
        return _along_k(a, b, offsets)
    m, n, k, groups = product.sizes
    factors = []
    if recipes is not None and recipes.in_mainloop:
        a = a * _spread(given["scale_a"], recipes.a, a.shape)
        b = b * _spread(given["scale_b"], recipes.b, b.shape) if "scale_b" in given else b
    elif recipes is not None:
        for name, recipe, shape in (("scale_a", recipes.a, (groups, m, 1)), ("scale_b", recipes.b, (groups, 1, n))):
            if name in given:
                factors.append(given[name].reshape((1, 1, 1) if recipe == TENSOR else shape))
    sums = _along_k(a.T, b.T, offsets)
    for factor in factors:
        sums = sums * factor
    inside = (offsets % DEPTH != 0) & (offsets != k)
    return jnp.where((inside[:-1] | inside[1:])[:, None, None], jnp.nan, sums)


def _along_k(a: jax.Array, b: jax.Array, offsets: jax.Array) -> jax.Array:
    """A^T @ B over the lines of each group."""
    line = jnp.arange(a.shape[0])

    def one(ends: tuple[jax.Array, jax.Array]) -> jax.Array:
        own = jnp.where(((line >= ends[0]) & (line < ends[1]))[:, None], a, 0)
        return jnp.matmul(own.T, b, precision=jax.lax.Precision.HIGHEST)

    return jax.lax.map(one, (offsets[:-1], offsets[1:]))
