"""Tensor memory as a value. Where the tensor cores of sm_100 keep accumulators, operand A and block scales.

Tensor memory has 128 lanes of 512 columns, each column a 32-bit word, in every SM. A place in it is a coordinate here:
(lane, column), or (lane, column, bit) where elements narrower than a word share one. So layouts into it have basis
strides, lane = `E(0)`, column = `E(1)`, bit within the word = `E(2)`. An address is lane << 16 | column.

What the maps rest on: the PTX ISA's text and tables, CUTLASS's traits, and agreement with the CuTe DSL; no device with
tensor memory has run them.

Sources: PTX ISA, "Tensor Memory" (addressing, allocation), "Data Path Layout Organization", "Packing formats of
elements in Tensor and Shared memory", "Scale Factor A ID", "Access restrictions"; cute/atom/mma_traits_sm100_frag.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...arguments import as_int, checked, is_int, shown
from ...dtypes import DType, dtype, f32
from ...errors import AtomError, BudgetError
from ...layouts import E, Layout
from ...layouts.basis import component
from ...layouts.symbols.dims import entry

LANES = 128
COLUMNS = 512
WORD_BITS = 32
# A warp of a warpgroup reaches its quarter of the lanes only.
WARP_LANES = 32
MIN_ALLOCATION = 32


@checked(AtomError)
def tmem_address(lane: int, column: int) -> int:
    """The 32-bit address of a tensor-memory word: lane in bits 16..31, column in bits 0..15.

    Raises AtomError outside the 128 lanes and 512 columns. Source: PTX ISA, "Tensor Memory Addressing".

    >>> hex(tmem_address(32, 64)), tmem_coordinate(0x200040)
    ('0x200040', (32, 64))
    """
    if not 0 <= lane < LANES or not 0 <= column < COLUMNS:
        raise AtomError(f"tensor memory has lanes 0..{LANES - 1} and columns 0..{COLUMNS - 1}, not ({lane}, {column})")
    return lane << 16 | column


@checked(AtomError)
def tmem_coordinate(address: int) -> tuple[int, int]:
    """Address -> (lane, column); raises AtomError for an address outside tensor memory."""
    lane, column = address >> 16, address & 0xFFFF
    tmem_address(lane, column)
    return lane, column


@checked(AtomError)
def allocation_columns(columns: int) -> int:
    """The columns to ask of tcgen05.alloc for `columns`. The next power of two, at least 32.

    Raises BudgetError above 512. Source: PTX ISA, "tcgen05.alloc".

    >>> [allocation_columns(n) for n in (1, 32, 33, 192, 512)]
    [32, 32, 64, 256, 512]
    """
    if columns < 1:
        raise BudgetError(f"an allocation has at least one column, not {columns}")
    if columns > COLUMNS:
        raise BudgetError(f"{columns} columns of tensor memory are asked for; a multiprocessor has {COLUMNS}")
    return max(MIN_ALLOCATION, 1 << (columns - 1).bit_length())


def warp_lanes(warp: int) -> range:
    """The lanes that warp number `warp` reaches with tcgen05.ld and tcgen05.st. 32 from 32*(warp % 4).

    Source: PTX ISA, "Access restrictions" of the tensor memory loads and stores.

    >>> warp_lanes(5)
    range(32, 64)
    """
    first = WARP_LANES * (warp % (LANES // WARP_LANES))
    return range(first, first + WARP_LANES)


@dataclass(frozen=True)
class DataPath:
    """The rows of one CTA's matrix over the lanes.

    letter   the layout's name in the PTX ISA
    rows     rows that one block of the group holds
    parts    the columns are cut into this many parts, stacked over the lanes: part p begins `rows * p` lanes up
    spread   rows go 16 to each quarter of the lanes, which leaves the upper 16 lanes of every quarter unused

    Source: PTX ISA, "Data Path Layout Organization", column "Datapath organization".
    """

    letter: str
    rows: int
    parts: int
    spread: bool = False

    @property
    def lanes(self) -> Layout:
        """row -> lane.

        >>> print(datapath(64).lanes, datapath(128).lanes)
        (16,4):(1@0,32@0) 128:1@0
        """
        return Layout((16, self.rows // 16), (E(0), 32 * E(0))) if self.spread else Layout(self.rows, E(0))


_DATAPATHS = {path.letter: path for path in (
    DataPath("A", 128, 1),
    DataPath("B", 64, 2),
    DataPath("C", 64, 1, spread=True),
    DataPath("D", 128, 1),
    DataPath("E", 64, 2),
    DataPath("F", 64, 1, spread=True),
    DataPath("G", 32, 4),
)}  # fmt: skip
# (M, cta_group, .ws, sparse A) -> letter; None stands for "either". PTX ISA, "Data Path Layout Organization".
_CHOICE: tuple[tuple[int, int, bool | None, bool | None, str], ...] = (
    (32, 1, True, None, "G"),
    (64, 1, True, None, "E"),
    (64, 1, False, None, "F"),
    (128, 1, None, None, "D"),
    (128, 2, False, False, "B"),
    (128, 2, False, True, "C"),
    (256, 2, False, None, "A"),
)


@checked(AtomError)
def datapath(m: int, cta_group: int = 1, ws: bool = False, sparse: bool = False) -> DataPath:
    """The data path of a tcgen05.mma of M = `m` rows over `cta_group` blocks.

    Raises AtomError for an (M, cta_group, .ws) that the PTX ISA has no layout for.

    >>> [datapath(*x).letter for x in ((256, 2), (128, 2), (128, 1), (64, 1), (64, 1, True), (32, 1, True))]
    ['A', 'B', 'D', 'F', 'E', 'G']
    """
    for rows, group, weight_stationary, sparsity, letter in _CHOICE:
        if (rows, group) == (m, cta_group) and weight_stationary in (None, ws) and sparsity in (None, sparse):
            return _DATAPATHS[letter]
    known = ", ".join(
        f"M = {rows} with cta_group::{group}{'' if only is None else ' .ws' if only else ' without .ws'}"
        for rows, group, only, _, _ in _CHOICE
    )
    raise AtomError(
        f"no data path for M = {shown(m)}, cta_group::{shown(cta_group)}{', .ws' if ws else ''}; PTX has {known}"
    )


@dataclass(frozen=True)
class TmemLayout:
    """A matrix in the tensor memory of one block.

    what      what it is, for people
    dtype     type of an element
    layout    (row, column, copy) -> (lane, tensor-memory column[, bit]); the copies hold the same element
    """

    what: str
    dtype: DType
    layout: Layout

    @cached_property
    def columns(self) -> int:
        """Tensor-memory columns from the first to the last that it touches.

        >>> accumulator(128, 256, cta_group=2).columns, accumulator(64, 48).columns
        (128, 48)
        """
        return int(Layout(self.layout.shape, component(self.layout.stride, (1,))).cosize)

    @property
    def allocation(self) -> int:
        """Columns to ask tcgen05.alloc for when nothing else is allocated."""
        return allocation_columns(self.columns)

    @checked(AtomError)
    def address(self, *coordinate: int) -> int:
        """The address of the word of element (row, column[, copy]). The base is at lane 0, column 0.

        >>> hex(accumulator(64, 32).address(17, 3))
        '0x210003'
        """
        place = self.layout(*coordinate, *(0,) * (self.layout.rank - len(coordinate)))
        return tmem_address(int(place[0]), int(place[1]) if len(place) > 1 else 0)

    def __str__(self) -> str:
        return f"{self.what}: {self.layout}"


@checked(AtomError)
def accumulator(
    m: int,
    n: int,
    cta_group: int = 1,
    ws: bool = False,
    sparse: bool = False,
    c: DType | str = f32,
    tiles: tuple[int, int] = (1, 1),
    interleaved: bool = True,
) -> TmemLayout:
    """The tensor memory of one CTA's part of the accumulator of tcgen05.mma.

    An element takes one column, whatever its type: narrower ones lie in the low bits of the word. With cta_group 2,
    block r of the pair holds rows r*M/2 and up, all N columns. `tiles` (of M, of N) lays several instructions'
    accumulators side by side, as modes 2 and 3. Where a data path leaves half the lanes unused a second tile goes there
    first, unless `interleaved` is False. An instruction with A in tensor memory needs False.

    Raises AtomError for an N that the data path cannot cut, and where no layout says where the tiles go.

    >>> print(accumulator(128, 256, cta_group=2))
    accumulator, layout B: (64,(128,2),1):(1@0,(1@1,64@0),0)
    >>> print(accumulator(64, 8, tiles=(2, 2)).layout)
    ((16,4),8,(2,2)):((1@0,32@0),1@1,(16@0,8@1))
    """
    path = datapath(m, cta_group, ws, sparse)
    if n < 1 or n % path.parts:
        raise AtomError(f"layout {path.letter} cuts N into {path.parts} parts; N = {n} is no multiple of it")
    width = n // path.parts
    column = Layout((width, path.parts), (E(1), path.rows * E(0))) if path.parts > 1 else Layout(n, E(1))
    if tiles == (1, 1):
        place = Layout(1, 0)
    else:
        count = tiles[0] * tiles[1]
        free = 2 if path.spread and interleaved else 1
        order = Layout((free, count), (16 * E(0), width * E(1))) if free > 1 else Layout(count, width * E(1))
        if free > 1 and tiles[0] % free and tiles[0] > 1:
            raise AtomError(
                f"layout {path.letter} puts two tiles side by side in the lanes; {tiles[0]} tiles of M do not pair up"
            )
        place = order.compose(Layout(tiles))
    return TmemLayout(f"accumulator, layout {path.letter}", dtype(c), Layout.join(path.lanes, column, place))


def container_bits(a: DType | str, kind: str) -> int:
    """Bits that one element of operand A takes in tensor memory. 8 for 4- and 6-bit types of kinds f8f6f4 and mxf8f6f4.

    Source: PTX ISA, "Packing formats of elements in Tensor and Shared memory".

    >>> container_bits("e2m1", "mxf8f6f4"), container_bits("e2m1", "mxf4"), container_bits("bf16", "f16")
    (8, 4, 16)
    """
    bits = dtype(a).bits
    return max(bits, 8) if kind in ("f8f6f4", "mxf8f6f4") else bits


@checked(AtomError)
def operand_a(m: int, k: int, a: DType | str, kind: str, cta_group: int = 1, ws: bool = False) -> TmemLayout:
    """The tensor memory of one CTA's rows of A, for tcgen05.mma with A there.

    Elements along K are packed into words, lowest bits first, in containers of `container_bits`. The rows lie in the
    lanes of the accumulator's data path. Where that stacks parts of N, each part reads a copy of A in its own lanes.
    There are two copies, 64 lanes apart, for M = 128 over two blocks and for M = 64 of .ws, and four for M = 32 of .ws.

    Raises AtomError where k elements do not fill whole words. Source: PTX ISA, "Packing formats". The copies are those
    of cute/atom/mma_traits_sm100_frag.hpp, TmemAllocMode::Duplicated. FlashMLA (csrc/kerutils, gemm.cuh) has them for
    .ws. Its kernels store another half of K as the second copy, so that one product adds both halves.

    >>> print(operand_a(128, 16, "bf16", "f16"))
    operand A, layout D: (128,(2,8),1):(1@0,(16@2,1@1),0)
    >>> print(operand_a(128, 32, "e2m1", "f8f6f4", cta_group=2).layout)
    (64,(4,8),2):(1@0,(8@2,1@1),64@0)
    >>> print(operand_a(32, 16, "bf16", "f16", ws=True))
    operand A, layout G: (32,(2,8),4):(1@0,(16@2,1@1),32@0)
    """
    path, bits = datapath(m, cta_group, ws), container_bits(a, kind)
    per_word = WORD_BITS // bits
    if k < 1 or k % per_word:
        raise AtomError(f"{k} elements in containers of {bits} bits do not fill words of {WORD_BITS} bits")
    along_k = Layout((per_word, k // per_word), (bits * E(2), E(1))) if per_word > 1 else Layout(k, E(1))
    copies = Layout(path.parts, path.rows * E(0)) if path.parts > 1 else Layout(1, 0)
    return TmemLayout(f"operand A, layout {path.letter}", dtype(a), Layout.join(path.lanes, along_k, copies))


@checked(AtomError)
def sparse_metadata(m: int, kind: str, cta_group: int = 1, ws: bool = False) -> TmemLayout:
    """The tensor memory of one CTA's metadata of a sparse A, for one instruction.

    The layout's modes are row, group of K and copy. A group is 4 elements of K (2 of tf32, 8 of the kinds of E2M1
    alone), and has 4 bits. 16-bit and tf32 rows take one column: 16 rows lie in 16 lanes, and lane 8*e + i has half e
    of K for rows i (low bits) and i + 8. Other rows take two columns of their own lane. The copies are those of operand
    A.

    Raises AtomError for M = 64 without .ws and for M = 128 over two blocks: their rows use half of the lanes, which no
    source describes but the PTX ISA's figures.

    Sources: PTX ISA, "Sparsity selector"; cute/atom/mma_traits_sm100_frag.hpp, tmem_e_frg and tmem_e_frg_ws; JAX
    (pallas/mosaic_gpu, format_tcgen05_sparse_metadata), which has run the layouts of 8 and 16 bits for M = 128.

    >>> print(sparse_metadata(128, "f16").layout, sparse_metadata(32, "i8", ws=True).layout)
    ((8,2,8),(4,2),1):((1@0,16@2,16@0),(4@2,8@0),0) (32,(8,2),4):(1@0,(4@2,1@1),32@0)
    """
    path = datapath(m, cta_group, ws, sparse=True)
    if path.spread:
        raise AtomError(
            f"kind::{kind}, M = {m}, cta_group::{cta_group}: no layout of sparse metadata over half of the lanes "
            f"(layout {path.letter}) is known here"
        )
    copies = Layout(path.parts, path.rows * E(0)) if path.parts > 1 else Layout(1, 0)
    if kind in ("f16", "tf32"):
        rows = Layout((8, 2, path.rows // 16), (E(0), 16 * E(2), 16 * E(0)))
        groups = Layout((4, 2), (4 * E(2), 8 * E(0)))
    else:
        rows, groups = Layout(path.rows, E(0)), Layout((8, 2), (4 * E(2), E(1)))
    return TmemLayout(f"sparse metadata, layout {path.letter}", dtype("u4"), Layout.join(rows, groups, copies))


@checked(AtomError)
def scale_factors(rows: int, factors: int, scale: DType | str = "ue8m0", halves: int = 1) -> TmemLayout:
    """The tensor memory of the scale factors of A or B. `rows` rows (of B: of N) with `factors` to a row.

    Four consecutive factors along K share a word. Row r is in lane r % 32 of column r // 32, so 128 rows take four
    columns for every four factors. Each quarter of the lanes holds a copy, since each multiplies. With `halves` = 2 the
    lower and upper half of the rows lie in the lower and upper 64 lanes, with two copies each. That is B of M = 128
    over two blocks, with a data path that stacks halves of N.

    An instruction that uses v factors to a row, its j-th along K, reads factors j*v and up: `scale_place` says which
    column and which SFA_ID / SFB_ID that is.

    Rows are those of one block and a multiple of 32 (or fewer than 32): pad N to that. Raises AtomError otherwise.
    Source: PTX ISA, "Scale Factor A ID", "Scale Factor B ID"; cute/atom/mma_traits_sm100_frag.hpp, tmem_sf_frg.

    >>> print(scale_factors(128, 4))
    scale factors: ((32,4),4,4):((1@0,1@1),8@2,32@0)
    >>> scale_factors(256, 16).columns, scale_factors(256, 4, halves=2).columns
    (32, 4)
    """
    if halves not in (1, 2):
        raise AtomError(f"scale factors lie over the lanes as a whole or in 2 halves, not {shown(halves)}")
    if rows < 1 or rows % halves or (rows // halves > 32 and rows // halves % 32):
        raise AtomError(
            f"scale factors fill 32 lanes at a time: {rows} rows{' in 2 halves' if halves == 2 else ''} are no "
            f"multiple of {32 * halves}; pad them"
        )
    if factors < 1:
        raise AtomError(f"a row has at least one scale factor, not {factors}")
    kind = dtype(scale)
    part = rows // halves
    groups = max(1, part // 32)
    row_shape: tuple[int, ...] = (min(part, 32),)
    row_stride: tuple[object, ...] = (E(0),)
    if groups > 1:
        row_shape, row_stride = (*row_shape, groups), (*row_stride, E(1))
    if halves > 1:
        row_shape, row_stride = (*row_shape, halves), (*row_stride, 64 * E(0))
    row = Layout(row_shape, row_stride) if len(row_shape) > 1 else Layout(row_shape[0], row_stride[0])
    word = WORD_BITS // kind.bits
    if factors <= word:
        along_k = Layout(factors, kind.bits * E(2))
    elif factors % word == 0:
        along_k = Layout((word, factors // word), (kind.bits * E(2), groups * E(1)))
    else:
        padded = -(-factors // word) * word
        raise AtomError(f"{factors} factors to a row fill no whole words of {word}: pad them to {padded}")
    copies = Layout(4 // halves, 32 * E(0))
    return TmemLayout("scale factors", kind, Layout.join(row, along_k, copies))


def scale_chunk() -> Layout:
    """(row, factor) -> byte of the 512-byte chunk with 4 scale factors of each of 128 rows. The chunk is in shared
    memory.

    Row r is in 16 bytes with rows r + 32, r + 64 and r + 96, four factors each: tcgen05.cp.32x128b.warpx4 takes such a
    chunk, 32 rows of 128 bits, to where `scale_factors(128, 4)` says. Source: CUTLASS,
    cutlass/detail/sm100_blockscaled_layout.hpp, Sm1xxBlockScaledBasicChunk.

    >>> print(scale_chunk(), scale_chunk()(37, 2))
    ((32,4),4):((16,4),1) 86
    """
    return Layout(((32, 4), 4), ((16, 4), 1))


@checked(AtomError)
def block_scale_layout(rows: object, k: object, vector: int = 1) -> Layout:
    """(row, element along K) -> byte of its scale factor, as block-scaled products read it.

    rows, k  extents of the operand, padded to 128 rows and 4 factors; symbols are multiples of that
    vector   elements along K with one factor: 32 of MXFP8, 16 of NVFP4; 1: `k` counts factors

    Chunks of 128 x 4 factors (`scale_chunk`), those along K first: what cuBLAS, torch (SWIZZLE_32_4_4) and CUTLASS
    (tile_atom_to_shape_SFA) take. `cosize` is the number of bytes to allocate. Raises AtomError for extents below 1.
    Source: cuBLAS, "1D Block Scaling Factors Layout"; CUTLASS, cutlass/detail/sm100_blockscaled_layout.hpp.

    >>> scales = block_scale_layout(256, 1024, 32)
    >>> print(scales, scales(37, 0), scales(37, 32), scales.cosize)
    (((32,4),2),((32,4),8)):(((16,4),4096),((0,1),512)) 84 85 8192
    >>> block_scale_layout(200, 5).size                            # padded to 256 rows of 8 factors
    2048
    """
    if vector < 1:
        raise AtomError(f"vector of block_scale_layout: at least 1 element has a scale factor, not {vector}")
    row, factor = scale_chunk()
    chunk = Layout.join(row, factor if vector == 1 else Layout.join(Layout(vector, 0), factor))
    padded = []
    for extent, tile, what in ((rows, row.size, "rows"), (k, vector * factor.size, "k")):
        counted = as_int(extent, what, AtomError, least=1) if is_int(extent) else entry(extent, what)
        padded.append(-(-counted // tile) * tile if isinstance(counted, int) else counted)
    return chunk.tile_to_shape(tuple(padded), (1, 0))


def scale_place(rows: int, per_instruction: int, index: int, halves: int = 1) -> tuple[int, int]:
    """(column, SFA_ID) of the scale factors of the `index`-th instruction along K. It has `per_instruction` a row.

    The identifier counts bytes within the word; PTX allows 0..3 for one factor to a row (or three, K = 96), 0 and 2
    for two (or six), 0 for four. Raises AtomError for another number, named by what PTX has.

    >>> [scale_place(128, 1, j) for j in (0, 3, 4)], [scale_place(128, 2, j) for j in (1, 2)]
    ([(0, 0), (0, 3), (4, 0)], [(0, 2), (4, 0)])
    >>> [scale_place(128, 3, j) for j in range(4)]
    [(0, 0), (0, 3), (4, 2), (8, 1)]
    """
    if per_instruction not in (1, 2, 3, 4, 6):
        raise AtomError(
            f"an instruction uses 1, 2 or 4 scale factors to a row, 3 or 6 with K = 96; not {shown(per_instruction)}"
        )
    if index < 0:
        raise AtomError(f"instructions along K are counted from 0, not {index}")
    word, byte = divmod(index * per_instruction, 4)
    groups = max(1, rows // halves // 32)
    return word * groups, byte
