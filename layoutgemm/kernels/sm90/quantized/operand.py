"""A plan's operand A where it is packed weights: its stages, its bulk copies, and what a configuration may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....errors import PlanError
from ...derive import Operand
from ...numbers import W
from .formats import ACTIVATIONS, COLUMN_SCALE, UNIT_K, UNIT_ROWS, QuantizedFormat
from .order import PackedOrder

if TYPE_CHECKING:
    from ....dtypes import DType
    from ...epilogue.chain import Epilogue
    from ..config import Sm90Config

STAGE_ALIGNMENT = 128  # bytes: a warp's 16-byte vectors are whole lines of banks
GROUPS_OF_PRODUCTS = 2  # of a K tile: one is converted while the other's products run


@dataclass(frozen=True, slots=True)
class PackedTile:
    """A stage of packed weights: whole units, one for each 64 rows.

    extent  (rows, depth) in weights
    """

    extent: tuple[int, int]
    bytes: int
    alignment: int = STAGE_ALIGNMENT


@dataclass(frozen=True)
class PackedOperand:
    """Packed weights as A: a unit of 128 of K and 64 rows is one bulk copy; no tensor map and no descriptor.

    packing  the order of a unit
    smem     a stage
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
    def units(self) -> int:
        """Units of a stage: bulk copies."""
        return self.smem.extent[0] // UNIT_ROWS

    @property
    def bytes(self) -> int:
        """The bytes that a stage's barrier expects."""
        return self.units * self.packing.unit_bytes

    @property
    def sent_bytes(self) -> int:
        """The bytes that one CTA reads for a stage."""
        return self.bytes

    def unit_byte(self, row_block: W, unit: W, units: W) -> W:
        """The byte of a unit in global memory; `units` are those of a row block. Ints or traced integers."""
        return (row_block * units + unit) * self.packing.unit_bytes


def packed_operand(fmt: QuantizedFormat, rows: int, spec: Operand) -> PackedOperand:
    """The operand of a tile with so many rows; `spec` is the activations' type."""
    order = PackedOrder(fmt, spec.dtype.name)
    tile = PackedTile((rows, UNIT_K), rows // UNIT_ROWS * order.unit_bytes)
    return PackedOperand(order, tile, spec.dtype)


def check_packed(
    fmt: QuantizedFormat, sizes: tuple[int, int, int, int], config: Sm90Config, operands: tuple[Operand, Operand],
    epilogue: Epilogue | None, others: list[str],
) -> None:  # fmt: skip
    """Raise PlanError, naming the obstacle, for a problem without a kernel of packed weights.

    others  arguments of `Sm90Plan.derive` that such a kernel does not have
    """
    if not isinstance(fmt, QuantizedFormat):
        raise PlanError(f'weights = {fmt!r}: a QuantizedFormat, as in QuantizedFormat("int4", 128)')
    if others:
        raise PlanError(f"{others[0]}: a product with packed weights takes none")
    a, b = operands
    if a.dtype.name not in ACTIVATIONS or b.dtype != a.dtype:
        raise PlanError(f"a is {a.dtype} and b {b.dtype}: packed weights become {' or '.join(ACTIVATIONS)}, as b is")
    if a.order != "row":
        raise PlanError(f"a is {a}: packed weights have K contiguous, a 'row'")
    if sizes[3] > 1:
        raise PlanError(f"batch = {sizes[3]}: packed weights are one matrix")
    if fmt.group is not None and sizes[2] % fmt.group:
        raise PlanError(f"k = {sizes[2]} with groups of {fmt.group}: the last group has {sizes[2] % fmt.group} weights")
    usual = {"rows": None, "early": 0, "schedule": "cooperative"}
    for name, value in usual.items():
        if (found := getattr(config, name)) != value:
            raise PlanError(f"{name} = {found!r}: a product with packed weights takes {value!r}")
    if config.tile_k not in (None, UNIT_K):
        raise PlanError(f"tile_k = {config.tile_k}: a K tile is a packed unit, {UNIT_K} weights")
    if config.cluster[1] != 1:
        raise PlanError(f"cluster = {config.cluster}: packed weights are not shared along N; take (rows, 1)")
    names = [given.name for given in epilogue.given] if epilogue else []
    if (COLUMN_SCALE in names) != (fmt.group is None):
        there = "has" if COLUMN_SCALE in names else "has no"
        raise PlanError(f"the epilogue {there} {COLUMN_SCALE}, and weights are {fmt}: fmt.epilogue(*steps) is its own")
