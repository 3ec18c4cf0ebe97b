"""Derivatives behind an epilogue of products with scales, and in groups: shared parts.

of                      gradients
----------------------  ---------------------------------------------------------
groups of 16 bits       A, B and the operands of the epilogue
8-bit floats            the operands of the epilogue: A, B and scales are constants
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import torch

from ...errors import OperandError, TensorError
from ...kernels.epilogue.chain import ColumnReduce, Epilogue
from ...kernels.epilogue.reduce import combined
from ..checks import refuse_derivatives
from ..epilogue import GivenOperands, Tensors
from ..own_epilogue.derivatives import refusal_of_derivatives
from ..own_epilogue.recorded import SummedProduct
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
        of_one = isinstance(step, ColumnReduce) and isinstance(step.operation, str) and step.given[0].count == 1
        if isinstance(step, ColumnReduce) and not of_one:
            own = ", ".join(operand.name for operand in step.given)
            raise OperandError(
                f"{own}: a Reduction of one's own, or the k largest, of columns of groups of rows has no derivative; "
                "other named ones have"
            )


class CheckedProduct(Protocol):
    """A checked product with an epilogue, as `ProductFormula` derives it."""

    @property
    def steps(self) -> Epilogue:
        """The epilogue."""

    @property
    def operands(self) -> GivenOperands:
        """The epilogue's operands."""

    @property
    def factors(self) -> Tensors:
        """The product's own tensors by name."""

    def put(self: C, factors: Tensors, operands: GivenOperands) -> C:
        """The same product of other tensors."""


C = TypeVar("C", bound=CheckedProduct)
F = TypeVar("F", bound="ProductFormula[CheckedProduct]")


@dataclass(frozen=True)
class ProductFormula(SummedProduct, Generic[C]):
    """A checked product's part in `own_epilogue.recorded`: which tensors its results depend on."""

    made: C

    @property
    def epilogue(self) -> Epilogue:
        """The epilogue."""
        return self.made.steps

    @property
    def every(self) -> Tensors:
        """The epilogue's operands by name."""
        return self.made.operands.every

    @property
    def held(self) -> tuple[str, ...]:
        """Written operands that results are combined with."""
        return combined(self.epilogue.reductions)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The product's own tensors, then what the steps read."""
        return [*self.made.factors.values(), *[self.every[name] for name in (*self.epilogue.reads, *self.held)]]

    @property
    def alone(self: F) -> F:
        """The same without tensors."""
        every = {name: None if isinstance(x, torch.Tensor) else x for name, x in self.every.items()}
        return self.of([NOTHING] * len(self.tensors), every)

    def of(self: F, tensors: Sequence[torch.Tensor], every: Tensors | None = None) -> F:
        """The same of other tensors, and of other operands of the epilogue."""
        names, steps = tuple(self.made.factors), self.epilogue
        values = dict(zip((*steps.reads, *self.held), tensors[len(names) :], strict=True))
        every = {**self.every, **values} if every is None else every
        operands = GivenOperands(every, *[{name: every[name] for name in x} for x in (steps.reads, steps.writes)])
        return replace(self, made=self.made.put(dict(zip(names, tensors)), operands))
