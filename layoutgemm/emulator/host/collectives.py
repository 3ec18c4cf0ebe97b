"""torch.distributed, symmetric memory and NVSHMEM among the ranks of one process (`host/ranks.py`).

All tensors lie in the memory of this process, so a peer's address is the address of its tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from ...arguments import shown
from ...errors import EmulatorError
from .multicast import Multicast
from .ranks import Ranks

if TYPE_CHECKING:
    from torch import Tensor, dtype

# Functions of torch.distributed that ranks of the emulator do not have.
UNSUPPORTED = (
    "send", "recv", "isend", "irecv", "batch_isend_irecv", "reduce", "gather", "scatter", "reduce_scatter",
    "all_to_all", "new_group",
)  # fmt: skip


class HostGroup:
    """The group of all ranks."""

    group_name = "0"

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def rank(self) -> int:
        """The current rank."""
        return self._ranks.current

    def size(self) -> int:
        """The number of ranks."""
        return self._ranks.count


class Collectives:
    """The functions of torch.distributed, for a group of all ranks. Sums of 16-bit floats are rounded once."""

    def __init__(self, torch: ModuleType, ranks: Ranks) -> None:
        self.torch, self.ranks = torch, ranks

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Stand-ins by name."""
        ranks = self.ranks
        return {
            "is_available": lambda: True, "is_initialized": lambda: bool(ranks.state.get("group")),
            "is_nccl_available": lambda: True, "is_torchelastic_launched": lambda: True,
            "init_process_group": self.begin, "destroy_process_group": self.end,
            "get_rank": lambda group=None: ranks.current, "get_world_size": lambda group=None: ranks.count,
            "get_backend": lambda group=None: "nccl", "barrier": lambda *x, **y: ranks.together("barrier") and None,
            "all_reduce": self.all_reduce, "all_gather": self.all_gather, "broadcast": self.broadcast,
            "all_gather_into_tensor": self.all_gather_into_tensor, "all_gather_object": self.all_gather_object,
            **{name: partial(_refused, name) for name in UNSUPPORTED}, "all_to_all_single": self.all_to_all_single,
            "reduce_scatter_tensor": self.reduce_scatter_tensor, "broadcast_object_list": self.broadcast_object_list,
        }  # fmt: skip

    def begin(self, *args: object, **named: object) -> None:
        """init_process_group."""
        self.ranks.state["group"] = True
        self.ranks.together("init_process_group")

    def end(self, *args: object) -> None:
        """destroy_process_group."""
        self.ranks.state["group"] = False
        self.ranks.together("destroy_process_group")

    def _reduced(self, parts: Sequence[Tensor], op: object) -> Tensor:
        op = getattr(op, "op", op)
        kinds = self.torch.distributed.ReduceOp
        wide = [x.float() if x.dtype in (self.torch.float16, self.torch.bfloat16) else x for x in parts]
        if op in (kinds.SUM, kinds.AVG):
            found = sum(wide[1:], wide[0])
            found = found / len(parts) if op == kinds.AVG else found
        elif op in (kinds.MAX, kinds.MIN):
            found = getattr(self.torch.stack(wide), "amax" if op == kinds.MAX else "amin")(0)
        else:
            raise EmulatorError(f"a collective operation with {op}: SUM, AVG, MAX and MIN are emulated")
        return found.to(parts[0].dtype)

    def all_reduce(
        self, tensor: Tensor, op: object = None, group: object = None, async_op: bool = False
    ) -> _Done | None:
        """The reduction of all ranks' tensors, in place."""
        op = self.torch.distributed.ReduceOp.SUM if op is None else op
        tensor.copy_(self._reduced(self.ranks.together("all_reduce", tensor.clone()), op))
        return _Done() if async_op else None

    def multimem_all_reduce(self, tensor: Tensor, op: str, group: object = None) -> Tensor:
        """torch.ops.symm_mem.multimem_all_reduce_: the sum, in place."""
        if op != "sum":
            raise EmulatorError(f"multimem_all_reduce_ with {shown(op)}: it is 'sum'")
        self.all_reduce(tensor)
        return tensor

    def all_gather(
        self, into: list[Tensor], tensor: Tensor, group: object = None, async_op: bool = False
    ) -> _Done | None:
        """All ranks' tensors."""
        for place, part in zip(into, self.ranks.together("all_gather", tensor.clone()), strict=True):
            place.copy_(part)
        return _Done() if async_op else None

    def all_gather_into_tensor(
        self, into: Tensor, tensor: Tensor, group: object = None, async_op: bool = False
    ) -> _Done | None:
        """All ranks' tensors, side by side in one."""
        parts = self.ranks.together("all_gather_into_tensor", tensor.clone())
        into.view(len(parts), *tensor.shape).copy_(self.torch.stack(parts))
        return _Done() if async_op else None

    def all_gather_object(self, into: list[object], value: object, group: object = None) -> None:
        """All ranks' objects."""
        into[:] = self.ranks.together("all_gather_object", value)

    def broadcast(self, tensor: Tensor, src: int = 0, group: object = None, async_op: bool = False) -> _Done | None:
        """One rank's tensor."""
        tensor.copy_(self.ranks.together("broadcast", tensor.clone())[src])
        return _Done() if async_op else None

    def broadcast_object_list(self, values: list[object], src: int = 0, *others: object, **named: object) -> None:
        """One rank's objects."""
        values[:] = self.ranks.together("broadcast_object_list", list(values))[src]

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None, group: object = None, async_op: bool = False,
    ) -> _Done | None:  # fmt: skip
        """Rows from each rank, in the order of the ranks. Raises EmulatorError where the parts do not fit."""
        count, own = self.ranks.count, self.ranks.current
        if not input_split_sizes and len(input) % count:
            raise EmulatorError(f"all_to_all_single: {len(input)} rows are not {count} equal parts")
        sizes = list(input_split_sizes or [len(input) // count] * count)
        if len(sizes) != count or sum(sizes) != len(input):
            raise EmulatorError(f"all_to_all_single: parts of {sizes} rows for {count} ranks, of {len(input)} rows")
        every = self.ranks.together("all_to_all_single", input.clone().split(sizes))
        parts = [parts[own] for parts in every]
        wanted = list(output_split_sizes or [len(output) // count] * count)
        if [len(part) for part in parts] != wanted or sum(wanted) != len(output):
            raise EmulatorError(
                f"all_to_all_single: rank {own} gets {[len(part) for part in parts]} rows, not {wanted}"
            )
        output.copy_(self.torch.cat(parts).view(output.shape))
        return _Done() if async_op else None

    def reduce_scatter_tensor(
        self, into: Tensor, tensor: Tensor, op: object = None, group: object = None, async_op: bool = False
    ) -> _Done | None:
        """This rank's part of the reduction."""
        op = self.torch.distributed.ReduceOp.SUM if op is None else op
        found = self._reduced(self.ranks.together("reduce_scatter_tensor", tensor.clone()), op)
        into.copy_(found.chunk(self.ranks.count)[self.ranks.current].view(into.shape))
        return _Done() if async_op else None


def _refused(name: str, *args: object, **named: object) -> NoReturn:
    """A function of `UNSUPPORTED`."""
    raise EmulatorError(
        f"torch.distributed.{name} does not run with --ranks: all_to_all_single, all_gather and all_reduce do"
    )


class _Done:
    """The handle of an asynchronous collective operation, which is done."""

    def wait(self) -> bool:
        """Nothing is left to wait for."""
        return True


# Symmetric memory -----------------------------------------------------------------------------------------------------


class SymmetricMemory:
    """The handle of torch's symmetric memory. A tensor of each rank, of the same size, and their multicast address."""

    def __init__(self, torch: ModuleType, ranks: Ranks, tensors: Sequence[Tensor], multicast: int) -> None:
        self._torch, self._ranks, self._tensors = torch, ranks, tensors
        self.rank, self.world_size = ranks.current, ranks.count
        self.buffer_ptrs = [x.untyped_storage().data_ptr() for x in tensors]
        self.multicast_ptr = multicast
        self.buffer_size = tensors[0].untyped_storage().nbytes()

    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: dtype, storage_offset: int = 0) -> Tensor:
        """The tensor of a rank, as another shape and type."""
        count = 1
        for size in sizes:
            count *= size
        whole = self._tensors[rank].reshape(-1).view(dtype)
        return whole[storage_offset : storage_offset + count].view(tuple(sizes))

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Wait for all ranks."""
        self._ranks.together("a barrier of symmetric memory")


def _empty(torch: ModuleType) -> Callable[..., Tensor]:
    """torch's symmetric memory, which is zero at first."""

    def empty(*size: Any, dtype: dtype | None = None, device: object = None) -> Tensor:
        shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        return torch.zeros(tuple(shape), dtype=dtype, device="cuda")

    return empty


@contextmanager
def distributed(ranks: Ranks, multicast: Multicast) -> Iterator[None]:
    """Within it torch.distributed, symmetric memory and NVSHMEM are those of the ranks."""
    from unittest import mock

    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric

    def rendezvous(tensor: Tensor, group: object = None) -> SymmetricMemory:
        tensors = ranks.together("rendezvous", tensor)
        windows = ranks.together("multicast", multicast.over(tensors) if ranks.current == 0 else 0)
        return SymmetricMemory(torch, ranks, tensors, windows[0])

    group = HostGroup(ranks)
    with ExitStack() as stack:

        def patch(owner: object, name: str, value: object) -> None:
            stack.enter_context(mock.patch.object(owner, name, value, create=True))

        collectives = Collectives(torch, ranks)
        for name, function in collectives.functions().items():
            patch(dist, name, function)
        patch(dist, "group", SimpleNamespace(WORLD=group))
        patch(torch.ops, "symm_mem", SimpleNamespace(multimem_all_reduce_=collectives.multimem_all_reduce))
        patch(symmetric, "empty", _empty(torch))
        patch(symmetric, "rendezvous", rendezvous)
        native = getattr(torch._C, "_distributed_c10d", None)
        if native is not None and hasattr(native, "_SymmetricMemory"):
            patch(native._SymmetricMemory, "has_multicast_support", staticmethod(lambda *x: True))
        for name, value in (
            ("device_count", lambda: ranks.count), ("current_device", lambda: ranks.current),
            ("can_device_access_peer", lambda *x: True),
        ):  # fmt: skip
            patch(torch.cuda, name, value)
        modules = _nvshmem(torch, ranks, multicast)
        for name, module in modules.items():  # what is imported meanwhile stays
            if name in sys.modules:
                stack.callback(sys.modules.__setitem__, name, sys.modules[name])
            else:
                stack.callback(sys.modules.pop, name, None)
            sys.modules[name] = module
        import cuda.pathfinder

        patch(cuda, "core", modules["cuda.core"])
        load = cuda.pathfinder.load_nvidia_dynamic_lib
        patch(cuda.pathfinder, "load_nvidia_dynamic_lib", lambda x: None if x == "nvshmem_host" else load(x))
        yield


def _nvshmem(torch: ModuleType, ranks: Ranks, multicast: Multicast) -> dict[str, ModuleType]:
    """Modules that stand for NVSHMEM's Python package and for cuda.core, which drive real GPUs; and the loader."""
    import numpy as np

    made: dict[int, list[Tensor]] = {}  # a tensor's address -> the tensors of all ranks

    def tensor(shape: int | Sequence[int], dtype: dtype = torch.float32) -> Tensor:
        own = torch.zeros(shape, dtype=dtype, device="cuda")
        every = ranks.together("nvshmem.core.tensor", own)
        made[own.data_ptr()] = every
        return own

    def multicast_tensor(team: object, own: Tensor) -> Tensor:
        windows = ranks.together(
            "get_multicast_tensor", multicast.over(made[own.data_ptr()]) if ranks.current == 0 else 0
        )
        return multicast.tensor(windows[0], own)

    core: Any = ModuleType("nvshmem.core")
    core.tensor, core.free_tensor = tensor, lambda x: None
    core.get_peer_tensor = lambda own, rank: made[own.data_ptr()][rank]
    core.get_multicast_tensor = multicast_tensor
    core.get_unique_id = lambda empty=False: SimpleNamespace(_data=np.zeros(128, np.uint8))
    core.init = lambda **named: ranks.together("nvshmem.core.init") and None
    core.finalize = lambda: ranks.together("nvshmem.core.finalize") and None
    core.Teams = SimpleNamespace(TEAM_NODE=0, TEAM_WORLD=0)
    package: Any = ModuleType("nvshmem")
    package.core = core
    devices: Any = ModuleType("cuda.core")
    devices.Device = _Device
    return {"nvshmem": package, "nvshmem.core": core, "cuda.core": devices}


class _Device:
    """cuda.core.Device."""

    def __init__(self, number: int = 0) -> None:
        self.device_id = number

    def set_current(self) -> None:
        """The rank's device is current."""

    def create_stream(self) -> Any:
        """A stream, whose work is done when it is asked for."""
        return SimpleNamespace(handle=0, sync=lambda: None, close=lambda: None)

    def sync(self) -> None:
        """Nothing is left to wait for."""
