"""Times proofs: symbolic layouts, GF(2) matrices of 2^40 elements, and theorems for all sizes.

    python benchmarks/bench_proofs.py [--rounds N] [--json FILE]

- Every answer is checked first: its method, and that false statements are refuted.
- Each statement is then asked N times, in random order among the others.
- Caches are emptied before each, so every round does all the work. A theorem's time includes its layouts and facts.
- The figure is the median of this thread's CPU time if the clock resolves it. Wall time would include other processes.
- "again" is the same question a second time, with warm caches.
- SymPy is loaded first if it is installed.

A theorem about families of layouts (`tests/layouts/proofs/theorems.py`) is timed per family, and the slowest family is
printed. A theorem in parts is timed as a whole.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import layoutgemm
from layoutgemm import CounterExample, Layout, Proof, Swizzle
from layoutgemm.layouts.linear import LinearLayout
from layoutgemm.layouts.proofs.prove import prove
from layoutgemm.layouts.symbols.dims import dim, dims
from tests.layouts.proofs.theorems import THEOREMS, Theorem

CPU = time.get_clock_info("thread_time").resolution < 1e-6 and sys.platform != "win32"
clock_ns = time.thread_time_ns if CPU else time.perf_counter_ns


class Row(NamedTuple):
    """A statement: its objects, its question, the expected answer and methods, and the goal."""

    name: str
    make: Callable[[], Any]
    ask: Callable[[Any], Any]
    kind: type
    methods: tuple[str, ...]
    goal_ms: float


# Two layouts with symbols in six modes --------------------------------------------------------------------------------


def six_modes(last: int = 1) -> tuple[Layout, Layout]:
    """BM x BN tiles of a matrix with pitch ld, and an equivalent layout."""
    M, N = dim("M", multiple_of=64), dim("N", multiple_of=32)
    H, W, ld = dims("H W ld")
    a = Layout(((8, 8, M // 64), (32, N // 32, H * W)), ((1, 8, 64), (ld, 32 * ld, N * ld)))
    b = Layout((4, 16, (M // 64, 4), 8, N // 32 * H, W), (1, 4, (64, ld), 4 * ld, 32 * ld, N * ld * H * last))
    return a, b


# Swizzled layouts of 2^40 elements ------------------------------------------------------------------------------------


def swizzled(bits: int = 3) -> tuple[Any, Any]:
    a = Swizzle(3, 4, 3) @ Layout((1 << 20, 1 << 20), (1 << 20, 1))
    b = Swizzle(bits, 4, 3) @ Layout(((1 << 10, 1 << 10), 1 << 20), ((1 << 20, 1 << 30), 1))
    return a, b


def by_matrices(pair: tuple[Any, Any]) -> Any:
    a, b = pair
    return LinearLayout.of(a).equivalent(LinearLayout.of(b))


ROWS = [
    Row("two 6-mode symbolic layouts, proof", six_modes, lambda p: prove(*p), Proof, ("coalesced normal form",), 1.0),
    Row(
        "two 6-mode symbolic layouts, refutation",
        lambda: six_modes(2),
        lambda p: prove(*p),
        CounterExample,
        ("coalesced normal form",),
        1.0,
    ),
    Row("2^40 swizzled, proof by matrices", swizzled, by_matrices, Proof, ("GF(2) matrix",), 0.2),
    Row(
        "2^40 swizzled, refutation by matrices",
        lambda: swizzled(2),
        by_matrices,
        CounterExample,
        ("GF(2) matrix",),
        0.2,
    ),
    Row(
        "2^40 swizzled, a.equivalent(b), proof",
        swizzled,
        lambda p: p[0].equivalent(p[1]),
        Proof,
        ("GF(2) matrix", "coalesced normal form"),
        0.2,
    ),
    Row(
        "2^40 swizzled, a.equivalent(b), refutation",
        lambda: swizzled(2),
        lambda p: p[0].equivalent(p[1]),
        CounterExample,
        ("GF(2) matrix",),
        0.2,
    ),
]
THEOREM_GOAL_MS = 5.0


# Measuring ------------------------------------------------------------------------------------------------------------


def caches() -> list[Any]:
    """Every cache of results in the library."""
    found: dict[int, Any] = {}
    for name, module in list(sys.modules.items()):  # looking at one may import others
        if name == "layoutgemm" or name.startswith("layoutgemm."):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    found[id(value)] = value
    return list(found.values())


def clear(stores: list[Any]) -> None:
    for store in stores:
        store.cache_clear()


def time_row(row: Row) -> tuple[float, Any]:
    """Milliseconds of one question without building its objects, and the answer."""
    made = row.make()
    start = clock_ns()
    answer = row.ask(made)
    return (clock_ns() - start) / 1e6, answer


def time_parts(theorem: Theorem) -> Iterator[tuple[float, Any]]:
    """Milliseconds of each part with its derivations."""
    parts = theorem.parts()
    while True:
        start = clock_ns()
        try:
            part = next(parts)
        except StopIteration:
            return
        yield (clock_ns() - start) / 1e6, part


def measure_theorem(theorem: Theorem, stores: list[Any]) -> float:
    """Milliseconds of a whole theorem, or of its slowest family."""
    if theorem.whole:
        return sum(ms for ms, _ in time_parts(theorem))
    slowest = 0.0
    parts = theorem.parts()
    while True:
        clear(stores)  # the families have nothing to do with each other; () when the caches are to be kept
        start = clock_ns()
        try:
            next(parts)
        except StopIteration:
            return slowest
        slowest = max(slowest, (clock_ns() - start) / 1e6)


def check(rows: list[Row]) -> dict[str, str]:
    """Asks every question once; returns the names with unexpected answers."""
    wrong = {}
    for row in rows:
        _, answer = time_row(row)
        if not isinstance(answer, row.kind) or getattr(answer, "method", None) not in row.methods:
            wrong[row.name] = f"{type(answer).__name__}: {answer.explain().splitlines()[0]}"
    for name, theorem in THEOREMS.items():
        for part in theorem.parts():
            if not isinstance(part.answer, Proof) or part.answer.method != part.method:
                wrong[f"theorem: {name}"] = f"{part.text}: {part.answer}"
    return wrong


def measure(rounds: int, wrong: dict[str, str]) -> list[dict[str, Any]]:
    jobs: dict[str, tuple[float, Callable[[list[Any]], float]]] = {}
    stores = caches()
    for row in ROWS:
        jobs[row.name] = row.goal_ms, lambda stores, row=row: time_row(row)[0]
    for name, theorem in THEOREMS.items():
        jobs[f"theorem: {name}"] = THEOREM_GOAL_MS, lambda stores, t=theorem: measure_theorem(t, stores)
    times: dict[str, list[float]] = {name: [] for name in jobs}
    again: dict[str, list[float]] = {name: [] for name in jobs}
    rng = random.Random(0)
    order = [name for name in jobs if name not in wrong]
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            rng.shuffle(order)
            for name in order:
                clear(stores)
                times[name].append(jobs[name][1](stores))
                again[name].append(jobs[name][1]([]))
            gc.collect()
    finally:
        gc.enable()
    out = []
    for name, (goal, _) in jobs.items():
        said: dict[str, Any] = {"statement": name, "goal_ms": goal}
        if name in wrong:
            said |= {"wrong": wrong[name]}
        else:
            said |= {"median_ms": round(statistics.median(times[name]), 4), "fastest_ms": round(min(times[name]), 4)}
            said |= {"again_ms": round(statistics.median(again[name]), 4)}
            said |= {"within_goal": said["median_ms"] < goal}
        out.append(said)
    return out


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'statement':42}{'median':>11}{'fastest':>11}{'again':>11}{'goal':>10}"]
    for row in rows:
        goal = f"{row['goal_ms']:.1f} ms"
        if "wrong" in row:
            lines.append(f"{row['statement']:42}{'not timed: ' + row['wrong']}")
            continue
        mark = "" if row["within_goal"] else "  over"
        figures = "".join(f"{row[k]:>8.3f} ms" for k in ("median_ms", "fastest_ms", "again_ms"))
        lines.append(f"{row['statement']:42}{figures}{goal:>10}{mark}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if importlib.util.find_spec("sympy") is not None:
        import sympy

        loaded = f"SymPy {sympy.__version__} loaded"
    else:
        loaded = "SymPy not installed"
    wrong = check(ROWS)
    rows = measure(args.rounds, wrong)
    about = {
        "layoutgemm": layoutgemm.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "clock": "CPU time of the thread" if CPU else "wall time",
        "rounds": args.rounds,
        "sympy": loaded,
        "date": time.strftime("%Y-%m-%d"),
    }
    print(f"layoutgemm {about['layoutgemm']}, Python {about['python']}, {about['machine']}, {about['clock']}, {loaded}")
    print(table(rows))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
