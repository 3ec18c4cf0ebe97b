"""Ways to make a tiled copy.

It is of threads and values, for operands of a tiled product, after another copy, or by offsets.

Source: `cute/atom/copy_atom.hpp` in NVIDIA/cutlass, make_tiled_copy and its kin.
"""

from __future__ import annotations

from math import gcd, prod

from ...arguments import checked, shown
from ...errors import AtomError, LayoutError
from ...layouts import Layout, make_layout_tv
from ..copy.base import CopyAtom
from .copy import TiledCopy
from .mma import TiledMma


@checked(AtomError)
def make_tiled_copy(
    atom: CopyAtom, thr_layout: Layout, val_layout: Layout | None = None, *, tiler: object = None
) -> TiledCopy:
    """The tiled copy of threads side by side, each with a block of values. The maps are thr (M, N) -> thread, val (m,
    n) -> value.

    With a `tiler` the layout is (thread, value) -> element of that tile, as in CuTe's make_tiled_copy_impl and the
    DSL's make_tiled_copy.

    The tile is the raked product of the two: thread (i, j) moves the block (i, j) of the tile. Raises AtomError where
    one of them is no numbering 0, 1, 2, ...: CuTe asks for a compact thread layout and does not look.
    """
    if tiler is not None:
        if val_layout is not None:
            raise AtomError("a tiler goes with one layout, (thread, value) -> element of the tile, not with two")
        return TiledCopy(atom, thr_layout, tiler)
    val_layout = Layout(1) if val_layout is None else val_layout
    try:
        tile, layout_tv = make_layout_tv(thr_layout, val_layout)
    except LayoutError as error:
        raise AtomError(error.reason, error.witness) from None
    return TiledCopy(atom, layout_tv, tile)


@checked(AtomError)
def tiled_copy_of_tile(
    atom: CopyAtom, threads: int, tile: tuple[int, ...], order: tuple[int, ...] | None = None
) -> TiledCopy:
    """The tiled copy of a tile by `threads` threads, in vectors.

    atom     an atom that each thread executes alone; its values lie along the first mode of `order`
    threads  they lie along that mode first, then along the next
    tile     extents in elements
    order    the modes of the tile, contiguous first; None: the last first, as in a row-major tile

    Raises AtomError where vectors and threads do not fill the tile evenly.

    >>> from layoutgemm.atoms.copy.vector import load_global
    >>> copy = tiled_copy_of_tile(load_global(128, "bf16"), 128, (64, 64))
    >>> copy.tile, copy.values, str(copy.layout_tv), copy.coverage().ok
    ((64, 64), 32, '((8,16),(8,4)):((512,1),(64,16))', True)
    """
    if atom.threads != 1:
        raise AtomError(f"{atom} is executed by {atom.threads} threads at once: give make_tiled_copy their layout")
    if not tile:
        raise AtomError("a tile of no modes: it has one extent for each mode")
    along = tuple(reversed(range(len(tile)))) if order is None else order
    if sorted(along) != list(range(len(tile))):
        raise AtomError(f"an order of {len(tile)} modes names each once, not {shown(along)}")
    vector = int(atom.layout_src[1].size)
    left, extents = threads, list(tile)
    thread_shape, thread_stride = [1] * len(tile), [0] * len(tile)
    if extents[along[0]] % vector:
        raise AtomError(f"{atom} moves {vector} elements, and mode {along[0]} of {shown(tile)} has {extents[along[0]]}")
    extents[along[0]] //= vector
    step = 1
    for mode in along:
        n = gcd(left, extents[mode])
        thread_shape[mode], thread_stride[mode] = n, step
        left, step = left // n, step * n
    if left != 1:
        raise AtomError(f"{threads} threads with {vector} elements each do not fill {tile} evenly: {left} left over")
    rests = [extent // n for extent, n in zip(extents, thread_shape)]
    # Mode by mode (vector, threads, rest) -> element of the tile.
    pitch = [prod(tile[:mode]) for mode in range(len(tile))]
    widths = [vector if mode == along[0] else 1 for mode in range(len(tile))]
    by_thread = sorted(range(len(tile)), key=lambda mode: thread_stride[mode] if thread_shape[mode] > 1 else -1)
    thread = Layout(
        tuple(thread_shape[mode] for mode in by_thread), tuple(widths[mode] * pitch[mode] for mode in by_thread)
    )
    value = Layout(
        (vector, *(rests[mode] for mode in along)),
        (pitch[along[0]], *(widths[mode] * thread_shape[mode] * pitch[mode] for mode in along)),
    )
    return TiledCopy(atom, Layout.join(thread.coalesce(), value.coalesce()), tile)


@checked(AtomError)
def make_tiled_copy_tv(atom: CopyAtom, thr_layout: Layout, val_layout: Layout | None = None) -> TiledCopy:
    """The DSL's name of make_tiled_copy; what the DSL calls make_tiled_copy is the class itself."""
    return make_tiled_copy(atom, thr_layout, val_layout)


def _for_operand(atom: CopyAtom, mma: TiledMma, operand: str) -> TiledCopy:
    layout = mma.tv_layout(operand)
    blocks = (layout[1][0].size, *(mode.size for mode in layout[1][1]))
    return TiledCopy(atom, layout, mma.tile_of(operand), blocks)


@checked(AtomError)
def make_tiled_copy_A(atom: CopyAtom, mma: TiledMma) -> TiledCopy:
    """The copy of the fragments of A of a tiled product, by (M, K) tiles. It fills or empties them."""
    return _for_operand(atom, mma, "A")


@checked(AtomError)
def make_tiled_copy_B(atom: CopyAtom, mma: TiledMma) -> TiledCopy:
    """The copy of the fragments of B of a tiled product, by (N, K) tiles. It fills or empties them."""
    return _for_operand(atom, mma, "B")


@checked(AtomError)
def make_tiled_copy_C(atom: CopyAtom, mma: TiledMma) -> TiledCopy:
    """The copy of the fragments of C of a tiled product, by (M, N) tiles. It fills or empties them."""
    return _for_operand(atom, mma, "C")


@checked(AtomError)
def make_tiled_copy_S(atom: CopyAtom, copy: TiledCopy) -> TiledCopy:
    """The copy of another atom whose threads hold what the source side of `copy` names."""
    return TiledCopy(atom, copy.layout_src_tv, copy.tiler)


@checked(AtomError)
def make_tiled_copy_D(atom: CopyAtom, copy: TiledCopy) -> TiledCopy:
    """The copy of another atom whose threads hold what the destination side of `copy` names."""
    return TiledCopy(atom, copy.layout_dst_tv, copy.tiler)


@checked(AtomError)
def make_tiled_copy_C_atom(atom: CopyAtom, mma: TiledMma) -> TiledCopy:
    """The smallest copy of C whose values are the first of a thread's. It is for an epilogue that stores in steps."""
    layout = mma.layout_C()
    values = int(atom.layout_src[1].size)
    if layout[1].size % values:
        raise AtomError(f"{atom} takes {values} values, and a thread holds {layout[1].size} of C, no multiple of them")
    first = layout.compose(Layout((layout[0].size, values)))
    return _cut_out(atom, first, mma.tile_of("C"))


@checked(AtomError)
def make_cotiled_copy(atom: CopyAtom, layout_tv: Layout, data: Layout) -> TiledCopy:
    """The copy whose threads and values move given offsets. (thread, value) -> offset, of the tensor `data`.

    Raises AtomError where an offset is not one of `data`'s, and LayoutError where `data` has no left inverse.
    """
    inverse = data.left_inverse()
    places = Layout.join(inverse, Layout(1, 0)).compose(layout_tv)
    there = data.compose(places).equivalent(layout_tv)
    if not there:
        raise AtomError(f"{layout_tv} names offsets that {data} does not have: {there.explain()}", there.witness)
    return _cut_out(atom, places, tuple(int(mode.size) for mode in data))


def _cut_out(atom: CopyAtom, layout_tv: Layout, extent: tuple[int, ...]) -> TiledCopy:
    """The tiled copy of what layout_tv names in a box: for each mode the elements of it, and the map onto the tile."""
    box = Layout(extent)
    tiler = []
    for i in range(len(extent)):
        along = Layout(extent, tuple(int(i == j) for j in range(len(extent))))
        tiler.append(along.compose(layout_tv).filter())
    tile = box.compose(tuple(tiler))
    if tile.size != layout_tv.filter().size:
        raise AtomError(
            f"the elements of {layout_tv} are no box of {extent}: mode by mode they span {tile.size}, and they are "
            f"{layout_tv.filter().size}"
        )
    return TiledCopy(atom, tile.left_inverse().compose(layout_tv), tuple(tiler))
