"""Hopper's warpgroup products: wgmma.fence, mma_async, commit_group, wait_group.

The atom (`atoms/mma/wgmma.py`) gives the matrices of an instruction and their registers; the descriptor's reading
(`operands.py`) gives its shared-memory operands. PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate
Instructions".

A product of four warps runs when the last of them has issued it, or (policy "late") when a warp waits for it. Until
then the accumulator's registers hold `AccumulatorRegister` objects and A's registers `OperandRegister` ones. Moving
them is harmless, 16-bit halves included. Computing with them is an error that names the product.

wgmma.fence must precede a warp's first product, and must separate any computation of a product's registers from the
product. Compilers sink the moves that clear an accumulator below the fence, and ptxas accepts that. So registers that
were only moved since the fence are allowed. PTX also asks for a fence after reading results. An official kernel (CuTe
DSL's fp8 example with two accumulators) omits it. So that is lint without the policy's `register_strict`, which counts
waited-for results as touched.

Rounding: products are summed in float32 by NumPy's matrix product, then added to the accumulator in float32 (rounded to
f16 for f16 accumulators). The hardware sums in its own order and precision, so bits are equal only where every partial
sum is exact. For random floats an H200 lay within 2**-21 of the sum of the absolute products. It lay within 2**-12 for
8-bit floats, for which wgmma keeps fewer bits of the f32 accumulator (benchmarks/verify_emulator.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from operator import is_, itemgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ....atoms.mma.base import MmaAtom
from ....atoms.mma.sync import ptx_type
from ....atoms.mma.wgmma import FORMS, WARPS, M, wgmma
from ....dtypes import dtype
from ....errors import EmulatorError
from ...machine.interpreter import BLOCKED, Cta, Fiber
from ...machine.uninitialized import filled
from ...ptx.parser import PtxInstruction, PtxOperand
from ...ptx.program import Program, Run
from ...ptx.values import Lanes, LentRegister, Undefined, Value, reported
from ...races.happens_before import MemoryEvent
from ..in_flight import InFlightRegister
from ..memory import said
from ..registry import constant, known, operation, spelled
from .fragments import RegisterFragment
from .operands import (
    NEW_SUMS,
    UNWRITTEN,
    Matrix,
    OperandChunks,
    SharedOperandRead,
    accumulate,
    fetch,
    reading,
    shared_read,
)
from .sparse import ROWS, RegisterMetadata, dense, groups_of, meanings, of_full_depth

_NAMES = {name for form in FORMS for name in (*form.types, *form.accumulators)}
TYPES = {ptx_type(dtype(name)): name for name in _NAMES}
MAJORS = ("K", "MN")
WAIT = "wgmma.wait_group of the product, before the write, orders them."
REGISTERS = "wgmma.fence by all four warps, after the last write of the registers and before the product, orders them."
UNFENCED = "no wgmma.fence between the last access to the product's registers and the product"
WAITED_FOR = (
    "no wgmma.fence since results came into the warp's registers: PTX asks for one, and kernels go without; "
    "Policy(register_strict=True) makes this a finding"
)
TOGETHER = "One wgmma that all four warps of a warpgroup execute, with the same operands, is defined."
RegisterValues: TypeAlias = tuple[Any, ...]  # the contents of registers, `AccumulatorRegister` ones among them
Picks: TypeAlias = Callable[[Sequence[Any]], RegisterValues]


def _named(ins: PtxInstruction) -> str:
    """The place and the opcode: a product's text lists some hundred registers."""
    return f"{ins.where}: {ins.opcode}"


class AccumulatorRegister(InFlightRegister):
    """Register `number` of an accumulator in flight."""

    def __init__(self, accumulator: Accumulator, number: int) -> None:
        self.accumulator, self.number = accumulator, number

    def __str__(self) -> str:
        last = _named(self.accumulator.last.ins)
        return f"the register is in the accumulator of {last}, which is in flight until a wgmma.wait_group for it"

    def __rshift__(self, low: int) -> AccumulatorHalf:
        return AccumulatorHalf(self, low)


class AccumulatorHalf(InFlightRegister):
    """16 bits of an accumulator's register in flight, from bit `low`. Compilers take f16 pairs apart and join them.

    It follows the form of such moves in `codegen.py`: `x >> low & 65535`, and `low | up << 16`.
    """

    def __init__(self, whole: AccumulatorRegister, low: int, raised: bool = False) -> None:
        self.whole, self.low, self.raised = whole, low, raised

    def __str__(self) -> str:
        return str(self.whole)

    def __and__(self, mask: object) -> AccumulatorHalf:
        return self if type(mask) is int and mask == 0xFFFF and self.low in (0, 16) else self._refuse()

    def __lshift__(self, by: object) -> AccumulatorHalf:
        return AccumulatorHalf(self.whole, self.low, True) if type(by) is int and by == 16 else self._refuse()

    def __or__(self, up: object) -> AccumulatorRegister:
        if isinstance(up, AccumulatorHalf) and up.raised and (self.low, up.low) == (0, 16):
            if (up.whole.accumulator, up.whole.number) == (self.whole.accumulator, self.whole.number):
                return self.whole
        return self._refuse()


class OperandRegister(LentRegister):
    """A register of A that a product in flight still reads, and its value."""

    def __init__(self, product: IssuedWgmma, value: Value) -> None:
        super().__init__(value)
        self.product = product

    def __str__(self) -> str:
        product = _named(self.product.ins)
        return f"the register is in operand A of {product}, which is in flight until a wgmma.wait_group for it"


@dataclass(frozen=True, eq=False)
class WgmmaOperation:
    """One form of the instruction: its fragments and shared-memory reads (None: A in registers).

    sparse  A is stored by halves, and metadata in a register select its places
    """

    atom: MmaAtom
    sparse: bool
    c: RegisterFragment
    a: RegisterFragment | None
    read_a: SharedOperandRead | None
    read_b: SharedOperandRead
    saturates: bool

    @property
    def integer(self) -> bool:
        """True if it accumulates in i32."""
        return self.c.dtype.kind != "float"


@cache
def _form(
    n: int, a: str, b: str, c: str, source: str, saturate: bool, sparse: bool, major_a: str, major_b: str
) -> WgmmaOperation:
    stored = wgmma(n, a, b, c, source, saturate=saturate)
    if sparse and stored.a_dtype.bits == 1:
        raise ValueError("PTX has no sparse wgmma of b1")
    atom = of_full_depth(stored) if sparse else stored
    in_smem = source == "smem"
    return WgmmaOperation(
        atom,
        sparse,
        RegisterFragment.of(stored, "C"),
        None if in_smem else RegisterFragment.of(stored, "A"),
        shared_read(stored, "A", major_a) if in_smem else None,
        shared_read(atom, "B", major_b),
        saturate,
    )


@cache
def _parts(found: OperandChunks, form: WgmmaOperation) -> tuple[int, ...]:
    """The chunks of A that each warp reads, in its own rows."""
    return tuple([found.part(rows) for rows in form.c.rows])


class Accumulator:
    """A warpgroup's accumulator in flight, from its first product to the last wait.

    values   the matrix, of all four warps
    queue    products that have not run, in order
    pending  warp -> products that it has not waited for
    """

    def __init__(self, form: WgmmaOperation) -> None:
        self.form = form
        self.values = np.zeros(form.c.shape, dtype=np.int64 if form.integer else np.float32)
        self.queue: list[IssuedWgmma] = []
        self.pending = [0] * WARPS
        self.names: list[list[int]] = [[] for _ in range(WARPS)]  # the registers of the last product of each warp
        self.parts: list[list[AccumulatorRegister]] = [
            [] for _ in range(WARPS)
        ]  # warp -> its registers' contents meanwhile
        self.last: IssuedWgmma


@dataclass(eq=False)
class IssuedWgmma:
    """One mma_async of a warpgroup.

    words    (descriptor or None, descriptor, scale-d): equal in all four warps
    events   warp -> the reads of its group, which complete together; with a timeline each product's own
    metadata [row, group] of a sparse A
    arrived  warps that have issued it
    """

    ins: PtxInstruction
    form: WgmmaOperation
    words: tuple[int | None, int, bool]
    signs: tuple[int, int]
    cta: Cta
    events: list[MemoryEvent | None]
    accumulator: Accumulator
    operands: tuple[tuple[OperandChunks, int] | None, tuple[OperandChunks, int]]
    a: Matrix | None
    metadata: npt.NDArray[np.uint32] | None
    arrived: int = 0
    retired: int = 0
    done: bool = False
    waiting: list[Fiber] = field(default_factory=list)
    lent: dict[int, list[int]] = field(default_factory=dict)


class WgmmaGroup:
    """The issued products of a warpgroup.

    products  number -> product; gone when all four warps have waited for it
    issued    warp -> how many it has issued
    open      warp -> its products that are in no group yet, and events: warp -> their reads
    groups    warp -> its groups that it has not waited for
    fenced    warp -> whether a wgmma.fence ran
    results   warp -> whether results have come into its registers since
    dirty     warp -> registers computed between the issue of a product and a later fence
    """

    def __init__(self) -> None:
        self.products: dict[int, IssuedWgmma] = {}
        self.issued = [0] * WARPS
        self.open: list[list[IssuedWgmma]] = [[] for _ in range(WARPS)]
        self.events: list[MemoryEvent | None] = [None] * WARPS
        self.groups: list[list[list[IssuedWgmma]]] = [[] for _ in range(WARPS)]
        self.fenced = [False] * WARPS
        self.results = [False] * WARPS
        self.dirty = [0] * WARPS


def _group(fiber: Fiber) -> tuple[WgmmaGroup, int]:
    """(the fiber's warpgroup, its warp there). Raises EmulatorError if four warps are not there."""
    number, cta = fiber.warp.number, fiber.cta
    groups = cta.scratch.setdefault("wgmma", {})
    found = groups.get(number // WARPS)
    if found is None:
        if number // WARPS * WARPS + WARPS > len(cta.warps):
            raise EmulatorError(f"warp {number} is in no whole warpgroup: the block has {len(cta.warps)} warps")
        found = groups[number // WARPS] = WgmmaGroup()
        first = number // WARPS * WARPS

        def ended(other: Fiber, count: int) -> None:
            if other.cta is cta and 0 <= other.warp.number - first < WARPS and not other.warp.alive:
                _ended(found, other, other.warp.number - first)

        cta.cluster.scratch.setdefault("on exit", []).append(ended)
    return found, number % WARPS


def _ended(group: WgmmaGroup, fiber: Fiber, warp: int) -> None:
    """Report a warp's unfinished products when it ends."""
    left = [*(p for products in group.groups[warp] for p in products), *group.open[warp]]
    if left:
        fiber.machine.problem("exit", f"{fiber.warp} ends while {left[0].ins.opcode} is in flight", fiber, left[0].ins)
    missing = group.products.get(group.issued[warp])
    if missing is not None:
        fiber.machine.problem(
            "protocol",
            f"{fiber.warp} ends and has not issued a product that its warpgroup has",
            fiber,
            missing.ins,
            orders=TOGETHER,
        )


# Instructions ---------------------------------------------------------------------------------------------------------


@operation("wgmma.fence", operands=0)
def fence(program: Program, ins: PtxInstruction) -> Run:
    """wgmma.fence: order the warp's earlier register accesses before later products."""
    known(ins, "fence", "sync", "aligned")

    def go(fiber: Fiber) -> None:
        fiber.whole()
        group, warp = _group(fiber)
        group.dirty[warp] |= fiber.dirty
        group.fenced[warp], group.results[warp] = True, False
        fiber.dirty = 0

    return go


@operation("wgmma.commit_group", operands=0)
def commit(program: Program, ins: PtxInstruction) -> Run:
    """wgmma.commit_group: the products since the last one become a group, which may be empty."""
    known(ins, "commit_group", "sync", "aligned")

    def go(fiber: Fiber) -> None:
        fiber.whole()
        group, warp = _group(fiber)
        group.groups[warp].append(group.open[warp])
        group.open[warp], group.events[warp] = [], None

    return go


@operation("wgmma.wait_group", operands=1)
def wait(program: Program, ins: PtxInstruction) -> Run:
    """wgmma.wait_group n. Waits until at most the last n groups of the warp are in flight. Results are in the
    registers."""
    known(ins, "wait_group", "sync", "aligned")
    allowed = constant(ins.operands[0])

    def go(fiber: Fiber) -> int | None:
        fiber.whole()
        group, warp = _group(fiber)
        groups = group.groups[warp]
        count = len(groups) - allowed
        if count <= 0:
            return None
        products = [product for each in groups[:count] for product in each]
        for product in products:
            if product.arrived < WARPS:
                product.waiting.append(fiber)
                return BLOCKED
        for product in products:
            _retire(fiber, group, warp, product)
        del groups[:count]
        return None

    return go


def _retire(fiber: Fiber, group: WgmmaGroup, warp: int, product: IssuedWgmma) -> None:
    """The warp learns that a product has completed."""
    accumulator = product.accumulator
    _run_up_to(product, fiber)
    event = product.events[warp]
    assert event is not None
    fiber.cta.cluster.ledger.learn(fiber.knows, event)
    product.retired += 1
    accumulator.pending[warp] -= 1
    if warp in product.lent:
        _give_back(fiber, group, warp, product)
    if not accumulator.pending[warp]:
        _materialise(fiber, group, warp, accumulator)
    if product.retired == WARPS:
        for number in [n for n, other in group.products.items() if other is product]:
            del group.products[number]


def _materialise(fiber: Fiber, group: WgmmaGroup, warp: int, accumulator: Accumulator) -> None:
    """Replace a warp's `AccumulatorRegister` registers, and halves of them, by the results."""
    values = accumulator.form.c.take(accumulator.values, warp)
    registers, names, parts = fiber.registers, accumulator.names[warp], accumulator.parts[warp]
    kinds = list(map(type, registers))
    alone = kinds.count(AccumulatorRegister) == len(names) and AccumulatorHalf not in kinds
    missing: set[int] = set()
    if alone and all(map(is_, map(registers.__getitem__, names), parts)):  # no copies elsewhere, as in most cases
        for register, now in zip(names, values, strict=True):
            registers[register] = now
            fiber.written |= 1 << register
    else:
        missing = _materialise_copies(fiber, accumulator, values)
    group.results[warp] = True
    if missing:
        lost = _name(fiber, names[min(missing)])
        ins = accumulator.last.ins
        message = f"{lost} of its accumulator is written while it is in flight"
        fiber.machine.problem("protocol", message, fiber, ins, orders=WAIT)


def _materialise_copies(fiber: Fiber, accumulator: Accumulator, values: list[Lanes]) -> set[int]:
    """The same where registers were moved; the numbers of results that no register holds."""
    missing, registers, written = set(range(len(values))), fiber.registers, 0
    for register in [at for at, value in enumerate(registers) if type(value) in (AccumulatorRegister, AccumulatorHalf)]:
        value = registers[register]
        whole = value.whole if type(value) is AccumulatorHalf else value
        if whole.accumulator is accumulator:
            now = values[whole.number]
            registers[register] = now >> value.low & 0xFFFF if type(value) is AccumulatorHalf else now
            written |= 1 << register
            missing.discard(whole.number)
    fiber.written |= written
    return missing


def _give_back(fiber: Fiber, group: WgmmaGroup, warp: int, product: IssuedWgmma) -> None:
    """Release A's registers; report those that were computed while they were lent."""
    computed = group.dirty[warp] | fiber.dirty
    for register in product.lent.pop(warp):
        now = fiber.registers[register]
        if computed >> register & 1 and type(now) is not OperandRegister:
            _written_in_flight(fiber, register, product)
    for register, value in enumerate(fiber.registers):
        if type(value) is OperandRegister and value.product is product:
            fiber.registers[register] = value.value
            fiber.written |= 1 << register


def _written_in_flight(fiber: Fiber, register: int, product: IssuedWgmma) -> None:
    name = _name(fiber, register)
    message = f"{name} of A is written while it is in flight"
    fiber.machine.problem("protocol", message, fiber, product.ins, orders=WAIT)


def _name(fiber: Fiber, register: int) -> str:
    return f"register {fiber.machine.program.names[register]}"


@operation("wgmma.mma_async", "wgmma.mma_async.sp")
def product(program: Program, ins: PtxInstruction) -> Run:
    """wgmma.mma_async, by the four warps of a warpgroup. It computes D = A*B + D, or A*B.

    Operands: D, A (a descriptor, or registers), B's descriptor, scale-d, and where the types have them imm-scale-a,
    imm-scale-b, imm-trans-a (A in shared memory), imm-trans-b. A sparse A's metadata and selector precede scale-d.
    """
    shape = next(word for word in ins.words if word.startswith("m64n"))
    n = int(shape.partition("n")[2].partition("k")[0])
    c, a, b = [TYPES[word] for word in ins.words if word in TYPES]
    sparse = "sp" in ins.words
    if len(ins.operands) < (least := 6 if sparse else 4):
        raise ValueError(f"{ins.opcode} has {least} operands and its immediates, not {len(ins.operands)}")
    target, first, second, *rest = ins.operands
    selects = [rest.pop(0), rest.pop(0)] if sparse else []
    scale = rest.pop(0)
    in_smem = first.kind != "vector"
    plain = _form(n, a, b, c, "smem" if in_smem else "rmem", "satfinite" in ins.words, sparse, "K", "K")
    sign, majors = _immediates(plain, in_smem, [constant(operand) for operand in rest])
    form = _form(n, a, b, c, plain.atom.a_source, plain.saturates, sparse, *majors)
    spelled(ins, form.atom.ptx, "satfinite")
    names = _registers(program, target, form.c.registers, "f32" if c == "f32" else "b32")
    lent = [] if form.a is None else _registers(program, first, form.a.registers, "b32")
    used = sum(1 << register for register in {*names, *lent})
    pick: Picks = itemgetter(*names) if len(names) > 1 else lambda registers: (registers[names[0]],)
    describe_a = None if lent else program.value(first, "u64")
    describe_b, adds = program.value(second, "u64"), program.value(scale, "pred")
    metadata = RegisterMetadata.of(form.atom, constant(selects[1])) if sparse else None
    codes = program.value(selects[0], "b32") if sparse else None

    def go(fiber: Fiber) -> None:
        fiber.whole()
        group, warp = _group(fiber)
        word_a = None if describe_a is None else fiber.one(describe_a(fiber))
        agreed = (word_a, fiber.one(describe_b(fiber)), bool(fiber.one(adds(fiber))))
        found = _issued(fiber, group, warp, ins, form, agreed, sign, names)
        _check_fence(fiber, group, warp, ins, names, lent, used)
        _take_accumulator(fiber, warp, found, names, pick(fiber.registers))
        if lent:
            _lend(fiber, group, warp, found, lent)
        if metadata is not None and codes is not None and found.metadata is not None:
            found.metadata[ROWS * warp : ROWS * (warp + 1)] = metadata.read(codes(fiber))
        event = found.events[warp]
        if event is None:
            event = group.events[warp] = found.events[warp] = group.events[warp] or _event(fiber, ins, warp)
        event.fellows = event.fellows or found.events
        _record(fiber, warp, found, event)
        group.open[warp].append(found)
        found.arrived += 1
        if found.arrived == WARPS:
            if fiber.machine.policy.products == "early":
                _run_up_to(found, fiber)
            fiber.cta.cluster.wake(found.waiting)

    return go


def _immediates(form: WgmmaOperation, in_smem: bool, given: list[int]) -> tuple[tuple[int, int], tuple[str, str]]:
    """The signs and the majors of A and B; raises ValueError for other immediates than the types have."""
    signs, transposed, expected = [1, 1], [0, 0], 0
    if not form.integer:
        expected, signs = 2, given[:2]
        if len(form.atom.b_majors) > 1:
            expected += 1 + in_smem
            transposed = ([] if in_smem else [0]) + given[2:]
    if len(given) != expected or not {*signs} <= {1, -1} or not {*transposed} <= {0, 1}:
        raise ValueError(f"{expected} immediates follow scale-d, scales of 1 or -1 and then flags of 0 or 1")
    return (signs[0], signs[1]), (MAJORS[transposed[0]], MAJORS[transposed[1]])


def _registers(program: Program, operand: PtxOperand, count: int, kind: str) -> list[int]:
    targets = program.targets(operand, kind)
    if len(targets) != count or None in targets:
        raise ValueError(f"{count} registers are needed where {len(targets)} are given")
    return [target for target in targets if target is not None]


def _issued(
    fiber: Fiber,
    group: WgmmaGroup,
    warp: int,
    ins: PtxInstruction,
    form: WgmmaOperation,
    agreed: tuple[int | None, int, bool],
    signs: tuple[int, int],
    names: list[int],
) -> IssuedWgmma:
    """The warpgroup's next product for this warp. The first of the four creates it; the others must agree."""
    number = group.issued[warp]
    group.issued[warp] += 1
    held = fiber.registers[names[0]]
    own = held.accumulator if type(held) is AccumulatorRegister else None
    found = group.products.get(number)
    if found is None:

        def report(kind: str, message: str, orders: str = "") -> None:
            fiber.machine.problem(kind, message, fiber, ins, orders=orders)

        word_a, word_b, _ = agreed
        operand_a = None
        if form.read_a is not None and word_a is not None:
            operand_a = reading(word_a, form.read_a, fiber, report)
        found = group.products[number] = IssuedWgmma(
            ins,
            form,
            agreed,
            signs,
            fiber.cta,
            [_event(fiber, ins, of) if fiber.machine.recorder is not None else None for of in range(WARPS)],
            Accumulator(form) if own is None else own,
            (operand_a, reading(word_b, form.read_b, fiber, report)),
            None if form.a is None else np.zeros(form.a.shape, dtype=np.float32),
            np.zeros((M, groups_of(form.atom)), dtype=np.uint32) if form.sparse else None,
        )
        found.accumulator.queue.append(found)
        found.accumulator.last = found
    elif found.ins is not ins:
        raise EmulatorError(f"the warps of a warpgroup issue different products: another one issued {found.ins}")
    elif found.words != agreed:
        shown = [", ".join("-" if w is None else f"{w:#x}" for w in words) for words in (agreed, found.words)]
        fiber.machine.problem(
            "protocol",
            f"the warps of a warpgroup give different operands: (A, B, scale-d) is {shown[0]} here, and {shown[1]} in "
            "another",
            fiber,
            orders=TOGETHER,
        )
    if own is not found.accumulator and (own is not None or found.accumulator.pending[warp]):
        raise EmulatorError("the warps of a warpgroup give different accumulators to one product")
    return found


def _event(fiber: Fiber, ins: PtxInstruction, warp: int) -> MemoryEvent:
    """A warp's reads by a product and by those that complete with it."""
    return fiber.cta.cluster.ledger.event(True, partial(_event_text, ins, warp))


def _event_text(ins: PtxInstruction, warp: int) -> str:
    """A warp's part of a product, for reports."""
    return f"{ins.opcode} at {ins.where}, warp {warp} of its warpgroup"


def _check_fence(
    fiber: Fiber, group: WgmmaGroup, warp: int, ins: PtxInstruction, names: list[int], lent: list[int], used: int
) -> None:
    """Report registers touched since the last wgmma.fence."""
    registers, machine = fiber.registers, fiber.machine
    if type(registers[names[0]]) is AccumulatorRegister:
        used = sum(1 << register for register in lent)
        unfenced = results = False
    else:
        results = group.results[warp]
        unfenced = not group.fenced[warp] or (results and machine.policy.register_strict)
    written = fiber.dirty & used
    for register in lent:
        if type(registers[register]) is OperandRegister:
            written &= ~(1 << register)
    if unfenced:
        machine.problem("protocol", UNFENCED, fiber, orders=REGISTERS)
    elif written:
        first = (written & -written).bit_length() - 1
        message = f"{_name(fiber, first)} of the product is written after the last wgmma.fence"
        machine.problem("protocol", message, fiber, orders=REGISTERS)
    elif results:
        machine.problem("lint", WAITED_FOR, fiber, orders=REGISTERS)


def _take_accumulator(fiber: Fiber, warp: int, found: IssuedWgmma, names: list[int], held: RegisterValues) -> None:
    """Put the accumulator's registers, which hold `held`, in flight; those already in flight stay."""
    registers, accumulator = fiber.registers, found.accumulator
    parts = accumulator.parts[warp]
    if accumulator.form.c is found.form.c and len(parts) == len(held) and all(map(is_, held, parts)):
        pass  # in flight, and the registers hold it in their order, as in most cases
    elif any(type(value) is AccumulatorRegister for value in held):
        if accumulator.form.c is not found.form.c and accumulator.form.c.shape != found.form.c.shape:
            raise EmulatorError(f"the accumulator in flight is of {accumulator.form.atom}: wait for it first")
        for number, value in enumerate(held):
            if type(value) is not AccumulatorRegister or value.accumulator is not accumulator or value.number != number:
                raise EmulatorError(f"{_name(fiber, names[number])} does not hold register {number} of the accumulator")
    else:
        if found.words[2]:
            found.form.c.put(accumulator.values, warp, _defined(fiber, names, held))
        parts = accumulator.parts[warp] = [AccumulatorRegister(accumulator, number) for number in range(len(names))]
        for name, part in zip(names, parts, strict=True):
            registers[name] = part
    accumulator.names[warp] = names
    accumulator.pending[warp] += 1


def _defined(fiber: Fiber, names: list[int], held: RegisterValues) -> RegisterValues:
    """The accumulator's values; reports registers that were never written."""
    held = tuple(reported(x) if type(x) is Undefined and x.reports else x for x in held)
    unwritten = next((value for value in held if type(value) is Undefined), None)
    if unwritten is None:
        return held
    fiber.machine.problem(UNWRITTEN, f"the accumulator is added to: {unwritten}", fiber, suspect=True, orders=NEW_SUMS)
    fill, widths = fiber.machine.policy.fill, fiber.machine.program.widths
    return tuple(filled(x, fill, widths[at]) if type(x) is Undefined else x for at, x in zip(names, held, strict=True))


def _lend(fiber: Fiber, group: WgmmaGroup, warp: int, found: IssuedWgmma, lent: list[int]) -> None:
    """Lend A's registers to the product until the wait for it. Their values do not change before."""
    assert found.form.a is not None and found.a is not None
    values = [fiber.registers[register] for register in lent]
    values = [value.value if type(value) is OperandRegister else value for value in values]
    computed = group.dirty[warp] | fiber.dirty  # since they were lent last: to a product that may still read them
    for product in [p for products in (*group.groups[warp], group.open[warp]) for p in products if p is not found]:
        for register in product.lent.get(warp, ()):
            if computed >> register & 1 and register in lent:
                _written_in_flight(fiber, register, product)
    found.form.a.put(found.a, warp, values)
    for register, value in zip(lent, values, strict=True):
        fiber.registers[register] = OperandRegister(found, value)
        group.dirty[warp] &= ~(1 << register)
    found.lent[warp] = lent


def _record(fiber: Fiber, warp: int, found: IssuedWgmma, event: MemoryEvent) -> None:
    """One access for each warp: its quarter of A, and all of B."""
    machine = fiber.machine
    if not machine.policy.races:
        return
    what = said(fiber, found.ins)
    if found.operands[0] is not None:
        reading_a, first = found.operands[0]
        places = _parts(reading_a, found.form)[warp] << first
        machine.touch(fiber, found.cta, places, False, what, event, True)
    reading_b, first = found.operands[1]
    ends = (reading_b.first + first, reading_b.last + first)
    machine.touch(fiber, found.cta, reading_b.places << first, False, what, event, True, ends=ends)


# Arithmetic -----------------------------------------------------------------------------------------------------------


def _run_up_to(product: IssuedWgmma, fiber: Fiber) -> None:
    """Run the products of an accumulator, in order, up to this one."""
    queue = product.accumulator.queue
    while not product.done:
        _run(queue.pop(0), fiber)


def _run(product: IssuedWgmma, fiber: Fiber) -> None:
    form, machine = product.form, fiber.machine

    def report(kind: str, message: str, orders: str = "") -> None:
        machine.problem(kind, message, fiber, product.ins, kind == UNWRITTEN, orders)

    def get(operand: tuple[OperandChunks, int]) -> Matrix:
        machine.counts.bytes["shared read by wgmma"] += operand[0].chunks.size * 16
        return fetch(product.cta, *operand, report)

    source, second = product.operands
    left, right = product.a if source is None else get(source), get(second)
    assert left is not None
    if product.metadata is not None:
        left = dense(left, product.metadata, meanings(form.atom), report)
    if product.signs[0] * product.signs[1] < 0:
        left = -left
    product.accumulator.values = accumulate(
        product.accumulator.values, left, right, product.words[2], form.c.dtype.bits == 16, form.saturates
    )
    product.done = True
