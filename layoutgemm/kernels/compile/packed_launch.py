"""A launch that is made again for the same addresses: the kernel's parameters stay packed, and no tensor map is encoded.

The compiled host function encodes a tensor map for each operand, and packs the kernel's parameters, at each call. For
the same arguments they are the same bytes. One call is captured into a CUDA graph that never runs. The driver has the
kernel, the grid and the parameters of its one node, and `cuLaunchKernelEx` takes them again.

    host function   arguments -> tensor maps -> parameters -> cudaLaunchKernelExC -> cuLaunchKernelEx
    packed          cuLaunchKernelEx

Source: CUDA driver API, graph management and execution control.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

from ...errors import PlanError
from .launcher import allowed_in_capture, cuda_driver

PackedLaunch = Callable[[], int]  # launches, and returns 0 or CUDA's error

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_KERNEL_NODE = 0  # CU_GRAPH_NODE_TYPE_KERNEL
# CUlaunchAttributeID of what our kernels are launched with: cooperative, cluster dimensions, programmatic dependent launch.
ATTRIBUTES = (2, 4, 6)
MAX_PACKED = 1024  # launches of one kernel and shape: all layers of a model have their own
MAX_SEEN = 4096  # calls that came once
_ALIGNMENT = 128  # bytes, of a tensor map among the parameters

_Pointer, _Bytes, _Count = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
_SIZES = [(name, _Count) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")]
_LOCK = threading.Lock()  # a stream of captures has one at a time
_streams: dict[int, ctypes.c_void_p] = {}  # by context


class NodeParameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2, and what a later version puts behind it."""

    _fields_ = [
        ("function", _Pointer), *_SIZES, ("parameters", ctypes.POINTER(_Pointer)), ("extra", _Pointer),
        ("kernel", _Pointer), ("context", _Pointer), ("later", _Pointer * 8),
    ]  # fmt: skip


class Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("kind", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_uint32 * 16)]


class Launch(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [*_SIZES, ("stream", _Pointer), ("attributes", _Pointer), ("count", _Count)]


class PackedLaunches(dict[tuple[int, ...], PackedLaunch]):
    """Packed launches of one kernel, by the addresses and the stream of a call.

    A call is packed when it comes a second time: memory that an allocator hands out comes again, and weights stay. Calls
    that do not come again cost a look here, until there were MAX_SEEN of them.

    >>> launches, made = PackedLaunches(), []
    >>> for _ in range(3):
    ...     launches.note((256, 512, 0), lambda stream: made.append(stream))
    >>> (256, 512, 0) in launches  # without a driver
    False
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[tuple[int, ...]] | None = set()

    def note(self, call: tuple[int, ...], launch: Callable[[int], object]) -> None:
        """Say that a call was launched; its last number is the stream. `launch` makes it again on another stream."""
        if self._seen is None:
            return
        if call not in self._seen and len(self._seen) < MAX_SEEN:
            self._seen.add(call)
            return
        made = packed(launch, call[-1]) if len(self) < MAX_PACKED and call in self._seen else None
        if made is None:
            self._seen = None  # no more are looked for
        else:
            self[call] = made


class _Refused(Exception):
    """The driver lacks a function, or refused one."""


def packed(launch: Callable[[int], object], stream: int) -> PackedLaunch | None:
    """The launch that a host function makes, for a stream of the current context.

    launch  calls the host function on the stream it is given
    stream  where the launch is made again

    None where the call is not one kernel, or the driver cannot say what it was.
    """
    try:
        driver = cuda_driver()
        with _LOCK, allowed_in_capture():
            own = _stream_of_captures(driver)
            _do(driver, "cuStreamBeginCapture_v2", own, ctypes.c_int(_RELAXED))
            graph = _Pointer()
            try:
                launch(own.value or 0)
            finally:
                ended = driver.cuStreamEndCapture(own, ctypes.byref(graph))
            if ended or not graph:
                return None
            try:
                return _launch_of(driver, graph, stream)
            finally:
                driver.cuGraphDestroy(graph)
    except (OSError, AttributeError, PlanError, _Refused):
        return None


def _do(driver: Any, name: str, *arguments: object) -> None:
    if error := getattr(driver, name)(*arguments):
        raise _Refused(f"{name}: {error}")


def _stream_of_captures(driver: Any) -> ctypes.c_void_p:
    context = _Pointer()
    _do(driver, "cuCtxGetCurrent", ctypes.byref(context))
    found = _streams.get(context.value or 0)
    if found is None:
        found = _Pointer()
        _do(driver, "cuStreamCreate", ctypes.byref(found), _Count(_NON_BLOCKING))
        _streams[context.value or 0] = found
    return found


def _launch_of(driver: Any, graph: ctypes.c_void_p, stream: int) -> PackedLaunch | None:
    """The launch of a graph's one node."""
    count, node, kind, found = _Bytes(1), _Pointer(), ctypes.c_int(-1), NodeParameters()
    nodes = _Bytes()
    _do(driver, "cuGraphGetNodes", graph, None, ctypes.byref(nodes))
    if nodes.value != 1:
        return None
    _do(driver, "cuGraphGetNodes", graph, ctypes.byref(node), ctypes.byref(count))
    _do(driver, "cuGraphNodeGetType", node, ctypes.byref(kind))
    if kind.value != _KERNEL_NODE:
        return None
    _do(driver, "cuGraphKernelNodeGetParams_v2", node, ctypes.byref(found))
    if not found.parameters:  # packed by the caller
        return None
    kernel, memory, pointers = _parameters(driver, found)
    given = [attribute for kind in ATTRIBUTES if (attribute := _attribute(driver, node, kind)) is not None]
    attributes = (Attribute * len(given))(*given)
    sizes = [getattr(found, name) for name, _ in _SIZES]
    config = Launch(*sizes, stream, ctypes.addressof(attributes), len(given))
    # Arguments as ctypes makes them of objects at each call.
    given_kernel = _Pointer.from_param(kernel)
    again = functools.partial(driver.cuLaunchKernelEx, ctypes.byref(config), given_kernel, ctypes.byref(pointers), None)
    again.held = memory, attributes  # type: ignore[attr-defined]
    return again


def _parameters(driver: Any, found: NodeParameters) -> tuple[int, Any, Any]:
    """The kernel, a copy of its parameters, and the address of each."""
    kernel = found.function or found.kernel
    info = driver.cuFuncGetParamInfo if found.function else driver.cuKernelGetParamInfo
    offset, size = _Bytes(), _Bytes()
    places: list[tuple[int, int]] = []
    while not info(_Pointer(kernel), _Bytes(len(places)), ctypes.byref(offset), ctypes.byref(size)):
        places.append((offset.value, size.value))
    if not places:
        raise _Refused("a kernel without parameters")
    memory = ctypes.create_string_buffer(max(at + size for at, size in places) + _ALIGNMENT)
    first = -(-ctypes.addressof(memory) // _ALIGNMENT) * _ALIGNMENT
    pointers = (_Pointer * len(places))(*[first + at for at, _ in places])
    for i, (at, size_of) in enumerate(places):
        ctypes.memmove(first + at, found.parameters[i], size_of)
    return kernel, memory, pointers


def _attribute(driver: Any, node: ctypes.c_void_p, kind: int) -> Attribute | None:
    """An attribute of a node that was set; None for one that is 0, as where it was not."""
    found = Attribute(kind)
    _do(driver, "cuGraphKernelNodeGetAttribute", node, ctypes.c_int(kind), ctypes.byref(found, Attribute.value.offset))
    return found if any(found.value) else None
