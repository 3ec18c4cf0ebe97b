"""Times reductions in epilogues: each beside the plain product, and whole programs beside torch.compile.

    python benchmarks/bench_reductions.py --json benchmarks/results/reductions_h100.json     # on the GPU, some minutes

`costs`: a bf16 product M = N = K with each reduction, relative to the product without one. C is stored unless the name
says "no C".

`programs`: the epilogues of kernels/variant_*.py at sizes of models, and fp8 values with scales. Peers are the same
formula in torch, eager and by torch.compile in two modes. "product alone" is `layoutgemm.matmul` with C stored.

Outputs are first compared with float64: each reduction at ragged sizes, three runs bit for bit if it is ordered, and
the first rows of each program. Times are bursts by `layoutgemm/bench/method.py`. A graph has a launch for each operand
set in rotation.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.bench_variants import attempt
from layoutgemm.bench.method import BenchProblem, CudaDevice, Launch, burst
from layoutgemm.dtypes import f32
from layoutgemm.kernels.epilogue.chain import (
    Amax,
    Bias,
    ColumnReduce,
    Custom,
    Epilogue,
    Given,
    Quantize,
    Reduction,
    Residual,
    RowReduce,
)

CASES: dict[str, Epilogue] = {
    "row sum": Epilogue(RowReduce()),
    "row max": Epilogue(RowReduce("max")),
    "row sum, unordered": Epilogue(RowReduce("sum", ordered=False)),
    "row sum of squares": Epilogue(RowReduce("sum_of_squares")),
    "row softmax": Epilogue(RowReduce("softmax")),
    "row argmax": Epilogue(RowReduce("argmax")),
    "column sum": Epilogue(ColumnReduce()),
    "column argmax": Epilogue(ColumnReduce("argmax")),
    "amax": Epilogue(Amax()),
    "row amax each 128": Epilogue(RowReduce("amax", each=128)),
    "row sum, no C": Epilogue(RowReduce(), stores_c=False),
    "quantised": Epilogue(Quantize()),
    "all": Epilogue(Bias(), RowReduce("softmax"), ColumnReduce("argmax"), RowReduce("sum", "sums"), Amax()),
}
RAGGED = ((200, 330, 136, 0), (1000, 776, 264, 0), (8, 1000, 512, 0), (130, 264, 72, 3), (520, 4104, 1024, 0))
CHECKED_ROWS = 64  # of each program
MODES = ("default", "max-autotune-no-cudagraphs")
OURS, EAGER, ALONE = "ours", "eager", "product alone"
NEGATIVE_INFINITY = float("-inf")
WIDTH = 4096  # of the rows that rms norm reduces

Formula = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True)
class Program:
    """An epilogue at one size, and its formula in torch.

    names  of the outputs, in the formula's order; None for C
    extra  name of the epilogue operand that the formula takes too, or ""
    """

    epilogue: Epilogue
    sizes: tuple[int, int, int]
    formula: Formula
    names: tuple[str | None, ...]
    extra: str = ""

    def read(self, given: Mapping[str, Any]) -> list[Any]:
        """The formula's further arguments; labels as torch's indices."""
        return [given[self.extra].long() if self.extra == "label" else given[self.extra]] if self.extra else []


def attention(a: Any, b: Any) -> tuple[Any, ...]:
    """Maximum and log-sum-exp of each row of causal scores."""
    import torch

    scores = (a @ b).float() * 0.125
    row, column = (torch.arange(size, device=scores.device) for size in scores.shape)
    scores = torch.where(column[None, :] <= row[:, None], scores, NEGATIVE_INFINITY)
    return scores.amax(1), scores.logsumexp(1)


def rms_norm(a: Any, b: Any, residual: Any) -> tuple[Any, ...]:
    """The product with a residual, and 1 / rms of its rows."""
    x = a @ b + residual
    return x, (x.float().square().mean(1) + 1e-6).rsqrt()


def cross_entropy(a: Any, b: Any, label: Any) -> tuple[Any, ...]:
    """Log-sum-exp of each row of logits, and the label's logit."""
    logits = (a @ b).float()
    return logits.logsumexp(1), logits.gather(1, label[:, None])[:, 0]


def route(a: Any, b: Any) -> tuple[Any, ...]:
    """The largest logit of each row, and its column."""
    value, index = (a @ b).max(1)
    return value, index


def quantise(a: Any, b: Any) -> tuple[Any, ...]:
    """e4m3 values, and a scale for every 128 columns of a row."""
    import torch

    x = (a @ b).float().unflatten(1, (-1, 128))
    amax = x.abs().amax(-1).clamp_min(1e-10)
    return (x * (448.0 / amax)[..., None]).flatten(1).to(torch.float8_e4m3fn), amax / 448.0


CAUSAL = Custom.of(lambda x, i, j, ops: ops.where(j <= i, x * 0.125, NEGATIVE_INFINITY))
PICKED = Custom.of(lambda x, i, j, ops, label: ops.where(ops.float(j) == label, x, 0.0), Given("label", "m", f32))
INVERSE_RMS = Reduction.of(
    lambda x, i, j, ops: x * x, lambda a, b, ops: a[0] + b[0], [0.0], lambda a, ops: ops.rsqrt(a[0] / WIDTH + 1e-6)
)
PROGRAMS: dict[str, Program] = {
    "attention statistics": Program(
        Epilogue(CAUSAL, RowReduce("softmax", "row"), stores_c=False), (8192, 8192, 128), attention,
        ("row_max", "row_log_sum_exp"),
    ),
    "rms norm": Program(
        Epilogue(Residual("bf16", beta=None), RowReduce(INVERSE_RMS, "inverse_rms")), (8192, WIDTH, 4096), rms_norm,
        (None, "inverse_rms"), "d",
    ),
    "cross-entropy": Program(
        Epilogue(RowReduce("log_sum_exp", "all"), PICKED, RowReduce("sum", "own"), stores_c=False),
        (4096, 128256, 4096), cross_entropy, ("all", "own"), "label",
    ),
    "router": Program(
        Epilogue(RowReduce("argmax", "best"), stores_c=False), (8192, 256, 7168), route, ("best_value", "best_index")
    ),
    "quantise": Program(Epilogue(Quantize()), (8192, 4096, 4096), quantise, (None, "scales")),
}  # fmt: skip


# Operands and results ---------------------------------------------------------------------------------------------


def type_of_c(epilogue: Epilogue) -> Any:
    """torch's type of C."""
    import torch

    return torch.float8_e4m3fn if epilogue.quantizes is not None else torch.bfloat16


def given_of(epilogue: Epilogue, sizes: tuple[int, ...], lead: tuple[int, ...] = (), where: str = "cuda") -> Any:
    """Tensors for the epilogue's operands and outputs by name; labels are columns."""
    import torch

    types = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i32": torch.int32}
    m, n = sizes[:2]
    made: dict[str, Any] = {}
    for x in epilogue.given:
        kind, shape = types[x.dtype.name], x.shape(m, n) or (1,)
        if x.written:
            made[x.name] = torch.full(shape, x.start, dtype=kind, device=where)
        elif x.name == "label":
            made[x.name] = torch.randint(n, shape, device=where).to(kind)
        else:
            made[x.name] = torch.randn(shape, device=where).to(kind)
        if lead and x.axes:
            made[x.name] = made[x.name].expand(*lead, *shape).clone()
    return made


def launch_of(a: Any, b: Any, epilogue: Epilogue, given: Mapping[str, Any], out: Any) -> Launch:
    """One call of `matmul`."""
    from layoutgemm import matmul

    return functools.partial(matmul, a, b, epilogue=epilogue, given=given, out=out, out_dtype=type_of_c(epilogue))


def distance(found: Any, expected: Any) -> float:
    """Error of an output: largest difference by the largest value, or the share of other indices."""
    import torch

    expected = torch.as_tensor(expected).reshape(found.shape).to(found.device)
    if found.dtype == torch.int32:
        return float((found != expected).double().mean())
    scale = float(expected.double().abs().max().clamp_min(1))
    return float((found.double() - expected.double()).abs().max()) / scale


def fault(epilogue: Epilogue, shape: tuple[int, int, int, int], where: str = "cuda") -> str:
    """The first wrong output of a product in three runs, or ""; shape: M, N, K and batch or 0."""
    import torch

    m, n, k, batch = shape
    lead = (batch,) if batch else ()
    torch.manual_seed(1)
    a = torch.randn(*lead, m, k, device=where).bfloat16()
    b = torch.randn(*lead, n, k, device=where).bfloat16().mT
    runs: list[dict[str, Any]] = []
    for _ in range(3):
        torch.manual_seed(2)
        given = given_of(epilogue, (m, n), lead, where)
        runs.append({**given, "c": launch_of(a, b, epilogue, given, None)()})
    read = {x.name: given[x.name].float().cpu().numpy() for x in epilogue.given if not x.written}
    want = epilogue.reference((a.double() @ b.double()).float().cpu().numpy(), **read)
    for name, value in want.written.items():
        # A tie of sums in another order may fall to another index.
        allowed = 2e-3 if runs[0][name].dtype == torch.int32 else 2e-5
        if not (off := distance(runs[0][name], value.copy())) <= allowed:
            return f"{name} is off by {off:.3g}"
        if all(step.ordered for step in epilogue.steps if isinstance(step, RowReduce)):
            if any(not torch.equal(run[name], runs[0][name]) for run in runs):
                return f"{name} has other bits in another run"
    if not epilogue.stores_c:
        return ""
    found, expected = runs[0]["c"].double().cpu(), torch.from_numpy(want.c.copy()).double()
    unit, least = (2.0**-3.9, 2.0**-9) if epilogue.quantizes is not None else (2.0**-7.9, 2.0**-6)
    off = float(((found - expected).abs() / (expected.abs() * unit + least)).max())
    return "" if off <= 1 else f"c is off by {off:.3g} times the bound"


# Times ------------------------------------------------------------------------------------------------------------


def times(device: CudaDevice, contenders: Mapping[str, Sequence[Launch]], rounds: int) -> dict[str, float]:
    """Microseconds of a launch of each contender."""
    replays = {}
    for name, launches in contenders.items():
        for launch in launches:
            launch()
        replays[name] = device.record(launches)
    samples = burst(device, replays, rounds, random.Random(0))
    return {name: round(statistics.median(x) / len(contenders[name]) * 1e6, 2) for name, x in samples.items()}


def costs(device: CudaDevice, size: int, rounds: int) -> dict[str, float]:
    """Microseconds of the plain product and of each reduction, M = N = K = size."""
    import torch

    from layoutgemm import matmul

    sets = device.operands(BenchProblem(size, size, size), 0)
    narrow = torch.empty(size, size, device="cuda", dtype=torch.float8_e4m3fn)
    contenders: dict[str, list[Launch]] = {"plain": [functools.partial(matmul, s.a, s.b.T, out=s.c) for s in sets]}
    for name, epilogue in CASES.items():
        given = given_of(epilogue, (size, size))
        outs = [None if not epilogue.stores_c else narrow if epilogue.quantizes is not None else s.c for s in sets]
        contenders[name] = [launch_of(s.a, s.b.T, epilogue, given, c) for s, c in zip(sets, outs, strict=True)]
    return times(device, contenders, rounds)


def program_fault(program: Program, a: Any, b: Any, given: Mapping[str, Any]) -> str:
    """The first output of a finished launch whose first rows differ from float64, or ""."""
    import torch

    rows = slice(0, CHECKED_ROWS)
    extra = [x[rows] for x in program.read(given)]
    for name, expected in zip(program.names, program.formula(a[rows].double(), b.double(), *extra), strict=True):
        if name is None:
            continue
        found = given[name][rows]
        allowed = 1 / CHECKED_ROWS if found.dtype == torch.int32 else 1e-4
        if not (off := distance(found, expected)) <= allowed:
            return f"{name} is off by {off:.3g}"
    return ""


def program_calls(program: Program, where: str = "cuda") -> tuple[dict[str, list[Launch]], str]:
    """(launches by name without those of torch.compile, the fault of ours or "")."""
    import torch

    from layoutgemm import matmul

    (m, n, k), epilogue = program.sizes, program.epilogue
    torch.manual_seed(0)
    scale = k**-0.5 if program.formula is not attention else 1.0
    mats = [
        (torch.randn(m, k, device=where).bfloat16(), (torch.randn(n, k, device=where) * scale).bfloat16().T)
        for _ in range(2 if n > 100000 else 4)
    ]
    given = given_of(epilogue, (m, n), where=where)
    out = torch.empty(m, n, device=where, dtype=type_of_c(epilogue)) if epilogue.stores_c else None
    calls: dict[str, list[Launch]] = {OURS: [launch_of(a, b, epilogue, given, out) for a, b in mats]}
    calls[OURS][0]()
    wrong = program_fault(program, *mats[0], given)
    extra = program.read(given)
    calls[EAGER] = [functools.partial(program.formula, a, b, *extra) for a, b in mats]
    calls[ALONE] = [functools.partial(matmul, a, b) for a, b in mats]
    return calls, wrong


def compiled_calls(program: Program, calls: dict[str, list[Launch]]) -> None:
    """Add the eager launches by torch.compile, in each mode that runs."""
    import torch

    for mode in MODES:
        made = torch.compile(program.formula, mode=mode, dynamic=False)
        eager = [call for call in calls[EAGER] if isinstance(call, functools.partial)]
        attempt(calls, f"torch.compile {mode}", [functools.partial(made, *call.args) for call in eager])


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong output, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, nargs="*", default=[4096, 8192], help="M = N = K of costs (%(default)s)")
    parser.add_argument("--programs", nargs="*", choices=tuple(PROGRAMS), default=tuple(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    import torch

    from layoutgemm.bench import machine

    device = CudaDevice()
    record: dict[str, Any] = {"machine": machine.facts(), "faults": {}, "costs": {}, "programs": {}}
    for name, epilogue in CASES.items():
        for shape in RAGGED:
            record["faults"][f"{name} {'x'.join(map(str, shape))}"] = fault(epilogue, shape)
        wrong = [case for case, said in record["faults"].items() if said and case.startswith(f"{name} ")]
        print(f"{name}: {'; '.join(wrong) or 'right'}", flush=True)
    for size in options.size:
        found = record["costs"][str(size)] = costs(device, size, options.rounds)
        print(f"{size}^3: plain {2 * size**3 / found['plain'] / 1e6:.0f} TFLOP/s", flush=True)
        for name, us in found.items():
            print(f"    {us / found['plain']:6.4f}  {name}", flush=True)
    for name in options.programs:
        calls, said = program_calls(PROGRAMS[name])
        compiled_calls(PROGRAMS[name], calls)
        record["faults"][name] = said
        timed = times(device, calls, options.rounds)
        record["programs"][name] = {"sizes": list(PROGRAMS[name].sizes), "us": timed}
        print(f"{name}: {said or 'right'}; " + ", ".join(f"{key} {x:.1f} us" for key, x in timed.items()), flush=True)
        del calls
        torch.cuda.empty_cache()
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if any(record["faults"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
