"""Matrix copies of a warp: ldmatrix, stmatrix, movmatrix.

The atom's two maps become one index array when the kernel is loaded. It gives the place of each byte of each lane's
row. An execution is one fetch of rows and one `take`.

PTX ISA, "Warp-level Matrix Instructions: ldmatrix, stmatrix, movmatrix".
"""

from __future__ import annotations

import re
from collections.abc import Sized
from functools import partial

import numpy as np
import numpy.typing as npt

from ....atoms.copy.base import CopyAtom
from ....atoms.copy.ldmatrix import ROW_BYTES, ldmatrix, movmatrix, stmatrix
from ....errors import EmulatorError
from ...machine.interpreter import Cta, Fiber
from ...machine.memory import ALL, GRANULE, WHOLE
from ...ptx.parser import PtxInstruction, PtxOperand
from ...ptx.program import Program, Reader, Run
from ...ptx.values import FULL, LANES, Lanes
from ...races.lanes import LaneAccess, Meets, read_together
from ..memory import place, said
from ..registry import operation
from ..swizzles import ROWS, check_loaded

SPACES = ("shared", "shared::cta")
# Bytes used in a 16-byte row of a packed source: 16 elements of this many bits, then padding. PTX ISA, ldmatrix.
PACKED = {"b6x16_p32": 6, "b4x16_p64": 4}

# Cached rows for sets of addresses: a kernel repeats them, and every block uses the same ones.
KNOWN = 1 << 14
_known: dict[tuple[tuple[str, str], int, int, bytes], tuple[npt.NDArray[np.int64], LaneAccess]] = {}


def atom_of(ins: PtxInstruction) -> tuple[CopyAtom, str]:
    """The atom that an opcode names, and its state space ("" for generic addresses)."""
    name, *words = ins.words
    space = next((word for word in words if word in SPACES), "")
    words = [word for word in words if word not in SPACES]
    if words.count("sync") != 1 or words.count("aligned") != 1:
        raise ValueError(f"{name} is .sync.aligned")
    words = [word for word in words if word not in ("sync", "aligned")]
    first = [r"m\d+n\d+", r"x\d", "trans"]  # ptxas takes these in any order; CUTLASS writes the number first
    rank = {word: n for word in words for n, form in enumerate(first) if re.fullmatch(form, word)}
    words = sorted(words, key=lambda word: rank.get(word, len(first)))
    form = re.fullmatch(r"m(\d+)n(\d+)\.x(\d)(\.trans)?\.([\w.]+)", ".".join(words))
    if form is None:
        raise ValueError(f"{ins.opcode} is not emulated")
    make = ldmatrix if name == "ldmatrix" else stmatrix
    return make(int(form[3]), f"m{form[1]}n{form[2]}.{form[5]}", form[4] is not None), space


def _elements(atom: CopyAtom, side: str) -> npt.NDArray[np.int64]:
    """[lane, value] -> element of the reference tile."""
    layout = atom.layout(side)
    values = np.asarray(layout.offsets(), dtype=np.int64).reshape(layout[1].size, layout[0].size)
    return values.T


def _register_map(atom: CopyAtom, side: str) -> npt.NDArray[np.int64]:
    """[register, lane, unit] -> element, for the side in registers; a unit is an element of the atom."""
    elements = _elements(atom, side)
    each = 32 // atom.element.bits
    return elements.reshape(LANES, -1, each).transpose(1, 0, 2)


class MatrixRows:
    """The rows in shared memory that a matrix copy touches.

    lanes  the lanes that supply an address, in the order of the rows
    mask   the same as bits
    place  element of the reference tile -> its place in the fetched rows, in elements
    bytes  the bytes of each row that the instruction reads
    """

    def __init__(self, program: Program, ins: PtxInstruction, operand: PtxOperand) -> None:
        self.ins = ins
        self.atom, self.space = atom_of(ins)
        side = self.atom.side_in("smem")
        self.address = program.address(operand)
        self.lanes = np.array(self.atom.address_threads(side))
        self.mask = sum(1 << lane for lane in self.lanes.tolist())
        first = _elements(self.atom, side)[self.lanes]
        self.place = np.empty(first.size, dtype=np.int64)
        self.place[first.reshape(-1)] = np.arange(first.size)
        self.unit = np.dtype(f"u{self.atom.element.bytes}")
        self.packed = PACKED.get(ins.words[-1])
        self.bytes = ROW_BYTES if self.packed is None else ROW_BYTES * self.packed // 8

        self.form = (self.atom.ptx, self.space)

    def find(self, fiber: Fiber, rows: npt.NDArray[np.complex128] | None = None) -> tuple[Cta, npt.NDArray[np.int64]]:
        """(block, number of each row's 16 bytes), checked and recorded; rows: what a store writes there."""
        if fiber.lanes != FULL or fiber.knows.together:
            fiber.whole()
        given = self.address(fiber)
        if not isinstance(given, np.ndarray):
            given = np.full(LANES, given)
        cta = fiber.cta
        key = (self.form, cta.rank, cta.shared.size, given.tobytes())
        found = _known.get(key)
        if found is None:
            if len(_known) >= KNOWN:
                _known.clear()
            found = _known[key] = self._rows(fiber, given)
        machine, write = fiber.machine, rows is not None

        def same(meets: Meets) -> bool:
            met = meets(found[0] * GRANULE)
            held = cta.shared.chunks[found[0][met]]  # of a float's type, where only bits are meant
            return rows is not None and cta.shared.full(found[0][met]) and held.tobytes() == rows[met].tobytes()

        ledger = cta.cluster.ledger
        event = None if write or ledger.reads else ledger.joint(fiber)
        if event is not None and event.readers != FULL and ledger.lanes:
            read_together(ledger, fiber, event, FULL, True)  # its .sync makes the lanes wait for each other
        machine.touch(
            fiber,
            cta,
            found[1].places,
            write,
            said(fiber, self.ins),
            event,
            touch=found[1],
            same=same if write else None,
        )
        if rows is not None:
            cta.shared.came(found[0], ROWS, rows, self.ins.pc, said(fiber, self.ins))
        elif (cta.shared.boxes or cta.shared.origins) and (self.ins.pc, key) not in cta.shared.compared.reads:
            cta.shared.compared.reads.add((self.ins.pc, key))
            check_loaded(cta.shared, found[0], partial(_report, fiber, self.ins))
        machine.counts.bytes["shared write" if write else "shared read"] += self.bytes * len(found[0])
        if machine.banks is not None:
            machine.banks.add(self.ins, self.ins.words[0], ROW_BYTES, found[0] * GRANULE, self.mask)
        return cta, found[0]

    def _rows(self, fiber: Fiber, given: Lanes) -> tuple[npt.NDArray[np.int64], LaneAccess]:
        """(number of each row's 16 bytes, the lanes that access them)."""
        name = self.ins.opcode
        cta, offsets = place(fiber, self.space, given[self.lanes])
        if cta is not fiber.cta:
            raise EmulatorError(f"{name}: the rows are not in the block's own shared memory")
        wrong = offsets % ROW_BYTES != 0
        if wrong.any():
            raise EmulatorError(f"{name}: row address {int(offsets[wrong][0]):#x} is not a multiple of {ROW_BYTES}")
        fiber.cta.shared.check(offsets, ROW_BYTES, name)
        return offsets // GRANULE, LaneAccess(self.mask, offsets, ROW_BYTES)


def _report(fiber: Fiber, ins: PtxInstruction, kind: str, message: str, orders: str = "") -> None:
    fiber.machine.problem(kind, message, fiber, ins, orders=orders)


def _unpacked(rows: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """The elements of packed 16-byte rows, one to a byte, in its low bits."""
    spread = np.unpackbits(rows[:, : 2 * bits], axis=1, bitorder="little").reshape(len(rows), 16, bits)
    return np.packbits(spread, axis=2, bitorder="little").reshape(len(rows), 16)


@operation("ldmatrix", operands=2)
def load_matrix(program: Program, ins: PtxInstruction) -> Run:
    """ldmatrix: rows of shared memory, one address a lane, into fragments; packed elements become bytes."""
    rows = MatrixRows(program, ins, ins.operands[1])
    targets = program.targets(ins.operands[0], "b32")
    take = rows.place[_register_map(rows.atom, "dst")]
    _count(ins, targets, take)
    packed, unit, count = rows.packed, rows.unit, len(targets)

    def go(fiber: Fiber) -> None:
        cta, numbers = rows.find(fiber)
        shared = cta.shared
        if not shared.full(numbers):
            fresh = ~shared.written.reshape(-1, GRANULE)[numbers, : rows.bytes]
            if fresh.any():
                at = np.argwhere(fresh)[0]
                offset = int(numbers[at[0]]) * GRANULE + int(at[1])
                message = f"{ins.opcode} reads shared offset {offset:#x}, never written"
                fiber.machine.problem("uninitialised", message, fiber, suspect=True)
        if packed is None:
            fetched = shared.chunks[numbers].view(unit)
        else:
            fetched = _unpacked(shared.chunks[numbers, None].view(np.uint8), packed)
        found = fetched.reshape(-1)[take].reshape(count, -1).view(np.uint32).astype(np.int64)
        registers = fiber.registers
        for register, value in zip(targets, found):
            if register is not None:
                registers[register] = value

    go.unused = lambda fiber: (1, ~rows.mask)  # type: ignore[attr-defined]
    return go


def _count(ins: PtxInstruction, registers: Sized, take: npt.NDArray[np.int64]) -> None:
    if len(registers) != len(take):
        raise ValueError(f"{ins.words[0]} of {len(take)} registers is given {len(registers)}")


def packed_registers(fiber: Fiber, sources: list[Reader]) -> npt.NDArray[np.uint32]:
    """[register, lane] of a vector operand."""
    out = np.empty((len(sources), LANES), dtype=np.uint32)
    for n, source in enumerate(sources):
        out[n] = source(fiber)
    return out


@operation("stmatrix", operands=2)
def store_matrix(program: Program, ins: PtxInstruction) -> Run:
    """stmatrix: fragments into rows of shared memory, one address a lane."""
    rows = MatrixRows(program, ins, ins.operands[0])
    sources = program.sources(ins.operands[1], "b32")
    elements = _register_map(rows.atom, "src")
    _count(ins, sources, elements)
    order = np.empty(elements.size, dtype=np.int64)
    order[rows.place[elements.reshape(-1)]] = np.arange(elements.size)
    unit = rows.unit

    def go(fiber: Fiber) -> None:
        values = packed_registers(fiber, sources)
        content = values.reshape(-1).view(unit)[order].view(WHOLE)
        cta, numbers = rows.find(fiber, content)
        cta.shared.chunks[numbers] = content
        cta.shared.full_chunks[numbers] = ALL

    go.unused = lambda fiber: (0, ~rows.mask)  # type: ignore[attr-defined]
    return go


@operation("movmatrix", operands=2)
def move_matrix(program: Program, ins: PtxInstruction) -> Run:
    """movmatrix: an 8x8 matrix of 16-bit elements transposed across the warp's registers."""
    atom = movmatrix()
    if ins.opcode != atom.ptx:
        raise ValueError(f"{ins.opcode} is not emulated")
    source, target = program.value(ins.operands[1], "b32"), program.result(ins.operands[0], "b32")
    held, wanted = _register_map(atom, "src").reshape(-1), _register_map(atom, "dst").reshape(-1)
    order = np.argsort(held)[wanted]

    def go(fiber: Fiber) -> None:
        fiber.whole()
        values = packed_registers(fiber, [source]).reshape(-1).view(np.uint16)
        fiber.registers[target] = values[order].view(np.uint32).astype(np.int64)

    return go
