"""Products of packed weights of 4 and 8 bits, against torch and our bf16 kernel.

    python benchmarks/bench_quantized.py --json benchmarks/results/quantized_h100.json      # a Hopper GPU, 5 minutes
    python benchmarks/bench_quantized.py --goals --jobs 14 --json FILE  # int4 beside all peers: 42 cases, 3 minutes
    python benchmarks/bench_quantized.py --goals "e4m3 column" --jobs 14 --json FILE    # or another format
    python benchmarks/bench_quantized.py --float8 --jobs 14 --json FILE # float8 activations, beside bf16 ones and quack
    python benchmarks/bench_quantized.py --experts --jobs 14 --json FILE    # groups of 1 to 8 rows
    python benchmarks/bench_quantized.py --own --jobs 13 --json FILE    # `default` alone, 1 to 64 rows: a minute
    python benchmarks/bench_quantized.py --step --jobs 13 --json FILE   # a decoder's products, alone and in turn
    python benchmarks/bench_quantized.py --bytes --jobs 13 --json FILE  # weights of 8 bits at all sizes, beside bf16
    python benchmarks/bench_quantized.py --dense --json FILE    # unpacked weights, and both passes of 2048 rows
    python benchmarks/bench_quantized.py --counters --json FILE         # ncu's counters of kernels that miss a goal

`default` is the configuration that `quantized_matmul` takes; a few others are timed beside it. Peers are
`layoutgemm.matmul` and `torch.mm` of bf16 weights, `torch._weight_int4pack_mm` (groups of 128) up to 256 rows, and
quack's `gemm_w4a16` where quack-kernels is installed (`gemm_w4a8` for float8 activations).

- Every format is first compared with float64, at ragged sizes and with bf16 and f16 activations. A wrong result is
  named, and the program exits with 1. Every timed contender is compared too; a wrong one is not timed.
- Times are bursts by `layoutgemm/bench/method.py`. Weights rotate through more than 240 MB.
- `ideal us` is the time to read the packed weights at the rate of a device copy of 512 MB, reads and writes counted.
- `--goals` times the choice and the peers, up to 4096 rows, and prints a summary. quack's products of e4m3 and int8 do
  not apply the scales of columns, which are its epilogue's: they are timed, and compared, without.
- `--experts` times 64 groups of 1 to 8 rows, each with packed weights of its own, beside a loop of `quantized_matmul`,
  our `grouped_matmul` of bf16 weights, and `torch._grouped_mm`.
- `--goals`, `--own`, `--bytes`, `--float8` and `--experts` compile first, in `--jobs` processes, and do not compare
  ragged sizes. `--bytes` times all formats of 8 bits and bf16 weights in one burst, and torch's `_weight_int8pack_mm`
  for one row.
- `--counters` runs itself under `ncu` with `--profile`: one launch of each kernel, caches cold, the GPU's own clock.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.profile_gemm import parsed
from benchmarks.timing import microseconds
from layoutgemm.bench.method import GRAPH_SECONDS, ROTATION_BYTES, Device
from layoutgemm.kernels.quantized.formats import QuantizedFormat
from layoutgemm.kernels.sm90.config import Sm90Config
from layoutgemm.kernels.streamed.choose import MOST_ROWS
from layoutgemm.kernels.streamed.plan import StreamedConfig

Call = Callable[[], Any]
ROWS = (1, 4, 8, 16, 64, 128, 256, 1024, 4096)
SHAPES = ((8192, 8192), (28672, 4096), (4096, 14336), (6144, 4096), (16384, 8192), (7168, 20480))  # N, K
INT4 = "int4 g128"
FORMATS = {
    INT4: QuantizedFormat("int4", 128),
    "int4 g32 zeros": QuantizedFormat("int4", 32, True),
    "int4 g128 zeros": QuantizedFormat("int4", 128, True),
    "int4 column": QuantizedFormat("int4"),
    "e4m3 column": QuantizedFormat("e4m3"),
    "int8 column": QuantizedFormat("int8"),
    "mxfp4": QuantizedFormat("e2m1", 32),
    "nvfp4": QuantizedFormat("e2m1", 16),
    "int8 g128": QuantizedFormat("int8", 128),
    "e5m2 g64": QuantizedFormat("e5m2", 64),
}
BYTES = {
    "e4m3 column": FORMATS["e4m3 column"],
    "e5m2 column": QuantizedFormat("e5m2"),
    "mxfp8": QuantizedFormat("e4m3", 32),
    "int8 column": FORMATS["int8 column"],
}
BYTES_ROWS = (1, 16, 64, 256, 1024, 4096)
GOAL_ROWS = (1, 16, 64, 128, 256, 1024, 4096)
QUACK_NAMES = {
    INT4: "int4",
    "e4m3 column": "fp8",
    "int8 column": "int8",
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
    "mxfp8": "mxfp8",
}  # the formats of quack's `gemm_w4a16`
OTHER_ROWS = (1, 16, 4096)  # of the formats that are not `INT4`, at the first of SHAPES
RAGGED = (
    (1, 100, 384),
    (1, 328, 2176),
    (3, 1000, 4224),
    (8, 100, 2304),
    (13, 1000, 4224),
    (70, 328, 256),
    (300, 520, 1152),
)  # rows, N, K
EXPERTS, EXPERT_SIZES = 64, ((2816, 2048), (7168, 2048))  # of `--experts`: groups of 1 to 8 rows, N and K of each
EXPERT_FORMATS = (INT4, "e4m3 column", "mxfp4")
_UNLIKE = 4  # experts that are quantised; the others repeat them
FLOAT8 = "int4 g128, float8 x"  # with a scale for each row
W4A16 = "bf16 x"  # the same weights, packed for bf16
DEFAULT, BF16, TORCH, INT4PACK = "default", "bf16 matmul", "torch.mm", "_weight_int4pack_mm"
QUACK, QUACK8, INT8PACK = "quack gemm_w4a16", "quack gemm_w4a8", "_weight_int8pack_mm"
LOOP, GROUPED, TORCH_GROUPED = "loop of quantized_matmul", "bf16 grouped_matmul", "torch._grouped_mm"
FOLDED = "quack gemm_w4a8, scales folded"  # into weights, which are rounded to e4m3: no peer of the exact product
PEERS = (BF16, TORCH, INT4PACK, QUACK, QUACK8)
LAYER = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))  # N, K of a decoder's layer: Llama 3's of 8 billion
LAYERS, STEP_ROWS = 6, (1, 2, 4, 16)  # of `--step`
_BLOCK = 1024  # rows of weights that are quantised; taller weights repeat them
_FEW = 16  # rows of `--few`
OWN_ROWS = (1, 4, 16, 64)  # of `--own`
PROFILED = tuple((rows, *size) for rows in (1, 4, 16) for size in SHAPES[:4])  # rows, N, K
SECTIONS = ("SpeedOfLight", "Occupancy", "LaunchStats", "SchedulerStats", "WarpStateStats")  # of ncu
COUNTERS = {
    "us": ("gpu__time_duration.sum", 1e-3),
    "DRAM MB read": ("dram__bytes_read.sum", 1e-6),
    "DRAM %": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1.0),
    "L2 %": ("lts__throughput.avg.pct_of_peak_sustained_elapsed", 1.0),
    "SM active cycles": ("sm__cycles_active.avg", 1.0),
    "elapsed cycles": ("sm__cycles_elapsed.max", 1.0),
    "achieved occupancy %": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1.0),
    "CTAs": ("launch__grid_size", 1.0),
    "registers": ("launch__registers_per_thread", 1.0),
    "instructions": ("sm__inst_executed.sum", 1.0),
    "issued": ("smsp__issue_active.avg.per_cycle_active", 1.0),
    "eligible": ("smsp__warps_eligible.avg.per_cycle_active", 1.0),
}  # name in the record -> ncu's metric in base units, and what it is multiplied by
STALLS = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
_STALLS = 6  # of a kernel in the record, the longest first
_INT8PACK_ROWS = (
    1  # the most for `torch._weight_int8pack_mm`: 425 us for one row of 8192 x 8192 on an H200, 2444 for 16
)
_PACK_ROWS = 256  # the most for `torch._weight_int4pack_mm`: its time grows with every row


@dataclass
class Row:
    """One line of the record: microseconds of each contender. A contender without a time has the reason.

    shares  the largest error of each contender, as a share of its bound
    kernel  what `default` takes
    """

    format: str
    n: int
    k: int
    rows: int
    ideal_us: float
    us: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    kernel: str = ""

    @property
    def recorded(self) -> dict[str, Any]:
        """The row as the record has it."""
        sizes = {"format": self.format, "n": self.n, "k": self.k, "rows": self.rows}
        found = {"us": self.us, "errors": self.errors, "shares of bound": self.shares, "kernel": self.kernel}
        return {**sizes, "ideal us": round(self.ideal_us, 2), **found}

    def __str__(self) -> str:
        said = ", ".join(f"{name} {us:.2f}" for name, us in sorted(self.us.items(), key=lambda each: each[1]))
        size = f"{self.format} M {self.rows} N {self.n} K {self.k}"
        return f"{size}: read {self.ideal_us:.2f} us; {said} {self.errors or ''}"


def others(rows: int) -> dict[str, Sm90Config | StreamedConfig]:
    """Configurations that are timed beside the default.

    >>> list(others(1))
    ['128 split2 pdl p4', '64 split2 pdl p4', 'streamed, 16 warps, 4 slots', 'streamed, 8 warps, 2 blocks']
    """
    if rows <= 64:
        width = -(-rows // 16) * 16
        found: dict[str, Sm90Config | StreamedConfig] = {}
        for tile in (128, 64):
            found[f"{tile} split2 pdl p4"] = Sm90Config(
                (tile, width), consumers=tile // 64, split=2, one_tile_per_cluster=True, store="direct", loader="warp",
                overlap=True, prefetch=4,
            )  # fmt: skip
        if rows <= MOST_ROWS:
            found["streamed, 16 warps, 4 slots"] = StreamedConfig(overlap=True, prefetch=2)
            found["streamed, 8 warps, 2 blocks"] = StreamedConfig(8, 4, 8, overlap=True, prefetch=2, band=2, split=2)
        return found
    if rows <= 256:
        return {
            "64x128 warp": Sm90Config((64, 128), consumers=1, loader="warp"),
            "128x128 split2": Sm90Config((128, 128), loader="warpgroup", split=2, one_tile_per_cluster=True),
            "128x128": Sm90Config((128, 128), loader="warpgroup"),
            "128x256 split2": Sm90Config((128, 256), tile_k=64, loader="warpgroup", split=2, one_tile_per_cluster=True),
        }
    return {
        "(128, 256) wg (2,1)": Sm90Config((128, 256), tile_k=64, loader="warpgroup", cluster=(2, 1)),
        "(128, 256) wg": Sm90Config((128, 256), tile_k=64, loader="warpgroup"),
        "(256, 128) wg": Sm90Config((256, 128), tile_k=64, loader="warpgroup"),
        "(256, 128) self": Sm90Config((256, 128), tile_k=64),
        "(256, 112) wg": Sm90Config((256, 112), tile_k=64, loader="warpgroup"),
        "128x128 k128": Sm90Config((128, 128), loader="warp"),
    }


def random_weight(fmt: QuantizedFormat, n: int, k: int, kind: Any, device: str = "cuda") -> Any:
    """A QuantizedWeight of normal values; more than 1024 rows repeat the first ones."""
    import torch

    from layoutgemm import QuantizedWeight

    block = QuantizedWeight.quantize(torch.randn(min(n, _BLOCK), k, device=device), fmt, kind)
    times, rest = divmod(n, block.n)
    if rest:
        raise ValueError(f"{n} rows of weights are no multiple of {block.n}")
    scales = None if block.scales is None else block.scales.repeat(times)
    return replace(block, units=block.units.repeat(times, 1, 1), scales=scales, n=n)


def wrong(c: Any, x: Any, weight: Any, scale: Any = None) -> float:
    """The largest error of scale * x @ weight.T as a share of its bound. It is right up to 1.

    The bound is half a unit of the result's type, doubled, and 2**-17 of the sum of absolute products. Scales of groups
    multiply sums, or before the weight is rounded to the type of x: each kernel has one of the two, and within the
    bound of either is right. Of float8 the weight is exact, and the tensor core adds products with 14 bits: 2**-12 of
    their sum.
    """
    import torch

    kind = weight.activations
    exact, sums = weight.format.group is None or kind.itemsize == 1, 2.0**-12 if kind.itemsize == 1 else 2.0**-17
    wide = x.double() if scale is None else x.double() * scale.double().reshape(-1, 1)
    unit, found = 2.0**-11 if kind is torch.float16 else 2.0**-8, []
    for rounded in (False,) if exact else (False, True):
        dense = weight.dense().to(kind).double() if rounded else weight.dense(torch.float64)
        want, size = wide @ dense.T, wide.abs() @ dense.abs().T
        share = (c.double() - want).abs() / (unit * want.abs() + size * sums + 1e-6)
        found.append(float(share.nan_to_num(nan=math.inf).max()))
    return min(found)


def checked(device: str = "cuda") -> tuple[dict[str, float], list[str]]:
    """Errors of all formats as shares of their bounds, and the names of wrong ones.

    Each format is multiplied in both types of activations, at every size of RAGGED.
    """
    import torch

    import layoutgemm

    found: dict[str, float] = {}
    for name, fmt in FORMATS.items():
        for kind in (torch.bfloat16, torch.float16):
            for rows, n, k in RAGGED:
                weight = random_weight(fmt, n, k, kind, device)
                x = torch.randn(rows, k, device=device, dtype=kind)
                error = wrong(layoutgemm.quantized_matmul(x, weight), x, weight)
                found[f"{name} {kind} {rows}x{n}x{k}"] = error
    return found, [name for name, error in found.items() if not error <= 1]


def product(weight: Any, x: Any, config: Sm90Config | StreamedConfig | None, scale: Any = None) -> Call:
    """A call of the product in a configuration; None takes the library's choice. `scale` has one for each row of x."""
    from layoutgemm.torch_op.quantized.launch import QuantizedCall, quantized_product, scale_recipe
    from layoutgemm.torch_op.types import usual_type

    recipe = scale_recipe(scale, x.shape[0], x.dtype)
    call = QuantizedCall(weight.format, (weight.n, weight.k), None, usual_type(x.dtype), config, recipe)
    return lambda: quantized_product(call, x, weight.units, weight.scales, None, scale)


def kernel_of(weight: Any, x: Any) -> str:
    """The kernel that the library chooses, in words."""
    from layoutgemm import explain_matmul

    return str(explain_matmul(x, weight).kernel)


def add(
    row: Row, calls: dict[str, Sequence[Call]], name: str, each: Sequence[Call], check: Callable[[Any], float]
) -> None:
    """Keeps a contender that runs and is right; else its reason."""
    try:
        error = check(each[0]())
    except Exception as problem:  # a peer without a kernel for the case, or a configuration that is refused
        row.errors[name] = f"{type(problem).__name__}: {problem}"[:200]
        return
    row.shares[name] = round(error, 3)
    if error <= 1:
        calls[name] = each
    else:
        row.errors[name] = f"wrong: {error:.3g} times the bound"


def dense_peers(row: Row, calls: dict[str, Sequence[Call]], xs: list[Any], wide: list[Any]) -> None:
    """Adds our product of bf16 weights and torch's."""
    import torch

    import layoutgemm

    def right(c: Any) -> float:
        exact = xs[0].double() @ wide[0].double().T
        return float((c.double() - exact).norm() / exact.norm() / 2.0**-7)

    pairs = list(zip(xs, wide, strict=False))
    add(row, calls, BF16, [partial(layoutgemm.matmul, x, w.T) for x, w in pairs], right)
    add(row, calls, TORCH, [partial(torch.mm, x, w.T) for x, w in pairs], right)


def peers(row: Row, calls: dict[str, Sequence[Call]], xs: list[Any], wide: list[Any], quack: QuackWeights) -> None:
    """Adds products of bf16 weights, quack's and torch's. torch's product of int4 weights is not compared."""
    import torch

    dense_peers(row, calls, xs, wide)
    if row.format == INT4 and row.rows <= _PACK_ROWS:
        n, k = row.n, row.k
        codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda")
        packed = torch._convert_weight_to_int4pack(codes, 8)
        scales = torch.rand(k // 128, n, 2, device="cuda").bfloat16()
        each = [partial(torch._weight_int4pack_mm, x, packed.clone(), 128, scales.clone()) for x in xs]
        add(row, calls, INT4PACK, each, lambda c: 0.0)
    if quack.dense is None:
        row.errors[QUACK] = quack.reason
        return
    want = xs[0].double() @ quack.dense.double().T
    each = [quack.call(x, copy) for x, copy in zip(xs, quack.copies, strict=False)]
    add(row, calls, QUACK, each, lambda c: float((c.double() - want).norm() / want.norm() / 2.0**-7))


@dataclass
class QuackWeights:
    """A matrix in a format of quack's.

    form    its name there
    copies  (words, scales or None), which rotate
    dense   its values as quack multiplies them; None where it cannot, for the reason
    rows    a scale for each output feature, beside those in `copies`; None without
    """

    form: str
    copies: list[tuple[Any, Any]] = field(default_factory=list)
    dense: Any = None
    reason: str = ""
    rows: Any = None

    def call(self, x: Any, copy: tuple[Any, Any], scale: Any = None) -> Call:
        """The product of x; `scale` has one for each row of a float8 x."""
        from quack.gemm_w4 import gemm_w4a8, gemm_w4a16

        if scale is not None:
            return partial(gemm_w4a8, x, *copy, act_scale=scale, chan_scale=self.rows, wformat=self.form)
        return partial(gemm_w4a16, x, *copy, wformat=self.form)


def quack_weights(form: str, n: int, k: int, count: int) -> QuackWeights:
    """Random weights in a format of quack's, in `count` copies, or the reason against it."""
    import torch

    found = QuackWeights(form)
    try:
        from quack.operand_transform.formats import decode_format

        made = decode_format(form)
        q, scales = made.quantize_reference(torch.randn(n, k, device="cuda", dtype=torch.bfloat16))
        words, strip = made.prepare(q, scales)
        found.copies = [(words.clone(), None if strip is None else strip.clone()) for _ in range(count)]
        found.rows = scales[1] if form == "int4smf" else None
        found.dense = made.dequant_reference(q, scales) if made.roundtrip else q.float()
    except Exception as problem:  # not installed, no such format, or no kernel for the sizes
        found.reason = f"{type(problem).__name__}: {problem}"[:200]
    return found


def timed(device: Device, row: Row, calls: dict[str, Sequence[Call]], rounds: int) -> None:
    """Fills in the microseconds of every contender."""
    guess = max(row.ideal_us * 1e-6, 2 * row.rows * row.n * row.k / 6e14) + 2e-6
    loops = {name: [*each] * max(1, round(GRAPH_SECONDS / guess / len(each))) for name, each in calls.items()}
    row.us |= microseconds(device, loops, rounds)


def compile_choice(fmt: QuantizedFormat | None, rows: int, size: tuple[int, int], x_type: str = "bf16") -> None:
    """Has a Hopper GPU's chosen kernel in the cache on disk. None: the kernel of bf16 weights.

    x_type  of activations: "bf16", or "e4m3" with a scale for each row
    """
    import torch

    import layoutgemm
    from layoutgemm.kernels.compile.compiler import compile_plan
    from layoutgemm.torch_op.prepared import gpu, target
    from layoutgemm.torch_op.quantized.launch import QuantizedCall, plans_of, streamed_plan_of
    from layoutgemm.torch_op.scaled_grouped.recipes import ROW

    if fmt is None:
        x, weight = (torch.empty(n, size[1], device="cuda", dtype=torch.bfloat16) for n in (rows, size[0]))
        layoutgemm.matmul(x, weight.T)
        return
    call = QuantizedCall(fmt, size, None, torch.bfloat16, scale="" if x_type == "bf16" else ROW)
    sms = gpu(-1)[0].multiprocessors
    streamed = streamed_plan_of(call, rows, x_type, None, sms, *target(-1))
    for plan in [streamed] if streamed is not None else [plan for _, plan in plans_of(call, rows, x_type, None, sms)]:
        compile_plan(plan)


def compile_experts(fmt: QuantizedFormat, rows: int, size: tuple[int, int]) -> None:
    """Has the kernel of groups of rows in the cache on disk."""
    import torch

    from layoutgemm.kernels.compile.compiler import compile_plan
    from layoutgemm.torch_op.prepared import gpu, target
    from layoutgemm.torch_op.quantized.experts import experts_plan
    from layoutgemm.torch_op.quantized.launch import QuantizedCall

    sms = gpu(-1)[0].multiprocessors
    compile_plan(
        experts_plan(QuantizedCall(fmt, size, None, torch.bfloat16), EXPERTS, rows, "bf16", "i32", sms, *target(-1))
    )


def compile_choices(
    cases: Iterable[tuple[Any, ...]], jobs: int, compiled: Callable[..., None] = compile_choice
) -> None:
    """Compiles the kernels of all cases, which are arguments of `compiled`, `jobs` at a time."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(compiled, *case) for case in cases]:
            done.result()


def measured_own(device: Device, rate: float, rounds: int, save: Callable[[Row], None], jobs: int) -> None:
    """Times the choice alone: all sizes of int4, and all formats at the first size."""
    cases = [(INT4, size) for size in SHAPES] + [(name, SHAPES[0]) for name in FORMATS if name != INT4]
    compile_choices([(FORMATS[name], rows, size) for name, size in cases for rows in OWN_ROWS], jobs)
    for name, size in cases:
        measured(device, name, size, rate, rounds, save, OWN_ROWS, beside="")


def copies_of(weight: Any) -> list[Any]:
    """A weight and its copies: more than `ROTATION_BYTES` of packed weights."""
    count = math.floor(ROTATION_BYTES / weight.units.numel())
    return [weight, *[replace(weight, units=weight.units.clone()) for _ in range(count)]]


def own_of(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """The findings of one format of 8 bits, named `default`, and of the peers.

    >>> own_of("mxfp8", {"mxfp8": 2.0, "int8 column": 3.0, "torch.mm": 5.0})
    {'default': 2.0, 'torch.mm': 5.0}
    """
    return {DEFAULT if each == name else each: of for each, of in found.items() if each == name or each not in BYTES}


def measured_bytes(device: Device, rate: float, rounds: int, save: Callable[[Row], None], jobs: int) -> None:
    """Checks and times the formats of 8 bits and bf16 weights, at all sizes of weights."""
    cases = [(fmt, rows, size) for size in SHAPES for rows in BYTES_ROWS for fmt in (*BYTES.values(), None)]
    compile_choices(cases, jobs)
    for size in SHAPES:
        measured_bytes_of(device, size, rate, rounds, save)


def measured_bytes_of(
    device: Device, size: tuple[int, int], rate: float, rounds: int, save: Callable[[Row], None]
) -> None:
    """The same at one size: a row of the record for each format. All contenders of a number of rows are in one
    burst."""
    import torch

    n, k = size
    weights = {name: copies_of(random_weight(fmt, n, k, torch.bfloat16)) for name, fmt in BYTES.items()}
    dense = [torch.randn(n, k, device="cuda").bfloat16() for _ in range(math.floor(ROTATION_BYTES / (2 * n * k)) + 1)]
    codes = [torch.randint(-128, 128, (n, k), dtype=torch.int8, device="cuda") for _ in dense * 2]
    scales = torch.rand(n, device="cuda").bfloat16()
    for rows in BYTES_ROWS:
        xs = [torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for _ in weights["int8 column"]]
        every = Row("", n, k, rows, weights["e4m3 column"][0].units.numel() / rate * 1e6)
        calls: dict[str, Sequence[Call]] = {}
        for name, copies in weights.items():
            each = [product(weight, x, None) for weight, x in zip(copies, xs, strict=False)]
            add(every, calls, name, each, partial(wrong, x=xs[0], weight=copies[0]))
        dense_peers(every, calls, xs, dense)
        if rows <= _INT8PACK_ROWS:
            packed = [partial(torch._weight_int8pack_mm, x, w, scales) for x, w in zip(xs, codes, strict=False)]
            want = xs[0].double() @ (codes[0].double() * scales.double()[:, None]).T
            add(every, calls, INT8PACK, packed, lambda c, want=want: float((c - want).norm() / want.norm() / 2.0**-7))
        timed(device, every, calls, rounds)
        for name, copies in weights.items():
            row = Row(name, n, k, rows, copies[0].units.numel() / rate * 1e6, kernel=kernel_of(copies[0], xs[0]))
            row.us, row.errors, row.shares = [own_of(name, found) for found in (every.us, every.errors, every.shares)]
            save(row)
        del calls
        torch.cuda.empty_cache()


def measured_steps(device: Device, rate: float, rounds: int, jobs: int) -> list[dict[str, Any]]:
    """Times the products of six layers of a decoder in turn, and each product alone. Products of bf16 weights stand
    beside them.

    Products that are unlike their neighbours show what equal ones hide: where the next one's blocks find room.
    """
    import torch

    import layoutgemm

    compile_choices([(FORMATS[INT4], rows, size) for size in LAYER for rows in STEP_ROWS], jobs)
    first = {size: random_weight(FORMATS[INT4], *size, torch.bfloat16) for size in LAYER}
    weights = [[replace(each, units=each.units.clone()) for each in first.values()] for _ in range(LAYERS)]
    wide = [[torch.randn(k, n, device="cuda", dtype=torch.bfloat16) for n, k in LAYER] for _ in range(2)]
    found: list[dict[str, Any]] = []
    for rows in STEP_ROWS:
        x = {k: torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for _, k in LAYER}
        loops: dict[str, list[Call]] = {}
        for (n, k), each in first.items():
            loops[f"{n}x{k} alone"] = [product(weight, x[k], None) for weight in copies_of(each)]
        loops["in turn"] = [product(weight, x[weight.k], None) for layer in weights for weight in layer]
        for name, multiply in ((BF16, layoutgemm.matmul), (TORCH, torch.mm)):
            loops[name] = [partial(multiply, x[weight.shape[0]], weight) for layer in wide for weight in layer]
        us = microseconds(device, {name: loop * (1 + 40 // len(loop)) for name, loop in loops.items()}, rounds)
        for name in ("in turn", BF16, TORCH):
            us[name] = round(len(LAYER) * us[name], 2)
        alone = round(sum(us[f"{n}x{k} alone"] for n, k in LAYER), 2)
        read = round(sum(each.units.numel() for each in first.values()) / rate * 1e6, 2)
        found.append({"rows": rows, "ideal us": read, "alone": alone, "us": us})
        print(
            f"a layer, {rows} row(s): read {read} us, the products alone {alone}, in turn {us['in turn']}; {us}",
            flush=True,
        )
    return found


def profiled() -> None:
    """Launches the chosen kernels of PROFILED between cudaProfilerStart and Stop, each once."""
    import torch

    for rows, n, k in PROFILED:
        weight = random_weight(FORMATS[INT4], n, k, torch.bfloat16)
        launch = product(weight, torch.randn(rows, k, device="cuda", dtype=torch.bfloat16), None)
        launch()
        torch.cuda.synchronize()
        print(f"M {rows} N {n} K {k}", flush=True)
        torch.cuda.profiler.start()
        launch()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def counters_of(metrics: dict[str, str]) -> dict[str, Any]:
    """The record of a kernel's metrics, as `profile_gemm.parsed` gives them. Cycles of a stall are an instruction's.

    >>> stall = "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio"
    >>> counters_of({"gpu__time_duration.sum": "6300", "launch__grid_size": "96", stall: "1.244"})
    {'us': 6.3, 'CTAs': 96.0, 'stalls': {'wait': 1.24}}
    """
    had = {name: (metric, times) for name, (metric, times) in COUNTERS.items() if metric in metrics}
    found: dict[str, Any] = {name: round(float(metrics[metric]) * times, 2) for name, (metric, times) in had.items()}
    stalls = {match[1]: round(float(x), 2) for name, x in metrics.items() if (match := STALLS.fullmatch(name))}
    longest = sorted(stalls, key=lambda name: -stalls[name])[:_STALLS]
    return {**found, "stalls": {name: stalls[name] for name in longest}}


def counted() -> list[dict[str, Any]]:
    """Counters of the kernels of PROFILED, by ncu. Raises RuntimeError unless each is a kernel."""
    metrics = ",".join([metric for metric, _ in COUNTERS.values()])
    command = [
        "ncu", "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw", "--print-units",
        "base", "--metrics", metrics, *[f"--section={name}" for name in SECTIONS],
        sys.executable, str(Path(__file__).resolve()), "--profile",
    ]  # fmt: skip
    kernels = parsed(subprocess.run(command, capture_output=True, text=True).stdout)
    if len(kernels) != len(PROFILED):
        raise RuntimeError(f"{len(kernels)} kernels of {len(PROFILED)} products: {[x['kernel'] for x in kernels]}")
    return [
        {"rows": rows, "n": n, "k": k, **counters_of(kernel)}
        for (rows, n, k), kernel in zip(PROFILED, kernels, strict=True)
    ]


def measured_goals(
    device: Device, name: str, rate: float, rounds: int, save: Callable[[Row], None], jobs: int
) -> None:  # fmt: skip
    """Times a format's choice and its peers at all sizes."""
    fmt = {**FORMATS, **BYTES}[name]
    compile_choices([(each, rows, size) for size in SHAPES for rows in GOAL_ROWS for each in (fmt, None)], jobs)
    for size in SHAPES:
        measured(device, name, size, rate, rounds, save, GOAL_ROWS, beside="peers")


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The goals of recorded rows, in words. Each line is one goal, with the cases that miss it.

    >>> one = Row("int4 g128", 8192, 8192, 16, 8.0, {DEFAULT: 12.0, BF16: 30.0, QUACK: 11.4})
    >>> for line in summary([one.recorded]):
    ...     print(line)
    speed relative to the best peer, geometric mean of 1: 0.950 (goal 1.15); below 1: 16 x 8192 x 8192 0.950
    1 and 16 rows, time relative to reading, at most 1.25: 16 x 8192 x 8192 1.50
    4096 rows, speed relative to the bf16 matmul, at least 0.97: none misses it
    the geometric mean of a kernel that only reads, or multiplies at the record's best rate: 1.000
    """

    def said(found: Mapping[str, float]) -> str:
        return ", ".join(f"{case} {value:{'.3f' if value < 1 else '.2f'}}" for case, value in found.items())

    timed_rows = {f"{row['rows']} x {row['n']} x {row['k']}": row for row in rows if DEFAULT in row["us"]}
    best = {
        case: min(row["us"][peer] for peer in PEERS if peer in row["us"]) / row["us"][DEFAULT]
        for case, row in timed_rows.items()
    }
    reading = {case: row["us"][DEFAULT] / row["ideal us"] for case, row in timed_rows.items() if row["rows"] <= _FEW}
    many = {case: row["us"][BF16] / row["us"][DEFAULT] for case, row in timed_rows.items() if row["rows"] >= 4096}
    slow, behind = {c: x for c, x in reading.items() if x > 1.25}, {c: x for c, x in best.items() if x < 1}
    work = {case: 2e-6 * row["rows"] * row["n"] * row["k"] for case, row in timed_rows.items()}
    rate = max((work[case] / min(row["us"].values()) for case, row in timed_rows.items()), default=1.0)  # TFLOP/s
    limits = [
        best[case] * row["us"][DEFAULT] / max(row["ideal us"], work[case] / rate) for case, row in timed_rows.items()
    ]
    none = "none misses it"
    return [
        f"speed relative to the best peer, geometric mean of {len(best)}: "
        f"{math.prod(best.values()) ** (1 / max(1, len(best))):.3f} (goal 1.15); below 1: {said(behind) or none}",
        f"1 and 16 rows, time relative to reading, at most 1.25: {said(slow) or none}",
        "4096 rows, speed relative to the bf16 matmul, at least 0.97: "
        + (said({c: x for c, x in many.items() if x < 0.97}) or none),
        "the geometric mean of a kernel that only reads, or multiplies at the record's best rate: "
        f"{math.prod(limits) ** (1 / max(1, len(limits))):.3f}",
    ]


def measured(
    device: Device, name: str, size: tuple[int, int], rate: float, rounds: int, save: Callable[[Row], None],
    rows_of: Sequence[int] = (), beside: str = "all",
) -> None:  # fmt: skip
    """Checks and times a format at one size of weights.

    rows_of  numbers of rows, by default those of the format
    beside   what is timed beside the choice: "all" of int4, that is other configurations and peers; "peers"; or ""
    """
    import torch

    n, k = size
    fmt = {**FORMATS, **BYTES}[name]
    first = random_weight(fmt, n, k, torch.bfloat16)
    weights = copies_of(first)
    full = beside == "all" and name == INT4
    compared = full or beside == "peers"
    quack = quack_weights(QUACK_NAMES.get(name, name), n, k, len(weights)) if compared else QuackWeights("")
    bf16 = [
        torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        for _ in range(math.floor(ROTATION_BYTES / (2 * n * k)) + 1)
    ] * compared
    for rows in rows_of or (ROWS if full else OTHER_ROWS):
        xs = [torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for _ in weights]
        row = Row(name, n, k, rows, first.units.numel() / rate * 1e6, kernel=kernel_of(first, xs[0]))
        calls: dict[str, Sequence[Call]] = {}
        for label, config in {DEFAULT: None, **(others(rows) if full else {})}.items():
            each = [product(weight, x, config) for weight, x in zip(weights, xs, strict=True)]
            add(row, calls, label, each, partial(wrong, x=xs[0], weight=first))
        if compared:
            peers(row, calls, xs, bf16, quack)
        timed(device, row, calls, rounds)
        save(row)
        del calls
        torch.cuda.empty_cache()


def measured_float8(
    device: Device, size: tuple[int, int], rate: float, rounds: int, save: Callable[[Row], None]
) -> None:
    """Checks and times float8 activations at one size of weights, beside two bf16 products."""
    import torch

    import layoutgemm

    n, k = size
    first, other = (random_weight(FORMATS[INT4], n, k, kind) for kind in (torch.float8_e4m3fn, torch.bfloat16))
    count = math.floor(ROTATION_BYTES / first.units.numel()) + 1
    sets = [(first, other), *[(replace(first, units=first.units.clone()), replace(other, units=other.units.clone()))
                              for _ in range(count - 1)]]  # fmt: skip
    dense = [torch.randn(n, k, device="cuda").bfloat16() for _ in range(math.floor(ROTATION_BYTES / (2 * n * k)) + 1)]
    quacks = {name: quack_weights(form, n, k, count) for name, form in {QUACK8: "int4sm", FOLDED: "int4smf"}.items()}
    for rows in GOAL_ROWS:
        row = Row(FLOAT8, n, k, rows, first.units.numel() / rate * 1e6)
        wide = [torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for _ in sets]
        narrow = [layoutgemm.quantize(x, "RowWise") for x in wide]
        calls: dict[str, Sequence[Call]] = {}
        each = [product(w, x, None, scale.reshape(-1)) for (w, _), (x, scale) in zip(sets, narrow, strict=True)]
        add(row, calls, DEFAULT, each, partial(wrong, x=narrow[0][0], weight=first, scale=narrow[0][1]))
        same = [product(w, x, None) for (_, w), x in zip(sets, wide, strict=True)]
        add(row, calls, W4A16, same, partial(wrong, x=wide[0], weight=other))
        calls[BF16] = [partial(layoutgemm.matmul, x, w.T) for x, w in zip(wide, dense, strict=False)]
        for name, quack in quacks.items():
            if quack.dense is None:
                row.errors[name] = quack.reason
                continue
            given = zip(narrow, quack.copies, strict=False)
            each = [quack.call(x, copy, scale.reshape(-1)) for (x, scale), copy in given]
            x, scale = narrow[0]
            want = (x.double() * scale.double().reshape(-1, 1)) @ quack.dense.double().T
            right = lambda c, want=want: float((c.double() - want).norm() / want.norm() / 2.0**-7)  # noqa: E731
            add(row, calls, name, each, right)
        timed(device, row, calls, rounds)
        save(row)
        del calls
        torch.cuda.empty_cache()


def measured_experts(
    device: Device, rate: float, rounds: int, save: Callable[[Row], None], jobs: int, on: str = "cuda"
) -> None:
    """Checks and times groups of 1 to 8 rows, each with its own packed weights.

    on  the device of tensors; kernels are compiled ahead for "cuda"
    """
    import torch

    import layoutgemm
    from layoutgemm.torch_op.quantized import QuantizedExperts, quantized_grouped_matmul

    counts = (torch.arange(EXPERTS) % 8 + 1)[torch.randperm(EXPERTS)]
    edges = [0, *counts.cumsum(0).tolist()]
    offsets = torch.tensor(edges, dtype=torch.int32, device=on)
    cases = [(FORMATS[name], size) for name in EXPERT_FORMATS for size in EXPERT_SIZES]
    if on == "cuda":
        compile_choices([(fmt, rows, size) for fmt, size in cases for rows in range(1, 9)], jobs)
        compile_choices([(fmt, edges[-1], size) for fmt, size in cases], jobs, compile_experts)
    for n, k in EXPERT_SIZES:
        dense = torch.randn(EXPERTS, n, k, device=on, dtype=torch.bfloat16)
        x = torch.randn(edges[-1], k, device=on, dtype=torch.bfloat16)
        groups = [x[start:end] for start, end in pairwise(edges)]
        exact = torch.cat([group.double() @ w.double().T for group, w in zip(groups, dense, strict=True)])
        for name in EXPERT_FORMATS:
            some = [layoutgemm.QuantizedWeight.quantize(w, FORMATS[name]) for w in dense[:_UNLIKE]]
            packed = QuantizedExperts.of(some * (EXPERTS // _UNLIKE))
            copies = [packed, replace(packed, units=packed.units.clone())]
            row = Row(f"{name} experts", n, k, edges[-1], packed.units.numel() / rate * 1e6)

            def right(c: Any, groups: list[Any] = groups, some: list[Any] = some) -> float:
                each = c if isinstance(c, list) else c.split([len(group) for group in groups])
                shares = [wrong(c, x, some[e % _UNLIKE]) for e, (c, x) in enumerate(zip(each, groups, strict=True))]
                return max(shares)

            def loop(of: QuantizedExperts, groups: list[Any] = groups) -> list[Any]:
                return [layoutgemm.quantized_matmul(group, of.expert(e)) for e, group in enumerate(groups)]

            def dense_error(c: Any, exact: Any = exact) -> float:
                return float((c.double() - exact).norm() / exact.norm() / 2.0**-7)

            calls: dict[str, Sequence[Call]] = {}
            add(row, calls, DEFAULT, [partial(quantized_grouped_matmul, x, each, offsets) for each in copies], right)
            add(row, calls, LOOP, [partial(loop, each) for each in copies], right)
            add(row, calls, GROUPED, [partial(layoutgemm.grouped_matmul, x, dense.mT, offsets)], dense_error)
            add(row, calls, TORCH_GROUPED, [partial(torch._grouped_mm, x, dense.mT, offs=offsets[1:])], dense_error)
            timed(device, row, calls, rounds)
            save(row)
            del calls, packed, copies
        del dense
        if on == "cuda":
            torch.cuda.empty_cache()


def measured_dense(device: Device, rate: float, rounds: int) -> dict[str, dict[str, float]]:
    """Times the kernel that unpacks weights, beside torch's functions.

    And both passes of 2048 rows, beside bf16 weights. Every matrix has the bits of torch's first.
    """
    import torch

    from layoutgemm import quantized_matmul
    from layoutgemm.torch_op.quantized.dense import dense_of, dense_weights, facts_of

    found = {}
    for name, (n, k) in [*[(name, SHAPES[0]) for name in FORMATS], *[(INT4, size) for size in SHAPES[1:4]]]:
        fmt, weight = FORMATS[name], random_weight(FORMATS[name], n, k, torch.bfloat16)
        given = weight.units, weight.scales
        calls: dict[str, list[Call]] = {
            "kernel": [partial(dense_weights, *given, torch.bfloat16, facts_of(fmt, n, k))],
            "torch": [lambda: dense_of(fmt, torch.bfloat16, *given, (n, k)).bfloat16()],  # noqa: B023
        }
        dense = calls["kernel"][0]()
        if not torch.equal(dense, calls["torch"][0]()):
            raise SystemExit(f"{name}, {n}x{k}: other bits than torch's")
        x = torch.randn(2048, k, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        grad = torch.randn(2048, n, device="cuda", dtype=torch.bfloat16)
        calls["both passes"] = [lambda: torch.autograd.grad(quantized_matmul(x, weight), x, grad)]  # noqa: B023
        calls["both passes of bf16"] = [
            lambda: torch.autograd.grad(torch.nn.functional.linear(x, dense), x, grad)  # noqa: B023
        ]
        ideal = (weight.units.numel() + 2 * n * k) / rate * 1e6
        found[f"{name}, {n}x{k}"] = {"ideal": round(ideal, 2), **microseconds(device, calls, rounds)}
        print(f"{name}, {n}x{k}: {found[f'{name}, {n}x{k}']}", flush=True)
    return found


def copy_rate(device: Device) -> float:
    """Bytes/s of a device copy of 512 MB, reads and writes counted. It is the best of six."""
    import torch

    source = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / min(device.seconds(lambda: target.copy_(source)) for _ in range(6))


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--float8", action="store_true", help="float8 activations alone")
    parser.add_argument("--experts", action="store_true", help="groups of 1 to 8 rows, beside a loop and bf16 weights")
    parser.add_argument("--few", action="store_true", help="up to 16 rows alone, of the first format")
    parser.add_argument("--quick", action="store_true", help="the first shape and format only")
    parser.add_argument(
        "--goals",
        nargs="?",
        const=INT4,
        choices=[*FORMATS, *BYTES],
        metavar="FORMAT",
        help="the choice and all peers, up to 4096 rows and all sizes; of int4 unless a format is given",
    )
    parser.add_argument("--own", action="store_true", help="the choice alone, up to 64 rows, all sizes and formats")
    parser.add_argument("--jobs", type=int, default=4, help="processes that compile before anything is timed")
    parser.add_argument("--bytes", action="store_true", help="formats of 8 bits at all sizes, beside bf16 weights")
    parser.add_argument("--step", action="store_true", help="the products of a decoder's layers, in turn and alone")
    parser.add_argument("--dense", action="store_true", help="unpacked weights, and both passes of 2048 rows")
    parser.add_argument("--counters", action="store_true", help="ncu's counters of up to 16 rows; needs ncu")
    parser.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu(), needs.no_tool("ncu") if options.counters else None):
        return status
    import torch

    from layoutgemm.bench import machine
    from layoutgemm.bench.method import CudaDevice

    torch.manual_seed(0)
    if options.profile:
        profiled()
        return 0
    if options.counters:
        record = json.dumps({"machine": machine.facts(), "kernels": counted()}, indent=1)
        print(record)
        if options.json:
            options.json.write_text(record + "\n")
        return 0
    device = CudaDevice()
    rate = copy_rate(device)
    own = options.own or options.step or options.bytes or options.goals or options.experts or options.float8
    own = own or options.dense
    correct, bad = ({}, []) if own else checked()
    found: dict[str, Any] = {"machine": machine.facts(), "copy TB/s": rate / 1e12, "correct": correct, "rows": []}
    print(found["machine"], f"copy {rate / 1e12:.3f} TB/s; wrong: {bad or 'none'}", flush=True)

    def save(row: Row) -> None:
        print(row, flush=True)
        found["rows"].append(row.recorded)
        if DEFAULT in row.errors:
            bad.append(str(row))
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")

    if options.dense:
        found["dense"] = measured_dense(device, rate, options.rounds)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    if options.step:
        found["steps"] = measured_steps(device, rate, options.rounds, options.jobs)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    if options.goals:
        measured_goals(device, options.goals, rate, options.rounds, save, options.jobs)
        print(*summary(found["rows"]), sep="\n")
        return 1 if bad else 0
    if options.own:
        measured_own(device, rate, options.rounds, save, options.jobs)
        return 1 if bad else 0
    if options.bytes:
        measured_bytes(device, rate, options.rounds, save, options.jobs)
        return 1 if bad else 0
    if options.experts:
        measured_experts(device, rate, options.rounds, save, options.jobs)
        return 1 if bad else 0
    if options.float8:
        sizes = SHAPES[: 1 if options.quick else None]
        cases = [(rows, size) for size in sizes for rows in GOAL_ROWS]
        choices = [(FORMATS[INT4], *case, x_type) for case in cases for x_type in ("e4m3", "bf16")]
        compile_choices(choices + [(None, *case) for case in cases], options.jobs)
        for size in sizes:
            measured_float8(device, size, rate, options.rounds, save)
        print(*summary(found["rows"]), sep="\n")
        return 1 if bad else 0
    for size in SHAPES[: 1 if options.quick else None]:
        measured(device, INT4, size, rate, options.rounds, save, [rows for rows in ROWS if rows <= _FEW] * options.few)
    for name in () if options.quick or options.few else [name for name in FORMATS if name != INT4]:
        measured(device, name, SHAPES[0], rate, options.rounds, save)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
