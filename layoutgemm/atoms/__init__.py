"""Hardware as objects: matrix instructions, shared-memory tiles, descriptors and tensor copies."""

from .copy import CopyAtom
from .descriptor import OperandDescriptor, SmemDescriptor
from .mma import MmaAtom, ScaleFactors
from .mma_wgmma import wgmma
from .smem import SPANS, SmemTile, smem_atom, smem_tile, swizzle_of, widest_swizzle
from .tma import TmaCopy, TmaPlan

__all__ = [
    "SPANS",
    "CopyAtom",
    "MmaAtom",
    "OperandDescriptor",
    "ScaleFactors",
    "SmemDescriptor",
    "SmemTile",
    "TmaCopy",
    "TmaPlan",
    "smem_atom",
    "smem_tile",
    "swizzle_of",
    "wgmma",
    "widest_swizzle",
]
