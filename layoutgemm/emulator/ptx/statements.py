"""Statements of a PTX body: split at semicolons, with their scopes, labels and source lines.

Grammar: PTX ISA, "Statements", "Debugging Directives: .loc".
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ...errors import PtxError
from .declarations import line_of

MAX_SCOPES = 256


class Source(NamedTuple):
    """The source line of an instruction."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Statement(NamedTuple):
    """A statement or a label, with the scopes that it stands in.

    scopes  name -> unique name, from the outermost; "#" is the number of a scope
    """

    kind: str  # "label" or "statement"
    text: str
    scopes: tuple[dict[str, str], ...]
    line: int
    source: Source | None


NAME = re.compile(r"(?<![\w$.])%?[A-Za-z_$][\w$]*")  # not the component behind a dot
_LOC = re.compile(r"\s*\.loc\s+(\d{1,9})\s+(\d{1,9})")
_BLANK, _STOP = re.compile(r"\s*"), re.compile(r"[{};:]")


def statements_of(
    text: str, start: int, files: dict[int, str], outer: tuple[dict[str, str], ...] = ({},), tag: str = ""
) -> list[Statement]:
    """The statements between a body's braces, with their scopes and lines.

    outer  the scopes around it; tag: what their numbers begin with
    """
    out: list[Statement] = []
    scopes = list(outer)
    line = first = line_of(text, start)
    opened = 0
    source: Source | None = None
    at, end = start, len(text)
    while at < end:
        begin = _BLANK.match(text, at).end()  # type: ignore[union-attr]
        line += text.count("\n", at, begin)
        at = begin
        char = text[at : at + 1]
        if char == "{":
            opened += 1
            if len(scopes) > MAX_SCOPES:
                raise PtxError(f"PTX line {line}: more than {MAX_SCOPES} scopes, one in the other")
            scopes.append({"#": f"{tag}{opened}"})
            at += 1
            continue
        if char == "}":
            scopes.pop()
            if len(scopes) == len(outer):
                return out
            at += 1
            continue
        loc = _LOC.match(text, at) if char == "." else None
        if loc is not None:  # a directive that ends with its line
            number, row = int(loc.group(1)), int(loc.group(2))
            source = Source(files.get(number, f"file {number}"), row) if row else None
            at = text.find("\n", at)
            if at < 0:
                break
            continue
        depth = 0
        for stop in _STOP.finditer(text, at):
            at = stop.start()
            char = text[at]
            depth += (char == "{") - (char == "}")
            if char == ";" and not depth:
                out.append(Statement("statement", " ".join(text[begin:at].split()), tuple(scopes), line, source))
                break
            if char == ":" and text[at + 1] != ":" and text[at - 1] != ":":
                label = text[begin:at].strip()
                if NAME.fullmatch(label):
                    out.append(Statement("label", label, tuple(scopes), line, source))
                    break
        else:
            break
        line += text.count("\n", begin, at)
        at += 1
    raise PtxError(
        f"PTX line {first}: the kernel's body, which begins here, does not end: {len(scopes) - len(outer)} open "
        "scopes at the end of the text"
    )


def resolved(name: str, scopes: tuple[dict[str, str], ...]) -> str:
    """The unique name of a name in these scopes."""
    for scope in reversed(scopes):
        if name in scope:
            return scope[name]
    return name
