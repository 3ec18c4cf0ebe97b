"""The result of a check: statement, verdict, method, and first counterexample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .errors import PlanError


@dataclass(frozen=True, slots=True)
class Check:
    """One statement about a plan and its verdict. Truthy when it holds.

    name       short, as in "descriptor A"
    statement  the fact in a sentence, with its numbers
    ok         whether it holds
    method     how it was decided: "normal form", "exhaustion (4096 elements)", "arithmetic"
    witness    where it fails, with both values; empty when it holds
    """

    name: str
    statement: str
    ok: bool
    method: str
    witness: str = ""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        verdict = "holds" if self.ok else "FAILS"
        tail = f"; {self.witness}" if self.witness else ""
        return f"{verdict:5}  {self.name:<14} {self.statement} [{self.method}]{tail}"


@dataclass(frozen=True, slots=True)
class Report:
    """The verdicts on one plan, in order. Truthy when all hold."""

    checks: tuple[Check, ...]

    def __bool__(self) -> bool:
        return all(self.checks)

    def __iter__(self) -> Iterator[Check]:
        return iter(self.checks)

    def __len__(self) -> int:
        return len(self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that do not hold."""
        return tuple(check for check in self.checks if not check)

    def require(self) -> Report:
        """Return the report, or raise PlanError with every failed check."""
        if self.failures:
            raise PlanError("the plan does not hold:\n" + "\n".join(str(check) for check in self.failures))
        return self

    def __str__(self) -> str:
        held = sum(map(bool, self.checks))
        return "\n".join([*(str(check) for check in self.checks), f"{held} of {len(self.checks)} checks hold"])
