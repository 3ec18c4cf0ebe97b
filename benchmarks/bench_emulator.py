"""Times the emulator on NVIDIA's examples: without race checks, between warps, and between lanes.

    python benchmarks/bench_emulator.py [--repeat 3] [--json FILE] [NAME...]

`python -m tests.emulator.official.fetch` downloads the examples. The figure is the best of the repetitions in CPU
seconds, on one thread. Compile time is excluded, and load time (parsing and code generation) has its own column.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

if __name__ == "__main__":  # before NumPy is imported; a test that imports this file keeps its threads
    for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_variable, "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from layoutgemm.emulator.machine.interpreter import Policy, PtxMachine
from layoutgemm.emulator.ops import build
from layoutgemm.emulator.ptx.parser import parse
from layoutgemm.emulator.ptx.program import Program
from tests.emulator.official.compiled import compiled, missing
from tests.emulator.official.examples import EXAMPLES
from tests.emulator.official.running import Run

ROWS = (
    ("hopper_persistent_f16_2x1", (256, 256, 256, 1)),
    ("hopper_persistent_f16_2x1", (256, 256, 1024, 1)),
    ("hopper_persistent_f16_2x1", (512, 512, 512, 1)),
    ("hopper_persistent_f16_2x1", (2048, 2048, 512, 1)),
    ("ampere_tensorop_f16_kkn", (512, 512, 320, 1)),
    ("geforce_f16", (256, 256, 1024, 1)),
    ("blackwell_persistent_1sm", (512, 512, 320, 1)),
    ("blackwell_persistent_2sm", (512, 512, 320, 1)),
    ("blackwell_nvf4_2sm", (512, 512, 1024, 1)),
)


def measure(name: str, shape: tuple[int, int, int, int], repeat: int) -> dict[str, object]:
    """One row: seconds to load and to run, and operations a second. Arithmetic is not counted."""
    example = EXAMPLES[name]
    text = compiled(example).ptx
    load: list[float] = []
    plain: list[float] = []
    warps: list[float] = []
    checked: list[float] = []
    policies = ((Policy(races=False), plain), (Policy(lanes="off"), warps), (Policy(), checked))
    operations = 0
    run = Run(example, shape)
    for _ in range(repeat):
        start = time.process_time()
        program = Program(parse(text)[0], build)
        load.append(time.process_time() - start)
        for policy, into in policies:
            launch = run.launch()
            start = time.process_time()
            machine = PtxMachine(program, launch, policy).run()
            into.append(time.process_time() - start)
            wrong = run.check(launch)
            if wrong:
                raise SystemExit(f"{name} {shape}: {wrong}")
            operations = sum(machine.counts.instructions.values())
    m, n, k, _ = shape
    return {
        "kernel": name, "shape": f"{m}x{n}x{k}", "load_s": round(min(load), 3), "plain_s": round(min(plain), 3),
        "warps_s": round(min(warps), 3), "checked_s": round(min(checked), 3), "operations": operations,
        "per_s": round(operations / min(checked)),
    }  # fmt: skip


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="only kernels with one of these in their names")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.processor() or platform.machine()}")
    heads = ("kernel", "shape", "load s", "plain s", "warps s", "checked s", "operations", "a second")
    print("{:28} {:>14} {:>7} {:>8} {:>8} {:>9} {:>10} {:>9}".format(*heads))
    rows = []
    for name, shape in ROWS:
        if chosen.names and not any(part in name for part in chosen.names):
            continue
        if (reason := missing(EXAMPLES[name])) is not None:
            raise SystemExit(reason)
        row = measure(name, shape, chosen.repeat)
        rows.append(row)
        line = "{kernel:28} {shape:>14} {load_s:7.3f} {plain_s:8.3f} {warps_s:8.3f} {checked_s:9.3f}"
        print(f"{line} {{operations:10}} {{per_s:9}}".format(**row), flush=True)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
