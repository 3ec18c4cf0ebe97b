"""Products through the CUTLASS Operator API: layoutgemm's operator, all of NVIDIA's, and torch's own product.

    python benchmarks/bench_operators.py --json FILE     # on a Hopper GPU with nvidia-cutlass-operators, two minutes

Every operator that the API finds for a problem is compiled, run, and compared with float64. NVIDIA's fastest is then
timed beside layoutgemm's and torch.mm or torch._scaled_mm: recorded launches in common rounds, operands in rotation. A
process for each problem compiles; one at a time uses the GPU. A wrong result of ours ends the program with 1.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.bench_quantize import ROTATED, measured

OURS, TORCH = "layoutgemm", "torch"
TRIED_LOOP = 1e-3  # seconds of a recorded loop that only finds the fastest
ROUNDS, HOST_CALLS = 7, 200
ROUNDING = 2.0**-7  # of an error's norm: bf16 rounds to 2**-9 of each value, and 8-bit sums keep 14 bits a step
WORKERS = 8  # problems that compile at a time
_LOCK: Any = None  # held by the process that uses the GPU


class Case(NamedTuple):
    """A product: (batch, M, N, K), the operands' type, and B's contiguous dimension. That is "n" or "k"."""

    batch: int
    m: int
    n: int
    k: int
    kind: str = "bfloat16"
    major: str = "n"

    def __str__(self) -> str:
        return f"{self.kind}, {f'{self.batch} x ' * (self.batch > 1)}{self.m} x {self.n} x {self.k}, B by {self.major}"


CASES = (
    Case(1, 4096, 4096, 4096), Case(1, 8192, 8192, 8192, major="k"), Case(1, 4096, 14336, 4096, major="k"),
    Case(1, 16, 14336, 4096, major="k"), Case(1, 128, 4096, 14336, major="k"), Case(1, 1000, 1000, 1000),
    Case(8, 1024, 1024, 1024), Case(64, 128, 128, 512, major="k"), Case(1, 4096, 4096, 4096, "float16", "k"),
    Case(1, 4096, 4096, 4096, "float8_e4m3fn", "k"), Case(1, 64, 7168, 2048, "float8_e4m3fn", "k"),
)  # fmt: skip


def operands(case: Case, device: str = "cuda") -> list[tuple[Any, Any, Any]]:
    """Sets of (A, B, C) that rotate.

    >>> a, b, c = operands(Case(2, 8, 16, 32, major="k"), "cpu")[0]
    >>> a.shape, b.shape, b.stride(), c.dtype
    (torch.Size([2, 8, 32]), torch.Size([2, 32, 16]), (512, 1, 32), torch.bfloat16)
    """
    import torch

    kind, (batch, m, n, k) = getattr(torch, case.kind), case[:4]
    out = torch.bfloat16 if kind.itemsize == 1 else kind
    lead = (batch,) if batch > 1 else ()
    moved = batch * ((m * k + n * k) * kind.itemsize + m * n * out.itemsize)
    sets = []
    for _ in range(1 if device == "cpu" else max(1, min(64, ROTATED // moved + 1))):
        a = torch.randn(*lead, m, k, device=device).to(kind)
        b = torch.randn(*lead, *((k, n) if case.major == "n" else (n, k)), device=device).to(kind)
        sets.append((a, b if case.major == "n" else b.mT, torch.empty(*lead, m, n, device=device, dtype=out)))
    return sets


def torch_call(a: Any, b: Any, c: Any) -> Callable[[], Any]:
    """torch's product of a set; float8 with scales of 1."""
    import torch

    if a.dtype.itemsize > 1:
        return functools.partial(torch.matmul, a, b, out=c)
    one = torch.ones((), device=a.device)
    return lambda: torch._scaled_mm(a, b, one, one, out=c, out_dtype=c.dtype)


def off(call: Callable[[], Any], one: tuple[Any, Any, Any], want: Any) -> float:
    """The norm of a product's error, over that of the wanted values. NaN counts as infinite."""
    import torch

    one[2].fill_(float("nan"))
    call()
    torch.cuda.synchronize()
    found = float((one[2].double() - want).norm() / want.norm())
    return found if found == found else float("inf")


def compiled_calls(
    case: Case, sets: list[tuple[Any, Any, Any]]
) -> tuple[dict[str, list[Callable[[], Any]]], list[str]]:
    """The launches of each operator, ours under `OURS`. Beside them, the operators that did not compile, with the
    reason."""
    import cutlass.operators as api
    import torch

    import layoutgemm.operators

    arguments = [api.GemmArguments(*one, torch.float32) for one in sets]
    calls: dict[str, list[Callable[[], Any]]] = {}
    refused = []
    for operator in api.get_operators(arguments[0], target_sm="90a"):
        ours = operator.metadata.provider is layoutgemm.operators.LayoutgemmProvider
        name = OURS if ours else operator.metadata.operator_name
        try:
            artifact = operator.compile(arguments[0], "90a")
        except Exception as problem:  # a peer's
            refused.append(f"{name}: {type(problem).__name__}: {str(problem)[:120]}")
            continue
        calls[name] = [
            lambda operator=operator, given=given, artifact=artifact: operator.run(
                given, artifact, stream=torch.cuda.current_stream(), assume_supported_args=True
            )
            for given in arguments
        ]
    return calls, refused


def host_us(call: Callable[[], Any]) -> float:
    """Microseconds that a call keeps the host."""
    import torch

    for _ in range(20):
        call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(HOST_CALLS):
        call()
    found = (time.perf_counter() - began) / HOST_CALLS * 1e6
    torch.cuda.synchronize()
    return found


def case_row(case: Case) -> dict[str, Any]:
    """One problem: the operators found, the wrong ones, and times. Times are of ours, NVIDIA's fastest and torch's."""
    import torch

    from layoutgemm.bench.method import CudaDevice

    with _LOCK:
        sets = operands(case)
    calls, refused = compiled_calls(case, sets)
    with _LOCK:
        device = CudaDevice()
        want = sets[0][0].double() @ sets[0][1].double()
        errors = {name: off(each[0], sets[0], want) for name, each in calls.items()}
        bad = [name for name, error in errors.items() if not error <= ROUNDING]
        right = {name: each for name, each in calls.items() if name not in bad}
        expected = max(2 * math.prod(case[:4]) / 6e14, sum(x.nbytes for x in sets[0]) / 3e12) + 2e-6
        theirs = {name: each for name, each in right.items() if name != OURS}
        best = ""
        if theirs:
            tried = measured(device, theirs, expected, 3, TRIED_LOOP)
            best = min(tried, key=tried.__getitem__)
        contenders = {name: right[name] for name in (OURS, best) if name in right}
        contenders[TORCH] = [torch_call(*one) for one in sets]
        us = measured(device, contenders, expected, ROUNDS)
        hosts = {name: host_us(each[0]) for name, each in contenders.items()}
        del sets, want
        torch.cuda.empty_cache()
    return {
        "case": str(case), "found": len(calls), "wrong": {name: errors[name] for name in bad}, "refused": refused,
        "theirs": best, "us": us, "host us": hosts,
    }  # fmt: skip


def _start(lock: Any) -> None:
    global _LOCK
    _LOCK = lock


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result of ours, 2 without a GPU or the package."""
    file = needs.record_file(__doc__, argv)
    missing = None if importlib.util.find_spec("cutlass.operators") else "pip install nvidia-cutlass-operators"
    if status := needs.refused(needs.no_gpu(), missing):
        return status
    from layoutgemm.bench import machine

    record: dict[str, Any] = {"machine": machine.facts(), "cases": []}
    print(record["machine"], flush=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, context, _start, (context.Lock(),)) as pool:
        for row in pool.map(case_row, CASES):
            record["cases"].append(row)
            us = row["us"]
            base = us.get(OURS, float("nan"))
            ratios = ", ".join(f"{name} {x:.1f} us ({x / base:.2f})" for name, x in us.items())
            hosts = ", ".join(f"{x:.1f}" for x in row["host us"].values())
            print(f"{row['case']}: {ratios}; host {hosts}; {row['found']} operators, wrong: {row['wrong']}, "
                  f"refused: {len(row['refused'])}", flush=True)  # fmt: skip
            if file:
                file.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if any(OURS in row["wrong"] for row in record["cases"]) else 0


if __name__ == "__main__":
    sys.exit(main())
