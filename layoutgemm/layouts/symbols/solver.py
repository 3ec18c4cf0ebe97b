"""Solving facts for one symbol each. The substitutions behind `Facts` (`facts.py` has the table of them)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import gcd

from ...arguments import shown as bounded
from .generators import GENERATORS, FactError, Shown, generator, inverse, name, of_terms, plus, times
from .generators import show as show_names
from .polynomial import (
    Polynomial,
    Scalar,
    Terms,
    div,
    floordiv,
    ge0,
    gen,
    gens,
    make,
    parenthesised,
    show,
    substitute,
    terms_of,
)


class Solver:
    """Solves facts one after the other, writing substitutions into `mapping`. A generator -> what replaces it."""

    def __init__(self, mapping: dict[int, Scalar]) -> None:
        self.mapping = mapping

    def now(self, x: Scalar) -> Scalar:
        """The entry under the facts so far."""
        return substitute(x, self.mapping)

    def set(self, g: int, value: Scalar) -> None:
        """Replace generator g everywhere."""
        # A generator made just now may be one that was replaced before: the same symbol, text and bounds.
        value = self.now(value)
        if g in gens(value):
            raise FactError(f"{show(gen(g))} would be replaced by {show(value)}")
        for k, v in self.mapping.items():
            self.mapping[k] = substitute(v, {g: value})
        self.mapping[g] = value

    def rebound(self, g: int, low: int | None, high: int | None) -> None:
        """Narrow the bounds of a generator."""
        G = GENERATORS[g]
        low = G.low if low is None else low if G.low is None else max(low, G.low)
        high = G.high if high is None else high if G.high is None else min(high, G.high)
        if (low, high) != (G.low, G.high):
            self.set(g, gen(generator(G.symbol, low, high, G.shown)))

    # ------------------------------------------------------------ d | x

    def divides(self, d: Scalar, x: Scalar) -> None:
        """The fact d | x."""
        d, x = self.now(d), self.now(x)
        if d.__class__ is int and d == 0:
            raise FactError("0 divides nothing but 0")
        if div(x, d) is not None:
            return
        if isinstance(x, int):
            if isinstance(d, int):
                raise FactError(f"{d} does not divide {x}")
            raise FactError(f"a divisor of {x} is one of finitely many cases, no substitution")
        if isinstance(d, int):
            self._int_divides(abs(d), x)
        else:
            self._symbol_divides(d, x)

    def _int_divides(self, d: int, x: Polynomial) -> None:
        rest = {m: c % d for m, c in x.terms.items() if c % d}
        if set(rest) == {()}:
            raise FactError(f"{show(x)} is never a multiple of {d}: the rest is {rest[()]}")
        g = _only_generator(rest)
        if g is None:
            raise FactError(
                f"{show(make(rest))} has more than one symbol to solve for; state what divides each of them"
            )
        c, k = rest.get((g,), 0), rest.get((), 0)
        common = gcd(c, d)
        if k % common:
            raise FactError(f"{show(x)} is never a multiple of {d}, since {common} divides all of it but {k}")
        step = d // common
        start = (-k // common) * pow(c // common, -1, step) % step
        G = GENERATORS[g]
        low = None if G.low is None else -(-(G.low - start) // step)
        high = None if G.high is None else (G.high - start) // step
        shown = times(plus(G.shown, {(): start}, -1), {(): Fraction(1, step)})
        self.set(g, gen(generator(G.symbol, low, high, shown)) * step + start)

    def _symbol_divides(self, d: Polynomial, x: Polynomial) -> None:
        rest = {m: c for m, c in x.terms.items() if div(make({m: c}), d) is None}
        g = _only_generator(rest)
        if g is None or rest != {(g,): 1} or g in gens(d):
            raise FactError(f"{show(make(rest))} is no single symbol that could be replaced by {show(d)} times another")
        G = GENERATORS[g]
        if G.low not in (None, 0, 1) or G.high is not None or not ge0(d - 1):
            raise FactError(
                f"{bounded(G)} has a bound of its own, or {show(d)} may be 0 or negative: the multiples within the "
                f"bounds are not a symbol with integer bounds"
            )
        inv = inverse(of_terms(d.terms))
        shown = name(f"({show_names(G.shown)}//{parenthesised(d)})") if inv is None else times(G.shown, inv)
        self.set(g, d * gen(generator(G.symbol, G.low, None, shown)))

    # ------------------------------------------------------------ p >= 0, p == 0

    def nonnegative(self, p: Scalar) -> None:
        """The fact p >= 0."""
        p = self.now(p)
        if ge0(p):
            return
        if ge0(-p - 1):
            raise FactError(f"the other facts make it false: {show(p)} >= 0")
        assert isinstance(p, Polynomial)
        p = _primitive(p)
        g = _only_generator(p.terms)
        if g is not None:
            c, k = p.terms.get((g,), 0), p.terms.get((), 0)
            self.rebound(g, -(k // c) if c > 0 else None, k // -c if c < 0 else None)
            return
        for g in _linear(p, lambda c: c == 1):
            base = make({(g,): 1}) - p  # g >= base
            G = GENERATORS[g]
            if G.high is None and (G.low is None or ge0(base - G.low)):
                shown = plus(G.shown, of_terms(terms_of(base)), -1)
                self.set(g, base + gen(generator(G.symbol, 0, None, shown)))
                return
        for g in _linear(p, lambda c: c > 1):
            # c*g >= base is g >= ceil(base / c).
            c = p.terms[(g,)]
            before = dict(self.mapping)
            try:
                self.nonnegative(make({(g,): 1}) - self.quotient(c * make({(g,): 1}) - p, c, True, None))
                return
            except FactError:
                self.mapping.clear()
                self.mapping.update(before)
        raise FactError(f"{show(p)} >= 0 cannot be solved for one symbol whose own bounds it implies")

    def zero(self, p: Scalar) -> None:
        """The fact p == 0."""
        p = self.now(p)
        if isinstance(p, int):
            if p:
                raise FactError(f"the other facts make the two sides differ by {p}")
            return
        if ge0(p - 1) or ge0(-p - 1):
            raise FactError(f"the other facts make it false: {show(p)} is never 0")
        content = gcd(*[c for m, c in p.terms.items() if m])
        if p.terms.get((), 0) % content:
            raise FactError(f"{show(p)} is never 0: {content} divides all of it but {p.terms[()]}")
        quotient = div(p, content)
        assert isinstance(quotient, Polynomial)
        p = quotient
        why = "no symbol stands alone in it"
        for g in _linear(p, lambda c: abs(c) == 1):
            before = dict(self.mapping)
            value = make({(g,): 1}) - p * p.terms[(g,)]
            G = GENERATORS[g]
            try:
                self.set(g, value)
                if G.low is not None:
                    self.nonnegative(value - G.low)
                if G.high is not None:
                    self.nonnegative(G.high - self.now(value))
                return
            except FactError as error:
                why = str(error)
                self.mapping.clear()
                self.mapping.update(before)
        linear = sorted(_linear(p, bool), key=lambda g: abs(p.terms[(g,)]))
        if len(gens(p)) == 2 == len(linear) and abs(p.terms[(linear[0],)]) > 1:
            # a*g + b*h + k = 0: h is what makes a divide the rest, and then g is the quotient.
            g = linear[0]
            self.divides(p.terms[(g,)], p - p.terms[(g,)] * make({(g,): 1}))
            self.zero(p)
            return
        raise FactError(f"{show(p)} == 0 cannot be solved for one symbol ({why})")

    # ------------------------------------------------------------ quotients rounded up or down

    def quotient(self, x: Scalar, d: Scalar, up: bool, mine: int | None) -> Scalar:
        """ceil(x / d) (`up`) or floor(x / d) as an entry. Generator `mine` if its bounds are right, or a new one."""
        x, d = self.now(x), self.now(d)
        q = floordiv(-x, d) if up else floordiv(x, d)
        if q is not None:
            return -q if up else q
        text = f"ceil_div({show(x)},{show(d)})" if up else f"{parenthesised(x)}//{parenthesised(d)}"
        if not ge0(d - 1):
            raise FactError(f"{show(d)} may be 0 or negative")
        rest = {m: c for m, c in terms_of(x).items() if div(make({m: c}), d) is None}
        whole = div(x - make(dict(rest)), d)
        g = _only_generator(rest)
        if g is None or rest.get((g,)) != 1 or g in gens(d):
            raise FactError(f"{show(x)} divided by {show(d)} is not solvable for one symbol")
        y = make(dict(rest))
        G, k = GENERATORS[g], rest.get((), 0)
        low = None if G.low is None else G.low + k
        high = None if G.high is None else G.high + k
        shown = name(
            text if x == y else f"ceil_div({show(y)},{show(d)})" if up else f"{parenthesised(y)}//{parenthesised(d)}"
        )
        if d.__class__ is int:
            # The values low..high of y must be whole rows of d, or bounds on quotient and remainder would not do.
            if not ((low is None or (low - up) % d == 0) and (high is None or (high + 1 - up) % d == 0)):
                raise FactError(
                    f"{show(y)} is in {'' if low is None else low}..{'' if high is None else high}; "
                    f"{'ceil_div' if up else '//'} by {d} makes bounds of these only when the lower is {up + 0} and "
                    f"the upper {(d - 1 + up) % d} modulo {d}"
                    + (f", for instance {show(y)} >= {-(-(low - up) // d) * d + up}" if low is not None else "")
                )
            t_low = None if low is None else (low - up) // d + up
            t_high = None if high is None else (high - up) // d + up
            t, shown = _quotient_generator(mine, t_low, t_high, shown)
            r_shown = plus(times({(): d}, shown), of_terms(terms_of(y)), -1)
            r = gen(generator(G.symbol, 0, d - 1, r_shown if up else _negated(r_shown)))
        else:
            b = _only_generator(terms_of(d))
            if b is None or terms_of(d) != {(b,): 1} or GENERATORS[b].low != 1 or GENERATORS[b].high is not None or k:
                raise FactError(f"the divisor {show(d)} is no symbol whose only bound is >= 1")
            if G.low != up or G.high is not None:
                raise FactError(f"{bounded(G)}: the only bound of {show(y)} must be >= {up + 0}")
            t, shown = _quotient_generator(mine, up + 0, None, shown)
            r_shown = plus(times(of_terms(terms_of(d)), shown), of_terms(terms_of(y)), -1)
            r_shown = r_shown if up else _negated(r_shown)
            r = gen(generator(G.symbol, 0, None, r_shown))
            e_shown = plus(plus(GENERATORS[b].shown, {(): 1}, -1), r_shown, -1)
            self.set(b, r + 1 + gen(generator(GENERATORS[b].symbol, 0, None, e_shown)))
            d = self.now(d)
        self.set(g, (d * t - r if up else d * t + r) - k)
        assert whole is not None
        return self.now(whole) + t

    def define(self, mine: Scalar, x: Scalar, d: Scalar, up: bool) -> None:
        """The symbol `mine` = ceil or floor of x / d."""
        mine = self.now(mine)
        # A symbol on which nothing else rests can be the new generator itself.
        g = gens(mine)[0] if mine.__class__ is Polynomial and list(mine.terms.values()) == [1] else None
        free = g is not None and gen(g) == mine and g not in gens(self.now(x), self.now(d))
        free = free and GENERATORS[g].shown == name(GENERATORS[g].symbol)  # type: ignore[index]
        t = self.quotient(x, d, up, g if free else None)
        if t != self.now(mine):
            self.zero(mine - t)


def _quotient_generator(mine: int | None, low: int | None, high: int | None, shown: Shown) -> tuple[Scalar, Shown]:
    if mine is not None and (GENERATORS[mine].low, GENERATORS[mine].high) == (low, high):
        return gen(mine), GENERATORS[mine].shown
    return gen(generator(show_names(shown), low, high, shown)), shown


def _negated(a: Shown) -> Shown:
    return {k: -c for k, c in a.items()}


def _only_generator(terms: Terms) -> int | None:
    """g when the terms are c*g + k with c != 0, else None."""
    found = [m for m in terms if m]
    return found[0][0] if len(found) == 1 and len(found[0]) == 1 else None


def _linear(p: Polynomial, coefficient: Callable[[int], bool]) -> list[int]:
    """The generators that occur in one term only, alone, with a coefficient that fits; the latest first."""
    counts: dict[int, int] = {}
    for m in p.terms:
        for g in m:
            counts[g] = counts.get(g, 0) + 1
    return sorted([g for g, n in counts.items() if n == 1 and coefficient(p.terms.get((g,), 0))], reverse=True)


def _primitive(p: Polynomial) -> Polynomial:
    """p >= 0 with the common factor of all terms but the constant divided out."""
    content = gcd(*[c for m, c in p.terms.items() if m])
    k = p.terms.get((), 0)
    rest = div(p - k, content)
    assert rest is not None
    out = rest + k // content
    assert isinstance(out, Polynomial)
    return out
