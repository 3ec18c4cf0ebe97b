"""The production kernel in types other than 16-bit, against torch and other tiles.

    python benchmarks/bench_types.py build                   # compiles into the cache, no GPU needed
    python benchmarks/bench_types.py run --json benchmarks/results/types_h200.json      # on the GPU

A is (M, K) and B is given as (N, K), both K-major and random. C is f32 for tf32, i32 for integers, bf16 for 8-bit
floats. Every contender is first checked on sampled rows and columns against float64 within `kernels.error_bound`. It is
then timed in bursts by `layoutgemm/bench/method.py`. Peers are `torch.mm` with TF32 allowed, `torch._int_mm`, and
`torch._scaled_mm` with scales of 1 and fast accumulation, which our kernel uses too.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.configurations import name_of
from benchmarks.ours import launcher
from layoutgemm.bench.method import ROTATION_BYTES, CudaDevice, burst
from layoutgemm.dtypes import dtype
from layoutgemm.errors import LayoutError
from layoutgemm.kernels import error_bound
from layoutgemm.kernels.ladder.on_gpu import facts
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice, choose
from layoutgemm.kernels.sm90.plan import Sm90Config, Sm90Plan

SHAPES = ((8192, 8192, 8192), (4096, 4096, 4096), (4096, 14336, 4096), (512, 14336, 4096), (16, 14336, 4096))
PAIRS = (("tf32", "tf32"), ("i8", "i8"), ("e4m3", "e4m3"), ("e4m3", "e5m2"))
# Tiles beside the heuristic's, which was measured with bf16 alone: (tile, consumers, cluster).
OTHERS = (
    ((256, 224), (2, 1)), ((256, 192), (2, 1)), ((256, 128), (2, 1)), ((128, 256), (2, 1)), ((128, 192), (2, 1)),
    ((128, 128), (1, 1)),
)  # fmt: skip
ROUNDS = 9


@dataclass(frozen=True)
class Case:
    """One product in one pair of types."""

    sizes: tuple[int, int, int]
    a: str
    b: str

    def plans(self) -> Iterator[tuple[str, Sm90Choice, Sm90Plan]]:
        """(name, choice, plan) of the heuristic's kernel and of the other valid ones."""
        seen = set()
        chosen, _ = choose(*self.sizes, a=self.a)
        others = [
            Sm90Choice(
                Sm90Config(
                    tile, cluster=cluster, staged_epilogue_k_tiles=2 if tile[0] == 256 else 0, chunks=1, buffers=2
                )
            )
            for tile, cluster in OTHERS
            if self.sizes[0] > 64
        ]
        for choice in (chosen, *others):
            name = name_of(choice)
            if name in seen:
                continue
            seen.add(name)
            try:
                yield name, choice, choice.plan(*self.sizes, a=self.a, b=f"{self.b}:col")
            except LayoutError as error:
                print(f"{self}: {name}: {error}")

    def __str__(self) -> str:
        return f"{self.a} x {self.b} {'x'.join(map(str, self.sizes))}"


def build() -> None:
    """Compiles all kernels into the cache."""
    for case in cases():
        for name, _, plan in case.plans():
            compiled = plan.compile()
            print(f"{case}: {name}: {compiled.resources.registers} registers, {compiled.resources.local_bytes} local")


def cases() -> Iterator[Case]:
    """Every product in every pair of types."""
    for a, b in PAIRS:
        for sizes in SHAPES:
            yield Case(sizes, a, b)


def torch_type(name: str) -> Any:
    """torch's type of that name."""
    import torch

    return {
        "tf32": torch.float32, "i8": torch.int8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2,
        "f32": torch.float32, "i32": torch.int32, "bf16": torch.bfloat16,
    }[name]  # fmt: skip


def made(name: str, rows: int, columns: int) -> Any:
    """A random matrix on the GPU."""
    import torch

    if name == "i8":
        return torch.randint(-128, 128, (rows, columns), dtype=torch.int8, device="cuda")
    return torch.randn(rows, columns, device="cuda").to(torch_type(name))


def peer(case: Case) -> Callable[[Any, Any, Any], None]:
    """torch's product of the same operands: (a, b, c) -> None."""
    import torch

    if case.a == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
        return lambda a, b, c: torch.mm(a, b.T, out=c)
    if case.a == "i8":
        return lambda a, b, c: torch._int_mm(a, b.T, out=c)
    one = torch.ones((), device="cuda")
    return lambda a, b, c: torch._scaled_mm(
        a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True, out=c
    )


def wrong(case: Case, plan: Sm90Plan, a: Any, b: Any, c: Any) -> str:
    """The first fault in sampled rows and columns of C, or ""."""
    import torch

    rows = torch.randperm(a.shape[0], device="cuda")[:16]
    columns = torch.randperm(b.shape[0], device="cuda")[:128]

    def values(x: Any) -> Any:
        return (x.float() if x.is_floating_point() else x).cpu().numpy()

    left, right = values(a[rows]), values(b[columns]).T
    exact = left.astype(np.float64) @ right.astype(np.float64)
    error = np.abs(values(c[rows][:, columns]) - exact)
    bound = error_bound(plan, left, right)
    bad = ~(error <= bound)
    return f"{int(bad.sum())} of {bad.size} elements beyond the bound, by up to {np.nanmax(error - bound):.3g}" * bool(
        bad.any()
    )


def measured(case: Case) -> dict[str, Any]:
    """Checks and times one case."""
    import torch

    m, n, k = case.sizes
    device = CudaDevice()
    plans = list(case.plans())
    width = dtype(case.a).bytes
    c_type = torch_type(plans[0][2].c.dtype.name)
    each = (m + n) * k * width + m * n * c_type.itemsize
    count = math.floor(ROTATION_BYTES / each) + 1
    sets = [
        (made(case.a, m, k), made(case.b, n, k), torch.zeros(m, n, dtype=c_type, device="cuda")) for _ in range(count)
    ]
    launches = count * max(1, round(5e-3 / max(2 * m * n * k / 700e12, each / 4e12) / count))
    replays, faults, notes = {}, {}, {}

    def contender(name: str, run: Callable[[Any, Any, Any], None], plan: Sm90Plan) -> None:
        try:
            sets[0][2].zero_()
            run(*sets[0])
            torch.cuda.synchronize()
            if problem := wrong(case, plan, *sets[0]):
                faults[name] = problem
                return
            for one in sets[1:]:
                run(*one)
            replays[name] = device.record([lambda i=i: run(*sets[i % count]) for i in range(launches)])
        except Exception as error:  # a peer without a kernel for the case, or a launch that is refused
            faults[name] = str(error).splitlines()[0]

    for i, (name, choice, plan) in enumerate(plans):
        label = f"ours {name}" + " (chosen)" * (i == 0)
        notes[label] = plan.stages
        contender(label, launcher(plan, choice), plan)
    contender("torch", peer(case), plans[0][2])
    seconds = {
        name: statistics.median(found) / launches
        for name, found in burst(device, replays, ROUNDS, random.Random(0)).items()
    }
    base = seconds.get("torch")
    for name, took in sorted(seconds.items(), key=lambda item: item[1]):
        against = f"{base / took:6.3f} x torch" if base else ""
        rate = 2 * m * n * k / took / 1e12
        print(f"{case!s:30} {name:44} {took * 1e6:9.2f} us {rate:8.1f} TOP/s {against}", flush=True)
    for name, problem in faults.items():
        print(f"{case!s:30} {name:44} FAILED: {problem}", flush=True)
    return {
        "case": str(case), "sizes": case.sizes, "a": case.a, "b": case.b, "failed": faults, "stages": notes,
        "us": {name: took * 1e6 for name, took in seconds.items()},
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("--types", default="", help="of A, comma-separated: tf32, i8, e4m3")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(argv)
    if chosen.command == "build":
        build()
        return 0
    if status := needs.refused(needs.no_gpu()):
        return status
    wanted = chosen.types.split(",") if chosen.types else [a for a, _ in PAIRS]
    records = [measured(case) for case in cases() if case.a in wanted]
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({**facts(), "cases": records}, indent=1) + "\n", encoding="utf-8")
    return int(any(name.startswith("ours") for record in records for name in record["failed"]))


if __name__ == "__main__":
    raise SystemExit(main())
