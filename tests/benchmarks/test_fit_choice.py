"""The fit finds again what made the times, and leaves alone what they say nothing of."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.choice_record import Timed, Tried, save
from benchmarks.configurations import candidates
from benchmarks.fit_choice import constants, estimate, fit, folds, judged, main
from layoutgemm.bench import Problem
from layoutgemm.kernels import sm90_many_rows as model

SHAPES = [(300, 4096, 4096), (2400, 1024, 4928), (1000, 6144, 2048), (200, 14336, 1024), (640, 1280, 1856)]
MADE = {"_START": model._START * 1.5, "_MEMORY": model._MEMORY * 0.8, "_END": model._END * 1.3}


def made(sizes: tuple[int, int, int]) -> Tried:
    """Times as a machine of other constants would take, exactly."""
    problem, choices = Problem(*sizes), list(candidates(*sizes, likely=30))
    with constants(MADE):
        return Tried(problem, 1e-4, tuple(Timed(c, estimate(problem, c)) for c in choices))


def test_the_constants_are_found_again() -> None:
    tried = [made(sizes) for sizes in SHAPES]
    found = fit(tried, (*MADE, "_OF_FOUR"))
    assert {name: found[name] / MADE[name] for name in MADE} == pytest.approx(dict.fromkeys(MADE, 1.0), abs=0.15)
    assert found["_OF_FOUR"] == pytest.approx(model._OF_FOUR)  # no cluster of four is among them
    before, after = judged(tried, {}), judged(tried, found)
    assert sum(s.behind for s in after) <= sum(s.behind for s in before) and max(s.behind for s in after) < 0.01
    assert {s.problem for s in folds(tried[:2], 2)} == {one.problem for one in tried[:2]}


def test_few_rows_are_not_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = Tried(Problem(16, 4096, 4096), 1e-5, (Timed(next(candidates(16, 4096, 4096)), 9e-6),))
    with pytest.raises(ValueError, match="more than 64 rows"):
        fit([few])
    save(tmp_path / "record.json", {}, [few, made(SHAPES[0])])
    before = model._START
    assert main([str(tmp_path / "record.json")]) == 0 and model._START == before
    said = capsys.readouterr().out
    assert "1 of 1 shapes" in said and f"_START {model._START:.4g} -> " in said
