"""A device for benchmarks without a GPU: the CPU computes, and time is what each launch says it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from layoutgemm.bench.method import BenchProblem, ClockAndPower, Contender, Launch, Operands, Replay


class ModelDevice:
    """Keeps a log of what was timed and how long it idled; sustained work runs `throttle` times slower."""

    def __init__(self, throttle: float = 1.0) -> None:
        self.now, self.throttle, self.dead = 0.0, throttle, False
        self.log: list[tuple[str, Any]] = []

    def operands(self, problem: BenchProblem, seed: int) -> list[Operands]:
        generator = torch.Generator().manual_seed(seed)

        def normal(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, generator=generator).to(torch.bfloat16)

        m, n, k = problem.m, problem.n, problem.k
        one = [
            Operands(normal(m, k), normal(n, k), torch.empty(m, n, dtype=torch.bfloat16))
            for _ in range(min(2, problem.sets))
        ]
        return one

    def record(self, launches: Sequence[Launch]) -> Replay:
        def replay() -> None:
            for launch in launches:
                launch()

        return replay

    def seconds(self, replay: Replay, times: int = 1) -> float:
        before = self.now
        replay()
        elapsed = max(self.now - before, 1e-6) * times * (self.throttle if times > 1 else 1.0)
        self.now = before + elapsed
        self.log.append(("run", (replay, times)))
        return elapsed

    def idle(self, seconds: float) -> None:
        self.now += seconds
        self.log.append(("idle", seconds))

    def settle(self) -> None:
        if self.dead:
            raise RuntimeError("illegal memory access")

    def watched(self, run: Callable[[], float]) -> tuple[float, ClockAndPower]:
        return run(), ClockAndPower(1500.0, 650.0)


_KNOWN: dict[Any, Any] = {}  # what was multiplied -> the product, with its operands, so that their memory is not reused
_MOST = 8


def product(a: Any, b: Any, c: Any) -> None:
    """C = A @ B^T, rounded once. Launches of the same operands are many: what they give is computed for the first."""
    key = tuple([(x.data_ptr(), x._version, x.dtype, x.shape, x.stride()) for x in (a, b)])
    if key not in _KNOWN:
        if len(_KNOWN) >= _MOST:
            _KNOWN.clear()
        _KNOWN[key] = a, b, (a.float() @ b.float().T).to(c.dtype)
    c.copy_(_KNOWN[key][2])


def timed(device: ModelDevice, name: str, cost: float, family: str = "", work: Any = None) -> Contender:
    """A contender that computes C (or does `work`) and takes `cost` seconds a launch."""

    def launch(a: Any, b: Any, c: Any) -> None:
        device.now += cost
        (work or product)(a, b, c)

    return Contender(name, lambda sets: [lambda s=s: launch(*s) for s in sets], family or name)
