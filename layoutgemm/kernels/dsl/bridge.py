"""From plan objects to the CuTe DSL. The one place that knows how the DSL spells an instruction.

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

from typing import Any, Protocol

import cutlass
import cutlass.cute as cute
from cutlass import Int32

# `name as name` says that kernels take the name from here.
from .copies import SelectedTensorMap as SelectedTensorMap
from .copies import cluster_mask as cluster_mask
from .copies import commit_stores as commit_stores
from .copies import encode_tensor_map as encode_tensor_map
from .copies import gather_tile as gather_tile
from .copies import load_bytes as load_bytes
from .copies import load_share as load_share
from .copies import load_tile as load_tile
from .copies import prefetch_bytes as prefetch_bytes
from .copies import prefetch_map as prefetch_map
from .copies import prefetch_share as prefetch_share
from .copies import scatter_tile as scatter_tile
from .copies import send_tile as send_tile
from .copies import store_tile as store_tile
from .copies import wait_stores_read as wait_stores_read
from .registers import as_floats as as_floats
from .registers import convert_pair as convert_pair
from .registers import floats_of as floats_of
from .registers import from_floats as from_floats
from .registers import join as join
from .registers import join_pairs as join_pairs
from .registers import load_shared as load_shared
from .registers import number as number
from .registers import remote as remote
from .registers import send as send
from .registers import split_pair as split_pair
from .registers import store_element as store_element
from .registers import store_matrices as store_matrices
from .registers import store_neighbours as store_neighbours
from .registers import store_pair as store_pair
from .registers import store_remote as store_remote
from .registers import store_shared as store_shared
from .sync import allow_next_kernel as allow_next_kernel
from .sync import barrier_arrive as barrier_arrive
from .sync import barrier_arrive_at as barrier_arrive_at
from .sync import barrier_arrive_copied as barrier_arrive_copied
from .sync import barrier_done as barrier_done
from .sync import barrier_expect as barrier_expect
from .sync import barrier_expect_more as barrier_expect_more
from .sync import barrier_init as barrier_init
from .sync import barrier_wait as barrier_wait
from .sync import barriers_visible as barriers_visible
from .sync import block_sync as block_sync
from .sync import cluster_arrive as cluster_arrive
from .sync import cluster_wait as cluster_wait
from .sync import elect as elect
from .sync import give_registers as give_registers
from .sync import init_barriers as init_barriers
from .sync import lane_address as lane_address
from .sync import named_arrive as named_arrive
from .sync import named_sync as named_sync
from .sync import next_in_ring as next_in_ring
from .sync import rank_in_cluster as rank_in_cluster
from .sync import shared_writes_visible as shared_writes_visible
from .sync import take_registers as take_registers
from .sync import uniform as uniform
from .sync import uniform_address as uniform_address
from .sync import wait_for_previous_kernel as wait_for_previous_kernel
from .sync import warp_sync as warp_sync
from .types import Carried as Carried
from .types import Maps as Maps
from .types import Place as Place
from .types import Rebuilt as Rebuilt
from .types import Stream as Stream
from .types import TensorMap as TensorMap
from .types import element_type as element_type
from .types import unrolled as unrolled
from .warp import commit_copies as commit_copies
from .warp import copy_async as copy_async
from .warp import copy_tile as copy_tile
from .warp import keep_elements as keep_elements
from .warp import load_matrices as load_matrices
from .warp import load_vector as load_vector
from .warp import multiply_warp as multiply_warp
from .warp import multiply_warp_scaled as multiply_warp_scaled
from .warp import wait_copies as wait_copies
from .wgmma import Wgmma as Wgmma
from .wgmma import WgmmaOperand as WgmmaOperand
from .wgmma import matrix_descriptor as matrix_descriptor


class SharedExtent(Protocol):
    """The size and the alignment of a block's shared memory, which every plan's map has."""

    @property
    def total(self) -> int:
        """Bytes."""

    @property
    def alignment(self) -> int:
        """Bytes that its first address is a multiple of."""


class SharedMemory(Rebuilt):
    """The block's dynamic shared memory, laid out as the plan's SmemMap says.

    `stage` may be a Python int or traced. Offsets and strides are those of the map; nothing is added here.
    """

    held = ("base",)

    def __init__(self, smem: SharedExtent):
        self.smem: Any = smem  # of each architecture its own kind
        # allocate() raises the launch's dynamic shared memory to what is asked; the symbol carries the alignment
        self.base = cutlass.memory.SmemAllocator().allocate(smem.total, smem.alignment)

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
