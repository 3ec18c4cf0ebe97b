"""Host cost of a call, beside torch's, for products of negligible GPU time.

    python benchmarks/bench_launch.py --json launch.json
    python benchmarks/bench_launch.py --only forward,both --seconds 40

Each figure is the time until the call returns, over a few hundred calls in a row without waiting for the GPU.
Contenders run in a new random order each round, and the figure is the median over the rounds. The parts of our call are
measured too. Lines on stderr say how far the rounds are.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs

COMPARED = (
    ("layoutgemm.matmul", "torch.matmul"),
    ("layoutgemm.matmul, recorded", "torch.matmul, recorded"),
    ("layoutgemm.matmul, bias, recorded", "torch linear, bias, recorded"),
    ("layoutgemm.nn, bias, recorded", "torch linear, bias, recorded"),
    ("layoutgemm.matmul, both passes", "torch.matmul, both passes"),
    ("layoutgemm.matmul, a linear layer's step", "torch.mm, a linear layer's step"),
    ("layoutgemm.nn, a layer's step with a bias", "torch linear, a layer's step with a bias"),
    ("layoutgemm.matmul, a step of a sum", "torch.mm, a step of a sum"),
    ("layoutgemm.grouped_matmul, recorded", "torch._grouped_mm, recorded"),
    ("layoutgemm.grouped_matmul, a step", "torch._grouped_mm, a step"),
    ("layoutgemm.scaled_matmul, row-wise", "torch._scaled_mm, row-wise"),
    ("layoutgemm.grouped_matmul, ends", "torch._grouped_mm"),
    ("layoutgemm.gemm", "torch.addmm, scalars"),
)


class Progress:
    """Lines on stderr, each with the seconds since the start.

    seconds  after which the rounds end
    """

    def __init__(self, seconds: float):
        self.start, self.seconds = time.perf_counter(), seconds

    def say(self, text: str) -> None:
        """A line."""
        print(f"{time.perf_counter() - self.start:6.1f} s  {text}", file=sys.stderr, flush=True)

    def is_over(self) -> bool:
        """True if the time is up."""
        return time.perf_counter() - self.start > self.seconds


def measure(
    contenders: dict[str, Callable[[], object]], settle: Callable[[], object], rounds: int, calls: int,
    progress: Progress,
) -> dict[str, list[float]]:  # fmt: skip
    """Seconds per call of each contender in each round. The rounds end after five where the time is up."""
    rng = random.Random(0)
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for name, run in contenders.items():
        for _ in range(calls):
            run()
        settle()
        progress.say(f"warm: {name}")
    for done in range(rounds):
        if done % 20 == 0:
            progress.say(f"round {done} of {rounds}")
        if done >= 5 and progress.is_over():
            progress.say(f"time is up after {done} rounds")
            break
        order = list(contenders)
        rng.shuffle(order)
        for name in order:
            run = contenders[name]
            start = time.perf_counter()
            for _ in range(calls):
                run()
            samples[name].append((time.perf_counter() - start) / calls)
            settle()
    return samples


def products(n: int) -> dict[str, Callable[[], object]]:
    """Products without gradients, and the parts of a call."""
    import torch

    from layoutgemm import matmul
    from layoutgemm.torch_op.launch import empty_on_gpu
    from layoutgemm.torch_op.prepared import prepare

    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c, weight = torch.empty_like(a), b.T.contiguous()
    stride_b, bias = weight.T, torch.randn(n, device="cuda", dtype=torch.bfloat16)
    ready = prepare(a, b, a.dtype, None, None)
    (at_a, at_b, at_c), stream = [x.data_ptr() for x in (a, b, c)], torch.cuda.current_stream().cuda_stream
    return {
        "torch.matmul": lambda: torch.matmul(a, b),
        "layoutgemm.matmul": lambda: matmul(a, b),
        "torch.matmul, B transposed": lambda: torch.matmul(a, stride_b),
        "layoutgemm.matmul, B transposed": lambda: matmul(a, stride_b),
        "torch.matmul, out=": lambda: torch.matmul(a, b, out=c),
        "layoutgemm.matmul, out=": lambda: matmul(a, b, out=c),
        "torch linear, gelu": lambda: torch.nn.functional.gelu(torch.nn.functional.linear(a, weight, bias)),
        "layoutgemm.matmul, bias, gelu": lambda: matmul(a, stride_b, bias=bias, activation="gelu"),
        "part: the output's memory": lambda: empty_on_gpu(ready.shape, ready.strides, ready.kind),
        "part: the launch": lambda: ready.launch(at_a, at_b, at_c, stream),
    }


def leaves(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two operands and a bias with gradients, and a gradient of their product."""
    import torch

    a, b, grad = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    bias = torch.randn(n, device="cuda", dtype=torch.bfloat16).requires_grad_()
    return a.requires_grad_(), b.requires_grad_(), bias, grad


def forward(n: int) -> dict[str, Callable[[], object]]:
    """Forward passes that autograd records."""
    import torch

    from layoutgemm import matmul
    from layoutgemm.torch_op.api import linear

    a, b, bias, _ = leaves(n)
    return {
        "torch.matmul, recorded": lambda: torch.matmul(a, b),
        "layoutgemm.matmul, recorded": lambda: matmul(a, b),
        "torch linear, bias, recorded": lambda: torch.nn.functional.linear(a, b, bias),
        "layoutgemm.matmul, bias, recorded": lambda: matmul(a, b.t(), bias=bias),
        "layoutgemm.nn, bias, recorded": lambda: linear(a, b, bias),
    }


def both(n: int) -> dict[str, Callable[[], object]]:
    """Forward and backward passes."""
    import torch

    from layoutgemm import matmul
    from layoutgemm.torch_op.api import linear

    a, b, bias, grad = leaves(n)

    def train(c: torch.Tensor, summed: bool = False) -> None:
        """The backward pass of a layer's step: new gradients in `.grad`."""
        c.sum().backward() if summed else c.backward(grad)
        a.grad = b.grad = bias.grad = None

    return {
        "torch.matmul, both passes": lambda: torch.autograd.grad(torch.matmul(a, b), (a, b), grad),
        "layoutgemm.matmul, both passes": lambda: torch.autograd.grad(matmul(a, b), (a, b), grad),
        "torch.mm, a linear layer's step": lambda: train(torch.mm(a, b.t())),
        "layoutgemm.matmul, a linear layer's step": lambda: train(matmul(a, b.t())),
        "torch linear, a layer's step with a bias": lambda: train(torch.nn.functional.linear(a, b, bias)),
        "layoutgemm.nn, a layer's step with a bias": lambda: train(linear(a, b, bias)),
        "torch.mm, a step of a sum": lambda: train(torch.mm(a, b.t()), True),
        "layoutgemm.matmul, a step of a sum": lambda: train(matmul(a, b.t()), True),
    }


def experts(n: int) -> dict[str, Callable[[], object]]:
    """Groups of rows with gradients, n rows in four groups. The forward pass is timed, and both passes."""
    import torch

    from layoutgemm import grouped_matmul

    a, b, _, grad = leaves(n)
    weights = b.detach().expand(4, n, n).clone().requires_grad_()
    ends = torch.arange(1, 5, device="cuda", dtype=torch.int32) * (n // 4)

    def train(c: torch.Tensor) -> None:
        """The backward pass: new gradients in `.grad`."""
        c.backward(grad)
        a.grad = weights.grad = None

    return {
        "torch._grouped_mm, recorded": lambda: torch._grouped_mm(a, weights, offs=ends),
        "layoutgemm.grouped_matmul, recorded": lambda: grouped_matmul(a, weights, offs=ends),
        "torch._grouped_mm, a step": lambda: train(torch._grouped_mm(a, weights, offs=ends)),
        "layoutgemm.grouped_matmul, a step": lambda: train(grouped_matmul(a, weights, offs=ends)),
    }


def variants(n: int) -> dict[str, Callable[[], object]]:
    """Products with scales and of groups, of sizes in whole blocks of 128."""
    import torch

    from layoutgemm import QuantizedFormat, QuantizedWeight, grouped_matmul, quantize, quantized_matmul, scaled_matmul
    from layoutgemm.nn import QuantizedLinear

    n = -(-n // 128) * 128
    a, b = (torch.randn(n, n, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    right = b.T  # a view costs its caller a microsecond of its own
    scale_a, scale_b = (torch.rand(rows, n // 128, device="cuda") for rows in (n, n // 128))
    rows, columns = torch.rand(n, 1, device="cuda"), torch.rand(1, n, device="cuda")
    x, experts = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((n, n), (4, n, n)))
    offsets = torch.arange(5, device="cuda", dtype=torch.int32) * (n // 4)
    packed = QuantizedWeight.quantize(x, QuantizedFormat("int4", 128))
    layer = QuantizedLinear(packed)
    ends, out = offsets[1:].clone(), torch.empty(n, n, device="cuda", dtype=torch.bfloat16)
    return {
        "layoutgemm.scaled_matmul": lambda: scaled_matmul(a, scale_a, right, scale_b),
        "layoutgemm.scaled_matmul, out=": lambda: scaled_matmul(a, scale_a, right, scale_b, out=out),
        "layoutgemm.scaled_matmul, quantised": lambda: scaled_matmul(
            a, scale_a, right, scale_b, out_dtype=torch.float8_e4m3fn, out_recipe="BlockWise1x128"
        ),
        "layoutgemm.quantize": lambda: quantize(x),
        "layoutgemm.scaled_matmul, row-wise": lambda: scaled_matmul(a, rows, right, columns),
        "torch._scaled_mm, row-wise": lambda: torch._scaled_mm(
            a, right, scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16
        ),
        "torch._grouped_mm": lambda: torch._grouped_mm(x, experts, offs=ends),
        "layoutgemm.grouped_matmul": lambda: grouped_matmul(x, experts, offsets),
        "layoutgemm.grouped_matmul, ends": lambda: grouped_matmul(x, experts, offs=ends),
        "layoutgemm.grouped_matmul, columns": lambda: grouped_matmul(experts, x.T, offsets),
        "layoutgemm.grouped_matmul, columns, copied": lambda: grouped_matmul(experts, x, offsets),
        "layoutgemm.quantized_matmul": lambda: quantized_matmul(x, packed),
        "layoutgemm.nn.QuantizedLinear": lambda: layer(x),
    }


def more_operands(n: int) -> dict[str, Callable[[], object]]:
    """Products with an epilogue, scalars, several matrices and two pairs."""
    import torch

    from layoutgemm import gemm, grouped_matmul, matmul
    from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, RowReduce, Scale

    a, b, c, d = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    experts, offsets = c.expand(4, n, n).clone(), torch.arange(5, device="cuda", dtype=torch.int32) * (n // 4)
    steps, given = Epilogue(Scale(), Bias()), {"alpha": 0.5, "bias": torch.randn(n, device="cuda")}
    sums, of_rows = Epilogue(RowReduce("sum", "sums")), {"sums": torch.zeros(n, device="cuda")}
    return {
        "torch.addmm, scalars": lambda: torch.addmm(c, a, b, beta=0.5, alpha=2.0),
        "layoutgemm.gemm": lambda: gemm(2.0, a, b, 0.5, c),
        "layoutgemm.matmul, an epilogue": lambda: matmul(a, b, epilogue=steps, given=given),
        "layoutgemm.matmul, sums of rows": lambda: matmul(a, b, epilogue=sums, given=of_rows),
        "layoutgemm.grouped_matmul, sums of rows": lambda: grouped_matmul(
            a, experts, offsets, epilogue=sums, given=of_rows
        ),
        "layoutgemm.matmul, several matrices": lambda: matmul(a, (b, c), combine="silu"),
        "layoutgemm.matmul, two pairs": lambda: matmul((a, c), (b, d)),
    }


PARTS = {
    "products": products, "forward": forward, "both": both, "experts": experts, "variants": variants,
    "operands": more_operands,
}  # fmt: skip


def parts(text: str) -> list[str]:
    """The names in a list with commas. Raises ArgumentTypeError for one that is no part."""
    names = text.split(",")
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(PARTS)}")
    return names


def check_first(n: int) -> tuple[float, float]:
    """Seconds of the first call, and its relative distance from float64."""
    import torch

    from layoutgemm import matmul

    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    start = time.perf_counter()
    first = matmul(a, b)
    torch.cuda.synchronize()
    cold = time.perf_counter() - start
    want = a.double() @ b.double()
    return cold, float((first.double() - want).abs().max() / want.abs().max())


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong product, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--only", type=parts, default=list(PARTS), metavar="PART,...", help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="after which the rounds end, from the fifth on"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    import torch

    from layoutgemm.bench import machine

    n, progress = options.size, Progress(options.seconds)
    cold, off = check_first(n)
    if not off < 2.0**-7:
        print(f"wrong: off by {off:.3g} of the largest element")
        return 1
    contenders = {name: run for part in options.only for name, run in PARTS[part](n).items()}
    samples = measure(contenders, torch.cuda.synchronize, options.rounds, options.calls, progress)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    facts = machine.facts()
    print(facts)
    print(f"{n} x {n} x {n} bf16, host time of a call; first call {cold * 1e3:.0f} ms")
    for name, seconds in medians.items():
        spread = statistics.median(abs(x - seconds) for x in samples[name])
        print(f"{name:<42} {seconds * 1e6:7.2f} us  +- {spread * 1e6:.2f}")
    for ours, theirs in COMPARED:
        if ours in medians and theirs in medians:
            print(f"{ours} / {theirs}: {medians[ours] / medians[theirs]:.3f}")
    if options.json:
        rounds = min(map(len, samples.values()))
        record = {"machine": facts, "size": n, "rounds": rounds, "calls": options.calls, "first_call_s": cold}
        options.json.write_text(json.dumps({**record, "seconds": medians}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
