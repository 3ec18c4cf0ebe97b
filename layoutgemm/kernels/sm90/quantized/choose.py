"""The configuration of a product with packed weights: few rows stream weights, many are a GEMM.

rows up to 64    tiles of 64 or 128 output features; K in parts until every SM has one; time is that of the busiest
                 SM's K tiles, and of what comes once. First K tiles are brought to L2 before the kernel before it ends
up to 128        tiles of 64 output features
up to 512        tiles of 128 output features, K tiles of 128
more             tiles of 256 output features and 128 rows, K tiles of 64

The kinds are those that were fastest for int4 weights of 8192 x 8192 on an H100 (`benchmarks/NOTES.md`).
"""

from __future__ import annotations

from functools import cache
from itertools import product

from ..config import Sm90Config
from .formats import UNIT_K

_FEW, _SOME, _MORE = 64, 128, 512  # rows
_ONCE = 12  # K tiles: what a CTA takes for its start, its exchange of sums and its store
_SPLITS = (1, 2, 4)  # each part of K stores its columns: 8 at least
_K_TILE = {64: 1.0, 128: 1.05}  # time of a K tile by the tile's output features: two consumers read twice as much
_AHEAD = 4  # K tiles that are brought to L2 ahead
SMS = 132  # H100 SXM, H200


@cache
def packed_config(n: int, rows: int, k: int, sms: int = SMS) -> Sm90Config:
    """The configuration for `rows` activations and weights (n, k).

    >>> packed_config(8192, 1, 8192).tile, packed_config(8192, 4096, 8192).tile
    ((128, 16), (256, 128))
    """
    store = "tma" if n % 8 == 0 else "direct"
    if rows <= _FEW:
        return _few(n, rows, k, sms)
    if rows <= _SOME:
        width = -(-rows // 8) * 8
        return Sm90Config((64, width), consumers=1, loader="warp", store=store)
    if rows <= _MORE:
        return Sm90Config((128, 128), consumers=2, loader="warp", store=store)
    return Sm90Config((256, 128), tile_k=64, consumers=2, loader="warpgroup", store=store)


def _few(n: int, rows: int, k: int, sms: int) -> Sm90Config:
    """The tile and the parts of K with the least estimate; of equal ones the fewest parts."""
    k_tiles = -(-k // UNIT_K)
    found = []
    for tile, split in product(_K_TILE, _SPLITS):
        if split > k_tiles:
            continue
        blocks = -(-n // tile) * split
        each = -(-k_tiles // split) * _K_TILE[tile]
        found.append((-(-blocks // sms) * each + _ONCE * (1 + (split > 1)), split, tile))
    _, split, tile = min(found)
    width = -(-rows // (8 * split)) * (8 * split)
    return Sm90Config(
        (tile, width), consumers=tile // 64, split=split, single=split > 1, store="direct", loader="warp", overlap=True,
        prefetch=min(_AHEAD, k_tiles),
    )  # fmt: skip
