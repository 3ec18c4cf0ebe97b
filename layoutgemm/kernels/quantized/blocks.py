"""A stage of packed weights, and the bytes of global memory that fill it. Whole units, or their halves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...atoms.copy.base import WARP
from ...dtypes import DType
from ..numbers import W
from .formats import UNIT_K, UNIT_ROWS
from .order import THREADS, PackedOrder

STAGE_ALIGNMENT = 128  # bytes: a warp's 16-byte vectors are whole lines of banks
QUARTERS = THREADS // WARP  # of a unit, one for each warp of a warpgroup
OF_QUARTERS = QUARTERS.bit_length() - 1  # bits of a strip's quarter
STRIP = UNIT_ROWS // QUARTERS  # features of a quarter: the rows of a fragment in one warp
DEPTHS = (64, UNIT_K)  # of a K tile: half a unit, or a whole one


@dataclass(frozen=True, slots=True)
class PackedTile:
    """A stage of packed weights: whole units, one for each 64 rows.

    extent  (rows, depth) in weights
    """

    extent: tuple[int, int]
    bytes: int
    alignment: int = STAGE_ALIGNMENT

    @property
    def said(self) -> str:
        """The tile's elements, for a picture."""
        return "packed weights"


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Contiguous bytes of a row block. Bytes in global memory -> bytes of the block in a stage.

    source, target  first bytes: of the packed weights, an int or a traced integer, and of the block
    """

    source: Any
    target: int
    bytes: int


@dataclass(frozen=True)
class PackedBlocks:
    """Packed weights as an operand. A K tile is whole or half units, one row block after another.

    packing  the order of a unit
    smem     a stage: (rows, depth) of weights
    """

    packing: PackedOrder
    smem: PackedTile
    dtype: DType
    name: str = "A"
    order: str = "row"
    major: str = "K"

    @property
    def row_blocks(self) -> int:
        """Blocks of 64 rows of a stage."""
        return self.smem.extent[0] // UNIT_ROWS

    @property
    def parts(self) -> int:
        """K tiles of a unit."""
        return UNIT_K // self.smem.extent[1]

    @property
    def code_bytes(self) -> int:
        """Bytes of a block's codes in a stage; its scales come behind them."""
        return self.packing.code_bytes // self.parts

    @property
    def groups(self) -> int:
        """Groups of a K tile. A group that is deeper is in each of its K tiles."""
        return -(-self.packing.format.groups // self.parts)

    @property
    def vectors(self) -> int:
        """16-byte vectors of a thread in a block."""
        return self.packing.vectors // self.parts

    @property
    def block_bytes(self) -> int:
        """Bytes of a row block in a stage."""
        return self.code_bytes + self.groups * self.packing.group_bytes

    @property
    def bytes(self) -> int:
        """Bytes of a stage."""
        return self.row_blocks * self.block_bytes

    @property
    def scales_sums(self) -> bool:
        """True if the scales of groups multiply sums in float32, and not weights."""
        return self.packing.scales_sums

    @property
    def one_shift(self) -> bool:
        """True if int4 is converted by one shift a word. Totals are multiplied by the divisor."""
        return self.scales_sums

    @property
    def total_factor(self) -> float:
        """The factor of the totals. It is the divisor of values converted by one shift, or to e4m3 without groups.

        >>> from layoutgemm.dtypes import dtype
        >>> from layoutgemm.kernels.quantized.formats import QuantizedFormat
        >>> order = PackedOrder(QuantizedFormat("int4", 128), "bf16")
        >>> PackedBlocks(order, PackedTile((64, 128), 0), dtype("bf16")).total_factor, order.division
        (1.0, 4.0)
        """
        order = self.packing
        if order.scales_sums and not order.format.groups:
            return order.factor
        return order.division if self.one_shift else 1.0

    @property
    def sums(self) -> int:
        """Sums of a K tile and a row block. One for each of its groups, if scales multiply sums.

        >>> from layoutgemm.dtypes import dtype
        >>> from layoutgemm.kernels.quantized.formats import QuantizedFormat
        >>> order = PackedOrder(QuantizedFormat("int4", 32), "e4m3")
        >>> [PackedBlocks(order, PackedTile((128, depth), 0), dtype("e4m3")).sums for depth in DEPTHS]
        [2, 4]
        """
        return max(1, self.groups)

    def block_copies(self, row_block: W, k_tile: W, units: W) -> tuple[BlockCopy, ...]:
        """The bytes of a row block's K tile; ints or traced integers of 64 bits.

        units  of a row block along K
        """
        order = self.packing
        first = (row_block * units + k_tile // self.parts) * order.unit_bytes
        if self.parts == 1:
            return (BlockCopy(first, 0, order.unit_bytes),)
        part = k_tile % self.parts
        codes = BlockCopy(first + part * self.code_bytes, 0, self.code_bytes)
        if not self.groups:
            return (codes,)
        group = part * order.format.groups // self.parts
        scales = first + order.code_bytes + group * order.group_bytes
        return codes, BlockCopy(scales, self.code_bytes, self.groups * order.group_bytes)
