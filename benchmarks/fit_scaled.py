"""Fits the cost model of scaled products to measured times, without a GPU.

    python benchmarks/fit_scaled.py benchmarks/results/scaled_tiles_h100.json

Least squares of the logarithms of times; kernels within a quarter of the fastest weigh four times as much as others.
Prints the model's numbers as `layoutgemm/kernels/sm90/choose/h100.json` has them, and for each shape the choice, its
time over the fastest measured one, and its speed to DeepGEMM.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from layoutgemm.kernels import Sm90Config
from layoutgemm.kernels.sm90.choose.costs import CostModel
from layoutgemm.kernels.sm90.choose.scaled_grouped import MODEL, estimate

KIND = {"S": "one", "P": "few", "F": "full"}
CLUSTER = {(256, 128): (1, 2), (256, 96): (1, 2), (128, 144): (1, 1), (128, 112): (1, 1)}  # else pairs along M
PEER = "dg"
NEAR = 1.25  # of the fastest
KEPT = 0.02  # weight of a number's change
Case = tuple[str, tuple[int, int, int, int], str, Sm90Config, float]


def cases(record: dict[str, Any]) -> list[Case]:
    """(shape, sizes, kind, configuration, seconds) of every kernel that was timed."""
    found = []
    for shape, times in record["shapes"].items():
        m, n, k = map(int, shape.split("x"))
        for name, us in times.items():
            if not name.startswith(PEER):
                text, _, parts = name[1:].partition("/")
                rows, columns = map(int, text.split("x"))
                kind = KIND[name[0]]
                cluster = CLUSTER.get((rows, columns), (2, 1)) if kind == "full" else (1, 1)
                config = Sm90Config(
                    (rows, columns), consumers=rows // 64 if rows < 256 and kind != "full" else 3 if rows == 192 else 2,
                    split=int(parts or 1), one_tile_per_cluster=kind == "one", cluster=cluster,
                )  # fmt: skip
                found.append((shape, (m, n, k, 1), kind, config, us * 1e-6))
    return found


def model_of(names: list[tuple[str, Any]], logs: Sequence[float]) -> CostModel:
    """The model with these numbers, given as logarithms."""
    numbers: dict[str, Any] = {key: MODEL.numbers[key] for key in ("multiprocessors", "resident")}
    numbers["exchange"] = {1: 0}
    for (name, key), value in zip(names, logs, strict=True):
        if key is None:
            numbers[name] = math.exp(value)
        else:
            numbers.setdefault(name, {})[key] = math.exp(value)
    return CostModel("", numbers)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    from scipy.optimize import least_squares

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("record", type=Path)
    options = parser.parse_args(argv)
    record = json.loads(options.record.read_text(encoding="utf-8"))
    found = cases(record)
    fastest = {shape: min(t for s, *_, t in found if s == shape) for shape in record["shapes"]}
    names: list[tuple[str, Any]] = [("l2", None), ("power", None)]
    for name, value in MODEL.numbers.items():
        if name in ("start", "memory"):
            names += [(name, i) for i in range(len(value))]
        elif isinstance(value, dict) and name != "resident":
            names += [(name, key) for key in value if key != 1]
    start = [math.log(MODEL.numbers[name] if key is None else MODEL.numbers[name][key]) for name, key in names]

    def errors(logs: Sequence[float]) -> list[float]:
        model = model_of(names, logs)
        near = [1 if t < NEAR * fastest[shape] else 0.25 for shape, *_, t in found]
        off = [math.log(estimate(model, sizes, kind, c, model.multiprocessors) / t) for _, sizes, kind, c, t in found]
        return [w * x for w, x in zip(near, off, strict=True)] + [
            KEPT * (x - y) for x, y in zip(logs, start, strict=True)
        ]

    fitted = model_of(names, least_squares(errors, start, loss="soft_l1", f_scale=0.05).x)
    for name, value in fitted.numbers.items():
        print(f"{name}: {value}")
    lost, ahead = [], []
    for shape, times in record["shapes"].items():
        own = [case for case in found if case[0] == shape]
        *_, kind, config, taken = min(own, key=lambda x: estimate(fitted, x[1], x[2], x[3], fitted.multiprocessors))
        peer = min(us for name, us in times.items() if name.startswith(PEER)) * 1e-6
        lost.append(math.log(taken / fastest[shape]))
        ahead.append(math.log(peer / taken))
        print(f"{shape:18} {kind:4} {config.tile[0]}x{config.tile[1]}/{config.split} {math.exp(lost[-1]):.3f} of the "
              f"fastest's time, {math.exp(ahead[-1]):.3f} of DeepGEMM's speed")  # fmt: skip
    print(f"geometric means {math.exp(sum(lost) / len(lost)):.4f}, {math.exp(sum(ahead) / len(ahead)):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
