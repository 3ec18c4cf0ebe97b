"""Plans with an epilogue, run on NumPy arrays: the compiled kernel on a GPU or in the emulator, operands by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...errors import OperandError
from ..epilogue.arrays import Arrays
from ..sm90.plan import Sm90Plan
from ..sm100.plan import Sm100Plan
from .arrays import batched, check_arrays, check_shapes
from .cpu import executed, run_on_cpu
from .result import GemmResult
from .torch_tensors import chosen_device, run_arrays

if TYPE_CHECKING:
    import torch


def run_fused(
    plan: Sm90Plan | Sm100Plan, a: np.ndarray | torch.Tensor, b: np.ndarray | torch.Tensor, given: Mapping[str, object],
    out: np.ndarray | torch.Tensor | None, device: str | None, copy: bool,
) -> GemmResult:  # fmt: skip
    """C = epilogue(A @ B): `run.run_plan` for a plan with an epilogue. NumPy arrays alone.

    given   what the epilogue reads, by name: numbers, vectors along M or N, matrices of C's shape
    device  "cuda", "emulator", or None: the GPU when there is one that can run the plan, else the emulator

    Raises OperandError for another device or tensors, and for operands that the epilogue does not take. Raises
    PlanError if the GPU cannot run the plan, and EmulatorError with the emulator's report.
    """
    if device not in (None, "cuda", "emulator") or not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        names = ", ".join(operand.name for operand in plan.epilogue.given) or "no operands"
        raise OperandError(
            f"the plan has an epilogue ({names}), which run() executes on NumPy arrays, on a GPU or in the emulator; "
            "for tensors call layoutgemm.matmul(a, b, epilogue=, given=)"
        )
    if isinstance(plan, Sm90Plan) and (plan.reads_by_name):
        words = ", ".join(plan.words)
        raise OperandError(f"the plan has an epilogue and reads more besides ({words}): run() executes either alone")
    check_shapes(plan, a, b)
    check_arrays(plan, a, b, out)
    besides = Arrays(plan.epilogue, batched(plan, (plan.m, plan.n)), given)
    chosen, why = chosen_device(plan, device, otherwise="emulator")
    if chosen == "cuda":
        result = run_arrays(plan, a, b, why, besides.words)
    else:
        result = run_on_cpu(plan, a, b, chosen, why, copy, partial(executed, words=besides.words))
    return replace(result.into(out), written=besides.written())


__all__ = ["run_fused"]
