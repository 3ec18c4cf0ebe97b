"""Layouts from sizes and strides, as torch, Inductor, NumPy, DLPack and MLIR print them.

Strides count elements. Those of NumPy's arrays count bytes, which the type in the same text makes elements.

torch.Size([4, 8]) (8, 1)          size=(4, 8), stride=(8, 1)          shape: (4, 8) stride: (8, 1)
f32[4, 8][8, 1]cuda:0              FixedLayout('cuda:0', torch.float16, size=[4, 8], stride=[8, 1])
assert_size_stride(buf0, (4, 8), (8, 1))    empty_strided_cuda((4, 8), (8, 1), torch.float16)
reinterpret_tensor(buf0, (4, 8), (8, 1), 16)          x.as_strided((4, 8), (8, 1))
FakeTensor<Float16, (4, 8), (8, 1)>                   DLTensor(shape=[4, 8], strides=[8, 1])
T.Buffer((4, 8), "float16", strides=(8, 1))           make_naive_tensor_descriptor(make_tuple(4, 8), make_tuple(8, 1))
{'shape': (4, 8), 'strides': (32, 4), 'typestr': '<f4'}      shape=(4, 8), strides=(32, 4), dtype=float32
memref<4x8xf16>                    memref<4x?xf16, strided<[?, 1], offset: 64>, 3>
memref<4x8xf16, affine_map<(d0, d1) -> (d1 * 4 + d0)>>
!cuda_tile.tensor_view<?x64xf16, strides=[64,1]>
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import gcd
from typing import Any

from ...dtypes import dtype
from ...errors import LayoutError, ParseError
from ...regex import regex
from .. import registries
from ..layout import Layout
from ..swizzle import ComposedLayout
from ..symbols.dims import fresh_name, parse_entry, symbol

Symbols = Callable[[str], Any]

_LIST = r"[\[(]\s*([^\[\]()=:]*?)\s*[\])]"
_SIZE = rf"torch\.Size\(\s*{_LIST}\s*\)"
_HEAD = r"\s*(?:[\w.]+\s*[:=]\s*)?(?:Tensor\s+)?[\"']?"
_PAIRS = (
    regex(
        rf"(?:[\w.]+\s*,\s*[\w.]+(?:\(\))?\s*=\s*)?{_HEAD}\(?{_SIZE}[\s,;]*(?:[\w.]*stride(?:\(\))?\s*[=:]?\s*)?{_LIST}"
        r"(?:[\s,;]+(?:[\w.]*offset(?:\(\))?\s*[=:]?\s*)?(\d+)(?=\s*(?:[),;#]|\Z)))?"
    ),
    regex(rf"\s*FakeTensor<\s*\w+\s*,\s*{_LIST}\s*,\s*{_LIST}\s*>"),
    regex(rf"{_HEAD}[a-z]+\d+\w*{_LIST}{_LIST}(?=\s*[a-z]+(?::\d+)?[\"']?\s*\Z|[\"']?\s*\Z)"),
    regex(
        rf"[^\n]*?\b(?:assert_size_stride|empty_strided\w*)\(\s*(?:[A-Za-z_][\w.]*\s*,\s*)?{_LIST}\s*,\s*{_LIST}"
        r"(?=\s*(?:\)|,\s*[A-Za-z'\"]))"
    ),
    regex(
        rf"[^\n]*?\b(?:as_strided|reinterpret_tensor)\(\s*(?:[A-Za-z_][\w.]*\s*,\s*)?{_LIST}\s*,\s*{_LIST}"
        r"(?:\s*,\s*(?:storage_offset\s*=\s*)?(\d+|[a-z]+\d+))?\s*\)"
    ),
    # TVM's buffers, Composable Kernel's descriptors
    regex(
        rf"[^\n]*?\b(?:Buffer|match_buffer)\(\s*(?:\w+\s*,\s*)?{_LIST}\s*,\s*['\"]\w+['\"]\s*,\s*strides\s*=\s*{_LIST}"
    ),
    regex(rf"[^\n]*?\bmake_naive_tensor_descriptor\(\s*(?:\w+::)*make_tuple{_LIST}\s*,\s*(?:\w+::)*make_tuple{_LIST}"),
    regex(
        rf"(?:[^\n]*?[\s(,.])?(?:sizes?|shape)(?:\(\))?\s*[=:]?\s*(?:torch\.Size\(\s*)?{_LIST}\s*\)?[\s,;]*"
        rf"(?:\w+\s*[=:]\s*[\w.]+\s*,\s*)*(?:[a-z_]*\s*)?(?:[\w.]+\.)?strides?(?:\(\))?\s*[=:]?\s*{_LIST}"
        r"(?:\s*,\s*(?:storage_)?offset\s*[=:]\s*(-?\w+)(?=\s*(?:[,;)>}'\"]|\Z)))?"
    ),
)
# NumPy's words: shape and strides, the latter in bytes unless the text is DLPack's
_SHAPE_LIST, _STRIDES_LIST = (_LIST.replace("([^", f"(?P<{name}>[^") for name in ("shape", "strides"))
_STRIDES = regex(
    rf"\s*(?P<head>[^\n]*?)['\"]?\bshape['\"]?\s*[=:]?\s*{_SHAPE_LIST}(?P<between>.*?)['\"]?\bstrides['\"]?\s*[=:]?\s*"
    rf"(?:None|{_STRIDES_LIST})(?P<rest>.*)", re.DOTALL,
)  # fmt: skip
# The order of NumPy's __array_interface__
_STRIDES_FIRST = regex(
    rf"\s*(?P<head>[^\n]*?)['\"]strides['\"]\s*:\s*(?:None|{_STRIDES_LIST})(?P<between>.*?)['\"]shape['\"]\s*:\s*"
    rf"{_SHAPE_LIST}(?P<rest>.*)", re.DOTALL,
)  # fmt: skip
_ELEMENT = regex(r"\b(?:itemsize['\"]?\s*[=:]?\s*(\d+)|(?:typestr|dtype)['\"]?\s*[=:(]?\s*['\"]?[<>|=]?([\w.]+))")
_DLPACK = regex(r"DL\w*Tensor|dlpack|ndarray\.ndarray", re.IGNORECASE)
_BYTE_OFFSET = regex(r"byte_offset\s*[=:]\s*(\d{1,18})")
_ARRAYS = ("ndarray", "array", "as_strided", "Array")
# An integer behind the strides: an offset under another name, unless the word is unrelated to the layout
_INTEGER_WORD = regex(
    r"\b(?!itemsize\b|version\b|device\w*\b|align\w*\b|n\w+\b)(?<!device\(type='cuda', )"
    r"\w+\W{0,2}(?:=\s*|:\s+)-?\d|off|[Ss]wizzle"
)
# Behind sizes and strides: what would change them
_OPERATION = regex(r"[\s)\]>'\",;]*(?:(?<=\s)o\s|[*+/%@:({\d]|-\s*\d)")
# In the call or the dictionary of an array: a field that is not known
_UNKNOWN_FIELD = regex(
    r"(?<=[({,\s])(?!itemsize\b|version\b|device\w*\b|align\w*\b|n\w+\b|byte_offset\b)[a-z_]\w*\s*=\s*-?\d"
)
_MEMREF = regex(
    rf"\s*(?:[%!]\w[\w:]*\s*[=:]\s*)?memref<\s*((?:(?:\d+|\?)\s*x\s*)+)((?:!\w+\.)?[a-z]\w*(?:<[^<>]*>)?)\s*"
    rf"(?:,\s*strided<\s*{_LIST}\s*(?:,\s*offset:\s*(-?\d+|\?))?\s*>)?"
    rf"(?:,\s*affine_map<\(([\w,\s]*)\)\s*->\s*\(([^<>]*)\)>)?\s*(?:,\s*(?:#\w+\.\w*(?:space|storage_class|descriptor_type)\w*<[^<>]*>|\d+(?:\s*:\s*i\d+)?|\"\w*\")\s*)?>"
)
# CUDA Tile's views of tensors
_VIEW = regex(
    rf"\s*(?:[%!]\w[\w:]*\s*[=:]\s*)?(?:!cuda_tile\.)?tensor_view<\s*((?:(?:\d+|\?)\s*x\s*)+)([a-z]\w*)\s*,"
    rf"\s*strides\s*=\s*{_LIST}\s*>(?=\s*(?:[);,]?\s*(?:\Z|//|loc\())|\s*\Z)"
)
_MEMREF_REST = regex(r"\s*[);,]?\s*(?:\Z|//|#|loc\()")
_MEMREF_OPERATION = regex(r"\s*(?:%[\w:]+\s*=\s*)?\"?memref\.\w+\b")
# A line that names a map, and the name where a memref has it
_NAMED_MAP = regex(r"(?m)^\s*(#\w+)\s*=\s*(affine_map<[^\n]*?>)\s*$")
_MAP_NAME = regex(r"(?<=,)\s*(#\w+)(?=\s*[,>])")
_MEMREF_HEAD = regex(r"(?:[%!]\w[\w:]*\s*[=:]\s*)?memref<\s*(?:(?:\d+|\?)\s*x\s*)+")


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
    text = _inlined(text)
    for reader in (_mapped, _strides):
        read = reader(text, symbol_of)
        if read is not None:
            return read
    view = _VIEW.match(text)
    if view is not None:
        shape = tuple([_entry(text, view.start(1), size, symbol_of) for size in re.findall(r"\d+|\?", view[1])])
        stride = _entries(text, view, 3, symbol_of)
        if len(shape) != len(stride):
            raise ParseError(f"expected {len(shape)} strides, one a size, not {len(stride)}", text, view.start(3))
        return _made(text, view.start(1), shape, stride, 0)
    text = _result(text)
    found = _MEMREF.match(text)
    if found is not None and _MEMREF_REST.match(text, found.end()) is None:
        raise ParseError("expected the end of the text, or one memref", text, found.end())
    if found is not None:
        sizes, start = re.findall(r"\d+|\?", found[1]), found.start(1)
        shape = tuple([_entry(text, start, size, symbol_of) for size in sizes])
        stride = _entries(text, found, 3, symbol_of) if found[3] is not None else _row_major(shape)
        offset = found[4]
        at = 4
    elif (head := _MEMREF_HEAD.match(text)) is not None:
        if (unknown := regex(r"[^,]*,\s*(#\w+)\s*[,>]").match(text, head.end())) is not None:
            raise ParseError(f"expected the line above it that says {unknown[1]}", text, unknown.start(1))
        raise ParseError("expected a memref's type, as in memref<4x8xf16, strided<[8, 1]>>", text, head.end())
    else:
        found = next(filter(None, (pattern.match(text) for pattern in _PAIRS)), None)
        if found is None:
            return None
        shape, stride = (_entries(text, found, group, symbol_of) for group in (1, 2))
        at, offset = (3, found[3]) if len(found.groups()) > 2 else (2, None)
    if len(shape) != len(stride):
        raise ParseError(f"expected {len(shape)} strides, one a size, not {len(stride)}", text, found.start(2))
    unread = _unread(text, found)
    if unread is not None:
        what = "sizes and strides without a swizzle" if "wizzle" in unread[0] else "offset=, an integer"
        raise ParseError(f"expected {what}", text, unread.start())
    _ended(text, found.end())
    return _made(text, found.start(1), shape, stride, _entry(text, found.start(at), offset, symbol_of) if offset else 0)


def _unread(text: str, found: re.Match[str]) -> re.Match[str] | None:
    """An integer with a name that is not read: in the call of the sizes, up to the strides, or behind them."""
    if found.re.pattern == _MEMREF.pattern:
        return None
    call = max(text.rfind(sign, 0, found.start(1) - 1) for sign in "({") + 1  # the list's own sign stands next to it
    if text[:call].endswith("Size("):
        call = max(text.rfind(sign, 0, call - 1) for sign in "({") + 1
    before = _INTEGER_WORD.search(text, call, found.start(1)) if call else None
    between = _INTEGER_WORD.search(text, found.end(1), found.start(2))
    return before or between or _INTEGER_WORD.search(text, found.end())


def _ended(text: str, at: int) -> None:
    """Refuse an operation on the value here, or behind the call or dictionary around it."""
    depth = sum(text.count(sign, 0, at) for sign in "([{") - sum(text.count(sign, 0, at) for sign in ")]}")
    places = [at]
    for place in range(at, len(text) if depth > 0 else at):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if depth == 0:
            places.append(place + 1)
            break
    for place in places:
        found = _OPERATION.match(text, place)
        if found is not None:
            raise ParseError("expected the end of the text", text, found.end() - 1)


def _result(text: str) -> str:
    """The text with blanks before the type of an operation's result, the last memref.

    >>> _result("%1 = memref.alloc() : memref<4x8xf32>").strip()
    'memref<4x8xf32>'
    """
    if _MEMREF_OPERATION.match(text) is None or "memref<" not in text:
        return text
    at = text.rindex("memref<")
    return " " * at + text[at:]


def _inlined(text: str) -> str:
    """The text with its named maps, as in #map = affine_map<...>, put into a memref."""
    maps = {found[1]: found[2] for found in _NAMED_MAP.finditer(text)}
    if not maps or "memref<" not in text:
        return text
    rest = _NAMED_MAP.sub("", text).strip()
    return _MAP_NAME.sub(lambda found: maps.get(found[1], found[0]), rest)


def _made(text: str, at: int, shape: object, stride: object, first: object) -> Layout | ComposedLayout:
    """The layout of a shape and a stride, from an offset on."""
    try:
        layout = Layout(shape, stride)
        return layout if isinstance(first, int) and first == 0 else registries.offset_by(layout, first)
    except LayoutError as error:
        raise ParseError(error.reason, text, at) from None


def _mapped(text: str, symbol_of: Symbols) -> Layout | ComposedLayout | None:
    """The layout of a memref with an affine map of its coordinates; None for another text."""
    found = _MEMREF.match(text)
    if found is None or found[6] is None:
        return None
    if _MEMREF_REST.match(text, found.end()) is None:
        raise ParseError("expected the end of the text, or one memref", text, found.end())
    names, sizes = [name.strip() for name in found[5].split(",")], re.findall(r"\d+|\?", found[1])
    if len(names) != len(sizes) or "?" in sizes:
        raise ParseError(f"expected a map of {len(sizes)} coordinates of known extents", text, found.start(5))
    order = [name.strip() for name in found[6].split(",")]
    if len(order) > 1 and sorted(order) == sorted(names):  # MLIR's column-major: row-major in the order of the results
        shape = tuple(map(int, sizes))
        strides = dict(zip(order, _row_major(tuple([shape[names.index(name)] for name in order])), strict=True))
        return _made(text, found.start(1), shape, tuple([strides[name] for name in names]), 0)
    formula = re.sub(r"\bmod\b", "%", found[6].replace("floordiv", "//"))
    try:
        out: Layout | ComposedLayout = registries.layout_of_formula(formula, **dict(zip(names, map(int, sizes))))
        return out
    except LayoutError as error:
        raise ParseError(f"expected a map that is a layout: {error}", text, found.start(6)) from None


def _strides(text: str, symbol_of: Symbols) -> Layout | ComposedLayout | None:
    """The layout of an array of NumPy or DLPack, with the words shape and strides; None for another text."""
    found = _STRIDES.match(text) or _STRIDES_FIRST.match(text)
    if found is None:
        return None
    unknown = _UNKNOWN_FIELD.search(text, found.start("head"))
    if unknown is not None:
        raise ParseError("expected shape, strides, a type or byte_offset alone", text, unknown.start())
    shape = _entries(text, found, "shape", symbol_of)
    if found["strides"] is None:
        return _made(text, found.start("shape"), shape, _row_major(shape), 0)
    stride = _entries(text, found, "strides", symbol_of)
    if len(shape) != len(stride):
        raise ParseError(f"expected {len(shape)} strides, one a size, not {len(stride)}", text, found.start("strides"))
    stated = _ELEMENT.search(text)
    if stated is not None:
        width = 8 * int(stated[1]) if stated[1] else _bits(text, stated)
    else:
        width = 8
    dlpack, first = _DLPACK.search(text), _BYTE_OFFSET.search(text)
    called = re.search(r"([\w.]+)\(\s*\Z", found["head"])
    if called is not None and not dlpack and called[1].rpartition(".")[2] not in _ARRAYS:
        raise ParseError("expected an array of NumPy, as in ndarray(shape=..., or a DLTensor", text, called.start())
    unread = _INTEGER_WORD.search(text, found.start("rest"))
    if first is None and unread is not None:
        raise ParseError("expected byte_offset=, an integer", text, unread.start())
    _ended(text, found.start("rest"))
    if dlpack is None and stated is None and gcd(*[x for x in stride if isinstance(x, int)]) != 1:
        raise ParseError(
            "expected dtype=... too, as NumPy's strides count bytes; or stride=(...) in elements",
            text,
            found.start("strides"),
        )
    divided = {*([] if dlpack else stride), *([int(first[1])] if first else [])}
    if width % 8 or (stated is None and first is not None and int(first[1])):
        raise ParseError("expected the type of the elements, as the text has bytes", text, found.start("strides"))
    for n in divided:
        try:
            whole = n % (width // 8) == 0
        except LayoutError as error:
            raise ParseError(
                f"expected multiples of {width // 8} bytes: {error}", text, found.start("strides")
            ) from None
        if not whole:
            raise ParseError(f"expected multiples of {width // 8} bytes, not {n}", text, found.start("strides"))
    counted = stride if dlpack else tuple([x // (width // 8) for x in stride])
    return _made(text, found.start("shape"), shape, counted, int(first[1]) // (width // 8) if first else 0)


def _bits(text: str, stated: re.Match[str]) -> int:
    """The bits of an element type: NumPy's letters count bytes, as in f4."""
    name = stated[2].rpartition(".")[2]
    short = re.fullmatch(r"[fiuc](\d{1,2})", name)
    try:
        return 8 * int(short[1]) if short is not None and int(short[1]) <= 16 else dtype(name).bits
    except LayoutError as error:
        raise ParseError(f"expected the type of the elements: {error.reason}", text, stated.start(2)) from None


def _entries(text: str, found: re.Match[str], group: int | str, symbol_of: Symbols) -> tuple[Any, ...]:
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
    if re.fullmatch(r"_?-?\d{1,1000}", part):
        return int(part.lstrip("_"))
    if part == "?":
        return symbol(fresh_name("unknown"), 1)
    if not part or part[0] in "-+*/%":
        raise ParseError("expected an integer", text, at)
    try:
        return parse_entry(part, symbol_of)
    except LayoutError as error:
        raise ParseError(str(getattr(error, "reason", "") or error), text, at) from None


def _row_major(shape: tuple[object, ...]) -> tuple[Any, ...]:
    """Compact strides, the last mode fastest."""
    out: list[Any] = [1]
    for extent in reversed(shape[1:]):
        out.append(out[-1] * extent)
    return tuple(reversed(out))
