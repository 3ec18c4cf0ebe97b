"""The emulated GPU: clusters of thread blocks, their warps, and fibers in some legal order.

A *fiber* is a warp, or those of its lanes that took one side of a branch. Where lanes disagree, the fiber stops and two
children run, each with its own copy of the registers. They run until both reach the branch's reconvergence point, the
nearest pc on every path to the exit. So within a fiber all lanes are active, a uniform value stays uniform, and nothing
is masked. Lanes of different branches execute an instruction that needs them all together (`gathering.py`). Lanes that
wait for polling lanes of their warp go on to the next instruction that needs the whole warp: one releases a lock that
others ask for.

Operations are functions of the fiber (`ops`), and return

    None      go on with the next instruction
    a pc      go on there
    BLOCKED   the fiber waits; the operation has put it in some list, and is executed again when `wake` takes it out
    GONE      the fiber split or ended

What runs asynchronously is deferred: it happens at once, or as late as anything still can (`Policy`).
"""

from __future__ import annotations

import gc
import random
import re
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from functools import cache, partial
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...arch import MAX_GRID as GRID_LIMIT
from ...arch import facts_of
from ...arguments import shown
from ...errors import DeadlockError, EmulatorError
from ..findings import LINT, REMEDIES, Counts, Finding, Findings
from ..ptx.parser import PtxInstruction
from ..ptx.program import CodeSegment, Operation, Program, set_bits
from ..ptx.values import FULL, LANES, Lanes, Undefined, Value, any_of, bool_of, mask_of
from ..races.conflicts import Conflict, described
from ..races.global_bytes import GlobalWatch
from ..races.happens_before import NO_PARTS, Knowledge, Ledger, MemoryEvent, Parts, ShadowMemory
from ..races.lanes import LaneAccess, Same, fork, have_read, join, read_together
from .bank_counts import BankCounter
from .deadlocks import POLLS_ANYWHERE, WAITING, stuck
from .gathering import Apart, Gathering, form_of, merged_register
from .launch import WORKSPACE, WORKSPACE_BYTES, Progress, Triple, Watch, special_registers
from .launch import Launch as Launch
from .launch import Policy as Policy
from .memory import RANK_SHIFT, ComparedSwizzles, CtaSharedMemory
from .roles import role_from
from .sector_counts import SectorCounter
from .timeline import Recorder
from .uninitialized import compute_doubtful, failed_at, run_doubtful

if TYPE_CHECKING:
    from ..mutation.trace import AccessTrace
    from ..ops.barrier import Poll

BLOCKED, GONE = -1, -2
# CUDA's limits of a launch: along each axis, and threads of a block; and blocks that are emulated.
MAX_THREADS, MAX_BLOCKS, MAX_GRID = 1024, 16, 1 << 24
MOST = {"grid": GRID_LIMIT, "block": (1024, 1024, 64), "cluster": (MAX_BLOCKS,) * 3}
PRODUCTS = ("wgmma.mma_async", "mma.", "tcgen05.mma")
# Instructions by their first word that use fragments of all threads of a warp: a block's last one may have fewer.
OF_WHOLE_WARPS = ("wgmma", "mma", "wmma", "ldmatrix", "stmatrix", "movmatrix", "tcgen05")

# Qualifiers come in any order: ptxas takes ld.global.acquire.gpu as well as ld.acquire.gpu.global.
FLAGS = re.compile(r"(?:ld|st)\.(?:.*\.)?(?:acquire|release|relaxed|volatile|mmio)\b|atom\.|red\.|multimem\.")
POLLS = re.compile(r"(?:ld\.(?!.*\.shared)(?:.*\.)?(?:acquire|relaxed|volatile|mmio)\b|atom\.(?!.*\.shared)).*")
STILL = 4  # rounds of polling, without any other progress, after which nothing will come
YOUNG = 50_000  # objects after which garbage is collected in a run: most are records that live as long as it
_COLLECTED: list[tuple[int, int, int]] = []  # the thresholds before each run that goes on
POLLED = 5  # a polling loop polls at least once in this many operations


class Warp:
    """A warp: 32 lanes of a block."""

    def __init__(self, cta: Cta, number: int, special: dict[str, Value]) -> None:
        self.cta, self.number, self.special = cta, number, special
        self.alive = self.present = FULL  # lanes that have not ended; lanes of the launch
        self.window = cta.rank << RANK_SHIFT
        self.did = bytearray(cta.cluster.machine.program.size)  # for each pc, whether some lane executed it
        self.scratch: dict[Hashable, Any] = {}  # what operations keep for a warp
        self.acquired: dict[int, Knowledge] = {}  # lanes -> what they acquired at words of memory, without the others
        # Lanes -> what relaxed reads told them, which their next fence acquires: of their own block, and of others.
        self.waited: dict[int, tuple[Knowledge, Knowledge]] = {}
        # Lanes -> what came before their fence, which their relaxed writes hand on: to their own block, and to others.
        self.fenced: dict[int, tuple[Knowledge, Knowledge]] = {}
        # Of its accesses to global memory (`races/clocks.py`): the source, its turn, and whether the turn has any.
        self.source, self.turn, self.accessing = 0, 1, False
        # Turns that some lanes ended alone (`races/global_words.py`) -> (those lanes, the first turn that it concerns).
        self.partly_told: dict[int, tuple[int, int]] = {}
        self.settles: Callable[[Fiber], None] | None = None  # to be called before its fibers release anything

    def meet(self, lanes: int, relayed: bool = False) -> None:
        """Share what relaxed reads told some of these lanes. Each knows it from its next fence on.

        relayed  at an instruction that orders no memory: the lanes that read keep it as their own
        """
        for some in [some for some in self.waited if some & lanes == some != lanes]:
            ledger, read = self.cta.cluster.ledger, self.waited[some] if relayed else self.waited.pop(some)
            told = self.waited.setdefault(lanes, (ledger.knowledge(), ledger.knowledge()))
            for each, one in zip(told, read, strict=True):
                if relayed:
                    each.merge_relayed(one)
                else:
                    each.merge(one)

    def clock(self, low: int, mask: int, of_all: bool) -> int:
        """Bits of the launch's clock, from bit `low`. of_all: of the clock that all launches share."""
        machine = self.cta.cluster.machine
        machine.looks += 1
        return machine.time + (machine.began if of_all else 0) >> low & mask

    def __str__(self) -> str:
        return f"CTA {self.cta.coordinate} warp {self.number}"

    def role(self) -> str:
        """The warp's role, by the instructions that it has executed so far."""
        return role_from(self.did, self.cta.cluster.machine.program.kernel.instructions)


class RoutineCall(NamedTuple):
    """A call that has not returned.

    after      the pc behind it
    registers  the caller's
    give       copies the results into the caller's variables, from a frame
    below      the call that the caller is in
    """

    after: int
    registers: list[Any]
    give: Callable[[Fiber, int], None]
    below: RoutineCall | None


class Fiber:
    """Some lanes of a warp that execute together."""

    __slots__ = (
        "active", "alone", "answers", "apart", "children", "cta", "dirty", "done", "epoch", "gathering", "home", "ins",
        "joint", "knows", "lanes", "machine", "meet", "parent", "pc", "polls", "registers", "rests", "scratch", "spin",
        "stack", "warp", "written",
    )  # fmt: skip

    def __init__(self, warp: Warp, registers: list[Any], pc: int, lanes: int, parent: Fiber | None, meet: int) -> None:
        self.warp, self.registers, self.pc, self.parent, self.meet = warp, registers, pc, parent, meet
        self.cta: Cta = warp.cta
        self.machine: PtxMachine = warp.cta.cluster.machine
        # The routine that it is in, of `ops/routines.py`; it meets its siblings in the one that it began in.
        self.stack: RoutineCall | None = None if parent is None else parent.stack
        self.home = self.stack
        self.lanes = lanes
        self.active: npt.NDArray[np.bool_] | None = None if lanes == FULL else bool_of(lanes)
        self.children = 0
        self.done: list[tuple[Fiber, bool]] = []
        self.dirty = self.written = 0
        self.scratch: object = None
        self.spin: object = None  # the last test of an mbarrier, and all since one succeeded (`ops/barrier.py`)
        self.polls: set[Poll] = set()
        self.answers: dict[Poll, tuple[int, int]] = {}  # tests that succeeded -> the phase then, and the epoch
        self.rests = False  # waits for any of `polls`
        self.ins: PtxInstruction | None = None
        self.knows: Knowledge
        self.epoch: MemoryEvent
        self.joint: MemoryEvent | None = None  # of what its lanes do together, in this epoch
        self.apart: Apart | None = None  # it waits for lanes on other ways, which may still come
        self.alone = False  # they will not come to its instruction
        self.gathering: Gathering | None = None  # of the fibers that it stands for, for one instruction

    def describe(self) -> str:
        """The fiber in words, for reports."""
        return described(self.warp, self.lanes)

    def retire(self) -> None:
        """Free its registers and knowledge: events on record keep the fiber, for its description."""
        self.registers = []
        del self.knows

    def one(self, value: Value) -> int:
        """The value of the one active lane, or of all when they agree. Raises EmulatorError when they differ."""
        if not isinstance(value, np.ndarray):
            return int(value)
        chosen = value if self.active is None else value[self.active]
        if any_of(chosen != chosen[0]):
            other = int(np.argmax(chosen != chosen[0]))
            raise EmulatorError(
                f"lanes have different values, where the instruction takes one: {chosen[0]} in the first active lane, "
                f"{chosen[other]} in the {other + 1}th. Elect a lane, or hand its value on by shfl.sync"
            )
        return int(chosen[0])

    def each(self, value: Value) -> Lanes:
        """The values of the active lanes, as an array."""
        if not isinstance(value, np.ndarray):
            return np.full(self.lanes.bit_count(), value, dtype=np.uint64 if value > 0xFFFFFFFF else np.int64)
        return value if self.active is None else value[self.active]

    def spread(self, values: Lanes) -> Lanes:
        """Values of the active lanes as a register of 32."""
        if self.active is None:
            return values
        out = np.zeros(LANES, dtype=values.dtype)
        out[self.active] = values
        return out

    def together(self, needed: int, *form: object) -> int:
        """Wait for missing lanes to come to an instruction of this form. Returns those still missing."""
        missing = needed & self.warp.alive & ~self.lanes
        if missing and not self.alone:
            assert self.ins is not None
            raise Apart(needed, form or (self.ins.pc,))
        self.alone = False
        return missing

    def members(self, mask: int) -> int:
        """The live lanes of a member mask, waited for. Missing lanes and lanes that the mask lacks are reported."""
        ins = self.ins
        assert ins is not None
        outside = self.lanes & ~mask
        if outside:
            message = f"{ins.opcode} is executed by lanes {outside:#x}, which its mask does not have"
            self.machine.problem("divergence", message, self)
        if mask & self.warp.alive & ~self.lanes:
            missing = self.together(mask, mask, *form_of(self.machine.program, ins))
            self.machine.problem("divergence", f"{ins.opcode} waits for lanes {missing:#x}, on another way", self)
        if outside:
            pass  # such lanes wait for none
        elif self.cta.cluster.ledger.lanes and not self.cta.cluster.ledger.reads:
            self.knows.met = self.knows.own
            if self.knows.together:
                have_read(self.cta.cluster.ledger, self, mask & self.lanes)
            for some in [some for some in self.warp.acquired if some & mask == some]:
                self.knows.merge_relayed(self.warp.acquired.pop(some))
            self.warp.meet(mask & self.lanes & self.warp.alive, relayed=True)
        return mask & self.lanes & self.warp.alive

    def asked(self, told: Knowledge, lanes: int) -> None:
        """Note what some lanes acquired at a word of memory. The others learn it where all meet (`races/lanes.py`)."""
        ledger, acquired = self.cta.cluster.ledger, self.warp.acquired
        if lanes != self.warp.alive and ledger.lanes and not ledger.reads:
            acquired.setdefault(lanes, ledger.knowledge()).merge(told)

    def whole(self) -> None:
        """Gather the warp for an .aligned instruction. Threads that have ended may be missing at a barrier."""
        assert self.ins is not None
        if self.knows.together:
            have_read(self.cta.cluster.ledger, self, self.lanes)
        needed = self.warp.alive if self.ins.words[0] in ("bar", "barrier") else self.warp.present
        if self.lanes != needed:
            self.together(needed)
            self.machine.problem(
                "divergence",
                f"{self.ins.opcode} has to be executed by the whole warp, and is by lanes {self.lanes:#x} of "
                f"{needed:#x}",
                self,
            )
        count = self.warp.present.bit_count()
        if count != LANES and self.ins.words[0] in OF_WHOLE_WARPS:
            self.machine.problem(
                "divergence",
                f"{self.ins.opcode} is by the {LANES} threads of a warp, and this one has {count}",
                self,
                orders="A block of a whole number of warps has them.",
            )


class Cta:
    """A thread block: its shared memory, its warps, and state that operations keep for it."""

    def __init__(self, cluster: Cluster, coordinate: Triple, rank: int, shared: int, threads: int) -> None:
        self.cluster, self.coordinate, self.rank = cluster, coordinate, rank
        self.shared = CtaSharedMemory(shared, cluster.machine.policy.fill, cluster.machine.compared)
        self.shadow = ShadowMemory(
            cluster.ledger, lambda granule: f"shared memory of CTA {coordinate} at {granule * 16:#x}"
        )
        self.alive = threads
        self.exited = False
        self.exit_knows = cluster.ledger.knowledge()
        # Known to the block's threads from their beginning, and to another block's only where something tells them.
        self.began: MemoryEvent | None = None
        self.remote: list[tuple[MemoryEvent, str, PtxInstruction]] = []  # changes by others to see before the end
        self.warps: list[Warp] = []
        self.guarded = 0  # granules with live mbarriers, as a bit set
        # Called for writes there: (who, granules, their parts, text, whether it is of the async proxy).
        self.overwrites: Callable[[Fiber, int, Parts, Callable[[], str], bool], None] | None = None
        self.scratch: dict[str, Any] = {}


class Cluster:
    """Blocks that run together."""

    def __init__(self, machine: PtxMachine, coordinates: list[Triple]) -> None:
        self.machine = machine
        self.number = machine.begun  # among the launch's clusters, in the order of their beginning
        machine.begun += 1
        policy = machine.policy
        self.ledger = Ledger(policy.fences == "writers", policy.races, policy.lanes, policy.strict, policy.strict)
        self.fibers: list[Fiber] = []
        self.apart: list[Fiber] = []  # of these, those that wait for lanes on other ways
        self.ready: deque[Fiber] = deque()
        self.pending: list[Callable[[], None]] = []
        self.running = 0
        self.still, self.progress = 0, -1  # looks at it since its threads did more than poll; all that they had done
        self.compact_at = machine.COMPACT  # the number of events after which the ledger drops old ones
        self.scratch: dict[str, Any] = {}
        launch, block = machine.launch, machine.launch.block
        threads = block[0] * block[1] * block[2]
        shared = machine.program.shared_bytes + launch.dynamic_shared
        self.ctas = [Cta(self, c, rank, shared, threads) for rank, c in enumerate(coordinates)]
        self.threads = threads * len(self.ctas)
        for cta in self.ctas:
            if len(self.ctas) > 1:
                cta.began = self.ledger.event(False, partial("the start of CTA {}".format, cta.coordinate))
            for number in range(-(-threads // LANES)):
                warp = Warp(cta, number, special_registers(launch, cta.coordinate, cta.rank, cta.shared.size, number))
                present = min(LANES, threads - LANES * number)
                warp.alive = warp.present = (1 << present) - 1
                cta.warps.append(warp)
                registers = list(machine.program.blank)
                self.start(Fiber(warp, registers, 0, warp.alive, None, -1), None)
                self.running += 1

    def start(self, fiber: Fiber, parent: Fiber | None) -> None:
        """Start a fiber with its parent's knowledge."""
        ledger = self.ledger
        if parent is not None:
            fiber.knows = fork(ledger, parent.knows, fiber.lanes) if ledger.lanes else ledger.knowledge(parent.knows)
            fiber.dirty = parent.dirty
        else:
            fiber.knows = ledger.knowledge()
            if fiber.cta.began is not None:
                ledger.learn(fiber.knows, fiber.cta.began)
        fiber.epoch, fiber.joint = ledger.event(False, fiber.describe), None
        self.fibers.append(fiber)
        self.ready.append(fiber)

    def role(self, coordinate: Triple, number: int) -> str:
        """The role of a warp of a block, "" if the cluster has none there."""
        found = next((one for one in self.ctas if one.coordinate == coordinate), None)
        return found.warps[number].role() if found is not None and number < len(found.warps) else ""

    def wake(self, waiting: list[Fiber]) -> None:
        """Let waiting fibers run again."""
        self.ready.extend(waiting)
        awake = waiting.copy()
        waiting.clear()
        for fiber in awake:
            for poll in fiber.polls if len(fiber.polls) > 1 else ():
                if fiber in poll.barrier.waiting:
                    poll.barrier.waiting.remove(fiber)


class PtxMachine:
    """Runs a program's launch, one cluster after the other.

    Threads that poll global memory may wait for another cluster's. A cluster that only polls is put aside, and the next
    one begins. When one ends, each of those has a turn.

    After `run`, `findings` and `counts` describe the run, and results are in the launch's memory. `suspects` are
    findings only if a result depends on them: reads of uninitialised memory by products (`unwritten_memory.py`).

    progress  called after each cluster, and within one about every `EVERY` seconds
    trace     keeps every access (`mutation/trace.py`); then no event is forgotten

    Several machines run side by side by `begin`, `turn` until it returns False, and `finish` (`machine/devices.py`).
    `quantum` is the number of operations after which a turn ends; 0: when its cluster ends, or only polls.
    """

    COMPACT = 1 << 12  # events after which the order checker drops old ones
    EVERY, LOOK = 1.0, 64  # seconds between reports of progress, and operations between looks at the clock
    PATIENCE = 1 << 12  # operations after which another fiber runs, and polling is looked for
    RESIDENT = 1 << 9  # clusters that may have begun and poll
    NOW = 1 << 60  # nanoseconds of the clock that launches share; a GPU's counts from a date, not from its first kernel

    def __init__(
        self,
        program: Program,
        launch: Launch,
        policy: Policy | None = None,
        progress: Callable[[Progress], None] | None = None,
        watch: Watch | None = None,
        trace: AccessTrace | None = None,
    ) -> None:
        self.program, self.launch, self.trace = program, launch, trace
        self.policy = Policy() if policy is None else policy
        self.progress = progress
        watch = watch or Watch()
        self.banks = BankCounter() if watch.banks else None
        self.sectors = SectorCounter() if watch.banks else None
        self.recorder = Recorder() if watch.timeline else None
        self.writers, self.replaced_reads = watch.writers, watch.reads
        self.racing: set[int] = set()  # pcs of loads from global memory that race with stores
        self.random = random.Random(self.policy.seed)
        self.findings, self.suspects = Findings(), Findings()
        self.compared = ComparedSwizzles()
        self.counts = Counts(executed=bytearray(program.size))
        self.operations = self.looks = self.changes = 0  # looks: of threads at a clock; changes: of words by atomics
        self.began = PtxMachine.NOW
        self.look = self.policy.limit  # operations before the next look at the clock
        self.told, self.products = 0.0, 0
        self.waiting: deque[Triple] = deque()
        self.polling: deque[Cluster] = deque()  # begun, and put aside
        self.owed = 0  # turns of those before another cluster begins
        self.scratch: dict[str, Any] = {}  # what operations keep for a launch
        self.printed: list[tuple[Triple, int, str]] = []  # what threads printed: (block, thread, text), in order
        self.parted: dict[int, int] = {}  # where lanes do not wait for those that poll -> where they do
        self.global_watch = self._watch() if self.policy.races else None
        self.begun = 0  # clusters
        self.followed = 0  # instructions computed for values that lanes exchanged (`uninitialized.py`)
        self.quantum, self.landed = 0, 0
        self.device = ""  # the name of the device that it runs on, beside others
        self.alone = True  # False: other devices may write what its threads poll for, and no lanes go on by `_part`
        if problem := _geometry(launch, program):
            raise EmulatorError(problem)
        for variable, first in program.variables:
            launch.memory.define(variable.name, program.symbols[variable.name], None if variable.external else first)
        if program.reads_special("%envreg1"):
            launch.memory.define("the grid's workspace", WORKSPACE, np.zeros(WORKSPACE_BYTES, np.uint8))
        for axis in range(3):
            if launch.grid[axis] % launch.cluster[axis]:
                raise EmulatorError(f"a grid of {launch.grid} is not a whole number of clusters of {launch.cluster}")

    def run(self) -> PtxMachine:
        """Execute every cluster; returns the machine."""
        self.begin()
        _COLLECTED.append(gc.get_threshold())
        if 0 < _COLLECTED[0][0] < YOUNG:
            gc.set_threshold(YOUNG, *_COLLECTED[0][1:])
        try:
            still, mark = 0, (-1, 0)
            while self.turn():
                now = (len(self.waiting), self._progress(POLLS))
                still = still + 1 if now == mark else 0
                mark = now
                if still > STILL + 2 * len(self.polling):
                    raise DeadlockError(f"threads poll, and nothing else goes on:\n{stuck(self.polling[0])}")
        finally:
            before = _COLLECTED[0]
            _COLLECTED.pop()
            if not _COLLECTED:  # machines of several threads may end in another order than they began in
                gc.set_threshold(*before)
            self.finish()
        return self

    def _watch(self) -> GlobalWatch:
        """The watch of global memory."""
        opcodes = {ins.opcode for ins in self.program.kernel.instructions}
        return GlobalWatch(self.policy.strict, any(FLAGS.match(opcode) for opcode in opcodes))

    def begin(self) -> None:
        """Line up the grid's clusters."""
        grid, size = self.launch.grid, self.launch.cluster
        corners = product(*[range(0, grid[axis], size[axis]) for axis in (2, 1, 0)])
        self.waiting = deque((x, y, z) for z, y, x in corners)
        self.clusters = len(self.waiting)
        self.told = time.monotonic()
        if self.progress is not None:
            self.look = 0

    def finish(self) -> None:
        """Complete the counts of the run."""
        PtxMachine.NOW = max(PtxMachine.NOW, self.began + self.time)
        self.program.mark(self.counts.executed)
        if self.banks is not None:
            self.counts.banks = self.banks.uses
        if self.sectors is not None:
            self.counts.sectors = self.sectors.uses

    def turn(self) -> bool:
        """Run a cluster until it ends, only polls, or has had its quantum. Returns False if none is left."""
        with np.errstate(all="ignore"):  # a kernel may overflow, or divide by 0
            return self._turn()

    @property
    def time(self) -> int:
        """The launch's clock. It goes on with operations, and faster with each look at it."""
        return 32 * self.operations + 256 * self.looks

    @property
    def advanced(self) -> int:
        """Operations so far without arithmetic and polling, plus asynchronous ones that landed."""
        return self._others(POLLS)

    def _others(self, polls: re.Pattern[str]) -> int:
        """Operations so far without arithmetic, branches and `polls`, plus asynchronous ones that landed."""
        counts = self.counts.instructions
        return self.landed + sum(
            count for opcode, count in counts.items() if not WAITING.match(opcode) and not polls.match(opcode)
        )

    def _progress(self, polls: re.Pattern[str]) -> int:
        """A number that grows with anything that these polls may wait for: a change of memory, or of the time."""
        return self._others(polls) + self.changes + self.looks

    def _record(self, cluster: Cluster) -> None:
        """Add the roles of the cluster's warps to the findings."""
        role = cache(cluster.role)
        self.findings.name_roles(role)
        self.suspects.name_roles(role)

    def _turn(self) -> bool:
        """`turn`, under the caller's NumPy settings."""
        if self.waiting and not self.owed and len(self.polling) < self.RESIDENT:
            (x, y, z), size = self.waiting.popleft(), self.launch.cluster
            inside = product(range(size[2]), range(size[1]), range(size[0]))
            cluster = Cluster(self, [(x + i, y + j, z + k) for k, j, i in inside])
            if self.recorder is not None:
                self.recorder.begin(cluster)
        elif self.polling:
            cluster = self.polling.popleft()
            self.owed = max(0, self.owed - 1)
        else:
            return False
        try:
            ended = self._run_cluster(cluster)
        finally:
            self._record(cluster)
        if ended:
            self.owed = len(self.polling)
            self._tell(self.clusters - len(self.waiting) - len(self.polling), cluster.ctas[0].coordinate)
            self.products = self._products()
        else:
            self.polling.append(cluster)
        return True

    def _tell(self, done: int, cta: Triple) -> None:
        """Report progress."""
        self.told = time.monotonic()
        if self.progress is not None:
            self.progress(Progress(done, self.clusters, cta, self.operations, self._products() - self.products))

    def _products(self) -> int:
        return sum(count for opcode, count in self.counts.instructions.items() if opcode.startswith(PRODUCTS))

    def _look(self, cluster: Cluster) -> None:
        """Report progress if it is due; detect a livelock."""
        if self.operations > self.policy.limit:
            raise DeadlockError(f"{self.policy.limit} operations: a livelock?\n{stuck(cluster)}")
        self.look = min(self.policy.limit, self.operations + self.LOOK)
        if time.monotonic() - self.told >= self.EVERY:
            self._tell(self.clusters - len(self.waiting) - 1, cluster.ctas[0].coordinate)

    def take_cluster(self) -> Triple | None:
        """Take a cluster that has not begun off the grid. Its first block's coordinates, or None."""
        return self.waiting.popleft() if self.waiting else None

    # ------------------------------------------------------------ what operations ask for

    def problem(
        self,
        kind: str,
        message: str,
        fiber: Fiber | None = None,
        ins: PtxInstruction | None = None,
        suspect: bool = False,
        orders: str = "",
        cta: Cta | None = None,
        reads: int | None = None,
    ) -> None:
        """Report a finding or a suspect; the run goes on until the limit of findings.

        orders  its remedy; cta: the block, where no fiber did it; reads: the pc of a load that races with a store
        """
        block = fiber.cta if fiber is not None else cta
        ins = ins or (fiber.ins if fiber is not None else None)
        (self.suspects if suspect else self.findings).add(
            Finding(
                kind,
                message,
                ins.line if ins else 0,
                ins.text if ins else "",
                ins.source if ins else None,
                block.coordinate if block is not None else (0, 0, 0),
                fiber.warp.number if fiber else None,
                fiber.lanes if fiber else 0,
                orders=orders or REMEDIES.get(kind, ""),
                reads=reads,
            )
        )
        if self.findings.full:
            first = next(one for one in self.findings.found if one.kind != LINT)
            raise EmulatorError(f"{self.findings.limit} different findings: given up\n{first}")

    def conflict(self, found: Conflict, fiber: Fiber) -> None:
        """Report two accesses that nothing orders."""
        if found.reads is not None:
            self.racing.add(found.reads)
        self.problem("lint" if found.lint else "race", str(found), fiber, orders=found.orders, reads=found.reads)
        if found.also is not None:
            self.conflict(found.also, fiber)

    def also(self, fiber: Fiber, first: PtxInstruction, more: int) -> None:
        """Count `more` instructions after `first`, of the same opcode, that ran with it."""
        self.operations += more
        self.counts.instructions[first.opcode] += more
        self.counts.executed[first.pc + 1 : first.pc + 1 + more] = bytes([1]) * more
        fiber.warp.did[first.pc : first.pc + 1 + more] = bytes([1]) * (1 + more)
        if self.recorder is not None:
            fiber.knows.time += more

    def defer(self, cluster: Cluster, when: str, action: Callable[[], None]) -> None:
        """Run an asynchronous operation now, or when nothing else can run. `when`: a field of the policy."""
        if getattr(self.policy, when) == "early":
            action()
        else:
            cluster.pending.append(action)

    def touch(
        self,
        fiber: Fiber,
        cta: Cta,
        places: int,
        write: bool,
        what: Callable[[], str],
        event: MemoryEvent | None = None,
        asynchronous: bool = False,
        parts: Parts = NO_PARTS,
        touch: LaneAccess | None = None,
        by: int = 0,
        ends: tuple[int, int] | None = None,
        same: Same | None = None,
    ) -> None:
        """Record an access to shared memory, and report its races.

        event  of an asynchronous operation; None: the fiber's own epoch
        parts  granule -> the bytes of it, as a bit set, where it is not all of them
        touch  what each lane accesses; None: all of them do it as one
        by     the lanes that do it; 0: all of the fiber's
        ends   the first and the last granule, where the caller knows them
        same   of a write: whether memory holds what it writes
        """
        ledger, shadow, lanes = cta.cluster.ledger, cta.shadow, 0
        if write and cta.guarded & places and cta.overwrites is not None:
            cta.overwrites(fiber, places, parts, what, asynchronous)
        if ledger.lanes:
            lanes = by or fiber.lanes
            if event is None and (touch is None or not (write or ledger.reads)):
                event = ledger.joint(fiber)
                if touch is not None:
                    read_together(ledger, fiber, event, touch.lanes)
        else:
            touch = None
        event = event or fiber.epoch
        if self.trace is not None:
            self.trace.access(fiber, "shared", cta, places, write, event, fiber.knows, asynchronous, parts)
        knows, own = fiber.knows, fiber.epoch
        race = shadow.access(places, write, event, knows, asynchronous, what, own, parts, lanes, touch, ends, same)
        if race is not None:
            self.conflict(race, fiber)
        if len(cta.shadow.records) > cta.shadow.full:
            ledger.prune(shadow, cta.cluster.fibers)

    # ------------------------------------------------------------ running

    def _run_cluster(self, cluster: Cluster) -> bool:
        """Run a cluster. True: it has ended; False: its threads only poll global memory, or its quantum is over."""
        mark, polls = self.operations, self._polls()
        end = self.operations + self.quantum if self.quantum else self.policy.limit + 1
        if cluster.scratch.pop("only polls", False) and cluster.pending:
            self._land(cluster)
        while True:
            if self.operations >= end and cluster.ready:
                cluster.scratch["only polls"] = (self._polls() - polls) * POLLED > self.operations - mark
                return False
            if self.operations - mark >= self._patience():
                before, mark, polls = (mark, polls), self.operations, self._polls()
                last, cluster.progress = cluster.progress, self._progress(POLLS_ANYWHERE)
                cluster.still = cluster.still + 1 if cluster.progress == last else 0
                if self.alone and cluster.still > STILL and self._part(cluster):
                    cluster.still = 0
                elif cluster.still > STILL + len(cluster.fibers) and not cluster.pending and polls == before[1]:
                    raise DeadlockError(f"threads poll, and nothing else goes on:\n{stuck(cluster)}")
                elif (polls - before[1]) * POLLED > mark - before[0]:
                    if cluster.pending:
                        self._land(cluster)
                    else:
                        return False
            if cluster.ledger.next > cluster.compact_at and self.trace is None:
                cluster.ledger.compact(cluster.fibers, self._asked(cluster))
                cluster.compact_at = cluster.ledger.next + self.COMPACT
            if not cluster.ready:
                if cluster.pending:
                    self._land(cluster)
                    continue
                if cluster.running == 0:
                    break
                if cluster.apart:
                    self._go_alone(cluster, list(cluster.apart))
                    continue
                raise DeadlockError(stuck(cluster))
            if self.policy.pick == "random":
                at = self.random.randrange(len(cluster.ready))
                cluster.ready.rotate(-at)
                if cluster.pending and self.random.random() < 0.05:
                    self._land(cluster)
            fiber = cluster.ready.popleft()
            try:
                self._run_fiber(cluster, fiber)
            except Apart as found:
                self._wait_apart(cluster, fiber, found)
        self._after(cluster)
        if self.recorder is not None:
            self.recorder.end(cluster)
        return True

    def _patience(self) -> int:
        """Operations after which polling is looked for: few where lanes of one warp wait for each other."""
        return self.PATIENCE >> 6 if self.parted else self.PATIENCE

    def _polls(self) -> int:
        """Executions of loads and atomics that may poll: of global memory, and ordered with other threads'."""
        return sum(count for opcode, count in self.counts.instructions.items() if POLLS.match(opcode))

    def _land(self, cluster: Cluster) -> None:
        self.landed += 1
        at = len(cluster.pending) - 1 if self.policy.lands == "newest" else 0
        if self.policy.pick == "random":
            at = self.random.randrange(len(cluster.pending))
        cluster.pending.pop(at)()

    @staticmethod
    def _asked(cluster: Cluster) -> Iterator[MemoryEvent]:
        """Events still in use after their records are gone. Those known to every thread are dropped."""
        for cta in cluster.ctas:
            living = [f.knows for f in cluster.fibers if f.cta is cta] + [cta.exit_knows]
            cta.remote = [one for one in cta.remote if not any(cluster.ledger.knows(k, one[0]) for k in living)]
            yield from [event for event, _, _ in cta.remote]
            if cta.began is not None:
                bit = cluster.ledger.bit(cta.began)
                if all((f.knows.seen | f.knows.past) & bit for f in cluster.fibers):
                    cta.began = None
                else:
                    yield cta.began
            # A forgotten event stands for what every thread knows.
            asked = cta.scratch.get("events", [])
            asked[:] = [e for e in asked if not all(cluster.ledger.knows(f.knows, e) for f in cluster.fibers)]
            yield from asked

    def _after(self, cluster: Cluster) -> None:
        """Check what must hold when every thread has ended."""
        for cta in cluster.ctas:
            for event, text, ins in cta.remote:
                if cluster.ledger.enabled and not cluster.ledger.knows(cta.exit_knows, event):
                    self.problem("exit", f"CTA {cta.coordinate} ends without knowing of {text}", ins=ins, cta=cta)
                    break
            for check in cta.scratch.get("at end", ()):
                check()

    def _run_fiber(self, cluster: Cluster, fiber: Fiber) -> None:
        program, registers, warp = self.program, fiber.registers, fiber.warp
        steps, executed, counts, did = program.steps, self.counts.executed, self.counts.instructions, warp.did
        turns = self._patience() if self.policy.pick == "in turn" else self.random.randrange(1, 12)
        end, recorder = program.size, self.recorder
        try:
            while True:
                pc = fiber.pc
                if pc == fiber.meet and fiber.stack is fiber.home:
                    self._finish(cluster, fiber, False)
                    return
                if pc >= end:
                    raise EmulatorError(f"the kernel runs past its last instruction, {program.kernel.instructions[-1]}")
                step = steps[pc]
                if isinstance(step, Operation):
                    ins = fiber.ins = step.ins
                    self.operations += 1
                    counts[ins.opcode] += 1
                    executed[pc] = 1
                    if recorder is not None:
                        recorder.before(fiber)
                    result = run_doubtful(fiber, step) if step.doubtful else step.run(fiber)
                    if recorder is not None and result != GONE:
                        recorder.step(fiber, ins, result == BLOCKED)
                    if result is None:
                        did[pc] = 1
                        fiber.written |= step.writes
                        fiber.dirty |= step.writes & ~step.moved
                        fiber.pc = pc + 1
                    elif result >= 0:
                        fiber.pc = result
                    else:
                        if result == BLOCKED:
                            did[pc] = 1
                            counts[ins.opcode] -= 1  # it is executed again when it goes on
                            self.counts.waits[ins.opcode, ins.line] += 1
                        return
                    turns -= 1
                    if turns <= 0:
                        cluster.ready.append(fiber)
                        return
                    if self.operations > self.look:
                        self._look(cluster)
                else:
                    assert step is not None
                    try:
                        step.run(registers, warp)
                    except TypeError as error:
                        compute_doubtful(fiber, step, error)
                    executed[pc] = 1
                    fiber.dirty |= step.writes & ~step.moved
                    fiber.written |= step.writes
                    fiber.pc = step.end
                    if recorder is not None:
                        fiber.knows.time += step.end - step.start
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            located = self._located(fiber, error)
            if located is error:
                raise
            raise located from error

    def _located(self, fiber: Fiber, error: Exception) -> Exception:
        """The exception with its place; that of a run of arithmetic, restated in the kernel's terms."""
        if isinstance(error, EmulatorError):
            if fiber.ins is None or "PTX line" in str(error):
                return error
            fiber.warp.did[fiber.ins.pc] = 1
            return type(error)(f"{error}\n  {fiber.describe()} ({fiber.warp.role()}) at {fiber.ins}")
        instructions = self.program.kernel.instructions
        ins = instructions[min(fiber.pc, len(instructions) - 1)]
        step = self.program.steps[ins.pc]
        if isinstance(step, CodeSegment):
            ins = instructions[failed_at(step, error)]
        for register in self.program.registers_read(ins):
            value = fiber.registers[register]
            if isinstance(value, Undefined) or (not isinstance(value, (int, np.ndarray)) and ins.words[0] != "wgmma"):
                return EmulatorError(f"{value}\n  {fiber.describe()} at {ins}")
        return EmulatorError(f"{type(error).__name__}: {error}\n  {fiber.describe()} at {ins}")

    # ------------------------------------------------------------ divergence

    def split(self, fiber: Fiber, meet: int, parts: list[tuple[int, int, object]]) -> int:
        """Stop a fiber; children go on with its parts until they reach pc `meet`. A part is (pc, lanes, scratch).
        Returns GONE."""
        cluster = fiber.cta.cluster
        while meet in self.parted:
            meet = self.parted[meet]
        fiber.pc, fiber.children, fiber.done = meet, len(parts), []
        cluster.ledger.renew(fiber)
        cluster.fibers.remove(fiber)
        there = meet if self.policy.pick == "in turn" else -1
        arrived: list[Fiber] = []
        ended: list[Fiber] = []
        for pc, lanes, scratch in parts:
            # A child that begins at the meeting point writes no register, and has its turn at once.
            registers = fiber.registers if pc == there else list(fiber.registers)
            child = Fiber(fiber.warp, registers, pc, lanes, fiber, meet)
            child.scratch = scratch
            cluster.start(child, fiber)
            if pc == there:
                arrived.append(child)
            elif pc < self.program.size and self.program.ends(pc):
                ended.append(child)
        fiber.dirty = 0  # what the children keep of it comes back with them
        for child in arrived:
            cluster.ready.remove(child)
            self._finish(cluster, child, False)
        for child in ended:  # so that the others do not wait for these
            child.ins = self.program.kernel.instructions[child.pc]
            self.counts.executed[child.pc] = fiber.warp.did[child.pc] = 1
            self.counts.instructions[child.ins.opcode] += 1
            cluster.ready.remove(child)
            self.exit(child)
        return GONE

    def _wait_apart(self, cluster: Cluster, fiber: Fiber, found: Apart) -> None:
        """Let a fiber wait for lanes on other ways, unless all of them are there."""
        assert fiber.ins is not None
        self.counts.instructions[fiber.ins.opcode] -= 1  # it is executed when the lanes are there
        fiber.apart = found
        cluster.apart.append(fiber)
        there = [
            one for one in cluster.apart
            if one.warp is fiber.warp and one.stack is fiber.stack and one.apart is not None
            and (one.apart.needed, one.apart.form) == (found.needed, found.form)
        ]  # fmt: skip
        if found.needed & fiber.warp.alive & ~sum(one.lanes for one in there):
            self._look_apart(cluster, fiber.warp)
            return
        together = Fiber(fiber.warp, [], there[0].pc, sum(one.lanes for one in there), None, there[0].pc + 1)
        together.gathering = Gathering(self.program, there)
        together.registers = together.gathering.registers
        together.stack = together.home = fiber.stack
        together.knows = cluster.ledger.knowledge()
        for one in there:
            cluster.ledger.renew(one)
            cluster.apart.remove(one)
            cluster.fibers.remove(one)
            one.apart = None
            together.dirty |= one.dirty
        self._learn(cluster, together, [(one, False) for one in there])
        together.epoch = cluster.ledger.event(False, together.describe)
        cluster.fibers.append(together)
        cluster.ready.append(together)

    def _go_on_apart(self, cluster: Cluster, together: Fiber) -> None:
        """Let fibers that executed an instruction together go on, each on its own way."""
        assert together.gathering is not None
        cluster.ledger.renew(together)
        together.gathering.give_back(together)
        for fiber in together.gathering.members:
            cluster.start(fiber, together)

    def _look_apart(self, cluster: Cluster, warp: Warp) -> None:
        """Let fibers of a warp go on alone if all its lanes wait."""
        mine = [fiber for fiber in cluster.fibers if fiber.warp is warp]
        if mine and all(fiber.apart is not None for fiber in mine):
            self._go_alone(cluster, mine)

    def _go_alone(self, cluster: Cluster, fibers: list[Fiber], alone: bool = True) -> None:
        """Let fibers that wait for lanes execute their instruction; alone: without those lanes."""
        for fiber in fibers:
            fiber.apart, fiber.alone = None, alone
            cluster.apart.remove(fiber)
            cluster.ready.append(fiber)

    def _part(self, cluster: Cluster) -> bool:
        """Let lanes go on that wait for lanes of their warp, which only poll. False if no lanes wait so.

        A GPU schedules threads independently: a lane that holds a lock leaves its loop and releases it, while other
        lanes of the warp ask for it. They meet again at the next instruction that needs the warp.
        """
        for fiber in cluster.ready:
            child = fiber
            while (parent := child.parent) is not None:
                waiting = [one for one, gone in parent.done if not gone]
                if waiting:
                    meet = self.program.next_meeting(parent.pc)
                    if meet == parent.pc:
                        return False
                    self.parted[parent.pc] = meet
                    parent.done = [(one, gone) for one, gone in parent.done if gone]
                    parent.children += len(waiting)
                    parent.pc = meet
                    for one in {*waiting, *_children(cluster, parent)}:
                        one.meet = meet
                    cluster.fibers += waiting
                    cluster.ready.extend(waiting)
                    return True
                child = parent
        return False

    def exit(self, fiber: Fiber) -> int:
        """End the fiber's lanes. Returns GONE."""
        cta, cluster = fiber.cta, fiber.cta.cluster
        if self.trace is not None:
            self.trace.ended(fiber)
        cluster.ledger.release(fiber, cta.exit_knows)
        fiber.warp.alive &= ~fiber.lanes
        count = fiber.lanes.bit_count()
        cta.alive -= count
        if cta.alive == 0:
            cta.exited = True
            for check in cta.scratch.get("at exit", ()):
                check()
        for notice in cluster.scratch.get("on exit", ()):
            notice(fiber, count)
        if cluster.apart:  # the lanes that they wait for may have ended
            self._go_alone(cluster, [one for one in cluster.apart if one.warp is fiber.warp], False)
        self._finish(cluster, fiber, True)
        return GONE

    def _finish(self, cluster: Cluster, fiber: Fiber, exited: bool) -> None:
        """End a fiber at its reconvergence point or at its exit."""
        cluster.fibers.remove(fiber)
        if fiber.gathering is not None:
            self._go_on_apart(cluster, fiber)
            return
        parent = fiber.parent
        if parent is None:
            cluster.running -= 1
            return
        cluster.ledger.renew(fiber)
        parent.done.append((fiber, exited))
        parent.children -= 1
        if parent.children:
            if cluster.apart:
                self._look_apart(cluster, fiber.warp)
            return
        rest = [child for child, gone in parent.done if not gone]
        for child, _ in parent.done:
            parent.dirty |= child.dirty
        self._learn(cluster, parent, parent.done)
        if rest:
            self._join(parent, rest)
        for child, _ in parent.done:
            child.retire()
        if not rest:
            cluster.fibers.append(parent)
            self._finish(cluster, parent, True)
            return
        # Its epoch may have been forgotten while it was stopped, which would mean that all fibers know of it.
        parent.epoch, parent.joint = cluster.ledger.event(False, parent.describe), None
        cluster.fibers.append(parent)
        cluster.ready.append(parent)

    @staticmethod
    def _learn(cluster: Cluster, fiber: Fiber, parts: list[tuple[Fiber, bool]]) -> None:
        """Give a fiber the knowledge of its parts, (fiber, whether its lanes have ended)."""
        if not cluster.ledger.lanes:
            for one, _ in parts:
                fiber.knows.merge(one.knows)
                fiber.knows.own |= one.knows.own
        elif rest := [(one.lanes, one.knows) for one, gone in parts if not gone]:
            join(cluster.ledger, fiber.knows, rest, [one.knows for one, gone in parts if gone], fiber.warp.source)

    def _join(self, parent: Fiber, children: list[Fiber]) -> None:
        """Merge the children's live written registers into the parent, lane by lane."""
        written = lanes = 0
        for child in children:
            written |= child.written
            lanes |= child.lanes
        parent.written |= written
        parent.lanes = lanes
        parent.active = None if lanes == FULL else bool_of(lanes)
        first, *others = children
        if not others:
            parent.registers[:] = first.registers
            return
        wanted = self.program.live.get(parent.pc, -1) & written
        for register in set_bits(wanted):
            value = first.registers[register]
            for child in others:
                wide = bool(self.program.wide >> register & 1)
                value = merged_register(value, child.registers[register], child.lanes, lanes, wide)
            parent.registers[register] = value


def _children(cluster: Cluster, parent: Fiber) -> set[Fiber]:
    """The children of a stopped fiber that run, or that have stopped for their own."""
    found = set()
    for running in cluster.fibers:
        for fiber in (running,) if running.gathering is None else running.gathering.members:
            while fiber.parent is not None:
                if fiber.parent is parent:
                    found.add(fiber)
                fiber = fiber.parent
    return found


def _geometry(launch: Launch, program: Program) -> str:
    """The reason why no GPU can run this launch, or ""."""
    for name, sizes in (("grid", launch.grid), ("block", launch.block), ("cluster", launch.cluster)):
        most = MOST[name]
        if any(not 1 <= size <= limit for size, limit in zip(sizes, most, strict=True)):
            return f"a {name} of {shown(sizes)}: from 1 to {most} along each axis"
    threads, blocks = prod(launch.block), prod(launch.cluster)
    if threads > MAX_THREADS:
        return f"a block of {launch.block} has {threads} threads, and {MAX_THREADS} are the most"
    facts, static = facts_of(program.kernel.target), sum([one.size for one in program.kernel.shared])
    if static + launch.dynamic_shared > facts.smem_per_block:
        both = f"{static} bytes of static and {shown(launch.dynamic_shared)} of dynamic shared memory"
        return f"{both}, and a block on {facts.name} has {facts.smem_per_block} at most"
    if blocks > facts.cluster_max:
        return f"a cluster of {launch.cluster} has {blocks} blocks, and {facts.name} has {facts.cluster_max} at most"
    if prod(launch.grid) > MAX_GRID:
        return f"a grid of {launch.grid} has {prod(launch.grid)} blocks: more than {MAX_GRID} are not emulated"
    return ""


def lanes_where(fiber: Fiber, predicate: Value, negated: bool) -> int:
    """The fiber's lanes for which a predicate register holds, as a bit mask."""
    if isinstance(predicate, np.ndarray):
        return mask_of(predicate ^ negated, fiber.lanes)
    return fiber.lanes if bool(predicate) != negated else 0
