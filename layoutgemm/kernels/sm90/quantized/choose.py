"""The configuration of a product with packed weights: few rows stream weights, many are a GEMM.

Each kind of tile has an estimate: rounds of its clusters on the GPU's SMs, times K tiles of a part of K, times the
microseconds of one. What comes once is added. The times were fitted to products of 1 to 4096 rows with int4
weights of five shapes on an H100 (`benchmarks/NOTES.md`, "Packed weights of 4 and 8 bits").

rows up to 64    tiles of 64, 128 or 448 output features, K in up to 4 parts. First K tiles are brought to L2 before
                 the kernel before it ends. Few rows of a tile of 64 are multiplied by mma.sync
more             tiles of 64 to 256 output features and up to 128 rows; of 128 features and 224 rows; and of 128
                 features and 256 rows, in clusters of two that share x

With float8 activations a warpgroup also has the registers of a sum of its own. Tiles of 448 features, and of more than
192 rows, do not fit; their places are taken by 128 features and 192 rows. ptxas computes mma.sync of e4m3 in 16 bits
on sm_90a, so warpgroups multiply few rows, too. The estimates of more than 64 rows are those of 16 bits, times
`_FLOAT8`: on an H200 they found the fastest of up to seven kernels, or one that took up to 4% longer.
"""

from __future__ import annotations

from functools import cache

from ...quantized.formats import UNIT_K, UNIT_ROWS
from ..config import Sm90Config

_FEW = 64  # rows
_AHEAD = 4  # K tiles that are brought to L2 ahead
_ONCE = {1: 1.4, 2: 1.4, 4: 1.6}  # us of the start, the exchange of sums and the store, by parts of K
_FEW_ROWS = {64: 0.29, 128: 0.40, 448: 1.49}  # us of a K tile of 128, by the tile's output features
_TALL = 448, 2  # the tall tile, and the parts of K that it is measured in
_BY_WARPS = 16  # rows: the most of a tile of 64 features that mma.sync multiplies
_MANY_ROWS = {(64, 1): (0.47, 0.0), (64, 2): (0.47, 5.0), (128, 1): (0.72, 0.0), (256, 1): (1.367, 0.0)}
_WIDTH = 128  # rows of a tile of many
_WIDE = {(256, 2): 1.275, (224, 1): 1.13}  # us of a K tile of 128: tiles of 128 features, by (rows, CTAs of a cluster)
_WIDE_FLOAT8 = {(192, 1): 1.13}  # the same, before `_FLOAT8`
_FLOAT8 = 0.6  # of the time of a K tile of many rows: products take half as long, the rest as long
SMS = 132  # H100 SXM, H200


@cache
def packed_config(n: int, rows: int, k: int, sms: int = SMS, become: str = "bf16") -> Sm90Config:
    """The configuration for `rows` activations and weights (n, k), which become that type.

    >>> packed_config(8192, 1, 8192).tile, packed_config(4096, 128, 14336).split, packed_config(8192, 4096, 8192).tile
    ((128, 16), 2, (128, 256))
    """
    float8 = become == "e4m3"
    return _few(n, rows, k, sms, float8) if rows <= _FEW else _many(n, rows, k, sms, float8)


def experts_config(rows: int, experts: int, become: str = "bf16") -> Sm90Config:
    """The configuration for groups of rows, each times its expert's weights: tiles of half as many again as usual.

    Weights become that type.

    The sizes of groups are known on the device alone. A wider group takes several tiles, which read the weights again.

    >>> experts_config(292, 64).tile, experts_config(4096, 8).tile
    ((128, 8), (128, 128))
    """
    width = max(8, min(_WIDTH, -(-3 * rows // (16 * experts)) * 8))
    products = "warp" if width <= _BY_WARPS and become != "e4m3" else "warpgroup"
    loader = "warpgroup" if become == "e4m3" and width > _FEW else "warp"
    return Sm90Config((128, width), consumers=2, loader=loader, store="direct", products=products)


def _rounds(blocks: int, split: int, sms: int) -> int:
    """Rounds of clusters of `split` blocks; of four, two fewer fit than SMs say: they do not cross a GPC."""
    return -(-blocks // (sms // split - 2 * (split > 2)))


def _few(n: int, rows: int, k: int, sms: int, float8: bool) -> Sm90Config:
    """The tile and the parts of K with the least estimate; of equal ones the fewest parts."""
    k_tiles = -(-k // UNIT_K)
    found = []
    for tile, time in _FEW_ROWS.items():
        for split, once in _ONCE.items():
            tall_enough = tile != _TALL[0] or (split == _TALL[1] and rows <= _BY_WARPS and not float8)
            if split <= k_tiles and tall_enough:
                estimate = _rounds(-(-n // tile), split, sms) * -(-k_tiles // split) * time + once
                found.append((estimate, split, tile))
    _, split, tile = min(found)
    width = -(-rows // (8 * split)) * (8 * split)
    products = "warp" if tile == UNIT_ROWS and width <= _BY_WARPS and not float8 else "warpgroup"
    return Sm90Config(
        (tile, width), consumers=2 if tile == 2 * UNIT_ROWS else 1, split=split, single=split > 1, store="direct",
        loader="warp", overlap=True, prefetch=min(_AHEAD, k_tiles), products=products,
    )  # fmt: skip


def _many(n: int, rows: int, k: int, sms: int, float8: bool) -> Sm90Config:
    """The tile and the parts of K with the least estimate."""
    k_tiles, width = -(-k // UNIT_K), min(_WIDTH, -(-rows // 16) * 16)
    store, share = "tma" if n % 8 == 0 else "direct", _FLOAT8 if float8 else 1.0
    found: list[tuple[float, int, Sm90Config]] = []
    for (tile, split), (time, once) in _MANY_ROWS.items():
        if split <= k_tiles and not (float8 and tile == 256):
            blocks = -(-n // tile) * -(-rows // width)
            estimate = _rounds(blocks, split, sms) * -(-k_tiles // split) * time * share + once
            found.append((estimate, len(found), _many_config(tile, width, split, store, float8)))
    widths = _WIDE_FLOAT8 if float8 else _WIDE
    for (wide, along_m), time in widths.items() if rows > _WIDTH else ():
        clusters = -(-n // (128 * along_m)) * -(-rows // wide)
        config = Sm90Config(
            (128, wide), tile_k=64, consumers=2, loader="warpgroup", cluster=(along_m, 1), store=store
        )  # fmt: skip
        found.append((_rounds(clusters, along_m, sms) * k_tiles * time * share, len(found), config))
    return min(found)[2]


def _many_config(tile: int, width: int, split: int, store: str, float8: bool) -> Sm90Config:
    """The kernel of a tile of up to 128 rows."""
    if tile == 256:
        return Sm90Config((tile, width), tile_k=64, consumers=2, loader="warpgroup", store=store)
    if split > 1:
        return Sm90Config(
            (tile, width), tile_k=64, consumers=1, loader="warp", split=split, single=True, store=store
        )  # fmt: skip
    loader = "warpgroup" if float8 and tile > UNIT_ROWS else "warp"  # which leaves consumers more registers
    return Sm90Config((tile, width), consumers=tile // 64, loader=loader, store=store)
