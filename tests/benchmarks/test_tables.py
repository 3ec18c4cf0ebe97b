"""The README's table quotes the records."""

from __future__ import annotations

from pathlib import Path

from benchmarks import tables

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_readme_quotes_the_records() -> None:
    lines = tables.readme()
    assert len(lines) > 10
    assert "\n".join(lines) in README, "run `python benchmarks/tables.py` and copy its table to the README"


def test_the_readme_has_at_most_220_lines() -> None:
    assert README.count("\n") <= 220


def test_a_ratio_is_of_medians() -> None:
    ours, other = {"burst": [2.0, 1.0, 9.0]}, {"burst": [3.0, 3.0, 1.0]}
    assert tables.ratio(other, ours) == "1.500"


def test_a_shape_that_the_second_card_lacks_shows_dashes() -> None:
    timed = {"name": "layoutgemm", "family": "ours", "burst": [1e-5], "sustained": []}
    base = {"name": "torch.mm", "family": "torch.mm", "burst": [2e-5], "sustained": []}
    first, second = (
        {"outcomes": [{"problem": {"m": m, "n": 16, "k": 16}, "measured": [timed, base]} for m in sizes]}
        for sizes in ((16, 32), (16,))
    )
    lines = tables.gemm(first, second, "H100")
    assert lines[0].endswith("| H100 us | H100 x torch.mm | H100 x best peer |")
    assert lines[2].startswith("| 16 x 16 x 16 |") or lines[2].startswith("| 32 x 16 x 16 |")
    assert sum(line.endswith("| - | - | - |") for line in lines) == 1
    assert sum(line.endswith("| 10.00 | 2.000 | 2.000 |") for line in lines) == 1
