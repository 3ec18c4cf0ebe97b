"""A picture, ready to draw. Header, legend, one or several grids side by side, a list at the side."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from layoutgemm.view.canvas import Canvas, width_of
from layoutgemm.view.panel import TITLES, Panel

MARGIN = 16.0
TITLE_SIZE, NOTE_SIZE, LEGEND_SIZE, LIST_SIZE = 16.0, 12.0, 12.0, 11.0
MIN_WIDTH, LEGEND_WIDTH = 560.0, 900.0  # a header breaks its lines no earlier, a legend goes on one line up to there
SWATCH = 14.0
APART = 28.0  # between two grids


@dataclass(frozen=True, slots=True)
class Note:
    """A line of the header; `mono` for notation, which is never broken."""

    text: str
    mono: bool = False


Legend = tuple[tuple[str, str], ...]  # (fill, meaning)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """All that one picture of grids shows. Sizes are in pixels of the unscaled picture.

    panels   rows of grids, None for a place that stays free: grids of a row stand side by side, those of a column have
             their first cells under one another, so that coordinates that they share line up
    listing  heading and lines of the list at the right
    """

    title: str
    notes: tuple[Note, ...]
    panels: tuple[tuple[Panel | None, ...], ...]
    legend: Legend = ()
    listing: tuple[str, tuple[str, ...]] | None = None

    def render(self) -> str:
        """The SVG document."""
        (lefts, grids_width), (tops, grids_height) = self._columns(), self._rows()
        first = self.panels[0][0]
        beside = grids_height - (first.head if first else 0)  # pixels that a list has, beside the grids
        inner = max(
            grids_width + self._listing_width(beside),
            MIN_WIDTH,
            width_of(self.title, TITLE_SIZE) * 1.15,
            min(sum(swatch_width(meaning) for _, meaning in self.legend), LEGEND_WIDTH),
            *(width_of(note.text, NOTE_SIZE) for note in self.notes if note.mono),
        )
        canvas = Canvas()
        y = header(canvas, self.title, self.notes, inner)
        y = legend(canvas, self.legend, y, inner)
        y = (y + 12) // 1
        total = sum(panel.cells for row in self.panels for panel in row if panel)
        run = next(cells for most, cells in TITLES if total <= most)
        for row, top in zip(self.panels, tops, strict=True):
            for panel, left in zip(row, lefts, strict=True):
                if panel is not None:
                    panel.draw(canvas, MARGIN + left, y + top, run)
        listed = self._listing(canvas, MARGIN + grids_width + MARGIN, y + grids_height - beside, beside)
        bottom = max(y + grids_height, listed)
        return canvas.render(inner + 2 * MARGIN, bottom + MARGIN, self.title, [note.text for note in self.notes])

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height of the grids together, in pixels."""
        return self._columns()[1], self._rows()[1]

    def _columns(self) -> tuple[list[float], float]:
        return self._spread([
            (max((p.gutter for p in column if p), default=0.0), max((p.room for p in column if p), default=0.0))
            for column in zip(*self.panels, strict=True)
        ])  # fmt: skip

    def _rows(self) -> tuple[list[float], float]:
        return self._spread([
            (max((p.head for p in row if p), default=0.0), max((p.height for p in row if p), default=0.0))
            for row in self.panels
        ])  # fmt: skip

    @staticmethod
    def _spread(parts: Sequence[tuple[float, float]]) -> tuple[list[float], float]:
        """(room before, extent) of each -> the starts behind the rooms, and the end of all."""
        starts, at = [], 0.0
        for before, extent in parts:
            starts.append(at + before)
            at += before + extent + APART
        return starts, at - APART

    def _listing_columns(self, height: float) -> int:
        if self.listing is None:
            return 0
        fitting = max(8, int((height - 2 * LIST_SIZE) / (LIST_SIZE * 1.4)))
        return -(-len(self.listing[1]) // fitting)

    def _listing_width(self, height: float) -> float:
        if self.listing is None:
            return 0.0
        heading, lines = self.listing
        column = max(width_of(line, LIST_SIZE) for line in lines) + MARGIN
        return MARGIN + max(self._listing_columns(height) * column, width_of(heading, LIST_SIZE))

    def _listing(self, canvas: Canvas, x: float, top: float, height: float) -> float:
        """Draws the list at the right; returns where it ends."""
        if self.listing is None:
            return top
        heading, lines = self.listing
        canvas.text(x, top + LIST_SIZE, heading, LIST_SIZE, bold=True)
        pitch, column = LIST_SIZE * 1.4, max(width_of(line, LIST_SIZE) for line in lines) + MARGIN
        each = -(-len(lines) // self._listing_columns(height))
        canvas.open_texts(LIST_SIZE, fill="ink", mono=True, anchor="start")
        for place, line in enumerate(lines):
            canvas.put(x + place // each * column, top + LIST_SIZE + (place % each + 1.3) * pitch, line)
        canvas.close()
        return top + LIST_SIZE + (each + 0.6) * pitch


def header(canvas: Canvas, title: str, notes: Sequence[Note], inner: float) -> float:
    """Draws title and notes in that width; returns where they end."""
    y = MARGIN + TITLE_SIZE
    canvas.text(MARGIN, y, title, TITLE_SIZE, bold=True)
    for note in notes:
        # Sans text is about five sixths as wide as the monospaced bound.
        fitting = int(inner / (width_of("x", NOTE_SIZE) * 0.85))
        for line in [note.text] if note.mono else textwrap.wrap(note.text, fitting):
            y += NOTE_SIZE * 1.5
            canvas.text(MARGIN, y, line, NOTE_SIZE, mono=note.mono, fill="faint")
    return y


def legend(canvas: Canvas, entries: Legend, y: float, inner: float) -> float:
    """Draws the meanings of colours under y, in that width; returns where they end."""
    if not entries:
        return y
    x, y = MARGIN, y + NOTE_SIZE + 4
    widths = [swatch_width(meaning) for _, meaning in entries]
    if sum(widths) > inner + 1:  # several lines stand in columns
        widths = [max(widths)] * len(widths)
    for (fill, meaning), width in zip(entries, widths, strict=True):
        if x > MARGIN and x + width > MARGIN + inner + 1:
            x, y = MARGIN, y + SWATCH + 6
        canvas.rect(x, y, SWATCH, SWATCH, fill)
        canvas.text(x + SWATCH + 6, y + SWATCH - 3, meaning, LEGEND_SIZE)
        x += width
    return y + SWATCH


def swatch_width(meaning: str) -> float:
    """Room for one entry of a legend, in pixels.

    >>> swatch_width("a") < swatch_width("ab")
    True
    """
    return SWATCH + 6 + width_of(meaning, LEGEND_SIZE) + 10
