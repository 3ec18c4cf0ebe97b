"""The products of shards without overlap, on a CPU group such as gloo's.

They are for tests, and a statement of the sums.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from ..errors import RankError
from .checks import check_alike, check_backend

_CALLS = "layoutgemm/calls"  # numbers of each rank's calls, in a group's store
_LATE_SECONDS, _POLL_SECONDS = 5.0, 0.02


def gathered_reference(
    a_shard: torch.Tensor, b: torch.Tensor, group: dist.ProcessGroup, scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None, kind: torch.dtype, timeout: float,
) -> torch.Tensor:  # fmt: skip
    """C of all ranks' rows, summed in f32 and rounded once."""
    facts = *a_shard.shape, str(a_shard.dtype)
    with _named("all_gather_matmul", group, timeout, facts):
        sums = torch.cat(_every(a_shard, group)).float() @ b.float()
        if scale_a is not None:
            factors = torch.cat(_every(scale_a.reshape(-1, 1).expand(a_shard.shape[0], 1), group))
            sums = _scaled(sums, factors, scale_b)
        return sums.to(kind)


def scattered_reference(
    a: torch.Tensor, b: torch.Tensor, group: dist.ProcessGroup, scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None, kind: torch.dtype, timeout: float,
) -> torch.Tensor:  # fmt: skip
    """This rank's rows, from the rank before it around to itself. Each adds its f32 sums and rounds."""
    own, rank, rows = a.float() @ b.float(), group.rank(), a.shape[0] // group.size()
    if scale_a is not None:
        own = _scaled(own, scale_a.reshape(-1, 1), scale_b)
    mine, ranks = slice(rank * rows, (rank + 1) * rows), group.size()
    with _named("matmul_reduce_scatter", group, timeout, (*own.shape, str(a.dtype))):
        every = _every(own, group)
    total = every[(rank - 1) % ranks][mine].to(kind)
    for distance in range(2, ranks + 1):
        total = (total.float() + every[(rank - distance) % ranks][mine]).to(kind)
    return total


def _scaled(sums: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor | None) -> torch.Tensor:
    assert scale_b is not None
    return sums * scale_a * scale_b.reshape(1, -1)


@contextmanager
def _named(name: str, group: dist.ProcessGroup, timeout: float, facts: tuple[object, ...]) -> Iterator[None]:
    """Raise RankError, naming the product, where a rank has ended or is late; OperandError for other facts on one."""
    check_backend(name, group)
    calls = group.get_group_store().add(f"{_CALLS}/{group.rank()}", 1)
    try:
        if dist.get_backend(group) == "gloo":  # says which ranks are missing; a collective alone does not
            dist.monitored_barrier(group, timedelta(seconds=timeout), wait_all_ranks=True)
        check_alike(name, group, facts, timeout)  # gloo ends the process for another number of bytes
        yield
    except RankError:
        raise
    except RuntimeError as error:
        said = f"{name}: rank {group.rank()} of {group.size()} waited up to {timeout:g} s"
        raise RankError(f"{said}; {_missing(group, calls, timeout)}: {error}") from error


def _missing(group: dist.ProcessGroup, calls: int, timeout: float) -> str:
    """Ranks that did not come to this rank's last call, or came late, in words.

    gloo names the address of a closed connection, which no part of torch maps to a rank. So each rank counts its calls
    in the group's store.
    """
    missing, late = {*range(group.size())} - {group.rank()}, ""
    until = time.monotonic() + min(timeout, _LATE_SECONDS)  # a rank that runs may be late
    try:
        while missing:
            missing = {rank for rank in missing if group.get_group_store().add(f"{_CALLS}/{rank}", 0) < calls}
            late = late or ", ".join(map(str, sorted(missing)))
            if time.monotonic() >= until:
                break
            time.sleep(_POLL_SECONDS)
    except RuntimeError as error:
        return f"the group's store, which knows the ranks that came, does not answer ({error})"
    names = ", ".join(map(str, sorted(missing)))
    if names:
        return f"rank {names} did not come"
    return f"rank {late} came later" if late else "each rank came, and one has ended or given up since"


def _every(x: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    """A tensor of each rank, of one shape. Its bytes are sent, since a CPU group does not send every type."""
    words = x.contiguous().view(torch.uint8)
    found = [torch.empty_like(words) for _ in range(group.size())]
    dist.all_gather(found, words, group=group)
    return [each.view(x.dtype) for each in found]
