"""Writes, waits and copies of a CUDA stream itself, without a kernel.

A persistent kernel leaves no multiprocessor to others, so what it waits for must not need one. Source: CUDA Driver API,
"Stream Memory Operations": cuStreamWriteValue32, cuStreamWaitValue32;
"Memory Management": cuMemcpyAsync.
"""

from __future__ import annotations

from .occupancy import got

_GEQ = 0  # CU_STREAM_WAIT_VALUE_GEQ: (int32) (*address - value) >= 0


def write_value(stream: int, address: int, value: int) -> None:
    """Write 32 bits after everything before it on the stream, visible to the system.

    stream   a CUDA stream's handle
    address  of a device's memory, or a peer's that is mapped; a multiple of 4

    Raises RuntimeError with the driver's error.
    """
    from cuda.bindings import driver

    got(driver.cuStreamWriteValue32(driver.CUstream(stream), driver.CUdeviceptr(address), value, 0))


def wait_value(stream: int, address: int, value: int) -> None:
    """Let the stream wait until the 32 bits at an address have reached a value, cyclically. Raises RuntimeError."""
    from cuda.bindings import driver

    got(driver.cuStreamWaitValue32(driver.CUstream(stream), driver.CUdeviceptr(address), value, _GEQ))


def copy_bytes(stream: int, destination: int, source: int, nbytes: int) -> None:
    """Copy memory of a device, or of a peer that is mapped. Raises RuntimeError with the driver's error."""
    from cuda.bindings import driver

    to, of = driver.CUdeviceptr(destination), driver.CUdeviceptr(source)
    got(driver.cuMemcpyAsync(to, of, nbytes, driver.CUstream(stream)))
