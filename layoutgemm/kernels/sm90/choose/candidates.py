"""The configurations of a 16-bit product that a tuner measures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...epilogue.chain import Epilogue
from ...store import WARP_ROWS
from ..config import Sm90Config
from .occupancy import ClusterOccupancy
from .rules import Sm90Choice, choose, likeliest, of_estimate


def candidates(
    m: int, n: int, k: int, a_major: str = "k", b_major: str = "k", multiprocessors: int | ClusterOccupancy = 132,
    epilogue: Epilogue | None = None,
) -> Iterator[Sm90Choice]:  # fmt: skip
    """Configurations that could be the fastest, the heuristic's own first.

    a_major  "k" for rows of A contiguous, "mn" for columns; b_major "k" for columns of B contiguous, "mn" for rows
    epilogue as `choose` has it

    >>> [c.config.tile for c in candidates(4096, 4096, 4096)][:3]
    [(128, 256), (128, 256), (128, 256)]
    """
    order = "K" if b_major == "k" else "MN"
    places = ClusterOccupancy.of(multiprocessors)
    chosen, _ = choose(m, n, k, b_major=order, multiprocessors=places, epilogue=epilogue)
    seen = set()
    if m <= 64:
        around = list(_few_rows(m, n, places))
    else:
        found = likeliest(m, n, k, order, multiprocessors=places, epilogue=epilogue)
        around = [of_estimate(estimate, m, n, k, order)[0] for estimate in found]
    for choice in [chosen, *around]:
        # Rows are left out of the copies only where K is contiguous in the kernel's A.
        if choice.config.loaded_a_rows is not None and (b_major if choice.swapped else a_major) != "k":
            choice = replace(choice, config=replace(choice.config, loaded_a_rows=None))
        if choice not in seen:
            seen.add(choice)
            yield choice


def _few_rows(m: int, n: int, places: ClusterOccupancy) -> Iterator[Sm90Choice]:
    """Up to 64 rows: shares of the weights for every multiprocessor and near them, parts of K, operands swapped."""
    rows = -(-m // 8) * 8
    each = -(-n // (places.multiprocessors * 8)) * 8
    base = Sm90Config(
        (64, 64),
        tile_k=128,
        consumers=1,
        loader="warp",
        one_tile_per_cluster=True,
        overlap=True,
        prefetch=2,
        launch="tiles",
    )
    late: dict[str, Any] = {"trigger": "end", "prefetch": 0}
    width = 16 if m <= 16 else 32 if m <= 32 else 64
    few = "direct" if rows <= WARP_ROWS else "tma"  # one warp has rows: its threads store what they hold
    for split in (1, 2):
        yield Sm90Choice(replace(base, tile=(64, width), split=split), swapped=True)
    if width == WARP_ROWS:
        yield Sm90Choice(replace(base, tile=(64, width), split=2, store="direct"), swapped=True)
    weights = replace(base, loaded_a_rows=rows if rows < 64 else None).tuned(first="B", along="N")
    for split, columns in ((2, 16), (2, 32), (2, 64), (4, 64)):  # few columns: the blocks of a cluster share out K
        if -(-n // columns) <= places.most(split):
            later = late if split > 2 else {}
            parts = replace(weights, tile=(64, columns), split=split, store=few)
            yield Sm90Choice(parts.tuned(chunks=split, **later))
    for columns in sorted({w for w in (each, each + 8, each * 2, 64, 128) if w <= 256}):
        straight = replace(weights, tile=(64, columns)).tuned(chunks=1)
        yield Sm90Choice(straight)
        if rows <= WARP_ROWS:
            yield Sm90Choice(replace(straight, store=few))
        if rows == 64:
            yield Sm90Choice(replace(straight, cluster=(1, 2)))
        # The next kernel's blocks would crowd where this one has none.
        if -(-n // columns) < places.multiprocessors - 4:
            yield Sm90Choice(straight.tuned(**late))
    for split in (1, 2):
        yield Sm90Choice(replace(base, tile=(128, width), consumers=2, split=split), swapped=True)
