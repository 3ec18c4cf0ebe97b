"""Scaled basis elements: strides that point along a coordinate instead of along memory.

`E(0)` is one step in mode 0, `E(0, 1)` one step in mode 1 inside mode 0, `8*E(0)` eight steps; CuTe prints them 1@0,
1@1@0 (the innermost mode first) and 8@0. A layout with such strides maps coordinates to coordinates: TMA needs
it, since it is given the coordinates of a box and no address.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from ..arguments import DEPTH, as_int, refusal
from ..errors import LayoutError
from .int_tuple import (
    BELOW,
    BEYOND,
    SHARED,
    SYMBOLS_SEEN,
    Shape,
    Stride,
    added,
    check_entries,
    leaves,
    show,
    too_deep,
    transform,
)
from .symbols.dims import entry, is_sympy
from .symbols.polynomial import Polynomial

WIDEST = 1 << 16  # modes of a coordinate: a tuple with all modes below the one that a basis element names is made


class ScaledBasis:
    """`value` steps along the mode that `path` leads to.

    Frozen and hashable. An integer times a ScaledBasis is a ScaledBasis, or the int 0 when nothing is left of it. A sum
    is the coordinate that the steps lead to.

    >>> 8 * E(0), E(0, 1), str(2 * E(0, 1)), 0 * E(1), 3 * E(0) + 4 * E(1)
    (8*E(0), E(0, 1), '2@1@0', 0, (3, 4))
    """

    __slots__ = ("path", "value")
    value: Any  # a Scalar: an int in most strides
    path: tuple[int, ...]
    _is_basis = True

    def __init__(self, value: object, path: int | tuple[int, ...]) -> None:
        modes = path if isinstance(path, (tuple, list)) else (path,)
        path = tuple([as_int(p, "a mode of a basis element", most=WIDEST) for p in modes])
        if value.__class__ is not Polynomial:
            value = as_int(value, "the value of a basis element")
        if not path or min(path) < 0:
            raise LayoutError(f"a basis element names the modes that lead to it, integers >= 0, not {path}")
        if len(path) > DEPTH:
            raise too_deep("the path of a basis element")
        if value.__class__ is int and value == 0:
            raise LayoutError("a basis element of value 0 is the integer 0: write 0")
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "path", path)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"ScaledBasis is frozen: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"ScaledBasis is frozen: cannot delete {name}")

    def __mul__(self, other: object) -> ScaledBasis | int:
        factor = other if other.__class__ is Polynomial else as_int(other, "the factor of a basis element")
        value = self.value * factor
        return 0 if value.__class__ is int and value == 0 else ScaledBasis(value, self.path)

    __rmul__ = __mul__

    def __neg__(self) -> ScaledBasis:
        return ScaledBasis(-self.value, self.path)

    def __add__(self, other: object) -> tuple[object, ...]:
        value = assemble({other.path: other.value}) if isinstance(other, ScaledBasis) else other
        if value.__class__ is not tuple and (value.__class__ is not int or value):
            raise LayoutError(refusal(other, f"what is added to {self}", "a basis element or a coordinate"))
        total = plus(assemble({self.path: self.value}), value)
        assert isinstance(total, tuple)  # as assemble's is
        return total

    __radd__ = __add__

    def __sub__(self, other: object) -> tuple[object, ...]:
        return self + (-other if isinstance(other, ScaledBasis) else other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScaledBasis) and self.value == other.value and self.path == other.path

    def __hash__(self) -> int:
        return hash((ScaledBasis, self.value, self.path))

    def __reduce__(self) -> tuple[object, ...]:
        return ScaledBasis, (self.value, self.path)

    def __str__(self) -> str:
        return "@".join(map(str, (self.value, *reversed(self.path))))

    def __repr__(self) -> str:
        element = f"E({', '.join(map(str, self.path))})"
        return element if self.value == 1 else f"{self.value}*{element}"


def E(*path: int) -> ScaledBasis:
    """One step along mode `path[0]`, or along mode path[1] inside it, and so on.

    >>> str(E(1)), str(E(0, 1))
    ('1@1', '1@1@0')
    """
    return ScaledBasis(1, path)


def has_basis(stride: Stride) -> bool:
    """True if a stride leads to coordinates. A well-formed stride is ints only, or zeros and basis elements only."""
    if stride.__class__ is int:
        return False
    if stride.__class__ is tuple:
        for d in stride:
            if d.__class__ is int:
                if d != 0:
                    return False
            elif has_basis(d):
                return True
        return False
    return stride.__class__ is ScaledBasis


def as_stride(x: object) -> Stride:
    """A checked stride. Integers, or zeros and basis elements none of whose paths leads through another."""
    if x.__class__ is tuple:
        for d in x:
            if d.__class__ is not int or not BELOW < d < BEYOND:
                break
        else:  # a checked stride already, as most are
            return x
    out = _as_stride(x)
    if out.__class__ is int:
        return out
    entries = leaves(out)
    for d in entries:
        if d.__class__ is not int:
            break
    else:
        return out
    paths = {d.path for d in entries if d.__class__ is ScaledBasis}
    if paths:
        SYMBOLS_SEEN[0] += sum([d.value.__class__ is Polynomial for d in entries if d.__class__ is ScaledBasis])
        for d in entries:
            if (d.__class__ is int and d != 0) or d.__class__ is Polynomial:
                raise LayoutError(f"strides {show(out)} mix offsets ({d}) with coordinates ({next(iter(paths))})")
        for q in paths:
            for n in range(1, len(q)):
                if (p := q[:n]) in paths:
                    raise LayoutError(f"basis elements {E(*p)} and {E(*q)}: a mode cannot be both a leaf and a tuple")
    return out


def _as_stride(x: object, depth: int = 0) -> Stride:
    if x.__class__ is ScaledBasis:
        return x
    if isinstance(x, (tuple, list)):
        if depth >= DEPTH:
            raise too_deep("a stride")
        if depth == SHARED:
            check_entries(x, "a stride")
        return tuple([y if y.__class__ is int and BELOW < y < BEYOND else _as_stride(y, depth + 1) for y in x])
    if x.__class__ is Polynomial or is_sympy(x):
        SYMBOLS_SEEN[0] += 1
        return entry(x)
    if isinstance(x, str) and ":" not in x:  # as "C" of NumPy
        said = refusal(x, "a layout's stride", "an integer")
        raise LayoutError(f"{said}; Layout.ordered((4, 8), (1, 0)) is row-major")
    return as_int(x, "a layout's stride")


def paths_of(stride: Stride) -> list[tuple[int, ...]]:
    """The paths that the strides lead along, sorted."""
    return sorted({d.path for d in leaves(stride) if d.__class__ is ScaledBasis})


def component(stride: object, path: tuple[int, ...]) -> Stride:
    """The integer strides of one component of the coordinate."""
    return transform(lambda d: d.value if d.__class__ is ScaledBasis and d.path == path else 0, stride)


def assemble(parts: dict[tuple[int, ...], Any]) -> Any:
    """The coordinate tuple with the given components, and 0 elsewhere.

    >>> assemble({(0,): 5, (2, 1): 7})
    (5, 0, (0, 7))
    """
    if list(parts) == [()]:
        return parts[()]
    inner: dict[int, dict[tuple[int, ...], Any]] = {}
    for p, v in parts.items():
        inner.setdefault(p[0], {})[p[1:]] = v
    return tuple([assemble(inner[i]) if i in inner else 0 for i in range(1 + max(inner))])


def plus(a: Any, b: Any) -> object:
    """The sum of two coordinates, entry by entry. A mode that one of them lacks is 0 there.

    Raises LayoutError where one has an integer other than 0 and the other a tuple.

    >>> plus((5, 0, 1), (1, (2, 3)))
    (6, (2, 3), 1)
    """
    if isinstance(a, tuple) and isinstance(b, tuple):
        return tuple([plus(x, y) for x, y in zip_longest(a, b, fillvalue=0)])
    if isinstance(b, tuple):
        return plus(b, a)
    if isinstance(a, tuple):
        if b.__class__ is int and b:
            raise LayoutError(f"{show(b)} in a mode, and {show(a)}, which leads to a tuple there")
        return tuple([plus(x, b) for x in a])
    return added(a, b)


def identity_stride(shape: Shape, path: tuple[int, ...] = ()) -> Stride:
    """The strides E(i), E(i, j), ... that map each coordinate to itself. E(0) for an integer shape."""
    if shape.__class__ is not tuple:
        return ScaledBasis(1, path or (0,))
    return tuple([identity_stride(s, path + (i,)) for i, s in enumerate(shape)])


class Encoding:
    """Basis strides as integers, one digit of a wide radix for each path.

    The map is linear and one-to-one on sums whose components stay below `reach` in absolute value.
    """

    def __init__(self, stride: Stride, reach: int) -> None:
        self.paths = paths_of(stride)
        self.radix = 2 * reach + 1
        self.weights = {p: self.radix**i for i, p in enumerate(self.paths)}

    def encode(self, stride: object) -> Any:
        """The integer strides."""
        return transform(lambda d: d.value * self.weights[d.path] if d.__class__ is ScaledBasis else d, stride)

    def decode(self, stride: object) -> Stride:
        """The basis strides. Raises LayoutError where one stride would need two components."""
        return transform(self._decode, stride)

    def digits(self, x: int) -> dict[tuple[int, ...], int]:
        """The components of an encoded sum."""
        out = {}
        half = self.radix // 2
        for p in self.paths:
            digit = (x + half) % self.radix - half
            x = (x - digit) // self.radix
            out[p] = digit
        return out

    def _decode(self, x: int) -> Stride:
        found = [(v, p) for p, v in self.digits(x).items() if v]
        if len(found) > 1:
            raise LayoutError(f"a stride along {' and '.join(str(ScaledBasis(v, p)) for v, p in found)} at once")
        return ScaledBasis(*found[0]) if found else 0
