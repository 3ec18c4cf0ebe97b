"""How an accumulator leaves an Ampere kernel: registers, a buffer of the warp in shared memory, whole lines of C.

    16 rows of a warp's accumulators --st.shared--> buffer, swizzled --ld.shared, st.global of 16 bytes--> C

A fragment of mma.sync has two neighbours of a row in a thread, 4 or 8 bytes; lines of C want 128 bytes from a warp. The
rows of one instruction, 16, are a round; a warp has two buffers and meets itself once a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..atoms import MmaAtom, SmemTile, smem_tile
from ..errors import PlanError
from .plan import Operand
from .sm80_operand import VECTOR, WARP, Places

BUFFERS = 2


@dataclass(frozen=True)
class Sm80Store:
    """The store of one warp's accumulators.

    c           C's element type and order
    tile        (rows, columns) of a round in shared memory
    pairs       (lane, (pair of values, block along N)) -> byte in the buffer: where two neighbours are put
    chunks      (lane, (chunk,)) -> byte in the buffer: the 16 bytes that a lane takes to global memory
    vector      bytes of one access to global memory; one element where lines are aligned to less than 4
    """

    c: Operand
    mma: MmaAtom
    tile: SmemTile
    pairs: Places
    chunks: Places
    vector: int

    @property
    def rounds_columns(self) -> int:
        """Columns of a warp."""
        return self.tile.extent[1]

    @property
    def per_row(self) -> int:
        """Chunks of 16 bytes in a row."""
        return self.tile.extent[1] * self.c.dtype.bytes // VECTOR

    @property
    def drains(self) -> int:
        """Chunks that a lane takes in a round; the last one may be for some lanes only."""
        return -(-self.tile.extent[0] * self.per_row // WARP)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of one buffer, a multiple of the swizzle's period."""
        return -(-self.tile.bytes // self.tile.alignment) * self.tile.alignment

    def chunk_of(self, lane: Any, drain: int) -> tuple[Any, Any]:
        """(row, chunk) of a round that a lane takes: consecutive lanes take a row's chunks in order."""
        number = lane + drain * WARP
        return number // self.per_row, number % self.per_row

    def pair_of(self, lane: Any, pair: int, block: int) -> tuple[Any, Any]:
        """(row, column) in the round of the first of two neighbours that a lane holds."""
        i, j = self.mma.coords_C(lane, 2 * pair)
        return i, j + block * self.mma.shape_mnk[1]

    @classmethod
    def derive(cls, mma: MmaAtom, columns: int, c: Operand, vector: int) -> Sm80Store:
        """The store of accumulators `columns` wide.

        >>> from layoutgemm.atoms import mma_sync
        >>> store = Sm80Store.derive(mma_sync("m16n8k16", "bf16"), 64, Operand.parse("bf16"), 16)
        >>> print(store.tile, store.drains, store.buffer_bytes)
        S<3,4,3>[bytes] o ((8,2),(64,1)):((64,512),(1,0)) x bf16 4 2048
        """
        if columns * c.dtype.bytes % VECTOR:
            raise PlanError(f"{columns} columns of {c.dtype} of a warp are no whole {VECTOR} bytes")
        tile = smem_tile((mma.shape_mnk[0], columns), c.dtype, "K")
        bare = cls(c, mma, tile, Places((), ()), Places((), ()), vector)
        pairs = [(p, b) for b in range(columns // mma.shape_mnk[1]) for p in range(mma.accumulator_registers // 2)]
        put = Places.derive(lambda lane, at: tile.byte(*bare.pair_of(lane, *at)), WARP, pairs)
        width = VECTOR // c.dtype.bytes

        def byte(lane: Any, at: Any) -> Any:
            row, chunk = bare.chunk_of(lane, at[0])
            # lanes beyond the last row take part in no access
            return tile.byte(row % tile.extent[0], chunk * width)

        taken = Places.derive(byte, WARP, [(d,) for d in range(bare.drains)])
        return cls(c, mma, tile, put, taken, vector)
