"""The tensor memory of a tcgen05.mma, over lanes and columns. It shows its accumulator, its A and its scale factors."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from layoutgemm.arguments import checked
from layoutgemm.atoms.copy.tmem import TmemCopyAtom
from layoutgemm.atoms.mma.tcgen05 import Tcgen05Atom
from layoutgemm.atoms.tmem.layout import LANES, WARP_LANES, WORD_BITS, TmemLayout
from layoutgemm.dtypes import dtype
from layoutgemm.layouts import E, Layout
from layoutgemm.view.grid import bounded, evaluate, extent, mesh
from layoutgemm.view.palette import HUES, hue, lighter
from layoutgemm.view.panel import Panel
from layoutgemm.view.sheet import Note, Sheet
from layoutgemm.view.svg import fitted

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "last")
assert len(ORDINALS) == len(HUES)
WORD_BYTES = WORD_BITS // 8
COPY = 0.5  # how much lighter a further copy of an element is


@checked()
def tmem_svg(atom: Tcgen05Atom, *, title: str | None = None) -> str:
    """Draws the tensor memory of a tcgen05.mma. It has a grid of 128 lanes and its columns for each operand that is
    there.

    These are the accumulator C, A where it comes from tensor memory, the scale factors SFA and SFB, and the metadata E
    of a sparse A, four bits a group. Columns are
    counted from the operand's own base. Colours are eighths of the operand's rows, the first copy of an element dark,
    further ones pale. The lanes of each warp are outlined. Of a pair of CTAs it is the memory of one. Raises
    LayoutError for more than 65536 words.

    >>> from layoutgemm.atoms import tcgen05_mma
    >>> svg = tmem_svg(tcgen05_mma("mxf8f6f4", 128, 64, "e4m3"))
    >>> [f">{name}: " in svg for name in ("C", "A", "SFA", "SFB")]
    [True, False, True, True]
    >>> "lane 33, column 0 to 3: SFA (1, 0) | SFA (33, 0)" in svg    # each quarter of the lanes has a copy of all rows
    True
    """
    m, n, k = atom.shape_mnk
    panels = tuple(tmem_panel(name, home) for name, home in tmem_operands(atom).items())
    blocks = "one CTA of the pair" if atom.cta_group > 1 else "the CTA"
    notes = (
        Note(f"Tensor memory of {blocks}: {LANES} lanes of 32-bit columns, counted from each operand's base."),
        Note(
            "The pointer tells the elements of a word. Pale: a further copy. Outlined: the 32 lanes that a warp reads."
        ),
    )
    legend = tuple((hue(group), f"{name} eighth of an operand's rows") for group, name in enumerate(ORDINALS))
    return Sheet(
        title=title or f"{atom.ptx} {m}x{n}x{k}: tensor memory", notes=notes, legend=legend, panels=(panels,)
    ).render()


def tmem_copy_svg(atom: TmemCopyAtom, *, title: str | None = None) -> str:
    """Draws a tcgen05.cp. The rows of shared memory that it reads, and the lanes and columns that it writes.

    Colours are eighths of the rows, the first copy of a row dark, further ones pale. The pointer tells the bytes.

    >>> from layoutgemm.atoms import tcgen05_cp
    >>> svg = tmem_copy_svg(tcgen05_cp("32x128b", "warpx4"))
    >>> "lane 33, column 1: (1, 4) (1, 5) (1, 6) (1, 7)" in svg    # row 1 again, for the second warp
    True
    """
    rows, _, copies = (atom.tmem[k] for k in range(3))
    count, words = extent(rows.shape), extent(atom.tmem[1].shape) // WORD_BITS
    bytes_of_words = Layout((WORD_BYTES, words), (8 * E(2), E(1)))
    moved = TmemLayout("destination", dtype("u8"), Layout.join(rows, bytes_of_words, copies))
    destination = replace(tmem_panel("", moved), caption="destination: tensor memory")
    lines, across = range(count), range(words)
    source = Panel(
        axes=("row", "word"), rows=lines, columns=across, cell=destination.cell, caption="source: shared memory",
        fills=tuple([(hue(row * len(HUES) // count),) * words for row in lines]),
        tells=lambda row, word: " ".join([f"({row}, {WORD_BYTES * word + k})" for k in range(WORD_BYTES)]),
    )  # fmt: skip
    many = extent(copies.shape)
    to = f", each to {many} quarters of the lanes" if many > 1 else ""
    notes = (
        Note(f"{count} rows of {words * WORD_BYTES} bytes{to}. The pointer tells (row, byte). Words have 32 bits."),
        Note("Columns are counted from the destination's base. Outlined: the 32 lanes that a warp reads."),
    )
    legend = tuple((hue(group), f"{name} eighth of the rows") for group, name in enumerate(ORDINALS))
    return Sheet(title=title or str(atom), notes=notes, legend=legend, panels=((source, destination),)).render()


def tmem_operands(atom: Tcgen05Atom) -> dict[str, TmemLayout]:
    """The operands that one CTA keeps in tensor memory. C, A where it comes from there, scale factors, metadata.

    >>> from layoutgemm.atoms import tcgen05_mma
    >>> list(tmem_operands(tcgen05_mma("f16", 128, 64, "bf16", a_source="tmem", sparse=True)))
    ['C', 'A', 'E']
    """
    homes = {"C": atom.accumulator}
    if atom.a_source == "tmem":
        homes["A"] = atom.operand_a
    if atom.scale is not None:
        homes |= {f"SF{side}": atom.scale_layout(side) for side in "AB"}
    if atom.sparse and not atom.datapath.spread:  # of the others no layout is known
        homes["E"] = atom.metadata
    return homes


def tmem_panel(name: str, home: TmemLayout) -> Panel:
    """The lanes and columns of one operand."""
    shape = home.layout.shape
    assert isinstance(shape, tuple)
    rows, depth, copies = (extent(mode) for mode in shape)
    row, column, copy = mesh(range(rows), range(depth), range(copies))
    lines, across = range(LANES), range(home.columns)
    bounded(home, lines, across)
    found = evaluate(home.layout, row, column, copy)
    places = [(*place, 0)[:2] if isinstance(place, tuple) else (place, 0) for place in found]
    dark = [hue(m * len(HUES) // rows) for m in range(rows)]
    pale = [lighter(color, COPY) for color in dark]
    each = [pale[m] if c else dark[m] for m, c in zip(row, copy, strict=True)]
    colors = dict(zip(reversed(places), reversed(each), strict=True))  # the first of a word's elements

    @cache
    def held() -> dict[tuple[int, ...], list[str]]:
        out: dict[tuple[int, ...], list[str]] = {}
        for place, m, k in zip(places, row, column, strict=True):
            out.setdefault(place, []).append(f"({m}, {k})")
        return out

    def tells(lane: int, word: int) -> str:
        elements = held().get((lane, word))
        return f"{name} {' '.join(elements)}".lstrip() if elements else "-"

    wide, high, _ = fitted((), lines, across)
    wide = max(wide, 20.0) if len(across) <= 8 else wide  # room for the number of each column
    zones = [[lane // WARP_LANES] * len(across) for lane in lines]
    return Panel(
        axes=("lane", "column"), rows=lines, columns=across, cell=(wide, high), zones=zones, tells=tells,
        fills=tuple([tuple([colors.get((lane, word), "track") for word in across]) for lane in lines]),
        caption=f"{name}: {home.columns} column{'s' * (home.columns != 1)}, {home.dtype}",
    )  # fmt: skip
