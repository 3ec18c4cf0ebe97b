"""Plans with an epilogue, run on NumPy arrays: the compiled kernel on a GPU or in the emulator, operands by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...errors import OperandError
from ..epilogue.arrays import Arrays
from ..epilogue.chain import MAX_WORDS
from ..sm80.plan import Sm80Plan
from ..sm90.plan import Sm90Plan
from ..sm100.plan import Sm100Plan
from .arrays import batched, check_arrays, check_shapes
from .epilogue_operands import names_read, values_read, words_read
from .result import GemmResult
from .torch_tensors import chosen_device, run_on_device

if TYPE_CHECKING:
    import torch

Plan = Sm80Plan | Sm90Plan | Sm100Plan


def run_fused(
    plan: Plan, a: np.ndarray | torch.Tensor, b: np.ndarray | torch.Tensor, given: Mapping[str, object],
    out: np.ndarray | torch.Tensor | None, device: str | None, copy: bool,
) -> GemmResult:  # fmt: skip
    """C = epilogue(A @ B): `numpy_arrays.run_plan` for a plan with an epilogue. NumPy arrays alone.

    given   what the epilogue reads, by name: numbers, vectors along M or N, matrices of C's shape; with a main loop's
            tables, the offsets or counts of groups, further matrices and numbers
    device  "cuda", "emulator", or None: the GPU when there is one that can run the plan, else the emulator

    Raises OperandError for another device or tensors, and for operands that the epilogue does not take. Raises
    PlanError if the GPU cannot run the plan, and EmulatorError with the emulator's report.
    """
    if device not in (None, "cuda", "emulator") or not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        names = ", ".join(operand.name for operand in plan.epilogue.given) or "no operands"
        raise OperandError(
            f"the plan has an epilogue ({names}), which run() executes on NumPy arrays with device='cuda' or "
            "'emulator'; its reference is plan.epilogue.reference(a @ b, ...), and tensors go to "
            "layoutgemm.matmul(a, b, epilogue=, given=)"
        )
    if out is not None and not plan.epilogue.stores_c:
        raise OperandError("out is given, and the epilogue stores no C (stores_c=False)")
    check_shapes(plan, a, b)
    check_arrays(plan, a, b, out)
    more = {name: given[name] for name in names_read(plan) if name in given}
    rest = {name: value for name, value in given.items() if name not in more}
    groups = plan.batch if isinstance(plan, Sm90Plan) and plan.joined_rows else 0
    first = plan.first_partials
    besides = Arrays(plan.epilogue, batched(plan, (plan.m, plan.n)), rest, plan.partial_bytes, groups, first)
    words, own = besides.words, len(plan.epilogue.words)
    if len(plan.words) > own:
        words = (*words[:own], *words_read(plan, values_read(plan, more)))[:MAX_WORDS]
    chosen, why = chosen_device(plan, device, otherwise="emulator")
    result = run_on_device(plan, a, b, chosen, why, copy, None, words)
    if not plan.epilogue.stores_c:
        return replace(result, c=None, written=besides.written())
    return replace(result.into(out), written=besides.written())


__all__ = ["run_fused"]
