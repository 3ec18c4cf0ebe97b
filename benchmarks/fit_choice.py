"""Fit what `choose` reckons with, of more than 64 rows of 16-bit elements, to records of `tune_gemm.py`; without a GPU.

    python benchmarks/fit_choice.py RECORD...              # constants, and what is chosen before and after
    python benchmarks/fit_choice.py RECORD... --folds 3    # and of each third of the shapes, fitted to the others

Fitted are the logarithms of the times, the more the nearer a kernel is to its shape's fastest: which of the fast ones
is the fastest is what counts. A new constant is taken up by hand, with the figures that this prints beside it.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.choice_record import Standing, Tried, load, report, standing
from layoutgemm.bench import Problem
from layoutgemm.kernels import sm90_many_rows as model
from layoutgemm.kernels.sm90_choice import Sm90Choice

FITTED = (
    "_CLOCK", "_HEAT", "_HEATING", "_READ_HIDDEN", "_LINES", "_ALONE", "_HALVED", "_BANDS", "_L2", "_WEIGHTS",
    "_SHARED", "_MEMORY", "_AGAIN", "_APART", "_SHALLOW", "_STEP", "_END", "_END_256", "_POWER_256", "_END_192",
    "_POWER_192", "_END_64", "_WAVE", "_START", "_CROWDED", "_CROWDED_PARTS", "_BETWEEN", "_WIDE_ALONE", "_LOW_SHARING",
    "_MEETING", "_OF_128", "_OF_MORE", "_SENT", "_OF_FOUR",
)  # fmt: skip
NEAR = 0.03  # how far behind the fastest a kernel counts half
LOOSE = 0.02  # errors beyond this count less than by their squares
KEPT = 0.005  # a constant changed by a factor of e counts as such an error of every kernel: the data has to want it


def estimate(problem: Problem, choice: Sm90Choice, multiprocessors: int = 132) -> float:
    """Seconds that a kernel would take, as `choose` reckons them.

    >>> from layoutgemm.kernels.sm90_choice import likeliest, of_estimate
    >>> best = likeliest(300, 4096, 14336)[0]
    >>> estimate(Problem(300, 4096, 14336), of_estimate(best, 300, 4096, 14336)[0]) == best.seconds
    True
    """
    config = choice.config
    m, n = (problem.n, problem.m) if choice.swapped else (problem.m, problem.n)
    rows_of = None if problem.b_major == "k" else problem.n
    sizes = model.ManyRows(m, n, problem.k, 1, multiprocessors, swapped=choice.swapped, rows_of=rows_of)
    # The blocks of a cluster share out K or loads, not both.
    cluster = config.cluster if config.split == 1 else (1, 1)
    return sizes.estimate(config.tile, cluster, config.schedule == "pingpong", config.split).seconds


@contextmanager
def constants(values: Mapping[str, float]) -> Iterator[None]:
    """The model with other constants, for a while.

    >>> before = model._START
    >>> with constants({"_START": 2e-6}):
    ...     model._START
    2e-06
    >>> model._START == before
    True
    """
    before = {name: getattr(model, name) for name in values}
    try:
        for name, value in values.items():
            setattr(model, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(model, name, value)


def fit(tried: Sequence[Tried], names: Sequence[str] = FITTED) -> dict[str, float]:
    """The constants that fit what was measured; raises ValueError where nothing was, of more than 64 rows."""
    from scipy.optimize import least_squares

    rows = [
        (one.problem, t.choice, math.log(t.seconds), 1 / (1 + (t.seconds / best - 1) / NEAR))
        for one in tried
        if one.problem.m > 64
        for best in [min(t.seconds for t in one.kernels)]
        for t in one.kernels
    ]
    if not rows:
        raise ValueError("nothing was measured of more than 64 rows")
    now = {name: float(getattr(model, name)) for name in names}

    def values(factors: Sequence[float]) -> dict[str, float]:
        return {name: now[name] * math.exp(x) for name, x in zip(names, factors, strict=True)}

    def errors(factors: Sequence[float]) -> list[float]:
        with constants(values(factors)):
            found = [weight * (math.log(estimate(problem, choice)) - time) for problem, choice, time, weight in rows]
        return found + [KEPT * len(rows) ** 0.5 * x for x in factors]

    best = least_squares(errors, [0.0] * len(names), loss="soft_l1", f_scale=LOOSE, max_nfev=30, x_scale=0.1)
    return values(best.x)


def judged(tried: Sequence[Tried], values: Mapping[str, float]) -> list[Standing]:
    """What would be chosen with other constants, among what was measured."""
    with constants(values):
        return [standing(one) for one in tried if one.problem.m > 64]


def folds(tried: Sequence[Tried], count: int, seed: int = 0) -> list[Standing]:
    """What would be chosen for each part of the shapes, fitted to the others."""
    mixed = list(tried)
    random.Random(seed).shuffle(mixed)
    found = []
    for i in range(count):
        others = [one for j, one in enumerate(mixed) if j % count != i]
        found += judged(mixed[i::count], fit(others))
        print(f"fold {i + 1} of {count} is fitted", flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Raises ValueError where the records hold nothing of more than 64 rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--folds", type=int, default=0, metavar="COUNT", help="how well other shapes are chosen for")
    options = parser.parse_args(argv)
    tried = [one for path in options.records for one in load(path)[1] if one.problem.m > 64]
    print("\n".join(["as it is:", *report(judged(tried, {}))]), flush=True)
    found = fit(tried)
    for name, value in found.items():
        print(f"{name} {getattr(model, name):.4g} -> {value:.4g}")
    print("\n".join(["fitted to all:", *report(judged(tried, found))]), flush=True)
    if options.folds:
        print("\n".join(["fitted to other shapes:", *report(folds(tried, options.folds))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
