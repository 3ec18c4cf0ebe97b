"""The functions of an epilogue's steps in NumPy, in f32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray
_ERF, _ERFC = np.frompyfunc(math.erf, 1, 1), np.frompyfunc(math.erfc, 1, 1)


def mix(seed: Any, i: Any, pair: Any, word: Any = np.uint32) -> Any:
    """32 random bits for two neighbours of a row. Element (i, 2 * pair) takes the lower 16, the next the upper.

    Multiplications and shifts of 32-bit unsigned integers (`word`: NumPy's, or a kernel's), in the manner of
    MurmurHash3's final mix; a step between seed, row and column, so that none cancels another.
    """
    h = i * word(0x9E3779B1) + seed
    h = (h ^ (h >> word(16))) * word(0x85EBCA6B)
    h = (h ^ (h >> word(13))) + pair * word(0xC2B2AE35)
    h = (h ^ (h >> word(16))) * word(0x27D4EB2F)
    return h ^ (h >> word(15))


class Math:
    """f32 functions of arrays, with the names that steps use."""

    @staticmethod
    def constant(value: float) -> np.float32:
        """A number of f32."""
        return np.float32(value)

    @staticmethod
    def to_float(x: Array) -> Array:
        """Coordinates as f32."""
        return np.asarray(x).astype(np.float32)

    @staticmethod
    def whole(x: Array) -> Array:
        """Cut to int32, as cvt.rzi.s32.f32 does: beyond it the nearest, of NaN 0."""
        found = np.nan_to_num(np.asarray(x, np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
        return np.clip(found, -(2**31), 2**31 - 1).astype(np.int32)

    @staticmethod
    def erf(x: Array) -> Array:
        """The error function."""
        return np.asarray(_ERF(np.asarray(x, np.float64)), np.float32)

    @staticmethod
    def normal(x: Array) -> Array:
        """The normal distribution: erfc(-x / sqrt(2)) / 2."""
        return np.asarray(_ERFC(np.asarray(x, np.float64) * -math.sqrt(0.5)) / 2, np.float32)

    @staticmethod
    def sigmoid(x: Array) -> Array:
        """1 / (1 + exp(-x))."""
        with np.errstate(over="ignore"):
            return np.float32(1) / (np.float32(1) + np.exp(-x))

    @staticmethod
    def rsqrt(x: Array) -> Array:
        """1 / sqrt(x)."""
        return np.float32(1) / np.sqrt(x)

    @staticmethod
    def maximum(x: Array | float, y: Array | float) -> Array:
        """The larger; of a NaN and a number, the number, as in max.f32."""
        return np.fmax(x, y if isinstance(y, np.ndarray) else np.asarray(y, np.asarray(x).dtype))

    @staticmethod
    def minimum(x: Array | float, y: Array | float) -> Array:
        """The smaller; of a NaN and a number, the number, as in min.f32."""
        return np.fmin(x, y if isinstance(y, np.ndarray) else np.asarray(y, np.asarray(x).dtype))

    largest, smallest = staticmethod(np.maximum), staticmethod(np.minimum)  # NaN where either is

    @staticmethod
    def below(x: Array) -> Array:
        """The next number below; of -inf NaN, and of NaN infinity. Largest numbers and NaN are not up to it."""
        next_one = np.where(np.isneginf(x), np.nan, np.nextafter(x, np.float32(-np.inf)))
        return np.where(np.isnan(x), np.inf, next_one).astype(np.float32)

    @staticmethod
    def where(condition: Array, yes: Array | float, no: Array | float) -> Array:
        """A choice by element."""
        numbers = np.dtype(np.int32 if isinstance(yes, int) and isinstance(no, int) else np.float32)
        kind = np.result_type(*([v.dtype for v in (yes, no) if isinstance(v, np.ndarray)] or [numbers]))
        return np.where(condition, np.asarray(yes, kind), np.asarray(no, kind))

    exp, log, sqrt, tanh, abs = (staticmethod(f) for f in (np.exp, np.log, np.sqrt, np.tanh, np.abs))
    sin, cos = staticmethod(np.sin), staticmethod(np.cos)
    floor, round = staticmethod(np.floor), staticmethod(np.rint)
    add, sub, mul = (staticmethod(function) for function in (np.add, np.subtract, np.multiply))
    div, floordiv, mod = (staticmethod(function) for function in (np.divide, np.floor_divide, np.mod))
    lt, le, gt, ge = (staticmethod(f) for f in (np.less, np.less_equal, np.greater, np.greater_equal))
    eq, ne = staticmethod(np.equal), staticmethod(np.not_equal)
    and_, or_, xor = (staticmethod(f) for f in (np.bitwise_and, np.bitwise_or, np.bitwise_xor))
