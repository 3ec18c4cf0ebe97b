"""Products that overlap with communication: all-gather, then multiply; multiply, then reduce and scatter.

    all_gather_matmul(a_shard, b)     C (M, N) = all ranks' rows of A, (M, K), @ B (K, N), the rank's own columns
    matmul_reduce_scatter(a, b)       this rank's rows of the sum over ranks of A (M, K) @ B (K, N), the rank's own K

On GPUs of one host (`kernels.sm90.shards`): copy engines move shards through symmetric memory beside one persistent
kernel, which takes tiles in the order in which they can be computed. On a CPU group, such as gloo's, the same sums are
computed without overlap, for tests (`reference`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist

from ..errors import OperandError
from ..kernels.compile.compiler import compile_plan
from ..kernels.plan import MAX_WORDS
from ..kernels.run.occupancy import of_device
from ..kernels.run.operand_checks import check_operands
from ..kernels.run.stream_memory import wait_value
from ..kernels.run.torch_tensors import require_gpu
from ..kernels.sm90.config import Sm90Config
from ..kernels.sm90.plan import Sm90Plan
from ..kernels.sm90.shards import signals_of_chunk
from ..torch_op.operator import matmul
from .reference import gathered_reference, scattered_reference
from .shard_plans import ShardChoice, gather_choice, scatter_choice
from .workspaces import Workspace, workspace_of

TIMEOUT = 30.0  # seconds
_KINDS = {torch.bfloat16: "bf16", torch.float16: "f16"}
Group: TypeAlias = dist.ProcessGroup | None


def gather_buffer(
    shape: tuple[int, int], group: Group = None, *, dtype: torch.dtype = torch.bfloat16,
    chunks: int | None = None, timeout: float = TIMEOUT,
) -> torch.Tensor:  # fmt: skip
    """The rank's rows of symmetric memory for `all_gather_matmul`: an a_shard that is written here is not copied.

    shape  of a_shard, the same on all ranks; all of them call it

    Write to it after one product and before the next, on the current stream. Raises OperandError as the product does.
    """
    found = _group(group)
    if dtype not in _KINDS:
        raise OperandError(f"{dtype}: bfloat16 and float16 have a kernel")
    m, k = shape[0] * found.size(), shape[1]
    count = chunks or gather_choice(m, 256, k, ranks=found.size(), kind=_KINDS[dtype]).chunks
    device = torch.device("cuda", torch.cuda.current_device())
    workspace = _gather_workspace(found, device, (m, k), dtype, count, timeout)
    return _rows(workspace.buffer(workspace.rank, (m, k), dtype), workspace.rank, shape[0])


def all_gather_matmul(
    a_shard: torch.Tensor, b: torch.Tensor, group: Group = None, *, out: torch.Tensor | None = None,
    chunks: int | None = None, config: Sm90Config | None = None, timeout: float = TIMEOUT,
) -> torch.Tensor:  # fmt: skip
    """C = A @ b, where each rank has M / ranks rows of A: products of rows that are here hide the others' transfer.

    a_shard  (M / ranks, K), bf16 or f16, rows contiguous, in the order of ranks; that of `gather_buffer` is not copied
    b        (K, N) of the same type, K or N contiguous; N may differ between ranks
    group    2 to 8 ranks, one GPU each, of one host; default all. A CPU group computes a reference without overlap
    out      (M, N), rows contiguous
    chunks   of a shard, each with a flag of its own; config: of the kernel; None: chosen
    timeout  seconds to wait for a rank or a chunk. Then the kernel stops: the process's CUDA context ends with a launch
             failure, and `check_ranks` names rank and flag

    All ranks call alike, on one stream. The result has the same bits in every run. Flags begin at 0 in each call, so
    that a CUDA graph's replays are right too, where the driver captures stream memory operations.

    Raises OperandError, before anything is written, for tensors, groups and sizes without a kernel, and for gradients;
    RankError where an earlier call's rank did not come.
    """
    found = _group(group)
    kind, order = _checked({"a_shard": a_shard, "b": b})
    rows, k = a_shard.shape
    m, n = rows * found.size(), b.shape[1]
    out = _output(out, (m, n), {"a_shard": a_shard, "b": b})
    if a_shard.device.type == "cpu":
        return out.copy_(gathered_reference(a_shard, b, found))
    if found.size() == 1:
        return matmul(a_shard, b, out=out)
    choice = gather_choice(
        m, n, k, ranks=found.size(), kind=kind, order=order, chunks=chunks, config=config,
        places=of_device(_index(a_shard)),
    )  # fmt: skip
    _compile(choice, _index(a_shard))
    workspace = _gather_workspace(found, a_shard.device, (m, k), a_shard.dtype, choice.chunks, timeout)
    workspace.require_alive()
    with torch.cuda.device(a_shard.device):
        _gather(workspace, choice, a_shard, b, out)
    return out


def _gather(
    workspace: Workspace, choice: ShardChoice, a_shard: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> None:
    """Flags to 0, own rows in place, all meet; then copies and flags on the side stream, and the kernel."""
    plan, rank, ranks = choice.plan, workspace.rank, workspace.ranks
    whole = workspace.buffer(rank, (plan.m, plan.k), a_shard.dtype)
    rows = a_shard.shape[0]
    workspace.flags.zero_()
    own = _rows(whole, rank, rows)
    if own.data_ptr() != a_shard.data_ptr():
        own.copy_(a_shard)
    workspace.meet()
    side = workspace.side
    side.wait_stream(torch.cuda.current_stream())
    step = rows // choice.chunks
    with torch.cuda.stream(side):
        for distance in range(1, ranks):
            peer = (rank + distance) % ranks
            theirs = workspace.buffer(peer, (plan.m, plan.k), a_shard.dtype)
            for chunk in range(choice.chunks):
                first = peer * rows + chunk * step
                whole[first : first + step].copy_(theirs[first : first + step])
                workspace.arrive(rank, peer * choice.chunks + chunk)
    _launch(choice, workspace, (whole, b, out), ())
    with torch.cuda.stream(side):
        workspace.meet()  # peers have read this rank's rows: they may be written again
    torch.cuda.current_stream().wait_stream(side)


def matmul_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, group: Group = None, *, out: torch.Tensor | None = None,
    chunks: int | None = None, config: Sm90Config | None = None, timeout: float = TIMEOUT,
) -> torch.Tensor:  # fmt: skip
    """This rank's M / ranks rows of the sum over ranks of a @ b: other ranks' rows are computed and sent first.

    a        (M, K), bf16 or f16, rows contiguous; each rank has its own part of K
    b        (K, N) of the same type, K or N contiguous; N even
    out      (M / ranks, N), contiguous
    group, chunks, config, timeout  as for `all_gather_matmul`

    A rank sums in f32: its own f32 accumulators, then each peer's partial sum, rounded to a's type once, in the order
    of ranks; then C is rounded. So |error| <= 2**-8 * (sum of peers' |partial sums| + |C|) for bf16, 2**-11 for f16,
    beside the f32 products'. The same bits in every run.

    Raises as `all_gather_matmul` does; OperandError too where M / ranks rows are no whole tiles (multiples of 64), or
    with CUDA_LAUNCH_BLOCKING=1, under which a kernel cannot wait for what is launched after it.
    """
    found = _group(group)
    kind, order = _checked({"a": a, "b": b})
    (m, k), n, ranks = a.shape, b.shape[1], found.size()
    if m % ranks:
        raise OperandError(f"a has {m} rows for {ranks} ranks: {m} % {ranks} = {m % ranks}")
    out = _output(out, (m // ranks, n), {"a": a, "b": b})
    if a.device.type == "cpu":
        return out.copy_(scattered_reference(a, b, found))
    if ranks == 1:
        return matmul(a, b, out=out)
    if n % 8:
        raise OperandError(f"b has {n} columns: partial sums are rows of whole 16 bytes, multiples of 8 columns")
    if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        raise OperandError("CUDA_LAUNCH_BLOCKING=1: the kernel waits for copies that are launched after it")
    choice = scatter_choice(
        m, n, k, ranks=ranks, kind=kind, order=order, chunks=chunks, config=config, places=of_device(_index(a))
    )
    _compile(choice, _index(a))
    workspace = _scatter_workspace(found, a.device, (m, n), a.dtype, choice, timeout)
    workspace.require_alive()
    with torch.cuda.device(a.device):
        _scatter(workspace, choice, a, b, out)
    return out


def _scatter(workspace: Workspace, choice: ShardChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Flags and counters to 0, all meet; then the kernel, and its partial sums' way to their owners on the side."""
    plan, rank, ranks, chunks = choice.plan, workspace.rank, workspace.ranks, choice.chunks
    rows, staging = plan.m // ranks, workspace.extra["partial sums"]
    inbox = (ranks - 1, rows, plan.n)
    workspace.flags.zero_()
    workspace.counters.zero_()
    workspace.meet()
    side = workspace.side
    side.wait_stream(torch.cuda.current_stream())
    mine = workspace.buffer(rank, inbox, a.dtype)
    words = (workspace.counters.data_ptr(), mine.data_ptr(), out.data_ptr(), out.stride(0))
    _launch(choice, workspace, (a, b, staging), words)
    step = rows // chunks
    done = signals_of_chunk(plan, step)
    with torch.cuda.stream(side):
        for distance in range(1, ranks):
            owner = (rank + distance) % ranks
            slot = rank - (rank > owner)
            theirs = workspace.buffer(owner, inbox, a.dtype)[slot]
            for chunk in range(chunks):
                part, local = owner * chunks + chunk, slice(chunk * step, (chunk + 1) * step)
                wait_value(side.cuda_stream, workspace.counters.data_ptr() + 4 * part, done)
                theirs[local].copy_(_rows(staging, owner, rows)[local])
                workspace.arrive(owner, slot * chunks + chunk)
    torch.cuda.current_stream().wait_stream(side)


# --------------------------------------------------------------------------------------------------------------- launch


def _compile(choice: ShardChoice, index: int) -> None:
    """Compile before ranks wait for each other; raises PlanError for a GPU that does not run the plan."""
    if index not in choice.ready:
        require_gpu(choice.plan, index)
        compile_plan(choice.plan)
        choice.ready.add(index)


def _launch(choice: ShardChoice, workspace: Workspace, matrices: Sequence[torch.Tensor], more: tuple[int, ...]) -> None:
    """Launch the kernel on A, B and C, with its words."""
    plan: Sm90Plan = choice.plan
    a, b, c = matrices
    lines_b = b.stride(1) if plan.b.order == "col" else b.stride(0)
    leading = [max(x, 8) for x in (a.stride(0), lines_b, c.stride(0))]
    steps = [x * lines for x, lines in zip(leading, (plan.m, max(plan.n, plan.k), plan.m), strict=True)]
    blocks = plan.config.cluster[0] * plan.config.cluster[1]
    workers = of_device(_index(a)).resident(blocks)
    pointers = a.data_ptr(), b.data_ptr(), c.data_ptr()
    chunk_rows = plan.m // (workspace.ranks * choice.chunks)
    words = (
        workspace.flags.data_ptr(), 1, workspace.rank, choice.chunks, chunk_rows, workspace.polls,
        workspace.record.data_ptr(), *more,
    )  # fmt: skip
    sizes = plan.m, plan.n, plan.k, 1
    padding = [0] * (MAX_WORDS - len(words))
    stream = torch.cuda.current_stream().cuda_stream
    compile_plan(plan).launch(*pointers, *sizes, *leading, *steps, workers, *words, *padding, stream=stream)


def _gather_workspace(
    group: dist.ProcessGroup, device: torch.device, sizes: tuple[int, int], dtype: torch.dtype, chunks: int,
    timeout: float,
) -> Workspace:  # fmt: skip
    facts = (*sizes, str(dtype), chunks)
    nbytes = sizes[0] * sizes[1] * dtype.itemsize
    return workspace_of("all_gather_matmul", group, device, group.size() * chunks, nbytes, chunks, timeout, facts)


def _scatter_workspace(
    group: dist.ProcessGroup, device: torch.device, sizes: tuple[int, int], dtype: torch.dtype, choice: ShardChoice,
    timeout: float,
) -> Workspace:  # fmt: skip
    ranks, chunks = group.size(), choice.chunks
    facts = (*sizes, str(dtype), chunks, *choice.plan.config.tile)
    nbytes = (ranks - 1) * sizes[0] // ranks * sizes[1] * dtype.itemsize
    flags = (ranks - 1) * chunks
    found = workspace_of("matmul_reduce_scatter", group, device, flags, nbytes, chunks, timeout, facts)
    if "partial sums" not in found.extra:
        found.extra["partial sums"] = torch.empty(sizes, dtype=dtype, device=device)
    return found


# --------------------------------------------------------------------------------------------------------------- checks


def _group(group: Group) -> dist.ProcessGroup:
    if not dist.is_available() or not dist.is_initialized():
        raise OperandError("torch.distributed is not initialised: dist.init_process_group first")
    found = group if group is not None else dist.group.WORLD
    if not isinstance(found, dist.ProcessGroup):
        raise OperandError(f"group is {type(found).__name__}: a ProcessGroup that this rank is part of")
    return found


def _checked(tensors: dict[str, torch.Tensor]) -> tuple[str, str]:
    """Type and order of B; raises OperandError."""
    (name_a, a), (name_b, b) = tensors.items()
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor) or x.ndim != 2 or 0 in x.shape:
            shape = tuple(getattr(x, "shape", ()))
            raise OperandError(f"{name} is a {type(x).__name__} of shape {shape}: a matrix with rows and columns")
        if x.dtype not in _KINDS:
            raise OperandError(f"{name} is {x.dtype}: bfloat16 and float16 have a kernel")
        if x.requires_grad and torch.is_grad_enabled():
            raise OperandError(f"{name} requires grad: this product has no derivative; call it under torch.no_grad()")
    if a.dtype != b.dtype or a.device != b.device:
        raise OperandError(f"{name_a} is {a.dtype} on {a.device}, {name_b} {b.dtype} on {b.device}")
    if a.shape[1] != b.shape[0]:
        raise OperandError(f"{name_a} has {a.shape[1]} columns, {name_b} {b.shape[0]} rows")
    if a.device.type not in ("cuda", "cpu"):
        raise OperandError(f"{name_a} is on {a.device}: GPUs, and the CPU for tests")
    _check_lines(name_a, a, a.stride(), a.shape)
    order = "col" if b.stride(0) == 1 and (b.shape[0] > 1 or b.stride(1) != 1) else "row"
    _check_lines(
        name_b, b, b.stride()[::-1] if order == "col" else b.stride(), b.shape[::-1] if order == "col" else b.shape
    )
    return _KINDS[a.dtype], order


def _check_lines(name: str, x: torch.Tensor, strides: Sequence[int], shape: Sequence[int]) -> None:
    """Raise OperandError for lines that a tensor map does not take: (pitch, 1), both address and pitch of 16 bytes."""
    if x.device.type == "cpu":
        return
    pitch, inner = strides
    if inner != 1 or (shape[0] > 1 and (pitch < shape[1] or pitch % 8)) or x.data_ptr() % 16:
        raise OperandError(
            f"{name} has strides {tuple(x.stride())} at address {x.data_ptr():#x}: lines are contiguous, 16 bytes (8 "
            "elements) or a multiple apart, from an address that is a multiple of 16"
        )


def _output(out: torch.Tensor | None, shape: tuple[int, int], read: dict[str, torch.Tensor]) -> torch.Tensor:
    """A result, or `out`; raises OperandError for one that does not fit or shares memory with what is read."""
    like = next(iter(read.values()))
    check_operands(read, {} if out is None else {"out": out})
    if out is None:
        if like.device.type == "cuda" and shape[1] % 8:
            raise OperandError(
                f"C has {shape[1]} columns: lines of whole 16 bytes, multiples of 8, or out= with a pitch"
            )
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    if tuple(out.shape) != shape or out.dtype != like.dtype or out.device != like.device:
        raise OperandError(
            f"out is {out.dtype}{tuple(out.shape)} on {out.device}: {like.dtype}{shape} on {like.device}"
        )
    if like.device.type == "cuda" and (shape[1] * out.element_size()) % 16:
        raise OperandError(f"out has {shape[1]} columns: a tensor store ends lines at 16 bytes, multiples of 8 columns")
    _check_lines("out", out, out.stride(), shape)
    return out


def _index(x: torch.Tensor) -> int:
    return x.device.index if x.device.index is not None else torch.cuda.current_device()


def _rows(x: torch.Tensor, rank: int, rows: int) -> torch.Tensor:
    """A rank's rows of a matrix of all."""
    return x[rank * rows : (rank + 1) * rows]
