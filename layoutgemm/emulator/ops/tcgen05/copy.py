"""Copies to and from tensor memory. They are tcgen05.ld, st (registers of a warp), cp (shared memory).

The atoms (`atoms/copy/tmem.py`) give the lane and column of each register or bit. A warp reaches its quarter of the
lanes only. PTX ISA, "tcgen05.ld", "tcgen05.st", "tcgen05.cp". Code that runs on devices uses an address of another
quarter for a warp's own quarter. NVIDIA's `1cta_mma_a_from_tmem.py` (CuTe DSL 4.8) does so in stores, DeepGEMM's
epilogue (`sm100_store_cd.cuh`) in loads, both of the first quarter. FlashInfer's decoding kernels (`mla_decode_fp8.py`,
`hca_fp8.py`) have warp 2 of four store to lanes 0, and warp 3 to lanes 32. The second block of a pair loads from lanes
128 and on in gau-nernst/learn-cuda (`matmul_v6.cu`), whose check passes on a B200. Here all of these are "lint".

A register of tcgen05.st.unpack::16b writes the low halves of two words; their upper halves do not change. tcgen05.cp
widens elements of 4 bits to 8 with two zero bits on either side, as mma.sync has them in registers. It widens elements
of 6 bits with two zero bits above. Neither has been confirmed on a device.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from ....atoms.copy.tmem import FORMATS, HALVED, TmemCopyAtom, tcgen05_cp, tcgen05_ld, tcgen05_st
from ....atoms.mma.sync import mma_sync
from ....atoms.tmem.layout import LANES as TMEM_LANES
from ....atoms.tmem.layout import WARP_LANES, WORD_BITS, warp_lanes
from ....dtypes import DType, dtype
from ....errors import EmulatorError
from ...machine.interpreter import Cta, Fiber
from ...ptx.floats import chosen32
from ...ptx.parser import PtxInstruction
from ...ptx.program import Program, Run
from ...ptx.values import Lanes, Register, Undefined, Value, any_of, bits_without, defined
from ..memory import said
from ..mma.fragments import words_of
from ..mma.operands import SharedOperandRead, codes, lines, reading
from ..registry import operation, spelled
from .allocation import group_size
from .shift import has_shifts, in_pipeline
from .tmem import TensorMemory, TmemCoordinates, coordinate, engine_of, group_of, one_thread, tensor_of, touch
from .waits import LoadingRegister, begin, in_flight

BYTE = dtype("u8")
_TYPES = {"f32": "f32", "s32": "i32", "u32": "u32"}


def low_bit(element: DType) -> int:
    """The lowest bit of a narrow element in its byte."""
    if element.bits == 8:
        return 0
    container = mma_sync((16, 8, 32), element, kind="f8f6f4").a_container
    assert container is not None
    return container.low


@cache
def _places(atom: TmemCopyAtom) -> TmemCoordinates:
    """[thread, value] for registers, [row, bit, copy] for shared memory."""
    return TmemCoordinates.of(atom.tmem)


def _atom(ins: PtxInstruction, stores: bool, split: int | None) -> TmemCopyAtom:
    """The atom of a load or store. Raises ValueError if the opcode does not match exactly one."""
    shape = next((word for word in ins.words if "x" in word and word.endswith(("b", "bx2"))), "")
    repeat = int(next(word for word in ins.words if word[0] == "x" and word[1:].isdigit())[1:])
    packs = "unpack::16b" in ins.words if stores else "pack::16b" in ins.words
    element = "u16" if packs else "f32"
    if stores:
        found = tcgen05_st(shape, repeat, packs, split, element)
    else:
        reduce = ""
        if "red" in ins.words:
            reduce = ".".join(word for word in ("min", "max", "abs", "NaN") if word in ins.words)
            element = _TYPES[ins.words[-1]]
        found = tcgen05_ld(shape, repeat, packs, split, element, reduce)
    spelled(ins, found.ptx)
    return found


def _split(ins: PtxInstruction, at: int) -> int | None:
    """The half split, an operand of the one shape that has it."""
    halved = HALVED in ins.words
    if len(ins.operands) != at + halved + (at == 1):
        raise ValueError(f"{ins.opcode} has {at + halved + (at == 1)} operands")
    return int(ins.operands[at].text, 0) if halved else None


def _window(fiber: Fiber, tensor: TensorMemory, places: TmemCoordinates, address: int) -> tuple[int, int]:
    """The (lane, column) of a warp's access; lanes of another quarter are reported, and its own taken."""
    own, first, strict = warp_lanes(fiber.warp.number), address >> 16, fiber.machine.policy.fences == "writers"
    # The lanes of a pair's rows, in its second block.
    second = TMEM_LANES if tensor.group == 2 and fiber.cta.rank & 1 and first >= TMEM_LANES and not strict else 0
    lane, column = coordinate(address - (second << 16))
    if second or (first in range(WARP_LANES if strict else TMEM_LANES) and first not in own):
        fiber.machine.problem(
            "lint",
            f"lanes {first}..{first + places.lanes - 1} of tensor memory: warp {fiber.warp.number} reaches "
            f"{own[0]}..{own[-1]}. They are taken for the warp's own, as kernels that run have it; PTX does not say so"
            + ("" if strict else ', and Policy(fences="writers") refuses lanes beyond the first quarter'),
            fiber,
            orders="Address the lanes of the warp's own quarter: 32 times its number modulo 4.",
        )
        lane = own[0] + lane % WARP_LANES
    if lane not in own or lane + places.lanes - 1 not in own:
        raise EmulatorError(
            f"lanes {lane}..{lane + places.lanes - 1} of tensor memory: warp {fiber.warp.number} reaches "
            f"{own[0]}..{own[-1]}"
        )
    tensor.check(fiber, lane, column, places.lanes, places.columns)
    return lane, column


def _same_address(fiber: Fiber, ins: PtxInstruction, address: Value) -> int:
    """The address of a warp's load or store, on which its lanes have to agree; the first lane's, reported, if not."""
    if not isinstance(address, np.ndarray):
        return int(address)
    every = fiber.each(address)
    if any_of(every != every[0]):
        fiber.machine.problem(
            "protocol",
            f"{ins.opcode}: lanes give different addresses, {every[:4].tolist()}..., and the warp has one: the first "
            "lane's is taken",
            fiber,
            orders="One address for the whole warp, without terms of the lane, is defined.",
        )
    return int(every[0])


@operation("tcgen05.ld")
def load(program: Program, ins: PtxInstruction) -> Run:
    """Loads lanes and columns of the warp's window into its registers (tcgen05.ld). .red also reduces each thread's
    values.

    Unwritten words count where a result depends on them: shapes of 32 lanes may read lanes without a meaning.
    """
    reduces = "red" in ins.words
    atom = _atom(ins, False, _split(ins, 2 + reduces))
    places = _places(atom)
    targets = program.targets(ins.operands[0], "b32")
    if len(targets) != atom.registers:
        raise ValueError(f"{atom.registers} registers are needed where {len(targets)} are given")
    extra = program.targets(ins.operands[1], "b32")[0] if reduces else None
    address = program.address(ins.operands[1 + reduces], "b32")

    def go(fiber: Fiber) -> None:
        fiber.whole()
        tensor = tensor_of(fiber.cta)
        lane, column = _window(fiber, tensor, places, _same_address(fiber, ins, address(fiber)))
        event = begin(fiber, "ld", ins)
        touch(fiber, fiber.cta, places.places(lane, column), False, said(fiber, ins), event)
        fiber.machine.counts.bytes["tensor memory read"] += 4 * places.flat.size
        if (fresh := places.unwritten(tensor, lane, column)) is not None:
            message = f"lane {fresh[0]}, column {fresh[1]} of tensor memory was never written"
            fiber.machine.problem("uninitialised", message, fiber, suspect=True)
        words = places.read(tensor, lane, column).T.astype(np.int64)
        if atom.pack:
            words = words[::2] & 0xFFFF | (words[1::2] & 0xFFFF) << 16
        values = list(words)
        later = fiber.machine.policy.tensor_strict
        _put(fiber, targets, values, ins, later)
        if extra is not None:
            _put(fiber, [extra], [_reduced(words, atom)], ins, later)

    return go


def _put(fiber: Fiber, targets: list[int | None], values: Sequence[Lanes], ins: PtxInstruction, later: bool) -> None:
    for target, value in zip(targets, values, strict=True):
        if target is not None:
            fiber.registers[target] = LoadingRegister(ins, value) if later else value


def _reduced(words: npt.NDArray[np.int64], atom: TmemCopyAtom) -> Lanes:
    """The minimum or maximum of each thread's values, as bits."""
    least = "min" in atom.reduction
    if atom.element.kind == "float":
        name, *more = atom.reduction.split(".")
        found = chosen32(f"{name}.NaN" if "NaN" in more else name, "abs" if "abs" in more else "", False, *words)
        return np.asarray(found, dtype=np.int64)
    values = atom.element.decode(words)
    return (values.min(axis=0) if least else values.max(axis=0)).astype(np.int64) & 0xFFFFFFFF


def _halves(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """[register, lane] of 32 bits -> [2 * register + half, lane] of 16."""
    return np.stack([words & 0xFFFF, words >> 16], axis=1).reshape(-1, WARP_LANES)


@operation("tcgen05.st")
def store(program: Program, ins: PtxInstruction) -> Run:
    """tcgen05.st: registers into lanes and columns of the warp's window.

    A register without a value leaves its words unwritten, as `st` does in shared memory: kernels store whole vectors
    of which they use a part.
    """
    atom = _atom(ins, True, _split(ins, 1))
    places = _places(atom)
    address, sources = program.address(ins.operands[0], "b32"), program.sources(ins.operands[-1], "b32")
    if len(sources) != atom.registers:
        raise ValueError(f"{atom.registers} registers are needed where {len(sources)} are given")

    def go(fiber: Fiber) -> None:
        fiber.whole()
        tensor = tensor_of(fiber.cta)
        lane, column = _window(fiber, tensor, places, _same_address(fiber, ins, address(fiber)))
        stored, event = in_flight(fiber), begin(fiber, "st", ins)
        touch(fiber, fiber.cta, places.places(lane, column), True, said(fiber, ins), event, stored)
        fiber.machine.counts.bytes["tensor memory write"] += 4 * places.flat.size
        values: list[Register] = [source(fiber) for source in sources]
        words, lost = words_of([defined(value) for value in values]), None
        if any(type(value) is Undefined for value in values):
            lost = np.stack([bits_without(value, 32) for value in values])
            words = words & ~lost | np.uint64(fiber.machine.policy.fill * 0x01010101) & lost
        if atom.pack:
            kept = places.read(tensor, lane, column).T & np.uint32(0xFFFF0000)
            words = _halves(words) | kept
            lost = None if lost is None else _halves(lost)
        places.write(tensor, lane, column, words.T.astype(np.uint32))
        if lost is not None:
            places.forget(tensor, lane, column, lost.T != 0)

    return go


@cache
def _copied(atom: TmemCopyAtom) -> TmemCoordinates:
    """[row, word, copy] of tcgen05.cp."""
    return _places(atom).select(slice(None), slice(None, None, WORD_BITS))


def _copied_shape(ins: PtxInstruction) -> str:
    """The word of a tcgen05.cp for its rows and bits, such as 32x128b."""
    return next((word for word in ins.words if re.fullmatch(r"\d+x\d+b", word)), "")


def _copy_atom(ins: PtxInstruction) -> TmemCopyAtom:
    shape = _copied_shape(ins)
    multicast = next((word for word in ins.words if word.startswith("warpx")), "")
    source = next((word for word in ins.words if word in FORMATS), "")
    found = tcgen05_cp(shape, multicast, group_size(ins), source)
    spelled(ins, found.ptx)
    return found


@operation("tcgen05.cp", operands=2)
def copy(program: Program, ins: PtxInstruction) -> Run:
    """tcgen05.cp: K-major rows into tensor memory; later tcgen05.mma of the thread see them."""
    atom = _copy_atom(ins)
    places = _copied(atom)
    rows, words, _ = places.lane.shape
    read = SharedOperandRead("K", rows, words * WORD_BITS // 8, BYTE, "packed", "sm_100a")
    bits = next((FORMATS[word] for word in ins.words if word in FORMATS), 8)
    packing = {8: "packed", 6: "b6x16_p32", 4: "b4x16_p64"}[bits]
    low = low_bit(dtype({8: "e4m3", 6: "e3m2", 4: "e2m1"}[bits]))
    address, descriptor = program.address(ins.operands[0], "b32"), program.value(ins.operands[1], "u64")
    shifts, kind = has_shifts(program), f"tcgen05.cp {_copied_shape(ins)}"

    def go(fiber: Fiber) -> None:
        one_thread(fiber)
        machine, engine = fiber.machine, engine_of(fiber)
        lane, column = coordinate(fiber.one(address(fiber)))

        def report(kind: str, message: str, orders: str = "") -> None:
            machine.problem(kind, message, fiber, ins, orders=orders)

        found, first = reading(fiber.one(descriptor(fiber)), read, fiber, report)
        event, what = engine.event(fiber, ins), said(fiber, ins)
        for cta in group_of(fiber, group_size(ins)):
            tensor = tensor_of(cta)
            tensor.check(fiber, lane, column, places.lanes, places.columns)
            machine.touch(fiber, cta, found.places << first, False, what, event, True)
            touch(fiber, cta, places.places(lane, column), True, what, event)
            if shifts:
                in_pipeline(fiber, ins, cta, places.places(lane, column), kind, event)

            def move(tensor: TensorMemory = tensor, source: Cta = cta) -> None:
                raw = lines(source, found, first, report, packing)
                if bits < 8:
                    raw = np.left_shift(codes(raw, bits, packing), low, dtype=np.uint8)
                machine.counts.bytes["shared to tensor memory"] += raw.size
                data = np.ascontiguousarray(raw).view(np.uint32)[:, :, None]
                places.write(tensor, lane, column, np.broadcast_to(data, places.lane.shape))

            engine.add(fiber, move)

    return go
