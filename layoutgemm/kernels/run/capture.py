"""Work while a CUDA graph is captured that is no part of it. It is memory that outlives the graph, and first calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..compile.launcher import allowed_in_capture

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def outside_capture(device: torch.device) -> Iterator[None]:
    """Keep work on a GPU out of the graph that a stream is captured into.

    Then it runs on a stream that is not captured and has ended when the context ends: allocations come from torch's
    usual memory, not from a graph's own pool. Without a capture it runs as always.
    """
    import torch

    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        yield
        return
    with allowed_in_capture():
        stream = _stream_outside(device)
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()


@contextlib.contextmanager
def first_call() -> Iterator[None]:
    """Let Python free objects while a first call derives its kernel inside a capture.

    Deriving makes many objects, so that Python collects those that nothing names. Some are older graphs and memory of
    the GPU, and to free them would end the capture.
    """
    import torch

    if not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
        yield
        return
    with allowed_in_capture():
        yield


def _stream_outside(device: torch.device) -> torch.cuda.Stream:
    """A stream that no graph captures: torch hands out 32 in turn, and the captured one may be the next."""
    import torch

    while True:
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            if not torch.cuda.is_current_stream_capturing():
                return stream
