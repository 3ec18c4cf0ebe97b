"""Docstrings as Markdown. Prompt examples become code blocks, since Markdown reads `>>>` as quotations."""

from __future__ import annotations

import griffe


def fenced(text: str) -> str:
    """The docstring with its examples and its aligned lists of names in code fences.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2\\n\\nThen more.")
    'Adds.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n\\nThen more.'
    """
    out: list[str] = []
    for block in text.split("\n\n"):
        lines = block.split("\n")
        at = next((i for i, line in enumerate(lines) if line.startswith(">>> ")), None)
        if at is not None:
            before, example = lines[:at], lines[at:]
            out.append("\n".join([*before, *([""] if before else []), "```pycon", *example, "```"]))
        elif len(lines) > 0 and lines[0][:1].isalpha() and _aligned(lines):
            out.append("\n".join(["```text", *lines, "```"]))
        else:
            out.append(block)
    return "\n\n".join(out)


def _aligned(lines: list[str]) -> bool:
    """True if a block lists names and meanings in columns, `name   meaning`. Long names may leave one space."""
    heads = [line.partition("  ") for line in lines if not line.startswith(" ")]
    named = [head for head, gap, _ in heads if gap and not head.endswith((".", ":")) and len(head) < 40]
    return len(named) > 0.7 * len(heads)


class FencedExamples(griffe.Extension):
    """Rewrites every docstring as it is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None and "```" not in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **kwargs: object) -> None:
        """Called for the package itself."""
        self.on_object(obj=pkg)
