"""The configuration of a product with packed weights, by an estimate: few rows stream weights, many are a GEMM.

rows up to 64    tiles of 64 or 128 output features; K in parts until every SM has one; time is that of the busiest
                 SM's K tiles, and of what comes once
more             tiles of 128 output features and up to 256 rows, K tiles of 64
"""

from __future__ import annotations

from functools import cache
from itertools import product

from ..config import Sm90Config
from .formats import UNIT_K

_FEW = 64  # rows
_ONCE = 12  # K tiles: what a CTA takes for its start, its exchange of sums and its store
_SPLITS, _ROWS_OF_TILE = (1, 2, 4, 8), (64, 128)
SMS = 132  # H100 SXM, H200


@cache
def packed_config(n: int, rows: int, k: int, sms: int = SMS) -> Sm90Config:
    """The configuration for `rows` activations and weights (n, k).

    >>> packed_config(8192, 1, 8192).tile, packed_config(8192, 4096, 8192).tile
    ((64, 8), (128, 256))
    """
    store = "tma" if n % 8 == 0 else "direct"
    if rows <= _FEW:
        return _few(n, rows, k, sms)
    width = min(256, -(-rows // 32) * 32) if rows <= 256 else 256
    while width > 64 and -(-n // 128) * -(-rows // width) < sms:
        width -= 32
    return Sm90Config((128, width), tile_k=64, consumers=2, loader="warpgroup", store=store)


def _few(n: int, rows: int, k: int, sms: int) -> Sm90Config:
    """The tile and the parts of K with the least estimate; of equal ones the fewest parts."""
    k_tiles = -(-k // UNIT_K)
    found = []
    for tile, split in product(_ROWS_OF_TILE, _SPLITS):
        if split > k_tiles:
            continue
        blocks = -(-n // tile) * split
        each = -(-k_tiles // split) * tile // _ROWS_OF_TILE[0]
        found.append((-(-blocks // sms) * each + _ONCE * (1 + (split > 1)), split, tile))
    _, split, tile = min(found)
    width = -(-rows // (8 * split)) * (8 * split)
    return Sm90Config((tile, width), consumers=tile // 64, split=split, single=split > 1, store="direct", loader="warp")
