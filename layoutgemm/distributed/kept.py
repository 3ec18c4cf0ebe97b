"""Checked calls of products of shards, kept for tensors of the same shapes and types."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..torch_op.checks import launched_alone
from ..torch_op.compiled.guards import ALIGNED, FIRST_GPU, LEAST_ADDRESS
from .calls import ShardCall

Key = tuple[object, ...]

MAX_KEPT = 1024  # beyond, all go
_KEPT: dict[Key, ShardCall] = {}


def find(
    name: str, group: dist.ProcessGroup, matrices: tuple[torch.Tensor, torch.Tensor],
    scales: tuple[torch.Tensor | None, torch.Tensor | None], out: torch.Tensor | None, options: Key,
) -> tuple[Key, ShardCall | None]:  # fmt: skip
    """(key, the kept call or None). The key () stands for a call that is checked each time.

    out      a result's tensor, whose storage no operand shares
    options  whatever else decides on kernel and memory
    """
    tensors = (*matrices, *[x for x in (*scales, out) if x is not None])
    index = launched_alone(tensors)
    if index is None or index < FIRST_GPU:
        return (), None
    if (matrices[0].data_ptr() | matrices[1].data_ptr() | (0 if out is None else out.data_ptr())) & ALIGNED:
        return (), None
    if min([x.data_ptr() for x in tensors]) < LEAST_ADDRESS:
        return (), None
    if out is not None and out.untyped_storage().data_ptr() in [x.untyped_storage().data_ptr() for x in tensors[:-1]]:
        return (), None
    try:
        facts = [fact for x in tensors for fact in (x.shape, x.stride(), x.dtype)]
        key = (name, group, index, options, *[x is None for x in (*scales, out)], *facts)
        return key, _KEPT.get(key)
    except TypeError:  # a configuration without a hash
        return (), None


def keep(key: Key, call: ShardCall) -> None:
    """Keep a call under the key of `find`, unless that is ()."""
    if key:
        if len(_KEPT) >= MAX_KEPT:
            _KEPT.clear()
        _KEPT[key] = call
