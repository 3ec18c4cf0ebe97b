"""The measuring method: arithmetic of a problem, order and gaps of bursts, what sustained load counts, the checks."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from typing import Any

import pytest

from layoutgemm.bench import method as bench
from layoutgemm.bench.method import BenchProblem, ClockAndPower, Operands, burst, sustained
from layoutgemm.errors import OperandError
from tests import needs

torch = needs.module("torch")


# Problems -------------------------------------------------------------------------------------------------------------


def test_flops_and_bytes_are_those_of_the_definition() -> None:
    p = BenchProblem(512, 14336, 4096)
    assert p.flops == 2 * 512 * 14336 * 4096
    assert p.bytes == 2 * (512 * 4096 + 14336 * 4096 + 512 * 14336)
    assert p.tflops(1e-3) == pytest.approx(60.1295, abs=1e-4)
    assert p.gbs(1e-3) == pytest.approx(136.3, abs=0.1)
    assert BenchProblem(8192, 8192, 8192).tflops(1.0) == pytest.approx(1.099511627776)


SIZES = [(1024, 1024, 1024), (4096, 4096, 4096), (16384, 16384, 16384), (16, 4096, 4096), (64, 28672, 4096), (3, 5, 7)]


@pytest.mark.parametrize("sizes", SIZES)
def test_sets_rotate_through_more_than_240_mb_and_evenly(sizes: tuple[int, int, int]) -> None:
    p = BenchProblem(*sizes)
    assert p.sets * p.bytes > 240e6
    assert p.sets == 1 or (p.sets - 1) * p.bytes <= 240e6
    assert p.launches % p.sets == 0 and p.launches >= p.sets


@pytest.mark.parametrize(
    ("sizes", "us"), [((1024,) * 3, 6.7), ((2048,) * 3, 24.7), ((4096,) * 3, 174), ((8192,) * 3, 1388)]
)
def test_a_graph_takes_about_5_ms(sizes: tuple[int, int, int], us: float) -> None:
    assert 3.5e-3 < BenchProblem(*sizes).launches * us * 1e-6 < 8e-3


@pytest.mark.parametrize("bad", [(0, 1, 1), (1, -1, 1)])
def test_sizes_must_be_positive(bad: tuple[int, int, int]) -> None:
    with pytest.raises(OperandError, match="must be positive"):
        BenchProblem(*bad)
    with pytest.raises(OperandError, match="b_major"):
        BenchProblem(1, 1, 1, "m")


# Timing ---------------------------------------------------------------------------------------------------------------


class Clock:
    """A device whose replays are their own time in seconds; what it is asked is written down."""

    def __init__(self) -> None:
        self.log: list[tuple[str, float, int]] = []

    def seconds(self, replay: Any, times: int = 1) -> float:
        self.log.append(("run", replay(), times))
        return replay() * times

    def idle(self, seconds: float) -> None:
        self.log.append(("idle", seconds, 1))

    def watched(self, run: Any) -> tuple[float, ClockAndPower]:
        self.log.append(("watch", 0.0, 1))
        return run(), ClockAndPower(1400.0, 700.0)


def constant(seconds: float) -> Any:
    return lambda: seconds


def test_every_round_holds_every_contender_once_and_idles_three_times_its_time() -> None:
    device, costs = Clock(), {"a": 0.005, "b": 0.006, "c": 0.004}
    samples = burst(device, {name: constant(x) for name, x in costs.items()}, 7, random.Random(1))
    assert {name: len(x) for name, x in samples.items()} == dict.fromkeys(costs, 7)
    warm, slots = device.log[:3], device.log[3:]
    assert [entry[0] for entry in warm] == ["run"] * 3
    rounds = [slots[i : i + 6] for i in range(0, len(slots), 6)]
    assert len(rounds) == 7
    for entries in rounds:
        assert sorted(x for kind, x, _ in entries if kind == "run") == sorted(costs.values())
        for (ran, x, _), (idled, gap, _) in zip(entries[::2], entries[1::2], strict=True):
            assert (ran, idled) == ("run", "idle") and gap == pytest.approx(3 * x)
    assert len({tuple(x for kind, x, _ in entries if kind == "run") for entries in rounds}) > 1


def test_each_round_has_a_new_unbiased_order() -> None:
    device = Clock()
    burst(device, {str(i): constant(float(i + 1)) for i in range(3)}, 600, random.Random(7))
    runs = [x for kind, x, _ in device.log[3:] if kind == "run"]
    firsts = Counter(runs[::3])
    assert set(firsts) == {1.0, 2.0, 3.0} and min(firsts.values()) > 150


def test_sustained_load_counts_the_second_half_alone() -> None:
    device = Clock()
    samples = sustained(device, {"a": (constant(0.005), 0.005), "b": (constant(0.5), 0.5)}, 2, random.Random(0))
    assert samples["a"] == [(pytest.approx(0.005), ClockAndPower(1400.0, 700.0))] * 2
    for before, watch, after in zip(device.log[::3], device.log[1::3], device.log[2::3], strict=True):
        assert watch[0] == "watch" and before == after
        assert before[1:] in [(0.005, 80), (0.5, 1)]


# Checks ---------------------------------------------------------------------------------------------------------------


def operands(m: int = 32, n: int = 24, k: int = 64) -> Operands:
    a, b = (torch.randn(rows, k, generator=torch.Generator().manual_seed(rows)).to(torch.bfloat16) for rows in (m, n))
    return Operands(a, b, torch.empty(m, n, dtype=torch.bfloat16))


def verdict_of(change: Any) -> bench.Accuracy:
    s = operands()

    def launch() -> None:
        s.c.copy_(change(s.a.float() @ s.b.float().T))

    return bench.run_and_check([s], [launch], bench.references([s]))[0]


def test_one_rounding_passes_and_lost_partial_sums_fail() -> None:
    good = verdict_of(lambda c: c)
    assert good.fault == "" and good.worst < 1 and 1e-3 < good.rms < 2.5e-3 and good.repeats
    halves = operands()
    rounded = [
        (halves.a.float()[:, i:j] @ halves.b.float()[:, i:j].T).to(torch.bfloat16).float()
        for i, j in ((0, 32), (32, 64))
    ]
    assert verdict_of(lambda c: sum(rounded)).fault == ""  # partial sums of a split K, rounded to bf16
    assert "times the bound" in verdict_of(lambda c: c + 1.0 * (torch.arange(24) == 3)).fault
    assert "nan times" in verdict_of(lambda c: c.index_fill(0, torch.tensor([5]), math.nan)).fault
    assert "root mean square" in verdict_of(lambda c: c + 0.05).fault  # within the bound everywhere, yet biased


def test_nan_and_infinity_never_pass() -> None:
    assert bench.Accuracy(math.nan, 0.0, True).fault and bench.Accuracy(0.0, math.nan, True).fault
    assert bench.Accuracy(math.inf, 0.0, True).fault
    assert not bench.Accuracy(1.0, bench.RMS_BOUND, True).fault


# The CUDA device, with torch.cuda replaced ----------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of torch.cuda, in order."""
    log: list[str] = []

    class Graph:
        def capture_begin(self, capture_error_mode: str) -> None:
            log.append(f"begin {capture_error_mode}")

        def capture_end(self) -> None:
            log.append("end")
            if "break" in log:
                raise RuntimeError("capture failed")

        def replay(self) -> None:
            log.append("replay")

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("record")

        def synchronize(self) -> None:
            log.append("wait")

        def elapsed_time(self, other: Event) -> float:
            return 5.0

    for name, value in {
        "CUDAGraph": Graph,
        "Event": Event,
        "Stream": object,
        "set_stream": lambda stream: log.append("stream"),
        "synchronize": lambda: log.append("synchronize"),
        "_sleep": lambda cycles: log.append("spin"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return log


def test_a_graph_is_captured_and_timed_between_events_behind_a_spin(calls: list[str]) -> None:
    device = bench.CudaDevice()
    replay = device.record([lambda: calls.append("one"), lambda: calls.append("two")])
    assert calls == ["stream", "synchronize", "begin thread_local", "one", "two", "end"]
    calls.clear()
    assert device.seconds(replay, 3) == 5e-3
    assert calls == ["spin", "record", "replay", "replay", "replay", "record", "wait"]


def test_an_error_during_capture_ends_it_and_is_raised(calls: list[str]) -> None:
    def launch() -> None:
        calls.append("break")
        raise ValueError("no such kernel")

    with pytest.raises(ValueError, match="no such kernel"):
        bench.CudaDevice().record([launch])
    assert calls[-2:] == ["break", "end"]


def test_the_sampler_runs_while_the_load_does(calls: list[str]) -> None:
    readings = iter([(1500.0, 600.0), (1600.0, 700.0)])
    device = bench.CudaDevice(lambda: next(readings, (1550.0, 650.0)))

    def run() -> float:
        time.sleep(0.18)
        return 0.25

    assert device.watched(run) == (0.25, ClockAndPower(pytest.approx(1550.0, abs=5), pytest.approx(650.0, abs=5)))
    assert bench.CudaDevice().watched(lambda: 0.5) == (0.5, ClockAndPower(None, None))


def test_a_sampler_that_fails_costs_its_figures_only(calls: list[str]) -> None:
    def broken() -> tuple[float, float]:
        raise OSError("no NVML")

    def run() -> float:
        time.sleep(0.12)
        return 0.25

    assert bench.CudaDevice(broken).watched(run) == (0.25, ClockAndPower(None, None))
