"""Functions by the type of an object, registered by files above.

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
        """A decorator: the function of these types, and of those below them that have none of their own."""

        def registered(function: F) -> F:
            for kind in kinds:
                self._function.register(kind, function)
            return function

        return registered

    def __call__(self, thing: object, *args: object, **options: object) -> Any:
        """Call the function of the thing's type. Raises LayoutError where none is registered."""
        import_module(getattr(thing, self._attribute, self._home))
        return self._function.dispatch(type(thing))(thing, *args, **options)
