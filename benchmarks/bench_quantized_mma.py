"""Packed weights by mma.sync on an H100 or H200: right against float64, then timed.

    python benchmarks/bench_quantized_mma.py --json FILE    # two minutes with 64 CPU cores, of which one is compilation

1. all kernels are compiled by processes of their own
2. every format, bf16 and f16, ragged sizes, and a second run bit for bit: the kernel compiled for sm_90a
3. the PTX of target sm_80 itself, by the driver's JIT: three formats at few and many rows
4. burst times of int4 g128 (random normal data, weights in rotation, contenders shuffled each round): mma.sync with the
   chosen and other tiles, wgmma (`quantized_matmul`), bf16 by mma.sync, by matmul and by torch.mm
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.bench_quantized import FORMATS, INT4, RAGGED, Call
from layoutgemm.kernels.epilogue.chain import Bias
from layoutgemm.kernels.sm80.plan import Sm80Config, Sm80Plan
from layoutgemm.kernels.sm80.quantized.choose import packed_config

if TYPE_CHECKING:
    import torch

    from layoutgemm.torch_op.launch import DirectLaunch

START, SMS = time.time(), 132
ROWS, SIZES = (1, 16, 64, 256, 4096), ((8192, 8192), (4096, 4096))
JIT = ((INT4, 13), ("int4 g32 zeros", 70), ("e4m3 column", 300), ("nvfp4", 13))
OTHERS = {
    1: {"16x128 8 stages": Sm80Config((16, 128), 128, 8, (1, 4), 8),
        "16x64 4 stages": Sm80Config((16, 64), 128, 4, (1, 4), 8),
        "16x64 12 stages": Sm80Config((16, 64), 128, 12, (1, 4), 8),
        "16x64 2 warps": Sm80Config((16, 64), 128, 8, (1, 2), 8)},
    64: {"64x128": Sm80Config((64, 128), 64, 4, (1, 4), 8), "64x64 (2, 2)": Sm80Config((64, 64), 64, 4, (2, 2), 8),
         "64x64": Sm80Config((64, 64), 64, 4, (1, 4), 8), "64x64 k128": Sm80Config((64, 64), 128, 4, (1, 4), 8)},
    256: {"128x128": Sm80Config((128, 128), 64, 4, (2, 4), 8), "64x128": Sm80Config((64, 128), 64, 4, (1, 4), 8),
          "128x64": Sm80Config((128, 64), 64, 4, (2, 4), 8),
          "128x128 (2, 2) late": Sm80Config((128, 128), 64, 4, (2, 2), 8, ahead=False)},
    4096: {"128x256 (1, 8)": Sm80Config((128, 256), 64, 4, (1, 8), 8, ahead=False),
           "128x256 (2, 4)": Sm80Config((128, 256), 64, 4, (2, 4), 8, ahead=False),
           "128x128": Sm80Config((128, 128), 64, 4, (2, 4), 8),
           "128x128 two a SM": Sm80Config((128, 128), 64, 3, (2, 2), 8, blocks_per_sm=2, ahead=False),
           "128x256 group 16": Sm80Config((128, 256), 64, 4, (2, 4), 16, ahead=False)},
}  # fmt: skip
OTHERS[16] = OTHERS[1]
DENSE = Sm80Config((128, 256), 64, 3, stmatrix=True)


def said(*text: object) -> None:
    """Print behind the seconds since the start."""
    print(f"[{time.time() - START:5.1f} s]", *text, flush=True)


def planned(
    name: str, sizes: tuple[int, int, int], kind: str, config: Sm80Config | None, arch: str = "sm_90a"
) -> Sm80Plan:
    """The plan of rows, n, k; the weights' format by name, or "" for bf16 weights."""
    rows, n, k = sizes
    if not name:
        return Sm80Plan.derive(rows, n, k, arch=arch, b="bf16:col", config=config)
    fmt = FORMATS[name]
    config = config or packed_config(fmt, rows, n, SMS, 0, arch, 0 if arch == "sm_80" else k)  # the JIT's of one launch
    size = 2 * n
    config = replace(config, align=(16, 16, min(16, size & -size)))
    steps = (Bias("n"),) if sizes == RAGGED[1] else ()
    return Sm80Plan.derive(
        rows, n, k, a=kind, weights=fmt, config=config, arch=arch, epilogue=fmt.epilogue(*steps, axis="n") or None
    )


Job: TypeAlias = tuple[Any, ...]  # the arguments of `planned`


def jobs() -> list[Job]:
    """Everything that is compiled."""
    found: list[Job] = [(name, size, kind, None) for name in FORMATS for kind in ("bf16", "f16") for size in RAGGED]
    for n, k in SIZES:
        for rows in ROWS:
            found += [(INT4, (rows, n, k), "bf16", config) for config in (None, *OTHERS[rows].values())]
    found.append(("", (4096, 8192, 8192), "bf16", DENSE))
    return found + [(name, (rows, 1000, 4224), "bf16", None, "sm_80") for name, rows in JIT]


def compile_one(job: Job) -> str:
    """Compile one; the refusal if there is one."""
    try:
        made = planned(*job).compile()
    except Exception as error:
        return f"{job}: {type(error).__name__}: {error}"
    try:
        return f"{job}: spills" if made.sass().local_memory else ""
    except Exception:  # no nvdisasm
        return ""


def compiled() -> None:
    """All kernels, by processes of their own."""
    with ProcessPoolExecutor(max(2, (os.cpu_count() or 4) - 2), mp_context=get_context("spawn")) as pool:
        for number, fault in enumerate(pool.map(compile_one, jobs())):
            if fault:
                said("compile:", fault[:300])
            if number % 20 == 19:
                said(f"{number + 1} of {len(jobs())} compiled")


def direct(plan: Sm80Plan, pitch: int) -> DirectLaunch:
    """The launch of a plan: addresses of weights, x, C, then vectors."""
    from layoutgemm.torch_op.launch import DirectLaunch
    from layoutgemm.torch_op.quantized.launch import mma_arguments_of

    if plan.weights is None:
        sizes = (plan.m, plan.n, plan.k, 1, plan.k, plan.k, plan.n, 0, 0, 0)
        return DirectLaunch(plan.compile(), (0, 0, 0, *sizes), (1, 0, 2), 0, plan)
    return DirectLaunch(plan.compile(), *mma_arguments_of(plan, pitch), 0, plan)


def sums_of(plan: Sm80Plan) -> list[torch.Tensor]:
    """The memory of the sums of parts of K, behind all other addresses. One part has none."""
    import torch

    return [torch.empty(plan.split_bytes, dtype=torch.uint8, device="cuda")] if plan.split is not None else []


def jitted(plan: Sm80Plan, tensors: Sequence[torch.Tensor], stream: int) -> None:
    """Launch the plan's PTX through the driver's JIT. tensors: weights, x, C, and the vectors."""
    from cuda.bindings import driver

    from layoutgemm.kernels.run.occupancy import got

    ptx = re.sub(r"\.version \d+\.\d+", ".version 9.0", plan.compile().ptx)
    assert ".target sm_80" in ptx
    found = re.search(r"\.visible \.entry (\w+)\(([^)]*)\)", ptx)
    assert found is not None, "no entry"
    name, parameters = found.groups()
    module = got(driver.cuModuleLoadData(ptx.encode() + b"\0"))
    function = got(driver.cuModuleGetFunction(module, name.encode()))
    most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    got(driver.cuFuncSetAttribute(function, most, plan.smem.total))
    units, x, c, *vectors = [t.data_ptr() for t in tensors]
    words = [word for vector in vectors for word in (vector, 0)]
    values = (x, units, c, plan.m, plan.n, plan.k, plan.k, plan.k, plan.n, *words)
    kinds = [ctypes.c_uint64] * 3 + [ctypes.c_int32] * 3 + [ctypes.c_uint64] * (3 + len(words))
    count = parameters.count(".param")
    assert count == len(values), f"{count} parameters, not {len(values)}"
    blocks = int(plan.order.count(plan.tiles))
    launch = (function, blocks, 1, 1, plan.threads, 1, 1, plan.smem.total, stream, (values, tuple(kinds)), 0)
    got(driver.cuLaunchKernel(*launch))


def error_of(c: torch.Tensor, x: torch.Tensor, weight: Any, bias: torch.Tensor | None) -> float:
    """The error as a share of its bound."""
    from benchmarks.bench_quantized import wrong

    return wrong(c if bias is None else c.double() - bias.double(), x, weight)


def correct(name: str, size: tuple[int, int, int], kind: str, jit: bool = False) -> float:
    """The largest error of a format, as a share of its bound. It is infinite where a second run gives other bits."""
    import torch

    from benchmarks.bench_quantized import random_weight

    rows, n, k = size
    dtype = torch.bfloat16 if kind == "bf16" else torch.float16
    weight, x = random_weight(FORMATS[name], n, k, dtype), torch.randn(rows, k, device="cuda", dtype=dtype)
    plan = planned(name, size, kind, None, "sm_80" if jit else "sm_90a")
    bias = torch.randn(n, device="cuda") / 64 if any(g.name == "bias" for g in plan.epilogue.given) else None
    found = []
    for _ in range(2):
        c = torch.full((rows, n), float("nan"), device="cuda", dtype=dtype)
        tensors = [t for t in (weight.units, x, c, weight.scales, bias) if t is not None]
        stream = torch.cuda.current_stream().cuda_stream
        if jit:
            jitted(plan, tensors, stream)
        else:
            direct(plan, k).launch([t.data_ptr() for t in (*tensors, *sums_of(plan))], stream)
        torch.cuda.synchronize()
        found.append(c)
    return error_of(found[0], x, weight, bias) if torch.equal(*found) else float("inf")


def timed(size: tuple[int, int], save: Callable[[Any], None]) -> None:
    """Times of int4 g128 at every number of rows."""
    import math

    import torch

    import layoutgemm
    from benchmarks.bench_quantized import Row, add, copy_rate, product, random_weight, wrong
    from benchmarks.bench_quantized import timed as fill
    from layoutgemm.bench.method import ROTATION_BYTES, CudaDevice

    device, (n, k) = CudaDevice(), size
    rate = copy_rate(device)
    first = random_weight(FORMATS[INT4], n, k, torch.bfloat16)
    count = math.floor(ROTATION_BYTES / first.units.numel()) + 1
    weights = [first, *[replace(first, units=first.units.clone()) for _ in range(count - 1)]]
    wide = [torch.randn(n, k, device="cuda").bfloat16() for _ in range(math.floor(ROTATION_BYTES / (2 * n * k)) + 1)]
    for rows in ROWS:
        row = Row(INT4, n, k, rows, first.units.numel() / rate * 1e6)
        calls: dict[str, Sequence[Call]] = {}
        xs = [torch.randn(rows, k, device="cuda").bfloat16() for _ in weights]
        cs = [torch.empty(rows, n, device="cuda", dtype=torch.bfloat16) for _ in weights]

        def ours(launch: Any, weight: Any, x: Any, c: Any, sums: Sequence[Any] = ()) -> Any:
            addresses = [t.data_ptr() for t in (weight, x, c, *sums)]
            launch.launch(addresses, torch.cuda.current_stream().cuda_stream)
            return c

        for label, config in {"mma.sync": None, **OTHERS[rows]}.items():
            try:
                plan = planned(INT4, (rows, n, k), "bf16", config)
                launch, sums = direct(plan, k), sums_of(plan)
            except Exception as error:
                row.errors[label] = f"{type(error).__name__}: {error}"[:200]
                continue
            each = [partial(ours, launch, w.units, x, c, sums) for w, x, c in zip(weights, xs, cs, strict=True)]
            add(row, calls, label, each, partial(wrong, x=xs[0], weight=first))
        each = [product(w, x, None) for w, x in zip(weights, xs, strict=True)]
        add(row, calls, "wgmma", each, partial(wrong, x=xs[0], weight=first))
        if rows >= 256:
            launch = direct(planned("", (rows, n, k), "bf16", DENSE), k)
            calls["bf16 by mma.sync"] = [partial(ours, launch, w, x, c) for w, x, c in zip(wide, xs, cs, strict=False)]
        calls["bf16 matmul"] = [partial(layoutgemm.matmul, x, w.T) for x, w in zip(xs, wide, strict=False)]
        calls["torch.mm"] = [partial(torch.mm, x, w.T) for x, w in zip(xs, wide, strict=False)]
        fill(device, row, calls, 9)
        save(row)
        del calls
        torch.cuda.empty_cache()


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result, 2 without a GPU."""
    file = needs.record_file(__doc__, argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    os.environ.setdefault("LAYOUTGEMM_CACHE_DIR", tempfile.mkdtemp(prefix="quantized-mma-"))
    compiled()
    import torch

    from layoutgemm.bench import machine

    torch.manual_seed(0)
    record: dict[str, Any] = {"machine": machine.facts(), "correct": {}, "jit": {}, "rows": []}

    def kept() -> None:
        if file:
            file.write_text(json.dumps(record, indent=1, default=str) + "\n")

    said(record["machine"])
    wrong = 0
    for what, cases, jit in (
        ("correct", [(n, s, kind) for n in FORMATS for kind in ("bf16", "f16") for s in RAGGED], False),
        ("jit", [(n, (rows, 1000, 4224), "bf16") for n, rows in JIT], True),
    ):
        for name, size, kind in cases:
            try:
                error = correct(name, size, kind, jit)
            except Exception as problem:
                error = float("inf")
                said(what, name, size, kind, f"{type(problem).__name__}: {problem}"[:400])
            record[what][f"{name} {kind} {size}"] = error
        bad = [case for case, error in record[what].items() if not error <= 1]
        wrong += len(bad)
        said(f"{what}: {len(cases)} cases, largest error {max(record[what].values()):.3g} of the bound; wrong: {bad}")
        kept()

    def save(row: Any) -> None:
        said(row)
        record["rows"].append(row.recorded)
        kept()

    for matrix in SIZES:
        timed(matrix, save)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
