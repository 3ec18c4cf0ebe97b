"""Checks of plans: every statement with its verdict, its method, and its first counterexample."""

from .accesses import AccessPattern, atom_access, matrix_access, thread_access, tiled_access, tma_access
from .banks import BankReport, Phase, bank_conflicts
from .budgets import most_stages, registers, role_registers, shared_memory, tensor_memory, why_not
from .coalescing import SectorReport, sectors
from .persistent import Persistent, Segment, StreamK
from .report import Check, Report
from .reuse import Reuse, reuse
from .schedules import Grouped, Hilbert, Linear, Schedule, visits_once
from .swizzle_search import PaddingAnswer, SwizzleAnswer, best_swizzle, find_padding, find_swizzle
from .tensor_copies import filled_by, tiles_cover
from .tiles import bijective_tile, read_by

__all__ = [
    "AccessPattern",
    "BankReport",
    "Check",
    "Grouped",
    "Hilbert",
    "Linear",
    "PaddingAnswer",
    "Persistent",
    "Phase",
    "Report",
    "Reuse",
    "Schedule",
    "SectorReport",
    "Segment",
    "StreamK",
    "SwizzleAnswer",
    "atom_access",
    "bank_conflicts",
    "best_swizzle",
    "bijective_tile",
    "filled_by",
    "find_padding",
    "find_swizzle",
    "matrix_access",
    "most_stages",
    "read_by",
    "registers",
    "reuse",
    "role_registers",
    "sectors",
    "shared_memory",
    "tensor_memory",
    "thread_access",
    "tiled_access",
    "tiles_cover",
    "tma_access",
    "visits_once",
    "why_not",
]
