"""A picture as PNG, by resvg (the extra `png`): an SVG renderer that needs no library of the system."""

from __future__ import annotations

import os
from pathlib import Path

from layoutgemm.errors import LayoutError
from layoutgemm.view.canvas import DARK

SANS, MONO = "DejaVu Sans", "DejaVu Sans Mono"  # where the system names no font of its own
SCALE = 2.0  # pixels of the file for one of the picture


def png(svg: str, *, dark: bool = False, scale: float = SCALE) -> bytes:
    """An SVG document of this package as the bytes of a PNG file; `dark`: as it is in a dark page.

    Raises LayoutError where the renderer is not installed.
    """
    try:
        import resvg_py
    except ImportError:
        raise LayoutError("no renderer for PNG is installed: pip install 'layoutgemm[png]', or save an .svg") from None
    if dark:
        svg = dark_svg(svg)
    drawn = resvg_py.svg_to_bytes(svg_string=svg, zoom=scale, sans_serif_family=SANS, monospace_family=MONO)
    return bytes(drawn)


def dark_svg(svg: str) -> str:
    """The document as it is in a dark page, whatever the reader's: for renderers that know no media queries.

    >>> dark_svg("<style>" + DARK + "{.a{fill:red}}</style>")
    '<style>.a{fill:red}</style>'
    """
    before, found, rest = svg.partition(f"<style>{DARK}{{")
    return f"{before}<style>{rest.replace('}</style>', '</style>', 1)}" if found else svg


def save(svg: str, path: str | os.PathLike[str], *, dark: bool = False) -> None:
    """Writes a picture to a file, whose folder is made: PNG where its name ends in .png, else SVG as it is.

    Raises LayoutError as `png` does, and OSError where the file cannot be written.
    """
    file = Path(path)
    if file.suffix.lower() == ".png":
        content = png(svg, dark=dark)
    else:
        content = (dark_svg(svg) if dark else svg).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
