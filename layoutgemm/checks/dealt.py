"""Which tiles neighbours take: clusters of a launch, as the hardware deals them out to the graphics clusters (GPCs).

On an H200 the first few clusters go where two multiprocessors are left over, the next ones in turn to each graphics
cluster, round after round, then to those that have more multiprocessors. What several multiprocessors of a graphics
cluster ask for at about the same time is asked of L2 once (Nsight Compute, "L2 Request Coalescer"): so those that lie
together take tiles that lie together. A launch on a GPU that is busy, or of another kind, is dealt out otherwise: each
tile is still taken once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import PlanError
from ..layouts.digits import minimum as least
from .report import Check

_FAR = 1 << 20  # more than a launch has clusters


@dataclass(frozen=True)
class Dealt:
    """Rounds in which clusters are dealt out: (places, times) one after the other; later clusters stay as they are.

    Raises PlanError for rounds that are not pairs of ints of at least 1.

    >>> Dealt(((1, 1), (3, 2))).table(7)
    [0, 1, 3, 5, 2, 4, 6]
    """

    rounds: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for pair in self.rounds if isinstance(self.rounds, tuple) else (None,):
            good = isinstance(pair, tuple) and len(pair) == 2
            if not good or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in pair or ()):
                raise PlanError(f"dealt = {self.rounds!r}: pairs of ints of at least 1, places and times")
        if sum(places * times for places, times in self.rounds) >= _FAR:
            raise PlanError(f"dealt = {self.rounds!r}: of fewer than {_FAR} clusters")

    def number(self, nth: Any, count: Any, minimum: Callable[..., Any] = least) -> Any:
        """Which number the nth of `count` clusters takes: those dealt out to one place take consecutive ones.

        `minimum` stands in for traced integers, which Python's own does not take.
        """
        found, start = nth, 0
        for places, times in self.rounds:
            end = start + places * times
            if places > 1 and times > 1:
                held, within = minimum(count, end) - start, nth - start
                place, time = within % places, within // places
                moved = place * (held // places) + minimum(place, held % places) + time - within
                found = found + moved * (_reached(nth, start) - _reached(nth, end))
            start = end
        return found

    def table(self, count: int) -> list[int]:
        """The numbers that each of so many clusters takes."""
        return [int(self.number(nth, count)) for nth in range(count)]

    def check(self) -> Check:
        """Each number below their count is taken once, by any count of clusters.

        >>> print(Dealt(((4, 1), (8, 4), (7, 4))).check().ok)
        True
        """
        end = sum(places * times for places, times in self.rounds)
        lost = next((n for n in range(1, end + 2) if sorted(self.table(n)) != list(range(n))), None)
        statement = f"up to {end} clusters, in rounds of {self.rounds}, take each number below their count once"
        witness = "" if lost is None else f"{lost} clusters take {self.table(lost)}"
        return Check("dealt out", f"{statement}; more are as they come", not witness, f"exhaustion ({end})", witness)


def _reached(number: Any, limit: int) -> Any:
    """1 from a limit on, else 0, for numbers up to a million, by arithmetic that traced integers know."""
    return (number + (_FAR - limit)) // _FAR
