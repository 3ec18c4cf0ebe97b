"""Reductions of an epilogue by jax.numpy: their traced functions, combined by halves.

    elements (.., M, N) --lift--> tuples --fold along a row, a column, or all--> finish --> results

"log_sum_exp" and "softmax" are jax.scipy's: the traced maximum of equal elements has another derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ...kernels.epilogue.chain import ReductionStep
from ...kernels.epilogue.places import Value
from ...kernels.epilogue.reductions import Reduction
from .math import JaxMath

_EXPONENTIAL = ("log_sum_exp", "softmax")
_INFINITE = float("-inf")


@dataclass(frozen=True)
class _ReducedElements:
    """Coordinates of elements, as a reduction's traced functions read them."""

    i: jax.Array
    j: jax.Array
    read: Callable[[str], Value] | None = None
    math: type[JaxMath] = JaxMath


def reduced(
    step: ReductionStep, x: jax.Array, at: tuple[jax.Array, jax.Array], visited: jax.Array | None,
    groups: tuple[jax.Array, int] | None, read: Callable[[str], Value] | None = None,
) -> list[jax.Array]:  # fmt: skip
    """The results of a reduction of float32 elements.

    at       their rows and columns
    visited  True for those that are combined; None for all
    groups   of rows, in each of which columns are reduced: the group of each row, and their number
    read     an operand's values, to be broadcast along x

    >>> from layoutgemm.kernels.epilogue.chain import RowReduce
    >>> at = jnp.arange(1)[:, None], jnp.arange(3)[None]
    >>> [x.tolist() for x in reduced(RowReduce("argmax"), jnp.array([[1.0, 4.0, 2.0]]), at, None, None)]
    [[4.0], [1]]
    """
    named = isinstance(own := getattr(step, "operation", None), str) and own in _EXPONENTIAL
    reduction = step.reduction
    kinds = [jnp.float32 if kind == "float" else jnp.int32 for kind in reduction.kinds]
    lifted = [x] if named else reduction.lifted(x, _ReducedElements(*at, read))
    identity: Sequence[float | int] = [_INFINITE] if named else reduction.identity
    values = [jnp.broadcast_to(jnp.asarray(v, kind), x.shape) for v, kind in zip(lifted, kinds)]
    fills = [jnp.asarray(v, kind) for v, kind in zip(identity, kinds)]

    def along(mask: jax.Array | None) -> list[jax.Array]:
        kept = values if mask is None else [jnp.where(mask, v, fill) for v, fill in zip(values, fills, strict=True)]
        lines = [_lines(step, v, fill) for v, fill in zip(kept, fills, strict=True)]
        return _exponential(lines[0], own == "softmax") if named else _folded(reduction, lines)

    if groups is None or step.axes != "n":
        return along(visited) if step.each is None else _stored(along(visited), step, visited)
    return list(jax.lax.map(lambda e: tuple(along((groups[0] == e)[:, None])), jnp.arange(groups[1])))


def _lines(step: ReductionStep, values: jax.Array, fill: jax.Array) -> jax.Array:
    """The elements of each result along the last dimension, one that changes nothing among them."""
    if step.axes == "":
        values = values.reshape(-1)
    elif step.axes == "n":
        values = jnp.swapaxes(values, -1, -2)
    each, count = step.each, values.shape[-1]
    more = 1 if count == 0 else 0 if each is None else -count % each
    if each is not None and count == 0:
        return values.reshape(*values.shape[:-1], 0, each)
    values = jnp.pad(values, [*[(0, 0)] * (values.ndim - 1), (0, more)], constant_values=fill) if more else values
    return values if each is None else values.reshape(*values.shape[:-1], -1, each)


def _folded(reduction: Reduction, values: list[jax.Array]) -> list[jax.Array]:
    """The results of tuples along the last dimension."""
    while (count := values[0].shape[-1]) > 1:
        half = count // 2
        first, second = [v[..., :half] for v in values], [v[..., half : 2 * half] for v in values]
        both = reduction.combined(first, second, JaxMath)
        joined = [jnp.broadcast_to(jnp.asarray(x, y.dtype), y.shape) for x, y in zip(both, first, strict=True)]
        values = [jnp.concatenate([x, y[..., 2 * half :]], -1) for x, y in zip(joined, values, strict=True)]
    found = [v[..., 0] for v in values]
    kinds = [jnp.float32 if kind == "float" else jnp.int32 for _, kind in reduction.results]
    done = reduction.finished(found, JaxMath)
    return [jnp.broadcast_to(jnp.asarray(x, kind), found[0].shape) for x, kind in zip(done, kinds, strict=True)]


def _exponential(x: jax.Array, with_most: bool) -> list[jax.Array]:
    total = jax.scipy.special.logsumexp(x, -1)
    return [x.max(-1), total] if with_most else [total]


def _stored(results: list[jax.Array], step: ReductionStep, visited: jax.Array | None) -> list[jax.Array]:
    """Results of `each` columns: zeros where none of them is in the order's tiles."""
    if visited is None:
        return results
    there = seen(step, visited)
    return [jnp.where(there, x, jnp.zeros_like(x)) for x in results]


def seen(step: ReductionStep, visited: jax.Array) -> jax.Array:
    """True for each result of `each` columns with an element in the order's tiles."""
    return _lines(step, visited, jnp.asarray(False)).any(-1)
