"""The benchmark of tile orders: its check of C finds faults, and `plan` chooses the fastest recorded configuration."""

from __future__ import annotations

import pytest

from tests import needs

needs.module("torch")

from benchmarks import bench_orders
from benchmarks.bench_orders import CHECKED, SQUARE, TIMED, Case, checked_plans, fault, tile_of
from docs import tables


def test_every_checked_case_has_a_plan() -> None:
    plans = checked_plans()
    assert len(plans) > 40 and {case for case, _ in plans} == set(CHECKED)


def test_a_triangle_agrees_with_float64() -> None:
    case = Case("lower", SQUARE)
    assert fault(case, case.plan(264, 264, 8), "cpu") == ""


def test_a_wrong_triangle_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_orders, "stored_elements", lambda plan, values: None)
    case = Case("lower", SQUARE)
    assert fault(case, case.plan(264, 264, 8), "cpu").endswith(" elements are wrong")


def test_plan_chooses_the_fastest_recorded_configuration() -> None:
    for size, found in tables.record("orders", "h100")["sizes"].items():
        lower = {name: us for name, us in found["us"].items() if name.partition(",")[0] == "lower"}
        fastest = found["tiles"][min(lower, key=lambda name: lower[name])]
        assert tile_of(TIMED["lower"].plan(*[int(size)] * 3)) == fastest


def test_the_record_is_of_these_contenders() -> None:
    found = tables.record("orders", "h100")
    assert found["faults"] == []
    for one in found["sizes"].values():
        assert set(one["tiles"]) == set(TIMED) <= set(one["us"])
