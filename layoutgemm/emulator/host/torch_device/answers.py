"""Answers of torch.cuda and torch.accelerator on an emulated GPU.

Functions that have no answer here are refused by name, with the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from ....errors import EmulatorError
from .streams import (
    DEFAULT,
    HostEvent,
    HostExternalStream,
    HostGraph,
    HostStream,
    HostStreamContext,
    current_stream,
    graph,
    is_capturing,
    set_stream,
    wait_for_all,
)

if TYPE_CHECKING:
    from ..devices import GpuModel
    from .memory import DeviceNumbers, DeviceUse

Answers = dict[str, Any]


class HostDevice:
    """torch.cuda.device and `torch.accelerator.device_index`: the one GPU is the current device, also outside."""

    idx = 0

    def __init__(self, device: object = None):
        existing(device)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *args: object) -> None:
        pass


def existing(device: object) -> None:
    """Raise RuntimeError, as torch does, for the number of a GPU that is not there."""
    import torch

    number = getattr(device, "index", device) if not isinstance(device, str) else device.partition(":")[2]
    if isinstance(number, str):
        number = int(number) if number.isdigit() else 0
    count = torch.cuda.device_count()
    if isinstance(number, int) and not -1 <= number < count:
        raise RuntimeError(f"CUDA error: invalid device ordinal: {number}; there are {count} emulated GPU(s)")


class Properties(SimpleNamespace):
    """torch.cuda.get_device_properties. An unknown property is refused."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name}: the emulated {self.__dict__.get('name', 'GPU')} has no number for it")


def properties(device: GpuModel) -> Properties:
    """The properties of a GPU as torch names them. Those that are times or rates are missing."""
    return Properties(
        name=device.name, major=device.capability[0], minor=device.capability[1],
        multi_processor_count=device.multiprocessors, total_memory=device.memory,
        max_threads_per_block=device.arch.threads_per_block, shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=device.arch.smem_per_block,
        shared_memory_per_multiprocessor=device.arch.smem_per_sm, warp_size=device.arch.warp_size,
        max_threads_per_multi_processor=device.arch.threads_per_sm, L2_cache_size=device.l2,
        regs_per_multiprocessor=device.arch.registers_per_sm, is_integrated=False, is_multi_gpu_board=False,
        pci_bus_id=0, pci_device_id=0, pci_domain_id=0, uuid="00000000-0000-0000-0000-000000000000",
    )  # fmt: skip


class HostMemPool:
    """torch.cuda.MemPool, always empty: tensors lie in CPU memory.

    A class, as torch.compile asks whether values are of it.
    """

    def __init__(self, allocator: object = None, **options: object) -> None:
        self.allocator, self.id = allocator, (0, id(self))

    def use_count(self) -> int:
        """One reference: this one."""
        return 1

    def snapshot(self, include_traces: bool = True) -> list[object]:
        """No segments."""
        return []


def always(value: object) -> Callable[..., object]:
    """A function that answers the same whatever it is asked."""
    return lambda *x, **more: value


def refused(name: str, instead: str) -> Callable[..., NoReturn]:
    """A function that raises EmulatorError with the way out."""

    def call(*args: object, **kwargs: object) -> NoReturn:
        raise EmulatorError(f"{name} on an emulated GPU: {instead}")

    return call


def cuda_answers(device: GpuModel, use: DeviceUse, numbers: DeviceNumbers) -> Answers:
    """Answers of torch.cuda, by name."""
    facts = properties(device)

    def of_existing(value: object) -> Callable[..., object]:
        def answer(device: object = None) -> object:
            existing(device)
            return value

        return answer

    def synchronize(device: object = None) -> None:
        existing(device)
        wait_for_all()

    return {
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0, "init": lambda: None,
        "is_initialized": lambda: True, "set_device": of_existing(None), "synchronize": synchronize,
        "_lazy_init": lambda: None,
        "graph_pool_handle": always((0, 0)), "can_device_access_peer": always(True), "device": HostDevice,
        "device_of": lambda tensor: HostDevice(),
        "get_device_capability": of_existing(device.capability), "get_device_name": of_existing(device.name),
        "get_device_properties": of_existing(facts), "get_arch_list": lambda: [device.arch.name.rstrip("af")],
        "get_gencode_flags": lambda: "", "is_bf16_supported": always(True), "is_tf32_supported": always(True),
        "current_stream": current_stream, "default_stream": always(DEFAULT), "set_stream": set_stream,
        "Stream": HostStream, "ExternalStream": HostExternalStream, "Event": HostEvent, "stream": HostStreamContext,
        "StreamContext": HostStreamContext, "ipc_collect": lambda: None, "_sleep": lambda cycles: None,
        "get_sync_debug_mode": lambda: 0, "set_sync_debug_mode": always(None),
        "CUDAGraph": HostGraph, "graph": graph,
        "MemPool": HostMemPool, "use_mem_pool": lambda pool, device=None: nullcontext(pool),
        "is_current_stream_capturing": is_capturing,
        "cudart": lambda: _RUNTIME,
        **{name: refused(f"torch.cuda.{name}", f"it has no {what}") for name, what in _LACKS.items()},
        **use.answers(device.memory), **numbers.answers(),
    }  # fmt: skip


def c_answers() -> Answers:
    """Answers of torch._C. Only a build for CUDA has these functions, and they ask the driver."""
    return {
        "_cuda_getCurrentRawStream": lambda device: current_stream().cuda_stream,  # by Triton, and wrappers of kernels
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,  # by torch.compile, mode="reduce-overhead"
    }


_LACKS = {
    "utilization": "counters", "clock_rate": "clock", "temperature": "sensors", "power_draw": "sensors",
    "memory_usage": "counters", "current_blas_handle": "cuBLAS: call torch's products",
}  # fmt: skip


def _status(*args: object, **kwargs: object) -> int:
    return 0  # cudaSuccess


def _synchronised(*args: object) -> int:
    wait_for_all()
    return 0


_RUNTIME = SimpleNamespace(
    cudaError=SimpleNamespace(success=0), cudaProfilerStart=_status, cudaProfilerStop=_status,
    cudaDeviceSynchronize=_synchronised, cudaHostRegister=_status, cudaHostUnregister=_status,
)  # fmt: skip


def profiler_answers() -> Answers:
    """Answers of torch.cuda.profiler: there are no counters."""

    @contextmanager
    def profile() -> Iterator[None]:
        yield

    return {"start": lambda: None, "stop": lambda: None, "profile": profile}


def accelerator_answers(torch: ModuleType) -> Answers:
    """Answers of torch.accelerator: those of torch.cuda, asked when they are called."""
    cuda = torch.cuda

    def ask(name: str) -> Callable[..., object]:
        return lambda *args, **kwargs: getattr(cuda, name)(*args, **kwargs)

    same = ("is_available", "device_count", "synchronize", "current_stream", "set_stream", "empty_cache",
            "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats",
            "reset_peak_memory_stats", "get_device_capability")  # fmt: skip
    return {
        **{name: ask(name) for name in same},
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": ask("current_device"), "current_device_idx": ask("current_device"),
        "set_device_index": ask("set_device"), "set_device_idx": ask("set_device"), "device_index": HostDevice,
        "get_memory_info": ask("mem_get_info"),
    }  # fmt: skip
