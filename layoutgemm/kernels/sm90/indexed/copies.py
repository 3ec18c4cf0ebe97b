"""The copies of indexed rows of A: 16-byte vectors into a swizzled tile.

    (thread, pass) -> row, (thread, span) -> K     of the loader's warpgroup

Eight lanes have the eight vectors of a 128-byte row, so a warp reads whole lines. C's rows go by `store.RowVectors`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....atoms import OperandDescriptor, SmemTile, TiledCopy, make_tiled_copy
from ....atoms.copy.base import VECTOR_BYTES
from ....atoms.copy.cp_async import cp_async
from ....checks.budgets import WARPGROUP
from ....dtypes import DType
from ....errors import PlanError
from ....layouts import Layout
from ...numbers import W


@dataclass(frozen=True)
class RowGather:
    """A K-major tile in vectors of 16 bytes, by a warpgroup. Threads along a row's span first, then over rows.

    tiled  (thread, vectors) -> (row, k)

    >>> from layoutgemm.atoms import smem_tile
    >>> copy = RowGather.derive(smem_tile((128, 64), "bf16", "K"))
    >>> copy.passes, copy.spans, copy.row(9, 1), copy.element(9, 0), copy.step(1, 0), copy.byte(9)
    (8, 1, 17, 8, 2048, 128)
    """

    tile: SmemTile
    tiled: TiledCopy

    @classmethod
    def derive(cls, tile: SmemTile) -> RowGather:
        """The copies of a tile. Raises PlanError where threads do not fill its rows evenly."""
        width = VECTOR_BYTES // tile.dtype.bytes
        vectors = min(tile.extent[1], tile.span_elements) // width
        rows = WARPGROUP // max(1, vectors)
        if not vectors or tile.extent[0] % rows or tile.extent[1] % (vectors * width):
            what = f"{tile.extent[0]}x{tile.extent[1]} elements of {tile.dtype}"
            raise PlanError(f"{WARPGROUP} threads copy {what}: {rows} rows of {vectors} vectors do not divide the tile")
        atom = cp_async(VECTOR_BYTES, "cg", tile.dtype, "register")
        return cls(tile, make_tiled_copy(atom, Layout((rows, vectors), (vectors, 1)), Layout((1, width))))

    @property
    def _places(self) -> Layout:
        return self.tiled.partition("src", Layout.identity(self.tile.extent))

    @property
    def passes(self) -> int:
        """Rows of a thread."""
        return int(self._places[2].size)

    @property
    def spans(self) -> int:
        """Vectors of a thread in each of its rows."""
        return int(self._places[3].size)

    def row(self, thread: W, number: int) -> W:
        """A thread's row of that number; ints, arrays or traced integers."""
        return self._places(thread, 0, number, 0)[0]

    def element(self, thread: W, span: int) -> W:
        """The first element of K of a thread's vector in each row."""
        return self._places(thread, 0, 0, span)[1]

    def byte(self, thread: W) -> W:
        """The byte of a thread's first vector in the tile."""
        return self.tile.byte(self.row(thread, 0), self.element(thread, 0))

    def valid(self, left: W, minimum: Callable[..., W] = min, maximum: Callable[..., W] = max) -> W:
        """Bytes of a vector that are read, with `left` elements left in its row.

        Ints or traced integers.

        >>> from layoutgemm.atoms import smem_tile
        >>> [RowGather.derive(smem_tile((64, 64), "bf16", "K")).valid(left) for left in (-3, 0, 5, 8, 90)]
        [0, 0, 10, 16, 16]
        """
        return maximum(minimum(left, VECTOR_BYTES // self.tile.dtype.bytes), 0) * self.tile.dtype.bytes

    def step(self, number: int, span: int) -> int:
        """Bytes from a thread's first vector to another one, the same for all threads."""
        return int(self.tile.byte(self.row(0, number), self.element(0, span))) - int(self.byte(0))


@dataclass(frozen=True)
class GatheredOperand:
    """A whose rows are gathered. No tensor map, no bytes on the barrier, an arrival of each copying thread."""

    dtype: DType
    smem: SmemTile
    descriptor: OperandDescriptor
    copy: RowGather
    name: str = "A"
    order: str = "row"
    major: str = "K"
    rest: None = None
    ends: None = None
    maps: int = 1  # every kernel's first parameter is a tensor map: here it is B's once more, and not used
    bytes: int = 0
    sent_bytes: int = 0

    @property
    def copies(self) -> tuple[()]:
        """Its TMA copies: none."""
        return ()

    @property
    def arrivals(self) -> int:
        """Arrivals at a stage's barrier, of threads that copy."""
        return WARPGROUP
