"""The store of a Hopper kernel: registers, a shared memory buffer, TMA stores.

    accumulator (64 x N, f32) --convert--> pairs --stmatrix (or st.shared)--> buffer, swizzled --tensor store--> C

The columns are cut into chunks, each at most as wide as a swizzle span. A chunk's tile in shared memory is then one box
of a tensor map (two of 32 rows for an f32 C with contiguous columns). Chunks are gathered into rounds; a round fills
one buffer.

    order of C   a buffer belongs to             tile of a chunk   contiguous   stmatrix
    row          one warp: its 16 of 64 rows     (16, width)       columns      plain
    col          one warpgroup                   (64, width)       rows         .trans

A warp that stores its own rows waits for no other; columns of C run across all four warps, which then meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import gcd
from typing import Any

import numpy as np

from ..arguments import as_int
from ..atoms import MmaAtom, SmemTile, TmaPlan, row_addresses, smem_tile, stmatrix, wgmma
from ..atoms.copy.base import VECTOR_BYTES, WARP
from ..atoms.tma.derive import derive as derive_tma
from ..dtypes import DType
from ..errors import PlanError
from ..memo import memoized
from .derive import Operand
from .numbers import W
from .plan import rounded_up

ROWS = 64  # of an accumulator: wgmma's M
WARP_ROWS = 16  # of it that one warp holds
WARPS_OF_GROUP = ROWS // WARP_ROWS
TILE_ALIGNMENT = 1024  # bytes: a stage or a buffer begins where the widest swizzle pattern does
_COLUMNS = 64  # of a chunk of column-major C: more make one round of more registers, fewer make more rounds


@dataclass(frozen=True)
class StoreChunk:
    """Some columns of an accumulator, and their tile in a buffer.

    column, width   in the accumulator, elements
    offset          of the tile in the round's buffer, bytes
    map             which of the plan's tensor maps stores it
    tile            (rows, width) elements in shared memory
    rows            (lane, (instruction, warp)) -> element offset of the row that the lane addresses for stmatrix, or
                    None where the type has no stmatrix and threads store their own values
    matrices        8x8 matrices of one stmatrix
    first_value     the accumulator's value at (0, column) for thread 0: values of the chunk begin there
    values          of one thread in the chunk
    exchange        of 8-bit columns: the lanes' exchange before stmatrix, or None
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
    exchange: ByteExchange | None = None


@dataclass(frozen=True)
class ByteExchange:
    """The store of 8-bit columns by stmatrix.trans, whose elements are two bytes. Two neighbours of a column.

    A lane holds rows r and r + 8 of two columns, and needs rows 2r and 2r + 1: a word of four values comes from two
    lanes, half of each. A word's bytes, by (row, column), are (r, c), (r, c + 1), (r + 8, c), (r + 8, c + 1) before and
    (2r, c), (2r + 1, c), (2r, c + 1), (2r + 1, c + 1) after.

    matrices  words of a lane that an stmatrix stores

    >>> four = ByteExchange(4)
    >>> [four.sources(lane) for lane in (0, 1, 4, 16)], [hex(four.selector(lane)) for lane in (0, 16)]
    ([(0, 4), (1, 5), (8, 12), (0, 4)], ['0x5140', '0x7362'])
    >>> four.place(3, 1, 33)
    (48, 33)
    """

    matrices: int

    def sources(self, lane: W) -> tuple[W, W]:
        """The lanes that have the even and the odd row."""
        even = lane // 4 % 4 * 8 + lane % 4
        return even, even + 4

    def selector(self, lane: W) -> W:
        """prmt's digits: low halves of both words, of lanes from 16 on high ones."""
        return 0x5140 + lane // 16 * 0x2222

    def place(self, warp: W, instruction: int, lane: W) -> tuple[W, W]:
        """(row, column) of the 16 bytes whose address the lane gives. Those of x2 are lanes 0 to 15's."""
        columns = 8 * self.matrices
        return warp * WARP_ROWS, instruction * columns + lane % columns

    def exchanged(self, words: np.ndarray) -> np.ndarray:
        """(32, words, 4) values of a warp's lanes after the exchange."""
        lanes = np.arange(WARP)
        both = np.concatenate([words[source] for source in self.sources(lanes)], axis=-1)
        digits = self.selector(lanes)[:, None] >> np.array([0, 4, 8, 12]) & 7
        return np.take_along_axis(both, np.broadcast_to(digits[:, None, :], words.shape), axis=-1)


@dataclass(frozen=True, slots=True)
class RowVectors:
    """A chunk of C in a warp's buffer, in vectors of 16 bytes. Lanes along a row first, then over rows.

    >>> from layoutgemm.atoms import smem_tile
    >>> wide, narrow = (RowVectors(smem_tile((16, n), "bf16", "K")) for n in (64, 8))
    >>> wide.passes, wide.place(1, 9), narrow.passes, narrow.place(0, 9)
    (4, (5, 8), 1, (9, 0))
    """

    tile: SmemTile

    @property
    def width(self) -> int:
        """Elements of a vector."""
        return VECTOR_BYTES // self.tile.dtype.bytes

    @property
    def vectors(self) -> int:
        """Vectors of a row."""
        return self.tile.extent[1] // self.width

    @property
    def passes(self) -> int:
        """Vectors of a lane."""
        return -(-self.tile.extent[0] * self.vectors // WARP)

    @property
    def is_even(self) -> bool:
        """True if every lane has as many vectors."""
        return self.tile.extent[0] * self.vectors % WARP == 0

    def place(self, number: int, lane: W) -> tuple[W, W]:
        """(row, first column) of a lane's vector; from the tile's last row on, no vector.

        Ints, arrays or traced integers.
        """
        at = number * WARP + lane
        return at // self.vectors, at % self.vectors * self.width

    def byte(self, place: tuple[object, object]) -> Any:
        """The byte of the vector at a place."""
        return self.tile.byte(*place)


@dataclass(frozen=True)
class StoreRound:
    """The chunks that fill one buffer. They are of one accumulator (`block`) and one part of its columns."""

    block: int
    part: int
    chunks: tuple[StoreChunk, ...]


@dataclass(frozen=True)
class StorePlan:
    """The rounds of a warpgroup's store.

    c             C's element type and order
    maps          one tensor map for each chunk width
    rounds        in order; each fills one buffer and is stored as one bulk group
    buffer_bytes  of the largest round, a multiple of the swizzle period
    buffers       of each owner: how many rounds may be in flight
    warps         of an owner: 1 or 4
    parts         of an accumulator's columns
    part_per_cta  True if each CTA's consumer stores one part; else one consumer stores all, one after another
    at_once       all rounds of a tile are one bulk group: each has a buffer, and they are stored when all are filled
    """

    c: Operand
    maps: tuple[TmaPlan, ...]
    rounds: tuple[StoreRound, ...]
    buffer_bytes: int
    buffers: int
    warps: int
    parts: int = 1
    part_per_cta: bool = False
    at_once: bool = False

    @classmethod
    @memoized(256)
    def derive(
        cls, mma: MmaAtom, blocks: int, c: Operand, chunks: int, buffers: int, parts: int = 1,
        part_per_cta: bool = True, rows: int = WARP_ROWS, at_once: bool = False, maps: int | None = None,
    ) -> StorePlan:  # fmt: skip
        """The store of `blocks` accumulators of `mma`, one below the other.

        chunks   how many chunks a round has; more make fewer rounds and larger buffers
        buffers  how many rounds may be in flight
        parts    of the columns: dealt out to as many blocks of a cluster, which share the sum over K; or, without
                 `part_per_cta`, complete one after the other
        rows     of a box of a row-major C: a warp's own 16, or a warpgroup's 64
        at_once  a buffer for each round of a tile, which are one bulk group; `buffers` does not count
        maps     at most, one for each width of a chunk; None for as many as there are widths

        Raises PlanError where a count is not positive or the columns cannot be dealt out; passes on TmaError.

        >>> store = StorePlan.derive(wgmma(224), 2, Operand.parse("bf16"), 1, 2)
        >>> [chunk.width for round in store.rounds[:4] for chunk in round.chunks], store.buffer_bytes
        ([64, 64, 64, 32], 2048)
        >>> few = StorePlan.derive(wgmma(112), 1, Operand.parse("bf16"), 1, 2, maps=2)
        >>> [chunk.width for round in few.rounds for chunk in round.chunks]
        [32, 32, 32, 16]
        """
        for name, value in (("chunks", chunks), ("buffers", buffers)):
            as_int(value, name, PlanError, least=1)
        columns, by_row = mma.shape_mnk[1], c.order == "row"
        if columns % (8 * parts):
            raise PlanError(f"{columns} columns in {parts} parts: each needs whole groups of 8 columns")
        part = columns // parts
        widths = _spans(part, c.dtype) if by_row else _blocks_of(part, _COLUMNS)
        widths = widths if maps is None else _of_few_widths(widths, maps)
        rows = rows if by_row else ROWS
        tiles, tmas = tiles_of_chunks(rows, widths, c)
        rounds = [
            StoreRound(block, which, group)
            for block in range(blocks)
            for which in range(parts)
            for group in gathered(widths, chunks, tiles, lambda *at: _chunk(mma, c, *at), which * part)
        ]
        bytes_ = buffer_bytes(rounds)
        buffers = len(rounds) if at_once else buffers
        per_cta = part_per_cta and parts > 1
        return cls(c, tmas, tuple(rounds), bytes_, buffers, rows // WARP_ROWS, parts, per_cta, at_once)

    @property
    def box_rows(self) -> int:
        """Rows of a box of C: its owner's."""
        return self.maps[0].box[self.maps[0].dims.index("m")]

    def rounds_of(self, block: int, part: int) -> list[tuple[int, StoreRound]]:
        """(number, round) of one block and part. The number, of all that a consumer stores, tells the buffer."""
        mine = [r for r in self.rounds if not self.part_per_cta or r.part == part]
        return [(i, r) for i, r in enumerate(mine) if (r.block, r.part) == (block, part)]

    def pending(self, number: int) -> int:
        """The owner's store groups that may be pending when round `number` is written.

        Every tile's rounds begin with buffer 0. A round's buffer was last used `buffers` rounds before; for the first
        rounds that was in the tile before. If the rounds are no multiple of the buffers, it was fewer rounds before.

        >>> store = StorePlan.derive(wgmma(192), 1, Operand.parse("bf16"), 1, 2)  # three rounds, buffers 0, 1, 0
        >>> [store.pending(number) for number in range(3)]
        [0, 2, 1]
        """
        if self.at_once:
            return 0
        count = len([r for r in self.rounds if not self.part_per_cta or r.part == 0])
        if number >= self.buffers or count <= number:
            return self.buffers - 1
        last = max(range(number, count, self.buffers))
        return count - 1 - last + number

    def bytes_beyond(self, line: int) -> int:
        """Bytes that the TMA stores write beyond a line of `line` elements.

        >>> StorePlan.derive(wgmma(64), 1, Operand.parse("bf16"), 1, 1).bytes_beyond(1037)
        6
        """
        return max(tma.line_overrun(line) for tma in self.maps) * self.c.dtype.bytes

    def of_batch(self, batch: int) -> StorePlan:
        """The store of one of `batch` matrices. Tensor maps with a dimension more, or this one."""
        return self if batch == 1 else replace(self, maps=tuple(tma.batched("l") for tma in self.maps))

    def bytes(self, warps: int) -> int:
        """Shared memory of all buffers of `warps` warps."""
        return warps // self.warps * self.buffers * self.buffer_bytes


def _spans(columns: int, dtype: DType) -> tuple[int, ...]:
    """Columns of each chunk of rows: whole 128-byte spans first, then the rest in halves, down to 16 bytes.

    >>> from layoutgemm.dtypes import bf16, f32
    >>> _spans(224, bf16), _spans(40, f32)
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


def _blocks_of(columns: int, most: int) -> tuple[int, ...]:
    """Columns of each chunk of columns: as many as there may be, then what is left in multiples of 16, then 8.

    >>> _blocks_of(88, 64)
    (64, 16, 8)
    """
    full, rest = divmod(columns, most)
    return (most,) * full + tuple(width for width in (rest // 16 * 16, rest % 16) if width)


def _of_few_widths(widths: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The same columns in chunks of at most `most` widths: the fewest chunks, then the fewest narrow columns.

    Lines of 8 columns have 16 bytes, half of a sector of memory; benchmarks/NOTES.md, "Several matrices B", has times.

    >>> _of_few_widths((64, 32, 16), 2), _of_few_widths((64, 32, 8), 2), _of_few_widths((64, 32), 2)
    ((32, 32, 32, 16), (32, 32, 32, 8), (64, 32))
    """
    if len(set(widths)) <= most:
        return widths
    least, columns = gcd(*widths), sum(widths)
    sizes = sorted({*widths, *[least << i for i in range(columns.bit_length())]} & set(range(widths[0] + 1)))
    found = [_divided(columns, chosen[::-1]) for count in range(1, most + 1) for chosen in combinations(sizes, count)]
    return max([chunks for chunks in found if chunks], key=lambda chunks: (-len(chunks), chunks[::-1]))


def _divided(columns: int, widths: tuple[int, ...]) -> tuple[int, ...]:
    """The columns in chunks of these widths, the first most often.

    () if columns are left.
    """
    chunks: list[int] = []
    for width in widths:
        chunks += [width] * (columns // width)
        columns %= width
    return tuple(chunks) if columns == 0 else ()


def tiles_of_chunks(rows: int, widths: Sequence[int], c: Operand) -> tuple[dict[int, SmemTile], tuple[TmaPlan, ...]]:
    """The buffer tile and tensor map of each chunk width, the widest first."""
    major, dims = ("K", ("n", "m")) if c.order == "row" else ("MN", ("m", "n"))
    tiles = {width: smem_tile((rows, width), c.dtype, major) for width in sorted(set(widths), reverse=True)}
    return tiles, tuple(derive_tma(tile, dims, "store") for tile in tiles.values())


def gathered(
    widths: Sequence[int], chunks: int, tiles: Mapping[int, SmemTile], make: Callable[..., StoreChunk], column: int = 0
) -> Iterator[tuple[StoreChunk, ...]]:
    """Neighbouring columns, `chunks` chunks to a round, each tile aligned in the round's buffer.

    make    (column, width, offset in bytes, number of the tensor map, tile) -> the chunk
    column  the first one
    """
    for first in range(0, len(widths), chunks):
        made, offset = [], 0
        for width in widths[first : first + chunks]:
            tile = tiles[width]
            offset = rounded_up(offset, tile.alignment)
            made.append(make(column, width, offset, list(tiles).index(width), tile))
            offset, column = offset + tile.bytes, column + width
        yield tuple(made)


def buffer_bytes(rounds: Iterable[StoreRound]) -> int:
    """Bytes of a buffer that holds each of the rounds."""
    largest = max((chunk.offset + chunk.tile.bytes for round_ in rounds for chunk in round_.chunks), default=0)
    return rounded_up(largest, TILE_ALIGNMENT)


def _chunk(mma: MmaAtom, c: Operand, column: int, width: int, offset: int, map_: int, tile: SmemTile) -> StoreChunk:
    threads, values = mma.layout_C[0], mma.layout_C[1]
    per_column = values.size / mma.shape_mnk[1]
    first, count = int(column * per_column), int(width * per_column)
    # The accumulator's values of these columns are one run: the first one's element is (row of thread 0, column).
    at = mma.coords_C(0, first)
    assert threads.size == 128 and tuple(int(x) for x in at) == (0, column), (mma, column, at)
    rows, matrices, exchange = None, 0, None
    if c.dtype.bits == 8 and c.order == "col" and count % 8 == 0:  # two words of four values, of 16 columns
        exchange = ByteExchange(4 if count % 16 == 0 else 2)
    if c.dtype.bits == 16:
        matrices = 4 if count % 8 == 0 else 2
        copy = stmatrix(matrices, transpose=c.order == "col")
        # Addresses of all 64 rows: of row-major C the 16-row tile is the first quarter, and warp 0's are taken.
        whole = smem_tile((ROWS, width), c.dtype, tile.major)
        rows = row_addresses(copy, whole, wgmma(width, "bf16"), "C")
    return StoreChunk(column, width, offset, map_, tile, rows, matrices, first, count, exchange)


def rows_of_values(atom: MmaAtom, values: Iterable[int] | None = None) -> list[list[int]]:
    """A thread's values by their row of C: two rows, the same in every thread.

    >>> from layoutgemm.atoms import wgmma
    >>> rows_of_values(wgmma(16)), rows_of_values(wgmma(16), range(4))
    ([[0, 1, 4, 5], [2, 3, 6, 7]], [[0, 1], [2, 3]])
    """
    found: dict[int, list[int]] = {}
    for v in range(atom.accumulator_registers) if values is None else values:
        found.setdefault(int(atom.coords_C(0, v)[0]), []).append(v)
    return list(found.values())


def distinct_chunks(store: StorePlan) -> list[StoreChunk]:
    """One chunk of each column: blocks repeat them."""
    found = {chunk.column: chunk for round_ in store.rounds for chunk in round_.chunks}
    return [found[column] for column in sorted(found)]
