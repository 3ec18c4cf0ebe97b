"""A warp's part of an accumulator in tensor memory, for epilogues of whole rows."""

from __future__ import annotations

from dataclasses import dataclass

from ...atoms.tmem.layout import WARP_LANES
from ...layouts import Layout
from ..numbers import W
from ..store import StoreChunk, StorePlan
from .store import load_of


@dataclass(frozen=True)
class TileRows:
    """(lane, value) -> row and column of the 32 rows of a tile that a warp stores.

    The values are numbered load by load, as the store takes its chunks.

    >>> from layoutgemm.kernels.sm100.plan import Sm100Config, Sm100Plan
    >>> rows = Sm100Plan.derive(128, 112, 64, config=Sm100Config((128, 112), width=64)).fragment
    >>> rows.accumulator_registers, [tuple(map(int, rows.coords_C(5, value))) for value in (0, 1, 100)]
    (112, [(5, 0), (5, 1), (5, 100)])
    """

    store: StorePlan

    @property
    def chunks(self) -> tuple[StoreChunk, ...]:
        """The store's chunks, a load each, in order."""
        return tuple([chunk for _, round_ in self.store.rounds_of(0, 0) for chunk in round_.chunks])

    @property
    def accumulator_registers(self) -> int:
        """Values of a lane: the tile's columns."""
        return sum(chunk.values for chunk in self.chunks)

    @property
    def lane_columns(self) -> int:
        """Columns that the lanes of a row hold together. A row has one lane."""
        return 1

    def register(self, value: int) -> int:
        """The register that holds a value."""
        return value

    @property
    def shape_mnk(self) -> tuple[int, int, int]:
        """Rows and columns that a warp stores of a tile."""
        return WARP_LANES, self.accumulator_registers, 1

    @property
    def layout_C(self) -> Layout:
        """The map of lanes, each a row, and of values, each a column."""
        return Layout((WARP_LANES, self.accumulator_registers))

    def coords_C(self, lane: W, value: int) -> tuple[W, W]:
        """Row and column of a lane's value, by the load's map."""
        chunk = next(chunk for chunk in self.chunks if chunk.first_value <= value < chunk.first_value + chunk.values)
        row, column = load_of(chunk).tmem(lane, value - chunk.first_value)
        return row, column + chunk.column
