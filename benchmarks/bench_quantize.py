"""Times `quantize` and results that a scaled product quantises.

They are right first, and stand beside a copy and torch.compile.

    python benchmarks/bench_quantize.py --json FILE          # on a Hopper GPU, about a minute

x is bf16 and becomes e4m3. `quantize_both` is x and its transpose, and stands beside `quantize` of each. `quantize`
stands beside a copy of as many bytes, and torch.compile of the same formula. A
result with scales of its own, as `scaled_matmul` gives it and by one kernel, stands beside the product to bf16 or to
float32, and `quantize` behind it. Operands rotate, so that the L2 cache has none of them. Values or scales that differ
from the CPU's end the program with 1.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.timing import microseconds

# M, N, K; of the last few, one kernel would have few CTAs
SHAPES = (
    (4096, 7168, 2048), (4096, 4096, 7168), (8192, 8192, 8192), (64, 7168, 16384), (16, 4096, 7168), (64, 2112, 7168),
    (128, 4096, 7168), (512, 4096, 7168),
)  # fmt: skip
SQUARE, ROW, BLOCK = "BlockWise128x128", "RowWise", "BlockWise1x128"
ROTATED = 240_000_000  # bytes that rotating operands take
LOOP = 4e-3  # seconds of a recorded loop
Calls = dict[str, list[Callable[[], Any]]]


def formula(x: Any) -> tuple[Any, Any]:
    """Values and scales of 1x128 in torch's operators; K is a multiple of 128.

    >>> import torch
    >>> [tuple(part.shape) for part in formula(torch.ones(2, 256))]
    [(2, 256), (2, 2)]
    """
    import torch

    blocks = x.unflatten(-1, (-1, 128)).float()
    largest = blocks.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    values = (blocks * (1.0 / largest * 448.0)).clamp(-448.0, 448.0)
    return values.to(torch.float8_e4m3fn).flatten(-2), (largest / 448.0).squeeze(-1)


def quantizers(m: int, k: int, device: str, compiled: Callable[..., object]) -> tuple[Calls, int]:
    """The contenders for (m, k), and the bytes that each reads and writes."""
    import torch

    from layoutgemm import quantize, quantize_both

    moved = 3 * m * k + 4 * m * -(-k // 128)
    xs = [torch.randn(m, k, device=device).bfloat16() for _ in range(max(1, min(160, ROTATED // moved + 1)))]
    turned = [x.view(k, m).mT for x in xs]
    halves = [torch.empty(moved // 2, dtype=torch.uint8, device=device).random_() for _ in xs]
    return {
        "quantize 1x128": [lambda x=x: quantize(x) for x in xs],
        "quantize 1x128, scales along K": [lambda x=x: quantize(x, scale_major="k") for x in xs],
        "quantize 1x128 of a transpose": [lambda x=x: quantize(x) for x in turned],
        "quantize 128x128": [lambda x=x: quantize(x, SQUARE) for x in xs],
        "quantize RowWise": [lambda x=x: quantize(x, ROW) for x in xs],
        "quantize_both": [lambda x=x: quantize_both(x) for x in xs],
        "quantize 1x128, then of the transpose": [lambda x=x: (quantize(x), quantize(x.mT)) for x in xs],
        "torch.compile 1x128": [lambda x=x: compiled(x) for x in xs],
        "a copy of as many bytes": [lambda x=x: x.clone() for x in halves],
    }, moved


def products(m: int, n: int, k: int, device: str) -> tuple[Calls, float]:
    """The contenders for a quantised product, and about the seconds of one."""
    import torch

    from layoutgemm import quantize, scaled_matmul
    from layoutgemm.kernels.sm90.choose.scaled_grouped import scaled_config

    moved = m * k + n * k + m * n
    sets = []
    for _ in range(max(1, min(16, ROTATED // moved + 1))):
        (a, sa), (b, sb) = (
            quantize(torch.randn(rows, k, device=device).bfloat16(), recipe)
            for rows, recipe in ((m, BLOCK), (n, SQUARE))
        )
        sets.append((a, sa, b.mT, sb))
    e4m3, f32 = torch.float8_e4m3fn, torch.float32
    eight = {"out_dtype": e4m3, "out_recipe": BLOCK}
    fused = scaled_config(m, n, k, columns=128)  # a given configuration is one kernel's
    return {
        "to bf16": [lambda s=s: scaled_matmul(*s) for s in sets],
        "to float32": [lambda s=s: scaled_matmul(*s, out_dtype=f32) for s in sets],
        "quantised": [lambda s=s: scaled_matmul(*s, **eight) for s in sets],
        "quantised by the product's kernel": [lambda s=s: scaled_matmul(*s, **eight, config=fused) for s in sets],
        "to bf16, then quantize": [lambda s=s: quantize(scaled_matmul(*s)) for s in sets],
        "to float32, then quantize": [lambda s=s: quantize(scaled_matmul(*s, out_dtype=f32)) for s in sets],
    }, max(2 * m * n * k / 1.2e15, moved / 3e12) + 2e-6


def in_turn(calls: list[Callable[[], Any]], rounds: int) -> list[Callable[[], None]]:
    """Launches of all calls, so many times; a call's results live until its next launch.

    >>> launches = in_turn([lambda: 1, lambda: 2], 3)
    >>> len(launches), launches[1]()
    (6, None)
    """
    held: list[Any] = [None] * len(calls)

    def launch(at: int) -> None:
        held[at] = calls[at]()

    once: list[Callable[[], None]] = [functools.partial(launch, at) for at in range(len(calls))]
    return once * rounds


def measured(device: Any, contenders: Calls, expected: float, rounds: int, loop: float = LOOP) -> dict[str, float]:
    """Microseconds of each contender: medians of recorded loops in random order.

    expected, loop  seconds of one launch, about, and of a loop
    """
    loops = {name: in_turn(calls, max(1, round(loop / expected / len(calls)))) for name, calls in contenders.items()}
    return microseconds(device, loops, rounds)


def differing(device: str) -> list[str]:
    """The recipes with values or scales that are not the CPU's, bit by bit."""
    import torch

    from layoutgemm import quantize, quantize_both

    found, x = [], torch.randn(300, 520).bfloat16()
    for recipe in (BLOCK, SQUARE, ROW):
        (v, s), (w, t) = quantize(x.to(device), recipe), quantize(x, recipe)
        same = torch.equal(v.cpu().view(torch.uint8), w.view(torch.uint8)) and torch.equal(s.cpu(), t)
        found += [] if same else [recipe]
    ways = zip(quantize_both(x.to(device)), (quantize(x), quantize(x.mT)), strict=True)
    equal = [torch.equal(v.cpu().float(), w.float()) and torch.equal(s.cpu(), t) for (v, s), (w, t) in ways]
    return found if all(equal) else [*found, "both ways"]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    import torch

    from layoutgemm.bench import machine
    from layoutgemm.bench.method import CudaDevice

    device = CudaDevice()
    record: dict[str, Any] = {"machine": machine.facts(), "wrong": differing("cuda"), "times": {}}
    print(record["machine"], f"wrong: {record['wrong']}", flush=True)
    compiled = torch.compile(formula, dynamic=False)
    for m, n, k in SHAPES if not record["wrong"] else ():
        calls, moved = quantizers(m, k, "cuda", compiled)
        found = {"quantize": {"us": measured(device, calls, max(moved / 3e12, 2e-6), options.rounds), "bytes": moved}}
        calls, expected = products(m, n, k, "cuda")
        found["fused"] = {"us": measured(device, calls, expected, options.rounds)}
        record["times"][f"{m}x{n}x{k}"] = found
        for part, times in found.items():
            print(f"{m}x{n}x{k} {part}: {times['us']}", flush=True)
        del calls
        torch.cuda.empty_cache()
        if options.json:
            options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if record["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
