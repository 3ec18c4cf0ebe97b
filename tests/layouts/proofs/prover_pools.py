"""Parts of random statements about layouts: symbols with facts, and layouts as texts.

An entry is a text, which means a symbol's polynomial to a prover and an int to the check of its answer.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from layoutgemm import Layout, Swizzle
from layoutgemm.layouts.symbols.dims import dim
from layoutgemm.layouts.symbols.facts import Facts

TOP = 6  # sizes tried for a proof: symbols up to this above their least value
LARGE = 1 << 17  # elements that a check looks at
Env = dict[str, int]
Mode = tuple[list[str], str]  # factors of the extent, the fastest first, and the stride of the first


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@lru_cache(maxsize=1 << 14)
def _code(text: str) -> Any:
    return compile(text.replace(" = ", " == "), text, "eval")


def number(text: str, env: Env, **variables: Any) -> Any:
    """The text with numbers for its symbols."""
    return eval(_code(text), {"ceil_div": ceil_div}, {**env, **variables})


@lru_cache(maxsize=1 << 14)
def times(*texts: str) -> str:
    """The product."""
    return "*".join(t if t.isalnum() else f"({t})" for t in texts if t != "1") or "1"


# Symbols and facts ----------------------------------------------------------------------------------------------------


class Pool:
    """Symbols with their facts, the texts of extents and strides, and all small sizes."""

    def __init__(
        self, names: dict[str, dict[str, Any]], facts: tuple[str, ...], factors: list[str], strides: list[str], top: int
    ) -> None:
        self.names, self.facts, self.factors, self.strides = names, facts, factors, strides
        self.raw = {n: dim(n, **kw) for n, kw in names.items()}
        # Texts such as K//BK mean something only under the facts; the others may come before these.
        self.late = bool(facts) and not any("//" in t for t in (*factors, *strides))
        given = Facts(*facts)
        on = given.on(tuple(self.raw.values()))
        self.under = {n: on(p) for n, p in self.raw.items()}
        self.top = top

    @cached_property
    def envs(self) -> list[Env]:
        """All small sizes for which the facts hold; there are some."""
        found = sorted(self._all(self.top), key=lambda e: (sum(e.values()), *e.values()))
        assert found, self.facts
        return found

    def _all(self, top: int) -> Iterator[Env]:
        ranges = []
        for kw in self.names.values():
            low, step = kw.get("min", 1), kw.get("multiple_of", 1)
            high = kw.get("max") or low + top * step
            ranges.append([x for x in range(low, high + 1) if x % step == 0])
        for values in itertools.product(*ranges):
            env = dict(zip(self.names, values))
            if self.holds(env):
                yield env

    def holds(self, env: Env) -> bool:
        """True if the facts hold at these sizes."""
        for n, kw in self.names.items():
            x = env[n]
            if x < kw.get("min", 1) or x % kw.get("multiple_of", 1) or x > (kw.get("max") or x):
                return False
        return all(_true(fact, env) for fact in self.facts)


def _true(fact: str, env: Env) -> bool:
    d, bar, x = fact.partition(" | ")
    return number(f"({x}) % ({d}) == 0" if bar else fact, env)


POOLS = {
    "numbers": Pool({}, (), ["2", "3", "4", "5"], ["7"], 0),
    "free": Pool({"M": {}, "N": {}, "K": {}}, (), ["M", "N", "K", "2", "3", "4"], ["M", "N", "K"], 6),
    "multiples": Pool(
        {"M": {"multiple_of": 4}, "N": {"multiple_of": 2}, "K": {"min": 3}},
        (),
        ["4", "M//4", "2", "N//2", "K", "M", "3"],
        ["M", "M//2", "N", "K"],
        5,
    ),
    "bounded": Pool(
        {"b": {"max": 2}, "c": {"max": 3}, "N": {}}, (), ["b", "c", "N", "2", "2*c"], ["b", "b*b", "c", "3*b-2", "N"], 9
    ),
    "cases": Pool({"b": {"max": 3}, "c": {"min": 2, "max": 4}}, (), ["b", "c", "2", "4"], ["b", "c", "b*c", "b*b"], 0),
    "pitch": Pool({"M": {}, "ld": {}, "N": {}}, ("ld >= M",), ["M", "N", "2", "ld"], ["ld", "ld+1", "ld-M+1", "M"], 6),
    "ragged": Pool(
        {"M": {}, "T": {}, "N": {"max": 3}}, ("T = ceil_div(M, 4)",), ["4", "T", "M", "N"], ["4*T", "M", "T"], 12
    ),
    "tiles": Pool(
        {"K": {}, "BK": {}, "T": {}}, ("T = ceil_div(K, BK)",), ["BK", "T", "K", "2"], ["BK*T", "K", "BK"], 12
    ),
    "split": Pool(
        {"K": {}, "BK": {}, "ld": {}}, ("BK | K", "ld >= K"), ["BK", "K//BK", "K", "4"], ["ld", "K", "BK", "2*ld"], 7
    ),
    "equal": Pool({"M": {}, "N": {}}, ("M == 2*N", "M >= 4"), ["2", "N", "M", "3"], ["M", "N", "4*N"], 14),
    "64": Pool(
        {"M": {}, "T": {}, "ld": {}},
        ("T = ceil_div(M, 64)", "ld >= M"),
        ["64", "T", "M", "2"],
        ["ld", "64*T", "M", "ld-M+1"],
        70,
    ),
}
RELATIONS = [n for n, p in POOLS.items() if p.facts]


# Layouts as texts -----------------------------------------------------------------------------------------------------


class Text(NamedTuple):
    """A layout as texts, and the bits, base and shift of a swizzle over it."""

    shape: Any
    stride: Any
    swizzle: tuple[int, int, int] | None = None

    def leaves(self) -> list[tuple[str, str]]:
        return list(zip(_flat(self.shape), _flat(self.stride)))

    def object(self, symbols: dict[str, Any]) -> Any:
        """The layout that the provers get."""
        layout = Layout(_mapped(self.shape, symbols), _mapped(self.stride, symbols))
        return layout if self.swizzle is None else Swizzle(*self.swizzle) @ layout

    def size(self, env: Env) -> int:
        return number(times(*_flat(self.shape)), env)

    def values(self, env: Env, first: int, last: int) -> Any:
        """The offsets of the flat indices first..last-1."""
        x = np.arange(first, last)
        total = np.zeros(last - first, dtype=np.int64)
        for s, d in self.leaves():
            n = number(s, env)
            total, x = total + x % n * number(d, env), x // n
        if self.swizzle is not None:
            b, m, s = self.swizzle
            bits = ((1 << b) - 1) << m
            total = total ^ ((total >> s) & bits if s > 0 else (total & bits) << -s)
        return total


@lru_cache(maxsize=1 << 12)
def _flat(x: Any) -> list[str]:
    return [z for y in x for z in _flat(y)] if isinstance(x, tuple) else [x]


def _mapped(x: Any, symbols: dict[str, Any]) -> Any:
    return tuple([_mapped(y, symbols) for y in x]) if isinstance(x, tuple) else number(x, symbols)


def blocks(rng: random.Random, pool: Pool, ordered: bool = False) -> list[Mode]:
    """Modes with factored extents. `ordered`: every stride is past the span of the modes before it."""
    out: list[Mode] = []
    end = "1"
    most = 2 if pool.facts else 3  # K = BK*T - s: ten factors K would be thousands of terms
    for _ in range(rng.randint(1, 3)):
        factors = [rng.choice(pool.factors) for _ in range(rng.randint(1, most))]
        stride = end
        if rng.random() < (0.3 if ordered else 0.15):
            stride = times(end, rng.choice([*pool.strides, "2"])) if ordered else rng.choice([*pool.strides, "0", "5"])
        out.append((factors, stride))
        end = times(stride if ordered else end, *factors)
    return out


def view(rng: random.Random, pool: Pool, modes: list[Mode]) -> tuple[Any, Any]:
    """A grouping of the factors into modes, with extents of 1 and nesting: always the same function."""
    S: list[Any] = []
    D: list[Any] = []
    for factors, stride in modes:
        at = 0
        while at < len(factors):
            if rng.random() < 0.15:
                S.append("1")
                D.append(rng.choice([*pool.strides, "0", "7"]))
            take = rng.randint(1, len(factors) - at)
            S.append(times(*factors[at : at + take]))
            D.append(times(stride, *factors[:at]))
            at += take
    if len(S) == 1:
        return (S[0], D[0]) if rng.random() < 0.5 else (tuple(S), tuple(D))
    if len(S) > 2 and rng.random() < 0.4:
        k = rng.randint(1, len(S) - 1)
        return (tuple(S[:k]), *S[k:]), (tuple(D[:k]), *D[k:])
    return tuple(S), tuple(D)


def mutated(rng: random.Random, pool: Pool, modes: list[Mode]) -> list[Mode]:
    """Nearly the same modes."""
    out = [(list(f), d) for f, d in modes]
    i = rng.randrange(len(out))
    factors, stride = out[i]
    kind = rng.randrange(6)
    if kind == 0:
        out[i] = factors, rng.choice([f"{stride}+1", times(stride, "2"), *pool.strides])
    elif kind == 1:
        factors[rng.randrange(len(factors))] = rng.choice(pool.factors)
    elif kind == 2:
        j = rng.randrange(len(out))
        out[i], out[j] = (factors, out[j][1]), (out[j][0], stride)
    elif kind == 3:
        rng.shuffle(out)
    elif kind == 4 and len(factors) > 1:
        # The same extents, the strides of two parts exchanged.
        k = rng.randint(1, len(factors) - 1)
        out[i : i + 1] = [(factors[:k], times(stride, *factors[k:])), (factors[k:], stride)]
    else:
        factors.insert(rng.randrange(len(factors) + 1), rng.choice(pool.factors))
    return out
