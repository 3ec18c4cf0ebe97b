"""The checks of bench_operands on the CPU, and its record."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests import needs

torch = needs.module("torch")

from benchmarks import bench_operands as bench

RECORD = Path(bench.ROOT) / "benchmarks" / "results" / "operands_h100.json"
SMALL = (3, 24, 16)


def test_every_check_passes_on_the_cpu() -> None:
    found = list(bench.checks([SMALL], "cpu"))
    assert [check for check in found if not check.right] == []
    assert len({check.name for check in found}) == len(found) == 18


@pytest.mark.parametrize("name", bench.formulas())
def test_a_wrong_formula_fails(name: str) -> None:
    formula = bench.formulas()[name]
    wrong = dataclasses.replace(formula, plain=lambda *products: formula.plain(*products) * 1.02 + 0.1)
    assert bench.check_combined(name, formula, SMALL, "c", torch.bfloat16, "cpu").right
    assert not bench.check_combined(name, wrong, SMALL, "c", torch.bfloat16, "cpu").right


def test_nan_and_other_bits_fail() -> None:
    assert not bench.Check("a", float("nan")).right
    assert not bench.Check("a", 0.5, repeats=False).right
    assert bench.Check("a", 1.0).right


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--parts", "checks,pair"])
    assert "pair is none of checks, combined, pairs" in capsys.readouterr().err


def test_the_record_has_contenders_of_the_program() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert record["wrong"] == [] and max(record["gradients"]) < 0.02
    made = bench.formulas()
    for row in record["times"]:
        size = tuple(row["size"])
        assert size in bench.TIMED
        assert set(row["us"]) == set(bench.combined_calls(row["formula"], made[row["formula"]], size))
        assert bench.ratio(row["us"]) > 1
