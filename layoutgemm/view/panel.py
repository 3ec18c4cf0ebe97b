"""One grid of a picture. Axes, coloured cells with their texts, frames, outlined zones, and what hovering tells."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, overload

from layoutgemm.regex import regex
from layoutgemm.view.canvas import Canvas, escape, number, width_of
from layoutgemm.view.palette import FAINT, INK, PAPER, paint

AXIS_SIZE, CAPTION_SIZE = 11.0, 13.0
# Every eighth line of the grid is dark: tensor-core fragments and shared-memory atoms are made of groups of eight.
RULE = 8
# The most cells of a picture with texts; above that colours, axes and hovering carry it, and one
# title stands for several neighbouring cells: so a picture stays under 1 MB.
MAX_TEXTS = 4096
TITLES = ((4096, 1), (16384, 4), (1 << 15, 8), (1 << 62, 16))
NEXT = "|"  # between the texts of a grid that is painted; none of them has it
_TEXT = regex(r'<text x="([^"]*)" y="([^"]*)">([^<]*)</text>')
_TEXTS = regex(r'(?:<text x="[^"]*" y="[^"]*">[^<|]*</text>\n)+')
MAX_BORDERS = 6000  # pieces of the outlines of all zones; where zones interleave more finely their colours tell them

_PAINTED: ContextVar[bool] = ContextVar("_PAINTED", default=False)


@contextmanager
def for_painting() -> Iterator[None]:
    """Grids drawn inside are for a page that paints them. All texts of a grid in one element, none under the pointer.

    >>> from layoutgemm.layouts import Layout
    >>> with for_painting():
    ...     drawn = Layout((2, 2)).svg()
    >>> drawn.count("<title"), drawn[drawn.index("<cells"):drawn.index("</cells>")].partition(">")[2].split(NEXT)
    (1, ['0', '2', '1', '3'])
    """
    token = _PAINTED.set(True)
    try:
        yield
    finally:
        _PAINTED.reset(token)


class Label(NamedTuple):
    """Text lines in the middle of `span` cells of one row, from (row, column)."""

    row: int
    column: int
    span: int
    lines: tuple[str, ...]


class CellTexts(Sequence[Label]):
    """Lines of text in each cell of a grid, as its labels. They are made when they are asked for.

    >>> CellTexts([[("0",), ("1",)], [("2",), ("3",)]])[2], len(CellTexts([[("0",)]]))
    (Label(row=1, column=0, span=1, lines=('2',)), 1)
    """

    def __init__(self, rows: Sequence[Sequence[tuple[str, ...]]]) -> None:
        self.rows, self._across = rows, len(rows[0])
        self.most = max([max(map(len, row)) for row in rows])  # lines in a cell
        self.least = min([min(map(len, row)) for row in rows])

    def __len__(self) -> int:
        return len(self.rows) * self._across

    @overload
    def __getitem__(self, at: int) -> Label: ...

    @overload
    def __getitem__(self, at: slice) -> list[Label]: ...

    def __getitem__(self, at: int | slice) -> Label | list[Label]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        row, column = divmod(range(len(self))[at], self._across)
        return Label(row, column, 1, self.rows[row][column])

    def longest(self) -> int:
        """The characters of the longest line."""
        return max([max(map(len, chain.from_iterable(row))) for row in self.rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A grid. Sizes are in pixels of the unscaled picture; places are (row, column) counted from 0.

    axes     what counts downwards, what counts across
    fills    colours or roles of the palette, a row after the other
    framed   places to surround
    zones    place -> number of the zone that it is in, -1 for none: each is outlined; zone_name: what they are
    tells    place -> what hovering says of the cell, behind its coordinate; None: hovering says nothing
    unit     what `tells` counts, before the first of them
    says     the same in words, for a cell that has a title of its own; None: as `tells`
    marked   places to surround by dots
    path     places joined by a line in their order
    caption  above the grid
    names    texts of all rows, of all columns, that stand for their numbers; none: the numbers
    rules    rows, and columns, between two dark lines
    """

    axes: tuple[str, str]
    rows: range
    columns: range
    fills: Sequence[Sequence[str]]
    cell: tuple[float, float]  # width, height
    labels: Sequence[Label] = ()
    font: float = 10.0
    step: int = 1  # columns between two fine vertical lines
    framed: frozenset[tuple[int, int]] = frozenset()
    zones: Sequence[Sequence[int]] | None = None
    zone_name: str = "warp"
    tells: Callable[[int, int], str] | None = None
    unit: str = ""
    says: Callable[[int, int], str] | None = None
    marked: frozenset[tuple[int, int]] = frozenset()
    path: Sequence[tuple[int, int]] | None = None
    caption: str = ""
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    rules: tuple[int, int] = (RULE, RULE)

    def row_name(self, place: int) -> str:
        """The text at the row of that place."""
        return self.names[0][place] if self.names[0] else str(self.rows[place])

    def column_name(self, place: int) -> str:
        """The text above the column of that place."""
        return self.names[1][place] if self.names[1] else str(self.columns[place])

    @property
    def cells(self) -> int:
        """The number of cells."""
        return len(self.rows) * len(self.columns)

    @property
    def gutter(self) -> float:
        """Room at the left for the row numbers and the name of their axis."""
        named = self.names[0] or (str(self.rows[-1]),)
        return width_of(max(*named, self.axes[0] + " \u2193", key=len), AXIS_SIZE) // 1 + 8

    @property
    def head(self) -> float:
        """Room above for the column numbers, the name of their axis and the caption."""
        return (2.4 * AXIS_SIZE + (1.7 * CAPTION_SIZE if self.caption else 0)) // 1

    @property
    def width(self) -> float:
        """The grid's width, without the gutter."""
        return self.cell[0] * len(self.columns)

    @property
    def room(self) -> float:
        """The width of the grid or of its caption, whichever is more."""
        return max(self.width, width_of(self.caption, CAPTION_SIZE) * 1.05)

    @property
    def height(self) -> float:
        """The grid's height, without the head."""
        return self.cell[1] * len(self.rows)

    @property
    def dense(self) -> bool:
        """True if cells are too small for lines between them."""
        return min(self.cell[0] * self.step, self.cell[1]) < 7

    @property
    def sparse(self) -> bool:
        """True if some cells are left as the page is, dark in a dark one."""
        return any("track" in row for row in self.fills)

    def draw(self, canvas: Canvas, left: float, top: float, run: int = 1) -> None:
        """Draws it with the corner of its first cell at (left, top). `run` cells share a title."""
        if self.caption:
            canvas.text(left, top - 3.1 * AXIS_SIZE, self.caption, CAPTION_SIZE, bold=True)
        if _PAINTED.get() and not self.sparse:
            self._fills(canvas, left, top)
            shared = _surroundings(self.axes, self.rows, self.columns, self.cell, self.step, self.names, self.rules)
            canvas.parts += [f'<g transform="translate({number(left)} {number(top)})">', shared, "</g>"]
        else:
            self._axes(canvas, left, top)
            self._fills(canvas, left, top)
            self._rules(canvas, left, top)
        self._path(canvas, left, top)
        self._texts(canvas, left, top)
        self._zones(canvas, left, top)
        self._frames(canvas, left, top)
        self._titles(canvas, left, top, run)

    def surround(self, canvas: Canvas) -> None:
        """Draws its axes and rules alone, with the corner of its first cell at (0, 0)."""
        self._axes(canvas, 0, 0)
        self._rules(canvas, 0, 0)

    def _axes(self, canvas: Canvas, left: float, top: float) -> None:
        width, height = self.cell
        if self.axes[0]:
            canvas.text(left - 5, top - 5, self.axes[0] + " \u2193", AXIS_SIZE, fill="faint", anchor="end")
        canvas.text(left + 2, top - 8 - AXIS_SIZE, self.axes[1] + " \u2192", AXIS_SIZE, fill="faint")
        # As many column numbers as fit, at multiples of a power of two; rows likewise.
        longest = max(self.names[1] or (str(self.columns[-1]),), key=len)
        need, every = width_of(longest, AXIS_SIZE) + 3, self.step
        while every * width < need:
            every *= 2
        canvas.open_texts(AXIS_SIZE, fill="faint")
        for place, index in enumerate(self.columns):
            if (index if self.step == 1 else place) % every == 0:
                canvas.put(left + (place + 0.5 * self.step) * width, top - 5, self.column_name(place))
        canvas.close()
        every = RULE if self.dense else 1
        while every * height < AXIS_SIZE + 1:
            every *= 2
        canvas.open_texts(AXIS_SIZE, fill="faint", anchor="end")
        for place, index in enumerate(self.rows):
            if index % every == 0 or len(self.rows) == 1:
                canvas.put(left - 5, top + (place + 0.5) * height + 0.36 * AXIS_SIZE, self.row_name(place))
        canvas.close()

    def _fills(self, canvas: Canvas, left: float, top: float) -> None:
        """One path a colour, of runs of equal cells: rectangles would double the size of a 64 x 64 picture."""
        width, height = self.cell
        if self.dense:
            self._strokes(canvas, left, top)
            return
        lefts = [number(left + place * width) for place in range(len(self.columns))]
        high, tails, paths = number(height), dict[int, str](), dict[str, list[str]]()
        for row, fills in enumerate(self.fills):
            y = number(top + row * height)
            for start, stop in runs(fills):
                fill, count = fills[start], stop - start
                if count not in tails:
                    wide = count * width
                    tails[count] = f"h{number(wide)}v{high}h{number(-wide)}z"
                if fill not in paths:
                    paths[fill] = []
                paths[fill].append(f"M{lefts[start]} {y}{tails[count]}")
        for fill, path in paths.items():
            canvas.shape("".join(path), paint(fill))

    def _strokes(self, canvas: Canvas, left: float, top: float) -> None:
        """The same for many small cells: a run is a stroke as wide as a cell is high, in units of cells."""
        width, height = self.cell
        paths: dict[str, list[str]] = {}
        for row, fills in enumerate(self.fills):
            last: dict[str, int] = {}
            for start, stop in runs(fills):
                path = paths.setdefault(fills[start], [])
                at = last.get(fills[start])
                path.append(f"M{start} {row}h{stop - start}" if at is None else f"m{start - at} 0h{stop - start}")
                last[fills[start]] = stop
        canvas.open(f'{moved(left, top + height / 2, width, height)} fill="none" shape-rendering="crispEdges"')
        for fill, path in paths.items():
            canvas.shape("".join(path), paint(fill, "stroke"))
        canvas.close()

    def _rules(self, canvas: Canvas, left: float, top: float) -> None:
        width, height = self.cell
        right, bottom = left + self.width, top + self.height
        if not self.dense:
            fine = [(left + p * width, top, left + p * width, bottom) for p in range(0, len(self.columns), self.step)]
            fine += [(left, top + p * height, right, top + p * height) for p in range(len(self.rows))]
            # Between pastel fields white in dark pages, too; between dark ones as the page is.
            canvas.lines(fine, "paper" if self.sparse else PAPER, 1)
        down, across = [-(-2 * RULE // n) * n if self.dense else n for n in self.rules]
        dark = [
            (left + p * width, top, left + p * width, bottom)
            for p, index in enumerate(self.columns)
            if index % (across * self.step) == 0 and p
        ]
        dark += [
            (left, top + p * height, right, top + p * height)
            for p, index in enumerate(self.rows)
            if index % down == 0 and p
        ]
        border = [(left, top, right, top), (left, bottom, right, bottom)]
        border += [(left, top, left, bottom), (right, top, right, bottom)]
        canvas.lines(dark, FAINT, 0.5 if self.dense else 1)  # thin ones do not hide small cells
        canvas.lines(border, "line", 1)

    def _texts(self, canvas: Canvas, left: float, top: float) -> None:
        if not self.labels:
            return
        canvas.open_texts(self.font, mono=True)
        xs, found, texts = self._placed(left, top)
        if _PAINTED.get():
            canvas.parts.append(f'<cells x="{" ".join(xs)}" y="{" ".join(found)}">{escape(NEXT.join(texts))}</cells>')
        else:
            canvas.parts += [
                f'<text x="{x}" y="{y}">{escape(text)}</text>' for x, y, text in zip(xs, found, texts, strict=True)
            ]
        canvas.close()

    def _placed(self, left: float, top: float) -> tuple[list[str], list[str], list[str]]:
        """The x, the baseline and the text of each line."""
        width = self.cell[0]
        if isinstance(self.labels, CellTexts) and self.labels.least == self.labels.most:
            most, count = self.labels.most, len(self.columns)
            across = [number(left + (column + 0.5) * width) for column in range(count) for _ in range(most)]
            down = [list(map(number, self._baselines(top, row, most))) * count for row in range(len(self.rows))]
            each = chain.from_iterable(self.labels.rows)
            return across * len(down), list(chain.from_iterable(down)), list(chain.from_iterable(each))
        tops, lefts = dict[tuple[int, int], list[str]](), dict[tuple[int, int], str]()
        xs, found, texts = list[str](), list[str](), list[str]()
        for row, column, span, lines in self.labels:
            x = lefts.get((column, span))
            if x is None:
                x = lefts[column, span] = number(left + (column + 0.5 * span) * width)
            ys = tops.get((row, len(lines)))
            if ys is None:
                ys = tops[row, len(lines)] = [number(y) for y in self._baselines(top, row, len(lines))]
            for y, line in zip(ys, lines):
                xs.append(x)
                found.append(y)
                texts.append(line)
        return xs, found, texts

    def _baselines(self, top: float, row: int, count: int) -> list[float]:
        """The lines of a text: 1.15 font sizes apart, the block in the middle of the cell.

        A baseline is lowered by 0.36, which centres digits.
        """
        first = top + (row + 0.5) * self.cell[1] - (count - 1) * 0.575 * self.font + 0.36 * self.font
        return [first + place * 1.15 * self.font for place in range(count)]

    def _zones(self, canvas: Canvas, left: float, top: float) -> None:
        if self.zones is None:
            return
        width, height = self.cell
        found = borders(self.zones)
        if sum(map(len, found.values())) > MAX_BORDERS:
            return
        for zone, segments in sorted(found.items()):
            path = "".join(
                f"M{number(left + x * width)} {number(top + y * height)}"
                + (f"h{number(length * width)}" if across else f"v{number(length * height)}")
                for x, y, length, across in segments
            )
            name = f"{self.zone_name} {zone}"
            canvas.shape(path, f'{paint("halo", "stroke")} stroke-width="4" fill="none"')
            canvas.shape(path, f'data-{self.zone_name}="{zone}" stroke="{INK}" stroke-width="2.5" fill="none"', name)
            down, across = [y for _, y, _, _ in segments], [x for x, _, _, _ in segments]
            r0, r1, c0, c1 = min(down), max(down), min(across), max(across)
            size = 13.0
            solid = len(segments) == 4  # a rectangle without holes
            fits = (c1 - c0) * width > width_of(name, size) and (r1 - r0) * height > 1.5 * size
            if not self.labels and solid and fits:
                row, column = (r0 + r1) // 2, (c0 + c1) // 2
                if row % RULE == 0 and r1 - r0 > RULE:
                    row -= RULE // 2  # beside a dark line, in cells of one colour
                x, y, wide = left + (c0 + c1) / 2 * width, top + row * height, width_of(name, size)
                # The cells' colour behind the text, so that no line runs through it.
                canvas.boxes([(x - wide / 2, y - 0.65 * size, wide)], 1.3 * size, self.fills[row][column])
                canvas.text(x, y + 0.36 * size, name, size, fill=INK, anchor="middle", bold=True)

    def _path(self, canvas: Canvas, left: float, top: float) -> None:
        """The line, which texts interrupt. The first place has a ring, or a dot.

        In units of half cells, so that numbers are whole; steps along a row or a column are written shorter.
        """
        if self.path is None:
            return
        width, height = self.cell
        row, column = self.path[0]
        parts = [f"M{2 * column + 1} {2 * row + 1}"]
        for before, after in zip(self.path, self.path[1:]):
            down, across = after[0] - before[0], after[1] - before[1]
            parts.append(
                f"v{2 * down}" if not across else f"h{2 * across}" if not down else f"l{2 * across} {2 * down}"
            )
        thick = min(self.cell) / (16 if self.labels else 12)
        stroke = number(max(thick, 0.6) * 2 / max(self.cell))
        canvas.open(
            f'transform="translate({number(left)} {number(top)}) scale({width / 2:g} {height / 2:g})" fill="none"'
        )
        opacity = "0.6" if self.labels else "0.8"
        data = (
            f'stroke="{INK}" stroke-width="{stroke}" stroke-opacity="{opacity}" stroke-linejoin="round" data-order=""'
        )
        canvas.shape("".join(parts), data)
        canvas.close()
        x, y = left + (column + 0.5) * width, top + (row + 0.5) * height
        if self.labels:
            canvas.circle(x, y, 0.42 * min(self.cell), self.fills[row][column], INK, 1.5)
            self._plates(canvas, left, top)
        else:
            canvas.circle(x, y, max(min(self.cell) / 6, 4.0), INK, PAPER, 1)

    def _plates(self, canvas: Canvas, left: float, top: float) -> None:
        """The cell's colour behind each text, so that no line runs through its digits."""
        width, height = self.cell
        tall = 1.15 * self.font
        boxes: dict[tuple[float, str], list[tuple[float, float, float]]] = {}
        for label in self.labels:
            high, wide = tall * len(label.lines), max(width_of(line, self.font) for line in label.lines) + 1
            x, y = left + (label.column + 0.5 * label.span) * width, top + (label.row + 0.5) * height
            found = boxes.setdefault((high, self.fills[label.row][label.column]), [])
            found.append((x - wide / 2, y - high / 2, wide))
        for (high, fill), corners in boxes.items():
            canvas.boxes(corners, high, fill)

    def _frames(self, canvas: Canvas, left: float, top: float) -> None:
        width, height = self.cell
        within = 1.0 if self.sparse else 0.0  # ink is seen on the cell's colour, not on a dark neighbour
        found = [
            (left + start * width + within, top + row * height + within, (stop - start) * width - 2 * within, dots)
            for places, dots in ((self.framed, ""), (self.marked, "2 3"))
            for row, start, stop in in_rows(places, len(self.columns))
        ]
        high = height - 2 * within
        if halos := "".join(
            f"M{number(x)} {number(y)}h{number(w)}v{number(high)}h{number(-w)}z" for x, y, w, _ in found
        ):
            canvas.shape(halos, f'{paint("halo", "stroke")} stroke-width="4" fill="none"')
        for x, y, wide, dots in found:
            canvas.frame(x, y, wide, high, 2, dots)

    def _titles(self, canvas: Canvas, left: float, top: float, run: int) -> None:
        """Invisible strokes over the cells, each with what it tells: hovering shows nothing else without a script."""
        if self.tells is None or _PAINTED.get():
            return
        width, height = self.cell
        alone, parts = run == 1 and self.says is not None, canvas.parts
        tells = self.says if alone and self.says is not None else self.tells
        unit = "" if alone or not self.unit else self.unit + " "
        canvas.open(f'{moved(left, top + height / 2, width, height)} fill="none" pointer-events="stroke"')
        for r in range(len(self.rows)):
            head = (f"{self.axes[0]} {self.row_name(r)}, " if self.axes[0] else "") + f"{self.axes[1]} "
            for c in range(0, len(self.columns), run):
                end = min(c + run, len(self.columns))
                place = self.column_name(c) + (f" to {self.column_name(end - 1)}" if end > c + 1 else "")
                said = escape(" | ".join([tells(r, k) for k in range(c, end)]))
                parts.append(f'<path d="M{c} {r}h{end - c}"><title>{head}{place}: {unit}{said}</title></path>')
        canvas.close()


@lru_cache(256)
def _surroundings(
    axes: tuple[str, str], rows: range, columns: range, cell: tuple[float, float], step: int,
    names: tuple[tuple[str, ...], tuple[str, ...]], rules: tuple[int, int],
) -> str:  # fmt: skip
    """Axes and rules of all grids of one geometry: tiles have the same, and so have the pictures of the next edit."""
    canvas = Canvas()
    panel = Panel(axes=axes, rows=rows, columns=columns, fills=(), cell=cell, step=step, names=names, rules=rules)
    panel.surround(canvas)
    return _TEXTS.sub(_joined, "\n".join(canvas.parts))


def _joined(texts: re.Match[str]) -> str:
    xs, ys, lines = zip(*_TEXT.findall(texts[0]), strict=True)
    return f'<texts x="{" ".join(xs)}" y="{" ".join(ys)}">{NEXT.join(lines)}</texts>\n'


def moved(left: float, top: float, width: float, height: float) -> str:
    """The transform that puts units of cells at (left, top); strokes are a unit wide."""
    return (
        f'transform="translate({number(left)} {number(top)}) scale({number(width)} {number(height)})" stroke-width="1"'
    )


def in_rows(places: Collection[tuple[int, int]], columns: int) -> Iterator[tuple[int, int, int]]:
    """The runs (row, start, stop) of neighbouring places in each row.

    >>> list(in_rows({(1, 0), (1, 1), (0, 2)}, 3))
    [(0, 2, 3), (1, 0, 2)]
    """
    for row in sorted({row for row, _ in places}):
        inside = [(row, column) in places for column in range(columns)]
        yield from ((row, start, stop) for start, stop in runs(inside) if inside[start])


def borders(zones: Sequence[Sequence[int]]) -> dict[int, list[tuple[int, int, int, bool]]]:
    """The borders of each zone, as (column, row, length, whether it runs across). -1 is no zone.

    >>> borders([[0, 0], [0, 0]])
    {0: [(0, 0, 2, True), (0, 2, 2, True), (0, 0, 2, False), (2, 0, 2, False)]}
    """
    out: dict[int, list[tuple[int, int, int, bool]]] = {}
    for across, lines in ((True, zones), (False, list(zip(*zones, strict=True)))):
        none = [-1] * len(lines[0])
        for place, (before, after) in enumerate(zip([none, *lines], [*lines, none], strict=True)):
            if before == after:
                continue
            # A border lies where the neighbours differ; each of both zones has it, in pieces as long as it goes on.
            for own, other in ((before, after), (after, before)):
                edges = [zone if zone != beyond else -1 for zone, beyond in zip(own, other, strict=True)]
                for start, stop in runs(edges):
                    if edges[start] >= 0:
                        at = (start, place) if across else (place, start)
                        out.setdefault(edges[start], []).append((*at, stop - start, across))
    return out


def runs(values: Sequence[object]) -> list[tuple[int, int]]:
    """Maximal runs of equal neighbours, as half-open ranges.

    >>> runs("aabccc")
    [(0, 2), (2, 3), (3, 6)]
    """
    if values and values.count(values[0]) == len(values):
        return [(0, len(values))]
    edges = [i for i in range(1, len(values)) if values[i] != values[i - 1]]
    return list(zip([0, *edges], [*edges, len(values)], strict=True)) if values else []
