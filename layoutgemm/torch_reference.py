"""The same products by torch on the CPU: in float64, rounded once. What a kernel's result is held against."""

from __future__ import annotations

import torch


def multiply(a: torch.Tensor, b: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """a @ b as `kind`: float64 products and sums, one rounding; integers stop at the ends of int32.

    float32 is multiplied as it is: tf32 would round it first, to 11 bits of significand.

    >>> x = torch.full((1, 3), 100, dtype=torch.int8)
    >>> multiply(x, x.T, torch.int32).item()
    30000
    """
    exact = torch.matmul(a.detach().double(), b.detach().double())
    if not a.dtype.is_floating_point:  # exact in float64 up to K = 2**37
        whole = exact.long().clamp(-(2**31), 2**31 - 1).int()
        return whole if kind == torch.int32 else whole.float().to(kind)
    # To float32 first where torch has no direct way from float64; 8-bit types of the CPU come from float32 as well.
    return exact.to(kind)
