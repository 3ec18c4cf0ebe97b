"""Random operands, independent values and the register of laws: see test_laws."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from layoutgemm.errors import LayoutError
from tests.layouts import reference as ref
from tests.layouts.strategies import FAMILIES, Pair, random_pair

Law = Callable[[random.Random], bool]
LAWS: dict[str, tuple[Law, int]] = {}
REFUSED = None


def law(count: int) -> Callable[[Law], Law]:
    """Register a law with the number of cases that a test run takes."""

    def register(f: Law) -> Law:
        LAWS[f.__name__] = f, count
        return f

    return register


# ---------------------------------------------------------------- operands and values


def draw(rng: random.Random, limit: int = 60, leaves: int = 4, negative: bool = False, rank: int = 0) -> Pair:
    """A layout of any family; extents of 1 with any stride, now and then negative strides or a given rank."""
    if rank:
        parts = [draw(rng, max(2, limit // (6 * rank - 5)), 2) for _ in range(rank)]
        flat = [s for part in parts for s in ref.leaves(part[0])]
        shape = ref.like(tuple(part[0] for part in parts), flat)
        stride = _strides(rng, flat)
        return shape, ref.like(shape, stride)
    pair = random_pair(rng, FAMILIES, limit=limit, leaves=leaves)
    strides = ref.leaves(pair[1])
    strides = [
        rng.choice((0, 1, d, 7, 100)) if s == 1 else d for s, d in zip(ref.leaves(pair[0]), strides, strict=True)
    ]
    if negative and rng.random() < 0.3:
        strides = [d * rng.choice((1, -1)) for d in strides]
    return pair[0], ref.like(pair[0], strides)


def compact_strides(rng: random.Random, extents: list[int]) -> list[int]:
    order, strides, top = list(range(len(extents))), [0] * len(extents), 1
    rng.shuffle(order)
    for i in order:
        strides[i], top = top, top * extents[i]
    return strides


def _strides(rng: random.Random, extents: list[int]) -> list[int]:
    order, strides, top = list(range(len(extents))), [0] * len(extents), 1
    rng.shuffle(order)
    for i in order:
        strides[i] = 0 if rng.random() < 0.05 else top
        top *= extents[i] * rng.choice((1, 1, 1, 2, 3))
    return strides


def tile(rng: random.Random, size: int) -> Pair:
    """A tile for a mode of so many elements: often one that divides, often one that does not."""
    if rng.random() < 0.5:
        n = rng.choice([k for k in range(1, size + 1) if size % k == 0] if rng.random() < 0.6 else range(1, size + 3))
        return n, 1
    pair = random_pair(rng, ("compact", "permuted", "padded", "broadcast"), limit=8, leaves=2, extents=(1, 2, 2, 3, 4))
    step = rng.choice((1, 1, 2, 3, 4))
    return pair[0], ref.like(pair[0], [step * d for d in ref.leaves(pair[1])])


def image(layout: Any) -> list[int]:
    return [int(layout(i)) for i in range(layout.size)]


def on(pair: Pair, indices: list[int]) -> list[int]:
    """The values of flat indices; past the end the last entry runs on."""
    return [ref.offset(i, *pair, wrap_last=False) for i in indices]


def sizes(layout: Any) -> list[int]:
    return [ref.size(s) for s in ref.modes(layout.shape)]


def attempt(call: Callable[[], Any]) -> Any:
    """The answer, or None for a refusal; any other exception is a failure."""
    try:
        return call()
    except LayoutError:
        return REFUSED


def parts(pair: Pair) -> list[Pair]:
    """The top-level modes as pairs."""
    return list(zip(ref.modes(pair[0]), ref.modes(pair[1]), strict=True))


def exact_complement(t: Pair, bound: int) -> list[int] | None:
    """The translates of a tile that hold each of 0..bound-1 once; None where none do."""
    rest = ref.complement(*t, bound)
    if rest is None:
        return None
    free = ref.image(tuple(rest[0]), tuple(rest[1]))
    return free if set(range(bound)) <= set(ref.sums(ref.image(*t), free)) else None


def run(name: str, factor: int = 1, seed: int = 0) -> tuple[int, int]:
    """The counts of answered and of drawn cases of a law."""
    check, count = LAWS[name]
    rng = random.Random(f"{name} {seed}")
    return sum(check(rng) for _ in range(count * factor)), count * factor
