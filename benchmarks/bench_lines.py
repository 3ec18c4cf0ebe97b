"""Operands that TMA cannot read: in place by mma.sync, or copied first. Both estimates stand beside the times.

    python benchmarks/bench_lines.py --json lines.json

For each product and row pitch the program times both ways of layoutgemm.matmul, and torch.matmul on the same tensors.
Each is checked against float64, captured as a CUDA graph of several calls with their copies, and replayed in a new
random order each round. Figures are medians. `torch_op.choose` has constants for these estimates; compare them with
this record.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs

SIZES = (
    (128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096),
    (16, 4096, 4096), (64, 8192, 1024), (8192, 8192, 8192),
)  # fmt: skip
BYTES = (8, 4, 2)  # what pitches of A, or of A and B, are multiples of
CALLS = 10  # in a graph


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong product, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    import torch

    from layoutgemm.bench import machine

    rng, rows, wrong = random.Random(0), [], 0
    print(f"{'product':>16} {'A':>3} {'B':>3} {'in place':>9} {'copied':>9} {'torch':>9} us   estimated, chosen")
    for m, n, k in SIZES:
        for bytes_ in BYTES:
            for both in (False, True):
                row = _measure(m, n, k, bytes_, both, options.rounds, rng)
                wrong += row["wrong"]
                rows.append(row)
                us = row["us"]
                print(
                    f"{m}x{n}x{k}".rjust(16), f"{bytes_:>3} {bytes_ if both else 16:>3}",
                    *[f"{us[name]:9.1f}" for name in ("in place", "copied", "torch")], "     ", row["why"],
                    "WRONG" * row["wrong"], flush=True,
                )  # fmt: skip
                torch.cuda.empty_cache()
    if options.json:
        options.json.write_text(json.dumps({**machine.facts(), "rows": rows}, indent=1) + "\n")
    return 1 if wrong else 0


def _measure(m: int, n: int, k: int, bytes_: int, both: bool, rounds: int, rng: random.Random) -> dict[str, Any]:
    import torch

    from layoutgemm import explain_matmul
    from layoutgemm.kernels.sm90.choose.costs import changed
    from layoutgemm.torch_op import choose as torch_choice
    from layoutgemm.torch_op.prepared import forget, prepare

    def matrix(rows: int, columns: int, odd: bool) -> Any:
        more = bytes_ // 2 if odd else 0
        return torch.randn(rows, columns + more, device="cuda").bfloat16()[:, :columns]

    a, b = matrix(m, k, True), matrix(k, n, both)
    want = a.double() @ b.double()
    why = explain_matmul(a, b)
    ready = {}
    for name, seconds in (("in place", 1.0), ("copied", -1.0)):
        model = torch_choice.MODEL
        torch_choice.MODEL = changed(model, copy=seconds)
        forget()
        ready[name] = prepare(a, b, a.dtype)
        torch_choice.MODEL = model
    forget()
    assert ready["in place"].solution.copies == (None, None, None) and any(ready["copied"].solution.copies)
    calls = {
        "in place": lambda: ready["in place"].run(a, b, None),
        "copied": lambda: ready["copied"].run(a, b, None),
        "torch": lambda: torch.matmul(a, b),
    }
    graphs, wrong = {}, False
    for name, call in calls.items():
        off = float((call().double() - want).abs().max() / want.abs().max())
        wrong = wrong or not off < 2.0**-7
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for _ in range(CALLS):
                call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in rng.sample(list(calls), len(calls)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graphs[name].replay()
            begin.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            samples[name].append(begin.elapsed_time(end) * 1e3 / CALLS)
    us = {name: statistics.median(values) for name, values in samples.items()}
    chosen = "copied" if why.copies else "in place"
    said = why.why.rpartition("; A and B")[2] + f" -> {chosen}"
    return {"size": (m, n, k), "bytes": bytes_, "both": both, "us": us, "why": said, "wrong": wrong}


if __name__ == "__main__":
    sys.exit(main())
