"""Work of two streams on the same bytes is a race, unless CUDA orders it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm.cli.main import main
from layoutgemm.emulator.api import emulate_ptx, emulated_gpu
from layoutgemm.emulator.host.arguments import memory_found_by
from layoutgemm.emulator.host.cuda_calls import DeviceMemory
from layoutgemm.emulator.host.graphs.capture import Captures
from layoutgemm.emulator.host.graphs.graph import CudaGraph, ExecutableGraph, GraphWork, NodeKind
from layoutgemm.emulator.host.graphs.stream_order import MOST, _Footprints
from layoutgemm.emulator.races.unordered_launches import FOUND, Copied, TouchedBytes
from tests import needs
from tests.emulator.host.test_cuda_programs import built
from tests.emulator.host.test_graphs import KERNEL

A, B, N = 16, 32, 48  # two streams that wait for the legacy one, and one that does not
LEGACY, PER_THREAD = 0, 2
# It reads twice what the other stream may still write: one finding.
TWICE = KERNEL.replace("ld.global.u32 %r1, [%d1];", "ld.global.u32 %r1, [%d1];\n  ld.global.u32 %r1, [%d1];")


class Streams:
    """Streams with an allocation of 64 bytes, and their races."""

    def __init__(self) -> None:
        self.memory, self.captures = DeviceMemory(), Captures()
        self.memory.told.append(self.captures.allocated)
        self.captures.nonblocking.add(N)
        self.x = self.memory.allocate(64)
        self.found: list[Any] = []

    def fill(self, stream: int, first: int = 0, size: int = 64) -> None:
        self.does(stream, TouchedBytes(self.x + first, size, True))

    def read(self, stream: int, first: int = 0, size: int = 64) -> None:
        self.does(stream, TouchedBytes(self.x + first, size, False))

    def does(self, stream: int, *touched: TouchedBytes, kind: NodeKind = NodeKind.MEMSET) -> None:
        self.captures.do(stream, GraphWork(kind, label="work", touched=touched))


@pytest.fixture()
def streams() -> Iterator[Streams]:
    made = Streams()
    FOUND.append(made.found)
    with memory_found_by(made.memory.holder):
        yield made
    FOUND.pop()


def stages(s: Streams) -> dict[str, tuple[int, list[Any], int, bool]]:
    """(stream that fills, steps between, stream that reads, whether it is a race)."""
    c = s.captures
    event = lambda stream: lambda: c.record(1, stream)  # noqa: E731
    waits = lambda stream: lambda: c.wait(stream, 1)  # noqa: E731
    return {
        "one stream": (A, [], A, False),
        "two streams": (A, [], B, True),
        "an event": (A, [event(A), waits(B)], B, False),
        "an event of another stream": (A, [event(B), waits(B)], B, True),
        "an event that is recorded, and not waited for": (A, [event(A)], B, True),
        "a wait before the record": (A, [waits(B), event(A)], B, True),
        "an event by way of a third": (
            A, [event(A), waits(N), lambda: c.record(2, N), lambda: c.wait(B, 2)], B, False
        ),
        "the host waits for the stream": (A, [lambda: c.synchronise(A)], B, False),
        "the host waits for another": (A, [lambda: c.synchronise(N)], B, True),
        "the host waits for the device": (A, [lambda: c.synchronise()], B, False),
        "the host waits for an event": (A, [event(A), lambda: c.ask(1)], B, False),
        "the legacy stream, a blocking one behind": (LEGACY, [], A, False),
        "the legacy stream behind a blocking one": (A, [], LEGACY, False),
        "the legacy stream between two": (A, [lambda: s.does(LEGACY)], B, False),
        "the legacy stream by its other handle": (A, [lambda: s.does(1)], B, False),
        "the legacy stream, a non-blocking one behind": (LEGACY, [], N, True),
        "the legacy stream behind a non-blocking one": (N, [], LEGACY, True),
        "the per-thread stream waits for the legacy one": (LEGACY, [], PER_THREAD, False),
        "the per-thread stream is another's": (A, [], PER_THREAD, True),
        "cudaMalloc": (A, [lambda: c.unsafe("cudaMalloc")], B, False),
        "a host function of the stream": (A, [lambda: s.does(A, kind=NodeKind.HOST)], B, False),
        "a copy of pageable memory": (
            A, [lambda: s.does(A, TouchedBytes(8, 4, False), kind=NodeKind.MEMCPY)], B, False
        ),
        "the memory is another's": (A, [lambda: c.allocated(s.x)], B, False),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(stages(Streams())))
def test_what_orders_two_accesses(streams: Streams, name: str) -> None:
    first, between, second, is_race = stages(streams)[name]
    streams.fill(first)
    for step in between:
        step()
    streams.read(second)
    assert len(streams.found) == is_race, streams.found


def test_a_race_names_both_sides_and_their_streams(streams: Streams) -> None:
    streams.fill(LEGACY, 0, 32)
    streams.read(N, 32, 32)  # other bytes
    streams.read(N, 0, 16)
    (found,) = streams.found
    assert found.message == (
        f"work reads 16 bytes at {streams.x:#x}; work writes 32 bytes at {streams.x:#x}, which may still run on the "
        "legacy stream; nothing orders this behind it, on stream 0x30"
    )
    assert "An event that the earlier one's stream records" in found.orders
    streams.fill(LEGACY, 0, 4)  # over what the other stream reads
    assert len(streams.found) == 2


def test_two_reads_are_no_race(streams: Streams) -> None:
    streams.fill(A)
    streams.captures.synchronise()
    for stream in (A, B, N, LEGACY):
        streams.read(stream)
    assert not streams.found


def test_footprints_are_found_by_their_bytes() -> None:
    """Against all that are kept: of every size, replaced and forgotten."""
    rng, kept, every = np.random.default_rng(3), _Footprints(), dict[TouchedBytes, tuple[int, int]]()
    for turn in range(1, 400):
        low, size = int(rng.integers(0, 1 << 14)), int(2 ** rng.uniform(0, 13))
        piece = TouchedBytes(low, size, True)
        kept.keep(turn, piece, Copied(piece, "work", turn))
        every.pop(piece, None)
        every[piece] = turn, kept.number
        if turn == 300:
            kept.forget(40)
            every = {one: its for one, its in every.items() if its[0] > 40}
        if turn % 8 == 0:
            low, behind = int(rng.integers(0, 1 << 14)), turn // 2
            high = low + int(2 ** rng.uniform(0, 15))
            wanted = [its[0] for one, its in every.items() if its[0] > behind and one.address < high
                      and low < one.address + one.size]  # fmt: skip
            found = [
                one for one in kept.near(low, high, behind, kept.number) if one.lows[0] < high and low < one.highs[0]
            ]
            assert [one.time for one in found] == wanted
    assert len(kept) == len(every)


def test_memory_is_forgotten_or_bounded(streams: Streams) -> None:
    order = streams.captures.order
    for _ in range(3):
        for first in range(64):
            streams.fill(A, first, 1)
    assert len(order._kept[A]) == 64  # the same bytes again take no more
    for size in range(1, 65):
        for first in range(65 - size):
            streams.read(A, first, size)
            streams.fill(A, first, size)
    assert len(order._kept[A]) <= MOST
    streams.captures.record(1, A)
    streams.captures.synchronise(A)
    assert not order._kept[A] and not order._last and not order._events


@pytest.mark.parametrize("second", ["reads", "adds"])
def test_kernels_and_graphs_race_with_work_of_other_streams(streams: Streams, second: str) -> None:
    y, count = (np.frombuffer(streams.memory.bytes_at(streams.memory.allocate(128)), np.uint32) for _ in range(2))
    source, other = (np.frombuffer(streams.memory.bytes_at(streams.memory.allocate(128)), np.uint32) for _ in range(2))
    runs: list[Any] = []

    def launch(out: object, x: object) -> GraphWork:
        return GraphWork(
            NodeKind.KERNEL, lambda: runs.append(emulate_ptx(TWICE, block=32, args=[out, x, count])), "copy"
        )

    graph = CudaGraph()
    graph.add(launch(y, source))
    for once in range(2):  # a kernel, and a graph of it, on A; another one on B
        streams.captures.synchronise()
        if once:
            streams.captures.launch(A, ExecutableGraph(graph))
        else:
            streams.captures.do(A, launch(y, source))
        streams.captures.do(B, launch(other, y if second == "reads" else source))
        assert [len(run.findings) for run in runs] == [0, second == "reads"]  # all add to `count`, atomically
        runs.clear()
    streams.captures.launch(N, ExecutableGraph(graph))  # it writes what the last one has read
    assert [len(run.findings) for run in runs] == [1]
    assert "of copy, which may still run on stream 0x" in runs[0].findings[0].message


# ------------------------------------------------------------------------------------------------------------- torch


def torch_findings(script: str) -> list[str]:
    """The findings of a script of torch. It has two streams, `a` and `b`, and 64 floats `x`."""
    torch = needs.module("torch")
    names = {"torch": torch, "cuda": torch.cuda}
    head = "x = torch.ones(64, device='cuda'); cuda.synchronize(); a, b = cuda.Stream(), cuda.Stream()\n"
    with emulated_gpu("sm_90a", progress=False) as gpu:
        exec(compile(head + script, "script.py", "exec"), names)
        return [finding.message for finding in gpu.findings]


HOST = "h = torch.empty(64, pin_memory=True); h.copy_(x, non_blocking=True)\n"
ON_A = "with cuda.stream(a): y = x + 1\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (ON_A + "z = y * 2", "torch's mul (script.py:3) reads 256 bytes"),
        (ON_A + "x.zero_()", "torch's zero_ (script.py:3) writes 256 bytes"),
        (ON_A + "with cuda.stream(b): y.add_(1)", "which may still run on stream 0x"),
        (ON_A + "y.item() if False else y.cpu()", "torch's cpu (script.py:3) reads"),
        (HOST + "h.sum()", "the host reads 256 bytes of pinned memory, by torch's sum (script.py:3); torch's copy_"),
        ("h = x.to('cpu', non_blocking=True)\nh[0].item()", "the host reads 4 bytes of pinned memory"),
        ("h = torch.zeros(64).pin_memory(); x.copy_(h, non_blocking=True)\nh.fill_(2)", "the host writes 256 bytes"),
        ("with cuda.stream(a): x[:32] = 0\nwith cuda.stream(b): x[16:] = 1", "torch's __setitem__ (script.py:3)"),
    ],
)  # fmt: skip
def test_torch_on_streams_that_nothing_orders(script: str, said: str) -> None:
    found = torch_findings(script)
    assert any(said in message for message in found), found


def test_work_before_the_first_stream_counts() -> None:
    torch = needs.module("torch")
    for waits, count in ((False, 1), (True, 0)):
        with emulated_gpu("sm_90a", progress=False) as gpu:
            x = torch.ones(64, device="cuda") * 2
            side = torch.cuda.Stream()
            if waits:
                side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                x.sum()
        assert len(gpu.findings) == count, gpu.findings
        assert gpu.ok == waits


@pytest.mark.parametrize(
    "script",
    [
        ON_A + "cuda.current_stream().wait_stream(a); z = y * 2",
        ON_A + "a.synchronize(); z = y * 2",
        ON_A + "e = a.record_event(); b.wait_event(e)\nwith cuda.stream(b): y.add_(1)",
        ON_A + "e = a.record_event()\nwhile not e.query(): pass\ny.add_(1)",
        "with cuda.stream(a): y = torch.tensor([1.0], device='cuda'); z = torch.ones(3).cuda()\ny + 1; z + 1",
        "with cuda.stream(a): x[:32] = 0\nwith cuda.stream(b): x[32:] = 1",
        "with cuda.stream(a): y = x[::2] + x.view(8, 8)[:, :4].reshape(-1); v = y.view(4, 8)\nv.shape, y[0], v.T",
        "with cuda.stream(a): n = (x + 1).sum().item(); y = x * n; y.cpu()\ny + 1",
        "for n in range(9):\n with cuda.stream(a if n & 1 else b): y = x + n; del y",  # memory of a stream's own
        "w = torch.ones(64, device='cuda', requires_grad=True)\ncuda.synchronize()\n"
        "with cuda.stream(a): y = (w * 2).sum(); y.backward()\ncuda.current_stream().wait_stream(a); w.grad + 1",
        HOST + "cuda.synchronize(); h.sum()",
        HOST + "e = cuda.Event(); e.record(); e.synchronize(); h.tolist()",
        HOST + "h.shape, h[0], h.data_ptr(), h.is_pinned(), torch.empty_like(h)",
        "h = torch.zeros(64).pin_memory(); x.copy_(h, non_blocking=True); h.sum()",
        "h = torch.zeros(64); h.copy_(x, non_blocking=True); h.sum()",  # pageable: the call waits
        "g = cuda.CUDAGraph()\nwith cuda.graph(g): y = x + 1\ng.replay(); y + 1",
    ],
)
def test_torch_on_streams_that_something_orders(script: str) -> None:
    assert torch_findings(script) == []


# ------------------------------------------------------------------------------------------------- programs of C++

PTX = """
.version 8.7
.target sm_90
.address_size 64
.visible .entry add(.param .u64 x, .param .u64 y) {
  .reg .b32 %r<2>; .reg .b64 %d<2>;
  ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; ld.global.u32 %r0, [%d0]; ld.global.u32 %r1, [%d1];
  add.u32 %r1, %r1, %r0; st.global.u32 [%d1], %r1; ret; }
.visible .entry waits(.param .u64 x, .param .u64 y) {
  .reg .b32 %r<2>; .reg .b64 %d<2>;
  ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; griddepcontrol.wait; ld.global.u32 %r0, [%d0];
  st.global.u32 [%d1], %r0; ret; }
"""
PROGRAM = """
#include <stddef.h>
typedef struct { unsigned x, y, z; } dim3;
typedef void *p;
int cudaMalloc(void *, size_t), cudaMallocHost(void *, size_t), cudaFree(void *), cudaMemset(void *, int, size_t);
int cudaMemcpy(void *, const void *, size_t, int), cudaMemcpyAsync(void *, const void *, size_t, int, p);
int cudaMallocAsync(void *, size_t, p), cudaFreeAsync(void *, p), cudaDeviceSynchronize(void);
int cudaLaunchKernelExC(void *, const void *, void **), cudaStreamCreate(p *), cudaStreamCreateWithFlags(p *, unsigned);
int cudaEventCreate(p *), cudaEventRecord(p, p), cudaStreamWaitEvent(p, p, unsigned), cudaStreamSynchronize(p);
int cudaStreamBeginCapture(p, int), cudaStreamEndCapture(p, p *), cudaGraphInstantiate(p *, p, unsigned long long);
int cudaGraphLaunch(p, p);
p *__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(p *, const void *, char *, const char *, int, p, p, p, p, int *);
static unsigned char image[] __attribute__((aligned(8))) = {IMAGE};
static struct { unsigned magic, version; void *data, *more; } wrapper = {0x466243b1, 1, image, 0};
static void add(void) {}
static void waits(void) {}
__attribute__((constructor)) static void begin(void) {
  p *handle = __cudaRegisterFatBinary(&wrapper);
  __cudaRegisterFunction(handle, add, "add", "add", -1, 0, 0, 0, 0, 0);
  __cudaRegisterFunction(handle, waits, "waits", "waits", -1, 0, 0, 0, 0, 0);
}
static unsigned *x, *y, *z, *host;
static p a, b, n, event, graph, run;
static void launch(const void *kernel, int dependent, unsigned *from, unsigned *to, p stream) {
  struct { unsigned id, pad; int value; char rest[60]; } attribute = {6, 0, dependent};
  struct { dim3 grid, block; size_t shared; p stream; void *attributes; unsigned count; } config =
    {{1, 1, 1}, {1, 1, 1}, 0, stream, &attribute, 1};
  void *given[] = {&from, &to};
  cudaLaunchKernelExC(&config, kernel, given);
}
int main(int argc, char **argv) {
  cudaMalloc(&x, 4); cudaMalloc(&y, 4); cudaMalloc(&z, 4); cudaMallocHost(&host, 4);
  cudaStreamCreate(&a); cudaStreamCreate(&b); cudaStreamCreateWithFlags(&n, 1); cudaEventCreate(&event);
  for (char *at = argv[1]; *at; at++) switch (*at) {
    case 'a': launch(add, 0, x, y, a); break;
    case 'b': launch(add, 0, y, z, b); break;
    case 'n': launch(add, 0, y, z, n); break;
    case 'd': launch(add, 1, y, z, a); break;
    case 'w': launch(waits, 1, y, z, a); break;
    case 'l': launch(add, 0, x, y, 0); break;
    case 'f': cudaMemset(y, 0, 4); break;
    case 'h': cudaMemcpyAsync(host, y, 4, 2, b); break;
    case 'p': { unsigned word; cudaMemcpyAsync(&word, y, 4, 2, a); break; }
    case 'c': cudaMemcpy(y, x, 4, 3); break;
    case 'C': cudaMemcpy(host, y, 4, 2); break;
    case 'e': cudaEventRecord(event, a); cudaStreamWaitEvent(b, event, 0); break;
    case 's': cudaStreamSynchronize(a); break;
    case 'm': cudaMallocAsync(&y, 4, a); break;
    case 'F': cudaFreeAsync(y, a); break;
    case '[': cudaStreamBeginCapture(a, 0); break;
    case ']': cudaStreamEndCapture(a, &graph); cudaGraphInstantiate(&run, graph, 0); break;
    case 'g': cudaGraphLaunch(run, a); break;
  }
  return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("streams"), "streams", PROGRAM, PTX)


STREAMS, DEPENDENT = "which may still run on", "the launch is dependent (PDL) and may begin before that one has ended"


@needs.C_COMPILER
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("ab", STREAMS), ("ln", STREAMS), ("fn", STREAMS), ("cn", STREAMS), ("ah", STREAMS), ("mb", STREAMS),
        ("ba", STREAMS), ("bF", "cudaFreeAsync takes back 4 bytes"), ("[a]gb", STREAMS), ("b[a]g", STREAMS),
        ("ad", DEPENDENT), ("[ad]g", DEPENDENT), ("aeb", ""), ("asb", ""), ("alb", ""), ("lb", ""), ("al", ""),
        ("apb", ""), ("aCn", ""), ("maF", ""), ("msb", ""), ("aw", ""), ("asd", ""), ("afd", ""), ("[aw]g", ""),
        ("[a]geb", ""),
        ("dd", DEPENDENT), ("abbbasaeh", STREAMS),
    ],
)  # fmt: skip
def test_a_program_on_streams(library: Path, capfd: pytest.CaptureFixture[str], word: str, said: str) -> None:
    assert main(["emulate", str(library), word]) == bool(said), capfd.readouterr()
    out = capfd.readouterr().out
    assert said in out if said else "nothing found" in out
