"""Records of measured Hopper configurations, and the rank of the current choice.

A file stores each configuration once, by its differences from the defaults. It stores the defaults too, so that its
meaning does not change with them. Each shape has one line: torch.mm's time, and (configuration, microseconds, 1 if it
was in the last round of the race, else 0) of each kernel.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from layoutgemm.bench.method import BenchProblem
from layoutgemm.kernels.compile.worker import choice_of
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice, choose
from layoutgemm.kernels.sm90.plan import Sm90Config


@dataclass(frozen=True)
class Timed:
    """Seconds of one configuration. last: measured in all rounds, as one of the fastest."""

    choice: Sm90Choice
    seconds: float
    last: bool = True


@dataclass(frozen=True)
class Tried:
    """A shape: seconds of torch.mm, and of the measured configurations."""

    problem: BenchProblem
    torch: float
    kernels: tuple[Timed, ...]


@dataclass(frozen=True)
class Standing:
    """The current choice among the measured kernels; without a measurement `chosen` is absent: None.

    >>> Standing(BenchProblem(64, 64, 64), chosen=1.02e-6, best=1e-6, torch=1.1e-6).behind
    0.02
    """

    problem: BenchProblem
    chosen: float | None
    best: float
    torch: float

    @property
    def behind(self) -> float:
        """The chosen kernel's relative loss to the fastest; raises ValueError if it was not measured."""
        if self.chosen is None:
            raise ValueError(f"{self.problem}: what is chosen was not measured")
        return round(self.chosen / self.best - 1, 6)


def standing(tried: Tried, choose: Callable[..., tuple[Sm90Choice, str]] = choose) -> Standing:
    """Compares the current choice with the measured kernels of a shape.

    >>> chosen, other = choose(64, 4096, 4096)[0], Sm90Choice(Sm90Config())
    >>> found = standing(Tried(BenchProblem(64, 4096, 4096), 2e-5, (Timed(chosen, 1.1e-5), Timed(other, 1e-5))))
    >>> round(found.behind, 3)
    0.1
    """
    p = tried.problem
    now = choose(p.m, p.n, p.k, b_major="K" if p.b_major == "k" else "MN")[0]
    chosen = next((timed.seconds for timed in tried.kernels if timed.choice == now), None)
    return Standing(p, chosen, min(timed.seconds for timed in tried.kernels), tried.torch)


def report(standings: Sequence[Standing]) -> list[str]:
    """Lines: shapes where the choice is over 1% behind, the worst first, then a summary."""
    known = sorted((s for s in standings if s.chosen is not None), key=lambda s: -s.behind)
    lines = [
        f"{s.problem!s:>20} {100 * s.behind:5.1f}% behind the fastest, {s.torch / (s.chosen or 1):.3f} of torch.mm"
        for s in known
        if s.behind > 0.01
    ]
    lines += [f"{s.problem!s:>20} what is chosen was not measured" for s in standings if s.chosen is None]
    if known:
        ratios = [s.torch / (s.chosen or 1) for s in known]
        ahead, behind = sum(r > 1.01 for r in ratios), sum(r < 0.99 for r in ratios)
        lines += [
            f"{len(known)} of {len(standings)} shapes: {100 * statistics.mean(s.behind for s in known):.2f}% behind "
            f"the fastest on average, over 1% on {sum(s.behind > 0.01 for s in known)}",
            f"ahead of torch.mm by more than 1% on {ahead}, within 1% on {len(known) - ahead - behind}, behind on "
            f"{behind}, median {statistics.median(ratios):.3f}",
        ]
    return lines


def save(path: Path, facts: Mapping[str, Any], tried: Sequence[Tried]) -> None:
    """Writes the record, one line per configuration and shape."""
    defaults = Sm90Config().settings
    numbers: dict[Sm90Choice, int] = {}
    shapes = []
    for one in tried:
        kernels = [
            [numbers.setdefault(t.choice, len(numbers)), round(t.seconds * 1e6, 3), int(t.last)] for t in one.kernels
        ]
        shapes.append({**asdict(one.problem), "torch_us": round(one.torch * 1e6, 3), "kernels": kernels})
    configurations = []
    for choice in numbers:
        config = {name: value for name, value in choice.config.settings.items() if value != defaults[name]}
        configurations.append({"swapped": choice.swapped, "config": config})
    rows = {"configurations": configurations, "shapes": shapes}
    text = json.dumps({**facts, "defaults": defaults}, indent=1).removesuffix("\n}")
    for name, values in rows.items():
        text += f',\n "{name}": [\n  ' + ",\n  ".join(map(json.dumps, values)) + "\n ]"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n}\n", encoding="utf-8")


def load(path: Path) -> tuple[dict[str, Any], list[Tried]]:
    """The facts and the measurements. Raises ValueError for a file that `save` did not write."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        defaults = facts.pop("defaults")
        choices = [
            choice_of({"swapped": entry["swapped"], "config": {**defaults, **entry["config"]}})
            for entry in facts.pop("configurations")
        ]
        tried = [
            Tried(
                BenchProblem(row["m"], row["n"], row["k"], row["b_major"]),
                row["torch_us"] * 1e-6,
                tuple(Timed(choices[number], us * 1e-6, bool(last)) for number, us, last in row["kernels"]),
            )
            for row in facts.pop("shapes")
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a record of configurations: {type(error).__name__} {error}") from error
    return facts, tried
