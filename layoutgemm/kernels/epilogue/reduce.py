"""Steps that reduce rows, columns or all of C, and Quantize with scales.

    step            output                            combined
    ------------    ------------------------------    ------------------------------------------------------------------
    RowReduce       (M,), a value for each row        lanes of a warp, then partial results by tile, in a second launch
      each=128      (M, ceil(N / 128))                lanes of a warp: a tile has all of a group's columns
    ColumnReduce    (N,), a value for each column     lanes of a warp, then partial results by 16 rows, likewise
    Amax            one value                         lanes of a warp, then by an atomic maximum
    Quantize        (M, ceil(N / 128)) scales         lanes of a warp

With `ordered=False` atomic instructions combine the results in memory: no second launch, and no order of a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar

from ...arguments import as_bool, as_int, shown
from ...dtypes import dtype as dtype_named
from ...errors import PlanError
from ..derive import ORDERS, OTHER_ORDER
from .places import StepPlace, Value
from .reductions import REDUCTIONS, Reduction, reduction_of
from .steps import EpilogueOperand, Step

FP8_MOST = {"e4m3": 448.0, "e5m2": 57344.0}  # the largest finite value


class ReductionStep(Step):
    """A step that reduces the x of its place in the epilogue.

    axes       the output's: "m", "n", or "" for one value
    reduction  the operation
    ordered    the same bits on every run; else combined in memory with the values there, by atomic instructions
    each       of rows: columns of each result; None for all
    """

    name: str
    each: int | None = None
    ordered: bool = True

    @property
    def axes(self) -> str:
        """The output's axes, but for `each`."""
        raise NotImplementedError

    @property
    def reduction(self) -> Reduction:
        """The operation."""
        raise NotImplementedError

    @property
    def taken(self) -> tuple[EpilogueOperand, ...]:
        """The operands that the operation reads, then the outputs."""
        return (*self.reduction.operands, *self.given)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """For each result of the operation. The number of its output, and its number in it.

        >>> RowReduce("softmax").places
        ((0, 0), (1, 0))
        """
        return tuple([(at, k) for at, output in enumerate(self.given) for k in range(output.count)])

    def outputs(self, results: Sequence[Value], stack: Callable[[Sequence[Value], int], Value]) -> list[Value]:
        """The outputs, of each result along M or N; `stack` is NumPy's, torch's or JAX's."""
        found: list[list[Value]] = [[] for _ in self.given]
        for (output, _), value in zip(self.places, results, strict=True):
            found[output].append(value)
        return [own[0] if len(own) == 1 else stack(own, -1 if self.axes == "m" else -2) for own in found]

    @property
    def partial(self) -> bool:
        """True if results of tiles are combined by a second launch."""
        return self.ordered and self.each is None

    def apply(self, x: Value, at: StepPlace) -> Value:
        """x, unchanged."""
        at.reduce(self, x)
        return x


def combined(steps: Sequence[ReductionStep]) -> tuple[str, ...]:
    """Names of the outputs that are combined with what memory holds.

    >>> combined([Amax(), RowReduce("sum")])
    ('amax',)
    """
    return tuple([given.name for step in steps if not step.ordered for given in step.given])


@dataclass(frozen=True)
class _Along(ReductionStep):
    """A reduction of each row or each column of C."""

    operation: str | Reduction = "sum"
    name: str = ""
    dtype: str = "f32"
    each: int | None = None
    ordered: bool = True
    order: str = "row"

    def __post_init__(self) -> None:
        made = reduction_of(self.operation)
        if REDUCTIONS.get(made.name) == made:  # a named operation counts along the axis that it reduces
            object.__setattr__(self, "operation", made.name)
        if isinstance(self.name, str) and not self.name:
            object.__setattr__(self, "name", f"{'row' if self.axes == 'm' else 'column'}_{made.name}")
        as_bool(self.ordered, f"{shown(self.name)}: ordered", PlanError)
        if not isinstance(self.order, str) or self.order not in ORDERS:
            raise PlanError(f"{self.name}: order {shown(self.order)}; known are 'row' and 'col'")
        if self.each is not None:
            as_int(self.each, f"{self.name}: each", PlanError, least=1)
        if not self.ordered and (made.atomic is None or self.dtype != "f32" or self.each is not None):
            raise PlanError(
                f"{self.name}: ordered=False is for a sum, max or min in f32 over all of a row or column, which an "
                f"atomic instruction combines; not for {made.name} in {self.dtype}, each = {self.each}"
            )

    @property
    def given(self) -> tuple[EpilogueOperand, ...]:
        """The outputs."""
        made: list[EpilogueOperand] = []
        for (result, kind), of_name in groupby(self.reduction.results):
            name, count = f"{self.name}_{result}" if result else self.name, len(list(of_name))
            kept = dtype_named(self.dtype if kind == "float" else "i32")
            start = 0.0 if self.ordered else float(self.reduction.identity[0])
            if self.each is None:
                made.append(EpilogueOperand(name, self.axes, kept, False, self.order, True, start=start, count=count))
            elif count > 1:
                raise PlanError(
                    f"{self.name}: each = {self.each}, and {name} has {count} numbers: an output has one a group. "
                    "A Reduction.of with a name for each result, results=('first', 'second'), has such outputs"
                )
            else:
                made.append(EpilogueOperand(name, "mn", kept, order=self.order, written=True, unit=(1, self.each)))
        return tuple(made)

    def _turned(self, kind: type[_Along]) -> Step:
        """The step of the other axis. A named operation counts along the axis that it reduces."""
        if self.each is not None:
            raise PlanError(
                f"{self.name}: each = {self.each} columns of a row, and this product is computed transposed"
            )
        own = self.operation if isinstance(self.operation, str) else self.operation.transposed()
        return kind(own, self.name, self.dtype, None, self.ordered, OTHER_ORDER[self.order])


@dataclass(frozen=True)
class RowReduce(_Along):
    """One value for each row of C, or for every `each` columns of it.

    operation  a name of `REDUCTIONS` ("sum", "max", "log_sum_exp", "argmax", ...) or a `Reduction` of one's own
    name       of the output; of several results name_result each, as in "row_softmax_max". By default row_operation
    dtype      of the output: "f32", "bf16" or "f16"; whole numbers are "i32"
    each       columns of each result, a divisor of a tile's columns; by default all
    ordered    the same bits on every run. False: combined in memory with the values there, by atomic instructions
    order      of an output with two dimensions: which index is contiguous

    Raises PlanError for an unknown operation, and for ordered=False without an atomic instruction for it.

    >>> import numpy as np
    >>> from layoutgemm.kernels.epilogue.chain import Epilogue
    >>> found = Epilogue(RowReduce("argmax", "best")).reference(np.array([[1.0, 3.0, 2.0]], np.float32))
    >>> {name: value.tolist() for name, value in found.written.items()}
    {'best_value': [3.0], 'best_index': [1]}
    """

    @property
    def axes(self) -> str:
        """A value for each row."""
        return "m"

    @property
    def reduction(self) -> Reduction:
        """The operation."""
        return reduction_of(self.operation)

    def transposed(self) -> Step:
        """Columns of the transposed C."""
        return self._turned(ColumnReduce)


@dataclass(frozen=True)
class ColumnReduce(_Along):
    """One value for each column of C: the fields of `RowReduce` without `each`.

    >>> import numpy as np
    >>> from layoutgemm.kernels.epilogue.chain import Epilogue
    >>> Epilogue(ColumnReduce("sum")).reference(np.array([[1.0, 3.0], [2.0, 2.0]])).written["column_sum"].tolist()
    [3.0, 5.0]
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.each is not None:
            raise PlanError(
                f"{self.name}: each = {self.each} is for RowReduce: a tile's rows are those of several warps"
            )

    @property
    def axes(self) -> str:
        """A value for each column."""
        return "n"

    @property
    def reduction(self) -> Reduction:
        """The operation; a named one counts rows."""
        found = reduction_of(self.operation)
        return found.transposed() if isinstance(self.operation, str) else found

    def transposed(self) -> Step:
        """Rows of the transposed C."""
        return self._turned(RowReduce)


@dataclass(frozen=True)
class Amax(ReductionStep):
    """The largest |x| of C, in a float32 in memory that the caller initialises."""

    name: str = "amax"
    ordered: ClassVar[bool] = False  # type: ignore[misc]

    @property
    def axes(self) -> str:
        """One value."""
        return ""

    @property
    def reduction(self) -> Reduction:
        """The absolute maximum."""
        return REDUCTIONS["amax"]

    @property
    def given(self) -> tuple[EpilogueOperand, ...]:
        """The maximum."""
        return (EpilogueOperand(self.name, "", dtype_named("f32"), written=True),)


@dataclass(frozen=True)
class Quantize(Step):
    """8-bit floats of C with a scale for every `each` columns of a row.

    scale = max(amax, least) / most and C = round(x * (1 / max(amax, least) * most)), each operation rounded to float32:
    the bits of torch for `amax / most` and `x * (most / amax)`. `most` is 448 of e4m3, 57344 of e5m2.

    name    of the scales, (M, ceil(N / each)) in f32
    each    columns of a scale, a divisor of a tile's columns
    dtype   of C
    least   of the largest |x|, so that zeros have a scale
    order   of the scales: which index is contiguous

    The last step of an epilogue. Raises PlanError for another type.

    >>> import numpy as np
    >>> from layoutgemm.kernels.epilogue.chain import Epilogue
    >>> found = Epilogue(Quantize()).reference(np.array([[1.0, -3.5]], np.float32))
    >>> found.c.tolist(), found.written["scales"].tolist()
    ([[128.0, -448.0]], [[0.0078125]])
    """

    name: str = "scales"
    each: int = 128
    dtype: str = "e4m3"
    least: float = 1e-10
    order: str = "row"

    def __post_init__(self) -> None:
        if isinstance(self.each, tuple):
            raise PlanError(
                f"{self.name}: each = {shown(self.each)}: a scale is of columns of one row, since a block's rows are "
                "those of several warps. RowReduce('amax', each=128) has the largest |x| of each row's columns"
            )
        as_int(self.each, f"{self.name}: each", PlanError, least=1)
        if not isinstance(self.dtype, str) or self.dtype not in FP8_MOST:
            raise PlanError(f"{self.name}: values of {shown(self.dtype)}; known are {', '.join(FP8_MOST)}")
        if isinstance(self.least, bool) or not isinstance(self.least, (int, float)) or not 1e-30 <= self.least < 1e30:
            raise PlanError(f"{self.name}: least = {shown(self.least)}: a number from 1e-30 to 1e30")

    @property
    def reduction(self) -> Reduction:
        """The absolute maximum."""
        return REDUCTIONS["amax"]

    @property
    def most(self) -> float:
        """The largest value of C's type."""
        return FP8_MOST[self.dtype]

    @property
    def given(self) -> tuple[EpilogueOperand, ...]:
        """The scales."""
        return (
            EpilogueOperand(self.name, "mn", dtype_named("f32"), order=self.order, written=True, unit=(1, self.each)),
        )

    def apply(self, x: Value, at: StepPlace) -> Value:
        """x times the inverse of its group's scale."""
        return at.quantized(self, x)

    def transposed(self) -> Step:
        """Groups of rows of the transposed C."""
        return QuantizeRows(self.name, self.each, self.dtype, self.least, OTHER_ORDER[self.order])


@dataclass(frozen=True)
class QuantizeRows(Quantize):
    """`Quantize` of a product that is computed transposed. A scale for every `each` rows of a column.

    `Quantize.transposed` makes it; an epilogue of a product in its own place refuses it.

    >>> made = Quantize().transposed()
    >>> made.given[0].shape(256, 8), made.transposed() == Quantize()
    ((2, 8), True)
    """

    @property
    def given(self) -> tuple[EpilogueOperand, ...]:
        """The scales."""
        return tuple(replace(scales, unit=scales.unit[::-1]) for scales in super().given)

    def transposed(self) -> Step:
        """Groups of columns of C."""
        return Quantize(self.name, self.each, self.dtype, self.least, OTHER_ORDER[self.order])
