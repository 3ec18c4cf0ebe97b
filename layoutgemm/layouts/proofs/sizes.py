"""Numbers in place of symbols. Layouts at one size, the sizes at which counterexamples are sought, how they read."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from ..basis import ScaledBasis
from ..int_tuple import Stride
from ..layout import Layout
from ..symbols.facts import Facts
from ..symbols.generators import GENERATORS, Coefficient, Shown, inverse
from ..symbols.generators import show as show_names
from ..symbols.polynomial import Scalar, val, valuations
from .verdicts import Answer, CounterExample

Look = Callable[[dict[int, int]], Answer | None]  # the answer at one size
CASES = 4096  # values of bounded symbols that are taken one by one
TRIES = 1000  # sizes at which a counterexample is looked for
DOUBLINGS = 40  # of a size that grows from its least value


def candidates(gs: list[int]) -> Iterator[dict[int, int]]:
    """Small sizes in order of growing total: candidates for a counterexample, never for a proof."""
    return itertools.islice(valuations(gs, 12 if len(gs) <= 3 else 6), TRIES)


def refuting(gs: list[int], look: Look) -> tuple[CounterExample, dict[int, int]] | None:
    """A counterexample and its sizes. Small sizes by growing total, then sizes that double, then random ones.

    `look` answers at one size; None says nothing.
    """
    for env in candidates(gs):
        found = look(env)
        if isinstance(found, CounterExample):
            return found, env
    beyond = grown(gs, look)
    if beyond is not None:
        return beyond
    for env in _scattered(gs):
        found = look(env)
        if isinstance(found, CounterExample):
            return found, env
    return None


def grown(gs: list[int], look: Look) -> tuple[CounterExample, dict[int, int]] | None:
    """A counterexample at sizes of which one doubles, or all. Then each is as small as leaves one.

    Constants matter where a size passes them: in (M,N):(1,5000) two elements meet from M = 5001 on.
    """
    for k in range(1, DOUBLINGS + 1):
        for large in [[g] for g in gs] + ([gs] if len(gs) > 1 else []):
            env = {g: _away(g, (1 << k) - 1 if g in large else 1) for g in gs}
            found = look(env)
            if isinstance(found, CounterExample):
                return _shrunk(found, env, look)
    return None


def _away(g: int, by: int) -> int:
    """The least value of a generator (0 if none), moved `by` within its bounds."""
    low, high = GENERATORS[g].low, GENERATORS[g].high
    if low is None:
        return by if high is None else high - by
    return low + by if high is None else min(low + by, high)


def _shrunk(found: CounterExample, env: dict[int, int], look: Look) -> tuple[CounterExample, dict[int, int]]:
    """The counterexample at smaller sizes, found by bisection of one after the other."""
    before: dict[int, int] = {}
    while env != before:
        before = env
        for g in env:
            least = GENERATORS[g].low
            low = env[g] if least is None else least - 1  # no counterexample there
            while env[g] - low > 1:
                tried = {**env, g: (low + env[g]) // 2}
                smaller = look(tried)
                if isinstance(smaller, CounterExample):
                    found, env = smaller, tried
                else:
                    low = tried[g]
    return found, env


def _scattered(gs: list[int]) -> Iterator[dict[int, int]]:
    """Larger sizes at random, the same ones every time."""
    rng = random.Random(0)
    for k in range(200 if gs else 0):
        env = {}
        for g in gs:
            G = GENERATORS[g]
            low = G.low if G.low is not None else (G.high if G.high is not None else 0) - 10 * (k + 1)
            env[g] = rng.randint(low, low + 10 * (k + 1) if G.high is None else min(G.high, low + 10 * (k + 1)))
        yield env


def cases_of(bounded: list[int]) -> list[dict[int, int]] | None:
    """All values of the bounded generators, or None when they are too many."""
    ranges = []
    total = 1
    for g in bounded:
        G = GENERATORS[g]
        assert G.low is not None and G.high is not None
        ranges.append(range(G.low, G.high + 1))
        total *= len(ranges[-1])
    return [dict(zip(bounded, v)) for v in itertools.product(*ranges)] if total <= CASES else None


def at(x: object, env: dict[int, int]) -> Any:
    """A layout or entry at the values of the generators."""
    if hasattr(x, "with_parts"):
        return x.with_parts(lambda y: at(y, env))
    if x.__class__ is tuple:
        return tuple([at(y, env) for y in x])
    if isinstance(x, Layout):
        return Layout(replaced(lambda y: val(y, env), x.shape), replaced(lambda y: val(y, env), x.stride))
    return val(x, env)


def plain(x: object) -> Any:
    """A layout without symbols as one of the plain class."""
    return Layout._new(x.shape, x.stride) if isinstance(x, Layout) else x


def replaced(f: Callable[[Scalar], Scalar], x: Any) -> Any:
    """The tuple with `f` applied to every entry, basis elements' values included."""
    if x.__class__ is tuple:
        return tuple([replaced(f, y) for y in x])
    if x.__class__ is ScaledBasis:
        return f(x.value) * ScaledBasis(1, x.path)
    return f(x)


def entries_of(x: Any) -> tuple[Stride, ...]:
    """The parts of a layout, or the entry itself."""
    if hasattr(x, "with_parts"):
        return (x.offset, *entries_of(x.layout))
    return (x.shape, x.stride) if hasattr(x, "stride") else (x,)


def sizes(env: dict[int, int], facts: Facts | None = None) -> dict[str, int]:
    """The values of the user's symbols from those of the generators, eliminated symbols included."""
    out: dict[str, int] = dict(facts.values(env)) if facts is not None else {}
    todo = list(env)
    while todo:
        left = []
        for g in todo:
            if not _solve(GENERATORS[g].shown, env[g], out):
                left.append(g)
        if len(left) == len(todo) and not _solve_together(left, env, out):
            # Part of an expression whose other symbols do not occur: say it as it is.
            for g in left:
                out[show_names(GENERATORS[g].shown)] = env[g]
            break
        todo = left
    return dict(sorted(out.items()))


def _solve(shown: Shown, value: int, known: dict[str, int]) -> bool:
    """Find the one name of `shown` that is not known; True when nothing is left to find."""
    if len(shown) == 1:
        ((power, c),) = shown.items()
        if len(power) == 1 and power[0][1] == 1 and c.numerator == 1:
            known.setdefault(power[0][0], value * c.denominator)
            return True
    unknown = {n for power in shown for n, _ in power if n not in known}
    if not unknown:
        return True
    if len(unknown) > 1:
        return False
    (name,) = unknown
    with_name = {p: c for p, c in shown.items() if any(n == name for n, _ in p)}
    if len(with_name) != 1:
        return False
    ((power, c),) = with_name.items()
    if dict(power)[name] != 1:
        return False
    rest: Coefficient = value
    for p, k in shown.items():
        if p != power:
            rest -= _value({p: k}, known)
    factor = inverse({tuple([(n, k) for n, k in power if n != name]): c})
    assert factor is not None
    rest = rest * _value(factor, known)
    known[name] = int(rest)
    return True


def _solve_together(gs: list[int], env: dict[int, int], known: dict[str, int]) -> bool:
    """Find names that several expressions fix together, where they are linear; True when one was found."""
    rows: list[dict[str, Coefficient]] = []  # name -> coefficient; "" -> the right side
    for g in gs:
        row: dict[str, Coefficient] = {"": env[g]}
        for power, c in GENERATORS[g].shown.items():
            names = [n for n, k in power if n not in known for _ in range(max(k, 2 * (k < 0)))]
            if len(names) > 1:
                return False
            part = _value({tuple([(n, k) for n, k in power if n in known]): c}, known)
            name = names[0] if names else ""
            row[name] = row.get(name, 0) + (part if names else -part)
        for before in rows:
            pivot = next(n for n in before if n)
            if row.get(pivot):
                factor = Fraction(row[pivot]) / before[pivot]
                row = {n: row.get(n, 0) - factor * before.get(n, 0) for n in {**row, **before}}
        row = {n: c for n, c in row.items() if c or not n}
        if len(row) > 1:
            rows.append(row)
    for row in rows:
        if len(row) == 2:
            name = next(n for n in row if n)
            known[name] = int(Fraction(row[""]) / row[name])
            return True
    return False


def _value(shown: Shown, known: dict[str, int]) -> Coefficient:
    total: Coefficient = 0
    for power, c in shown.items():
        for n, k in power:
            c = c * known[n] ** k if k > 0 else Fraction(c) / known[n] ** -k
        total += c
    return total
