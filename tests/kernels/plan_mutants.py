"""Changes of Hopper's and Blackwell's plans for tests, and the checks that catch them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from layoutgemm.errors import LayoutError
from layoutgemm.schedule import Grouped


@dataclass(frozen=True)
class Stuck(Grouped):
    """An order that visits the first tile of each pair twice."""

    def _tile(self, number: Any, rows: Any, columns: Any, group: Any, minimum: Any) -> Any:
        return super()._tile(number - number % 2, rows, columns, group, minimum)


def with_chunk(plan: Any, **changes: Any) -> Any:
    """The plan with its first chunk changed, in every block."""
    rounds = []
    for round_ in plan.store.rounds:
        chunks = [replace(c, **changes) if c == plan.store.rounds[0].chunks[0] else c for c in round_.chunks]
        rounds.append(replace(round_, chunks=tuple(chunks)))
    return replace(plan, store=replace(plan.store, rounds=tuple(rounds)))


def values(plan: Any, seed: int = 0) -> tuple[Any, Any, Any]:
    """A, B of small integers, and C rounded to its type: exact."""
    rng = np.random.default_rng(seed)
    front = (plan.batch,) if plan.batch > 1 else ()
    a = rng.integers(-3, 4, (*front, plan.m, plan.k)).astype(np.float32)
    b = rng.integers(-3, 4, (*front, plan.k, plan.n)).astype(np.float32)
    return a, b, np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(np.matmul(a, b, dtype=np.float64))))


def outcome(plan: Any) -> str:
    """ "" when the mutant computes the right product."""
    a, b, want = values(plan, 3)
    try:
        return "" if np.array_equal(plan.run(a, b, device="reference").c, want) else "wrong values"
    except LayoutError as error:
        return str(error)
