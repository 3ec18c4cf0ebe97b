"""A plan as a linked page. The tiles of A and B in shared memory, and the accumulators of a block over its tile of C.

Where an element of C sits follows from the instruction's map and from how a kernel deals out a tile:

    TeachingPlan     one instruction of one warpgroup
    Sm90Plan     a warpgroup takes `blocks` accumulators of 64 rows, one below the other; the next warpgroup the rows
                 below; in pingpong each warpgroup takes all rows of a tile of its own
    Sm80Plan     warps in a grid, each with its products in a grid; operands by ldmatrix or ld.shared
    Sm100Plan    rows in the lanes of tensor memory, half of them in either block of a pair
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..arguments import shown
from ..atoms import MmaAtom
from ..atoms.copy.base import WARP
from ..errors import PlanError
from ..layouts import display
from ..view.pages.html import page, write
from ..view.pages.model import THREADS, Fact, Figure, Holder, Holders, PageMatrix, Table
from ..view.pages.parts import axes, shared_memory
from ..view.pages.product import descriptor_facts, operand_matrix, product_figure, value_labels
from .derive import OperandPlan
from .plan import GemmPlan
from .sm80.operand import Sm80Operand
from .sm80.plan import Sm80Plan
from .sm90.plan import WARPGROUP, Sm90Plan
from .sm100.plan import Sm100Plan
from .store import ROWS
from .teaching.plan import TeachingPlan

UNIT = 16  # bytes of a row whose address a lane gives to ldmatrix


def plan_figure(plan: GemmPlan) -> Figure:
    """The page of one block's tile (of a pair's, for Blackwell's two), of one stage.

    Raises PlanError for another plan, LayoutError for a tile of more elements than a page holds.
    """
    if getattr(plan, "weights", None) is not None:
        raise PlanError("a page links what lies in shared memory as the instruction reads it, and weights are packed")
    if isinstance(plan, Sm90Plan):
        return _hopper(plan)
    if isinstance(plan, Sm80Plan):
        return _ampere(plan)
    if isinstance(plan, TeachingPlan):
        return product_figure(plan.mma, plan.a.smem, plan.b.smem, title=str(plan))
    if isinstance(plan, Sm100Plan):
        return product_figure(plan.mma, plan.a.smem, plan.b.smem, title=str(plan))
    raise PlanError(f"{shown(plan)} has no page: a TeachingPlan, an Sm80Plan, an Sm90Plan or an Sm100Plan has")


@display.page.register(GemmPlan)
def plan_html(plan: GemmPlan, path: str | Path | None = None) -> str:
    """The linked page of a plan; `path` writes it to a file, too."""
    text = page(plan_figure(plan))
    if path is not None:
        write(text, path)
    return text


def _hopper(plan: Sm90Plan) -> Figure:
    groups = plan.config.warpgroups_of_tile
    columns = plan.tile[1]
    layout = plan.mma.layout_C
    group, block, t, v = np.indices((groups, plan.blocks, WARPGROUP, int(layout[1].size)))
    at = np.asarray(layout(t, v), np.int64)
    row = (group * plan.blocks + block) * ROWS + at % ROWS
    labels = value_labels(plan.mma, "C", (plan.blocks, 1), lambda i, j: f"accumulator {i}")
    size = (plan.tile[0], columns)
    held = Holders.of(size, (row, at // ROWS, t + WARPGROUP * group, v + layout[1].size * block), labels)
    holder = THREADS(WARPGROUP * groups)
    several = groups < plan.config.consumers
    turns = " Two warpgroups in turn hold a tile each; the page shows the first's." if several else ""
    of = "first those of the gate, then those that it gates" if plan.halves > 1 else "those of each matrix in turn"
    halves = f" Columns of B and of the sums: {of}." if plan.gated else ""
    matrices = (
        *(_by_descriptor(operand, plan.mma, 1) for operand in (plan.a, plan.b)),
        operand_matrix("C", _words(size, plan.mma, "C") + ", registers", size, holder, held),
    )
    return Figure(str(plan), (f"One stage of one block.{turns}{halves}",), matrices, holder)


def _by_descriptor(operand: OperandPlan, atom: MmaAtom, parts: int) -> PageMatrix:
    """An operand that the instruction reads from shared memory."""
    size = (operand.smem.extent[0] * parts, operand.smem.extent[1])
    facts = descriptor_facts(operand.descriptor, operand.smem, operand.name, size)
    memory = shared_memory(operand.name, operand.smem, facts, parts)
    title = _words(size, atom, operand.name) + ", shared memory"
    return operand_matrix(operand.name, title, size, None, None, memory)


def _words(size: tuple[int, ...], atom: MmaAtom, name: str) -> str:
    return f"{size[0]}x{size[1]} {atom.dtype_of(name)}"


def _ampere(plan: Sm80Plan) -> Figure:
    holder = THREADS(plan.threads)
    of_c = (plan.tile[0], plan.tile[1])
    rows, columns = (_indices(operand) for operand in (plan.a, plan.b))
    places = plan.mma.coords_C
    lane, v = np.indices((WARP, plan.mma.accumulator_registers))
    i, j = (np.asarray(x, np.int64) for x in places(lane, v))
    found: list[tuple[Table, ...]] = []
    for warp, (along_m, along_n) in _warps(plan):
        for m in range(plan.blocks[0]):
            for n in range(plan.blocks[1]):
                value = v + plan.mma.accumulator_registers * (m + plan.blocks[0] * n)
                row = rows[along_m, m * plan.mma.shape_mnk[0] + i]
                found.append((row, columns[along_n, n * plan.mma.shape_mnk[1] + j], lane + WARP * warp, value))
    labels = value_labels(plan.mma, "C", plan.blocks, lambda m, n: f"product ({m}, {n})")
    held = Holders.of(of_c, _joined(found), labels)
    matrices = (
        *(_by_load(plan, number, holder) for number in (0, 1)),
        operand_matrix("C", _words(of_c, plan.mma, "C") + ", registers", of_c, holder, held),
    )
    return Figure(str(plan), ("One stage of one block.",), matrices, holder)


def _warps(plan: Sm80Plan) -> Iterator[tuple[int, tuple[int, int]]]:
    for warp in range(plan.threads // WARP):
        along_m, along_n = plan.warp_place(warp)
        yield warp, (int(along_m), int(along_n))


def _joined(found: list[tuple[Table, ...]]) -> tuple[Table, ...]:
    return tuple(np.concatenate([np.broadcast_to(part, found[0][2].shape).ravel() for part in column])
                 for column in zip(*found, strict=True))  # fmt: skip


def _indices(operand: Sm80Operand) -> Table:
    """[warp along M or N, index as the warp's instructions count] -> index in the tile."""
    order = np.asarray(operand.load.order(np.arange(16)), np.int64)
    inside = np.arange(operand.warp_extent)
    return np.arange(operand.warps)[:, None] * operand.warp_extent + inside // 16 * 16 + order[inside % 16]


def _by_load(plan: Sm80Plan, number: int, holder: Holder) -> PageMatrix:
    """An operand that warps load into registers; `number` 0 is A, 1 is B."""
    operand = (plan.a, plan.b)[number]
    size, atom = operand.smem.extent, plan.mma
    lane, v = np.indices((WARP, int(atom.layout(operand.name)[1].size)))
    i, k = (np.asarray(x, np.int64) for x in atom.coords(operand.name)(lane, v))
    one, depth = atom.tile_of(operand.name)
    blocks, indices = operand.warp_extent // one, _indices(operand)
    found: list[tuple[Table, ...]] = []
    for warp, along in _warps(plan):
        for block in range(blocks):
            for step in range(plan.steps):
                row = indices[along[number], block * one + i]
                value = v + atom.layout(operand.name)[1].size * (block + blocks * step)
                found.append((row, k + step * depth, lane + WARP * warp, value))
    labels = value_labels(atom, operand.name, (blocks, plan.steps), lambda b, s: f"block {b} of step {s}")
    held = Holders.of(size, _joined(found), labels)
    memory = shared_memory(operand.name, operand.smem, _load_facts(operand))
    title = _words(size, atom, operand.name) + ", registers"
    return operand_matrix(operand.name, title, size, holder, held, memory)


def _load_facts(operand: Sm80Operand) -> tuple[Fact, ...]:
    """The lane that gives the address of an element's row; for ld.shared each lane reads its own word."""
    load, tile = operand.load, operand.smem
    mn, k = axes(tile.extent)
    byte = np.asarray(tile.byte(mn, k), np.int64)
    unit = 4 if load.words else UNIT
    giver = np.full((2, -(-tile.bytes // unit)), -1, np.int64)
    lanes = np.arange(WARP)
    for warp in range(operand.warps):
        for step in range(load.steps):
            for number in range(load.loads):
                for word in range(len(load.words) or 1):
                    at = np.asarray(load.byte(tile, lanes, warp, (number, step, word)), np.int64) // unit
                    giver[:, at] = lanes, 0 * lanes + number + load.loads * (step + load.steps * warp)
    lane, which = (part[byte // unit] for part in giver)
    kind, along = "ld.shared" if load.words else load.kind, "M" if operand.name == "A" else "N"
    if load.kind == "bytes":
        kind = "ldmatrix.trans and prmt"
    words = tuple(
        f"{kind}, load {number} of step {step}" + (f", warps {warp} along {along}" if operand.warps > 1 else "")
        for warp in range(operand.warps) for step in range(load.steps) for number in range(load.loads)
    )  # fmt: skip
    name = "read by" if load.words else "row address from"
    return Fact(name, lane, tuple(f"lane {x}" for x in lanes)), Fact("loaded by", which, words)
