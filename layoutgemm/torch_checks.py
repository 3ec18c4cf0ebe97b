"""What matmul refuses, in torch's words where torch has them: types, devices, tf32 without leave, outputs over
inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .errors import OperandError, TensorError
from .torch_launch import C_NAMES, NAMES, TYPES
from .torch_problem import C_TYPES

# Types of which two kinds may meet in one product.
_MIXED = ({torch.float8_e4m3fn, torch.float8_e5m2}, {torch.int8, torch.uint8})


def check_tensors(a: Any, b: Any, allow_tf32: bool | None) -> None:
    """Raise TensorError or OperandError unless a and b are tensors whose product there is a kernel for."""
    require_tensors(a, b)
    for name, x in (("a", a), ("b", b)):
        if x.layout != torch.strided:
            raise OperandError(f"{name} is {x.layout}: this library multiplies dense tensors; {name}.to_dense() is one")
    if a.device != b.device:
        raise TensorError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{a.device} and {b.device}!"
        )
    if a.device.type not in ("cuda", "cpu", "meta"):
        raise OperandError(f"a is on {a.device}; this library runs on CUDA GPUs, and on the CPU as their reference")
    if a.dtype != b.dtype and not any({a.dtype, b.dtype} == kinds for kinds in _MIXED):
        raise TensorError(f"expected a and b to have the same dtype, but got: {a.dtype} != {b.dtype}")
    if a.dtype not in NAMES:
        known = ", ".join(str(kind).removeprefix("torch.") for kind in NAMES)
        raise OperandError(f"a and b are {a.dtype}; this library multiplies {known}. torch.matmul takes {a.dtype}")
    if a.dtype == torch.float32 and not tf32_allowed(allow_tf32):
        raise OperandError(
            "a and b are float32, and the tensor cores would round them to tf32 (11 bits of significand): say "
            "allow_tf32=True, set torch.backends.cuda.matmul.allow_tf32 = True, convert them to bfloat16 or float16, "
            "or use torch.matmul"
        )


def require_tensors(a: Any, b: Any) -> None:
    """Raise OperandError unless both are tensors."""
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, torch.Tensor):
            raise OperandError(f"{name} is a {type(x).__module__}.{type(x).__qualname__}, not a torch tensor")


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


def output_type(a: torch.Tensor, b: torch.Tensor, asked: torch.dtype | None) -> torch.dtype:
    """The type of the product. Raises OperandError for one that the kernels do not store.

    >>> x = torch.ones(2, 2, dtype=torch.int8)
    >>> output_type(x, x, None)
    torch.int32
    """
    possible = C_TYPES[NAMES[a.dtype]]
    if asked is None:
        return TYPES[possible[0]]
    if C_NAMES.get(asked) not in possible:
        known = ", ".join(str(TYPES[name]).removeprefix("torch.") for name in possible)
        raise OperandError(f"out_dtype {asked}: a product of {a.dtype} is stored as {known}")
    return asked


def check_out(out: Any, shape: Sequence[int], kind: torch.dtype, a: torch.Tensor, b: torch.Tensor) -> None:
    """Raise unless `out` can take the product: its shape, type and device, each element once, apart from a and b."""
    if not isinstance(out, torch.Tensor):
        raise OperandError(f"out is a {type(out).__qualname__}, not a torch tensor")
    if tuple(out.shape) != tuple(shape):
        raise TensorError(f"out has shape {list(out.shape)}, the product {list(shape)}: it is not resized")
    if out.dtype != kind:
        raise TensorError(f"Expected out tensor to have dtype {kind}, but got {out.dtype} instead; out_dtype chooses")
    if out.device != a.device:
        raise TensorError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{a.device} and {out.device}!"
        )
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or out.requires_grad):
        raise TensorError(
            "matmul(): functions with out=... arguments don't support automatic differentiation, but one of the "
            "arguments requires grad"
        )
    if overlaps_itself(out):
        raise TensorError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory "
            f"location: out has shape {list(out.shape)} and strides {list(out.stride())}"
        )
    if out.device.type == "meta" or torch.compiler.is_compiling() or type(out) is not torch.Tensor:
        return  # there is no address to compare
    for name, x in (("a", a), ("b", b)):
        if share_memory(out, x):
            raise TensorError(
                f"unsupported operation: out shares memory with {name}, which is read while it is written"
            )


def overlaps_itself(x: torch.Tensor) -> bool:
    """Whether two elements may lie in one place: in order of strides, each dimension beyond what the ones before
    span."""
    span = 1
    for step, extent in sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1):
        if step < span:
            return True
        span += step * (extent - 1)
    return False


def share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors may have a byte in common: exact for views of the same lines, careful otherwise.

    >>> whole = torch.zeros(4, 8)
    >>> share_memory(whole[:, :3], whole[:, 3:]), share_memory(whole[:, :4], whole[:, 3:])
    (False, True)
    """
    if x.numel() == 0 or y.numel() == 0:
        return False
    (first, end), (start, stop) = _span(x), _span(y)
    if end <= start or stop <= first:
        return False
    # Both lines of one pitch: columns of a wider matrix. They are apart where their places within the pitch are.
    (pitch_x, width_x), (pitch_y, width_y) = _lines(x), _lines(y)
    if pitch_x != pitch_y or not pitch_x:
        return True
    gap = (start - first) % pitch_x
    return not (width_x <= gap and gap + width_y <= pitch_x)


def _span(x: torch.Tensor) -> tuple[int, int]:
    last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def _lines(x: torch.Tensor) -> tuple[int, int]:
    """(bytes from line to line, bytes of a line) of a tensor all of whose strides but the last are multiples of one."""
    size = x.element_size()
    steps = [(s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]
    long = sorted(steps)
    if not long:
        return 0, size
    inner, outer = (long[0], long[1:]) if long[0][0] == 1 else ((1, 1), long)
    if not outer or any(s % outer[0][0] for s, _ in outer):
        return 0, inner[1] * size
    return outer[0][0] * size, inner[1] * size
