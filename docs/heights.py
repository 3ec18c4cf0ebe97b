"""The height of a page of Markdown on the built site, about: what its lines, tables, code and pictures take.

Measured in a window that is 1280 px wide, where the text takes 748 px. The slow test measures the pages themselves.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

FRAME = 230  # px of the page's head and foot
WIDTH = 748  # px of the text
LINE, CHARACTERS = 25.6, 90  # of a paragraph
CODE = 17.9  # px of a line of code
ROW, ROW_LINE, CELL, LETTER = 9.7, 19.84, 23, 6.4  # px of a table: of a row beyond its lines, of a cell's sides
HEADINGS = {"#": 82, "##": 75, "###": 62}
_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_FIGURE = re.compile(r"<figure[^\n]*</figure>")
_FOLDED = re.compile(
    r"^\?\?\? [^\n]*\n(?:[ \t]*\n|    [^\n]*\n)*", flags=re.MULTILINE
)  # a note that is closed at first
_CODE = re.compile(r"`[^`]*`")  # breaks anywhere
_LINK = re.compile(r"\]\([^)]*\)|[`*\[]")
_BOX = re.compile(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"')
_ITEM = re.compile(r"\n(?=\s*(?:[-*]|\d+\.) )")


def height(markdown: str, pictures: Iterable[str] = ()) -> float:
    """Pixels of a page from its Markdown and the SVG documents of its pictures.

    >>> height("# Title\\n\\nOne line.\\n") == FRAME + 82 + LINE + 16
    True
    """
    markdown, folded = _FOLDED.subn("\n", markdown)
    code = [block.count("\n") for block in _FENCE.findall(markdown)]
    total = FRAME + 50 * folded + sum(36 + CODE * lines for lines in code)
    for svg in pictures:
        wide, tall = map(float, _BOX.findall(svg)[0])
        total += tall * min(1, WIDTH / wide) + 64
    rest = _FIGURE.sub("", _FENCE.sub("\n", markdown))
    for block in re.split(r"\n\s*\n", rest.strip()):
        lines = block.strip("\n").split("\n")
        if lines[0].startswith("|"):
            total += _table([_cells(line) for line in lines if not re.match(r"\|[ :|-]+\Z", line)]) + 16
            continue
        for line in lines:
            mark = line.partition(" ")[0]
            total += HEADINGS.get(mark, 0) if set(mark) == {"#"} else 0
        words = "\n".join(line for line in lines if not line.startswith("#"))
        for item in _ITEM.split(words) if words.strip() else ():
            wrapped = textwrap.wrap(_LINK.sub("", " ".join(item.split())), CHARACTERS)
            total += LINE * len(wrapped) + (8 if re.match(r"\s*(?:[-*]|\d+\.) ", item) else 16)
    return total


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _table(rows: Sequence[Sequence[str]]) -> float:
    """Pixels of a table: columns are as wide as their longest word, and share what is left by what they need."""
    columns = range(max(map(len, rows)))
    least, most = ([max((fitted(row[i]) for row in rows if i < len(row)), default=0) for i in columns]
                   for fitted in (_longest, _letters))  # fmt: skip
    room = (WIDTH - CELL * len(columns)) / LETTER - sum(least)
    asked = sum(most) - sum(least)
    share = min(1.0, max(0.0, room) / asked) if asked else 1.0
    widths = [max(1, int(a + share * (b - a))) for a, b in zip(least, most, strict=True)]
    lines = [max(len(textwrap.wrap(_LINK.sub("", cell), widths[i])) or 1 for i, cell in enumerate(row)) for row in rows]
    return sum(ROW + ROW_LINE * each for each in lines)


def _letters(cell: str) -> int:
    return len(_LINK.sub("", cell))


def _longest(cell: str) -> int:
    """The letters of a cell's longest word outside of code."""
    return max(map(_letters, _CODE.sub(" ", cell).split()), default=0)
