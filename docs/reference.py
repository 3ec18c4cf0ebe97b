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
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

API = Path(__file__).resolve().parent / "api"
SCREEN = 1000  # px of a browser window that is 1280 px wide
MOST_SCREENS = 10  # of a page
# Whose public names each stand on one page
PACKAGES = ("layoutgemm.layouts", "layoutgemm.atoms", "layoutgemm.checks", "layoutgemm.schedule", "layoutgemm.kernels",
            "layoutgemm.view")  # fmt: skip
_BLOCK = re.compile(r"^```api ([\w.]+)\n(.*?)^```\n", flags=re.DOTALL | re.MULTILINE)
# A directive for a whole module, and its options
_MODULE = re.compile(r"^::: ([\w.]+)\n(?:    options: \{([^\n]*)\}\n)?", flags=re.MULTILINE)
# Pixels, measured on the built site: of a heading with its signature, and of a line of a docstring
HEADING, LINE, WIDTH = 95, 21, 88


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
            out.append(f"::: {path(module, name)}\n    options: {options}{chosen}}}\n")
        return "\n".join(out)

    return _BLOCK.sub(directives, markdown)


def path(module: str, name: str) -> str:
    """The dotted path of an entry. A file of the same name would hide it: then it is the path of its definition.

    >>> path("layoutgemm.kernels", "plan"), path("layoutgemm.layouts", "Layout.coalesce")
    ('layoutgemm.kernels.planner.plan', 'layoutgemm.layouts.Layout.coalesce')
    """
    folder = Path(__file__).resolve().parents[1].joinpath(*module.split("."))
    hidden = (folder / f"{name}.py").exists() or (folder / name).is_dir()
    return f"{found(module, name).__module__}.{name}" if hidden else f"{module}.{name}"


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
    """Pixels that the objects of a page take, about. The slow test measures the page itself."""
    total = 0
    for module, options in _MODULE.findall(markdown):
        value = importlib.import_module(module)
        total += height(value.__doc__) + sum(_object(getattr(value, name)) for name in shown(value, options))
    return total + sum(_object(found(module, name), members) for module, name, members in entries(markdown))


def without_objects(markdown: str) -> str:
    """The page's own text, without its objects."""
    return _MODULE.sub("", _BLOCK.sub("", markdown))


def shown(module: ModuleType, options: str) -> list[str]:
    """The names of a module that its directive shows: the members listed, or the documented ones that filters leave.

    >>> shown(importlib.import_module("layoutgemm.layouts.registries"), 'filters: ["!^_"]')
    ['Registry']
    """
    listed = re.search(r"members: \[([^]]*)\]", options)
    if listed is not None:
        return [name.strip() for name in listed[1].split(",")]
    hidden = re.findall(r'"!([^"]+)"', options) or ["^_"]
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return [name for name in own if _said(vars(module)[name]) and not any(re.search(each, name) for each in hidden)]


def _object(value: object, members: Sequence[str] = ()) -> int:
    """Pixels of an object with its documented members, or with some of them."""
    total = height(_said(value))
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
