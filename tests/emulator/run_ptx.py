"""Run a small PTX text in the emulator: a body of instructions, buffers of NumPy arrays, and what came of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from layoutgemm.emulator.findings import Finding
from layoutgemm.emulator.machine.interpreter import Launch, Policy, PtxMachine
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.emulator.ops import build
from layoutgemm.emulator.ptx.parser import parse
from layoutgemm.emulator.ptx.program import Program

REGISTERS = {"pred": "p", "b16": "h", "b32": "r", "b64": "d", "f32": "f", "f64": "e", "b8": "b"}
COUNT = 96


@dataclass
class Result:
    """The machine after its run, and the buffers by name."""

    machine: PtxMachine
    arrays: dict[str, np.ndarray]

    @property
    def findings(self) -> list[Finding]:
        return self.machine.findings.found + self.machine.suspects.found

    @property
    def kinds(self) -> list[str]:
        """The kinds of what was found, in order."""
        return [finding.kind for finding in self.findings]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]


def module(
    body: str,
    names: Mapping[str, str],
    target: str = "sm_90a",
    shared: bool = True,
    static: int = 0,
    directives: str = "",
) -> str:
    """A PTX module whose kernel has these instructions.

    names   parameter -> type
    shared  the dynamic shared symbol `smem`; static: bytes of a second one, `fixed`
    directives  of the kernel, as .maxnreg

    Registers %p0, %b0, %h0, %r0, %d0, %f0, %e0 and on are predicates and values of 8 to 64 bits, f32 and f64. The
    parameters are loaded into registers of their own name: %a for parameter a.
    """
    parameters = ", ".join(f".param .{kind} {name}" for name, kind in names.items())
    registers = [f".reg .{kind} %{letter}<{COUNT}>;" for kind, letter in REGISTERS.items()]
    registers[-2:] = [" ".join(registers[-2:])]
    registers += [f".reg .{kind.replace('u', 'b')} %{name};" for name, kind in names.items()]
    loads = [f"ld.param.{kind} %{name}, [{name}];" for name, kind in names.items()]
    symbols = ".extern .shared .align 1024 .b8 smem[];\n" if shared else ""
    fixed = f".shared .align 16 .b8 fixed[{static}];" if static else ""
    head = f".version 8.7\n.target {target}\n.address_size 64\n{symbols}"
    lines = [*registers, fixed, *loads, body]
    return f"{head}.visible .entry kernel({parameters}) {directives}\n{{\n" + "\n".join(lines) + "\nret;\n}\n"


@lru_cache(maxsize=64)
def program(ptx: str) -> Program:
    """The text's kernel, loaded once: a test that changes how programs are made clears this cache."""
    return Program(parse(ptx)[0], build)


def run(
    body: str,
    buffers: Mapping[str, np.ndarray] | None = None,
    *,
    block: int | tuple[int, int, int] = 32,
    grid: int | tuple[int, int, int] = 1,
    cluster: int = 1,
    shared: int = 0,
    policy: Policy | None = None,
    target: str = "sm_90a",
    static: int = 0,
    directives: str = "",
    **scalars: int,
) -> Result:
    """Run instructions, or a whole module, over these buffers (in place).

    buffers  each is a .u64 parameter of its name, the address; scalars are .u32 parameters after them
    """
    buffers = dict(buffers or {})
    names = {**dict.fromkeys(buffers, "u64"), **dict.fromkeys(scalars, "u32")}
    text = body if ".entry" in body else module(body, names, target, True, static, directives)
    memory = GlobalMemory()
    addresses = [memory.add(name, array).address for name, array in buffers.items()]
    parameters = struct.pack(f"<{len(addresses)}Q{len(scalars)}I", *addresses, *scalars.values())
    triple = [(x, 1, 1) if isinstance(x, int) else x for x in (grid, block)]
    launch = Launch(triple[0], triple[1], parameters, memory, (cluster, 1, 1), shared)
    return Result(PtxMachine(program(text), launch, policy).run(), buffers)


def lanes(kind: Any, of: Any = None) -> np.ndarray:
    """32 values, zeros unless given."""
    return np.zeros(32, kind) if of is None else np.array(of, kind)


# What every test of a value does first: %d0 is the lane's place in buffer a, of 4-byte elements; %r31 the lane.
LANE = "mov.u32 %r31, %tid.x; mul.wide.u32 %d31, %r31, 4;"
