"""Layouts as tables of text, for a terminal, a log or a docstring."""

from __future__ import annotations

from collections.abc import Sequence

from layoutgemm.view.grid import Drawable, by_threads, owners_of, planes_of
from layoutgemm.view.svg import offset_text

from ...arguments import checked


@checked()
def layout_table(
    layout: Drawable, *, rows: range | None = None, columns: range | None = None, planes: range | None = None
) -> str:
    """A layout as a table. Mode 0 downwards, mode 1 across, in every place its offset.

    layout: (i, j, ...) -> offset (or coordinate tuple); a table for each coordinate of the modes past the second.
    `rows`, `columns` and `planes` (flat indices of those coordinates) show a part. Raises LayoutError for symbolic
    extents, and for more than 65536 cells.

    >>> from layoutgemm.layouts import Layout
    >>> print(layout_table(Layout((4, (2, 2)), (2, (1, 8)))))
    (4,(2,2)):(2,(1,8))
         0  1  2  3
      +------------
    0 |  0  1  8  9
    1 |  2  3 10 11
    2 |  4  5 12 13
    3 |  6  7 14 15
    """
    parts = []
    for rest, found in planes_of(layout, rows, columns, planes):
        cells = [[offset_text(cell) for cell in row] for row in found.values]
        above = f"[:, :, {', '.join(map(str, rest))}]\n" if rest else ""
        parts.append(above + table(cells, found.rows, found.columns))
    return "\n".join([str(layout), *parts])


@checked()
def tv_table(tv: Drawable, tile: tuple[int, int], *, rows: range | None = None, columns: range | None = None) -> str:
    """The holders of each element as a table. `5:2` is value 2 of thread 5, `5:2+3` has three more, `-` none.

    tv: (thread, value) -> m + M*n, or the pair (m, n), over the tile (M, N). `rows` and `columns` show a part. Raises
    LayoutError as `tv_svg` does.

    >>> from layoutgemm.layouts import Layout
    >>> print(tv_table(Layout(((4, 8), (2, 2)), ((32, 1), (16, 8))), (16, 8), rows=range(0, 9, 4)))
    ((4,8),(2,2)):((32,1),(16,8)) over (16,8), thread:value
           0    1    2    3    4    5    6    7
      +----------------------------------------
    0 |  0:0  0:1  1:0  1:1  2:0  2:1  3:0  3:1
    4 | 16:0 16:1 17:0 17:1 18:0 18:1 19:0 19:1
    8 |  0:2  0:3  1:2  1:3  2:2  2:3  3:2  3:3
    """
    tv = by_threads(tv)
    found = owners_of(tv, tile, rows, columns)
    cells = [[owner_text(cell) for cell in row] for row in found.held]
    return f"{tv} over ({tile[0]},{tile[1]}), thread:value\n" + table(cells, found.rows, found.columns)


def owner_text(owners: tuple[tuple[int, int], ...]) -> str:
    """The holders of an element, as a cell of a table.

    >>> owner_text(((5, 2), (6, 2))), owner_text(())
    ('5:2+1', '-')
    """
    if not owners:
        return "-"
    return f"{owners[0][0]}:{owners[0][1]}" + (f"+{len(owners) - 1}" if len(owners) > 1 else "")


def table(cells: Sequence[Sequence[str]], rows: range, columns: range) -> str:
    """Right-aligned columns under their indices.

    >>> print(table([["a", "b"]], range(1), range(2)))
        0 1
      +----
    0 | a b
    """
    width = max(len(str(columns[-1])), *(len(cell) for row in cells for cell in row))
    gutter = len(str(rows[-1]))
    head = " " * (gutter + 2) + "".join(f" {column:>{width}}" for column in columns)
    rule = " " * gutter + " +" + "-" * ((width + 1) * len(columns))
    body = [
        f"{row:>{gutter}} |" + "".join(f" {cell:>{width}}" for cell in line)
        for row, line in zip(rows, cells, strict=True)
    ]
    return "\n".join([head, rule, *body])
