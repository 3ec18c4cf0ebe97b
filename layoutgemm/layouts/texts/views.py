"""Triton's views of a linear layout from text. Who holds each element of a tensor, or what each place holds.

[[T0:0, T0:1]                get_distributed_view: the thread and the register of each element
[ T1:0, T1:1]]               B1:T0:0 in a cluster; T0:0|T4:0 where several hold it
Warp0:                       the hardware's view: a row a register, a column a lane
(0,0), (1,0)
(0,1), (1,1)
[[(0:0),(0:1)]               get_shared_view: the elements in the order of their offsets
[ (1:1),(1:0)]]
Block: 0:                    the hardware's view of shared memory: a line an offset
Offset: 0 -> (0,0)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...errors import ParseError
from ...regex import regex
from ..linear import LinearLayout
from .bases import Basis, made

_THREADS = regex(r"\s*(?=\[[\[\s]*(?:B\d+:)?T\d+:\d)")
_WARPS = regex(r"\s*(?=(?:Block\d+:\s*)?Warp\d+:\s*\()")
_ELEMENTS = regex(r"\s*(?=\[[\[\s]*\(\d+(?::\d+)*\))")
_OFFSETS = regex(r"\s*(?=(?:Block: \d+:\s*)?Offset: \d+ -> \()")
_HOLDER = regex(r"\s*(?:B(?P<block>\d{1,9}):)?T(?P<thread>\d{1,9}):(?P<register>\d{1,9})\s*")
_HOLDERS = regex(r"\s*(?:B\d{1,9}:)?T\d{1,9}:\d{1,9}(?:\s*\|\s*(?:B\d{1,9}:)?T\d{1,9}:\d{1,9})*\s*")
_COORDINATE = regex(r"\s*\(\s*(\d{1,9}(?:\s*[,:]\s*\d{1,9})*)\s*\)\s*")
_HEADING = regex(r"\s*(?:Block:?\s?(?P<block>\d{1,9}):|Warp(?P<warp>\d{1,9}):|Offset: (?P<offset>\d{1,9}) ->)[ \t]*")
_MATRIX = regex(r"\s*\[\s*\[\s*[01]\s*(?:,\s*[01]\s*)*\]\s*(?:,\s*\[[01,\s]*\]\s*)*\]\s*\Z")
_ORDER = ("offset", "register", "lane", "thread", "warp", "block")


class _Sample(NamedTuple):
    """One entry of a view. It has the numbers of its inputs, the coordinate of the element, and its place in the
    text."""

    inputs: dict[str, int]
    element: tuple[int, ...]
    at: int


def viewed(text: str) -> LinearLayout | None:
    """The linear layout of a text that shows each of its values, None for another.

    Inputs are those that the view has: (register, thread, block) where a thread's warp is not shown, (register, lane,
    warp, block) of the hardware's, (offset, block) of shared memory. The first dimension runs fastest. Raises
    ParseError for a value that the bits of its inputs do not give.

    >>> found = viewed("[[T0:0, T0:1]\\n[ T1:0, T1:1]\\n[ T2:0, T2:1]\\n[ T3:0, T3:1]]")
    >>> found.names, found.columns, found(register=1, thread=2)
    (('register', 'thread'), (4, 1, 2), 6)
    """
    if _MATRIX.match(text) is not None:
        raise ParseError("expected a layout, not a matrix alone; LinearLayout.from_matrix([[...]]) takes it", text, 0)
    readers = ((_THREADS, _of_threads), (_WARPS, _of_headings), (_ELEMENTS, _of_elements), (_OFFSETS, _of_headings))
    for begins, samples in readers:
        found = begins.match(text)
        if found is not None:
            return _linear(text, list(samples(text, found.end())))
    return None


def _of_threads(text: str, at: int) -> Iterator[_Sample]:
    """The holders of each element of a tensor, row by row."""
    for element, start in _cells(text, at, _HOLDERS):
        holder = _HOLDER.match(text, start)
        while holder is not None:
            yield _Sample({name: int(x) for name, x in holder.groupdict().items() if x}, element, holder.start())
            more = text[holder.end() : holder.end() + 1] == "|"
            holder = _HOLDER.match(text, holder.end() + 1) if more else None


def _of_elements(text: str, at: int) -> Iterator[_Sample]:
    """The elements in the order of their offsets."""
    for offset, (_, start) in enumerate(_cells(text, at, _COORDINATE)):
        found = _COORDINATE.match(text, start)
        if found is not None:
            yield _Sample({"offset": offset}, _numbers(found[1]), start)


def _of_headings(text: str, at: int) -> Iterator[_Sample]:
    """The elements below the numbers of a block and a warp: a row a register, or behind an offset."""
    place: dict[str, int] = {}
    while text[at:].strip():
        heading = _HEADING.match(text, at)
        if heading is not None:
            place |= {name: int(x) for name, x in heading.groupdict().items() if x}
            if heading["offset"] is None:
                place |= {"register": 0} if heading["warp"] is not None else {}
            at = heading.end()
            if heading["offset"] is None:
                continue
        for lane, found in enumerate(_row(text, at)):
            of_warp = {"lane": lane} if "warp" in place else {}
            yield _Sample(place | of_warp, _numbers(found[1]), found.start(1) - 1)
            at = found.end()
        if "warp" in place:
            place["register"] += 1


def _row(text: str, at: int) -> Iterator[re.Match[str]]:
    """The coordinates of one line."""
    while True:
        found = _COORDINATE.match(text, at)
        if found is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise ParseError("expected a coordinate, as in (0,1)", text, at)
        yield found
        if text[found.end() : found.end() + 1] != ",":
            return
        at = found.end() + 1


def _cells(text: str, at: int, cell: re.Pattern[str]) -> Iterator[tuple[tuple[int, ...], int]]:
    """The coordinate and the place of each cell in nested brackets. Raises ParseError for rows of several lengths."""
    counts: list[int] = []
    ends: dict[int, int] = {}  # depth -> the cells of each bracket there
    while True:
        while text[at : at + 1].isspace():
            at += 1
        sign = text[at : at + 1]
        found = cell.match(text, at)
        if sign == "[":
            counts.append(0)
            at += 1
        elif sign == "]" and counts:
            if ends.setdefault(len(counts), counts[-1]) != counts[-1]:
                raise ParseError(f"expected {ends[len(counts)]} entries, not {counts[-1]}", text, at)
            counts.pop()
            at += 1
            if not counts:
                break
            counts[-1] += 1
        elif found is not None and counts:
            yield tuple(counts), found.start()
            counts[-1] += 1
            at = found.end()
            at += text[at : at + 1] == ","
        else:
            raise ParseError("expected an entry, as in T0:1 or (0:1), or ']'", text, at)
    if text[at:].strip():
        raise ParseError("expected the end of the view", text, at)


def _numbers(said: str) -> tuple[int, ...]:
    return tuple([int(part) for part in re.split(r"[,:]", said)])


def _linear(text: str, samples: Sequence[_Sample]) -> LinearLayout:
    """The linear layout of its values. Raises ParseError for values that no linear layout has."""
    names = [name for name in _ORDER if name in samples[0].inputs]
    for each in samples:
        if len(each.inputs) != len(names) or any(name not in each.inputs for name in names):
            raise ParseError(f"expected an entry with its {', '.join(names)}", text, each.at)
    by_place = {tuple(sorted(each.inputs.items())): each for each in samples}
    counts = {name: 1 + max(each.inputs[name] for each in samples) for name in names}
    total = 1
    for name, count in counts.items():
        if count & (count - 1):
            raise ParseError(f"expected a power of two of {name}s, not {count}", text, samples[-1].at)
        total *= count
    if len(by_place) != len(samples) or total != len(samples):
        said = " x ".join(f"{count} {name}s" for name, count in counts.items())
        raise ParseError(f"expected {total} entries, each of {said} once, not {len(samples)}", text, samples[-1].at)
    bases = []
    for name, count in counts.items():
        places = ({other: 1 << i if other == name else 0 for other in names} for i in range(count.bit_length() - 1))
        held = [by_place[tuple(sorted(place.items()))] for place in places]
        bases.append(Basis(name, tuple([each.element for each in held]), held[0].at if held else 0))
    rank = len(samples[0].element)
    for each in samples:
        want = [0] * rank
        for basis in bases:
            for bit, vector in enumerate(basis.vectors):
                if each.inputs[basis.name] >> bit & 1 and len(vector) == rank:
                    want = [a ^ b for a, b in zip(want, vector, strict=True)]
        if tuple(want) != each.element:
            place = ", ".join(f"{name} {each.inputs[name]}" for name in names)
            raise ParseError(
                f"expected {tuple(want)}, which the bits of {place} give, not {each.element}", text, each.at
            )
    return made(text, bases, [1 << max(each.element[d] for each in samples).bit_length() for d in range(rank)])
