"""The gradients of a product's operands as products themselves.

    C = A @ B  -->  dA = dC @ B^T, dB = A^T @ dC, summed over the dimensions along which A or B was stretched

A gradient lies in memory as its operand does: an operand with contiguous columns gets the transpose of a product with
contiguous rows. torch.mm's gradients do the same, and autograd then keeps the gradient of a transposed weight as the
weight's `.grad` without a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from ...errors import OperandError

Multiply = Callable[[torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor]


class DerivedProduct(NamedTuple):
    """A gradient as one product.

    left, right  its operands; views of the tensors that were given, unless flattening a batch had to copy
    transposed   whether the gradient is the product's transpose
    """

    left: torch.Tensor
    right: torch.Tensor
    transposed: bool


def gradients(
    a: torch.Tensor, b: torch.Tensor, wanted: tuple[bool, bool], grad: torch.Tensor | None, multiply: Multiply
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The gradients of A and B that are wanted, by products. DC @ B^T and A^T @ dC.

    a, b  of the one whose gradient alone is wanted, only shape, strides and type are read

    Raises OperandError for types without gradients.
    """
    wants_a, wants_b = wanted
    if grad is None or not (wants_a or wants_b):
        return None, None
    check_derivable(a)
    grad = dense(grad.to(a.dtype))
    left = _gradient(grad, b.mT, a, multiply) if wants_a else None
    right = _gradient(a.mT, grad, b, multiply) if wants_b else None
    return left, right


def check_derivable(a: torch.Tensor) -> None:
    """Raise OperandError for types without gradients."""
    if a.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise OperandError(f"{a.dtype} products have no gradient here: gradients of that type would be too coarse")


def stand_in(x: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape, strides and type, without memory: no gradient reads it.

    >>> stand_in(torch.ones(2, 3).T).stride()
    (1, 3)
    """
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def dense(grad: torch.Tensor) -> torch.Tensor:
    """The gradient, copied once where it is stretched, as that of a sum is. Otherwise each product would copy it.

    >>> dense(torch.ones(()).expand(2, 3)).stride()
    (3, 1)
    """
    return grad.contiguous() if is_stretched(grad) else grad


def is_stretched(x: torch.Tensor) -> bool:
    """True if the elements of a dimension share an address."""
    return 0 in x.stride() and any(step == 0 and size != 1 for size, step in zip(x.shape, x.stride()))


def derived_product(left: torch.Tensor, right: torch.Tensor, like: torch.Tensor) -> DerivedProduct | None:
    """The gradient left @ right of `like` as one product. None where one has to be summed afterwards.

    For a matrix that all of a batch shares, the sum is part of the product: batch and rows are one long K.

    >>> grad, weight = torch.ones(2, 4, 8), torch.ones(8, 16).mT
    >>> made = derived_product(torch.ones(2, 4, 16).mT, grad, weight)
    >>> made.left.shape, made.right.shape, made.transposed
    (torch.Size([8, 8]), torch.Size([8, 16]), True)
    """
    if like.ndim == 2 and left.ndim > 2 and left.shape[:-2] == right.shape[:-2] and _is_one_matrix(left, right):
        # (..., m, k) @ (..., k, n) over all of the batch: (m, batch * k) @ (batch * k, n)
        left, right = _rows_of(left.mT).mT, _rows_of(right)
    elif like.shape[:-2] != torch.broadcast_shapes(left.shape[:-2], right.shape[:-2]):
        return None
    if like.stride(-2) == 1 and like.stride(-1) != 1:
        return DerivedProduct(right.mT, left.mT, True)
    return DerivedProduct(left, right, False)


def _is_one_matrix(*operands: torch.Tensor) -> bool:
    """False for a DTensor whose batch is cut into parts of different sizes: DTensor does not flatten one."""
    for x in operands:
        for at, placement in enumerate(getattr(x, "placements", ())):
            if placement.is_shard() and placement.dim < x.ndim - 1 and x.shape[placement.dim] % x.device_mesh.size(at):
                return False
    return True


def _rows_of(x: torch.Tensor) -> torch.Tensor:
    """All rows of a batch as one matrix; the vmap of `is_grads_batched=True` has this operator, and not `flatten`."""
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _gradient(left: torch.Tensor, right: torch.Tensor, like: torch.Tensor, multiply: Multiply) -> torch.Tensor:
    """left @ right, summed to the shape of `like`, of its type; sums in float32."""
    made = derived_product(left, right, like)
    if made is None:
        return multiply(left, right, torch.float32).sum_to_size(like.shape).to(like.dtype)
    value = multiply(made.left, made.right, like.dtype)
    return value.mT if made.transposed else value
