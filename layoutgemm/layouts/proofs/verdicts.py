"""Answers as values: verdicts on partial operations, and proofs or counterexamples for statements about layouts.

All of them may stand where a bool does: they are truthy when the answer is yes. An `Undecided` is not truthy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import gcd, prod
from typing import Any, TypeAlias

from ...arguments import refusal, shown
from ...errors import LayoutError
from ...graph_marks import NoticedInGraphs
from ...lazy_numpy import has_numpy, np
from .. import registries
from ..basis import component, has_basis, paths_of
from ..int_tuple import Modes, Shape, Stride, coal, idx2crd, leaves, show, show_coord
from ..symbols import dispatch as symbolic_arguments

LIMIT = 1 << 24
PROBE = 1 << 20
TWO_INDICES = "two coordinates"  # the method of a counterexample whose coord is two flat indices with one value
NO_BIJECTION = " is not a bijection onto 0.."  # ends the statement about one layout, before its largest value


class Function(NoticedInGraphs):
    """The subjects of statements: layouts, swizzled or not, and linear ones."""

    __slots__ = ()


def layout_of(x: object) -> object:
    """The layout that a tile in shared memory is, under its swizzle. Any other object as it is."""
    found = getattr(x, "composed", None)
    return found if isinstance(found, Function) else x


@dataclass(frozen=True)
class Verdict:
    """The verdict on an operation or a comparison. Truthy when it has an answer, or holds. Equal to that bool.

    Attributes: ok; reason, what the operation would raise, or what differs; witness, the first coordinate that shows
    it, or the path to the first mode that differs.
    """

    ok: bool
    reason: str = ""
    witness: object = None

    def __bool__(self) -> bool:
        return self.ok

    def explain(self) -> str:
        """The reason, or "holds"."""
        return "holds" if self.ok else self.reason

    def __eq__(self, other: object) -> bool:
        if isinstance(other, bool):
            return self.ok is other
        return isinstance(other, Verdict) and (self.ok, self.reason, self.witness) == (
            other.ok, other.reason, other.witness,
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash(self.ok)  # that of the bool to which it is equal


class _Lines:
    """A field of lines that may be a function, called when they are first read.

    Writing an argument out can take longer than finding it, and most proofs are only asked whether they are one.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.slot = f"_{name}"

    def __get__(self, proof: object, owner: type) -> tuple[str, ...]:
        if proof is None:
            return ()  # the field's default
        lines = proof.__dict__[self.slot]
        if callable(lines):
            lines = proof.__dict__[self.slot] = tuple(lines())
        return lines

    def __set__(self, proof: object, lines: object) -> None:
        proof.__dict__[self.slot] = lines


@dataclass(frozen=True)
class Proof:
    """A statement holds. `method` names how that is known, `conditions` what it rests on, `steps` the argument.

    Conditions and steps may be given as functions that return them: they are called when these are first read.
    """

    method: str
    conditions: _Lines = _Lines()
    steps: _Lines = _Lines()

    def __reduce__(self) -> tuple[object, ...]:
        return Proof, (self.method, self.conditions, self.steps)

    @property
    def unread(self) -> object:
        """The steps as they were given, to hand on without writing them out."""
        return self.__dict__["_steps"]

    def __bool__(self) -> bool:
        return True

    @property
    def ok(self) -> bool:
        """True."""
        return True

    @property
    def reason(self) -> str:
        """The method, for use as a verdict."""
        return self.method

    @property
    def witness(self) -> None:
        """None: nothing contradicts."""
        return None

    def explain(self) -> str:
        """The argument as text."""
        lines = [f"proven by {self.method}"]
        lines += [f"  given {c}" for c in self.conditions]
        lines += [f"  {s}" for s in self.steps]
        return "\n".join(lines)


@dataclass(frozen=True)
class CounterExample:
    """A statement fails. Falsy.

    Attributes:
        coord: where it fails first: for two layouts the coordinate in the left one's shape, for injectivity the pair of
        flat indices (i, j), i < j, that share a value. left, right: the two values there (None outside a domain).
        index: the flat index of coord. statement: what failed. method: how it was found. sizes: the values of the
        symbols, as (name, value) pairs, for layouts that have any. between: the two layouts, where there are two.
    """

    coord: Any
    left: Any
    right: Any
    index: int | None = None
    statement: str = "not equivalent"
    method: str = "coalesced normal form"
    sizes: tuple[tuple[str, int], ...] = ()
    between: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        """A counterexample that refutes nothing cannot be made: LayoutError."""
        fields = ("between", self.between, tuple), ("sizes", self.sizes, tuple), ("method", self.method, str)
        for what, value, kind in fields:
            if not isinstance(value, kind):
                raise LayoutError(refusal(value, f"{what} of CounterExample", f"a {kind.__name__}"))
        if self.method == TWO_INDICES:
            # One value at two indices; of two layouts the indices are each one's own.
            if not (isinstance(self.coord, tuple) and len(self.coord) == 2) or not _same(self.left, self.right):
                values = f"{shown(self.left)} and {shown(self.right)}"
                raise LayoutError(f"{show_coord(self.coord)} with {values} are no shared value")
        elif self.left is None and self.right is None:
            raise LayoutError(f"a counterexample at {show_coord(self.coord)} without a value")
        elif self.left is not None and self.right is not None and _same(self.left, self.right):
            raise LayoutError(f"{show_coord(self.coord)} gives {shown(self.left)} twice, which refutes nothing")
        if len(self.between) == 2 and self.index is not None and not self.sizes and self.method != TWO_INDICES:
            for layout, value in zip(self.between, (self.left, self.right)):
                plain = getattr(layout.__class__, "_plain", None) is not None
                if value is not None and plain and not _same(layout(self.index), value):
                    raise LayoutError(f"{layout} gives {layout(self.index)} at {self.index}, not {value}")

    def __bool__(self) -> bool:
        return False

    @property
    def ok(self) -> bool:
        """False."""
        return False

    @property
    def reason(self) -> str:
        """The same as explain(), for use as a verdict."""
        return self.explain()

    @property
    def witness(self) -> Any:
        """The coordinate, for use as a verdict."""
        return self.coord

    def explain(self) -> str:
        """The statement and the values that refute it.

        >>> CounterExample((0, 17), 34, 42).explain()
        'not equivalent: (0,17) gives 34 and 42'
        """
        if self.method == TWO_INDICES:
            i, j = self.coord
            return f"{self.statement}: indices {i} and {j} both give {show(self.left)}"
        coord = show(self.coord)
        if NO_BIJECTION in self.statement:
            return f"{self.statement}: {coord} gives {show(self.left)}"
        if self.left is None or self.right is None:
            side, value = ("left", self.left) if self.left is not None else ("right", self.right)
            return f"{self.statement}: {coord} is a coordinate of the {side} one only, where it gives {show(value)}"
        return f"{self.statement}: {coord} gives {show(self.left)} and {show(self.right)}"


def _same(a: object, b: object) -> bool:
    """True if two values are equal; values that cannot be compared, such as symbols, are not."""
    try:
        return bool(a == b)
    except (LayoutError, ValueError):  # arrays of several values
        return False


@dataclass(frozen=True)
class Undecided:
    """No method decided. Falsy; `why` says what each of them lacked."""

    why: str
    between: tuple[object, ...] = field(default=(), repr=False, compare=False)

    def __bool__(self) -> bool:
        return False

    @property
    def ok(self) -> bool:
        """False: not shown."""
        return False

    @property
    def reason(self) -> str:
        """The same as `why`, for use as a verdict."""
        return self.why

    @property
    def method(self) -> str:
        """ "": no method decided."""
        return ""

    @property
    def witness(self) -> None:
        """None: nothing was found."""
        return None

    def explain(self) -> str:
        """The attempts, as text."""
        return f"undecided: {self.why}"


Answer: TypeAlias = Proof | CounterExample | Undecided

# ---------------------------------------------------------------- two layouts


def first_difference(a: Modes, b: Modes) -> int | None:
    """The first index at which two coalesced layouts differ, on the indices that both have. None if they never do."""
    w = 1
    (sa, da), (sb, db) = a, b
    for i in range(min(len(sa), len(sb))):
        if da[i] != db[i]:
            return w
        if sa[i] != sb[i]:
            n = w * min(sa[i], sb[i])
            # The shorter mode ends here; whether the layout does too is for the sizes to say.
            return n if n < min(prod(sa), prod(sb)) else None
        w *= sa[i]
    return None


def between(answer: Answer, a: object, b: object) -> Answer:
    """The answer, told which two layouts it is about, if it is no proof."""
    return answer if isinstance(answer, Proof) else replace(answer, between=(a, b))


def check_layouts(*xs: object) -> None:
    """Raise LayoutError for an operand of a statement about layouts that is no layout."""
    for x in xs:
        if not isinstance(x, Function):
            formula = "; prove_formulas compares index formulas" if callable(x) else ""
            raise LayoutError(refusal(x, "an operand of a comparison", "a layout") + formula)


def equivalent(a: Any, b: Any) -> Answer:
    """Prove that two layouts are one function of the flat index, of one size."""
    if getattr(a.__class__, "_plain", None) is None or getattr(b.__class__, "_plain", None) is None:
        check_layouts(a, b)
        a, b = layout_of(a), layout_of(b)
        with_symbols = symbolic_arguments.prove(a, b)
        if with_symbols is not None:
            return with_symbols
        return _swizzled(a, b)
    fa, fb = coal(a.shape, a.stride), coal(b.shape, b.stride)
    if fa == fb:
        if not fa[0] or has_basis(a.stride) == has_basis(b.stride):
            form = " x ".join(f"{s}:{d}" for s, d in zip(*fa)) or "1:0"
            return Proof("coalesced normal form", (), (f"both coalesce to {form}",))
    if has_basis(a.stride) or has_basis(b.stride):
        index = _first_difference_by_component(a.stride, b.stride, a, b)
    else:
        index = first_difference(fa, fb)
    return _difference(a, b, index, "coalesced normal form")


def _first_difference_by_component(da: Stride, db: Stride, a: Any, b: Any) -> int | None:
    if has_basis(da) != has_basis(db):
        return 0
    found = []
    for path in sorted(set(paths_of(da)) | set(paths_of(db))):
        fa, fb = coal(a.shape, component(da, path)), coal(b.shape, component(db, path))
        if fa != fb:
            i = first_difference(fa, fb)
            if i is not None:
                found.append(i)
    return min(found, default=None)


def _difference(a: Any, b: Any, index: int | None, method: str) -> Proof | CounterExample:
    if index is None:
        n, m = a.size, b.size
        if n == m:
            return Proof(method, (), (f"all {n} values agree",))
        # They agree as far as both go, and then only one goes on.
        longer = a if n > m else b
        index = min(n, m)
        coord = idx2crd(index, longer.shape)
        value = longer(index)
        left, right = (value, None) if n > m else (None, value)
        return CounterExample(coord, left, right, index, f"not equivalent, {n} and {m} elements", method)
    return CounterExample(idx2crd(index, a.shape), a(index), b(index), index, method=method)


def _swizzled(a: Any, b: Any) -> Answer:
    """Static layouts, at least one composed: without the swizzle they share, over GF(2), else by exhaustion."""
    if has_basis(getattr(a, "stride", 0)) or has_basis(getattr(b, "stride", 0)):
        return _coordinates(a, b)
    under = [getattr(x, "layout", None) for x in (a, b)]
    if None not in under and a.swizzle == b.swizzle and a.offset == b.offset:
        # A swizzle is one to one: under it, and from one offset, the inner layouts decide.
        answer = equivalent(*under)
        if isinstance(answer, CounterExample):
            # None where they agree as far as both go: then the sizes are what differs
            both = answer.left is not None and answer.right is not None
            return _difference(a, b, answer.index if both else None, answer.method)
        if isinstance(answer, Proof):
            return Proof(answer.method, answer.conditions, (f"{a.swizzle} is one to one", *answer.steps))
        return answer
    try:
        left, right = registries.matrix_of(a), registries.matrix_of(b)
    except LayoutError:
        return _by_exhaustion(a, b)
    index = left.first_difference(right)
    if index is None:
        same: Proof = left.equivalent(right)
        return same
    # the first difference by matrix, with coordinates in the shapes that were given
    return _difference(a, b, index, "GF(2) matrix") if a.size == b.size else _by_exhaustion(a, b)


def _coordinates(a: Any, b: Any) -> Answer:
    """Layouts of which one leads to coordinates: from one first coordinate the layouts decide."""
    if a(0) != b(0):
        return _difference(a, b, 0, "coalesced normal form")
    answer = equivalent(*[getattr(x, "layout", x) for x in (a, b)])
    if not isinstance(answer, CounterExample):
        return answer
    both = answer.left is not None and answer.right is not None
    return _difference(a, b, answer.index if both else None, answer.method)


def _by_exhaustion(a: Any, b: Any) -> Answer:
    n = min(a.size, b.size)
    if n > LIMIT:
        return Undecided(f"{n} values, more than {LIMIT}, would have to be compared")
    index = None if has_numpy() else next((i for i in range(n) if a(i) != b(i)), None)
    starts = [0, *range(1 << 10, n, 1 << 20)] if has_numpy() else []  # few at first: most differ early
    for start, end in pairwise([*starts, n]):
        i = np.arange(start, end)
        try:
            bad = np.nonzero(a(i) != b(i))[0]
        except LayoutError:  # offsets beyond 64 bits: by Python's integers
            bad = np.nonzero(a(i.astype(object)) != b(i.astype(object)))[0]
        if len(bad):
            index = start + int(bad[0])
            break
    return _difference(a, b, index, "exhaustion")


# ---------------------------------------------------------------- one layout


def injective(shape: Shape, stride: Stride) -> Answer:
    """Prove that no two coordinates share a value."""
    entries = []
    found: CounterExample | Undecided | None = None
    w = 1
    for s, d in zip(leaves(shape), leaves(stride)):
        if s != 1:
            if d != 0:
                entries.append((s, d, w))
            elif found is None:
                found = _shared(shape, stride, 0, w)
        w *= s
    if has_basis(stride):
        groups = [[(s, d.value, w) for s, d, w in entries if d.path == p] for p in paths_of(stride)]
    else:
        groups = [entries]
    steps = []
    for group in groups:
        answer = _injective(group, shape, stride)
        if isinstance(answer, CounterExample):
            if not isinstance(found, CounterExample) or answer.coord[1] < found.coord[1]:
                found = answer
        elif isinstance(answer, Undecided):
            found = found or answer
        else:
            steps += answer
    if found is not None:
        return found
    return Proof("growing strides", (), tuple(steps))


def _injective(
    modes: list[tuple[int, int, int]], shape: Shape, stride: Stride
) -> list[str] | CounterExample | Undecided:
    steps: list[str] = []
    rest = sorted(modes, key=lambda m: (abs(m[1]), m[0]))
    # A mode whose stride exceeds all that the smaller ones span cannot take part in a clash, and neither can one that
    # ends where all larger strides are multiples: it is a digit of its own.
    while rest:
        s, d, w = rest[-1]
        span = sum((t - 1) * abs(e) for t, e, _ in rest[:-1])
        if abs(d) > span:
            steps.append(f"{s}:{d} steps over the span {span} of the smaller strides")
            rest.pop()
            continue
        s, d, w = rest[0]
        if all(e % (s * d) == 0 for _, e, _ in rest[1:]):
            steps.append(f"{s}:{d} ends at {s * abs(d)}, which divides the larger strides")
            rest.pop(0)
            continue
        break
    if not rest:
        return steps
    rest.sort(key=lambda m: m[2])
    if len(rest) == 2:
        # i*d = j*e has one smallest solution.
        (s, d, v), (t, e, w) = rest
        g = gcd(d, e)
        i, j = abs(e) // g, abs(d) // g
        if i >= s or j >= t:
            return steps + [f"{i}*{d} = {j}*{e} is the smallest clash, outside {s} and {t}"]
        return _shared(shape, stride, i * v, j * w) if d * e > 0 else _shared(shape, stride, 0, i * v + j * w)
    n = prod([s for s, _, _ in rest])
    if sum([(s - 1) * abs(d) for s, d, _ in rest]) >= 1 << 62 or rest[-1][2] >= 1 << 40:
        return Undecided(
            f"the modes {', '.join(f'{s}:{d}' for s, d, _ in rest)} overlap, and their values do not fit 64 bits"
        )
    if not has_numpy():
        return _distinct_in_python(rest, n, shape, stride, steps)
    x = np.zeros(1, np.int64)
    c = np.zeros(1, np.int64)
    for s, d, w in rest:
        # Of too many values only the first ones: a clash among them is the first clash of all.
        step = np.arange(s if n <= LIMIT else min(s, max(1, PROBE // len(x))), dtype=np.int64)[:, None]
        x = (x[None, :] + step * d).ravel()
        c = (c[None, :] + step * w).ravel()
    order = np.argsort(x, kind="stable")
    y = x[order]
    same = np.nonzero(y[1:] == y[:-1])[0]
    if len(same):
        # stable: within a value the indices grow, so the earliest repeat is the smallest second index
        k = same[np.argmin(order[same + 1])]
        first = order[np.searchsorted(y, y[k])]
        return _shared(shape, stride, int(c[first]), int(c[order[k + 1]]))
    if n > LIMIT:
        names = ", ".join(f"{s}:{d}" for s, d, _ in rest)
        return Undecided(f"the modes {names} overlap in span; the first {len(x)} of their {n} values are distinct")
    return steps + [f"the {n} values of the other modes are distinct"]


def _distinct_in_python(
    rest: list[tuple[int, int, int]], n: int, shape: Shape, stride: Stride, steps: list[str]
) -> Any:
    """Proves or refutes, without arrays, that up to PROBE values of the modes are distinct."""
    if n > PROBE:
        names = ", ".join(f"{s}:{d}" for s, d, _ in rest)
        return Undecided(f"the {n} values of the modes {names} overlap in span; to compare them takes NumPy")
    seen: dict[int, int] = {}
    clashes = []
    for at in range(n):
        value = index = 0
        for s, d, w in rest:
            at, i = divmod(at, s)
            value, index = value + i * d, index + i * w
        if value in seen:
            clashes.append((index, seen[value]))
        seen[value] = min(index, seen.get(value, index))
    if clashes:
        later, first = min(clashes)
        return _shared(shape, stride, first, later)
    return [*steps, f"the {n} values of the other modes are distinct"]


def _shared(shape: Shape, stride: Stride, i: int, j: int) -> CounterExample:
    value = registries.layout_of(shape, stride)(i)
    return CounterExample((i, j), value, value, j, f"{show(shape)}:{show(stride)} is not injective", TWO_INDICES)


def _first_outside(a: Any, n: int) -> int | None:
    if not has_numpy():
        return next((i for i in range(n) if not 0 <= a(i) < n), None)
    values = a.offsets()
    outside = np.nonzero((values < 0) | (values >= n))[0]
    return int(outside[0]) if len(outside) else None


def bijective_values(a: Any) -> Answer:
    """Prove that the values of a swizzled layout are 0..size-1, each once."""
    distinct: Answer = a.is_injective()
    if not isinstance(distinct, Proof):
        return distinct
    n = int(a.size)
    try:
        matrix = registries.matrix_of(a)
    except LayoutError:
        if n > LIMIT:
            return Undecided(f"{n} values, more than {LIMIT}, would have to be enumerated")
        at, method = _first_outside(a, n), "exhaustion"
    else:
        # Values below a power of two stay there under XOR: the first outside is the first bit that leads there.
        seen = (0, *[1 << i for i in range(len(matrix.columns))])
        at, method = next((i for i in seen if matrix(i) >= n), None), "GF(2) matrix"
    if at is None:
        return Proof(method, (), (*distinct.steps, f"{n} distinct values from 0 to {n - 1}"))
    value = int(a(at))
    return CounterExample(a.coord(at), value, 0 if value < 0 else n - 1, at, f"{a}{NO_BIJECTION}{n - 1}", method)


def bijective(shape: Shape, stride: Stride) -> Answer:
    """Prove that the values are 0..size-1, each once."""
    if has_basis(stride):
        raise LayoutError(
            f"{show(shape)}:{show(stride)} leads to coordinates; bijective means onto the offsets 0..size-1"
        )
    answer = injective(shape, stride)
    if not isinstance(answer, Proof):
        return answer
    n = prod(leaves(shape))
    for s, d in zip(leaves(shape), leaves(stride)):
        if d < 0 and s > 1:
            w = prod(leaves(shape)[: leaves(stride).index(d)])
            return CounterExample(idx2crd(w, shape), d, None, w, f"{show(shape)}:{show(stride)}{NO_BIJECTION}{n - 1}")
    top = 1 + sum((s - 1) * d for s, d in zip(leaves(shape), leaves(stride)))
    if top == n:
        return Proof("injective onto its span", (), answer.steps + (f"{n} distinct values from 0 to {n - 1}",))
    return CounterExample(
        idx2crd(n - 1, shape),
        top - 1,
        n - 1,
        n - 1,
        f"{show(shape)}:{show(stride)}{NO_BIJECTION}{n - 1}",
    )
