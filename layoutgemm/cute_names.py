"""CuTe's names that are no function here, and what is written in their place: part of the errors of unknown names."""

from __future__ import annotations

INSTEAD = {
    "ArithTuple": "a coordinate is a tuple, and E(0), E(1) are the steps along its modes",
    "ceil_div": "write -(-a // b)",
    "compact_col_major": "write Layout(shape).stride",
    "compact_row_major": "write Layout.ordered(shape, order).stride, the last mode first",
    "domain_offset": "a slice has the offset: A.slice(coord), A[1, :]",
    "elem_less": "write all(x < n for x, n in zip(coord, shape))",
    "filter_zeros": "A.filter() leaves out the modes of stride 0",
    "LayoutLeft": "Layout(shape) is column-major",
    "LayoutRight": "Layout.ordered((4, 8), (1, 0)) is row-major",
    "make_copy_atom": "an instruction is its atom: layoutgemm.atoms.ldmatrix(4), universal_copy(128, 'bf16')",
    "make_fragment_like": "a layout stands for its tensor: make_layout_like(A), or TiledMma.fragment('C', tile)",
    "make_identity_tensor": "write make_identity_layout(shape)",
    "make_mma_atom": "an instruction is its atom: layoutgemm.atoms.mma_sync('m16n8k16'), wgmma(64)",
    "make_rmem_tensor": "a layout stands for its tensor",
    "make_tensor": "a layout stands for its tensor: local_tile, local_partition and slices give (layout, offset)",
    "make_tensor_like": "a layout stands for its tensor: make_layout_like(A)",
    "make_tiled_tma_atom": "write layoutgemm.atoms.tma_load(gmem, smem)",
    "make_tma_atom": "write layoutgemm.atoms.tma_load(gmem, smem)",
    "print_latex": "A.svg(path) draws it, A.show() prints it",
    "print_layout": "A.show() prints it",
    "print_tensor": "A.show() prints it",
    "round_up": "write -(-a // b) * b",
    "Tensor": "a layout stands for its tensor, and a slice has its offset",
    "TiledMMA": "it is layoutgemm.atoms.TiledMma",
}
