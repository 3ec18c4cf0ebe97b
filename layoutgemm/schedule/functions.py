"""Orders that a user writes: a Python function of the tile's number, or a layout.

A function is called once with symbols, and what it computes is kept as an expression in `+ - * // % minimum`. The
expression is the kernel's code, and part of the name by which kernels are cached. NumPy evaluates the same expression.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from ..arguments import Integer, checked, is_int, shown
from ..errors import LayoutError, PlanError
from ..layouts import Layout
from ..layouts.proofs.digits import minimum as least
from ..layouts.proofs.index_formulas import prove_formulas
from ..layouts.proofs.prove import injective
from ..layouts.proofs.verdicts import Answer, Proof, Undecided
from ..layouts.symbols.facts import Facts
from ..layouts.symbols.generators import FactError
from ..lazy_numpy import np
from .tile_order import Grid, Linear, Minimum, Reads, Schedule, Tile, checked_grid

if TYPE_CHECKING:
    import numpy.typing as npt

# ("number",), ("rows",), ("columns",), ("row",), ("column",), ("word", name), ("int", value), or (operation, x, y).
Expression = tuple[Any, ...]
Operator = Callable[["TracedIndex", object], "TracedIndex"]
_MOST_INT = 1 << 31
_OF_NUMBER, _OF_GRID, _OF_TILE = (
    ("number", "rows", "columns"),
    ("rows", "columns"),
    ("row", "column", "rows", "columns"),
)
OPS_AT = len(_OF_NUMBER)  # the place of `ops` among the parameters of an order's function
_BINARY = ("+", "-", "*", "//", "%", "minimum")
_OPERATIONS = "+ - * // % and ops.minimum"


def _operators(name: str) -> tuple[Operator, Operator]:
    """An operation with a traced index on its left, and on its right."""
    return lambda self, other: _operation(name, self, other), lambda self, other: _operation(name, other, self)


class TracedIndex:
    """An integer that the kernel will know, as an expression."""

    __slots__ = ("expression",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expression: Expression):
        self.expression = expression

    def _known(self, *_: object) -> NoReturn:
        raise PlanError(f"an order's function is traced once for all tiles: its values take {_OPERATIONS} alone")

    __bool__ = __int__ = __index__ = __float__ = __iter__ = __len__ = _known
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _known
    __truediv__ = __rtruediv__ = __pow__ = __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = _known

    __add__, __radd__ = _operators("+")
    __sub__, __rsub__ = _operators("-")
    __mul__, __rmul__ = _operators("*")
    __floordiv__, __rfloordiv__ = _operators("//")
    __mod__, __rmod__ = _operators("%")


class OrderOperations:
    """The functions that an order's function may call."""

    @staticmethod
    def minimum(x: object, y: object) -> TracedIndex:
        """The smaller of two."""
        return _operation("minimum", x, y)


def _traced(value: object) -> TracedIndex:
    if isinstance(value, TracedIndex):
        return value
    if not is_int(value) or not -_MOST_INT <= int(value) < _MOST_INT:
        raise PlanError(f"an order is computed with 32-bit integers, not with {shown(value)}")
    return TracedIndex(("int", int(value)))


def _operation(name: str, x: object, y: object) -> TracedIndex:
    return TracedIndex((name, _traced(x).expression, _traced(y).expression))


def trace(function: Callable[..., object], names: tuple[str, ...], results: int, what: str) -> tuple[Expression, ...]:
    """The expressions of `function(*names, ops)`; the function may take fewer arguments.

    Raises PlanError where it does not return `results` integers, or fails.

    >>> trace(lambda t, rows: (t % rows, t // rows), ("number", "rows"), 2, "order")
    (('%', ('number',), ('rows',)), ('//', ('number',), ('rows',)))
    """
    try:
        parameters = tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # no function, or a class of Python's own
        raise PlanError(f"{what} = {shown(function)}: a function of {', '.join(names)}") from None
    taken = [TracedIndex((name,)) for name in names]
    words = parameters[len(names) + 1 :]
    given = [*taken, OrderOperations(), *[TracedIndex(("word", name)) for name in words]]
    try:
        found = function(*given[: len(parameters)])
    except LayoutError:
        raise
    except Exception as error:
        raise PlanError(
            f"the {what}'s function raised {type(error).__name__}: {error}. It is called once with "
            f"({', '.join(names)}, ops) that take {_OPERATIONS}"
        ) from error
    values = found if isinstance(found, tuple) else (found,)
    if len(values) != results:
        raise PlanError(f"the {what}'s function gives {results} integer(s), not {len(values)}")
    return tuple([_traced(value).expression for value in values])


def words_in(expressions: tuple[Expression, ...]) -> tuple[str, ...]:
    """The names of the words that expressions read, in order.

    >>> words_in((("+", ("number",), ("word", "rank")),))
    ('rank',)
    """
    found: dict[str, None] = {}
    for head, *rest in expressions:
        inner = (str(rest[0]),) if head == "word" else () if head == "int" else words_in(tuple(rest))
        found.update(dict.fromkeys(inner))
    return tuple(found)


def _of_32_bits(value: object, of: Expression) -> Any:
    """The value of a part of an expression. Raises PlanError for one that a kernel's integers do not hold."""
    if isinstance(value, (int, np.integer, np.ndarray)):
        beyond = np.extract((np.asarray(value) < -_MOST_INT) | (np.asarray(value) >= _MOST_INT), value)
        if beyond.size:
            raise PlanError(
                f"an order is computed with 32-bit integers, and its {shown(of)} reaches {shown(beyond.item(0))}"
            )
    return value


def evaluate(expression: Expression, at: Callable[[str], object], minimum: Minimum, reads: Reads | None = None) -> Any:
    """The value of an expression; `at` gives those of its names. Ints, arrays, forms or traced integers.

    Raises PlanError for a quotient of a negative integer or array: kernels round it towards zero; and for a part beyond
    32 bits, where they wrap.
    """
    head, *rest = expression
    if head == "int":
        return rest[0]
    if head == "word":
        if reads is None:
            raise PlanError(f"the order reads {rest[0]}, a kernel parameter, whose value is not given")
        return reads.word(rest[0])
    if not rest:
        return at(head)
    x, y = [_of_32_bits(evaluate(part, at, minimum, reads), part) for part in rest]
    if head in ("//", "%"):
        for value, least_value in ((x, 0), (y, 1)):
            if isinstance(value, (int, np.integer, np.ndarray)) and np.any(np.asarray(value) < least_value):
                raise PlanError(f"an order's {head} of {np.min(x)} and {np.min(y)}: the kernel's is of no negatives")
        return x // y if head == "//" else x % y
    if head == "minimum":
        return minimum(x, y)
    return x + y if head == "+" else x - y if head == "-" else x * y


def check_expression(parts: object, names: tuple[str, ...], words: bool) -> None:
    """Raise PlanError for an expression that no trace with these names gives.

    words  whether it may read words

    >>> check_expression(("int", 1 << 31), ("number",), words=False)
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: no part of an order's expression of number: ('int', 2147483648)
    """
    head, *rest = parts if isinstance(parts, tuple) and parts and isinstance(parts[0], str) else (None,)
    if head in _BINARY and len(rest) == 2:
        for part in rest:
            check_expression(part, names, words)
        return
    leaf = not rest and head in names
    if head == "int" and len(rest) == 1:
        leaf = rest[0].__class__ is int and -_MOST_INT <= rest[0] < _MOST_INT
    if head == "word" and len(rest) == 1:
        leaf = words and isinstance(rest[0], str) and rest[0].isidentifier()
    if not leaf:
        raise PlanError(f"no part of an order's expression of {', '.join(names)}: {shown(parts)}")


@dataclass(frozen=True)
class Formula(Schedule):
    """The tiles that a Python function of their number names, traced: `Formula.of(function)`.

    row, column  expressions of (number, rows, columns) of the grid, and of words
    tiles        how many tiles it visits, of (rows, columns); None: all of the grid
    visits       whether a tile (row, column, rows, columns) is to be visited: 1 or more, or 0; None: every one is
    """

    along: str = "M"
    row: Expression = ("number",)
    column: Expression = ("int", 0)
    tiles: Expression | None = None
    visits: Expression | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for expression, names, words in (
            (self.row, _OF_NUMBER, True), (self.column, _OF_NUMBER, True),
            (self.tiles, _OF_GRID, False), (self.visits, _OF_TILE, False),
        ):  # fmt: skip
            if expression is not None:
                check_expression(expression, names, words)
        if (self.tiles is None) != (self.visits is None):
            raise PlanError("an order of some of the tiles says how many, `tiles`, and which, `visits`")

    @classmethod
    def of(
        cls, function: Callable[..., object], tiles: Callable[..., object] | None = None,
        visits: Callable[..., object] | None = None,
    ) -> Formula:  # fmt: skip
        """The order of `function(number, rows, columns, ops, *words)`, which gives (row, column).

        function  in + - * // % and ops.minimum, of integers that are not negative where they are divided. It may take
                  fewer arguments; those after `ops` are kernel parameters, given by name at each launch
        tiles     (rows, columns, ops) -> how many tiles are visited, where it is not all of them; `visits` then says
                  which: (row, column, rows, columns, ops) -> 1, or 0

        Raises PlanError for a function that computes something else.

        >>> Formula.of(lambda t, rows, columns: (t // columns, t % columns)).table((2, 2)).tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1]]
        >>> Formula.of(lambda t, rows, columns: (t // columns, t % columns)).prove().ok
        True
        >>> below = Formula.of(  # all tiles but the first row's
        ...     lambda t, rows, columns: (1 + t // columns, t % columns), lambda rows, columns: (rows - 1) * columns,
        ...     lambda row, column, rows, columns, ops: ops.minimum(row, 1))
        >>> below.table((3, 2)).tolist()
        [[1, 0], [1, 1], [2, 0], [2, 1]]
        """
        row, column = trace(function, _OF_NUMBER, 2, "order")
        count = None if tiles is None else trace(tiles, _OF_GRID, 1, "number of tiles")[0]
        which = None
        if visits is not None:
            which = trace(visits, _OF_TILE, 1, "set of tiles")[0]
        if words := words_in(tuple(x for x in (count, which) if x is not None)):
            raise PlanError(f"the set of tiles reads {words[0]}: words decide the order alone")
        return cls("M", row, column, count, which)

    @property
    def words(self) -> tuple[str, ...]:
        """The kernel parameters that the function reads."""
        return words_in((self.row, self.column))

    @property
    def is_full(self) -> bool:
        """True if the order visits every tile of a grid."""
        return self.tiles is None

    @checked(PlanError)
    def count(self, grid: Grid, minimum: Minimum = least, reads: Reads | None = None) -> Any:
        """Tiles that are visited in a grid of (rows, columns)."""
        if self.tiles is None:
            return grid[0] * grid[1]
        return evaluate(self.tiles, {"rows": grid[0], "columns": grid[1]}.__getitem__, minimum)

    def visited(self, grid: tuple[int, int]) -> npt.NDArray[np.bool_]:
        """True for each tile (row, column) of a grid that is to be visited."""
        rows, columns = checked_grid(grid)
        if self.visits is None:
            return np.ones((rows, columns), dtype=bool)
        row, column = np.indices((rows, columns))
        of = {"rows": rows, "columns": columns, "row": row, "column": column}
        return np.broadcast_to(np.asarray(evaluate(self.visits, of.__getitem__, least)) > 0, (rows, columns))

    @checked(PlanError)
    def tile(self, number: Integer, grid: Grid, minimum: Minimum = least, reads: Reads | None = None) -> Tile:
        """The (row, column) visited as number `number` of a grid of (rows, columns) of tiles."""
        of = {"number": number, "rows": grid[0], "columns": grid[1]}
        row, column = (evaluate(x, of.__getitem__, minimum, reads) for x in (self.row, self.column))
        return row, column

    def prove(self) -> Answer:
        """A proof for every grid if the function is a proven order's, else Undecided.

        Proven orders are column by column and row by row. A plan's check looks at every tile of its grid otherwise.
        """
        if self.tiles is not None or self.words:
            return Undecided("some of the tiles, or an order that reads words: exhaustion over a grid decides")
        for known in (Linear("M"), Linear("N")):
            given = Facts()
            rows, columns = given["rows"], given["columns"]
            try:
                answer = prove_formulas(
                    lambda i, j, rows=rows, columns=columns, known=known: self.tile(
                        i + j * (rows if known.along == "M" else columns), (rows, columns)
                    ),
                    lambda i, j, known=known: (i, j) if known.along == "M" else (j, i),
                    {"i": rows if known.along == "M" else columns, "j": columns if known.along == "M" else rows},
                )
            except (LayoutError, FactError, TypeError):
                continue
            if isinstance(answer, Proof):
                return Proof("pieces, for every grid", (), (f"the function is {known}",))
        return Undecided("the function is not that of a proven order: exhaustion over a grid decides")


@dataclass(frozen=True)
class LayoutOrder(Schedule):
    """The tiles that a layout names. Its offsets are row + rows * column, or coordinates with strides 1@0 and 1@1.

    A static layout is an order of one grid, which has as many tiles as the layout has elements.

    >>> from layoutgemm.layouts import Layout
    >>> LayoutOrder(layout=Layout((2, 2), (2, 1))).table((2, 2)).tolist()  # row by row
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """

    along: str = "M"
    layout: Layout = field(default_factory=lambda: Layout(1))

    @checked(PlanError)
    def tile(self, number: Integer, grid: Grid, minimum: Minimum = least, reads: Reads | None = None) -> Tile:
        """The (row, column) visited as number `number` of a grid of (rows, columns) of tiles."""
        found = self.layout(number)
        if isinstance(found, tuple):
            row, column = (*found, 0)[:2]
            return row, column
        return found % grid[0], found // grid[0]

    @checked(PlanError)
    def table(self, grid: tuple[int, int]) -> npt.NDArray[np.int64]:
        """All tiles of a grid in their order: an array [number] of (row, column)."""
        self.check_grid(checked_grid(grid))
        return super().table(grid)

    @checked(PlanError)
    def check_grid(self, grid: tuple[int, int]) -> None:
        """Raise PlanError for a grid with another number of tiles."""
        checked_grid(grid)
        if self.layout.size != grid[0] * grid[1]:
            raise PlanError(
                f"order = {self.layout}: a layout of {self.layout.size} tiles orders a grid of as many, and this one "
                f"has {grid[0]} x {grid[1]} = {grid[0] * grid[1]}"
            )

    def prove(self) -> Answer:
        """Undecided for every grid. A layout is of one, whose tiles a plan's check looks at."""
        return Undecided(f"{self.layout} is the order of one grid: {injective(self.layout)}")
