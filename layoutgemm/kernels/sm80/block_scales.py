"""Block scales of the mma.sync kernel: from global memory to the lanes' registers.

    blocked factors --cp.async--> chunks in a stage --ld.shared--> a word a lane --mma.sync.block_scale--> accumulators

Formats and the order of factors are those of `operands.block_scales`. A word has the four factors of a row in a chunk.
An instruction reads the factors of its rows from some of the lanes, as their copies in a quad allow: a thread-id says
which, a byte-id which factors of the word. So one register holds those of several instructions' rows, 2 of A and 4
of B: `Sm80Scales.row` says whose.

Sources: PTX ISA, "Block Scaling for mma.sync". No device of this architecture has run it: the emulator and ptxas have.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...arguments import shown
from ...atoms import MmaAtom, mma_sync
from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...atoms.mma.sync import FORMS
from ...atoms.tmem.layout import block_scale_layout
from ...dtypes import DType
from ...errors import PlanError
from ...layouts import Layout
from ..numbers import W
from ..operands.block_scales import (
    CHUNK_BYTES,
    CHUNK_FACTORS,
    CHUNK_ROWS,
    BlockedFactors,
    ScaleFormat,
    chunks_of,
)
from ..operands.combinations import PARTS, Asked
from ..plan import check_settings, tile_count
from ..thread_addresses import Index, ThreadAddresses

OPERANDS = ("SFA", "SFB")
CHUNK_VECTORS = CHUNK_BYTES // VECTOR_BYTES
SCALED_K = 128  # elements of K in a stage: whole chunks of each format
BESIDE = ("epilogue", "groups of columns", "batch")  # parts that go with block scales


@dataclass(frozen=True, kw_only=True)
class Sm80Scales(BlockedFactors):
    """The factors of a plan's tiles.

    mma      the instruction
    extents_of_tile  rows of A and columns of B
    blocks   instructions of a warp along M and N
    threads  that copy
    """

    mma: MmaAtom
    extents_of_tile: tuple[int, int]
    blocks: tuple[int, int]
    threads: int

    @property
    def each(self) -> int:
        """Factors of a row that an instruction reads."""
        return int(self.mma.shape_mnk[2]) // self.format.vector

    @property
    def depths(self) -> int:
        """Instructions along K whose factors a word has."""
        return CHUNK_FACTORS // self.each

    # ---------------------------------------------------------------------------------------------------- the registers
    def copies(self, operand: int) -> Layout:
        """The distances of a quad's lanes that hold the same row."""
        return self.mma.layout(OPERANDS[operand])[0].nullspace()

    def registers(self, operand: int) -> int:
        """Words of a lane for a chunk of A (0) or B (1)."""
        return -(-self.blocks[operand] // int(self.copies(operand).size))

    def selected(self, operand: int, block: int, step: int) -> tuple[int, int, int]:
        """(register, byte-id, thread-id) of a warp's instruction. `block` is its number along M or N.

        step  depth of the K tile
        """
        thread_id, register = divmod(block, self.registers(operand))
        return register, step % self.depths * self.each, thread_id

    def row(self, operand: int, lane: W, warp: W, register: int) -> W:
        """The row of the tile whose factors a lane holds. Ints, arrays or traced integers."""
        copies, height = self.copies(operand), self.mma.tile_of(OPERANDS[operand])[0]
        copy = lane // int(copies.stride) % int(copies.size)
        block = (register + self.registers(operand) * copy) % self.blocks[operand]
        inside: W = self.mma.coords(OPERANDS[operand])(lane, 0)[0]
        return (warp * self.blocks[operand] + block) * height + inside

    # ------------------------------------------------------------------------------------------------ the shared memory
    def tile(self, operand: int) -> Layout:
        """(row, factor) -> byte of a stage's chunks of A (0) or B (1)."""
        return block_scale_layout(self.groups[operand] * CHUNK_ROWS, self.chunks * CHUNK_FACTORS)

    def word(self, operand: int, lane: W, warp: W, index: Index) -> W:
        """The byte of the chunks at which a lane's word begins.

        index  (register, chunk)

        The tile begins with a chunk's first row: `inside` is to be added.
        """
        found: W = self.tile(operand)(self.row(operand, lane, warp, index[0]), index[1] * CHUNK_FACTORS)
        return found

    def inside(self, operand: int, first: W) -> W:
        """Bytes that lie before a tile's first row, which is row `first` of the matrix.

        A tile of fewer than 128 rows divides them: its rows' bits are others than its first row's.
        """
        found: W = self.tile(operand)(first % CHUNK_ROWS, 0)
        return found if self.extents_of_tile[operand] < CHUNK_ROWS else first * 0

    def places(self, operand: int, warps: int) -> ThreadAddresses:
        """(lane and warp, (register, chunk)) -> byte of the chunks. `warps` share the tile along M or N."""
        indices = [(r, chunk) for chunk in range(self.chunks) for r in range(self.registers(operand))]
        return ThreadAddresses.derive(lambda t, i: self.word(operand, t % WARP, t // WARP, i), WARP * warps, indices)

    # ------------------------------------------------------------------------------------------------------- the copies
    def vectors(self, operand: int) -> int:
        """Vectors of 16 bytes that the threads copy for a K tile."""
        return self.groups[operand] * self.chunks * CHUNK_VECTORS

    def rounds(self, operand: int) -> int:
        """Vectors of a thread; the last one may be of some threads only."""
        return -(-self.vectors(operand) // self.threads)

    def vector(self, operand: int, thread: W, number: int) -> tuple[W, W, W]:
        """(group of 128 rows, chunk, byte in both) of a thread's vector. Ints, arrays or traced integers."""
        at = (thread + number * self.threads) * VECTOR_BYTES
        each = self.chunks * CHUNK_BYTES
        return at // each, at % each // CHUNK_BYTES, at % each

    def source(self, group: W, byte: W, k: W) -> W:
        """The byte of a matrix's blocked factors, in the first K tile. `group`: of the matrix."""
        return group * tile_count(k, self.format.chunk_k) * CHUNK_BYTES + byte

    @cached_property
    def bytes_per_k(self) -> int:
        """Bytes of 128 rows' chunks for an element of K."""
        return CHUNK_BYTES // self.format.chunk_k


def scaled_atom(form: ScaleFormat, a: DType | str, b: DType | str) -> MmaAtom:
    """The instruction for two types of elements.

    >>> from layoutgemm.kernels.operands.block_scales import scale_format
    >>> print(scaled_atom(scale_format("nvfp4"), "e2m1", "e2m1"))
    mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3
    """
    shape = next(known.shapes[0] for known in FORMS if known.kind == form.kind)
    return mma_sync(shape, a, b, kind=form.kind, scale=form.scale, vector=form.vector)


def scales_of(
    form: ScaleFormat | None, atom: MmaAtom, tile: tuple[int, int, int], warps: tuple[int, int]
) -> Sm80Scales | None:
    """The block scales of a plan's tiles, or None. Raises PlanError for a tile that cuts chunks in parts.

    tile  M, N, K;   warps  along M and N
    """
    if form is None:
        return None
    chunks = chunks_of(form, tile[2])
    for name, extent in zip("MN", tile[:2], strict=True):
        if extent % CHUNK_ROWS and CHUNK_ROWS % extent:
            raise PlanError(
                f"{extent} of {name} in a tile: scales = {shown(form.name)} have chunks of {CHUNK_ROWS}; take a "
                "multiple of that, or 16, 32 or 64"
            )
    groups = tile_count(tile[0], CHUNK_ROWS), tile_count(tile[1], CHUNK_ROWS)
    m, n, _ = atom.shape_mnk
    return Sm80Scales(
        format=form, chunks=chunks, groups=groups, mma=atom, extents_of_tile=tile[:2],
        blocks=(tile[0] // warps[0] // m, tile[1] // warps[1] // n), threads=WARP * warps[0] * warps[1],
    )  # fmt: skip


def check_scales(form: ScaleFormat | None, asked: Asked, config: object) -> None:
    """Raise PlanError for parts or a configuration that no kernel has with block scales."""
    if form is None:
        return
    check_settings(config, "a product with block scales takes", loads="cp.async", persistent=False)
    if taken := [PARTS[part][0] for part in asked.parts if part not in BESIDE]:
        raise PlanError(
            f"{taken[0]}: the mma.sync kernel has none with scales = {shown(form.name)}; it takes an epilogue, an "
            "order, a batch"
        )
