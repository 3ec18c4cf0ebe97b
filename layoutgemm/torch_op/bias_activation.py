"""What follows a product: bias, activation, alpha and beta, in the kernel where it can be, else by torch.

    matmul(..., bias=, activation=)   Epilogue(Bias(), Activation(...))       act(a @ b + bias)
    gemm(alpha, a, b, beta, c)        Epilogue(Scale(), Residual())           alpha * a @ b + beta * c
    matmul(..., epilogue=, given=)    a user's own: `torch_op.epilogue`

In the kernel (`kernels.epilogue`) it happens to the float32 sums in registers, and the result is rounded once. By torch
it happens to a product written in float32, and is rounded once as well: where gradients are recorded or somebody else
looks on (autograd, torch.compile, functorch), on the CPU, and for operands that an epilogue does not read.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..errors import OperandError, TensorError
from ..kernels.epilogue.chain import ACTIVATIONS as IN_KERNEL
from ..kernels.epilogue.chain import Activation, Bias, Epilogue, Residual, Scale, Step
from ..kernels.epilogue.parameters import Placed, host_number, words_of
from ..kernels.run.operand_checks import addressed, check_operands, share_memory
from .launch import C_NAMES
from .reference import rounded

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
GATES = {"swiglu": "silu", "geglu": "gelu"}  # of gated products (`torch_op.gated`): what the gate goes through
_READ = (torch.float32, torch.bfloat16, torch.float16)  # types of what an epilogue reads
_WHOLE = (torch.int32, torch.int16, torch.int8, torch.uint8)  # of a bias, and of a c, of integers


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


def check_activation(activation: Any) -> None:
    """Raise OperandError unless the activation is None, or a name that is known."""
    if activation is not None and (
        not isinstance(activation, str) or (activation not in ACTIVATIONS and activation not in GATES)
    ):
        known = ", ".join([repr(name) for name in (*ACTIVATIONS, *GATES)])
        raise OperandError(f"activation {activation!r}: known are {known}")


def check_finish(
    bias: Any, activation: str | None, shape: tuple[int, ...], a: torch.Tensor, kind: torch.dtype
) -> None:
    """Raise unless the bias is a vector along the product's last dimension, of a type that is added as it is, and a
    result that is stored in integers cuts off nothing of either."""
    if bias is not None:
        check_operands({"a": a, "bias": bias})
    what = ""
    if bias is not None and bias.is_floating_point():
        what = f"bias is {bias.dtype}"
    elif activation not in (None, "relu"):
        what = f"activation {activation!r} gives fractions, or more than {kind} holds"
    if what and not kind.is_floating_point:
        raise OperandError(f"{what}, and the product is stored as {kind}: out_dtype=torch.float32 keeps them")
    if bias is None:
        return
    known = (*_READ, *_WHOLE) if kind.is_floating_point else _WHOLE
    if bias.dtype not in known:
        names = ", ".join([str(one).removeprefix("torch.") for one in known])
        raise OperandError(f"bias is {bias.dtype}; to a product that is stored as {kind} it is one of {names}")
    if bias.ndim != 1 or not shape or bias.shape[0] != shape[-1]:
        raise TensorError(f"bias of shape {list(bias.shape)} does not fit a product of shape {list(shape)}")


def scalars_of(alpha: Any, beta: Any, kind: torch.dtype, a: torch.Tensor) -> tuple[Any, Any]:
    """alpha and beta for a result of that type: numbers of float32, of integers whole ones of 32 bits, so that nothing
    is rounded on the way; or tensors of one element, on a's device or the CPU.

    Raises OperandError where integers would cut off what they are scaled to, and for what is no real number.

    >>> x = torch.ones(1)
    >>> scalars_of(2.0, 0.5, torch.float32, x), scalars_of(2.0, 0.0, torch.int32, x)
    ((2.0, 0.5), (2, 0))
    """
    return tuple([_scalar(name, x, kind, a) for name, x in (("alpha", alpha), ("beta", beta))])  # type: ignore[return-value]


def _scalar(name: str, x: Any, kind: torch.dtype, a: torch.Tensor) -> Any:
    whole = not kind.is_floating_point
    fractions = f"of a result stored as {kind}: a c of torch.float32 keeps fractions"
    if isinstance(x, torch.Tensor):
        check_operands({name: x})
        if whole and x.dtype.is_floating_point:
            raise OperandError(f"{name} = {x!r} {fractions}")
        if x.dtype not in ((*_WHOLE, torch.int64) if whole else (*_READ, torch.float64, *_WHOLE)):
            raise OperandError(f"{name} is {x.dtype}, and scales a result stored as {kind}")
        if x.numel() != 1 or x.ndim > 1:
            raise OperandError(f"{name} has shape {list(x.shape)}: a number, or a tensor of one element")
        if x.device != a.device and x.device.type != "cpu":
            raise TensorError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{a.device} and {x.device}: {name} is on {x.device}"
            )
        x = x.reshape(())
        return x.long() if whole else x.float()
    if whole and isinstance(x, numbers.Real):
        number: Any = x
        if not isinstance(number, numbers.Integral) and (not math.isfinite(number) or number != int(number)):
            raise OperandError(f"{name} = {x!r} {fractions}")
        x = int(number)
        if not -(2**31) <= x < 2**31:
            raise OperandError(f"{name} is an integer of {x.bit_length()} bits, and scales a result stored as {kind}")
        return x
    return host_number(name, x)


def by_torch(
    c: torch.Tensor, bias: torch.Tensor | None, activation: str | None, kind: torch.dtype
) -> torch.Tensor:
    """Bias and activation of a product that was written in float32, or of integers in int32, rounded once; on the CPU
    in float64 where that is what it is given.

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
    """Sums of int64 as int32. Raises OperandError for one that it does not hold, with its place; where values cannot
    be looked at (traced, mapped, captured in a CUDA graph) they stop at the ends, as the product's own sums do.

    said  the operand that is added
    """
    ends = torch.iinfo(torch.int32)
    if addressed(c) and not (c.is_cuda and torch.cuda.is_current_stream_capturing()):
        outside = ((c < ends.min) | (c > ends.max)).nonzero()
        if len(outside):
            at = tuple(outside[0].tolist())
            raise OperandError(f"{said}: the sum at {at} is {c[at].item()}, beyond int32's {ends.min} to {ends.max}")
    return c.clamp(ends.min, ends.max).int()


def scaled_by_torch(
    product: torch.Tensor, alpha: Any, beta: Any, c: torch.Tensor | None, kind: torch.dtype
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
    if not all(isinstance(x, (int, float)) for x in (alpha, beta)) or not kind.is_floating_point or len(shape) != 2:
        return None
    steps: list[Step] = [] if alpha == 1 else [Scale("alpha")]
    given: dict[str, Any] = {} if alpha == 1 else {"alpha": float(alpha)}
    pairs = shape[1] % 2 == 0
    if c is not None and beta != 0:
        order = "row" if c.stride()[1:] == (1,) else "col" if c.stride()[:1] == (1,) else ""
        if tuple(c.shape) != shape or not order or c.dtype not in _READ:
            return None
        if out is not None and share_memory(c, out):  # c itself: torch adds before it is written
            return None
        leading = c.stride(0 if order == "row" else 1)
        steps.append(Residual(C_NAMES[c.dtype], order))
        given |= {"d": Placed(c.data_ptr(), leading, 0), "beta": float(beta)}
        pairs = pairs and leading % 2 == 0 and c.data_ptr() % (2 * c.element_size()) == 0
    if not steps:
        return None
    epilogue = Epilogue(*steps).in_pairs(pairs)
    return Finish(epilogue, words_of(epilogue, given), (epilogue,))
