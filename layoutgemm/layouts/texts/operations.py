"""Lines of the DSL's IR: the type of an operation's result, among the types that the line prints.

MLIR prints `(operands) -> result` for some operations, the result's type alone for others, and for some the operands'
types alone: then no type of the line is that of the result.
"""

from __future__ import annotations

from ...errors import ParseError
from ...regex import regex
from .surroundings import refuse_other_type

# `%div = cute.zipped_divide(`, `%0 = "cute.make_view"(`, `%1:2 = cute.f<[1]> (`; in Python OpResult(%lay = ...)
_LINE = regex(
    r"\s*(?:(OpResult|Value)\()?(?:CHECK[\w-]*:\s*)?\s*%[\w\[\]]+(?::\d+)?(?:\s*,\s*%\w+)*\s*=\s*\"?(cute|fly)\.([a-z][\w.]*)\"?"
)
# Operations that print one type, which is that of the result, or has its layout. Others print an operand's.
_STATE_RESULT = regex(r"make_\w+|static|get_layout|get_iter|get_(?:inner|outer)|memref\.alloca|assume|deref_\w+")
_TOKEN = regex(r"\"[^\"]*\"|//|->| to |[()\[\]{}<>:,]")
_TYPE = regex(r"\s*!(?!(?:cute|cute_nvgpu|fly)\.)(\w+)")


def of_result(text: str) -> str:
    """The text with blanks for all but the type of an operation's result; another text as it is.

    Raises ParseError where the line has the types of the operands alone, or the name of a type in place of it.

    >>> of_result('%r = cute.coalesce(%l) : (!cute.layout<"(2,2):(1,2)">) -> !cute.layout<"4:1">').strip()
    '!cute.layout<"4:1">'
    """
    line = _LINE.match(text)
    if line is None or "\n" in text.strip():
        return text
    end = len(text.rstrip()) - (line[1] is not None)
    marks = list(_marks(text, line.end(), end))
    colon = next((at for at, mark in marks if mark == ":"), None)
    if colon is None:
        return text
    types = [(at, mark) for at, mark in marks if at > colon]
    to = [at + len(mark) for at, mark in types if mark in ("->", " to ")]
    start = to[-1] if to else colon + 1
    commas = [at for at, mark in types if mark == "," and at > start]
    first = start + len(text[start:end]) - len(text[start:end].lstrip())
    name = f"{line[2]}.{line[3]}"
    stated = bool(to) or line[2] == "fly" or _STATE_RESULT.fullmatch(line[3]) is not None
    if not stated or (commas and not to):
        raise ParseError(
            f"expected the type of the result: this line of {name} has those of its operands alone; paste a later line "
            f"that uses %...",
            text,
            first,
        )
    if not text.startswith("!cute.tile<", first):
        refuse_other_type(text, first)
    alias = _TYPE.match(text, start, end)
    if alias is not None:
        raise ParseError(
            f"expected a type, not its name: paste the line !{alias[1]} = ... of the module", text, alias.start(1) - 1
        )
    return " " * start + text[start:end] + " " * (len(text) - end)


def _marks(text: str, start: int, end: int) -> list[tuple[int, str]]:
    """Colons, commas, arrows and ` to ` outside all brackets and quotation marks, with their places."""
    out, depth = [], 0
    for found in _TOKEN.finditer(text, start, end):
        token = found[0]
        if token == "//":
            break
        if token in "([{<":
            depth += 1
        elif token in ")]}>":
            depth -= 1
        elif depth <= 0 and token[0] != '"':
            out.append((found.start(), token))
    return out
