"""Names of a package that load their files when they are first asked for.

The package imports them under `if TYPE_CHECKING`, for type checkers alone. Python compiles those imports and never runs
them, so the compiled code says where each name is.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Container
from importlib import import_module
from importlib.machinery import PathFinder
from types import CodeType

from .cute_names import INSTEAD
from .moved import old_names

_ROOMS = "layouts", "atoms", "checks", "schedule", "view", "kernels"  # where a name may be that a package has not


def homes_of_names(code: CodeType, there: Container[str]) -> dict[str, str]:
    """Name -> relative module, of the imports of a module's code that have not run.

    there  the names that the module has, by imports that have run

    Imports of other packages are left out.

    >>> homes_of_names(compile("if checking: from .smem.tile import smem_tile", "", "exec"), ())
    {'smem_tile': '.smem.tile'}
    >>> homes_of_names(compile("from os import path", "", "exec"), ())
    {}
    """
    homes, level, home = {}, 0, ""
    for step in dis.get_instructions(code):
        if isinstance(step.argval, int):
            level = step.argval  # the last number before an import is how many packages up it begins
        elif step.opname == "IMPORT_NAME":
            home = "." * level + step.argval
        elif step.opname == "IMPORT_FROM" and home[:1] == "." and step.argval not in there:
            homes[step.argval] = home
    return homes


def elsewhere(package: str, error: AttributeError, imported: bool) -> Exception:
    """The error of a name that a package does not have.

    It says which package has it, or what is written in its place.

    imported  the name is of `from package import name`, which would drop the text of an AttributeError

    >>> print(elsewhere("layoutgemm", AttributeError("no complement", name="complement"), True))
    no complement: it is layoutgemm.layouts.complement
    >>> print(elsewhere("layoutgemm", AttributeError("no nn", name="nn"), False))
    no nn: import layoutgemm.nn
    """
    name = error.name or ""
    if name.startswith("_"):
        return error
    if PathFinder.find_spec(f"{package}.{name}", sys.modules[package].__path__):
        if imported:
            return error  # `from package import module` asks for a name first
        return AttributeError(f"{error}: import {package}.{name}", name=name, obj=sys.modules[package])
    rooms = [f"layoutgemm.{room}" for room in _ROOMS]
    home = next((room for room in rooms if name in getattr(import_module(room), "__all__", ())), None)
    said = f"it is {home}.{name}" if home else INSTEAD.get(name)
    if said is None:
        return error
    said = f"{error}: {said}"
    return ImportError(said, name=package) if imported else AttributeError(said, name=name, obj=sys.modules[package])


def by_import() -> bool:
    """True in a module's `__getattr__` whose caller is `from module import name`."""
    # It calls importlib's hasattr first.
    return sys._getframe(2).f_code.co_name == "_handle_fromlist"


def named_later(package: str) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """The `__all__`, `__getattr__` and `__dir__` of a package that takes names from files below it.

    package  its name, as in `__name__`: the package calls this, below its imports. No name may be that of a file of it

    `__all__` has the names that the package takes from its own files, and those that load later.

    A file is imported with the first of its names that is asked for. The package then keeps the name. Names that have
    moved away are found as `layoutgemm.moved` finds them.

    >>> import layoutgemm.atoms
    >>> layoutgemm.atoms.smem_tile.__module__, "smem_tile" in dir(layoutgemm.atoms)
    ('layoutgemm.atoms.smem.tile', True)
    >>> layoutgemm.atoms.smem_tyle
    Traceback (most recent call last):
    AttributeError: module 'layoutgemm.atoms' has no attribute 'smem_tyle'
    """
    code = sys._getframe(1).f_code
    home_of = homes_of_names(code, vars(sys.modules[package]))
    taken = [name for name, home in homes_of_names(code, ()).items() if home[1:2] != "."]
    old_name = old_names(package, frames=1)

    def get(name: str) -> object:
        if name not in home_of:
            imported = by_import()
            try:
                return old_name(name)
            except AttributeError as error:
                raise elsewhere(package, error, imported) from None
        value = getattr(import_module(home_of[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return sorted({*taken, *home_of}), get, names
