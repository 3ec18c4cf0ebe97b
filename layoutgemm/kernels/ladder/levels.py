"""The ladder's harness: compiles, proves, emulates, checks and times each level of kernels/.

A level is a kernel object with the host function

    @cute.jit
    def __call__(self, a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32,
                 lda: Int64, ldb: Int64, ldc: Int64, stream: bridge.Stream) -> None

and a method `check()` that gives a `Report` of what was proven about it. A is (M, K) and B, given as (N, K), are bf16
with K contiguous; C is (M, N) with N contiguous. lda, ldb and ldc are elements from row to row; lda and ldb, and ldc of
a bf16 C, are multiples of 8. All sizes are run-time arguments: one compile serves them all. A level that stores C by
tensor copies owns the pitch of C up to the next 16 bytes, of its last line too: the hardware writes them.

    LEVELS = (Level(3, "TMA and wgmma", TmaKernel(), guide=230),)
    if __name__ == "__main__":
        raise SystemExit(levels.main(LEVELS))
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...arch import Arch, arch
from ...arguments import shown
from ...atoms import MmaAtom, SmemTile, TmaPlan, smem_tile, wgmma
from ...atoms.smem.descriptor import derive as derive_descriptor
from ...atoms.tma.derive import derive as derive_tma
from ...atoms.tma.multicast import shared_out
from ...atoms.tma.rules import STRIDE_UNIT
from ...checks import Pipeline, check_pipeline, shared_memory
from ...dtypes import DType, bf16, f32
from ...emulator.api import Emulation, Orders, emulate_host
from ...emulator.machine.launch import Policy
from ...errors import EmulatorError, PlanError
from ...layouts import CounterExample, Proof, Undecided
from ...report import Check, Report
from ..compile import cache as object_cache
from ..compile.compiler import CompiledGemm, compile_kernel, require_gpu
from ..derive import OperandPlan, padded_leading
from ..plan import ALL_SHARED as ALL_SHARED
from ..plan import tile_count
from ..plan_checks import fragment_checks, operand_checks
from ..run.emulated import host_of
from ..run.torch_tensors import gpu_for
from ..teaching.plan import BARRIER_BYTES, PARAMETERS
from . import on_gpu as gpu

ARCH = arch("sm_90a")
tiles = tile_count  # as the programs call it
# Emulated where there is no GPU: every edge ragged, more k tiles than one round through a ring of four has.
SMALL = (200, 136, 328)
# Checked on a GPU before anything is timed: whole tiles; ragged edges; odd K, and fewer k tiles than stages.
CHECKED = ((1024, 1024, 1024), (1000, 1037, 1100), (264, 392, 77))
SIZE = 8192


@dataclass(frozen=True)
class Level:
    """One level of the ladder, or one variant of it.

    number  of the level in the guide, 1 to 11; 12 is ours
    name    what it is, unique among the levels
    kernel  the kernel object; what it holds is a compile-time constant
    guide   TFLOP/s at 8192^3 that the guide gives for the level; None where it has none
    c       the output's type, f32 or bf16
    target  the architecture it is compiled for
    """

    number: int
    name: str
    kernel: Any
    guide: float | None
    c: DType = f32
    target: str = ARCH.name
    parameters = PARAMETERS

    @property
    def arch(self) -> Arch:
        """The architecture, as plans name it."""
        return arch(self.target)

    @property
    def program(self) -> Path:
        """The file of the kernel."""
        return Path(inspect.getfile(type(self.kernel)))

    def check(self) -> Report:
        """All that the program proves of itself."""
        return self.kernel.check()

    def compile(self) -> CompiledGemm:
        """Compile for the target, or take it from the cache. Needs the DSL and no GPU."""
        memo = _COMPILED.get(id(self))
        if memo is not None and memo[0] is self:
            return memo[1]
        facts = {
            "level": self.name,
            "kernel": object_cache.facts_of(vars(self.kernel)),
            "program": hashlib.sha256(self.program.read_bytes()).hexdigest(),
        }
        compiled = compile_kernel(self.kernel, self.arch.name, facts, self)
        _COMPILED[id(self)] = (self, compiled)
        return compiled

    @property
    def store(self) -> TmaPlan | None:
        """The tensor copies by which the kernel stores C. None where its threads store their own elements."""
        found = [value for value in vars(self.kernel).values() if isinstance(value, TmaPlan)]
        return next((plan for plan in found if plan.operation == "store"), None)

    @property
    def whole_units(self) -> bool:
        """True if lines of C are written in whole units of 16 bytes. The pitch up to the next one is the level's."""
        return self.store is not None

    def written(self, n: int) -> int:
        """The columns that the level may write of `n` columns, in whole 16 bytes."""
        return n + (self.store.line_overrun(n) if self.store is not None else 0)

    def leading(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """lda, ldb, ldc that the harness gives: the smallest that tensor copies take. An f32 C has no pitch.

        Where the level owns a part of C's pitch, C has 16 bytes more, which it must leave alone.
        """
        pitch = padded_leading(bf16, k)
        spare = STRIDE_UNIT // self.c.bytes if self.written(n) > n else 0
        return pitch, pitch, n if self.c == f32 else padded_leading(self.c, n) + spare

    def emulate(self, m: int, n: int, k: int, orders: Orders = None) -> Emulation:
        """Run the compiled kernel in the race-detecting emulator on small integers, whose sums are exact.

        Raises EmulatorError with the report when anything is found, or when an element of C is not the exact product,
        rounded to C's type. What lies between the rows of C must stay as it was, but for what the level owns of it.
        """
        host = host_of(self.compile())
        lda, ldb, ldc = self.leading(m, n, k)
        rng = np.random.default_rng(m * n + k)
        a, b = (_matrix(rng, rows, k, leading) for rows, leading in ((m, lda), (n, ldb)))
        want = np.full((m, ldc), np.nan, dtype=np.float32)
        words = self.c.encode(want)
        want[:, :n] = a[:, :k] @ b[:, :k].T
        given = (bf16.encode(a), bf16.encode(b), words)
        done = emulate_host(host, (*given, m, n, k, lda, ldb, ldc), policy=self.orders(orders), progress=False)
        done.raise_for_findings()
        differs = words != self.c.encode(want)
        differs[:, n : self.written(n)] = False
        wrong = np.argwhere(differs)
        if len(wrong):
            row, column = (int(i) for i in wrong[0])
            got = float(np.asarray(self.c.decode(words))[row, column])
            raise EmulatorError(
                f"{self}: {len(wrong)} elements of C are wrong; C[{row}, {column}] is {got}, not {want[row, column]}"
            )
        return done

    def orders(self, orders: Orders) -> Orders:
        """The same orders of execution, without reports of writes into the level's own pitch."""
        if not self.whole_units:
            return orders
        if orders is None or isinstance(orders, Policy):
            return replace(orders or Policy(), edges=False)
        return [replace(order, edges=False) for order in orders]

    def __str__(self) -> str:
        return f"level {self.number}, {self.name}"


_COMPILED: dict[int, tuple[Level, CompiledGemm]] = {}


def _matrix(rng: np.random.Generator, rows: int, k: int, leading: int) -> npt.NDArray[np.float32]:
    """Small integers, and NaN beyond K to expose kernels that multiply elements there."""
    out = np.full((rows, leading), np.nan, dtype=np.float32)
    out[:, :k] = rng.integers(-3, 4, size=(rows, k))
    return out


# ---------------------------------------------------------------------------------------------- what levels are made of


def operand(
    name: str, rows: int, depth: int, mma: MmaAtom, *, multicast: int = 1, major: str = "K", swizzle: str | None = None
) -> OperandPlan:
    """A bf16 operand of wgmma. It has the tile in shared memory, the copy that fills it, and the descriptor that reads
    it.

    name       "A" or "B"
    rows       of the tile, along M or N
    depth      of the tile, along K
    multicast  blocks of the cluster that share the tile
    major      the contiguous dimension in both memories: "K" for A (M, K) and B (N, K), "MN" for A (K, M) and B (K, N)
    swizzle    "128B", "64B", "32B" or "none"; None for the widest whose span divides the contiguous dimension

    An A that `mma` takes from registers lies in the same tile; its descriptor is that of wgmma with A in shared memory.

    Raises PlanError for another name or major, AtomError for another swizzle.

    >>> from layoutgemm.atoms import wgmma
    >>> a = operand("A", 128, 64, wgmma(256, "bf16"))
    >>> print(a.smem, a.tma.box, hex(a.descriptor.word))
    S<3,4,3>[bytes] o ((8,16),(64,1)):((64,512),(1,0)) x bf16 (64, 128) 0x4000004000010000
    >>> turned = operand("B", 128, 64, wgmma(128, "bf16"), major="MN")
    >>> turned.order, turned.tma.dims, turned.tma.box
    ('row', ('n', 'k'), (64, 64))
    >>> operand("A", 64, 64, wgmma(64, "bf16"), swizzle="64B").tma.box
    (32, 64)
    """
    if name not in ("A", "B") or major not in ("K", "MN"):
        raise PlanError(f"operand({shown(name)}, major={shown(major)}): a name is A or B, and a major K or MN")
    tile, along = smem_tile((rows, depth), bf16, major, swizzle), "m" if name == "A" else "n"
    copies = shared_out(derive_tma(tile, ("k", along) if major == "K" else (along, "k")), multicast)
    order = "row" if (name == "A") == (major == "K") else "col"
    return OperandPlan(name, bf16, order, major, tile, copies, derive_descriptor(tile, from_shared(mma), name))


def from_shared(mma: MmaAtom) -> MmaAtom:
    """The same wgmma with A in shared memory."""
    if mma.a_source == "smem":
        return mma
    return wgmma(int(mma.shape_mnk[1]), mma.a_dtype, mma.b_dtype, mma.c_dtype)


@dataclass(frozen=True, slots=True)
class SharedMap:
    """The map of a CTA's shared memory, in bytes: stages, buffers of C, barriers.

    `bridge.SharedMemory` turns it into addresses. full[s] and empty[s] are `barrier_bytes` apart.
    """

    stages: int
    a_offset: int
    a_stage_bytes: int
    b_offset: int
    b_stage_bytes: int
    c_offset: int
    c_buffer_bytes: int
    c_buffers: int
    barrier_offset: int
    empty_offset: int
    barrier_bytes: int
    total: int
    alignment: int

    @classmethod
    def of(cls, a: SmemTile, b: SmemTile, stages: int, c: SmemTile | None = None, c_buffers: int = 0) -> SharedMap:
        """Tiles one after another, each stage aligned as its tile asks. Then two barriers a stage.

        >>> tile = smem_tile((64, 64), "bf16", "K")
        >>> SharedMap.of(tile, tile, stages=4).total
        65600
        """

        def up(value: int, unit: int) -> int:
            return -(-value // unit) * unit

        a_stage, b_stage = up(a.bytes, a.alignment), up(b.bytes, b.alignment)
        b_offset = up(stages * a_stage, b.alignment)
        c_offset = end = b_offset + stages * b_stage
        c_bytes = 0
        if c is not None:
            c_offset, c_bytes = up(end, c.alignment), up(c.bytes, c.alignment)
            end = c_offset + c_buffers * c_bytes
        return cls(
            stages=stages,
            a_offset=0, a_stage_bytes=a_stage,
            b_offset=b_offset, b_stage_bytes=b_stage,
            c_offset=c_offset, c_buffer_bytes=c_bytes, c_buffers=c_buffers,
            barrier_offset=end, empty_offset=end + stages * BARRIER_BYTES, barrier_bytes=BARRIER_BYTES,
            total=end + 2 * stages * BARRIER_BYTES,
            alignment=max(tile.alignment for tile in (a, b, c) if tile is not None),
        )  # fmt: skip

    def parts(self) -> dict[str, int]:
        """Name -> bytes, for the budget."""
        named = {
            f"{self.stages} stages of A": self.stages * self.a_stage_bytes,
            f"{self.stages} stages of B": self.stages * self.b_stage_bytes,
            f"{self.c_buffers} buffers of C": self.c_buffers * self.c_buffer_bytes,
        }
        parts = {name: size for name, size in named.items() if size}
        return {**parts, "barriers and gaps": self.total - sum(parts.values())}


def proven(name: str, statement: str, verdict: Proof | CounterExample | Undecided) -> Check:
    """A verdict as a line of a report."""
    method = verdict.method if isinstance(verdict, (Proof, CounterExample)) else "undecided"
    return Check(name, statement, bool(verdict), method, "" if verdict else verdict.explain())


def wgmma_report(
    mma: MmaAtom,
    a: OperandPlan,
    b: OperandPlan,
    smem: SharedMap,
    pipeline: Pipeline | None,
    *more: Check | None,
    blocks_per_sm: int = 1,
) -> Report:
    """Checks of every wgmma level: operands, fragment map, shared memory, pipeline. Then `more`, but for None.

    Loads of an A in registers have checks of their own: `load_checks`.
    """
    checks = [*operand_checks(a, from_shared(mma)), *operand_checks(b, mma), *fragment_checks(mma)]
    checks.append(shared_memory(ARCH, smem.parts(), blocks_per_sm))
    if pipeline is not None:
        checks.append(check_pipeline(pipeline))
    return Report((*checks, *[check for check in more if check is not None]))


# -------------------------------------------------------------------------------------------------------- the program


def load(path: str | Path) -> tuple[Level, ...]:
    """The levels of a program: its `LEVELS`. Raises PlanError where it has none."""
    path = Path(path)
    spec = importlib.util.spec_from_file_location(f"layoutgemm_ladder_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise PlanError(f"{path} is no Python program")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the DSL looks a kernel's source up through its module
    spec.loader.exec_module(module)
    levels = getattr(module, "LEVELS", None)
    if not levels:
        raise PlanError(f"{path} has no LEVELS")
    return tuple(levels)


def gpu_here(level: Level) -> tuple[bool, str]:
    """Is there a GPU that can run the level? (verdict, the reason); torch is asked only where CUDA finds one."""
    try:
        require_gpu()
    except PlanError as error:
        return False, str(error).partition(". ")[0]
    return gpu_for(level)


def main(
    levels: Sequence[Level],
    argv: Sequence[str] | None = None,
    checked_sizes: Sequence[tuple[int, int, int]] = CHECKED,
    size: int = SIZE,
) -> int:
    """A level's program: prove, then check and time on a GPU, or emulate without one. Gives the exit status.

    checked_sizes    what is checked on a GPU before anything is timed
    size             what is timed there, cubed

    --size N         time N x N x N
    --emulate M N K  emulate that size, also where there is a GPU
    --check          check, the size to time included, and do not time
    """
    parser = argparse.ArgumentParser(description="Check this level and time it against torch.mm.")
    parser.add_argument("--size", type=int, default=size, help="time SIZE x SIZE x SIZE")
    parser.add_argument("--emulate", type=int, nargs=3, metavar=("M", "N", "K"), help="emulate this size instead")
    parser.add_argument("--check", action="store_true", help="check and do not time")
    options = parser.parse_args(argv)
    found, why = gpu_here(levels[0])
    status = 0
    checked = []
    for level in levels:
        try:
            report = level.check().require()
            held = f"{len(report)} checks hold"
            if options.emulate or not found:
                m, n, k = options.emulate or SMALL
                done = level.emulate(m, n, k)
                seconds = sum(launch.seconds for launch in done.launches)
                print(f"{level}: {held}; {m}x{n}x{k} emulated in {seconds:.1f} s: exact, nothing found", flush=True)
            else:
                share = max(gpu.check(level, *sizes) for sizes in checked_sizes)
                if options.check:
                    share = max(share, gpu.check_rows(level, options.size))
                count = len(checked_sizes) + bool(options.check)
                print(f"{level}: {held}; {count} sizes right, {share:.2f} of the error bound", flush=True)
                checked.append(level)
        except Exception as error:  # a CUDA error as well: name the level, go on
            print(f"{level}: FAILED: {error}", flush=True)
            status = 1
    if not found:
        print(f"not timed: {why}")
    elif checked and not options.check and not options.emulate:
        for level, row in zip(checked, gpu.time_levels(checked, options.size)):
            print(f"{level}: {row}", flush=True)
            status |= not row.right
    return status
