"""Memory that outlives a CUDA graph, made while the graph is captured."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...errors import PlanError
from ..compile.launcher import cuda_driver

if TYPE_CHECKING:
    import torch

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED in cuda.h: this thread may allocate and wait while a stream is captured


@contextlib.contextmanager
def outside_capture(device: torch.device) -> Iterator[None]:
    """Keep work on a GPU out of the graph that a stream is captured into.

    Then it runs on a stream of its own and has ended when the context ends: allocations come from torch's usual memory,
    not from a graph's own pool. Without a capture it runs as always. Raises PlanError where the driver refuses. Source:
    CUDA driver API, cuThreadExchangeStreamCaptureMode.
    """
    import torch

    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        yield
        return
    mode = ctypes.c_int(_RELAXED)
    exchange = cuda_driver().cuThreadExchangeStreamCaptureMode
    if code := exchange(ctypes.byref(mode)):
        raise PlanError(f"CUDA error {code}: the capture mode of this thread stays as it is")
    try:
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()
    finally:
        exchange(ctypes.byref(mode))
