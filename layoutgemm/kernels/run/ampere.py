"""Running an Sm80Plan: operands checked by name and rule, a device chosen and named.

The kernel takes lines of any pitch that the plan's alignment states; an operand that is not so aligned, or is stored in
the other order, is copied where the caller allows it, and the result says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import EmulatorError, OperandError
from ..sm80.operand import Sm80Operand
from ..sm80.plan import Sm80Plan
from ..sm80.reference import execute_sm80
from .numpy_arrays import DEVICES, GemmResult, _check_numpy_out, _check_shape, _kind, _progress_line, batched
from .occupancy import resident
from .operand_checks import resolved
from .torch_tensors import chosen_device

WORKERS = 2  # blocks of a persistent grid in the emulator: each has several tiles
_TORCH = {"bf16": "bfloat16", "f16": "float16", "tf32": "float32", "f32": "float32", "i8": "int8", "u8": "uint8",
          "i32": "int32", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}  # fmt: skip
# What NumPy holds the values in: floats rounded to the type, integers inside its range.
_NUMPY = {"i8": ("int8",), "u8": ("uint8",), "tf32": ("float32",), "bf16": ("float32", "bfloat16"),
          "f16": ("float32", "float16"), "e4m3": ("float32", "float8_e4m3fn"),
          "e5m2": ("float32", "float8_e5m2")}  # fmt: skip


def run_sm80(
    plan: Sm80Plan, a: Any, b: Any, *, out: Any = None, device: str | None = None, copy: bool = True
) -> GemmResult:
    """C = A @ B by the plan: (M, K) and (K, N) in, (M, N) out; of a batch, each with the batch in front.

    a, b    both NumPy arrays (float32 values are rounded to the plan's types) or both torch tensors of the plan's types
    out     where to put C: an array or tensor of the result's kind, type and shape
    device  "cuda", "emulator", "reference" (the NumPy executor), or None: the GPU when there is one, else the executor
    copy    an operand whose order, pitch or address the plan does not take is copied; False refuses instead

    Raises OperandError naming the tensor and the rule, PlanError when the plan cannot run on the device.

    >>> plan = Sm80Plan.derive(3, 4, 8)
    >>> result = plan.run(np.ones((3, 8), np.float32), np.ones((8, 4), np.float32), device="reference")
    >>> result.ran_on, result.c[0].tolist()
    ('NumPy executor', [8.0, 8.0, 8.0, 8.0])
    """
    if device not in (None, *DEVICES):
        raise OperandError(f"device {device!r}: known are {', '.join(map(repr, DEVICES))}, or None to choose")
    kinds = {name: _kind(name, value) for name, value in (("a", a), ("b", b))}
    if len(set(kinds.values())) > 1:
        raise OperandError(f"a is a {kinds['a']} and b a {kinds['b']}: give both as one kind, on one device")
    for name, value, shape in (("a", a, (plan.m, plan.k)), ("b", b, (plan.k, plan.n))):
        _check_shape(name, value, batched(plan, shape))  # type: ignore[arg-type]
    if kinds["a"].startswith("torch"):
        return _run_tensors(plan, a, b, out, device, copy)
    if out is not None:
        _check_numpy_out(plan, out)  # type: ignore[arg-type]
    for operand, value in ((plan.a, a), (plan.b, b)):
        takes = _NUMPY[operand.dtype.name]
        if value.dtype.name not in takes:
            raise OperandError(f"{operand.name.lower()} is {value.dtype}; {operand.dtype} is given as "
                               f"{' or '.join(takes)}")  # fmt: skip
    device, why = chosen_device(plan, device)
    if device == "cuda":
        result = _launch(plan, _tensor(plan.a, a), _tensor(plan.b, b), None, True)
        values = result.c.float() if plan.c.dtype.kind == "float" else result.c
        result = GemmResult(values.cpu().numpy(), result.ran_on, why, result.copies)
    else:
        result = _on_cpu(plan, a, b, device, why)
    if out is None:
        return result
    out[...] = result.c
    return GemmResult(out, result.ran_on, result.why, result.copies)


def _bits(operand: Sm80Operand, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Raw bits as (batch, lines, elements): lines are contiguous in the plan's order."""
    lines = value if operand.order == "row" else value.swapaxes(-1, -2)
    lines = lines.reshape((-1, *lines.shape[-2:]))
    if operand.dtype.kind == "float" and value.dtype.name in ("float32", "float16"):
        return operand.dtype.encode(lines)
    return np.ascontiguousarray(lines).view(operand.dtype.storage)


def _on_cpu(plan: Sm80Plan, a: Any, b: Any, device: str, why: str) -> GemmResult:
    bits = _bits(plan.a, a), _bits(plan.b, b)
    kind = np.float32 if plan.c.dtype.kind == "float" else np.int32
    if device == "reference":
        c = execute_sm80(plan, *bits, progress=_progress_line())
        return GemmResult(np.asarray(c, kind), "NumPy executor", why)
    from .emulated import emulate_launch

    padded = [_padded(op, x, plan.config.align[i]) for i, (op, x) in enumerate(zip((plan.a, plan.b), bits))]
    (lines_a, lda), (lines_b, ldb) = padded
    unit = max(1, plan.config.align[2] // plan.c.dtype.bytes)
    ldc = -(-plan.n // unit) * unit
    words = plan.c.dtype.encode(np.zeros((plan.batch, plan.m, ldc), np.int64))
    before = words[:, :, plan.n :].copy()
    strides = lines_a[0].size, lines_b[0].size, words[0].size
    sizes = (plan.m, plan.n, plan.k, plan.batch, lda, ldb, ldc, *strides)
    done = emulate_launch(plan, (lines_a, lines_b, words, *sizes, *[WORKERS] * plan.config.persistent))
    done.raise_for_findings()
    if not np.array_equal(before, words[:, :, plan.n :]):
        raise EmulatorError(f"{plan}: elements between the lines of C were written")
    values = np.asarray(plan.c.dtype.decode(words[:, :, : plan.n]), kind)
    return GemmResult(values if plan.batch > 1 else values[0], "emulator", why)


def _padded(operand: Sm80Operand, bits: Any, align: int) -> tuple[Any, int]:
    unit = max(1, align // operand.dtype.bytes)
    pitch = -(-bits.shape[2] // unit) * unit
    out = np.zeros((*bits.shape[:2], pitch), bits.dtype)
    out[:, :, : bits.shape[2]] = bits
    return out, pitch


# ------------------------------------------------------------------------------------------------------------- tensors


def _tensor(operand: Sm80Operand, value: npt.NDArray[Any]) -> Any:
    import torch

    bits = _bits(operand, value)
    signed = torch.from_numpy(bits.view(f"i{operand.dtype.bytes}").reshape(value.shape[:-2] + bits.shape[1:]))
    tensor = signed.cuda().view(getattr(torch, _TORCH[operand.dtype.name]))
    return tensor if operand.order == "row" else tensor.transpose(-1, -2)


def _run_tensors(plan: Sm80Plan, a: Any, b: Any, out: Any, device: str | None, copy: bool) -> GemmResult:
    import torch

    from .torch_tensors import check_tensors, require_gpu

    check_tensors(plan, a, b, out)
    a, b = resolved(a.detach()), resolved(b.detach())
    kind = getattr(torch, _TORCH[plan.c.dtype.name])
    on_gpu = a.device.type == "cuda"
    if on_gpu and device in ("emulator", "reference"):
        raise OperandError(f"a and b are on {a.device}; move them to the CPU for the {device}")
    device, why = chosen_device(plan, "cuda" if on_gpu else device)
    if device != "cuda":
        floats = plan.a.dtype.kind == "float"
        arrays = [(x.float() if floats else x).numpy() for x in (a, b)]
        done = _on_cpu(plan, arrays[0], arrays[1], device, why)
        result = GemmResult(torch.from_numpy(done.c).to(kind), done.ran_on, why)
    else:
        require_gpu(plan, a.device.index if on_gpu else None)  # type: ignore[arg-type]
        result = _launch(plan, a.cuda(), b.cuda(), out if on_gpu else None, copy)
        result = GemmResult(result.c if on_gpu else result.c.cpu(), result.ran_on, why, result.copies)
    if out is None or result.c is out:
        return result
    out.copy_(result.c)
    return GemmResult(out, result.ran_on, result.why, result.copies)


def _launch(plan: Sm80Plan, a: Any, b: Any, out: Any, copy: bool) -> GemmResult:
    import torch

    from ..compile.compiler import compile_plan

    copies: list[str] = []
    with torch.cuda.device(a.device):
        lines = [
            _lines(op.name.lower(), op.order, op.dtype.bytes, x, plan.config.align[i], copies, copy)
            for i, (op, x) in enumerate(((plan.a, a), (plan.b, b)))
        ]
        shape = batched(plan, (plan.m, plan.n))  # type: ignore[arg-type]
        unit = max(1, plan.config.align[2] // plan.c.dtype.bytes)
        target, late = out, False
        if out is not None and (rule := _rule("out", "row", plan.c.dtype.bytes, out, plan.config.align[2])):
            if not copy:
                raise OperandError(f"{rule}; copy=True computes into another tensor, and copies")
            copies.append(f"{rule}: computed apart, then copied")
            late = True
        if out is None or late:
            kind = getattr(torch, _TORCH[plan.c.dtype.name])
            width = -(-plan.n // unit) * unit
            target = torch.empty((*shape[:-1], width), dtype=kind, device=a.device)[..., : plan.n]
        (_, lda, pitch_a), (_, ldb, pitch_b) = lines
        ldc, pitch_c = _distances(target)
        pointers = lines[0][0].data_ptr(), lines[1][0].data_ptr(), target.data_ptr()
        sizes: tuple[int, ...] = (plan.m, plan.n, plan.k, plan.batch, lda, ldb, ldc, pitch_a, pitch_b, pitch_c)
        if plan.config.persistent:
            sizes = (*sizes, resident(a.device.index, 1) * plan.config.blocks_per_sm)
        compile_plan(plan).launch(*pointers, *sizes, stream=torch.cuda.current_stream(a.device).cuda_stream)
        if late:
            out.copy_(target)
            target = out
    return GemmResult(target, f"{torch.cuda.get_device_name(a.device)} ({a.device})", "", tuple(copies))


def _distances(lines: Any) -> tuple[int, int]:
    """Elements from line to line, and from matrix to matrix of a batch."""
    leading = int(lines.stride(-2)) if lines.shape[-2] > 1 else int(lines.shape[-1])
    return leading, int(lines.stride(0)) if lines.ndim > 2 and lines.shape[0] > 1 else 0


def _rule(name: str, order: str, size: int, tensor: Any, align: int) -> str:
    """Why the kernel cannot take the tensor as it lies, or ""."""
    lines = tensor if order == "row" else tensor.transpose(-1, -2)
    leading, pitch = _distances(lines)
    if lines.shape[-1] > 1 and lines.stride(-1) != 1:
        return f"{name}: the plan takes it {order}-major, but its strides are {tuple(tensor.stride())}"
    if lines.shape[-2] > 1 and leading < lines.shape[-1]:
        return f"{name}: lines of {lines.shape[-1]} elements lie {leading} elements apart, so they overlap"
    many = lines.shape[-2] > 1
    for what, count in (("leading dimension", leading * many), ("the distance of the batch's matrices", pitch)):
        if count * size % align:
            bytes_ = f"{count} elements * {size} = {count * size} bytes"
            return f"{name}: {what} {bytes_}, the plan states multiples of {align}"
    if tensor.data_ptr() % align:
        return f"{name} starts at {tensor.data_ptr():#x}, the plan states a multiple of {align} bytes"
    return ""


def _lines(name: str, order: str, size: int, tensor: Any, align: int, copies: list[str], copy: bool) -> Any:
    """(lines, leading, pitch): the tensor itself, or a copy that the plan can take."""
    import torch

    lines = tensor if order == "row" else tensor.transpose(-1, -2)
    if rule := _rule(name, order, size, tensor, align):
        if not copy:
            raise OperandError(f"{rule}; copy=True makes a copy")
        copies.append(f"{rule}: copied")
        unit = max(1, align // size)
        width = -(-lines.shape[-1] // unit) * unit
        made = torch.empty((*lines.shape[:-1], width), dtype=tensor.dtype, device=tensor.device)[..., : lines.shape[-1]]
        made.copy_(lines)
        lines = made
    leading, pitch = _distances(lines)
    if lines.shape[-2] == 1:  # one line has no pitch; a tensor map wants one that it takes
        unit = max(1, align // size)
        leading = -(-leading // unit) * unit
    return lines, leading, pitch
