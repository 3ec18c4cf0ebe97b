"""Checks that the plans of several architectures share: tiles, operands, fragment map, pipelines, shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from ..atoms import MmaAtom, SmemTile, TmaPlan
from ..atoms.smem.descriptor import OperandDescriptor
from ..checks import Pipeline, PipelineProof, bank_conflicts, bijective_tile, filled_by, matrix_access, read_by
from ..checks.pipeline.prove import Interleaving
from ..errors import PlanError
from ..memo import memoized
from ..report import Check
from ..schedule.persistent import numbered_once
from .derive import OperandPlan, in_bytes, is_padded, one_matrix
from .orders import clusters_of_plan, order_check, order_proof, schedule_of
from .plan import BARRIER_BYTES, GemmPlan, PersistentPlan, StoreSmemMap
from .store import StorePlan, distinct_chunks

Region = tuple[str, int, int, int]  # name, first byte, bytes, alignment


@memoized(512)
def tile_checks(name: str, tile: SmemTile, descriptor: OperandDescriptor, mma: MmaAtom) -> tuple[Check, ...]:
    """An operand's tile as the instruction reads it: a bijection, its descriptor, banks."""
    slots = tile if tile.packing == "packed" else in_bytes(tile)  # padded elements have a byte each
    banks = bank_conflicts(slots, matrix_access(slots.extent, slots.dtype, slots.major, "wgmma"))
    return (
        bijective_tile(f"tile {name}", tile),
        read_by(f"descriptor {name}", tile, descriptor, mma, name),
        banks.as_check(f"banks {name}"),
    )


@memoized(512)
def copy_check(name: str, tile: SmemTile, tma: TmaPlan) -> Check:
    """The TMA loads of an operand fill its tile."""
    return filled_by(f"copy {name}", tile, one_matrix(tma))


def operand_checks(operand: OperandPlan, mma: MmaAtom) -> list[Check]:
    """The tile's layout is bijective, filled by its copies, and read without bank conflicts."""
    bijective, *read = tile_checks(operand.name, operand.smem, operand.descriptor, mma)
    tma = replace(operand.tma, dtype=operand.unit, format="") if is_padded(operand) else operand.tma
    return [bijective, copy_check(operand.name, operand.unit_tile, tma), *read]


def fragment_checks(mma: MmaAtom) -> list[Check]:
    """The accumulator's fragment map is a bijection, and its coordinates say the same."""
    layout, (rows, columns) = mma.layout_C, mma.tile_of("C")
    verdict = layout.is_bijective()
    size = rows * columns
    bijective = bool(verdict) and layout.size == size
    checks = [
        Check(
            "fragment map",
            f"{layout} puts each of {rows}x{columns} elements in one (thread, value)",
            bijective,
            "normal form",
            "" if bijective else str(verdict),
        )
    ]
    row, column = mma.coords_C(np.arange(layout.size))
    wrong = np.nonzero(np.asarray(row) + rows * np.asarray(column) != layout.offsets())[0]
    witness = "" if not len(wrong) else f"(thread, value) number {int(wrong[0])}"
    checks.append(
        Check("coordinates", f"{mma.coords_C} is the same map", not witness, f"exhaustion ({size} elements)", witness)
    )
    return checks


def tiles_of_c(plan: Any, statement: str, tile: Sequence[int], unlike: str = "", batched: bool = True) -> Check:
    """The plan's tiles cover C, and its order visits each once in every matrix.

    tile     rows and columns of C
    unlike   what else is wrong of the order, or ""
    batched  a tile's number tells its matrix, too; else the grid does
    """
    witness = ""
    for what, size, extent, count in zip("MN", (plan.m, plan.n), tile, plan.tiles):
        if not (count - 1) * extent < size <= count * extent:
            witness = witness or f"{count} tiles of {extent} along {what} for {size}"
    witness = witness or unlike
    answer: Any = order_proof(plan.order)
    if not answer and not witness:  # not for every grid: then this grid's tiles are enumerated
        answer = order_check(schedule_of(plan), clusters_of_plan(plan))
        witness = "" if answer else answer.witness
    if batched and plan.batch > 1 and not witness:
        matrix = numbered_once("tiles", "batch")
        witness = "" if matrix else str(matrix)
    return Check("tiles of C", statement, not witness, getattr(answer, "method", "none"), witness)


def boxes_of_c(plan: PersistentPlan, store: StorePlan, rows: int) -> Check:
    """A chunk's tile is the boxes of its tensor map, element by element. Its rows are the owner's."""
    witness, size = "", 0
    for chunk in distinct_chunks(store):
        columns = f"columns {chunk.column}"
        if not 0 <= chunk.map < len(store.maps):
            witness = witness or f"{columns}: there is no tensor map {chunk.map}"
            continue
        tma, want = one_matrix(store.maps[chunk.map]), ((rows, chunk.width), plan.c.dtype)
        size += rows * chunk.width
        filled = filled_by("store", chunk.tile, tma)
        if not filled:
            witness = witness or f"{columns}: {filled.witness}"
        elif (chunk.tile.extent, chunk.tile.dtype) != want:
            witness = witness or f"{columns}: a tile of {chunk.tile.extent} {chunk.tile.dtype}, not {want[0]} {want[1]}"
        elif tma.dims != (("n", "m") if plan.c.order == "row" else ("m", "n")) or tma.operation != "store":
            witness = witness or f"the {tma.operation} of {columns} runs along {tma.dims}"
    boxes = ", ".join(f"{len(tma.instructions)} of {tma.box}" for tma in store.maps)
    statement = f"each chunk's tile has {rows} rows of its columns, and its boxes, {boxes}, move each element once"
    return Check("boxes of C", statement, not witness, f"exhaustion ({size} elements)", witness)


def buffers_of_c(places: StoreSmemMap, store: StorePlan, owners: int) -> list[Region]:
    """The buffers of C in shared memory, of one owner after the other."""
    alignment = max(chunk.tile.alignment for chunk in distinct_chunks(store))
    return [
        (f"C[{i}]", places.c_offset + i * places.c_buffer_bytes, store.buffer_bytes, alignment)
        for i in range(owners * store.buffers)
    ]


def barriers_at(pitch: int, **rings: tuple[int, int]) -> list[Region]:
    """Rings of barriers in shared memory: name -> (first byte, count)."""
    return [
        (f"{name}[{i}]", first + i * pitch, BARRIER_BYTES, BARRIER_BYTES)
        for name, (first, count) in rings.items()
        for i in range(count)
    ]


def tiles_of_k(plan: GemmPlan, said: str, rest: str, method: str = "arithmetic", unlike: str = "") -> Check:
    """The K tiles cover K, and the tiles of A and B have their depth.

    said, rest   what else a statement says of the k tiles, and of the last one's elements beyond K
    unlike       what else is wrong, or ""
    """
    depth = plan.tile[2]
    count = -(-plan.k // depth)
    a, b = [getattr(x, "tile_depth", x.smem.extent[1]) for x in (plan.a, plan.b)]
    witness = unlike if a == b == depth else f"k tiles of {depth}, tiles of A {a} and of B {b} deep"
    statement = f"{count} k tiles of {depth}{said} cover K = {plan.k}; the last {count * depth - plan.k} are {rest}"
    return Check("tiles of K", statement, not witness, method, witness)


def pipelines(cases: Sequence[Pipeline], statement: str, anyones: int = 0) -> Check:
    """No deadlock and no race in any of the cases.

    anyones  in the first `anyones` cases, a fence.proxy.async covers all writes that its thread knows of
    """
    states, witness = 0, ""
    for number, case in enumerate(cases):
        found: PipelineProof | Interleaving | str
        try:
            found = _proven(case, "any") if number < anyones else _proven(case)
        except PlanError as error:  # more states than are walked through: neither proven nor refuted
            found = f"undecided: {error}"
        if isinstance(found, PipelineProof):
            states += found.states
        elif not witness:
            witness = str(found)
    method = f"happens-before, closed after {states} states of {len(cases)} case(s)"
    return Check("pipeline", statement, not witness, method, witness)


@lru_cache(maxsize=256)
def _proven(pipeline: Pipeline, fences: str = "writer") -> PipelineProof | Interleaving:
    """A pipeline's proof: many plans have the same pipeline."""
    return pipeline.prove(fences=fences)


def stages_of(plan: GemmPlan) -> list[Region]:
    """The stages of A and of B in shared memory."""
    return [
        (f"{op.name}[{s}]", plan.smem.stage(op.name, s), op.smem.bytes, op.smem.alignment)
        for op in (plan.a, plan.b)
        for s in range(plan.stages)
    ]


def stage_budget(plan: GemmPlan) -> dict[str, int]:
    """Name -> bytes of all stages of A, and of B."""
    each = {"A": plan.smem.a_stage_bytes, "B": plan.smem.b_stage_bytes}
    return {f"{plan.stages} stages of {name}": plan.stages * size for name, size in each.items()}


def misplaced(regions: Iterable[Region], alignment: int, total: int) -> str:
    """The first region that is unaligned, overlaps another, or ends beyond the total; or "".

    >>> misplaced([("A", 0, 64, 16), ("B", 48, 16, 16)], 1024, 128)
    "byte 48 is A's and B's"
    """
    witness, end, before = "", 0, ""
    for name, first, size, unit in sorted(regions, key=lambda region: region[1]):
        if first < end:
            witness = witness or f"byte {first} is {before}'s and {name}'s"
        if first % unit or alignment % unit:
            witness = witness or f"{name} at byte {first}, no multiple of {unit}"
        if first + size > end:
            end, before = first + size, name
    return witness or (f"{before} ends at byte {end} of {total}" if end > total else "")
