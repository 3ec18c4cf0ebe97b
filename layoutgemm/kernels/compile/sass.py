"""The compiler's output for a kernel: instructions, registers, local memory, overlap of wgmmas.

Reads a cubin with NVIDIA's own tools, nvdisasm and cuobjdump, which the `dsl` extra installs. Needs neither a GPU nor
the CuTe DSL. Machine code is not documented; these facts were read off kernels made right and wrong on purpose:

    HGMMA ...            one wgmma.mma_async; `gsb0` among its operands closes a commit group
    HGMMA ... RZ, ...    a commit group without a wgmma in it: the compiler invents an HGMMA that writes nowhere
    WARPGROUP.ARRIVE     wgmma.fence
    WARPGROUP.DEPBAR     wgmma.wait_group
    UTMALDG              one cp.async.bulk.tensor load
    STL, LDL             local memory: a register spilled, or an array indexed at run time
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...errors import PlanError
from . import cache as object_cache

_INSTRUCTION = re.compile(
    r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:(?P<predicate>@!?U?P[T0-9]+)\s+)?(?P<opcode>[A-Z][A-Za-z0-9_.]*)(?P<operands>[^;]*);"
)
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
_LOCAL_MEMORY = ("STL", "LDL")
_FOLDER, _TEXT = "code", "said.txt"  # of the cache


# wgmma.mma_async of 16-bit floats and tf32, of 8-bit floats, of integers, of bits.
WGMMA = ("HGMMA", "QGMMA", "IGMMA", "BGMMA")


@dataclass(frozen=True, slots=True)
class SassInstruction:
    """One machine instruction. Address in bytes, guarding predicate or "", opcode with modifiers, operands as text."""

    address: int
    predicate: str
    opcode: str
    operands: str

    @property
    def base(self) -> str:
        """The opcode without modifiers.

        >>> SassInstruction(0xA60, "", "HGMMA.64x64x16.F32.BF16", "R24, gdesc[UR12].tnspB, R24, UP0").base
        'HGMMA'
        """
        return self.opcode.partition(".")[0]

    def __str__(self) -> str:
        words = (f"{self.address:#06x}:", self.predicate, self.opcode, self.operands)
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class Sass:
    """A kernel's machine code, parsed from nvdisasm's listing.

    >>> sass = Sass("/*0010*/ @!P0 BRA `(.L_x_1) ;\\n/*0020*/ STG.E [R2], R4 ;")
    >>> [str(i) for i in sass.instructions], sass.count("STG"), sass.local_memory
    (['0x0010: @!P0 BRA `(.L_x_1)', '0x0020: STG.E [R2], R4'], 1, ())
    """

    text: str

    @cached_property
    def instructions(self) -> tuple[SassInstruction, ...]:
        """Every instruction, in address order within each kernel."""
        found = (_INSTRUCTION.match(line) for line in self.text.splitlines())
        return tuple(
            SassInstruction(int(m["address"], 16), m["predicate"] or "", m["opcode"], m["operands"].strip())
            for m in found
            if m
        )

    @cached_property
    def counts(self) -> Counter[str]:
        """The count of each opcode, without modifiers."""
        return Counter(instruction.base for instruction in self.instructions)

    def count(self, base: str) -> int:
        """The count of the opcode `base`, with any modifiers."""
        return self.counts[base]

    @property
    def local_memory(self) -> tuple[SassInstruction, ...]:
        """Loads and stores of local memory. Spilled registers, or arrays that did not fit into registers."""
        return tuple(i for i in self.instructions if i.base in _LOCAL_MEMORY)

    @property
    def wgmma_runs(self) -> tuple[int, ...]:
        """Lengths of the runs of wgmmas between which nothing waits or fences, in address order.

        A kernel whose k tile holds four K blocks has runs of 4. The compiler may insert a wait and a fence after every
        single wgmma (its remark C7510), in silence and at a third of the speed: the runs are then 1, 1, 1, 1.

        >>> wgmma, wait, fence = "HGMMA R24, gdesc[UR4]", "WARPGROUP.DEPBAR.LE gsb0, 0x0", "WARPGROUP.ARRIVE"
        >>> lines = [fence, wgmma, wgmma, wait, fence, wgmma, wait]
        >>> Sass("\\n".join(f"/*{16 * i:04x}*/ {line} ;" for i, line in enumerate(lines))).wgmma_runs
        (2, 1)
        """
        runs, run = [], 0
        for instruction in self.instructions:
            if instruction.base in WGMMA and not instruction.operands.startswith("RZ"):
                run += 1
            elif instruction.base == "WARPGROUP" and run:
                runs.append(run)
                run = 0
        return tuple([*runs, run] if run else runs)

    def serialised_wgmma(self, per_k_tile: int) -> str | None:
        """Why the wgmmas do not overlap as the source says, or None. Every run must hold whole k tiles.

        per_k_tile  wgmmas that one warpgroup issues for one k tile, without waiting in between
        """
        runs = self.wgmma_runs
        if not runs:
            return f"there is no {', '.join(WGMMA)}"
        if all(run % per_k_tile == 0 for run in runs):
            return None
        return f"runs of {', '.join(map(str, runs))} wgmmas without a wait or fence inside; a k tile has {per_k_tile}"


@dataclass(frozen=True, slots=True)
class Resources:
    """A kernel's resources, from the cubin.

    registers      32-bit registers a thread
    stack_bytes    stack a thread
    local_bytes    local memory a thread
    """

    registers: int
    stack_bytes: int
    local_bytes: int


def disassemble(cubin: bytes) -> Sass:
    """The machine code of a cubin. Raises PlanError when nvdisasm is absent or refuses the file."""
    return Sass(_run("nvdisasm", ["-c", "-ndf"], cubin))  # without its data-flow analysis, which changes no line


def resources(cubin: bytes) -> Resources:
    """Registers, stack and memory of the cubin's kernel, of several the most of each.

    Raises PlanError when cuobjdump is absent or says none.
    """
    text = _run("cuobjdump", ["-res-usage"], cubin)
    found = _RESOURCES.findall(text)
    if not found:
        raise PlanError(f"the cubin has no kernel; cuobjdump -res-usage said:\n{text}")
    return Resources(*[max(map(int, each)) for each in zip(*found, strict=True)])


@functools.cache
def find_tool(name: str) -> Path:
    """The path of nvdisasm or cuobjdump: the `dsl` extra's packages, CUDA_HOME, CUDA_PATH, then PATH.

    Raises PlanError that says how to install it.
    """
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations if spec and spec.submodule_search_locations else ()
    folders = [folder for root in roots for folder in sorted(Path(root).glob("*/bin"), reverse=True)]
    folders += [Path(os.environ[key]) / "bin" for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    for path in (*map(str, folders), None):
        found = shutil.which(name, path=path)
        if found:
            return Path(found)
    raise PlanError(
        f"{name} is not here: pip install 'layoutgemm[dsl]' (Linux) brings it, as the package nvidia-cuda-{name}; a "
        "CUDA toolkit has it too, found through CUDA_HOME or PATH"
    )


def _run(name: str, options: list[str], cubin: bytes) -> str:
    """A tool's output for a cubin, cached: it takes most of a second."""
    tool = find_tool(name)
    made = tool.stat()
    facts = {
        "tool": [str(tool), made.st_size, made.st_mtime_ns],
        "options": options,
        "cubin": hashlib.sha256(cubin).hexdigest(),
    }
    if (kept := object_cache.read(facts, (_TEXT,), _FOLDER)) is not None:
        return kept[_TEXT].decode()
    with tempfile.TemporaryDirectory(prefix="layoutgemm-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([str(tool), *options, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PlanError(f"{tool} {' '.join(options)} failed with {done.returncode}: {done.stderr.strip()}")
    object_cache.write(facts, {_TEXT: done.stdout.encode()}, _FOLDER)
    return done.stdout
