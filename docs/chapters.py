"""Long files of the repository as several pages: the notes on experiments and the changelog."""

from __future__ import annotations

import re
from pathlib import Path

from docs import tables

ROOT = Path(__file__).resolve().parents[1]
# Name of the first page -> (file, title of the other pages)
BOOKS = {"tried": ("benchmarks/NOTES.md", "What was tried"), "changelog": ("CHANGELOG.md", "Changes")}
MOST_LINES = 190  # of a page: lines of these files take up to 45 pixels each


def pages(markdown: str, most: int = MOST_LINES) -> list[str]:
    """The text in pieces of whole sections: of at most `most` lines, or one section.

    >>> pages("a\\n## b\\nc\\n## d\\n", most=3)
    ['a\\n## b\\nc\\n', '## d\\n']
    """
    out = [""]
    for section in re.split(r"^(?=##+ )", markdown, flags=re.MULTILINE):
        if out[-1] and (out[-1] + section).count("\n") > most:
            out.append("")
        out[-1] += section
    return out


def chapters(name: str) -> dict[str, str]:
    """The pages of a book behind its first one: address -> Markdown, with an anchor at each heading."""
    source, title = BOOKS[name]
    parts = pages(tables.plain((ROOT / source).read_text(encoding="utf-8")))
    out = {}
    for i, part in enumerate(parts, 1):
        following = f"\n\nNext: [{title}, {i + 1}]({i + 1}.md)\n" if i < len(parts) else "\n"
        out[f"{name}/{i}.md"] = f"# {title}, {i} of {len(parts)}\n\n{_anchored(part).strip()}{following}"
    return out


def contents(name: str) -> str:
    """A list of links to all sections of a book."""
    lines = []
    for address, text in chapters(name).items():
        for depth, said, anchor in re.findall(r"^##(#*) (.*) \{ #([\w-]+) \}$", text, flags=re.MULTILINE):
            lines.append(f"{'    ' * len(depth)}- [{said}]({address}#{anchor})")
    return "\n".join(lines)


def _anchored(part: str) -> str:
    """The text with an anchor of its own at each heading: those of a title may contain any character."""
    numbers = iter(range(1, part.count("\n") + 2))
    return re.sub(r"^(##+ .*)$", lambda match: f"{match[1]} {{ #part-{next(numbers)} }}", part, flags=re.MULTILINE)
