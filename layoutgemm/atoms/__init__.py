"""Hardware as objects: matrix instructions, shared-memory tiles, descriptors and tensor copies."""

from .copy import Access, CopyAtom
from .copy_async import AsyncCopy, BulkCopy, async_copies, bulk_copy, cp_async, st_async
from .copy_feeds import feeds, operand_map, row_addresses
from .copy_matrix import ldmatrix, ldmatrix_m16n8, matrix_copies, movmatrix, stmatrix
from .copy_vector import (
    VectorCopy,
    Widest,
    load_global,
    load_shared,
    store_global,
    store_shared,
    universal_copy,
    vector_copies,
    widest,
)
from .descriptor import OperandDescriptor, SmemDescriptor
from .mma import MmaAtom, ScaleFactors
from .mma_wgmma import wgmma
from .smem import SPANS, SmemTile, smem_atom, smem_tile, swizzle_of, widest_swizzle
from .tma import TmaCopy, TmaPlan

__all__ = [
    "SPANS",
    "Access",
    "AsyncCopy",
    "BulkCopy",
    "CopyAtom",
    "MmaAtom",
    "OperandDescriptor",
    "ScaleFactors",
    "SmemDescriptor",
    "SmemTile",
    "TmaCopy",
    "TmaPlan",
    "VectorCopy",
    "Widest",
    "async_copies",
    "bulk_copy",
    "cp_async",
    "feeds",
    "ldmatrix",
    "ldmatrix_m16n8",
    "load_global",
    "load_shared",
    "matrix_copies",
    "movmatrix",
    "operand_map",
    "row_addresses",
    "smem_atom",
    "smem_tile",
    "st_async",
    "stmatrix",
    "store_global",
    "store_shared",
    "swizzle_of",
    "universal_copy",
    "vector_copies",
    "wgmma",
    "widest",
    "widest_swizzle",
]
