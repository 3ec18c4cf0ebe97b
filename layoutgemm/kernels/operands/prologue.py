"""A function of A's elements before they are multiplied: C = f(A) @ B. Each element of A is computed on its way in.

    Prologue.of(lambda x, i, k, ops: ops.maximum(x, 0.0))                                   relu(A) @ B
    Prologue.of(lambda x, i, k, ops, rstd, w: x * rstd * w, rstd="m", w="k")                RMSNorm(A) @ B

The function is traced once. A's tiles come into shared memory as everywhere. Threads load their fragments, compute f in
f32, round to A's type, and multiply from registers: by wgmma in `sm90.device.prologue`, by mma.sync in
`sm80.device.prologue`. f is computed once for each tile of columns of C, and not once for each element.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...arguments import checked, settle, shown
from ...dtypes import DType, dtype
from ...errors import OperandError, PlanError
from ...graph_marks import constant_in_graphs
from ...memo import exact
from ..epilogue import tracing
from ..epilogue.matrix import numbers_of
from ..epilogue.numpy_math import Math
from ..numbers import check_matrix
from ..plan import PERSISTENT_PARAMETERS, tile_count

if TYPE_CHECKING:
    from ..derive import Operand

AXES = ("m", "k")  # of an operand: one number for each row of A, or for each of its columns
KINDS = ("f32", "bf16", "f16")  # of an operand
TYPES = ("bf16", "f16", "e4m3", "e5m2")  # of A


@dataclass(frozen=True, slots=True)
class PrologueOperand:
    """A vector that the function reads. A number for each row of A ("m"), or for each of its columns ("k")."""

    name: str
    axis: str
    dtype: DType

    if TYPE_CHECKING:  # the type may be given by its name

        def __init__(self, name: str, axis: str, dtype: DType | str) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise PlanError(f"an operand of a prologue is named {shown(self.name)}: no identifier")
        if self.name in PERSISTENT_PARAMETERS:
            raise PlanError(
                f"an operand of a prologue is named {shown(self.name)}, as a parameter of every kernel is: name "
                "it otherwise"
            )
        if not isinstance(self.axis, str) or self.axis not in AXES:
            raise PlanError(f"{self.name}: axis {shown(self.axis)}: 'm', a number a row of A, or 'k', one a column")
        object.__setattr__(self, "dtype", dtype(self.dtype))
        if self.dtype.name not in KINDS:
            raise PlanError(f"{self.name} is {self.dtype}; a prologue's operand is one of {', '.join(KINDS)}")

    @property
    def words(self) -> tuple[str, ...]:
        """The kernel's parameters: address, and elements from one matrix of a batch to the next."""
        return self.name, f"{self.name}_batch"

    @checked(PlanError)
    def shape(self, m: int, k: int, batch: int = 1) -> tuple[int, ...]:
        """Its shape for an A of m rows and k columns.

        >>> PrologueOperand("w", "k", "f32").shape(4, 8, 3)
        (3, 8)
        """
        return (*([batch] if batch > 1 else []), m if self.axis == "m" else k)

    @checked(PlanError)
    def shapes(self, sizes: tuple[int, int, int, int], shared: str = "") -> tuple[tuple[int, ...], ...]:
        """The shapes that it may have.

        sizes   (M, N, K, batch)
        shared  the axis of one A along which groups lie, whose numbers are theirs together: one vector along the other
                axis, or one for each group. "" for a batch, whose matrices have vectors of their own

        >>> PrologueOperand("w", "k", "f32").shapes((4, 4, 8, 3), shared="m")
        ((8,), (3, 8))
        """
        m, _, k, batch = sizes
        if not shared:
            return (self.shape(m, k, batch),)
        size = m if self.axis == "m" else k
        return ((size,),) if self.axis == shared else ((size,), (batch, size))


@dataclass(frozen=True)
class Prologue:
    """The function of A's elements; see `of`.

    expression  traced, in f32
    operands    the vectors that it reads, in the order of its parameters
    json        both as text, as `from_json` reads it. A field: torch.compile reads those of frozen classes
    """

    expression: tracing.Expression
    operands: tuple[PrologueOperand, ...] = ()
    json: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        settle(self, PlanError)
        object.__setattr__(self, "expression", exact(self.expression))
        operands = {operand.name: f"{operand.axis}:{operand.dtype}" for operand in self.operands}
        object.__setattr__(self, "json", tracing.as_json("a prologue", operands=operands, value=self.expression))

    @classmethod
    @checked(PlanError)
    def of(cls, function: Callable[..., object], **operands: str) -> Prologue:
        """The function (x, i, k, ops, *operands) -> value, called once with symbols.

        x is an element of A in f32, i and k its row and column, ops what it may call (see
        `kernels.epilogue.tracing.Operations`). The result is rounded to A's type.

        operands  vectors by the names of the function's further parameters: "m", f32 for each row; "k", for each
                  column; with a type, as in "k:bf16"

        Raises PlanError where the function does not take these arguments, or gives no number.

        >>> norm = Prologue.of(lambda x, i, k, ops, rstd, w: x * rstd * w, rstd="m", w="k:bf16")
        >>> norm.words, norm.reference(np.ones((1, 2), np.float32), {"rstd": [0.5], "w": [1.0, 4.0]}).tolist()
        (('rstd', 'rstd_batch', 'w', 'w_batch'), [[0.5, 2.0]])
        """
        found = _operands_of(operands)
        return cls(tracing.trace(function, tuple(operand.name for operand in found), ("i", "k")), found)

    def to_json(self) -> str:
        """The prologue as text, from which `from_json` makes an equal one.

        >>> Prologue.of(lambda x, i, k, ops, s: x * s, s="m").to_json()
        '{"operands": {"s": "m:f32"}, "value": ["mul", ["x"], ["given", "s"]]}'
        """
        return self.json

    @classmethod
    @constant_in_graphs
    @checked(PlanError)
    def from_json(cls, text: str) -> Prologue:
        """The prologue that `to_json` wrote. Raises PlanError for another text.

        >>> relu = Prologue.of(lambda x, i, k, ops: ops.maximum(x, 0.0))
        >>> Prologue.from_json(relu.to_json()) == relu
        True
        """
        try:
            found = json.loads(text)
            specs = found["operands"] if isinstance(found, dict) and set(found) == {"operands", "value"} else None
            if not isinstance(specs, dict):
                raise PlanError(f"no prologue's text: {text[:200]}")
            return cls(tracing.restored(found["value"], tuple(specs)), _operands_of(specs))
        except (ValueError, RecursionError) as error:
            raise error if isinstance(error, PlanError) else PlanError(f"no prologue's text: {text[:200]}") from None

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the kernel's further parameters."""
        return tuple(word for operand in self.operands for word in operand.words)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operands."""
        return tuple(operand.name for operand in self.operands)

    @checked(PlanError)
    def apply(self, x: object, at: PrologueElement) -> Any:
        """The value of one element. `at` gives i, j (the column), `read` and `math`, as for a step of an epilogue."""
        return tracing.evaluate(self.expression, x, at)

    @checked(PlanError)
    def reference(
        self, a: npt.NDArray[np.float32], given: Mapping[str, npt.ArrayLike] | None = None
    ) -> npt.NDArray[np.float32]:
        """f(A) in f32, before it is rounded. A is a matrix (M, K), or a batch.

        given  the operands by name

        >>> Prologue.of(lambda x, i, k, ops: ops.where(k < i, x, 0.0)).reference(np.ones((2, 2))).tolist()
        [[0.0, 0.0], [1.0, 0.0]]
        """
        check_matrix("a", a)
        rows, columns = np.arange(a.shape[-2])[:, None], np.arange(a.shape[-1])[None, :]
        values = {}
        for operand in self.operands:
            if operand.name not in (given or {}):
                raise PlanError(f"the operand {operand.name} is not given: {shown(tuple(given or {}))} are")
            value = np.asarray((given or {})[operand.name]).astype(np.float32)
            values[operand.name] = value[..., :, None] if operand.axis == "m" else value[..., None, :]
        with np.errstate(all="ignore"):
            found = self.apply(a.astype(np.float32), PrologueElement(rows, columns, values, Math))
        return np.broadcast_to(np.asarray(found, np.float32), a.shape)

    @checked(PlanError)
    def check(
        self, given: Mapping[str, object], sizes: tuple[int, int, int, int], shared: str = ""
    ) -> dict[str, npt.NDArray[np.float32]]:  # fmt: skip
        """NumPy operands by name, rounded to their types. Raises OperandError for one that does not fit.

        sizes, shared  as `PrologueOperand.shapes` has them
        """
        found = {}
        for operand in self.operands:
            value = np.asarray(numbers_of(operand.name, given[operand.name]))
            wanted = operand.shapes(sizes, shared)
            if value.shape not in wanted:
                of, want = "row" if operand.axis == "m" else "column", " or ".join(map(str, wanted))
                raise OperandError(
                    f"{operand.name} has shape {value.shape}: it takes {operand.dtype} of shape {want}, one for each "
                    f"{of} of a"
                )
            found[operand.name] = np.asarray(operand.dtype.decode(operand.dtype.encode(value)), np.float32)
        return found

    @property
    def operations(self) -> tuple[str, ...]:
        """The names of the function's operations."""
        return tracing.operations(self.expression)

    @property
    def text(self) -> str:
        """The function as text, of an element x, its row i and its column k."""
        return tracing.shown(self.expression, {"j": "k"})

    def __str__(self) -> str:
        read = f" of {', '.join(self.names)}" if self.operands else ""
        return f"A's elements by a function{read}"


def _operands_of(specs: Mapping[str, object]) -> tuple[PrologueOperand, ...]:
    """The operands of specifications such as "m" and "k:bf16", by name."""
    found = []
    for name, spec in specs.items():
        axis, _, kind = str(spec).partition(":")
        found.append(PrologueOperand(name, axis, dtype(kind or "f32")))
    return tuple(found)


class PrologueElement:
    """The place of an expression: row and column, operands, operations."""

    def __init__(self, i: object, j: object, values: Mapping[str, object], math: object):
        self.i, self.j, self.values, self.math = i, j, values, math

    def read(self, name: str) -> object:
        """An operand's value here. Raises PlanError for a name without one."""
        if name not in self.values:
            raise PlanError(f"{shown(name)} is read, and the operands are {shown(tuple(self.values))}")
        return self.values[name]


def check_chosen(prologue: Prologue) -> None:
    """Raise OperandError for a function of copied rows that reads a row's number."""
    if _reads(prologue.expression, "i"):
        raise OperandError(
            "rows and prologue: the function reads i, the number of a row, and rows that are copied first have others"
        )


def _reads(expression: object, name: str) -> bool:
    """True if an expression reads a coordinate.

    >>> _reads(("add", ("x",), ("to_float", ("i",))), "i"), _reads(("x",), "i")
    (True, False)
    """
    if not isinstance(expression, tuple):
        return False
    return expression == (name,) or any(_reads(part, name) for part in expression)


def check_types(prologue: object, a: Operand, b: Operand) -> None:
    """Raise PlanError for another object than a Prologue, and for other types than TYPES."""
    if not isinstance(prologue, Prologue):
        raise PlanError(f"prologue = {shown(prologue)}: a Prologue, made by Prologue.of")
    for name, operand in (("a", a), ("b", b)):
        if operand.dtype.name not in TYPES:
            why = "a function's results are rounded to A's type, and only floats of 8 and 16 bits are converted"
            raise PlanError(f"{name} is {operand.dtype}: a prologue is of {', '.join(TYPES)}; {why}")


def prologue_line(prologue: Prologue, a: DType, n: int, columns: int, warps: int = 1) -> str:
    """The function, where it is computed and how often.

    n, columns  of C and of a tile;   warps  along N that compute it alike
    """
    times = tile_count(n, columns) * warps
    each = f", by each of {warps} warps along N" if warps > 1 else ""
    return (
        f"prologue: a = {prologue.text}, rounded to {a}; in registers, {times} time(s) for "
        f"each element: once for each tile of {columns} columns{each}"
    )
