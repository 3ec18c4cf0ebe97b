"""Tiles of whole strips of 16 output features, where those of 64 leave SMs idle. A loader's lanes copy the strips.

    6144 features, 132 SMs    96 tiles of 64    128 tiles of 48: three warps multiply, and a fourth one's rows are not
                                                stored

A tile begins at any strip, and a packed unit has four. A bulk copy is of a unit, so each lane copies 16 bytes at a time
(cp.async) and arrives for its own copies. A stage is as that of a whole tile, without the strips behind the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....atoms.copy.base import VECTOR_BYTES, WARP
from ....errors import PlanError
from ....report import Check
from ...numbers import W
from ...plan import check_settings
from ...quantized.blocks import OF_QUARTERS, QUARTERS, STRIP
from ...quantized.formats import UNIT_K, UNIT_ROWS
from ...quantized.order import PackedOrder

if TYPE_CHECKING:
    from ...epilogue.chain import Epilogue
    from ..config import Sm90Config
    from .operand import PackedOperand


@dataclass(frozen=True)
class StripCopies:
    """The copies of a tile's strips. (lane, strip, vector) or (lane, number) -> bytes of a unit and of a stage.

    order     of a packed unit
    features  of a tile, a multiple of 16

    >>> from layoutgemm.kernels.quantized.formats import QuantizedFormat
    >>> copies = StripCopies(PackedOrder(QuantizedFormat("int4", 128), "bf16"), 48)
    >>> copies.strips, copies.scale_rounds, copies.source(1, 2, 1), copies.target(1, 2, 1)
    (3, 1, 3088, 3088)
    """

    order: PackedOrder
    features: int

    @property
    def strips(self) -> int:
        """Strips of a tile."""
        return self.features // STRIP

    def source(self, lane: W, quarter: W, vector: W) -> W:
        """The byte of a unit at which a lane's vector of codes begins. Ints, arrays or traced integers."""
        found: W = self.order.vector_bytes(lane + WARP * quarter, vector)
        return found

    def target(self, lane: W, strip: W, vector: W) -> W:
        """The byte of a stage at which it begins."""
        found: W = strip // QUARTERS * self.order.unit_bytes + self.source(lane, strip % QUARTERS, vector)
        return found

    @property
    def _scale_chunks(self) -> int:
        """Copies of 16 bytes of a strip's scales of one group."""
        return self.order.group_bytes // QUARTERS // VECTOR_BYTES

    @property
    def scale_rounds(self) -> int:
        """Copies of scales by a lane. The last one is for some lanes alone."""
        return -(-self.strips * self.order.format.groups * self._scale_chunks // WARP)

    def scale_strip(self, lane: W, number: int) -> W:
        """The strip whose scales a lane copies in a round. Behind the last strip it copies none."""
        found: W = (lane + WARP * number) // (self.order.format.groups * self._scale_chunks)
        return found

    def scale_source(self, lane: W, number: int, quarter: W) -> W:
        """The byte of a lane's scales in a unit, of a strip in that quarter."""
        chunk = (lane + WARP * number) % (self.order.format.groups * self._scale_chunks)
        first = self.order.scale_bytes(WARP * quarter, chunk // self._scale_chunks)
        found: W = self.order.code_bytes + first + chunk % self._scale_chunks * VECTOR_BYTES
        return found

    def scale_target(self, lane: W, number: int) -> W:
        """The byte of a stage of the same."""
        strip = self.scale_strip(lane, number)
        found: W = strip // QUARTERS * self.order.unit_bytes + self.scale_source(lane, number, strip % QUARTERS)
        return found

    def place(self, first: W, strip: W, last: W, least: Callable[[W, W], W]) -> tuple[W, W]:
        """(row block of the weights, quarter of its units) of a tile's strip.

        Strips behind the last one are the last once more.

        first  strip of the weights with which the tile begins
        """
        found = least(first, last - strip) + strip
        return found >> OF_QUARTERS, found & (QUARTERS - 1)  # not // and %, which a kernel computes for signed numbers

    def quarter_read(self, quarter: W, block: W, least: Callable[[W, W], W]) -> W:
        """The quarter of a row block that a warp reads. Its own, or the last copied one."""
        return least(quarter, self.strips - 1 - QUARTERS * block)

    def copied(self, first: int, rows: int, units: int, k_tile: int) -> list[tuple[int, int]]:
        """(byte of the weights, byte of a stage) of a K tile's copies of 16 bytes.

        rows, units  of the weights, and of a row block along K
        """
        found, last, lanes = [], -(-rows // STRIP) - 1, range(WARP)

        def start(strip: int) -> tuple[int, int]:
            block, quarter = self.place(first // STRIP, strip, last, min)
            return (block * units + k_tile) * self.order.unit_bytes, quarter

        for strip in range(self.strips):
            unit, quarter = start(strip)
            found += [
                (unit + self.source(lane, quarter, v), self.target(lane, strip, v))
                for v in range(self.order.vectors)
                for lane in lanes
            ]
        for number in range(self.scale_rounds):
            for lane in (lane for lane in lanes if self.scale_strip(lane, number) < self.strips):
                unit, quarter = start(self.scale_strip(lane, number))
                found.append((unit + self.scale_source(lane, number, quarter), self.scale_target(lane, number)))
        return [(int(source), int(target)) for source, target in found]


def check_features(config: Sm90Config, epilogue: Epilogue | None, grouped: bool) -> None:
    """Raise PlanError for tiles of strips that no kernel has.

    grouped  whether columns are groups, each with its own weights
    """
    features, rows = config.tuning.features, config.tile[0]
    if features is None:
        return
    if features % STRIP or not rows - UNIT_ROWS < features < rows:
        raise PlanError(
            f"features = {features} of a tile of {rows}: a multiple of {STRIP}, more than {rows - UNIT_ROWS} and less "
            f"than {rows}"
        )
    check_settings(
        config, f"features = {features}: a tile of strips takes", tile_k=UNIT_K, loader="warp", launch="tiles",
        store="direct", cluster=(1, 1),
    )  # fmt: skip
    check_settings(config.tuning, f"features = {features}: a tile of strips takes", gpc_order=())
    steps = () if epilogue is None else (*epilogue.reductions, epilogue.quantizes)
    taken = ["groups of columns"] * grouped + [step.name for step in steps if step is not None]
    if taken:
        raise PlanError(f"features = {features} and {taken[0]}: rows of a tile behind its last strip are other tiles'")


def strips_check(operand: PackedOperand, copies: StripCopies, features: int) -> Check:
    """Each 16 bytes of a tile's strips are copied once, to where a warp reads them.

    features  of C in a tile
    """
    order, witness = operand.packing, ""
    rows, units, size = copies.features + 3 * UNIT_ROWS, 5, order.unit_bytes
    vector = np.arange(VECTOR_BYTES)
    for first in range(0, UNIT_ROWS, STRIP):
        source = np.full(operand.row_blocks * size, -1)
        for of, to in copies.copied(first, rows, units, 3):
            if (source[to + vector] >= 0).any():
                witness = witness or f"strips from {first}: byte {to} of a stage is copied twice"
            source[to + vector] = of + vector
        for strip in range(features // STRIP):
            block, quarter = divmod(first // STRIP + strip, QUARTERS)
            own = int(copies.quarter_read(strip % QUARTERS, strip // QUARTERS, min))
            for at, found in zip(_quarter(order, own), _quarter(order, quarter), strict=True):
                to, want = strip // QUARTERS * size + at, (block * units + 3) * size + found
                if source[to] != want:
                    witness = witness or f"strips from {first}: strip {strip}, byte {to} is {source[to]}, not {want}"
        beyond = int(copies.quarter_read(QUARTERS - 1, operand.row_blocks - 1, min))
        if source[(operand.row_blocks - 1) * size + np.array(_quarter(order, beyond))].min() < 0:
            witness = witness or f"a warp behind the last strip reads quarter {beyond}, which is not copied"
    statement = (
        f"lanes' copies of 16 bytes bring {copies.strips} strip(s) of {STRIP} features, from any strip on, to the "
        "warps that read them"
    )
    return Check("strips A", statement, not witness, f"exhaustion ({QUARTERS} first strips)", witness)


def _quarter(order: PackedOrder, quarter: int) -> list[int]:
    """The bytes of a unit that a warp reads of a quarter: of its codes, and of its scales."""
    thread = np.arange(WARP)[:, None] + WARP * quarter
    codes = np.asarray(order.vector_bytes(thread, np.arange(order.vectors))).reshape(-1)
    found = (codes[:, None] + np.arange(VECTOR_BYTES)).reshape(-1).tolist()
    if order.format.groups:
        scales = np.asarray(order.scale_bytes(thread, np.arange(order.format.groups))).reshape(-1)
        found += (order.code_bytes + scales[:, None] + np.arange(4 * order.scale_words)).reshape(-1).tolist()
    return [int(x) for x in found]
