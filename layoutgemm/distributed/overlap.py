"""Products that overlap with communication: all-gather, then multiply; multiply, then reduce and scatter.

    all_gather_matmul(a_shard, b)     C (M, N) = all ranks' rows of A, (M, K), @ B (K, N), the rank's own columns
    matmul_reduce_scatter(a, b)       this rank's rows of the sum over ranks of A (M, K) @ B (K, N), the rank's own K

On GPUs of one host (`kernels.sm90.shards`): one persistent kernel takes tiles in the order in which they can be
computed, beside the transfer of shards through symmetric memory. On a CPU group, such as gloo's, the same sums are
computed without overlap, for tests (`reference`).
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from ..errors import OperandError
from ..kernels.compile.compiler import compile_plan
from ..kernels.epilogue.chain import Epilogue
from ..kernels.run.occupancy import of_device
from ..kernels.run.torch_tensors import require_gpu
from ..kernels.sm90.config import Sm90Config
from ..torch_op.operator import matmul
from ..torch_op.scaled_grouped.api import scaled_matmul
from ..torch_op.scaled_grouped.recipes import ROW, Recipes
from ..torch_op.scaled_grouped.scaled import epilogue_of
from .calls import GatherCall, ScatterCall, furnish, gathered_bytes, sends_of_rows
from .checks import Group, ShardProduct, group_of, output_of, product_of
from .kept import find, keep
from .reference import gathered_reference, scattered_reference
from .shard_plans import ShardChoice, Transfer, gather_choice, scatter_choice
from .workspaces import Workspace, workspace_of

TIMEOUT = 30.0  # seconds


def all_gather_matmul(
    a_shard: torch.Tensor, b: torch.Tensor, group: Group = None, *, scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None, out: torch.Tensor | None = None, transfer: Transfer | None = None,
    config: Sm90Config | None = None, timeout: float = TIMEOUT,
) -> torch.Tensor:  # fmt: skip
    """C = A @ b, where each rank has M / ranks rows of A: products of rows that are here hide the others' transfer.

    a_shard  (M / ranks, K), bf16, f16 or float8, rows contiguous, in the order of ranks
    b        (K, N) of the same type, K or N contiguous (float8: K); N may differ between ranks
    group    2 to 8 ranks, one GPU each, of one host; default all. A CPU group computes a reference without overlap
    scale_a, scale_b  of float8, float32: for a_shard (M / ranks, 1) or one element, for b (1, N) or one element
    out      (M, N), rows contiguous: a's type, bf16 of float8
    transfer, config  of the shards, and of the kernel; None: chosen
    timeout  seconds to wait for a rank or a chunk. Then the kernel stops: the process's CUDA context ends with a launch
             failure, and `check_ranks` names rank and flag

    All ranks call alike, on one stream. The result has the same bits in every run. Flags begin at 0 in each call, so
    that a CUDA graph's replays are right too, where the driver captures stream memory operations.

    Raises OperandError, before anything is written, for tensors, groups and sizes without a kernel, and for gradients;
    RankError where an earlier call's rank did not come.
    """
    found, scales = group_of(group), (scale_a, scale_b)
    key, kept = find("gather", found, (a_shard, b), scales, out, (transfer, config, timeout))
    if kept is not None:
        return kept.run(a_shard, b, scales, out)
    product = product_of({"a_shard": a_shard, "b": b}, scales)
    rows, k = a_shard.shape
    m, n = rows * found.size(), b.shape[1]
    out = output_of(out, (m, n), product.out, _read({"a_shard": a_shard, "b": b}, scale_a, scale_b))
    if a_shard.device.type == "cpu":
        return out.copy_(gathered_reference(a_shard, b, found, scale_a, scale_b, product.out, timeout))
    if found.size() == 1:
        return _alone(a_shard, b, scale_a, scale_b, out)
    choice = gather_choice(
        m, n, k, ranks=found.size(), kind=product.kind, order=product.order, transfer=transfer, config=config,
        epilogue=_epilogue(product, product.recipes.b), places=of_device(_index(a_shard)),
    )  # fmt: skip
    _compile(choice, _index(a_shard))
    workspace = _gather_workspace(found, a_shard.device, choice, a_shard.dtype, timeout)
    call = GatherCall(workspace, choice, a_shard, b, out, scale_a is not None, _index(a_shard))
    keep(key, call)
    return call.run(a_shard, b, scales, out)


def matmul_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, group: Group = None, *, scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None, out: torch.Tensor | None = None, transfer: Transfer | None = None,
    config: Sm90Config | None = None, timeout: float = TIMEOUT,
) -> torch.Tensor:  # fmt: skip
    """This rank's M / ranks rows of the sum over ranks of a @ b: other ranks' rows are computed and sent on first.

    a        (M, K), bf16, f16 or float8, rows contiguous; each rank has its own part of K
    b        (K, N) of the same type, K or N contiguous (float8: K)
    scale_a, scale_b  of float8, float32, of the rank's own a and b: (M, 1) or one element, (1, N) or one element
    out      (M / ranks, N), rows contiguous: a's type, bf16 of float8
    group, transfer, config, timeout  as for `all_gather_matmul`

    A shard's sums go around the ranks and end at its owner, as in a ring of NCCL. Each rank adds its own f32 sums,
    scaled, and rounds to C's type. So |error| <= 2**-8 * (the sum over ranks of |what each rounds|)
    for bf16, 2**-11 for f16, beside the f32 products'. The same bits in every run, and in a CUDA graph's replays.

    Raises as `all_gather_matmul` does; OperandError too where M / ranks rows are no whole tiles (multiples of 64), or
    for transfer by "copies" with CUDA_LAUNCH_BLOCKING=1, under which a kernel cannot wait for later launches.
    """
    found, scales = group_of(group), (scale_a, scale_b)
    key, kept = find("scatter", found, (a, b), scales, out, (transfer, config, timeout))
    if kept is not None:
        return kept.run(a, b, scales, out)
    product = product_of({"a": a, "b": b}, scales)
    (m, k), n, ranks = a.shape, b.shape[1], found.size()
    if m % ranks:
        raise OperandError(f"a has {m} rows for {ranks} ranks: {m} % {ranks} = {m % ranks}")
    out = output_of(out, (m // ranks, n), product.out, _read({"a": a, "b": b}, scale_a, scale_b))
    if a.device.type == "cpu":
        return out.copy_(scattered_reference(a, b, found, scale_a, scale_b, product.out, timeout))
    if ranks == 1:
        return _alone(a, b, scale_a, scale_b, out)
    choice = scatter_choice(
        m, n, k, ranks=ranks, kind=product.kind, order=product.order, transfer=transfer, config=config,
        epilogue=_epilogue(product), places=of_device(_index(a)),
    )  # fmt: skip
    if choice.transfer.by == "copies" and os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        raise OperandError("CUDA_LAUNCH_BLOCKING=1: the kernel waits for copies that are launched after it")
    _compile(choice, _index(a))
    workspace = _scatter_workspace(found, a.device, choice, product, timeout)
    call = ScatterCall(workspace, choice, a, b, out, scale_a is not None, _index(a))
    keep(key, call)
    return call.run(a, b, scales, out)


def _compile(choice: ShardChoice, index: int) -> None:
    """Compile before ranks wait for each other; raises PlanError for a GPU that does not run the plan."""
    if index not in choice.ready:
        require_gpu(choice.plan, index)
        compile_plan(choice.plan)
        choice.ready.add(index)


def _epilogue(product: ShardProduct, recipe_b: str = "") -> Epilogue | None:
    """The factors of a scaled product. A gathered one, whose `recipe_b` is given, has those of A by rows."""
    if not product.recipes.a:
        return None
    return epilogue_of(Recipes(ROW, recipe_b) if recipe_b else product.recipes, None, None)


def _alone(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | None, scale_b: torch.Tensor | None, out: torch.Tensor
) -> torch.Tensor:
    """The product of a group of one rank."""
    if scale_a is None:
        return matmul(a, b, out=out)
    return scaled_matmul(a, scale_a, b, scale_b, out=out)


def _read(
    tensors: dict[str, torch.Tensor], scale_a: torch.Tensor | None, scale_b: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """All operands by name."""
    scales = {"scale_a": scale_a, "scale_b": scale_b}
    return {**tensors, **{name: scale for name, scale in scales.items() if scale is not None}}


def _gather_workspace(
    group: dist.ProcessGroup, device: torch.device, choice: ShardChoice, dtype: torch.dtype, timeout: float
) -> Workspace:
    plan, chunks = choice.plan, choice.chunks
    facts = (plan.m, plan.k, str(dtype), chunks)
    nbytes = gathered_bytes(plan)
    found = workspace_of("all_gather_matmul", group, device, group.size() * chunks, nbytes, chunks, timeout, facts)
    found.sends = found.sends or tuple(sends_of_rows(found, plan))
    return found


def _scatter_workspace(
    group: dist.ProcessGroup, device: torch.device, choice: ShardChoice, product: ShardProduct, timeout: float
) -> Workspace:
    plan, ranks, chunks = choice.plan, group.size(), choice.chunks
    facts = (plan.m, plan.n, str(product.out), plan.tile, plan.config.cluster, choice.transfer)
    flags = (ranks - 1) * chunks + 1
    nbytes = (ranks - 1) * choice.room_bytes
    found = workspace_of("matmul_reduce_scatter", group, device, flags, nbytes, chunks, timeout, facts)
    if not found.extra:
        furnish(found, choice, device)
    return found


def _index(x: torch.Tensor) -> int:
    return x.device.index if x.device.index is not None else torch.cuda.current_device()
