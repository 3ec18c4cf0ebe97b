"""The tile whose rounds over all multiprocessors take least: for kernels that have no cost model."""

from __future__ import annotations

from collections.abc import Iterable

from .occupancy import ClusterOccupancy

_LEAST_ROWS = 128  # that a tile costs, as far as its columns count


def tile_of_rounds(
    tiles: Iterable[tuple[int, int]], m: int, n: int, overhead: int, batch: int = 1, multiprocessors: int | None = None
) -> tuple[int, int]:
    """The tile of M x N of `batch` matrices.

    overhead  columns of a tile that its start, its store, and whatever else it does once cost

    >>> [tile_of_rounds([(128, 256), (64, 64)], size, size, 64) for size in (512, 8192)]
    [(64, 64), (128, 256)]
    """
    places = multiprocessors or ClusterOccupancy().multiprocessors

    def work(tile: tuple[int, int]) -> int:
        count = -(-m // tile[0]) * -(-n // tile[1]) * batch
        return -(-count // places) * max(tile[0], _LEAST_ROWS) * (tile[1] + overhead)

    return min(tiles, key=work)
