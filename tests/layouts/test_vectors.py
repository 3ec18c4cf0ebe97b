"""Every reference vector, judged as tests/vectors/README.md says: a test an operation names its wrong cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from layoutgemm.checks import bank_conflicts, thread_access
from layoutgemm.layouts import ComposedLayout, Layout, Swizzle, idx2crd, make_layout_tv
from tests.layouts import reference as ref

VECTORS = Path(__file__).parents[1] / "vectors" / "layout_vectors.json"
CASES: list[dict[str, Any]] = json.loads(VECTORS.read_text(encoding="utf-8"))["cases"]


def tree(value: Any) -> Any:
    return tuple(tree(v) for v in value) if isinstance(value, list) else value


def decode(value: Any) -> Any:
    """JSON argument -> our objects; nested lists are int tuples."""
    if isinstance(value, dict):
        if "shape" in value:
            return Layout(tree(value["shape"]), tree(value["stride"]))
        if "tiler" in value:
            return tuple(decode(v) for v in value["tiler"])
        return Swizzle(*value["swizzle"])
    return tree(value)


def as_lists(value: Any) -> Any:
    """Tuples -> lists and NumPy ints -> ints, to compare with JSON."""
    if isinstance(value, (tuple, list)):
        return [as_lists(v) for v in value]
    return value if isinstance(value, bool) else int(value)


def image(layout: Any) -> list[int]:
    """Offsets by calling the layout on every flat coordinate: independent of offsets()."""
    return [int(layout(i)) for i in range(layout.size)]


def mode_sizes(layout: Layout) -> list[int]:
    return [ref.size(s) for s in ref.modes(layout.shape)]


LAYOUT_OPS = {
    "coalesce": lambda a: a.coalesce(),
    "coalesce_profile": lambda a, profile: a.coalesce(profile),
    "filter": lambda a: a.filter(),
    "flatten": lambda a: a.flatten(),
    "composition": lambda a, b: a.compose(b),
    "complement": lambda a, bound: a.complement(bound),
    "right_inverse": lambda a: a.right_inverse(),
    "left_inverse": lambda a: a.left_inverse(),
    "logical_divide": lambda a, b: a.logical_divide(b),
    "zipped_divide": lambda a, b: a.zipped_divide(b),
    "tiled_divide": lambda a, b: a.tiled_divide(b),
    "flat_divide": lambda a, b: a.flat_divide(b),
    "logical_product": lambda a, b: a.logical_product(b),
    "zipped_product": lambda a, b: a.zipped_product(b),
    "tiled_product": lambda a, b: a.tiled_product(b),
    "flat_product": lambda a, b: a.flat_product(b),
    "blocked_product": lambda a, b: a.blocked_product(b),
    "raked_product": lambda a, b: a.raked_product(b),
    "max_common_layout": lambda a, b: a.max_common_layout(b),
    "nullspace": lambda a: a.nullspace(),
    "upcast": lambda a, n: a.upcast(n),
    "downcast": lambda a, n: a.downcast(n),
    "recast": lambda new, old, a: a.recast(new, old),
    "dice": lambda coord, a: a.dice(coord),
    "slice": lambda coord, a: a.slice(coord),
    "tile_to_shape": lambda a, shape, order: a.tile_to_shape(shape, order),
    "make_ordered_layout": Layout.ordered,
}


def recast_composed(new: int, old: int, swizzle: Swizzle, layout: Layout) -> list:
    """Swizzle and layout recast together: both count elements of `old` bits before, of `new` bits after."""
    answer = ComposedLayout(Swizzle(swizzle.bits, swizzle.base, swizzle.shift, unit=old), 0, layout).recast(new, old)
    sw = answer.swizzle
    return [[sw.bits, sw.base, sw.shift], answer.offset, answer.layout]


def scalar_ways(swizzle: Swizzle | None, layout: Layout, element_bytes: int) -> int:
    """The file's definition: lane i of a warp names the one element at coordinate i, all 32 lanes together."""
    tile = layout if swizzle is None else ComposedLayout(swizzle, 0, layout)
    return bank_conflicts(tile, thread_access(Layout(layout.size, 1)), element=8 * element_bytes).ways


VALUE_OPS = {
    "size": lambda a: a.size,
    "cosize": lambda a: a.cosize,
    "rank": lambda a: a.rank,
    "depth": lambda a: a.depth,
    "crd2idx": lambda coord, a: a(coord),
    "idx2crd": idx2crd,
    "max_common_vector": lambda a, b: a.max_common_vector(b),
    "composed": lambda sw, offset, a: image(ComposedLayout(sw, offset, a)),
    "swizzle": lambda sw, xs: [sw(x) for x in xs],
    "make_layout_tv": make_layout_tv,
    "recast_composed": recast_composed,
    "bank_conflicts": scalar_ways,
}


def run(case: dict[str, Any]) -> Any:
    operation = {**LAYOUT_OPS, **VALUE_OPS}[case["op"]]
    return operation(*(None if a is None else decode(a) for a in case["args"]))


def is_inverse(case: dict[str, Any], answer: Layout) -> bool:
    original = decode(case["args"][0])
    if case["expect"]["law"] == "right_inverse":
        return all(original(answer(i)) == i for i in range(answer.size))
    return all(answer(original(i)) == i for i in range(original.size))


def judge_layout(case: dict[str, Any], answer: Any) -> None:
    expect = case["expect"]
    if case["op"] == "slice":
        answer, offset = answer
        assert offset == expect["offset"]
    values = image(answer)
    assert values == [int(v) for v in answer.offsets()], "offsets() differs from the layout called point by point"
    if "image" in expect:
        assert values == expect["image"]
    elif "any_of" in expect:
        right = any(values == choice["image"] for choice in expect["any_of"])
        assert right or ("law" in expect and is_inverse(case, answer)), f"{answer} gives {values}"
    else:  # only reached by reject cases that tolerate a peer's print
        peers = [Layout(tree(p["shape"]), tree(p["stride"])) for p in expect["or_peer_value"]]
        assert values in [image(p) for p in peers], f"{answer}: must raise or be one of {peers}"
    if "mode_sizes" in expect:
        assert mode_sizes(answer) == expect["mode_sizes"]


def judge_value(case: dict[str, Any], answer: Any) -> None:
    expected = case["expect"]["ways" if case["op"] == "bank_conflicts" else "value"]
    if case["op"] == "make_layout_tv":
        (sizes, layout), (want_sizes, want) = answer, expected
        assert [ref.size(s) for s in sizes] == want_sizes
        want = decode(want)
        assert image(layout) == image(want) and mode_sizes(layout) == mode_sizes(want)
    elif case["op"] == "recast_composed":
        assert as_lists(answer[0]) == expected[0] and answer[1] == expected[1]
        assert image(answer[2]) == image(decode(expected[2]))
    else:
        assert as_lists(answer) == expected


@pytest.mark.parametrize("op", sorted({case["op"] for case in CASES}))
def test_vectors(op: str) -> None:
    wrong = {}
    for case in CASES:
        if case["op"] == op:
            try:
                judge(case)
            except (Exception, pytest.fail.Exception) as error:  # the second: an error was expected, and none came
                wrong[case["id"]] = f"{type(error).__name__}: {error}"
    assert not wrong


def test_a_wrong_vector_is_named() -> None:
    wrong = {**CASES[0], "op": "coalesce", "args": [{"shape": 4, "stride": 1}], "expect": {"reject": True}}
    with pytest.raises(pytest.fail.Exception):
        judge(wrong)


def judge(case: dict[str, Any]) -> None:
    op, expect = case["op"], case["expect"]
    if op == "equivalent":
        return check_equivalent(case)
    if op == "predicates":
        layout = decode(case["args"][0])
        assert bool(layout.is_injective()) == expect["injective"]
        assert bool(layout.is_bijective()) == expect["bijective"]
        return None
    if expect.get("reject") and "or_peer_value" not in expect:
        with pytest.raises(ValueError):  # LayoutError is one; a TypeError or IndexError would be an accident
            run(case)
        return None
    try:
        answer = run(case)
    except ValueError:
        if expect.get("may_reject") or expect.get("reject"):
            return None
        raise
    (judge_layout if op in LAYOUT_OPS else judge_value)(case, answer)
    return None


def check_equivalent(case: dict[str, Any]) -> None:
    expect = case["expect"]
    left, right = (decode(a) for a in case["args"])
    verdict = left.equivalent(right)
    assert bool(verdict) == expect["value"]
    if "first_counterexample" in expect:
        where = verdict.coord if isinstance(verdict.coord, int) else ref.flat_index(verdict.coord, left.shape)
        assert where == expect["first_counterexample"]
        assert [verdict.left, verdict.right] == expect["values"]


def test_vectors_are_all_accounted_for() -> None:
    """No operation of the file is dropped silently, and ids are unique."""
    known = {*LAYOUT_OPS, *VALUE_OPS, "equivalent", "predicates"}
    assert {c["op"] for c in CASES} == known
    assert len({c["id"] for c in CASES}) == len(CASES)


def test_one_element_for_a_lane_over_reports_vectors_of_16_bytes() -> None:
    """The file's cases name one element for a lane, and so do the peers' counts. A 16-byte vector is served by quarter
    warps. Counted as if all 32 lanes came at once, a float4 load in order would be 4-way, and is free of conflicts. The
    32 row addresses of an ldmatrix.x4 at a pitch of 256 bytes would be 16-way (case 05993), and are 8-way.
    """
    in_order = Layout(32, 4)
    assert scalar_ways(None, in_order, 4) == 4
    float4 = thread_access(Layout((32, 4), (4, 1)), vector=4)
    assert bank_conflicts(Layout(128, 1), float4, element=32).ways == 1
    rows = Layout((16, 2), (128, 8))
    assert scalar_ways(None, rows, 2) == 16
    ldmatrix = thread_access(Layout(((16, 2), 8), ((1, 128), 16)), 8, "ldmatrix")
    assert bank_conflicts(Layout((16, 16), (128, 1)), ldmatrix, element="bf16").ways == 8
