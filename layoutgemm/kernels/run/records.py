"""Records of a plan's emulated run: bank counts and a timeline, for `plan.run(..., banks=True, timeline=True)`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...emulator.api import Emulation


@dataclass
class EmulatorRecords:
    """The records asked for, and the emulations that made them."""

    banks: bool = False
    timeline: bool = False
    emulations: list[Emulation] = field(default_factory=list)


_asked: ContextVar[EmulatorRecords | None] = ContextVar("records of emulated runs", default=None)


def current_records() -> EmulatorRecords:
    """The records that the current run collects; none outside a run."""
    return _asked.get() or EmulatorRecords()


@contextmanager
def recorded(banks: bool, timeline: bool) -> Iterator[EmulatorRecords]:
    """Ask emulations inside for records."""
    records = EmulatorRecords(banks, timeline)
    token = _asked.set(records)
    try:
        yield records
    finally:
        _asked.reset(token)
