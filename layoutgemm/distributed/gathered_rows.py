"""The rows of all ranks. Where they lie, how they come, and a call that brings them without a product.

Copy engines move them around the ring of ranks: own rows to the rank before, then those that have come from the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from ..kernels.run.stream_memory import clear_words, copy_bytes, memory_operations, wait
from ..kernels.sm90.plan import Sm90Plan
from ..torch_op.launch import raw_stream
from .workspaces import Send, Workspace

FLOAT = torch.float32.itemsize
_CHUNK_BYTES = 32 << 20  # of a chunk at least, see `shard_plans`
_MAX_CHUNKS = 4  # of a rank's rows: more copies cost more launches of the host than they hide


class RankRows(NamedTuple):
    """The rows of all ranks, one behind the other.

    m       how many
    nbytes  of a row
    scaled  True for a float32 for each row, all behind the rows: each product of float8 has scales
    chunks  of a rank's rows, each with a flag of its own

    >>> RankRows(512, 128, scaled=True, chunks=1).total
    67584
    """

    m: int
    nbytes: int
    scaled: bool
    chunks: int

    @classmethod
    def of(cls, plan: Sm90Plan, chunks: int) -> RankRows:
        """A gather's."""
        return cls(plan.m, plan.k * plan.a.dtype.bytes, plan.a.dtype.bits == 8, chunks)

    @property
    def total(self) -> int:
        """Bytes of all."""
        return self.m * (self.nbytes + FLOAT * self.scaled)


def sent_chunks(rows: int, nbytes: int) -> int:
    """The chunks in which a rank's rows are sent. A divisor of them, each 32 MiB or more, four at most.

    rows    of a rank
    nbytes  of a row

    >>> sent_chunks(4096, 8192), sent_chunks(8192, 28672), sent_chunks(8191, 28672)
    (1, 4, 1)
    """
    return divisor(rows, min(_MAX_CHUNKS, rows * nbytes // _CHUNK_BYTES))


def divisor(value: int, most: int) -> int:
    """The largest divisor of a value up to `most`, 1 at least.

    >>> divisor(12, 5), divisor(7, 4)
    (4, 1)
    """
    return next((count for count in range(most, 1, -1) if value % count == 0), 1)


def sends_of_rows(workspace: Workspace, of: RankRows) -> Iterator[Send]:
    """Own rows to the rank before, then those that have come from the next one. A flag for each chunk."""
    rank, ranks, to, chunks = workspace.rank, workspace.ranks, workspace.before, workspace.chunks
    rows = of.m // ranks
    step = rows // chunks * of.nbytes
    first = workspace.meeting()
    for distance in range(ranks - 1):
        shard = (rank + distance) % ranks
        for chunk in range(chunks):
            flag = shard * chunks + chunk
            if distance:
                first += (wait(workspace.flag_address(rank, flag), 1),)
            if chunk == 0 and of.scaled:
                scales = of.m * of.nbytes + shard * rows * FLOAT
                yield Send(first, workspace.address(to, scales), workspace.address(rank, scales), rows * FLOAT)
                first = ()
            source = workspace.address(rank, flag * step) if distance else chunk * step
            yield Send(first, workspace.address(to, flag * step), source, step, of_rows=not distance)
            first = (workspace.arrival(to, flag),)
    yield Send(first)


def clear_flags(workspace: Workspace, stream: int) -> None:
    """Set all flags to 0: no rows have come."""
    clear_words(stream, workspace.flag_address(workspace.rank, 0), workspace.flag_count)


def fill_own(workspace: Workspace, a: torch.Tensor) -> None:
    """Copy own rows to their place among all, on the side stream."""
    place = workspace.address(workspace.rank, workspace.rank * a.nbytes)
    copy_bytes(workspace.side, place, a.data_ptr(), a.nbytes)


class RowsCall:
    """The rows of all ranks, gathered beside a product that does not need them.

    That product, of shards, ends with an error where a rank does not come: waits of streams have no end.
    """

    def __init__(self, workspace: Workspace, rows: RankRows, kind: torch.dtype, index: int):
        self.workspace, self.index = workspace, index
        self.gathered = workspace.buffer(workspace.rank, (rows.m, rows.nbytes // kind.itemsize), kind)
        flags = range(workspace.flag_count)
        others = [flag for flag in flags if flag // rows.chunks != workspace.rank]
        self.arrivals = tuple([wait(workspace.flag_address(workspace.rank, flag), 1) for flag in others])

    def begin(self, a: torch.Tensor) -> None:
        """Send own rows, which are contiguous. Raises RankError where a rank did not come to an earlier call."""
        workspace, stream = self.workspace, raw_stream(self.index)
        workspace.require_alive()
        clear_flags(workspace, stream)
        workspace.fork(stream)
        workspace.send(a.data_ptr())
        fill_own(workspace, a)
        memory_operations(workspace.side, self.arrivals)

    def end(self) -> torch.Tensor:
        """The rows, for what comes next on the current stream. They stay until the next call with this workspace."""
        self.workspace.join(raw_stream(self.index))
        return self.gathered
