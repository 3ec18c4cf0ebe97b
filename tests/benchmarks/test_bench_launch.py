"""The launch benchmark's loop: every contender as often as another, in an order drawn anew."""

from __future__ import annotations

from benchmarks.bench_launch import measure


def test_every_contender_has_its_turns() -> None:
    order: list[str] = []
    settled = []
    contenders = {name: (lambda name=name: order.append(name)) for name in "abc"}
    samples = measure(contenders, lambda: settled.append(len(order)), rounds=20, calls=3)
    assert set(samples) == set("abc") and all(len(values) == 20 and min(values) > 0 for values in samples.values())
    assert [order.count(name) for name in "abc"] == [63, 63, 63] and len(settled) == 3 + 60
    rounds = ["".join(order[i : i + 9 : 3]) for i in range(9, len(order), 9)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds) and len(set(rounds)) > 3
