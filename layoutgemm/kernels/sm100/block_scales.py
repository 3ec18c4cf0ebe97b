"""Block scales of a Blackwell product, from shared to tensor memory.

    blocked factors --TMA--> chunks in shared memory --tcgen05.cp--> tensor memory --tcgen05.mma.block_scale--> D

Formats and the order of factors are those of `operands.block_scales`. The thread that multiplies copies a stage's
chunks to tensor memory first, behind the accumulators. Of groups of rows a tile's first chunk is that of its number
among the tiles of 128 rows. Of a pair each block has the factors of its own rows of A, and those of all columns of B.

Sources: PTX ISA, "Block Scaling" and "tcgen05.cp". No device of this architecture has run it: the emulator and ptxas
have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ...atoms import OperandDescriptor, Tcgen05Atom, TmaPlan, TmemCopyAtom, smem_tile, tcgen05_cp
from ...atoms.smem.descriptor import derive as derive_descriptor
from ...atoms.smem.instruction_descriptor import InstructionDescriptor
from ...atoms.smem.operand_read import OperandRead
from ...atoms.tma.plan import TmaCopy
from ...atoms.tmem.layout import LANES, scale_place
from ...dtypes import dtype, i32
from ..grouped.plan import GroupedPlan
from ..numbers import W
from ..operands.block_scales import CHUNK_BYTES, CHUNK_ROWS, CHUNK_WORDS, BlockedFactors
from ..plan import tile_count

CHUNK_COLUMNS = CHUNK_WORDS // (LANES // 4)  # of tensor memory; a quarter of the lanes has them, the others copies


@dataclass(frozen=True, kw_only=True)
class BlockScales(BlockedFactors):
    """The factors of a plan's tiles.

    mma      the instruction
    column   of tensor memory where A's factors begin; B's follow
    """

    mma: Tcgen05Atom
    column: int

    @cached_property
    def cp(self) -> TmemCopyAtom:
        """The copy of a chunk to all four quarters of the lanes."""
        return tcgen05_cp("32x128b", "warpx4", self.mma.cta_group)

    @cached_property
    def descriptor(self) -> OperandDescriptor:
        """The matrix descriptor of a chunk, 32 rows of 16 bytes. It steps through a stage's chunks."""
        rows, bits = self.cp.tmem[0].size, self.cp.tmem[1].size
        tile = smem_tile((rows, bits // 8), "u8", "K", "none")
        read = OperandRead("A", rows, bits // 8, dtype("u8"), "packed", ("K",), "sm_100a", "tcgen05", str(self.cp))
        return replace(derive_descriptor(tile, read, "A"), k_steps=tuple([byte for byte, _ in self.chunk_places()]))

    @cached_property
    def copies(self) -> tuple[TmaPlan, TmaPlan]:
        """The loads of A's and of B's chunks of a K tile. A box each, of a gate's B for each half."""
        of_a, of_b = (
            TmaPlan(i32, ("word", "chunk", "group"), (CHUNK_WORDS, self.chunks, groups), "none",
                    (TmaCopy((0, 0, 0), 0, rank=0),))
            for groups in (self.groups[0], self.groups[1] // self.halves)
        )  # fmt: skip
        return of_a, of_b

    def place(self, k_tile: W, group: W) -> dict[str, W]:
        """The coordinates of a tile's chunks, which begin with a group of 128 rows."""
        return {"word": 0, "chunk": k_tile * self.chunks, "group": group}

    def loads(self, operand: int, first: W, matrix: W, rows: W) -> list[tuple[W, int]]:
        """(group of 128 rows, byte in a stage) of each load of A's (0) or B's (1) factors.

        first  the tile's first row, or column, of a matrix's `rows`, or of each half of B
        """
        halves = self.halves if operand else 1
        each = self.groups[operand] // halves * self.chunks * CHUNK_BYTES
        begins = matrix * tile_count(rows * halves, CHUNK_ROWS)
        return [
            (begins + (first + half * rows) // CHUNK_ROWS, self.offset(operand) + half * each) for half in range(halves)
        ]

    def first_column(self, operand: int) -> int:
        """The first column of A's (0) or B's (1) factors in tensor memory."""
        return self.column + (0, self.groups[0] * self.chunks * CHUNK_COLUMNS)[operand]

    @property
    def columns(self) -> int:
        """Columns of tensor memory that all factors of a K tile take."""
        return sum(self.groups) * self.chunks * CHUNK_COLUMNS

    def chunk_places(self) -> list[tuple[int, int]]:
        """(byte in a stage, column of tensor memory) of each chunk, in copy order."""
        return [
            (
                self.offset(operand) + (group * self.chunks + chunk) * CHUNK_BYTES,
                self.first_column(operand) + (chunk * groups + group) * CHUNK_COLUMNS,
            )
            for operand, groups in enumerate(self.groups)
            for group in range(groups)
            for chunk in range(self.chunks)
        ]

    def read(self, word: InstructionDescriptor, k_block: int) -> tuple[InstructionDescriptor, tuple[int, int]]:
        """The k_block-th instruction's descriptor, and the columns of its factors of A and B."""
        each = self.mma.shape_mnk[2] // self.format.vector
        (a, a_id), (b, b_id) = (scale_place(groups * CHUNK_ROWS, each, k_block) for groups in self.groups)
        columns = self.first_column(0) + a, self.first_column(1) + b
        return replace(word, scale_a_id=a_id, scale_b_id=b_id), columns


def first_chunks(plan: GroupedPlan, row: W, start: W, before: W, columns: W | int) -> W:
    """The 128 rows of A's factors that a group's tile begins with, by their number. Ints or traced integers.

    row      the tile's first, of a group from row `start` on
    before   tiles in the groups before; `columns` of them along N
    """
    return before // columns + (row - start) // plan.tile_c[0]
