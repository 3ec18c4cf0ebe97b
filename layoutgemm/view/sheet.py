"""A picture of a grid, ready to draw: header, legend, axes, coloured cells with their texts, a list at the side."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from layoutgemm.view.canvas import Canvas, width_of
from layoutgemm.view.palette import FAINT, PAPER

MARGIN = 16.0
TITLE_SIZE, NOTE_SIZE, LEGEND_SIZE, AXIS_SIZE, LIST_SIZE = 16.0, 12.0, 12.0, 11.0, 11.0
MIN_WIDTH, LEGEND_WIDTH = 560.0, 900.0  # a header breaks its lines no earlier, a legend goes on one line up to there
SWATCH = 14.0
# Every eighth line of the grid is dark: tensor-core fragments and shared-memory atoms are made of groups of eight.
RULE = 8


@dataclass(frozen=True, slots=True)
class Note:
    """A line of the header; `mono` for notation, which is never broken."""

    text: str
    mono: bool = False


@dataclass(frozen=True, slots=True)
class Label:
    """Text lines in the middle of `span` cells of one row, the first at (row, column), counted from 0."""

    row: int
    column: int
    span: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """All that one picture shows. Sizes are in pixels of the unscaled picture."""

    title: str
    notes: tuple[Note, ...]
    legend: tuple[tuple[str, str], ...]  # (fill, meaning)
    axes: tuple[str, str]  # what counts downwards, what counts across
    rows: range
    columns: range
    fills: tuple[tuple[str, ...], ...]
    labels: tuple[Label, ...]
    cell: tuple[float, float]  # width, height
    font: float
    step: int = 1  # columns between two fine vertical lines
    framed: frozenset[tuple[int, int]] = frozenset()  # cells to surround, as (row, column) from 0
    listing: tuple[str, tuple[str, ...]] | None = None  # heading and lines of the list at the right

    def render(self) -> str:
        """The SVG document."""
        left, listing_width = MARGIN + self._gutter(), self._listing_width()
        grid_width, grid_height = self.cell[0] * len(self.columns), self.cell[1] * len(self.rows)
        inner = max(
            left - MARGIN + grid_width + listing_width,
            MIN_WIDTH,
            width_of(self.title, TITLE_SIZE) * 1.15,
            min(sum(swatch_width(meaning) for _, meaning in self.legend), LEGEND_WIDTH),
            *(width_of(note.text, NOTE_SIZE) for note in self.notes if note.mono),
        )
        canvas = Canvas()
        y = self._header(canvas, inner)
        y = self._legend(canvas, y, inner)
        top = (y + 3.6 * AXIS_SIZE) // 1
        self._axes(canvas, left, top)
        self._fills(canvas, left, top)
        self._rules(canvas, left, top)
        self._texts(canvas, left, top)
        self._frames(canvas, left, top)
        bottom = max(top + grid_height, self._listing(canvas, left + grid_width + MARGIN, top, grid_height))
        return canvas.render(inner + 2 * MARGIN, bottom + MARGIN, self.title, [note.text for note in self.notes])

    def _gutter(self) -> float:
        """Room for the row numbers and the name of their axis."""
        return width_of(max(str(self.rows[-1]), self.axes[0] + " \u2193", key=len), AXIS_SIZE) // 1 + 8

    def _header(self, canvas: Canvas, inner: float) -> float:
        y = MARGIN + TITLE_SIZE
        canvas.text(MARGIN, y, self.title, TITLE_SIZE, bold=True)
        for note in self.notes:
            # Sans text is about five sixths as wide as the monospaced bound.
            fitting = int(inner / (width_of("x", NOTE_SIZE) * 0.85))
            for line in [note.text] if note.mono else textwrap.wrap(note.text, fitting):
                y += NOTE_SIZE * 1.5
                canvas.text(MARGIN, y, line, NOTE_SIZE, mono=note.mono, fill=FAINT)
        return y

    def _legend(self, canvas: Canvas, y: float, inner: float) -> float:
        if not self.legend:
            return y
        x, y = MARGIN, y + NOTE_SIZE + 4
        for fill, meaning in self.legend:
            width = swatch_width(meaning)
            if x > MARGIN and x + width > MARGIN + inner + 1:
                x, y = MARGIN, y + SWATCH + 6
            canvas.rect(x, y, SWATCH, SWATCH, fill)
            canvas.text(x + SWATCH + 6, y + SWATCH - 3, meaning, LEGEND_SIZE)
            x += width
        return y + SWATCH

    def _axes(self, canvas: Canvas, left: float, top: float) -> None:
        width, height = self.cell
        canvas.text(left - 5, top - 5, self.axes[0] + " \u2193", AXIS_SIZE, fill=FAINT, anchor="end")
        canvas.text(left + 2, top - 8 - AXIS_SIZE, self.axes[1] + " \u2192", AXIS_SIZE, fill=FAINT)
        # As many column numbers as fit, at multiples of a power of two.
        need, every = width_of(str(self.columns[-1]), AXIS_SIZE) + 3, self.step
        while every * width < need:
            every *= 2
        canvas.open_texts(AXIS_SIZE, fill=FAINT)
        for place, index in enumerate(self.columns):
            if (index if self.step == 1 else place) % every == 0:
                canvas.put(left + (place + 0.5 * self.step) * width, top - 5, str(index))
        canvas.close()
        canvas.open_texts(AXIS_SIZE, fill=FAINT, anchor="end")
        for place, index in enumerate(self.rows):
            canvas.put(left - 5, top + (place + 0.5) * height + 0.36 * AXIS_SIZE, str(index))
        canvas.close()

    def _fills(self, canvas: Canvas, left: float, top: float) -> None:
        """One path a colour, of runs of equal cells: rectangles would double the size of a 64 x 64 picture."""
        width, height = self.cell
        boxes: dict[str, list[tuple[float, float, float]]] = {}
        for row, fills in enumerate(self.fills):
            for start, stop in runs(fills):
                box = (left + start * width, top + row * height, (stop - start) * width)
                boxes.setdefault(fills[start], []).append(box)
        for fill, found in boxes.items():
            canvas.boxes(found, height, fill)

    def _rules(self, canvas: Canvas, left: float, top: float) -> None:
        width, height = self.cell
        right, bottom = left + width * len(self.columns), top + height * len(self.rows)
        fine = [(left + p * width, top, left + p * width, bottom) for p in range(0, len(self.columns), self.step)]
        fine += [(left, top + p * height, right, top + p * height) for p in range(len(self.rows))]
        canvas.lines(fine, PAPER, 1)
        dark = [
            (left + p * width, top, left + p * width, bottom)
            for p, index in enumerate(self.columns)
            if index % (RULE * self.step) == 0 and p
        ]
        dark += [
            (left, top + p * height, right, top + p * height)
            for p, index in enumerate(self.rows)
            if index % RULE == 0 and p
        ]
        canvas.lines(
            [
                *dark,
                (left, top, right, top),
                (left, bottom, right, bottom),
                (left, top, left, bottom),
                (right, top, right, bottom),
            ],
            FAINT,
            1,
        )

    def _texts(self, canvas: Canvas, left: float, top: float) -> None:
        width, height = self.cell
        canvas.open_texts(self.font, mono=True)
        for label in self.labels:
            x = left + (label.column + 0.5 * label.span) * width
            # Lines 1.15 font sizes apart, the block in the middle of the cell; 0.36 lowers a baseline to centre digits.
            first = top + (label.row + 0.5) * height - (len(label.lines) - 1) * 0.575 * self.font + 0.36 * self.font
            for place, line in enumerate(label.lines):
                canvas.put(x, first + place * 1.15 * self.font, line)
        canvas.close()

    def _frames(self, canvas: Canvas, left: float, top: float) -> None:
        width, height = self.cell
        for row in sorted({row for row, _ in self.framed}):
            inside = [(row, column) in self.framed for column in range(len(self.columns))]
            for start, stop in runs(inside):
                if inside[start]:
                    canvas.frame(left + start * width, top + row * height, (stop - start) * width, height, 2)

    def _listing_columns(self) -> int:
        if self.listing is None:
            return 0
        fitting = max(8, int((self.cell[1] * len(self.rows) - 2 * LIST_SIZE) / (LIST_SIZE * 1.4)))
        return -(-len(self.listing[1]) // fitting)

    def _listing_width(self) -> float:
        if self.listing is None:
            return 0.0
        heading, lines = self.listing
        column = max(width_of(line, LIST_SIZE) for line in lines) + MARGIN
        return MARGIN + max(self._listing_columns() * column, width_of(heading, LIST_SIZE))

    def _listing(self, canvas: Canvas, x: float, top: float, grid_height: float) -> float:
        """Draws the list at the right; returns where it ends."""
        if self.listing is None:
            return top
        heading, lines = self.listing
        canvas.text(x, top + LIST_SIZE, heading, LIST_SIZE, bold=True)
        pitch, column = LIST_SIZE * 1.4, max(width_of(line, LIST_SIZE) for line in lines) + MARGIN
        each = -(-len(lines) // self._listing_columns())
        canvas.open_texts(LIST_SIZE, mono=True, anchor="start")
        for place, line in enumerate(lines):
            canvas.put(x + place // each * column, top + LIST_SIZE + (place % each + 1.3) * pitch, line)
        canvas.close()
        return top + LIST_SIZE + (each + 0.6) * pitch


def swatch_width(meaning: str) -> float:
    """Room for one entry of a legend, in pixels.

    >>> swatch_width("a") < swatch_width("ab")
    True
    """
    return SWATCH + 6 + width_of(meaning, LEGEND_SIZE) + 10


def runs(values: Sequence[object]) -> list[tuple[int, int]]:
    """Maximal runs of equal neighbours, as half-open ranges.

    >>> runs("aabccc")
    [(0, 2), (2, 3), (3, 6)]
    """
    edges = [i for i in range(1, len(values)) if values[i] != values[i - 1]]
    return list(zip([0, *edges], [*edges, len(values)], strict=True)) if values else []
