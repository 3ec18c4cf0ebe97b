"""Codes to e4m3, four to a register, by integer arithmetic on 32-bit words.

`quads_of` takes one word, 8 codes of 4 bits or 4 of 8 bits, and gives a register for each four. A kernel spends, for a
word of 8 codes:

    code           shifts    lop3    prmt    add, sub    how
    -----------    ------    ----    ----    --------    ---------------------------------------------------------------
    int4, e2m1     3         2       6       0           a table of the 16 values in four words: two prmt look up the
                                                         low three bits of a code in each half, a third takes the half
                                                         that the highest bit says
    int4, zeros    1         6       2       6           magnitude and sign of code - zero point in each byte: an
                                                         integer up to 16 is, as the bits of an e4m3, 2**-9 of itself
    e4m3           0         0       0       0           as it is

Code j of register i is digit 4 i + j of the word; with zero points digit 2 j + i: see `word_values`.

An e4m3 has 4 significant bits: all values of int4 and of float4, and all differences from -16 to 15, are exact.
`refusal` has the codes that are not: int8 and e5m2.

Sources: PTX ISA, "prmt", "lop3"; OCP 8-bit Floating Point 1.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from ...layouts import Layout
from .conversions import TARGETS, WORD, PairMath, Word
from .formats import CODES, QuantizedFormat

_BYTES = 4  # of a word
_LOW_DIGITS, _HIGH_BITS = 0x77777777, 0x44444444  # three bits of each digit; and its highest, moved right by one
_IN_PLACE = 0x32103210  # prmt's digits that take byte j of the first word
_SIGNS = 0xBA98  # prmt's digits that repeat each byte's highest bit
_DIGITS, _TOPS, _ONES = 0x0F0F0F0F, 0x80808080, 0x01010101
ZERO_FACTOR = 2.0**9  # (int4 - zero point) / the e4m3 that stands for it
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


@cache
def table_of(code: str) -> tuple[int, ...]:
    """The e4m3 of the 16 codes of a kind, as words.

    >>> [hex(word) for word in table_of("int4")]
    ['0xcaccced0', '0xb8c0c4c8', '0x44403800', '0x4e4c4a48']
    """
    found = TARGETS["e4m3"].dtype.encode(CODES[code].values())
    return tuple(int(word) for word in np.asarray(found, np.uint8).view("<u4"))


def kept_words(fmt: QuantizedFormat) -> tuple[int, ...]:
    """The words of a format's table that an instruction takes from a register. The others are a part of it.

    >>> [hex(word) for word in kept_words(QuantizedFormat("int4", 128))], kept_words(QuantizedFormat("e4m3"))
    (['0xcaccced0', '0x44403800'], ())
    """
    return table_of(fmt.code)[::2] if fmt.bits == 4 and not fmt.zeros else ()


def quads_of(fmt: QuantizedFormat, word: Word, ops: PairMath, zeros: Sequence[Word] = ()) -> list[Word]:
    """The registers of a word of codes, unscaled.

    zeros  with zero points that of each register, in its four bytes; the registers are then `ZERO_FACTOR` too small
    """
    if fmt.bits == 8:
        return [word]
    if fmt.zeros:
        return [_less(ops, word, i, zero) for i, zero in enumerate(zeros)]
    table = [ops.constant(entry) for entry in table_of(fmt.code)]
    digits = ops.select(word, _LOW_DIGITS, ops.constant(0))
    halves = ops.select(ops.shifted(word, -1), _HIGH_BITS, ops.constant(_IN_PLACE))
    return [_looked_up(ops, table, digits, halves), _looked_up(ops, table, *_upper(ops, digits, halves))]


def _upper(ops: PairMath, *words: Word) -> list[Word]:
    return [ops.shifted(word, -WORD // 2) for word in words]


def _looked_up(ops: PairMath, table: list[Word], digits: Word, halves: Word) -> Word:
    low, high = (ops.permute(table[i], table[i + 1], digits) for i in (0, 2))
    return ops.permute(low, high, halves)


def _less(ops: PairMath, word: Word, i: int, zero: Word) -> Word:
    """Sign and magnitude of each digit less the byte of `zero`; from a byte of 128 nothing is borrowed."""
    moved = ops.shifted(word, -4 * i) if i else word
    offset = ops.minus(ops.select(moved, _DIGITS, ops.constant(_TOPS)), zero)  # 128 + difference
    positive = ops.permute(offset, offset, ops.constant(_SIGNS))
    # 128 + d becomes d, its highest bit inverted; 128 - |d| becomes 128 + |d|, all bits inverted, plus one.
    inverted = ops.plus(ops.differ(offset, positive, _TOPS), ops.constant(_ONES))
    return ops.minus(inverted, ops.select(positive, _ONES, ops.constant(0)))
