"""Reuse of A and B by concurrent tiles. The L2 and memory reads that a schedule saves.

A wave is the tiles that run together. Every tile needs the row panel of A (BM rows, all of K) and the column panel of B
(BN columns) that it lies in. Tiles of one wave that share a panel read it once from memory and then from L2. The count
is of panels in waves, exact for tiles that keep step; what one wave leaves in L2 for the next is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..arguments import checked
from ..errors import PlanError
from ..lazy_numpy import np
from .tile_order import tiles_of

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class Reuse:
    """Panels that the waves of a schedule read.

    wave           tiles that run together
    rows, columns  of each wave, how many row panels of A and column panels of B its tiles lie in
    tiles          tiles of all waves
    tile           (BM, BN): what a panel of A and one of B weigh
    grid           (rows, columns) of the tiles visited
    """

    wave: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    tiles: int
    tile: tuple[int, int]
    grid: tuple[int, int]

    @property
    def read(self) -> int:
        """Rows of A and columns of B read, each panel once a wave. Times K they are elements."""
        return sum(self.rows) * self.tile[0] + sum(self.columns) * self.tile[1]

    @property
    def wanted(self) -> int:
        """The same if every tile read its own."""
        return self.tiles * sum(self.tile)

    @property
    def factor(self) -> float:
        """The uses of each panel that was read: wanted / read."""
        return self.wanted / self.read

    @property
    def best(self) -> float:
        """The factor that no order of these waves exceeds. Each wave the rectangle of tiles that reads least."""
        least = 0
        for start in range(0, self.tiles, self.wave):
            count = min(self.wave, self.tiles - start)
            least += min(
                rows * self.tile[0] + -(-count // rows) * self.tile[1]
                for rows in range(1, self.grid[0] + 1)
                if -(-count // rows) <= self.grid[1]
            )
        return self.wanted / least

    def __str__(self) -> str:
        return (
            f"waves of {self.wave}: {sum(self.rows)} row panels and {sum(self.columns)} column panels for {self.tiles} "
            f"tiles, each used {self.factor:.2f} times; no order exceeds {self.best:.2f}"
        )


@checked(PlanError)
def reuse(order: npt.ArrayLike, wave: int, tile: tuple[int, int] = (1, 1)) -> Reuse:
    """The panels that an order of tiles reads in waves of `wave` tiles.

    order  [number] -> (row, column), from `Schedule.table` or `Persistent.order`
    wave   tiles that run together: multiprocessors times blocks on each
    tile   (BM, BN), the weights of a row panel and a column panel

    Raises PlanError for an empty order or a wave below 1.

    >>> from layoutgemm.schedule.tile_order import Grouped, Linear
    >>> for schedule in (Linear(), Grouped(group=8)):
    ...     print(reuse(schedule.table((64, 64)), 132, (128, 256)))
    waves of 132: 1988 row panels and 94 column panels for 4096 tiles, each used 5.65 times; no order exceeds 11.94
    waves of 132: 308 row panels and 528 column panels for 4096 tiles, each used 9.01 times; no order exceeds 11.94
    """
    tiles = tiles_of(order)
    if not len(tiles) or min(wave, *tile) < 1:
        raise PlanError(f"reuse of {len(tiles)} tiles of {tile} in waves of {wave}: each is to be 1 or more")
    parts = [tiles[i : i + wave] for i in range(0, len(tiles), wave)]
    rows, columns = (tuple([len(np.unique(part[:, axis])) for part in parts]) for axis in (0, 1))
    rows_of, columns_of = (int(np.ptp(tiles[:, axis])) + 1 for axis in (0, 1))
    return Reuse(wave, rows, columns, len(tiles), tile, (rows_of, columns_of))
