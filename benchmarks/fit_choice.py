"""Fits the constants of `choose` to records of `tune_gemm.py`, without a GPU.

    python benchmarks/fit_choice.py RECORD...              # constants, and choices before and after
    python benchmarks/fit_choice.py RECORD... --leave 71   # fitted without the shapes of random_shapes(20, seed=71)
    python benchmarks/fit_choice.py RECORD... --leave 71 81 --search 240    # then random search for 240 seconds
    python benchmarks/fit_choice.py RECORD... --folds 3    # also each third of the shapes, fitted to the others
    python benchmarks/fit_choice.py RECORD... --pairs      # gain of clusters in several waves, measured and modelled

The constants are those for more than 64 rows of 16-bit elements.

The objective is the expected time lost by a choice. Each kernel is chosen with a probability that falls by a factor of
e for each `SOFT` share of its estimate, since the choice by the least estimate has no gradient. Errors of the log times
near the fastest, and changes of the constants, are penalised too. `slopes.py` supplies the model's own gradients.

`--search` then changes a few constants at random, and keeps changes that reduce the loss of the real choice. It ignores
the times themselves: `start`, common to all kernels, is set afterwards, which changes no choice. Copy new constants by
hand into `h200.json`, with the printed figures.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.bench_gemm import SHAPES
from benchmarks.choice_record import Standing, Timed, Tried, load, report, standing
from benchmarks.configurations import random_shapes
from benchmarks.slopes import Slope
from layoutgemm.bench.method import BenchProblem
from layoutgemm.kernels.sm90.choose import large_m
from layoutgemm.kernels.sm90.choose.costs import CostModel
from layoutgemm.kernels.sm90.choose.occupancy import ClusterOccupancy
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice, likeliest, of_estimate

FITTED = (
    "clock", "heat", "heating", "read_hidden", "lines", "halved", "l2", "l2_later", "weights", "shared",
    "shared_later", "memory", "again", "apart", "shallow", "step", "end", "end_256", "power_256",
    "end_192", "power_192", "end_64", "wave", "start", "crowded", "crowded_split", "between", "wide_alone",
    "low_sharing", "exchange", "exchange_128", "sent", "more_parts", "late_split", "large", "later", "fill",
    "part_span", "between_later", "fill_whole", "large_loss", "together", "lines_together", "after", "fill_dealt",
    "rounds_of_a", "cool", "turn_loss", "swapped", "swapped_end",
    *(f"paired {rows} {order}" for rows in (64, 128, 192, 256) for order in (0, 1)),
)  # fmt: skip
# A kernel whose estimate is that share longer is taken e times less likely; one share after the other.
SOFT = 0.012, 0.006, 0.003
MOST = 0.15  # what a choice loses counts up to this share
NEAR = 0.05  # how far behind the fastest a kernel's error counts half
TABLE = 15  # times that a shape of the table counts
DRAWN, OFTEN = tuple(random_shapes(20, seed=41)), 8  # weight of the shapes with most measured kernels
STEPS = 200  # at most, of each of SOFT
LOOSE = 0.02  # errors beyond this count less than by their squares
# Beside a per cent lost: an error of LOOSE of every kernel, and the mean square of the constants' logarithmic changes.
ERRORS, KEPT = 0.5, 0.3


def estimate(problem: BenchProblem, choice: Sm90Choice, multiprocessors: int = 132) -> Any:
    """A kernel's time in seconds by the model of `choose`. It is a `Slope` if the constants are.

    >>> from layoutgemm.kernels.sm90.choose.rules import likeliest, of_estimate
    >>> best = likeliest(300, 4096, 14336)[0]
    >>> estimate(BenchProblem(300, 4096, 14336), of_estimate(best, 300, 4096, 14336)[0]) == best.seconds
    True
    """
    config = choice.config
    m, n = (problem.n, problem.m) if choice.swapped else (problem.m, problem.n)
    rows_of = None if problem.b_major == "k" else problem.n
    sizes = large_m.LargeMModel(
        m, n, problem.k, 1, ClusterOccupancy.of(multiprocessors), swapped=choice.swapped, rows_of=rows_of
    )
    by_gpc = (
        bool(config.tuning.gpc_order) and config.launch == "tiles"
    )  # several waves take tiles so, or not, by what they are
    return sizes.estimate(config.tile, config.cluster, config.schedule == "pingpong", config.split, by_gpc).seconds


@contextmanager
def constants(values: Mapping[str, Any]) -> Iterator[None]:
    """Context manager: the model with other constants.

    >>> before = large_m.MODEL.start
    >>> with constants({"start": 2e-6}):
    ...     large_m.MODEL.start
    2e-06
    >>> large_m.MODEL.start == before
    True
    """
    before = large_m.MODEL
    try:
        for name, value in values.items():
            large_m.MODEL = changed(large_m.MODEL, name, value)
        yield
    finally:
        large_m.MODEL = before


def constant(name: str) -> float:
    """The model's constant of that name; of one by rows and order, "name rows order"."""
    first, *places = name.split()
    found = getattr(large_m.MODEL, first)
    return float(found[int(places[0])][int(places[1])] if places else found)


def changed(model: CostModel, name: str, value: Any) -> CostModel:
    """The model with another constant."""
    first, *places = name.split()
    if places:
        rows, order = map(int, places)
        table = getattr(model, first)
        value = {**table, rows: tuple(value if i == order else kept for i, kept in enumerate(table[rows]))}
    return replace(model, numbers={**model.numbers, first: value})


def configured(one: Tried) -> list[Timed]:
    """The measured kernels with the settings of `choose`; others have no estimate."""
    p = one.problem
    order = "K" if p.b_major == "k" else "MN"
    now = {of_estimate(e, p.m, p.n, p.k, order)[0] for e in likeliest(p.m, p.n, p.k, order)}
    return [timed for timed in one.kernels if timed.choice in now]


def fit(tried: Sequence[Tried], names: Sequence[str] = FITTED) -> dict[str, float]:
    """The fitted constants; raises ValueError without measurements of more than 64 rows."""
    import numpy as np
    from scipy.optimize import minimize

    fields = [(one.problem, kernels) for one in tried if one.problem.m > 64 and (kernels := configured(one))]
    if not fields:
        raise ValueError("nothing was measured of more than 64 rows")
    now = np.array([constant(name) for name in names])
    counts = [TABLE if (p.m, p.n, p.k) in SHAPES else OFTEN if (p.m, p.n, p.k) in DRAWN else 1 for p, _ in fields]
    times = [np.log([timed.seconds for timed in kernels]) for _, kernels in fields]
    lost = [np.exp(t - t.min()) - 1 for t in times]

    def values(changes: Any) -> dict[str, float]:
        return dict(zip(names, (now * np.exp(changes)).tolist(), strict=True))

    def cost(changes: Any, soft: float) -> tuple[float, Any]:
        """The objective and its gradient."""
        unit = np.eye(len(names))
        found = {name: Slope(value, value * unit[i]) for i, (name, value) in enumerate(values(changes).items())}
        loss, slopes, errors, error_slopes = 0.0, np.zeros(len(names)), 0.0, np.zeros(len(names))
        with constants(found):
            for (problem, kernels), time, behind, count in zip(fields, times, lost, counts, strict=True):
                each = [estimate(problem, timed.choice) for timed in kernels]
                estimated = np.log([e.value for e in each])
                steep = np.array([e.slopes / e.value for e in each])
                likely = np.exp((estimated.min() - estimated) / soft)
                likely /= likely.sum()
                taken = likely @ np.minimum(behind, MOST)
                loss += count * taken
                slopes += count * ((taken - np.minimum(behind, MOST)) * likely / soft) @ steep
                weight = 1 / (1 + behind / NEAR) / LOOSE
                off = np.sqrt(1 + ((estimated - time) * weight) ** 2)
                errors += off.sum()
                error_slopes += ((estimated - time) * weight**2 / off) @ steep
        kernels_in_all = sum(map(len, times))
        value = 100 * loss / sum(counts) + ERRORS * errors / kernels_in_all + KEPT * np.square(changes).mean()
        slope = 100 * slopes / sum(counts) + ERRORS * error_slopes / kernels_in_all + 2 * KEPT * changes / len(names)
        return float(value), slope

    found = np.zeros(len(now))
    for soft in SOFT:
        found = minimize(cost, found, (soft,), method="L-BFGS-B", jac=True, options={"maxiter": STEPS}).x
        print(f"fitted to a share of {soft}", flush=True)
    return values(found)


def searched(
    tried: Sequence[Tried], seconds: float, seed: int = 0, names: Sequence[str] = FITTED, clock: Any = time.monotonic
) -> dict[str, float]:
    """Random search: changes a few constants at a time, for `seconds`.

    Losses beyond 1% count 1.7 times, and all kernels of nearly equal probability count. Raises ValueError without
    measurements of more than 64 rows.
    """
    import numpy as np

    fields = [(one.problem, kernels) for one in tried if one.problem.m > 64 and len(kernels := configured(one)) > 1]
    if not fields:
        raise ValueError("nothing was measured of more than 64 rows")
    counts = [TABLE if (p.m, p.n, p.k) in SHAPES else OFTEN if (p.m, p.n, p.k) in DRAWN else 1 for p, _ in fields]
    times = [np.array([timed.seconds for timed in kernels]) for _, kernels in fields]
    behind = [np.minimum(t / t.min() - 1, MOST) for t in times]
    lost = [b + 0.7 * np.maximum(0, b - 0.01) for b in behind]
    start = {name: constant(name) for name in names}

    def cost(values: Mapping[str, float]) -> float:
        total = 0.0
        with constants(values):
            for (problem, kernels), of, count in zip(fields, lost, counts, strict=True):
                found = np.array([estimate(problem, timed.choice) for timed in kernels])
                likely = np.exp((found.min() - found) / found.min() / SOFT[-1])
                total += count * (0.6 * (likely @ of) / likely.sum() + 0.4 * of[found.argmin()])
        changed = [math.log(values[name] / start[name]) / _reach(name) for name in names]
        return 100 * total / sum(counts) + 0.02 * statistics.mean(change**2 for change in changed)

    rng, best, kept, until = random.Random(seed), start, cost(start), clock() + seconds
    while clock() < until:
        tried_now = dict(best)
        for name in rng.sample(list(names), min(len(names), rng.choice([1, 1, 2, 3, 5]))):
            tried_now[name] *= math.exp(rng.gauss(0, _reach(name) / 6))
        if (found := cost(tried_now)) < kept:
            best, kept = tried_now, found
    return best


def _reach(name: str) -> float:
    """The range for the logarithm of a constant; smaller for factors near 1."""
    return 0.03 if name.startswith("paired") or name == "rounds_of_a" else 0.3


def judged(tried: Sequence[Tried], values: Mapping[str, float]) -> list[Standing]:
    """The choice with other constants, among the measured kernels."""
    with constants(values):
        return [standing(one) for one in tried if one.problem.m > 64]


def pairs(tried: Sequence[Tried]) -> list[str]:
    """Lines of multi-wave kernels of one shape with aligned rows. They differ only in the cluster: (1,2) against
    another. Medians of the log ratios of times and of estimates, by tile and schedule."""
    found: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for one in tried:
        p = one.problem
        if p.m <= 64 or p.k * 2 % 128:
            continue
        times = {timed.choice: timed.seconds for timed in configured(one)}
        for choice, seconds in times.items():
            config = choice.config
            if config.cluster != (1, 2) or config.launch == "tiles":
                continue
            for other, its in times.items():
                alike = (other.swapped, other.config.tile, other.config.schedule) == (
                    choice.swapped, config.tile, config.schedule
                )  # fmt: skip
                if alike and other.config.cluster in ((1, 1), (2, 1)) and other.config.split == 1:
                    logs = math.log(seconds / its), math.log(estimate(p, choice) / estimate(p, other))
                    kind = config.tile[0], config.tile[1] >= 192, config.schedule, other.config.cluster
                    found.setdefault(kind, []).append(logs)
    lines = []
    for (rows, wide, schedule, cluster), both in sorted(found.items()):
        measured, modelled = (100 * statistics.median(values) for values in zip(*both, strict=True))
        columns = "from 192 columns" if wide else "narrower"
        said = f"measured {measured:+.1f}%, modelled {modelled:+.1f}%, {len(both)} pairs"
        lines.append(f"{rows} rows, {columns}, {schedule}, (1,2) against {cluster}: {said}")
    return lines


def folds(tried: Sequence[Tried], count: int, seed: int = 0) -> list[Standing]:
    """The choices for each part of the shapes, fitted to the other parts."""
    mixed = list(tried)
    random.Random(seed).shuffle(mixed)
    found = []
    for i in range(count):
        others = [one for j, one in enumerate(mixed) if j % count != i]
        found += judged(mixed[i::count], fit(others))
        print(f"fold {i + 1} of {count} is fitted", flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Raises ValueError for records without shapes of more than 64 rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--folds", type=int, default=0, metavar="COUNT", help="how well other shapes are chosen for")
    parser.add_argument(
        "--leave", type=int, nargs="+", default=[], metavar="SEED", help="fit without the 20 random shapes of each"
    )
    parser.add_argument("--search", type=float, default=0.0, metavar="SECONDS", help="and by chance, for so long")
    parser.add_argument("--pairs", action="store_true", help="kernels that differ in the cluster alone; no fit")
    options = parser.parse_args(argv)
    tried = [one for path in options.records for one in load(path)[1] if one.problem.m > 64]
    if options.pairs:
        print("\n".join(pairs(tried)))
        return 0
    print("\n".join(["as it is:", *report(judged(tried, {}))]), flush=True)
    left = [sizes for seed in options.leave for sizes in random_shapes(20, seed)]
    kept = [one for one in tried if (one.problem.m, one.problem.n, one.problem.k) not in left]
    found = fit(kept)
    if options.search:
        with constants(found):
            found = searched(kept, options.search)
    for name, value in found.items():
        print(f"{name} {constant(name):.4g} -> {value:.4g}")
    print("\n".join(["fitted to all:", *report(judged(tried, found))]), flush=True)
    if options.folds:
        print("\n".join(["fitted to other shapes:", *report(folds(tried, options.folds))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
