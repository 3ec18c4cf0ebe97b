"""Resident clusters from the driver: chips of one name have different SMs switched off.

The driver answers for a kernel, here for one that does nothing, of blocks so large that a multiprocessor holds one. A
GPU that does not answer is taken to have an H200's share of its multiprocessors (`kernels.sm90.choose.occupancy`).
"""

from __future__ import annotations

import functools
from typing import Any

from ..compile.launcher import allowed_in_capture, bind
from ..sm90.choose.occupancy import SIZES, ClusterOccupancy

BLOCK_BYTES, THREADS = 200 << 10, 128  # of shared memory: more than half of a multiprocessor's
_NOTHING = b".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry nothing()\n{\n    ret;\n}\n\0"


def resident(index: int, blocks: int) -> int:
    """Clusters of `blocks` CTAs that run at a time on a GPU, 1 at least. The size of a persistent launch.

    index  the driver's number of the GPU, which is torch's

    Raises ValueError for more blocks than the largest of `kernels.sm90.choose.occupancy.SIZES`.
    """
    return of_device(index).resident(blocks)


@functools.cache
def of_device(index: int) -> ClusterOccupancy:
    """The places of one of torch's GPUs: from compute capability 9.0 on its driver is asked."""
    import torch

    found = torch.cuda.get_device_properties(index)
    processors = int(found.multi_processor_count)
    return cluster_occupancy(index, processors) if found.major >= 9 else ClusterOccupancy(processors)


@functools.cache
def cluster_occupancy(index: int, multiprocessors: int) -> ClusterOccupancy:
    """The resident clusters of a GPU from compute capability 9.0 on. It makes a context if the thread has none.

    index  the driver's number of the GPU, which is torch's
    """
    try:
        return ClusterOccupancy(multiprocessors, asked(index), memory_rate(index))
    except (ImportError, RuntimeError):  # no bindings, or a driver that does not say
        return ClusterOccupancy(multiprocessors)


def memory_rate(index: int) -> float:
    """TB/s of a GPU's DRAM by its clock and the width of its bus. An H200's where the driver does not say."""
    try:
        from cuda.bindings import driver

        names, device = driver.CUdevice_attribute, got(driver.cuDeviceGet(index))
        wanted = names.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, names.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH
        kilohertz, bits = [int(got(driver.cuDeviceGetAttribute(name, device))) for name in wanted]
    except (ImportError, RuntimeError):
        return ClusterOccupancy.memory
    return rate_of(kilohertz, bits) or ClusterOccupancy.memory


def rate_of(kilohertz: int, bits: int) -> float:
    """TB/s of memory with two bits a clock on each line, to the tenth.

    >>> rate_of(3_201_000, 6144), rate_of(2_619_000, 5120)
    (4.9, 3.4)
    """
    return round(2 * kilohertz * bits / 8 / 1e9, 1)


def asked(index: int) -> tuple[int, ...]:
    """Resident clusters of each size in `SIZES`, from cuOccupancyMaxActiveClusters.

    Raises RuntimeError where the driver refuses, ImportError without CUDA's bindings.
    """
    from cuda.bindings import driver

    bind(index)
    _, current = driver.cuCtxGetCurrent()
    own = got(driver.cuDevicePrimaryCtxRetain(got(driver.cuDeviceGet(index))))
    got(driver.cuCtxSetCurrent(own))
    try:
        with allowed_in_capture():
            module = got(driver.cuModuleLoadData(_NOTHING))
            try:
                function = got(driver.cuModuleGetFunction(module, b"nothing"))
                attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                got(driver.cuFuncSetAttribute(function, attribute, BLOCK_BYTES))
                launches = [launch_of(driver, blocks, 1) for blocks in SIZES]
                return tuple([int(got(driver.cuOccupancyMaxActiveClusters(function, launch))) for launch in launches])
            finally:
                driver.cuModuleUnload(module)
    finally:
        driver.cuCtxSetCurrent(current)
        driver.cuDevicePrimaryCtxRelease(driver.cuDeviceGet(index)[1])


def launch_of(driver: Any, blocks: int, clusters: int) -> Any:
    """A launch of `clusters` clusters of `blocks` CTAs with much shared memory."""
    shape = driver.CUlaunchAttributeValue()
    shape.clusterDim.x, shape.clusterDim.y, shape.clusterDim.z = blocks, 1, 1
    cluster = driver.CUlaunchAttribute()
    cluster.id, cluster.value = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, shape
    launch = driver.CUlaunchConfig()
    launch.gridDimX, launch.gridDimY, launch.gridDimZ = blocks * clusters, 1, 1
    launch.blockDimX, launch.blockDimY, launch.blockDimZ = THREADS, 1, 1
    launch.sharedMemBytes, launch.attrs, launch.numAttrs = BLOCK_BYTES, [cluster], 1
    return launch


def got(answer: tuple[Any, ...]) -> Any:
    """The driver's result; raises RuntimeError for its error."""
    error, *found = answer
    if int(error):
        raise RuntimeError(f"the CUDA driver refused: {error.name}")
    return found[0] if found else None
