"""Numbers of plans: index arithmetic, on whatever counts, and vectors of integers that a launch is given."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import OperandError
from ..layouts.int_tuple import Integer

W = TypeVar("W", bound=Integer)  # ints, arrays of them, and integers that a kernel's trace computes


def checked_numbers(name: str, numbers: object, kind: str, count: int) -> npt.NDArray[np.int64]:
    """NumPy integers as int64; raises OperandError for another type ("i32" or "i64") or number of them."""
    found, want = np.asarray(numbers), {"i32": "int32", "i64": "int64"}[kind]
    if found.dtype.name != want or found.shape != (count,):
        raise OperandError(f"{name} is {found.dtype} of shape {found.shape}: it takes {want} of ({count},)")
    return found.astype(np.int64)
