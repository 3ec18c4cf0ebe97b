"""The configuration of a product with packed weights by mma.sync. Nothing of it was measured on an sm_80 GPU.

    rows of x      tile's rows    features         K tile    stages     warps
    -----------    -----------    -------------    ------    -------    -----------------------------
    up to 16       16             64 or 128        128       up to 8    4 along N
    up to 32       32             64 or 128        128       up to 8    4 along N
    up to 64       64             64 or 128        64        up to 4    4 along N
    more           128            64, 128          64        up to 4    2 along M, 4 along N
                                  256              64        up to 4    the same; fragments as they are multiplied

Few rows read weights: each is multiplied once for all rows. Their K tiles are deep, and many are in flight: a CTA of 64
features has 4 KiB of int4 in each. Of the features the most are taken
with which there is a tile for each multiprocessor; they read x fewer times. With fragments
one depth ahead, a warp of 64x64 spills to local memory.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from ....arch import arch as arch_named
from ....atoms import smem_tile
from ....checks import most_stages
from ....dtypes import bf16
from ....errors import PlanError
from ...plan import rounded_up
from ...quantized.blocks import DEPTHS
from ...quantized.formats import QuantizedFormat
from ..plan import Sm80Config

_ROWS = (16, 32, 64, 128)
_FEATURES = (256, 128, 64)
_DEEP = 32  # rows: up to these a K tile is a whole unit
_STAGES, _DEEP_STAGES, _LEAST_STAGES = 4, 8, 2
_LARGE = 128  # rows: with these 256 features, too


@cache
def packed_config(
    fmt: QuantizedFormat, rows: int, n: int, processors: int = 108, shared: int = 0, arch: str = "sm_80"
) -> Sm80Config:
    """The configuration for `rows` activations and weights of n output features.

    processors  multiprocessors of the GPU: 108 of an A100
    shared      bytes of shared memory that a block may have; 0: the architecture's. 99 KiB on 8.6 and 8.9

    >>> int4 = QuantizedFormat("int4", 128)
    >>> [packed_config(int4, rows, 8192).tile for rows in (1, 40, 4096)]
    [(16, 64), (64, 64), (128, 256)]
    """
    height = next((x for x in _ROWS if rows <= x), _ROWS[-1])
    depth, most = (DEPTHS[1], _DEEP_STAGES) if height <= _DEEP else (DEPTHS[0], _STAGES)
    facts = arch_named(arch)
    room = min(shared or facts.smem_per_block, facts.smem_per_block)
    x = smem_tile((height, depth), bf16, "K")
    for width in _FEATURES:
        tiles = -(-rows // height) * -(-n // width)
        if (width > _LARGE and height < _LARGE) or (tiles < processors and width > _FEATURES[-1]):
            continue
        stage = rounded_up(x.bytes + stage_bytes(fmt, width, depth), x.alignment)
        stages = min(most_stages(replace(facts, smem_per_block=room), stage), most)
        if stages >= _LEAST_STAGES:
            warps = (2, 4) if height == _LARGE else (1, 4)
            return Sm80Config((height, width), depth, stages, warps, 8, ahead=width <= _LARGE)
    raise PlanError(f"{room} bytes of shared memory: 2 stages of packed weights do not fit")


def stage_bytes(fmt: QuantizedFormat, features: int, depth: int) -> int:
    """Bytes of a stage's packed weights, at most.

    >>> stage_bytes(QuantizedFormat("int4", 128), 64, 128)
    4224
    """
    scales = 0 if fmt.group is None else -(-depth // fmt.group) * 2 * (1 + fmt.zeros)
    return features * (depth * fmt.bits // 8 + scales)
