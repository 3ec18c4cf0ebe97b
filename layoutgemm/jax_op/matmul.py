"""layoutgemm.jax.matmul: checks, vectors as matrices, and the derivative."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments import refusal
from ..errors import OperandError, TensorError
from .primitive import multiply, varying_alike
from .product import Product, check_finish, check_shapes, check_types, stored_as
from .reference import activated, finish

Kept = tuple[jax.Array, jax.Array, "jax.Array | None", "jax.Array | None"]
Gradients = tuple[jax.Array, jax.Array, "jax.Array | None"]
_DERIVED = ("bfloat16", "float16", "float32")  # types whose products have derivatives


def matmul(
    a: jax.Array,
    b: jax.Array,
    *,
    bias: jax.Array | None = None,
    activation: str | None = None,
    out_dtype: object = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    allow_tf32: bool = False,
) -> jax.Array:
    """activation(a @ b + bias), with shapes as in jax.numpy.matmul: vectors, matrices, batches that broadcast.

    a, b         bfloat16, float16, float8_e4m3fn or float8_e5m2, int8 or uint8 (two kinds of 8 bits may meet), or
                 float32 multiplied as tf32; on GPUs of compute capability 9.0, by mma.sync on 8.x and 12.0, on the CPU
    bias         float32, bfloat16 or float16, of shape (n,): added to each row
    activation   relu, relu_sq, gelu, gelu_tanh, silu, sigmoid or tanh. Both happen in the kernel on 9.0, elsewhere by
                 XLA on a float32 product
                 "swiglu" and "geglu" are gated products: b is [gate | up] of 2n columns, and the result
                 silu(a @ gate) * (a @ up), or gelu, has n. In one kernel for transpose_b=True and no bias; else XLA
                 gates a float32 product. A bias is of all 2n, and comes before the gate
    out_dtype    default a's type; bfloat16 for 8-bit floats, int32 for integers
    transpose_a  a is given as (..., k, m), transpose_b: b as (..., n, k). The kernel reads them so; `b.T` would be
                 copied by XLA first
    allow_tf32   whether float32 may be multiplied as tf32

    Sums are float32, of integers int32. On the CPU jax computes the product in float32 and rounds it once. Works under
    jit, grad (reverse mode, any number of times) and vmap, and on meshes: rows, columns, K and batch may be sharded.
    A gradient is rounded to a's type before it is multiplied. A call is compiled for its shapes.

    Raises TensorError for shapes that do not meet, OperandError for types that no kernel multiplies or stores.

    >>> import jax.numpy as jnp
    >>> a = jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3)
    >>> matmul(a, a, transpose_b=True).tolist()
    [[5.0, 14.0], [14.0, 50.0]]
    >>> matmul(a, jnp.ones((5, 3, 4), jnp.bfloat16), bias=jnp.ones(4), activation="relu").shape
    (5, 2, 4)
    """
    left, right = array_of("a", a), array_of("b", b)
    turned = flag("transpose_a", transpose_a), flag("transpose_b", transpose_b)
    check_types(str(left.dtype), str(right.dtype), flag("allow_tf32", allow_tf32))
    kind = stored_as(str(left.dtype), type_name(out_dtype))
    check_shapes(left.shape, right.shape, turned)
    added = None if bias is None else array_of("bias", bias)
    columns = None if right.ndim == 1 else right.shape[-2 if turned[1] else -1]
    activation = check_finish(None if added is None else (added.shape, str(added.dtype)), activation, columns, kind)
    vectors = left.ndim == 1, right.ndim == 1
    left = left[None, :] if vectors[0] else left
    right = right[:, None] if vectors[1] else right
    types = str(left.dtype), str(right.dtype), kind
    product = Product(
        tuple(left.shape), tuple(right.shape), types, turned, None if added is None else str(added.dtype), activation
    )
    alike = varying_alike(*[x for x in (left, right, added) if x is not None])
    result: jax.Array = _compiled(product, *alike, *[None] * (3 - len(alike)))
    if vectors[0]:
        result = jnp.squeeze(result, -2)
    return jnp.squeeze(result, -1) if vectors[1] else result


def array_of(name: str, x: object) -> jax.Array:
    """A JAX array; NumPy's become one. Raises OperandError for anything else, and for sizes that are symbols."""
    if not isinstance(x, (jax.Array, np.ndarray)):
        raise OperandError(f"{name} is a {type(x).__qualname__}; it is a jax.Array or a NumPy array")
    symbols = [n for n in x.shape if not isinstance(n, int)]
    if symbols:
        raise TensorError(
            f"{name} has shape {x.shape}: kernels are compiled for known sizes, and {symbols[0]} is a symbol"
        )
    if isinstance(x, np.ndarray) and jnp.dtype(x.dtype) != (narrow := jax.dtypes.canonicalize_dtype(x.dtype)):
        if x.dtype.kind not in "iu":
            raise OperandError(f"{name} is {x.dtype}, which JAX would round to {narrow}")
        changed = x[x.astype(narrow) != x]
        if changed.size:
            raise OperandError(
                f"{name} has {changed.flat[0]}, which JAX would cut to {narrow}: jax_enable_x64 keeps it"
            )
    return jnp.asarray(x)


def flag(name: str, value: object) -> bool:
    """True or False. Raises OperandError for another value, and for one that is known only when the program runs.

    >>> flag("transpose_a", "no")
    Traceback (most recent call last):
    ...
    layoutgemm.errors.OperandError: transpose_a must be True or False, not 'no' (str)
    """
    if isinstance(value, jax.core.Tracer):
        raise OperandError(
            f"{name} is traced: a kernel is compiled for True or for False, so name it in static_argnames"
        )
    if not isinstance(value, (bool, np.bool_)):
        raise OperandError(refusal(value, name, "True or False"))
    return bool(value)


def type_name(asked: object) -> str | None:
    """The name of an out_dtype. Raises OperandError for what is no type."""
    if asked is None:
        return None
    try:
        return str(jnp.dtype(asked).name)  # type: ignore[call-overload]
    except TypeError:
        raise OperandError(f"out_dtype is {asked!r}; it is a type, as jnp.float32") from None


# ----------------------------------------------------------------------------------------------------------- derivative


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(product: Product, a: jax.Array, b: jax.Array, bias: jax.Array | None) -> jax.Array:
    return multiply(product, a, b, bias)


def _forward(product: Product, a: jax.Array, b: jax.Array, bias: jax.Array | None) -> tuple[jax.Array, Kept]:
    """The product, and what its gradients need: of relu the result, of others and of gates the sums in float32."""
    if product.types[0] not in _DERIVED:
        raise OperandError(
            f"a is {product.types[0]} and b is {product.types[1]}: products of 8-bit types have no derivative; "
            "multiply in bfloat16"
        )
    if product.activation is None or product.activation == "relu":
        c = _differentiable(product, a, b, bias)
        return c, (a, b, bias, None if product.activation is None else c)
    wide = replace(product, types=(*product.types[:2], product.wide), activation=None)
    sums = _differentiable(wide, a, b, bias)
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


_differentiable.defvjp(_forward, _backward)
_compiled = jax.jit(_differentiable, static_argnums=0)


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
    made = _differentiable(product, left, right, None)
    return made.sum(stretched).reshape(like.shape).astype(like.dtype) if stretched else made


def _stretched(shape: Sequence[int], own: Sequence[int]) -> tuple[int, ...]:
    """Dimensions of `shape` along which an array of shape `own` is repeated."""
    front = len(shape) - len(own)
    return tuple([i for i, n in enumerate(shape) if i < front or own[i - front] != n])
