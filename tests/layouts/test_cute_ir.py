"""The layout algebra against the tests of NVIDIA's CuTe IR, where their sources are given.

    git clone https://github.com/NVIDIA/cutlass
    CUTE_IR=cutlass/cutlass_compiler/cute_ir/test python -m pytest tests/layouts/test_cute_ir.py

An operation of these files has the types of its operands and of its result, which are layouts as text. Those without
run-time values are computed here.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layoutgemm.errors import LayoutError
from layoutgemm.layouts import parse

_VARIABLE = "CUTE_IR"
_OPERATION = re.compile(r"= cute\.(\w+)\(")
_TYPE = re.compile(r'!cute\.(\w+)<"([^"]*)">')
_TUPLES = ("shape", "int_tuple", "coord")
_THROUGH_COORDINATES = "(6,2):(1,3) o (2,1) o (2,3):(1@1,2@0)"  # a composition that no class of ours holds
_FEWEST = 100  # operations that are compared, of the files as of August 2026


def tiler(kind: str, text: str) -> Any:
    """A shape, a layout, or a tile: one layout for each mode, None for all of it."""
    if kind != "tile":
        return numbers(text) if kind in _TUPLES else parse(text)
    return tuple([None if part == "_" else parse(part) for part in text.strip("[]").split(";")])


def numbers(text: str) -> Any:
    """A tuple of integers as CuTe writes it."""
    return eval(text.replace("_", "None"), {})


def both(method: str) -> Callable[..., Any]:
    return lambda a, b: getattr(a, method)(b)


def alone(method: str) -> Callable[..., Any]:
    return lambda a: getattr(a, method)()


RULES: dict[str, Callable[..., Any]] = {
    **{name: alone(name) for name in ("flatten", "left_inverse", "right_inverse")},
    **{name: both(name) for name in (
        "logical_divide", "zipped_divide", "tiled_divide", "flat_divide", "logical_product",
        "zipped_product", "tiled_product", "flat_product", "blocked_product", "raked_product",
    )},
    "coalesce": lambda a, *profile: a.coalesce(*profile),
    "complement": lambda a, bound: a.complement(bound if isinstance(bound, int) else bound.cosize),
    "tile_to_shape": lambda a, shape, *order: a.tile_to_shape(shape, *order),
    "composition": lambda a, b: a.compose(b),
    "cosize": lambda a: a.cosize,
    "size": lambda a: a.size,
    "layout_eval": lambda coord, a: a(coord),
}  # fmt: skip


def operations(folder: Path) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """(file, operation, its types and its result's) of all operations without run-time values."""
    found = []
    for file in sorted(folder.rglob("*.mlir")):
        text = re.sub(r"//.*", "", file.read_text(encoding="utf-8"))
        starts = [match.start() for match in _OPERATION.finditer(text)]
        for begin, end in zip(starts, [*starts[1:], len(text)]):
            match = _OPERATION.match(text, begin)
            assert match is not None
            types = _TYPE.findall(text[begin : text.find("return", begin, end) if "return" in text[begin:end] else end])
            if types and not any("?" in told for _, told in types):
                found.append((file.name, match[1], types))
    return found


@pytest.mark.skipif(_VARIABLE not in os.environ, reason="needs the CuTe IR's own tests: set CUTE_IR to their folder")
def test_operations_give_the_types_of_the_results() -> None:
    seen: Counter[str] = Counter()
    for file, name, types in operations(Path(os.environ[_VARIABLE])):
        *given, (kind, told) = types
        if name not in RULES or given[0][0] in ("shape", "int_tuple") or _THROUGH_COORDINATES in dict(given).values():
            continue
        operands = [tiler(*each) for each in given]
        told_of = f"{file}: {name} of {given}"
        if (
            name.endswith("_product") and given[0][0] == "layout" and "@" in given[0][1]
        ):  # the complement of coordinates is no layout of ours
            with pytest.raises(LayoutError, match="complement is defined on offsets"):
                RULES[name](*operands)
        elif kind in _TUPLES:
            assert RULES[name](*operands) == numbers(told), told_of
        else:  # a mode of size 1 may have any stride
            found, want = RULES[name](*operands), parse(told)
            assert found.shape == want.shape and found.equivalent(want), f"{told_of}: {found}, the CuTe IR's is {told}"
        seen[name] += 1
    assert seen.total() >= _FEWEST, seen
