"""Gated products of torch tensors: matmul(a, b, activation="swiglu"), in one kernel where there is one, else by torch.

    b: (K, 2n) = [gate | up]          C = act(a @ gate) * (a @ up), of n columns

The kernel is that of `kernels.sm90_gated`: a K-major b, floats stored. Otherwise the product of all 2n columns is
written in float32, and torch gates it: where gradients are recorded or torch.func transforms, with a bias, for a b with
contiguous rows, on GPUs without wgmma, on the CPU.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .errors import LayoutError, OperandError
from .torch_finish import ACTIVATIONS, GATES, Finish
from .torch_library import aligned, configured
from .torch_problem import Problem, gated_shapes, solve

__all__ = ["GATES", "check_gated_type", "gate_by_torch", "gated_finish", "gated_operator", "why_unfused"]


def check_gated_type(kind: torch.dtype) -> None:
    """Raise OperandError for a product that is stored as integers."""
    if not kind.is_floating_point:
        raise OperandError(f"the product is {kind}, and gating computes in float32: say out_dtype=torch.float32")


@functools.lru_cache(16)
def gated_finish(activation: str) -> Finish:
    """What the kernel does for it, as a launch is kept and found again."""
    return Finish(None, (), (None, activation), gated=GATES[activation])


@functools.lru_cache(4096)
def why_unfused(problem: Problem) -> str:
    """Why no kernel does a gated problem in one, or "".

    >>> from layoutgemm.torch_problem import Given
    >>> a, b, c = (Given(shape, (shape[1], 1), "bf16") for shape in ((64, 64), (64, 128), (64, 64)))
    >>> why_unfused(Problem(a, b, c, gated="silu"))
    "b: rows of 128 contiguous elements; a gated product's kernel reads a K-major b"
    """
    try:
        solve(problem)
    except LayoutError as error:
        return str(error)
    return ""


def gate_by_torch(
    wide: torch.Tensor, bias: torch.Tensor | None, activation: str, kind: torch.dtype
) -> torch.Tensor:
    """The gated product from that of all columns, which was written in float32; rounded once.

    >>> gate_by_torch(torch.tensor([[0.0, 2.0, 3.0, 5.0]]), torch.ones(4), "swiglu", torch.float32)
    tensor([[ 2.9242, 17.1463]])
    """
    if bias is not None:
        wide = wide + bias
    n = wide.shape[-1] // 2
    return (ACTIVATIONS[GATES[activation]](wide[..., :n]) * wide[..., n:]).to(kind)


# torch.ops.layoutgemm.gated(Tensor a, Tensor b, str activation, ScalarType out_dtype, str config="") -> Tensor: the
# product as torch's compiler and modes see it where nothing is differentiated; a and b of two dimensions or more.
@torch.library.custom_op("layoutgemm::gated", mutates_args=())
def _gated(
    a: torch.Tensor, b: torch.Tensor, activation: str, out_dtype: torch.dtype, config: str = ""
) -> torch.Tensor:
    from .torch_checks import check_tensors, output_type
    from .torch_op import gated_product

    check_tensors(a, b, True)
    return gated_product(a, b, None, activation, output_type(a, b, out_dtype), configured(config))


@_gated.register_fake
def _(
    a: torch.Tensor, b: torch.Tensor, activation: str, out_dtype: torch.dtype, config: str = ""
) -> torch.Tensor:
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"K is {a.shape[-1]} in a and {b.shape[-2]} in b")
    torch._check(b.shape[-1] % 2 == 0, lambda: f"b has {b.shape[-1]} columns: gate and up are an even number")
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*batch, a.shape[-2], b.shape[-1] // 2), dtype=out_dtype)


@_gated.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], a: torch.Tensor, b: torch.Tensor, activation: str,
    out_dtype: torch.dtype, config: str = "",
) -> tuple[torch.Tensor, int]:  # fmt: skip
    return torch.ops.layoutgemm.gated(*aligned(in_dims, a, b), activation, out_dtype, config), 0


def gated_operator(
    a: torch.Tensor, b: torch.Tensor, activation: str, kind: torch.dtype, config: str
) -> torch.Tensor:
    """The operator on shapes that matmul takes."""
    gated_shapes(a.shape, b.shape, GATES[activation])
    value = torch.ops.layoutgemm.gated(a.unsqueeze(0) if a.ndim == 1 else a, b, activation, kind, config)
    return value.squeeze(-2) if a.ndim == 1 else value
