"""The configuration of a product with packed weights by mma.sync. Measured on an H200 alone, not on an sm_80 GPU.

    rows of x      tile           K tile    stages     warps
    -----------    -----------    ------    -------    ---------------------------------------------
    up to 16       16x64, 128     128       up to 8    4 along N
    up to 32       32x64, 128     128       up to 8    4 along N
    more           64x64          128       up to 4    4 along N
                   64x128         64        up to 4    4 along N
    above 64       128x128        64        up to 4    2 along M, 4 along N
                   128x256        64        up to 4    8 along N; fragments as they are multiplied

K is in up to 8 parts where that leaves a multiprocessor 4 blocks of few rows, 3 of 64x64 tiles or one of others.

Few rows read weights: each is multiplied once for all rows. Their K tiles are deep, and many are in flight: a CTA of 64
features has 4 KiB of int4 in each. Of the features the most are taken with which there is a tile for each
multiprocessor; they read x fewer times. More rows take the tile for which all of them take least. With fragments one
depth ahead, a warp of 64x64 spills to local memory.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

from ....arch import arch as arch_named
from ....atoms import smem_tile
from ....checks import most_stages
from ....dtypes import bf16
from ....errors import PlanError
from ...plan import LEAST_STAGES, rounded_up
from ...quantized.blocks import DEPTHS
from ...quantized.formats import QuantizedFormat
from ..plan import Sm80Config

_FEW_ROWS, _FEW_FEATURES = (16, 32), (128, 64)


class _TimedTile(NamedTuple):
    """A tile of many rows. `us`: of one on each multiprocessor, for K = 8192 and int4 on an H200."""

    us: int
    depth: int
    warps: tuple[int, int]
    stages: int = 4


_TILES = {
    (128, 256): _TimedTile(188, DEPTHS[0], (1, 8)), (128, 128): _TimedTile(96, DEPTHS[0], (2, 4)),
    (64, 128): _TimedTile(56, DEPTHS[0], (1, 4)), (64, 64): _TimedTile(37, DEPTHS[1], (1, 4)),
}  # fmt: skip
_PARTS = (1, 2, 4, 8)  # of K
# Blocks of a multiprocessor, at most, where K is split: of few rows, of a tile; else 1.
_FEW_BLOCKS, _BLOCKS = 4, {(64, 64): 3}
_SPLIT_STAGES = {16: 4, 32: 3, 64: 3}  # where K is split, at most, by rows of a tile: several blocks fit
_EXPERTS_STAGES = {16: 4}  # the same for groups of rows
_LEAST_K_TILES = 8  # of a part
_SPILLS = 256  # features of a tile whose warps hold no fragments ahead


@cache
def packed_config(
    fmt: QuantizedFormat, rows: int, n: int, processors: int = 108, shared: int = 0, arch: str = "sm_80", k: int = 0
) -> Sm80Config:  # fmt: skip
    """The configuration for `rows` activations and weights of n output features.

    processors  multiprocessors of the GPU: 108 of an A100
    shared      bytes of shared memory that a block may have; 0: the architecture's
    k           of the product, which decides on the parts of K; 0: it is not split

    >>> int4 = QuantizedFormat("int4", 128)
    >>> [packed_config(int4, rows, 8192, 132).tile for rows in (1, 40, 128, 256, 4096)]
    [(16, 64), (64, 64), (64, 128), (128, 128), (128, 256)]
    """
    facts = arch_named(arch)
    room = min(shared or facts.smem_per_block, facts.smem_per_block)
    limited = replace(facts, smem_per_sm=room + facts.smem_reserved_per_block)
    for tile, how in _by_time(rows, n, processors):
        x = smem_tile((tile[0], how.depth), bf16, "K")
        stage = rounded_up(x.bytes + stage_bytes(fmt, tile[1], how.depth), x.alignment)
        stages = min(most_stages(limited, stage), how.stages)
        if stages >= LEAST_STAGES:
            split = _parts(tile, how.depth, (rows, n, k), processors)
            stages = min(stages, _SPLIT_STAGES.get(tile[0], stages)) if split > 1 else stages
            return Sm80Config(tile, how.depth, stages, how.warps, 8, ahead=tile[1] < _SPILLS, split=split)
    raise PlanError(f"{room} bytes of shared memory: 2 stages of packed weights do not fit")


def experts_config(
    fmt: QuantizedFormat, rows: int, experts: int, n: int, processors: int = 108, shared: int = 0, arch: str = "sm_80"
) -> Sm80Config:  # fmt: skip
    """The configuration for groups of rows, each times its expert's weights. Tiles of half as many again as usual.

    n  output features of an expert; others as `packed_config`. Only tiles of 16 rows were timed

    >>> int4 = QuantizedFormat("int4", 128)
    >>> experts_config(int4, 292, 64, 2816).tile, experts_config(int4, 4096, 8, 2816).tile
    ((16, 128), (128, 256))
    """
    usual = max(1, -(-3 * rows // (2 * experts)))
    config = packed_config(fmt, usual, n * min(rows, experts), processors, shared, arch)
    most = _EXPERTS_STAGES.get(config.tile[0])
    return config if most is None else replace(config, stages=min(most, config.stages or most))


def _by_time(rows: int, n: int, processors: int) -> list[tuple[tuple[int, int], _TimedTile]]:
    """Tiles for `rows` rows and n features, the fastest first."""

    def rounds(tile: tuple[int, int]) -> float:
        return max(1.0, -(-rows // tile[0]) * -(-n // tile[1]) / processors)

    if rows <= _FEW_ROWS[-1]:
        height = next(x for x in _FEW_ROWS if rows <= x)
        few = _TimedTile(0, DEPTHS[1], (1, 4), 8)
        filled = [width for width in _FEW_FEATURES if -(-n // width) >= processors]
        return [((height, width), few) for width in (*filled, _FEW_FEATURES[-1])]
    tiles = [tile for tile in _TILES if tile[0] <= 64 or rows > 64]
    return [(tile, _TILES[tile]) for tile in sorted(tiles, key=lambda tile: rounds(tile) * _TILES[tile].us)]


def _parts(tile: tuple[int, int], depth: int, sizes: tuple[int, int, int], processors: int) -> int:
    """Parts of K of a C of few tiles: as many as leave each multiprocessor `_BLOCKS` blocks, and each part K tiles."""
    rows, n, k = sizes
    blocks, k_tiles = -(-rows // tile[0]) * -(-n // tile[1]), -(-k // depth)
    most = _BLOCKS.get(tile, _FEW_BLOCKS if tile[0] <= _FEW_ROWS[-1] else 1) * processors
    able = [parts for parts in _PARTS if blocks * parts <= most and k_tiles >= parts * _LEAST_K_TILES]
    return max(able, default=1)


def stage_bytes(fmt: QuantizedFormat, features: int, depth: int) -> int:
    """Bytes of a stage's packed weights, at most.

    >>> stage_bytes(QuantizedFormat("int4", 128), 64, 128)
    4224
    """
    scales = 0 if fmt.group is None else -(-depth // fmt.group) * 2 * (1 + fmt.zeros)
    return features * (depth * fmt.bits // 8 + scales)
