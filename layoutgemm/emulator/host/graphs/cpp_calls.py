"""The functions of CUDA's runtime for stream capture and graphs, called by a program.

driver_types.h and cuda_runtime_api.h of CUDA 13 have the structures and functions that are read here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ....errors import EmulatorError
from .capture import Captures
from .graph import CudaGraph, ExecutableGraph, GraphNode, GraphWork, Handles, NodeKind
from .memory import GraphAllocation, GraphPool
from .statuses import CudaStatusError, Status

if TYPE_CHECKING:
    from ..driver_modules import PtxLaunch

Functions = dict[str, Callable[..., "int | None"]]
EXTERNAL = 1  # cudaEventRecordExternal, cudaEventWaitExternal
_SET_DEPENDENCIES = 1  # cudaStreamSetCaptureDependencies
_ASSIGN_DEFAULT = 1  # cudaGraphCondAssignDefault
_IF, _WHILE, _SWITCH = range(3)  # cudaGraphConditionalNodeType
_KNOWN_FLAGS = 1 | 2 | 8  # of instantiation, without the one for launches from the device


class Dim3(ctypes.Structure):
    """`dim3` of CUDA C++."""

    _fields_ = [(axis, ctypes.c_uint32) for axis in "xyz"]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The three sizes."""
        return self.x, self.y, self.z


class KernelParams(ctypes.Structure):
    """`cudaKernelNodeParams`, and its second version."""

    _fields_ = [("function", ctypes.c_size_t), ("grid", Dim3), ("block", Dim3), ("shared", ctypes.c_uint32),
                ("given", ctypes.c_size_t), ("extra", ctypes.c_size_t)]  # fmt: skip
    # Of a node: its launch, and the parameters that `given` leads to.
    launch: PtxLaunch
    cooperative: bool
    cluster: tuple[int, ...]
    content: object
    places: object


class FillParams(ctypes.Structure):
    """`cudaMemsetParams`: rows of elements of 1, 2 or 4 bytes."""

    _fields_ = [("to", ctypes.c_size_t), ("pitch", ctypes.c_size_t), ("value", ctypes.c_uint32),
                ("element", ctypes.c_uint32), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t)]  # fmt: skip


class HostParams(ctypes.Structure):
    """`cudaHostNodeParams`."""

    _fields_ = [("function", ctypes.c_size_t), ("given", ctypes.c_size_t)]


class AllocationParams(ctypes.Structure):
    """`cudaMemAllocNodeParams`: pool properties and access descriptors first."""

    _fields_ = [("properties", ctypes.c_uint8 * 104), ("size", ctypes.c_size_t), ("address", ctypes.c_size_t)]


class ConditionalParams(ctypes.Structure):
    """`cudaConditionalNodeParams`."""

    _fields_ = [("handle", ctypes.c_uint64), ("kind", ctypes.c_int), ("size", ctypes.c_uint32),
                ("bodies", ctypes.c_size_t)]  # fmt: skip


Words = ctypes.c_size_t * 20  # cudaMemcpy3DParms: both sides, the extent and the kind


class Runtime(Protocol):
    """The emulated runtime, as graphs need it. It has the work of each kind of node."""

    captures: Captures
    handles: Handles
    pool: GraphPool

    def kernel_work(self, params: KernelParams, cooperative: bool = ..., cluster: Sequence[int] = ...) -> GraphWork:
        """The launch of a kernel."""

    def box_work(self, words: Sequence[int]) -> GraphWork:
        """A copy in three dimensions."""

    def line_work(self, name: str, to: int, source: int, size: int, kind: int) -> GraphWork:
        """A copy of bytes."""

    def fill_work(self, name: str, params: FillParams) -> GraphWork:
        """A fill."""

    def host_work(self, function: int, given: int) -> GraphWork:
        """A call of a function of the host."""

    def symbol(self, host: int, offset: int) -> int:
        """The address of a byte of a variable of the device."""

    def status(self) -> int:
        """The status of what has run so far."""

    def changed_launch(self, work: GraphWork, attribute: int, value: Sequence[int]) -> GraphWork:
        """A kernel's launch with another attribute."""

    def launch_attribute(self, work: GraphWork, attribute: int) -> Sequence[int]:
        """An attribute of a kernel's launch."""


def _put(out: int, value: int) -> None:
    if out:
        ctypes.c_uint64.from_address(out).value = value


def _put_int(out: int, value: int) -> None:
    if out:
        ctypes.c_int.from_address(out).value = value


def _numbers(at: int, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(at)) if at and count else []


def _of_kind(node: GraphNode, kind: NodeKind) -> GraphNode:
    """The node, if it is of that kind. Raises CudaStatusError."""
    if node.work.kind is not kind:
        raise CudaStatusError(Status.INVALID_VALUE, f"the node is a {node.work.kind.name}, not a {kind.name}")
    return node


class GraphCalls:
    """The functions of graphs and of stream capture."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._captures, self._handles = runtime, runtime.captures, runtime.handles
        self._kept: dict[object, object] = {}  # arrays that a program reads by their address

    def functions(self) -> Functions:
        """The functions by name."""
        return (
            self._capture() | self._graphs() | self._added() | self._parameters() | self._topology()
            | self._executables() | self._memory() | self._conditionals()
        )  # fmt: skip

    # ------------------------------------------------------------------------------------ handles

    def _graph(self, handle: int) -> CudaGraph:
        return self._handles.get(handle, CudaGraph)

    def _node(self, handle: int) -> GraphNode:
        return self._handles.get(handle, GraphNode)

    def _executable(self, handle: int) -> ExecutableGraph:
        return self._handles.get(handle, ExecutableGraph)

    def _nodes(self, at: int, count: int) -> list[GraphNode]:
        return [self._node(one) for one in _numbers(at, count)]

    @staticmethod
    def _plain_edges(at: int, count: int) -> None:
        """Raise EmulatorError for edges that do not wait for the end of a node."""
        if any(_numbers(at, count)):
            raise EmulatorError("a graph's edge with data: only edges that wait for the end of a node are emulated")

    def _add(self, out: int, graph: int, behind: int, count: int, work: GraphWork) -> GraphNode:
        node = self._graph(graph).add(work, self._nodes(behind, count))
        _put(out, self._handles.of(node))
        return node

    def _listed(self, found: Sequence[object], out: int, count: int) -> None:
        """Answer a list: its length, or as many as there is room for, with 0 behind the last."""
        if out:
            room = ctypes.c_size_t.from_address(count).value
            handles = [self._handles.of(one) for one in found[:room]]
            for place, handle in enumerate(handles + [0] * (room - len(handles))):
                _put(out + 8 * place, handle)
            ctypes.c_size_t.from_address(count).value = len(handles)
        else:
            ctypes.c_size_t.from_address(count).value = len(found)

    # ------------------------------------------------------------------------------------ capture

    def _capture(self) -> Functions:
        captures = self._captures

        def begin(stream: int, mode: int) -> None:
            captures.begin(stream, mode & 0xFFFFFFFF)

        def begin_to(stream: int, graph: int, behind: int, edges: int, count: int, mode: int) -> None:
            self._plain_edges(edges, count)
            captures.begin(stream, mode & 0xFFFFFFFF, self._graph(graph), self._nodes(behind, count))

        def end(stream: int, out: int) -> None:
            _put(out, 0)
            _put(out, self._handles.of(captures.end(stream)))

        def capturing(stream: int, out: int) -> None:
            _put_int(out, captures.status(stream))

        def info(stream: int, status: int, number: int, graph: int, behind: int, edges: int, count: int) -> None:
            _put_int(status, captures.status(stream))
            found = captures.on(stream)
            if found is None or found.invalid:
                return
            _put(number, found.number)
            _put(graph, self._handles.of(found.graph))
            ends = [self._handles.of(node) for node in found.ends[stream]]
            self._kept[found, stream] = kept = (ctypes.c_uint64 * max(1, len(ends)))(*ends)
            _put(behind, ctypes.addressof(kept))
            _put(edges, 0)
            _put(count, len(ends))

        def update(stream: int, nodes: int, edges: int, count: int, flags: int) -> None:
            self._plain_edges(edges, count)
            found = captures.on(stream)
            if found is None:
                raise CudaStatusError(Status.ILLEGAL_STATE, f"stream {stream:#x} does not capture")
            given = self._nodes(nodes, count)
            before = [] if flags & 0xFFFFFFFF == _SET_DEPENDENCIES else found.ends[stream]
            found.ends[stream] = list(dict.fromkeys([*before, *given]))

        def exchange(mode: int) -> None:
            place = ctypes.c_int.from_address(mode)
            place.value = captures.exchange(place.value)

        return {
            "cudaStreamBeginCapture": begin, "cudaStreamBeginCaptureToGraph": begin_to, "cudaStreamEndCapture": end,
            "cudaStreamIsCapturing": capturing, "cudaStreamGetCaptureInfo": info,
            "cudaStreamUpdateCaptureDependencies": update, "cudaThreadExchangeStreamCaptureMode": exchange,
        }  # fmt: skip

    # ------------------------------------------------------------------------------------ graphs

    def _graphs(self) -> Functions:
        def create(out: int, flags: int) -> None:
            _put(out, self._handles.of(CudaGraph()))

        def destroy(graph: int) -> None:
            for node in self._graph(graph).all_nodes():
                self._handles.forget(self._handles.of(node))
            self._handles.forget(graph)

        def clone(out: int, graph: int) -> None:
            found = self._graph(graph)
            self._without_memory(found, "a clone")
            made, of = found.copy()
            self._kept[made] = of
            _put(out, self._handles.of(made))

        def find(out: int, node: int, clone: int) -> None:
            of = self._kept.get(self._graph(clone))
            if not isinstance(of, dict) or self._node(node) not in of:
                raise CudaStatusError(Status.INVALID_VALUE, "the graph is no clone of the node's")
            _put(out, self._handles.of(of[self._node(node)]))

        def draw(graph: int, path: int, flags: int) -> None:
            Path(ctypes.string_at(path).decode()).write_text(self._graph(graph).drawing() + "\n")

        return {
            "cudaGraphCreate": create, "cudaGraphDestroy": destroy, "cudaGraphClone": clone,
            "cudaGraphNodeFindInClone": find, "cudaGraphDebugDotPrint": draw,
        }  # fmt: skip

    @staticmethod
    def _without_memory(graph: CudaGraph, what: str) -> None:
        if any(node.work.kind in (NodeKind.MEM_ALLOC, NodeKind.MEM_FREE) for node in graph.all_nodes()):
            raise CudaStatusError(Status.NOT_SUPPORTED, f"{what} of a graph that allocates or frees memory")

    def _child(self, graph: int) -> GraphWork:
        found = self._graph(graph)
        self._without_memory(found, "a child")
        if any(node.work.kind is NodeKind.CONDITIONAL for node in found.all_nodes()):
            raise CudaStatusError(Status.INVALID_VALUE, "a child graph with a conditional node")
        return GraphWork(NodeKind.GRAPH, bodies=(found.copy()[0],))

    def _recording(self, event: int, kind: NodeKind) -> GraphWork:
        run = (lambda: self._captures.record(event, 0)) if kind is NodeKind.EVENT_RECORD else (lambda: None)
        return GraphWork(kind, run, f"event {event:#x}", params=event)

    # ------------------------------------------------------------------------------------ nodes

    def _added(self) -> Functions:
        runtime = self._runtime

        def kernel(out: int, graph: int, behind: int, count: int, params: int) -> None:
            self._add(out, graph, behind, count, runtime.kernel_work(KernelParams.from_address(params)))

        def fill(out: int, graph: int, behind: int, count: int, params: int) -> None:
            work = runtime.fill_work("cudaGraphAddMemsetNode", FillParams.from_address(params))
            self._add(out, graph, behind, count, work)

        def host(out: int, graph: int, behind: int, count: int, params: int) -> None:
            given = HostParams.from_address(params)
            self._add(out, graph, behind, count, runtime.host_work(given.function, given.given))

        def child(out: int, graph: int, behind: int, count: int, inner: int) -> None:
            self._add(out, graph, behind, count, self._child(inner))

        def empty(out: int, graph: int, behind: int, count: int) -> None:
            self._add(out, graph, behind, count, GraphWork(NodeKind.EMPTY))

        def record(out: int, graph: int, behind: int, count: int, event: int) -> None:
            self._add(out, graph, behind, count, self._recording(event, NodeKind.EVENT_RECORD))

        def wait(out: int, graph: int, behind: int, count: int, event: int) -> None:
            self._add(out, graph, behind, count, self._recording(event, NodeKind.WAIT_EVENT))

        def allocate(out: int, graph: int, behind: int, count: int, params: int) -> None:
            given = AllocationParams.from_address(params)
            made = runtime.pool.allocation(given.size)
            given.address = made.address
            self._add(out, graph, behind, count, made.mapping)

        def free(out: int, graph: int, behind: int, count: int, address: int) -> None:
            self._add(out, graph, behind, count, runtime.pool.freeing(address))

        def any_kind(out: int, graph: int, behind: int, edges: int, count: int, params: int) -> None:
            self._plain_edges(edges, count)
            work = self._any(params)
            self._add(out, graph, behind, count, work)
            if isinstance(work.params, GraphAllocation):
                AllocationParams.from_address(params + 16).address = work.params.address
            if work.kind is NodeKind.CONDITIONAL:
                handles = [self._handles.of(body) for body in work.bodies]
                self._kept[work] = kept = (ctypes.c_uint64 * len(handles))(*handles)
                ConditionalParams.from_address(params + 16).bodies = ctypes.addressof(kept)

        return self._added_copies() | {
            "cudaGraphAddKernelNode": kernel, "cudaGraphAddMemsetNode": fill, "cudaGraphAddHostNode": host,
            "cudaGraphAddChildGraphNode": child, "cudaGraphAddEmptyNode": empty,
            "cudaGraphAddEventRecordNode": record, "cudaGraphAddEventWaitNode": wait,
            "cudaGraphAddMemAllocNode": allocate, "cudaGraphAddMemFreeNode": free, "cudaGraphAddNode": any_kind,
        }  # fmt: skip

    def _added_copies(self) -> Functions:
        runtime = self._runtime

        def box(out: int, graph: int, behind: int, count: int, params: int) -> None:
            self._add(out, graph, behind, count, runtime.box_work(Words.from_address(params)[:]))

        def line(out: int, graph: int, behind: int, count: int, to: int, source: int, size: int, kind: int) -> None:
            self._add(out, graph, behind, count, runtime.line_work("cudaGraphAddMemcpyNode1D", to, source, size, kind))

        def to_symbol(
            out: int, graph: int, behind: int, count: int, symbol: int, source: int, size: int, offset: int, kind: int
        ) -> None:
            to = runtime.symbol(symbol, offset)
            work = runtime.line_work("cudaGraphAddMemcpyNodeToSymbol", to, source, size, kind)
            self._add(out, graph, behind, count, work)

        def from_symbol(
            out: int, graph: int, behind: int, count: int, to: int, symbol: int, size: int, offset: int, kind: int
        ) -> None:
            source = runtime.symbol(symbol, offset)
            work = runtime.line_work("cudaGraphAddMemcpyNodeFromSymbol", to, source, size, kind)
            self._add(out, graph, behind, count, work)

        return {
            "cudaGraphAddMemcpyNode": box, "cudaGraphAddMemcpyNode1D": line,
            "cudaGraphAddMemcpyNodeToSymbol": to_symbol, "cudaGraphAddMemcpyNodeFromSymbol": from_symbol,
        }  # fmt: skip

    def _any(self, params: int) -> GraphWork:
        """The work of a `cudaGraphNodeParams`: its kind, and from its byte 16 the structure of that kind."""
        kind, at = ctypes.c_int.from_address(params).value, params + 16
        runtime, word = self._runtime, ctypes.c_size_t.from_address(at)
        if kind == NodeKind.KERNEL:
            return runtime.kernel_work(KernelParams.from_address(at))
        if kind == NodeKind.MEMCPY:
            return runtime.box_work(Words.from_address(at + 16)[:])
        if kind == NodeKind.MEMSET:
            return runtime.fill_work("cudaGraphAddNode", FillParams.from_address(at))
        if kind == NodeKind.HOST:
            given = HostParams.from_address(at)
            return runtime.host_work(given.function, given.given)
        if kind == NodeKind.GRAPH:
            return self._child(word.value)
        if kind == NodeKind.EMPTY:
            return GraphWork(NodeKind.EMPTY)
        if kind in (NodeKind.WAIT_EVENT, NodeKind.EVENT_RECORD):
            return self._recording(word.value, NodeKind(kind))
        if kind == NodeKind.MEM_ALLOC:
            return runtime.pool.allocation(AllocationParams.from_address(at).size).mapping
        if kind == NodeKind.MEM_FREE:
            return runtime.pool.freeing(word.value)
        if kind == NodeKind.CONDITIONAL:
            return self._conditional(ConditionalParams.from_address(at))
        raise EmulatorError(f"a graph's node of type {kind} (cudaGraphNodeType) is not emulated")

    # ------------------------------------------------------------------------------------ parameters

    def _change(self, node: int, work: GraphWork, executable: int | None = None) -> None:
        """Give a node other work of its kind. `executable`: there, and not in its graph."""
        mine = self._node(node)
        if executable is not None:
            mine = self._executable(executable).node(mine)
        _of_kind(mine, work.kind).work = work

    def _parameters(self) -> Functions:
        """Parameters of nodes, asked for and changed, in a graph and in an executable one."""
        runtime = self._runtime
        found: Functions = {}

        def setters(name: str, end: str, make: Callable[[int], GraphWork]) -> None:
            def change(node: int, given: int) -> None:
                self._change(node, make(given))

            def change_executable(executable: int, node: int, given: int) -> None:
                self._change(node, make(given), executable)

            found[f"cudaGraph{name}Node{end}"] = change
            found[f"cudaGraphExec{name}Node{end}"] = change_executable

        def getter(name: str, kind: NodeKind) -> None:
            def ask(node: int, out: int) -> None:
                given = _of_kind(self._node(node), kind).work.params
                if isinstance(given, int):
                    _put(out, given)
                elif isinstance(given, (ctypes.Structure, ctypes.Array)):
                    ctypes.memmove(out, ctypes.addressof(given), ctypes.sizeof(given))
                else:
                    raise CudaStatusError(Status.INVALID_VALUE, "a copy to or from an array has other parameters")

            found[f"cudaGraph{name}"] = ask

        def host(at: int) -> GraphWork:
            given = HostParams.from_address(at)
            return runtime.host_work(given.function, given.given)

        setters("Kernel", "SetParams", lambda at: runtime.kernel_work(KernelParams.from_address(at)))
        setters("Memcpy", "SetParams", lambda at: runtime.box_work(Words.from_address(at)[:]))
        setters("Memset", "SetParams", lambda at: runtime.fill_work("cudaMemset", FillParams.from_address(at)))
        setters("Host", "SetParams", host)
        setters("EventRecord", "SetEvent", lambda event: self._recording(event, NodeKind.EVENT_RECORD))
        setters("EventWait", "SetEvent", lambda event: self._recording(event, NodeKind.WAIT_EVENT))
        setters("", "SetParams", self._any)
        for kind in (NodeKind.KERNEL, NodeKind.MEMCPY, NodeKind.MEMSET, NodeKind.HOST):
            getter(f"{kind.name.capitalize()}NodeGetParams", kind)
        getter("EventRecordNodeGetEvent", NodeKind.EVENT_RECORD)
        getter("EventWaitNodeGetEvent", NodeKind.WAIT_EVENT)
        return found | self._other_parameters()

    def _other_parameters(self) -> Functions:
        """Those of lines, child graphs and launch attributes."""
        runtime = self._runtime

        def line(node: int, to: int, source: int, size: int, kind: int) -> None:
            self._change(node, runtime.line_work("cudaMemcpy", to, source, size, kind))

        def executable_line(executable: int, node: int, to: int, source: int, size: int, kind: int) -> None:
            self._change(node, runtime.line_work("cudaMemcpy", to, source, size, kind), executable)

        def executable_child(executable: int, node: int, graph: int) -> None:
            mine = _of_kind(self._executable(executable).node(self._node(node)), NodeKind.GRAPH)
            one = ExecutableGraph(mine.work.bodies[0])
            if one.update(self._graph(graph))[0]:
                raise CudaStatusError(Status.GRAPH_EXEC_UPDATE_FAILURE, "the child graph has another form")
            mine.work = replace(mine.work, bodies=(one.graph,))

        def inner(node: int, out: int) -> None:
            _put(out, self._handles.of(_of_kind(self._node(node), NodeKind.GRAPH).work.bodies[0]))

        def attribute(node: int, kind: int, value: int) -> None:
            mine = _of_kind(self._node(node), NodeKind.KERNEL)
            words = list((ctypes.c_uint32 * 4).from_address(value))
            mine.work = runtime.changed_launch(mine.work, kind & 0xFFFFFFFF, words)

        def ask_attribute(node: int, kind: int, out: int) -> None:
            mine = _of_kind(self._node(node), NodeKind.KERNEL)
            given = runtime.launch_attribute(mine.work, kind & 0xFFFFFFFF)
            (ctypes.c_uint32 * 4).from_address(out)[: len(given)] = list(given)

        return {
            "cudaGraphMemcpyNodeSetParams1D": line, "cudaGraphExecMemcpyNodeSetParams1D": executable_line,
            "cudaGraphExecChildGraphNodeSetParams": executable_child, "cudaGraphChildGraphNodeGetGraph": inner,
            "cudaGraphKernelNodeSetAttribute": attribute, "cudaGraphKernelNodeGetAttribute": ask_attribute,
        }  # fmt: skip

    # ------------------------------------------------------------------------------------ topology

    def _topology(self) -> Functions:
        def kind_of(node: int, out: int) -> None:
            _put_int(out, self._node(node).work.kind)

        def nodes(graph: int, out: int, count: int) -> None:
            self._listed(self._graph(graph).nodes, out, count)

        def roots(graph: int, out: int, count: int) -> None:
            self._listed([node for node in self._graph(graph).nodes if not node.behind], out, count)

        def edges(graph: int, first: int, second: int, data: int, count: int) -> None:
            found = self._graph(graph).edges
            room = ctypes.c_size_t.from_address(count).value
            self._listed([edge[0] for edge in found], first, count)
            if second:
                ctypes.c_size_t.from_address(count).value = room
                self._listed([edge[1] for edge in found], second, count)
            if data:
                ctypes.memset(data, 0, 8 * ctypes.c_size_t.from_address(count).value)

        def before(node: int, out: int, data: int, count: int) -> None:
            self._listed(self._node(node).behind, out, count)
            if data:
                ctypes.memset(data, 0, 8 * ctypes.c_size_t.from_address(count).value)

        def after(node: int, out: int, data: int, count: int) -> None:
            mine = self._node(node)
            self._listed([one for one in self._of(mine).nodes if mine in one.behind], out, count)
            if data:
                ctypes.memset(data, 0, 8 * ctypes.c_size_t.from_address(count).value)

        def connect(graph: int, first: int, second: int, data: int, count: int) -> None:
            self._plain_edges(data, count)
            self._graph(graph).connect(list(zip(self._nodes(first, count), self._nodes(second, count))))

        def disconnect(graph: int, first: int, second: int, data: int, count: int) -> None:
            self._graph(graph).disconnect(list(zip(self._nodes(first, count), self._nodes(second, count))))

        def destroy(node: int) -> None:
            mine = self._node(node)
            self._of(mine).remove(mine)
            self._handles.forget(node)

        return {
            "cudaGraphNodeGetType": kind_of, "cudaGraphGetNodes": nodes, "cudaGraphGetRootNodes": roots,
            "cudaGraphGetEdges": edges, "cudaGraphNodeGetDependencies": before,
            "cudaGraphNodeGetDependentNodes": after, "cudaGraphAddDependencies": connect,
            "cudaGraphRemoveDependencies": disconnect, "cudaGraphDestroyNode": destroy,
        }  # fmt: skip

    def _of(self, node: GraphNode) -> CudaGraph:
        """The graph of a node."""
        for graph in self._handles.all(CudaGraph):
            if node in graph.nodes:
                return graph
        raise CudaStatusError(Status.INVALID_VALUE, "the node's graph has been destroyed")

    # ------------------------------------------------------------------------------------ executable graphs

    def _executables(self) -> Functions:
        def instantiate(out: int, graph: int, flags: int) -> None:
            if flags & ~_KNOWN_FLAGS:
                raise EmulatorError(f"instantiation with flags {flags:#x}: a launch from the device is not emulated")
            _put(out, self._handles.of(ExecutableGraph(self._graph(graph), flags)))

        def with_params(out: int, graph: int, params: int) -> None:
            ctypes.c_int.from_address(params + 24).value = 0
            instantiate(out, graph, ctypes.c_uint64.from_address(params).value)

        def launch(executable: int, stream: int) -> int:
            found = self._executable(executable)
            if self._captures.on(stream) is None:
                self._captures.status(stream)
                self._runtime.pool.assign_defaults()
            self._captures.launch(stream, found)
            return self._runtime.status()

        def upload(executable: int, stream: int) -> None:
            self._executable(executable)

        def destroy(executable: int) -> None:
            self._executable(executable)
            self._handles.forget(executable)

        def flags_of(executable: int, out: int) -> None:
            _put(out, self._executable(executable).flags)

        def update(executable: int, graph: int, out: int) -> None:
            result, node = self._executable(executable).update(self._graph(graph))
            _put_int(out, result)
            if out:
                (ctypes.c_uint64 * 2).from_address(out + 8)[:] = [0 if node is None else self._handles.of(node), 0]
            if result:
                raise CudaStatusError(Status.GRAPH_EXEC_UPDATE_FAILURE, f"cudaGraphExecUpdateResult {result}")

        def enable(executable: int, node: int, flag: int) -> None:
            mine = self._executable(executable).node(self._node(node))
            if mine.work.kind not in (NodeKind.KERNEL, NodeKind.MEMSET, NodeKind.MEMCPY):
                raise CudaStatusError(Status.INVALID_VALUE, "a kernel, fill or copy can be left out, and no other node")
            mine.enabled = bool(flag & 0xFFFFFFFF)

        def enabled(executable: int, node: int, out: int) -> None:
            _put_int(out, self._executable(executable).node(self._node(node)).enabled)

        return {
            "cudaGraphInstantiate": instantiate, "cudaGraphInstantiateWithFlags": instantiate,
            "cudaGraphInstantiateWithParams": with_params, "cudaGraphLaunch": launch, "cudaGraphUpload": upload,
            "cudaGraphExecDestroy": destroy, "cudaGraphExecGetFlags": flags_of, "cudaGraphExecUpdate": update,
            "cudaGraphNodeSetEnabled": enable, "cudaGraphNodeGetEnabled": enabled,
        }  # fmt: skip

    # ------------------------------------------------------------------------------------ memory and conditions

    def _memory(self) -> Functions:
        pool = self._runtime.pool

        def asked(device: int, attribute: int, out: int) -> None:
            _put(out, pool.attribute(attribute & 0xFFFFFFFF))

        def reset(device: int, attribute: int, value: int) -> None:
            pool.reset(attribute & 0xFFFFFFFF)

        def trim(device: int) -> None:
            pool.trim()

        def allocation(node: int, out: int) -> None:
            found = self._node(node).work.params
            if not isinstance(found, GraphAllocation):
                raise CudaStatusError(Status.INVALID_VALUE, "the node allocates nothing")
            given = AllocationParams.from_address(out)
            given.size, given.address = found.size, found.address

        def freed(node: int, out: int) -> None:
            address = _of_kind(self._node(node), NodeKind.MEM_FREE).work.params
            _put(out, address if isinstance(address, int) else 0)

        return {
            "cudaDeviceGetGraphMemAttribute": asked, "cudaDeviceSetGraphMemAttribute": reset,
            "cudaDeviceGraphMemTrim": trim, "cudaGraphMemAllocNodeGetParams": allocation,
            "cudaGraphMemFreeNodeGetParams": freed,
        }  # fmt: skip

    def _conditionals(self) -> Functions:
        def create(out: int, graph: int, value: int, flags: int) -> None:
            # The handle is the address of the value's word: cudaGraphSetConditional of a kernel stores there.
            address = self._runtime.pool.word("the value of a conditional handle")
            if flags & _ASSIGN_DEFAULT:
                self._defaults[address] = value & 0xFFFFFFFF
            self._graph(graph)
            _put(out, address)

        return {"cudaGraphConditionalHandleCreate": create}

    @property
    def _defaults(self) -> dict[int, int]:
        return self._runtime.pool.defaults

    def _conditional(self, given: ConditionalParams) -> GraphWork:
        """A conditional node: if, while or switch."""
        handle, kind, size = int(given.handle), given.kind, given.size
        if not self._runtime.pool.is_word(handle) or kind not in (_IF, _WHILE, _SWITCH) or not size:
            raise CudaStatusError(Status.INVALID_VALUE, f"a conditional node of type {kind}, handle {handle:#x}")
        if size > {_IF: 2, _WHILE: 1}.get(kind, size):
            raise CudaStatusError(Status.INVALID_VALUE, f"a conditional node of type {kind} with {size} bodies")

        def value() -> int:
            return ctypes.c_uint32.from_address(handle).value

        def parts(bodies: Sequence[CudaGraph]) -> Iterable[CudaGraph]:
            if kind == _WHILE:
                while value():
                    yield bodies[0]
                return
            number = (0 if value() else 1) if kind == _IF else value()
            if number < len(bodies):
                yield bodies[number]

        name = ("if", "while", "switch")[kind]
        bodies = tuple(CudaGraph() for _ in range(size))
        return GraphWork(NodeKind.CONDITIONAL, label=name, params=handle, bodies=bodies, parts=parts)
