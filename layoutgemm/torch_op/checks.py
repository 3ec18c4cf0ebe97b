"""What matmul refuses, in torch's words where torch has them: types, tf32 without leave, outputs and derivatives.

Kind, layout, device and memory of tensors are `kernels.device_operands`' business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as _forward

from ..errors import OperandError, TensorError
from ..kernels.run.operand_checks import check_operands
from .launch import C_NAMES, NAMES, TYPES
from .problem import C_TYPES

# Types of which two kinds may meet in one product.
_MIXED = ({torch.float8_e4m3fn, torch.float8_e5m2}, {torch.int8, torch.uint8})


def check_tensors(a: Any, b: Any, allow_tf32: bool | None) -> None:
    """Raise TensorError or OperandError unless a and b are tensors whose product there is a kernel for."""
    check_operands({"a": a, "b": b})
    check_device(a)
    if a.dtype != b.dtype and not any({a.dtype, b.dtype} == kinds for kinds in _MIXED):
        raise TensorError(f"expected a and b to have the same dtype, but got: {a.dtype} != {b.dtype}")
    if a.dtype not in NAMES:
        known = ", ".join([str(kind).removeprefix("torch.") for kind in NAMES])
        raise OperandError(f"a and b are {a.dtype}; this library multiplies {known}. torch.matmul takes {a.dtype}")
    if a.dtype == torch.float32 and not tf32_allowed(allow_tf32):
        raise OperandError(
            "a and b are float32, and the tensor cores would round them to tf32 (11 bits of significand): say "
            "allow_tf32=True, set torch.backends.cuda.matmul.allow_tf32 = True, convert them to bfloat16 or float16, "
            "or use torch.matmul"
        )


def check_device(a: torch.Tensor, meta: bool = True) -> None:
    """Raise OperandError for a device that this library does not run on."""
    if a.device.type not in ("cuda", "cpu", *["meta"] * meta):
        raise OperandError(f"a is on {a.device}; this library runs on CUDA GPUs, and on the CPU as their reference")


def tf32_allowed(allow: bool | None) -> bool:
    """Whether float32 may be rounded to tf32: as the caller says, or as torch is set, by either of its settings."""
    return _torch_allows_tf32() if allow is None else bool(allow)


def _torch_allows_tf32() -> bool:
    # fp32_precision came with torch 2.9; once it is used, reading allow_tf32 raises
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return bool(torch.backends.cuda.matmul.allow_tf32) if precision is None else precision == "tf32"


# What torch.compiler.assume_constant_result sets, without importing the compiler: a trace takes the setting of its
# time.
_torch_allows_tf32._dynamo_marked_constant = True  # type: ignore[attr-defined]


def output_type(a: torch.Tensor, b: torch.Tensor, asked: Any) -> torch.dtype:
    """The type of the product. Raises OperandError for one that the kernels do not store.

    >>> x = torch.ones(2, 2, dtype=torch.int8)
    >>> output_type(x, x, None)
    torch.int32
    """
    possible = C_TYPES[NAMES[a.dtype]]
    if asked is None:
        return TYPES[possible[0]]
    if not isinstance(asked, torch.dtype) or C_NAMES.get(asked) not in possible:
        known = ", ".join([str(TYPES[name]).removeprefix("torch.") for name in possible])
        raise OperandError(f"out_dtype {asked}: a product of {a.dtype} is stored as {known}")
    return asked


def check_out(
    out: Any, shape: Sequence[int], kind: torch.dtype, read: Mapping[str, torch.Tensor | None],
    scales: Sequence[torch.Tensor] = (),
) -> None:  # fmt: skip
    """Raise unless `out` can take the product of what is read: its shape, type and device, in memory of its own, and no
    derivative recorded, by the scales neither."""
    operands = {name: x for name, x in read.items() if x is not None}
    check_operands(operands, {"out": out})
    if tuple(out.shape) != tuple(shape):
        raise TensorError(f"out has shape {list(out.shape)}, the product {list(shape)}: it is not resized")
    if out.dtype != kind:
        raise TensorError(f"Expected out tensor to have dtype {kind}, but got {out.dtype} instead; out_dtype chooses")
    if differentiated(out, *operands.values(), *scales):
        raise TensorError(
            "matmul(): functions with out=... arguments don't support automatic differentiation, but one of the "
            "arguments requires grad, or has a tangent"
        )


def differentiated(*tensors: torch.Tensor | None) -> bool:
    """Whether a derivative by one of the tensors is recorded: a gradient, or a tangent in forward mode."""
    given = [x for x in tensors if x is not None]
    return (torch.is_grad_enabled() and any(x.requires_grad for x in given)) or any(has_tangent(x) for x in given)


def has_tangent(x: torch.Tensor) -> bool:
    """Whether a tensor carries a tangent, and forward mode is on."""
    if torch.compiler.is_dynamo_compiling() or _forward._current_level < 0 or not torch._C._is_fwd_grad_enabled():
        return False
    return _forward.unpack_dual(x).tangent is not None


def refuse_derivatives(tensors: Mapping[str, Any], way_out: str) -> None:
    """Raise TensorError, naming it, where a tensor's derivative is recorded, of a product that has none."""
    for name, x in tensors.items():
        if isinstance(x, torch.Tensor) and differentiated(x):
            if has_tangent(x):
                raise TensorError(f"{name} has a tangent, and this product has none: give unpack_dual({name}).primal")
            raise TensorError(f"{name} requires grad, and this product has no gradient: {way_out}")
