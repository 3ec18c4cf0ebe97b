"""Gated products with block scales: one launch beside a product and a gate.

The product is ours or DeepGEMM's, the gate torch.compile's.

    python benchmarks/bench_gated_scaled.py --json FILE           # on a Hopper GPU, about four minutes
    python benchmarks/bench_gated_scaled.py --tiles 8 --json FILE # other tiles too

A (M, K) and [gate | up] (2H, K) of e4m3, scales of 1x128 and 128x128, SwiGLU to bfloat16, or to e4m3 with scales of
1x128 ("quantised"). Shapes are M x H x K, and those of groups experts x rows of each x H x K. Operands of dense
products rotate where they would stay in L2. Every result of ours is compared with float64 first: a fault ends the
program with 1. Times are medians of recorded loops in random order. DeepGEMM takes part if it is installed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import deepgemm, needs
from benchmarks.bench_quantize import ROTATED, measured
from benchmarks.configurations import name_of
from layoutgemm import Sm90Config
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice
from layoutgemm.kernels.sm90.choose.scaled_grouped import (
    grouped_scaled_config,
    quantized_gate_config,
    scaled_candidates,
)

Calls = dict[str, list[Callable[[], Any]]]
BLOCK, SQUARE = "BlockWise1x128", "BlockWise128x128"
WEIGHTS = ((2048, 7168), (14336, 4096))  # H, K: an expert of DeepSeek-V3, Llama 3 8B
DENSE = tuple([(m, *of) for of in WEIGHTS for m in (1, 16, 64, 128, 512, 1024, 4096)])
# experts, rows of each, H, K: Mixtral 8x7B, DeepSeek-V3 and Qwen3 30B
GROUPS = (
    (8, 4096, 14336, 4096), (8, 64, 14336, 4096), (32, 192, 2048, 7168), (4, 8192, 2048, 7168), (32, 16, 2048, 7168),
    (128, 64, 768, 2048),
)  # fmt: skip
_CHECKED = 32  # rows
_ROUNDS = 5


def configurations(m: int, h: int, k: int, quantised: bool) -> Iterator[Sm90Config]:
    """Configurations for a dense product, likely ones first.

    >>> [config.tile for config in configurations(4096, 14336, 4096, False)][:2]
    [(128, 256), (128, 192)]
    """
    if not quantised:
        candidates = scaled_candidates((m, 2 * h, k, 1), 132)
        yield from (config for config in candidates if config.tile[1] % (16 * config.split) == 0)
        return
    usual = quantized_gate_config(m, h, k)
    yield usual
    for cluster in ((1, 1), (2, 1), (1, 2)):
        if usual.loaded_a_rows is None:
            yield replace(usual, cluster=cluster)
    yield Sm90Config((64, 256), consumers=1, loader="warp", chunks=1, buffers=1)
    yield Sm90Config((128, 256), loader="self", chunks=1, buffers=1)


def of_groups(experts: int, rows: int, h: int) -> Iterator[Sm90Config]:
    """Configurations for groups of rows, the usual one first.

    >>> [config.tile for config in of_groups(8, 64, 14336)][:3]
    [(64, 128), (64, 64), (64, 96)]
    """
    yield grouped_scaled_config(rows, columns=2 * h, groups=experts)
    if rows <= 64:
        for width in (64, 96, 128, 192, 256):
            yield Sm90Config((64, width), consumers=1, loader="warp", chunks=1, buffers=2)
        return
    for tile, cluster in (((256, 128), (1, 2)), ((128, 192), (2, 1)), ((192, 128), (1, 2)), ((192, 128), (1, 1))):
        three = tile[0] == 192
        yield Sm90Config(
            tile, consumers=3 if three else 2, loader="warpgroup", cluster=cluster, chunks=2 if three else 1, buffers=1
        )


def _named(configs: Iterator[Sm90Config], count: int) -> dict[str, Sm90Config]:
    return {name_of(Sm90Choice(config)): config for config, _ in zip(configs, range(count), strict=False)}


def gate_of(h: int) -> Callable[[Any], Any]:
    """torch.compile's gate of [gate | up]."""
    import torch

    torch._dynamo.reset()
    compiled: Callable[[Any], Any] = torch.compile(
        lambda c: torch.nn.functional.silu(c[..., :h]) * c[..., h:], dynamic=False
    )
    return compiled


def dense(m: int, h: int, k: int, tiles: int) -> tuple[Calls, Any]:
    """Contenders for one product, and the last rows of the result in float64."""
    import torch

    from layoutgemm import quantize, scaled_matmul

    sets = []
    for _ in range(max(1, min(8, ROTATED // (2 * h * k + m * k) + 1))):
        a, sa = quantize(torch.randn(m, k, device="cuda"), BLOCK)
        b, sb = quantize(torch.randn(2 * h, k, device="cuda") / k**0.5, SQUARE)
        sets.append((a, sa, b.mT, sb))
    gated: dict[str, Any] = {"activation": "swiglu"}
    eight = gated | {"out_dtype": torch.float8_e4m3fn, "out_recipe": BLOCK}
    gate, wide = gate_of(h), torch.empty(m, 2 * h, device="cuda", dtype=torch.bfloat16)
    calls: Calls = {
        "gated": [lambda s=s: scaled_matmul(*s, **gated) for s in sets],
        "quantised": [lambda s=s: scaled_matmul(*s, **eight) for s in sets],
        "product": [lambda s=s: scaled_matmul(*s) for s in sets],
        "product, gate": [lambda s=s: gate(scaled_matmul(*s)) for s in sets],
        "gated, quantize": [lambda s=s: quantize(scaled_matmul(*s, **gated)) for s in sets],
    }
    for name, options, quantised in (("gated", gated, False), ("quantised", eight, True)):
        for said, config in _named(configurations(m, h, k, quantised), tiles).items():
            calls[f"{name} {said}"] = [lambda s=s, o=options, c=config: scaled_matmul(*s, **o, config=c) for s in sets]
    if deepgemm.installed():
        import deep_gemm

        def launch(s: Any) -> Any:
            deep_gemm.set_pdl(True)
            deep_gemm.fp8_gemm_nt((s[0], s[1]), (s[2].mT, s[3]), wide, disable_ue8m0_cast=True)
            return wide

        calls["deepgemm"] = [lambda s=s: launch(s) for s in sets]
        calls["deepgemm, gate"] = [lambda s=s: gate(launch(s)) for s in sets]
    return calls, _expected(*sets[0], m, m)


def grouped(experts: int, rows: int, h: int, k: int, tiles: int) -> tuple[Calls, Any]:
    """The same for groups of as many rows."""
    import torch

    from layoutgemm import grouped_matmul, quantize

    m = experts * rows
    a, sa = quantize(torch.randn(m, k, device="cuda"), BLOCK)
    each = [quantize(torch.randn(2 * h, k, device="cuda") / k**0.5, SQUARE) for _ in range(experts)]
    b, sb = torch.stack([values for values, _ in each]), torch.stack([scales for _, scales in each])
    ends = torch.arange(rows, m + 1, rows, device="cuda", dtype=torch.int32)
    options = {"offs": ends, "scale_a": sa, "scale_b": sb}
    gated, gate = options | {"activation": "swiglu"}, gate_of(h)
    calls: Calls = {
        "gated": [lambda: grouped_matmul(a, b.mT, **gated)],
        "product": [lambda: grouped_matmul(a, b.mT, **options)],
        "product, gate": [lambda: gate(grouped_matmul(a, b.mT, **options))],
    }
    for said, config in _named(of_groups(experts, rows, h), tiles).items():
        calls[f"gated {said}"] = [lambda c=config: grouped_matmul(a, b.mT, **gated, config=c)]
        calls[f"product {said}"] = [lambda c=config: grouped_matmul(a, b.mT, **options, config=c)]
    if deepgemm.installed():
        calls |= deepgemm.grouped_launches(a, b, [rows] * experts, (sa, sb))
    return calls, _expected(a, sa, b[-1].mT, sb[-1], m, rows)


def _expected(a: Any, sa: Any, b: Any, sb: Any, m: int, rows: int) -> Any:
    """The gated product's last rows, of `rows` that belong to b."""
    import torch

    def spread(x: Any, scales: Any, high: int) -> Any:
        lines = scales.double().repeat_interleave(high, 0)[: x.shape[0]]
        return x.double() * lines.repeat_interleave(128, 1)[:, : x.shape[1]]

    last = slice(m - min(rows, _CHECKED), m)
    gate, up = (spread(a[last], sa[last], 1) @ spread(b.mT, sb, 128).T).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def fault(name: str, found: Any, want: Any) -> str:
    """The fault of the last rows of a result of ours, or ""."""
    if not name.startswith(("gated", "quantised")):
        return ""
    room = 2.0**-7
    if isinstance(found, tuple):
        values, scales = found
        found, room = values.double() * scales.double().repeat_interleave(128, -1)[:, : want.shape[1]], 2.0**-3
    off = (found[-want.shape[0] :].double() - want).abs() / (room * want.abs() + 1e-2 * want.abs().max())
    worst = float(off.max())
    return "" if worst <= 1 else f"{name}: {worst:.3g} of the bound"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tiles", type=int, default=0, help="configurations beside the choice")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    import torch

    from layoutgemm.bench import machine
    from layoutgemm.bench.method import CudaDevice

    device = CudaDevice()
    record: dict[str, Any] = {"machine": machine.facts(), "faults": [], "us": {}}
    for shape in (*GROUPS, *DENSE):
        torch.manual_seed(0)
        name = "x".join(map(str, shape))
        part: Callable[..., tuple[Calls, Any]] = grouped if len(shape) == 4 else dense
        calls, want = part(*shape, options.tiles)
        running: Calls = {}
        for who, each in calls.items():
            try:
                record["faults"] += [f"{name}, {said}" for said in [fault(who, each[0](), want)] if said]
                running[who] = each
            except Exception as error:  # a configuration without a plan, a peer without a kernel
                print(f"  {name}, {who}: {type(error).__name__}: {str(error)[:100]}", flush=True)
        m, h, k = (shape[0] * shape[1], *shape[2:]) if len(shape) == 4 else shape
        bytes_ = 2 * h * k * (shape[0] if len(shape) == 4 else 1) + m * k + 2 * m * h
        us = record["us"][name] = measured(device, running, max(4 * m * h * k / 1.2e15, bytes_ / 3e12), _ROUNDS)
        print(f"{name}: " + ", ".join([f"{who} {x}" for who, x in us.items()]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        torch.cuda.empty_cache()
    print("\n".join(record["faults"]) or "no faults")
    return 1 if record["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
