"""Times each epilogue: the production kernel with and without it, interleaved, after a check.

    python benchmarks/bench_epilogue.py --json benchmarks/results/epilogue_h200.json     # on the GPU, about a minute

Each kernel with an epilogue is first compared with NumPy at ragged sizes. Times are bursts by
`layoutgemm/bench/method.py`. The figure is the ratio to the kernel without an epilogue, with the epilogue's extra
bytes.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.ours import launcher
from layoutgemm.bench.method import BenchProblem, CudaDevice, burst
from layoutgemm.dtypes import dtype
from layoutgemm.kernels.epilogue.chain import (
    Activation,
    ActivationGradient,
    Amax,
    Aux,
    Bias,
    Clamp,
    Custom,
    Dropout,
    Epilogue,
    EpilogueOperand,
    Residual,
    Scale,
    VectorScale,
)
from layoutgemm.kernels.epilogue.parameters import PlacedOperand, words_of
from layoutgemm.kernels.sm90.choose.rules import choose

CASES: dict[str, tuple[Epilogue, str]] = {
    "plain": (Epilogue(), "bf16"),
    "alpha": (Epilogue(Scale()), "bf16"),
    "bias": (Epilogue(Bias()), "bf16"),
    "row bias": (Epilogue(Bias("m")), "bf16"),
    "row and column scales": (Epilogue(VectorScale("m", name="r"), VectorScale("n", name="s")), "bf16"),
    **{kind: (Epilogue(Activation(kind)), "bf16") for kind in ("relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid")},
    "bias + gelu_tanh": (Epilogue(Bias(), Activation("gelu_tanh")), "bf16"),
    "clamp": (Epilogue(Clamp(-40.0, 40.0)), "bf16"),
    "amax": (Epilogue(Amax()), "bf16"),
    "dropout": (Epilogue(Dropout(0.1)), "bf16"),
    "own: causal, scaled": (
        Epilogue(
            Custom.of(lambda x, i, j, ops, w: ops.where(j <= i, x * w, 0.0), EpilogueOperand("w", "n", dtype("f32")))
        ),
        "bf16",
    ),
    "to e4m3, scaled": (Epilogue(Scale("c_scale", device=True)), "e4m3"),
    "residual": (Epilogue(Residual()), "bf16"),
    "aux + gelu_tanh": (Epilogue(Aux(), Activation("gelu_tanh")), "bf16"),
    "dgelu": (Epilogue(ActivationGradient("gelu_tanh")), "bf16"),
}
NUMBERS = {"alpha": 0.5, "beta": 2.0, "seed": 12345}


def given_on_gpu(epilogue: Epilogue, m: int, n: int) -> dict[str, Any]:
    """Tensors and numbers for the epilogue's operands."""
    import torch

    types = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    shapes = {"": (1,), "m": (m,), "n": (n,), "mn": (m, n)}
    made: dict[str, Any] = {}
    for given in epilogue.given:
        if given.host:
            made[given.name] = NUMBERS[given.name]
        elif given.written:
            made[given.name] = torch.zeros(shapes[given.axes], dtype=types[given.dtype.name], device="cuda")
        else:
            made[given.name] = torch.randn(shapes[given.axes], device="cuda").to(types[given.dtype.name])
    return made


def extra_bytes(epilogue: Epilogue, m: int, n: int) -> int:
    """Bytes of the epilogue's matrices, without C."""
    return sum(m * n * given.dtype.bytes for given in epilogue.given if given.axes == "mn")


def launcher_of(
    m: int, n: int, k: int, epilogue: Epilogue, c: str, tile: tuple[int, int] | None = None
) -> tuple[Callable[..., None], Any]:
    """(launch, plan) with the heuristic's configuration or a given tile."""
    epilogue = epilogue.in_pairs(n % 2 == 0, n % 8 == 0)
    choice, _ = choose(m, n, k, epilogue=epilogue)
    if tile is not None:
        choice = replace(choice, config=replace(choice.config, tile=tile))
    plan = choice.plan(m, n, k, b="bf16:col", c=c, epilogue=epilogue or None)
    product = launcher(plan, choice)

    def launch(a: Any, b: Any, out: Any, given: dict[str, Any]) -> None:
        placed = {
            name: value if isinstance(value, (int, float)) else PlacedOperand(value.data_ptr(), value.stride(0), 0)
            for name, value in given.items()
        }
        product(a, b, out, *(words_of(plan.epilogue, placed) if plan.epilogue else ()))

    return launch, plan


def fault(name: str, m: int = 520, n: int = 776, k: int = 264) -> str:
    """The first fault at ragged sizes, or "": all outputs are compared with NumPy."""
    import torch

    epilogue, c = CASES[name]
    launch, plan = launcher_of(m, n, k, epilogue, c)
    a, b = (torch.randn(shape, device="cuda").bfloat16() for shape in ((m, k), (n, k)))
    kind = torch.float8_e4m3fn if c == "e4m3" else torch.bfloat16
    out = torch.zeros((m, -(-n // 16) * 16), dtype=kind, device="cuda")[:, :n]  # lines of whole 16 bytes
    given = given_on_gpu(epilogue, m, n)
    launch(a, b, out, given)
    exact = (a.double() @ b.double().T).float().cpu().numpy()
    host: dict[str, Any] = {
        name: value if isinstance(value, (int, float)) else value.float().cpu().numpy()
        for name, value in given.items()
        if not epilogue.named_given(name).written
    }
    host = {name: value[0] if getattr(value, "shape", ()) == (1,) else value for name, value in host.items()}
    want = epilogue.reference(exact, **host)
    step = plan.c.dtype.unit_roundoff

    def off(found: Any, expected: Any, unit: float) -> float:
        import numpy as np

        allowed = 2.5 * unit * np.abs(expected) + 2.0**-7
        return float(np.max(np.abs(found.float().cpu().numpy() - expected) / allowed))

    worst = {"c": off(out, want.c.clip(-448, 448) if c == "e4m3" else want.c, step)}
    worst |= {key: off(given[key], value, 2.0**-8) for key, value in want.written.items()}
    wrong = {key: value for key, value in worst.items() if not value <= 1}
    return f"off by {wrong} times what is allowed" if wrong else ""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong epilogue, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", nargs="*", default=["8192", "4096"], help="M = N = K, or MxNxK (%(default)s)")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", nargs="*", help="cases whose name contains one of these; plain is always there")
    parser.add_argument("--tile", type=int, nargs=2, metavar=("M", "N"), help="another tile than the heuristic's")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    import torch

    from layoutgemm.bench import machine

    device = CudaDevice()
    record: dict[str, Any] = {"machine": machine.facts(), "cases": {}}
    names = [name for name in CASES if name == "plain" or not options.only or any(o in name for o in options.only)]
    for name in names:
        start = time.monotonic()
        wrong = fault(name)
        print(f"{name}: {wrong or 'right'} [{time.monotonic() - start:.1f} s]", flush=True)
        record["cases"][name] = {"fault": wrong}
    for size in options.size:
        m, n, k = map(int, size.split("x")) if "x" in size else (int(size),) * 3
        problem = BenchProblem(m, n, k, "k")
        sets = device.operands(problem, 0)
        replays = {}
        for name in names:
            epilogue, c = CASES[name]
            launch, _ = launcher_of(m, n, k, epilogue, c, options.tile and tuple(options.tile))
            narrow = torch.float8_e4m3fn
            outs = [s.c if c == "bf16" else torch.empty(s.c.shape, dtype=narrow, device="cuda") for s in sets]
            given = given_on_gpu(epilogue, m, n)
            replays[name] = device.record(
                [lambda s=s, out=out, launch=launch, given=given: launch(s.a, s.b, out, given)
                 for s, out in zip(sets, outs, strict=True)]
            )  # fmt: skip
        samples = burst(device, replays, options.rounds, random.Random(0))
        base = statistics.median(samples["plain"])
        print(f"\n{m}x{n}x{k}: plain {problem.tflops(base / len(sets)):.1f} TFLOP/s")
        for name in names:
            epilogue, _ = CASES[name]
            ratio = statistics.median(samples[name]) / base
            more = extra_bytes(epilogue, m, n)
            record["cases"][name][size] = {"time_ratio": round(ratio, 4), "extra_bytes": more}
            print(f"    {ratio:6.4f}  {name}" + (f"  ({more / 2**20:.0f} MiB more)" if more else ""), flush=True)
        record.setdefault("plain_tflops", {})[size] = round(problem.tflops(base / len(sets)), 1)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if any(case["fault"] for case in record["cases"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
