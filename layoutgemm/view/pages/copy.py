"""The linked page of a copy. Its source and destination, with the holders and the memory of each element.

    source (i, j) ----- the same element ----- destination (i, j)
      thread, value; byte, bank                  thread, register; byte, bank

Both are matrices of the same two dimensions: an element under the pointer lights up on both sides.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TypeAlias

from layoutgemm.atoms import CopyAtom, SmemTile
from layoutgemm.atoms.copy.base import SIDES
from layoutgemm.atoms.smem.tile import as_tile
from layoutgemm.atoms.tiled.copy import TiledCopy
from layoutgemm.checks.smem.access_patterns import tiled_access
from layoutgemm.checks.smem.bank_conflicts import bank_conflicts
from layoutgemm.errors import AtomError, LayoutError
from layoutgemm.layouts import ComposedLayout, Layout
from layoutgemm.lazy_numpy import np
from layoutgemm.view.copy import NAMES, SPACES, grid_of, moves_tmem, place_of, places_of, tmem_places
from layoutgemm.view.pages.banks import byte_memory, conflicts_of, with_conflicts
from layoutgemm.view.pages.model import THREADS, Fact, Figure, Holder, Holders, Memory, PageMatrix, Table
from layoutgemm.view.pages.parts import bank_of, bank_paint, holder_paint, offsets_parts, shared_memory

MAX_LABELS = 1024  # of the values of a thread

Tile: TypeAlias = SmemTile | Layout | ComposedLayout | None
Held = tuple[Table, Table, Table, Table]  # arrays (row, column, thread, value)


def copy_figure(copy: CopyAtom | TiledCopy, *, src: Tile = None, dst: Tile = None, title: str | None = None) -> Figure:
    """The page of a copy atom or a tiled copy. Source and destination, an element lit up on both.

    src, dst   the layout of that side, (row, column) of the picture: of shared memory an SmemTile or a layout, swizzled
               or not; of global memory a layout. Without one a side in shared memory is packed. With one a tiled
               copy's page shows the lanes that conflict in a bank

    Raises LayoutError for a tile of another extent or type, for one of a side in registers, and for too many elements.

    >>> from layoutgemm.atoms import ldmatrix
    >>> from layoutgemm.view.pages.html import copy_html
    >>> html = copy_html(ldmatrix(4))
    >>> '"name":"source"' in html, '"name":"destination"' in html, "register 3, bits 16-31" in html
    (True, True, True)
    """
    atom = copy.atom if isinstance(copy, TiledCopy) else copy
    held = {side: held_at(copy, side) for side in SIDES}
    if isinstance(copy, TiledCopy):
        size: tuple[int, ...] = copy.tile if len(copy.tile) > 1 else (1, *copy.tile)
        if len(size) != 2:
            raise LayoutError(f"cannot draw a tile of {len(size)} modes, {size}: a page has rows and columns")
        dims = ("i", "j")
    else:
        size = tuple(1 + int(max(found[axis].max() for found in held.values())) for axis in (0, 1))
        dims = ("lane", "column") if moves_tmem(atom) else ("row", "column")
    extent = (size[0], size[1])
    holder = THREADS(copy.threads)
    matrices = []
    for side, given in zip(SIDES, (src, dst), strict=True):
        matrices.append(one_side(copy, atom, side, held[side], extent, dims, holder, given))
    heading = f"{atom} over {'x'.join(map(str, copy.tile))}" if isinstance(copy, TiledCopy) else atom.ptx
    return Figure(title or heading, tuple(notes_of(copy, atom, src, dst)), tuple(matrices), holder)


def notes_of(copy: CopyAtom | TiledCopy, atom: CopyAtom, src: Tile, dst: Tile) -> list[str]:
    """The notes above the pictures."""
    notes = [f"{copy.threads} thread{'s' if copy.threads > 1 else ''}, elements of {atom.element.bits} bits. An "
             "element that is pointed at lights up on both sides."]  # fmt: skip
    assumed = [side for side, given in zip(SIDES, (src, dst)) if given is None and atom.space(side) == "smem"]
    if assumed:
        named = " and ".join(NAMES[side] for side in assumed)
        notes.append(f"Shared memory of the {named}: the elements packed side by side, from byte 0 on; "
                     f"{' and '.join(assumed)}= takes a tile of your own.")  # fmt: skip
    return notes


def held_at(copy: CopyAtom | TiledCopy, side: str) -> Held:
    """The holders of each element. Of a side in memory only the threads whose address counts."""
    if isinstance(copy, TiledCopy):
        tv, tile = copy.tv_layout(side), copy.tile if len(copy.tile) > 1 else (1, *copy.tile)
        t, v = np.indices((int(tv[0].size), int(tv[1].size)))
        at = np.asarray(tv(t, v), np.int64) + 0 * t
        found = at % tile[0], at // tile[0], t, v
        atom = copy.atom
    else:
        atom = copy
        lists = grid_of(atom, ("dst" if atom.target == "rmem" else "src") if moves_tmem(atom) else side)
        t, v = map(np.array, lists)
        if moves_tmem(atom):
            lane, column = map(np.array, tmem_places(atom, *lists))
            found = lane, column, t, v
        else:
            size = max(atom.layout_src.cosize, atom.layout_dst.cosize)
            places = np.array([place_of(at, size) for at in places_of(atom, side, t, v)], np.int64)
            found = places[:, 0], places[:, 1], t, v
            if atom.thread_ids is not None:
                found = places[:, 0], places[:, 1], np.asarray(atom.thread_ids(t), np.int64), v
    if atom.threads > 1 and atom.space(side) in ("smem", "gmem") and "bulk" not in atom.ptx:
        naming = np.isin(np.asarray(found[2]) % atom.threads, atom.address_threads(side))
        if naming.any():
            kept = [np.asarray(x)[naming] for x in found]
            return kept[0], kept[1], kept[2], kept[3]
    return found


def value_words(atom: CopyAtom, side: str, values: int) -> list[str]:
    """Value -> its register and bits, or the byte after its address. Of several instructions, which.

    >>> from layoutgemm.atoms import ldmatrix
    >>> value_words(ldmatrix(4), "dst", 8)[3], value_words(ldmatrix(4), "src", 8)[3]
    ('3: register 1, bits 16-31', '3: byte 6 from its address')
    """
    one, bits = int(atom.layout(side)[1].size), atom.element.bits
    in_memory = atom.space(side) in ("smem", "gmem")
    words: list[str] = []
    if values > MAX_LABELS:  # of the box of a tensor copy: the number says as much
        return words
    for v in range(values):
        low = (v % one if in_memory else v) * bits
        which = f" of instruction {v // one}" if values > one else ""
        if in_memory:
            place = f"byte {low // 8} from its address" + (f", bit {low % 8}" if low % 8 else "")
        else:
            place = f"register {low // 32}" + (f", bits {low % 32}-{low % 32 + bits - 1}" if bits < 32 else "")
        words.append(f"{v}{which}: {place}")
    return words


def one_side(
    copy: CopyAtom | TiledCopy, atom: CopyAtom, side: str, held: Held, size: tuple[int, int], dims: tuple[str, str],
    holder: Holder, given: Tile,
) -> PageMatrix:  # fmt: skip
    """One side as a matrix, with the memory that it is in."""
    name, space = NAMES[side], atom.space(side)
    holders = Holders.of(size, held, value_words(atom, side, int(np.max(held[3])) + 1))
    memory, facts = memory_of(copy, atom, side, held, size, given)
    paints = [holder_paint(holder, holders)]
    if memory is not None and memory.bank_bits is not None:
        paints.append(bank_paint(bank_of(memory)))
    title = f"{SPACES[space]}, {size[0]}x{size[1]} {atom.element}"
    made = PageMatrix(name, title, dims, size, 1, "alone", holders, facts, tuple(paints), memory)
    if space == "smem" and given is not None and isinstance(copy, TiledCopy):
        access = tiled_access(copy, copy.tile, side)
        report = bank_conflicts(given, access, element=atom.element)
        return with_conflicts(made, conflicts_of(report.parts[0], access, size))
    return made


def memory_of(
    copy: CopyAtom | TiledCopy, atom: CopyAtom, side: str, held: Held, size: tuple[int, int], given: Tile
) -> tuple[Memory | None, tuple[Fact, ...]]:
    """The places of a side's elements: in the tile or layout given, or packed. None for registers.

    Raises LayoutError for a tile of another extent or type, and for one of a side that is in registers.
    """
    name, space, element = NAMES[side], atom.space(side), atom.element
    if given is None:
        return (packed_memory(copy, held, size, element.bits, name) if space == "smem" else None), ()
    if space not in ("smem", "gmem"):
        raise LayoutError(f"{side}={given}: the {name} of {atom} is in {SPACES[space]}, which no layout lays out")
    if isinstance(given, SmemTile) and given.dtype != element:
        raise LayoutError(f"{side} holds {given.dtype}, and {atom} copies {element}: recast the copy")
    found = given.extent if isinstance(given, SmemTile) else _extent(given)
    if found != size:
        raise LayoutError(f"{side} has {found[0]}x{found[1]} elements, and the copy moves {size[0]}x{size[1]}")
    if space == "smem":
        with contextlib.suppress(AtomError):
            return shared_memory(name, as_tile(given, element)), ()
    if isinstance(given, SmemTile):
        raise LayoutError(f"{side}={given}: the {name} of {atom} is in {SPACES[space]}, and a tile in shared memory")
    row, column = np.indices(size)
    offset = np.asarray(given(row, column), np.int64) + 0 * row
    if space == "smem":
        return byte_memory(name, str(given), offset * element.bits, element.bits), ()
    facts, memory, _ = offsets_parts(offset.ravel().tolist(), size)
    if memory is not None:
        told = (Fact("byte offset", offset * element.bits // 8),)
        memory = replace(memory, name=f"{name} in global memory", facts=told)
    return memory, facts


def _extent(layout: Layout | ComposedLayout) -> tuple[int, int]:
    shape = layout.shape if isinstance(layout.shape, tuple) else (1, layout.shape)
    if len(shape) != 2:
        raise LayoutError(f"{layout} has {len(shape)} modes, and the tile of a copy has rows and columns")
    return int(Layout(shape[0]).size), int(Layout(shape[1]).size)


def packed_memory(copy: CopyAtom | TiledCopy, held: Held, size: tuple[int, int], bits: int, name: str) -> Memory | None:
    """Shared memory with the elements side by side; None unless the side names every element."""
    row, column, _, value = (np.asarray(x).ravel() for x in held)
    named = np.zeros(size, np.bool_)
    named[row, column] = True
    if not named.all():
        return None
    down = isinstance(copy, TiledCopy) and size[0] > 1
    if down:
        first, second = (np.flatnonzero(value == v)[:1] for v in (0, 1))
        down = len(second) > 0 and bool(row[second[0]] == row[first[0]] + 1)
    i, j = np.indices(size)
    bit = (i + size[0] * j if down else i * size[1] + j) * bits
    order = "column by column" if down else "row by row"
    return byte_memory(name, f"packed {order}, {size[0] * size[1] * bits // 8} bytes", np.asarray(bit, np.int64), bits)
