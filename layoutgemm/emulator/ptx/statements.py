"""Statements of a PTX body: split at semicolons, with their scopes, labels and source lines.

Grammar: PTX ISA, "Statements", "Debugging Directives: .loc".
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ...errors import PtxError
from .declarations import line_of

MAX_SCOPES = 256


class SourceLine(NamedTuple):
    """The source line of an instruction.

    file, line  the innermost line in the kernel's file
    inside      "file:line" of a function in another file that was inlined there, or ""
    caller      the kernel's line that calls the function of the source line, or 0 if that is in the kernel itself
    """

    file: str
    line: int
    inside: str = ""
    caller: int = 0

    def __str__(self) -> str:
        called = f", called in line {self.caller}" if self.caller else ""
        return f"{self.file}:{self.line}" + called + (f", in {self.inside}" if self.inside else "")


class Statement(NamedTuple):
    """A statement or a label, with the scopes that it stands in.

    scopes  name -> unique name, from the outermost; "#" is the number of a scope
    """

    kind: str  # "label" or "statement"
    text: str
    scopes: tuple[dict[str, str], ...]
    line: int
    source: SourceLine | None


NAME = re.compile(r"(?<![\w$.])%?[A-Za-z_$][\w$]*")  # not the component behind a dot
_LOC = re.compile(r"\s*\.loc\s+(\d{1,9})\s+(\d{1,9})(?:\s+(\d{1,9}))?")
_INLINED = re.compile(r"inlined_at\s+(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})")
_BLANK, _STOP = re.compile(r"\s*"), re.compile(r"[{};:]")


class _Locations:
    """The source lines of a body's `.loc` directives; those of inlined functions name their callers."""

    def __init__(self, files: dict[int, str]) -> None:
        self.files = files
        self.callers: dict[tuple[int, int, int], tuple[tuple[int, int], ...]] = {}

    def of(self, directive: str) -> SourceLine | None:
        """The source of the instructions after a directive; None for line 0.

        It is the innermost line in the file of the outermost caller.
        """
        found = _LOC.match(directive)
        assert found is not None
        place = (int(found[1]), int(found[2]), int(found[3] or 0))
        if not place[1]:
            return None
        chain = [place[:2]]
        if (inlined := _INLINED.search(directive)) is not None:
            at = (int(inlined[1]), int(inlined[2]), int(inlined[3]))
            chain += self.callers.get(at, (at[:2],))
        self.callers[place] = tuple(chain)
        outermost = chain[-1]
        number, line = next(one for one in chain if one[0] == outermost[0])
        inside = "" if number == place[0] else f"{self._name(place[0])}:{place[1]}"
        return SourceLine(self._name(number), line, inside, 0 if line == outermost[1] else outermost[1])

    def _name(self, number: int) -> str:
        return self.files.get(number, f"file {number}")


# The line that the CuTe DSL gives to what has none, as its wgmma.fence: that of the host function, without a column.
_HOST_LINE = re.compile(r"\.loc\s+\d{1,9}\s+\d{1,9}\s+0\s*\n\s*ret;")


def _placed(out: list[Statement], text: str, start: int, end: int, locations: _Locations) -> list[Statement]:
    """The statements of a body; those with the host function's line have the line before theirs."""
    found = _HOST_LINE.search(text, start, end)
    host = locations.of(found[0]) if found is not None else None
    if host is None:
        return out
    source = None
    for number, one in enumerate(out):
        if one.source != host:
            source = one.source
        elif source is not None:
            out[number] = one._replace(source=source)
    return out


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
    source: SourceLine | None = None
    locations = _Locations(files)
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
                return _placed(out, text, start, at, locations)
            at += 1
            continue
        loc = _LOC.match(text, at) if char == "." else None
        if loc is not None:  # a directive that ends with its line
            begin, at = at, text.find("\n", at)
            if at < 0:
                break
            source = locations.of(text[begin:at])
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
