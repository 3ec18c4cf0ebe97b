"""The operations of the algebra on layouts some of whose entries are symbols. On (shape, stride) pairs.

Each is the integer operation with its questions asked of polynomials (`conditions.py`). An answer is right at every
size that the facts allow. Otherwise the operation is refused with the facts that would decide it. Sizes at which a
symbolic extent is 1 are included. Where no entry is a symbol, the integer operation itself is called.

Two things differ from the integers by necessity. Chains of modes (complement, inverses) are ordered by provable
comparison or divisibility, never by sorting. And modes are those of general sizes. Where an extent is 1 or two modes
happen to continue each other, the integer operation may print the same function with fewer modes.
"""

from __future__ import annotations

from typing import Any

from ...errors import CompositionError, LayoutError
from .. import registries
from ..algebra import compose as _int_compose
from ..algebra import inverse as _int_inverse
from ..algebra.divide import divide as int_divide
from ..algebra.divide import join, refuse_coordinates
from ..algebra.divide import multiply as int_multiply
from ..basis import ScaledBasis, has_basis
from ..int_tuple import Modes, Pair, Shape, Stride, StrideEntry, coal, coal_open, leaves, pack, product
from ..int_tuple import show as show_tuple
from .conditions import back_to, holds, mark, quotient, rounded_down, rounded_up
from .polynomial import MissingFact, Polynomial, Scalar, needs_div, needs_ge, show

Mode = tuple[Scalar, Scalar]
Link = tuple[Scalar, Scalar, Scalar, Scalar]  # of a chain: extent, stride, gap, end below


def has_symbols(*entries: object) -> bool:
    """True if any entry of the shapes and strides, basis elements included, is a symbol."""
    for x in entries:
        if x.__class__ is tuple:
            if has_symbols(*x):
                return True
        elif x.__class__ is Polynomial or (x.__class__ is ScaledBasis and x.value.__class__ is Polynomial):
            return True
    return False


def _text(pair: Pair) -> str:
    return f"{show_tuple(pair[0])}:{show_tuple(pair[1])}"


# ---------------------------------------------------------------- composition


def compose(ashape: Shape, astride: Any, bshape: Shape, bstride: Stride) -> Pair:
    """Shape and stride of A o B. Modes of B by divisibility, then the carries of their sum.

    Raises CompositionError naming the missing facts. Rules for each mode s:d of B against a mode a of A: a | d passes a
    by; (s-1)*d < a fits whole. Where d | a and (a/d) | s, the mode fills a and goes on in the next one.
    """
    if not has_symbols(ashape, astride, bshape, bstride):
        return _int_compose.compose(ashape, astride, bshape, bstride)
    if has_basis(bstride):
        return _int_compose.compose_coordinates((ashape, astride), (bshape, bstride), compose, registries.symbolic)
    S, D = coal_open(ashape, astride)
    if not S:
        S, D = [1], [0]
    try:
        return _Composition(S, D).of(bshape, bstride)
    except MissingFact as refusal:
        inside = _within_integers(S, D, bshape, bstride)
        if inside is not None:
            return inside
        raise _refused(refusal, (ashape, astride), (bshape, bstride)) from None


def _refused(refusal: MissingFact, a: Pair, b: Pair) -> CompositionError:
    error = CompositionError(str(refusal), None, registries.symbolic(*a), registries.symbolic(*b))
    error.needs = refusal.needs
    return error


class _Composition:
    """A o B for a coalesced A, whose last mode has no end."""

    def __init__(self, S: list[Scalar], D: list[StrideEntry]) -> None:
        self.S, self.D = S, D
        self.last = len(S) - 1
        self.parts: list[tuple[int, Scalar]] = []  # mode of A, reach within it

    def of(self, bshape: object, bstride: object) -> Pair:
        out = self._modes(bshape, bstride)
        for i in range(self.last):
            reach = [r for j, r in self.parts if j == i]
            if len(reach) > 1 and not holds(sum(reach), self.S[i] - 1):
                raise MissingFact(
                    f"the modes of the right operand may carry across {show(self.S[i])}:{show(self.D[i])}, where they "
                    f"reach {show(sum(reach))}",
                    needs_ge(self.S[i] - 1 - sum(reach)),
                )
        return out

    def _modes(self, s: Any, d: Any) -> Pair:
        if s.__class__ is tuple:
            return join([self._modes(x, y) for x, y in zip(s, d)])
        return self._mode(s, d)

    def _mode(self, s: Scalar, d: Scalar) -> Pair:
        if s.__class__ is int and s == 1:
            return 1, 0
        if d.__class__ is int and d == 0:
            return s, 0
        if self.last and not holds(0, d):
            raise MissingFact(f"the mode {show(s)}:{show(d)} of the right operand may run backwards", needs_ge(d))
        S, D, whole = [], [], (s, d)
        for i in range(self.last):
            a = self.S[i]
            passed = quotient(d, a)
            if passed is not None:
                d = passed
                continue
            if holds((s - 1) * d, a - 1):
                self.parts.append((i, (s - 1) * d))
                S.append(s)
                D.append(d * self.D[i])
                return pack(S, D)
            n = quotient(a, d)
            rest = None if n is None else quotient(s, n)
            if n is None or rest is None:
                ways = [*needs_div(a, d), *(needs_div(d, a) if n is None else ()), *needs_ge(a - 1 - (s - 1) * d)]
                if n is not None:
                    ways += needs_div(n, s)
                raise MissingFact(
                    f"mode {show(whole[0])}:{show(whole[1])} of the right operand: {show(s)} steps of {show(d)} in the "
                    f"mode {show(a)}:{show(self.D[i])} of the left one",
                    tuple(dict.fromkeys(ways)),
                )
            if not (n.__class__ is int and n == 1):
                self.parts.append((i, (n - 1) * d))
                S.append(n)
                D.append(d * self.D[i])
            s, d = rest, 1
            if s.__class__ is int and s == 1:
                return pack(S, D)
        S.append(s)
        D.append(d * self.D[self.last])
        return pack(S, D)


def _within_integers(S: list[Scalar], D: list[StrideEntry], bshape: Shape, bstride: Stride) -> Pair | None:
    """A o B by the integer rule, where integer B stays below A's first symbol. The rule is complete."""
    if has_symbols(bshape, bstride) or any(d < 0 for d in leaves(bstride)):
        return None
    top = sum([(s - 1) * d for s, d in zip(leaves(bshape), leaves(bstride))])
    w = 1
    for i, s in enumerate(S):
        if has_symbols(D[i]):
            return None
        if s.__class__ is not int:
            if not holds(top + 1, w * s):
                return None
            # Inside this mode and below its end: any extent that is large enough is the same function.
            extent = -(-(top + 1) // w)
            return _int_compose.compose((*S[:i], extent), tuple(D[: i + 1]), bshape, bstride)
        w *= s
        if top < w and i < len(S) - 1:
            return _int_compose.compose(tuple(S[: i + 1]), tuple(D[: i + 1]), bshape, bstride)
    return None


# ---------------------------------------------------------------- chains: complement and inverses


def chain(shape: Shape, stride: Stride, what: str) -> list[Link]:
    """The modes in order of their strides, as (extent, stride, gap, end below). gap is floor(stride / end).

    A mode is next when its stride is provably at or above the end of the modes below, and no other mode can begin
    before it ends. Raises MissingFact naming the comparisons that are not decided.
    """
    rest: list[Mode] = []
    for s, d in zip(leaves(shape), leaves(stride)):
        if d.__class__ is ScaledBasis:
            raise LayoutError(
                f"{what} of {_text((shape, stride))}: its values are coordinates, and {what} needs integer offsets"
            )
        if (s.__class__ is int and s == 1) or (d.__class__ is int and d == 0):
            continue
        rest.append((s, d))
    out = []
    end: Scalar = 1
    while rest:
        for i, (s, d) in enumerate(rest):
            point = mark()
            gap = _gap(d, end)
            if gap is not None and all(_after(e, d * s) for j, (_, e) in enumerate(rest) if j != i):
                break
            back_to(point)
        else:
            raise MissingFact(
                f"{what} of {_text((shape, stride))}: no order of {', '.join(map(_text, rest))} above {show(end)} is "
                f"known",
                _order_needs(rest, end),
            )
        out.append((s, d, gap, end))
        end = d * s
        rest.pop(i)
    return out


def _gap(d: Scalar, end: Scalar) -> Scalar | None:
    """The number of translates that fit between `end` and the stride `d`: None where that is not known, or d is below
    end."""
    gap = rounded_down(d, end)
    if gap is None or not holds(1, gap):
        return None
    return gap


def _after(d: Scalar, end: Scalar) -> bool:
    """True if a stride begins at or above `end`."""
    q = quotient(d, end)
    return (q is not None and holds(1, q)) or holds(end, d)


def _order_needs(rest: list[Mode], end: Scalar) -> tuple[str, ...]:
    ways: list[str] = []
    for i, (s, d) in enumerate(rest):
        if _gap(d, end) is None:
            ways += needs_div(end, d)
            continue
        others = [e for j, (_, e) in enumerate(rest) if j != i and not _after(e, d * s)]
        if len(others) == 1:
            ways += [*needs_div(d * s, others[0]), *needs_ge(others[0] - d * s)]
    return tuple(dict.fromkeys(ways))


def gaps(shape: Shape, stride: Stride, what: str, exact: bool) -> tuple[list[Scalar], list[StrideEntry], list[Link]]:
    """The complement's modes below the end of the layout, and the layout's own chain."""
    S: list[Scalar] = []
    D: list[StrideEntry] = []
    modes = chain(shape, stride, what)
    for _, d, gap, end in modes:
        if exact and quotient(d, end) is None:
            raise MissingFact(
                f"{what} needs the complement of {_text((shape, stride))} to leave nothing out: the stride {show(d)} "
                f"above {show(end)}",
                needs_div(end, d),
            )
        if not (gap.__class__ is int and gap == 1):
            S.append(gap)
            D.append(end)
    return S, D, modes


def end_of(modes: list[Link]) -> Scalar:
    """The end of the last mode of a chain."""
    return modes[-1][0] * modes[-1][1] if modes else 1


def check_units(modes: list[Link], bound: Scalar | None, what: str, pair: Pair) -> None:
    """Refuse a chain whose complement is another function where the extent of a mode is 1.

    The integer operation drops that mode. Its gap then merges into the gap above or, at the top, into the copies up to
    `bound`; the two are one function where each divides the next. A `bound` of None is copies without end.
    """
    for i, (s, d, gap, end) in enumerate(modes):
        if s.__class__ is int:
            continue  # chain() has dropped those of extent 1
        point = mark()
        whole = quotient(d, end) is not None
        if whole and gap.__class__ is int and gap == 1:
            continue
        above = modes[i + 1 :] if bound is not None else modes[i + 1 : -1]
        if whole or (bound is None and not modes[i + 1 :]):
            fixed = False
            for t, e, _, below in above:
                whole = quotient(e, below) is not None
                fixed = t.__class__ is int
                if fixed or not whole:
                    break
            if whole and (fixed or bound is None or quotient(bound, d) is not None):
                continue
        back_to(point)
        if not holds(2, s):
            raise MissingFact(
                f"{what} of {_text(pair)}: the mode {show(s)}:{show(d)} leaves a gap of {show(gap)} below it, and has "
                f"none where its extent is 1",
                (*needs_ge(s - 2), *(needs_div(d, bound) if bound is not None else ())),
            )


def complement(shape: Shape, stride: Stride, bound: Scalar = 1, what: str = "complement", exact: bool = False) -> Pair:
    """The translates of the layout's image below `bound`, as a layout. `exact` refuses gaps that are rounded down."""
    if not has_symbols(shape, stride, bound):
        if exact:
            return _int_inverse.complement_exact(shape, stride, bound, what)
        return _int_inverse.complement(shape, stride, bound)
    S, D, modes = gaps(shape, stride, what, exact)
    check_units(modes, bound, what, (shape, stride))
    end = end_of(modes)
    if not holds(bound, end):
        top = rounded_up(bound, end)
        if top is None:
            raise MissingFact(
                f"{what} of {_text((shape, stride))}: ceil({show(bound)} / {show(end)}) copies",
                (*needs_div(end, bound), *needs_ge(end - bound), f"T = ceil_div({show(bound)},{show(end)})"),
            )
        S.append(top)
        D.append(end)
    return pack(*coal(tuple(S), tuple(D)))


def right_inverse(shape: Shape, stride: Stride) -> Pair:
    """R with L(R(i)) = i. The modes of stride 1, then of the product of the extents taken so far, and so on.

    It ends where no stride equals that product at all sizes; at some sizes a longer inverse may exist. Where modes
    overlap, it takes a longer chain only if the facts show it longer.
    """
    if not has_symbols(shape, stride):
        return _int_inverse.right_inverse(shape, stride)
    modes = []
    w: Scalar = 1
    for s, d in zip(leaves(shape), leaves(stride)):
        if d.__class__ is ScaledBasis:
            raise LayoutError(f"right_inverse of {_text((shape, stride))}: its values are coordinates")
        if not (s.__class__ is int and s == 1):
            modes.append((s, d, w))
        w = w * s
    chain = _longest_chain(modes)
    return pack(*coal(tuple([s for s, _ in chain]), tuple([w for _, w in chain])))


def _longest_chain(modes: list[tuple[Scalar, Scalar, Scalar]]) -> list[tuple[Scalar, Scalar]]:
    """Extents and weights of a chain of modes d = 1, d = s, ...: the longest by the facts, else the first."""
    ends: dict[Scalar, tuple[Scalar, list[tuple[Scalar, Scalar]]]] = {}  # where a chain begins -> its end, its modes

    def longest(end: Scalar) -> tuple[Scalar, list[tuple[Scalar, Scalar]]]:
        if end not in ends:
            top = end
            found: list[tuple[Scalar, Scalar]] = []
            for s, d, w in modes:
                if d == end:
                    above, chain = longest(end * s)
                    if not found or (above != top and holds(top, above)):
                        top, found = above, [(s, w), *chain]
            ends[end] = top, found
        return ends[end]

    return longest(1)[1]


def left_inverse(shape: Shape, stride: Stride) -> Pair:
    """R with R(L(i)) = i: the right inverse of (L, complement of L)."""
    if not has_symbols(shape, stride):
        return _int_inverse.left_inverse(shape, stride)
    for s, d in zip(leaves(shape), leaves(stride)):
        if d.__class__ is int and d == 0 and not (s.__class__ is int and s == 1):
            raise MissingFact(
                f"left_inverse of {_text((shape, stride))}: mode {show(s)}:0 sends all its coordinates to one offset",
                (f"{show(s)} == 1",) if s.__class__ is Polynomial else (),
            )
    rest = complement(shape, stride, 1, "left_inverse", exact=True)
    return right_inverse((shape, rest[0]), (stride, rest[1]))


def max_common(a: Pair, b: Pair) -> Pair:
    """The largest R along b's right inverse with A(R(i)) = B(R(i)) = i.

    It ends where A's strides are other polynomials than the inverse asks for. Where only a bound is not decided, such
    as R's end inside A, it is refused with the fact that would decide.
    """
    if not has_symbols(a, b):
        return _int_inverse.max_common(a, b)
    rs: list[Scalar] = []
    rd: list[Scalar] = []
    end: Scalar = 1
    reach: Scalar = 0  # the largest index of R so far
    size = product(a[0])
    for s, d in zip(*coal(*right_inverse(*b))):
        S, D = _common_mode(a, (*rs, s), (*rd, d))
        if not S or D[0] != 1:
            break
        # The run of A(R(i)) = i goes on for S[0] indices: whole copies of what is below.
        n = quotient(S[0], end)
        if n is None or (n.__class__ is int and n == 1):
            break
        inside = n
        if not holds(reach + (n - 1) * d, size - 1):
            # It passes the end of A: as many steps of d as fit, where that many are known.
            fitting = quotient(size, d) if reach == d - 1 else None
            if fitting is None or not holds(fitting, n):
                raise MissingFact(
                    f"max_common of {_text(a)} and {_text(b)}: whether {show(n)}:{show(d)} of the right inverse stays "
                    f"below {show(size)}",
                    needs_ge(size - 1 - reach - (n - 1) * d),
                )
            inside = fitting
        if not (inside.__class__ is int and inside == 1):
            rs.append(inside)
            rd.append(d)
        if inside != s:
            break
        reach = reach + (s - 1) * d
        end = end * s
    return pack(rs, rd)


def _common_mode(a: Pair, S: tuple[Shape, ...], D: tuple[Stride, ...]) -> Modes:
    """A o (S:D), coalesced; empty where no layout is that."""
    try:
        return coal(*compose(*a, S, D))
    except CompositionError as refusal:
        needs = getattr(refusal, "needs", ())
        if needs:
            raise MissingFact(f"max_common: {refusal.reason}") from None
        return [], []


def nonzero(what: str, answer: Any, shape: object, stride: object) -> Pair:
    """The shape and stride of `answer`, which took symbolic strides for other than 0. Refuses where one may be 0."""
    for s, d in zip(leaves(shape), leaves(stride)):
        value = d.value if d.__class__ is ScaledBasis else d
        if value.__class__ is Polynomial and not (s.__class__ is int and s == 1) and not holds(value, -1):
            if not holds(1, value):
                raise MissingFact(
                    f"{what} of {_text((shape, stride))}: the stride {show(value)} may be 0", needs_ge(value - 1)
                )
    return answer.shape, answer.stride


# ---------------------------------------------------------------- divides and products


def composed(shape: Shape, stride: Stride, pair: Pair) -> Pair:
    """A o T."""
    return compose(shape, stride, *pair)


def divide(shape: Shape, stride: Stride, pair: Pair) -> Pair:
    """A o (T, complement of T up to size(A))."""
    if not has_symbols(shape, stride, pair):
        return int_divide(shape, stride, pair)
    s, d = pair
    cs, cd = complement(s, d, product(shape), "a divide", exact=True)
    return compose(shape, stride, (s, cs), (d, cd))


def multiply(shape: Any, stride: Any, pair: Pair) -> Pair:
    """(A, complement of A o B). The complement's last mode runs on without end, as composition reads it."""
    if not has_symbols(shape, stride, pair):
        return int_multiply(shape, stride, pair)
    s, d = pair
    refuse_coordinates(s, d)
    reach: Scalar = 1
    for n, e in zip(leaves(s), leaves(d)):
        if n != 1 and not holds(0, e):
            raise MissingFact(f"a product over {_text(pair)}: mode {show(n)}:{show(e)} counts copies up", needs_ge(e))
        reach = reach + (n - 1) * e
    S, D, modes = gaps(shape, stride, "a product", exact=False)
    room = product(tuple(S))
    if not holds(reach, room):
        # Beyond the end of A every gap must be whole, or copies would leave elements out.
        S, D, modes = gaps(shape, stride, "a product", exact=True)
        S.append(2)
        D.append(end_of(modes))
    check_units(modes, None, "a product", (shape, stride))
    cs, cd = pack(S, D)
    s, d = compose(cs, cd, s, d)
    return (shape, s), (stride, d)


def copies(extent: Scalar, size: Scalar, where: str, block: Shape) -> Scalar:
    """The number of blocks along a mode of the target. Raises MissingFact, which begins with `where`."""
    found = quotient(extent, size)
    if found is None:
        raise MissingFact(
            f"{where} has extent {show(extent)}, and the block's is {show(size)}", needs_div(size, extent)
        )
    return found
