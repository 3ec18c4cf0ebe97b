"""Calls of functions without a body: vprintf, __assertfail, malloc, free, cudaGraphSetConditional. Others are refused.

Functions of the module are put in where they are called (`ptx/inlining.py`). PTX ISA, "call"; CUDA C++ Programming
Guide, "Formatted Output", "Assertion".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...errors import DeviceAssertError
from ..machine.interpreter import Fiber
from ..ptx.inlining import FRAMED
from ..ptx.parser import PtxInstruction, PtxOperand
from ..ptx.program import Program, Reader, Run
from ..ptx.values import LANE, Value, bool_of, signed
from .heap import Results, allocating, releasing
from .local import fetch_local, own_memory, store_local
from .registry import operation

MAX_TEXT = 1 << 16  # bytes of a format or of a string
_LEFT_OUT = dict.fromkeys(  # the first letters of a function of CUDA's runtime -> why it is refused
    ("__cudaCDP2", "cudaLaunchDevice", "cudaGetParameterBuffer"),
    "a launch from within a kernel (dynamic parallelism) is left out: launch both kernels from the host",
)
_CONVERSION = re.compile(rb"%([-+ #0]*)(\*|\d*)(?:\.(\*|\d*))?(hh|h|ll|l|j|z|t|L)?([diouxXeEfFgGaAcsp%])")


@operation("call")
def call(program: Program, ins: PtxInstruction) -> Run:
    """call: of vprintf, __assertfail, malloc, free or cudaGraphSetConditional; refuses others by name."""
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
    if name in ("malloc", "free") and len(arguments) == 1:
        given = _argument(program, ins, arguments[0], 8)
        return releasing(ins, given) if name == "free" else allocating(ins, given, _results(program, results, 8))
    if name == "cudaGraphSetConditional" and len(arguments) == 2:
        return _setting(program, ins, arguments)
    why = next((why for start, why in _LEFT_OUT.items() if name.startswith(start)), None)
    why = why or program.kernel.functions.get(name, "the module does not declare it")
    raise ValueError(f"call of {name}: {why}")


def _is_variable(operand: PtxOperand) -> bool:
    """True for a `.param` variable; in a routine, its address in the frame stands for it."""
    return operand.kind == "symbol" or operand.text.endswith(FRAMED)


def _argument(program: Program, ins: PtxInstruction, operand: PtxOperand, size: int) -> Reader:
    """A function of the fiber that gives an argument: a `.param` variable's content, or a register's."""
    if not _is_variable(operand):
        return program.value(operand, f"b{8 * size}")
    address = program.value(operand, "b64")

    def read(fiber: Fiber) -> Value:
        raw = fetch_local(fiber, ins, address(fiber), fiber.lanes, "param", size)
        column = raw.reshape(-1).view(f"u{size}").astype(np.int64)
        return fiber.spread(column)

    return read


def _results(program: Program, results: tuple[PtxOperand, ...], size: int) -> Results:
    """A function that stores each lane's result in a call's `.param` variable or register."""
    variable = bool(results) and _is_variable(results[0])
    into = program.value(results[0], "b64") if variable else None
    register = program.index[results[0].text] if results and not variable and results[0].kind == "reg" else None

    def give(fiber: Fiber, values: npt.NDArray[np.int64]) -> None:
        if into is not None:
            raw = values[bool_of(fiber.lanes)].view(np.uint8).reshape(-1, 8)[:, :size]
            store_local(fiber, into(fiber), fiber.lanes, "param", raw, None)
        elif register is not None:
            fiber.registers[register] = values

    return give


def _bytes(fiber: Fiber, lane: int, address: int, size: int) -> bytes:
    """Bytes of one thread's generic memory."""
    if own_memory("", address, 1 << lane) == "local":
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
    give = _results(program, results, 4)

    def go(fiber: Fiber) -> None:
        formats, buffers = (np.broadcast_to(np.asarray(x(fiber)), LANE.shape) for x in (format_, buffer))
        block, counts = fiber.cta.coordinate, np.zeros(LANE.shape, dtype=np.int64)
        for lane in LANE[bool_of(fiber.lanes)].tolist():
            text, counts[lane] = formatted(fiber, lane, int(formats[lane]), int(buffers[lane]))
            fiber.machine.printed.append((block, 32 * fiber.warp.number + lane, text))
        give(fiber, counts)

    return go


@dataclass
class _Arguments:
    """The buffer of one thread's printf, read from its start."""

    fiber: Fiber
    lane: int
    at: int
    count: int = 0

    def take(self, size: int) -> int:
        """The bits of the next argument, which is aligned to its size."""
        self.at = -(-self.at // size) * size
        raw = _bytes(self.fiber, self.lane, self.at, size)
        self.at, self.count = self.at + size, self.count + 1
        return int.from_bytes(raw, "little")

    def text(self) -> str:
        """The string that the next argument points to."""
        return _text(self.fiber, self.lane, self.take(8)).decode("utf-8", "replace")


def formatted(fiber: Fiber, lane: int, format_: int, buffer: int) -> tuple[str, int]:
    """(The text of one thread's printf, the number of its arguments)."""
    arguments = _Arguments(fiber, lane, buffer)
    text = _CONVERSION.sub(lambda found: _converted(found, arguments).encode(), _text(fiber, lane, format_))
    return text.decode("utf-8", "replace"), arguments.count


def _converted(found: re.Match[bytes], arguments: _Arguments) -> str:
    """One conversion of a format; Python's are C's but for lengths and signs."""
    flags, width, length, kind = ((found.group(n) or b"").decode() for n in (1, 2, 4, 5))
    point = "" if found.group(3) is None else f".{found.group(3).decode() or 0}"
    if kind == "%":
        return "%"
    if width == "*":
        given = arguments.take(4)
        given -= given >> 31 << 32
        flags, width = flags + "-" * (given < 0), str(abs(given))
    if point == ".*":
        point = f".{arguments.take(4) & 0x7FFFFFFF}"
    plain = flags.replace("0", "").replace("#", "")
    if kind == "s":
        return f"%{plain}{width}{point}s" % arguments.text()
    if kind == "c":
        return f"%{plain}{width}s" % chr(arguments.take(4) & 0xFF)
    if kind == "p":
        return f"%{plain}{width}s" % hex(arguments.take(8))
    if kind in "eEfFgGaA":
        value = float(np.uint64(arguments.take(8)).view(np.float64))
        if kind in "aA":
            return f"%{plain}{width}s" % (value.hex().upper() if kind == "A" else value.hex())
        return f"%{flags}{width}{point}{kind}" % value
    size = 8 if length in ("ll", "l", "j", "z", "t") else 4
    bits = {"hh": 8, "h": 16}.get(length, 8 * size)
    whole = arguments.take(size) & (1 << bits) - 1
    if kind in "di":
        whole = signed(whole, bits)
    if kind == "o" and "#" in flags:
        return f"%{plain}{width}s" % f"0{whole:o}"
    return f"%{flags}{width}{point}{'d' if kind in 'diu' else kind}" % whole


def _setting(program: Program, ins: PtxInstruction, arguments: tuple[PtxOperand, ...]) -> Run:
    """cudaGraphSetConditional(handle, value): the handle is the address of the value's word (`host/graphs`)."""
    handle, value = (_argument(program, ins, one, size) for one, size in zip(arguments, (8, 4), strict=True))

    def go(fiber: Fiber) -> None:
        handles, values = (np.broadcast_to(np.asarray(x(fiber)), LANE.shape) for x in (handle, value))
        for lane in LANE[bool_of(fiber.lanes)].tolist():
            buffer, offset = fiber.machine.launch.memory.find(int(handles[lane]), 4)
            buffer.data[offset : offset + 4] = np.frombuffer(
                (int(values[lane]) & 0xFFFFFFFF).to_bytes(4, "little"), "u1"
            )

    return go


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
        raise DeviceAssertError(
            f"{file}:{values[2]}: {function}: block: {list(fiber.cta.coordinate)}, thread: {place} "
            f"Assertion `{message}` failed."
        )

    return go
