"""Layouts from sizes and strides, as torch, Inductor and MLIR print them; strides count elements.

torch.Size([4, 8]) (8, 1)          size=(4, 8), stride=(8, 1)          shape: (4, 8) stride: (8, 1)
f32[4, 8][8, 1]cuda:0              FixedLayout('cuda:0', torch.float16, size=[4, 8], stride=[8, 1])
assert_size_stride(buf0, (4, 8), (8, 1))    empty_strided_cuda((4, 8), (8, 1), torch.float16)
memref<4x8xf16>                    memref<4x?xf16, strided<[?, 1], offset: 64>, 3>
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..errors import LayoutError, ParseError
from .layout import Layout
from .swizzle import ComposedLayout, Swizzle
from .symbols.dims import fresh_name, parse_entry, symbol

Symbols = Callable[[str], Any]

_LIST = r"[\[(]\s*([^\[\]()=:]*?)\s*[\])]"
_SIZE = rf"torch\.Size\(\s*{_LIST}\s*\)"
_HEAD = r"\s*(?:[\w.]+\s*[:=]\s*)?[\"']?"
_PAIRS = (
    re.compile(rf"{_HEAD}{_SIZE}\s*,?\s*{_LIST}"),
    re.compile(rf"{_HEAD}[a-z]+\d+\w*{_LIST}{_LIST}(?=\s*[a-z]+(?::\d+)?[\"']?\s*\Z|[\"']?\s*\Z)"),
    re.compile(rf"[^\n]*?\b(?:assert_size_stride|empty_strided\w*)\(\s*(?:[A-Za-z_]\w*\s*,\s*)?{_LIST}\s*,\s*{_LIST}"),
    re.compile(
        rf"(?:[^\n]*?[\s(,])?(?:size|shape)\s*[=:]?\s*(?:torch\.Size\(\s*)?{_LIST}\s*\)?[\s,;]*"
        rf"(?:[a-z_]*\s*)?stride\s*[=:]?\s*{_LIST}(?:\s*,\s*(?:storage_)?offset\s*[=:]\s*(-?\w+))?"
    ),
)
_MEMREF = re.compile(
    rf"(?:[%!]\w[\w:]*\s*[=:]\s*)?memref<\s*((?:(?:\d+|\?)\s*x\s*)+)([a-z]\w*)\s*"
    rf"(?:,\s*strided<\s*{_LIST}\s*(?:,\s*offset:\s*(-?\d+|\?))?\s*>)?\s*(?:,\s*[^,<>]*)?>"
)
_MEMREF_HEAD = re.compile(r"(?:[%!]\w[\w:]*\s*[=:]\s*)?memref<\s*(?:(?:\d+|\?)\s*x\s*)+")


def sized(text: str, symbol_of: Symbols) -> Layout | ComposedLayout | None:
    """The layout of a text with sizes and strides, None for another.

    Sizes alone of a memref are row-major, as MLIR defines. Each `?` is a new symbol. An offset gives a composed layout
    without a swizzle. Raises ParseError with the character and what was expected.

    >>> from layoutgemm import dim
    >>> print(sized("torch.Size([4, 8]) (8, 1)", dim), sized("memref<4x8xf16>", dim))
    (4,8):(8,1) (4,8):(8,1)
    >>> print(sized("memref<4x8xf16, strided<[16, 1], offset: 4>>", dim))
    S<0,0,0> o 4 o (4,8):(16,1)
    """
    found = _MEMREF.match(text)
    if found is not None:
        sizes, start = re.findall(r"\d+|\?", found[1]), found.start(1)
        shape = tuple([_entry(text, start, size, symbol_of) for size in sizes])
        stride = _entries(text, found, 3, symbol_of) if found[3] is not None else _row_major(shape)
        offset = found[4]
        at = 4
    elif (head := _MEMREF_HEAD.match(text)) is not None:
        raise ParseError("expected a memref's type, as in memref<4x8xf16, strided<[8, 1]>>", text, head.end())
    else:
        found = next(filter(None, (pattern.match(text) for pattern in _PAIRS)), None)
        if found is None:
            return None
        shape, stride = (_entries(text, found, group, symbol_of) for group in (1, 2))
        at, offset = (3, found[3]) if len(found.groups()) > 2 else (2, None)
    if len(shape) != len(stride):
        raise ParseError(f"expected {len(shape)} strides, one a size, not {len(stride)}", text, found.start(2))
    try:
        layout = Layout(shape, stride)
        first = _entry(text, found.start(at), offset, symbol_of) if offset else 0
        return layout if isinstance(first, int) and first == 0 else ComposedLayout(Swizzle(0, 0, 0), first, layout)
    except ParseError:
        raise
    except LayoutError as error:
        raise ParseError(error.reason, text, found.start(1)) from None


def _entries(text: str, found: re.Match[str], group: int, symbol_of: Symbols) -> tuple[Any, ...]:
    """The entries of a list."""
    out, at = [], found.start(group)
    for part in found[group].split(","):
        if part.strip() or part is not found[group].split(",")[-1]:
            out.append(_entry(text, at + len(part) - len(part.lstrip()), part.strip(), symbol_of))
        at += len(part) + 1
    if not out:
        raise ParseError("expected at least one mode", text, found.start(group))
    return tuple(out)


def _entry(text: str, at: int, part: str, symbol_of: Symbols) -> Any:
    """An integer, a symbol, an expression of symbols, or `?` for a new symbol."""
    if re.fullmatch(r"-?\d{1,1000}", part):
        return int(part)
    if part == "?":
        return symbol(fresh_name("unknown"), 1)
    if not part or part[0] in "-+*/%":
        raise ParseError("expected an integer", text, at)
    try:
        return parse_entry(part, symbol_of)
    except LayoutError as error:
        raise ParseError(str(getattr(error, "reason", "") or error), text, at) from None


def _row_major(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """Compact strides, the last mode fastest."""
    out: list[Any] = [1]
    for extent in reversed(shape[1:]):
        out.append(out[-1] * extent)
    return tuple(reversed(out))
