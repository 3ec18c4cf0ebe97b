"""Codes to registers of bf16, f16 or e4m3, by integer arithmetic on 32-bit words.

The same functions run in a kernel and in NumPy. Those to e4m3 are in `float8`.

`pairs_of` takes one word, 8 codes of 4 bits or 4 of 8 bits, and gives a register for each pair. Pair i of a word has
code i in its low half, and in its high half the code 16 bits further on; of e2m1 codes 2 i and 2 i + 1: `pair_values`.
A kernel spends, for a word:

    code    target    shifts    lop3    prmt    sub or mul    how
    ----    ------    ------    ----    ----    ----------    --------------------------------------------------------
    int4    both      3         4       0       4             the code becomes mantissa bits of a power of two, which is
                                                              then subtracted together with the excess or zero point
    int4    f16       1         4       0       4 fma         `one_shift`: bits 4 to 7 are 16 times their code
    int4    bf16/4    1         4       0       4 fma         `one_shift`: bits 4 to 7 alone are a bf16 of 2^-129 of
                                                              their code, and 2^127 leaves a quarter: `nibbles`
    int8    bf16      1         4       0       2             the low 7 bits likewise; the sign bit is the exponent's
                                                              lowest: 128 + low - (128 or 256)
    int8    f16       1         4       0       2             the same with a sign at bit 7 of the mantissa: 1024 + low
                                                              - (1024 or 1152)
    e2m1    bf16      2         3       8       0             tables of the 8 magnitudes: prmt looks up four high bytes
    e2m1    f16       2         3       6       0             and four low ones, which are 0 of f16. Signs lie where one
                                                              lop3 puts four into the high bytes: `bits_of_places`
    e4m3    both      2         3       0       2             a pair's bits lie where its register has them, the other
    e5m2    both      2         3       0       2             pair's between them, two shifts away: `float_places`. A
                                                              product with a power of two moves the exponent's bias,
                                                              subnormals too (e5m2 to f16 needs none, and one shift). A
                                                              group's scale is that power's product already: `placed`

Before sm_90, bf16 has fma alone. `FusedPairs` computes x - y as fma(y, -1, x). Its x * y is fma(x, y, -0), which keeps
the sign of a product that is 0. Source: PTX ISA, "sub" and "mul", Target ISA Notes.

Every step is exact: `checks.conversion_check` goes through all codes. Source: PTX ISA, "lop3", "sub.bf16x2",
"mul.bf16x2" and "fma.rn.bf16x2" (subnormal numbers are supported).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ...dtypes import DType, dtype
from ...errors import PlanError
from ...layouts import Layout
from .formats import CODES

WORD = 32
HALF = 16
LOOKED_UP = "e2m1"  # the codes that become two bytes from tables
_BYTES = 4  # of a word
_MAGNITUDES, _TOPS = 0x77777777, 0x80808080  # three bits of each digit; the highest of each byte
_PAIRS = (0x5140, 0x7362)  # prmt's digits: bytes 0 and 1 of the low word and of the high one in turn, then 2 and 3

Floats: TypeAlias = "npt.NDArray[np.float64]"
Word: TypeAlias = Any  # 32 bits: an integer, a NumPy array of them, or a traced Int32


class PairMath(Protocol):
    """32-bit words, and numbers of 8 or 16 bits in them, in a kernel or in NumPy."""

    def select(self, word: Word, mask: int, rest: Word) -> Word:
        """(word & mask) | rest."""

    def shifted(self, word: Word, left: int) -> Word:
        """The word shifted left, or right for a negative count."""

    def rotated(self, word: Word, left: int) -> Word:
        """The word rotated left."""

    def sub(self, x: Word, y: Word) -> Word:
        """Two differences, rounded to nearest."""

    def mul(self, x: Word, y: Word) -> Word:
        """Two products, rounded to nearest."""

    def fma(self, x: Word, y: Word, z: Word) -> Word:
        """Twice x * y + z, rounded once."""

    def permute(self, x: Word, y: Word, selector: Word) -> Word:
        """Four bytes of the eight of x and y, by the selector's four low digits. Prmt.b32."""

    def twice(self, word: Word, half: int) -> Word:
        """The low half (0) or the high one (1) in both."""

    def plus(self, x: Word, y: Word) -> Word:
        """The sum of two words, modulo 2**32."""

    def minus(self, x: Word, y: Word) -> Word:
        """Their difference, likewise."""

    def times_plus(self, x: Word, factor: int, y: Word) -> Word:
        """x * factor + y, modulo 2**32."""

    def differ(self, x: Word, y: Word, rest: int) -> Word:
        """x ^ (~y | rest)."""

    def constant(self, word: int) -> Word:
        """A word."""


def both(half: int) -> int:
    """A word with the same 16 bits in both halves."""
    return half << HALF | half


def pair_values(code: str) -> Layout:
    """Place of a code in its word -> value of the word's registers.

    Code i + pairs * high is half `high` of pair i; of e2m1 code 2 i + high.

    >>> [int(pair_values("int4")(place)) for place in range(8)]
    [0, 2, 4, 6, 1, 3, 5, 7]
    """
    pairs = HALF // CODES[code].bits
    return Layout(2 * pairs) if code == LOOKED_UP else Layout((pairs, 2), (2, 1))


def bits_of_places(code: str, target: TargetFormat) -> tuple[tuple[int, ...], ...]:
    """For each place of a word: the bits that hold a code's bits, lowest first.

    Signs of e2m1 are the highest bits of a byte for the last four codes, and lie four bits below for the first four.
    The bits of a float8 lie where `float_places` has them. Of 16-bit types: e4m3 has `float8.bits_of_places`.

    >>> bits_of_places("e2m1", TARGETS["bf16"])[:2], bits_of_places("e4m3", TARGETS["bf16"])[0]
    (((0, 1, 2, 3), (4, 5, 6, 11)), (4, 5, 6, 7, 8, 9, 10, 15))
    """
    bits = CODES[code].bits
    plain = [[place * bits + bit for bit in range(bits)] for place in range(WORD // bits)]
    if code == LOOKED_UP:
        signs = Layout((_BYTES, 2), (2, 1))  # place -> the digit whose highest bit is its sign
        return tuple((*own[:-1], int(signs(place)) * bits + bits - 1) for place, own in enumerate(plain))
    if code not in _FLOATS:
        return tuple(map(tuple, plain))
    value, pairs, found = pair_values(code), float_places(code, target), []
    for place in range(len(plain)):
        pair, half = divmod(int(value(place)), 2)
        stored: dict[int, int] = {}
        for left, mask in pairs[pair]:
            stored |= {bit: (bit - left + HALF * half) % WORD for bit in range(HALF) if mask >> bit & 1}
        found.append(tuple(stored[bit] for bit in _value_bits(code, target)))
    return tuple(found)


def _value_bits(code: str, target: TargetFormat) -> tuple[int, ...]:
    """The bits of a half that a float8 becomes, its bias apart: those of its magnitude, then the sign.

    >>> _value_bits("e4m3", TARGETS["bf16"])
    (4, 5, 6, 7, 8, 9, 10, 15)
    """
    exponent, mantissa, _ = _FLOATS[code]
    first = target.mantissa - mantissa
    return (*range(first, first + exponent + mantissa), HALF - 1)


@cache
def float_places(code: str, target: TargetFormat) -> tuple[tuple[tuple[int, int], ...], ...]:
    """For each pair of float8 in a word. (rotation to the left, bits then in place).

    Bits are those of a half.

    The first pair's bits are in place. The second's lie between them, as few rotations away as there can be. Where no
    bit crosses a half, a rotation is a shift, to the right for a negative count.

    >>> [[(left, hex(mask)) for left, mask in pair] for pair in float_places("e4m3", TARGETS["bf16"])]
    [[(0, '0x87f0')], [(4, '0x80f0'), (-4, '0x700')]]
    >>> [[(left, hex(mask)) for left, mask in pair] for pair in float_places("e5m2", TARGETS["bf16"])]
    [[(0, '0x8fe0')], [(8, '0xf60'), (3, '0x8080')]]
    """
    return rotations(frozenset(_value_bits(code, target)), HALF)


@cache
def rotations(there: frozenset[int], size: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """For two numbers in `size` bits: (rotation to the left, bits then in place).

    The first one's bits are in place, and the second's between them. Raises PlanError where two rotations do not do.

    >>> [[(left, hex(mask)) for left, mask in moves] for moves in rotations(frozenset((2, 3, 4, 7)), 8)]
    [[(0, '0x9c')], [(2, '0x8c'), (-2, '0x10')]]
    """
    between = frozenset(range(size)) - there
    steps = [left for count in range(1, size) for left in (count, -count)]
    for crossing, count in ((False, 1), (False, 2), (True, 2)):
        for chosen in permutations(steps, count):
            wanted, free, moves = there, between, []
            for left in chosen:
                moved = {(bit + left) % size if crossing else bit + left: bit for bit in free}
                got = wanted & moved.keys()
                wanted, free = wanted - got, free - {moved[bit] for bit in got}
                moves.append((left, sum(1 << bit for bit in got)))
            if not wanted:
                return ((0, sum(1 << bit for bit in there)),), tuple(moves)
    raise PlanError(f"bits {sorted(there)} of {size}: no two rotations bring the bits between to their places")


@dataclass(frozen=True, slots=True)
class TargetFormat:
    """The facts of a type that codes become. Bits of the exponent and of the mantissa.

    scales  the type of the scales of groups: its own, but for e4m3, whose scales multiply sums in float32
    """

    dtype: DType
    exponent: int
    mantissa: int
    scales: DType

    @property
    def values(self) -> int:
        """Values of a register."""
        return WORD // self.dtype.bits

    @property
    def bias(self) -> int:
        """The exponent's bias."""
        return (1 << self.exponent - 1) - 1

    @property
    def magic(self) -> int:
        """The bits of the power of two whose mantissa counts in ones. 128 of bf16, 1024 of f16."""
        return (self.bias + self.mantissa) << self.mantissa

    def word(self, value: float) -> int:
        """A word with the value in both halves; the value is one of the type's."""
        bits = int(self.dtype.encode(np.float64(value)))
        if float(self.dtype.decode(np.array([bits]))[0]) != value:
            raise PlanError(f"{value} is no {self.dtype}")
        return both(bits)


_PARTS = {"bf16": (8, 7, "bf16"), "f16": (5, 10, "f16"), "e4m3": (4, 3, "bf16")}
TARGETS = {
    name: TargetFormat(dtype(name), exponent, mantissa, dtype(scales))
    for name, (exponent, mantissa, scales) in _PARTS.items()
}
_FLOATS = {"e4m3": (4, 3, 7), "e5m2": (5, 2, 15)}  # exponent, mantissa, bias


NEGATIVE_ZERO = both(1 << HALF - 1)  # of 16-bit types


def zero_word(target: TargetFormat, zero: float) -> int:
    """The word that is subtracted from an int4's magic pair. Its power of two and the zero point, twice.

    >>> hex(zero_word(TARGETS["bf16"], 8))
    '0x43084308'
    """
    return target.word(float(1 << target.mantissa) + zero)


def zero_bits(target: TargetFormat, zeros: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """Zero points as 16 bits, of which a register takes two. With the magic power of two, or of e4m3 a byte each.

    >>> [hex(zero_bits(TARGETS[name], 8)) for name in ("bf16", "e4m3")]
    ['0x4308', '0x808']
    """
    if target.values > 2:
        return np.asarray(np.asarray(zeros).astype(np.uint16) * np.uint16(0x0101))
    return np.asarray(target.dtype.encode(float(1 << target.mantissa) + np.asarray(zeros)), np.uint16)


def zeros_of(target: TargetFormat, bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint8]:
    """The inverse of `zero_bits`."""
    if target.values > 2:
        return (bits & np.uint16(0xFF)).astype(np.uint8)
    return np.asarray(target.dtype.decode(bits) - float(1 << target.mantissa)).astype(np.uint8)


def pairs_of(
    code: str, target: TargetFormat, word: Word, ops: PairMath, zeros: Sequence[Word] = (), one_shift: bool = False,
    placed: bool = False,
) -> list[Word]:  # fmt: skip
    """The pairs of a word of codes, unscaled.

    zeros      of int4 the `zero_word` of each pair; by default that of the codes' excess
    one_shift  int4 values are divided by `nibbles(target).factor`, in fewer instructions
    placed     float8 values are divided by `bias_factor`, which their scale is multiplied by: no product moves the bias
    """
    if code == "int4" and one_shift:
        return _by_one_shift(target, word, ops, zeros)
    if code == "int4":
        taken = zeros or [ops.constant(zero_word(target, CODES[code].excess))] * 4
        return [ops.sub(_magic(target, ops, word, -4 * i, 0x000F), zero) for i, zero in enumerate(taken)]
    if code == "int8":
        return [_integer(target, ops, word, i) for i in range(2)]
    return _looked_up(target, word, ops) if code == LOOKED_UP else _floats(code, target, word, ops, placed)


def bias_factor(code: str, target: TargetFormat) -> float:
    """A float8's value divided by that of its bits where a 16-bit type has them. 1 of other codes.

    >>> [bias_factor(code, TARGETS["bf16"]) == 2.0**power for code, power in (("e4m3", 120), ("e5m2", 112))]
    [True, True]
    >>> bias_factor("e5m2", TARGETS["f16"]), bias_factor("int8", TARGETS["bf16"])
    (1.0, 1.0)
    """
    return 2.0 ** (target.bias - _FLOATS[code][2]) if code in _FLOATS and target.values == 2 else 1.0


@dataclass(frozen=True, slots=True)
class Nibbles:
    """The fused multiply-add that turns each nibble of a half's low byte into its value.

    factor      the value of a code divided by its register's
    multiplier  of a nibble with its rest
    rests       the bits beside each nibble: those of a power of two, or none
    magics      the number that the multiplied rest stands for, times `factor`
    """

    factor: float
    multiplier: float
    rests: tuple[int, int]
    magics: tuple[float, float]


@cache
def nibbles(target: TargetFormat) -> Nibbles:
    """The conversion of int4 by one shift a word.

    A bf16 below 2^-125 is a multiple of 2^-133, so bits 4 to 7 of a half are 2^-129 of their code. The largest power
    of two in bf16 is 2^127: a quarter of the code remains. An f16 has ten mantissa bits, beside which they fit.

    >>> nibbles(TARGETS["bf16"]).factor, nibbles(TARGETS["f16"]).factor
    (4.0, 1.0)
    """
    magic, fits = float(1 << target.mantissa), target.mantissa >= 8  # of bits 0 to 7
    multiplier = 2.0**-4 if fits else 2.0**target.bias
    of_bit_4 = 2.0**4 if fits else 2.0 ** (5 - target.bias - target.mantissa)
    factor = 1 / (of_bit_4 * multiplier)
    low = target.word(magic / factor / multiplier) & (1 << HALF) - 1
    high = (target.magic, magic * multiplier) if fits else (0, 0.0)
    return Nibbles(factor, multiplier, (low, high[0]), (magic, high[1] * factor))


def _by_one_shift(target: TargetFormat, word: Word, ops: PairMath, zeros: Sequence[Word]) -> list[Word]:
    """The pairs of eight int4, divided by `nibbles(target).factor`."""
    how, found = nibbles(target), []
    words, multiplier = [word, ops.shifted(word, -8)], ops.constant(target.word(how.multiplier))
    for i in range(4):
        rest, magic = how.rests[i % 2], how.magics[i % 2]
        if zeros:  # zero words have the other power of two
            more = ops.constant(target.word((how.magics[0] - magic) / how.factor or -0.0))
            less = ops.fma(zeros[i], ops.constant(target.word(-1 / how.factor)), more)
        else:
            less = ops.constant(target.word(-(magic + CODES["int4"].excess) / how.factor))
        digits = ops.select(words[i // 2], both(0x00F0 if i % 2 else 0x000F), ops.constant(both(rest)))
        found.append(ops.fma(digits, multiplier, less))
    return found


def _magic(target: TargetFormat, ops: PairMath, word: Word, left: int, mask: int) -> Word:
    """Bits of each half, behind the bits of the magic power of two."""
    moved = ops.shifted(word, left) if left else word
    return ops.select(moved, both(mask), ops.constant(both(target.magic)))


def _integer(target: TargetFormat, ops: PairMath, word: Word, i: int) -> Word:
    moved = ops.shifted(word, -8 * i) if i else word
    return ops.sub(_magic(target, ops, moved, 0, 0x7F), _magic(target, ops, moved, 0, 0x80))


def _tables(target: TargetFormat) -> list[tuple[int, int]]:
    """The low and the high bytes of the 8 magnitudes of e2m1, as two words each.

    >>> [[hex(word) for word in table] for table in _tables(TARGETS["bf16"])]
    [['0xc0800000', '0xc0804000'], ['0x3f3f3f00', '0x40404040']]
    """
    values = CODES[LOOKED_UP].values()[: 2 * _BYTES]
    bits = np.asarray(target.dtype.encode(values), "<u2").view(np.uint8)
    return [(int(low), int(high)) for low, high in (bits[byte::2].copy().view("<u4") for byte in range(2))]


_LOOK_UP = {name: _tables(target) for name, target in TARGETS.items() if target.values == 2}  # a trace runs no NumPy


def _looked_up(target: TargetFormat, word: Word, ops: PairMath) -> list[Word]:
    """The pairs of eight e2m1: bytes of their magnitudes from tables, then their signs."""
    found: list[Word] = []
    digits = ops.select(word, _MAGNITUDES, ops.constant(0))
    for half in range(2):
        chosen = ops.shifted(digits, -HALF) if half else digits
        low, high = (
            ops.permute(ops.constant(first), ops.constant(last), chosen) if first or last else ops.constant(0)
            for first, last in _LOOK_UP[target.dtype.name]
        )
        high = ops.select(word if half else ops.shifted(word, _BYTES), _TOPS, high)
        found += [ops.permute(low, high, ops.constant(pair)) for pair in _PAIRS]
    return found


def _floats(code: str, target: TargetFormat, word: Word, ops: PairMath, placed: bool) -> list[Word]:
    found, factor = [], bias_factor(code, target)
    for moves in float_places(code, target):
        bits = ops.constant(0)
        for left, mask in moves:
            bits = ops.select(_moved(ops, word, left, mask), both(mask), bits)
        found.append(bits if placed or factor == 1 else ops.mul(bits, ops.constant(target.word(factor))))
    return found


def _moved(ops: PairMath, word: Word, left: int, mask: int) -> Word:
    """The word rotated, by a shift where no bit of `mask` has crossed a half."""
    if not left:
        return word
    crosses = mask & (1 << left) - 1 if left > 0 else mask >> HALF + left
    return ops.rotated(word, left % WORD) if crosses else ops.shifted(word, left)


_SHIFTS = np.array([0, HALF], np.uint32)  # of the halves of a word


class NumpyPairs:
    """`PairMath` on arrays of uint32."""

    def __init__(self, target: TargetFormat):
        self.dtype = target.dtype

    def constant(self, word: int) -> Word:
        """A word."""
        return np.uint32(word)

    def select(self, word: Word, mask: int, rest: Word) -> Word:
        """(word & mask) | rest."""
        return word & np.uint32(mask) | rest

    def shifted(self, word: Word, left: int) -> Word:
        """The word shifted left, or right for a negative count."""
        return word << np.uint32(left) if left > 0 else word >> np.uint32(-left)

    def rotated(self, word: Word, left: int) -> Word:
        """The word rotated left."""
        return word << np.uint32(left) | word >> np.uint32(WORD - left)

    def sub(self, x: Word, y: Word) -> Word:
        """Two differences, rounded to nearest."""
        return self._each(np.subtract, x, y)

    def mul(self, x: Word, y: Word) -> Word:
        """Two products, rounded to nearest."""
        return self._each(np.multiply, x, y)

    def permute(self, x: Word, y: Word, selector: Word) -> Word:
        """Four bytes of the eight of x and y. A digit of 8 or more repeats its byte's highest bit."""
        both_words = np.uint64(0) + x | (np.uint64(0) + y) << np.uint64(WORD)
        found = np.zeros(np.broadcast_shapes(np.shape(both_words), np.shape(selector)), np.uint32)
        for place in range(4):
            digit = np.asarray(selector, np.uint32) >> np.uint32(4 * place) & np.uint32(15)
            byte = both_words >> np.uint64(8) * (digit & np.uint32(7)).astype(np.uint64) & np.uint64(0xFF)
            repeated = np.where(byte & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
            taken = np.where(digit & np.uint32(8), repeated, byte).astype(np.uint32)
            found |= taken << np.uint32(8 * place)
        return found

    def twice(self, word: Word, half: int) -> Word:
        """The low half (0) or the high one (1) in both."""
        found = np.asarray(word, np.uint32) >> np.uint32(HALF * half) & np.uint32(0xFFFF)
        return found | found << np.uint32(HALF)

    def plus(self, x: Word, y: Word) -> Word:
        """The sum of two words, modulo 2**32."""
        return (np.uint64(0) + x + y & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    def minus(self, x: Word, y: Word) -> Word:
        """Their difference, likewise."""
        return ((np.uint64(1) << np.uint64(WORD)) + x - y & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    def times_plus(self, x: Word, factor: int, y: Word) -> Word:
        """x * factor + y, modulo 2**32."""
        return self.plus(np.uint64(0) + x * np.uint64(factor) & np.uint64(0xFFFFFFFF), y)

    def differ(self, x: Word, y: Word, rest: int) -> Word:
        """x ^ (~y | rest)."""
        return x ^ (~np.asarray(y, np.uint32) | np.uint32(rest))

    def fma(self, x: Word, y: Word, z: Word) -> Word:
        """Twice x * y + z, rounded once where float64 holds it."""
        return self._each(lambda left, right, more: left * right + more, x, y, z)

    def _each(self, operation: Callable[..., Floats], *words: Word) -> npt.NDArray[np.uint32]:
        given = [self.dtype.decode(np.asarray(z)[..., None] >> _SHIFTS & np.uint32(0xFFFF)) for z in words]
        with np.errstate(over="ignore", invalid="ignore"):
            exact = operation(*[each.astype(np.float64) for each in given])
        halves = self.dtype.encode(exact).astype(np.uint32)
        return np.asarray(halves[..., 0] | halves[..., 1] << np.uint32(HALF))


class FusedPairs(NumpyPairs):
    """The same by fused multiply-adds, which alone bf16 has before sm_90."""

    def sub(self, x: Word, y: Word) -> Word:
        """fma(y, -1, x), twice."""
        return self._each(lambda left, right: right * -1.0 + left, x, y)

    def mul(self, x: Word, y: Word) -> Word:
        """fma(x, y, -0), twice."""
        return self._each(lambda left, right: left * right + -0.0, x, y)


def values_of(word: npt.NDArray[np.uint32], target: TargetFormat) -> npt.NDArray[np.float32]:
    """The values of each word, in a last dimension: the lowest bits first."""
    bits = target.dtype.bits
    parts = [word >> np.uint32(bits * i) & np.uint32((1 << bits) - 1) for i in range(target.values)]
    return np.asarray(target.dtype.decode(np.stack(parts, axis=-1)))
