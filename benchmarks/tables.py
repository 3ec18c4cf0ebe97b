"""Prints the README's table of speed from its records.

python benchmarks/tables.py            # tests/benchmarks/test_tables.py compares the README with it
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


HEAD = ("M x N x K", "us", "TFLOP/s", "x torch.mm", "x best peer", "best peer", "sustained x torch.mm", "x best peer")
BESIDE = ("us", "x torch.mm", "x best peer")  # columns of a second card


def gemm(record: dict[str, Any], beside: dict[str, Any] | None = None, card: str = "") -> list[str]:
    """One line a shape: time, rate, ratios to torch.mm and the best peer. Each is of bursts and sustained.

    beside, card  the record of a second card, whose bursts are the last columns, and its name
    """
    head = [*HEAD, *([f"{card} {name}" for name in BESIDE] if beside else [])]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    second = {shape(outcome): outcome for outcome in beside["outcomes"]} if beside else {}
    for outcome in sorted(record["outcomes"], key=place):
        found = timed(outcome)
        if found is None:
            continue
        ours, base, peers = found
        best = min(peers, key=median)
        rate = 2 * math.prod(outcome["problem"][name] for name in "mnk") / median(ours) / 1e12
        cells = [shape(outcome), microseconds(ours), f"{rate:.0f}", ratio(base, ours), ratio(best, ours)]
        cells.append(best["name"].partition(" (")[0])
        held = [m for m in peers if m["sustained"]]
        if ours["sustained"] and held:
            top = min(held, key=lambda m: median(m, "sustained"))
            cells += [ratio(base, ours, "sustained"), ratio(top, ours, "sustained")]
        else:
            cells += ["-", "-"]
        if beside:
            there = timed(second[shape(outcome)]) if shape(outcome) in second else None
            cells += bursts(*there) if there else ["-"] * len(BESIDE)
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def timed(outcome: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]] | None:
    """Our kernel, torch.mm, and all peers, torch.mm among them. None stands where ours was not measured."""
    measured = {m["name"]: m for m in outcome["measured"]}
    ours = measured.get("layoutgemm")
    peers = [m for m in outcome["measured"] if m["family"] != "ours"]
    return None if ours is None else (ours, measured["torch.mm"], peers)


def bursts(ours: dict[str, Any], base: dict[str, Any], peers: list[dict[str, Any]]) -> list[str]:
    """Time in bursts, and the ratios to torch.mm and to the best peer."""
    return [microseconds(ours), ratio(base, ours), ratio(min(peers, key=median), ours)]


def microseconds(measured: dict[str, Any]) -> str:
    """The median time of bursts, to four digits.

    >>> microseconds({"burst": [1.2341e-5]}), microseconds({"burst": [1.2341e-4]})
    ('12.34', '123.4')
    """
    us = median(measured) * 1e6
    return f"{us:.1f}" if us >= 100 else f"{us:.2f}"


def shape(outcome: dict[str, Any]) -> str:
    """The sizes as the table shows them.

    >>> shape({"problem": {"m": 16, "n": 4096, "k": 64}})
    '16 x 4096 x 64'
    """
    return " x ".join(str(outcome["problem"][name]) for name in "mnk")


def place(outcome: dict[str, Any]) -> tuple[bool, int, float]:
    """Sort key: squares first, then by falling M, then by falling work.

    >>> place({"problem": {"m": 16, "n": 4096, "k": 4096}}) > place({"problem": {"m": 1024, "n": 1024, "k": 1024}})
    True
    """
    m, n, k = (int(outcome["problem"][name]) for name in "mnk")
    return not m == n == k, -m, -n * k


def median(measured: dict[str, Any], what: str = "burst") -> float:
    """The median time of a contender's rounds, in seconds.

    >>> median({"burst": [3.0, 1.0, 2.0]})
    2.0
    """
    rounds = sorted(measured[what])
    middle = len(rounds) // 2
    return float(rounds[middle] if len(rounds) % 2 else (rounds[middle - 1] + rounds[middle]) / 2)


def ratio(other: dict[str, Any], ours: dict[str, Any], what: str = "burst") -> str:
    """The other contender's median time over ours, to three digits."""
    return f"{median(other, what) / median(ours, what):.3f}"


def readme() -> list[str]:
    """The README's table: gemm_h200.json, with the bursts of gemm_h100.json beside it."""
    h200, h100 = (json.loads((RESULTS / f"gemm_{card}.json").read_text(encoding="utf-8")) for card in ("h200", "h100"))
    return gemm(h200, h100, "H100")


def main() -> int:
    """The command: prints the README's table."""
    print("\n".join(readme()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
