"""bf16 GEMM on a GPU: our kernels against torch.mm, cuBLASLt, quack and DeepGEMM.

    python benchmarks/bench_gemm.py --json benchmarks/results/gemm_h200.json
    python benchmarks/bench_gemm.py --shapes 8192x8192x8192,64x4096x4096 --contender torch.mm,cublasLt,ours
    python benchmarks/bench_gemm.py --object mine=path/to/kernel.o --object "big@8192+16384=big.o" --no-sustained

The method is `layoutgemm/bench/method.py`. Every contender is checked against float64 before it is timed.

- A short round selects the best two of up to twelve cuBLASLt proposals, and of quack's configurations.
- DeepGEMM takes part if its package `deep_gemm` is installed.
- Sustained figures are taken for the best of each family, from `--sustained-from` GFLOP on. Smaller products are bound
  by memory, not power.
- The JSON is written after every shape.
- A run over `--budget` seconds first omits sustained figures, then shapes, and reports it.
- A run without progress for `--patience` seconds ends and names the contender.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib.util
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import deepgemm, needs, peers
from benchmarks.ours import NAME, ours
from layoutgemm.bench.contenders import KEEP, cublaslt, cublaslt_version, torch_mm
from layoutgemm.bench.method import BenchProblem, Contender, Device
from layoutgemm.bench.outcome import HEAD, OURS, DeviceLost, Method, Outcome, details, line, measure, save
from layoutgemm.cli.bench import shape, shapes

WEIGHTS = [(14336, 4096), (28672, 4096), (6144, 4096), (8192, 8192), (4096, 14336)]
SHAPES = [
    *((size, size, size) for size in (8192, 4096, 2048, 1024, 16384)),
    *((4096, n, k) for n, k in WEIGHTS),
    *((m, n, k) for m in (512, 64, 16) for n, k in [*WEIGHTS, (4096, 4096)]),
]
SHAPES.sort(key=math.prod)  # small ones first: a budget that is spent leaves out as few as it can
FAMILIES: dict[str, Callable[[BenchProblem], list[Contender]]] = {
    "torch.mm": torch_mm,
    "cublasLt": cublaslt,
    "quack": peers.quack,
    deepgemm.NAME: deepgemm.deepgemm,
}


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The parsed command line. Raises SystemExit for a wrong one, and for a contender without a name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shapes", type=shapes, default=SHAPES, help="MxNxK,... (default: the whole table)")
    parser.add_argument("--b-major", choices=("k", "n"), default="k", help="B's contiguous index (default: k)")
    parser.add_argument("--contender", help="families or names, comma-separated (default: all)")
    parser.add_argument("--ours", type=pair, action="append", default=[], metavar="NAME=MODULE:FUNCTION")
    parser.add_argument(
        "--object",
        type=pair,
        action="append",
        default=[],
        metavar="NAME[@SHAPE+SHAPE]=FILE.o",
        help="a kernel compiled by the CuTe DSL with TVM-FFI, exported as func(a, b, c); for these shapes only",
    )
    parser.add_argument("--rounds", type=int, default=11, help="rounds of bursts (default: 11)")
    parser.add_argument("--sustained-rounds", type=int, default=3)
    parser.add_argument("--sustained-ours", type=int, default=1, help="how many of ours run at sustained load")
    parser.add_argument("--no-sustained", action="store_true")
    parser.add_argument("--sustained-from", type=float, default=16.0, metavar="GFLOP")
    parser.add_argument("--budget", type=float, default=400.0, metavar="SECONDS")
    parser.add_argument("--patience", type=float, default=90.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quiet", action="store_true", help="print the table only")
    options = parser.parse_args(argv)
    known = [*FAMILIES, OURS, *(name.partition("@")[0] for name, _ in [*options.ours, *options.object]), NAME]
    for name in options.contender.split(",") if options.contender else []:
        if not any(name.startswith(start) for start in known):
            parser.error(f"--contender: nothing is called {name!r}; there are {', '.join(known)}")
    return options


def contenders(problem: BenchProblem, options: argparse.Namespace) -> list[Contender]:
    """The requested contenders, always with the baseline."""
    wanted = {*options.contender.split(","), "torch.mm"} if options.contender else None
    found = [
        contender
        for family, of in FAMILIES.items()
        if wanted is None or any(name.startswith(family) for name in wanted)
        for contender in of(problem)
    ]
    found += ours(problem, dict(options.ours) if options.ours else None)
    for given, path in options.object:
        name, _, only = given.partition("@")
        if not only or (problem.m, problem.n, problem.k) in map(shape, only.split("+")):
            found.append(peers.dsl_object(name, Path(path), OURS))
    return [c for c in found if wanted is None or wanted & {c.name, c.family}]


class Watchdog:
    """Ends the process when `mark` is not called for `patience` seconds. A kernel that hangs never returns."""

    def __init__(self, patience: float, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self.patience, self.say, self.clock = patience, say, clock
        self.step, self.since = "starting", clock()
        self.ended = threading.Event()

    def mark(self, step: str) -> None:
        """Records progress: the present step."""
        self.step, self.since = step, self.clock()

    def overdue(self) -> bool:
        """True if the present step exceeds `patience`."""
        return self.clock() - self.since > self.patience

    def __enter__(self) -> Watchdog:
        """Starts the watching thread."""

        def watch() -> None:
            while not self.overdue():
                if self.ended.wait(1.0):
                    return
            self.say(f"no progress for {self.patience:.0f} s in: {self.step}")
            faulthandler.dump_traceback(all_threads=True)
            sys.stdout.flush()
            os._exit(4)

        threading.Thread(target=watch, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()


class Budget:
    """Seconds for the whole table; decides on the next shape and on sustained load."""

    def __init__(self, seconds: float, shapes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.end, self.left_shapes = clock, clock() + seconds, shapes
        self.short: list[float] = []

    def allows(self, sustained_seconds: float = 0.0) -> bool:
        """True if the remaining shapes, in bursts, still fit after that much sustained load."""
        usual = max(self.short[-5:], default=10.0)
        if not sustained_seconds:
            return self.clock() + usual < self.end
        return self.clock() + sustained_seconds + usual * self.left_shapes < self.end

    def spent(self, seconds: float) -> None:
        """Records the time of one shape's bursts."""
        self.short.append(seconds)
        self.left_shapes -= 1


class Ended(NamedTuple):
    """The end of a run. Omitted parts are sentences, and a flag says that the device is unusable."""

    notes: list[str]
    lost: bool


def run(
    device: Device,
    problems: Sequence[BenchProblem],
    field: Callable[[BenchProblem], list[Contender]],
    options: argparse.Namespace,
    say: Callable[[str], None],
    done: Callable[[list[Outcome]], None],
    clock: Callable[[], float] = time.monotonic,
    mark: Callable[[str], None] = lambda step: None,
) -> Ended:
    """Measures every problem; calls `done` with all outcomes after each."""
    budget, notes, outcomes = Budget(options.budget, len(problems), clock), [], []
    for problem in problems:
        if not budget.allows():
            notes.append(f"{problem}: left out, the time budget of {options.budget:.0f} s is spent")
            continue
        rounds = 0 if options.no_sustained or problem.flops < options.sustained_from * 1e9 else options.sustained_rounds
        load = rounds * 0.8 * (len(FAMILIES) + options.sustained_ours)
        if rounds and not budget.allows(load):
            notes.append(f"{problem}: no sustained figures, they would exceed the time budget")
            rounds = 0
        began = clock()
        try:
            finalists = {OURS: options.sustained_ours}
            method = Method(options.rounds, sustained_rounds=rounds, keep=KEEP, finalists=finalists)
            outcomes.append(measure(device, problem, field(problem), method, mark))
        except DeviceLost as error:
            notes.append(f"{problem}: {error}; the run ends here, run again without it")
            return Ended(notes, lost=True)
        gc.collect()  # graphs and operands, before the next shape's
        budget.spent(clock() - began - (load if rounds else 0.0))
        say(f"[{clock() - began:5.1f} s] {line(outcomes[-1])}")
        if not options.quiet:
            for text in details(outcomes[-1]):
                say(text)
        done(outcomes)
    return Ended(notes, lost=False)


def report(outcomes: Sequence[Outcome], facts: dict[str, object], notes: Iterable[str]) -> str:
    """The closing text: facts, table, failures, omitted parts."""
    failed = [f"FAILED {o.problem} {name}: {why}" for o in outcomes for name, why in o.failed]
    failed += [f"FAULT {o.problem} {m.name}: {m.fault}" for o in outcomes for m in o.measured if m.fault]
    left_out = [f"left out: {name}: {why}" for name, why in peers.LEFT_OUT.items()]
    header = ", ".join(f"{key} {value}" for key, value in facts.items())
    return "\n".join([header, HEAD, *map(line, outcomes), *failed, *left_out, *notes])


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 2 if measuring is impossible, 3 if nothing was measured or the device failed."""
    options = arguments(argv)
    if status := needs.refused(needs.no_gpu("make bench-gemm installs it, and the peers")):
        return status
    wanted = options.contender.split(",") if options.contender else [OURS]
    if not options.ours and {OURS, NAME} & {*wanted} and importlib.util.find_spec("cutlass") is None:
        lacks = "the CuTe DSL is not installed, which our kernels need: pip install 'layoutgemm[dsl]'"
        return needs.refused(f"{lacks}; --contender {','.join(FAMILIES)} measures the others alone")
    from layoutgemm.bench import machine
    from layoutgemm.bench.method import CudaDevice

    def say(text: str) -> None:
        print(text, flush=True)

    source, sampler = machine.sampler()
    facts = {**machine.facts(), "cublasLt": cublaslt_version(), "DeepGEMM": deepgemm.version()}
    facts["clock and power"] = source
    say(", ".join(f"{key} {value}" for key, value in facts.items()))
    problems = [BenchProblem(m, n, k, options.b_major) for m, n, k in options.shapes]
    outcomes: list[Outcome] = []
    rounds = 0 if options.no_sustained else options.sustained_rounds
    method = {"rounds": options.rounds, "sustained_rounds": rounds, "sustained_from_gflop": options.sustained_from}

    def done(so_far: list[Outcome]) -> None:
        outcomes[:] = so_far
        if options.json:
            save(options.json, {**facts, "method": method}, so_far)

    with Watchdog(options.patience, say) as watchdog:
        ended = run(
            *(CudaDevice(sampler), problems, lambda p: contenders(p, options), options, say, done), mark=watchdog.mark
        )
    say("\n" + report(outcomes, facts, ended.notes))
    return 0 if outcomes and not ended.lost else 3


if __name__ == "__main__":
    sys.exit(main())
