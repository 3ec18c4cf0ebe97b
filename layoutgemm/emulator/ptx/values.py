"""Values of registers, and the arithmetic of PTX on them.

A register of a warp holds one value for each of 32 lanes. A value that is equal in all lanes is a Python int (a bool
for a predicate). Most instructions of a kernel have such values, and they are much the fastest. Other values are arrays
of 32:

    predicate    bool            or  bool[32]
    8 to 32 bit  int, 0 <= x     or  int64[32], 0 <= x < 2**32: the raw bits
    64 bit       int, 0 <= x     or  uint64[32]
    128 bit      int, 0 <= x     or  object[32] of such

Floats are kept as raw bits too and viewed as floats in computations. Functions here take and return either form. A
register that no instruction has written for all lanes is `Undefined`, and arithmetic with it raises TypeError.

Semantics: PTX ISA, "Integer Arithmetic Instructions", "Floating Point Instructions", "Data Movement and Conversion".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

LANES = 32
FULL = (1 << LANES) - 1
M16, M32, M64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1
LANE = np.arange(LANES)
NAN32 = 0x7FFFFFFF  # the NaN of PTX arithmetic
Lanes: TypeAlias = npt.NDArray[np.bool_ | np.int64 | np.uint64]
Value: TypeAlias = int | Lanes  # of a register: the same in all lanes, or one for each
Floats: TypeAlias = float | np.floating | npt.NDArray[np.floating]


class NoValue:
    """A placeholder for a missing value. Moving it is harmless; computing with it raises TypeError."""

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(str(self))

    __array_ufunc__ = None
    __array__ = __bool__ = __int__ = __index__ = __float__ = __eq__ = __ne__ = _refuse
    __hash__ = object.__hash__


Reports: TypeAlias = Mapping[int, Callable[[], None]]
NO_REPORTS: Reports = {}


class Undefined(NoValue):
    """A register's value where some lanes are unwritten or derive from unwritten ones.

    value  of the other lanes; any in those
    lanes  without a value, as a bit mask
    of     the register that was read and never written
    bits   [lane] the bits without a value, of a register that is one in part: two packed halves; None: all of them
    reports  of a value that lanes exchanged: `value` has fill bits where there was none. pc of an exchange -> a call
             that reports it as a suspect, which is due where the value matters. Empty: no exchange gave it bits
    """

    __slots__ = ("bits", "lanes", "of", "reports", "value")

    def __init__(
        self, value: Value, lanes: int, of: str, bits: npt.NDArray[np.uint64] | None = None,
        reports: Reports = NO_REPORTS,
    ) -> None:  # fmt: skip
        self.value, self.lanes, self.of, self.bits, self.reports = value, lanes, of, bits, reports

    def __str__(self) -> str:
        return f"register {self.of} is read and was never written"


class LentRegister(NoValue):
    """A register's value while an asynchronous instruction still reads the register."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


Register: TypeAlias = Value | Undefined


def lanes_without(x: object) -> int:
    """The lanes for which a register has no value, as a bit mask."""
    return x.lanes if type(x) is Undefined else 0


def bits_without(x: object, width: int) -> npt.NDArray[np.uint64]:
    """[lane] -> the bits of a register of this width that have no value."""
    if type(x) is not Undefined:
        return np.zeros(LANES, np.uint64)
    whole = np.where(bool_of(x.lanes), np.uint64((1 << width) - 1), np.uint64(0))
    return whole if x.bits is None else x.bits & whole


def undefined_where(
    value: Value, bits: npt.NDArray[np.uint64], lanes: int, of: str, reports: Reports = NO_REPORTS
) -> Register:
    """The register's content whose `bits`, of each lane, have no value; only these lanes count."""
    found = mask_of(bits != 0, lanes)
    return Undefined(value, found, of, bits, reports) if found else value


def reported(x: Undefined) -> Value:
    """The value that exchanges gave a register, after the reports that are due."""
    for report in x.reports.values():
        report()
    return x.value


def defined(x: Register) -> Value:
    """The value of a register; arbitrary in lanes without a value."""
    return x.value if isinstance(x, Undefined) else x


def is_uniform(x: Value) -> bool:
    """True if a value is the same in all lanes."""
    return not isinstance(x, np.ndarray)


def lanes_of(x: Value) -> Lanes:
    """The value as an array of 32."""
    if isinstance(x, np.ndarray):
        return x
    return np.full(LANES, x, dtype=bool if isinstance(x, bool) else np.uint64 if x > M32 else np.int64)


def compact(x: Value) -> Value:
    """The value, uniform if all lanes agree."""
    if isinstance(x, np.ndarray) and (x == x[0]).all():
        return bool(x[0]) if x.dtype == bool else int(x[0])
    return x


def any_of(flags: npt.ArrayLike) -> bool:
    """True if an array holds a nonzero. Takes a third of the time of `numpy.any` for a few lanes."""
    return bool(np.count_nonzero(flags))


def mask_of(predicate: Value, lanes: int) -> int:
    """The lanes in `lanes` for which the predicate holds, as a bit mask."""
    if not isinstance(predicate, np.ndarray):
        return lanes if predicate else 0
    return int(np.packbits(predicate, bitorder="little").view(np.uint32)[0]) & lanes


@lru_cache(maxsize=1 << 12)
def bool_of(mask: int) -> npt.NDArray[np.bool_]:
    """A bit mask of lanes as a read-only array of bools, which is cached."""
    found = (mask >> LANE & 1).astype(bool)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=1 << 12)
def lane_bits(mask: int) -> tuple[int, ...]:
    """The lanes of a bit mask, from the lowest, as masks of one lane.

    >>> lane_bits(0b1101)
    (1, 4, 8)
    """
    return tuple([1 << lane for lane in range(LANES) if mask >> lane & 1])


def lanes_among(mask: int, flags: npt.NDArray[np.bool_]) -> int:
    """The lanes of a bit mask for which a flag holds.

    flags  one a lane, from the lowest


    >>> lanes_among(0b1101, np.array([True, False, True]))
    9
    """
    return sum([bit for bit, here in zip(lane_bits(mask), flags.tolist(), strict=True) if here])


# Integers -------------------------------------------------------------------------------------------------------------


def s8(x: Value) -> Value:
    """Bits -> signed value."""
    return ((x & 255) ^ 0x80) - 0x80


def s16(x: Value) -> Value:
    """Bits -> signed value."""
    return ((x & M16) ^ 0x8000) - 0x8000


def s32(x: Value) -> Value:
    """Bits -> signed value."""
    return (x ^ 0x80000000) - 0x80000000


def s64(x: Value) -> Value:
    """Bits -> signed value."""
    return x.view(np.int64) if isinstance(x, np.ndarray) else x - (1 << 64) if x >> 63 else x


def wide(x: Value) -> Value:
    """A value of 32 bits or less as one of 64, zero-extended."""
    return x.astype(np.uint64) if isinstance(x, np.ndarray) else x | 0


def signed_wide(x: Value) -> Value:
    """A signed value as 64 bits."""
    return x.astype(np.int64).view(np.uint64) if isinstance(x, np.ndarray) else x & M64


def converted(x: Value, bits: int, signed: bool, register: int) -> Value:
    """An integer wrapped to `bits` bits, sign- or zero-extended in a wider register.

    >>> hex(converted(-1, 8, False, 64)), hex(converted(0x180, 8, True, 32))
    ('0xff', '0xffffff80')
    """
    if isinstance(x, np.ndarray):
        x = x.view(np.int64)
    if bits < 64:
        x = x & ((1 << bits) - 1)
        if signed:
            x = (x ^ 1 << bits - 1) - (1 << bits - 1)
    if register < 64:
        return x & ((1 << register) - 1)
    return x.view(np.uint64) if isinstance(x, np.ndarray) else x & M64


def narrow(x: Value) -> Value:
    """The low 32 bits of a 64-bit value."""
    return (x & np.uint64(M32)).astype(np.int64) if isinstance(x, np.ndarray) else x & M32


def high(x: Value) -> Value:
    """The high 32 bits of a 64-bit value."""
    return (x >> np.uint64(32)).astype(np.int64) if isinstance(x, np.ndarray) else x >> 32


def to_shared(x: Value, window: int) -> Value:
    """The address in shared memory for a generic one in its window. One below 2^32 is taken as such an address.

    GPUs keep the low 32 bits; the window begins at a multiple of 2^32. Other addresses stay outside of any block.
    """
    if isinstance(x, np.ndarray):
        own = (x >= window) | (x <= M32)
        return np.where(own, x & np.uint64(M32), x - np.uint64(window))
    return x & M32 if x >= window or x <= M32 else x


def join64(low: Value, up: Value) -> Value:
    """Two 32-bit values as one of 64."""
    if isinstance(low, np.ndarray) or isinstance(up, np.ndarray):
        return lanes_of(low).astype(np.uint64) | lanes_of(up).astype(np.uint64) << np.uint64(32)
    return low | up << 32


def join128(low: Value, up: Value) -> Value:
    """Two 64-bit values as one of 128: an int, or an array of ints."""
    if isinstance(low, np.ndarray) or isinstance(up, np.ndarray):
        pairs = zip(lanes_of(low).tolist(), lanes_of(up).tolist(), strict=True)
        return np.array([one | other << 64 for one, other in pairs], dtype=object)
    return low | up << 64


def part128(x: Value, low: int, bits: int) -> Value:
    """Bits of a 128-bit value, from bit `low`."""
    found = x >> low & (1 << bits) - 1
    return found.astype(np.uint64 if bits > 32 else np.int64) if isinstance(found, np.ndarray) else found


def shift_left(x: Value, n: Value, bits: int) -> Value:
    """Shift left; amounts beyond the width give 0."""
    if not isinstance(n, np.ndarray):
        if n >= bits:
            return 0
        if bits == 64 and isinstance(x, np.ndarray):
            return x.astype(np.uint64) << np.uint64(n)
        return (x << n) & ((1 << bits) - 1)
    inside = n < bits
    n = np.where(inside, n, 0)
    x = lanes_of(x)
    out: Lanes = x.astype(np.uint64) << n.astype(np.uint64) if bits == 64 else (x << n) & ((1 << bits) - 1)
    return np.where(inside, out, out.dtype.type(0))


def shift_right(x: Value, n: Value, bits: int, signed: bool) -> Value:
    """Shift right, arithmetic where signed; amounts beyond the width shift everything out."""
    if isinstance(n, np.ndarray):
        n = np.minimum(n, bits)
        x = lanes_of(x)
    else:
        n = min(n, bits)
    if signed:
        value = {16: s16, 32: s32, 64: s64}[bits](x)
        at_most = np.minimum(n, bits - 1) if isinstance(n, np.ndarray) else min(n, bits - 1)
        out = value >> at_most
        return signed_wide(out) if bits == 64 else out & ((1 << bits) - 1)
    if bits == 64 and isinstance(x, np.ndarray):
        amount = np.asarray(n, dtype=np.uint64)
        return np.where(amount < 64, x.astype(np.uint64) >> np.minimum(amount, np.uint64(63)), np.uint64(0))
    return x >> n


def quotient(a: Value, b: Value) -> Value:
    """Division that rounds toward 0. Division by 0 gives all ones, as on hardware (PTX leaves it open)."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype == np.uint64 or b.dtype == np.uint64:
            a, b = a.astype(np.uint64), b.astype(np.uint64)
            return np.where(b == 0, np.uint64(M64), a // np.where(b == 0, np.uint64(1), b))
        safe = np.where(b == 0, 1, b)
        down = a // safe  # rounds down, and wraps for the minimum divided by -1
        return np.where(b == 0, -1, down + ((down * safe != a) & ((a < 0) != (safe < 0))))
    if b == 0:
        return -1
    magnitude = abs(a) // abs(b)
    return magnitude if (a < 0) == (b < 0) else -magnitude


def remainder(a: Value, b: Value) -> Value:
    """The remainder of division toward 0. By 0 it is all ones, as on an H100 (PTX leaves it open)."""
    if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):
        return a - quotient(a, b) * b if b else -1
    rest = np.asarray(a - quotient(a, b) * b)
    return np.where(b == 0, rest.dtype.type(M64 if rest.dtype == np.uint64 else -1), rest)


def least(a: Value, b: Value) -> Value:
    """The smaller value, lane by lane."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def largest(a: Value, b: Value) -> Value:
    """The larger value, lane by lane."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


def select(p: Value, a: Value, b: Value) -> Value:
    """a where p holds, else b."""
    if not isinstance(p, np.ndarray):
        return a if p else b
    return np.where(p, a, b)


def select64(p: Value, a: Value, b: Value) -> Value:
    """`select` of 64-bit values, whose arrays are uint64."""
    if not isinstance(p, np.ndarray):
        return select(p, a, b)
    return np.where(p, *[x if isinstance(x, np.ndarray) else np.uint64(x) for x in (a, b)])


def lookup3(a: Value, b: Value, c: Value, table: int) -> Value:
    """lop3: bit i of the result is table[a_i b_i c_i]."""
    out: Value = 0
    for row in range(8):
        if table >> row & 1:
            term = (a if row & 4 else a ^ M32) & (b if row & 2 else b ^ M32) & (c if row & 1 else c ^ M32)
            out = out | term
    return out


def permute(a: Value, b: Value, selector: Value) -> Value:
    """prmt without a mode: four bytes chosen of the eight of (b, a). Bit 3 of a choice replicates the sign."""
    both = join64(a, b)
    out: Value = 0
    for i in range(4):
        pick = selector >> 4 * i & 15
        if isinstance(both, np.ndarray) or isinstance(pick, np.ndarray):
            shift = lanes_of((pick & 7) * 8).astype(np.uint64)
            byte: Value = (lanes_of(both).astype(np.uint64) >> shift & np.uint64(255)).astype(np.int64)
        else:
            byte = both >> 8 * (pick & 7) & 255
        byte = select(compact(pick > 7), (byte >> 7) * 255, byte)
        out = out | byte << 8 * i
    return out


# The byte of the result's byte i that a selector s picks, by prmt's mode.
PERMUTATIONS: dict[str, Callable[[int, int], int]] = {
    "f4e": lambda s, i: s + i,
    "b4e": lambda s, i: s - i & 7,
    "rc8": lambda s, i: s,
    "ecl": lambda s, i: max(i, s),
    "ecr": lambda s, i: min(i, s),
    "rc16": lambda s, i: 2 * (s & 1) + (i & 1),
}


def permute_by(mode: str, a: Value, b: Value, selector: Value) -> Value:
    """prmt with a mode. The two low bits of the selector choose one of four patterns of bytes."""
    pick = PERMUTATIONS[mode]
    table = [sum(pick(s, i) << 4 * i for i in range(4)) for s in range(4)]
    if isinstance(selector, np.ndarray):
        return permute(a, b, np.array(table)[(selector & 3).astype(np.int64)])
    return permute(a, b, table[selector & 3])


def funnel(low: Value, up: Value, n: Value, left: bool, clamp: bool) -> Value:
    """shf: 32 bits of (up, low) shifted left or right. Left takes the upper half, right the lower half."""
    n = least(n, 32) if clamp else n & 31
    both = join64(low, up)
    if isinstance(both, np.ndarray) or isinstance(n, np.ndarray):
        amount = lanes_of(n).astype(np.uint64)
        amount = np.uint64(32) - amount if left else amount
        return (lanes_of(both).astype(np.uint64) >> amount & np.uint64(M32)).astype(np.int64)
    return both >> (32 - n if left else n) & M32


def by_lane(function: Callable[..., int], *values: Value) -> Value:
    """A function of ints, lane by lane: for what NumPy has no operation for."""
    if not any(isinstance(x, np.ndarray) for x in values):
        return function(*[int(x) for x in values])
    columns = zip(*[lanes_of(x).tolist() for x in values], strict=True)
    found = [function(*column) for column in columns]
    return np.array(found, dtype=np.uint64 if max(found) > M32 else np.int64)


def reverse_bits(x: int, bits: int) -> int:
    """brev."""
    return int(f"{x:0{bits}b}"[::-1], 2)


def _field(at: int, length: int, bits: int) -> tuple[int, int]:
    """Position and length of a bit field: of 8 bits for 32-bit values; an H100 takes all of them for 64-bit ones."""
    return (at & 255, length & 255) if bits == 32 else (at, min(length, 255))


def extract(x: int, at: int, length: int, bits: int, signed: bool) -> int:
    """bfe: `length` bits from bit `at`."""
    at, length = _field(at, length, bits)
    if length == 0:
        return 0
    top = min(at + length, bits) - 1
    sign = signed and x >> top & 1
    field = x >> at & ((1 << length) - 1) if at < bits else 0
    have = max(0, min(length, bits - at))
    if sign:
        field |= ((1 << bits) - 1) & ~((1 << have) - 1)
    return field & ((1 << bits) - 1)


def insert(a: int, b: int, at: int, length: int, bits: int) -> int:
    """bfi: b with `length` bits of a put in from bit `at`."""
    at, length = _field(at, length, bits)
    if at >= bits:
        return b
    field = ((1 << length) - 1) << at & ((1 << bits) - 1)
    return b & ~field | a << at & field


def leading(x: int, signed: bool, bits: int, shift: bool) -> int:
    """bfind: the place of the highest bit that is not the sign. With `shift`, the shift that brings it to the top. All
    ones without such a bit."""
    x = x ^ ((1 << bits) - 1) if signed and x >> bits - 1 else x
    return (bits - x.bit_length() if shift else x.bit_length() - 1) if x else M32


def find_set(mask: int, base: int, offset: int) -> int:
    """fns: the place of the n-th set bit from `base`, up or down. All ones without one, and for a base beyond 31."""
    offset = offset - (1 << 32) if offset >> 31 else offset
    if offset == -(1 << 31):
        return 0  # as an H100 gives it: PTX takes its absolute value
    if not offset:
        return base if base < 32 and mask >> base & 1 else M32
    places = range(base, 32) if offset > 0 else range(base if base < 32 else -1, -1, -1)
    found = [place for place in places if mask >> place & 1]
    return found[abs(offset) - 1] if abs(offset) <= len(found) else M32


def bit_mask(start: int, width: int, clamp: bool) -> int:
    """bmsk: `width` ones from bit `start`, both taken modulo 32 or clamped."""
    if clamp and start >= 32:
        return 0
    low = M32 << (start & 31) & M32
    end = (start & 31) + (width & 31)
    if clamp and width >= 32:
        return low
    return low & ~(M32 << end) if end < 32 else low


def extend_sign(x: int, width: int, signed: bool, clamp: bool) -> int:
    """szext: the low `width` bits, extended by sign or by zeros."""
    if clamp and width >= 32:
        return x
    width &= 31
    mask = M32 << width & M32
    return x & ~mask | (mask if signed and width and x >> width - 1 & 1 else 0)


def dot(a: int, b: int, c: int, width: int, signs: tuple[bool, bool], at: int = 0) -> int:
    """dp4a (width 8), dp2a (width 16): c plus products of fields. Fields of a meet bytes of b from byte `at`."""

    def field(x: int, bits: int, place: int, signed: bool) -> int:
        value = x >> bits * place & (1 << bits) - 1
        return value - (1 << bits) if signed and value >> bits - 1 else value

    terms = [field(a, width, i, signs[0]) * field(b, 8, at + i, signs[1]) for i in range(32 // width)]
    return (c + sum(terms)) & M32


def signed(x: int, bits: int) -> int:
    """The signed value of bits, of one lane."""
    return x - (1 << bits) if x >> bits - 1 & 1 else x


def product24(a: int, b: int, of_sign: bool, high_part: bool) -> int:
    """mul24: 32 bits of the product of 24-bit values: the low ones, or those from bit 16."""
    a, b = a & 0xFFFFFF, b & 0xFFFFFF
    whole = signed(a, 24) * signed(b, 24) if of_sign else a * b
    return (whole >> 16 if high_part else whole) & M32


def clamped(x: int, bits: int) -> int:
    """A signed value clamped to its type (.sat), as bits."""
    return min(max(x, -(1 << bits - 1)), (1 << bits - 1) - 1) & (1 << bits) - 1


def packed_fields(c: int, a: int, b: int, kind: str) -> int:
    """cvt.pack.sat: a and b clamped to a narrow type. Above them are the low bits of c."""
    bits = int(kind[1:])
    low, top = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    fields = [min(max(signed(x, 32), low), top) & (1 << bits) - 1 for x in (a, b)]
    return (c << 2 * bits | fields[0] << bits | fields[1]) & M32
