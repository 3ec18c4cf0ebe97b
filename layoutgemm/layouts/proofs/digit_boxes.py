"""Variables as mixed-radix digits, split where a formula asks for it; see `digits.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import lcm

from ...regex import regex
from ..symbols.polynomial import (
    MissingFact,
    Polynomial,
    Scalar,
    div,
    fresh_symbol,
    ge0,
    gens,
    needs_div,
    needs_ge,
    show,
    val,
)

_MARK = regex(r"'\d+")
Digit = tuple[str, int]  # variable, position of the digit


class CannotRewrite(MissingFact):
    """The rewriting of a formula cannot go on. `needs`: facts, each of which would help; () when none is known to.

    digits   the digits whose values decide how it goes on, for a proof by cases
    radix    a variable that is split across its digits, and a weight at which it can be split first
    box      the box on which the rewriting stopped; None where it was not `rewrite` that stopped
    """

    box: DigitBox | None = None

    def __init__(
        self,
        reason: str,
        needs: tuple[str, ...] = (),
        digits: Iterable[Digit] = (),
        radix: tuple[str, int] | None = None,
    ) -> None:
        super().__init__(reason, needs)
        self.digits, self.radix = tuple(sorted(digits)), radix


class SymbolMet(Exception):
    """A formula uses symbols that its prover has not seen. The evaluation starts again with them."""

    def __init__(self, met: Scalar) -> None:
        super().__init__(met)
        self.met = met


class SplitNeeded(Exception):
    """Some digit has to be split before the formula can be evaluated. The evaluation starts again after that."""

    def __init__(self, splits: list[tuple[str, Scalar]]) -> None:
        super().__init__(splits)
        self.splits = splits


class DigitBox:
    """The variables of a formula, each in 0..extent-1 and split into digits, the lowest first.

    Attributes, by variable: extents, ints or polynomials; digits, the extents of its digits; weights, what one step of
    each digit is in the variable. covers: for every over-covering split, the digit's new extent, what it rounds up
    (dividend and divisor), and the variable. read: an entry that a formula uses -> the same under the facts. Raises
    CannotRewrite for an extent that may be 0.
    """

    def __init__(self, extents: Mapping[str, Scalar], read: Callable[[Scalar], Scalar] | None = None) -> None:
        self.extents, self.read = dict(extents), read
        for v, n in self.extents.items():
            if not ge0(n - 1):
                raise CannotRewrite(f"{v} in 0..{show(n - 1)}", needs_ge(n - 1))
        self.digits: dict[str, list[Scalar]] = {v: [n] for v, n in extents.items()}
        self.weights: dict[str, list[Scalar]] = {v: [1] for v in extents}
        self.covers: list[tuple[Scalar, Scalar, Scalar, str]] = []

    def extent(self, digit: Digit) -> Scalar:
        """The number of values of the digit."""
        return self.digits[digit[0]][digit[1]]

    def weight(self, digit: Digit) -> Scalar:
        """The weight of the digit: one step of it, in its variable."""
        return self.weights[digit[0]][digit[1]]

    def split(self, name: str, at: Scalar) -> None:
        """Make `at` the weight of a digit. Raises CannotRewrite for no multiple of a weight below it."""
        digits, weights = self.digits[name], self.weights[name]
        inside: tuple[int, Scalar] | None = None  # the last digit in which `at` may lie, and how far up
        for i, (e, w) in enumerate(zip(digits, weights)):
            if w == at:
                return
            q = div(at, w)
            if q is None or not ge0(q - 1) or (q.__class__ is int and e.__class__ is int and q >= e):
                continue
            inside = i, q
            k = div(e, q)
            if k is not None:
                break
        if inside is None:
            below = next(w for w in weights if div(at, w) is None) if div(at, weights[-1]) is None else weights[-1]
            needs = distinct((*needs_div(below, at), *needs_div(at, below)))
            radices = "*".join(show(e) for e in digits)
            radix = (name, lcm(below, at)) if below.__class__ is int and at.__class__ is int else None
            raise CannotRewrite(f"{name} would be split at {show(at)}, across its digits {radices}", needs, radix=radix)
        i, q = inside
        e = digits[i]
        k = div(e, q)
        if k is None:
            # The part above is rounded up. The digits above keep their weights, so a digit may now reach past the next.
            k = -(-e // q) if q.__class__ is int and e.__class__ is int else ceiling(e, q)
            self.covers.append((k, e, q, name))
        digits[i : i + 1] = [q, k]
        weights[i + 1 : i + 1] = [at]

    def missing(self) -> tuple[str, ...]:
        """The facts under which no split would over-cover."""
        return distinct(f for _, e, q, _ in self.covers for f in needs_div(q, e))

    def values(self, env: dict[int, int]) -> dict[int, int]:
        """Sizes completed by the extents that over-covering splits round up."""
        env = dict(env)
        for k, e, q, _ in self.covers:
            if k.__class__ is Polynomial:
                env[gens(k)[0]] = -(-val(e, env) // val(q, env))
        return env


def distinct(needs: Iterable[str]) -> tuple[str, ...]:
    """The facts, each once, without those about symbols of our own."""
    # A rounded-up extent is ours, and no symbol of which the user could state a fact.
    return tuple(dict.fromkeys(f for f in needs if "'" not in f))


def unmarked(text: str) -> str:
    """A text without the marks that keep rounded-up extents apart from symbols."""
    return _MARK.sub("", text)


@lru_cache(maxsize=1 << 12)
def ceiling(e: Scalar, q: Scalar) -> Scalar:
    """ceil(e / q) as a symbol of our own."""
    # One symbol for one quotient, or two splits of equal extents would look different.
    return fresh_symbol(f"ceil({show(e)}/{show(q)})", 1)
