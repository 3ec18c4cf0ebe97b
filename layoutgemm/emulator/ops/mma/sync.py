"""Matrix products of a warp: mma.sync in every form of the atoms. Forms are dense and sparse.

The thread-value maps of the atom become index arrays when the kernel is loaded. Operands are gathered from the
registers into matrices with one `take` each, multiplied, and scattered back. Products of integers and of single bits
are exact. Products of floats are exact too (two significands of at most 11 bits). They are summed in float32, in the
order of NumPy's matrix product, then added to C. Hardware sums in an order and with a truncation that PTX leaves open.
So results agree where every partial sum is exact, and up to the last bits elsewhere. Block scales are applied to the
operands in float64, f64 is computed in float64, and an f16 result is rounded once from float32.

A sparse product (mma.sp) stores half of A, as a dense product of half the depth does. Its metadata (`sparse.py`) give
A with its zeros, which B of the whole depth multiplies.

PTX ISA, "Warp-level Matrix Instructions: mma", "Block Scaling for mma.sync", "Matrix multiply-accumulate operation
using mma.sp instruction". wmma has a file of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ....atoms.mma.base import MmaAtom
from ....atoms.mma.block_scales import provider
from ....atoms.mma.sync import BIT_OPS, mma_sync
from ....errors import AtomError
from ...machine.interpreter import Fiber
from ...ptx.codegen import number
from ...ptx.parser import TYPE_WORD, PtxInstruction
from ...ptx.program import Program
from ...ptx.program import Run as Operation
from ...ptx.values import FULL, LANES
from ..registry import constant, operation
from .batching import InstructionRun, instructions_in_a_row
from .operands import products
from .sparse import RegisterMetadata, dense, of_full_depth

Array = npt.NDArray[Any]
Places = tuple[Any, ...]  # the number of each register, or a constant as a tuple of one


@dataclass(frozen=True)
class SyncProduct:
    """The product of an opcode. Atoms of A's registers and of the multiplication, one but for a sparse A.

    stored    its A, C and D are the registers
    full      its B is the registers; of a sparse product twice as deep as `stored`
    variant   "", "sp" or "sp::ordered_metadata"
    """

    stored: MmaAtom
    full: MmaAtom
    variant: str

    @property
    def fragments(self) -> dict[str, WarpOperand]:
        """The registers of A, B, C and D."""
        return fragments(self.stored) | {"B": fragments(self.full)["B"]}


def product_of(ins: PtxInstruction) -> SyncProduct:
    """The product of an opcode, for any order of its qualifiers."""
    words = list(ins.words[1:])
    variant = _taken(words, r"(sp|sp::ordered_metadata)")
    if variant is None:
        atom = _atom_of(ins, words, 1)
        return SyncProduct(atom, atom, "")
    try:
        atom = _atom_of(ins, words, 2)
    except AtomError as error:
        raise ValueError(f"a sparse product stores A as a dense one of half its K does, and {error}") from None
    m, _, k = atom.shape_mnk
    ordered = ".kind::" in atom.ptx or (atom.a_dtype.bits == 8 and atom.dtype_of("D").name == "f16")
    narrow = atom.a_dtype.kind == "float" and atom.a_dtype.bits == 8 and k == 16
    if m != 16 or atom.a_dtype.bits in (1, 64) or narrow:
        raise ValueError(f"PTX has no sparse m{m}n8k{2 * k} of {atom.a_dtype}")
    if ordered and variant == "sp":
        raise ValueError(f"{ins.opcode} exists as .sp::ordered_metadata alone")
    return SyncProduct(atom, of_full_depth(atom, variant), variant)


def atom_of(ins: PtxInstruction) -> MmaAtom:
    """The atom whose registers an opcode's A, C and D are."""
    return product_of(ins).stored


def _atom_of(ins: PtxInstruction, words: list[str], deeper: int) -> MmaAtom:
    """The dense atom of an opcode's words, whose K is `deeper` times the atom's."""
    for word in ("sync", "aligned"):
        if word not in words:
            raise ValueError(f"mma is .{word}")
        words.remove(word)
    kind = _taken(words, r"kind::(\w+)")
    scaled = _taken(words, r"(block_scale)") is not None
    multiple = _taken(words, r"scale_vec::(\d)X")
    saturate = _taken(words, r"(satfinite)") is not None
    shape = _taken(words, r"(m\d+n\d+k\d+)")
    if shape is None or len(words) < 6:
        raise ValueError(f"{ins.opcode} is not emulated")
    stray = [word for word in words[2:] if word not in (*BIT_OPS, "popc") and not TYPE_WORD.fullmatch(word)]
    if stray:
        raise ValueError(f".{stray[0]} is not emulated")
    head, _, depth = shape.rpartition("k")
    majors, (d, a, b, c), rest = words[:2], [_name(word) for word in words[2:6]], words[6:]
    bit_op = "xor"
    if rest[-1:] == ["popc"] and rest[0] in BIT_OPS:
        bit_op, rest = rest[0], []
    scale = rest.pop(0) if scaled and rest else None
    if rest:
        raise ValueError(f".{rest[0]} is not emulated")
    k = int(depth) // deeper
    vector = k // int(multiple) if multiple else None
    atom = mma_sync(
        f"{head}k{k}", a, b, c, d, layouts=(majors[0], majors[1]), saturate=saturate, bit_op=bit_op, kind=kind,
        scale=scale, vector=vector,
    )  # fmt: skip
    if (atom.scale is not None) != scaled:
        raise ValueError(f"kind::{kind} {'has' if atom.scale else 'has no'} .block_scale")
    return atom


def _taken(words: list[str], pattern: str) -> str | None:
    for word in words:
        found = re.fullmatch(pattern, word)
        if found is not None:
            words.remove(word)
            return found[1]
    return None


def _name(word: str) -> str:
    """PTX's name of a type as the atoms have it: s8 is i8."""
    return f"i{word[1:]}" if re.fullmatch(r"s\d+", word) else word


class WarpOperand:
    """One operand in the registers of a warp, as index arrays.

    unit    the unsigned type of the elements in registers
    index   [product, row, column] -> number of the unit in (register, lane) order; B's matrix is K x N
    place   number of a unit in (register, lane) order -> of the element in the matrix, for results
    shift   bits by which an element lies above its unit's lowest
    """

    def __init__(self, atom: MmaAtom, operand: str) -> None:
        self.dtype = atom.dtype_of(operand)
        rows, columns = atom.tile_of(operand)
        layout = atom.layout(operand)
        threads, values = layout[0].size, layout[1].size
        elements = np.asarray(layout.offsets()).reshape(values, threads)
        width = 64 if self.dtype.bits == 64 else 32
        bits = max(8, min(width, atom.element_bits(operand)))
        self.unit = np.dtype(f"u{bits // 8}")
        self.word = np.dtype(f"u{width // 8}")
        self.registers = max(1, atom.registers(operand) * 32 // width)
        self.shape = (rows, columns)
        products = LANES // threads
        index = np.empty((products, rows * columns), dtype=np.int64)
        shift = np.empty(rows * columns, dtype=np.uint8)
        of_thread = np.arange(threads) if atom.thread_ids is None else np.asarray(atom.thread_ids.offsets())
        for value in range(values):
            register, bit = atom.slot(operand, value)
            register, low = register * 32 // width, bit % width
            for product in range(products):
                lane = of_thread + 4 * product
                index[product, elements[value]] = (register * LANES + lane) * (width // bits) + low // bits
            shift[elements[value]] = low % bits
        # Elements are counted down the columns, so that B, counted as K x N, can multiply A.
        self.index, self.shift = index.reshape(products, columns, rows), shift.reshape(columns, rows)
        if operand != "B":
            self.index, self.shift = self.index.transpose(0, 2, 1), self.shift.T
        if products == 1:
            self.index = self.index[0]
        self.index = np.ascontiguousarray(self.index)
        self.place = np.argsort(self.index.reshape(-1), kind="stable")
        self.decode = self._decoder(atom, operand, bits)

    def _decoder(self, atom: MmaAtom, operand: str, bits: int) -> Callable[[Array], Array]:
        """Units -> values: float32 (float64 for f64), integers and bits too."""
        kind, natural = self.dtype, np.float32
        if kind.name == "bf16":
            return lambda x: (x.astype(np.uint32) << 16).view(np.float32)
        if kind.name == "f16":
            return lambda x: x.view(np.float16).astype(np.float32)
        if kind.name == "tf32":
            return lambda x: (x & np.uint32(0xFFFFE000)).view(np.float32)
        if kind.name in ("f32", "f64"):
            return lambda x: x.view(f"f{kind.bytes}")
        if kind.name == "i32":
            return lambda x: x.view(np.int32)
        codes = np.arange(256)
        if len(np.unique(self.shift)) == 1:  # one element to a byte
            table = kind.decode(codes >> int(self.shift.flat[0]) & ((1 << kind.bits) - 1)).astype(natural)
            return lambda x: table[x]
        tables = np.stack([kind.decode(codes >> s & ((1 << kind.bits) - 1)) for s in range(8)]).astype(natural)
        shift = self.shift
        return lambda x: tables[shift, x]

    def gather(self, fiber: Fiber, places: Places) -> Array:
        """The operand's matrix (a stack of them for m8n8k4), from the registers of these numbers.

        Registers are never changed in place, so a matrix stays valid while they hold the same arrays. A and B serve
        several products, and C is the D of the previous one.
        """
        registers = fiber.registers
        known = fiber.warp.scratch.get((self, places))
        if known is not None:
            for place, array in zip(places, known[0]):
                if registers[place] is not array:
                    break
            else:
                return known[1]
        values = [registers[place] if type(place) is int else place[0] for place in places]
        try:
            joined = np.concatenate(values)
        except ValueError:
            joined = np.concatenate([x if isinstance(x, np.ndarray) else np.full(LANES, x, np.int64) for x in values])
        else:
            # Only the identity of arrays shows that nothing has changed.
            found = self.decode(joined.astype(self.word).view(self.unit)[self.index])
            fiber.warp.scratch[self, places] = (values, found)
            return found
        return self.decode(joined.astype(self.word).view(self.unit)[self.index])

    def scatter(self, fiber: Fiber, places: Places, matrix: Array) -> None:
        """Write a result into the registers at `places`."""
        units = matrix.reshape(-1)[self.place]
        words = units.view(self.word)
        if self.word.itemsize != 8:
            words = words.astype(np.int64)
        values = list(words.reshape(self.registers, LANES))
        registers = fiber.registers
        for place, value in zip(places, values):
            registers[place] = value
        fiber.warp.scratch[self, places] = (values, matrix)


@lru_cache(maxsize=256)
def fragments(atom: MmaAtom) -> dict[str, WarpOperand]:
    """The fragments of A, B, C and D. Those of C and D are one where they are equal."""
    found = {operand: WarpOperand(atom, operand) for operand in "ABC"}
    return found | {"D": found["C"] if atom.layout_D is None else WarpOperand(atom, "D")}


def multiply(atom: MmaAtom) -> Callable[[Array, Array, Array], Array]:
    """The product of matrices: (A, B, C) -> D in the accumulator's type."""
    kind, target = atom.a_dtype, atom.dtype_of("D")
    if kind.bits == 1:
        union = ".and." not in atom.ptx

        def bits(a: Array, b: Array, c: Array) -> Array:
            both = np.dot(a, b).astype(np.int64)
            if union:  # popc of a xor b
                both = a.sum(1).astype(np.int64)[:, None] + b.sum(0).astype(np.int64) - 2 * both
            return (both + c).astype(np.int32)

        return bits
    if target.name == "i32":
        finish = finisher(atom)
        return lambda a, b, c: finish(np.dot(a, b), c)
    finish = finisher(atom)
    if atom.threads == LANES and atom.scale is None and target.name == "f32":
        return lambda a, b, c: products(a, b) + c
    return lambda a, b, c: finish(products(a, b), c)


def finisher(atom: MmaAtom) -> Callable[[Array, Array], Array]:
    """The function (A B, C) -> D in the accumulator's type, except for single bits."""
    target = atom.dtype_of("D")
    if target.name == "i32":
        clamp = ".satfinite" in atom.ptx

        def integers(product: Array, c: Array) -> Array:
            # At most 64 products below 2**16: exact in float32.
            total = product.astype(np.int64) + c
            return (np.clip(total, -(1 << 31), (1 << 31) - 1) if clamp else total).astype(np.int32)

        return integers
    accumulator = np.dtype(f"f{target.bytes}")

    def floats(product: Array, c: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return (product + c).astype(accumulator, copy=False)

    return floats


def _places(program: Program, ins: PtxInstruction, atom: MmaAtom, name: str, count: int) -> Places:
    """The register numbers of the operand D, A, B or C; a constant is a tuple of one."""
    position, element = "DABC".index(name), atom.dtype_of(name).name
    operand = ins.operands[position]
    bits = 64 if element == "f64" else 32
    kind = f"f{bits}" if name in "CD" and element in ("f32", "f64") else f"b{bits}"
    parts = operand.parts if operand.kind == "vector" else (operand,)
    if len(parts) != count:
        raise ValueError(f"operand {position} has {len(parts)} registers; {ins.opcode} takes {count}")
    places: list[Any] = []
    for part in parts:
        if part.kind == "reg":
            places.append(program.result(part, kind))
        elif part.kind == "number":
            places.append((number(part.text, 64),))
        else:
            raise ValueError(f"{part.text} is not a register")
    return tuple(places)


@operation("mma")
def product(program: Program, ins: PtxInstruction) -> Operation:
    """mma.sync, D = A B + C of one warp. It is block-scaled or not, and A is sparse or not."""
    found = product_of(ins)
    atom, maps = found.full, found.fragments
    expected = 4 + (2 if found.variant else 0) + (0 if atom.scale is None else 4)
    if len(ins.operands) != expected:
        raise ValueError(f"{ins.opcode} has {expected} operands, not {len(ins.operands)}")
    places = {name: _places(program, ins, atom, name, maps[name].registers) for name in "DABC"}
    times = multiply(atom)
    if any(not isinstance(place, int) for place in places["D"]):
        raise ValueError("the result goes to registers")
    gather_a, gather_b, gather_c, scatter = maps["A"].gather, maps["B"].gather, maps["C"].gather, maps["D"].scatter
    from_a, from_b, from_c, to = places["A"], places["B"], places["C"], places["D"]
    zeros = _with_zeros(program, ins, found) if found.variant else None
    scales = None if atom.scale is None else _scales(program, ins, atom, expected - 4)
    joins = expected == 4 and atom.threads == LANES and atom.a_dtype.bits > 1 and ins.predicate is None
    together: list[InstructionRun | None] = []

    def go(fiber: Fiber) -> int | None:
        if fiber.lanes != FULL or fiber.knows.together:
            fiber.whole()
        if joins and fiber.gathering is None:
            if not together:
                together.append(_run_from(program, ins, atom))
            if together[0] is not None:
                start, end = fiber.warp.scratch.get("mma.sync one by one", (0, 0))
                if not start < ins.pc < end and (after := together[0].go(fiber)) is not None:
                    return after
        a, b = gather_a(fiber, from_a), gather_b(fiber, from_b)
        if zeros is not None:
            a = zeros(fiber, a)
        if scales is not None:
            a, b = scales(fiber, a, b)
        scatter(fiber, to, times(a, b, gather_c(fiber, from_c)))
        return None

    return go


def _with_zeros(program: Program, ins: PtxInstruction, found: SyncProduct) -> Callable[[Fiber, Array], Array]:
    """A function that gives A with its zeros, by the lanes' metadata."""
    source, *more = program.sources(ins.operands[4], "b32")
    if more or ins.operands[4].kind == "number":
        raise ValueError("the metadata are one register")
    metadata = RegisterMetadata.of(found.full, constant(ins.operands[5]), found.variant != "sp")

    def zeros(fiber: Fiber, stored: Array) -> Array:
        def report(kind: str, message: str, orders: str = "") -> None:
            fiber.machine.problem(kind, message, fiber, orders=orders)

        return dense(stored, metadata.read(source(fiber)), metadata.legal, report)

    return zeros


def _run_from(program: Program, first: PtxInstruction, atom: MmaAtom) -> InstructionRun | None:
    """The run of products that starts here, or None without a gain."""
    maps = fragments(atom)
    row = instructions_in_a_row(program, first)
    places = []
    for ins in row:
        each = {name: _places(program, ins, atom, name, maps[name].registers) for name in "DABC"}
        if any(not isinstance(place, int) for registers in each.values() for place in registers):
            return None
        places.append(each)
    found = InstructionRun(program, first, len(row), places, maps, finisher(atom))
    return found if found.worth else None


def _scales(
    program: Program, ins: PtxInstruction, atom: MmaAtom, first: int
) -> Callable[[Fiber, Array, Array], tuple[Array, Array]]:
    """A function that scales A and B by the operands from `first` on."""
    assert atom.scale is not None
    table = atom.scale.dtype.decode(np.arange(256)).astype(np.float64)
    parts = []
    for position, operand in ((first, "SFA"), (first + 2, "SFB")):
        factors, chosen = (program.sources(ins.operands[position + n], kind) for n, kind in enumerate(("b32", "b16")))
        if len(factors) != 1 or len(chosen) != 2:
            raise ValueError(f"{operand} is a register and a pair {{byte-id, thread-id}}")
        parts.append((operand, factors[0], chosen))

    def scale(fiber: Fiber, a: Array, b: Array) -> tuple[Array, Array]:
        out = []
        for matrix, (operand, source, chosen) in zip((a, b), parts):
            at = _providers(atom, operand, *[fiber.one(x(fiber)) for x in chosen])
            words = np.empty(LANES, dtype=np.uint32)
            words[:] = source(fiber)
            factors = table[words.view(np.uint8)[at]]
            out.append(matrix * (factors if operand == "SFA" else factors.T))
        return out[0], out[1]

    return scale


@lru_cache(maxsize=256)
def _providers(atom: MmaAtom, operand: str, byte_id: int, thread_id: int) -> Array:
    """[row, k] -> the factor's byte in the warp's register. Raises AtomError for undefined selectors."""
    assert atom.scale is not None
    rows, blocks = atom.tile_of(operand)
    at = np.empty((rows, blocks), dtype=np.int64)
    for row, block in np.ndindex(rows, blocks):
        lane, byte = provider(atom, operand, row, block, byte_id, thread_id)
        at[row, block] = 4 * lane + byte
    return np.repeat(at, atom.scale.vector, axis=1)
