"""The host's part of a repeated call, without a GPU: launches compute nothing.

    python benchmarks/bench_host.py
    python benchmarks/bench_host.py --instructions --only matmul --only scaled_matmul
    python benchmarks/bench_host.py --gpu --rounds 30

CPU tensors are taken for a GPU's. Each figure is the least of the rounds, in microseconds; what a driver takes comes on
top (`bench_launch.py`). Only figures of one run compare. Or it is the instructions of a call, which a busy machine does
not change: valgrind's callgrind counts them, and a C compiler makes the calls that it hears. On a GPU figures are until
a call returns, the least and the median, beside torch's calls; each repeated call first has the bits of the first one.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import pytest
import torch

from layoutgemm import (
    QuantizedFormat,
    QuantizedWeight,
    Sm90Config,
    fp8_matmul,
    grouped_matmul,
    matmul,
    quantized_matmul,
    scaled_matmul,
)
from layoutgemm.inductor.registration import layoutgemm_matmul
from layoutgemm.kernels.compile.launcher import ArgumentBlock
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, RowReduce, Scale
from layoutgemm.nn import DenseLinear, MasterLinear, QuantizedLinear, ScaledLinear
from layoutgemm.torch_op import launch
from layoutgemm.torch_op.api import linear
from layoutgemm.torch_op.compiled import direct
from layoutgemm.torch_op.scaled_grouped import kept
from tests.torch_op.host_launches import bare_launches

SIZE = 128
ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # a kernel's host function


def calls() -> dict[str, Callable[[], object]]:
    """Calls by name."""
    x, experts = torch.randn(SIZE, SIZE).bfloat16(), torch.randn(4, SIZE, SIZE).bfloat16()
    a, offsets = torch.randn(SIZE, SIZE).to(torch.float8_e4m3fn), torch.arange(5, dtype=torch.int32) * (SIZE // 4)
    right, scale_a, scale_b = a.T, torch.rand(SIZE, 1), torch.rand(1, 1)
    one, another = torch.rand(1, SIZE), right.clone()
    rows, ends = torch.randint(0, SIZE, (SIZE,)), offsets[1:].clone()
    out_rows, bias, y = torch.randperm(SIZE), torch.randn(SIZE), torch.randn(SIZE, SIZE).bfloat16()
    tile, other = Sm90Config((SIZE, SIZE)), right.clone()
    steps, given = Epilogue(Scale(), Bias()), {"alpha": 0.5, "bias": bias}
    sums, of_rows = Epilogue(RowReduce("sum", "sums")), {"sums": torch.zeros(SIZE)}
    weight = QuantizedWeight.quantize(torch.randn(SIZE, SIZE), QuantizedFormat("int4", 128))
    layer, leaf = QuantizedLinear(weight), x.clone().requires_grad_()
    into = torch.empty(SIZE, SIZE, dtype=x.dtype)
    dense, master, gated = layers()
    eight = ScaledLinear.of(dense)
    other_x, other_y, gates = x.clone(), y.clone(), experts.mT
    options: dict[str, Any] = {"config": "", "allow_tf32": None}
    site = direct.site(direct.matmul, count=2, **options)
    lists: tuple[Any, ...] = [], [of_rows["sums"]], [], [], sums.json
    of_scales, in_groups = (a, scale_a, other, scale_b, *lists), (x, experts, offsets, None, None, None, *lists)
    with_bias = direct.site(direct.finished, count=3, activation=None, tensors=("bias",), **options)
    return {
        "matmul": lambda: matmul(x, y),
        "matmul with a bias": lambda: matmul(x, y, bias=bias),
        "matmul in Inductor's code": lambda: site(x, y, out=into),
        "the same with a bias": lambda: with_bias(x, y, bias, out=into),
        "matmul as Inductor's choice": lambda: layoutgemm_matmul(x, y, out=into),
        "scaled_matmul": lambda: scaled_matmul(a, scale_a, right, scale_b),
        "scaled_matmul with a bias": lambda: scaled_matmul(a, scale_a, right, scale_b, bias=bias),
        "scaled_matmul, quantised": lambda: scaled_matmul(
            a, scale_a, right, scale_b, config=tile, out_dtype=a.dtype, out_recipe="BlockWise1x128"
        ),
        "grouped_matmul": lambda: grouped_matmul(x, experts, offsets),
        "grouped_matmul, ends": lambda: grouped_matmul(x, experts, offs=ends),
        "grouped_matmul along K": lambda: grouped_matmul(x.T, y, offs=ends),
        "grouped_matmul of columns": lambda: grouped_matmul(experts, x.T, offsets),
        "grouped_matmul of columns, copied": lambda: grouped_matmul(experts, x, offsets),
        "matmul, gathered rows": lambda: matmul(x, y, rows=rows),
        "matmul, scattered rows": lambda: matmul(x, y, out_rows=out_rows),
        "grouped_matmul, placed rows": lambda: grouped_matmul(
            x, experts, offsets, out_rows=out_rows, row_weights=bias, out=into
        ),
        "matmul, an epilogue": lambda: matmul(x, y, epilogue=steps, given=given),
        "matmul, sums of rows": lambda: matmul(x, y, epilogue=sums, given=of_rows),
        "matmul of two pairs": lambda: matmul((x, other_x), (y, other_y)),
        "matmul of several matrices": lambda: matmul(x, (y, other_y), combine="silu"),
        "matmul with an activation": lambda: matmul(x, y, bias=bias, activation="gelu"),
        "matmul into a tensor": lambda: matmul(x, y, out=into),
        "scaled_matmul into a tensor": lambda: scaled_matmul(a, scale_a, right, scale_b, out=into),
        "grouped_matmul, gated": lambda: grouped_matmul(x, gates, offsets, activation="swiglu"),
        "scaled_matmul, gathered rows": lambda: scaled_matmul(a, scale_a, other, one, rows=rows),
        "scaled_matmul, the lower part": lambda: scaled_matmul(a, scale_a, other, one, order="lower"),
        "scaled_matmul of two matrices": lambda: scaled_matmul(
            a, scale_a, (other, another), (one, one), combine=half_of_second
        ),
        "scaled_matmul, sums of rows": lambda: scaled_matmul(a, scale_a, other, scale_b, epilogue=sums, given=of_rows),
        "grouped_matmul, sums of rows": lambda: grouped_matmul(x, experts, offsets, epilogue=sums, given=of_rows),
        "the same in Inductor's code, scales": lambda: direct.scaled_epilogue_matmul(*of_scales),
        "by the operator, scales": lambda: torch.ops.layoutgemm.scaled_epilogue_matmul(*of_scales),
        "the same in Inductor's code, groups": lambda: direct.grouped_epilogue_matmul(*in_groups),
        "by the operator, groups": lambda: torch.ops.layoutgemm.grouped_epilogue_matmul(*in_groups),
        "quantized_matmul": lambda: quantized_matmul(x, weight),
        "Linear": lambda: dense(x),
        "ScaledLinear": lambda: eight(x),
        "MasterLinear": lambda: master(x),
        "MasterLinear, gated": lambda: gated(x),
        "fp8_matmul": lambda: fp8_matmul(x, y),
        "QuantizedLinear": lambda: layer(x),
        "QuantizedLinear, both passes": lambda: passes(layer, leaf, y),
    }


def half_of_second(p: Any, q: Any, ops: Any) -> Any:
    """A function of two products."""
    return p + 0.5 * q


def layers() -> tuple[DenseLinear, MasterLinear, MasterLinear]:
    """A layer, one of master weights, and a gated one."""
    options: dict[str, Any] = {"bias": False, "dtype": torch.bfloat16}
    gated = MasterLinear(SIZE, 2 * SIZE, activation="swiglu", **options)
    return DenseLinear(SIZE, SIZE, **options), MasterLinear(SIZE, SIZE, **options), gated


def recorded() -> dict[str, Callable[[], object]]:
    """Calls with derivatives, by name: forward, then both passes with a dense gradient."""
    x, weight, grad = (torch.randn(SIZE, SIZE).bfloat16() for _ in range(3))
    bias = torch.randn(SIZE).bfloat16().requires_grad_()
    operands, (dense, master, _) = (x.requires_grad_(), weight.requires_grad_()), layers()
    experts = weight.detach().expand(4, SIZE, SIZE).clone().requires_grad_()
    offsets = torch.arange(5, dtype=torch.int32) * (SIZE // 4)
    return {
        "matmul, recorded": lambda: matmul(x, weight),
        "matmul with a bias, recorded": lambda: matmul(x, weight, bias=bias),
        "linear with a bias, recorded": lambda: linear(x, weight, bias),
        "Linear, recorded": lambda: dense(x),
        "MasterLinear, recorded": lambda: master(x),
        "fp8_matmul, recorded": lambda: fp8_matmul(x, weight),
        "Linear, both passes": lambda: torch.autograd.grad(dense(x), (x, dense.weight), grad),
        "MasterLinear, both passes": lambda: torch.autograd.grad(master(x), (x, master.weight), grad),
        "grouped_matmul, recorded": lambda: grouped_matmul(x, experts, offsets),
        "matmul, both passes": lambda: torch.autograd.grad(matmul(x, weight), operands, grad),
        "torch's engine alone": lambda: torch.autograd.grad(x.view(x.shape), x, grad),
    }


@torch.enable_grad()
def passes(layer: QuantizedLinear, leaf: torch.Tensor, grad: torch.Tensor) -> None:
    """The forward and the backward pass, the gradient of x. Torch makes the weights dense on the CPU."""
    layer(leaf).backward(grad)
    leaf.grad = None


def least(run: Callable[[], object], rounds: int, count: int = 100) -> float:
    """The least time of a call over the rounds, in microseconds."""
    run()
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            run()
        best = min(best, (time.perf_counter() - start) / count)
    return best * 1e6


def of_torch() -> dict[str, Callable[[], object]]:
    """Torch's calls of these sizes, by name."""
    x, y, grad = (torch.randn(SIZE, SIZE).bfloat16() for _ in range(3))
    leaf, other = x.clone().requires_grad_(), y.clone().requires_grad_()
    layer = torch.nn.Linear(SIZE, SIZE, bias=False, dtype=torch.bfloat16)
    return {
        "torch.mm": lambda: torch.mm(x, y),
        "torch.nn.Linear": lambda: layer(x),
        "torch.mm, recorded": lambda: torch.mm(leaf, other),
        "torch.nn.Linear, recorded": lambda: layer(leaf),
        "torch.mm, both passes": lambda: torch.autograd.grad(torch.mm(leaf, other), (leaf, other), grad),
        "torch.nn.Linear, both passes": lambda: torch.autograd.grad(layer(leaf), (leaf, layer.weight), grad),
    }


def same(first: object, again: object) -> bool:
    """True if two results have the same bits."""
    if isinstance(first, (tuple, list)) and isinstance(again, (tuple, list)):
        return all(same(x, y) for x, y in zip(first, again, strict=True))
    if isinstance(first, torch.Tensor) and isinstance(again, torch.Tensor):
        return torch.equal(*(x.detach().reshape(-1).view(torch.uint8) for x in (first, again)))
    return first is again


def on_gpu(rounds: int, only: Sequence[str], count: int = 40) -> int:
    """Print a call's microseconds on this GPU: 40 calls on an idle queue, in turn."""
    with torch.device("cuda"):
        plain, derived = calls(), recorded()
        runs = {**plain, **derived, **of_torch()}
    chosen = [name for name in runs if not only or name in only]
    of_plain = {*plain, "torch.mm", "torch.nn.Linear"}
    seen: dict[str, list[float]] = {name: [] for name in chosen}
    for turn in range(-1, rounds):
        for name in random.sample(chosen, len(chosen)):
            run = runs[name]
            with torch.set_grad_enabled(name not in of_plain):
                if turn < 0:
                    first = run()
                    for _ in range(3):
                        again = run()
                    print(f"{name:36s} {'the same bits' if same(first, again) else 'OTHER BITS'}", file=sys.stderr)
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(count):
                    run()
                if turn >= 0:
                    seen[name].append((time.perf_counter() - start) / count * 1e6)
            torch.cuda.synchronize()
    for name, times in seen.items():
        if times:
            print(f"{name:36s} {min(times):7.2f} {statistics.median(times):7.2f} us", flush=True)
    return 0


COUNTED = 200  # calls whose instructions are counted
REQUESTS = """#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void stop(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
void nothing(void **arguments) {}
"""


def counted(library: ctypes.CDLL, name: str, run: Callable[[], object]) -> None:
    """Make calls while callgrind counts: a repeated call, without collections of garbage."""
    for _ in range(20):
        run()
    gc.collect()
    gc.disable()
    library.start()
    for _ in range(COUNTED):
        run()
    library.stop(name.encode())
    gc.enable()


def count_instructions(only: Sequence[str]) -> int:
    """Run this program in valgrind, and print the instructions of a call."""
    with tempfile.TemporaryDirectory() as folder:
        source, library, found = Path(folder) / "requests.c", Path(folder) / "requests.so", Path(folder) / "counts"
        source.write_text(REQUESTS)
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", str(source), "-o", str(library)], check=True)
        subprocess.run(
            ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={found}", sys.executable,
             __file__, "--counting", str(library), *[word for name in only for word in ("--only", name)]],
            check=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for path in sorted(Path(folder).glob("counts.*"), key=lambda each: int(each.suffix[1:])):
            text = path.read_text()
            name, total = re.search(r"Client Request: (.+)", text), re.search(r"^totals: (\d+)", text, re.MULTILINE)
            if name and total:
                print(f"{name[1]:36s} {int(total[1]) / COUNTED / 1000:7.1f} thousand instructions")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", action="append", default=[], help="a call by its name; more than once for several")
    parser.add_argument("--instructions", action="store_true", help="of a call, in place of its time")
    parser.add_argument("--gpu", action="store_true", help="launch on the current GPU, beside torch")
    parser.add_argument("--counting", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.instructions:
        return count_instructions(options.only)
    if options.gpu:
        return on_gpu(options.rounds, options.only)
    library = None if options.counting is None else ctypes.CDLL(options.counting)

    def measure(each: dict[str, Callable[[], object]]) -> None:
        for name, run in each.items():
            if options.only and name not in options.only:
                continue
            if library is not None:
                counted(library, name, run)
            else:
                print(f"{name:36s} {least(run, options.rounds):7.2f} us", flush=True)

    torch.set_num_threads(1)
    patch = pytest.MonkeyPatch()
    try:
        with bare_launches(patch) as noted, torch.no_grad():
            nothing = ctypes.cast(ctypes.CDLL(None).labs if library is None else library.nothing, ctypes.c_void_p)
            patch.setattr(noted, "entry", ENTRY(nothing.value or 0), raising=False)
            patch.setattr(noted, "block", lambda arguments: ArgumentBlock(noted.entry, arguments), raising=False)
            for module in (launch, kept):  # a GPU's allocation is one call of C too
                patch.setattr(module, "empty_on_gpu", torch._C._dynamo.guards._empty_strided_cpu)
            patch.setattr(
                launch, "take_memory", max
            )  # and so are what a call drops, and its release: no kernel reads it
            patch.setattr(launch, "leave_memory", abs)
            for module in [each for each in sys.modules.values() if "LEAST_ADDRESS" in getattr(each, "__dict__", ())]:
                patch.setattr(module, "LEAST_ADDRESS", 1 << 20)  # valgrind's addresses are smaller than a GPU's
            measure(calls())
            with torch.enable_grad():
                measure(recorded())
    finally:
        patch.undo()
    return 0


if __name__ == "__main__":
    sys.exit(main())
