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
from .tma import TmaCopy, TmaPlan

__all__ = [
    "FAMILIES",
    "SPANS",
    "Container",
    "CopyAtom",
    "MmaAtom",
    "OperandDescriptor",
    "ScaleFactors",
    "SmemDescriptor",
    "SmemTile",
    "TmaCopy",
    "TmaPlan",
    "atoms",
    "fma",
    "fragment",
    "mma_sync",
    "smem_atom",
    "smem_tile",
    "swizzle_of",
    "wgmma",
    "widest_swizzle",
]
