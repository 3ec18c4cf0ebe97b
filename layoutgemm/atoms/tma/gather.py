"""Loads and stores of four chosen rows: the boxes of tile::gather4 and tile::scatter4.

One instruction takes five coordinates: a column, and the numbers of four rows of a 2-D tensor. A gather stacks the four
pieces in shared memory, a scatter takes them from there. The tensor map is a tiled one whose box has one row. A tile of
more rows takes an instruction for each four.

Sources: PTX ISA, "tile::gather4 and tile::scatter4 modes" and cp.async.bulk.tensor; sm_100a and later of its family.
No such instruction has run on hardware here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...arguments import checked, shown
from ...dtypes import DType
from ...errors import TmaError
from ...layouts import Layout
from ...layouts.display import HasPicture
from ...lazy_numpy import np
from . import engine
from .derive import tma_load, tma_store
from .plan import TmaCopy, TmaPlan
from .rules import MODES, RULES, SMEM_UNIT, RuleViolation, TensorMap, broken, whole_units

if TYPE_CHECKING:
    import numpy.typing as npt

ROWS = 4  # of one instruction
PTX = {
    "gather": "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes",
    "scatter": "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group",
}
DIRECTIONS = tuple(PTX)


def broken_rules(tmap: TensorMap, address: int = 0, direction: str = "gather") -> list[RuleViolation]:
    """Every rule that the map of a gather or scatter breaks, shared rules included.

    >>> from layoutgemm.dtypes import dtype
    >>> [fault.arithmetic for fault in broken_rules(TensorMap(dtype("bf16"), (64, 9), (128,), (64, 4), (1, 1)))]
    ['a box (64, 4): gather4 takes four rows through a box of one']
    """
    found = list(broken(tmap, address, "load" if direction == "gather" else "store"))
    if tmap.rank != 2:
        found.append(RuleViolation(RULES["gather"], f"{tmap.rank} dimensions {tmap.extents}; {direction}4 takes 2"))
    elif tmap.box[1] != 1:
        found.append(
            RuleViolation(RULES["gather"], f"a box {tmap.box}: {direction}4 takes four rows through a box of one")
        )
    if any(step != 1 for step in tmap.steps):
        found.append(RuleViolation(RULES["gather"], f"steps {tmap.steps}: {direction}4 takes neighbouring columns"))
    return found


def four_rows(tmap: TensorMap) -> TensorMap:
    """A tiled map whose box fills shared memory as one gather does: four rows."""
    return replace(tmap, box=(tmap.box[0], ROWS), extents=(tmap.box[0], ROWS), strides=(0,))


@checked(TmaError)
def in_fours(tma: TmaPlan, direction: str = "gather") -> TmaPlan:
    """The copies of a tile's rows, cut into boxes of four rows. One box is what a gather, or a scatter, moves.

    The plan's tensor map has boxes of one row, `one_row`. Raises TmaError with the rule that forbids it.

    >>> from layoutgemm.atoms import smem_tile
    >>> from layoutgemm.atoms.tma.derive import derive
    >>> fours = in_fours(derive(smem_tile((128, 64), "bf16", "K"), ("k", "m")))
    >>> fours.box, len(fours.instructions), fours.instructions[1], fours.bytes
    ((64, 4), 32, TmaCopy(coord_offset=(0, 4), smem_offset=512, rank=0), 16384)
    """
    if len(tma.box) != 2 or tma.steps:
        raise TmaError(f"a box {tma.box} of {tma.dims} is not rows of a matrix", rule="gather")
    columns, rows = tma.box
    if rows % ROWS:
        raise TmaError(f"a tile of {rows} rows: {direction}4 takes four at a time", rule="gather")
    cut = replace(tma, box=(columns, ROWS))
    span = MODES[tma.swizzle].span * (tma.swizzle != "none")
    group = max(columns * tma.kind.smem_bits // 8, span) * ROWS
    if group % SMEM_UNIT:
        raise TmaError(
            f"four rows take {group} bytes of shared memory; each instruction begins at a multiple of {SMEM_UNIT}",
            rule="shared address",
        )
    copies = [
        replace(
            copy, coord_offset=(copy.coord_offset[0], copy.coord_offset[1] + ROWS * part),
            smem_offset=copy.smem_offset + group * part,
        )
        for copy in tma.instructions
        for part in range(rows // ROWS)
    ]  # fmt: skip
    return replace(cut, instructions=tuple(copies))


def one_row(tma: TmaPlan) -> TmaPlan:
    """The same copies with the tensor map's own box, of one row. What the host encodes."""
    return replace(tma, box=(tma.box[0], 1))


def global_bits(tmap: TensorMap, coordinates: Sequence[int]) -> tuple[engine.Ints, npt.NDArray[np.bool_]]:
    """Bit offsets in the tensor and inside or not, two arrays [columns, 4].

    coordinates: (column, row, row, row, row). Raises TmaError for another number, and for a column that is not at a
    multiple of 16 bytes.
    """
    if len(coordinates) != ROWS + 1:
        raise TmaError(f"{len(coordinates)} coordinates {tuple(coordinates)}; a column and four rows", rule="gather")
    parts = [engine.global_bits(tmap, (coordinates[0], row)) for row in coordinates[1:]]
    return np.concatenate([bits for bits, _ in parts], axis=1), np.concatenate([inside for _, inside in parts], axis=1)


def load(
    tmap: TensorMap, memory: npt.NDArray[np.uint8], coordinates: Sequence[int], shared: npt.NDArray[np.uint8],
    address: int,
) -> int:  # fmt: skip
    """tile::gather4: copies pieces of four rows to shared memory. Returns the bytes reported to the barrier."""
    source, inside = global_bits(tmap, coordinates)
    engine.move_in(tmap, memory, source, inside, shared, engine.shared_bits(four_rows(tmap), address))
    return engine.bytes_moved(four_rows(tmap))


def store(
    tmap: TensorMap, memory: npt.NDArray[np.uint8], coordinates: Sequence[int], shared: npt.NDArray[np.uint8],
    address: int,
) -> None:  # fmt: skip
    """tile::scatter4: copies four rows of shared memory to their places. Rows outside the tensor are left out.

    The ends of lines are taken to be those of tiled stores (`rules.whole_units`). Raises TmaError for a negative
    coordinate and for a row that two of the four write.
    """
    if min(coordinates) < 0:
        raise TmaError(f"a scatter at {tuple(coordinates)}: no coordinate may be negative", rule="coordinate")
    rows = list(coordinates[1:])
    twice = next((row for row in rows if row < tmap.extents[1] and rows.count(row) > 1), None)
    if twice is not None:
        raise TmaError(f"a scatter at {tuple(coordinates)} writes row {twice} twice", rule="injective")
    target, inside = global_bits(whole_units(tmap), coordinates)
    engine.move_out(tmap, memory, target, inside, shared, engine.shared_bits(four_rows(tmap), address))


# ---------------------------------------------------------------------------------------------------------- a tile


@dataclass(frozen=True)
class GatherPlan(HasPicture):
    """The gathers that fill one tile from chosen rows, or the scatters that empty it.

    tensor_map    for the host to encode: its box has one row
    dims          names of the contiguous dimension and of the gathered one
    direction     "gather" or "scatter"
    boxes         one entry an instruction: (first column, first row of the tile) and shared byte
    tile_rows     rows of the tile
    stages, stage_bytes   copies of the tile in shared memory, and how far apart they are
    smem          the shared layout that the plan was derived from
    """

    tensor_map: TensorMap
    dims: tuple[str, str]
    direction: str
    boxes: tuple[TmaCopy, ...]
    tile_rows: int
    stages: int = 1
    stage_bytes: int = 0
    smem: Any = field(default=None, repr=False)

    @property
    def box_bytes(self) -> int:
        """Bytes that one instruction moves: four rows; those out of bounds count."""
        return engine.bytes_moved(four_rows(self.tensor_map))

    @property
    def bytes(self) -> int:
        """Bytes of the tile, which a gather's barrier expects."""
        return self.box_bytes * len(self.boxes)

    @property
    def alignment(self) -> int:
        """Bytes that the tile's shared address is a multiple of."""
        return MODES[self.tensor_map.swizzle].period

    @checked(TmaError)
    def coordinates(self, rows: Sequence[int], column: int = 0) -> tuple[tuple[int, ...], ...]:
        """The five coordinates of every instruction.

        rows     the tensor's row for each row of the tile
        column   the first column of the tile

        Raises TmaError unless there are `tile_rows` rows, and for a scatter that writes one row twice.

        >>> from layoutgemm.atoms import smem_tile
        >>> plan = tma_gather(Layout((1000, 64), (64, 1)), smem_tile((8, 64), "bf16", "K"))
        >>> plan.coordinates([7, 7, 0, 999, 5, 4, 3, 2])
        ((0, 7, 7, 0, 999), (0, 5, 4, 3, 2))
        """
        rows = tuple(rows)
        if len(rows) != self.tile_rows:
            raise TmaError(f"{len(rows)} row numbers for a tile of {self.tile_rows} rows", rule="gather")
        if self.direction == "scatter" and len(set(rows)) != len(rows):
            twice = next(row for row in rows if rows.count(row) > 1)
            raise TmaError(f"row {twice} is written twice, in undefined order", rule="injective")
        return tuple(
            (column + box.coord_offset[0], *rows[box.coord_offset[1] : box.coord_offset[1] + ROWS])
            for box in self.boxes
        )

    @checked(TmaError)
    def landing(
        self, rows: Sequence[int], column: int = 0, address: int = 0
    ) -> list[tuple[engine.Ints, npt.NDArray[np.bool_], engine.Ints]]:
        """Source and destination of each element, one triple of arrays an instruction.

        The arrays are [columns, 4]: bit offset in the tensor, True where that is inside, shared bit address.
        """
        return [
            (
                *global_bits(self.tensor_map, at),
                engine.shared_bits(four_rows(self.tensor_map), address + box.smem_offset),
            )
            for at, box in zip(self.coordinates(rows, column), self.boxes, strict=True)
        ]

    @property
    def ptx(self) -> str:
        """The instruction. Source: PTX ISA, cp.async.bulk.tensor, `.tile::gather4` and `.tile::scatter4`."""
        return PTX[self.direction]

    def explain(self) -> str:
        """The box and the instructions, as text.

        >>> from layoutgemm.atoms import smem_tile
        >>> print(tma_gather(Layout((1000, 64), (64, 1)), smem_tile((8, 64), "bf16", "K")).explain())
        gather of 8 rows (m0) by 64 (m1) bf16, swizzle 128B, 1024 bytes, 2 instructions; sm_100a
          tensor (64, 1000), strides in bytes (128,), box (64, 1)
          rows 0 to 3, m1 +0 -> shared byte +0
          rows 4 to 7, m1 +0 -> shared byte +512
        """
        tmap, count = self.tensor_map, len(self.boxes)
        across = max(box.coord_offset[0] for box in self.boxes) + tmap.box[0]
        return "\n".join([
            f"{self.direction} of {self.tile_rows} rows ({self.dims[1]}) by {across} ({self.dims[0]}) {tmap.dtype}, "
            f"swizzle {tmap.swizzle}, {self.bytes} bytes, {count} instruction{'s' * (count > 1)}; sm_100a",
            f"  tensor {tmap.extents}, strides in bytes {tmap.strides}, box {tmap.box}",
            *(
                f"  rows {box.coord_offset[1]} to {box.coord_offset[1] + ROWS - 1}, {self.dims[0]} "
                f"+{box.coord_offset[0]} -> shared byte +{box.smem_offset}"
                for box in self.boxes
            ),
        ])  # fmt: skip


@checked(TmaError)
def tma_gather(
    gmem: Layout, smem: Any, dtype: DType | str | None = None, direction: str = "gather", *,
    names: tuple[str, str] | None = None, format: str | None = None, l2_promotion: str = "128B",
    oob_fill: str = "zeros", address: int = 0,
) -> GatherPlan:  # fmt: skip
    """Derives gathers of a tile from chosen rows of a matrix, or scatters into them.

    gmem       a matrix; its contiguous mode is copied in runs, along the other one rows are chosen
    smem       tile coordinate -> offset in elements: a Layout, a ComposedLayout or an SmemTile of gmem's modes
    dtype      element type (an SmemTile knows its own)
    direction  "gather" loads, "scatter" stores
    names      what to call gmem's modes; default m0, m1

    Raises TmaError with the rule that forbids it: those of `tma_load`, and "gather".

    >>> tma_gather(Layout((1000, 64), (64, 1)), Layout((6, 64), (64, 1)), "bf16")
    Traceback (most recent call last):
        ...
    layoutgemm.errors.TmaError: a tile of 6 rows: gather4 takes four at a time
    """
    if direction not in DIRECTIONS:
        raise TmaError(f"rows are moved by {' or '.join(DIRECTIONS)}, not {shown(direction)}", rule="direction")
    if gmem.rank != 2 or any(isinstance(n, tuple) for n in gmem.shape if isinstance(gmem.shape, tuple)):
        raise TmaError(f"{direction}4 moves rows of a matrix without nested modes, not of {gmem}", rule="gather")
    if direction == "gather":
        plan = tma_load(gmem, smem, dtype, names=names, format=format, l2_promotion=l2_promotion, oob_fill=oob_fill,
                        address=address)  # fmt: skip
    else:
        plan = tma_store(gmem, smem, dtype, names=names, format=format, address=address)
    fours = in_fours(plan, direction)
    tmap, boxes = one_row(fours).tensor_map, fours.instructions
    for fault in broken_rules(tmap, address, direction):
        raise TmaError(fault.arithmetic, rule=fault.rule.name)
    tile_rows = max(box.coord_offset[1] for box in boxes) + ROWS
    dims = (plan.dims[0], plan.dims[1])
    return GatherPlan(tmap, dims, direction, boxes, tile_rows, plan.stages, plan.stage_bytes, smem)
