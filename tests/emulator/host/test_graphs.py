"""CUDA graphs: capture, explicit graphs, races of unordered nodes, and the errors that CUDA gives."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from layoutgemm.cli.main import main
from layoutgemm.emulator.api import emulate_ptx
from layoutgemm.emulator.host.cuda_calls import DeviceMemory
from layoutgemm.emulator.host.graphs.capture import GLOBAL, RELAXED, THREAD_LOCAL, Captures
from layoutgemm.emulator.host.graphs.graph import (
    NOT_SUPPORTED,
    TOPOLOGY_CHANGED,
    TYPE_CHANGED,
    UPDATED,
    CudaGraph,
    ExecutableGraph,
    GraphNode,
    GraphWork,
    NodeKind,
)
from layoutgemm.emulator.host.graphs.memory import GraphPool
from layoutgemm.emulator.host.graphs.statuses import TEXTS, CudaStatusError, Status
from layoutgemm.emulator.races.unordered_launches import FOUND, TouchedBytes
from tests import needs
from tests.emulator.host.test_cuda_programs import built

A, B, C = 16, 32, 48  # streams


def noting(done: list[str], name: str) -> GraphWork:
    return GraphWork(NodeKind.KERNEL, lambda: done.append(name), name)


def fails(status: Status, call: object, *args: object) -> None:
    with pytest.raises(CudaStatusError) as found:
        call(*args)  # type: ignore[operator]
    assert found.value.status is status, found.value


# ------------------------------------------------------------------------------------------------------ capture


def test_events_join_streams_and_order_their_nodes() -> None:
    captures, done = Captures(), list[str]()
    captures.begin(A)
    captures.add(A, noting(done, "first"))
    captures.record(1, A)
    captures.wait(B, 1)
    captures.add(B, noting(done, "beside"))
    captures.add(A, noting(done, "second"))
    captures.record(2, B)
    captures.wait(A, 2)
    captures.add(A, noting(done, "last"))
    assert captures.add(C, noting(done, "other")) is None  # a stream that has not joined
    graph = captures.end(A)
    assert {(a.work.label, b.work.label) for a, b in graph.edges} == {
        ("first", "beside"), ("first", "second"), ("second", "last"), ("beside", "last")
    }  # fmt: skip
    assert not done and captures.on(B) is None
    ExecutableGraph(graph).launch()
    assert done[0] == "first" and done[-1] == "last" and sorted(done[1:3]) == ["beside", "second"]


def test_errors_of_a_capture() -> None:
    captures = Captures()
    fails(Status.STREAM_CAPTURE_UNSUPPORTED, captures.begin, 0)
    fails(Status.ILLEGAL_STATE, captures.end, A)
    captures.begin(A)
    fails(Status.ILLEGAL_STATE, captures.begin, A)
    assert captures.status(A) == 1 and captures.status(B) == 0
    fails(Status.STREAM_CAPTURE_IMPLICIT, captures.add, 0, GraphWork(NodeKind.EMPTY))  # a blocking stream captures
    assert captures.status(A) == 2
    fails(Status.STREAM_CAPTURE_INVALIDATED, captures.add, A, GraphWork(NodeKind.EMPTY))
    fails(Status.STREAM_CAPTURE_INVALIDATED, captures.end, A)
    captures.nonblocking |= {A, C}
    captures.record(7, C)
    for wrong, args, status in (
        (captures.synchronise, (A,), Status.STREAM_CAPTURE_UNSUPPORTED),
        (captures.synchronise, (), Status.STREAM_CAPTURE_UNSUPPORTED),
        (captures.unsafe, ("cudaMalloc",), Status.STREAM_CAPTURE_UNSUPPORTED),
        (captures.wait, (A, 7), Status.STREAM_CAPTURE_ISOLATION),
        (captures.ask, (1,), Status.CAPTURED_EVENT),
        (captures.wait, (0, 1), Status.STREAM_CAPTURE_IMPLICIT),
        (captures.end, (B,), Status.STREAM_CAPTURE_UNMATCHED),
    ):
        captures.begin(A)
        assert captures.add(0, GraphWork(NodeKind.EMPTY)) is None  # no blocking stream captures
        captures.record(1, A)
        if wrong == captures.end:
            captures.wait(B, 1)
        fails(status, wrong, *args)
        fails(Status.STREAM_CAPTURE_INVALIDATED, captures.end, A)
    for stream in (A, C):
        captures.begin(stream)
    captures.record(1, A)
    fails(Status.STREAM_CAPTURE_MERGE, captures.wait, C, 1)
    for stream in (A, C):
        fails(Status.STREAM_CAPTURE_INVALIDATED, captures.end, stream)


def test_work_of_a_stream_that_is_not_joined_is_an_error() -> None:
    for joins in (True, False):
        captures = Captures()
        captures.begin(A)
        captures.record(1, A)
        captures.wait(B, 1)
        captures.add(B, GraphWork(NodeKind.EMPTY))
        captures.record(2, B)
        captures.wait(C, 1)  # without work of its own
        if joins:
            captures.wait(A, 2)
            assert len(captures.end(A).nodes) == 1
        else:
            fails(Status.STREAM_CAPTURE_UNJOINED, captures.end, A)


def test_the_mode_decides_which_threads_may_allocate() -> None:
    captures, seen = Captures(), list[str]()

    def allocate() -> None:
        try:
            captures.unsafe("cudaMalloc")
            seen.append("allowed")
        except CudaStatusError as error:
            seen.append(error.status.runtime_name)
        fails(Status.STREAM_CAPTURE_WRONG_THREAD, captures.end, A)

    for mode in (GLOBAL, THREAD_LOCAL):
        captures.begin(A, mode)
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()
        capture = captures.on(A)
        assert capture is not None
        capture.invalid = False
        captures.end(A)
    assert seen == ["cudaErrorStreamCaptureUnsupported", "allowed"]
    captures.begin(A, RELAXED)
    captures.unsafe("cudaMalloc")
    captures.end(A)
    captures.begin(A)
    assert captures.exchange(RELAXED) == GLOBAL
    captures.unsafe("cudaMalloc")
    assert captures.exchange(GLOBAL) == RELAXED
    assert set(TEXTS) == set(Status)


# ------------------------------------------------------------------------------------------------------- graphs


def chain(kinds: list[NodeKind]) -> tuple[CudaGraph, list[GraphNode]]:
    graph, nodes = CudaGraph(), list[GraphNode]()
    for kind in kinds:
        nodes.append(graph.add(GraphWork(kind), nodes[-1:]))
    return graph, nodes


def test_edges_and_copies_of_a_graph() -> None:
    graph, (first, second, third) = chain([NodeKind.KERNEL, NodeKind.MEMSET, NodeKind.KERNEL])
    fails(Status.INVALID_VALUE, graph.connect, [(first, second)])
    fails(Status.INVALID_VALUE, graph.disconnect, [(first, third)])
    fails(Status.INVALID_VALUE, CudaGraph().add, GraphWork(NodeKind.EMPTY), [first])
    made, of = graph.copy()
    graph.connect([(third, first)])
    fails(Status.INVALID_VALUE, ExecutableGraph, graph)  # a cycle
    assert [of[one] for one in (first, second, third)] == made.order()
    graph.disconnect([(third, first)])
    graph.remove(second)
    assert graph.edges == [] and len(made.edges) == 2


def test_an_executable_graph_takes_the_work_of_a_graph_of_its_form() -> None:
    kinds = [NodeKind.KERNEL, NodeKind.MEMSET]
    executable = ExecutableGraph(chain(kinds)[0])
    for other, result, number in (
        (chain(kinds), UPDATED, None),
        (chain([*kinds, NodeKind.EMPTY]), TOPOLOGY_CHANGED, 2),
        (chain(kinds[::-1]), TYPE_CHANGED, 0),
    ):
        assert executable.update(other[0]) == (result, None if number is None else other[1][number])
    apart, nodes = chain(kinds)
    apart.disconnect(apart.edges)
    assert executable.update(apart) == (TOPOLOGY_CHANGED, nodes[1])
    freeing = chain([NodeKind.MEM_FREE])
    assert ExecutableGraph(chain([NodeKind.MEM_FREE])[0]).update(freeing[0]) == (NOT_SUPPORTED, freeing[1][0])
    done: list[str] = []
    graph = CudaGraph()
    node = graph.add(noting(done, "old"))
    executable = ExecutableGraph(graph)
    new = CudaGraph()
    new.add(noting(done, "new"))
    executable.update(new)
    executable.launch()
    executable.node(node).enabled = False
    executable.launch()
    assert done == ["new"]


def test_a_graphs_memory_is_there_between_its_nodes() -> None:
    memory = DeviceMemory()
    pool = GraphPool(memory)
    made = pool.allocation(100)
    graph = CudaGraph()
    first = graph.add(made.mapping)
    seen: list[bool] = []
    graph.add(GraphWork(NodeKind.HOST, lambda: seen.append(memory.holder(made.address) is not None)), [first])
    executable = ExecutableGraph(graph)
    executable.launch()
    assert seen == [True] and pool.attribute(0) == 100
    fails(Status.INVALID_VALUE, executable.launch)  # it was not freed
    ExecutableGraph(graph, flags=1).launch()
    memory.free(made.address)
    pool.trim()
    assert memory.holder(made.address) is None and (pool.attribute(0), pool.attribute(1)) == (0, 100)
    fails(Status.INVALID_VALUE, pool.freeing, made.address + 1)


# -------------------------------------------------------------------------------------------------------- races

# Each thread copies its word, and adds 1 to `count`.
KERNEL = """
.version 8.7
.target sm_90a
.visible .entry copy(.param .u64 out, .param .u64 x, .param .u64 count) {
  .reg .b32 %r<3>; .reg .b64 %d<5>;
  ld.param.u64 %d0, [out]; ld.param.u64 %d1, [x]; ld.param.u64 %d4, [count]; mov.u32 %r0, %tid.x;
  mul.wide.u32 %d2, %r0, 4; add.u64 %d0, %d0, %d2; add.u64 %d1, %d1, %d2;
  ld.global.u32 %r1, [%d1]; st.global.u32 [%d0], %r1; red.global.add.u32 [%d4], 1; ret; }
"""


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("second", ["reads", "writes", "fills", "apart"])
def test_unordered_nodes_that_touch_the_same_bytes_are_a_race(second: str, ordered: bool) -> None:
    x, y, z, count = (np.zeros(32, np.uint32) for _ in range(4))
    runs: list[object] = []

    def launch(out: object, source: object) -> GraphWork:
        return GraphWork(
            NodeKind.KERNEL, lambda: runs.append(emulate_ptx(KERNEL, block=32, args=[out, source, count])), "copy"
        )

    graph = CudaGraph()
    first = graph.add(launch(y, x))
    whole = TouchedBytes(y.ctypes.data, 8, True)
    work = {
        "reads": launch(z, y), "writes": launch(y, z), "apart": launch(z, x),
        "fills": GraphWork(NodeKind.MEMSET, lambda: None, "a fill", (whole,)),
    }[second]  # fmt: skip
    graph.add(work, [first] if ordered else [])
    FOUND.append([])
    ExecutableGraph(graph).launch()
    found = [one for run in runs for one in run.findings] + FOUND.pop()  # type: ignore[attr-defined]
    if ordered or second == "apart":
        assert not found  # both add to `count`, atomically
        return
    assert {one.kind for one in found} == {"race"}
    assert "nothing orders the two nodes of the graph" in found[0].message
    assert "st.global.u32 at PTX line" in found[0].message and "of copy" in found[0].message


def test_a_node_inside_of_another_runs_beside_those_that_the_other_does() -> None:
    x, y, count = (np.zeros(32, np.uint32) for _ in range(3))
    runs: list[object] = []
    inner, graph = CudaGraph(), CudaGraph()
    for one in (inner, graph):
        one.add(
            GraphWork(NodeKind.KERNEL, lambda: runs.append(emulate_ptx(KERNEL, block=32, args=[y, x, count])), "copy")
        )
    graph.add(GraphWork(NodeKind.GRAPH, bodies=(inner,)))
    ExecutableGraph(graph).launch()
    assert [len(run.findings) for run in runs] == [0, 1]  # type: ignore[attr-defined]


# ----------------------------------------------------------------------------------------------- programs of C++

PTX = """
.version 8.7
.target sm_90
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 a, .param .b32 b);
.visible .entry add(.param .u64 x, .param .u32 n) {
  .reg .b32 %r<2>; .reg .b64 %d<1>;
  ld.param.u64 %d0, [x]; ld.param.u32 %r0, [n]; ld.global.u32 %r1, [%d0]; add.u32 %r1, %r1, %r0;
  st.global.u32 [%d0], %r1; ret; }
.visible .entry below(.param .u64 x, .param .u32 n, .param .u64 handle) {
  .reg .b32 %r<4>; .reg .b64 %d<2>; .reg .pred %p; .param .b64 a; .param .b32 b;
  ld.param.u64 %d0, [x]; ld.param.u32 %r0, [n]; ld.param.u64 %d1, [handle]; ld.global.u32 %r1, [%d0];
  setp.lt.u32 %p, %r1, %r0; selp.u32 %r2, 1, 0, %p;
  st.param.b64 [a], %d1; st.param.b32 [b], %r2; call.uni cudaGraphSetConditional, (a, b); ret; }
"""
PROGRAM = """
#include <assert.h>
#include <stdio.h>
#include <string.h>
typedef struct { unsigned x, y, z; } dim3;
typedef void *p;
int cudaMalloc(void *, size_t), cudaMemcpy(void *, const void *, size_t, int), cudaFree(void *);
int cudaMemcpyAsync(void *, const void *, size_t, int, p), cudaMemsetAsync(void *, int, size_t, p);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, p), cudaLaunchHostFunc(p, void (*)(void *), void *);
int cudaStreamCreate(p *), cudaEventCreate(p *), cudaEventRecord(p, p), cudaStreamWaitEvent(p, p, unsigned);
int cudaStreamSynchronize(p), cudaStreamBeginCapture(p, int), cudaStreamEndCapture(p, p *);
int cudaGetLastError(void), cudaMallocAsync(void *, size_t, p), cudaFreeAsync(void *, p);
int cudaMemset(void *, int, size_t);
int cudaGraphCreate(p *, unsigned), cudaGraphInstantiate(p *, p, unsigned long long), cudaGraphLaunch(p, p);
int cudaGraphAddKernelNode(p *, p, p *, size_t, void *), cudaGraphAddMemcpyNode(p *, p, p *, size_t, void *);
int cudaGraphAddMemsetNode(p *, p, p *, size_t, void *), cudaGraphAddHostNode(p *, p, p *, size_t, void *);
int cudaGraphAddMemAllocNode(p *, p, p *, size_t, void *), cudaGraphAddMemFreeNode(p *, p, p *, size_t, void *);
int cudaGraphAddChildGraphNode(p *, p, p *, size_t, p), cudaGraphAddDependencies(p, p *, p *, void *, size_t);
int cudaGraphAddNode(p *, p, p *, void *, size_t, void *), cudaGraphConditionalHandleCreate(size_t *, p, unsigned, int);
int cudaGraphExecKernelNodeSetParams(p, p, void *), cudaGraphKernelNodeGetParams(p, void *), cudaGraphClone(p *, p);
int cudaGraphExecUpdate(p, p, void *), cudaGraphGetNodes(p, p *, size_t *), cudaGraphNodeGetType(p, int *);
int cudaGraphGetEdges(p, p *, p *, void *, size_t *), cudaGraphExecDestroy(p), cudaGraphDestroy(p);
const char *cudaGetErrorName(int);
p *__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(p *, const void *, char *, const char *, int, p, p, p, p, int *);
static unsigned char image[] __attribute__((aligned(8))) = {IMAGE};
static struct { unsigned magic, version; void *data, *more; } wrapper = {0x466243b1, 1, image, 0};
static void add(void) {}
static void below(void) {}
__attribute__((constructor)) static void begin(void) {
  p *handle = __cudaRegisterFatBinary(&wrapper);
  __cudaRegisterFunction(handle, add, "add", "add", -1, 0, 0, 0, 0, 0);
  __cudaRegisterFunction(handle, below, "below", "below", -1, 0, 0, 0, 0, 0);
}
typedef struct { const void *function; dim3 grid, block; unsigned shared; void **given, **extra; } kernel;
static unsigned *x, host;
static dim3 one = {1, 1, 1};
static void said(void *text) { printf("%s %u\\n", (char *)text, host); }
static kernel adding(unsigned *n) {
  static void *given[2];
  given[0] = &x, given[1] = n;
  return (kernel){add, one, one, 0, given, 0};
}
static int launch(unsigned n, p stream) {
  void *given[] = {&x, &n};
  return cudaLaunchKernel(add, one, one, given, 0, stream);
}
#define OK(call) assert(!(call))
static void capture(void) {
  p a, b, fork, join, graph, run, other;
  OK(cudaStreamCreate(&a)); OK(cudaStreamCreate(&b)); OK(cudaEventCreate(&fork)); OK(cudaEventCreate(&join));
  for (unsigned n = 1; n < 4; n += 2) {
    OK(cudaStreamBeginCapture(a, 0));
    OK(cudaMemsetAsync(x, 0, 4, a));
    OK(cudaEventRecord(fork, a)); OK(cudaStreamWaitEvent(b, fork, 0));
    OK(launch(n, b));
    OK(cudaEventRecord(join, b)); OK(cudaStreamWaitEvent(a, join, 0));
    OK(launch(10, a));
    OK(cudaMemcpyAsync(&host, x, 4, 2, a)); OK(cudaLaunchHostFunc(a, said, "captured"));
    OK(cudaStreamEndCapture(a, &graph));
    if (n == 1) OK(cudaGraphInstantiate(&run, graph, 0));
    else OK(cudaGraphExecUpdate(run, graph, 0));
    assert(host == (n == 1 ? 0 : 11));
    OK(cudaGraphLaunch(run, a)); OK(cudaGraphLaunch(run, a));
  }
  size_t count; OK(cudaGraphGetNodes(graph, 0, &count)); printf("%zu nodes\\n", count);
  OK(cudaGraphExecDestroy(run));
  printf("%s\\n", cudaGetErrorName(cudaGraphLaunch(run, a)));
}
static void explicitly(void) {
  p graph, nodes[5], run, clone, child, child_run, from[8], to[8];
  unsigned n = 5; int kind; size_t count = 8;
  kernel params = adding(&n), asked;
  struct { void *to; size_t pitch; unsigned value, element; size_t width, height; } fill = {x, 0, 7, 4, 1, 1};
  struct { void *source, *spos[3], *splace; size_t spitch, sx, sy; void *target, *tpos[3], *tplace;
           size_t tpitch, tx, ty, extent[3]; int kind; } copy =
    {0, {0}, x, 4, 1, 1, 0, {0}, &host, 4, 1, 1, {4, 1, 1}, 2};
  struct { void (*call)(void *); void *given; } call = {said, "explicit"};
  OK(cudaGraphCreate(&graph, 0));
  OK(cudaGraphAddKernelNode(nodes, graph, 0, 0, &params));
  n = 100;  // the node has its own copy
  OK(cudaGraphAddMemsetNode(nodes + 1, graph, 0, 0, &fill));
  OK(cudaGraphAddMemcpyNode(nodes + 2, graph, nodes, 1, &copy));
  OK(cudaGraphAddHostNode(nodes + 3, graph, nodes + 2, 1, &call));
  OK(cudaGraphAddDependencies(graph, nodes + 1, nodes, 0, 1));  // the fill before the kernel
  OK(cudaGraphInstantiate(&run, graph, 0)); OK(cudaGraphLaunch(run, 0));  // 7 + 5
  OK(cudaGraphExecKernelNodeSetParams(run, nodes[0], &params)); OK(cudaGraphLaunch(run, 0));  // 7 + 100
  OK(cudaGraphKernelNodeGetParams(nodes[0], &asked));
  printf("%u, %d\\n", *(unsigned *)asked.given[1], asked.function == add);
  OK(cudaGraphClone(&clone, graph)); OK(cudaGraphCreate(&child, 0));
  OK(cudaGraphAddChildGraphNode(nodes + 4, child, 0, 0, clone)); OK(cudaGraphDestroy(clone));
  OK(cudaGraphInstantiate(&child_run, child, 0)); OK(cudaGraphLaunch(child_run, 0));
  OK(cudaGraphGetEdges(graph, from, to, 0, &count)); OK(cudaGraphNodeGetType(nodes[2], &kind));
  printf("%zu edges, %d, %d\\n", count, from[0] == nodes[1] && to[0] == nodes[0], kind);
}
static void memory(void) {
  p stream, graph, run, nodes[2]; unsigned *made;
  struct { char pool[104]; size_t size; void *address; } params = {{0}, 256};
  OK(cudaStreamCreate(&stream));
  OK(cudaStreamBeginCapture(stream, 0));
  OK(cudaMallocAsync(&made, 256, stream)); OK(cudaMemsetAsync(made, 1, 4, stream));
  OK(cudaMemcpyAsync(&host, made, 4, 2, stream)); OK(cudaFreeAsync(made, stream));
  OK(cudaStreamEndCapture(stream, &graph)); OK(cudaGraphInstantiate(&run, graph, 0)); OK(cudaGraphLaunch(run, 0));
  printf("%#x\\n", host);
  OK(cudaGraphCreate(&graph, 0)); OK(cudaGraphAddMemAllocNode(nodes, graph, 0, 0, &params));
  OK(cudaGraphInstantiate(&run, graph, 0)); OK(cudaGraphLaunch(run, 0));
  printf("%s\\n", cudaGetErrorName(cudaGraphLaunch(run, 0)));
  OK(cudaFree(params.address)); OK(cudaGraphLaunch(run, 0));
  cudaMemset(made, 0, 4);  // it is freed
}
static void conditional(void) {
  p graph, nodes[3], run; size_t handle; unsigned n = 3, most = 10;
  OK(cudaGraphCreate(&graph, 0)); OK(cudaGraphConditionalHandleCreate(&handle, graph, 1, 1));
  struct { int kind, rest[3]; size_t handle; int type; unsigned size; p *bodies; char more[224]; } params =
    {13, {0}, handle, 1, 1};
  OK(cudaGraphAddNode(nodes, graph, 0, 0, 0, &params));
  kernel first = adding(&n), second = {below, one, one, 0, (void *[]){&x, &most, &handle}, 0};
  OK(cudaGraphAddKernelNode(nodes + 1, params.bodies[0], 0, 0, &first));
  OK(cudaGraphAddKernelNode(nodes + 2, params.bodies[0], nodes + 1, 1, &second));
  OK(cudaGraphInstantiate(&run, graph, 0)); OK(cudaGraphLaunch(run, 0)); OK(cudaMemcpy(&host, x, 4, 2));
  said("while");
}
static void errors(void) {
  p a, graph;
  OK(cudaStreamCreate(&a)); OK(cudaStreamBeginCapture(a, 0));
  printf("%s ", cudaGetErrorName(launch(1, 0)));  // on the legacy stream
  printf("%s ", cudaGetErrorName(cudaGetLastError()));
  printf("%s ", cudaGetErrorName(cudaGetLastError()));
  printf("%s %s\\n", cudaGetErrorName(cudaStreamEndCapture(a, &graph)), graph ? "?" : "none");
}
static void race(void) {
  p graph, nodes[2], run; unsigned n = 1;
  kernel params = adding(&n);
  OK(cudaGraphCreate(&graph, 0));
  for (int i = 0; i < 2; i++) OK(cudaGraphAddKernelNode(nodes + i, graph, 0, 0, &params));
  OK(cudaGraphInstantiate(&run, graph, 0)); OK(cudaGraphLaunch(run, 0));
}
int main(int argc, char **argv) {
  OK(cudaMalloc(&x, 4));
  switch (argv[1][0]) {
    case 'c': capture(); break;
    case 'e': explicitly(); break;
    case 'm': memory(); break;
    case 'w': conditional(); break;
    case 'i': errors(); break;
    case 'r': race(); break;
  }
  return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("graphs"), "graphs", PROGRAM, PTX)


@needs.C_COMPILER
@pytest.mark.parametrize(
    "word, status, said",
    [
        ("captures", 0, "captured 11\n" * 2 + "captured 13\n" * 2 + "5 nodes\ncudaErrorInvalidValue\n"),
        ("explicit", 0, "explicit 12\nexplicit 107\n5, 1\nexplicit 12\n3 edges, 1, 1\n"),
        ("memory", 1, "0x1010101\ncudaErrorInvalidValue\n"),
        ("memory", 1, "cudaMemset of 4 bytes: 0x"),
        ("while", 0, "while 12\n"),
        (
            "invalid", 0, "cudaErrorStreamCaptureImplicit cudaErrorStreamCaptureImplicit cudaSuccess "
            "cudaErrorStreamCaptureInvalidated none",
        ),
        ("race", 1, "of add; nothing orders the two nodes of the graph"),
    ],
)  # fmt: skip
def test_a_program_uses_graphs(
    library: Path, capfd: pytest.CaptureFixture[str], word: str, status: int, said: str
) -> None:
    assert main(["emulate", str(library), word]) == status, capfd.readouterr()
    assert said in capfd.readouterr().out
