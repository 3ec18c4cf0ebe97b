"""layoutgemm.jax.fp8_grouped_matmul: groups of rows in fp8 of wider operands, with gradients in fp8.

Each product quantises its operands along the dimension that it sums over, as `layoutgemm.fp8_grouped_matmul` does:

    product                  left, quantised along    right, quantised along    scales of blocks
    -----------------------  -----------------------  ------------------------  -----------------
    C[g] = A[g] @ B[e]       A (rows, K), K           B^T (E, N, K), K          1x128 by 128x128
    dA[g] = dC[g] @ B[e]^T   dC (rows, N), N          B (E, K, N), N            1x128 by 128x128
    dB[e] = A[g]^T @ dC[g]   A^T (K, rows), rows      dC^T (N, rows), rows      1x128 by 1x128

Tangents have C's rule, with A's or B's tangent in its place: rounding counts as the identity in both modes. Quantising
is XLA's; the products are kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ...arguments import shown
from ...errors import OperandError, TensorError
from ...kernels.epilogue.reduce import FP8_MOST
from ...kernels.fp8.plan import LEAST
from ...kernels.operands.promoted import DEPTH
from ...torch_op.scaled_grouped.recipes import BLOCK, SQUARE
from ..derivatives import saved, summed
from ..inputs import array_of, flag, known_integers, type_name
from ..outputs import Arrays, Shaped, listed
from ..primitive import Operands, Tangents, differentiable_of, one_by_one, varying_alike
from ..product import stored_as
from .api import grouped_matmul
from .product import ALONG_K, ROWS, WIDE, check_offsets

_TRAINED = (*WIDE, "float32")


class TrainedGroups(NamedTuple):
    """A product of groups that quantises its operands.

    form      groups of rows: (rows, K) and (groups, K, N); or of K: (lines, M) and (lines, N)
    multiple  128 for groups of K in fp8, 1 for those in 16 bits
    kind      the result's type
    grad      the type in which the result's gradient is multiplied
    a, b      the operands' shapes
    """

    form: str
    multiple: int
    kind: str
    grad: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    groups: int

    @property
    def outputs(self) -> tuple[Shaped, ...]:
        """Shape and type of the result."""
        shape = (self.groups, self.a[1], self.b[1]) if self.form == ALONG_K else (self.a[0], self.b[2])
        return ((shape, self.kind),)


def fp8_grouped_matmul(
    a: jax.Array,
    b: jax.Array,
    offsets: jax.Array,
    *,
    multiple: int = 1,
    transpose_b: bool = False,
    out_dtype: object = None,
) -> jax.Array:
    """grouped_matmul(a, b, offsets) of rows in float8_e4m3fn with scales, and gradients by such products.

    a, b      (rows, K) and (groups, K, N), bfloat16, float16 or float32; transpose_b: b is (groups, N, K)
    offsets   as `grouped_matmul` has them
    multiple  128 promises groups that begin at multiples of 128, and end there or at the last row: b's gradient is in
              fp8 too, with a scale for each 1x128 of both operands, and NaN where the promise is broken. 1 promises
              nothing: b's gradient is `grouped_matmul`'s of a and the result's gradient, in a's type, of 16 bits;
              with an a of float32 there are no gradients then
    out_dtype default a's type

    Scales are BlockWise1x128 of a and of the result's gradient, BlockWise128x128 of b. Differentiable in both modes,
    any number of times: a tangent is the sum of two such products, each of one operand's tangent. With
    da = max(2**-4 |a|, 2**-10 scale) and db likewise, the sums of a product in fp8 are off by at most the sum over K of
    da |b| + |a| db + da db.

    Raises TensorError for shapes that do not meet, OperandError for types and options without a kernel.

    >>> x, experts = jnp.full((384, 128), 0.5), jnp.ones((2, 128, 3))
    >>> ends = jnp.array([0, 128, 384])
    >>> jax.grad(lambda b: fp8_grouped_matmul(x, b, ends, multiple=128).sum())(experts)[:, 0, 0].tolist()
    [64.0, 128.0]
    """
    left, right, ends = array_of("a", a), array_of("b", b), array_of("offsets", offsets)
    right = jnp.swapaxes(right, -1, -2) if flag("transpose_b", transpose_b) and right.ndim > 1 else right
    for name, x in (("a", left), ("b", right)):
        if str(x.dtype) not in _TRAINED:
            raise OperandError(f"{name} is {x.dtype}: fp8_grouped_matmul quantises {', '.join(_TRAINED)}")
    if left.ndim != 2 or right.ndim != 3 or left.shape[1] != right.shape[1]:
        shapes = f"a and b have shapes {left.shape} and {b.shape}"
        raise TensorError(f"{shapes}: groups of rows are (rows, K) and (groups, {'N, K' if transpose_b else 'K, N'})")
    check_offsets(str(ends.dtype), tuple(ends.shape), right.shape[0], known_integers(offsets), left.shape[0], "rows")
    if type(multiple) is not int or multiple not in (1, DEPTH):
        raise OperandError(f"multiple = {shown(multiple)}: groups begin at any row, 1, or at multiples of {DEPTH}")
    kind = stored_as(str(left.dtype), type_name(out_dtype))
    product = TrainedGroups(ROWS, multiple, kind, kind, tuple(left.shape), tuple(right.shape), right.shape[0])
    found: jax.Array = _compiled(product, *varying_alike(left, right, ends))
    return found


def quantized(x: jax.Array, recipe: str) -> tuple[jax.Array, jax.Array]:
    """float8_e4m3fn values of x (..., M, K) and float32 scales, of 1x128 or of 128x128.

    >>> values, scales = quantized(jnp.array([[1.0, -3.5]]), "BlockWise1x128")
    >>> values.astype(jnp.float32).tolist(), scales.tolist()
    ([[128.0, -448.0]], [[0.0078125]])
    """
    *front, m, k = x.shape
    high, most = DEPTH if recipe == SQUARE else 1, FP8_MOST["e4m3"]
    wide = jnp.pad(x.astype(jnp.float32), [(0, 0)] * len(front) + [(0, -m % high), (0, -k % DEPTH)])
    blocks = wide.reshape(*front, -(-m // high), high, -(-k // DEPTH), DEPTH)
    amax = jnp.maximum(jnp.abs(blocks).max((-3, -1)), LEAST)
    values = jnp.clip(blocks * (1 / amax * most)[..., :, None, :, None], -most, most)
    return values.reshape(wide.shape)[..., :m, :k].astype(jnp.float8_e4m3fn), amax / most


def _of_devices(product: TrainedGroups) -> Callable[..., jax.Array]:
    """The product's function of arrays; over a mesh that of the product in it."""
    return functools.partial(_quantised, product)


def _quantised(product: TrainedGroups, left: jax.Array, right: jax.Array, offsets: jax.Array) -> jax.Array:
    if product.form == ALONG_K and product.multiple == 1:
        return grouped_matmul(left, right, offsets, transpose_a=True, out_dtype=product.kind)
    left = left.T if product.form == ALONG_K else left
    of_right = SQUARE if product.form == ROWS else BLOCK
    (x, scale_x), (y, scale_y) = quantized(left, BLOCK), quantized(jnp.swapaxes(right, -1, -2), of_right)
    return grouped_matmul(
        x, y, offsets, scale_a=scale_x, scale_b=scale_y, recipe_a=BLOCK, recipe_b=of_right, transpose_b=True,
        out_dtype=product.kind,
    )  # fmt: skip


def _mapped(
    multiply: Callable[..., Arrays], product: TrainedGroups, size: int, on: Sequence[bool], *operands: jax.Array
) -> Arrays:
    """The rule for vmap: one call after another, as of other groups."""
    del size
    return one_by_one(multiply, product, on, operands)


def _derived(
    multiply: Callable[..., Arrays], product: TrainedGroups, operands: Operands, tangents: Tangents
) -> tuple[Arrays, Tangents]:
    """The product and its tangent: each tangent times the other operand, in fp8 too."""
    (left, right, offsets), (of_left, of_right, _) = operands, tangents
    wide = product._replace(kind="float32")  # the sum of both is rounded once
    moved = [
        None if of_left is None else multiply(wide, of_left, right, offsets),
        None if of_right is None else multiply(wide, left, of_right, offsets),
    ]
    return saved(multiply(product, *operands)), [summed(moved).astype(product.kind)]


def _transposed(
    product: TrainedGroups, name: str, grad: jax.Array, left: jax.Array, right: jax.Array, offsets: jax.Array
) -> jax.Array:
    """The gradient of an operand. Of the one that is asked for, shape and type alone are read."""
    grad = grad.astype(product.grad)
    if product.form == ALONG_K:
        if name == "a":
            return _product(ROWS, product.multiple, right, jnp.swapaxes(grad, 1, 2), offsets, left)
        return _product(ROWS, product.multiple, left, grad, offsets, right)
    if name == "a":
        return _product(ROWS, product.multiple, grad, jnp.swapaxes(right, 1, 2), offsets, left)
    if product.multiple == 1:
        if str(left.dtype) not in WIDE:
            raise OperandError(
                f"a is {left.dtype}, and b's gradient of groups that begin at any row is a product of "
                f"{' and '.join(WIDE)}: multiple={DEPTH}, with groups at multiples of it, or another type of a"
            )
        grad = grad.astype(left.dtype)
    return _product(ALONG_K, product.multiple, left, grad, offsets, right)


def _product(
    form: str, multiple: int, left: jax.Array, right: jax.Array, offsets: jax.Array, like: jax.Array
) -> jax.Array:
    """A product in the type of `like`, which it is the gradient of."""
    kind, shapes = str(like.dtype), (tuple(left.shape), tuple(right.shape))
    product = TrainedGroups(form, multiple, kind, kind, *shapes, offsets.shape[0] - 1)
    (made,) = listed(_bound(product, left, right, offsets))
    return made


_bound = differentiable_of("layoutgemm_trained", _of_devices, _mapped, _derived, _transposed)
_compiled = jax.jit(_bound, static_argnums=0)
