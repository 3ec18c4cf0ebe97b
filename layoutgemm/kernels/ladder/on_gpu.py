"""The ladder on a GPU, through torch. Each level is compared with float64, then timed with torch.mm, interleaved."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ...dtypes import f32
from ...errors import PlanError
from ..compile.compiler import dsl_version
from ..run.error_bound import rounded_error, sum_error
from ..run.torch_tensors import torch_type

if TYPE_CHECKING:
    import torch

    from .levels import Level

# How to measure: operands of several products in turn, more bytes in all than L2 holds; some milliseconds at a time,
# and three times as long idle in between, so that no contender finds the clock that another left; a new random order
# each round; the median.
ROTATING_BYTES = 240 << 20
SLOT_S = 6e-3
IDLE_SLOTS = 3
ROUNDS = 11
# Cycles that the GPU waits at the head of a slot while the host queues the launches: about half a millisecond.
HEAD_START = 1_000_000
SAMPLED_ROWS = 48


@dataclass(frozen=True)
class Timing:
    """One contender at one size.

    us      median of a launch; low and high: the fastest and the slowest round
    right   whether the result at this size was right, as far as rows were sampled
    ratio   to torch.mm: its time over this one's
    """

    us: float
    low: float
    high: float
    tflops: float
    ratio: float
    right: bool

    def __str__(self) -> str:
        verdict = "right" if self.right else "WRONG"
        return f"{verdict}, {self.tflops:.1f} TFLOP/s, {self.ratio:.3f} of torch.mm"


def operands(m: int, n: int, k: int, pitch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A (m, k) and B (n, k), random normal bf16 on the GPU. NaN in the pitch, which no kernel may multiply."""
    import torch

    made = []
    for rows in (m, n):
        whole = torch.full((rows, pitch), float("nan"), dtype=torch.bfloat16, device="cuda")
        whole[:, :k] = torch.randn(rows, k, device="cuda").to(torch.bfloat16)
        made.append(whole)
    return made[0], made[1]


def launcher(
    level: Level, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, m: int, n: int, k: int
) -> Callable[[], None]:
    """A function that launches the level's kernel on torch's current stream."""
    import torch

    compiled = level.compile()
    lda, ldb, ldc = level.leading(m, n, k)
    arguments = (a.data_ptr(), b.data_ptr(), c.data_ptr(), m, n, k, lda, ldb, ldc)

    def launch() -> None:
        compiled.launch(*arguments, stream=torch.cuda.current_stream().cuda_stream)

    return launch


def output(level: Level, m: int, n: int, k: int) -> torch.Tensor:
    """C with its pitch, NaN everywhere."""
    import torch

    kind = torch_type(level.c)
    return torch.full((m, level.leading(m, n, k)[2]), float("nan"), dtype=kind, device="cuda")


def share_of_bound(level: Level, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, k: int) -> float:
    """The largest error of C against float64, as a share of the bound. Infinite for a NaN.

    The bound is that of `run.error_bound`.
    """
    import torch

    a64, b64 = a.double(), b.double().T
    exact = a64 @ b64
    bound = sum_error(16, k) * (a64.abs() @ b64.abs())
    if level.c != f32:
        bound = rounded_error(bound, exact, level.c)
    share = ((c.double() - exact).abs() / bound.clamp_min(1e-300)).max()
    return float("inf") if bool(torch.isnan(share)) else float(share)


def check(level: Level, m: int, n: int, k: int) -> float:
    """Run the level on random operands; the largest error as a share of the bound.

    Raises PlanError for a larger error, for a write between the rows of C that is not the level's own
    (`Level.written`), and for a second run with other bits.
    """
    import torch

    torch.manual_seed(m + n + k)
    a, b = operands(m, n, k, level.leading(m, n, k)[0])
    results = []
    for _ in range(2):
        c = output(level, m, n, k)
        launcher(level, a, b, c, m, n, k)()
        torch.cuda.synchronize()
        results.append(c)
    share = share_of_bound(level, a[:, :k], b[:, :k], results[0][:, :n], k)
    if not share <= 1:
        raise PlanError(f"{m}x{n}x{k} on {torch.cuda.get_device_name()}: an error of {share:.3g} times the bound")
    own = level.written(n)
    if not bool(torch.isnan(results[0][:, own:]).all()):
        beyond = f"N, and {own - n} of its pitch," if own > n else "N"
        raise PlanError(f"{m}x{n}x{k}: elements beyond {beyond} were written")
    if not torch.equal(results[0][:, :n], results[1][:, :n]):
        raise PlanError(f"{m}x{n}x{k}: a second run gives other bits")
    return share


def check_rows(level: Level, size: int) -> float:
    """Run the level at size^3 and look at some rows of C. The largest error as a share of the bound.

    Raises PlanError where an element is further off.
    """
    a, b = operands(size, size, size, level.leading(size, size, size)[0])
    c = output(level, size, size, size)
    launcher(level, a, b, c, size, size, size)()
    share = _share_in_rows(level, a[:, :size], b[:, :size], c[:, :size], size)
    if not share <= 1:
        raise PlanError(f"{size}^3: an error of {share:.3g} times the bound")
    return share


def _share_in_rows(level: Level, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, k: int) -> float:
    import torch

    rows = torch.randint(0, c.shape[0], (SAMPLED_ROWS,), device=c.device)
    return share_of_bound(level, a[rows], b, c[rows], k)


def time_levels(levels: Sequence[Level], size: int, rounds: int = ROUNDS) -> list[Timing]:
    """The levels at size^3, interleaved with each other and with torch.mm in random order. Torch.mm's is the last."""
    import torch

    flops = 2 * size**3
    pitches = {level.leading(size, size, size)[:2] for level in levels}
    if pitches != {(size, size)}:
        raise PlanError(f"{size}: a size to time is a multiple of 8")
    each = 2 * size * size * 2
    sets = [operands(size, size, size, size) for _ in range(max(2, -(-ROTATING_BYTES // each)))]
    # One output a type: it is written in full by every launch, and its lines are of no use to the next.
    outputs = {level.c.name: output(level, size, size, size) for level in levels}
    library = torch.empty((size, size), dtype=torch.bfloat16, device="cuda")
    calls: list[list[Callable[[], Any]]] = [
        [launcher(level, a, b, outputs[level.c.name], size, size, size) for a, b in sets] for level in levels
    ]
    calls.append([partial(torch.mm, a, b.T, out=library) for a, b in sets])

    right = []
    for level, launches in zip(levels, calls):
        outputs[level.c.name].fill_(float("nan"))
        launches[0]()
        right.append(_share_in_rows(level, *sets[0], outputs[level.c.name], size) <= 1)
    right.append(True)

    counts = []
    for launches in calls:  # warm, and find how many launches fill a slot
        _slot(launches, 2)
        counts.append(max(1, min(64, round(SLOT_S / (_slot(launches, 2) / 2)))))
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for index in random.sample(range(len(calls)), len(calls)):
            seconds = _slot(calls[index], counts[index])
            found[index].append(seconds / counts[index])
            time.sleep(IDLE_SLOTS * seconds)
    library_s = statistics.median(found[-1])
    rows_out = []
    for times, ok in zip(found, right):
        middle = statistics.median(times)
        rows_out.append(
            Timing(middle * 1e6, min(times) * 1e6, max(times) * 1e6, flops / middle / 1e12, library_s / middle, ok)
        )
    return rows_out


def _slot(launches: Sequence[Callable[[], None]], count: int) -> float:
    """Seconds that `count` launches take, over the operand sets in turn."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(HEAD_START)  # the launches are queued by the time it is over
    start.record()
    for i in range(count):
        launches[i % len(launches)]()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def facts() -> dict[str, object]:
    """The machine and the versions, for a table of results."""
    import subprocess

    import torch

    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        driver = "unknown"
    return {
        "gpu": torch.cuda.get_device_name(),
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
        "driver": driver,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "dsl": dsl_version(),
        "date": time.strftime("%Y-%m-%d"),
    }
