"""Registers without a value, for as long as an asynchronous instruction owns them."""

from __future__ import annotations

from typing import Any, NoReturn


class Held:
    """What such a register holds. Moving it about is harmless; computing with it raises TypeError with its text."""

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(str(self))

    __array_ufunc__ = None
    __array__ = __bool__ = __int__ = __index__ = __float__ = __eq__ = __ne__ = _refuse
    __hash__ = object.__hash__
