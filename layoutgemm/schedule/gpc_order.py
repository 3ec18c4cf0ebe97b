"""Which tiles neighbours take. Clusters of a launch, as the hardware deals them out to the graphics clusters (GPCs).

On an H200 the first few clusters go to the GPCs with two SMs left over. The next ones go in turn to each GPC, round
after round, then to the GPCs that have more SMs. L2 serves requests of several SMs of a GPC for the same data once, if
they come at about the same time (Nsight Compute, "L2 Request Coalescer"). So clusters of one GPC take neighbouring
tiles. On a busy GPU, or on one of another kind, clusters start elsewhere: each tile is still taken once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..arguments import Integer, checked, settle, shown
from ..errors import PlanError
from ..layouts.proofs.digits import minimum as least
from ..lazy_numpy import np
from ..report import Check
from .tile_order import Minimum

_FAR = 1 << 20  # more than a launch has clusters

Rounds = tuple[tuple[tuple[int, ...], int], ...]


@dataclass(frozen=True)
class GpcOrder:
    """Rounds in which clusters are dealt out, one after the other. (places, times), each place once in each turn.

    Clusters of one place take consecutive numbers, over all rounds. Those after the last round stay as they are, and so
    does a launch that does not reach it.

    Raises PlanError for rounds that are not pairs of places, different ints from 0 on in ascending order, and of times,
    an int of at least 1.

    >>> GpcOrder((((0,), 1), ((1, 2, 3), 2), ((1, 3), 1))).table(10)
    [0, 1, 4, 6, 2, 5, 7, 3, 8, 9]
    """

    rounds: Rounds = ()

    def __post_init__(self) -> None:
        settle(self, PlanError)
        for places, times in self.rounds:
            if not places or times < 1 or min(places) < 0 or list(places) != sorted(set(places)):
                wanted = "rounds of (places, times): different ints from 0 on, ascending; an int of at least 1"
                raise PlanError(f"gpc_order = {shown(self.rounds)}: {wanted}")
        if self.end >= _FAR or any(places[-1] >= _FAR for places, _ in self.rounds):
            raise PlanError(f"gpc_order = {shown(self.rounds)}: of fewer than {_FAR} clusters and places")

    def __str__(self) -> str:
        """
        >>> print(GpcOrder((((0, 1, 2, 3), 4), ((0, 2, 3), 4))))
        0-3 x4, 0+2-3 x4
        """

        def names(places: tuple[int, ...]) -> str:
            return "+".join(f"{a}-{a + many - 1}" if many > 1 else f"{a}" for a, many in _runs(places))

        return ", ".join(f"{names(places)} x{times}" for places, times in self.rounds)

    @property
    def most(self) -> int:
        """The most clusters that come to one place.

        >>> GpcOrder((((0, 1, 2, 3), 4), ((0, 2, 3), 4))).most
        8
        """
        every = {place for places, _ in self.rounds for place in places}
        return max((sum(times for places, times in self.rounds if x in places) for x in every), default=0)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Clusters before each round, and in all."""
        found = [0]
        for places, times in self.rounds:
            found.append(found[-1] + len(places) * times)
        return tuple(found)

    @property
    def end(self) -> int:
        """Clusters of all rounds."""
        return self.starts[-1]

    @checked(PlanError)
    def number(self, nth: Integer, count: Integer, minimum: Minimum = least) -> Any:
        """Which number the nth of `count` clusters takes. Further clusters of the launch keep theirs.

        minimum  stands in for traced integers, which Python's own does not take
        """
        if not self.rounds:
            return nth
        place = rank = 0  # where the nth comes to lie, and how many come there before it
        for i, (places, _) in enumerate(self.rounds):
            here = (_reached(nth, self.starts[i]) if i else 1) - _reached(nth, self.starts[i + 1])
            within = nth - self.starts[i]
            mine = _member(within % len(places), places)
            before = [t * _among(mine, others, minimum, places) for others, t in self.rounds[:i]]
            place = place + here * mine
            rank = rank + here * (sum(before) + within // len(places))
        below = sum(times * _below(place, places, minimum) for places, times in self.rounds[:-1])
        last, held = self.rounds[-1][0], minimum(count, self.end) - self.starts[-2]
        of_last = _below(place, last, minimum)
        below = below + of_last * (held // len(last)) + minimum(of_last, held % len(last))
        moved = _reached(count, self.starts[-2] + 1) * (1 - _reached(nth, minimum(count, self.end)))
        return nth + moved * (below + rank - nth)

    @checked(PlanError)
    def table(self, count: int, clusters: int | None = None) -> list[int]:
        """The number that each cluster of a launch takes.

        count     clusters that are dealt out, and of the launch unless `clusters` says more

        >>> GpcOrder((((0, 1), 2),)).table(3, clusters=5)
        [0, 2, 1, 3, 4]
        """
        launched = np.arange(count if clusters is None else clusters)
        return [int(x) for x in self.number(launched, count, np.minimum)]

    def check(self) -> Check:
        """Each number is taken once, by any count of clusters; further ones keep theirs.

        >>> print(GpcOrder((((0, 1, 2, 3), 4), ((0, 2, 3), 4))).check().ok)
        True
        """
        found = {n: self.table(n, self.end + 2) for n in range(self.end + 2)}
        lost = next((n for n, x in found.items() if sorted(x[:n]) + x[n:] != list(range(self.end + 2))), None)
        statement = f"up to {self.end} clusters, in rounds of {self}, take each number below their count once"
        witness = "" if lost is None else f"of {lost} tiles, clusters take {found[lost]}"
        return Check(
            "dealt out", statement + "; more are as they come", not witness, f"exhaustion ({self.end})", witness
        )


def _runs(places: tuple[int, ...]) -> list[tuple[int, int]]:
    """Ascending ints as ranges: the first of each, and how many it has.

    >>> _runs((4, 6, 7, 8))
    [(4, 1), (6, 3)]
    """
    found: list[tuple[int, int]] = []
    for place in places:
        first, many = found[-1] if found else (place, 0)
        found[-1:] = [(first, many + 1)] if first + many == place else [(first, many), (place, 1)]
    return found


def _member(index: Integer, places: tuple[int, ...]) -> Integer:
    """The place of that index."""
    (first, many), *others = _runs(places)
    found = index + first
    for begin, length in others:
        found = found + _reached(index, many) * (begin - first - many)
        first, many = begin - many, many + length
    return found


def _below(place: Integer, places: tuple[int, ...], minimum: Minimum) -> Integer:
    """The number of places before the given one."""
    return sum(minimum(place - minimum(place, first), many) for first, many in _runs(places))


def _among(place: Integer, places: tuple[int, ...], minimum: Minimum, known: tuple[int, ...]) -> Integer:
    """1 if `place` is in `places`, else 0. It is known to be in `known`."""
    if set(known) <= set(places):
        return 1
    if not set(known) & set(places):
        return 0
    return _below(place + 1, places, minimum) - _below(place, places, minimum)


def _reached(number: Integer, limit: Integer) -> Integer:
    """1 from a limit on, else 0. For numbers up to a million, by arithmetic of traced integers."""
    return (number + (_FAR - limit)) // _FAR
