"""Lines of IR. The type of an operation's result, among the types that the line prints.

MLIR prints `(operands) -> result` for some operations, the result's type alone for others, and for some the operands'
types alone: then no type of the line is that of the result. Operations of Triton that print one type for operands and
result alike, or types that differ in their elements alone, have one layout.
"""

from __future__ import annotations

import re

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
_TRITON = regex(
    r"\s*(?:(?P<end>\}\)(?=\s*:))|(?P<results>%[\w:#]+(?:\s*,\s*%[\w:#]+)*\s*=\s*)?"
    r"\"?(?:tt|ttg|ttng|amdg|arith|math|scf|cf|gluon|nvws|triton_gpu|triton_nvidia_gpu)\.[a-z]\w*[\w.]*\"?)"
)
_LOCATION = regex(r"\s*loc\([^\n]*\)\s*\Z")
_TENSOR = regex(
    r"\s*(?:tensor|![\w.]+)?\s*<\s*(?:tensor<)?(?P<shape>(?:\d+\s*x\s*)+)[^,]*,\s*(?P<layout>#.*)", re.DOTALL
)
# A line that names a type of the DSL's IR, and that name at the end of a line
_DEFINED = regex(r"\s*!(\w+)\s*=\s*(!(?:cute|cute_nvgpu|fly)\.\w+<.*>)\s*\Z")
_NAME_AT_END = regex(r"!(?!(?:cute|cute_nvgpu|fly)\.)(\w+)(?=\s*(?:loc\([^\n]*\))?\s*\Z)(?:\s*loc\([^\n]*\))?\s*\Z")
_TYPE = regex(r"\s*!(?!(?:cute|cute_nvgpu|fly)\.)(\w+)")


def of_result(text: str) -> str:
    """The text with blanks for all but the type of an operation's result. Another text as it is.

    Raises ParseError where the line has the types of the operands alone, or the name of a type in place of it.

    >>> of_result('%r = cute.coalesce(%l) : (!cute.layout<"(2,2):(1,2)">) -> !cute.layout<"4:1">').strip()
    '!cute.layout<"4:1">'
    """
    text = _with_type(text)
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


def _with_type(text: str) -> str:
    """The last line with the type for which a line above gives a name.

    Another text is returned as it is.

    >>> _with_type('!a = !cute.layout<"4:1">\\n%0 = cute.get_layout(%x) : !a')
    '%0 = cute.get_layout(%x) : !cute.layout<"4:1">'
    """
    *above, last = text.rstrip().split("\n")
    named = {found[1]: found[2] for line in above if (found := _DEFINED.match(line)) is not None}
    used = _NAME_AT_END.search(last)
    if used is None or not named or len(named) != len([line for line in above if line.strip()]):
        return text
    if used[1] not in named:
        raise ParseError(f"expected the line above that says !{used[1]}", text, text.rindex(f"!{used[1]}"))
    return last[: used.start()] + named[used[1]]


def of_triton(text: str) -> str:
    """The text with blanks for all but the type of its line of Triton's IR.

    Another text is returned as it is.

    Raises ParseError where the line has types of several layouts, and none is that of a result.

    >>> of_triton("%1 = tt.addptr %0, %i : tensor<8x!tt.ptr<f16>, #a>, tensor<8xi32, #a> loc(#loc)").strip()
    'tensor<8x!tt.ptr<f16>, #a>'
    """
    start = text.rstrip().rfind("\n") + 1
    line = _TRITON.match(text, start)
    if line is None:
        return text
    location = _LOCATION.search(text, line.end())
    end = len(text.rstrip()) if location is None else location.start()
    marks = list(_marks(text, line.end(), end))
    colon = next((at for at, mark in marks if mark == ":"), None)
    if colon is None:
        return text
    behind = [(at, at + len(mark)) for at, mark in marks if at > colon and mark != ":"]
    to = [after for at, after in behind if text[at] != ","]
    # Behind `-> <128x64xf16, #shared, #smem>` stands an operand, where an operation writes.
    stated = bool(to) and (line["results"] or line["end"]) and text[to[-1] :].lstrip()[:1] != "<"
    if stated:
        behind = [(at, after) for at, after in behind if at >= to[-1]]
    begin = to[-1] if stated else colon + 1
    while text[begin : begin + 1].isspace():
        begin += 1
    if text[begin : begin + 1] == "(" and text[end - 1] == ")":  # several results
        begin, end = begin + 1, end - 1
        behind = [(at, at + 1) for at, mark in _marks(text, begin, end) if mark == ","]
    edges = [begin, *[edge for pair in behind for edge in pair], end]
    types = [(at, found) for at, stop in zip(edges[::2], edges[1::2]) if (found := _TENSOR.match(text[at:stop]))]
    if not types:
        return text
    first = types[0][1]
    for at, found in types:
        if (found["shape"], found["layout"]) != (first["shape"], first["layout"]):
            both, at = (
                " and ".join(each[0].strip() for each in (first, found)),
                at + len(found[0]) - len(found[0].lstrip()),
            )
            raise ParseError(f"expected one layout in a line, not {both}: paste one of them", text, at)
    at, said = types[0][0] + len(first[0]) - len(first[0].lstrip()), first[0].strip()
    return text[:start] + " " * (at - start) + said + " " * (len(text) - at - len(said))


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
