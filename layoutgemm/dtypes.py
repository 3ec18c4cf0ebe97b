"""Number formats: the bits of an element, and the conversion between values and bits.

Every format of the atoms is named here once; code gets it by name with `dtype("bf16")`. All convert to and from raw
bits. An element of a format narrower than a byte is in the low bits of a byte of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from .arguments import read_by, shown, unnamed
from .errors import OperandError
from .lazy_numpy import np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class DType:
    """One number format.

    name      the short name used in specifications, as in "bf16"
    bits      bits of one element in memory (tf32 occupies 32, though only 19 carry value)
    kind      "float", "int" or "uint"
    mantissa  significand bits including the hidden one (0 for integers); 2**-mantissa is the unit roundoff

    >>> dtype("bf16")
    dtype('bf16')
    >>> dtype("bf16").bytes, dtype("bf16").unit_roundoff
    (2, 0.00390625)
    """

    name: str
    bits: int
    kind: str
    mantissa: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of one element; raises OperandError for formats narrower than a byte."""
        if self.bits % 8:
            raise OperandError(f"{self.name} has {self.bits} bits, which is not a whole number of bytes")
        return self.bits // 8

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding a value to this format, to nearest: 2**-mantissa."""
        if self.kind != "float":
            raise OperandError(f"{self.name} is an integer format: it has no unit roundoff")
        return 2.0**-self.mantissa

    def encode(self, values: npt.ArrayLike) -> Array:
        """The raw bits of values: unsigned integers of this width, rounded to nearest even.

        Floats beyond the range of a format of 16 bits or more become infinities, NaN stays NaN, as in the hardware's
        cvt.rn. Formats of 8 bits or less saturate, as in cvt.rn.satfinite: values beyond the range, and infinities,
        become the largest finite value. NaN becomes the format's NaN (0x7f, ue8m0: 0xff), or the largest value in a
        format without one. Negative values of an unsigned float format raise OperandError, and so do integers outside
        an integer format's range; the error names the first one. So do values that are no real numbers of up to 64
        bits: complex ones, texts, dates, objects.

        Source: PTX ISA, "cvt" and "Alternate Floating-Point Data Formats".

        >>> [hex(x) for x in dtype("bf16").encode([1.0, -2.5, 1.00390625])]
        ['0x3f80', '0xc020', '0x3f80']
        >>> dtype("e4m3").encode([1.0, 1e9, -0.0625]).tolist(), dtype("e2m1").encode([2.5, -7.0]).tolist()
        ([56, 126, 152], [4, 15])
        """
        array = self._array(values)
        if self.kind != "float":
            return self._encode_integers(array)
        if array.dtype.kind not in "fiubV" or array.dtype.itemsize > 8 or array.dtype.names is not None:
            raise OperandError(f"{self.name} takes real numbers of up to 64 bits, not {array.dtype}")
        if self.name == "f64":
            return array.astype(np.float64).view(np.uint64)
        if self.name in ("f16", "f32"):
            with np.errstate(over="ignore"):
                return array.astype(f"f{self.bits // 8}").view(self.storage)
        if self.name == "bf16":
            return _rounded(array, 16).astype(np.uint16)
        if self.name == "tf32":
            return _rounded(array, 13) << np.uint32(13)
        return self._encode_narrow(_to_float64(array))

    def decode(self, bits: Array) -> Array:
        """The values of raw bits (unsigned integers of this width), exact.

        The type is float32 for floats of 32 bits or less, whose excess bits are ignored, and float64 for f64. Integers
        get the integer type of the format's width, of at least 8 bits. Raises OperandError for bits that are no
        integers.

        >>> dtype("bf16").decode(dtype("bf16").encode([1.0, 3.140625])).tolist()
        [1.0, 3.140625]
        >>> dtype("e5m2").decode(np.array([0x3C, 0x7B, 0x7C])).tolist(), dtype("i4").decode(np.array([7, 15])).tolist()
        ([1.0, 57344.0, inf], [7, -1])
        """
        bits = self._array(bits)
        if bits.dtype.kind not in "iub":
            if bits.size:
                raise OperandError(f"bits of {self.name} are unsigned integers, not {bits.dtype}")
            bits = bits.astype(self.storage)  # an empty list is one of floats
        if self.name == "bf16":
            return (np.asarray(bits, dtype=np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        if self.name == "f16":
            return np.asarray(bits, dtype=np.uint16).view(np.float16).astype(np.float32)
        if self.name == "tf32":
            word = np.asarray(bits, dtype=np.uint32)
            nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
            return np.where(nan, word | np.uint32(0x400000), word & np.uint32(0xFFFFE000)).view(np.float32)
        if self.kind == "float" and self.bits <= 8:
            return _code_values(self.name)[np.asarray(bits) & ((1 << self.bits) - 1)]
        if self.kind == "float":
            return np.asarray(bits, dtype=self.storage).view(f"f{self.bits // 8}")
        if self.bits >= 8:
            return np.asarray(bits, dtype=self.storage).view(f"{self.kind[0]}{self.bits // 8}")
        half = 1 << self.bits - 1 if self.kind == "int" else 0
        field = np.asarray(bits).astype(np.uint8) & np.uint8((1 << self.bits) - 1)
        return ((field.astype(np.int8) ^ half) - half).astype(np.int8 if self.kind == "int" else np.uint8)

    @property
    def storage(self) -> type[np.unsignedinteger[Any]]:
        """The NumPy unsigned integer type that stores one element, of at least 8 bits."""
        types: dict[int, type[np.unsignedinteger[Any]]] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
        return types[max(self.bits, 8)]

    def _array(self, values: npt.ArrayLike) -> Array:
        try:
            return np.asarray(values)
        except ValueError:  # rows of different lengths
            raise OperandError(f"{self.name} takes an array, not {shown(values)}") from None

    def _encode_integers(self, values: Array) -> Array:
        if values.dtype.kind not in "iu":
            raise OperandError(f"{self.name} takes integers, not {values.dtype}: values are not rounded to integers")
        half = 1 << self.bits - 1
        low, high = (-half, half - 1) if self.kind == "int" else (0, 2 * half - 1)
        outside = np.nonzero((values < low) | (values > high))
        if len(outside[0]):
            first = tuple(int(axis[0]) for axis in outside)
            raise OperandError(f"{self.name} holds {low}..{high}; element {first} is {values[first]}")
        bits = values.astype(np.int64 if self.kind == "int" else np.uint64).view(np.uint64)
        return (bits & np.uint64((1 << self.bits) - 1)).astype(self.storage)

    def _encode_narrow(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
        """The nearest code of the table. Both neighbours of a tie are there, and the even code wins."""
        table = _code_values(self.name).astype(np.float64)
        signed = not self.name.startswith("u")
        if not signed and (values < 0).any():
            raise OperandError(f"{self.name} has no sign: {values[values < 0].reshape(-1)[0]} cannot be encoded")
        positive = table[: 1 << self.bits - (self.name != "ue8m0")]
        finite = positive[np.isfinite(positive)]
        size = np.abs(values)
        between = (finite[1:] + finite[:-1]) / 2
        code = np.searchsorted(between, size)  # the number of midpoints below: the tie itself goes down
        tie = between[np.minimum(code, len(between) - 1)] == size
        code = code + (tie & (code & 1 == 1))
        nan = 0xFF if self.name == "ue8m0" else 0x7F if self.bits == 8 else len(finite) - 1
        sign = np.where(np.signbit(values) & ~np.isnan(values), 1 << self.bits - 1, 0) if signed else 0
        return (np.where(np.isnan(values), nan, code) | sign).astype(np.uint8)

    def __repr__(self) -> str:
        return f"dtype({self.name!r})"

    def __str__(self) -> str:
        return self.name


def _rounded(values: Array, drop: int) -> npt.NDArray[np.uint32]:
    """The upper 32 - drop bits of float32 words, rounded to nearest even in one step.

    A float64 first goes to float32 with the sticky bit kept (round to odd). Rounding to nearest twice would turn ties
    of the first rounding into wrong results of the second.
    """
    if values.dtype != np.float32:
        wide = _to_float64(values)
        with np.errstate(over="ignore"):
            single = wide.astype(np.float32)
        back = single.astype(np.float64)
        word = single.view(np.uint32)
        if not np.array_equal(back, wide):  # most arrays of tests hold small integers, which float32 holds
            inexact = (back != wide) & np.isfinite(wide)
            # Round to odd: take the neighbour whose last bit is 1 when the conversion was inexact.
            toward_zero = np.where(np.abs(back) > np.abs(wide), np.nextafter(single, np.float32(0)), single)
            word = np.where(inexact, toward_zero.view(np.uint32) | np.uint32(1), word)
    else:
        word = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    amount = np.uint32(drop)
    nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    rounded = (word + np.uint32((1 << drop - 1) - 1) + ((word >> amount) & np.uint32(1))) >> amount
    return np.where(nan, (word | np.uint32(0x400000)) >> amount, rounded)


_CUT = 11  # lower bits of a 64-bit integer that float64 has no room for


def _to_float64(values: Array) -> npt.NDArray[np.float64]:
    """Values in float64. Integers beyond 53 bits keep a sticky bit: a narrower format rounds them a second time."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8:
        return values.astype(np.float64)
    size = np.where(values < 0, np.uint64(0) - values.astype(np.uint64), values.astype(np.uint64))
    cut = size & np.uint64((1 << _CUT) - 1)
    odd = size - cut | (cut != 0).astype(np.uint64) << np.uint64(_CUT)
    wide = np.where(size >> np.uint64(53) != 0, odd, size).astype(np.float64)
    return np.where(values < 0, -wide, wide)


# Float formats of 8 bits or less: (bits of the exponent, bits of the mantissa, exponent bias, meaning of the highest
# codes). OCP Microscaling Formats 1.0, OCP 8-bit Floating Point 1.0; PTX ISA, "Alternate Floating-Point Data Formats".
_NARROW = {
    "e4m3": (4, 3, 7, "nan"),
    "e5m2": (5, 2, 15, "inf and nan"),
    "e3m2": (3, 2, 3, "finite"),
    "e2m3": (2, 3, 1, "finite"),
    "e2m1": (2, 1, 1, "finite"),
    "ue4m3": (4, 3, 7, "nan"),
}


@cache
def _code_values(name: str) -> npt.NDArray[np.float32]:
    """The value of every code of a float format of 8 bits or less. ue4m3 ignores its top bit."""
    if name == "ue8m0":
        powers = np.ldexp(np.float64(1), np.arange(256) - 127)
        powers[255] = np.nan
        return powers.astype(np.float32)
    exponents, mantissas, bias, top = _NARROW[name]
    code = np.arange(1 << exponents + mantissas)
    exponent, mantissa = code >> mantissas, code & (1 << mantissas) - 1
    normal = exponent > 0
    value = np.ldexp((mantissa + (normal << mantissas)).astype(np.float64), np.maximum(exponent, 1) - bias - mantissas)
    if top == "nan":
        value[-1] = np.nan
    elif top == "inf and nan":
        value[-(1 << mantissas)] = np.inf
        value[1 - (1 << mantissas) :] = np.nan
    both = np.concatenate([value, value if name[0] == "u" else -value]).astype(np.float32)
    both.flags.writeable = False
    return both


# Names and widths: PTX ISA, "Fundamental Types" and "Alternate Floating-Point Data Formats". Behind each its names in
# lower case elsewhere: in torch, NumPy, ml_dtypes, CUDA, CUTLASS, the CuTe DSL and MLIR.
_FORMATS = {
    DType("f64", 64, "float", 53): "float64 double",
    DType("f32", 32, "float", 24): "float32 float fp32",
    DType("tf32", 32, "float", 11): "tfloat32 tfloat32_t",
    DType("f16", 16, "float", 11): "float16 half fp16 half_t __half",
    DType("bf16", 16, "float", 8): "bfloat16 bfloat16_t __nv_bfloat16",
    DType("e4m3", 8, "float", 4): "float8_e4m3fn float8e4m3fn f8e4m3fn e4m3fn float_e4m3_t",
    DType("e5m2", 8, "float", 3): "float8_e5m2 float8e5m2 f8e5m2 float_e5m2_t",
    DType("e3m2", 6, "float", 3): "float6e3m2fn f6e3m2fn float6_e3m2fn float_e3m2_t",
    DType("e2m3", 6, "float", 4): "float6e2m3fn f6e2m3fn float6_e2m3fn float_e2m3_t",
    DType("e2m1", 4, "float", 2): "float4e2m1fn f4e2m1fn float4_e2m1fn float_e2m1_t",
    DType("ue8m0", 8, "float", 1): "float8e8m0fnu f8e8m0fnu float8_e8m0fnu float_ue8m0_t",
    DType("ue4m3", 8, "float", 4): "float_ue4m3_t",
    DType("i64", 64, "int"): "int64 int64_t s64",
    DType("i32", 32, "int"): "int32 int32_t s32",
    DType("i16", 16, "int"): "int16 int16_t s16",
    DType("i8", 8, "int"): "int8 si8 int8_t s8",
    DType("u64", 64, "uint"): "uint64 uint64_t",
    DType("u32", 32, "uint"): "uint32 uint32_t",
    DType("u16", 16, "uint"): "uint16 uint16_t",
    DType("u8", 8, "uint"): "uint8 ui8 uint8_t",
    DType("i4", 4, "int"): "int4 int4b_t s4",
    DType("u4", 4, "uint"): "uint4 uint4b_t",
    DType("b1", 1, "uint"): "i1 uint1b_t",
}
_BY_NAME = {entry.name: entry for entry in _FORMATS}
_ALIASES = {alias: entry.name for entry, aliases in _FORMATS.items() for alias in aliases.split()}


def multiply_together(a: DType, b: DType) -> bool:
    """True if an instruction multiplies the two types. One type, or floats of 8 bits each, or integers of 8 bits each.

    >>> multiply_together(dtype("e4m3"), dtype("e5m2")), multiply_together(dtype("e4m3"), dtype("bf16"))
    (True, False)
    """
    return a == b or (a.bits == b.bits == 8 and (a.kind == "float") == (b.kind == "float"))


def way_to_alike(a: DType, b: DType, spelled: tuple[str, str] | None = None, both: str = "bf16") -> str:
    """The conversion, without loss if there is one, that makes operands a and b alike.

    spelled   the types as the caller writes them, by default as this library does; `both` likewise bf16

    >>> way_to_alike(dtype("e4m3"), dtype("bf16"))
    'convert a to bf16, which has all values of e4m3'
    >>> way_to_alike(dtype("f16"), dtype("bf16")), way_to_alike(dtype("i8"), dtype("e4m3"))
    ('convert one of them', 'convert both to bf16, which has all their values')
    """
    first, second = spelled or (a.name, b.name)
    if a.bits == b.bits == 8:
        return f"convert both to {both}, which has all their values"
    for name, narrow, wide, to, of in (("a", a, b, second, first), ("b", b, a, first, second)):
        if narrow.bits == 8 and wide.bits > 8 and wide.kind == "float":
            return f"convert {name} to {to}, which has all values of {of}"
    return "convert one of them"


_FAMILY = re.compile(r"(?:mx|nv)?f(?:p|loat)?[-_]?([468])")  # fp8 and others name several formats


def dtype(name: str | DType | object) -> DType:
    """The format of a name, in any case, or of another library's dtype.

    Takes dtypes of torch, NumPy and the CuTe DSL. Raises OperandError for other values, with the nearest names and the
    whole list.

    >>> dtype("bfloat16") is dtype("BF16"), dtype(np.float32).name, dtype("Float8E4M3FN").name
    (True, 'f32', 'e4m3')
    >>> dtype("fp17")
    Traceback (most recent call last):
    ...
    layoutgemm.errors.OperandError: unknown number format 'fp17'; do you mean f16? known: f64, f32, tf32, f16, bf16, \
e4m3, e5m2, e3m2, e2m3, e2m1, ue8m0, ue4m3, i64, i32, i16, i8, u64, u32, u16, u8, i4, u4, b1
    """
    if isinstance(name, DType):
        return name
    if isinstance(name, str):
        text = name
    elif isinstance(name, (int, float, complex, bytes, tuple, list, dict, set)) or name is None:
        text = ""  # their texts are useless, and may be endless
    else:  # a class or a dtype of NumPy, torch or JAX
        text = str(getattr(name, "__name__", None) or name)
    text = text.removeprefix("torch.").removeprefix("cutlass").removeprefix("cute").lstrip(".:").lower()
    found = _BY_NAME.get(_ALIASES.get(text, text))
    if found is None:
        near = list(dict.fromkeys(_ALIASES.get(each, each) for each in get_close_matches(text, [*_BY_NAME, *_ALIASES])))
        if (family := _FAMILY.fullmatch(text)) is not None:
            near = [one.name for one in _BY_NAME.values() if one.bits == int(family[1]) and one.name.startswith("e")]
        meant = f"do you mean {' or '.join(near)}? " if near else ""
        raise unnamed(OperandError(f"unknown number format {shown(name)}; {meant}known: {', '.join(_BY_NAME)}"), name)
    return found


read_by(DType, dtype)

f64, f32, tf32, f16, bf16 = (_BY_NAME[name] for name in ("f64", "f32", "tf32", "f16", "bf16"))
e4m3, e5m2, i8, u8, i32 = (_BY_NAME[name] for name in ("e4m3", "e5m2", "i8", "u8", "i32"))
