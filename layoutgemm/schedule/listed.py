"""Orders that a kernel reads from a list in global memory.

A list has one 32-bit integer for each tile, row + 2**16 * column. A kernel has two words for it: its address, and how
many tiles it has. `TileList` makes lists, of a schedule's table or of a caller's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ..arguments import Integer, as_int, checked, settle
from ..errors import OperandError, PlanError
from ..layouts.proofs.digits import minimum as least
from ..layouts.proofs.verdicts import Answer, Proof
from ..lazy_numpy import np
from .tile_order import Grid, Hilbert, Minimum, Reads, Schedule, Tile, checked_grid, entry_of, tiles_of, visits_once

if TYPE_CHECKING:
    import numpy.typing as npt

_BASE = 1 << 16
MAX_EXTENT = 1 << 15  # rows or columns of a grid: row + 2**16 * column is a signed 32-bit integer


@dataclass(frozen=True)
class Banded(Schedule):
    """The tiles with an element in a band around the diagonal of C. -below <= column - row <= above.

    below, above  elements; a causal sliding window of w keys has below = w - 1 and above = 0
    tile_shape    (rows, columns) of C's elements in a tile of the grid; None: that of the plan

    Raises PlanError for a negative width.

    >>> Banded(below=0, above=0, tile_shape=(64, 64)).table((2, 3)).tolist()
    [[0, 0], [1, 1]]
    """

    along: str = "M"
    below: int = 0
    above: int = 0
    tile_shape: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        settle(self, PlanError)
        super().__post_init__()
        for name in ("below", "above"):
            as_int(getattr(self, name), name, PlanError, 0)

    def on(self, tile: tuple[int, int]) -> Banded:
        """The same order of tiles of that many elements."""
        return Banded(self.along, self.below, self.above, tile)

    @property
    def has_formula(self) -> bool:
        """False: a kernel reads a list."""
        return False

    @property
    def is_full(self) -> bool:
        """False: a band's tiles alone."""
        return False

    @checked(PlanError)
    def count(self, grid: Grid, minimum: Minimum = least, reads: Reads | None = None) -> Any:
        """Tiles that are visited in a grid of (rows, columns)."""
        return len(self.table(cast("tuple[int, int]", grid)))

    def visited(self, grid: tuple[int, int]) -> npt.NDArray[np.bool_]:
        """True for each tile (row, column) that has an element in the band."""
        rows, columns = checked_grid(grid)
        if self.tile_shape is None:
            raise PlanError("a band is of tiles of some size: tile_shape=(rows, columns) of C's elements")
        high, wide = self.tile_shape
        row, column = np.arange(rows)[:, None] * high, np.arange(columns)[None, :] * wide
        # column - row of a tile's elements runs from its lower left corner to its upper right one.
        return np.asarray((column - row - (high - 1) <= self.above) & (column + wide - 1 - row >= -self.below))

    @checked(PlanError)
    def tile(self, number: Integer, grid: Grid, minimum: Minimum = least, reads: Reads | None = None) -> Tile:
        """The (row, column) of tile `number`, an int or an array, from `table`."""
        return entry_of(self.table, number, grid)

    @checked(PlanError)
    def table(self, grid: tuple[int, int]) -> npt.NDArray[np.int64]:
        """The tiles row by row (along = "M"), or column by column."""
        inside = self.visited(grid)
        if self.along == "M":
            return np.argwhere(inside)
        return np.argwhere(inside.T)[:, ::-1]

    def prove(self) -> Answer:
        """The table lists each tile of the band once, for every grid."""
        return Proof("construction", (), ("the list of the set's members, each once",))


@dataclass(frozen=True)
class TileList(Schedule):
    """Tiles that a kernel reads from a list in global memory. A schedule's, or the caller's.

    schedule  whose table of the grid is the list, made at each launch; None: `given["tiles"]` of each launch, rows
              (row, column) of tiles of the grid of clusters, in order

    >>> from layoutgemm.schedule import Hilbert
    >>> TileList(schedule=Hilbert()).words, encoded([(1, 2)]).tolist()
    (('tiles', 'tile_count'), [131073])
    """

    along: str = "M"
    schedule: Schedule | None = None

    def on(self, tile: tuple[int, int]) -> TileList:
        """The same order of tiles of that many elements."""
        return self if self.schedule is None else TileList(self.along, self.schedule.on(tile))

    @property
    def words(self) -> tuple[str, ...]:
        """The address of the list, and the number of its tiles."""
        return ("tiles", "tile_count")

    @property
    def is_full(self) -> bool:
        """True if the list has every tile of a grid."""
        return self.schedule is not None and self.schedule.is_full

    @checked(PlanError)
    def count(self, grid: Grid, minimum: Minimum = least, reads: Reads | None = None) -> Any:
        """Tiles of the list."""
        if reads is not None:
            return reads.word("tile_count")
        return self._own.count(grid, minimum)

    def visited(self, grid: tuple[int, int]) -> npt.NDArray[np.bool_]:
        """True for each tile (row, column) of a grid that is to be visited."""
        return self._own.visited(grid)

    @property
    def _own(self) -> Schedule:
        if self.schedule is None:
            raise PlanError("the tiles are those of the list that each launch is given")
        return self.schedule

    @checked(PlanError)
    def tile(self, number: Integer, grid: Grid, minimum: Minimum = least, reads: Reads | None = None) -> Tile:
        """The (row, column) of tile `number`, from the list. Beyond its end a kernel asks for the last one again."""
        if reads is None:
            return self._own.tile(number, grid, minimum)
        entry = reads.entry("tiles", minimum(number, reads.word("tile_count") - 1))
        return decoded(entry)

    @checked(PlanError)
    def table(self, grid: tuple[int, int]) -> npt.NDArray[np.int64]:
        """The tiles of the schedule's list."""
        return self._own.table(grid)

    def prove(self) -> Answer:
        """The schedule's own proof; a caller's list is looked at when it is given."""
        if self.schedule is None:
            return Proof("each launch", (), ("a list of NumPy integers is looked at when it is given",))
        return self.schedule.prove()

    def list_for(self, grid: tuple[int, int], given: object = None) -> npt.NDArray[np.int32]:
        """The list for a grid. Raises OperandError for a caller's list of another form, or with a tile twice."""
        if self.schedule is not None:
            if given is not None:
                raise OperandError(f"tiles: the list is that of {self.schedule}, and given too")
            return encoded(self.schedule.table(grid), grid)
        found = np.asarray(given)
        if given is None or found.ndim != 2 or found.shape[1] != 2 or found.dtype.kind not in "iu" or not len(found):
            raise OperandError("tiles is missing, or no array of integers (row, column) with one tile or more")
        check = visits_once(found, grid, of_all=False)
        if not check:
            raise OperandError(f"tiles: {check.witness}")
        return encoded(found, grid)


def decoded(entry: Any) -> tuple[Any, Any]:
    """The (row, column) of an entry of a list: integers, arrays, tensors or traced values.

    >>> decoded(1 + 2 * 65536)
    (1, 2)
    """
    return entry % _BASE, entry // _BASE


def tiles_on_host(tiles: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """A list of tiles as an array of (row, column). A vector of int32 is as a kernel reads it.

    >>> tiles_on_host(np.array([1 + 2 * 65536], np.int32)).tolist(), tiles_on_host([[1, 2]]).tolist()
    ([[1, 2]], [[1, 2]])
    """
    found = np.asarray(tiles)
    if found.ndim == 1 and found.dtype == np.int32:
        found = np.stack(decoded(found), 1).astype(np.int64)
    return found


def encoded(tiles: npt.ArrayLike, grid: tuple[int, int] = (0, 0)) -> npt.NDArray[np.int32]:
    """Tiles (row, column) as a kernel reads them: row + 2**16 * column. Raises PlanError for a grid too large."""
    if max(grid) > MAX_EXTENT:
        raise PlanError(f"a list of tiles is of {MAX_EXTENT} rows and columns at most, not {grid[0]} x {grid[1]}")
    found = tiles_of(tiles)
    if found.size and not 0 <= int(found.min()) <= int(found.max()) < MAX_EXTENT:
        raise PlanError(
            f"a list has tiles of rows and columns 0 to {MAX_EXTENT - 1}, not {found.min()} to {found.max()}"
        )
    return np.ascontiguousarray(found[:, 0] + _BASE * found[:, 1]).astype(np.int32)


@dataclass(frozen=True)
class OnHost:
    """The values of an order's words on the host: numbers, and arrays of 32-bit integers."""

    values: Mapping[str, Any]

    def word(self, name: str) -> Any:
        """The word of that name, as an integer."""
        if name not in self.values:
            raise OperandError(f"{name} is missing: the order of tiles reads it")
        return self.values[name]

    def entry(self, name: str, index: object) -> Any:
        """Number `index` of the integers in the array of that name."""
        found = self.values[name][index]
        return int(found) if np.ndim(found) == 0 else found.astype(np.int64)


def listed(schedule: Schedule) -> Schedule:
    """The schedule itself where a kernel has a formula for it, else its list."""
    if isinstance(schedule, Hilbert) or not schedule.has_formula:
        return TileList(schedule=schedule)
    return schedule
