"""Integer polynomials: the symbolic extents and strides of a layout.

A `Polynomial` has integer coefficients and generators (`generators.py`): free integers with bounds. It is never
constant: arithmetic that leaves a constant gives an int, so `x.__class__ is int` tells the two apart everywhere. Since
facts are substitutions of generators, all questions about symbolic layouts come down to four decisions, each exact
arithmetic on polynomials, and nothing else decides anything:

* `p == q`: equal coefficients. Two polynomials in free generators are equal at all values only then.
* `div(p, q)`: the quotient that is a polynomial with integer coefficients, or None. Complete for such quotients; it
  does not see that M*(M+1)/2 is an integer.
* `floordiv(p, q)`: floor(p / q) where that is a polynomial, or None.
* `ge0(p)`: True only when p >= 0 at every value within the bounds; False says that this was not seen. Exact for sums of
  terms of one sign and for linear p, not for inequalities that need squares, such as X*X - 2*X*Y + Y*Y >= 0.

SymPy is not used here: these take microseconds, SymPy's own take up to a millisecond and often answer None.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from math import gcd, prod
from typing import Any, TypeAlias, final

from ...arguments import MAX_BITS, as_int, is_int, refusal, shown
from ...arguments import shown as bounded
from ...errors import LayoutError
from .. import registries
from .generators import GENERATORS, fresh, inverse, is_integral, number, of_terms, restore
from .generators import show as show_names

MAX_POWER = 32  # an exponent: the power of a sum has as many terms as there are ways to choose them
MAX_DEGREE = 256  # symbols in one product
MAX_TERMS = 1 << 16  # products of terms that one product of two sums takes

Scalar: TypeAlias = "int | Polynomial"  # an entry of a shape
Read: TypeAlias = "Callable[[Scalar], Scalar]"  # an entry -> the same under facts, or its number at some sizes
_READ: ContextVar[Read | None] = ContextVar("read", default=None)
Monomial = tuple[int, ...]
Terms = dict[Monomial, int]


class MissingFact(LayoutError):
    """An answer depends on something that the facts about the symbols do not say.

    `needs`: the facts, each of which would be enough, as texts such as `64 | M` that `Facts` accepts.
    """

    def __init__(self, reason: str = "", needs: tuple[str, ...] = ()) -> None:
        super().__init__(f"{reason}: needs {' or '.join(needs)}" if needs and reason else reason)
        self.needs = needs


@contextmanager
def reading(read: Read | None) -> Iterator[None]:
    """Arithmetic that symbols do not decide is tried again on what `read` gives for them."""
    before = _READ.set(read)
    try:
        yield
    finally:
        _READ.reset(before)


def reread(*entries: Scalar) -> tuple[Scalar, ...] | None:
    """The entries as `reading` says; None where that changes nothing."""
    read = _READ.get()
    found = entries if read is None else tuple(p if p.__class__ is int else read(p) for p in entries)
    return None if found == entries else found


@final
class Polynomial:
    """A polynomial that is not constant: sum of coefficient * product of generators. Immutable and hashable.

    `terms` maps each monomial, a sorted tuple of generator numbers, to its coefficient. `+ - *` take ints too;
    `//` and `%` are exact or raise MissingFact; comparisons give a `Relation`, whose truth is decided or raises.
    Equality is structural, which is equality at all sizes.
    """

    __slots__ = ("_hash", "terms")
    terms: Terms
    _hash: int | None

    def __init__(self) -> None:
        raise TypeError("symbols are made by dim()")

    def __hash__(self) -> int:
        h = self._hash
        if h is None:
            h = self._hash = hash(frozenset(self.terms.items()))
        return h

    def __eq__(self, other: object) -> bool:
        if other.__class__ is Polynomial:
            return self.terms == other.terms
        return False if other.__class__ is int else _border_equal(other)

    def __ne__(self, other: object) -> bool:
        result = self.__eq__(other)
        return result if result is NotImplemented else not result

    def __add__(self, other: Scalar) -> Scalar:
        if other.__class__ is int:
            return make({**self.terms, (): self.terms.get((), 0) + other}) if other else self
        return _coerced(self, other, "__add__") if other.__class__ is not Polynomial else self._plus(other, 1)

    def _plus(self, other: Polynomial, sign: int) -> Scalar:
        t = dict(self.terms)
        for m, c in other.terms.items():
            v = t.get(m, 0) + sign * c
            if v:
                t[m] = v
            else:
                del t[m]
        return make(t)

    __radd__ = __add__

    def __neg__(self) -> Scalar:
        return make({m: -c for m, c in self.terms.items()})

    def __pos__(self) -> Polynomial:
        return self

    def __sub__(self, other: Scalar) -> Scalar:
        if other.__class__ is int:
            return self + -other
        return _coerced(self, other, "__sub__") if other.__class__ is not Polynomial else self._plus(other, -1)

    def __rsub__(self, other: Scalar) -> Scalar:
        return -self + other

    def __mul__(self, other: Scalar) -> Scalar:
        if other.__class__ is int:
            if other.bit_length() > MAX_BITS:
                raise LayoutError(f"{self} times an integer of {other.bit_length()} bits: at most {MAX_BITS}")
            return make({m: c * other for m, c in self.terms.items()}) if other else 0
        if other.__class__ is not Polynomial:
            return _coerced(self, other, "__mul__")
        if len(self.terms) * len(other.terms) > MAX_TERMS:
            raise LayoutError(
                f"a product of {len(self.terms)} terms and {len(other.terms)}: at most {MAX_TERMS} products of terms "
                f"are formed"
            )
        t: Terms = {}
        for m, c in self.terms.items():
            for n, d in other.terms.items():
                if len(m) + len(n) > MAX_DEGREE:
                    raise LayoutError(f"a product of {len(m) + len(n)} symbols has more than {MAX_DEGREE}")
                k = tuple(sorted(m + n)) if m and n else m or n
                v = t.get(k, 0) + c * d
                if v:
                    t[k] = v
                else:
                    t.pop(k, None)
        return make(t)

    __rmul__ = __mul__

    def __pow__(self, exponent: int) -> Scalar:
        exponent = as_int(exponent, f"an exponent of {self}", least=0, most=MAX_POWER)
        return prod([self] * exponent, start=1)

    def __floordiv__(self, other: Scalar) -> Scalar:
        return _floor(self, other, 0)

    def __rfloordiv__(self, other: Scalar) -> Scalar:
        return _floor(other, self, 0)

    def __truediv__(self, other: object) -> Scalar:
        if has_own_arithmetic(other, "__rtruediv__"):
            return NotImplemented
        p, by = parenthesised(self), shown(other)
        raise LayoutError(f"{p} / {by}: entries are integers; write {p} // {by}")

    def __int__(self) -> int:
        raise TypeError(f"{self} has symbols, and no number before their sizes are given, as by layout.at(M=64)")

    def __mod__(self, other: Scalar) -> Scalar:
        return _floor(self, other, 1)

    def __rmod__(self, other: Scalar) -> Scalar:
        return _floor(other, self, 1)

    def __divmod__(self, other: Scalar) -> tuple[Scalar, Scalar]:
        return _floor(self, other, 0), _floor(self, other, 1)

    def __rdivmod__(self, other: Scalar) -> tuple[Scalar, Scalar]:
        return _floor(other, self, 0), _floor(other, self, 1)

    def __lshift__(self, bits: int) -> Scalar:
        return self * (1 << as_int(bits, f"the shift of {self}", least=0, most=MAX_BITS))

    def __rshift__(self, bits: int) -> Scalar:
        return _floor(self, 1 << as_int(bits, f"the shift of {self}", least=0, most=MAX_BITS), 0)

    def __ge__(self, other: Scalar) -> Relation:
        return _relation(self, ">=", other)

    def __gt__(self, other: Scalar) -> Relation:
        return _relation(self, ">", other)

    def __le__(self, other: Scalar) -> Relation:
        return _relation(self, "<=", other)

    def __lt__(self, other: Scalar) -> Relation:
        return _relation(self, "<", other)

    def __bool__(self) -> bool:
        if ge0(self - 1) or ge0(-self - 1):
            return True
        raise MissingFact(f"whether {self} is 0", (f"{self} >= 1",))

    def __repr__(self) -> str:
        return show(self)

    def __reduce__(self) -> tuple[object, ...]:
        # Generator numbers mean nothing in another process.
        return _rebuild, (tuple([(c, [GENERATORS[g].key for g in m]) for m, c in self.terms.items()]),)

    def _sympy_(self) -> Any:
        return registries.to_sympy(self)


def make(terms: Terms) -> Scalar:
    """The polynomial of these terms: an int when constant. A zero constant term is dropped."""
    if not terms.get((), 1):
        del terms[()]
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    p = object.__new__(Polynomial)
    p.terms = terms
    p._hash = None
    return p


def _rebuild(items: Any) -> Scalar:
    return make({tuple(sorted([restore(k) for k in keys])): c for c, keys in items})


def gen(g: int) -> Scalar:
    """The generator of number `g` as a polynomial. An int when its bounds leave one value."""
    G = GENERATORS[g]
    return G.low if G.low is not None and G.low == G.high else make({(g,): 1})


def fresh_symbol(text: str, low: int = 0) -> Scalar:
    """A new symbol, equal to no other, for a value met on the way."""
    return gen(fresh(text, low, None))


def _coerced(p: Polynomial, other: Scalar, operation: str) -> Scalar:
    """Arithmetic with an integer of another class. Raises LayoutError for an operand without arithmetic."""
    if is_int(other):
        return getattr(p, operation)(int(other))
    if has_own_arithmetic(other, f"__r{operation[2:]}"):
        return NotImplemented
    raise LayoutError(refusal(other, f"what {p} is {_VERBS[operation]}", "an integer or a symbol"))


_VERBS = {"__add__": "added to", "__sub__": "subtracted from", "__mul__": "multiplied by"}


def has_own_arithmetic(x: object, operation: str = "__rmul__") -> bool:
    """True if an operand has its own arithmetic with a symbol. Arrays, SymPy's objects, basis elements."""
    owner = x.__class__.__module__.partition(".")[0]
    if owner in ("builtins", "torch") or (owner == "numpy" and x.__class__.__name__ != "ndarray"):
        return False
    return hasattr(x, operation)


def _border_equal(other: object) -> bool:
    if other.__class__.__module__ == "numpy" and not getattr(other, "shape", ()):
        return False
    return NotImplemented


# ---------------------------------------------------------------- decisions


def div(p: Any, q: Any) -> Scalar | None:
    """The exact quotient p/q as a polynomial with integer coefficients, or None."""
    if q.__class__ is int:
        if p.__class__ is int:
            return None if q == 0 or p % q else p // q
        if q == 1:
            return p
        if q == 0:
            return None
        t = {}
        for m, c in p.terms.items():
            if c % q:
                return None
            t[m] = c // q
        return make(t)
    if p.__class__ is int:
        return 0 if p == 0 else None
    if p.terms == q.terms:
        return 1
    out: Terms = {}
    if len(q.terms) == 1:
        ((d, e),) = q.terms.items()
        for m, c in p.terms.items():
            k = None if c % e else _without(m, d)
            if k is None:
                return None
            out[k] = c // e
        return make(out)
    lead = _lead(q.terms)
    e = q.terms[lead]
    rest: Scalar = p
    while rest.__class__ is Polynomial or rest:
        terms = terms_of(rest)
        m = _lead(terms)
        k = _without(m, lead)
        if k is None or terms[m] % e:
            return None
        c = terms[m] // e
        out[k] = c
        rest = rest - make({k: c}) * q
    return make(out)


def terms_of(p: Scalar) -> Terms:
    """The coefficients of an entry by monomial; 0 has none."""
    if p.__class__ is Polynomial:
        return p.terms
    return {(): p} if p.__class__ is int and p else {}


def _lead(terms: Terms) -> Monomial:
    # Graded lexicographic with *descending* generators compared first: a monomial order, so the division terminates.
    return max(terms, key=lambda m: (len(m), m[::-1]))


def _without(m: Monomial, d: Monomial) -> Monomial | None:
    """The monomial m / d, or None."""
    if not d:
        return m
    rest = list(m)
    for g in d:
        if g not in rest:
            return None
        rest.remove(g)
    return tuple(rest)


def floordiv(p: Scalar, q: Scalar) -> Scalar | None:
    """floor(p / q) where it is a polynomial, or None. What q divides, if the remainder provably lies in -q..q-1."""
    exact = div(p, q)
    if exact is not None or (p.__class__ is int and q.__class__ is int):
        return exact if exact is not None else p // q if q else None
    whole: Scalar = 0
    rest: Scalar = 0
    for m, c in terms_of(p).items():
        part = make({m: c})
        x = div(part, q)
        if x is not None:
            whole = whole + x
        elif q.__class__ is int and q > 0:
            whole, rest = whole + make({m: c // q} if c // q else {}), rest + make({m: c % q})
        else:
            rest = rest + part
    if ge0(rest) and ge0(q - 1 - rest):
        return whole
    return whole - 1 if ge0(-1 - rest) and ge0(rest + q) else None


def _floor(p: Scalar, q: Scalar, remainder: int) -> Scalar:
    for x in (p, q):
        if x.__class__ is not Polynomial:
            if not is_int(x) and has_own_arithmetic(x, "__rmod__"):
                return NotImplemented
            by = as_int(x, f"the other operand of {'%' if remainder else '//'} of {p if q is x else q}")
            if by is not x:
                return _floor(by if p is x else p, by if q is x else q, remainder)
    if q.__class__ is int and q == 0:
        raise LayoutError(f"{parenthesised(p)} {'%' if remainder else '//'} 0: a division by zero")
    if q.__class__ is Polynomial and not ge0(q - 1) and not ge0(-q - 1):
        if known := reread(p, q):
            return _floor_of(known[0], known[1], remainder)
        what = f"{parenthesised(p)} {'%' if remainder else '//'} {parenthesised(q)}"
        raise MissingFact(f"{what}: a division by zero where {show(q)} is 0", needs_ge(q - 1))
    k = floordiv(p, q)
    if k is None:
        if known := reread(p, q):
            return _floor_of(known[0], known[1], remainder)
        ways = needs_div(q, p) + (needs_ge(q - 1 - p) if ge0(p) else ())
        raise MissingFact(f"{parenthesised(p)} {'%' if remainder else '//'} {parenthesised(q)}", ways)
    return p - k * q if remainder else k


def _floor_of(p: Scalar, q: Scalar, remainder: int) -> Scalar:
    """`_floor` of two entries that may be ints."""
    if p.__class__ is int and q.__class__ is int and q:
        return p % q if remainder else p // q
    return _floor(p, q, remainder)


def ge0(p: Scalar) -> bool:
    """True only when p >= 0 for all values of the generators within their bounds."""
    if p.__class__ is int:
        return bool(p >= 0)
    return _ge0(p)


@lru_cache(maxsize=1 << 14)
def _ge0(p: Polynomial) -> bool:
    if min(p.terms.values()) >= 0 and all(_nonnegative(g) for m in p.terms for g in m):
        return True  # sums of products of what is not negative
    bounded = []
    for g in gens(p):
        G = GENERATORS[g]
        if G.low is None:
            if G.high is None:
                return False
        elif G.high is not None:
            bounded.append(g)
    if min(_shifted(p, ()).values()) >= 0:
        return True
    if not bounded:
        return False
    for n in range(1, len(bounded) + 1):
        for flips in itertools.combinations(bounded, n):
            if min(_shifted(p, flips).values()) >= 0:
                return True
    # A bounded generator is few enough cases: one after the other.
    g = min(bounded, key=lambda g: _width(g))
    low = GENERATORS[g].low
    assert low is not None
    return _width(g) <= 64 and all(ge0(substitute(p, {g: low + i})) for i in range(_width(g)))


def _nonnegative(g: int) -> bool:
    low = GENERATORS[g].low
    return low is not None and low >= 0


def _width(g: int) -> int:
    G = GENERATORS[g]
    assert G.high is not None and G.low is not None
    return G.high - G.low + 1


def _shifted(p: Polynomial, flips: tuple[int, ...]) -> Terms:
    """p in terms of x >= 0: a generator is low + x, or high - x for those in `flips` and those without low."""
    out: Terms = {(): 0}
    for m, c in p.terms.items():
        acc: Terms = {(): c}
        for g in m:
            G = GENERATORS[g]
            if g in flips or G.low is None:
                base, sign = G.high, -1
            else:
                base, sign = G.low, 1
            nxt: Terms = {}
            for mm, cc in acc.items():
                k = tuple(sorted(mm + (g,)))
                nxt[k] = nxt.get(k, 0) + sign * cc
                if base:
                    nxt[mm] = nxt.get(mm, 0) + cc * base
            acc = nxt
        for mm, cc in acc.items():
            out[mm] = out.get(mm, 0) + cc
    return out


class Relation:
    """An inequality between two entries, as a fact for `Facts` or as a question.

    Its truth is decided from the facts: True when it always holds, False when it never does; else MissingFact.

    >>> from layoutgemm.layouts.symbols.dims import dim
    >>> M = dim("M", min=4)
    >>> bool(M >= 4), bool(M < 4), M >= 9
    (True, False, M >= 9)
    """

    __slots__ = ("left", "op", "right")

    def __init__(self, left: Scalar, op: str, right: Scalar) -> None:
        self.left, self.op, self.right = left, op, right

    def nonnegative(self) -> Scalar:
        """The polynomial that is >= 0 when the relation holds."""
        up = self.op[0] == ">"
        d = self.left - self.right if up else self.right - self.left
        return d if self.op[-1] == "=" else d - 1

    def __bool__(self) -> bool:
        p = self.nonnegative()
        if ge0(p):
            return True
        if ge0(-p - 1):
            return False
        if known := reread(p):
            return bool(Relation(known[0], ">=", 0))
        raise MissingFact(f"whether {bounded(self)}", needs_ge(p))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Relation):
            return NotImplemented
        return (self.left, self.op, self.right) == (other.left, other.op, other.right)

    def __hash__(self) -> int:
        return hash((self.left, self.op, self.right))

    def __repr__(self) -> str:
        return f"{show(self.left)} {self.op} {show(self.right)}"


def _relation(left: Polynomial, op: str, right: Scalar) -> Relation:
    """The inequality; a value of an index formula, which compares itself with symbols, answers in its own way."""
    return NotImplemented if getattr(right, "compares_symbols", False) else Relation(left, op, right)


# ---------------------------------------------------------------- generators and values


def gens(*ps: object) -> list[int]:
    """The generators of the given entries, sorted; ints have none."""
    return sorted({g for p in ps if p.__class__ is Polynomial for m in p.terms for g in m})


def val(p: Any, env: Mapping[int, int]) -> int:
    """The value with each generator replaced by its integer."""
    if p.__class__ is int:
        out: int = p
        return out
    total = 0
    for m, c in p.terms.items():
        for g in m:
            c *= env[g]
        total += c
    return total


def substitute(p: Scalar, mapping: Mapping[int, Scalar]) -> Scalar:
    """p with generators replaced by entries; the others stay."""
    if p.__class__ is not Polynomial:
        return p
    out: Scalar = 0
    for m, c in p.terms.items():
        term: Scalar = c
        for g in m:
            term = term * (mapping[g] if g in mapping else make({(g,): 1}))
        out = out + term
    return out


def valuations(gs: list[int], totals: int) -> Iterator[dict[int, int]]:
    """Values of the generators within their bounds. They come by growing sum of distances from the lower bound (0 if
    none)."""
    for total in range(totals):
        for c in _compositions(total, len(gs)):
            env = {}
            for g, k in zip(gs, c):
                G = GENERATORS[g]
                if G.low is None:
                    start, step = (0, 1) if G.high is None or G.high > 0 else (G.high, -1)
                    k = step * ((k + 1) // 2 * (1 if k % 2 else -1)) if G.high is None else -k
                    v = start + k
                else:
                    v = G.low + k
                    if G.high is not None and v > G.high:
                        break
                env[g] = v
            else:
                yield env


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 0:
        if total == 0:
            yield ()
        return
    if parts == 1:
        yield (total,)
        return
    for first in range(total, -1, -1):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)


# ---------------------------------------------------------------- texts


def show(p: object) -> str:
    """The entry in the user's symbols, without blanks: `M*N//64+8`. Every `//` in it is exact."""
    return _show(p) if p.__class__ is Polynomial else number(p) if p.__class__ is int else str(p)


@lru_cache(maxsize=1 << 12)
def _show(p: Polynomial) -> str:
    termwise = all(len(GENERATORS[g].shown) == 1 for g in gens(p))
    return show_names(of_terms(p.terms), termwise)


# ---------------------------------------------------------------- the facts that would decide a question


def parenthesised(p: Scalar) -> str:
    """The text of an entry as a factor."""
    text = show(p)
    return f"({text})" if any(c in text for c in "+-*/") else text


def needs_div(d: Scalar, p: Scalar) -> tuple[str, ...]:
    """The facts, each of which would make `d` divide `p`, in the user's symbols. () when none would."""
    if div(p, d) is not None:
        return ()
    if p.__class__ is not Polynomial:
        return ()  # `M | 8` is no substitution but four cases: nothing that a fact could say
    d, p = _cancel(d, p)
    if p.__class__ is not Polynomial:
        return ()
    if isinstance(d, int):
        d = abs(d)
        rest = make({m: c % d for m, c in p.terms.items() if c % d})
        if rest.__class__ is not Polynomial or rest.terms.get((), 0) % gcd(d, *[c for m, c in rest.terms.items() if m]):
            return ()  # never a multiple
        if len(rest.terms) == 1:
            ((m, c),) = rest.terms.items()
            k = d // gcd(c, d)
            return tuple(dict.fromkeys([_divides(k, g) for g in m]))
        return (f"{d} | {show(rest)}",)
    if p.__class__ is Polynomial and len(p.terms) == 1 and len(d.terms) == 1:
        ((m, c),) = p.terms.items()
        return tuple(dict.fromkeys([f"{show(d)} | {show(make({(g,): 1}))}" for g in m]))
    return (f"{show(d)} | {show(p)}",)


def _divides(k: int, g: int) -> str:
    """The fact that `k` divides generator `g`, in terms of the user's symbol where possible."""
    shown = GENERATORS[g].shown
    inv = inverse(shown)
    if inv is not None:
        ((power, scale),) = inv.items()
        if scale.denominator == 1 and all(e < 0 for _, e in power) is bool(power):
            return f"{k * scale.numerator} | {show_names({tuple((n, -e) for n, e in power): 1 + scale * 0})}"
    return f"{k} | {show(make({(g,): 1}))}"


def _cancel(d: Scalar, p: Polynomial) -> tuple[Scalar, Scalar]:
    """d and p without the common factors of all their terms: integer and generators."""
    terms = [*terms_of(d).items(), *p.terms.items()]
    k = gcd(*[c for _, c in terms])
    common = list(terms[0][0])
    for m, _ in terms[1:]:
        left, kept = list(m), []
        for g in common:
            if g in left:
                left.remove(g)
                kept.append(g)
        common = kept
    factor = make({tuple(common): k})
    rest = div(d, factor), div(p, factor)
    assert rest[0] is not None and rest[1] is not None
    return rest[0], rest[1]


def needs_ge(p: Scalar) -> tuple[str, ...]:
    """The fact that would make p >= 0, solved for a symbol if p is linear: `M >= 21`."""
    if p.__class__ is not Polynomial or ge0(-p - 1):
        return ()
    shown = of_terms(p.terms)
    constant = shown.get((), 0)
    rest = {k: c for k, c in shown.items() if k}
    if len(rest) == 1:
        ((power, c),) = rest.items()
        if all(e > 0 for _, e in power):
            text = show_names({power: 1})
            if c > 0:
                return (f"{text} >= {-(constant // c)}",)
            return (f"{text} <= {constant // -c}",)
    strict = constant == -1
    up = {k: c for k, c in shown.items() if c > 0}
    down = {k: -c for k, c in shown.items() if c < 0 and not (strict and k == ())}
    if is_integral(up) and is_integral(down):
        return (f"{show_names(up)} {'>' if strict else '>='} {show_names(down)}",)
    return (f"{show(p)} >= 0",)
