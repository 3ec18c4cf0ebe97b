"""Calls of functions without a body: vprintf and __assertfail, which CUDA's runtime provides; others are refused.

Functions of the module are put in where they are called (`ptx/inlining.py`). PTX ISA, "call"; CUDA C++ Programming
Guide, "Formatted Output", "Assertion".
"""

from __future__ import annotations

import re

import numpy as np

from ...errors import EmulatorError
from ..machine.interpreter import Fiber
from ..ptx.parser import PtxInstruction, PtxOperand
from ..ptx.program import Program, Reader, Run
from ..ptx.values import LANE, Value, bool_of
from .local import fetch_local, is_local, store_local
from .registry import operation

MAX_TEXT = 1 << 16  # bytes of a format or of a string
_CONVERSION = re.compile(rb"%([-+ #0]*)(\*|\d*)(?:\.(\*|\d*))?(hh|h|ll|l|j|z|t|L)?([diouxXeEfFgGaAcsp%])")


@operation("call")
def call(program: Program, ins: PtxInstruction) -> Run:
    """call: of vprintf or __assertfail; refuses others by name."""
    results = ins.operands[0].parts if ins.operands and ins.operands[0].text[:1] == "(" else ()
    rest = ins.operands[1:] if results or (ins.operands and ins.operands[0].text[:1] == "(") else ins.operands
    if not rest:
        raise ValueError("call without a function")
    name, arguments = rest[0].text, rest[1].parts if len(rest) > 1 else ()
    if rest[0].kind == "reg":
        raise ValueError("a call through a register is left out of the emulator")
    if name == "vprintf":
        return _printing(program, ins, results, arguments)
    if name == "__assertfail":
        return _failing(program, ins, arguments)
    raise ValueError(f"call of {name}: {program.kernel.functions.get(name, 'the module does not declare it')}")


@operation("alloca", "stacksave", "stackrestore")
def allocated(program: Program, ins: PtxInstruction) -> Run:
    """Refuse memory that is allocated on the stack while a thread runs."""
    raise ValueError(f"{ins.words[0]} is left out of the emulator: its size is not known when the kernel is loaded")


def _argument(program: Program, ins: PtxInstruction, operand: PtxOperand, size: int) -> Reader:
    """A function of the fiber that gives an argument: a `.param` variable's content, or a register's."""
    if operand.kind != "symbol":
        return program.value(operand, f"b{8 * size}")
    address = program.value(operand, "b64")

    def read(fiber: Fiber) -> Value:
        raw = fetch_local(fiber, ins, address(fiber), fiber.lanes, "param", size)
        column = raw.reshape(-1).view(f"u{size}").astype(np.int64)
        return fiber.spread(column)

    return read


def _bytes(fiber: Fiber, lane: int, address: int, size: int) -> bytes:
    """Bytes of one thread's generic memory."""
    if is_local("", address):
        where = np.full(LANE.shape, address, dtype=np.uint64)
        assert fiber.ins is not None
        return bytes(fetch_local(fiber, fiber.ins, where, 1 << lane, "", size)[0])
    return bytes(fiber.machine.launch.memory.read(np.array([address]), size)[0])


def _text(fiber: Fiber, lane: int, address: int) -> bytes:
    """The string at an address, up to its 0."""
    out = bytearray()
    while len(out) < MAX_TEXT:
        byte = _bytes(fiber, lane, address + len(out), 1)
        if byte == b"\0":
            break
        out += byte
    return bytes(out)


def _printing(
    program: Program, ins: PtxInstruction, results: tuple[PtxOperand, ...], arguments: tuple[PtxOperand, ...]
) -> Run:
    """vprintf(format, arguments): each thread's text, kept until the kernel ends. The result counts the arguments."""
    if len(arguments) != 2:
        raise ValueError(f"vprintf takes a format and a buffer, not {len(arguments)} arguments")
    format_, buffer = (_argument(program, ins, one, 8) for one in arguments)
    into = program.value(results[0], "b64") if results and results[0].kind == "symbol" else None
    register = program.index[results[0].text] if results and results[0].kind == "reg" else None

    def go(fiber: Fiber) -> None:
        formats, buffers = (np.broadcast_to(np.asarray(x(fiber)), LANE.shape) for x in (format_, buffer))
        block, counts = fiber.cta.coordinate, np.zeros(LANE.shape, dtype=np.int64)
        for lane in LANE[bool_of(fiber.lanes)].tolist():
            text, counts[lane] = formatted(fiber, lane, int(formats[lane]), int(buffers[lane]))
            fiber.machine.printed.append((block, 32 * fiber.warp.number + lane, text))
        if into is not None:
            raw = counts[bool_of(fiber.lanes)].astype(np.uint32).view(np.uint8).reshape(-1, 4)
            store_local(fiber, into(fiber), fiber.lanes, "param", raw, 0)
        elif register is not None:
            fiber.registers[register] = counts

    return go


def formatted(fiber: Fiber, lane: int, format_: int, buffer: int) -> tuple[str, int]:
    """(The text of one thread's printf, the number of its arguments)."""
    pattern, at, count = _text(fiber, lane, format_), buffer, 0

    def take(size: int) -> int:
        nonlocal at, count
        at = -(-at // size) * size
        raw = _bytes(fiber, lane, at, size)
        at, count = at + size, count + 1
        return int.from_bytes(raw, "little")

    def one(found: re.Match[bytes]) -> bytes:
        flags, width, precision, length, kind = (None if part is None else part.decode() for part in found.groups())
        if kind == "%":
            return b"%"
        if width == "*":
            given = take(4)
            given -= (given >> 31) << 32
            flags, width = (flags + "-" if given < 0 else flags), str(abs(given))
        if precision == "*":
            precision = str(take(4) & 0x7FFFFFFF)
        point = "" if precision is None else f".{precision or 0}"
        if kind == "s":
            text = _text(fiber, lane, take(8)).decode("utf-8", "replace")
            return (f"%{flags.replace('0', '')}{width}{point}s" % text).encode()
        if kind == "c":
            return (f"%{flags.replace('0', '')}{width}s" % chr(take(4) & 0xFF)).encode("latin-1")
        if kind == "p":
            return (f"%{flags}{width}s" % hex(take(8))).encode()
        if kind in "eEfFgGaA":
            value = float(np.uint64(take(8)).view(np.float64))
            if kind in "aA":
                text = value.hex()
                return (f"%{flags}{width}s" % (text.upper() if kind == "A" else text)).encode()
            return (f"%{flags}{width}{point}{kind}" % value).encode()
        size = 8 if length in ("ll", "l", "j", "z", "t") else 4
        whole, bits = take(size), {"hh": 8, "h": 16}.get(length or "", 8 * size)
        whole &= (1 << bits) - 1
        if kind in "di" and whole >> bits - 1:
            whole -= 1 << bits
        if kind == "o" and "#" in flags:
            flags = flags.replace("#", "")
            return (f"%{flags}{width}s" % f"0{whole:o}").encode()
        return (f"%{flags}{width}{point}{'d' if kind in 'diu' else kind}" % whole).encode()

    text = _CONVERSION.sub(one, pattern)
    return text.decode("utf-8", "replace"), count


def _failing(program: Program, ins: PtxInstruction, arguments: tuple[PtxOperand, ...]) -> Run:
    """__assertfail(message, file, line, function, size of a character): ends the kernel, as CUDA's assert does."""
    if len(arguments) != 5:
        raise ValueError(f"__assertfail takes 5 arguments, not {len(arguments)}")
    readers = [_argument(program, ins, one, size) for one, size in zip(arguments, (8, 8, 4, 8, 8), strict=True)]

    def go(fiber: Fiber) -> None:
        lane = (fiber.lanes & -fiber.lanes).bit_length() - 1
        values = [int(np.broadcast_to(np.asarray(read(fiber)), LANE.shape)[lane]) for read in readers]
        message, file, function = (
            _text(fiber, lane, values[n]).decode("utf-8", "replace") if values[n] else "?" for n in (0, 1, 3)
        )
        block = fiber.machine.launch.block
        thread = 32 * fiber.warp.number + lane
        place = [thread % block[0], thread // block[0] % block[1], thread // (block[0] * block[1])]
        raise EmulatorError(
            f"{file}:{values[2]}: {function}: block: {list(fiber.cta.coordinate)}, thread: {place} "
            f"Assertion `{message}` failed."
        )

    return go
