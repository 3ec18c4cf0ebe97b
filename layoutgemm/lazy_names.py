"""Names of a package that load their files when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module

from .moved import old_names

__all__ = ["named_later"]


def named_later(
    package: str, homes: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package that takes names from files below it.

    package  its name, as in `__name__`
    homes    file, relative to the package -> the names that it defines; no name may be that of a file of the package

    A file is imported with the first of its names that is asked for. The package then keeps the name. Names that have
    moved away are found as `layoutgemm.moved` finds them.

    >>> get, names = named_later("layoutgemm.atoms", {"smem.tile": ("SmemTile", "smem_tile")})
    >>> get("smem_tile").__module__, "smem_tile" in names()
    ('layoutgemm.atoms.smem.tile', True)
    >>> get("smem_tyle")
    Traceback (most recent call last):
    AttributeError: module 'layoutgemm.atoms' has no attribute 'smem_tyle'
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    old_name = old_names(package, frames=1)

    def get(name: str) -> object:
        if name not in home_of:
            return old_name(name)
        value = getattr(import_module(f"{package}.{home_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names
