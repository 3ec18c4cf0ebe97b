"""A growing SVG document. A few shapes, escaped text, and the frame that makes it scale and speak."""

from __future__ import annotations

import functools
import math
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from layoutgemm.errors import printable
from layoutgemm.view.palette import INK, dark_rules, paint

SANS = "system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif"
MONO = "ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace"
# Width of a character in a monospaced font, in font sizes. Sans text is narrower on average: this bounds both.
CHARACTER = 0.61
SPECIAL = re.compile("[^ !#-%'-;=?-\ud7ff\ue000-\ufffd]")  # what has to be written otherwise, or not at all
DARK = "@media (prefers-color-scheme:dark)"


def escape(text: str) -> str:
    """Text as XML character data, also safe inside a double-quoted attribute.

    >>> escape('a < b & "c"')
    'a &lt; b &amp; &quot;c&quot;'
    """
    if (text.isascii() and text.isalnum()) or not SPECIAL.search(text):
        return text
    legal = "".join(c if c >= " " and not 0xD800 <= ord(c) <= 0xDFFF and c not in "\ufffe\uffff" else " " for c in text)
    return legal.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


@functools.lru_cache(1 << 14)
def number(value: float) -> str:
    """A coordinate in pixels, to a tenth, without a needless `.0`.

    >>> number(12.0), number(3.14159)
    ('12', '3.1')
    """
    return f"{value + 0.0:.1f}".removesuffix(".0")  # -0.0 and 0.0 are one key, and one text


def width_of(text: str, size: float) -> float:
    """An upper estimate of a text's width, in the unit of `size`. SVG cannot measure fonts.

    >>> round(width_of("T127", 10), 1)
    24.4
    """
    return len(text) * CHARACTER * size


class Picture(str):
    """An SVG document. Text, which a notebook draws when it is the last value of a cell.

    >>> picture = Picture("<svg></svg>")
    >>> picture == picture._repr_svg_() == "<svg></svg>"
    True
    """

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


@dataclass(slots=True)
class Canvas:
    """SVG elements in drawing order. Coordinates are pixels of the unscaled picture, y downwards."""

    parts: list[str] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        """A filled rectangle."""
        self.parts.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" {paint(fill)}/>'
        )

    def circle(self, x: float, y: float, radius: float, fill: str, stroke: str, stroke_width: float) -> None:
        """A filled circle with a border."""
        self.parts.append(
            f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}" {paint(fill)} '
            f'{paint(stroke, "stroke")} stroke-width="{number(stroke_width)}"/>'
        )

    def boxes(self, corners: Iterable[tuple[float, float, float]], height: float, fill: str) -> None:
        """Rectangles (x, y, width) of one height and colour, as one path."""
        found, high = list(corners), number(height)
        rest = {w: f"h{number(w)}v{high}h{number(-w)}z" for w in {w for _, _, w in found}}
        path = "".join([f"M{number(x)} {number(y)}{rest[w]}" for x, y, w in found])
        self.parts.append(f'<path d="{path}" {paint(fill)}/>')

    def frame(self, x: float, y: float, width: float, height: float, stroke_width: float, dots: str = "") -> None:
        """An empty rectangle in the ink of cells. `dots`: lengths of dashes and gaps."""
        dashes = f' stroke-dasharray="{dots}"' if dots else ""
        self.parts.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
            f'fill="none" stroke="{INK}" stroke-width="{number(stroke_width)}"{dashes}/>'
        )

    def lines(self, segments: Iterable[tuple[float, float, float, float]], stroke: str, stroke_width: float) -> None:
        """Straight lines (x0, y0, x1, y1) as one path."""
        path = "".join(f"M{number(a)} {number(b)}L{number(c)} {number(d)}" for a, b, c, d in segments)
        width = number(stroke_width)
        self.parts.append(f'<path d="{path}" {paint(stroke, "stroke")} stroke-width="{width}" fill="none"/>')

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        *,
        fill: str = "ink",
        anchor: str = "start",
        mono: bool = False,
        bold: bool = False,
    ) -> None:
        """One line of text; y is its baseline."""
        self.open_texts(size, fill=fill, anchor=anchor, mono=mono, bold=bold)
        self.put(x, y, text)
        self.close()

    def open_texts(
        self, size: float, *, fill: str = INK, anchor: str = "middle", mono: bool = False, bold: bool = False
    ) -> None:
        """Starts a group of texts of one style, on cells unless `fill` says otherwise. `close` ends it."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<g font-family="{MONO if mono else SANS}" font-size="{number(size)}"{weight} '
            f'text-anchor="{anchor}" {paint(fill)}>'
        )

    def put(self, x: float, y: float, text: str) -> None:
        """A text in the style of the open group; y is its baseline."""
        self.parts.append(f'<text x="{number(x)}" y="{number(y)}">{escape(text)}</text>')

    def close(self) -> None:
        """Ends a group."""
        self.parts.append("</g>")

    def axis(self, ticks: Iterable[tuple[float, str]], y: float, length: float, width: float = 1) -> None:
        """Ticks (x, text) of an axis at y. Lines of that length from 4 above it."""
        at = list(ticks)
        self.lines([(x, y - 4, x, y - 4 + length) for x, _ in at], "line", width)
        self.open_texts(11, fill="faint")
        for x, text in at:
            self.put(x, y - 7, text)
        self.close()

    def open(self, attributes: str) -> None:
        """Starts a group with these attributes; ends with `close`."""
        self.parts.append(f"<g {attributes}>")

    def shape(self, path: str, attributes: str, title: str = "") -> None:
        """A path, with `title` under the pointer."""
        told = f"<title>{escape(title)}</title>" if title else ""
        self.parts.append(
            f'<path d="{path}" {attributes}>{told}</path>' if told else f'<path d="{path}" {attributes}/>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        title: str,
        *,
        stroke: str = "",
        data: str = "",
    ) -> None:
        """A filled rectangle with a title under the pointer, a border, and attributes for programs."""
        border = f' stroke="{stroke}"' if stroke else ""
        self.parts.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" {paint(fill)}'
            f"{border}{f' {data}' if data else ''}><title>{escape(title)}</title></rect>"
        )

    def render(self, width: float, height: float, title: str, description: Sequence[str]) -> str:
        """The document. It shrinks to the width of a notebook cell, never grows, and is dark in a dark page.

        Colours are attributes, which every renderer knows; a style sheet changes those of the roles. (`block-size` is
        `height` to a browser; converters such as CairoSVG take `height:auto` for zero.) Ids come from the content:
        several pictures fit in one page, and equal pictures are equal text.
        """
        title, body = printable(title), printable("\n".join(self.parts))
        paper = f'<rect width="100%" height="100%" {paint("paper")}/>'
        mark = f"{zlib.crc32((title + body).encode()):08x}"
        width, height = math.ceil(width), math.ceil(height)  # a part of a pixel would be half transparent in a PNG
        return Picture(
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title-{mark} desc-{mark}" '
            f'width="{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}" '
            f'style="max-width:100%;block-size:auto">\n'
            f'<title id="title-{mark}">{escape(title)}</title>\n'
            f'<desc id="desc-{mark}">{escape(printable(" ".join(description)))}</desc>\n'
            f"<style>{DARK}{{{dark_rules(paper + body)}}}</style>\n"
            f"{paper}\n{body}\n</svg>\n"
        )
