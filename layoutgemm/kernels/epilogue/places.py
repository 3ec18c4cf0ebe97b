"""Places of elements, as the steps and the traced functions of an epilogue see them.

A step is evaluated on registers, on NumPy's matrices, or on torch's and JAX's tensors. Each has its own place and
functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from .reduce import Quantize, ReductionStep
    from .steps import ColumnGroup

# A number, an array of numbers, a register or a tensor: types of packages that need not be installed.
Value: TypeAlias = Any


class Functions(Protocol):
    """The f32 functions that steps call by name."""

    def exp(self, x: Value, /) -> Value:
        """e to the power of x."""

    def tanh(self, x: Value, /) -> Value:
        """The hyperbolic tangent."""

    def sigmoid(self, x: Value, /) -> Value:
        """1 / (1 + exp(-x))."""

    def normal(self, x: Value, /) -> Value:
        """The normal distribution function."""

    def maximum(self, x: Value, y: Value, /) -> Value:
        """The larger; of a NaN and a number, the number."""

    def minimum(self, x: Value, y: Value, /) -> Value:
        """The smaller; of a NaN and a number, the number."""

    def where(self, condition: Value, yes: Value, no: Value, /) -> Value:
        """`yes` if the condition holds, else `no`."""


class OperandPlace(Protocol):
    """A place with operands by name, and with functions."""

    @property
    def math(self) -> object:
        """The functions, by the names of traced operations."""

    def read(self, name: str) -> Value:
        """An operand's value."""


class ElementPlace(Protocol):
    """An element's row and column, and the functions of its value."""

    @property
    def i(self) -> Value:
        """The row."""

    @property
    def j(self) -> Value:
        """The column."""

    @property
    def math(self) -> Value:
        """The functions, by the names of traced operations."""


class StepPlace(Protocol):
    """An element of C, with all that an epilogue's step may do there."""

    @property
    def i(self) -> Value:
        """The row."""

    @property
    def j(self) -> Value:
        """The column."""

    @property
    def math(self) -> Functions:
        """The functions."""

    def read(self, name: str) -> Value:
        """An operand's value."""

    def write(self, name: str, x: Value) -> None:
        """Store x in a written operand."""

    def reduce(self, step: ReductionStep, x: Value) -> None:
        """Add x to a reduction."""

    def quantized(self, step: Quantize, x: Value) -> Value:
        """x scaled to the range of C's type."""

    def grouped(self, step: ColumnGroup, x: Value) -> Value:
        """The function of x and of its neighbours in a group of columns."""

    def random(self, name: str) -> Value:
        """16 random bits of the seed `name`."""


class ColumnGroups:
    """All groups of columns of whole matrices. Arrays (..., M, groups, distance), where `at` has (..., M, N).

    Arrays of NumPy, torch or JAX.

    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> from layoutgemm.kernels.epilogue.steps import ColumnGroup
    >>> halves = ColumnGroup.of(lambda x, i, j, ops: (x[1], x[0]), distance=2)
    >>> at = ColumnGroups(halves, SimpleNamespace(i=np.arange(1)[:, None], j=np.arange(8)[None], math=None))
    >>> [at.member(at.of.j, k).tolist() for k in (0, 1)]
    [[[[0, 1], [4, 5]]], [[[2, 3], [6, 7]]]]
    """

    def __init__(self, step: ColumnGroup, at: StepPlace):
        self.step, self.of, self.math = step, at, at.math
        self.i, self.j = at.i[..., None], self.member(at.j, 0)

    def member(self, value: Value, k: int) -> Value:
        """An array's values in column k of each group."""
        if getattr(value, "ndim", 0) == 0:
            return value
        if value.shape[-1] == 1:
            return value[..., None]
        return value.reshape(*value.shape[:-1], -1, self.step.columns, self.step.distance)[..., k, :]

    def read(self, name: str, k: int = 0) -> Value:
        """An operand's values in column k."""
        return self.member(self.of.read(name), k)

    def results(self, x: Value) -> tuple[Value, ...]:
        """The new values of each column of the groups, to be broadcast to its members."""
        return self.step.results(tuple([self.member(x, k) for k in range(self.step.columns)]), self)
