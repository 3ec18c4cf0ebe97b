"""A picture as PNG, by resvg (the extra `png`). An SVG renderer that needs no library of the system."""

from __future__ import annotations

import os
import sys

from layoutgemm.errors import LayoutError
from layoutgemm.layouts import display
from layoutgemm.view import canvas
from layoutgemm.view.canvas import DARK
from layoutgemm.view.palette import ROLES

from ..arguments import as_path, checked, shown
from ..regex import regex

# The generic families of a document whose named fonts are not installed.
FAMILIES = {"darwin": ("Helvetica", "Menlo"), "win32": ("Segoe UI", "Consolas")}
LINUX = ("DejaVu Sans", "DejaVu Sans Mono")
PROBE = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><text y="16" font-family="{}">{}</text></svg>'
_ROLE = regex(
    rf'(fill|stroke)="[^"]*" class="lg[fs]-({"|".join(ROLES)})"'
)  # as `paint` writes it; texts have no quotes
SCALE = 2.0  # pixels of the file for one of the picture


@checked()
def png(svg: str, *, dark: bool = False, scale: float = SCALE) -> bytes:
    """An SVG document of this package as the bytes of a PNG file. `dark`: as it is in a dark page.

    Raises LayoutError where the renderer is not installed, and where it finds no font: it would leave out every text.
    """
    try:
        import resvg_py
    except ImportError:
        raise LayoutError("no renderer for PNG is installed: pip install 'layoutgemm[png]', or save an .svg") from None
    if dark:
        svg = dark_svg(svg)
    sans, mono = FAMILIES.get(sys.platform, LINUX)

    def draw(document: str, zoom: float) -> bytes:
        try:
            found = resvg_py.svg_to_bytes(svg_string=document, zoom=zoom, sans_serif_family=sans, monospace_family=mono)
        except ValueError as error:
            raise LayoutError(f"png of {shown(document)}: no SVG document: {error}") from None
        return bytes(found)

    for families in (canvas.SANS, canvas.MONO):
        if draw(PROBE.format(families, "x"), 1) == draw(PROBE.format(families, ""), 1):
            raise LayoutError(f"the PNG would have no text: none of the fonts {families} is installed")
    return draw(svg, scale)


@display.darkened.register(str)
def dark_svg(svg: str) -> str:
    """The document as it is in a dark page, whatever the reader's. It is for renderers that know no media queries.

    The colours become attributes: in a page with several pictures, a style sheet would paint all of them.

    >>> dark_svg("<style>" + DARK + '{.lgf-ink{fill:#F2F2F2}}</style><g fill="#111111" class="lgf-ink"/>')
    '<g fill="#F2F2F2"/>'
    """
    before, found, rest = svg.partition(f"<style>{DARK}{{")
    body = rest.partition("</style>")[2]
    if not found:
        return svg
    return _ROLE.sub(lambda role: f'{role[1]}="{ROLES[role[2]][1]}"', before + body.removeprefix("\n"))


@display.save.register(str)
@checked()
def save(svg: str, path: str | os.PathLike[str], *, dark: bool = False) -> None:
    """Writes a picture to a file, whose folder is made. PNG where its name ends in .png, else SVG as it is.

    Raises LayoutError as `png` does, and OSError where the file cannot be written.
    """
    file = as_path(path, "path of save")
    if file.suffix.lower() == ".png":
        content = png(svg, dark=dark)
    else:
        content = (dark_svg(svg) if dark else svg).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
