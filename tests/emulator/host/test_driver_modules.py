"""Modules of PTX, launch attributes and CUDA graphs of cuda.bindings on an emulated GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm.emulator.api import emulated_gpu
from layoutgemm.errors import EmulatorError
from tests import needs

driver = needs.module("cuda.bindings.driver")
runtime = needs.module("cuda.bindings.runtime")

# Each thread adds `n` and its cluster's size to its word; `count` counts the launches.
MODULE = b"""
.version 8.7
.target sm_90a
.visible .global .align 4 .u32 count = 5;
.visible .entry add(.param .u64 out, .param .u32 n, .param .b8 flag) {
  .reg .b32 %r<6>; .reg .b64 %d<3>; .reg .pred %p;
  ld.param.u64 %d0, [out]; ld.param.u32 %r0, [n]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;
  mad.lo.u32 %r1, %r2, %r3, %r1; mul.wide.u32 %d1, %r1, 4; add.u64 %d0, %d0, %d1; ld.global.u32 %r4, [%d0];
  mov.u32 %r5, %cluster_nctaid.x; add.u32 %r4, %r4, %r0; add.u32 %r4, %r4, %r5; st.global.u32 [%d0], %r4;
  setp.eq.u32 %p, %r1, 0; @%p ld.global.u32 %r0, [count]; add.u32 %r0, %r0, 1; @%p st.global.u32 [count], %r0; ret; }
"""
THREADS, BLOCKS = 32, 4


def ok(found: tuple[Any, ...]) -> Any:
    assert int(found[0]) == 0, found
    return found[1] if len(found) == 2 else found[1:]


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    with emulated_gpu("sm_90a", progress=False) as made:
        yield made


@pytest.fixture()
def gpu(device: Any) -> Any:
    device.runs.clear()
    return device


class Case:
    """A loaded module, its kernel, and 128 words on the GPU."""

    def __init__(self) -> None:
        self.module = ok(driver.cuModuleLoadData(MODULE + b"\0"))
        self.kernel = ok(driver.cuModuleGetFunction(self.module, b"add"))
        self.words = ok(driver.cuMemAlloc(4 * THREADS * BLOCKS))
        self.given = ((self.words, 7, 1), (None, ctypes.c_uint32, ctypes.c_uint8))

    def launch(self, stream: object = 0, given: object = None, blocks: int = BLOCKS) -> tuple[Any, ...]:
        sizes = (blocks, 1, 1, THREADS, 1, 1)
        return driver.cuLaunchKernel(self.kernel, *sizes, 0, stream, self.given if given is None else given, 0)

    def extended(self, *attributes: tuple[str, str, object], blocks: int = BLOCKS) -> tuple[Any, ...]:
        config = driver.CUlaunchConfig()
        config.gridDimX, config.blockDimX = blocks, THREADS
        config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        made = []
        for name, field, value in attributes:
            one = driver.CUlaunchAttribute()
            one.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
            if field == "clusterDim":
                one.value.clusterDim.x, one.value.clusterDim.y, one.value.clusterDim.z = value
            elif field:
                setattr(one.value, field, value)
            made.append(one)
        config.attrs, config.numAttrs = made, len(made)
        return driver.cuLaunchKernelEx(config, self.kernel, self.given, 0)

    def result(self) -> list[int]:
        out = np.zeros(THREADS * BLOCKS, np.uint32)
        ok(driver.cuMemcpyDtoH(out.ctypes.data, self.words, out.nbytes))
        return sorted(set(out.tolist()))

    def count(self) -> int:
        address, size = ok(driver.cuModuleGetGlobal(self.module, b"count"))
        out = np.zeros(1, np.uint32)
        ok(driver.cuMemcpyDtoH(out.ctypes.data, address, size))
        return int(out[0])


def test_a_module_of_ptx_launches_and_its_variables_stay(gpu: Any) -> None:
    case = Case()
    ok(case.launch())
    assert (case.result(), case.count()) == ([8], 6)
    words = [np.array([int(case.words)], np.uint64), np.array([3], np.uint32), np.array([1], np.uint8)]
    pointers = np.array([one.ctypes.data for one in words], np.uint64)
    for given in (pointers, pointers.ctypes.data):
        ok(case.launch(given=given))
    assert (case.result(), case.count()) == ([16], 8)
    assert Case().count() == 5 and len(gpu.runs) == 3 and gpu.ok
    kept = np.frombuffer(MODULE + b"\0", np.uint8)
    for image in (np.char.array(MODULE), kept.ctypes.data):
        ok(driver.cuModuleLoadData(image))


def test_attributes_of_a_launch(gpu: Any) -> None:
    case = Case()
    ok(case.extended(("CLUSTER_DIMENSION", "clusterDim", (2, 1, 1)), ("COOPERATIVE", "cooperative", 1)))
    assert case.result() == [9]  # clusters of 2
    ok(case.extended(("PROGRAMMATIC_STREAM_SERIALIZATION", "programmaticStreamSerializationAllowed", 1)))
    ok(case.extended(("PRIORITY", "priority", 1)))
    assert case.result() == [25]
    large = case.extended(("COOPERATIVE", "cooperative", 1), blocks=10_000)
    assert large[0] == driver.CUresult.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    sizes = (10_000, 1, 1, THREADS, 1, 1)
    assert driver.cuLaunchCooperativeKernel(case.kernel, *sizes, 0, 0, case.given) == large
    with pytest.raises(EmulatorError, match="CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT is not emulated"):
        case.extended(("LAUNCH_COMPLETION_EVENT", "", None))
    assert case.result() == [25]


@pytest.mark.parametrize("binding", ["driver", "runtime"])
def test_a_graph_of_a_captured_stream(gpu: Any, binding: str) -> None:
    case = Case()
    cuda, prefix = (driver, "cu") if binding == "driver" else (runtime, "cuda")
    call = lambda name, *args: ok(getattr(cuda, prefix + name)(*args))  # noqa: E731
    stream = call("StreamCreate", 0) if binding == "driver" else call("StreamCreate")
    modes = cuda.CUstreamCaptureMode if binding == "driver" else cuda.cudaStreamCaptureMode
    call("StreamBeginCapture", stream, next(iter(modes)))
    ok(case.launch(stream=int(stream)))
    fill = driver.cuMemsetD8Async if binding == "driver" else runtime.cudaMemsetAsync
    ok(fill(int(case.words), 0, 4 * THREADS * BLOCKS, stream))  # captured too
    ok(case.launch(stream=int(stream)))
    ok(case.launch(stream=int(stream)))
    assert int(call("StreamIsCapturing", stream)) == 1
    graph = call("StreamEndCapture", stream)
    assert int(call("StreamIsCapturing", stream)) == 0 and case.result() == [0]
    assert call("GraphGetNodes", graph, 0)[1] == 4
    runs = [call("GraphInstantiate", one, 0) for one in (graph, call("GraphClone", graph))]
    for one in (*runs, runs[0]):
        call("GraphLaunch", one, stream)
    call("GraphExecDestroy", runs[0])
    assert case.result() == [16] and len(gpu.runs) == 9


def test_an_explicit_graph_and_changes_of_its_nodes(gpu: Any, tmp_path: Path) -> None:
    case = Case()
    graph, end = ok(driver.cuGraphCreate(0)), 4 * THREADS * BLOCKS
    fill = driver.CUDA_MEMSET_NODE_PARAMS()
    fill.dst, fill.value, fill.elementSize, fill.width, fill.height = case.words, 4, 4, end // 4, 1
    launch = driver.CUDA_KERNEL_NODE_PARAMS()
    launch.func, launch.kernelParams = case.kernel, case.given
    launch.gridDimX, launch.blockDimX = BLOCKS, THREADS
    launch.gridDimY = launch.gridDimZ = launch.blockDimY = launch.blockDimZ = 1
    second = ok(driver.cuGraphAddKernelNode(graph, None, 0, launch))
    first = ok(driver.cuGraphAddMemsetNode(graph, None, 0, fill, driver.CUcontext(0)))
    ok(driver.cuGraphAddDependencies(graph, [first], [second], None, 1))
    run = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphLaunch(run, 0))
    assert case.result() == [12]  # 4, 7 and a cluster of 1
    launch.kernelParams = ((case.words, 20, 1), case.given[1])
    ok(driver.cuGraphExecKernelNodeSetParams(run, second, launch))
    ok(driver.cuGraphLaunch(run, 0))
    assert case.result() == [25]
    ok(driver.cuGraphExecUpdate(run, graph))
    ok(driver.cuGraphLaunch(run, 0))
    assert case.result() == [12] and ok(driver.cuGraphGetNodes(graph, 0)) == ([], 2)
    assert ok(driver.cuGraphNodeGetType(first)) == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
    pairs = ok(driver.cuGraphGetEdges(graph, 1))
    assert [int(x) for x in (*pairs[0], *pairs[1])] == [int(first), int(second)]
    ok(driver.cuGraphDebugDotPrint(graph, str(tmp_path / "graph.dot").encode(), 0))
    assert "KERNEL\\nadd" in (tmp_path / "graph.dot").read_text()
    assert gpu.ok
    results, other = driver.CUresult, ok(driver.cuGraphCreate(0))
    ok(driver.cuGraphAddEmptyNode(other, None, 0))
    assert driver.cuGraphExecUpdate(run, other)[0] == results.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
    assert driver.cuGraphAddEmptyNode(other, [first], 1) == (results.CUDA_ERROR_INVALID_VALUE, None)
    assert driver.cuGraphLaunch(driver.CUgraphExec(int(graph)), 0) == (results.CUDA_ERROR_INVALID_VALUE,)
    ok(driver.cuGraphExecDestroy(run))
    assert driver.cuGraphLaunch(run, 0) == (results.CUDA_ERROR_INVALID_VALUE,)


def test_a_capture_gives_cudas_errors(gpu: Any) -> None:
    case, results = Case(), driver.CUresult
    plain, apart = (ok(driver.cuStreamCreate(flags)) for flags in (0, 1))
    event, mode = ok(driver.cuEventCreate(0)), driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    assert driver.cuStreamEndCapture(plain) == (results.CUDA_ERROR_ILLEGAL_STATE, None)
    for stream, call, status in (
        (plain, lambda: case.launch(stream=0), results.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
        (plain, lambda: driver.cuMemcpyDtoD(case.words, case.words, 4), results.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
        (apart, lambda: driver.cuStreamSynchronize(apart), results.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        (apart, lambda: driver.cuMemAlloc(4), results.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        (apart, lambda: driver.cuEventQuery(event), results.CUDA_ERROR_CAPTURED_EVENT),
        (apart, lambda: driver.cuStreamWaitEvent(plain, event, 0) + case.launch(stream=int(plain)), None),
    ):
        ok(driver.cuStreamBeginCapture(stream, mode))
        ok(driver.cuEventRecord(event, stream))
        found = call()
        ended = driver.cuStreamEndCapture(stream)
        if status is None:
            assert ended == (results.CUDA_ERROR_STREAM_CAPTURE_UNJOINED, None)
        else:
            assert found[0] == status and ended == (results.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, None)
    ok(driver.cuStreamBeginCapture(apart, mode))
    ok(case.launch(stream=0))  # at once: the stream that captures does not wait for the legacy stream
    made = ok(driver.cuMemAllocAsync(4, apart))
    ok(driver.cuMemFreeAsync(made, apart))
    assert ok(driver.cuGraphGetNodes(ok(driver.cuStreamEndCapture(apart)), 0))[1] == 2
    assert case.result() == [8]


def test_what_cannot_be_launched_is_refused_by_name(gpu: Any) -> None:
    case = Case()
    for call, says in (
        (lambda: driver.cuModuleLoadData(b"\x7fELF..."), "holds machine code, and the emulator runs PTX"),
        (lambda: case.launch(given=((case.words, 7), (None, ctypes.c_uint32))), "add takes 3 parameters; 2 values"),
        (lambda: case.launch(given=((case.words, 7, 1), (None, ctypes.c_uint8, None))), "n has 4 bytes, and 1 were"),
        (lambda: driver.cuGraphAddMemAllocNode(0, 0, 0, 0), "driver.cuGraphAddMemAllocNode has no answer"),
        (lambda: driver.cuModuleGetFunction(driver.CUmodule(1), b"add"), "is no handle of a PtxModule here"),
    ):
        with pytest.raises(EmulatorError, match=says):
            call()
    assert int(driver.cuModuleGetFunction(case.module, b"sub")[0]) == driver.CUresult.CUDA_ERROR_NOT_FOUND
    assert case.launch(blocks=0)[0] == driver.CUresult.CUDA_ERROR_INVALID_VALUE
    assert case.result() == [0] and not gpu.runs
