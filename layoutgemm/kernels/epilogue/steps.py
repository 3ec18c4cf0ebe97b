"""The steps of an epilogue: operands, and arithmetic on one element.

A step is written once. A kernel evaluates it on registers, NumPy on whole matrices; `at` tells it where it stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...arguments import as_int, nearest, shown
from ...dtypes import DType
from ...dtypes import dtype as dtype_named
from ...errors import PlanError
from ...memo import exact
from ..derive import ORDERS, OTHER_ORDER
from ..numbers import W
from . import tracing
from .places import Functions, OperandPlace, StepPlace, Value

_FLIPPED = {"": "", "m": "n", "n": "m", "mn": "mn"}


@dataclass(frozen=True)
class EpilogueOperand:
    """An operand that an epilogue reads or writes.

    name     what the caller gives it by
    axes     "": one value; "n": one for each column of C; "m": one for each row; "mn": one for each element
    dtype    "f32", "bf16" or "f16", or such a `DType`. "i32" is what a traced function reads as a whole number
    host     of one value: a number given at the launch, in place of an address ("f32", or "i32")
    order    of a shape with two dimensions: which index is contiguous in memory, as for C
    written  whether it is written
    unit     of a written "mn": rows and columns of C for each of its elements
    start    of one that is combined with what is in memory: the value that changes nothing
    count    of a written "m" or "n": numbers for each row, (M, count), or for each column, (count, N)
    places   of "n", where a gated product reads it before the gate: 2, for the gate's columns, then for the others
    """

    name: str
    axes: str
    dtype: DType
    host: bool = False
    order: str = "row"
    written: bool = False
    unit: tuple[int, int] = (1, 1)
    start: float = 0.0
    places: int = 1
    count: int = 1

    if TYPE_CHECKING:  # the type may be given by its name

        def __init__(
            self, name: str, axes: str, dtype: DType | str, host: bool = False, order: str = "row",
            written: bool = False, unit: tuple[int, int] = (1, 1), start: float = 0.0, places: int = 1,
            count: int = 1,
        ) -> None: ...  # fmt: skip

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise PlanError(f"an operand of an epilogue is named {shown(self.name)}: no identifier")
        if not isinstance(self.axes, str) or self.axes not in _FLIPPED:
            raise PlanError(f"{self.name}: axes {shown(self.axes)}; known are {', '.join(map(repr, _FLIPPED))}")
        object.__setattr__(self, "dtype", dtype_named(self.dtype))
        if self.order not in ORDERS:
            raise PlanError(f"{self.name}: order {shown(self.order)}; known are 'row' and 'col'")
        known = ("f32", "i32") if self.host else ("f32", "bf16", "f16", "i32")
        if self.dtype.name not in known:
            way = "; ops.whole(x) is an int32" if self.dtype.kind == "int" else ""
            raise PlanError(f"{self.name} is {self.dtype}; an epilogue's operand is one of {', '.join(known)}{way}")
        object.__setattr__(self, "unit", tuple(self.unit))
        object.__setattr__(self, "start", exact(self.start))
        if self.unit != (1, 1) and not (self.written and self.axes == "mn"):
            raise PlanError(f"{self.name}: unit {self.unit} is for a written matrix")
        if as_int(self.count, f"{self.name}: count", PlanError, least=1) > 1 and not (
            self.written and len(self.axes) == 1
        ):
            raise PlanError(f"{self.name}: {self.count} numbers for each row or column are for a written vector")

    def shape(self, m: int, n: int) -> tuple[int, ...]:
        """Its shape for a C of m rows and n columns.

        >>> EpilogueOperand("scales", "mn", "f32", written=True, unit=(1, 128)).shape(4, 200)
        (4, 2)
        """
        extents = {"m": -(-m // self.unit[0]), "n": -(-n // self.unit[1]) * self.places}
        lines = tuple(extents[axis] for axis in self.axes)
        more = (self.count,) * (self.count > 1)
        return (*lines, *more) if self.axes == "m" else (*more, *lines)

    @property
    def rank(self) -> int:
        """Dimensions of its shape.

        >>> EpilogueOperand("best", "m", "f32", written=True, count=4).rank
        2
        """
        return len(self.axes) + (self.count > 1)

    def strides(self, lines: W) -> tuple[W | int, W | int]:
        """Elements from line to line of a written vector, and from number to number.

        lines   rows of C, or columns

        >>> EpilogueOperand("best", "n", "f32", written=True, count=4).strides(100)
        (1, 100)
        >>> EpilogueOperand("best", "n", "f32", written=True, count=4).transposed().strides(100)
        (1, 100)
        """
        return (self.count, 1) if (self.axes == "m") == (self.order == "row") else (1, lines)

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the 64-bit parameters that carry it. A number, or an address with the strides that it needs."""
        if not self.axes:
            return (self.name,)
        leading = (f"{self.name}_ld",) if self.axes == "mn" else ()
        return (self.name, *leading, f"{self.name}_batch")

    def transposed(self) -> EpilogueOperand:
        """The same for the transposed C."""
        return replace(self, axes=_FLIPPED[self.axes], order=OTHER_ORDER[self.order], unit=self.unit[::-1])


STEPS: dict[str, type[Step]] = {}  # this package's own by name: those that another process knows, too


class Step:
    """One step: `given` are its operands, and `apply` computes the new x.

    `at` is x's place: `at.read(name)`, `at.write(name, x)`, `at.reduce(step, x)`, `at.random(name)` and the
    coordinates `at.i`, `at.j`. `at.math` has exp, tanh, erf, sigmoid, maximum, where ... in f32.
    """

    @property
    def given(self) -> tuple[EpilogueOperand, ...]:
        """The operands that the step reads or writes; of a reduction its outputs alone."""
        return ()

    @property
    def taken(self) -> tuple[EpilogueOperand, ...]:
        """All operands that a launch gives the step."""
        return self.given

    def __init_subclass__(cls) -> None:
        if cls.__module__.rpartition(".")[0] == __package__ and not cls.__name__.startswith("_"):
            STEPS[cls.__name__] = cls

    def apply(self, x: Value, at: StepPlace) -> Value:
        """The new value of x."""
        raise NotImplementedError

    def transposed(self) -> Step:
        """The step that does the same to the transposed C."""
        return self


def check_sum(name: str, number: object) -> None:
    """Raise PlanError unless `number` is 0 or 1, one of a gate's sums, or None."""
    if number is not None and (type(number) is not int or number not in (0, 1)):
        raise PlanError(f"{name}: of_sum = {shown(number)}: 0 or 1, a gate's first or second sum; None for both")


@dataclass(frozen=True)
class Scale(Step):
    """x * name. A number given at the launch, or a float32 in memory with device=True (a scale that a kernel made).

    of_sum  before a gate: which of the two sums it scales, 0 or 1; None for both
    """

    name: str = "alpha"
    device: bool = False
    of_sum: int | None = None

    def __post_init__(self) -> None:
        check_sum(self.name, self.of_sum)

    @property
    def given(self) -> tuple[EpilogueOperand, ...]:
        """The scale."""
        return (EpilogueOperand(self.name, "", dtype_named("f32"), host=not self.device),)

    def apply(self, x: Value, at: StepPlace) -> Value:
        """x times the scale."""
        return x * at.read(self.name)


@dataclass(frozen=True)
class _Vector(Step):
    """A step that reads one value for each row or column of C.

    of_sum  before a gate: which of the two sums it is of, 0 or 1; None for both
    """

    axis: str = "n"
    dtype: str = "f32"
    name: str = "vector"
    of_sum: int | None = None

    def __post_init__(self) -> None:
        check_sum(self.name, self.of_sum)
        if not isinstance(self.axis, str) or self.axis not in ("m", "n"):
            raise PlanError(f"{self.name}: axis {shown(self.axis)}; 'n' for one value a column, 'm' for one a row")

    @property
    def given(self) -> tuple[EpilogueOperand, ...]:
        """The vector."""
        return (EpilogueOperand(self.name, self.axis, dtype_named(self.dtype)),)

    def transposed(self) -> Step:
        """Along the other axis."""
        return replace(self, axis=_FLIPPED[self.axis])


@dataclass(frozen=True)
class Bias(_Vector):
    """x + bias. One value a column of C (axis "n", as torch's linear has it) or a row ("m", as cuBLASLt's BIAS)."""

    name: str = "bias"

    def apply(self, x: Value, at: StepPlace) -> Value:
        """x plus the vector's value."""
        return x + at.read(self.name)


@dataclass(frozen=True)
class VectorScale(_Vector):
    """x * scale: one factor a column of C (axis "n") or a row ("m")."""

    name: str = "scale"

    def apply(self, x: Value, at: StepPlace) -> Value:
        """x times the vector's value."""
        return x * at.read(self.name)


@dataclass(frozen=True)
class Residual(Step):
    """x + beta * D. A matrix of C's shape and a number given at the launch. Without a beta it is 1."""

    dtype: str = "bf16"
    order: str = "row"
    name: str = "d"
    beta: str | None = "beta"

    @property
    def given(self) -> tuple[EpilogueOperand, ...]:
        """The matrix and its factor."""
        matrix = EpilogueOperand(self.name, "mn", dtype_named(self.dtype), order=self.order)
        return (
            (matrix,) if self.beta is None else (matrix, EpilogueOperand(self.beta, "", dtype_named("f32"), host=True))
        )

    def apply(self, x: Value, at: StepPlace) -> Value:
        """x plus beta times the matrix's element."""
        value = at.read(self.name)
        return x + (value if self.beta is None else value * at.read(self.beta))

    def transposed(self) -> Step:
        """The matrix in the other order."""
        return replace(self, order=OTHER_ORDER[self.order])


def _gelu_tanh(x: Value, ops: Functions) -> Value:
    # (1 + tanh(u)) / 2 = sigmoid(2 u), which does not cancel where tanh is near -1
    c = 2 * math.sqrt(2 / math.pi)
    return x * ops.sigmoid(x * (c + (c * 0.044715) * (x * x)))


def _relu_sq(x: Value, ops: Functions) -> Value:
    positive = ops.maximum(x, 0.0)
    return positive * positive


ACTIVATIONS: Mapping[str, Callable[[Value, Functions], Value]] = {
    "relu": lambda x, ops: ops.maximum(x, 0.0),
    "relu_sq": _relu_sq,
    "gelu": lambda x, ops: x * ops.normal(x),
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x, ops: x * ops.sigmoid(x),
    "tanh": lambda x, ops: ops.tanh(x),
    "sigmoid": lambda x, ops: ops.sigmoid(x),
}
"""name -> formula. "gelu" is torch's default (erf); "gelu_tanh" torch's approximate="tanh" and cuBLASLt's GELU."""


_OTHER_NAMES = {
    "swish": "silu", "relu2": "relu_sq", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "linear": None, "identity": None, "none": None,
}  # fmt: skip
"""name in other libraries -> name here; None for none."""


def other_name(activation: object) -> str:
    """The end of an error: this library's name of an activation, where it has one.

    >>> other_name("swish"), other_name("linear"), other_name("rleu")
    ("; 'swish' is 'silu'", "; 'linear' is None", '')
    >>> def silu(x): ...
    >>> other_name(silu), other_name(lambda x: x)
    ("; its name is 'silu'", '; a function of your own is a step: epilogue=Epilogue(Custom.of(function))')
    """
    if isinstance(activation, str):
        return f"; {activation!r} is {_OTHER_NAMES[activation]!r}" if activation in _OTHER_NAMES else ""
    if not callable(activation):
        return ""
    name = str(getattr(activation, "__name__", type(activation).__name__)).lower()
    name += "_tanh" if getattr(activation, "approximate", None) == "tanh" else ""  # of a torch.nn.GELU
    if name in ACTIVATIONS:
        return f"; its name is {name!r}"
    return "; a function of your own is a step: epilogue=Epilogue(Custom.of(function))"


def check_activation(kind: object, said: str = "activation") -> None:
    """Raise PlanError unless `kind` is one of ACTIVATIONS. `said` is what the caller gave it as."""
    if not isinstance(kind, str) or kind not in ACTIVATIONS:
        meant = nearest(kind, ACTIVATIONS)
        raise PlanError(f"{said} {shown(kind)}: {meant}known are {', '.join(ACTIVATIONS)}{other_name(kind)}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True)
class Activation(Step):
    """kind(x): one of `ACTIVATIONS`. "tanh", for C of 16 bits or fewer, is the hardware's: relative error 2**-11."""

    kind: str

    def __post_init__(self) -> None:
        check_activation(self.kind)

    def apply(self, x: Value, at: StepPlace) -> Value:
        """The activation of x."""
        return ACTIVATIONS[self.kind](x, at.math)


def _gelu_gradient(z: Value, ops: Functions) -> Value:
    density = ops.exp(-0.5 * (z * z)) * (1 / math.sqrt(2 * math.pi))
    return ops.normal(z) + z * density


def _gelu_tanh_gradient(z: Value, ops: Functions) -> Value:
    c = 2 * math.sqrt(2 / math.pi)
    s = ops.sigmoid(z * (c + (c * 0.044715) * (z * z)))
    return s + z * (s * (1.0 - s)) * (c * (1.0 + 3 * 0.044715 * (z * z)))


def _silu_gradient(z: Value, ops: Functions) -> Value:
    s = ops.sigmoid(z)
    return s * (1.0 + z * (1.0 - s))


def _tanh_gradient(z: Value, ops: Functions) -> Value:
    t = ops.tanh(z)
    return 1.0 - t * t


def _sigmoid_gradient(z: Value, ops: Functions) -> Value:
    s = ops.sigmoid(z)
    return s * (1.0 - s)


GRADIENTS: Mapping[str, Callable[[Value, Functions], Value]] = {
    "relu": lambda z, ops: ops.where(z > 0.0, 1.0, 0.0),
    "relu_sq": lambda z, ops: 2.0 * ops.maximum(z, 0.0),
    "gelu": _gelu_gradient,
    "gelu_tanh": _gelu_tanh_gradient,
    "silu": _silu_gradient,
    "tanh": _tanh_gradient,
    "sigmoid": _sigmoid_gradient,
}


@dataclass(frozen=True)
class ActivationGradient(Step):
    """x * kind'(z), where z is the activation's input, as `Aux` wrote it (DRELU, DGELU)."""

    kind: str
    dtype: str = "bf16"
    order: str = "row"
    name: str = "aux"

    def __post_init__(self) -> None:
        check_activation(self.kind)

    @property
    def given(self) -> tuple[EpilogueOperand, ...]:
        """The matrix."""
        return (EpilogueOperand(self.name, "mn", dtype_named(self.dtype), order=self.order),)

    def apply(self, x: Value, at: StepPlace) -> Value:
        """x times the derivative at the matrix's element."""
        return x * GRADIENTS[self.kind](at.read(self.name), at.math)

    def transposed(self) -> Step:
        """The matrix in the other order."""
        return replace(self, order=OTHER_ORDER[self.order])


@dataclass(frozen=True)
class Clamp(Step):
    """x between two constants."""

    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        for name, value in (("low", self.low), ("high", self.high)):
            if not _is_number(value):
                raise PlanError(f"clamp with {name} = {shown(value)}: a number")
            try:
                tracing.as_value(value, "float")
            except PlanError as error:
                raise PlanError(f"clamp with {name} = {shown(value)}: {error}") from None
        if not self.low <= self.high:
            raise PlanError(f"clamp(low={self.low}, high={self.high}): low must not exceed high")
        object.__setattr__(self, "low", exact(self.low))
        object.__setattr__(self, "high", exact(self.high))

    def apply(self, x: Value, at: StepPlace) -> Value:
        """The nearest value of the range."""
        x = at.math.maximum(x, self.low) if self.low > -math.inf else x
        return at.math.minimum(x, self.high) if self.high < math.inf else x


@dataclass(frozen=True)
class Aux(Step):
    """x at this step, written to a matrix of C's shape. The input of an activation's gradient."""

    dtype: str = "bf16"
    order: str = "row"
    name: str = "aux"

    @property
    def given(self) -> tuple[EpilogueOperand, ...]:
        """The matrix."""
        return (EpilogueOperand(self.name, "mn", dtype_named(self.dtype), order=self.order, written=True),)

    def apply(self, x: Value, at: StepPlace) -> Value:
        """x, unchanged."""
        at.write(self.name, x)
        return x

    def transposed(self) -> Step:
        """The matrix in the other order."""
        return replace(self, order=OTHER_ORDER[self.order])


@dataclass(frozen=True)
class Dropout(Step):
    """x / (1 - p) where the mask keeps it, else 0. The mask is a function of the seed and of the element's place.

    p is taken in steps of 2**-16. See `random_bits` for the function.
    """

    p: float
    name: str = "seed"

    def __post_init__(self) -> None:
        if not _is_number(self.p) or not 0 <= self.p < 1:
            raise PlanError(f"dropout with p = {shown(self.p)}: a number of at least 0 and below 1")

    @property
    def given(self) -> tuple[EpilogueOperand, ...]:
        """The seed."""
        return (EpilogueOperand(self.name, "", dtype_named("i32"), host=True),)

    def apply(self, x: Value, at: StepPlace) -> Value:
        """x scaled, or 0."""
        dropped = round(self.p * 65536)
        return at.math.where(at.random(self.name) >= dropped, x * (65536 / (65536 - dropped)), 0.0)


@dataclass(frozen=True)
class Custom(Step):
    """A user's own arithmetic, as an expression: see `Custom.of`."""

    expression: tracing.Expression
    operands: tuple[EpilogueOperand, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "expression", exact(self.expression))

    @classmethod
    def of(cls, function: Callable[..., object], *operands: EpilogueOperand) -> Custom:
        """The step x -> function(x, i, j, ops, *operands).

        x is the f32 value, i and j its row and column in C, ops what it may call (see
        `kernels.epilogue.tracing.Operations`); the operands' values follow in order. The function is traced: called
        once, with symbols.

        >>> import numpy as np
        >>> from layoutgemm.kernels.epilogue.chain import Epilogue
        >>> causal = Custom.of(lambda x, i, j, ops: ops.where(j <= i, x, 0.0))
        >>> Epilogue(causal).reference(np.ones((2, 3), np.float32)).c.tolist()
        [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
        """
        check_operands(operands)
        names = tuple(operand.name for operand in operands)
        return cls(tracing.trace(function, names, whole=whole_names(operands)), operands)

    @property
    def given(self) -> tuple[EpilogueOperand, ...]:
        """The operands."""
        return self.operands

    def apply(self, x: Value, at: StepPlace) -> Value:
        """The expression's value."""
        return tracing.evaluate(self.expression, x, at)

    def transposed(self) -> Step:
        """The same with i and j in each other's place."""
        flipped = tuple(operand.transposed() for operand in self.operands)
        return Custom(tracing.transposed(self.expression), flipped)


def whole_names(operands: Sequence[EpilogueOperand]) -> tuple[str, ...]:
    """The names of the operands whose values are whole numbers."""
    return tuple([operand.name for operand in operands if operand.dtype.kind == "int"])


def check_operands(operands: Sequence[object]) -> None:
    """Raise PlanError for operands that no traced function reads."""
    for operand in operands:
        if not isinstance(operand, EpilogueOperand):
            raise PlanError(
                f"an operand of the function is {shown(operand)}: an EpilogueOperand, as in "
                'EpilogueOperand("gate", "mn", "f32")'
            )
        if operand.written:
            raise PlanError("an epilogue's function reads its operands; Aux and SeveralOutputs write matrices")


@dataclass(frozen=True)
class SeveralOutputs(Custom):
    """A function of several values. The first goes on as x, and others are written to matrices of C's shape; see `of`.

    expression  of each value
    operands    those that are read, then those that are written
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.expression) != 1 + len(self.writes) or not self.writes:
            raise PlanError(f"{len(self.expression)} values, for x and {len(self.writes)} matrices: one for each")
        for operand in self.writes:
            if operand.dtype.kind != "float":
                raise PlanError(
                    f"{operand.name} is {operand.dtype}: a function's values are f32; write f32, bf16 or f16"
                )

    @classmethod
    def of(cls, function: Callable[..., object], *operands: EpilogueOperand, **outputs: str) -> SeveralOutputs:
        """The step x, ... -> function(x, i, j, ops, *operands), which gives x and the written values.

        outputs  the type of each matrix by its name, in the order of the values

        Both gradients of a gated product, act(g) * u: C is that of g.

        >>> import numpy as np
        >>> from layoutgemm.kernels.epilogue.chain import Epilogue
        >>> g, u = EpilogueOperand("g", "mn", "f32"), EpilogueOperand("u", "mn", "f32")
        >>> both = SeveralOutputs.of(
        ...     lambda x, i, j, ops, g, u: (ops.where(g > 0.0, x * u, 0.0), x * ops.relu(g)), g, u, du="f32"
        ... )
        >>> found = Epilogue(both).reference([[2.0, 3.0]], g=[[1.0, -1.0]], u=[[5.0, 7.0]])
        >>> found.c.tolist(), found.written["du"].tolist()
        ([[10.0, 0.0]], [[2.0, 0.0]])

        Raises PlanError without an output, for integers, and where the function does not give as many values.
        """
        check_operands(operands)
        written = tuple(
            [EpilogueOperand(name, "mn", dtype_named(kind), written=True) for name, kind in outputs.items()]
        )
        names = tuple([operand.name for operand in operands])
        traced = tracing.trace_outputs(function, names, tuple(outputs), whole_names(operands))
        return cls(traced, (*operands, *written))

    @property
    def writes(self) -> tuple[EpilogueOperand, ...]:
        """The operands that are written."""
        return tuple([operand for operand in self.operands if operand.written])

    def apply(self, x: Value, at: StepPlace) -> Value:
        """The first value; the others are written."""
        x, *others = tracing.evaluate_each(self.expression, x, at)
        for operand, value in zip(self.writes, others, strict=True):
            at.write(operand.name, value)
        return x

    def transposed(self) -> Step:
        """The same with i and j in each other's place."""
        flipped = tuple([operand.transposed() for operand in self.operands])
        return SeveralOutputs(tuple([tracing.transposed(each) for each in self.expression]), flipped)


GROUP_SIZES = (2, 4, 8, 16, 32)  # columns of a group


@dataclass(frozen=True)
class ColumnGroup(Custom):
    """A function of 2 to 32 columns of a row. It gives a new value for each; see `ColumnGroup.of`.

    expression  one for each column of a group
    columns     of a group
    distance    from each of its columns to the next; groups tile C's columns in spans of columns * distance
    """

    columns: int = 2
    distance: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.columns, bool) or self.columns not in GROUP_SIZES:
            raise PlanError(f"a group of {shown(self.columns)} columns: known are {', '.join(map(str, GROUP_SIZES))}")
        object.__setattr__(self, "distance", as_int(self.distance, "distance", PlanError, least=1))
        if len(self.expression) != self.columns:
            raise PlanError(f"{len(self.expression)} expressions for a group of {self.columns} columns: one for each")

    @classmethod
    def of(  # type: ignore[override]
        cls, function: Callable[..., object], *operands: EpilogueOperand, columns: int = 2, distance: int = 1
    ) -> ColumnGroup:
        """The step (x[0], x[1], ...) -> function(x, i, j, ops, *operands), a value for each column.

        x holds the f32 values of columns j, j + distance, ..., and i is their row. An operand along N ("n", "mn") is a
        tuple of its values in these columns; another is one value. C has a multiple of columns * distance columns.

        Rotary embedding of neighbouring columns, with cosine and sine side by side in a matrix of C's shape. For
        columns j and j + 64 of heads of 128: `distance=64`.

        >>> import numpy as np
        >>> from layoutgemm.kernels.epilogue.chain import Epilogue
        >>> turn = EpilogueOperand("turn", "mn", "f32")
        >>> rotary = ColumnGroup.of(
        ...     lambda x, i, j, ops, t: (x[0] * t[0] - x[1] * t[1], x[0] * t[1] + x[1] * t[0]), turn
        ... )
        >>> Epilogue(rotary).reference(np.array([[1.0, 2.0, 3.0, 4.0]]), turn=[[0.0, 1.0, 1.0, 0.0]]).c.tolist()
        [[-2.0, 1.0, 3.0, 4.0]]

        Raises PlanError for another number of columns, and where the function does not give as many values.
        """
        check_operands(operands)
        if isinstance(columns, bool) or columns not in GROUP_SIZES:
            raise PlanError(f"a group of {shown(columns)} columns: known are {', '.join(map(str, GROUP_SIZES))}")
        names = {operand.name: "n" in operand.axes for operand in operands}
        return cls(tracing.trace_columns(function, names, columns, whole_names(operands)), operands, columns, distance)

    @property
    def span(self) -> int:
        """Columns of C that hold whole groups and no part of another."""
        return self.columns * self.distance

    def __str__(self) -> str:
        apart = f" {self.distance} apart" if self.distance > 1 else ""
        return f"a function of {self.columns} columns{apart}"

    def apply(self, x: Value, at: StepPlace) -> Value:
        """The function's value for x's column of its group."""
        return at.grouped(self, x)

    def results(self, x: Sequence[Value], at: OperandPlace) -> tuple[Value, ...]:
        """The new values of a group. `at` has its row i, its first column j, and operands by name and column."""
        return tuple([tracing.evaluate(expression, x, at) for expression in self.expression])

    def transposed(self) -> Step:
        """Refused: a group's columns are rows of the transposed product, which several warps may hold."""
        raise PlanError(f"{self}: C's columns are rows of this kernel's product, which is computed transposed")


def ordered(step: Step, orders: Mapping[str, str]) -> Step:
    """The step with its matrices in these orders, by their names.

    >>> ordered(Aux(), {"aux": "col"}).order
    'col'
    """
    if isinstance(step, Custom):
        return replace(step, operands=tuple([replace(x, order=orders.get(x.name, x.order)) for x in step.operands]))
    own = getattr(step, "operation", None)
    if read := getattr(own, "operands", ()):
        read = tuple([replace(x, order=orders.get(x.name, x.order)) for x in read])
        step = replace(step, operation=replace(own, operands=read))  # type: ignore[type-var]
    order = next((orders[x.name] for x in step.given if x.name in orders), None)
    return step if order is None else replace(step, order=order)  # type: ignore[type-var]
