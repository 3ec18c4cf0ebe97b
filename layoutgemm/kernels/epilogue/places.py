"""Places of elements, as the steps and the traced functions of an epilogue see them.

A step is evaluated on registers, on NumPy's matrices, or on torch's and JAX's tensors. Each has its own place and
functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from .reduce import Quantize, ReductionStep

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

    def random(self, name: str) -> Value:
        """16 random bits of the seed `name`."""


__all__ = ["ElementPlace", "Functions", "OperandPlace", "StepPlace", "Value"]
