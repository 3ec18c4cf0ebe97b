"""Checks of plans: every statement with its verdict, its method, and its first counterexample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import named_later

if TYPE_CHECKING:
    from .budgets import most_stages as most_stages
    from .budgets import registers as registers
    from .budgets import role_registers as role_registers
    from .budgets import shared_memory as shared_memory
    from .budgets import shared_memory_of as shared_memory_of
    from .budgets import tensor_memory as tensor_memory
    from .budgets import why_not as why_not
    from .coalescing import SectorReport as SectorReport
    from .coalescing import sectors as sectors
    from .pipeline.model import Buffer as Buffer
    from .pipeline.model import Cursor as Cursor
    from .pipeline.model import Mbarrier as Mbarrier
    from .pipeline.model import NamedBarrier as NamedBarrier
    from .pipeline.model import Pipeline as Pipeline
    from .pipeline.model import Role as Role
    from .pipeline.model import check_pipeline as check_pipeline
    from .pipeline.model import deletions as deletions
    from .pipeline.model import register_check as register_check
    from .pipeline.patterns import cluster_ring as cluster_ring
    from .pipeline.patterns import multistage as multistage
    from .pipeline.patterns import pingpong as pingpong
    from .pipeline.patterns import ring as ring
    from .pipeline.patterns import self_loading as self_loading
    from .pipeline.patterns import tcgen05_ring as tcgen05_ring
    from .pipeline.prove import Interleaving as Interleaving
    from .pipeline.prove import PipelineProof as PipelineProof
    from .pipeline.trace import TraceStep as TraceStep
    from .smem.access_patterns import AccessPattern as AccessPattern
    from .smem.access_patterns import atom_access as atom_access
    from .smem.access_patterns import column_access as column_access
    from .smem.access_patterns import matrix_access as matrix_access
    from .smem.access_patterns import row_access as row_access
    from .smem.access_patterns import thread_access as thread_access
    from .smem.access_patterns import tiled_access as tiled_access
    from .smem.access_patterns import tma_access as tma_access
    from .smem.bank_conflicts import BankReport as BankReport
    from .smem.bank_conflicts import Phase as Phase
    from .smem.bank_conflicts import bank_conflicts as bank_conflicts
    from .smem.swizzle_search import PaddingAnswer as PaddingAnswer
    from .smem.swizzle_search import SwizzleAnswer as SwizzleAnswer
    from .smem.swizzle_search import best_swizzle as best_swizzle
    from .smem.swizzle_search import find_padding as find_padding
    from .smem.swizzle_search import find_swizzle as find_swizzle
    from .smem.tile_views import bijective_tile as bijective_tile
    from .smem.tile_views import read_by as read_by
    from .tensor_copies import filled_by as filled_by
    from .tensor_copies import tiles_cover as tiles_cover

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = named_later(__name__)
