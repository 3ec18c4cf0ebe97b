"""Hardware as objects: matrix instructions, shared-memory tiles, descriptors and tensor copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import named_later

if TYPE_CHECKING:
    from .catalog import FAMILIES as FAMILIES
    from .catalog import atoms as atoms
    from .copy.base import Access as Access
    from .copy.base import CopyAtom as CopyAtom
    from .copy.cp_async import AsyncCopy as AsyncCopy
    from .copy.cp_async import BulkCopy as BulkCopy
    from .copy.cp_async import async_copies as async_copies
    from .copy.cp_async import bulk_copy as bulk_copy
    from .copy.cp_async import cp_async as cp_async
    from .copy.cp_async import st_async as st_async
    from .copy.feeds_mma import feeds as feeds
    from .copy.feeds_mma import operand_map as operand_map
    from .copy.feeds_mma import row_addresses as row_addresses
    from .copy.ldmatrix import ldmatrix as ldmatrix
    from .copy.ldmatrix import ldmatrix_m16n8 as ldmatrix_m16n8
    from .copy.ldmatrix import matrix_copies as matrix_copies
    from .copy.ldmatrix import movmatrix as movmatrix
    from .copy.ldmatrix import stmatrix as stmatrix
    from .copy.tmem import TmemCopyAtom as TmemCopyAtom
    from .copy.tmem import tcgen05_cp as tcgen05_cp
    from .copy.tmem import tcgen05_ld as tcgen05_ld
    from .copy.tmem import tcgen05_st as tcgen05_st
    from .copy.vector import VectorCopy as VectorCopy
    from .copy.vector import WidestVector as WidestVector
    from .copy.vector import load_global as load_global
    from .copy.vector import load_shared as load_shared
    from .copy.vector import store_global as store_global
    from .copy.vector import store_shared as store_shared
    from .copy.vector import universal_copy as universal_copy
    from .copy.vector import vector_copies as vector_copies
    from .copy.vector import widest as widest
    from .mma.base import Container as Container
    from .mma.base import MmaAtom as MmaAtom
    from .mma.base import ScaleFactors as ScaleFactors
    from .mma.fma import fma as fma
    from .mma.sync import mma_sync as mma_sync
    from .mma.tcgen05 import Tcgen05Atom as Tcgen05Atom
    from .mma.tcgen05 import tcgen05_mma as tcgen05_mma
    from .mma.warp_fragments import fragment as fragment
    from .mma.wgmma import wgmma as wgmma
    from .smem.describe import decode as decode
    from .smem.describe import describe as describe
    from .smem.describe import diff as diff
    from .smem.descriptor import OperandDescriptor as OperandDescriptor
    from .smem.descriptor import SmemDescriptor as SmemDescriptor
    from .smem.instruction_descriptor import InstructionDescriptor as InstructionDescriptor
    from .smem.instruction_descriptor import instruction_descriptor as instruction_descriptor
    from .smem.operand_read import OperandRead as OperandRead
    from .smem.operand_read import operand_read as operand_read
    from .smem.operand_read import tcgen05_read as tcgen05_read
    from .smem.tile import SPANS as SPANS
    from .smem.tile import SWIZZLES as SWIZZLES
    from .smem.tile import SmemTile as SmemTile
    from .smem.tile import as_tile as as_tile
    from .smem.tile import smem_atom as smem_atom
    from .smem.tile import smem_tile as smem_tile
    from .smem.tile import swizzle_of as swizzle_of
    from .smem.tile import widest_swizzle as widest_swizzle
    from .tiled.copy import TiledCopy as TiledCopy
    from .tiled.derived_copies import make_cotiled_copy as make_cotiled_copy
    from .tiled.derived_copies import make_tiled_copy as make_tiled_copy
    from .tiled.derived_copies import make_tiled_copy_A as make_tiled_copy_A
    from .tiled.derived_copies import make_tiled_copy_B as make_tiled_copy_B
    from .tiled.derived_copies import make_tiled_copy_C as make_tiled_copy_C
    from .tiled.derived_copies import make_tiled_copy_C_atom as make_tiled_copy_C_atom
    from .tiled.derived_copies import make_tiled_copy_D as make_tiled_copy_D
    from .tiled.derived_copies import make_tiled_copy_S as make_tiled_copy_S
    from .tiled.derived_copies import make_tiled_copy_tv as make_tiled_copy_tv
    from .tiled.derived_copies import tiled_copy_of_tile as tiled_copy_of_tile
    from .tiled.mma import Fragment as Fragment
    from .tiled.mma import TiledMma as TiledMma
    from .tiled.mma import make_tiled_mma as make_tiled_mma
    from .tiled.thread_map import View as View
    from .tma.derive import TmaCopy as TmaCopy
    from .tma.derive import TmaPlan as TmaPlan
    from .tma.derive import can_tma as can_tma
    from .tma.derive import tma_load as tma_load
    from .tma.derive import tma_reduce as tma_reduce
    from .tma.derive import tma_store as tma_store
    from .tma.gather import GatherPlan as GatherPlan
    from .tma.gather import tma_gather as tma_gather
    from .tma.im2col import Im2colMap as Im2colMap
    from .tma.im2col import Im2colPlan as Im2colPlan
    from .tma.im2col import tma_im2col as tma_im2col
    from .tma.rules import TensorMap as TensorMap
    from .tmem.fragment import AccumulatorFragment as AccumulatorFragment
    from .tmem.fragment import accumulator_fragment as accumulator_fragment
    from .tmem.layout import TmemLayout as TmemLayout
    from .tmem.layout import block_scale_layout as block_scale_layout

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = named_later(__name__)
