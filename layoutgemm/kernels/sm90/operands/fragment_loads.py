"""Loads of A's fragments: ldmatrix from a stage into the registers that wgmma takes.

A K tile of 64 rows is an ldmatrix.x4 of each warp for every 16 of K. Lines along M are loaded transposed.

Source: PTX ISA, "ldmatrix", "wgmma.mma_async" (register fragment of A).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ....atoms import CopyAtom, MmaAtom, SmemTile, ldmatrix, operand_map
from ....checks import bank_conflicts
from ....layouts import Layout
from ....report import Check
from ...thread_addresses import ThreadAddresses

if TYPE_CHECKING:
    from ..plan import Sm90Plan

_ROW_BYTES = 16  # of a lane's row


@dataclass(frozen=True)
class FragmentLoads:
    """The ldmatrix loads of a K tile of A into the registers of wgmma.

    atom   wgmma with A in registers
    tile   A's in shared memory
    """

    atom: MmaAtom
    tile: SmemTile

    @property
    def copy(self) -> CopyAtom:
        """The load of 64 x 16 elements by four warps: transposed where lines run along M."""
        return ldmatrix(4, transpose=self.tile.major == "MN", element=self.tile.dtype)

    @property
    def steps(self) -> int:
        """Loads along K, one an instruction."""
        return self.tile.extent[1] // int(self.atom.shape_mnk[2])

    @property
    def blocks(self) -> int:
        """Blocks of 64 rows."""
        return self.tile.extent[0] // int(self.atom.shape_mnk[0])

    @cached_property
    def rows(self) -> Layout:
        """((lane, element of its row), (load, warp)) -> row + 64 * k, of 64 rows."""
        return operand_map(self.copy, self.atom, "A", (1, self.steps))

    def byte(self, thread: Any, j: int, block: int, step: int) -> Any:
        """The byte of element j of a thread's row, of a load; ints, arrays or traced integers."""
        height = int(self.atom.shape_mnk[0])
        element = self.rows((thread % 32, j), (step, thread // 32))
        return self.tile.byte(element % height + height * block, element // height)

    @cached_property
    def places(self) -> ThreadAddresses:
        """(thread, (block, step)) -> byte of A's tile at which the thread's row begins."""

        def byte(threads: npt.NDArray[np.int64], index: tuple[int, ...]) -> npt.NDArray[np.int64]:
            block, step = index
            return np.asarray([int(self.byte(int(thread), 0, block, step)) for thread in threads])

        indices = [(block, step) for block in range(self.blocks) for step in range(self.steps)]
        return ThreadAddresses.derive(byte, int(self.atom.threads), indices)

    @property
    def block_bytes(self) -> int:
        """Bytes from a block to the next, the same for all."""
        return int(self.byte(0, 0, 1, 0)) - int(self.byte(0, 0, 0, 0)) if self.blocks > 1 else 0


@lru_cache(maxsize=256)
def fragment_loads(atom: MmaAtom, tile: SmemTile) -> FragmentLoads:
    """The loads of a plan's A."""
    return FragmentLoads(atom, tile)


def loads_of(plan: Sm90Plan) -> FragmentLoads:
    """The loads of a plan with a prologue."""
    return fragment_loads(plan.mma, plan.a.smem)


def product_groups(plan: Sm90Plan) -> int:
    """Groups of products of a K tile and a block: two of one block, whose registers take turns while products run."""
    return 2 if plan.blocks == 1 else 1


def fragment_load_checks(plan: Sm90Plan) -> list[Check]:
    """Checks of the loads of A's fragments, and of their banks."""
    return [_feeds(plan), _banks(plan)]


def _feeds(plan: Sm90Plan) -> Check:
    """The loads, at the addresses that threads compute, give each register of wgmma's A."""
    loads, witness = loads_of(plan), ""
    depth, height = int(loads.atom.shape_mnk[2]), int(loads.atom.shape_mnk[0])
    registers, size = loads.copy.layout_dst, loads.tile.dtype.bytes
    each = _ROW_BYTES // size
    values = int(loads.atom.layout_A[1].size)
    for block in range(loads.blocks):
        for step in range(loads.steps):
            base, further = loads.places.of[block, step]
            for thread in range(int(loads.atom.threads)):
                for value in range(values):
                    m, k = (int(x) for x in loads.atom.coords("A")(thread, value))
                    want = int(loads.tile.byte(m + height * block, k + depth * step))
                    lane, j = divmod(int(registers(thread % 32, value)), each)
                    source = thread // 32 * 32 + lane
                    address = int(loads.byte(source, 0, *loads.places.bases[base])) + further
                    if address + j * size != want and not witness:
                        witness = (
                            f"block {block}, step {step}, thread {thread}, value {value}: the tile has it at byte "
                            f"{want}, ldmatrix reads {address + j * size}"
                        )
                    whole = int(loads.byte(source, j, block, step))
                    if whole != address + j * size and not witness:
                        witness = f"block {block}, step {step}, thread {source}: its row is not {_ROW_BYTES} bytes"
    count = loads.blocks * loads.steps
    steps = {int(loads.byte(0, 0, b + 1, 0)) - int(loads.byte(0, 0, b, 0)) for b in range(loads.blocks - 1)}
    if len(steps) > 1:
        witness = witness or f"blocks of 64 rows lie {sorted(steps)} bytes apart"
    statement = f"{count} {loads.copy} give the registers of {loads.atom}, block by block {loads.block_bytes} bytes on"
    return Check("fragments A", statement, not witness, f"exhaustion ({count} loads)", witness)


def _banks(plan: Sm90Plan) -> Check:
    """Bank conflicts of the loads."""
    loads = loads_of(plan)
    found = [
        [int(loads.byte(32 * warp + lane, 0, 0, step)) for lane in range(32)]
        for warp in range(4)
        for step in range(loads.steps)
    ]
    return bank_conflicts(np.asarray(found), _ROW_BYTES, "ldmatrix").as_check("banks fragments A")
