"""Warp-level instructions: shfl, vote, match, redux, elect, setmaxnreg.

PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync", "elect.sync", "activemask", "setmaxnreg".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, reduce
from operator import index

import numpy as np
import numpy.typing as npt

from ...arch import facts_of
from ...checks.budgets import allocated_threads, launch_registers, setmaxnreg_problem
from ...errors import EmulatorError
from ..machine.interpreter import BLOCKED, Cta, Fiber
from ..ptx.floats import binary32
from ..ptx.parser import PtxInstruction, PtxKernel, PtxOperand
from ..ptx.program import Program, Run
from ..ptx.values import (
    FULL,
    LANE,
    M32,
    Register,
    Undefined,
    Value,
    bits_without,
    bool_of,
    compact,
    defined,
    is_uniform,
    lanes_of,
    mask_of,
    s32,
    undefined_where,
)
from .registry import by_mask, constant, known, operation

WARP, GROUP = 32, 4  # threads of a warp, warps of a warpgroup
WHOLE_GROUP = "One setmaxnreg that all four warps of a warpgroup execute, outside of branches between them, is defined."


def _pair(program: Program, operand: PtxOperand, kind: str) -> tuple[int | None, int | None]:
    """(value, predicate) registers of `d|p`, or of `d` alone; kind: of the value."""
    parts = operand.parts if operand.kind == "pair" else (operand,)
    kinds = zip(parts, (kind, "pred"), strict=False)
    found = [None if part.kind == "sink" else program.result(part, one) for part, one in kinds]
    return found[0], found[1] if len(found) > 1 else None


@operation("shfl.sync", operands=5)
def shuffle(program: Program, ins: PtxInstruction) -> Run:
    """shfl.sync: the value of another lane, by index, up, down or butterfly, within segments."""
    known(ins, "sync", "idx", "up", "down", "bfly", "b32")
    mode = ins.words[2]
    target, inside = _pair(program, ins.operands[0], "b32")
    if target is None:
        raise ValueError("the result of shfl cannot be dropped")
    kinds = ("b32", "b32", "b32", "u32")
    value, other, bound, mask = (program.value(one, kind) for one, kind in zip(ins.operands[1:], kinds, strict=True))

    def go(fiber: Fiber) -> None:
        members = fiber.members(fiber.one(mask(fiber)))
        held: Register = value(fiber)
        x, b, c = defined(held), other(fiber), bound(fiber)
        if x is held and is_uniform(x) and inside is None:
            fiber.registers[target] = index(x)
            return
        varies = isinstance(b, np.ndarray) or isinstance(c, np.ndarray)
        source, valid = _sources(mode, b, c) if varies else _constant_sources(mode, int(b), int(c))
        asked = source if members == FULL else source[bool_of(members)]
        if members != FULL and (members >> asked & 1 == 0).any():
            away = int(asked[(members >> asked & 1) == 0][0])
            fiber.machine.problem("divergence", f"shfl.sync reads lane {away}, which does not take part", fiber)
        fiber.registers[target] = result = compact(lanes_of(x)[source])
        if isinstance(held, Undefined):
            lost = bits_without(held, 32)[source]
            fiber.registers[target] = undefined_where(result, lost, fiber.lanes, held.of, held.reports)
        if inside is not None:
            fiber.registers[inside] = compact(np.broadcast_to(valid, LANE.shape).copy())

    return by_mask(ins, mask, go)


def _sources(mode: str, b: Value, c: Value) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """[lane] The lane that a shuffle reads, and whether it is valid; b and c: its operands."""
    segment = c >> 8 & 31
    top = LANE & segment | c & 31 & ~segment
    b = b & 31
    if mode == "up":
        source = LANE - b
        valid = source >= top
    elif mode == "down":
        source = LANE + b
        valid = source <= top
    elif mode == "bfly":
        source = LANE ^ b
        valid = source <= top
    else:
        source = LANE & segment | b & ~segment
        valid = source <= top
    return np.where(valid, source, LANE), np.asarray(valid)


_constant_sources = lru_cache(maxsize=1 << 10)(_sources)


@operation("elect.sync", operands=2)
def elect(program: Program, ins: PtxInstruction) -> Run:
    """elect.sync: one of the members, the lowest or the highest by the policy."""
    leader, chosen = _pair(program, ins.operands[0], "u32")
    if chosen is None:
        raise ValueError("the predicate of elect cannot be dropped")
    mask = program.value(ins.operands[1], "u32")

    def go(fiber: Fiber) -> None:
        members = fiber.members(fiber.one(mask(fiber)))
        lane = (members & -members if fiber.machine.policy.elect == "lowest" else members).bit_length() - 1
        if leader is not None:
            fiber.registers[leader] = lane
        fiber.registers[chosen] = LANE == lane

    return by_mask(ins, mask, go)


@operation("vote.sync")
def vote(program: Program, ins: PtxInstruction) -> Run:
    """vote.sync: all, any, uni, or the ballot of a predicate."""
    known(ins, "sync", "all", "any", "uni", "ballot", "pred", "b32")
    kind = ins.words[2]
    target = program.result(ins.operands[0], ins.words[-1])
    predicate, mask = program.value(ins.operands[1], "pred"), program.value(ins.operands[2], "u32")

    def go(fiber: Fiber) -> None:
        members = fiber.members(fiber.one(mask(fiber)))
        yes = mask_of(predicate(fiber), members)
        results = {"all": yes == members, "any": yes != 0, "uni": yes in (0, members), "ballot": yes}
        fiber.registers[target] = results[kind]

    return by_mask(ins, mask, go)


@operation("activemask", operands=1)
def active_mask(program: Program, ins: PtxInstruction) -> Run:
    """activemask: the lanes that execute this."""
    target = program.result(ins.operands[0], "b32")

    def go(fiber: Fiber) -> None:
        fiber.registers[target] = fiber.lanes

    return go


@operation("match")
def match(program: Program, ins: PtxInstruction) -> Run:
    """match.any, match.all: the lanes with the same value."""
    known(ins, "any", "all", "sync", "b32", "b64")
    every = ins.words[1] == "all"
    target, same = _pair(program, ins.operands[0], "u32")
    value, mask = program.value(ins.operands[1], ins.words[-1]), program.value(ins.operands[2], "u32")

    def go(fiber: Fiber) -> None:
        members = fiber.members(fiber.one(mask(fiber)))
        values = lanes_of(value(fiber))
        inside = bool_of(members)
        if every:
            equal = bool((values[inside] == values[inside][0]).all())
            found: Value = members if equal else 0
            if same is not None:
                fiber.registers[same] = equal
        else:
            found = compact(np.array([mask_of(values == x, members) for x in values], dtype=np.int64))
        if target is not None:
            fiber.registers[target] = found

    return by_mask(ins, mask, go)


@operation("redux.sync")
def redux(program: Program, ins: PtxInstruction) -> Run:
    """redux.sync: a reduction over the members."""
    name, kind = ins.words[2], ins.words[-1]
    floats = kind == "f32" and name in ("min", "max")
    kinds = ("f32", "NaN", "abs") if floats else ("s32", "u32", "b32")
    known(ins, "sync", "add", "min", "max", "and", "or", "xor", *kinds)
    register = "f32" if floats else "u32"
    target = program.result(ins.operands[0], register)
    value, mask = program.value(ins.operands[1], register), program.value(ins.operands[2], "u32")
    combines: dict[str, Callable[[int, int], int]] = {
        "add": lambda a, b: a + b, "min": min, "max": max,
        "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
    }  # fmt: skip
    combine = combines[name]
    if floats:
        way = f"{name}.NaN" if "NaN" in ins.words else name

        def combine(a: int, b: int) -> int:
            return int(binary32(way, a, b))

    def go(fiber: Fiber) -> None:
        members = fiber.members(fiber.one(mask(fiber)))
        values = lanes_of(value(fiber))[bool_of(members)].tolist()
        if kind == "s32":
            values = [s32(x) for x in values]
        elif "abs" in ins.words:
            values = [x & 0x7FFFFFFF for x in values]
        fiber.registers[target] = int(reduce(combine, values)) & M32

    return by_mask(ins, mask, go)


@operation("setmaxnreg", operands=1)
def set_registers(program: Program, ins: PtxInstruction) -> Run:
    """setmaxnreg: return registers to the block's pool, or take some when available.

    PTX does not define a warp's register count at launch: the assembler decides. Here it is the most that fit
    (`entry_registers`). So a first `inc` to fewer is not an error; it returns nothing. A launch takes registers for
    whole warpgroups, and those of warps that a block lacks lie in its pool: NVIDIA's blocks of 288 threads take them
    (cute/blackwell_geforce).

    All warps of a warpgroup must execute the same setmaxnreg. Seen on an H200: a block of 288 threads hung when its
    ninth warp returned registers. NVIDIA's examples for sm_100 and sm_120 break this rule, with unknown effects on that
    hardware; there it is a "lint". So is another line with the same number on any: Triton's warp-specialised kernels
    for Hopper have one for each role of a warpgroup.
    """
    known(ins, "inc", "dec", "sync", "aligned", "u32")
    if problem := setmaxnreg_problem(constant(ins.operands[0])):
        raise ValueError(f"setmaxnreg {ins.operands[0].text}: {problem}")
    wanted, gives = program.value(ins.operands[0], "u32"), "dec" in ins.words
    kind = "protocol" if program.kernel.target.startswith("sm_90") else "lint"
    at_launch = entry_registers(program.kernel)
    if at_launch is None:
        return _without_effect

    def go(fiber: Fiber) -> int | None:
        fiber.whole()
        cta, count = fiber.cta, fiber.one(wanted(fiber))
        block = fiber.machine.launch.block
        threads = block[0] * block[1] * block[2]
        if (there := -(-threads // WARP) - fiber.warp.number // GROUP * GROUP) < GROUP:
            fiber.machine.problem(
                kind,
                f"setmaxnreg by a warp whose warpgroup is not whole: a block of {threads} threads has {there} of its "
                f"{GROUP} warps, and all of them have to execute it",
                fiber,
                orders=WHOLE_GROUP,
            )
        lacking = allocated_threads(threads) - len(cta.warps) * WARP
        pool = cta.scratch.setdefault("registers", [lacking * at_launch, []])
        have = fiber.warp.scratch.get("registers", at_launch)
        need = (count - have) * 32
        if need < 0 and not gives and "registers" not in fiber.warp.scratch:
            need = 0
        elif (need > 0) == gives and need:
            way = "dec" if gives else "inc"
            raise EmulatorError(f"setmaxnreg.{way} to {count} registers of a warp that has {have}")
        if need > pool[0]:
            pool[1].append(fiber)
            return BLOCKED
        pool[0] -= need
        fiber.warp.scratch["registers"] = count
        _same_in_warpgroup(fiber, ins, count, kind)
        if gives:
            cta.cluster.wake(pool[1])
        return None

    return go


def entry_registers(kernel: PtxKernel) -> int | None:
    """Registers of a thread at launch, as the kernel's directives fix them. None where they leave it to ptxas.

    They fix it by .maxnreg, or by .minnctapersm with .maxntid or .reqntid; the smaller of the two where both are there.
    Seen with ptxas 13.0 for sm_90a, sm_100a and sm_120a, which ignores setmaxnreg in other kernels (note C7508).
    """
    given = kernel.directives
    counts = list(given.get(".maxnreg", ()))
    if (threads := given.get(".reqntid") or given.get(".maxntid")) and (blocks := given.get(".minnctapersm")):
        counts.append(launch_registers(facts_of(kernel.target), math.prod(threads), blocks[0]))
    return min(counts) if counts else None


def _without_effect(fiber: Fiber) -> None:
    """setmaxnreg as ptxas compiles it where it does not know the registers at launch: not at all."""
    fiber.whole()
    fiber.machine.problem(
        "lint",
        "ptxas ignores this setmaxnreg (C7508): the kernel does not fix its registers at launch",
        fiber,
        orders="Fix them by .minnctapersm with .maxntid or .reqntid, or by .maxnreg: min_blocks_per_mp=1 in a launch "
        "of the CuTe DSL, or the second number of __launch_bounds__.",
    )


def _same_in_warpgroup(fiber: Fiber, ins: PtxInstruction, count: int, kind: str) -> None:
    """Note a warp's setting; report a warpgroup whose n-th settings differ."""
    cta, number = fiber.cta, fiber.warp.number
    if "setmaxnreg" not in cta.scratch:
        cta.scratch["setmaxnreg"] = {}
        cta.scratch.setdefault("at end", []).append(lambda: _registers_of_some(cta, kind))
    asked: dict[int, list[tuple[int, int]]] = cta.scratch["setmaxnreg"]
    mine = asked.setdefault(number, [])
    mine.append((ins.pc, count))
    for other in range(number // GROUP * GROUP, number // GROUP * GROUP + GROUP):
        theirs = asked.get(other, ())
        if len(theirs) >= len(mine) and theirs[len(mine) - 1] != mine[-1]:
            amount = theirs[len(mine) - 1][1]
            differ = f"where warp {other} of the same warpgroup executes another, to {amount}"
            if amount == count:
                differ = f"by another instruction than in warp {other} of the same warpgroup, to the same amount"
            message = f"setmaxnreg to {count}, {differ}: all of them have to execute the same"
            fiber.machine.problem(kind if amount != count else "lint", message, fiber, orders=WHOLE_GROUP)


def _registers_of_some(cta: Cta, kind: str) -> None:
    """Report warps that ended without a setmaxnreg that their warpgroup executed."""
    asked: dict[int, list[tuple[int, int]]] = cta.scratch["setmaxnreg"]
    program = cta.cluster.machine.program
    for first in sorted({number // GROUP * GROUP for number in asked}):
        counts = [len(asked.get(number, ())) for number in range(first, first + GROUP)]
        if len(set(counts)) > 1 and len(cta.warps) >= first + GROUP:
            last = max(asked[warp][-1][0] for warp in range(first, first + GROUP) if warp in asked)
            cta.cluster.machine.problem(
                kind,
                f"warps {first} to {first + GROUP - 1} of CTA {cta.coordinate} execute {counts} setmaxnreg: all warps "
                "of a warpgroup have to",
                ins=program.kernel.instructions[last],
                orders=WHOLE_GROUP,
                cta=cta,
            )
