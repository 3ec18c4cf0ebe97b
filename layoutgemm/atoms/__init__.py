"""Hardware as objects: matrix instructions, shared-memory tiles, descriptors and tensor copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import named_later

if TYPE_CHECKING:
    from .catalog import FAMILIES, atoms
    from .copy.base import Access, CopyAtom
    from .copy.cp_async import AsyncCopy, BulkCopy, async_copies, bulk_copy, cp_async, st_async
    from .copy.feeds_mma import feeds, operand_map, row_addresses
    from .copy.ldmatrix import ldmatrix, ldmatrix_m16n8, matrix_copies, movmatrix, stmatrix
    from .copy.tmem import TmemCopyAtom, tcgen05_cp, tcgen05_ld, tcgen05_st
    from .copy.vector import (
        VectorCopy,
        WidestVector,
        load_global,
        load_shared,
        store_global,
        store_shared,
        universal_copy,
        vector_copies,
        widest,
    )
    from .mma.base import Container, MmaAtom, ScaleFactors
    from .mma.fma import fma
    from .mma.sync import mma_sync
    from .mma.tcgen05 import Tcgen05Atom, tcgen05_mma
    from .mma.warp_fragments import fragment
    from .mma.wgmma import wgmma
    from .smem.describe import decode, describe, diff
    from .smem.descriptor import OperandDescriptor, SmemDescriptor
    from .smem.instruction_descriptor import InstructionDescriptor, instruction_descriptor
    from .smem.operand_read import OperandRead, operand_read, tcgen05_read
    from .smem.tile import SPANS, SWIZZLES, SmemTile, as_tile, smem_atom, smem_tile, swizzle_of, widest_swizzle
    from .tiled.copy import TiledCopy
    from .tiled.derived_copies import (
        make_cotiled_copy,
        make_tiled_copy,
        make_tiled_copy_A,
        make_tiled_copy_B,
        make_tiled_copy_C,
        make_tiled_copy_C_atom,
        make_tiled_copy_D,
        make_tiled_copy_S,
        make_tiled_copy_tv,
        tiled_copy_of_tile,
    )
    from .tiled.mma import Fragment, TiledMma, make_tiled_mma
    from .tiled.thread_map import View
    from .tma.derive import TmaCopy, TmaPlan, can_tma, tma_load, tma_reduce, tma_store
    from .tma.gather import GatherPlan, tma_gather
    from .tma.im2col import Im2colMap, Im2colPlan, tma_im2col
    from .tma.rules import TensorMap
    from .tmem.fragment import AccumulatorFragment, accumulator_fragment
    from .tmem.layout import TmemLayout, block_scale_layout

__all__ = [
    "FAMILIES",
    "SPANS",
    "SWIZZLES",
    "Access",
    "AccumulatorFragment",
    "AsyncCopy",
    "BulkCopy",
    "Container",
    "CopyAtom",
    "Fragment",
    "GatherPlan",
    "Im2colMap",
    "Im2colPlan",
    "InstructionDescriptor",
    "MmaAtom",
    "OperandDescriptor",
    "OperandRead",
    "ScaleFactors",
    "SmemDescriptor",
    "SmemTile",
    "Tcgen05Atom",
    "TensorMap",
    "TiledCopy",
    "TiledMma",
    "TmaCopy",
    "TmaPlan",
    "TmemCopyAtom",
    "TmemLayout",
    "VectorCopy",
    "View",
    "WidestVector",
    "accumulator_fragment",
    "as_tile",
    "async_copies",
    "atoms",
    "block_scale_layout",
    "bulk_copy",
    "can_tma",
    "cp_async",
    "decode",
    "describe",
    "diff",
    "feeds",
    "fma",
    "fragment",
    "instruction_descriptor",
    "ldmatrix",
    "ldmatrix_m16n8",
    "load_global",
    "load_shared",
    "make_cotiled_copy",
    "make_tiled_copy",
    "make_tiled_copy_A",
    "make_tiled_copy_B",
    "make_tiled_copy_C",
    "make_tiled_copy_C_atom",
    "make_tiled_copy_D",
    "make_tiled_copy_S",
    "make_tiled_copy_tv",
    "make_tiled_mma",
    "matrix_copies",
    "mma_sync",
    "movmatrix",
    "operand_map",
    "operand_read",
    "row_addresses",
    "smem_atom",
    "smem_tile",
    "st_async",
    "stmatrix",
    "store_global",
    "store_shared",
    "swizzle_of",
    "tcgen05_cp",
    "tcgen05_ld",
    "tcgen05_mma",
    "tcgen05_read",
    "tcgen05_st",
    "tiled_copy_of_tile",
    "tma_gather",
    "tma_im2col",
    "tma_load",
    "tma_reduce",
    "tma_store",
    "universal_copy",
    "vector_copies",
    "wgmma",
    "widest",
    "widest_swizzle",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = named_later(__name__)
