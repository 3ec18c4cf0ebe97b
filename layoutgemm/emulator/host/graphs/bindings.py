"""Stand-ins of cuda.bindings for stream capture and graphs.

Each returns what the binding does: a tuple that begins with the status, with None for each answer after an error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import SupportsInt, TypeAlias

from ....errors import EmulatorError
from ...races.unordered_launches import TouchedBytes
from ..driver_modules import Foreign
from .capture import Captures
from .graph import CudaGraph, ExecutableGraph, GraphNode, GraphWork, Handles, NodeKind
from .statuses import CudaStatusError, Status

Binding: TypeAlias = Callable[..., object]
Answer: TypeAlias = tuple[object, ...]
Nodes: TypeAlias = Sequence[SupportsInt] | None
_HOST = 1  # CU_MEMORYTYPE_HOST


def success_of(module: ModuleType) -> object:
    """Success, as a binding gives it."""
    return module.CUresult.CUDA_SUCCESS if hasattr(module, "CUresult") else module.cudaError_t.cudaSuccess


def answering(module: ModuleType, call: Binding, outputs: int) -> Binding:
    """A stand-in that answers an error of CUDA as the binding does.

    The answer is the status, and None for each output.
    """
    statuses = module.CUresult if hasattr(module, "CUresult") else module.cudaError_t

    def answer(*args: object, **named: object) -> object:
        try:
            return call(*args, **named)
        except CudaStatusError as error:
            return (statuses(int(error.status)), *[None] * outputs)

    return answer


def copy_node(to: int, source: int, size: int) -> GraphWork:
    """A copy of bytes."""
    touched = (TouchedBytes(source, size, False), TouchedBytes(to, size, True))
    return GraphWork(NodeKind.MEMCPY, lambda: ctypes.memmove(to, source, size), f"a copy of {size} bytes", touched)


def rows_node(params: Foreign) -> GraphWork:
    """A copy in three dimensions, of a CUDA_MEMCPY3D. Raises EmulatorError for one of an array."""
    ends = []
    for side in ("src", "dst"):
        kind = int(getattr(params, f"{side}MemoryType"))
        address = getattr(params, f"{side}{'Host' if kind == _HOST else 'Device'}")
        if int(getattr(params, f"{side}Array") or 0):
            raise EmulatorError("a copy node of an array is not emulated by cuda.bindings")
        pitch, rows = (int(getattr(params, f"{side}{name}")) for name in ("Pitch", "Height"))
        x, y, z = (int(getattr(params, f"{side}{name}")) for name in ("XInBytes", "Y", "Z"))
        ends.append((int(address) + x + y * pitch + z * pitch * rows, pitch, pitch * rows))
    (source, pitch, plane), (to, to_pitch, to_plane) = ends
    width, height, depth = int(params.WidthInBytes), int(params.Height), int(params.Depth)
    parts = [
        copy_node(to + z * to_plane + y * to_pitch, source + z * plane + y * pitch, width)
        for z in range(depth)
        for y in range(height)
    ]

    def run() -> None:
        for one in parts:
            one.run()

    touched = tuple(piece for one in parts for piece in one.touched)
    return GraphWork(NodeKind.MEMCPY, run, f"a copy of {depth}x{height}x{width} bytes", touched)


def fill_node(params: Foreign) -> GraphWork:
    """A fill of rows, of a CUDA_MEMSET_NODE_PARAMS or a cudaMemsetParams. Raises CudaStatusError."""
    element, width, to, pitch = (int(getattr(params, name)) for name in ("elementSize", "width", "dst", "pitch"))
    if element not in (1, 2, 4):
        raise CudaStatusError(Status.INVALID_VALUE, f"elements of {element} bytes")
    content = int(params.value).to_bytes(4, "little")[:element] * width
    places = [to + row * pitch for row in range(int(params.height))]

    def run() -> None:
        for place in places:
            ctypes.memmove(place, content, len(content))

    touched = tuple(TouchedBytes(place, len(content), True) for place in places)
    return GraphWork(NodeKind.MEMSET, run, f"a fill of {len(places)}x{len(content)} bytes", touched)


def host_node(params: Foreign) -> GraphWork:
    """A call of a function of the host."""
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(int(params.fn))
    given = int(params.userData or 0)
    return GraphWork(NodeKind.HOST, lambda: function(given), f"{int(params.fn):#x}")


@dataclass(frozen=True)
class GraphBindings:
    """The stand-ins of one binding.

    kernel  the launch of a node's parameters
    """

    kind: str
    module: ModuleType
    handles: Handles
    captures: Captures
    kernel: Callable[[Foreign], GraphWork]

    def _type(self, name: str) -> Callable[[int], object]:
        driver = {"Graph": "CUgraph", "GraphExec": "CUgraphExec", "GraphNode": "CUgraphNode"}
        made: Callable[[int], object] = getattr(self.module, driver[name] if self.kind == "driver" else f"cuda{name}_t")
        return made

    def _graph(self, handle: SupportsInt) -> CudaGraph:
        return self.handles.get(int(handle), CudaGraph)

    def _node(self, handle: SupportsInt) -> GraphNode:
        return self.handles.get(int(handle), GraphNode)

    def _executable(self, handle: SupportsInt) -> ExecutableGraph:
        return self.handles.get(int(handle), ExecutableGraph)

    def _shown(self, node: GraphNode) -> object:
        return self._type("GraphNode")(self.handles.of(node))

    def functions(self) -> dict[str, Binding]:
        """The stand-ins by name."""
        prefix = "cu" if self.kind == "driver" else "cuda"
        calls = self._capture() | self._graphs() | self._nodes() | self._executables()
        return {f"{prefix}{name}": answering(self.module, call, count) for name, (call, count) in calls.items()}

    def _capture(self) -> dict[str, tuple[Binding, int]]:
        captures, success = self.captures, success_of(self.module)
        driver = self.kind == "driver"
        states = self.module.CUstreamCaptureStatus if driver else self.module.cudaStreamCaptureStatus

        def begin(stream: SupportsInt, mode: Foreign = 0) -> Answer:
            captures.begin(int(stream), int(mode))
            return (success,)

        def begin_to(
            stream: SupportsInt, graph: SupportsInt, behind: Nodes, data: object, count: int, mode: Foreign
        ) -> Answer:
            if data:
                raise EmulatorError("a graph's edge with data: only edges that wait for the end of a node are emulated")
            captures.begin(int(stream), int(mode), self._graph(graph), [self._node(one) for one in behind or ()])
            return (success,)

        def end(stream: SupportsInt) -> Answer:
            return success, self._type("Graph")(self.handles.of(captures.end(int(stream))))

        def capturing(stream: SupportsInt) -> Answer:
            return success, states(captures.status(int(stream)))

        def info(stream: SupportsInt) -> Answer:
            status, found = states(captures.status(int(stream))), captures.on(int(stream))
            if found is None or found.invalid:
                return success, status, 0, self._type("Graph")(0), [], [], 0
            ends = [self._shown(node) for node in found.ends[int(stream)]]
            graph = self._type("Graph")(self.handles.of(found.graph))
            return success, status, found.number, graph, ends, [], len(ends)

        return {
            "StreamBeginCapture": (begin, 0), "StreamBeginCaptureToGraph": (begin_to, 0), "StreamEndCapture": (end, 1),
            "StreamIsCapturing": (capturing, 1), "StreamGetCaptureInfo": (info, 6),
        }  # fmt: skip

    def _graphs(self) -> dict[str, tuple[Binding, int]]:
        success = success_of(self.module)
        kinds = self.module.CUgraphNodeType if self.kind == "driver" else self.module.cudaGraphNodeType

        def create(*flags: object) -> Answer:
            return success, self._type("Graph")(self.handles.of(CudaGraph()))

        def clone(graph: SupportsInt) -> Answer:
            return success, self._type("Graph")(self.handles.of(self._graph(graph).copy()[0]))

        def destroy(graph: SupportsInt) -> Answer:
            self._graph(graph)
            self.handles.forget(int(graph))
            return (success,)

        def draw(graph: SupportsInt, path: bytes | str, flags: int) -> Answer:
            text = path.decode() if isinstance(path, bytes) else path
            Path(text).write_text(self._graph(graph).drawing() + "\n")
            return (success,)

        def nodes(graph: SupportsInt, count: int = 0) -> Answer:
            found = self._graph(graph).nodes
            return success, [self._shown(one) for one in found[: int(count)]], int(count) or len(found)

        def edges(graph: SupportsInt, count: int = 0) -> Answer:
            found = self._graph(graph).edges
            first, second = ([self._shown(edge[side]) for edge in found[: int(count)]] for side in (0, 1))
            return success, first, second, [], int(count) or len(found)

        def before(node: SupportsInt, count: int = 0) -> Answer:
            found = self._node(node).behind
            return success, [self._shown(one) for one in found[: int(count)]], [], int(count) or len(found)

        def kind_of(node: SupportsInt) -> Answer:
            return success, kinds(int(self._node(node).work.kind))

        def connect(graph: SupportsInt, first: Nodes, second: Nodes, data: object, count: int) -> Answer:
            if data:
                raise EmulatorError("a graph's edge with data: only edges that wait for the end of a node are emulated")
            self._graph(graph).connect([(self._node(a), self._node(b)) for a, b in zip(first or (), second or ())])
            return (success,)

        return {
            "GraphCreate": (create, 1), "GraphClone": (clone, 1), "GraphDestroy": (destroy, 0),
            "GraphDebugDotPrint": (draw, 0), "GraphGetNodes": (nodes, 2), "GraphGetEdges": (edges, 4),
            "GraphNodeGetDependencies": (before, 3), "GraphNodeGetType": (kind_of, 1),
            "GraphAddDependencies": (connect, 0),
        }  # fmt: skip

    def _nodes(self) -> dict[str, tuple[Binding, int]]:
        success = success_of(self.module)

        def add(make: Callable[..., GraphWork]) -> Binding:
            def added(graph: SupportsInt, behind: Nodes, count: int, *given: object) -> Answer:
                node = self._graph(graph).add(make(*given), [self._node(one) for one in behind or ()])
                return success, self._shown(node)

            return added

        def child(graph: SupportsInt) -> GraphWork:
            return GraphWork(NodeKind.GRAPH, bodies=(self._graph(graph).copy()[0],))

        def recorded(event: SupportsInt) -> GraphWork:
            return GraphWork(NodeKind.EVENT_RECORD, lambda: self.captures.record(int(event), 0), params=int(event))

        def line(to: SupportsInt, source: SupportsInt, size: int, kind: object) -> GraphWork:
            return copy_node(int(to), int(source), int(size))

        def change(node: SupportsInt, params: Foreign) -> Answer:
            self._hold_kernel(self._node(node)).work = self.kernel(params)
            return (success,)

        found: dict[str, Callable[..., GraphWork]] = {
            "Kernel": self.kernel, "Memset": lambda params, *context: fill_node(params), "Host": host_node,
            "ChildGraph": child, "Empty": lambda: GraphWork(NodeKind.EMPTY), "EventRecord": recorded,
            "EventWait": lambda event: GraphWork(NodeKind.WAIT_EVENT, params=int(event)),
        }  # fmt: skip
        if self.kind == "driver":
            found["Memcpy"] = lambda params, *context: rows_node(params)
        calls = {f"GraphAdd{name}Node": (add(make), 1) for name, make in found.items()}
        if self.kind == "runtime":
            calls["GraphAddMemcpyNode1D"] = add(line), 1
        return calls | {"GraphKernelNodeSetParams": (change, 0)}

    @staticmethod
    def _hold_kernel(node: GraphNode) -> GraphNode:
        if node.work.kind is not NodeKind.KERNEL:
            raise CudaStatusError(Status.INVALID_VALUE, f"the node is a {node.work.kind.name}, not a KERNEL")
        return node

    def _executables(self) -> dict[str, tuple[Binding, int]]:
        success = success_of(self.module)
        driver = self.kind == "driver"
        info = self.module.CUgraphExecUpdateResultInfo if driver else self.module.cudaGraphExecUpdateResultInfo
        results = self.module.CUgraphExecUpdateResult if driver else self.module.cudaGraphExecUpdateResult
        statuses = self.module.CUresult if driver else self.module.cudaError_t

        def instantiate(graph: SupportsInt, flags: int = 0) -> Answer:
            made = ExecutableGraph(self._graph(graph), int(flags))
            return success, self._type("GraphExec")(self.handles.of(made))

        def launch(executable: SupportsInt, stream: SupportsInt | None = None) -> Answer:
            self.captures.launch(0 if stream is None else int(stream), self._executable(executable))
            return (success,)

        def destroy(executable: SupportsInt) -> Answer:
            self._executable(executable)
            self.handles.forget(int(executable))
            return (success,)

        def upload(executable: SupportsInt, stream: SupportsInt) -> Answer:
            self._executable(executable)
            return (success,)

        def update(executable: SupportsInt, graph: SupportsInt) -> Answer:
            result, node = self._executable(executable).update(self._graph(graph))
            said = info()
            said.result = results(result)
            if node is not None:
                said.errorNode = self._shown(node)
            return statuses(int(Status.GRAPH_EXEC_UPDATE_FAILURE)) if result else success, said

        def change(executable: SupportsInt, node: SupportsInt, params: Foreign) -> Answer:
            self._hold_kernel(self._executable(executable).node(self._node(node))).work = self.kernel(params)
            return (success,)

        return {
            "GraphInstantiate": (instantiate, 1), "GraphInstantiateWithFlags": (instantiate, 1),
            "GraphLaunch": (launch, 0), "GraphExecDestroy": (destroy, 0), "GraphUpload": (upload, 0),
            "GraphExecUpdate": (update, 1), "GraphExecKernelNodeSetParams": (change, 0),
        }  # fmt: skip
