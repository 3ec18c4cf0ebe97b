"""Triangular: the tiles of a grid that reach into a triangle of C. They come in bands, without a square root.

Tiles of P x Q elements meet the diagonal in a pattern that repeats every lcm(P, Q) elements. So the grid is cut into
square *blocks* of u x v tiles, u * P = v * Q elements. A *band* is u rows of tiles. Band I of the lower triangle is
I full blocks, walked column by column, and then the tiles of its diagonal block, which are the same in every band:

    band I:     I * u * v tiles of full blocks      d tiles of the diagonal block

The band of a tile's number would be a square root. Bands are numbered in pairs instead, the longest with the shortest:
bands R-1-p and p of R have (R-1) * u * v + 2 * d tiles together, for every p. Quotient and remainder by that number are
the pair and the place in it. R counts the bands whose blocks all lie in the grid. The band after them ends with the
grid, in a part of a diagonal block. Rows of tiles below it have every column, and are walked in groups of u rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm
from typing import TYPE_CHECKING, Any, NamedTuple

from ..arguments import Integer, as_int, checked, nearest, settle, shown
from ..errors import PlanError
from ..layouts.proofs.digits import minimum as least
from ..layouts.proofs.index_formulas import prove_formulas
from ..layouts.proofs.verdicts import Answer, Proof, Undecided
from ..layouts.symbols.facts import Facts
from ..lazy_numpy import np
from .tile_order import Grid, Grouped, Minimum, Reads, Schedule, Tile, all_proven, checked_grid

if TYPE_CHECKING:
    import numpy.typing as npt

HALVES = ("lower", "upper")
_MOST = 64  # tiles of a block along either side, for each tile of `group`: a column of it is a term of the formula
_MOST_ROWS = 1024  # of a band: as for `Grouped`, a band's tiles are counted in 32 bits


class GridBands(NamedTuple):
    """A grid cut into bands. 2 * half + odd whole ones, one of `height` rows, and `beyond` rows below.

    width    columns of the part of a diagonal block at the end of that one band
    columns  of the grid
    """

    half: Integer
    odd: Integer
    height: Integer
    width: Integer
    beyond: Integer
    columns: Integer

    @property
    def whole(self) -> Integer:
        """Bands whose blocks all lie in the grid."""
        return 2 * self.half + self.odd


@dataclass(frozen=True)
class Triangular(Schedule):
    """The tiles of one triangle of C. Those with an element on or below ("lower"), or above, the diagonal.

    half    "lower" or "upper"
    group   rows of tiles in a band, at least ("upper": columns); a band is whole blocks of the diagonal's pattern
    tile_shape  (rows, columns) of C's elements in a tile of the grid, a cluster's; None: that of the plan
    mirror  each tile off the diagonal is stored a second time, transposed: C of A A^T is whole then. Of square tiles

    Raises PlanError for another half or group, and for tiles whose pattern on the diagonal is too long.

    >>> Triangular(group=1, tile_shape=(128, 128)).table((3, 3)).tolist()
    [[2, 0], [2, 1], [2, 2], [0, 0], [1, 0], [1, 1]]
    >>> Triangular("upper", group=1, tile_shape=(256, 128)).table((2, 3)).tolist()
    [[0, 0], [0, 1], [0, 2], [1, 2]]
    >>> Triangular(tile_shape=(128, 256)).prove().method
    'pieces, for every grid'
    """

    half: str = "lower"
    group: int = 4
    tile_shape: tuple[int, int] | None = None
    mirror: bool = False

    def __post_init__(self) -> None:
        settle(self, PlanError)
        if self.half not in HALVES:
            meant = nearest(self.half, HALVES)
            raise PlanError(f"half = {shown(self.half)}: {meant}known are {', '.join(map(repr, HALVES))}")
        as_int(self.group, "group", PlanError, 1, _MOST_ROWS)
        if self.tile_shape is None:
            return
        for extent in self.tile_shape:
            as_int(extent, "an extent of a tile", PlanError, 1)
        rows, columns = self.block
        if max(rows, columns) > _MOST * self.group or rows > _MOST_ROWS or columns > _MOST_ROWS:
            raise PlanError(
                f"tiles of {self.tile_shape[0]}x{self.tile_shape[1]} elements meet the diagonal in a pattern of {rows}x"
                f"{columns} tiles: {_MOST} along either side at most"
            )
        if self.mirror and self.tile_shape[0] != self.tile_shape[1]:
            raise PlanError(
                f"a symmetric product needs square tiles, and a cluster's has {self.tile_shape[0]}x"
                f"{self.tile_shape[1]} elements: the transpose of a tile is then no tile. Such as tile=(128, 256), "
                "cluster=(2, 1)"
            )

    @property
    def along(self) -> str:
        """ "M" for the lower half: bands are rows of tiles; "N" for the upper one."""
        return "M" if self.half == "lower" else "N"

    def on(self, tile: tuple[int, int]) -> Triangular:
        """The same order of tiles of that many elements."""
        return replace(self, tile_shape=tile)

    @property
    def is_full(self) -> bool:
        """False: a triangle's tiles alone."""
        return False

    # ------------------------------------------------------------------------------------------------------- the blocks
    @property
    def _sides(self) -> tuple[int, int]:
        """Elements of a tile across and along a band."""
        if self.tile_shape is None:
            raise PlanError("a triangular order is of tiles of some size: tile_shape=(rows, columns) of C's elements")
        return self.tile_shape if self.half == "lower" else self.tile_shape[::-1]

    @cached_property
    def block(self) -> tuple[int, int]:
        """Tiles of a block, across and along a band.

        >>> Triangular(group=3, tile_shape=(128, 256)).block, Triangular(group=3, tile_shape=(256, 224)).block
        ((4, 2), (7, 8))
        """
        across, along = self._sides
        period = lcm(across, along)
        times = -(-self.group // (period // across))
        return times * period // across, times * period // along

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """The first row of each column of a diagonal block that reaches below the diagonal."""
        across, along = self._sides
        return tuple([column * along // across for column in range(self.block[1])])

    @property
    def diagonal(self) -> int:
        """Tiles of a diagonal block."""
        return sum(self.block[0] - first for first in self.firsts)

    def _cut(self, rows: Integer, columns: Integer, minimum: Minimum) -> GridBands:
        u, v = self.block
        whole = minimum(rows // u, columns // v)
        height = minimum(rows - whole * u, u)
        width = minimum(columns - whole * v, v)
        return GridBands(whole // 2, whole % 2, height, width, rows - whole * u - height, columns)

    def _pair(self, cut: GridBands) -> Integer:
        """Tiles of two bands that are numbered together."""
        return (cut.whole - 1) * (self.block[0] * self.block[1]) + 2 * self.diagonal

    def _paired(self, cut: GridBands) -> Integer:
        """Tiles of all whole bands; of an odd number of them the middle one comes last."""
        middle = cut.half * (self.block[0] * self.block[1]) + self.diagonal
        return cut.half * self._pair(cut) + cut.odd * middle

    def _corner(self, height: Integer, width: Integer, minimum: Minimum) -> list[Integer]:
        """Tiles of each column in the first rows and columns of a diagonal block."""
        return [
            _reached(width, column + 1, minimum) * _positive(height - first, minimum)
            for column, first in enumerate(self.firsts)
        ]

    def _last(self, cut: GridBands, minimum: Minimum) -> Integer:
        """Tiles of the band that ends with the grid."""
        return cut.height * cut.whole * self.block[1] + sum(self._corner(cut.height, cut.width, minimum))

    # ---------------------------------------------------------------------------------------------------- the schedule
    @checked(PlanError)
    def count(self, grid: Grid, minimum: Minimum = least, reads: Reads | None = None) -> Any:
        """Tiles that are visited in a grid of (rows, columns).

        >>> Triangular(tile_shape=(128, 128)).count((64, 64))
        2080
        """
        rows, columns = grid if self.along == "M" else grid[::-1]
        cut = self._cut(rows, columns, minimum)
        return self._paired(cut) + self._last(cut, minimum) + cut.beyond * columns

    def visited(self, grid: tuple[int, int]) -> npt.NDArray[np.bool_]:
        """True for each tile (row, column) that has an element in the triangle."""
        rows, columns = checked_grid(grid)
        across, along = self.tile_shape or self._sides
        row, column = np.arange(rows)[:, None], np.arange(columns)[None, :]
        if self.half == "lower":
            return np.asarray((row + 1) * across > column * along)
        return np.asarray((column + 1) * along > row * across)

    def _tile(self, number: Integer, rows: Integer, columns: Integer, group: Integer, minimum: Minimum) -> Tile:
        return self._at(number, self._cut(rows, columns, minimum), minimum)

    def _at(self, number: Integer, cut: GridBands, minimum: Minimum) -> Tile:
        """The tile of a number: in one of the paired bands, in the band that ends with the grid, or below."""
        u, v = self.block
        pair, paired = self._pair(cut), self._paired(cut)
        rest = paired + self._last(cut, minimum)
        last, below = _reached(number, paired, minimum), _reached(number, rest, minimum)
        band, inside = self._of_pair(number // pair, number % pair, cut, minimum)
        band, inside = _select(last, cut.whole, band), _select(last, number - paired, inside)
        height, width = _select(last, _at_least_one(cut.height, minimum), u), _select(last, cut.width, v)
        row, column = self._in_band(inside, band, height, width, minimum)
        under = _at_least_one(cut.beyond, minimum), cut.columns
        low, right = Grouped(group=u).tile(number - rest, under, minimum)
        return _select(below, cut.whole * u + cut.height + low, row), _select(below, right, column)

    def _of_pair(self, nth: Integer, place: Integer, cut: GridBands, minimum: Minimum) -> tuple[Integer, Integer]:
        """The band of a place in a pair of bands, and the place there."""
        longer = cut.whole - 1 - nth
        end = longer * (self.block[0] * self.block[1]) + self.diagonal
        second = _reached(place, end, minimum)
        return _select(second, nth, longer), _select(second, place - end, place)

    def _in_band(self, inside: Integer, band: Integer, height: Integer, width: Integer, minimum: Minimum) -> Tile:
        """The tile of a place in a band of that many rows: in its full blocks, or in its diagonal block.

        width  columns of the diagonal block that lie in the grid
        """
        u, v = self.block
        full = height * band * v
        corner = _reached(inside, full, minimum)
        if corner.__class__ is int and not corner:
            return band * u + inside % height, inside // height
        row, column = self._in_corner(inside - full, height, width, minimum)
        row, column = band * u + row, band * v + column
        if corner.__class__ is int:
            return row, column
        return _select(corner, row, band * u + inside % height), _select(corner, column, inside // height)

    def _in_corner(self, inside: Integer, height: Integer, width: Integer, minimum: Minimum) -> Tile:
        """Row and column in a diagonal block, column by column."""
        counts, start, row, column = self._corner(height, width, minimum), 0, inside, 0
        for nth in range(1, self.block[1]):
            start = start + counts[nth - 1]
            reached = _reached(inside, start, minimum)
            column = column + reached
            row = row + reached * (self.firsts[nth] - self.firsts[nth - 1] - counts[nth - 1])
        return row, column

    # ------------------------------------------------------------------------------------------------------------ proof
    def prove(self) -> Answer:
        """Check that every tile of the triangle is visited exactly once, for every grid."""
        return all_proven(self._statements(), "pieces, for every grid")

    def _statements(self) -> Iterator[tuple[str, Answer]]:
        u, v = self.block
        yield "the triangle's tiles: band I has columns 0 to I*v - 1, and those of a diagonal block", self._set()
        for odd in (0, 1):
            yield from self._pairs(odd)
        given = Facts()
        n, limit = given["n"], given["limit"]
        yield "below a limit", prove_formulas(lambda x: _reached(x, limit, least), lambda x: 0, {"x": limit})
        yield "from a limit on", prove_formulas(lambda x: _reached(limit + x, limit, least), lambda x: 1, {"x": n})
        for height in range(1, u + 1):
            for width in range(v + 1):
                yield from self._band(height, width)
        yield "rows below the bands: whole rows, since the grid ends in their last block", Grouped(group=u).prove()

    def _set(self) -> Answer:
        """The listed tiles of a diagonal block have an element in the triangle, no others."""
        u, v = self.block
        across, along = self._sides
        row, column = np.arange(u)[:, None], np.arange(v)[None, :]
        same = ((row + 1) * across > column * along) == (row >= np.asarray(self.firsts)[None, :])
        if not same.all() or u * across != v * along:
            return Undecided(f"tile {tuple(int(x) for x in np.argwhere(~same)[0])} of a diagonal block")
        return Proof("exhaustion", (), (f"{u * v} tiles of a diagonal block of {u * across} elements",))

    def _pairs(self, odd: int) -> Iterator[tuple[str, Answer]]:
        """Pair `nth` of an even, or odd, number of bands: the places are those of bands R - 1 - nth and nth."""
        given = Facts()
        nth, more = given["nth"] - 1, given["more"] - 1
        cut = GridBands(nth + 1 + more, odd, 0, 0, 0, given["columns"])
        per, d = self.block[0] * self.block[1], self.diagonal
        longer = cut.whole - 1 - nth
        first, second = longer * per + d, nth * per + d
        name = f"pair nth of {'an odd' if odd else 'an even'} number of bands"
        of_longer = prove_formulas(lambda x: self._of_pair(nth, x, cut, least), lambda x: (longer, x), {"x": first})
        yield f"{name}: places below {first} are band {longer}", of_longer
        of_shorter = prove_formulas(
            lambda x: self._of_pair(nth, first + x, cut, least), lambda x: (nth, x), {"x": second}
        )
        yield f"{name}: those from there on are band nth", of_shorter
        middle = GridBands(nth, 1, 0, 0, 0, 1)
        of_middle = prove_formulas(lambda x: self._of_pair(nth, x, middle, least), lambda x: (nth, x), {"x": second})
        yield "the middle band of an odd number", of_middle
        whole = first + second == self._pair(cut) and self._paired(middle) - nth * self._pair(middle) == second
        yield (
            f"{name}: as many places as the two have, and the middle band's",
            (Proof("count") if whole else Undecided("the count")),
        )

    def _band(self, height: int, width: int) -> Iterator[tuple[str, Answer]]:
        """A band of that many rows, with that many columns of its diagonal block."""
        u, v = self.block
        name = f"a band of {height} rows and {width} columns more"
        band = Facts()["band"]
        of_blocks = prove_formulas(
            lambda i, j: self._in_band(i + height * j, band, height, width, least),
            lambda i, j: (band * u + i, j),
            {"i": height, "j": band * v},
        )
        yield f"{name}: its full blocks, column by column", of_blocks
        for number in (0, band):
            at = height * number * v
            for column, count in enumerate(self._corner(height, width, least)):
                if count == 0:
                    continue
                first = self.firsts[column]
                of_corner = prove_formulas(
                    lambda i, at=at, number=number: self._in_band(at + i, number, height, width, least),
                    lambda i, number=number, first=first, column=column: (
                        number * u + first + i,
                        number * v + column,
                    ),
                    {"i": count},
                )
                yield f"{name}: column {column} of its diagonal block", of_corner
                at = at + count


def _reached(number: Integer, limit: Integer, minimum: Minimum) -> Integer:
    """1 from a limit on, else 0."""
    return 1 - minimum(1, limit - minimum(number, limit))


def _positive(number: Integer, minimum: Minimum) -> Integer:
    """The number, or 0 where it is negative."""
    return number - minimum(number, 0)


def _at_least_one(number: Integer, minimum: Minimum) -> Integer:
    """The number, or 1 where it is less: a divisor."""
    return number + 1 - minimum(number, 1)


def _select(flag: Integer, yes: Integer, no: Integer) -> Integer:
    """`yes` where the flag is 1, `no` where it is 0."""
    if flag.__class__ is int:
        return yes if flag else no
    return no + flag * (yes - no)
