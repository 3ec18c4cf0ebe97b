"""Loads of A's fragments. Ldmatrix from a stage into the registers that wgmma takes, and the products that take them.

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
from ....atoms.copy.base import WARP
from ....checks import bank_conflicts
from ....errors import PlanError
from ....layouts import Layout
from ....report import Check
from ...thread_addresses import ThreadAddresses

if TYPE_CHECKING:
    from ..plan import Sm90Plan

IN_FLIGHT = 2  # groups of products whose registers differ: one runs while the next one's fragments are computed


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
        """The load of 64 x 16 elements by four warps. Transposed where lines run along M."""
        return ldmatrix(4, transpose=self.tile.major == "MN", element=self.tile.dtype)

    @property
    def row_elements(self) -> int:
        """Elements of a lane's row."""
        return int(self.copy.layout_src[1].size)

    @property
    def height(self) -> int:
        """Rows of a block."""
        return int(self.atom.shape_mnk[0])

    @property
    def depth(self) -> int:
        """K of an instruction."""
        return int(self.atom.shape_mnk[2])

    @property
    def steps(self) -> int:
        """Loads along K, one an instruction."""
        return self.tile.extent[1] // self.depth

    @property
    def blocks(self) -> int:
        """Blocks of rows in the tile."""
        return self.tile.extent[0] // self.height

    @cached_property
    def values(self) -> tuple[tuple[int, int], ...]:
        """(row, column) of each value of a fragment, where thread 0 has it."""
        of = self.atom.coords("A")
        places = [of(0, v) for v in range(int(self.atom.layout_A[1].size))]
        return tuple((int(i), int(j)) for i, j in places)

    @cached_property
    def rows(self) -> Layout:
        """((lane, element of its row), (load, warp)) -> row + 64 * k, of 64 rows."""
        return operand_map(self.copy, self.atom, "A", (1, self.steps))

    def byte(self, thread: Any, j: Any, block: int, step: int) -> Any:
        """The byte of element j of a thread's row, of a load. Ints, arrays or traced integers."""
        element = self.rows((thread % WARP, j), (step, thread // WARP))
        return self.tile.byte(element % self.height + self.height * block, element // self.height)

    @cached_property
    def places(self) -> ThreadAddresses:
        """(thread, (block, step)) -> byte of A's tile at which the thread's row begins."""

        def byte(threads: npt.NDArray[np.int64], index: tuple[int, ...]) -> npt.NDArray[np.int64]:
            block, step = index
            return np.asarray(self.byte(threads, 0, block, step))

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


def product_groups(steps: int, blocks: int) -> tuple[range, ...]:
    """The instructions of a block's K tile that are issued together, group by group.

    Groups in flight have registers of their own. Those of two blocks do; one block's K tile is two groups.

    steps   instructions of a K tile
    blocks  of a warpgroup

    Raises PlanError for one block and one instruction.

    >>> product_groups(4, 2), product_groups(3, 1)
    ((range(0, 4),), (range(0, 2), range(2, 3)))
    """
    if blocks >= IN_FLIGHT:
        return (range(steps),)
    if steps < IN_FLIGHT:
        raise PlanError(
            f"a K tile of {steps} instruction(s), and one block of 64 rows: its registers would be computed anew while "
            f"the products read them; a prologue takes {IN_FLIGHT} instructions a K tile, or more blocks"
        )
    first = steps - steps // IN_FLIGHT
    return range(first), range(first, steps)


def groups_of(plan: Sm90Plan) -> tuple[range, ...]:
    """The groups of products of a plan with a prologue."""
    return product_groups(loads_of(plan).steps, plan.blocks)


def fragment_load_checks(plan: Sm90Plan) -> list[Check]:
    """Checks of the loads of fragments and numbers, of products, and of banks."""
    feeds, banks = load_checks(loads_of(plan))
    return [feeds, _numbers(plan), _multiplied_once(plan), banks]


def load_checks(loads: FragmentLoads) -> list[Check]:
    """Checks of the loads alone: the registers that they give, and banks.

    >>> from layoutgemm.atoms import smem_tile, wgmma
    >>> [check.ok for check in load_checks(FragmentLoads(wgmma(64, a_source="rmem"), smem_tile((64, 64), "bf16", "K")))]
    [True, True]
    """
    return [_feeds(loads), _banks(loads)]


def _feeds(loads: FragmentLoads) -> Check:
    """The loads, at the addresses that threads compute, give each register of wgmma's A."""
    witness = ""
    registers, size = loads.copy.layout_dst, loads.tile.dtype.bytes
    threads = np.arange(int(loads.atom.threads))[:, None]
    values = np.arange(len(loads.values))[None, :]
    lane, j = np.divmod(np.asarray(registers(threads % WARP, values)), loads.row_elements)
    source = threads // WARP * WARP + lane
    m, k = loads.atom.coords("A")(threads, values)
    for block, step in loads.places.of:
        base, further = loads.places.of[block, step]
        of_base, of_step = loads.places.bases[base]
        read = np.asarray(loads.byte(source, 0, of_base, of_step)) + further + j * size
        wants = {
            "the tile has it at": loads.tile.byte(m + loads.height * block, k + loads.depth * step),
            "the thread's row has it at": loads.byte(source, j, block, step),
        }
        for text, want in wants.items():
            wrong = np.argwhere(read != np.asarray(want))
            if len(wrong) and not witness:
                at = tuple(int(x) for x in wrong[0])
                witness = (
                    f"block {block}, step {step}, thread {at[0]}, value {at[1]}: {text} byte {np.asarray(want)[at]}, "
                    f"ldmatrix reads {read[at]}"
                )
    distances = {int(loads.byte(0, 0, b + 1, 0)) - int(loads.byte(0, 0, b, 0)) for b in range(loads.blocks - 1)}
    if len(distances) > 1:
        witness = witness or f"blocks of 64 rows lie {sorted(distances)} bytes apart"
    count = loads.blocks * loads.steps
    statement = f"{count} {loads.copy} give the registers of {loads.atom}, block by block {loads.block_bytes} bytes on"
    return Check("fragments A", statement, not witness, f"exhaustion ({count} loads)", witness)


def _numbers(plan: Sm90Plan) -> Check:
    """A thread's values lie as thread 0's do, from its first one: one address an operand loads their numbers."""
    loads = loads_of(plan)
    threads, values = np.arange(int(loads.atom.threads))[:, None], np.arange(len(loads.values))[None, :]
    witness = ""
    for axis, places in zip("mk", loads.atom.coords("A")(threads, values), strict=True):
        found = np.broadcast_to(np.asarray(places), (len(threads), len(loads.values)))
        wrong = np.argwhere(found - found[:, :1] != found[0] - found[0, 0])
        if len(wrong) and not witness:
            t, v = (int(x) for x in wrong[0])
            witness = (
                f"thread {t}, value {v}: {found[t, v] - found[t, 0]} along {axis} from its first, thread 0's "
                f"{found[0, v] - found[0, 0]}"
            )
    statement = "values of a fragment lie as far from a thread's first as in thread 0"
    return Check(
        "numbers of fragments", statement, not witness, f"exhaustion ({threads.size * values.size} values)", witness
    )


def _multiplied_once(plan: Sm90Plan) -> Check:
    """The groups of products take each instruction's fragment of a K tile once, in order."""
    groups, steps = groups_of(plan), plan.tile[2] // loads_of(plan).depth
    taken = [step for group in groups for step in group]
    witness = "" if taken == list(range(steps)) else f"of {steps} instructions along K {taken} are issued"
    if len(groups) * plan.blocks < IN_FLIGHT:
        witness = witness or f"{len(groups) * plan.blocks} set(s) of registers, and {IN_FLIGHT} groups in flight"
    statement = f"{len(groups)} group(s) of products of a block take the {steps} fragments of a K tile, each once"
    return Check("products of fragments", statement, not witness, "arithmetic", witness)


def _banks(loads: FragmentLoads) -> Check:
    """Bank conflicts of the loads."""
    threads = np.arange(int(loads.atom.threads)).reshape(-1, WARP)
    found = np.concatenate([np.asarray(loads.byte(threads, 0, 0, step)) for step in range(loads.steps)])
    row_bytes = loads.row_elements * loads.tile.dtype.bytes
    return bank_conflicts(found, row_bytes, "ldmatrix").as_check("banks fragments A")
