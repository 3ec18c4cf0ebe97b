"""A layout as a grid of offsets, and the size of any grid's cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from layoutgemm.errors import LayoutError
from layoutgemm.view.canvas import CHARACTER, width_of
from layoutgemm.view.grid import (
    DividedLayout,
    Drawable,
    GridOffsets,
    Offset,
    UnwrappedLayout,
    as_layout,
    coordinates_of,
    planes_of,
    rank_of,
)
from layoutgemm.view.palette import HUES, each_hue, hue
from layoutgemm.view.panel import AXIS_SIZE, MAX_TEXTS, RULE, CellTexts, Label, Panel
from layoutgemm.view.sheet import APART, Legend, Note, Sheet

from ..arguments import checked
from ..layouts.int_tuple import product

LINE = 64  # cells of a vector in a line
WIDEST = 1040  # pixels that the longer side of a grid without texts takes, as far as whole pixels for a cell allow


def sizes(rows: range, columns: range) -> tuple[float, float]:
    """(character height, padding) in pixels: large for a few cells, small but legible for many."""
    largest = max(len(rows), len(columns))
    return (12, 8) if largest <= 16 else (9, 6) if largest <= 32 else (7.5, 4)


def fitted(labels: Sequence[Label], rows: range, columns: range) -> tuple[float, float, float]:
    """(cell width, cell height, font) in which every label fits. Without labels, small squares of whole pixels.

    >>> fitted((), range(128), range(256)), fitted((), range(4), range(4))
    ((4.0, 4.0, 10.0), (16.0, 16.0, 10.0))
    """
    if not labels:
        side = float(min(max(WIDEST // max(len(rows), len(columns)), 3), 16))
        return side, side, 10.0
    font, padding = sizes(rows, columns)
    if isinstance(labels, CellTexts):
        return sized(labels.longest(), labels.most, font, padding)
    most, lengths = 1, dict[int, int]()  # columns of a label -> characters of the longest
    for _, _, span, lines in labels:
        most = max(most, len(lines)) if len(lines) > 1 else most
        for line in lines:
            if len(line) > lengths.get(span, 0):
                lengths[span] = len(line)
    return sized(max(length / span for span, length in lengths.items()), most, font, padding)


def sized(longest: float, lines: int, font: float, padding: float) -> tuple[float, float, float]:
    """(cell width, cell height, font) for the longest text of a cell and its lines."""
    width, height = longest * CHARACTER * font + padding, lines * 1.15 * font + padding
    return even(max(width, 20 if font > 8 else 16)), even(height), font


def even(pixels: float) -> float:
    """Rounded up to an even number. The middles of cells are then whole numbers, which are shorter to write.

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
    planes: range | None = None,
    tile: tuple[int, int] | None = None,
    nested: bool = False,
    divided: str | None = None,
) -> str:
    """Draws a layout: mode 0 downwards, mode 1 across, in every cell its offset. A grid for each further coordinate.

    Neighbouring offsets share a colour: `group` of them, by default an eighth of the range. So cells that lie together
    in memory look alike. `rows`, `columns` and `planes` (ranges of coordinates, flat ones of the further modes) draw a
    part. `tile` (rows, columns) outlines tiles, which of a layout divided by a tuple stand side by side. `nested`
    writes the coordinates of nested modes at the rows and columns, (1,0) for 1. `divided`, the divide that made the
    layout ("logical", "zipped", "tiled" or "flat"), draws its tiles as grids of their own, as they lie in the matrix.

    layout: (i, j) -> offset, or a coordinate tuple (scaled-basis strides), which is printed and coloured by its first
    entry. Up to 4096 cells print their offset; more are coloured alone, with the offset under the pointer. Raises
    LayoutError for symbolic extents, for more than 65536 cells, and for a shape that the divide does not make.

    >>> from layoutgemm.layouts import Layout
    >>> svg = layout_svg(Layout((4, 8), (8, 1)))
    >>> svg[:4], ">31</text>" in svg
    ('<svg', True)
    >>> tiles = Layout((8, 16), (16, 1)).zipped_divide((4, 8)).svg(divided="zipped")
    >>> ">tile (1,0)</text>" in tiles
    True
    """
    layout = UnwrappedLayout.of(as_layout(layout)) if divided is None else layout
    tiles = None if divided is None else DividedLayout.of(layout, divided)
    parts = planes_of(layout if tiles is None else tiles, rows, columns, planes)
    vector = tiles is None and rank_of(layout) == 1
    if vector:
        parts = lines_of(parts[0][1])
    colors = offset_colors(parts, group)
    printed = sum(len(plane.rows) * len(plane.columns) for _, plane in parts) <= MAX_TEXTS
    names = nested_names(layout, parts[0][1]) if nested and tiles is None else ((), ())
    panels = layout_panels(parts, colors, printed, names)
    if tiles is None:
        panels = [replace(panel, rules=nested_rules(layout)) for panel in panels]
    if vector:
        panels = [vector_panel(panel, layout, plane, nested) for panel, (_, plane) in zip(panels, parts, strict=True)]
    if tile is not None:
        panels = [replace(panel, zones=tiles_of(p, tile), zone_name="tile") for panel, (_, p) in zip(panels, parts)]
    if tiles is not None:
        panels = [tile_panel(tiles, panel, rest) for panel, (rest, _) in zip(panels, parts)]
    notes = ((Note(f"{layout}", mono=True),) if title else ()) + (
        Note(layout_note(parts, colors, printed, tiles, vector)),
    )
    placed = side_by_side(panels) if tiles is None else as_matrix(panels, tiles.shape[2])
    return Sheet(title=title or f"{layout}", notes=notes, legend=colors.legend, panels=placed).render()


@dataclass(frozen=True, slots=True)
class OffsetColors:
    """The colours of offsets: `group` neighbours have one, group `base` the first of `count`.

    Groups start at multiples of their length, so that they are the same in two pictures of one memory.

    shown  the groups that have offsets here, counted from `base`; where colours come again, those of the first round
    """

    group: int
    base: int
    count: int
    shown: tuple[int, ...]

    def fills(self, row: Sequence[Offset]) -> tuple[str, ...]:
        """The colours of cells."""
        group, base, count = self.group, self.base, len(HUES)
        return tuple([HUES[(key // group - base) % count] for key in keys_of(row)])

    @property
    def legend(self) -> Legend:
        """The offsets of each hue."""
        return tuple((hue(g), span_text((self.base + g) * self.group, self.group)) for g in self.shown)


Planes = Sequence[tuple[tuple[int, ...], GridOffsets]]


def offset_colors(planes: Planes, group: int | None) -> OffsetColors:
    """The colours of these offsets. By default each has an eighth of their range, a power of two."""
    every = [keys_of(row) for _, plane in planes for row in plane.values]
    lowest, highest = min(map(min, every)), max(map(max, every))
    if group is None:
        group = each_hue(lowest, highest)
    if group < 1:
        raise LayoutError(f"group={group}: a colour stands for at least one offset")
    base, count = lowest // group, highest // group - lowest // group + 1
    found = {key // group - base for row in every for key in row} if count <= len(HUES) else set(range(len(HUES)))
    return OffsetColors(group, base, count, tuple(sorted(found)))


def lines_of(row: GridOffsets) -> list[tuple[tuple[int, ...], GridOffsets]]:
    """The offsets of a vector in lines that fit a page, each a grid.

    >>> [plane.columns for _, plane in lines_of(GridOffsets(range(1), range(100), (tuple(range(100)),)))]
    [range(0, 64), range(64, 100)]
    """
    count = len(row.columns)
    each = LINE if count <= MAX_TEXTS else 4 * LINE
    starts = range(0, count, each)
    return [((), GridOffsets(row.rows, row.columns[k : k + each], (row.values[0][k : k + each],))) for k in starts]


def vector_panel(panel: Panel, layout: Drawable, line: GridOffsets, nested: bool) -> Panel:
    """A grid without a name and a number for its row. The layout has one mode."""
    names = nested_names(layout, line)[1] if nested else ()
    return replace(panel, axes=("", "i"), names=(("",), names))


def layout_note(
    planes: Planes, colors: OffsetColors, printed: bool, tiles: DividedLayout | None, vector: bool = False
) -> str:
    """The header's note: what a cell, a colour and a grid stand for."""
    what, group = noun_of(planes), colors.group
    cell = "i" if vector else "(i, j)"
    says = f"Cell {cell} prints its {what}" if printed else f"Hover over a cell for its {what}"
    if group > 1:
        note = f"{says}; a colour is {group} neighbouring {what}s"
    else:
        gives = "whose first entry" if what == "coordinate" else "which also"
        note = f"{says}, {gives} gives its colour"
    note += "." if colors.count <= len(HUES) else f"; after {len(HUES)} groups the colours come again."
    if tiles is not None:
        place = "Tiles stand side by side" if tiles.vector else "Tile (r,c) stands where it lies in the matrix"
        note += f" {place}; the pointer shows the nested coordinate."
    elif len(planes) > 1 and not vector:
        note += " A grid stands for each coordinate of the other modes."
    return note


def noun_of(planes: Planes) -> str:
    """The word for a cell's value."""
    return "coordinate" if isinstance(planes[0][1].values[0][0], tuple) else "offset"


def layout_panels(
    planes: Planes, colors: OffsetColors, printed: bool, names: tuple[tuple[str, ...], tuple[str, ...]]
) -> list[Panel]:
    """A grid for each plane, all with cells of one size."""
    what, found = noun_of(planes), planes[0][1]
    labels = [labels_of(plane) if printed else () for _, plane in planes]
    fits = [fitted(each, found.rows, found.columns) for each in labels]
    (width, height), font = (max(each) for each in list(zip(*fits, strict=True))[:2]), fits[0][2]
    if names[1] and printed and len(found.columns) <= 32:  # room for every nested coordinate
        width = max(width, even(width_of(max(names[1], key=len), AXIS_SIZE) + 4))

    def panel_of(rest: tuple[int, ...], plane: GridOffsets, texts: Sequence[Label]) -> Panel:
        return Panel(
            axes=("i", "j"),
            rows=plane.rows,
            columns=plane.columns,
            fills=tuple(map(colors.fills, plane.values)),
            labels=texts,
            cell=(max(width, height), height),
            font=font,
            tells=lambda r, c: offset_text(plane.values[r][c]),
            says=lambda r, c: f"{what} {offset_text(plane.values[r][c])}",
            caption=f"[:, :, {', '.join(map(str, rest))}]" if rest else "",
            names=names,
        )

    return [panel_of(rest, plane, texts) for (rest, plane), texts in zip(planes, labels)]


def nested_rules(layout: Drawable) -> tuple[int, int]:
    """The rows, and the columns, between two dark lines. The first entry of a nested mode, else `RULE`.

    >>> from layoutgemm.layouts import Layout
    >>> nested_rules(Layout(((2, 4), (3, 5)))), nested_rules(Layout((4, 8)))
    ((2, 3), (8, 8))
    """
    shape = layout.shape if isinstance(layout.shape, tuple) else (layout.shape,)
    down, across = (1, shape[0]) if len(shape) == 1 else shape[:2]
    first, second = (product(mode[0]) if isinstance(mode, tuple) and len(mode) > 1 else 1 for mode in (down, across))
    return (first if first > 1 else RULE, second if second > 1 else RULE)


def nested_names(layout: Drawable, plane: GridOffsets) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The nested coordinates of the rows and of the columns shown."""
    shape = layout.shape if isinstance(layout.shape, tuple) else (layout.shape,)
    down, across = (1, shape[0]) if len(shape) == 1 else shape[:2]
    rows, columns = coordinates_of(down), coordinates_of(across)
    return tuple([rows[i] for i in plane.rows]), tuple([columns[j] for j in plane.columns])


def tile_panel(tiles: DividedLayout, panel: Panel, rest: tuple[int, ...]) -> Panel:
    """The grid of one tile. Its place as caption, the nested coordinate of each cell under the pointer."""
    (r, c), says = rest, panel.says

    def told(i: int, j: int) -> str:
        return f"coordinate {tiles.coordinate(panel.rows[i], panel.columns[j], r, c)}, {says(i, j) if says else ''}"

    return replace(panel, caption=f"tile ({r},{c})" if not tiles.vector else f"tile {c}", says=told)


def as_matrix(panels: Sequence[Panel], down: int) -> tuple[tuple[Panel | None, ...], ...]:
    """Grids in `down` rows, given column by column."""
    return tuple(tuple(panels[r::down]) for r in range(down))


def tiles_of(plane: GridOffsets, tile: tuple[int, int]) -> list[list[int]]:
    """The number of the tile that each cell of a plane lies in."""
    if len(tile) != 2 or min(tile) < 1:
        raise LayoutError(f"a tile to outline has rows and columns, not {tile}")
    across = -(-(plane.columns[-1] + 1) // tile[1])
    return [[i // tile[0] * across + j // tile[1] for j in plane.columns] for i in plane.rows]


def keys_of(row: Sequence[Offset]) -> Sequence[int]:
    """The numbers that colour cells: their offsets, or the first entries of coordinates."""
    if isinstance(row[0], tuple):  # a layout has coordinates everywhere, or nowhere
        return [cell[0] for cell in cast("Sequence[tuple[int, ...]]", row)]
    return cast("list[int]", row)


def labels_of(plane: GridOffsets) -> CellTexts:
    """The offset in every cell of a plane."""
    text: Callable[[Any], str] = str if isinstance(plane.values[0][0], int) else offset_text
    return CellTexts([list(zip(map(text, row))) for row in plane.values])


def side_by_side(panels: Sequence[Panel]) -> tuple[tuple[Panel | None, ...], ...]:
    """Grids in rows no wider than a page, as many in each. Places left over stay free."""
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

    >>> span_text(8, 4), span_text(3, 1), span_text(-8, 4)
    ('8-11', '3', '-8 to -5')
    """
    between = "-" if start >= 0 else " to "
    return f"{start}{between}{start + length - 1}" if length > 1 else str(start)
