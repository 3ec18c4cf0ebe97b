"""The registry of conversions to the CuTe DSL, which `layoutgemm.interop` fills."""

from __future__ import annotations

from typing import Any

from .registry import Registry

converted = Registry("object of the CuTe DSL", "layoutgemm.interop.cute_writer")


class Convertible:
    """Gives layouts, swizzles, matrix and copy instructions and tiled ones the method `to_cute`."""

    __slots__ = ()

    def to_cute(self, **values: object) -> Any:
        """The same as an object of the CuTe DSL. See interop.to_cute.

        It needs a trace, or `interop.cute_context()`.
        """
        return converted(self, **values)
