"""Facts about symbols: divisibility, bounds and equalities, each solved for one symbol and substituted.

After that only free generators with integer bounds are left, so every question about a layout is polynomial arithmetic
(`polynomial.py`), and a fact can neither be forgotten nor applied twice:

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
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from ...arguments import refusal, shown
from ...errors import ParseError
from .. import registries
from ..int_tuple import as_nested
from .dims import entry, evaluate, expression, is_ceil_div
from .dims import symbol as plain_symbol
from .generators import GENERATORS, FactError, Key, restore
from .generators import show as show_names
from .polynomial import MissingFact, Polynomial, Relation, Scalar, ge0, gens, make, show, substitute, val
from .solver import Solver


class Facts:
    """A set of facts, frozen. Calling it on an entry, a tuple of entries or a layout applies them.

    Facts are texts or relations: `Facts("64 | M", "T = ceil_div(K, BK)", ld >= M)`, about the symbols of these names in
    the objects that they are applied to. `given` extends them, as a new value. `facts["M"]` is a symbol M >= 1 under
    the facts, which is also what the facts are checked against when stated. Raises FactError for a fact that
    contradicts the others or is not solvable for one symbol.

    >>> from layoutgemm.layouts.symbols.dims import dim
    >>> M, N = dim("M"), dim("N")
    >>> M // 64
    Traceback (most recent call last):
        ...
    layoutgemm.layouts.symbols.polynomial.MissingFact: M // 64: needs 64 | M or M <= 63
    >>> given = Facts("64 | M")
    >>> given(M) // 64, given.given("N >= M")(N - M)
    (M//64, N-M)
    """

    __slots__ = ("_known", "_mapping", "_symbols", "statements")
    statements: tuple[str, ...]
    _mapping: dict[int, Scalar]  # a generator -> what it was replaced by
    _symbols: dict[str, Scalar]  # the symbols that the facts speak of, before any fact
    _known: dict[str, set[int]]  # the generators that stand for a symbol, before or after

    def __init__(self, *facts: object) -> None:
        self._state((), {}, {}, {})
        self._add(facts)

    def given(self, *facts: object) -> Facts:
        """These facts and more."""
        out = object.__new__(Facts)
        out._state(self.statements, dict(self._mapping), dict(self._symbols), dict(self._known))
        out._add(facts)
        return out

    def __and__(self, other: object) -> Facts:
        return self.given(*other.statements) if isinstance(other, Facts) else self.given(other)

    def __call__(self, *objects: object) -> Any:
        """The entries, tuples or layouts under the facts. Several at once come back as a tuple, under one reading."""
        objects = tuple([_bounded(x) for x in objects])
        on = self.on(*objects)
        out = tuple([on._apply(x) for x in objects])
        return out[0] if len(objects) == 1 else out

    def on(self, *objects: object) -> Facts:
        """The same facts about the very symbols that occur in the objects."""
        found: set[int] = set()
        for x in objects:
            _collect(_bounded(x), found)
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
        if x.__class__ is Polynomial:
            return substitute(x, self._mapping)
        if isinstance(x, (tuple, list)):
            return tuple([self._apply(y) for y in x])
        if hasattr(x, "with_parts"):
            return x.with_parts(self._apply)
        if hasattr(x, "stride"):
            return registries.applied(x, self._apply)
        if hasattr(x, "path"):
            return x if x.value.__class__ is int else type(x)(self._apply(x.value), x.path)
        return self._apply(entry(x))

    def __getitem__(self, symbol: str) -> Scalar:
        if not isinstance(symbol, str) or not symbol.isidentifier():
            raise FactError(refusal(symbol, "the name of a symbol", "an identifier such as M"))
        return self(self._symbols[symbol] if symbol in self._symbols else plain_symbol(symbol))

    def values(self, env: dict[int, int]) -> dict[str, int]:
        """The values of the facts' symbols, eliminated ones included, from those of the generators."""
        return {n: val(self(p), env) for n, p in self._symbols.items() if set(gens(self(p))) <= set(env)}

    def symbols(self) -> dict[str, Scalar]:
        """The symbols that the facts speak of, under the facts."""
        return {n: self(p) for n, p in self._symbols.items()}

    def __repr__(self) -> str:
        return f"Facts({', '.join(map(repr, self.statements))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Facts) and self.symbols() == other.symbols()

    def __hash__(self) -> int:
        return hash(frozenset(self.symbols().items()))

    def __reduce__(self) -> tuple[object, ...]:
        parts = [(GENERATORS[g].key, v) for g, v in self._mapping.items()]
        return _restore, (self.statements, parts, self._symbols)

    def __setattr__(self, attribute: str, value: Scalar) -> None:
        raise AttributeError("Facts are frozen: given() makes a new value")

    # ------------------------------------------------------------ inside

    def _state(self, statements: tuple[str, ...], mapping: object, symbols: object, known: object) -> None:
        for attribute, value in zip(
            ("statements", "_mapping", "_symbols", "_known"), (statements, mapping, symbols, known)
        ):
            object.__setattr__(self, attribute, value)

    def _add(self, facts: tuple[object, ...]) -> None:
        for fact in facts:
            if isinstance(fact, Facts):
                self._add(fact.statements)
                continue
            for text, apply in _statements(fact, self):
                before = dict(self._mapping)
                try:
                    apply(Solver(self._mapping))
                except FactError as error:
                    self._state(self.statements, before, self._symbols, self._known)
                    raise FactError(f"cannot take `{text}` as a fact: {error}") from None
                if text not in self.statements:
                    object.__setattr__(self, "statements", (*self.statements, text))
        known: dict[str, set[int]] = {}
        for g in [*self._mapping, *gens(*self._mapping.values(), *self._symbols.values())]:
            known.setdefault(GENERATORS[g].symbol, set()).add(g)
        object.__setattr__(self, "_known", known)

    def _symbol(self, symbol: str) -> Scalar:
        """The symbol of a name in a fact, remembered."""
        if symbol not in self._symbols:
            self._symbols[symbol] = plain_symbol(symbol)
        return self._symbols[symbol]


def _restore(statements: tuple[str, ...], parts: Iterable[tuple[Key, Scalar]], symbols: object) -> Facts:
    out = object.__new__(Facts)
    out._state(statements, {restore(k): v for k, v in parts}, symbols, {})
    out._add(())
    return out


# ---------------------------------------------------------------- reading facts

_OPS = {ast.GtE: ">=", ast.Gt: ">", ast.LtE: "<=", ast.Lt: "<"}
Statement = tuple[str, Callable[[Solver], None]]


def _statements(fact: object, facts: Facts) -> list[Statement]:
    """The facts that one argument states, each with its text."""
    if isinstance(fact, Relation):
        for g in gens(fact.left, fact.right):
            facts._symbols.setdefault(GENERATORS[g].symbol, _root(g))
        return [(repr(fact), lambda solver: solver.nonnegative(fact.nonnegative()))]
    if fact is True:
        return []
    if not isinstance(fact, str):
        raise FactError(f"a fact is a text such as '64 | M' or a relation such as ld >= M, not {shown(fact)}")
    text = fact.strip()
    text = text.replace("==", "=").replace("=", "==").replace("<==", "<=").replace(">==", ">=")
    try:
        tree = expression(text, "no fact")
    except ParseError as error:
        said = fact if len(fact) <= 60 else f"{fact[:57]}..."
        raise FactError(
            f"cannot read the fact `{said}` ({error.reason.rpartition('` is ')[2]}): "
            "write it as 64 | M, ld >= M, M == N or T = ceil_div(M, 64)"
        ) from None
    return _read(tree, facts)


def as_facts(given: object) -> Facts:
    """A caller's facts: a Facts, one fact, or a tuple of them."""
    if isinstance(given, Facts):
        return given
    return Facts(*given) if isinstance(given, (tuple, list)) else Facts(given)


def _bounded(x: object) -> Any:
    return as_nested(x, "a tuple under facts", lambda y, _: y) if isinstance(x, (tuple, list)) else x


def _collect(x: Any, found: set[int]) -> None:
    """Add the generators of an entry, tuple or layout."""
    if x.__class__ is Polynomial:
        found.update(gens(x))
    elif isinstance(x, (tuple, list)):
        for y in x:
            _collect(y, found)
    elif hasattr(x, "with_parts"):
        _collect((x.offset, x.layout), found)
    elif hasattr(x, "stride"):
        _collect((x.shape, x.stride), found)
    elif hasattr(x, "path"):
        _collect(x.value, found)
    elif x.__class__ is not int:
        _collect(entry(x), found)


def _root(g: int) -> Scalar:
    """The user's symbol that generator g is a part of. Raises FactError when more than g is needed to tell."""
    G = GENERATORS[g]
    constant = G.shown.get((), 0)
    rest = {k: c for k, c in G.shown.items() if k}
    if list(rest) == [((G.symbol, 1),)]:
        scale = Fraction(1) / rest[((G.symbol, 1),)]
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
    if is_ceil_div(node):
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


def _comparison(left: ast.expr, op: ast.cmpop, right: ast.expr, facts: Facts, text: str) -> Callable[[Solver], None]:
    if isinstance(op, ast.Eq):
        for a, b in ((left, right), (right, left)):
            q = _quotient(b)
            if q is not None and isinstance(a, ast.Name):
                x, d, up = _value(q[0], facts), _value(q[1], facts), q[2]
                symbol = a.id
                return lambda solver: solver.define(facts._symbol(symbol), x, d, up)
            if isinstance(b, ast.BinOp) and isinstance(b.op, ast.Mod):
                value, divisor, r = _value(b.left, facts), _value(b.right, facts), _value(a, facts)
                if not (ge0(r) and ge0(divisor - 1 - r)):
                    raise FactError(
                        f"cannot take `{text}` as a fact: {show(r)} is not provably in 0..{show(divisor - 1)}"
                    )
                return lambda solver: solver.divides(divisor, value - r)
        p = _value(left, facts) - _value(right, facts)
        return lambda solver: solver.zero(p)
    if type(op) not in _OPS:
        raise FactError(f"`{text}` is no fact that could be used: only |, ==, <, <=, > and >= are")
    relation = Relation(_value(left, facts), _OPS[type(op)], _value(right, facts))
    return lambda solver: solver.nonnegative(relation.nonnegative())


def _value(node: ast.expr, facts: Facts) -> Scalar:
    """The entry that an expression means; its symbols are looked up by name."""
    try:
        return evaluate(node, lambda n: facts._symbol(n))
    except MissingFact as error:
        raise FactError(f"cannot read `{ast.unparse(node)}` in a fact: {error}") from None
