"""NumPy reference of epilogues on whole matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...arguments import shown
from ...errors import OperandError, PlanError
from .numpy_math import Array, Math, mix
from .parameters import host_number
from .places import ColumnGroups
from .reduce import Quantize, QuantizeRows, ReductionStep
from .reductions import REDUCTIONS, Reduction

if TYPE_CHECKING:
    from .chain import Epilogue
    from .steps import ColumnGroup, EpilogueOperand


def numbers_of(name: str, value: object) -> Array:
    """An array of real numbers. Raises OperandError for anything else."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # of rows that differ
        raise OperandError(f"{name} is no array of numbers: {error}") from None
    if array.dtype.name != "bfloat16" and array.dtype.kind not in "iuf":
        raise OperandError(f"{name} is of {array.dtype}: it takes real numbers")
    return array


def whole_numbers(name: str, array: Array) -> Array:
    """An array as int32. Raises OperandError for a number that is not one of int32's."""
    found = array.astype(np.int32) if array.dtype.kind in "iu" else np.zeros(0)
    wrong = found != array if found.shape == array.shape else np.ones(array.shape, bool)
    if wrong.any():
        raise OperandError(f"{name} holds {shown(array[wrong][0].item())}: it takes whole numbers of 32 bits")
    return found


def rounded(operand: EpilogueOperand, value: object) -> Array:
    """Values of an epilogue's operand, rounded once to its type, as float32. Whole numbers as int32."""
    if operand.dtype.kind == "int":
        return whole_numbers(operand.name, numbers_of(operand.name, value))
    return np.asarray(operand.dtype.decode(operand.dtype.encode(numbers_of(operand.name, value))), np.float32)


class EpilogueMatrix:
    """All elements of C at once, as a step's `at`."""

    math = Math

    def __init__(
        self, epilogue: Epilogue, accumulator: Array, given: Mapping[str, object], visited: Array | None = None
    ):
        """An epilogue of a matrix. `visited` is True for the elements (row, column) in tiles of an order; reductions
        combine no others."""
        self.visited = visited
        names = {operand.name for operand in epilogue.given if not operand.written}
        if set(given) != names:
            missing, more = sorted(names - set(given)), sorted(set(given) - names)
            what = f"{missing[0]} is missing" if missing else f"{more[0]} is no operand of it"
            raise PlanError(f"the epilogue takes {', '.join(sorted(names)) or 'no operands'}: {what}")
        self.epilogue = epilogue
        self.accumulator = accumulator
        self.written: dict[str, Array] = {}
        rows, columns = accumulator.shape[-2:]
        epilogue.check_columns(columns)
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
        one = {"": (), "m": (rows,), "n": (columns * operand.places,), "mn": (rows, columns)}[operand.axes]
        if array.shape not in (one, (*self.accumulator.shape[:-2], *one)):
            raise PlanError(f"{name} has shape {array.shape}; the epilogue takes {one}")
        if not operand.axes:
            return array[()]
        return array[..., :, None] if operand.axes == "m" else array[..., None, :] if operand.axes == "n" else array

    def read(self, name: str) -> Array:
        """An operand, broadcast along C."""
        return self._values[name]

    def columns_of(self, part: slice) -> Callable[[str], Array]:
        """Operands of a part of C's columns, by name."""
        return lambda name: np.broadcast_to(self.read(name), self.accumulator.shape)[..., part]

    def write(self, name: str, x: Array) -> None:
        """Keep a matrix, rounded to its type."""
        dtype = self.epilogue.named_given(name).dtype
        self.written[name] = np.asarray(dtype.decode(dtype.encode(np.broadcast_to(x, self.accumulator.shape))))

    def reduce(self, step: ReductionStep, x: Array) -> None:
        """Keep a reduction's results, rounded to their types."""
        x = np.broadcast_to(x, self.accumulator.shape).astype(np.float32)
        axis = {"m": -1, "n": -2, "": None}[step.axes]
        if step.each is None:
            found = step.reduction.reduce(x, axis, inside=self.visited, read=self.read)
        else:
            found = self._of_groups(step.reduction, x, step.each)
        self.keep(step, found)

    def keep(self, step: ReductionStep, found: list[Array]) -> None:
        """A reduction's results as written operands."""
        for given, value in zip(step.given, step.outputs(found, np.stack), strict=True):
            self.written[given.name] = value if given.dtype.kind == "int" else rounded(given, value)

    def _of_groups(self, reduction: Reduction, x: Array, each: int) -> list[Array]:
        """The results of every `each` columns."""
        found = []
        for first in range(0, x.shape[-1], each):
            part = slice(first, first + each)
            inside = None if self.visited is None else self.visited[:, part]
            found.append(reduction.reduce(x[..., part], -1, first, inside=inside, read=self.columns_of(part)))
        return [np.stack(values, -1) for values in zip(*found, strict=True)]

    def quantized(self, step: Quantize, x: Array) -> Array:
        """Values scaled to the range of C's type, and the scales kept."""
        x = np.broadcast_to(x, self.accumulator.shape).astype(np.float32)
        if isinstance(step, QuantizeRows):
            turned = step.transposed()
            assert isinstance(turned, Quantize), turned
            scaled = self._scaled(turned, x.swapaxes(-1, -2)).swapaxes(-1, -2)
            self.written[step.name] = self.written[step.name].swapaxes(-1, -2)
            return scaled
        return self._scaled(step, x)

    def _scaled(self, step: Quantize, x: Array) -> Array:
        """The same for groups of columns."""
        most, least = np.float32(step.most), np.float32(step.least)
        (amax,) = self._of_groups(REDUCTIONS["amax"], x, step.each)
        amax = np.maximum(amax, least)
        self.written[step.name] = amax / most
        inverse = np.float32(1) / amax * most  # as torch computes most / amax: by the reciprocal
        with np.errstate(invalid="ignore"):  # of an infinite row, whose inverse is 0
            return x * np.repeat(inverse, step.each, -1)[..., : x.shape[-1]]

    def grouped(self, step: ColumnGroup, x: Array) -> Array:
        """The function of each group of columns."""
        at, x = ColumnGroups(step, self), np.broadcast_to(x, self.accumulator.shape)
        shape = at.member(x, 0).shape
        return np.stack([np.broadcast_to(each, shape) for each in at.results(x)], -2).reshape(x.shape)

    def random(self, name: str) -> Array:
        """16 bits for each element, 0 to 65535."""
        i, j = (self.j, self.i) if self.epilogue.flipped else (self.i, self.j)
        with np.errstate(over="ignore"):
            bits = mix(np.uint32(self._values[name] & 0xFFFFFFFF), i.astype(np.uint32), (j // 2).astype(np.uint32))
        return (bits >> np.where(j % 2, 16, 0).astype(np.uint32)) & np.uint32(0xFFFF)
