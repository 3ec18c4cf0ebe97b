"""Streams that capture: what is asked of them becomes nodes of a graph.

A stream joins another's capture by waiting for an event that was recorded there. The capture ends on the stream on
which it began, which has to be behind all that the others have captured. CUDA C++ Programming Guide, "Creating a Graph
Using Stream Capture"; CUDA Runtime API, "Stream Management".
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..arguments import gpu_memory_at
from .graph import CudaGraph, ExecutableGraph, GraphNode, GraphWork, NodeKind
from .statuses import CudaStatusError, Status
from .stream_order import LEGACY, StreamOrder

GLOBAL, THREAD_LOCAL, RELAXED = range(3)  # cudaStreamCaptureMode
NONE, ACTIVE, INVALIDATED = range(3)  # cudaStreamCaptureStatus
_COUNT = itertools.count(1)


@dataclass(eq=False)
class Capture:
    """A capture sequence.

    origin  the stream on which it began
    ends    of each stream in it: the nodes that its next one is behind
    """

    graph: CudaGraph
    origin: int
    mode: int
    thread: int
    ends: dict[int, list[GraphNode]] = field(default_factory=dict)
    invalid: bool = False
    number: int = field(default_factory=lambda: next(_COUNT))

    def fail(self, status: Status, why: str) -> CudaStatusError:
        """An error that makes the capture invalid."""
        self.invalid = True
        return CudaStatusError(status, why)

    def add(self, stream: int, work: GraphWork) -> GraphNode:
        """A node behind what the stream has captured. Raises CudaStatusError after an error."""
        if self.invalid:
            raise CudaStatusError(Status.STREAM_CAPTURE_INVALIDATED)
        node = self.graph.add(work, self.ends[stream], stream)
        self.ends[stream] = [node]
        return node


class Captures:
    """The captures that go on, and the events that were recorded in them.

    order  the order of the work that no stream captures
    """

    def __init__(self) -> None:
        self.nonblocking: set[int] = set()  # streams that do not wait for the legacy stream
        self.order = StreamOrder(self.nonblocking)
        self._of: dict[int, Capture] = {}  # by stream
        self._events: dict[int, tuple[Capture, list[GraphNode]]] = {}
        self._recorded: set[int] = set()  # events that were recorded outside of a capture
        self._modes = threading.local()

    def clear(self) -> None:
        """Forget all."""
        self.__init__()  # type: ignore[misc]

    def on(self, stream: int) -> Capture | None:
        """The capture that a stream is in, or None."""
        return self._of.get(stream)

    def any(self) -> bool:
        """True while a stream captures."""
        return bool(self._of)

    def status(self, stream: int) -> int:
        """cudaStreamCaptureStatus. Raises CudaStatusError for the legacy stream while a blocking stream captures."""
        self._hold_legacy(stream)
        found = self.on(stream)
        return NONE if found is None else INVALIDATED if found.invalid else ACTIVE

    def begin(
        self, stream: int, mode: int = GLOBAL, graph: CudaGraph | None = None, behind: Sequence[GraphNode] = ()
    ) -> Capture:
        """Begin a capture, to a new graph or to one that is there. Raises CudaStatusError."""
        if stream in LEGACY:
            raise CudaStatusError(Status.STREAM_CAPTURE_UNSUPPORTED, "the legacy stream cannot capture")
        if stream in self._of:
            raise CudaStatusError(Status.ILLEGAL_STATE, f"stream {stream:#x} captures already")
        if mode not in (GLOBAL, THREAD_LOCAL, RELAXED):
            raise CudaStatusError(Status.INVALID_VALUE, f"{mode} is no mode of capture")
        made = CudaGraph() if graph is None else graph
        made._hold(behind)
        found = self._of[stream] = Capture(made, stream, mode, threading.get_ident(), {stream: list(behind)})
        return found

    def end(self, stream: int) -> CudaGraph:
        """End a capture. Raises CudaStatusError: unmatched, unjoined, invalid, or in another thread."""
        found = self.on(stream)
        if found is None:
            raise CudaStatusError(Status.ILLEGAL_STATE, f"stream {stream:#x} does not capture")
        if found.mode != RELAXED and found.thread != threading.get_ident():
            raise CudaStatusError(Status.STREAM_CAPTURE_WRONG_THREAD)
        if stream != found.origin:
            raise found.fail(Status.STREAM_CAPTURE_UNMATCHED, f"it began on stream {found.origin:#x}")
        self._of = {one: capture for one, capture in self._of.items() if capture is not found}
        if found.invalid:
            raise CudaStatusError(Status.STREAM_CAPTURE_INVALIDATED)
        joined = _with_ancestors(found.ends[stream])
        for other, ends in found.ends.items():
            if any(node not in joined for node in ends):
                why = f"stream {other:#x} has captured work that stream {stream:#x} does not wait for"
                raise found.fail(Status.STREAM_CAPTURE_UNJOINED, why)
        return found.graph

    def add(self, stream: int, work: GraphWork) -> GraphNode | None:
        """The node of work that is asked of a stream. None: do it at once."""
        self._hold_legacy(stream)
        found = self.on(stream)
        return None if found is None else found.add(stream, work)

    def do(self, stream: int, work: GraphWork, waits: bool = False) -> None:
        """Capture work that is asked of a stream, or do it. `waits`: the host waits for its end."""
        if self.add(stream, work) is not None:
            return
        every = [work, *[node.work for body in work.bodies for node in body.all_nodes()]]
        for one in every:
            if one.kind is NodeKind.WAIT_EVENT and isinstance(one.params, int):
                self.order.wait(stream, one.params)
        self.order.run(stream, work.run, work.label, work.touched, work.kind is NodeKind.KERNEL)
        # A host function may tell other threads that the stream is there. Copies of pageable memory are synchronous.
        waits = waits or any(one.kind is NodeKind.HOST for one in every)
        waits = waits or (work.kind is NodeKind.MEMCPY and any(gpu_memory_at(one[0]) is None for one in work.touched))
        if waits:
            self.order.host_waits(stream)

    def allocated(self, address: int) -> None:
        """Note that an allocation begins at an address."""
        self.order.allocated(address)

    def launch(self, stream: int, executable: ExecutableGraph) -> None:
        """Launch a graph on a stream, or capture that."""
        if self.on(stream) is not None:
            self.add(stream, GraphWork(NodeKind.GRAPH, bodies=(executable.graph.copy()[0],)))
        else:
            self.do(stream, GraphWork(NodeKind.GRAPH, executable.launch, bodies=(executable.graph,)))

    def _hold_legacy(self, stream: int) -> None:
        """Raise CudaStatusError for the legacy stream while a stream captures that waits for it."""
        if stream not in LEGACY:
            return
        for one, capture in self._of.items():
            if one not in self.nonblocking:
                why = f"stream {one:#x} captures; cudaStreamNonBlocking streams do not wait for the legacy stream"
                raise capture.fail(Status.STREAM_CAPTURE_IMPLICIT, why)

    def record(self, event: int, stream: int) -> None:
        """Record an event."""
        self._hold_legacy(stream)
        found = self.on(stream)
        if found is None:
            self._events.pop(event, None)
            self._recorded.add(event)
            self.order.record(event, stream)
            return
        if found.invalid:
            raise CudaStatusError(Status.STREAM_CAPTURE_INVALIDATED)
        self._recorded.discard(event)
        self._events[event] = found, list(found.ends[stream])

    def wait(self, stream: int, event: int) -> None:
        """Order what a stream captures from now on behind an event.

        A stream that does not capture joins the event's capture.

        Raises CudaStatusError for an event of another capture, or of work outside of it.
        """
        mine, (other, nodes) = self.on(stream), self._events.get(event, (None, []))
        if other is None or other not in self._of.values():
            if mine is not None and (other is not None or event in self._recorded):
                raise mine.fail(Status.STREAM_CAPTURE_ISOLATION, f"event {event:#x} was not recorded in this capture")
            if mine is None:
                self.order.wait(stream, event)
            return
        if stream in LEGACY:
            raise other.fail(Status.STREAM_CAPTURE_IMPLICIT, "the legacy stream waits for a captured event")
        if mine is not None and mine is not other:
            mine.invalid = True
            raise other.fail(Status.STREAM_CAPTURE_MERGE, f"event {event:#x} is of another capture")
        if other.invalid:
            raise CudaStatusError(Status.STREAM_CAPTURE_INVALIDATED)
        self._of[stream] = other
        other.ends[stream] = list(dict.fromkeys([*other.ends.get(stream, []), *nodes]))

    def ask(self, event: int) -> None:
        """Put later work behind an event that the host asks for. Raises CudaStatusError for one of a capture."""
        if event in self._events:
            capture = self._events[event][0]
            raise capture.fail(Status.CAPTURED_EVENT, f"event {event:#x}, until it is recorded outside of a capture")
        self.order.host_waits(event=event)

    def synchronise(self, stream: int | None = None, call: str = "") -> None:
        """Put later work behind a stream for which the host waits, or behind all. Raises CudaStatusError."""
        if stream in LEGACY:
            self._hold_legacy(stream or 0)
        for one, capture in self._of.items():
            if stream is None or one == stream:
                raise capture.fail(Status.STREAM_CAPTURE_UNSUPPORTED, f"{call} while stream {one:#x} captures")
        self.order.host_waits(stream)

    def unsafe(self, call: str) -> None:
        """Wait for all streams, as cudaMalloc may. Raises CudaStatusError where a capture's mode forbids it."""
        mine = getattr(self._modes, "mode", GLOBAL)
        for stream, capture in self._of.items():
            own = capture.thread == threading.get_ident()
            if mine == RELAXED or capture.mode == RELAXED or (not own and THREAD_LOCAL in (mine, capture.mode)):
                continue
            raise capture.fail(Status.STREAM_CAPTURE_UNSUPPORTED, f"{call} while stream {stream:#x} captures")
        self.order.host_waits()  # CUDA C++ Programming Guide, "Implicit Synchronization"

    def exchange(self, mode: int) -> int:
        """cudaThreadExchangeStreamCaptureMode: this thread's mode from now on; returns the one before."""
        before: int = getattr(self._modes, "mode", GLOBAL)
        self._modes.mode = mode
        return before


def _with_ancestors(nodes: Iterable[GraphNode]) -> set[GraphNode]:
    """Nodes, and all those before them."""
    found: set[GraphNode] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += node.behind
    return found
