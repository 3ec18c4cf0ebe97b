"""The fit recovers the constants behind the times and leaves the others unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests import needs

needs.module("torch")

from benchmarks import fit_choice
from benchmarks.choice_record import Timed, Tried, load, save
from benchmarks.configurations import candidates, random_shapes
from benchmarks.fit_choice import constants, estimate, fit, folds, judged, main, searched
from benchmarks.slopes import Slope
from layoutgemm.bench.method import BenchProblem
from layoutgemm.kernels.sm90.choose import large_m

RECORD = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "choices_h200.json"
SHAPES = [(300, 4096, 4096), (2400, 1024, 4928), (1000, 6144, 2048), (200, 14336, 1024), (640, 1280, 1856)]
MADE = {"start": large_m.MODEL.start * 1.5, "memory": large_m.MODEL.memory * 0.8, "end": large_m.MODEL.end * 1.3}


def made(sizes: tuple[int, int, int]) -> Tried:
    """Times as a machine of other constants would take, exactly."""
    problem, choices = BenchProblem(*sizes), list(candidates(*sizes, likely=12))
    with constants(MADE):
        return Tried(problem, 1e-4, tuple(Timed(c, estimate(problem, c)) for c in choices))


def test_the_constants_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the errors of the times: a soft choice loses the least where estimates are further apart than times."""
    monkeypatch.setattr(fit_choice, "ERRORS", 50.0)
    monkeypatch.setattr(fit_choice, "KEPT", 0.0)
    tried = [made(sizes) for sizes in SHAPES]
    found = fit(tried, (*MADE, "part_span"))
    assert {name: found[name] / MADE[name] for name in MADE} == pytest.approx(dict.fromkeys(MADE, 1.0), abs=0.1)
    assert found["part_span"] == pytest.approx(large_m.MODEL.part_span)  # no B has contiguous rows here
    before, after = judged(tried, {}), judged(tried, found)
    assert sum(s.behind for s in after) <= sum(s.behind for s in before) and max(s.behind for s in after) < 0.01
    assert {s.problem for s in folds(tried[:2], 2)} == {one.problem for one in tried[:2]}


def test_slopes_are_those_of_the_model() -> None:
    """Slopes against differences of each constant: one wave and several, split-K, rounds, swapped operands."""
    now = {name: fit_choice.constant(name) for name in fit_choice.FITTED}
    unit = np.eye(len(now))
    slopes = {name: Slope(value, value * unit[i]) for i, (name, value) in enumerate(now.items())}
    moved = set()
    for problem in map(BenchProblem, (4096, 216, 128, 200), (6144, 5376, 2048, 1472), (4096, 6656, 8192, 1536), "kkkn"):
        for choice in list(candidates(problem.m, problem.n, problem.k, problem.b_major, likely=12)):
            with constants(slopes):
                found = estimate(problem, choice)
            assert found.value == pytest.approx(estimate(problem, choice))
            for i, (name, value) in enumerate(now.items()):
                sides = []
                for step in (1 + 1e-5, 1 - 1e-5):
                    with constants({name: value * step}):
                        sides.append(estimate(problem, choice))
                assert found.slopes[i] == pytest.approx((sides[0] - sides[1]) / 2e-5, abs=1e-6 * found.value), name
                moved |= {name} if found.slopes[i] else set()
    assert len(moved) > 40


def test_few_rows_are_not_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = Tried(BenchProblem(16, 4096, 4096), 1e-5, (Timed(next(candidates(16, 4096, 4096)), 9e-6),))
    with pytest.raises(ValueError, match="more than 64 rows"):
        fit([few])
    save(tmp_path / "record.json", {}, [few, made(SHAPES[0])])
    before = large_m.MODEL.start
    assert main([str(tmp_path / "record.json")]) == 0 and large_m.MODEL.start == before
    said = capsys.readouterr().out
    assert "1 of 1 shapes" in said and f"start {large_m.MODEL.start:.4g} -> " in said


def test_shapes_are_left_out_of_the_fit(tmp_path: Path) -> None:
    """Those of the seed and no others: of a record of one shape nothing is left."""
    left = next(sizes for sizes in random_shapes(20, seed=5) if sizes[0] > 64)
    save(tmp_path / "record.json", {}, [made(left)])
    with pytest.raises(ValueError, match="more than 64 rows"):
        main([str(tmp_path / "record.json"), "--leave", "5"])
    assert left not in random_shapes(20, seed=6)


def test_a_search_keeps_the_smaller_loss() -> None:
    """The choice for a shape, after a search on other constants' estimates, is no slower."""
    with constants(MADE):
        one = made((300, 4096, 4096))
    steps = iter(range(200))
    with constants({"shared": 1.6 * large_m.MODEL.shared}):
        before = judged([one], {})[0].behind
        found = searched([one], 100, seed=1, names=("shared", "lines"), clock=lambda: next(steps))
        after = judged([one], found)[0].behind
    assert after < before > 0.05 and set(found) == {"shared", "lines"}
    with pytest.raises(ValueError, match="more than 64 rows"):
        searched([], 1)


def test_pairs_differ_in_the_cluster_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the estimates as times, both columns agree."""
    many = made((4096, 6144, 4096))
    with constants(MADE):
        lines = fit_choice.pairs([many])
    assert len(lines) >= 3 and all("(1,2) against " in line for line in lines)
    for line in lines:
        measured, modelled = re.findall(r"(?:measured|modelled) ([+-][\d.]+)%", line)
        assert measured == modelled, line
    assert fit_choice.pairs([made((4096, 6144, 4104))]) == [], "lines that begin between"
    facts, tried = load(RECORD)
    save(tmp_path / "large.json", facts, [one for one in tried if one.problem.m >= 2048][:24])
    assert (
        main([str(tmp_path / "large.json"), "--pairs"]) == 0 and "256 rows, from 192 columns" in capsys.readouterr().out
    )
