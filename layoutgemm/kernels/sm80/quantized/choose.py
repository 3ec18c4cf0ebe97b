"""The configuration of a product with packed weights by mma.sync. Nothing of it was measured on an sm_80 GPU.

    rows of x      tile's rows    features         K tile    warps
    -----------    -----------    -------------    ------    -----------------------------
    up to 16       16             64 or 128        128       4 along N
    up to 32       32             64 or 128        128       4 along N
    up to 64       64             64 or 128        64        4 along N
    more           128            64, 128, 256     64        2 along M, 2 or 4 along N

Few rows read weights: each is multiplied once for all rows, and K tiles are deep. Of the features the most are taken
with which there is a tile for each multiprocessor; they read x fewer times.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from ....arch import arch as arch_named
from ....checks import most_stages
from ...quantized.blocks import DEPTHS
from ...quantized.formats import QuantizedFormat
from ..plan import Sm80Config

_ROWS = (16, 32, 64, 128)
_FEATURES = (256, 128, 64)
_DEEP = 32  # rows: up to these a K tile is a whole unit
_STAGES = 4
_LARGE = 128  # rows: with these 256 features, too


@cache
def packed_config(
    fmt: QuantizedFormat, rows: int, n: int, k: int, processors: int = 108, shared: int = 0, arch: str = "sm_80"
) -> Sm80Config:
    """The configuration for `rows` activations and weights (n, k).

    processors  multiprocessors of the GPU: 108 of an A100
    shared      bytes of shared memory that a block may have; 0: the architecture's. 99 KiB on 8.6 and 8.9

    >>> int4 = QuantizedFormat("int4", 128)
    >>> [packed_config(int4, rows, 8192, 8192).tile for rows in (1, 40, 4096)]
    [(16, 64), (64, 64), (128, 256)]
    """
    height = next((x for x in _ROWS if rows <= x), _ROWS[-1])
    depth = DEPTHS[1] if height <= _DEEP else DEPTHS[0]
    facts = arch_named(arch)
    room = min(shared or facts.smem_per_block, facts.smem_per_block)
    found = Sm80Config((height, _FEATURES[-1]), depth, 2, _warps(height, _FEATURES[-1]), 8)
    for width in _FEATURES:
        tiles = -(-rows // height) * -(-n // width)
        if (width > _LARGE and height < _LARGE) or (tiles < processors and width > _FEATURES[-1]):
            continue
        stage = height * depth * 2 + stage_bytes(fmt, width, depth)
        stages = min(most_stages(replace(facts, smem_per_block=room), stage), _STAGES)
        if stages >= 2:
            return replace(found, tile=(height, width), stages=stages, warps=_warps(height, width))
    return found


def stage_bytes(fmt: QuantizedFormat, features: int, depth: int) -> int:
    """Bytes of a stage's packed weights, at most.

    >>> stage_bytes(QuantizedFormat("int4", 128), 64, 128)
    4224
    """
    scales = 0 if fmt.group is None else -(-depth // fmt.group) * 2 * (1 + fmt.zeros)
    return features * (depth * fmt.bits // 8 + scales)


def _warps(height: int, width: int) -> tuple[int, int]:
    if height < _LARGE:
        return 1, 4
    return 2, 4 if width > _LARGE else 2
