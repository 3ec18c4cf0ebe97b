"""Random hierarchical layouts, for hypothesis and for seeded bulk loops.

Every family that a law could depend on is drawn: compact, permuted, padded, broadcast (stride 0) and colliding strides.
"""

from __future__ import annotations

import random
from math import prod

from hypothesis import strategies as st

from tests.layouts import reference as ref

Pair = tuple[ref.Tree, ref.Tree]


def _nest(rng: random.Random, flat: list[int], depth: int) -> ref.Tree:
    """Random tree of the given leaves, at most `depth` levels deep; a single leaf may stay an int."""
    if len(flat) == 1 and rng.random() < 0.7:
        return flat[0]
    if depth <= 1:
        return tuple(flat)
    cuts = sorted(rng.sample(range(1, len(flat)), rng.randint(0, len(flat) - 1))) if len(flat) > 1 else []
    groups = [flat[a:b] for a, b in zip([0, *cuts], [*cuts, len(flat)], strict=True)]
    return tuple(g[0] if len(g) == 1 and rng.random() < 0.8 else _nest(rng, g, depth - 1) for g in groups)


def random_shape(
    rng: random.Random,
    limit: int = 2000,
    leaves: int = 5,
    extents: tuple[int, ...] = (1, 2, 3, 4, 5, 6),
    depth: int = 3,
) -> ref.Tree:
    """A nested shape of at most `limit` elements."""
    flat: list[int] = []
    for _ in range(rng.randint(1, leaves)):
        extent = rng.choice(extents)
        if prod(flat) * extent > limit:
            break
        flat.append(extent)
    return _nest(rng, flat or [1], depth)


def random_stride(rng: random.Random, shape: ref.Tree, family: str) -> ref.Tree:
    """Strides of one family for a shape."""
    extents = ref.leaves(shape)
    order = list(range(len(extents)))
    if family != "compact":
        rng.shuffle(order)
    strides, top = [0] * len(extents), 1
    for position in order:
        if family == "padded" and rng.random() < 0.5:
            top = top * rng.choice((2, 3, 4)) if rng.random() < 0.5 else top + rng.choice((1, 2, 5))
        strides[position] = top
        top *= extents[position]
    if family == "broadcast":
        strides = [0 if rng.random() < 0.5 else d for d in strides]
    if family == "colliding":
        strides = [rng.choice((0, 1, 1, 2, 3, 4, 5, 6, 8, 12)) for _ in strides]
    return ref.like(shape, strides)


FAMILIES = ("compact", "permuted", "padded", "broadcast", "colliding")
INJECTIVE = ("compact", "permuted", "padded")


def random_pair(rng: random.Random, families: tuple[str, ...] = FAMILIES, **shape: object) -> Pair:
    tree = random_shape(rng, **shape)
    return tree, random_stride(rng, tree, rng.choice(families))


# A generator to draw many things from: far faster than hypothesis drawing each, at the price of coarser shrinking.
seeds = st.integers(0, 2**32 - 1).map(random.Random)


@st.composite
def pairs(
    draw: st.DrawFn,
    families: tuple[str, ...] = FAMILIES,
    limit: int = 2000,
    leaves: int = 5,
    extents: tuple[int, ...] = (1, 2, 3, 4, 5, 6),
) -> Pair:
    """(shape, stride) for hypothesis: it chooses extents and family, which shrink; a seed chooses nesting and order."""
    flat = draw(st.lists(st.sampled_from(extents), min_size=1, max_size=leaves))
    while prod(flat) > limit:
        flat.pop()
    family, rng = draw(st.sampled_from(families)), draw(seeds)
    shape = _nest(rng, flat or [1], 3)
    return shape, random_stride(rng, shape, family)


def refined(rng: random.Random, pair: Pair) -> Pair:
    """The same function, written differently: leaves split, 1-extents with any stride put in, nested anew."""
    flat: list[tuple[int, int]] = []
    for s, d in zip(ref.leaves(pair[0]), ref.leaves(pair[1]), strict=True):
        if rng.random() < 0.3:
            flat.append((1, rng.randint(0, 9)))
        inner = rng.choice([k for k in range(1, s + 1) if s % k == 0])
        flat += [(inner, d), (s // inner, d * inner)] if rng.random() < 0.6 else [(s, d)]
    if rng.random() < 0.3:
        flat.append((1, rng.randint(0, 9)))
    shape = _nest(rng, [s for s, _ in flat], 3)
    return shape, ref.like(shape, [d for _, d in flat])


def inside(rng: random.Random, left: Pair, families: tuple[str, ...] = FAMILIES) -> Pair:
    """A B whose values stay inside A's domain."""
    limit = ref.size(left[0])
    while True:
        right = random_pair(rng, families, limit=max(1, min(limit, 300)), leaves=4, extents=(1, 2, 2, 3, 4, 6, 8))
        scale = rng.choice((1, 1, 2, 3, 4, 6, 8))
        scaled = (right[0], ref.like(right[0], [d * scale for d in ref.leaves(right[1])]))
        for candidate in (scaled, right):
            if max(ref.image(*candidate)) < limit:
                return candidate
