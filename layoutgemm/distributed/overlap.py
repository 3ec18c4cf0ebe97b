"""Products that overlap with communication: all-gather, then multiply; multiply, then reduce and scatter.

    all_gather_matmul(a_shard, b)     C (M, N) = all ranks' rows of A, (M, K), @ B (K, N), the rank's own columns
    matmul_reduce_scatter(a, b)       this rank's rows of the sum over ranks of A (M, K) @ B (K, N), the rank's own K

On GPUs of one host (`kernels.sm90.shards`): one persistent kernel takes tiles in the order in which they can be
computed, beside the transfer of shards through symmetric memory. On a CPU group, such as gloo's, the same sums are
computed without overlap, for tests (`reference`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from ..errors import OperandError
from ..kernels.compile.compiler import compile_plan
from ..kernels.epilogue.chain import Epilogue
from ..kernels.epilogue.parameters import Placed, words_of
from ..kernels.plan import MAX_WORDS
from ..kernels.run.occupancy import of_device
from ..kernels.run.stream_memory import copy_bytes, wait_value
from ..kernels.run.torch_tensors import require_gpu
from ..kernels.sm90.config import Sm90Config
from ..kernels.sm90.plan import Sm90Plan
from ..kernels.sm90.shards import PEER_WORDS, VECTOR
from ..torch_op.launch import Direct
from ..torch_op.operator import matmul
from ..torch_op.prepared import mark_written
from ..torch_op.scaled_grouped.api import scaled_matmul
from ..torch_op.scaled_grouped.recipes import ROW, Recipes
from ..torch_op.scaled_grouped.scaled import epilogue_of
from .checks import KINDS, Group, ShardProduct, group_of, output_of, product_of
from .kept import KeptCall, find, keep
from .reference import gathered_reference, scattered_reference
from .shard_plans import ShardChoice, Transfer, gather_choice, scatter_choice
from .workspaces import Workspace, workspace_of

TIMEOUT = 30.0  # seconds
_FAR = 1 << 30  # launches that a peer is taken to have begun where copies wait for its beginning
_FLOAT = torch.float32.itemsize
_FACTORS = "scales of all rows"


def gather_buffer(
    shape: tuple[int, int], group: Group = None, *, dtype: torch.dtype = torch.bfloat16,
    transfer: Transfer | None = None, timeout: float = TIMEOUT,
) -> torch.Tensor:  # fmt: skip
    """The rank's rows of symmetric memory for `all_gather_matmul`: an a_shard that is written here is not copied.

    shape  of a_shard, the same on all ranks; all of them call it

    Write to it after one product and before the next, on the current stream. Raises OperandError as the product does.
    """
    found = group_of(group)
    if dtype not in KINDS:
        raise OperandError(f"{dtype}: {', '.join(str(kind).removeprefix('torch.') for kind in KINDS)} have a kernel")
    m, k = shape[0] * found.size(), shape[1]
    choice = gather_choice(m, 256, k, ranks=found.size(), kind=KINDS[dtype], transfer=transfer)
    device = torch.device("cuda", torch.cuda.current_device())
    workspace = _gather_workspace(found, device, (m, k), dtype, choice.chunks, timeout)
    return workspace.buffer(workspace.rank, shape, dtype, workspace.rank * shape[0] * k * dtype.itemsize)


def all_gather_matmul(
    a_shard: torch.Tensor, b: torch.Tensor, group: Group = None, *, scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None, out: torch.Tensor | None = None, transfer: Transfer | None = None,
    config: Sm90Config | None = None, timeout: float = TIMEOUT,
) -> torch.Tensor:  # fmt: skip
    """C = A @ b, where each rank has M / ranks rows of A: products of rows that are here hide the others' transfer.

    a_shard  (M / ranks, K), bf16, f16 or float8, rows contiguous, in the order of ranks; that of `gather_buffer` is not
             copied
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
        return _again(kept, _gather, a_shard, b, scales, out, timeout)
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
    workspace = _gather_workspace(found, a_shard.device, (m, k), a_shard.dtype, choice.chunks, timeout)
    workspace.require_alive()
    with torch.cuda.device(a_shard.device):
        _gather(workspace, choice, a_shard, b, out, scales)
    keep(key, KeptCall(choice, workspace, (m, n), product.out))
    return out


def _again(
    kept: KeptCall, run: Callable[..., None], a: torch.Tensor, b: torch.Tensor,
    scales: tuple[torch.Tensor | None, torch.Tensor | None], out: torch.Tensor | None, timeout: float,
) -> torch.Tensor:  # fmt: skip
    """A call that has been checked, by `_gather` or `_scatter`."""
    kept.workspace.timeout = timeout
    kept.workspace.require_alive()
    with torch.cuda.device(a.device):
        if out is None:
            out = torch.empty(kept.shape, dtype=kept.kind, device=a.device)
        run(kept.workspace, kept.choice, a, b, out, scales)
    return out


def _gather(
    workspace: Workspace, choice: ShardChoice, a_shard: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
    scales: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
) -> None:  # fmt: skip
    """Flags to 0, own rows in place; then copies and flags on the side stream, behind a meeting, and the kernel."""
    plan, rank, beside = choice.plan, workspace.rank, choice.transfer.beside
    rows, pitch = a_shard.shape[0], plan.k * a_shard.element_size()
    whole = workspace.buffer(rank, (plan.m, plan.k), a_shard.dtype)
    workspace.flags.zero_()
    if workspace.address(rank, rank * rows * pitch) != a_shard.data_ptr():
        whole[rank * rows : (rank + 1) * rows].copy_(a_shard)
    factors: dict[str, int] = {}
    if scales[0] is not None and scales[1] is not None:
        _own_factors(workspace, plan, scales[0])
        factors = {"scale_a": workspace.address(rank, plan.m * pitch), "scale_b": scales[1].data_ptr()}
    if not beside:
        workspace.meet()
    side = workspace.side
    side.wait_stream(torch.cuda.current_stream())
    if beside:
        workspace.meet_beside()
    _pull(workspace, choice, rows, pitch, bool(factors))
    _launch(choice, workspace, (whole, b, out), factors, 1, ())
    with torch.cuda.stream(side):
        workspace.meet()  # peers have read this rank's rows: they may be written again
    torch.cuda.current_stream().wait_stream(side)


def _own_factors(workspace: Workspace, plan: Sm90Plan, scale_a: torch.Tensor) -> None:
    """This rank's scales behind the gathered rows, one a row."""
    rank, rows = workspace.rank, plan.m // workspace.ranks
    behind = plan.m * plan.k * plan.a.dtype.bytes + rank * rows * _FLOAT
    workspace.buffer(rank, (rows,), torch.float32, behind).copy_(scale_a.reshape(-1))


def _pull(workspace: Workspace, choice: ShardChoice, rows: int, pitch: int, scaled: bool) -> None:
    """Copy the peers' rows, and their scales before, on the side stream; a flag for each chunk."""
    rank, stream = workspace.rank, workspace.side.cuda_stream
    step = rows // choice.chunks * pitch
    for distance in range(1, workspace.ranks):
        peer = (rank + distance) % workspace.ranks
        runs = [((peer * choice.chunks + chunk) * step, step, chunk) for chunk in range(choice.chunks)]
        if scaled:
            runs.insert(0, (choice.plan.m * pitch + peer * rows * _FLOAT, rows * _FLOAT, -1))
        for first, nbytes, chunk in runs:
            copy_bytes(stream, workspace.address(rank, first), workspace.address(peer, first), nbytes)
            if chunk >= 0:
                workspace.arrive(rank, peer * choice.chunks + chunk)


def matmul_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, group: Group = None, *, scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None, out: torch.Tensor | None = None, transfer: Transfer | None = None,
    config: Sm90Config | None = None, timeout: float = TIMEOUT,
) -> torch.Tensor:  # fmt: skip
    """This rank's M / ranks rows of the sum over ranks of a @ b: other ranks' rows are computed and sent first.

    a        (M, K), bf16, f16 or float8, rows contiguous; each rank has its own part of K
    b        (K, N) of the same type, K or N contiguous (float8: K)
    scale_a, scale_b  of float8, float32, of the rank's own a and b: (M, 1) or one element, (1, N) or one element
    out      (M / ranks, N), rows contiguous: a's type, bf16 of float8
    group, transfer, config, timeout  as for `all_gather_matmul`

    A rank sums in f32: its own f32 accumulators, scaled, then each peer's partial sum, rounded to C's type once, in the
    order of ranks; then C is rounded. So |error| <= 2**-8 * (sum of peers' |partial sums| + |C|) for bf16, 2**-11 for
    f16, beside the f32 products'. The same bits in every run, and in a CUDA graph's replays.

    Raises as `all_gather_matmul` does; OperandError too where M / ranks rows are no whole tiles (multiples of 64), or
    for transfer by "copies" with CUDA_LAUNCH_BLOCKING=1, under which a kernel cannot wait for later launches.
    """
    found, scales = group_of(group), (scale_a, scale_b)
    # CUDA_LAUNCH_BLOCKING is a part of the key: it decides below on what is refused.
    options = transfer, config, timeout, os.environ.get("CUDA_LAUNCH_BLOCKING")
    key, kept = find("scatter", found, (a, b), scales, out, options)
    if kept is not None:
        return _again(kept, _scatter, a, b, scales, out, timeout)
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
    workspace.require_alive()
    with torch.cuda.device(a.device):
        _scatter(workspace, choice, a, b, out, scales)
    keep(key, KeptCall(choice, workspace, (m // ranks, n), product.out))
    return out


def _scatter(
    workspace: Workspace, choice: ShardChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
    scales: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
) -> None:  # fmt: skip
    """The kernel, which stores into peers' memory; or its partial sums' way to their owners on the side stream."""
    copies, extra, side = choice.transfer.by == "copies", workspace.extra, workspace.side
    if copies:  # flags begin at 0 in each call, and peers write them behind the meeting
        workspace.flags[: (workspace.ranks - 1) * choice.chunks].zero_()
        extra["counters"].zero_()
        side.wait_stream(torch.cuda.current_stream())
        workspace.meet_beside()
    else:
        extra["calls"].add_(1)
    more = (
        choice.transfer.lag or 0,
        extra["calls"].data_ptr(),
        extra["peers"].data_ptr(),
        workspace.address(workspace.rank),
    )
    named = zip(("scale_a", "scale_b"), scales, strict=True)
    factors = {name: scale.data_ptr() for name, scale in named if scale is not None}
    _launch(choice, workspace, (a, b, out), factors, 1 if copies else choice.done, more)
    if copies:
        _push(workspace, choice)
        torch.cuda.current_stream().wait_stream(side)


def _push(workspace: Workspace, choice: ShardChoice) -> None:
    """Copy each complete chunk of partial sums to its owner, and set its flag."""
    rank, stream, chunks = workspace.rank, workspace.side.cuda_stream, choice.chunks
    room, counters = choice.room_bytes, workspace.extra["counters"].data_ptr()
    step, staging = room // chunks, workspace.extra["partial sums"].data_ptr()
    for chunk in range(chunks):
        for distance in range(1, workspace.ranks):
            owner = (rank + distance) % workspace.ranks
            slot = rank - (rank > owner)
            wait_value(stream, counters + 4 * (owner * chunks + chunk), choice.done)
            to = workspace.address(owner, slot * room + chunk * step)
            copy_bytes(stream, to, staging + owner * room + chunk * step, step)
            workspace.arrive(owner, slot * chunks + chunk)


# --------------------------------------------------------------------------------------------------------------- launch


def _compile(choice: ShardChoice, index: int) -> None:
    """Compile before ranks wait for each other; raises PlanError for a GPU that does not run the plan."""
    if index not in choice.ready:
        require_gpu(choice.plan, index)
        compile_plan(choice.plan)
        choice.ready.add(index)


def _launch(
    choice: ShardChoice, workspace: Workspace, matrices: Sequence[torch.Tensor], factors: dict[str, int], target: int,
    more: tuple[int, ...],
) -> None:  # fmt: skip
    """Launch the kernel on A, B and C, with its words: the epilogue's, those of all shards, and more."""
    a, b, c = matrices
    leading = [
        max(stride, VECTOR // x.element_size())
        for stride, x in ((a.stride(0), a), (b.stride(1 if choice.plan.b.order == "col" else 0), b), (c.stride(0), c))
    ]
    place = workspace.flag_address(workspace.rank, 0), target, workspace.rank, workspace.ranks, choice.chunks
    words = (*place, workspace.polls, workspace.record.data_ptr(), *more)
    key = (_index(a), *leading, *words)
    direct = choice.launches.get(key)
    if direct is None:
        direct = choice.launches[key] = _direct(choice.plan, key[0], leading, words, list(factors))
    mark_written((c,))
    addresses = c.data_ptr(), a.data_ptr(), b.data_ptr(), *factors.values()
    direct.launch(addresses, torch.cuda.current_stream().cuda_stream)


def _direct(plan: Sm90Plan, index: int, leading: Sequence[int], words: Sequence[int], factors: Sequence[str]) -> Direct:
    """The launch of a plan for such lines; it takes addresses: C, A, B, then the epilogue's factors by name."""
    steps = [x * lines for x, lines in zip(leading, (plan.m, max(plan.n, plan.k), plan.m), strict=True)]
    sizes = (plan.m, plan.n, plan.k, 1, *leading, *steps, of_device(index).resident(plan.cluster_size))
    own = words_of(plan.epilogue, {name: Placed(0) for name in factors})[: len(plan.epilogue.words)]
    places = [3 + len(sizes) + plan.epilogue.words.index(name) for name in factors]
    padding = [0] * (MAX_WORDS - len(own) - len(words))
    return Direct(compile_plan(plan), (0, 0, 0, *sizes, *own, *words, *padding), (2, 0, 1, *places), index, plan)


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
    group: dist.ProcessGroup, device: torch.device, sizes: tuple[int, int], dtype: torch.dtype, chunks: int,
    timeout: float,
) -> Workspace:  # fmt: skip
    facts = (*sizes, str(dtype), chunks)
    nbytes = sizes[0] * (sizes[1] * dtype.itemsize + _FLOAT)
    return workspace_of("all_gather_matmul", group, device, group.size() * chunks, nbytes, chunks, timeout, facts)


def _scatter_workspace(
    group: dist.ProcessGroup, device: torch.device, choice: ShardChoice, product: ShardProduct, timeout: float
) -> Workspace:
    plan, ranks, chunks = choice.plan, group.size(), choice.chunks
    facts = (plan.m, plan.n, str(product.out), plan.tile, plan.config.cluster, choice.transfer)
    flags = (ranks - 1) * (chunks + 1)
    nbytes = (ranks - 1) * choice.room_bytes
    found = workspace_of("matmul_reduce_scatter", group, device, flags, nbytes, chunks, timeout, facts)
    if not found.extra:
        _furnish(found, choice, device)
    return found


def _furnish(workspace: Workspace, choice: ShardChoice, device: torch.device) -> None:
    """A scatter's number of calls and table of peers; for copies the rooms that they begin in, and counters."""
    ranks, rank, chunks, room = workspace.ranks, workspace.rank, choice.chunks, choice.room_bytes
    extra, copies = workspace.extra, choice.transfer.by == "copies"
    begun = (ranks - 1) * chunks
    extra["calls"] = torch.full((1,), int(copies), dtype=torch.int32, device=device)
    if copies:
        extra["partial sums"] = torch.empty(ranks * room, dtype=torch.uint8, device=device)
        extra["counters"] = torch.zeros(ranks * chunks, dtype=torch.int32, device=device)
        extra["nobody"] = torch.zeros(1, dtype=torch.int32, device=device)
        workspace.flags[begun:].fill_(_FAR)
    table = []
    for owner in range(ranks):
        slot = rank - (rank > owner)
        entry = [workspace.address(owner, slot * room), workspace.flag_address(owner, slot * chunks)]
        entry.append(workspace.flag_address(owner, begun + slot))
        if copies:
            entry = [extra["partial sums"].data_ptr() + owner * room, extra["counters"].data_ptr() + 4 * owner * chunks]
            entry.append(extra["nobody"].data_ptr())
        assert len(entry) == PEER_WORDS
        table.append(entry if owner != rank else [0] * PEER_WORDS)
    extra["peers"] = torch.tensor(table, dtype=torch.int64, device=device)


def _index(x: torch.Tensor) -> int:
    return x.device.index if x.device.index is not None else torch.cuda.current_device()
