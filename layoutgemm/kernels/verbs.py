"""Functions that a plan names as data: "module:name" below `layoutgemm.kernels`, imported when first called.

A plan stands below the modules that check, explain, draw, compile and run it, so it cannot import them. It names them
in its class's `verbs`. A name as data needs no module to register itself first: a plan alone answers every verb.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def named(path: str) -> Any:
    """The object at "module:name", the module's path being below `layoutgemm.kernels`.

    >>> named("store:ROWS")
    64
    """
    module, _, name = path.partition(":")
    return getattr(import_module(f"{__package__}.{module}"), name)
