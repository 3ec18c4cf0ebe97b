"""Tile orders: which tile each CTA computes, and when."""

from .gpc_order import Dealt
from .l2_reuse import Reuse, reuse
from .persistent import Persistent, Segment, StreamK
from .rotated import Rotated, ShardByShard
from .tile_order import Grouped, Hilbert, Linear, Schedule, visits_once

__all__ = [
    "Dealt", "Grouped", "Hilbert", "Linear", "Persistent", "Reuse", "Rotated", "Schedule", "Segment",
    "ShardByShard", "StreamK", "reuse", "visits_once",
]  # fmt: skip
