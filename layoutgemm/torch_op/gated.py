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

from ..errors import LayoutError, OperandError, TensorError
from .bias_activation import ACTIVATIONS, GATES, Finish
from .checks import output_type
from .library import aligned, check_matrices, configured, fake_shape, with_autograd
from .problem import Problem, gated_shapes, solve
from .reference import rounded

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

    >>> from layoutgemm.torch_op.problem import Given
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
    """The gated product from that of all columns, which was written in float32, or in float64; rounded once.

    >>> gate_by_torch(torch.tensor([[0.0, 2.0, 3.0, 5.0]]), torch.ones(4), "swiglu", torch.float32)
    tensor([[ 2.9242, 17.1463]])
    """
    if bias is not None:
        wide = wide + bias
    n = wide.shape[-1] // 2
    return rounded(ACTIVATIONS[GATES[activation]](wide[..., :n]) * wide[..., n:], kind)


# torch.ops.layoutgemm.gated(Tensor a, Tensor b, str activation, ScalarType out_dtype, str config="",
# bool? allow_tf32=None) -> Tensor: the product as torch's compiler and modes see it where nothing is differentiated; a
# and b of two dimensions or more.
@torch.library.custom_op("layoutgemm::gated", mutates_args=())
def _gated(
    a: torch.Tensor, b: torch.Tensor, activation: str, out_dtype: torch.dtype, config: str = "",
    allow_tf32: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    from .operator import gated_product

    kind = _check_gated(a, b, activation, out_dtype, allow_tf32)
    gated_shapes(a.shape, b.shape, GATES[activation])
    return gated_product(a, b, None, activation, kind, configured(config))


def _check_gated(
    a: torch.Tensor, b: torch.Tensor, activation: str, out_dtype: torch.dtype, allow_tf32: bool | None
) -> torch.dtype:
    check_matrices(a, b, allow_tf32)
    if activation not in GATES:
        raise OperandError(f"activation {activation!r}: of gated products known are {', '.join(map(repr, GATES))}")
    kind = output_type(a, b, out_dtype)
    check_gated_type(kind)
    return kind


@_gated.register_fake
def _(
    a: torch.Tensor, b: torch.Tensor, activation: str, out_dtype: torch.dtype, config: str = "",
    allow_tf32: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    kind = _check_gated(a, b, activation, out_dtype, allow_tf32)
    configured(config)
    columns = b.shape[-1]
    torch._check_with(
        TensorError, columns % 2 == 0, lambda: f"b has {columns} columns: gate and up are an even number"
    )
    *front, n = fake_shape(a, b)
    return a.new_empty((*front, n // 2), dtype=kind)


def _underived(a: torch.Tensor, b: torch.Tensor, *others: Any) -> torch.Tensor:
    raise OperandError("torch.ops.layoutgemm.gated has no derivative; matmul(a, b, activation=) has")


with_autograd("gated", _underived)


@_gated.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], a: torch.Tensor, b: torch.Tensor, activation: str,
    out_dtype: torch.dtype, config: str = "", allow_tf32: bool | None = None,
) -> tuple[torch.Tensor, int]:  # fmt: skip
    return torch.ops.layoutgemm.gated(*aligned(in_dims, a, b), activation, out_dtype, config, allow_tf32), 0


def gated_operator(
    a: torch.Tensor, b: torch.Tensor, activation: str, kind: torch.dtype, config: str
) -> torch.Tensor:
    """The operator on shapes that matmul takes, of operands that have been checked."""
    gated_shapes(a.shape, b.shape, GATES[activation])
    value = torch.ops.layoutgemm.gated(a.unsqueeze(0) if a.ndim == 1 else a, b, activation, kind, config, True)
    return value.squeeze(-2) if a.ndim == 1 else value
