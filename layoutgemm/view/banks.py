"""Shared memory by banks. A tile, and a swizzle before and after with the lanes that conflict."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from layoutgemm.checks.smem.access_patterns import AccessPattern, matrix_access, thread_access
from layoutgemm.checks.smem.bank_conflicts import BankReport, Requests, bank_conflicts, lanes_of_phase
from layoutgemm.dtypes import dtype
from layoutgemm.errors import LayoutError
from layoutgemm.layouts import ComposedLayout, Layout, Swizzle
from layoutgemm.view.canvas import CHARACTER, width_of
from layoutgemm.view.grid import Drawable, Offset, offsets_of
from layoutgemm.view.palette import HUES, hue
from layoutgemm.view.panel import RULE, Label, Panel
from layoutgemm.view.sheet import Note, Sheet
from layoutgemm.view.svg import even, fitted, sizes, span_text

from ..arguments import checked
from ..atoms.smem.tile import CHUNK_BYTES
from ..checks.smem.bank_conflicts import BANK_BYTES, BANKS

LINE_BYTES = BANKS * BANK_BYTES
MAX_FIELD_CELLS = 8192  # more are coloured alone
SMALL = 10.0  # the height of a cell in which a lane's number can be read
BESIDE = 900  # pixels up to which a tile stands beside its swizzled self
LEGEND = tuple((hue(g), f"banks {4 * g}-{4 * g + 3}") for g in range(LINE_BYTES // CHUNK_BYTES))


@checked()
def swizzle_svg(
    layout: Drawable,
    bits: int = 16,
    *,
    swizzle: Callable[[int], int] | None = None,
    title: str | None = None,
    rows: range | None = None,
    columns: range | None = None,
) -> str:
    """Draws a shared-memory tile by banks: the 4-byte banks of every element.

    layout: (i, j) -> offset in elements of `bits` bits, for example a ComposedLayout whose swizzle counts elements.
    `swizzle` is applied to the byte offset after it, for a tile that keeps its byte swizzle separate. The contiguous
    mode runs across. Where 16 bytes stay together, they are one field that prints its banks and its bytes; otherwise a
    cell is an element. The colour is the place in the 128-byte line. The tile starts at a multiple of 1024 bytes.

    Raises LayoutError as `layout_svg` does, and for bits < 1.

    >>> from layoutgemm.layouts import ComposedLayout, Layout, Swizzle
    >>> tile = ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1)))
    >>> svg = swizzle_svg(tile, 16)
    >>> svg.count(">banks 28-31</text>"), "conflict-free" in svg
    (9, True)
    """
    if bits < 1:
        raise LayoutError(f"bits={bits}: an element has at least one bit")
    found = offsets_of(layout, rows, columns)
    name = str(layout) if swizzle is None else f"{swizzle} o {layout}"
    panel, grid = bank_panel(found_bytes(layout, bits, swizzle, rows, columns), bits, found.rows, found.columns)
    notes = [Note(field_note(panel))]
    if panel.step > 1 and len(grid) >= 8:
        notes.append(Note(phase_note(grid, panel.step, panel.axes)))
    heading = title or f"{name} by shared-memory banks"
    return Sheet(title=heading, notes=tuple(notes), legend=LEGEND, panels=((panel,),)).render()


def as_byte(cell: Offset, bits: int, layout: Drawable, swizzle: Callable[[int], int] | None) -> int:
    """Offset in elements -> byte offset, swizzled."""
    return as_bytes((cell,), bits, layout, swizzle)[0]


def as_bytes(cells: Sequence[Offset], bits: int, layout: Drawable, swizzle: Callable[[int], int] | None) -> list[int]:
    """Offsets in elements -> byte offsets, swizzled."""
    numbers = [cell for cell in cells if isinstance(cell, int)]
    if len(numbers) < len(cells):
        raise LayoutError(f"{layout} gives coordinates such as {cells[0]}, and only offsets have banks")
    found = [cell * bits // 8 for cell in numbers]
    return found if swizzle is None else [int(swizzle(byte)) for byte in found]


def found_bytes(
    layout: Drawable, bits: int, swizzle: Callable[[int], int] | None, rows: range | None, columns: range | None
) -> list[list[int]]:
    """The byte offset of every element shown."""
    return [as_bytes(row, bits, layout, swizzle) for row in offsets_of(layout, rows, columns).values]


def bank_panel(
    grid: list[list[int]],
    bits: int,
    down: range,
    across: range,
    *,
    lanes: Mapping[tuple[int, int], int] | None = None,
    conflicts: frozenset[int] = frozenset(),
    caption: str = "",
    tall: float = math.inf,
    part: bool = False,
    fine: bool = False,
) -> tuple[Panel, list[list[int]]]:
    """The grid of byte offsets by banks, contiguous mode across, and its offsets.

    lanes      (i, j) -> the lane that starts there: named in its field and dotted
    conflicts  the lanes among them that are framed instead
    tall       pixels; a higher grid is drawn in small cells, where only lanes have a text
    part       only the groups of eight rows in which lanes start; the caption says which
    fine       a cell for each element, where they lie in whole fields too
    """
    axes = ("i", "j")
    near = range(max(bits // 8, 1) + 1)
    beside = len(across) > 1 and grid[0][1] - grid[0][0] in near
    below = len(down) > 1 and grid[1][0] - grid[0][0] in near
    turned = below and not beside
    if turned:
        grid = [list(column) for column in zip(*grid, strict=True)]
        axes, down, across = ("j", "i"), across, down
    starts = {(j, i) if turned else (i, j): lane for (i, j), lane in (lanes or {}).items()}
    starts = {(down.index(r), across.index(c)): lane for (r, c), lane in starts.items() if r in down and c in across}
    step = 1 if fine else field_step(grid, bits)
    if any(c % step for _, c in starts):  # lanes of a field's parts
        step = 1
    if part and starts:
        first, last = min(r for r, _ in starts) // RULE * RULE, max(r for r, _ in starts) // RULE * RULE + RULE
        if last - first < len(down):
            caption += f", {axes[0]} = {down[first]} to {down[min(last, len(down)) - 1]} of {len(down)}"
            grid, down = grid[first:last], down[first:last]
            starts = {(r - first, c): lane for (r, c), lane in starts.items()}
    labels, font, cell = _fields(grid, starts, step, down, across)
    if cell[1] * len(down) > tall:
        font, cell, labels = compact(starts, step, len(down), tall)

    def places(wanted: Callable[[int], bool]) -> frozenset[tuple[int, int]]:
        return frozenset((r, c + k) for (r, c), lane in starts.items() if wanted(lane) for k in range(step))

    panel = Panel(
        axes=axes,
        rows=down,
        columns=across,
        fills=tuple([tuple([HUES[byte % LINE_BYTES // CHUNK_BYTES] for byte in row]) for row in grid]),
        labels=tuple(labels),
        cell=cell,
        font=font,
        step=step,
        framed=places(lambda lane: lane in conflicts),
        marked=places(lambda lane: lane not in conflicts),
        tells=lambda r, c: f"{grid[r][c]} ({grid[r][c] % LINE_BYTES // BANK_BYTES})",
        unit="byte (bank)",
        says=lambda r, c: (
            f"offset {grid[r][c] * 8 // bits}, byte {grid[r][c]}, bank {grid[r][c] % LINE_BYTES // BANK_BYTES}"
        ),
        caption=caption,
    )
    return panel, grid


def field_step(grid: list[list[int]], bits: int) -> int:
    """The elements of a field. Those of 16 bytes where all lie in such, in order; else 1.

    >>> field_step([[0, 4, 8, 12], [128, 132, 136, 140]], 32), field_step([[0, 4, 8, 12], [136, 140, 128, 132]], 32)
    (4, 1)
    """
    full = max(CHUNK_BYTES * 8 // bits, 1)
    places = [k * bits // 8 for k in range(full)]

    for row in grid:
        starts = row[::full]
        if any(byte % CHUNK_BYTES for byte in starts) or row != [byte + place for byte in starts for place in places]:
            return 1
    return full


def _fields(
    grid: list[list[int]], starts: Mapping[tuple[int, int], int], step: int, down: range, across: range
) -> tuple[list[Label], float, tuple[float, float]]:
    """The texts, their font and the size of a cell that holds them; no texts where there are too many cells."""
    font = 10.0 if step > 1 else sizes(down, across)[0]
    labels = bank_labels(grid, starts, step) if len(down) * len(across) <= MAX_FIELD_CELLS else []
    if not labels:
        return [], font, fitted((), down, across)[:2]
    longest = max(len(line) / label.span for label in labels for line in label.lines)
    lines = max(len(label.lines) for label in labels)
    return labels, font, (even(longest * CHARACTER * font * step + 12) / step, even(lines * 1.15 * font + 8))


def bank_labels(grid: list[list[int]], starts: Mapping[tuple[int, int], int], step: int) -> list[Label]:
    """The texts of the fields: banks, and under them the lane or the bytes.

    Without whole 16-byte fields (an odd pitch, a part of a tile) each element has its own.
    """
    labels = []
    for r, row in enumerate(grid):
        for start in range(0, len(row), step):
            first, lane = row[start] % LINE_BYTES // BANK_BYTES, starts.get((r, start))
            chunk = row[start] // CHUNK_BYTES * CHUNK_BYTES
            field = f"banks {first}-{first + 3}", span_text(chunk, CHUNK_BYTES) if lane is None else f"lane {lane}"
            single = (str(first),) if lane is None else (str(first), f"L{lane}")
            labels.append(Label(r, start, step, field if step > 1 else single))
    return labels


def compact(
    starts: Mapping[tuple[int, int], int], step: int, rows: int, tall: float
) -> tuple[float, tuple[float, float], list[Label]]:
    """Font, cell and texts of a grid drawn small. The lanes alone, where they can be read.

    >>> compact({(0, 8): 3}, 8, 64, 640)
    (8.0, (5.0, 10.0), [Label(row=0, column=8, span=8, lines=('lane 3',))])
    >>> compact({(0, 8): 3}, 8, 1024, 640)[1:]
    ((5.0, 2.0), [])
    """
    name, font = "lane " if step > 1 else "L", 8.0
    wide = even(width_of(name + "31", font) + 4) / step
    if SMALL * rows > 2 * tall:
        return font, (min(wide, 5.0), max(2 * tall / rows // 1, 2.0)), []
    named = [Label(r, c, step, (f"{name}{lane}",)) for (r, c), lane in starts.items() if c % step == 0]
    return font, (wide, min(max(tall / rows // 1, SMALL), 2 * font)), named


def field_note(panel: Panel) -> str:
    """The note that explains a cell of the panel."""
    if not any("bank" in line or line.isdecimal() for label in panel.labels for line in label.lines):
        cell = "A small field is 16 contiguous bytes" if panel.step > 1 else "A cell is an element"
        return f"{cell}, coloured by bank; the pointer on it tells byte offsets in the tile and banks."
    if panel.step > 1:
        return "A field is 16 contiguous bytes: its banks, and under them its byte offsets in the tile."
    return "A cell prints the first bank of its element."


def phase_note(grid: list[list[int]], step: int, axes: tuple[str, str]) -> str:
    """The bank conflicts of eight 16-byte fields in a column, as ldmatrix reads them."""
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


@checked()
def swizzle_pair_svg(
    layout: Layout,
    swizzle: Swizzle,
    bits: int = 16,
    *,
    access: AccessPattern | None = None,
    title: str | None = None,
) -> str:
    """Draws a shared-memory tile by banks before and after a swizzle, with one request's lanes.

    layout: (i, j) -> offset in elements of `bits` bits, without swizzle. `swizzle` counts bytes or elements; a swizzle
    without unit counts elements. `access`: the lanes to mark, in the phase in which they conflict most before the
    swizzle. None: 16-byte rows as ldmatrix reads them where the tile has such, else a column with an element for each
    lane. Lanes that conflict in a bank are framed, the others dotted.

    Raises LayoutError as `swizzle_svg` does and for a swizzle of another unit, AtomError for an access that does not
    fit the tile.

    >>> from layoutgemm.layouts import Layout, Swizzle
    >>> svg = swizzle_pair_svg(Layout((8, 64), (64, 1)), Swizzle(3, 4, 3, "bytes"))
    >>> "8-way conflict" in svg, "conflict-free" in svg, svg.count(">lane 7</text>")
    (True, True, 2)
    """
    reports, access = pair_reports(layout, swizzle, bits, access)
    worst = worst_phase(reports[0])
    found = offsets_of(layout)

    def panel_of(report: BankReport, tile: Drawable, name: str, fine: bool) -> Panel:
        lanes, conflicts = lanes_at(report.parts[0], access, len(found.rows), *worst)
        verdict = "conflict-free" if report.conflict_free else f"{report.ways}-way conflict"
        grid = found_bytes(tile, bits, None, None, None)
        return bank_panel(
            grid,
            bits,
            found.rows,
            found.columns,
            lanes=lanes,
            conflicts=conflicts,
            caption=f"{name}, {verdict}",
            fine=fine,
        )[0]

    tiles: tuple[Drawable, Drawable] = layout, ComposedLayout(on_elements(swizzle, bits), 0, layout)
    names = f"before: {layout}", f"after: {swizzle}"
    panels = [panel_of(*each, False) for each in zip(reports, tiles, names, strict=True)]
    if panels[0].step != panels[1].step:  # the swizzle moves parts of fields
        panels = [panel_of(*each, True) for each in zip(reports, tiles, names, strict=True)]
    notes = (
        Note(field_note(panels[0])),
        Note(f"Lanes of {access.name}, request {worst[0]}, phase {worst[1]}: framed where they meet another in a bank, "
             "dotted where they do not."),
    )  # fmt: skip
    beside = panels[0].width <= BESIDE / 2 or panels[0].height > panels[0].width
    placed = (tuple(panels),) if beside else tuple((panel,) for panel in panels)
    heading = title or f"{swizzle} on {layout}, elements of {bits} bits"
    return Sheet(title=heading, notes=notes, legend=LEGEND, panels=placed).render()


@checked()
def own_tile(swizzle: Swizzle, layout: Layout | None = None, bits: int | None = None) -> tuple[Layout, int]:
    """The tile on which a swizzle is shown, and the bits of its elements. Arguments left out are chosen.

    The rows are as long as the span of the swizzle's bits, and at least eight. Elements are as the swizzle counts them,
    or such that 16 bytes stay together.

    >>> own_tile(Swizzle(3, 4, 3, "bytes")), own_tile(Swizzle(3, 3, 3))
    ((Layout((8, 128), (128, 1)), 8), (Layout((8, 64), (64, 1)), 16))
    """
    if bits is None:
        bits = swizzle.unit or (min(max(128 >> swizzle.base, 1), 32) if swizzle.base < 8 else 8)
    if layout is None:
        moved = on_elements(swizzle, bits)
        row = 1 << moved.base + abs(moved.shift)
        layout = Layout((max(1 << moved.bits, 8), row), (row, 1))
    return layout, bits


def on_elements(swizzle: Swizzle, bits: int) -> Swizzle:
    """The swizzle in elements of `bits` bits. Raises SwizzleError where it moves parts of them."""
    return swizzle if swizzle.unit is None else swizzle.recast(bits)


def pair_reports(
    layout: Layout, swizzle: Swizzle, bits: int, access: AccessPattern | None
) -> tuple[tuple[BankReport, BankReport], AccessPattern]:
    """The bank conflicts before and after, and the access that they are of."""
    if bits < 1:
        raise LayoutError(f"bits={bits}: an element has at least one bit")
    after = ComposedLayout(on_elements(swizzle, bits), 0, layout)
    refusal: LayoutError | None = None
    for tried in plain_accesses(layout, bits) if access is None else (access,):
        try:
            before = bank_conflicts(layout, tried, element=bits)
            return (before, bank_conflicts(after, tried, element=bits)), tried
        except LayoutError as error:
            refusal = error
    assert refusal is not None
    raise refusal


def plain_accesses(layout: Layout, bits: int) -> list[AccessPattern]:
    """Rows of 16 bytes as ldmatrix reads them, where the tile has such. Then a column of single elements."""
    found = offsets_of(layout)
    extent = (len(found.rows), len(found.columns))
    along = "K" if extent[1] > 1 and layout(0, 1) - layout(0, 0) == 1 else "MN"
    element = next((name for name in ("u8", "u16", "f32", "f64") if dtype(name).bits == bits), None)
    out: list[AccessPattern] = []
    if element is not None:
        with contextlib.suppress(LayoutError):
            out.append(matrix_access(extent, element, along))
    axis = 0 if along == "K" else 1
    lanes = next(count for count in range(min(32, extent[axis]), 0, -1) if extent[axis] % count == 0)
    block = (lanes, 1) if axis == 0 else (1, lanes)
    return [*out, thread_access(Layout(lanes, 1), name=f"a column of {lanes} lanes").over(block, extent)]


def worst_phase(report: BankReport) -> tuple[int, int]:
    """(request, phase) of the report's first part with the most ways, the first of those."""
    ways = report.parts[0].phase_ways
    request, phase = divmod(int(ways.argmax()), ways.shape[1])
    return request, phase


def lanes_at(
    part: Requests, access: AccessPattern, rows: int, request: int, phase: int
) -> tuple[dict[tuple[int, int], int], frozenset[int]]:
    """The place at which each lane of a phase starts -> the lane. And the lanes that meet another word in a bank."""
    size = lanes_of_phase(part.width)
    words: dict[int, dict[int, set[int]]] = {}
    lanes: dict[tuple[int, int], int] = {}
    for lane in range(phase * size, min((phase + 1) * size, part.addresses.shape[1])):
        address = int(part.addresses[request, lane])
        if address < 0:
            continue
        first = int(access.coords[request, lane, 0])
        lanes.setdefault((first % rows, first // rows), lane)
        for at in range(address, address + part.width, BANK_BYTES):
            words.setdefault(at // BANK_BYTES % BANKS, {}).setdefault(at // BANK_BYTES, set()).add(lane)
    meeting = {lane for bank in words.values() if len(bank) > 1 for found in bank.values() for lane in found}
    return lanes, frozenset(meeting)
