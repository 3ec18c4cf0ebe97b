"""Refusals of objects of other kinds, and of some operations of the CuTe DSL. These have no atom here.

Of each operation: what it is, why it has no atom, and the way out. The tests hold the reasons against the DSL, so that
a version of it that can more is noticed.
"""

from __future__ import annotations

from ..errors import LayoutError


class UnsupportedObject(LayoutError, TypeError):
    """An object of a kind that the function does not take: a TypeError too."""


# What remains of an atom that is refused: its maps are layouts. {}: the side, src or dst.
MAPS = "the maps of an atom of it are layouts, as in from_cute(x.layout_{}_tv)"

_IM2COL = (
    "a tensor copy in im2col mode: which pixel an element belongs to is said by the tensor map, and not by its atom; "
    f"{MAPS.format('dst')}, and a box in tile mode is layoutgemm.atoms.tma_load(tensor, tile); "
    "layoutgemm.atoms.tma_im2col derives the map of a convolution"
)
_OVERRIDE = (
    "a tensor copy whose address, box and strides are given when it is issued, and the DSL makes no atom of it "
    "(make_tiled_tma_atom refuses it): for the box that you give, take layoutgemm.atoms.tma_load or tma_store of "
    "from_cute(tensor) and from_cute(tile)"
)
_COMPRESS = (
    "tcgen05.ld.spcompress of sm_107a: which registers its compressed values lie in, no document read here says, and "
    "the DSL's map is that of the plain load; that one is layoutgemm.atoms.tcgen05_ld, and "
    f"{MAPS.format('dst')}"
)
_SPARSE = (
    "mma.sp, of which DSL 4.8.1 makes no atom (its compiler lacks the type), so that nothing could be compared; C is "
    "laid out as in layoutgemm.atoms.mma_sync of the same M and N, the stored half of A as in that of half the K"
)

# (part of cutlass.cute.nvgpu, class) -> what an error says of it.
REFUSED = {
    ("cpasync", "CopyBulkTensorIm2ColG2SOp"): _IM2COL,
    ("cpasync", "CopyBulkTensorIm2ColG2SMulticastOp"): _IM2COL,
    ("cpasync", "CopyBulkTensorIm2ColS2GOp"): _IM2COL.replace("tma_load", "tma_store"),
    ("cpasync", "CopyBulkTensorTileG2SOverrideOp"): _OVERRIDE,
    ("cpasync", "CopyBulkTensorTileG2SMulticastOverrideOp"): _OVERRIDE,
    ("cpasync", "CopyBulkTensorTileS2GOverrideOp"): _OVERRIDE,
    ("tcgen05", "LdSPCompress32x32bOp"): _COMPRESS,
    ("tcgen05", "LdRedSPCompress32x32bOp"): _COMPRESS.replace("ld.spcompress", "ld.red.spcompress"),
    ("warp", "MmaF16BF16SparseOp"): _SPARSE,
}
