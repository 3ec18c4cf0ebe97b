"""wmma.load, wmma.mma and wmma.store. They are matrix products of a warp whose fragments are opaque.

PTX leaves open which element each register of a fragment holds. Here a lane holds consecutive elements, counted row by
row; where a fragment has room for several copies of its matrix, as those of f16 do, each copy follows the one before.
Products of floats are summed in float32 by NumPy's matrix product, as those of mma.sync are (`sync.py`).

PTX ISA, "Warp-level Matrix Instructions: wmma".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....dtypes import DType, dtype
from ....errors import EmulatorError
from ...machine.interpreter import Fiber
from ...ptx.parser import PtxInstruction, PtxOperand
from ...ptx.program import Program, Reader, Run
from ...ptx.values import FULL, LANES, Value, compact
from ..memory import PlainForm, fetch, put
from ..registry import operation
from .fragments import words_of
from .operands import products

Array = npt.NDArray[Any]
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
# Shapes by the type of A and B.
_WIDE = ("m16n16k16", "m8n32k16", "m32n8k16")
SHAPES = {
    "f16": _WIDE, "bf16": _WIDE, "s8": _WIDE, "u8": _WIDE, "tf32": ("m16n16k8",), "f64": ("m8n8k4",),
    "s4": ("m8n8k32",), "u4": ("m8n8k32",), "b1": ("m8n8k128",),
}  # fmt: skip
ACCUMULATORS = ("f16", "f32", "f64", "s32")
SPACES = ("global", "shared", "shared::cta")


class WmmaFragment(NamedTuple):
    """A matrix in the registers of a warp.

    kind   PTX's name of its type; type: the same as a format, raw bits for tf32
    shape  (rows, columns)
    sums   whether it is an accumulator
    """

    kind: str
    type: DType
    shape: tuple[int, int]
    sums: bool

    @property
    def register(self) -> str:
        """The type of a register: the accumulator's own where it is f32 or f64."""
        sums = self.kind in ("f32", "f64") and self.sums
        return self.kind if sums else f"b{self.register_bits}"

    @property
    def register_bits(self) -> int:
        """Bits of a register."""
        return 64 if self.kind == "f64" else 32

    def decoded(self, registers: list[Value]) -> Array:
        """The matrix in these registers, as values."""
        words = words_of(registers).T  # [lane, register]
        width, bits = self.register_bits, self.type.bits
        shifts = np.arange(0, width, bits, dtype=np.uint64)
        raw = (words[:, :, None] >> shifts & np.uint64((1 << bits) - 1)).reshape(-1)[: self.size].reshape(self.shape)
        if self.kind == "tf32":
            return (raw.astype(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        return self.type.decode(raw)

    def encoded(self, raw: Array, count: int) -> list[Value]:
        """The registers of a matrix of raw bits, repeated as they have room for it."""
        width, bits = self.register_bits, self.type.bits
        each = width // bits
        copies = count * LANES * each // self.size
        units = np.tile(raw.reshape(-1).astype(np.uint64), copies).reshape(LANES, count, each)
        words = np.bitwise_or.reduce(units << np.arange(0, width, bits, dtype=np.uint64), axis=2)
        return [compact(words[:, n] if width == 64 else words[:, n].astype(np.int64)) for n in range(count)]

    @property
    def size(self) -> int:
        """Elements of the matrix."""
        return self.shape[0] * self.shape[1]


def _shape_of(ins: PtxInstruction) -> tuple[int, int, int]:
    """The shape of an instruction. Raises ValueError without one."""
    found = next((m for word in ins.words if (m := _SHAPE.fullmatch(word))), None)
    if found is None or not {"sync", "aligned"} <= set(ins.words):
        raise ValueError(f"{ins.opcode} is not emulated")
    return int(found[1]), int(found[2]), int(found[3])


def _fragment(operand: str, kind: str, shape: tuple[int, int, int]) -> WmmaFragment:
    """The fragment of "a", "b", "c" or "d". Raises ValueError for a type or a shape that PTX does not have."""
    m, n, k = shape
    word = f"m{m}n{n}k{k}"
    allowed = kind in ACCUMULATORS if operand in "cd" else word in SHAPES.get(kind, ())
    if not allowed:
        raise ValueError(f".{kind} of {operand} in {word} is no form of wmma")
    rows, columns = {"a": (m, k), "b": (k, n)}.get(operand, (m, n))
    name = "f32" if kind == "tf32" else f"i{kind[1:]}" if kind[0] == "s" else kind
    return WmmaFragment(kind, dtype(name), (rows, columns), operand in "cd")


def _registers(operand: PtxOperand, fragment: WmmaFragment) -> tuple[PtxOperand, ...]:
    """The registers of an operand. Raises ValueError unless they hold the matrix a whole number of times."""
    parts = operand.parts if operand.kind == "vector" else (operand,)
    room = len(parts) * LANES * fragment.register_bits // fragment.type.bits
    if room % fragment.size or not room:
        raise ValueError(f"{len(parts)} registers hold {room} elements, and the matrix has {fragment.size}")
    return parts


class WmmaMatrix:
    """A matrix in memory. The address of each of its units, which are elements, or bytes of several."""

    def __init__(
        self,
        program: Program,
        ins: PtxInstruction,
        fragment: WmmaFragment,
        address: PtxOperand,
        more: tuple[PtxOperand, ...],
    ) -> None:
        self.ins, self.fragment = ins, fragment
        self.base: Reader = program.address(address)
        self.stride: Reader | None = program.value(more[0], "u32") if more else None
        self.by_row = "row" in ins.words
        if self.by_row == ("col" in ins.words) or len(more) > 1:
            raise ValueError(f"{ins.opcode} is not emulated")
        self.unit = max(1, fragment.type.bits // 8)
        self.packs = max(1, 8 // fragment.type.bits)  # elements of a unit, which lie along a line
        space = next((word for word in ins.words if word in SPACES), "")
        self.form = PlainForm(space, self.unit)
        rows, columns = fragment.shape
        self.lines, self.length = (rows, columns) if self.by_row else (columns, rows)

    def addresses(self, fiber: Fiber) -> Array:
        """[line, unit] -> its address. Raises EmulatorError for a stride that is no whole number of units."""
        stride = self.length if self.stride is None else fiber.one(self.stride(fiber))
        if stride % self.packs or stride < 0:
            raise EmulatorError(f"a stride of {stride} elements of {self.fragment.type.bits} bits")
        line = np.arange(self.lines)[:, None] * (stride // self.packs)
        return fiber.one(self.base(fiber)) + (line + np.arange(self.length // self.packs)) * self.unit

    def read(self, fiber: Fiber) -> Array:
        """The raw bits of the matrix, [row, column]."""
        addresses = self.addresses(fiber).reshape(-1, LANES)
        units = np.concatenate([fetch(fiber, self.form, part, FULL, self.ins) for part in addresses])
        bits = self.fragment.type.bits
        raw = units.reshape(-1).view(f"u{self.unit}").astype(np.uint64)
        if self.packs > 1:
            raw = (raw[:, None] >> np.arange(0, 8, bits, dtype=np.uint64) & np.uint64((1 << bits) - 1)).reshape(-1)
        lines = raw.reshape(self.lines, self.length)
        return lines if self.by_row else lines.T

    def write(self, fiber: Fiber, raw: Array) -> None:
        """Write the raw bits of a matrix of whole bytes."""
        lines = np.ascontiguousarray(raw if self.by_row else raw.T).astype(f"u{self.unit}").reshape(-1, LANES)
        for part, values in zip(self.addresses(fiber).reshape(-1, LANES), lines, strict=True):
            put(fiber, self.form, part, FULL, self.ins, values.view(np.uint8).reshape(LANES, self.unit))


@operation("wmma.load.a", "wmma.load.b", "wmma.load.c")
def load_matrix(program: Program, ins: PtxInstruction) -> Run:
    """wmma.load: a matrix from memory into a fragment."""
    fragment = _fragment(ins.words[2], ins.words[-1], _shape_of(ins))
    targets = _registers(ins.operands[0], fragment)
    places = program.targets(ins.operands[0], fragment.register)
    matrix = WmmaMatrix(program, ins, fragment, ins.operands[1], ins.operands[2:])
    if matrix.packs > 1 and matrix.by_row != (ins.words[2] == "a"):
        raise ValueError(f"{ins.opcode} is no form of wmma: elements within a byte lie along k")

    def go(fiber: Fiber) -> None:
        fiber.whole()
        values = fragment.encoded(matrix.read(fiber), len(targets))
        for place, value in zip(places, values, strict=True):
            if place is not None:
                fiber.registers[place] = value

    return go


@operation("wmma.store.d")
def store_matrix(program: Program, ins: PtxInstruction) -> Run:
    """wmma.store: a fragment of results into memory."""
    fragment = _fragment("d", ins.words[-1], _shape_of(ins))
    sources = [program.value(part, fragment.register) for part in _registers(ins.operands[1], fragment)]
    matrix = WmmaMatrix(program, ins, fragment, ins.operands[0], ins.operands[2:])

    def go(fiber: Fiber) -> None:
        fiber.whole()
        matrix.write(fiber, fragment.type.encode(fragment.decoded([source(fiber) for source in sources])))

    return go


def _types(ins: PtxInstruction) -> tuple[str, str, str, str]:
    """The types of (d, a, b, c) of a product: of f16 only the accumulators' are written."""
    kinds = [word for word in ins.words if word in (*ACCUMULATORS, *SHAPES)]
    if len(kinds) == 2:
        return kinds[0], "f16", "f16", kinds[1]
    if len(kinds) != 4:
        raise ValueError(f"{ins.opcode} is not emulated")
    return kinds[0], kinds[1], kinds[2], kinds[3]


def _multiply(ins: PtxInstruction, kinds: tuple[str, str, str, str]) -> Callable[[Array, Array, Array], Array]:
    """The product of matrices of values."""
    clamps = "satfinite" in ins.words
    if kinds[1] == "b1":
        union = "xor" in ins.words

        def bits(a: Array, b: Array, c: Array) -> Array:
            a, b = a.astype(np.int64), b.astype(np.int64)
            both = a @ b
            return c.astype(np.int64) + (a.sum(1)[:, None] + b.sum(0) - 2 * both if union else both)

        return bits
    if kinds[0] == "s32":

        def integers(a: Array, b: Array, c: Array) -> Array:
            total = a.astype(np.int64) @ b.astype(np.int64) + c.astype(np.int64)
            return np.clip(total, -(1 << 31), (1 << 31) - 1) if clamps else (total + 2**31) % 2**32 - 2**31

        return integers
    wide = np.dtype(np.float64 if kinds[0] == "f64" else np.float32)

    def floats(a: Array, b: Array, c: Array) -> Array:
        found = products(a.astype(wide), b.astype(wide)) + c.astype(wide)
        return np.nan_to_num(found, nan=0.0, posinf=65504.0, neginf=-65504.0) if clamps else found

    return floats


@operation("wmma.mma")
def multiply_fragments(program: Program, ins: PtxInstruction) -> Run:
    """wmma.mma: D = A B + C. The majors of A and B are those of their loads, and change nothing here."""
    shape, kinds = _shape_of(ins), _types(ins)
    if len(ins.operands) != 4:
        raise ValueError(f"{ins.opcode} has 4 operands, not {len(ins.operands)}")
    parts = dict(zip("dabc", ins.operands, strict=True))
    maps = {name: _fragment(name, kind, shape) for name, kind in zip("dabc", kinds, strict=True)}
    registers = {name: _registers(parts[name], maps[name]) for name in "dabc"}
    sources = {name: [program.value(part, maps[name].register) for part in registers[name]] for name in "abc"}
    targets, times = program.targets(ins.operands[0], maps["d"].register), _multiply(ins, kinds)

    def go(fiber: Fiber) -> None:
        fiber.whole()
        a, b, c = (maps[name].decoded([source(fiber) for source in sources[name]]) for name in "abc")
        with np.errstate(all="ignore"):
            raw = maps["d"].type.encode(times(a, b, c))
        for place, value in zip(targets, maps["d"].encoded(raw, len(targets)), strict=True):
            if place is not None:
                fiber.registers[place] = value

    return go
