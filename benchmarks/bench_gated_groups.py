"""Gated products of groups, checked against float64 and then timed.

One launch stands beside a product and torch's gate.

    python benchmarks/bench_gated_groups.py --json FILE     # on a Hopper GPU, about two minutes

Checks of bf16, f16 and float8: empty, tiny and ragged groups, both gates, masked groups, the same bits again. Then
times of `grouped_matmul(..., activation="swiglu")`: medians of recorded loops in random order. A fault ends the program
with 1.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.bench_quantize import measured

if importlib.util.find_spec("torch") is None:
    raise SystemExit(needs.refused("torch is not installed: pip install 'layoutgemm[dsl,torch]'"))

import torch

from layoutgemm import grouped_matmul
from layoutgemm.bench import machine
from layoutgemm.bench.method import CudaDevice
from layoutgemm.dtypes import dtype
from layoutgemm.kernels.run.error_bound import rounded_error, sum_error
from layoutgemm.torch_op.types import C_NAMES

START = time.time()
BF16, F16, E4M3 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
# experts, rows of each, H, K: gate and up of Mixtral 8x7B, of DeepSeek-V3 and of Qwen3 30B
SHAPES = (
    (8, 4096, 14336, 4096), (8, 512, 14336, 4096), (8, 64, 14336, 4096), (8, 16, 14336, 4096),
    (32, 192, 2048, 7168), (128, 64, 768, 2048), (4, 8192, 2048, 7168),
)  # fmt: skip
RECORD: dict[str, Any] = {"faults": [], "times": {}}


def say(text: str) -> None:
    """Print a line behind the seconds since the start."""
    print(f"[{time.time() - START:6.1f} s] {text}", flush=True)


def wrong(text: str) -> None:
    """Record a fault."""
    RECORD["faults"].append(text)
    say(f"WRONG {text}")


def off(got: Any, a: Any, w: Any, kind: Any, act: Any = torch.nn.functional.silu) -> float:
    """The largest error of some rows as a share of what it may be."""
    gate, up = (a.double() @ w.double().T).chunk(2, -1)
    most_gate, most_up = (a.double().abs() @ w.double().abs().T).chunk(2, -1)
    want = act(gate) * up
    cut = sum_error(8 * kind.itemsize, a.shape[-1])
    bound = 1.1 * cut * (most_gate * up.abs() + act(gate).abs() * most_up) + cut**2 * most_gate * most_up
    bound = rounded_error(bound, want, dtype(C_NAMES[got.dtype])) + 3e-6 * want.abs() + 1e-6
    return float(((got.double() - want).abs() / bound).max())


def check() -> None:
    """Compare all forms with float64, and with themselves."""
    a = w = ends = torch.empty(0)  # of the last form, below
    for kind in (BF16, F16, E4M3):
        for rows in ((3, 0, 20, 1), (60, 0, 64, 65), (300, 1, 0, 723), (150, 160, 170, 192), (2000, 3000, 0, 2501)):
            for name, act in (("swiglu", torch.nn.functional.silu), ("geglu", torch.nn.functional.gelu)):
                torch.manual_seed(0)
                a = torch.randn(sum(rows), 528, device="cuda").to(kind)
                w = (torch.randn(4, 720, 528, device="cuda") / 16).to(kind)
                ends = torch.tensor(rows, device="cuda").cumsum(0).int()
                for to in (None, torch.float32):
                    c = grouped_matmul(a, w.mT, offs=ends, activation=name, out_dtype=to)
                    again = grouped_matmul(a, w.mT, offs=ends, activation=name, out_dtype=to)
                    first, worst = 0, 0.0
                    for e, n in enumerate(rows):
                        part = slice(first, first + n)
                        worst = max([worst, *([off(c[part], a[part], w[e], kind, act)] if n else [])])
                        first += n
                    if not worst <= 1 or not torch.equal(c, again):
                        wrong(f"{kind} {rows} {name} {to}: {worst:.3g} of the bound, same bits {torch.equal(c, again)}")
                most = max(rows)
                x = torch.zeros(4, most, 528, device="cuda").to(kind)
                for e, part in enumerate(a.split(rows)):
                    x[e, : rows[e]] = part
                counts = torch.tensor(rows, device="cuda")
                out = torch.full((4, most, 360), 7.0, device="cuda", dtype=BF16 if kind == E4M3 else kind)
                grouped_matmul(x, w.mT, counts=counts, activation=name, out=out)
                worst = max(off(out[e, :n], x[e, :n], w[e], kind, act) for e, n in enumerate(rows) if n)
                left = all(bool((out[e, n:] == 7).all()) for e, n in enumerate(rows))
                if not worst <= 1 or not left:
                    wrong(f"{kind} {rows} {name} masked: {worst:.3g} of the bound, other rows stay {left}")
        say(f"{kind}: {len(RECORD['faults'])} faults so far")
    eight = grouped_matmul(a[:40], w.mT, offs=ends.clamp(max=40), activation="swiglu", out_dtype=E4M3)
    assert eight.dtype == E4M3


def compare(device: CudaDevice, shape: tuple[int, int, int, int], rounds: int = 7) -> dict[str, float]:
    """Microseconds of each contender for (experts, rows of each, H, K)."""
    experts, rows, h, k = shape
    m = experts * rows
    a = torch.randn(m, k, device="cuda", dtype=BF16)
    w = torch.randn(experts, 2 * h, k, device="cuda", dtype=BF16) / k**0.5
    ends = torch.arange(rows, m + 1, rows, device="cuda", dtype=torch.int32)
    offsets = torch.nn.functional.pad(ends, (1, 0))
    out, wide = (torch.empty(m, n, device="cuda", dtype=BF16) for n in (h, 2 * h))
    gate = torch.compile(lambda c: torch.nn.functional.silu(c[:, :h]) * c[:, h:], dynamic=False)
    calls = {
        "gated": lambda: grouped_matmul(a, w.mT, offsets, activation="swiglu", out=out),
        "product alone": lambda: grouped_matmul(a, w.mT, offsets, out=wide),
        "product, and torch.compile's gate": lambda: (grouped_matmul(a, w.mT, offsets, out=wide), gate(wide)),
        "torch._grouped_mm, and torch.compile's gate": lambda: gate(torch._grouped_mm(a, w.mT, offs=ends)),
        "torch._grouped_mm alone": lambda: torch._grouped_mm(a, w.mT, offs=ends),
    }
    expected = max(4 * m * h * k / 7e14, (2 * experts * h * k + m * k + m * h) * 2 / 3e12)
    running = {}
    for name, call in calls.items():
        try:
            call()
            running[name] = [call]
        except Exception as error:  # a peer without a kernel for the shape
            say(f"    {name}: {type(error).__name__}: {str(error)[:120]}")
    last = slice(m - min(rows, 64), m)
    if not (worst := off(out[last], a[last], w[-1], BF16)) <= 1:
        wrong(f"{shape}: {worst:.3g} of the bound")
    return measured(device, running, expected, rounds)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a fault, 2 without a GPU."""
    file = needs.record_file(__doc__, argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    RECORD["machine"] = machine.facts()
    say(str(RECORD["machine"]))
    check()
    device = CudaDevice()
    for shape in SHAPES:
        us = RECORD["times"]["x".join(map(str, shape))] = compare(device, shape)
        say(f"{shape}: " + "; ".join(f"{name} {x} us ({x / us['gated']:.3f})" for name, x in us.items()))
        torch.cuda.empty_cache()
        if file:
            file.write_text(json.dumps(RECORD, indent=1) + "\n")
    say(f"{len(RECORD['faults'])} faults")
    return 1 if RECORD["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
