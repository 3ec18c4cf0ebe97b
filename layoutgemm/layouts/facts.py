"""Facts about symbols: divisibility, bounds and equalities, each solved for one symbol and substituted.

After that only free generators with integer bounds are left, so every question about a layout is polynomial arithmetic
(`poly.py`), and a fact can neither be forgotten nor applied twice:

    64 | M                  M = 64*m
    8 | M - 3               M = 8*m + 3
    M >= 128, M <= 4096     bounds of M
    ld >= M                 ld = M + p, p >= 0
    M == 2*N                M replaced by 2*N
    BK | K                  K = BK*q
    T = ceil_div(M, 64)     M = 64*T - s, 0 <= s <= 63
    T = ceil_div(K, BK)     K = BK*T - s and BK = s + 1 + e, s >= 0, e >= 0
    q = M // 64             M = 64*q + r, 0 <= r <= 63

A substitution is made only when the new generators, within their bounds, give exactly the values that the fact allows.
What cannot be written so is refused by name: `64 | M*N`, `M*N < 2**31`, and two bounds that would shape one symbol at
once. Facts that contradict each other are refused too: under them everything would be provable.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from fractions import Fraction
from math import gcd
from typing import Any

from .generators import GENERATORS, FactError, Shown, generator, inverse, name, of_terms, plus, show as show_names, times
from .poly import MissingFact, P, Relation, div, floordiv, ge0, gen, gens, make, show, substitute, val
from .symbolic import declared, entry


class Facts:
    """A set of facts, frozen; calling it on an entry, a tuple of entries or a layout applies them.

    Facts are texts or relations: `Facts("64 | M", "T = ceil_div(K, BK)", ld >= M)`, about the symbols of these names in
    whatever they are applied to. `given` extends them, as a new value. `facts["M"]` is the symbol M, as last made with
    `dim` or else a new one >= 1, under the facts. Raises FactError for a fact that contradicts the others or is not
    solvable for one symbol.

    >>> from layoutgemm.layouts.symbolic import dim
    >>> M, N = dim("M"), dim("N")
    >>> M // 64
    Traceback (most recent call last):
        ...
    layoutgemm.layouts.poly.MissingFact: M // 64: needs 64 | M or M <= 63
    >>> given = Facts("64 | M")
    >>> given(M) // 64, given.given("N >= M")(N - M)
    (M//64, N-M)
    """

    __slots__ = ("_known", "_mapping", "_symbols", "statements")
    statements: tuple[str, ...]

    def __init__(self, *facts: Any) -> None:
        self._state((), {}, {}, {})
        self._add(facts)

    def given(self, *facts: Any) -> Facts:
        """These facts and more."""
        out = object.__new__(Facts)
        out._state(self.statements, dict(self._mapping), dict(self._symbols), dict(self._known))
        out._add(facts)
        return out

    def __and__(self, other: Any) -> Facts:
        return self.given(*other.statements) if isinstance(other, Facts) else self.given(other)

    def __call__(self, *objects: Any) -> Any:
        """The entries, tuples or layouts under the facts; several at once come back as a tuple, under one reading."""
        on = self.on(*objects)
        out = tuple([on._apply(x) for x in objects])
        return out[0] if len(objects) == 1 else out

    def on(self, *objects: Any) -> Facts:
        """The same facts about the very symbols that occur in the objects, whatever else had these names."""
        found: set[int] = set()
        for x in objects:
            _collect(x, found)
        bindings = {}
        for g in found:
            symbol = GENERATORS[g].symbol
            if g not in self._mapping and symbol in self._known and g not in self._known[symbol]:
                bindings[symbol] = _root(g)
        if not bindings:
            return self
        out = object.__new__(Facts)
        out._state((), {}, {**self._symbols, **bindings}, {})
        out._add(self.statements)
        return out

    def _apply(self, x: Any) -> Any:
        if x.__class__ is int:
            return x
        if x.__class__ is P:
            return substitute(x, self._mapping)
        if isinstance(x, (tuple, list)):
            return tuple([self._apply(y) for y in x])
        mapped = getattr(x, "_map_entries", None)
        return self._apply(entry(x)) if mapped is None else mapped(self._apply)

    def __getitem__(self, symbol: str) -> Any:
        return self(self._symbols[symbol] if symbol in self._symbols else declared(symbol))

    def values(self, env: dict[int, int]) -> dict[str, int]:
        """The values of the symbols that the facts speak of, eliminated ones included, from those of the generators."""
        return {n: val(self(p), env) for n, p in self._symbols.items() if set(gens(self(p))) <= set(env)}

    def symbols(self) -> dict[str, Any]:
        """The symbols that the facts speak of, under the facts."""
        return {n: self(p) for n, p in self._symbols.items()}

    def __repr__(self) -> str:
        return f"Facts({', '.join(map(repr, self.statements))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Facts) and self._mapping == other._mapping and self.symbols() == other.symbols()

    def __hash__(self) -> int:
        return hash(frozenset(self._mapping.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        parts = [(GENERATORS[g].key, v) for g, v in self._mapping.items()]
        return _restore, (self.statements, parts, self._symbols)

    def __setattr__(self, attribute: str, value: Any) -> None:
        raise AttributeError("Facts are frozen: given() makes a new value")

    # ------------------------------------------------------------ inside

    def _state(self, statements: tuple[str, ...], mapping: Any, symbols: Any, known: Any) -> None:
        for attribute, value in zip(("statements", "_mapping", "_symbols", "_known"), (statements, mapping, symbols, known)):
            object.__setattr__(self, attribute, value)

    def _add(self, facts: tuple[Any, ...]) -> None:
        for fact in facts:
            if isinstance(fact, Facts):
                self._add(fact.statements)
                continue
            for text, apply in _statements(fact, self):
                before = dict(self._mapping)
                try:
                    apply(_Solver(self))
                except FactError as error:
                    self._state(self.statements, before, self._symbols, self._known)
                    raise FactError(f"cannot take `{text}` as a fact: {error}") from None
                if text not in self.statements:
                    object.__setattr__(self, "statements", (*self.statements, text))
        known: dict[str, set[int]] = {}
        for g in [*self._mapping, *gens(*self._mapping.values(), *self._symbols.values())]:
            known.setdefault(GENERATORS[g].symbol, set()).add(g)
        object.__setattr__(self, "_known", known)

    def _symbol(self, symbol: str) -> Any:
        """The symbol of a name in a fact, remembered."""
        if symbol not in self._symbols:
            self._symbols[symbol] = declared(symbol)
        return self._symbols[symbol]


def _restore(statements: tuple[str, ...], parts: Any, symbols: Any) -> Facts:
    from .generators import restore

    out = object.__new__(Facts)
    out._state(statements, {restore(k): v for k, v in parts}, symbols, {})
    out._add(())
    return out


class _Solver:
    """Solves facts one after the other, writing substitutions into the mapping of `facts`."""

    def __init__(self, facts: Facts) -> None:
        self.mapping = facts._mapping

    def now(self, x: Any) -> Any:
        return substitute(x, self.mapping)

    def set(self, g: int, value: Any) -> None:
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

    def divides(self, d: Any, x: Any) -> None:
        d, x = self.now(d), self.now(x)
        if d.__class__ is int and d == 0:
            raise FactError("0 divides nothing but 0")
        if div(x, d) is not None:
            return
        if x.__class__ is int:
            if d.__class__ is int:
                raise FactError(f"{d} does not divide {x}")
            raise FactError(f"a divisor of {x} is one of finitely many cases, no substitution")
        if d.__class__ is int:
            self._int_divides(abs(d), x)
        else:
            self._symbol_divides(d, x)

    def _int_divides(self, d: int, x: P) -> None:
        rest = {m: c % d for m, c in x.terms.items() if c % d}
        if set(rest) == {()}:
            raise FactError(f"{show(x)} is never a multiple of {d}: the rest is {rest[()]}")
        g = _only_generator(rest)
        if g is None:
            raise FactError(f"{show(make(rest))} has more than one symbol to solve for; state what divides each of them")
        c, k = rest.get((g,), 0), rest.get((), 0)
        common = gcd(c, d)
        if k % common:
            raise FactError(f"{show(x)} is never a multiple of {d}, since {common} divides all of it but {k}")
        step = d // common
        start = (-k // common) * pow(c // common, -1, step) % step
        G = GENERATORS[g]
        low = None if G.low is None else -(-(G.low - start) // step)
        high = None if G.high is None else (G.high - start) // step
        shown = times(plus(G.shown, {(): Fraction(start)}, -1), {(): Fraction(1, step)})
        self.set(g, gen(generator(G.symbol, low, high, shown)) * step + start)

    def _symbol_divides(self, d: P, x: P) -> None:
        rest = {m: c for m, c in x.terms.items() if div(make({m: c}), d) is None}
        g = _only_generator(rest)
        if g is None or rest != {(g,): 1} or g in gens(d):
            raise FactError(f"{show(make(rest))} is no single symbol that could be replaced by {show(d)} times another")
        G = GENERATORS[g]
        if G.low not in (None, 0, 1) or G.high is not None or not ge0(d - 1):
            raise FactError(
                f"{G!r} has a bound of its own, or {show(d)} may be 0 or negative: the multiples within the bounds are "
                f"not a symbol with integer bounds"
            )
        inv = inverse(of_terms(d.terms))
        shown = name(f"({show_names(G.shown)}//{_parenthesised(d)})") if inv is None else times(G.shown, inv)
        self.set(g, d * gen(generator(G.symbol, G.low, None, shown)))

    # ------------------------------------------------------------ p >= 0, p == 0

    def nonnegative(self, p: Any) -> None:
        p = self.now(p)
        if ge0(p):
            return
        if ge0(-p - 1):
            raise FactError(f"the other facts make it false: {show(p)} >= 0")
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
                shown = plus(G.shown, of_terms(_terms(base)), -1)
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

    def zero(self, p: Any) -> None:
        p = self.now(p)
        if p.__class__ is int:
            if p:
                raise FactError(f"the other facts make the two sides differ by {p}")
            return
        if ge0(p - 1) or ge0(-p - 1):
            raise FactError(f"the other facts make it false: {show(p)} is never 0")
        content = gcd(*[c for m, c in p.terms.items() if m])
        if p.terms.get((), 0) % content:
            raise FactError(f"{show(p)} is never 0: {content} divides all of it but {p.terms[()]}")
        p = div(p, content)
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

    def quotient(self, x: Any, d: Any, up: bool, mine: int | None) -> Any:
        """ceil(x / d) (`up`) or floor(x / d) as an entry: generator `mine` if that has the right bounds, or a new one."""
        x, d = self.now(x), self.now(d)
        q = floordiv(-x, d) if up else floordiv(x, d)
        if q is not None:
            return -q if up else q
        text = f"ceil_div({show(x)},{show(d)})" if up else f"{_parenthesised(x)}//{_parenthesised(d)}"
        if not ge0(d - 1):
            raise FactError(f"{show(d)} may be 0 or negative")
        rest = {m: c for m, c in _terms(x).items() if div(make({m: c}), d) is None}
        whole = div(x - make(dict(rest)), d)
        g = _only_generator(rest)
        if g is None or rest.get((g,)) != 1 or g in gens(d):
            raise FactError(f"{show(x)} divided by {show(d)} is not solvable for one symbol")
        y = make(dict(rest))
        G, k = GENERATORS[g], rest.get((), 0)
        low = None if G.low is None else G.low + k
        high = None if G.high is None else G.high + k
        shown = name(text if x == y else f"ceil_div({show(y)},{show(d)})" if up else f"{_parenthesised(y)}//{_parenthesised(d)}")
        if d.__class__ is int:
            # The values low..high of y must be whole rows of d, or bounds on quotient and remainder would not do.
            if not ((low is None or (low - up) % d == 0) and (high is None or (high + 1 - up) % d == 0)):
                raise FactError(
                    f"{show(y)} is in {'' if low is None else low}..{'' if high is None else high}; "
                    f"{'ceil_div' if up else '//'} by {d} makes bounds of these only when the lower is {up + 0} and the "
                    f"upper {(d - 1 + up) % d} modulo {d}"
                    + (f", for instance {show(y)} >= {-(-(low - up) // d) * d + up}" if low is not None else "")
                )
            t_low = None if low is None else (low - up) // d + up
            t_high = None if high is None else (high - up) // d + up
            t, shown = _quotient_generator(mine, t_low, t_high, shown)
            r_shown = plus(times({(): Fraction(d)}, shown), of_terms(_terms(y)), -1)
            r = gen(generator(G.symbol, 0, d - 1, r_shown if up else _negated(r_shown)))
        else:
            b = _only_generator(d.terms)
            if b is None or d.terms != {(b,): 1} or GENERATORS[b].low != 1 or GENERATORS[b].high is not None or k:
                raise FactError(f"the divisor {show(d)} is no symbol whose only bound is >= 1")
            if G.low != up or G.high is not None:
                raise FactError(f"{G!r}: the only bound of {show(y)} must be >= {up + 0}")
            t, shown = _quotient_generator(mine, up + 0, None, shown)
            r_shown = plus(times(of_terms(d.terms), shown), of_terms(_terms(y)), -1)
            r_shown = r_shown if up else _negated(r_shown)
            r = gen(generator(G.symbol, 0, None, r_shown))
            e_shown = plus(plus(GENERATORS[b].shown, {(): Fraction(1)}, -1), r_shown, -1)
            self.set(b, r + 1 + gen(generator(GENERATORS[b].symbol, 0, None, e_shown)))
            d = self.now(d)
        self.set(g, (d * t - r if up else d * t + r) - k)
        return self.now(whole) + t

    def define(self, symbol: str, x: Any, d: Any, up: bool, facts: Facts) -> None:
        """`symbol` = ceil or floor of x / d."""
        known = facts._symbols.get(symbol)
        if known is None:
            known = facts._symbols[symbol] = declared(symbol)
        mine = self.now(known)
        # A symbol without other facts can be the new generator itself.
        plain = mine.__class__ is P and len(mine.terms) == 1 and next(iter(mine.terms.values())) == 1
        free = plain and GENERATORS[gens(mine)[0]].shown == name(symbol) and gens(mine)[0] not in gens(self.now(x), self.now(d))
        t = self.quotient(x, d, up, gens(mine)[0] if free else None)
        if t != self.now(mine):
            self.zero(mine - t)


def _quotient_generator(mine: int | None, low: int | None, high: int | None, shown: Shown) -> tuple[Any, Shown]:
    if mine is not None and (GENERATORS[mine].low, GENERATORS[mine].high) == (low, high):
        return gen(mine), GENERATORS[mine].shown
    return gen(generator(show_names(shown), low, high, shown)), shown


def _negated(a: Shown) -> Shown:
    return {k: -c for k, c in a.items()}


def _terms(p: Any) -> dict[Any, int]:
    return p.terms if p.__class__ is P else {(): p} if p else {}


def _parenthesised(p: Any) -> str:
    text = show(p)
    return f"({text})" if any(c in text for c in "+-*/") else text


def _only_generator(terms: dict[Any, int]) -> int | None:
    """g when the terms are c*g + k with c != 0, else None."""
    found = [m for m in terms if m]
    return found[0][0] if len(found) == 1 and len(found[0]) == 1 else None


def _linear(p: P, coefficient: Callable[[int], Any]) -> list[int]:
    """The generators that occur in one term only, alone, with a coefficient that fits; the latest first."""
    counts: dict[int, int] = {}
    for m in p.terms:
        for g in m:
            counts[g] = counts.get(g, 0) + 1
    return sorted([g for g, n in counts.items() if n == 1 and coefficient(p.terms.get((g,), 0))], reverse=True)


def _primitive(p: P) -> Any:
    """p >= 0 with the common factor of all terms but the constant divided out."""
    content = gcd(*[c for m, c in p.terms.items() if m])
    k = p.terms.get((), 0)
    return div(p - k, content) + k // content


# ---------------------------------------------------------------- reading facts

_OPS = {ast.GtE: ">=", ast.Gt: ">", ast.LtE: "<=", ast.Lt: "<"}
Statement = tuple[str, Callable[[_Solver], None]]


def _statements(fact: Any, facts: Facts) -> list[Statement]:
    """The facts that one argument states, each with its text."""
    if isinstance(fact, Relation):
        for g in gens(fact.left, fact.right):
            facts._symbols.setdefault(GENERATORS[g].symbol, _root(g))
        return [(repr(fact), lambda solver: solver.nonnegative(fact.nonnegative()))]
    if fact is True:
        return []
    if not isinstance(fact, str):
        raise FactError(f"a fact is a text such as '64 | M' or a relation such as ld >= M, not {fact!r}")
    text = fact.strip()
    try:
        tree = ast.parse(text.replace("==", "=").replace("=", "==").replace("<==", "<=").replace(">==", ">="), mode="eval")
    except SyntaxError:
        raise FactError(f"cannot read the fact `{fact}`: write it as 64 | M, ld >= M, M == N or T = ceil_div(M, 64)") from None
    return _read(tree.body, facts)


def _collect(x: Any, found: set[int]) -> None:
    """Add the generators of an entry, tuple or layout."""
    if x.__class__ is P:
        found.update(gens(x))
    elif isinstance(x, (tuple, list)):
        for y in x:
            _collect(y, found)
    elif x.__class__ is not int:
        mapped = getattr(x, "_map_entries", None)
        if mapped is not None:
            mapped(lambda y: (_collect(y, found), y)[1])
        else:
            _collect(entry(x), found)


def _root(g: int) -> Any:
    """The user's symbol that generator g is a part of. Raises FactError when more than g is needed to tell."""
    G = GENERATORS[g]
    constant = G.shown.get((), Fraction(0))
    rest = {k: c for k, c in G.shown.items() if k}
    if list(rest) == [((G.symbol, 1),)]:
        scale = 1 / rest[((G.symbol, 1),)]
        if scale.denominator == 1 and (constant * scale).denominator == 1:
            return make({(g,): 1}) * int(scale) - int(constant * scale)
    raise FactError(
        f"{G.symbol} stands here only in {show_names(G.shown)}, from other facts; give all facts about it at once"
    )


def _read(node: ast.expr, facts: Facts) -> list[Statement]:
    if isinstance(node, ast.Tuple):
        return [s for x in node.elts for s in _read(x, facts)]
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return [s for x in node.values for s in _read(x, facts)]
    text = ast.unparse(node).replace("==", "=") if _is_definition(node) else ast.unparse(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        d, x = _value(node.left, facts), _value(node.right, facts)
        return [(text, lambda solver: solver.divides(d, x))]
    if isinstance(node, ast.Compare):
        out: list[Statement] = []
        left = node.left
        for op, right in zip(node.ops, node.comparators):
            out.append((text, _comparison(left, op, right, facts, text)))
            left = right
        return out
    raise FactError(f"`{text}` is no fact: write it as 64 | M, ld >= M, M == N or T = ceil_div(M, 64)")


def _quotient(node: ast.expr) -> tuple[ast.expr, ast.expr, bool] | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ceil_div" and len(node.args) == 2:
        return node.args[0], node.args[1], True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        return node.left, node.right, False
    return None


def _is_definition(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Compare)
        and len(node.ops) == 1
        and isinstance(node.ops[0], ast.Eq)
        and isinstance(node.left, ast.Name)
        and _quotient(node.comparators[0]) is not None
    )


def _comparison(left: ast.expr, op: ast.cmpop, right: ast.expr, facts: Facts, text: str) -> Callable[[_Solver], None]:
    if isinstance(op, ast.Eq):
        for a, b in ((left, right), (right, left)):
            q = _quotient(b)
            if q is not None and isinstance(a, ast.Name):
                x, d, up = _value(q[0], facts), _value(q[1], facts), q[2]
                symbol = a.id
                return lambda solver: solver.define(symbol, x, d, up, facts)
            if isinstance(b, ast.BinOp) and isinstance(b.op, ast.Mod):
                value, divisor, r = _value(b.left, facts), _value(b.right, facts), _value(a, facts)
                if not (ge0(r) and ge0(divisor - 1 - r)):
                    raise FactError(f"cannot take `{text}` as a fact: {show(r)} is not provably in 0..{show(divisor - 1)}")
                return lambda solver: solver.divides(divisor, value - r)
        p = _value(left, facts) - _value(right, facts)
        return lambda solver: solver.zero(p)
    if type(op) not in _OPS:
        raise FactError(f"`{text}` is no fact that could be used: only |, ==, <, <=, > and >= are")
    relation = Relation(_value(left, facts), _OPS[type(op)], _value(right, facts))
    return lambda solver: solver.nonnegative(relation.nonnegative())


def _value(node: ast.expr, facts: Facts) -> Any:
    """The entry that an expression means; its symbols are looked up by name."""
    from .symbolic import evaluate

    try:
        return evaluate(node, lambda n: facts._symbol(n))
    except MissingFact as error:
        raise FactError(f"cannot read `{ast.unparse(node)}` in a fact: {error}") from None


__all__ = ["FactError", "Facts"]
