"""Experts of transformers and products of JAX arrays, beside torch's and JAX's own. Each is right first, then timed.

    python benchmarks/bench_doors.py --json FILE            # on a Hopper GPU, about two minutes
    python benchmarks/bench_doors.py --parts experts        # of experts, jax

A line for each door and size: us of the framework's own, us of layoutgemm, and the ratio (above 1: layoutgemm is
faster). Some rows of each result are compared with float64 before anything is timed.

    experts  `nn.experts_forward` beside the same steps by torch._grouped_mm, launched by the host, in a CUDA graph, and
             as a training step. Sizes are those of a small model, Qwen3 30B and Mixtral 8x7B
    jax      `jax.dot_general` beside jax.lax.dot_general, `jax.grouped_matmul` beside jax.lax.ragged_dot, each jitted

Rounds run all contenders in an order drawn anew, and times are medians. The exit status is 1 for a wrong result.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch has memory beside it

from benchmarks import needs

if importlib.util.find_spec("torch") is None:
    raise SystemExit(needs.refused("torch is not installed: pip install 'layoutgemm[dsl,torch]'"))

import torch

from benchmarks.bench_models import Run, captured, medians
from layoutgemm.bench import machine
from layoutgemm.nn import experts_forward

Call = Callable[..., Any]
BOUND = 2.0**-6  # distance to float64 over its norm: three roundings to bfloat16, and a sum
CHECKED = 16  # rows beside float64


class Size(NamedTuple):
    """Tokens, and a mixture of experts."""

    tokens: int
    experts: int
    chosen: int
    width: int
    hidden: int

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {self.chosen} of {self.experts}, {self.width}x{self.hidden}"


EXPERTS = (
    Size(16, 64, 8, 2048, 1024), Size(4096, 64, 8, 2048, 1024), Size(16, 128, 8, 2048, 768),
    Size(8192, 128, 8, 2048, 768), Size(16, 8, 2, 4096, 14336), Size(2048, 8, 2, 4096, 14336),
)  # fmt: skip
TINY = (Size(7, 4, 2, 64, 32),)
DENSE = ((16, 14336, 4096), (512, 4096, 4096), (4096, 14336, 4096))  # M, N, K
GROUPS = ((8, 512, 4096, 2048), (64, 128, 2048, 2048))  # groups, rows of each, N, K
TINY_DENSE, TINY_GROUPS = ((8, 32, 64),), ((2, 8, 32, 64),)


class Experts(torch.nn.Module):
    """The parameters and facts of transformers' experts, and their sums by torch._grouped_mm."""

    has_gate, has_bias, is_transposed, has_post_expert_norm = True, False, False, False

    def __init__(self, size: Size, device: str):
        super().__init__()
        self.size, self.act_fn = size, torch.nn.SiLU()
        for name, n, k in (("gate_up_proj", 2 * size.hidden, size.width), ("down_proj", size.width, size.hidden)):
            w = torch.randn(size.experts, n, k, device=device, dtype=torch.bfloat16) / k**0.5
            setattr(self, name, torch.nn.Parameter(w))

    def forward(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        of_rows, order = index.flatten().sort()
        every = torch.arange(self.size.experts, device=x.device)
        ends = torch.searchsorted(of_rows, every, right=True, out_int32=True)
        hidden = self._apply_gate(torch._grouped_mm(x[order // index.shape[1]], self.gate_up_proj.mT, offs=ends))
        each = torch._grouped_mm(hidden, self.down_proj.mT, offs=ends) * weights.flatten()[order].unsqueeze(-1)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device=order.device)
        return each[back].view(*index.shape, -1).sum(1).to(x.dtype)


def default_gate(self: Any, x: torch.Tensor) -> torch.Tensor:
    """act_fn of the first half of the columns, times the other half."""
    gate, up = x.chunk(2, -1)
    value: torch.Tensor = self.act_fn(gate) * up
    return value


def gate_of_transformers() -> Callable[..., Any]:
    """transformers' own gate, which `experts_forward` knows by its name; else one of the same values."""
    if importlib.util.find_spec("transformers") is None:
        return default_gate
    from transformers.integrations import moe

    found: Callable[..., Any] = getattr(moe, "_default_apply_gate", default_gate)
    return found


Experts._apply_gate = gate_of_transformers()  # type: ignore[attr-defined]


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    """The norm of the difference over that of `want`.

    >>> off(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 0.0]))
    1.3333333333333333
    """
    return float((got.double() - want.double()).norm() / want.double().norm())


def exact(module: Any, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The sums of a few rows in float64."""
    found = []
    for row, experts, factors in zip(x.double(), index.tolist(), weights.double(), strict=True):
        total = torch.zeros_like(row)
        for e, factor in zip(experts, factors, strict=True):
            hidden = default_gate(module, module.gate_up_proj[e].double() @ row)
            total += factor * (module.down_proj[e].double() @ hidden)
        found.append(total)
    return torch.stack(found)


class Line(NamedTuple):
    """A door at a size: microseconds, and distances from float64. Of both, the framework's own and ours."""

    door: str
    size: str
    us: dict[str, float]
    off: dict[str, float]

    @property
    def right(self) -> bool:
        return self.off["layoutgemm"] <= BOUND

    def __str__(self) -> str:
        (name, theirs), (_, ours) = self.us.items()
        said = f"{name} {theirs:9.1f} us   layoutgemm {ours:9.1f} us   {theirs / ours:.3f}"
        distances = " ".join(f"{x:.1e}" for x in self.off.values())
        return f"{self.door:<24} {self.size:<34} {said}   off {distances}{'' if self.right else '  WRONG'}"


def experts_lines(size: Size, rounds: int, device: str) -> Iterator[Line]:
    """The lines of a mixture of experts."""
    torch.manual_seed(0)
    module, on_gpu = Experts(size, device), device == "cuda"
    x = torch.randn(size.tokens, size.width, device=device, dtype=torch.bfloat16)
    weights, index = torch.randn(size.tokens, size.experts, device=device).softmax(-1).topk(size.chosen)
    calls: dict[str, Call] = {"torch": module, "layoutgemm": lambda *given: experts_forward(module, *given)}
    some = slice(0, CHECKED)
    with torch.no_grad():
        want = exact(module, x[some], index[some], weights[some])
        far = {name: off(call(x, index, weights)[some], want) for name, call in calls.items()}
        runs: dict[str, Run] = {name: functools.partial(call, x, index, weights) for name, call in calls.items()}
        ways = {"experts, by the host": runs}
        if on_gpu:
            ways["experts, in a graph"] = {name: captured(run) for name, run in runs.items()}
        for door, each in ways.items():
            yield Line(door, str(size), {name: s * 1e6 for name, s in medians(each, rounds, on_gpu).items()}, far)
    rows, factors = x.requires_grad_(), weights.requires_grad_()
    inputs = rows, factors, *module.parameters()
    found = {
        name: torch.autograd.grad(call(rows, index, factors).square().mean(), inputs) for name, call in calls.items()
    }
    apart = {"torch": 0.0, "layoutgemm": max(off(ours, theirs) for theirs, ours in zip(*found.values(), strict=True))}
    del found

    def step(call: Call) -> None:
        torch.autograd.grad(call(rows, index, factors).square().mean(), inputs)

    steps: dict[str, Run] = {name: functools.partial(step, call) for name, call in calls.items()}
    us = {name: s * 1e6 for name, s in medians(steps, rounds, on_gpu).items()}
    yield Line("experts, both passes", str(size), us, apart)


def jax_times(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median us of a jitted call: many in a row, and one wait behind them."""
    import jax

    def seconds(call: Callable[[], Any], count: int) -> float:
        start, last = time.perf_counter(), None
        for _ in range(count):
            last = call()
        jax.block_until_ready(last)
        return (time.perf_counter() - start) / count

    count = {name: 1 + min(200, int(0.02 / max(seconds(call, 3), 1e-6))) for name, call in calls.items()}
    rng = random.Random(0)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in rng.sample(list(calls), len(calls)):
            samples[name].append(seconds(calls[name], count[name]))
    return {name: statistics.median(each) * 1e6 for name, each in samples.items()}


def jax_lines(tiny: bool, rounds: int) -> Iterator[Line]:
    """The lines of JAX: dense products, and those of groups of rows."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from layoutgemm.jax import dot_general, grouped_matmul

    def drawn(seed: int, *shape: int) -> Any:
        return jax.random.normal(jax.random.key(seed), shape).astype(jnp.bfloat16)

    def double(x: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(x.astype(jnp.float32))).double()

    def line(door: str, size: tuple[int, ...], calls: dict[str, Any], given: tuple[Any, ...], want: Any) -> Line:
        compiled = {name: jax.jit(call) for name, call in calls.items()}
        far = {name: off(double(call(*given)[: len(want)]), want) for name, call in compiled.items()}
        runs: dict[str, Run] = {name: functools.partial(call, *given) for name, call in compiled.items()}
        return Line(door, "x".join(map(str, size)), jax_times(runs, rounds), far)

    numbers = (((1,), (1,)), ((), ()))
    for m, n, k in TINY_DENSE if tiny else DENSE:
        x, w = drawn(0, m, k), drawn(1, n, k)
        calls = {
            "jax": lambda x, w: jax.lax.dot_general(x, w, numbers),
            "layoutgemm": lambda x, w: dot_general(x, w, numbers),
        }
        yield line("jax.dot_general", (m, n, k), calls, (x, w), double(x[:CHECKED]) @ double(w).T)
    for groups, rows, n, k in TINY_GROUPS if tiny else GROUPS:
        x, w, sizes = drawn(0, groups * rows, k), drawn(1, groups, k, n), jnp.full(groups, rows, jnp.int32)
        of_groups: dict[str, Call] = {
            "jax": lambda x, w, sizes: jax.lax.ragged_dot(x, w, sizes),
            "layoutgemm": lambda x, w, sizes: grouped_matmul(
                x, w, jnp.concatenate([jnp.zeros(1, int), sizes.cumsum()])
            ),
        }
        want = double(x[: min(CHECKED, rows)]) @ double(w[0])
        yield line("jax.grouped_matmul", (groups, rows, n, k), of_groups, (x, w, sizes), want)


def no_jax_gpu() -> str | None:
    """The reason why JAX has no GPU, or None."""
    if importlib.util.find_spec("jax") is None:
        return "jax is not installed: pip install 'layoutgemm[dsl,jax]' 'jax[cuda13]'"
    import jax

    return None if jax.default_backend() == "gpu" else f"jax runs on {jax.default_backend()}: nothing can be measured"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result, 2 without a GPU unless --tiny."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", default="experts,jax", help="of experts, jax")
    parser.add_argument("--tiny", action="store_true", help="small sizes; without a GPU on the CPU")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    parts = options.parts.split(",")
    if status := needs.refused(None if options.tiny else needs.no_gpu()):
        return status
    on_gpu = torch.cuda.is_available()
    facts = {**machine.facts(), "jax": machine.version("jax")} if on_gpu else {"torch": torch.__version__}
    print(facts, flush=True)
    lines: list[Line] = []

    def say(found: Iterator[Line]) -> None:
        for line in found:
            print(line, flush=True)
            lines.append(line)
            if options.json:
                record = {"machine": facts, "rounds": options.rounds, "lines": [each._asdict() for each in lines]}
                options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    for size in (TINY if options.tiny else EXPERTS) if "experts" in parts else ():
        say(experts_lines(size, options.rounds, "cuda" if on_gpu else "cpu"))
        torch.cuda.empty_cache()
    reason = None if options.tiny or "jax" not in parts else no_jax_gpu()
    status = 0
    if "jax" in parts and not (status := needs.refused(reason)):
        say(jax_lines(options.tiny, options.rounds))
    return status if all(line.right for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
