"""torch.ops.layoutgemm.matmul: the product as torch's compiler, autograd, functorch and autocast see it.

    matmul(Tensor a, Tensor b, ScalarType? out_dtype=None, str config="") -> Tensor

a and b have two dimensions or more. `config` is a configuration as `torch_op.config_text` writes it. The gradients are
products too, through the same operator, so they have gradients of their own:

    C = A @ B  -->  dA = dC @ B^T,  dB = A^T @ dC, summed over the dimensions along which A or B was stretched
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import torch

from . import tuned
from .errors import OperandError
from .kernels.sm90_choice import Sm90Choice

NAME = "layoutgemm::matmul"


@torch.library.custom_op(NAME, mutates_args=())
def _matmul(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, config: str = "") -> torch.Tensor:
    from .torch_checks import check_tensors, output_type
    from .torch_op import product

    check_tensors(a, b, True)
    return product(a, b, output_type(a, b, out_dtype), configured(config))


@functools.lru_cache(256)
def configured(text: str) -> Sm90Choice | None:
    """The configuration that `torch_op.config_text` wrote. Raises OperandError for a text of no configuration."""
    if not text:
        return None
    found = tuned.choice_of(json.loads(text))
    if found is None:
        raise OperandError(f"config {text!r} is no configuration")
    return found


@_matmul.register_fake
def _(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, config: str = "") -> torch.Tensor:
    from .torch_checks import output_type

    torch._check(
        a.shape[-1] == b.shape[-2],
        lambda: "mat1 and mat2 shapes cannot be multiplied "
        f"({a.shape[-2]}x{a.shape[-1]} and {b.shape[-2]}x{b.shape[-1]})",
    )
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]), dtype=output_type(a, b, out_dtype))


def _setup(ctx: Any, inputs: Sequence[Any], output: torch.Tensor) -> None:
    a, b, _, _ = inputs
    ctx.save_for_backward(a, b)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
    a, b = ctx.saved_tensors
    wants_a, wants_b = ctx.needs_input_grad[:2]
    if a.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise OperandError(f"{a.dtype} products have no gradient here: gradients of that type would be too coarse")
    grad = grad.to(a.dtype)
    left = _summed(grad, b.mT, a) if wants_a else None
    right = _summed(a.mT, grad, b) if wants_b else None
    return left, right, None, None


def _summed(left: torch.Tensor, right: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """left @ right, summed to the shape of `like`, of its type; sums in float32.

    For a matrix that all of a batch shares, the sum is part of the product: batch and rows are one long K.
    """
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    if like.shape[:-2] == batch:
        return differentiable(left, right, like.dtype)
    if like.ndim == 2 and left.shape[:-2] == right.shape[:-2]:
        # (..., m, k) @ (..., k, n) over all of the batch: (m, batch * k) @ (batch * k, n)
        return differentiable(left.mT.flatten(0, -2).mT, right.flatten(0, -2), like.dtype)
    return differentiable(left, right, torch.float32).sum_to_size(like.shape).to(like.dtype)


_matmul.register_autograd(_backward, setup_context=_setup)


@_matmul.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], a: torch.Tensor, b: torch.Tensor,
    out_dtype: torch.dtype | None = None, config: str = "",
) -> tuple[torch.Tensor, int]:  # fmt: skip
    return torch.ops.layoutgemm.matmul(*aligned(in_dims, a, b), out_dtype, config), 0


def aligned(in_dims: Sequence[int | None], *operands: torch.Tensor) -> list[torch.Tensor]:
    """The mapped dimension in front of all others; an operand that is not mapped is stretched along it."""
    moved = [x if at is None else x.movedim(at, 0) for x, at in zip(operands, in_dims)]
    ranks = [x.ndim - (at is not None) for x, at in zip(moved, in_dims)]
    out = []
    for x, at, rank in zip(moved, in_dims, ranks):
        missing = max(ranks) - rank
        out.append(x if at is None or not missing else x.reshape(x.shape[0], *(1,) * missing, *x.shape[1:]))
    return out


class _Product(torch.autograd.Function):
    """The operator where torch.func's transforms are active: they take an operator's batching rule, not its
    gradient."""

    @staticmethod
    def forward(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None, config: str) -> torch.Tensor:
        return torch.ops.layoutgemm.matmul(a, b, out_dtype, config)

    setup_context = staticmethod(_setup)
    backward = staticmethod(_backward)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], a: torch.Tensor, b: torch.Tensor, out_dtype: Any, config: str
    ) -> tuple[torch.Tensor, int]:
        x, y = aligned(in_dims, a, b)
        return differentiable(x, y, out_dtype, config), 0


def differentiable(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, config: str = ""
) -> torch.Tensor:
    """The operator, by the way that whoever looks on can differentiate."""
    if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
        return _Product.apply(a, b, out_dtype, config)
    return torch.ops.layoutgemm.matmul(a, b, out_dtype, config)


# Under autocast the operator takes its operands in the region's type, as torch.matmul does. `matmul` has done so
# already where it was called; this is for torch.ops.layoutgemm.matmul by name.
_library = torch.library.Library("layoutgemm", "FRAGMENT")


def _under_autocast(key: torch._C.DispatchKey) -> Any:
    def run(
        a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, config: str = ""
    ) -> torch.Tensor:
        from .torch_op import autocast

        a, b = autocast(a, b)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return torch.ops.layoutgemm.matmul(a, b, out_dtype, config)

    return run


for _device in ("CUDA", "CPU"):
    _library.impl("matmul", _under_autocast(getattr(torch._C.DispatchKey, f"Autocast{_device}")), f"Autocast{_device}")
