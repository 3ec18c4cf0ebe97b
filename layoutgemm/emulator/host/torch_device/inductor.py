"""torch.compile on an emulated GPU. Kernels of Inductor are compiled by Triton and launch in the emulator.

Tensors of the GPU lie in CPU memory, so Inductor sees a graph of CPU tensors. Its setting `cpu_backend="triton"` writes
Triton kernels for such a graph. Here Inductor is told that "cpu" has the properties of the emulated GPU, and Triton
compiles for that one. A benchmark is one call, so that each configuration runs once. Source: torch 2.13, the settings,
device properties and benchmarks of its Inductor, and the device interfaces of its Dynamo.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from ..arguments import Place, memory_found_by
from ..triton_calls import DriverModule
from .memory import place_of

if TYPE_CHECKING:
    from torch import Tensor

    from ..devices import GpuModel

SETTINGS = {
    "cpu_backend": "triton",
    "compile_threads": 1,  # another process would compile for a GPU that is not there
    "use_static_triton_launcher": False,  # it hands machine code to the driver
    "fx_graph_cache": False,  # graphs of other sessions are for other GPUs
    "max_autotune_gemm_backends": "TRITON",
}


UNCHECKED = (
    "torch.compile compiled for the CPU, and none of its kernels were checked. With Triton 3.6 to 3.9 (pip install "
    "triton) they compile for the emulated GPU and launch in the emulator"
)


class DeviceNode(Protocol):
    """A tensor of Inductor's graph."""

    def get_device(self) -> object:
        """Its torch.device."""


def has_triton() -> bool:
    """True if there is the Triton whose launches run in the emulator (`triton_calls.py`)."""
    try:
        return version("triton").startswith(("3.6.", "3.7.", "3.8.", "3.9."))
    except PackageNotFoundError:
        return False


def compile_by_triton(stack: ExitStack, device: GpuModel) -> None:
    """Until the stack ends, have Inductor write Triton kernels for the emulated GPU."""
    from unittest import mock

    import torch
    import torch._dynamo.device_interface as interfaces
    import torch._inductor.codegen.cpu_device_op_overrides as overrides
    import torch._inductor.config
    import torch._inductor.kernel.flex.flex_attention as flex
    import torch._inductor.runtime.benchmarking as benchmarking
    import torch._inductor.runtime.hints as hints
    import torch._inductor.runtime.triton_helpers as helpers
    import torch._inductor.runtime.triton_heuristics as heuristics
    import torch.utils._triton as found

    cuda = torch.cuda
    facts, (major, minor) = cuda.get_device_properties(0), device.capability

    class CompilingProcess:
        """The device as a process that compiles sees it."""

        get_device_properties = staticmethod(lambda device=None: facts)

    class EmulatedInterface(interfaces.CpuInterface):
        """The emulated GPU, as the device of tensors in CPU memory."""

        Worker = CompilingProcess
        Event, device, stream, current_stream = cuda.Event, cuda.device, cuda.stream, cuda.current_stream
        get_device_properties = staticmethod(lambda device=None: facts)
        get_compute_capability = staticmethod(lambda device=None: 10 * major + minor)
        raise_if_triton_unavailable = set_device = staticmethod(lambda device=None: None)
        exchange_device = maybe_exchange_device = staticmethod(lambda device: 0)

    properties = hints.DeviceProperties(
        "cuda", 0, facts.multi_processor_count, 10 * major + minor, major, facts.regs_per_multiprocessor,
        facts.max_threads_per_multi_processor, facts.max_threads_per_block, facts.warp_size,
    )  # fmt: skip
    lent = LentTensors()
    interfaces.get_interface_for_device("cpu")  # registers all, once
    for forget in (torch._dynamo.reset, found.has_triton.cache_clear):  # what was compiled for the CPU
        forget()
        stack.callback(forget)
    stack.enter_context(
        mock.patch.dict(interfaces.device_interfaces, {"cpu": EmulatedInterface, "cuda": EmulatedInterface})
    )
    for owner, name, value in (
        (hints.DeviceProperties, "create", lambda device: properties),
        (helpers, "set_driver_to_cpu", lambda: None), (flex, "lower_cpu", _lowered(flex.flex_attention)),
        # A line, which fits into the indented code of benchmarks.
        (overrides.CpuDeviceOpOverrides, "import_get_raw_stream_as",
         lambda self, name: f"{name} = lambda device: torch.cuda.current_stream().cuda_stream"),
        (heuristics.CachingAutotuner, "run", lent.run(heuristics.CachingAutotuner.run)),
        (DriverModule, "launch", lent.launch(DriverModule.launch)),
        *[(kind, name, _once) for kind in vars(benchmarking).values() for name in ("benchmark_cpu", "benchmark_gpu")
          if isinstance(kind, type) and issubclass(kind, benchmarking.Benchmarker)],
    ):  # fmt: skip
        stack.enter_context(mock.patch.object(owner, name, value))
    stack.enter_context(memory_found_by(lent.at))
    stack.enter_context(torch._inductor.config.patch(SETTINGS))
    # The session's own, or a cache would keep the emulator's times for a GPU of that name.
    stack.enter_context(mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=f"{tempfile.gettempdir()}/inductor"))


class LentTensors:
    """Tensors that Inductor's kernels were given.

    torch's C++ made some of them, as gradients, and benchmarks clone what a kernel changes: neither says that it is on
    the GPU.
    """

    def __init__(self) -> None:
        self._lent: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._inside = 0

    def run(self, plain: Callable[..., object]) -> Callable[..., object]:
        """A kernel's `run`, within which launches lend their tensors."""

        def runs(kernel: object, *args: object, **named: object) -> object:
            self._inside += 1
            try:
                return plain(kernel, *args, **named)
            finally:
                self._inside -= 1

        return runs

    def launch(self, plain: Callable[..., object]) -> Callable[..., object]:
        """The driver's `launch`, whose last argument has the tensors."""

        def launches(driver: object, *args: object) -> object:
            values = args[-1]
            assert isinstance(values, Sequence)
            tensor = sys.modules["torch"].Tensor
            self._lent.update({id(one): one for one in values if self._inside and isinstance(one, tensor)})
            return plain(driver, *args)

        return launches

    def at(self, address: int) -> Place | None:
        """The memory of a tensor that holds an address, or None."""
        return next((place for x in list(self._lent.values()) if (place := place_of(x, address)) is not None), None)


def _lowered(plain: Callable[..., object]) -> Callable[..., object]:
    """The lowering of flex_attention, kept from its template in C++ for tensors of the CPU."""

    def lowered(query: DeviceNode, *args: object, **named: object) -> object:
        from unittest import mock

        own, first = type(query).get_device, iter(["cuda"])

        def get_device(self: DeviceNode) -> object:
            asked = next(first, None)
            return own(self) if asked is None else sys.modules["torch"].device(asked)

        with mock.patch.object(type(query), "get_device", get_device):
            return plain(query, *args, **named)

    return lowered


def _once(self: object, function: Callable[[], object], *args: object, **more: object) -> float:
    """A benchmark: one call; milliseconds of the emulator, which say nothing of a GPU's."""
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e3
