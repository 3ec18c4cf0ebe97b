"""The operations under their CuTe names, as free functions. Each is one line: the work is in the methods.

They also take the keywords that the CuTe DSL has for the same parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

from ..arguments import as_int, refusal, shown, unknown_argument
from ..errors import LayoutError
from . import int_tuple as _t
from . import profiles
from .algebra import recast as _recast
from .display import HasPicture
from .int_tuple import Pair, Shape, as_entries
from .layout import Layout
from .linear import LinearLayout
from .proofs.verdicts import Verdict
from .swizzle import ComposedLayout, Swizzle

L = TypeVar("L")  # a layout, plain or swizzled, or a tile of one
F = TypeVar("F", bound=Callable[..., object])


def _as_in_the_dsl(**keywords: str) -> Callable[[F], F]:
    """The function, with further keywords: the CuTe DSL's name of a parameter -> its name here."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*given: object, **named: object) -> object:
            return function(*given, **{keywords.get(name, name): x for name, x in named.items()})

        return cast(F, call)

    return decorate


def _in_either_order(function: F) -> F:
    """The function of (source, coordinate), also called as (coordinate, source): pycute's order, and C++'s.

    A layout is the source. Of two tuples that with a None is the coordinate, else the second.
    """

    @functools.wraps(function)
    def call(*given: object, **named: object) -> object:
        named = {{"layout": "src", "dicer": "coord"}.get(name, name): x for name, x in named.items()}
        if len(given) == 1 and "src" in named:
            given = (named.pop("src"), *given)
        elif len(given) == 2 and not _is_ours(given[0]) and (_is_ours(given[1]) or None in _t.leaves(given[0])):
            given = given[::-1]
        return function(*given, **named)

    return cast(F, call)


def _method(x: object, name: str, other: object = None) -> Any:
    """The method or property of a layout. Raises LayoutError for an object without it, and where `other` has it."""
    found = getattr(x, name, None) if _is_ours(x) else None
    if found is None:
        swapped = "; the layout comes first" if _is_ours(other) else ""
        raise LayoutError(refusal(x, f"the operand of {name}", f"a layout that has {name}") + swapped)
    return found


def _is_ours(x: object) -> bool:
    """True for a layout, and for a tile, atom or plan with a layout's operations."""
    return isinstance(x, (HasPicture, LinearLayout))


def _layout(x: object, what: str) -> Layout:
    if not isinstance(x, Layout):
        raise LayoutError(refusal(x, what, "a Layout"))
    return x


def _entries(x: object, what: str) -> Any:
    """The shape of a layout, or a caller's tuple."""
    return _method(x, "shape") if _is_ours(x) else as_entries(x, what)


def get(x: object, mode: object = ()) -> Any:
    """The mode of a layout or a tuple that a path of numbers leads to. The empty path leads to the whole.

    Raises LayoutError where there is no such mode.

    >>> print(get(Layout((4, (2, 3)), (6, (1, 2))), mode=[1, 0]), get((4, (2, 3)), [1]))
    2:1 (2, 3)
    """
    if not isinstance(mode, (tuple, list)):
        raise LayoutError(refusal(mode, "mode", "a path, as in [1] or [1, 0]"))
    found: object = x if _is_ours(x) else as_entries(x, "the operand of get")
    for number in mode:
        at = as_int(number, "an entry of mode", least=0)
        if not _is_ours(found) and at >= _t.rank(found):
            raise LayoutError(f"{_t.show(found)} has no mode {shown(number)}")
        if _is_ours(found):
            found = _method(found, "__getitem__")(at)
        elif isinstance(found, tuple):  # an integer is its only mode
            found = found[at]
    return found


def _part(x: object, mode: object) -> object:
    return x if mode.__class__ is tuple and not mode else get(x, mode)


def size(x: object, mode: object = ()) -> Any:
    """The number of coordinates of a layout or a shape, or of its mode. See `get`.

    >>> size((4, (2, 3))), size(Layout((4, (2, 3))), mode=[1])
    (24, 6)
    """
    x = _part(x, mode)
    return _method(x, "size") if _is_ours(x) else product(x)


def cosize(layout: object, mode: object = ()) -> Any:
    """See Layout.cosize; with a path as of `get` that of a mode."""
    return _method(_part(layout, mode), "cosize")


def rank(x: object, mode: object = ()) -> int:
    """The number of top-level modes of a layout or a tuple, or of its mode. See `get`."""
    return _t.rank(_entries(_part(x, mode), "the operand of rank"))


def depth(x: object) -> int:
    """The depth of a layout's or a tuple's nesting.

    >>> depth(4), depth((4, 2)), depth((4, (2, 3)))
    (0, 1, 2)
    """
    return _t.depth(_entries(x, "the operand of depth"))


def shape(layout: object) -> Any:
    """The shape of a layout."""
    return _method(layout, "shape")


def stride(layout: object) -> Any:
    """The stride of a layout."""
    return _method(layout, "stride")


def flatten(x: object) -> Any:
    """A layout or a tuple without nesting.

    >>> flatten((4, (2, (3,))))
    (4, 2, 3)
    """
    return _method(x, "flatten")() if _is_ours(x) else _t.flatten(as_entries(x, "the operand of flatten"))


def product(x: object) -> Any:
    """The product of all entries of a tuple.

    >>> product((4, (2, 3)))
    24
    """
    return _t.product(as_entries(x, "the operand of product"))


def product_each(x: object) -> Any:
    """The product of each top-level mode: the shape without the nesting inside its modes.

    >>> product_each((4, (2, 3)))
    (4, 6)
    """
    return _t.product_each(as_entries(x, "the operand of product_each"))


def congruent(a: object, b: object) -> Verdict:
    """Verdict: both tuples have the same nesting. False with the first mode that differs.

    >>> bool(congruent((4, (2, 3)), (1, (8, 9)))), congruent((4, 2), 8).reason
    (True, '(4,2) is not congruent to 8: the whole is (4,2) and 8')
    """
    what = "operand of congruent"
    return profiles.congruent(_entries(a, f"the left {what}"), _entries(b, f"the right {what}"))


def compatible(a: object, b: object) -> Verdict:
    """Verdict: every coordinate of shape `a` is one of shape `b`. Sizes are equal, and `b` refines `a`.

    >>> compatible(24, (4, 6)).ok, compatible((4, 6), (4, (2, 3))).ok
    (True, True)
    >>> compatible((4, 6), 24).reason
    '(4,6) is not compatible with 24: the whole is (4,6) and 24'
    """
    what = "operand of compatible"
    return profiles.compatible(_entries(a, f"the left {what}"), _entries(b, f"the right {what}"))


def weakly_congruent(a: object, b: object) -> Verdict:
    """Verdict: the nesting of `b` refines that of `a`.

    >>> weakly_congruent(1, (4, 6)).ok, weakly_congruent((4, 6), 1).reason
    (True, '(4,6) is not weakly congruent to 1: the whole is (4,6) and 1')
    """
    what = "operand of weakly_congruent"
    return profiles.weakly_congruent(_entries(a, f"the left {what}"), _entries(b, f"the right {what}"))


def idx2crd(index: object, shape: object) -> Any:
    """The coordinate of a flat (colexicographic) index: int -> tuple congruent with `shape`.

    A Python int outside the shape raises CoordinateError; the last mode of an array or a traced index is unbounded.

    >>> idx2crd(13, (4, (2, 3)))
    (1, (1, 1))
    """
    return _t.idx2crd(index, _method(shape, "shape") if _is_ours(shape) else _t.as_shape(shape))


@_as_in_the_dsl(layout="shape")
def crd2idx(coord: object, shape: object, stride: object = None) -> Any:
    """The offset of a coordinate under a layout, or under a shape and a stride.

    stride  None is compact column-major

    >>> crd2idx((1, 2), (4, 8)), crd2idx((1, 2), (4, 8), (8, 1)), crd2idx((1, 2), Layout((4, 8), (8, 1)))
    (9, 10, 10)
    """
    return (shape if stride is None and isinstance(shape, Layout) else Layout(shape, stride))(coord)


def make_layout(*args: Any, shape: object = None, stride: object = None, **other: NoReturn) -> Layout:
    """make_layout(shape), make_layout(shape, stride), or one layout with the given layouts as its modes.

    >>> str(make_layout((4, 8), stride=(8, 1))), str(make_layout(Layout(4), Layout(2, 4)))
    ('(4,8):(8,1)', '(4,2):(1,4)')
    """
    if other:
        raise unknown_argument(make_layout, other, len(args))
    args = args if shape is None else (shape, *args)
    if args and isinstance(args[0], Layout) and stride is None:
        return Layout.join(*args)
    if not args or len(args) + (stride is not None) > 2:
        raise LayoutError(f"make_layout takes a shape and a stride, or layouts, not {len(args)} arguments")
    return Layout(*args) if stride is None else Layout(args[0], stride)


def make_ordered_layout(shape: object, order: object) -> Layout:
    """See Layout.ordered."""
    return Layout.ordered(shape, order)


def make_layout_like(layout: object) -> Layout:
    """The compact layout of the same shape, in the order of the given strides.

    Modes of stride 0 keep it. Of equal strides the left one comes first, where the CuTe DSL gives both one stride.
    Raises LayoutError for strides that are no integers.

    >>> str(make_layout_like(Layout((4, 8), (32, 2)))), str(make_layout_like(Layout((4, 8), (32, 0))))
    ('(4,8):(8,1)', '(4,8):(1,0)')
    """
    of = _layout(layout, "the layout of make_layout_like")
    extents, strides = _t.leaves(of.shape), _t.leaves(of.stride)
    for d in strides:
        if d.__class__ is not int:
            raise LayoutError(f"make_layout_like of {of}: its modes are ordered by integers, and one stride is {d}")
    width, compact = 1, [0] * len(strides)
    for i in sorted(range(len(strides)), key=lambda i: abs(strides[i])):
        if strides[i] and extents[i] != 1:
            compact[i] = width
            width *= extents[i]
    entries = iter(compact)
    return Layout(of.shape, _t.transform(lambda _: next(entries), of.shape))


def make_identity_layout(shape: object) -> Layout:
    """See Layout.identity."""
    return Layout.identity(shape)


@_as_in_the_dsl(b="bits", m="base", s="shift")
def make_swizzle(bits: int, base: int, shift: int, unit: int | None = None) -> Swizzle:
    """See Swizzle."""
    return Swizzle(bits, base, shift, unit)


@_as_in_the_dsl(inner="swizzle", outer="layout")
def make_composed_layout(swizzle: Swizzle, offset: int, layout: object) -> ComposedLayout:
    """See ComposedLayout. The CuTe DSL calls the swizzle `inner` and the layout `outer`.

    >>> print(make_composed_layout(inner=Swizzle(3, 3, 3), offset=0, outer=Layout((8, 64), (64, 1))))
    S<3,3,3> o 0 o (8,64):(64,1)
    """
    return ComposedLayout(swizzle, offset, layout)


@_as_in_the_dsl(thr_layout="thread", val_layout="value")
def make_layout_tv(thread: Layout, value: Layout) -> tuple[Shape, Layout]:
    """The tile (M, N, ...) of threads and values, and (thread, value) -> index in that tile.

    `thread` maps tile coordinates to thread indices, `value` to the values of a thread; a thread's values lie side by
    side. The index is colexicographic in the tile. Raises LayoutError where one of them is no numbering 0, 1, 2, ...:
    CuTe asks for compact layouts and does not look.

    >>> tile, tv = make_layout_tv(Layout((8, 4)), Layout((4, 4)))
    >>> tile, str(tv)
    ((32, 16), '((8,4),(4,4)):((4,128),(1,32))')
    """
    for name, given in (("thread", thread), ("value", value)):
        numbered = _layout(given, f"the layout of {name}s").is_bijective()
        if not numbered:
            said = f"the {name} layout {given} is to number {given.size} {name}s 0 to {given.size - 1}, each once"
            raise LayoutError(f"{said}; {numbered.explain()}", numbered.witness)
    tile = thread.raked_product(value)
    threads, values = thread.size, value.size
    tv = tile.right_inverse().compose(
        Layout((threads, values), (0 if threads == 1 else 1, 0 if values == 1 else threads))
    )
    return product_each(tile.shape), tv


@_as_in_the_dsl(target_profile="profile")
def coalesce(layout: L, profile: object = None) -> L:
    """See Layout.coalesce."""
    return _method(layout, "coalesce")(profile)


def filter(layout: L, profile: object = None) -> L:
    """See Layout.filter."""
    return _method(layout, "filter")(profile)


def composition(a: object, b: object) -> Any:
    """See Layout.compose."""
    return _method(a, "compose", b)(b)


@_as_in_the_dsl(cotarget="bound")
def complement(layout: Layout, bound: object = None) -> Layout:
    """See Layout.complement."""
    return _method(layout, "complement")(bound)


def right_inverse(layout: Layout) -> Layout:
    """See Layout.right_inverse."""
    return _method(layout, "right_inverse")()


def left_inverse(layout: Layout) -> Layout:
    """See Layout.left_inverse."""
    return _method(layout, "left_inverse")()


def nullspace(layout: Layout) -> Layout:
    """See Layout.nullspace."""
    return _method(layout, "nullspace")()


def max_common_layout(a: Layout, b: Layout) -> Layout:
    """See Layout.max_common_layout."""
    return _method(a, "max_common_layout")(b)


def max_common_vector(a: Layout, b: Layout) -> int:
    """See Layout.max_common_vector."""
    return _method(a, "max_common_vector")(b)


@_as_in_the_dsl(atom="block", trg_shape="shape")
def tile_to_shape(block: L, shape: object, order: object = None) -> L:
    """See Layout.tile_to_shape."""
    return _method(block, "tile_to_shape")(shape, order)


def with_shape(layout: L, shape: object) -> L:
    """See Layout.with_shape."""
    return _method(layout, "with_shape")(shape)


def upcast(layout: L, n: int) -> L:
    """See Layout.upcast."""
    return _method(layout, "upcast")(n)


def downcast(layout: L, n: int) -> L:
    """See Layout.downcast."""
    return _method(layout, "downcast")(n)


def recast_layout(new_bits: int, old_bits: int, layout: L) -> L:
    """See Layout.recast; the arguments come in CuTe's order."""
    if not isinstance(layout, (Layout, ComposedLayout)):
        swapped = "; it comes last: recast_layout(new_bits, old_bits, layout)" if _is_ours(new_bits) else ""
        raise LayoutError(refusal(layout, "the layout of recast_layout", "a Layout or a ComposedLayout") + swapped)
    return _method(layout, "recast")(new_bits, old_bits)


@_in_either_order
def slice_(src: L, coord: object) -> L:
    """The modes of a layout or a tuple that None keeps, without an offset. See `slice_and_offset`.

    The arguments come in the CuTe DSL's order or in pycute's, (coord, src).

    >>> print(slice_(Layout((4, (2, 3))), (1, (None, 2))), slice_((128, 256, 64), (None, 0, None)))
    (2):(4) (128, 64)
    """
    return _method(src, "slice")(coord)[0] if _is_ours(src) else cast(L, _modes_at(src, coord, True))


@_in_either_order
def slice_and_offset(src: object, coord: object) -> Pair:
    """See Layout.slice. The arguments come in either order.

    >>> slice_and_offset((1, None), Layout(((2, 2), (2, 2)), ((1, 8), (4, 16))))
    (Layout(((2, 2),), ((4, 16),)), 1)
    """
    return _method(src, "slice")(coord)


@_in_either_order
def dice(src: L, coord: object) -> L:
    """The modes of a layout or a tuple that an integer in `coord` names.

    The arguments come in either order. See Layout.dice.

    >>> dice((128, 256, 64), (1, None, 1))
    (128, 64)
    """
    return _method(src, "dice")(coord) if _is_ours(src) else cast(L, _modes_at(src, coord, False))


def _modes_at(x: object, coord: object, kept: bool) -> tuple[object, ...]:
    """The entries of a tuple that have None (kept) or an integer in a coordinate."""
    entries = as_entries(x, "the source of a slice")
    if not isinstance(coord, (tuple, list)):
        return entries if (coord is None) is kept else ()
    return tuple(_recast.select(coord, entries, entries, kept)[0])


def select(x: L, mode: object = None, *, modes: object = None) -> L:
    """The named modes of a layout or a tuple, in the order named. `modes` is another name of `mode`.

    >>> str(select(Layout((2, 3, 5)), (2, 0))), select((512, 256, 64), mode=[0, 2])
    ('(5,2):(6,1)', (512, 64))
    """
    mode = modes if mode is None else mode
    if not isinstance(mode, (tuple, list)):
        raise LayoutError(refusal(mode, "modes of select", "a tuple of integers"))
    return _method(x, "select")(*mode) if _is_ours(x) else tuple([get(x, [i]) for i in mode])  # type: ignore[return-value]


def group_modes(x: L, begin: int, end: int | None = None) -> L:
    """Modes begin..end-1 of a layout or a tuple as one. Without an end, to the last.

    See Layout.group.

    >>> str(group_modes(Layout((2, 3, 5)), 0, 2)), group_modes((2, 3, 5), 1, 3)
    ('((2,3),5):((1,2),6)', (2, (3, 5)))
    """
    end = rank(x) if end is None else end
    if _is_ours(x):
        return _method(x, "group")(begin, end)
    modes, first, last = _modes(x, "group_modes"), as_int(begin, "the first mode of a group"), as_int(end, "its end")
    if not 0 <= first < last <= len(modes):
        raise LayoutError(f"{_t.show(modes)} has no modes {shown(begin)}..{shown(last - 1)} to group")
    return (*modes[:first], modes[first:last], *modes[last:])  # type: ignore[return-value]


def append(x: L, mode: object) -> L:
    """The layout or tuple with one more mode at its end.

    >>> str(append(Layout((4, 8)), Layout(3, 32))), append((4, 8), 3)
    ('(4,8,3):(1,4,32)', (4, 8, 3))
    """
    if _is_ours(x):
        return _method(x, "append")(mode)
    return (*_modes(x, "append"), as_entries(mode, "the mode of append"))  # type: ignore[return-value]


def prepend(x: L, mode: object) -> L:
    """The layout or tuple with one more mode at its beginning."""
    if _is_ours(x):
        return _method(x, "prepend")(mode)
    return (as_entries(mode, "the mode of prepend"), *_modes(x, "prepend"))  # type: ignore[return-value]


def _modes(x: object, name: str) -> tuple[object, ...]:
    """The top-level modes of a tuple; an integer is its only one."""
    found = as_entries(x, f"the operand of {name}")
    return found if isinstance(found, tuple) else (found,)


def logical_divide(layout: L, tiler: object) -> L:
    """See Layout.logical_divide."""
    return _method(layout, "logical_divide", tiler)(tiler)


def zipped_divide(layout: L, tiler: object) -> L:
    """See Layout.zipped_divide."""
    return _method(layout, "zipped_divide", tiler)(tiler)


def tiled_divide(layout: L, tiler: object) -> L:
    """See Layout.tiled_divide."""
    return _method(layout, "tiled_divide", tiler)(tiler)


def flat_divide(layout: L, tiler: object) -> L:
    """See Layout.flat_divide."""
    return _method(layout, "flat_divide", tiler)(tiler)


def logical_product(layout: L, tiler: object) -> L:
    """See Layout.logical_product."""
    return _method(layout, "logical_product", tiler)(tiler)


def zipped_product(layout: L, tiler: object) -> L:
    """See Layout.zipped_product."""
    return _method(layout, "zipped_product", tiler)(tiler)


def tiled_product(layout: L, tiler: object) -> L:
    """See Layout.tiled_product."""
    return _method(layout, "tiled_product", tiler)(tiler)


def flat_product(layout: L, tiler: object) -> L:
    """See Layout.flat_product."""
    return _method(layout, "flat_product", tiler)(tiler)


@_as_in_the_dsl(input="layout")
def local_tile(layout: object, tiler: object, coord: object, proj: object = None) -> Pair:
    """The tile of a layout at a coordinate of tiles, and its offset.

    A None in `coord` keeps that mode of tiles behind the tile's modes. An entry of `proj` stands for a mode of `tiler`
    and of `coord`; None leaves it out, as X does in CuTe's Step<_1, X, _1>. Raises LayoutError as zipped_divide does.

    >>> local_tile(Layout((5120, 4096), (1, 5120)), (32, 64, 4), (1, 0, None), (1, None, 1))
    (Layout((32, 4, 1024), (1, 5120, 20480)), 32)
    """
    if proj is None and isinstance(tiler, tuple) and _is_ours(layout) and len(tiler) > rank(layout):
        raise LayoutError(
            f"a tiler of {len(tiler)} modes for {layout}: proj names those that it has, as in (1, None, 1)"
        )
    tiles = zipped_divide(layout, _projected(tiler, proj, "tiler"))
    within, among = _method(tiles, "shape")
    return slice_and_offset(tiles, (_filled((), within), _filled(_projected(coord, proj, "coord"), among)))


@_as_in_the_dsl(target="layout", tiler="threads", thr_layout="threads")
def local_partition(layout: object, threads: Layout, index: int, proj: object = None) -> Pair:
    """The elements of one thread in a layout, and their offset. Each thread takes every n-th row and column.

    threads: (rows, columns, ...) of threads -> index. `proj` as for local_tile. Raises LayoutError for an index that no
    coordinate of `threads` has.

    >>> local_partition(Layout((128, 8), (1, 128)), Layout((16, 16)), 35, (1, None))
    (Layout((8, 8), (16, 128)), 3)
    """
    index = as_int(index, "the index of local_partition")
    count = as_int(size(_layout(threads, "threads")), "the number of threads")
    flat = next((x for x in range(count) if threads(x) == index), None)
    if flat is None:
        raise LayoutError(f"local_partition: no coordinate of {threads} has the value {index}")
    extents = product_each(threads.shape)
    tiles = zipped_divide(layout, _projected(extents, proj, "the shape of threads"))
    within, among = _method(tiles, "shape")
    place = _projected(idx2crd(flat, extents), proj, "the place of a thread")
    return slice_and_offset(tiles, (_filled(place, within), _filled((), among)))


def _projected(x: object, proj: object, what: str) -> Any:
    """The entries of a tuple that have one in `proj`. Raises LayoutError for tuples of different lengths."""
    if proj is None:
        return x
    if not isinstance(proj, tuple) or not isinstance(x, tuple) or len(x) != len(proj):
        raise LayoutError(f"proj = {shown(proj)} and {what} = {shown(x)}: two tuples of one length")
    return tuple([entry for entry, kept in zip(x, proj, strict=True) if kept is not None])


def _filled(coord: object, mode: object) -> Any:
    """A coordinate of a mode, with None for the entries that it does not name."""
    if not isinstance(coord, tuple):
        return coord
    if not isinstance(mode, tuple):
        return coord[0] if len(coord) == 1 else coord or None
    return (*coord, *[None] * (len(mode) - len(coord)))


def blocked_product(layout: L, tiler: object) -> L:
    """See Layout.blocked_product."""
    return _method(layout, "blocked_product", tiler)(tiler)


def raked_product(layout: L, tiler: object) -> L:
    """See Layout.raked_product."""
    return _method(layout, "raked_product", tiler)(tiler)
