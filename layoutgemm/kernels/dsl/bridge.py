"""From plan objects to the CuTe DSL: the one place that knows how the DSL spells an instruction.

A kernel of this package decides nothing about layouts, boxes, swizzles or descriptor bits. A plan holds them as plain
Python values, and the functions here hand them to the DSL, which emits the instruction. Every call of the DSL's
experimental modules is in the bridge's files, so that a new DSL version is met here and in the kernels' control flow
only:

    types              element types, pointers, values carried through traced loops
    copies             tensor maps, tensor loads and stores, multicast, bulk copies
    sync               mbarriers, block, named and cluster barriers, fences, register counts, launch order
    wgmma              descriptors, accumulators, wgmma
    registers          conversions, stmatrix, stores
    tcgen05            Blackwell's tensor memory and products; kernels import it by itself

and this one has the block's shared memory, and all of the above under one name. Everything here runs while a kernel is
traced, with traced values (`Int32`, `Int64`) as arguments.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from .copies import (
    SelectedTensorMap,
    cluster_mask,
    commit_stores,
    encode_tensor_map,
    gather_tile,
    load_bytes,
    load_share,
    load_tile,
    prefetch_bytes,
    prefetch_map,
    prefetch_share,
    scatter_tile,
    send_tile,
    store_tile,
    wait_stores_read,
)
from .registers import (
    as_floats,
    convert_pair,
    floats_of,
    from_floats,
    join,
    join_pairs,
    load_shared,
    number,
    remote,
    send,
    split_pair,
    store_element,
    store_matrices,
    store_neighbours,
    store_pair,
    store_remote,
    store_shared,
)
from .sync import (
    allow_next_kernel,
    barrier_arrive,
    barrier_arrive_at,
    barrier_arrive_copied,
    barrier_done,
    barrier_expect,
    barrier_expect_more,
    barrier_init,
    barrier_wait,
    barriers_visible,
    block_sync,
    cluster_arrive,
    cluster_wait,
    elect,
    give_registers,
    init_barriers,
    named_arrive,
    named_sync,
    next_in_ring,
    rank_in_cluster,
    shared_writes_visible,
    take_registers,
    uniform,
    uniform_address,
    wait_for_previous_kernel,
    warp_sync,
)
from .types import Carried, Maps, Place, Stream, TensorMap, element_type, unrolled
from .warp import (
    commit_copies,
    copy_async,
    copy_tile,
    keep_elements,
    load_matrices,
    load_vector,
    multiply_warp,
    wait_copies,
)
from .wgmma import Wgmma, WgmmaOperand, matrix_descriptor


class SharedExtent(Protocol):
    """The size and the alignment of a block's shared memory, which every plan's map has."""

    @property
    def total(self) -> int:
        """Bytes."""

    @property
    def alignment(self) -> int:
        """Bytes that its first address is a multiple of."""


class SharedMemory:
    """The block's dynamic shared memory, laid out as the plan's SmemMap says.

    `stage` may be a Python int or traced. Offsets and strides are those of the map; nothing is added here.
    """

    def __init__(self, smem: SharedExtent):
        self.smem: Any = smem  # of each architecture its own kind
        # allocate() raises the launch's dynamic shared memory to what is asked; the symbol carries the alignment
        self.base = cutlass.memory.SmemAllocator().allocate(smem.total, smem.alignment)

    # The DSL carries an object into a traced `if` or loop as its run-time values, and rebuilds it from them inside.
    def __extract_mlir_values__(self) -> list[object]:
        return cutlass.extract_mlir_values(self.base)

    def __new_from_mlir_values__(self, values: list[object]) -> SharedMemory:
        twin = copy.copy(self)
        twin.base = cutlass.new_from_mlir_values(self.base, values)
        return twin

    def a(self, stage: Int32 | int) -> cute.Pointer:
        """First byte of A's tile in a stage."""
        return self.base + (self.smem.a_offset + stage * self.smem.a_stage_bytes)

    def b(self, stage: Int32 | int) -> cute.Pointer:
        """First byte of B's tile in a stage."""
        return self.base + (self.smem.b_offset + stage * self.smem.b_stage_bytes)

    def c(self, buffer: Int32 | int) -> cute.Pointer:
        """First byte of an epilogue buffer."""
        return self.base + (self.smem.c_offset + buffer * self.smem.c_buffer_bytes)

    def full(self, stage: Int32 | int) -> cute.Pointer:
        """The mbarrier that says that a stage has landed."""
        return self.base + (self.smem.barrier_offset + stage * self.smem.barrier_bytes)

    def empty(self, stage: Int32 | int) -> cute.Pointer:
        """The mbarrier that says that a stage may be written again."""
        return self.base + (self.smem.empty_offset + stage * self.smem.barrier_bytes)

    def numbers(self, stage: Int32 | int) -> cute.Pointer:
        """First byte of a stage's numbers."""
        return self.base + (self.smem.numbers_offset + stage * self.smem.numbers_bytes)

    def sums(self) -> cute.Pointer:
        """The mbarrier that counts the partial sums that other blocks send."""
        return self.base + self.smem.sums_offset


__all__ = [
    "Carried",
    "Maps",
    "Place",
    "SelectedTensorMap",
    "SharedMemory",
    "Stream",
    "TensorMap",
    "Wgmma",
    "WgmmaOperand",
    "allow_next_kernel",
    "as_floats",
    "barrier_arrive",
    "barrier_arrive_at",
    "barrier_arrive_copied",
    "barrier_done",
    "barrier_expect",
    "barrier_expect_more",
    "barrier_init",
    "barrier_wait",
    "barriers_visible",
    "block_sync",
    "cluster_arrive",
    "cluster_mask",
    "cluster_wait",
    "commit_copies",
    "commit_stores",
    "convert_pair",
    "copy_async",
    "copy_tile",
    "elect",
    "element_type",
    "encode_tensor_map",
    "floats_of",
    "from_floats",
    "gather_tile",
    "give_registers",
    "init_barriers",
    "join",
    "join_pairs",
    "keep_elements",
    "load_bytes",
    "load_matrices",
    "load_share",
    "load_shared",
    "load_tile",
    "load_vector",
    "matrix_descriptor",
    "multiply_warp",
    "named_arrive",
    "named_sync",
    "next_in_ring",
    "number",
    "prefetch_bytes",
    "prefetch_map",
    "prefetch_share",
    "rank_in_cluster",
    "remote",
    "scatter_tile",
    "send",
    "send_tile",
    "shared_writes_visible",
    "split_pair",
    "store_element",
    "store_matrices",
    "store_neighbours",
    "store_pair",
    "store_remote",
    "store_shared",
    "store_tile",
    "take_registers",
    "uniform",
    "uniform_address",
    "unrolled",
    "wait_copies",
    "wait_for_previous_kernel",
    "wait_stores_read",
    "warp_sync",
]
