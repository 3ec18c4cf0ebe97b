"""Fills that stay apart for colour-blind readers and carry black text.

The eight hues are Paul Tol's "light" qualitative scheme for labelled cells (SRON/EPS/TN/09-002, issue 3.2, figure 6),
without its olive, which on a screen is close to the pear. They differ in protanopia and deuteranopia (a test simulates
both). In the rare tritanopia blue and mint come close, but every cell also prints its meaning.
"""

from __future__ import annotations

import functools

HUES = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#44BB99", "#99DDFF", "#BBCC33", "#DDDDDD")
INK = "#111111"
FAINT = "#555555"
PAPER = "#FFFFFF"
EMPTY = "#F4F4F4"

# What lies on the paper, as opposed to what lies on a fill, is painted by role: (in a light page, in a dark one). The
# hues and the text on them are the same in both: pastel fills with dark text stand out on white and on black.
ROLES = {
    "ink": (INK, "#F2F2F2"),
    "faint": (FAINT, "#B9BEC6"),
    "line": (FAINT, "#8B929C"),  # borders of grids
    "paper": (PAPER, "#15171C"),
    "idle": ("#C9CDD3", "#6B727C"),  # time that passes without work
    "track": (EMPTY, "#262A31"),  # where something could be; carries no text
    "halo": ("none", "#F2F2F2"),  # below an outline in ink that lies on the paper in places
    "empty": (EMPTY, "#A3A8AF"),  # a cell that holds nothing; carries dark text
}


def rgb(color: str) -> tuple[int, int, int]:
    """`#RRGGBB` -> its three channels, 0 to 255.

    >>> rgb("#77AADD")
    (119, 170, 221)
    """
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


@functools.cache
def lighter(color: str, share: float) -> str:
    """The colour mixed with white; share 0 is the colour, 1 is white.

    >>> lighter("#77AADD", 0.5)
    '#BBD4EE'
    """
    return "#" + "".join(f"{int(channel + (255 - channel) * share):02X}" for channel in rgb(color))


def hue(index: int) -> str:
    """The fill of group `index`; after eight groups the hues come again.

    >>> hue(1) == hue(9) == HUES[1]
    True
    """
    return HUES[index % len(HUES)]


def each_hue(low: int, high: int) -> int:
    """Integers of low..high that one hue stands for. A power of two, so that all hues do.

    >>> each_hue(0, 63), each_hue(0, 64)
    (8, 16)
    """
    return 1 << max(0, -(-(high - low + 1) // len(HUES)) - 1).bit_length()


def dark_rules(body: str) -> str:
    """The style sheet of a dark page. What each role in the picture becomes, as a fill and as a stroke.

    >>> dark_rules('<rect class="lgf-paper"/><path class="lgs-ink"/>')
    '.lgs-ink{stroke:#F2F2F2}.lgf-paper{fill:#15171C}'
    """
    classes = [(f"lg{what[0]}-{role}", what, dark) for role, (_, dark) in ROLES.items() for what in ("fill", "stroke")]
    return "".join(f".{name}{{{what}:{dark}}}" for name, what, dark in classes if f'class="{name}"' in body)


def paint(color: str, what: str = "fill") -> str:
    """A role or a colour as SVG attributes. The light page's colour, and the class by which a dark page changes it.

    >>> paint("faint"), paint("#77AADD", "stroke")
    ('fill="#555555" class="lgf-faint"', 'stroke="#77AADD"')
    """
    if color in ROLES:
        return f'{what}="{ROLES[color][0]}" class="lg{what[0]}-{color}"'
    return f'{what}="{color}"'
