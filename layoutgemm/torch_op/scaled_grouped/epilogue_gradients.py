"""Derivatives behind an epilogue of products with scales, and in groups: shared parts.

of                      gradients
----------------------  ---------------------------------------------------------
groups of 16 bits       A, B and the operands of the epilogue
8-bit floats            the operands of the epilogue: A, B and scales are constants
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...errors import OperandError, TensorError
from ...kernels.epilogue.chain import ColumnReduce, Epilogue
from ..checks import refuse_derivatives
from ..epilogue import GivenOperands, Tensors
from ..own_epilogue.derivatives import refusal_of_derivatives
from .operators import WAY_OUT

NOTHING = torch.empty(0)  # in a tensor's place


def check_derivable(steps: Epilogue, kind: torch.dtype, constants: dict[str, torch.Tensor], of_rows: bool) -> None:
    """Raise TensorError or OperandError, naming it, for what has no derivative where one is recorded.

    constants  tensors of which there is none
    of_rows    groups of rows, whose columns are reduced group by group
    """
    refuse_derivatives(constants, WAY_OUT)
    if text := refusal_of_derivatives(steps, torch.bfloat16, kind):
        raise TensorError(text)
    for step in steps.reductions if of_rows else ():
        if isinstance(step, ColumnReduce) and not isinstance(step.operation, str):
            own = ", ".join(operand.name for operand in step.given)
            raise OperandError(
                f"{own}: a Reduction of one's own of columns of groups of rows has no derivative; a named one has"
            )


def taken(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> tuple[Tensors, Sequence[torch.Tensor]]:
    """The first tensors by these names, and those behind them."""
    return dict(zip(names, tensors)), tensors[len(names) :]


def without_tensors(every: Mapping[str, object]) -> Tensors:
    """The operands with None in place of tensors."""
    return {name: None if isinstance(x, torch.Tensor) else x for name, x in every.items()}


def operands_of(steps: Epilogue, every: Tensors) -> GivenOperands:
    """All operands of an epilogue, those that it reads and those that it writes."""
    return GivenOperands(every, *[{name: every[name] for name in names} for names in (steps.reads, steps.writes)])
