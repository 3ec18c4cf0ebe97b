"""Checks of plans: every statement with its verdict, its method, and its first counterexample."""

from .accesses import AccessPattern, atom_access, matrix_access, thread_access, tiled_access, tma_access
from .banks import BankReport, Phase, bank_conflicts
from .budgets import most_stages, registers, role_registers, shared_memory, tensor_memory, why_not
from .coalescing import SectorReport, sectors
from .dealt import Dealt
from .persistent import Persistent, Segment, StreamK
from .pipeline import (
    Buffer,
    Cursor,
    Mbarrier,
    NamedBarrier,
    Pipeline,
    Role,
    check_pipeline,
    deletions,
    register_check,
)
from .pipeline_hopper import Hopper, StoreRing
from .pipeline_patterns import (
    cluster_ring,
    multistage,
    pingpong,
    ring,
    self_loading,
    tcgen05_ring,
)
from .pipeline_prove import Interleaving, PipelineProof
from .pipeline_trace import Step
from .report import Check, Report
from .reuse import Reuse, reuse
from .schedules import Grouped, Hilbert, Linear, Schedule, visits_once
from .swizzle_search import PaddingAnswer, SwizzleAnswer, best_swizzle, find_padding, find_swizzle
from .tensor_copies import filled_by, tiles_cover
from .tiles import bijective_tile, read_by

__all__ = [
    "AccessPattern",
    "BankReport",
    "Buffer",
    "Check",
    "Cursor",
    "Dealt",
    "Grouped",
    "Hilbert",
    "Hopper",
    "Interleaving",
    "Linear",
    "Mbarrier",
    "NamedBarrier",
    "PaddingAnswer",
    "Persistent",
    "Phase",
    "Pipeline",
    "PipelineProof",
    "Report",
    "Reuse",
    "Role",
    "Schedule",
    "SectorReport",
    "Segment",
    "Step",
    "StoreRing",
    "StreamK",
    "SwizzleAnswer",
    "atom_access",
    "bank_conflicts",
    "best_swizzle",
    "bijective_tile",
    "check_pipeline",
    "cluster_ring",
    "deletions",
    "filled_by",
    "find_padding",
    "find_swizzle",
    "matrix_access",
    "most_stages",
    "multistage",
    "pingpong",
    "read_by",
    "register_check",
    "registers",
    "reuse",
    "ring",
    "role_registers",
    "sectors",
    "self_loading",
    "shared_memory",
    "tcgen05_ring",
    "tensor_memory",
    "thread_access",
    "tiled_access",
    "tiles_cover",
    "tma_access",
    "visits_once",
    "why_not",
]
