"""The facts that would decide a question, as texts in the user's symbols that `Facts` accepts."""

from __future__ import annotations

from math import gcd
from typing import Any

from .generators import GENERATORS, inverse, is_integral, of_terms
from .generators import show as show_names
from .polynomial import P, div, ge0, make, show


def parenthesised(p: Any) -> str:
    """The text of an entry as a factor."""
    text = show(p)
    return f"({text})" if any(c in text for c in "+-*/") else text


def needs_div(d: Any, p: Any) -> tuple[str, ...]:
    """The facts, each of which would make `d` divide `p`, in the user's symbols; () when none would."""
    if div(p, d) is not None:
        return ()
    if p.__class__ is not P:
        return ()  # `M | 8` is no substitution but four cases: nothing that a fact could say
    d, p = _cancel(d, p)
    if p.__class__ is not P:
        return ()
    if d.__class__ is int:
        d = abs(d)
        rest = make({m: c % d for m, c in p.terms.items() if c % d})
        if rest.__class__ is not P or rest.terms.get((), 0) % gcd(d, *[c for m, c in rest.terms.items() if m]):
            return ()  # never a multiple
        if len(rest.terms) == 1:
            ((m, c),) = rest.terms.items()
            k = d // gcd(c, d)
            return tuple(dict.fromkeys([_divides(k, g) for g in m]))
        return (f"{d} | {show(rest)}",)
    if p.__class__ is P and len(p.terms) == 1 and len(d.terms) == 1:
        ((m, c),) = p.terms.items()
        return tuple(dict.fromkeys([f"{show(d)} | {show(make({(g,): 1}))}" for g in m]))
    return (f"{show(d)} | {show(p)}",)


def _divides(k: int, g: int) -> str:
    """`k` divides generator `g`, said of the user's symbol where the generator is a multiple of it."""
    shown = GENERATORS[g].shown
    inv = inverse(shown)
    if inv is not None:
        ((power, scale),) = inv.items()
        if scale.denominator == 1 and all(e < 0 for _, e in power) is bool(power):
            return f"{k * scale.numerator} | {show_names({tuple((n, -e) for n, e in power): 1 + scale * 0})}"
    return f"{k} | {show(make({(g,): 1}))}"


def _cancel(d: Any, p: Any) -> tuple[Any, Any]:
    """d and p without the integer and the generators that are factors of every term of both."""
    terms = [*(d.terms if d.__class__ is P else {(): d}).items(), *p.terms.items()]
    k = gcd(*[c for _, c in terms])
    common = list(terms[0][0])
    for m, _ in terms[1:]:
        left = list(m)
        common = [g for g in common if g in left and (left.remove(g) or True)]  # type: ignore[func-returns-value]
    factor = make({tuple(common): k})
    return div(d, factor), div(p, factor)


def needs_ge(p: Any) -> tuple[str, ...]:
    """The fact that would make p >= 0, solved for the symbol where p is linear in one: `M >= 21`."""
    if p.__class__ is not P or ge0(-p - 1):
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


__all__ = ["needs_div", "needs_ge", "parenthesised"]
