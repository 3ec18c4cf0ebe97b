"""An access to a shared-memory tile. Its banks, and the lanes and banks of the worst phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from layoutgemm.atoms import SmemTile
from layoutgemm.checks.smem.access_patterns import AccessPattern
from layoutgemm.checks.smem.bank_conflicts import BankReport, Requests, bank_conflicts, lanes_of_phase
from layoutgemm.dtypes import DType, dtype
from layoutgemm.errors import LayoutError
from layoutgemm.layouts import ComposedLayout, Layout
from layoutgemm.lazy_numpy import np
from layoutgemm.view.banks import LEGEND, bank_panel, field_note, found_bytes, lanes_at, worst_phase
from layoutgemm.view.canvas import CHARACTER
from layoutgemm.view.grid import offsets_of
from layoutgemm.view.palette import hue
from layoutgemm.view.panel import Label, Panel
from layoutgemm.view.sheet import Note, Sheet

from ..arguments import checked
from ..checks.smem.bank_conflicts import BANK_BYTES, BANKS

FONT = 10.0
TALL = 640.0  # pixels; a tile that would be higher is drawn in small cells
SCREEN, HEADER = (1440.0, 900.0), 150.0  # what a picture should fit, and what title, notes and legend take of it


@checked()
def access_svg(
    tile: Layout | ComposedLayout | SmemTile,
    access: AccessPattern | Sequence[AccessPattern],
    element: DType | str | None = None,
    *,
    title: str | None = None,
) -> str:
    """Draws an access. The tile by banks, and the phase that costs most, lane by lane over the 32 banks.

    tile     (i, j) -> offset in elements, or an SmemTile
    access   one or several: rows of `matrix_access`, a `tiled_access`, ...; each has two grids
    element  the type of an element; None: the SmemTile's

    The tile's grid names the lanes of that phase where they start: framed where they conflict in a bank, else dotted.
    In the other grid a field is a lane's request, with its byte address, framed where the bank has to give another word
    too. A high tile is drawn in small cells; of several accesses only the rows in which lanes start are drawn.

    Raises LayoutError for a tile without two modes and for more than 65536 elements, AtomError for an access that does
    not fit the tile.

    >>> from layoutgemm.checks import matrix_access
    >>> svg = access_svg(Layout((8, 64), (64, 1)), matrix_access((8, 64), "bf16"), "bf16")
    >>> "8-way conflict" in svg, svg.count(">lane 7</text>"), svg.count(">byte 896</text>")
    (True, 1, 1)
    """
    accesses = [access] if isinstance(access, AccessPattern) else list(access)
    kind = tile.dtype if isinstance(tile, SmemTile) else dtype(element) if element is not None else None
    if kind is None:
        raise LayoutError(f"{tile}: how wide is an element? give its type, as in element='bf16'")
    report = bank_conflicts(tile, accesses, element=kind)
    layout = tile.composed if isinstance(tile, SmemTile) else tile
    bits = tile.slot_bits if isinstance(tile, SmemTile) else kind.bits
    found, grid = offsets_of(layout), found_bytes(layout, bits, None, None, None)
    pairs: list[tuple[Panel, Panel]] = []
    notes: list[Note] = []
    for part, pattern in zip(report.parts, accesses, strict=True):
        one = BankReport((part,), packing=report.packing)
        worst = worst_phase(one)
        lanes, conflicts = lanes_at(part, pattern, len(found.rows), *worst)
        verdict = "conflict-free" if one.conflict_free else f"{one.ways}-way conflict"
        panel, _ = bank_panel(
            grid, bits, found.rows, found.columns, lanes=lanes, conflicts=conflicts,
            caption=f"{pattern.name}: {verdict}", tall=TALL, part=len(accesses) > 1,
        )  # fmt: skip
        pairs.append((phase_panel(part, *worst), panel))
        wavefronts = f"{one.wavefronts} wavefronts for {part.addresses.shape[0]} requests, at least {one.minimum}"
        notes.append(Note(f"{pattern.name}: {wavefronts}. Drawn: request {worst[0]}, phase {worst[1]}; framed where a "
                          "bank must give several words, dotted where it need not."))  # fmt: skip
    notes[:0] = [Note(text) for text in dict.fromkeys(field_note(panel) for _, panel in pairs)]
    verdict = "conflict-free" if report else f"{report.ways}-way conflict"
    heading = title or f"{tile}, elements of {bits} bits: {verdict}"
    return placed(Sheet(title=heading, notes=tuple(notes), legend=LEGEND, panels=()), pairs).render()


def placed(sheet: Sheet, pairs: Sequence[tuple[Panel, Panel]]) -> Sheet:
    """The sheet with these pairs of grids, upright or lying, as fits a screen best."""

    def strain(tried: Sheet) -> float:
        width, height = tried.extent
        return max(width / SCREEN[0], (height + HEADER) / SCREEN[1])

    found = []
    for count in range(1, len(pairs) + 1):
        bands = [pairs[first : first + count] for first in range(0, len(pairs), count)]
        free = [(None,) * (count - len(band)) for band in bands]
        upright = [(*grids, *room) for band, room in zip(bands, free, strict=True) for grids in zip(*band, strict=True)]
        lying = [(*chain.from_iterable(band), *room, *room) for band, room in zip(bands, free, strict=True)]
        found += [replace(sheet, panels=tuple(upright)), replace(sheet, panels=tuple(lying))]
    return min(found, key=strain)


def phase_panel(part: Requests, request: int, phase: int) -> Panel:
    """One phase: a row for each of its lanes, a column for each bank. A field stands where a lane asks a bank."""
    size = lanes_of_phase(part.width)
    lanes = range(phase * size, min((phase + 1) * size, part.addresses.shape[1]))
    fills = [["track"] * BANKS for _ in lanes]
    labels, words = [], np.full((len(lanes), BANKS), -1, np.int64)
    for place, lane in enumerate(lanes):
        address = int(part.addresses[request, lane])
        if address < 0:
            continue
        asked = range(address // BANK_BYTES, (address + part.width - 1) // BANK_BYTES + 1)
        for word in asked:
            fills[place][word % BANKS] = hue(word % BANKS * BANK_BYTES // 16)
            words[place, word % BANKS] = word
        text = f"byte {address}" if len(asked) > 1 else str(address)
        labels.append(Label(place, asked[0] % BANKS, len(asked), (text,)))
    asking = [set(column[column >= 0].tolist()) for column in words.T]
    framed = {(int(r), int(c)) for r, c in np.argwhere(words >= 0) if len(asking[c]) > 1}
    marked = {(int(r), int(c)) for r, c in np.argwhere(words >= 0)} - framed
    wide = max((len(line) / label.span for label in labels for line in label.lines), default=2.0)
    return Panel(
        axes=("lane", "bank"), rows=lanes, columns=range(BANKS), fills=fills, labels=tuple(labels), font=FONT,
        step=max(1, part.width // BANK_BYTES), cell=(max(16.0, wide * CHARACTER * FONT + 4) // 1, 18.0),
        framed=frozenset(framed), marked=frozenset(marked),
        tells=lambda r, c: "-" if words[r, c] < 0 else f"{BANK_BYTES * words[r, c]} ({len(asking[c])})",
        unit="byte of the word (words that the bank gives)",
        says=lambda r, c: (
            "nothing" if words[r, c] < 0 else
            f"the word at byte {BANK_BYTES * words[r, c]}; the bank gives {len(asking[c])}"
        ),
        caption=f"{part.name}, request {request}, phase {phase}: which lane asks which bank",
    )  # fmt: skip
