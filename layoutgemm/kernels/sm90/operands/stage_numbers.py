"""Numbers of a main loop's tables in a stage, and the threads that read them.

The loader's side copies them beside A and B. A consumer with a load from global memory in flight would wait for it at
the next wgmma.fence, as ptxas has it. Products of 256x128 tiles take nearly all of shared memory's bandwidth: numbers
of neighbouring rows that lie next to each other come by one bulk copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ....report import Check
from ...derive import either
from ...numbers import W
from ...operands.promoted import columns_between
from ...plan import present, rounded_up
from ...store import ROWS
from ..mainloop import BULK, NUMBER_BYTES, Promoted, Table, product_of, product_sets, said

if TYPE_CHECKING:
    from ..plan import Sm90Plan


@dataclass(frozen=True, slots=True)
class NumberSlots:
    """The numbers of one table in a stage. A slot for each segment of the tile's rows or columns.

    segment  rows or columns that share a slot
    slots    of the tile
    first    the first slot's byte in the stage's numbers
    width    rows or columns of the tile that lie next to each other: of several sums the columns of one
    span     K blocks whose numbers are in a slot
    slack    bytes that a bulk copy brings beside the numbers: 16 where a tile's begin at any number, else 0. It begins
             at a multiple of 16 bytes, so they lie up to 12 bytes behind their slots, as their address modulo 16 says
    chosen   whether row indices of A choose the table's rows
    """

    table: Table
    segment: int
    slots: int
    first: int
    width: int
    span: int = 1
    slack: int = 0
    chosen: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of all slots, and the slack."""
        return self.slots * self.slot_bytes + self.slack

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot."""
        return self.span * NUMBER_BYTES

    @property
    def bulk_bytes(self) -> int:
        """Bytes of one copy of all numbers. 0 unless neighbouring rows of A have adjacent ones.

        >>> [NumberSlots(Table("s", "m", group), 1, 256, 0, 256).bulk_bytes for group in (1, 2)]
        [1024, 0]
        >>> NumberSlots(Table("s", "m", 1), 1, 128, 0, 128, slack=16).bulk_bytes
        528
        """
        adjacent = self.span == 1 and self.table.axis == "m" and self.table.group == 1 and not self.chosen
        return self.bytes if adjacent and self.bytes % BULK == self.first % BULK == 0 else 0

    def in_bulk(
        self, tile: tuple[W, W, W], first: W, table: tuple[W, W, W], choose: Callable[..., W] = either
    ) -> W:  # fmt: skip
        """The first K blocks of a tile whose numbers bulk copies can take. Ints or traced integers.

        All, if they lie next to each other, each K block's begin at a multiple of 16 bytes, and all rows are A's. With
        slack they begin anywhere. Behind a K block's rows lie the next one's. So the last K block is left out where the
        tile ends beyond A's last row, or less than 4 numbers in front of it.

        tile   its first row, A's rows, and the tile's K blocks
        first  address of the tile's first number
        table  address of the table; from a row and from a K block to the next one, in numbers

        >>> slots = NumberSlots(Table("s", "m", 1), 1, 64, 0, 64, slack=16)
        >>> [slots.in_bulk((row, 100, 8), 4 * row, (0, 1, 100)) for row in (3, 32, 33)]
        [8, 8, 7]
        """
        (row, m, blocks), (address, apart, step) = tile, table
        beyond = row + self.bulk_bytes // NUMBER_BYTES - m
        if self.slack:
            fits = (apart == 1) & (address % BULK == 0) & (step >= 0)
            left_out = choose(beyond <= 0, 0, choose(beyond <= step, 1, blocks))
            return choose(fits, blocks - left_out, 0)
        fits = (apart == 1) & (first % BULK == 0) & (step * NUMBER_BYTES % BULK == 0) & (beyond <= 0)
        return choose(fits, blocks, 0)

    def byte(self, along: W) -> W:
        """The byte of the slot for row or column `along` of the tile. An int or a traced integer.

        >>> NumberSlots(Table("scale_b", "n", 128), 64, 3, 1024, 192).byte(130)
        1032
        """
        return self.first + along // self.segment * self.slot_bytes

    def line(self, origin: W, along: W, size: W, minimum: Callable[..., W]) -> W:
        """The row of A or column of B of the tile's row or column `along`.

        Beyond the matrix's edge it is the edge.

        origin  first row or column of C in the tile
        size    rows or columns of C

        >>> gate_up = NumberSlots(Table("scale_b", "n", 128), 64, 2, 1024, 64)
        >>> [gate_up.line(64, along, 100, min) for along in (0, 63, 64, 65)]
        [64, 99, 164, 165]
        """
        if self.slots * self.segment == self.width:
            return minimum(origin + along, size - 1)
        return minimum(origin + along % self.width, size - 1) + along // self.width * columns_between(self.table, size)


@dataclass(frozen=True, slots=True)
class StageNumbers:
    """The numbers of one stage in shared memory: those of each table one after another.

    >>> loop = Promoted.of(lambda t, x, a, b: t + a * b * x, Table("a", "m"), Table("b", "n", 128))
    >>> numbers = StageNumbers.of(loop, (256, 192), True, 1)
    >>> [(part.segment, part.slots, part.first) for part in numbers.parts], numbers.bytes
    ([(1, 256, 0), (64, 3, 1024)], 1040)
    """

    parts: tuple[NumberSlots, ...] = ()

    @property
    def span(self) -> int:
        """K blocks whose numbers come together."""
        return self.parts[0].span if self.parts else 1

    @classmethod
    def of(
        cls, loop: Promoted | None, tile: tuple[int, int], aligned_rows: bool, sums: int, through: Sequence[str] = (),
        slack: bool = False,
    ) -> StageNumbers:  # fmt: skip
        """The numbers of a main loop's tables for tiles of C.

        aligned_rows  tiles begin at multiples of their rows; else, after a group of any length, at any row
        sums          of an element of C: as many places of B, or matrices B, have a tile's columns
        through       names of A's tables whose rows are chosen by index: neighbours have a slot each
        slack         bulk copies bring numbers of rows that begin anywhere
        """
        parts: list[NumberSlots] = []
        if loop is None:
            return cls()
        for table in loop.tables:
            extent = tile["mn".index(table.axis)]
            width = extent // (sums if table.axis == "n" else 1)
            chosen = table.name in through
            segment = table.segment(width) if table.axis == "n" or (aligned_rows and not chosen) else 1
            first = parts[-1].first + parts[-1].bytes if parts else 0
            slots = NumberSlots(table, segment, extent // segment, first, width, loop.span, chosen=chosen)
            parts.append(replace(slots, slack=BULK) if slack and slots.bulk_bytes else slots)
            slack = slack and not parts[-1].slack  # of one table: a tile has one skew
        return cls(tuple(parts))

    @property
    def bytes(self) -> int:
        """Bytes of a stage's numbers, a multiple of 16."""
        return rounded_up(sum(part.bytes for part in self.parts), BULK)

    @property
    def slack(self) -> NumberSlots | None:
        """The slots with slack, if there are any."""
        return next((part for part in self.parts if part.slack), None)

    @property
    def bulk_bytes(self) -> int:
        """Bytes of a stage that bulk copies bring, where the numbers are adjacent."""
        return sum(part.bulk_bytes for part in self.parts)

    def part(self, name: str) -> NumberSlots:
        """The slots of one table."""
        return next(part for part in self.parts if part.table.name == name)


def numbers_read(plan: Sm90Plan) -> dict[tuple[object, ...], tuple[Table, int, int]]:
    """The numbers that a thread reads for one K block.

    key -> (table, block of 64 rows, first of the thread's values that use it)

    Values with one key read one number, in every thread: `promotion_check` proves it.
    """
    found: dict[tuple[object, ...], tuple[Table, int, int]] = {}
    for table in present(plan.mainloop).tables:
        for block in range(plan.blocks):
            for v in range(plan.mma.accumulator_registers):
                found.setdefault(key_of(plan, table, block, v), (table, block, v))
    return found


def key_of(plan: Sm90Plan, table: Table, block: int, v: int) -> tuple[object, ...]:
    """The place of the number for value v of thread 0. Its table, and a row or a segment of columns."""
    i, j = (int(x) for x in plan.mma.coords_C(0, v))
    return (table.name, block, i) if table.axis == "m" else (table.name, j // plan.numbers.part(table.name).segment)


def byte_of(plan: Sm90Plan, table: Table, row: W, thread: W, block: int, v: int) -> W:
    """The byte in a stage's numbers that a thread reads for value v. Of ints or traced integers.

    row   of the tile, of the warpgroup's first accumulator
    """
    i, j = plan.mma.coords_C(thread, v)
    return plan.numbers.part(table.name).byte(row + (block * ROWS + i) if table.axis == "m" else j)


def same_for_all(plan: Sm90Plan, table: Table, v: int) -> bool:
    """True if all threads of a warpgroup read one number for value v."""
    if table.axis == "m":
        return False
    read = np.asarray(byte_of(plan, table, 0, np.arange(plan.mma.threads), 0, v))
    return bool((read == read[0]).all())


def table_registers(plan: Sm90Plan) -> int:
    """Registers of a thread for the numbers that it reads together, and their address."""
    found = len(numbers_read(plan)) * plan.mainloop.span if plan.mainloop is not None else 0
    return found + 1 if found else 0


def promotion_check(plan: Sm90Plan) -> Check:
    """Each value is promoted with the number of its own row or column."""
    loop, count = present(plan.mainloop), plan.mma.accumulator_registers
    threads, values = np.arange(plan.mma.threads)[:, None], np.arange(count)[None, :]
    i, j = np.broadcast_arrays(*plan.mma.coords_C(threads, values))
    witness = "" if plan.tile[2] == loop.depth else f"a k tile of {plan.tile[2]} elements, K blocks of {loop.depth}"
    numbers = numbers_read(plan)
    for table in loop.tables:
        part, extent = plan.numbers.part(table.name), plan.tile["mn".index(table.axis)]
        first = np.asarray([numbers[key_of(plan, table, 0, v)][2] for v in range(count)])
        own, read = (i, i[:, first]) if table.axis == "m" else (j, j[:, first])
        step = part.width if table.axis == "n" or plan.aligned_rows else 1
        # Blocks of rows begin at multiples of 64 of the tile: own and read move by the same. A gated product's second
        # half begins anywhere in a group that the unit divides, and each of several matrices at a group. The ends of C
        # are beyond these origins.
        starts = range(0, extent, ROWS) if table.axis == "m" else (0,)
        period = math.lcm(table.group, step)
        sizes = range(period, period + (1 if part.width == extent else 2))
        if part.width < extent and table.matrices == 1:
            sizes = range(period, period + table.group, unit := table.unit or table.group)
            if plan.n % unit:
                witness = witness or f"{table.name}: {plan.n} columns, a multiple of {unit}"
        for size in sizes:
            for start in starts:
                slot = (part.byte(start + read) - part.first) // part.slot_bytes
                origins = np.arange(0, period, step)[:, None, None]
                wanted, found = (part.line(origins, x, size, _inside) for x in (start + own, slot * part.segment))
                wrong = np.argwhere(wanted // table.group != found // table.group)
                if slot.max() >= part.slots:
                    witness = witness or f"{table.name}: slot {slot.max()} of {part.slots}"
                if len(wrong):
                    at, thread, v = (int(x) for x in wrong[0])
                    witness = witness or (
                        f"{table.name}: in a tile from {int(origins[at, 0, 0])} thread {thread}, value {v} reads the "
                        f"number of {int(slot[thread, v]) * part.segment}, for {start + int(own[thread, v])}"
                        + f", of {size} columns"
                        * (part.width < extent)
                    )
    statement = (
        f"K blocks of {loop.depth} are k tiles; a thread reads {len(numbers)} number(s) of "
        f"{', '.join(table.name for table in loop.tables) or 'no table'} for one, each that of its own row or columns"
    )
    return Check("promotion", statement, not witness, f"exhaustion ({threads.size * count} values)", witness)


def _inside(x: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
    """The place itself: away from the matrix's edge."""
    return x


def explain_mainloop(plan: Sm90Plan) -> list[str]:
    """The promotion of each K block's sum, and the numbers a thread reads."""
    loop = present(plan.mainloop)
    half, _, parts = product_of(plan)
    lines = [
        f"main loop: each K block of {loop.depth} is summed in registers of its own, then "
        f"total = {said(loop.expression)}"
        + f"; in {parts} parts of {half.shape_mnk[1]} columns" * (parts > 1)
        + "; two sets in turn, so one product runs while another is added" * (product_sets(plan) > 1)
    ]
    for table in loop.tables:
        count = sum(key[0] == table.name for key in numbers_read(plan))
        part = plan.numbers.part(table.name)
        lines.append(
            f"  {table.name}: f32, {table.said}; the loader copies {part.slots} into a stage, a thread reads {count}"
            + f"; those of {part.span} K blocks together" * (part.span > 1)
        )
    return lines
