"""Epilogues on whole matrices, in NumPy: what a kernel's registers are compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import OperandError, PlanError
from .parameters import host_number

if TYPE_CHECKING:
    from .chain import Epilogue
    from .steps import Given

Array = np.ndarray
_ERF, _ERFC = np.frompyfunc(math.erf, 1, 1), np.frompyfunc(math.erfc, 1, 1)


def mix(seed: Any, i: Any, pair: Any, word: Any = np.uint32) -> Any:
    """32 random bits for two neighbours of a row: element (i, 2 * pair) takes the lower 16, the next the upper.

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

    @staticmethod
    def where(condition: Array, yes: Array | float, no: Array | float) -> Array:
        """A choice by element."""
        kind = np.result_type(*([v.dtype for v in (yes, no) if isinstance(v, np.ndarray)] or [np.dtype(np.float32)]))
        return np.where(condition, np.asarray(yes, kind), np.asarray(no, kind))

    exp, log, sqrt, tanh = (staticmethod(function) for function in (np.exp, np.log, np.sqrt, np.tanh))
    add, sub, mul = (staticmethod(function) for function in (np.add, np.subtract, np.multiply))
    div, floordiv, mod = (staticmethod(function) for function in (np.divide, np.floor_divide, np.mod))
    lt, le, gt, ge = (staticmethod(f) for f in (np.less, np.less_equal, np.greater, np.greater_equal))
    eq, ne = staticmethod(np.equal), staticmethod(np.not_equal)
    and_, or_, xor = (staticmethod(f) for f in (np.bitwise_and, np.bitwise_or, np.bitwise_xor))


def numbers_of(name: str, value: object) -> Array:
    """An array of real numbers. Raises OperandError for anything else."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # of rows that differ
        raise OperandError(f"{name} is no array of numbers: {error}") from None
    if array.dtype.name != "bfloat16" and array.dtype.kind not in "iuf":
        raise OperandError(f"{name} is of {array.dtype}, and an epilogue computes with real numbers")
    return array


def rounded(operand: Given, value: object) -> Array:
    """Values of an epilogue's operand, rounded once to its type, as float32."""
    return np.asarray(operand.dtype.decode(operand.dtype.encode(numbers_of(operand.name, value))), np.float32)


class EpilogueMatrix:
    """All elements of C at once, as a step's `at`."""

    math = Math

    def __init__(self, epilogue: Epilogue, accumulator: Array, given: Mapping[str, object]):
        names = {operand.name for operand in epilogue.given if not operand.written}
        if set(given) != names:
            missing, more = sorted(names - set(given)), sorted(set(given) - names)
            what = f"{missing[0]} is missing" if missing else f"{more[0]} is no operand of it"
            raise PlanError(f"the epilogue takes {', '.join(sorted(names)) or 'no operands'}: {what}")
        self.epilogue = epilogue
        self.accumulator = accumulator
        self.written: dict[str, Array] = {}
        rows, columns = accumulator.shape[-2:]
        self.i = np.arange(rows, dtype=np.int32)[:, None]
        self.j = np.arange(columns, dtype=np.int32)[None, :]
        self._values = {name: self._placed(name, value) for name, value in given.items()}

    def _placed(self, name: str, value: object) -> Any:
        operand = self.epilogue.named_given(name)
        if operand.host:
            number = host_number(name, value, operand.dtype.name == "i32")
            return number if isinstance(number, int) else np.float32(number)
        array = rounded(operand, value)
        rows, columns = self.accumulator.shape[-2:]
        one = {"": (), "m": (rows,), "n": (columns,), "mn": (rows, columns)}[operand.axes]
        if array.shape not in (one, (*self.accumulator.shape[:-2], *one)):
            raise PlanError(f"{name} has shape {array.shape}; the epilogue takes {one}")
        if not operand.axes:
            return array[()]
        return array[..., :, None] if operand.axes == "m" else array[..., None, :] if operand.axes == "n" else array

    def read(self, name: str) -> Array:
        """An operand, broadcast along C."""
        return self._values[name]

    def write(self, name: str, x: Array) -> None:
        """Keep a matrix, rounded to its type."""
        dtype = self.epilogue.named_given(name).dtype
        self.written[name] = np.asarray(dtype.decode(dtype.encode(np.broadcast_to(x, self.accumulator.shape))))

    def largest(self, name: str, x: Array) -> None:
        """Keep the largest magnitude."""
        self.written[name] = np.float32(np.max(np.abs(x), initial=0.0))  # type: ignore[assignment]

    def random(self, name: str) -> Array:
        """16 bits for each element, 0 to 65535."""
        i, j = (self.j, self.i) if self.epilogue.flipped else (self.i, self.j)
        with np.errstate(over="ignore"):
            bits = mix(np.uint32(self._values[name] & 0xFFFFFFFF), i.astype(np.uint32), (j // 2).astype(np.uint32))
        return (bits >> np.where(j % 2, 16, 0).astype(np.uint32)) & np.uint32(0xFFFF)
