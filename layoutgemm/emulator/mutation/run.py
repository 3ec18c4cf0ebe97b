"""Runs of every mutant of a kernel over a set of cases.

    survey(kernel, cases, [*deletions(kernel), *fields(kernel)])

A case is a launch and a check of its results. A mutant is caught by the first case in which the emulator refuses it,
reports a finding, or the results are wrong. A mutant that no case catches survives. A survivor either changes nothing,
or needs a shape that the set lacks.

`unreached` lists the instructions that no case executes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ...errors import DeadlockError, EmulatorError, PtxError
from ..findings import Counts
from ..machine.interpreter import Launch, Policy, PtxMachine
from ..ops import program_of
from ..ptx.parser import PtxInstruction, PtxKernel
from .mutants import Mutant
from .trace import AccessTrace

# A mutant may take more steps than the kernel, up to this factor and number; then it counts as endless.
FACTOR, SLACK = 4, 20_000
IN_TURN = Policy(fences="writers")
# Where copies land late, a peek at an mbarrier never succeeds, and the wait behind it hides what the peek does.
EARLY = Policy(fences="writers", loads="early", products="early", stores="early")


@dataclass(frozen=True)
class LaunchCase:
    """One launch of a kernel.

    launch  makes it, with memory of its own
    check   the error in that memory's results, or None
    policy  the order in which it is executed
    """

    name: str
    launch: Callable[[], Launch]
    check: Callable[[Launch], str | None]
    policy: Policy = IN_TURN


@dataclass(frozen=True)
class MutantOutcome:
    """The outcome of a mutant. The case that caught it and how, both "" for a survivor.

    reason  why it survived, where that was examined (`survivors.py`)
    """

    mutant: Mutant
    case: str = ""
    how: str = ""
    reason: str = ""

    @property
    def caught(self) -> bool:
        """True if a case caught it."""
        return bool(self.how)


ShowsProgress: TypeAlias = Callable[[int, int, MutantOutcome], None]  # (done, number of mutants, the last outcome)


@dataclass(frozen=True)
class Survey:
    """The outcomes of all mutants."""

    rows: tuple[MutantOutcome, ...]

    @property
    def survivors(self) -> list[Mutant]:
        """The mutants that no case caught."""
        return [row.mutant for row in self.rows if not row.caught]

    def table(self) -> str:
        """Kinds of mutants with their numbers, then every survivor."""
        total = Counter(row.mutant.kind for row in self.rows)
        caught = Counter(row.mutant.kind for row in self.rows if row.caught)
        width = max([len(kind) for kind in total] + [5])
        lines = [f"{kind:{width}} {caught[kind]:5} of {total[kind]:5}" for kind in sorted(total)]
        lines.append(f"{'all':{width}} {sum(caught.values()):5} of {sum(total.values()):5} caught")
        left = [row for row in self.rows if not row.caught]
        said = [f"survives: {row.mutant}" + (f"\n    {row.reason}" if row.reason else "") for row in left]
        return "\n".join([*lines, *said])


def verdict(
    kernel: PtxKernel,
    case: LaunchCase,
    mutant: Mutant | None = None,
    limit: int | None = None,
    trace: AccessTrace | None = None,
) -> tuple[str, Counts]:
    """The error of one run, or "", and its counts. A `trace` keeps its accesses."""
    counts = Counts(executed=bytearray(len(kernel.instructions)))
    policy = case.policy if limit is None else replace(case.policy, limit=limit)
    launch = case.launch()
    try:
        if mutant is not None:
            kernel, launch = _changed(kernel, mutant), mutant.launch(launch)
        program = program_of(kernel)
        machine = PtxMachine(program, launch, policy, trace=trace)
        counts = machine.counts
        machine.run()
    except DeadlockError as error:
        return f"deadlock: {_first(error)}", counts
    except PtxError as error:
        return f"refused at load: {_first(error)}", counts
    except EmulatorError as error:
        return f"error: {_first(error)}", counts
    serious = [finding for finding in machine.findings.found if finding.kind != "lint"]
    if serious:
        return f"{serious[0].kind}: {_first(serious[0].message)}", counts
    wrong = case.check(launch)
    return f"values: {wrong}" if wrong else "", counts


_LAST: list[Any] = []  # a kernel, a mutant, and the kernel with the mutant's change


def _changed(kernel: PtxKernel, mutant: Mutant) -> PtxKernel:
    """The kernel with the change, one object for all cases of a mutant."""
    if not _LAST or _LAST[0] is not kernel or _LAST[1] is not mutant:
        _LAST[:] = [kernel, mutant, mutant.kernel(kernel)]
    changed: PtxKernel = _LAST[2]
    return changed


def _first(message: object) -> str:
    return str(message).splitlines()[0][:200]


def survey(
    kernel: PtxKernel,
    cases: Sequence[LaunchCase],
    mutants: Iterable[Mutant],
    progress: ShowsProgress | None = None,
) -> Survey:
    """Run each mutant over the cases until one catches it.

    progress  called with (done, number of mutants, row) after each

    Raises EmulatorError when the kernel itself fails a case.
    """
    limits = []
    for case in cases:
        wrong, counts = verdict(kernel, case)
        if wrong:
            raise EmulatorError(f"the kernel without any change fails {case.name}: {wrong}")
        limits.append(FACTOR * sum(counts.instructions.values()) + SLACK)

    def judge(mutant: Mutant) -> MutantOutcome:
        for case, limit in zip(cases, limits, strict=True):
            how, _ = verdict(kernel, case, mutant, limit)
            if how:
                return MutantOutcome(mutant, case.name, how)
        return MutantOutcome(mutant)

    return judged(judge, mutants, progress)


def judged(
    judge: Callable[[Mutant], MutantOutcome], mutants: Iterable[Mutant], progress: ShowsProgress | None
) -> Survey:
    """The outcome of each mutant, with a report of progress after each."""
    chosen = list(mutants)
    rows: list[MutantOutcome] = []
    for mutant in chosen:
        rows.append(judge(mutant))
        if progress is not None:
            progress(len(rows), len(chosen), rows[-1])
    return Survey(tuple(rows))


def on_terminal(done: int, total: int, row: MutantOutcome) -> None:
    """Show progress on one line of standard error, and survivors on lines of their own."""
    if not row.caught:
        print(f"\r\033[Ksurvives: {row.mutant}" + (f" ({row.reason})" if row.reason else ""), file=sys.stderr)
    print(f"\r\033[K{done} of {total}", end="" if done < total else "\n", file=sys.stderr, flush=True)


def sample(mutants: Iterable[Mutant], count: int) -> list[Mutant]:
    """At most `count` of the mutants, spread evenly over each kind."""
    kinds: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        kinds.setdefault(mutant.kind, []).append(mutant)
    out = []
    for have in kinds.values():
        take = max(1, count // len(kinds))
        step = max(1.0, len(have) / take)
        out += [have[int(i * step)] for i in range(min(take, len(have)))]
    return out[:count]


def unreached(kernel: PtxKernel, cases: Iterable[LaunchCase]) -> list[PtxInstruction]:
    """The instructions that no case executes. Raises EmulatorError when the kernel fails one."""
    whole = Counts(executed=bytearray(len(kernel.instructions)))
    for case in cases:
        wrong, counts = verdict(kernel, case)
        if wrong:
            raise EmulatorError(f"{case.name}: {wrong}")
        whole.merge(counts)
    return whole.unreached(kernel)
