"""How the layouts of integers hand over to the layouts with symbols, without loading them before there are any."""

from __future__ import annotations

from sys import modules
from typing import Any

from ..basis import ScaledBasis
from .dims import is_sympy
from .generators import GENERATORS, check_symbols
from .polynomial import P


def symbols_in(x: Any) -> bool:
    """Whether an argument has symbols: an entry, a SymPy expression, a tuple of them, or a layout."""
    if not GENERATORS and "sympy" not in modules:
        return False
    if x.__class__ is int or x is None:
        return False
    if isinstance(x, (tuple, list)):
        return any(map(symbols_in, x))
    return x.__class__ is P or is_sympy(x) or getattr(x, "_symbolic", False)


def has_symbols(shape: Any, stride: Any) -> bool:
    """Whether any entry of a checked shape or stride is a symbol."""
    if shape.__class__ is tuple:
        return any(map(has_symbols, shape, stride))
    value = stride.value if stride.__class__ is ScaledBasis else stride
    return shape.__class__ is P or value.__class__ is P


def become_symbolic(layout: Any) -> None:
    """Make a new layout one of the class that knows symbols, if it has any."""
    from .symbolic_layout import SymbolicLayout, generators

    if has_symbols(layout.shape, layout.stride):
        check_symbols(generators(layout.shape, layout.stride))
        object.__setattr__(layout, "__class__", SymbolicLayout)
        object.__setattr__(layout, "_conditions", ())


def joined(shape: Any, stride: Any, layouts: tuple[Any, ...]) -> Any:
    """A layout of modes with symbols, with the conditions of all."""
    from .symbolic_layout import make, together

    return make(shape, stride, together(*layouts))


def lift(layout: Any) -> Any:
    """A plain layout as one whose operations take symbols in their arguments."""
    from .symbolic_layout import lift as lifted

    return lifted(layout)


def prove(a: Any, b: Any) -> Any:
    """The verdict on two layouts one of which has symbols; None when neither has."""
    if not GENERATORS:
        return None
    from ..proofs.prove import prove as proven
    from ..proofs.sizes import entries_of
    from .symbolic_layout import generators

    return proven(a, b) if generators(*entries_of(a), *entries_of(b)) else None
