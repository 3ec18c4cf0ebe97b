"""C of a plan that stores some tiles or rows alone. The others keep the values of `out`, or are zeros without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dtypes import f32
from ...errors import OperandError
from ..orders import order_values, schedule_of, stored_elements
from ..plan import GemmPlan
from .arrays import batched, check_numpy_out
from .result import GemmResult
from .torch_tensors import check_out, torch_type

if TYPE_CHECKING:
    import torch


def is_partial(plan: GemmPlan) -> bool:
    """True if the plan stores a C and may leave elements of it out. Its order tiles, or its row indices rows.

    >>> from layoutgemm import Sm90Config, Sm90Plan
    >>> small = Sm90Config((64, 64), consumers=1)
    >>> [is_partial(Sm90Plan.derive(128, 128, 64, config=small, order=order)) for order in ("rows", "lower")]
    [False, True]
    """
    epilogue = getattr(plan, "epilogue", None)
    if epilogue is not None and not epilogue.stores_c:
        return False
    if any(getattr(plan, name, False) for name in ("scatters", "adds_rows", "leaves_rows")):
        return True
    schedule = schedule_of(plan) if hasattr(plan, "order") else None
    return schedule is not None and not schedule.is_full and not getattr(schedule, "mirror", False)


def written_tensor(
    plan: GemmPlan, out: torch.Tensor | None, rule: str, pitch: int, device: torch.device, copies: list[str], copy: bool
) -> tuple[torch.Tensor, bool]:
    """(tensor that the kernel writes, whether it is copied into `out` afterwards).

    rule   why the kernel cannot write into `out`, or ""
    pitch  elements from line to line of another tensor
    """
    import torch

    if out is not None:
        if not rule:
            return out, False
        if not copy:
            raise OperandError(f"{rule}; copy=True computes into a buffer with pitch {pitch}, and copies")
        copies.append(f"{rule}: computed with pitch {pitch}, then copied")
    rows, extent = (plan.rows_of_c, plan.n) if plan.c.order == "row" else (plan.n, plan.m)
    make = torch.zeros if is_partial(plan) else torch.empty  # tiles that are not visited are zeros, or those of `out`
    buffer = make(batched(plan, (rows, pitch)), dtype=torch_type(plan.c.dtype), device=device)[..., :extent]
    c = buffer if plan.c.order == "row" else buffer.transpose(-1, -2)
    if out is not None and is_partial(plan):
        c.copy_(out)
    return c, out is not None


def stored_into(
    plan: GemmPlan, result: GemmResult, out: np.ndarray | torch.Tensor | None, given: Mapping[str, object]
) -> GemmResult:
    """The result with what the plan stores in `out`, or beside zeros. NumPy arrays, or tensors on the CPU."""
    if getattr(plan, "adds_rows", False):
        return _added(plan, result, out)
    stored = stored_elements(plan, {**given, **order_values(plan, given)})
    assert stored is not None
    c: Any = result.c
    if isinstance(c, np.ndarray):
        if out is not None:
            check_numpy_out(plan, out)
        found = np.zeros_like(c) if out is None else out
        np.copyto(found, c, where=np.broadcast_to(stored, c.shape))
        return replace(result, c=found)
    import torch

    if out is not None:
        check_out(plan, out, c)
    mask = torch.from_numpy(np.ascontiguousarray(stored)).to(c.device)
    value = torch.where(mask, c, torch.zeros((), dtype=c.dtype, device=c.device) if out is None else out)
    if out is None:
        return replace(result, c=value)
    assert isinstance(out, torch.Tensor), type(out)
    out.copy_(value)
    return replace(result, c=out)


def _added(plan: GemmPlan, result: GemmResult, out: np.ndarray | torch.Tensor | None) -> GemmResult:
    """The rows that are added to zeros, added to `out`. Raises OperandError for one of a type that rounds again."""
    if out is None:
        return result
    if plan.c.dtype != f32 or not isinstance(out, np.ndarray):
        raise OperandError(f"out: on the CPU rows are added to zeros, and rounded to {plan.c.dtype}; add them to out")
    check_numpy_out(plan, out)
    out += result.c
    return replace(result, c=out)
