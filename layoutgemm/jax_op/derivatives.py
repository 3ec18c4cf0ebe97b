"""A product of JAX arrays with its derivative, in reverse mode: its gradients are products too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from ..errors import OperandError
from ..kernels.epilogue.chain import Epilogue
from .outputs import Arrays, WritingProduct
from .primitive import multiply
from .product import Product
from .reference import activated, finish

Kept = tuple[jax.Array, jax.Array, "jax.Array | None", "jax.Array | None"]
Gradients = tuple[jax.Array, jax.Array, "jax.Array | None"]
SAVED = "layoutgemm"  # the name of each product, and of the sums that its gradients read, for jax.checkpoint
_DERIVED = ("bfloat16", "float16", "float32")  # types whose products have derivatives


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def differentiable(product: Product, a: jax.Array, b: jax.Array, bias: jax.Array | None) -> jax.Array:
    """The product, whose gradients are products of this library."""
    return multiply(product, a, b, bias)


Saved = TypeVar("Saved", jax.Array, Arrays)


def saved(found: Saved) -> Saved:
    """The arrays with the name by which `jax.checkpoint`'s policies keep them."""
    named: Saved = checkpoint_name(found, SAVED)
    return named


def derived_by_jax(
    mapped: Callable[..., Callable[..., Arrays]], with_sums: Callable[..., Arrays]
) -> Callable[..., Arrays]:
    """A product of several parts with its derivative: by jax through the parts, by products through the sums.

    mapped     the product's function of its arrays
    with_sums  the parts in jax, of a product, of the function that multiplies, and of the arrays
    """

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def call(product: WritingProduct, *arrays: jax.Array) -> Arrays:
        return mapped(product)(*arrays)

    def forward(product: WritingProduct, *arrays: jax.Array) -> tuple[Arrays, tuple[jax.Array, ...]]:
        check_derived(product.types, product.epilogue)
        return saved(call(product, *arrays)), arrays

    def backward(product: WritingProduct, arrays: tuple[jax.Array, ...], grads: Arrays) -> tuple[jax.Array, ...]:
        def multiplied(of: Product, a: jax.Array, b: jax.Array) -> jax.Array:
            return differentiable(of, a, b, None)

        _, pull = jax.vjp(functools.partial(with_sums, product, multiplied), *arrays)
        found: tuple[jax.Array, ...] = pull(grads)
        return found

    call.defvjp(forward, backward)
    made: Callable[..., Arrays] = call
    return made


def check_derived(types: Sequence[str], epilogue: Epilogue | None = None) -> None:
    """Raise OperandError for products without a derivative; `types`: of a, b and the result."""
    if types[0] not in _DERIVED:
        raise OperandError(
            f"a is {types[0]} and b is {types[1]}: products of 8-bit types have no derivative; multiply in bfloat16"
        )
    if epilogue is not None and epilogue.quantizes is not None:
        raise OperandError(f"{epilogue.quantizes}: values of 8 bits have no derivative")


def _forward(product: Product, a: jax.Array, b: jax.Array, bias: jax.Array | None) -> tuple[jax.Array, Kept]:
    """The product, and what its gradients need: of relu the result, of others and of gates the sums in float32."""
    check_derived(product.types)
    if product.activation is None or product.activation == "relu":
        c = saved(differentiable(product, a, b, bias))
        return c, (a, b, bias, None if product.activation is None else c)
    wide = replace(product, types=(*product.types[:2], product.wide), activation=None)
    sums = saved(differentiable(wide, a, b, bias))
    return finish(sums, None, product.activation, product.types[2]), (a, b, bias, sums)


def _backward(product: Product, kept: Kept, grad: jax.Array) -> Gradients:
    a, b, bias, after = kept
    if product.activation == "relu":
        grad = jnp.where(after > 0, grad, jnp.zeros_like(grad))  # type: ignore[operator]
    elif product.activation is not None:
        _, pull = jax.vjp(functools.partial(activated, activation=product.activation), after)
        (grad,) = pull(grad.astype(jnp.float32))
    of_bias = None
    if bias is not None:
        of_bias = grad.sum(tuple(range(grad.ndim - 1)), dtype=jnp.float32).astype(bias.dtype)
    return (*gradients(product, a, b, grad.astype(a.dtype)), of_bias)


differentiable.defvjp(_forward, _backward)
compiled = jax.jit(differentiable, static_argnums=0)


def gradients(product: Product, a: jax.Array, b: jax.Array, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradients of both operands, for the result's gradient in a's type.

    Turned operands have the transposed products, and nothing is copied for them: A @ B gives grad @ B^T and A^T @ grad.
    """
    turned_a, turned_b = product.turned
    of_a = _product(b, grad, (turned_b, True), a) if turned_a else _product(grad, b, (False, not turned_b), a)
    if b.ndim == 2 and a.ndim > 2 and not turned_a:  # one product over the rows of all matrices
        a, grad = a.reshape(-1, a.shape[-1]), grad.reshape(-1, grad.shape[-1])
    of_b = _product(grad, a, (True, turned_a), b) if turned_b else _product(a, grad, (not turned_a, False), b)
    return of_a, of_b


def _product(left: jax.Array, right: jax.Array, turned: tuple[bool, bool], like: jax.Array) -> jax.Array:
    """A derivative's product, summed over the dimensions along which `like` was stretched."""
    kind = str(left.dtype)
    product = Product(tuple(left.shape), tuple(right.shape), (kind, kind, kind), turned)
    stretched = _stretched(product.result, like.shape)
    if stretched:
        product = replace(product, types=(kind, kind, product.wide))
    made = differentiable(product, left, right, None)
    return made.sum(stretched).reshape(like.shape).astype(like.dtype) if stretched else made


def _stretched(shape: Sequence[int], own: Sequence[int]) -> tuple[int, ...]:
    """Dimensions of `shape` along which an array of shape `own` is repeated."""
    front = len(shape) - len(own)
    return tuple([i for i, n in enumerate(shape) if i < front or own[i - front] != n])
