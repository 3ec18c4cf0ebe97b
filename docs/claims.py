"""The page of published claims, from the list in layouts/published_claims.py."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).resolve().parents[1] / "layouts" / "published_claims.py"


@functools.cache
def program() -> Any:
    """The program, as a module."""
    spec = importlib.util.spec_from_file_location("published_claims", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def sources() -> str:
    """The documents whose statements are decided, by the names that the statements have."""
    found = program()
    rows = []
    for name, title in found.SOURCES.items():
        wrong = [str(i) for i, claim in enumerate(found.CLAIMS, 1) if not claim.holds and claim.source.startswith(name)]
        rows.append(f"| {name} | {title} | {', '.join(wrong) or 'none'} |")
    return "\n".join(["| name | document | refuted statements |", "|---|---|---|", *rows])


def claims() -> str:
    """All published claims by topic, with proof or counterexample, after a summary table."""
    found = program().CLAIMS
    rows, sections, topic = [], [], ""
    for number, claim in enumerate(found, 1):
        holds, line = claim.answer()
        if holds is not claim.holds:
            raise ValueError(f"{claim.says}: expected {claim.holds}, found {line}")
        if claim.topic != topic:
            topic = claim.topic
            sections.append(f"## {topic.capitalize()}")
        kind, mark = ("success", "holds") if holds else ("failure", "does not hold")
        text = [
            f'!!! {kind} "{number}. {claim.source}: {mark}"',
            "",
            "    " + _code(claim.says),
            "",
            f"    {_answer(line)}",
        ]
        if claim.right:
            text += ["", f"    {claim.right}"]
        sections.append("\n".join(text))
        rows.append(f"| {number} | {claim.source} | {mark.replace(' ', chr(0xA0))} | {_code(claim.says)} |")
    wrong = sum(not claim.holds for claim in found)
    head = f"{len(found)} statements: {len(found) - wrong} hold, {wrong} do not."
    return "\n\n".join(
        [head, "\n".join(["| no. | source | verdict | statement |", "|---|---|---|---|", *rows]), *sections]
    )


def _code(says: str) -> str:
    return f"`{says}`" if any(sign in says for sign in "=*(") else says


def _answer(line: str) -> str:
    return f"*{line}*" if "`" not in line and "*" not in line else f"`{line}`"
