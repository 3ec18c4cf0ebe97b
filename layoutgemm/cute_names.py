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

ATTRIBUTES = {  # of a tensor, that a layout has not
    "contiguous": "write make_layout_like(A)",
    "dim": "write A.rank",
    "is_contiguous": "write A.is_bijective()",
    "mT": "write A.select((1, 0))",
    "ndim": "write A.rank",
    "numel": "write A.size",
    "permute": "write A.select((1, 0)), the modes in their new order",
    "reshape": "write A.with_shape((8, 4)), column-major",
    "strides": "write A.stride",
    "T": "write A.select((1, 0))",
    "transpose": "write A.select((1, 0))",
    "view": "write A.with_shape((8, 4)), column-major",
}

# The parameter that a function has, and what is written in place of a keyword that it has not: the first that fits.
_B = (
    ("b_major", "b_major='k' has columns of B contiguous, 'mn' rows"),
    ("m", "b='bf16:col' has K contiguous, as weights (N, K) have; 'row' has N"),
    ("b", "give b.mT"),
)
_A = (
    ("a_major", "a_major='k' has rows of A contiguous, 'mn' columns"),
    ("m", "a='bf16:row' has K contiguous; 'col' has M"),
    ("a", "give a.mT"),
)
_TILE = (("config", "write config=Sm90Config(tile=(128, 128)), tile_k=64 beside it"),)
_STAGES = (("config", "write config=Sm90Config(stages=4)"),)
_CLUSTER = (("config", "write config=Sm90Config(cluster=(2, 1))"),)
_SPLIT = (("config", "write config=Sm90Config(split=2)"),)
_WARPS = (("config", "write config=Sm90Config(consumers=2), warpgroups that multiply; Sm80Config(warps=(2, 2))"),)
_GROUPED = (("order", "order='grouped' is one, and config=Sm90Config(tuning=...) has the group"),)
_SUMS = (("config", "sums are float32, and int32 of integers"),)
_TYPE = ("m", "a='bf16', b= and c= are types of matrices"), ("out_dtype", "out_dtype= is the result's type")
_OUT = (("m", "c='f32' is the result's type"),)
_SCALED = (
    ("scale_a", "scales are scale_a and scale_b"),
    ("epilogue", "write epilogue=Epilogue(Scale()), layoutgemm.gemm(alpha, a, b, beta, c) or scaled_matmul"),
)
_ADDED = (("epilogue", "write epilogue=Epilogue(Residual()), or layoutgemm.gemm(alpha, a, b, beta, c)"),)
_FINISH = (("epilogue", "write epilogue=Epilogue(Bias(), Activation('gelu'))"),)
_TRIANGLE = (("order", "order='lower' computes that triangle of C; triangles=Triangles(a='lower') is of an operand"),)
_ROWS = (("rows", "rows= are read, out_rows= written and add_rows= added to"),)
_GROUPS = (
    ("ragged", "write batch=4, ragged=Ragged.of(4)"),
    ("offsets", "b is (groups, K, N), and offsets= or counts= divide the rows"),
)
_TF32 = (("allow_tf32", "allow_tf32=True is for float32"),)
_ORDER = (("stride", "write Layout.ordered((4, 8), (1, 0)), row-major"),)

_ARGUMENTS = {  # names without underscores, in small letters
    "transb transposeb bmajor blayout layout": _B,
    "transa transposea amajor alayout": _A,
    "blockm blockn blockk blocksize mmatiler mmatilermn tile tilem tilen tileshape tileshapemn tileshapemnk": _TILE,
    "numstages stages pipelinestages": _STAGES,
    "cluster clustershape clustershapemn clustersize": _CLUSTER,
    "splitk numsplits": _SPLIT,
    "numwarps warps numconsumers": _WARPS,
    "groupm groupsizem swizzlesize rasterorder": _GROUPED,
    "accdtype accumulatortype accumulatordtype computedtype": _SUMS,
    "dtype type": _TYPE,
    "outdtype outputdtype cdtype": _OUT,
    "alpha beta scale": _SCALED,
    "add addend c d input residual": _ADDED,
    "activation bias": _FINISH,
    "causal iscausal mask triangular": _TRIANGLE,
    "aidx gather gatherindices index indices scatter": _ROWS,
    "batchsizes groups groupsizes msizes numexperts numgroups splits": _GROUPS,
    "precision inputprecision": _TF32,
    "order major": _ORDER,
}


def instead_of(argument: str, known: frozenset[str]) -> str:
    """The text that stands in place of another library's keyword; "" for others.

    known  the names of the function's parameters

    >>> instead_of("trans_b", frozenset({"a", "b"})), instead_of("zzz", frozenset({"a", "b"}))
    ('give b.mT', '')
    """
    plain = argument.lower().replace("_", "")
    fit = (said for names, ways in _ARGUMENTS.items() if plain in names.split() for has, said in ways if has in known)
    return next(fit, "")
