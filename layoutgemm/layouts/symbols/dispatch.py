"""Detection of symbols: layouts of integers then hand over to layouts with symbols."""

from __future__ import annotations

from sys import modules
from typing import Any

from .. import registries
from ..basis import ScaledBasis
from .dims import is_sympy
from .generators import GENERATORS
from .polynomial import Polynomial


def symbols_in(x: object) -> bool:
    """True if an argument has symbols. An entry, a SymPy expression, a tuple of them, or a layout."""
    if not GENERATORS and "sympy" not in modules:
        return False
    if x.__class__ is int or x is None:
        return False
    if isinstance(x, (tuple, list)):
        return any(map(symbols_in, x))
    return x.__class__ is Polynomial or is_sympy(x) or getattr(x, "_symbolic", False)


def has_symbols(shape: Any, stride: Any) -> bool:
    """True if any entry of a checked shape or stride is a symbol."""
    if shape.__class__ is tuple:
        return any(map(has_symbols, shape, stride))
    value = stride.value if stride.__class__ is ScaledBasis else stride
    return shape.__class__ is Polynomial or value.__class__ is Polynomial


def prove(a: object, b: object) -> Any:
    """The verdict on two layouts one of which has symbols; None when neither has."""
    return registries.proven(a, b) if GENERATORS and (_with_symbols(a) or _with_symbols(b)) else None


def _with_symbols(x: Any) -> bool:
    """True if any entry or the offset of a layout is a symbol."""
    if hasattr(x, "with_parts"):
        return symbols_in(x.offset) or _with_symbols(x.layout)
    return hasattr(x, "stride") and has_symbols(x.shape, x.stride)
