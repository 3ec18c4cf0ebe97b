"""Epilogues: scales, bias, residual, activations, masks, a user's own function.

An `Epilogue` is a tuple of steps, applied to each element x in order, in a kernel or in NumPy (`Epilogue.reference`).

    Epilogue(Scale("alpha"), Residual(), Bias(), Activation("gelu"))      gelu(alpha * A @ B + beta * D + bias)

A step's operands are given at the launch by name: numbers, vectors along M or N, matrices of C's shape.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import lcm

import numpy as np
import numpy.typing as npt

from ...arguments import as_bool, as_int, checked, shown
from ...errors import PlanError
from ...graph_marks import constant_in_graphs, not_in_graphs
from ..plan import MAX_WORDS, PERSISTENT_PARAMETERS, WORKSPACE
from .grouped_matrix import GroupedMatrix, parts_of
from .matrix import EpilogueMatrix, numbers_of
from .places import StepPlace, Value
from .reduce import Amax, ColumnReduce, Quantize, QuantizeRows, ReductionStep, RowReduce
from .reductions import REDUCTIONS, Reduction
from .steps import (
    ACTIVATIONS,
    GRADIENTS,
    STEPS,
    Activation,
    ActivationGradient,
    Aux,
    Bias,
    Clamp,
    ColumnGroup,
    Custom,
    Dropout,
    EpilogueOperand,
    Residual,
    Scale,
    SeveralOutputs,
    Step,
    VectorScale,
)
from .text import entry_of_steps, steps_of
from .tracing import FUNCTIONS, operations

Gate = Callable[[Sequence[np.ndarray]], np.ndarray]  # both sums -> what is gated
_FLAGS: Mapping[str, type] = {
    "flipped": bool, "pairs": bool, "stores_c": bool, "sums": int, "lines": bool, "whole": int,
}  # beside the steps  # fmt: skip
_CHEAP_OPERATIONS = 6  # of a function that is computed twice


@dataclass(frozen=True, eq=False)
class Outputs:
    """A reference result: C before it is rounded, and the written operands by name."""

    c: np.ndarray
    written: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, init=False)
class Epilogue:
    """Steps in order.

    flipped  the kernel computes the transposed C, so coordinates change places: see `transposed`
    pairs    two neighbours of a row may be read and written at once: the kernel's N is even, and every address and
             stride of an operand along its rows a multiple of two elements
    lines    16 bytes of a row of the matrices that are read may be read at once: the kernel's N is a multiple of 8, and
             their addresses and strides are multiples of 16 bytes
    whole    the kernel's N is a multiple of this: of a tile whose columns divide it, none lies outside of C
    stores_c False: nothing of C is written, only what the steps write
    sums     of a gated product, or of two matrices B: the first `sums` steps apply to both sums, before the gate. They
             are Scale, VectorScale and Bias, of both or `of_sum`; vectors along N of both have C's columns twice
    json     all of these as text, as `from_json` reads it; "" with a step of another package. A field: torch.compile
             reads those of frozen classes
    """

    steps: tuple[Step, ...]
    flipped: bool = False
    pairs: bool = False
    stores_c: bool = True
    sums: int = 0
    lines: bool = False
    whole: int = 1
    json: str = field(init=False, repr=False, compare=False)

    @not_in_graphs
    def __init__(
        self, *steps: Step, flipped: bool = False, pairs: bool = False, stores_c: bool = True, sums: int = 0,
        lines: bool = False, whole: int = 1,
    ):  # fmt: skip
        for step in steps:
            if not isinstance(step, Step):
                raise PlanError(
                    f"an epilogue is made of steps, such as Bias() and Activation('relu'), not of {shown(step)}"
                )
        as_bool(stores_c, "stores_c of Epilogue", PlanError)
        as_int(sums, "sums of Epilogue", PlanError)
        object.__setattr__(self, "steps", tuple(steps))
        object.__setattr__(self, "flipped", flipped)
        object.__setattr__(self, "pairs", pairs)
        object.__setattr__(self, "stores_c", stores_c)
        object.__setattr__(self, "sums", sums)
        object.__setattr__(self, "lines", lines)
        object.__setattr__(self, "whole", whole)
        self._check_sums()
        for step in steps:
            ints = [given for given in step.taken if given.dtype.kind == "int" and not given.host]
            if ints and not isinstance(step, (Custom, ReductionStep)):
                raise PlanError(
                    f"{ints[0].name} is {ints[0].dtype}, and {type(step).__name__} computes in f32: a function reads "
                    "whole numbers, Custom.of(function, EpilogueOperand(name, axes, 'i32'))"
                )
        self._check_names()
        if any(isinstance(step, Quantize) for step in steps[:-1]):
            raise PlanError("Quantize is the last step of an epilogue: what follows would be of C's rounded values")
        if steps and isinstance(steps[-1], QuantizeRows) and not flipped:
            raise PlanError("QuantizeRows: groups of rows are of a transposed product; of C's columns, Quantize is")
        if not stores_c and not any(given.written for given in self.given):
            raise PlanError("stores_c=False, and no step writes anything: such a product has no result")
        if same := set(self.words) & set(PERSISTENT_PARAMETERS):
            taken = ", ".join(PERSISTENT_PARAMETERS)
            raise PlanError(
                f"an operand of the epilogue is named {min(same)}, as a parameter of the product is: name it "
                f"otherwise; {taken} are taken"
            )
        if len(self.words) > MAX_WORDS:
            raise PlanError(
                f"the epilogue's operands take {len(self.words)} parameters; a kernel has {MAX_WORDS}: a number takes "
                "1, a vector 2, a matrix 3, partial results 1. Results of one name are one vector"
            )
        object.__setattr__(self, "json", self._as_json())

    def _check_names(self) -> None:
        """Raise PlanError for two operands of one name, unless functions read one and the same."""
        named: dict[str, tuple[EpilogueOperand, bool]] = {}
        for step, operands in zip(self.steps, self._operands, strict=True):
            for given in operands:
                shared = isinstance(step, (Custom, ColumnGroup, ReductionStep)) and not given.written
                first, by_function = named.get(given.name, (given, True))
                if first != given or (given.written and given.name in named) or not (shared or by_function):
                    said = f"two operands of the epilogue are named {given.name}"
                    raise PlanError(f"{said}: give one of them another name; functions may read one and the same")
                named[given.name] = given, shared and by_function

    def _as_json(self) -> str:
        try:
            return json.dumps({"steps": entry_of_steps(self.steps), **{name: getattr(self, name) for name in _FLAGS}})
        except TypeError:
            return ""

    @classmethod
    @constant_in_graphs
    @checked(PlanError)
    def from_json(cls, text: str) -> Epilogue:
        """The epilogue whose `json` is that text. Raises PlanError for another text.

        >>> steps = Epilogue(Bias(), Activation("relu"))
        >>> Epilogue.from_json(steps.json) == steps
        True
        """
        try:
            found = json.loads(text)
            kinds = {"steps": list, **_FLAGS}
            if not isinstance(found, dict) or {name: type(value) for name, value in found.items()} != kinds:
                raise PlanError(f"no epilogue's text: {text[:200]}")
            made = cls(*steps_of(found["steps"]), **{name: found[name] for name in _FLAGS})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise error if isinstance(error, PlanError) else PlanError(f"no epilogue's text: {text[:200]}") from None
        if made.json != text:
            raise PlanError(f"an epilogue's text is {text[:200]}, and that epilogue's is {made.json[:200]}")
        return made

    def _check_sums(self) -> None:
        """Raise PlanError for steps before a gate that are not of one sum."""
        if not 0 <= self.sums <= len(self.steps):
            raise PlanError(
                f"sums = {shown(self.sums)}: before a gate are 0 to {len(self.steps)} steps, all that there are"
            )
        if self.sums and self.flipped:
            raise PlanError(f"sums = {self.sums}: a gated product's operands do not change places")
        for step in self.steps[: self.sums]:
            if not isinstance(step, (Scale, VectorScale, Bias)):
                raise PlanError(f"sums = {self.sums}: before a gate are Scale, VectorScale and Bias, not {shown(step)}")
        for step in self.steps[self.sums :]:
            if (number := sum_of(step)) is not None:
                raise PlanError(f"of_sum = {number}: {shown(step)} is none of the {self.sums} steps before a gate")

    @classmethod
    def of(cls, given: object, gated: bool = False) -> Epilogue:
        """The epilogue of an argument: an Epilogue, a single step, or None. Raises PlanError for anything else.

        gated  whether the product has a gate, which steps may precede

        >>> Epilogue.of(Bias()) == Epilogue(Bias()), bool(Epilogue.of(None))
        (True, False)
        """
        if given is None or isinstance(given, Step):
            return cls(given) if given is not None else cls()
        if not isinstance(given, Epilogue):
            raise PlanError(refusal_of_type(given))
        if given.sums and not gated:
            raise PlanError(f"sums = {given.sums}: the epilogue's first steps are before a gate, and there is none")
        return given

    @classmethod
    @constant_in_graphs
    def named(cls, name: str, dtype: str = "bf16", order: str = "row") -> Epilogue:
        """An epilogue by its cuBLASLt name (cublasLtEpilogue_t, without the prefix). The bias is f32, one a row of C.

        dtype, order  of the AUX matrix, which holds what goes into the activation

        cuBLASLt keeps a mask of bits for RELU_AUX; here, as for GELU_AUX, it is the values.

        >>> [type(step).__name__ for step in Epilogue.named("GELU_AUX_BIAS").steps]
        ['Bias', 'Aux', 'Activation']
        """
        steps: list[Step] = []
        if not isinstance(name, str):
            raise PlanError(f"an epilogue is named by text, as in 'GELU_AUX_BIAS', not by {shown(name)}")
        parts = name.split("_")
        kinds = {"RELU": "relu", "GELU": "gelu_tanh", "DRELU": "relu", "DGELU": "gelu_tanh"}
        head, rest = (parts[0], parts[1:]) if parts[0] in kinds else ("", parts)
        if name != "DEFAULT" and (
            not set(rest) <= {"AUX", "BIAS"} or len(set(rest)) != len(rest) or (not head and rest != ["BIAS"])
        ):
            raise PlanError(
                f"epilogue {shown(name)}: known are DEFAULT, BIAS, RELU, GELU and these with _AUX, _BIAS or _AUX_BIAS, "
                "DRELU, DGELU"
            )
        if head.startswith("D"):
            if rest:
                raise PlanError(f"epilogue {shown(name)}: the bias's gradient is a sum along C, which is not fused")
            return cls(ActivationGradient(kinds[head], dtype, order))
        if "BIAS" in rest:
            steps.append(Bias("m"))
        if "AUX" in rest:
            steps.append(Aux(dtype, order))
        if head:
            steps.append(Activation(kinds[head]))
        return cls(*steps)

    @cached_property
    def given(self) -> tuple[EpilogueOperand, ...]:
        """Everything the steps need, in order. What several functions read is one operand.

        >>> label = EpilogueOperand("label", "n", "i32")
        >>> masked = Custom.of(lambda x, i, j, ops, label: ops.where(label < 0, 0.0, x), label)
        >>> Epilogue(masked, Activation("relu"), masked).words
        ('label', 'label_batch')
        """
        return tuple(dict.fromkeys(given for operands in self._operands for given in operands))

    @property
    def _operands(self) -> list[tuple[EpilogueOperand, ...]]:
        """Each step's operands. Vectors along N of a step before a gate have the columns of both sums."""
        return [
            tuple(
                replace(x, places=2) if at < self.sums and x.axes == "n" and sum_of(step) is None else x
                for x in step.taken
            )
            for at, step in enumerate(self.steps)
        ]

    @property
    def columns(self) -> int:
        """Columns that a tile has a multiple of. Those that share a scale, a result or a function.

        >>> Epilogue(RowReduce("max", "most", each=32), Quantize()).columns, Epilogue(Bias()).columns
        (128, 1)
        """
        return lcm(self.columns_together, *[step.each or 1 for step in self.reductions])

    @property
    def columns_together(self) -> int:
        """Columns whose results depend on each other. A thread has all sums of them before it stores one.

        >>> Epilogue(RowReduce("max", "most", each=32), Quantize()).columns_together, Epilogue(Bias()).columns_together
        (128, 1)
        """
        quantize = self.quantizes
        by_columns = quantize is not None and not isinstance(quantize, QuantizeRows)
        return lcm(quantize.each if quantize is not None and by_columns else 1, *[step.span for step in self.groups])

    @cached_property
    def groups(self) -> tuple[ColumnGroup, ...]:
        """The steps that are functions of groups of columns."""
        return tuple([step for step in self.steps if isinstance(step, ColumnGroup)])

    def check_columns(self, n: int, of: str = "C has") -> None:
        """Raise PlanError unless n columns are whole groups of every function of columns. `of`: whose they are.

        >>> Epilogue(ColumnGroup.of(lambda x, i, j, ops: (x[1], x[0]))).check_columns(7)
        Traceback (most recent call last):
            ...
        layoutgemm.errors.PlanError: a function of 2 columns: C has 7 columns, and a group spans 2: 3 * 2 and 1 more
        """
        for step in self.groups:
            if n % step.span:
                rest = f"{n // step.span} * {step.span} and {n % step.span} more"
                raise PlanError(f"{step}: {of} {n} columns, and a group spans {step.span}: {rest}")

    @cached_property
    def stages(self) -> tuple[tuple[ColumnGroup | None, tuple[Step, ...]], ...]:
        """The steps behind a gate as stages. A function of groups of columns, then steps on single elements.

        >>> swap = ColumnGroup.of(lambda x, i, j, ops: (x[1], x[0]))
        >>> [len(steps) for _, steps in Epilogue(Bias(), Scale(), swap, Activation("relu")).stages]
        [2, 1]
        """
        found: list[tuple[ColumnGroup | None, tuple[Step, ...]]] = [(None, ())]
        for step in self.steps[self.sums :]:
            if isinstance(step, ColumnGroup):
                found.append((step, ()))
            else:
                found[-1] = (found[-1][0], (*found[-1][1], step))
        return tuple(found)

    @cached_property
    def numbers(self) -> tuple[EpilogueOperand, ...]:
        """The operands that are numbers, given at a launch."""
        return tuple(given for given in self.given if given.host)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Names of the operands in memory that the steps read."""
        return tuple(given.name for given in self.given if not (given.host or given.written))

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """Names of the operands that the steps write."""
        return tuple(given.name for given in self.given if given.written)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Names of the kernel's parameters that carry them, and the workspace of partial results last."""
        return (*[word for given in self.given for word in given.words], *[WORKSPACE] * bool(self.partials))

    @cached_property
    def reductions(self) -> tuple[ReductionStep, ...]:
        """The steps that reduce."""
        return tuple(step for step in self.steps if isinstance(step, ReductionStep))

    @cached_property
    def ahead(self) -> tuple[tuple[ReductionStep, tuple[Step, ...]], ...]:
        """Reductions of whole rows from a largest value, and the steps before each. They may read all values first.

        Those steps are computed twice, so they are a few instructions each, and read no matrix or vector.

        >>> [len(before) for _, before in Epilogue(Scale(), RowReduce("argmax"), RowReduce("softmax")).ahead]
        [1, 1]
        >>> Epilogue(Activation("gelu"), RowReduce("argmax")).ahead, Epilogue(Bias(), RowReduce("argmax")).ahead
        ((), ())
        """
        found: list[tuple[ReductionStep, tuple[Step, ...]]] = []
        before: list[Step] = []
        for step in () if self.sums else self.stages[0][1]:
            if not isinstance(step, ReductionStep):
                if not _is_cheap(step):
                    break
                before.append(step)
            elif step.reduction.about is not None and step.axes == "m" and step.each is None:
                found.append((step, tuple(before)))
        return tuple(found)

    @cached_property
    def partials(self) -> tuple[ReductionStep, ...]:
        """Those whose results of tiles are combined by a second launch: they need a workspace."""
        return tuple(step for step in self.reductions if step.partial)

    @cached_property
    def unordered_sums(self) -> tuple[str, ...]:
        """Names of the sums that atomic instructions add in any order. Their bits differ from run to run.

        >>> steps = ColumnReduce("sum", "sums", ordered=False), ColumnReduce("max", "most", ordered=False)
        >>> Epilogue(*steps).unordered_sums
        ('sums',)
        """
        return tuple(
            given.name
            for step in self.reductions
            if not step.ordered and step.reduction.atomic == "sum"
            for given in step.given
        )

    @property
    def quantizes(self) -> Quantize | None:
        """The last step, where it gives 8-bit floats with scales."""
        last = self.steps[-1] if self.steps else None
        return last if isinstance(last, Quantize) else None

    def __bool__(self) -> bool:
        return bool(self.steps)

    @cached_property
    def _hashed(self) -> int:
        """A call looks for its kept launch by its epilogue: the steps are hashed once."""
        return hash(tuple(getattr(self, each.name) for each in fields(self) if each.compare))

    def __hash__(self) -> int:
        return self._hashed

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: hashes of text differ from process to process."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def named_given(self, name: str) -> EpilogueOperand:
        """An operand by its name."""
        return next(given for given in self.given if given.name == name)

    @cached_property
    def matrices(self) -> tuple[EpilogueOperand, ...]:
        """The matrices of C's shape that are read.

        >>> [matrix.name for matrix in Epilogue(Residual(), Bias(), Aux()).matrices]
        ['d']
        """
        return tuple(given for given in self.given if given.axes == "mn" and not given.written)

    @cached_property
    def read_in_lines(self) -> tuple[int, int]:
        """Matrices that are read in whole lines, and reductions of rows beside them. What a choice of tiles weighs.

        >>> Epilogue(Residual(), Bias()).in_pairs(lines=True).read_in_lines, Epilogue(Residual()).read_in_lines
        ((1, 0), (0, 0))
        """
        by_row = [matrix for matrix in self.matrices if matrix.order == "row"]
        if not (self.lines and by_row):
            return 0, 0
        return len(by_row), sum(step.axes == "m" for step in self.reductions)

    def in_pairs(self, pairs: bool = True, lines: bool = False, whole: int = 1) -> Epilogue:
        """The same for operands that lie as `pairs`, `lines` and `whole` say."""
        return Epilogue(
            *self.steps, flipped=self.flipped, pairs=pairs, stores_c=self.stores_c, sums=self.sums, lines=lines,
            whole=whole,
        )  # fmt: skip

    def has_whole_columns(self, columns: int) -> bool:
        """True if no column of a tile of so many lies outside of C. Of 0 none is known to lie inside.

        >>> [Epilogue(Bias()).in_pairs(whole=256).has_whole_columns(columns) for columns in (1, 128, 192)]
        [True, True, False]
        """
        return columns > 0 and self.whole % columns == 0

    def transposed(self) -> Epilogue:
        """The epilogue that does the same to the transposed C: for operands that change places."""
        steps = [step.transposed() for step in self.steps]
        return Epilogue(*steps, flipped=not self.flipped, pairs=False, stores_c=self.stores_c, sums=self.sums)

    def apply(self, x: Value, at: StepPlace) -> Value:
        """All steps on one element, or on a matrix of them. Of a gated product those behind the gate."""
        for step in self.steps[self.sums :]:
            x = step.apply(x, at)
        return x

    def apply_to_sum(self, x: Value, at: Value, number: int) -> Value:
        """The steps before a gate on one sum, or on a matrix of them.

        at      a StepPlace of the sum, or a SumPlace: these steps only read there
        number  0 or 1, which of the two sums it is
        """
        for step in self.steps[: self.sums]:
            if sum_of(step) in (None, number):
                x = step.apply(x, at)
        return x

    def reference(self, accumulator: npt.ArrayLike, **given: object) -> Outputs:
        """The same in NumPy, in float32. The accumulator is (M, N), or (batch, M, N), operands are by name.

        Vectors have shape (N,) or (M,), or (batch, ...); matrices C's shape. Raises PlanError for one that is missing,
        or is not the epilogue's, or has another shape, OperandError for one that is no number, or no array of numbers.

        >>> Epilogue(Bias(), Activation("relu")).reference(np.array([[1.0, -2.0]], np.float32), bias=[0.5, 0.5]).c
        array([[1.5, 0. ]], dtype=float32)
        """
        if self.sums:
            raise PlanError(f"sums = {self.sums}: steps before a gate, which `reference_of_sums` takes")
        return self._evaluated(_matrix_of(accumulator), None, given)

    def reference_of_groups(
        self, accumulator: np.ndarray, groups: Sequence[tuple[int, int]] | Sequence[int], gate: Gate | None = None, /,
        **given: object,
    ) -> Outputs:  # fmt: skip
        """The same for groups of rows. Columns are reduced in each group, and a vector along N may be one for each.

        groups  of (M, N) the (first row, end) of each; of (groups, M, N) the rows that count. Rows of no group are in
                no reduction, and their own results mean nothing
        gate    as `reference_of_sums` has it, whose accumulator this is then; or None

        Raises as `reference`, and PlanError for other groups.

        >>> sums = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
        >>> steps = Epilogue(Bias("n"), ColumnReduce("sum", "sums"))
        >>> steps.reference_of_groups(sums, [(0, 2), (2, 2)], bias=[[0, 0], [1, 1]]).written["sums"].tolist()
        [[4.0, 6.0], [0.0, 0.0]]
        """
        if self.sums and gate is None:
            raise PlanError(f"sums = {self.sums}: steps before a gate, which `reference_of_sums` takes")
        sums = _matrix_of(accumulator)
        return self._outputs(sums, gate, GroupedMatrix(self, _result(sums, gate), given, parts_of(sums.shape, groups)))

    def reference_of_sums(
        self, accumulator: np.ndarray, gate: Gate | None, visited: np.ndarray | None = None, /, **given: object
    ) -> Outputs:
        """The same for a gated product. Accumulator (M, 2N), or (batch, M, 2N), the gate's columns first.

        gate     both sums -> what is gated; None for no gate, and N columns
        visited  of an order of some tiles, the elements (M, N) that reductions combine; the rest of C means nothing

        >>> sums = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
        >>> Epilogue(Bias(), Scale(), sums=1).reference_of_sums(
        ...     sums, lambda both: both[0] * both[1], bias=[0.0, 1.0, 0.0, 1.0], alpha=2.0
        ... ).c.tolist()
        [[6.0, 30.0]]
        """
        return self._evaluated(_matrix_of(accumulator), gate, given, visited)

    def _evaluated(
        self, sums: np.ndarray, gate: Gate | None, given: Mapping[str, object], visited: np.ndarray | None = None
    ) -> Outputs:
        return self._outputs(sums, gate, EpilogueMatrix(self, _result(sums, gate), given, visited))

    def _outputs(self, sums: np.ndarray, gate: Gate | None, at: EpilogueMatrix) -> Outputs:
        """C and what is written, of sums at a place. Infinities and NaN come without NumPy's warnings."""
        with np.errstate(all="ignore"):
            if gate is not None:
                both = np.split(sums, 2, -1)
                done = [self.apply_to_sum(x, SumPlace(self, at, i), i) for i, x in enumerate(both)]
                sums = gate([np.broadcast_to(x, y.shape) for x, y in zip(done, both, strict=True)])
            c = self.apply(sums, at)
        return Outputs(np.broadcast_to(c, at.accumulator.shape), at.written)


def sum_of(step: Step) -> int | None:
    """Which of a gate's two sums a step is of, 0 or 1; None for both.

    >>> sum_of(Bias(of_sum=1)), sum_of(Bias()), sum_of(Activation("relu"))
    (1, None, None)
    """
    return step.of_sum if isinstance(step, (Scale, VectorScale, Bias)) else None


class SumPlace:
    """A place before a gate on whole matrices, NumPy's or torch's. Of vectors of both sums it reads one sum's half.

    number  of the sum, 0 or 1
    """

    def __init__(self, epilogue: Epilogue, at: StepPlace, number: int):
        self.epilogue, self.at, self.number, self.math = epilogue, at, number, at.math

    def read(self, name: str) -> Value:
        """An operand, to be broadcast along the sum."""
        found = self.at.read(name)
        if self.epilogue.named_given(name).places == 1:
            return found
        columns = found.shape[-1] // 2
        return found[..., self.number * columns : (self.number + 1) * columns]


def refusal_of_type(given: object) -> str:
    """Why an argument is no Epilogue, or "".

    >>> refusal_of_type("relu").partition(";")[0], refusal_of_type(Epilogue())
    ('epilogue is a str, not an Epilogue of layoutgemm.kernels.epilogue.chain', '')
    """
    if isinstance(given, Epilogue):
        return ""
    of_steps = "it is made of steps, as in Epilogue(Bias(), Custom.of(function))"
    return f"epilogue is a {type(given).__qualname__}, not an Epilogue of layoutgemm.kernels.epilogue.chain; {of_steps}"


def _is_cheap(step: Step) -> bool:
    """True for a few instructions on one element, without an operand in memory."""
    if any(not given.host for given in step.taken):
        return False
    if not isinstance(step, Custom):
        return isinstance(step, Scale)
    named = operations(step.expression)
    return len(named) <= _CHEAP_OPERATIONS and not set(named) & {*FUNCTIONS, "div", "mod", "floordiv"}


def _result(sums: np.ndarray, gate: Gate | None) -> np.ndarray:
    """A matrix of C's shape, for sums of it or of a gate."""
    return np.empty((*sums.shape[:-1], sums.shape[-1] // (1 if gate is None else 2)), np.float32)


def _matrix_of(accumulator: object) -> np.ndarray:
    """An accumulator as float32. Raises PlanError for one that is no matrix, and no batch of them."""
    with np.errstate(over="ignore"):  # beyond float32's range a kernel has infinities
        sums = numbers_of("accumulator", accumulator).astype(np.float32)
    if sums.ndim < 2:
        raise PlanError(f"accumulator has shape {sums.shape}; it is (M, N), or (batch, M, N)")
    return sums


__all__ = [
    "ACTIVATIONS",
    "GRADIENTS",
    "MAX_WORDS",
    "REDUCTIONS",
    "STEPS",
    "Activation",
    "ActivationGradient",
    "Amax",
    "Aux",
    "Bias",
    "Clamp",
    "ColumnGroup",
    "ColumnReduce",
    "Custom",
    "Dropout",
    "Epilogue",
    "EpilogueOperand",
    "Outputs",
    "Quantize",
    "Reduction",
    "ReductionStep",
    "Residual",
    "RowReduce",
    "Scale",
    "SeveralOutputs",
    "Step",
    "VectorScale",
    "refusal_of_type",
]
