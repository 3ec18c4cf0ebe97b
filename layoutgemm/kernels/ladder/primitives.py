"""The Blackwell primitives: a kernel on arrays, compiled and emulated, and its shared memory.

A primitive's program is one file of the root folder `kernels`: a kernel object and the expected arrays. Its `@cute.jit
__call__` takes the addresses of arrays and a stream. No device of this architecture is needed, and none has run them.
The emulator executes the compiled PTX in several orders of events, and requires every wait and fence of tensor memory
that PTX requires.

    emulate("alloc", Allocate(), {"out": out})      # out is now what the kernel wrote, or EmulatorError is raised
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...emulator.api import ORDERS, Emulation, emulate_host
from ...errors import EmulatorError
from ..compile import cache as object_cache
from ..compile.compiler import CompiledGemm, compile_kernel
from ..run.emulated import host_of

ARCH = "sm_100a"


@dataclass(frozen=True)
class Regions:
    """Named pieces of a CTA's shared memory, in bytes, one after another, aligned.

    `kernels.dsl.tcgen05.SharedRegions` turns names into addresses.

    >>> regions = Regions.of(a=(16384, 1024), loaded=(8, 8), slot=(4, 8))
    >>> regions["slot"], regions.total
    (16392, 16396)
    """

    pieces: tuple[tuple[str, int], ...]
    total: int
    alignment: int = 1024

    @classmethod
    def of(cls, **pieces: tuple[int, int]) -> Regions:
        """From name = (bytes, alignment), in order."""
        placed, end = [], 0
        for name, (size, alignment) in pieces.items():
            first = -(-end // alignment) * alignment
            placed.append((name, first))
            end = first + size
        return cls(tuple(placed), end)

    def __getitem__(self, name: str) -> int:
        return dict(self.pieces)[name]


@dataclass(frozen=True)
class Primitive:
    """One kernel and the names of the arrays that its launch takes."""

    name: str
    kernel: Any
    arrays: tuple[str, ...]

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of the host function, as in a plan."""
        return dict.fromkeys(self.arrays, "address")

    def compile(self) -> CompiledGemm:
        """Compile for sm_100a, or take it from the cache; needs the DSL and no GPU."""
        facts = {
            "primitive": self.name,
            "kernel": object_cache.facts_of(vars(self.kernel)),
            "program": hashlib.sha256(Path(inspect.getfile(type(self.kernel))).read_bytes()).hexdigest(),
        }
        return compile_kernel(self.kernel, ARCH, facts, self)


def emulate(name: str, kernel: object, arrays: Mapping[str, np.ndarray], orders: int = 3) -> Emulation:
    """Run a kernel's launch on the arrays in several orders of events. They hold what it wrote, the same in each.

    name    of the kernel, unique in its program, for the cache of compiled kernels
    arrays  in the order of the host function's parameters
    orders  how many of `emulator.api.ORDERS`

    Raises EmulatorError with the report when anything is found, or when two orders give different bits.
    """
    host = host_of(Primitive(name, kernel, tuple(arrays)).compile())
    policies = [replace(order, tensor_strict=True) for order in ORDERS[:orders]]
    done = emulate_host(host, tuple(arrays.values()), policy=policies, progress=False)
    return done.raise_for_findings()


def right(name: str, have: np.ndarray, want: np.ndarray, said: str) -> None:
    """Print the check, or raise EmulatorError with the first wrong element."""
    wrong = np.argwhere(have != want)
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        raise EmulatorError(f"{name}: {len(wrong)} elements are wrong; {at} is {have[at]}, should be {want[at]}")
    print(f"{name}: {said}", flush=True)
