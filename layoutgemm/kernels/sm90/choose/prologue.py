"""The configuration of a product with a prologue: the kernel whose K tiles, round after round, take least time.

A's function is computed once for each tile of C that reads the element, by the warpgroup that multiplies it. Of few
rows it takes longer than the product: wide tiles, in two parts of K, compute it least often.
"""

from __future__ import annotations

from functools import lru_cache

from ..config import Sm90Config
from .occupancy import ClusterOccupancy

# Microseconds of a K tile of 64, by the tile of C: the mean of a scale a row, RMSNorm's and SiLU's function, on an H200
# (benchmarks/bench_prologue.py). A tile of 128 rows has two consumers.
_STEP = {(64, 64): 0.23, (64, 128): 0.31, (64, 256): 0.43, (128, 128): 0.52, (128, 256): 0.80}
_K, _END = 64, 3.0  # K of a step, and microseconds more of a round
_EXCHANGE = 2.0  # more where two CTAs share a tile's K
_LEAST_K_OF_PARTS = 1024  # below, a part is over before its loads are under way
_SHARED_K = 2  # parts


@lru_cache(1024)
def prologue_config(m: int, n: int, k: int, batch: int = 1, multiprocessors: int | None = None) -> Sm90Config:
    """The configuration for M, N, K and the batch.

    >>> [prologue_config(m, 4096, 4096).tile for m in (64, 256, 512, 4096)]
    [(64, 64), (64, 256), (64, 256), (128, 256)]
    >>> [prologue_config(m, 4096, 4096).split for m in (64, 256, 512)]
    [2, 2, 1]
    """
    places = multiprocessors or ClusterOccupancy().multiprocessors

    def seconds(way: tuple[tuple[int, int], int]) -> float:
        tile, parts = way
        rounds = -(-_tiles(m, n, batch, tile) * parts // places)
        return rounds * (-(-k // (_K * parts)) * _STEP[tile] + _END) + _EXCHANGE * (parts > 1)

    ways = [(tile, parts) for tile in _STEP for parts in ((1, _SHARED_K) if k >= _LEAST_K_OF_PARTS else (1,))]
    tile, parts = min(ways, key=seconds)
    consumers, pairs = tile[0] // 64, tile[0] > 64 and m > 2 * tile[0]
    if parts == 1 and (pairs or _tiles(m, n, batch, tile) > places):
        return Sm90Config(
            tile, consumers=consumers, loader="warpgroup", cluster=(2, 1) if pairs else (1, 1), chunks=1, buffers=2,
            l2_promotion="256B",
        )  # fmt: skip
    loader = "warp" if consumers == 1 else "warpgroup"  # whose registers two consumers need
    return Sm90Config(
        tile, consumers=consumers, loader=loader, one_tile_per_cluster=True, split=parts, chunks=2, buffers=1,
        overlap=True, prefetch=2,
    )  # fmt: skip


def _tiles(m: int, n: int, batch: int, tile: tuple[int, int]) -> int:
    """Tiles of C."""
    return -(-m // tile[0]) * -(-n // tile[1]) * batch
