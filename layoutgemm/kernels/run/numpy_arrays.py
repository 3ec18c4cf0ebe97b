"""Running a plan: operands checked by name and rule, a device chosen and named, and the bound on the error."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...arguments import checked
from ...dtypes import bf16, dtype, f16, f32, i8, tf32, u8
from ...errors import OperandError, PlanError
from ..derive import OperandPlan, padded_leading
from ..sm90.plan import Sm90Plan
from ..sm90.reference import execute_sm90
from ..sm100.plan import Sm100Plan
from ..sm100.reference import execute_sm100
from ..teaching.plan import STRIDE_UNIT, TeachingPlan
from ..teaching.reference import execute
from .hardware_model import GlobalMatrix
from .operand_checks import check_operands

Plan = TeachingPlan | Sm90Plan | Sm100Plan
DEVICES = ("cuda", "emulator", "reference")
# Values that NumPy can hold of each type; float32 given for a narrower type is rounded to it, to nearest even.
_NUMPY_TAKES = {
    bf16: ("float32", "bfloat16"),
    f16: ("float32", "float16"),
    dtype("e4m3"): ("float32", "float8_e4m3fn"),
    dtype("e5m2"): ("float32", "float8_e5m2"),
    tf32: ("float32",),
    i8: ("int8",),
    u8: ("uint8",),
}
# Of a sum of products and the old accumulator, what an instruction may cut off each term, relative to the largest: f32
# keeps 24 bits, and the products of 8-bit types are added with 14 (DeepSeek-V3 Technical Report, 3.5.2; H800).
_CUT = {8: 2.0**-13, 16: 2.0**-23, 32: 2.0**-23}


@dataclass(frozen=True)
class GemmResult:
    """What a run gave: the product, where it ran, and which operands had to be copied first.

    c       (M, N), or (batch, M, N); NumPy float32 for NumPy inputs (narrower outputs as the float32 values they stand
            for), int32 of integers, else a torch tensor of the plan's type on the inputs' device, its lines padded to
            16 bytes where a tensor store needs that
    ran_on  "NVIDIA H200 (cuda:0)", "emulator", or "NumPy executor"
    why     why it ran there, when the caller did not choose
    copies  one sentence for each operand that was copied before the run, or `out` after it, with the rule that made it
            necessary
    written  what the plan's epilogue wrote besides C, by name, see `kernels.run.fused`
    """

    c: Any
    ran_on: str
    why: str = ""
    copies: tuple[str, ...] = field(default=())
    written: Mapping[str, Any] = field(default_factory=dict)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if isinstance(self.c, np.ndarray):
            return np.asarray(self.c, dtype=dtype)
        value = self.c.detach().float() if self.c.is_floating_point() else self.c
        return np.asarray(value.cpu().numpy(), dtype=dtype)


def run_plan(
    plan: Plan, a: Any, b: Any, *, out: Any = None, device: str | None = None, copy: bool = True,
    given: Mapping[str, Any] | None = None,
) -> GemmResult:  # fmt: skip
    """C = A @ B by the plan: (M, K) and (K, N) in, (M, N) out; of a batch, each with the batch in front.

    Of a gated product B is (K, 2N), the gate's columns first.

    a, b    both NumPy arrays (float32 values are rounded to the plan's types) or both torch tensors of the plan's
            types, on one device; of tf32 float32 in either case, which the tensor copies round
    out     where to put C: an array or tensor of the result's kind and type and shape, rows contiguous (columns for a
            plan whose C is column-major)
    device  "cuda"; "emulator": the compiled kernel, executed on the CPU and checked for races; "reference": the NumPy
            executor; or None: the GPU when there is one that can run the plan, else the executor; CUDA tensors always
            run on their GPU
    given   what the plan reads besides, by name (an epilogue's operands, a main loop's tables, a ragged batch's
            offsets): arrays beside arrays, CUDA tensors beside CUDA tensors
    copy    an operand whose order, strides or alignment the tensor copies cannot take is copied into one they can, and
            the result says so; False refuses instead

    Raises OperandError naming the tensor and the rule, PlanError when the plan cannot run on the device asked for,
    EmulatorError with a report when the emulator finds anything.

    >>> plan = TeachingPlan.derive(3, 4, 8)
    >>> result = plan.run(np.ones((3, 8), np.float32), np.ones((8, 4), np.float32), device="reference")
    >>> result.ran_on, result.c[0].tolist()
    ('NumPy executor', [8.0, 8.0, 8.0, 8.0])
    """
    if isinstance(plan, (Sm90Plan, Sm100Plan)) and plan.epilogue:
        from .fused import run_fused

        return run_fused(plan, a, b, given or {}, out, device, copy)
    from . import torch_tensors as on_device

    if device not in (None, *DEVICES):
        raise OperandError(f"device {device!r}: known are {', '.join(map(repr, DEVICES))}, or None to choose")
    kinds = {name: _kind(name, value) for name, value in (("a", a), ("b", b))}
    if len(set(kinds.values())) > 1:
        raise OperandError(f"a is a {kinds['a']} and b a {kinds['b']}: give both as one kind, on one device")
    kind = kinds["a"]
    for name, value, shape in (("a", a, (plan.m, plan.k)), ("b", b, (plan.k, columns_of_b(plan)))):
        _check_shape(name, value, batched(plan, shape, name))
    reads = isinstance(plan, Sm90Plan) and (plan.mainloop is not None or plan.ragged is not None)
    if given and not reads:
        raise OperandError(f"given = {', '.join(given)}: the plan reads a and b alone")
    if reads and kind.startswith("torch tensor on cuda") and device in (None, "cuda"):
        assert isinstance(plan, Sm90Plan)
        return on_device.run_given(plan, a, b, dict(given or {}), out, copy)
    if reads and kind.startswith("torch"):
        raise OperandError(f"a is a {kind}: a plan that reads more than a and b takes CUDA tensors, or NumPy arrays")
    if kind.startswith("torch"):
        return on_device.run_tensors(plan, a, b, out, device, copy)
    for operand, value in ((plan.a, a), (plan.b, b)):
        _check_numpy_type(operand, value)
    if out is not None:
        _check_numpy_out(plan, out)
    chosen, why = on_device.chosen_device(plan, device)
    words: tuple[Any, ...] = ()
    if reads and chosen == "cuda":
        from .epilogue_operands import given_of, words_of_arrays

        assert isinstance(plan, Sm90Plan)
        words = words_of_arrays(plan, given_of(plan, given or {}))
    elif reads:
        from .epilogue_operands import execute_given

        assert isinstance(plan, Sm90Plan)
        copies: list[str] = []
        lying = [global_matrix(operand, value, copies, copy) for operand, value in ((plan.a, a), (plan.b, b))]
        c = execute_given(plan, lying[0], lying[1], given or {}, chosen)
        result = GemmResult(c, "emulator" if chosen == "emulator" else "NumPy executor", why, tuple(copies))
        if out is not None:
            out[...] = result.c
        return result if out is None else GemmResult(out, result.ran_on, why, result.copies)
    if chosen == "cuda":
        result = on_device.run_arrays(plan, a, b, why, words)
    else:
        result = run_on_cpu(plan, a, b, chosen, why, copy)
    if out is None:
        return result
    out[...] = result.c
    return GemmResult(out, result.ran_on, result.why, result.copies)


def columns_of_b(plan: Plan) -> int:
    """N, or, of a gated product, twice that: the gate's columns and then the others."""
    return plan.n * plan.halves if isinstance(plan, Sm90Plan) else plan.n


def batched(plan: Plan, shape: tuple[int, int], name: str = "c") -> tuple[int, ...]:
    """The shape of one matrix, or of the plan's batch of them; of a ragged batch, B alone has a matrix each."""
    if isinstance(plan, Sm90Plan) and plan.ragged is not None:
        return (plan.batch, *shape) if name == "b" else shape
    return (plan.batch, *shape) if plan.batch > 1 else shape


def run_on_cpu(
    plan: Plan, a: npt.NDArray[Any], b: npt.NDArray[Any], device: str, why: str, copy: bool
) -> GemmResult:
    """Run the NumPy executor, or the emulator, on arrays that have been checked."""
    if device == "reference":
        return run_reference(plan, a, b, why, copy)
    from .emulated import execute_compiled

    copies: list[str] = []
    bits_a, bits_b = (global_matrix(operand, value, copies, copy) for operand, value in ((plan.a, a), (plan.b, b)))
    return GemmResult(execute_compiled(plan, bits_a, bits_b), "emulator", why, tuple(copies))


def run_reference(plan: Plan, a: npt.NDArray[Any], b: npt.NDArray[Any], why: str, copy: bool) -> GemmResult:
    """Run the NumPy executor on arrays that have been checked."""
    copies: list[str] = []
    bits_a, bits_b = (global_matrix(operand, value, copies, copy) for operand, value in ((plan.a, a), (plan.b, b)))
    if isinstance(plan, Sm90Plan):
        c = execute_sm90(plan, bits_a, bits_b, progress=_progress_line())
    elif isinstance(plan, Sm100Plan):
        c = execute_sm100(plan, bits_a, bits_b, progress=_progress_line())
    else:
        c = execute(plan, bits_a, bits_b, progress=_progress_line())
    return GemmResult(c, "NumPy executor", why, tuple(copies))


def global_matrix(operand: OperandPlan, value: npt.NDArray[Any], copies: list[str], copy: bool) -> GlobalMatrix:
    """The operand's bits as they would lie in global memory, pitched so that a tensor map takes them.

    Values must be converted to bits in any case; what counts as a copy here is a pitch other than the matrix's own.
    """
    lines = value if operand.order == "row" else value.swapaxes(-1, -2)  # lines of contiguous elements
    count, extent = lines.shape[-2:]
    # One line has no pitch; of a batch, it is as far from the next matrix's.
    leading = padded_leading(operand.dtype, extent) if count > 1 or lines.ndim > 2 else extent
    if leading != extent:
        refuse_or_note(operand, pitch_rule(operand, extent), f"pitch {leading}", copies, copy)
    buffer = np.zeros((*lines.shape[:-1], leading), dtype=operand.dtype.storage)
    buffer[..., :extent] = raw_bits(operand, lines)
    return GlobalMatrix(buffer.reshape(-1), leading, (extent, count, *lines.shape[:-2]), count * leading)


def raw_bits(operand: OperandPlan, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The bits of values that are of the operand's type already, or are rounded to it; of tf32 a copy rounds them."""
    if operand.dtype != tf32 and values.dtype.name in ("float32", "float16"):
        return operand.dtype.encode(values)
    return values.view(operand.dtype.storage)


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


@checked(OperandError)
def error_bound(plan: Plan, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The largest error that f32 accumulation (and rounding to C's type) may leave in each element of C.

    For inputs exactly representable in A's and B's type, products are exact in f32. Each instruction adds `d` products
    and the old accumulator, d + 1 terms for its depth d, each cut to the significand of the largest, which costs `u` of
    it at most; partial sums of a K in s parts are added in f32. So for T = ceil(K / d) instructions and float types

        |C - exact| <= E = ((d + 1) * T * u + (s - 1) * 2**-23) * (|A| @ |B|)

        A and B     d     u
        16 bits    16     2**-23
        8 bits     32     2**-13
        tf32        8     2**-23

    For tf32, A and B are float32 values, which the copies round to A' and B': E is of those, and |A - A'| @ |B| +
    |A'| @ |B - B'| comes on top of it, at most (2**-10 + 2**-22) * (|A| @ |B|). Sums of integers are exact, or
    stop at the ends of int32: E is 0 for an i32 C, and for others 2**-24 * |exact|, of sums that did not stop.

    And for a narrower C of unit roundoff r (bf16 2**-8, f16 2**-11, e4m3 2**-4, e5m2 2**-3) and smallest positive value
    t, E + r * (|exact| + E) + t / 2. Values must be finite, and C within its type's range. The bound is a worst case:
    rounding errors cancel, and a typical error is far below it. Raises PlanError for a gated product, which is no sum,
    and for a main loop of its own.
    """
    if isinstance(plan, Sm90Plan) and plan.gated is not None:
        raise PlanError(f"the bound is of sums of products; the plan's are gated by {plan.gated.kind}")
    if isinstance(plan, Sm90Plan) and plan.mainloop is not None:
        raise PlanError("the bound is of sums of products; the plan has a main loop of its own")
    depth = plan.mma.shape_mnk[2]
    a64, b64 = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if plan.mma.c_dtype.kind == "int" and plan.c.dtype.kind == "int":
        return np.zeros((*a64.shape[:-1], b64.shape[-1]))
    if plan.a.dtype == tf32:
        near_a, near_b = (np.asarray(tf32.decode(tf32.encode(x)), dtype=np.float64) for x in (a64, b64))
        given = np.abs(a64 - near_a) @ np.abs(b64) + np.abs(near_a) @ np.abs(b64 - near_b)
        exact, a64, b64 = a64 @ b64, near_a, near_b
    else:
        given, exact = 0.0, a64 @ b64
    if plan.mma.c_dtype.kind == "int":
        bound = f32.unit_roundoff * np.abs(exact)
    else:
        terms = (depth + 1) * -(-plan.k // depth) * _CUT[plan.a.dtype.bits]
        if isinstance(plan, Sm90Plan):
            terms += (plan.config.split - 1) * 2 * f32.unit_roundoff
        bound = terms * (np.abs(a64) @ np.abs(b64)) + given
    if plan.c.dtype != f32:
        least = float(plan.c.dtype.decode(np.array([1]))[0])
        bound += plan.c.dtype.unit_roundoff * (np.abs(exact) + bound) + least / 2
    return np.asarray(bound)


def _kind(name: str, value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "NumPy array"
    module = type(value).__module__.partition(".")[0]
    if module == "torch" and hasattr(value, "data_ptr"):
        check_operands({name: value})
        return f"torch tensor on {value.device}"
    raise OperandError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}; give NumPy arrays or torch tensors"
    )


def _check_shape(name: str, value: Any, shape: tuple[int, ...]) -> None:
    if tuple(value.shape) != shape:
        raise OperandError(f"{name} has shape {tuple(value.shape)}, the plan takes {shape}")


def _check_numpy_type(operand: OperandPlan, value: npt.NDArray[Any]) -> None:
    takes = _NUMPY_TAKES[operand.dtype]
    if value.dtype.name not in takes:
        raise OperandError(
            f"{operand.name.lower()} is {value.dtype}; the plan's {operand.dtype} is given as {' or '.join(takes)}"
        )


def _check_numpy_out(plan: Plan, out: Any) -> None:
    want = "a float32" if plan.c.dtype.kind == "float" else "an int32"
    if not isinstance(out, np.ndarray) or out.dtype.name != want.split()[1]:
        raise OperandError(f"out must be {want} NumPy array, as the result is; got {getattr(out, 'dtype', type(out))}")
    _check_shape("out", out, batched(plan, (plan.m, plan.n)))
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
