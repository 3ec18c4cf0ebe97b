"""Proofs and counterexamples for index formulas, from their normal forms over digits (`digits.py`).

Equal normal forms are a proof at every size. For different forms a witness is needed: sizes, within the facts, and the
first coordinate in colexicographic order at which the formulas differ there. The first nonzero value of a difference of
normal forms has a closed form, so this takes no table. With all digits above the k-th at 0 the difference is a form in
k digits. For the smallest k at which this is not identically 0, digit k must be 1, and the digits below it follow in
the same way. Only where a split over-covers, and that coordinate lies outside, is the true box searched.
"""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from ...arguments import is_int, shown
from ...errors import LayoutError
from ...lazy_numpy import np
from ..int_tuple import idx2crd, leaves, product, product_each, show_coord, transform
from ..layout import Layout
from ..swizzle import ComposedLayout
from ..symbols.dims import entry
from ..symbols.facts import Facts, as_facts
from ..symbols.generators import GENERATORS, describe
from ..symbols.polynomial import MissingFact, Polynomial, Scalar, gens, reading, show, val, valuations
from .cases import cases
from .digit_boxes import CannotRewrite, Digit, DigitBox, SymbolMet, unmarked
from .digits import IN_ORDER, Formula, NormalForm, call, rewrite
from .sizes import at, grown, refuting
from .sizes import sizes as values_of
from .verdicts import Answer, CounterExample, Proof, Undecided
from .written_formulas import as_formula

LIMIT = 1 << 20  # coordinates that are enumerated, in Python ints
POINT = 32  # what a coordinate costs where a formula takes no arrays, in coordinates of one that does
LACKS = "; a proof lacks "
HINTS = 2  # facts that are tried together before a counterexample names one as missing
SIZES = 400  # sizes at which a counterexample is looked for


class Known:
    """The symbols that a prover has met, under the facts.

    facts        the caller's, about these very symbols; None without any
    generators   what they are made of, under the facts
    met          the generators of what formulas have read
    in_formulas  true where formulas use symbols, and so have values at sizes alone
    helps        whether the statement has no counterexample under one more fact
    """

    def __init__(self, facts: Facts | None, seen: list[Scalar], helps: Callable[[str], bool]) -> None:
        self.facts = None if facts is None else facts.on(*seen)
        self.generators = list(gens(*seen if self.facts is None else [self.facts(x) for x in seen]))
        self._seen = {*gens(*seen), *self.generators}
        self.in_formulas = False
        self.met: set[int] = set()
        self.helps = helps

    def read(self, x: Scalar) -> Scalar:
        """An entry of a formula under the facts. Raises SymbolMet for a symbol that was not met before."""
        self.in_formulas = True
        if x.__class__ is Polynomial and not self._seen.issuperset(gens(x)):
            raise SymbolMet(x)
        found = x if self.facts is None else self.facts(x)
        self.met.update(gens(found))
        return found

    def with_values(self, formula: Formula, env: dict[int, int]) -> Formula:
        """The formula with numbers for its symbols."""
        if isinstance(formula, (Layout, ComposedLayout)):
            return at(formula if self.facts is None else self.facts(formula), env)

        def number(x: Scalar) -> int:
            return val(self.read(x), env)

        def plain(x: object) -> object:
            return x.value if x.__class__ is AtSizes else number(x) if x.__class__ is Polynomial else x

        def at_sizes(**variables: int) -> object:
            with reading(number):
                return transform(plain, call(formula, {name: AtSizes(x, number) for name, x in variables.items()}))

        return at_sizes

    def at(self, found: CounterExample, env: dict[int, int]) -> CounterExample:
        """The counterexample with its sizes."""
        if not env:
            return found
        values = values_of(env, self.facts)
        where = ", ".join(f"{k}={v}" for k, v in values.items())
        return replace(found, statement=f"not equivalent at {where}", sizes=tuple(values.items()))


def prove_formulas(
    left: object,
    right: object,
    extents: Mapping[str, object] | None = None,
    /,
    *,
    given: object = (),
    **more: object,
) -> Proof | CounterExample | Undecided:
    """Prove that two index formulas agree on a box at every size of the facts.

    Formulas are functions of the variables by name, in + - * // % & | ^ ~ << >>, `minimum` and `maximum`, that may use
    symbols (`dim`); texts or SymPy expressions of the same; or layouts, which take the variables in order. Each
    variable runs over 0..extent-1, its extent an int or a symbol, by keyword or in a mapping (as a variable of the name
    `given` must be). A formula may return a tuple. `given` are facts about the symbols, as `Facts` takes them.
    Raises LayoutError for what is no formula.

    A counterexample is the first one in colexicographic order (the first variable runs fastest), at the first sizes in
    order of their sum that have one, and says the sizes. Past small sums, sizes double until one shows a
    difference, and bisection reduces them. Undecided names the facts that would help.

    >>> from layoutgemm.layouts import Swizzle
    >>> from layoutgemm.layouts.symbols.dims import dim
    >>> swizzle, M = Swizzle(3, 3, 3), dim("M")
    >>> prove_formulas(lambda m, k: swizzle(64 * m + k), lambda m, k: 64 * m + (k ^ ((m % 8) * 8)), m=M, k=64).method
    'digits'
    >>> answer = prove_formulas(lambda m, k: swizzle(128 * m + k), lambda m, k: 128 * m + (k ^ (m % 8 * 8)), m=M, k=128)
    >>> print(answer.explain())
    not equivalent at M=1: (0,64) gives 72 and 64
    >>> prove_formulas("x // 2 * 2 + (x & 1)", "x", x=M).ok
    True
    >>> K, N = dim("K"), dim("N")
    >>> print(prove_formulas(lambda x: x % K % N, lambda x: x % N, x=M, given="N | K").method)
    digits
    >>> print(prove_formulas(lambda x: x % K % N, lambda x: x % N, x=M).explain())
    not equivalent at K=1, M=2, N=2; a proof lacks N | K: 1 gives 0 and 1
    """
    read = {name: entry(n, f"the extent of {name}") for name, n in {**(extents or {}), **more}.items()}
    formulas = as_formula(left), as_formula(right)
    for side, formula in zip(("left", "right"), formulas):
        _check_variables(side, formula, list(read))
    return _prove_given(*formulas, read, None if given == () or given == [] else as_facts(given), HINTS)


def _check_variables(side: str, formula: Formula, names: list[str]) -> None:
    """Raise LayoutError for a function whose parameters are not the variables."""
    if isinstance(formula, IN_ORDER) or not callable(formula):
        return
    try:
        parameters = inspect.signature(formula)
    except (TypeError, ValueError):  # of a builtin
        return
    try:
        parameters.bind(**dict.fromkeys(names))
    except TypeError as error:
        takes, have = ", ".join(parameters.parameters) or "nothing", ", ".join(names) or "nothing"
        raise LayoutError(
            f"the {side} formula takes {takes}, and has extents of {have}: {error}; parameters are variables by name"
        ) from None


def _prove_given(
    left: Formula, right: Formula, read: Mapping[str, Scalar], facts: Facts | None, hints: int
) -> Proof | CounterExample | Undecided:
    """The answer under the facts. `hints`: how many facts in turn are tried before one is named as missing."""
    seen = list(read.values())

    def helps(fact: str) -> bool:
        try:
            under = Facts(fact) if facts is None else facts.given(fact)
            answer = _prove_given(left, right, read, under, hints - 1) if hints else None
        except LayoutError:
            return False
        return not isinstance(answer, CounterExample) or LACKS in answer.statement

    while True:
        known = Known(facts, seen, helps)
        try:
            sizes = {name: n if known.facts is None else known.facts(n) for name, n in read.items()}
            return _prove(left, right, sizes, known)
        except SymbolMet as new:
            seen.append(new.met)


def _prove(
    left: Formula, right: Formula, sizes: Mapping[str, Scalar], known: Known
) -> Proof | CounterExample | Undecided:
    """The answer. Raises SymbolMet for symbols of the formulas that are not known."""
    for name, n in sizes.items():
        if n.__class__ is int and n < 1:
            raise LayoutError(f"the extent of {name} is {n}: {name} runs over 0..extent-1, so it is at least 1")
    try:
        box, (f, g) = rewrite(sizes, left, right, read=known.read)
    except MissingFact as stuck:
        return _exhaust(left, right, sizes, stuck, known)
    entries = [c for x in (*leaves(f), *leaves(g)) for c in (x.constant, *x.terms.values())]
    entries += [x for _, e, q, _ in box.covers for x in (e, q)] + [e for d in box.digits.values() for e in d]
    rounded = gens(*[k for k, *_ in box.covers])
    used = [i for i in gens(*sizes.values(), *entries) if i not in rounded]
    fs, gs = leaves(f), leaves(g)
    if len(fs) == len(gs) and all(x.same(y) for x, y in zip(fs, gs, strict=True)):
        ranges = list(box.extents.items())

        def steps() -> list[str]:
            lines = [f"{v} in 0..{show(n - 1)}" + _radices(box, v) for v, n in ranges]
            return lines + [f"both are {_text(x)}" for x in fs]

        return Proof("digits", lambda: _conditions(sorted({*used, *known.met})), steps)
    found = _witness(box, f, g, used, known)
    if found is not None:
        return found
    why = f"the normal forms {_text(f)} and {_text(g)} differ, but at no sizes that were tried"
    needs = box.missing()
    if not used:
        # Forms that differ outside the box only: digits over-cover, and this many values can be enumerated.
        return _exhaust(left, right, sizes, MissingFact(why, needs), known)
    return Undecided(why + (f"; {' or '.join(needs)} would decide it" if needs else ""))


def prove_layouts(a: Any, b: Any) -> Answer:
    """Prove that two layouts of equal size are one function of the flat index.

    Mode by mode where both have the same top-level extents, else over the flat index. As `prove_formulas`; two sizes
    that differ are Undecided here.

    >>> from layoutgemm.layouts import Layout, Swizzle
    >>> sw = Swizzle(3, 3, 3)
    >>> prove_layouts(sw @ Layout((1 << 30, 64), (64, 1)), sw @ Layout((1 << 30, (8, 8)), (64, (1, 8)))).ok
    True
    """
    m, n = product_each(a.shape), product_each(b.shape)
    if m == n:
        modes = m if m.__class__ is tuple else (m,)
    elif product(m) == product(n):
        modes = (product(m),)
    else:
        return Undecided(f"{show(product(m))} and {show(product(n))} elements")
    answer = prove_formulas(a, b, {f"x{i}": e for i, e in enumerate(modes)})
    if (
        isinstance(answer, CounterExample)
        and len(modes) == 1
        and a.shape.__class__ is tuple
        and answer.index is not None
    ):
        if not any(x.__class__ is Polynomial for x in leaves(a.shape)):
            return replace(answer, coord=idx2crd(answer.index, a.shape))
    return answer


def _conditions(used: list[int]) -> tuple[str, ...]:
    """The facts about the sizes that a proof may rest on; that a size is at least 1 goes without saying."""
    texts = [(g, text) for g in used for text in describe(g).split(", ")]
    out = [t for g, t in texts if t != "no bounds" and not (">=" in t and GENERATORS[g].low == 1)]
    return tuple(dict.fromkeys(out))


def _radices(box: DigitBox, v: str) -> str:
    d = box.digits[v]
    return "" if len(d) == 1 else f", digits {' x '.join(unmarked(show(e)) for e in d)}"


def _text(f: Any) -> str:
    return unmarked(str(f)) if f.__class__ is NormalForm else f"({', '.join(map(_text, f))})"


# ---------------------------------------------------------------- what cannot be rewritten: all values of a small box


def _exhaust(
    left: Formula, right: Formula, sizes: Mapping[str, Scalar], stuck: MissingFact, known: Known
) -> Proof | CounterExample | Undecided:
    """All values of a static box; where there are symbols, a counterexample at sizes whose boxes are small."""
    extents = {name: n for name, n in sizes.items() if n.__class__ is int}
    symbolic = len(extents) < len(sizes) or known.in_formulas
    size = prod(extents.values())
    if not symbolic and size <= LIMIT:
        return _by_values(left, right, extents, stuck)
    n = cases(left, right, stuck, known.read) if isinstance(stuck, CannotRewrite) else None
    if n is not None:
        lines = [f"{v} in 0..{show(e - 1)}" for v, e in sizes.items()]
        lines.append(f"equal forms in each of {n} cases of their digits")
        return Proof("digits", lambda: _conditions(known.generators), lines)
    if symbolic:
        return _refuted(left, right, sizes, stuck, known)
    return Undecided(f"{stuck}; and {size} coordinates are too many to try")


def _by_values(
    left: Formula, right: Formula, extents: Mapping[str, int], stuck: MissingFact
) -> Proof | CounterExample | Undecided:
    try:
        a, b = tabulate(left, extents), tabulate(right, extents)
    except LayoutError as error:
        return Undecided(f"{stuck}; and {error}")
    index = len(a[0]) if len(a) == len(b) else 0
    for x, y in zip(a, b, strict=False):
        bad = np.flatnonzero(x != y)
        index = min(index, int(bad[0]) if len(bad) else index)
    if index == len(a[0]):
        return Proof("exhaustion", (), (f"all {len(a[0])} values agree",))
    coord = coordinate(index, list(extents.values()))
    at = dict(zip(extents, coord, strict=True))
    return CounterExample(_single(coord), call(left, at), call(right, at), index, method="exhaustion")


def _refuted(
    left: Formula, right: Formula, sizes: Mapping[str, Scalar], stuck: MissingFact, known: Known
) -> CounterExample | Undecided:
    """A counterexample at sizes whose boxes are small, by all of their values; no size proves anything."""
    few = dict.fromkeys(sizes, 2)
    arrays = not known.in_formulas and all(_by_arrays(f, few) is not None for f in (left, right))
    left_to_try = LIMIT // 4

    def look(env: dict[int, int]) -> CounterExample | None:
        nonlocal left_to_try
        extents = {name: val(n, env) for name, n in sizes.items()}
        size = (1 if arrays else POINT * (4 if known.in_formulas else 1)) * prod(extents.values())
        if min(extents.values()) < 1 or size > min(LIMIT // 32, left_to_try):
            return None
        f, g = (known.with_values(x, env) if known.in_formulas else x for x in (left, right))
        found = _by_values(f, g, extents, stuck)
        # A formula without a value here has none at other sizes either.
        left_to_try = 0 if isinstance(found, Undecided) else left_to_try - size
        return known.at(found, env) if isinstance(found, CounterExample) else None

    refuted = refuting(known.generators, look)
    if refuted is None:
        return Undecided(str(stuck))
    needs = [fact for fact in stuck.needs if known.helps(fact)]
    lacks = LACKS + " or ".join(needs) if needs else ""
    return replace(refuted[0], statement=refuted[0].statement + lacks)


Operation = Callable[[int, int], int]  # of integers, a comparison too


class AtSizes:
    """An integer that takes symbols for their numbers, in a formula at some sizes."""

    __slots__ = ("number", "value")
    compares_symbols = True

    def __init__(self, value: int, number: Callable[[Scalar], int]) -> None:
        self.value, self.number = value, number

    def calculated(self, operation: Operation, other: object, reflected: bool) -> object:
        """The operation with another number, an integer or a symbol."""
        if isinstance(other, AtSizes):
            by = other.value
        elif isinstance(other, Polynomial):
            by = self.number(other)
        elif is_int(other) or isinstance(other, bool):
            by = int(other)
        else:
            return NotImplemented
        found = operation(by, self.value) if reflected else operation(self.value, by)
        return found if isinstance(found, bool) else AtSizes(found, self.number)

    def __hash__(self) -> int:
        return hash(self.value)

    def __bool__(self) -> bool:
        return self.value != 0

    def __neg__(self) -> AtSizes:
        return AtSizes(-self.value, self.number)

    def __pos__(self) -> AtSizes:
        return self

    def __invert__(self) -> AtSizes:
        return AtSizes(~self.value, self.number)


def _operator(operation: Operation, reflected: bool) -> Callable[[AtSizes, object], object]:
    return lambda self, other: self.calculated(operation, other, reflected)


for _name in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    setattr(AtSizes, f"__{_name}__", _operator(getattr(operator, f"__{_name}__"), False))
    setattr(AtSizes, f"__r{_name}__", _operator(getattr(operator, f"__{_name}__"), True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(AtSizes, f"__{_name}__", _operator(getattr(operator, f"__{_name}__"), False))


def tabulate(formula: Formula, extents: Mapping[str, int]) -> list[np.ndarray]:
    """All values of a formula on a static box, in colexicographic order, as Python ints. An array per component.

    NumPy evaluates where the formula lets it, one coordinate at a time is the fallback. Raises LayoutError for values
    that are no integers and for a formula that needs symbols.
    """
    found = _by_arrays(formula, extents)
    if found is None:
        rows: list[list[Any]] = []
        try:
            for c in _coordinates(list(extents.values())):
                rows.append(leaves(call(formula, dict(zip(extents, c, strict=True)))))
        except TypeError as error:  # a symbol where only numbers will do
            said = str(error).replace("'Polynomial'", "'a symbol'")
            raise LayoutError(f"the formula has no values to look at: {said}") from None
        except LayoutError:
            raise
        except (LookupError, ValueError, ArithmeticError) as error:
            at = show_coord(_single(coordinate(len(rows), list(extents.values()))))
            raise LayoutError(f"the formula has no value at {at}: {type(error).__name__}: {error}", len(rows)) from None
        found = [np.array([row[i] for row in rows], dtype=object) for i in range(len(rows[0]))]
    return [_integers(x) for x in found]


def _by_arrays(formula: Formula, extents: Mapping[str, int]) -> list[np.ndarray] | None:
    """The values of a formula that arrays of its variables go through, else None."""
    shape = tuple(reversed(list(extents.values())))
    grids: dict[str, object] = {}
    for axis, (name, n) in enumerate(reversed(list(extents.items()))):
        grid = np.arange(n).astype(object)
        grids[name] = grid.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    grids = {name: grids[name] for name in extents}
    try:
        return [np.broadcast_to(np.asarray(x, dtype=object), shape).ravel() for x in leaves(call(formula, grids))]
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
        return None


def _integers(values: np.ndarray) -> np.ndarray:
    if set(map(type, values)) <= {int}:  # nearly always, and a box has up to millions of values
        return values
    out = np.empty(len(values), dtype=object)
    for i, x in enumerate(values):
        if not hasattr(x, "__index__") or isinstance(x, (bool, np.bool_)):
            raise LayoutError(f"the formula gives {shown(x)} ({type(x).__name__}) at index {i}, which is no integer", i)
        out[i] = int(x)
    return out


def _coordinates(extents: list[int]) -> Iterator[list[int]]:
    return (coordinate(i, extents) for i in range(prod(extents)))


def coordinate(index: int, extents: list[int]) -> list[int]:
    """The digits of a flat index, lowest first."""
    out = []
    for n in extents:
        index, r = divmod(index, n)
        out.append(r)
    return out


def _single(coord: list[int]) -> int | tuple[int, ...]:
    return coord[0] if len(coord) == 1 else tuple(coord)


# ---------------------------------------------------------------- the first difference, at sizes that have one


def _witness(box: DigitBox, f: object, g: object, used: list[int], known: Known) -> CounterExample | None:
    """Sizes and the first coordinate at which forms differ, or None where none is found."""
    differences = [a - b for a, b in zip(leaves(f), leaves(g), strict=False)]
    tuples_differ = len(leaves(f)) != len(leaves(g))  # then the first coordinate shows it

    def look(env: dict[int, int]) -> CounterExample | None:
        sizes = box.values(env)
        coords = [c for c in (_first_inside(box, d, sizes) for d in differences) if c is not None]
        if tuples_differ:
            coords.append([0] * len(box.extents))
        if not coords:
            return None
        coord = min(coords, key=lambda c: c[::-1])
        extents = [val(n, sizes) for n in box.extents.values()]
        index = sum(x * prod(extents[:i]) for i, x in enumerate(coord))
        left, right = _values(f, sizes, coord), _values(g, sizes, coord)
        return known.at(CounterExample(_single(coord), left, right, index, method="digits"), env)

    for env in itertools.islice(valuations(used, 24), SIZES):
        found = look(env)
        if found is not None:
            return found
    beyond = grown(used, look)
    return None if beyond is None else beyond[0]


def _values(f: object, sizes: Mapping[int, int], coord: list[int]) -> Any:
    return transform(lambda x: _value(x, sizes, coord), f)


def _first_inside(box: DigitBox, difference: NormalForm, sizes: dict[int, int]) -> list[int] | None:
    """The first coordinate of the true box at which the difference is not 0."""
    # digits and weights in colexicographic order, without those that are 0 in the whole box
    digits: list[tuple[Digit, int]] = []
    position = {}
    sizes_of = {v: val(n, sizes) for v, n in box.extents.items()}
    for v, extents in box.digits.items():
        for i, (e, w) in enumerate(zip(extents, box.weights[v], strict=True)):
            if val(e, sizes) > 1 and val(w, sizes) < sizes_of[v]:
                position[v, i] = len(digits)
                digits.append(((v, i), val(w, sizes)))
    terms: dict[int, int] = {}
    for s, c in difference.terms.items():
        mask = sum(1 << position[digit] for digit in s if digit in position)
        if mask:
            terms[mask] = terms.get(mask, 0) + val(c, sizes)
    first = first_nonzero(val(difference.constant, sizes), terms, len(digits))
    if first is None:
        return None
    at = dict.fromkeys(box.extents, 0)
    for ((v, _), w), x in zip(digits, first, strict=True):
        at[v] += w * x
    # Digits reach past the box, and past each other, where splits over-cover.
    if all(at[v] < n for v, n in sizes_of.items()):
        true = _digits(box, sizes, list(at.values()))
        if all(true[digit] == x for (digit, _), x in zip(digits, first, strict=True)):
            return list(at.values())
    if prod(sizes_of.values()) > LIMIT // 16:
        return None
    coordinates = _coordinates(list(sizes_of.values()))
    return next((c for c in coordinates if _value(difference, sizes, c)), None)


def first_nonzero(constant: int, terms: Mapping[int, int], n: int) -> list[int] | None:
    """The first digit vector (lowest digit first) at which a form is not 0, or None.

    `terms`: coefficient by set of digits, as a bit mask; sets of several digits hold bits.

    >>> first_nonzero(0, {0b011: 1, 0b001: -1, 0b010: -1}, 3)  # (x ^ y) - x - y
    [1, 1, 0]
    """
    if constant:
        return [0] * n
    for k in range(n):
        below = (2 << k) - 1
        merged: dict[int, int] = {}
        for s, c in terms.items():
            s &= below
            if s:
                merged[s] = merged.get(s, 0) + c
        merged = {s: c for s, c in merged.items() if c}
        if not merged:
            continue
        # Digit k is 0 in all that was identically 0, so it is 1 here, and x ^ s = 1 - s for the sets that it is in.
        bit = 1 << k
        constant = 0
        rest: dict[int, int] = {}
        for s, c in merged.items():
            if s & bit:
                constant += c
                s, c = s ^ bit, -c
            if s:
                rest[s] = rest.get(s, 0) + c
        lower = first_nonzero(constant, rest, k)
        assert lower is not None
        return [*lower, 1, *[0] * (n - k - 1)]
    return None


def _value(form: NormalForm, sizes: Mapping[int, int], coord: list[int]) -> int:
    """The form at a coordinate and sizes."""
    digit = _digits(form.box, sizes, coord)
    total = val(form.constant, sizes)
    for s, c in form.terms.items():
        bits = [digit[k] for k in s]
        total += val(c, sizes) * (bits[0] if len(bits) == 1 else sum(bits) % 2)
    return total


def _digits(box: DigitBox, sizes: Mapping[int, int], coord: list[int]) -> dict[Digit, int]:
    """The digits of a coordinate, from the highest down."""
    out: dict[Digit, int] = {}
    for (v, weights), x in zip(box.weights.items(), coord, strict=True):
        for i in range(len(weights) - 1, -1, -1):
            out[v, i], x = divmod(x, val(weights[i], sizes))
    return out
