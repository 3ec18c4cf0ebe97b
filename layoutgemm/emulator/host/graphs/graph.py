"""CUDA graphs: nodes, the edges that order them, and executable graphs.

Nodes run one after another, in an order that the edges allow. Bytes that two nodes touch, of which neither is behind
the other, are a race (`races/unordered_launches.py`). CUDA C++ Programming Guide, "CUDA Graphs"; driver_types.h.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from heapq import heappop, heappush
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from ....errors import EmulatorError
from ...races.dependent_launches import PreviousLaunch
from ...races.unordered_launches import BESIDE, EarlierWork, Touched, TouchedBytes, UnorderedLaunches
from .statuses import CudaStatusError, Status

T = TypeVar("T")
AUTO_FREE = 1  # cudaGraphInstantiateFlagAutoFreeOnLaunch
MOST_ROUNDS = 1 << 20  # of a conditional node of type `while`: more are a loop that does not end


class NodeKind(IntEnum):
    """The type of a node, as cudaGraphNodeType numbers it."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    HOST = 3
    GRAPH = 4
    EMPTY = 5
    WAIT_EVENT = 6
    EVENT_RECORD = 7
    MEM_ALLOC = 10
    MEM_FREE = 11
    CONDITIONAL = 13


@runtime_checkable
class Mapped(Protocol):
    """Memory that a node allocates."""

    size: int

    @property
    def is_mapped(self) -> bool:
        """True from its node's run until it is freed."""

    def free(self) -> None:
        """Give it back until the node runs again."""


@dataclass(frozen=True)
class GraphWork:
    """The work of a node.

    run      does it
    label    for findings and drawings
    touched  the bytes of a copy or a fill; a kernel's are seen when it runs
    params   what the API gives back for it, in the API's own form
    bodies   graphs inside of the node
    parts    of these graphs those that run, in order
    launches whether it hands a kernel to the emulator
    """

    kind: NodeKind
    run: Callable[[], object] = lambda: None
    label: str = ""
    touched: tuple[TouchedBytes, ...] = ()
    params: object = None
    bodies: tuple[CudaGraph, ...] = ()
    parts: Callable[[Sequence[CudaGraph]], Iterable[CudaGraph]] = lambda bodies: bodies
    launches: bool = False


@dataclass(eq=False)
class GraphNode:
    """A node of a graph.

    behind   nodes that end before it begins
    stream   on which it was captured, or 0
    enabled  False: an executable graph leaves it out
    """

    work: GraphWork
    behind: list[GraphNode] = field(default_factory=list)
    stream: int = 0
    enabled: bool = True


class CudaGraph:
    """A CUDA graph, which launches once it is instantiated.

    >>> done, graph = [], CudaGraph()
    >>> second = graph.add(GraphWork(NodeKind.HOST, lambda: done.append("second")))
    >>> first = graph.add(GraphWork(NodeKind.HOST, lambda: done.append("first")))
    >>> graph.connect([(first, second)])
    >>> ExecutableGraph(graph).launch()
    >>> done
    ['first', 'second']
    """

    def __init__(self) -> None:
        self.nodes: list[GraphNode] = []

    def add(self, work: GraphWork, behind: Iterable[GraphNode] = (), stream: int = 0) -> GraphNode:
        """A new node behind others of this graph. Raises CudaStatusError for one of another graph."""
        before = list(dict.fromkeys(behind))
        self._hold(before)
        self.nodes.append(GraphNode(work, before, stream))
        return self.nodes[-1]

    def _hold(self, nodes: Iterable[GraphNode]) -> None:
        if any(one not in self.nodes for one in nodes):
            raise CudaStatusError(Status.INVALID_VALUE, "a node is of another graph")

    def connect(self, edges: Sequence[tuple[GraphNode, GraphNode]]) -> None:
        """Order the second node of each edge behind the first. Raises CudaStatusError for an edge that is there."""
        self._hold([one for edge in edges for one in edge])
        if any(first in second.behind or first is second for first, second in edges) or len(set(edges)) < len(edges):
            raise CudaStatusError(Status.INVALID_VALUE, "the edge is in the graph already")
        for first, second in edges:
            second.behind.append(first)

    def disconnect(self, edges: Sequence[tuple[GraphNode, GraphNode]]) -> None:
        """Take edges away. Raises CudaStatusError for one that is not there."""
        self._hold([one for edge in edges for one in edge])
        if any(first not in second.behind for first, second in edges):
            raise CudaStatusError(Status.INVALID_VALUE, "no such edge is in the graph")
        for first, second in edges:
            second.behind.remove(first)

    def remove(self, node: GraphNode) -> None:
        """Take a node and its edges away."""
        self.nodes.remove(node)
        for one in self.nodes:
            one.behind = [before for before in one.behind if before is not node]

    @property
    def edges(self) -> list[tuple[GraphNode, GraphNode]]:
        """The edges: the first node ends before the second begins."""
        return [(before, node) for node in self.nodes for before in node.behind]

    def order(self) -> list[GraphNode]:
        """The nodes, each behind those that it waits for. Raises CudaStatusError for a cycle."""
        number = {node: n for n, node in enumerate(self.nodes)}
        after: dict[GraphNode, list[GraphNode]] = {node: [] for node in self.nodes}
        left = {node: len(node.behind) for node in self.nodes}
        for before, node in self.edges:
            after[before].append(node)
        ready, out = [number[node] for node in self.nodes if not left[node]], list[GraphNode]()
        while ready:  # the node that was added first, among the nodes that may begin
            out.append(self.nodes[heappop(ready)])
            for node in after[out[-1]]:
                left[node] -= 1
                if not left[node]:
                    heappush(ready, number[node])
        if len(out) < len(self.nodes):
            raise CudaStatusError(Status.INVALID_VALUE, f"{len(self.nodes) - len(out)} nodes wait in a cycle")
        return out

    def all_nodes(self) -> Iterator[GraphNode]:
        """The nodes, and those of the graphs inside of them."""
        for node in self.nodes:
            yield node
            for body in node.work.bodies:
                yield from body.all_nodes()

    def copy(self) -> tuple[CudaGraph, dict[GraphNode, GraphNode]]:
        """(A copy, its node for each of these nodes and of those inside of them)."""
        made, of = CudaGraph(), dict[GraphNode, GraphNode]()
        for node in self.nodes:
            bodies = []
            for body in node.work.bodies:
                one, inner = body.copy()
                bodies.append(one)
                of |= inner
            of[node] = GraphNode(replace(node.work, bodies=tuple(bodies)), [], node.stream, node.enabled)
        for node in self.nodes:
            of[node].behind = [of[before] for before in node.behind]
        made.nodes = [of[node] for node in self.nodes]
        return made, of

    def drawing(self) -> str:
        """The graph in Graphviz's language.

        >>> graph = CudaGraph()
        >>> first = graph.add(GraphWork(NodeKind.MEMSET, label="32 bytes"))
        >>> second = graph.add(GraphWork(NodeKind.KERNEL, label="add"), [first])
        >>> print(graph.drawing())
        digraph graph_0 {
          node_0 [shape="box", label="MEMSET\\n32 bytes"];
          node_1 [shape="box", label="KERNEL\\nadd"];
          node_0 -> node_1;
        }
        """
        names = {node: f"node_{number}" for number, node in enumerate(self.all_nodes())}
        lines: list[str] = []

        def write(graph: CudaGraph, indent: str) -> None:
            for node in graph.nodes:
                label = node.work.label.replace("\\", "\\\\").replace('"', '\\"')
                lines.append(f'{indent}{names[node]} [shape="box", label="{node.work.kind.name}\\n{label}"];')
                for number, body in enumerate(node.work.bodies):
                    lines.append(f"{indent}subgraph cluster_{names[node]}_{number} {{")
                    write(body, indent + "  ")
                    lines.append(f"{indent}}}")
            lines.extend(f"{indent}{names[first]} -> {names[second]};" for first, second in graph.edges)

        write(self, "  ")
        return "\n".join(["digraph graph_0 {", *lines, "}"])


class ExecutableGraph:
    """A graph that can be launched. Later changes of the graph that it was made of leave it as it is.

    of     the node here for each node of the graph
    flags  of cudaGraphInstantiateWithFlags

    runs   does the nodes' work: by default one after another

    Raises CudaStatusError for a graph with a cycle.
    """

    runs: ClassVar[Callable[[CudaGraph], None] | None] = None

    def __init__(self, graph: CudaGraph, flags: int = 0) -> None:
        self.graph, self.of = graph.copy()
        self.flags = flags
        for one in (self.graph, *[body for node in self.graph.all_nodes() for body in node.work.bodies]):
            one.order()

    def node(self, node: GraphNode) -> GraphNode:
        """The node here for one of the graph. Raises CudaStatusError for a node of another graph."""
        if node not in self.of:
            raise CudaStatusError(Status.INVALID_VALUE, "the executable graph was not made of this node's graph")
        return self.of[node]

    def launch(self) -> None:
        """Do the work of each node, in an order that the edges allow."""
        for one in [node.work.params for node in self.graph.all_nodes()]:
            if isinstance(one, Mapped) and one.is_mapped:
                if not self.flags & AUTO_FREE:
                    why = f"the graph's allocation of {one.size} bytes was not freed since its last launch"
                    raise CudaStatusError(Status.INVALID_VALUE, why)
                one.free()
        if ExecutableGraph.runs is not None:
            ExecutableGraph.runs(self.graph)
        else:
            outer = BESIDE.now or UnorderedLaunches()
            outer.seen += _run(self.graph, outer, outer.others)

    def update(self, graph: CudaGraph) -> tuple[int, GraphNode | None]:
        """Take the work of another graph of the same form.

        Returns (cudaGraphExecUpdateResult, the node that does not fit).
        """
        wrong = _difference(self.graph, graph)
        if wrong[0] == 0:
            _take(self.graph, graph, self.of)
        return wrong


UPDATED, TOPOLOGY_CHANGED, TYPE_CHANGED, NOT_SUPPORTED = 0, 2, 3, 6  # cudaGraphExecUpdateResult


def _difference(mine: CudaGraph, other: CudaGraph) -> tuple[int, GraphNode | None]:
    """Why a graph cannot take another's work: (cudaGraphExecUpdateResult, the other's node)."""
    if len(mine.nodes) != len(other.nodes):
        return TOPOLOGY_CHANGED, other.nodes[len(mine.nodes)] if len(other.nodes) > len(mine.nodes) else None
    places, others = ({node: n for n, node in enumerate(graph.nodes)} for graph in (mine, other))
    for node, one in zip(mine.nodes, other.nodes):
        if node.work.kind is not one.work.kind:
            return TYPE_CHANGED, one
        if {places[x] for x in node.behind} != {others[x] for x in one.behind}:
            return TOPOLOGY_CHANGED, one
        if node.work.kind in (NodeKind.MEM_ALLOC, NodeKind.MEM_FREE, NodeKind.CONDITIONAL):
            return NOT_SUPPORTED, one
        for body, its in zip(node.work.bodies, one.work.bodies):
            if (wrong := _difference(body, its))[0]:
                return wrong
    return UPDATED, None


def _take(mine: CudaGraph, other: CudaGraph, of: dict[GraphNode, GraphNode]) -> None:
    for node, one in zip(mine.nodes, other.nodes):
        for body, its in zip(node.work.bodies, one.work.bodies):
            _take(body, its, of)
        node.work = replace(one.work, bodies=node.work.bodies)
        of[one] = node


def _run(graph: CudaGraph, outer: UnorderedLaunches, outside: Sequence[EarlierWork]) -> list[Touched]:
    """Run a graph's nodes; what they touched.

    outer    the scope of the graph's launch
    outside  what was touched that nothing orders with this graph
    """
    order = graph.order()
    number = {node: n for n, node in enumerate(order)}
    ancestors: list[int] = []
    for node in order:
        ancestors.append(0)
        for before in node.behind:
            ancestors[-1] |= ancestors[number[before]] | 1 << number[before]
    whole = (1 << len(order)) - 1
    descendants = [0] * len(order)
    for n in reversed(range(len(order))):
        for before in order[n].behind:
            descendants[number[before]] |= descendants[n] | 1 << n
    touched: list[list[Touched]] = []
    fronts: dict[GraphNode | None, PreviousLaunch | None] = {_in_front(node): None for node in order}
    for n, node in enumerate(order):
        apart = whole & ~(ancestors[n] | descendants[n] | 1 << n)
        beside = [*outside, *[one for m in range(n if apart else 0) if apart >> m & 1 for one in touched[m]]]
        touched.append([])
        if not node.enabled:
            continue
        if node.work.bodies:
            for number_of, body in enumerate(node.work.parts(node.work.bodies)):
                if number_of > MOST_ROUNDS:
                    raise EmulatorError(f"a conditional node of type `while` has run {MOST_ROUNDS} times")
                touched[n] += _run(body, outer, beside)
            continue
        scope = UnorderedLaunches(beside, fronts.pop(_in_front(node), None), outer.stream, outer.time, outer.born)
        scope.copied(node.work.touched, node.work.label)
        with BESIDE.entered(scope):
            node.work.run()
        if node in fronts:
            fronts[node] = scope.last
        if apart or outside or outer.stream:  # something may run beside it
            touched[n] = scope.seen
            for one in touched[n]:
                one.all()
    return list(itertools.chain(*touched))


def _in_front(node: GraphNode) -> GraphNode | None:
    """The kernel's node beside which a dependent launch may run: captured before it on the same stream, or None."""
    if len(node.behind) != 1 or not node.stream:
        return None
    before = node.behind[0]
    kernels = node.work.kind is before.work.kind is NodeKind.KERNEL
    return before if kernels and node.stream == before.stream else None


class Handles:
    """Numbers that stand for objects."""

    def __init__(self) -> None:
        self._next = itertools.count(1)
        self._objects: dict[int, object] = {}
        self._numbers: dict[int, int] = {}  # by id; the objects are held

    def of(self, value: object) -> int:
        """The number of an object: the same each time."""
        if id(value) not in self._numbers:
            number = self._numbers[id(value)] = next(self._next) << 12
            self._objects[number] = value
        return self._numbers[id(value)]

    def get(self, number: int, kind: type[T]) -> T:
        """The object of a number. Raises CudaStatusError unless it is of that kind."""
        found = self._objects.get(int(number))
        if not isinstance(found, kind):
            why = f"{int(number):#x} is no handle of a {kind.__name__}, or it has been destroyed"
            raise CudaStatusError(Status.INVALID_VALUE, why)
        return found

    def all(self, kind: type[T]) -> list[T]:
        """All objects of a kind that have a handle."""
        return [one for one in self._objects.values() if isinstance(one, kind)]

    def forget(self, number: int) -> None:
        """End a handle: it stands for nothing from now on."""
        found = self._objects.pop(int(number), None)
        self._numbers.pop(id(found), None)
