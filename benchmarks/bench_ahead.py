"""Kernels compiled ahead of their first call: how many a model needs, and the seconds.

    python benchmarks/bench_ahead.py --shapes 4096x4096,6144x4096,4096x14336 --rows 2048 --jobs 12

`matmul` is called within `compile_ahead` with 1 to 64 rows and then each 16th number of rows, in an empty cache; then
the kernels are called for the first time. Each result is compared with torch's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch

import layoutgemm
from benchmarks import needs
from layoutgemm.torch_op import compile_ahead

T = TypeVar("T")


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Seconds of a call until the GPU has ended it, and its value."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    value = call()
    torch.cuda.synchronize()
    return time.perf_counter() - start, value


def measure(shapes: Sequence[tuple[int, int]], most: int, jobs: int | None) -> int:
    """Compile, call and print. Returns the exit status: 1 for a wrong product or a kernel that failed."""
    rows = [*range(1, min(64, most) + 1), *range(80, most + 1, 16)]
    weights = [torch.randn(shape, device="cuda").bfloat16() for shape in shapes]
    xs = {k: torch.randn(most, k, device="cuda").bfloat16() for _, k in shapes}
    start = time.perf_counter()
    with compile_ahead(jobs=jobs) as found:
        for weight in weights:
            for m in rows:
                layoutgemm.matmul(xs[weight.shape[1]][:m], weight.T)
        collected = time.perf_counter()
    compiled, wrong, firsts = time.perf_counter() - collected, 0, []
    for weight in weights:
        for m in rows:
            x = xs[weight.shape[1]][:m]
            took, got = timed(lambda x=x, weight=weight: layoutgemm.matmul(x, weight.T))
            want = torch.mm(x, weight.T)
            wrong += bool((got - want).abs().max() > 2.0**-6 * want.abs().max())
            firsts.append(took * 1e3)
    first, *rest = firsts
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {os.cpu_count()} processors")
    print(f"{len(rows)} numbers of rows, {len(shapes)} weights: {found}")
    print(f"collected in {collected - start:.1f} s, compiled in {compiled:.1f} s, {wrong} products wrong")
    print(f"first calls: {first:.0f} ms, others {statistics.median(rest):.2f} ms, at most {max(rest):.1f} ms")
    return int(wrong > 0 or bool(found.failed))


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shapes", default="4096x4096,6144x4096,4096x14336", help="N x K of each weight (%(default)s)")
    parser.add_argument("--rows", type=int, default=2048, help="the most rows (%(default)s)")
    parser.add_argument("--jobs", type=int, help="compiling processes (half the processors)")
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    shapes = [tuple(map(int, text.split("x"))) for text in options.shapes.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAYOUTGEMM_CACHE_DIR"] = folder
        return measure([(n, k) for n, k in shapes], options.rows, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
