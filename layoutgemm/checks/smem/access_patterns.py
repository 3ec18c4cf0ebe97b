"""Access patterns.

An AccessPattern names which elements of a tile the lanes of a warp access in one memory instruction.

A pattern is an array (request, lane, element) of flat coordinates of a tile, colexicographic. So the same pattern can
be laid over any layout of the tile: plain, padded or swizzled. A request is one instruction of one warp; the elements
of a lane are what its one vector holds, in order. For ldmatrix, stmatrix and matrix operands a lane stands for the
16-byte row whose address it supplies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ...arch import arch
from ...arguments import as_int, checked, is_int, refusal, shown
from ...atoms.copy.base import SIDES, WARP, CopyAtom
from ...atoms.smem.tile import ATOM_ROWS, CHUNK_BYTES, MAJORS, SmemTile
from ...atoms.tiled.copy import TiledCopy
from ...dtypes import DType, dtype
from ...errors import AtomError, LayoutError
from ...layouts import ComposedLayout, Layout
from ...layouts.linear import LinearLayout
from ...lazy_numpy import np

if TYPE_CHECKING:
    import numpy.typing as npt

IntArray: TypeAlias = "npt.NDArray[np.int64]"

_HOPPER = arch("sm_90a")
MOST_BITS = 8 * _HOPPER.smem_banks * _HOPPER.smem_bank_bytes  # of an element: a row of all banks

# Bytes that one lane may name. PTX ISA: ld and st (vectors up to 128 bits in shared memory; 256 bits in global memory
# from sm_100), cp.async (cp-size 4, 8, 16), ldmatrix and stmatrix (16-byte rows). The copy engine and the tensor cores
# move core-matrix rows of 16 bytes (PTX ISA, "Shared Memory Matrix Layout").
WIDTHS: dict[str, tuple[int, ...]] = {
    "ld.shared": (1, 2, 4, 8, 16),
    "st.shared": (1, 2, 4, 8, 16),
    "cp.async": (4, 8, 16),
    "ldmatrix": (CHUNK_BYTES,),
    "stmatrix": (CHUNK_BYTES,),
    "tma": (CHUNK_BYTES,),
    "wgmma": (CHUNK_BYTES,),
    "tcgen05": (CHUNK_BYTES,),
    "ld.global": (1, 2, 4, 8, 16, 32),
    "st.global": (1, 2, 4, 8, 16, 32),
}


def check_width(kind: str, width: int) -> None:
    """Raise AtomError where no instruction of this kind moves `width` bytes for one lane."""
    if not isinstance(kind, str) or kind not in WIDTHS:
        of_atomics = isinstance(kind, str) and "atom" in kind
        atomics = "; atomics serialise by address as well as by bank and are not modelled" if of_atomics else ""
        raise AtomError(f"no access of kind {shown(kind)}; known: {', '.join(WIDTHS)}{atomics}")
    if width not in WIDTHS[kind]:
        known = ", ".join(map(str, WIDTHS[kind]))
        raise AtomError(f"{kind} moves {known} bytes for a lane, not {width}")


@dataclass(frozen=True, eq=False)
class AccessPattern:
    """One access pattern. A kind of instruction and, for every request, lane and element, a coordinate of the tile.

    name    as reports call it
    kind    a key of `WIDTHS`
    coords  int64 array (request, lane, element) of flat coordinates; -1 throughout a lane that takes no part
    """

    name: str
    kind: str
    coords: IntArray = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in WIDTHS:
            check_width(self.kind, 0)
        if not isinstance(self.coords, np.ndarray) or self.coords.dtype.kind != "i":
            wanted = "an int64 array (request, lane, element)"
            raise AtomError(refusal(self.coords, f"coords of {shown(self.name)}", wanted))
        if self.coords.ndim != 3 or 0 in self.coords.shape or self.coords.shape[1] > WARP:
            raise AtomError(f"{self.name}: coordinates are (request, lane <= {WARP}, element), not {self.coords.shape}")
        idle = self.coords < 0
        if (idle.any(2) != idle.all(2)).any():
            raise AtomError(f"{self.name}: a lane takes part with all of its elements or with none")

    @property
    def requests(self) -> int:
        """Instructions that the pattern counts."""
        return self.coords.shape[0]

    @checked(AtomError)
    def over(self, block: Sequence[int], extent: Sequence[int]) -> AccessPattern:
        """The same pattern in every block of a larger tile. Coordinates of `block` become coordinates of `extent`.

        block, extent  extents in elements, mode by mode; raises AtomError unless block divides extent.

        >>> warp = thread_access(Layout(32, 1), name="a word for each lane")
        >>> warp.over((8, 4), (16, 8)).coords[1, :3, 0].tolist()
        [8, 9, 10]
        """
        for n in (*block, *extent):
            as_int(n, "an extent", AtomError, least=1)
        if len(block) != len(extent) or any(e % b for b, e in zip(block, extent)):
            raise AtomError(f"{self.name}: blocks of {tuple(block)} do not fill a tile of {tuple(extent)}")
        size = int(np.prod(block))
        if int(self.coords.max()) >= size:
            raise AtomError(f"{self.name}: coordinate {int(self.coords.max())} lies outside a block of {size} elements")
        inside = Layout(tuple(block), tuple(int(np.prod(extent[:i])) for i in range(len(extent)))).offsets()
        counts = tuple(e // b for b, e in zip(block, extent))
        steps = tuple(int(np.prod(extent[:i])) * block[i] for i in range(len(extent)))
        starts = Layout(counts, steps).offsets()
        moved = np.where(self.coords[None] < 0, -1, inside[self.coords][None] + starts[:, None, None, None])
        return AccessPattern(self.name, self.kind, moved.reshape(-1, *self.coords.shape[1:]))


def listed(accesses: object) -> list[AccessPattern]:
    """One access or several, as a list. Raises AtomError for anything else, such as an atom.

    >>> listed(7)
    Traceback (most recent call last):
    layoutgemm.errors.AtomError: accesses are AccessPatterns, as matrix_access((64, 64), 'bf16') makes, not 7
    """
    found: list[AccessPattern] = []
    several = accesses if isinstance(accesses, Iterable) and not isinstance(accesses, (np.ndarray, str)) else [accesses]
    for access in several:
        if not isinstance(access, AccessPattern):
            said = shown(access) if len(shown(access)) <= 40 else f"a {type(access).__name__}"
            raise AtomError(f"accesses are AccessPatterns, as matrix_access((64, 64), 'bf16') makes, not {said}")
        found.append(access)
    return found


@checked(AtomError)
def thread_access(
    tv: Layout, vector: int = 1, kind: str = "ld.shared", name: str = "", lanes: int | None = None
) -> AccessPattern:
    """The accesses of a thread-value layout's threads, `vector` consecutive values at a time.

    tv      (thread, value, ...) -> flat coordinate of the tile; a layout of rank 1 gives each thread one value; all
            modes after the first count values (so the (thread, value, rest) view of a tiled copy is one too)
    vector  values that one instruction moves for a thread
    lanes   how many lanes of each warp take part, the first ones (ldmatrix.x1 reads the addresses of 8); all by default

    Raises AtomError where the threads are no whole warps, or the vectors do not divide the values.

    >>> float4 = thread_access(Layout((32, 4), (4, 1)), vector=4)
    >>> float4.coords.shape, float4.coords[0, 1].tolist()
    ((1, 32, 4), [4, 5, 6, 7])
    """
    if not isinstance(tv.size, int):
        raise AtomError(f"{name or tv}: an access is of threads and values that are numbers, not symbols")
    if tv.has_basis:
        raise AtomError(f"{name or tv}: an access is of flat coordinates of a tile, and {tv} leads to coordinates")
    threads = tv.size if tv.rank == 1 else tv[0].size
    values = tv.size // threads
    name = name or f"{kind} by {tv}"
    if threads > WARP and threads % WARP:
        raise AtomError(f"{name}: {threads} threads are no whole number of warps")
    if vector < 1 or values % vector:
        raise AtomError(f"{name}: vectors of {vector} do not divide {values} values")
    warps = max(1, threads // WARP)
    table = np.asarray(tv.offsets(), np.int64).reshape(values // vector, vector, warps, threads // warps)
    coords = table.transpose(2, 0, 3, 1).reshape(-1, threads // warps, vector)
    return AccessPattern(name, kind, np.ascontiguousarray(coords[:, :lanes]))


@checked(AtomError)
def matrix_access(
    extent: tuple[int, int],
    element: DType | str | int,
    along: str = "K",
    kind: str = "ldmatrix",
    matrices: int | None = None,
    name: str = "",
) -> AccessPattern:
    """Every 8 x 16-byte matrix of an (mn, k) tile. ldmatrix, stmatrix and the tensor cores read these.

    extent    (mn, k) in elements; flat coordinate mn + MN*k
    element   type, or bits
    along     the dimension in which a 16-byte row runs: "K" reads a K-major tile as it lies; "MN" reads an MN-major one
              (with ldmatrix .trans, or the transposed operand of wgmma); `row_access` takes it from a tile
    matrices  how many one instruction takes: 1, 2 or 4; by default the most that divide all of them

    Raises AtomError where the matrices do not tile the extent.

    >>> matrix_access((16, 16), "bf16").coords[0, 9].tolist()  # lane 9 names row 9, k from 0 to 7
    [9, 25, 41, 57, 73, 89, 105, 121]
    """
    if along not in MAJORS:
        raise AtomError(f"rows run along 'K' or 'MN', not {shown(along)}")
    row = CHUNK_BYTES * 8 // bits_of(element)
    shape = (ATOM_ROWS, row) if along == "K" else (row, ATOM_ROWS)
    if extent[0] % shape[0] or extent[1] % shape[1]:
        of = f"{element} bits" if is_int(element) else dtype(element)
        raise AtomError(f"{shape[0]}x{shape[1]} matrices of {of} do not tile {extent[0]}x{extent[1]}")
    block = np.arange(shape[0] * shape[1], dtype=np.int64).reshape(shape[1], shape[0])  # [k, mn]
    lanes = block.T if along == "K" else block
    one = AccessPattern(name or f"{kind} rows along {along}", kind, np.ascontiguousarray(lanes[None]))
    every = one.over(shape, extent).coords
    if matrices is None:
        matrices = next(count for count in (4, 2, 1) if every.shape[0] % count == 0)
    if matrices not in (1, 2, 4) or every.shape[0] % matrices:
        raise AtomError(f"{every.shape[0]} matrices are not taken {matrices} at a time")
    return AccessPattern(one.name, kind, every.reshape(-1, matrices * ATOM_ROWS, row))


@checked(AtomError)
def row_access(tile: SmemTile | Layout | ComposedLayout, element: DType | str | int | None = None) -> AccessPattern:
    """Every 16-byte row of a tile, as ldmatrix reads them. `matrix_access` along the tile's contiguous mode.

    tile     (mn, k) -> offset in elements, either mode nested
    element  type or bits, where the tile does not say

    Raises LayoutError for a tile of other than two modes or without a contiguous one, and AtomError for one that rows
    of 16 bytes do not fill.

    >>> print(row_access(Layout((64, 64)), "bf16").name)
    ldmatrix rows along MN
    """
    own = tile.dtype if isinstance(tile, SmemTile) else element_bits(tile, element)
    return matrix_access(extent_of(tile), own if element is None else element, contiguous(tile))


def default_access(tile: object, element: DType | str | int | None) -> AccessPattern:
    """The rows of a tile, where a caller names no access. Raises AtomError for a tile that they do not fill."""
    other = "name the accesses, as column_access(tile) or thread_access(...)"
    if not isinstance(tile, (SmemTile, Layout, ComposedLayout)):
        raise AtomError(f"{shown(tile)} has no rows as ldmatrix reads them: {other}")
    element_bits(tile, element)
    try:
        return row_access(tile, element)
    except LayoutError as error:
        raise AtomError(f"rows as ldmatrix reads them: {error}; else {other}") from None


@checked(AtomError)
def column_access(tile: SmemTile | Layout | ComposedLayout) -> AccessPattern:
    """One element for each lane across the contiguous mode, as a transpose reads. Over the whole tile.

    Raises LayoutError for a tile of other than two modes, or without a contiguous one.

    >>> column_access(Layout((64, 8), (8, 1))).coords.shape, column_access(Layout((8, 16))).coords[0, :3, 0].tolist()
    ((16, 32, 1), [0, 8, 16])
    """
    extent, axis = extent_of(tile), MAJORS.index(contiguous(tile))
    lanes = next(count for count in range(min(WARP, extent[axis]), 0, -1) if extent[axis] % count == 0)
    block = (lanes, 1) if axis == 0 else (1, lanes)
    return thread_access(Layout(lanes, 1), name=f"columns of {lanes} lanes").over(block, extent)


def extent_of(tile: object) -> tuple[int, int]:
    """(mn, k) of a tile of two modes. Raises LayoutError for another object, other modes, and symbols."""
    composed = tile.composed if isinstance(tile, SmemTile) else tile
    if not isinstance(composed, (Layout, ComposedLayout)):
        raise LayoutError(refusal(tile, "the tile", "a SmemTile, a Layout or a ComposedLayout"))
    if composed.rank != 2:
        raise LayoutError(f"{tile} needs two modes, rows and columns: group them, as in (8,(4,2)):(8,(1,4))")
    mn, k = (Layout(mode).size for mode in composed.shape)
    if not isinstance(mn, int) or not isinstance(k, int):
        raise LayoutError(f"{tile} has symbols: banks are counted for numbers, so give them values")
    return mn, k


def contiguous(tile: SmemTile | Layout | ComposedLayout) -> str:
    """The contiguous mode of a tile: "K" for the second, "MN" for the first. Raises LayoutError for neither.

    >>> contiguous(Layout((8, 64), (64, 1))), contiguous(Layout((64, 8)))
    ('K', 'MN')
    """
    extent = extent_of(tile)
    plain = tile if isinstance(tile, Layout) else tile.layout
    for along, at in (("K", (0, 1)), ("MN", (1, 0))):
        if extent[along == "K"] > 1 and plain(*at) - plain(0, 0) == 1:
            return along
    raise LayoutError(f"{tile}: no mode has neighbours side by side, as (64,64):(64,1) has along its second")


@checked(AtomError)
def tma_access(tile: SmemTile) -> AccessPattern:
    """The writes of a tile by TMA. Box after box, row after row of one span, in chunks of 16 bytes.

    A request here is 128 consecutive bytes of the box before the swizzle: 8 chunks. How many cycles the engine takes is
    its own affair; the model says which chunks share a bank when it writes as many as the banks hold.

    >>> from layoutgemm.atoms import smem_tile
    >>> tma_access(smem_tile((64, 64), "bf16", "K")).coords.shape
    (64, 8, 8)
    """
    order = np.argsort(tile.layout.offsets(), kind="stable").astype(np.int64)
    chunk = CHUNK_BYTES * 8 // tile.dtype.bits
    return AccessPattern(f"tma writes {tile.swizzle_name}", "tma", order.reshape(-1, ATOM_ROWS, chunk))


@checked(AtomError)
def atom_access(atom: CopyAtom, place: Layout, side: str | None = None, name: str = "") -> AccessPattern:
    """The shared- or global-memory side of a copy atom.

    place  where the atom's reference tile lies: its element -> flat coordinate of the tile. For an atom that every
           thread executes on its own it is (thread, value) -> coordinate, and the atom gives the vector's length.
    side   "src" or "dst"; by default the side in shared memory, else that in global memory

    Raises AtomError for an atom with no such side, or with shared memory on both.
    """
    side = _memory_side(atom) if side is None else side
    layout = atom.layout(side)
    kind = _kind_of(atom, side)
    if atom.threads == 1:
        return thread_access(place, layout.size, kind, name or str(atom))
    if atom.threads != WARP:
        raise AtomError(f"{atom} is executed by {atom.threads} threads, not by a warp or each thread")
    table = np.asarray(layout.offsets(), np.int64).reshape(layout[1].size, WARP).T
    if atom.thread_ids is not None:
        table = table[np.argsort(np.asarray(atom.thread_ids(np.arange(WARP))))]
    table = table[: _lanes_read(atom, side, kind)]
    return AccessPattern(name or str(atom), kind, np.asarray(place(table), np.int64)[None])


@checked(AtomError)
def tiled_access(copy: TiledCopy, extent: Sequence[int], side: str | None = None, name: str = "") -> AccessPattern:
    """The shared- or global-memory side of a tiled copy over a whole tile. Every instruction of every warp.

    extent  extents of the tile in elements, as its layout's modes
    side    "src" or "dst"; by default the side in shared memory, else that in global memory

    Raises AtomError where the copy does not divide the tile, or has no such side.
    """
    atom = copy.atom
    side = _memory_side(atom) if side is None else side
    kind = _kind_of(atom, side)
    if len(extent) != len(copy.tiler):
        raise AtomError(f"an extent {shown(extent)} for a copy of tiles of {len(copy.tiler)} modes")
    tv = copy.partition(side, Layout(tuple(extent)))
    return thread_access(tv, atom.layout(side)[1].size, kind, name or str(atom), _lanes_read(atom, side, kind))


def _lanes_read(atom: CopyAtom, side: str, kind: str) -> int:
    """Lanes whose address counts: the first ones for ldmatrix and stmatrix x1, x2, whose layouts repeat them."""
    return len(atom.address_threads(side)) if kind in ("ldmatrix", "stmatrix") else WARP


def _memory_side(atom: CopyAtom) -> str:
    for memory in ("smem", "gmem"):
        sides = [side for side in SIDES if atom.space(side) == memory]
        if len(sides) == 1:
            return sides[0]
    raise AtomError(f"{atom} copies {atom.source} to {atom.target}: say which side, 'src' or 'dst'")


def _kind_of(atom: CopyAtom, side: str) -> str:
    space = atom.space(side)
    if space not in ("smem", "gmem"):
        raise AtomError(f"{atom}: its {side} is in {space}, which has neither banks nor sectors")
    if "bulk" in atom.ptx:
        raise AtomError(f"{atom} is carried out by the copy engine, not by lanes: tma_access says how it writes a tile")
    if space == "smem":
        for kind in ("ldmatrix", "stmatrix", "cp.async"):
            if atom.ptx.startswith(kind):
                return kind
    return ("ld." if side == "src" else "st.") + ("shared" if space == "smem" else "global")


# ---------------------------------------------------------------- from coordinates to byte addresses


def bits_of(element: DType | str | int) -> int:
    """Bits of an element that is a power of two of them. Raises AtomError for others, and for unknown types."""
    bits = int(element) if is_int(element) else dtype(element).bits  # type: ignore[arg-type]
    if not 1 <= bits <= MOST_BITS or bits & (bits - 1):
        raise AtomError(f"elements of {shown(bits)} bits: an element has a power of two of bits, {MOST_BITS} at most")
    return bits


def element_bits(tile: object, element: DType | str | int | None) -> int:
    """Bits of an element of the tile: what the tile says, or what is given. Raises AtomError when neither or both."""
    given = None if element is None else bits_of(element)
    own = tile.dtype.bits if isinstance(tile, SmemTile) else None
    if isinstance(tile, ComposedLayout):
        own = tile.swizzle.unit
    if own is None and given is None:
        raise AtomError(f"{tile} does not say how wide an element is: give element=, a type or bits")
    if own is not None and given is not None and own != given:
        raise AtomError(f"{tile} counts elements of {own} bits, not {given}: recast it")
    return bits_of(own) if own is not None else bits_of(given)  # type: ignore[arg-type]


def byte_addresses(
    tile: object, access: AccessPattern, element: DType | str | int | None = None
) -> tuple[IntArray, int]:
    """(addresses, width): byte addresses relative to the tile. Each (request, lane) names one, -1 for none.

    tile     SmemTile, Layout, ComposedLayout or LinearLayout: flat coordinate -> offset in elements
    element  type or bits, where the tile does not say

    Raises AtomError where a lane's elements do not lie one after another at a multiple of their size. No instruction
    can move them as one vector, and the first such lane is named. Also for a layout of Triton from offsets or registers
    to elements, which is no tile.
    """
    bits = element_bits(tile, element)
    layout = tile.composed if isinstance(tile, SmemTile) else tile
    if not isinstance(layout, (Layout, ComposedLayout, LinearLayout)):
        raise AtomError(f"no layout: {shown(tile)}")
    if isinstance(layout, LinearLayout) and layout.names[:1] in (("offset",), ("register",), ("row",)):
        way = ": give its inverse(), coordinate -> offset" if layout.names[0] == "offset" else ""
        raise AtomError(f"({', '.join(layout.names)}) -> element is no tile in shared memory{way}")
    offsets = np.asarray(layout.offsets(), np.int64)
    if int(access.coords.max()) >= offsets.size:
        raise AtomError(f"{access.name}: coordinate {int(access.coords.max())} outside a tile of {offsets.size}")
    at = offsets[access.coords] * bits
    idle = access.coords[:, :, 0] < 0
    vector = access.coords.shape[2]
    if vector * bits % 8:
        raise AtomError(f"{access.name}: {vector} elements of {bits} bits are no whole number of bytes")
    width = vector * bits // 8
    check_width(access.kind, width)
    stray = (at != at[:, :, :1] + np.arange(vector) * bits).any(2) & ~idle
    if stray.any():
        request, lane = (int(axis[0]) for axis in np.nonzero(stray))
        coords, places = access.coords[request, lane].tolist(), (at[request, lane] // bits).tolist()
        raise AtomError(
            f"{access.name}: request {request}, lane {lane} moves coordinates {coords} as one vector, "
            f"which lie at elements {places}, not one after another"
        )
    skew = (at[:, :, 0] % (width * 8) != 0) & ~idle
    if skew.any():
        request, lane = (int(axis[0]) for axis in np.nonzero(skew))
        raise AtomError(
            f"{access.name}: request {request}, lane {lane} names byte {at[request, lane, 0] / 8:g}, "
            f"no multiple of its {width} bytes"
        )
    return np.where(idle, -1, at[:, :, 0] // 8), width
