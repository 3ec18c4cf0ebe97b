"""The store of an Ampere kernel: registers, a warp's shared memory buffer, lines of C.

    16 rows of a warp's accumulators --st.shared--> buffer, swizzled --ld.shared, st.global of 16 bytes--> C

A fragment of mma.sync has two neighbours of a row in a thread, 4 or 8 bytes; lines of C want 128 bytes from a warp. The
rows of one instruction, 16, are a round; a warp has two buffers and meets itself once a round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...atoms import SWIZZLES, MmaAtom, SmemTile, operand_map, smem_tile, stmatrix
from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...checks import AccessPattern, bank_conflicts
from ...errors import PlanError
from ...layouts import Layout
from ...memo import memoized
from ..derive import Operand
from ..thread_addresses import ThreadAddresses

BUFFERS = 2


@dataclass(frozen=True)
class Sm80Store:
    """The store of one warp's accumulators.

    c           C's element type and order
    tile        (rows, columns) of a round in shared memory
    orders      index along M, and N, within 16 as the instructions count them -> index in C
    registers   (low, high) registers of a round that hold two neighbours of a row: value + 4 * block along N
    pairs       (lane, (number of the pair,)) -> byte in the buffer: where the two are put
    matrices    (lane, (16 columns,)) -> byte in the buffer: the row that a lane names to stmatrix, which puts four 8x8
                matrices of 16-bit elements; None where pairs are put one by one
    chunks      (lane, (chunk,)) -> byte in the buffer: the 16 bytes that a lane takes to global memory
    vector      bytes of one access to global memory; one element where lines are aligned to less than 4
    """

    c: Operand
    mma: MmaAtom
    tile: SmemTile
    orders: tuple[Layout, Layout]
    registers: tuple[tuple[int, int], ...]
    pairs: ThreadAddresses
    chunks: ThreadAddresses
    vector: int
    matrices: ThreadAddresses | None = None

    @property
    def per_row(self) -> int:
        """Chunks of 16 bytes in a row."""
        return self.tile.extent[1] * self.c.dtype.bytes // VECTOR_BYTES

    @property
    def drains(self) -> int:
        """Chunks that a lane takes in a round. The last one may be for some lanes only."""
        return -(-self.tile.extent[0] * self.per_row // WARP)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of one buffer, a multiple of the swizzle's period."""
        return -(-self.tile.bytes // self.tile.alignment) * self.tile.alignment

    def chunk_of(self, lane: Any, drain: int) -> tuple[Any, Any]:
        """(row, chunk) of a round that a lane takes. Consecutive lanes take a row's chunks in order."""
        number = lane + drain * WARP
        return number // self.per_row, number % self.per_row

    def place(self, lane: object, register: int) -> tuple[Any, Any]:
        """(row, column) in the round of one of a lane's registers."""
        block, value = divmod(register, self.mma.accumulator_registers)
        width = self.mma.shape_mnk[1]
        i, j = self.mma.coords_C(lane, value)
        group, inside = divmod(block * width, 16)
        return self.orders[0](i), 16 * group + self.orders[1](inside + j)

    def put(self) -> AccessPattern:
        """The lanes' writes into the buffer: (request, lane, two neighbours)."""
        lanes = np.arange(WARP)
        pairs = [[self.place(lanes, register) for register in pair] for pair in self.registers]
        coords = [np.stack([i + self.tile.extent[0] * j for i, j in pair], axis=1) for pair in pairs]
        return AccessPattern("st.shared of C", "st.shared", np.stack(coords).astype(np.int64))

    def taken(self) -> AccessPattern:
        """The lanes' reads from the buffer. (request, lane, elements of a chunk), -1 beyond the rows."""
        rows, width = self.tile.extent[0], VECTOR_BYTES // self.c.dtype.bytes
        found = np.full((self.drains, WARP, width), -1, np.int64)
        for drain in range(self.drains):
            row, chunk = self.chunk_of(np.arange(WARP), drain)
            coords = row[:, None] + rows * (chunk[:, None] * width + np.arange(width)[None, :])
            found[drain] = np.where((row < rows)[:, None], coords, -1)
        return AccessPattern("ld.shared of C", "ld.shared", found)

    @classmethod
    @memoized(256)
    def derive(
        cls,
        mma: MmaAtom,
        columns: int,
        c: Operand,
        vector: int,
        orders: tuple[Layout, Layout] | None = None,
        by_matrices: bool = False,
    ) -> Sm80Store:
        """The store of accumulators `columns` wide.

        >>> from layoutgemm.atoms import mma_sync
        >>> store = Sm80Store.derive(mma_sync("m16n8k16", "bf16"), 64, Operand.parse("bf16"), 16)
        >>> print(store.tile, store.registers[:2], store.drains, store.buffer_bytes)
        S<3,4,3>[bytes] o ((8,2),(64,1)):((64,512),(1,0)) x bf16 ((0, 1), (2, 3)) 4 2048
        """
        if columns * c.dtype.bytes % VECTOR_BYTES:
            raise PlanError(f"{columns} columns of {c.dtype} of a warp are no whole {VECTOR_BYTES} bytes")
        tile = smem_tile((mma.shape_mnk[0], columns), c.dtype, "K")  # replaced below
        bare = cls(
            c,
            mma,
            tile,
            orders or (Layout(16), Layout(16)),
            (),
            ThreadAddresses((), ()),
            ThreadAddresses((), ()),
            vector,
        )
        bare = replace(bare, registers=_neighbours(bare, columns // mma.shape_mnk[1] * mma.accumulator_registers))
        tile = min(store_tiles(bare), key=lambda tile: store_cost(bare, tile))
        bare = replace(bare, tile=tile)

        matrices = None
        if by_matrices:
            if c.dtype.bits != 16 or any(order != Layout(16) for order in bare.orders):
                raise PlanError(f"stmatrix stores 16-bit elements in the order of the fragments; C is {c.dtype}")
            groups = [(g,) for g in range(columns // 16)]
            matrices = ThreadAddresses.derive(lambda lane, at: tile.byte(*matrix_row(mma, lane, at[0])), WARP, groups)

        def place_of(lane: Any, at: Any) -> Any:
            return tile.byte(*bare.place(lane, bare.registers[at[0]][0]))

        def chunk_at(lane: Any, at: Any) -> Any:
            row, chunk = bare.chunk_of(lane, at[0])
            # lanes beyond the last row take part in no access
            return tile.byte(row % tile.extent[0], chunk * (VECTOR_BYTES // c.dtype.bytes))

        return replace(
            bare,
            matrices=matrices,
            pairs=ThreadAddresses.derive(place_of, WARP, [(p,) for p in range(len(bare.registers))]),
            chunks=ThreadAddresses.derive(chunk_at, WARP, [(d,) for d in range(bare.drains)]),
        )


def matrix_row(mma: MmaAtom, lane: object, group: int) -> tuple[Any, Any]:
    """The (row, column) that a lane gives to stmatrix.x4, for 16 columns of a round.

    >>> from layoutgemm.atoms import mma_sync
    >>> [tuple(int(x) for x in matrix_row(mma_sync("m16n8k16"), lane, 1)) for lane in (0, 8, 16)]
    [(0, 16), (8, 16), (0, 24)]
    """
    rows = mma.shape_mnk[0]
    element = operand_map(stmatrix(4), mma, "C", (1, 2))[0][0](lane)
    return element % rows, element // rows + 16 * group


def store_tiles(store: Sm80Store) -> list[SmemTile]:
    """A round's tile in every swizzle that there is for it, the widest first."""
    found = []
    for name, mode in SWIZZLES.items():
        span = mode.span // store.c.dtype.bytes
        if mode.xor is not None and store.tile.extent[1] % span == 0 and store.tile.extent[0] % mode.rows == 0:
            found.append(smem_tile(store.tile.extent, store.c.dtype, "K", name))
    return sorted(found, key=lambda tile: -tile.span)


def store_cost(store: Sm80Store, tile: SmemTile) -> int:
    """Wavefronts of a round's accesses to shared memory, if the buffer were that tile."""
    return sum(bank_conflicts(tile, access).wavefronts for access in (store.put(), store.taken()))


def _neighbours(store: Sm80Store, count: int) -> tuple[tuple[int, int], ...]:
    """Register pairs that hold an even column and the next one of a row."""
    lanes = np.arange(WARP)
    places = {r: tuple(np.asarray(x).tobytes() for x in store.place(lanes, r)) for r in range(count)}
    at = {place: register for register, place in places.items()}
    pairs = []
    for low in range(count):
        row, column = store.place(lanes, low)
        column = np.asarray(column)
        high = at.get((np.asarray(row).tobytes(), (column + 1).tobytes()))
        if (column % 2 == 0).all() and high is not None:
            pairs.append((low, high))
    if 2 * len(pairs) != count:
        raise PlanError(f"{len(pairs)} pairs of neighbours in {count} accumulators of {store.mma}")
    return tuple(pairs)
