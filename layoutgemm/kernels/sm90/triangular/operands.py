"""Triangular operands: K tiles of zeros are neither loaded nor multiplied.

A lower triangular A has zeros at k > m, a lower triangular B at k < n: B[k, n] with k below n. A tile of C then has a
range of K tiles of its own, the same for all CTAs of a cluster, since they share loads:

    A lower    K tiles below row m0 + TM         A upper    K tiles from row m0 on
    B upper    K tiles below column n0 + TN      B lower    K tiles from column n0 on

K tiles that the diagonal crosses are read whole: the zeros in them are the caller's. A tile without any K tile has one,
of zeros. Behind a function of A's elements the zeros are the function's results. Of two pairs the first one's A and B
are triangular, and each tile has all K tiles of the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ....arguments import checked, settle, shown
from ....errors import OperandError, PlanError
from ....graph_marks import NoticedInGraphs
from ....report import Check
from ...numbers import W, check_matrix
from ...plan import check_settings

if TYPE_CHECKING:
    from ...operands.combined import Combined
    from ...operands.promoted import Promoted
    from ..config import Sm90Config
    from ..plan import Sm90Plan

_HALVES = (None, "lower", "upper")


@dataclass(frozen=True, slots=True)
class Triangles(NoticedInGraphs):
    """Which operands of a product are triangular: "lower", "upper", or None for a full one.

    Raises PlanError for anything else, and for two full operands.

    >>> Triangles(a="lower")
    Triangles(a='lower', b=None)
    """

    a: str | None = None
    b: str | None = None

    def __post_init__(self) -> None:
        settle(self, PlanError)
        for name in ("a", "b"):
            if (half := getattr(self, name)) not in _HALVES:
                raise PlanError(f"{name} = {shown(half)}: 'lower', 'upper', or None for a full matrix")
        if self.a is None and self.b is None:
            raise PlanError("triangles of two full matrices: leave them out")

    @checked(OperandError)
    def check(self, a: np.ndarray, b: np.ndarray, said: str = "a") -> None:
        """Raise OperandError, naming the first element, for a matrix with other elements than its triangle's.

        said  the name of `a`, such as "f(a)" for a function's results

        >>> Triangles(a="lower").check(np.ones((2, 2)), np.ones((2, 2)))
        Traceback (most recent call last):
            ...
        layoutgemm.errors.OperandError: a is lower triangular, and a[0, 1] is 1.0: K tiles of zeros are skipped
        """
        for name, half, value in ((said, self.a, a), ("b", self.b, b)):
            if half is None:
                continue
            check_matrix(name, value)
            outside = np.triu(value, 1) if half == "lower" else np.tril(value, -1)
            wrong = np.argwhere(outside != 0)
            if len(wrong):
                at = tuple(int(x) for x in wrong[0])
                raise OperandError(
                    f"{name} is {half} triangular, and {name}{list(at)} is {value[at]}: K tiles of zeros are skipped"
                )

    def k_tiles(
        self, plan: Sm90Plan, place: tuple[Any, ...], k_tiles: Any, minimum: Callable[..., Any],
        maximum: Callable[..., Any],
    ) -> tuple[Any, Any]:  # fmt: skip
        """The first K tile and the number of K tiles of a cluster's tile. Ints or traced integers.

        place    first row and column of a CTA's tile of C
        k_tiles  of K
        """
        depth, first, end = plan.tile[2], 0 * k_tiles, k_tiles
        high, wide = (t * c for t, c in zip(plan.tile_c, plan.config.cluster, strict=True))
        row, column = place[0] - place[0] % high, place[1] - place[1] % wide
        for half, lower, at, extent in ((self.a, "lower", row, high), (self.b, "upper", column, wide)):
            if half == lower:
                end = minimum(end, (at + (extent + depth - 1)) // depth)
            elif half is not None:
                first = maximum(first, at // depth)
        first = minimum(first, k_tiles - 1)
        return first, maximum(end - first, 1)

    def share_of_pairs(
        self, plan: Sm90Plan, place: tuple[W, ...], k_tiles: tuple[W, W], minimum: Callable[..., W],
        maximum: Callable[..., W],
    ) -> tuple[W, W, W]:  # fmt: skip
        """The first K tile, the K tiles of both pairs, and those of the first.

        k_tiles  of the first pair's K, and of both
        """
        first, count = self.k_tiles(plan, place, k_tiles[0], minimum, maximum)
        return first, count + (k_tiles[1] - k_tiles[0]), count


def check_triangles(
    triangles: Triangles, sizes: tuple[int, int, int, int], config: Sm90Config, gated: Combined | None,
    loop: Promoted | None,
) -> None:  # fmt: skip
    """Raise PlanError, naming the obstacle, for a problem without a kernel that skips K tiles."""
    if triangles.b is not None and gated is not None:
        raise PlanError(
            f"triangles: b = {shown(triangles.b)}, and a tile has columns of {gated.matrices} places of B; a takes one"
        )
    check_settings(
        config, "tiles with different numbers of K tiles take", split=1, schedule="cooperative",
        staged_epilogue_k_tiles=0, reverse_odd_tiles=False, prefetch=0,
    )  # fmt: skip
    if loop is not None and loop.span > 1:
        raise PlanError(f"triangles: numbers of {loop.span} K blocks come together, and a tile has any number of them")
    if config.loader == "self":
        raise PlanError(
            "loader = 'self': a consumer that loads looks ahead into tiles with another number of K tiles; triangular "
            "matrices take loader='warp' or 'warpgroup'"
        )
    if max(sizes[:2]) > _MOST:
        raise PlanError(f"m = {sizes[0]}, n = {sizes[1]}: the end of a tile beyond the last one is a 32-bit integer")


_MOST = (1 << 31) - (1 << 20)


def triangles_check(plan: Sm90Plan) -> Check:
    """Skipped K tiles are zeros, and each tile of C has one K tile."""
    triangles, depth, witness = plan.triangles, plan.tile[2], ""
    assert triangles is not None
    high, wide = (t * c for t, c in zip(plan.tile_c, plan.config.cluster, strict=True))
    k_tiles = -(-plan.k // depth)
    # A's range follows from the row, B's from the column: the others stand at an end that excludes nothing.
    for name, half, extent, size in (("a", triangles.a, high, plan.m), ("b", triangles.b, wide, plan.n)):
        if half is None:
            continue
        of_one = Triangles(a=half) if name == "a" else Triangles(b=half)
        for at in range(0, size, extent):
            place = (at, 0) if name == "a" else (0, at)
            first, count = of_one.k_tiles(plan, place, k_tiles, min, max)
            # The elements of these rows (columns) that may be other than zero.
            low, end = (0, at + extent) if half == ("lower" if name == "a" else "upper") else (at, plan.k)
            if not 0 <= first < first + count <= k_tiles or count < 1:
                witness = witness or f"{name} at {at}: K tiles {first} to {first + count - 1} of {k_tiles}"
            if low < plan.k and (first * depth > low or (first + count) * depth < min(end, plan.k)):
                witness = (
                    witness or f"{name} at {at} has elements {low} to {min(end, plan.k) - 1}, K tiles from {first}"
                )
    statement = f"K tiles of {depth} that are skipped are zeros of {triangles}, and each tile has one or more"
    tiles = -(-plan.m // high) + -(-plan.n // wide)
    return Check("triangular operands", statement, not witness, f"exhaustion ({tiles} rows and columns)", witness)


def share_of_work(plan: Sm90Plan, tiles: np.ndarray) -> float:
    """The share of the K tiles that these tiles of the grid of clusters multiply."""
    high, wide = (t * c for t, c in zip(plan.tile_c, plan.config.cluster, strict=True))
    k_tiles = -(-plan.k // plan.tile[2]), plan.k_tiles
    if plan.triangles is None or not len(tiles):
        return 1.0
    corners = tiles[:, 0] * high, tiles[:, 1] * wide
    found: Any = plan.triangles.share_of_pairs(plan, corners, k_tiles, np.minimum, np.maximum)
    return float(np.broadcast_to(found[1], len(tiles)).sum()) / (k_tiles[1] * len(tiles))
