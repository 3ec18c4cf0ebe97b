"""Generators: the free integers of symbolic extents and strides. Here is how they are made, and how they read.

A user's symbol with facts is written as a polynomial in generators that are free but for integer bounds: `64 | M` is
M = 64*m, and every fact about M is then arithmetic. A generator therefore has bounds, and a text: m prints as `M//64`.

`shown` holds that text as a Laurent polynomial over names with rational coefficients, m -> 1/64 * M. It is an identity,
so a polynomial in generators can always be rewritten in the user's symbols, whatever facts it went through.

Generators are interned by symbol, bounds and `shown`: equal facts give equal layouts. Two *different* generators of one
symbol must not meet in one layout, as one of them lacks a fact that the other has; `check_symbols` raises then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import lcm

from ...arguments import MAX_BITS
from ...errors import LayoutError

Powers = tuple[tuple[str, int], ...]  # names with exponents, sorted, no exponent 0
Coefficient = int | Fraction  # an int where it is whole: those are quick, and nearly all of them
Shown = dict[Powers, Coefficient]
Key = tuple[str, int | None, int | None, tuple[tuple[Powers, Coefficient], ...]]  # of a generator


class FactError(LayoutError):
    """A fact that cannot be accepted. It contradicts the others, or cannot be solved for one symbol."""


class Generator:
    """A free integer in low..high (None: no bound), standing for `symbol`."""

    __slots__ = ("high", "key", "low", "shown", "symbol")

    def __init__(self, symbol: str, low: int | None, high: int | None, shown: Shown, key: Key) -> None:
        self.symbol, self.low, self.high, self.shown, self.key = symbol, low, high, shown, key

    def __repr__(self) -> str:
        return f"{show(self.shown)} in {'' if self.low is None else self.low}..{'' if self.high is None else self.high}"


GENERATORS: list[Generator] = []
_ids: dict[Key, int] = {}
_fresh = 0
_consistent: set[tuple[int, ...]] = set()


def generator(symbol: str, low: int | None, high: int | None, shown: Shown | None = None) -> int:
    """The number of the generator with these bounds and this text. Raises FactError when the bounds leave no value."""
    if low is not None and high is not None and low > high:
        text = show(shown or name(symbol))
        raise FactError(f"the facts about {symbol} leave no value: {text} would be in {low}..{high}")
    shown = name(symbol) if shown is None else {p: _whole(c) for p, c in shown.items()}
    key = symbol, low, high, tuple(sorted(shown.items()))
    found = _ids.get(key)
    if found is None:
        found = _ids[key] = len(GENERATORS)
        GENERATORS.append(Generator(symbol, low, high, shown, key))
    return found


def fresh(text: str, low: int | None = 0, high: int | None = None) -> int:
    """A generator that is equal to no other, for a value met on the way. `text` names it in messages."""
    global _fresh
    _fresh += 1
    return generator(f"{text}'{_fresh}", low, high)


def restore(key: Key) -> int:
    """The generator of a key, in this process."""
    symbol, low, high, shown = key
    return generator(symbol, low, high, dict(shown))


def check_symbols(ids: Iterable[int]) -> None:
    """Raise FactError when two different generators stand for one symbol. One of them lacks a fact of the other."""
    key = tuple(ids)
    if key in _consistent:
        return
    seen: dict[str, int] = {}
    for g in key:
        symbol = GENERATORS[g].symbol
        other = seen.setdefault(symbol, g)
        if other != g:
            raise FactError(
                f"two symbols are called {symbol}: one has {describe(other)}, the other {describe(g)}; give both the "
                f"same facts, or one of them another name"
            )
    _consistent.add(key)


def describe(g: int) -> str:
    """The facts of a generator in words: `64 | M, M >= 64`."""
    G = GENERATORS[g]
    parts = []
    scale = lcm(*[c.denominator for c in G.shown.values()])
    if scale != 1:
        parts.append(f"{scale} | {show({k: c * scale for k, c in G.shown.items()})}")
    text = show({k: c * scale for k, c in G.shown.items()})
    if G.low is not None:
        parts.append(f"{text} >= {G.low * scale}")
    if G.high is not None:
        parts.append(f"{text} <= {G.high * scale}")
    return ", ".join(parts) or "no bounds"


# ---------------------------------------------------------------- Laurent polynomials over names


def name(symbol: str) -> Shown:
    """The symbol itself."""
    return {((symbol, 1),): 1}


def _whole(c: Coefficient) -> Coefficient:
    return c.numerator if c.denominator == 1 else c


def times(a: Shown, b: Shown) -> Shown:
    """Product."""
    if len(a) == 1 and () in a:
        (c,) = a.values()
        return b if c == 1 else {q: _whole(c * d) for q, d in b.items()}
    out: Shown = {}
    for p, c in a.items():
        for q, d in b.items():
            e = dict(p)
            for n, k in q:
                e[n] = e.get(n, 0) + k
            r = tuple(sorted([(n, k) for n, k in e.items() if k]))
            v = out.get(r, 0) + c * d
            if v:
                out[r] = _whole(v)
            else:
                out.pop(r, None)
    return out


def plus(a: Shown, b: Shown, factor: Coefficient = 1) -> Shown:
    """a + factor * b."""
    out = dict(a)
    for p, c in b.items():
        v = out.get(p, 0) + c * factor
        if v:
            out[p] = _whole(v)
        else:
            out.pop(p, None)
    return out


def inverse(a: Shown) -> Shown | None:
    """1/a when `a` is one term, else None."""
    if len(a) != 1:
        return None
    ((p, c),) = a.items()
    return {tuple([(n, -k) for n, k in p]): _whole(Fraction(1) / c)}


def of_terms(terms: Mapping[tuple[int, ...], Coefficient]) -> Shown:
    """A polynomial in generators (monomial -> coefficient), rewritten in the user's symbols."""
    out: Shown = {}
    for monomial, c in terms.items():
        term: Shown = {(): c}
        for g in monomial:
            term = times(term, GENERATORS[g].shown)
        out = plus(out, term)
    return out


def is_integral(a: Shown) -> bool:
    """True for a polynomial with integer coefficients: an integer whatever integers the symbols are."""
    return all(c.denominator == 1 and all(k > 0 for _, k in p) for p, c in a.items())


def show(a: Shown, termwise: bool = False) -> str:
    """Text such as `M*N//64+8`. Every `//` in it is exact.

    With `termwise` each term is known to be an integer by itself; otherwise a fraction is written as one quotient.
    """
    if not a:
        return "0"
    if not termwise and len(a) > 1 and not is_integral(a):
        den = lcm(*[c.denominator for c in a.values()])
        lowest: dict[str, int] = {}
        for p in a:
            for n, k in p:
                lowest[n] = min(lowest.get(n, 0), k)
        power = tuple(sorted([(n, -k) for n, k in lowest.items() if k < 0]))
        top = times(a, {power: den})
        factors = ([number(den)] if den != 1 else []) + [_power(n, k) for n, k in power]
        bottom = "*".join(factors)
        return f"({show(top)})//{bottom if len(factors) == 1 else f'({bottom})'}"
    terms: list[str] = []
    for p, c in sorted(a.items(), key=lambda t: (-sum(k for _, k in t[0]), t[1] < 0, t[0])):
        up = [_power(n, k) for n, k in p if k > 0]
        down = [_power(n, -k) for n, k in p if k < 0]
        above, under = abs(c.numerator), c.denominator
        factors = ([number(above)] if above != 1 or not up else []) + up
        below = ([number(under)] if under != 1 else []) + down
        text = "*".join(factors)
        if below:
            text += "//" + (below[0] if len(below) == 1 else f"({'*'.join(below)})")
        terms.append(("-" if c < 0 else "+" if terms else "") + text)
    return "".join(terms)


def number(n: int) -> str:
    """The text of an integer. In base 16 beyond the 4300 digits that Python writes in base 10."""
    return hex(n) if n.bit_length() > 3 * MAX_BITS else str(n)


def _power(n: str, k: int) -> str:
    return n if k == 1 else f"{n}**{k}"
