"""An epilogue's operands as the sixteen words of a launch: numbers as bits, addresses with the strides they need."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import OperandError
from .epilogue import MAX_WORDS, Epilogue, Given


@dataclass(frozen=True)
class Placed:
    """Where an operand lies.

    address  in bytes (or an array that stands for it, in the emulator)
    leading  elements from line to line, of a matrix
    batch    elements from one matrix of a batch to the next; 0 where all share it
    """

    address: Any
    leading: int = 0
    batch: int = 0


def words_of(epilogue: Epilogue, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """The words, in the kernel's order: numbers and `Placed` by name, all of the epilogue's and no others.

    Raises OperandError for a missing operand, one too many, or a number where there should be an address.

    >>> from layoutgemm.kernels.epilogue import Bias, Scale
    >>> words_of(Epilogue(Scale(), Bias()), {"alpha": 1.0, "bias": Placed(0x7F00)})[:3]
    (1065353216, 32512, 0)
    """
    names = [operand.name for operand in epilogue.given]
    for name in (*[n for n in names if n not in given], *[n for n in given if n not in names]):
        what = "is missing" if name in names else "is no operand of it"
        raise OperandError(f"the epilogue takes {', '.join(names) or 'no operands'}: {name} {what}")
    words: list[Any] = []
    for operand in epilogue.given:
        words.extend(_words(operand, given[operand.name]))
    return (*words, *[0] * (MAX_WORDS - len(words)))


def _words(operand: Given, value: Any) -> tuple[Any, ...]:
    if operand.host:
        if isinstance(value, (Placed, bool)) or not isinstance(value, (int, float)):
            raise OperandError(f"{operand.name} is a number, given at the launch; got {value!r}")
        if operand.dtype.name == "i32":
            return (int(value) & 0xFFFFFFFF,)
        return (int.from_bytes(struct.pack("<f", value), "little"),)
    if not isinstance(value, Placed):
        raise OperandError(f"{operand.name} lies in memory: an address, not {value!r}")
    if not operand.axes:
        return (value.address,)
    return (value.address, value.leading, value.batch) if operand.axes == "mn" else (value.address, value.batch)
