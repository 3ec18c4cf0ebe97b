"""Times layoutgemm inside torch's frameworks against torch's own choice, on the current GPU.

    python benchmarks/bench_frameworks.py --json frameworks.json        # on the GPU, about five minutes
    python benchmarks/bench_frameworks.py --doors nn                    # without what Inductor takes minutes to compile

A line for each door and size: us of torch, us of layoutgemm, and the ratio (above 1: layoutgemm is faster). Operands
are random normal and larger than L2 in rotation; results are compared before anything is timed, contenders alternate,
and times are medians of CUDA events around a call from Python. Inductor compiles each size for itself, without its
caches.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from layoutgemm import inductor
from layoutgemm.bench import machine
from layoutgemm.nn import swap_linears

BF16 = torch.bfloat16
Run = Callable[[Any], Any]
Times = dict[str, dict[str, dict[str, float]]]  # us by door, size and contender
SIZES = [(16, 4096, 14336), (1024, 4096, 14336), (8192, 4096, 14336)]  # rows, width, hidden width
ROUNDS, INPUTS = 50, 8
DOORS = ("nn", "inductor")


class Mlp(torch.nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, width)

    def forward(self, x: Any) -> Any:
        return self.down(torch.nn.functional.gelu(self.up(x)))


class GatedMlp(torch.nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (torch.nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down_proj, self.act_fn = torch.nn.Linear(hidden, width, bias=False), torch.nn.SiLU()

    def forward(self, x: Any) -> Any:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def timed(calls: list[Callable[[Any], Any]], inputs: list[Any]) -> list[float]:
    """Median us of each contender, taken in turns."""
    times: list[list[float]] = [[] for _ in calls]
    for index in range(ROUNDS):
        for which, call in enumerate(calls):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call(inputs[index % len(inputs)])
            end.record()
            end.synchronize()
            times[which].append(start.elapsed_time(end) * 1e3)
    return [statistics.median(each) for each in times]


def line(times: Times, name: str, size: tuple[int, ...], theirs: Run, ours: Run, bound: float) -> None:
    """Compares the results, times both, prints and records a line."""
    inputs = [torch.randn(size[0], size[1], device="cuda", dtype=BF16) for _ in range(INPUTS)]
    want, got = theirs(inputs[0]), ours(inputs[0])
    if isinstance(want, torch.Tensor):
        off = float((got.float() - want.float()).abs().max() / want.float().abs().max())
        assert off <= bound, f"{name} {size}: off by {off}"
    slow, fast = timed([theirs, ours], inputs)
    said = f"torch {slow:9.1f} us   layoutgemm {fast:9.1f} us   {slow / fast:.3f}"
    sizes = "x".join(map(str, size))
    print(f"{name:<34} {sizes:<18} {said}", flush=True)
    times.setdefault(name, {})[sizes] = {"torch": round(slow, 1), "layoutgemm": round(fast, 1)}


def apart(model: Any) -> Any:
    """A copy whose forward is a code object of its own. Dynamo keeps what it compiled by code, not by module."""
    made, forward = copy.deepcopy(model), type(model).forward
    own = types.FunctionType(forward.__code__.replace(), forward.__globals__, "forward")
    made.__class__ = type(type(model).__name__, (type(model),), {"forward": own})
    return made


def step(model: Any) -> Callable[[Any], None]:
    def run(x: Any) -> None:
        model(x).square().mean().backward()
        model.zero_grad(set_to_none=True)

    return run


def compiled_line(times: Times, model: torch.nn.Module, size: tuple[int, ...]) -> None:
    """Compiles the model twice, without and with layoutgemm's hooks, and times both."""
    torch._dynamo.reset()  # else rows become a symbol, and a later size takes the code of an earlier one
    torch._inductor.config.force_disable_caches = True
    sample = torch.randn(size[0], size[1], device="cuda", dtype=BF16)
    theirs = torch.compile(apart(model), mode="max-autotune-no-cudagraphs")
    theirs(sample)
    with inductor.register() as registered:
        ours = torch.compile(apart(model), mode="max-autotune-no-cudagraphs")
        ours(sample)
    assert registered.graphs, "Inductor compiled nothing"
    line(times, f"inductor {type(model).__name__}, max-autotune", size, theirs, ours, 0.03)
    print(registered, flush=True)


def layer_lines(
    times: Times, theirs: torch.nn.Module, ours: torch.nn.Module, size: tuple[int, ...], gated: bool
) -> None:
    """Times our layers beside torch's: eager, with float8 weights, and a training step."""
    name = type(theirs).__name__
    eight = torch.nn.ModuleDict({"mlp": copy.deepcopy(theirs)})
    swap_linears(eight, weights="fp8", gated=gated)
    with torch.no_grad():
        line(times, f"nn {name}, eager", size, theirs, ours, 0.03)
        line(times, f"nn {name}, float8 weights", size, theirs, eight["mlp"], 0.2)
    line(times, f"nn {name}, training step", size, step(theirs), step(ours), 0.03)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--doors", nargs="+", choices=DOORS, default=DOORS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    file: Path | None = options.json
    if status := needs.refused(needs.no_gpu()):
        return status
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    times: Times = {}
    for size in SIZES:
        _, width, hidden = size
        for kind, gated in ((Mlp, False), (GatedMlp, True)):
            theirs = kind(width, hidden).to("cuda", BF16)
            ours = torch.nn.ModuleDict({"mlp": copy.deepcopy(theirs)})
            swaps = swap_linears(ours, gated=gated)
            assert not swaps.left, str(swaps)
            if "inductor" in options.doors:
                with torch.no_grad():
                    compiled_line(times, theirs, size)
            if "nn" in options.doors:
                layer_lines(times, theirs, ours["mlp"], size, gated)
            if file:
                file.write_text(json.dumps({"machine": machine.facts(), "us": times}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
