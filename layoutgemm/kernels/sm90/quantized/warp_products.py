"""Products of packed weights by mma.sync, each warp for its own 16 rows. The choice for few columns.

A wgmma with A in registers keeps its warps until it has read them, so few columns leave the tensor core and the
conversions waiting for each other. mma.sync takes the same fragments: a warp's part of wgmma's A is mma.sync's A, and
its accumulator is that of 8 columns after the other. B comes from the same tile in shared memory, by ldmatrix.

    fragment            registers of a warp                              from
    ----------------    ---------------------------------------------    ------------------------------------------
    A                   those of wgmma                                   packed words, converted
    B, 8 columns        two of the four of ldmatrix.x4, a load for each   the lane's row: `places`
                        two fragments along K
    accumulator         values 4 j to 4 j + 3 of wgmma's, for columns    mma.sync
                        8 j to 8 j + 7
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ....atoms import MmaAtom, SmemTile, ldmatrix, mma_sync, operand_map
from ....atoms.copy.base import WARP
from ....checks import bank_conflicts
from ....errors import PlanError
from ....layouts import Layout
from ....report import Check
from ...plan import present
from ...thread_addresses import ThreadAddresses

if TYPE_CHECKING:
    from ...derive import OperandPlan
    from ..config import Sm90Config
    from ..plan import Sm90Plan

COLUMNS = 8  # of C in an mma.sync
_TILES = 2  # of B in an ldmatrix.x4, one after the other along K
_ROW_BYTES = 16  # of a lane's row
CHAINS = 2  # accumulators that take turns, as an mma.sync waits for the one before it on the same


@dataclass(frozen=True)
class WarpProducts:
    """The instruction, and the loads of B's fragments from a stage.

    atom   mma.sync.m16n8k16, or .m16n8k32 of 8-bit types
    tile   B's tile in shared memory
    extent (columns, depth) of the products of a K tile
    """

    atom: MmaAtom
    tile: SmemTile
    extent: tuple[int, int]

    @property
    def blocks(self) -> tuple[int, int]:
        """Tiles of B along N and along K."""
        return self.extent[0] // COLUMNS, self.extent[1] // int(self.atom.shape_mnk[2])

    @property
    def copy(self) -> Any:
        """The load of B's fragments."""
        return ldmatrix(4, element=self.tile.dtype)

    @property
    def loads(self) -> int:
        """Loads of a K tile."""
        return self.blocks[0] * self.blocks[1] // _TILES

    @cached_property
    def rows(self) -> Layout:
        """((lane, element of its row), (load, 0)) -> column + 8 * k, of 8 columns."""
        return operand_map(self.copy, self.atom, "B", (1, self.blocks[1]))

    def byte(self, lane: object, j: int, load: int) -> Any:
        """The byte of element j of a lane's row, of a load. Ints, arrays or traced integers."""
        column, along_k = divmod(load, self.blocks[1] // _TILES)
        element = self.rows((lane, j), (along_k, 0))
        return self.tile.byte(element % COLUMNS + column * COLUMNS, element // COLUMNS)

    @cached_property
    def places(self) -> ThreadAddresses:
        """(lane, load) -> byte of B's tile at which the lane's row begins."""

        def byte(lanes: Any, index: tuple[int, ...]) -> Any:
            return np.asarray([int(self.byte(int(lane), 0, index[0])) for lane in lanes])

        return ThreadAddresses.derive(byte, WARP, [(load,) for load in range(self.loads)])

    def load_of(self, column: int, fragment: int) -> tuple[int, int]:
        """(load, first of its registers) that hold a tile of B."""
        load = column * (self.blocks[1] // _TILES) + fragment // _TILES
        return load, fragment % _TILES * int(self.atom.registers("B"))


@lru_cache(maxsize=256)
def warp_products(config: Sm90Config, b: OperandPlan, depth: int) -> WarpProducts:
    """The products of a configuration with products='warp'. Raises PlanError for another loader or B."""
    if config.loader == "self":
        raise PlanError("products = 'warp' by consumers that load for themselves: give loader='warp'")
    if b.major != "K":
        raise PlanError(f"products = 'warp' with b {b.order}-major: ldmatrix reads a 'col'")
    float8 = b.dtype.bits == 8  # of which A is e4m3
    atom = mma_sync((16, COLUMNS, 256 // b.dtype.bits), "e4m3" if float8 else b.dtype, b.dtype)
    return WarpProducts(atom, b.smem, (config.tile[1], depth))


def warp_checks(plan: Sm90Plan) -> list[Check]:
    """Checks of registers, of the loads of B, and of their banks."""
    return [_same_registers(plan), _feeds(plan), _banks(plan)]


def _same_registers(plan: Sm90Plan) -> Check:
    """Warp w's share of wgmma's A and C against mma.sync's."""
    products, witness = present(plan.products), ""
    lane, columns = np.arange(WARP)[:, None], products.blocks[0]
    for warp in range(4):
        for name, parts in (("A", 1), ("C", columns)):
            values = np.arange(4 * parts if name == "C" else int(products.atom.layout_A[1].size))[None, :]
            found = plan.mma.coords(name)(WARP * warp + lane, values)
            own = values % 4 if name == "C" else values
            rows, along = products.atom.coords(name)(lane, own)
            want = rows + 16 * warp, along + (values // 4 * COLUMNS if name == "C" else 0)
            for have, wanted in zip(found, want, strict=True):
                have, wanted = np.broadcast_arrays(have, wanted)
                if (have != wanted).any():
                    at = tuple(int(x) for x in np.argwhere(have != wanted)[0])
                    witness = witness or f"{name}, warp {warp}, lane {at[0]}, value {at[1]}: {have[at]}, {wanted[at]}"
    statement = f"a warp's registers of A and of C are those of {columns} {products.atom} along N"
    return Check("warp products", statement, not witness, "exhaustion", witness)


def _feeds(plan: Sm90Plan) -> Check:
    """The lanes' own addresses give mma.sync's B."""
    products = present(plan.products)
    witness, size, places = "", products.tile.dtype.bytes, products.places
    for load in range(products.loads):
        base, further = places.of[(load,)]
        for lane in range(WARP):
            address = int(products.byte(lane, 0, places.bases[base][0])) + further
            for j in range(_ROW_BYTES // size):
                want = int(products.byte(lane, j, load))
                if address + j * size != want:
                    witness = witness or f"load {load}, lane {lane}, element {j}: at {want}, not {address + j * size}"
    for column in range(products.blocks[0]):
        for fragment in range(products.blocks[1]):
            witness = witness or _misread(products, column, fragment)
    statement = f"{products.loads} ldmatrix.x4 give B's {products.blocks[0]}x{products.blocks[1]} tiles of a K tile"
    return Check("fragments B", statement, not witness, f"exhaustion ({products.loads} loads)", witness)


def _misread(products: WarpProducts, column: int, fragment: int) -> str:
    """The first register of a tile of B that `load_of` takes from elsewhere, or ""."""
    load, first = products.load_of(column, fragment)
    registers, in_register = products.copy.layout_dst, 32 // products.tile.dtype.bits
    for lane in range(WARP):
        for value in range(int(products.atom.layout_B[1].size)):
            n, k = products.atom.coords("B")(lane, value)
            want = int(products.tile.byte(int(n) + COLUMNS * column, int(k) + products.atom.shape_mnk[2] * fragment))
            source = int(registers(lane, in_register * first + value))
            row, j = divmod(source, _ROW_BYTES // products.tile.dtype.bytes)
            if int(products.byte(row, j, load)) != want:
                return f"column {column}, fragment {fragment}, lane {lane}, value {value}: the tile has it at {want}"
    return ""


def _banks(plan: Sm90Plan) -> Check:
    """Bank conflicts of the loads of B."""
    products = present(plan.products)
    found = [[int(products.byte(lane, 0, load)) for lane in range(WARP)] for load in range(products.loads)]
    return bank_conflicts(np.asarray(found), _ROW_BYTES, "ldmatrix").as_check("banks B")
