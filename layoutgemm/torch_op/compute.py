"""Products of plain tensors that have been checked, computed now. A kernel does it, or the CPU in float64.

    product           a @ b                                one launch
    finished_product  activation(a @ b + bias)             one launch where the kernel takes them, else torch finishes
    scaled_product    alpha * a @ b + beta * c             likewise
    gated_product     act(a @ gate) * (a @ up)             likewise

What torch finishes was written in float32, or in int32, and is rounded once.
"""

from __future__ import annotations

import torch

from .bias_activation import by_torch, fused, fused_gemm, gate_by_torch, gated_finish, scaled_by_torch
from .prepared import Config, fuses, launched, on_gpu, problem_at
from .problem import half, shapes_of
from .reference import exact, multiply
from .solver import why_unfused
from .types import Scalar


def product(
    a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, config: Config | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """a @ b, stored as `kind`: a new tensor, or `out`."""
    shapes = shapes_of(a.shape, b.shape)
    if 0 in (*shapes.result, shapes.k):
        # torch: an empty sum is 0
        return torch.zeros(shapes.result, dtype=kind, device=a.device) if out is None else out.zero_()
    if not on_gpu(a.get_device()):
        value = multiply(a, b, kind)
        return value if out is None else out.copy_(value)
    return launched(a, b, kind, config, out)


def wide_type(kind: torch.dtype) -> torch.dtype:
    """The type of the sums of products of that type, before they are rounded."""
    return torch.float32 if kind.is_floating_point else torch.int32


def sums(a: torch.Tensor, b: torch.Tensor, config: Config | None) -> torch.Tensor:
    """a @ b before it is finished and rounded. It is in float32 or int32, on the CPU in float64 or int64."""
    return product(a, b, wide_type(a.dtype), config) if on_gpu(a.get_device()) else exact(a, b)


def finished_product(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None, kind: torch.dtype,
    config: Config | None = None, out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """activation(a @ b + bias), stored as `kind`: a new tensor, or `out`."""
    if bias is None and activation is None:
        return product(a, b, kind, config, out)
    bias = None if bias is None else bias.resolve_neg()
    if on_gpu(a.get_device()) and fuses(a.get_device(), kind, config) and b.ndim > 1 and 0 not in (*a.shape, *b.shape):
        finish = fused(bias, activation, kind, b.shape[-1])
        if finish is not None:
            return launched(a, b, kind, config, out, finish)
    value = by_torch(sums(a, b, config), bias, activation, kind)
    return value if out is None else out.copy_(value)


def scaled_product(
    alpha: Scalar, a: torch.Tensor, b: torch.Tensor, beta: Scalar, c: torch.Tensor | None, kind: torch.dtype,
    config: Config | None = None, out: torch.Tensor | None = None, in_place: bool = False,
) -> torch.Tensor:  # fmt: skip
    """alpha * (a @ b) + beta * c, stored as `kind`. It is a new tensor, or `out`; `in_place` where that is c itself."""
    if on_gpu(a.get_device()) and fuses(a.get_device(), kind, config) and 0 not in (*a.shape, *b.shape):
        shape = shapes_of(a.shape, b.shape).result
        c = None if c is None else c.resolve_neg()  # a copy lives until the launch
        finish = fused_gemm(alpha, beta, c, in_place, kind, shape)
        if finish is not None:
            return launched(a, b, kind, config, out, finish)
    value = scaled_by_torch(sums(a, b, config), alpha, beta, c, kind)
    return value if out is None else out.copy_(value)


def gated_product(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str, kind: torch.dtype,
    config: Config | None = None, out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The gated product, stored as `kind`: a new tensor, or `out`. Raises TensorError for columns of an odd number."""
    half(b.ndim, b.shape[-1])
    if bias is None and on_gpu(a.get_device()) and 0 not in (*a.shape, *b.shape):
        finish = gated_finish(activation)
        if not why_unfused(problem_at(a, b, kind, config, out, finish)):
            return launched(a, b, kind, config, out, finish)
    with torch.no_grad():
        wide = product(a, b, torch.float32, config) if on_gpu(a.get_device()) else exact(a, b).double()
        value = gate_by_torch(wide, bias, activation, kind)
    return value if out is None else out.copy_(value)
