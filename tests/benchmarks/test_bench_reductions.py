"""The benchmark of reductions: its check of outputs finds faults, and every program agrees with its formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests import needs

needs.module("torch")

from benchmarks import bench_reductions
from benchmarks.bench_reductions import ALONE, CASES, EAGER, OURS, PROGRAMS, fault, program_calls
from docs import tables


@pytest.mark.parametrize("name", CASES)
def test_each_case_agrees_with_float64(name: str) -> None:
    assert [fault(CASES[name], shape, "cpu") for shape in ((40, 264, 72, 0), (20, 136, 72, 3))] == ["", ""]


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_agrees_with_its_formula(name: str) -> None:
    columns = bench_reductions.WIDTH if name == "rms norm" else 256  # rms norm divides by the model's width
    calls, wrong = program_calls(replace(PROGRAMS[name], sizes=(72, columns, 64)), "cpu")
    assert wrong == "" and set(calls) == {OURS, EAGER, ALONE}
    for launches in calls.values():
        launches[0]()


def test_a_wrong_output_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_reductions, "launch_of", _scaled(bench_reductions.launch_of))
    assert fault(CASES["row sum"], (40, 264, 72, 0), "cpu").startswith("row_sum is off by")
    program = replace(PROGRAMS["router"], sizes=(72, 256, 64))
    assert program_calls(program, "cpu")[1].startswith("best_value is off by")


def _scaled(launch_of: Callable[..., Any]) -> Callable[..., Any]:
    """`launch_of` with an A that is 1% larger."""
    return lambda a, *rest: launch_of((a.float() * 1.01).bfloat16(), *rest)


def test_the_record_has_every_case_and_no_fault() -> None:
    found = tables.record("reductions", "h100")
    assert not any(found["faults"].values())
    assert all(set(us) == {"plain", *CASES} for us in found["costs"].values())
    assert {name: tuple(one["sizes"]) for name, one in found["programs"].items()} == {
        name: program.sizes for name, program in PROGRAMS.items()
    }
