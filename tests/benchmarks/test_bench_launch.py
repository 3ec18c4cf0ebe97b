"""The launch benchmark's loop: every contender as often as another, in an order drawn anew."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks import bench_launch
from benchmarks.bench_launch import COMPARED, Progress, measure, parts


def test_every_contender_has_its_turns(capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []
    settled = []
    contenders = {name: (lambda name=name: order.append(name)) for name in "abc"}
    samples = measure(contenders, lambda: settled.append(len(order)), 20, 3, Progress(float("inf")))
    assert set(samples) == set("abc") and all(len(values) == 20 and min(values) > 0 for values in samples.values())
    assert [order.count(name) for name in "abc"] == [63, 63, 63] and len(settled) == 3 + 60
    rounds = ["".join(order[i : i + 9 : 3]) for i in range(9, len(order), 9)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds) and len(set(rounds)) > 3
    out, err = capsys.readouterr()
    assert not out and "warm: c" in err and "round 0 of 20" in err


def test_rounds_end_where_the_time_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    samples = measure({"a": lambda: None, "b": lambda: None}, lambda: None, 20, 3, Progress(0.0))
    assert [len(values) for values in samples.values()] == [5, 5]  # enough for a median
    assert "time is up after 5 rounds" in capsys.readouterr().err


def test_parts_are_named_and_comparisons_are_of_contenders() -> None:
    assert parts("forward,both") == ["forward", "both"]
    with pytest.raises(argparse.ArgumentTypeError, match=r"'backward' is not one of products, forward, both"):
        parts("forward,backward")
    source = Path(bench_launch.__file__).read_text()
    for name in {name for pair in COMPARED for name in pair}:
        assert f'        "{name}": lambda' in source, name
