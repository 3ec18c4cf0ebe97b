"""Products of shards, computed now: kept calls, checks, the choice and the memory. On a CPU group the reference.

gather_product    all ranks' rows of A @ B
scatter_product   this rank's rows of the sum over ranks of A @ B
"""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
import torch.distributed as dist

from ..errors import OperandError
from ..kernels.compile.compiler import compile_plan
from ..kernels.epilogue.chain import Epilogue
from ..kernels.run.occupancy import of_device
from ..kernels.run.torch_tensors import require_gpu
from ..kernels.sm90.config import Sm90Config
from ..torch_op.api import matmul
from ..torch_op.scaled_grouped.api import scaled_matmul
from ..torch_op.scaled_grouped.epilogue import epilogue_of
from ..torch_op.scaled_grouped.recipes import ROW, Recipes
from .calls import GatherCall, Scales, ScatterCall, furnish
from .checks import ShardProduct, output_of, product_of
from .gathered_rows import RankRows, RowsCall, sends_of_rows, sent_chunks
from .kept import Key, keep
from .reference import gathered_reference, scattered_reference
from .shard_plans import ShardChoice, Transfer, gather_choice, scatter_choice
from .workspaces import Workspace, workspace_of

GATHER, SCATTER = "all_gather_matmul", "matmul_reduce_scatter"


class OverlapOptions(NamedTuple):
    """The choices of a call: see `all_gather_matmul`."""

    transfer: Transfer | None
    config: Sm90Config | None
    timeout: float


def gather_product(
    a_shard: torch.Tensor, b: torch.Tensor, group: dist.ProcessGroup, scales: Scales, out: torch.Tensor | None,
    way: OverlapOptions, key: Key = (),
) -> torch.Tensor:  # fmt: skip
    """C of all ranks' rows; `key` of a call that is kept. Raises as `all_gather_matmul` does."""
    scale_a, scale_b = scales
    product = product_of({"a_shard": a_shard, "b": b}, scales)
    rows, k = a_shard.shape
    m, n = rows * group.size(), b.shape[1]
    out = output_of(out, (m, n), product.out, _read({"a_shard": a_shard, "b": b}, scale_a, scale_b))
    if a_shard.device.type == "cpu":
        return out.copy_(gathered_reference(a_shard, b, group, scale_a, scale_b, product.out, way.timeout))
    if group.size() == 1:
        return _alone(a_shard, b, scale_a, scale_b, out)
    choice = gather_choice(
        m, n, k, ranks=group.size(), kind=product.kind, order=product.order, transfer=way.transfer, config=way.config,
        epilogue=_epilogue(product, product.recipes.b), places=of_device(_index(a_shard)),
    )  # fmt: skip
    _compile(choice, _index(a_shard))
    workspace = _gather_workspace(group, a_shard, RankRows.of(choice.plan, choice.chunks), way.timeout)
    call = GatherCall(workspace, choice, a_shard, b, out, scale_a is not None, _index(a_shard))
    keep(key, call)
    return call.run(a_shard, b, scales, out)


def scatter_product(
    a: torch.Tensor, b: torch.Tensor, group: dist.ProcessGroup, scales: Scales, out: torch.Tensor | None,
    way: OverlapOptions, key: Key = (),
) -> torch.Tensor:  # fmt: skip
    """This rank's rows of all ranks' sum; `key` of a call that is kept. Raises as `matmul_reduce_scatter` does."""
    scale_a, scale_b = scales
    product = product_of({"a": a, "b": b}, scales)
    (m, k), n, ranks = a.shape, b.shape[1], group.size()
    if m % ranks:
        raise OperandError(f"a has {m} rows for {ranks} ranks: {m} % {ranks} = {m % ranks}")
    out = output_of(out, (m // ranks, n), product.out, _read({"a": a, "b": b}, scale_a, scale_b))
    if a.device.type == "cpu":
        return out.copy_(scattered_reference(a, b, group, scale_a, scale_b, product.out, way.timeout))
    if ranks == 1:
        return _alone(a, b, scale_a, scale_b, out)
    choice = scatter_choice(
        m, n, k, ranks=ranks, kind=product.kind, order=product.order, transfer=way.transfer, config=way.config,
        epilogue=_epilogue(product), places=of_device(_index(a)),
    )  # fmt: skip
    if choice.transfer.by == "copies" and os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        raise OperandError("CUDA_LAUNCH_BLOCKING=1: the kernel waits for copies that are launched after it")
    _compile(choice, _index(a))
    workspace = _scatter_workspace(group, a.device, choice, product, way.timeout)
    call = ScatterCall(workspace, choice, a, b, out, scale_a is not None, _index(a))
    keep(key, call)
    return call.run(a, b, scales, out)


PRODUCTS = {GATHER: gather_product, SCATTER: scatter_product}


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


def _gather_workspace(group: dist.ProcessGroup, a_shard: torch.Tensor, rows: RankRows, timeout: float) -> Workspace:
    facts = (rows.m, a_shard.shape[1], str(a_shard.dtype), rows.chunks)
    flags = group.size() * rows.chunks
    found = workspace_of(GATHER, group, a_shard.device, flags, rows.total, rows.chunks, timeout, facts)
    found.sends = found.sends or tuple(sends_of_rows(found, rows))
    return found


def rows_beside(x: torch.Tensor, group: dist.ProcessGroup, timeout: float) -> RowsCall:
    """A call that gathers the rows of all ranks beside a product of shards.

    x  (rows, K) of a GPU, contiguous, as on every rank
    """
    nbytes = x.shape[1] * x.element_size()
    rows = RankRows(x.shape[0] * group.size(), nbytes, False, sent_chunks(x.shape[0], nbytes))
    return RowsCall(_gather_workspace(group, x, rows, timeout), rows, x.dtype, _index(x))


def _scatter_workspace(
    group: dist.ProcessGroup, device: torch.device, choice: ShardChoice, product: ShardProduct, timeout: float
) -> Workspace:
    plan, ranks, chunks = choice.plan, group.size(), choice.chunks
    facts = (plan.m, plan.n, str(product.out), plan.tile, plan.config.cluster, choice.transfer)
    flags = (ranks - 1) * chunks + 1
    nbytes = (ranks - 1) * choice.room_bytes
    found = workspace_of(SCATTER, group, device, flags, nbytes, chunks, timeout, facts)
    if not found.extra:
        furnish(found, choice, device)
    return found


def _index(x: torch.Tensor) -> int:
    return x.device.index if x.device.index is not None else torch.cuda.current_device()
