"""Main loops that do more than add. Each K block is summed afresh, and a user's arithmetic makes the next total of it.

    Promoted.of(lambda total, product, scale_a, scale_b: total + scale_a * scale_b * product,
                Table("scale_a", "m"), Table("scale_b", "n", 128))

The tensor core sums one K block of `depth` elements in registers of its own (`product`), every thread then computes the
total of each of its elements, in f32 registers. The function also reads tables of f32 in global memory: a
number for each K block and every `group` rows of A, or columns of B.

So 8-bit floats are multiplied with a scale for each 1 x 128 of A and 128 x 128 of B (DeepSeek-V3 Technical Report,
3.3.2). The loss of the tensor core's short sums of 8-bit products is bounded, since no more than `depth` of them are
added without an f32 in between.

A gated product's tile has columns of two places of B, so its numbers of columns are of two places of their table:

    columns of the tile    columns of B              numbers of `scale_b`, of `group` columns each
    -------------------    ----------------------    ---------------------------------------------
    0 .. w         gate    n .. n + w                (n .. n + w) / group
    w .. 2 w       up      H + n .. H + n + w        (H + n .. H + n + w) / group

H is C's columns. Where it is no multiple of the group, up's numbers change within the tile: see `Table.unit`. Of
several matrices B each has numbers of its own, one matrix's behind another's: see `Table.matrices`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...arguments import as_int, checked, settle, shown
from ...errors import OperandError, PlanError
from ...memo import exact
from ..epilogue import tracing
from ..epilogue.numpy_math import Math
from ..epilogue.parameters import check_names
from ..epilogue.places import OperandPlace, Value
from ..numbers import W, check_broadcast, check_product, float_type
from ..plan import tile_count
from .combined import Combined

TOTAL = "total"
DEPTH = 128  # elements of K in a K block, unless a main loop says otherwise
NUMBER_BYTES = 4  # of a table's f32
SPANS = (1, 4)  # K blocks whose numbers one copy of a slot brings: 4 or 16 bytes (PTX ISA, "cp.async")


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers that a promotion reads, f32 in global memory. One for each K block, and every `group` rows or columns.

    axis   "m": rows of A; "n": columns of B
    group  how many of them share a number. A tile's columns need not be a multiple of it: see `segment`
    unit   of a gated product: a divisor of its columns, which the plan derives; 0 for others. See `in_halves`
    matrices  B's whose numbers follow each other, each from a group of its own; the plan derives it of several B

    Its shape is (groups, K blocks), or (batch, groups, K blocks); any strides.
    """

    name: str
    axis: str
    group: int = 1
    unit: int = 0
    matrices: int = 1

    def __post_init__(self) -> None:
        settle(self, PlanError)
        if self.axis not in ("m", "n"):
            raise PlanError(f"{self.name}: axis {shown(self.axis)}: 'm', rows of A, or 'n', columns of B")
        as_int(self.group, f"the group of {self.name}", PlanError, least=1)
        as_int(self.unit, f"the unit of {self.name}", PlanError, least=0)
        as_int(self.matrices, f"the matrices of {self.name}", PlanError, least=1)

    @property
    def words(self) -> tuple[str, ...]:
        """The kernel's parameters. Address, then elements from group to group, from K block to K block, and from one
        matrix of a batch to the next."""
        return self.name, f"{self.name}_group", f"{self.name}_k", f"{self.name}_batch"

    @checked(PlanError)
    def segment(self, tile: int) -> int:
        """Columns of a tile of `tile` columns that share a number wherever the tile lies.

        tile  of a gated product: those of one half

        >>> [Table("scale_b", "n", 128).segment(tile) for tile in (64, 128, 192, 160)]
        [64, 128, 64, 32]
        """
        return math.gcd(self.group, tile, self.unit)

    @checked(PlanError)
    def in_halves(self, columns: int, width: int) -> Table:
        """The table of a gated product, whose second half begins `columns` on.

        width  columns of each half in a tile

        >>> table = Table("scale_b", "n", 128)
        >>> [table.in_halves(columns, 64).segment(64) for columns in (256, 192, 88, 7)]
        [64, 64, 8, 1]
        """
        return self if self.axis == "m" else replace(self, unit=math.gcd(self.group, width, columns))

    @checked(PlanError)
    def of_matrices(self, matrices: int) -> Table:
        """The table of several matrices B: each one's numbers begin at a group.

        >>> Table("scale_b", "n", 128).of_matrices(3).shape(200, 300, 7)
        (9, 7)
        """
        return self if self.axis == "m" else replace(self, matrices=matrices)

    @property
    def said(self) -> str:
        """The rows or columns that share a number, in words."""
        things = "row of A" if self.axis == "m" else "column of B"
        things = things if self.group == 1 else f"{self.group} {things.replace(' of', 's of')}"
        return f"a number for every {things} and K block"

    @checked(PlanError)
    def shape(self, m: int, n: int, k_blocks: int) -> tuple[int, int]:
        """(groups, K blocks). `n`: columns of each matrix B.

        >>> Table("scale_b", "n", 128).shape(200, 300, 7)
        (3, 7)
        """
        return -(-(m if self.axis == "m" else n) // self.group) * self.matrices, k_blocks


@dataclass(frozen=True)
class Promoted:
    """total = expression(total, product, tables) for each K block of `depth` elements; see `of`."""

    expression: tracing.Expression
    tables: tuple[Table, ...] = ()
    depth: int = DEPTH
    span: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "expression", exact(self.expression))

    @classmethod
    @checked(PlanError)
    def of(cls, function: Callable[..., object], *tables: Table, depth: int = DEPTH, span: int = 1) -> Promoted:
        """The main loop total = function(total, product, *tables), from 0, over K blocks.

        The function is traced: called once with symbols, which take + - * / and comparisons. depth is in elements, and
        is the kernel's k tile: the last one of a K that it does not divide is filled up with zeros.

        span  K blocks whose numbers are copied and read together, 1 or 4. Of 4 the tables lie with K blocks contiguous,
              every 4 at a multiple of 16 bytes

        Raises PlanError when the function gives no number, or two tables have one name.

        >>> loop = Promoted.of(lambda total, product, s: total + s * product, Table("s", "m"))
        >>> loop.apply(np.float32(1), np.float32(10), {"s": np.float32(0.5)}).tolist()
        6.0
        """
        for table in tables:
            if not isinstance(table, Table):
                raise PlanError(f'a table of the main loop is {shown(table)}: a Table, as in Table("scale_a", "m")')
        names = [table.name for table in tables]
        if len({TOTAL, *names}) <= len(names):
            raise PlanError(f"tables named {', '.join(names)}: each has a name of its own, and none is {shown(TOTAL)}")
        if span not in SPANS:
            raise PlanError(f"span = {shown(span)}: one of {SPANS}, the K blocks whose numbers come together")
        traced = tracing.trace(lambda x, i, j, ops, total, *more: function(total, x, *more), (TOTAL, *names))
        return cls(traced, tables, depth, span)

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the kernel's parameters that say where the tables lie."""
        return tuple(word for table in self.tables for word in table.words)

    @checked(PlanError)
    def of_sums(self, how: Combined | None, columns: int, tile: int) -> Promoted:
        """The main loop of a function of several sums. Its tables are `in_halves`, or `of_matrices`.

        columns  of C
        tile     columns of B's tile
        """
        if how is None:
            return self
        tables = [
            table.of_matrices(how.matrices) if how.separate else table.in_halves(columns, tile // how.matrices)
            for table in self.tables
        ]
        return replace(self, tables=tuple(tables))

    @property
    def adds(self) -> bool:
        """True if the next total is the total plus a term without it.

        >>> Promoted.of(lambda total, product: total + 2 * product).adds, Promoted.of(lambda t, x: 0.5 * t + x).adds
        (True, False)
        """
        head, *terms = self.expression
        total = ("given", TOTAL)
        return head == "add" and sorted(_occurs(total, term) for term in terms) == [False, True] and total in terms

    @property
    def is_symmetric(self) -> bool:
        """True if A's and B's tables, in their order, may be exchanged.

        Total (i, j) then is total (j, i) of B and A.

        >>> mainloop_of((1, 1)).is_symmetric, mainloop_of((1, 128)).is_symmetric, mainloop_of(()).is_symmetric
        (True, False, True)
        """
        rows, columns = ([table for table in self.tables if table.axis == axis] for axis in "mn")
        if [table.group for table in rows] != [table.group for table in columns]:
            return False
        other = {x.name: y.name for each in zip(rows, columns) for x, y in (each, each[::-1])}
        return _sorted(self.expression, {}) == _sorted(self.expression, other)

    @checked(PlanError)
    def evaluate(self, product: Value, at: OperandPlace) -> Value:
        """The next total of one element. `at.read` gives the total and the tables' values, `at.math` operations."""
        return tracing.evaluate(self.expression, product, at)

    @checked(PlanError)
    def apply(self, total: Value, product: Value, values: dict[str, Value]) -> Value:
        """The same in NumPy. Infinities and NaN come without its warnings, as from a kernel."""
        check_broadcast({"total": total, "product": product, **values})
        with np.errstate(all="ignore"):
            return self.evaluate(product, tracing.Values({TOTAL: total, **values}, Math))

    @checked(PlanError)
    def reference(
        self, a: npt.NDArray[Any], b: npt.NDArray[Any], kind: Any = np.float64, **tables: npt.NDArray[Any]
    ) -> npt.NDArray[Any]:
        """The result by definition: (M, K) and (K, N), or batches of them, in `kind`.

        >>> ones = np.ones((2, 256)), np.ones((256, 2))
        >>> Promoted.of(lambda t, x, s: t + s * x, Table("s", "m", 2)).reference(*ones, s=np.array([[1, 3]])).tolist()
        [[512.0, 512.0], [512.0, 512.0]]
        """
        kind = float_type(kind)
        check_product(a, b)
        m, n, k = a.shape[-2], b.shape[-1], a.shape[-1]
        total = np.zeros((*a.shape[:-1], n), kind)
        for number, first in enumerate(range(0, k, self.depth)):
            block = slice(first, first + self.depth)
            with np.errstate(all="ignore"):  # infinite elements
                product = a[..., block].astype(kind) @ b[..., block, :].astype(kind)
            values = {}
            for table in self.tables:
                if table.name not in tables:
                    raise PlanError(f"the table {table.name} is not given: {', '.join(tables) or 'none'} is")
                of_block = np.asarray(tables[table.name], kind)[..., number]
                each = np.repeat(of_block, table.group, -1)[..., : m if table.axis == "m" else n]
                values[table.name] = each[..., :, None] if table.axis == "m" else each[..., None, :]
            total = self.apply(total, product, values)
        return total

    @checked(PlanError)
    def expected(
        self, given: Mapping[str, object], sizes: tuple[int, int, int, int], ragged: bool = False
    ) -> list[tuple[Table, tuple[int, ...]]]:
        """Each table with the shape that it takes. Raises OperandError for one that is missing, or one too many.

        sizes   (M, N, K, batch)
        ragged  groups whose rows are joined: A's tables have no batch, and B's always
        """
        check_names([table.name for table in self.tables], given, "the main loop reads", "table")
        m, n, k, batch = sizes
        fronts = {"m": (batch,) if batch > 1 and not ragged else (), "n": (batch,) if batch > 1 or ragged else ()}
        return [(table, (*fronts[table.axis], *table.shape(m, n, -(-k // self.depth)))) for table in self.tables]

    @checked(PlanError)
    def check(
        self, given: Mapping[str, object], sizes: tuple[int, int, int, int], ragged: bool = False
    ) -> dict[str, npt.NDArray[Any]]:
        """The tables of `given` as arrays, by name. Raises OperandError for a wrong shape or type."""
        found = {}
        for table, want in self.expected(given, sizes, ragged):
            value = found[table.name] = np.asarray(given[table.name])
            if value.shape != want or value.dtype.name != "float32":
                raise OperandError(
                    f"{table.name} is {value.dtype} of shape {value.shape}: it takes float32 of shape {want}, "
                    f"{table.said}"
                )
        return found


def columns_between(table: Table, columns: W) -> W:
    """Columns from one sum's first number to the next sum's. An int or a traced integer.

    columns  of C

    >>> table = Table("scale_b", "n", 128)
    >>> columns_between(table, 300), columns_between(table.of_matrices(2), 300)
    (300, 384)
    """
    return columns if table.matrices == 1 else tile_count(columns, table.group) * table.group


def as_promoted(loop: object) -> Promoted:
    """A main loop that was given. Raises PlanError for any other object.

    >>> as_promoted(1.5)
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: mainloop = 1.5: a Promoted, made by Promoted.of
    """
    if not isinstance(loop, Promoted):
        raise PlanError(f"mainloop = {shown(loop)}: a Promoted, made by Promoted.of")
    return loop


def _occurs(part: tracing.Expression, expression: object) -> bool:
    """True if an expression is, or has among its operands, that part."""
    return expression == part or (isinstance(expression, tuple) and any(_occurs(part, x) for x in expression))


def _sorted(expression: object, other: Mapping[str, str]) -> object:
    """An expression whose operands of sums and products are sorted. `other` renames its tables."""
    if not isinstance(expression, tuple):
        return expression
    head, *operands = expression
    if head == "given":
        return head, other.get(operands[0], operands[0])
    found = [_sorted(each, other) for each in operands]
    return head, *(sorted(found, key=repr) if head in ("add", "mul") else found)


def widest_span(k: int) -> int:
    """The K blocks whose numbers may come together, for a K of `k` elements.

    >>> widest_span(1024), widest_span(640)
    (4, 1)
    """
    return next(span for span in reversed(SPANS) if k % (DEPTH * span) == 0 or span == 1)


def lie_together(strides: tuple[int, ...], address: int, span: int = SPANS[-1]) -> bool:
    """True if numbers of `span` K blocks are neighbours, at a multiple of their bytes.

    strides  in numbers, that of K blocks last
    address  in bytes

    >>> lie_together((56, 1), 256), lie_together((1, 4096), 256), lie_together((55, 1), 256), lie_together((56, 1), 8)
    (True, False, False, False)
    """
    return strides[-1] == 1 and not any(x % span for x in strides[:-1]) and address % (span * NUMBER_BYTES) == 0


def said(expression: tracing.Expression, inside: bool = False) -> str:
    """An expression as text.

    >>> said(Promoted.of(lambda total, product, s: total + s * product, Table("s", "m")).expression)
    'total + (s * product)'
    """
    return tracing.shown(expression, {"x": "product"}, inside)


@checked(PlanError)
def mainloop_of(groups: tuple[int, ...], span: int = 1) -> Promoted:
    """The main loop of a product with scales.

    groups  rows of A, and columns of B where it has scales, that share one; () for a loop that only adds
    span    K blocks whose scales come together: see `Promoted.of`

    >>> [table.name for table in mainloop_of((1, 128)).tables]
    ['scale_a', 'scale_b']
    """
    if not groups:
        return Promoted.of(lambda total, product: total + product, depth=DEPTH)
    if len(groups) == 1:
        only = Table("scale_a", "m", groups[0])
        return Promoted.of(lambda total, product, a: total + a * product, only, depth=DEPTH, span=span)
    tables = Table("scale_a", "m", groups[0]), Table("scale_b", "n", groups[1])
    return Promoted.of(lambda total, product, a, b: total + a * b * product, *tables, depth=DEPTH, span=span)
