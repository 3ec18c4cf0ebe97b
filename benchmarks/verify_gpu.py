"""Compares the GEMM kernels with float64 on a GPU, at many sizes.

    python benchmarks/verify_gpu.py --json benchmarks/results/verify_h200.json
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python benchmarks/verify_gpu.py --quick

Sizes are square, tall, wide, deep and ragged. For every case:

- C is filled with NaN before the run, and inputs are standard normal.
- The result must lie within `layoutgemm.kernels.error_bound` of the float64 product. A second run must give the same
  bits.
- The same case with small integers is exact in f32. Every element must equal the float64 product, rounded to C's type.

PYTORCH_NO_CUDA_MEMORY_CACHING=1 gives each tensor its own allocation, so that the sanitizer sees its end. `--plant`
stores past the end of C on purpose, and the sanitizer must report it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch

from benchmarks import needs
from layoutgemm import __version__
from layoutgemm.dtypes import f32
from layoutgemm.kernels import TeachingConfig, TeachingPlan
from layoutgemm.kernels.run.error_bound import rounded_error, sum_error

SIZES = [
    *((64, 64, 64), (256, 256, 256), (1024, 1024, 1024), (4096, 4096, 4096)),  # square
    *((8192, 64, 512), (10000, 72, 136), (64, 8192, 512), (72, 10000, 136)),  # tall and wide
    *((128, 192, k) for k in (8, 16, 24, 64, 72, 256, 1000, 4096, 16384)),  # from shallow to deep
    *((1, 1, 8), (1, 1, 1), (3, 5, 7), (65, 63, 65), (127, 129, 191), (200, 136, 72), (333, 777, 555)),  # ragged
]
QUICK = [(64, 64, 64), (1, 1, 1), (65, 63, 65), (200, 136, 72), (128, 192, 1000)]


def cases(quick: bool) -> Iterator[tuple[tuple[int, int, int], dict[str, Any]]]:
    """(sizes, arguments of derive): all sizes by default, and all options at some sizes."""
    for size in QUICK if quick else SIZES:
        yield size, {}
    ragged = [(200, 136, 72)] if quick else [(200, 136, 72), (333, 777, 555), (512, 512, 2048)]
    for size in ragged:
        for a_order in ("row", "col"):
            for b_order in ("row", "col"):
                for kind in ("bf16", "f16"):
                    for c in ("f32", kind):
                        yield size, {"a": f"{kind}:{a_order}", "b": f"{kind}:{b_order}", "c": c}
        for order in ("row", "col"):
            for swizzle in ("none", "32B", "64B"):
                config = TeachingConfig(swizzle_a=swizzle, swizzle_b=swizzle)
                yield size, {"a": f"bf16:{order}", "b": f"bf16:{'col' if order == 'row' else 'row'}", "config": config}
        for config in (
            TeachingConfig(tile_k=16, stages=1),
            TeachingConfig(tile_k=32, stages=2),
            TeachingConfig(tile_k=128, stages=3),
            TeachingConfig(tile_n=8),
            TeachingConfig(tile_n=24, stages=5),
            TeachingConfig(tile_n=128),
            TeachingConfig(tile_n=256, stages=2),
        ):
            for order in ("row", "col"):
                yield size, {"b": f"bf16:{order}", "config": config}


def matrix(values: torch.Tensor, order: str, dtype: torch.dtype) -> torch.Tensor:
    """The values in that type, rows or columns contiguous."""
    cast = values.to(dtype)
    return cast if order == "row" else cast.T.contiguous().T


def verify(size: tuple[int, int, int], arguments: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    """Runs one case; returns a row of figures with "ok"."""
    m, n, k = size
    plan = TeachingPlan.derive(m, n, k, **arguments)
    plan.check().require()
    kind = {"bf16": torch.bfloat16, "f16": torch.float16}[plan.a.dtype.name]
    out_kind = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[plan.c.dtype.name]

    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.full((m, n), float("nan"), dtype=out_kind, device="cuda")
        return plan.run(a, b, out=out, device="cuda").c

    normal = [torch.randn(shape, generator=generator, device="cuda") for shape in ((m, k), (k, n))]
    a, b = matrix(normal[0], plan.a.order, kind), matrix(normal[1], plan.b.order, kind)
    c = run(a, b)
    same_bits = torch.equal(c.view(torch.uint8), run(a, b).view(torch.uint8))
    exact = a.double() @ b.double()
    # layoutgemm.kernels.error_bound, evaluated on the GPU
    bound = sum_error(plan.a.dtype.bits, k, plan.mma.shape_mnk[2]) * (a.double().abs() @ b.double().abs())
    if plan.c.dtype != f32:
        bound = rounded_error(bound, exact, plan.c.dtype)
    error = (c.double() - exact).abs()
    share = float((error / bound).nan_to_num(nan=float("inf")).max())
    whole = [torch.randint(-4, 5, shape, generator=generator, device="cuda").float() for shape in ((m, k), (k, n))]
    a, b = matrix(whole[0], plan.a.order, kind), matrix(whole[1], plan.b.order, kind)
    integers = torch.equal(run(a, b), (a.double() @ b.double()).float().to(out_kind))
    return {
        "m": m, "n": n, "k": k, "a": f"{plan.a.dtype}:{plan.a.order}", "b": f"{plan.b.dtype}:{plan.b.order}",
        "c": plan.c.dtype.name, "tile": plan.tile, "stages": plan.stages,
        "swizzle": [plan.a.smem.swizzle_name, plan.b.smem.swizzle_name],
        "relative_error": float((c.double() - exact).norm() / exact.norm()),
        "share_of_bound": share, "same_bits_twice": same_bits, "integers_exact": integers,
        "ok": share <= 1 and same_bits and integers,
    }  # fmt: skip


def plant() -> None:
    """Stores 64 rows into a C of 32 rows, to test the sanitizer."""
    plan = TeachingPlan.derive(64, 64, 64)
    a = torch.ones((64, 64), dtype=torch.bfloat16, device="cuda")
    c = torch.empty((32, 64), device="cuda")
    plan.compile().launch(a.data_ptr(), a.data_ptr(), c.data_ptr(), 64, 64, 64, 64, 64, 64)
    torch.cuda.synchronize()


def machine() -> dict[str, str]:
    """The GPU, driver and versions of the figures."""
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    import importlib.metadata as metadata

    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver.stdout.strip(),
        "torch": torch.__version__,
        "nvidia-cutlass-dsl": _version(metadata, "nvidia-cutlass-dsl"),
        "layoutgemm": __version__,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python", *(a for a in sys.argv if not a.endswith(".json") and a != "--json")]),
    }


def _version(metadata: Any, name: str) -> str:
    try:
        return str(metadata.version(name))
    except metadata.PackageNotFoundError:
        import cutlass

        return str(getattr(cutlass, "__version__", "unknown"))


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a failed case, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few small cases, for compute-sanitizer")
    parser.add_argument("--json", type=Path, help="write the rows and the machine here")
    parser.add_argument("--plant", action="store_true", help="store past the end of C, for a sanitizer to find")
    args = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    if args.plant:
        plant()
        return 0
    generator = torch.Generator(device="cuda").manual_seed(0)
    rows = []
    start = time.monotonic()
    todo = list(cases(args.quick))
    for number, (size, arguments) in enumerate(todo, 1):
        row = verify(size, arguments, generator)
        rows.append(row)
        if not row["ok"] or number % 10 == 0 or number == len(todo):
            seconds = time.monotonic() - start
            print(
                f"{number} of {len(todo)} cases, {seconds:.0f} s" + ("" if row["ok"] else f"; FAILED {row}"), flush=True
            )
    failed = [row for row in rows if not row["ok"]]
    summary = {
        "cases": len(rows),
        "failed": len(failed),
        "largest_share_of_bound": max(row["share_of_bound"] for row in rows),
        "largest_relative_error_f32": max(row["relative_error"] for row in rows if row["c"] == "f32"),
    }
    print(json.dumps(machine() | summary))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        text = ",\n    ".join(json.dumps(row) for row in rows)
        head = json.dumps({"machine": machine(), "summary": summary}, indent=2)[:-2]
        args.json.write_text(f'{head},\n  "rows": [\n    {text}\n  ]\n}}\n')
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
