"""Plans on a GPU, through torch: which GPU can run one, operands as TMA takes them, launch on the current stream.

The only module of the kernels that imports torch, and only inside its functions.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OperandError, PlanError
from .plan import GemmPlan, OperandPlan
from .run import GemmResult, padded_leading, pitch_rule, refuse_or_note, run_on_cpu

# Compute capability that each target's code runs on: the "a" targets run on exactly one.
_CAPABILITY = {"sm_90a": (9, 0)}
_TORCH_NAMES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def gpu_for(plan: Any, index: int | None = None) -> tuple[bool, str]:
    """Can the plan, or the level, run on a GPU of this machine? (verdict, the reason in a sentence)."""
    if importlib.util.find_spec("torch") is None:
        return False, "torch is not installed, so no GPU can be reached"
    import torch

    if not torch.cuda.is_available():
        return False, "torch finds no CUDA GPU"
    found = torch.cuda.get_device_capability(index)
    name = torch.cuda.get_device_name(index)
    if found != _CAPABILITY.get(plan.arch.name):
        return False, f"the plan is for {plan.arch.name}, the GPU is {name} (compute capability {found[0]}.{found[1]})"
    if importlib.util.find_spec("cutlass") is None:
        return False, f"{name} is here, but the CuTe DSL is not installed: pip install 'layoutgemm[dsl]'"
    return True, f"torch finds {name}"


def run_tensors(plan: GemmPlan, a: Any, b: Any, out: Any, device: str | None, copy: bool) -> GemmResult:
    """Run on torch tensors: CUDA tensors on their GPU, CPU tensors on the NumPy executor or, when asked, elsewhere."""
    import torch

    for operand, tensor in ((plan.a, a), (plan.b, b)):
        want = getattr(torch, _TORCH_NAMES[operand.dtype.name])
        if tensor.dtype != want:
            raise OperandError(f"{operand.name.lower()} is {tensor.dtype}, the plan takes {want}")
    if out is not None:
        _check_out(plan, out, a)
    on_gpu = a.device.type == "cuda"
    if a.device.type not in ("cuda", "cpu"):
        raise OperandError(f"a is on {a.device}; this library runs on CUDA GPUs and, on the CPU, in the NumPy executor")
    if on_gpu and device in ("emulator", "reference"):
        what = "emulator" if device == "emulator" else "NumPy executor"
        raise OperandError(f"a and b are on {a.device}; move them to the CPU for the {what}")
    chosen, why = device, ""
    if chosen is None:
        if on_gpu:
            chosen = "cuda"
        else:
            found, why = gpu_for(plan)
            chosen = "cuda" if found else "reference"
    if chosen != "cuda":
        arrays = [tensor.detach().float().numpy() for tensor in (a, b)]
        result = run_on_cpu(plan, arrays[0], arrays[1], chosen, why, copy)
        c = torch.from_numpy(result.c).to(getattr(torch, _TORCH_NAMES[plan.c.dtype.name]))
        return _into(out, GemmResult(c, result.ran_on, result.why, result.copies))
    target = (
        a.device if on_gpu else torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    )
    require_gpu(plan, target.index)
    if on_gpu:
        if out is not None:
            _check_apart(out, a=a, b=b)
        return _launch(plan, a.detach(), b.detach(), out, why, copy)
    result = _launch(plan, a.detach().to(target), b.detach().to(target), None, why, copy)
    return _into(out, GemmResult(result.c.cpu(), result.ran_on, result.why, result.copies))


def run_arrays(plan: GemmPlan, a: npt.NDArray[Any], b: npt.NDArray[Any], why: str) -> GemmResult:
    """Run on NumPy arrays: upload, run, download; values are rounded here exactly as the executor rounds them."""
    require_gpu(plan, None)
    import torch

    tensors = []
    for operand, value in ((plan.a, a), (plan.b, b)):
        lines = value if operand.order == "row" else value.T
        bits = lines.view(np.uint16) if lines.dtype.name == "bfloat16" else operand.dtype.encode(lines)
        signed = torch.from_numpy(np.ascontiguousarray(bits).view(np.int16))
        tensor = signed.cuda().view(getattr(torch, _TORCH_NAMES[operand.dtype.name]))
        tensors.append(tensor if operand.order == "row" else tensor.T)
    result = _launch(plan, tensors[0], tensors[1], None, why, True)
    return GemmResult(result.c.float().cpu().numpy(), result.ran_on, result.why, result.copies)


def require_gpu(plan: GemmPlan, index: int | None) -> None:
    """Raise PlanError with the reason when the plan cannot run on the GPU."""
    found, why = gpu_for(plan, index)
    if not found:
        raise PlanError(f"device 'cuda' was asked for: {why}")


def tma_operand(operand: OperandPlan, tensor: Any, copies: list[str], copy: bool) -> Any:
    """The tensor itself when tensor copies can read it in the plan's order, else a pitched copy of it, noted.

    Rules: the plan's contiguous index has stride 1; lines do not overlap; the leading dimension is a multiple of 16
    bytes; the address is a multiple of 16 bytes.
    """
    import torch

    name = operand.name.lower()
    lines = tensor if operand.order == "row" else tensor.T
    rows, extent = lines.shape
    step, leading = lines.stride(1), lines.stride(0)
    if extent == 1:
        step = 1  # one element a line: its stride is never used
    if rows == 1:
        leading = padded_leading(operand.dtype, extent)  # one line: its pitch is never used
    made = padded_leading(operand.dtype, extent)
    if step != 1:
        rule = f"{name}: the plan reads it {operand.order}-major, but its strides are {tuple(tensor.stride())}"
    elif rows > 1 and leading < extent:
        rule = f"{name}: lines of {extent} elements lie {leading} elements apart, so they overlap"
    elif leading * operand.dtype.bytes % 16:
        rule = pitch_rule(operand, leading)
    elif tensor.data_ptr() % 16:
        rule = f"{name} starts at {tensor.data_ptr():#x}, which is no multiple of 16 bytes, as a tensor map needs"
    else:
        operand.tma.check_global(name, tensor.data_ptr(), (extent, rows), (leading,))
        return lines, leading
    refuse_or_note(operand, rule, f"pitch {made}", copies, copy)
    buffer = torch.empty((rows, made), dtype=tensor.dtype, device=tensor.device)
    buffer[:, :extent].copy_(lines)
    operand.tma.check_global(name, buffer.data_ptr(), (extent, rows), (made,))
    return buffer[:, :extent], made


def _launch(plan: GemmPlan, a: Any, b: Any, out: Any, why: str, copy: bool) -> GemmResult:
    import torch

    from .compile import compile_plan

    copies: list[str] = []
    with torch.cuda.device(a.device):
        lines_a, lda = tma_operand(plan.a, a, copies, copy)
        lines_b, ldb = tma_operand(plan.b, b, copies, copy)
        c = out
        if c is None:
            c = torch.empty((plan.m, plan.n), dtype=getattr(torch, _TORCH_NAMES[plan.c.dtype.name]), device=a.device)
        ldc = c.stride(0) if plan.m > 1 else plan.n
        stream = torch.cuda.current_stream(a.device).cuda_stream
        compile_plan(plan).launch(
            lines_a.data_ptr(), lines_b.data_ptr(), c.data_ptr(), plan.m, plan.n, plan.k, lda, ldb, ldc, stream=stream
        )
    return GemmResult(c, f"{torch.cuda.get_device_name(a.device)} ({a.device})", why, tuple(copies))


def _check_out(plan: GemmPlan, out: Any, a: Any) -> None:
    import torch

    want = getattr(torch, _TORCH_NAMES[plan.c.dtype.name])
    if not isinstance(out, torch.Tensor) or out.dtype != want:
        raise OperandError(f"out must be a {want} tensor; got {getattr(out, 'dtype', type(out))}")
    if tuple(out.shape) != (plan.m, plan.n):
        raise OperandError(f"out has shape {tuple(out.shape)}, the plan gives {(plan.m, plan.n)}")
    if out.device != a.device:
        raise OperandError(f"out is on {out.device}, a and b are on {a.device}")
    if (plan.n > 1 and out.stride(1) != 1) or (plan.m > 1 and out.stride(0) < plan.n):
        raise OperandError(f"out has strides {tuple(out.stride())}; rows must be contiguous and not overlap")


def _check_apart(out: Any, **inputs: Any) -> None:
    """Blocks store C while others still read A and B: an output over an input would be read half written."""

    def span(tensor: Any) -> tuple[int, int]:
        last = sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride(), strict=True))
        return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()

    first, end = span(out)
    for name, tensor in inputs.items():
        start, stop = span(tensor)
        if start < end and first < stop:
            raise OperandError(
                f"out shares memory with {name}: bytes {first:#x} to {end:#x} against {start:#x} to {stop:#x}"
            )


def _into(out: Any, result: GemmResult) -> GemmResult:
    if out is None:
        return result
    out.copy_(result.c)
    return GemmResult(out, result.ran_on, result.why, result.copies)
