"""Symmetric memory of a group's products. Buffers, flags, the record of a failed wait, and a side stream.

    flags     one a chunk, and of a scatter one more: what has arrived here (`kernels.sm90.shards`)
    begun     a word that says that the rank before may be sent to
    buffer    gathered rows and their scales, or rooms of partial sums

A workspace is made once for a group and its sizes, by all ranks together, and used by every later call. Its bytes are
those of torch.distributed._symmetric_memory: each rank has the addresses of its peers' (NVLink or PCIe peer access).
NVLink multicast is not used.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..errors import OperandError, RankError
from ..kernels.plan import rounded_up
from ..kernels.run.stream_memory import (
    MemoryOperation,
    copy_bytes,
    follow,
    memory_operations,
    new_event,
    new_stream,
    recorded,
    replay,
    wait,
    write,
)
from ..kernels.sm90.shards import MAX_RANKS, RECORD_WORDS, Patience
from .checks import check_alike

MAX_GRAPHS, MAX_SEEN = 256, 65536  # addresses of own rows: beyond, sends are put on the stream one by one
_ALIGNMENT = 4096  # of the buffer behind the flags
_is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
_WORKSPACES: dict[tuple[object, ...], Workspace] = {}


class Send(NamedTuple):
    """Memory operations of the side stream, and a copy behind them.

    source   an address; of own rows, which may lie elsewhere in each call, their byte
    of_rows  True for own rows
    nbytes   of the copy, 0 for none
    """

    operations: tuple[MemoryOperation, ...]
    destination: int = 0
    source: int = 0
    nbytes: int = 0
    of_rows: bool = False


@dataclass(eq=False)
class Workspace:
    """The memory of one kind of product of a group.

    memory    this rank's part of the symmetric memory
    record    a host's words that a kernel writes before it stops
    extra     further memory of this rank's GPU: counters, tables
    side      the handle of the stream of the copy engines, which nothing else uses
    sends     what goes to the rank before in each call, by copy engines
    graphs    of all sends, by the address of own rows; `seen` has those that have come once
    reported  whether a RankError has named the wait that a kernel gave up
    rank, ranks  this rank of the group, and how many there are
    starts    the address of each rank's memory, in this rank's address space
    """

    handle: Any
    memory: torch.Tensor
    flag_count: int
    chunks: int
    record: torch.Tensor
    side: int
    timeout: float
    name: str
    extra: dict[str, torch.Tensor] = field(default_factory=dict)
    sends: tuple[Send, ...] = ()
    views: dict[tuple[object, ...], torch.Tensor] = field(default_factory=dict)
    graphs: dict[int, object] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    reported: bool = False
    rank: int = field(init=False)
    ranks: int = field(init=False)
    starts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        # The handle makes a list of its addresses at each question: some microseconds, many times a call.
        self.rank, self.ranks = int(self.handle.rank), int(self.handle.world_size)
        self.starts = tuple([int(at) for at in self.handle.buffer_ptrs])

    @property
    def patience(self) -> Patience:
        """The limit of a wait for a flag, as the kernel counts it."""
        return Patience.of_seconds(self.timeout)

    @functools.cached_property
    def events(self) -> tuple[int, int]:
        """The driver's events of `fork` and `join`."""
        return new_event(), new_event()

    @functools.cached_property
    def given_up(self) -> ctypes.c_int32:
        """The record's first word: 0 while each wait has ended with what it waited for."""
        return ctypes.c_int32.from_address(self.record.data_ptr())

    @functools.cached_property
    def flags(self) -> torch.Tensor:
        """This rank's flags."""
        return self.memory[: 4 * self.flag_count].view(torch.int32)

    @functools.cached_property
    def first(self) -> int:
        """The buffer's first byte."""
        return buffer_offset(self.flag_count)

    def buffer(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype, byte: int = 0) -> torch.Tensor:
        """A rank's buffer from a byte on, in this rank's address space."""
        key = rank, shape, dtype, byte
        if key not in self.views:
            self.views[key] = self.handle.get_buffer(rank, shape, dtype, (self.first + byte) // dtype.itemsize)
        return self.views[key]

    def address(self, rank: int, byte: int = 0) -> int:
        """The address of a byte of a rank's buffer, in this rank's address space."""
        return self.starts[rank] + self.first + byte

    def flag_address(self, rank: int, flag: int) -> int:
        """The address of a rank's flag."""
        return self.starts[rank] + 4 * flag

    @property
    def before(self) -> int:
        """The rank that this one sends to."""
        return (self.rank - 1) % self.ranks

    @property
    def next(self) -> int:
        """The rank that sends to this one."""
        return (self.rank + 1) % self.ranks

    def arrival(self, rank: int, flag: int) -> MemoryOperation:
        """Set a rank's flag, behind what was copied there."""
        return write(self.flag_address(rank, flag), 1)

    def meeting(self) -> tuple[MemoryOperation, ...]:
        """Tell the next rank that it may send, and wait for the rank before.

        The wait has no limit: the kernel's flags wait for the same ranks, and that wait ends. The word is 0 again
        before that rank can begin once more: that takes what this rank sends behind.
        """
        told = write(self.flag_address(self.next, self.flag_count), 1)
        own = self.flag_address(self.rank, self.flag_count)
        return told, wait(own, 1), write(own, 0)

    def fork(self, stream: int) -> None:
        """Let the side stream wait for what is on a stream."""
        follow(self.side, stream, self.events[0])

    def join(self, stream: int) -> None:
        """Let a stream wait for what is on the side stream."""
        follow(stream, self.side, self.events[1])

    def send(self, rows: int = 0) -> None:
        """Put all sends on the side stream. One launch of a graph does it, once they have been seen for these rows.

        rows  the address of own rows
        """
        graph = self.graphs.get(rows)
        if graph is None or _is_capturing():  # a user's graph takes the operations themselves
            self._send(rows)
            if graph is None and not _is_capturing():
                self._record(rows)
        else:
            replay(self.side, graph)

    def _send(self, rows: int) -> None:
        stream = self.side
        for operations, destination, source, nbytes, of_rows in self.sends:
            memory_operations(stream, operations)
            if nbytes:
                copy_bytes(stream, destination, source + (rows if of_rows else 0), nbytes)

    def _record(self, rows: int) -> None:
        """Keep a graph of the sends of rows that come a second time."""
        if len(self.graphs) >= MAX_GRAPHS or len(self.seen) >= MAX_SEEN:
            return
        if rows not in self.seen:
            self.seen.add(rows)
        else:
            self.graphs[rows] = recorded(self.side, lambda: self._send(rows))

    def require_alive(self) -> None:
        """Raise RankError if a kernel of an earlier call has given up a wait."""
        if self.given_up.value:
            self.reported = True
            flag, seen, target, rank = self.record.tolist()
            raise RankError(
                f"{self.name}: rank {rank} waited {self.timeout:g} s for flag {flag - 1}, which was {seen} and not "
                f"{target}: {self.meaning(flag - 1)} did not arrive. A rank has ended, has not called, or with "
                "other sizes; restart the process, whose CUDA context is gone"
            )

    def meaning(self, flag: int) -> str:
        """The chunk or the beginning that a flag stands for."""
        shard, chunk = flag // self.chunks, flag % self.chunks
        if self.name.startswith("all_gather"):
            return f"chunk {chunk} of rank {shard}, by way of rank {self.next},"
        if shard == self.ranks - 1:
            return f"the beginning of rank {self.before}'s call"
        return f"chunk {chunk} of the sums for rank {(self.rank + 2 + shard) % self.ranks}, from rank {self.next},"


def buffer_offset(flags: int) -> int:
    """Bytes of symmetric memory before the buffer. They hold flags, and a word that the rank before has begun."""
    return rounded_up(4 * (flags + 1), _ALIGNMENT)


def workspace_of(
    name: str, group: dist.ProcessGroup, device: torch.device, flags: int, buffer_bytes: int, chunks: int,
    timeout: float, facts: tuple[object, ...],
) -> Workspace:  # fmt: skip
    """The group's workspace for a problem, made on its first call by all ranks together.

    facts  of the call, which have to be the same on all ranks: they are compared before memory is made

    Raises OperandError for a group of more than 8 ranks, other facts on another rank, or without symmetric memory;
    RankError for a rank that does not come.
    """
    key = (name, group, device, *facts)
    found = _WORKSPACES.get(key)
    if found is None:
        found = _WORKSPACES[key] = _made(name, group, device, flags, buffer_bytes, chunks, timeout, facts)
    found.timeout = timeout
    return found


def _made(
    name: str, group: dist.ProcessGroup, device: torch.device, flags: int, buffer_bytes: int, chunks: int,
    timeout: float, facts: tuple[object, ...],
) -> Workspace:  # fmt: skip
    ranks = group.size()
    if not 2 <= ranks <= MAX_RANKS:
        raise OperandError(f"{name}: a group of {ranks} rank(s); kernels are for 2 to {MAX_RANKS} GPUs of one host")
    check_alike(name, group, facts, timeout)
    try:
        import torch.distributed._symmetric_memory as symmetric

        memory = symmetric.empty(buffer_offset(flags) + buffer_bytes, dtype=torch.uint8, device=device)
        memory[: buffer_offset(flags)].zero_()
        torch.cuda.synchronize(device)  # before a peer can know the address
        handle = symmetric.rendezvous(memory, group)
    except (ImportError, RuntimeError) as error:
        raise OperandError(f"{name}: the group has no symmetric memory: {error}") from error
    if handle is None:
        raise OperandError(f"{name}: the group has no symmetric memory: its GPUs are not peers of one host")
    record = torch.zeros(RECORD_WORDS, dtype=torch.int32, pin_memory=True)
    with torch.cuda.device(device):
        side = new_stream()
    return Workspace(handle, memory, flags, chunks, record, side, timeout, name)


def raise_if_given_up(cause: BaseException | None = None) -> None:
    """Raise RankError, of that cause, if some kernel has given up a wait."""
    for workspace in _WORKSPACES.values():
        try:
            workspace.require_alive()
        except RankError as named:
            raise named from cause


@atexit.register
def _say_at_exit() -> None:
    """Name rank and flag at the process's end, where torch named a launch failure alone."""
    for workspace in _WORKSPACES.values():
        if not workspace.reported:
            try:
                workspace.require_alive()
            except RankError as named:
                print(f"layoutgemm: {named}", file=sys.stderr, flush=True)


def check_ranks() -> None:
    """Wait for this process's products of shards; raise RankError where a rank did not come.

    torch reports a stopped kernel as a launch failure, at any later call. This names the rank and the flag. So do
    later calls of products of shards, and a line on stderr where a process ends without either.

    >>> check_ranks()  # nothing has run
    """
    failure: RuntimeError | None = None
    if _WORKSPACES:
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            failure = error
    raise_if_given_up(failure)
    if failure is not None:
        raise failure
