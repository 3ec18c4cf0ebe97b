"""Checks of the operands of products of shards: matrices, their lines and scales, and outputs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple, TypeAlias

import torch
import torch.distributed as dist

from ..errors import OperandError, RankError
from ..kernels.alignment import address_misfit, line_misfit
from ..kernels.run.operand_checks import check_operands
from ..torch_op.scaled_grouped.recipes import ROW, TENSOR, Recipes
from ..torch_op.types import listed

KINDS = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
SCALED = (torch.float8_e4m3fn, torch.float8_e5m2)
SHARD_ROWS = 64  # whose multiples a scatter's shards have
_ALIKE = "layoutgemm/alike"  # facts of each rank's calls, in a group's store
Group: TypeAlias = dist.ProcessGroup | None


class ShardProduct(NamedTuple):
    """Types, orders and scales of a product: a kernel depends on them beside the sizes.

    kind     of A and B; order: of B, "col" where K is contiguous
    out      type of C
    recipes  of scales: ("", "") without
    """

    kind: str
    order: str
    out: torch.dtype
    recipes: Recipes


def group_of(group: Group) -> dist.ProcessGroup:
    """The group, or that of all ranks; raises OperandError."""
    if not dist.is_available() or not dist.is_initialized():
        raise OperandError("torch.distributed is not initialised: dist.init_process_group first")
    found = group if group is not None else dist.group.WORLD
    if not isinstance(found, dist.ProcessGroup):
        from torch.distributed.device_mesh import DeviceMesh

        way = "; of a mesh of one dimension mesh.get_group()" if isinstance(found, DeviceMesh) else ""
        raise OperandError(f"group is {type(found).__name__}: a ProcessGroup that this rank is part of{way}")
    return found


def check_own_part(tensors: dict[str, torch.Tensor]) -> None:
    """Raise OperandError for a DTensor: a rank gives its own part."""
    from torch.distributed.tensor import DTensor  # which takes longer than all of this package

    for name, x in tensors.items():
        if isinstance(x, DTensor):
            raise OperandError(f"{name} is a DTensor {list(x.placements)}: each rank gives its own part, x.to_local()")


def check_backend(name: str, group: dist.ProcessGroup) -> None:
    """Raise OperandError for a group without a backend for tensors of the CPU."""
    has = dist.get_backend_config(group)
    if "cpu:" not in has:
        raise OperandError(
            f"{name}: tensors are on the CPU, and the group's backend is {has}: gloo, or tensors of GPUs"
        )


def product_of(
    tensors: dict[str, torch.Tensor], scales: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
) -> ShardProduct:
    """The product of A and B, by their names. Raises OperandError for operands without a kernel."""
    (name_a, a), (name_b, b) = tensors.items()
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor) or x.ndim != 2 or 0 in x.shape:
            shape = tuple(getattr(x, "shape", ()))
            raise OperandError(f"{name} is a {type(x).__name__} of shape {shape}: a matrix with rows and columns")
        if x.dtype not in KINDS:
            raise OperandError(f"{name} is {x.dtype}: {listed(KINDS)} have a kernel")
    if a.dtype != b.dtype or a.device != b.device:
        raise OperandError(f"{name_a} is {a.dtype} on {a.device}, {name_b} {b.dtype} on {b.device}")
    if a.shape[1] != b.shape[0]:
        raise OperandError(f"{name_a} has {a.shape[1]} columns, {name_b} {b.shape[0]} rows")
    if a.device.type not in ("cuda", "cpu"):
        raise OperandError(f"{name_a} is on {a.device}: GPUs, and the CPU for tests")
    check_lines(name_a, a, a.stride(), a.shape)
    order = "col" if b.stride(0) == 1 and (b.shape[0] > 1 or b.stride(1) != 1) else "row"
    if a.dtype in SCALED and order != "col":
        raise OperandError(f"{name_b} is {b.dtype} with strides {b.stride()}: K contiguous, as w.t() of w (N, K)")
    check_lines(
        name_b, b, b.stride()[::-1] if order == "col" else b.stride(), b.shape[::-1] if order == "col" else b.shape
    )
    return ShardProduct(
        KINDS[a.dtype], order, torch.bfloat16 if a.dtype in SCALED else a.dtype, _recipes(a, b, *scales)
    )


def _recipes(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | None, scale_b: torch.Tensor | None) -> Recipes:
    """The recipes of both scales; raises OperandError."""
    found = []
    for name, x, scale, size in (("scale_a", a, scale_a, a.shape[0]), ("scale_b", b, scale_b, b.shape[1])):
        if (scale is None) == (x.dtype in SCALED):
            raise OperandError(f"{name} is {'missing' if scale is None else 'given'} for {x.dtype}: of 8 bits alone")
        if scale is None:
            found.append("")
            continue
        shapes = ((size, 1), (size,)) if name == "scale_a" else ((1, size), (size,))
        if scale.dtype != torch.float32 or scale.device != x.device or not scale.is_contiguous():
            raise OperandError(f"{name} is {scale.dtype} on {scale.device}: contiguous float32 on {x.device}")
        if scale.numel() != 1 and tuple(scale.shape) not in shapes:
            raise OperandError(f"{name} has shape {list(scale.shape)}: one element, or {list(shapes[0])}")
        found.append(TENSOR if scale.numel() == 1 else ROW)
    return Recipes(*found)


def check_alike(name: str, group: dist.ProcessGroup, facts: tuple[object, ...], timeout: float) -> None:
    """Compare facts of all ranks of a group in its store. No collective, which would wait for its own time.

    Raises OperandError, with both ranks, for other facts. Raises RankError for a rank that is not there in `timeout` s:
    one that has ended, or whose call is of sizes that it has called with before.
    """
    store, own, rank = group.get_group_store(), repr((name, *facts)), group.rank()
    number, until = store.add(f"{_ALIKE}/{rank}", 1), time.monotonic() + timeout
    store.set(f"{_ALIKE}/{number}/{rank}", own)
    every = []
    for peer in range(group.size()):
        key = f"{_ALIKE}/{number}/{peer}"
        try:
            store.wait([key], timedelta(seconds=max(until - time.monotonic(), 1e-3)))
        except RuntimeError as error:
            said = f"{name}: rank {rank} of {group.size()} waited up to {timeout:g} s with {own}"
            raise RankError(
                f"{said}; rank {peer} did not come: it has ended, or has called with other sizes"
            ) from error
        every.append(store.get(key).decode())
    store.delete_key(f"{_ALIKE}/{number - 1}/{rank}")  # whoever has come to this one has read the one before
    for peer, other in enumerate(every):
        if other != own:
            raise OperandError(f"{name}: rank {rank} has {own}, rank {peer} has {other}: all call alike")


def check_lines(name: str, x: torch.Tensor, strides: Sequence[int], shape: Sequence[int]) -> None:
    """Raise OperandError for lines that a tensor map does not take. (pitch, 1), both address and pitch of 16 bytes."""
    if x.device.type == "cpu":
        return
    (count, extent), (leading, step) = shape, strides
    rule = line_misfit(extent, step, count, leading, x.element_size()) or address_misfit(x.data_ptr())
    if rule:
        raise OperandError(f"{name}: {rule}, and products of shards copy no operand; strides {tuple(x.stride())}")


def output_of(
    out: torch.Tensor | None, shape: tuple[int, int], kind: torch.dtype, read: dict[str, torch.Tensor]
) -> torch.Tensor:
    """A result, or `out`. Raises OperandError for one that does not fit or shares memory with what is read."""
    device = next(iter(read.values())).device
    check_operands(read, {} if out is None else {"out": out})
    if out is None:
        if device.type == "cuda" and shape[1] % 8:
            raise OperandError(
                f"C has {shape[1]} columns: lines of whole 16 bytes, multiples of 8, or out= with a pitch"
            )
        return torch.empty(shape, dtype=kind, device=device)
    if tuple(out.shape) != shape or out.dtype != kind or out.device != device:
        raise OperandError(f"out is {out.dtype}{tuple(out.shape)} on {out.device}: {kind}{shape} on {device}")
    if device.type == "cuda" and (shape[1] * out.element_size()) % 16:
        raise OperandError(f"out has {shape[1]} columns: a tensor store ends lines at 16 bytes, multiples of 8 columns")
    check_lines("out", out, out.stride(), shape)
    return out
