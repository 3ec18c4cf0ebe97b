"""Products of JAX arrays with their derivatives, in both modes. Tangents and gradients are products too.

sums of a product    linear in a and in b: tangents by da @ b and a @ db, gradients by the transposes of these
what follows         by jax: an activation or a gate through its slope, several parts around products of their own
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from ..errors import OperandError
from ..kernels.epilogue.chain import Epilogue
from ..kernels.operands.gated import GATES, HALVES
from .outputs import Arrays, WritingProduct, listed
from .primitive import Derived, Operands, Tangents, differentiable_of, mapped, partitioned
from .product import Product
from .reference import ACTIVATIONS, activated, with_rank

SAVED = "layoutgemm"  # the name of each product, and of the sums that its gradients read, for jax.checkpoint
_DERIVED = ("bfloat16", "float16", "float32")  # types whose products have derivatives


def saved(found: Arrays) -> Arrays:
    """The arrays with the name by which `jax.checkpoint`'s policies keep them."""
    named: Arrays = checkpoint_name(found, SAVED)
    return named


def check_derived(types: Sequence[str], epilogue: Epilogue | None = None) -> None:
    """Raise OperandError for products without a derivative; `types`: of a, b and the result."""
    if types[0] not in _DERIVED:
        raise OperandError(
            f"a is {types[0]} and b is {types[1]}: products of 8-bit types have no derivative; multiply in bfloat16"
        )
    if epilogue is not None and epilogue.quantizes is not None:
        raise OperandError(f"{epilogue.quantizes}: values of 8 bits have no derivative")


def derived_by_jax(with_sums: Callable[..., Arrays]) -> Derived:
    """The derivative of a product of several parts. JAX derives through the parts, products through the sums.

    with_sums  the parts in jax, of a product, of the function that multiplies, and of the arrays
    """

    def derived(
        multiply: Callable[..., Arrays], product: WritingProduct, arrays: Operands, tangents: Tangents
    ) -> tuple[Arrays, Tangents]:
        check_derived(product.types, product.epilogue)
        again = functools.partial(with_sums, product, differentiable)
        return saved(multiply(product, *arrays)), tangents_through(again, arrays, tangents)

    return derived


def tangents_through(parts: Callable[..., Arrays], arrays: Operands, tangents: Tangents) -> Tangents:
    """The tangents of what `parts` computes. A backward pass computes it again, and keeps nothing."""
    moving = {i: x for i, x in enumerate(tangents) if x is not None}

    def of_moving(*some: jax.Array) -> Arrays:
        own = dict(zip(moving, some, strict=True))
        return parts(*[own.get(i, x) for i, x in enumerate(arrays)])

    given = [arrays[i] for i in moving]
    return listed(jax.jvp(jax.checkpoint(of_moving), given, list(moving.values()))[1])


def through_activation(sums: jax.Array, tangent: jax.Array, activation: str) -> jax.Array:
    """The tangent of an activation or a gate of float32 sums. Slopes alone are kept for a backward pass.

    >>> through_activation(jnp.array([-1.0, 2.0]), jnp.array([1.0, 1.0]), "relu_sq").tolist()
    [0.0, 4.0]
    """
    function = ACTIVATIONS[GATES.get(activation, activation)]
    if activation not in GATES:
        return _slope(function, sums) * tangent
    gate, up = jnp.split(sums, HALVES, axis=-1)
    of_gate, of_up = jnp.split(tangent, HALVES, axis=-1)
    return _slope(function, gate) * up * of_gate + function(gate) * of_up


def _slope(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    return jax.jvp(function, (x,), (jnp.ones_like(x),))[1]


def summed(terms: Sequence[jax.Array | None]) -> jax.Array:
    """The sum of those terms that there are."""
    return functools.reduce(jnp.add, [x for x in terms if x is not None])


def _derived(
    multiply: Callable[..., Arrays], product: Product, operands: Operands, tangents: Tangents
) -> tuple[Arrays, Tangents]:
    """The product and its tangent: of relu by the result, of others and of gates by the sums in float32."""
    check_derived(product.types)
    a, b = operands[:2]
    plain, kind = product.without_finish(), product.types[2]
    of_a, of_b, of_bias = (*tangents, None)[:3]
    if of_bias is not None:
        of_bias = jnp.broadcast_to(with_rank(of_bias.astype(jnp.float32), len(plain.result)), plain.result)
    linear = [
        None if of_a is None else multiply(plain, of_a, b),
        None if of_b is None else multiply(plain, a, of_b),
    ]  # fmt: skip
    tangent = summed([*linear, of_bias])
    if product.activation is None or product.activation == "relu":
        (c,) = listed(saved(multiply(product, *operands)))
        tangent = tangent if product.activation is None else jnp.where(c > 0, tangent, jnp.zeros_like(tangent))
        return c, [tangent.astype(kind)]
    wide = replace(product, types=(*product.types[:2], product.wide), activation=None)
    (sums,) = listed(saved(multiply(wide, *operands)))
    tangent = through_activation(sums, tangent, product.activation)
    return activated(sums, product.activation).astype(kind), [tangent.astype(kind)]


def _transposed(product: Product, name: str, grad: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    """The gradient of a or of b. The sums' gradient is rounded to their type.

    Turned operands have the transposed products, and nothing is copied for them: A @ B gives grad @ B^T and A^T @ grad.
    """
    turned_a, turned_b = product.turned
    grad = grad.astype(a.dtype)
    if name == "a":
        return _product(b, grad, (turned_b, True), a) if turned_a else _product(grad, b, (False, not turned_b), a)
    if b.ndim == 2 and a.ndim > 2 and not turned_a:  # one product over the rows of all matrices
        a, grad = a.reshape(-1, a.shape[-1]), grad.reshape(-1, grad.shape[-1])
    return _product(grad, a, (True, turned_a), b) if turned_b else _product(a, grad, (not turned_a, False), b)


def _product(left: jax.Array, right: jax.Array, turned: tuple[bool, bool], like: jax.Array) -> jax.Array:
    """A derivative's product, summed over the dimensions along which `like` was stretched."""
    kind = str(left.dtype)
    product = Product(tuple(left.shape), tuple(right.shape), (kind, kind, kind), turned)
    stretched = _stretched(product.result, like.shape)
    if stretched:
        product = replace(product, types=(kind, kind, product.wide))
    (made,) = listed(differentiable(product, left, right))
    return made.sum(stretched).reshape(like.shape).astype(like.dtype) if stretched else made


def _stretched(shape: Sequence[int], own: Sequence[int]) -> tuple[int, ...]:
    """Dimensions of `shape` along which an array of shape `own` is repeated."""
    front = len(shape) - len(own)
    return tuple([i for i, n in enumerate(shape) if i < front or own[i - front] != n])


differentiable = differentiable_of("layoutgemm_product", partitioned, mapped, _derived, _transposed)
compiled = jax.jit(differentiable, static_argnums=0)
