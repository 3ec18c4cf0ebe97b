"""A layout as a grid of offsets, and the size of any grid's cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

from layoutgemm.errors import LayoutError
from layoutgemm.view.canvas import CHARACTER
from layoutgemm.view.grid import Drawable, offsets_of
from layoutgemm.view.palette import HUES, hue
from layoutgemm.view.panel import MAX_TEXTS, Label, Panel
from layoutgemm.view.sheet import Note, Sheet

from ..arguments import checked

WIDEST = 1040  # pixels that the longer side of a grid without texts takes, as far as whole pixels for a cell allow


def sizes(rows: range, columns: range) -> tuple[float, float]:
    """(character height, padding) in pixels: large for a few cells, small but legible for many."""
    largest = max(len(rows), len(columns))
    return (12, 8) if largest <= 16 else (9, 6) if largest <= 32 else (7.5, 4)


def fitted(labels: Sequence[Label], rows: range, columns: range) -> tuple[float, float, float]:
    """(cell width, cell height, font) in which every label fits; without labels, small squares of whole pixels.

    >>> fitted((), range(128), range(256)), fitted((), range(4), range(4))
    ((4.0, 4.0, 10.0), (16.0, 16.0, 10.0))
    """
    if not labels:
        side = float(min(max(WIDEST // max(len(rows), len(columns)), 3), 16))
        return side, side, 10.0
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


@checked()
def layout_svg(
    layout: Drawable,
    *,
    title: str | None = None,
    group: int | None = None,
    rows: range | None = None,
    columns: range | None = None,
) -> str:
    """Draws a layout of rank 1 or 2: mode 0 downwards, mode 1 across, in every cell its offset.

    Neighbouring offsets share a colour: `group` of them, by default an eighth of the range. So cells that lie together
    in
    memory look alike. `rows` and `columns` (ranges of coordinates) draw a part.

    layout: (i, j) -> offset, or a coordinate tuple (scaled-basis strides), which is printed and coloured by its first
    entry. Up to 4096 cells print their offset; more are coloured alone, with the offset under the pointer. Raises
    LayoutError for any other rank, for symbolic extents, and for more than 65536 cells.

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
    if len(labels) > MAX_TEXTS:
        labels = []
    width, height, font = fitted(labels, found.rows, found.columns)
    legend = tuple((hue(g), span_text((base + g) * group, group)) for g in range(min(count, len(HUES))))
    what = "coordinates" if isinstance(found.values[0][0], tuple) else "offsets"
    says = "prints" if labels else "tells, where the pointer rests,"
    note = (
        f"Cell (i, j) {says} its {what[:-1]}; a colour is {group} neighbouring {what}"
        if group > 1
        else f"Cell (i, j) {says} its {what[:-1]}, which also gives its colour"
    )
    note += "." if count <= len(HUES) else f"; after {len(HUES)} groups the colours come again."
    panel = Panel(
        axes=("i", "j"),
        rows=found.rows,
        columns=found.columns,
        fills=fills,
        labels=tuple(labels),
        cell=(max(width, height), height),
        font=font,
        tells=lambda r, c: offset_text(found.values[r][c]),
        says=lambda r, c: f"{what[:-1]} {offset_text(found.values[r][c])}",
    )
    notes = ((Note(str(layout), mono=True),) if title else ()) + (Note(note),)
    return Sheet(title=title or str(layout), notes=notes, legend=legend, panels=((panel,),)).render()


@checked()
def repr_svg(layout: Drawable) -> str | None:
    """A layout's picture for a notebook, or None without a picture.

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
