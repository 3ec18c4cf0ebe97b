"""A call of a checked product of shards. What it writes, what moves beside the kernel, and the launch.

    GatherCall   flags to 0; rows go around the ring of ranks on the side stream, and the kernel
    ScatterCall  the kernel, which stores sums into the memory of the rank before, or the side stream moves them there

A call is prepared once for tensors of the same shapes, strides and types (`kept`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from ..atoms.copy.base import VECTOR_BYTES
from ..kernels.compile.compiler import compile_plan
from ..kernels.compile.launcher import THREAD, bind
from ..kernels.epilogue.parameters import PlacedOperand, words_of
from ..kernels.plan import MAX_WORDS
from ..kernels.run.occupancy import of_device
from ..kernels.run.stream_memory import clear_words, copy_bytes, wait
from ..kernels.sm90.plan import Sm90Plan
from ..kernels.sm90.shards import crosses_shards
from ..torch_op.launch import DirectLaunch, empty_on_gpu, mark_written, raw_stream
from ..torch_op.problem import contiguous_strides
from .gathered_rows import FLOAT, clear_flags, fill_own
from .shard_plans import ShardChoice
from .workspaces import Send, Workspace

Scales = tuple[torch.Tensor | None, torch.Tensor | None]

_FAR = 1 << 30  # launches that the rank before is taken to have begun where copies wait for its beginning
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


class ShardCall:
    """A product's memory, and its kernel with all arguments but addresses.

    shape, kind  of the result
    """

    names: tuple[str, ...] = ()  # of the 64-bit words that are addresses of a call

    def __init__(self, workspace: Workspace, choice: ShardChoice, shape: Sequence[int], kind: torch.dtype, index: int):
        self.workspace, self.choice, self.index = workspace, choice, index
        self.timeout = workspace.timeout  # which the launch's limit of a wait stands for
        self.shape, self.strides, self.kind = tuple(shape), contiguous_strides(shape), kind

    def prepare(self, matrices: Sequence[torch.Tensor], scaled: bool, target: int, more: Sequence[int]) -> None:
        """The launch for A, B and C with such lines.

        scaled  scales of A and B are among the addresses
        target  the value of a flag that has arrived
        more    the kernel's words behind those of all shards
        """
        a, b, c = matrices
        plan, workspace = self.choice.plan, self.workspace
        pitches = (a, a.stride(0)), (b, b.stride(1 if plan.b.order == "col" else 0)), (c, c.stride(0))
        leading = [max(pitch, VECTOR_BYTES // x.element_size()) for x, pitch in pitches]
        place = workspace.flag_address(workspace.rank, 0), target, workspace.rank, workspace.ranks, self.choice.chunks
        words = (*place, workspace.patience.word, workspace.record.data_ptr(), *more)
        names = (*(("scale_a", "scale_b") if scaled else ()), *self.names)
        self.direct = _direct(plan, self.index, leading, words, names)

    def run(self, a: torch.Tensor, b: torch.Tensor, scales: Scales, out: torch.Tensor | None) -> torch.Tensor:
        """The product of tensors like those that were checked. Raises RankError where a rank did not come before."""
        self.workspace.require_alive()
        self.workspace.timeout = self.timeout
        if _current_device() != self.index:
            with torch.cuda.device(self.index):
                return self.run(a, b, scales, out)
        if not hasattr(THREAD, "bound"):  # calls of the driver before the launch need a context, too
            bind(self.index)
        if out is None:
            out = empty_on_gpu(self.shape, self.strides, self.kind)
        else:
            mark_written((out,))
        self.start(a, b, scales, out, raw_stream(self.index))
        return out

    def start(self, a: torch.Tensor, b: torch.Tensor, scales: Scales, out: torch.Tensor, stream: int) -> None:
        """Put the call on a stream of the current device."""
        raise NotImplementedError


class GatherCall(ShardCall):
    """An all-gather and a product. Own rows are read where they lie, if no tile has rows of two shards."""

    names = ("own",)

    def __init__(
        self, workspace: Workspace, choice: ShardChoice, a_shard: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
        scaled: bool, index: int,
    ):  # fmt: skip
        super().__init__(workspace, choice, out.shape, out.dtype, index)
        plan, rank, rows = choice.plan, workspace.rank, a_shard.shape[0]
        pitch = plan.k * a_shard.element_size()
        whole = workspace.buffer(rank, (plan.m, plan.k), a_shard.dtype)
        self.gathered, self.whole, self.own, self.factors = whole, whole.data_ptr(), None, None
        if crosses_shards(plan, workspace.ranks) or not a_shard.is_contiguous():
            self.own = workspace.buffer(rank, (rows, plan.k), a_shard.dtype, rank * rows * pitch)
        if scaled:
            behind = plan.m * pitch
            self.all_factors = workspace.address(rank, behind)
            self.factors = workspace.buffer(rank, (rows,), torch.float32, behind + rank * rows * FLOAT)
            self.own_factors = self.factors.data_ptr()
        self.prepare((whole, b, out), scaled, 1, (0,))

    def start(self, a: torch.Tensor, b: torch.Tensor, scales: Scales, out: torch.Tensor, stream: int) -> None:
        """Flags to 0; then rows go around on the side stream, and the kernel."""
        workspace, (scale_a, scale_b) = self.workspace, scales
        clear_flags(workspace, stream)
        if self.own is not None:
            a = self.own.copy_(a)
        addresses = [out.data_ptr(), self.whole, b.data_ptr()]
        if self.factors is not None and scale_a is not None and scale_b is not None:
            if scale_a.numel() == self.factors.numel():
                copy_bytes(stream, self.own_factors, scale_a.data_ptr(), self.factors.nbytes)
            else:  # one of the tensor is each row's
                self.factors.copy_(scale_a.reshape(-1))
            addresses += [self.all_factors, scale_b.data_ptr()]
        own = a.data_ptr()
        workspace.fork(stream)
        workspace.send(own)
        self.direct.launch((*addresses, own), stream)
        workspace.join(stream)  # own rows may be written again

    def rows_of_all(self, a: torch.Tensor) -> torch.Tensor:
        """The rows that the last call has gathered, and `a`, its own ones. They stay until the next call."""
        if self.own is None:
            fill_own(self.workspace, a)
            self.workspace.join(raw_stream(self.index))
        return self.gathered


class ScatterCall(ShardCall):
    """A product and a reduce-scatter."""

    def __init__(
        self, workspace: Workspace, choice: ShardChoice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
        scaled: bool, index: int,
    ):  # fmt: skip
        super().__init__(workspace, choice, out.shape, out.dtype, index)
        self.copies, self.calls, extra = choice.transfer.by == "copies", workspace.extra["calls"], workspace.extra
        before, to_next = workspace.before, workspace.flag_address(workspace.next, workspace.flag_count - 1)
        goes_on = workspace.address(before), workspace.flag_address(before, 0), to_next
        if self.copies:
            goes_on = tuple([extra[name].data_ptr() for name in ("partial sums", "counters", "nobody")])
        more = self.calls.data_ptr(), *goes_on, workspace.address(workspace.rank)
        self.prepare((a, b, out), scaled, 1 if self.copies else choice.done, more)
        if self.copies:
            counters = extra["counters"]
            flags = (workspace.ranks - 1) * choice.chunks
            self.zeros = (workspace.flag_address(workspace.rank, 0), flags), (counters.data_ptr(), counters.numel())

    def start(self, a: torch.Tensor, b: torch.Tensor, scales: Scales, out: torch.Tensor, stream: int) -> None:
        """The kernel, and the way of its partial sums to their owners."""
        workspace = self.workspace
        if self.copies:  # flags begin at 0: the next rank writes them when it knows that this one has begun
            for address, count in self.zeros:
                clear_words(stream, address, count)
            workspace.fork(stream)
        else:
            self.calls.add_(1)
        factors = [scale.data_ptr() for scale in scales if scale is not None]
        self.direct.launch((out.data_ptr(), a.data_ptr(), b.data_ptr(), *factors), stream)
        if self.copies:
            workspace.send()
            workspace.join(stream)


def _direct(
    plan: Sm90Plan, index: int, leading: Sequence[int], words: Sequence[int], names: Sequence[str]
) -> DirectLaunch:
    """The launch of a plan for such lines; it takes addresses: C, A, B, then words by name."""
    steps = [x * lines for x, lines in zip(leading, (plan.m, max(plan.n, plan.k), plan.m), strict=True)]
    sizes = (plan.m, plan.n, plan.k, 1, *leading, *steps, of_device(index).resident(plan.cluster_size))
    placed = {name: PlacedOperand(0) for name in names if name in plan.epilogue.words}
    own = words_of(plan.epilogue, placed)[: len(plan.epilogue.words)]
    places = [3 + len(sizes) + plan.words.index(name) for name in names]
    padding = [0] * (MAX_WORDS - len(own) - len(words))
    return DirectLaunch(compile_plan(plan), (0, 0, 0, *sizes, *own, *words, *padding), (2, 0, 1, *places), index, plan)


# ---------------------------------------------------------------------------------------------- what moves in each call


def sends_of_sums(workspace: Workspace, choice: ShardChoice) -> Iterator[Send]:
    """Each complete chunk of sums to the rank before, and a flag."""
    chunks, room, to = choice.chunks, choice.room_bytes, workspace.before
    counters, staging = (workspace.extra[name].data_ptr() for name in ("counters", "partial sums"))
    step = room // chunks
    first = workspace.meeting()
    for number in range((workspace.ranks - 1) * chunks):
        first += (wait(counters + 4 * number, choice.done),)
        yield Send(first, workspace.address(to, number * step), staging + number * step, step)
        first = (workspace.arrival(to, number),)
    yield Send(first)


def furnish(workspace: Workspace, choice: ShardChoice, device: torch.device) -> None:
    """A scatter's number of calls. For copies also the rooms that they begin in, and counters."""
    extra, rooms = workspace.extra, workspace.ranks - 1
    copies = choice.transfer.by == "copies"
    extra["calls"] = torch.full((1,), int(copies), dtype=torch.int32, device=device)
    if copies:
        extra["partial sums"] = torch.empty(rooms * choice.room_bytes, dtype=torch.uint8, device=device)
        extra["counters"] = torch.zeros(rooms * choice.chunks, dtype=torch.int32, device=device)
        extra["nobody"] = torch.zeros(1, dtype=torch.int32, device=device)
        workspace.flags[-1:].fill_(_FAR)
        workspace.sends = tuple(sends_of_sums(workspace, choice))
