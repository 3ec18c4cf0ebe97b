"""An epilogue's operands as the sixteen words of a launch. Numbers as bits, addresses with the strides they need."""

from __future__ import annotations

import math
import numbers
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...arguments import shown
from ...errors import OperandError
from ..plan import MAX_WORDS
from .steps import EpilogueOperand

if TYPE_CHECKING:
    from .chain import Epilogue

_FLOAT, _WORD = struct.Struct("<f"), struct.Struct("<I")
_MAX_F32 = float.fromhex("0x1.ffffffp127")  # rounds to no float32


@dataclass(frozen=True)
class PlacedOperand:
    """An operand's address and strides.

    address  in bytes (or an array that stands for it, in the emulator)
    leading  elements from line to line, of a matrix
    batch    elements from one matrix of a batch to the next; 0 where all share it
    """

    address: Any
    leading: int = 0
    batch: int = 0


def check_names(
    names: Sequence[str], given: Collection[str], takes: str = "the epilogue takes", kind: str = "operand"
) -> None:
    """Raise OperandError for a name that is missing, and for one that nothing takes."""
    for name in (*[n for n in names if n not in given], *[n for n in given if n not in names]):
        what = "is missing" if name in names else f"is no {kind} of it"
        raise OperandError(f"{takes} {', '.join(names) or f'no {kind}s'}: {name} {what}")


def words_of(epilogue: Epilogue, given: Mapping[str, object], workspace: object = None) -> tuple[Any, ...]:
    """The words, in the kernel's order. Numbers and `PlacedOperand` by name, all of the epilogue's and no others.

    workspace  the address of the plan's `workspace` bytes, which an epilogue with partial results needs

    Raises OperandError for a missing operand, one too many, or a number where there should be an address.

    >>> from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, Scale
    >>> words_of(Epilogue(Scale(), Bias()), {"alpha": 1.0, "bias": PlacedOperand(0x7F00)})[:3]
    (1065353216, 32512, 0)
    """
    check_names([operand.name for operand in epilogue.given], given)
    words: list[Any] = []
    for operand in epilogue.given:
        words.extend(_words(operand, given[operand.name]))
    if epilogue.partials:
        if workspace is None:
            raise OperandError(f"{epilogue.partials[0].name} has partial results: workspace= is their address")
        words.append(workspace)
    return (*words, *[0] * (MAX_WORDS - len(words)))


def host_number(name: str, value: Any, whole: bool = False) -> int | float:
    """A number that is given at a launch, NumPy's included. 32 bits of an integer where it is `whole`, or a float32.

    Raises OperandError for anything else, and for a number that 32 bits do not hold.

    >>> host_number("alpha", 3), host_number("seed", 7, whole=True)
    (3.0, 7)
    """
    kinds: Any = (int, numbers.Integral) if whole else (int, float, numbers.Real)
    if isinstance(value, bool) or not isinstance(value, kinds):
        what = "a whole number" if whole and isinstance(value, numbers.Real) else f"got a {type(value).__qualname__}"
        rank = getattr(value, "ndim", None)
        way = "; a step of an epilogue reads vectors and matrices" if rank else ""
        if rank == 0 and not whole:
            way = f"; float({name}) is one, and Scale(..., device=True) or EpilogueOperand(..., '', 'f32') reads memory"
        raise OperandError(f"{name} is a number, given at the launch; {what}{way}")
    if whole:
        value = int(value)
        if not -(2**31) <= value < 2**32:
            raise OperandError(f"{name} is an integer of {value.bit_length()} bits, and a launch takes 32")
        return value
    if isinstance(value, int) and value.bit_length() > 128:
        raise OperandError(f"{name} = an integer of {value.bit_length()} bits is beyond float32")
    number = float(value)
    if _MAX_F32 <= abs(number) < math.inf:
        raise OperandError(f"{name} = {shown(number)} is beyond float32")
    return number


def float_word(number: float) -> int:
    """A float32 as a kernel's 64-bit parameter carries it.

    >>> hex(float_word(1.0))
    '0x3f800000'
    """
    word: int = _WORD.unpack(_FLOAT.pack(number))[0]
    return word


def float_below(operand: EpilogueOperand) -> float:
    """A float nearer to 0 than this is rounded to the operand's word, `float_word`. 0 for whole numbers."""
    return 0.0 if operand.dtype.name == "i32" else _MAX_F32


def number_word(operand: EpilogueOperand, value: object) -> int:
    """The word of an operand that is a number. Raises OperandError as `host_number` does."""
    most = float_below(operand)
    if type(value) is float and -most < value < most:  # the usual call, in a third of the time
        return float_word(value)
    number = host_number(operand.name, value, not most)
    return number & 0xFFFFFFFF if isinstance(number, int) else float_word(number)


def _words(operand: EpilogueOperand, value: object) -> tuple[Any, ...]:
    if operand.host:
        return (number_word(operand, value),)
    if not isinstance(value, PlacedOperand):
        raise OperandError(f"{operand.name} lies in memory: an address, not {shown(value)}")
    if not operand.axes:
        return (value.address,)
    return (value.address, value.leading, value.batch) if operand.axes == "mn" else (value.address, value.batch)
