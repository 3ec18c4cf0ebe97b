"""The bridge's loads of single words, for tables that a kernel looks things up in.

Sources: PTX ISA, "ld", "selp".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, const_expr
from cutlass.cutlass_dsl import dsl_user_op

from ...schedule import Schedule
from ..indexed.rows import IndexedRows
from .types import Carried, assembly


@dsl_user_op
def load_word(address: Int64, *, loc: object = None, ip: object = None) -> Int32:
    """ld.global of 32 bits as an integer; the address is a multiple of 4."""
    return assembly("ld.global.b32 $0, [$1];", "=r,l,~{memory}", [Int64(address)], [Int32], loc=loc, ip=ip)[0]


def load_first(address: Int64, entry: Int32, groups: Int32, size: int, ends: bool) -> Int32:
    """The first line of a group, from global memory. Beyond the last group, where that ends.

    size  bytes of a number: of offsets, or with `ends` of the groups' ends, before which a 0 is not stored
    """
    at = cutlass.min(entry, groups)
    if not ends:
        return load_word(address + Int64(at) * size)
    return choose(entry > 0, load_word(address + Int64(cutlass.max(at - 1, 0)) * size), 0)


def group_entry(ragged: Any, address: Int64, entry: Int32, groups: Int32, rows: Int32) -> Int32:
    """An entry of the table of groups of rows, from global memory. The group's first row, or the rows that count.

    ragged  a plan's Ragged
    rows    of A, or of each masked group
    """
    if not ragged.masked:
        return load_first(address, entry, groups, ragged.offset_bytes, ragged.ends)
    found = load_word(address + Int64(cutlass.min(entry, groups - 1)) * ragged.offset_bytes)
    return choose(entry < groups, cutlass.max(cutlass.min(found, rows), 0), 0)


@dsl_user_op
def load_long(address: Int64, *, loc: object = None, ip: object = None) -> Int64:
    """ld.global of 64 bits as an integer; the address is a multiple of 8."""
    return assembly("ld.global.b64 $0, [$1];", "=l,l,~{memory}", [Int64(address)], [Int64], loc=loc, ip=ip)[0]


@dsl_user_op
def load_word_shared(address: Int32, *, loc: object = None, ip: object = None) -> Int32:
    """ld.shared of 32 bits as an integer; `address` is an Int32 in bytes."""
    return assembly("ld.shared.b32 $0, [$1];", "=r,r,~{memory}", [Int32(address)], [Int32], loc=loc, ip=ip)[0]


@dsl_user_op
def load_words_shared(address: Int32, *, loc: object = None, ip: object = None) -> list[Int32]:
    """ld.shared of four neighbours of 32 bits. `address` is an Int32 in bytes, a multiple of 16."""
    text = "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];"
    return list(assembly(text, "=r,=r,=r,=r,r,~{memory}", [Int32(address)], [Int32] * 4, loc=loc, ip=ip))


def load_index(
    indexed: IndexedRows, job: Carried, name: str, number: Int32, end: Int32, of_batch: Int32 | None = None
) -> Int64:
    """The row of A or of C that is row `number` of the product. -1 from row `end` on, and for one outside of it.

    of_batch  the matrix of a batch, each of which has job.m indices; None for the first
    """
    indices, matrix = indexed.of(name)
    place = Int64(cutlass.min(number, job.m - 1))
    if of_batch is not None:
        place += Int64(of_batch) * job.m
    address = getattr(job.given, name) + place * indices.bytes
    found = Int64(load_word(address)) if const_expr(indices.bytes == 4) else load_long(address)
    inside = (number < end) & (found >= 0) & (found < getattr(job.given, f"{matrix}_rows"))
    return Int64(cutlass.select_(Boolean(inside), found, Int64(-1)))


class WordReads:
    """The words of an order of tiles in a kernel: see `schedule.tile_order.Reads`.

    given  the launch's words by name
    """

    def __init__(self, given: Any):
        self.given = given

    def word(self, name: str) -> Int32:
        """The word of that name, as a 32-bit integer."""
        return Int32(getattr(self.given, name))

    def entry(self, name: str, index: Int32) -> Int32:
        """Number `index` of the 32-bit integers in the array whose address is the word."""
        return load_word(getattr(self.given, name) + Int64(index) * 4)


def reads_of(order: Schedule, names: Sequence[str], words: Sequence[Int64]) -> WordReads | None:
    """The words of an order of tiles among those of a launch. None for an order without words."""
    return WordReads(Carried(**dict(zip(names, words, strict=True)))) if order.words else None


def sum_of_lanes_before(value: Int32, lane: Int32) -> Int32:
    """The sum of a value over the lanes of a warp before this one. Called by all of them."""
    total = value
    for step in (1, 2, 4, 8, 16):
        before = cute.arch.shuffle_sync(total, cutlass.max(lane - step, 0))
        total += choose(lane >= step, before, Int32(0))
    return total - value


def choose(condition: Boolean, yes: Int32, no: Int32) -> Int32:
    """One of two integers, without a branch."""
    return Int32(cutlass.select_(Boolean(condition), Int32(yes), Int32(no)))
