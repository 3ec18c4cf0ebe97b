"""Torch's streams, events and CUDA graphs on an emulated GPU.

All work is done when it is asked for, but for what a graph captures. Each thread has its own current stream.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...races.unordered_launches import TouchedBytes
from ..graphs.capture import GLOBAL, RELAXED, THREAD_LOCAL, Captures
from ..graphs.graph import CudaGraph, ExecutableGraph, GraphWork, NodeKind
from ..graphs.statuses import CudaStatusError, Status
from ..graphs.stream_order import LEGACY

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as TorchDevice

CAPTURES = Captures()  # of torch's streams and of those of cuda.bindings
_MODES = {"global": GLOBAL, "thread_local": THREAD_LOCAL, "relaxed": RELAXED}


def asked_of(
    stream: int | None, run: Callable[[], object], kind: NodeKind = NodeKind.KERNEL, label: str = "",
    touched: tuple[TouchedBytes, ...] = (), params: object = None, launches: bool = False,
) -> None:  # fmt: skip
    """Do work that is asked of a stream, or capture it. `stream`: None for the current one."""
    handle = current_stream().cuda_stream if stream is None else stream
    CAPTURES.do(handle, GraphWork(kind, run, label, touched, params, launches=launches))


class HostStream:
    """A stream. All work is done when it is asked for, but for what a graph captures."""

    device_index = 0
    device_type = 1  # CUDA, as torch numbers types of devices
    _handles = itertools.count(1)

    def __init__(self, device: object = None, priority: int = 0, **kwargs: object):
        self.cuda_stream = self.new_handle()
        CAPTURES.nonblocking.add(self.cuda_stream)  # as torch makes its streams
        CAPTURES.order.are_several = True
        self.priority = priority
        self._entered: list[HostStream] = []

    @classmethod
    def new_handle(cls) -> int:
        """The handle of a new stream."""
        return next(cls._handles) << 12

    @property
    def device(self) -> TorchDevice:
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
        """Nothing is left to wait for. Raises CudaStatusError while it captures."""
        CAPTURES.synchronise(self.cuda_stream, "a wait for the stream")

    def wait_event(self, event: HostEvent) -> None:
        """Order what this stream captures from now on behind an event. With a captured event it joins."""
        CAPTURES.wait(self.cuda_stream, event.cuda_event)

    def wait_stream(self, other: HostStream) -> None:
        """Order what this stream captures from now on behind the other."""
        self.wait_event(other.record_event())

    def record_event(self, event: HostEvent | None = None) -> HostEvent:
        """An event at the end of what the stream has so far."""
        event = event or HostEvent()
        event.record(self)
        return event

    def query(self) -> bool:
        """True: all work is done. Raises CudaStatusError while it captures."""
        self.synchronize()
        return True

    def is_capturing(self) -> bool:
        """True while it captures."""
        return CAPTURES.on(self.cuda_stream) is not None

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
        several = CAPTURES.order.are_several
        super().__init__()
        CAPTURES.nonblocking.discard(self.cuda_stream)
        self.cuda_stream = int(stream_ptr)
        CAPTURES.order.are_several = several or int(stream_ptr) not in LEGACY


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
        CAPTURES.clear()


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

    def __init__(self, enable_timing: bool = False, *args: object, external: bool = False, **kwargs: object):
        self._timed, self._external = enable_timing, external
        self.at: float | None = None
        self.cuda_event = self.new_handle()

    @classmethod
    def new_handle(cls) -> int:
        """The handle of a new event."""
        return next(cls._handles)

    def record(self, stream: HostStream | None = None) -> None:
        """Note the time, and the place in a graph that captures."""
        handle = (stream or current_stream()).cuda_stream
        if self._external:
            asked_of(handle, self._record, NodeKind.EVENT_RECORD, params=self.cuda_event)
            return
        self.at = time.perf_counter()
        CAPTURES.record(self.cuda_event, handle)

    def _record(self) -> None:
        self.at = time.perf_counter()
        CAPTURES.record(self.cuda_event, 0)

    def elapsed_time(self, end: HostEvent) -> float:
        """Milliseconds between two events: of the emulator, which say nothing of a GPU's."""
        for event in (self, end):
            CAPTURES.ask(event.cuda_event)
        if not (self._timed and end._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.at is None or end.at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end.at - self.at) * 1e3

    def synchronize(self) -> None:
        """Nothing is left to wait for. Raises CudaStatusError for one that was recorded in a capture."""
        CAPTURES.ask(self.cuda_event)

    def wait(self, stream: HostStream | None = None) -> None:
        """Order what a stream, or the current one, captures from now on behind it."""
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        """True: all work is done. Raises CudaStatusError for one that was recorded in a capture."""
        CAPTURES.ask(self.cuda_event)
        return True


class HostGraph:
    """torch.cuda.CUDAGraph. It captures what is asked of the current stream and those that join; `replay` does it."""

    def __init__(self, keep_graph: bool = False, *args: object, **kwargs: object):
        self._keep = keep_graph
        self._stream = 0
        self._graph: CudaGraph | None = None
        self._made: ExecutableGraph | None = None

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global", **kwargs: object) -> None:
        """Work of the current stream is captured from here on, and not done. Raises CudaStatusError as CUDA."""
        self.reset()
        self._stream = current_stream().cuda_stream
        CAPTURES.begin(self._stream, _MODES[capture_error_mode])

    def capture_end(self) -> None:
        """The end of what is captured. Raises CudaStatusError after an error, and for a stream that did not join."""
        self._graph = CAPTURES.end(self._stream)
        if not self._keep:
            self.instantiate()

    def _captured(self) -> CudaGraph:
        if self._graph is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        return self._graph

    def instantiate(self) -> None:
        """Make the graph ready to be replayed."""
        self._made = ExecutableGraph(self._captured())

    def replay(self) -> None:
        """Do the work, in an order that the capture allows."""
        handle = current_stream().cuda_stream
        if CAPTURES.on(handle) is not None:  # of a graph that is not yet instantiated, too
            CAPTURES.add(handle, GraphWork(NodeKind.GRAPH, bodies=(self._captured().copy()[0],)))
            return
        if self._made is None:
            self.instantiate()
        assert self._made is not None
        CAPTURES.launch(handle, self._made)

    def reset(self) -> None:
        """Forget the work."""
        self._graph = self._made = None

    def pool(self) -> tuple[int, int]:
        """The pool of the graph's memory."""
        return 0, 0

    def enable_debug_mode(self) -> None:
        """Nothing has to be kept for `debug_dump`."""

    def debug_dump(self, debug_path: str) -> None:
        """Write the graph in Graphviz's language."""
        Path(debug_path).write_text(self._captured().drawing() + "\n")


@contextmanager
def graph(
    cuda_graph: HostGraph, pool: object = None, stream: HostStream | None = None, capture_error_mode: str = "global",
    enable_annotations: bool = False, check_input_liveness: bool = False,
) -> Iterator[None]:  # fmt: skip
    """torch.cuda.graph: capture what is done within. By default on a stream of its own.

    No profiler reads annotations here. The graph holds the tensors that it reads, so that all are live.
    """
    with HostStreamContext(stream or HostStream()):
        cuda_graph.capture_begin(capture_error_mode=capture_error_mode)
        try:
            yield
        finally:
            cuda_graph.capture_end()


def wait_for_all(*args: object) -> None:
    """torch.cuda.synchronize. Raises CudaStatusError while a stream captures."""
    CAPTURES.synchronise(None, "torch.cuda.synchronize")


def is_capturing() -> bool:
    """True while the current stream captures."""
    return current_stream().is_capturing()


def touched_by(read: Iterable[Tensor], written: Iterable[Tensor]) -> tuple[TouchedBytes, ...]:
    """The bytes of contiguous tensors. Others are left out: between their elements may lie what they do not touch."""
    return tuple(
        TouchedBytes(x.data_ptr(), x.numel() * x.element_size(), writes)
        for tensors, writes in ((read, False), (written, True))
        for x in tensors
        if x.numel() and x.is_contiguous()
    )


def refuse_read(name: str) -> CudaStatusError:
    """The error of a function that waits for values. It makes the current stream's capture invalid."""
    capture = CAPTURES.on(current_stream().cuda_stream)
    assert capture is not None
    why = f"torch's {name} in a CUDA graph: it needs values, which are there at replays alone"
    return capture.fail(Status.STREAM_CAPTURE_UNSUPPORTED, why)
