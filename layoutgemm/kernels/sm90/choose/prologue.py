"""The configuration of a product with a prologue. The kernel whose K tiles, round after round, take least time.

A's function is computed once for each tile of C that reads the element, by the warpgroup that multiplies it. Of few
rows it takes longer than the product: wide tiles, in two parts of K, compute it least often.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ....errors import LayoutError
from ...epilogue.chain import Epilogue
from ...operands.prologue import Prologue
from ...plan import present
from ...ragged import AlongK, Ragged
from ...store import ROWS
from ..config import Sm90Config
from ..plan import Sm90Plan
from .occupancy import ClusterOccupancy

# Microseconds of a K tile of 64, by the tile of C: the mean of a scale a row, RMSNorm's and SiLU's function, on an H200
# (benchmarks/bench_prologue.py). A tile of 128 rows has two consumers.
_STEP = {(64, 64): 0.23, (64, 128): 0.31, (64, 256): 0.43, (128, 128): 0.52, (128, 256): 0.80}
_K, _END = 64, 3.0  # K of a step, and microseconds more of a round
_EXCHANGE = 2.0  # more where two CTAs share a tile's K
_LEAST_K_OF_PARTS = 1024  # below, a part is over before its loads are under way
_SHARED_K = 2  # parts


@lru_cache(1024)
def prologue_candidates(
    m: int, n: int, k: int, batch: int = 1, multiprocessors: int | None = None
) -> tuple[Sm90Config, ...]:
    """The configurations for M, N, K and the batch, the one estimated fastest first.

    >>> [(config.tile, config.split) for config in prologue_candidates(256, 4096, 4096)][:2]
    [((64, 256), 2), ((128, 128), 2)]
    """
    places = multiprocessors or ClusterOccupancy().multiprocessors

    def seconds(way: tuple[tuple[int, int], int]) -> float:
        tile, parts = way
        rounds = -(-_tiles(m, n, batch, tile) * parts // places)
        return rounds * (-(-k // (_K * parts)) * _STEP[tile] + _END) + _EXCHANGE * (parts > 1)

    ways = [(tile, parts) for tile in _STEP for parts in ((1, _SHARED_K) if k >= _LEAST_K_OF_PARTS else (1,))]
    return tuple(
        _config(tile, parts, m, _tiles(m, n, batch, tile) > places) for tile, parts in sorted(ways, key=seconds)
    )


def prologue_config(m: int, n: int, k: int, batch: int = 1, multiprocessors: int | None = None) -> Sm90Config:
    """The configuration for M, N, K and the batch that is estimated fastest.

    >>> [prologue_config(m, 4096, 4096).tile for m in (64, 256, 512, 4096)]
    [(64, 64), (64, 256), (64, 256), (128, 256)]
    >>> [prologue_config(m, 4096, 4096).split for m in (64, 256, 512)]
    [2, 2, 1]
    """
    return prologue_candidates(m, n, k, batch, multiprocessors)[0]


@lru_cache(1024)
def grouped_prologue_config(
    rows: int, n: int, k: int, groups: int, multiprocessors: int | None = None
) -> Sm90Config:  # fmt: skip
    """The configuration for groups of `rows` rows on average. A tile is one group's, and a CTA takes several.

    >>> [grouped_prologue_config(rows, 4096, 4096, 8).tile for rows in (16, 128, 4096)]
    [(64, 256), (128, 256), (128, 256)]
    """
    places = multiprocessors or ClusterOccupancy().multiprocessors

    def seconds(tile: tuple[int, int]) -> float:
        return -(-_tiles(rows, n, groups, tile) // places) * (-(-k // _K) * _STEP[tile] + _END)

    return _config(min(_STEP, key=seconds), 1, rows, True)


def _config(tile: tuple[int, int], parts: int, m: int, many: bool) -> Sm90Config:
    """The kernel of a tile and parts of K; `many`: there are more tiles than multiprocessors."""
    consumers, pairs = tile[0] // ROWS, tile[0] > ROWS and m > 2 * tile[0]
    if parts == 1 and (pairs or many):
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


@lru_cache(maxsize=1024)
def plan_with_prologue(
    sizes: tuple[int, int, int, int], names: tuple[str, str, str], prologue: Prologue, epilogue: Epilogue | None,
    config: Sm90Config | None, multiprocessors: int, groups: Ragged | AlongK | None = None, rows: int | None = None,
) -> Sm90Plan:  # fmt: skip
    """The plan of M, N, K and a batch, or groups of rows or K. Raises the first refusal if no configuration has one.

    names   types and orders of A, B and C
    config  a caller's own; None for that which is estimated fastest, or a small tile of every order and result
    rows    a group that tiles are chosen for; None for the average

    >>> relu = Prologue.of(lambda x, i, k, ops: ops.maximum(x, 0.0))
    >>> plan_with_prologue((512, 512, 512, 1), ("bf16", "bf16:col", "bf16"), relu, None, None, 132).tile
    (64, 64, 64)
    """
    (m, n, k, batch), (a, b, c) = sizes, names
    if config is not None:
        first = config
    elif groups is None:
        first = prologue_config(m, n, k, batch, multiprocessors)
    elif isinstance(groups, AlongK):
        first = grouped_prologue_config(m, n, -(-k // batch), batch, multiprocessors)
    else:
        each = m if groups.masked else -(-m // batch)
        first = grouped_prologue_config(each if rows is None else rows, n, k, batch, multiprocessors)
    spare = Sm90Config((64, 64), consumers=1, loader="warp")
    of: dict[str, Any] = {"along_k" if isinstance(groups, AlongK) else "ragged": groups}
    refused: LayoutError | None = None
    for found in (first,) if config is not None else (first, spare):
        try:
            return Sm90Plan.derive(
                m, n, k, batch=batch, a=a, b=b, c=c, config=found, epilogue=epilogue, prologue=prologue, **of
            )  # fmt: skip
        except LayoutError as error:
            refused = refused or error
    raise present(refused)
