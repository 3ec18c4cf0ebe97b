"""Our kernels as contenders."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from layoutgemm.bench.contenders import each
from layoutgemm.bench.method import BenchProblem, Contender, Launch, Operands
from layoutgemm.bench.outcome import OURS
from layoutgemm.kernels.run.occupancy import resident
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice, choose
from layoutgemm.kernels.sm90.plan import Sm90Plan

NAME = "layoutgemm"


def ours(problem: BenchProblem, callables: dict[str, str] | None = None) -> list[Contender]:
    """The production kernel in its heuristic's configuration, or callables that are imported late."""
    if callables is not None:
        return [Contender(name, _prepare(where), OURS) for name, where in callables.items()]
    choice, reason = choose(problem.m, problem.n, problem.k, b_major="K" if problem.b_major == "k" else "MN")
    return [production(problem, choice, NAME, reason)]


def production(problem: BenchProblem, choice: Sm90Choice, name: str, note: str = "") -> Contender:
    """The production kernel with a configuration, compiled late."""

    def prepare(sets: Sequence[Operands]) -> list[Launch]:
        plan = choice.plan(problem.m, problem.n, problem.k, b="bf16:col" if problem.b_major == "k" else "bf16:row")
        return launches(plan.compile().launch, choice, plan.cluster_size, problem, sets)

    return Contender(name, prepare, OURS, note)


def launcher(plan: Sm90Plan, choice: Sm90Choice | None = None) -> Callable[..., None]:
    """launch(a, b, c, *words) of a plan, B as (N, K), on torch's stream."""
    import torch

    own = choice or Sm90Choice(plan.config)
    m, n = (plan.n, plan.m) if own.swapped else (plan.m, plan.n)
    compiled = plan.compile()
    workers = resident(torch.cuda.current_device(), plan.cluster_size)

    def launch(a: Any, b: Any, c: Any, *words: int) -> None:
        pointers, leading = [x.data_ptr() for x in (a, b, c)], [x.stride(0) for x in (a, b, c)]
        arguments = own.arguments(pointers, (m, n, plan.k, 1), leading, (0, 0, 0), workers)
        compiled.launch(*arguments, *words, stream=torch.cuda.current_stream().cuda_stream)

    return launch


def launches(
    launch: Callable[..., object], choice: Sm90Choice, cluster: int, problem: BenchProblem, sets: Sequence[Operands]
) -> list[Launch]:
    """One launch per operand set on torch's current stream; `launch(*arguments, stream=...)`."""
    import torch

    workers = resident(torch.cuda.current_device(), cluster)

    def one(operands: Operands) -> Launch:
        a, b, c = operands
        ldb = b.stride(0) if problem.b_major == "k" else b.stride(1)
        arguments = choice.arguments(
            [x.data_ptr() for x in (a, b, c)], (problem.m, problem.n, problem.k, 1),
            (a.stride(0), ldb, c.stride(0)), (0, 0, 0), workers,
        )  # fmt: skip
        return lambda: launch(*arguments, stream=torch.cuda.current_stream().cuda_stream)

    return [one(operands) for operands in sets]


def _prepare(where: str) -> Callable[[Sequence[Operands]], Sequence[Launch]]:
    return lambda sets: each(resolve(where))(sets)


def resolve(where: str) -> Callable[[Any, Any, Any], object]:
    """The object named "module:attribute".

    >>> resolve("math:hypot")(3.0, 4.0)
    5.0
    """
    module, _, attribute = where.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found
