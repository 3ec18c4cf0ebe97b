"""Tile orders that begin at a run-time place. Ranks of a host compute the same tiles, each from its own rows on.

A rank of a distributed product begins with the rows that it has, or that another rank needs. The place is not known
when the kernel is compiled. Both orders permute the rows of tiles, so "each tile once" is proven for every grid and
every place.

    RotatedRows    rows of tiles, rotated: a band of the schedule may hold rows of two shards
    ShardByShard   all tiles of a shard, then all of the next one
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..arguments import Integer, as_int, as_number, checked, settle
from ..errors import PlanError
from ..layouts.display import HasPicture
from ..layouts.proofs.digits import minimum as least
from ..layouts.proofs.index_formulas import prove_formulas
from ..layouts.proofs.verdicts import Answer
from ..layouts.symbols.facts import Facts
from ..lazy_numpy import np
from .tile_order import Grid, Minimum, Schedule, Tile, all_proven, checked_grid

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class RotatedRows(HasPicture):
    """The order of `schedule`, its rows of tiles rotated. Row r becomes row (r + first) % rows.

    Raises PlanError for another schedule than a Schedule.

    >>> from layoutgemm.schedule.tile_order import Linear
    >>> RotatedRows(Linear("N")).table((3, 2), first=2).tolist()
    [[2, 0], [2, 1], [0, 0], [0, 1], [1, 0], [1, 1]]
    >>> RotatedRows(Linear()).prove().ok
    True
    """

    schedule: Schedule

    def __post_init__(self) -> None:
        settle(self, PlanError)
        if not isinstance(self.schedule, Schedule):
            raise PlanError(f"a Schedule is rotated, not {type(self.schedule).__name__}")

    @checked(PlanError)
    def tile(self, number: Integer, grid: Grid, first: Integer, minimum: Minimum = least) -> Tile:
        """The (row, column) visited as number `number`. `first` is the row that the schedule's row 0 becomes."""
        row, column = self.schedule.tile(number, grid, minimum)
        return (row + first) % grid[0], column

    @checked(PlanError)
    def table(self, grid: tuple[int, int], first: int) -> npt.NDArray[np.int64]:
        """All tiles of a grid in their order: an array [number] of (row, column). `first` is one of the grid's rows."""
        rows, columns = checked_grid(grid)
        as_int(first, "the first row of tiles", PlanError, least=0, most=rows - 1)
        found = self.tile(np.arange(rows * columns), (rows, columns), first)
        return np.stack(np.broadcast_arrays(*found), axis=1).astype(np.int64)

    def prove(self) -> Answer:
        """Check that every tile of every grid is visited exactly once, for every first row."""
        return all_proven(self._statements(), "a permutation of the rows, for every grid")

    def _statements(self) -> Iterator[tuple[str, Answer]]:
        yield "the schedule visits each tile once", self.schedule.prove()
        for text, answer in rotation(Facts()):
            yield f"rows: {text}", answer


@dataclass(frozen=True)
class ShardByShard(HasPicture):
    """The order of `schedule` in each shard's grid: shards from `first` on, modulo their number.

    Raises PlanError for another schedule than a Schedule.

    >>> from layoutgemm.schedule.tile_order import Linear
    >>> ShardByShard(Linear()).table((4, 2), first=1, shards=2).tolist()
    [[2, 0], [3, 0], [2, 1], [3, 1], [0, 0], [1, 0], [0, 1], [1, 1]]
    >>> ShardByShard(Linear()).prove().ok
    True
    """

    schedule: Schedule

    def __post_init__(self) -> None:
        RotatedRows(self.schedule)

    @staticmethod
    @checked(PlanError)
    def place(number: Integer, each: Integer) -> tuple[Any, Any]:
        """The shard of tile `number`, counted from `first`, and its number in the shard.

        each  tiles of a shard
        """
        each = as_number(each, "tiles of a shard", PlanError, least=1)
        return number // each, number % each

    @checked(PlanError)
    def tile(self, number: Integer, grid: Grid, first: Integer, shards: Integer, minimum: Minimum = least) -> Tile:
        """The (row, column) visited as number `number`; the grid's rows are a multiple of `shards`."""
        rows = grid[0] // as_number(shards, "the number of shards", PlanError, least=1)
        shard, within = self.place(number, rows * grid[1])
        row, column = self.schedule.tile(within, (rows, grid[1]), minimum)
        return (shard + first) % shards * rows + row, column

    @checked(PlanError)
    def table(self, grid: tuple[int, int], first: int, shards: int) -> npt.NDArray[np.int64]:
        """All tiles of a grid in their order: an array [number] of (row, column).

        Raises PlanError for rows that are no multiple of the shards, and a first shard beyond them.
        """
        rows, columns = checked_grid(grid)
        as_int(shards, "the number of shards", PlanError, least=1)
        as_int(first, "the first shard", PlanError, least=0, most=shards - 1)
        if rows % shards:
            raise PlanError(f"{rows} rows of tiles in {shards} shards: {rows} % {shards} = {rows % shards}")
        found = self.tile(np.arange(rows * columns), (rows, columns), first, shards)
        return np.stack(np.broadcast_arrays(*found), axis=1).astype(np.int64)

    def prove(self) -> Answer:
        """Check that every tile is visited once: any grid, any number of shards, any first."""
        return all_proven(self._statements(), "a permutation of the shards, for every grid")

    def _statements(self) -> Iterator[tuple[str, Answer]]:
        yield "the schedule visits each tile of a shard's grid once", self.schedule.prove()
        given = Facts()
        tiles, shards, each = given["tiles"], given["shards"], given["each"]
        number = prove_formulas(
            lambda i, s: self.place(i + tiles * s, tiles), lambda i, s: (s, i), {"i": tiles, "s": shards}
        )
        yield "a number is one tile of one shard", number
        for text, answer in rotation(given):
            yield f"shards: {text}", answer
        place = prove_formulas(
            lambda r, s: ((r + each * s) % each, (r + each * s) // each), lambda r, s: (r, s), {"r": each, "s": shards}
        )
        yield "a row of tiles is one row of one shard", place


def rotation(given: Facts) -> Iterator[tuple[str, Answer]]:
    """Statements that r -> (r + first) % rows permutes 0 to rows - 1, where rows = first + rest."""
    first, rest = given["first"], given["rest"]
    rows = first + rest
    upper = prove_formulas(lambda r: (r + first) % rows, lambda r: r + first, {"r": rest})
    yield "0 to rest - 1 become first to rows - 1, where rows = first + rest", upper
    lower = prove_formulas(lambda r: (r + rest + first) % rows, lambda r: r, {"r": first})
    yield "rest to rows - 1 become 0 to first - 1", lower
    yield "with first = 0 each stays", prove_formulas(lambda r: r % rest, lambda r: r, {"r": rest})
