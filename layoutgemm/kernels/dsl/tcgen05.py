"""The bridge's Blackwell. Tensor memory, tcgen05.mma, commits, and the loads that a pair of blocks counts together.

    plan object                             function here         instruction
    ------------------------------------    ------------------    --------------------------------------------------
    columns, a power of two                 tensor_allocate       tcgen05.alloc; tensor_free: tcgen05.dealloc
    OperandDescriptor.word, .k_steps        TensorOperand.word    the 64-bit operands of tcgen05.mma
    Tcgen05Atom, InstructionDescriptor      tensor_multiply       tcgen05.mma.cta_group::{1,2}.kind::{...}
    the same with block scales              tensor_multiply_scaled  tcgen05.mma...block_scale
    a barrier, a mask of blocks             tensor_commit         tcgen05.commit[.multicast::cluster]
    TmemCopyAtom (tcgen05_ld)               tensor_load           tcgen05.ld and tcgen05.wait::ld
    TmemCopyAtom (tcgen05_st)               tensor_store          tcgen05.st; tensor_stored: tcgen05.wait::st
    TmemCopyAtom (tcgen05_cp)               tensor_copy           tcgen05.cp
    TmaPlan.instructions                    load_for_pair         cp.async.bulk.tensor ... .cta_group::2

An address in tensor memory is lane << 16 | column: see atoms.tmem. Source: PTX ISA, "TensorCore 5th Generation Family
Instructions".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int16, Int32, Int64, Numeric, Uint32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op
from cutlass.experimental import primitives

from layoutgemm.atoms import Tcgen05Atom, TmaPlan, TmemCopyAtom
from layoutgemm.atoms.smem.instruction_descriptor import InstructionDescriptor
from layoutgemm.errors import PlanError

from .bridge import SharedMemory
from .copies import coordinates_of
from .types import Rebuilt, TensorMap, assembly, raw
from .wgmma import LOW_WORD, WgmmaOperand, as_signed

_KINDS = {"f16": "f16", "tf32": "tf32", "f8f6f4": "f8f6f4", "i8": "int8"}


def _group(blocks: int) -> primitives.CTAGroup:
    return f"cta_{blocks}"


@dsl_user_op
def _tensor_pointer(address: Int32, *, loc: object = None, ip: object = None) -> object:
    """An address in tensor memory as the pointer that the primitives take."""
    kind = llvm.PointerType.get(int(cute.AddressSpace.tmem))
    return llvm.inttoptr(kind, Int32(address).ir_value(loc=loc, ip=ip), loc=loc, ip=ip)


# ------------------------------------------------------------------------------------------------------ tensor memory


def tensor_allocate(slot: cute.Pointer, columns: int, blocks: int = 1) -> None:
    """tcgen05.alloc, by a whole warp. The address of `columns` columns goes to the 32-bit word of shared memory `slot`.

    blocks  1, or 2: a warp of each block of a pair executes it, and both get the same columns
    """
    primitives.tcgen05_alloc(raw(slot), columns, group=_group(blocks))


def tensor_relinquish(blocks: int = 1) -> None:
    """tcgen05.relinquish_alloc_permit, by a whole warp: this block allocates no more."""
    primitives.tcgen05_relinquish_alloc_permit(group=_group(blocks))


def tensor_free(address: Int32, columns: int, blocks: int = 1) -> None:
    """tcgen05.dealloc, by a whole warp, of what `tensor_allocate` gave. Of a pair, by a warp of each block."""
    primitives.tcgen05_dealloc(_tensor_pointer(address), columns, group=_group(blocks))


def tensor_address(slot: cute.Pointer) -> Int32:
    """The address that `tensor_allocate` wrote, a warp-uniform value."""
    return cute.arch.make_warp_uniform(cute.make_tensor(cute.recast_ptr(slot, dtype=Int32), cute.make_layout(1))[0])


def fence_before_sync() -> None:
    """tcgen05.fence::before_thread_sync: this thread's next arrival releases its tensor memory accesses."""
    primitives.tcgen05_fence("before_thread_sync")


def fence_after_sync() -> None:
    """tcgen05.fence::after_thread_sync: accesses after it follow those before the last wait."""
    primitives.tcgen05_fence("after_thread_sync")


# ----------------------------------------------------------------------------------------------------------- products


class TensorOperand(WgmmaOperand):
    """One operand's descriptors, of the blocks' own part of the tile; see `kernels.dsl.wgmma.WgmmaOperand`."""

    def word_at(self, stage: Int32 | int, k_block: int) -> Int64:
        """The 64-bit descriptor of one instruction's operand in a stage."""
        low = self.low + stage * self.stage_units + self.k_steps[k_block]
        return Int64(as_signed(self.word & ~LOW_WORD)) | Int64(Uint32(low))


def tensor_multiply(mma: Tcgen05Atom, word: int, d: Int32, a: Int64, b: Int64, accumulate: Boolean | bool) -> None:
    """One tcgen05.mma, by one thread: D (+)= A B^T.

    mma         the Tcgen05Atom; of a pair, one thread of the even block issues it for both
    word        InstructionDescriptor.word
    d           address of the accumulator in tensor memory
    a           descriptor of A in shared memory, Int64, or where the atom takes A from tensor memory its address, Int32
    b           descriptor of B
    accumulate  False: D = A B^T, and the old accumulator is not read

    Raises PlanError, while tracing, for a word of another shape or of other types than the atom's.
    """
    if mma.kind not in _KINDS or mma.ws or mma.sparse:
        raise PlanError(f"the bridge has no {mma}; it has the plain forms of kinds {', '.join(_KINDS)}")
    says = InstructionDescriptor.decode(word, mma.kind)
    said, meant = (says.m, says.n, says.a, says.b, says.d), (*mma.shape_mnk[:2], mma.a_dtype, mma.b_dtype, mma.c_dtype)
    if said != meant:
        of, to = ("M = {}, N = {}, {} and {} into {}".format(*each) for each in (said, meant))
        raise PlanError(
            f"word of tensor_multiply: the instruction descriptor {word:#x} is of {of}, and the atom of {to}"
        )
    source = a if mma.a_source == "smem" else _tensor_pointer(a)
    enabled = cutlass.Boolean(accumulate)
    primitives.tcgen05_mma(
        _KINDS[mma.kind], _group(mma.cta_group), _tensor_pointer(d), source, b, as_signed(word, 32), enabled
    )


def tensor_multiply_scaled(
    mma: Tcgen05Atom, word: int, d: Int32, operands: tuple[Int64, Int64], scales: tuple[Int32, Int32],
    accumulate: Boolean | bool,
) -> None:  # fmt: skip
    """One tcgen05.mma.block_scale, by one thread: D (+)= (A * scales) (B * scales)^T.

    mma, word, d, accumulate   as for `tensor_multiply`; the word says which bytes of tensor memory's words count
    operands                   descriptors of A and B in shared memory
    scales                     addresses of the factors of A and B in tensor memory
    """
    assembly(
        f"{{\n\t.reg .pred p;\n\tsetp.ne.b32 p, $6, 0;\n\t{mma.ptx} [$0], $1, $2, $3, [$4], [$5], p;\n\t}}",
        "r,l,l,r,r,r,r,~{memory}",
        [d, *operands, Int32(as_signed(word, 32)), *scales, Int32(Boolean(accumulate))],
    )


def tensor_commit(barrier: cute.Pointer, blocks: int = 1, mask: int | None = None) -> None:
    """tcgen05.commit, by the thread that issued. One arrival at the barrier when all that it issued has completed.

    mask  bit i for each block i of the cluster: the arrival comes at the barrier of the same address in each of them
    """
    multicast = None if mask is None else Int16(mask)
    primitives.tcgen05_commit(raw(barrier), multicast_mask=multicast, group=_group(blocks))


# ------------------------------------------------------------------------------------------------------------- copies


def tensor_load(atom: TmemCopyAtom, address: Int32) -> list[Numeric]:
    """tcgen05.ld and tcgen05.wait::ld, by a whole warp. Returns the atom's registers, f32 or (other elements) i32.

    address  of the warp's own quarter of the lanes (`atoms.tmem.layout.warp_lanes`)

    Load and wait are one piece of assembly: between them no instruction may touch the registers, and a compiler that
    sees two pieces is free to move a conversion there.
    """
    count = atom.registers
    names = ", ".join(f"${i}" for i in range(count))
    split = "" if atom.split is None else f", {atom.split}"
    kind, register = (Float32, "=f") if atom.element.name == "f32" else (Int32, "=r")
    return assembly(
        f"{atom.ptx} {{{names}}}, [${count}]{split};\n\ttcgen05.wait::ld.sync.aligned;",
        ",".join([register] * count + ["r", "~{memory}"]),
        [Int32(address)],
        (kind,) * count,
    )


def tensor_store(atom: TmemCopyAtom, address: Int32, values: Sequence[Any]) -> None:
    """tcgen05.st, by a whole warp. Registers, f32 or i32, go to the atom's lanes and columns. `tensor_stored` waits."""
    names = ", ".join(f"${i + 1}" for i in range(len(values)))
    split = "" if atom.split is None else f", {atom.split}"
    words = [value.bitcast(Int32) if isinstance(value, Float32) else Int32(value) for value in values]
    assembly(
        f"{atom.ptx} [$0]{split}, {{{names}}};",
        ",".join(["r"] * (1 + len(words)) + ["~{memory}"]),
        [Int32(address), *words],
    )


def tensor_stored() -> None:
    """tcgen05.wait::st, by a whole warp: its stores to tensor memory have been performed."""
    primitives.tcgen05_wait("store")


def tensor_copy(atom: TmemCopyAtom, address: Int32, descriptor: Int64) -> None:
    """tcgen05.cp, by one thread. Rows that a matrix descriptor names, from shared memory to tensor memory.

    Products of the same thread that come later see it; `tensor_commit` says when it is done.
    """
    assembly(f"{atom.ptx} [$0], $1;", "r,l,~{memory}", [Int32(address), Int64(descriptor)])


class _PairBarrier:
    """A barrier as the pair's loads ask for it. They clear the lowest bit of the block's rank in its address."""

    def __init__(self, barrier: cute.Pointer):
        self.barrier = barrier

    def data_ptr(self) -> cute.Pointer:
        return raw(self.barrier)


def load_for_pair(
    tensor_map: TensorMap, tma: TmaPlan, origin: Mapping[str, Int32], destination: cute.Pointer, barrier: cute.Pointer
) -> None:
    """`load_tile` in a block of a pair. Into its own shared memory, bytes counted on the even block's barrier.

    `barrier` is this block's; the even block's has the same address but for the rank's lowest bit.
    """
    for instruction in tma.instructions:
        primitives.cp_async_bulk_tensor_shared_cluster_global(
            raw(destination + instruction.smem_offset),
            tensor_map.get_ptr(),
            coordinates_of(tma, origin, instruction.coord_offset),
            _PairBarrier(barrier),
            [],
            group="cta_2",
        )


class TensorShared(SharedMemory):
    """A CTA's shared memory with the accumulators' barriers and a word for their address."""

    def acc_full(self, number: Int32 | int) -> cute.Pointer:
        """The mbarrier that says that an accumulator is complete."""
        return self.base + (self.smem.acc_full_offset + number * self.smem.barrier_bytes)

    def acc_empty(self, number: Int32 | int) -> cute.Pointer:
        """The mbarrier that says that an accumulator may be written again."""
        return self.base + (self.smem.acc_empty_offset + number * self.smem.barrier_bytes)

    def scales(self, stage: Int32 | int) -> cute.Pointer:
        """First byte of the block scales of a stage."""
        return self.base + (self.smem.scales_offset + stage * self.smem.scales_stage_bytes)

    @property
    def slot(self) -> cute.Pointer:
        """The word in which tcgen05.alloc leaves an address."""
        return self.base + self.smem.slot_offset


class SharedRegions(Rebuilt):
    """A block's dynamic shared memory as named pieces: `primitives.Regions`."""

    held = ("base",)

    def __init__(self, regions: Any):
        self.regions = regions
        self.base = cutlass.memory.SmemAllocator().allocate(regions.total, regions.alignment)

    def __getitem__(self, name: str) -> cute.Pointer:
        return self.base + self.regions[name]
