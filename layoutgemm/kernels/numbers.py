"""Numbers of plans. They are index arithmetic, on whatever counts, and vectors of integers that a launch is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..arguments import Integer, as_arithmetic, refusal, shown
from ..errors import OperandError

W = TypeVar("W", bound=Integer)  # ints, arrays of them, and integers that a kernel's trace computes


def check_matrix(name: str, value: npt.NDArray[Any]) -> None:
    """Raise OperandError for an array without rows and columns of numbers."""
    if value.ndim < 2 or value.dtype == object:
        raise OperandError(f"{name} is {value.dtype} of shape {value.shape}: a matrix, or a batch of them")


def check_product(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> None:
    """Raise OperandError for matrices, or batches of them, that have no product."""
    check_matrix("a", a)
    check_matrix("b", b)
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise OperandError(f"a is {a.shape} and b {b.shape}: K is {a.shape[-1]} and {b.shape[-2]}")


def check_broadcast(values: Mapping[str, object]) -> None:
    """Raise OperandError for numbers and arrays whose shapes are not broadcast together."""
    shapes = {name: np.asarray(as_arithmetic(value, shown(name), OperandError)).shape for name, value in values.items()}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        raise OperandError(f"shapes that are not broadcast together: {shown(shapes)}") from None


def float_type(kind: object) -> np.dtype[Any]:
    """A NumPy type of floats. Raises OperandError for another one."""
    try:
        found = np.dtype(kind)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        found = np.dtype(object)
    if found.kind not in "fV" or found.fields is not None or not found.itemsize:  # V: the floats that NumPy lacks
        raise OperandError(refusal(kind, "the type of a reference", "a NumPy type of floats"))
    return found  # type: ignore[no-any-return]


def checked_numbers(name: str, numbers: object, kind: str, count: int) -> npt.NDArray[np.int64]:
    """NumPy integers as int64. Raises OperandError for another type ("i32" or "i64") or number of them."""
    want = {"i32": "int32", "i64": "int64"}[kind]
    if not isinstance(numbers, (np.ndarray, list, tuple)) and not hasattr(type(numbers), "__array__"):
        raise OperandError(refusal(numbers, name, f"an array of {want}"))
    name = shown(name)[1:-1]
    try:
        found = np.asarray(numbers)
    except ValueError as error:  # of rows that differ, or that nest too deep
        raise OperandError(f"{name} is no array of {want}: {error}") from None
    if found.dtype.name != want or found.shape != (count,):
        raise OperandError(f"{name} is {found.dtype} of shape {found.shape}: it takes {want} of ({count},)")
    return found.astype(np.int64)
