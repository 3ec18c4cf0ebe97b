"""The benchmark of whole programs: each agrees with its formula, and a wrong result is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests import needs

torch = needs.module("torch")

from benchmarks import bench_programs
from benchmarks.bench_programs import PROGRAMS, Program, fault
from docs import tables

SIZE = 128


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes for a CPU."""
    for name, value in (("VOCABULARY", 264), ("WIDTH", 64), ("ROUTED", 40)):
        monkeypatch.setattr(bench_programs, name, value)


def made(name: str) -> Program:
    torch.manual_seed(0)
    return PROGRAMS[name](SIZE)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_agrees_with_its_formula(name: str) -> None:
    program = made(name)
    operands = program.operands("cpu")
    assert fault(program, operands) == ""
    program.alone(*operands)


def test_a_wrong_result_is_named() -> None:
    program = made("router")
    operands = program.operands("cpu")
    off = replace(program, ours=lambda a, b: program.ours((a.float() * 1.01).bfloat16(), b))
    assert fault(off, operands).startswith("result 0 is off by")
    runs = iter(range(2))
    random = replace(program, ours=lambda a, b: (torch.full((SIZE,), float(next(runs))), *program.ours(a, b)[1:]))
    assert fault(random, operands) == "result 0 has other bits in a second call"


def test_the_record_has_every_program_and_no_fault() -> None:
    found = tables.record("programs", "h100")
    assert not found["faults"] and set(found["programs"]) == set(PROGRAMS)
    assert all({row["size"] for row in rows} == set(bench_programs.SIZES) for rows in found["programs"].values())
