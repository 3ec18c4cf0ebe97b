"""A copy atom, or a tiled copy: its source and its destination side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod

from layoutgemm.atoms.copy.base import SIDES, CopyAtom
from layoutgemm.atoms.copy.tmem import TmemCopyAtom
from layoutgemm.atoms.tiled.copy import TiledCopy
from layoutgemm.errors import LayoutError
from layoutgemm.view.diagrams.tmem import tmem_copy_svg
from layoutgemm.view.grid import Offset, Owners, bounded, evaluate, extent, gathered, mesh, owners_of
from layoutgemm.view.panel import MAX_TEXTS, Panel
from layoutgemm.view.sheet import Note, Sheet
from layoutgemm.view.threads import OUTLINED, coloring, told, tv_panel

from ..arguments import checked

NAMES = {"src": "source", "dst": "destination"}
SPACES = {"gmem": "global memory", "smem": "shared memory", "rmem": "registers", "tmem": "tensor memory"}
LINE = 64  # elements of one dimension that stand side by side


@checked()
def copy_svg(atom: CopyAtom, *, color: str = "auto", thread: int | None = None, title: str | None = None) -> str:
    """Draws a copy atom. Its reference tile at the source and at the destination, by thread and value.

    A tcgen05.cp is drawn by its rows, lanes and columns. Matrices are stacked (row 8*matrix + row); a tile of one
    dimension goes on in lines of 64. `color`: "warp", "quad", "quad_lane", "thread", "register" or "auto"; `thread`
    frames one thread's elements.

    Raises LayoutError for an unknown colour, a thread that takes no part, and more than 65536 elements.

    >>> from layoutgemm.atoms import ldmatrix
    >>> svg = copy_svg(ldmatrix(1))
    >>> svg.count(">T31</text>"), svg.count(">T7</text>")    # at the source lanes 0 to 7 name a row of 8 elements each
    (2, 10)
    """
    if isinstance(atom, TmemCopyAtom) and not moves_tmem(atom) and color == "auto" and thread is None:
        return tmem_copy_svg(atom, title=title)
    found = [atom_owners(atom, side, thread) for side in SIDES]
    axes = [axes_of(atom, side, len(owners.rows)) for side, owners in zip(SIDES, found, strict=True)]
    heading = title or str(getattr(atom, "ptx", atom))
    notes = [Note(f"{atom.threads} thread{'s' if atom.threads > 1 else ''}, elements of {atom.element.bits} bits.")]
    return side_by_side(found, axes, atom, color, thread, False, heading, notes)


@checked()
def tiled_copy_svg(copy: TiledCopy, *, color: str = "auto", thread: int | None = None, title: str | None = None) -> str:
    """Draws a tiled copy. Its tile at the source and at the destination, by thread and value, warps outlined.

    A tile of more than two modes has a grid for each coordinate of the others, source and destination side by side.
    Raises as `copy_svg`.

    >>> from layoutgemm import Layout
    >>> from layoutgemm.atoms import make_tiled_copy, universal_copy
    >>> copy = make_tiled_copy(universal_copy(128, "bf16"), Layout((16, 8), (8, 1)), Layout((1, 8)))
    >>> svg = tiled_copy_svg(copy)
    >>> [svg.count(f'data-warp="{warp}"') for warp in range(5)]
    [2, 2, 2, 2, 0]
    >>> deep = make_tiled_copy(universal_copy(128, "bf16"), Layout((8, 2, 2)), Layout((1, 8, 1)))
    >>> deep.tile, ">source: global memory [:, :, 1]</text>" in tiled_copy_svg(deep)
    ((8, 16, 2), True)
    """
    rows, columns, *rest = copy.tile if len(copy.tile) > 1 else (1, *copy.tile)
    # The planes of the other modes lie beside each other, column-major as the tile is.
    found = [owners_of(copy.tv_layout(side), (rows, columns * prod(rest)), thread=thread or 0) for side in SIDES]
    heading = title or f"{copy.atom} over {'x'.join(map(str, copy.tile))}"
    notes = [Note(f"(thread, value) -> element = {copy.layout_tv}", mono=True)]
    return side_by_side(found, [("i", "j")] * 2, copy.atom, color, thread, True, heading, notes, tuple(rest))


def side_by_side(
    found: list[Owners], axes: list[tuple[str, str]], atom: CopyAtom, color: str, thread: int | None, outlined: bool,
    title: str, notes: list[Note], rest: tuple[int, ...] = (),
) -> str:  # fmt: skip
    """The picture of either; `rest`: the extents of the tile's modes past the second."""
    shown = coloring(color, found[0].threads, max(owners.values for owners in found))
    texts = sum(len(owners.rows) * len(owners.columns) for owners in found) <= MAX_TEXTS
    planes = [planes_of_owners(owners, rest) for owners in found]
    largest = max(max(len(owners.rows), len(owners.columns)) for each in planes for _, owners in each)
    panels: list[list[Panel]] = []
    for side, each, axis in zip(SIDES, planes, axes, strict=True):
        name = f"{NAMES[side]}: {SPACES[atom.space(side)]}"
        found_panels = [
            tv_panel(owners, axis, shown, thread=thread, texts=texts, largest=largest, outlined=outlined,
                     caption=f"{name} {at}".rstrip())
            for at, owners in each
        ]  # fmt: skip
        width = max(panel.cell[0] for panel in found_panels)
        panels.append([replace(panel, cell=(width, panel.cell[1])) for panel in found_panels])
    notes.append(Note(told(found, shown, thread, texts)))
    if outlined:
        notes.append(Note(OUTLINED))
    first = panels[0][0]
    wide = first.width > first.height and first.width > 700
    pairs = list(zip(*panels, strict=True))
    placed: tuple[tuple[Panel | None, ...], ...] = tuple(pairs)
    if wide:
        placed = tuple((panel,) for pair in pairs for panel in pair)
    return Sheet(title=title, notes=tuple(notes), legend=shown.legend, panels=placed).render()


def planes_of_owners(found: Owners, rest: tuple[int, ...]) -> list[tuple[str, Owners]]:
    """The planes of a tile of several modes, which lie beside each other. Coordinate as text, holders.

    >>> owners = gathered([0, 0, 0, 0], [0, 1, 2, 3], (4, 1), (1, 4), range(1), range(4))
    >>> [(at, plane.held) for at, plane in planes_of_owners(owners, (2,))]
    [('[:, :, 0]', ((((0, 0),), ((1, 0),)),)), ('[:, :, 1]', ((((2, 0),), ((3, 0),)),))]
    """
    if not rest:
        return [("", found)]
    count = prod(rest)
    width = len(found.columns) // count
    out = []
    for number in range(count):
        at, left = [], number
        for size in rest:
            at.append(left % size)
            left //= size
        held = tuple(row[number * width : (number + 1) * width] for row in found.held)
        plane = replace(found, columns=range(width), held=held)
        out.append((f"[:, :, {', '.join(map(str, at))}]", plane))
    return out


def atom_owners(atom: CopyAtom, side: str, thread: int | None) -> Owners:
    """The threads that address or hold each element of the reference tile."""
    tv = atom.layout(side)
    threads, values = extent(tv.shape[0]), extent(tv.shape[1])
    if thread is not None and not 0 <= thread < threads:
        raise LayoutError(f"{atom} has threads 0 to {threads - 1}: there is no thread {thread}")
    if moves_tmem(atom):
        t, v = grid_of(atom, "dst" if atom.target == "rmem" else "src")
        threads, values = atom.threads, len(t) // atom.threads
        m, n = (t, v) if atom.space(side) == "rmem" else tmem_places(atom, t, v)
        height, width = max(m) + 1, max(n) + 1
        bounded(atom, range(height), range(width))
        return gathered(m, n, (threads, values), (height, width), range(height), range(width))
    size = max(atom.layout_src.cosize, atom.layout_dst.cosize)
    places = {s: [place_of(at, size) for at in places_of(atom, s, *grid_of(atom, s))] for s in SIDES}
    height, width = (1 + max(at[axis] for found in places.values() for at in found) for axis in (0, 1))
    bounded(atom, range(height), range(width))
    m, n = map(list, zip(*places[side], strict=True))
    return gathered(m, n, (threads, values), (height, width), range(height), range(width))


def moves_tmem(atom: CopyAtom) -> bool:
    """True for a copy between registers and tensor memory. Its sides are lanes and columns, threads and values."""
    return isinstance(atom, TmemCopyAtom) and "rmem" in (atom.source, atom.target)


def tmem_places(atom: CopyAtom, t: Sequence[int], v: Sequence[int]) -> tuple[list[int], list[int]]:
    """The tensor-memory lane and element of each (thread, value)."""
    assert isinstance(atom, TmemCopyAtom)
    found = [(*at, 0, 0)[:3] if isinstance(at, tuple) else (at, 0, 0) for at in evaluate(atom.tmem, t, v)]
    bits = atom.element.bits
    return [lane for lane, _, _ in found], [(column * 32 + bit) // bits for _, column, bit in found]


def axes_of(atom: CopyAtom, side: str, rows: int) -> tuple[str, str]:
    """The names of a side's axes: downwards, across."""
    if moves_tmem(atom):
        return ("thread", "value") if atom.space(side) == "rmem" else ("lane", "column")
    if atom.tile is None:
        return (f"element / {LINE}", f"element % {LINE}") if rows > 1 else ("", "element")
    return ("8*matrix + row" if atom.tile.rank == 3 else "row"), "column"


def grid_of(atom: CopyAtom, side: str) -> tuple[list[int], list[int]]:
    """All (thread, value) of a side, as two lists."""
    shape = atom.layout(side).shape
    t, v = mesh(range(extent(shape[0])), range(extent(shape[1])))
    return t, v


def places_of(atom: CopyAtom, side: str, t: Iterable[int], v: Iterable[int]) -> list[Offset]:
    """The coordinate in the reference tile of each (thread, value)."""
    if atom.tile is None:
        return evaluate(atom.layout(side), t, v)
    return evaluate(atom.tile, [x for x in evaluate(atom.layout(side), t, v) if isinstance(x, int)])


def place_of(at: Offset, size: int) -> tuple[int, int]:
    """A coordinate of the reference tile as (row, column): matrices of 8 rows are stacked."""
    if not isinstance(at, tuple):
        return (at // LINE, at % LINE) if size > LINE else (0, at)
    row, column, *matrix = (*at, 0) if len(at) == 1 else at
    return row + 8 * (matrix[0] if matrix else 0), column
