"""CuTe's notation back into layouts: what str() prints, and what CuTe prints (static integers as _8)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..errors import LayoutError, ParseError
from .basis import ScaledBasis
from .layout import Layout
from .swizzle import ComposedLayout, Swizzle
from .symbolic import declared, parse_entry

Symbols = Callable[[str], Any]
_TOKEN = re.compile(r"\s*(?:(-?_?\d+(?:@\d+)*)|([(),:]))")
_SWIZZLE = re.compile(r"\s*S(?:w|wizzle)?<\s*(-?\d+)\s*,\s*(-?\d+)\s*,\s*(-?\d+)\s*>(?:\[(?:(bytes)|(\d+)b)\])?")
_OFFSET = re.compile(r"\s*o\s+(?:_?(-?\d+)\s+o\s+)?")


def parse(text: str, given: Any = ()) -> Layout | ComposedLayout | Swizzle:
    """A layout, a swizzle, or a swizzled layout from its notation. Raises ParseError, which points at the character.

    Entries may hold symbols; `given` are facts about them, as `Facts` takes them, under which the text is read.

    >>> parse("((_4,_2),8):((1,16),4)")
    Layout(((4, 2), 8), ((1, 16), 4))
    >>> parse("S<3,4,3>[bytes] o 0 o (8,64):(64,1)")
    ComposedLayout(Swizzle(3, 4, 3, 'bytes'), 0, Layout((8, 64), (64, 1)))
    >>> print(parse("(64,M//64):(1,64)", given="64 | M").coalesce())
    M:1
    """
    if not isinstance(text, str):
        raise ParseError(f"a layout's notation is a string, not {text!r}")
    return read(text, _symbols(given))


def read(text: str, symbol: Symbols) -> Layout | ComposedLayout | Swizzle:
    """`parse` with the meaning of each name in the text said by `symbol`."""
    out, position = _parse(text, 0, symbol)
    if text[position:].strip():
        raise ParseError("there is more text after the layout", text, position)
    return out


def _symbols(given: Any) -> Symbols:
    """What a name in the text stands for."""
    if not given:
        return declared
    from .facts import Facts  # it needs symbols, which the notation of plain layouts does not

    facts = given if isinstance(given, Facts) else Facts(*([given] if isinstance(given, str) else given))
    return facts.__getitem__


def parse_swizzle(text: str) -> Swizzle:
    """A swizzle from its notation."""
    out = parse(text)
    if not isinstance(out, Swizzle):
        raise ParseError(f"{text!r} is a layout and no swizzle")
    return out


def _parse(text: str, position: int, symbol: Symbols) -> tuple[Any, int]:
    found = _SWIZZLE.match(text, position)
    if found is None:
        return _layout(text, position, symbol)
    b, m, s, in_bytes, bits = found.groups()
    unit = "bytes" if in_bytes else int(bits) if bits else None
    swizzle = Swizzle(int(b), int(m), int(s), unit)
    position = found.end()
    link = _OFFSET.match(text, position)
    if link is None:
        return swizzle, position
    inner, position = _parse(text, link.end(), symbol)
    if isinstance(inner, Swizzle):
        raise ParseError("a composed layout ends with a layout", text, position)
    return ComposedLayout(swizzle, int(link.group(1) or 0), inner), position


def _layout(text: str, position: int, symbol: Symbols) -> tuple[Layout, int]:
    start = position
    shape, position = _tuple(text, position, symbol)
    _, _, after = _next(text, position, ":")
    stride, position = _tuple(text, after, symbol)
    try:
        return Layout(shape, stride), position
    except LayoutError as error:
        raise ParseError(error.reason, text, start) from None


def _next(text: str, position: int, expected: str = "") -> tuple[str | None, str | None, int]:
    """The next token, as (number, sign, position after it)."""
    found = _TOKEN.match(text, position)
    if found is None or (expected and found.group(2) != expected):
        what = f"'{expected}'" if expected else "an integer or '('"
        rest = text[position:]
        raise ParseError(f"expected {what}", text, position + len(rest) - len(rest.lstrip()))
    return found.group(1), found.group(2), found.end()


def _end_of_entry(text: str, position: int) -> int:
    """Where the entry or tuple that begins here ends: at a comma, colon or bracket outside its own brackets."""
    depth = 0
    for i in range(position, len(text)):
        c = text[i]
        if depth == 0 and c in "),:":
            return i
        depth += (c == "(") - (c == ")")
    return len(text)


def _symbolic(text: str, position: int, symbol: Symbols) -> tuple[Any, int] | None:
    """An entry with symbols, such as `64*N+8` or `BK@1`; None when it is an integer or a tuple."""
    end = _end_of_entry(text, position)
    words = text[position:end].strip()
    if not any(map(str.isalpha, words)):
        return None
    if words[0] == "(":
        depth = closed = 0
        for i, c in enumerate(words):
            depth += (c == "(") - (c == ")")
            if depth == 0:
                closed = i
                break
        if closed in (0, len(words) - 1):
            return None  # brackets around all of it: a tuple
    value, *path = words.split("@")
    if path and not all(map(str.isdigit, path)):
        raise ParseError("a path is integers, as in M@1@0", text, position)
    try:
        x = parse_entry(value, symbol)
    except LayoutError as error:
        raise ParseError(str(error.reason), text, position) from None
    return (x * ScaledBasis(1, tuple([int(p) for p in reversed(path)])) if path else x), end


def _tuple(text: str, position: int, symbol: Symbols) -> tuple[Any, int]:
    symbolic = _symbolic(text, position, symbol)
    if symbolic is not None:
        return symbolic
    number, sign, after = _next(text, position)
    if number is not None:
        value, *path = number.replace("_", "").split("@")
        if path:
            return (ScaledBasis(int(value), tuple(int(p) for p in reversed(path))) if int(value) else 0), after
        return int(value), after
    if sign != "(":
        raise ParseError("expected an integer or '('", text, after - 1)
    out: list[Any] = []
    found = _TOKEN.match(text, after)
    if found is not None and found.group(2) == ")":
        return (), found.end()
    while True:
        entry, after = _tuple(text, after, symbol)
        out.append(entry)
        found = _TOKEN.match(text, after)
        if found is None or found.group(2) not in (",", ")"):
            raise ParseError("expected ',' or ')'", text, after)
        after = found.end()
        if found.group(2) == ")":
            return tuple(out), after
