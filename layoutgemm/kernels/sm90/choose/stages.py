"""Budgets of a Hopper tile: warpgroups, stages, and buffers of the store."""

from __future__ import annotations

from functools import cache

from ....arch import arch
from ....checks.budgets import most_stages
from ...plan import STAGE_BYTES_OF_K
from ...store import ROWS
from ..smem import exchange_bytes, stage_bytes

TALL = 192  # rows of three warpgroups
FEW = 3  # stages that leave memory waiting


def warpgroups(tile: tuple[int, int], once: bool, pingpong: bool = False) -> int:
    """Warpgroups that multiply: one for tiles that it can hold alone, three for 192 rows.

    once  each block has one tile: a warpgroup alone stores the first 64 of 128 rows under the others' products

    >>> [warpgroups(tile, once=True) for tile in ((64, 256), (128, 192), (128, 256), (192, 152), (256, 224))]
    [1, 1, 2, 3, 2]
    """
    rows, columns = tile
    if rows == TALL:
        return 3
    alone = rows == 64 or rows * columns <= 128 * 128 or (rows == 128 and columns <= 192 and once)
    return 1 if alone and not pingpong else 2


def sent(tile: tuple[int, int], split: int) -> int:
    """Bytes of partial sums that a split-K CTA sends, and receives.

    >>> sent((128, 160), 2), sent((128, 160), 4), sent((128, 160), 1)
    (40960, 61440, 0)
    """
    return tile[0] * tile[1] * 4 // split * (split - 1)


@cache
def stages(tile: tuple[int, int], consumers: int, buffers: int, sums: int = 0) -> int:
    """Stages of 128 bytes of K that fit beside the store's buffers.

    sums  bytes of partial sums that other blocks send: `sent`

    >>> stages((256, 224), 2, 2), stages((192, 184), 3, 2), stages((192, 184), 3, 1), stages((128, 160), 2, 0, 40960)
    (3, 3, 4, 5)
    """
    each = stage_bytes(*[extent * STAGE_BYTES_OF_K for extent in tile])
    store = buffers * consumers * ROWS * STAGE_BYTES_OF_K
    return most_stages(arch("sm_90a"), each, store + exchange_bytes(sums))


def buffers(tile: tuple[int, int], consumers: int) -> int:
    """The store's buffers. One where that leaves a fourth stage, or a further one of 192 rows; else two.

    256x136 takes 2 to 13% less time so, 192 rows of one wave up to 16%. Elsewhere one buffer gains 0.3% (tiles in turn)
    or nothing, or costs 0.5%.

    >>> buffers((256, 152), 2), buffers((256, 224), 2), buffers((192, 184), 3), buffers((128, 208), 2)
    (1, 2, 1, 2)
    """
    two = stages(tile, consumers, 2)
    more = stages(tile, consumers, 1) > two
    return 1 if more and (two <= FEW or tile[0] == TALL) else 2
