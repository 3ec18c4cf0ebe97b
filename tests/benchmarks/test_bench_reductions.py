"""The benchmark of reductions: its check of outputs finds faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests import needs

needs.module("torch")

from benchmarks import bench_reductions
from benchmarks.bench_reductions import CASES, fault
from docs import tables


@pytest.mark.parametrize("name", CASES)
def test_each_case_agrees_with_float64(name: str) -> None:
    assert [fault(CASES[name], shape, "cpu") for shape in ((40, 264, 72, 0), (20, 136, 72, 3))] == ["", ""]


def test_a_wrong_output_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_reductions, "launch_of", _scaled(bench_reductions.launch_of))
    assert fault(CASES["row sum"], (40, 264, 72, 0), "cpu").startswith("row_sum is off by")


def _scaled(launch_of: Callable[..., Any]) -> Callable[..., Any]:
    """`launch_of` with an A that is 1% larger."""
    return lambda a, *rest: launch_of((a.float() * 1.01).bfloat16(), *rest)


def test_the_record_has_every_case_and_no_fault() -> None:
    found = tables.record("reductions", "h100")
    assert not any(found["faults"].values())
    assert all(set(us) == {"plain", *CASES} for us in found["costs"].values())
