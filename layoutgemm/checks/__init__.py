"""Checks of plans: every statement with its verdict, its method, and its first counterexample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import named_later

if TYPE_CHECKING:
    from .budgets import most_stages, registers, role_registers, shared_memory, shared_memory_of, tensor_memory, why_not
    from .coalescing import SectorReport, sectors
    from .pipeline.model import (
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
    from .pipeline.patterns import cluster_ring, multistage, pingpong, ring, self_loading, tcgen05_ring
    from .pipeline.prove import Interleaving, PipelineProof
    from .pipeline.trace import TraceStep
    from .smem.access_patterns import (
        AccessPattern,
        atom_access,
        column_access,
        matrix_access,
        row_access,
        thread_access,
        tiled_access,
        tma_access,
    )
    from .smem.bank_conflicts import BankReport, Phase, bank_conflicts
    from .smem.swizzle_search import PaddingAnswer, SwizzleAnswer, best_swizzle, find_padding, find_swizzle
    from .smem.tile_views import bijective_tile, read_by
    from .tensor_copies import filled_by, tiles_cover

__all__ = [
    "AccessPattern",
    "BankReport",
    "Buffer",
    "Cursor",
    "Interleaving",
    "Mbarrier",
    "NamedBarrier",
    "PaddingAnswer",
    "Phase",
    "Pipeline",
    "PipelineProof",
    "Role",
    "SectorReport",
    "SwizzleAnswer",
    "TraceStep",
    "atom_access",
    "bank_conflicts",
    "best_swizzle",
    "bijective_tile",
    "check_pipeline",
    "cluster_ring",
    "column_access",
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
    "ring",
    "role_registers",
    "row_access",
    "sectors",
    "self_loading",
    "shared_memory",
    "shared_memory_of",
    "tcgen05_ring",
    "tensor_memory",
    "thread_access",
    "tiled_access",
    "tiles_cover",
    "tma_access",
    "why_not",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = named_later(__name__)
