"""Torch's "cuda" device on a machine without a GPU: tensors lie in CPU memory and say that they are on a GPU.

`cuda_device` puts a function mode before torch. A factory or a move that asks for "cuda" makes a CPU tensor and marks
it. Results that are computed from a marked tensor are marked as well. A marked tensor answers `device`, `is_cuda` and
`numpy()` as one on a GPU does. Devices, streams and events answer. CUDA graphs capture launches of the DSL's kernels.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from types import FunctionType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import EmulatorError
from .arguments import Place, bytes_at
from .devices import CUDA
from .torch_products import PRODUCTS, product, tensors_in

if TYPE_CHECKING:
    from .devices import GpuModel

MARK = "_layoutgemm_on_gpu"
_MARKED: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # tensors on the GPU, by id

# Their storages: a DLPack capsule keeps one alive without its tensor.
_STORAGES: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def on_gpu(x: object) -> bool:
    """True for a tensor that stands for one on a GPU.

    Autograd makes tensors that torch's Python does not see, as those that a backward function saved: they lie in a
    storage that is marked.
    """
    mark, torch = getattr(x, MARK, None), sys.modules.get("torch")
    if mark is None and torch is not None and isinstance(x, torch.Tensor):
        plain = type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided
        mark = plain and getattr(x.untyped_storage(), MARK, False)
    return bool(mark)


def tensor_at(address: int) -> Place | None:
    """The storage of a tensor on the GPU that holds an address, or None."""
    for x in list(_MARKED.values()):
        storage = x.untyped_storage()
        low, size = storage.data_ptr(), storage.nbytes()
        if low <= address < low + size:
            name = f"a {str(x.dtype).removeprefix('torch.')} tensor {tuple(x.shape)}"
            return name, low, bytes_at(low, size, storage)
    for storage in list(_STORAGES.values()):
        low, size = storage.data_ptr(), storage.nbytes()
        if low <= address < low + size:
            return f"{size} bytes of a tensor that is gone", low, bytes_at(low, size, storage)
    return None


@contextmanager
def cuda_device(device: GpuModel) -> Iterator[None]:
    """Within it torch has one CUDA device, of that kind."""
    from unittest import mock  # loads asyncio, which no other command needs

    import torch

    with ExitStack() as stack:
        for name, value in _answers(torch, device).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value, create=True))
        stack.enter_context(mock.patch.object(torch.version, "cuda", torch.version.cuda or ".".join(map(str, CUDA))))
        stack.enter_context(mock.patch.object(torch.Tensor, "record_stream", lambda tensor, stream: None))
        for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
            stack.enter_context(mock.patch.object(torch.cuda.nvtx, name, lambda *x, **more: 0))
        stack.enter_context(mock.patch.object(torch, "Generator", _generator(torch)))
        for owner, name in ((torch.library, "custom_op"), (torch.library, "register_kernel")):
            stack.enter_context(mock.patch.object(owner, name, _of_the_cpu(getattr(owner, name))))
        import torch.profiler
        import torch.utils._device

        default = torch.utils._device.DeviceContext
        stack.enter_context(mock.patch.object(default, "__torch_function__", _default_device))
        stack.enter_context(mock.patch.object(torch.profiler, "profile", _profile(torch.profiler.profile)))
        implement = _within(torch, _of_the_cpu(torch.library.Library.impl))
        stack.enter_context(mock.patch.object(torch.library.Library, "impl", implement))
        backward = torch.autograd.function.BackwardCFunction
        stack.enter_context(mock.patch.object(backward, "apply", _backward(torch, gpu_mode)))
        stack.enter_context(gpu_mode())
        yield


def _default_device(
    self: Any, func: Callable[..., object], types: object, args: tuple[object, ...] = (),
    kwargs: dict[str, object] | None = None,
) -> object:  # fmt: skip
    """The default device of factories; `_called` has read it already where that mode came first."""
    kwargs, torch = dict(kwargs or {}), sys.modules["torch"]
    first = self.device.type == "cuda" and not _mode_is_on(torch)
    if not first and kwargs.get("device") is None and func in torch.utils._device._device_constructors():
        kwargs["device"] = self.device
    return func(*args, **kwargs)


def _modes(torch: ModuleType) -> list[Any]:
    """The function modes of torch that are on, the latest last."""
    found: list[Any] = torch.overrides._get_current_function_mode_stack()
    return found


def _mode_is_on(torch: ModuleType) -> bool:
    return any(type(one).__name__ == "CudaMode" for one in _modes(torch))


def gpu_mode() -> AbstractContextManager[Any]:
    """A mode in which torch reads "cuda" as CPU memory; each thread has its own."""
    import torch

    class CudaMode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return _called(torch, func, args, dict(kwargs or {}))

    mode: AbstractContextManager[Any] = CudaMode()
    return mode


def _backward(torch: ModuleType, mode: Callable[[], AbstractContextManager[object]]) -> Callable[..., object]:
    """`apply` of backward functions: the engine's gradients are on the GPU where the saved tensors are.

    `Tensor.backward` is a function of torch, so the mode that calls it is off within.
    """
    plain = torch.autograd.function.BackwardCFunction.apply

    def apply(self: Any, *gradients: object) -> object:
        if any(map(on_gpu, self.saved_tensors)):
            _marked(torch, gradients, True)
        with nullcontext() if _mode_is_on(torch) else mode():
            done: object = plain(self, *gradients)
        return done

    return apply


# ------------------------------------------------------------------------------------------------------------- tensors

_MOVES = ("to", "cuda", "cpu", "type")


def _called(torch: ModuleType, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of torch, with "cuda" in its arguments read as CPU memory."""
    if func is torch.device:
        return func(*args, **kwargs)
    name = getattr(func, "__name__", "")
    owner = getattr(func, "__self__", None)
    first = args[0] if args else None
    if name == "__get__" and owner is not None and on_gpu(first):
        which = getattr(owner, "__name__", "")
        if which == "device":
            return torch.device("cuda", torch.cuda.current_device())
        if which == "is_cuda":
            return True
    if name == "get_device" and on_gpu(first):
        return torch.cuda.current_device()
    if name == "__dlpack_device__" and on_gpu(first):
        return DL_CUDA, 0
    if name == "__dlpack__" and on_gpu(first):
        return _on_cuda(func(first))
    if name in ("numpy", "__array__") and on_gpu(first):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )
    if name == "pin_memory":
        return first
    if type(kwargs.get("device")) is int:  # a GPU's number
        kwargs["device"] = "cuda"
    if kwargs.get("pin_memory"):
        kwargs["pin_memory"] = False
    if kwargs.get("device") is None and func in torch.utils._device._device_constructors():
        # Of torch.set_default_device, and of "with torch.device(...)".
        defaults = [one.device for one in _modes(torch) if isinstance(one, torch.utils._device.DeviceContext)]
        kwargs |= {"device": defaults[-1]} if defaults else {}
    if name in _MOVES and isinstance(first, torch.Tensor):
        return _moved(torch, name, func, args, kwargs)
    asked: list[bool] = []
    args = tuple([_read(torch, x, asked) for x in args])
    kwargs = {key: _read(torch, x, asked) for key, x in kwargs.items()}
    gpu = any(_has_gpu(x) for x in (*args, *kwargs.values()))
    done = product(torch, name, func, args, kwargs) if gpu and name in PRODUCTS else func(*args, **kwargs)
    target = asked[-1] if asked else gpu
    if target and _ALLOCATES.fullmatch(name):
        _align(torch, done, [*args, *kwargs.values()])
    done = _marked(torch, done, target) if asked or gpu else done
    if gpu and HostGraph.capturing() is not None:
        _hold_uncaptured(torch, name, tensors_in(torch, args), done)
    return done


# DLPack: a capsule's tensor begins with its address; its device, two 32-bit words, follows. Source: dlpack.h.
DL_CUDA = 2
_NAMES = {b"dltensor": 0, b"dltensor_versioned": 32}  # the tensor's offset: behind version, context, deleter and flags


def _on_cuda(capsule: Any) -> Any:
    """A DLPack capsule that says that its memory is a GPU's: consumers then take the address as a global one."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = api.PyCapsule_GetName(capsule)
    address = api.PyCapsule_GetPointer(capsule, name) + _NAMES[name]
    (ctypes.c_int32 * 2).from_address(address + ctypes.sizeof(ctypes.c_void_p))[:] = [DL_CUDA, 0]
    return capsule


class GpuCapsule:
    """A tensor for DLPack alone, on a GPU."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor.detach()

    def __dlpack__(self, **_: object) -> Any:
        return _on_cuda(type(self._tensor).__dlpack__(self._tensor))

    def __dlpack_device__(self) -> tuple[int, int]:
        return DL_CUDA, 0


def _read(torch: ModuleType, value: Any, asked: list[bool]) -> Any:
    """An argument; a device becomes the CPU, and `asked` has whether it was a GPU."""
    if isinstance(value, (torch.device, str)) and str(value).split(":")[0] in ("cuda", "cpu"):
        asked.append(str(value).startswith("cuda"))
        return torch.device("cpu")
    return value


def marked(x: Any) -> Any:
    """A tensor in CPU memory, which stands for one on a GPU from now on."""
    return _marked(sys.modules["torch"], x, True)


def _has_gpu(value: Any) -> bool:
    return on_gpu(value) or (isinstance(value, (list, tuple)) and any(map(_has_gpu, value)))


def _marked(torch: ModuleType, done: Any, gpu: bool) -> Any:
    """A result, whose tensors are marked, or not."""
    if isinstance(done, torch.Tensor):
        plain = type(done) in (torch.Tensor, torch.nn.Parameter)
        if plain and done.is_meta:  # what a fake tensor wraps; torch holds it to its device
            return done
        if gpu or on_gpu(done):
            setattr(done, MARK, gpu)
            if gpu and plain:  # a fake tensor has no storage
                _MARKED[id(done)] = done
                if done.layout is torch.strided:
                    storage = done.untyped_storage()
                    setattr(storage, MARK, True)
                    _STORAGES[id(storage)] = storage
            else:
                _MARKED.pop(id(done), None)
    elif isinstance(done, (list, tuple)):
        for x in done:
            _marked(torch, x, gpu)
    return done


# Functions of torch whose result is memory of its own, but for a clone's that is its argument.
_ALLOCATES = re.compile(
    r"(empty|zeros|ones|full|rand|randn|randint|randperm|arange|linspace|tensor|eye|normal|bernoulli)(_like|_strided|_permuted)?"
    r"|new_\w+|clone|contiguous|_to_copy"
)
ALIGNMENT = 512  # bytes: of what cudaMalloc and torch allocate on a GPU


def _align(torch: ModuleType, x: Any, given: Sequence[Any]) -> None:
    """Put a new tensor at a multiple of 512 bytes, as a GPU's allocations lie; given: what it may share memory with."""
    if type(x) is not torch.Tensor or x.device.type != "cpu" or x.layout is not torch.strided:
        return
    storage = x.untyped_storage()
    low, size = storage.data_ptr(), storage.nbytes()
    if low % ALIGNMENT == 0 or not size or any(y.untyped_storage().data_ptr() == low for y in tensors_in(torch, given)):
        return
    room = np.empty(size + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    copy = torch.frombuffer(room[first : first + size], dtype=torch.uint8)
    ctypes.memmove(copy.data_ptr(), low, size)
    kind = torch.empty(0, dtype=x.dtype)
    x.data = kind.set_(copy.untyped_storage(), x.storage_offset(), x.shape, x.stride())


def _moved(torch: ModuleType, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """x.cuda(), x.cpu(), x.to(...): a copy where the tensor changes sides, as between memories."""
    x = args[0]
    if name == "cuda":
        target = True
        args, kwargs = (x,), {}
    elif name == "cpu":
        target = False
        args, kwargs = (x,), {}
    else:
        asked: list[bool] = []
        rest = [_read(torch, value, asked) for value in args[1:]]
        if rest and isinstance(rest[0], torch.Tensor):  # x.to(other)
            asked.append(on_gpu(rest[0]))
        kwargs = {key: _read(torch, value, asked) for key, value in kwargs.items()}
        if rest and isinstance(rest[0], int) and not isinstance(rest[0], bool):  # x.to(0): a device's number
            asked.append(True)
            rest[0] = torch.device("cpu")
        target = asked[-1] if asked else on_gpu(x)
        args = (x, *rest)
    done = func(*args, **kwargs) if name in ("to", "type") else x
    if done is x and target != on_gpu(x):
        done = x.detach().clone() if not x.requires_grad else x.clone()
    if target:
        _align(torch, done, args)
    return _marked(torch, done, target)


def _profile(plain: type) -> type:
    """torch.profiler.profile without the activities of a GPU, which has no counters here."""

    class HostProfile(plain):
        def __init__(self, *args: Any, activities: Any = None, **kwargs: Any):
            super().__init__(*args, activities=None, **kwargs)

    return HostProfile


_OF_TORCH = ("_", "aten", "prim", "c10d", "fsdp", "inductor")  # namespaces of its own operators


def _of_the_cpu(register: Callable[..., Any]) -> Callable[..., Any]:
    """A function that registers an operator: kernels for "cuda" are the CPU's here, where their tensors lie."""

    def host(kind: object) -> object:
        if isinstance(kind, (list, tuple)):
            return type(kind)(map(host, kind))
        return {"cuda": "cpu", "CUDA": "CPU"}.get(kind, kind) if isinstance(kind, str) else kind

    @functools.wraps(register)
    def registered(*args: Any, **kwargs: Any) -> Any:
        if str(getattr(args[0], "ns", "")).startswith(_OF_TORCH):  # torch's have a kernel for the CPU, too
            return register(*args, **kwargs)
        return register(*map(host, args), **{key: host(value) for key, value in kwargs.items()})

    return registered


_KERNELS = ("", "CPU", "CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd")  # no wrappers of a kernel


def _within(torch: ModuleType, register: Callable[..., Any]) -> Callable[..., Any]:
    """Library.impl for operators in Python: their bodies read "cuda" as CPU memory, though torch turns the mode off."""

    def kernel(body: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(body)
        def run(*args: object, **kwargs: object) -> object:
            with nullcontext() if _mode_is_on(torch) else gpu_mode():
                return body(*args, **kwargs)

        return run

    @functools.wraps(register)
    def registered(library: Any, name: Any, body: Any, key: str = "", **more: Any) -> Any:
        wraps = str(library.ns).startswith(_OF_TORCH) or key not in _KERNELS or not isinstance(body, FunctionType)
        return register(library, name, body if wraps else kernel(body), key, **more)

    return registered


def _generator(torch: ModuleType) -> type:
    """torch.Generator, whose device may be "cuda"."""

    class HostGenerator(torch.Generator):  # type: ignore[name-defined]
        def __new__(cls, device: object = "cpu") -> Any:
            return super().__new__(cls, device="cpu")

    return HostGenerator


# ----------------------------------------------------------------------------------------------- devices and streams


class HostStream:
    """A stream: all work is done when it is asked for, but for what a graph captures."""

    device_index = 0
    _handles = itertools.count(1)

    def __init__(self, *args: object, **kwargs: object):
        self.cuda_stream = next(self._handles) << 12

    def synchronize(self) -> None:
        """Nothing is left to wait for."""

    def wait_event(self, event: HostEvent) -> None:
        """Order what this stream has captured from now on behind an event."""
        if (graph := HostGraph.capturing()) is not None and event.place is not None:
            graph.order(self.cuda_stream, *event.place)

    def wait_stream(self, other: HostStream) -> None:
        """Order what this stream captures from now on behind the other."""
        if (graph := HostGraph.capturing()) is not None:
            graph.order(self.cuda_stream, other.cuda_stream, graph.length(other.cuda_stream))

    def record_event(self, event: HostEvent | None = None) -> HostEvent:
        """An event at the end of what the stream has so far."""
        event = event or HostEvent()
        event.record(self)
        return event

    def query(self) -> bool:
        """True: all work is done."""
        return True

    def __enter__(self) -> HostStream:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream


class HostDevice:
    """torch.cuda.device: the one GPU is the current device, within it and outside."""

    idx = 0

    def __init__(self, device: object = None):
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *args: object) -> None:
        pass


class HostExternalStream(HostStream):
    """The stream of a handle that another library has made."""

    def __init__(self, stream_ptr: int, *args: object, **kwargs: object):
        self.cuda_stream = int(stream_ptr)


class HostEvent:
    """An event: the time at which it was recorded, on the host."""

    _handles = itertools.count(1)

    def __init__(self, *args: object, **kwargs: object):
        self.at: float | None = None
        self.place: tuple[int, int] | None = None  # in a graph: a stream, and how much it had captured
        self.cuda_event = next(self._handles)

    def record(self, stream: HostStream | None = None) -> None:
        """Note the time, and the place in a graph that captures."""
        self.at = time.perf_counter()
        if (graph := HostGraph.capturing()) is not None:
            handle = graph.stream if stream is None else stream.cuda_stream
            self.place = handle, graph.length(handle)

    def elapsed_time(self, end: HostEvent) -> float:
        """Milliseconds between two events: of the emulator, which say nothing of a GPU's."""
        if self.at is None or end.at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end.at - self.at) * 1e3

    def synchronize(self) -> None:
        """Nothing is left to wait for."""

    def wait(self, *args: object) -> None:
        """Nothing is left to wait for."""

    def query(self) -> bool:
        """True: all work is done."""
        return True


@dataclass
class CapturedWork:
    """Work that a graph has captured on a stream: a launch, or a copy.

    behind  how much of other streams has to be done before it
    """

    stream: int
    run: Callable[[], object]
    behind: dict[int, int]
    copies: bool = False


class HostGraph:
    """A CUDA graph: the launches of kernels and the copies that were captured, which `replay` makes.

    replays  what makes them: by default one after another, in the order of their capture
    """

    _capturing: ClassVar[list[HostGraph]] = []
    replays: ClassVar[Callable[[Sequence[CapturedWork]], None] | None] = None

    def __init__(self, *args: object, **kwargs: object):
        self._work: list[CapturedWork] = []
        self._behind: dict[int, dict[int, int]] = {}
        self.stream = 0  # the current one, while it captures

    @classmethod
    def capturing(cls) -> HostGraph | None:
        """The graph that captures now, or None."""
        return cls._capturing[-1] if cls._capturing else None

    def add(self, run: Callable[[], object], stream: int | None = None, copies: bool = False) -> None:
        """Capture a launch or a copy."""
        stream = self.stream if stream is None else stream
        self._work.append(CapturedWork(stream, run, dict(self._behind.get(stream, {})), copies))

    def length(self, stream: int) -> int:
        """The length of what a stream has captured so far."""
        return sum(one.stream == stream for one in self._work)

    def order(self, stream: int, other: int, count: int) -> None:
        """Order what a stream captures from now on behind the first `count` of another."""
        behind = self._behind.setdefault(stream, {})
        for name, number in {**self._behind.get(other, {}), other: count}.items():
            if name != stream:
                behind[name] = max(behind.get(name, 0), number)

    def capture_begin(self, *args: object, **kwargs: object) -> None:
        """Work from here on is captured and not done."""
        self.reset()
        self._capturing.append(self)

    def capture_end(self) -> None:
        """The end of what is captured."""
        self._capturing.remove(self)

    def replay(self) -> None:
        """Do the work, each stream in order."""
        if HostGraph.replays is not None:
            HostGraph.replays(self._work)
            return
        for one in self._work:
            one.run()

    def reset(self) -> None:
        """Forget the work."""
        self._work.clear()
        self._behind.clear()

    def instantiate(self) -> None:
        """Nothing is left to prepare."""


@contextmanager
def _graph(
    cuda_graph: HostGraph, pool: object = None, stream: HostStream | None = None, **kwargs: object
) -> Iterator[None]:
    """torch.cuda.graph: capture what is launched within."""
    cuda_graph.capture_begin()
    cuda_graph.stream = 0 if stream is None else stream.cuda_stream
    try:
        yield
    finally:
        cuda_graph.capture_end()


def _hold_uncaptured(torch: ModuleType, name: str, given: Iterator[Any], done: Any) -> None:
    """Raise EmulatorError for work of torch on the GPU while a graph captures: only kernels of the DSL are captured."""
    fresh = isinstance(done, torch.Tensor) and on_gpu(done)
    storages = {x.untyped_storage().data_ptr() for x in given if on_gpu(x)} if fresh else set()
    changes = name.endswith("_") and not name.endswith("__")
    if storages and (changes or done.untyped_storage().data_ptr() not in storages):
        raise EmulatorError(f"torch's {name} in a CUDA graph: launches of the DSL are captured, torch's work is not")


@contextmanager
def _nothing(*args: object, **kwargs: object) -> Iterator[None]:
    yield


def _answers(torch: ModuleType, device: GpuModel) -> dict[str, Any]:
    """Answers of torch.cuda, by name."""
    facts = SimpleNamespace(
        name=device.name, major=device.capability[0], minor=device.capability[1],
        multi_processor_count=device.multiprocessors, total_memory=device.memory,
        max_threads_per_block=1024, shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=device.arch.smem_per_block,
        shared_memory_per_multiprocessor=device.arch.smem_per_sm, warp_size=device.arch.warp_size,
        max_threads_per_multi_processor=device.arch.threads_per_sm, L2_cache_size=device.l2,
        regs_per_multiprocessor=device.arch.registers_per_sm, is_integrated=False, is_multi_gpu_board=False,
    )  # fmt: skip

    def always(value: object) -> Callable[..., object]:
        return lambda *x, **more: value

    stream = HostStream()
    stream.cuda_stream = 0
    return {
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0, "init": lambda: None,
        "is_initialized": lambda: True, "set_device": always(None), "synchronize": always(None),
        "set_stream": always(None), "graph_pool_handle": always((0, 0)), "can_device_access_peer": always(True),
        "seed": always(None), "seed_all": always(None), "initial_seed": always(0), "memory_summary": always(""),
        "get_device_capability": always(device.capability), "get_device_name": always(device.name),
        "get_device_properties": always(facts), "current_stream": always(stream),
        "default_stream": always(stream), "Stream": HostStream, "ExternalStream": HostExternalStream,
        "Event": HostEvent, "stream": _nothing,
        "device": HostDevice,
        "empty_cache": lambda: None, "memory_allocated": always(0), "max_memory_allocated": always(0),
        "reset_peak_memory_stats": always(None), "mem_get_info": always((device.memory, device.memory)),
        "manual_seed": lambda seed: None, "manual_seed_all": lambda seed: None,  # torch.manual_seed calls them
        "get_rng_state": lambda *x, **more: torch.get_rng_state(),
        "set_rng_state": lambda state, *x, **more: torch.set_rng_state(state),
        "ipc_collect": lambda: None, "_sleep": lambda cycles: None, "memory_reserved": always(0),
        "CUDAGraph": HostGraph, "graph": _graph,
        "is_current_stream_capturing": lambda: HostGraph.capturing() is not None,
    }  # fmt: skip
