"""Swizzles, and layouts under a swizzle.

`Swizzle(B, M, S)` XORs B bits of an offset, those from bit M+S up, onto the bits from M up:

    0b...YYY...ZZZ....     B bits YYY from bit M+S, B bits ZZZ from bit M; the M bits below ZZZ stay
    0b...YYY...AAA....     AAA = ZZZ xor YYY

With S < 0 the lower field is XORed onto the upper one. It is its own inverse. The offset counts bytes, or elements of
some number of bits: that is the swizzle's unit. A hardware swizzle has another M in another unit: the 128-byte swizzle
is (3, 4, 3) on bytes and (3, 3, 3) on 16-bit elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ..arguments import MAX_BITS, as_int, checked, is_int, refusal, shown
from ..errors import CompositionError, LayoutError, SwizzleError
from ..graph_marks import NoticedInGraphs
from ..lazy_numpy import has_numpy, np
from . import registries
from .algebra.recast import factor
from .display import Convertible, HasPage, HasPicture, PicturedLayout
from .int_tuple import (
    added,
    bit_field,
    check_enumerable,
    coal_open,
    in_64_bits,
    leaves,
    moved_by,
    show,
    show_coord,
    transform,
)
from .layout import Layout
from .over_layout import OverLayout
from .predicates import Predicates
from .proofs.verdicts import Answer, CounterExample, Proof, Verdict, between, equivalent, layout_of
from .symbols.dims import entry
from .symbols.dispatch import has_symbols

if TYPE_CHECKING:
    import numpy.typing as npt


_set = object.__setattr__
SWIZZLES = 64  # one after another: each takes some of the 1000 calls that Python allows


def as_unit(unit: object) -> int | None:
    """A unit in bits: None, "bytes" (8), or the number of bits of an element."""
    if unit is None:
        return None
    if isinstance(unit, str):
        if unit in ("bytes", "byte"):
            return 8
        raise SwizzleError(f"a swizzle's unit is None, 'bytes' or a number of bits, not {shown(unit)}")
    if not is_int(unit):
        raise SwizzleError(refusal(unit, "a swizzle's unit", "None, 'bytes' or a number of bits"))
    return as_int(unit, "a swizzle's unit, a number of bits,", SwizzleError, least=1)


def _log2(n: int, what: str) -> int:
    if n & (n - 1):
        raise SwizzleError(f"{what}, {n}, is no power of two: the bits of a swizzle would not stay bits")
    return n.bit_length() - 1


class NoStride(SwizzleError, AttributeError):
    """A swizzled layout has no strides: an AttributeError too, so that hasattr() says so."""


class Swizzle(HasPicture, HasPage, Convertible, NoticedInGraphs):
    """The XOR swizzle of B bits at M, from S bits further up. It maps offset -> offset, in its unit.

    Works on ints, integer arrays and traced integers, with `& >> << ^` only. Raises SwizzleError for negative B or M
    and for B > |S| (the fields would overlap, and the map would not be its own inverse).

    >>> sw = Swizzle(3, 4, 3, "bytes")
    >>> sw(0x80), sw(sw(1234)), str(sw), str(sw.recast(16))
    (144, 1234, 'S<3,4,3>[bytes]', 'S<3,3,3>[16b]')

    Source: `cute/swizzle.hpp` in NVIDIA/cutlass.
    """

    __slots__ = ("_by", "_target", "base", "bits", "shift", "unit")
    bits: int
    base: int
    shift: int
    unit: int | None
    _by: int
    _target: int

    def __init__(self, bits: int, base: int, shift: int, unit: int | str | None = None) -> None:
        bits = as_int(bits, "a swizzle's B", SwizzleError, most=MAX_BITS)
        base = as_int(base, "a swizzle's M", SwizzleError, most=MAX_BITS)
        shift = as_int(shift, "a swizzle's S", SwizzleError, least=-MAX_BITS, most=MAX_BITS)
        if bits < 0 or base < 0:
            raise SwizzleError(f"Swizzle({bits}, {base}, {shift}): B and M count bits, and must not be negative")
        if bits > abs(shift):
            raise SwizzleError(
                f"Swizzle({bits}, {base}, {shift}): B = {bits} > |S| = {abs(shift)}, so the two fields of bits overlap"
            )
        _set(self, "bits", bits)
        _set(self, "base", base)
        _set(self, "shift", shift)
        _set(self, "unit", as_unit(unit))
        _set(self, "_by", shift if bits else 0)
        _set(self, "_target", ((1 << bits) - 1) << (base + max(0, -shift)))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Swizzle is frozen: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Swizzle is frozen: cannot delete {name}")

    def __call__(self, x: Any) -> Any:
        """The offset to which offset x is moved."""
        # & binds less than >> and <<: only the bits of the target field are kept of the shifted offset.
        r = self._by
        if x.__class__ is not int:
            x = bit_field(x, "an offset")  # a narrow array could lose bits to the left
            if x.__class__ is np.ndarray and self._target >> 63 and x.dtype != object:
                return in_64_bits(self(x.astype(object)), f"{self} of an array: ")
            if r > 0 and x.__class__ is np.ndarray:
                moved = x >> r
                moved &= self._target
                moved ^= x
                return moved
        if r > 0:
            return x ^ (x >> r & self._target)
        return x ^ (x << -r & self._target) if r else x

    def each(self, offsets: Iterable[int]) -> list[int]:
        """The offsets to which these are moved: a call for all of them.

        >>> Swizzle(3, 0, 3).each([0, 8, 9])
        [0, 9, 8]
        """
        r, target = self._by, self._target
        try:
            if r > 0:
                return [x ^ (x >> r & target) for x in offsets]
            return [x ^ (x << -r & target) for x in offsets] if r else list(offsets)
        except TypeError:
            raise SwizzleError(refusal(offsets, "offsets", "integers in a list")) from None

    @property
    def span(self) -> int:
        """The period: offsets this far apart are moved alike (in the swizzle's unit)."""
        return 1 << (self.base + self.bits + abs(self.shift)) if self.bits else 1

    @property
    def source_mask(self) -> int:
        """The bits that are read (YYY)."""
        return self._target << self.shift if self.shift >= 0 else self._target >> -self.shift

    @property
    def target_mask(self) -> int:
        """The bits that change (ZZZ)."""
        return self._target

    @checked(SwizzleError)
    def recast(self, unit: int | str) -> Swizzle:
        """The same movement of memory counted in another unit: bits of an element, or "bytes".

        Raises SwizzleError when this swizzle has no unit, and when it would take an element of the new unit apart.
        """
        new = as_unit(unit)
        if new is None or self.unit is None:
            raise SwizzleError(f"{self} has no unit to recast from: make it Swizzle({self._numbers()}, unit=...)")
        by = _log2(new, "the new unit") - _log2(self.unit, "the unit")
        return self._rebase(self.base - by, new)

    @checked(SwizzleError)
    def upcast(self, n: int) -> Swizzle:
        """The same movement on elements n times as wide, n a power of two."""
        n = factor(n, "upcast")
        return self._rebase(self.base - _log2(n, "the factor"), None if self.unit is None else self.unit * n)

    @checked(SwizzleError)
    def downcast(self, n: int) -> Swizzle:
        """The same movement on elements of 1/n of the width, n a power of two."""
        n = factor(n, "downcast")
        by = _log2(n, "the factor")
        if self.unit is not None and self.unit % n:
            raise SwizzleError(f"{self} cannot be counted in {n} parts of a {self.unit}-bit element")
        return self._rebase(self.base + by, None if self.unit is None else self.unit // n)

    def _rebase(self, base: int, unit: int | None) -> Swizzle:
        if base < 0 and self.bits == 0:
            base = 0
        if base < 0:
            raise SwizzleError(f"{self} exchanges parts of the wider element: its M would be {base}")
        return Swizzle(self.bits, base, self.shift, unit)

    def compose(self, other: object) -> ComposedLayout:
        """The layout c -> self(other(c)) for a Layout or ComposedLayout."""
        return ComposedLayout(self, 0, other)

    __matmul__ = compose

    @classmethod
    @checked(SwizzleError)
    def parse(cls, text: str) -> Swizzle:
        """The inverse of str(): S<3,4,3>, with an optional unit [bytes] or [16b]."""
        found: Swizzle = registries.parsed(text, kind=Swizzle)
        return found

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Swizzle)
            and self.bits == other.bits
            and self.base == other.base
            and self.shift == other.shift
            and self.unit == other.unit
        )

    def __hash__(self) -> int:
        return hash((Swizzle, self.bits, self.base, self.shift, self.unit))

    def __reduce__(self) -> tuple[object, ...]:
        return Swizzle, (self.bits, self.base, self.shift, self.unit)

    def _numbers(self) -> str:
        return f"{self.bits}, {self.base}, {self.shift}"

    def __repr__(self) -> str:
        unit = "" if self.unit is None else ", 'bytes'" if self.unit == 8 else f", {self.unit}"
        return f"Swizzle({self._numbers()}{unit})"

    def __str__(self) -> str:
        unit = "" if self.unit is None else "[bytes]" if self.unit == 8 else f"[{self.unit}b]"
        return f"S<{self.bits},{self.base},{self.shift}>{unit}"


class ComposedLayout(OverLayout, PicturedLayout, Predicates, HasPage, Convertible):
    """c -> swizzle(offset + layout(c)), from coordinate to offset. Offsets are in the swizzle's unit, which the layout
    counts too.

    `layout` may itself be a ComposedLayout of the same unit. Operations act on the layout inside; a slice keeps its
    offset inside the swizzle, where it belongs. Raises SwizzleError where units differ.

    >>> from layoutgemm import Layout
    >>> atom = Swizzle(3, 3, 3) @ Layout((8, 64), (64, 1))
    >>> str(atom), atom(1, 0), atom(1, 8)
    ('S<3,3,3> o 0 o (8,64):(64,1)', 72, 64)
    """

    __slots__ = ("layout", "offset", "swizzle")
    _swizzled = True
    swizzle: Swizzle
    offset: Any
    layout: Any

    def __init__(self, swizzle: Swizzle, offset: int, layout: object) -> None:
        if not isinstance(swizzle, Swizzle):
            raise LayoutError(refusal(swizzle, "the beginning of a ComposedLayout", "a Swizzle"))
        layout = layout_of(layout)
        if not isinstance(layout, (Layout, ComposedLayout)):
            raise LayoutError(refusal(layout, "the end of a ComposedLayout", "a Layout"))
        if isinstance(layout, ComposedLayout):
            if layout.swizzles >= SWIZZLES:
                raise LayoutError(f"a ComposedLayout has at most {SWIZZLES} swizzles, one after another")
            inner = layout.swizzle.unit
            if inner is not None and swizzle.unit is not None and inner != swizzle.unit:
                raise SwizzleError(
                    f"{swizzle} counts {swizzle.unit} bits and {layout.swizzle} counts {inner}: recast one"
                )
        elif layout.has_basis:
            raise SwizzleError(f"{swizzle} permutes offsets, and {layout} leads to coordinates")
        _set(self, "swizzle", swizzle)
        _set(self, "offset", entry(offset, "the offset of a ComposedLayout"))
        _set(self, "layout", layout)

    @classmethod
    def _new(cls, swizzle: Swizzle, offset: object, layout: object) -> ComposedLayout:
        self = object.__new__(cls)
        _set(self, "swizzle", swizzle)
        _set(self, "offset", offset)
        _set(self, "layout", layout)
        return self

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"ComposedLayout is frozen: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"ComposedLayout is frozen: cannot delete {name}")

    @property
    def swizzles(self) -> int:
        """The number of swizzles, applied one after the other.

        >>> from layoutgemm import Layout
        >>> (Swizzle(1, 0, 3) @ (Swizzle(2, 3, 3) @ Layout(64))).swizzles
        2
        """
        return 1 + getattr(self.layout, "swizzles", 0)

    def with_parts(self, f: Callable[[Any], Any]) -> ComposedLayout:
        """The same swizzle over f(offset) and f(layout)."""
        return ComposedLayout(self.swizzle, f(self.offset), f(self.layout))

    def _with(self, layout: object) -> ComposedLayout:
        return ComposedLayout._new(self.swizzle, self.offset, layout)

    # ------------------------------------------------------------ as a function

    def __call__(self, *coord: object) -> Any:
        """The swizzled offset of a coordinate."""
        x = self.layout(*coord)
        if not (self.offset.__class__ is int and self.offset == 0):
            x = added(x, self.offset)
        return self.swizzle(x)

    def offsets(self) -> npt.NDArray[np.int64]:
        """All values in order of the flat index: a NumPy int64 array of length size.

        Raises LayoutError where a value does not fit int64.
        """
        found: npt.NDArray[np.int64] = self.swizzle(moved_by(self.layout.offsets(), self.offset))
        return in_64_bits(found, f"offsets() of {self}: ") if found.dtype == object else found

    @property
    def stride(self) -> Any:
        """The strides, if the swizzle moves nothing. Raises LayoutError, an AttributeError too, for another swizzle.

        >>> from layoutgemm import Layout
        >>> ComposedLayout(Swizzle(0, 0, 0), 3, Layout((4, 8), (8, 1))).stride
        (8, 1)
        """
        if self.swizzle.bits:
            inside = show(_innermost(self).stride)
            raise NoStride(f"{self} has no strides: its swizzle moves offsets; those of the layout inside are {inside}")
        return self.layout.stride

    has_basis = False  # its values are offsets, never coordinates

    @property
    def cosize(self) -> int:
        """One more than the largest value, found by looking at those that may be it."""
        start, few = self._topmost()
        check_enumerable("cosize", few)
        return 1 + start + (int(np.max(few.offsets())) if has_numpy() else max(map(few, range(few.size))))

    def _topmost(self) -> tuple[int, ComposedLayout]:
        """The last span of offsets that is reached: its start, and the values in it. A swizzle moves none out of it."""
        if self.layout.__class__ is not Layout or self.offset.__class__ is not int:
            return 0, self
        modes = [(s, d) for s, d in zip(leaves(self.layout.shape), leaves(self.layout.stride)) if d and s > 1]
        top = self.offset + sum([(s - 1) * d for s, d in modes if d > 0])
        inside = top % self.swizzle.span
        shape = tuple([min(s, inside // abs(d) + 1) for s, d in modes])
        few = Layout(shape, tuple([-abs(d) for _, d in modes]))
        return top - inside, ComposedLayout._new(self.swizzle, inside, few)

    # ------------------------------------------------------------ operations on the layout inside

    def after(self, left: object) -> ComposedLayout:
        """c -> left(self(c)), of a plain layout.

        It may move each of the swizzle's two fields of bits as a whole. Raises CompositionError, with the first
        coordinate, where no single swizzle of moved fields is that function.

        >>> str((Swizzle(3, 3, 3) @ Layout(64)).after(Layout(64, 4)))
        'S<3,5,3> o 0 o 64:4'
        """
        return compose_with_swizzle(left, self)

    def logical_product(self, tiler: object) -> ComposedLayout:
        """Copies of the layout inside, all under the one swizzle."""
        return self._with(self.layout.logical_product(tiler))

    def zipped_product(self, tiler: object) -> ComposedLayout:
        """See Layout.zipped_product; the swizzle acts on the whole."""
        return self._with(self.layout.zipped_product(tiler))

    def tiled_product(self, tiler: object) -> ComposedLayout:
        """See Layout.tiled_product; the swizzle acts on the whole."""
        return self._with(self.layout.tiled_product(tiler))

    def flat_product(self, tiler: object) -> ComposedLayout:
        """See Layout.flat_product; the swizzle acts on the whole."""
        return self._with(self.layout.flat_product(tiler))

    def blocked_product(self, tiler: object) -> ComposedLayout:
        """See Layout.blocked_product; the swizzle acts on the whole."""
        return self._with(self.layout.blocked_product(tiler))

    def raked_product(self, tiler: object) -> ComposedLayout:
        """See Layout.raked_product; the swizzle acts on the whole."""
        return self._with(self.layout.raked_product(tiler))

    def tile_to_shape(self, shape: object, order: object = None) -> ComposedLayout:
        """The block repeated until it fills `shape`; the swizzle acts on the whole.

        >>> from layoutgemm import Layout
        >>> str((Swizzle(3, 3, 3) @ Layout((8, 64), (64, 1))).tile_to_shape((64, 128)))
        'S<3,3,3> o 0 o ((8,8),(64,2)):((64,512),(1,4096))'
        """
        return self._with(self.layout.tile_to_shape(shape, order))

    def slice(self, coord: object) -> tuple[ComposedLayout, int]:
        """The modes that None keeps, and 0. The offset of the rest stays inside, since a swizzle does not add."""
        layout, offset = self.layout.slice(coord)
        return ComposedLayout._new(self.swizzle, self.offset + offset, layout), 0

    # ------------------------------------------------------------ inverses and what two layouts share

    def right_inverse(self) -> AnyLayout:
        """The largest R with self(R(i)) = i, i < size(R). R is a Layout, or one under a swizzle of the coordinates.

        Raises LayoutError where the values are not linear over GF(2), as with an extent that is no power of two. It
        also raises where no index has value 0, and where no single swizzle says the inverse.

        >>> from layoutgemm import Layout
        >>> str((Swizzle(3, 3, 3) @ Layout((8, 64), (64, 1))).right_inverse())
        'S<3,0,-6> o 0 o (64,8):(8,1)'
        """
        return self._inverse("right_inverse")

    def left_inverse(self) -> AnyLayout:
        """R with R(self(i)) = i for every flat index i.

        Raises LayoutError as right_inverse does, and where two indices share a value.

        >>> from layoutgemm import Layout
        >>> tile = Swizzle(3, 3, 3) @ Layout((8, 64), (64, 1))
        >>> tile.left_inverse()(tile(3, 17)) == 3 + 8 * 17
        True
        """
        return self._inverse("left_inverse")

    def _inverse(self, name: str) -> AnyLayout:
        try:
            found = getattr(registries.matrix_of(self), name)()
        except LayoutError as error:
            raise LayoutError(f"{name} of {self}: {error.reason}", error.witness) from None
        try:
            plain: Layout = found.to_layout()
            return plain
        except LayoutError:
            composed: ComposedLayout = found.to_composed()
            return composed

    def complement(self, bound: object = None) -> Layout:
        """The modes that fill 0..bound-1 when they are appended: the complement of the layout inside.

        The swizzle permutes what they fill, and moves it beyond the bound only where the bound cuts its pattern.

        >>> from layoutgemm import Layout
        >>> tile = Swizzle(3, 3, 3) @ Layout((8, 64), (64, 1))
        >>> str(tile.complement(2048)), tile.append(tile.complement(2048)).is_bijective().ok
        ('4:512', True)
        """
        found: Layout = self.layout.complement(bound)
        return found

    def nullspace(self) -> Layout:
        """The coordinates that the modes of stride 0 spend."""
        found: Layout = self.layout.nullspace()
        return found

    def max_common_layout(self, other: object) -> Layout:
        """The largest R with self(R(i)) = self(0) + i and other(R(i)) = other(0) + i.

        It runs along the layouts inside, and ends where a swizzle moves an element away from its neighbour.

        >>> from layoutgemm import Layout
        >>> tile = Swizzle(3, 3, 3) @ Layout((8, 64), (64, 1))
        >>> str(tile.max_common_layout(Layout((8, 64), (64, 1))))
        '64:8'
        >>> str((Swizzle(1, 1, 3) @ Layout((8, 64), (64, 1))).max_common_layout(Layout((8, 64), (64, 1))))
        '16:8'
        """
        other = layout_of(other)
        if not isinstance(other, (Layout, ComposedLayout)):
            raise LayoutError(refusal(other, "the operand of max_common_layout", "a layout"))
        return common_layout(self, other)

    def max_common_vector(self, other: object) -> int:
        """The number of elements that both store side by side, in one order. It is the size of max_common_layout."""
        return int(self.max_common_layout(other).size)

    # ------------------------------------------------------------ other widths of elements

    def _offset_up(self, n: int) -> Any:
        if self.offset % n:
            raise LayoutError(f"{self}: the offset {self.offset} is no multiple of {n} and lies inside a wider element")
        return self.offset // n

    @checked(SwizzleError)
    def upcast(self, n: int) -> ComposedLayout:
        """Elements n times as wide: swizzle, offset and layout together."""
        return ComposedLayout._new(self.swizzle.upcast(n), self._offset_up(n), self.layout.upcast(n))

    @checked(SwizzleError)
    def downcast(self, n: int) -> ComposedLayout:
        """Elements of an n-th of the width: swizzle, offset and layout together."""
        return ComposedLayout._new(self.swizzle.downcast(n), self.offset * n, self.layout.downcast(n))

    @checked(SwizzleError)
    def recast(self, new_bits: int, old_bits: int | None = None) -> ComposedLayout:
        """From elements of old_bits to elements of new_bits. old_bits may be left out where the swizzle has a unit.

        Raises SwizzleError where the swizzle's unit is not old_bits: the layout would count something else than it.
        """
        unit = self.swizzle.unit
        if old_bits is None:
            old_bits = unit
        if old_bits is None:
            raise SwizzleError(f"{self}: recast needs the width of the elements, old_bits: its swizzle has no unit")
        new_bits, old_bits = factor(new_bits, "recast (new_bits)"), factor(old_bits, "recast (old_bits)")
        if unit is not None and unit != old_bits:
            raise SwizzleError(f"{self}: the swizzle counts {unit} bits, and the layout is said to count {old_bits}")
        if new_bits == old_bits:
            return self
        if new_bits > old_bits > 0 and new_bits % old_bits == 0:
            n = new_bits // old_bits
            return ComposedLayout._new(
                self.swizzle.upcast(n), self._offset_up(n), self.layout.recast(new_bits, old_bits)
            )
        if old_bits > new_bits > 0 and old_bits % new_bits == 0:
            n = old_bits // new_bits
            return ComposedLayout._new(
                self.swizzle.downcast(n), self.offset * n, self.layout.recast(new_bits, old_bits)
            )
        raise SwizzleError(f"{self}: {old_bits} and {new_bits} bits, and neither divides the other")

    # ------------------------------------------------------------ statements

    def equivalent(self, other: object) -> Answer:
        """Compare two functions of the flat index; by looking at all values."""
        return between(equivalent(self, other), self, other)

    def is_injective(self) -> Answer:
        """Prove that no two coordinates share a value. A swizzle is a bijection, so the layout inside decides."""
        found: Answer = self.layout.is_injective()
        if not isinstance(found, CounterExample):
            return found
        value = self(found.coord[0]) if not found.sizes else found.left
        return replace(found, left=value, right=value, statement=found.statement.replace(str(self.layout), str(self)))

    def is_bijective(self) -> Answer:
        """Prove that the values are 0..size-1, each once; else the first coordinate outside.

        >>> from layoutgemm import Layout
        >>> (Swizzle(3, 3, 3) @ Layout((8, 64), (64, 1))).is_bijective().ok
        True
        >>> (Swizzle(2, 0, 2) @ Layout(5)).is_bijective().explain()
        'S<2,0,2> o 0 o 5:1 is not a bijection onto 0..4: 4 gives 5'
        """
        found = registries.injective(self)
        return registries.bijective(self) if isinstance(found, Proof) else found

    def expr(self, *names: str) -> Any:
        """The value as a SymPy expression of the coordinates, one name for each mode. See formulas.expr."""
        return registries.expression_of(self, *names)

    def congruent(self, other: object) -> Verdict:
        """Verdict: both shapes have one nesting; `other` is a layout or a tuple."""
        found: Verdict = self.layout.congruent(other)
        return found

    @classmethod
    @checked(SwizzleError)
    def parse(cls, text: str) -> ComposedLayout:
        """The inverse of str()."""
        found: ComposedLayout = registries.parsed(text, kind=ComposedLayout)
        return found

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ComposedLayout)
            and self.swizzle == other.swizzle
            and self.offset == other.offset
            and self.layout == other.layout
        )

    def __hash__(self) -> int:
        return hash((ComposedLayout, self.swizzle, self.offset, self.layout))

    def __reduce__(self) -> tuple[object, ...]:
        return ComposedLayout, (self.swizzle, self.offset, self.layout)

    def __repr__(self) -> str:
        return f"ComposedLayout({self.swizzle!r}, {show(self.offset)}, {self.layout!r})"

    def __str__(self) -> str:
        return f"{self.swizzle} o {show(self.offset)} o {self.layout}"


def common_layout(a: AnyLayout, b: AnyLayout) -> Layout:
    """The largest layout along which both layouts run on from their first values."""
    whole = _innermost(a).max_common_layout(_innermost(b)).coalesce()
    if not isinstance(whole.size, int):
        raise LayoutError(f"{a} and {b}: the elements that a swizzle keeps together are counted for integers")
    at, length = whole.offsets(), int(whole.size)
    for x in (a, b):
        values = x(at)
        apart = np.nonzero(values - values[0] != np.arange(len(values)))[0]
        length = min(length, int(apart[0]) if len(apart) else length)
    end = 1
    for s in leaves(whole.shape):
        if end * s > length:
            break
        end *= s
    return whole.compose(Layout(length // end * end)).coalesce() if length else Layout(1, 0)


def _innermost(layout: AnyLayout) -> Layout:
    while isinstance(layout, ComposedLayout):
        layout = layout.layout
    return layout


def compose_with_swizzle(left: object, right: object) -> ComposedLayout:
    """A plain layout after a swizzled one. It has an answer where the layout moves each of the two fields of bits as a
    whole.

    2^k * swizzle(x) is the swizzle k bits further up, applied to 2^k * x. The last entry of `left` counts even where
    its extent is 1, since offsets past the end run on in it. Another layout may exchange the fields, as a transposition
    does: the swizzle of their images is compared at all coordinates.
    """
    if not isinstance(left, Layout):
        raise LayoutError(refusal(left, "what is composed with a swizzled layout", "a Layout"))
    S, D = coal_open(left.shape, left.stride)
    if len(S) == 2 and S[1].__class__ is int and S[1] == 1 and _stays_below(right, S[0]):
        S, D = S[:1], D[:1]
    d = D[0] if len(D) == 1 else None
    if isinstance(right, ComposedLayout) and d.__class__ is int and d > 0 and not d & (d - 1):
        sw = right.swizzle
        moved = Swizzle(sw.bits, sw.base + d.bit_length() - 1, sw.shift)
        return ComposedLayout(moved, right.offset * d, left.compose(right.layout))
    return _fields_moved(left, right)


def _fields_moved(left: Layout, right: object) -> ComposedLayout:
    """left o right, by the swizzle of left's images of right's two fields.

    They are compared at all coordinates.
    """

    def fail(reason: str, at: int | None = None) -> CompositionError:
        return CompositionError(f"a plain layout after a swizzle is {reason}", at, left, right)

    power = "a swizzled layout only where it multiplies by a power of two"
    if not isinstance(right, ComposedLayout) or right.offset.__class__ is not int:
        raise fail(power)
    inside = right.layout
    if not isinstance(inside, Layout) or has_symbols((left.shape, inside.shape), (left.stride, inside.stride)):
        raise fail(power)
    sw = right.swizzle
    fields = [left.compose(Layout(2, mask))(1) if mask else 0 for mask in (sw.source_mask, sw.target_mask)]
    firsts = [field & -field if field.__class__ is int else 0 for field in fields]
    read, changed = (first.bit_length() - 1 for first in firsts)
    if (
        any(field != (first << sw.bits) - first for field, first in zip(fields, firsts))
        or abs(read - changed) < sw.bits
    ):
        raise fail(
            f"a swizzled layout only where it keeps two fields of bits: {sw}'s go to {fields[0]} and {fields[1]}"
        )
    try:
        inner = composed_from(left, right.offset, inside)
    except CompositionError as error:
        at = error.witness if isinstance(error.witness, int) else None
        raise fail(f"no swizzled layout: {error.reason}", at) from None
    offset, plain = (inner.offset, inner.layout) if isinstance(inner, ComposedLayout) else (0, inner)
    found = ComposedLayout(Swizzle(sw.bits, max(0, min(read, changed)), read - changed), offset, plain)
    values = left(right.offsets())
    wrong = np.nonzero(found.offsets() != values)[0]
    if len(wrong):
        at = int(wrong[0])
        raise fail(f"no {found}: it is {int(values[at])} at {show_coord(right.coord(at))}, not {found(at)}", at)
    return found


def composed_from(left: Layout, first: int, right: Any) -> AnyLayout:
    """The layout c -> left(first + right(c)) of integers, with its offset.

    Raises CompositionError with the first coordinate that no layout with right's modes fits.

    >>> from layoutgemm import Layout
    >>> str(composed_from(Layout((4, 5)), 2, Layout((2, 3), (1, 4))))
    'S<0,0,0> o 2 o (2,3):(1,4)'
    """
    check_enumerable("a composition from an offset", right)
    if left.has_basis or right.has_basis:
        raise CompositionError("a composition from an offset is of offsets, not of coordinates", None, left, right)
    values = left(moved_by(right.offsets(), first))
    place, strides = 1, []
    for n in leaves(right.shape):
        strides.append(int(values[place] - values[0]) if n > 1 else 0)
        place *= n
    entries = iter(strides)
    found = Layout(right.shape, transform(lambda _: next(entries), right.shape))
    wrong = np.nonzero(values - values[0] != found.offsets())[0]
    if len(wrong):
        at = int(wrong[0])
        raise CompositionError(
            f"no layout with modes {show(right.shape)} is {left} o {first} o {right}: it is {int(values[at])} at "
            f"{show_coord(right.coord(at))}",
            at,
            left,
            right,
        )
    return offset_by(found, int(values[0])) if values[0] else found


def _stays_below(right: Any, end: object) -> bool:
    """True if all values, before and after the swizzle, are in 0..end-1."""
    try:
        before, after = moved_by(right.layout.offsets(), right.offset), right.offsets()
    except LayoutError:  # symbols, or too many values to look at
        return False
    return end.__class__ is int and bool(max(before.max(), after.max()) < end and before.min() >= 0)


@registries.offset_by.register(Layout)
def offset_by(layout: Layout, offset: object) -> ComposedLayout:
    """The layout c -> offset + layout(c), under a swizzle that moves nothing."""
    return ComposedLayout._new(Swizzle(0, 0, 0), entry(offset, "the offset of a layout"), layout)


AnyLayout: TypeAlias = "Layout | ComposedLayout"
Part: TypeAlias = "tuple[AnyLayout, Any]"  # the modes that are left of a layout, and the offset of the others
