"""Codes to pairs of bf16 or f16, by integer arithmetic on 32-bit words.

The same functions run in a kernel and in NumPy.

`pairs_of` takes one word, 8 codes of 4 bits or 4 of 8 bits, and gives a register for each pair. Pair i of a word has
code i in its low half, and in its high half the code 16 bits further on: `pair_position`. A kernel spends, for a word:

    code    target    shifts    lop3    sub or mul    how
    ----    ------    ------    ----    ----------    ----------------------------------------------------------------
    int4    both      3         4       4             the code becomes mantissa bits of a power of two, which is then
                                                      subtracted together with the excess or the zero point
    int8    bf16      1         4       2             the low 7 bits likewise; the sign bit is the exponent's lowest:
                                                      128 + low - (128 or 256)
    int8    f16       1         4       2             the same with a sign at bit 7 of the mantissa: 1024 + low - (1024
                                                      or 1152)
    e2m1    both      7         8       4             sign and the other bits move to their places; a product with a
    e4m3    both      5         6       2             power of two moves the exponent's bias, subnormals too
    e5m2    both      5         6       2             (e5m2 to f16 is a shift alone)

Every step is exact: `tests/kernels/sm90/quantized` goes through all codes. Source: PTX ISA, "lop3", "sub.bf16x2",
"mul.bf16x2" (subnormal numbers are supported).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ....dtypes import DType, dtype
from ....errors import PlanError
from .formats import CODES

WORD = 32
HALF = 16


class PairMath(Protocol):
    """32-bit words, and pairs of floats in them, in a kernel or in NumPy."""

    def select(self, word: Any, mask: int, rest: Any) -> Any:
        """(word & mask) | rest."""

    def shifted(self, word: Any, left: int) -> Any:
        """The word shifted left, or right for a negative count."""

    def sub(self, x: Any, y: Any) -> Any:
        """Two differences, rounded to nearest."""

    def mul(self, x: Any, y: Any) -> Any:
        """Two products, rounded to nearest."""

    def constant(self, word: int) -> Any:
        """A word."""


def both(half: int) -> int:
    """A word with the same 16 bits in both halves."""
    return half << HALF | half


def pair_position(bits: int, i: int, high: int) -> int:
    """The place in a word of the low (0) or high (1) code of pair i.

    >>> [pair_position(4, i, high) for i in range(4) for high in range(2)]
    [0, 4, 1, 5, 2, 6, 3, 7]
    """
    return i + high * (HALF // bits)


@dataclass(frozen=True, slots=True)
class TargetFormat:
    """The facts of an activation type that the conversions use: bits of the exponent and of the mantissa."""

    dtype: DType
    exponent: int
    mantissa: int

    @property
    def bias(self) -> int:
        """The exponent's bias."""
        return (1 << self.exponent - 1) - 1

    @property
    def magic(self) -> int:
        """The bits of the power of two whose mantissa counts in ones: 128 of bf16, 1024 of f16."""
        return (self.bias + self.mantissa) << self.mantissa

    def word(self, value: float) -> int:
        """A word with the value in both halves; the value is one of the type's."""
        bits = int(self.dtype.encode(np.float64(value)))
        if float(self.dtype.decode(np.array([bits]))[0]) != value:
            raise PlanError(f"{value} is no {self.dtype}")
        return both(bits)


TARGETS = {name: TargetFormat(dtype(name), *parts) for name, parts in {"bf16": (8, 7), "f16": (5, 10)}.items()}
_FLOATS = {"e2m1": (2, 1, 1), "e4m3": (4, 3, 7), "e5m2": (5, 2, 15)}  # exponent, mantissa, bias


def zero_word(target: TargetFormat, zero: float) -> int:
    """The word that is subtracted from an int4's magic pair: its power of two and the zero point, twice.

    >>> hex(zero_word(TARGETS["bf16"], 8))
    '0x43084308'
    """
    return target.word(float(1 << target.mantissa) + zero)


def pairs_of(code: str, target: TargetFormat, word: Any, ops: PairMath, zeros: Sequence[Any] = ()) -> list[Any]:
    """The pairs of a word of codes, unscaled.

    zeros  of int4 the `zero_word` of each pair; by default that of the codes' excess
    """
    if code == "int4":
        taken = zeros or [ops.constant(zero_word(target, CODES[code].excess))] * 4
        return [ops.sub(_magic(target, ops, word, -4 * i, 0x000F), zero) for i, zero in enumerate(taken)]
    if code == "int8":
        return [_integer(target, ops, word, i) for i in range(2)]
    return _floats(code, target, word, ops)


def _magic(target: TargetFormat, ops: PairMath, word: Any, left: int, mask: int) -> Any:
    """Bits of each half, behind the bits of the magic power of two."""
    moved = ops.shifted(word, left) if left else word
    return ops.select(moved, both(mask), ops.constant(both(target.magic)))


def _integer(target: TargetFormat, ops: PairMath, word: Any, i: int) -> Any:
    moved = ops.shifted(word, -8 * i) if i else word
    return ops.sub(_magic(target, ops, moved, 0, 0x7F), _magic(target, ops, moved, 0, 0x80))


def _floats(code: str, target: TargetFormat, word: Any, ops: PairMath) -> list[Any]:
    exponent, mantissa, bias = _FLOATS[code]
    bits, found = 1 + exponent + mantissa, []
    right = target.exponent - exponent  # from a code at the top of a half to its place
    for i in range(HALF // bits):
        up = HALF - bits - bits * i
        moved = ops.shifted(word, up) if up else word
        if not right:
            found.append(ops.select(moved, both((1 << bits) - 1 << HALF - bits), ops.constant(0)))
            continue
        sign = ops.select(moved, both(1 << HALF - 1), ops.constant(0))
        magnitude = both((1 << bits - 1) - 1 << HALF - bits - right)
        placed = ops.select(ops.shifted(moved, -right), magnitude, sign)
        found.append(ops.mul(placed, ops.constant(target.word(2.0 ** (target.bias - bias)))))
    return found


class NumpyPairs:
    """The same on arrays of uint32."""

    def __init__(self, target: TargetFormat):
        self.dtype = target.dtype

    def constant(self, word: int) -> Any:
        """A word."""
        return np.uint32(word)

    def select(self, word: Any, mask: int, rest: Any) -> Any:
        """(word & mask) | rest."""
        return word & np.uint32(mask) | rest

    def shifted(self, word: Any, left: int) -> Any:
        """The word shifted left, or right for a negative count."""
        return word << np.uint32(left) if left > 0 else word >> np.uint32(-left)

    def sub(self, x: Any, y: Any) -> Any:
        """Two differences, rounded to nearest."""
        return self._each(np.subtract, x, y)

    def mul(self, x: Any, y: Any) -> Any:
        """Two products, rounded to nearest."""
        return self._each(np.multiply, x, y)

    def _each(self, operation: Any, x: Any, y: Any) -> npt.NDArray[np.uint32]:
        halves = []
        for shift in (0, HALF):
            left, right = (self.dtype.decode((np.asarray(z) >> np.uint32(shift)) & np.uint32(0xFFFF)) for z in (x, y))
            with np.errstate(over="ignore", invalid="ignore"):
                exact = operation(left.astype(np.float64), right.astype(np.float64))
            halves.append(self.dtype.encode(exact).astype(np.uint32))
        return np.asarray(halves[0] | halves[1] << np.uint32(HALF))


def halves_of(word: npt.NDArray[np.uint32], target: TargetFormat) -> npt.NDArray[np.float32]:
    """The two values of each word, in a last dimension: the low half first."""
    both_halves = np.stack([word & np.uint32(0xFFFF), word >> np.uint32(HALF)], axis=-1)
    return np.asarray(target.dtype.decode(both_halves))
