"""The API pages: which object stands on which page, and how long each page is.

A page names its objects in blocks, which become mkdocstrings' directives:

    ```api layoutgemm.layouts
    Layout: size rank compose       some members of a class
    Swizzle                         a class or a function, whole
    Layout.coalesce                 one method
    ```
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

API = Path(__file__).resolve().parent / "api"
SCREEN = 1000  # px of a browser window that is 1280 px wide
MOST_SCREENS = 10  # of a page
# Whose public names each stand on one page
PACKAGES = ("layoutgemm.layouts", "layoutgemm.atoms", "layoutgemm.checks", "layoutgemm.schedule", "layoutgemm.kernels",
            "layoutgemm.view")  # fmt: skip
_BLOCK = re.compile(r"^```api ([\w.]+)\n(.*?)^```\n", flags=re.DOTALL | re.MULTILINE)
# Pixels, measured on the built site: of a heading with its signature, and of a line of a docstring
HEADING, LINE, WIDTH, FRAME = 95, 21, 88, 400


def entries(markdown: str) -> Iterator[tuple[str, str, list[str]]]:
    """(module, name, members) of each object of a page; no members are all of them.

    >>> list(entries("```api layoutgemm\\nLayout: size rank\\nE\\n```\\n"))
    [('layoutgemm', 'Layout', ['size', 'rank']), ('layoutgemm', 'E', [])]
    """
    for block in _BLOCK.finditer(markdown):
        for line in block[2].strip().split("\n"):
            name, _, members = line.partition(":")
            yield block[1], name.strip(), members.split()


def expanded(markdown: str) -> str:
    """The page with a directive for each object in place of its blocks."""

    def directives(block: re.Match[str]) -> str:
        out = []
        for module, name, members in entries(block[0]):
            options = (
                "{show_root_heading: true, show_root_toc_entry: true, show_root_full_path: false, heading_level: 2"
            )
            chosen = f", members: [{', '.join(members)}]" if members else ""
            out.append(f"::: {module}.{name}\n    options: {options}{chosen}}}\n")
        return "\n".join(out)

    return _BLOCK.sub(directives, markdown)


def found(module: str, name: str) -> Any:
    """The object of an entry."""
    value = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def height(text: str | None) -> int:
    """Pixels that a docstring takes, about."""
    lines = [line for each in (text or "").split("\n") for line in textwrap.wrap(each, WIDTH) or [""]]
    return HEADING + LINE * len(lines)


def estimate(markdown: str) -> int:
    """Pixels that a page takes, about: what its docstrings take. The slow test measures the page itself."""
    total = FRAME
    for module, name, members in entries(markdown):
        value = found(module, name)
        total += height(_said(value))
        if inspect.isclass(value):
            own = [key for key, each in vars(value).items() if not key.startswith("_") and _said(each)]
            total += sum(height(_said(inspect.getattr_static(value, key))) for key in members or own)
    return total


def _said(value: object) -> str:
    """The docstring that stands at an object itself; "" for none, and for the values of fields."""
    method = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    documented = inspect.isclass(method) or inspect.isroutine(method) or isinstance(method, property)
    documented = documented or hasattr(method, "func")  # a cached property
    return inspect.cleandoc(method.__doc__ or "") if documented else ""
