"""Functions by the type of an object, registered by files above. What layouts take from there.

A registry loads the file that registers a function when it is first called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from importlib import import_module
from typing import Any, TypeVar

from ..arguments import shown
from ..errors import LayoutError

F = TypeVar("F", bound=Callable[..., Any])


class Registry:
    """A function by the type of its argument; its files load at the first call.

    what   what the function gives, for the refusal of a type that has none
    home   the module that registers the functions; a class whose own come from another names it in `attribute`

    >>> size = Registry("size", "math")
    >>> size.register(str)(len)
    <built-in function len>
    >>> size("four")
    4
    >>> size(4)
    Traceback (most recent call last):
    layoutgemm.errors.LayoutError: 4 has no size
    """

    def __init__(self, what: str, home: str, attribute: str = "") -> None:
        def refuse(thing: object, *_: object, **__: object) -> Any:
            raise LayoutError(f"{shown(thing)} has no {what}")

        self._home, self._attribute = home, attribute
        self._function = singledispatch(refuse)

    def register(self, *kinds: type) -> Callable[[F], F]:
        """A decorator that registers the function of these types. It stands for those below them that have none of
        their own, too."""

        def registered(function: F) -> F:
            for kind in kinds:
                self._function.register(kind, function)
            return function

        return registered

    def __call__(self, thing: object, *args: object, **options: object) -> Any:
        """Call the function of the thing's type. Raises LayoutError where none is registered."""
        import_module(getattr(thing, self._attribute, self._home))
        return self._function.dispatch(type(thing))(thing, *args, **options)


# of a shape and a stride: the Layout, for those who compute on pairs
layout_of = Registry("layout", "layoutgemm.layouts.layout")
# of a layout and an offset: the layout that adds it
offset_by = Registry("offset", "layoutgemm.layouts.swizzle")
# of a layout of coordinates and the first of them: the tensor that begins there
coordinates_from = Registry("first coordinate", "layoutgemm.layouts.coordinates")
# of a text: the atom that a name of CUTLASS denotes, None for another text
atom_named = Registry("atom", "layoutgemm.atoms.cutlass_names")
# of a text: the layout or swizzle that it denotes
parsed = Registry("notation", "layoutgemm.layouts.notation")
# of a layout and names: its closed form; of a formula: its layout
expression_of = Registry("closed form", "layoutgemm.layouts.formulas")
layout_of_formula = Registry("layout", "layoutgemm.layouts.formulas")
# of a layout, swizzled or not: its matrix over GF(2)
matrix_of = Registry("matrix over GF(2)", "layoutgemm.layouts.linear")
# of a shape and a stride with symbols: the layout, with the conditions of others; of a plain layout: one with symbols
symbolic = Registry("layout with symbols", "layoutgemm.layouts.symbols.symbolic_layout")
lifted = Registry("layout with symbols", "layoutgemm.layouts.symbols.symbolic_layout")
# of a layout and a function: the layout of the function's entries
applied = Registry("entries", "layoutgemm.layouts.symbols.symbolic_layout")
# statements at every size
proven = Registry("proof", "layoutgemm.layouts.proofs.prove")
covering = Registry("proof", "layoutgemm.layouts.proofs.prove")
apart = Registry("proof", "layoutgemm.layouts.proofs.prove")
injective = Registry("proof", "layoutgemm.layouts.proofs.prove")
bijective = Registry("proof", "layoutgemm.layouts.proofs.prove")
# SymPy, which need not be installed
to_sympy = Registry("SymPy expression", "layoutgemm.layouts.symbols.sympy_io")
from_sympy = Registry("entry", "layoutgemm.layouts.symbols.sympy_io")
closed_form = Registry("closed form", "layoutgemm.layouts.symbols.sympy_formulas")
evaluator = Registry("function", "layoutgemm.layouts.symbols.sympy_formulas")
