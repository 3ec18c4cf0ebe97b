"""A product of JAX arrays as a value: what a trace knows of it. Nothing here imports jax.

shapes and types of a, b and bias  --checked-->  Product (hashable)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..arguments import nearest, shown
from ..dtypes import dtype, multiply_together, way_to_alike
from ..errors import OperandError, TensorError
from ..kernels.epilogue.chain import ACTIVATIONS
from ..kernels.epilogue.steps import other_name
from ..kernels.operands.gated import GATES, HALVES
from ..torch_op.problem import C_TYPES, Ints, broadcast, half

# JAX's types and the names that plans use for them. float32 is multiplied as tf32.
NAMES: Mapping[str, str] = {
    "bfloat16": "bf16", "float16": "f16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "float32": "tf32",
    "int8": "i8", "uint8": "u8",
}  # fmt: skip
C_NAMES: Mapping[str, str] = {**NAMES, "float32": "f32", "int32": "i32"}
TYPES: Mapping[str, str] = {name: kind for kind, name in C_NAMES.items()}
BIASES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Product:
    """activation(A @ B + bias) of matrices, or of batches of them, which broadcast.

    a, b        shapes as the arrays have them: (..., m, k) and (..., k, n), the last two exchanged where `turned`
    types       of a, b and of the result, as JAX names them
    turned      whether a, and whether b, holds the transposes of the matrices that are multiplied
    bias        the type of a vector of b's columns, or None
    activation  a name, or None. A gate's b is [gate | up], of twice the result's columns
    """

    a: Ints
    b: Ints
    types: tuple[str, str, str]
    turned: tuple[bool, bool] = (False, False)
    bias: str | None = None
    activation: str | None = None

    @property
    def gate(self) -> str | None:
        """The function of a gate, or None."""
        return gate_of(self.activation)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n, k; n is the result's columns."""
        m, k = self.a[-2:][::-1] if self.turned[0] else self.a[-2:]
        columns = self.b[-2] if self.turned[1] else self.b[-1]
        return m, columns if self.gate is None else columns // HALVES, k

    @property
    def batch(self) -> Ints:
        """The shape of the result's batch."""
        return broadcast(self.a[:-2], self.b[:-2])

    @property
    def result(self) -> Ints:
        """The result's shape."""
        return (*self.batch, *self.sizes[:2])

    @property
    def outputs(self) -> tuple[tuple[Ints, str], ...]:
        """Shape and type of the result."""
        return ((self.result, self.types[2]),)

    def without_finish(self) -> Product:
        """The sums of all columns alone, in their own type."""
        return replace(self, types=(*self.types[:2], self.wide), bias=None, activation=None)

    @property
    def whole(self) -> bool:
        """True for integers, whose sums are int32."""
        return self.types[0] in ("int8", "uint8")

    @property
    def wide(self) -> str:
        """The type of the sums."""
        return "int32" if self.whole else "float32"


def gate_of(activation: str | None) -> str | None:
    """The function of a gate, or None for an activation that is no gate.

    >>> gate_of("swiglu"), gate_of("relu")
    ('silu', None)
    """
    return None if activation is None else GATES.get(activation)


def check_alike(a: str, b: str) -> None:
    """Raise TensorError, with the way out, unless an instruction multiplies the two types.

    >>> check_alike("float8_e4m3fn", "bfloat16")
    Traceback (most recent call last):
    ...
    layoutgemm.errors.TensorError: a is float8_e4m3fn and b is bfloat16: both have one type, or are 8-bit floats, or \
8-bit integers; convert a to bfloat16, which has all values of float8_e4m3fn
    """
    known = a in NAMES and b in NAMES
    if a == b or (known and multiply_together(dtype(NAMES[a]), dtype(NAMES[b]))):
        return
    off = [name for name, kind in (("a", a), ("b", b)) if kind not in NAMES]
    way = f"convert {' and '.join(off)} to a type of the library's, {', '.join(NAMES)}"
    if known:
        way = way_to_alike(dtype(NAMES[a]), dtype(NAMES[b]), (a, b), "bfloat16")
    raise TensorError(f"a is {a} and b is {b}: both have one type, or are 8-bit floats, or 8-bit integers; {way}")


def check_types(a: str, b: str, allow_tf32: bool) -> None:
    """Raise TensorError or OperandError unless a kernel multiplies arrays of these types.

    >>> check_types("float64", "float64", False)
    Traceback (most recent call last):
    ...
    layoutgemm.errors.OperandError: a and b are float64; this library multiplies bfloat16, float16, float8_e4m3fn, \
float8_e5m2, float32, int8, uint8. jax.numpy.matmul takes float64
    """
    check_alike(a, b)
    if a not in NAMES:
        raise OperandError(f"a and b are {a}; this library multiplies {', '.join(NAMES)}. jax.numpy.matmul takes {a}")
    if a == "float32" and not allow_tf32:
        raise OperandError(
            "a and b are float32, and the tensor cores would round them to tf32 (11 bits of significand): say "
            "allow_tf32=True, convert them to bfloat16 or float16, or use jax.numpy.matmul"
        )


def stored_as(multiplied: str, asked: str | None) -> str:
    """The result's type. Raises OperandError for one that the kernels do not store.

    >>> stored_as("float8_e4m3fn", None), stored_as("int8", "float32")
    ('bfloat16', 'float32')
    """
    possible = [TYPES[name] for name in C_TYPES[NAMES[multiplied]]]
    if asked is not None and asked not in possible:
        raise OperandError(f"out_dtype {asked}: a product of {multiplied} is stored as {', '.join(possible)}")
    return possible[0] if asked is None else asked


def check_shapes(a: Sequence[int], b: Sequence[int], turned: tuple[bool, bool]) -> None:
    """Raise TensorError, with the sizes, unless the shapes of two arrays can be multiplied.

    >>> check_shapes((2, 3), (4, 5), (False, False))
    Traceback (most recent call last):
    ...
    layoutgemm.errors.TensorError: K is 3 in a of shape (2, 3) and 4 in b of shape (4, 5)
    """
    for name, shape, is_turned in (("a", a, turned[0]), ("b", b, turned[1])):
        if not shape:
            raise TensorError(f"{name} is a scalar, of shape (): a product takes vectors, matrices and batches of them")
        if is_turned and len(shape) < 2:
            raise TensorError(f"transpose_{name}=True, and {name} is a vector of shape {tuple(shape)}")
    k = a[-2] if turned[0] else a[-1]
    k_of_b = b[-1] if turned[1] or len(b) == 1 else b[-2]
    if k != k_of_b:
        said = f"K is {k} in a of shape {tuple(a)} and {k_of_b} in b of shape {tuple(b)}"
        raise TensorError(f"{said}{other_way(k, b, turned[1])}")
    for left, right in zip(reversed(a[:-2]), reversed(b[:-2]), strict=False):
        if left != right and 1 not in (left, right):
            raise TensorError(
                f"the batches of a {tuple(a[:-2])} and of b {tuple(b[:-2])} do not broadcast: {left} meets {right}"
            )


def other_way(k: int, b: Sequence[int], turned: bool) -> str:
    """The end of an error. It is the way out where b has K along its other mode."""
    other = len(b) > 1 and b[-2 if turned else -1] == k
    return f"; transpose_b={not turned} reads b as {'(K, N)' if turned else '(N, K)'}" if other else ""


def check_finish(
    bias: tuple[Sequence[int], str] | None, activation: object, columns: int | None, kind: str
) -> str | None:
    """The activation's name. Raises unless bias and activation fit a product that is stored as `kind`.

    bias     shape and type
    columns  of b; None where b is a vector
    """
    if activation is not None and (not isinstance(activation, str) or activation not in (*ACTIVATIONS, *GATES)):
        known = (*ACTIVATIONS, *GATES)
        meant, names = nearest(activation, known), ", ".join(map(repr, known))
        raise OperandError(f"activation {shown(activation)}: {meant}known are {names}{other_name(activation)}")
    if gate_of(activation) is not None:
        half(1 if columns is None else 2, columns or 0)
    if kind == "int32" and (bias is not None or activation is not None):
        what = "a bias" if bias is not None else f"activation {activation!r}"
        raise OperandError(f"{what}, and the product is stored as int32: out_dtype='float32' takes both")
    if bias is not None:
        shape, of_bias = tuple(bias[0]), bias[1]
        if of_bias not in BIASES:
            raise OperandError(f"bias is {of_bias}; it is one of {', '.join(BIASES)}")
        if columns is None or shape != (columns,):
            want = "b is a vector, and the result has no columns" if columns is None else f"b has {columns}"
            raise TensorError(f"bias has shape {shape}: a vector, one number for each column, and {want}")
    return activation


def check_exact(product: Product) -> None:
    """Raise OperandError where sums of integers may leave int32.

    The kernels' sums stop at its ends, and XLA's wrap around.
    """
    if product.whole:
        ends = [np.iinfo(kind) for kind in product.types[:2]]
        k, largest = product.sizes[2], np.iinfo(np.int32).max
        most = max(abs(x * y) for x in (ends[0].min, ends[0].max) for y in (ends[1].min, ends[1].max))
        if k * most > largest:
            raise OperandError(f"K = {k}: sums of up to {k} * {most} = {k * most} leave int32 ({largest} at most)")


def bytes_of(kind: str) -> int:
    """Bytes of an element of a JAX type."""
    return dtype(C_NAMES[kind]).bytes
