"""Tile orders: schedules as layouts, proven to visit every output tile once.

A schedule maps a tile's number in time to its (row, column) in a grid of tiles. Its formula uses `+ - * // % minimum`
alone, so it takes ints, arrays, and the traced integers of a kernel. Its *pieces* say the same as layouts: at which
numbers a piece starts and how they step, and which tiles those are. `Schedule.prove` shows for every grid at once that
the formula is those pieces and that the pieces meet each tile once. `visits_once` looks at every tile of one grid, for
any order whatever.

Sources: the grouped order is that of Triton's matrix multiplication tutorial, "L2 Cache Optimizations" (GROUP_M);
CUTLASS has it as GemmIdentityThreadblockSwizzle, and both rasters in PersistentTileSchedulerSm90. The Hilbert curve is
D. Hilbert's, Mathematische Annalen 38.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..arguments import Integer, checked, refusal, settle, shown
from ..errors import PlanError
from ..layouts import E, Layout
from ..layouts.display import HasPicture
from ..layouts.int_tuple import ENUMERABLE
from ..layouts.proofs.digits import minimum as least
from ..layouts.proofs.index_formulas import prove_formulas
from ..layouts.proofs.prove import disjoint, injective
from ..layouts.proofs.verdicts import Answer, CounterExample, Proof, Undecided
from ..layouts.symbols.facts import Facts
from ..layouts.symbols.polynomial import Scalar, ge0, show
from ..lazy_numpy import np
from ..report import Check

if TYPE_CHECKING:
    import numpy.typing as npt


class Reads(Protocol):
    """The values of an order's words, on the host or in a kernel."""

    def word(self, name: str) -> Any:
        """The word of that name, as an integer."""

    def entry(self, name: str, index: object) -> Any:
        """Number `index` of the 32-bit integers in the array of that name."""


Tile = tuple[Any, Any]  # the row and column of a tile: of each kind of Integer
Grid = tuple[Integer, Integer]  # how many rows and columns of tiles
Minimum = Callable[..., Integer]
MOST_GROUP = 1 << 15  # rows: times a grid's columns, kernels compute them with 32-bit integers


class SchedulePiece(NamedTuple):
    """Some tiles of a schedule. Number start + index(c) is the tile corner + tile(c), for every coordinate c.

    `index` and `tile` have one shape; `tile` has coordinate strides, 1@0 for a row and 1@1 for a column.
    """

    start: Scalar
    index: Layout
    corner: Tile
    tile: Layout

    def __str__(self) -> str:
        corner = ", ".join(map(show, self.corner))
        return f"numbers {show(self.start)} + {self.index} are tiles ({corner}) + {self.tile}"


class GridCase(NamedTuple):
    """A kind of grid, with symbols for its sizes. What is known of them, the grid, and the pieces there."""

    name: str
    rows: Scalar
    columns: Scalar
    group: Integer
    pieces: list[SchedulePiece]


@dataclass(frozen=True)
class Schedule(HasPicture):
    """An order of the tiles of any grid."""

    @property
    def along(self) -> str:
        """ "M" or "N": the dimension that runs fastest (within a group, where there are groups)."""
        return "M"

    def __post_init__(self) -> None:
        if not isinstance(self.along, str) or self.along not in ("M", "N"):
            raise PlanError(f'a schedule runs along "M" or "N", not {shown(self.along)}')

    # A subclass gives the rule for along = "M", and the cases of its proof; N is M with the two exchanged.

    def _tile(self, number: Integer, rows: Integer, columns: Integer, group: Integer, minimum: Minimum) -> Tile:
        raise NotImplementedError

    def _cases(self) -> Iterator[GridCase]:
        raise NotImplementedError

    @property
    def _group(self) -> int:
        return 1

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the kernel parameters that the order reads, of 64 bits each."""
        return ()

    @property
    def is_full(self) -> bool:
        """True if the order visits every tile of a grid."""
        return True

    @property
    def has_formula(self) -> bool:
        """True if a kernel computes a number's tile; False if it reads a list."""
        return True

    def on(self, tile: tuple[int, int]) -> Schedule:
        """The order for tiles of (rows, columns) elements of C. The same, where the elements decide nothing."""
        return self

    @checked(PlanError)
    def count(self, grid: Grid, minimum: Minimum = least, reads: Reads | None = None) -> Any:
        """Tiles that are visited in a grid of (rows, columns).

        >>> Linear().count((3, 4))
        12
        """
        return grid[0] * grid[1]

    def visited(self, grid: tuple[int, int]) -> npt.NDArray[np.bool_]:
        """True for each tile (row, column) of a grid that is to be visited."""
        return np.ones(checked_grid(grid), dtype=bool)

    @checked(PlanError)
    def tile(self, number: Integer, grid: Grid, minimum: Minimum = least, reads: Reads | None = None) -> Tile:
        """The (row, column) visited as number `number` of a grid of (rows, columns) of tiles.

        minimum  stands in for traced integers, which Python's own does not take
        reads    values of the order's `words`, of an order that has any
        """
        if any(isinstance(extent, int) and extent < 1 for extent in grid):
            raise PlanError(f"a grid of tiles has two extents of 1 or more, not {shown(grid)}")
        if self.along == "M":
            return self._tile(number, grid[0], grid[1], self._group, minimum)
        column, row = self._tile(number, grid[1], grid[0], self._group, minimum)
        return row, column

    @checked(PlanError)
    def table(self, grid: tuple[int, int]) -> npt.NDArray[np.int64]:
        """All tiles of a grid in their order: an array [number] of (row, column)."""
        rows, columns = checked_grid(grid)
        numbers = np.arange(int(self.count((rows, columns))))
        _, row, column = np.broadcast_arrays(numbers, *self.tile(numbers, (rows, columns)))
        return np.stack((row, column), axis=1).astype(np.int64)

    def prove(self) -> Answer:
        """Check that every tile of every grid is visited exactly once, for every group size."""
        every = ((f"{case.name}: {text}", a) for case in self._cases() for text, a in _statements(self, case))
        return all_proven(every, "pieces, for every grid")


@dataclass(frozen=True)
class Linear(Schedule):
    """Column by column (along = "M"), or row by row.

    >>> Linear().table((2, 3)).tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]
    >>> Linear("N").prove().ok
    True
    """

    along: str = "M"

    def _tile(self, number: Integer, rows: Integer, columns: Integer, group: Integer, minimum: Minimum) -> Tile:
        return number % rows, number // rows

    def _cases(self) -> Iterator[GridCase]:
        given = Facts()
        rows, columns = given["rows"], given["columns"]
        whole = Layout((rows, columns))
        yield GridCase(
            "any grid", rows, columns, 1, [SchedulePiece(0, whole, (0, 0), Layout(whole.shape, (E(0), E(1))))]
        )


@dataclass(frozen=True)
class Grouped(Schedule):
    """Groups of `group` rows, each walked column by column. The last group has the rows that are left.

    along       "M": groups of rows; "N": groups of columns, each walked row by row
    group       rows of a group
    serpentine  every second group walks its columns backwards, so that the next group begins where the last one ended

    Raises PlanError for a group below 1 or above `MOST_GROUP`.

    >>> Grouped(group=2).table((3, 2)).tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1], [2, 0], [2, 1]]
    >>> Grouped(group=2, serpentine=True).table((3, 2)).tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1], [2, 1], [2, 0]]
    >>> Grouped(group=8).prove().method
    'pieces, for every grid'
    """

    along: str = "M"
    group: int = 8
    serpentine: bool = False

    def __post_init__(self) -> None:
        settle(self, PlanError)
        super().__post_init__()
        if not 1 <= self.group <= MOST_GROUP:
            raise PlanError(f"a group of tiles has 1 to {MOST_GROUP} rows, not {shown(self.group)}")

    @property
    def _group(self) -> int:
        return self.group

    def _tile(self, number: Integer, rows: Integer, columns: Integer, group: Integer, minimum: Minimum) -> Tile:
        nth = number // (group * columns)
        inside = number % (group * columns)
        first = nth * group
        height = minimum(rows - first, group)
        column = inside // height
        if self.serpentine:
            column = column + nth % 2 * (columns - 1 - 2 * column)
        return first + inside % height, column

    def _cases(self) -> Iterator[GridCase]:
        # One group at most; full groups; full groups and a last one. Serpentine: by pairs of groups, one left over or
        # not, so that each piece walks one way.
        yield self._case("less than one group", Facts("G > rows"), 0)
        if not self.serpentine:
            yield self._case("full groups", Facts("rows == G*q"), "q")
            yield self._case("full groups and a last one", Facts("rows == G*q + r", "G > r"), "q")
            return
        for odd, extra in (("", ""), ("an odd number of ", " + G")):
            yield self._case(f"{odd}full groups", Facts(f"rows == 2*G*p{extra}"), "p", bool(odd))
            facts = Facts(f"rows == 2*G*p{extra} + r", "G > r")
            yield self._case(f"{odd}full groups and a last one", facts, "p", bool(odd))
        yield self._case("one full group", Facts("rows == G"), 0, True)
        yield self._case("one full group and a last one", Facts("rows == G + r", "G > r"), 0, True)

    def _case(self, name: str, given: Facts, count: Integer | str, odd: bool = False) -> GridCase:
        rows, n, G = given["rows"], given["columns"], given["G"]
        count = given[count] if isinstance(count, str) else count
        pieces = []
        period = 2 if self.serpentine else 1
        for parity in range(period):
            groups = count + (1 if odd and parity == 0 else 0)
            if groups != 0:
                pieces.append(self._rows(parity * G, G, n, groups, period, G * n, bool(parity)))
        full = count * period + (1 if odd else 0)
        rest = rows - full * G
        if rest != 0:
            # After an odd number of full groups the last one walks back.
            pieces.append(self._rows(full * G, rest, n, 1, 1, 0, self.serpentine and odd))
        return GridCase(name, rows, n, G, pieces)

    @staticmethod
    def _rows(
        first: Integer, height: Integer, n: Integer, groups: Integer, period: int, size: Integer, back: bool
    ) -> SchedulePiece:
        """Every `period`-th group from row `first` on."""
        shape = (height, n, groups)
        index = Layout(shape, (1, height, period * size))
        tile = Layout(shape, (E(0), -1 * E(1) if back else E(1), period * height * E(0)))
        return SchedulePiece(first * n, index, (first, n - 1 if back else 0), tile)


@dataclass(frozen=True)
class Hilbert(Schedule):
    """Tiles along Hilbert's curve over the smallest power-of-two square that holds the grid. Tiles outside are left
    out.

    There is no formula in `//` and `%` of a fixed length. A kernel reads the tiles of its grid from a list in global
    memory, the word "tiles": see `TileList`.

    >>> Hilbert().table((2, 2)).tolist()
    [[0, 0], [1, 0], [1, 1], [0, 1]]
    >>> print(Hilbert().prove().explain().splitlines()[0])
    proven by induction over quadrants
    """

    along: str = "M"
    # Of each of four orientations: which quadrant (row half, column half) the n-th quarter of the curve lies in, and
    # the orientation it has there.
    TURNS = (
        (((0, 0), 1), ((1, 0), 0), ((1, 1), 0), ((0, 1), 2)),
        (((0, 0), 0), ((0, 1), 1), ((1, 1), 1), ((1, 0), 3)),
        (((1, 1), 3), ((1, 0), 2), ((0, 0), 2), ((0, 1), 0)),
        (((1, 1), 2), ((0, 1), 3), ((0, 0), 3), ((1, 0), 1)),
    )

    @property
    def has_formula(self) -> bool:
        """False: a kernel reads a list."""
        return False

    @checked(PlanError)
    def tile(self, number: Integer, grid: Grid, minimum: Minimum = least, reads: Reads | None = None) -> Tile:
        """The (row, column) of tile `number`, an int or an array, from `table`."""
        return entry_of(self.table, number, grid)

    @checked(PlanError)
    def table(self, grid: tuple[int, int]) -> npt.NDArray[np.int64]:
        """All tiles of a grid in their order: an array [number] of (row, column)."""
        rows, columns = checked_grid(grid)
        bits = (max(rows, columns) - 1).bit_length()
        number = np.arange(1 << 2 * bits)
        state = np.zeros(number.shape, dtype=np.int64)
        tile = np.zeros((number.size, 2), dtype=np.int64)
        quadrants = np.array([[quadrant for quadrant, _ in turn] for turn in self.TURNS])
        turns = np.array([[after for _, after in turn] for turn in self.TURNS])
        for bit in reversed(range(bits)):
            quarter = number >> 2 * bit & 3
            tile = 2 * tile + quadrants[state, quarter]
            state = turns[state, quarter]
        if self.along == "N":
            tile = tile[:, ::-1]
        return tile[(tile[:, 0] < rows) & (tile[:, 1] < columns)]

    def prove(self) -> Answer:
        """Check that the curve visits every tile of every grid once.

        By induction: if each orientation of a square of half the size visits it once, then so does a curve through four
        of them. Its four quarters must lie in the four quadrants.
        """
        every = {(row, column) for row in (0, 1) for column in (0, 1)}
        for n, turn in enumerate(self.TURNS):
            if {quadrant for quadrant, _ in turn} != every or len(turn) != len(every):
                found = [quadrant for quadrant, _ in turn]
                return CounterExample(n, found, sorted(every), None, "quadrants are missed by an orientation")
        return Proof(
            "induction over quadrants",
            (),
            (
                "one tile: visited once",
                *[f"orientation {n}: quarters 0..3 lie in {[q for q, _ in turn]}" for n, turn in enumerate(self.TURNS)],
                "a grid is part of its square: leaving out the tiles outside keeps every other tile once",
            ),
        )


def all_proven(statements: Iterable[tuple[str, Answer]], method: str) -> Answer:
    """One proof of all statements, with a step for each. Undecided at the first that is not proven."""
    steps = []
    for text, answer in statements:
        if not isinstance(answer, Proof):
            return Undecided(f"{text}: {answer.reason}")
        steps.append(f"{text} [{answer.method}]")
    return Proof(method, (), tuple(steps))


def _statements(schedule: Schedule, case: GridCase) -> Iterator[tuple[str, Answer]]:
    """The statements that make a case's grids visited once, each with its answer."""
    rows, columns = case.rows, case.columns
    total: int = 0
    for piece in case.pieces:
        names = [f"x{i}" for i in range(len(piece.index.shape))]

        def formula(piece: SchedulePiece = piece, names: list[str] = names, **at: object) -> Tile:
            number = piece.start + piece.index(*[at[name] for name in names])
            return schedule._tile(number, rows, columns, case.group, least)

        def tiles(piece: SchedulePiece = piece, names: list[str] = names, **at: object) -> Tile:
            row, column = piece.tile(*[at[name] for name in names])
            return piece.corner[0] + row, piece.corner[1] + column

        extents = dict(zip(names, piece.index.shape, strict=True))
        yield str(piece), prove_formulas(formula, tiles, extents)
        yield "no tile twice in it", injective(piece.tile)
        yield "no number twice in it", injective(piece.index)
        yield "its numbers, rows and columns are inside", _inside(piece, rows, columns)
        total = total + piece.index.size
    for (i, a), (j, b) in combinations(enumerate(case.pieces), 2):
        p, q = (Layout(x.tile.shape, along(x.tile, 0)) for x in (a, b))
        yield f"pieces {i} and {j} share no row", disjoint(p, q, b.corner[0] - a.corner[0])
        yield f"pieces {i} and {j} share no number", disjoint(a.index, b.index, b.start - a.start)
    if total == rows * columns:
        yield "as many as the grid has", Proof("count", (), (f"{show(total)} of {show(total)}",))
    else:
        yield "as many as the grid has", Undecided(f"{show(total)} tiles, {show(rows * columns)} in the grid")


def along(tile: Layout, axis: int) -> tuple[Integer, ...]:
    """The strides of a layout of tiles along one axis. 0 for rows, 1 for columns."""
    return tuple([d.value if d.path == (axis,) else 0 for d in tile.stride])


def _inside(piece: SchedulePiece, rows: Scalar, columns: Scalar) -> Answer:
    for what, first, strides, end in (
        ("number", piece.start, piece.index.stride, rows * columns),
        ("row", piece.corner[0], along(piece.tile, 0), rows),
        ("column", piece.corner[1], along(piece.tile, 1), columns),
    ):
        low = high = first
        for extent, stride in zip(piece.index.shape, strides, strict=True):
            if ge0(stride):
                high = high + (extent - 1) * stride
            else:
                low = low + (extent - 1) * stride
        if not ge0(low) or not ge0(end - 1 - high):
            return Undecided(f"{what}s {show(low)} to {show(high)} are not seen to be in 0..{show(end - 1)}")
    return Proof("bounds")


@checked(PlanError)
def checked_grid(grid: tuple[int, int]) -> tuple[int, int]:
    """The grid, or PlanError when its extents are not two positive ints."""
    if min(grid) < 1:
        raise PlanError(f"a grid of tiles has two extents of 1 or more, not {shown(grid)}")
    if grid[0] * grid[1] > ENUMERABLE:
        raise PlanError(f"a grid of {shown(grid)} has more than {ENUMERABLE} tiles, which are not listed one by one")
    return grid


def entry_of(table: Callable[[tuple[Any, Any]], npt.NDArray[np.int64]], number: Integer, grid: Grid) -> Tile:
    """The tile of a number, an int or an array, in an order's table. Raises PlanError beyond its end."""
    every, at = table(grid), np.asarray(number)
    if (outside := (at < 0) | (at >= len(every))).any():
        raise PlanError(f"tile {at[outside].flat[0]} of {len(every)}: numbers run from 0 to {len(every) - 1}")
    found = every[at]
    return found[..., 0], found[..., 1]


def tiles_of(order: object) -> npt.NDArray[np.int64]:
    """An order as an int64 array [number] of (row, column). Raises PlanError for anything but whole numbers.

    >>> tiles_of([(0, 0), (1, 0)]).shape
    (2, 2)
    """
    try:
        found = np.asarray(order)
    except (ValueError, TypeError, OverflowError):  # rows of different lengths
        found = np.zeros(0, object)
    if not found.size:
        return np.zeros((0, 2), np.int64)
    if found.dtype.kind not in "iu" or found.ndim != 2 or found.shape[1] != 2:
        raise PlanError(refusal(order, "an order of tiles", "an array of integers, [number] of (row, column)"))
    return found.astype(np.int64)


def _set_of(visited: object, grid: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """The set of tiles as an array of the grid's shape. Raises PlanError for anything else."""
    if not isinstance(visited, np.ndarray) or visited.dtype.kind != "b" or visited.shape != grid:
        raise PlanError(refusal(visited, "the set of tiles visited", f"a bool array of shape {grid}"))
    return visited


@checked(PlanError)
def visits_once(
    order: npt.ArrayLike, grid: tuple[int, int], name: str = "schedule", visited: object = None, of_all: bool = True
) -> Check:
    """Check by exhaustion that an order visits each tile of a set once.

    order    [number] -> (row, column), as `Schedule.table` gives it, or from anywhere else
    visited  array (row, column), True for the tiles of the set; None: all
    of_all   False: no tile twice is enough

    >>> check = visits_once([(0, 0), (1, 0), (1, 0)], (2, 2))
    >>> check.ok, check.witness
    (False, 'tile (1, 0) is visited as number 1 and again as number 2')
    """
    rows, columns = checked_grid(grid)
    tiles = tiles_of(order)
    every = np.ones((rows, columns), bool) if visited is None else _set_of(visited, (rows, columns))
    witness = ""
    outside = np.flatnonzero((tiles < 0).any(axis=1) | (tiles >= (rows, columns)).any(axis=1))
    if outside.size:
        row, column = tiles[outside[0]]
        witness = f"number {outside[0]} is tile ({row}, {column}), outside {rows}x{columns}"
    else:
        flat = tiles[:, 0] * columns + tiles[:, 1]
        first = np.full(rows * columns, -1)
        first[flat[::-1]] = np.arange(flat.size)[::-1]
        again = np.flatnonzero(first[flat] != np.arange(flat.size))
        missing = np.flatnonzero((first < 0) & every.reshape(-1))
        foreign = np.flatnonzero(~every.reshape(-1)[flat])
        if again.size:
            row, column = tiles[again[0]]
            before = first[flat[again[0]]]
            witness = f"tile ({row}, {column}) is visited as number {before} and again as number {again[0]}"
        elif missing.size and of_all:
            witness = f"tile {divmod(int(missing[0]), columns)} is never visited"
        elif foreign.size:
            row, column = tiles[foreign[0]]
            witness = f"number {foreign[0]} is tile ({row}, {column}), which is not one of the set"
    which = f"each of the {rows}x{columns}" if every.all() else f"each of {int(every.sum())} of the {rows}x{columns}"
    statement = f"{len(tiles)} tiles, {which} once"
    return Check(name, statement, not witness, f"exhaustion ({rows * columns} tiles)", witness)
