"""The front door of the emulator. `emulate` and `emulate_ptx` run a kernel and report its errors.

`emulate` takes the result of `cute.compile` and the arguments of a call. The compiled host function runs on this
machine and launches the compiler's PTX in the emulator. `emulate_ptx` takes PTX and a described launch. Results are in
the arrays that were passed.
"""

from __future__ import annotations

import struct
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arch import ArchName
from ..arguments import as_int, checked, refusal, settle, shown
from ..atoms.tma.im2col import Im2colMap
from ..atoms.tma.rules import L2_PROMOTION, MODES, OOB_FILL, TensorMap
from ..dtypes import DType, dtype
from ..errors import EmulatorError, NotCompiledError, OperandError
from .findings import EDGE, LINT, Counts, Finding, joined
from .host.arguments import ArgumentMemory, Array, PackedArray, array_at, array_of, element_of
from .host.driver_modules import PtxLaunch
from .host.dsl_calls import CompiledFunction, watch
from .host.launcher import HostCall, HostFunction, HostLaunch
from .host.session import EmulatedGpu, session
from .host.triton_calls import TritonLaunch
from .machine.bank_counts import BankRow, bank_rows, bank_table
from .machine.interpreter import PtxMachine
from .machine.last_writers import LastWriters, disagreement
from .machine.launch import Policy, Progress, Watch
from .machine.memory import GlobalBuffer, GlobalMemory, MemorySnapshot
from .machine.sector_counts import SectorRow, sector_rows, sector_table
from .machine.tensor_map import BYTES, encode, encode_im2col
from .machine.textures import TextureOf
from .machine.timeline import Timeline
from .machine.unused_reads import RacingReads
from .machine.unwritten_memory import settled
from .ops import program_of
from .ptx.parser import Parameter, PtxInstruction, PtxKernel, read_module
from .races.dependent_launches import PreviousLaunch, dependent
from .races.unordered_launches import BESIDE
from .turns import in_turn

EVERY = 2.0  # seconds between lines of progress
AS_COMPILED = "Pass a tensor of the shape, strides and elements that the function was compiled for."
QUIET = ("lint",)  # kinds of findings that leave a run ok
# Orders that show different mistakes: everything as late as possible, as early as possible, and at random.
ORDERS = (
    Policy(),
    Policy(loads="early", products="early", stores="early", elect="highest"),
    Policy(pick="random", seed=1),
    Policy(pick="random", seed=2, products="early"),
)
Orders = Policy | Sequence[Policy] | None


@dataclass
class LaunchResult:
    """One launch: its geometry, its counts and findings, and the seconds it took here.

    suspects  reads of uninitialised memory by products; also in `findings` where a result depends on them
    timeline  activity of each warp and engine, where that was recorded
    printed   the text of its threads' printf, by block and thread
    """

    kernel: PtxKernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_shared: int
    counts: Counts
    findings: list[Finding]
    seconds: float
    suspects: list[Finding] = field(default_factory=list)
    timeline: Timeline | None = None
    printed: str = ""
    # Loads that race with stores, while it is not known whether a result depends on them.
    racing: RacingReads | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        kept = [name for name, value in (("banks", self.counts.banks), ("timeline", self.timeline)) if value]
        return (
            f"<LaunchResult of {self.kernel.name[:60]}: grid {self.grid}, block {self.block}, cluster {self.cluster}, "
            f"{len(self.findings)} finding(s){''.join(f', with {name}' for name in kept)}>"
        )

    @property
    def banks(self) -> list[BankRow]:
        """Bank use of each instruction, the worst first; needs `banks=True`."""
        return bank_rows(self.kernel, self.counts.banks)

    @property
    def sectors(self) -> list[SectorRow]:
        """Sectors of global memory for each instruction, the worst first; needs `banks=True`."""
        return sector_rows(self.kernel, self.counts.sectors)

    def __str__(self) -> str:
        size = f"grid {self.grid}, block {self.block}, cluster {self.cluster}, {self.dynamic_shared} bytes of shared"
        done = f"{sum(self.counts.instructions.values())} instructions other than arithmetic, {self.seconds:.2f} s"
        lines = [self.kernel.name, size, done]
        if self.counts.banks:
            lines += bank_table(self.banks).splitlines()
        if self.counts.sectors:
            lines += sector_table(self.sectors).splitlines()
        return "\n  ".join(lines)


@dataclass
class Emulation:
    """The launches of a run, in order. True if nothing but lint was found."""

    launches: list[LaunchResult] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """All findings, in order."""
        return [finding for launch in self.launches for finding in launch.findings]

    @property
    def ok(self) -> bool:
        """True if there are no findings but lint, which is legal and suspicious."""
        return all(finding.kind in QUIET for finding in self.findings)

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        kinds = Counter([finding.kind for finding in self.findings])
        found = ", ".join([f"{count} {kind}" for kind, count in kinds.items()]) or "nothing found"
        return f"<Emulation of {len(self.launches)} launch(es): {found}>"

    @property
    def bytes(self) -> Counter[str]:
        """Bytes by kind of traffic, summed over all launches."""
        return sum((launch.counts.bytes for launch in self.launches), Counter())

    @property
    def instructions(self) -> Counter[str]:
        """Executions of each opcode by a warp, summed over all launches; arithmetic is not counted."""
        return sum((launch.counts.instructions for launch in self.launches), Counter())

    def unreached(self) -> list[PtxInstruction]:
        """The instructions that no launch executed."""
        reached: dict[str, Counts] = {}
        kernels: dict[str, PtxKernel] = {}
        for launch in self.launches:
            kernels[launch.kernel.name] = launch.kernel
            seen = reached.setdefault(launch.kernel.name, Counts(executed=bytearray(len(launch.counts.executed))))
            seen.executed = bytearray(a | b for a, b in zip(seen.executed, launch.counts.executed, strict=True))
        return [ins for name, seen in reached.items() for ins in seen.unreached(kernels[name])]

    def report(self) -> str:
        """The launches and the findings, as text."""
        lines = [str(launch) for launch in self.launches]
        found = self.findings
        lines.append(f"{len(found)} finding{'' if len(found) == 1 else 's'}" + (":" if found else ""))
        lines += [str(finding) for finding in found if finding.kind not in QUIET]
        alike: dict[tuple[str, ...], list[Finding]] = {}
        for finding in found:
            if finding.kind in QUIET:
                alike.setdefault(finding.alike if finding.line else (finding.message,), []).append(finding)
        lines += [str(joined(same)) for same in alike.values()]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.report()

    def raise_for_findings(self, lint: bool = False) -> Emulation:
        """Raise EmulatorError with the report if anything was found. Lint counts where it is asked for."""
        if not self.ok or (lint and self.findings):
            raise EmulatorError(self.report())
        return self

    def as_json(self) -> dict[str, object]:
        """All of it as JSON-able data."""
        return {
            "ok": self.ok,
            "launches": [
                {
                    "kernel": launch.kernel.name, "grid": launch.grid, "block": launch.block, "cluster": launch.cluster,
                    "dynamic_shared": launch.dynamic_shared, "seconds": round(launch.seconds, 4),
                    "instructions": dict(launch.counts.instructions), "bytes": dict(launch.counts.bytes),
                    "waits": [[opcode, line, times] for (opcode, line), times in launch.counts.waits.items()],
                    "banks": [row.as_json() for row in launch.banks],
                    "sectors": [row.as_json() for row in launch.sectors],
                    "timeline": launch.timeline.as_json() if launch.timeline is not None else None,
                }
                for launch in self.launches
            ],
            "findings": [finding.as_json() for finding in self.findings],
            "unreached": [ins.line for ins in self.unreached()],
        }  # fmt: skip


# Compiled functions ---------------------------------------------------------------------------------------------------

watch()
_HOSTS: weakref.WeakKeyDictionary[object, CompiledFunction] = weakref.WeakKeyDictionary()


@in_turn
@checked(EmulatorError)
def emulate(
    compiled: object,
    *args: object,
    policy: Orders = None,
    progress: bool = True,
    extra: Sequence[object] = (),
    banks: bool = False,
    timeline: bool = False,
    **named: object,
) -> Emulation:
    """Run a compiled CuTe DSL function on the CPU through its host half; check it.

    compiled  what `cute.compile` returned; compile with "--keep-ptx --dump-dir FOLDER" among its options
    args      those of a call on a GPU, with NumPy arrays and CPU torch tensors for the memory there, where a pointer or
              an address goes, too; streams may be left out. Arrays are written in place. `PackedArray`: below a byte
    named     those by keyword; a parameter that is called as one of the following can be passed by position only
    policy    which legal order is executed; races are found in any. Several, as `ORDERS`: all are, each from the same
              content of the arrays, and results that differ are reported
    progress  a line on stderr every two seconds
    extra     arrays that kernels reach otherwise
    banks     count the wavefronts of shared memory and the sectors of global memory for each instruction, of the first
              order: `LaunchResult.banks` and `.sectors`
    timeline  record what each warp and engine did, of the first order: `LaunchResult.timeline`

    Raises EmulatorError that names an argument that does not fit. Raises EmulatorError (DeadlockError, PtxError) where
    a run cannot go on, with the findings so far. Raises NotCompiledError for anything but a compiled function.
    """
    memory, launches = launches_of(compiled, args, extra, named)
    return _run(launches, memory, policy, progress, Watch(banks, timeline))


@in_turn
def launches_of(
    compiled: object, args: Sequence[object], extra: Sequence[object], named: Mapping[str, object]
) -> tuple[GlobalMemory, list[HostLaunch]]:
    """Run the host half of a compiled function. The memory that its kernels see, and its launches; see `emulate`."""
    if isinstance(compiled, (str, bytes, Path)):
        said = "PTX, as text or as a file, is for emulate_ptx"
        raise NotCompiledError(f"emulate takes what cute.compile returned; {said}")
    host = compiled if isinstance(compiled, (CompiledFunction, TritonLaunch, PtxLaunch, HostCall)) else None
    if host is None and type(compiled).__weakrefoffset__:
        host = _HOSTS.get(compiled)
    if host is None:
        host = _HOSTS[compiled] = CompiledFunction.of(compiled)
    arrays, launches = host.call(args, extra, named)
    arrays.memory.follow = array_at
    return arrays.memory, launches


@contextmanager
@checked(EmulatorError)
def emulated_gpu(
    arch: ArchName = "sm_90a",
    *,
    policy: Orders = None,
    progress: bool = True,
    banks: bool = False,
    timeline: bool = False,
    autotune: str = "first",
) -> Iterator[EmulatedGpu]:
    """An emulated GPU for code written for a real one. A context manager that gives what ran.

    Inside, torch's "cuda" tensors lie in CPU memory; calls of compiled functions and of `@cute.jit` functions run in
    the emulator; streams, events and device queries answer.

    arch      the GPU that code is compiled for, and told about: "sm_90a", "blackwell", (8, 0)
    policy, progress, banks, timeline  as for `emulate`, for each call
    autotune  configurations of Triton's autotuners: the "first" that fits, or "all"

    Raises PlanError for an architecture that is not known. Calls inside raise as `emulate` does.

    >>> with emulated_gpu("hopper") as gpu:
    ...     pass  # import torch; x = torch.empty(64, device="cuda"); my_kernel(from_dlpack(x))
    >>> gpu.ok, gpu.report()
    (True, 'emulated NVIDIA H100 80GB HBM3 (sm_90a): 0 launch(es), nothing found')
    """
    of_calls = {"policy": policy, "progress": progress, "banks": banks, "timeline": timeline}
    with session(emulate, arch, True, autotune, **of_calls) as gpu:
        yield gpu


@in_turn
def emulate_host(
    host: HostFunction,
    args: Sequence[object],
    *,
    policy: Orders = None,
    progress: bool = True,
    extra: Sequence[object] = (),
    banks: bool = False,
    timeline: bool = False,
) -> Emulation:
    """Run a linked host function on the CPU and check it, as `emulate` does."""
    arrays, launches = host.call(args, extra)
    return _run(launches, arrays.memory, policy, progress, Watch(banks, timeline))


def _run(
    launches: Sequence[HostLaunch], memory: GlobalMemory, policy: Orders, progress: bool, watch: Watch
) -> Emulation:
    memory.follow = array_at
    began = PtxMachine.NOW

    def run(order: Policy, watch: Watch) -> Emulation:
        return Emulation(
            settled(lambda of, w: _run_once(launches, memory, of, progress, w, began), memory, order, watch)
        )

    if policy is None or isinstance(policy, Policy):
        return _shown(lambda: run(policy or Policy(), watch))
    before = memory.contents()
    after: MemorySnapshot | None = None
    told: set[str] = set()
    out = Emulation()
    for number, order in enumerate(policy):
        if number:
            memory.restore(before)
        one = run(order, Watch()) if number else _shown(lambda: run(policy[0], watch))
        different = memory.differing(after) if after is not None and one.launches else ()
        differing = [place for place in different if place[0].name not in told]  # once for all orders
        told |= {buffer.name for buffer, _ in differing}
        after = after or memory.contents()
        seen = {(finding.kind, line) for finding in out.findings for line, _ in finding.sites}
        for launch in one.launches:
            launch.findings[:] = [f for f in launch.findings if any((f.kind, line) not in seen for line, _ in f.sites)]
        if differing:
            for place, finding in _disagreements(launches, memory, before, (policy[0], order), differing, began):
                one.launches[place].findings.append(finding)
        out.launches += one.launches
    return out


def _disagreements(
    launches: Sequence[HostLaunch], memory: GlobalMemory, before: MemorySnapshot, orders: tuple[Policy, Policy],
    differing: Sequence[tuple[GlobalBuffer, int]], began: int,
) -> list[tuple[int, Finding]]:  # fmt: skip
    """Run both orders again for the last writes to bytes that they leave different: (number of the launch, finding)."""
    places = [buffer.address + byte for buffer, byte in differing]
    writes: list[LastWriters] = []
    races: list[Finding] = []
    for order in orders:
        memory.restore(before)
        writes.append(LastWriters(places))
        done = _run_once(launches, memory, replace(order, races=True), False, Watch(writers=writes[-1]), began)
        races += [finding for launch in done for finding in launch.findings if finding.kind == "race"]
    out = []
    for (buffer, byte), at in zip(differing, places, strict=True):
        one, other = (each.of[at] for each in writes)
        text = f"byte {byte} of {buffer.name} depends on the order: {orders[0]} and {orders[1]}"
        last = max((each.launch for each in (one, other) if each is not None), default=len(launches) - 1)
        out.append((last, disagreement(text, one, other, races[0] if races else None)))
    return out


def _shown(run: Callable[[], Emulation]) -> Emulation:
    """The result of a run, after its kernels' text on standard output."""
    try:
        done = run()
    except EmulatorError as error:
        sys.stdout.write(getattr(error, "printed", ""))
        raise
    sys.stdout.write("".join([launch.printed for launch in done.launches]))
    return done


def _printed(machine: PtxMachine) -> str:
    """The text that a launch printed, by block and thread."""
    lines = sorted(machine.printed, key=lambda line: (line[0][::-1], line[1]))
    return "".join([text for _, _, text in lines])


def _run_once(
    launches: Sequence[HostLaunch], memory: GlobalMemory, policy: Policy, progress: bool, watch: Watch, began: int
) -> list[LaunchResult]:
    """The launches in order; began: the clock when the first one begins, which is the same in a repeated run."""
    PtxMachine.NOW = began
    out: list[LaunchResult] = []
    beside = BESIDE.now
    front: PreviousLaunch | None = None  # of a launch that may be dependent
    if beside is not None:
        front = beside.begun()
    for number, launch in enumerate(launches):
        line = _progress(f"{launch.kernel.name[:40]} ({number + 1} of {len(launches)})") if progress else None
        machine = PtxMachine(program_of(launch.kernel), launch.within(memory), policy, line, watch)
        if watch.writers is not None:
            watch.writers.launch = number
        if watch.reads is not None:
            watch.reads.launch = number
        if machine.global_watch is not None:
            if launch.dependent:
                machine.global_watch.dependent = dependent(machine.global_watch, front)
            front = PreviousLaunch(launch.kernel.name[:60], memory, machine.global_watch)
            if beside is not None:
                beside.launched(front)
                machine.global_watch.beside = beside if beside.others else None
        start = time.perf_counter()
        try:
            machine.run()
        except EmulatorError as error:
            found = machine.findings.found + machine.suspects.found
            before = "".join([f"\n{finding}" for finding in found])
            printed = "".join([launch.printed for launch in out]) + _printed(machine)
            if not before:
                error.printed = printed
                raise
            more = type(error)(f"{error}\nfound before that:{before}")
            more.printed = printed
            raise more from error
        out.append(result_of(launch, machine, time.perf_counter() - start))
    return out


def result_of(launch: HostLaunch, machine: PtxMachine, seconds: float) -> LaunchResult:
    """The result of a launch, with lint of its arguments."""
    notes = [Finding(LINT, text, orders=AS_COMPILED) for text in dict.fromkeys(machine.launch.memory.notes)]
    for name, count, first in machine.launch.memory.written_behind():
        text = f"{count} bytes behind the elements of {name}, in its storage, were changed: the first is byte {first}"
        notes.append(Finding(EDGE, text, orders="pass the whole tensor, or store no further than its elements"))
    return LaunchResult(
        launch.kernel, launch.grid, launch.block, launch.cluster, launch.dynamic_shared, machine.counts,
        [*notes, *machine.findings.found], seconds, machine.suspects.found,
        machine.recorder.timeline() if machine.recorder is not None else None, _printed(machine), _racing(machine),
    )  # fmt: skip


def _racing(machine: PtxMachine) -> RacingReads | None:
    """The loads of a run that race with stores, or None."""
    if not machine.racing or machine.global_watch is None:
        return None
    return RacingReads(frozenset(machine.racing), machine.global_watch, machine.operations)


def _progress(name: str) -> Callable[[Progress], None]:
    """A callback that writes a progress line to stderr every two seconds. Short runs print nothing."""
    start = last = time.monotonic()

    def line(at: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EVERY and at.done < at.clusters:
            last = now
            text = f"emulator: {name}: cluster {at.done + 1} of {at.clusters}"
            if at.done:
                text += f", about {(now - start) / at.done * (at.clusters - at.done):.0f} s left"
            else:
                text += f" (CTA {at.cta}), {at.operations} operations"
                text += f", {at.products} tensor-core products" if at.products else ""
            print(text, file=sys.stderr, flush=True)

    return line


# PTX ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorMapOf:
    """A tensor map over an array, as an argument of a PTX kernel.

    array    its last axis is the innermost dimension
    box      elements, in the order of the array's axes
    swizzle  "none", "32B", "64B", "128B"
    kind     element type, by name; default the array's own ("bf16" has to be named)
    steps    traversal steps, in the order of the axes
    """

    array: object
    box: tuple[int, ...]
    swizzle: str = "none"
    kind: str | None = None
    steps: tuple[int, ...] | None = None
    l2_promotion: str = "none"
    oob_fill: str = "zeros"

    def __post_init__(self) -> None:
        settle(self, EmulatorError)
        for name, known in (("swizzle", MODES), ("l2_promotion", L2_PROMOTION), ("oob_fill", OOB_FILL)):
            if (given := getattr(self, name)) not in known:
                raise EmulatorError(f"{name} of TensorMapOf is {shown(given)}: one of {', '.join(map(repr, known))}")

    def tensor_map(self, array: Array) -> TensorMap:
        """The map. Raises EmulatorError for an array whose last axis is not contiguous."""
        if array.shape[-1] > 1 and array.strides[-1] != 1:
            raise EmulatorError(f"the last axis of an array of strides {array.strides} is not contiguous")
        bits = self._kind().bits
        extents = [extent * array.bits // bits if n == 0 else extent for n, extent in enumerate(array.shape[::-1])]
        strides = tuple([stride * array.bits // 8 for stride in array.strides[-2::-1]])
        steps = self.steps or (1,) * len(self.box)
        return TensorMap(
            self._kind(), tuple(extents), strides, tuple(self.box[::-1]), tuple(steps[::-1]), self.swizzle, "",
            self.l2_promotion, self.oob_fill,
        )  # fmt: skip

    def _kind(self) -> DType:
        if self.kind is not None:
            return dtype(self.kind)
        if isinstance(self.array, PackedArray):
            return dtype(self.array.kind)
        name = element_of(self.array)
        try:
            return dtype(name)
        except OperandError:
            raise EmulatorError(f"a tensor map of {name or type(self.array).__name__}: name its element type") from None


@dataclass(frozen=True)
class Im2colMapOf:
    """An im2col tensor map over images, as an argument of a PTX kernel.

    array       images first and channels last
    tensor_map  as `tma_im2col(...).tensor_map` has it
    """

    array: object
    tensor_map: Im2colMap

    def checked(self, array: Array) -> Im2colMap:
        """The map. Raises EmulatorError if it reaches beyond the array."""
        tmap = self.tensor_map
        ends = zip((tmap.tiled.kind.gmem_bits // 8, *tmap.strides), tmap.extents, strict=True)
        reach = tmap.tiled.kind.gmem_bits // 8 + sum(stride * (extent - 1) for stride, extent in ends)
        held = array.high - array.address
        if reach > held:
            raise EmulatorError(f"images of {held} bytes; the map reaches to byte {reach}")
        return tmap


@dataclass(frozen=True)
class StructOf:
    """A structure by value, as an argument of a PTX kernel.

    members   byte offset to an array (its address), NumPy number, bytes (`x.tobytes()` for an array within the
              structure), tensor map or texture; other bytes are 0

    >>> import numpy as np
    >>> StructOf({0: np.zeros(4, np.float32), 8: np.int32(4), 12: np.ones(2, np.float32).tobytes()}).members[8]
    np.int32(4)
    """

    members: Mapping[int, object]

    def parameters(self, whole: Parameter) -> list[tuple[Parameter, object]]:
        """The members as parameters, in the order of offsets. Raises EmulatorError for members that do not fit."""
        if not isinstance(self.members, Mapping):
            raise EmulatorError(refusal(self.members, f"members of {whole.name}", "a dict of byte offsets"))
        end, found = 0, []
        for offset in sorted([as_int(at, f"an offset of {whole.name}", EmulatorError, least=0) for at in self.members]):
            value, name = self.members[offset], f"{whole.name}+{offset}"
            size = _bytes_of(value)
            if size is None:
                raise EmulatorError(
                    f"{name}: {shown(value)} is not an array, NumPy number (np.int32(1)), bytes, tensor map or texture"
                )
            if offset < end:
                raise EmulatorError(f"{name} begins within the member before it, which ends at byte {end}")
            end = offset + size
            if end > whole.size:
                raise EmulatorError(f"{name} ends at byte {end}, and {whole.name} has {whole.size}")
            found.append((Parameter(name, offset, size, "b8"), value))
        return found


def _bytes_of(value: object) -> int | None:
    """Bytes of a member of a structure; None where only its C type would say."""
    if isinstance(value, (TensorMapOf, Im2colMapOf)):
        return BYTES
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, np.generic):
        return value.itemsize
    return 8 if _array_in(value) is not None else None


def _array_in(value: object) -> Array | None:
    """The array that an argument is or describes, or None."""
    return array_of(value.array if isinstance(value, (TensorMapOf, Im2colMapOf, TextureOf)) else value)


@in_turn
@checked(EmulatorError)
def emulate_ptx(
    text: str | Path,
    *,
    grid: int | Sequence[int] = 1,
    block: int | Sequence[int] | None = None,
    cluster: int | Sequence[int] | None = None,
    smem: int = 0,
    args: Sequence[object] = (),
    kernel: str | None = None,
    policy: Orders = None,
    progress: bool = True,
    banks: bool = False,
    timeline: bool = False,
    variables: Mapping[str, object] | None = None,
) -> Emulation:
    """Run one kernel of a PTX module on the CPU, and check it.

    text     PTX, or the path of a file of it
    grid     blocks, along x or x, y, z; block: threads, default what the kernel requires (.reqntid); cluster likewise
    smem     bytes of dynamic shared memory
    args     one for each parameter: an array (its address), a number, the bytes of a struct, `StructOf`, `TextureOf`;
             or `TensorMapOf`, `Im2colMapOf` (the map itself; for a parameter of 8 bytes, its address in global memory)
    kernel   its name, where the module has several
    variables  arrays in place of the module's `.global` and `.const` variables, by name; written in place
    policy, progress, banks, timeline  as for `emulate`

    Device functions, `printf`, `assert` and each thread's own memory work as nvcc and Triton emit them. Raises
    PtxError that lists everything in the kernel that is not supported, with lines; other kernels do not matter.

    >>> import numpy as np
    >>> x = np.arange(4, dtype=np.float32)
    >>> done = emulate_ptx('''
    ... .version 8.0
    ... .target sm_80
    ... .visible .entry twice(.param .u64 x) { .reg .b32 %r<2>; .reg .f32 %f; .reg .b64 %d<3>;
    ...   ld.param.u64 %d0, [x];
    ...   mov.u32 %r0, %tid.x;
    ...   mul.wide.u32 %d1, %r0, 4;
    ...   add.u64 %d2, %d0, %d1;
    ...   ld.global.f32 %f, [%d2];
    ...   add.f32 %f, %f, %f;
    ...   st.global.f32 [%d2], %f;
    ...   ret; }''', block=4, args=[x])
    >>> done.ok, x.tolist()
    (True, [0.0, 2.0, 4.0, 6.0])
    """
    launch, memory = described(text, grid, block, cluster, smem, args, kernel)
    memory.given = {name: _variable(name, value) for name, value in (variables or {}).items()}
    unknown = set(memory.given) - {one.name for one in launch.kernel.variables}
    if unknown:
        have = ", ".join([one.name for one in launch.kernel.variables]) or "none"
        raise EmulatorError(f"the module has no variable {', '.join(sorted(unknown))}; it has {have}")
    return _run([launch], memory, policy, progress, Watch(banks, timeline))


def _variable(name: str, value: object) -> npt.NDArray[np.uint8]:
    """The bytes of an array that replaces a module's variable."""
    array = np.asarray(value)
    if not array.flags.c_contiguous or array.dtype == object:
        raise EmulatorError(f"variables[{shown(name)}] is not a contiguous array of numbers")
    return array.reshape(-1).view(np.uint8)


def _read(file: Path) -> str:
    """The text of a PTX file. Raises EmulatorError for a file of bytes, such as a cubin."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise EmulatorError(
            f"{file} is not text (byte {error.start} is 0x{byte:02x}), and PTX is: `cuobjdump -ptx FILE` prints "
            "the PTX of an object that holds it"
        ) from None


def described(
    text: str | Path,
    grid: int | Sequence[int],
    block: int | Sequence[int] | None,
    cluster: int | Sequence[int] | None,
    smem: int,
    args: Sequence[object],
    kernel: str | None,
) -> tuple[HostLaunch, GlobalMemory]:
    """The launch that the arguments of `emulate_ptx` describe, and the memory of its arrays."""
    as_int(smem, "smem", EmulatorError, least=0)
    if not isinstance(args, (tuple, list)):
        raise EmulatorError(refusal(args, "args", "a tuple of one value for each parameter"))
    if isinstance(text, Path) or ("\n" not in text and text.endswith(".ptx")):
        text = _read(Path(text))
    kernels = read_module(text, kernel)
    chosen = next((k for k in kernels if k.name == kernel), None) if kernel else kernels[0]
    if chosen is None or (kernel is None and len(kernels) > 1):
        raise EmulatorError(f"name one of the module's kernels: {', '.join(k.name for k in kernels)}")
    if len(args) != len(chosen.parameters):
        sizes = ", ".join([f"{p.name} ({p.size} bytes)" for p in chosen.parameters])
        raise EmulatorError(f"{len(args)} arguments; {chosen.name} takes {len(chosen.parameters)}: {sizes}")
    given = list(zip(chosen.parameters, args, strict=True))
    members = [v.parameters(p) if isinstance(v, StructOf) else [(p, v)] for p, v in given]
    found = [(p.name, _array_in(value)) for one in members for p, value in one]
    arrays = ArgumentMemory([(name, array) for name, array in found if array is not None])
    parameters = bytearray(chosen.parameter_bytes)
    for parameter, value in given:
        content = _content(parameter, value, arrays)
        parameters[parameter.offset : parameter.offset + parameter.size] = content
    block = block if block is not None else chosen.directives.get(".reqntid") or 32
    cluster = cluster if cluster is not None else chosen.directives.get(".reqnctapercluster") or 1
    launch = HostLaunch(chosen, _triple(grid), _triple(block), _triple(cluster), smem, bytes(parameters))
    return launch, arrays.memory


def _triple(value: int | Sequence[int]) -> tuple[int, int, int]:
    parts = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(parts) <= 3 or min(parts) < 1:
        raise EmulatorError(f"a size of {shown(value)}: one to three positive numbers, x first")
    x, y, z = (*parts, 1, 1)[:3]
    return x, y, z


def _content(parameter: Parameter, value: Any, arrays: ArgumentMemory) -> bytes:
    """The bytes of one parameter."""
    size, array = parameter.size, _array_in(value)
    if isinstance(value, StructOf):
        whole = bytearray(size)
        for member, part in value.parameters(parameter):
            whole[member.offset : member.offset + member.size] = _content(member, part, arrays)
        return bytes(whole)
    if isinstance(value, (TensorMapOf, Im2colMapOf, TextureOf)) and array is None:
        raise EmulatorError(refusal(value.array, f"array of {type(value).__name__}, {parameter.name},", "an array"))
    if isinstance(value, (TensorMapOf, Im2colMapOf)):
        assert array is not None
        if size not in (BYTES, 8):
            raise EmulatorError(f"{parameter.name} has {size} bytes, a tensor map {BYTES}, and its address 8")
        address = arrays.address(array.address)
        if isinstance(value, Im2colMapOf):
            words = encode_im2col(value.checked(array), address)
        else:
            words = encode(value.tensor_map(array), address)
        if size == BYTES:
            return words
        held = arrays.memory.add(f"the tensor map of {parameter.name}", np.frombuffer(bytearray(words), np.uint8))
        return struct.pack("<Q", held.address)
    if isinstance(value, TextureOf):
        assert array is not None
        if size != 8:
            raise EmulatorError(f"{parameter.name} has {size} bytes, a texture object 8")
        return struct.pack("<Q", arrays.memory.bind(value, arrays.address(array.address)))
    if array is not None:
        if size != 8:
            raise EmulatorError(f"{parameter.name} has {size} bytes, an address 8")
        return struct.pack("<Q", arrays.address(array.address))
    if isinstance(value, bytes):
        if len(value) != size:
            raise EmulatorError(f"{parameter.name} has {size} bytes, and {len(value)} were given")
        return value
    if isinstance(value, np.generic):
        value = value.item() if value.dtype.kind in "biuf" else value.tobytes()
        if isinstance(value, bytes):
            return _content(parameter, value, arrays)
    if isinstance(value, float):
        return _float_bytes(parameter, value)
    if hasattr(value, "__index__"):
        return _integer_bytes(parameter, index(value))
    raise EmulatorError(
        f"{parameter.name}: {shown(value)} is not an array, number, bytes, "
        "StructOf, TensorMapOf, Im2colMapOf or TextureOf"
    )


def _float_bytes(parameter: Parameter, value: float) -> bytes:
    """A float as a parameter of 2, 4 or 8 bytes."""
    forms = {2: "<e", 4: "<f", 8: "<d"}
    if parameter.size not in forms or parameter.kind[0] in "us":
        raise EmulatorError(f"{parameter.name} is .{parameter.kind}, {parameter.size} bytes: no float has")
    try:
        return struct.pack(forms[parameter.size], value)
    except OverflowError:
        raise EmulatorError(
            f"{parameter.name} has {parameter.size} bytes, and the float {value} does not fit"
        ) from None


def _integer_bytes(parameter: Parameter, value: int) -> bytes:
    """An integer as the parameter's bits, or as the float of a float parameter."""
    size, kind = parameter.size, parameter.kind
    if kind[0] == "f" and size == int(kind[1:]) // 8:
        if abs(value) > 1 << {2: 11, 4: 24, 8: 53}[size]:
            raise EmulatorError(
                f"{parameter.name} is .{kind}: not every integer as large as {value} is one, pass a float"
            )
        return _float_bytes(parameter, float(value))
    if not -(1 << 8 * size - 1) <= value < 1 << 8 * size:
        raise EmulatorError(f"{parameter.name} has {8 * size} bits, and {value} does not fit")
    return (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
