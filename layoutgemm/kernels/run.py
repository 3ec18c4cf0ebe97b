"""Running a plan: operands checked by name and rule, a device chosen and named, and the bound on the error."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtypes import DType, bf16, f16, f32
from ..errors import OperandError
from .plan import STRIDE_UNIT, GemmPlan, OperandPlan
from .reference import execute
from .silicon import GlobalMatrix

DEVICES = ("cuda", "emulator", "reference")
# Values that NumPy can hold of each type; float32 given for a narrower type is rounded to it, to nearest even.
_NUMPY_TAKES = {bf16: ("float32", "bfloat16"), f16: ("float32", "float16")}


@dataclass(frozen=True)
class GemmResult:
    """What a run gave: the product, where it ran, and which operands had to be copied first.

    c       (M, N), NumPy float32 for NumPy inputs (bf16 and f16 outputs as the float32 values they stand for), else a
            torch tensor of the plan's type on the inputs' device
    ran_on  "NVIDIA H200 (cuda:0)", "emulator", or "NumPy executor"
    why     why it ran there, when the caller did not choose
    copies  one sentence for each operand that was copied before the run, with the rule that made it necessary
    """

    c: Any
    ran_on: str
    why: str = ""
    copies: tuple[str, ...] = field(default=())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        value = self.c if isinstance(self.c, np.ndarray) else self.c.detach().float().cpu().numpy()
        return np.asarray(value, dtype=dtype)


def run_plan(
    plan: GemmPlan, a: Any, b: Any, *, out: Any = None, device: str | None = None, copy: bool = True
) -> GemmResult:
    """C = A @ B by the plan: (M, K) and (K, N) in, (M, N) out.

    a, b    both NumPy arrays (float32 values are rounded to bf16 or f16) or both torch tensors of the plan's types, on
            one device
    out     where to put C: an array or tensor of the result's kind and type, (M, N), rows contiguous
    device  "cuda"; "emulator": the compiled kernel, executed on the CPU and checked for races; "reference": the NumPy
            executor; or None: the GPU when there is one that can run the plan, else the executor; CUDA tensors always
            run on their GPU
    copy    an operand whose order, strides or alignment the tensor copies cannot take is copied into one they can, and
            the result says so; False refuses instead

    Raises OperandError naming the tensor and the rule, PlanError when the plan cannot run on the device asked for,
    EmulatorError with a report when the emulator finds anything.

    >>> plan = GemmPlan.derive(3, 4, 8)
    >>> result = plan.run(np.ones((3, 8), np.float32), np.ones((8, 4), np.float32), device="reference")
    >>> result.ran_on, result.c[0].tolist()
    ('NumPy executor', [8.0, 8.0, 8.0, 8.0])
    """
    if device not in (None, *DEVICES):
        raise OperandError(f"device {device!r}: known are {', '.join(map(repr, DEVICES))}, or None to choose")
    kinds = {name: _kind(name, value) for name, value in (("a", a), ("b", b))}
    if len(set(kinds.values())) > 1:
        raise OperandError(f"a is a {kinds['a']} and b a {kinds['b']}: give both as one kind, on one device")
    kind = kinds["a"]
    for name, value, shape in (("a", a, (plan.m, plan.k)), ("b", b, (plan.k, plan.n))):
        _check_shape(name, value, shape)
    if kind.startswith("torch"):
        from . import device as on_device

        return on_device.run_tensors(plan, a, b, out, device, copy)
    for operand, value in ((plan.a, a), (plan.b, b)):
        _check_numpy_type(operand, value)
    if out is not None:
        _check_numpy_out(plan, out)
    chosen, why = device or "", ""
    if not chosen:
        from .device import gpu_for

        found, why = gpu_for(plan)
        chosen = "cuda" if found else "reference"
    if chosen == "cuda":
        from . import device as on_device

        result = on_device.run_arrays(plan, a, b, why)
    else:
        result = run_on_cpu(plan, a, b, chosen, why, copy)
    if out is None:
        return result
    out[...] = result.c
    return GemmResult(out, result.ran_on, result.why, result.copies)


def run_on_cpu(
    plan: GemmPlan, a: npt.NDArray[Any], b: npt.NDArray[Any], device: str, why: str, copy: bool
) -> GemmResult:
    """Run the NumPy executor, or the emulator, on arrays that have been checked."""
    if device == "reference":
        return run_reference(plan, a, b, why, copy)
    from .emulated import execute_compiled

    copies: list[str] = []
    bits_a, bits_b = (global_matrix(operand, value, copies, copy) for operand, value in ((plan.a, a), (plan.b, b)))
    return GemmResult(execute_compiled(plan, bits_a, bits_b), "emulator", why, tuple(copies))


def run_reference(plan: GemmPlan, a: npt.NDArray[Any], b: npt.NDArray[Any], why: str, copy: bool) -> GemmResult:
    """Run the NumPy executor on arrays that have been checked."""
    copies: list[str] = []
    bits_a, bits_b = (global_matrix(operand, value, copies, copy) for operand, value in ((plan.a, a), (plan.b, b)))
    c = execute(plan, bits_a, bits_b, progress=_progress_line())
    return GemmResult(c, "NumPy executor", why, tuple(copies))


def global_matrix(operand: OperandPlan, value: npt.NDArray[Any], copies: list[str], copy: bool) -> GlobalMatrix:
    """The operand's bits as they would lie in global memory, pitched so that a tensor map takes them.

    Values must be converted to bits in any case; what counts as a copy here is a pitch other than the matrix's own.
    """
    lines = value if operand.order == "row" else value.T  # lines of contiguous elements
    leading = padded_leading(operand.dtype, lines.shape[1]) if lines.shape[0] > 1 else lines.shape[1]
    if leading != lines.shape[1]:
        refuse_or_note(operand, pitch_rule(operand, lines.shape[1]), f"pitch {leading}", copies, copy)
    bits = operand.dtype.encode(lines) if lines.dtype.name != "bfloat16" else lines.view(np.uint16)
    buffer = np.zeros((lines.shape[0], leading), dtype=bits.dtype)
    buffer[:, : lines.shape[1]] = bits
    return GlobalMatrix(buffer.reshape(-1), leading, (lines.shape[1], lines.shape[0]))


def padded_leading(dtype: DType, extent: int) -> int:
    """The smallest leading dimension of at least `extent` elements that is a whole number of 16-byte units."""
    unit = STRIDE_UNIT * 8 // dtype.bits
    return -(-extent // unit) * unit


def pitch_rule(operand: OperandPlan, leading: int) -> str:
    """The sentence for a pitch that a tensor map does not take."""
    return (
        f"{operand.name.lower()}: leading dimension {leading} elements * {operand.dtype.bytes} = "
        f"{leading * operand.dtype.bytes} bytes, a tensor map needs a multiple of {STRIDE_UNIT} bytes"
    )


def refuse_or_note(operand: OperandPlan, rule: str, made: str, copies: list[str], copy: bool) -> None:
    """Raise OperandError with the rule, or note the copy that makes the operand acceptable."""
    if not copy:
        raise OperandError(f"{rule}; copy=True makes a copy with {made}")
    copies.append(f"{rule}: copied with {made}")


def error_bound(plan: GemmPlan, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The largest error that f32 accumulation (and rounding to C's type) may leave in each element of C.

    For inputs exactly representable in A's and B's type, products are exact in f32. Each instruction adds `d` products
    and the old accumulator, d + 1 terms for its depth d = 16, each cut to the f32 significand of the largest, which
    costs 2**-23 of it at most. So for T = ceil(K / 16) instructions

        |C - exact| <= E = 17 * T * 2**-23 * (|A| @ |B|),   and for a bf16 C:  E + 2**-8 * (|exact| + E).

    Values must be finite. The bound is a worst case: rounding errors cancel, and a typical error is far below it.
    """
    depth = plan.mma.shape_mnk[2]
    a64, b64 = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    terms = (depth + 1) * -(-plan.k // depth)
    bound = terms * 2 * f32.unit_roundoff * (np.abs(a64) @ np.abs(b64))
    if plan.c.dtype != f32:
        bound += plan.c.dtype.unit_roundoff * (np.abs(a64 @ b64) + bound)
    return np.asarray(bound)


def _kind(name: str, value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "NumPy array"
    module = type(value).__module__.partition(".")[0]
    if module == "torch" and hasattr(value, "data_ptr"):
        return f"torch tensor on {value.device}"
    raise OperandError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}; give NumPy arrays or torch tensors"
    )


def _check_shape(name: str, value: Any, shape: tuple[int, int]) -> None:
    if tuple(value.shape) != shape:
        raise OperandError(f"{name} has shape {tuple(value.shape)}, the plan takes {shape}")


def _check_numpy_type(operand: OperandPlan, value: npt.NDArray[Any]) -> None:
    takes = _NUMPY_TAKES[operand.dtype]
    if value.dtype.name not in takes:
        raise OperandError(
            f"{operand.name.lower()} is {value.dtype}; the plan's {operand.dtype} is given as {' or '.join(takes)}"
        )


def _check_numpy_out(plan: GemmPlan, out: Any) -> None:
    if not isinstance(out, np.ndarray) or out.dtype != np.float32:
        raise OperandError(f"out must be a float32 NumPy array, as a and b are; got {getattr(out, 'dtype', type(out))}")
    _check_shape("out", out, (plan.m, plan.n))
    if not out.flags.writeable:
        raise OperandError("out is read-only")


def _progress_line(every: float = 2.0) -> Any:
    """A progress callback that writes a line to stderr every two seconds, and nothing for short runs."""
    start = last = time.monotonic()

    def report(done: int, blocks: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= every and done < blocks:
            last = now
            left = (now - start) / done * (blocks - done)
            print(f"NumPy executor: block {done} of {blocks}, about {left:.0f} s left", file=sys.stderr, flush=True)

    return report
