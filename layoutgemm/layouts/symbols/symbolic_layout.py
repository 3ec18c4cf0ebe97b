"""Layouts with symbols: `Layout(...)` returns one if an extent or stride is a symbol.

>>> from layoutgemm import Layout
>>> from layoutgemm.layouts.symbols.dims import dim
>>> M, N = dim("M", multiple_of=64), dim("N")
>>> tiles = Layout((M, N), (N, 1)).zipped_divide((64, None))
>>> str(tiles), tiles.conditions
('((64,1),(M//64,N)):((N,0),(64*N,1))', ('64 | M',))
>>> Layout((M, N), (N, 1)).logical_divide((None, 8))  # doctest: +ELLIPSIS
Traceback (most recent call last):
    ...
layoutgemm.layouts.symbols.polynomial.MissingFact: a divide of 8:1: ceil(N / 8) copies: needs 8 | N or ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...arguments import shown
from ...errors import CoordinateError, LayoutError
from .. import int_tuple as _t
from .. import registries
from ..algebra import divide as _divide
from ..algebra import recast as _recast
from ..basis import ScaledBasis, as_stride, assemble, component, has_basis, paths_of
from ..int_tuple import Pair, Shape, Stride, as_shape, leaves, product
from ..layout import Layout
from ..proofs.verdicts import Answer, between
from . import operations as _ops
from . import views as _views
from .conditions import recording, strongest
from .dims import entry, is_sympy, to_sympy
from .facts import Facts
from .generators import GENERATORS, check_symbols
from .polynomial import MissingFact, Polynomial, Scalar, ge0, gens, needs_ge


def make(shape: Shape, stride: Stride, conditions: tuple[str, ...] = ()) -> Layout:
    """A layout of well-formed parts. A plain one when no entry is a symbol and it rests on no facts."""
    if not conditions and not _ops.has_symbols(shape, stride):
        return Layout._new(shape, stride)
    return _symbolic(shape, stride, conditions)


def _symbolic(shape: Shape, stride: Stride, conditions: tuple[str, ...]) -> SymbolicLayout:
    self = object.__new__(SymbolicLayout)
    for name, value in (("shape", shape), ("stride", stride), ("_conditions", conditions)):
        object.__setattr__(self, name, value)
    return self


@registries.symbolic.register(object)
def joined(shape: Shape, stride: Stride, *layouts: Layout) -> Layout:
    """A layout of checked entries, with the conditions of the given layouts."""
    check_symbols(generators(shape, stride))
    return make(shape, stride, together(*layouts))


def generators(*xs: object) -> list[int]:
    """The generators in entries, tuples and layouts, sorted."""
    found: set[int] = set()
    _gather(xs, found)
    return sorted(found)


def _gather(x: Iterable[object], found: set[int]) -> None:
    for y in x:
        if y.__class__ is Polynomial:
            for m in y.terms:
                found.update(m)
        elif y.__class__ is tuple:
            _gather(y, found)
        elif y.__class__ is ScaledBasis and y.value.__class__ is Polynomial:
            found.update(gens(y.value))


class SymbolicLayout(Layout):
    """A layout some of whose extents or strides are symbols. A function for every size that their facts allow.

    Every operation of Layout keeps the symbols, is right at every size, and otherwise raises MissingFact or
    CompositionError with the facts that would decide it. `conditions` lists the facts that the operations behind a
    layout used. `given` applies facts, `at` puts numbers in.
    """

    __slots__ = ()
    _symbolic = True

    @property
    def conditions(self) -> tuple[str, ...]:
        """The facts that this layout rests on: `64 | M`. Those of the operations it came from, in order."""
        return self._conditions

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of the symbols in the entries."""
        return tuple(sorted({GENERATORS[g].symbol for g in generators(self.shape, self.stride)}))

    def given(self, *facts: object) -> Layout:
        """The layout under more facts: texts, relations, or a Facts.

        >>> from layoutgemm.layouts.symbols.dims import dim
        >>> str(Layout((dim("M"), 8)).given("64 | M").logical_divide(64))
        '(64,M//8):(1,64)'
        """
        out: Layout = Facts(*facts)(self)
        return out

    def at(self, **values: int) -> Layout:
        """The layout at the given sizes; a plain Layout when no symbol is left.

        >>> from layoutgemm.layouts.symbols.dims import dim
        >>> str(Layout((dim("M"), dim("N"))).at(M=128, N=3))
        '(128,3):(1,128)'
        """
        return self.given(*[f"{name} == {entry(value, name)}" for name, value in values.items()])

    # ------------------------------------------------------------ inside

    def _made(self, operation: Callable[..., Pair], *args: object, also: Sequence[Layout] | None = None) -> Layout:
        """The result of an operation on pairs, with the conditions it used."""
        others = () if also is None else also
        for x in others:
            _same_symbols(self, x)
        with recording() as used:
            shape, stride = operation(self.shape, self.stride, *args)
        if shape.__class__ is tuple:
            _t.check_depth(shape)
        before = [c for x in (self, *others) for c in conditions_of(x)]
        return make(shape, stride, tuple(strongest(before + used)) if before else tuple(used))

    # ------------------------------------------------------------ properties and values

    @property
    def cosize(self) -> Scalar:
        """The span of the offsets. Raises MissingFact where the sign of a stride is not known."""
        if self.has_basis:
            return Layout.cosize.fget(self)  # type: ignore[attr-defined]
        total: Scalar = 1
        for s, d in zip(leaves(self.shape), leaves(self.stride)):
            if not ge0(d) and not ge0(-d):
                raise MissingFact(f"cosize of {self}: the sign of {d}", needs_ge(d))
            total = total + (s - 1) * (d if ge0(d) else -d)
        return total

    def __call__(self, *coord: object) -> Any:
        """The offset of a coordinate of ints, symbols, SymPy expressions or traced integers."""
        c = coord[0] if len(coord) == 1 else coord
        if isinstance(c, (tuple, list)):
            c = _t.as_nested(c, "a coordinate", _same)
        entries = _flat(c)
        if any(map(is_sympy, entries)):
            return to_sympy(self(_entries(c)))
        c = _checked(c)
        if has_basis(self.stride):
            return assemble(
                {p: _views.crd2idx(c, self.shape, component(self.stride, p)) for p in paths_of(self.stride)}
            )
        return _views.crd2idx(c, self.shape, self.stride)

    def coord(self, index: object) -> Any:
        """The coordinate of a flat index, as far as the facts decide it."""
        if isinstance(index, (tuple, list)):
            index = _t.as_nested(index, "a coordinate", _same)
        return _views.split(index, self.shape) if _all_entries(index) else super().coord(index)

    def offsets(self) -> Any:
        """Refused: an array needs numbers. `at` puts them in."""
        raise LayoutError(
            f"offsets() of {self}: put numbers in first, as in .at({', '.join(f'{s}=...' for s in self.symbols)})"
        )

    def _offset(self, coord: object, stride: object) -> Any:
        return _offset(coord, self.shape, stride)

    # ------------------------------------------------------------ the algebra

    def __getitem__(self, i: object) -> Layout:
        found = super().__getitem__(i)
        return self._again(found) if isinstance(found, Layout) and i.__class__ is not tuple else found

    def _again(self, plain: Layout) -> Layout:
        """A layout made of this one's entries, with its conditions."""
        return make(plain.shape, plain.stride, self._conditions)

    def compose(self, other: Any) -> Any:
        """See Layout.compose."""
        if isinstance(other, Layout):
            return self._made(_ops.compose, other.shape, other.stride, also=(other,))
        if getattr(other.__class__, "_swizzled", False):
            return other.after(self)
        return self._tiled(_divide.by_mode, _ops.composed, other)

    __matmul__ = compose

    def complement(self, bound: object = None) -> Layout:
        """See Layout.complement; the bound may be symbolic."""
        bound = product(as_shape(bound)) if isinstance(bound, (tuple, list)) else bound
        return self._made(_ops.complement, 1 if bound is None else entry(bound, "the bound of a complement"))

    def right_inverse(self) -> Layout:
        """See Layout.right_inverse; a chain that goes on at some sizes only ends.

        Of overlapping chains it takes the longest that the facts show, else the first.
        """
        return self._made(_ops.right_inverse)

    def left_inverse(self) -> Layout:
        """See Layout.left_inverse."""
        return self._made(_ops.left_inverse)

    def max_common_layout(self, other: Layout) -> Layout:
        """See Layout.max_common_layout: as large as the facts show."""
        tiler = as_tiler(other)
        pair = _divide.tiler_pair(tiler)
        return self._made(lambda s, d: _ops.max_common((s, d), pair), also=_layouts_in(tiler))

    def filter(self, profile: object = None) -> Layout:
        """See Layout.filter; no stride may be 0 at some sizes only."""
        return self._made(lambda s, d: _ops.nonzero("filter", super(SymbolicLayout, self).filter(profile), s, d))

    def nullspace(self) -> Layout:
        """See Layout.nullspace; no stride may be 0 at some sizes only."""
        return self._made(lambda s, d: _ops.nonzero("nullspace", super(SymbolicLayout, self).nullspace(), s, d))

    def _tiled(self, through: Callable[..., Pair], split: object, tiler: object) -> Layout:
        tiler = as_tiler(tiler)
        return self._made(lambda s, d: through(split, s, d, tiler), also=_layouts_in(tiler))

    def _split(self, name: str, gather: _divide.Gather, split: _divide.Split, tiler: object) -> Layout:
        """See Layout._split; the halves are those of layouts with symbols."""
        return self._tiled(gather, _ops.divide if split is _divide.divide else _ops.multiply, tiler)

    def tile_to_shape(self, shape: object, order: object = None) -> Layout:
        """See Layout.tile_to_shape."""
        target = as_shape(shape)
        return self._made(lambda s, d: _divide.tile_to_shape((s, d), target, order, _ops.multiply, _ops.copies))

    def upcast(self, n: int) -> Layout:
        """See Layout.upcast."""
        factor = _recast.factor(n, "upcast")
        _recast._refuse_basis("upcast", self.shape, self.stride)
        return self._made(_views.upcast, factor)

    def downcast(self, n: int) -> Layout:
        """See Layout.downcast; a symbolic stride must be known to be at least 2."""
        factor = _recast.factor(n, "downcast")
        _recast._refuse_basis("downcast", self.shape, self.stride)
        return self._made(_views.downcast, factor)

    def recast(self, new_bits: int, old_bits: int) -> Layout:
        """See Layout.recast."""
        new, old = _recast.factor(new_bits, "recast (new_bits)"), _recast.factor(old_bits, "recast (old_bits)")
        _recast._refuse_basis("recast", self.shape, self.stride)
        return self._made(_views.recast, new, old)

    # ------------------------------------------------------------ statements

    def equivalent(self, other: object) -> Answer:
        """Prove that both are one function of the flat index, at every size."""
        return between(registries.proven(self, other), self, other)

    def is_injective(self) -> Answer:
        """Prove that no two coordinates share a value, at every size."""
        return registries.injective(self)

    def is_bijective(self) -> Answer:
        """Prove that the values are 0..size-1, each once, at every size."""
        return registries.bijective(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.shape == other.shape and self.stride == other.stride

    def __hash__(self) -> int:
        return hash((self.shape, self.stride))

    def __reduce__(self) -> tuple[object, ...]:
        return make, (self.shape, self.stride, self._conditions)


def _again(name: str) -> Callable[..., Layout]:
    """Layout's own method, which works on any entries, with the conditions carried over."""
    plain = getattr(Layout, name)

    def method(self: SymbolicLayout, *args: object, **kwargs: object) -> Layout:
        return self._again(plain(self, *args, **kwargs))

    method.__name__ = name
    method.__qualname__ = f"SymbolicLayout.{name}"
    method.__doc__ = f"See Layout.{name}."
    return method


for _name in ("coalesce", "dice", "flatten", "group"):
    setattr(SymbolicLayout, _name, _again(_name))


# ---------------------------------------------------------------- arguments


@registries.lifted.register(Layout)
def lift(layout: Layout) -> SymbolicLayout:
    """A plain layout as one whose operations take symbols in their arguments."""
    if isinstance(layout, SymbolicLayout):
        return layout
    return _symbolic(layout.shape, layout.stride, ())


def conditions_of(x: object) -> tuple[str, ...]:
    """The conditions of a layout; a plain one has none."""
    return x._conditions if isinstance(x, SymbolicLayout) else ()


def together(*layouts: Layout) -> tuple[str, ...]:
    """The conditions of several layouts that go into one; raises FactError where their symbols clash."""
    check_symbols(generators(*[y for x in layouts for y in (x.shape, x.stride)]))
    return tuple(strongest([c for x in layouts for c in conditions_of(x)]))


@registries.applied.register(Layout)
def applied(layout: Layout, f: Callable[[object], object]) -> Layout:
    """The layout with every entry replaced, under the same conditions."""
    shape, stride = as_shape(f(layout.shape)), as_stride(f(layout.stride))
    return make(shape, stride, conditions_of(layout) if _ops.has_symbols(shape, stride) else ())


def _same_symbols(a: Layout, b: Layout) -> None:
    check_symbols(generators(a.shape, a.stride, b.shape, b.stride))


def as_tiler(tiler: object) -> Any:
    """A tiler with its SymPy entries as symbols; a symbol alone is the layout tiler:1."""
    return _with_symbols(_divide.as_tiler(tiler))


def _with_symbols(tiler: object) -> Any:
    if tiler is None or tiler.__class__ is int or isinstance(tiler, Layout):
        return tiler
    if tiler.__class__ is tuple:
        return tuple([_with_symbols(t) for t in tiler])
    x = entry(tiler)
    return Layout(x, 1) if x.__class__ is Polynomial else x


def _layouts_in(tiler: object) -> list[Layout]:
    if isinstance(tiler, (tuple, list)):
        return [x for t in tiler for x in _layouts_in(t)]
    return [tiler] if isinstance(tiler, Layout) else []


def _same(x: object, what: str) -> Any:
    return x


def _flat(x: object) -> list[Any]:
    return [z for y in x for z in _flat(y)] if isinstance(x, (tuple, list)) else [x]


def _entries(x: object) -> Shape:
    return tuple([_entries(y) for y in x]) if isinstance(x, (tuple, list)) else entry(x, "a coordinate")


def _all_entries(x: object) -> bool:
    return all(y.__class__ is int or y.__class__ is Polynomial for y in _flat(x))


def _checked(x: object) -> Any:
    """A coordinate of ints, symbols and traced integers; an array of numbers has no arithmetic with symbols."""
    if isinstance(x, (tuple, list)):
        return tuple([_checked(y) for y in x])
    x = _t.scalar(x)
    if hasattr(x, "dtype") and getattr(x, "shape", ()) != ():
        raise CoordinateError(f"a layout with symbols takes no arrays: put numbers in first, with at(); not {shown(x)}")
    return x


def _offset(coord: Any, shape: Any, stride: Any) -> Any:
    if coord is None:
        return 0
    if isinstance(coord, (tuple, list)):
        total: Scalar = 0
        for c, s, d in zip(coord, shape, stride):
            total = total + _offset(c, s, d)
        return total
    return _views.crd2idx(entry(coord, "a coordinate"), shape, stride)
