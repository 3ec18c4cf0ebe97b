"""The README's tables are those of the records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import tables

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name, table", [("gemm_h200.json", tables.gemm), ("ladder_h200.json", tables.ladder)])
def test_the_readme_quotes_the_record(name: str, table: object) -> None:
    lines = table(json.loads((tables.RESULTS / name).read_text(encoding="utf-8")))
    assert len(lines) > 10
    assert "\n".join(lines) in README, "run `python benchmarks/tables.py` and put its table into the README"


def test_a_ratio_is_of_medians() -> None:
    ours, other = {"burst": [2.0, 1.0, 9.0]}, {"burst": [3.0, 3.0, 1.0]}
    assert tables.ratio(other, ours) == "1.500"
