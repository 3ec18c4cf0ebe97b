"""Products by torch on the CPU, in float64, rounded once: the reference of every kernel."""

from __future__ import annotations

import torch

_INT32 = -(2**31), 2**31 - 1
_LOST = 2 ** (53 - 14) - 1  # the bits of a float64 that a significand of 14 bits has no place for


def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b in float64. Of integers the sums that an int32 accumulator holds, which stop at its ends, as int64.

    float32 is multiplied as it is: tf32 would round it first, to 11 bits of significand.
    """
    value = torch.matmul(a.detach().double(), b.detach().double())
    # of integers exact in float64 up to K = 2**37
    return value if a.dtype.is_floating_point else value.long().clamp(*_INT32)


def multiply(a: torch.Tensor, b: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """a @ b as `kind`: float64 products and sums, one rounding. Integers stop at the ends of int32.

    >>> x = torch.full((1, 3), 100, dtype=torch.int8)
    >>> multiply(x, x.T, torch.int32).item()
    30000
    """
    return rounded(exact(a, b), kind)


def rounded(x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """The values as `kind`, rounded once, to nearest even. Of 8 bits beyond the range, its end, as in the kernels.

    torch takes float64 and integers to a type of 16 bits or fewer by way of float32, and would round twice. So their
    significands are cut to 14 bits first, the last of which is set where a bit was lost: no later tie mistakes it. And
    float32 holds 14 bits down to 2**-136, below half of the least number of every such type.

    >>> x = torch.tensor([1 + 2**-8 + 2**-40], dtype=torch.float64)
    >>> rounded(x, torch.bfloat16).item(), x.bfloat16().item()
    (1.0078125, 1.0)
    """
    if kind.is_floating_point and kind.itemsize == 1:
        x = x.clamp(-torch.finfo(kind).max, torch.finfo(kind).max)
    if not kind.is_floating_point or kind.itemsize > 2 or x.dtype.itemsize <= 2 or x.dtype == torch.float32:
        return x.to(kind)
    wide = x.double().resolve_neg()  # exact: integers come from sums of int32
    bits = wide.view(torch.int64)
    odd = bits & _LOST
    odd += _LOST  # a carry into the last bit that stays, where a bit is lost
    odd |= bits
    odd &= ~_LOST
    return odd.view(torch.float64).float().to(kind)
