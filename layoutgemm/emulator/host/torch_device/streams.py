"""Torch's streams, events and CUDA graphs on an emulated GPU.

All work is done when it is asked for, but for what a graph captures. Each thread has its own current stream.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from ...turns import OwnStack


class HostStream:
    """A stream. All work is done when it is asked for, but for what a graph captures."""

    device_index = 0
    device_type = 1  # CUDA, as torch numbers types of devices
    _handles = itertools.count(1)

    def __init__(self, device: object = None, priority: int = 0, **kwargs: object):
        self.cuda_stream = next(self._handles) << 12
        self.priority = priority
        self._entered: list[HostStream] = []

    @property
    def device(self) -> Any:
        """The GPU."""
        import torch

        return torch.device("cuda", self.device_index)

    @property
    def stream_id(self) -> int:
        """The handle."""
        return self.cuda_stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostStream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)

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

    def is_capturing(self) -> bool:
        """True while a graph captures."""
        return HostGraph.capturing() is not None

    def __enter__(self) -> HostStream:
        self._entered.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, *args: object) -> None:
        set_stream(self._entered.pop())

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream


class HostExternalStream(HostStream):
    """The stream of a handle that another library has made."""

    def __init__(self, stream_ptr: int, *args: object, **kwargs: object):
        super().__init__()
        self.cuda_stream = int(stream_ptr)


DEFAULT = HostExternalStream(0)
_OF_THREAD = threading.local()


@contextmanager
def own_streams() -> Iterator[None]:
    """Within it all threads begin at the default stream. A script's `set_stream` ends with its session."""
    global _OF_THREAD
    before, _OF_THREAD = _OF_THREAD, threading.local()
    try:
        yield
    finally:
        _OF_THREAD = before


def current_stream(device: object = None) -> HostStream:
    """torch.cuda.current_stream: the thread's."""
    found: HostStream = getattr(_OF_THREAD, "stream", DEFAULT)
    return found


def set_stream(stream: HostStream) -> None:
    """torch.cuda.set_stream."""
    _OF_THREAD.stream = stream


class HostStreamContext:
    """torch.cuda.stream: the current stream within it; None changes nothing."""

    def __init__(self, stream: HostStream | None):
        self.stream = stream

    def __enter__(self) -> None:
        self._before = current_stream()
        set_stream(self.stream or self._before)

    def __exit__(self, *args: object) -> None:
        set_stream(self._before)


class HostEvent:
    """An event: the time at which it was recorded, on the host."""

    _handles = itertools.count(1)

    def __init__(self, enable_timing: bool = False, *args: object, **kwargs: object):
        self._timed = enable_timing
        self.at: float | None = None
        self.place: tuple[int, int] | None = None  # in a graph: a stream, and how much it had captured
        self.cuda_event = next(self._handles)

    def record(self, stream: HostStream | None = None) -> None:
        """Note the time, and the place in a graph that captures."""
        self.at = time.perf_counter()
        if (graph := HostGraph.capturing()) is not None:
            handle = (stream or current_stream()).cuda_stream
            self.place = handle, graph.length(handle)

    def elapsed_time(self, end: HostEvent) -> float:
        """Milliseconds between two events: of the emulator, which say nothing of a GPU's."""
        if not (self._timed and end._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
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
    """A CUDA graph. The launches of kernels and the copies that were captured, which `replay` makes.

    replays  what makes them: by default one after another, in the order of their capture
    """

    _capturing: ClassVar[OwnStack[HostGraph]] = OwnStack()
    replays: ClassVar[Callable[[Sequence[CapturedWork]], None] | None] = None

    def __init__(self, *args: object, **kwargs: object):
        self._work: list[CapturedWork] = []
        self._behind: dict[int, dict[int, int]] = {}

    @classmethod
    def capturing(cls) -> HostGraph | None:
        """The graph that captures now in this thread, or None."""
        return cls._capturing.items[-1] if cls._capturing.items else None

    def add(self, run: Callable[[], object], stream: int | None = None, copies: bool = False) -> None:
        """Capture a launch or a copy."""
        stream = current_stream().cuda_stream if stream is None else stream
        self._work.append(CapturedWork(stream, run, dict(self._behind.get(stream, {})), copies))

    @property
    def count(self) -> int:
        """The launches and copies that it has captured."""
        return len(self._work)

    def copy(self) -> HostGraph:
        """Another graph with the same work."""
        made = HostGraph()
        made._work = list(self._work)
        return made

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
        self._capturing.items.append(self)

    def capture_end(self) -> None:
        """The end of what is captured."""
        self._capturing.items.remove(self)

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
def graph(
    cuda_graph: HostGraph, pool: object = None, stream: HostStream | None = None, **kwargs: object
) -> Iterator[None]:
    """torch.cuda.graph: capture what is done within; by default on the default stream."""
    with HostStreamContext(stream or DEFAULT):
        cuda_graph.capture_begin()
        try:
            yield
        finally:
            cuda_graph.capture_end()
