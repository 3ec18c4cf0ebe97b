"""A kernel's tile order as a path over the grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutgemm.errors import LayoutError
from layoutgemm.lazy_numpy import np
from layoutgemm.schedule.persistent import Persistent
from layoutgemm.schedule.tile_order import Schedule, checked_grid, tiles_of
from layoutgemm.view.canvas import width_of
from layoutgemm.view.palette import HUES, hue
from layoutgemm.view.panel import MAX_TEXTS, Label, Panel
from layoutgemm.view.sheet import Note, Sheet
from layoutgemm.view.svg import fitted, span_text

from ..arguments import as_int, checked

if TYPE_CHECKING:
    import numpy.typing as npt


@checked()
def schedule_svg(
    schedule: Schedule | Persistent | npt.ArrayLike,
    grid: tuple[int, int],
    *,
    wave: int | None = None,
    title: str | None = None,
) -> str:
    """Draws an order of the tiles of a grid. Every tile with its number, and a line through them from the first on.

    schedule: an object with `table(grid)`, as those of `schedule`, or an array [number] of (row, column). `wave`: tiles
    that run at once share a colour; None: an eighth of them.

    Raises LayoutError unless the order visits every tile once, and for more than 65536 tiles.

    >>> from layoutgemm.schedule import Grouped
    >>> svg = schedule_svg(Grouped(group=2), (4, 4), wave=4)
    >>> "tile 0 of wave 1" in svg, svg.count('data-order="')
    (True, 1)
    """
    order, numbers = numbered(schedule, grid)
    rows, columns = range(grid[0]), range(grid[1])
    total = len(order)
    wave = -(-total // len(HUES)) if wave is None else as_int(wave, "wave", least=1)
    labels: list[Label] = []
    if total <= MAX_TEXTS:
        labels = [Label(r, c, 1, (str(numbers[r, c]),)) for r in rows for c in columns]
    width, height, font = fitted(labels, rows, columns)
    # Between two numbers there is room to see the line.
    widest = max((width_of(label.lines[0], font) for label in labels), default=0.0)
    side = max(width, height, widest + 9 if labels else 0.0, 30.0 if total <= 256 else 0.0)

    def says(r: int, c: int) -> str:
        which = int(numbers[r, c])
        return f"number {which}, tile {which % wave} of wave {which // wave}"

    panel = Panel(
        axes=("row", "column"),
        rows=rows,
        columns=columns,
        fills=tuple(tuple([hue(n // wave) for n in row]) for row in numbers.tolist()),
        labels=tuple(labels),
        cell=(side, side),
        font=font,
        tells=lambda r, c: str(numbers[r, c]),
        unit="number",
        says=says,
        path=[(row, column) for row, column in order.tolist()],
    )
    waves = -(-total // wave)
    legend = tuple((hue(w), wave_text(w, waves, wave, total)) for w in range(min(waves, len(HUES))))
    steps = np.abs(np.diff(order, axis=0)).sum(1)
    jumps = int((steps > 1).sum())
    start = "the ring" if labels else "the dot"
    note = Note(f"{total} tile{'s' if total != 1 else ''}, {wave} per colour. The line begins at tile 0 ({start}); "
                f"{jumps} step{'s jump' if jumps != 1 else ' jumps'} to a non-adjacent tile.")  # fmt: skip
    return Sheet(title=title or f"{named(schedule)}, {grid[0]}x{grid[1]} tiles", notes=(note,), legend=legend,
                 panels=((panel,),)).render()  # fmt: skip


def numbered(
    schedule: Schedule | Persistent | npt.ArrayLike, grid: tuple[int, int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The order as an array [number] of (row, column), and the number of each tile. Raises LayoutError."""
    rows, columns = checked_grid(grid)
    table = getattr(schedule, "order", None) or getattr(schedule, "table", None)
    order = tiles_of(table(grid) if table is not None else schedule)
    numbers = np.full((rows, columns), -1, dtype=np.int64)
    name = named(schedule)
    outside = (order < 0).any(1) | (order >= (rows, columns)).any(1)
    if outside.any():
        first = int(outside.argmax())
        raise LayoutError(f"{name}: number {first} is tile {tuple(order[first].tolist())}, outside of {rows}x{columns}")
    numbers[order[:, 0], order[:, 1]] = np.arange(len(order))
    if len(order) != rows * columns or (numbers < 0).any():
        raise LayoutError(f"{name}: {len(order)} numbers reach {int((numbers >= 0).sum())} of {rows * columns} tiles")
    return order, numbers


def named(schedule: object) -> str:
    """The order's name for a title."""
    return str(schedule) if not isinstance(schedule, (np.ndarray, list, tuple)) else "an order of tiles"


def wave_text(first: int, waves: int, wave: int, total: int) -> str:
    """The numbers that share a colour.

    >>> wave_text(0, 2, 8, 12), wave_text(1, 2, 8, 12), wave_text(0, 9, 2, 18)
    ('0-7', '8-11', '0-1, 16-17')
    """
    spans = [span_text(w * wave, min(wave, total - w * wave)) for w in range(first, waves, len(HUES))]
    return ", ".join(spans[:2]) + (", ..." if len(spans) > 2 else "")
