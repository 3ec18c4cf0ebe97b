"""Bank conflicts on a linked page: the lanes that read an element and conflict there. A swizzle's page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from layoutgemm.checks.smem.access_patterns import AccessPattern
from layoutgemm.checks.smem.bank_conflicts import BankReport, Requests, lanes_of_phase
from layoutgemm.errors import LayoutError
from layoutgemm.layouts import ComposedLayout, Layout, Swizzle
from layoutgemm.lazy_numpy import np
from layoutgemm.view.banks import LINE_BYTES, on_elements, own_tile, pair_reports
from layoutgemm.view.grid import extent
from layoutgemm.view.pages.model import NOTHING, Fact, Figure, Holder, Holders, Memory, PageMatrix, Paint, Table
from layoutgemm.view.pages.parts import LINE_BITS, UNIT_BITS, bank_of, bank_paint, holder_paint

from ...atoms.copy.base import WARP
from ...checks.smem.bank_conflicts import BANK_BYTES, BANKS

NO_LANE = -(1 << 62)  # in place of the address of a lane that takes no part
CONFLICTS = ((0, "no conflict"), (1, "conflicts with another lane in a bank"))


@dataclass(frozen=True)
class AccessConflicts:
    """The bank conflicts of one access to a tile, element by element.

    served   (request, phase) by its number, or -1 where no lane reads the element
    lane     the lane that reads it
    group    a number shared by lanes that conflict in a bank, directly or by way of others; -1 without conflict
    facts    the same in words
    """

    served: Table
    lane: Table
    group: Table
    facts: tuple[Fact, ...]

    @property
    def paint(self) -> Paint:
        """Colours by whether the lane meets another one."""
        met = np.where(self.served < 0, NOTHING, (self.group >= 0).astype(np.int64))
        return Paint("conflicts", met, 1, False, (("L", self.lane),), CONFLICTS)


def conflicts_of(part: Requests, access: AccessPattern, size: tuple[int, int]) -> AccessConflicts:
    """The reading lane and its bank conflicts, for every element of a tile.

    Elements are counted down the columns. Where several requests read an element, the first of them counts.

    >>> from layoutgemm.checks import bank_conflicts, matrix_access
    >>> rows = matrix_access((8, 64), "bf16")
    >>> found = conflicts_of(bank_conflicts(Layout((8, 64), (64, 1)), rows, element="bf16").parts[0], rows, (8, 64))
    >>> found.facts[1].labels[found.facts[1].table[3, 0]]
    'lanes 0-7: 8 words of bank 0'
    """
    lanes_in, (requests, lanes) = lanes_of_phase(part.width), part.addresses.shape
    group, told = np.full((requests, lanes), NOTHING, np.int64), np.zeros((requests, lanes), np.int64)
    words, texts = ["no other lane"], {"": 0}
    known: dict[tuple[int, ...], list[tuple[list[int], str]]] = {}
    for first in range(0, lanes, lanes_in):
        for number, row in enumerate(part.addresses[:, first : first + lanes_in].tolist()):
            base = max(row) // LINE_BYTES * LINE_BYTES
            key = (first, *(address - base if address >= 0 else NO_LANE for address in row))
            if key not in known:
                known[key] = list(_met(first, key[1:], part.width))
            for which, (meeting, text) in enumerate(known[key]):
                if text not in texts:
                    texts[text] = len(words)
                    words.append(text)
                group[number, meeting] = (number * lanes + first) * WARP + which
                told[number, meeting] = texts[text]
    request, lane = np.indices((requests, lanes))
    phase = lane // lanes_in
    phases = tuple(f"request {r}, phase {p}" for r in range(requests) for p in range(-(-lanes // lanes_in)))
    shaped = []
    # Assigned backwards: of several requests for an element the first one stays.
    order = access.coords[::-1].reshape(requests * lanes, -1)
    active = order[:, 0] >= 0
    for values in (request * (len(phases) // requests) + phase, lane, group, told):
        table = np.full(size[0] * size[1], NOTHING, np.int64)
        table[order[active]] = values[::-1].reshape(-1)[active, None]
        shaped.append(table.reshape(size[::-1]).T)
    facts = (Fact("read in", shaped[0], phases), Fact("meets", shaped[3], tuple(words)))
    return AccessConflicts(shaped[0], shaped[1], shaped[2], facts)


def _met(first: int, addresses: Sequence[int], width: int) -> Iterator[tuple[list[int], str]]:
    """The groups of a phase's lanes that conflict in banks, from lane `first` on; and their description."""
    wanted: dict[int, dict[int, list[int]]] = {}  # bank -> word -> lanes
    for lane, address in enumerate(addresses, first):
        if address != NO_LANE:
            for word in range(address // BANK_BYTES, (address + width - 1) // BANK_BYTES + 1):
                wanted.setdefault(word % BANKS, {}).setdefault(word, []).append(lane)
    parent: dict[int, int] = {}

    def root(lane: int) -> int:
        while parent.setdefault(lane, lane) != lane:
            lane = parent[lane]
        return lane

    crowded = {bank: found for bank, found in wanted.items() if len(found) > 1}
    for found in crowded.values():
        one, *others = {root(lane) for lanes in found.values() for lane in lanes}
        parent.update(dict.fromkeys(others, one))
    groups: dict[int, list[int]] = {}
    for lane in sorted(parent):
        groups.setdefault(root(lane), []).append(lane)
    for lanes in groups.values():
        asking = {bank: next(iter(found.values()))[0] for bank, found in crowded.items()}
        mine = {bank: len(crowded[bank]) for bank, lane in asking.items() if root(lane) == root(lanes[0])}
        bank = max(mine, key=lambda b: (mine[b], -b))
        yield lanes, f"lanes {_run(lanes)}: {mine[bank]} words of bank {bank}"


def _run(lanes: list[int]) -> str:
    """Lane numbers, shortened where they are consecutive.

    >>> _run([0, 1, 2, 3]), _run([0, 4, 8])
    ('0-3', '0, 4, 8')
    """
    if len(lanes) > 2 and lanes == list(range(lanes[0], lanes[-1] + 1)):
        return f"{lanes[0]}-{lanes[-1]}"
    return ", ".join(map(str, lanes))


def byte_memory(name: str, title: str, bit: Table, bits: int) -> Memory:
    """Shared memory in which every element begins at that bit, in lines of 128 bytes."""
    told = (
        Fact("byte offset", bit // 8),
        Fact("line", bit // LINE_BITS),
        Fact("bank", bit % LINE_BITS // (8 * BANK_BYTES)),
    )
    size = -(-(int(bit.max()) + bits) // LINE_BITS) * LINE_BITS
    return Memory(f"{name} in shared memory", title, bit, bits, LINE_BITS, UNIT_BITS, size, 8 * BANK_BYTES, told)


def swizzle_figure(
    swizzle: Swizzle,
    layout: Layout | None = None,
    bits: int | None = None,
    *,
    access: AccessPattern | None = None,
    title: str | None = None,
) -> Figure:
    """The page of a swizzle. A tile before and after it, an element lit up in both, and its bank conflicts.

    layout   (i, j) -> offset in elements, without swizzle; None: a tile on which all of the swizzle shows
    bits     of an element
    access   the lanes to show, as in `swizzle_pair_svg`: by default 16-byte rows as ldmatrix reads them

    Raises LayoutError as `swizzle_pair_svg` does.

    >>> from layoutgemm.view.pages.html import swizzle_html
    >>> html = swizzle_html(Swizzle(3, 4, 3, "bytes"), Layout((8, 64), (64, 1)), 16)
    >>> "lanes 0-7: 8 words of bank 0" in html, "conflict-free" in html
    (True, True)
    """
    layout, bits = own_tile(swizzle, layout, bits)
    if layout.rank != 2:
        raise LayoutError(f"a swizzle's page shows rows and columns; {layout} has {layout.rank} modes")
    size = (extent(layout[0].shape), extent(layout[1].shape))
    # A figure too large is refused before anything is computed.
    Figure("", (), tuple(PageMatrix(name, "", ("i", "j"), size) for name in ("before", "after")))
    reports, access = pair_reports(layout, swizzle, bits, access)
    after = ComposedLayout(on_elements(swizzle, bits), 0, layout)
    holder = Holder("access", access.requests * WARP, WARP, "request", "lane", "element", "AE")
    request, lane, place = (np.asarray(x) for x in np.indices(access.coords.shape))
    active = access.coords >= 0
    at, who, which = access.coords[active], (request * WARP + lane)[active], place[active]
    held = at % size[0], at // size[0], who, which
    holders = Holders.of(size, held, [str(v) for v in range(access.coords.shape[2])])
    row, column = np.indices(size)
    along = 0 if size[0] > 1 and layout(1, 0) - layout(0, 0) == 1 else 1
    matrices = []
    tiles: tuple[Layout | ComposedLayout, ...] = (layout, after)
    for name, made, report in zip(("before", "after"), tiles, reports, strict=True):
        offset = np.asarray(made(row, column), np.int64) + 0 * row
        met = conflicts_of(report.parts[0], access, size)
        memory = byte_memory(name, f"{made}, {_verdict(report)}", offset * bits, bits)
        paints = (bank_paint(bank_of(memory)), met.paint, holder_paint(holder, holders))
        facts = (Fact("offset", offset), *met.facts)
        matrices.append(PageMatrix(name, _verdict(report), ("i", "j"), size, along, "alone", holders, facts, paints,
                               memory, met.group))  # fmt: skip
    notes = (f"Accesses: {access.name}, {access.requests} requests. Framed: what the lanes read that meet the lane "
             "of this element in a bank.",)  # fmt: skip
    return Figure(title or f"{swizzle} on {layout}, elements of {bits} bits", notes, tuple(matrices), holder)


def _verdict(report: BankReport) -> str:
    return "conflict-free" if report.conflict_free else f"{report.ways}-way conflict"


def with_conflicts(matrix: PageMatrix, met: AccessConflicts) -> PageMatrix:
    """A matrix in shared memory, with what an access to it meets."""
    return replace(matrix, facts=(*matrix.facts, *met.facts), paints=(*matrix.paints, met.paint), rivals=met.group)
