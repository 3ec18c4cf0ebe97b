"""K in parts. Blocks of each part keep their accumulators, and a second launch adds them in order.

    part p of P       K tiles p * each to (p + 1) * each - 1, each = ceil(K tiles / P); a part without any has zeros
    kept              (thread, vector of 4 registers, part, tile) -> bytes: a thread reads what it wrote itself
    second launch     a block for each tile: part 0 + part 1 + ..., then the epilogue and the store

Registers are kept as they lie, so no kernel needs their coordinates, and a warp's accesses are contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ....atoms.copy.base import VECTOR_BYTES
from ....errors import PlanError
from ....layouts import Layout
from ....report import Check
from ...numbers import W
from ...plan import tile_count

if TYPE_CHECKING:
    from ..plan import Sm80Plan

SPLIT_SUMS = "split_sums"  # the word that has the address of the parts' sums
VECTOR = VECTOR_BYTES // 4  # registers of an access


@dataclass(frozen=True)
class SplitK:
    """Parts of K, and where their sums are kept.

    parts      blocks of a tile
    threads    of a block
    registers  accumulators of a thread

    >>> split = SplitK(2, 128, 8)
    >>> str(split.places), split.tile_bytes
    ('(128,2,2):(16,2048,4096)', 8192)
    """

    parts: int
    threads: int
    registers: int

    @cached_property
    def places(self) -> Layout:
        """(thread, vector, part) -> byte of a tile's sums."""
        shape = self.threads, self.registers // VECTOR, self.parts
        return Layout(shape, (VECTOR_BYTES, VECTOR_BYTES * shape[0], VECTOR_BYTES * shape[0] * shape[1]))

    @property
    def tile_bytes(self) -> int:
        """Bytes of all parts' sums of a tile."""
        return self.parts * self.threads * self.registers * 4

    def range_of(self, part: W, k_tiles: W) -> tuple[W, W]:
        """The first K tile of a part, and the one behind its last. Ints or traced integers.

        >>> [SplitK(3, 128, 8).range_of(part, 7) for part in range(3)], SplitK(3, 128, 8).range_of(2, 2)
        ([(0, 3), (3, 6), (6, 9)], (2, 3))
        """
        each = tile_count(k_tiles, self.parts)
        return part * each, (part + 1) * each


def split_of(parts: int, threads: int, registers: int, k_tiles: int, weights: object) -> SplitK | None:
    """The split of a configuration; None for one part. Raises PlanError where K is not split."""
    if parts == 1:
        return None
    if weights is None:
        raise PlanError(f"split = {parts}: K is split for packed weights alone; give weights, or leave split out")
    if parts > k_tiles:
        raise PlanError(f"split = {parts}: K has {k_tiles} K tile(s), fewer than parts")
    return SplitK(parts, threads, registers)


def split_checks(plan: Sm80Plan) -> list[Check]:
    """Parts have each K tile once; kept sums have places of their own."""
    split = plan.split
    if split is None:
        return []
    k_tiles, witness = tile_count(plan.k, plan.tile[2]), ""
    for count in range(1, k_tiles + split.parts + 1):
        ranges = [split.range_of(part, count) for part in range(split.parts)]
        found = [k for first, end in ranges for k in range(first, min(end, count))]
        if found != list(range(count)):
            witness = witness or f"parts of {count} K tiles have {found[:8]}..."
    statement = f"{split.parts} parts have each K tile once, in order, of up to {k_tiles + split.parts} K tiles"
    of_k = Check("parts of K", statement, not witness, "exhaustion", witness)
    return [of_k, _kept(plan, split)]


def _kept(plan: Sm80Plan, split: SplitK) -> Check:
    """Each vector of 16 bytes of a tile's sums belongs to one thread of one part."""
    m, n = plan.blocks
    want = m * n * plan.mma.accumulator_registers, plan.threads
    places = np.sort(np.asarray(split.places.offsets()).reshape(-1))
    witness = ""
    if (split.registers, split.threads) != want or split.registers % VECTOR:
        witness = f"{split.registers} registers of {split.threads} threads; the block has {want}"
    if not np.array_equal(places, np.arange(0, split.tile_bytes, VECTOR_BYTES)):
        witness = witness or f"{split.places} is no bijection onto the vectors of {split.tile_bytes} bytes"
    statement = f"{split.places}: each vector of a tile's {split.tile_bytes} bytes is one thread's of one part"
    return Check("kept sums", statement, not witness, f"exhaustion ({len(places)} vectors)", witness)


def explain_split(split: SplitK | None) -> list[str]:
    """The parts and their sums."""
    if split is None:
        return []
    return [
        f"parts of K   {split.parts}: (thread, vector, part) -> byte of a tile's kept sums: {split.places}",
        "             a second launch adds them in the order of the parts, then computes the epilogue and stores",
    ]
