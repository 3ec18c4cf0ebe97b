"""A product with functions by jax.numpy: on the CPU, and where it is derived. In float32, rounded once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

import jax
import jax.numpy as jnp

from ...kernels.epilogue.chain import Epilogue, EpilogueOperand
from ...kernels.epilogue.numpy_math import mix
from ...kernels.epilogue.places import StepPlace
from ...kernels.sm90.operands.prologue import Prologue, PrologueElement, PrologueOperand
from ..product import Product
from ..reference import finish, multiply
from .product import FunctionProduct

Number: TypeAlias = "int | float | jax.Array"
Multiply = Callable[[Product, jax.Array, jax.Array], jax.Array]  # float32 sums


class JaxMath:
    """The functions of steps and traced expressions on JAX arrays, in float32."""

    @staticmethod
    def constant(value: float) -> jax.Array:
        """A number."""
        return jnp.float32(value)

    @staticmethod
    def to_float(x: jax.Array) -> jax.Array:
        """Coordinates as float32."""
        return x.astype(jnp.float32)

    @staticmethod
    def where(condition: jax.Array, yes: Number, no: Number) -> jax.Array:
        """A choice by element."""
        return jnp.where(condition, yes, no)

    exp, log, sqrt, tanh, abs = (staticmethod(f) for f in (jnp.exp, jnp.log, jnp.sqrt, jnp.tanh, jnp.abs))
    rsqrt, erf, sigmoid = (staticmethod(f) for f in (jax.lax.rsqrt, jax.lax.erf, jax.nn.sigmoid))
    normal = staticmethod(jax.scipy.special.ndtr)
    maximum, minimum = staticmethod(jnp.fmax), staticmethod(jnp.fmin)  # of a NaN and a number, the number
    largest, smallest = staticmethod(jnp.maximum), staticmethod(jnp.minimum)
    add, sub, mul, div = (staticmethod(f) for f in (jnp.add, jnp.subtract, jnp.multiply, jnp.divide))
    floordiv, mod = staticmethod(jnp.floor_divide), staticmethod(jnp.mod)
    lt, le, gt, ge = (staticmethod(f) for f in (jnp.less, jnp.less_equal, jnp.greater, jnp.greater_equal))
    eq, ne = staticmethod(jnp.equal), staticmethod(jnp.not_equal)
    and_, or_, xor = (staticmethod(f) for f in (jnp.bitwise_and, jnp.bitwise_or, jnp.bitwise_xor))


class JaxElement:
    """The place of an epilogue's step: coordinates of C, operands and operations."""

    math = JaxMath

    def __init__(self, shape: tuple[int, int], values: Mapping[str, Number]):
        self.i, self.j = (jnp.arange(n, dtype=jnp.int32) for n in shape)
        self.i, self.j, self._values = self.i[:, None], self.j[None, :], values

    def read(self, name: str) -> jax.Array:
        """An operand, broadcast along C; a number as float32."""
        value = self._values[name]
        return jnp.float32(value) if isinstance(value, (int, float)) else value

    def random(self, name: str) -> jax.Array:
        """16 bits for each element, as `random_bits` has them."""
        value = self._values[name]
        assert isinstance(value, int), "a seed is a number of the launch"
        seed = jnp.uint32(value & 0xFFFFFFFF)
        bits = mix(seed, self.i.astype(jnp.uint32), (self.j // 2).astype(jnp.uint32), jnp.uint32)
        return ((bits >> jnp.where(self.j % 2, 16, 0).astype(jnp.uint32)) & jnp.uint32(0xFFFF)).astype(jnp.int32)


def applied(prologue: Prologue, a: jax.Array, operands: Mapping[str, jax.Array]) -> jax.Array:
    """f(A) of an A that is not turned, rounded to A's type.

    >>> twice = Prologue.of(lambda x, i, k, ops, s: x * s, s="m")
    >>> applied(twice, jnp.ones((2, 1), jnp.float16), {"s": jnp.array([1.0, 3.0])}).tolist()
    [[1.0], [3.0]]
    """
    rows, columns = (jnp.arange(n, dtype=jnp.int32) for n in a.shape[-2:])
    values = {
        operand.name: jnp.expand_dims(operands[operand.name].astype(jnp.float32), -1 if operand.axis == "m" else -2)
        for operand in prologue.operands
    }
    place = PrologueElement(rows[:, None], columns[None, :], values, JaxMath)
    found = jnp.asarray(prologue.apply(a.astype(jnp.float32), place), jnp.float32)
    return finish(jnp.broadcast_to(found, a.shape), None, None, str(a.dtype))


def sums_of(product: FunctionProduct, a_type: str) -> Product:
    """The product of f(A) with sums in float32; f(A) is not turned."""
    m, _, k = product.sizes
    own = product.prologue is not None
    shape = (*product.batch, m, k) if own else product.a
    return Product(
        shape, product.b, (a_type, product.types[1], "float32"), (product.turned[0] and not own, product.turned[1])
    )


def computed(product: FunctionProduct, *arrays: jax.Array) -> jax.Array:
    """The product by jax; arrays are a, b, then the functions' operands."""
    return with_sums(product, lambda of, a, b: multiply(of, a, b), *arrays)


def with_sums(product: FunctionProduct, multiplied: Multiply, *arrays: jax.Array) -> jax.Array:
    """The functions by jax, around a product of their own."""
    a, b, *others = arrays
    operands = dict(zip([operand.name for operand in product.operands], others, strict=True))
    if product.prologue is not None:
        a = applied(product.prologue, jnp.swapaxes(a, -1, -2) if product.turned[0] else a, operands)
    sums = multiplied(sums_of(product, str(a.dtype)), a, b)
    if product.epilogue is not None:
        own = {x.name: spread(x, operands[x.name]) for x in product.operands if not isinstance(x, PrologueOperand)}
        sums = with_steps(product.epilogue, sums, {**dict(product.numbers), **own})
    return finish(sums, None, None, product.types[2])


def spread(operand: EpilogueOperand, x: jax.Array) -> jax.Array:
    """An epilogue's operand in float32, to broadcast along C.

    >>> from layoutgemm.kernels.epilogue.chain import Bias
    >>> spread(Bias("m").given[0], jnp.arange(3)).shape
    (3, 1)
    """
    axis = {"m": -1, "n": -2}.get(operand.axes)
    x = x.astype(jnp.float32) if operand.axes else x.astype(jnp.float32).reshape(())
    return x if axis is None else jnp.expand_dims(x, axis)


def with_steps(epilogue: Epilogue, sums: jax.Array, values: Mapping[str, Number]) -> jax.Array:
    """The steps on float32 sums; `values`: operands that broadcast along C, and numbers, by name."""
    at = cast(StepPlace, JaxElement((sums.shape[-2], sums.shape[-1]), values))  # its steps only read
    found = epilogue.apply(sums, at)
    return jnp.broadcast_to(jnp.asarray(found, jnp.float32), sums.shape)
