"""Prints the README's table of speed from its record.

python benchmarks/tables.py            # tests/benchmarks/test_tables.py compares the README with it
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def gemm(record: dict[str, Any]) -> list[str]:
    """One line a shape: time, rate, ratios to torch.mm and the best peer, in bursts and sustained."""
    lines = [
        "| M x N x K | us | TFLOP/s | x torch.mm | x best peer | best peer | sustained x torch.mm | x best peer |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for outcome in sorted(record["outcomes"], key=place):
        measured = {m["name"]: m for m in outcome["measured"]}
        ours, base = measured.get("layoutgemm"), measured["torch.mm"]
        if ours is None:
            continue
        peers = [m for m in outcome["measured"] if m["family"] != "ours"]
        best = min(peers, key=median)
        sizes = outcome["problem"]
        shape = f"{sizes['m']} x {sizes['n']} x {sizes['k']}"
        us = median(ours) * 1e6
        rate = 2 * sizes["m"] * sizes["n"] * sizes["k"] / median(ours) / 1e12
        cells = [shape, f"{us:.1f}" if us >= 100 else f"{us:.2f}", f"{rate:.0f}", ratio(base, ours), ratio(best, ours)]
        cells.append(best["name"].partition(" (")[0])
        held = [m for m in peers if m["sustained"]]
        if ours["sustained"] and held:
            top = min(held, key=lambda m: median(m, "sustained"))
            cells += [ratio(base, ours, "sustained"), ratio(top, ours, "sustained")]
        else:
            cells += ["-", "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


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


def main() -> int:
    """The command: prints the table of gemm_h200.json."""
    print("\n".join(gemm(json.loads((RESULTS / "gemm_h200.json").read_text(encoding="utf-8")))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
