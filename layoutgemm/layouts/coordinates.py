"""Tensors of coordinates that begin elsewhere than at 0. A tile of an identity tensor, or of a TMA tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arguments import refusal
from ..errors import LayoutError
from . import registries
from .basis import ScaledBasis, assemble, paths_of, plus
from .display import HasPage, PicturedLayout
from .int_tuple import as_entries, code, leaves, show
from .layout import Layout
from .over_layout import OverLayout
from .predicates import Predicates
from .proofs.verdicts import Answer, Verdict, between, equivalent


class CoordinateTensor(OverLayout, PicturedLayout, Predicates, HasPage):
    """c -> offset + layout(c): coordinate -> coordinate, as identity tensors and TMA tensors have it.

    offset   the first coordinate, a tuple of integers or symbols, nested as the layout's values are
    layout   a Layout whose strides are coordinates

    Operations act on the layout; a slice and a subscript add to the offset. Raises LayoutError where one mode of the
    offset is an integer and the layout leads to a tuple.

    >>> from layoutgemm import Layout
    >>> tile = Layout.identity((256, 128)).zipped_divide((128, 64))[:, (1, 0)]
    >>> print(tile)
    (128,0) o ((128,64)):((1@0,1@1))
    >>> tile(((3, 5),)), Layout.parse("ArithTuple(128,_0) o (128,64):(_1@0,_1@1)")(3, 5)
    ((131, 5), (131, 5))
    """

    __slots__ = ("layout", "offset")
    offset: tuple[Any, ...]
    layout: Layout
    has_basis = True

    def __init__(self, offset: object, layout: object) -> None:
        if not isinstance(layout, Layout):
            raise LayoutError(refusal(layout, "the end of a CoordinateTensor", "a Layout"))
        if not layout.has_basis and any(d.__class__ is not int or d for d in leaves(layout.stride)):
            raise LayoutError(f"{layout} leads to offsets: a CoordinateTensor's layout has strides as 1@0 or E(0)")
        first = as_entries(offset, "the offset of a CoordinateTensor")
        if first.__class__ is not tuple:
            raise LayoutError(refusal(offset, "the offset of a CoordinateTensor", "a tuple"))
        for entry in leaves(first):
            if isinstance(entry, ScaledBasis):
                raise LayoutError(f"expected integers in the offset of {layout}, not {entry}")
        paths = paths_of(layout.stride)
        object.__setattr__(self, "offset", _sum(first, assemble(dict.fromkeys(paths, 0)) if paths else 0, layout))
        object.__setattr__(self, "layout", layout)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"CoordinateTensor is frozen: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"CoordinateTensor is frozen: cannot delete {name}")

    # ------------------------------------------------------------ as a function

    def __call__(self, *coord: object) -> Any:
        """The coordinate that a coordinate leads to."""
        return _sum(self.offset, self.layout(*coord), self.layout)

    def offsets(self) -> Any:
        """All values in order of the flat index. A tuple of arrays, and of integers where no stride leads."""
        return _sum(self.offset, self.layout.offsets(), self.layout)

    @property
    def stride(self) -> Any:
        """The strides of the layout, which are coordinates."""
        return self.layout.stride

    def with_parts(self, f: Callable[[object], object]) -> CoordinateTensor:
        """f(layout) from f(offset) on."""
        return CoordinateTensor(f(self.offset), f(self.layout))

    # ------------------------------------------------------------ operations on the layout

    def slice(self, coord: object) -> tuple[CoordinateTensor, int]:
        """The modes that None keeps, with the other modes' coordinate in the offset; and 0."""
        layout, offset = self.layout.slice(coord)
        return CoordinateTensor(_sum(self.offset, offset, self.layout), layout), 0

    def _with(self, layout: object) -> CoordinateTensor:
        return CoordinateTensor(self.offset, layout)

    # ------------------------------------------------------------ statements

    def equivalent(self, other: object) -> Answer:
        """Compare two functions of the flat index: a Proof, or the first CounterExample.

        >>> from layoutgemm import Layout
        >>> I = Layout.identity((8, 8))
        >>> I[:, 3].equivalent(Layout.parse("(0,3) o 8:1@0")).ok, I[:, 3].equivalent(I[:, 4]).explain()
        (True, 'not equivalent: (0) gives (0,3) and (0,4)')
        """
        return between(equivalent(self, other), self, other)

    def is_injective(self) -> Answer:
        """Prove that no two coordinates share a value: the layout decides."""
        return self.layout.is_injective()

    def congruent(self, other: object) -> Verdict:
        """Verdict: both shapes have one nesting; `other` is a layout or a tuple."""
        return self.layout.congruent(other.layout if isinstance(other, CoordinateTensor) else other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CoordinateTensor) and self.offset == other.offset and self.layout == other.layout

    def __hash__(self) -> int:
        return hash((CoordinateTensor, self.offset, self.layout))

    def __reduce__(self) -> tuple[object, ...]:
        return CoordinateTensor, (self.offset, self.layout)

    def __repr__(self) -> str:
        return f"CoordinateTensor({code(self.offset)}, {self.layout!r})"

    def __str__(self) -> str:
        return f"{show(self.offset)} o {self.layout}"


def _sum(first: object, value: object, layout: Layout) -> Any:
    try:
        return plus(first, value)
    except LayoutError as error:
        raise LayoutError(f"the offset of {layout}: {error.reason}") from None


@registries.coordinates_from.register(Layout)
def coordinates_from(layout: Layout, offset: object) -> CoordinateTensor | Layout:
    """The coordinates of a layout from an offset on. The layout itself for an offset of zeros."""
    first = as_entries(offset, "the offset of a CoordinateTensor")
    if all(x.__class__ is int and x == 0 for x in leaves(first)):
        return layout
    return CoordinateTensor(first, layout)
