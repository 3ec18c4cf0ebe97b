"""Tile orders: which tile each CTA computes, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import named_later

if TYPE_CHECKING:
    from .by_shard import RotatedRows as RotatedRows
    from .by_shard import ShardByShard as ShardByShard
    from .functions import Formula as Formula
    from .functions import LayoutOrder as LayoutOrder
    from .gpc_order import GpcOrder as GpcOrder
    from .l2_reuse import Reuse as Reuse
    from .l2_reuse import reuse as reuse
    from .listed import Banded as Banded
    from .listed import TileList as TileList
    from .persistent import Persistent as Persistent
    from .persistent import Segment as Segment
    from .persistent import StreamK as StreamK
    from .rotated import Rotated as Rotated
    from .tile_order import Grouped as Grouped
    from .tile_order import Hilbert as Hilbert
    from .tile_order import Linear as Linear
    from .tile_order import Schedule as Schedule
    from .tile_order import visits_once as visits_once
    from .triangular import Triangular as Triangular

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = named_later(__name__)
