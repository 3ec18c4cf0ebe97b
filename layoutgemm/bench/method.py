"""Measure GEMM kernels on a GPU. Contenders, checked first, then timed in bursts and at sustained load.

A GPU of this class is limited by power: earlier work changes the clock of later work. Data of zeros draws less power,
and operands that fit in L2 skip DRAM. So:

- Every contender runs over the same sets of random normal operands, more than 240 MB in all, one set after the other.
- Each is checked before it is timed, against a float64 product within `error_bound`.
- Each is also checked bit for bit against a second run and the timed run.
- One CUDA graph of about 5 ms is timed for each contender, between two events.
- **burst**: each round runs every contender once, in random order, then idles three times the contender's time.
  The figure is the median of the rounds, the spread their median absolute deviation.
- **sustained**: one contender runs alone for 0.8 s, of which the second half counts, in random order as well.

    >>> p = BenchProblem(4096, 14336, 4096)
    >>> p.sets, p.launches, round(p.tflops(600e-6), 1), round(p.gbs(600e-6))
    (1, 8, 801.7, 447)

Kernels launched with programmatic dependent launch are captured back to back like the others: the graph keeps the edge.
Nothing here imports torch before a `CudaDevice` is made or operands are checked.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..errors import OperandError

if TYPE_CHECKING:
    import torch

ROTATION_BYTES = 240e6  # operands in rotation: four times the L2 of an H200, which holds 60 MB
GRAPH_SECONDS = 5e-3

Launch = Callable[[], object]
Replay = Callable[[], object]


class Operands(NamedTuple):
    """One set of torch tensors. A is (M, K), b is (N, K), c is (M, N), and C = A @ B^T."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor


@dataclass(frozen=True)
class BenchProblem:
    """C = A @ B^T in bf16. A is M x K and C M x N, rows contiguous; B is N x K with K or N contiguous (b_major)."""

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
        """Floating-point operations: multiplications and additions."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """The least traffic, in bytes: A and B read once, C written once."""
        return 2 * (self.m * self.k + self.n * self.k + self.m * self.n)

    @property
    def sets(self) -> int:
        """Operand sets in rotation: the fewest that hold more than 240 MB."""
        return math.floor(ROTATION_BYTES / self.bytes) + 1

    @property
    def launches(self) -> int:
        """Launches per graph. About 5 ms by a rough model of an H200, every set equally often."""
        expected = max(self.flops / 750e12, self.bytes / 4.2e12) + 2e-6
        return self.sets * max(1, round(GRAPH_SECONDS / expected / self.sets))

    def tflops(self, seconds: float) -> float:
        """TFLOP/s of one product that takes `seconds`."""
        return self.flops / seconds / 1e12

    def gbs(self, seconds: float) -> float:
        """GB/s of one product that takes `seconds`, of the least traffic."""
        return self.bytes / seconds / 1e9


@dataclass(frozen=True)
class Contender:
    """A kernel to measure.

    prepare  takes the operand sets; gives one launch for each, which writes that set's C on torch's current stream
    family   whose kernels these are: a comparison keeps the best of a family
    note     what is worth knowing beside the name: a configuration, an algorithm
    """

    name: str
    prepare: Callable[[Sequence[Operands]], Sequence[Launch]]
    family: str = ""
    note: str = ""


class ClockAndPower(NamedTuple):
    """The mean SM clock (MHz) and power (W) during a run; None if unreadable."""

    clock_mhz: float | None
    power_w: float | None


class Device(Protocol):
    """A device that runs contenders: a GPU, or in tests a model of one."""

    def operands(self, problem: BenchProblem, seed: int) -> list[Operands]:
        """problem.sets sets of random normal operands."""

    def record(self, launches: Sequence[Launch]) -> Replay:
        """A recording of these launches, which a replay repeats in order."""

    def seconds(self, replay: Replay, times: int = 1) -> float:
        """Seconds of `times` replays back to back, on the device's clock; waits for their end."""

    def idle(self, seconds: float) -> None:
        """Leave the device idle."""

    def settle(self) -> None:
        """Wait until all work is done; raise if an earlier launch has broken the device."""

    def watched(self, run: Callable[[], float]) -> tuple[float, ClockAndPower]:
        """The result of `run`, and the clock and power meanwhile."""


# Correctness --------------------------------------------------------------------------------------------------------


class Accuracy(NamedTuple):
    """Errors of C against float64: largest share of the bound, relative RMS, bitwise repeatability."""

    worst: float
    rms: float
    repeats: bool

    @property
    def fault(self) -> str:
        """The reason why C fails, or "". NaN never passes."""
        if not self.worst <= 1.0:
            return f"wrong: an element of C is off by {self.worst:.3g} times the bound"
        if not self.rms <= RMS_BOUND:
            return f"wrong: relative error {self.rms:.2e} in the root mean square, more than {RMS_BOUND:.0e}"
        return "" if self.repeats else "a second run gave other bits"


RMS_BOUND = 4e-3


def error_bound(exact: torch.Tensor, k: int) -> torch.Tensor:
    """Allowed error of each bf16 element of C against the float64 product.

    The operands are standard normal. The bound is 2**-8 |exact| for the rounding to bf16, plus 2**-7 sqrt(K), about a
    hundredth of an element's standard deviation. f32 accumulation stays far below it, and libraries that round split-K
    partial sums to bf16 pass. A lost 64-element block of K leaves sqrt(64) = 8, which fails everywhere. `RMS_BOUND`
    covers the whole of C (rounding once to bf16 leaves 1.7e-3).
    """
    return exact.abs() * 2.0**-8 + 2.0**-7 * math.sqrt(k)


def references(sets: Sequence[Operands]) -> list[torch.Tensor]:
    """The float64 product of every set."""
    return [s.a.double() @ s.b.double().T for s in sets]


def run_and_check(
    sets: Sequence[Operands], launches: Sequence[Launch], exact: Sequence[torch.Tensor]
) -> tuple[Accuracy, list[torch.Tensor]]:
    """Run every launch twice over a C of NaN. Return the accuracy over all sets, and C's bits."""
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
    return Accuracy(worst, math.sqrt(error / scale), repeats), first


def bits_of(sets: Sequence[Operands], launches: Sequence[Launch]) -> list[torch.Tensor]:
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
    """Seconds of each replay in each round. Contenders are shuffled in each round, with an idle gap after each."""
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
) -> dict[str, list[tuple[float, ClockAndPower]]]:
    """Seconds of a replay, and the load, in each round of sustained work. One contender runs alone for `length`; its
    second half counts.

    Each replay comes with its burst time, which gives the number of replays.
    """
    samples: dict[str, list[tuple[float, ClockAndPower]]] = {name: [] for name in replays}
    for _ in range(rounds):
        order = list(replays)
        rng.shuffle(order)
        for name in order:
            replay, estimate = replays[name]
            times = max(1, math.ceil(length / 2 / estimate))
            device.seconds(replay, times)
            elapsed, load = device.watched(functools.partial(device.seconds, replay, times))
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
    """torch's current GPU, on a stream of its own, which becomes the current one.

    sampler  called over and over while a sustained load runs; gives the SM clock in MHz and the power in W
    """

    def __init__(self, sampler: Callable[[], tuple[float, float]] | None = None) -> None:
        import torch

        self.torch = torch
        self.sampler = sampler
        torch.cuda.set_stream(torch.cuda.Stream())

    def operands(self, problem: BenchProblem, seed: int) -> list[Operands]:
        """Tensors of random normal values from a generator with that seed."""
        torch = self.torch
        generator = torch.Generator(device="cuda").manual_seed(seed)

        normal = functools.partial(torch.randn, dtype=torch.bfloat16, device="cuda", generator=generator)

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
        """Capture a CUDA graph, without torch's context manager, which empties the allocator's cache each time."""
        graph = self.torch.cuda.CUDAGraph()
        self.torch.cuda.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for launch in launches:
                launch()
        except BaseException:
            with suppress(Exception):  # this error only repeats an earlier one
                graph.capture_end()
            raise
        graph.capture_end()
        return graph.replay

    def seconds(self, replay: Replay, times: int = 1) -> float:
        """Seconds between two events. A short spin lets the host queue the first graph before the clock starts."""
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

    def watched(self, run: Callable[[], float]) -> tuple[float, ClockAndPower]:
        """Run, sampling in a thread every 50 ms meanwhile."""
        import threading

        sampler = self.sampler
        if sampler is None:
            return run(), ClockAndPower(None, None)
        samples: list[tuple[float, float]] = []
        stop = threading.Event()

        def poll() -> None:
            with suppress(Exception):  # one reading is lost; the measurement stays
                while not stop.wait(0.05):
                    samples.append(sampler())

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        try:
            elapsed = run()
        finally:
            stop.set()
            thread.join()
        if not samples:
            return elapsed, ClockAndPower(None, None)
        return elapsed, ClockAndPower(statistics.mean(s[0] for s in samples), statistics.mean(s[1] for s in samples))
