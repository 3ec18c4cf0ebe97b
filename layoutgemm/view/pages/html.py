"""Linked pages: one HTML file in which an element that is pointed at lights up in A, B, C and shared memory at once.

A page needs nothing but itself: style, script and data are inside, and its content security policy forbids it to fetch
anything. It works with mouse, touch and keyboard, in light and dark, and offers a field to jump to an element, a thread
or a byte. What it shows is computed here by the layouts (`linked`, `view.pages.product`); the browser looks numbers up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from layoutgemm.atoms import CopyAtom, MmaAtom, SmemTile, TiledMma
from layoutgemm.atoms.tiled.copy import TiledCopy
from layoutgemm.errors import LayoutError
from layoutgemm.layouts import Layout, Swizzle, paged
from layoutgemm.layouts.display import PicturedLayout
from layoutgemm.view.canvas import escape
from layoutgemm.view.grid import Drawable, evaluate, extent
from layoutgemm.view.pages.banks import swizzle_figure
from layoutgemm.view.pages.copy import copy_figure
from layoutgemm.view.pages.model import THREADS, Figure, Holders, Matrix
from layoutgemm.view.pages.parts import holder_paint, layout_figure, tile_figure
from layoutgemm.view.pages.product import product_figure
from layoutgemm.view.palette import HUES, lighter

ODD = 0.45  # how much lighter odd holders are, as in `tv_svg`
SCRIPTS = ("elements.js", "pictures.js", "panel.js", "start.js")
# The page asks for nothing, and could not.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(figure: Figure) -> str:
    """The figure as an HTML document.

    >>> from layoutgemm.layouts import Layout
    >>> text = page(layout_figure(Layout((4, 8), (8, 1))))
    >>> text.startswith("<!DOCTYPE html>"), "http:" in text or "https:" in text
    (True, False)
    """
    folder = files("layoutgemm.view.pages") / "assets"
    style, *scripts = ((folder / name).read_text(encoding="utf-8") for name in ("style.css", *SCRIPTS))
    script = "\n".join(scripts)
    palette = {"hues": HUES, "odd": [lighter(color, ODD) for color in HUES]}
    notes = "".join(f"<p>{escape(note)}</p>" for note in figure.notes)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>{escape(figure.title)}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{escape(figure.title)}</h1>{notes}</header>
<form id="controls" autocomplete="off">
<label>go to <input id="jump" type="text" spellcheck="false" aria-describedby="complaint"></label>
<label>colours <select id="paint"></select></label>
<label>size <button type="button" id="smaller" aria-label="smaller">&minus;</button>
<button type="button" id="larger" aria-label="larger">+</button></label>
<button type="button" id="clear">clear</button>
<span id="complaint" role="alert"></span>
</form>
<div id="legend"></div>
<main>
<div id="stage"><div id="product"></div><div id="memories"></div></div>
<aside aria-label="what is pointed at"><div id="told"></div></aside>
</main>
<div id="summary" role="status"></div>
<script type="application/json" id="data">{embedded(figure.data())}</script>
<script type="application/json" id="palette">{embedded(palette)}</script>
<script>
{script}</script>
</body>
</html>
"""


def embedded(value: Any) -> str:
    """JSON that may stand inside a script element: no `<` in it.

    >>> embedded({"a": "</script>"})
    '{"a":"\\\\u003c/script>"}'
    """
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def product_html(
    mma: MmaAtom | TiledMma,
    a: Any = None,
    b: Any = None,
    *,
    extent: tuple[int, int, int] | None = None,
    copy_a: CopyAtom | None = None,
    copy_b: CopyAtom | None = None,
    title: str | None = None,
) -> str:
    """The page of a matrix product: A at the left, B above, C between them, and the tiles of A and B in shared memory.

    mma      an atom, or one tiled over threads
    a, b     the operands' tiles in shared memory, (m, k) and (n, k): an SmemTile, or a layout under a swizzle. Of an
             operand that a descriptor hands over the page tells which descriptor reads an element
    extent   (M, N, K) of the page; by default that of the tiles, else the instruction's own
    copy_a, copy_b   the ldmatrix that loads the operand from its tile into registers, proven to feed it; by default the
             widest that does, if any. The page tells which lane gives the address of an element's row

    Returns HTML. Raises LayoutError where tiles, extents and instruction do not fit together, and for more elements
    than a page holds.

    >>> from layoutgemm.atoms import mma_sync, smem_tile
    >>> html = product_html(mma_sync((16, 8, 16)), a=smem_tile((16, 64), "bf16", "K"))
    >>> "row address from" in html, len(html) < 100_000
    (True, True)
    """
    return page(product_figure(mma, a, b, extent=extent, copy_a=copy_a, copy_b=copy_b, title=title))


def tile_html(tile: SmemTile, *, title: str | None = None) -> str:
    """The page of a tile: its elements by coordinate, and where they lie in shared memory.

    >>> from layoutgemm.atoms import smem_tile
    >>> "tile in shared memory" in tile_html(smem_tile((8, 64), "bf16", "K"))
    True
    """
    return page(tile_figure(tile, title))


def copy_html(copy: CopyAtom | TiledCopy, *, src: Any = None, dst: Any = None, title: str | None = None) -> str:
    """The page of a copy atom or a tiled copy: source and destination, an element lit up on both.

    src, dst   where that side lies, (row, column) of the picture: of shared memory an SmemTile or a layout, swizzled
               or not; of global memory a layout. Without one a side in shared memory is packed. With one a tiled
               copy's page tells which lanes meet in a bank, too

    Returns HTML. Raises LayoutError for a tile of another extent or type, for one of a side in registers, and for more
    elements than a page holds.

    >>> from layoutgemm.atoms import ldmatrix
    >>> html = copy_html(ldmatrix(4))
    >>> '"name":"source"' in html, '"name":"destination"' in html, "register 3, bits 16-31" in html
    (True, True, True)
    """
    return page(copy_figure(copy, src=src, dst=dst, title=title))


def swizzle_html(
    swizzle: Swizzle, layout: Layout | None = None, bits: int | None = None, *, access: Any = None,
    title: str | None = None,
) -> str:  # fmt: skip
    """The page of a swizzle: a tile before and after it, an element lit up in both, and what meets it in a bank.

    layout   (i, j) -> offset in elements, without swizzle; None: a tile on which all of the swizzle shows
    bits     of an element
    access   whose lanes are told, as in `swizzle_pair_svg`: by default 16-byte rows as ldmatrix reads them

    Returns HTML. Raises LayoutError as `swizzle_pair_svg` does.

    >>> html = swizzle_html(Swizzle(3, 4, 3, "bytes"), Layout((8, 64), (64, 1)), 16)
    >>> "lanes 0-7: 8 words of bank 0" in html, "conflict-free" in html
    (True, True)
    """
    return page(swizzle_figure(swizzle, layout, bits, access=access, title=title))


def layout_html(layout: Drawable, *, title: str | None = None) -> str:
    """The page of a layout of rank 1 or 2: coordinates, and beside them the offsets in order.

    Raises LayoutError as `layout_svg` does, but for larger layouts.
    """
    return page(layout_figure(layout, title))


def tv_html(tv: Drawable, tile: Sequence[int], *, title: str | None = None) -> str:
    """The page of a thread-value layout over its tile (M, N): who holds what.

    tv maps (thread, value) to m + M*n or to the pair (m, n), as in `tv_svg`, and is refused for the same reasons.

    >>> from layoutgemm.layouts import Layout
    >>> "T" in tv_html(Layout(((4, 8), (2, 2)), ((32, 1), (16, 8))), (16, 8))
    True
    """
    return page(tv_figure(tv, tile, title))


def tv_figure(tv: Drawable, tile: Sequence[int], title: str | None = None) -> Figure:
    """What `tv_html` shows."""
    if not isinstance(tv.shape, tuple) or len(tv.shape) != 2:
        raise LayoutError(f"{tv} is not a thread-value layout: that has two modes, threads and values")
    size = (int(tile[0]), int(tile[1]))
    threads, values = extent(tv.shape[0]), extent(tv.shape[1])
    t, v = (grid.ravel() for grid in np.indices((threads, values)))
    found = evaluate(tv, t, v)
    at = np.array([x if isinstance(x, tuple) else (x % size[0], x // size[0]) for x in found], np.int64)
    holder = THREADS(threads)
    holders = Holders.of(size, (at[:, 0], at[:, 1], t, v), [str(value) for value in range(values)])
    paint = holder_paint(holder, holders)
    matrix = Matrix("tile", f"{size[0]}x{size[1]}", ("m", "n"), size, holders=holders, paints=(paint,))
    return Figure(title or f"{tv} over {size[0]}x{size[1]}", (str(tv),) if title else (), (matrix,), holder)


@paged.page.register(PicturedLayout, MmaAtom, TiledMma, CopyAtom, TiledCopy, Swizzle, SmemTile)
def html_of(thing: Any, path: str | Path | None = None, **options: Any) -> str:
    """The linked page of an atom, a tiled one, a tile, a swizzle, a layout, or (with `tile`) a thread-value layout.

    path     a file to write it to, too
    options  of `product_html`, `copy_html`, `tile_html`, `swizzle_html`, `layout_html`, or `tile=(M, N)` of `tv_html`

    >>> from layoutgemm.layouts import Layout
    >>> len(html_of(Layout((4, 8), (8, 1)))) < 50_000
    True
    """
    if isinstance(thing, (MmaAtom, TiledMma)):
        text = product_html(thing, **options)
    elif isinstance(thing, (CopyAtom, TiledCopy)):
        text = copy_html(thing, **options)
    elif isinstance(thing, Swizzle):
        text = swizzle_html(thing, **options)
    elif isinstance(thing, SmemTile):
        text = tile_html(thing, **options)
    elif "tile" in options:
        text = tv_html(thing, options.pop("tile"), **options)
    else:
        text = layout_html(thing, **options)
    if path is not None:
        write(text, path)
    return text


def write(text: str, path: str | Path) -> None:
    """Write a page, making the folders to it."""
    where = Path(path)
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text(text, encoding="utf-8")
