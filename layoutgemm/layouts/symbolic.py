"""The border between layouts and their symbols: `dim`, and SymPy in and out. (stub, being written)"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from ..errors import LayoutError
from .generators import generator
from .poly import gen


def dim(name: str, multiple_of: int = 1, min: int = 1, max: int | None = None) -> Any:
    """An integer symbol."""
    if multiple_of < 1:
        raise LayoutError("multiple_of must be at least 1")
    low = -(-min // multiple_of)
    high = None if max is None else max // multiple_of
    return gen(generator(name, low, high, {((name, 1),): Fraction(1, multiple_of)})) * multiple_of
