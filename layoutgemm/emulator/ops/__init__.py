"""Semantics of instructions that touch memory or other threads, one module for each family.

A module registers *builders*. A builder is called once for each instruction when a kernel is loaded. It reads the
operands and the words of the opcode, refuses unknown ones, and returns the operation: a function of the fiber with the
results that `interpreter.py` lists. So all decoding is done before the first cycle, and an unknown instruction is an
error at load, with its line.

memory, local, heap      loads, stores and atomics; a thread's own memory; malloc and free
copy, mma, tcgen05       copies between memories; products of warps and warpgroups; Blackwell's tensor core
barrier, launch_control  barriers and fences; clusters that take over others
multimem, flags          all devices at once; words by which threads signal
textures                 loads, stores and questions of textures and surfaces
swizzles                 the swizzle that wrote a tile against the one that reads it
warp, control            shuffles, votes, setmaxnreg; branches and exits
calls, routines, stack   functions without a body; functions that reach themselves; alloca
in_flight                registers that an asynchronous instruction owns
deadlock_causes          why a barrier never completes
registry, spellings      registration; the words of each instruction
"""

from __future__ import annotations

from importlib import import_module

from ...errors import PtxError
from ..ptx.codegen import UNREADABLE
from ..ptx.parser import PtxInstruction, PtxKernel
from ..ptx.program import Program, Run
from .registry import BUILDERS, COUNTS, GUARDS, HINT, counted, guarded
from .spellings import check_spelling, check_words

MODULES = (
    "barrier", "calls", "control", "launch_control", "memory", "multimem", "routines", "stack",
    "textures", "warp",
    "copy.bulk", "copy.bulk_groups", "copy.cp_async", "copy.ldmatrix", "copy.tensormap", "copy.tma",
    "mma.sync", "mma.wgmma", "mma.wmma", "tcgen05.allocation", "tcgen05.copy", "tcgen05.mma", "tcgen05.shift",
)  # fmt: skip
for _module in MODULES:
    import_module(f"{__name__}.{_module}")


_PROGRAMS: dict[int, Program] = {}
_KEPT = 32


def program_of(kernel: PtxKernel) -> Program:
    """The kernel made ready to run, cached. Raises PtxError for an unknown instruction."""
    found = _PROGRAMS.get(id(kernel))
    if found is None or found.kernel is not kernel:
        if len(_PROGRAMS) >= _KEPT:
            del _PROGRAMS[next(iter(_PROGRAMS))]
        found = _PROGRAMS[id(kernel)] = Program(kernel, build)
    return found


def build(program: Program, ins: PtxInstruction) -> Run:
    """The operation of an instruction. Raises PtxError, with the line, for an unknown one."""
    for length in range(len(ins.words), 0, -1):
        name = ".".join(ins.words[:length])
        builder = BUILDERS.get(name)
        if builder is not None:
            try:
                check_spelling(ins, program.kernel.target)
                counted(ins, COUNTS.get(name, len(ins.operands)))
                run = builder(program, ins)
                if HINT in ins.words:
                    program.value(ins.operands[-1], "u64")
                check_words(ins, program.kernel.target)
            except UNREADABLE as error:
                raise PtxError(f"{ins.where}: {ins.text}: {error}") from None
            return run if ins.predicate is None or name in GUARDS else guarded(program, ins, run)
    known = "; .sync and a member mask come with sm_70" if ins.words[0] in ("shfl", "vote") else ""
    raise PtxError(f"{ins.where}: {ins.text}: the emulator does not know {ins.opcode}{known}")
