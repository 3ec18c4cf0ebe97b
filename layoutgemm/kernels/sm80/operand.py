"""One operand of an Ampere kernel. Its tile in shared memory, the copies that fill it, the loads that read it.

    global matrix --cp.async (or element loads)--> swizzled tile --ldmatrix (or ld.shared)--> registers of mma.sync

Both ways are functions (thread, step) -> byte of the tile, made of the atoms' maps and the tile. A kernel wants few
integer instructions in its loop, so `ThreadAddresses` takes such a function apart: into a few addresses that a thread
computes once, and constants. That is possible because a swizzle leaves alone what lies a multiple of its period away.

    operand      bits   K-major                   MN-major
    ---------    ----   ----------------------    ------------------------------------------------------------------
    bf16, f16    16     ldmatrix                  ldmatrix.trans
    tf32         32     ldmatrix                  ld.shared, a word each: .trans moves pairs of bytes, half a word
    e2m1          4     ldmatrix of bytes         none: two elements of K share a byte
    padded        6, 4  ldmatrix.b8x16, shl       none. Of a kind that takes bytes 16 elements lie packed at the start
                                                  of 16 bytes, and ldmatrix unpacks them
    fp8, int8     8     ldmatrix                  ldmatrix.trans of rows in an order of their own, then prmt: .trans
                                                  keeps two neighbours along MN together, and prmt parts them
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...atoms import (
    CopyAtom,
    MmaAtom,
    SmemTile,
    TiledCopy,
    TmaPlan,
    cp_async,
    ldmatrix,
    make_tiled_copy,
    mma_sync,
    operand_map,
    smem_tile,
)
from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...atoms.mma.base import Container
from ...atoms.smem.tile import packing_of
from ...atoms.tma.derive import derive as derive_tma
from ...dtypes import DType, u8
from ...errors import PlanError
from ...layouts import Layout
from ...memo import memoized
from ..derive import Operand, memory_unit
from ..numbers import W
from ..operands.product import SideBySide
from ..thread_addresses import Index, ThreadAddresses

_ASYNC = (16, 8, 4)  # bytes of cp.async: PTX ISA, "cp.async"
ELEMENTS_TOGETHER = 16  # padded elements, which lie packed at the start of 16 bytes
PADDED = {4: "b4x16_p64", 6: "b6x16_p32"}  # bits of an element -> ldmatrix's name of its padding

# Rows (or columns) 0 to 7 of an instruction are the even ones of 16 of an MN-major operand of bytes, 8 to 15 the odd.
PARTED = Layout((8, 2), (2, 1))

_Row = Callable[[Any, int, int], tuple[Any, Any]]  # (lane, load, step) -> (mn, k)


@dataclass(frozen=True)
class TileCopy:
    """The threads' copies of an operand's tile from global to shared memory.

    vector   bytes of one access to global memory: 16, 8 or 4 by cp.async, or one element where lines are aligned to
             less; elements are gathered into 16 bytes and stored. 16 padded elements are 12 bytes or 8
    span     bytes of shared memory that a vector covers, padding included
    tiled    the copy: threads and the vectors that each writes to shared memory
    parts    how many vectors a thread writes, along (MN, K) of the tile
    """

    vector: int
    span: int
    tiled: TiledCopy
    parts: tuple[int, int]
    coordinates: _First  # (thread, part along MN, part along K) -> (mn, k) of the vector's first element
    places: ThreadAddresses

    @property
    def vector_bytes(self) -> int:
        """Bytes of one write to shared memory."""
        return VECTOR_BYTES if self.by_elements else self.vector

    @property
    def by_elements(self) -> bool:
        """True if elements are loaded one by one."""
        return self.vector < min(_ASYNC)

    @property
    def access(self) -> int:
        """Bytes of one cp.async of a vector: 4 of a vector of 12."""
        return self.vector if self.vector in _ASYNC else min(_ASYNC)

    @property
    def indices(self) -> list[Index]:
        """(part along MN, part along K) of all vectors of a thread."""
        return [(i, j) for i in range(self.parts[0]) for j in range(self.parts[1])]

    @classmethod
    def derive(cls, tile: SmemTile, threads: int, vector: int, padded: bool = False) -> TileCopy:
        """Lanes run along a line, at most one swizzle span, then over the lines.

        padded  the vector lies at the start of 16 bytes
        """
        across, along = (0, 1) if tile.major == "K" else (1, 0)
        written = vector if vector in _ASYNC and not padded else VECTOR_BYTES
        width = written // tile.dtype.bytes
        lanes = min(min(tile.extent[along], tile.span_elements) // width, threads)
        lines = min(threads // lanes, tile.extent[across])
        lanes = threads // lines
        what = f"{tile.extent[0]}x{tile.extent[1]} elements of {tile.dtype}, {tile.major}-major"
        if threads % lines or tile.extent[across] % lines or tile.extent[along] % (lanes * width):
            raise PlanError(
                f"{threads} threads copy {what} in vectors of {written} bytes: {lanes} along a line times {lines} "
                "lines do not divide the tile"
            )
        if tile.major == "K":
            order, values = Layout((lines, lanes), (lanes, 1)), Layout((1, width))
        else:
            order, values = Layout((lanes, lines), (1, lanes)), Layout((width, 1))
        atom = cp_async(written, "cg" if written == VECTOR_BYTES else "ca", tile.dtype, "register")
        tiled = make_tiled_copy(atom, order, values)
        places = tiled.partition("src", Layout.identity(tile.extent))
        coordinates = _First(places)
        parts = (int(places[2].size), int(places[3].size))
        indices = [(i, j) for i in range(parts[0]) for j in range(parts[1])]
        found = ThreadAddresses.derive(lambda t, index: tile.byte(*coordinates(t, *index)), threads, indices)
        return cls(vector, written, tiled, parts, coordinates, found)


@dataclass(frozen=True)
class _First:
    """(thread, part, part) -> (mn, k) of the first element of the vector."""

    places: Layout

    def __call__(self, thread: object, i: int, j: int) -> tuple[Any, Any]:
        mn, k = self.places(thread, 0, i, j)
        return mn, k


@dataclass(frozen=True)
class FragmentLoad:
    """A warp's loads of an operand's tile into the registers of mma.sync.

    kind       "ldmatrix", "ldmatrix.trans", "words" (ld.shared) or "bytes" (ldmatrix.trans and prmt)
    extent     (MN, K) elements of the tile that a warp reads for one depth of the instruction
    blocks     instructions' worth of MN that one load fills
    loads      how many loads there are for one depth
    steps      depths of a k tile
    rows       (lane, load, step) -> (mn, k), inside the warp's part: the row whose address the lane gives to ldmatrix,
               or, for "words", the element of the load's first register; `words` gives the others' distances
    words      (mn, k) of each register of a load, relative to the first: for "words" alone
    order      index along MN within the 16 of a load, as the instruction counts them -> index in the tile
    """

    kind: str
    extent: tuple[int, int]
    blocks: int
    loads: int
    steps: int
    rows: _Row
    words: tuple[tuple[int, int], ...]
    order: Layout
    places: ThreadAddresses  # (lane and warp, (load, step, register)) -> byte

    @property
    def registers(self) -> int:
        """Registers of one load."""
        return len(self.words) or 4

    def byte(self, tile: SmemTile, lane: object, warp: Any, index: Index) -> Any:
        """(lane, number of the warp along MN, (load, step, register)) -> byte in the tile."""
        mn, k = self.rows(lane, index[0], index[1])
        dmn, dk = self.words[index[2]] if self.words else (0, 0)
        return tile.byte(mn + dmn + warp * self.extent[0], k + dk)


@dataclass(frozen=True)
class Sm80Operand:
    """One input operand.

    name, dtype, order, major   as in OperandPlan
    smem       tile of a block in shared memory, one stage, in units of memory: see `unit`
    container  the part of a byte that an element of 6 or 4 bits is in, in registers; None but for padded elements
    copy       global to shared memory
    load       shared memory to registers
    warps      how many warps share the tile along M (of A) or N (of B)
    tma        the tensor copy that fills the tile in place of `copy`, or None
    beside     where columns of several matrices B lie in the tile, or None for one matrix
    """

    name: str
    dtype: DType
    order: str
    major: str
    smem: SmemTile
    copy: TileCopy
    load: FragmentLoad
    warps: int
    tma: TmaPlan | None = None
    beside: SideBySide | None = None
    container: Container | None = None

    @cached_property
    def warp_extent(self) -> int:
        """M (of A) or N (of B) of one warp."""
        return self.smem.extent[0] // self.warps

    @property
    def unit(self) -> DType:
        """The type that shared memory counts in. Bytes for 6 bits and 4, of two elements of 4 where not padded."""
        return self.smem.dtype

    @property
    def padded(self) -> bool:
        """True for elements of 6 or 4 bits that have a byte each in shared memory."""
        return self.container is not None

    @property
    def per_unit(self) -> int:
        """Elements of K in a unit of shared memory."""
        return 1 if self.padded else self.unit.bits // self.dtype.bits

    @property
    def tile_depth(self) -> int:
        """Elements of K in the tile."""
        return self.smem.extent[1] * self.per_unit

    @property
    def matrices(self) -> CopyAtom:
        """The ldmatrix of its fragments."""
        return _matrices(self.smem, self.dtype, self.padded)

    def memory_bytes(self, units: W) -> W:
        """Bytes of global memory of units of shared memory; of padded elements whole groups of 16."""
        return units * self.dtype.bits // u8.bits if self.padded else units * self.unit.bytes

    @property
    def mn_order(self) -> Layout:
        """Index along M or N within 16 as the instructions count them -> index in the tile."""
        return self.load.order


@memoized(256)
def derive_operand(
    name: str, spec: Operand, extent: int, tile_k: int, warps: int, threads: int, vector: int, atom: MmaAtom
) -> Sm80Operand:
    """A is M x K and B is K x N. K is contiguous in a row-major A and in a column-major B.

    extent   of the block's tile along M or N;   warps   that share it;   vector   bytes of one global access
    """
    major = "K" if (spec.order == "row") == (name == "A") else "MN"
    words = spec.dtype.bits == 32 and major == "MN"
    swizzle = "128B_ATOM_32B" if words else None
    unit, container = memory_unit(spec.dtype), atom.a_container if name == "A" else atom.b_container
    depth = tile_k if container is not None else tile_k * spec.dtype.bits // unit.bits
    tile = smem_tile((extent, depth), unit, major, swizzle)
    if container is not None:
        vector = ELEMENTS_TOGETHER * spec.dtype.bits // u8.bits
    copy = TileCopy.derive(tile, threads, vector, container is not None)
    load = _fragment_load(name, tile, warps, in_units(atom), spec.dtype, container is not None)
    return Sm80Operand(name, spec.dtype, spec.order, major, tile, copy, load, warps, container=container)


def _matrices(tile: SmemTile, kind: DType, padded: bool) -> CopyAtom:
    """The ldmatrix of a tile's fragments; `kind`: of the elements."""
    if padded:
        return ldmatrix(4, f"m8n16.b8x16.{packing_of(kind, PADDED[kind.bits])}")
    return ldmatrix(4, transpose=tile.major == "MN", element=tile.dtype)


def in_units(atom: MmaAtom) -> MmaAtom:
    """The instruction on units of memory. That on bytes, for one whose registers hold two elements to a byte.

    >>> print(in_units(mma_sync((16, 8, 64), "e2m1", kind="mxf4")))
    mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32
    """
    if atom.element_bits("A") >= u8.bits:
        return atom
    m, n, k = atom.shape_mnk
    return mma_sync((m, n, k * atom.element_bits("A") // u8.bits), u8)


def by_tensor_copy(operand: Sm80Operand, batch: int) -> Sm80Operand:
    """The operand with its tile filled by TMA loads. Raises PlanError for a swizzle without a tensor map."""
    free = "m" if operand.name == "A" else "n"
    if operand.load.words:
        raise PlanError(
            f"{operand.name} is {operand.dtype} with {free.upper()} contiguous: its tile has the swizzle "
            f"{operand.smem.swizzle_name}, which this kernel fills by cp.async"
        )
    tma = derive_tma(operand.smem, ("k", free) if operand.major == "K" else (free, "k"))
    return replace(operand, tma=tma.batched("l") if batch > 1 else tma)


def _fragment_load(name: str, tile: SmemTile, warps: int, atom: MmaAtom, kind_of: DType, padded: bool) -> FragmentLoad:
    extent = tile.extent[0] // warps
    depth, block = atom.shape_mnk[2], atom.tile_of(name)[0]
    steps = tile.extent[1] // depth
    blocks = 16 // block  # a load fills 16 of M or of N: four registers
    if tile.major == "K" or tile.dtype.bits == 16:
        kind = "ldmatrix" if tile.major == "K" else "ldmatrix.trans"
        copy = _matrices(tile, kind_of, padded)
        rows: _Row = _Rows(operand_map(copy, atom, name, (blocks, 1)), block * blocks, depth)
        words: tuple[tuple[int, int], ...] = ()
    elif tile.dtype.bits == 32:
        kind = "words"
        places = atom.coords(name)
        first = [tuple(int(x) for x in places(0, v)) for v in range(atom.registers(name))]
        words = tuple((mn + block * b, k) for b in range(blocks) for mn, k in first)
        rows = _Elements(places, 16, depth)
    else:
        kind, rows, words = "bytes", _ByteRows(), ()
    if extent % 16:
        raise PlanError(f"{name}: a warp takes {extent} of {'M' if name == 'A' else 'N'}, no multiple of 16")
    loads = extent // 16
    indices = [(i, s, w) for s in range(steps) for i in range(loads) for w in range(len(words) or 1)]

    order = PARTED if kind == "bytes" else Layout(16)
    bare = FragmentLoad(kind, (extent, depth), blocks, loads, steps, rows, words, order, ThreadAddresses((), ()))
    return replace(
        bare,
        places=ThreadAddresses.derive(
            lambda t, index: bare.byte(tile, t % WARP, t // WARP, index), WARP * warps, indices
        ),
    )


@dataclass(frozen=True)
class _Rows:
    """The row that a lane addresses. It maps (lane, load, step) -> (mn, k), from a matrix copy's map."""

    map: Layout
    extent: int
    depth: int

    def __call__(self, lane: object, load: int, step: int) -> tuple[Any, Any]:
        element = self.map[0][0](lane)
        return element % self.extent + load * self.extent, element // self.extent + step * self.depth


@dataclass(frozen=True)
class _ByteRows:
    """The row of 16 bytes along MN that a lane addresses: (lane, load, step) -> (mn, k).

    ldmatrix.trans gives lane 4*g + t of matrix q the rows 2t and 2t + 1, of each the neighbours 2g and 2g + 1. The
    instruction wants k = 4t to 4t + 3 of one index in a register: two of them come from matrix 2p and two from 2p + 1,
    p = 0 for k < 16. Which come first changes at t = 2, so that the eight rows of a matrix are different modulo 8: in
    every swizzled tile these lie in different banks. `byte_selector` puts the four in order.
    """

    def __call__(self, lane: Any, load: int, step: int) -> tuple[Any, Any]:
        matrix, row = lane // 8, lane % 8
        t, e = row // 2, row % 2
        k = 16 * (matrix // 2) + 4 * t + 2 * ((matrix % 2) ^ (t // 2)) + e
        return lane * 0 + 16 * load, k + 32 * step


def byte_selector(late: int, odd: int) -> int:
    """The prmt selector of the even or odd neighbours of two matrices' registers, by K.

    late   1 for lanes t = 2 and 3 of a quad, for which the second matrix has the first two

    >>> hex(byte_selector(0, 0)), hex(byte_selector(1, 1))
    ('0x6420', '0x3175')
    """
    first, second = 4 * late + odd, 4 * (1 - late) + odd
    return first | (first + 2) << 4 | second << 8 | (second + 2) << 12


@dataclass(frozen=True)
class _Elements:
    """(lane, load, step) -> (mn, k) of the element in the load's first register."""

    places: Layout
    extent: int
    depth: int

    def __call__(self, lane: object, load: int, step: int) -> tuple[Any, Any]:
        mn, k = self.places(lane, 0)
        return mn + load * self.extent, k + step * self.depth
