"""Torch's "cuda" device on a machine without a GPU. Tensors lie in CPU memory and say that they are on a GPU.

`cuda_device` puts a function mode before torch. A factory or a move that asks for "cuda" makes a CPU tensor and marks
it. Results that are computed from a marked tensor are marked as well. A marked tensor answers `device`, `is_cuda` and
`numpy()` as one on a GPU does. Devices, streams and events answer. CUDA graphs capture torch's work.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ...turns import OwnStack
from ..arguments import Place, bytes_at
from ..devices import CUDA
from .answers import accelerator_answers, c_answers, cuda_answers, existing, profiler_answers
from .inductor import UNCHECKED, compile_by_triton, has_triton
from .memory import ALIGNMENT, DeviceNumbers, DeviceUse, place_of
from .order import is_followed, is_plain, note, note_alone, note_move, note_work
from .products import PRODUCTS, product, tensors_in
from .recorder import recorded
from .streams import CAPTURES, is_capturing, own_streams, refuse_read

if TYPE_CHECKING:
    from torch import Tensor, UntypedStorage

    from ..devices import GpuModel

Function = Callable[..., Any]  # of torch
Arguments = tuple[Any, ...]
Named = dict[str, Any]

MARK = "_layoutgemm_on_gpu"
PINNED = "_layoutgemm_pinned"
_MARKED: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # tensors on the GPU, by id
_USE = DeviceUse(CAPTURES.allocated)
_NUMBERS: list[DeviceNumbers] = []  # of the session


def on_gpu(x: object) -> bool:
    """True for a tensor that stands for one on a GPU.

    Autograd makes tensors that torch's Python does not see, as those that a backward function saved: they lie in a
    storage that is marked.
    """
    mark, torch = getattr(x, MARK, None), sys.modules.get("torch")
    if mark is None and torch is not None and isinstance(x, torch.Tensor):
        if (inner := _unwrapped(torch, x)) is not x:
            return on_gpu(inner)
        plain = type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided
        mark = plain and getattr(x.untyped_storage(), MARK, False)
    return bool(mark)


def _unwrapped(torch: ModuleType, x: Tensor) -> Tensor:
    """The tensor whose memory a wrapper of torch.vmap or torch.func.grad stands for; else the tensor itself."""
    wraps = torch._C._functorch
    while wraps.is_functorch_wrapped_tensor(x):
        x = wraps.get_unwrapped(x)
    return x


def tensor_at(address: int) -> Place | None:
    """The storage of a tensor on the GPU that holds an address, or None."""
    for x in list(_MARKED.values()):
        if (place := place_of(x, address)) is not None:
            return place
    for storage in _USE.storages():
        low, size = storage.data_ptr(), storage.nbytes()
        if low <= address < low + size:
            return f"the storage of a tensor, {size} bytes", low, bytes_at(low, size, storage)
    return None


@contextmanager
def cuda_device(device: GpuModel, note: Callable[[str], None]) -> Iterator[None]:
    """Within it torch has one CUDA device, of that kind. `note` is told what was left unchecked."""
    from unittest import mock  # loads asyncio, which no other command needs

    import torch

    with ExitStack() as stack:
        _USE.peak = _USE.bytes()
        _NUMBERS.append(DeviceNumbers(torch))
        stack.callback(_NUMBERS.pop)
        stack.enter_context(own_streams())
        for owner, answers in (
            (torch.cuda, cuda_answers(device, _USE, _NUMBERS[-1])), (torch.cuda.profiler, profiler_answers()),
            (torch.cuda.graphs, {"graph_pool_handle": lambda: (0, 0)}),  # asked by torch.cuda.make_graphed_callables
            (torch.accelerator, accelerator_answers(torch)), (torch._C, c_answers()),
        ):  # fmt: skip
            for name, value in answers.items():
                stack.enter_context(mock.patch.object(owner, name, value, create=True))
        stack.enter_context(mock.patch.object(torch, "get_device_module", _device_module(torch)))
        stack.enter_context(mock.patch.object(torch, "load", _load(torch)))
        stack.enter_context(mock.patch.object(torch, "compile", _compile(torch, stack, device, note)))
        for name, value in _autocast(torch.autocast).items():
            stack.enter_context(mock.patch.object(torch.autocast, name, value))
        stack.enter_context(mock.patch.object(threading.Thread, "start", _start(threading.Thread.start)))
        stack.enter_context(mock.patch.object(torch.version, "cuda", torch.version.cuda or ".".join(map(str, CUDA))))
        stack.enter_context(mock.patch.object(torch.Tensor, "record_stream", lambda tensor, stream: None))
        stack.enter_context(mock.patch.object(torch.UntypedStorage, "resize_", _resize(torch.UntypedStorage.resize_)))
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
        engine = _with_mode(torch.autograd._engine_run_backward)
        stack.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", engine))
        import torch.utils.checkpoint

        # It compares tensors that a function saves; their device is known behind the function.
        seen = {"default": lambda x: {"shape": x.shape, "dtype": x.dtype}}
        stack.enter_context(mock.patch.dict(torch.utils.checkpoint._allowed_determinism_checks_to_fns, seen))
        forward = classmethod(_forward(torch))
        stack.enter_context(mock.patch.object(torch.autograd.Function, "apply", forward))
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


def gpu_mode() -> AbstractContextManager[object]:
    """A mode in which torch reads "cuda" as CPU memory; each thread has its own. It is on once."""
    import torch

    if _mode_is_on(torch):
        return nullcontext()

    class CudaMode(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Function, types: object, args: Arguments = (), kwargs: Named | None = None
        ) -> Any:
            if torch.compiler.is_dynamo_compiling():  # a constant for torch.compile, which traces this function
                return _traced(torch, func, args, kwargs or {})
            return _called(torch, func, args, dict(kwargs or {}))

    mode: AbstractContextManager[object] = CudaMode()
    return mode


def _forward(torch: ModuleType) -> Callable[..., object]:
    """`apply` of autograd functions: the node of a result on the GPU is marked, since it may have saved no tensor."""
    plain = vars(torch.autograd.Function)["apply"]  # a class method of Python's, or since torch 2.14 of C's

    def apply(kind: type, *args: object, **kwargs: object) -> object:
        done: object = plain.__get__(None, kind)(*args, **kwargs)
        for one in tensors_in(torch, done if isinstance(done, (list, tuple)) else [done]):
            if on_gpu(one) and one.grad_fn is not None:
                setattr(one.grad_fn, MARK, True)
        return done

    return apply


def _traced(torch: ModuleType, func: Function, args: Arguments, kwargs: Named) -> object:
    """A function of torch that torch.compile traces, with "cuda" read as CPU memory. Its results are marked later."""
    if func is torch.Tensor.cuda:
        return args[0]
    host = [_host(torch, x) for x in args]
    return func(*host, **{key: _host(torch, x) for key, x in kwargs.items()})


def _host(torch: ModuleType, value: object) -> object:
    return torch.device("cpu") if isinstance(value, (torch.device, str)) and "cuda" in str(value) else value


def _backward(torch: ModuleType, mode: Callable[[], AbstractContextManager[object]]) -> Callable[..., object]:
    """`apply` of backward functions: the engine's gradients are on the GPU where the results or saved tensors are.

    Another thread's engine calls it without the mode.
    """
    plain = torch.autograd.function.BackwardCFunction.apply

    def apply(self: Any, *gradients: object) -> object:
        if getattr(self, MARK, False) or any(map(on_gpu, self.saved_tensors)):
            _marked(torch, gradients, True)
        with mode():
            done: object = plain(self, *gradients)
        return done

    return apply


def _with_mode(run_backward: Callable[..., object]) -> Callable[..., object]:
    """Autograd's engine, which calls hooks and recomputes checkpoints: code that asks for "cuda", as any.

    `Tensor.backward` is a function of torch, so the mode that calls it is off within.
    """

    def run(*args: object, **kwargs: object) -> object:
        with gpu_mode():
            return run_backward(*args, **kwargs)

    return run


# ------------------------------------------------------------------------------------------------------------- tensors

_MOVES = ("to", "cuda", "cpu", "type")


def _called(torch: ModuleType, func: Function, args: Arguments, kwargs: Named) -> Any:
    """A function of torch, with "cuda" in its arguments read as CPU memory."""
    name = _name_of(torch, func)
    if func is torch.device or name == "_parse_to":  # a module reads its device by it, then moves its tensors
        return func(*args, **kwargs)
    first: Any = args[0] if args else None
    if name in _ANSWERS or name in ("__get__", "__set__"):
        found = _answer(torch, name, func, args)
        if found is not _NO_ANSWER:
            return found
    if name == "pin_memory":
        return _pinned(first if getattr(first, PINNED, False) else first.clone())
    if type(kwargs.get("device")) is int:  # a GPU's number
        kwargs["device"] = f"cuda:{kwargs['device']}"
    pinned = kwargs.get("pin_memory")
    if pinned:
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
    target = asked[-1] if asked else gpu
    if gpu and name in _ON_ONE_DEVICE:
        _hold_one_device(torch, name, (*args, *kwargs.values()))
    work = GpuWork(torch, name, func, args, kwargs, target)
    if target and is_capturing():
        return _captured(work)
    count = _USE.count
    done = work.do()
    if (given := kwargs.get("out", first)) is not None and done is given:  # it changes an argument, which stays there
        if gpu and (given is not first or name in _OF_FORM) and type(done) is torch.Tensor:
            _measured(done.untyped_storage())
        _followed(work, done, done if gpu and type(done) is torch.Tensor and work.changed is done else None)
        return done
    allocates = _ALLOCATES.fullmatch(name)
    if target and allocates:
        _align(torch, done, [*args, *kwargs.values()])
    if asked or gpu:
        done = _marked(torch, done, target)
    if allocates and not target and type(done) is torch.Tensor:
        setattr(done, MARK, False)  # of the host, by its script's word
    _followed(work, done, done if _USE.count > count and type(done) is torch.Tensor else None)
    return _pinned(done) if pinned else done


def _name_of(torch: ModuleType, func: Function) -> str:
    """A function's name; of an operator that is not torch's with its library: it may be called as one of torch's."""
    if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        whole = str(func.name() if isinstance(func, torch._ops.OpOverload) else func._qualified_op_name)
        if not whole.startswith(_OF_TORCH):
            return whole
    return str(getattr(func, "__name__", ""))


def _measured(storage: UntypedStorage) -> None:
    """Count a storage by its size of now, if it is the GPU's."""
    if _USE.has(storage):
        _USE.add(storage)


def _resize(plain: Callable[..., object]) -> Callable[..., object]:
    """`resize_` of storages, whose size is counted."""

    def resize(storage: UntypedStorage, *args: object) -> object:
        done = plain(storage, *args)
        _measured(storage)
        return done

    return resize


def _followed(work: GpuWork, done: object, written: Tensor | None) -> None:
    """Note what a function has touched. `written`: the one tensor that it has made or changed on the GPU, or None.

    What an operator of another library touched, its launches and the functions of torch in it have noted.
    """
    if "::" in work.name:
        return
    if is_followed() or work.name == "copy_":
        note_work(work.torch, work.name, work.args, work.kwargs, work.changed, done, on_gpu)
    elif work.on_gpu:
        note_alone(work.torch, work.name, written)


# What autocast computes in float32 on a GPU, and the CPU's in the type that it is given: torch.amp, "CUDA Ops that can
# autocast to float32".
_IN_FLOAT32 = frozenset(
    "acos asin cosh erfinv exp expm1 log log10 log1p log2 reciprocal rsqrt sinh tan pow __pow__ __rpow__ softplus "
    "layer_norm group_norm norm nuclear_norm cosine_similarity dist pdist cdist renorm logsumexp prod sum softmax "
    "log_softmax softmin cumprod cumsum binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy "
    "hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss "
    "multilabel_margin_loss nll_loss poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss".split()
)


def _in_float32(torch: ModuleType, args: Arguments, kwargs: Named) -> tuple[Arguments, Named]:
    """The arguments with tensors of 16-bit floats as float32; as they are where the call names a type or its output."""
    if kwargs.get("dtype") is not None or kwargs.get("out") is not None:
        return args, kwargs

    def widened(x: Any) -> Any:
        return x.float() if isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.bfloat16) else x

    return tuple(map(widened, args)), {key: widened(x) for key, x in kwargs.items()}


@dataclass(frozen=True)
class GpuWork:
    """A function of torch with its arguments, in CPU memory.

    on_gpu  whether the GPU does it
    """

    torch: ModuleType
    name: str
    func: Function
    args: Arguments
    kwargs: Named
    on_gpu: bool

    def do(self) -> Any:
        """Run the function and return its result. Raises torch's OutOfMemoryError."""
        draws = self.on_gpu and _DRAWS.fullmatch(self.name) and self.kwargs.get("generator") is None
        args, kwargs = self.args, self.kwargs
        if self.on_gpu and self.name in _IN_FLOAT32 and self.torch.is_autocast_enabled("cuda"):
            args, kwargs = _in_float32(self.torch, args, kwargs)
        try:
            with _NUMBERS[-1].drawn() if draws and _NUMBERS else nullcontext():
                if self.on_gpu and self.name in PRODUCTS:
                    return product(self.torch, self.name, self.func, args, kwargs)
                return self.func(*args, **kwargs)
        except RuntimeError as error:
            if self.on_gpu and "can't allocate memory" in str(error):
                raise self.torch.OutOfMemoryError(f"CUDA out of memory, on an emulated GPU: {error}") from None
            raise

    @property
    def changed(self) -> object:
        """The argument that it changes in place, or None."""
        if self.kwargs.get("out") is not None:
            return self.kwargs["out"]
        changes = self.name in _IN_PLACE or (self.name.endswith("_") and not self.name.endswith("__"))
        inplace = (changes and self.name not in _OF_FORM) or self.kwargs.get("inplace") is True
        return next(iter((*self.args, *self.kwargs.values())), None) if inplace else None


# Functions that draw random numbers.
_DRAWS = re.compile(
    r"(rand|randn|randint|randperm|normal|bernoulli|multinomial|poisson|binomial)(_like)?_?"
    r"|(uniform|exponential|cauchy|log_normal|geometric|random|trunc_normal|kaiming_\w+|xavier_\w+|orthogonal)_"
    r"|(alpha_|feature_)?dropout[123]?d?_?|scaled_dot_product_attention|rrelu_?|gumbel_softmax"
)
_IN_PLACE = (
    "__setitem__",
    *(f"__i{one}__" for one in "add sub mul truediv floordiv mod pow and or xor lshift rshift".split()),
)
# In-place functions that leave the values.
_OF_FORM = ("requires_grad_", "detach_", "squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_",
            "resize_", "set_", "rename_", "share_memory_", "as_strided_")  # fmt: skip
# Functions that torch refuses for tensors of two devices, but for a number of the host. Not all: those of scripts.
_ON_ONE_DEVICE = frozenset((
    *PRODUCTS, *(f"__{r}{one}__" for one in "add sub mul truediv floordiv pow".split() for r in ("", "r")),
    *"add sub mul div true_divide rsub add_ sub_ mul_ div_ maximum minimum equal allclose isclose eq ne lt le gt ge"
    " cat stack layer_norm rms_norm mse_loss l1_loss cross_entropy where lerp dist cosine_similarity"
    " scaled_dot_product_attention conv1d conv2d conv3d".split(),
))  # fmt: skip


def _hold_one_device(torch: ModuleType, name: str, values: Sequence[object]) -> None:
    """Raise RuntimeError, as torch does, for tensors of the host and of the GPU."""
    if any(getattr(x, MARK, None) is False and x.dim() for x in tensors_in(torch, values)):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"(when checking the arguments of {name} on an emulated GPU)"
        )


_NO_ANSWER = object()
_ANSWERS = ("get_device", "__dlpack_device__", "__dlpack__", "numpy", "__array__", "is_pinned", "__repr__")


def _answer(torch: ModuleType, name: str, func: Function, args: Arguments) -> Any:
    """A tensor's answer about itself, on the GPU or in pinned memory; else _NO_ANSWER."""
    first = args[0] if args else None
    which = getattr(getattr(func, "__self__", None), "__name__", "")
    if name == "__set__":
        if which != "data":
            return _NO_ANSWER
        func(*args)
        return setattr(first, MARK, on_gpu(args[1]))
    if name == "is_pinned":
        return bool(getattr(first, PINNED, False))
    if not on_gpu(first):
        return _NO_ANSWER
    if name == "__get__":
        if which == "device":
            return torch.device("cuda", torch.cuda.current_device())
        if getattr(func, "__self__", None) is torch.Tensor.__cuda_array_interface__:
            return {**{key: x for key, x in _array_interface(first).items() if key != "descr"}, "version": 2}
        return {"is_cuda": True}.get(which, _NO_ANSWER)
    if name == "get_device":
        return torch.cuda.current_device()
    if name == "__dlpack_device__":
        return DL_CUDA, 0
    if name == "__dlpack__":
        return _on_cuda(func(first))
    if name == "__repr__":
        return re.sub(r"((, (dtype|grad_fn|requires_grad)=[^\]]*)?\))$", r", device='cuda:0'\1", func(*args))
    raise TypeError(
        "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
    )


def _array_interface(x: Tensor) -> Named:
    """NumPy's description of a tensor's memory. Raises TypeError for a type that NumPy lacks."""
    with sys.modules["torch"]._C.DisableTorchFunction():
        found: Named = x.detach().numpy().__array_interface__
    return found


def _pinned(done: object) -> Any:
    """A tensor of the host, in pinned memory."""
    setattr(done, PINNED, True)
    return done


# DLPack: a capsule's tensor begins with its address; its device, two 32-bit words, follows. Source: dlpack.h.
DL_CUDA = 2
_NAMES = {b"dltensor": 0, b"dltensor_versioned": 32}  # the tensor's offset: behind version, context, deleter and flags


def _on_cuda(capsule: object) -> Any:
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

    def __dlpack__(self, **_: object) -> object:
        return _on_cuda(type(self._tensor).__dlpack__(self._tensor))

    def __dlpack_device__(self) -> tuple[int, int]:
        return DL_CUDA, 0


def _read(torch: ModuleType, value: object, asked: list[bool]) -> Any:
    """An argument; a device becomes the CPU, and `asked` has whether it was a GPU."""
    if isinstance(value, (torch.device, str)) and str(value).split(":")[0] in ("cuda", "cpu"):
        asked.append(str(value).startswith("cuda"))
        if asked[-1]:
            existing(value)
        return torch.device("cpu")
    return value


def marked(x: object) -> Any:
    """A tensor in CPU memory, which stands for one on a GPU from now on."""
    return _marked(sys.modules["torch"], x, True)


def _has_gpu(value: object) -> bool:
    return on_gpu(value) or (isinstance(value, (list, tuple)) and any(map(_has_gpu, value)))


def _marked(torch: ModuleType, done: object, gpu: bool) -> Any:
    """A result, whose tensors are marked, or not."""
    if isinstance(done, torch.Tensor):
        plain = type(done) in (torch.Tensor, torch.nn.Parameter)
        inner = _unwrapped(torch, done)
        if plain and done.is_meta:  # what a fake tensor wraps; torch holds it to its device
            return done
        if gpu or on_gpu(done):
            setattr(done, MARK, gpu)
            if inner is not done:
                _marked(torch, inner, gpu)
            elif gpu and plain:  # a fake tensor has no storage
                _MARKED[id(done)] = done
                if done.layout is torch.strided:
                    storage = done.untyped_storage()
                    setattr(storage, MARK, True)
                    _USE.add(storage)
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


def _align(torch: ModuleType, x: Any, given: Sequence[object]) -> None:
    """Put a new tensor at a multiple of 512 bytes, as a GPU's allocations lie; given: what it may share memory with."""
    if type(x) is not torch.Tensor or x.device.type != "cpu" or x.layout is not torch.strided:
        return
    if _unwrapped(torch, x) is not x:  # an allocation that another call has aligned, or a view
        return
    storage = x.untyped_storage()
    low, size = storage.data_ptr(), storage.nbytes()
    if low % ALIGNMENT == 0 or not size:
        return
    if any(_unwrapped(torch, y).untyped_storage().data_ptr() == low for y in tensors_in(torch, given)):
        return
    room = np.empty(size + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    copy = torch.frombuffer(room[first : first + size], dtype=torch.uint8)
    ctypes.memmove(copy.data_ptr(), low, size)
    kind = torch.empty(0, dtype=x.dtype)
    x.data = kind.set_(copy.untyped_storage(), x.storage_offset(), x.shape, x.stride())


def _moved(torch: ModuleType, name: str, func: Function, args: Arguments, kwargs: Named) -> object:
    """x.cuda(), x.cpu(), x.to(...): a copy where the tensor changes sides, as between memories."""
    x = args[0]
    non_blocking = bool(kwargs.get("non_blocking", name == "cuda" and len(args) > 2 and args[2]))
    if name == "cuda":
        target = True
        for device in (*args[1:], kwargs.get("device")):
            existing(device)
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
            existing(rest[0])
            rest[0] = torch.device("cpu")
        target = asked[-1] if asked else on_gpu(x)
        args = (x, *rest)
    captures = is_capturing() and (target or on_gpu(x))
    if captures and not target and not non_blocking:
        raise refuse_read(name)
    place = functools.partial(_align, torch, given=args) if target else None
    with recorded(torch, _NUMBERS[-1].drawn, place) if captures else nullcontext():
        done = func(*args, **kwargs) if name in ("to", "type") else x
        if done is x and target != on_gpu(x):
            done = x.detach().clone() if not x.requires_grad else x.clone()
    if place is not None and not captures:
        place(done)
    done = _marked(torch, done, target)
    if non_blocking and not target and on_gpu(x):
        _pinned(done)  # torch asks for pinned memory there
    plain = not captures and done is not x and isinstance(done, torch.Tensor) and (target or on_gpu(x))
    if plain and is_plain(torch, (x, done)):
        if target and on_gpu(x):
            note(name, [x], [done])
        else:
            note_move(name, done, x, non_blocking, on_gpu)
    return done


def _profile(plain: type) -> type:
    """torch.profiler.profile without the activities of a GPU, which has no counters here."""

    class HostProfile(plain):
        def __init__(self, *args: object, activities: object = None, **kwargs: object):
            super().__init__(*args, activities=None, **kwargs)

    return HostProfile


_OF_TORCH = ("_", "aten", "prim", "c10d", "fsdp", "inductor")  # namespaces of its own operators


def _of_the_cpu(register: Function) -> Function:
    """A function that registers an operator: kernels for "cuda" are the CPU's here, where their tensors lie."""

    def host(kind: object) -> object:
        if isinstance(kind, (list, tuple)):
            return type(kind)(map(host, kind))
        return {"cuda": "cpu", "CUDA": "CPU"}.get(kind, kind) if isinstance(kind, str) else kind

    @functools.wraps(register)
    def registered(*args: object, **kwargs: object) -> object:
        if str(getattr(args[0], "ns", "")).startswith(_OF_TORCH):  # torch's have a kernel for the CPU, too
            return register(*args, **kwargs)
        return register(*map(host, args), **{key: host(value) for key, value in kwargs.items()})

    return registered


_KERNELS = ("", "CPU", "CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd")  # no wrappers of a kernel


def _within(torch: ModuleType, register: Function) -> Function:
    """Library.impl for operators in Python: their bodies read "cuda" as CPU memory, though torch turns the mode off."""

    def kernel(body: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(body)
        def run(*args: object, **kwargs: object) -> object:
            with gpu_mode():
                return body(*args, **kwargs)

        return run

    @functools.wraps(register)
    def registered(library: Any, name: object, body: Function, key: str = "", **more: object) -> object:
        wraps = str(library.ns).startswith(_OF_TORCH) or key not in _KERNELS or not isinstance(body, FunctionType)
        return register(library, name, body if wraps else kernel(body), key, **more)

    return registered


def _generator(torch: ModuleType) -> type:
    """torch.Generator, whose device may be "cuda"."""

    class HostGenerator(torch.Generator):  # type: ignore[name-defined]
        def __new__(cls, device: object = "cpu") -> Any:
            made = super().__new__(cls, device="cpu")
            made._asked = torch.device(device)
            return made

        @property
        def device(self) -> Any:
            return self._asked

    return HostGenerator


# ------------------------------------------------------------------------------------------- modules and functions


def _device_module(torch: ModuleType) -> Callable[..., ModuleType]:
    """torch.get_device_module; by default that of the GPU."""
    plain: Callable[..., ModuleType] = torch.get_device_module

    @functools.wraps(plain)
    def get(device: object = None) -> ModuleType:
        return torch.cuda if device is None else plain(device)

    return get


def _load(torch: ModuleType) -> Function:
    """torch.load, with tensors where `map_location` puts them."""
    plain = torch.load

    def put(found: object, gpu: bool) -> None:
        if isinstance(found, torch.Tensor):
            if on_gpu(found) != gpu:
                _marked(torch, found, gpu)
                setattr(found, MARK, gpu)
        elif isinstance(found, torch.nn.Module):
            put([*found.parameters(), *found.buffers()], gpu)
        elif isinstance(found, (dict, list, tuple)):
            for x in found.values() if isinstance(found, dict) else found:
                put(x, gpu)

    @functools.wraps(plain)
    def load(f: object, map_location: object = None, *args: object, **kwargs: object) -> object:
        known = isinstance(map_location, (str, int, torch.device))
        gpu = known and (isinstance(map_location, int) or str(map_location).startswith("cuda"))
        if gpu:
            existing(map_location)
        found = plain(f, "cpu" if gpu else map_location, *args, **kwargs)
        if known:
            put(found, gpu)
        return found

    return load


def _compile(torch: ModuleType, session: ExitStack, device: GpuModel, note: Callable[[str], None]) -> Function:
    """torch.compile; what its functions compute of tensors on the GPU is on the GPU."""
    plain, ready = torch.compile, False

    def compiled(model: object = None, **kwargs: object) -> Any:
        nonlocal ready
        if model is None:
            return lambda body: compiled(body, **kwargs)
        if kwargs.get("backend", "inductor") == "inductor":
            if not has_triton():
                note(UNCHECKED)
            elif not ready:  # Inductor takes seconds to load
                ready = True
                compile_by_triton(session, device)
        made = plain(model, **kwargs)
        if isinstance(made, type):  # torch compiles its __call__, and hands the class back
            return made
        if isinstance(made, torch.nn.Module):
            made.register_forward_hook(
                lambda module, given, named, done: placed((given, named.values()), done), with_kwargs=True
            )
            return made

        @functools.wraps(made)
        def run(*args: object, **named: object) -> object:
            return placed((args, named.values()), made(*args, **named))

        return run

    def placed(given: Arguments, done: object) -> object:
        return _marked(torch, done, True) if any(map(_has_gpu, (*given[0], *given[1]))) else done

    return functools.wraps(plain)(compiled)


def _autocast(kind: Any) -> Named:
    """Entry and exit of torch.autocast: that of "cuda" is the CPU's, too, where the tensors lie."""
    enter, leave = kind.__enter__, kind.__exit__
    inner: OwnStack[object] = OwnStack()

    def entered(self: Any) -> object:
        done = enter(self)
        if self.device == "cuda":
            own = kind("cpu", enabled=False, cache_enabled=self._cache_enabled)
            own.fast_dtype, own._enabled = self.fast_dtype, self._enabled  # float32 too, which the CPU's refuses
            inner.items.append(own)
            enter(own)
        return done

    def left(self: Any, *args: object) -> object:
        if self.device == "cuda":
            leave(inner.items.pop(), *args)
        return leave(self, *args)

    return {"__enter__": entered, "__exit__": left}


def _start(plain: Callable[..., None]) -> Callable[..., None]:
    """threading.Thread.start: torch's modes are a thread's own."""

    @functools.wraps(plain)
    def start(self: threading.Thread) -> None:
        body = self.run

        def run() -> None:
            with gpu_mode():
                body()

        self.run = run  # type: ignore[method-assign]
        plain(self)

    return start


# ------------------------------------------------------------------------------------------------------ graphs

# Functions that ask for values, which a GPU that captures does not have.
_READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__", "nonzero", "unique", "cpu",
          "equal", "allclose", "masked_select")  # fmt: skip


def _captured(work: GpuWork) -> object:
    """Work of torch while the current stream captures, as the operators that it runs.

    See `recorder.py`.

    Its result has memory, which each replay fills.

    Raises CudaStatusError for work that a graph cannot hold.
    """
    torch, name = work.torch, work.name
    if name in _READS:
        raise refuse_read(name)
    place = functools.partial(_align, torch, given=()) if _ALLOCATES.fullmatch(name) else None
    with recorded(torch, _NUMBERS[-1].drawn, place):
        done = work.do()
    if done is None or any(done is x for x in tensors_in(torch, (*work.args, *work.kwargs.values()))):
        return done  # an argument stays where it is
    return _marked(torch, done, True)
