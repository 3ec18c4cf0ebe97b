"""multimem: loads that reduce over all devices. Its stores and reductions reach all of them.

An address of a multicast window (`host/multicast.py`) stands for the same bytes of each device. PTX leaves the order of
the devices open: here it is that of the ranks. Sums of narrow floats are kept in float32 and rounded once, which has at
least the precision that `.acc` asks for.

PTX ISA, "multimem.ld_reduce, multimem.st, multimem.red".
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ...dtypes import dtype
from ...errors import EmulatorError
from ..machine.interpreter import Fiber
from ..machine.memory import GlobalMemory
from ..ptx.parser import PtxInstruction
from ..ptx.program import Program, Run
from .flags import release_at
from .memory import UNSIGNED, assign, lanewise, signed_to, updater
from .registry import operation, taken

# A register of a packed type: its elements' type, and how many it has.
_PACKED = {"f16x2": ("f16", 2), "bf16x2": ("bf16", 2), "e4m3x4": ("e4m3", 4), "e5m2x4": ("e5m2", 4)}
_FLOATS = ("f16", "bf16", "f32", "f64", "e4m3", "e5m2")
_WHOLE = {"b32": 4, "u32": 4, "s32": 4, "b64": 8, "u64": 8, "s64": 8}
_SCOPES = ("cta", "cluster", "gpu", "sys")
_REDUCTIONS = ("add", "min", "max", "and", "or", "xor")
Bytes = npt.NDArray[np.uint8]


class MultimemForm:
    """The words of a multimem instruction.

    what    "ld_reduce", "st" or "red"
    name    of the reduction, "" of a store
    kind    of an element; packs: elements of a register; bytes: of a register
    count   registers of the vector
    """

    def __init__(self, ins: PtxInstruction) -> None:
        self.what, self.name, self.count = ins.words[1], "", 1
        kind = ins.words[-1]
        self.kind, self.packs = _PACKED.get(kind, (kind, 1))
        if self.what not in ("ld_reduce", "st", "red") or (self.kind not in _FLOATS and self.kind not in _WHOLE):
            raise ValueError(f"multimem.{self.what} of {kind} is not emulated")
        self.bytes = self.packs * (_WHOLE[self.kind] if self.kind in _WHOLE else dtype(self.kind).bits // 8)
        self.releases = "release" in ins.words
        for word in ins.words[2:-1]:
            if word in _REDUCTIONS:
                self.name = word
            elif word in ("v2", "v4", "v8"):
                self.count = int(word[1:])
            elif word not in ("weak", "relaxed", "acquire", "release", "global", *_SCOPES, "acc::f32", "acc::f16"):
                raise ValueError(f".{word} is not emulated")
        if bool(self.name) == (self.what == "st"):
            raise ValueError(f"multimem.{self.what} {'with' if self.name else 'without'} a reduction")
        if self.name in ("and", "or", "xor") and self.kind in _FLOATS:
            raise ValueError(f".{self.name} of floats")

    def combined(self, parts: list[Bytes]) -> Bytes:
        """The reduction of the same bytes of several devices."""
        if self.kind in _WHOLE:
            update, words = updater(self.name, self.kind), [part.view(UNSIGNED[self.bytes]) for part in parts]
            out = words[0].copy()
            for word in words[1:]:
                out[:] = [update(int(old), int(new), 0) for old, new in zip(out, word, strict=True)]
            return out.view(np.uint8)
        form = dtype(self.kind)
        wide = np.float64 if self.kind == "f64" else np.float32
        values = [np.asarray(form.decode(part.view(form.storage))).astype(wide) for part in parts]
        total = values[0]
        reduce = {"add": np.add, "min": np.fmin, "max": np.fmax}[self.name]
        with np.errstate(all="ignore"):
            for one in values[1:]:
                total = reduce(total, one)
        return np.ascontiguousarray(form.encode(total)).view(np.uint8)


def _replicas(memory: GlobalMemory, address: int, size: int, ins: PtxInstruction) -> list[Bytes]:
    """The bytes on each device. Raises EmulatorError for an address that is no multicast one, or not aligned."""
    if address % size:
        raise EmulatorError(f"global address {address:#x} is not a multiple of the access's {size} bytes")
    buffer, first = memory.find(address, size)
    found = memory.replicas(buffer)
    if found is None:
        raise EmulatorError(f"{ins.opcode} at {address:#x} in {buffer.name}, which is no multicast address")
    return [part[first : first + size] for part in found]


def _aliases(memory: GlobalMemory, parts: list[Bytes]) -> Iterator[int]:
    """Addresses of these bytes in a kernel's own memory, where it may wait."""
    places = [part.__array_interface__["data"][0] for part in parts]
    for buffer in (*memory.buffers, *memory.followed):
        low = buffer.data.__array_interface__["data"][0]
        for place in places:
            if low <= place < low + len(buffer.data):
                yield buffer.address + place - low


@operation("multimem", guards=True, operands=2)
def multimem(program: Program, ins: PtxInstruction) -> Run:
    """multimem.ld_reduce, .st and .red, lane by lane."""
    form = MultimemForm(ins)
    loads = form.what == "ld_reduce"
    kind = form.kind if form.packs == 1 else f"b{8 * form.bytes}"
    targets = program.targets(ins.operands[0], kind) if loads else []
    sources = [] if loads else program.sources(ins.operands[1], kind)
    address, lanes_of, after = program.address(ins.operands[1 if loads else 0]), taken(program, ins), ins.pc + 1
    size, unit = form.bytes * form.count, UNSIGNED[form.bytes]
    if len(targets if loads else sources) != form.count:
        raise ValueError(f"{ins.opcode} with another number of registers than {form.count}")

    def go(fiber: Fiber) -> int | None:
        lanes = lanes_of(fiber)
        if not lanes:
            return after
        memory = fiber.machine.launch.memory
        places = [
            _replicas(memory, int(one), size, ins) for one in lanewise(address(fiber), lanes).astype(np.int64).tolist()
        ]
        if loads:
            fiber.machine.counts.bytes["global read"] += size * len(places)
            words = np.stack([form.combined(parts) for parts in places]).view(unit)
            for at, register in enumerate(targets):
                if register is not None:
                    assign(fiber, register, lanes, signed_to(words[:, at], form.kind, 8 * form.bytes))
            return None
        fiber.machine.counts.bytes["global write"] += size * len(places)
        given = np.stack([lanewise(source(fiber), lanes).astype(unit) for source in sources], axis=1)
        for parts, values in zip(places, given.view(np.uint8).reshape(len(places), size), strict=True):
            if form.releases:
                release_at(fiber, np.array(list(_aliases(memory, parts)), np.int64))
            for part in parts:
                part[:] = form.combined([part, values]) if form.name else values
        return None

    return go
