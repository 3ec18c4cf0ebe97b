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
from .basis import E as E
from .basis import ScaledBasis as ScaledBasis
from .coordinates import CoordinateTensor as CoordinateTensor
from .functions import append as append
from .functions import blocked_product as blocked_product
from .functions import coalesce as coalesce
from .functions import compatible as compatible
from .functions import complement as complement
from .functions import composition as composition
from .functions import congruent as congruent
from .functions import cosize as cosize
from .functions import crd2idx as crd2idx
from .functions import depth as depth
from .functions import dice as dice
from .functions import downcast as downcast
from .functions import filter as filter
from .functions import flat_divide as flat_divide
from .functions import flat_product as flat_product
from .functions import flatten as flatten
from .functions import get as get
from .functions import group_modes as group_modes
from .functions import idx2crd as idx2crd
from .functions import left_inverse as left_inverse
from .functions import local_partition as local_partition
from .functions import local_tile as local_tile
from .functions import logical_divide as logical_divide
from .functions import logical_product as logical_product
from .functions import make_composed_layout as make_composed_layout
from .functions import make_identity_layout as make_identity_layout
from .functions import make_layout as make_layout
from .functions import make_layout_like as make_layout_like
from .functions import make_layout_tv as make_layout_tv
from .functions import make_ordered_layout as make_ordered_layout
from .functions import make_swizzle as make_swizzle
from .functions import max_common_layout as max_common_layout
from .functions import max_common_vector as max_common_vector
from .functions import nullspace as nullspace
from .functions import prepend as prepend
from .functions import product as product
from .functions import product_each as product_each
from .functions import raked_product as raked_product
from .functions import rank as rank
from .functions import recast_layout as recast_layout
from .functions import right_inverse as right_inverse
from .functions import select as select
from .functions import shape as shape
from .functions import size as size
from .functions import slice_ as slice_
from .functions import slice_and_offset as slice_and_offset
from .functions import stride as stride
from .functions import tile_to_shape as tile_to_shape
from .functions import tiled_divide as tiled_divide
from .functions import tiled_product as tiled_product
from .functions import upcast as upcast
from .functions import weakly_congruent as weakly_congruent
from .functions import with_shape as with_shape
from .functions import zipped_divide as zipped_divide
from .functions import zipped_product as zipped_product
from .layout import Layout as Layout
from .linear import LinearLayout as LinearLayout
from .notation import parse as parse
from .proofs.verdicts import CounterExample as CounterExample
from .proofs.verdicts import Proof as Proof
from .proofs.verdicts import Undecided as Undecided
from .proofs.verdicts import Verdict as Verdict
from .swizzle import ComposedLayout as ComposedLayout
from .swizzle import Swizzle as Swizzle

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = named_later(__name__)
