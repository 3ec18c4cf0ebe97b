"""Plans on a GPU, through torch. Which GPU can run one, and its launch on the current stream.

A kernel's `OperandPath` says how its operands lie. torch is imported inside of functions only.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...arch import arch
from ...dtypes import DType
from ...errors import OperandError, PlanError
from ..compile.compiler import compile_plan
from ..compile.compiler import require_gpu as require_any_gpu
from ..derive import memory_unit
from ..plan import GemmPlan, present
from ..teaching.plan import TeachingPlan
from ..verbs import named
from .arrays import batched
from .operand_checks import addressed, check_operands, resolved
from .result import GemmResult

if TYPE_CHECKING:
    import torch


TORCH_NAMES = {
    "bf16": "bfloat16", "f16": "float16", "f32": "float32", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
    "tf32": "float32", "i8": "int8", "u8": "uint8", "i32": "int32", "i64": "int64",
    "e2m1": "float4_e2m1fn_x2", "e3m2": "uint8", "e2m3": "uint8", "ue8m0": "float8_e8m0fnu", "ue4m3": "float8_e4m3fn",
}  # fmt: skip


@dataclass(frozen=True)
class OperandPath:
    """The path of operands into a kernel, and of C out of it.

    bits       (operand, values) -> the raw bits of NumPy values
    on_cpu     (plan, a, b, device, why, copy, values, words) -> the result of the NumPy executor or of the emulator, on
               checked arrays; further operands by name for the one, as the launch's last arguments for the other
    lines      (plan, "A" or "B", tensor, copies, copy) -> (lines, elements from line to line, from matrix to matrix)
    target     (plan, out, device, copies, copy) -> (tensor that the kernel writes, whether `out` is a copy of it)
    arguments  (plan, the lines of A, those of B, C, index of the GPU) -> the launch's numbers after the addresses
    """

    bits: Callable[..., np.ndarray]
    on_cpu: Callable[..., GemmResult]
    lines: Callable[..., tuple[Any, int, int]]
    target: Callable[..., tuple[Any, bool]]
    arguments: Callable[..., tuple[int, ...]]


def _path_of(plan: GemmPlan) -> OperandPath:
    path: OperandPath = named(plan.operand_path)
    return path


def torch_type(dtype: DType) -> torch.dtype:
    """torch's type of the elements."""
    import torch

    return getattr(torch, TORCH_NAMES[dtype.name])


def copyable(x: torch.Tensor) -> torch.Tensor:
    """The tensor, as bytes where its elements have 4 bits: torch copies none of these."""
    import torch

    return x.view(torch.uint8) if str(x.dtype) == f"torch.{TORCH_NAMES['e2m1']}" else x


def gpu_for(plan: Any, index: int | None = None) -> tuple[bool, str]:
    """(True if a GPU of this machine runs the plan or level, the reason)."""
    if importlib.util.find_spec("torch") is None:
        return False, "torch is not installed, so no GPU can be reached"
    import torch

    if not torch.cuda.is_available():
        return False, "torch finds no CUDA GPU"
    found = torch.cuda.get_device_capability(index)
    name = torch.cuda.get_device_name(index)
    if found not in plan.arch.capabilities:
        return False, f"the plan is for {plan.arch.name}, the GPU is {name} (compute capability {found[0]}.{found[1]})"
    if importlib.util.find_spec("cutlass") is None:
        return False, f"{name} is here, but the CuTe DSL is not installed: pip install 'layoutgemm[dsl]'"
    return True, f"torch finds {name}"


def chosen_device(plan: object, device: str | None, otherwise: str = "reference") -> tuple[str, str]:
    """(the device asked for, else a GPU that runs the plan, else `otherwise`; the reason)."""
    if device is not None:
        return device, ""
    found, why = gpu_for(plan)
    return ("cuda" if found else otherwise), why


def target_here(targets: Sequence[str], default: str) -> str:
    """The first of these targets that this machine's GPU runs, or the default."""
    try:
        require_any_gpu()  # torch, slow to import, is asked only where CUDA finds a GPU
        import torch

        found = torch.cuda.get_device_capability()
    except (ImportError, PlanError, RuntimeError):
        return default
    return next((name for name in targets if found in arch(name).capabilities), default)


def run_tensors(
    plan: GemmPlan, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, device: str | None, copy: bool
) -> GemmResult:
    """Run on torch tensors. CUDA tensors on their GPU, CPU tensors on the NumPy executor or, when asked, elsewhere."""
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
        result = _path_of(plan).on_cpu(plan, arrays[0], arrays[1], chosen, why, copy)
        c = torch.from_numpy(result.c).to(torch_type(plan.c.dtype))
        return _copied(out, replace(result, c=c))
    target = (
        a.device if on_gpu else torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    )
    require_gpu(plan, target.index)
    if on_gpu:
        return launch(plan, a, b, out, why, copy)
    result = launch(plan, a.to(target), b.to(target), None, why, copy)
    return _copied(out, replace(result, c=result.c.cpu()))


def run_arrays(
    plan: GemmPlan, a: np.ndarray, b: np.ndarray, why: str, words: Sequence[int | np.ndarray] = ()
) -> GemmResult:
    """Run on NumPy arrays: upload, run, download. Values are rounded here exactly as the executor rounds them.

    words  a launch's last arguments, of a plan that has `words`: numbers, and arrays, which hold afterwards what the
           kernel left in them
    """
    require_gpu(plan, None)
    import torch

    tensors = []
    for operand, value in ((plan.a, a), (plan.b, b)):
        lines = value if operand.order == "row" else value.swapaxes(-1, -2)
        bits = np.ascontiguousarray(_path_of(plan).bits(operand, lines))
        signed = torch.from_numpy(bits.view(f"i{memory_unit(operand.dtype).bytes}"))
        tensor = signed.cuda().view(torch_type(operand.dtype))
        tensors.append(tensor if operand.order == "row" else tensor.transpose(-1, -2))
    besides = [(word, torch.from_numpy(word.view(np.uint8)).cuda()) for word in words if isinstance(word, np.ndarray)]
    addresses = iter([there.data_ptr() for _, there in besides])
    numbers = tuple([next(addresses) if isinstance(word, np.ndarray) else word for word in words])
    result = launch(plan, tensors[0], tensors[1], None, why, True, numbers)
    for word, there in besides:
        word.view(np.uint8)[...] = there.cpu().numpy()
    c = result.c.float() if result.c.is_floating_point() else result.c
    return replace(result, c=c.cpu().numpy())


def run_on_device(
    plan: GemmPlan, a: np.ndarray, b: np.ndarray, device: str, why: str, copy: bool,
    values: Mapping[str, object] | None = None, words: tuple[Any, ...] = (),
) -> GemmResult:  # fmt: skip
    """Run on NumPy arrays that have been checked, where `chosen_device` says. `values`, `words` as of `OperandPath`."""
    if device == "cuda":
        return run_arrays(plan, a, b, why, words)
    return _path_of(plan).on_cpu(plan, a, b, device, why, copy, values, words)


def require_gpu(plan: GemmPlan, index: int | None) -> None:
    """Raise PlanError with the reason when the plan cannot run on the GPU."""
    found, why = gpu_for(plan, index)
    if not found:
        raise PlanError(f"device 'cuda' was asked for: {why}; 'emulator' and 'reference' need no GPU")


@dataclass(frozen=True)
class TensorLaunch:
    """One launch of a plan on tensors.

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


def launch_of(
    plan: GemmPlan, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, copy: bool, words: tuple[int, ...] = ()
) -> TensorLaunch:
    """The launch of a plan on checked tensors of the current device, its copies made."""
    copies: list[str] = []
    path = _path_of(plan)
    of_a, of_b = path.lines(plan, "A", a, copies, copy), path.lines(plan, "B", b, copies, copy)
    c, late = path.target(plan, out, a.device, copies, copy)
    pointers = of_a[0].data_ptr(), of_b[0].data_ptr(), c.data_ptr()
    numbers = path.arguments(plan, of_a, of_b, c, a.device.index)
    return TensorLaunch((*pointers, *numbers, *words), c, late, (of_a[0], of_b[0]), tuple(copies))


def launch(
    plan: GemmPlan, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, why: str, copy: bool,
    words: tuple[int, ...] = (),
) -> GemmResult:  # fmt: skip
    """Run the plan's kernel on CUDA tensors that have been checked. `words` are the launch's last arguments."""
    import torch

    with torch.cuda.device(a.device):
        made = launch_of(plan, a, b, out, copy, words)
        compile_plan(plan).launch(*made.arguments, stream=torch.cuda.current_stream(a.device).cuda_stream)
        if made.late:
            present(out).copy_(made.c)
    c = out if made.late else made.c
    return GemmResult(c, f"{torch.cuda.get_device_name(a.device)} ({a.device})", why, made.copies)


def check_tensors(
    plan: Any, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None,
    given: Mapping[str, torch.Tensor] | None = None,
) -> None:  # fmt: skip
    """Raise OperandError unless a plan can run on these tensors. Dense, of its types, on one device, an output of its
    shape in memory of its own, and no derivative recorded."""
    import torch
    import torch.autograd.forward_ad as forward

    if out is not None:
        check_out(plan, out, a)
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
        want = torch_type(operand.dtype)
        if tensor.dtype != want:
            raise OperandError(f"{operand.name.lower()} is {tensor.dtype}, the plan takes {want}")


def check_out(plan: GemmPlan, out: torch.Tensor | None, a: torch.Tensor) -> None:
    """Raise OperandError for an output that the kernel cannot write."""
    import torch

    want = torch_type(plan.c.dtype)
    shape = batched(plan, (plan.rows_of_c, plan.n))
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


def _copied(out: torch.Tensor | None, result: GemmResult) -> GemmResult:
    """The result with C stored in the tensor `out`, if given."""
    if out is None:
        return result
    out.copy_(result.c)
    return replace(result, c=out)
