"""A product with an epilogue as `layoutgemm.tune` measures it: candidates, operands, a call, its error.

A result is kept for the steps, by their text: others cost otherwise. It is that of matrices whose rows are contiguous
and begin at multiples of 16 bytes, as torch allocates them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ...arguments import shown
from ...dtypes import dtype
from ...errors import OperandError
from ...kernels.epilogue.chain import Epilogue, EpilogueOperand
from ...kernels.run.error_bound import rounded_error, sum_error
from ...kernels.sm90.choose.candidates import candidates
from ...kernels.sm90.choose.rules import Sm90Choice
from ...kernels.sm90.plan import Sm90Plan
from ..api import matmul
from ..epilogue import by_reference
from ..tuned_store import finished_types
from ..types import TYPES
from .product import ProductSizes, check_alone

_ROWS = 64  # that are compared with a float64 product; all rows are with the default's own result
_FUNCTION_ERROR = 2.0**-6  # of the largest value of a result: functions magnify an error of their argument


class EpilogueOperands(NamedTuple):
    """Operands of one product, the default's results, and where C goes."""

    a: torch.Tensor
    b: torch.Tensor
    given: dict[str, torch.Tensor | float | int]
    results: tuple[torch.Tensor, ...]
    out: torch.Tensor


@dataclass(frozen=True)
class TunableEpilogue(ProductSizes):
    """A product with an epilogue: C is e4m3 where that quantises."""

    epilogue: Epilogue

    @property
    def types(self) -> tuple[str, ...]:
        """Types of A, B and C."""
        return self.dtype, self.dtype, self.dtype if self.epilogue.quantizes is None else "e4m3"

    @property
    def name(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Types and orders by which the result is kept."""
        return finished_types(self.types, self.epilogue), self.orders

    @property
    def steps(self) -> Epilogue:
        """The epilogue as a kernel takes it."""
        return self.epilogue.in_pairs(self.n % 2 == 0, self.n % 8 == 0 and bool(self.epilogue.matrices))

    def plan(self, choice: Sm90Choice) -> Sm90Plan:
        """The plan of a candidate. Raises LayoutError where none can be derived."""
        a, b, c = self.operand_specs
        return choice.plan(self.m, self.n, self.k, a=a, b=b, c=c, epilogue=self.steps)

    def candidates(self) -> Iterator[Sm90Choice]:
        """Configurations that could be the fastest, the default first.

        >>> from layoutgemm.kernels.epilogue.chain import Residual
        >>> of = Epilogue(Residual("bf16"))
        >>> [choice.config.tile for choice in TunableEpilogue(12288, 12288, 4096, "bf16", "k", "k", of).candidates()][0]
        (128, 192)
        """
        yield from candidates(self.m, self.n, self.k, self.a_major, self.b_major, self.places, self.steps)

    def operands(self) -> EpilogueOperands:
        """Random matrices and vectors, numbers of 1, and the default's results, on the current GPU."""
        a, b = self.factors()
        given = {operand.name: self._given(operand) for operand in self.epilogue.given}
        on = EpilogueOperands(a, b, given, (), torch.empty(self.m, self.n, device=a.device, dtype=TYPES[self.types[2]]))
        self.call(on, None)
        return on._replace(results=tuple([x.clone() for x in self._results(on)]))

    def _given(self, operand: EpilogueOperand) -> torch.Tensor | float | int:
        """One operand of the epilogue."""
        if operand.host:
            return 1 if operand.dtype.name == "i32" else 1.0
        shape, kind = operand.shape(self.m, self.n) or (1,), TYPES[operand.dtype.name]
        if operand.written:
            return torch.empty(shape, device="cuda", dtype=kind).fill_(operand.start)
        made = torch.randn(shape, device="cuda") if operand.axes == "mn" else torch.rand(shape, device="cuda") + 0.5
        return made.to(kind)

    def _results(self, on: EpilogueOperands) -> list[torch.Tensor]:
        """C, where it is stored, and what the steps write alone: not what they combine with memory."""
        own = [step for step in self.epilogue.reductions if not step.partial and step.each is None]
        combined = {operand.name for step in own for operand in step.given}
        names = [name for name in self.epilogue.writes if name not in combined]
        written = [x for name in names if isinstance(x := on.given[name], torch.Tensor)]
        return [*[on.out] * self.epilogue.stores_c, *written]

    def call(self, on: EpilogueOperands, choice: Sm90Choice | None) -> torch.Tensor:
        """The product into its output."""
        out = on.out if self.epilogue.stores_c else None
        kind = TYPES[self.types[2]]
        return matmul(on.a, on.b, epilogue=self.epilogue, given=on.given, out=out, out_dtype=kind, config=choice)

    def by_torch(self) -> None:
        """torch has no such product in one kernel."""

    def off(self, on: EpilogueOperands) -> float:
        """The largest error of a set's results, in units of what it may be.

        All of them are compared with the default's, the first rows of C with a float64 product.
        """
        worst = max(self._apart(found, want) for found, want in zip(self._results(on), on.results, strict=True))
        return max(worst, self._apart(on.out[:_ROWS], self._expected(on))) if self._by_rows else worst

    @property
    def _by_rows(self) -> bool:
        """True if the first rows of C follow from those of the operands alone."""
        return self.epilogue.stores_c and self.epilogue.quantizes is None

    def _expected(self, on: EpilogueOperands) -> torch.Tensor:
        """The first rows of C, by NumPy from a float64 product."""
        rows = min(_ROWS, self.m)
        given = {name: self._first_rows(self.epilogue.named_given(name), x) for name, x in on.given.items()}
        return by_reference(on.a[:rows].cpu(), on.b.cpu(), on.out.dtype, self.epilogue, given).to(on.out.device)

    def _first_rows(self, operand: EpilogueOperand, x: torch.Tensor | float | int) -> torch.Tensor | float | int:
        """An operand's part for the first rows of C, on the CPU and its own."""
        if not isinstance(x, torch.Tensor):
            return x
        return (x[: operand.shape(min(_ROWS, self.m), self.n)[0]] if "m" in operand.axes else x).cpu().clone()

    def _apart(self, found: torch.Tensor, want: torch.Tensor) -> float:
        """The largest distance of two results, in units of what it may be."""
        if not found.dtype.is_floating_point:
            return 0.0 if found.numel() == 0 else float((found != want).double().mean() / _FUNCTION_ERROR)
        x, y = found.double(), want.double()
        largest = y.abs().max()
        bound = rounded_error(
            (sum_error(dtype(self.dtype).bits, self.k) + _FUNCTION_ERROR) * largest, y, dtype(self.types[2])
        )
        return float(((x - y).abs() / (bound + 1e-6)).max())


def tunable_epilogue(
    sizes: tuple[int, int, int], of: str, majors: tuple[str, str], epilogue: object, others: Mapping[str, object]
) -> TunableEpilogue:
    """The product that is to be tuned. Raises OperandError for other steps, and for arguments beside them.

    others  arguments of other products, as `check_alone` has them
    """
    if not isinstance(epilogue, Epilogue) or not epilogue:
        raise OperandError(f"epilogue is {shown(epilogue)}: an Epilogue of at least one step")
    check_alone("epilogue", others)
    if not epilogue.json:
        raise OperandError("the epilogue has a step of another package, whose text no result can be kept by")
    return TunableEpilogue(*sizes, of, *majors, epilogue)
