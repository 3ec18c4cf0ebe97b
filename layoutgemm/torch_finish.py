"""What follows a product: bias, activation, alpha and beta, in the kernel where it can be, else by torch.

    matmul(..., bias=, activation=)   Epilogue(Bias(), Activation(...))       act(a @ b + bias)
    gemm(alpha, a, b, beta, c)        Epilogue(Scale(), Residual())           alpha * a @ b + beta * c
    matmul(..., epilogue=, given=)    a user's own: `torch_epilogue`

In the kernel (`kernels.epilogue`) it happens to the float32 sums in registers, and the result is rounded once. By torch
it happens to a product written in float32, and is rounded once as well: where gradients are recorded or somebody else
looks on (autograd, torch.compile, functorch), on the CPU, and for operands that an epilogue does not read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .errors import OperandError, TensorError
from .kernels.epilogue import ACTIVATIONS as IN_KERNEL
from .kernels.epilogue import Activation, Bias, Epilogue, Residual, Scale, Step
from .kernels.epilogue_words import Placed, words_of
from .torch_launch import C_NAMES

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
GATES = {"swiglu": "silu", "geglu": "gelu"}  # of gated products (`torch_gated`): what the gate goes through
_READ = (torch.float32, torch.bfloat16, torch.float16)  # types of what an epilogue reads


class Finish(NamedTuple):
    """What the kernel does with the sums: the epilogue, its words at this launch, and what tells it from others.

    apart  each matrix of a batch stays one: the epilogue has something of its own for each row, or for each matrix
    gated  what gates the product, in place of an epilogue
    """

    epilogue: Epilogue | None
    words: tuple[Any, ...]
    key: tuple[Any, ...]
    apart: bool = False
    gated: str | None = None


def check_finish(
    bias: torch.Tensor | None, activation: str | None, shape: tuple[int, ...], device: Any, kind: torch.dtype
) -> None:
    """Raise unless the bias is a vector along the product's last dimension, the activation is known, and a result that
    is stored in integers cuts off nothing of either."""
    if activation is not None and activation not in ACTIVATIONS:
        raise OperandError(f"activation {activation!r}: known are {', '.join(map(repr, (*ACTIVATIONS, *GATES)))}")
    what = ""
    if bias is not None and bias.is_floating_point():
        what = f"bias is {bias.dtype}"
    elif activation not in (None, "relu"):
        what = f"activation {activation!r} gives fractions, or more than {kind} holds"
    if what and not kind.is_floating_point:
        raise OperandError(f"{what}, and the product is stored as {kind}: out_dtype=torch.float32 keeps them")
    if bias is None:
        return
    if bias.ndim != 1 or not shape or bias.shape[0] != shape[-1]:
        raise TensorError(f"bias of shape {list(bias.shape)} does not fit a product of shape {list(shape)}")
    if bias.device != device:
        raise TensorError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{device} and {bias.device}!"
        )


def scalars_of(alpha: Any, beta: Any, kind: torch.dtype) -> tuple[Any, Any]:
    """alpha and beta for a result of that type: of integers whole numbers, so that nothing is rounded on the way.

    Raises OperandError where integers would cut off what they are scaled to.

    >>> scalars_of(2.0, 0.5, torch.float32), scalars_of(2.0, 0.0, torch.int32)
    ((2.0, 0.5), (2, 0))
    """
    if kind.is_floating_point:
        return alpha, beta
    found = [int(x) if isinstance(x, float) and x.is_integer() else x for x in (alpha, beta)]
    for name, x in zip(("alpha", "beta"), found, strict=True):
        if not (isinstance(x, int) or (isinstance(x, torch.Tensor) and not x.is_floating_point())):
            raise OperandError(f"{name} = {x!r} of a result stored as {kind}: a c of torch.float32 keeps fractions")
    return found[0], found[1]


def by_torch(
    c: torch.Tensor, bias: torch.Tensor | None, activation: str | None, kind: torch.dtype
) -> torch.Tensor:
    """Bias and activation of a product that was written in float32, or of integers in int32, rounded once.

    As in the kernel: sums of integers that are stored as floats become float32 before.
    """
    if kind.is_floating_point:
        c = c.float()
    if bias is not None:
        c = c + bias
    if activation is not None:
        c = ACTIVATIONS[activation](c)
    return c.to(kind)


def fused(
    bias: torch.Tensor | None, activation: str | None, kind: torch.dtype, columns: int
) -> Finish | None:
    """Bias and activation in the kernel, for a product of so many columns; None where it does not take them."""
    if not kind.is_floating_point or (bias is not None and (bias.dtype not in _READ or bias.stride(0) != 1)):
        return None
    at = 0 if bias is None else bias.data_ptr()
    aligned = at % 16 == 0
    epilogue = _epilogue(None if bias is None else C_NAMES[bias.dtype], activation, aligned and columns % 2 == 0)
    words = () if bias is None else (at, 0)
    return Finish(epilogue, words, (*key_of(bias, activation), *(() if aligned else ("off",))))


def key_of(bias: torch.Tensor | None, activation: str | None) -> tuple[Any, ...]:
    """What of a bias and an activation a prepared launch hangs on, for a bias that starts at 16 bytes."""
    return None if bias is None else (bias.shape, bias.stride(), bias.dtype), activation


@functools.lru_cache(256)
def _epilogue(bias: str | None, activation: str | None, pairs: bool) -> Epilogue:
    steps: list[Step] = [] if bias is None else [Bias("n", bias)]
    if activation is not None:
        steps.append(Activation(activation))
    return Epilogue(*steps).in_pairs(pairs)


def fused_gemm(
    alpha: Any, beta: Any, c: torch.Tensor | None, out: torch.Tensor | None, kind: torch.dtype, shape: tuple[int, ...]
) -> Finish | None:
    """alpha and beta * c in the kernel; None where it does not take them.

    It takes Python's numbers, and a matrix of the product's own shape with rows or columns contiguous, apart from out.
    """
    from .torch_checks import share_memory

    numbers = all(isinstance(x, (int, float)) for x in (alpha, beta))
    if not numbers or not kind.is_floating_point or len(shape) != 2:
        return None
    steps: list[Step] = [] if alpha == 1 else [Scale("alpha")]
    given: dict[str, Any] = {} if alpha == 1 else {"alpha": float(alpha)}
    pairs = shape[1] % 2 == 0
    if c is not None and beta != 0:
        order = "row" if c.stride()[1:] == (1,) else "col" if c.stride()[:1] == (1,) else ""
        if tuple(c.shape) != shape or not order or c.dtype not in _READ:
            return None
        if out is not None and share_memory(c, out):
            return None
        leading = c.stride(0 if order == "row" else 1)
        steps.append(Residual(C_NAMES[c.dtype], order))
        given |= {"d": Placed(c.data_ptr(), leading, 0), "beta": float(beta)}
        pairs = pairs and leading % 2 == 0 and c.data_ptr() % (2 * c.element_size()) == 0
    if not steps:
        return None
    epilogue = Epilogue(*steps).in_pairs(pairs)
    return Finish(epilogue, words_of(epilogue, given), (epilogue,))
