"""NumPy reference of epilogues with groups of rows.

    accumulator       groups                  vectors along N          columns are reduced to
    --------------    --------------------    ---------------------    ----------------------
    (M, N)            (first row, end) each   (N,), or (groups, N)     (groups, N)
    (groups, M, N)    rows that count, each   (N,), or (groups, N)     (groups, N)

Rows are counted as the accumulator has them. A row of no group is in no reduction; its own results mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import PlanError
from .matrix import EpilogueMatrix, rounded
from .numpy_math import Array

if TYPE_CHECKING:
    from .chain import Epilogue
    from .reduce import ReductionStep

Part = tuple[int | slice, ...]  # index of a group's rows in the accumulator


def parts_of(shape: Sequence[int], groups: Sequence[tuple[int, int]] | Sequence[int]) -> list[Part]:
    """The index of each group's rows.

    shape   of the accumulator
    groups  (first row, end) of each, or of a batch the rows that count

    Raises PlanError for groups that are not those of such a shape.

    >>> parts_of((5, 8), [(0, 2), (2, 2)]), parts_of((2, 5, 8), [3, 0])
    ([(slice(0, 2, None),), (slice(2, 2, None),)], [(0, slice(0, 3, None)), (1, slice(0, 0, None))])
    """
    parts: list[Part] = []
    for e, rows in enumerate(groups):
        first, end = rows if isinstance(rows, tuple) else (0, rows)
        if isinstance(rows, tuple) != (len(shape) == 2) or not 0 <= first <= end <= shape[-2]:
            raise PlanError(f"groups[{e}] = {rows}: rows of an accumulator of shape {tuple(shape)}")
        parts.append((slice(first, end),) if len(shape) == 2 else (e, slice(first, end)))
    if len(shape) == 3 and len(parts) != shape[0]:
        raise PlanError(f"{len(parts)} groups, and an accumulator of shape {tuple(shape)}: one for each matrix")
    return parts


class GroupedMatrix(EpilogueMatrix):
    """All elements of C at once, in groups of rows."""

    def __init__(self, epilogue: Epilogue, accumulator: Array, given: Mapping[str, object], parts: Sequence[Part]):
        self.parts = parts
        super().__init__(epilogue, accumulator, given)

    def _placed(self, name: str, value: object) -> Any:
        operand = self.epilogue.named_given(name)
        columns = self.accumulator.shape[-1] * operand.places
        if operand.axes == "n" and self.accumulator.ndim == 2:
            array = rounded(operand, value)
            if array.shape == (len(self.parts), columns):
                spread = np.zeros((self.accumulator.shape[0], columns), array.dtype)
                for part, line in zip(self.parts, array, strict=True):
                    spread[part] = line
                return spread
        return super()._placed(name, value)

    def reduce(self, step: ReductionStep, x: Array) -> None:
        """Keep a reduction's results. Those of columns are each group's, those of all are all groups' rows'."""
        if step.axes == "m":
            super().reduce(step, x)
            return
        x = np.broadcast_to(x, self.accumulator.shape).astype(np.float32)
        rows = [x[part] for part in self.parts]
        if step.axes == "n":
            firsts = [0 if self.accumulator.ndim == 3 else part[0].start for part in self.parts]  # type: ignore[union-attr]
            each = [
                step.reduction.reduce(y, -2, row=first, read=self.rows_of([part]))
                for y, first, part in zip(rows, firsts, self.parts, strict=True)
            ]
            found = [np.stack(values) for values in zip(*each, strict=True)] if each else self._none(step)
        else:
            whole = np.concatenate([np.zeros((0, x.shape[-1]), np.float32), *rows])
            found = step.reduction.reduce(whole, None, read=self.rows_of(self.parts))
        self.keep(step, found)

    def rows_of(self, parts: Sequence[Part]) -> Callable[[str], Array]:
        """Operands of the rows of some groups, by name."""

        def read(name: str) -> Array:
            every = np.broadcast_to(self.read(name), self.accumulator.shape)
            return np.concatenate([every[part] for part in parts])

        return read

    def _none(self, step: ReductionStep) -> list[Array]:
        """The results of no group."""
        return [np.zeros((0, self.accumulator.shape[-1]), np.float32) for _ in step.reduction.results]
