"""MMA and copy atoms as tables of text. The holders of every operand's elements, or of either side's."""

from __future__ import annotations

from layoutgemm.atoms.copy.base import SIDES, CopyAtom
from layoutgemm.atoms.mma.base import MmaAtom
from layoutgemm.atoms.tiled.copy import TiledCopy
from layoutgemm.atoms.tiled.mma import TiledMma
from layoutgemm.view.copy import NAMES, SPACES, atom_owners
from layoutgemm.view.grid import Owners, owners_of
from layoutgemm.view.product import AXES, PLACES, layout_of, place_of
from layoutgemm.view.text.layouts import owner_text, table
from layoutgemm.view.threads import lanes_text

from ...arguments import checked


@checked()
def product_table(atom: MmaAtom | TiledMma) -> str:
    """An MMA atom, or a tiled one, as tables of A, B and C.

    `5:2` is value 2 of thread 5, as in `tv_table`. Operands that no thread holds are named. Raises LayoutError for more
    than 65536 elements.

    >>> from layoutgemm.atoms import mma_sync
    >>> print("\\n".join(product_table(mma_sync("m8n8k4", "f64")).splitlines()[:6]))
    mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64
    A, m down, k across, thread:value
           0    1    2    3
      +--------------------
    0 |  0:0  1:0  2:0  3:0
    1 |  4:0  5:0  6:0  7:0
    """
    single = atom.atom if isinstance(atom, TiledMma) else atom
    counts = f"{'x'.join(str(m.size) for m in atom.atom_layout)} x " if isinstance(atom, TiledMma) else ""
    parts = [f"{counts}{single}"]
    if not isinstance(atom, TiledMma) and atom.thread_ids is not None:
        parts.append(lanes_text(atom))
    for operand in "ABC":
        place = place_of(single, operand)
        rows, columns = AXES[operand]
        if place != "rmem":
            sizes = "x".join(map(str, atom.tile_of(operand)))
            parts.append(f"{operand}, {rows} x {columns} = {sizes}: in {PLACES[place]}")
            continue
        found = owners_of(layout_of(atom, operand), atom.tile_of(operand))
        turned = operand == "B"
        down, across = (columns, rows) if turned else (rows, columns)
        parts.append(f"{operand}, {down} down, {across} across, thread:value\n" + owners_table(found, turned))
    return "\n".join(parts)


@checked()
def copy_table(atom: CopyAtom | TiledCopy) -> str:
    """A copy atom, or a tiled copy, as a table for each side. `5:2` is value 2 of thread 5.

    Raises LayoutError as `copy_svg` does.

    >>> from layoutgemm.atoms import movmatrix
    >>> print("\\n".join(copy_table(movmatrix()).splitlines()[:5]))
    movmatrix.sync.aligned.m8n8.trans.b16
    source, registers, thread:value
           0    1    2    3    4    5    6    7
      +----------------------------------------
    0 |  0:0  0:1  1:0  1:1  2:0  2:1  3:0  3:1
    """
    single = atom.atom if isinstance(atom, TiledCopy) else atom
    over = f" over {'x'.join(map(str, atom.tile))}" if isinstance(atom, TiledCopy) else ""
    parts = [f"{single.ptx}{over}"]
    for side in SIDES:
        if isinstance(atom, TiledCopy):
            found = owners_of(atom.tv_layout(side), atom.tile if len(atom.tile) > 1 else (1, *atom.tile))
        else:
            found = atom_owners(atom, side, None)
        parts.append(f"{NAMES[side]}, {SPACES[single.space(side)]}, thread:value\n" + owners_table(found, False))
    return "\n".join(parts)


def owners_table(found: Owners, turned: bool) -> str:
    """The table of a tile, turned by a quarter if wanted."""
    held, rows, columns = found.held, found.rows, found.columns
    if turned:
        held, rows, columns = tuple(zip(*held, strict=True)), columns, rows
    return table([[owner_text(cell) for cell in row] for row in held], rows, columns)
