"""Comparison of many contenders on one problem, as JSON and as a table."""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .method import (
    Accuracy,
    BenchProblem,
    ClockAndPower,
    Contender,
    Device,
    Replay,
    bits_of,
    burst,
    references,
    run_and_check,
    spread,
    sustained,
)

BASELINE = "torch.mm"
OURS = "ours"  # the family that is compared; all other families are peers


class DeviceLost(RuntimeError):
    """A contender has broken the device: this process can measure nothing more."""


@dataclass(frozen=True)
class Measured:
    """The times of one contender: seconds of one product, one for each round."""

    name: str
    family: str
    note: str
    worst: float
    rms: float
    burst: tuple[float, ...]
    sustained: tuple[float, ...] = ()
    clock_mhz: float | None = None
    power_w: float | None = None
    fault: str = ""

    @property
    def seconds(self) -> float:
        """Median burst time of one product."""
        return statistics.median(self.burst)

    @property
    def sustained_seconds(self) -> float | None:
        """Median sustained time of one product, or None if not measured."""
        return statistics.median(self.sustained) if self.sustained else None


@dataclass(frozen=True)
class Outcome:
    """The results of one problem: measured, dropped in the short round (time), failed (reason)."""

    problem: BenchProblem
    measured: tuple[Measured, ...] = ()
    fell_out: tuple[tuple[str, float], ...] = ()
    failed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Method:
    """Rounds, and how many contenders of a family stay.

    keep       contenders of a family that stay after the short round; families not named: all
    finalists  contenders of a family that run at sustained load; families not named: one
    """

    rounds: int = 11
    short_rounds: int = 3
    sustained_rounds: int = 3
    sustained_length: float = 0.8
    keep: Mapping[str, int] = field(default_factory=dict)
    finalists: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0


def best_of(names: Mapping[str, str], seconds: Mapping[str, float], keep: Mapping[str, int]) -> list[str]:
    """The contenders that stay: the `keep` fastest of each family, all of families not named.

    >>> best_of({"a": "x", "b": "x", "c": "y"}, {"a": 2.0, "b": 1.0, "c": 9.0}, {"x": 1})
    ['b', 'c']
    """
    chosen = []
    for family in dict.fromkeys(names.values()):
        members = sorted((name for name in names if names[name] == family), key=lambda name: seconds[name])
        chosen += members[: keep.get(family, len(members))]
    return [name for name in names if name in chosen]


def measure(
    device: Device,
    problem: BenchProblem,
    contenders: Sequence[Contender],
    method: Method | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Check all contenders, time the correct ones in bursts, and the best at sustained load.

    A contender that raises or is wrong is reported in `failed` and not timed; a faulty baseline is timed and keeps its
    fault. `progress` is called before each step with what is about to be done. Raises DeviceLost when a contender
    leaves the device unusable.
    """
    method = method or Method()
    rng = random.Random(f"{problem} {method.seed}")
    admitted, failed = _admit(device, problem, contenders, method.seed, progress)
    family = {name: entry.contender.family for name, entry in admitted.items()}
    racing, fell_out = _short_round(device, admitted, family, method, rng, progress)
    progress(f"{problem}: burst of {len(racing)}")
    bursts = burst(device, {name: entry.replay for name, entry in racing.items()}, method.rounds, rng)
    loads: dict[str, list[tuple[float, ClockAndPower]]] = {}
    if method.sustained_rounds:
        medians = {name: statistics.median(samples) for name, samples in bursts.items()}
        number = {**dict.fromkeys(family.values(), 1), **method.finalists}
        finalists = best_of({name: family[name] for name in racing}, medians, number)
        progress(f"{problem}: sustained load of {len(finalists)}")
        running = {name: (racing[name].replay, medians[name]) for name in finalists}
        loads = sustained(device, running, method.sustained_rounds, rng, method.sustained_length)
    count = problem.launches
    measured = (_measured(entry, bursts[name], loads.get(name, []), count) for name, entry in racing.items())
    return Outcome(problem, tuple(measured), tuple((name, x / count) for name, x in fell_out), tuple(failed))


class _Admitted(NamedTuple):
    """A contender whose result was accurate, and its prepared calls."""

    contender: Contender
    verdict: Accuracy
    replay: Replay


def _admit(
    device: Device,
    problem: BenchProblem,
    contenders: Sequence[Contender],
    seed: int,
    progress: Callable[[str], None],
) -> tuple[dict[str, _Admitted], list[tuple[str, str]]]:
    """The contenders that are right, eagerly and as recorded; the others with the reason."""
    import torch

    progress(f"{problem}: operands and float64 product")
    sets = device.operands(problem, seed)
    exact = references(sets)
    admitted: dict[str, _Admitted] = {}
    failed: list[tuple[str, str]] = []
    for contender in contenders:
        name = contender.name
        if name in admitted:
            failed.append((name, "another contender has this name"))
            continue
        progress(f"{problem}: checking {name}")
        with _blamed_on(device, name, failed):
            launches = contender.prepare(sets)
            verdict, bits = run_and_check(sets, launches, exact)
            if verdict.fault and name != BASELINE:
                failed.append((name, verdict.fault))
                continue
            replay = device.record([launches[i % len(launches)] for i in range(problem.launches)])
            if all(map(torch.equal, bits, bits_of(sets, [replay]))):
                admitted[name] = _Admitted(contender, verdict, replay)
            else:
                failed.append((name, "the recorded launches give other bits than the eager ones"))
    return admitted, failed


def _short_round(
    device: Device,
    admitted: Mapping[str, _Admitted],
    family: Mapping[str, str],
    method: Method,
    rng: random.Random,
    progress: Callable[[str], None],
) -> tuple[dict[str, _Admitted], list[tuple[str, float]]]:
    """The contenders that stay after a few rounds of bursts, and the dropped ones' times."""
    level = dict.fromkeys(family, 0.0)
    if len(best_of(family, level, method.keep)) == len(family):
        return dict(admitted), []
    crowded = {name: entry.replay for name, entry in admitted.items() if family[name] in method.keep}
    progress(f"short round of {len(crowded)}")
    samples = burst(device, crowded, method.short_rounds, rng, gap=1.0)
    times = {name: statistics.median(values) for name, values in samples.items()}
    stay = best_of(family, {**level, **times}, method.keep)
    return {name: admitted[name] for name in stay}, [(name, times[name]) for name in admitted if name not in stay]


def _measured(
    entry: _Admitted, samples: Sequence[float], held: Sequence[tuple[float, ClockAndPower]], launches: int
) -> Measured:
    contender, verdict, _ = entry
    return Measured(
        *(contender.name, contender.family, contender.note, verdict.worst, verdict.rms),
        burst=tuple(x / launches for x in samples),
        sustained=tuple(x / launches for x, _ in held),
        clock_mhz=_mean(load.clock_mhz for _, load in held),
        power_w=_mean(load.power_w for _, load in held),
        fault=verdict.fault,
    )


@contextmanager
def _blamed_on(device: Device, name: str, failed: list[tuple[str, str]]) -> Iterator[None]:
    """Record an exception inside as that contender's failure, unless the device is lost."""
    try:
        yield
        device.settle()
    except Exception as error:
        failed.append((name, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))
        try:
            device.settle()
        except Exception as broken:
            raise DeviceLost(f"{name} has broken the device: {failed[-1][1]}") from broken


def _mean(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# JSON ---------------------------------------------------------------------------------------------------------------


def record(facts: Mapping[str, object], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Facts and outcomes as JSON holds them: seconds, every round of them."""
    return {"facts": dict(facts), "outcomes": [dataclasses.asdict(outcome) for outcome in outcomes]}


def save(path: Path, facts: Mapping[str, object], outcomes: Sequence[Outcome]) -> None:
    """Write facts and outcomes; every round is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record(facts, outcomes), indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> tuple[dict[str, Any], list[Outcome]]:
    """Facts and outcomes that `save` wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))

    def outcome(row: dict[str, Any]) -> Outcome:
        tuples: dict[str, Callable[[Any], Any]] = {"burst": tuple, "sustained": tuple}
        return Outcome(
            BenchProblem(**row["problem"]),
            tuple(Measured(**{k: tuples.get(k, lambda v: v)(v) for k, v in m.items()}) for m in row["measured"]),
            *(tuple(tuple(pair) for pair in row[key]) for key in ("fell_out", "failed")),
        )

    return data["facts"], [outcome(row) for row in data["outcomes"]]


# The table ----------------------------------------------------------------------------------------------------------

HEAD = (
    f"{'M x N x K':>17} {'us':>9} {'TFLOP/s':>7} {'GB/s':>5} {'+-%':>5} {'x mm':>6} {'x peer':>6}"
    f" | {'sust.':>6} {'x mm':>6} {'x peer':>6} {'MHz':>5} {'W':>4} | subject; best peer in bursts"
)


def fastest(candidates: Sequence[Measured], of: Callable[[Measured], float | None]) -> Measured | None:
    """The candidate with the smallest value of `of`, among those that have one."""
    known = [m for m in candidates if of(m) is not None]
    return min(known, key=lambda m: of(m) or 0.0) if known else None


def line(outcome: Outcome) -> str:
    """One problem as a line: our best against the baseline and the best peer.

    Without a contender of ours, the line shows the best of all. A ratio is the other's time over the subject's, so more
    than 1 is faster. Burst figures are left of the bar, sustained ones right of it. Each side takes its own best peer.
    """
    problem = outcome.problem
    peers = [m for m in outcome.measured if m.family != OURS]
    ours = [m for m in outcome.measured if m.family == OURS]
    subject = fastest(ours or peers, lambda m: m.seconds)
    if subject is None:
        return f"{problem!s:>17} nothing ran"
    baseline = next((m for m in peers if m.name == BASELINE), None)
    left, peer = _side(subject, baseline, peers, lambda m: m.seconds)
    held = fastest(ours or peers, lambda m: m.sustained_seconds)
    if held is None:
        right = f"{'-':>6} {'-':>6} {'-':>6} {'-':>5} {'-':>4}"
    else:
        ratios, _ = _side(held, baseline, peers, lambda m: m.sustained_seconds)
        load = f"{_number(held.clock_mhz, 5)} {_number(held.power_w, 4)}"
        right = f"{problem.tflops(held.sustained_seconds or 0.0):6.1f} {ratios} {load}"
    rate = f"{problem.tflops(subject.seconds):7.1f} {problem.gbs(subject.seconds):5.0f}"
    noise = f"{100 * spread(subject.burst) / subject.seconds:5.2f}"
    names = f"{subject.name}; {peer.name + (f' ({peer.note})' if peer.note else '') if peer else '-'}"
    return f"{problem!s:>17} {subject.seconds * 1e6:9.2f} {rate} {noise} {left} | {right} | {names}"


def _side(
    subject: Measured, baseline: Measured | None, peers: Sequence[Measured], of: Callable[[Measured], float | None]
) -> tuple[str, Measured | None]:
    """Both ratios, and the best peer."""
    mine = of(subject) or 0.0
    peer = fastest([m for m in peers if m is not subject], of)
    both = (of(other) if other is not None else None for other in (baseline, peer))
    return " ".join(f"{'-':>6}" if other is None else f"{other / mine:6.3f}" for other in both), peer


def _number(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.0f}"


# Above the lines of `details`.
DETAILS = (
    f"    {'burst':>12} {'+-%':>5} {'TFLOP/s':>7} {'GB/s':>5} {'x mm':>6}"
    f" | {'sust.':>6} {'x mm':>6} {'MHz':>5} {'W':>4} | contender"
)


def details(outcome: Outcome) -> Iterator[str]:
    """All contenders of one problem, fastest first; then the dropped and the failed ones."""
    problem = outcome.problem
    base = next((m for m in outcome.measured if m.name == BASELINE), None)
    for m in sorted(outcome.measured, key=lambda m: m.seconds):
        noise = f"{100 * spread(m.burst) / m.seconds:5.2f}"
        rate = f"{problem.tflops(m.seconds):7.1f} {problem.gbs(m.seconds):5.0f} {_ratio(base, m, lambda m: m.seconds)}"
        held = f"{problem.tflops(m.sustained_seconds):6.1f}" if m.sustained_seconds else f"{'-':>6}"
        held += f" {_ratio(base, m, lambda m: m.sustained_seconds)} {_number(m.clock_mhz, 5)} {_number(m.power_w, 4)}"
        what = f"{m.name}{' ' + m.note if m.note else ''}{'  FAULT: ' + m.fault if m.fault else ''}"
        yield f"    {m.seconds * 1e6:9.2f} us {noise} {rate} | {held} | {what}"
    if outcome.fell_out:
        yield "    fell out: " + ", ".join(f"{name} {seconds * 1e6:.1f}" for name, seconds in outcome.fell_out)
    for name, why in outcome.failed:
        yield f"    FAILED {name}: {why}"


def _ratio(base: Measured | None, m: Measured, of: Callable[[Measured], float | None]) -> str:
    """The baseline's time over the contender's, where both were measured."""
    theirs, own = (None if base is None else of(base)), of(m)
    return f"{theirs / own:6.3f}" if theirs and own else f"{'-':>6}"
