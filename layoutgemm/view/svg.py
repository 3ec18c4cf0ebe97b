"""A layout as a grid of offsets, and the size of any grid's cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from layoutgemm.errors import LayoutError
from layoutgemm.view.canvas import CHARACTER
from layoutgemm.view.grid import Drawable, GridOffsets, planes_of
from layoutgemm.view.palette import HUES, hue
from layoutgemm.view.panel import MAX_TEXTS, Label, Panel
from layoutgemm.view.sheet import APART, Note, Sheet

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
    tile: tuple[int, int] | None = None,
) -> str:
    """Draws a layout: mode 0 downwards, mode 1 across, in every cell its offset; a grid for each further coordinate.

    Neighbouring offsets share a colour: `group` of them, by default an eighth of the range. So cells that lie together
    in
    memory look alike. `rows` and `columns` (ranges of coordinates) draw a part. `tile` outlines tiles of so many rows
    and columns, which of a layout divided by a tuple stand side by side.

    layout: (i, j) -> offset, or a coordinate tuple (scaled-basis strides), which is printed and coloured by its first
    entry. Up to 4096 cells print their offset; more are coloured alone, with the offset under the pointer. Raises
    LayoutError for symbolic extents, and for more than 65536 cells.

    >>> from layoutgemm.layouts import Layout
    >>> svg = layout_svg(Layout((4, 8), (8, 1)))
    >>> svg[:4], ">31</text>" in svg
    ('<svg', True)
    """
    planes = planes_of(layout, rows, columns)
    found = planes[0][1]
    every = [key_of(cell) for _, plane in planes for row in plane.values for cell in row]
    lowest, highest = min(every), max(every)
    if group is None:
        group = 1 << max(0, -(-(highest - lowest + 1) // len(HUES)) - 1).bit_length()
    if group < 1:
        raise LayoutError(f"group={group}: a colour stands for at least one offset")
    # Groups start at multiples of their length, so that they are the same in two pictures of one memory.
    base = lowest // group
    count = highest // group - base + 1
    printed = len(every) <= MAX_TEXTS
    labels = [labels_of(plane) if printed else [] for _, plane in planes]
    width, height, font = fitted([label for each in labels for label in each], found.rows, found.columns)
    legend = tuple((hue(g), span_text((base + g) * group, group)) for g in range(min(count, len(HUES))))
    what = "coordinates" if isinstance(found.values[0][0], tuple) else "offsets"
    says = "prints" if printed else "tells, where the pointer rests,"
    note = (
        f"Cell (i, j) {says} its {what[:-1]}; a colour is {group} neighbouring {what}"
        if group > 1
        else f"Cell (i, j) {says} its {what[:-1]}, which also gives its colour"
    )
    note += "." if count <= len(HUES) else f"; after {len(HUES)} groups the colours come again."
    if len(planes) > 1:
        note += " A grid stands for each coordinate of the other modes."

    def panel_of(rest: tuple[int, ...], plane: GridOffsets, texts: Sequence[Label]) -> Panel:
        return Panel(
            axes=("i", "j"),
            rows=plane.rows,
            columns=plane.columns,
            fills=tuple(tuple(hue(key_of(cell) // group - base) for cell in row) for row in plane.values),
            labels=tuple(texts),
            cell=(max(width, height), height),
            font=font,
            tells=lambda r, c: offset_text(plane.values[r][c]),
            says=lambda r, c: f"{what[:-1]} {offset_text(plane.values[r][c])}",
            zones=None if tile is None else tiles_of(plane, tile),
            zone_name="tile",
            caption=f"[:, :, {', '.join(map(str, rest))}]" if rest else "",
        )

    panels = [panel_of(rest, plane, texts) for (rest, plane), texts in zip(planes, labels)]
    notes = ((Note(str(layout), mono=True),) if title else ()) + (Note(note),)
    return Sheet(title=title or str(layout), notes=notes, legend=legend, panels=side_by_side(panels)).render()


def tiles_of(plane: GridOffsets, tile: tuple[int, int]) -> npt.NDArray[np.int64]:
    """The number of the tile that each cell of a plane lies in."""
    if len(tile) != 2 or min(tile) < 1:
        raise LayoutError(f"a tile to outline has rows and columns, not {tile}")
    across = -(-(plane.columns[-1] + 1) // tile[1])
    down = np.array(plane.rows, np.int64)[:, None] // tile[0]
    return down * across + np.array(plane.columns, np.int64)[None, :] // tile[1]


def key_of(cell: int | tuple[int, ...]) -> int:
    """The number that colours a cell: its offset, or a coordinate's first entry."""
    return cell[0] if isinstance(cell, tuple) else cell


def labels_of(plane: GridOffsets) -> list[Label]:
    """The offset in every cell of a plane."""
    return [Label(r, c, 1, (offset_text(cell),)) for r, row in enumerate(plane.values) for c, cell in enumerate(row)]


def side_by_side(panels: Sequence[Panel]) -> tuple[tuple[Panel | None, ...], ...]:
    """Grids in rows no wider than a page, as many in each; places left over stay free."""
    each = max(1, min(len(panels), int(WIDEST // (panels[0].gutter + panels[0].room + APART))))
    rows = [panels[start : start + each] for start in range(0, len(panels), each)]
    return tuple((*row, *(None for _ in range(each - len(row)))) for row in rows)


@checked()
def repr_svg(layout: Drawable) -> str | None:
    """A layout's picture for a notebook, or None without a picture.

    >>> from layoutgemm.layouts import Layout
    >>> repr_svg(Layout((1024, 1024))) is None
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
