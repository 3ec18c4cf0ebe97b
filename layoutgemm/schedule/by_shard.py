"""Tile orders that begin at a run-time place: ranks of a host compute the same tiles, each from its own rows on.

A rank of a distributed product begins with the rows that it has, or that another rank needs. The place is not known
when the kernel is compiled. Both orders permute the rows of tiles, so "each tile once" is proven for every grid and
every place.

    RotatedRows    rows of tiles, rotated: a band of the schedule may hold rows of two shards
    ShardByShard   all tiles of a shard, then all of the next one; or chunk by chunk, those of the last shard late
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..arguments import as_int, checked, settle
from ..errors import PlanError
from ..layouts.display import Pictured
from ..layouts.int_tuple import Integer
from ..layouts.proofs.digits import minimum as least
from ..layouts.proofs.index_formulas import prove_formulas
from ..layouts.proofs.verdicts import Answer, Proof, Undecided
from ..layouts.symbols.facts import Facts
from ..lazy_numpy import np
from .tile_order import Minimum, Schedule, Tile, all_proven, checked_grid

if TYPE_CHECKING:
    import numpy.typing as npt

MAX_SHARDS, MAX_CHUNKS = 8, 32  # of an order by shards: its blocks are proven by exhaustion


@dataclass(frozen=True)
class RotatedRows(Pictured):
    """The order of `schedule`, its rows of tiles rotated: row r becomes row (r + first) % rows.

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
    def tile(self, number: Integer, grid: Tile, first: Integer, minimum: Minimum = least) -> Tile:
        """The (row, column) visited as number `number`; `first` is the row that the schedule's row 0 becomes."""
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
class ShardByShard(Pictured):
    """The order of `schedule` in each shard's grid: shards from `first` on, modulo their number, the last one late.

    A shard's tiles are `chunks` of as many tiles, in the order of `schedule`. Step g has chunk g of every shard but the
    last, then chunk g - lag of the last. With one chunk, or lag = chunks, the last shard comes after all others.

    Raises PlanError for another schedule than a Schedule.

    >>> from layoutgemm.schedule.tile_order import Linear
    >>> ShardByShard(Linear()).table((4, 2), first=1, shards=2).tolist()
    [[2, 0], [3, 0], [2, 1], [3, 1], [0, 0], [1, 0], [0, 1], [1, 1]]
    >>> ShardByShard(Linear()).table((2, 4), first=0, shards=2, chunks=4, lag=1).tolist()
    [[0, 0], [0, 1], [1, 0], [0, 2], [1, 1], [0, 3], [1, 2], [1, 3]]
    >>> ShardByShard(Linear()).prove().ok
    True
    """

    schedule: Schedule

    def __post_init__(self) -> None:
        RotatedRows(self.schedule)

    @staticmethod
    def place(
        number: Integer, each: Integer, shards: Integer, chunks: Integer, lag: Integer, minimum: Minimum = least
    ) -> tuple[Any, Any]:
        """The shard of tile `number`, counted from `first`, and its number in the shard.

        each  tiles of a chunk
        """
        shard, chunk = chunk_of_block(number // each, shards, chunks, lag, minimum)
        return shard, chunk * each + number % each

    @checked(PlanError)
    def tile(
        self, number: Integer, grid: Tile, first: Integer, shards: Integer, minimum: Minimum = least,
        chunks: Integer = 1, lag: Integer = 1,
    ) -> Tile:  # fmt: skip
        """The (row, column) visited as number `number`; the grid's rows are a multiple of `shards`."""
        rows = grid[0] // shards
        shard, within = self.place(number, rows * grid[1] // chunks, shards, chunks, lag, minimum)
        row, column = self.schedule.tile(within, (rows, grid[1]), minimum)
        return (shard + first) % shards * rows + row, column

    @checked(PlanError)
    def table(
        self, grid: tuple[int, int], first: int, shards: int, chunks: int = 1, lag: int = 1
    ) -> npt.NDArray[np.int64]:
        """All tiles of a grid in their order: an array [number] of (row, column).

        Raises PlanError for rows that are no multiple of the shards, tiles of a shard that are not the chunks', a
        first shard beyond them and a lag beyond the chunks.
        """
        rows, columns = checked_grid(grid)
        as_int(shards, "the number of shards", PlanError, least=1)
        as_int(first, "the first shard", PlanError, least=0, most=shards - 1)
        as_int(chunks, "the number of chunks", PlanError, least=1)
        as_int(lag, "the lag in chunks", PlanError, least=1, most=chunks)
        if rows % shards:
            raise PlanError(f"{rows} rows of tiles in {shards} shards: {rows} % {shards} = {rows % shards}")
        if (tiles := rows // shards * columns) % chunks:
            raise PlanError(f"{tiles} tiles of a shard in {chunks} chunks: {tiles} % {chunks} = {tiles % chunks}")
        found = self.tile(np.arange(rows * columns), (rows, columns), first, shards, least, chunks, lag)
        return np.stack(np.broadcast_arrays(*found), axis=1).astype(np.int64)

    def prove(self) -> Answer:
        """Check that every tile of every grid is visited once: any first shard, up to 8 shards of 32 chunks."""
        return all_proven(self._statements(), "a permutation of the chunks, for every grid")

    def _statements(self) -> Iterator[tuple[str, Answer]]:
        yield "the schedule visits each tile of a shard's grid once", self.schedule.prove()
        given = Facts()
        tiles, shards, each = given["tiles"], given["shards"], given["each"]
        number = prove_formulas(
            lambda i, s: ((i + tiles * s) % tiles, (i + tiles * s) // tiles),
            lambda i, s: (i, s),
            {"i": tiles, "s": shards},
        )
        yield "a number is one tile of one block of a chunk", number
        yield "a block is one chunk of one shard", _blocks_proven()
        for text, answer in rotation(given):
            yield f"shards: {text}", answer
        place = prove_formulas(
            lambda r, s: ((r + each * s) % each, (r + each * s) // each), lambda r, s: (r, s), {"r": each, "s": shards}
        )
        yield "a row of tiles is one row of one shard", place


def chunk_of_block(
    block: Integer, shards: Integer, chunks: Integer, lag: Integer, minimum: Minimum = least
) -> tuple[Any, Any]:
    """Block `block` of an order by shards: (shard counted from the first, chunk of it).

    >>> [chunk_of_block(block, 2, 3, 1) for block in range(6)]
    [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (1, 2)]
    """
    others: Any = shards - 1
    if isinstance(shards, int) and shards == 1:
        return block * 0, block
    head, middle = lag * others, (chunks - lag) * shards
    before = minimum(block, head)  # blocks of steps without a chunk of the last shard
    between = minimum(block - before, middle)
    after: Any = block - before - between  # blocks of the last shard alone
    alone = minimum(block + 1 - minimum(block + 1, head + middle), 1)  # 1 in those, else 0
    step = before // others + between // shards + after
    shard = before % others + between % shards + others * alone
    return shard, step - lag * (shard // others)


@functools.cache
def _blocks_proven() -> Answer:
    """By exhaustion, for 1 to 8 shards of 1 to 32 chunks and every lag: each chunk of each shard once."""
    for shards in range(1, MAX_SHARDS + 1):
        for chunks in range(1, MAX_CHUNKS + 1):
            for lag in range(1, chunks + 1):
                shard, chunk = (np.asarray(x) for x in chunk_of_block(np.arange(shards * chunks), shards, chunks, lag))
                if set((shard * chunks + chunk).tolist()) != set(range(shards * chunks)):
                    return Undecided(f"{shards} shards of {chunks} chunks, lag {lag}: a block twice")
    return Proof("exhaustion", (), (f"up to {MAX_SHARDS} shards of up to {MAX_CHUNKS} chunks",))


def rotation(given: Facts) -> Iterator[tuple[str, Answer]]:
    """Statements that r -> (r + first) % rows permutes 0 to rows - 1, where rows = first + rest."""
    first, rest = given["first"], given["rest"]
    rows = first + rest
    upper = prove_formulas(lambda r: (r + first) % rows, lambda r: r + first, {"r": rest})
    yield "0 to rest - 1 become first to rows - 1, where rows = first + rest", upper
    lower = prove_formulas(lambda r: (r + rest + first) % rows, lambda r: r, {"r": first})
    yield "rest to rows - 1 become 0 to first - 1", lower
    yield "with first = 0 each stays", prove_formulas(lambda r: r % rest, lambda r: r, {"r": rest})
