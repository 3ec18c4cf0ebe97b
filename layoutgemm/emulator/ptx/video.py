"""Video instructions on the values of one lane. Selection of bytes and halves, saturation, accumulation, merging.

PTX ISA, "Video Instructions": the pseudo-code of the scalar and of the SIMD forms, whose names this file keeps. A
scalar form takes parts of two registers. A SIMD form takes 2 or 4 elements out of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from .values import M32, signed

_OPCODE = re.compile(r"v(add|sub|absdiff|min|max|avrg|set|shl|shr|mad)([24]?)")
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip
_BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "absdiff": lambda a, b: abs(a - b), "min": min, "max": max,
    "avrg": lambda a, b: a + b + (a + b >= 0) >> 1, "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b,
}  # fmt: skip
SECOND = ("add", "min", "max")
_SCALES = {"shr7": 7, "shr15": 15}


class VideoForm(NamedTuple):
    """The words of a video instruction.

    name      "add" of vadd and of vadd4; elements: those of a SIMD form, or 1
    types     of the result and of the two operands, "u32" or "s32"
    compares  the comparison of a vset, or ""; mode: "clamp" or "wrap" of a shift, or ""
    saturate, second (the operation with the third operand, or ""), po (plus one), scale (bits of a shift right)
    """

    name: str
    elements: int
    types: tuple[str, str, str]
    compares: str
    mode: str
    saturate: bool
    second: str
    po: bool
    scale: int


@lru_cache(maxsize=256)
def video_form(opcode: str) -> VideoForm:
    """The form of an opcode. Raises ValueError for one that PTX does not have.

    >>> video_form("vabsdiff4.u32.s32.s32.add").elements
    4
    """
    first, *words = opcode.split(".")
    found = _OPCODE.fullmatch(first)
    kinds = [word for word in words if word in ("u32", "s32")]
    rest = [word for word in words if word not in ("u32", "s32")]
    if found is None or words[: len(kinds)] != kinds:
        raise ValueError(f"{opcode} is no video instruction")
    name, count = found[1], int(found[2] or 1)
    shifts, sets = name in ("shl", "shr"), name == "set"
    taken: dict[str, str] = {}
    choices = {
        "compares": tuple(_COMPARE) if sets else (), "mode": ("clamp", "wrap") if shifts else (),
        "sat": () if sets else ("sat",), "second": SECOND if count == 1 and name != "mad" else SECOND[: count > 1],
        "po": ("po",) if name == "mad" else (), "scale": tuple(_SCALES) if name == "mad" else (),
    }  # fmt: skip
    for word in rest:
        field = next((key for key, some in choices.items() if word in some and key not in taken), None)
        if field is None:
            raise ValueError(f".{word} is no part of {first}")
        taken[field] = word
    simd = name in ("add", "sub", "absdiff", "min", "max", "avrg", "set")
    if (
        len(kinds) != (2 if sets else 3) or (shifts and (kinds[2] != "u32" or "mode" not in taken))
        or (sets and "compares" not in taken) or (not simd if count > 1 else name == "avrg")
        or (count > 1 and {"sat", "second"} <= set(taken))
    ):  # fmt: skip
        raise ValueError(f"{opcode} is no form of {first}")
    types = ("u32", *kinds) if sets else tuple(kinds)
    return VideoForm(
        name, count, (types[0], types[1], types[2]), taken.get("compares", ""), taken.get("mode", ""), "sat" in taken,
        taken.get("second", ""), "po" in taken, _SCALES.get(taken.get("scale", ""), 0),
    )  # fmt: skip


def _part(x: int, kind: str, selector: str) -> int:
    """A selected byte or half of a register, or all, extended by its type."""
    bits, at = {"b": 8, "h": 16}.get(selector[:1], 32), int(selector[1:] or 0)
    x = x >> bits * at & (1 << bits) - 1
    return signed(x, bits) if kind == "s32" else x


def _clamp(x: int, bits: int, of_sign: bool) -> int:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if of_sign else (0, (1 << bits) - 1)
    return min(max(x, low), high)


def _first(form: VideoForm, a: int, b: int) -> int:
    """The operation on two extended operands."""
    if form.compares:
        return int(_COMPARE[form.compares](a, b))
    if form.mode:
        b = min(b, 32) if form.mode == "clamp" else b & 31
    return _BINARY[form.name](a, b)


def scalar_video(opcode: str, selectors: tuple[str, str, str], a: int, b: int, c: int) -> int:
    """The result of a scalar form. Selectors are of d, a and b, such as "b0" and "h1", or "".

    >>> scalar_video("vadd.u32.u32.u32", ("", "b0", "b1"), 0x1234, 0x5678, 0) == 0x34 + 0x56
    True
    """
    form = video_form(opcode)
    of_sign, (to, of_a, of_b) = form.types[0] == "s32", selectors
    a, b = _part(a, form.types[1], of_a), _part(b, form.types[2], of_b)
    if form.name == "mad":
        of_sign = "s32" in form.types[1:]
        whole = a * b + (signed(c, 32) if of_sign else c) + form.po >> form.scale
        return (_clamp(whole, 32, of_sign) if form.saturate else whole) & M32
    bits = {"b": 8, "h": 16}.get(to[:1], 32)
    found = _first(form, a, b)
    if form.saturate:
        found = _clamp(found, bits, of_sign)
    if form.second:
        low, more = (signed(x & M32, 32) if of_sign else x & M32 for x in (found, c))
        return (
            low + more if form.second == "add" else min(low, more) if form.second == "min" else max(low, more)
        ) & M32
    if to:
        shift, mask = bits * int(to[1:]), (1 << bits) - 1
        return c & ~(mask << shift) & M32 | (found & mask) << shift
    return found & M32


def simd_video(opcode: str, selectors: tuple[str, str, str], a: int, b: int, c: int) -> int:
    """The result of a SIMD form. Selectors are the mask of d, and the elements of a:b, such as "b20" and "b7654", or
    "".

    >>> hex(simd_video("vadd4.u32.u32.u32.sat", ("", "", ""), 0x01020304, 0xFF000001, 0))
    '0xff020305'
    """
    form = video_form(opcode)
    count, bits = form.elements, 32 // form.elements
    mask, of_a, of_b = (selector[1:][::-1] for selector in selectors)
    places = [int(x) for x in mask] or range(count)
    either, of_sign = a | b << 32, form.types[0] == "s32"
    out = c
    for i in range(count):
        if i not in places:
            continue
        x, y = (
            _part(either >> bits * (int(chosen[i]) if chosen else i + default), kind, "bh"[count == 2] + "0")
            for chosen, default, kind in ((of_a, 0, form.types[1]), (of_b, count, form.types[2]))
        )
        found = _first(form, x, y)
        if form.saturate:
            found = _clamp(found, bits, of_sign)
        if form.second:
            out += found
        else:
            out = out & ~((1 << bits) - 1 << bits * i) | (found & (1 << bits) - 1) << bits * i
    return out & M32
