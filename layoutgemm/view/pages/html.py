"""Linked pages, one HTML file each. An element lights up in A, B, C and shared memory at once.

A page needs nothing but itself: style, script and data are inside, and its content security policy forbids it to fetch
anything. It works with mouse, touch and keyboard, in light and dark, and offers a field to jump to an element, a thread
or a byte. All numbers are computed here by the layouts; the browser looks them up.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, ParamSpec

from layoutgemm.arguments import as_path
from layoutgemm.atoms import CopyAtom, MmaAtom, SmemTile, TiledMma
from layoutgemm.atoms.tiled.copy import TiledCopy
from layoutgemm.layouts import Swizzle, display
from layoutgemm.layouts.display import PicturedLayout
from layoutgemm.lazy_numpy import np
from layoutgemm.view.canvas import escape
from layoutgemm.view.grid import Drawable, by_threads, evaluate, thread_value
from layoutgemm.view.pages.banks import swizzle_figure
from layoutgemm.view.pages.copy import copy_figure
from layoutgemm.view.pages.model import THREADS, Figure, Holders, PageMatrix
from layoutgemm.view.pages.parts import holder_paint, layout_figure, tile_figure
from layoutgemm.view.pages.product import product_figure
from layoutgemm.view.palette import HUES, lighter

P = ParamSpec("P")
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
    assets = ("page.html", "style.css", *SCRIPTS)
    template, style, *scripts = ((folder / name).read_text(encoding="utf-8") for name in assets)
    palette = {"hues": HUES, "odd": [lighter(color, ODD) for color in HUES]}
    notes = "".join(f"<p>{escape(note)}</p>" for note in figure.notes)
    return Template(template).substitute(
        policy=POLICY, title=escape(figure.title), notes=notes, style=style, script="\n".join(scripts),
        data=embedded(figure.data()), palette=embedded(palette),
    )  # fmt: skip


def embedded(value: object) -> str:
    """JSON that may stand inside a script element: no `<` in it.

    >>> embedded({"a": "</script>"})
    '{"a":"\\\\u003c/script>"}'
    """
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def tv_figure(tv: Drawable, tile: Sequence[int], *, title: str | None = None) -> Figure:
    """The page of a thread-value layout over its tile (M, N). The holders of each element.

    tv maps (thread, value) to m + M*n or to the pair (m, n), as in `tv_svg`, and is refused for the same reasons.

    >>> from layoutgemm.layouts import Layout
    >>> "T" in tv_html(Layout(((4, 8), (2, 2)), ((32, 1), (16, 8))), (16, 8))
    True
    """
    tv = by_threads(tv)
    threads, values = thread_value(tv)
    size = (int(tile[0]), int(tile[1]))
    t, v = (grid.ravel() for grid in np.indices((threads, values)))
    found = evaluate(tv, t, v)
    at = np.array([x if isinstance(x, tuple) else (x % size[0], x // size[0]) for x in found], np.int64)
    holder = THREADS(threads)
    holders = Holders.of(size, (at[:, 0], at[:, 1], t, v), [str(value) for value in range(values)])
    paint = holder_paint(holder, holders)
    matrix = PageMatrix("tile", f"{size[0]}x{size[1]}", ("m", "n"), size, holders=holders, paints=(paint,))
    return Figure(title or f"{tv} over {size[0]}x{size[1]}", (f"{tv}",) if title else (), (matrix,), holder)


def as_page(figure: Callable[P, Figure]) -> Callable[P, str]:
    """The function that makes the HTML of a figure, with the figure's arguments."""

    @functools.wraps(figure)
    def html(*args: P.args, **options: P.kwargs) -> str:
        return page(figure(*args, **options))

    return html


product_html, copy_html, swizzle_html = as_page(product_figure), as_page(copy_figure), as_page(swizzle_figure)
tile_html, layout_html, tv_html = as_page(tile_figure), as_page(layout_figure), as_page(tv_figure)


PAGES: tuple[tuple[tuple[type, ...], Callable[..., str]], ...] = (
    ((MmaAtom, TiledMma), product_html),
    ((CopyAtom, TiledCopy), copy_html),
    ((Swizzle,), swizzle_html),
    ((SmemTile,), tile_html),
)


@display.page.register(PicturedLayout, MmaAtom, TiledMma, CopyAtom, TiledCopy, Swizzle, SmemTile)
def html_of(thing: Any, path: str | Path | None = None, **options: Any) -> str:
    """The linked page of an atom, a tile, a swizzle, or a layout.

    path     a file to write it to, too
    options  of `product_html`, `copy_html`, `tile_html`, `swizzle_html`, `layout_html`, or `tile=(M, N)` of `tv_html`

    >>> from layoutgemm.layouts import Layout
    >>> len(html_of(Layout((4, 8), (8, 1)))) < 50_000
    True
    """
    flat = tv_html if "tile" in options else layout_html
    make = next((make for kinds, make in PAGES if isinstance(thing, kinds)), flat)
    text = make(thing, **options)
    if path is not None:
        write(text, path)
    return text


def write(text: str, path: str | Path) -> None:
    """Write a page, making the folders to it."""
    where = as_path(path, "path of a page")
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text(text, encoding="utf-8")
