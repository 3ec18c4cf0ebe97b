"""The brute-force reference itself, against the reference vectors: a truth that is wrong would pass wrong answers."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.layouts import reference as ref

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "layout_vectors.json").read_text(encoding="utf-8")
)["cases"]


def tree(value: Any) -> Any:
    return tuple(tree(v) for v in value) if isinstance(value, list) else value


def layout(value: dict[str, Any]) -> tuple[Any, Any]:
    return tree(value["shape"]), tree(value["stride"])


def cases(op: str) -> list[dict[str, Any]]:
    return [c for c in CASES if c["op"] == op]


def test_existence_of_compositions() -> None:
    """`representable_by_some_layout` was computed by another brute force."""
    seen = 0
    for case in cases("composition"):
        if not case.get("in_domain"):
            continue
        left, right = (layout(a) for a in case["args"])
        table = ref.image(*left)
        values = [table[p] for p in ref.image(*right)]
        assert (ref.first_misfit(values, ref.leaves(right[0])) is None) == case["representable_by_some_layout"], case
        seen += 1
    assert seen > 200


def test_complement_rule() -> None:
    for case in cases("complement"):
        answer = ref.complement(*layout(case["args"][0]), case["args"][1])
        if case["expect"].get("reject"):
            assert answer is None, case
        else:
            assert answer is not None and ref.image(*map(tuple, answer)) == case["expect"]["image"], case


def test_values_and_coordinates() -> None:
    for case in cases("crd2idx"):
        coord, (shape, stride) = tree(case["args"][0]), layout(case["args"][1])
        if case.get("tag") != "bad_coord":
            index = ref.flat_index(coord, shape)
            assert ref.offset(index, shape, stride) == case["expect"]["value"], case
    for case in cases("idx2crd"):
        assert ref.coordinate(case["args"][0], tree(case["args"][1])) == tree(case["expect"]["value"]), case
    for case in cases("coalesce"):
        extents, strides = ref.canonical(case["expect"]["image"]) or ([], [])
        want = case["expect"]["layout"]
        assert (extents or [1], strides or [0]) == (ref.leaves(tree(want["shape"])), ref.leaves(tree(want["stride"])))


def test_swizzle_rule() -> None:
    for case in cases("swizzle"):
        if case.get("tag") != "invalid":
            bms = case["args"][0]["swizzle"]
            assert [ref.swizzle(*bms, x) for x in case["args"][1]] == case["expect"]["value"]


@pytest.mark.parametrize("n", [4, 6, 8])
def test_layout_functions_are_those_of_layouts(n: int) -> None:
    """Deciding by factorisations and reading off the canonical form are two methods with one answer."""
    for steps in product(range(4), repeat=n - 1) if n <= 6 else []:
        values = [0, *steps]
        assert ref.is_layout_function(values) == (ref.canonical(values) is not None), values
    for extents in [(n,), (2, n // 2), (n // 2, 2)]:
        for stride in product(range(4), repeat=len(extents)):
            values = ref.image(extents, stride)
            assert ref.is_layout_function(values) and ref.canonical(values) is not None
            assert all(ref.is_layout_function(values[:k], n) for k in range(n + 1))


def test_first_misfit_by_hand() -> None:
    assert ref.first_misfit([0, 1, 3, 8], [2, 2]) == 3
    assert ref.first_misfit([0, 1, 3, 4], [2, 2]) is None
    assert ref.first_misfit([0, 8, 48], [3]) == 2
    assert ref.first_misfit([0, 1, 2, 5], [4]) == 3
    assert ref.first_misfit([0, 1, 5, 6], [4]) is None
    # the leaf of extent 3 breaks at its own 2, which is coordinate 4 of the whole
    assert ref.first_misfit([0, 1, 5, 6, 11, 12], [2, 3]) == 4
    # prefix 0,1,2,3 could still be 6:1, (2,3):(1,2) or (3,2):(1,3); all of them say 4
    assert ref.first_misfit([0, 1, 2, 3, 9, 10], [6]) == 4
