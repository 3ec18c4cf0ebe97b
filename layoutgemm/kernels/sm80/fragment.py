"""A warp's accumulators as an epilogue sees them. Where a lane's values lie in the warp's part of C.

The values are numbered pair by pair of neighbours of a row, as the store takes them: an epilogue reads and writes two
neighbours at once. A round of 16 rows comes before the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...layouts import Layout
from ..numbers import W
from .store import Sm80Store


@dataclass(frozen=True)
class WarpFragment:
    """(lane, value) -> row and column of a warp's part of C.

    store   whose pairs of neighbours number the values
    blocks  instructions of the warp along M and N

    >>> from layoutgemm.kernels.sm80.plan import Sm80Config, Sm80Plan
    >>> fragment = Sm80Plan.derive(64, 64, 64, config=Sm80Config((64, 64), warps=(2, 2))).fragment
    >>> fragment.accumulator_registers, [tuple(map(int, fragment.coords_C(5, value))) for value in (0, 1, 2, 16)]
    (32, [(1, 2), (1, 3), (9, 2), (17, 2)])
    """

    store: Sm80Store
    blocks: tuple[int, int]

    @property
    def accumulator_registers(self) -> int:
        """Values of a lane."""
        return self.store.mma.accumulator_registers * self.blocks[0] * self.blocks[1]

    @property
    def shape_mnk(self) -> tuple[int, int, int]:
        """Rows and columns of one instruction. Lanes that share a row of it share rows of the warp's part."""
        m, n, k = self.store.mma.shape_mnk
        return m, n, k

    @property
    def layout_C(self) -> Layout:
        """The instruction's map of lanes."""
        return self.store.mma.layout_C

    @property
    def lane_columns(self) -> int:
        """Columns that the lanes of a row hold together, in one pair each."""
        width = int(self.store.mma.shape_mnk[1])
        return width if self.store.orders[1] == Layout(2 * width) else 2 * width

    def place(self, value: int) -> tuple[int, int]:
        """(round of 16 rows, register of the round) of a value."""
        block, inside = divmod(value, 2 * len(self.store.registers))
        return block, self.store.registers[inside // 2][inside % 2]

    def register(self, value: int) -> int:
        """The accumulator that holds a value."""
        block, register = self.place(value)
        column, inside = divmod(register, self.store.mma.accumulator_registers)
        return self.store.mma.accumulator_registers * (block + self.blocks[0] * column) + inside

    def coords_C(self, lane: W, value: int) -> tuple[W, W]:
        """Row and column of a lane's value."""
        block, register = self.place(value)
        row, column = self.store.place(lane, register)
        return row + block * int(self.store.mma.shape_mnk[0]), column
