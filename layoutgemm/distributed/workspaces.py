"""Symmetric memory of a group's products: buffers, flags, the record of a failed wait, and a side stream.

A workspace is made once for a group and its sizes, by all ranks together, and used by every later call. Its bytes are
those of torch.distributed._symmetric_memory: each rank has the addresses of its peers' (NVLink or PCIe peer access).
NVLink multicast is not used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from ..errors import OperandError, RankError
from ..kernels.plan import rounded_up
from ..kernels.run.stream_memory import write_value
from ..kernels.sm90.shards import MAX_RANKS, RECORD_WORDS

POLLS_PER_SECOND = 1_300_000  # loads of a flag in a second: one takes about 0.75 us on an H100
_ALIGNMENT = 4096  # of the buffer behind the flags
_WORKSPACES: dict[tuple[object, ...], Workspace] = {}


@dataclass
class Workspace:
    """The memory of one kind of product of a group.

    buffer    this rank's part of the symmetric memory, behind the flags
    flags     words that say what has arrived here, one a chunk; counters: of tiles that are stored here
    record    a host's words that a kernel writes before it stops
    side      the stream of the copy engines
    """

    handle: Any
    memory: torch.Tensor
    flag_count: int
    counters: torch.Tensor
    record: torch.Tensor
    side: torch.cuda.Stream
    timeout: float
    name: str
    extra: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """This rank of the group."""
        return int(self.handle.rank)

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return int(self.handle.world_size)

    @property
    def polls(self) -> int:
        """Loads of a flag before a wait ends."""
        return min((1 << 31) - 1, max(1, int(self.timeout * POLLS_PER_SECOND)))

    @property
    def flags(self) -> torch.Tensor:
        """This rank's flags."""
        return self.memory[: 4 * self.flag_count].view(torch.int32)

    def buffer(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A rank's buffer, in this rank's address space."""
        offset = _buffer_offset(self.flag_count) // dtype.itemsize
        found: torch.Tensor = self.handle.get_buffer(rank, shape, dtype, offset)
        return found

    def arrive(self, rank: int, flag: int) -> None:
        """Set a rank's flag, on the side stream after what was copied there."""
        write_value(self.side.cuda_stream, int(self.handle.buffer_ptrs[rank]) + 4 * flag, 1)

    def meet(self) -> None:
        """All ranks meet, on the current stream; a rank that does not come within the timeout ends the launch."""
        self.handle.barrier(channel=0, timeout_ms=max(1, int(self.timeout * 1000)))

    def require_alive(self) -> None:
        """Raise RankError if a kernel of an earlier call has given up a wait."""
        flag, seen, target, rank = self.record.tolist()
        if flag:
            raise RankError(
                f"{self.name}: rank {rank} waited {self.timeout:g} s for flag {flag - 1}, which was {seen} and not "
                f"{target}: {self.meaning(flag - 1)} did not arrive. A rank has ended or has not called; restart the "
                "process, whose CUDA context is gone"
            )

    def meaning(self, flag: int) -> str:
        """The chunk and the rank that a flag stands for."""
        per_rank = self.flag_count // (self.ranks if self.name.startswith("all_gather") else self.ranks - 1)
        sender = flag // per_rank
        if not self.name.startswith("all_gather"):
            sender += sender >= self.rank
        return f"chunk {flag % per_rank} of rank {sender}"


def _buffer_offset(flags: int) -> int:
    return rounded_up(4 * flags, _ALIGNMENT)


def workspace_of(
    name: str, group: dist.ProcessGroup, device: torch.device, flags: int, buffer_bytes: int, chunks: int,
    timeout: float, facts: tuple[object, ...],
) -> Workspace:  # fmt: skip
    """The group's workspace for a problem, made on its first call by all ranks together.

    facts  of the call, which have to be the same on all ranks: they are compared before memory is made

    Raises OperandError for a group of more than 8 ranks, other facts on another rank, or without symmetric memory.
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
    every: list[Any] = [None] * ranks
    dist.all_gather_object(every, facts, group=group)
    for rank, other in enumerate(every):
        if other != facts:
            raise OperandError(f"{name}: rank {group.rank()} has {facts}, rank {rank} has {other}: all call alike")
    try:
        import torch.distributed._symmetric_memory as symmetric

        memory = symmetric.empty(_buffer_offset(flags) + buffer_bytes, dtype=torch.uint8, device=device)
        handle = symmetric.rendezvous(memory, group)
    except (ImportError, RuntimeError) as error:
        raise OperandError(f"{name}: the group has no symmetric memory: {error}") from error
    if handle is None:
        raise OperandError(f"{name}: the group has no symmetric memory: its GPUs are not peers of one host")
    memory[: 4 * flags].zero_()
    counters = torch.zeros(ranks * chunks, dtype=torch.int32, device=device)
    record = torch.zeros(RECORD_WORDS, dtype=torch.int32, pin_memory=True)
    side = torch.cuda.Stream(device, priority=-1)
    return Workspace(handle, memory, flags, counters, record, side, timeout, name)


def check_ranks() -> None:
    """Wait for this process's products of shards; raise RankError where a rank did not come.

    torch reports a stopped kernel as a launch failure, at any later call. This names the rank and the flag.

    >>> check_ranks()  # nothing has run
    """
    failure: RuntimeError | None = None
    if _WORKSPACES:
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            failure = error
    for workspace in _WORKSPACES.values():
        try:
            workspace.require_alive()
        except RankError as named:
            raise named from failure
    if failure is not None:
        raise failure
