"""Tensor memory of a block, and the tensor-core engine of one warp.

The layouts of `atoms/tmem/layout.py` give the place of a matrix, evaluated once into arrays of lanes, columns and bits.
Fresh tensor memory has the policy's fill, NaN by default. An allocation never begins at column 0 unless it takes all
columns. Every access must lie in allocated columns. The race checker sees strips of 16 lanes and single columns.

PTX ISA, "Tensor Memory" and "Memory Consistency Model for 5th generation of TensorCore operations". One thread's
tensor-core operations (tcgen05.mma, cp, shift) run in order in `TensorCores`, with the exceptions in
`emulator/ops/tcgen05/shift.py`. tcgen05.commit and an mbarrier order everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ....atoms.tmem.layout import COLUMNS, LANES, tmem_coordinate
from ....errors import AtomError, EmulatorError
from ....layouts import Layout
from ....layouts.basis import component
from ...machine.interpreter import Cta, Fiber
from ...ptx.parser import PtxInstruction
from ...races.happens_before import Knowledge, MemoryEvent, ShadowMemory
from ...races.lanes import NOTHING
from ..mma.operands import bits_of
from ..registry import ELECT
from .waits import fenced_knowledge, known_beside

Item = TypeVar("Item", np.uint32, np.bool_)
STRIP = 16  # lanes that the race checker tracks together
Indices = npt.NDArray[np.int64]


class TensorMemory:
    """The tensor memory of one block.

    words        [lane, column]; written: which of them ever were; fill: the bits of the others
    allocations  first column -> (columns, the instruction that allocated them)
    owned        which columns are allocated
    history      the allocations in order: the blocks of a pair get the same columns for the same request
    allocators   first column -> the warp that allocated it last
    freed        column -> (its last deallocation, what that is)
    """

    def __init__(self, cta: Cta) -> None:
        self.fill = 0x01010101 * cta.cluster.machine.policy.fill
        self.words = np.full((LANES, COLUMNS), self.fill, dtype=np.uint32)
        self.written = np.zeros((LANES, COLUMNS), dtype=bool)
        self.allocations: dict[int, tuple[int, PtxInstruction]] = {}
        self.owned = np.zeros(COLUMNS, dtype=bool)
        self.history: list[tuple[int, int]] = []
        self.allocators: dict[int, int] = {}
        self.freed: dict[int, tuple[MemoryEvent, Callable[[], str]]] = {}
        self.relinquished = False
        self.group: int | None = None
        self.waiting: list[Fiber] = []

        def name(place: int) -> str:
            strip, column = divmod(place, COLUMNS)
            lanes = f"lanes {strip * STRIP}..{strip * STRIP + STRIP - 1}"
            return f"tensor memory of CTA {cta.coordinate}, {lanes}, column {column}"

        self.shadow = ShadowMemory(cta.cluster.ledger, name)
        cta.scratch.setdefault("at exit", []).append(lambda: self._ended(cta))

    def _ended(self, cta: Cta) -> None:
        for column, (count, ins) in self.allocations.items():
            cta.cluster.machine.problem(
                "exit",
                f"CTA {cta.coordinate} ends with {count} columns allocated, from column {column}",
                None,
                ins,
                orders="tcgen05.dealloc by the warp that allocated them, after the last access, frees the columns.",
            )

    @property
    def live(self) -> str:
        """The columns that are allocated, for messages."""
        return ", ".join(f"{count} from column {at}" for at, (count, _) in self.allocations.items()) or "none"

    def check(self, fiber: Fiber, lane: int, column: int, lanes: int, columns: int) -> None:
        """Raise EmulatorError for an access outside tensor memory or allocated columns.

        One that nothing orders after the deallocation is a race instead, and sees the words as they are.
        """
        if lane + lanes > LANES or column + columns > COLUMNS:
            raise EmulatorError(
                f"tensor memory has lanes 0..{LANES - 1} and columns 0..{COLUMNS - 1}; this reaches "
                f"({lane + lanes - 1}, {column + columns - 1}); allocated are: {self.live}"
            )
        if self.owned[column : column + columns].all():
            return
        at = column + int(np.nonzero(~self.owned[column : column + columns])[0][0])
        if at not in self.freed:
            raise EmulatorError(f"column {at} of tensor memory is not allocated; allocated are: {self.live}")
        event, freed = self.freed[at]
        if fiber.machine.policy.races and not fiber.cta.cluster.ledger.knows(fiber.knows, event):
            message = f"this reaches column {at} of tensor memory, and before it {freed()} has freed that; {NOTHING}"
            orders = "A barrier or an mbarrier after the last access and before tcgen05.dealloc orders them."
            fiber.machine.problem("race", message, fiber, orders=orders)
            return
        raise EmulatorError(f"column {at} of tensor memory is not allocated: {freed()} has freed it")

    def forget(self, places: int) -> None:
        """Drop the accesses to these places: their next owner allocates them after the release."""
        self.shadow.clear(places)


def tensor_of(cta: Cta) -> TensorMemory:
    """The block's tensor memory."""
    found = cta.scratch.get("tensor")
    if found is None:
        found = cta.scratch["tensor"] = TensorMemory(cta)
    return found


def group_of(fiber: Fiber, size: int, alive: bool = True) -> list[Cta]:
    """The blocks that work together. The fiber's own or its pair, of one size in a kernel; alive: both run."""
    tensor = tensor_of(fiber.cta)
    if tensor.group not in (None, size):
        fiber.machine.problem(
            "protocol",
            f"cta_group::{size} in a kernel that uses cta_group::{tensor.group}: one for all",
            fiber,
            orders="The same .cta_group at every tcgen05 instruction of a kernel is defined.",
        )
    tensor.group = size
    if size == 1:
        return [fiber.cta]
    first = fiber.cta.rank & ~1
    pair = fiber.cta.cluster.ctas[first : first + 2]
    if len(pair) < 2:
        raise EmulatorError(f"cta_group::2 needs pairs of blocks; the cluster has {len(fiber.cta.cluster.ctas)}")
    if alive and any(cta.exited for cta in pair):
        raise EmulatorError("the other block of the pair has ended")
    return pair


def coordinate(address: int) -> tuple[int, int]:
    """(lane, column) of an address. Raises EmulatorError for one outside tensor memory."""
    try:
        return tmem_coordinate(address)
    except AtomError as error:
        raise EmulatorError(f"{address:#x} is not a tensor-memory address: {error}") from error


@dataclass(frozen=True, eq=False)
class TmemCoordinates:
    """Lane, column and bit of a matrix's elements, relative to its first one."""

    lane: Indices
    column: Indices
    bit: Indices

    @classmethod
    def of(cls, layout: Layout) -> TmemCoordinates:
        """The coordinates of a layout onto (lane, column, bit), one array axis for each mode."""
        shape = tuple(reversed([layout[mode].size for mode in range(layout.rank)]))

        def along(path: int) -> Indices:
            flat = Layout(layout.shape, component(layout.stride, (path,))).offsets()
            return np.ascontiguousarray(np.asarray(flat, dtype=np.int64).reshape(shape).T)

        return cls(along(0), along(1), along(2))

    def select(self, *index: int | slice) -> TmemCoordinates:
        """The coordinates at an index of the arrays."""
        return TmemCoordinates(self.lane[index], self.column[index], self.bit[index])

    @cached_property
    def lanes(self) -> int:
        """Lanes from the first to the last."""
        return int(self.lane.max()) + 1

    @cached_property
    def columns(self) -> int:
        """Columns from the first to the last."""
        return int(self.column.max()) + 1

    @cached_property
    def flat(self) -> Indices:
        """lane * COLUMNS + column."""
        return self.lane * COLUMNS + self.column

    @cached_property
    def plain(self) -> bool:
        """True if element (i, j) is in lane i, column j."""
        return self.lane.ndim == 2 and bool(
            (self.lane == np.arange(self.lane.shape[0])[:, None]).all()
            and (self.column == np.arange(self.lane.shape[1])[None, :]).all()
        )

    @cached_property
    def _strips(self) -> dict[int, int]:
        return {}

    def places(self, lane: int, column: int) -> int:
        """The bit set of strips and columns touched from this address."""
        within = lane % STRIP
        found = self._strips.get(within)
        if found is None:
            found = self._strips[within] = bits_of((self.lane + within) // STRIP * COLUMNS + self.column)
        return found << (lane // STRIP * COLUMNS + column)

    def _box(self, of: npt.NDArray[Item], lane: int, column: int) -> npt.NDArray[Item]:
        rows, count = self.lane.shape
        return of[lane : lane + rows, column : column + count]

    def read(self, tensor: TensorMemory, lane: int, column: int) -> npt.NDArray[np.uint32]:
        """The words."""
        if self.plain:
            return self._box(tensor.words, lane, column)
        return tensor.words.reshape(-1)[self.flat + (lane * COLUMNS + column)]

    def unwritten(self, tensor: TensorMemory, lane: int, column: int) -> tuple[int, int] | None:
        """(lane, column) of the first unwritten word, or None."""
        if self.plain and self._box(tensor.written, lane, column).all():
            return None
        flat = self.flat + (lane * COLUMNS + column)
        fresh = ~tensor.written.reshape(-1)[flat]
        if not fresh.any():
            return None
        at, to = divmod(int(flat[fresh][0]), COLUMNS)
        return at, to

    def write(
        self,
        tensor: TensorMemory,
        lane: int,
        column: int,
        words: npt.NDArray[np.uint32],
        kept: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Store words; `kept`, in the same shape, marks words that do not change."""
        if kept is None and self.plain:
            self._box(tensor.words, lane, column)[:] = words
            self._box(tensor.written, lane, column)[:] = True
            return
        flat = self.flat + (lane * COLUMNS + column)
        if kept is not None:
            flat, words = flat[~kept], np.broadcast_to(words, self.flat.shape)[~kept]
        tensor.words.reshape(-1)[flat] = words
        tensor.written.reshape(-1)[flat] = True

    def forget(self, tensor: TensorMemory, lane: int, column: int, words: npt.NDArray[np.bool_]) -> None:
        """Count these words, in the shape of `words`, as unwritten."""
        tensor.written.reshape(-1)[(self.flat + (lane * COLUMNS + column))[words]] = False


class TensorCores:
    """The tensor cores of one warp, which run its operations in order.

    queue   what has not run yet (policy "late"), in order
    issued  the events of all of it
    moves   copies and shifts, in a kernel with shifts: (what, event, block, places, text)
    open    what was issued last, where no commit has followed it so far
    """

    def __init__(self, fiber: Fiber) -> None:
        self.moves: list[tuple[str, MemoryEvent, Cta, int, str]] = []
        self.queue: list[Callable[[], None]] = []
        self.issued: Knowledge = fiber.cta.cluster.ledger.knowledge()
        self.open: Callable[[], str] | None = None

    def event(self, fiber: Fiber, ins: PtxInstruction) -> MemoryEvent:
        """A new event of the engine."""
        ledger, who = fiber.cta.cluster.ledger, fiber.describe()
        self.open = lambda: f"{ins.opcode} at {ins.where} by {who}"
        found = ledger.event(True, self.open, self)
        ledger.learn(self.issued, found)
        return found

    def add(self, fiber: Fiber, action: Callable[[], None]) -> None:
        """Append an action to the queue."""
        if fiber.machine.policy.products == "early":
            action()
        else:
            self.queue.append(action)

    def run(self, count: int) -> None:
        """Run the first `count` actions of the queue."""
        for _ in range(count):
            self.queue.pop(0)()


def engine_of(fiber: Fiber) -> TensorCores:
    """The engine of the fiber's warp."""
    found = fiber.warp.scratch.get("engine")
    if found is None:
        found = fiber.warp.scratch["engine"] = TensorCores(fiber)
    return found


def one_thread(fiber: Fiber) -> None:
    """Report an instruction that several active lanes issue where one is meant."""
    if fiber.lanes.bit_count() != 1:
        assert fiber.ins is not None
        fiber.machine.problem(
            "protocol",
            f"{fiber.ins.opcode} is issued by {fiber.lanes.bit_count()} lanes, each for itself: one has to be elected",
            fiber,
            orders=ELECT,
        )


def touch(
    fiber: Fiber,
    cta: Cta,
    places: int,
    write: bool,
    what: Callable[[], str],
    event: MemoryEvent | None = None,
    stored: int = 0,
) -> None:
    """Record an access to tensor memory and report its races. `stored` are, of a store, the warp's others in flight.

    By PTX a thread's knowledge of others is that of its last tcgen05.fence::after_thread_sync. With the policy's
    `tensor_strict` that alone counts. Else an access without it is lint, once for a line of the program.
    """
    if write and fiber.warp.settles is not None:
        fiber.warp.settles(fiber)
    knows, fenced, unfenced = fiber.knows, fenced_knowledge(fiber), 0
    event = event or cta.cluster.ledger.joint(fiber)
    told, line = fiber.machine.scratch.setdefault("unfenced", set()), fiber.ins and (fiber.ins.source or fiber.ins.pc)
    if fiber.machine.policy.tensor_strict:
        knows = fenced
        knows.seen |= fiber.knows.own
    else:
        if stored or (beside := known_beside(fiber)) is not None:
            knows = cta.cluster.ledger.knowledge(knows)
            if (beside := known_beside(fiber)) is not None:
                knows.merge(beside)
            knows.seen |= fiber.knows.own | stored
            knows.unfenced |= stored
        if line not in told:
            unfenced = knows.seen & ~(fenced.seen & ~fenced.unfenced | fiber.knows.own)
    if fiber.machine.trace is not None:
        fiber.machine.trace.access(fiber, "tensor", cta, places, write, event, knows, False)
    race = tensor_of(cta).shadow.access(places, write, event, knows, False, what, event, unfenced=unfenced)
    if race is not None:
        if race.lint:
            told.add(line)
        fiber.machine.conflict(race, fiber)
