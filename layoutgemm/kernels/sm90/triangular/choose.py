"""Configurations of a triangle of C, by the rounds that its own tiles take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ....schedule import Grouped, Triangular
from ...orders import diagonal_pattern, order_for
from ..choose.large_m import Estimate
from ..choose.rules import likeliest, nearest, of_estimate
from ..config import Sm90Config

SHORT_PATTERN = 4  # tiles of the diagonal's pattern: with 16 the formula's values spill to local memory


def by_rounds(order: Triangular, sizes: tuple[int, int, int], major: str) -> Iterator[Sm90Config]:
    """Persistent configurations for a triangle of 16-bit operands, the one estimated fastest first.

    sizes  M, N, K
    major  B's, "K" or "MN"

    A tile takes as long as one of the full product. So the full product's estimate is multiplied by the share of its
    rounds that the triangle's tiles need: whole rounds of all SMs. None where the fastest takes a single round.

    >>> from layoutgemm.schedule import Triangular
    >>> [(config.tile, config.cluster) for config in by_rounds(Triangular("lower"), (8192, 8192, 8192), "K")][:2]
    [((128, 256), (2, 1)), ((256, 128), (1, 2))]
    """
    m, n, k = sizes
    found = [
        (estimate.seconds * _rounds(order, estimate, m, n) / estimate.waves, estimate)
        for estimate in likeliest(m, n, k, major)
        if not estimate.swapped and estimate.split == 1 and diagonal_pattern(order, _cluster(estimate)) <= SHORT_PATTERN
    ]
    found.sort(key=lambda candidate: candidate[0])
    if found and _rounds(order, found[0][1], m, n) == 1:
        return
    for _, estimate in found:
        choice, why = of_estimate(estimate, m, n, k, major)
        for each, _ in nearest(choice, why, k_major=True):
            of_tiles = each.config.launch == "tiles"
            yield replace(each.config, launch="workers", staged_epilogue_k_tiles=0) if of_tiles else each.config


def _cluster(estimate: Estimate) -> tuple[int, int]:
    """Elements of C in a cluster's tile."""
    return estimate.tile[0] * estimate.cluster[0], estimate.tile[1] * estimate.cluster[1]


def _rounds(order: Triangular, estimate: Estimate, m: int, n: int) -> int:
    """Rounds of all SMs that the order's tiles take."""
    tile = _cluster(estimate)
    grid = -(-m // tile[0]), -(-n // tile[1])
    tiles = int(order_for(order, Grouped(), tile, grid).count(grid))
    return -(-tiles * estimate.cluster[0] * estimate.cluster[1] // estimate.workers)
