"""Entries to and from SymPy. Entries of layouts load it on demand (`dims.py`)."""

from __future__ import annotations

import sympy

from ...arguments import shown
from ...errors import LayoutError
from .. import registries
from .dims import declared
from .dims import symbol as entry_symbol
from .generators import GENERATORS, generator, of_terms
from .polynomial import MissingFact, Polynomial, Scalar, div, floordiv, gen, gens, needs_div


class Dim(sympy.Symbol):
    """A SymPy symbol that carries facts which SymPy's assumptions cannot: `facts` is (multiple_of, min, max).

    The facts are part of its identity, or two symbols M with different facts would be one.
    """

    __slots__ = ("facts",)
    facts: tuple[int, int | None, int | None]

    def __new__(cls, name: str, facts: tuple[int, int | None, int | None], **assumptions: object) -> Dim:
        """A new symbol; SymPy's cache would answer with another one of this name."""
        self: Dim = super().__xnew__(cls, name, **assumptions)
        self.facts = facts
        return self

    def __getnewargs_ex__(self) -> tuple[tuple[object, ...], dict[str, bool]]:
        """The arguments that make it again, for pickle."""
        return (self.name, self.facts), _assumptions(self.facts)

    def _hashable_content(self) -> tuple[object, ...]:
        return super()._hashable_content() + (str(self.facts),)


def _assumptions(facts: tuple[int, int | None, int | None]) -> dict[str, bool]:
    scale, low, _ = facts
    out = {"integer": True}
    if low is not None and low >= 1:
        out["positive"] = True
    elif low == 0:
        out["nonnegative"] = True
    if scale % 2 == 0:
        out["even"] = True
    return out


def symbol(name: str, multiple_of: int = 1, low: int | None = 1, high: int | None = None) -> sympy.Symbol:
    """The SymPy symbol for a name with these facts."""
    facts = multiple_of, low, high
    if multiple_of == 1 and high is None and low in (None, 0, 1):
        return sympy.Symbol(name, **_assumptions(facts))
    return Dim(name, facts, **_assumptions(facts))


def _root(g: int) -> tuple[str, int] | None:
    """(name, scale) when generator g is a plain symbol divided by an integer."""
    shown = GENERATORS[g].shown
    if len(shown) != 1:
        return None
    ((power, c),) = shown.items()
    if len(power) != 1 or power[0][1] != 1 or c.numerator != 1:
        return None
    return power[0][0], c.denominator


def _symbol_of(g: int, root: tuple[str, int]) -> sympy.Symbol:
    G, (name, scale) = GENERATORS[g], root
    return symbol(name, scale, None if G.low is None else G.low * scale, None if G.high is None else G.high * scale)


@registries.to_sympy.register(object)
def to_sympy(x: object) -> sympy.Expr:
    """The entry in the user's symbols."""
    if x.__class__ is not Polynomial:
        return sympy.Integer(x)
    known = {}
    for g in gens(x):
        root = _root(g)
        if root is not None:
            known[root[0]] = _symbol_of(g, root)
    out = []
    for power, c in of_terms(x.terms).items():
        factors = [sympy.Rational(c.numerator, c.denominator)]
        for name, k in power:
            if name not in known:
                known[name] = _other(name)
            factors.append(known[name] ** k)
        out.append(sympy.Mul(*factors))
    return sympy.Add(*out)


def _other(name: str) -> Scalar:
    """A name that was eliminated: with the facts it was made with."""
    if name.isidentifier():
        p = declared(name)
        gs = gens(p)
        root = _root(gs[0]) if len(gs) == 1 else None
        if root is not None:
            return _symbol_of(gs[0], root)
    return symbol(name)


# ---------------------------------------------------------------- from SymPy


@registries.from_sympy.register(object)
def from_sympy(x: object) -> Scalar:
    """The entry that a SymPy expression means."""
    top, bottom = _read(x)
    q = div(top, bottom)
    if q is None:
        raise MissingFact(f"{shown(x)} as an integer", needs_div(bottom, top))
    return q


def _read(x: sympy.Expr) -> tuple[Scalar, Scalar]:
    """Numerator and denominator as entries."""
    top: Scalar = 1
    bottom: Scalar = 1
    if x.is_Integer:
        return int(x), 1
    if x.is_Rational:
        return int(x.p), int(x.q)
    if x.is_Symbol:
        return _read_symbol(x), 1
    if x.is_Add:
        top = 0
        for y in x.args:
            t, b = _read(y)
            if b == bottom:
                top = top + t
            else:
                top, bottom = top * b + t * bottom, bottom * b
        return top, bottom
    if x.is_Mul:
        for y in x.args:
            t, b = _read(y)
            top, bottom = top * t, bottom * b
        return top, bottom
    if x.is_Pow and x.exp.is_Integer:
        t, b = _read(x.base)
        n = int(x.exp)
        return (t**n, b**n) if n >= 0 else (b**-n, t**-n)
    if isinstance(x, (sympy.floor, sympy.ceiling)):
        t, b = _read(x.args[0])
        up = isinstance(x, sympy.ceiling)
        q = floordiv(-t if up else t, b)
        if q is None:
            raise MissingFact(f"{shown(x)} as an entry", needs_div(b, t))
        return (-q if up else q), 1
    if isinstance(x, sympy.Mod):
        t, b = from_sympy(x.args[0]), from_sympy(x.args[1])
        return t % b, 1
    raise LayoutError(f"{shown(x)} ({type(x).__name__}) is no integer expression in + - * / floor, ceiling and Mod")


def _read_symbol(x: sympy.Symbol) -> Scalar:
    if isinstance(x, Dim):
        return entry_symbol(x.name, *x.facts)
    if x.__class__ is not sympy.Symbol:
        raise LayoutError(
            f"{shown(x)} is a {type(x).__name__} of SymPy, and two of one name differ; entries know a symbol by its "
            f"name: make it a Symbol"
        )
    if not x.is_integer:
        raise LayoutError(
            f"the SymPy symbol {shown(x)} is not known to be an integer: "
            f"make it Symbol({shown(x.name)}, integer=True, ...)"
        )
    low = 1 if x.is_positive else 0 if x.is_nonnegative else None
    if not x.name.isidentifier():
        _check_kept(x, low, None, 1)
        return gen(generator(x.name, low, None))
    high = -1 if x.is_negative else 0 if x.is_nonpositive else None
    scale = 2 if x.is_even else 1
    _check_kept(x, low, high, scale)
    return entry_symbol(x.name, scale, low, high)


def _check_kept(x: sympy.Symbol, low: int | None, high: int | None, scale: int) -> None:
    """Raise LayoutError for an assumption that an entry does not keep: a counterexample might break it."""
    kept = {"integer": True, "even": True if scale == 2 else None}
    kept["positive" if low == 1 else "nonnegative"] = True if low is not None else None
    kept["negative" if high == -1 else "nonpositive"] = True if high is not None else None
    held = sympy.Symbol(x.name, **kept).assumptions0
    lost = {name: value for name, value in x.assumptions0.items() if held.get(name) != value}
    if lost:
        odd = f"; state odd as Facts('2 | {x.name}+1')" if lost.get("odd") else ""
        named = ", ".join(f"{name}={value}" for name, value in sorted(lost.items()))
        raise LayoutError(
            f"the SymPy symbol {shown(x)} has the assumptions {named}, which an entry does not keep (integer, even and "
            f"a sign are kept), so a counterexample might break them: make it without{odd}"
        )
