"""The store of a Blackwell kernel: tensor memory, registers, shared memory, TMA stores.

    tensor memory --tcgen05.ld 32x32b--> one row a thread --convert, st.shared--> buffer, swizzled --tensor store--> C

Each of four warps has the 32 lanes that it can reach, which are 32 rows of C, and stores them for itself: no warp waits
for another. The columns are cut into chunks, a load each, and these into rounds and buffers as the Hopper kernel's are
(`kernels.store.StorePlan`):

    order of C   tile of a chunk   contiguous   a thread writes
    row          (32, width)       columns      16 bytes of its row at a time
    col          (32, width)       rows         one element of its row at a time, lanes side by side
"""

from __future__ import annotations

from dataclasses import replace

from ...arguments import as_int, shown
from ...atoms import SmemTile, TmemCopyAtom, tcgen05_ld
from ...atoms.tmem.layout import WARP_LANES
from ...errors import PlanError
from ..derive import Operand
from ..store import StoreChunk, StorePlan, StoreRound, buffer_bytes, gathered, tiles_of_chunks

WIDTHS = (16, 32, 64, 128)  # of a chunk, in columns: a tcgen05.ld brings as many registers to a thread
_SPAN_BYTES = 128  # the longest line of a swizzled tile in shared memory, and of a box


def load_of(chunk: StoreChunk) -> TmemCopyAtom:
    """The load that brings a chunk's columns. Value v of thread t is the element in row t, column v of the chunk.

    >>> print(load_of(derive_store(64, Operand.parse("bf16"), 32, 1, 2).rounds[0].chunks[0]))
    tcgen05.ld.sync.aligned.32x32b.x32.b32
    """
    return tcgen05_ld("32x32b", chunk.width)


def alike(store: StorePlan) -> bool:
    """True if the rounds repeat one round at further columns: the kernel then loops.

    >>> [alike(derive_store(columns, Operand.parse("bf16"), 32, 1, 2)) for columns in (32, 64, 96, 240, 256)]
    [False, True, False, False, True]
    """
    first, count = store.rounds[0], len(store.rounds)
    width = sum(chunk.width for chunk in first.chunks)
    further = [
        tuple([
            replace(chunk, column=chunk.column + i * width, first_value=chunk.first_value + i * width)
            for chunk in first.chunks
        ])
        for i in range(count)
    ]  # fmt: skip
    waits = {store.pending(i) for i in range(count)}
    return count > 1 and len(waits) == 1 and [round_.chunks for round_ in store.rounds] == further


def derive_store(columns: int, c: Operand, width: int, chunks: int, buffers: int) -> StorePlan:
    """The store of 32 rows and `columns` columns by one warp.

    width    columns of a chunk at most: fewer where a line of a row-major C would be longer than a swizzle span
    chunks   how many chunks a round has; more make fewer rounds and larger buffers
    buffers  of a warp: how many rounds may be in flight

    Raises PlanError for an unknown width and for a count below 1; passes on TmaError.

    >>> store = derive_store(240, Operand.parse("bf16"), 64, 1, 2)
    >>> [chunk.width for round in store.rounds for chunk in round.chunks], store.buffer_bytes
    ([64, 64, 64, 32, 16], 4096)
    """
    for name, value in (("chunks", chunks), ("buffers", buffers)):
        as_int(value, name, PlanError, least=1)
    width = as_int(width, "width", PlanError)
    if width not in WIDTHS:
        raise PlanError(f"width = {shown(width)}: known are {', '.join(map(str, WIDTHS))}")
    by_row = c.order == "row"
    widths = _halves(columns, min(width, _SPAN_BYTES // c.dtype.bytes) if by_row else width)
    tiles, maps = tiles_of_chunks(WARP_LANES, widths, c)

    def made(column: int, width: int, offset: int, number: int, tile: SmemTile) -> StoreChunk:
        return StoreChunk(column, width, offset, number, tile, None, 0, column, width)

    rounds = tuple(StoreRound(0, 0, group) for group in gathered(widths, chunks, tiles, made))
    return StorePlan(c, maps, rounds, buffer_bytes(rounds), buffers, 1)


def _halves(columns: int, most: int) -> tuple[int, ...]:
    """Powers of two that add up to the columns, the largest first, none above `most`.

    >>> _halves(176, 64)
    (64, 64, 32, 16)
    """
    full, rest = divmod(columns, most)
    return (most,) * full + tuple(1 << bit for bit in range(rest.bit_length() - 1, -1, -1) if rest >> bit & 1)
