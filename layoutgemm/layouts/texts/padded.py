"""Triton's padded layouts of shared memory from text. Coordinates of the tensor -> element of the buffer.

#ttg.padded_shared<[128:+4] {order = [1, 0], shape = [32, 128]}>
#ttg.padded_shared<[64:+8, 256:+16] {offset = [[0, 1], [0, 2], [1, 0]], block = []}>
PaddedSharedLayout([[128, 4]], [[0, 1], [0, 2], [1, 0]], [], [2, 4])
PaddedSharedLayout.with_identity_for([[128, 4]], [32, 128], [1, 0])

Behind each `interval` elements lie `padding` more. An interval is a power of two. So bit i of an element's number moves
it by 2**i and the paddings of the intervals in that. Each bit of a coordinate has a stride, and the whole is a layout.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ...errors import ParseError
from ...regex import regex
from ..layout import Layout
from .bases import ListValue, Value, ValueReader, basis_of, integers_of
from .parts import end_of_gluon_type, end_of_type

_ATTRIBUTE = regex(
    r"\s*(?:#\w+\s*=\s*)?(?:(?:\w+\s*[=:]\s*)?!ttg?\.memdesc\s*<\s*(?P<shape>(?:\d+\s*x\s*)+)\w+\s*,\s*)?"
    r"#(?:ttg|triton_gpu|gluon)\.(?P<name>padded_shared)\s*<\s*(?=\[)"
)
# A line that names a padded layout, and a type that refers to it
_NAMED = regex(r"(?m)^\s*#(\w+)\s*=\s*#(?:ttg|triton_gpu|gluon)\.padded_shared\s*<\s*(?=\[)")
_USED = regex(r"!ttg?\.(?:memdesc|tensordesc)\s*<\s*(?P<shape>(?:\d+\s*x\s*)+)\w+\s*,\s*#(\w+)(?![\w.])[^\n]*\s*\Z")
_CLASS = regex(
    r"\s*(?:\w+\s*[:=]\s*)?(?:shared_memory_descriptor<\s*\w+\s*,\s*\[(?P<shape>[\d,\s]*)\]\s*,\s*)?"
    r"(?:\w+\.)*(?P<name>PaddedSharedLayout)(?P<identity>\.with_identity_for)?\("
)
_PAD = regex(r"\s*(\d+)\s*:\s*\+\s*(\d+)\s*")
_NAMES = {"interval_padding_pairs": "pairs", "cga_layout": "block", "block_bases": "block", "offset_bases": "offset"}
_ORDERS = {True: ("pairs", "shape", "order", "block"), False: ("pairs", "offset", "block", "shape")}
_SYNTAX = "[interval:+padding, ...]"


class _Place(NamedTuple):
    """The text, and where the layout's name stands in it."""

    text: str
    at: int

    def fail(self, expected: str) -> ParseError:
        return ParseError(f"expected {expected} in padded_shared", self.text, self.at)


def padded(text: str) -> Layout | None:
    """The layout of a padded buffer, coordinates -> element; None for another text.

    Raises ParseError with the character and what was expected, also for bases of several bits: padding adds to them,
    and no layout does. Source: Triton's PaddedSharedEncodingAttr.

    >>> print(padded("#ttg.padded_shared<[128:+4] {order = [1, 0], shape = [32, 128]}>"))
    (32,128):(132,1)
    """
    used = _USED.search(text)
    named = next((each for each in _NAMED.finditer(text) if used is not None and each[1] == used[2]), None)
    found = _ATTRIBUTE.match(text) if named is None else None
    if found is not None:
        reader, place = ValueReader(text, found.end()), _Place(text, found.start("name"))
        pairs = _pairs(reader)
        given = dict(reader.fields(0).items)
        if found["shape"] is None:
            reader.end(">")
        elif not reader.take(">"):
            raise reader.fail("'>'")
        else:
            end_of_type(reader, _extents(found))
        return _layout(place, pairs, given, _extents(found))
    if named is not None and used is not None:
        reader, place = ValueReader(text, named.end()), _Place(text, named.end() - 1)
        pairs = _pairs(reader)
        end_of_type(ValueReader(text, used.end(2)), _extents(used))
        return _layout(place, pairs, dict(reader.fields(0).items), _extents(used))
    called = _CLASS.match(text)
    if called is None:
        return None
    reader, place = ValueReader(text, called.end()), _Place(text, called.start("name"))
    given = reader.arguments(_ORDERS[called["identity"] is not None], _NAMES)
    if called["shape"] is None:
        reader.end("")
    else:
        end_of_gluon_type(reader, _extents(called))
    listed = given.pop("pairs", None)
    items = listed.items if isinstance(listed, ListValue) else ()
    pairs = [(int(a), int(b)) for a, b in (_two(place, integers_of(text, each, place.at)) for each in items)]
    return _layout(place, pairs, given, _extents(called))


def _extents(found: re.Match[str]) -> list[int]:
    """The shape of a type; [] where the text has none."""
    return [int(extent) for extent in re.findall(r"\d{1,18}", found["shape"] or "")]


def _two(place: _Place, numbers: Sequence[int]) -> tuple[int, int]:
    if len(numbers) != 2:
        raise place.fail(f"pairs [interval, padding], not {list(numbers)},")
    return numbers[0], numbers[1]


def _pairs(reader: ValueReader) -> list[tuple[int, int]]:
    """`[64:+8, 256:+16]`: (interval, padding) of each."""
    reader.take("[")
    pairs: list[tuple[int, int]] = []
    while True:
        found = _PAD.match(reader.text, reader.at)
        if found is None:
            raise reader.fail(_SYNTAX)
        pairs.append((int(found[1][:18]), int(found[2][:18])))
        reader.at = found.end()
        if reader.take("]"):
            return pairs
        if not reader.take(","):
            raise reader.fail("',' or ']'")


def _layout(place: _Place, pairs: Sequence[tuple[int, int]], given: dict[str, Value], whole: list[int]) -> Layout:
    """The layout of checked parts.

    whole  the buffer's shape where its type is there, else []
    """
    if unknown := [name for name in given if name not in ("order", "shape", "offset", "block")]:
        raise place.fail(f"one of order, shape, offset, block, not {unknown[0]},")
    if len({interval for interval, _ in pairs}) < len(pairs):
        raise place.fail(f"each interval once, not {', '.join(f'{a}:+{b}' for a, b in pairs)},")
    for interval, padding in pairs:
        if interval < 1 or interval & (interval - 1) or padding < 1:
            raise place.fail(f"an interval that is a power of two and a padding from 1, not {interval}:+{padding},")
    if not pairs:
        raise place.fail(_SYNTAX)
    if isinstance(block := given.get("block"), ListValue) and block.items:
        raise place.fail("no bases of several blocks")
    vectors = _offsets(place, given, whole)
    rank = len(vectors[0]) if vectors else len(whole)
    strides: list[dict[int, int]] = [{} for _ in range(rank)]
    for bit, vector in enumerate(vectors):
        moved = [(d, x) for d, x in enumerate(vector) if x]
        if len(vector) != rank or len(moved) != 1 or moved[0][1] & (moved[0][1] - 1) or moved[0][1] < 0:
            raise place.fail(
                f"bases of one bit each, since padding is added, not {list(vector)} of offset {1 << bit} "
                "(before padding it is #ttg.shared_linear<{offset = [[...]], block = []}>)"
            )
        dim, value = moved[0]
        if value in strides[dim]:
            raise place.fail(f"{list(vector)} once")
        strides[dim][value] = (1 << bit) + sum(padding * ((1 << bit) // interval) for interval, padding in pairs)
    modes = [_mode(place, dim, of_bits) for dim, of_bits in enumerate(strides)]
    shape = [int(mode.size) for mode in modes]
    if len(whole) == rank + 1 and whole[1:] == shape:
        modes.insert(0, _buffers(place, pairs, whole[0], 1 << len(vectors)))
    elif whole and whole != shape:
        raise place.fail(f"a buffer of the bases' shape {shape}, not {whole},")
    return Layout(tuple(mode.shape for mode in modes), tuple(mode.stride for mode in modes))


def _buffers(place: _Place, pairs: Sequence[tuple[int, int]], count: int, elements: int) -> Layout:
    """The mode that counts buffers, one behind another: the paddings go on through all of them."""
    if any(interval > elements for interval, _ in pairs):
        raise place.fail(
            f"intervals of at most {elements} elements, those of a buffer, where there are {count} buffers,"
        )
    return Layout(count, elements + sum(padding * (elements // interval) for interval, padding in pairs))


def _offsets(place: _Place, given: dict[str, Value], whole: list[int]) -> list[tuple[int, ...]]:
    """The coordinates of each bit of an element's number, before padding; a shape beside them is put into `whole`."""
    if "offset" in given:
        if "shape" in given:
            shape = integers_of(place.text, given["shape"], place.at)
            if whole and shape not in (whole, whole[1:]):
                raise place.fail(f"a buffer of the layout's shape {shape}, not {whole},")
            whole[:] = whole or shape
        return list(basis_of(place.text, "offset", given["offset"], place.at).vectors)
    if "order" not in given or "shape" not in given:
        raise place.fail("order = [...] and shape = [...], or offset = [[...], ...]")
    order, shape = (integers_of(place.text, given[name], place.at) for name in ("order", "shape"))
    if sorted(order) != list(range(len(shape))):
        raise place.fail(f"order = a permutation of {len(shape)} dimensions, not {order},")
    if any(extent < 1 or extent & (extent - 1) for extent in shape):
        raise place.fail(f"extents that are powers of two, not {shape},")
    return [
        tuple([1 << i if d == dim else 0 for d in range(len(shape))])
        for dim in order
        for i in range(shape[dim].bit_length() - 1)
    ]


def _mode(place: _Place, dim: int, of_bits: dict[int, int]) -> Layout:
    """A dimension's layout, of the strides of its bits."""
    bits = sorted(of_bits)
    if bits != [1 << i for i in range(len(bits))]:
        raise place.fail(f"all bits of dimension {dim} up to its highest, not {bits},")
    if not bits:
        return Layout(1, 0)
    return Layout((2,) * len(bits), tuple(of_bits[bit] for bit in bits)).coalesce()
