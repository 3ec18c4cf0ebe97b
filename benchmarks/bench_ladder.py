"""Times every level of kernels/ against torch.mm at one size, on this GPU.

    python benchmarks/bench_ladder.py [--size 8192] [--json benchmarks/results/ladder_h200.json] [PROGRAM...]

Each program is first checked in its own process, so that a hang or fault is reported by name and the others continue.
This process then times the correct ones, interleaved with torch.mm in random order. It uses rotating operands, idle
gaps and medians, by layoutgemm/kernels/ladder/on_gpu.py. Needs: dsl, gpu.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import needs
from layoutgemm.kernels.ladder import levels
from layoutgemm.kernels.ladder import on_gpu as device_levels

CHECK_LIMIT_S = 90
AT_ONCE = 4  # programs checked at a time
RESULTS = ROOT / "benchmarks" / "results" / "ladder_h200.json"


def checked(program: Path, size: int) -> str:
    """Runs a program's checks; returns an empty text or the error."""
    command = [sys.executable, str(program), "--check", "--size", str(size)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_LIMIT_S, env=env)
    except subprocess.TimeoutExpired:
        return f"ran longer than {CHECK_LIMIT_S} s"
    text = (done.stdout + done.stderr).strip()
    print(text or f"{program.name}: said nothing", flush=True)
    return "" if done.returncode == 0 else text.splitlines()[-1] if text else f"exit status {done.returncode}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("programs", nargs="*", type=Path, help="default: all of kernels/hopper_*.py")
    parser.add_argument("--size", type=int, default=levels.SIZE)
    parser.add_argument("--rounds", type=int, default=device_levels.ROUNDS)
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the table goes")
    chosen = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    began = time.perf_counter()
    programs = chosen.programs or sorted((ROOT / "kernels").glob("hopper_*.py"))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        problems = dict(zip(programs, pool.map(lambda program: checked(program, chosen.size), programs)))
    ready, rows = [], []
    for program, problem in problems.items():
        try:
            if problem:
                raise RuntimeError(problem)
            ready += [(program, level) for level in levels.load(program)]
        except Exception as error:
            rows.append({"program": program.name, "failed": str(error)})
            print(f"{program.name}: FAILED: {error}", flush=True)
    if not ready:
        return 1
    found, why = levels.gpu_here(ready[0][1])
    if not found:
        return needs.refused(f"not timed: {why}")

    timings = device_levels.time_levels([level for _, level in ready], chosen.size, chosen.rounds)
    library = timings.pop()
    print(f"{'level':34} {'us':>9} {'TFLOP/s':>8} {'torch.mm':>9} {'guide':>6}")
    for (program, level), timing in zip(ready, timings):
        row: dict[str, Any] = {
            "level": level.number, "name": level.name, "program": program.name, "guide": level.guide, "c": level.c.name,
            **{key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(timing).items()},
            "registers": level.compile().resources.registers,
        }  # fmt: skip
        rows.append(row)
        mark = "" if timing.right else "  WRONG"
        guide = "-" if level.guide is None else f"{level.guide:.0f}"
        print(
            f"{level.number:2}  {level.name:30} {timing.us:9.1f} {timing.tflops:8.1f} {timing.ratio:9.3f} "
            f"{guide:>6}{mark}",
            flush=True,
        )
    print(f"{'torch.mm':34} {library.us:9.1f} {library.tflops:8.1f}")
    rows.sort(key=lambda row: row["program"])
    table = {
        **device_levels.facts(),
        "size": chosen.size,
        "rounds": chosen.rounds,
        "method": "burst: random order, idle gaps, rotating operands, medians; ratios to torch.mm of the same run",
        "torch_mm": {"us": round(library.us, 2), "tflops": round(library.tflops, 1)},
        "levels": rows,
    }
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {chosen.json} after {time.perf_counter() - began:.0f} s")
    return int(any("failed" in row or not row["right"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
