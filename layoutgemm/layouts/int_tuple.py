"""Integer tuples: shapes, strides and coordinates as ints and (nested) tuples of ints.

An `IntTuple` is an int or a tuple of IntTuples. Its *profile* is its nesting; two are *congruent* when they have one
profile. The functions here take well-formed tuples; `as_shape` and `as_stride` make them so, and are the only places
where a caller's shape or stride is checked.

Entries are compared by `x.__class__ is int` where it pays, and otherwise only with `+ - * // % ==`, so that other
integer-like entries could stand in their place.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from ..arguments import DEPTH, MAX_BITS, Integer, as_int, is_int, refusal, shown
from ..errors import CoordinateError, LayoutError
from ..lazy_numpy import np
from .symbols.dims import entry, extent, is_sympy
from .symbols.generators import number
from .symbols.polynomial import Polynomial, Scalar

if TYPE_CHECKING:
    from .basis import ScaledBasis
    from .layout import Layout
    from .swizzle import ComposedLayout

StrideEntry: TypeAlias = "Scalar | ScaledBasis"  # an entry of a stride
Shape: TypeAlias = "Scalar | tuple[Shape, ...]"
Stride: TypeAlias = "StrideEntry | tuple[Stride, ...]"
Pair: TypeAlias = "tuple[Any, Any]"  # shape and stride of a layout: congruent, which no type says
Modes: TypeAlias = "tuple[list[Any], list[Any]]"  # extents and strides without nesting: integers alone in most layouts


_SHOWN = 64  # entries of a coordinate in a message
ENUMERABLE = 1 << 28
BEYOND = 1 << MAX_BITS  # above every entry that a caller may give
BELOW = -BEYOND  # below every one
ONE_DIGIT = (1 << 30) - 1  # the largest of Python's integers with one digit

# How many symbols the checks below have let through: a constructor that sees it grow made a layout with symbols.
SYMBOLS_SEEN = [0]


def flatten(x: object) -> Any:
    """Without nesting: an int stays an int, a tuple becomes a flat tuple.

    >>> flatten((4, (2, (3,))))
    (4, 2, 3)
    """
    return tuple(leaves(x)) if x.__class__ is tuple else x


def leaves(x: object) -> list[Any]:
    """The entries from left to right, as a list."""
    if x.__class__ is not tuple:
        return [x]
    for y in x:
        if y.__class__ is tuple:
            break
    else:
        return list(x)
    out: list[Scalar] = []
    for y in x:
        if y.__class__ is tuple:
            out += leaves(y)
        else:
            out.append(y)
    return out


def product(x: object) -> Any:
    """The product of all entries.

    >>> product((4, (2, 3)))
    24
    """
    return prod(leaves(x)) if x.__class__ is tuple else x


def product_each(x: object) -> Any:
    """The product of each top-level mode: the shape without the nesting inside its modes.

    >>> product_each((4, (2, 3)))
    (4, 6)
    """
    return tuple([product(y) for y in x]) if x.__class__ is tuple else x


def rank(x: object) -> int:
    """The number of top-level modes: 1 for an int."""
    return len(x) if x.__class__ is tuple else 1


def depth(x: object) -> int:
    """The depth of the nesting: 0 for an int.

    >>> depth(4), depth((4, 2)), depth((4, (2, 3)))
    (0, 1, 2)
    """
    if x.__class__ is not tuple:
        return 0
    return 1 + max((depth(y) for y in x), default=0)


def congruent(a: object, b: object) -> bool:
    """True if both have the same nesting.

    >>> congruent((4, (2, 3)), (1, (8, 9))), congruent((4, 2), 8)
    (True, False)
    """
    if a.__class__ is not tuple or b.__class__ is not tuple:
        return a.__class__ is not tuple and b.__class__ is not tuple
    if len(a) != len(b):
        return False
    for x, y in zip(a, b):
        if (x.__class__ is tuple or y.__class__ is tuple) and not congruent(x, y):
            return False
    return True


def compatible(a: object, b: object) -> bool:
    """True if every coordinate of shape `a` is one of shape `b`. Equal sizes, and `b` refines `a`.

    >>> compatible(24, (4, 6)), compatible((4, 6), (4, (2, 3))), compatible((4, 6), 24)
    (True, True, False)
    """
    if a.__class__ is not tuple:
        return bool(a == product(b))
    return b.__class__ is tuple and len(a) == len(b) and all(map(compatible, a, b))


def weakly_congruent(a: object, b: object) -> bool:
    """True if the nesting of `b` refines that of `a`.

    >>> weakly_congruent(1, (4, 6)), weakly_congruent((4, 6), 1)
    (True, False)
    """
    if a.__class__ is not tuple:
        return True
    return b.__class__ is tuple and len(a) == len(b) and all(map(weakly_congruent, a, b))


def transform(f: Callable[[Any], Any], x: object) -> Any:
    """The tuple of the same nesting with `f` applied to every entry."""
    return tuple([transform(f, y) for y in x]) if x.__class__ is tuple else f(x)


def compact(shape: Shape) -> Any:
    """The strides of the column-major compact layout. Each the product of the extents to its left.

    >>> compact((4, (2, 3)))
    (1, (4, 8))
    """
    return _compact(shape, 1)[0]


def _compact(shape: Any, width: Scalar) -> tuple[Any, Scalar]:
    if shape.__class__ is not tuple:
        return width, shape * width
    out = []
    for s in shape:
        if s.__class__ is tuple:
            d, width = _compact(s, width)
            out.append(d)
        else:
            out.append(width)
            width = s * width
    return tuple(out), width


def show(x: object) -> str:
    """CuTe's notation of a tuple. No blanks, and a tuple of one entry without a comma.

    An integer that Python does not print, of more than 4300 digits, is written in base 16.

    >>> show((4, (2,)))
    '(4,(2))'
    """
    if x.__class__ is tuple:
        return f"({','.join([show(y) for y in x])})"
    return number(x) if x.__class__ is int else str(x)


def code(x: object) -> str:
    """The repr of a tuple of entries, with integers as `show` writes them."""
    if x.__class__ is tuple:
        return f"({', '.join([code(y) for y in x])}{',' if len(x) == 1 else ''})"
    return show(x) if x.__class__ is int else repr(x)


# ---------------------------------------------------------------- tuples as callers give them


def as_nested(x: object, what: str, entry: Callable[[object, str], object], level: int = 0) -> Any:
    """A caller's nested tuple, at most DEPTH deep. Lists become tuples, and `entry(y, what)` converts what is no int.

    Every tuple that a caller hands over comes through here, or through `as_shape` and `as_stride`, before any function
    walks it. Raises LayoutError.
    """
    if x.__class__ is int:
        return x if BELOW < x < BEYOND else entry(x, what)
    if isinstance(x, (tuple, list)):
        if level >= DEPTH:
            raise too_deep(what)
        if level == SHARED:
            check_entries(x, what)
        return tuple([as_nested(y, what, entry, level + 1) for y in x])
    return entry(x, what)


def as_entries(x: object, what: str) -> Any:
    """A caller's tuple of integers, symbols and basis elements. Raises LayoutError.

    >>> as_entries([4, (np.int64(2), 3)], "x")
    (4, (2, 3))
    """
    return as_nested(x, what, _entry)


def _entry(x: object, what: str) -> Any:
    if x.__class__ is Polynomial or getattr(x, "_is_basis", False):
        return x
    return entry(x) if is_sympy(x) else as_int(x, what)


def as_profile(x: object) -> Any:
    """A caller's profile: a tuple of ints and None."""
    return as_nested(x, "an entry of a profile", lambda y, said: None if y is None else as_int(y, said))


def as_order(x: object) -> Any:
    """A caller's order: a tuple of ints."""
    return as_nested(x, "an order", as_int)


# ---------------------------------------------------------------- checks where shapes and strides are made


def as_shape(x: object, depth: int = 0) -> Any:
    """A checked shape: extents are integers >= 1; lists become tuples, NumPy integers become ints.

    Raises LayoutError naming the extent.
    """
    if x.__class__ is int:
        return as_int(x, "a layout's extent", least=1)
    if x.__class__ is tuple:
        for y in x:
            if y.__class__ is not int or y < 1 or y >= BEYOND:
                break
        else:  # a checked shape already, as most are
            if depth < DEPTH:
                return x
    if isinstance(x, (tuple, list)):
        if depth >= DEPTH:
            raise too_deep("a shape")
        if depth == SHARED:
            check_entries(x, "a shape")
        return tuple([y if y.__class__ is int and 0 < y < BEYOND else as_shape(y, depth + 1) for y in x])
    if x.__class__ is Polynomial or is_sympy(x):
        SYMBOLS_SEEN[0] += 1
        return extent(entry(x))
    return as_shape(as_int(x, "a layout's extent"))


SHARED = 2  # tuples around one that is counted: fewer hold no more entries than were written
MOST_ENTRIES = 1 << 20


def check_entries(x: object, what: str) -> None:
    """Raise LayoutError for a nest of more than MOST_ENTRIES. Its tuples may stand in it many times over."""
    if (count := _count(x, {}, DEPTH)) > MOST_ENTRIES:
        raise LayoutError(f"{what} must have at most {MOST_ENTRIES} entries, not {shown(count)}")


def _count(x: object, known: dict[int, int], left: int) -> int:
    if not isinstance(x, (tuple, list)) or not left:
        return 1
    if id(x) not in known:
        known[id(x)] = sum([_count(y, known, left - 1) for y in x])
    return known[id(x)]


def too_deep(what: str) -> LayoutError:
    """The error for a tuple that nests deeper than DEPTH."""
    return LayoutError(f"{what} must nest at most {DEPTH} deep")


def check_depth(shape: tuple[Shape, ...], left: int = DEPTH - 1) -> None:
    """Raise LayoutError for the shape of a result that nests deeper than DEPTH."""
    for s in shape:
        if s.__class__ is tuple:
            if not left:
                raise too_deep("the shape of a layout")
            for t in s:
                if t.__class__ is tuple:  # most shapes end above
                    check_depth(s, left - 1)
                    break


def check_congruent(shape: object, stride: object) -> None:
    """Raise LayoutError unless the stride has the nesting of the shape."""
    if not congruent(shape, stride):
        raise LayoutError(
            f"stride {show_coord(stride)} is not congruent with shape {show(shape)}: one stride for each extent"
        )


def check_enumerable(what: str, layout: Layout | ComposedLayout) -> None:
    """Refuse the array of all values of a layout that is too large for it."""
    if layout.size > ENUMERABLE:
        raise LayoutError(
            f"{what} of {layout}: {layout.size} values are more than {ENUMERABLE}; call it on the ones needed"
        )


# ---------------------------------------------------------------- coordinates


def out_of_range(coord: object, shape: Shape) -> CoordinateError:
    """The error for a Python int outside `shape`."""
    return CoordinateError(
        f"coordinate {show_coord(coord)} is outside 0..{product(shape) - 1} of shape {show(shape)}", coord
    )


def other_nesting(coord: object, shape: Shape) -> CoordinateError:
    """The error for a coordinate that is nested otherwise than `shape`."""
    said = show(shape)
    said = said if len(said) <= MOST_SHOWN else f"{said[:MOST_SHOWN]}..."
    return CoordinateError(f"coordinate {show_coord(coord)} does not have the nesting of shape {said}")


MOST_SHOWN = 400  # characters of a shape in a message


def scalar(x: object, what: str = "a coordinate") -> Any:
    """A coordinate that is no tuple, made usable: NumPy integers become ints, integer arrays int64.

    Other objects that divide or shift as integers do (traced integers, symbols) pass unchanged. Raises CoordinateError
    for what is no integer: bools, floats, texts, None, layouts, functions, and arrays of other than integers.
    """
    if x.__class__ is int:
        return x
    if isinstance(x, np.ndarray):
        if x.dtype == np.int64 or x.dtype == object:
            return x
        if x.dtype.kind not in "iu":
            raise CoordinateError(f"an array of coordinates must hold integers, not {x.dtype}")
        if x.dtype == np.uint64:
            # A later sum of uint64 with int64 would be float64.
            if x.size and int(x.max()) >= 1 << 63:
                raise CoordinateError("an array of coordinates must fit int64")
        return x.astype(np.int64)
    if is_int(x):
        return int(x)
    if x is None:
        raise CoordinateError("None keeps a mode and belongs to slice(): a coordinate has an integer for every mode")
    if isinstance(x, (numbers.Number, np.generic)) or not _counts(x):  # a Fraction and a Decimal are numbers too
        raise CoordinateError(refusal(x, what, "an integer"))
    return x


def _counts(x: object) -> bool:
    """True for an object with integer arithmetic; False for a tensor of floats, complex numbers or bools."""
    kind = str(getattr(x, "dtype", ""))
    if kind.startswith("torch.") and kind.rpartition(".")[2].startswith(("float", "bfloat", "complex", "bool")):
        return False
    return hasattr(type(x), "__floordiv__") or hasattr(
        type(x), "__rshift__"
    )  # looked up in the class: int itself does not count


def bit_field(x: object, what: str) -> Any:
    """`scalar` for shifts and XOR. Raises CoordinateError for values without bits, such as a symbol."""
    x = scalar(x, what)
    if not (x.__class__ is int or hasattr(x, "__xor__")) or is_sympy(x):  # where >> is an implication
        raise CoordinateError(refusal(x, what, "an integer"))
    return x


def idx2crd(index: object, shape: Shape) -> Any:
    """The coordinate of a flat (colexicographic) index: int -> tuple congruent with `shape`.

    A Python int outside the shape raises CoordinateError; the last mode of an array or a traced index is unbounded.

    >>> idx2crd(13, (4, (2, 3)))
    (1, (1, 1))
    """
    if index.__class__ is not int:
        if isinstance(index, (tuple, list)):
            if shape.__class__ is not tuple or len(index) != len(shape):
                raise other_nesting(index, shape)
            return tuple([idx2crd(i, s) for i, s in zip(index, shape)])
        index = scalar(index)
    if index.__class__ is int and not 0 <= index < product(shape):
        raise out_of_range(index, shape)
    if shape.__class__ is not tuple:
        return index
    return _split(index, shape)


def _split(index: Any, shape: Shape) -> Any:
    flat = leaves(shape)
    if _wraps(index) and _exceeds_words(flat):
        parts_of = _split(index.astype(object), shape)
        return transform(lambda part: part if part.__class__ is int else in_64_bits(part), parts_of)
    last = max([i for i, s in enumerate(flat) if s != 1], default=0)
    w: Scalar = 1
    parts: list[Integer] = []
    for i, s in enumerate(flat):
        if s == 1 and i != last:
            parts.append(0)  # spares a traced index a division by 1
            continue
        part = index if w.__class__ is int and w == 1 else index // w
        parts.append(part if i == last else part % s)
        w = w * s
    entries = iter(parts)
    return transform(lambda _: next(entries), shape)


def crd2idx(coord: Any, shape: Any, stride: Any) -> Any:
    """The offset of a coordinate under integer strides: coordinate -> sum of coordinate * stride.

    `coord` may stop at any mode of `shape`: an int there is the mode's flat index. Python ints are checked against the
    shape (CoordinateError). Arrays are not: they run past the end in the last entry of the shape. Traced integers must
    be in range, since no arithmetic is spent on what is 0 there.
    """
    if coord.__class__ is int:
        if shape.__class__ is not tuple:
            if 0 <= coord < shape:
                return coord * stride
            raise out_of_range(coord, shape)
        rest, total = coord, 0
        for s, d in zip(leaves(shape), leaves(stride)):
            total += rest % s * d
            rest //= s
        if rest:  # also for a negative coordinate: its quotient stays -1
            raise out_of_range(coord, shape)
        return total
    if isinstance(coord, (tuple, list)):
        if shape.__class__ is not tuple or len(coord) != len(shape):
            raise other_nesting(coord, shape)
        parts: Any = 0
        most: int | None = None  # of a sum with arrays, which NumPy would wrap at 64 bits in silence
        for c, s, d in zip(coord, shape, stride):
            if c.__class__ is int and s.__class__ is int:
                if not 0 <= c < s:
                    raise out_of_range(c, s)
                part = c * d
            elif c.__class__ is int or c.__class__ is tuple:
                part = crd2idx(c, s, d)
            elif isinstance(c, np.ndarray) and _wraps(c := scalar(c)):
                part, bound = _offsets_of(c, s, d)
                most = (most or (abs(parts) if parts.__class__ is int else 0)) + bound
            else:
                part = crd2idx(c, s, d)
            if part.__class__ is int:
                if not part:
                    continue  # a traced sum needs no `+ 0`
                most = most if most is None else most + abs(part)
            elif _wraps(part) and not _wraps(c):
                most = (most or (abs(parts) if parts.__class__ is int else 0)) + _largest(part)
            if most is not None and most >> 63:
                parts, part = [x.astype(object) if isinstance(x, np.ndarray) else x for x in (parts, part)]
            parts = part if parts.__class__ is int and not parts else parts + part
        if most is not None and most >> 63 and parts.dtype.kind == "O":
            return in_64_bits(parts)
        return parts
    coord = scalar(coord)
    if coord.__class__ is int:
        return crd2idx(coord, shape, stride)
    if isinstance(coord, np.ndarray):
        return _offsets_of(coord, shape, stride)[0]
    # A traced index must be in range: what is 0 there costs no instruction.
    return _offset(coord, *coal(shape, stride))


def _offsets_of(coord: np.ndarray, shape: object, stride: object) -> tuple[Any, int]:
    """The offsets of flat indices, and a bound of their absolute values; 0 for Python's integers."""
    S, D = coal_open(shape, stride)
    low, high = (int(coord.min()), int(coord.max())) if coord.dtype != object and coord.size else (0, 0)
    steps, largest = [abs(d) for d in D if d.__class__ is int], max(high, -low)
    if coord.dtype != object and (any(d >> 31 for d in steps) or largest >> 31 or _exceeds_words(S[:-1])):
        far = _far(coord, S, D)
        return far, _largest(far)
    out = _offset(coord, S, D)
    if out.__class__ is int:
        return np.zeros(coord.shape, np.int64), 0
    # An index is at least each of its modes' coordinates, unless it is negative: those wrap around.
    bounded = low >= 0 and len(steps) == len(D)
    return out, largest * sum(steps) if bounded else _largest(out) if _wraps(out) else 0


def _far(coord: np.ndarray, S: list[Scalar], D: list[StrideEntry]) -> np.ndarray:
    """Offsets under strides or extents so large that 64 bits may not hold them: by Python's integers, or refused."""
    return np.broadcast_to(in_64_bits(np.asarray(_offset(coord.astype(object), S, D), object)), coord.shape)


def in_64_bits(values: np.ndarray, what: str = "") -> np.ndarray:
    """An array of Python's integers as int64. Raises LayoutError, which begins with `what`, where one does not fit."""
    if values.size and (int(values.max()) >= 1 << 63 or int(values.min()) < -(1 << 63)):
        raise LayoutError(f"{what}offsets up to {max(int(values.max()), -int(values.min()))} do not fit 64 bits")
    return values.astype(np.int64)


def moved_by(values: Any, offset: Any) -> Any:
    """`values` + offset. They are Python's integers where 64 bits may not hold them, since NumPy's wrap in silence.

    offset  an int, or an array

    >>> moved_by(np.array([3]), 4).tolist(), moved_by(np.array([3]), (1 << 63) - 1).tolist()
    ([7], [9223372036854775810])
    """
    if offset.__class__ is int or isinstance(offset, np.ndarray):
        if values.dtype != object and _largest(values) + _largest(offset) >> 63:
            values = values.astype(object)
    return values + offset


def _largest(x: int | np.ndarray) -> int:
    """The largest absolute value."""
    if isinstance(x, np.ndarray):
        return max(int(x.max()), -int(x.min())) if x.size else 0
    return abs(x)


def _exceeds_words(extents: Iterable[Scalar]) -> bool:
    """True if the product of the extents does not fit 64 bits: NumPy cannot divide by it."""
    return bool(prod([s for s in extents if s.__class__ is int]) >> 63)


def _wraps(x: object) -> TypeGuard[np.ndarray]:
    """True for an array of machine integers, whose sums wrap in silence."""
    return x.__class__ is not int and isinstance(x, np.ndarray) and x.dtype.kind != "O"


def added(x: Integer, y: Integer) -> Integer:
    """x + y. Raises LayoutError where a sum of arrays does not fit 64 bits."""
    if not _wraps(y):
        x, y = y, x
    if not _wraps(y):
        return x + y
    total = moved_by(y, x)
    return total if _wraps(total) or (isinstance(x, np.ndarray) and not _wraps(x)) else in_64_bits(total)


def _offset(x: Integer, S: list[Scalar], D: list[StrideEntry]) -> Any:
    """Offset of a flat index over flat modes, last mode unbounded, without arithmetic on 1 and 0."""
    total: Any = 0
    w: Scalar = 1
    last = len(S) - 1
    for i, s in enumerate(S):
        d = D[i]
        if d != 0 and (s != 1 or i == last):
            part = x if w.__class__ is int and w == 1 else x // w
            if i != last:
                part = part % s
            term = part if d == 1 else part * d
            total = term if total.__class__ is int and total == 0 else total + term
        w = w * s
    return total


def show_coord(coord: object, depth: int = 0) -> str:
    """A coordinate in CuTe's notation, of bounded length. Parts that nest deeper than any layout as dots."""
    if not isinstance(coord, (tuple, list)):
        return show(coord) if coord.__class__ is int and coord.bit_length() <= 64 else shown(coord)
    entries = [show_coord(c, depth + 1) for c in coord[:_SHOWN]] if depth < DEPTH else []
    return f"({','.join(entries)}{',' * bool(entries)}...)" if len(entries) < len(coord) else f"({','.join(entries)})"


def coal(shape: object, stride: object) -> Modes:
    """The coalesced modes as two lists. Extents of 1 dropped, neighbours merged when they continue each other.

    The lists are empty for a layout of one element. This form is unique for a function: the first extent is the first
    index i with L(i) != i*L(1), and so on.
    """
    if shape.__class__ is not tuple:
        return ([], []) if shape == 1 else ([shape], [stride])
    S: list[Scalar] = []
    D: list[StrideEntry] = []
    _coal(shape, stride, S, D)
    return S, D


def coal_open(shape: Any, stride: Any) -> Modes:
    """The modes of the function on all indices >= 0, the last mode without end. Coalesced up to the last entry.

    Past the end an index runs on in the last entry of the shape, even when its extent is 1 (CuTe's definition).
    """
    S, D = coal(shape, stride)
    while shape.__class__ is tuple and shape:
        shape, stride = shape[-1], stride[-1]
    if shape.__class__ is int and shape == 1 and not (S and S[-1] * D[-1] == stride):
        S.append(1)
        D.append(stride)
    return S, D


def _coal(shape: Any, stride: Any, S: list[Scalar], D: list[StrideEntry]) -> None:
    for s, d in zip(shape, stride):
        if s.__class__ is tuple:
            _coal(s, d, S, D)
        elif s == 1:
            pass
        elif S and S[-1] * D[-1] == d:
            S[-1] *= s
        else:
            S.append(s)
            D.append(d)


def pack(S: Sequence[Scalar], D: Sequence[StrideEntry]) -> Pair:
    """Shape and stride of flat modes as CuTe prints them. 1:0 for none, an int for one, tuples for more."""
    if len(S) == 1:
        return S[0], D[0]
    if not S:
        return 1, 0
    return tuple(S), tuple(D)


def coalesce(shape: Shape, stride: Stride) -> Pair:
    """The coalesced shape and stride."""
    return pack(*coal(shape, stride))


def filter_zeros(shape: Shape, stride: Stride) -> Pair:
    """Coalesced, without the modes of stride 0."""
    modes = [(s, d) for s, d in zip(leaves(shape), leaves(stride)) if s != 1 and d != 0]
    return coalesce(tuple([s for s, _ in modes]), tuple([d for _, d in modes]))


def modes_for(given: tuple[object, ...], shape: object, stride: object, what: str) -> tuple[object, object]:
    """Shapes and strides of the modes that the entries of a tuple are for. An integer shape is its own only mode."""
    n = len(shape) if shape.__class__ is tuple else 1
    if len(given) > n:
        one = "; a single mode takes an int or a Layout" if shape.__class__ is not tuple and what == "tiler" else ""
        raise LayoutError(f"a {what} of {len(given)} modes for {show(shape)}:{show(stride)}, which has {n}{one}")
    return (shape, stride) if shape.__class__ is tuple else ((shape,), (stride,))


def by_profile(f: Callable[[Any, Any], Pair], shape: Any, stride: Any, profile: object) -> Pair:
    """`f` on every mode that an int of the profile marks. None, and modes past the profile's end, stay."""
    if profile is None:
        return shape, stride
    if profile.__class__ is not tuple:
        return f(shape, stride)
    shape, stride = modes_for(profile, shape, stride, "profile")
    pairs = [by_profile(f, s, d, p) for s, d, p in zip(shape, stride, profile)]
    tail = len(profile)
    return tuple([s for s, _ in pairs]) + shape[tail:], tuple([d for _, d in pairs]) + stride[tail:]
