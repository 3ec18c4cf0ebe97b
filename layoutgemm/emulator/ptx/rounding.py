"""Rounding by PTX's modes, in NumPy and exactly. They are to nearest (.rn), toward zero (.rz), down (.rm), up (.rp).

An intermediate result is a float64 that is exact or rounded to odd: its last bit is 1 where bits were lost. Rounding
such a number to a format of at most 32 bits is right in every mode. Results of f64 are computed with Python's integers.

Semantics: PTX ISA, "Floating Point Instructions", "Rounding Modifiers".
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ...dtypes import DType
from .values import M64, Floats, Lanes, Value, any_of

MODES = ("rn", "rz", "rm", "rp")
_LARGEST_F64 = float.fromhex("0x1.fffffffffffffp+1023")


def rounding_of(words: tuple[str, ...] | list[str]) -> str:
    """The rounding mode among the words of an opcode; "rn" where none stands.

    >>> rounding_of(("add", "rm", "f32"))
    'rm'
    """
    return next((word for word in words if word in MODES), "rn")


def odd_sum(x: Floats, y: Floats) -> Floats:
    """x + y in float64, rounded to odd."""
    with np.errstate(all="ignore"):
        x, y = np.float64(x), np.float64(y)
        total = x + y
        back = total - x
        error = (x - (total - back)) + (y - back)
        inexact = (error != 0) & (np.asarray(total).view(np.uint64) & np.uint64(1) == 0) & np.isfinite(total)
        if not any_of(inexact):
            return total
        # The neighbour on the side of the lost part has an odd last bit.
        return np.where(inexact, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)


def to_f32(y: Floats, mode: str) -> Floats:
    """A float64, exact or rounded to odd, as a float32 by a rounding mode.

    >>> [hex(to_f32(np.float64(0.1), mode).view(np.uint32)) for mode in MODES]
    ['0x3dcccccd', '0x3dcccccc', '0x3dcccccc', '0x3dcccccd']
    """
    with np.errstate(all="ignore"):
        single = np.float32(y)
        if mode == "rn":
            return single
        wide, back = np.float64(y), np.float64(single)
        if mode == "rz":
            wrong, to = np.abs(back) > np.abs(wide), np.float32(0)
        elif mode == "rm":
            wrong, to = back > wide, np.float32(-np.inf)
        else:
            wrong, to = back < wide, np.float32(np.inf)
        return np.where(wrong, np.nextafter(single, to), single)


def zero_sign(total: Floats, x: Floats, y: Floats, mode: str) -> Floats:
    """A sum x + y. An exact zero of unlike signs is -0 where it is rounded down."""
    if mode != "rm":
        return total
    return np.where((total == 0) & (np.signbit(x) != np.signbit(y)), np.float64(-0.0), total)


def to_narrow(y: Floats, kind: DType, mode: str) -> Value:
    """A float64, exact or rounded to odd, as bits of a narrow format."""
    code = np.asarray(kind.encode(np.asarray(y))).astype(np.int64)
    if mode != "rn":
        wide = np.asarray(y, dtype=np.float64)
        back = kind.decode(code.astype(kind.storage)).astype(np.float64)
        sign = 1 << kind.bits - 1
        high, low = back > wide, back < wide
        negative = np.signbit(wide)
        if mode == "rz":
            high, low = high & ~negative, low & negative
        elif mode == "rm":
            low = np.zeros_like(low)
        else:
            high = np.zeros_like(high)
        # Bits of a magnitude count up away from zero; below +0 comes the smallest negative number.
        down = np.where(code & sign, code + 1, np.where(code == 0, sign | 1, code - 1))
        up = np.where(code & sign, np.where(code == sign, 1, code - 1), code + 1)
        code = np.where(high, down, np.where(low, up, code))
    if kind.bits == 16:
        code = np.where(np.isnan(np.asarray(y)), 0x7FFF, code)
    return code if code.ndim else int(code)


def stochastic(y: Floats, kind: DType, random: Value, count: int) -> Floats:
    """A float rounded to a narrow format by `count` random bits (.rs).

    They are added to the highest bits that the format loses. A carry rounds away from zero. Below the smallest normal
    number the lost bits begin below the last bit that stays. The result may lie beyond the format's range.

    >>> from layoutgemm.dtypes import dtype
    >>> [float(stochastic(np.float32(1.25), dtype("e2m1"), bits, 8)) for bits in (0, 127, 128, 255)]
    [1.0, 1.0, 1.5, 1.5]
    """
    with np.errstate(all="ignore"):
        size = np.abs(np.float64(y))
        last = np.maximum(np.ldexp(1.0, np.frexp(size)[1] - kind.mantissa), kind.decode(np.array(1, kind.storage)))
        return np.copysign(np.floor(size / last + random * 2.0**-count) * last, y)


def odd_integer(x: Value) -> Floats:
    """A signed or unsigned integer as a float64. Exact up to 2**53, rounded to odd above, for formats of 32 bits."""
    if not isinstance(x, np.ndarray):
        size, sticky = abs(x), 0
        if size >> 53:
            sticky = (size & 0x7FF != 0) << 11
            size = size >> 11 << 11 | sticky
        return np.float64(-size if x < 0 else size)
    negative = x < 0 if x.dtype == np.int64 else np.zeros(x.shape, dtype=bool)
    whole = np.where(negative, -x.astype(np.int64), x.astype(np.int64)).view(np.uint64)
    low = np.uint64(0x7FF)
    cut = whole & ~low | ((whole & low) != 0).astype(np.uint64) << np.uint64(11)
    y = np.where(whole >> np.uint64(53), cut, whole).astype(np.float64)
    return np.where(negative, -y, y)


# Exact f64 ------------------------------------------------------------------------------------------------------------


def rounded_f64(negative: bool, numerator: int, denominator: int, exponent: int, mode: str) -> float:
    """(-1)**negative * numerator / denominator * 2**exponent as a float64; the numerator is not zero.

    >>> rounded_f64(False, 1, 3, 0, "rp") - rounded_f64(False, 1, 3, 0, "rz") == 2.0**-54
    True
    """
    more = max(0, 56 + denominator.bit_length() - numerator.bit_length())
    quotient, rest = divmod(numerator << more, denominator)
    exponent -= more
    last = max(exponent + quotient.bit_length() - 53, -1074)  # the weight of the result's last bit
    drop = last - exponent
    kept = quotient >> drop
    lost, half = quotient & (1 << drop) - 1, 1 << drop - 1
    if mode == "rn":
        kept += lost > half or (lost == half and (rest != 0 or kept & 1))
    elif (mode == "rp" and not negative) or (mode == "rm" and negative):
        kept += lost != 0 or rest != 0
    try:
        y = math.ldexp(kept, last)
    except OverflowError:
        away = mode == "rn" or (mode == "rp" and not negative) or (mode == "rm" and negative)
        y = math.inf if away else _LARGEST_F64
    return -y if negative else y


def _split(x: float) -> tuple[int, int]:
    """A finite float as (integer, exponent of 2)."""
    fraction, exponent = math.frexp(x)
    return int(math.ldexp(fraction, 53)), exponent - 53


def _sum_f64(x: tuple[int, int], y: tuple[int, int], mode: str) -> float | None:
    """The sum of two numbers (integer, exponent); None for zero."""
    exponent = min(x[1], y[1])
    total = (x[0] << x[1] - exponent) + (y[0] << y[1] - exponent)
    return rounded_f64(total < 0, abs(total), 1, exponent, mode) if total else None


def exact64(name: str, mode: str, *values: float) -> float:
    """add, sub, mul, div, fma, sqrt or rcp of f64, rounded once by a mode.

    >>> exact64("add", "rm", 1.0, -1.0), exact64("div", "rz", 1.0, 3.0) < exact64("div", "rp", 1.0, 3.0)
    (-0.0, True)
    """
    if name == "rcp":
        name, values = "div", (1.0, *values)
    elif name == "sub":
        name, values = "add", (values[0], -values[1])
    with np.errstate(all="ignore"):
        a, b, c = (np.float64(x) for x in (*values, 0.0, 0.0)[:3])
        plain = {"add": a + b, "mul": a * b, "div": a / b, "fma": a * b + c, "sqrt": np.sqrt(a)}[name]
    if not np.isfinite([a, b, c]).all() or (name == "div" and b == 0) or (name == "sqrt" and a <= 0):
        return float(plain)
    x, y, z = _split(a), _split(b), _split(c)
    if name in ("add", "fma"):
        if name == "fma":
            product = (x[0] * y[0], x[1] + y[1])
            found, signs = _sum_f64(product, z, mode), (math.copysign(1, a) * math.copysign(1, b), math.copysign(1, c))
        else:
            found, signs = _sum_f64(x, y, mode), (math.copysign(1, a), math.copysign(1, b))
        if found is not None:
            return found
        return math.copysign(0.0, signs[0]) if signs[0] == signs[1] else -0.0 if mode == "rm" else 0.0
    if plain == 0 and a == 0:
        return float(plain)
    if name == "mul":
        return float(plain) if b == 0 else rounded_f64((x[0] < 0) != (y[0] < 0), abs(x[0] * y[0]), 1, x[1] + y[1], mode)
    if name == "div":
        return rounded_f64((x[0] < 0) != (y[0] < 0), abs(x[0]), abs(y[0]), x[1] - y[1], mode)
    odd = x[1] & 1
    square = x[0] << 128 + odd
    root = math.isqrt(square)
    return rounded_f64(False, root << 1 | (root * root != square), 1, (x[1] - odd) // 2 - 65, mode)


def lanewise64(name: str, mode: str, *values: Value) -> Value:
    """`exact64` on bits of f64, lane by lane."""
    arrays = [np.atleast_1d(np.asarray(x, dtype=np.uint64)).view(np.float64) for x in values]
    rows = zip(*[row.tolist() for row in np.broadcast_arrays(*arrays)], strict=True)
    found: npt.NDArray[np.uint64] = np.array([exact64(name, mode, *row) for row in rows]).view(np.uint64)
    lanes: Lanes = found
    return lanes if any(isinstance(x, np.ndarray) for x in values) else int(found[0]) & M64


def integer_f64(x: int, mode: str) -> int:
    """An integer as the bits of a float64 by a rounding mode."""
    y = rounded_f64(x < 0, abs(x), 1, 0, mode) if x else 0.0
    return int(np.float64(y).view(np.uint64))
