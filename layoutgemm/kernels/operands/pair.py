"""A second pair of matrices into the same accumulators. C = A @ B + A2 @ B2, as for a low-rank update of weights.

Of several matrices B each sum has a second product of its own: C = f(A @ B + A2 @ B2, A @ B1 + A2 @ B3).

The loop over K runs over the K tiles of the first pair, and then over those of the second:

    K tile               copied from       coordinate along K
    ----------------     -------------     ------------------------
    0 .. T - 1           A and B           t * depth
    T .. T + T2 - 1      A2 and B2         (t - T) * depth

T and T2 are the K tiles of the pairs. Triangular operands are of the first pair. T is then the number of a tile of C,
and its coordinates begin behind the skipped K tiles. Both pairs have the same copies, with tensor maps of their own.
Each map ends with its pair's K, and TMA fills the rest of the last K tile with zeros. A2 and B2 lie in the orders of A
and B.

Several matrices B are numbered through: of two, A multiplies B and B1, and A2 multiplies B2 and B3. A kernel has eight
tensor maps: two matrices B take six, and C leaves in chunks of two widths. Three take eight, and need store="direct".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...arguments import as_int
from ...errors import PlanError
from ...report import Check
from ..derive import either
from ..numbers import W
from ..plan import MAX_COORDINATE, GemmPlan, tile_count
from .combined import Combined

SECOND = "second"  # beside the coordinates of a K tile: whether it is one of the second pair's


@dataclass(frozen=True, slots=True)
class SecondPair:
    """The second pair of operands: A2 is M x K, and B2 K x N. With several matrices B as many of those.

    matrices  that A2 multiplies; a plan has as many as its function has sums

    >>> SecondPair(16).words
    ('a2', 'lda2', 'b2', 'ldb2', 'k2')
    >>> SecondPair(16, 2).of_b
    ('b2', 'b3')
    """

    k: int = 1
    matrices: int = 1

    def __post_init__(self) -> None:
        as_int(self.k, "K of the second pair", PlanError, 1, MAX_COORDINATE)
        as_int(self.matrices, "matrices of the second pair", PlanError, 1)

    @property
    def of_b(self) -> tuple[str, ...]:
        """Names of the matrices that A2 multiplies, behind those that A does."""
        return tuple([f"b{max(2, self.matrices) + i}" for i in range(self.matrices)])

    @property
    def words(self) -> tuple[str, ...]:
        """The kernel's further parameters: addresses with pitches in elements, and K."""
        return (*[word for name in ("a2", *self.of_b) for word in (name, f"ld{name}")], "k2")


def pair_of(given: SecondPair | int | None, gated: Combined | None = None) -> SecondPair | None:
    """The second pair of an argument: a SecondPair, its K, or None. With as many matrices B as the first has.

    Raises PlanError for anything else.

    >>> pair_of(16, Combined.of(lambda x, y, ops: x * y))
    SecondPair(k=16, matrices=2)
    """
    if given is None:
        return None
    k = given.k if isinstance(given, SecondPair) else given
    return SecondPair(k, gated.matrices if gated is not None and gated.separate else 1)


def place_in_pairs(
    tile: W, first_tiles: W, depth: int, choose: Callable[[Any, Any, Any], Any], skipped: W | int = 0
) -> dict[str, Any]:
    """The coordinate of a K tile, and whether it is one of the second pair's. Ints or traced integers alike.

    skipped  K tiles of the first pair in front of its first one

    >>> [place_in_pairs(tile, 2, 64, either) for tile in (1, 2)]
    [{'k': 64, 'second': False}, {'k': 0, 'second': True}]
    >>> [place_in_pairs(tile, 2, 64, either, 3)["k"] for tile in (0, 1, 2)]
    [192, 256, 0]
    """
    second = tile >= first_tiles
    return {"k": (tile - choose(second, first_tiles, -skipped)) * depth, SECOND: second}


def passes_on(left: Any, behind: Any) -> bool:
    """True if a cursor behind a K tile begins the second pair. Ints or traced integers alike.

    left    K of the cursor's pair behind the K tile; none or less at the pair's end
    behind  K of the pair that follows, 0 in the second pair

    >>> passes_on(64, 16), passes_on(-48, 16), passes_on(-48, 0)
    (False, True, False)
    """
    found: bool = (left <= 0) & (behind > 0)
    return found


def _walked(first: int, second: int, depth: int) -> list[tuple[bool, int]]:
    """(pair, coordinate along K) of each K tile that a cursor visits, in order."""
    left, behind, at, found = first, second, 0, []
    while left > 0:
        found.append((behind == 0, at))
        left, at = left - depth, at + depth
        if passes_on(left, behind):
            left, behind, at = behind, 0, 0
    return found


def pair_check(plan: GemmPlan) -> Check:
    """Each K tile of either pair is copied once, the first pair's before the second's."""
    depth, witness, cases = plan.tile[2], "", 0
    for first in (1, depth, depth + 1, 3 * depth - 1):
        for second in (1, depth, 2 * depth + 3):
            tiles = tile_count(first, depth), tile_count(second, depth)
            want = [(False, i * depth) for i in range(tiles[0])] + [(True, i * depth) for i in range(tiles[1])]
            found = [place_in_pairs(t, tiles[0], depth, either) for t in range(sum(tiles))]
            cases += 1
            if [(x[SECOND], x["k"]) for x in found] != want:
                witness = witness or f"K = {first} and {second}: the K tiles begin at {found}"
            if (walked := _walked(first, second, depth)) != want:
                witness = witness or f"K = {first} and {second}: a cursor visits {walked}"
    statement = (
        f"K tiles of {depth}: those that cover the first pair's K, then those that cover the second's, each once; both "
        "have the same boxes"
    )
    return Check("second pair", statement, not witness, f"{cases} pairs of sizes", witness)
