"""Shifts of tensor-memory rows by one: tcgen05.shift, and the .ashift of tcgen05.mma.

PTX ISA, "tcgen05.shift" (9.0), shifts "32-byte elements downwards across all the rows, except the last, by one row".
Its implicit shape is .31x256b, from a lane that is a multiple of 32. PTX leaves open the direction between two rows,
and the content of the row at the edge. NVIDIA's example of .ashift shows both, "observed on B200":
`examples/python/CuTeDSL/experimental/primitives/tcgen05/1cta_mma_a_from_tmem.py` in NVIDIA/cutlass 4.8. Row r of each
32 lanes gets the words of row r + 1, and the last one stays. The DSL's `tcgen05_shift` also states that the shift works
on sub-partitions of 32 lanes. So both do here what the example checks: 8 columns, 31 rows written, 32 read.
tcgen05.shift moves the one sub-partition that its address names.

Order. PTX ISA, "Pipelined tcgen05 Instructions": of the pairs with a shift, shift -> mma, mma -> shift and shift ->
cp.4x256b run in the order of their issue. All other pairs race where they touch the same place, until a commit of the
earlier one has been waited for: cp -> shift, shift -> shift, shift -> cp of another shape.
"""

from __future__ import annotations

import numpy as np

from ....atoms.tmem.layout import LANES, WARP_LANES
from ....errors import EmulatorError
from ...machine.interpreter import Cta, Fiber
from ...ptx.parser import PtxInstruction
from ...ptx.program import Program, Run
from ...races.happens_before import MemoryEvent
from ..memory import said
from ..registry import known, operation
from .allocation import GROUPS, group_size
from .tmem import TensorMemory, TmemCoordinates, coordinate, engine_of, group_of, one_thread, tensor_of, touch

COLUMNS_MOVED = 8  # of 32 bits: an element of 32 bytes
SHIFT = "tcgen05.shift"
IN_ORDER = "tcgen05.cp 4x256b"  # the one copy that comes after a shift by itself


def _rows(lanes: int) -> TmemCoordinates:
    lane, column = np.indices((lanes, COLUMNS_MOVED))
    return TmemCoordinates(lane, column, np.zeros_like(lane))


PARTITION, ALL = _rows(WARP_LANES), _rows(LANES)


def shift_rows(tensor: TensorMemory, lane: int, column: int) -> None:
    """Move rows `lane` + 1 .. `lane` + 31 up by one, in 8 columns with written flags; the last row stays."""
    columns = slice(column, column + COLUMNS_MOVED)
    for of in (tensor.words, tensor.written):
        of[lane : lane + WARP_LANES - 1, columns] = of[lane + 1 : lane + WARP_LANES, columns].copy()


def in_pipeline(fiber: Fiber, ins: PtxInstruction, cta: Cta, places: int, kind: str, event: MemoryEvent) -> None:
    """Report a shift or copy that no pipeline orders after an earlier one."""
    engine, ledger = engine_of(fiber), fiber.cta.cluster.ledger
    if not fiber.machine.policy.races:
        return
    engine.moves = [move for move in engine.moves if not ledger.knows(fiber.knows, move[1])]
    for earlier, its, where, touched, text in engine.moves:
        if its is event or where is not cta or not touched & places or SHIFT not in (earlier, kind):
            continue
        if kind != IN_ORDER:
            common = touched & places
            at = tensor_of(cta).shadow.name((common & -common).bit_length() - 1)
            fiber.machine.problem(
                "race",
                f"{said(fiber, ins)()} and, before it, {text} both touch {at}: PTX pipelines no such pair; wait for a "
                "tcgen05.commit of the earlier one",
                fiber,
                ins,
            )
            break
    engine.moves.append((kind, event, cta, places, said(fiber, ins)()))


def has_shifts(program: Program) -> bool:
    """True if the kernel has a shift of its own."""
    return any(tuple(ins.words[:2]) == ("tcgen05", "shift") for ins in program.kernel.instructions)


@operation(SHIFT)
def shift(program: Program, ins: PtxInstruction) -> Run:
    """tcgen05.shift, in each block of the group. Rows of 32 lanes and 8 columns move by one; see above."""
    known(ins, "shift", "down", *GROUPS)
    if "down" not in ins.words or len(ins.operands) != 1:
        raise ValueError("it is .down, of one address")
    size, address = group_size(ins), program.address(ins.operands[0], "b32")

    def go(fiber: Fiber) -> None:
        one_thread(fiber)
        lane, column = coordinate(fiber.one(address(fiber)))
        if lane % WARP_LANES:
            raise EmulatorError(f"tcgen05.shift from lane {lane}: it has to be a multiple of {WARP_LANES}")
        engine = engine_of(fiber)
        event, what = engine.event(fiber, ins), said(fiber, ins)
        for cta in group_of(fiber, size):
            tensor = tensor_of(cta)
            tensor.check(fiber, lane, column, WARP_LANES, COLUMNS_MOVED)
            places = PARTITION.places(lane, column)
            touch(fiber, cta, places, True, what, event)
            in_pipeline(fiber, ins, cta, places, SHIFT, event)
            fiber.machine.counts.bytes["tensor memory shifted"] += 4 * (WARP_LANES - 1) * COLUMNS_MOVED

            def move(tensor: TensorMemory = tensor) -> None:
                shift_rows(tensor, lane, column)

            engine.add(fiber, move)

    return go
