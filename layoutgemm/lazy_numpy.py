"""NumPy, loaded when the first array is made: `np` stands for the module.

Importing NumPy takes most of the time of `import layoutgemm`, and a browser may not have it. Layouts over integers need
no array. Where NumPy is not installed, `has_numpy` is False and the algebra takes its loops in Python.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["has_numpy", "np"]

# Classes that `isinstance` asks for: before NumPy is loaded, no object is an instance of one.
_CLASSES = frozenset({"bool_", "generic", "integer", "ndarray"})


class _Nothing:
    """A class without instances."""


class _LazyNumpy(ModuleType):
    """The module NumPy, once a name of it is asked for; each name is kept."""

    def __getattr__(self, name: str) -> Any:
        if name in _CLASSES and "numpy" not in sys.modules:
            return _Nothing
        value = getattr(importlib.import_module("numpy"), name)
        setattr(self, name, value)
        return value


@functools.cache
def has_numpy() -> bool:
    """True if NumPy is installed.

    >>> has_numpy()
    True
    """
    try:
        return "numpy" in sys.modules or importlib.util.find_spec("numpy") is not None
    except ModuleNotFoundError:
        return False


if TYPE_CHECKING:
    import numpy as np
else:
    np = _LazyNumpy("numpy")
