"""Times of several contenders, from recorded loops in random order."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence

from layoutgemm.bench.method import Device, Launch, burst


def microseconds(device: Device, loops: Mapping[str, Sequence[Launch]], rounds: int) -> dict[str, float]:
    """Microseconds of a launch of each contender: medians over the rounds.

    loops  launches that one recording repeats in order; each of them runs once before
    """
    replays = {}
    for name, loop in loops.items():
        for launch in dict.fromkeys(loop):
            launch()
        replays[name] = device.record(loop)
    samples = burst(device, replays, rounds, random.Random(0))
    return {name: round(statistics.median(x) / len(loops[name]) * 1e6, 2) for name, x in samples.items()}
