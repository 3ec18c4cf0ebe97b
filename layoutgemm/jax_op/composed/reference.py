"""A product with several parts by jax.numpy.

It is used on the CPU, and where it is derived. In float32, rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from ...kernels.indexed.rows import OUT_ROWS, ROWS
from ...kernels.orders import clusters_of_plan, order_values, spread_to_elements, visited_tiles
from ...schedule.listed import decoded
from ..functions.math import JaxMath
from ..functions.reference import JaxElement, Multiply, applied, finished_outputs, spread, with_steps
from ..outputs import Arrays, listed, one_or_all, read_by
from ..product import Product
from ..reference import finish, multiply
from .plans import checked_plan
from .product import OUT, TILES, ComposedProduct

_Arrays = Mapping[str, jax.Array]


def computed(product: ComposedProduct, *arrays: jax.Array) -> Arrays:
    """The product by jax."""
    return with_sums(product, multiply, *arrays)


def with_sums(product: ComposedProduct, multiplied: Multiply, *arrays: jax.Array) -> Arrays:
    """The parts by jax, around products of their own."""
    own: _Arrays = dict(zip(product.names, arrays, strict=True))
    sums = together(product, _sums(product, multiplied, own))
    steps, inside = product.epilogue, visited(product, own.get(TILES))
    if steps is None:
        return placed(product, finish(sums, None, None, product.types[2]), inside, own)
    values = {**dict(product.numbers), **{x.name: spread(x, own[x.name]) for x in read_by(steps)}}
    at = JaxElement(sums.shape, values, inside)
    found = listed(finished_outputs(product, with_steps(steps, sums, at), at.written))
    if steps.stores_c:
        found[0] = placed(product, found[0], inside, own)
    return one_or_all(found)


def _sums(product: ComposedProduct, multiplied: Multiply, own: _Arrays) -> list[jax.Array]:
    """Each a by its b: of chosen rows, of the function of a."""
    turned_a, turned_b = product.turned
    left = {"a": own["a"], **({"a2": own["a2"]} if product.second else {})}
    if turned_a:
        left = {name: jnp.swapaxes(x, -1, -2) for name, x in left.items()}
    if product.rows is not None:
        left["a"] = gathered(left["a"], own[ROWS])
    if product.prologue is not None:
        left["a"] = applied(product.prologue, left["a"], own)
    first = ["b", *[f"b{i}" for i in range(1, product.matrices)]]
    found = []
    for name, other in [*[("a", b) for b in first], *[("a2", b) for b in product.of_second[1:]]]:
        a, b = left[name], own[other]
        wide = "int32" if product.types[2] == "int32" else "float32"
        of = Product(a.shape, b.shape, (str(a.dtype), str(b.dtype), wide), (False, turned_b))
        found.append(multiplied(of, a, b))
    return found


def together(product: ComposedProduct, sums: list[jax.Array]) -> jax.Array:
    """One matrix of the sums: two pairs added, several sums combined, a gate's halves."""
    how = product.how
    if product.second:
        half = len(sums) // 2
        sums = [one + other for one, other in zip(sums[:half], sums[half:], strict=True)]
    if how is None:
        return sums[0]
    parts = list(jnp.split(sums[0], how.matrices, axis=-1)) if product.gates else sums
    value = how.apply(parts, JaxMath, {name: jnp.float32(x) for name, x in product.sum_numbers})
    return jnp.broadcast_to(jnp.asarray(value, jnp.float32), parts[0].shape)


def placed(product: ComposedProduct, value: jax.Array, inside: jax.Array | None, own: _Arrays) -> jax.Array:
    """The product's elements in the result. The visited ones, in the rows that the indices name.

    inside  True for the visited ones; None for all
    """
    kept = own[OUT] if product.keeps else jnp.zeros(product.result, value.dtype)
    if product.out_rows is None:
        return value if inside is None else jnp.where(inside, value, kept)
    rows = own[OUT_ROWS]
    if inside is not None:
        value = jnp.where(inside, value, gathered(kept, rows))
    return kept.at[_named(rows, kept.shape[-2])].set(value, mode="drop")


def gathered(a: jax.Array, rows: jax.Array) -> jax.Array:
    """A's chosen rows, zeros for indices outside.

    >>> gathered(jnp.array([[1.0], [2.0]]), jnp.array([1, -1, 2])).tolist()
    [[2.0], [0.0], [0.0]]
    """
    return a.at[_named(rows, a.shape[-2])].get(mode="fill", fill_value=0)


def _named(rows: jax.Array, count: int) -> jax.Array:
    """The indices; those below 0, which JAX would count from the end, are outside like those above."""
    return jnp.where(rows < 0, count, rows)


def visited(product: ComposedProduct, tiles: jax.Array | None) -> jax.Array | None:
    """A mask of the elements in the order's tiles; None for all."""
    if product.order is None:
        return None
    plan = checked_plan(product)
    if tiles is None:
        found = visited_tiles(plan, order_values(plan, dict(product.order_numbers)))
        found = None if found is None else jnp.asarray(found)
    else:
        found = tiles_listed(tiles, clusters_of_plan(plan))
    return None if found is None else spread_to_elements(plan, found, jnp.repeat)


def tiles_listed(tiles: jax.Array, grid: tuple[int, int]) -> jax.Array:
    """True for each tile (row, column) of a list. An entry beside the grid marks nothing.

    >>> tiles_listed(jnp.array([1 + 2 * 65536, 9, -1, 9 * 65536], jnp.int32), (2, 3)).tolist()
    [[False, False, False], [False, False, True]]
    """
    (rows, columns), (row, column) = grid, decoded(tiles)
    inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    places = jnp.where(inside, row * columns + column, rows * columns)
    return jnp.zeros(rows * columns, bool).at[places].set(True, mode="drop").reshape(grid)
