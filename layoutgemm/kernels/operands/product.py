"""Facts of a plan that several matrices B, a gate, and a second pair decide. See `combined`, `gated`, `pair`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from ...layouts import Layout
from ..derive import Operand
from ..numbers import W
from ..plan import tile_count
from .combined import Combined
from .gated import halves_of
from .pair import SecondPair

if TYPE_CHECKING:
    from ..ragged import AlongK, Ragged


Word = TypeVar("Word")  # a number, or a traced one


def distance_of(name: str) -> str:
    """The name of the parameter with the elements from matrix to matrix of a batch."""
    return f"stride_{name}"


@dataclass(frozen=True)
class SideBySide:
    """Rows of B's tile that hold columns of several matrices.

    rows      of the tile
    matrices  that lie side by side in each part
    parts     of the tile, each of which has all sums of its columns: of a warp along N, or of a CTA of a pair

    >>> two = SideBySide(128, 2, 2)
    >>> [int(two.row(column, matrix)) for column, matrix in ((0, 0), (31, 1), (32, 0))]
    [0, 63, 64]
    >>> two.source(63), two.source(64)
    ((31, 1), (32, 0))
    """

    rows: int
    matrices: int
    parts: int = 1

    @property
    def share(self) -> int:
        """Columns of a matrix in a part."""
        return self.rows // (self.matrices * self.parts)

    @cached_property
    def layout(self) -> Layout:
        """(column of a matrix's tile, matrix) -> row of B's tile."""
        return Layout(((self.share, self.parts), self.matrices), ((1, self.share * self.matrices), self.share))

    def row(self, column: W, matrix: W) -> W:
        """The row of B's tile that holds a column of a matrix."""
        return self.layout(column, matrix)

    def source(self, row: W) -> tuple[W, W]:
        """(column, matrix) of a row of B's tile: the inverse of `row`."""
        inside = row % (self.share * self.matrices)
        return row // (self.share * self.matrices) * self.share + inside % self.share, inside // self.share


class SeveralOperands:
    """Facts of a plan with `gated` and `pair`, either of which may be None."""

    m: int
    n: int
    k: int
    batch: int
    ragged: Ragged | None
    along_k: AlongK | None
    experts: Ragged | None
    a: object
    b: object
    c: Operand
    tile: tuple[int, int, int]
    gated: Combined | None
    pair: SecondPair | None

    @property
    def groups(self) -> Ragged | AlongK | None:
        """The groups of rows, of columns, or those along K, or None."""
        return self.ragged or self.along_k or self.experts

    @property
    def sums(self) -> int:
        """Sums that make one element of C."""
        return self.gated.matrices if self.gated is not None else 1

    @property
    def halves(self) -> int:
        """Columns of B for each column of C. 2 of a gated product, the gate's and the gated."""
        return halves_of(self.gated)

    @property
    def tile_c(self) -> tuple[int, int]:
        """Rows and columns of C in a tile. Of several sums, they are their share of the columns that are multiplied."""
        return self.tile[0], self.tile[1] // self.sums

    @property
    def tiles(self) -> tuple[int, int]:
        """The number of tiles along M and N."""
        return tile_count(self.m, self.tile_c[0]), tile_count(self.n, self.tile_c[1])

    @property
    def k_tiles(self) -> int:
        """K tiles of a tile of C, of both pairs."""
        return sum(tile_count(k, self.tile[2]) for k in (self.k, *([self.pair.k] if self.pair is not None else [])))

    def front(self, name: str) -> tuple[int, ...]:
        """The dimension before the two of "a", "b" or "c". Matrices of a batch or of groups; () of one matrix.

        Of groups of rows B alone has it, of groups along K C alone.
        """
        if self.ragged is not None and not self.ragged.masked:
            return (self.batch,) if name == "b" else ()
        if self.along_k is not None and name != "c":
            return ()
        return (self.batch,) if self.batch > 1 else ()

    @property
    def further(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        """Matrices beyond A and B by name. The operand that each lies as, and its shape."""
        a, b = self.front("a"), self.front("b")
        names = [name for name, _ in (self.gated.places if self.gated is not None else ())]
        found = dict.fromkeys(names, (self.b, (*b, self.k, self.n)))
        if self.pair is None:
            return found
        of_b = *b, self.pair.k, self.n * self.halves
        return {**found, "a2": (self.a, (*a, self.m, self.pair.k)), **dict.fromkeys(self.pair.of_b, (self.b, of_b))}

    @property
    def numbers_given(self) -> tuple[str, ...]:
        """Names of the numbers that a launch takes, other than the epilogue's."""
        return self.gated.numbers if self.gated is not None else ()

    @property
    def operand_words(self) -> tuple[str, ...]:
        """The kernel's parameters for further matrices and numbers, in order. Distances of a batch's matrices last."""
        own = [word for part in (self.gated, self.pair) if part is not None for word in part.words]
        return (*own, *[distance_of(name) for name, (_, shape) in self.further.items() if len(shape) > 2])

    def lines_given(self, name: str, given: Mapping[str, Word]) -> tuple[Word, tuple[Word, ...]]:
        """(address, pitches) of a further matrix, of a launch's words by name. Between lines, then between matrices."""
        pitches = [given[word] for word in (f"ld{name}", distance_of(name)) if word in given]
        return given[name], tuple(pitches)
