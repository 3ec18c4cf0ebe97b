"""Functions of a layout's values, whose modes are the layout's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from .layout import Layout, kept

S = TypeVar("S", bound="OverLayout")


class OverLayout:
    """c -> f(layout(c)), for a swizzle or an offset f. Operations act on `layout`, and f stays.

    Each raises what the layout's own operation raises.
    """

    __slots__ = ()
    layout: Any

    def _with(self: S, layout: object) -> S:
        """The same f of another layout."""
        raise NotImplementedError

    def slice(self: S, coord: object) -> tuple[S, int]:
        """The modes that None keeps, and 0: the other modes' offset stays inside."""
        raise NotImplementedError

    def coord(self, index: object) -> Any:
        """The coordinate of a flat index."""
        return self.layout.coord(index)

    @property
    def shape(self) -> Any:
        """The shape of the layout inside."""
        return self.layout.shape

    @property
    def size(self) -> Any:
        """The number of coordinates."""
        return self.layout.size

    @property
    def rank(self) -> int:
        """The number of top-level modes."""
        return int(self.layout.rank)

    @property
    def depth(self) -> int:
        """The depth of the nesting."""
        return int(self.layout.depth)

    @property
    def conditions(self) -> tuple[str, ...]:
        """The facts about symbols that the layout inside rests on; () for integers."""
        found: tuple[str, ...] = self.layout.conditions
        return found

    def __len__(self) -> int:
        return len(self.layout)

    def __bool__(self) -> bool:
        return True

    def __iter__(self: S) -> Iterator[S]:
        return (self[i] for i in range(self.rank))

    def __getitem__(self: S, i: object) -> S:
        """Mode i, with the offset. `[:, 0]` keeps whole modes and takes one entry of the others.

        >>> from layoutgemm import Layout, Swizzle
        >>> tile = Swizzle(3, 3, 3) @ Layout((8, 64), (64, 1))
        >>> str(tile[1, :]), tile[1, :](8) == tile(1, 8)
        ('S<3,3,3> o 64 o (64):(1)', True)
        """
        if i.__class__ is tuple:
            return self.slice(kept(i, self))[0]
        return self._with(self.layout[i])

    def dice(self: S, coord: object) -> S:
        """The modes that have an integer in coord."""
        return self._with(self.layout.dice(coord))

    def compose(self: S, other: object) -> S:
        """c -> self(other(c)). Raises CompositionError as Layout.compose does."""
        return self._with(self.layout.compose(other))

    __matmul__ = compose

    def flatten(self: S) -> S:
        """Without nesting."""
        return self._with(self.layout.flatten())

    def coalesce(self: S, profile: object = None) -> S:
        """As few modes as the function allows, within the modes that the profile marks."""
        return self._with(self.layout.coalesce(profile))

    def filter(self: S, profile: object = None) -> S:
        """Coalesced without the modes of stride 0: the same values, fewer times. See Layout.filter."""
        return self._with(self.layout.filter(profile))

    def group(self: S, begin: int, end: int) -> S:
        """Modes begin..end-1 as one mode."""
        return self._with(self.layout.group(begin, end))

    def select(self: S, *modes: int) -> S:
        """The named modes, in the order named. See Layout.select."""
        return self._with(self.layout.select(*modes))

    def append(self: S, mode: Layout) -> S:
        """One more mode at the end, whose values are added before f. See Layout.append.

        >>> from layoutgemm import Layout, Swizzle
        >>> str((Swizzle(3, 3, 3) @ Layout((8, 64), (64, 1))).append(Layout(4, 512)))
        'S<3,3,3> o 0 o (8,64,4):(64,1,512)'
        """
        return self._with(self.layout.append(mode))

    def prepend(self: S, mode: Layout) -> S:
        """One more mode at the beginning, whose values are added before f."""
        return self._with(self.layout.prepend(mode))

    def with_shape(self: S, *shape: object) -> S:
        """The same function of the flat index under another shape."""
        return self._with(self.layout.with_shape(*shape))

    def logical_divide(self: S, tiler: object) -> S:
        """See Layout.logical_divide."""
        return self._with(self.layout.logical_divide(tiler))

    def zipped_divide(self: S, tiler: object) -> S:
        """See Layout.zipped_divide."""
        return self._with(self.layout.zipped_divide(tiler))

    def tiled_divide(self: S, tiler: object) -> S:
        """See Layout.tiled_divide."""
        return self._with(self.layout.tiled_divide(tiler))

    def flat_divide(self: S, tiler: object) -> S:
        """See Layout.flat_divide."""
        return self._with(self.layout.flat_divide(tiler))
