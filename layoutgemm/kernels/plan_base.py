"""What the plans of all kernels have in common."""

from __future__ import annotations

from typing import Any


def tile_count(extent: Any, tile: int) -> Any:
    """Tiles along a dimension, the last one possibly ragged; ints or traced integers, without the overflow of a sum.

    >>> tile_count(128, 64), tile_count(129, 64)
    (2, 3)
    """
    return (extent - 1) // tile + 1
