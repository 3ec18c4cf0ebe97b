"""Codes to e4m3, four to a register, by integer arithmetic on 32-bit words.

`quads_of` takes one word, 8 codes of 4 bits or 4 of 8 bits, and gives a register for each four. A kernel spends, for a
word of 8 codes:

    code           shifts    lop3    prmt    add, sub    multiply-add    how
    -----------    ------    ----    ----    --------    ------------    -----------------------------------------------
    int4           1         4       0       0           2               sign and magnitude, in ones' complement: twice
                                                                         the magnitude and 130 times the sign are 2**-8
                                                                         of the value
    e2m1           2         3       0       0           0               all bits lie as an e4m3 of 2**-6 of the value
                                                                         has them, or two rotations away
    int4, zeros    1         6       2       6           0               magnitude and sign of code - zero point in each
                                                                         byte
    e4m3           0         0       0       0           0               as it is

An integer up to 16 is, as the bits of an e4m3, 2**-9 of itself. So no table is needed, and `factor` has what is left.
Words hold the codes of int4 as `stored` has them: a magnitude less 1 where it has a sign, which is then added with it.

Code j of register i is place 4 i + j of the word, or with zero points 2 j + i: see `word_values`. Their bits lie in
byte j, register 0's in its lower digit: `bits_of_places`.

An e4m3 has 4 significant bits: all values of int4 and of float4, and all differences from -16 to 15, are exact.
`refusal` has the codes that are not: int8 and e5m2.

Sources: PTX ISA, "prmt", "lop3", "mad.lo"; OCP 8-bit Floating Point 1.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from ...dtypes import dtype
from ...layouts import Layout
from .conversions import TARGETS, WORD, PairMath, Word, rotations
from .formats import CODES, QuantizedFormat

_BYTES, _BYTE, _DIGIT = 4, 8, 4  # bytes of a word, bits of a byte and of a digit
_SIGNS = 0xBA98  # prmt's digits that repeat each byte's highest bit
_DIGITS, _TOPS, _ONES = 0x0F0F0F0F, 0x80808080, 0x01010101
_SIGN = 0x82 - 1  # what a sign adds to its digit: the e4m3's sign, and 2 for the magnitude, less the digit's own 1
_FLOAT4, _FLOAT8 = dtype("e2m1"), dtype("e4m3")
_LOWEST = _FLOAT8.mantissa - _FLOAT4.mantissa
# The bits of an e4m3 that float4's are: mantissa, exponent, sign.
_E2M1 = frozenset((*range(_LOWEST, _LOWEST + _FLOAT4.bits - 1), _FLOAT8.bits - 1))
DEPTH = 32  # of K, that an instruction of 8-bit types sums


def refusal(fmt: QuantizedFormat) -> str:
    """The reason why weights of a format are not multiplied as e4m3, or "".

    >>> refusal(QuantizedFormat("int8")), refusal(QuantizedFormat("e2m1", 16))
    ('code 17 of int8 is 17, and the nearest e4m3 16', 'groups of 16: an instruction of float8 sums 32 of K')
    """
    if reason := _INEXACT[fmt.code]:
        return reason
    if fmt.group is not None and fmt.group < DEPTH:
        return f"groups of {fmt.group}: an instruction of float8 sums {DEPTH} of K"
    return ""


def _inexact(code: str) -> str:
    """The first code of a kind that is no e4m3, or ""."""
    kind, values = TARGETS["e4m3"].dtype, np.asarray(CODES[code].values())
    near = kind.decode(kind.encode(np.where(np.isfinite(values), values, 0)))
    wrong = np.flatnonzero(np.isfinite(values) & (near != values))
    if not len(wrong):
        return ""
    at = int(wrong[0])
    return f"code {at} of {code} is {values[at]:g}, and the nearest e4m3 {near[at]:g}"


_INEXACT = {code: _inexact(code) for code in CODES}  # known to a compiler's trace, which runs no NumPy


def word_values(fmt: QuantizedFormat) -> Layout:
    """Place of a code in its word -> value of the word's registers.

    >>> [int(word_values(QuantizedFormat("int4", 32, zeros))(3)) for zeros in (False, True)]
    [3, 5]
    """
    count = WORD // fmt.bits
    return Layout((2, _BYTES), (_BYTES, 1)) if fmt.zeros else Layout(count)


def factor(fmt: QuantizedFormat) -> float:
    """The value of a code divided by that of its e4m3. With zero points: of the difference.

    >>> [factor(fmt) for fmt in (QuantizedFormat("int4"), QuantizedFormat("int4", 32, True), QuantizedFormat("e2m1"))]
    [256.0, 512.0, 64.0]
    """
    return 2.0**9 if fmt.zeros else {"int4": 2.0**8, "e2m1": 2.0**6}.get(fmt.code, 1.0)


@cache
def stored(fmt: QuantizedFormat) -> tuple[int, ...]:
    """Code -> the digit that a word holds for it; () where that is the code.

    An int4 is a sign, and three bits of its magnitude: those of -1 - value where it is negative.

    >>> stored(QuantizedFormat("int4")), stored(QuantizedFormat("e2m1"))
    ((15, 14, 13, 12, 11, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7), ())
    """
    return (*range(15, 7, -1), *range(8)) if fmt.code == "int4" and not fmt.zeros else ()


@cache
def bits_of_places(fmt: QuantizedFormat) -> tuple[tuple[int, ...], ...]:
    """For each place of a word, the bits of a stored code, lowest first.

    The sign of an int4 is the lowest bit of its digit.

    >>> [bits_of_places(QuantizedFormat(code))[5] for code in ("int4", "e2m1", "e4m3")[:2]]
    [(13, 14, 15, 12), (8, 9, 14, 13)]
    """
    if fmt.bits == 8 or fmt.zeros:
        return tuple(tuple(range(fmt.bits * place, fmt.bits * (place + 1))) for place in range(WORD // fmt.bits))
    if fmt.code == "int4":
        digit = (1, 2, 3, 0)
        inside = [digit, tuple(_DIGIT + bit for bit in digit)]
    else:
        inside = [
            tuple(next(bit - left for left, mask in moves if mask >> bit & 1) for bit in sorted(_E2M1))
            for moves in rotations(_E2M1, _BYTE)
        ]
    return tuple(tuple(_BYTE * byte + bit for bit in bits) for bits in inside for byte in range(_BYTES))


def quads_of(fmt: QuantizedFormat, word: Word, ops: PairMath, zeros: Sequence[Word] = ()) -> list[Word]:
    """The registers of a word of codes, unscaled and divided by `factor`.

    zeros  with zero points that of each register, in its four bytes
    """
    if fmt.bits == 8:
        return [word]
    if fmt.zeros:
        return [_less(ops, word, i, zero) for i, zero in enumerate(zeros)]
    if fmt.code == "int4":
        digits = [ops.shifted(word, -_DIGIT * i) if i else word for i in range(2)]
        return [ops.times_plus(_only(ops, each, _ONES), _SIGN, _only(ops, each, _DIGITS)) for each in digits]
    found = []
    for moves in rotations(_E2M1, _BYTE):
        quad = ops.constant(0)
        for left, mask in moves:
            quad = ops.select(ops.shifted(word, left) if left else word, mask * _ONES, quad)
        found.append(quad)
    return found


def _only(ops: PairMath, word: Word, mask: int) -> Word:
    return ops.select(word, mask, ops.constant(0))


def _less(ops: PairMath, word: Word, i: int, zero: Word) -> Word:
    """Sign and magnitude of each digit less the byte of `zero`; from a byte of 128 nothing is borrowed."""
    moved = ops.shifted(word, -_DIGIT * i) if i else word
    offset = ops.minus(ops.select(moved, _DIGITS, ops.constant(_TOPS)), zero)  # 128 + difference
    positive = ops.permute(offset, offset, ops.constant(_SIGNS))
    # 128 + d becomes d, its highest bit inverted; 128 - |d| becomes 128 + |d|, all bits inverted, plus one.
    inverted = ops.plus(ops.differ(offset, positive, _TOPS), ops.constant(_ONES))
    return ops.minus(inverted, ops.select(positive, _ONES, ops.constant(0)))
