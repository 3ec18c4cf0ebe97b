"""The pictures: plain SVG text for a notebook cell, a web page or a file. No GPU, no plotting library."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from layoutgemm.errors import LayoutError
from layoutgemm.view.canvas import CHARACTER
from layoutgemm.view.grid import Drawable, Owners, offsets_of, owners_of
from layoutgemm.view.palette import EMPTY, HUES, hue, lighter
from layoutgemm.view.sheet import Label, Note, Sheet, runs

BANKS, BANK_BYTES, CHUNK_BYTES = 32, 4, 16  # shared memory: 32 banks of 4 bytes; conflicts are counted per 16 bytes
LINE_BYTES = BANKS * BANK_BYTES
ODD = 0.45  # how much lighter odd threads are
MAX_LISTED = 128


class Atom(Protocol):
    """What `fragment_svg` draws: an MMA atom."""

    @property
    def shape_mnk(self) -> tuple[int, int, int]:
        """Extents of the tile, in elements."""


def sizes(rows: range, columns: range) -> tuple[float, float]:
    """(character height, padding) in pixels: large for a few cells, small but legible for many."""
    largest = max(len(rows), len(columns))
    return (12, 8) if largest <= 16 else (9, 6) if largest <= 32 else (7.5, 4)


def fitted(labels: Sequence[Label], rows: range, columns: range, twice: bool = False) -> tuple[float, float, float]:
    """(cell width, cell height, font) in which every label fits."""
    font, padding = sizes(rows, columns)
    longest = max(len(line) / label.span for label in labels for line in label.lines)
    most = max(len(label.lines) for label in labels)
    width, height = longest * CHARACTER * font + padding, most * 1.15 * font + padding
    return even(max(width, 20 if font > 8 else 16)), even(height), font


def even(pixels: float) -> float:
    """Rounded up to an even number: the middles of cells are then whole numbers, which are shorter to write.

    >>> even(21.3)
    22.0
    """
    return 2.0 * math.ceil(pixels / 2)


def layout_svg(
    layout: Drawable,
    *,
    title: str | None = None,
    group: int | None = None,
    rows: range | None = None,
    columns: range | None = None,
) -> str:
    """Draws a layout of rank 1 or 2: mode 0 downwards, mode 1 across, in every cell its offset.

    Neighbouring offsets share a colour: `group` of them, by default an eighth of the range, so that a picture shows at
    a glance which cells lie together in memory. `rows` and `columns` (ranges of coordinates) draw a part.

    layout: (i, j) -> offset, or a coordinate tuple (scaled-basis strides), which is then printed and coloured by its
    first entry. Returns an SVG document as text. Raises LayoutError for any other rank, for symbolic extents, and for
    more than 16384 cells.

    >>> from layoutgemm.layouts import Layout
    >>> svg = layout_svg(Layout((4, 8), (8, 1)))
    >>> svg[:4], ">31</text>" in svg
    ('<svg', True)
    """
    found = offsets_of(layout, rows, columns)
    keys = [[cell[0] if isinstance(cell, tuple) else cell for cell in row] for row in found.values]
    lowest, highest = min(map(min, keys)), max(map(max, keys))
    if group is None:
        group = 1 << max(0, -(-(highest - lowest + 1) // len(HUES)) - 1).bit_length()
    if group < 1:
        raise LayoutError(f"group={group}: a colour stands for at least one offset")
    # Groups start at multiples of their length, so that they are the same in two pictures of one memory.
    base = lowest // group
    count = highest // group - base + 1
    fills = tuple(tuple(hue(key // group - base) for key in row) for row in keys)
    labels = [Label(r, c, 1, (offset_text(cell),)) for r, row in enumerate(found.values) for c, cell in enumerate(row)]
    width, height, font = fitted(labels, found.rows, found.columns)
    legend = tuple((hue(g), span_text((base + g) * group, group)) for g in range(min(count, len(HUES))))
    what = "coordinates" if isinstance(found.values[0][0], tuple) else "offsets"
    note = (
        f"Cell (i, j) prints its {what[:-1]}; a colour is {group} neighbouring {what}"
        if group > 1
        else f"Cell (i, j) prints its {what[:-1]}, which also gives its colour"
    )
    note += "." if count <= len(HUES) else f"; after {len(HUES)} groups the colours come again."
    return Sheet(
        title=title or str(layout),
        notes=((Note(str(layout), mono=True),) if title else ()) + (Note(note),),
        legend=legend,
        axes=("i", "j"),
        rows=found.rows,
        columns=found.columns,
        fills=fills,
        labels=tuple(labels),
        cell=(max(width, height), height),
        font=font,
    ).render()


def repr_svg(layout: Drawable) -> str | None:
    """What a notebook shows for a layout: its picture, or None (the notebook then prints it) where there is none.

    >>> from layoutgemm.layouts import Layout
    >>> repr_svg(Layout((2, 2, 2))) is None
    True
    """
    try:
        return layout_svg(layout)
    except LayoutError:
        return None


def offset_text(cell: int | tuple[int, ...]) -> str:
    """An offset as it is printed in a cell.

    >>> offset_text(7), offset_text((1, 2))
    ('7', '1,2')
    """
    return ",".join(map(str, cell)) if isinstance(cell, tuple) else str(cell)


def span_text(start: int, length: int) -> str:
    """A run of numbers as a legend names it.

    >>> span_text(8, 4), span_text(3, 1)
    ('8-11', '3')
    """
    return f"{start}-{start + length - 1}" if length > 1 else str(start)


def tv_svg(
    tv: Drawable,
    tile: Sequence[int],
    *,
    title: str | None = None,
    color: str = "auto",
    thread: int | None = None,
    rows: range | None = None,
    columns: range | None = None,
) -> str:
    """Draws who holds what: the tile (M, N), in every cell the thread T and the value (register) V that hold it.

    tv: (thread, value) -> m + M*n, the element's place in the tile counted column by column, or the pair (m, n).
    `color` groups threads by "warp" (32), "quad" (4), "thread" (1) or "auto" (warps if there are several); odd threads
    are lighter. `thread` surrounds all cells of one thread. A cell that several hold shows the first and how many more;
    one that nobody holds stays empty.

    Returns an SVG document as text. Raises LayoutError if tv has not two modes or leaves the tile (with the thread and
    the value that do), and for more than 16384 cells: draw a part with `rows` and `columns`.

    >>> from layoutgemm.layouts import Layout
    >>> tv = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))     # C of mma.m16n8k16 (PTX ISA, 9.7.14.5.8)
    >>> svg = tv_svg(tv, (16, 8))
    >>> svg.count(">T31</text>"), svg.count(">V3</text>")
    (4, 32)
    """
    found = owners_of(tv, tile, rows, columns, thread or 0)
    heading = title or f"{tv} over a tile ({tile[0]}, {tile[1]})"
    notes = (Note(str(tv), mono=True),) if title else ()
    return tv_sheet(found, heading, notes, ("m", "n"), color, thread, None).render()


def fragment_svg(
    atom: Atom,
    operand: str = "C",
    *,
    thread: int = 0,
    title: str | None = None,
    rows: range | None = None,
    columns: range | None = None,
) -> str:
    """Draws an operand of an MMA atom as its threads hold it, and lists the registers of one thread.

    atom: an object with `shape_mnk` and the thread-value layouts `layout_A` over (M, K), `layout_B` over (N, K) and
    `layout_C` over (M, N); `operand` is "A", "B" or "C". Returns an SVG document as text; raises LayoutError for an
    unknown operand and whatever `tv_svg` raises.

    >>> from types import SimpleNamespace
    >>> from layoutgemm.layouts import Layout
    >>> atom = SimpleNamespace(name="wgmma m64n64k16", shape_mnk=(64, 64, 16),
    ...                        layout_C=Layout(((4, 8, 4), (2, 2, 8)), ((128, 1, 16), (64, 8, 512))))
    >>> svg = fragment_svg(atom)
    >>> ">V31 (8, 57)</text>" in svg
    True
    """
    m, n, k = atom.shape_mnk
    tiles = {"A": ((m, k), ("m", "k")), "B": ((n, k), ("n", "k")), "C": ((m, n), ("m", "n"))}
    if operand not in tiles:
        raise LayoutError(f"operand {operand!r}: an MMA atom has A, B and C")
    tile, axes = tiles[operand]
    tv: Any = getattr(atom, f"layout_{operand}")
    found = owners_of(tv, tile, rows, columns, thread)
    name = getattr(atom, "name", None) or str(atom)
    pad = len(f"V{len(found.registers) - 1}")
    lines = [f"{f'V{v}':{pad}} {at}" for v, at in enumerate(found.registers)]
    if len(lines) > MAX_LISTED:
        lines[MAX_LISTED:] = [f"and {len(lines) - MAX_LISTED} more"]
    listing = (f"Thread {thread}: value ({axes[0]}, {axes[1]})", tuple(lines))
    notes = (Note(f"(thread, value) -> {axes[0]} + {tile[0]}*{axes[1]} = {tv}", mono=True),)
    return tv_sheet(found, title or f"{name}: fragment {operand}", notes, axes, "auto", thread, listing).render()


def tv_sheet(
    found: Owners,
    title: str,
    notes: tuple[Note, ...],
    axes: tuple[str, str],
    color: str,
    thread: int | None,
    listing: tuple[str, tuple[str, ...]] | None,
) -> Sheet:
    """The sheet of a thread-value picture."""
    per_color = {"warp": 32, "quad": 4, "thread": 1}
    if color == "auto":
        color = "warp" if found.threads > 32 else "quad" if found.threads > 8 else "thread"
    if color not in per_color:
        raise LayoutError(f"color={color!r}: threads are coloured by 'warp', 'quad', 'thread' or 'auto'")
    per = per_color[color]
    shades = per > 1

    def fill(owners: tuple[tuple[int, int], ...]) -> str:
        if not owners:
            return EMPTY
        who = owners[0][0]
        return lighter(hue(who // per), ODD) if shades and who % 2 else hue(who // per)

    def text(owners: tuple[tuple[int, int], ...]) -> tuple[str, ...]:
        if not owners:
            return ("-",)
        more = (f"+{len(owners) - 1}",) if len(owners) > 1 else ()
        return (f"T{owners[0][0]}", f"V{owners[0][1]}", *more)

    labels = [Label(r, c, 1, text(cell)) for r, row in enumerate(found.held) for c, cell in enumerate(row)]
    groups = -(-found.threads // per)
    names = {"warp": "warp", "quad": "threads", "thread": "thread"}
    legend = []
    for g in range(min(groups, len(HUES))):
        which = [str(i) if color != "quad" else span_text(i * per, per) for i in range(g, groups, len(HUES))]
        legend.append((hue(g), f"{names[color]} {', '.join(which[:3])}{', ...' if len(which) > 3 else ''}"))
    told = [f"T is the thread, V the value (register) that holds element ({axes[0]}, {axes[1]})."]
    if shades:
        told.append("Odd threads are lighter.")
    if thread is not None:
        told.append(f"Framed: thread {thread}.")
    if any(len(cell) > 1 for row in found.held for cell in row):
        told.append("+k: so many more hold the same element.")
    if any(not cell for row in found.held for cell in row):
        told.append("-: nobody holds it.")
    framed = frozenset(
        (r, c)
        for r, row in enumerate(found.held)
        for c, cell in enumerate(row)
        if thread is not None and any(who == thread for who, _ in cell)
    )
    width, height, font = fitted(labels, found.rows, found.columns)
    return Sheet(
        title=title,
        notes=(*notes, Note(" ".join(told))),
        legend=tuple(legend),
        axes=axes,
        rows=found.rows,
        columns=found.columns,
        fills=tuple(tuple(fill(cell) for cell in row) for row in found.held),
        labels=tuple(labels),
        cell=(width, height),
        font=font,
        framed=framed,
        listing=listing,
    )


def swizzle_svg(
    layout: Drawable,
    bits: int = 16,
    *,
    swizzle: Callable[[int], int] | None = None,
    title: str | None = None,
    rows: range | None = None,
    columns: range | None = None,
) -> str:
    """Draws a shared-memory tile by banks: which of the 32 banks of 4 bytes every element sits in.

    layout: (i, j) -> offset in elements of `bits` bits, for example a ComposedLayout whose swizzle counts elements.
    `swizzle` is applied to the byte offset after it, for a tile that keeps its byte swizzle apart. The mode that is
    contiguous in memory runs across; each run of 16 contiguous bytes is one field that prints its banks and its bytes,
    and the colour is its place in the 128-byte line. The tile is taken to start at a multiple of 1024 bytes.

    Returns an SVG document as text. Raises LayoutError as `layout_svg` does, and for bits < 1.

    >>> from layoutgemm.layouts import ComposedLayout, Layout, Swizzle
    >>> tile = ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1)))
    >>> svg = swizzle_svg(tile, 16)
    >>> svg.count(">banks 28-31</text>"), "conflict-free" in svg
    (9, True)
    """
    if bits < 1:
        raise LayoutError(f"bits={bits}: an element has at least one bit")
    found = offsets_of(layout, rows, columns)
    grid: list[list[int]] = [[as_byte(cell, bits, layout, swizzle) for cell in row] for row in found.values]
    axes, down, across = ("i", "j"), found.rows, found.columns
    near = range(max(bits // 8, 1) + 1)
    beside = len(across) > 1 and grid[0][1] - grid[0][0] in near
    below = len(down) > 1 and grid[1][0] - grid[0][0] in near
    if below and not beside:
        grid = [list(column) for column in zip(*grid, strict=True)]
        axes, down, across = ("j", "i"), across, down
    name = str(layout) if swizzle is None else f"{swizzle} o {layout}"
    return bank_sheet(grid, bits, axes, down, across, title or f"{name} by shared-memory banks").render()


def as_byte(cell: int | tuple[int, ...], bits: int, layout: Drawable, swizzle: Callable[[int], int] | None) -> int:
    """Offset in elements -> byte offset, swizzled."""
    if isinstance(cell, tuple):
        raise LayoutError(f"{layout} gives coordinates such as {cell}, and only offsets have banks")
    byte = cell * bits // 8
    return byte if swizzle is None else int(swizzle(byte))


def bank_sheet(
    grid: list[list[int]], bits: int, axes: tuple[str, str], down: range, across: range, title: str
) -> Sheet:
    """The sheet of a bank picture; grid holds byte offsets."""
    full = CHUNK_BYTES * 8 // bits  # elements in 16 bytes
    chunks = [runs([byte // CHUNK_BYTES for byte in row]) for row in grid]
    step = full if all(stop - start == full for row in chunks for start, stop in row) else 1
    labels = []
    for r, row in enumerate(grid):
        # Without whole 16-byte fields (an odd pitch, a part of a tile) each element stands for itself.
        for start in range(0, len(row), step):
            first = row[start] % LINE_BYTES // BANK_BYTES
            field = (f"banks {first}-{first + 3}", span_text(row[start] // CHUNK_BYTES * CHUNK_BYTES, CHUNK_BYTES))
            labels.append(Label(r, start, step, field if step > 1 else (str(first),)))
    legend = tuple((hue(g), f"banks {4 * g}-{4 * g + 3}") for g in range(LINE_BYTES // CHUNK_BYTES))
    notes = [
        Note(
            "A field is 16 contiguous bytes: its banks, and under them its byte offsets in the tile."
            if step > 1
            else "A cell prints the first bank of its element."
        )
    ]
    if step > 1 and len(grid) >= 8:
        notes.append(Note(phase_note(grid, step, axes)))
    longest = max(len(line) / label.span for label in labels for line in label.lines)
    font = 10.0 if step > 1 else sizes(down, across)[0]
    cell = (even(longest * CHARACTER * font * step + 12) / step, even((2 if step > 1 else 1) * 1.15 * font + 8))
    return Sheet(
        title=title,
        notes=tuple(notes),
        legend=legend,
        axes=axes,
        rows=down,
        columns=across,
        fills=tuple(tuple(hue(byte % LINE_BYTES // CHUNK_BYTES) for byte in row) for row in grid),
        labels=tuple(labels),
        cell=cell,
        font=font,
        step=step,
    )


def phase_note(grid: list[list[int]], step: int, axes: tuple[str, str]) -> str:
    """How eight 16-byte fields, one under the other, meet in the banks: what a phase of ldmatrix reads at once."""
    worst = 1
    for top in range(0, len(grid) - 7, 8):
        for column in range(0, len(grid[0]), step):
            # The same 16 bytes read twice are one access: only different ones compete for their banks.
            fields = {grid[r][column] // CHUNK_BYTES for r in range(top, top + 8)}
            worst = max(worst, *Counter(field % (LINE_BYTES // CHUNK_BYTES) for field in fields).values())
    rows = f"Eight fields one under the other (8 values of {axes[0]}, as one phase of ldmatrix reads them)"
    return (
        f"{rows} are in different banks: conflict-free."
        if worst == 1
        else f"{rows} meet in the same banks: {worst}-way conflict."
    )
