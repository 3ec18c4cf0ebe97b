"""The configuration of a product with a prologue. It was not measured: large tiles, by the rounds that they take."""

from __future__ import annotations

from functools import lru_cache

from ..config import Sm90Config
from .rounds import tile_of_rounds

# Tiles of C, and the warpgroups that multiply them. A's function is computed once a tile: tiles are wide.
_TILES = {(128, 256): 2, (128, 128): 2, (64, 256): 1, (64, 128): 1, (64, 64): 1}
_OVERHEAD = 128  # columns of a tile that its start, its store and A's function cost


@lru_cache(1024)
def prologue_config(m: int, n: int, batch: int = 1, multiprocessors: int | None = None) -> Sm90Config:
    """The configuration for M, N and the batch.

    >>> prologue_config(8192, 8192).tile, prologue_config(16, 4096).tile, prologue_config(512, 512).tile
    ((128, 256), (64, 64), (64, 64))
    """
    tile = tile_of_rounds(_TILES, m, n, _OVERHEAD, batch, multiprocessors)
    pairs = m > 2 * tile[0] and tile[0] == 128
    return Sm90Config(
        tile, consumers=_TILES[tile], loader="warpgroup", cluster=(2, 1) if pairs else (1, 1), chunks=1, buffers=2,
        l2_promotion="256B",
    )  # fmt: skip
