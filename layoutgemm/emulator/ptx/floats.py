"""Floating-point arithmetic of PTX on raw bits: one lane's, or an array of 32.

Every function takes and returns bits in the form of `values.py`. f16 and bf16 are computed in float32 or float64 and
rounded once; fma of f32 rounds once too. Approximate functions (`.approx`) give the correctly rounded float32, which
lies within PTX's error bound. NaN results of f32 are PTX's NaN, 0x7fffffff.

Semantics: PTX ISA, "Floating Point Instructions", "Half Precision Floating Point Instructions", "cvt".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from ...dtypes import DType, dtype
from .rounding import integer_f64, lanewise64, odd_integer, odd_sum, to_f32, to_narrow, zero_sign
from .values import LANES, M16, M32, M64, NAN32, Floats, Value, any_of, by_lane, high, narrow


def f32(x: Value) -> Floats:
    """Bits -> float32."""
    return x.astype(np.uint32).view(np.float32) if isinstance(x, np.ndarray) else np.uint32(x).view(np.float32)


def f64(x: Value) -> Floats:
    """Bits -> float64."""
    return x.astype(np.uint64).view(np.float64) if isinstance(x, np.ndarray) else np.uint64(x).view(np.float64)


def bits32(y: Floats) -> Value:
    """float -> bits of the nearest float32, NaN as PTX writes it."""
    y = np.asarray(y, dtype=np.float32)
    if not y.ndim:
        return NAN32 if np.isnan(y) else int(y.view(np.uint32))
    found = y.view(np.uint32).astype(np.int64)
    if any_of(nan := y != y):
        found[nan] = NAN32
    return found


def bits64(y: Floats) -> Value:
    """float -> bits of float64."""
    found = np.asarray(y, dtype=np.float64).view(np.uint64)
    return found if found.ndim else int(found)


def encode(y: Floats, kind: DType) -> Value:
    """The bits of a float in a format of 16 bits or less, to nearest."""
    if kind.name in ("bf16", "f16") and isinstance(y, np.ndarray) and y.ndim and y.dtype == np.float32:
        # What most epilogues convert to: `DType.encode`, of one format. NumPy's conversion knows nothing of bf16.
        if kind.name == "f16":
            with np.errstate(over="ignore"):
                rounded = y.astype(np.float16).view(np.uint16).astype(np.int64)
        else:
            word = y.view(np.uint32)
            half = (word >> np.uint32(16) & np.uint32(1)) + np.uint32(0x7FFF)
            rounded = (word + half >> np.uint32(16)).astype(np.int64)
        if any_of(nan := y != y):
            rounded[nan] = M16 >> 1
        return rounded
    found = np.asarray(kind.encode(np.asarray(y))).astype(np.int64)
    if kind.bits == 16:
        found = np.where(np.isnan(np.asarray(y)), M16 >> 1, found)
    return found if found.ndim else int(found)


def packed_pairs(kind: DType, *sources: Value) -> list[Value]:
    """f32 bits (upper, lower, upper, lower, ...) -> packed pairs of 16-bit floats, to nearest."""
    if all(type(x) is np.ndarray for x in sources):
        bits = np.asarray(encode(f32(np.concatenate(sources)), kind)).reshape(-1, 2, LANES)
        return list(bits[:, 0] << 16 | bits[:, 1])
    halves = [encode(f32(x), kind) for x in sources]
    return [up << 16 | low for up, low in zip(halves[::2], halves[1::2], strict=True)]


def decode(x: Value, kind: DType) -> Floats:
    """Bits of a format -> float32 (float64 for f64)."""
    if kind.name == "f32":
        return f32(x)
    if kind.name == "f64":
        return f64(x)
    found = kind.decode(np.asarray(x).astype(kind.storage))
    return found if found.ndim else found[()]


def fma_odd(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c in float64, rounded to odd.

    Rounding the result again to a format of 32 bits or less is then right. The product of two values of such a format
    is exact in float64.
    """
    with np.errstate(all="ignore"):
        return odd_sum(np.float64(a) * np.float64(b), np.float64(c))


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c of float32, rounded once."""
    with np.errstate(all="ignore"):
        return np.float32(fma_odd(a, b, c))


def _approximate_quotient(a: Floats, b: Floats) -> Floats:
    """div.approx: beyond 2**126 the reciprocal of b counts as 0 (PTX ISA, "div")."""
    b = np.where((np.abs(b) > 2.0**126) & np.isfinite(b), np.copysign(np.inf, b), b)
    return a / b


def _minimum(a: Floats, b: Floats) -> Floats:
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), np.fmin(a, b))


def _maximum(a: Floats, b: Floats) -> Floats:
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), b, a), np.fmax(a, b))


BINARY: dict[str, Callable[[Floats, Floats], Floats]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "min": _minimum,
    "max": _maximum,
    "min.NaN": lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, _minimum(a, b)),
    "max.NaN": lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, _maximum(a, b)),
    "div.approx": _approximate_quotient,
}


def _turn(a: Floats) -> Floats:
    """The angle of sin.approx and cos.approx in (-2 pi, 2 pi): ptxas multiplies by the f32 of 1 / 2 pi, toward zero.

    Large arguments lose their fraction there: from 2**26 on, sin gives 0 and cos 1, as on an H200.
    """
    turns = np.float64(to_f32(a * np.float64(np.float32(0.5 / np.pi)), "rz"))
    return np.asarray(np.fmod(turns, 1.0) * (2 * np.pi))


# f32 functions that PTX approximates: computed in float64, then rounded.
UNARY: dict[str, Callable[[Floats], Floats]] = {
    "rcp": lambda a: 1 / a,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": lambda a: np.sin(_turn(a)),
    "cos": lambda a: np.cos(_turn(a)),
    "tanh": np.tanh,
}


def binary32(name: str, a: Value, b: Value, flush: bool = False, saturate: bool = False) -> Value:
    """add, sub, mul, div, min, max of f32."""
    with np.errstate(all="ignore"):
        return _finish32(BINARY[name](_flushed(f32(a), flush), _flushed(f32(b), flush)), flush, saturate)


def exclusive(name: str, a: Floats, b: Floats) -> Floats:
    """min, max with .xorsign.abs: of the magnitudes, under the exclusive or of the signs."""
    found = BINARY[name](np.abs(a), np.abs(b))
    return np.where(np.isnan(found), found, np.where(np.signbit(a) ^ np.signbit(b), -found, found))


def chosen32(name: str, way: str, flush: bool, *values: Value) -> Value:
    """min, max of two or three f32; way: "", "abs" or "xorsign"."""
    size: Callable[[Floats], Floats] = np.abs if way == "abs" else lambda x: x
    parts = [size(_flushed(f32(x), flush)) for x in values]
    first = parts[0]
    for other in parts[1:]:
        first = exclusive(name, first, other) if way == "xorsign" else BINARY[name](first, other)
    return _finish32(first, flush, False)


def directed32(name: str, mode: str, flush: bool, saturate: bool, *values: Value) -> Value:
    """add, sub, mul, div, fma, rcp, sqrt of f32, rounded by a mode."""
    a, *rest = (np.float64(_flushed(f32(x), flush)) for x in values)
    with np.errstate(all="ignore"):
        if name in ("add", "sub"):
            b = -rest[0] if name == "sub" else rest[0]
            y = zero_sign(odd_sum(a, b), a, b, mode)
        elif name == "fma":
            product = a * rest[0]
            y = zero_sign(odd_sum(product, rest[1]), product, rest[1], mode)
        else:  # a quotient or root in float64 is a float32, or halfway between two, only where it is exact
            y = BINARY[name](a, rest[0]) if rest else UNARY[name](a)
        return _finish32(to_f32(y, mode), flush, saturate)


def upper64(name: str, a: Value, flush: bool) -> Value:
    """rcp.approx, rsqrt.approx of f64: the upper 32 bits of the result. The lower ones are 0.

    With .ftz a NaN whose upper half is an infinity's counts as the infinity, as on an H100 and an H200.
    """
    with np.errstate(all="ignore"):
        x = f64(a)
        x = np.where(np.isnan(x) & flush, f64(np.asarray(a, np.uint64) & np.uint64(M64 - M32)), x)
        x = np.where(np.abs(x) < np.finfo(np.float64).tiny, np.copysign(0.0, x), x) if flush else x
        y = np.asarray(UNARY[name](x))
        y = np.where(flush & (np.abs(y) < np.finfo(np.float64).tiny), np.copysign(0.0, y), y)
        found = np.where(np.isnan(y), np.uint64(0x7FFFFFFF00000000), y.view(np.uint64) & np.uint64(M64 - M32))
    return found if found.ndim else int(found)


def fma32(a: Value, b: Value, c: Value, flush: bool = False, saturate: bool = False) -> Value:
    """fma of f32."""
    return _finish32(fma(*[_flushed(f32(x), flush) for x in (a, b, c)]), flush, saturate)


def unary32(name: str, a: Value, flush: bool = False) -> Value:
    """A function of f32, from float64."""
    with np.errstate(all="ignore"):
        return _finish32(np.float32(UNARY[name](np.float64(_flushed(f32(a), flush)))), flush, False)


def flushed(x: Floats) -> Floats:
    """Subnormal float32 values as zeros of their sign (.ftz)."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def _flushed(x: Floats, flush: bool) -> Floats:
    return flushed(x) if flush else x


def _finish32(y: Floats, flush: bool, saturate: bool) -> Value:
    if saturate:
        y = saturated(y, np.float32(0), np.float32(1))
    return bits32(_flushed(y, flush))


def binary64(name: str, a: Value, b: Value) -> Value:
    """add, sub, mul, div, min, max of f64."""
    with np.errstate(all="ignore"):
        return bits64(BINARY[name](f64(a), f64(b)))


def directed64(name: str, mode: str, *values: Value) -> Value:
    """Exact arithmetic of f64, rounded by a mode: add, sub, mul, div, fma, rcp, sqrt."""
    return lanewise64(name, mode, *values)


@cache
def half_operation(name: str, kind: str, flush: bool, relu: bool, saturate: bool) -> Callable[..., Value]:
    """An operation on the bits of one f16 or bf16. Computed in float64 and rounded once, to nearest."""
    form, exact = dtype(kind), name in ("min", "max", "min.NaN", "max.NaN")
    if name == "fma":
        core: Callable[..., Floats] = fma_odd
    elif name.endswith(".xorsign"):
        core = lambda a, b: exclusive(name.removesuffix(".xorsign"), a, b)  # noqa: E731
    else:
        core = BINARY[name] if name in BINARY else UNARY[name]

    def operation(*values: Value) -> Value:
        with np.errstate(all="ignore"):
            if flush:
                values = tuple([flushed_half(x, kind) for x in values])
            y = core(*[np.float64(decode(x, form)) for x in values])
            if relu:
                y = np.where(y <= 0, 0.0, y)
            if saturate:
                y = saturated(y, 0.0, 1.0)
            found = encode(y, form)
        return flushed_half(found, kind) if flush and not exact else found

    return operation


def flushed_half(x: Value, kind: str) -> Value:
    """Bits of f16 or bf16, subnormal values as zeros of their sign."""
    exponent = 0x7C00 if kind == "f16" else 0x7F80
    if not isinstance(x, np.ndarray):
        return x if x & exponent else x & 0x8000
    return np.where(x & exponent, x, x & 0x8000)


def packed(function: Callable[..., Value], *values: Value) -> Value:
    """A function of 16 bits on both halves of each value (f16x2, bf16x2, u16x2, s16x2)."""
    return function(*[x & M16 for x in values]) | function(*[x >> 16 & M16 for x in values]) << 16


def packed_bytes(function: Callable[..., Value], *values: Value) -> Value:
    """A function of 8 bits on the four bytes of each value (u8x4, s8x4)."""
    found: Value = 0
    for at in (0, 8, 16, 24):
        found = found | function(*[x >> at & 255 for x in values]) << at
    return found


def pair32(function: Callable[..., Value], *values: Value) -> Value:
    """A function of f32 bits on both halves of 64-bit values (f32x2)."""
    low = function(*[narrow(x) for x in values])
    up = function(*[high(x) for x in values])
    if isinstance(low, np.ndarray) or isinstance(up, np.ndarray):
        return np.asarray(low).astype(np.uint64) | np.asarray(up).astype(np.uint64) << np.uint64(32)
    return low | up << 32


ROUND: dict[str, Callable[[Floats], Floats]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def to_integer(x: Value, kind: DType, mode: str, bits: int, signed: bool, register: int) -> Value:
    """float -> integer bits by mode (rni, rzi, rmi, rpi): clamped to `bits`, extended.

    NaN gives 0; from f64, and to 64 bits, the top bit of the type, as on an H100 (PTX ISA, "cvt").
    """
    y = ROUND[mode](np.float64(decode(x, kind)))
    low, top = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    of_nan = (low if signed else 1 << bits - 1) if kind.bits == 64 or bits == 64 else 0
    mask = (1 << register) - 1

    def one(v: float) -> int:
        return (of_nan if np.isnan(v) else low if v < low else top if v > top else int(v)) & mask

    if not isinstance(y, np.ndarray):
        return one(float(y))
    if bits == 64:
        return np.array([one(v) for v in y.tolist()], dtype=np.uint64)
    found = np.where(np.isnan(y), of_nan, np.clip(y, low, top)).astype(np.int64)
    return found.view(np.uint64) if register == 64 else found & mask


def from_integer(value: Value, kind: DType, mode: str = "rn", saturate: bool = False) -> Value:
    """A signed or unsigned value -> bits of a float format by a rounding mode."""
    if saturate:
        value = np.clip(value, 0, 1) if isinstance(value, np.ndarray) else min(max(value, 0), 1)
    if kind.name == "f64":
        if mode == "rn":
            return bits64(np.asarray(value).astype(np.float64))
        found = by_lane(lambda x: integer_f64(x, mode), value)
        return found.astype(np.uint64) if isinstance(found, np.ndarray) else found
    if kind.name == "f32":
        return bits32(to_f32(odd_integer(value), mode))
    return to_narrow(odd_integer(value), kind, mode)


# The largest finite values, where .satfinite ends.
LARGEST = {"f16": 65504.0, "bf16": float(f32(0x7F7F0000)), "f32": float(f32(0x7F7FFFFF))}


def saturated(y: Floats, low: Floats, top: Floats) -> Floats:
    """.sat: within bounds, NaN and -0 as the lower one."""
    return np.where(y > low, np.minimum(y, top), low)


def scale_bits(y: Floats, up: bool, saturates: bool) -> Value:
    """cvt to ue8m0. The exponent of the power of two below the value's size, or above it (.rp); NaN is 255.

    Beyond 2**127 it is 254 with .satfinite, and 255 without (CUDA's `__nv_cvt_float_to_e8m0`).
    """
    with np.errstate(all="ignore"):
        fraction, exponent = np.frexp(np.abs(np.float64(y)))
    top = 254 if saturates else 255
    code = np.clip(exponent - 1 + (up & (fraction > 0.5)) + 127, 0, top)
    code = np.where(fraction == 0, 0, np.where(np.isinf(y), top, code))
    found = np.where(np.isnan(y), 255, code).astype(np.int64)
    return found if found.ndim else int(found)


def fixed_pair(pair: Value, at: int) -> Floats:
    """One value of an s2f6 pair: the 8-bit integer at this bit, over 64."""
    return (((np.asarray(pair) >> at & 255) ^ 128) - 128) / 64.0


def scaled(y: Floats, scales: Value, at: int) -> Floats:
    """A value times the ue8m0 at a bit of a packed pair. A scale of 255 is NaN."""
    code = np.asarray(scales) >> at & 255
    return np.where(code == 255, np.nan, np.float64(y) * np.exp2(np.float64(code)) * 2.0**-127)


def as_predicate(x: bool | np.bool_ | npt.NDArray[np.bool_]) -> bool | np.bool_ | npt.NDArray[np.bool_]:
    """A NumPy truth value as a bool, an array as it is."""
    return x if np.ndim(x) else bool(x)


def tf32(x: Value, mode: str) -> Value:
    """f32 bits rounded to the 10 mantissa bits of tf32. They round to nearest, ties to even (rn) or away (rna), or
    toward 0."""
    special = np.asarray((x >> 23 & 255) == 255)
    more = {"rna": 0x1000, "rn": 0xFFF + (x >> 13 & 1), "rz": 0}[mode]
    rounded = np.where(special, x, x + more) & 0xFFFFE000
    return rounded if rounded.ndim else int(rounded)


def limit_tf32(x: Value) -> Value:
    """tf32 with infinities as the largest finite value (.satfinite)."""
    found = np.where(np.asarray(x & 0x7FFFFFFF) == 0x7F800000, x & 0x80000000 | 0x7F7FE000, x)
    return found if found.ndim else int(found)
