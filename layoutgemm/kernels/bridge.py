"""From plan objects to the CuTe DSL: the one place that knows how the DSL spells an instruction.

A kernel of this package decides nothing about layouts, boxes, swizzles or descriptor bits: a plan holds them as plain
Python values, and the functions here hand those values to the DSL, which emits the instruction. Every call of the DSL's
experimental modules is in this file, so that a new DSL version is met here and in the kernels' control flow only.

    plan object                       function here               instruction
    ------------------------------    -----------------------     ------------------------------------------------
    TmaPlan.box, .dims, .swizzle      encode_tensor_map           cuTensorMapEncodeTiled, on the host, at each launch
    TmaPlan.instructions              load_tile                   cp.async.bulk.tensor.2d (one for each entry)
    OperandDescriptor.word, .k_steps  matrix_descriptor, Wgmma    the two 64-bit operands of wgmma.mma_async
    MmaAtom.shape_mnk, types          Wgmma                       wgmma.mma_async.m64nNk16.f32.{bf16,f16}.*
    OperandPlan.major                 Wgmma                       wgmma's imm-trans-a, imm-trans-b
    SmemMap                           SharedMemory                addresses below one dynamic shared allocation

Everything here runs while a kernel is traced, with traced values (`Int32`, `Int64`) as arguments. Sources: PTX ISA,
"Asynchronous warpgroup level matrix instructions", "cp.async.bulk.tensor", "mbarrier"; CUDA driver API,
cuTensorMapEncodeTiled.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as xcuda
from cutlass import BFloat16, Float16, Float32, Int64
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05, warpgroup
from cutlass.experimental import primitives

from layoutgemm.atoms.descriptor import ADDRESS_MASK, SM90_FIELDS
from layoutgemm.atoms.tma import STRIDE_UNIT
from layoutgemm.errors import PlanError

TensorMap: Any = xcuda.TensorMap
"""Type of a kernel parameter that holds a tensor map, inside `cutlass.GridConstant[...]`."""

Stream: Any = driver.CUstream
"""Type of a host function's stream parameter."""

_ELEMENT_TYPES = {"bf16": BFloat16, "f16": Float16, "f32": Float32}

_MAJOR_MODES = {"K": OperandMajorMode.K, "MN": OperandMajorMode.MN}

# The descriptor's address field: its unit, and by ADDRESS_MASK its width. A shared-memory address inside a cluster
# carries the rank of its block from bit 24 on; everything above the field must go, or it lands in the leading offset.
_ADDRESS_UNIT = 1 << SM90_FIELDS[0].shift


def element_type(dtype: Any) -> Any:
    """The DSL's type for one of our element types: DType -> cutlass.Numeric subclass.

    Raises PlanError for a type that no kernel of this package loads, multiplies or stores.
    """
    try:
        return _ELEMENT_TYPES[dtype.name]
    except KeyError:
        known = ", ".join(_ELEMENT_TYPES)
        raise PlanError(f"the bridge has no DSL type for {dtype.name}; it knows {known}") from None


# ---------------------------------------------------------------------------------------------------------------- TMA


def encode_tensor_map(tma: Any, address: Int64, extents: Mapping[str, Any], leading: Int64) -> Any:
    """Encode the tensor map of one operand, on the host: TmaPlan x run-time matrix -> tensor map.

    `address` is the matrix's first byte, `extents` maps the dimension names of `tma.dims` to run-time sizes in
    elements, `leading` is the run-time distance between consecutive lines, in elements. Box and swizzle mode come from
    `tma`. Reads beyond `extents` return zeros, which makes ragged edges right: a zero adds nothing to a dot product.
    """
    return xcuda.create_tensor_map_tiled(
        address,
        element_type(tma.dtype),
        [extents[name] for name in tma.dims],
        [Int64(leading) * tma.dtype.bytes // STRIDE_UNIT],
        list(tma.box),
        swizzle=xcuda.TensorMapSwizzle(tma.driver_swizzle),
        l2_promotion=xcuda.TensorMapL2Promotion.l2_128b,
        oob_fill=xcuda.TensorMapFloatOOBFill.none,
    )


def load_tile(tensor_map: Any, tma: Any, origin: Mapping[str, Any], destination: Any, barrier: Any) -> None:
    """Issue every TMA load of one operand tile: global box -> shared memory, bytes counted on `barrier`.

    `origin` maps the dimension names of `tma.dims` to the tile's first coordinate, in elements; `destination` is the
    stage's first byte. Call it from one thread. Each entry of `tma.instructions` adds its coordinate and byte offsets.
    """
    for instruction in tma.instructions:
        coordinates = [origin[name] + step for name, step in zip(tma.dims, instruction.coord_offset, strict=True)]
        primitives.cp_async_bulk_tensor_shared_cta_global(
            _raw(destination + instruction.smem_offset), tensor_map.get_ptr(), coordinates, _raw(barrier)
        )


def _raw(pointer: Any) -> Any:
    """A cute.Pointer as the pointer type that the primitives take."""
    return cutlass.Pointer._from_raw_ptr(pointer.llvm_ptr)


# ------------------------------------------------------------------------------------------- shared memory and barriers


class SharedMemory:
    """The block's dynamic shared memory, laid out as the plan's SmemMap says.

    `stage` may be a Python int or traced. Offsets and strides are those of the map; nothing is added here.
    """

    def __init__(self, smem: Any):
        self.smem = smem
        # allocate() raises the launch's dynamic shared memory to what is asked; the symbol carries the alignment
        self.base = cutlass.memory.SmemAllocator().allocate(smem.total, smem.alignment)

    # The DSL carries an object into a traced `if` or loop as its run-time values, and rebuilds it from them inside.
    def __extract_mlir_values__(self) -> list[Any]:
        return cutlass.extract_mlir_values(self.base)

    def __new_from_mlir_values__(self, values: list[Any]) -> SharedMemory:
        twin = copy.copy(self)
        twin.base = cutlass.new_from_mlir_values(self.base, values)
        return twin

    def a(self, stage: Any) -> Any:
        """First byte of A's tile in a stage."""
        return self.base + (self.smem.a_offset + stage * self.smem.a_stage_bytes)

    def b(self, stage: Any) -> Any:
        """First byte of B's tile in a stage."""
        return self.base + (self.smem.b_offset + stage * self.smem.b_stage_bytes)

    def full(self, stage: Any) -> Any:
        """The stage's mbarrier."""
        return self.base + (self.smem.barrier_offset + stage * self.smem.barrier_bytes)


def barrier_init(barrier: Any, arrivals: int) -> None:
    """mbarrier.init: the phase completes after `arrivals` arrivals and all bytes promised by `barrier_expect`."""
    cute.arch.mbarrier_init(barrier, arrivals)


def barriers_visible() -> None:
    """Make the calling thread's barrier initialisations visible to the async proxy, which TMA belongs to.

    The initialising thread calls it, then the block synchronises: a fence covers the writes of the thread that runs it.
    """
    cute.arch.mbarrier_init_fence()
    cute.arch.fence_proxy("async.shared", space="cta")


def barrier_expect(barrier: Any, nbytes: int) -> None:
    """mbarrier.arrive.expect_tx: one arrival, and the promise that `nbytes` bytes will arrive in this phase."""
    cute.arch.mbarrier_arrive_and_expect_tx(barrier, nbytes)


def barrier_wait(barrier: Any, phase: Any) -> None:
    """Wait until the barrier's phase with parity `phase` (0 or 1) has completed; acquires what arrived."""
    cute.arch.mbarrier_wait(barrier, phase)


def block_sync() -> None:
    """bar.sync 0: every thread of the block arrives, then every thread goes on."""
    cute.arch.sync_threads()


# -------------------------------------------------------------------------------------------------------------- wgmma


def matrix_descriptor(word: int, pointer: Any) -> Int64:
    """The descriptor of an operand tile: constant bits of the plan, address field of the traced pointer.

    `word` is OperandDescriptor.word, whose address field is zero; `pointer` is the tile's first byte in shared memory.
    """
    address = Int64(pointer.toint()) & ADDRESS_MASK
    return Int64(_as_signed(word)) | (address >> SM90_FIELDS[0].shift)


def _as_signed(word: int) -> int:
    """A 64-bit pattern as the signed integer with the same bits, which is what the DSL's Int64 takes."""
    return word - (1 << 64) if word >> 63 else word


class Wgmma:
    """wgmma.mma_async for one plan: both operands from shared memory, accumulator in registers.

    Built from the plan's MmaAtom (shape, types) and the operands' majorness. `accumulator()` gives the calling thread's
    registers: element v is value v of the atom's C layout.
    """

    def __init__(self, plan: Any):
        self.a, self.b, self.shape = plan.a.descriptor, plan.b.descriptor, plan.mma.shape_mnk
        blocks = len(self.a.mn_steps), len(self.b.mn_steps)
        if blocks != (1, 1):
            raise PlanError(f"the tile is {blocks[0]}x{blocks[1]} instructions along M and N; this class issues one")
        if plan.mma.a_dtype.name != plan.mma.b_dtype.name:
            raise PlanError(f"wgmma takes one type for A and B, not {plan.mma.a_dtype} and {plan.mma.b_dtype}")
        op = warpgroup.MmaF16BF16Op(
            element_type(plan.mma.a_dtype),
            element_type(plan.mma.c_dtype),
            tuple(plan.mma.shape_mnk),
            warpgroup.OperandSource.SMEM,
            _MAJOR_MODES[plan.a.major],
            _MAJOR_MODES[plan.b.major],
        )
        self.tiled_mma = cute.make_tiled_mma(op, (1, 1, 1))
        self.c_type = element_type(plan.mma.c_dtype)

    def __extract_mlir_values__(self) -> list[Any]:
        return cutlass.extract_mlir_values(self.tiled_mma)

    def __new_from_mlir_values__(self, values: list[Any]) -> Wgmma:
        twin = copy.copy(self)
        twin.tiled_mma = cutlass.new_from_mlir_values(self.tiled_mma, values)
        return twin

    def accumulator(self) -> Any:
        """Registers for one tile of C, not initialised: the first `multiply` does not read them."""
        m, n, _ = self.shape
        return cute.make_rmem_tensor(self.tiled_mma.get_slice(0).partition_shape_C((m, n)), self.c_type)

    def multiply(self, accumulator: Any, a: Any, b: Any, accumulate: Any) -> None:
        """One k tile: accumulator (+)= A tile @ B tile, one wgmma for each 16-wide K block, then commit the group.

        `a` and `b` point at the stage's tiles; the K blocks lie at the plan's byte offsets from them. `accumulate` is
        wgmma's scale-d for the first block (false: D = A*B, the old accumulator is not read) and true after it.
        """
        word_a = matrix_descriptor(self.a.word, a)
        word_b = matrix_descriptor(self.b.word, b)
        # wgmma.fence orders register accesses, the accumulator's here. It stands inside the k loop, before the first
        # wgmma of each tile: hoisted out of the loop of a longer kernel, ptxas serialised every wgmma without a word.
        warpgroup.fence()
        self.tiled_mma.set(warpgroup.Field.ACCUMULATE, accumulate)
        for step_a, step_b in zip(self.a.k_steps, self.b.k_steps, strict=True):
            fragment_a = _descriptor_fragment(word_a + step_a // _ADDRESS_UNIT)
            fragment_b = _descriptor_fragment(word_b + step_b // _ADDRESS_UNIT)
            cute.gemm(self.tiled_mma, accumulator, fragment_a, fragment_b, accumulator)
            self.tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()

    def wait(self) -> None:
        """Until every committed wgmma of this thread has finished: accumulator readable, operand tiles read."""
        warpgroup.wait_group(0)


def _descriptor_fragment(word: Int64) -> Any:
    """A 64-bit descriptor as the operand that cute.gemm takes: one MMA atom along M (or N), one along K."""
    return cute.make_tensor(tcgen05.int_to_smem_descriptor(word), cute.make_layout((1, 1, 1), stride=(0, 0, 0)))


# ------------------------------------------------------------------------------------------------------------- stores


def unrolled(count: int) -> tuple[int, ...]:
    """0, 1, ... count - 1 for a loop that the trace unrolls: `range_constexpr` warns from 64 iterations on."""
    return tuple(range(count))


def store_element(address: Int64, value: Any, dtype: Any) -> None:
    """Store one accumulator value at a global address in bytes, converted to `dtype` with round-to-nearest-even.

    A 64-bit address, because CuTe layouts count in 32 bits and a matrix may have more than 2**31 elements.
    """
    target = element_type(dtype)
    pointer = cute.make_ptr(target, address, cute.AddressSpace.gmem, assumed_align=dtype.bytes)
    cute.make_tensor(pointer, cute.make_layout(1))[0] = value.to(target)
