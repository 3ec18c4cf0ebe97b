"""Times triangular and symmetric products beside the full product, torch.mm and torch.compile.

    python benchmarks/bench_orders.py --json benchmarks/results/orders_h100.json     # on the GPU, some minutes

"lower" is the lower triangle of C = A @ B in the configuration that `layoutgemm.plan` chooses. "lower, 256x256" and
"upper, 256x256" have tiles of 128x256 in clusters of 2x1, as the full and the symmetric product have. In "A lower", A
is lower triangular. In "A and B lower" both are, and C is the lower triangle. "full, chosen" is the full product in the
configuration of `layoutgemm.plan`. torch computes every element.

All orders and triangular operands are first compared with float64 at ragged sizes: the stored elements, those that keep
their values, and a second run bit for bit. Times are bursts by `layoutgemm/bench/method.py`.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.timing import microseconds
from layoutgemm import Sm90Config, Sm90Plan
from layoutgemm import plan as plan_of
from layoutgemm.bench.method import BenchProblem, CudaDevice, Launch, Operands
from layoutgemm.kernels.orders import order_values, stored_elements
from layoutgemm.kernels.sm90.triangular.operands import Triangles
from layoutgemm.schedule import Banded, Linear, Rotated

SQUARE = Sm90Config((128, 256), cluster=(2, 1))
LOADER = Sm90Config((128, 256), cluster=(2, 1), loader="warpgroup")
RAGGED = ((264, 264, 72), (1000, 1000, 520), (1000, 3000, 264), (3000, 1000, 264))
FILL = 7.0  # of `out`, where no tile is stored


@dataclass(frozen=True)
class Case:
    """An order and triangular operands, in a configuration or in the chosen one."""

    order: Any = None
    config: Sm90Config | None = None
    triangles: Triangles | None = None
    rank: int | None = None

    def plan(self, m: int, n: int, k: int) -> Sm90Plan:
        """The plan of a product, B as (N, K)."""
        if self.config is None:
            chosen = plan_of(m, n, k, b="bf16:col", c="bf16", order=self.order)
            assert isinstance(chosen, Sm90Plan)
            return chosen
        more = {"order": self.order, "triangles": self.triangles}
        return Sm90Plan.derive(m, n, k, b="bf16:col", c="bf16", config=self.config, **more)

    @property
    def square(self) -> bool:
        """True if A and C have to be square."""
        return self.triangles is not None or self.order == "symmetric"


CHECKED = (
    Case("lower"), Case("upper"), Case("lower", SQUARE), Case("upper", LOADER),
    Case("symmetric"), Case("symmetric", SQUARE), Case("symmetric", LOADER),
    Case("hilbert", SQUARE), Case(Banded("M", 300, 0)), Case(Rotated(Linear("N"), ranks=8), SQUARE, rank=5),
    Case(lambda t, rows, columns: (rows - 1 - t % rows, t // rows), SQUARE),
    Case(None, LOADER, Triangles("lower")), Case(None, LOADER, Triangles("upper")),
    Case("lower", LOADER, Triangles("lower", "lower")), Case(None, LOADER, Triangles(b="lower")),
)  # fmt: skip
TIMED = {
    "full": Case(None, SQUARE),
    "full, chosen": Case(),
    "lower": Case("lower"),
    "lower, 256x256": Case("lower", SQUARE),
    "upper, 256x256": Case("upper", SQUARE),
    "symmetric": Case("symmetric", SQUARE),
    "A lower": Case(None, LOADER, Triangles("lower")),
    "A and B lower": Case("lower", LOADER, Triangles("lower", "lower")),
}


def checked_plans() -> list[tuple[Case, Sm90Plan]]:
    """The plans that are compared with float64: squares of A where the case needs them."""
    return [
        (case, case.plan(m, n, m if case.triangles is not None else k))
        for m, n, k in RAGGED
        for case in CHECKED
        if m == n or not case.square
    ]


def tile_of(plan: Sm90Plan) -> str:
    """A plan's tile and cluster.

    >>> tile_of(TIMED["full"].plan(512, 512, 64))
    '128x256, cluster 2x1'
    """
    tile, cluster = ("x".join(map(str, sizes)) for sizes in (plan.config.tile, plan.config.cluster))
    return f"{tile}, cluster {cluster}"


def operands(plan: Sm90Plan, a: Any, b: Any) -> tuple[Any, Any]:
    """A (M, K) and B (K, N) of a plan. Triangles are cut out, and a symmetric product has B = A^T.

    b  (N, K)
    """
    import torch

    cut: dict[str | None, Callable[[Any], Any]] = {None: lambda x: x, "lower": torch.tril, "upper": torch.triu}
    if plan.triangles is not None:
        a, b = cut[plan.triangles.a](a), cut[plan.triangles.b](b.T).T.contiguous()
    return a, (a if plan.mirror is not None else b).T


def fault(case: Case, plan: Sm90Plan, where: str = "cuda") -> str:
    """The first fault of a plan's C, in a full `out` and without one, or ""."""
    import torch

    torch.manual_seed(0)
    a, b = operands(plan, *(torch.randn(size, plan.k, device=where).bfloat16() for size in (plan.m, plan.n)))
    more: dict[str, Any] = {} if case.rank is None else {"given": {"rank": case.rank}}
    want = a.double() @ b.double()
    bound = 2.0**-8 * want.abs() + 2.0**-16 * (a.double().abs() @ b.double().abs())
    stored = stored_elements(plan, order_values(plan, more.get("given", {})))
    mask = torch.ones_like(want, dtype=torch.bool)
    if stored is not None:
        mask = torch.from_numpy(stored.copy()).to(where)
    for kept in (FILL, 0.0):
        out = torch.full_like(want, FILL, dtype=torch.bfloat16) if kept else None
        c = plan.run(a, b, out=out, **more).c.clone()
        if wrong := int((~((c.double() - want).abs() <= bound))[mask].sum()):
            return f"{wrong} elements are wrong"
        if touched := int((c[~mask] != kept).sum()):
            return f"{touched} elements that no tile stores have changed"
        if not torch.equal(plan.run(a, b, out=out, **more).c, c):
            return "a second run gave other bits"
    return ""


def ours(plan: Sm90Plan, sets: Sequence[Operands]) -> list[Launch]:
    """A launch for each operand set, on torch's current stream."""
    import torch

    from layoutgemm.kernels.compile.compiler import compile_plan
    from layoutgemm.kernels.run.epilogue_operands import words_of_tensors
    from layoutgemm.kernels.run.torch_tensors import launch_of

    words = words_of_tensors(plan, {}, torch.device("cuda", 0)) if plan.takes_extra_params else ()
    kernel = compile_plan(plan)

    def one(s: Operands) -> Launch:
        made = launch_of(plan, *operands(plan, s.a, s.b), s.c, True, words)  # keeps its operands alive
        return lambda: kernel.launch(*made.arguments, stream=torch.cuda.current_stream().cuda_stream)

    return [one(s) for s in sets]


def torch_calls(sets: Sequence[Operands]) -> dict[str, list[Launch]]:
    """torch's products by name."""
    import torch

    functions = {
        "torch.mm": torch.mm,
        "torch.compile a @ b": torch.compile(lambda a, b: a @ b),
        "torch.compile (a @ b).tril()": torch.compile(lambda a, b: (a @ b).tril()),
    }
    calls: dict[str, list[Launch]] = {
        name: [functools.partial(function, s.a, s.b.T) for s in sets] for name, function in functions.items()
    }
    return calls | {"torch.mm a, a.T": [functools.partial(torch.mm, s.a, s.a.T) for s in sets]}


def times(device: CudaDevice, size: int, plans: dict[str, Sm90Plan], rounds: int) -> dict[str, float]:
    """Microseconds of each contender, M = N = K = size."""
    problem = BenchProblem(size, size, size)
    sets = device.operands(problem, 0)
    calls = {name: ours(plan, sets) for name, plan in plans.items()} | torch_calls(sets)
    loops = {name: launches * (problem.launches // len(sets)) for name, launches in calls.items()}
    return microseconds(device, loops, rounds)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong C, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, nargs="*", default=[4096, 8192], help="M = N = K (%(default)s)")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    from layoutgemm.bench import machine
    from layoutgemm.kernels.compile.compiler import compile_plan

    checked = checked_plans()
    timed = {size: {name: case.plan(size, size, size) for name, case in TIMED.items()} for size in options.size}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(compile_plan, [plan for _, plan in checked] + [p for of in timed.values() for p in of.values()]))
    device = CudaDevice()
    record: dict[str, Any] = {"machine": machine.facts(), "faults": [], "sizes": {}, "checked": len(checked)}
    for case, plan in checked:
        if said := fault(case, plan):
            record["faults"].append(f"{plan}: {said}")
            print(f"WRONG {plan}: {said}", flush=True)
    print(f"{len(checked)} plans, {len(record['faults'])} wrong", flush=True)
    for size, plans in timed.items():
        us = times(device, size, plans, options.rounds)
        tiles = {name: tile_of(plan) for name, plan in plans.items()}
        record["sizes"][str(size)] = {"us": us, "tiles": tiles}
        for name, value in us.items():
            print(f"{size}: {name:30} {value:8.1f} us  {value / us['full']:.3f} of full", flush=True)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if record["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
