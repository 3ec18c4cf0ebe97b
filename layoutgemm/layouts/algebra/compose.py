"""Composition, sound and complete on integers.

`A o B` has B's modes and the function c -> A(B(c)), where A's last mode runs on without end. Not every pair has one.
The condition: let A be coalesced (keeping a last entry of extent 1 where it says how A runs on), with extents S and
strides D. The boundaries are W[b] = S[0]*..*S[b], none above the last mode, and k[b] = D[b+1] - S[b]*D[b]. No k is 0,
or the modes would have merged. For offsets x and y of B

    A(x + y) = A(x) + A(y) + sum over b of k[b] * carry[b],    carry[b] = 1 when x%W[b] + y%W[b] >= W[b]

so everything is a question of carries:

1. A mode s:d of B is read from its values. A(i*d) = i*A(d) until the first i = n at which carries show. If n reaches s
   the mode is s:A(d). Otherwise a layout must have an extent n there (its coalesced form is unique), so n must divide
   s, and the mode splits into n:d and (s/n):(n*d), of which the second is read in the same way.
2. All the parts together must not carry visibly.

Where no boundary carries, the answer stands. The first coordinate at which a boundary carries has a closed form, and
before it nothing carries. So the values at that one coordinate decide, unless carries at several boundaries cancel
there exactly. Only then the values are enumerated, and above `LIMIT` of them the composition is refused as undecided.

The first test below is CuTe's rule of divisibility, which answers the usual cases in a few operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, product
from operator import mul
from typing import Any

from ...arguments import DEPTH
from ...errors import CompositionError
from ...lazy_numpy import has_numpy, np
from .. import registries
from ..basis import Encoding, ScaledBasis, component, has_basis, paths_of
from ..int_tuple import Pair, Shape, Stride, StrideEntry, check_depth, coal_open, flatten, leaves, pack, show, too_deep
from ..symbols.polynomial import Scalar

LIMIT = 1 << 24


def compose(ashape: Shape, astride: Stride, bshape: Any, bstride: Any) -> Pair:
    """Shape and stride of A o B. Raises CompositionError with the first misfit where no layout is that function."""
    if bstride.__class__ is not int and has_basis(bstride):
        return compose_coordinates((ashape, astride), (bshape, bstride), compose, registries.layout_of)
    S, D = coal_open(ashape, astride)
    if not S:
        S, D = [1], [0]  # the empty shape
    last = len(S) - 1
    if bshape.__class__ is not tuple:
        # One mode cannot carry into itself under the rule of divisibility, so there is nothing to budget.
        found = _mode(S, D, last, bshape, bstride, None)
    else:
        room = [a - 1 for a in S]
        found = _modes(S, D, last, bshape, bstride, room, 1)
        if found is not None and last and min(room[:last]) < 0:
            found = None
    if found is None:
        return _read(S, D, (ashape, astride), (bshape, bstride))
    return found


def _modes(
    S: list[int],
    D: list[StrideEntry],
    last: int,
    shape: tuple[Any, ...],
    stride: Any,
    room: list[int],
    level: int,
) -> Pair | None:
    """The modes of B one by one; None when one of them does not divide. `room` is what each mode of A has left."""
    rs = []
    rd = []
    for s, d in zip(shape, stride):
        if s.__class__ is tuple:
            found = _modes(S, D, last, s, d, room, level + 1)
        else:
            found = _mode(S, D, last, s, d, room)
        if found is None:
            return None
        rs.append(found[0])
        rd.append(found[1])
    if level >= DEPTH and any(s.__class__ is tuple for s in rs):
        raise too_deep("the shape of a layout")
    return tuple(rs), tuple(rd)


def _mode(S: list[int], D: list[StrideEntry], last: int, s: int, d: int, room: list[int] | None) -> Pair | None:
    """A o (s:d) by divisibility: what it takes of each mode of A from the lowest. None when it does not divide."""
    if s == 1:
        return 1, _unit_stride(S, D, last, d)
    if d == 0:
        return s, 0
    rs: list[Scalar] = []
    rd: list[StrideEntry] = []
    for i in range(last):
        a = S[i]
        if not d % a:
            d //= a
            continue
        if d < 0:
            return None
        if (s - 1) * d < a:
            # The rest fits inside this mode of A, whether or not it divides.
            if room is not None:
                room[i] -= (s - 1) * d
            if not rs:
                return s, d * D[i]
            rs.append(s)
            rd.append(d * D[i])
            return tuple(rs), tuple(rd)
        n, r = divmod(a, d)
        if r or s % n:
            return None
        if room is not None:
            room[i] -= (n - 1) * d
        rs.append(n)
        rd.append(d * D[i])
        s //= n
        d = 1
    if not rs:
        return s, d * D[last]
    rs.append(s)
    rd.append(d * D[last])
    return tuple(rs), tuple(rd)


def _unit_stride(S: list[int], D: Sequence[StrideEntry], last: int, d: int) -> StrideEntry:
    """The stride that CuTe prints for a mode of extent 1; no coordinate ever reaches it."""
    if d == 0:
        return 0
    for i in range(last):
        d = -(-d // S[i])
    return d * D[last]


# ---------------------------------------------------------------- what divisibility does not decide


def _read(S: list[int], D: list[Any], a: Pair, b: Pair) -> Pair:
    """The general case: read every mode from its carries, then the sum. a and b are the operands, for the message."""
    bs, bd = leaves(b[0]), leaves(b[1])
    reach = sum([(s - 1) * abs(d) for s, d in zip(bs, bd)]) + 1
    code = None
    if has_basis(tuple(D)):
        code = Encoding(tuple(D), 4 * reach * sum(abs(d.value) for d in D if d.__class__ is ScaledBasis))
        D = list(code.encode(tuple(D)))
    reader = _Reader(S, D, a, b, code)
    results = reader.read(bs, bd)
    shape, stride = _nest(b[0], iter(results))
    if shape.__class__ is tuple:
        check_depth(shape)
    if code is not None:
        for j, (_, d) in enumerate(results):
            for value in leaves(d):
                digits = {p: v for p, v in code.digits(value).items() if v}
                if len(digits) > 1:
                    steps = " and ".join(str(ScaledBasis(v, p)) for p, v in digits.items())
                    reader.refuse(f"mode {j} of the right operand would step along {steps} at once", None, j)
        stride = code.decode(stride)
    return shape, stride


def _nest(profile: Shape, results: Iterator[Pair]) -> Pair:
    if profile.__class__ is tuple:
        pairs = [_nest(p, results) for p in profile]
        return tuple([s for s, _ in pairs]), tuple([d for _, d in pairs])
    shape, stride = next(results)
    return shape, stride


class _Reader:
    """Reads the modes of A o B off the carries of A, which is coalesced. A has extents S and integer strides D."""

    def __init__(self, S: list[int], D: list[int], a: Pair, b: Pair, code: Encoding | None) -> None:
        self.S, self.D, self.a, self.b, self.code = S, D, a, b, code
        self.W = list(accumulate(S[:-1], mul))  # boundaries

    def value(self, x: int) -> int:
        total = 0
        for i, w in enumerate(self.S[:-1]):
            x, r = divmod(x, w)
            total += r * self.D[i]
        return total + x * self.D[-1]

    def values(self, x: np.ndarray) -> np.ndarray:
        total = x * 0
        for s, d in zip(self.S[:-1], self.D[:-1]):
            total = total + (x % s) * d
            x = x // s
        return total + x * self.D[-1]

    def read(self, bs: list[int], bd: list[int]) -> list[tuple[Scalar, StrideEntry]]:
        results: list[Pair] = []
        parts: list[tuple[int, int, int]] = []  # extent, stride, weight in B's flat domain
        w = 1
        misfit = None
        for j, (s, d) in enumerate(zip(bs, bd)):
            if s == 1 or d == 0:
                results.append((1, _unit_stride(self.S, self.D, len(self.W), d)) if s == 1 else (s, 0))
                w *= s
                continue
            if d < 0 and any(d % w for w in self.W):
                self.refuse(
                    f"mode {j} of the right operand, {s}:{d}, reaches negative offsets, where the left one has none",
                    None,
                    j,
                )
            S: list[int] = []
            D: list[int] = []
            rest = s
            while rest > 1:
                n = self.bend(d, rest, j)
                parts.append((n, d, w))
                S.append(n)
                D.append(self.value(d))
                if rest % n:
                    misfit = w * n, j, n, rest, d
                    break
                rest //= n
                d *= n
                w *= n
            results.append(pack(S, D))
            if misfit:
                break
        c = self.first_carry(parts)
        if c is not None and (misfit is None or c < misfit[0]):
            self.refuse_sum(c, bs, parts)
        if misfit is not None:
            c, j, n, rest, d = misfit
            last, step = (n - 1) * d, self.value(d)
            self.refuse(
                f"mode {j} of the right operand, {bs[j]}:{bd[j]}, takes the left one in steps of {d}: the offset grows "
                f"by {self.text(step)} up to {self.text(self.value(last))} at {last}, and is "
                f"{self.text(self.value(n * d))}, not {self.text(n * step)}, at {n * d}; so it needs an extent of {n}, "
                f"which does not divide {rest}",
                c,
                j,
            )
        return results

    def bend(self, d: int, s: int, mode: int) -> int:
        """The first i < s with A(i*d) != i*A(d), or s."""
        n = s
        for w in self.W:
            r = d % w
            if r:
                n = min(n, -(-w // r))
        if n == s or self.value(n * d) != n * self.value(d):
            return n
        # Carries at several boundaries cancel at n: look at the values.
        step = self.value(d)
        if not has_numpy():
            found = next((i for i in range(n, min(s, LIMIT)) if self.value(i * d) != i * step), None)
            return self.all_seen(s, mode) if found is None else found
        for start in range(n, min(s, LIMIT), 1 << 16):
            i: np.ndarray = np.arange(start, min(s, start + (1 << 16)), dtype=self.dtype(s * d, s * abs(step)))
            bad = np.nonzero(self.values(i * d) != i * step)[0]
            if len(bad):
                return start + int(bad[0])
        return self.all_seen(s, mode)

    def all_seen(self, s: int, mode: int) -> int:
        """The extent s of a mode whose values are all enumerated. Refuses a larger one."""
        if s > LIMIT:
            self.refuse(
                f"undecided: mode {mode} has {s} values, and more than {LIMIT} would have to be enumerated", None, mode
            )
        return s

    def dtype(self, *bounds: int) -> type:
        # NumPy wraps in silence where a product passes 2^63.
        top = max(bounds) + 1
        return np.int64 if top * max(map(abs, self.D + [1])) < 1 << 62 else object

    def first_carry(self, parts: list[tuple[int, int, int]]) -> int | None:
        """The first flat coordinate of B at which the parts carry visibly, or None."""
        first = None
        for w in self.W:
            found = _earliest([(n, d % w, weight) for n, d, weight in parts], w)
            if found is not None and (first is None or found[0] < first[0]):
                first = found
        if first is None:
            return None
        c, index = first
        x = sum(i * d for i, (_, d, _) in zip(index, parts))
        if self.value(x) != sum(i * self.value(d) for i, (_, d, _) in zip(index, parts)):
            return c
        # The carries at c cancel: look at all values.
        total = 1
        for n, _, _ in parts:
            total *= n
        if total > LIMIT:
            self.refuse(
                f"undecided: carries cancel, and {total} values, more than {LIMIT}, would have to be seen", None
            )
        at = self.first_sum_that_differs(parts)
        if at is None:
            return None
        c = 0
        for n, _, weight in parts:
            at, i = divmod(at, n)
            c += i * weight
        return c

    def first_sum_that_differs(self, parts: list[tuple[int, int, int]]) -> int | None:
        """The first flat index at which A is not additive over the parts. The first part runs fastest."""
        reach = sum((n - 1) * abs(d) for n, d, _ in parts)
        if not has_numpy():
            return self.first_sum_in_python(parts)
        dtype = self.dtype(reach)
        offset: np.ndarray = np.zeros(1, dtype)
        alone: np.ndarray = np.zeros(1, dtype)
        for n, d, _ in parts:
            step: np.ndarray = np.arange(n).astype(dtype)[:, None]
            offset = (offset[None, :] + step * d).ravel()
            alone = (alone[None, :] + step * self.value(d)).ravel()
        bad = np.nonzero(self.values(offset) != alone)[0]
        return int(bad[0]) if len(bad) else None

    def first_sum_in_python(self, parts: list[tuple[int, int, int]]) -> int | None:
        """`first_sum_that_differs` without arrays."""
        each = [[(i * d, i * self.value(d)) for i in range(n)] for n, d, _ in parts[::-1]]
        for at, steps in enumerate(product(*each)):
            if self.value(sum(x for x, _ in steps)) != sum(y for _, y in steps):
                return at
        return None

    # ------------------------------------------------------------ refusals

    def text(self, value: int) -> str:
        if self.code is None:
            return str(value)
        return " + ".join(str(ScaledBasis(v, p)) for p, v in self.code.digits(value).items() if v) or "0"

    def refuse_sum(self, c: int, bs: list[int], parts: list[tuple[int, int, int]]) -> None:
        coord, rest = [], c
        for s in bs:
            rest, i = divmod(rest, s)
            coord.append(i)
        moved = [(c // weight % n * d, weight) for n, d, weight in parts if c // weight % n]
        split = [x for x, _ in moved]
        where = f"({','.join(map(str, coord))})" if len(coord) > 1 else str(c)
        # A mode that had to be split moves by several of its parts.
        starts = list(accumulate(bs, mul, initial=1))
        modes = [max(j for j, w in enumerate(starts[:-1]) if w <= weight and bs[j] > 1) for _, weight in moved]
        inside = ""
        for j in dict.fromkeys(j for j in modes if modes.count(j) > 1):
            own = [(n, d) for n, d, weight in parts if starts[j] <= weight < starts[j + 1]]
            shape, stride = pack([n for n, _ in own], [d for _, d in own])
            inside += f", mode {j} being {show(shape)}:{show(stride)}"
        alone = " + ".join([self.text(self.value(x)) for x in split])
        self.refuse(
            f"the modes of the right operand carry across a mode of the left one: at {where} the offset is "
            f"{' + '.join(map(str, split))} = {sum(split)}, which the left one sends to "
            f"{self.text(self.value(sum(split)))}; no layout with these modes fits ({alone} "
            f"{'part by part' if inside else 'mode by mode'}{inside})",
            c,
        )

    def refuse(self, reason: str, witness: int | None, mode: int | None = None) -> None:
        if witness is not None:
            reason += f"; first coordinate at which no layout fits: {witness}"
        left, right = (registries.layout_of(s, d) for s, d in (self.a, self.b))
        raise CompositionError(reason, witness, left, right, mode)


def _earliest(parts: list[tuple[int, int, int]], need: int) -> tuple[int, list[int]] | None:
    """The first coordinate, colexicographically, with sum of i*e >= need: its flat index and its digits.

    parts are (extent, e, weight) with e >= 0. The highest digit in use comes as low as it can, then its value, then
    the same question for the digits below.
    """
    reach = 0
    top = -1
    below = []
    for p, (n, e, _) in enumerate(parts):
        below.append(reach)
        reach += (n - 1) * e
        if reach >= need:
            top = p
            break
    if top < 0:
        return None
    index = [0] * len(parts)
    c = 0
    for p in range(top, -1, -1):
        if need <= 0:
            break
        _, e, weight = parts[p]
        if need > below[p]:
            index[p] = -(-(need - below[p]) // e)
            need -= index[p] * e
            c += index[p] * weight
    return c, index


# ---------------------------------------------------------------- B leads to coordinates


def compose_coordinates(
    a: tuple[Any, Any], b: Pair, composed: Callable[[Any, Any, Any, Any], Pair], layout_of: Callable[[Any, Any], object]
) -> Pair:
    """A o B where B's strides are basis elements. Each mode of B moves within the mode of A that its path leads to.

    composed, layout_of  of integers, or of entries with symbols: the composition of modes, and the layout of a pair
    """
    (ashape, astride), (bshape, bstride) = a, b
    out = None
    for path in paths_of(bstride):
        s, d = ashape, astride
        for p in path:
            if s.__class__ is not tuple or p >= len(s):
                # E(0) is also the only mode of an integer shape.
                if s.__class__ is not tuple and p == 0 and path == (0,):
                    break
                where = ".".join(map(str, path))
                reason = f"the right operand leads to mode {where}, which {show(ashape)} does not have"
                raise CompositionError(reason, None, layout_of(*a), layout_of(*b))
            s, d = s[p], d[p]
        part = composed(s, d, bshape, component(bstride, path))
        out = part if out is None else merged(out, part)
    assert out is not None
    return out


def merged(a: Pair, b: Pair) -> Pair:
    """The sum of two results that never both move in one mode of B. The one that moves gives the mode's shape."""
    (sa, da), (sb, db) = a, b
    if not any(x != 0 for x in leaves(db)):
        return a
    if not any(x != 0 for x in leaves(da)):
        return b
    if sa.__class__ is tuple and sb.__class__ is tuple and len(sa) == len(sb):
        pairs = [merged((s, d), (t, e)) for s, d, t, e in zip(sa, da, sb, db)]
        return tuple([s for s, _ in pairs]), tuple([d for _, d in pairs])
    raise AssertionError(f"{show(flatten(sa))} and {show(flatten(sb))} both move in one mode")
