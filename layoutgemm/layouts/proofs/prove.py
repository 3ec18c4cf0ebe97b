"""Statements about layouts with symbols, decided for every size that the facts allow.

Two plain layouts are one function exactly when their coalesced forms are equal. For polynomials in free generators the
form is complete too: where two forms differ, some size tells them apart. Outside the zeros of finitely many polynomials
no extent is 1 and no neighbours merge, and there the integer forms differ. So `prove` finds that size, and the first
differing coordinate there by the same closed form as for integers. Only a symbol with an upper bound can run out of
sizes; its values are then taken one by one, and each is a question without it.

Nothing here rests on sampling: sizes are tried only to find a counterexample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import gcd
from typing import TYPE_CHECKING, Any

from ...errors import LayoutError
from ...lazy_numpy import np
from .. import registries
from ..basis import component, has_basis, paths_of
from ..int_tuple import Shape, Stride, as_shape, coal, leaves, moved_by, product
from ..int_tuple import show as show_tuple
from ..layout import Layout
from ..linear import LinearLayout
from ..swizzle import ComposedLayout
from ..symbols import operations as _ops
from ..symbols.conditions import holds, quotient, recording, strongest
from ..symbols.dims import entry
from ..symbols.facts import Facts, as_facts
from ..symbols.generators import GENERATORS, check_symbols
from ..symbols.generators import show as show_names
from ..symbols.polynomial import Scalar, div, ge0, needs_ge, show, substitute, val
from ..symbols.symbolic_layout import conditions_of, generators
from . import verdicts as _proof
from .index_formulas import prove_layouts
from .sizes import at, cases_of, entries_of, plain, refuting, replaced, sizes
from .verdicts import Answer, CounterExample, Proof, Undecided

if TYPE_CHECKING:
    import numpy.typing as npt


Argument = Callable[[], list[str]]  # the lines of an argument that holds, written when they are read
EXHAUST = 1 << 16  # elements of a layout that is enumerated, at one size
FAR = 1 << 60  # offsets of layouts that are enumerated are below this, so that sums of two fit 64 bits
ALL_LOOKS = 1 << 21  # elements that are enumerated for one question


@registries.proven.register(object)
def prove(a: object, b: object, given: object = ()) -> Answer:
    """Prove that two layouts are one function of the flat index, at every size.

    `given` are facts, as `Facts` takes them. Returns Proof, CounterExample with the sizes and the first coordinate at
    which the two differ there, or Undecided.

    >>> from layoutgemm import Layout
    >>> from layoutgemm.layouts.symbols.dims import dims
    >>> M, N = dims("M N")
    >>> prove(Layout((M, N)), Layout(M * N)).steps
    ('both coalesce to M*N:1',)
    >>> print(prove(Layout((M, N), (N, 1)), Layout(M * N)).explain())
    not equivalent at M=2, N=2: (1,0) gives 2 and 1
    """
    _proof.check_layouts(a, b)
    facts, (a, b) = _under(given, a, b)
    gs = generators(*entries_of(a), *entries_of(b))
    if not gs:
        return _proof.between(_with_conditions(_proof.equivalent(plain(a), plain(b)), (a, b), []), a, b)
    check_symbols(gs)
    if isinstance(a, LinearLayout) or isinstance(b, LinearLayout):
        raise LayoutError(f"{a} and {b}: a matrix over bits has one size, and the other layout has symbols")
    if not (isinstance(a, Layout) and isinstance(b, Layout)):
        return _proof.between(_swizzled(a, b, facts), a, b)
    if has_basis(a.stride) != has_basis(b.stride):
        raise LayoutError(f"{a} and {b}: one leads to coordinates, the other to offsets")

    def same(f: Callable[[Scalar], Scalar]) -> Argument | None:
        x = coal(a.shape, a.stride) if f is _as_is else coal(replaced(f, a.shape), replaced(f, a.stride))
        if x != (coal(b.shape, b.stride) if f is _as_is else coal(replaced(f, b.shape), replaced(f, b.stride))):
            return None
        return lambda: ["both coalesce to " + (" x ".join(f"{show(s)}:{show(d)}" for s, d in zip(*x)) or "1:0")]

    def differ(env: dict[int, int]) -> Answer | None:
        def number(x: Scalar) -> int:
            return val(x, env)

        if coal(replaced(number, a.shape), replaced(number, a.stride)) == coal(
            replaced(number, b.shape), replaced(number, b.stride)
        ):
            return None
        return _proof.equivalent(at(a, env), at(b, env))

    answer = _decide((a, b), same, differ, "coalesced normal form", lambda: "not equivalent", facts)
    return _proof.between(_with_conditions(answer, (a, b), []), a, b)


@registries.injective.register(object)
def injective(a: Any, given: object = ()) -> Answer:
    """Prove that no two coordinates share a value, at every size. Proof, CounterExample with the two first flat indices
    that do, or Undecided naming the comparisons that are missing.

    >>> from layoutgemm import Layout
    >>> from layoutgemm.layouts.symbols.dims import dims
    >>> M, N, ld = dims("M N ld")
    >>> A = Layout((M, N), (1, ld))
    >>> print(injective(A).explain())
    (M,N):(1,ld) is not injective at M=2, N=2, ld=1: indices 1 and 2 both give 1
    >>> injective(A, ["ld >= M"]).steps
    ('M:1 is the smallest', 'N:ld steps over the span M-1 of the smaller strides')
    """
    _proof.check_layouts(a)
    facts, (a,) = _under(given, a)
    if not generators(*entries_of(a)):
        return plain(a).is_injective()
    if not isinstance(a, Layout):
        return injective(a.layout)  # a swizzle is a bijection
    why: list[str] = []

    def steps(f: Callable[[Scalar], Scalar]) -> Argument | None:
        return _growing(replaced(f, a.shape), replaced(f, a.stride), why)

    looks = _Looks()

    def shared(env: dict[int, int]) -> Answer | None:
        one = at(a, env)
        few = sum(s != 1 for s in leaves(one.shape)) <= 2  # then a closed form finds the first two
        return one.is_injective() if few or looks.at(one) else None

    with recording() as used:
        answer = _decide((a,), steps, shared, "growing strides", lambda: f"{a} is not injective", facts)
    return _with_conditions(answer, (a,), used, why)


@registries.bijective.register(object)
def bijective(a: object, given: object = ()) -> Answer:
    """Prove that the values are 0..size-1, each once, at every size."""
    _proof.check_layouts(a)
    facts, (a,) = _under(given, a)
    if isinstance(a, (ComposedLayout, LinearLayout)):
        if generators(*entries_of(a)):
            return Undecided(f"{a} has symbols, and which values a swizzle gives depends on their bits")
        return _proof.bijective_values(a) if isinstance(a, ComposedLayout) else a.is_bijective()
    if not isinstance(a, Layout) or has_basis(a.stride):
        raise LayoutError(f"{a}: bijective means onto the offsets 0..size-1, of a layout without coordinates")
    if not generators(*entries_of(a)):
        return plain(a).is_bijective()
    why: list[str] = []

    def compact(f: Callable[[Scalar], Scalar]) -> Argument | None:
        shape, stride = replaced(f, a.shape), replaced(f, a.stride)
        steps = _growing(shape, stride, why)
        if steps is None:
            return None
        top: Scalar = 1
        for s, d in zip(leaves(shape), leaves(stride)):
            if not ge0(d):
                why.append(f"the sign of {show(d)}")
                return None
            top = top + (s - 1) * d
        if top != product(shape):
            return None
        return lambda: [*steps(), f"{show(top)} distinct values from 0 to {show(top - 1)}"]

    looks = _Looks()

    def not_compact(env: dict[int, int]) -> Answer | None:
        one = at(a, env)
        return one.is_bijective() if looks.at(one) else None

    with recording() as used:
        answer = _decide((a,), compact, not_compact, "injective onto its span", lambda: f"{a} is not bijective", facts)
    return _with_conditions(answer, (a,), used, why)


@registries.covering.register(object)
def covers(a: object, tile: object, given: object = ()) -> Answer:
    """Prove that every offset 0..size(tile)-1 is a value of the layout, at every size. `tile` is a shape or a layout.

    A CounterExample gives the first offset that is missing.

    >>> from layoutgemm import Layout
    >>> from layoutgemm.layouts.symbols.dims import dim
    >>> M = dim("M", multiple_of=8)
    >>> covers(Layout((M // 8, 8), (8, 1)), M).ok, covers(Layout((M // 8, 4), (8, 1)), M).ok
    (True, False)
    """
    tile = _proof.layout_of(tile)
    target = tile.shape if isinstance(tile, (Layout, ComposedLayout, LinearLayout)) else as_shape(tile)
    _proof.check_layouts(a)
    facts, (a, target) = _under(given, a, target)
    n = product(target)
    if isinstance(a, (ComposedLayout, LinearLayout)):
        top = n if n.__class__ is int else 0
        return _by_values((a, target), lambda: _missing(a.offsets(), top, f"{a} does not cover 0..{top - 1}"))
    if not isinstance(a, Layout) or has_basis(a.stride):
        raise LayoutError(f"{a}: covers() is about the offsets of a layout without coordinates")

    def statement() -> str:
        return f"{a} does not cover 0..{show(n - 1)}"

    def reaches(f: Callable[[Scalar], Scalar]) -> Argument | None:
        inverse_shape, inverse_stride = _ops.right_inverse(replaced(f, a.shape), replaced(f, a.stride))
        m = product(inverse_shape)
        if not holds(f(n), m):
            return None

        def text() -> list[str]:
            inverse = f"{show_tuple(inverse_shape)}:{show_tuple(inverse_stride)}"
            return [f"{inverse} is a right inverse, which reaches {show(m)} offsets"]

        return text

    looks = _Looks()

    def missing(env: dict[int, int]) -> Answer | None:
        one, top = at(a, env), val(n, env)
        return _missing(one.offsets(), top, statement()) if looks.at(one) else None

    with recording() as used:
        answer = _decide((a, target), reaches, missing, "right inverse", statement, facts)
    return _with_conditions(answer, (a,), used)


@registries.apart.register(object)
def disjoint(a: object, b: object, offset: Scalar = 0, given: object = ()) -> Answer:
    """Prove that no value of `a` is offset + a value of `b`, at every size. A CounterExample gives the two flat
    indices.

    >>> from layoutgemm import Layout
    >>> from layoutgemm.layouts.symbols.dims import dims
    >>> M, N = dims("M N")
    >>> disjoint(Layout((M, N), (1, 2 * M)), Layout((M, N), (1, 2 * M)), M).ok
    True
    """
    _proof.check_layouts(a, b)
    offset = entry(offset, "the offset of disjoint")
    facts, (a, b, offset) = _under(given, a, b, offset)
    if any(isinstance(x, (ComposedLayout, LinearLayout)) for x in (a, b)) and not any(
        has_basis(getattr(x, "stride", 0)) for x in (a, b)
    ):
        said = f"{a} and {show(offset)} + {b} share values"
        return _by_values((a, b, offset), lambda: _meeting(_values(a), moved_by(_values(b), val(offset, {})), said))
    if not (isinstance(a, Layout) and isinstance(b, Layout)) or has_basis(a.stride) or has_basis(b.stride):
        raise LayoutError(f"{a} and {b}: disjoint() is about the offsets of layouts without coordinates")

    def statement() -> str:
        return f"{a} and {show(offset)} + {b} share values"

    def apart(f: Callable[[Scalar], Scalar]) -> Argument | None:
        return _apart(
            [*zip(leaves(replaced(f, a.shape)), leaves(replaced(f, a.stride)))],
            [*zip(leaves(replaced(f, b.shape)), leaves(replaced(f, b.stride)))],
            f(offset),
        )

    looks = _Looks()

    def meet(env: dict[int, int]) -> Answer | None:
        one, other, by = at(a, env), at(b, env), val(offset, env)
        if abs(by) >= FAR or not looks.at(one, other):
            return None
        return _meeting(one.offsets(), moved_by(other.offsets(), by), statement())

    with recording() as used:
        answer = _decide((a, b, offset), apart, meet, "disjoint ranges", statement, facts)
    return _with_conditions(answer, (a, b), used)


def _values(layout: object) -> npt.NDArray[np.int64]:
    if not isinstance(layout, (Layout, ComposedLayout, LinearLayout)):
        raise LayoutError(f"{layout} has no values")
    found: npt.NDArray[np.int64] = layout.offsets()
    return found


def _missing(values: npt.NDArray[np.int64], top: int, statement: str) -> Answer:
    """Prove that all of 0..top-1 are values, or give the first gap."""
    looked = min(top, len(values) + 1)  # the first gap lies there: n values are not all of 0..n
    present = np.zeros(looked, bool)
    present[values[(values >= 0) & (values < looked)]] = True
    if present.all():
        return Proof("exhaustion", (), (f"all of 0..{top - 1} are values",))
    gap = int(np.argmin(present))
    return CounterExample(gap, None, gap, gap, statement, "exhaustion at one size")


def _meeting(x: npt.NDArray[np.int64], y: npt.NDArray[np.int64], statement: str) -> Answer:
    """Prove that two arrays share no value, or give the first two indices that do."""
    common = np.intersect1d(x, y)
    if not len(common):
        return Proof("exhaustion", (), (f"{len(x)} and {len(y)} values, none in common",))
    i = int(np.nonzero(np.isin(x, common))[0][0])
    j = int(np.nonzero(y == x[i])[0][0])
    return CounterExample((i, j), int(x[i]), int(y[j]), i, statement, _proof.TWO_INDICES)


def _by_values(operands: tuple[object, ...], ask: Callable[[], Answer]) -> Answer:
    """The answer for layouts under a swizzle, by all of their values; undecided where symbols stand."""
    if generators(*[entry_ for each in operands for entry_ in entries_of(each)]):
        named = " and ".join(map(str, operands))
        return Undecided(f"{named}: the values that a swizzle gives depend on the bits of the symbols")
    return ask()


# ---------------------------------------------------------------- how a question is decided


def _decide(
    objects: tuple[object, ...],
    shown: Callable[[Callable[[Any], Any]], Argument | None],
    looked: Callable[[dict[int, int]], Answer | None],
    method: str,
    statement: Callable[[], str],
    facts: Facts | None,
) -> Answer:
    """Proof if `shown` argues for all sizes, or for each value of the bounded symbols; else a size that refutes.

    `shown(f)` argues with every entry x replaced by f(x) and returns the argument, or None. `looked(env)` is the answer
    at one size: a CounterExample there refutes the statement, a Proof settles that size, None says nothing.
    """
    gs = generators(*[y for x in objects for y in entries_of(x)])
    argument = shown(_as_is)
    if argument is not None:
        return Proof(method, (), argument)
    refuted = refuting(gs, looked)
    if refuted is not None:
        return _sized(*refuted, statement(), facts, objects)
    if not gs:
        settled = looked({})
        if isinstance(settled, Proof):
            return settled
    bounded = [g for g in gs if GENERATORS[g].low is not None and GENERATORS[g].high is not None]
    cases = cases_of(bounded)
    if not bounded or cases is None:
        reason = "no argument of this method decides it, and no size that refutes it was found"
        return Undecided(f"{_positive(statement())}: {reason}")
    steps = []
    free = [g for g in gs if g not in bounded]
    for case in cases:
        argument = shown(lambda x, case=case: substitute(x, case))  # type: ignore[misc]
        where = ", ".join(f"{show_names(GENERATORS[g].shown)}={v}" for g, v in case.items())
        if argument is None:
            refuted = refuting(free, lambda env, case=case: looked({**env, **case}))  # type: ignore[misc]
            if refuted is not None:
                return _sized(refuted[0], {**refuted[1], **case}, statement(), facts, objects)
            settled = None if free else looked(case)
            if isinstance(settled, Proof):
                argument = partial(list, [settled.method])
        if argument is None:
            return Undecided(f"undecided for {where}: no argument, and no size that refutes it was found")
        steps.append(f"{where}: {argument()[0]}")
    shortened = steps if len(steps) <= 8 else [*steps[:7], f"and {len(steps) - 7} more cases"]
    return Proof(f"{method}, each value of the bounded symbols", (), tuple(shortened))


def _as_is(x: Scalar) -> Scalar:
    return x


def _positive(statement: str) -> str:
    """The question that a refutation's statement answers."""
    for refuted, asked in (
        (" is not ", " being "),
        (" does not cover ", " covering "),
        (" share values", " sharing no value"),
    ):
        statement = statement.replace(refuted, asked)
    return statement


class _Looks:
    """The elements that may still be enumerated. They are EXHAUST at one size, ALL_LOOKS at all sizes of one
    question."""

    def __init__(self) -> None:
        self.left = ALL_LOOKS

    def at(self, *layouts: Layout | ComposedLayout) -> bool:
        """True if all values of these layouts may be looked at. If so, they are counted."""
        sizes = [x.size for x in layouts]
        far = any(getattr(x, "layout", x).cosize + abs(getattr(x, "offset", 0)) >= FAR for x in layouts)
        if max(sizes) > EXHAUST or sum(sizes) > self.left or far:
            return False
        self.left -= sum(sizes)
        return True


def _growing(shape: Shape, stride: Stride, why: list[str]) -> Argument | None:
    """The argument that a layout is injective: one mode after the other told apart from the rest; or None."""
    if has_basis(stride):
        parts: list[Argument] = []
        for path in paths_of(stride):
            part = _growing_part(
                [(s, d) for s, d in zip(leaves(shape), leaves(component(stride, path))) if d != 0], why
            )
            if part is None:
                return None
            parts.append(part)
        unused = [s for s, d in zip(leaves(shape), leaves(stride)) if d.__class__ is int and not _is_one(s)]
        return None if unused else lambda: [line for part in parts for line in part()] or ["one element"]
    found = _growing_part([*zip(leaves(shape), leaves(stride))], why)
    return None if found is None else lambda: found() or ["one element"]


def _is_one(s: Scalar) -> bool:
    return s.__class__ is int and s == 1


def _growing_part(modes: list[tuple[Scalar, Scalar]], why: list[str]) -> Argument | None:
    rest: list[tuple[Scalar, Scalar]] = []
    for s, d in modes:
        if _is_one(s):
            continue
        if not ge0(d - 1) and not ge0(-d - 1):
            why.append(f"{show(d)} may be 0, or of either sign")
            return None
        rest.append((s, d if ge0(d) else -d))
    steps: list[tuple[str, Scalar, Scalar, Scalar]] = []  # a text, and what goes in it
    inner: tuple[str, ...] = ()

    def text() -> list[str]:
        return [*inner, *[line.format(*map(show, entries)) for line, *entries in reversed(steps)]]

    while rest:
        if len(rest) == 1:
            steps.append(("{}:{} is the smallest", *rest[0], 0))
            return text
        for i, (s, d) in enumerate(rest):
            others = rest[:i] + rest[i + 1 :]
            span = sum([(t - 1) * e for t, e in others])
            if holds(span + 1, d):
                steps.append(("{}:{} steps over the span {} of the smaller strides", s, d, span))
                break
            if all(quotient(e, d * s) is not None for _, e in others):
                steps.append(("{}:{} ends at {}, which divides the other strides", s, d, d * s))
                break
        else:
            if not _ops.has_symbols(*[x for m in rest for x in m]):
                left = Layout(tuple([s for s, _ in rest]), tuple([d for _, d in rest])).is_injective()
                if not isinstance(left, Proof):
                    return None
                inner = left.steps
                return text
            ways: dict[str, None] = {}
            for i, (_, d) in enumerate(rest):
                span = sum([(t - 1) * e for j, (t, e) in enumerate(rest) if j != i])
                ways |= dict.fromkeys(needs_ge(d - span - 1))
            why.append(
                f"{', '.join(f'{show(s)}:{show(d)}' for s, d in rest)} overlap in span; needs {' or '.join(ways)}"
            )
            return None
        rest.pop(i)
    return text


def _apart(a: list[tuple[Scalar, Scalar]], b: list[tuple[Scalar, Scalar]], offset: Scalar) -> Argument | None:
    """Why a(i) - b(j) is never `offset`: by range, or by range modulo a number that divides the larger strides."""
    modes = [(s, d) for s, d in a if not _is_one(s)] + [(s, -d) for s, d in b if not _is_one(s)]
    candidates: list[Scalar] = [0]
    for x in [x for _, d in modes for x in (d, -d)] + [gcd(*[d for _, d in modes if d.__class__ is int])]:
        if ge0(x - 2) and x not in candidates:
            candidates.append(x)
    for q in candidates:
        small = [(s, d) for s, d in modes if (q.__class__ is int and q == 0) or div(d, q) is None]
        low: Scalar = -offset
        high: Scalar = -offset
        for s, d in small:
            if ge0(d):
                high = high + (s - 1) * d
            elif ge0(-d):
                low = low + (s - 1) * d
            else:
                break
        else:
            if q.__class__ is int and q == 0:
                if holds(1, low) or holds(high, -1):
                    return partial(_between, "the difference lies in", low, high)
                continue
            below = low // q if low.__class__ is int and q.__class__ is int else 0
            for k in dict.fromkeys((0, 1, -1, -2, below)):
                if holds(k * q + 1, low) and holds(high, (k + 1) * q - 1):
                    return partial(_between, "modulo {} the difference lies in", low - k * q, high - k * q, q)
    return None


def _between(text: str, low: object, high: object, modulus: object = 0) -> list[str]:
    return [f"{text.format(show(modulus))} {show(low)}..{show(high)}"]


def _under(given: object, *objects: object) -> tuple[Facts | None, tuple[Any, ...]]:
    """The facts about the objects, or None, and the objects under these facts; tiles become their layouts."""
    objects = tuple(map(_proof.layout_of, objects))
    if isinstance(given, (tuple, list)) and not given:
        return None, objects
    facts = as_facts(given).on(*objects)
    return facts, facts(*objects) if len(objects) > 1 else (facts(*objects),)


def _sized(
    found: CounterExample, env: dict[int, int], statement: str, facts: Facts | None, objects: object
) -> CounterExample:
    values = sizes(env, facts)
    where = " at " + ", ".join(f"{n}={v}" for n, v in values.items()) if values else ""
    tail = found.statement[len("not equivalent") :] if found.statement.startswith("not equivalent") else ""
    return replace(found, statement=f"{statement}{where}{tail}", sizes=tuple(values.items()))


def _with_conditions(
    answer: Answer, layouts: tuple[object, ...], used: list[str], why: list[str] | None = None
) -> Answer:
    if isinstance(answer, Proof):
        before = [c for x in layouts for c in conditions_of(x)]
        return Proof(answer.method, tuple(strongest([*before, *used, *answer.conditions])), answer.unread)
    if isinstance(answer, Undecided) and why:
        return Undecided(f"{answer.why} ({why[0]})")
    return answer


def _swizzled(a: Any, b: Any, facts: Facts | None) -> Answer:
    """Layouts one of which is swizzled: by their normal forms over digits, else by a size at which they differ."""
    if any(has_basis(getattr(x, "stride", 0)) for x in (a, b)):
        return _from_one_coordinate(a, b)
    same = getattr(a, "swizzle", None) == getattr(b, "swizzle", None) and a.offset == b.offset
    if same:
        # A swizzle is one to one: under it, and from one offset, equal layouts stay equal.
        inner = prove(a.layout, b.layout)
        if isinstance(inner, Proof):
            return replace(inner, steps=(f"{a.swizzle} is one to one", *inner.steps))
    if any(getattr(x, "offset", 0).__class__ is not int for x in (a, b)):
        answer: Answer = Undecided("an offset with symbols under a swizzle: its bits are not known")
    else:
        answer = prove_layouts(a, b) if a.size == b.size else Undecided(f"{a.size} and {b.size} elements")
    if isinstance(answer, Undecided):
        looks = _Looks()

        def differ(env: dict[int, int]) -> Answer | None:
            one, other = at(a, env), at(b, env)
            return _proof.equivalent(one, other) if looks.at(one, other) else None

        refuted = refuting(generators(*entries_of(a), *entries_of(b)), differ)
        if refuted is not None:
            return _sized(*refuted, "not equivalent", facts, (a, b))
    return answer


def _from_one_coordinate(a: Any, b: Any) -> Answer:
    """Coordinates of which one begins elsewhere than at 0: the layouts decide where both begin alike."""
    starts = [getattr(x, "offset", 0) for x in (a, b)]
    if starts[0] == starts[1]:
        return prove(a.layout, b.layout)
    return Undecided(f"they begin at {show(starts[0])} and {show(starts[1])}, which are not compared")
