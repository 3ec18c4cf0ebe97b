"""Plans on a GPU, through torch: which GPU can run one, operands as TMA takes them, launch on the current stream.

The only module of the kernels that imports torch, and only inside its functions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...atoms import TmaPlan
from ...dtypes import DType
from ...errors import OperandError, PlanError
from ..derive import OperandPlan, one_matrix, padded_leading
from ..sm90.gated import as_one_matrix
from ..sm90.plan import Sm90Plan
from ..sm100.plan import Sm100Plan
from ..teaching.plan import TeachingPlan
from .numpy_arrays import GemmResult, Plan, batched, pitch_rule, raw_bits, refuse_or_note, run_on_cpu
from .occupancy import resident
from .operand_checks import addressed, check_operands, resolved

# Compute capabilities that each target's code runs on: the "a" targets run on exactly one, sm_80 on all of its
# generation (CUDA C++ Programming Guide, "Binary Compatibility").
_CAPABILITY = {
    "sm_80": ((8, 0), (8, 6), (8, 7), (8, 9)), "sm_90a": ((9, 0),), "sm_100a": ((10, 0),), "sm_120a": ((12, 0),),
}  # fmt: skip
# Plans whose kernels take pitches of a batch and a number of workers.
PERSISTENT = (Sm90Plan, Sm100Plan)
_TORCH_NAMES = {
    "bf16": "bfloat16", "f16": "float16", "f32": "float32", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
    "tf32": "float32", "i8": "int8", "u8": "uint8", "i32": "int32",
}  # fmt: skip


def gpu_for(plan: Any, index: int | None = None) -> tuple[bool, str]:
    """Can the plan, or the level, run on a GPU of this machine? (verdict, the reason in a sentence)."""
    if importlib.util.find_spec("torch") is None:
        return False, "torch is not installed, so no GPU can be reached"
    import torch

    if not torch.cuda.is_available():
        return False, "torch finds no CUDA GPU"
    found = torch.cuda.get_device_capability(index)
    name = torch.cuda.get_device_name(index)
    if found not in _CAPABILITY.get(plan.arch.name, ()):
        return False, f"the plan is for {plan.arch.name}, the GPU is {name} (compute capability {found[0]}.{found[1]})"
    if importlib.util.find_spec("cutlass") is None:
        return False, f"{name} is here, but the CuTe DSL is not installed: pip install 'layoutgemm[dsl]'"
    return True, f"torch finds {name}"


def chosen_device(plan: Any, device: str | None, otherwise: str = "reference") -> tuple[str, str]:
    """The device asked for, or, where none was, the GPU if one can run the plan; and why, if it was not asked for."""
    if device is not None:
        return device, ""
    found, why = gpu_for(plan)
    return ("cuda" if found else otherwise), why


def target_here(targets: Sequence[str], default: str) -> str:
    """Of these targets the first whose code this machine's GPU runs; the default where there is none."""
    from ..compile.compiler import require_gpu as require_any_gpu

    try:
        require_any_gpu()  # torch, slow to import, is asked only where CUDA finds a GPU
        import torch

        found = torch.cuda.get_device_capability()
    except (ImportError, PlanError, RuntimeError):
        return default
    return next((name for name in targets if found in _CAPABILITY[name]), default)


def run_tensors(plan: Plan, a: Any, b: Any, out: Any, device: str | None, copy: bool) -> GemmResult:
    """Run on torch tensors: CUDA tensors on their GPU, CPU tensors on the NumPy executor or, when asked, elsewhere."""
    import torch

    check_tensors(plan, a, b, out)
    a, b = resolved(a.detach()), resolved(b.detach())
    on_gpu = a.device.type == "cuda"
    if on_gpu and device in ("emulator", "reference"):
        what = "emulator" if device == "emulator" else "NumPy executor"
        raise OperandError(f"a and b are on {a.device}; move them to the CPU for the {what}")
    chosen, why = chosen_device(plan, "cuda" if on_gpu else device)
    if chosen != "cuda":
        arrays = [(t.float() if t.is_floating_point() else t).numpy() for t in (a, b)]
        result = run_on_cpu(plan, arrays[0], arrays[1], chosen, why, copy)
        c = torch.from_numpy(result.c).to(getattr(torch, _TORCH_NAMES[plan.c.dtype.name]))
        return _into(out, GemmResult(c, result.ran_on, result.why, result.copies))
    target = (
        a.device if on_gpu else torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    )
    require_gpu(plan, target.index)
    if on_gpu:
        return _launch(plan, a, b, out, why, copy)
    result = _launch(plan, a.to(target), b.to(target), None, why, copy)
    return _into(out, GemmResult(result.c.cpu(), result.ran_on, result.why, result.copies))


def run_arrays(
    plan: Plan, a: npt.NDArray[Any], b: npt.NDArray[Any], why: str, words: Sequence[Any] = ()
) -> GemmResult:
    """Run on NumPy arrays: upload, run, download; values are rounded here exactly as the executor rounds them.

    words  a launch's last arguments, of a plan that has `words`: numbers, and arrays, which hold afterwards what the
           kernel left in them
    """
    require_gpu(plan, None)
    import torch

    tensors = []
    for operand, value in ((plan.a, a), (plan.b, b)):
        lines = value if operand.order == "row" else value.swapaxes(-1, -2)
        bits = np.ascontiguousarray(raw_bits(operand, lines))
        signed = torch.from_numpy(bits.view(f"i{operand.dtype.bytes}"))
        tensor = signed.cuda().view(getattr(torch, _TORCH_NAMES[operand.dtype.name]))
        tensors.append(tensor if operand.order == "row" else tensor.transpose(-1, -2))
    besides = [(word, torch.from_numpy(word.view(np.uint8)).cuda()) for word in words if isinstance(word, np.ndarray)]
    addresses = iter([there.data_ptr() for _, there in besides])
    numbers = tuple([next(addresses) if isinstance(word, np.ndarray) else word for word in words])
    result = _launch(plan, tensors[0], tensors[1], None, why, True, numbers)
    for word, there in besides:
        word.view(np.uint8)[...] = there.cpu().numpy()
    c = result.c.float() if result.c.is_floating_point() else result.c
    return GemmResult(c.cpu().numpy(), result.ran_on, result.why, result.copies)


def require_gpu(plan: Plan, index: int | None) -> None:
    """Raise PlanError with the reason when the plan cannot run on the GPU."""
    found, why = gpu_for(plan, index)
    if not found:
        raise PlanError(f"device 'cuda' was asked for: {why}; 'emulator' and 'reference' need no GPU")


def tma_operand(operand: OperandPlan, tensor: Any, copies: list[str], copy: bool) -> Any:
    """(lines, leading, pitch): the tensor itself where tensor copies can read it in the plan's order, else a copy.

    Rules: the plan's contiguous index has stride 1; lines do not overlap; the leading dimension, and the distance of a
    batch's matrices, are multiples of 16 bytes; the address is a multiple of 16 bytes.
    """
    import torch

    name = operand.name.lower()
    lines = tensor if operand.order == "row" else tensor.transpose(-1, -2)
    rows, extent = lines.shape[-2:]
    leading, pitch = _distances(lines, operand.dtype)
    made = padded_leading(operand.dtype, extent)
    if extent > 1 and lines.stride(-1) != 1:
        rule = f"{name}: the plan reads it {operand.order}-major, but its strides are {tuple(tensor.stride())}"
    elif rows > 1 and leading < extent:
        rule = f"{name}: lines of {extent} elements lie {leading} elements apart, so they overlap"
    elif leading * operand.dtype.bytes % 16:
        rule = pitch_rule(operand, leading)
    elif lines.ndim > 2 and (pitch <= 0 or pitch * operand.dtype.bytes % 16):
        rule = (
            f"{name}: matrices of the batch lie {pitch} elements apart, {pitch * operand.dtype.bytes} bytes; a tensor "
            "map needs a positive multiple of 16"
        )
    elif tensor.data_ptr() % 16:
        rule = f"{name} starts at {tensor.data_ptr():#x}, which is no multiple of 16 bytes, as a tensor map needs"
    else:
        _check_maps(operand, name, lines, leading, pitch)
        return lines, leading, pitch
    refuse_or_note(operand, rule, f"pitch {made}", copies, copy)
    buffer = torch.empty((*lines.shape[:-1], made), dtype=tensor.dtype, device=tensor.device)
    buffer[..., :extent].copy_(lines)
    _check_maps(operand, name, buffer[..., :extent], made, rows * made)
    return buffer[..., :extent], made, rows * made


def _distances(lines: Any, dtype: DType) -> tuple[int, int]:
    """Elements from line to line and from matrix to matrix; where there is one alone, any that a tensor map takes."""
    rows, extent = lines.shape[-2:]
    leading = int(lines.stride(-2)) if rows > 1 else padded_leading(dtype, extent)
    return leading, int(lines.stride(0)) if lines.ndim > 2 and lines.shape[0] > 1 else rows * leading


def _check_maps(operand: OperandPlan, name: str, lines: Any, leading: int, pitch: int) -> None:
    for tma in operand.copies:
        _check_map(tma, name, lines, leading, pitch)


def _check_map(tma: TmaPlan, name: str, lines: Any, leading: int, pitch: int) -> None:
    shape = tuple(reversed(lines.shape))
    tma.check_global(name, lines.data_ptr(), shape, (leading, pitch)[: len(shape) - 1])


class LaunchOf(NamedTuple):
    """What one launch of a plan on tensors takes.

    arguments  the kernel's, as `plan.parameters` names them: A, B and C first
    c          the tensor that the kernel writes
    late       whether it is copied into the caller's output afterwards
    read       what the kernel reads as A and B, copies among them; they live until the launch
    copies     what was copied, in words
    """

    arguments: tuple[int, ...]
    c: Any
    late: bool
    read: tuple[Any, Any]
    copies: tuple[str, ...]


def launch_of(plan: Plan, a: Any, b: Any, out: Any, copy: bool, words: tuple[int, ...] = ()) -> LaunchOf:
    """The arguments of a launch on checked tensors of the current device, with copies where the plan needs them."""
    copies: list[str] = []
    lines_a, lda, pitch_a = tma_operand(plan.a, a, copies, copy)
    lines_b, ldb, pitch_b = tma_operand(as_one_matrix(plan.b), b, copies, copy)
    c, late = _target(plan, out, a.device, copies, copy)
    lines_c = c if plan.c.order == "row" else c.transpose(-1, -2)
    pointers = lines_a.data_ptr(), lines_b.data_ptr(), c.data_ptr()
    arguments: tuple[int, ...]
    if isinstance(plan, PERSISTENT):
        ldc, pitch_c = _distances(lines_c, plan.c.dtype)
        sizes = (plan.m, plan.n, plan.k, plan.batch, lda, ldb, ldc, pitch_a, pitch_b, pitch_c)
        arguments = (*pointers, *sizes, resident(a.device.index, plan.cluster_size), *words)
    else:
        ldc = lines_c.stride(0) if plan.m > 1 else plan.n
        arguments = (*pointers, plan.m, plan.n, plan.k, lda, ldb, ldc)
    return LaunchOf(arguments, c, late, (lines_a, lines_b), tuple(copies))


def _launch(
    plan: Plan, a: Any, b: Any, out: Any, why: str, copy: bool, words: tuple[int, ...] = ()
) -> GemmResult:
    import torch

    from ..compile.compiler import compile_plan

    with torch.cuda.device(a.device):
        made = launch_of(plan, a, b, out, copy, words)
        compile_plan(plan).launch(*made.arguments, stream=torch.cuda.current_stream(a.device).cuda_stream)
        if made.late:
            out.copy_(made.c)
    c = out if made.late else made.c
    return GemmResult(c, f"{torch.cuda.get_device_name(a.device)} ({a.device})", why, made.copies)


def run_given(plan: Sm90Plan, a: Any, b: Any, given: dict[str, Any], out: Any = None, copy: bool = True) -> GemmResult:
    """Run a plan that reads more than A and B, on CUDA tensors: what it reads are CUDA tensors too, by name."""
    from .epilogue_operands import words_of_tensors

    check_tensors(plan, a, b, out, given)
    require_gpu(plan, a.device.index)
    given = {name: resolved(x.detach()) for name, x in given.items()}
    words = words_of_tensors(plan, given, a.device)
    return _launch(plan, resolved(a.detach()), resolved(b.detach()), out, "", copy, words)


def check_tensors(plan: Any, a: Any, b: Any, out: Any, given: Mapping[str, Any] | None = None) -> None:
    """Raise OperandError unless a plan can run on these tensors: dense, of its types, on one device, an output of its
    shape in memory of its own, and no derivative recorded."""
    import torch
    import torch.autograd.forward_ad as forward

    if out is not None:
        _check_out(plan, out, a)
    tensors = {"a": a, "b": b, **(given or {})}
    check_operands(tensors, {} if out is None else {"out": out})
    for name, x in (tensors if out is None else {**tensors, "out": out}).items():
        if x.device.type not in ("cuda", "cpu") or not addressed(x):
            raise OperandError(
                f"{name} is on {x.device}, or a {type(x).__qualname__} without memory of its own; this library runs on "
                "CUDA GPUs and, on the CPU, in the NumPy executor"
            )
        tangent = forward._current_level >= 0 and forward.unpack_dual(x).tangent is not None
        if tangent or (x.requires_grad and torch.is_grad_enabled()):
            what = "has a tangent" if tangent else "requires grad"
            raise OperandError(f"{name} {what}, and plan.run has no derivative: layoutgemm.matmul has")
    for operand, tensor in ((plan.a, a), (plan.b, b)):
        want = getattr(torch, _TORCH_NAMES[operand.dtype.name])
        if tensor.dtype != want:
            raise OperandError(f"{operand.name.lower()} is {tensor.dtype}, the plan takes {want}")


def _target(plan: Plan, out: Any, device: Any, copies: list[str], copy: bool) -> tuple[Any, bool]:
    """(tensor that the kernel writes, whether it is copied into `out` afterwards)."""
    import torch

    kind = getattr(torch, _TORCH_NAMES[plan.c.dtype.name])
    rows, extent = (plan.m, plan.n) if plan.c.order == "row" else (plan.n, plan.m)
    through_maps = isinstance(plan, PERSISTENT) and plan.store is not None
    made = padded_leading(plan.c.dtype, extent) if through_maps else extent
    if out is not None:
        rule = _store_rule(plan, out) if isinstance(plan, PERSISTENT) else ""
        if not rule:
            return out, False
        if not copy:
            raise OperandError(f"{rule}; copy=True computes into a buffer with pitch {made}, and copies")
        copies.append(f"{rule}: computed with pitch {made}, then copied")
    buffer = torch.empty((*batched(plan, (rows, made)),), dtype=kind, device=device)[..., :extent]
    return (buffer if plan.c.order == "row" else buffer.transpose(-1, -2)), out is not None


def _store_rule(plan: Sm90Plan | Sm100Plan, out: Any) -> str:
    """Why the kernel cannot write into `out`, or ""."""
    lines = out if plan.c.order == "row" else out.transpose(-1, -2)
    leading, pitch = _distances(lines, plan.c.dtype)
    size = plan.c.dtype.bytes
    if lines.shape[-1] > 1 and lines.stride(-1) != 1:
        return f"out: the plan writes it {plan.c.order}-major, but its strides are {tuple(out.stride())}"
    if plan.store is None:
        return ""
    if leading * size % 16:
        return f"out: leading dimension {leading} elements * {size} = {leading * size} bytes, no multiple of 16"
    if lines.ndim > 2 and pitch * size % 16:
        return f"out: matrices of the batch lie {pitch} * {size} = {pitch * size} bytes apart, no multiple of 16"
    if out.data_ptr() % 16:
        return f"out starts at {out.data_ptr():#x}, which is no multiple of 16 bytes, as a tensor map needs"
    if plan.beyond_line:  # what follows a line of the caller's tensor may be somebody else's
        return plan.beyond_line
    ragged = isinstance(plan, Sm90Plan) and plan.ragged is not None
    _check_map(one_matrix(plan.store.maps[0]) if ragged else plan.store.maps[0], "out", lines, leading, pitch)
    return ""


def _check_out(plan: Plan, out: Any, a: Any) -> None:
    import torch

    want = getattr(torch, _TORCH_NAMES[plan.c.dtype.name])
    shape = batched(plan, (plan.m, plan.n))
    if not isinstance(out, torch.Tensor) or out.dtype != want:
        raise OperandError(f"out must be a {want} tensor; got {getattr(out, 'dtype', type(out))}")
    check_operands({"out": out})
    if tuple(out.shape) != shape:
        raise OperandError(f"out has shape {tuple(out.shape)}, the plan gives {shape}")
    if out.device != a.device:
        raise OperandError(f"out is on {out.device}, a and b are on {a.device}")
    if isinstance(plan, TeachingPlan):
        if (plan.n > 1 and out.stride(1) != 1) or (plan.m > 1 and out.stride(0) < plan.n):
            raise OperandError(f"out has strides {tuple(out.stride())}; rows must be contiguous and not overlap")


def _into(out: Any, result: GemmResult) -> GemmResult:
    if out is None:
        return result
    out.copy_(result.c)
    return GemmResult(out, result.ran_on, result.why, result.copies)
