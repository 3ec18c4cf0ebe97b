"""The activity of a block's warps and engines. A line for each, waiting pale, work in colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from layoutgemm.errors import LayoutError
from layoutgemm.view.canvas import Canvas, width_of
from layoutgemm.view.palette import INK, hue, lighter
from layoutgemm.view.sheet import MARGIN, NOTE_SIZE, Note, header, legend

from ..arguments import as_int, checked, refusal, shown

WIDTH, HEIGHT, PITCH = 1000.0, 18.0, 24.0
LANE, MAX_TRACKS = 8.0, 16  # pixels that one more thing at once takes; as many as are told apart
# Kind of span -> (colour, letter, meaning). Letters stand in the spans that have room, so that colour is never alone.
KINDS = {
    "load": (hue(0), "L", "copied to shared memory"),
    "store": (hue(3), "S", "to global memory"),
    "mma": (hue(1), "M", "matrix product"),
    "copy": (lighter(hue(0), 0.5), "C", "to tensor memory"),
    "read": (hue(4), "r", "from memory"),
    "write": (hue(6), "w", "to shared memory"),
    "accumulators": (hue(2), "a", "from tensor memory, or to it"),
    "arrive": (hue(5), "^", "at a barrier"),
    "wait": ("idle", ".", "for a barrier, a copy or a product"),
    "atomic": (lighter(hue(3), 0.5), "x", "on memory"),
    "setup": (lighter(hue(2), 0.5), "i", "of barriers, of tensor memory"),
}
MAX_SPANS = 4000


class Strip(NamedTuple):
    """A span as it is drawn: kind, ticks [begin, end), what hovering says."""

    kind: str
    begin: int
    end: int
    told: str


@checked()
def timeline_svg(
    timeline: Mapping[str, object], *, block: Sequence[int] | None = None, rows: int = 48, title: str = "timeline"
) -> str:
    """Draws a timeline. A row for each warp and each engine of a block, under its role.

    timeline: as the emulator gives it (`Timeline.as_json()`): "rows" of {"cta", "warp", "engine", "role", "spans"}, a
    span being [kind, begin, end, detail, line, times] in ticks; "unit" names a tick. `block`: its coordinate; None: the
    first that did anything. `rows`: the most that are drawn. Where spans are very many, short ones of one place are
    merged.

    Raises LayoutError for a timeline without spans, and for a block that is not there.

    >>> row = {"cta": [0, 0, 0], "warp": 0, "role": "loads", "spans": [["load", 0, 4, "cp.async.bulk", 7, 1]]}
    >>> svg = timeline_svg({"unit": "instructions of a warp", "rows": [row]})
    >>> svg.count('data-kind="load"'), "load, 0 to 4: cp.async.bulk, line 7" in svg
    (1, True)
    """
    chosen, where, left_out = rows_of(timeline, block, rows)
    end = max(span[2] for row in chosen for span in row["spans"])
    names = [name_of(row) for row in chosen]
    gutter = max(width_of(name, NOTE_SIZE) for name in names) * 0.9 + 12
    inner = max(gutter + WIDTH, width_of(title, 16) * 1.15)
    unit = timeline.get("unit", "ticks")
    notes = [
        Note(f"Block {tuple(where)}; to the right: {unit}, a logical clock: what comes first, not how long it takes.")
    ]
    if left_out:
        notes.append(Note(f"{left_out} more rows of this block are not drawn."))
    if timeline.get("cut"):
        notes.append(Note(f"{timeline['cut']} instructions came after the last span that was kept."))
    used = {span[0] for row in chosen for span in row["spans"]}
    canvas = Canvas()
    y = header(canvas, title, notes, inner)
    shown = tuple((fill, f"{letter} {kind}: {what}") for kind, (fill, letter, what) in KINDS.items() if kind in used)
    y = legend(canvas, shown, y, inner) + 34
    left, top = MARGIN + gutter, y
    budget = max(MAX_SPANS // len(chosen), 100)
    tracks = [tracks_of(strips(row["spans"], end, budget)) for row in chosen]
    bottom = top + sum(PITCH + (len(found) - 1) * LANE for found in tracks)
    step = tick_of(end)
    ticks = [(left + at / end * WIDTH, str(at)) for at in range(0, end + 1, step)]
    canvas.axis(ticks, top, bottom - top + 4, 0.5)
    for name, found in zip(names, tracks, strict=True):
        height = HEIGHT + (len(found) - 1) * LANE
        canvas.text(left - 10, y + height / 2 + 4, name, NOTE_SIZE, anchor="end")
        canvas.lines([(left, y + height / 2, left + WIDTH, y + height / 2)], "line", 0.5)
        # Several at once are stacked.
        part = height / len(found)
        for place, track in enumerate(found):
            for strip in track:
                draw_strip(canvas, strip, left, y + place * part, part - (1 if len(found) > 1 else 0), end)
        y += height + PITCH - HEIGHT
    return canvas.render(inner + 2 * MARGIN + 10, y + MARGIN, title, [note.text for note in notes])


def rows_of(
    timeline: Mapping[str, Any], block: Sequence[int] | None, most: int
) -> tuple[list[Mapping[str, Any]], list[int], int]:
    """The rows to draw by role, their block, and the count of rows left out."""
    if not isinstance(timeline, Mapping) or not isinstance(timeline.get("rows"), (list, tuple)):
        raise LayoutError(refusal(timeline, "a timeline", 'a dict with "rows", as Timeline.as_json() gives'))
    as_int(most, "rows of a timeline", least=1)
    busy = [row for row in timeline["rows"] if row["spans"]]
    if not busy:
        raise LayoutError("a timeline without spans: nothing was recorded (emulate with timeline=True)")
    where = list(busy[0]["cta"] if block is None else block)
    found = [row for row in busy if list(row["cta"]) == where]
    if not found:
        known = sorted({tuple(row["cta"]) for row in busy})
        raise LayoutError(f"no block {shown(tuple(where))} in the timeline, it has {', '.join(map(str, known[:4]))}"
                          + (", ..." if len(known) > 4 else ""))  # fmt: skip
    return found[:most], where, max(len(found) - most, 0)


def name_of(row: Mapping[str, object]) -> str:
    """The label of a row."""
    return f"warp {row['warp']}: {row['role']}" if row["warp"] is not None else str(row["engine"])


def strips(spans: Sequence[Sequence[Any]], end: int, budget: int) -> list[Strip]:
    """The spans of a row, about `budget` at most. Where there are more, short ones of one place become one.

    It has their most frequent kind; waiting only if there is nothing else.
    """
    cell = end / budget if len(spans) > budget else 0.0
    out: list[Strip] = []
    short: dict[int, list[Sequence[Any]]] = {}
    for span in spans:
        kind, begin, stop, detail, line, times = span
        if stop - begin < cell:
            short.setdefault(int(begin / cell), []).append(span)
            continue
        many = f", {times} times" if times > 1 else ""
        out.append(Strip(kind, begin, stop, f"{kind}, {begin} to {stop}: {detail}, line {line}{many}"))
    for found in short.values():
        kinds = Counter(span[0] for span in found)
        kind = max(kinds, key=lambda name: (name != "wait", kinds[name]))
        begin, stop = found[0][1], max(span[2] for span in found)
        told = ", ".join(f"{count} x {name}" for name, count in kinds.most_common())
        out.append(Strip(kind, begin, stop, f"{begin} to {stop}: {told}"))
    return sorted(out, key=lambda strip: strip.begin)


def tracks_of(found: Sequence[Strip]) -> list[list[Strip]]:
    """The strips of a row on as many tracks as keep them apart.

    There are at most `MAX_TRACKS`.

    >>> spans = [Strip("load", 0, 9, ""), Strip("load", 3, 12, ""), Strip("load", 9, 15, "")]
    >>> [[strip.begin for strip in track] for track in tracks_of(spans)]
    [[0, 9], [3]]
    """
    tracks: list[list[Strip]] = []
    for strip in found:
        track = next((t for t in tracks if t[-1].end <= strip.begin), None)
        if track is None and len(tracks) < MAX_TRACKS:
            tracks.append(track := [])
        (track if track is not None else min(tracks, key=lambda t: t[-1].end)).append(strip)
    return tracks


def draw_strip(canvas: Canvas, strip: Strip, left: float, y: float, height: float, end: int) -> None:
    """One rectangle, with its letter where that fits; waiting is lower than work."""
    fill, letter, _ = KINDS.get(strip.kind, ("idle", "", ""))
    x, width = left + strip.begin / end * WIDTH, max((strip.end - strip.begin) / end * WIDTH, 1.5)
    low = height / 4 if strip.kind == "wait" else 0.0
    canvas.box(x, y + low, width, height - 2 * low, fill, strip.told, data=f'data-kind="{strip.kind}"')
    if letter and width > 12 and height >= 10 and not low:
        size = min(height - 1, 11)
        canvas.text(x + width / 2, y + height / 2 + 0.36 * size, letter, size, fill=INK, anchor="middle", mono=True)


def tick_of(end: int) -> int:
    """Ticks between two numbers of the axis. 1, 2 or 5 times a power of ten, ten numbers at most.

    >>> tick_of(7), tick_of(1234)
    (1, 200)
    """
    power = 1
    while True:
        for unit in (power, 2 * power, 5 * power):
            if end / unit <= 10:
                return unit
        power *= 10
