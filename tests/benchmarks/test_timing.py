"""Times of contenders: each launch runs once before it is recorded, and a loop's time is divided by its launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.timing import microseconds
from layoutgemm.bench.method import Launch


class Clock:
    """A device whose replays take 1 us a launch of "a" and 3 us of "b"."""

    def record(self, launches: Sequence[Launch]) -> Any:
        for launch in launches:
            launch()
        return len(launches)

    def seconds(self, replay: Any, times: int = 1) -> float:
        return times * replay * 1e-6 * (3 if replay == 6 else 1)

    def idle(self, seconds: float) -> None:
        """No time passes."""


def test_a_loop_is_divided_by_its_launches() -> None:
    ran: list[str] = []
    first, second = (lambda: ran.append("a")), (lambda: ran.append("b"))
    assert microseconds(Clock(), {"a": [first] * 4, "b": [second] * 6}, 3) == {"a": 1.0, "b": 3.0}
    assert ran.count("a") == 1 + 4 and ran.count("b") == 1 + 6
