"""Checks of plans: every statement with its verdict, its method, and its first counterexample."""

from .budgets import most_stages, registers, role_registers, shared_memory, tensor_memory, why_not
from .persistent import Persistent, Segment, StreamK
from .report import Check, Report
from .reuse import Reuse, reuse
from .schedules import Grouped, Hilbert, Linear, Schedule, visits_once
from .tiles import bijective_tile, filled_by, read_by

__all__ = [
    "Check",
    "Grouped",
    "Hilbert",
    "Linear",
    "Persistent",
    "Report",
    "Reuse",
    "Schedule",
    "Segment",
    "StreamK",
    "bijective_tile",
    "filled_by",
    "most_stages",
    "read_by",
    "registers",
    "reuse",
    "role_registers",
    "shared_memory",
    "tensor_memory",
    "visits_once",
    "why_not",
]
