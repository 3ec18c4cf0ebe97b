"""Block scales on a linked page. The factors of A beyond A, those of B beyond B, and their holders.

A factor stands for `vector` elements along k. So (m, block) of SFA goes with (m, k) for all k of the block, with row m
of C, and with the factors (n, block) of SFB.
"""

from __future__ import annotations

from layoutgemm.atoms import MmaAtom, TiledMma
from layoutgemm.atoms.copy.base import WARP
from layoutgemm.atoms.mma.tcgen05 import Tcgen05Atom
from layoutgemm.errors import LayoutError
from layoutgemm.lazy_numpy import np
from layoutgemm.view.pages.model import Holder, Holders, PageMatrix
from layoutgemm.view.pages.parts import axes, holder_paint

BLOCK = "block"  # the dimension of the factors along k
SIDES = {"SFA": ("A", "m", "farleft", 1), "SFB": ("B", "n", "fartop", 0)}  # operand, dimension, place, across
TMEM_LANES = 128


def scale_matrices(mma: MmaAtom | TiledMma, holder: Holder | None, extent: tuple[int, int, int]) -> list[PageMatrix]:
    """SFA and SFB of a product of that (M, N, K). Nothing for an instruction without block scales.

    Raises LayoutError where K is dealt out so that the elements of a factor belong to several instructions.

    >>> from layoutgemm.atoms import mma_sync
    >>> from layoutgemm.view.pages.model import THREADS
    >>> made = scale_matrices(mma_sync((16, 8, 64), "e2m1", kind="mxf4"), THREADS(32), (16, 8, 128))
    >>> [(matrix.name, matrix.extent, len(matrix.holders.threads)) for matrix in made]
    [('SFA', (16, 4), 2), ('SFB', (8, 4), 4)]
    """
    atom = mma.atom if isinstance(mma, TiledMma) else mma
    if atom.scale is None or holder is None:
        return []
    found = []
    for name, (operand, dim, place, across) in SIDES.items():
        size = (extent[0 if operand == "A" else 1], extent[2] // atom.scale.vector)
        if isinstance(atom, Tcgen05Atom):
            holders, where = tmem_scales(atom, operand, size), "tensor memory"
        else:
            holders, where = register_scales(mma, name, size), "registers"
        title = f"{size[0]}x{size[1]} {atom.scale.dtype}, {where}"
        paints = (holder_paint(holder, holders),)
        found.append(PageMatrix(name, title, (dim, BLOCK), size, across, place, holders, (), paints))
    return found


def register_scales(mma: MmaAtom | TiledMma, name: str, size: tuple[int, int]) -> Holders:
    """The lanes whose registers an mma.sync's selectors can pick for each factor."""
    tiled = mma if isinstance(mma, TiledMma) else TiledMma(mma)
    atom, operand = tiled.atom, SIDES[name][0]
    assert atom.scale is not None
    vector, (rows, blocks) = atom.scale.vector, atom.tile_of(name)
    view = tiled.view(operand, (size[0], size[1] * vector))
    threads, values, rest = view.shape
    lane, value = np.indices((atom.threads, values))
    inside = np.asarray(atom.layout(operand)(lane, value), np.int64)
    t, v, r = np.indices((threads, values, int(np.prod(rest))))
    whole = np.asarray(view.index(t, v, r), np.int64) + 0 * t
    row_of = np.zeros((threads // WARP, rows, whole.shape[2]), np.int64)
    block_of = np.zeros((threads // WARP, blocks, whole.shape[2]), np.int64)
    for warp in range(threads // WARP):
        at = whole[WARP * warp : WARP * (warp + 1)]
        row_of[warp, inside % rows] = at % size[0]
        block_of[warp, inside // rows // vector] = at // size[0] // vector
        if (block_of[warp, inside // rows // vector] != at // size[0] // vector).any():
            raise LayoutError(f"{tiled} deals out K so that the {vector} elements of a factor of {operand} part")
    held = atom.layout(name)
    count = int(held[1].size)
    t, v, r = np.indices((threads, count, whole.shape[2]))
    factor = np.asarray(held(t % WARP, v), np.int64) + 0 * t
    row, block = row_of[t // WARP, factor % rows, r], block_of[t // WARP, factor // rows, r]
    bits = atom.scale.dtype.bits
    labels = [
        f"{k}{f' of instruction ({i % rest[0]}, {i // rest[0]})' if whole.shape[2] > 1 else ''}: "
        f"bits {bits * k}-{bits * (k + 1) - 1} of its factors"
        for i in range(whole.shape[2])
        for k in range(count)
    ]
    return Holders.of(size, (row, block, t, v + count * r), labels)


def tmem_scales(atom: Tcgen05Atom, operand: str, size: tuple[int, int]) -> Holders:
    """The lanes and columns of tensor memory that keep each factor. Every quarter of the lanes has a copy.

    Of a pair of blocks each keeps the factors of its own rows of A, and those of all rows of B.
    """
    assert atom.scale is not None
    k_steps = size[1] // (atom.shape_mnk[2] // atom.scale.vector)
    home = atom.scale_layout(operand, k_steps)
    one = atom.shape_mnk[0] // atom.threads if operand == "A" else atom.shape_mnk[1]
    copies = int(home.layout[2].size)
    row, block = axes(size)
    blocks = range(1) if operand == "A" else range(atom.threads)
    each = size[0] // atom.threads if operand == "A" else size[0]
    bits = atom.scale.dtype.bits
    parts = []
    for copy in range(copies):
        for cta in blocks:
            inside = row % each
            place = home.layout(inside % one, block, copy + 0 * row)
            lane, column, low = (np.asarray(x) + 0 * row for x in (*place, 0)[:3])
            column = column + home.columns * (inside // one)
            owner = row // each if operand == "A" else cta + 0 * row
            parts.append((row, block, lane + TMEM_LANES * owner, column * (32 // bits) + low // bits))
    held = tuple(np.concatenate([part[i].ravel() for part in parts]) for i in range(4))
    word = 32 // bits
    labels = [f"{n // word}, bits {n % word * bits}-{(n % word + 1) * bits - 1}" for n in range(int(held[3].max()) + 1)]
    return Holders.of(size, held, labels)
