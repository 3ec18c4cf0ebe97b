"""The parts of a linked page. Paints, a tile in shared memory, the offsets of a layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from layoutgemm.atoms import SmemTile
from layoutgemm.lazy_numpy import np
from layoutgemm.view.grid import Drawable, Offset, as_layout, evaluate, extent, rows_by_columns
from layoutgemm.view.pages.model import Fact, Figure, Holder, Holders, Memory, PageMatrix, Paint, Planes, Table
from layoutgemm.view.palette import HUES, each_hue
from layoutgemm.view.svg import span_text
from layoutgemm.view.threads import hue_texts

BANKS, BANK_BITS, UNIT_BITS = 32, 32, 128  # of shared memory; conflicts are counted per 16 bytes
LINE_BITS = BANKS * BANK_BITS
MAX_OFFSETS = 1 << 15  # of a layout's codomain that is drawn
OFFSETS_A_LINE = 32
AXES = "ijklmnpq"  # names of a layout's modes


def axes(shape: tuple[int, int]) -> tuple[Table, Table]:
    """Row and column of every element of a matrix."""
    row, column = np.indices(shape)
    return row, column


def holder_paint(holder: Holder, holders: Holders) -> Paint:
    """Colours by the first that holds an element, as in `tv_svg`. They are by warps if there are several, else by
    quads, or threads."""
    per = 32 if holder.count > 32 else 4 if holder.count > 8 else 1
    groups = -(-holder.count // per)
    warps = holder.name == "thread" and per == 32
    name = "warp" if warps else holder.name + "s" * (per > 1)
    legend = hue_texts(name, 1 if warps else per, groups)
    texts = tuple(zip(holder.letters, (holders.threads[0], holders.values[0]), strict=True))
    return Paint(f"{holder.name}s", holders.threads[0], per, per > 1, texts, tuple(legend))


def bank_paint(bank: Table) -> Paint:
    """Colours by the 16 bytes of a line: four banks."""
    legend = tuple((hue, f"banks {4 * hue}-{4 * hue + 3}") for hue in range(BANKS // 4))
    return Paint("banks", bank, 4, False, (("", bank),), legend)


def shared_memory(name: str, tile: SmemTile, facts: tuple[Fact, ...] = (), parts: int = 1) -> Memory:
    """A tile in shared memory. Of an operand that `parts` blocks share, the tiles of all, one under another."""
    row, column = axes((tile.extent[0] * parts, tile.extent[1]))
    inside, part = row % tile.extent[0], row // tile.extent[0]
    bit = np.asarray(tile.bit(inside, column), np.int64)
    size = -(-tile.bytes * 8 // LINE_BITS) * LINE_BITS
    told = [
        Fact("byte offset", bit // 8),
        Fact("line", bit // LINE_BITS),
        Fact("bank", bit % LINE_BITS // BANK_BITS),
    ]
    if tile.dtype.bits % 8:
        told.insert(1, Fact("bit of that byte", bit % 8))
    if parts > 1:
        told.insert(0, Fact("shared memory of block", part))
    stored = "" if tile.packing == "packed" else f", {tile.packing}"
    several = f", of {parts} blocks, one under another" if parts > 1 else ""
    return Memory(
        name=f"{name} in shared memory",
        title=f"{tile.extent[0]}x{tile.extent[1]} {tile.dtype}{stored}, {tile.major}-major, swizzle "
        f"{tile.swizzle_name}, {tile.bytes} bytes{several}",
        start=bit + part * size,
        bits=tile.dtype.bits,
        line=LINE_BITS,
        unit=UNIT_BITS,
        size=size * parts,
        bank_bits=BANK_BITS,
        facts=(*told, *facts),
    )


def bank_of(memory: Memory) -> Table:
    """The bank in which each element begins."""
    return memory.start % LINE_BITS // BANK_BITS


def tile_figure(tile: SmemTile, *, title: str | None = None) -> Figure:
    """The page of a tile: its elements by coordinate, and their places in shared memory.

    >>> from layoutgemm.atoms import smem_tile
    >>> from layoutgemm.view.pages.html import tile_html
    >>> "tile in shared memory" in tile_html(smem_tile((8, 64), "bf16", "K"))
    True
    """
    # A figure too large is refused before its offsets are computed.
    Figure("", (), (PageMatrix("tile", "", ("mn", "k"), tile.extent),))
    memory = shared_memory("tile", tile)
    matrix = PageMatrix(
        name="tile",
        title="in the order of its coordinates",
        dims=("mn", "k"),
        extent=tile.extent,
        across=1 if tile.major == "K" else 0,
        paints=(bank_paint(bank_of(memory)),),
        memory=memory,
    )
    note = "A colour is 16 bytes of a line of 128: four banks."
    return Figure(title or f"Shared-memory tile {tile}", (note,), (matrix,))


def layout_figure(layout: Drawable, *, title: str | None = None) -> Figure:
    """The page of a layout of any rank. Coordinates, and beside them the offsets in order.

    The first two modes are rows and columns. Each coordinate of further modes is a grid of its own. Cells are coloured
    by offset, or by the coordinate along a mode. Raises LayoutError for symbolic extents and for too many elements.

    >>> from layoutgemm.layouts import Layout
    >>> layout_figure(Layout((4, 8, 3))).matrices[0].planes
    Planes(names=('k',), extents=(3,), width=8)
    """
    layout = as_layout(layout)
    extents = [extent(mode) for mode in (layout.shape if isinstance(layout.shape, tuple) else (layout.shape,))]
    if not extents:
        rows_by_columns(layout)  # says so
    names = tuple(AXES[at] if len(extents) <= len(AXES) else f"i{at}" for at in range(max(len(extents), 2)))
    height, width, *rest = extents if len(extents) > 1 else (1, *extents)
    size = (height, width * prod(rest))
    # A figure too large is refused before its offsets are computed.
    Figure("", (), (PageMatrix("layout", "", (names[0], names[1]), size),))
    row, column = axes(size)
    at, plane = [row, column % width], column // width
    for count in rest:
        at.append(plane % count)
        plane = plane // count
    found = evaluate(layout, *(axis.ravel() for axis in at[-len(extents) :]))
    facts, memory, paints = offsets_parts(found, size)
    matrix = PageMatrix(
        "layout", "coordinates", (names[0], names[1]), size, facts=facts, memory=memory,
        paints=(*paints, *mode_paints(names, at, paints[0])),
        planes=Planes(names[2:], tuple(rest), width) if rest else None,
    )  # fmt: skip
    return Figure(title or f"{layout}", (f"{layout}",) if title else (), (matrix,))


def mode_paints(names: Sequence[str], at: Sequence[Table], paint: Paint) -> Iterator[Paint]:
    """Colours by the coordinate along each mode, with the texts of `paint`."""
    for name, table in zip(names, at, strict=True):
        count = int(table.max()) + 1
        if count > 1:
            per = -(-count // len(HUES))
            legend = tuple((hue, span_text(hue * per, per)) for hue in range(-(-count // per)))
            yield Paint(f"mode {name}", table, per, False, paint.texts, legend)


def offsets_parts(
    found: Sequence[Offset], size: tuple[int, int]
) -> tuple[tuple[Fact, ...], Memory | None, tuple[Paint, ...]]:
    """Facts, memory and paints of offsets, or of coordinates. The memory for few offsets from 0 on."""
    if isinstance(found[0], tuple):
        columns = [np.array(each, np.int64).reshape(size) for each in zip(*found, strict=True)]
        facts = tuple(Fact(f"coordinate {i}", table) for i, table in enumerate(columns))
        texts = tuple(("" if i == 0 else ",", table) for i, table in enumerate(columns))
        return facts, None, (Paint("coordinates", columns[0], 1, False, texts, ()),)
    offset = np.array(found, np.int64).reshape(size)
    low, high = int(offset.min()), int(offset.max())
    per = each_hue(low, high)
    first = low // per
    shown = range(min(high // per - first + 1, len(HUES)))
    legend = tuple((hue, span_text((first + hue) * per, per)) for hue in shown)
    paint = Paint("offsets", offset - first * per, per, False, (("", offset),), legend)
    memory = None
    if low >= 0 and high < MAX_OFFSETS:
        line = min(OFFSETS_A_LINE, 1 << max(3, high.bit_length()))
        memory = Memory(
            name="offsets",
            title=f"{low} to {high}, {line} a line",
            start=offset,
            bits=1,
            line=line,
            unit=line // 8,
            size=high + 1,
            bank_bits=None,
            facts=(),
            paint=paint,
        )
    return (Fact("offset", offset),), memory, (paint,)
