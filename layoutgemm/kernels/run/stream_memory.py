"""Writes, waits and copies of a CUDA stream itself, without a kernel.

A persistent kernel leaves no multiprocessor to others, so what it waits for must not need one. Streams and events are
handles, as torch has them.

Source: CUDA Driver API: cuStreamBatchMemOp, cuMemcpyAsync, cuMemsetD32Async, cuEventRecord, cuStreamWaitEvent,
cuStreamBeginCapture, cuGraphInstantiate, cuGraphLaunch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from .occupancy import got

_GEQ = 0  # CU_STREAM_WAIT_VALUE_GEQ: (int32) (*address - value) >= 0


class MemoryOperation(NamedTuple):
    """A write of 32 bits behind everything before it, visible to the system. Or a wait for them.

    waits    True: until the bits have reached the value, cyclically
    address  of a device's memory, or a peer's that is mapped; a multiple of 4
    """

    waits: bool
    address: int
    value: int


def write(address: int, value: int) -> MemoryOperation:
    """A write of 32 bits."""
    return MemoryOperation(False, address, value)


def wait(address: int, value: int) -> MemoryOperation:
    """A wait for 32 bits."""
    return MemoryOperation(True, address, value)


def memory_operations(stream: int, operations: tuple[MemoryOperation, ...]) -> None:
    """Put writes and waits on a stream by one call of the driver.

    stream  a CUDA stream's handle

    Raises RuntimeError with the driver's error.
    """
    from cuda.bindings import driver

    if operations:
        got(driver.cuStreamBatchMemOp(stream, len(operations), _parameters(operations), 0))


@functools.lru_cache(4096)
def _parameters(operations: tuple[MemoryOperation, ...]) -> list[object]:
    """The driver's structures of operations."""
    from cuda.bindings import driver

    kinds = driver.CUstreamBatchMemOpType
    found = []
    for waits, address, value in operations:
        each = driver.CUstreamBatchMemOpParams()
        part = each.waitValue if waits else each.writeValue
        part.operation = kinds.CU_STREAM_MEM_OP_WAIT_VALUE_32 if waits else kinds.CU_STREAM_MEM_OP_WRITE_VALUE_32
        part.address, part.value, part.flags = driver.CUdeviceptr(address), value, _GEQ if waits else 0
        found.append(each)
    return found


def copy_bytes(stream: int, destination: int, source: int, nbytes: int) -> None:
    """Copy memory of a device, or of a peer that is mapped. Raises RuntimeError with the driver's error."""
    from cuda.bindings import driver

    got(driver.cuMemcpyAsync(destination, source, nbytes, stream))


def clear_words(stream: int, address: int, count: int) -> None:
    """Set 32-bit words of the current device to 0. Raises RuntimeError with the driver's error."""
    from cuda.bindings import driver

    got(driver.cuMemsetD32Async(address, 0, count, stream))


def new_event() -> int:
    """An event without a time. Raises RuntimeError with the driver's error."""
    from cuda.bindings import driver

    return int(got(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)))


def new_stream() -> int:
    """A stream of the highest priority, apart from torch's, which hands out 32 in turn.

    Raises RuntimeError with the driver's error.
    """
    from cuda.bindings import driver

    _, _, highest = driver.cuCtxGetStreamPriorityRange()  # without a context the next call refuses
    flag = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    return int(got(driver.cuStreamCreateWithPriority(flag, highest)))


def follow(stream: int, other: int, event: int) -> None:
    """Make a stream wait for another, by an event."""
    from cuda.bindings import driver

    got(driver.cuEventRecord(event, other))
    got(driver.cuStreamWaitEvent(stream, event, 0))


def recorded(stream: int, operations: Callable[[], None]) -> object:
    """A graph of the operations on a stream; `replay` launches it.

    Raises RuntimeError with the driver's error.
    """
    from cuda.bindings import driver

    got(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    try:
        operations()
    finally:
        graph = got(driver.cuStreamEndCapture(stream))
    made = got(driver.cuGraphInstantiate(graph, 0))
    got(driver.cuGraphDestroy(graph))
    return made


def replay(stream: int, graph: object) -> None:
    """Launch a recorded graph on a stream. Raises RuntimeError with the driver's error."""
    from cuda.bindings import driver

    got(driver.cuGraphLaunch(graph, stream))
