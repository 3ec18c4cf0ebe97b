"""A jupytext notebook as a page, with printed output and last picture of each cell."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import re
from pathlib import Path
from typing import Any

from docs.fences import Keep, figure


def cells(text: str) -> list[tuple[str, str]]:
    """(kind, source) of each cell, kind "markdown" or "code"; the header before the first is left out.

    >>> cells("# ---\\n# %% [markdown]\\n# # T\\n#\\n# text\\n\\n# %%\\nx = 1\\n")
    [('markdown', '# T\\n\\ntext'), ('code', 'x = 1')]
    """
    parts = re.split(r"^# %%(.*)\n", text, flags=re.MULTILINE)[1:]
    found = []
    for mark, body in zip(parts[::2], parts[1::2], strict=True):
        if "[markdown]" in mark:
            body = re.sub(r"^# ?", "", body, flags=re.MULTILINE)
        found.append(("markdown" if "[markdown]" in mark else "code", body.strip("\n")))
    return found


def run_cell(source: str, space: dict[str, Any]) -> tuple[str, Any]:
    """Runs a cell as a notebook does; returns its output and the value of a last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), space)
        value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), space) if last else None
    return printed.getvalue(), value


def page(path: Path, keep: Keep) -> str:
    """The Markdown of a notebook. Without the CuTe DSL, cells that need it are shown and not run."""
    text = path.read_text(encoding="utf-8")
    runs = "\n# Needs: dsl" not in text or importlib.util.find_spec("cutlass") is not None
    space: dict[str, Any] = {"__name__": "notebook"}
    out = []
    for kind, source in cells(text):
        if kind == "markdown":
            out.append(re.sub(r"^Needs: dsl$", "*Needs the extra `dsl`; no GPU.*", source, flags=re.MULTILINE))
            continue
        out.append(f"```python\n{source}\n```")
        printed, value = run_cell(source, space) if runs else ("", None)
        if printed:
            out.append(f'<div class="printed" markdown>\n```text\n{printed.rstrip()}\n```\n</div>')
        svg = value._repr_svg_() if hasattr(value, "_repr_svg_") else None
        if svg:
            out.append(figure(svg, "", keep))
        elif value is not None:
            out.append(f'<div class="printed" markdown>\n```text\n{value!r}\n```\n</div>')
    source = f"`notebooks/{path.name}`; `jupytext --to ipynb notebooks/{path.name}` makes a notebook of it."
    return "\n\n".join([*out, f"---\n\nThis page is {source}"]) + "\n"
