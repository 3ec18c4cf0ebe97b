"""Runs of Ampere and Blackwell plans whose order reads a list or numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...errors import OperandError
from ..orders import given_names, order_values, schedule_of
from ..plan import MAX_WORDS
from ..sm80.plan import Sm80Plan
from ..sm100.plan import Sm100Plan
from . import ampere
from .arrays import check_arrays
from .cpu import executed, run_on_cpu
from .epilogue_operands import order_words
from .operand_checks import resolved
from .result import GemmResult
from .torch_tensors import check_tensors, chosen_device, launch, require_gpu, run_arrays

if TYPE_CHECKING:
    import torch


def run_ordered(
    plan: Sm80Plan | Sm100Plan, a: np.ndarray | torch.Tensor, b: np.ndarray | torch.Tensor,
    given: Mapping[str, object], out: np.ndarray | torch.Tensor | None, device: str | None, copy: bool,
) -> GemmResult:  # fmt: skip
    """C = A @ B in an order that reads words: `given` has those that a caller gives, by name.

    Raises OperandError for others, for one that is missing or out of range, and for tensors on the CPU.
    """
    names = given_names(plan)
    if extra := [name for name in given if name not in names]:
        raise OperandError(f"given = {', '.join(extra)}: the order reads {', '.join(names) or 'no parameter'}")
    if not isinstance(a, np.ndarray):
        return _on_tensors(plan, a, b, given, out, device, copy)  # type: ignore[arg-type]
    check_arrays(plan, a, b, out)
    values = order_values(plan, given)
    own = tuple([values[name] for name in schedule_of(plan).words])
    words = (*own, *[0] * (MAX_WORDS - len(own)))
    chosen, why = chosen_device(plan, device)
    if chosen == "cuda":
        return run_arrays(plan, a, b, why, words).into(out)  # type: ignore[arg-type]
    if isinstance(plan, Sm80Plan):
        return ampere.run_on_cpu(plan, a, b, chosen, why, copy, words, values).into(out)
    return run_on_cpu(plan, a, b, chosen, why, copy, partial(executed, values=values, words=words)).into(out)  # type: ignore[arg-type]


def _on_tensors(
    plan: Sm80Plan | Sm100Plan, a: torch.Tensor, b: torch.Tensor, given: Mapping[str, object],
    out: torch.Tensor | None, device: str | None, copy: bool,
) -> GemmResult:  # fmt: skip
    """The same on CUDA tensors; a caller's list is one too."""
    if not a.is_cuda or device not in (None, "cuda"):
        raise OperandError(f"a is on {a.device}: a plan whose order reads words takes CUDA tensors, or NumPy arrays")
    check_tensors(plan, a, b, out)
    require_gpu(plan, a.device.index)
    own = order_words(plan, given, a.device)
    words = (*own, *[0] * (MAX_WORDS - len(own)))
    return launch(plan, resolved(a.detach()), resolved(b.detach()), out, "", copy, words)


__all__ = ["run_ordered"]
