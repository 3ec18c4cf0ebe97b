"""Hardware as objects: matrix instructions, shared-memory tiles, descriptors and tensor copies."""

from .copy import CopyAtom
from .copy_tmem import TmemCopyAtom, tcgen05_cp, tcgen05_ld, tcgen05_st
from .descriptor import OperandDescriptor, SmemDescriptor
from .mma import MmaAtom, ScaleFactors
from .mma_tcgen05 import Tcgen05Atom, tcgen05_mma
from .mma_wgmma import wgmma
from .smem import SPANS, SmemTile, smem_atom, smem_tile, swizzle_of, widest_swizzle
from .tma import TmaCopy, TmaPlan
from .tmem import TmemLayout
from .tmem_fragment import AccumulatorFragment, accumulator_fragment

__all__ = [
    "SPANS",
    "AccumulatorFragment",
    "CopyAtom",
    "MmaAtom",
    "OperandDescriptor",
    "ScaleFactors",
    "SmemDescriptor",
    "SmemTile",
    "Tcgen05Atom",
    "TmaCopy",
    "TmaPlan",
    "TmemCopyAtom",
    "TmemLayout",
    "accumulator_fragment",
    "smem_atom",
    "smem_tile",
    "swizzle_of",
    "tcgen05_cp",
    "tcgen05_ld",
    "tcgen05_mma",
    "tcgen05_st",
    "wgmma",
    "widest_swizzle",
]
