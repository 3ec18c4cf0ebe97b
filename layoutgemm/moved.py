"""Old import paths, which still work and warn with the new path.

The paths are data, in `moved.json`. `MODULES` maps a module's path below `layoutgemm` to where its code is now.
`NAMES` maps (module, name) to the module of a single name, with a new name after a colon. They go in version 0.2.

>>> with warnings.catch_warnings(record=True) as caught:
...     warnings.simplefilter("always")
...     found = old_names("layoutgemm.checks")("Grouped")
>>> str(caught[0].message)
'layoutgemm.checks.Grouped is now layoutgemm.schedule.Grouped; the old path goes in version 0.2'
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = __name__.partition(".")[0]
_PATHS = json.loads(Path(__file__).with_name("moved.json").read_text(encoding="utf-8"))
MODULES: dict[str, str] = _PATHS["modules"]
NAMES: dict[tuple[str, str], str] = {
    (old, name): new for old, names in _PATHS["names"].items() for name, new in names.items()
}
_OLD = frozenset(MODULES) | frozenset(_PATHS["names"])


def warn(old: str, new: str, stacklevel: int) -> None:
    """Warn that the path `old` is now `new`, both below layoutgemm."""
    text = f"{ROOT}.{old} is now {ROOT}.{new}; the old path goes in version 0.2"
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel + 1)


class CallableModule(ModuleType):
    """A module that is callable as its function of the same name: `layoutgemm.tune`."""

    def __call__(self, *args: object, **options: object) -> object:
        """Call the function that has the module's name."""
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **options)


class Package(ModuleType):
    """A package that keeps its own name when a module of that name is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, CallableModule) and name in self.__dict__):
            super().__setattr__(name, value)


class OldModule(Loader):
    """A loader of empty modules at old paths, which forward names to new paths."""

    def create_module(self, spec: ModuleSpec) -> None:
        """None: the import system makes the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Give the module the names that the old one had."""
        module.__class__ = CallableModule
        package = sys.modules[module.__name__.rpartition(".")[0]]
        if type(package) is ModuleType:
            package.__class__ = Package
        vars(module)["__getattr__"] = old_names(module.__name__)


class LeftModule(SourceFileLoader):
    """A loader of modules that names have left: those are forwarded to their new places."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, which may have a `__getattr__` of its own."""
        vars(module)["__getattr__"] = old_names(module.__name__)
        super().exec_module(module)


class OldPaths(MetaPathFinder):
    """A finder of old module paths, and of modules that names have left. It comes before all other finders."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of an old path, with a warning if there is no module now. None for any other name."""
        old = name.removeprefix(f"{ROOT}.")
        if old == name or old not in _OLD:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = LeftModule(name, spec.loader.path)
        if spec is not None or old not in MODULES:
            return spec
        warn(old, MODULES[old], 2)
        return ModuleSpec(name, OldModule(), is_package=any(each.startswith(f"{old}.") for each in MODULES))


def install() -> None:
    """Put the finder first, and give modules that were loaded before it their old names."""
    if not any(isinstance(finder, OldPaths) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldPaths())
    for old in _PATHS["names"]:
        module = sys.modules.get(f"{ROOT}.{old}")
        if module is not None and not hasattr(module, "__getattr__"):
            vars(module)["__getattr__"] = old_names(module.__name__)


def old_names(module: str, frames: int = 0) -> Callable[[str], object]:
    """A `__getattr__` for `module`: the old module's names, from their new places.

    frames  calls between the module's `__getattr__` and this one, for the warning's line
    """
    old = module.removeprefix(ROOT).removeprefix(".")

    def look_up(name: str) -> Any:
        home = MODULES.get(old)
        home = NAMES.get((old, name)) or NAMES.get((home or "", name)) or home
        path = vars(sys.modules[module]).get("__path__", ())
        if path and PathFinder.find_spec(f"{module}.{name}", path):
            home = None  # `from . import name` calls this first, and then imports the submodule
        if home is not None and not name.startswith("__"):
            home, _, new = home.partition(":")
            new = new or name
            found = import_module(f"{ROOT}.{home}")
            if hasattr(found, new):
                warn(f"{old}.{name}".removeprefix("."), f"{home}.{new}", 2 + frames)
                return getattr(found, new)
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module])

    return look_up
