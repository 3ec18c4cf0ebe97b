"""Tile orders: which tile each CTA computes, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import named_later

if TYPE_CHECKING:
    from .by_shard import RotatedRows, ShardByShard
    from .functions import Formula, LayoutOrder
    from .gpc_order import GpcOrder
    from .l2_reuse import Reuse, reuse
    from .listed import Banded, TileList
    from .persistent import Persistent, Segment, StreamK
    from .rotated import Rotated
    from .tile_order import Grouped, Hilbert, Linear, Schedule, visits_once
    from .triangular import Triangular

__all__ = [
    "Banded",
    "Formula",
    "GpcOrder",
    "Grouped",
    "Hilbert",
    "LayoutOrder",
    "Linear",
    "Persistent",
    "Reuse",
    "Rotated",
    "RotatedRows",
    "Schedule",
    "Segment",
    "ShardByShard",
    "StreamK",
    "TileList",
    "Triangular",
    "reuse",
    "visits_once",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__, __dir__ = named_later(__name__)
