"""The README's table quotes the record."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import tables

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_readme_quotes_the_record() -> None:
    lines = tables.gemm(json.loads((tables.RESULTS / "gemm_h200.json").read_text(encoding="utf-8")))
    assert len(lines) > 10
    assert "\n".join(lines) in README, "run `python benchmarks/tables.py` and copy its table to the README"


def test_the_readme_has_at_most_220_lines() -> None:
    assert README.count("\n") <= 220


def test_a_ratio_is_of_medians() -> None:
    ours, other = {"burst": [2.0, 1.0, 9.0]}, {"burst": [3.0, 3.0, 1.0]}
    assert tables.ratio(other, ours) == "1.500"
