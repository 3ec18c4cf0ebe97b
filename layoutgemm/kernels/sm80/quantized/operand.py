"""Packed weights as B of the mma.sync kernel: copies, loads and valid configurations.

    packed units --cp.async of 16 bytes--> stage --ld.shared of 16 bytes--> words --conversions--> registers of B

The units are those of sm_90a: weights are packed once, for all architectures. A lane has four registers of a fragment
of 16 features x 16 of K, in the order of wgmma's A. Two are mma.sync's B for 8 of the features, two for the other 8.
`halves` says which.

    piece    16 features: a warp's quarter of a unit's 64; a warp has a contiguous run of them
    chunk    16 bytes that a thread copies: those of a stage, block after block, in the order of the threads
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ....atoms import MmaAtom
from ....atoms.copy.base import VECTOR_BYTES, WARP
from ....errors import PlanError
from ....layouts import Layout
from ...numbers import W
from ...plan import check_settings
from ...quantized.blocks import DEPTHS, QUARTERS, STRIP, PackedBlocks, PackedTile
from ...quantized.conversions import FusedPairs, NumpyPairs
from ...quantized.formats import ACTIVATIONS, FLOAT8, UNIT_ROWS, QuantizedFormat
from ...quantized.order import PackedOrder
from ...thread_addresses import Index, ThreadAddresses

if TYPE_CHECKING:
    from ...derive import Operand
    from ...epilogue.chain import Epilogue
    from ..plan import Sm80Config

_NONE = ThreadAddresses((), ())
_FUSED = ("bf16",)  # types whose differences and products are fused multiply-adds before sm_90


@dataclass(frozen=True, kw_only=True)
class Sm80PackedOperand(PackedBlocks):
    """Packed weights as B.

    atom     mma.sync, of which a piece is two B
    warps    how many share the tile along N
    threads  that copy it
    halves   (8 features) -> registers of a piece's fragment that are the instruction's B, in its order
    words    (lane and warp, (piece, vector)) -> byte of a stage: the 16 bytes of codes that a lane loads
    scales   (lane and warp, (piece, group)) -> byte of a stage: the scales of the lane's two features
    """

    name: str = "B"
    order: str = "col"
    atom: MmaAtom
    warps: int
    threads: int
    halves: tuple[tuple[int, ...], ...] = ()
    words: ThreadAddresses = _NONE
    scales: ThreadAddresses = _NONE
    tma: None = None

    @property
    def warp_extent(self) -> int:
        """Features of one warp."""
        return self.smem.extent[0] // self.warps

    @property
    def pieces(self) -> int:
        """Pieces of one warp."""
        return self.warp_extent // STRIP

    @property
    def mn_order(self) -> Layout:
        """Index along N within 16 as the instructions count them -> index in the tile: itself."""
        return Layout(STRIP)

    @property
    def fused(self) -> bool:
        """True if differences and products of a conversion are fused multiply-adds."""
        return self.packing.activations in _FUSED

    @property
    def pairs(self) -> type[NumpyPairs]:
        """The arithmetic of the conversions."""
        return FusedPairs if self.fused else NumpyPairs

    # ------------------------------------------------------------------------------------------------------ the copies
    @property
    def chunks(self) -> int:
        """Chunks of a stage."""
        return self.bytes // VECTOR_BYTES

    @property
    def rounds(self) -> int:
        """Chunks of a thread; the last one may be for some threads only."""
        return -(-self.chunks // self.threads)

    def whole(self, number: int) -> bool:
        """True if every thread has a chunk in that round."""
        return (number + 1) * self.threads <= self.chunks

    def chunk(self, thread: W, number: int) -> tuple[W, W]:
        """(row block of the tile, byte in the block) of a thread's chunk. Ints, arrays or traced integers."""
        at = (thread + number * self.threads) * VECTOR_BYTES
        return at // self.block_bytes, at % self.block_bytes

    def source(self, inside: W) -> tuple[W, W]:
        """(byte in a unit, bytes further on in its second half) of a block's byte.

        Behind the codes of a half unit come scales: those of its own groups, or those that both halves share.
        """
        order, scale = self.packing, inside // self.code_bytes
        further = order.format.groups // self.parts * order.group_bytes - self.code_bytes
        return inside + scale * (order.code_bytes - self.code_bytes), self.code_bytes + scale * further

    # ------------------------------------------------------------------------------------------------------- the loads
    def place(self, warp: W, piece: int) -> tuple[W, W]:
        """(row block of the tile, quarter of its unit) of a warp's piece."""
        number = warp * self.pieces + piece
        return number // QUARTERS, number % QUARTERS

    def word_byte(self, lane: W, warp: W, index: Index) -> W:
        """The byte of a stage at which a lane's vector of a piece begins. `index` is (piece, vector)."""
        block, quarter = self.place(warp, index[0])
        return block * self.block_bytes + self._of(self.packing.vector_bytes, lane, quarter, index[1])

    def scale_byte(self, lane: W, warp: W, index: Index) -> W:
        """The byte of a stage at which a lane's scales of a piece begin. `index` is (piece, group)."""
        block, quarter = self.place(warp, index[0])
        first = block * self.block_bytes + self.code_bytes
        return first + self._of(self.packing.scale_bytes, lane, quarter, index[1])

    def _of(self, layout: Layout, lane: W, quarter: W, number: int) -> Any:
        return layout(lane + WARP * quarter, number)

    @cached_property
    def vector_indices(self) -> list[Index]:
        """(piece, vector) of all loads of codes."""
        return [(piece, vector) for vector in range(self.vectors) for piece in range(self.pieces)]

    @cached_property
    def scale_indices(self) -> list[Index]:
        """(piece, group) of all loads of scales."""
        return [(piece, group) for group in range(self.groups) for piece in range(self.pieces)]


def halves_of(order: PackedOrder, atom: MmaAtom) -> tuple[tuple[int, ...], ...]:
    """Registers of a fragment that are B of an instruction, for each 8 features.

    Raises PlanError if a register's two values are not neighbours in any register of B.

    >>> from layoutgemm.atoms import mma_sync
    >>> halves_of(PackedOrder(QuantizedFormat("int4", 128), "bf16"), mma_sync("m16n8k16", "bf16"))
    ((0, 2), (1, 3))
    """
    lanes, width = np.arange(WARP)[:, None], int(atom.shape_mnk[1])
    held = _places(order.atom, "A", lanes)
    found = []
    for half in range(STRIP // width):
        n, k = atom.coords("B")(lanes, np.arange(int(atom.layout_B[1].size))[None, :])
        wanted = np.stack([np.asarray(n) + half * width, np.asarray(k)])
        each = wanted.reshape(2, WARP, atom.registers("B"), -1)
        registers = [_register(held, each[:, :, r]) for r in range(atom.registers("B"))]
        found.append(tuple(registers))
    return tuple(found)


def _places(atom: MmaAtom, name: str, lanes: object) -> Any:
    """(row or column, k) of every register's values: (2, lane, register, value)."""
    values = int(atom.layout_A[1].size)
    places = np.stack([np.asarray(x) for x in atom.coords(name)(lanes, np.arange(values)[None, :])])
    return places.reshape(2, WARP, -1, 2)


def _register(held: Any, wanted: Any) -> int:
    """The register of A that holds these values in all lanes."""
    for register in range(held.shape[2]):
        if (held[:, :, register] == wanted).all():
            return register
    raise PlanError(f"no register of A has the values of B at {wanted[:, 0].T.tolist()} in lane 0")


def packed_b(
    fmt: QuantizedFormat, spec: Operand, extent: tuple[int, int], warps: int, threads: int, atom: MmaAtom
) -> Sm80PackedOperand:
    """Packed weights as B of a K tile.

    spec    the activations' type
    extent  of the tile: (features, depth)
    """
    order = PackedOrder(fmt, spec.dtype.name)
    bare = Sm80PackedOperand(
        order, PackedTile(extent, 0), spec.dtype, atom=atom, warps=warps, threads=threads, halves=halves_of(order, atom)
    )
    bare = replace(bare, smem=PackedTile(extent, bare.bytes))
    both = WARP * warps

    def words(t: Any, index: Index) -> Any:
        return bare.word_byte(t % WARP, t // WARP, index)

    def scales(t: Any, index: Index) -> Any:
        return bare.scale_byte(t % WARP, t // WARP, index)

    return replace(
        bare,
        words=ThreadAddresses.derive(words, both, bare.vector_indices),
        scales=ThreadAddresses.derive(scales, both, bare.scale_indices),
    )


def check_packed(
    fmt: QuantizedFormat, sizes: tuple[int, int], config: Sm80Config, operands: tuple[Operand, Operand],
    epilogue: Epilogue | None,
) -> None:  # fmt: skip
    """Raise PlanError, naming the obstacle, for a problem without a kernel of packed weights.

    sizes  K and batch
    """
    k, batch = sizes
    a, b = operands
    _check_types(a, b)
    if b.order != "col":
        raise PlanError(f"b is {b}: packed weights have K contiguous, a 'col'")
    if batch > 1:
        raise PlanError(f"batch = {batch}: packed weights are one matrix")
    fmt.check_depth(k)
    check_settings(config, "a product with packed weights takes", loads="cp.async", persistent=False)
    if config.tile_k not in (None, *DEPTHS):
        raise PlanError(f"tile_k = {config.tile_k}: a K tile is half a packed unit or a whole one, {DEPTHS}")
    if config.tile[1] % UNIT_ROWS:
        raise PlanError(f"tile = {config.tile}: whole packed units, a multiple of {UNIT_ROWS} along N")
    if config.align[1] != VECTOR_BYTES:
        raise PlanError(f"align = {config.align}: packed weights are aligned to {VECTOR_BYTES} bytes")
    fmt.check_epilogue(epilogue)


def _check_types(a: Operand, b: Operand) -> None:
    """Raise PlanError for operands that packed weights are not multiplied as."""
    if a.dtype.name in FLOAT8 or b.dtype.name in FLOAT8:
        raise PlanError(
            f"a is {a.dtype} and b {b.dtype}: scales of groups multiply the sums of float8, and the mma.sync kernel "
            "has one sum of all K; take bf16 or f16, or sm_90a"
        )
    if a.dtype.name not in ACTIVATIONS or b.dtype.name != a.dtype.name:
        raise PlanError(f"a is {a.dtype} and b {b.dtype}: packed weights become bf16 or f16, as a is")
