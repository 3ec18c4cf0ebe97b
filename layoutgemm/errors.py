"""The error types of layoutgemm.

Every refusal is a `LayoutError`, which is a `ValueError`: an argument had no meaning, or the question has no answer of
the requested kind. The message has the operands, the arithmetic that failed and, if there is one, the first coordinate
that shows it. Errors with more detail keep it in attributes, so a program can read it too.
"""

from __future__ import annotations

import re
from typing import Any


class LayoutError(ValueError):
    """The base of every error that layoutgemm raises on purpose.

    `reason` is the message; `witness` is the first failing coordinate (or pair of coordinates), or None.
    """

    unnamed: tuple[object, str] | None = None  # (value, message) of a refused value: see `arguments.checked`

    def __init__(self, reason: str = "", witness: object = None) -> None:
        self.args = (reason,)  # not by super().__init__, which torch.compile does not trace: it would lose the text
        self.reason = reason
        self.witness = witness

    def __str__(self) -> str:
        # a layout of 1,000 modes has 150,000 characters: its begin and end are shown, `args` keeps the rest
        return printable(re.sub(r"\S{1000,}", lambda word: f"{word[0][:400]}...{word[0][-400:]}", super().__str__()))

    def __reduce__(self) -> tuple[object, ...]:
        # An exception's default pickle calls the class with `args`, which drops the attributes.
        kept = {name: value for name, value in self.__dict__.items() if name != "unnamed"}
        return _rebuild, (self.__class__, self.args, kept)


def printable(text: str) -> str:
    """The text with an escape for each unprintable character: halves of surrogate pairs."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _rebuild(cls: type[LayoutError], args: tuple[object, ...], attributes: dict[str, object]) -> LayoutError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class CompositionError(LayoutError):
    """No layout is the composition, or none was found within bounds.

    The composition is `left(right(c))`, with the modes of `right`.

    Attributes:
        left, right: the operands. mode: index of the mode of `right` that fails on its own, or None when each mode has
        an answer and only their sum has none. reason: the arithmetic. witness: the first flat coordinate of `right` at
        which no layout fits, or None where the composition is refused for another reason (`reason` says which).
    """

    needs: tuple[str, ...] = ()  # facts about symbols, each of which would help

    def __init__(
        self,
        reason: str = "",
        witness: int | None = None,
        left: object = None,
        right: object = None,
        mode: int | None = None,
    ) -> None:
        head = f"cannot compose {left} o {right}: " if left is not None else ""
        super().__init__(head + reason, witness)
        self.reason = reason
        self.left = left
        self.right = right
        self.mode = mode


class CoordinateError(LayoutError):
    """A coordinate does not fit the shape. Out of range, of another profile, or not an integer."""


class SwizzleError(LayoutError):
    """Invalid swizzle parameters or units, or a change of unit that splits a moved piece."""


class ParseError(LayoutError):
    """Text that is not a layout. `position` is the index of the first wrong character."""

    def __init__(self, reason: str = "", text: str = "", position: int = 0) -> None:
        super().__init__(reason + _pointer(text, position))
        self.reason = reason
        self.text = text
        self.position = position


def _pointer(text: str, position: int, most: int = 100) -> str:
    """The line at a position, or a long one's part, with a caret below."""
    if not text:
        return ""
    begin, number = text.rfind("\n", 0, position) + 1, text.count("\n", 0, position) + 1
    many, text, position = "\n" in text, text[begin:].partition("\n")[0], position - begin
    start = max(0, min(position - most // 2, len(text) - most))
    shown, before = text[start : start + most], text[start:position]
    left, right = "..." if start else "", "..." if start + most < len(text) else ""
    blanks = " " * len(left + printable(before))
    where = f" (line {number})" if many else ""
    return f"{where}\n  {left}{printable(shown)}{right}\n  {blanks}^".replace("\t", " ")


class AtomError(LayoutError):
    """No hardware instruction has the shape, type or layout asked for."""


class DescriptorError(LayoutError):
    """A matrix descriptor cannot express the layout."""


class TmaError(LayoutError):
    """A TMA copy breaks a rule of the hardware.

    Attributes: rule, the name of the rule in the table of rules; arithmetic, the numbers that break it. nearest is a
    similar request that works (`atoms.tma.suggest.Suggestion`), or None if none was found.
    """

    def __init__(self, reason: str = "", witness: object = None, rule: str = "", nearest: Any = None) -> None:
        super().__init__(reason + (f"; nearest that works: {nearest}" if nearest is not None else ""), witness)
        self.arithmetic = reason
        self.rule = rule
        self.nearest = nearest


class BudgetError(LayoutError):
    """Shared memory, registers or threads exceed the architecture's limit."""


class PlanError(LayoutError):
    """A kernel plan that cannot be derived."""


class OperandError(LayoutError):
    """An array that a kernel cannot take, by type, device, size, stride or address."""


class TensorError(OperandError, RuntimeError):
    """Tensors that torch itself would refuse, with torch's message: mismatched shapes, types or devices."""


class RankError(LayoutError, RuntimeError):
    """A rank of a distributed product that did not come in time. The message names rank and flag."""


class PtxError(LayoutError):
    """Unreadable PTX text, or an instruction that the emulator does not support."""


class EmulatorError(LayoutError):
    """An emulated kernel's error, or its use of undefined behaviour in PTX. The message names the instruction.

    Attributes:
        printed: the text that the kernel's threads printed before.
    """

    printed: str = ""


class NotCompiledError(EmulatorError, TypeError):
    """An object handed to the emulator is no compiled function: a TypeError too."""


class DeviceAssertError(EmulatorError):
    """An assertion of an emulated kernel failed. The message has its text, its line and its thread."""


class DeadlockError(EmulatorError):
    """A deadlock; the message lists the event that each warp waits for."""
