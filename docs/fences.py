"""Build steps of the documentation: pictures, tables and notebooks, from the library and its records.

A page is Markdown with three more kinds of blocks:

    ```picture CAPTION          Python whose last line is an expression: an SVG document, made by the library
    ```generated                Python whose last line is an expression: Markdown, such as a table of a record
    <!-- when NAME --> ... <!-- end -->      kept where NAME, a dotted name or a path, exists

`render` returns plain Markdown. This module does not depend on mkdocs, so that tests can call it.
"""

from __future__ import annotations

import ast
import functools
import html
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_CODE = re.compile(r"`([^`]+)`")  # in a caption
_WHEN = re.compile(r"<!-- when (\S+) -->\n(.*?)<!-- end -->\n?", flags=re.DOTALL)
_FENCE = re.compile(r"^```(picture|generated)(?: +([^\n]*))?\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_PYTHON = re.compile(r"^```(?:python|py|pycon)\b[^\n]*\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
# Stores an SVG document in a file, and returns its address.
Keep = Callable[[str], str]


_PACKAGE = (
    "layoutgemm", "layoutgemm.layouts", "layoutgemm.atoms", "layoutgemm.schedule", "layoutgemm.checks",
    "layoutgemm.view",
)  # fmt: skip


@functools.cache
def named(name: str) -> Any:
    """The object of a name in a block, or None: public names, tables, claims, lists of contents.

    Names are looked up singly, since some load torch, which may be absent.

    >>> named("Layout").__name__, named("gemm_table").__name__, named("no_such")
    ('Layout', 'gemm_table', None)
    """
    if name in ("claims", "sources"):
        return getattr(importlib.import_module("docs.claims"), name)
    if name == "contents":
        return getattr(importlib.import_module("docs.chapters"), name)
    for module in map(importlib.import_module, (*_PACKAGE, "docs.tables")):
        if name in module.__all__:
            return getattr(module, name)
    return None


def exists(name: str) -> bool:
    """True if a dotted name can be imported, or a relative path exists.

    >>> exists("layoutgemm.view.layout_svg"), exists("layoutgemm.view.no_such"), exists("docs/fences.py")
    (True, False, True)
    """
    if "/" in name:
        return (ROOT / name).exists()
    head, _, last = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(head), last)
    except ImportError:
        return False


def visible(markdown: str) -> str:
    """The page without the parts with a false condition.

    >>> visible("a\\n<!-- when no.such -->\\nb\\n<!-- end -->\\nc\\n<!-- when docs/fences.py -->\\nd\\n<!-- end -->\\n")
    'a\\nc\\nd\\n'
    """
    return _WHEN.sub(lambda match: match[2] if exists(match[1]) else "", markdown)


def evaluate(code: str) -> Any:
    """Runs a block and returns the value of its last line, an expression.

    >>> evaluate("x = 6\\nx * 7")
    42
    """
    tree = ast.parse(code)
    last = tree.body.pop()
    if not isinstance(last, ast.Expr):
        raise ValueError(f"a block ends in an expression, not in {ast.unparse(last)!r}")
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    space = {name: named(name) for name in used if named(name) is not None}
    exec(compile(tree, "<block>", "exec"), space)
    return eval(compile(ast.Expression(last.value), "<block>", "eval"), space)


def figure(svg: str, caption: str, keep: Keep) -> str:
    """HTML that shows a picture, with its caption, which may hold code between backticks."""
    if not svg.startswith("<svg"):
        raise ValueError(f"a picture is an SVG document, not {svg[:40]!r}")
    said = html.escape(caption, quote=True)
    shown = _CODE.sub(r"<code>\1</code>", said)
    below = f"<figcaption>{shown}</figcaption>" if caption else ""
    alt = said.replace("`", "") or "picture"
    return f'<figure class="picture"><img src="{keep(svg)}" alt="{alt}" loading="lazy">{below}</figure>'


def render(markdown: str, keep: Keep) -> str:
    """The page with its pictures and tables, and with marked examples."""

    def made(match: re.Match[str]) -> str:
        kind, said, code = match.groups()
        value = evaluate(code)
        return figure(str(value), said or "", keep) if kind == "picture" else str(value)

    def example(match: re.Match[str]) -> str:
        return f"```{'pycon' if '>>>' in match[1] else 'python'}\n{match[1]}```"

    return _PYTHON.sub(example, _FENCE.sub(made, visible(markdown)))
