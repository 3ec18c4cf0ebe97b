"""layoutgemm.jax.dot_general, with jax.lax.dot_general's arguments.

It is a product of matrices or of batches of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import DotAlgorithmPreset as Preset

from ..arguments import shown
from ..errors import OperandError, TensorError
from .inputs import array_of, type_name
from .matmul import matmul

TF32 = Preset.TF32_TF32_F32
_TERMS = {Preset.BF16_BF16_F32: "bfloat16", Preset.F16_F16_F32: "float16", TF32: "float32"}  # of a kernel's sums
Dimensions = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


def dot_general(
    a: jax.Array,
    b: jax.Array,
    dimension_numbers: Dimensions,
    precision: object = None,
    preferred_element_type: object = None,
    *,
    out_sharding: object = None,
) -> jax.Array:
    """a times b, with the arguments and the result of jax.lax.dot_general.

    Layers of flax take it as `dot_general=`, and their parameters stay as they are.

    dimension_numbers       ((contracted of a, of b), (batched of a, of b))
    precision               None, a jax.lax.Precision or its name, or the DotAlgorithmPreset of a kernel's sums. float32
                            takes "tensorfloat32" and TF32_TF32_F32 alone
    preferred_element_type  the result's type; default that of jax.lax.dot_general, so float8 for float8

    Neighbouring contracted dimensions, and free ones, are merged. XLA transposes an operand whose contracted
    dimensions are between its free ones, or whose batched ones are not in front.

    Raises TensorError for shapes that do not meet, OperandError for types and precisions that no kernel has.

    >>> import jax.numpy as jnp
    >>> x, w = jnp.ones((2, 3, 4, 8), jnp.bfloat16), jnp.ones((4, 8, 5), jnp.bfloat16)
    >>> dot_general(x, w, (((2, 3), (0, 1)), ((), ())))[0, 0].tolist()
    [32.0, 32.0, 32.0, 32.0, 32.0]
    """
    left, right = array_of("a", a), array_of("b", b)
    if out_sharding is not None:
        raise OperandError(f"out_sharding is {shown(out_sharding)}: constrain the result by jax.reshard")
    tf32 = _multiplies_tf32(precision, left, right)
    asked, name = None if isinstance(precision, Preset) else precision, type_name(preferred_element_type)

    def as_jax(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.dot_general(x, y, dimension_numbers, asked, None if name is None else jnp.dtype(name))

    try:
        (of_left, of_right), (batch, batch_of_right) = dimension_numbers
        # Without shardings: jax would ask for the result's, where contracted dimensions are on axes of a mesh.
        result = jax.eval_shape(as_jax, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (left, right)))
    except (TypeError, ValueError) as error:
        raise TensorError(f"a is {left.dtype}{left.shape} and b is {right.dtype}{right.shape}: {error}") from error
    if result.dtype in ("int8", "uint8"):
        raise OperandError(f"a is {left.dtype}: sums of it leave {result.dtype}; say preferred_element_type=jnp.int32")
    x = _matrices(left, of_left, batch, rows_first=True)
    y = _matrices(right, of_right, batch_of_right, rows_first=False)
    c = matmul(
        x.values, y.values, out_dtype=result.dtype, transpose_a=x.turned, transpose_b=y.turned, allow_tf32=tf32
    )  # fmt: skip
    return c.reshape(result.shape)


class _Matrices(NamedTuple):
    """An operand of `matmul`, and whether it holds the transposes of its matrices."""

    values: jax.Array
    turned: bool


def _matrices(x: jax.Array, contracted: Sequence[int], batched: Sequence[int], rows_first: bool) -> _Matrices:
    """The operand as one matrix for each place of the batch; `rows_first` of A."""
    contracted, batched = ([int(i) % x.ndim for i in each] for each in (contracted, batched))
    free = [i for i in range(x.ndim) if i not in (*contracted, *batched)]
    k_last = not contracted or not free or max(free) < min(contracted)
    k_first = bool(free and contracted) and not k_last and max(contracted) < min(free)
    # A's rows come in front of K and B's columns behind it, unless they lie the other way in memory.
    turned = k_first if rows_first else not k_first
    ordered = (contracted, free) if k_first else (free, contracted)
    values = x.transpose(*batched, *ordered[0], *ordered[1])
    sizes = [prod(x.shape[i] for i in each) for each in ordered]
    if rows_first and not batched and not turned:  # a mesh may have the rows' dimensions on axes of their own
        front = [x.shape[i] for i in free] or [1]
        return _Matrices(values.reshape(*front, sizes[1]), turned)
    front = [prod(x.shape[i] for i in batched)] if batched else []
    return _Matrices(values.reshape(*front, *sizes), turned)


def _multiplies_tf32(precision: object, left: jax.Array, right: jax.Array) -> bool:
    """True where float32 is multiplied as tf32, as the precision says.

    Raises OperandError for a precision that no kernel has.
    """
    types = f"a is {left.dtype} and b is {right.dtype}, with precision {shown(precision)}"
    if isinstance(precision, (Preset, jax.lax.DotAlgorithm)) and precision != Preset.DEFAULT:
        terms = _TERMS.get(precision) if isinstance(precision, Preset) else None
        if terms is None or terms not in (left.dtype, right.dtype):
            known = ", ".join(f"{each.name} of {kind}" for each, kind in _TERMS.items())
            raise OperandError(f"{types}: of algorithms known are {known}")
    tf32 = precision == TF32 or precision == "tensorfloat32"
    if "float32" in (left.dtype, right.dtype) and not tf32:
        raise OperandError(
            f"{types}: float32 is multiplied as tf32 where precision='tensorfloat32'; else compute in bfloat16"
        )
    return tf32
