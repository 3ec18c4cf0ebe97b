"""An epilogue's steps by torch on float32 sums: the formula that autograd derives.

    step                                        by torch
    ----------------------------------------    ------------------------------------------------------------
    Activation, Clamp                           torch's own function, with its derivative at the corners
    RowReduce, ColumnReduce of a name, Amax     torch.sum, amax, logsumexp, max
    a Reduction of one's own                    its traced functions, by halves of the row or column
    Custom, and all others                      the same expression, of tensors

Values are those of `Epilogue.reference`, but for the order of sums. An index has no derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from ...errors import OperandError
from ...kernels.epilogue.chain import (
    Activation,
    Clamp,
    ColumnGroup,
    ColumnReduce,
    Epilogue,
    ReductionStep,
    RowReduce,
    Step,
    SumPlace,
)
from ...kernels.epilogue.numpy_math import mix
from ...kernels.epilogue.places import ColumnGroups
from ...kernels.epilogue.reduce import Quantize
from ...kernels.epilogue.reductions import NO_INDEX, Reduction
from ...kernels.plan import present
from ..bias_activation import ACTIVATIONS
from ..epilogue import COMBINED, SumsGate, results_of_nothing
from ..operands.several import TorchMath, combined_sums
from ..reference import rounded
from ..types import TYPES

_MASK = 0xFFFFFFFF
Results = tuple[torch.Tensor, ...]


def _top(k: int, x: torch.Tensor) -> Results:
    """The k largest and their indices, one by one; of equal values the lower index is first."""
    values, indices = x.sort(dim=-1, descending=True, stable=True)
    more = max(0, k - x.shape[-1])
    values = torch.nn.functional.pad(values, (0, more), value=-torch.inf)
    indices = torch.nn.functional.pad(indices, (0, more), value=NO_INDEX)
    return (*values[..., :k].unbind(-1), *indices[..., :k].unbind(-1))


# By name: the results along the last dimension, and what an element outside of the order's tiles is.
NAMED: Mapping[str, tuple[Callable[[torch.Tensor], Results], float]] = {
    "sum": (lambda x: (x.sum(-1),), 0.0),
    "sum_of_squares": (lambda x: (x.square().sum(-1),), 0.0),
    "max": (lambda x: (x.amax(-1),), -torch.inf),
    "min": (lambda x: (x.amin(-1),), torch.inf),
    "amax": (lambda x: (x.abs().amax(-1),), 0.0),
    "log_sum_exp": (lambda x: (x.logsumexp(-1),), -torch.inf),
    "softmax": (lambda x: (x.amax(-1), x.logsumexp(-1)), -torch.inf),
    "argmax": (lambda x: tuple(x.max(-1)), -torch.inf),
    "argmin": (lambda x: tuple(x.min(-1)), torch.inf),
    **{f"top{k}": (partial(_top, k), -torch.inf) for k in (2, 4, 8)},
}


class RowGroups(NamedTuple):
    """The groups of a grouped product's rows.

    inside  True for the rows that are in one, to be broadcast along C: others keep what is written there. None for all
    group   of each row, or None where each group has a matrix; `number` of them
    """

    inside: torch.Tensor | None
    group: torch.Tensor | None
    number: int


class StepResults(NamedTuple):
    """C of its type, and what the steps write, by name."""

    c: torch.Tensor
    written: dict[str, torch.Tensor]


def steps_by_torch(
    epilogue: Epilogue, sums: torch.Tensor, given: Mapping[str, object], kind: torch.dtype,
    gate: SumsGate | None = None, visited: torch.Tensor | None = None, rows: RowGroups | None = None,
) -> StepResults:  # fmt: skip
    """The steps on sums of float32, with derivatives where they are recorded.

    given    operands by name; of those that are written, those that are combined with what they hold are read
    gate     the function of a gate, whose sums are of twice the columns, or None
    visited  True for the elements (row, column) of an order's tiles; None for all
    rows     of a grouped product: its elements that count are those of rows in a group

    >>> from layoutgemm.kernels.epilogue.chain import Bias
    >>> x = torch.tensor([[1.0, -2.0]], requires_grad=True)
    >>> found = steps_by_torch(Epilogue(Bias(), RowReduce("sum")), x, {"bias": torch.ones(2)}, torch.float16)
    >>> found.c.tolist(), found.written["row_sum"].tolist()
    ([[2.0, -1.0]], [1.0])
    """
    if gate is not None:
        wide = _EpilogueElements(epilogue, sums, given, visited, rows)
        both = [epilogue.apply_to_sum(x, SumPlace(epilogue, wide, i), i) for i, x in enumerate(sums.chunk(2, -1))]
        sums = ACTIVATIONS[gate](both[0]) * both[1] if isinstance(gate, str) else combined_sums(gate[0], both, gate[1])
    at = _EpilogueElements(epilogue, sums, given, visited, rows)
    x = sums
    for step in epilogue.steps[epilogue.sums :]:
        x = at.spread(_applied(step, x, at))
    return StepResults(rounded(x, kind), at.written)


def refusal_of_derivative(epilogue: Epilogue) -> str:
    """Why an epilogue has no derivative, or ""."""
    if not epilogue.json:
        return "a step of another package, which torch does not derive: Custom.of makes a step of a function"
    if epilogue.quantizes is not None:
        return f"{epilogue.quantizes}: values of 8 bits have no gradient"
    return ""


def _applied(step: Step, x: torch.Tensor, at: _EpilogueElements) -> torch.Tensor:
    if isinstance(step, Activation):
        return ACTIVATIONS[step.kind](x)
    if isinstance(step, Clamp):
        return x.clamp(step.low, step.high)
    value: torch.Tensor = step.apply(x, at)
    return value


class _EpilogueElements:
    """All elements of C at once, as a step's `at`."""

    def __init__(
        self, epilogue: Epilogue, sums: torch.Tensor, given: Mapping[str, object], visited: torch.Tensor | None,
        groups: RowGroups | None = None,
    ):  # fmt: skip
        self._epilogue, self._sums, self._given, self._groups = epilogue, sums, given, groups
        inside = None if groups is None else groups.inside
        self._visited = visited if inside is None else inside.expand(sums.shape)
        rows, columns = (torch.arange(n, dtype=torch.int32, device=sums.device) for n in sums.shape[-2:])
        self.i, self.j, self.math = rows[:, None], columns[None, :], TorchMath(sums)
        self.written: dict[str, torch.Tensor] = {}

    def spread(self, x: torch.Tensor) -> torch.Tensor:
        """A value of each element, in the sums' type."""
        return x.to(self._sums.dtype).expand(self._sums.shape)

    def read(self, name: str) -> torch.Tensor:
        """An operand, to be broadcast along C."""
        operand, x = self._epilogue.named_given(name), self._given[name]
        if not isinstance(x, torch.Tensor):
            return x if isinstance(x, int) and operand.dtype.kind == "int" else self.math.constant(float(x))  # type: ignore[arg-type]
        x = x if operand.dtype.kind == "int" else x.to(self._sums.dtype)
        if not operand.axes:
            return x.reshape(())
        if self._groups is not None and self._groups.group is not None and operand.axes == "n" and x.ndim == 2:
            return x[self._groups.group.clamp(max=self._groups.number - 1)]
        return x.unsqueeze({"m": -1, "n": -2}[operand.axes]) if operand.axes != "mn" else x

    def write(self, name: str, x: torch.Tensor) -> None:
        """Keep a matrix: of elements outside of the order's tiles what it holds."""
        operand = self._epilogue.named_given(name)
        value = self.spread(x).to(TYPES[operand.dtype.name])
        self.written[name] = value if self._visited is None else torch.where(self._visited, value, self._held(name))

    def reduce(self, step: ReductionStep, x: torch.Tensor) -> None:
        """Keep a reduction's results, in their types."""
        x = self.spread(x)
        for operand, value in zip(step.given, self._outputs(step, x), strict=True):
            if not step.ordered:
                held = self._held(operand.name)
                value = COMBINED[str(step.reduction.atomic)](value.reshape(held.shape), held)
            self.written[operand.name] = value.to(TYPES[operand.dtype.name])

    def _outputs(self, step: ReductionStep, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """The outputs; of rows in no group, what is there."""
        if step.each is not None:
            return self._of_groups(step, x)
        groups = self._groups
        if groups is not None and groups.group is not None and isinstance(step, ColumnReduce):
            x = x if groups.inside is None else torch.where(groups.inside, x, 0)
            return columns_of_groups(str(step.operation), x, groups.group, groups.number)
        found = step.outputs(self._reduced(step, x, self._visited, 0), torch.stack)
        if groups is None or groups.inside is None or not isinstance(step, RowReduce):
            return found
        inside = groups.inside.squeeze(-1)
        return [
            torch.where(inside.unsqueeze(-1) if of.count > 1 else inside, y, self._held(of.name))
            for y, of in zip(found, step.given, strict=True)
        ]

    def grouped(self, step: ColumnGroup, x: torch.Tensor) -> torch.Tensor:
        """The function of each group of columns."""
        at, x = ColumnGroups(step, self), self.spread(x)
        shape = at.member(x, 0).shape
        return torch.stack([each.to(x.dtype).expand(shape) for each in at.results(x)], -2).reshape(x.shape)

    def random(self, name: str) -> torch.Tensor:
        """16 bits for each element, 0 to 65535."""
        seed, row, pair = (_Word(x) for x in (self._given[name], self.i.long(), self.j.long() // 2))
        bits = mix(seed, row, pair, _Word).value
        return (bits >> (self.j.long() % 2 * 16)) & 0xFFFF

    def quantized(self, step: Quantize, x: torch.Tensor) -> torch.Tensor:
        """Refused: `refusal_of_derivative` has the reason."""
        raise OperandError(refusal_of_derivative(self._epilogue))

    def _held(self, name: str) -> torch.Tensor:
        """The values of a written operand before the launch."""
        found = self._given[name]
        assert isinstance(found, torch.Tensor)
        return found

    def _reduced(
        self, step: ReductionStep, x: torch.Tensor, visited: torch.Tensor | None, column: int
    ) -> Sequence[torch.Tensor]:
        """The results over all of x; `column`: the number of its first one."""
        own = getattr(step, "operation", "amax")
        along = isinstance(step, ColumnReduce)

        def in_lines(y: torch.Tensor) -> torch.Tensor:
            return y.mT if along else y if isinstance(step, RowReduce) else y.flatten()

        if (lines := in_lines(x)).shape[-1] == 0:
            return [y.reshape(()).expand(lines.shape[:-1]) for y in results_of_nothing(step.reduction, x.device)]
        if isinstance(own, str):
            function, fill = NAMED[own]
            return function(lines if visited is None else in_lines(torch.where(visited, x, fill)))
        columns = slice(column, column + x.shape[-1])
        read = partial(self._part, columns)
        place = _TensorPlace(self.i, self.j[:, : x.shape[-1]] + column, self.math, read)
        lifted = [self.math.tensor(value).expand(x.shape) for value in own.lifted(x, place)]
        if visited is not None:
            lifted = [torch.where(visited, value, fill) for value, fill in zip(lifted, own.identity, strict=True)]
        return _folded(own, [value.mT if along else value for value in lifted], self.math)

    def _part(self, columns: slice, name: str) -> torch.Tensor:
        """An operand in some of C's columns."""
        value = self.read(name)
        return value[..., columns] if value.ndim and value.shape[-1] > 1 else value

    def _of_groups(self, step: ReductionStep, x: torch.Tensor) -> list[torch.Tensor]:
        """The results of every `each` columns; those without an element in the order's tiles stay as they are."""
        columns = present(step.each)
        parts = x.split(columns, -1)
        seen = [None] * len(parts) if self._visited is None else self._visited.split(columns, -1)
        each = [self._reduced(step, part, of, i * columns) for i, (part, of) in enumerate(zip(parts, seen))]
        results = [torch.stack(values, -1) for values in zip(*each, strict=True)]
        if self._visited is None:
            return results
        there = torch.stack([of.any(-1) for of in seen if of is not None], -1)
        return [torch.where(there, x, self._held(y.name)) for x, y in zip(results, step.given, strict=True)]


# The named reductions that have such a form: those of the k largest have none.
OF_COLUMNS = tuple(name for name in NAMED if not name.startswith("top"))


def columns_of_groups(operation: str, x: torch.Tensor, group: torch.Tensor, count: int) -> list[torch.Tensor]:
    """A named reduction of the columns of each group of rows. One row of results for each group.

    group  of each row; `count` and more for rows of none, which no result takes

    Raises OperandError for the k largest, which have no such form.

    >>> x, group = torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([0, 0, 2])
    >>> [y.tolist() for y in columns_of_groups("sum", x, group, 2)]
    [[[4.0], [0.0]]]
    """
    group = group.clamp(max=count)
    index = group.unsqueeze(-1).expand(x.shape)

    def total(y: torch.Tensor) -> torch.Tensor:
        return y.new_zeros(count + 1, y.shape[-1]).index_add(0, group, y)

    def most(y: torch.Tensor, fill: float, way: str = "amax") -> torch.Tensor:
        return y.new_full((count + 1, y.shape[-1]), fill).scatter_reduce(0, index, y, way)

    if operation not in OF_COLUMNS:
        raise OperandError(f"{operation} of columns of groups: {', '.join(OF_COLUMNS)}")
    if operation in ("sum", "sum_of_squares"):
        found = [total(x if operation == "sum" else x.square())]
    elif operation in ("max", "min", "amax"):
        way = "amin" if operation == "min" else "amax"
        found = [most(x.abs() if operation == "amax" else x, NAMED[operation][1], way)]
    elif operation in ("argmax", "argmin"):
        extreme = most(x, NAMED[operation][1], "amax" if operation == "argmax" else "amin")
        rows = torch.arange(x.shape[0], device=x.device, dtype=torch.int32).unsqueeze(-1)
        equal = torch.where(x == extreme[group], rows, NO_INDEX)
        found = [extreme, most(equal, NO_INDEX, "amin")]
    else:
        largest = most(x, -torch.inf)
        shift = torch.where(largest.isfinite(), largest, 0).detach()
        sums = shift + total((x - shift[group]).exp()).log()
        found = [sums] if operation == "log_sum_exp" else [largest, sums]
    return [y[:count] for y in found]


@dataclass(frozen=True, eq=False)
class _TensorPlace:
    """Coordinates of elements, as a reduction's traced functions read them."""

    i: torch.Tensor
    j: torch.Tensor
    math: TorchMath
    read: Callable[[str], torch.Tensor]


def _folded(reduction: Reduction, values: list[torch.Tensor], math: TorchMath) -> list[torch.Tensor]:
    """The results of tuples along the last dimension, combined by halves."""
    while (count := values[0].shape[-1]) > 1:
        half = count // 2
        first, second = [value[..., :half] for value in values], [value[..., half : 2 * half] for value in values]
        joined = [x.expand(y.shape) for x, y in zip(reduction.combined(first, second, math), first, strict=True)]
        values = [torch.cat([x, y[..., 2 * half :]], -1) for x, y in zip(joined, values, strict=True)]
    found = [value.squeeze(-1) for value in values]
    return [math.tensor(x).expand(found[0].shape) for x in reduction.finished(found, math)]


class _Word:
    """32-bit unsigned integers in tensors of int64, or in one number, as `mix` computes."""

    def __init__(self, value: torch.Tensor | int):
        self.value = value & _MASK

    def __mul__(self, other: _Word) -> _Word:
        low, high = other.value & 0xFFFF, other.value >> 16  # a product of 48 bits is within int64
        return _Word(self.value * low + ((self.value * high & 0xFFFF) << 16))

    def __add__(self, other: _Word) -> _Word:
        return _Word(self.value + other.value)

    def __xor__(self, other: _Word) -> _Word:
        return _Word(self.value ^ other.value)

    def __rshift__(self, other: _Word) -> _Word:
        return _Word(self.value >> other.value)
