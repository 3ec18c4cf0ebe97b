"""A plan's operand A where it is packed weights. Its stages, its bulk copies, and what a configuration may say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ....errors import PlanError
from ...derive import Operand
from ...numbers import W
from ...plan import check_settings
from ...quantized.blocks import DEPTHS, PackedBlocks, PackedTile
from ...quantized.float8 import refusal
from ...quantized.formats import ACTIVATIONS, FLOAT8, QuantizedFormat
from ...quantized.order import WORDS, PackedOrder
from .strips import StripCopies

if TYPE_CHECKING:
    from ....atoms import MmaAtom
    from ...epilogue.chain import Epilogue
    from ..config import Sm90Config

PRODUCT_K = 64  # of a group of products, at most: its fragments are converted while the group before runs


@dataclass(frozen=True)
class PackedOperand(PackedBlocks):
    """Packed weights as A. Bulk copies of whole or half units, one row block after another; no tensor map.

    scales  what the scales of groups multiply, as `Sm90Tuning` has it; of float8 activations they multiply sums
    turns   runs of the loop that issues the products of a K tile, each with the words of its own part of K: two sets of
            fragment registers are then as many times smaller
    strips  the copies of a tile of strips, or None for bulk copies
    """

    scales: str = "weights"
    turns: int = 1
    strips: StripCopies | None = None
    rest: None = None
    ends: None = None
    maps: int = 1  # every kernel's first parameter is a tensor map: here it is B's once more, and not used

    @property
    def copies(self) -> tuple[()]:
        """Its TMA copies: none."""
        return ()

    @property
    def sent_bytes(self) -> int:
        """The bytes of a stage that its barrier counts: none of strips, whose copies arrive."""
        return self.bytes if self.strips is None else 0

    @property
    def arrivals(self) -> int:
        """Arrivals at a stage's barrier, of threads that copy strips."""
        return 0 if self.strips is None else self.strips.threads

    @property
    def scales_sums(self) -> bool:
        """True if the scales of groups multiply sums in float32, and not weights."""
        return self.packing.scales_sums or (self.scales == "sums" and self.groups > 0)

    def product_groups(self, blocks: int) -> int:
        """Groups of products of a K tile and a row block; `blocks` of a warpgroup.

        Groups alternate between two sets of fragment registers, so a warpgroup has two or more in a K tile. Where
        scales multiply sums, a sum is of one or more.

        >>> fmt, spec = QuantizedFormat("int4"), Operand.parse("bf16")
        >>> [packed_operand(fmt, 128, depth, spec).product_groups(blocks) for depth in DEPTHS for blocks in (1, 2)]
        [2, 1, 2, 2]
        """
        sums = self.sums if self.scales_sums else 1
        return max(sums, self.smem.extent[1] // PRODUCT_K, 2 // blocks) if self.turns == 1 else 2 * self.turns

    def registers(self, atom: MmaAtom, blocks: int) -> int:
        """A consumer's registers: two groups of fragments, words and scales of a turn."""
        fragments = 2 * self.smem.extent[1] // (self.packing.depth * self.product_groups(blocks)) * atom.registers("A")
        words = sum(count for _, count in self.turn_words(0)) + len(self.turn_scales(0)) * self.packing.scale_words
        return fragments + blocks * words

    def turn_words(self, turn: W) -> list[tuple[W, int]]:
        """A thread's words of a turn. (byte behind its first vector of the unit, words there); int or traced.

        >>> fmt, spec = QuantizedFormat("int4", 128), Operand.parse("bf16")
        >>> replace(packed_operand(fmt, 192, 64, spec), turns=2).turn_words(1)
        [(8, 2)]
        """
        each, at = self.vectors * WORDS // self.turns, self.packing.vector_bytes
        if each % WORDS == 0:
            return [(at(0, turn * (each // WORDS) + vector), WORDS) for vector in range(each // WORDS)]
        return [(at(0, turn * each // WORDS) + 4 * (turn * each % WORDS), each)]

    def turn_scales(self, turn: W) -> list[W]:
        """The bytes of the scales of a turn's groups, behind those of the thread's rows. Ints or traced integers.

        >>> fmt, spec = QuantizedFormat("e4m3", 32), Operand.parse("bf16")
        >>> replace(packed_operand(fmt, 192, 64, spec), turns=2).turn_scales(1)
        [128]
        """
        first, count = turn * self.groups // self.turns, -(-self.groups // self.turns)
        return [self.packing.scale_bytes(0, first + group) for group in range(count)]


def packed_operand(
    fmt: QuantizedFormat, rows: int, depth: int, spec: Operand, scales: str = "weights",
    strips: tuple[int, int] | None = None,
) -> PackedOperand:  # fmt: skip
    """The operand of K tiles of `rows` rows and `depth` of K. `spec` is the activations' type.

    strips  features of a tile of strips, and threads of the loader; or None
    """
    order = PackedOrder(fmt, spec.dtype.name)
    copies = None if strips is None else StripCopies(order, *strips)
    made = PackedOperand(order, PackedTile((rows, depth), 0), spec.dtype, scales=scales, strips=copies)
    return replace(made, smem=PackedTile((rows, depth), made.bytes))


def check_packed(
    fmt: QuantizedFormat, sizes: tuple[int, int, int, int], config: Sm90Config, operands: tuple[Operand, Operand],
    epilogue: Epilogue | None,
) -> None:  # fmt: skip
    """Raise PlanError, naming the obstacle, for a problem without a kernel of packed weights."""
    a, b = operands
    check_types(fmt, a, b)
    if a.order != "row":
        raise PlanError(f"a is {a}: packed weights have K contiguous, a 'row'")
    fmt.check_depth(sizes[2])
    takes = "a product with packed weights takes"
    check_settings(config, takes, loaded_a_rows=None, staged_epilogue_k_tiles=0)
    if config.schedule != "sliced":
        check_settings(config, f"{takes} 'sliced' or", schedule="cooperative")
    if config.tile_k not in (None, *DEPTHS):
        raise PlanError(f"tile_k = {config.tile_k}: a K tile is half a packed unit or a whole one, {DEPTHS}")
    if config.cluster[1] != 1:
        raise PlanError(f"cluster = {config.cluster}: packed weights are not shared along N; take (rows, 1)")
    if config.tile[1] // 2 % (4 * config.split):
        raise PlanError(
            f"split = {config.split} of {config.tile[1]} columns: a thread has {config.tile[1] // 2} sums, and sends "
            f"vectors of 4 to each part; take a multiple of {8 * config.split} columns"
        )
    fmt.check_epilogue(epilogue)


def check_types(fmt: QuantizedFormat, a: Operand, b: Operand) -> None:
    """Raise PlanError for operands that packed weights are not multiplied as."""
    wanted = FLOAT8 if a.dtype.name == "e4m3" else (a.dtype.name,)
    if a.dtype.name not in ACTIVATIONS or b.dtype.name not in wanted:
        raise PlanError(
            f"a is {a.dtype} and b {b.dtype}: packed weights become bf16 or f16, as b is, or e4m3 for a b of float8"
        )
    if a.dtype.name in FLOAT8 and (reason := refusal(fmt)):
        raise PlanError(f"weights are {fmt}, for a b of {b.dtype}: {reason}")
