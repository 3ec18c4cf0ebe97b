"""Boxes of shared memory from the tensor maps of MLIR's nvgpu dialect.

!nvgpu.tensormap.descriptor<tensor = memref<64x64xf16, 3>, swizzle = swizzle_128b, l2promo = none, oob = zero,
                            interleave = none>
"""

from __future__ import annotations

from ...dtypes import dtype
from ...errors import LayoutError, ParseError
from ...regex import regex
from ..int_tuple import leaves
from ..layout import Layout
from ..swizzle import ComposedLayout, Swizzle
from .sized import Symbols, sized

_MAP = regex(r"\s*(?:[%!]\w[\w:]*\s*[=:]\s*|[^\n]*(?:->|\bto)\s*)?!?nvgpu\.tensormap\.descriptor\s*<\s*")
_TENSOR = regex(r"tensor\s*=\s*(?=memref<)")
_ELEMENT = regex(r"x\s*([a-z]\w*)\s*[,>]")
_FIELD = regex(r"\s*,\s*(\w+)\s*=\s*(\w+)")
_END = regex(r"\s*>\s*(?:(?://|loc\()[^\n]*)?\Z")
SWIZZLED = {"swizzle_none": 0, "none": 0, "swizzle_32b": 1, "swizzle_64b": 2, "swizzle_128b": 3}  # bits of the swizzle
CHUNK = 16  # bytes that a swizzle keeps together


def tensor_map(text: str, symbol_of: Symbols) -> Layout | ComposedLayout | None:
    """The box of a tensor map in shared memory, with its swizzle in elements. None for another text.

    Raises ParseError with the character for rows longer than the swizzle, which a tensor map refuses, and for an
    interleaved tensor.

    >>> from layoutgemm import dim
    >>> print(tensor_map("!nvgpu.tensormap.descriptor<tensor = memref<128x64xf16, 3>, swizzle = swizzle_128b>", dim))
    S<3,3,3>[16b] o 0 o (128,64):(64,1)
    """
    found = _MAP.match(text)
    if found is None:
        return None
    at = _TENSOR.match(text, found.end())
    if at is None:
        raise ParseError("expected tensor = memref<...>, as in tensor = memref<64x64xf16, 3>", text, found.end())
    start, depth, end = at.end(), 1, at.end() + len("memref<")
    while end < len(text) and depth:
        depth += (text[end] == "<") - (text[end] == ">" and text[end - 1] != "-")
        end += 1
    layout = sized(" " * start + text[start:end], symbol_of)
    element = _ELEMENT.search(text, start, end)
    if not isinstance(layout, Layout) or element is None:
        raise ParseError("expected a box that begins at offset 0", text, start)
    bits, place = _fields(text, end)
    if not bits:
        return layout
    swizzle = Swizzle(bits, CHUNK.bit_length() - 1, 3, "bytes")
    try:
        width = dtype(element[1]).bits
        row, span = leaves(layout.shape)[-1] * width // 8, CHUNK << bits
        if row > span:
            raise ParseError(f"expected rows of at most {span} bytes, not {row}: a box of a swizzle", text, place)
        return ComposedLayout(swizzle.recast(width), 0, layout)
    except ParseError:
        raise
    except LayoutError as error:
        raise ParseError(error.reason, text, start) from None


def _fields(text: str, at: int) -> tuple[int, int]:
    """The bits of the swizzle, and its place; the other fields say nothing about the box."""
    bits, place = 0, at
    while (found := _FIELD.match(text, at)) is not None:
        name, value = found[1], found[2]
        if name == "swizzle":
            if value not in SWIZZLED:
                raise ParseError(f"expected swizzle = one of {', '.join(SWIZZLED)}", text, found.start(2))
            bits, place = SWIZZLED[value], found.start(2)
        elif name == "interleave" and not value.endswith("none"):
            raise ParseError("expected interleave = none", text, found.start(2))
        elif name not in ("l2promo", "oob", "interleave"):
            raise ParseError("expected swizzle, l2promo, oob or interleave", text, found.start(1))
        at = found.end()
    if _END.match(text, at) is None:
        raise ParseError("expected ',' or '>'", text, at)
    return bits, place
