"""Formats of quantised weights: codes of 4 or 8 bits, and scales along K.

    code      bits    value of a code                        zero points
    ------    ----    ----------------------------------     -----------
    int4      4       code - 8; with zero points, code - z   0 to 16
    e2m1      4       OCP float4                             none
    int8      8       two's complement                       none
    e4m3      8       float8, no NaN                         none
    e5m2      8       float8, no infinity, no NaN            none

A weight is value * scale. Every `group` weights along K of an output feature share a scale; group=None: all of them.
Scales of groups have the activations' type, and a weight is rounded to that type before it is multiplied. The scale of
a whole column is float32, and multiplies the sums. With float8 activations codes are multiplied as they are, as e4m3;
the scales of groups are bf16, and multiply the sums of each group in float32.

Sources: OCP Microscaling Formats 1.0; OCP 8-bit Floating Point 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...arguments import checked, nearest, settle, shown
from ...dtypes import DType, dtype
from ...errors import PlanError
from ...graph_marks import NoticedInGraphs
from ..epilogue.chain import Epilogue, Step, VectorScale

UNIT_ROWS, UNIT_K = 64, 128  # of a packed unit: one instruction's rows, and a K tile
GROUPS = (16, 32, 64, 128)
COLUMN_SCALE = "weight_scale"  # the epilogue's operand, where a column has one scale
ACTIVATIONS = ("bf16", "f16", "e4m3")  # the types that codes become
FLOAT8 = ("e4m3", "e5m2")  # the types of x, for weights that become e4m3
MOST_ZERO = 16  # a zero point: GPTQ stores one less than it


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """One kind of codes.

    stored  the number format whose bits a code is
    excess  taken from an unsigned code where there is no zero point
    """

    stored: DType
    excess: int = 0

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.stored.bits

    def values(self) -> npt.NDArray[np.float64]:
        """The value of every code, without a zero point; NaN and infinities are no weights."""
        codes = np.arange(1 << self.bits)
        return np.asarray(self.stored.decode(codes), np.float64) - self.excess

    @property
    def largest(self) -> float:
        """The largest value of a code."""
        return float(np.nanmax(np.where(np.isfinite(self.values()), self.values(), np.nan)))


CODES = {
    "int4": CodeFacts(dtype("u4"), 8),
    "e2m1": CodeFacts(dtype("e2m1")),
    "int8": CodeFacts(dtype("i8")),
    "e4m3": CodeFacts(dtype("e4m3")),
    "e5m2": CodeFacts(dtype("e5m2")),
}


@dataclass(frozen=True, slots=True)
class QuantizedFormat(NoticedInGraphs):
    """The format of quantised weights: codes, weights that share a scale, zero points.

    code   "int4", "e2m1", "int8", "e4m3" or "e5m2"
    group  weights along K that share a scale: 16, 32, 64 or 128; None for a whole column
    zeros  each group has a zero point of its own; int4 in groups alone

    Raises PlanError naming the field and its known values.

    >>> QuantizedFormat("int4", 128).bits, str(QuantizedFormat("int4", 32, zeros=True))
    (4, 'int4 in groups of 32, with zero points')
    >>> QuantizedFormat("int4", 100)
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: group = 100: known are 16, 32, 64, 128, and None for a whole column
    """

    code: str
    group: int | None = None
    zeros: bool = False
    EXAMPLE: ClassVar[str] = "QuantizedFormat('int4', 128)"

    def __post_init__(self) -> None:
        settle(self, PlanError)
        if self.code not in CODES:
            raise PlanError(f"code = {shown(self.code)}: {nearest(self.code, CODES)}known are {', '.join(CODES)}")
        if self.group is not None and self.group not in GROUPS:
            known = ", ".join(map(str, GROUPS))
            raise PlanError(f"group = {shown(self.group)}: known are {known}, and None for a whole column")
        if self.zeros and (self.code != "int4" or self.group is None):
            raise PlanError(f"zeros of {self.code} with group = {self.group}: zero points are of int4 in groups")

    @property
    def facts(self) -> CodeFacts:
        """The facts of its codes."""
        return CODES[self.code]

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.facts.bits

    @property
    def groups(self) -> int:
        """Groups of a packed unit of 128 weights along K. 0 where a column has one scale."""
        return 0 if self.group is None else UNIT_K // self.group

    @checked(PlanError)
    def epilogue(self, *steps: Step, axis: str = "m") -> Epilogue:
        """The epilogue of a plan with these weights. The scale of a column first, then the given steps.

        axis  of C, along which output features lie: "m" where weights are A, "n" where they are B

        >>> [type(step).__name__ for step in QuantizedFormat("e4m3").epilogue().steps]
        ['VectorScale']
        """
        return Epilogue(*([] if self.group else [VectorScale(axis, "f32", COLUMN_SCALE)]), *steps)

    def check_depth(self, k: int) -> None:
        """Raise PlanError for a K that groups do not divide."""
        if self.group is not None and k % self.group:
            raise PlanError(f"k = {k} with groups of {self.group}: the last group has {k % self.group} weights")

    def check_epilogue(self, epilogue: Epilogue | None) -> None:
        """Raise PlanError unless the epilogue has a column's scale where the weights have one."""
        names = [given.name for given in Epilogue.of(epilogue, gated=True).given]
        if (COLUMN_SCALE in names) != (self.group is None):
            there = "has" if COLUMN_SCALE in names else "has no"
            raise PlanError(
                f"the epilogue {there} {COLUMN_SCALE}, and weights are {self}: fmt.epilogue(*steps) is its own"
            )

    def __str__(self) -> str:
        groups = "with a scale a column" if self.group is None else f"in groups of {self.group}"
        return f"{self.code} {groups}" + ", with zero points" * self.zeros


MXFP4 = QuantizedFormat("e2m1", 32)
MXFP8 = QuantizedFormat("e4m3", 32)
NVFP4 = QuantizedFormat("e2m1", 16)
