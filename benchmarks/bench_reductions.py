"""Times reductions in epilogues, each beside the plain product.

    python benchmarks/bench_reductions.py --json benchmarks/results/reductions_h100.json     # on the GPU, some minutes

`costs`: a bf16 product M = N = K with each reduction, relative to the product without one. C is stored unless the name
says "no C".

Outputs are first compared with float64 at ragged sizes, in three runs, bit for bit if they are ordered. Times are
bursts by `layoutgemm/bench/method.py`. A graph has a launch for each operand set in rotation. bench_programs.py has
whole programs.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.timing import microseconds
from layoutgemm.bench.method import BenchProblem, CudaDevice, Launch
from layoutgemm.kernels.epilogue.chain import (
    Amax,
    Bias,
    ColumnReduce,
    Epilogue,
    Quantize,
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
    """Error of an output. It is the largest difference by the largest value, or the share of other indices."""
    import torch

    expected = torch.as_tensor(expected).reshape(found.shape).to(found.device)
    if found.dtype == torch.int32:
        return float((found != expected).double().mean())
    scale = float(expected.double().abs().max().clamp_min(1))
    return float((found.double() - expected.double()).abs().max()) / scale


def fault(epilogue: Epilogue, shape: tuple[int, int, int, int], where: str = "cuda") -> str:
    """The first wrong output of a product in three runs, or "". The shape is M, N, K and batch or 0."""
    import torch

    m, n, k, batch = shape
    lead = (batch,) if batch else ()
    torch.manual_seed(1)
    a = torch.randn(*lead, m, k, device=where).bfloat16()
    b = torch.randn(*lead, n, k, device=where).bfloat16().mT
    runs: list[dict[str, Any]] = []
    given: dict[str, Any] = {}
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
    return microseconds(device, contenders, rounds)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong output, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, nargs="*", default=[4096, 8192], help="M = N = K of costs (%(default)s)")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    from layoutgemm.bench import machine

    device = CudaDevice()
    record: dict[str, Any] = {"machine": machine.facts(), "faults": {}, "costs": {}}
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
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if any(record["faults"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
