"""The products of shards without overlap, on a CPU group such as gloo's: for tests, and as a statement of the sums."""

from __future__ import annotations

import torch
import torch.distributed as dist


def gathered_reference(a_shard: torch.Tensor, b: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """C of all ranks' rows, summed in f32 and rounded once."""
    return (torch.cat(_every(a_shard, group)).float() @ b.float()).to(a_shard.dtype)


def scattered_reference(a: torch.Tensor, b: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """This rank's rows: its own sums in f32, then each peer's rounded ones in the order of ranks, rounded once."""
    own, rank, rows = a.float() @ b.float(), group.rank(), a.shape[0] // group.size()
    mine = slice(rank * rows, (rank + 1) * rows)
    total = own[mine]
    for peer, partial in enumerate(_every(own.to(a.dtype), group)):
        if peer != rank:
            total = total + partial[mine].float()
    return total.to(a.dtype)


def _every(x: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    """A tensor of each rank, of one shape. Its bytes are sent, since a CPU group does not send every type."""
    words = x.contiguous().view(torch.uint8)
    found = [torch.empty_like(words) for _ in range(group.size())]
    dist.all_gather(found, words, group=group)
    return [each.view(x.dtype) for each in found]
