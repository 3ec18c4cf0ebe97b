"""Configurations of scaled and grouped products on Hopper: the fastest that were measured (variants_h200.json)."""

from __future__ import annotations

from ..config import Sm90Config


def grouped_config(rows: int) -> Sm90Config:
    """For groups of so many rows on average: a tile is one group's. What was fastest (variants_h200.json)."""
    if rows <= 32:
        return Sm90Config((64, 256), consumers=1, loader="warp", chunks=1, buffers=2)
    return Sm90Config((128, 256), chunks=1, buffers=2)


def default_config(m: int, each_column: bool = False) -> Sm90Config:
    """For m rows. A thread has both the products and the totals: half of the tile of a kernel which only adds.
    What was fastest of benchmarks/results/variants_h200.json: 192 rows from 256 a group on, 128 at 64 and 128.

    each_column  every column of B has a scale, of which a thread reads a quarter of the tile's
    """
    columns = 64 if each_column else 128
    if m <= 32:
        return Sm90Config((64, columns), consumers=1, loader="warp", chunks=1, buffers=2)
    if m < 192:
        return Sm90Config((128, columns), chunks=1, buffers=2)
    return Sm90Config((192, columns), consumers=3, chunks=1, buffers=1)
