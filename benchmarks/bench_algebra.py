"""Times the layout algebra against pycute and tensor-layouts, as ratios in one run.

    python benchmarks/bench_algebra.py [--pycute FOLDER] [--json FILE] [--rounds N] [--no-import]

FOLDER contains the package `pycute` (NVIDIA/cutlass, `python/`). Without it that column is omitted. tensor-layouts is
used if it is installed. The method:

- Every call gets new objects with numbers that no earlier call had, so that caches cannot answer. Building them is not
  timed.
- Contenders alternate in random order within every round. The figure is the median over the rounds.
- Times are this thread's CPU time if the clock resolves it. Wall time would include other processes.
- Before timing, answers are compared as functions at every coordinate. If a peer refuses or differs, the table states
  it and gives no ratio.

`import layoutgemm` is timed in new processes, as the difference to importing NumPy alone. Imported heavy modules are
named; there should be none.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

# Windows ticks CPU time every 16 ms: no use there.
CPU = time.get_clock_info("thread_time").resolution < 1e-6 and sys.platform != "win32"
clock_ns = time.thread_time_ns if CPU else time.perf_counter_ns

HEAVY = ("cutlass", "torch", "sympy", "matplotlib", "jax", "pandas", "scipy", "hypothesis")

# What is measured -----------------------------------------------------------------------------------------------------
# A case maps a fresh number k = 1, 2, 3, ... to raw operands: ("layout", shape, stride), ("tiler", ...), ints.


def lay(shape: Any, stride: Any) -> tuple:
    """A layout as raw numbers, from which each contender builds its own."""
    return ("layout", shape, stride)


def fragment(k: int = 1, n: int = 8) -> tuple:
    """A 64 x 8n accumulator's map (thread, value) -> m + 64 n, with strides times k."""
    return lay(((4, 8, 4), (2, 2, n)), ((128 * k, k, 16 * k), (64 * k, 8 * k, 512 * k)))


CASES: dict[str, dict[str, Callable[[int], tuple]]] = {
    "compose": {
        "matrix": lambda k: (lay((64, 128), (128 * k, k)), lay((32, 16), (4, 256))),
        "nested": lambda k: (
            lay(((4, 8), (2, 4, 8)), ((k, 8 * k), (4 * k, 64 * k, 512 * k))),
            lay((8, (4, 8)), (4, (1, 64))),
        ),
        "thread-value": lambda k: (lay((64, 64), (64 * k, k)), fragment()),
        "3-mode": lambda k: (lay((12, 4, 6), (24 * k, 6 * k, k)), lay((6, 4), (2, 12))),
    },
    "coalesce": {
        "merges": lambda k: (lay(((2, 4), (8, 2), 16), ((k, 2 * k), (8 * k, 64 * k), 128 * k)),),
        "does not": lambda k: (fragment(k),),
        "units": lambda k: (lay((1, (2, 1), (3, (1, 4)), 1), (7, (k, 9), (2 * k, (5, 6 * k)), 3)),),
    },
    "complement": {
        "strided": lambda k: (lay((4, 8), (2, 16)), 128 * k),
        "fragment": lambda k: (lay(((4, 8, 4), (2, 2)), ((128, 1, 16), (64, 8))), 512 * k),
        "padded": lambda k: (lay((8, 4), (1, 8 * k)), 64 * k),
    },
    "right_inverse": {
        "row-major": lambda k: (lay((k + 1, 64), (64, 1)),),
        "fragment": lambda k: (fragment(n=k + 1),),
        "permuted": lambda k: (lay((8, 4, k + 1, 2), (2, 16, 64, 1)),),
    },
    "zipped_divide": {
        "matrix": lambda k: (lay((512, 256), (256 * k, k)), ("tiler", 64, 32)),
        "nested": lambda k: (lay(((8, 16), (4, 32)), ((k, 32 * k), (8 * k, 512 * k))), ("tiler", 32, 16)),
        "strided tile": lambda k: (lay((128, 64), (64 * k, k)), ("tiler", lay((8, 4), (1, 32)), lay(8, 8))),
    },
    "logical_product": {
        "matrix": lambda k: (lay((8, 8), (8, 1)), lay((4, k + 1), (k + 1, 1))),
        "atom": lambda k: (lay((8, (16, 2)), (16, (1, 128))), lay((k + 1, 2), (2, 1))),
        "strided": lambda k: (lay((4, 2), (2, 16)), lay(8 * (k + 1), 1)),
    },
    "call, one": {
        "index": lambda k: (fragment(k), 300),
        "by mode": lambda k: (fragment(k), 37, 19),
    },
    "offsets, 4096": {
        "matrix": lambda k: (lay((64, 64), (64 * k, k)),),
        "fragment": lambda k: (fragment(k),),
    },
    "swizzle, 4096": {
        "128 bytes": lambda k: (("swizzle", 3, 4, 3), ("range", 4096, k)),
        "32 bytes": lambda k: (("swizzle", 1, 4, 3), ("range", 4096, k)),
    },
    "swizzle, one": {
        "128 bytes": lambda k: (("swizzle", 3, 4, 3), 128 * k + 16),
    },
}


@dataclass(frozen=True)
class Contender:
    """One implementation: operand builders, operations, and conversion of answers to offsets."""

    name: str
    build: Callable[[Any], Any]
    operations: dict[str, Callable[..., Any]]
    values: Callable[[Any], list[int]]


def tuples(layout: tuple) -> tuple:
    """Shape and stride of a raw layout."""
    return layout[1], layout[2]


def ours() -> Contender:
    """This library. Offsets of a layout and swizzled ranges come as arrays."""
    import numpy as np

    from layoutgemm.layouts import Layout, Swizzle

    def build(raw: Any) -> Any:
        if not isinstance(raw, tuple):
            return raw
        kind, *rest = raw
        if kind == "layout":
            return Layout(*rest)
        if kind == "tiler":
            return tuple(build(r) for r in rest)
        return Swizzle(*rest) if kind == "swizzle" else np.arange(rest[0]) + rest[1]

    operations: dict[str, Callable[..., Any]] = {
        "compose": lambda a, b: a.compose(b),
        "coalesce": lambda a: a.coalesce(),
        "complement": lambda a, n: a.complement(n),
        "right_inverse": lambda a: a.right_inverse(),
        "zipped_divide": lambda a, t: a.zipped_divide(t),
        "logical_product": lambda a, b: a.logical_product(b),
        "call, one": lambda a, *coord: a(*coord),
        "offsets, 4096": lambda a: a.offsets(),
        "swizzle, 4096": lambda s, x: s(x),
        "swizzle, one": lambda s, x: s(x),
    }
    return Contender("layoutgemm", build, operations, lambda a: [int(a(i)) for i in range(a.size)])


def loops(build_layout: Callable[..., Any], build_swizzle: Callable[..., Any], tiler: Callable[..., Any]) -> Callable:
    """Operands for peers without arrays: a range of addresses is a list of ints."""

    def build(raw: Any) -> Any:
        if not isinstance(raw, tuple):
            return raw
        kind, *rest = raw
        if kind == "layout":
            return build_layout(*rest)
        if kind == "tiler":
            return tiler(build(r) for r in rest)
        return build_swizzle(*rest) if kind == "swizzle" else list(range(rest[1], rest[1] + rest[0]))

    return build


def peer_operations(module: Any, compose: str) -> dict[str, Callable[..., Any]]:
    """The operations of a peer's module by our names. Raises AttributeError for a missing one."""
    names = ("coalesce", "complement", "right_inverse", "zipped_divide", "logical_product")
    return {
        "compose": getattr(module, compose),
        **{name: getattr(module, name) for name in names},
        "call, one": lambda a, *coord: a(*coord),
        "offsets, 4096": lambda a: [a(i) for i in range(4096)],
        "swizzle, 4096": lambda s, xs: [s(x) for x in xs],
        "swizzle, one": lambda s, x: s(x),
    }


def pycute(folder: str) -> Contender:
    """pycute from its folder. Raises ModuleNotFoundError if it is not there."""
    sys.path.insert(0, folder)
    peer = importlib.import_module("pycute")
    build = loops(peer.Layout, peer.Swizzle, tuple)
    operations = peer_operations(peer, "composition")
    return Contender("pycute", build, operations, lambda a: [a(i) for i in range(a.size())])


def tensor_layouts() -> Contender:
    """The installed tensor-layouts. Raises ModuleNotFoundError without it."""
    peer = importlib.import_module("tensor_layouts")

    def tile(parts: Iterable[Any]) -> Any:
        return peer.Tile(*(p if isinstance(p, peer.Layout) else peer.Layout(p) for p in parts))

    build = loops(peer.Layout, peer.Swizzle, tile)
    operations = peer_operations(peer, "compose")
    return Contender("tensor-layouts", build, operations, lambda a: [a(i) for i in range(peer.size(a))])


# Checking and timing --------------------------------------------------------------------------------------------------


def as_values(contender: Contender, answer: Any) -> list[int]:
    """An answer as plain offsets. It may be a number, a range of them, or a layout at every coordinate."""
    if isinstance(answer, int):
        return [answer]
    if isinstance(answer, list) or hasattr(answer, "tolist"):
        return [int(v) for v in answer]
    return contender.values(answer)


def agreement(op: str, case: Callable[[int], tuple], contenders: Sequence[Contender]) -> dict[str, str]:
    """The difference to our answer by contender; "" if equal."""
    verdicts: dict[str, str] = {}
    mine = None
    for contender in contenders:
        try:
            answer = contender.operations[op](*(contender.build(raw) for raw in case(3)))
            values = as_values(contender, answer)
        except Exception as error:  # a peer's assertion or refusal is a finding, not a failure of the benchmark
            if contender is contenders[0]:
                raise
            verdicts[contender.name] = f"refuses ({type(error).__name__})"
            continue
        mine = values if mine is None else mine
        verdicts[contender.name] = "" if values == mine else "other answer"
    return verdicts


def measure(
    op: str,
    case: Callable[[int], tuple],
    contenders: Sequence[Contender],
    rounds: int,
    rng: random.Random,
    counter: int = 10,
) -> dict[str, float]:
    """name -> median microseconds per call, contenders interleaved."""
    per_round = 2 if op.endswith("4096") else 40
    times: dict[str, list[float]] = {c.name: [] for c in contenders}
    for _ in range(rounds):
        for contender in rng.sample(contenders, len(contenders)):
            # each contender sees numbers that it has not seen before
            operands = [[contender.build(raw) for raw in case(counter + i)] for i in range(per_round)]
            operation = contender.operations[op]
            gc.collect(0)
            start = clock_ns()
            for args in operands:
                operation(*args)
            times[contender.name].append((clock_ns() - start) / per_round / 1000)
        counter += per_round
    return {name: statistics.median(values) for name, values in times.items()}


def geometric(values: Sequence[float]) -> float:
    """The geometric mean. Raises ZeroDivisionError for no values.

    >>> geometric([1.0, 4.0])
    2.0
    """
    return prod(values) ** (1 / len(values))


def benchmark(contenders: Sequence[Contender], rounds: int, seed: int) -> list[dict[str, Any]]:
    """Rows of all cases: microseconds of each contender. With each are their ratio to the first's if the answers are
    equal, else the difference. Raises the first contender's errors."""
    rng = random.Random(seed)
    rows = []
    for op, cases in CASES.items():
        for name, case in cases.items():
            verdicts = agreement(op, case, contenders)
            timed = [c for c in contenders if not verdicts[c.name].startswith("refuses")]
            measure(op, case, timed, 2, rng, counter=10**6)  # warm up, with numbers of its own
            micros = measure(op, case, timed, rounds, rng)
            base = micros[contenders[0].name]
            ratios = {n: micros[n] / base for n in micros if n != contenders[0].name and not verdicts[n]}
            rows.append(
                {
                    "op": op,
                    "case": name,
                    "microseconds": micros,
                    "ratio": ratios,
                    "notes": {n: v for n, v in verdicts.items() if v},
                }
            )
    return rows


# Import time ----------------------------------------------------------------------------------------------------------

PROBE = """
import json, sys, time
import numpy
wall, cpu = time.perf_counter(), time.process_time()
import layoutgemm
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
print(json.dumps([wall, cpu, [m for m in {heavy!r} if m in sys.modules]]))
"""


def import_time(runs: int) -> dict[str, Any]:
    """Seconds of `import layoutgemm` in a new process with NumPy loaded. The first run is omitted, since it may compile
    bytecode."""
    seen = []
    for _ in range(runs + 1):
        command = [sys.executable, "-c", PROBE.format(heavy=HEAVY)]
        seen.append(json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout))
    wall, cpu, heavy = zip(*seen[1:], strict=True)
    return {
        "wall_s": statistics.median(wall),
        "least_wall_s": min(wall),
        "cpu_s": statistics.median(cpu),
        "heavy_modules": sorted({name for names in heavy for name in names}),
    }


# Output ---------------------------------------------------------------------------------------------------------------


def summary(rows: Sequence[dict[str, Any]], peers: Sequence[str]) -> list[dict[str, Any]]:
    """One line per operation: the geometric mean of the cases' ratios and the smallest."""
    lines = []
    for op in dict.fromkeys(r["op"] for r in rows):
        line: dict[str, Any] = {
            "op": op,
            "layoutgemm_us": geometric([r["microseconds"]["layoutgemm"] for r in rows if r["op"] == op]),
        }
        for peer in peers:
            ratios = [r["ratio"][peer] for r in rows if r["op"] == op and peer in r["ratio"]]
            line[peer] = {"mean": geometric(ratios), "least": min(ratios), "cases": len(ratios)} if ratios else None
        lines.append(line)
    return lines


def print_tables(rows: Sequence[dict[str, Any]], lines: Sequence[dict[str, Any]], peers: Sequence[str]) -> None:
    """Print every case, then a line for each operation."""
    print(f"{'operation':<16} {'case':<13} {'layoutgemm':>11}" + "".join(f" {p:>15} {'ratio':>7}" for p in peers))
    for r in rows:
        text = f"{r['op']:<16} {r['case']:<13} {r['microseconds']['layoutgemm']:>8.2f} us"
        for p in peers:
            if p in r["microseconds"]:
                ratio = f"{r['ratio'][p]:>6.1f}x" if p in r["ratio"] else f"{'-':>7}"
                text += f" {r['microseconds'][p]:>12.2f} us {ratio}"
            else:
                text += f" {'-':>15} {'-':>7}"
        notes = "; ".join(f"{n} {v}" for n, v in r["notes"].items())
        print(text + (f"   [{notes}]" if notes else ""))
    print("\nratio: how many times longer the peer takes; mean is geometric over the cases, least is the worst case")
    for line in lines:
        text = f"{line['op']:<16} {line['layoutgemm_us']:>8.2f} us"
        for p in peers:
            got = line[p]
            text += f"   {p}: " + (f"{got['mean']:.1f}x (least {got['least']:.1f}x)" if got else "no comparable case")
        print(text)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pycute", metavar="FOLDER", help="directory that contains the package pycute")
    parser.add_argument("--json", metavar="FILE", help="write all figures here")
    parser.add_argument("--rounds", type=int, default=60, help="measured rounds per case (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="order of contenders")
    parser.add_argument("--no-import", action="store_true", help="do not time the import")
    options = parser.parse_args(argv)

    contenders = [ours()]
    if options.pycute:
        contenders.append(pycute(options.pycute))
    else:
        print("pycute: left out (give --pycute FOLDER)")
    try:
        contenders.append(tensor_layouts())
    except ImportError:
        print("tensor-layouts: left out (pip install tensor-layouts)")
    peers = [c.name for c in contenders[1:]]

    print(f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}")
    rows = benchmark(contenders, options.rounds, options.seed)
    lines = summary(rows, peers)
    print_tables(rows, lines, peers)
    result: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "rounds": options.rounds,
        "clock": "thread CPU" if CPU else "wall",
        "summary": lines,
        "cases": rows,
    }
    if not options.no_import:
        result["import"] = timing = import_time(7)
        heavy = ", ".join(timing["heavy_modules"]) or "none"
        print(
            f"\nimport layoutgemm, beyond NumPy: {timing['wall_s']:.3f} s wall (least {timing['least_wall_s']:.3f}), "
            f"{timing['cpu_s']:.3f} s CPU; heavy modules loaded: {heavy}"
        )
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"written: {options.json}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
