"""The text around a layout. Code before its comment, prose around its backticks, words that are no layout.

Each function blanks what is not the layout. The characters that are left keep their positions, which errors name.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from ...errors import ParseError
from ...regex import regex

_PAIR = r"[\d)?]\s*:\s*[(_\d?-]"  # the middle of shape:stride
PAIR = regex(_PAIR)
# A layout that goes on in the next line, or in the comment there
_GOES_ON = regex(r"(?:(?<= o)|(?<=[,(]))[ \t]*\n[ \t]*(?:(?://+|#|\*)[ \t]+)?")
# Code before the comment that has its value
_STATEMENT = regex(
    rf"(?m)^[ \t]*[^\s#/%*][^\n]*?(?:[);}}\]][ \t]*(?://+|#)|[ \t]{{2,}}(?://+|#)(?=[ \t]))(?=[^\n]*(?:{_PAIR}))"
)
# A line typed at a prompt, with its value in the next
_PROMPT = regex(r"(?m)^[ \t]*(?:>>>|\.\.\.|In \[\d+\]:) [^\n]*\n(?=[^\n]*\S)")
_QUOTED = regex(rf"(`+)([^`\n]*(?:{_PAIR})[^`\n]*)\1")
# A comment's sign, a test's CHECK, a label, a name with its annotation
_IR = r"#(?:ttg|ttng|triton_gpu|gluon)\."
_BEFORE_TRITON = regex(
    r"(?m)^[ \t]*(?:(?://|#(?=[ \t]))[ \t]*)?(?:CHECK[\w-]*(?:\{LITERAL\})?:[ \t]*)?(?:\w[\w ]*:[ \t]*)?"
    rf"(?=#\w+[ \t]*=[ \t]*{_IR}|{_IR}|tensor<[\dx ]+[\w!.<>]+,[ \t]*#|!ttg?\.|<\[['\"\d][^\n]*Layout\()"
    r"|\A\s*\w+\s*:\s*(?:\w+\.)*constexpr\s*=\s*(?=(?:\w+\.)*\w+Layout\()"
)
_CONSTEXPR = regex(r"\s*constexpr\[(.*)\]\s*\Z", re.DOTALL)
# A type as a compiler's message has it
_TYPE = regex(r"(?:cute::|(?<=['\u2018\"]))(?:(?:Composed)?Layout|Tensor(?=\s*<\s*(?:\w+::)*\w*Engine))\s*<")
_PINNED = regex(r"#tlx\.(?:user_layout|no_verify_layout)<\s*(?=#)")
_LATEX = "\\documentclass"  # what print_latex prints behind the layout
_OTHER_TYPE = regex(r"!cute\.(shape|stride|int_tuple|coord|ptr|tile|arith_tuple_iter)<")


def bare(text: str) -> str:
    """The text with blanks for code before a comment that has a layout.

    What print_latex adds is left out too.

    >>> bare("auto r = coalesce(l);  // 12:1").strip()
    '12:1'
    """
    text = _PROMPT.sub(_code, _GOES_ON.sub(_blanks, text))
    return _STATEMENT.sub(_code, text).partition(_LATEX)[0]


def has_code(text: str) -> bool:
    """True if code stands before a comment that has a layout."""
    return _STATEMENT.search(_GOES_ON.sub(_blanks, text)) is not None


def quoted(text: str) -> str | None:
    """The text with blanks for all but its only layout in backticks. None for another text.

    >>> quoted("We use `(4,4):(4,1)` here.").strip()
    '(4,4):(4,1)'
    """
    found = list(_QUOTED.finditer(text))
    if len(found) != 1 or PAIR.search(text, 0, found[0].start()) or PAIR.search(text, found[0].end()):
        return None
    start, end = found[0].span(2)
    return " " * start + text[start:end] + " " * (len(text) - end)


def without_labels(text: str) -> str:
    """The text with blanks for labels before a layout of Triton.

    >>> without_labels("// CHECK: #linear = #ttg.linear<{}>").strip()
    '#linear = #ttg.linear<{}>'
    >>> without_labels("LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])").strip()
    'gl.BlockedLayout([1], [32], [4], [0])'
    """
    text = _BEFORE_TRITON.sub(_blanks, text)
    inside = _CONSTEXPR.match(text)
    return text if inside is None else " " * inside.start(1) + inside[1]


def without_pins(text: str) -> str:
    """The text with blanks for the signs by which TLX pins a layout of Triton.

    >>> without_pins("#tlx.no_verify_layout<#tlx.user_layout<#a>>").split()
    ['#a']
    """
    while (found := _PINNED.search(text)) is not None:
        depth, end = 1, found.end()
        while end < len(text) and depth:
            depth += (text[end] == "<") - (text[end] == ">" and text[end - 1] != "-")
            end += 1
        if depth:
            raise ParseError("expected '>'", text, len(text))
        start, inside = found.span()
        text = text[:start] + " " * (inside - start) + text[inside : end - 1] + " " + text[end:]
    return text


def of_compiler(text: str) -> str | None:
    """The text with blanks for all but its only C++ type of a layout. None for another text.

    >>> of_compiler("error: no match for 'cute::Layout<cute::_4, cute::_1>' here").strip()
    'cute::Layout<cute::_4, cute::_1>'
    """
    types, end = [], 0
    for found in _TYPE.finditer(text):
        if found.start() < end:  # inside the one before it
            continue
        end, depth = found.end(), 1
        while end < len(text) and depth:
            depth += (text[end] == "<") - (text[end] == ">")
            end += 1
        types.append((found.start(), end))
    if len({text[start:end] for start, end in types}) != 1 or not text[: types[0][0]].strip():
        return None
    start, end = types[0]
    if "wizzle" in text[:start] + text[end:]:  # part of a type that is not read: its swizzle would be passed over
        return None
    return " " * start + text[start:end] + " " * (len(text) - end)


@cache
def _others() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Texts beside layouts: the pattern of a text's beginning, and what it is."""
    table = (files(__package__) / "no_layouts.txt").read_text(encoding="utf-8").split("\n")
    lines = [line for line in table if line and line[0] != "#"]
    return tuple(zip(map(re.compile, lines[::2]), lines[1::2], strict=True))


def refuse_others(text: str) -> None:
    """Raise ParseError for a shape, a vector or a descriptor, which are printed beside layouts."""
    for pattern, what in _others():
        found = pattern.match(text)
        if found is not None:
            start = found.start(1) if pattern.groups else len(text) - len(text.lstrip())
            raise ParseError(f"expected a layout, not {what}", text, start)


def refuse_other_type(text: str, at: int) -> None:
    """Raise ParseError for a type of the IR that holds no layout."""
    found = _OTHER_TYPE.match(text, at)
    if found is not None:
        raise ParseError(f'expected a layout, as in !cute.layout<"(4,8):(8,1)">, not !cute.{found[1]}', text, at)


def _blanks(found: re.Match[str]) -> str:
    return " " * len(found[0])


def _code(found: re.Match[str]) -> str:
    """Blanks for code; the code itself where it has a layout too."""
    return found[0] if PAIR.search(found[0]) else _blanks(found)
