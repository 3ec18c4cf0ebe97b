"""Products by torch on the CPU, in float64, rounded once: the reference of every kernel."""

from __future__ import annotations

import torch

_INT32 = -(2**31), 2**31 - 1


def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b in float64; of integers the sums that an int32 accumulator holds, which stop at its ends, as int64.

    float32 is multiplied as it is: tf32 would round it first, to 11 bits of significand.
    """
    value = torch.matmul(a.detach().double(), b.detach().double())
    # of integers exact in float64 up to K = 2**37
    return value if a.dtype.is_floating_point else value.long().clamp(*_INT32)


def multiply(a: torch.Tensor, b: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """a @ b as `kind`: float64 products and sums, one rounding; integers stop at the ends of int32.

    >>> x = torch.full((1, 3), 100, dtype=torch.int8)
    >>> multiply(x, x.T, torch.int32).item()
    30000
    """
    return rounded(exact(a, b), kind)


def rounded(x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """The values as `kind`, rounded once, to nearest even; of 8 bits beyond the range, its end, as in the kernels.

    torch takes float64 and integers to a type of 16 bits or fewer by way of float32, and would round twice. So they go
    to float32 rounded to odd first: of the two neighbours the one whose last bit is 1, which no later tie mistakes.

    >>> x = torch.tensor([1 + 2**-8 + 2**-40], dtype=torch.float64)
    >>> rounded(x, torch.bfloat16).item(), x.bfloat16().item()
    (1.0078125, 1.0)
    """
    if kind.is_floating_point and kind.itemsize == 1:
        x = x.clamp(-torch.finfo(kind).max, torch.finfo(kind).max)
    if not kind.is_floating_point or kind.itemsize > 2 or x.dtype.itemsize <= 2 or x.dtype == torch.float32:
        return x.to(kind)
    wide = x.double()  # exact: integers come from sums of int32
    single = wide.float()
    back = single.double()
    inside = torch.where(back.abs() > wide.abs(), torch.nextafter(single, torch.zeros_like(single)), single)
    odd = (inside.view(torch.int32) | 1).view(torch.float32)
    return torch.where((back != wide) & wide.isfinite(), odd, single).to(kind)
