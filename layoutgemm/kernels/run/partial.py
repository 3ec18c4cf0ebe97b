"""C of a plan that stores some tiles or rows alone: the others keep the values of `out`, or are zeros without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..orders import order_values, schedule_of, stored_elements
from ..plan import GemmPlan
from .arrays import check_numpy_out
from .result import GemmResult
from .torch_tensors import check_out

if TYPE_CHECKING:
    import torch


def is_partial(plan: GemmPlan) -> bool:
    """True if the plan stores a C and may leave elements of it out: its order tiles, or its row indices rows.

    >>> from layoutgemm import Sm90Config, Sm90Plan
    >>> small = Sm90Config((64, 64), consumers=1)
    >>> [is_partial(Sm90Plan.derive(128, 128, 64, config=small, order=order)) for order in ("rows", "lower")]
    [False, True]
    """
    epilogue = getattr(plan, "epilogue", None)
    if epilogue is not None and not epilogue.stores_c:
        return False
    if getattr(plan, "scatters", False):
        return True
    schedule = schedule_of(plan) if hasattr(plan, "order") else None
    return schedule is not None and not schedule.is_full and not getattr(schedule, "mirror", False)


def stored_into(
    plan: GemmPlan, result: GemmResult, out: np.ndarray | torch.Tensor | None, given: Mapping[str, object]
) -> GemmResult:
    """The result with what the plan stores in `out`, or beside zeros. NumPy arrays, or tensors on the CPU."""
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
    out.copy_(value)  # type: ignore[union-attr]
    return replace(result, c=out)
