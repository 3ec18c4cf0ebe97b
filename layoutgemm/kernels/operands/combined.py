"""One element of C from several accumulators. C = f(A @ B0, A @ B1, ...), with one loop over A's tiles.

    Combined.of(lambda g, u, ops: g * ops.sigmoid(g) * u)                      SwiGLU of two weights
    Combined.of(lambda x, y, ops, s: x + s * y, numbers=("s",))                (A @ B0) + s * (A @ B1)

The function is traced once, and evaluated on a thread's accumulator registers. B's tile has as many columns of each
matrix, so that a thread's accumulator holds all sums of one element:

    matrix      rows of B's tile       a thread's accumulator
    ------      -------------------    ----------------------------
    B0          0 .. w                 value v
    B1          w .. 2 w               value v + count
    B2          2 w .. 3 w             value v + 2 count

w is the tile's N over the number of matrices, and count the accumulator's registers over that number. One wgmma
multiplies all of them. Each matrix has a tensor map, an address and a pitch of its own. `kernels.operands.gated` has
the form of two matrices in one, with a single map.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeAlias

from ...arguments import checked, refusal, settle, shown
from ...atoms import TmaPlan, smem_tile
from ...atoms.smem.tile import SPANS
from ...atoms.tma.derive import derive as derive_tma
from ...errors import OperandError, PlanError
from ...memo import exact, function_key
from ..derive import Operand, OperandPlan
from ..epilogue import tracing
from ..epilogue.places import Value
from ..epilogue.steps import ACTIVATIONS, check_activation

_LONGEST = 200  # characters of an error that is passed on
LEAST_MATRICES, MOST_MATRICES = 2, 4
LINE = SPANS["128B"]  # bytes of the widest span
# The refusal of a function of A @ B and A2 @ B2.
OF_ONE_A = (
    "combine= of two a takes b = ((b0, b1), (b2, b3)), for f(a[0] @ b0 + a[1] @ b2, a[0] @ b1 + a[1] @ b3). For a "
    "function of a[0] @ b0 and a[1] @ b1, let the second product's epilogue read the first one, as "
    "EpilogueOperand(name, 'mn', dtype)"
)


def sum_name(matrix: int) -> str:
    """The name of a matrix's sum in an expression."""
    return f"sum{matrix}"


@dataclass(frozen=True)
class Combined:
    """The function of the sums of several matrices B that makes one element of C. See `of`.

    expression  traced, in f32; the sums are named by `sum_name`
    matrices    sums that it takes
    numbers     names of the numbers that it takes, given at each launch
    json        all of these as text, as `from_json` reads it. A field: torch.compile reads those of frozen classes
    """

    expression: tracing.Expression
    matrices: int = LEAST_MATRICES
    numbers: tuple[str, ...] = ()
    json: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        settle(self, PlanError)
        object.__setattr__(self, "expression", exact(self.expression))
        text = tracing.as_json("sums", matrices=self.matrices, numbers=self.numbers, value=self.expression)
        object.__setattr__(self, "json", text)
        if not LEAST_MATRICES <= self.matrices <= MOST_MATRICES:
            raise PlanError(f"{self.matrices} matrices B: a kernel combines {LEAST_MATRICES} to {MOST_MATRICES}")

    @classmethod
    @checked(PlanError)
    def of(cls, function: Callable[..., object], matrices: int | None = None, numbers: Sequence[str] = ()) -> Combined:
        """The function (*sums, ops, *numbers) -> value, called once with symbols.

        matrices  number of sums; default the parameters before `ops`
        numbers   names of the parameters after `ops`

        Raises PlanError where the function does not take these arguments, or gives no number.

        >>> import numpy as np
        >>> from layoutgemm.kernels.epilogue.numpy_math import Math
        >>> both = Combined.of(lambda x, y, ops, s: x + s * y, numbers=("s",))
        >>> both.matrices, both.words, both.apply((np.float32(1), np.float32(2)), Math, {"s": np.float32(3)}).tolist()
        (2, ('b1', 'ldb1', 's'), 7.0)
        """
        count = sums_of(function) if matrices is None else matrices
        if not LEAST_MATRICES <= count <= MOST_MATRICES:
            raise PlanError(f"{count} matrices B: a kernel combines {LEAST_MATRICES} to {MOST_MATRICES}")
        names = tuple(numbers)
        check_parameters(function, count, names)

        def traced(x: object, i: object, j: object, ops: object, *values: object) -> object:
            return function(*values[:count], ops, **dict(zip(names, values[count:], strict=True)))

        return Combined(tracing.trace(traced, (*[sum_name(i) for i in range(count)], *names)), count, names)

    @classmethod
    @checked(PlanError)
    def from_json(cls, text: str) -> Combined:
        """The function whose `json` is that text. Raises PlanError for another text.

        >>> both = Combined.of(lambda x, y, ops, s: x + s * y, numbers=("s",))
        >>> Combined.from_json(both.json) == both
        True
        """
        try:
            found = json.loads(text)
            matrices, numbers = int(found["matrices"]), tuple(map(str, found["numbers"]))
            names = (*[sum_name(i) for i in range(matrices)], *numbers)
            made = Combined(tracing.restored(found["value"], names), matrices, numbers)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise error if isinstance(error, PlanError) else PlanError(f"no function's text: {text[:200]}") from None
        if made.json != text:
            raise PlanError(f"a function's text is {text[:200]}, and that function's is {made.json[:200]}")
        return made

    @property
    def separate(self) -> bool:
        """True if each matrix has an address of its own."""
        return True

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """Names of the kernel's parameters for each matrix after the first: (address, pitch in elements)."""
        return tuple((f"b{i}", f"ldb{i}") for i in range(1, self.matrices)) if self.separate else ()

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the kernel's further parameters: of matrices, then the numbers."""
        return (*[word for place in self.places for word in place], *self.numbers)

    @checked(PlanError)
    def apply(self, sums: Sequence[Value], math: object, numbers: Mapping[str, object] | None = None) -> Value:
        """One element, or matrices of them. `math` is a kernel's functions or NumPy's, as for a step of an epilogue."""
        if not isinstance(sums, (tuple, list)):
            raise PlanError(refusal(sums, "sums of Combined.apply", "a tuple of numbers"))
        values = {**{sum_name(i): x for i, x in enumerate(sums)}, **(numbers or {})}
        return tracing.evaluate(self.expression, None, tracing.Values(values, math))

    def __str__(self) -> str:
        return f"{self.matrices} matrices B combined"


Combine: TypeAlias = Callable[..., object] | Combined | str  # a function, or the name of a gate


def check_parameters(function: Callable[..., object], matrices: int, numbers: Sequence[str]) -> None:
    """Raise PlanError for a function that does not take the sums, `ops` and these numbers."""
    sums = [sum_name(i) for i in range(matrices)]
    try:
        inspect.signature(function).bind(*sums, "ops", **dict.fromkeys(numbers))
    except (TypeError, ValueError) as error:  # ValueError: a class or a function of Python's own
        taken = ", ".join((*sums, "ops", *numbers))
        said = error if len(str(error)) <= _LONGEST else f"names are {shown(tuple(numbers))}"
        raise PlanError(f"the function of the sums is called with ({taken[:_LONGEST]}): {said}") from None


def sums_of(function: Callable[..., object]) -> int:
    """The sums that a function takes: its parameters before `ops`. Raises PlanError for one without `ops`.

    >>> sums_of(lambda g, u, ops, s: g)
    2
    """
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        raise PlanError(f"a function of sums, ops and numbers: {error}") from None
    if "ops" not in names:
        raise PlanError(f"a function of ({', '.join(names)}): it takes the sums, then ops, then its numbers")
    return names.index("ops")


def refusal_of_matrices(b: object) -> str:
    """The reason why `b` is no tuple of two to four matrices, or ""."""
    if isinstance(b, (tuple, list)) and LEAST_MATRICES <= len(b) <= MOST_MATRICES:
        return ""
    what = f"{len(b)} matrices" if isinstance(b, (tuple, list)) else f"a {type(b).__qualname__}"
    return f"b is {what}: combine= takes a tuple of {LEAST_MATRICES} to {MOST_MATRICES} matrices"


def name_of_b(number: int, of_a: int, of_b: int) -> str:
    """The name of a matrix b in a call of so many a and b.

    >>> name_of_b(0, 1, 1), name_of_b(1, 2, 2), name_of_b(3, 2, 4)
    ('b', 'b[1]', 'b[1][1]')
    """
    sums = of_b // max(1, of_a)
    if of_b == 1:
        return "b"
    return f"b[{number // sums}][{number % sums}]" if of_a > 1 and sums > 1 else f"b[{number}]"


def refusal_of_pairs(b: object, of_a: int) -> str:
    """The reason why `b` is no tuple of two, each of as many matrices, or "". `of_a` is the number of matrices a.

    >>> refusal_of_pairs(((1, 2), (3, 4)), 2), refusal_of_pairs((1, 2), 2).partition(":")[0]
    ('', 'b is of int and int')
    """
    if of_a != 2:
        return f"a is {of_a} matrices: combine= takes one a, or two"
    each = list(b) if isinstance(b, (tuple, list)) else []
    tuples = len(each) == 2 and all(isinstance(x, (tuple, list)) for x in each)
    if tuples and len(each[0]) == len(each[1]):
        return refusal_of_matrices(each[0]).replace("b is", "b[0] is")
    of = " and ".join([f"{len(x)} matrices" if tuples else type(x).__qualname__ for x in each])
    return f"b is {'of ' + of if of else 'a ' + type(b).__qualname__}: {OF_ONE_A}"


def function_of(combine: Combine, matrices: int, numbers: tuple[str, ...]) -> Combined:
    """The function of a call, traced once for itself and the values that it reads.

    Raises OperandError for one that does not fit.

    >>> function_of("gelu", 2, ()).matrices, function_of(lambda x, y, ops, s: x - s * y, 2, ("s",)).numbers
    (2, ('s',))
    """
    try:
        if isinstance(combine, Combined):
            if (combine.matrices, combine.numbers) != (matrices, numbers) or not combine.separate:
                raise PlanError(f"combine takes {combine.matrices} matrices and {combine.numbers}, given are "
                                f"{matrices} and {numbers}")  # fmt: skip
            return combine
        key = function_key(combine)
        return (_traced if key else _traced.__wrapped__)(combine, matrices, numbers, *key[1:])
    except TypeError as error:  # without a hash
        raise OperandError(f"combine is a {type(combine).__qualname__}: a function, or the name of a gate") from error
    except PlanError as error:
        raise OperandError(str(error)) from error


_GATES = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}  # names of such products elsewhere


@lru_cache(256)
def _traced(combine: Callable[..., object] | str, matrices: int, numbers: tuple[str, ...], *read: Hashable) -> Combined:
    if not isinstance(combine, str):
        return Combined.of(combine, matrices, numbers)
    if (of_gate := _GATES.get(combine)) is not None:
        raise PlanError(f"combine = {shown(combine)}: combine={shown(of_gate)} is {of_gate}(a @ b[0]) * (a @ b[1])")
    check_activation(combine, "combine =")
    return Combined.of(lambda gate, up, ops: ACTIVATIONS[combine](gate, ops) * up, matrices, numbers)


def columns_of_each(b: Operand) -> int:
    """Columns that each matrix's share of a tile is a multiple of. Row-major matrices fill spans of 128 bytes.

    >>> [columns_of_each(Operand.parse(of)) for of in ("bf16:col", "bf16:row")]
    [8, 64]
    """
    return 8 if b.order == "col" else LINE // b.dtype.bytes


def check_combined(how: Combined, tile_n: int, split: int, b: Operand, tile: str = "a tile") -> None:
    """Raise PlanError, naming the obstacle, for a tile without a kernel of several sums. `tile` is its name."""
    unit = columns_of_each(b)
    if tile_n % (how.matrices * unit):
        of = f": its {b.order}-major lines fill spans of {LINE} bytes" if unit > 8 else ""
        raise PlanError(
            f"{tile} of {tile_n} columns, of {how.matrices} matrices B: a multiple of {how.matrices} * {unit}{of}"
        )
    if tile_n % (how.matrices * 8 * split):
        raise PlanError(
            f"a tile of {tile_n} columns, of {how.matrices} matrices B and {split} parts of K: a multiple of "
            f"{how.matrices} * 8 * {split}"
        )


def side_by_side(operand: OperandPlan, matrices: int) -> OperandPlan:
    """B's tile with copies from `matrices` matrices. Each fills as many of its rows, by a tensor map of its own.

    >>> from layoutgemm.atoms import wgmma
    >>> from layoutgemm.kernels.derive import derive_operand
    >>> whole = derive_operand("B", Operand.parse("bf16:col"), "N", 96, 64, None, wgmma(96))
    >>> three = side_by_side(whole, 3)
    >>> [(tma.box, tma.instructions[0].smem_offset) for tma in three.copies]
    [((64, 32), 0), ((64, 32), 4096), ((64, 32), 8192)]
    """
    tile, dims = operand.unit_tile, operand.tma.dims
    width = tile.extent[0] // matrices
    part = derive_tma(smem_tile((width, tile.extent[1]), tile.dtype, tile.major, tile.swizzle_name), (dims[0], dims[1]))
    first, *others = [_moved(operand, part, i * width) for i in range(matrices)]
    return replace(operand, tma=first, rest=None, others=tuple(others))


def _moved(operand: OperandPlan, part: TmaPlan, first: int) -> TmaPlan:
    """The copies of a part, to the rows of the whole tile from `first` on."""
    moved = []
    for copy in part.instructions:
        at = dict(zip(part.dims, copy.coord_offset, strict=True))
        moved.append(replace(copy, smem_offset=int(operand.unit_tile.byte(first + at["n"], at["k"]))))
    return replace(part, instructions=tuple(moved))
