"""How an accumulator leaves a Blackwell kernel: tensor memory, registers, a buffer in shared memory, tensor stores.

    tensor memory --tcgen05.ld 32x32b--> one row a thread --convert--> st.shared --> buffer, swizzled --tensor store--> C

Each of four warps has the 32 lanes that it can reach, which are 32 rows of C, and stores them for itself: no warp waits
for another. The columns are cut into chunks, rounds and buffers as the Hopper kernel's are (`sm90_store.StorePlan`):

    order of C   tile of a chunk   contiguous   a thread writes
    row          (32, width)       columns      16 bytes of its row at a time
    col          (32, width)       rows         one element of its row at a time, lanes side by side
"""

from __future__ import annotations

from ..atoms import TmemCopyAtom, smem_tile, tcgen05_ld
from ..atoms.tma import derive as derive_tma
from ..atoms.tmem import WARP_LANES
from ..errors import PlanError
from .plan import Operand
from .sm90_store import StoreChunk, StorePlan, StoreRound, _spans

VECTOR_BYTES = 16  # the widest st.shared, and the chunk that a swizzle leaves together
MOST_COLUMNS = 64  # of a chunk of column-major C
LOADED = 32  # columns that one tcgen05.ld brings at most: so many registers of a thread are the accumulator's
_ALIGNMENT = 1024  # a buffer begins where the widest swizzle pattern does


def load_of(chunk: StoreChunk) -> TmemCopyAtom:
    """The load that brings a chunk's columns, or the first part of them, and then the next one's.

    >>> store = derive_store(64, Operand.parse("bf16"), 1, 2)
    >>> print(load_of(store.rounds[0].chunks[0]), store.rounds[0].chunks[0].width)
    tcgen05.ld.sync.aligned.32x32b.x32.b32 64
    """
    return tcgen05_ld("32x32b", min(chunk.width, LOADED))


def derive_store(columns: int, c: Operand, chunks: int, buffers: int) -> StorePlan:
    """The store of 32 rows and `columns` columns by one warp.

    chunks   how many chunks a round has; more make fewer rounds and larger buffers
    buffers  of a warp: how many rounds may be in flight

    A chunk's value v of thread t is the element that `load_of` brings to register v of it: row t, column v. Raises
    PlanError where a count is not positive; passes on TmaError.

    >>> store = derive_store(240, Operand.parse("bf16"), 1, 2)
    >>> [chunk.width for round in store.rounds for chunk in round.chunks], store.buffer_bytes
    ([64, 64, 64, 32, 16], 4096)
    """
    for name, value in (("chunks", chunks), ("buffers", buffers)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise PlanError(f"{name} = {value!r}: at least one")
    by_row = c.order == "row"
    widths = _spans(columns, c.dtype) if by_row else _halves(columns, MOST_COLUMNS)
    distinct = sorted(set(widths), reverse=True)
    major, dims = ("K", ("n", "m")) if by_row else ("MN", ("m", "n"))
    tiles = {width: smem_tile((WARP_LANES, width), c.dtype, major) for width in distinct}
    maps = tuple(derive_tma(tiles[width], dims, "store") for width in distinct)
    rounds: list[StoreRound] = []
    largest = 0
    for first in range(0, len(widths), chunks):
        made, offset = [], 0
        for i in range(first, min(first + chunks, len(widths))):
            width, column, tile = widths[i], sum(widths[:i]), tiles[widths[i]]
            offset = -(-offset // tile.alignment) * tile.alignment
            made.append(StoreChunk(column, width, offset, distinct.index(width), tile, None, 0, column, width))
            offset += tile.bytes
        largest = max(largest, offset)
        rounds.append(StoreRound(0, 0, tuple(made)))
    return StorePlan(c, maps, tuple(rounds), -(-largest // _ALIGNMENT) * _ALIGNMENT, buffers, 1)


def _halves(columns: int, most: int) -> tuple[int, ...]:
    """Powers of two that add up to the columns, the largest first, none above `most`.

    >>> _halves(176, 64)
    (64, 64, 32, 16)
    """
    full, rest = divmod(columns, most)
    return (most,) * full + tuple(1 << bit for bit in range(rest.bit_length() - 1, -1, -1) if rest >> bit & 1)
