"""The conditions of a result: the facts that the decisions behind it used.

Operations on symbolic layouts ask their questions through `quotient`, `rounded_up` and `holds`. Where the answer is yes
only because of a fact, and not for all positive integers, that fact is written down; the layout that comes out lists
it in `conditions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .generators import GENERATORS, Coefficient, Shown, is_integral, of_terms
from .generators import show as show_names
from .polynomial import Polynomial, Scalar, div, floordiv, ge0, needs_ge, show

_used: ContextVar[list[str] | None] = ContextVar("used", default=None)


@contextmanager
def recording() -> Iterator[list[str]]:
    """The list of the conditions used inside, in order, each once."""
    used: list[str] = []
    token = _used.set(used)
    try:
        yield used
    finally:
        _used.reset(token)
        used[:] = strongest(used)
        outer = _used.get()
        if outer is not None:
            for text in used:
                if text not in outer:
                    outer.append(text)


def mark() -> int:
    """A point to go back to when an attempt fails."""
    used = _used.get()
    return 0 if used is None else len(used)


def back_to(point: int) -> None:
    """Forget the conditions that a failed attempt used."""
    used = _used.get()
    if used is not None:
        del used[point:]


def strongest(texts: Iterable[str]) -> list[str]:
    """Each condition once, and of several lower bounds on one thing the largest."""
    out: dict[str, str] = {}
    for text in texts:
        left, op, right = text.partition(" >= ")
        if not (op and right.lstrip("-").isdigit()):
            out[text] = text
        elif left not in out or int(out[left].rpartition(" ")[2]) < int(right):
            out[left] = text
    return list(out.values())


def _use(text: str) -> None:
    used = _used.get()
    if used is not None and text not in used:
        used.append(text)


def quotient(p: Scalar, q: Scalar) -> Scalar | None:
    """The exact quotient p/q, or None."""
    out = div(p, q)
    if out.__class__ is Polynomial and not is_integral(of_terms(out.terms)):
        _use_division(q, p, out)
    return out


def rounded_up(p: Scalar, q: Scalar) -> Scalar | None:
    """ceil(p / q) where the facts make it an entry, or None."""
    if p.__class__ is int and q.__class__ is int:
        return -(-p // q)
    exact = quotient(p, q)
    if exact is not None:
        return exact
    out = floordiv(-p, q)
    if out is None:
        return None
    _use(f"ceil_div({show(p)},{show(q)}) = {show(-out)}")
    return -out


def rounded_down(p: Scalar, q: Scalar) -> Scalar | None:
    """floor(p / q) where the facts make it an entry, or None."""
    if p.__class__ is int and q.__class__ is int:
        return p // q
    exact = quotient(p, q)
    if exact is not None:
        return exact
    out = floordiv(p, q)
    if out is not None:
        rest = p - out * q
        holds(rest, q - 1)
    return out


def holds(p: Scalar, q: Scalar) -> bool:
    """True if p <= q at every value."""
    if p.__class__ is int and q.__class__ is int:
        return bool(p <= q)
    difference = q - p
    if not ge0(difference):
        return False
    if difference.__class__ is Polynomial and not _for_all_positive(of_terms(difference.terms)):
        for text in needs_ge(difference)[:1]:
            _use(text)
    return True


def _use_division(q: Scalar, p: Scalar, out: Polynomial) -> None:
    """The divisibility behind a quotient: of the symbols whose part in it is a fraction."""
    for m in out.terms:
        names = []
        scale: Coefficient = 1
        for g in m:
            shown = GENERATORS[g].shown
            if not is_integral(shown):
                names.append(g)
                if len(shown) == 1:
                    scale *= next(iter(shown.values()))
        if len(m) == len(out.terms) == 1 or not names:
            break
        if len(names) == 1:
            c = out.terms[m] * scale
            shown = GENERATORS[names[0]].shown
            if len(shown) == 1:
                ((power, _),) = shown.items()
                if all(k > 0 for _, k in power):
                    if c.denominator > 1:
                        _use(f"{c.denominator} | {show_names({power: 1})}")
                    continue
        break
    else:
        return
    text = of_terms(out.terms)
    if len(text) == 1:
        ((power, c),) = text.items()
        below = [(n, -k) for n, k in power if k < 0]
        up = [(n, k) for n, k in power if k > 0]
        divisor: Shown = {tuple(below): c.denominator}
        _use(f"{show_names(divisor)} | {show_names({tuple(up): 1})}")
        return
    _use(f"{show(q)} | {show(p)}")


def _for_all_positive(a: Shown) -> bool:
    """True if the polynomial is >= 0 for all names >= 1, and needs no fact."""
    if not all(k > 0 for p in a for _, k in p):
        return False
    out: dict[tuple[str, ...], Coefficient] = {}
    for power, c in a.items():
        terms: dict[tuple[str, ...], Coefficient] = {(): c}
        for n, k in power:
            for _ in range(k):
                nxt: dict[tuple[str, ...], Coefficient] = {}
                for t, v in terms.items():
                    up = tuple(sorted((*t, n)))
                    nxt[up] = nxt.get(up, 0) + v
                    nxt[t] = nxt.get(t, 0) + v
                terms = nxt
        for t, v in terms.items():
            out[t] = out.get(t, 0) + v
    return all(v >= 0 for v in out.values())
