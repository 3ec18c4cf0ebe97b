"""Which worker does which tile. Persistent workers, clusters of them, and work cut along K (stream-K).

A schedule (`tile_order.py`) orders the tiles. Here persistent workers take them in that order. For every size, each
distribution is proven to give every tile, or every K tile of it, to exactly one worker.

Sources: CUTLASS PersistentTileSchedulerSm90 and PersistentTileSchedulerSm90StreamK; Osama et al., "Stream-K:
Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU", arXiv 2301.03598.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..arguments import Integer, as_int, checked, settle, shown
from ..errors import PlanError
from ..layouts import Layout
from ..layouts.display import HasPicture
from ..layouts.proofs.digits import minimum as least
from ..layouts.proofs.index_formulas import prove_formulas
from ..layouts.proofs.prove import disjoint, injective
from ..layouts.proofs.verdicts import Answer, Proof, Undecided
from ..layouts.symbols.facts import Facts
from ..layouts.symbols.polynomial import Scalar, show
from ..lazy_numpy import np
from .tile_order import Grid, Minimum, Reads, Schedule, Tile, all_proven, checked_grid

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class Persistent(HasPicture):
    """`workers` clusters that stay resident. Worker w does the tiles numbered w, w + workers, w + 2 * workers, ...

    schedule  the order of the clusters' tiles
    workers   how many clusters there are; a cluster of (1, 1) is a single thread block
    cluster   (rows, columns) of tiles that one cluster does together; block `rank` of it has row rank % rows and column
              rank // rows. Where the cluster does not divide the grid, some blocks have a tile outside: none to do.

    Raises PlanError for extents below 1.

    >>> from layoutgemm.schedule.tile_order import Linear
    >>> Persistent(Linear(), workers=4).table((3, 2))[..., 0, :].tolist()
    [[[0, 0], [1, 0], [2, 0], [0, 1]], [[1, 1], [2, 1], [-1, -1], [-1, -1]]]
    """

    schedule: Schedule
    workers: int
    cluster: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        settle(self, PlanError)
        as_int(self.workers, "the number of workers", PlanError, least=1)
        for n in self.cluster:
            as_int(n, "an extent of the cluster", PlanError, least=1)

    @checked(PlanError)
    def clusters(self, grid: Grid) -> Tile:
        """The grid in clusters: its extents divided by the cluster's, rounded up."""
        rows, columns = self.cluster
        return -(-grid[0] // rows), -(-grid[1] // columns)

    @checked(PlanError)
    def tile(
        self, worker: Integer, step: Integer, rank: Integer, grid: Grid, minimum: Minimum = least,
        reads: Reads | None = None,
    ) -> Tile:  # fmt: skip
        """The tile that block `rank` of a worker does as its number `step`. It can lie outside of the grid.

        The worker has a step `step` while worker + workers * step is below the number of clusters in the grid.
        """
        number, across = worker + self.workers * step, self.clusters(grid)
        if reads is None:
            return self.within(self.schedule.tile(number, across, minimum), rank)
        return self.within(self.schedule.tile(number, across, minimum, reads), rank)

    @checked(PlanError)
    def within(self, at: Grid, rank: Integer) -> Tile:
        """The tile of CTA `rank` of the cluster at `at` in the grid of clusters.

        >>> from layoutgemm.schedule.tile_order import Linear
        >>> Persistent(Linear(), 1, cluster=(2, 1)).within((3, 5), 1)
        (7, 5)
        """
        row, column = at
        return row * self.cluster[0] + rank % self.cluster[0], column * self.cluster[1] + rank // self.cluster[0]

    @checked(PlanError)
    def steps(self, grid: tuple[int, int]) -> int:
        """The number of tiles of the busiest worker."""
        return int(-(-self.schedule.count(self.clusters(checked_grid(grid))) // self.workers))

    @checked(PlanError)
    def table(self, grid: tuple[int, int]) -> npt.NDArray[np.int64]:
        """[step, worker, rank] -> (row, column), (-1, -1) where a block has nothing to do."""
        rows, columns = checked_grid(grid)
        across = self.clusters((rows, columns))
        order = self.schedule.table(across)
        size = self.cluster[0] * self.cluster[1]
        rank = np.arange(size)
        offset = np.stack([rank % self.cluster[0], rank // self.cluster[0]], axis=1)
        tiles = order[:, None, :] * self.cluster + offset
        tiles[(tiles >= (rows, columns)).any(axis=2)] = -1
        out = np.full((self.steps(grid) * self.workers, size, 2), -1, dtype=np.int64)
        out[: len(tiles)] = tiles
        return out.reshape(-1, self.workers, size, 2)

    @checked(PlanError)
    def order(self, grid: tuple[int, int]) -> npt.NDArray[np.int64]:
        """All tiles of the grid by time, workers and ranks side by side. It is for counting reuse."""
        tiles = self.table(grid).reshape(-1, 2)
        return tiles[tiles[:, 0] >= 0]

    @checked(PlanError)
    def idle(self, grid: tuple[int, int]) -> int:
        """Steps of single blocks that are spent without a tile."""
        return int((self.table(grid)[..., 0] < 0).sum())

    def prove(self) -> Answer:
        """Check that every tile of every grid is done once, by any workers and clusters."""
        return all_proven(self._statements(), "pieces, for all sizes")

    def _statements(self) -> Iterator[tuple[str, Answer]]:
        yield "the schedule visits every cluster of the grid once", self.schedule.prove()
        given = Facts()
        workers, steps = given["workers"], given["steps"]
        dealt = Layout((workers, steps), (1, workers))
        yield f"no number is dealt twice: {dealt}", injective(dealt)
        number = prove_formulas(
            lambda i: i % workers + workers * (i // workers), lambda i: i, {"i": given["clusters"] * workers}
        )
        yield "every number is some worker's: its remainder and quotient by the workers", number
        # A row of the grid is one row of one cluster, however the grid ends.
        inside = prove_formulas(
            lambda row: row % given["height"] + given["height"] * (row // given["height"]),
            lambda row: row,
            {"row": given["height"] * given["across"]},
        )
        yield "a row or column belongs to one cluster and one block of it", inside


class Segment(NamedTuple):
    """Part of a tile's sum: its K tiles first, ..., last."""

    tile: int
    first: int
    last: int


@dataclass(frozen=True)
class StreamK:
    """The K tiles of the last output tiles, cut into equal parts for the workers.

    tiles     output tiles, numbered by a schedule
    k_tiles   K tiles of each
    workers   workers, each of which gets the same number of K tiles, or one more
    streamed  how many of the last output tiles are cut up; the others before are done whole, wave by wave. None: what
              is left over after full waves, and one full wave more, so that every part is a tile long at least.

    A tile that is cut is finished by the worker of its first part; the others hand it partial sums (`workspace`).
    Raises PlanError for extents below 1, or when the whole tiles are no full waves.

    >>> cut = StreamK(tiles=3, k_tiles=4, workers=4)
    >>> cut.segments(1)
    (Segment(tile=0, first=3, last=3), Segment(tile=1, first=0, last=1))
    >>> cut.parts(0), cut.prove().ok
    ((0, 1), True)
    """

    tiles: int
    k_tiles: int
    workers: int
    streamed: int | None = None

    def __post_init__(self) -> None:
        settle(self, PlanError)
        as_int(self.tiles, "the number of tiles", PlanError, least=1)
        as_int(self.k_tiles, "the number of K tiles", PlanError, least=1)
        as_int(self.workers, "the number of workers", PlanError, least=1)
        streamed = self.streamed
        if streamed is None:
            left = self.tiles % self.workers
            streamed = 0 if left == 0 else min(self.tiles, left + self.workers)
            object.__setattr__(self, "streamed", streamed)
        elif not 0 <= streamed <= self.tiles:
            raise PlanError(f"{shown(streamed)} of {self.tiles} tiles cannot be streamed")
        if self.whole % self.workers:
            raise PlanError(
                f"{self.tiles} tiles less {streamed} streamed leave {self.whole} whole ones, "
                f"{self.whole % self.workers} more than full waves of {self.workers} workers"
            )

    @property
    def whole(self) -> int:
        """Output tiles that are not cut."""
        return self.tiles - (self.streamed or 0)

    @property
    def units(self) -> int:
        """K tiles that are laid end to end."""
        return (self.streamed or 0) * self.k_tiles

    @checked(PlanError)
    def start(self, worker: Integer, minimum: Minimum = least) -> Any:
        """The first unit of a worker. Its last is the one before the next worker's first."""
        each, more = divmod(self.units, self.workers)
        return worker * each + minimum(worker, more)

    @checked(PlanError)
    def segments(self, worker: int) -> tuple[Segment, ...]:
        """A worker's share: its whole tiles, then its part of the streamed ones."""
        if not 0 <= worker < self.workers:
            raise PlanError(f"there is no worker {worker} of {self.workers}")
        out = [Segment(tile, 0, self.k_tiles - 1) for tile in range(worker, self.whole, self.workers)]
        unit, end = self.start(worker), self.start(worker + 1)
        while unit < end:
            tile, first = divmod(unit, self.k_tiles)
            last = min(self.k_tiles, first + end - unit) - 1
            out.append(Segment(self.whole + tile, first, last))
            unit += last - first + 1
        return tuple(out)

    @checked(PlanError)
    def parts(self, tile: int) -> tuple[int, ...]:
        """The workers that do a tile, the one that finishes it first."""
        return tuple([w for w in range(self.workers) for s in self.segments(w) if s.tile == tile])

    @checked(PlanError)
    def workspace(self, tile_bytes: int) -> int:
        """Bytes of partial sums that are handed over. One tile of the accumulator for each part but a tile's first."""
        handed = sum(s.first > 0 for worker in range(self.workers) for s in self.segments(worker))
        return handed * tile_bytes

    @property
    def busiest(self) -> int:
        """K tiles of the worker that has most."""
        return self.whole // self.workers * self.k_tiles + -(-self.units // self.workers)

    def prove(self) -> Answer:
        """Check that every K tile belongs to one worker, at all sizes and worker counts."""
        return all_proven(_stream_statements(), "pieces, for all sizes")


def _stream_statements() -> Iterator[tuple[str, Answer]]:
    """units = workers * each + more: the first `more` workers have one unit more."""
    for name, given, more in (
        ("equal parts", Facts(), 0),
        ("parts that differ by one", Facts("workers > more"), "more"),
        # Fewer units than workers: `more` of them have one unit, the others none.
        ("fewer units than workers", Facts("workers > more"), "more"),
    ):
        workers = given["workers"]
        each = 0 if name.startswith("fewer") else given["each"]
        extra = given[more] if isinstance(more, str) else more
        units = workers * each + extra
        ranges: list[tuple[Scalar, Scalar, Layout]] = []
        if extra != 0:
            ranges.append((0, 0, Layout((each + 1, extra), (1, each + 1))))
        if each != 0:
            ranges.append((extra, extra * (each + 1), Layout((each, workers - extra), (1, each))))
        total: int = 0
        for first, start, layout in ranges:
            starts = prove_formulas(
                lambda w, first=first, each=each, extra=extra: (w + first) * each + least(w + first, extra),
                lambda w, start=start, layout=layout: start + layout(0, w),
                {"w": layout.shape[1]},
            )
            yield f"{name}: workers from {show(first)} on have units {show(start)} + {layout}", starts
            yield f"{name}: none of them twice", injective(layout)
            total = total + layout.size
        if len(ranges) == 2:
            (_, a, p), (_, b, q) = ranges
            yield f"{name}: the two kinds of workers share none", disjoint(p, q, b - a)
        whole = Proof("count", (), (f"{show(total)} of {show(units)}",)) if total == units else Undecided("the count")
        yield f"{name}: as many as there are", whole
    yield "a unit is one K tile of one output tile", numbered_once("k_tiles", "tiles")


def numbered_once(inner: str, outer: str) -> Answer:
    """Proof that i + count * o, with i below count, tells i and o. It holds for all counts, named by `inner` and
    `outer`."""
    given = Facts()
    count = given[inner]
    return prove_formulas(
        lambda i, o: ((i + count * o) % count, (i + count * o) // count),
        lambda i, o: (i, o),
        {"i": count, "o": given[outer]},
    )
