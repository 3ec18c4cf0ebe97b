"""The Layout: a shape and a stride, and everything that can be done with it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NoReturn

from ..arguments import DEPTH, as_int, is_int, refusal, shown, unknown_argument
from ..cute_names import ATTRIBUTES
from ..errors import CoordinateError, LayoutError
from ..graph_marks import not_in_graphs
from ..lazy_numpy import np
from . import int_tuple as _t
from . import profiles, registries
from .algebra import divide as _divide
from .algebra import inverse as _inverse
from .algebra import recast as _recast
from .algebra.compose import compose as _compose
from .algebra.divide import as_tiler
from .basis import as_stride, assemble, component, has_basis, identity_stride, paths_of
from .display import Convertible, HasPage, PicturedLayout
from .int_tuple import (
    BEYOND,
    ONE_DIGIT,
    SYMBOLS_SEEN,
    Pair,
    Shape,
    Stride,
    as_shape,
    check_congruent,
    check_enumerable,
    coal,
    crd2idx,
    show_coord,
)
from .predicates import Predicates
from .proofs import verdicts as _proof
from .proofs.verdicts import Answer, Verdict
from .symbols.dispatch import has_symbols, symbols_in


class Layout(PicturedLayout, Predicates, HasPage, Convertible):
    """A function from coordinates to offsets: coordinate -> sum of coordinate * stride, in elements.

    The domain is the shape: its coordinates are tuples of its nesting, or flat indices in colexicographic order (the
    first mode runs fastest), or anything between. The codomain is whatever the strides count; with basis strides
    (`E(0)`, `8*E(1)`) it is coordinates. `Layout(shape)` is compact and column-major.

    Frozen and hashable; `==` compares shape and stride as written, `equivalent` compares functions. `str` is CuTe's
    notation, `parse` its inverse, and `repr` evaluates back. Raises LayoutError for a stride that is not congruent with
    the shape, an extent below 1, and any entry that is no integer.

    >>> L = Layout((8, (2, 2)), (2, (1, 16)))
    >>> L(3, (1, 0)), L(27), str(L), L
    (7, 23, '(8,(2,2)):(2,(1,16))', Layout((8, (2, 2)), (2, (1, 16))))

    Source: `cute/layout.hpp` in NVIDIA/cutlass, and arXiv 2603.02298.
    """

    __slots__ = ("_conditions", "shape", "stride")
    shape: Any
    stride: Any
    _conditions: tuple[str, ...]  # of layouts with symbols only
    _plain = True  # no swizzle: what the normal form applies to
    _symbolic = False  # SymbolicLayout has symbols among its entries

    @not_in_graphs
    def __new__(cls, shape: object, stride: object = None, **other: NoReturn) -> Layout:
        """A layout of integers, or with symbols where an entry is one."""
        if other:
            raise unknown_argument(cls.__new__, other)
        # Python compares integers of one digit in a third of the time, where a jump follows.
        if shape.__class__ is not int or shape < 1 or shape > ONE_DIGIT:
            seen = SYMBOLS_SEEN[0]
            shape = as_shape(shape)
        else:
            if stride is None:
                stride = 1
            if stride.__class__ is int and stride >= 0 and stride <= ONE_DIGIT:
                self = _object_new(cls)
                _set_shape(self, shape)
                _set_stride(self, stride)
                return self
            seen = SYMBOLS_SEEN[0]
        if stride is None:
            stride = _t.compact(shape) if shape.__class__ is tuple else 1
        else:
            stride = as_stride(stride)
            check_congruent(shape, stride)
        if SYMBOLS_SEEN[0] != seen and has_symbols(shape, stride):
            with_symbols: Layout = registries.symbolic(shape, stride)
            return with_symbols
        self = _object_new(cls)
        _set_shape(self, shape)
        _set_stride(self, stride)
        return self

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in ATTRIBUTES]

    @staticmethod
    def _new(shape: Shape, stride: Stride) -> Layout:
        """A layout of parts that are known to be well formed: no checks."""
        self = _object_new(Layout)
        _set_shape(self, shape)
        _set_stride(self, stride)
        return self

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Layout is frozen: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Layout is frozen: cannot delete {name}")

    # ------------------------------------------------------------ construction

    @staticmethod
    def identity(shape: Any) -> Layout:
        """The layout that maps each coordinate to itself. Strides E(i), nested as the shape is; i to (i,) for an int.

        >>> str(Layout.identity((4, (2, 3)))), Layout.identity((4, (2, 3)))(5)
        ('(4,(2,3)):(1@0,(1@0@1,1@1@1))', (1, (1, 0)))
        """
        shape = as_shape(shape)
        return Layout(shape, identity_stride(shape))

    @staticmethod
    def ordered(shape: object, order: object) -> Layout:
        """The compact layout whose modes take the strides in the given order, smallest first.

        >>> str(Layout.ordered((2, 8, 4), (1, 0, 2)))
        '(2,8,4):(8,1,16)'
        """
        shape = as_shape(shape)
        return Layout(shape, _divide.ordered(shape, order))

    @staticmethod
    def join(*layouts: Layout) -> Layout:
        """One layout with the given layouts as its modes.

        >>> str(Layout.join(Layout(4), Layout((2, 3), (4, 8))))
        '(4,(2,3)):(1,(4,8))'
        """
        for x in layouts:
            if not isinstance(x, Layout):
                raise LayoutError(refusal(x, "a mode of a layout", "a Layout"))
        out = tuple([x.shape for x in layouts]), as_stride(tuple([x.stride for x in layouts]))
        _t.check_depth(out[0])
        if has_symbols(*out):
            joined: Layout = registries.symbolic(*out, *layouts)
            return joined
        return _new(*out)

    @staticmethod
    def parse(text: str) -> Any:
        """The layout in a text of str(), CuTe, its DSL, pycute or Triton. See notation.parse.

        A ComposedLayout where there is a swizzle before a layout, a Swizzle where it stands alone, a LinearLayout of
        Triton's bases, a Listing of several named layouts.

        >>> str(Layout.parse("tensor<ptr<f16, gmem, align<16>> o (4,8):(8,1)>"))
        '(4,8):(8,1)'
        """
        return registries.parsed(text)

    @staticmethod
    def from_expr(formula: object, shape: object = None, /, **extents: object) -> Any:
        """The layout of a formula of the coordinates. A ComposedLayout for an offset or a XOR. See formula.from_expr.

        `formula` is a function, a SymPy expression or a text; the extents of its variables come by keyword, or as a
        shape in the order of a function's parameters. Raises LayoutError with the first coordinate that no layout fits.

        >>> print(Layout.from_expr("16*(t//32) + (t//4)%8 + 8*(v%2)", t=128, v=2))
        ((4,8,4),2):((0,1,16),8)
        """
        return registries.layout_of_formula(formula, shape, **extents)

    # ------------------------------------------------------------ properties

    @property
    def size(self) -> Any:
        """The number of coordinates: the product of the extents."""
        shape = self.shape
        return prod(_t.leaves(shape)) if shape.__class__ is tuple else shape

    @property
    def cosize(self) -> Any:
        """The span of the offsets, 1 + sum of (extent-1)*|stride|. For coordinates the product of their spans.

        >>> Layout((4, 2), (1, 8)).cosize
        12
        """
        if self.has_basis:
            return prod([_new(self.shape, component(self.stride, p)).cosize for p in paths_of(self.stride)])
        return 1 + sum([(s - 1) * abs(d) for s, d in zip(_t.leaves(self.shape), _t.leaves(self.stride))])

    @property
    def conditions(self) -> tuple[str, ...]:
        """The facts about symbols that this layout rests on; () for a layout of integers."""
        return ()

    @property
    def rank(self) -> int:
        """The number of top-level modes."""
        return len(self.shape) if self.shape.__class__ is tuple else 1

    @property
    def depth(self) -> int:
        """The depth of the nesting: 0 for an integer shape."""
        return _t.depth(self.shape)

    @property
    def has_basis(self) -> bool:
        """True if the values are coordinates."""
        return has_basis(self.stride)

    # ------------------------------------------------------------ as a function

    def __call__(self, *coord: object) -> Any:
        """The offset of a coordinate. Ints are checked against the shape; int arrays and traced integers are not."""
        c = coord[0] if len(coord) == 1 else coord
        try:
            if has_basis(self.stride):
                return assemble({p: crd2idx(c, self.shape, component(self.stride, p)) for p in paths_of(self.stride)})
            return crd2idx(c, self.shape, self.stride)
        except CoordinateError as error:
            raise CoordinateError(f"{self} at {show_coord(c)}: {error.reason}", error.witness) from None

    def coord(self, index: object) -> Any:
        """The coordinate of a flat index, nested as the shape is. An int out of range raises CoordinateError.

        >>> Layout((4, (2, 3))).coord(13)
        (1, (1, 1))
        """
        return _t.idx2crd(index, self.shape)

    def offsets(self) -> Any:
        """All values in order of the flat index: an int64 array of length size. For coordinates a tuple of arrays.

        Raises LayoutError where a value does not fit int64 or the array would have more than 2^28 entries.

        >>> Layout((2, 3), (3, 1)).offsets().tolist()
        [0, 3, 1, 4, 2, 5]
        """
        check_enumerable("offsets()", self)
        if has_basis(self.stride):
            return assemble({p: _new(self.shape, component(self.stride, p)).offsets() for p in paths_of(self.stride)})
        S, D = coal(self.shape, self.stride)
        if not S:
            return np.zeros(1, np.int64)
        if sum([(s - 1) * abs(d) for s, d in zip(S, D)]) >= 1 << 63:
            raise LayoutError(f"offsets() of {self}: the offsets do not fit 64 bits")
        out = np.arange(S[0], dtype=np.int64) * D[0]
        for s, d in zip(S[1:], D[1:]):
            out = ((np.arange(s, dtype=np.int64) * d)[:, None] + out).ravel()
        return out

    # ------------------------------------------------------------ modes and slices

    def __len__(self) -> int:
        return self.rank

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Layout]:
        return (self[i] for i in range(self.rank))

    def __getitem__(self, i: object) -> Any:
        """Mode i as a layout. A Python slice gives the layout of those modes; `[:, 0]` an entry of some modes.

        `L[:, k]` is the function c -> L(c, k), with `:` or None for the modes that stay, as in `L[:, (0, None)]`. Where
        its values do not begin at 0 it is a ComposedLayout that adds the offset, of coordinates a CoordinateTensor.
        Raises LayoutError for a part of a mode, as in `L[0:4, 0]`.

        >>> L = Layout((4, (2, 3)), (6, (1, 2)))
        >>> str(L[1]), str(L[:, 0]), str(L[:, 5]), L[:, 5](2) == L(2, 5)
        ('(2,3):(1,2)', '(4):(6)', 'S<0,0,0> o 5 o (4):(6)', True)
        """
        if i.__class__ is tuple:
            rest, offset = self.slice(kept(i, self))
            if offset.__class__ is int and offset == 0:
                return rest
            return (registries.coordinates_from if offset.__class__ is tuple else registries.offset_by)(rest, offset)
        shape, stride = self.shape, self.stride
        if shape.__class__ is not tuple:
            shape, stride = (shape,), (stride,)
        try:
            if i.__class__ is int or i.__class__ is slice or is_int(i):
                return _new(shape[i], stride[i])
        except (IndexError, TypeError):
            pass
        raise NoMode(f"{self} has no mode {shown(i)}")

    def slice(self, coord: object) -> tuple[Layout, Any]:
        """The layout of the modes that None keeps, and the offset of the others.

        >>> rest, offset = Layout((4, (2, 3)), (6, (1, 2))).slice((1, (None, 2)))
        >>> str(rest), offset
        ('(2):(1)', 10)
        """
        if coord is None:
            return self, 0
        S, D = _recast.select(coord, self.shape, self.stride, True)
        if has_basis(self.stride):
            offset = assemble({p: self._offset(coord, component(self.stride, p)) for p in paths_of(self.stride)})
        else:
            offset = self._offset(coord, self.stride)
        return self._again(_new(tuple(S), tuple(D))), offset

    def _offset(self, coord: object, stride: Stride) -> Any:
        return _recast.offset(coord, self.shape, stride)

    def _again(self, plain: Layout) -> Layout:
        """A layout made of this one's entries, on the same conditions."""
        return plain

    def dice(self, coord: object) -> Layout:
        """The layout of the modes that have an integer in coord, which slice drops. An integer alone keeps all.

        >>> str(Layout((4, 2, 3)).dice((None, 0, 0))), str(Layout((4, 2)).dice(5))
        ('(2,3):(4,8)', '(4,2):(1,4)')
        """
        S, D = _recast.select(coord, self.shape, self.stride, False)
        if S == [self.shape] and not isinstance(coord, (tuple, list)):
            return self
        return _new(tuple(S), tuple(D))

    # ------------------------------------------------------------ the same function, other modes

    def flatten(self) -> Layout:
        """Without nesting. '(4,(2,3)):(1,(4,8))' -> '(4,2,3):(1,4,8)'."""
        return _new(_t.flatten(self.shape), _t.flatten(self.stride))

    def coalesce(self, profile: object = None) -> Layout:
        """As few modes as the function of the flat index allows. A profile keeps its modes and coalesces inside them.

        In a profile an int marks a mode to coalesce, None one to leave, a tuple goes deeper; modes past its end stay.

        >>> L = Layout((2, (1, 6)), (1, (6, 2)))
        >>> str(L.coalesce()), str(L.coalesce((1, 1)))
        ('12:1', '(2,6):(1,2)')
        """
        if profile is not None:
            profile = _t.as_profile(profile)
            return _new(*_t.by_profile(_t.coalesce, self.shape, self.stride, profile))
        S, D = coal(self.shape, self.stride)
        if len(S) > 1:
            return _new(tuple(S), tuple(D))
        return _new(S[0], D[0]) if S else _new(1, 0)

    def filter(self, profile: object = None) -> Layout:
        """Coalesced without the modes of stride 0. The same values, each as often as the other modes give it.

        >>> str(Layout((4, 2, 3), (0, 1, 2)).filter())
        '6:1'
        """
        if profile is not None:
            profile = _t.as_profile(profile)
            return _new(*_t.by_profile(_t.filter_zeros, self.shape, self.stride, profile))
        return _new(*_t.filter_zeros(self.shape, self.stride))

    def with_shape(self, *shape: object) -> Layout:
        """The same function of the flat index under another shape of the same size.

        Raises CompositionError where no layout of that shape has the function.

        >>> str(Layout((4, 6)).with_shape(2, 12))
        '(2,12):(1,2)'
        """
        target = Layout(shape[0] if len(shape) == 1 else shape)
        if target.size != self.size:
            raise LayoutError(
                f"{self} has {self.size} coordinates, and the shape {_t.show(target.shape)} {target.size}"
            )
        return self.compose(target)

    def group(self, begin: int, end: int) -> Layout:
        """Modes begin..end-1 as one mode.

        >>> str(Layout((2, 3, 5)).group(0, 2))
        '((2,3),5):((1,2),6)'
        """
        begin, end = as_int(begin, "the first mode of a group"), as_int(end, "the end of a group")
        if not 0 <= begin < end <= self.rank:
            raise LayoutError(f"{self} has no modes {begin}..{end - 1} to group")
        s, d = self[:].shape, self[:].stride
        return _made((s[:begin] + (s[begin:end],) + s[end:], d[:begin] + (d[begin:end],) + d[end:]))

    def select(self, *modes: int) -> Layout:
        """The layout of the named modes, in the order named.

        >>> str(Layout((2, 3, 5)).select(2, 0))
        '(5,2):(6,1)'
        """
        named = modes[0] if len(modes) == 1 and isinstance(modes[0], (tuple, list)) else modes
        chosen = [as_int(i, "a mode to select") for i in named]
        for i in chosen:
            if not -self.rank <= i < self.rank:
                raise LayoutError(f"{self} has no mode {i} to select")
        return Layout.join(*[self[i] for i in chosen])

    def append(self, mode: Layout) -> Layout:
        """The layout with one more mode at its end.

        >>> str(Layout((4, 8)).append(Layout(3, 32)))
        '(4,8,3):(1,4,32)'
        """
        return Layout.join(*self, mode)

    def prepend(self, mode: Layout) -> Layout:
        """The layout with one more mode at its beginning."""
        return Layout.join(mode, *self)

    # ------------------------------------------------------------ the algebra

    def compose(self, other: Any) -> Any:
        """self o other. The layout with other's modes and the function c -> self(other(c)), or CompositionError.

        Right or refused: it answers exactly when such a layout exists. Offsets past the end of self run on in its last
        mode, whose stride counts there even when its extent is 1 (CuTe's definition). `other` is a Layout, an int n
        (the layout n:1), or a tuple with one of these or None (leave as is) for each mode; modes past its end stay.

        >>> str(Layout((6, 2), (8, 2)) @ Layout((4, 3), (3, 1)))
        '((2,2),3):((24,2),8)'
        >>> Layout((4, 2), (1, 8)).can_compose(Layout((2, 2), (1, 3))).witness
        3
        """
        if other.__class__ is Layout:
            return _new(*_compose(self.shape, self.stride, other.shape, other.stride))
        if getattr(other.__class__, "_swizzled", False):
            return other.after(self)
        other = as_tiler(other)
        if symbols_in(other):
            return registries.lifted(self).compose(other)
        return _made(_divide.by_mode(_divide.composed, self.shape, self.stride, other))

    __matmul__ = compose

    def complement(self, bound: Any = None) -> Layout:
        """The layout of the translates of self's image that lie disjoint in 0..bound-1. None stops at self's own end.

        A bound that is a shape stands for its size, as in CuTe.

        Two roundings are CuTe's definition: the last mode has ceil(bound / end) entries, and the gap below a mode has
        room for floor(stride / end) translates. There `end` is the end of the modes of smaller stride. Raises
        LayoutError where a mode begins below that end, and for a negative stride.

        >>> str(Layout((2, 2), (1, 8)).complement(32))
        '(4,2):(2,16)'
        """
        if bound is None:
            bound = 1
        elif bound.__class__ is not int or not 0 < bound < BEYOND:
            if isinstance(bound, (tuple, list)):
                bound = _t.product(as_shape(bound))
            if symbols_in(bound):
                return registries.lifted(self).complement(bound)
            bound = as_int(bound, "the bound of complement", least=1)
        return _new(*_inverse.complement(self.shape, self.stride, bound))

    def right_inverse(self) -> Layout:
        """The largest R with self(R(i)) = i, i < size(R).

        Largest for an injective layout with strides >= 0; otherwise the longest chain of whole modes.

        >>> str(Layout((4, 8), (8, 1)).right_inverse())
        '(8,4):(4,1)'
        """
        return _new(*_inverse.right_inverse(self.shape, self.stride))

    def left_inverse(self) -> Layout:
        """R with R(self(i)) = i for every flat index i. The right inverse of (self, complement of self).

        A padded layout, whose complement leaves gaps out, has its digits. Raises LayoutError where self is not
        injective, or has neither a complement nor strides each of which divides the next.

        >>> str(Layout(4, 2).left_inverse()), str(Layout((8, 4), (1, 12)).left_inverse())
        ('(2,4):(4,1)', '(12,4):(1,8)')
        """
        return _new(*_inverse.left_inverse(self.shape, self.stride))

    def nullspace(self) -> Layout:
        """The coordinates that the modes of stride 0 spend.

        >>> str(Layout((2, 5), (5, 0)).nullspace())
        '5:2'
        """
        return _new(*_inverse.nullspace(self.shape, self.stride))

    def max_common_layout(self, other: Layout) -> Layout:
        """The largest R along other's right inverse with self(R(i)) = other(R(i)) = i.

        >>> str(Layout((4, 8), (1, 4)).max_common_layout(Layout((4, 8), (1, 16))))
        '4:1'
        """
        if getattr(other.__class__, "_swizzled", False):
            shared: Layout = other.max_common_layout(self)
            return shared
        other = as_tiler(other)
        if symbols_in(other):
            return registries.lifted(self).max_common_layout(other)
        return _new(*_inverse.max_common((self.shape, self.stride), _divide.tiler_pair(other)))

    def max_common_vector(self, other: Layout) -> Any:
        """The number of elements that both layouts store side by side, in one order. The size of max_common_layout.

        >>> Layout((4, 8), (1, 4)).max_common_vector(Layout((4, 8), (1, 16)))
        4
        """
        return self.max_common_layout(other).size

    def _split(self, name: str, gather: _divide.Gather, split: _divide.Split, tiler: object) -> Layout:
        """The operation `name`: `gather` arranges the halves that `split` makes of each mode."""
        if tiler.__class__ is not int and tiler.__class__ is not Layout:
            tiler = as_tiler(tiler)
            if symbols_in(tiler):
                with_symbols: Layout = getattr(registries.lifted(self), name)(tiler)
                return with_symbols
        return _made(gather(split, self.shape, self.stride, tiler))

    def logical_divide(self, tiler: object) -> Layout:
        """self o (T, complement of T up to self.size). Mode 0 a tile, mode 1 the tiles; mode by mode for a tuple.

        An int or a Layout divides the whole, a tuple each mode. Tiles may hang over its end, where the last entry runs
        on. Where no layout is that function, the entry in which the tile ends is rounded up to whole tiles, as in CuTe;
        a divided `make_identity_layout` tells which elements exist. Raises CompositionError with the first coordinate
        that fails, LayoutError where the tile's translates overlap or leave elements out.

        >>> str(Layout((4, 6)).logical_divide((2, 3)))
        '((2,2),(3,2)):((1,2),(4,12))'
        >>> str(Layout(10).logical_divide(4)), str(Layout((5, 2), (1, 60)).logical_divide(2))
        ('(4,3):(1,4)', '(2,(3,2)):(1,(2,60))')
        """
        return self._split("logical_divide", _divide.by_mode, _divide.divide, tiler)

    def zipped_divide(self, tiler: object) -> Layout:
        """logical_divide with all tile modes in mode 0 and all others in mode 1.

        >>> str(Layout((4, 6)).zipped_divide((2, 3)))
        '((2,3),(2,2)):((1,4),(2,12))'
        """
        return self._split("zipped_divide", _divide.zipped, _divide.divide, tiler)

    def tiled_divide(self, tiler: object) -> Layout:
        """zipped_divide with the modes of mode 1 at the top: '((2,3),2,2)'."""
        return self._split("tiled_divide", _divide.tiled, _divide.divide, tiler)

    def flat_divide(self, tiler: object) -> Layout:
        """zipped_divide with the modes of both modes at the top: '(2,3,2,2)'."""
        return self._split("flat_divide", _divide.flat, _divide.divide, tiler)

    def logical_product(self, tiler: object) -> Layout:
        """(self, complement of self o tiler). Mode 0 is self, mode 1 places disjoint copies in the tiler's order.

        >>> str(Layout((2, 2), (1, 8)).logical_product(4))
        '((2,2),4):((1,8),2)'
        """
        return self._split("logical_product", _divide.by_mode, _divide.multiply, tiler)

    def zipped_product(self, tiler: object) -> Layout:
        """logical_product with all block modes in mode 0 and all copies in mode 1."""
        return self._split("zipped_product", _divide.zipped, _divide.multiply, tiler)

    def tiled_product(self, tiler: object) -> Layout:
        """zipped_product with the modes of mode 1 at the top."""
        return self._split("tiled_product", _divide.tiled, _divide.multiply, tiler)

    def flat_product(self, tiler: object) -> Layout:
        """zipped_product with the modes of both modes at the top."""
        return self._split("flat_product", _divide.flat, _divide.multiply, tiler)

    def blocked_product(self, tiler: object) -> Layout:
        """Copies of self side by side: mode i is (block mode i, tiler mode i).

        >>> str(Layout((2, 2)).blocked_product(Layout((3, 1))))
        '((2,3),(2,1)):((1,4),(2,12))'
        """
        return self._split("blocked_product", _divide.blocked, _divide.multiply, tiler)

    def raked_product(self, tiler: object) -> Layout:
        """Copies of self interleaved: mode i is (tiler mode i, block mode i), coalesced.

        >>> str(Layout((2, 2)).raked_product(Layout((3, 1))))
        '((3,2),2):((4,1),2)'
        """
        return self._split("raked_product", _divide.raked, _divide.multiply, tiler)

    def tile_to_shape(self, shape: object, order: object = None) -> Layout:
        """self repeated until it fills `shape`, tiles in `order` (None: column-major). Each extent is a multiple of
        self's.

        >>> str(Layout((8, 8), (8, 1)).tile_to_shape((16, 16), (1, 0)))
        '((8,2),(8,2)):((8,128),(1,64))'
        """
        target = as_shape(shape)
        if symbols_in(target):
            return registries.lifted(self).tile_to_shape(target, order)
        return _made(_divide.tile_to_shape((self.shape, self.stride), target, order))

    # ------------------------------------------------------------ other widths of elements

    def upcast(self, n: int) -> Layout:
        """The layout of elements n times as wide. Offsets in elements -> offsets in groups of n.

        R(c) = self(k*c) // n with k = ceil(n / stride) in each mode; the last group of a mode may be partly filled
        (CuTe's definition). Raises LayoutError where no strides say that: a stride above n and no multiple of it.

        >>> str(Layout((8, 4), (1, 8)).upcast(4))
        '(2,4):(1,2)'
        """
        return _new(*_recast.upcast(self.shape, self.stride, _recast.factor(n, "upcast")))

    def downcast(self, n: int) -> Layout:
        """The layout of elements of an n-th of the width. Each mode of stride 1 takes in the parts (CuTe's definition).

        >>> str(Layout((2, 4), (1, 2)).downcast(4))
        '(8,4):(1,8)'
        """
        return _new(*_recast.downcast(self.shape, self.stride, _recast.factor(n, "downcast")))

    def recast(self, new_bits: int, old_bits: int) -> Layout:
        """From elements of old_bits to elements of new_bits: the same bits. Raises LayoutError for fractions of one.

        As in CuTe, what lies between two elements is part of a wider one.

        >>> str(Layout((8, 4)).recast(8, 16)), Layout(4).can_recast(6, 8).ok
        ('(16,4):(1,16)', False)
        >>> str(Layout((4,), (2,)).recast(32, 16))    # every second 16 bits, and those between them
        '(4):(1)'
        """
        new, old = (as_int(x, f"{y} of recast", least=1) for x, y in ((new_bits, "new_bits"), (old_bits, "old_bits")))
        return _new(*_recast.recast(self.shape, self.stride, new, old))

    # ------------------------------------------------------------ statements

    def expr(self, *names: str) -> Any:
        """The value as a SymPy expression of the coordinates, one name for each mode. See formula.expr.

        >>> Layout(((4, 8, 4), 2), ((0, 1, 16), 8)).expr("t", "v")
        8*v + 16*(t//32) + (t//4)%8
        """
        return registries.expression_of(self, *names)

    def equivalent(self, other: object) -> Answer:
        """Compare two functions of the flat index: a Proof, or the first CounterExample.

        >>> Layout((4, 2)).equivalent(Layout(8)).ok, Layout((3, 2)).equivalent(Layout((3, 2), (1, 2))).explain()
        (True, 'not equivalent: (0,1) gives 3 and 2')
        """
        if getattr(other, "_symbolic", False):
            return registries.lifted(self).equivalent(other)
        return _proof.between(_proof.equivalent(self, other), self, other)

    def is_injective(self) -> Answer:
        """Proof that no two coordinates share a value. Otherwise a CounterExample with the first two flat indices that
        do.

        >>> Layout((2, 2), (1, 1)).is_injective().witness
        (1, 2)
        """
        return _proof.injective(self.shape, self.stride)

    def is_bijective(self) -> Answer:
        """Proof that the values are 0..size-1, each once, or CounterExample."""
        return _proof.bijective(self.shape, self.stride)

    def congruent(self, other: Any) -> Verdict:
        """Verdict: both shapes have one nesting; `other` is a layout or a tuple.

        >>> Layout((2, (3, 4))).congruent(Layout((2, 12))).reason
        '(2,(3,4)) is not congruent to (2,12): mode 1 is (3,4) and 12'
        """
        if isinstance(other, Layout) or getattr(other.__class__, "_swizzled", False):
            return profiles.congruent(self.shape, other.shape)
        return profiles.congruent(self.shape, _t.as_entries(other, "what a layout is congruent to"))

    def __eq__(self, other: object) -> bool:
        return other.__class__ is Layout and self.shape == other.shape and self.stride == other.stride

    def __hash__(self) -> int:
        return hash((self.shape, self.stride))

    def __reduce__(self) -> tuple[object, ...]:
        return Layout, (self.shape, self.stride)

    def __repr__(self) -> str:
        return f"Layout({_t.code(self.shape)}, {_t.code(self.stride)})"

    def __str__(self) -> str:
        return f"{_t.show(self.shape)}:{_t.show(self.stride)}"


class _Absent:
    """An attribute that tensors have and layouts lack. Its AttributeError says what to write.

    A `__getattr__` would make each attribute of a layout take five times as long.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.__doc__ = None  # that of the class would make it a method of pages and help()

    def __get__(self, layout: Layout | None, owner: type) -> NoReturn:
        kind = f"type object {owner.__name__!r}" if layout is None else f"{owner.__name__!r} object"
        said = f"{kind} has no attribute {self._name!r}: {ATTRIBUTES[self._name]}"
        raise AttributeError(said, name=self._name, obj=layout)


for _name in ATTRIBUTES:
    setattr(Layout, _name, _Absent(_name))

_object_new = object.__new__
_set_shape = Layout.__dict__["shape"].__set__
_set_stride = Layout.__dict__["stride"].__set__
_new = Layout._new
registries.layout_of.register(object)(_new)


def _made(pair: Pair) -> Layout:
    """The result of an operation that puts modes into modes. Raises LayoutError where it nests too deep."""
    shape, stride = pair
    if shape.__class__ is tuple:
        for s in shape:
            if s.__class__ is tuple:
                for t in s:
                    if t.__class__ is tuple:  # most results end above
                        _t.check_depth(s, DEPTH - 2)
                        break
    self = _object_new(Layout)
    _set_shape(self, shape)
    _set_stride(self, stride)
    return self


def kept(key: object, layout: object, left: int = DEPTH) -> tuple[object, ...]:
    """The coordinate of a subscript with several modes: None for `:`. Raises LayoutError for a part of a mode.

    >>> kept((slice(None), 3, (None, 0)), Layout((4, 4, (2, 2))))
    (None, 3, (None, 0))
    """
    if not left:
        raise _t.too_deep("a subscript")
    out: list[object] = []
    for each in key if isinstance(key, tuple) else ():
        if isinstance(each, slice):
            if each != slice(None):
                start, stop = ("" if x is None else x for x in (each.start, each.stop))
                raise LayoutError(
                    f"{layout}[{start}:{stop}]: a subscript keeps a whole mode, ':', or takes one entry; a part of a "
                    "mode is a tile of logical_divide()"
                )
            each = None
        out.append(kept(each, layout, left - 1) if each.__class__ is tuple else each)
    return tuple(out)


class NoMode(LayoutError, IndexError):
    """A layout has no mode of this number: an IndexError too, as sequences raise it."""
