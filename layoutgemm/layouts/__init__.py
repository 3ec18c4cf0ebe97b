"""The layout algebra: layouts, swizzles, and everything that is done with them. Where to look, by theme:

Layouts of integers     int_tuple: shapes, strides, coordinates; basis: strides that lead to coordinates; layout: the
                        Layout; algebra: its operations; swizzle: Swizzle, ComposedLayout; predicates: verdicts in
                        place of exceptions; functions: CuTe's names as free functions
Text                    notation: text back into layouts; listing: several by name; texts: other notations than CuTe's,
                        of C++, Triton, torch, NumPy, MLIR
Layouts with symbols    symbols.dims: dim; polynomial, generators: what an entry is when it is no int; facts, solver:
                        what is known; conditions: what was used; symbolic_layout, operations, views: the operations;
                        sympy_io: to and from SymPy
Proofs                  proofs.verdicts: Proof, CounterExample, Undecided, and layouts of integers; prove, sizes:
                        layouts with symbols; linear, gf2: LinearLayout, matrices over GF(2); digits, digit_boxes,
                        index_formulas: index formulas
Formulas                formulas: closed forms of layouts, and layouts of closed forms
Names by file           registries: what layouts ask of the files above them; over_layout: functions of offsets;
                        profiles: congruent and compatible
Methods                 display: pictures, pages and objects of the CuTe DSL

A layout of integers handed to compose enters layout, algebra.compose, basis, int_tuple; no file that knows symbols.
"""

from typing import TYPE_CHECKING

from ..lazy_names import named_later
from .basis import E, ScaledBasis
from .coordinates import CoordinateTensor
from .functions import (
    append,
    blocked_product,
    coalesce,
    compatible,
    complement,
    composition,
    congruent,
    cosize,
    crd2idx,
    depth,
    dice,
    downcast,
    filter,
    flat_divide,
    flat_product,
    flatten,
    get,
    group_modes,
    idx2crd,
    left_inverse,
    local_partition,
    local_tile,
    logical_divide,
    logical_product,
    make_composed_layout,
    make_identity_layout,
    make_layout,
    make_layout_like,
    make_layout_tv,
    make_ordered_layout,
    make_swizzle,
    max_common_layout,
    max_common_vector,
    nullspace,
    prepend,
    product,
    product_each,
    raked_product,
    rank,
    recast_layout,
    right_inverse,
    select,
    shape,
    size,
    slice_,
    slice_and_offset,
    stride,
    tile_to_shape,
    tiled_divide,
    tiled_product,
    upcast,
    weakly_congruent,
    with_shape,
    zipped_divide,
    zipped_product,
)
from .layout import Layout
from .linear import LinearLayout
from .notation import parse
from .proofs.verdicts import CounterExample, Proof, Undecided, Verdict
from .swizzle import ComposedLayout, Swizzle

__all__ = [
    "ComposedLayout",
    "CoordinateTensor",
    "CounterExample",
    "E",
    "Layout",
    "LinearLayout",
    "Proof",
    "ScaledBasis",
    "Swizzle",
    "Undecided",
    "Verdict",
    "append",
    "blocked_product",
    "coalesce",
    "compatible",
    "complement",
    "composition",
    "congruent",
    "cosize",
    "crd2idx",
    "depth",
    "dice",
    "downcast",
    "filter",
    "flat_divide",
    "flat_product",
    "flatten",
    "get",
    "group_modes",
    "idx2crd",
    "left_inverse",
    "local_partition",
    "local_tile",
    "logical_divide",
    "logical_product",
    "make_composed_layout",
    "make_identity_layout",
    "make_layout",
    "make_layout_like",
    "make_layout_tv",
    "make_ordered_layout",
    "make_swizzle",
    "max_common_layout",
    "max_common_vector",
    "nullspace",
    "parse",
    "prepend",
    "product",
    "product_each",
    "raked_product",
    "rank",
    "recast_layout",
    "right_inverse",
    "select",
    "shape",
    "size",
    "slice_",
    "slice_and_offset",
    "stride",
    "tile_to_shape",
    "tiled_divide",
    "tiled_product",
    "upcast",
    "weakly_congruent",
    "with_shape",
    "zipped_divide",
    "zipped_product",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = named_later(__name__)
