"""Measures configurations for a shape side by side, as the reference for the heuristic.

    python benchmarks/tune_gemm.py build FOLDER --shapes 8192,4096x14336x4096      # compiles, no GPU needed
    python benchmarks/tune_gemm.py run FOLDER --shapes 8192,4096x14336x4096 --json tuned.json
    python benchmarks/tune_gemm.py judge tuned.json                                # no GPU needed

`build` writes one object per configuration and a manifest. `run` loads the objects, checks every contender against
float64, and measures bursts by `layoutgemm/bench/method.py`, with torch.mm. A few rounds cover all contenders; the
remaining rounds cover the fastest and the choice of `choose`. `judge` compares the current choice with such records.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.bench_gemm import SHAPES, pair
from benchmarks.choice_record import Timed, Tried, load, report, save, standing
from benchmarks.configurations import candidates, name_of, random_shapes
from benchmarks.objects import export, loaded
from benchmarks.ours import launches
from layoutgemm.bench.contenders import KEEP, torch_mm
from layoutgemm.bench.method import BenchProblem, Contender, Device, Launch, Operands
from layoutgemm.bench.outcome import BASELINE, OURS, Method, measure
from layoutgemm.cli.bench import shape
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice

B_ORDERS = {"k": "bf16:col", "n": "bf16:row"}
CHOSEN = "chosen"  # the family of what `choose` takes: it is always in the last round


def key_of(choice: Sm90Choice, b_major: str) -> str:
    """A compiled configuration's key in a manifest."""
    return f"{name_of(choice)} {b_major}"


def build(folder: Path, wanted: dict[str, Sm90Choice], b_major: str, jobs: int) -> int:
    """Compiles missing objects in `jobs` processes; returns the number of failures."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest_file = folder / "manifest.json"
    manifest = json.loads(manifest_file.read_text()) if manifest_file.exists() else {}
    failed = 0
    missing = {key: choice for key, choice in wanted.items() if key not in manifest}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(compiled, folder, key, choice, b_major): key for key, choice in missing.items()}
        for done, job in enumerate(as_completed(running), 1):
            key = running[job]
            try:
                manifest[key] = job.result()
            except Exception as error:  # the others are still worth having
                failed += not isinstance(error, LayoutError)
                print(f"[{done}/{len(running)}] FAILED {key}: {type(error).__name__}: {error}", flush=True)
                continue
            manifest_file.write_text(json.dumps(manifest, indent=1))
            print(f"[{done}/{len(running)}] {key}: {manifest[key]}", flush=True)
    return failed


def compiled(folder: Path, key: str, choice: Sm90Choice, b_major: str) -> dict[str, Any]:
    """Compiles one configuration into the folder; returns its manifest entry. Raises LayoutError."""
    from layoutgemm.kernels.compile.compiler import kernel_of
    from layoutgemm.kernels.compile.sass import resources

    plan = choice.plan(1, 1, 8192, b=B_ORDERS[b_major])  # a K that every configuration takes
    symbol = f"tuned_{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    used = resources(export(folder, kernel_of(plan), plan.parameters.values(), symbol, "sm_90a"))
    return {
        "symbol": symbol, "clusters": plan.cluster_size, "registers": used.registers, "local": used.local_bytes,
        "stack": used.stack_bytes, "smem": plan.smem.total, "stages": plan.stages,
    }  # fmt: skip


def contender(folder: Path, key: str, choice: Sm90Choice, entry: dict[str, Any], problem: BenchProblem) -> Contender:
    """A compiled configuration as a contender."""

    def prepare(sets: Sequence[Operands]) -> list[Launch]:
        from cuda.bindings import driver

        function = loaded(folder / f"{entry['symbol']}.o", entry["symbol"])

        def launch(*arguments: int, stream: int) -> None:
            function(*arguments, driver.CUstream(stream))

        return launches(launch, choice, entry["clusters"], problem, sets)

    return Contender(key, prepare, OURS)


def race(
    device: Device, problem: BenchProblem, field: dict[Sm90Choice, Contender], others: Sequence[Contender], rounds: int,
    last: int, progress: Any = lambda step: None,
) -> Tried:  # fmt: skip
    """Measures configurations, the chosen one first, and peers with torch.mm.

    last  number of our kernels in the last round, beside the chosen one
    """
    entries = list(field.values())
    chosen = Contender(entries[0].name, entries[0].prepare, CHOSEN)
    method = Method(rounds, sustained_rounds=0, keep={**KEEP, OURS: last})
    outcome = measure(device, problem, [*others, chosen, *entries[1:]], method, progress)
    base = next(m.seconds for m in outcome.measured if m.name == BASELINE)
    final = {m.name: m.seconds for m in outcome.measured}
    print(f"{problem} torch.mm {base * 1e6:.2f} us", flush=True)
    for m in sorted(outcome.measured, key=lambda m: m.seconds):
        mark = " (chosen)" * (m.family == CHOSEN)
        print(f"    {base / m.seconds:6.4f} {m.seconds * 1e6:9.2f} us  {m.name}{mark} {m.fault}", flush=True)
    for name, why in outcome.failed:
        print(f"    FAILED {name}: {why[:300]}", flush=True)
    early = dict(outcome.fell_out)
    times = [
        Timed(choice, final.get(c.name) or early[c.name], c.name in final)
        for choice, c in field.items()
        if c.name in final or c.name in early
    ]
    return Tried(problem, base, tuple(times))


def run(options: argparse.Namespace, shapes: Sequence[tuple[int, int, int]]) -> int:
    """Measures the shapes on torch's current GPU; returns the exit status."""
    if status := needs.refused(needs.no_gpu()):
        return status
    from benchmarks import peers
    from benchmarks.bench_gemm import FAMILIES, Watchdog
    from layoutgemm.bench import machine
    from layoutgemm.bench.method import CudaDevice

    folder = options.where[0]
    manifest = json.loads((folder / "manifest.json").read_text())
    _, sampler = machine.sampler()
    device, begun, tried = CudaDevice(sampler), time.monotonic(), []
    facts = machine.facts()
    print(facts, flush=True)
    words = options.only.split(",") if options.only else None
    with Watchdog(options.patience, print) as watchdog:
        for sizes in shapes:
            if time.monotonic() - begun > options.budget:
                print(f"{sizes}: left out, the budget of {options.budget:.0f} s is spent", flush=True)
                continue
            problem = BenchProblem(*sizes, options.b_major)
            others = torch_mm(problem)
            if options.peers:
                others = [c for of in FAMILIES.values() for c in of(problem)]
            others += [peers.dsl_object(name, Path(path), "others") for name, path in options.object]
            field = {}
            for number, choice in enumerate(candidates(*sizes, options.b_major, options.likely)):
                key = key_of(choice, options.b_major)
                if key in manifest and (number == 0 or words is None or any(word in key for word in words)):
                    field[choice] = contender(folder, key, choice, manifest[key], problem)
                elif number == 0:
                    print(f"{problem}: left out, {key} was not built", flush=True)
                    break
            else:
                tried.append(race(device, problem, field, others, options.rounds, options.last, watchdog.mark))
                if options.json:
                    save(options.json, {"machine": facts, "rounds": options.rounds}, tried)
    print("\n".join(report([standing(one) for one in tried])), flush=True)
    return 0 if tried else 3


def main(argv: Sequence[str] | None = None) -> int:
    """Builds, runs or judges; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("step", choices=("build", "run", "judge"))
    parser.add_argument("where", type=Path, nargs="+", help="the folder of objects; for judge: records")
    parser.add_argument("--shapes", help="MxNxK,... (default: the table's)")
    parser.add_argument("--random", type=int, default=0, metavar="COUNT", help="shapes drawn at random, beside")
    parser.add_argument("--seed", type=int, default=0, help="of the random shapes")
    parser.add_argument("--unit", type=int, default=64, help="of their N and K: 8 for lines of 16 bytes")
    parser.add_argument("--likely", type=int, metavar="COUNT", help="so many configurations a shape (default: all)")
    parser.add_argument("--b-major", choices=("k", "n"), default="k")
    parser.add_argument("--jobs", type=int, default=2, help="processes that compile")
    parser.add_argument("--rounds", type=int, default=11, help="of the fastest")
    parser.add_argument("--last", type=int, default=6, help="of ours in the last round")
    parser.add_argument("--budget", type=float, default=400.0, metavar="SECONDS")
    parser.add_argument("--patience", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--only", help="configurations whose name contains one of these, comma-separated")
    parser.add_argument("--peers", action="store_true", help="cublasLt and quack, too")
    parser.add_argument(
        "--object", type=pair, action="append", default=[], metavar="NAME=FILE.o", help="others' kernels, beside"
    )
    parser.add_argument("--json", type=Path, help="the record")
    options = parser.parse_args(argv)
    if options.step == "judge":
        print("\n".join(report([standing(one) for path in options.where for one in load(path)[1]])))
        return 0
    shapes = [shape(text) for text in options.shapes.split(",")] if options.shapes else list(SHAPES)
    drawn = random_shapes(options.random, options.seed, options.unit)
    shapes = (shapes if options.shapes or not options.random else []) + drawn
    if options.step == "run":
        return run(options, shapes)
    wanted = {
        key_of(choice, options.b_major): choice
        for sizes in shapes
        for choice in candidates(*sizes, options.b_major, options.likely)
    }
    return int(build(options.where[0], wanted, options.b_major, options.jobs) > 0)


if __name__ == "__main__":
    sys.exit(main())
