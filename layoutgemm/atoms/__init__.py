"""Hardware as objects: matrix instructions, shared-memory tiles, descriptors and tensor copies."""

from .copy import CopyAtom
from .descriptor import OperandDescriptor, SmemDescriptor
from .families import FAMILIES, atoms
from .fragments import fragment
from .mma import Container, MmaAtom, ScaleFactors
from .mma_fma import fma
from .mma_sync import mma_sync
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
    "FAMILIES",
    "SPANS",
    "Container",
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
    "atoms",
    "fma",
    "fragment",
    "make_cotiled_copy",
    "make_tiled_copy",
    "make_tiled_copy_A",
    "make_tiled_copy_B",
    "make_tiled_copy_C",
    "make_tiled_copy_C_atom",
    "make_tiled_copy_D",
    "make_tiled_copy_S",
    "make_tiled_copy_tv",
    "mma_sync",
    "smem_atom",
    "smem_tile",
    "swizzle_of",
    "wgmma",
    "widest_swizzle",
]
