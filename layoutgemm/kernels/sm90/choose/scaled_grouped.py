"""Configurations of scaled and grouped products on Hopper, as measured on an H100.

A scaled product is estimated for each tile and split of K: memory against products, waves of CTAs, the exchange of
partial sums. Groups have one rule each for their average rows: the record has too few of them for a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ...plan import STAGE_BYTES_OF_K
from ..config import Sm90Config
from ..mainloop import DEPTH
from .costs import cost_model

MODEL = cost_model("promoted", "h100")
_MOST_WAVES = 4  # of CTAs that compute one tile; more are persistent ones' business
_EACH_COLUMN = 64  # columns of a tile at most if each has a scale, of which a thread reads a quarter of the tile's
_TIE = 0.01  # share of the time of all loads, by which fewer loads win where nothing else tells
_MASKED_ROWS = 128
_MAX_LOADED_ROWS = 56  # rows of A's tile that are loaded apart from zeros: less than all 64


@lru_cache(4096)
def scaled_config(
    m: int, n: int, k: int, *, batch: int = 1, each_column: bool = False, multiprocessors: int | None = None
) -> Sm90Config:
    """The configuration of a scaled product that is estimated fastest.

    each_column  every column of B has a scale

    >>> scaled_config(64, 2112, 7168).tile, scaled_config(64, 2112, 7168).split
    ((64, 32), 2)
    >>> scaled_config(4096, 7168, 16384).tile, scaled_config(4096, 2112, 7168).tile
    ((256, 128), (192, 128))
    """
    places = multiprocessors or MODEL.multiprocessors
    return scaled_candidates((m, n, k, batch), each_column, places)[0]


def scaled_candidates(sizes: tuple[int, int, int, int], each_column: bool, places: int) -> list[Sm90Config]:
    """The configurations of a scaled product for so many multiprocessors, the one estimated fastest first.

    sizes  M, N, K and the batch

    >>> [config.tile for config in scaled_candidates((64, 24576, 1536, 1), False, 132)][:2]
    [(64, 128), (128, 128)]
    """
    found = [*_one_tile_each(sizes, each_column, places), *_persistent(sizes, each_column, places)]
    return [config for _, config in sorted(found, key=lambda candidate: candidate[0])]


def _one_tile_each(
    sizes: tuple[int, int, int, int], each_column: bool, places: int
) -> Iterator[tuple[float, Sm90Config]]:
    """(seconds, configuration) of CTAs that compute one tile each, or a part of its K."""
    m, _, k, _ = sizes
    k_blocks, memory = -(-k // DEPTH), _memory(sizes)
    for tile, step in MODEL.step.items():
        for parts, exchange in MODEL.exchange.items():
            waves = -(-_tiles(sizes, tile) * parts // places)
            if parts > k_blocks or waves > _MOST_WAVES or tile[1] % (8 * parts):  # each part stores 8 columns or more
                continue
            if each_column and tile[1] > _EACH_COLUMN * 64 // tile[0]:  # what the launch's threads have registers for
                continue
            products = waves * -(-k_blocks // parts) * step
            loads = _tiles(sizes, tile) * k_blocks * DEPTH * sum(tile) / MODEL.l2
            seconds = max(memory, products, loads) + MODEL.added * min(memory, products) + _TIE * loads
            rows = -(-m // 8) * 8 if m <= _MAX_LOADED_ROWS and tile[0] == 64 else None
            yield (
                MODEL.start + seconds + (waves - 1) * MODEL.wave + exchange,
                Sm90Config(
                    tile, consumers=tile[0] // 64, loader="warp", rows=rows, single=True, split=parts, chunks=1,
                    buffers=1, overlap=True,
                ),
            )  # fmt: skip


def _persistent(sizes: tuple[int, int, int, int], each_column: bool, places: int) -> Iterator[tuple[float, Sm90Config]]:
    """(seconds, configuration) of persistent clusters that take tile after tile."""
    k_blocks, memory = -(-sizes[2] // DEPTH), _memory(sizes)
    for tile, step in MODEL.full_step.items():
        if (tile[1] <= _EACH_COLUMN) != each_column:
            continue
        cluster = _sharing(sizes, tile)
        blocks = cluster[0] * cluster[1]
        waves = -(-_tiles(sizes, tile, cluster) * blocks // (places // blocks * blocks))
        products = waves * (k_blocks * step + MODEL.full_end[tile])
        yield (
            max(MODEL.full_start + products, MODEL.full_wait + memory + MODEL.added * products),
            Sm90Config(
                tile, consumers=3 if tile[0] == 192 else 2, loader="warpgroup", cluster=cluster, chunks=1,
                buffers=1 if tile[0] > 128 else 2,
            ),
        )  # fmt: skip


def _memory(sizes: tuple[int, int, int, int]) -> float:
    """Seconds to read A and B once, of 8 bits, and write C, of 16."""
    m, n, k, batch = sizes
    return batch * (m * k + n * k + 2 * m * n) / MODEL.memory


def _sharing(sizes: tuple[int, int, int, int], tile: tuple[int, int]) -> tuple[int, int]:
    """The CTAs of a cluster that share loads: two, unless more than 3% of the CTAs would be outside of C.

    Two along N share A, the larger load of a tile of 256 rows.
    """
    pairs = ((1, 2), (2, 1)) if tile[0] > 192 else ((2, 1), (1, 2))
    return next((x for x in pairs if 2 * _tiles(sizes, tile, x) <= 1.03 * _tiles(sizes, tile)), (1, 1))


def _tiles(sizes: tuple[int, int, int, int], tile: tuple[int, int], cluster: tuple[int, int] = (1, 1)) -> int:
    """Tiles of clusters of a product."""
    m, n, _, batch = sizes
    return -(-m // (tile[0] * cluster[0])) * -(-n // (tile[1] * cluster[1])) * batch


def grouped_config(rows: int, k_bytes: int = 1 << 16, wide: bool = False) -> Sm90Config:
    """The configuration for groups of so many rows on average. A tile is one group's.

    k_bytes  bytes of a row of A: a tile that is finished by blocks has two k tiles or more
    wide     C has 32 bits an element: its store takes the shared memory of stages

    >>> grouped_config(8192).tile, grouped_config(192).tile, grouped_config(20).tile
    ((256, 192), (192, 160), (64, 176))
    """
    if rows <= 64:
        tile = (64, 176) if rows <= 32 else (64, 256)
        return Sm90Config(tile, consumers=1, loader="warp", chunks=1, buffers=2, l2_promotion="256B")
    if wide or rows <= 128:
        return Sm90Config((128, 256), cluster=(1, 2), chunks=1, buffers=1 if wide else 2, l2_promotion="256B")
    if rows <= 192:
        return Sm90Config((192, 160), consumers=3, cluster=(1, 2), chunks=1, buffers=2, l2_promotion="256B")
    if rows <= 1024:
        return Sm90Config((128, 256), cluster=(2, 1), along="N", chunks=1, buffers=2, l2_promotion="256B")
    early = 2 if k_bytes > STAGE_BYTES_OF_K else 0
    return Sm90Config((256, 192), cluster=(1, 2), early=early, group=16, chunks=1, buffers=2, l2_promotion="256B")


def masked_rows(most: int) -> int:
    """The rows a group that masked groups are estimated for, of `most` at most: the host knows no counts.

    Tiles of 128 rows. For few rows a group, memory bounds them still: a tile of B of 128 bytes of K and its products
    take 1.4 us at 1/132 of 3 TB/s, and 0.6 us. For many, they are the tiles of 193 to 1024 rows.

    >>> masked_rows(20), masked_rows(4096)
    (20, 128)
    """
    return min(most, _MASKED_ROWS)


def grouped_scaled_config(rows: int, each_column: bool = False) -> Sm90Config:
    """The same for groups whose products are scaled.

    >>> grouped_scaled_config(8192).tile, grouped_scaled_config(192).tile, grouped_scaled_config(64, True).tile
    ((256, 128), (192, 128), (64, 64))
    """
    if rows <= 64:
        return Sm90Config((64, 64), consumers=1, loader="warp", chunks=1, buffers=1)
    if rows <= 128 or each_column:
        return Sm90Config((128, _EACH_COLUMN if each_column else 128), loader="warpgroup", chunks=1, buffers=1)
    if rows <= 192:
        return Sm90Config((192, 128), consumers=3, chunks=1, buffers=1)
    return Sm90Config((256, 128), loader="warpgroup", cluster=(2, 1), chunks=1, buffers=1)
