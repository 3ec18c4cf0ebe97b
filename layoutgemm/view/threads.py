"""Thread-value maps over a tile, coloured by thread or by register."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from layoutgemm.errors import LayoutError
from layoutgemm.view.grid import Drawable, Owners, by_threads, owners_of
from layoutgemm.view.palette import HUES, hue, lighter
from layoutgemm.view.panel import MAX_TEXTS, CellTexts, Label, Panel
from layoutgemm.view.sheet import Legend, Note, Sheet
from layoutgemm.view.svg import fitted, span_text

from ..arguments import checked, having
from ..arguments import shown as bounded

ODD = 0.45  # how much lighter odd threads (or registers) are
MAX_LISTED = 128
WARP = 32  # as `atoms.copy.base`, whose files pictures of layouts do not load
QUAD = 4  # lanes that hold a row of an mma.sync or wgmma fragment together
PER_COLOR = {"warp": WARP, "quad": QUAD, "thread": 1}
COLORS = "'warp', 'quad', 'quad_lane', 'thread', 'register' or 'auto'"
ThreadValues = tuple[tuple[int, int], ...]

OUTLINED = "Outlined: the elements of a warp. An element of several warps is in the outline of the first."


class Atom(Protocol):
    """An MMA atom, as `fragment_svg` draws it."""

    @property
    def shape_mnk(self) -> tuple[int, int, int]:
        """Extents of the tile, in elements."""


@dataclass(frozen=True, slots=True)
class Coloring:
    """The colour of a cell, by (thread, value) of its first holder.

    name    "warp", "quad", "quad_lane", "thread" or "register"
    per     neighbours of one hue; of "quad_lane", threads of one shade
    groups  hues that there would be if none repeated
    """

    name: str
    per: int
    groups: int

    @property
    def shades(self) -> bool:
        """True if odd ones are lighter: threads, values, or quads."""
        return self.per > 1

    def fill(self, held: ThreadValues) -> str:
        """The colour of a cell that these hold."""
        if not held:
            return "empty"
        key = held[0][self.name == "register"]
        if self.name == "quad_lane":
            return lighter(hue(key % QUAD), ODD) if key // QUAD % 2 else hue(key % QUAD)
        return lighter(hue(key // self.per), ODD) if self.shades and key % 2 else hue(key // self.per)

    @property
    def legend(self) -> Legend:
        """The meaning of each hue."""
        if self.name == "quad_lane":
            return tuple((hue(lane), f"lane {lane} of its quad") for lane in range(min(QUAD, self.groups)))
        name = {"warp": "warp", "quad": "threads", "thread": "thread", "register": "value"}[self.name]
        spans = self.name == "quad" or self.name == "register"
        return tuple((hue(g), text) for g, text in hue_texts(name, self.per if spans else 1, self.groups))


def hue_texts(name: str, per: int, groups: int) -> Iterator[tuple[int, str]]:
    """(number of the hue, its text in a legend) for groups of `per` neighbours.

    >>> list(hue_texts("threads", 4, 2)), next(hue_texts("warp", 1, 40))
    ([(0, 'threads 0-3'), (1, 'threads 4-7')], (0, 'warp 0, 8, 16, ...'))
    """
    for g in range(min(groups, len(HUES))):
        which = [span_text(i * per, per) for i in range(g, groups, len(HUES))]
        yield g, f"{name} {', '.join(which[:3])}{', ...' if len(which) > 3 else ''}"


def coloring(color: str, threads: int, values: int) -> Coloring:
    """The colouring of that name; "auto": by warps, quads, or one thread's values. Raises LayoutError.

    >>> coloring("auto", 128, 32).name, coloring("register", 128, 32).per
    ('warp', 4)
    """
    if color == "auto":
        color = "warp" if threads > WARP else "quad" if threads > 8 else "thread" if threads > 1 else "register"
    if color == "register":
        per = -(-values // len(HUES))
        return Coloring(color, per, -(-values // per))
    if color == "quad_lane":
        return Coloring(color, QUAD, min(threads, QUAD))
    if color not in PER_COLOR:
        raise LayoutError(f"color={bounded(color)}: cells are coloured by {COLORS}")
    return Coloring(color, PER_COLOR[color], -(-threads // PER_COLOR[color]))


@checked()
def tv_svg(
    tv: Drawable,
    tile: tuple[int, int],
    *,
    title: str | None = None,
    color: str = "auto",
    thread: int | None = None,
    rows: range | None = None,
    columns: range | None = None,
    axes: tuple[str, str] = ("m", "n"),
) -> str:
    """Draws a thread-value layout. The tile (M, N), in every cell its thread T and value (register) V.

    tv: (thread, value) -> m + M*n, the element's place in the tile counted column by column, or the pair (m, n). A
    LinearLayout of Triton's (register, lane, warp, block) will do.
    `color` groups threads by "warp" (32), "quad" (4), "thread" (1) or "auto" (warps if there are several), odd threads
    lighter; by "quad_lane" (thread % 4, odd quads lighter); or by "register": the values of a thread. `thread` frames
    one thread's cells. `axes` names the tile's dimensions. A cell with several holders shows the first and the count of
    others; one without stays empty. Above 4096 cells the texts are under the pointer alone.

    Raises LayoutError if tv has not two modes or leaves the tile (with the thread and the value that do), and for more
    than 65536 cells: draw a part with `rows` and `columns`.

    >>> from layoutgemm.layouts import Layout
    >>> tv = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))     # C of mma.m16n8k16 (PTX ISA, 9.7.14.5.8)
    >>> svg = tv_svg(tv, (16, 8))
    >>> svg.count(">T31</text>"), svg.count(">V3</text>")
    (4, 32)
    """
    tv = by_threads(tv)
    found = owners_of(tv, tile, rows, columns, thread or 0)
    shown = coloring(color, found.threads, found.values)
    heading = title or f"{tv} over a tile ({tile[0]}, {tile[1]})"
    notes = (Note(f"{tv}", mono=True),) if title else ()
    panel = tv_panel(found, axes, shown, thread=thread)
    notes = (*notes, Note(told([found], shown, thread, bool(panel.labels))))
    return Sheet(title=heading, notes=notes, legend=shown.legend, panels=((panel,),)).render()


@checked()
def fragment_svg(
    atom: Atom,
    operand: str = "C",
    *,
    thread: int = 0,
    title: str | None = None,
    color: str = "auto",
    rows: range | None = None,
    columns: range | None = None,
) -> str:
    """Draws an operand of an MMA atom by threads, and lists one thread's registers.

    atom: an object with `shape_mnk` and the thread-value layouts `layout_A` over (M, K), `layout_B` over (N, K) and
    `layout_C` over (M, N). `operand` is "A", "B", "C" or "D", with block scales "SFA" or "SFB" too; `color` as in
    `tv_svg`.
    Raises LayoutError for an unknown operand, and as `tv_svg` does.

    >>> from types import SimpleNamespace
    >>> from layoutgemm.layouts import Layout
    >>> atom = SimpleNamespace(name="wgmma m64n64k16", shape_mnk=(64, 64, 16),
    ...                        layout_C=Layout(((4, 8, 4), (2, 2, 8)), ((128, 1, 16), (64, 8, 512))))
    >>> svg = fragment_svg(atom)
    >>> ">V31 (8, 57)</text>" in svg
    True
    """
    m, n, k = having(atom, "atom of fragment_svg", "a matrix atom", "shape_mnk").shape_mnk
    tiles = {"A": ((m, k), ("m", "k")), "B": ((n, k), ("n", "k")), "C": ((m, n), ("m", "n"))}
    tiles["D"] = tiles["C"]
    scale = getattr(atom, "scale", None)
    tv: Any
    if scale is not None and operand in ("SFA", "SFB"):
        side = operand[2]
        tile, axes = (tiles[side][0][0], k // scale.vector), (tiles[side][1][0], "block")
        tv = scale.layout_A if side == "A" else scale.layout_B
    elif operand in tiles:
        tile, axes = tiles[operand]
        tv = getattr(atom, f"layout_{operand}", None)
        tv = getattr(atom, "layout_C", None) if tv is None else tv  # D is held as C unless the atom says otherwise
    else:
        known = "A, B, C, D, SFA and SFB" if scale is not None else "A, B, C and D"
        raise LayoutError(f"operand {bounded(operand)}: {atom} has {known}")
    found = owners_of(tv, tile, rows, columns, thread)
    name = getattr(atom, "name", None) or str(atom)
    pad = len(f"V{len(found.registers) - 1}")
    lines = [f"{f'V{v}':{pad}} {at}" for v, at in enumerate(found.registers)]
    if len(lines) > MAX_LISTED:
        lines[MAX_LISTED:] = [f"and {len(lines) - MAX_LISTED} more"]
    listing = (f"Thread {thread}: value ({axes[0]}, {axes[1]})", tuple(lines))
    shown = coloring(color, found.threads, found.values)
    panel = tv_panel(found, axes, shown, thread=thread, register=register_of(atom, operand))
    notes = (
        Note(f"(thread, value) -> {axes[0]} + {tile[0]}*{axes[1]} = {tv}", mono=True),
        Note(f"{told([found], shown, thread, bool(panel.labels))} {lanes_text(atom)}".strip()),
    )
    heading = title or f"{name}: fragment {operand}"
    return Sheet(title=heading, notes=notes, legend=shown.legend, panels=((panel,),), listing=listing).render()


def lanes_text(atom: object) -> str:
    """Which lane a thread of the atom's maps is, as a sentence. It is empty where they are the same."""
    lanes = getattr(atom, "thread_ids", None)
    return (
        ""
        if lanes is None
        else f"Lanes of the threads: {lanes}. Thread {lanes.size - 1} is lane {lanes(lanes.size - 1)}."
    )


def register_of(atom: Any, operand: str) -> Callable[[int], str] | None:
    """value -> the 32-bit register and the bits where a thread keeps it, as text. None where the atom does not say."""
    slot = getattr(atom, "slot", None)
    if slot is None:
        return None
    bits = atom.element_bits(operand)
    try:
        slot(operand, 0)
    except LayoutError:  # not in registers
        return None

    def text(value: int) -> str:
        register, low = slot(operand, value)
        return f"register {register}" + (f", bits {low} to {low + bits - 1}" if bits < 32 else "")

    return text


def tv_panel(
    found: Owners,
    axes: tuple[str, str],
    shown: Coloring,
    *,
    thread: int | None = None,
    register: Callable[[int], str] | None = None,
    texts: bool = True,
    largest: int = 1,
    outlined: bool = False,
    turned: bool = False,
    caption: str = "",
) -> Panel:
    """The grid of a thread-value map. `largest`: the longest side of all grids of the picture."""
    held, rows, columns = found.held, found.rows, found.columns
    if turned:
        held, rows, columns, axes = tuple(zip(*held, strict=True)), columns, rows, (axes[1], axes[0])
    labels: Sequence[Label] = ()
    if texts and len(rows) * len(columns) <= MAX_TEXTS:
        labels = CellTexts(cell_texts(held, found.threads, found.values))
    # Grids of one picture have one size of text: that of the largest.
    longest = range(max(largest, len(rows), len(columns)))
    width, height, font = fitted(labels, longest if labels else rows, columns)
    which = shown.name == "register"
    fills = [shown.fill(((key, key),)) for key in range(found.values if which else found.threads)]

    def tells(r: int, c: int) -> str:
        cell = held[r][c]
        if len(cell) == 1:
            return f"T{cell[0][0]} V{cell[0][1]}"
        return " ".join([f"T{t} V{v}" for t, v in cell[:2]]) + more(cell, 2) or "-"

    def says(r: int, c: int) -> str:
        cell = held[r][c]
        if not cell:
            return "no thread holds it"
        place = f", {register(cell[0][1])}" if register else ""
        return f"thread {cell[0][0]}, value {cell[0][1]}{place}{more(cell, 1)}"

    framed = frozenset(
        (r, c)
        for r, row in enumerate(held if thread is not None else ())
        for c, cell in enumerate(row)
        if any(who == thread for who, _ in cell)
    )
    zones = [[cell[0][0] // WARP if cell else -1 for cell in row] for row in held] if outlined else None
    return Panel(
        axes=axes,
        rows=rows,
        columns=columns,
        fills=tuple(tuple([fills[cell[0][which]] if cell else "empty" for cell in row]) for row in held),
        labels=labels,
        cell=(width, height),
        font=font,
        framed=framed,
        zones=zones,
        tells=tells,
        says=says,
        caption=caption,
    )


def more(cell: ThreadValues, shown: int) -> str:
    """The count of holders beyond those shown."""
    return f" +{len(cell) - shown} more" if len(cell) > shown else ""


def cell_text(cell: ThreadValues) -> tuple[str, ...]:
    """The lines of a cell: its first holder, and how many more there are."""
    if not cell:
        return ("-",)
    rest = (f"+{len(cell) - 1}",) if len(cell) > 1 else ()
    return (f"T{cell[0][0]}", f"V{cell[0][1]}", *rest)


def cell_texts(held: Sequence[Sequence[ThreadValues]], threads: int, values: int) -> list[list[tuple[str, ...]]]:
    """The lines of all cells, as `cell_text` gives them. The names of threads and values are made once.

    >>> cell_texts([[((5, 2),), ()]], 32, 4)
    [[('T5', 'V2'), ('-',)]]
    """
    who, which = [f"T{thread}" for thread in range(threads)], [f"V{value}" for value in range(values)]
    return [
        [(who[cell[0][0]], which[cell[0][1]]) if len(cell) == 1 else cell_text(cell) for cell in row] for row in held
    ]


def told(found: Sequence[Owners], shown: Coloring, thread: int | None, texts: bool) -> str:
    """The header's note about the cells of these tiles."""
    out = ["T is the thread, V the value (register) that holds the element." if texts else
           "A cell is an element; the pointer on it tells the thread T and the value (register) V."]  # fmt: skip
    if shown.shades:
        shaded = {"register": "values", "quad_lane": "quads"}.get(shown.name, "threads")
        out.append(f"Odd {shaded} are lighter.")
    if thread is not None:
        out.append(f"Framed: thread {thread}.")
    if any(owners.most > 1 for owners in found):
        out.append("+k: k more threads or values hold the same element.")
    if any(owners.least == 0 for owners in found):
        out.append("-: no thread holds it." if texts else "Grey: no thread holds it.")
    return " ".join(out)
