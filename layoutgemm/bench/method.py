"""Measure GEMM kernels on a GPU: contenders, checked first, then timed in bursts and at sustained load.

A GPU of this class is limited by power: what ran before changes the clock of what runs now, data of zeros draws less
of it, and operands that fit in L2 skip DRAM. So:

- every contender runs over the same sets of random normal operands, more than 240 MB in all, one set after the other;
- it is checked before it is timed: against a float64 product within `error_bound`, and to the bit on a second run
  and on the run that is timed;
- what is timed is one CUDA graph of about 5 ms for each contender, between two events;
- **burst**: in each round every contender once, in an order drawn anew, an idle gap of three times its time after it;
  the figure is the median of the rounds, the spread their median absolute deviation;
- **sustained**: one contender alone for 0.8 s, of which the second half counts, rounds drawn anew likewise.

    >>> p = Problem(4096, 14336, 4096)
    >>> p.sets, p.launches, round(p.tflops(600e-6), 1), round(p.gbs(600e-6))
    (1, 8, 801.7, 447)

Kernels launched with programmatic dependent launch are captured back to back like the others: the graph keeps the edge.
Nothing here imports torch before a `CudaDevice` is made or operands are checked.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ..errors import OperandError

ROTATION_BYTES = 240e6  # operands in rotation: four times the L2 of an H200, which holds 60 MB
GRAPH_SECONDS = 5e-3

Launch = Callable[[], object]
Replay = Callable[[], object]


class Operands(NamedTuple):
    """One set of torch tensors: a is (M, K), b is (N, K), c is (M, N), and C = A @ B^T."""

    a: Any
    b: Any
    c: Any


@dataclass(frozen=True)
class Problem:
    """C = A @ B^T in bf16: A is M x K and C M x N, rows contiguous; B is N x K with K or N contiguous (b_major)."""

    m: int
    n: int
    k: int
    b_major: str = "k"

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 1 or self.b_major not in ("k", "n"):
            raise OperandError(f"sizes must be positive and b_major 'k' or 'n'; got {self}")

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}" + ("" if self.b_major == "k" else " B n-major")

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """What must move at least: A and B read once, C written once, 2 bytes an element."""
        return 2 * (self.m * self.k + self.n * self.k + self.m * self.n)

    @property
    def sets(self) -> int:
        """Operand sets in rotation: the fewest that hold more than 240 MB."""
        return math.floor(ROTATION_BYTES / self.bytes) + 1

    @property
    def launches(self) -> int:
        """Launches a graph: about 5 ms by a rough model of an H200 (only the graph's length hangs on it), every set
        equally often."""
        expected = max(self.flops / 750e12, self.bytes / 4.2e12) + 2e-6
        return self.sets * max(1, round(GRAPH_SECONDS / expected / self.sets))

    def tflops(self, seconds: float) -> float:
        """Rate of arithmetic of one product in that time, in TFLOP/s."""
        return self.flops / seconds / 1e12

    def gbs(self, seconds: float) -> float:
        """Rate of the bytes that must move, in GB/s."""
        return self.bytes / seconds / 1e9


@dataclass(frozen=True)
class Contender:
    """A kernel to be measured.

    prepare  takes the operand sets; gives one launch for each, which writes that set's C on torch's current stream
    family   whose kernels these are: a comparison keeps the best of a family
    note     what is worth knowing beside the name: a configuration, an algorithm
    """

    name: str
    prepare: Callable[[Sequence[Operands]], Sequence[Launch]]
    family: str = ""
    note: str = ""


class Load(NamedTuple):
    """What the GPU reported while it ran: mean SM clock in MHz and power in W, None where it could not be read."""

    clock_mhz: float | None
    power_w: float | None


class Device(Protocol):
    """Where contenders run: a GPU, or in tests a model of one."""

    def operands(self, problem: Problem, seed: int) -> list[Operands]:
        """problem.sets sets of random normal operands."""

    def record(self, launches: Sequence[Launch]) -> Replay:
        """One unit of work that repeats these launches in order."""

    def seconds(self, replay: Replay, times: int = 1) -> float:
        """Time of that many replays back to back, on the device's own clock; waits for their end."""

    def idle(self, seconds: float) -> None:
        """Leave the device idle."""

    def settle(self) -> None:
        """Wait until all work is done; raises when an earlier launch has broken the device."""

    def watched(self, run: Callable[[], float]) -> tuple[float, Load]:
        """Run, and what the device reported meanwhile."""


# Correctness --------------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """How C differs from the float64 product: worst share of the bound, relative root mean square, same bits again."""

    worst: float
    rms: float
    repeats: bool

    @property
    def fault(self) -> str:
        """Why it does not pass, or an empty text. NaN never passes."""
        if not self.worst <= 1.0:
            return f"wrong: an element of C is off by {self.worst:.3g} times the bound"
        if not self.rms <= RMS_BOUND:
            return f"wrong: relative error {self.rms:.2e} in the root mean square, more than {RMS_BOUND:.0e}"
        return "" if self.repeats else "a second run gave other bits"


RMS_BOUND = 4e-3


def error_bound(exact: Any, k: int) -> Any:
    """How far an element of a bf16 C may be from the float64 product of standard normal operands.

    2**-8 |exact| for the rounding to bf16, and 2**-7 sqrt(K), about a hundredth of an element's standard deviation: f32
    accumulation stays far below it, and it admits libraries that round the partial sums of a split K to bf16. A lost
    64-element block of K leaves sqrt(64) = 8, which passes nowhere; `RMS_BOUND` holds the whole of C (rounding once to
    bf16 leaves 1.7e-3).
    """
    return exact.abs() * 2.0**-8 + 2.0**-7 * math.sqrt(k)


def references(sets: Sequence[Operands]) -> list[Any]:
    """The float64 product of every set."""
    return [s.a.double() @ s.b.double().T for s in sets]


def run_and_check(sets: Sequence[Operands], launches: Sequence[Launch], exact: Sequence[Any]) -> tuple[Verdict, Any]:
    """Run every launch twice over a C of NaN; the verdict over all sets, and the bits of each C."""
    import torch

    if len(launches) != len(sets):
        raise OperandError(f"prepare gave {len(launches)} launches for {len(sets)} operand sets")
    first, again = (bits_of(sets, launches) for _ in range(2))
    worst, error, scale = 0.0, 0.0, 0.0
    for s, want in zip(sets, exact, strict=True):
        off = (s.c.double() - want).abs()
        here = float((off / error_bound(want, s.a.shape[1])).max())
        worst = here if not here <= worst else worst  # keeps NaN
        error, scale = error + float(off.square().sum()), scale + float(want.square().sum())
    repeats = all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    return Verdict(worst, math.sqrt(error / scale), repeats), first


def bits_of(sets: Sequence[Operands], launches: Sequence[Launch]) -> list[Any]:
    """The bits of every C, each filled with NaN before the launches."""
    import torch

    for s in sets:
        s.c.fill_(math.nan)
    for launch in launches:
        launch()
    return [s.c.view(torch.int16).clone() for s in sets]


# Timing -------------------------------------------------------------------------------------------------------------


def burst(
    device: Device, replays: Mapping[str, Replay], rounds: int, rng: random.Random, gap: float = 3.0
) -> dict[str, list[float]]:
    """Seconds of each replay in each round: contenders shuffled anew each round, an idle gap after each."""
    for replay in replays.values():
        device.seconds(replay)  # the first replay of a graph also uploads it
    samples: dict[str, list[float]] = {name: [] for name in replays}
    for _ in range(rounds):
        order = list(replays)
        rng.shuffle(order)
        for name in order:
            samples[name].append(device.seconds(replays[name]))
            device.idle(gap * samples[name][-1])
    return samples


def sustained(
    device: Device, replays: Mapping[str, tuple[Replay, float]], rounds: int, rng: random.Random, length: float = 0.8
) -> dict[str, list[tuple[float, Load]]]:
    """Seconds of a replay, and the load, in each round: one contender alone for `length`, its second half counted.

    Each replay is given with its time in bursts, from which the number of replays follows.
    """
    samples: dict[str, list[tuple[float, Load]]] = {name: [] for name in replays}
    for _ in range(rounds):
        order = list(replays)
        rng.shuffle(order)
        for name in order:
            replay, estimate = replays[name]
            times = max(1, math.ceil(length / 2 / estimate))
            device.seconds(replay, times)
            elapsed, load = device.watched(lambda replay=replay, times=times: device.seconds(replay, times))  # type: ignore[misc]
            samples[name].append((elapsed / times, load))
    return samples


def spread(samples: Sequence[float]) -> float:
    """Median absolute deviation.

    >>> spread([1.0, 1.1, 0.9, 5.0, 1.0])
    0.1
    """
    middle = statistics.median(samples)
    return round(statistics.median(abs(x - middle) for x in samples), 12)


# The GPU ------------------------------------------------------------------------------------------------------------


class CudaDevice:
    """torch's current GPU, on a stream of its own, which it makes the current one.

    sampler  called over and over while a sustained load runs; gives the SM clock in MHz and the power in W
    """

    def __init__(self, sampler: Callable[[], tuple[float, float]] | None = None) -> None:
        import torch

        self.torch = torch
        self.sampler = sampler
        torch.cuda.set_stream(torch.cuda.Stream())

    def operands(self, problem: Problem, seed: int) -> list[Operands]:
        """Tensors of random normal values from a generator with that seed."""
        torch = self.torch
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def normal(rows: int, columns: int) -> Any:
            return torch.randn(rows, columns, dtype=torch.bfloat16, device="cuda", generator=generator)

        m, n, k = problem.m, problem.n, problem.k
        return [
            Operands(
                normal(m, k),
                normal(n, k) if problem.b_major == "k" else normal(k, n).T,
                torch.empty(m, n, dtype=torch.bfloat16, device="cuda"),
            )
            for _ in range(problem.sets)
        ]

    def record(self, launches: Sequence[Launch]) -> Replay:
        """A CUDA graph. Captured without torch's context manager, which empties the allocator's cache each time."""
        graph = self.torch.cuda.CUDAGraph()
        self.torch.cuda.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for launch in launches:
                launch()
        except BaseException:
            with suppress(Exception):  # says only that an error came before
                graph.capture_end()
            raise
        graph.capture_end()
        return graph.replay

    def seconds(self, replay: Replay, times: int = 1) -> float:
        """Time between two events. A short spin lets the host queue the first graph before the clock starts."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda._sleep(1_000_000)  # half a millisecond
        start.record()
        for _ in range(times):
            replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def idle(self, seconds: float) -> None:
        """Sleep on the host: everything queued has ended."""
        time.sleep(seconds)

    def settle(self) -> None:
        """Synchronize."""
        self.torch.cuda.synchronize()

    def watched(self, run: Callable[[], float]) -> tuple[float, Load]:
        """Run, sampling in a thread every 50 ms meanwhile."""
        import threading

        if self.sampler is None:
            return run(), Load(None, None)
        samples: list[tuple[float, float]] = []
        stop = threading.Event()

        def poll() -> None:
            with suppress(Exception):  # a figure less, no reason to lose the measurement
                while not stop.wait(0.05):
                    samples.append(self.sampler())  # type: ignore[misc]

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        try:
            elapsed = run()
        finally:
            stop.set()
            thread.join()
        if not samples:
            return elapsed, Load(None, None)
        return elapsed, Load(statistics.mean(s[0] for s in samples), statistics.mean(s[1] for s in samples))
