"""Random statements about layouts: the provers' answers against enumeration.

    python tests/layouts/proofs/prover_fuzz.py --count 100000 [--seed S] [--family NAME ...]

Half of the statements are true by construction: two layouts are different groupings of the same factors, or strides
are chosen to step over what lies below. The others are mutations of these, which may be true or false. Sizes are
numbers, free symbols, bounded symbols, and symbols under relations (ld >= M, T = ceil_div(M, 64)).

Every answer is checked with Python's own arithmetic and not the library's: an entry is a text, which means a symbol's
polynomial to the prover and an int to the check. A Proof must hold at all small sizes that the facts allow (the facts
are evaluated too), a CounterExample must be one at its sizes and the first one, nothing may raise. Undecided is never
wrong, and counted.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from layoutgemm import CounterExample, Proof
from layoutgemm.layouts import Undecided
from layoutgemm.layouts.proofs.index_formulas import prove_formulas
from layoutgemm.layouts.proofs.prove import bijective, covers, disjoint, injective, prove
from tests.layouts.proofs.prover_pools import (
    LARGE,
    POOLS,
    RELATIONS,
    Env,
    Mode,
    Pool,
    Text,
    _flat,
    _mapped,
    blocks,
    mutated,
    number,
    times,
    view,
)

# Statements and their checks ------------------------------------------------------------------------------------------


class Statement(NamedTuple):
    """One question: how it reads, whether it is true by construction, its answer, and the check of an answer.

    `holds(env)` is the truth at one size; `refuted(env, answer)` whether a counterexample is right there.
    """

    text: str
    true: bool
    ask: Callable[[], Any]
    holds: Callable[[Env], bool]
    refuted: Callable[[Env, CounterExample], bool]
    pool: Pool
    size: Callable[[Env], int]


def _symbols(rng: random.Random, pool: Pool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The symbols of a statement and what is handed over as `given`: facts before, or with the question."""
    if pool.late and rng.random() < 0.5:
        return pool.raw, {"given": pool.facts}
    return pool.under, {}


def equal(rng: random.Random, pool: Pool) -> Statement:
    """Two plain layouts."""
    modes = blocks(rng, pool)
    true = rng.random() < 0.5
    return _pair(rng, pool, true, Text(*view(rng, pool, modes)), _other(rng, pool, modes, true))


def _other(rng: random.Random, pool: Pool, modes: list[Mode], true: bool) -> Text:
    return Text(*view(rng, pool, modes if true else mutated(rng, pool, modes)))


def _pair(rng: random.Random, pool: Pool, true: bool, a: Text, b: Text) -> Statement:
    symbols, given = _symbols(rng, pool)

    def holds(env: Env) -> bool:
        n = a.size(env)
        return n == b.size(env) and bool((a.values(env, 0, n) == b.values(env, 0, n)).all())

    def refuted(env: Env, answer: CounterExample) -> bool:
        i = answer.index
        assert i is not None
        m, n = a.size(env), b.size(env)
        start = max(0, i - LARGE)
        last = min(i, m, n)
        same = (a.values(env, start, last) == b.values(env, start, last)).all()
        left = int(a.values(env, i, i + 1)[0]) if i < m else None
        right = int(b.values(env, i, i + 1)[0]) if i < n else None
        shape = _mapped((a if i < m else b).shape, env)
        where = _place(answer.coord, shape) == i
        return bool(same) and left != right and (answer.left, answer.right) == (left, right) and where

    def ask() -> Any:
        x, y = a.object(symbols), b.object(symbols)
        return prove(x, y, **given) if given or rng.random() < 0.5 else x.equivalent(y)

    text = f"prove({a}, {b}) under {pool.facts}, given {given}"
    return Statement(text, true, ask, holds, refuted, pool, lambda env: max(a.size(env), b.size(env)))


def _place(coord: Any, shape: Any) -> int:
    """The flat index of a coordinate; -1 when it is outside."""
    if not isinstance(coord, tuple):
        return coord if 0 <= coord < prod(_flat(shape) if isinstance(shape, tuple) else [shape]) else -1
    total, w = 0, 1
    for c, s in zip(coord, shape, strict=True):
        i = _place(c, s)
        if i < 0:
            return -1
        total += w * i
        w *= prod(_flat(s)) if isinstance(s, tuple) else s
    return total


SWIZZLES = [(1, 4, 3), (2, 4, 3), (3, 4, 3), (3, 3, 3), (2, 3, 3), (1, 0, 2), (2, 2, -2), (3, 3, -3), (1, 2, 1)]


def swizzled(rng: random.Random, pool: Pool) -> Statement:
    """Two layouts under XOR swizzles: static ones of powers of two mostly, some with symbols or other extents."""
    powers = Pool.__new__(Pool)
    powers.__dict__.update(pool.__dict__)
    powers.factors = ["2", "4", "8", "2", "4", "8", *(pool.factors if rng.random() < 0.5 else [])]
    powers.strides = ["64", "8", "16", "128"]
    modes = blocks(rng, powers)
    if rng.random() < 0.3:
        modes.insert(0, (["8", "8"], "1"))
        modes[1:] = [(f, times(d, "64")) for f, d in modes[1:]]
    true = rng.random() < 0.5
    sw = rng.choice(SWIZZLES)
    a = Text(*view(rng, powers, modes), sw)
    changed = true or rng.random() < 0.5
    b = Text(*view(rng, powers, modes if changed else mutated(rng, powers, modes)), sw)
    if not true and rng.random() < 0.6:
        b = b._replace(swizzle=rng.choice([*SWIZZLES, None]))
    return _pair(rng, pool, true, a, b)


def formula(rng: random.Random, pool: Pool) -> Statement:
    """Closed forms of the flat index, in // and %, under a XOR now and then."""
    modes = blocks(rng, pool)
    true = rng.random() < 0.5
    a, b = Text(*view(rng, pool, modes)), _other(rng, pool, modes, true)
    symbols = pool.under
    xor = rng.choice([None, None, "({}) ^ 5", "({0}) ^ (({0}) // 8 % 2 * 2)"])
    texts = [closed_form(t, rng) for t in (a, b)]
    if xor is not None:
        texts = [xor.format(t) for t in texts]
    size = times(*[s for s, _ in a.leaves()])

    def values(text: str, env: Env, first: int, last: int) -> Any:
        return number(text, env, x=np.arange(first, last)) + np.zeros(last - first, int)

    def holds(env: Env) -> bool:
        n = number(size, env)
        return bool((values(texts[0], env, 0, n) == values(texts[1], env, 0, n)).all())

    def refuted(env: Env, answer: CounterExample) -> bool:
        i = answer.index
        if i is None or i >= number(size, env):
            return False
        p, q = (values(t, env, max(0, i - LARGE), i + 1) for t in texts)
        return bool((p[:-1] == q[:-1]).all()) and p[-1] != q[-1] and (answer.left, answer.right) == (p[-1], q[-1])

    def ask() -> Any:
        f, g = (lambda x, t=t: number(t, symbols, x=x) for t in texts)
        return prove_formulas(f, g, {"x": number(size, symbols)})

    text = f"prove_formulas({texts[0]!r}, {texts[1]!r}, x={size}) under {pool.facts}"
    return Statement(text, true, ask, holds, refuted, pool, lambda env: number(size, env))


def closed_form(t: Text, rng: random.Random) -> str:
    """The offset of flat index x."""
    parts = []
    w = "1"
    leaves = t.leaves()
    for i, (s, d) in enumerate(leaves):
        digit = "x" if w == "1" else f"x // ({w})"
        if i < len(leaves) - 1 or rng.random() < 0.3:
            digit = f"{digit} % ({s})"
        parts.append(f"({digit}) * ({d})")
        w = times(w, s)
    rng.shuffle(parts)
    return " + ".join(parts)


def one_layout(statement: str) -> Callable[[random.Random, Pool], Statement]:
    def make(rng: random.Random, pool: Pool) -> Statement:
        true = rng.random() < 0.5
        modes = blocks(rng, pool, ordered=True)
        if statement != "injective":
            modes, end = [], "1"
            for _ in range(rng.randint(1, 3)):
                modes.append(([rng.choice(pool.factors) for _ in range(rng.randint(1, 2))], end))
                end = times(end, *modes[-1][0])
        rng.shuffle(modes)
        size = times(*[f for factors, _ in modes for f in factors])
        # Most single changes leave strides that step over what lies below, so make two.
        a = Text(*view(rng, pool, modes if true else mutated(rng, pool, mutated(rng, pool, modes))))
        symbols, given = _symbols(rng, pool)

        def holds(env: Env) -> bool:
            x = a.values(env, 0, a.size(env))
            if statement == "covers":
                return bool(np.isin(np.arange(number(size, env)), x).all())
            ok = len(np.unique(x)) == len(x)
            return ok and (statement == "injective" or (int(x.min()), int(x.max())) == (0, len(x) - 1))

        def refuted(env: Env, answer: CounterExample) -> bool:
            x = a.values(env, 0, a.size(env)).tolist()
            if statement == "covers":
                met = set(x)
                missing = [i for i in range(number(size, env)) if i not in met]
                return bool(missing) and answer.coord == missing[0]
            if statement == "injective":
                i, j = answer.coord
                return i < j and x[i] == x[j] == answer.left == answer.right and len(set(x[:j])) == j
            return sorted(x) != list(range(len(x)))

        def ask() -> Any:
            layout = a.object(symbols)
            if statement == "covers":
                return covers(layout, number(size, symbols), **given)
            return (injective if statement == "injective" else bijective)(layout, **given)

        text = f"{statement}({a}{', ' + size if statement == 'covers' else ''}) under {pool.facts}, given {given}"
        return Statement(text, true, ask, holds, refuted, pool, lambda env: max(a.size(env), number(size, env)))

    return make


def apart(rng: random.Random, pool: Pool) -> Statement:
    """Two layouts whose values do not meet: interleaved, one after the other, or mutated."""
    true = rng.random() < 0.5
    modes = blocks(rng, pool, ordered=True)
    factors, stride = modes[-1]
    gap = times(stride, *factors)  # past the end of all modes
    if rng.random() < 0.5:
        copies, shift = modes, gap
    else:
        width = stride
        copies = modes = [*modes[:-1], (factors, times(stride, "2"))]
        shift = width
    a = Text(*view(rng, pool, modes))
    b = Text(*view(rng, pool, copies if true else mutated(rng, pool, copies)))
    if not true and rng.random() < 0.5:
        shift = rng.choice([f"{shift}-1", *pool.strides, "0"])
    if rng.random() < 0.5:  # the same the other way round: the first one lies above
        a, b, shift = b, a, f"0-({shift})"
    symbols, given = _symbols(rng, pool)

    def holds(env: Env) -> bool:
        x, y = a.values(env, 0, a.size(env)), b.values(env, 0, b.size(env)) + number(shift, env)
        return len(np.intersect1d(x, y)) == 0

    def refuted(env: Env, answer: CounterExample) -> bool:
        i, j = answer.coord
        if not (0 <= i < a.size(env) and 0 <= j < b.size(env)):
            return False
        x = int(a.values(env, i, i + 1)[0])
        y = int(b.values(env, j, j + 1)[0]) + number(shift, env)
        return x == y == answer.left == answer.right

    def ask() -> Any:
        return disjoint(a.object(symbols), b.object(symbols), number(shift, symbols), **given)

    text = f"disjoint({a}, {b}, {shift}) under {pool.facts}, given {given}"
    return Statement(text, true, ask, holds, refuted, pool, lambda env: max(a.size(env), b.size(env)))


FAMILIES: dict[str, tuple[Callable[[random.Random, Pool], Statement], list[str]]] = {
    "integers": (equal, ["numbers"]),
    "symbols": (equal, ["free", "multiples"]),
    "bounded": (equal, ["bounded", "cases"]),
    "relations": (equal, RELATIONS),
    "swizzled": (swizzled, ["numbers", "numbers", "free", "multiples"]),
    "formulas": (formula, ["numbers", *[n for n in POOLS if n != "numbers"]]),
    "injective": (one_layout("injective"), list(POOLS)),
    "bijective": (one_layout("bijective"), list(POOLS)),
    "covers": (one_layout("covers"), list(POOLS)),
    "disjoint": (apart, list(POOLS)),
}


# Running --------------------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """Answers by kind, split by whether the statement was true by construction; and what was wrong."""

    counts: Counter[tuple[str, bool]]
    wrong: list[str]


def sizes_of(answer: CounterExample, pool: Pool) -> Iterator[Env]:
    """The sizes that a counterexample names; where it names expressions, the sizes at which these have those values."""
    named = dict(answer.sizes)
    if not named and " at " in answer.statement:
        pairs = [p.split("=") for p in answer.statement.partition(" at ")[2].split(", ") if "=" in p]
        named = {n: int(v) for n, v in pairs}
    if set(named) >= set(pool.names):
        yield {n: named[n] for n in pool.names}
        return
    if set(named) <= set(pool.names):
        # The others do not matter to the objects: any value that the facts allow.
        rest = [n for n in pool.names if n not in named]
        top = 50 if len(rest) <= 2 else 16
        values = sorted({*range(1, top), *[k * v + i for v in named.values() for k in (1, 2, 64) for i in (0, 1)]})
        for choice in itertools.product(values, repeat=len(rest)):
            env = {**dict(zip(rest, choice)), **named}
            if pool.holds(env):
                yield {n: env[n] for n in pool.names}
        return
    near = sorted({1, *named.values(), *[64 * v for v in named.values()]})
    values = sorted({*near, *[v + w for v in near for w in near]})
    far = (dict(zip(pool.names, choice)) for choice in itertools.product(values, repeat=len(pool.names)))
    for env in itertools.chain(pool.envs, filter(pool.holds, far)):
        if all(number(text, env) == value for text, value in named.items()):
            yield env


def judge(rng: random.Random, s: Statement, answer: Any) -> str | None:
    """The fault of an answer, or None."""
    if isinstance(answer, Undecided):
        return None if answer.why else "no reason"
    if isinstance(answer, Proof):
        envs = s.pool.envs
        for env in envs[:6] + rng.sample(envs, min(6, len(envs))):
            if s.size(env) <= 4000 and not s.holds(env):
                return f"proven, and false at {env}"
        return None
    if not isinstance(answer, CounterExample):
        return "no answer"
    tried = 0
    for env in itertools.islice(sizes_of(answer, s.pool), 50):
        if not s.pool.holds(env):
            return f"sizes {env} that the facts exclude"
        tried += 1
        if s.refuted(env, answer):
            return None
    return "no counterexample at its sizes" if tried else "sizes that mean nothing"


def run(family: str, count: int, seed: int = 0) -> Result:
    """Puts `count` random statements of a family to the provers and judges the answers."""
    make, pools = FAMILIES[family]
    rng = random.Random(f"{family} {seed}")
    counts: Counter[tuple[str, bool]] = Counter()
    wrong: list[str] = []
    for _ in range(count):
        s = make(rng, POOLS[rng.choice(pools)])
        try:
            answer = s.ask()
        except Exception as error:  # a prover answers, or it is wrong
            answer = f"raised {type(error).__name__}: {error}"
        bad = judge(rng, s, answer) if not isinstance(answer, str) else answer
        if bad is None and s.true and isinstance(answer, CounterExample):
            bad = "refuted, and true by construction"
        counts[type(answer).__name__ if bad is None else "wrong", s.true] += 1
        if bad is not None:
            wrong.append(f"{bad}\n    {s.text}\n    {answer}")
    return Result(counts, wrong)


KINDS = ("Proof", "CounterExample", "Undecided", "wrong")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=10000, help="statements over all families")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", action="append", choices=list(FAMILIES))
    args = parser.parse_args()
    families = args.family or list(FAMILIES)
    total: Counter[tuple[str, bool]] = Counter()
    wrong: list[str] = []
    start = time.perf_counter()
    print(f"{'family':12}{'statements':>11}" + "".join(f"{k:>16}" for k in KINDS) + "   seconds", flush=True)
    for i, family in enumerate(families):
        count = args.count // len(families) + (i < args.count % len(families))
        counts: Counter[tuple[str, bool]] = Counter()
        begin = time.perf_counter()
        for part, first in enumerate(range(0, count, 1000)):
            result = run(family, min(1000, count - first), seed=args.seed * 1_000_003 + part)
            counts += result.counts
            for text in result.wrong[:3]:
                print(f"WRONG in {family}: {text}", flush=True)
            wrong += result.wrong
            if sys.stderr.isatty() or part % 5 == 4:
                print(f"  {family}: {first + 1000} of {count}", file=sys.stderr, flush=True)
        total += counts
        print(row(family, counts) + f"{time.perf_counter() - begin:10.1f}", flush=True)
    print(row("all", total) + f"{time.perf_counter() - start:10.1f}")
    print("(in brackets: of these, true by construction)")
    return 1 if wrong else 0


def row(name: str, counts: Counter[tuple[str, bool]]) -> str:
    cells = [f"{counts[k, True] + counts[k, False]} ({counts[k, True]})" for k in KINDS]
    return f"{name:12}{sum(counts.values()):>11}" + "".join(f"{c:>16}" for c in cells)


if __name__ == "__main__":
    sys.exit(main())
