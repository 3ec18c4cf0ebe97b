"""A kernel made ready to run: blocks, reconvergence points, live registers, and code.

`Program` is made once for a kernel and used by every launch of it. It holds, for each pc, a step: a compiled run of
arithmetic, or an operation. An operation is a function of the fiber that the modules of `ops` made for that one
instruction. An instruction with neither is refused here, with its line.
"""

from __future__ import annotations

import itertools
import linecache
import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import PtxError
from . import rules  # noqa: F401  (the rules register)
from .batching import batched
from .codegen import NAMES, PARAMETER_BASE, CodeGenerator, bits_of
from .declarations import ModuleVariable
from .parser import (
    CARRIED,
    CARRY,
    MAX_LOCAL_BYTES,
    MAX_SHARED_BYTES,
    LocalSymbol,
    PtxInstruction,
    PtxKernel,
    PtxOperand,
    listed,
)
from .values import FULL, Undefined, Value

if TYPE_CHECKING:
    from ..machine.interpreter import Fiber, Warp

BRANCHES = ("bra", "brx", "ret", "exit", "routine")
_NUMBERS = itertools.count()
_SYMBOL = re.compile(r"[A-Za-z_$][\w$]*")
LOCAL_START = 0x20000  # of each thread's own memory: above the kernel's parameters
FUNCTIONS = 0x5E00_0000_0000  # of device functions, whose addresses are compared and never read
VARIABLES = 0x6000_0000_0000  # of a module's variables, below the buffers of a launch
FRAME_ALIGNMENT = 16
SHARED_START = 1024  # dynamic shared memory does not begin at offset 0, so that a forgotten base address shows
# Instructions whose first operand is read although it is a register.
READS_FIRST = {"bar", "barrier", "brx", "nanosleep", "setmaxnreg", "discard", "griddepcontrol"}

# Instructions that accept registers without a value: hints, which change no result, and warpgroup products,
# which check their registers themselves.
LEFT = ("nanosleep", "prefetch", "prefetchu", "applypriority", "discard", "wgmma")

# fiber -> None, or the results of operations in `interpreter.py`; the value of an operand; a run of arithmetic
Run: TypeAlias = "Callable[[Fiber], int | None]"
Reader: TypeAlias = "Callable[[Fiber], Value]"
Segment: TypeAlias = "Callable[[list[Any], Warp], None]"


class CodeSegment(NamedTuple):
    """A run of arithmetic [start, end): its function, its written registers, and those only moved."""

    start: int
    end: int
    run: Segment
    writes: int
    moved: int


@dataclass(slots=True)
class Operation:
    """One instruction that does more than compute.

    run      what it does to a fiber
    doubtful the registers that it reads and that may have no value, by their numbers
    writes   the registers that it writes, as a bit set
    moved    those of them that it does not compute when it is executed: a wgmma's come with the wait for it
    """

    ins: PtxInstruction
    run: Run
    writes: int
    moved: int
    doubtful: tuple[int, ...]


@lru_cache(maxsize=64)
def addresses_of(variables: tuple[ModuleVariable, ...]) -> dict[str, int]:
    """The addresses of a module's variables; those of two modules are far apart."""
    names = ",".join([f"{one.name}:{len(one.content)}" for one in variables])
    at, out = VARIABLES + (zlib.crc32(names.encode()) % 4096 << 32), {}
    for variable in variables:
        at = -(-at // max(variable.align, 16)) * max(variable.align, 16)
        out[variable.name] = at
        at += len(variable.content) + 16  # a gap: an access beyond one variable hits no other
    return out


@dataclass(eq=False)
class Program:
    """A kernel with its control flow, its live registers, and its steps.

    build  instruction -> operation, given by `ops`
    needs  for each pc, the registers that are operands; `reads` has the predicate too, and what it may leave alone

    Register sets are ints used as bit sets, bit i for register i of `index`.
    """

    kernel: PtxKernel
    build: Callable[[Program, PtxInstruction], Run]
    symbols: dict[str, int] = field(init=False)
    shared_bytes: int = field(init=False)
    local_end: int = field(init=False)
    frame_bytes: int = field(init=False)  # of a routine's frame, which all have
    variables: list[tuple[ModuleVariable, npt.NDArray[np.uint8]]] = field(init=False)
    index: dict[str, int] = field(init=False)
    wide: int = field(init=False)
    widths: list[int] = field(init=False)  # bits of each register, up to 64
    steps: list[CodeSegment | Operation | None] = field(init=False)
    writes: list[int] = field(init=False)
    reads: list[int] = field(init=False)
    needs: list[int] = field(init=False)
    leaders: list[int] = field(init=False)
    meets: dict[int, int] = field(init=False)
    live: dict[int, int] = field(init=False)
    _follows: list[list[int]] = field(init=False)  # block -> the blocks that may come next
    _live_after: dict[int, int] = field(init=False, default_factory=dict)
    doubts: list[int] = field(init=False)
    blank: list[Undefined] = field(init=False)

    def __post_init__(self) -> None:
        if self.kernel.problems and not self.kernel.instructions:
            raise PtxError(listed(self.kernel.name, self.kernel.problems))
        self.refusals = list(self.kernel.problems)
        self._place_symbols()
        self.generator = CodeGenerator(self.kernel, self.symbols)
        self.index = self.generator.index
        self.wide = sum(1 << i for i, kind in enumerate(self.kernel.registers.values()) if bits_of(kind) == 64)
        effects = [self._effect(ins) for ins in self.kernel.instructions]
        self.writes, self.needs = [w for w, _ in effects], [r for _, r in effects]
        self.reads = list(self.needs)
        for ins in self.kernel.instructions:
            if ins.predicate is not None:  # where it does not hold, the registers keep their values
                self.reads[ins.pc] |= 1 << self.index[ins.predicate] | self.writes[ins.pc]
        kinds = self.kernel.registers.items()
        self.widths = [min(bits_of(kind), 64) for _, kind in kinds]
        self.blank = [Undefined(False if kind == "pred" else 0, FULL, name) for name, kind in kinds]
        self._blocks()
        self._make_steps()
        self.variables = self._variables()
        if self.refusals:
            raise PtxError(listed(self.kernel.name, self.refusals))

    @property
    def size(self) -> int:
        """Instructions of the kernel."""
        return len(self.kernel.instructions)

    def _place_symbols(self) -> None:
        self.symbols = {p.name: PARAMETER_BASE + p.offset for p in self.kernel.parameters}
        at = SHARED_START
        for symbol in sorted(self.kernel.shared, key=lambda s: s.size == 0):  # the dynamic part comes last
            at = -(-at // symbol.align) * symbol.align
            self.symbols[symbol.name] = at
            at += symbol.size
            if at > MAX_SHARED_BYTES:
                raise PtxError(f"{symbol.name} ends at byte {at} of shared memory: at most {MAX_SHARED_BYTES}")
        self.shared_bytes = at
        at = self._place_locals([one for one in self.kernel.local if not one.framed], LOCAL_START)
        if at - LOCAL_START > MAX_LOCAL_BYTES:
            raise PtxError(f"{self.kernel.name}: {at - LOCAL_START} bytes of local memory, more than {MAX_LOCAL_BYTES}")
        self.local_end = at
        # The first frame begins one frame behind the kernel's own variables, whose frame is number 0.
        at = -(-at // FRAME_ALIGNMENT) * FRAME_ALIGNMENT
        end = self._place_locals([one for one in self.kernel.local if one.framed], at)
        self.frame_bytes = -(-(end - at) // FRAME_ALIGNMENT) * FRAME_ALIGNMENT
        self.symbols |= addresses_of(self.kernel.variables)
        self.symbols |= {name: FUNCTIONS + 16 * n for n, name in enumerate(self.kernel.functions)}

    def _place_locals(self, variables: list[LocalSymbol], at: int) -> int:
        """Give addresses to variables of each thread, from `at` on; returns their end."""
        for local in variables:
            at = -(-at // local.align) * local.align
            self.symbols[local.name] = at
            at += local.size
        return at

    # ------------------------------------------------------------ what instructions read and write

    def registers(self, operand: PtxOperand) -> Iterator[int]:
        """The numbers of an operand's registers, including those in vectors and addresses."""
        if operand.kind == "reg":
            yield self.index[operand.text]
        for part in operand.parts:
            yield from self.registers(part)

    def registers_read(self, ins: PtxInstruction) -> list[int]:
        """The registers that an instruction reads."""
        return list(set_bits(self.reads[ins.pc]))

    def _effect(self, ins: PtxInstruction) -> tuple[int, int]:
        """(written, read) registers, but for the predicate."""
        written = read = 0
        reads_first = ins.words[0] in READS_FIRST or ins.opcode.startswith("tcgen05.dealloc")
        reads_first &= "red" not in ins.words  # a barrier's reduction has a result
        for place, operand in enumerate(ins.operands):
            named = 0
            for register in self.registers(operand):
                named |= 1 << register
            target = place == 0 and operand.kind in ("reg", "vector", "pair", "part") and not reads_first
            if target or (place == 1 and ins.opcode.startswith("tcgen05.ld.red") and operand.kind == "reg"):
                target = True
                written |= named
            if not target or ins.opcode.startswith("wgmma.mma_async"):
                read |= named
        if CARRY in self.index:
            written |= ("cc" in ins.words) << self.index[CARRY]
            read |= (ins.words[0] in CARRIED) << self.index[CARRY]
        return written, read

    @cached_property
    def names(self) -> list[str]:
        """The registers' names, in the order of their numbers."""
        return list(self.index)

    @cached_property
    def _read_anywhere(self) -> int:
        out = 0
        for needed in self.needs:
            out |= needed
        for ins in self.kernel.instructions:
            out |= 1 << self.index[ins.predicate] if ins.predicate is not None else 0
        return out

    def is_read(self, register: int) -> bool:
        """True if an instruction of the kernel reads a register."""
        return bool(self._read_anywhere >> register & 1)

    def reads_special(self, name: str) -> bool:
        """True if an instruction reads a special register."""
        return any(operand.text == name for ins in self.kernel.instructions for operand in ins.operands)

    # ------------------------------------------------------------ control flow

    def target(self, ins: PtxInstruction) -> int:
        """The pc that a branch goes to."""
        name = ins.operands[0].text if ins.operands else "to go to"
        if name not in self.kernel.labels:
            raise PtxError(f"{ins.where}: {ins.text}: no label {name}")
        return self.kernel.labels[name]

    def next_meeting(self, pc: int) -> int:
        """The next pc on every path that needs the whole warp, else the kernel's end."""
        at, seen = pc, {pc}
        while at < self.size:
            ins = self.kernel.instructions[at]
            if ins.words[0] in ("bar", "barrier", "activemask") or not {"sync", "aligned"}.isdisjoint(ins.words):
                return at
            at = self.meets.get(at, at + 1)
            if at in seen:
                break
            seen.add(at)
        return self.size

    def ends(self, pc: int) -> bool:
        """True if every thread that comes to a pc ends there."""
        seen: set[int] = set()
        while pc < self.size and pc not in seen:
            seen.add(pc)
            ins = self.kernel.instructions[pc]
            if ins.predicate is not None or ins.words[0] != "bra":
                return ins.predicate is None and ins.words[0] in ("ret", "exit")
            pc = self.target(ins)
        return False

    def targets_of(self, ins: PtxInstruction) -> list[int]:
        """The pcs that a `brx.idx` may go to, by its index."""
        name = ins.operands[1].text if len(ins.operands) == 2 else ""
        labels = self.kernel.branch_targets.get(name)
        if labels is None:
            raise PtxError(f"{ins.where}: {ins.text}: no .branchtargets of the label {name}")
        missing = [label for label in labels if label not in self.kernel.labels]
        if missing:
            raise PtxError(f"{ins.where}: {ins.text}: no label {missing[0]}")
        return [self.kernel.labels[label] for label in labels]

    def _blocks(self) -> None:
        """Find basic blocks. `meets`: the reconvergence pc of each branch; `live` at leaders."""
        instructions, end = self.kernel.instructions, self.size
        leaders = {0, *self.kernel.labels.values(), *[i.pc + 1 for i in instructions if i.words[0] in BRANCHES]}
        self.leaders = starts = sorted(pc for pc in leaders if pc < end)
        number_of = {pc: n for n, pc in enumerate(starts)}
        last = [pc - 1 for pc in [*starts[1:], end]]
        exit_ = len(starts)
        follows: list[list[int]] = []
        for n, at in enumerate(last):
            ins = instructions[at]
            falls = n + 1 if n + 1 < exit_ else exit_
            if ins.words[0] == "bra":
                to = self.target(ins)
                follows.append([number_of.get(to, exit_)] + ([falls] if ins.predicate else []))
            elif ins.words[0] == "brx":
                to_any = dict.fromkeys(number_of.get(to, exit_) for to in self.targets_of(ins))
                follows.append([*to_any] + ([falls] if ins.predicate else []))
            elif ins.words[0] == "routine":
                follows.append([falls] if ins.words[1] == "call" else [exit_])
            elif ins.words[0] in ("ret", "exit"):
                # Lanes that end here do not delay reconvergence.
                follows.append([falls] if ins.predicate else [exit_])
            else:
                follows.append([falls])
        after = _post_dominators(follows)
        self.meets = {}
        for n, at in enumerate(last):
            strict = after[n] & ~(1 << n)
            # A loop without an exit has no such block: its lanes never reconverge.
            nearest = next((m for m in range(exit_) if strict >> m & 1 and after[m] == strict), exit_)
            meet = starts[nearest] if nearest < exit_ else end
            # Lanes that branch to the kernel's last ret are at its end: they wait for no others there.
            self.meets[at] = end if meet < end and self.ends(meet) else meet
        used, killed = self._uses(starts, last)
        self._follows = follows
        self._liveness(starts, follows, used, killed)
        self._doubts(starts, last, follows, used, killed)

    def _uses(self, starts: list[int], last: list[int]) -> tuple[list[int], list[int]]:
        """Bit sets for each block: registers read before written, and registers written."""
        used, killed = [], []
        for first, at in zip(starts, last, strict=True):
            uses = kills = 0
            for pc in range(at, first - 1, -1):
                uses = uses & ~self.writes[pc] | self.reads[pc]
                kills |= self.writes[pc]
            used.append(uses)
            killed.append(kills)
        return used, killed

    def _liveness(self, starts: list[int], follows: list[list[int]], used: list[int], killed: list[int]) -> None:
        live = [0] * (len(starts) + 1)
        changed = True
        while changed:
            changed = False
            for n in range(len(starts) - 1, -1, -1):
                out = 0
                for m in follows[n]:
                    out |= live[m]
                now = used[n] | out & ~killed[n]
                if now != live[n]:
                    live[n], changed = now, True
        self.live = {pc: live[n] for n, pc in enumerate(starts)} | {self.size: 0}

    def live_after(self, pc: int) -> int:
        """The registers that are needed after an instruction, as a bit set."""
        if pc in self._live_after:
            return self._live_after[pc]
        block = bisect_right(self.leaders, pc) - 1
        starts = [*self.leaders, self.size]
        live = 0
        for m in self._follows[block]:
            live |= self.live[starts[m]]
        for at in range(starts[block + 1] - 1, pc, -1):
            live = live & ~self.writes[at] | self.reads[at]
        self._live_after[pc] = live
        return live

    def reads_before(self, pc: int, held: int, ends: Callable[[PtxInstruction], bool]) -> tuple[list[int], bool]:
        """(The first pcs that read what is written at `pc`, whether each path has one).

        held  those registers, as a bit set; a move takes their contents along
        ends  True of an instruction at which a path ends
        """
        found: list[int] = []
        todo, seen, every, starts = [(pc, held)], {(pc, held)}, True, [*self.leaders, self.size]
        while todo:
            at, held = todo.pop()
            block = bisect_right(self.leaders, at) - 1
            after = [at + 1] if at + 1 < starts[block + 1] else [starts[m] for m in self._follows[block]]
            for to in after:
                now = held
                if to < self.size and not ends(ins := self.kernel.instructions[to]):
                    moves = ins.words[0] == "mov" and ins.predicate is None and ins.operands[-1].kind == "reg"
                    if self.reads[to] & now and not moves:
                        found.append(to)
                        continue
                    now = now | self.writes[to] if self.reads[to] & now else now & ~self.writes[to]
                    if now:
                        if (to, now) not in seen:
                            seen.add((to, now))
                            todo.append((to, now))
                        continue
                every = False
        return found, every

    def _doubts(
        self, starts: list[int], last: list[int], follows: list[list[int]], used: list[int], killed: list[int]
    ) -> None:
        """Find `doubts`: for each pc, the registers it reads that may be undefined, as a bit set."""
        every = (1 << len(self.index)) - 1
        entries = {self.target(ins) for ins in self.kernel.instructions if ins.words[:2] == ("routine", "call")}
        before = [every if not pc or pc in entries else 0 for pc in [*starts, self.size]]
        self.doubts = [0] * self.size
        changed = bool(starts)
        while changed:
            changed = False
            for block in range(len(starts)):
                doubtful = before[block]
                if not doubtful & used[block]:
                    doubtful &= ~killed[block]
                else:
                    for pc in range(starts[block], last[block] + 1):
                        found = self.reads[pc] & doubtful
                        if found and self.kernel.instructions[pc].words[0] not in LEFT:
                            self.doubts[pc] = found
                            doubtful |= self.writes[pc]
                        else:
                            doubtful &= ~self.writes[pc]
                for after in follows[block]:
                    if doubtful & ~before[after]:
                        before[after] |= doubtful
                        changed = True

    # ------------------------------------------------------------ code

    def one(self, pc: int) -> Segment:
        """The arithmetic instruction at a pc, as a function of its own."""
        return _function(f"    {self.generator.statement(self.kernel.instructions[pc])}")

    def _make_steps(self) -> None:
        instructions, leaders = self.kernel.instructions, set(self.leaders)
        self.steps = [None] * self.size
        pc = 0
        while pc < self.size:
            start, lines, writes, moved = pc, [], 0, 0
            while pc < self.size and (pc == start or pc not in leaders):
                try:
                    text = self.generator.statement(instructions[pc])
                except PtxError as error:
                    self.refusals.append(str(error))
                    text = "pass"
                if text is None:
                    break
                lines.append(f"    {text}")
                writes |= self.writes[pc]
                moved = moved & ~self.writes[pc] if instructions[pc].words[0] != "mov" else moved | self.writes[pc]
                pc += 1
            if lines:
                lines = batched(self.generator, instructions[start:pc], lines)
                self.steps[start] = CodeSegment(start, pc, _function("\n".join(lines)), writes, moved)
            else:
                ins = instructions[pc]
                moved = self.writes[pc] if ins.words[0] == "wgmma" else 0
                doubtful = tuple(set_bits(self.doubts[pc]))
                try:
                    self.steps[pc] = Operation(ins, self.build(self, ins), self.writes[pc], moved, doubtful)
                except PtxError as error:
                    self.refusals.append(str(error))
                pc += 1

    def mark(self, executed: bytearray) -> None:
        """Mark the other instructions of each run of arithmetic as its first one."""
        for step in self.steps:
            if isinstance(step, CodeSegment) and executed[step.start]:
                executed[step.start : step.end] = bytes([1]) * (step.end - step.start)

    # ------------------------------------------------------------ operands of operations

    def value(self, operand: PtxOperand, kind: str, wider: bool = False) -> Reader:
        """A function of the fiber that gives an operand's bits.

        kind: a PTX type, or "address"; `wider`: its register may be. Raises ValueError for registers and literals that
        the type does not take: PTX ISA, "Operand Type Checking". Every operation reads and writes operands by a type.
        """
        self.generator.fits(operand, kind, wider, True)
        return _reader(self.generator.read(operand, "b64" if kind == "address" else kind, any_width=True))

    def address(self, operand: PtxOperand, kind: str = "address") -> Reader:
        """A function of the fiber that returns the address of `[base+offset]`; kind: of the base."""
        if operand.kind != "address":
            raise PtxError(f"{operand.text} is not an address")
        base, offset = self.value(operand.parts[0], kind), operand.offset
        if offset < 0:  # lanes' addresses are unsigned, and NumPy cannot add a negative number to them
            return lambda fiber: base(fiber) - -offset
        return (lambda fiber: base(fiber) + offset) if offset else base

    def coordinates(self, operand: PtxOperand) -> tuple[Reader, list[Reader]]:
        """The map's address and each coordinate of `[map, {x, y, ...}]`, as functions."""
        return self.address(operand), [self.value(part, "b32") for part in operand.parts[1:]]

    def _variables(self) -> list[tuple[ModuleVariable, npt.NDArray[np.uint8]]]:
        """The variables that the kernel reaches, and their first bytes."""
        named = {one.name: one for one in self.kernel.variables}
        if not named:
            return []
        reached: list[str] = []
        for ins in self.kernel.instructions:
            reached += [name for name in _SYMBOL.findall(ins.text) if name in named]
        reached = list(dict.fromkeys(reached))
        for name in reached:
            reached += [
                one.symbol for one in named[name].relocations if one.symbol in named and one.symbol not in reached
            ]
        return [(named[name], self._initial(named[name])) for name in reached]

    def _initial(self, variable: ModuleVariable) -> npt.NDArray[np.uint8]:
        """The first bytes of a variable, with the addresses in it."""
        content = bytearray(variable.content)
        for offset, size, symbol, addend, shift in variable.relocations:
            if symbol not in self.symbols:
                where = f"PTX line {variable.line}: .{variable.space} {variable.name}"
                self.refusals.append(f"{where}: its initialiser names {symbol}, which is no variable of the module")
                continue
            value = self.symbols[symbol] + addend >> 8 * shift
            content[offset : offset + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
        return np.frombuffer(content, dtype=np.uint8).copy()

    def result(self, operand: PtxOperand, kind: str, wider: bool = False) -> int:
        """The number of a written register of a type; `wider`: it may be. Raises ValueError for other operands."""
        if operand.kind != "reg":
            raise ValueError(f"cannot write to {operand.text}")
        self.generator.fits(operand, kind, wider, False)
        return self.index[operand.text]

    def targets(self, operand: PtxOperand, kind: str, wider: bool = False) -> list[int | None]:
        """The numbers of a written register or vector of a type, None for `_`. `wider`: a lone register may be."""
        parts, kind, wider = _elements(operand, kind, wider)
        return [None if part.kind == "sink" else self.result(part, kind, wider) for part in parts]

    def sources(self, operand: PtxOperand, kind: str, wider: bool = False) -> list[Reader]:
        """Functions that return the elements of a register or vector of a type. `wider`: a lone register may be."""
        parts, kind, wider = _elements(operand, kind, wider)
        return [self.value(part, kind, wider) for part in parts]


def _elements(operand: PtxOperand, kind: str, wider: bool) -> tuple[tuple[PtxOperand, ...], str, bool]:
    """The elements of an operand, their registers' type, and whether these may be wider.

    ptxas takes registers of 16 bits for vectors of smaller elements, and for all but f32 and f64 any of that width.
    """
    if operand.kind != "vector":
        return (operand,), kind, wider
    return operand.parts, kind if kind in ("f32", "f64") else f"b{max(bits_of(kind), 16)}", False


def set_bits(bits: int) -> Iterator[int]:
    """The numbers in a bit set, from the lowest."""
    while bits:
        yield (bits & -bits).bit_length() - 1
        bits &= bits - 1


_FUNCTIONS: dict[str, Segment] = {}
_KEPT = 1 << 14  # functions kept for the next program
_SCOPE: dict[str, Any] = dict(NAMES)


def _function(body: str) -> Segment:
    """The function of (R, W) with this body, cached: compiling is slow, and most runs recur."""
    if body not in _FUNCTIONS:
        if len(_FUNCTIONS) >= _KEPT:
            for old in _FUNCTIONS.values():
                linecache.cache.pop(old.__code__.co_filename, None)
            _FUNCTIONS.clear()
        # A name and an entry in linecache, so that a traceback shows the generated line.
        code, name = f"def run(R, W):\n{body}\n", f"<run {next(_NUMBERS)}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        exec(compile(code, name, "exec"), _SCOPE)
        _FUNCTIONS[body] = _SCOPE.pop("run")
    return _FUNCTIONS[body]


@lru_cache(maxsize=1 << 14)
def _reader(expression: str) -> Reader:
    """An expression of R and W as a function of the fiber."""
    text = expression.replace("R[", "fiber.registers[").replace("W.", "fiber.warp.")
    reader: Reader = eval(f"lambda fiber: {text}", {})
    return reader


def _post_dominators(follows: list[list[int]]) -> list[int]:
    """Each block's post-dominators as a bit set; a block without a successor leads to the exit."""
    count = len(follows)
    leaves, grows = {count}, True
    while grows:
        found = {n for n in range(count) if n not in leaves and not leaves.isdisjoint(follows[n])}
        leaves, grows = leaves | found, bool(found)
    follows = [to if n in leaves else [*to, count] for n, to in enumerate(follows)]
    every = (1 << count + 1) - 1
    after = [every] * count + [1 << count]
    changed = True
    while changed:
        changed = False
        for n in range(count - 1, -1, -1):
            common = every
            for m in follows[n]:
                common &= after[m]
            common |= 1 << n
            if common != after[n]:
                after[n], changed = common, True
    return after
