"""Rotated: any order of a grid, begun at a rank's own rows of tiles. The rank is a kernel parameter.

Of a product whose rows (or columns) lie on `ranks` devices, one shard after the other, a device has its own shard
first. It takes the tiles of that shard, then those of the next rank's, and so on around: its own data is there already,
and the others' arrives meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..arguments import Integer, as_int, checked, settle, shown
from ..errors import PlanError
from ..layouts.proofs.digits import minimum as least
from ..layouts.proofs.index_formulas import prove_formulas
from ..layouts.proofs.verdicts import Answer, Proof
from ..layouts.symbols.facts import Facts
from ..lazy_numpy import np
from .tile_order import Grid, Linear, Minimum, Reads, Schedule, Tile, all_proven

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class Rotated(Schedule):
    """An order begun at shard `rank` of `ranks`. Its rows are moved on by rank * rows // ranks, around.

    inner  the order that is rotated; one that goes through the shards' dimension once: Linear("N"), or Grouped("M")
    ranks  shards of the dimension, each of as many tiles where `ranks` divides them
    axis   "M": shards of rows; "N": of columns
    name   the kernel parameter that has the rank, 0 to ranks - 1

    Raises PlanError for an inner order of some tiles alone: they move with the rank.

    >>> turned = Rotated(Linear("N"), ranks=2)
    >>> turned.for_rank(1).table((2, 2)).tolist(), turned.words, turned.prove().ok
    ([[1, 0], [1, 1], [0, 0], [0, 1]], ('rank',), True)
    """

    inner: Schedule = field(default_factory=lambda: Linear("N"))
    ranks: int = 1
    axis: str = "M"
    name: str = "rank"
    fixed: int | None = None

    def __post_init__(self) -> None:
        settle(self, PlanError)
        as_int(self.ranks, "the number of ranks", PlanError, 1, 1 << 16)
        if self.axis not in ("M", "N") or not self.name.isidentifier():
            raise PlanError(
                f'axis = {shown(self.axis)}, name = {shown(self.name)}: "M" or "N", and the name of a parameter'
            )
        if not self.inner.is_full or not self.inner.has_formula:
            raise PlanError(f"{self.inner} is of some tiles, or a list: what is rotated has a formula for every tile")

    def for_rank(self, rank: int) -> Rotated:
        """The order of one rank, a number instead of the parameter."""
        return replace(self, fixed=as_int(rank, "the rank", PlanError, 0, self.ranks - 1))

    def on(self, tile: tuple[int, int]) -> Rotated:
        """The same order of tiles of that many elements."""
        return replace(self, inner=self.inner.on(tile))

    @property
    def words(self) -> tuple[str, ...]:
        """The inner order's, and the rank."""
        return (*self.inner.words, *((self.name,) if self.fixed is None else ()))

    @checked(PlanError)
    def tile(self, number: Integer, grid: Grid, minimum: Minimum = least, reads: Reads | None = None) -> Tile:
        """The (row, column) visited as number `number` of a grid of (rows, columns) of tiles."""
        row, column = self.inner.tile(number, grid, minimum, reads)
        if self.fixed is None and reads is None:
            raise PlanError(
                f"the order reads {self.name}, a kernel parameter, whose value is not given: for_rank(rank)"
            )
        rank: Any = self.fixed if reads is None or self.fixed is not None else reads.word(self.name)
        if self.axis == "M":
            return _moved(row, rank * grid[0] // self.ranks, grid[0]), column
        return row, _moved(column, rank * grid[1] // self.ranks, grid[1])

    def table(self, grid: tuple[int, int]) -> npt.NDArray[np.int64]:
        """All tiles of a grid in their order, of a rank that is known. An array [number] of (row, column)."""
        return super().table(grid)

    def prove(self) -> Answer:
        """Check that every tile of every grid is visited exactly once, for every rank."""
        return all_proven(self._statements(), "pieces, for every grid and every rank")

    def _statements(self) -> Iterator[tuple[str, Answer]]:
        yield "the order that is rotated", self.inner.prove()
        given = Facts()
        first, rest = given["first"], given["rest"]
        extent = first + rest  # rows are moved on by `first`, at most all but one
        wrapped = prove_formulas(lambda x: _moved(rest + x, first, extent), lambda x: x, {"x": first})
        straight = prove_formulas(lambda x: _moved(x, first, extent), lambda x: first + x, {"x": rest})
        still = prove_formulas(lambda x: _moved(x, 0, extent), lambda x: x, {"x": extent})
        yield "rows from `rest` on become 0 to first - 1", wrapped
        yield "those before become first to the last", straight
        yield "moved by no row they stay", still
        bound = Proof("bounds", (), (f"rank * rows // {self.ranks} < rows for rank < {self.ranks}",))
        yield "a rank below the number of ranks moves by less than all rows", bound


def _moved(index: Any, by: Any, extent: Any) -> Any:
    return (index + by) % extent
