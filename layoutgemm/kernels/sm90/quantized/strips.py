"""Tiles of whole strips of 16 output features, where those of 64 leave SMs idle. A loader's lanes copy the strips.

    6144 features, 132 SMs    96 tiles of 64    128 tiles of 48: three warps multiply, and a fourth one's rows are not
                                                stored

A tile begins at any strip, and a packed unit has four. A bulk copy is of a unit, so each thread of the loader, a warp
or a warpgroup, copies 16 bytes at a time (cp.async) and arrives for its own copies. A stage is as that of a whole
tile, without the strips behind the last one.
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
    """The copies of a tile's strips. (thread, round, vector) or (thread, round) -> bytes of a unit and of a stage.

    order     of a packed unit
    features  of a tile, a multiple of 16
    threads   of the loader, 32 or 128. A warp copies a strip a round, vector after vector; the warps of a warpgroup
              have a vector each, of one strip or of two

    >>> from layoutgemm.kernels.quantized.formats import QuantizedFormat
    >>> copies = StripCopies(PackedOrder(QuantizedFormat("int4", 128), "bf16"), 48)
    >>> copies.strips, copies.scale_rounds, copies.source(1, 2, 1), copies.target(1, 2, 1)
    (3, 1, 3088, 3088)
    >>> of_four = StripCopies(copies.order, 48, 128)
    >>> of_four.rounds, of_four.vectors, [of_four.strip_of(thread, 1) for thread in (0, 64)]
    (2, range(0, 1), [2, 3])
    """

    order: PackedOrder
    features: int
    threads: int = WARP

    @property
    def strips(self) -> int:
        """Strips of a tile."""
        return self.features // STRIP

    @property
    def _together(self) -> int:
        """Strips of a round."""
        return max(1, self.threads // (WARP * self.order.vectors))

    @property
    def rounds(self) -> int:
        """Copies of strips by a thread, of `vectors` each. In the last one some threads may have none."""
        return -(-self.strips // self._together)

    @property
    def vectors(self) -> range:
        """The vectors of a round, for a thread of the first warp."""
        return range(0, self.order.vectors, self.threads // WARP) if self._together == 1 else range(1)

    def strip_of(self, thread: W, number: int) -> W:
        """The strip that a thread copies in a round. Behind the last strip it copies none."""
        found: W = self._together * number + thread // (WARP * self.order.vectors) % self._together
        return found

    def source(self, thread: W, quarter: W, vector: W) -> W:
        """The byte of a unit at which a thread's vector of codes begins. Ints, arrays or traced integers."""
        warp = thread // WARP % min(self.threads // WARP, self.order.vectors)
        found: W = self.order.vector_bytes(thread % WARP + WARP * quarter, vector + warp)
        return found

    def target(self, thread: W, strip: W, vector: W) -> W:
        """The byte of a stage at which it begins."""
        found: W = strip // QUARTERS * self.order.unit_bytes + self.source(thread, strip % QUARTERS, vector)
        return found

    @property
    def _scale_chunks(self) -> int:
        """Copies of 16 bytes of a strip's scales of one group."""
        return self.order.group_bytes // QUARTERS // VECTOR_BYTES

    @property
    def scale_rounds(self) -> int:
        """Copies of scales by a thread. The last one is for some threads alone."""
        return -(-self.strips * self.order.format.groups * self._scale_chunks // self.threads)

    def scale_strip(self, thread: W, number: int) -> W:
        """The strip whose scales a thread copies in a round. Behind the last strip it copies none."""
        found: W = (thread + self.threads * number) // (self.order.format.groups * self._scale_chunks)
        return found

    def scale_source(self, thread: W, number: int, quarter: W) -> W:
        """The byte of a thread's scales in a unit, of a strip in that quarter."""
        chunk = (thread + self.threads * number) % (self.order.format.groups * self._scale_chunks)
        first = self.order.scale_bytes(WARP * quarter, chunk // self._scale_chunks)
        found: W = self.order.code_bytes + first + chunk % self._scale_chunks * VECTOR_BYTES
        return found

    def scale_target(self, thread: W, number: int) -> W:
        """The byte of a stage of the same."""
        strip = self.scale_strip(thread, number)
        found: W = strip // QUARTERS * self.order.unit_bytes + self.scale_source(thread, number, strip % QUARTERS)
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
        found, last, threads = [], -(-rows // STRIP) - 1, range(self.threads)

        def start(strip: int) -> tuple[int, int]:
            block, quarter = self.place(first // STRIP, strip, last, min)
            return (block * units + k_tile) * self.order.unit_bytes, quarter

        for number in range(self.rounds):
            for thread in (each for each in threads if self.strip_of(each, number) < self.strips):
                strip = self.strip_of(thread, number)
                unit, quarter = start(strip)
                found += [(unit + self.source(thread, quarter, v), self.target(thread, strip, v)) for v in self.vectors]
        for number in range(self.scale_rounds):
            for thread in (each for each in threads if self.scale_strip(each, number) < self.strips):
                unit, quarter = start(self.scale_strip(thread, number))
                found.append((unit + self.scale_source(thread, number, quarter), self.scale_target(thread, number)))
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
        config, f"features = {features}: a tile of strips takes", tile_k=UNIT_K, launch="tiles", store="direct",
        cluster=(1, 1),
    )  # fmt: skip
    if config.loader == "self":
        raise PlanError(
            f"features = {features}, loader = 'self': the loader's threads copy strips: 'warp', 'warpgroup'"
        )
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
        f"{copies.threads} threads' copies of 16 bytes bring {copies.strips} strip(s) of {STRIP} features, from any "
        "strip on, to the warps that read them"
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
