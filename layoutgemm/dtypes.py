"""Number formats: how many bits an element has, and how a value becomes those bits.

Every format the atoms speak of is named here once; code asks for it by name with `dtype("bf16")`.
Conversion to and from raw bits exists for the formats that this version computes with (f16, bf16, f32 and the
integers).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import OperandError


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
            raise OperandError(f"{self.name} has {self.bits} bits, which is no whole number of bytes")
        return self.bits // 8

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding a value to this format, to nearest: 2**-mantissa."""
        if self.kind != "float":
            raise OperandError(f"{self.name} is an integer format: it has no unit roundoff")
        return 2.0**-self.mantissa

    def encode(self, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Values -> raw bits as unsigned integers of this width, rounded to nearest, ties to even.

        Float values beyond the range become infinities, NaN stays NaN, as the hardware's cvt.rn does; integers outside
        an integer format's range raise OperandError, naming the first one.

        >>> [hex(x) for x in dtype("bf16").encode([1.0, -2.5, 1.00390625])]
        ['0x3f80', '0xc020', '0x3f80']
        """
        if self.kind != "float":
            return self._encode_integers(np.asarray(values))
        if self.name == "f64":
            return np.asarray(values, dtype=np.float64).view(np.uint64)
        if self.name == "f16":
            with np.errstate(over="ignore"):
                return np.asarray(values).astype(np.float16).view(np.uint16)
        if self.name == "f32":
            with np.errstate(over="ignore"):
                return np.asarray(values).astype(np.float32).view(np.uint32)
        if self.name == "bf16":
            return _encode_bf16(np.asarray(values))
        raise OperandError(f"{self.name}: conversion from values to bits is not implemented")

    def decode(self, bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Raw bits (unsigned integers of this width) -> values; exact: float32 for bf16 and f16, else the natural type.

        >>> dtype("bf16").decode(dtype("bf16").encode([1.0, 3.140625])).tolist()
        [1.0, 3.140625]
        """
        if self.name == "bf16":
            return (np.asarray(bits, dtype=np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        if self.name == "f16":
            return np.asarray(bits, dtype=np.uint16).view(np.float16).astype(np.float32)
        natural = {"f32": (np.uint32, np.float32), "f64": (np.uint64, np.float64)}.get(self.name)
        if natural is None and self.kind != "float" and self.bits % 8 == 0:
            natural = (self.storage, np.dtype(f"{self.kind[0]}{self.bits // 8}").type)
        if natural is None:
            raise OperandError(f"{self.name}: conversion from bits to values is not implemented")
        return np.asarray(bits, dtype=natural[0]).view(natural[1])

    @property
    def storage(self) -> type[np.unsignedinteger[Any]]:
        """The NumPy unsigned integer type that holds one element."""
        types: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
        return types[self.bytes]

    def _encode_integers(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if values.dtype.kind not in "iu":
            raise OperandError(f"{self.name} takes integers, not {values.dtype}: nothing is rounded to an integer")
        natural = np.dtype(f"{self.kind[0]}{self.bytes}")
        low, high = np.iinfo(natural).min, np.iinfo(natural).max
        outside = np.nonzero((values < low) | (values > high))
        if len(outside[0]):
            first = tuple(int(axis[0]) for axis in outside)
            raise OperandError(f"{self.name} holds {low}..{high}; element {first} is {values[first]}")
        return values.astype(natural).view(self.storage)

    def __repr__(self) -> str:
        return f"dtype({self.name!r})"

    def __str__(self) -> str:
        return self.name


def _encode_bf16(values: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Round to bf16, to nearest even, without rounding twice.

    A float64 first goes to float32 with the sticky bit kept (round to odd): rounding to nearest twice would turn ties
    of the first rounding into wrong answers of the second.
    """
    if values.dtype != np.float32:
        wide = values.astype(np.float64)
        with np.errstate(over="ignore"):
            single = wide.astype(np.float32)
        back = single.astype(np.float64)
        inexact = (back != wide) & np.isfinite(wide)
        # Round to odd: take the neighbour whose last bit is 1 when the conversion was inexact.
        toward_zero = np.where(np.abs(back) > np.abs(wide), np.nextafter(single, np.float32(0)), single)
        word = np.where(inexact, toward_zero.view(np.uint32) | np.uint32(1), single.view(np.uint32))
    else:
        word = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    rounded = (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(nan, (word >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)


# Names and widths: PTX ISA, "Fundamental Types" and "Alternate Floating-Point Data Formats".
_FORMATS = (
    DType("f64", 64, "float", 53),
    DType("f32", 32, "float", 24),
    DType("tf32", 32, "float", 11),
    DType("f16", 16, "float", 11),
    DType("bf16", 16, "float", 8),
    DType("e4m3", 8, "float", 4),
    DType("e5m2", 8, "float", 3),
    DType("e3m2", 6, "float", 3),
    DType("e2m3", 6, "float", 4),
    DType("e2m1", 4, "float", 2),
    DType("ue8m0", 8, "float", 1),
    DType("ue4m3", 8, "float", 4),
    DType("i64", 64, "int"),
    DType("i32", 32, "int"),
    DType("i16", 16, "int"),
    DType("i8", 8, "int"),
    DType("u64", 64, "uint"),
    DType("u32", 32, "uint"),
    DType("u16", 16, "uint"),
    DType("u8", 8, "uint"),
    DType("i4", 4, "int"),
    DType("u4", 4, "uint"),
    DType("b1", 1, "uint"),
)
_BY_NAME = {entry.name: entry for entry in _FORMATS}
# What other libraries call the same formats (torch, NumPy, the CUDA headers, the CuTe DSL).
_ALIASES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "half": "f16",
    "fp16": "f16",
    "float32": "f32",
    "float": "f32",
    "fp32": "f32",
    "float64": "f64",
    "double": "f64",
    "tfloat32": "tf32",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "i8",
    "uint8": "u8",
    "int16": "i16",
    "uint16": "u16",
    "int32": "i32",
    "uint32": "u32",
    "int64": "i64",
    "uint64": "u64",
}


def dtype(name: str | DType | Any) -> DType:
    """The format of that name; torch and NumPy dtypes are taken too.

    Raises OperandError for anything else, listing the names that exist.

    >>> dtype("bfloat16") is dtype("bf16"), dtype(np.float32).name
    (True, 'f32')
    """
    if isinstance(name, DType):
        return name
    text = name if isinstance(name, str) else getattr(name, "__name__", None) or str(name)
    text = text.removeprefix("torch.")
    found = _BY_NAME.get(_ALIASES.get(text, text))
    if found is None:
        raise OperandError(f"unknown number format {name!r}; known: {', '.join(_BY_NAME)}")
    return found


f64, f32, tf32, f16, bf16 = (_BY_NAME[name] for name in ("f64", "f32", "tf32", "f16", "bf16"))
e4m3, e5m2, i8, u8, i32 = (_BY_NAME[name] for name in ("e4m3", "e5m2", "i8", "u8", "i32"))
