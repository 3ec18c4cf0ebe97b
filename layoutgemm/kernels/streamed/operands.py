"""The operands of a streamed product. Packed weights in a lane's own slots, and x in shared memory.

    strip     16 output features: a quarter of a packed unit's 64, and the rows of one mma.sync
    band      1, 2 or 4 strips, which a warp multiplies with the same registers of x
    slot      what a warp takes of a unit for a band: strip by strip its lanes' 16-byte vectors, then their scales
    x         all rows and the block's part of K, zeros beyond; a line is 16 bytes longer, so that eight lines lie in
              other banks

A lane copies into a slot the codes that it will load from there, and of a single group its scales. The scales of more
groups come in 16-byte vectors of the first lanes: a copy of 4 bytes is an instruction like one of 16. The lanes of a
warp copy the columns of x that the warp multiplies. So no warp waits for another one's copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...atoms import MmaAtom, ldmatrix, operand_map
from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...dtypes import DType
from ...layouts import Layout
from ..numbers import W
from ..quantized.blocks import OF_QUARTERS, QUARTERS, PackedBlocks
from ..quantized.formats import UNIT_K
from ..thread_addresses import ThreadAddresses

COLUMNS = 8  # of C in an mma.sync: rows of x
WORD_BYTES = 4
_TILES = 2  # of B in an ldmatrix.x4, one after the other along K


@dataclass(frozen=True)
class StreamedWeights(PackedBlocks):
    """Packed weights as A. A unit of 64 features and 128 of K is four strips.

    band       strips of a slot: 1, 2 or 4
    by_shift   as `StreamedConfig.one_shift` has it
    """

    band: int = 1
    by_shift: bool = False

    @property
    def scales_sums(self) -> bool:
        """True, since a group's sum is multiplied once, where each weight would be. No weight is rounded."""
        return True

    @property
    def one_shift(self) -> bool:
        """True if int4 is converted by one shift a word. Totals are multiplied by the divisor."""
        return self.by_shift

    @property
    def number_bytes(self) -> int:
        """Bytes that a lane loads of a group. The scales of its two rows, and their zeros."""
        return WORD_BYTES * self.packing.scale_words

    @cached_property
    def codes(self) -> Layout:
        """(lane, vector) -> byte of a strip in a slot."""
        return Layout((WARP, self.vectors), (VECTOR_BYTES, VECTOR_BYTES * WARP))

    @property
    def shares_scales(self) -> bool:
        """True if lanes load scales that other lanes copied. A lane's own copies would be several."""
        return self.groups > 1

    @cached_property
    def numbers(self) -> Layout:
        """(lane, group) -> byte of a strip in a slot, behind the codes. Of shared ones four lanes load the same."""
        lanes = WARP // (self.group_bytes // self.number_bytes)
        each = (0, self.number_bytes) if self.shares_scales else (self.number_bytes, lanes * self.number_bytes)
        return Layout(((lanes, WARP // lanes), max(1, self.groups)), (each, self.group_bytes))

    @property
    def group_bytes(self) -> int:
        """Bytes of a strip's scales of one group, with their zeros, as in the unit."""
        return self.packing.group_bytes // QUARTERS

    @property
    def strip_codes(self) -> int:
        """Bytes of codes of a strip in a slot."""
        return self.vectors * VECTOR_BYTES * WARP

    @property
    def strip_bytes(self) -> int:
        """Bytes of a strip in a slot."""
        return self.strip_codes + self.groups * (self.group_bytes if self.shares_scales else WARP * self.number_bytes)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot."""
        return self.band * self.strip_bytes

    def copies(self, lane: W, quarter: W) -> list[tuple[W, W, int, int]]:
        """(byte of the unit, byte of the slot, bytes, copying lanes) of a lane's copies.

        Ints, arrays or traced integers. Of fewer lanes than a warp's the first ones copy.

        quarter  of the band's first strip
        """
        order, copies = self.packing, []
        each, scales = self.group_bytes // VECTOR_BYTES, self.groups * self.group_bytes // VECTOR_BYTES
        for strip in range(self.band):
            first, at = WARP * (quarter + strip), strip * self.strip_bytes
            for v in range(self.vectors):
                copies.append((order.vector_bytes(first + lane, v), at + self.codes(lane, v), VECTOR_BYTES, WARP))
            # Scales of a quarter lie behind those of the one before: the lane's own part is the same for all bands.
            scales_at = (quarter + strip) * order.scale_bytes(WARP, 0)
            if self.shares_scales:
                source = scales_at + order.scale_bytes(0, lane // each) + lane % each * VECTOR_BYTES
                target = at + self.strip_codes + lane * VECTOR_BYTES
                copies.append((order.code_bytes + source, target, VECTOR_BYTES, scales))
            elif self.groups:
                source, target = order.scale_bytes(lane, 0), at + self.strip_codes + self.numbers(lane, 0)
                copies.append((order.code_bytes + scales_at + source, target, self.number_bytes, WARP))
        return copies

    def runs(self, quarter: W) -> list[tuple[W, int]]:
        """(first byte of the unit, bytes) of what a warp's lanes copy together. They are of each vector, and of each
        group.

        quarter  of the band's first strip
        """
        order, thread = self.packing, WARP * quarter
        each, size = self.band * WARP * VECTOR_BYTES, self.band * order.group_bytes // QUARTERS
        vectors = [(order.vector_bytes(thread, v), each) for v in range(self.vectors)]
        return [*vectors, *[(order.code_bytes + order.scale_bytes(thread, g), size) for g in range(self.groups)]]

    def unit(self, band: W) -> tuple[W, W]:
        """(row block, quarter of its units) of a band's first strip."""
        strip = band * self.band
        return strip >> OF_QUARTERS, strip & (QUARTERS - 1)  # not // and %, which a kernel computes for signed numbers


@dataclass(frozen=True)
class StreamedRows:
    """x as B, in shared memory.

    rows   that there is room for: 1, 2, 4 or 8
    depth  of the block's part of K with zeros: whole units for every warp
    atom   mma.sync, of which x is B
    """

    dtype: DType
    rows: int
    depth: int
    atom: MmaAtom
    name: str = "B"
    order: str = "col"
    major: str = "K"

    @property
    def pitch(self) -> int:
        """Bytes from line to line."""
        return self.depth * self.dtype.bytes + VECTOR_BYTES

    @property
    def bytes(self) -> int:
        """Bytes of all lines."""
        return self.rows * self.pitch

    @property
    def unit_chunks(self) -> int:
        """16-byte vectors of a unit's columns, of all rows."""
        return self.rows * self.unit_step // VECTOR_BYTES

    def chunk(self, number: W) -> tuple[W, W]:
        """(row, byte among the unit's of its line) of a vector."""
        each = self.unit_step // VECTOR_BYTES
        return number // each, number % each * VECTOR_BYTES

    def byte(self, row: W, k: W) -> W:
        """The byte of an element."""
        return row * self.pitch + k * self.dtype.bytes

    @property
    def unit_step(self) -> int:
        """Bytes of a line from one unit to the next."""
        return UNIT_K * self.dtype.bytes

    @property
    def fragments(self) -> int:
        """Fragments of a unit: instructions along K."""
        return UNIT_K // int(self.atom.shape_mnk[2])

    @property
    def loads(self) -> int:
        """Loads of a unit's fragments, each of two."""
        return self.fragments // _TILES

    @cached_property
    def lines(self) -> Layout:
        """((lane, element of its line), (load, 0)) -> row of x + 8 * k."""
        return operand_map(ldmatrix(_TILES * 2, element=self.dtype), self.atom, "B", (1, self.fragments))

    def line_byte(self, lane: W, load: int, least: Callable[..., W] = min) -> W:
        """The byte at which a lane's line of a load begins. Rows that are not there are the last one again.

        least  the smaller of two numbers, as the caller computes it
        """
        element = self.lines((lane, 0), (load, 0))
        return self.byte(least(element % COLUMNS, self.rows - 1), element // COLUMNS)

    @cached_property
    def places(self) -> ThreadAddresses:
        """(lane, load) -> byte at which the lane's line begins, in the first unit."""
        return ThreadAddresses.derive(
            lambda lanes, index: self.line_byte(lanes, index[0], np.minimum), WARP, [(i,) for i in range(self.loads)]
        )

    def load_of(self, fragment: int) -> tuple[int, int]:
        """(load, first of its registers) of a fragment of a unit."""
        return fragment // _TILES, fragment % _TILES * int(self.atom.registers("B"))
