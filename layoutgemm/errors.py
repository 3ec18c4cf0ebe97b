"""The errors of layoutgemm.

Every refusal is a `LayoutError`, which is a `ValueError`: an argument had no meaning, or the question has no answer of
the kind asked for. The message carries the operands, the arithmetic that failed and, where there is one, the first
coordinate at which it shows; the errors with more to say keep it in attributes, so that a program can read it too.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AtomError",
    "BudgetError",
    "CompositionError",
    "CoordinateError",
    "DeadlockError",
    "DescriptorError",
    "EmulatorError",
    "LayoutError",
    "OperandError",
    "ParseError",
    "PlanError",
    "PtxError",
    "RaceError",
    "SwizzleError",
    "TmaError",
]


class LayoutError(ValueError):
    """Base of every error that layoutgemm raises on purpose.

    `reason` is the message; `witness` is the first coordinate (or pair of coordinates) that shows it, or None.
    """

    def __init__(self, reason: str = "", witness: Any = None) -> None:
        self.args = (reason,)  # not by super().__init__, which torch.compile does not trace: it would lose the text
        self.reason = reason
        self.witness = witness

    def __str__(self) -> str:
        return _printable(super().__str__())

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception's default pickle calls the class with `args`, which drops the attributes.
        return _rebuild, (self.__class__, self.args, self.__dict__)


def _printable(text: str) -> str:
    """The text with an escape for each character that cannot be written: halves of surrogate pairs."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _rebuild(cls: type[LayoutError], args: tuple[Any, ...], attributes: dict[str, Any]) -> LayoutError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class CompositionError(LayoutError):
    """No layout with the right operand's modes is the function `left(right(c))`, or none can be found within bounds.

    Attributes:
        left, right: the operands. mode: index of the mode of `right` that fails on its own, or None when each mode has
        an answer and only their sum has none. reason: the arithmetic. witness: the first flat coordinate of `right` at
        which no layout fits, or None where the composition is refused for another reason (`reason` says which).
    """

    def __init__(
        self, reason: str = "", witness: int | None = None, left: Any = None, right: Any = None, mode: int | None = None
    ) -> None:
        head = f"cannot compose {left} o {right}: " if left is not None else ""
        super().__init__(head + reason, witness)
        self.reason = reason
        self.left = left
        self.right = right
        self.mode = mode


class CoordinateError(LayoutError):
    """A coordinate does not fit the shape: out of range, of another profile, or no integer."""


class SwizzleError(LayoutError):
    """A swizzle's parameters or units have no meaning, or a change of unit would split what it moves as one."""


class ParseError(LayoutError):
    """Text is not the notation of a layout. `position` is the index of the first character that does not fit."""

    def __init__(self, reason: str = "", text: str = "", position: int = 0) -> None:
        super().__init__(reason + _pointer(text, position))
        self.reason = reason
        self.text = text
        self.position = position


def _pointer(text: str, position: int, most: int = 100) -> str:
    """Two lines: the text, or what of a long one lies around the position, and a caret under the position."""
    if not text:
        return ""
    start = max(0, min(position - most // 2, len(text) - most))
    shown, before = text[start : start + most], text[start:position]
    left, right = "..." if start else "", "..." if start + most < len(text) else ""
    blanks = " " * len(left + _printable(before))
    return f"\n  {left}{_printable(shown)}{right}\n  {blanks}^".replace("\t", " ")


class AtomError(LayoutError):
    """No hardware instruction has the shape, type or layout asked for."""


class DescriptorError(LayoutError):
    """A matrix descriptor cannot say what the layout is."""


class TmaError(LayoutError):
    """A tensor copy breaks a rule of the hardware.

    Attributes: rule, the name of the rule in the table of rules; arithmetic, the numbers that break it; nearest, a
    request that is close to this one and works (`atoms.tma_nearest.Nearest`), or None where none was found.
    """

    def __init__(self, reason: str = "", witness: Any = None, rule: str = "", nearest: Any = None) -> None:
        super().__init__(reason + (f"; nearest that works: {nearest}" if nearest is not None else ""), witness)
        self.arithmetic = reason
        self.rule = rule
        self.nearest = nearest


class BudgetError(LayoutError):
    """More shared memory, registers or threads than the architecture has."""


class PlanError(LayoutError):
    """A kernel plan that cannot be derived."""


class OperandError(LayoutError):
    """An array handed to a kernel has a type, device, size, stride or address that it cannot take."""


class TensorError(OperandError, RuntimeError):
    """Tensors that torch itself would refuse, in torch's words: shapes, types or devices that do not meet."""


class PtxError(LayoutError):
    """PTX text that cannot be read, or that has an instruction which the emulator does not know."""


class EmulatorError(LayoutError):
    """An emulated kernel did something that PTX leaves undefined or forbids; the message names the instruction."""


class RaceError(EmulatorError):
    """Two accesses to one place, one of them a write, that nothing orders."""


class DeadlockError(EmulatorError):
    """No thread can go on; the message says what each warp waits for."""
