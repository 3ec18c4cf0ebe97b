"""Bias, activation, alpha and beta: in the kernel where it takes them, else by torch.

    matmul(..., bias=, activation=)   Epilogue(Bias(), Activation(...))       act(a @ b + bias)
    gemm(alpha, a, b, beta, c)        Epilogue(Scale(), Residual())           alpha * a @ b + beta * c
    matmul(..., epilogue=, given=)    a user's own: `torch_op.epilogue`

A kernel's epilogue (`kernels.epilogue`) computes on the float32 accumulators, and rounds the result once. torch
computes on a product in float32, and rounds once as well. It does so under autograd, torch.compile and functorch, on
the CPU, and for operands that an epilogue does not read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ..atoms.copy.base import VECTOR_BYTES
from ..errors import OperandError
from ..kernels.epilogue.chain import ACTIVATIONS as IN_KERNEL
from ..kernels.epilogue.chain import Epilogue, Residual, Scale, Step
from ..kernels.epilogue.parameters import PlacedOperand, words_of
from ..kernels.operands.gated import GATES as GATES
from ..kernels.run.operand_checks import addressed
from ..moved import old_names
from .prepared import LaunchEpilogue, lies_in_units
from .problem import bias_epilogue
from .reference import rounded
from .types import C_NAMES, READ, Scalar

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "relu_sq": lambda x: torch.relu(x).square(),
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
assert set(ACTIVATIONS) == set(IN_KERNEL)
__getattr__ = old_names(__name__)


def by_torch(c: torch.Tensor, bias: torch.Tensor | None, activation: str | None, kind: torch.dtype) -> torch.Tensor:
    """Bias and activation by torch, of a product in float32, float64 or int32, rounded once.

    Raises OperandError for a sum of integers that int32 does not hold, with the first.
    """
    if bias is not None and not (c.dtype.is_floating_point or bias.dtype.is_floating_point):
        c, bias = c.long() + bias.long(), None
        if not kind.is_floating_point:
            c = as_int32(c, "bias")
    if kind.is_floating_point:
        c = c if c.dtype.is_floating_point else c.double()
    if bias is not None:
        c = c + bias
    if activation is not None:
        c = ACTIVATIONS[activation](c)
    return rounded(c, kind)


def as_int32(c: torch.Tensor, said: str) -> torch.Tensor:
    """Sums of int64 as int32.

    said  the operand that is added

    Raises OperandError for a sum that int32 does not hold, with its place. Sums that cannot be read (traced, mapped,
    captured in a CUDA graph) saturate, as the product's own sums do.
    """
    ends = torch.iinfo(torch.int32)
    if addressed(c) and not (c.is_cuda and torch.cuda.is_current_stream_capturing()):
        outside = ((c < ends.min) | (c > ends.max)).nonzero()
        if len(outside):
            at = tuple(outside[0].tolist())
            raise OperandError(f"{said}: the sum at {at} is {c[at].item()}, beyond int32's {ends.min} to {ends.max}")
    return c.clamp(ends.min, ends.max).int()


def scaled_by_torch(
    product: torch.Tensor, alpha: Scalar, beta: Scalar, c: torch.Tensor | None, kind: torch.dtype
) -> torch.Tensor:
    """alpha * product + beta * c, rounded once, of numbers that `scalars_of` gave."""
    if not kind.is_floating_point:
        value = alpha * product.long()
        if c is not None:
            value = value + beta * c.long()
        return as_int32(value, "alpha" if c is None else "alpha, beta and c")
    value = alpha * (product if product.dtype.is_floating_point else product.double())
    if c is not None:
        value = value + beta * c.to(value.dtype)
    return rounded(value, kind)


def fused(bias: torch.Tensor | None, activation: str | None, kind: torch.dtype, columns: int) -> LaunchEpilogue | None:
    """Bias and activation in the kernel, for a product of `columns` columns. None where it does not take them."""
    if not kind.is_floating_point or (bias is not None and (bias.dtype not in READ or bias.stride(0) != 1)):
        return None
    at = 0 if bias is None else bias.data_ptr()
    aligned = at % 16 == 0
    epilogue = bias_epilogue(None if bias is None else C_NAMES[bias.dtype], activation, aligned and columns % 2 == 0)
    words = () if bias is None else (at, 0)
    return LaunchEpilogue(epilogue, words, (*key_of(bias, activation), *(() if aligned else ("off",))))


def key_of(bias: torch.Tensor | None, activation: str | None) -> tuple[object, ...]:
    """Cache key of a bias that is aligned to 16 bytes, and an activation."""
    return None if bias is None else (bias.shape, bias.stride(), bias.dtype), activation


def fused_gemm(
    alpha: Scalar, beta: Scalar, c: torch.Tensor | None, in_place: bool, kind: torch.dtype, shape: tuple[int, ...]
) -> LaunchEpilogue | None:
    """The epilogue of alpha * (a @ b) + beta * c. None if the kernel does not take it.

    The kernel takes Python numbers, and a c of the product's shape with contiguous rows or columns. With `in_place`, c
    is the output.
    """
    if not all(isinstance(x, (int, float)) for x in (alpha, beta)) or not kind.is_floating_point or len(shape) != 2:
        return None
    steps: list[Step] = [] if alpha == 1 else [Scale("alpha")]
    given: dict[str, float | PlacedOperand] = {} if alpha == 1 else {"alpha": float(alpha)}
    pairs, lines = shape[1] % 2 == 0, False
    if c is not None and beta != 0:
        order = "row" if c.stride()[1:] == (1,) else "col" if c.stride()[:1] == (1,) else ""
        if in_place or tuple(c.shape) != shape or not order or c.dtype not in READ:
            return None
        leading = c.stride(0 if order == "row" else 1)
        steps.append(Residual(C_NAMES[c.dtype], order))
        given |= {"d": PlacedOperand(c.data_ptr(), leading, 0), "beta": float(beta)}
        pairs = pairs and lies_in_units(c, 2 * c.element_size(), leading)
        lines = order == "row" and shape[1] % 8 == 0 and lies_in_units(c, VECTOR_BYTES, leading)
    if not steps:
        return None
    epilogue = Epilogue(*steps).in_pairs(pairs, lines)
    return LaunchEpilogue(epilogue, words_of(epilogue, given), (epilogue,))


@functools.lru_cache(16)
def gated_finish(activation: str) -> LaunchEpilogue:
    """A gate in the kernel, as a prepared launch is kept and found again."""
    return LaunchEpilogue(None, (), (None, activation), gated=GATES[activation])


def gate_by_torch(wide: torch.Tensor, bias: torch.Tensor | None, activation: str, kind: torch.dtype) -> torch.Tensor:
    """The gated product by torch, from the product of all columns; rounded once.

    >>> gate_by_torch(torch.tensor([[0.0, 2.0, 3.0, 5.0]]), torch.ones(4), "swiglu", torch.float32)
    tensor([[ 2.9242, 17.1463]])
    """
    if bias is not None:
        wide = wide + bias
    n = wide.shape[-1] // 2
    return rounded(ACTIVATIONS[GATES[activation]](wide[..., :n]) * wide[..., n:], kind)
