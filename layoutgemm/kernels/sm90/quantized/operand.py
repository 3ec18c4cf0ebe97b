"""A plan's operand A where it is packed weights: its stages, its bulk copies, and what a configuration may say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ....errors import PlanError
from ...derive import Operand
from ...numbers import W
from .float8 import refusal
from .formats import ACTIVATIONS, COLUMN_SCALE, FLOAT8, UNIT_K, UNIT_ROWS, QuantizedFormat
from .order import PackedOrder

if TYPE_CHECKING:
    from ....dtypes import DType
    from ...epilogue.chain import Epilogue
    from ..config import Sm90Config

STAGE_ALIGNMENT = 128  # bytes: a warp's 16-byte vectors are whole lines of banks
DEPTHS = (64, UNIT_K)  # of a K tile: half a unit, or a whole one
PRODUCT_K = 64  # of a group of products, at most: its fragments are converted while the group before runs


@dataclass(frozen=True, slots=True)
class PackedTile:
    """A stage of packed weights: whole units, one for each 64 rows.

    extent  (rows, depth) in weights
    """

    extent: tuple[int, int]
    bytes: int
    alignment: int = STAGE_ALIGNMENT

    @property
    def said(self) -> str:
        """The tile's elements, for a picture."""
        return "packed weights"


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """One bulk copy of a row block: bytes in global memory -> bytes of the block in a stage.

    source, target  first bytes: of the packed weights, an int or a traced integer, and of the block
    """

    source: Any
    target: int
    bytes: int


@dataclass(frozen=True)
class PackedOperand:
    """Packed weights as A: bulk copies of whole or half units, one row block after another; no tensor map.

    packing  the order of a unit
    smem     a stage: (rows, depth) of weights
    """

    packing: PackedOrder
    smem: PackedTile
    dtype: DType
    name: str = "A"
    order: str = "row"
    major: str = "K"
    rest: None = None
    ends: None = None
    maps: int = 1  # every kernel's first parameter is a tensor map: here it is B's once more, and not used

    @property
    def copies(self) -> tuple[()]:
        """Its TMA copies: none."""
        return ()

    @property
    def row_blocks(self) -> int:
        """Blocks of 64 rows of a stage."""
        return self.smem.extent[0] // UNIT_ROWS

    @property
    def parts(self) -> int:
        """K tiles of a unit."""
        return UNIT_K // self.smem.extent[1]

    @property
    def code_bytes(self) -> int:
        """Bytes of a block's codes in a stage; its scales come behind them."""
        return self.packing.code_bytes // self.parts

    @property
    def groups(self) -> int:
        """Groups of a K tile: a group that is deeper is in each of its K tiles."""
        return -(-self.packing.format.groups // self.parts)

    @property
    def vectors(self) -> int:
        """16-byte vectors of a thread in a block."""
        return self.packing.vectors // self.parts

    @property
    def block_bytes(self) -> int:
        """Bytes of a row block in a stage."""
        return self.code_bytes + self.groups * self.packing.group_bytes

    @property
    def bytes(self) -> int:
        """The bytes that a stage's barrier expects."""
        return self.row_blocks * self.block_bytes

    @property
    def sent_bytes(self) -> int:
        """The bytes that one CTA reads for a stage."""
        return self.bytes

    @property
    def sums(self) -> int:
        """Sums of a K tile and a row block: one for each of its groups, if scales multiply sums.

        >>> fmt, spec = QuantizedFormat("int4", 32), Operand.parse("e4m3")
        >>> [packed_operand(fmt, 128, depth, spec).sums for depth in DEPTHS]
        [2, 4]
        """
        return max(1, self.groups)

    def product_groups(self, blocks: int) -> int:
        """Groups of products of a K tile and a row block; `blocks` of a warpgroup.

        Groups alternate between two sets of fragment registers, so a warpgroup has two or more in a K tile. Where
        scales multiply sums, a sum is of one or more.

        >>> fmt, spec = QuantizedFormat("int4"), Operand.parse("bf16")
        >>> [packed_operand(fmt, 128, depth, spec).product_groups(blocks) for depth in DEPTHS for blocks in (1, 2)]
        [2, 1, 2, 2]
        """
        sums = self.sums if self.packing.scales_sums else 1
        return max(sums, self.smem.extent[1] // PRODUCT_K, 2 // blocks)

    def block_copies(self, row_block: W, k_tile: W, units: W) -> tuple[BlockCopy, ...]:
        """The copies of a row block's K tile; ints or traced integers of 64 bits.

        units  of a row block along K
        """
        order = self.packing
        first = (row_block * units + k_tile // self.parts) * order.unit_bytes
        if self.parts == 1:
            return (BlockCopy(first, 0, order.unit_bytes),)
        part = k_tile % self.parts
        codes = BlockCopy(first + part * self.code_bytes, 0, self.code_bytes)
        if not self.groups:
            return (codes,)
        group = part * order.format.groups // self.parts
        scales = first + order.code_bytes + group * order.group_bytes
        return codes, BlockCopy(scales, self.code_bytes, self.groups * order.group_bytes)


def packed_operand(fmt: QuantizedFormat, rows: int, depth: int, spec: Operand) -> PackedOperand:
    """The operand of K tiles with so many rows and so much of K; `spec` is the activations' type."""
    order = PackedOrder(fmt, spec.dtype.name)
    made = PackedOperand(order, PackedTile((rows, depth), 0), spec.dtype)
    return replace(made, smem=PackedTile((rows, depth), made.bytes))


def check_packed(
    fmt: QuantizedFormat, sizes: tuple[int, int, int, int], config: Sm90Config, operands: tuple[Operand, Operand],
    epilogue: Epilogue | None, others: list[str], experts: bool = False,
) -> None:  # fmt: skip
    """Raise PlanError, naming the obstacle, for a problem without a kernel of packed weights.

    others   arguments of `Sm90Plan.derive` that such a kernel does not have
    experts  the batch is experts, each with weights of its own
    """
    if others:
        raise PlanError(f"{others[0]}: a product with packed weights takes none")
    a, b = operands
    check_types(fmt, a, b)
    if a.order != "row":
        raise PlanError(f"a is {a}: packed weights have K contiguous, a 'row'")
    if sizes[3] > 1 and not experts:
        raise PlanError(f"batch = {sizes[3]}: packed weights are one matrix; those of several take experts=")
    if fmt.group is not None and sizes[2] % fmt.group:
        raise PlanError(f"k = {sizes[2]} with groups of {fmt.group}: the last group has {sizes[2] % fmt.group} weights")
    usual = {"rows": None, "early": 0, "schedule": "cooperative"}
    for name, value in usual.items():
        if (found := getattr(config, name)) != value:
            raise PlanError(f"{name} = {found!r}: a product with packed weights takes {value!r}")
    if config.tile_k not in (None, *DEPTHS):
        raise PlanError(f"tile_k = {config.tile_k}: a K tile is half a packed unit or a whole one, {DEPTHS}")
    if config.cluster[1] != 1:
        raise PlanError(f"cluster = {config.cluster}: packed weights are not shared along N; take (rows, 1)")
    if config.tile[1] // 2 % (4 * config.split):
        raise PlanError(
            f"split = {config.split} of {config.tile[1]} columns: a thread has {config.tile[1] // 2} sums, and sends "
            f"vectors of 4 to each part; take a multiple of {8 * config.split} columns"
        )
    names = [given.name for given in epilogue.given] if epilogue else []
    if (COLUMN_SCALE in names) != (fmt.group is None):
        there = "has" if COLUMN_SCALE in names else "has no"
        raise PlanError(f"the epilogue {there} {COLUMN_SCALE}, and weights are {fmt}: fmt.epilogue(*steps) is its own")


def check_types(fmt: QuantizedFormat, a: Operand, b: Operand) -> None:
    """Raise PlanError for operands that packed weights are not multiplied as."""
    wanted = FLOAT8 if a.dtype.name == "e4m3" else (a.dtype.name,)
    if a.dtype.name not in ACTIVATIONS or b.dtype.name not in wanted:
        raise PlanError(
            f"a is {a.dtype} and b {b.dtype}: packed weights become bf16 or f16, as b is, or e4m3 for a b of float8"
        )
    if a.dtype.name in FLOAT8 and (reason := refusal(fmt)):
        raise PlanError(f"weights are {fmt}, for a b of {b.dtype}: {reason}")
