"""How an accumulator leaves a Hopper kernel: registers, a buffer in shared memory, tensor stores; or element by element.

Of a 64-row accumulator a warp holds 16 rows, and it stores them by itself: no warp waits for another. The columns are
cut into chunks, each as wide as a swizzle span or a part of one, so that 16 rows of a chunk are one box of a tensor map.
Chunks are gathered into rounds; a round fills one of the warp's buffers.

    accumulator (16 x N, f32) --convert--> pairs --stmatrix (or st.shared)--> buffer, swizzled --tensor store--> C
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..atoms import MmaAtom, SmemTile, TmaPlan, row_addresses, smem_tile, stmatrix, wgmma
from ..atoms.tma import derive as derive_tma
from ..dtypes import DType
from ..errors import PlanError

ROWS = 64  # of an accumulator: wgmma's M
WARP_ROWS = 16  # of it that one warp holds, and stores by itself
_ALIGNMENT = 1024  # a buffer begins where the widest swizzle pattern does


@dataclass(frozen=True)
class StoreChunk:
    """Some columns of a warp's 16 rows, and their tile in a buffer.

    column, width   in the accumulator, elements
    offset          of the tile in the round's buffer, bytes
    map             which of the plan's tensor maps stores it
    tile            (16, width) elements in shared memory, rows contiguous
    rows            (lane, (instruction, 0)) -> element offset of the row that the lane addresses for stmatrix, or None
                    where the type has no stmatrix and threads store their own pairs
    matrices        8x8 matrices of one stmatrix
    first_value     the accumulator's value at (0, column) for thread 0: values of the chunk begin there
    values          of one thread in the chunk
    """

    column: int
    width: int
    offset: int
    map: int
    tile: SmemTile
    rows: Any
    matrices: int
    first_value: int
    values: int


@dataclass(frozen=True)
class StorePlan:
    """The rounds of one warp's store.

    dtype         C's element type
    maps          one tensor map for each chunk width
    rounds        in order: (block of M, chunks); each fills one buffer and is stored as one bulk group
    buffer_bytes  of the largest round, a multiple of the swizzle period
    buffers       of each warp
    """

    dtype: DType
    maps: tuple[TmaPlan, ...]
    rounds: tuple[tuple[int, tuple[StoreChunk, ...]], ...]
    buffer_bytes: int
    buffers: int

    @classmethod
    def derive(cls, mma: MmaAtom, blocks: int, dtype: DType, chunks: int, buffers: int) -> StorePlan:
        """The store of `blocks` accumulators of `mma`, one below the other, into row-major C of `dtype`.

        chunks   how many chunks a round has; more make fewer rounds, each with two barriers, and larger buffers
        buffers  how many rounds may be in flight

        Raises PlanError where a count is not positive, and passes on TmaError.
        """
        for name, value in (("chunks", chunks), ("buffers", buffers)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise PlanError(f"{name} = {value!r}: at least one")
        columns = mma.shape_mnk[1]
        widths = _widths(columns, dtype)
        distinct = sorted(set(widths), reverse=True)
        tiles = {width: smem_tile((WARP_ROWS, width), dtype, "K") for width in distinct}
        maps = tuple(derive_tma(tiles[width], ("n", "m"), "store") for width in distinct)
        for width, tma in zip(distinct, maps, strict=True):
            if len(tma.instructions) != 1:
                raise PlanError(f"a chunk of {width} columns needs {len(tma.instructions)} stores")
        rounds: list[tuple[int, tuple[StoreChunk, ...]]] = []
        largest = 0
        for block in range(blocks):
            for first in range(0, len(widths), chunks):
                made, offset = [], 0
                for i in range(first, min(first + chunks, len(widths))):
                    width, column = widths[i], sum(widths[:i])
                    offset = -(-offset // tiles[width].alignment) * tiles[width].alignment
                    made.append(_chunk(mma, dtype, column, width, offset, distinct.index(width), tiles[width]))
                    offset += tiles[width].bytes
                largest = max(largest, offset)
                rounds.append((block, tuple(made)))
        return cls(dtype, maps, tuple(rounds), -(-largest // _ALIGNMENT) * _ALIGNMENT, buffers)

    def rounds_of(self, block: int) -> list[tuple[int, tuple[StoreChunk, ...]]]:
        """(number, chunks) of the rounds of one block."""
        return [(i, chunks) for i, (of, chunks) in enumerate(self.rounds) if of == block]


def _widths(columns: int, dtype: DType) -> tuple[int, ...]:
    """Columns of each chunk: whole 128-byte spans first, then the rest in halves, down to 16 bytes.

    >>> from layoutgemm.dtypes import bf16, f32
    >>> _widths(224, bf16), _widths(40, f32)
    ((64, 64, 64, 32), (32, 8))
    """
    widths: list[int] = []
    width = 128 // dtype.bytes
    while columns:
        while columns >= width:
            widths.append(width)
            columns -= width
        if columns and width * dtype.bytes == 16:
            raise PlanError(f"{columns} columns of {dtype} are left, {columns * dtype.bytes} bytes: no whole 16 bytes")
        width //= 2
    return tuple(widths)


def _chunk(mma: MmaAtom, dtype: DType, column: int, width: int, offset: int, map_: int, tile: SmemTile) -> StoreChunk:
    threads, values = mma.layout_C[0], mma.layout_C[1]
    per_column = values.size / mma.shape_mnk[1]
    first, count = int(column * per_column), int(width * per_column)
    # The accumulator's values of these columns are one run: the first one's element is (row of thread 0, column).
    at = mma.coords_C(0, first)
    assert threads.size == 128 and tuple(int(x) for x in at) == (0, column), (mma, column, at)
    rows, matrices = None, 0
    if dtype.bits == 16:
        matrices = min(4, count // 2)
        # Of the 64 rows' addresses those of warp 0: the 16-row tile is the first quarter of the 64-row one.
        rows = row_addresses(stmatrix(matrices), smem_tile((ROWS, width), dtype, "K"), wgmma(width, "bf16"), "C")
    return StoreChunk(column, width, offset, map_, tile, rows, matrices, first, count)
