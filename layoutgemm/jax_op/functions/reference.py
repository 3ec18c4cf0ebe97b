"""A product with functions by jax.numpy: on the CPU, and where it is derived. In float32, rounded once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import jax
import jax.numpy as jnp

from ...kernels.epilogue.chain import ColumnGroup, Epilogue, EpilogueOperand, Quantize, ReductionStep, RowReduce
from ...kernels.epilogue.numpy_math import mix
from ...kernels.epilogue.places import ColumnGroups, StepPlace, Value
from ...kernels.operands.prologue import Prologue, PrologueElement, PrologueOperand
from ..outputs import Arrays, WritingProduct, one_or_all, stores_c, written_arrays
from ..product import Product
from ..reference import finish, multiply, with_rank
from .math import JaxMath, Number
from .product import FunctionProduct
from .reductions import reduced, seen

Multiply = Callable[[Product, jax.Array, jax.Array], jax.Array]  # float32 sums


class JaxElement:
    """The place of an epilogue's step: coordinates of C, operands and operations.

    visited  True for the elements in an order's tiles: no others are reduced or written; None for all
    groups   of rows: the group of each, and their number. Columns are reduced in each group
    """

    math = JaxMath

    def __init__(
        self, shape: tuple[int, ...], values: Mapping[str, Number], visited: jax.Array | None = None,
        groups: tuple[jax.Array, int] | None = None,
    ):  # fmt: skip
        self.i, self.j = (jnp.arange(n, dtype=jnp.int32) for n in shape[-2:])
        self.i, self.j = with_rank(self.i[:, None], len(shape)), with_rank(self.j[None, :], len(shape))
        self._values = {
            name: x if isinstance(x, (int, float)) else with_rank(x, len(shape)) for name, x in values.items()
        }
        self._shape, self._visited, self._groups = shape, visited, groups
        self.written: dict[str, jax.Array] = {}

    def spread(self, x: Value) -> jax.Array:
        """A value of each element, in float32."""
        return jnp.broadcast_to(jnp.asarray(x, jnp.float32), self._shape)

    def write(self, name: str, x: Value) -> None:
        """Keep a matrix: zeros beside the order's tiles."""
        value = self.spread(x)
        self.written[name] = value if self._visited is None else jnp.where(self._visited, value, 0.0)

    def reduce(self, step: ReductionStep, x: Value) -> None:
        """Keep a reduction's results."""
        results = reduced(step, self.spread(x), (self.i, self.j), self._visited, self._groups, self.read)
        self.written |= dict(zip([x.name for x in step.given], step.outputs(results, jnp.stack), strict=True))

    def quantized(self, step: Quantize, x: Value) -> jax.Array:
        """Values scaled to the range of C's type; the scales are kept."""
        wide = self.spread(x)
        most = RowReduce("amax", step.name, each=step.each)
        (amax,) = reduced(most, wide, (self.i, self.j), self._visited, None)
        # Behind a barrier: XLA would multiply by a constant's inverse, which rounds otherwise.
        largest, one = jax.lax.optimization_barrier((jnp.float32(step.most), jnp.float32(1)))
        amax = jnp.maximum(amax, jnp.float32(step.least))
        scales, inverse = amax / largest, one / amax * largest
        self.written[step.name] = scales if self._visited is None else jnp.where(seen(most, self._visited), scales, 0.0)
        return wide * jnp.repeat(inverse, step.each, -1)[..., : wide.shape[-1]]

    def grouped(self, step: ColumnGroup, x: Value) -> jax.Array:
        """The function of each group of columns."""
        at, x = ColumnGroups(step, cast(StepPlace, self)), self.spread(x)
        shape = at.member(x, 0).shape
        return jnp.stack([jnp.broadcast_to(each, shape) for each in at.results(x)], -2).reshape(x.shape)

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
        operand.name: with_rank(
            jnp.expand_dims(operands[operand.name].astype(jnp.float32), -1 if operand.axis == "m" else -2), a.ndim
        )
        for operand in prologue.operands
    }
    place = PrologueElement(with_rank(rows[:, None], a.ndim), with_rank(columns[None, :], a.ndim), values, JaxMath)
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


def computed(product: FunctionProduct, *arrays: jax.Array) -> Arrays:
    """The product by jax; arrays are a, b, then the functions' operands."""
    return with_sums(product, lambda of, a, b: multiply(of, a, b), *arrays)


def with_sums(product: FunctionProduct, multiplied: Multiply, *arrays: jax.Array) -> Arrays:
    """The functions by jax, around a product of their own."""
    a, b, *others = arrays
    operands = dict(zip([operand.name for operand in product.operands], others, strict=True))
    if product.prologue is not None:
        a = applied(product.prologue, jnp.swapaxes(a, -1, -2) if product.turned[0] else a, operands)
    sums = multiplied(sums_of(product, str(a.dtype)), a, b)
    if product.epilogue is None:
        return finish(sums, None, None, product.types[2])
    own = {x.name: spread(x, operands[x.name]) for x in product.operands if not isinstance(x, PrologueOperand)}
    at = JaxElement(sums.shape, {**dict(product.numbers), **own})
    return finished_outputs(product, with_steps(product.epilogue, sums, at), at.written)


def finished_outputs(product: WritingProduct, c: jax.Array, written: Mapping[str, jax.Array]) -> Arrays:
    """The results, each rounded once to its type."""
    stored = [finish(c, None, None, product.types[2])] * stores_c(product)
    own = [finish(written[x.name], None, None, kind).reshape(shape) for x, (shape, kind) in written_arrays(product)]
    return one_or_all([*stored, *own])


def spread(operand: EpilogueOperand, x: jax.Array) -> jax.Array:
    """An epilogue's operand in float32, to broadcast along C.

    >>> from layoutgemm.kernels.epilogue.chain import Bias
    >>> spread(Bias("m").given[0], jnp.arange(3)).shape
    (3, 1)
    """
    axis = {"m": -1, "n": -2}.get(operand.axes)
    x = x.astype(jnp.int32 if operand.dtype.kind == "int" else jnp.float32)
    x = x if operand.axes else x.reshape(())
    return x if axis is None else jnp.expand_dims(x, axis)


def with_steps(epilogue: Epilogue, sums: jax.Array, at: JaxElement) -> jax.Array:
    """The steps on float32 sums, at all elements of C."""
    return at.spread(epilogue.apply(sums, cast(StepPlace, at)))
