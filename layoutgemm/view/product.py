"""An MMA atom, or a tiled one, as its product. A at the left of C, B above it, so that rows and columns line up."""

from __future__ import annotations

from dataclasses import replace

from layoutgemm.atoms.mma.base import MmaAtom
from layoutgemm.atoms.tiled.mma import TiledMma
from layoutgemm.layouts import Layout
from layoutgemm.view.grid import Owners, bounded, extent, owners_of
from layoutgemm.view.panel import MAX_TEXTS, Panel
from layoutgemm.view.sheet import Note, Sheet
from layoutgemm.view.svg import fitted
from layoutgemm.view.threads import OUTLINED, coloring, lanes_text, register_of, told, tv_panel

from ..arguments import checked

AXES = {"A": ("m", "k"), "B": ("n", "k"), "C": ("m", "n")}
PLACES = {"smem": "shared memory", "tmem": "tensor memory"}
ELSEWHERE = "track"  # of operands that no thread holds


@checked()
def product_svg(atom: MmaAtom, *, color: str = "auto", thread: int | None = None, title: str | None = None) -> str:
    """Draws an MMA atom as its product. A (M, K), B (K, N) above, and C (M, N), rows and columns in line.

    Each element names its thread and value. Operands in shared or tensor memory are grey. `color`: "warp", "quad",
    "quad_lane", "thread", "register" or "auto"; `thread` frames one thread's elements. Above 4096 elements the texts
    are under the pointer alone.

    Raises LayoutError for an unknown colour, a thread that takes no part, and an operand of more than 65536 elements.

    >>> from layoutgemm.atoms import mma_sync
    >>> svg = product_svg(mma_sync("m16n8k16", "bf16"))
    >>> svg.count(">T31</text>"), svg.count(">V3</text>")
    (16, 96)
    """
    return product(atom, atom, color, thread, False, title or str(atom))


@checked()
def tiled_mma_svg(tiled: TiledMma, *, color: str = "auto", thread: int | None = None, title: str | None = None) -> str:
    """Draws a tiled MMA as its product, every warp outlined in A, B and C.

    As `product_svg`, over the tile of all its threads. Where several warps hold an element (atoms side by side share
    their operand) the outline is that of the first. Raises as `product_svg` does.

    >>> from layoutgemm.atoms import TiledMma, mma_sync
    >>> svg = tiled_mma_svg(TiledMma(mma_sync("m16n8k16", "bf16"), (2, 2, 1)))
    >>> svg.count('data-warp="3"'), svg.count('data-warp="0"')
    (1, 3)
    """
    atoms = "x".join(str(mode.size) for mode in tiled.atom_layout)
    return product(tiled.atom, tiled, color, thread, True, title or f"{atoms} x {tiled.atom}")


def product(
    atom: MmaAtom, tiled: MmaAtom | TiledMma, color: str, thread: int | None, outlined: bool, title: str
) -> str:
    """The picture of either."""
    panels: dict[str, Panel] = {}
    owners: list[Owners] = []
    total = sum(extent(tiled.tile_of(operand)) for operand in "ABC")
    for operand in "ABC":  # before a map of millions of elements is made
        rows, columns = tiled.tile_of(operand)
        bounded(f"{operand} of {tiled}", range(rows), range(columns))
    tvs = {operand: layout_of(tiled, operand) for operand in "ABC"}
    held = {operand: place_of(atom, operand) == "rmem" for operand in "ABC"}
    values = max((extent(tvs[o].shape[1]) for o in "ABC" if held[o]), default=1)
    threads = max((extent(tvs[o].shape[0]) for o in "ABC" if held[o]), default=1)
    shown = coloring(color, threads, values)
    (m, n), (_, k) = tiled.tile_of("C"), tiled.tile_of("A")
    for operand in "ABC":
        tile, turned = tiled.tile_of(operand), operand == "B"
        caption = f"{operand}: {tile[1]}x{tile[0]}" if turned else f"{operand}: {tile[0]}x{tile[1]}"
        caption += f" {atom.dtype_of(operand)}"
        if not held[operand]:
            panels[operand] = plain_panel(tile, AXES[operand], turned, f"{caption}, {PLACES[place_of(atom, operand)]}")
            continue
        found = owners_of(tvs[operand], tile, thread=thread or 0)
        owners.append(found)
        panels[operand] = tv_panel(
            found, AXES[operand], shown, thread=thread, register=register_of(atom, operand) if not outlined else None,
            texts=total <= MAX_TEXTS, largest=max(m, n, k), outlined=outlined, turned=turned, caption=caption,
        )  # fmt: skip
    # One size of cell for all, so that rows and columns line up.
    cell = (max(p.cell[0] for p in panels.values()), max(p.cell[1] for p in panels.values()))
    if not any(p.labels for p in panels.values()):
        side = min(p.cell[0] for p in panels.values())
        cell = (side, side)
    a, b, c = (replace(panels[operand], cell=cell) for operand in "ABC")
    of_lanes = "" if isinstance(tiled, TiledMma) else lanes_text(atom)
    notes = [Note(f"C ({m}x{n}) += A ({m}x{k}) x B ({k}x{n}), {threads_text(atom, tiled)}. {of_lanes}".strip())]
    if owners:
        notes.append(Note(told(owners, shown, thread, bool(c.labels or a.labels or b.labels))))
    if outlined and owners:
        notes.append(Note(OUTLINED))
    legend = shown.legend if owners else ()
    if not all(held.values()):
        legend = (*legend, (ELSEWHERE, "held by no thread"))
    return Sheet(title=title, notes=tuple(notes), legend=legend, panels=((None, b), (a, c))).render()


def threads_text(atom: MmaAtom, tiled: MmaAtom | TiledMma) -> str:
    """The threads that execute it, in words."""
    if place_of(atom, "C") == "tmem":
        return f"issued by one thread for {atom.threads} block{'s' if atom.threads > 1 else ''}"
    count = tiled.threads
    return f"{count} thread{'s' if count > 1 else ''}"


def place_of(atom: MmaAtom, operand: str) -> str:
    """The operand's memory: "rmem", "smem" or "tmem"."""
    return {"A": atom.a_source, "B": atom.b_source}.get(operand, atom.c_source)


def layout_of(tiled: MmaAtom | TiledMma, operand: str) -> Layout:
    """The thread-value layout of an operand of an atom or of a tiled one."""
    return tiled.tv_layout(operand) if isinstance(tiled, TiledMma) else tiled.layout(operand)


def plain_panel(tile: tuple[int, int], axes: tuple[str, str], turned: bool, caption: str) -> Panel:
    """The grid of an operand that no thread holds."""
    if turned:
        tile, axes = (tile[1], tile[0]), (axes[1], axes[0])
    rows, columns = range(tile[0]), range(tile[1])
    bounded(caption, rows, columns)
    width, height, font = fitted((), rows, columns)
    line = (ELSEWHERE,) * len(columns)
    return Panel(
        axes=axes, rows=rows, columns=columns, fills=(line,) * len(rows), cell=(width, height), font=font,
        caption=caption,
    )  # fmt: skip
