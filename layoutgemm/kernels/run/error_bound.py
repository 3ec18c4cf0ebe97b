"""The bound on the rounding error of a product. All checks of kernels and benchmarks take it from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from ...arguments import checked
from ...dtypes import DType, f32, tf32
from ...errors import OperandError, PlanError
from ..operands.combinations import Asked
from ..plan import GemmPlan
from ..sm90.plan import Sm90Plan

# Of a sum of products and the old accumulator, what an instruction may cut off each term, relative to the largest: f32
# keeps 24 bits, and the products of 8-bit types are added with 14 (DeepSeek-V3 Technical Report, 3.5.2; H800).
_CUT = {8: 2.0**-13, 16: 2.0**-23, 32: 2.0**-23}

if TYPE_CHECKING:
    import torch

Array = TypeVar("Array", npt.NDArray[np.float64], "torch.Tensor")


def sum_error(bits: int, k: int, depth: int | None = None, split: int = 1) -> float:
    """The largest error of a sum of products, relative to the sum of their magnitudes.

    bits   of an element of A and B
    depth  products that one instruction adds: by default those of 256 bits of K, as all instructions here but m16n8k8
    split  parts of K, whose sums are added in f32

    E of `error_bound`: ((d + 1) * T * u + (s - 1) * 2**-23).

    >>> sum_error(16, 64) == 17 * 4 * 2**-23, sum_error(8, 128) == 33 * 4 * 2**-13
    (True, True)
    """
    each = depth or 256 // bits
    return (each + 1) * -(-k // each) * _CUT[bits] + (split - 1) * 2 * f32.unit_roundoff


def rounded_error(error: Array, exact: Array, kind: DType) -> Array:
    """The error bound after rounding a value to a float type.

    error, exact   of the value before it is rounded; float64, NumPy arrays or torch tensors

    E + r * (|exact| + E) + t / 2 of `error_bound`.

    >>> from layoutgemm.dtypes import bf16
    >>> rounded_error(np.array([0.0, 0.0]), np.array([1.0, -4.0]), bf16).tolist()
    [0.00390625, 0.015625]
    """
    least = float(kind.decode(np.array([1]))[0])
    return error + kind.unit_roundoff * (abs(exact) + error) + least / 2


@checked(OperandError)
def error_bound(plan: GemmPlan, a: np.ndarray, b: np.ndarray) -> npt.NDArray[np.float64]:
    """The bound on each element's error from f32 accumulation and rounding to C's type.

    For inputs exactly representable in A's and B's type, products are exact in f32. Each instruction of depth d adds d
    products and the old accumulator. Each of the d + 1 terms is cut to the significand of the largest, which costs `u`
    of it at most. Partial sums of a K in s parts are added in f32. So for T = ceil(K / d) instructions and float types

        |C - exact| <= E = ((d + 1) * T * u + (s - 1) * 2**-23) * (|A| @ |B|)

        A and B     d     u
        16 bits    16     2**-23
        8 bits     32     2**-13
        tf32        8     2**-23

    For tf32, A and B are float32 values, which the copies round to A' and B'. E is of those, plus |A - A'| @ |B| + |A'|
    @ |B - B'|, at most (2**-10 + 2**-22) * (|A| @ |B|). Sums of integers are exact, or stop at the ends of int32: E is
    0 for an i32 C, and for others 2**-24 * |exact|, of sums that did not stop.

    And for a narrower C of unit roundoff r (bf16 2**-8, f16 2**-11, e4m3 2**-4, e5m2 2**-3) and smallest positive value
    t, E + r * (|exact| + E) + t / 2. Values must be finite, and C within its type's range. The bound is a worst case:
    rounding errors cancel, and a typical error is far below it. Raises PlanError for a gated product, which is no sum,
    and for a main loop of its own.
    """
    if isinstance(plan, Asked) and plan.gated is not None:
        raise PlanError(f"the bound is of sums of products; the plan's are {plan.gated}")
    if isinstance(plan, Asked) and plan.mainloop is not None:
        raise PlanError("the bound is of sums of products; the plan has a main loop of its own")
    a64, b64 = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if plan.mma.c_dtype.kind == "int" and plan.c.dtype.kind == "int":
        return np.zeros((*a64.shape[:-1], b64.shape[-1]))
    if plan.a.dtype == tf32:
        near_a, near_b = (np.asarray(tf32.decode(tf32.encode(x)), dtype=np.float64) for x in (a64, b64))
        given = np.abs(a64 - near_a) @ np.abs(b64) + np.abs(near_a) @ np.abs(b64 - near_b)
        exact, a64, b64 = a64 @ b64, near_a, near_b
    else:
        given, exact = 0.0, a64 @ b64
    if plan.mma.c_dtype.kind == "int":
        bound = f32.unit_roundoff * np.abs(exact)
    else:
        split = plan.config.split if isinstance(plan, Sm90Plan) else 1
        bound = sum_error(plan.a.dtype.bits, plan.k, plan.mma.shape_mnk[2], split) * (np.abs(a64) @ np.abs(b64)) + given
    if plan.c.dtype != f32:
        bound = rounded_error(bound, exact, plan.c.dtype)
    return np.asarray(bound)
