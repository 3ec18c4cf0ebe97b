"""SwiGLU in one kernel against its parts. It computes silu(A @ W_gate) * (A @ W_up), with (2H, K) weights.

    python benchmarks/bench_gated.py --json benchmarks/results/gated_h200.json      # on the GPU, under a minute

Contenders:

- The gated kernel in the configuration of `choose`, and in a few others.
- The product of 2H columns without a gate, ours and torch.mm's.
- torch.mm followed by torch's silu and product.

Times are bursts by `layoutgemm/bench/method.py`. Every gated result is first compared with float64.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.configurations import name_of
from benchmarks.ours import launcher
from layoutgemm.bench.method import BenchProblem, CudaDevice, burst
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice, choose
from layoutgemm.kernels.sm90.plan import Sm90Config

SHAPES = ((4096, 14336, 4096), (8192, 14336, 4096), (512, 14336, 4096))  # tokens, H, K
CONFIGS = {
    "256x224 c12": Sm90Config((256, 224), cluster=(1, 2), group=16, chunks=1, buffers=2, staged_epilogue_k_tiles=2),
    "256x192 c12": Sm90Config((256, 192), cluster=(1, 2), group=16, chunks=1, buffers=2, staged_epilogue_k_tiles=2),
    "128x256 c21": Sm90Config((128, 256), cluster=(2, 1), chunks=1, buffers=2),
    "128x192 pingpong": Sm90Config((128, 192), schedule="pingpong", loader="warpgroup", chunks=1, buffers=2),
}


def gated(m: int, h: int, k: int) -> dict[str, Sm90Choice]:
    """Configurations of the gated kernel by name: that of `choose`, "(chosen)", then the others.

    >>> chosen, *others = gated(4096, 14336, 4096)
    >>> chosen.endswith(" (chosen)"), len(others)
    (True, 4)
    """
    chosen, _ = choose(m, h, k, gated="silu")
    others = {name: Sm90Choice(config) for name, config in CONFIGS.items()}
    return {
        f"{name_of(chosen)} (chosen)": chosen,
        **{name: choice for name, choice in others.items() if choice != chosen},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    import torch

    from layoutgemm.bench import machine

    silu = torch.nn.functional.silu
    device, failed = CudaDevice(), 0
    record: dict[str, Any] = {"machine": machine.facts(), "shapes": {}}
    for m, h, k in SHAPES:
        problem = BenchProblem(m, 2 * h, k, "k")
        sets = device.operands(problem, 0)
        narrow = [torch.empty((m, h), dtype=torch.bfloat16, device="cuda") for _ in sets]
        calls: dict[str, list[Callable[[], Any]]] = {}
        for name, choice in gated(m, h, k).items():
            launch = launcher(choice.plan(m, h, k, b="bf16:col", gated="silu"), choice)
            launch(sets[0].a, sets[0].b, narrow[0])
            gate, up = (sets[0].a.double() @ sets[0].b.double().T).chunk(2, 1)
            want = silu(gate) * up
            off = float(((narrow[0].double() - want).abs() / (2.0**-7 * want.abs() + 2.0**-7 * k**0.5)).max())
            failed += not off <= 1
            print(f"{m}x{h}x{k} {name}: {off:.2f} of the bound", flush=True)
            calls[f"gated {name}"] = [
                lambda s=s, c=c, launch=launch: launch(s.a, s.b, c) for s, c in zip(sets, narrow, strict=True)
            ]
        choice, _ = choose(m, 2 * h, k)
        plain = launcher(choice.plan(m, 2 * h, k, b="bf16:col"), choice)
        calls["the product alone, ours"] = [lambda s=s, plain=plain: plain(s.a, s.b, s.c) for s in sets]
        calls["the product alone, torch.mm"] = [lambda s=s: torch.mm(s.a, s.b.T, out=s.c) for s in sets]

        def parts(s: Any, c: Any) -> None:
            torch.mm(s.a, s.b.T, out=s.c)
            gate, up = s.c.chunk(2, 1)
            torch.mul(silu(gate), up, out=c)

        calls["torch.mm, silu, product"] = [lambda s=s, c=c: parts(s, c) for s, c in zip(sets, narrow, strict=True)]
        replays = {name: device.record(each) for name, each in calls.items()}
        samples = burst(device, replays, options.rounds, random.Random(0))
        times = {name: statistics.median(values) / len(sets) for name, values in samples.items()}
        whole = times["torch.mm, silu, product"]
        print(f"{m}x{h}x{k}")
        for name, seconds in sorted(times.items(), key=lambda item: item[1]):
            print(f"    {whole / seconds:6.3f} {seconds * 1e6:9.1f} us  {name}", flush=True)
        record["shapes"][f"{m}x{h}x{k}"] = {name: round(seconds * 1e6, 2) for name, seconds in times.items()}
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
