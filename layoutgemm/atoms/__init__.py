"""Hardware as objects: matrix instructions, shared-memory tiles, descriptors and tensor copies."""

from .copy import CopyAtom
from .descriptor import OperandDescriptor, SmemDescriptor
from .mma import MmaAtom, ScaleFactors
from .mma_wgmma import wgmma
from .smem import SPANS, SmemTile, smem_atom, smem_tile, swizzle_of, widest_swizzle
from .tiled_copies import (
    make_cotiled_copy,
    make_tiled_copy,
    make_tiled_copy_A,
    make_tiled_copy_B,
    make_tiled_copy_C,
    make_tiled_copy_C_atom,
    make_tiled_copy_D,
    make_tiled_copy_S,
    make_tiled_copy_tv,
)
from .tiled_copy import TiledCopy
from .tiled_mma import Fragment, TiledMma
from .tiled_view import View
from .tma import TmaCopy, TmaPlan

__all__ = [
    "SPANS",
    "CopyAtom",
    "Fragment",
    "MmaAtom",
    "OperandDescriptor",
    "ScaleFactors",
    "SmemDescriptor",
    "SmemTile",
    "TiledCopy",
    "TiledMma",
    "TmaCopy",
    "TmaPlan",
    "View",
    "make_cotiled_copy",
    "make_tiled_copy",
    "make_tiled_copy_A",
    "make_tiled_copy_B",
    "make_tiled_copy_C",
    "make_tiled_copy_C_atom",
    "make_tiled_copy_D",
    "make_tiled_copy_S",
    "make_tiled_copy_tv",
    "smem_atom",
    "smem_tile",
    "swizzle_of",
    "wgmma",
    "widest_swizzle",
]
