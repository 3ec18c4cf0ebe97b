"""Arguments of the products of JAX arrays: arrays, flags and types.

array_of("a", x) --> a jax.Array, or a refusal that names it
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from ..arguments import refusal, shown
from ..errors import OperandError, TensorError


def array_of(name: str, x: object) -> jax.Array:
    """A JAX array. NumPy's become one, and so do holders of one, as flax.nnx.Param.

    Raises OperandError for anything else, for types that JAX has not, and for sizes that are symbols.
    """
    if not isinstance(x, (jax.Array, np.ndarray)) and (held := getattr(type(x), "__jax_array__", None)) is not None:
        x = held(x)
    if not isinstance(x, (jax.Array, np.ndarray)):
        raise OperandError(f"{name} is a {type(x).__qualname__}; it is a jax.Array or a NumPy array")
    if isinstance(x, np.ndarray) and x.dtype.kind in "OSUVMm" and not jnp.issubdtype(x.dtype, jnp.number):
        raise OperandError(f"{name} is a NumPy array of {x.dtype}, a type that JAX has not")
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


def known_integers(x: object) -> npt.NDArray[np.int64] | None:
    """Integers that the host has, or None. None is for traced arrays, and for arrays on a GPU, for which it would wait.

    >>> known_integers(np.array([0, 3])).tolist(), known_integers(jnp.array([0, 3])).tolist()
    ([0, 3], [0, 3])
    """
    if isinstance(x, jax.core.Tracer) or not isinstance(x, (jax.Array, np.ndarray)) or x.dtype.kind not in "iu":
        return None
    on_host = isinstance(x, np.ndarray) or (
        x.is_fully_addressable and {each.platform for each in x.devices()} == {"cpu"}
    )
    return np.asarray(x).astype(np.int64) if on_host else None


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
        raise OperandError(f"out_dtype is {shown(asked)}; it is a type, as jnp.float32") from None
