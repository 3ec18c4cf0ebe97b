"""Names of CuTe and its kin, and what is written in their place.

Errors of unknown names say so.
"""

from __future__ import annotations

INSTEAD = {
    "ArithTuple": "a coordinate is a tuple, and E(0), E(1) are the steps along its modes",
    "ceil_div": "write -(-a // b)",
    "coalescing_efficiency": "it is layoutgemm.checks.sectors",
    "compact_col_major": "write Layout(shape).stride",
    "compact_row_major": "write Layout.ordered(shape, order).stride, the last mode first",
    "compose": "it is layoutgemm.layouts.composition, or A @ B",
    "concat": "it is layoutgemm.layouts.make_layout(A, B)",
    "crd2flat": "write Layout(shape)(coord)",
    "domain_offset": "a slice has the offset: A.slice(coord), A[1, :]",
    "draw_layout": "A.svg(path) draws it",
    "draw_swizzle": "the swizzle's svg(path) draws it",
    "elem_less": "write all(x < n for x, n in zip(coord, shape))",
    "filter_zeros": "A.filter() leaves out the modes of stride 0",
    "functionally_equal": "write A.equivalent(B)",
    "is_bijective": "write A.is_bijective()",
    "is_injective": "write A.is_injective()",
    "is_surjective": "write LinearLayout.of(A).is_surjective(), or A.covers(B)",
    "iter_layout": "A.coord(i) and A(i) for i in range(A.size)",
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
    "mode": "write A[i], or get(A, [i])",
    "print_latex": "A.svg(path) draws it, A.show() prints it",
    "print_layout": "A.show() prints it",
    "print_tensor": "A.show() prints it",
    "round_up": "write -(-a // b) * b",
    "Tensor": "a layout stands for its tensor, and a slice has its offset",
    "TiledMMA": "it is layoutgemm.atoms.TiledMma",
    "to_F2_matrix": "write LinearLayout.of(A).matrix()",
}
