"""Running a plan: operands checked by name and rule, a device chosen and named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from ...arguments import shown
from ...errors import OperandError, PlanError
from ..plan import GemmPlan
from ..sm80.plan import Sm80Plan
from ..sm90.plan import Sm90Plan
from ..sm100.plan import Sm100Plan
from ..streamed.plan import StreamedPlan
from .arrays import check_arrays, check_matrices
from .epilogue_operands import run_by_name
from .fused import run_fused
from .partial import is_partial, stored_into
from .quantized import run_quantized
from .records import recorded
from .result import GemmResult
from .torch_tensors import chosen_device, run_on_device, run_tensors

if TYPE_CHECKING:
    import torch


Plan = GemmPlan


def run_plan(
    plan: Plan, a: np.ndarray | torch.Tensor, b: np.ndarray | torch.Tensor, *,
    out: np.ndarray | torch.Tensor | None = None, device: str | None = None, copy: bool = True,
    given: Mapping[str, object] | None = None, banks: bool = False, timeline: bool = False,
) -> GemmResult:  # fmt: skip
    """C = A @ B by the plan. (M, K) and (K, N) in, (M, N) out; of a batch, each with the batch in front.

    Of a gated product B is (K, 2N), the gate's columns first. Of a plan with `weights` A is PackedWeights,
    or B of an Sm80Plan.

    a, b    both NumPy arrays (float32 values are rounded to the plan's types) or both torch tensors of the plan's
            types, on one device; of tf32 float32 in either case, which the tensor copies round
    out     where to put C: an array or tensor of the result's kind and type and shape, rows contiguous (columns for a
            plan whose C is column-major)
    device  "cuda"; "emulator": the compiled kernel, executed on the CPU and checked for races; "reference": the NumPy
            executor; or None: the GPU when there is one that can run the plan, else the executor; CUDA tensors always
            run on their GPU
            a plan whose order leaves tiles of C out does not touch them: they keep their values, or are zeros without
            an `out`
    given   what the plan reads besides, by name (an epilogue's operands, a main loop's tables, a ragged batch's
            offsets): arrays beside arrays, CUDA tensors beside CUDA tensors
    copy    an operand whose order, strides or alignment the tensor copies cannot take is copied into one they can, and
            the result says so; False refuses instead
    banks, timeline  records of the emulator, in the result's `emulation`: wavefronts of shared memory for each
            instruction, and what each warp and engine did; the device is then the emulator

    Raises OperandError naming the tensor and the rule, PlanError when the plan cannot run on the device asked for,
    EmulatorError with a report when the emulator finds anything.

    >>> import numpy as np
    >>> from layoutgemm.kernels import TeachingPlan
    >>> plan = TeachingPlan.derive(3, 4, 8)
    >>> result = plan.run(np.ones((3, 8), np.float32), np.ones((8, 4), np.float32), device="reference")
    >>> result.ran_on, result.c[0].tolist()
    ('NumPy executor', [8.0, 8.0, 8.0, 8.0])
    """
    if not is_partial(plan) or getattr(a, "is_cuda", False):
        return _recorded(plan, a, b, out, device, copy, given, banks, timeline)
    result = _recorded(plan, a, b, None, device, copy, given, banks, timeline)
    return stored_into(plan, result, out, given or {})


def _recorded(
    plan: Plan, a: np.ndarray | torch.Tensor, b: np.ndarray | torch.Tensor, out: np.ndarray | torch.Tensor | None,
    device: str | None, copy: bool, given: Mapping[str, object] | None, banks: bool, timeline: bool,
) -> GemmResult:  # fmt: skip
    """The run, with the emulator's records if asked for."""
    if not (banks or timeline):
        return _run(plan, a, b, out, device, copy, given)
    if device not in (None, "emulator"):
        raise PlanError(f"device = {shown(device)}: banks and timeline are records of the emulator; leave device out")
    with recorded(banks, timeline) as records:
        result = _run(plan, a, b, out, "emulator", copy, given)
    return replace(result, emulation=records.emulations[-1])


def _run(
    plan: Plan, a: np.ndarray | torch.Tensor, b: np.ndarray | torch.Tensor, out: np.ndarray | torch.Tensor | None,
    device: str | None, copy: bool, given: Mapping[str, object] | None,
) -> GemmResult:  # fmt: skip
    if isinstance(plan, Sm90Plan) and plan.shards is not None:
        raise PlanError(f"{plan.shards.name} is of several GPUs: it runs through layoutgemm.distributed")
    if isinstance(plan, (Sm80Plan, Sm90Plan, StreamedPlan)) and plan.weights is not None:
        return run_quantized(plan, a, b, given or {}, out, device, copy)
    if isinstance(plan, (Sm80Plan, Sm90Plan, Sm100Plan)) and plan.epilogue:
        return run_fused(plan, a, b, given or {}, out, device, copy)
    kind = check_matrices(plan, a, b, device)
    if isinstance(plan, Sm90Plan) and plan.triangles is not None and isinstance(a, np.ndarray):
        left, said = a, "a"
        if plan.prologue is not None:
            left, said = plan.prologue.reference(a, cast("Mapping[str, np.ndarray]", given)), "f(a)"
        plan.triangles.check(left, np.asarray(b), said)
    if isinstance(plan, (Sm80Plan, Sm90Plan, Sm100Plan)) and "word" in plan.parameters.values():
        return run_by_name(plan, a, b, given or {}, out, copy, device)
    if given:
        raise OperandError(f"given = {', '.join(given)}: the plan reads a and b alone")
    if kind.startswith("torch"):
        return run_tensors(plan, a, b, out, device, copy)
    check_arrays(plan, a, b, out)
    chosen, why = chosen_device(plan, device)
    return run_on_device(plan, a, b, chosen, why, copy).into(out)
