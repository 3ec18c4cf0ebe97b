"""The row addresses of a matrix copy that feeds a matrix instruction, derived and proven.

A matrix copy ties lanes to elements twice: at the registers, and at the addresses. A matrix instruction ties the same
registers to elements of its operand, and the tile ties these to shared memory. Composing the three,

    memory(lane, j) = tile o fragment o registers^-1 o addresses (lane, j)

gives the place that row element j of a lane must have. The copy can read or write exactly that fragment if and only if
memory(lane, j) = memory(lane, 0) + j and memory(lane, 0) is a multiple of a row. Then memory(lane, 0) is the address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...arguments import checked, shown
from ...errors import AtomError, CompositionError
from ...layouts import ComposedLayout, CounterExample, Layout, Proof
from ...lazy_numpy import np
from ..mma.base import MmaAtom, whole_tiles
from ..smem.tile import SmemTile
from .base import WARP, CopyAtom
from .ldmatrix import ROW_BYTES

Tile = Layout | ComposedLayout
_PACKED = {".b6x16_p32": 6, ".b4x16_p64": 4}  # bits of a source element of ldmatrix


@checked(AtomError)
def operand_map(copy: CopyAtom, mma: MmaAtom, operand: str, blocks: tuple[int, int] = (1, 1)) -> Layout:
    """((lane, j), (instruction, warp)) -> element of the operand in row element j of that lane.

    copy      ldmatrix for "A" and "B", stmatrix for "C"
    mma       the matrix instruction whose registers the copy fills or empties
    operand   "A", "B" or "C", held in registers
    blocks    (along MN, along K) (for C: M, N): how many of the operand's tiles the registers hold, one after another:
              a thread's values of a tile come first, then the tiles along the first dimension, then along the second

    The element is counted column-major in the tile of all blocks. Instructions are those that a thread executes to move
    all its values, in order. Raises AtomError where the copy and the operand differ in threads, values or widths.

    >>> from layoutgemm.atoms import stmatrix, wgmma
    >>> print(operand_map(stmatrix(4), wgmma(64), "C"))
    (((16,2),8),(4,4)):(((1,512),64),(1024,16))
    """
    memory, registers = _sides(copy)
    fragment = _fragment(mma, operand, blocks)
    if copy.side_in("smem") != ("dst" if operand == "C" else "src"):
        raise AtomError(f"{operand} of {mma} is {'stored' if operand == 'C' else 'loaded'}; {copy} does the opposite")
    source = getattr(mma, f"{operand.lower()}_source")
    if source != "rmem":
        raise AtomError(f"{mma} takes {operand} from {source}, not from registers")
    kind = getattr(mma, f"{operand.lower()}_dtype")
    # Kinds f8f6f4 and mxf8f6f4 take every format in bytes, and the packed loads make these bytes of one width: PTX ISA,
    # "mma", alternate floating-point formats. An accumulator is converted before it is stored.
    held = 8 if "f8f6f4" in mma.ptx else kind.bits
    packed = next((bits for name, bits in _PACKED.items() if name in copy.ptx), kind.bits)
    if operand != "C" and (held != copy.element.bits or packed != kind.bits):
        of = f"{packed}-bit sources of " if packed != kind.bits else ""
        raise AtomError(
            f"{copy} counts {of}{copy.element.bits}-bit elements and {operand} of {mma} has {kind.bits} bits, "
            f"{held} in its registers"
        )
    lanes, values = (int(x.size) for x in registers)
    threads, held = (int(x.size) for x in fragment)
    if threads % lanes or held % values:
        raise AtomError(
            f"{copy} moves {values} values of {lanes} lanes; {operand} of {mma} in {blocks[0]}x{blocks[1]} tile(s) has "
            f"{held} values of {threads} threads"
        )
    # (lane, warp) and (value of one instruction, instruction), then lanes and values together as the registers count.
    t = whole_tiles(fragment[0].logical_divide(lanes), fragment[0])
    v = whole_tiles(fragment[1].logical_divide(values), fragment[1])
    held_by = Layout.join(t[0], v[0]).compose(registers.right_inverse()).compose(memory)
    return Layout.join(held_by, Layout.join(v[1].coalesce(), t[1].coalesce()))


@checked(AtomError)
def row_addresses(
    copy: CopyAtom, tile: SmemTile | Tile, mma: MmaAtom, operand: str, blocks: tuple[int, int] = (1, 1)
) -> Tile:
    """(lane, (instruction, warp)) -> offset in elements at which that lane's row lies in shared memory.

    tile      (mn, k) (for C: (m, n)) -> element offset, of the extents of the operand's blocks or a multiple: then of
              its first ones; add the others' offsets, inside the swizzle where there is one

    Raises AtomError, with the first row that is not one, where `feeds` would give a counterexample. Lanes whose address
    is ignored repeat another lane's.

    >>> from layoutgemm.atoms import smem_tile, stmatrix, wgmma
    >>> print(row_addresses(stmatrix(4), smem_tile((64, 64), "bf16", "K"), wgmma(64), "C"))
    S<3,3,3>[16b] o 0 o ((16,2),(4,4)):((64,8),(16,1024))
    """
    proof = feeds(copy, tile, mma, operand, blocks)
    if not proof:
        raise AtomError(f"{copy} cannot move {operand} of {mma}: {proof.explain()}")
    return _part(tile, mma, operand, blocks).compose(_rows(operand_map(copy, mma, operand, blocks)))


@checked(AtomError)
def feeds(
    copy: CopyAtom,
    tile: SmemTile | Tile,
    mma: MmaAtom,
    operand: str,
    blocks: tuple[int, int] = (1, 1),
    addresses: Tile | Callable[[object], object] | None = None,
) -> Proof | CounterExample:
    """Prove that the copy moves that operand between its registers and shared memory.

    addresses   lane -> element offset that the kernel uses, for a copy of one instruction; by default the one derived
                by `row_addresses`, and the question is whether there is one

    Returns a Proof whose steps show the composed maps, or a CounterExample. It has ((lane, j), (instruction, warp)),
    the place of that element in the tile, and the place that the row of that lane reaches. Raises as `operand_map`.

    >>> from layoutgemm.atoms import smem_tile, stmatrix, wgmma
    >>> print(feeds(stmatrix(4), smem_tile((64, 64), "f16", "K"), wgmma(64), "C").method)
    composition of layouts
    >>> print(feeds(stmatrix(4), smem_tile((64, 64), "f16", "MN"), wgmma(64), "C").explain())
    rows of stmatrix.sync.aligned.m8n8.x4.shared.b16 are contiguous in the tile: ((0,1),(0,0)) gives 72 and 1
    >>> feeds(stmatrix(4, transpose=True), smem_tile((64, 64), "f16", "MN"), wgmma(64), "C").ok
    True
    """
    wanted = operand_map(copy, mma, operand, blocks)
    place = _part(tile, mma, operand, blocks)
    row = int(wanted[0][1].size)
    found = _misfit(copy, place, wanted, row, addresses)
    if found is not None:
        return found
    steps = [
        f"fragment of {operand}: {_fragment(mma, operand, blocks)}",
        f"registers of the copy: {_sides(copy)[1]}",
        f"(lane, j) -> element of {operand}: {wanted}",
    ]
    try:
        memory = place.compose(wanted)
    except CompositionError as refusal:
        # The tile is no layout in the rows' coordinates; every element was looked at, which is a proof as well.
        return Proof(f"exhaustion ({wanted.size} elements)", steps=(*steps, f"no composition: {refusal.reason}"))
    bare = memory.layout if isinstance(memory, ComposedLayout) else memory
    along = bare[0][1].equivalent(Layout(row))
    if not along:
        return Proof(f"exhaustion ({wanted.size} elements)", steps=(*steps, f"(lane, j) -> offset: {memory}"))
    steps.append(f"(lane, j) -> offset: {memory}")
    steps.append(f"j adds j: {bare[0][1]} = {Layout(row)} by {along.method}; rows start at multiples of {row}")
    if isinstance(memory, ComposedLayout):
        steps.append(f"{memory.swizzle} moves {1 << memory.swizzle.base} elements together, a multiple of {row}")
    steps.append(f"lane -> address: {place.compose(_rows(wanted))}")
    return Proof("composition of layouts", steps=tuple(steps))


def _misfit(
    copy: CopyAtom, place: Tile, wanted: Layout, row: int, addresses: Tile | Callable[[Any], Any] | None
) -> CounterExample | None:
    """The first coordinate where the lane's row misses the element or is not aligned."""
    per_copy = int(wanted[0].size)
    lanes = int(wanted[0][0].size)
    offsets = place.offsets()[wanted.offsets()].reshape(-1, row, lanes)
    if addresses is None:
        start = offsets[:, 0]
    elif offsets.shape[0] > 1:
        raise AtomError(f"{copy} takes {offsets.shape[0]} instructions here; addresses are for one")
    else:
        start = np.asarray([int(addresses(lane)) for lane in range(lanes)])[None]
        # Lanes beyond the rows are ignored: what they say is no error.
        named = copy.address_threads(copy.side_in("smem"))
        rest = [lane for lane in range(lanes) if lane not in named]
        start[0, rest] = offsets[0, 0, rest]
    reached = start[:, None] + np.arange(row)[None, :, None]
    bad = reached != offsets
    label = f"rows of {copy} are contiguous in the tile" if addresses is None else f"lanes of {copy} address their rows"
    if not bad.any():
        crooked = start % row != 0
        if not crooked.any():
            return None
        bad = np.broadcast_to(crooked[:, None], offsets.shape)
        label = f"rows of {copy} start at multiples of {ROW_BYTES} bytes"
        reached = offsets // row * row
    index = int(np.flatnonzero(bad.reshape(-1))[0])
    instruction, inner = divmod(index, per_copy)
    coord = ((inner % lanes, inner // lanes), wanted[1].coord(instruction))
    held, reach = (int(x.reshape(-1)[index]) for x in (offsets, reached))
    return CounterExample(coord, held, reach, index=index, statement=label, method="exhaustion")


def _sides(copy: CopyAtom) -> tuple[Layout, Layout]:
    """(memory side, register side) of a matrix copy."""
    if copy.threads != WARP or {copy.source, copy.target} != {"smem", "rmem"}:
        raise AtomError(f"{copy} is no matrix copy between shared memory and the registers of a warp")
    return copy.layout(copy.side_in("smem")), copy.layout(copy.side_in("rmem"))


def _fragment(mma: MmaAtom, operand: str, blocks: tuple[int, int]) -> Layout:
    """(thread, value) -> element of all blocks of the operand, column-major."""
    if min(blocks) < 1:
        raise AtomError(f"blocks are two positive counts, along MN and along K, not {shown(blocks)}")
    first, second = mma.tile_of(operand)
    layout = mma.layout(operand)
    whole = Layout((first * blocks[0], second * blocks[1]))
    # One tile within all blocks: (mn, k) -> mn + all_mn * k, and the distances of the blocks.
    within = Layout((first, second), (1, first * blocks[0]))
    place = within.compose(layout)
    if blocks == (1, 1):
        return place
    distance = Layout(blocks, (first, int(whole(0, second)) if blocks[1] > 1 else 0))
    return Layout.join(place[0], Layout.join(place[1], distance))


def _part(tile: SmemTile | Tile, mma: MmaAtom, operand: str, blocks: tuple[int, int]) -> Tile:
    """Element of the operand's blocks, column-major -> offset in the tile."""
    layout: Tile = tile.composed if isinstance(tile, SmemTile) else tile
    bare = layout.layout if isinstance(layout, ComposedLayout) else layout
    extent = tuple(x * n for x, n in zip(mma.tile_of(operand), blocks))
    if bare.rank != 2 or any(int(mode.size) % x for mode, x in zip(bare, extent)):
        raise AtomError(f"{layout} is no tile of {extent[0]}x{extent[1]} elements, nor of multiples, of {operand}")
    return layout.zipped_divide(extent)[0]


def _rows(wanted: Layout) -> Layout:
    """(lane, (instruction, warp)) of the map of rows: its values at j = 0."""
    return Layout.join(wanted[0][0], wanted[1])
