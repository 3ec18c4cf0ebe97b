"""Tile orders: which tile each CTA computes, and when."""

from .by_shard import RotatedRows, ShardByShard
from .functions import Formula, OfLayout
from .gpc_order import Dealt
from .l2_reuse import Reuse, reuse
from .listed import Banded, TileList
from .persistent import Persistent, Segment, StreamK
from .rotated import Rotated
from .tile_order import Grouped, Hilbert, Linear, Schedule, visits_once
from .triangular import Triangular

__all__ = [
    "Banded", "Dealt", "Formula", "Grouped", "Hilbert", "Linear", "OfLayout", "Persistent", "Reuse", "Rotated",
    "RotatedRows", "Schedule", "Segment", "ShardByShard", "StreamK", "TileList", "Triangular", "reuse", "visits_once",
]  # fmt: skip
