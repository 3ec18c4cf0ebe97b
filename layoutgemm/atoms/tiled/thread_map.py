"""The map (thread, value, rest) -> (row, column) of a tiled operation, and its inverse."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...arguments import Integer
from ...errors import AtomError
from ...layouts import Layout
from ...layouts.proofs.verdicts import Answer


@dataclass(frozen=True)
class View:
    """The elements of every thread of a tiled operation, over a matrix of some extent.

    layout   (thread, value, rest) -> (row, column): threads of the operation, the values of one instruction, and the
             instructions (rest along the rows, rest along the columns)
    extent   (rows, columns) of the matrix, in elements

    `inverse`, `owner` and `owners` go back from an element; they need integer extents and every element held.
    """

    layout: Layout
    extent: tuple[Integer, Integer]

    def __call__(self, thread: object, value: object, rest: object = 0) -> Any:
        """(row, column) of one value of a thread: ints, arrays, or traced integers."""
        found = self.layout(thread, value, rest)
        # Where nothing steps along the columns the layout's values are rows alone; where nothing moves they are zeros.
        if not isinstance(found, tuple):
            return found, found
        return found if len(found) == 2 else (*found, 0)

    @cached_property
    def index(self) -> Layout:
        """(thread, value, rest) -> row + rows*column."""
        return Layout(self.extent).compose(self.layout)

    @property
    def threads(self) -> int:
        """The number of threads that take part."""
        return self.layout[0].size

    @property
    def copies(self) -> Any:
        """The number of (thread, value, rest) that hold each element, when `coverage` holds."""
        size = self.extent[0] * self.extent[1]
        return self.layout.size // size

    def coverage(self) -> Answer:
        """Prove that some thread holds every element, or give the first that none holds."""
        return self.index.covers(Layout(self.extent))

    def once(self) -> Answer:
        """Prove that every element is held once. Otherwise two (flat thread, value, rest) that share one."""
        return self.index.is_bijective()

    @property
    def shape(self) -> Any:
        """The extents of (thread, value, rest). (threads, values, (rest along the rows, rest along the columns))."""
        thread, value, rest = self.layout
        return thread.size, value.size, tuple(mode.size for mode in rest)

    @cached_property
    def _position(self) -> Layout:
        """(row, column) -> flat index of (thread, value, rest)."""
        flat = self.index.right_inverse()
        if flat.size != self.extent[0] * self.extent[1]:
            raise AtomError(f"{self.layout} has no inverse over {self.extent}: {self.coverage().explain()}")
        return flat.with_shape(self.extent)

    @cached_property
    def inverse(self) -> Layout:
        """(row, column) -> (thread, value, rest): the right inverse of `index`, with coordinate strides.

        Where several threads hold an element it is the one with the lowest coordinate. Coordinates that are 0
        everywhere are left out at the end, as in every layout with coordinate strides; `owner` has them. Raises
        AtomError, naming the first element that no thread holds.
        """
        return Layout.identity(self.shape).compose(self._position)

    def owner(self, element: object) -> Any:
        """The (thread, value, rest) of an element, given as (row, column) or row + rows*column."""
        return Layout(self.shape).coord(self._position(element))

    def owners(self, element: object) -> tuple[tuple[int, ...], ...]:
        """Every (thread, value, rest) that holds the element. Its owner, and what the modes of stride 0 repeat."""
        first, domain = self._position(element), Layout(self.shape)
        return tuple(domain.coord(first + int(x)) for x in sorted(self.index.nullspace().offsets()))

    def __str__(self) -> str:
        return str(self.layout)
