"""The bridge's instructions of single warps.

They are cp.async, ldmatrix, mma.sync, and vector loads from global memory.

    library object                    function here               instruction
    ------------------------------    -----------------------     ------------------------------------------------
    CopyAtom cp_async(16)             copy_async                  cp.async.cg.shared.global, with zero fill
    TiledCopy of it                   copy_tile                   the same, for each vector of the thread
    CopyAtom ldmatrix(count)          load_matrices               ldmatrix.sync.aligned.m8n8
    CopyAtom load_global(128)         load_vector                 ld.global.v4.b32
    MmaAtom mma_sync(...)             multiply_warp               mma.sync.aligned
    the same with block scales        multiply_warp_scaled        mma.sync.aligned...block_scale

Sources: PTX ISA, "cp.async", "ldmatrix", "ld", "mma".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float32, Int32, Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op
from cutlass.experimental import primitives

from layoutgemm.atoms import MmaAtom, SmemTile, TiledCopy
from layoutgemm.errors import PlanError
from layoutgemm.layouts import Layout

from ...atoms.copy.base import VECTOR_BYTES
from .types import assembly, raw, unpacked

_MMA_TYPES = {
    "bf16": primitives.MMAType.BF16, "f16": primitives.MMAType.F16, "tf32": primitives.MMAType.TF32,
    "i8": primitives.MMAType.S8, "u8": primitives.MMAType.U8,
    "e4m3": primitives.MMAType.E4M3, "e5m2": primitives.MMAType.E5M2,
}  # fmt: skip


def copy_async(destination: cute.Pointer, address: Int64, valid: Int32) -> None:
    """cp.async of 16 bytes, global to shared, past L1. The first `valid` bytes are read, the others become zeros.

    `valid` is cut to 0..16. It completes in the group that `commit_copies` closes.
    """
    size = cutlass.max(cutlass.min(Int32(valid), VECTOR_BYTES), 0)
    source = cute.make_ptr(BFloat16, address, cute.AddressSpace.gmem, assumed_align=VECTOR_BYTES)
    primitives.cp_async_shared_global(
        raw(destination), raw(source), VECTOR_BYTES, primitives.LoadCacheModifier.CG, cp_size=size
    )


def copy_tile(
    copy: TiledCopy, tile: SmemTile, thread: Int32, matrix: tuple[Int64, Int64, Int32, Int32], k0: Int32,
    destination: cute.Pointer,
) -> None:  # fmt: skip
    """The calling thread's part of one K-major tile. TiledCopy of cp.async x SmemTile -> copies, zeros at the edges.

    matrix       (address of the tile's first row at K = 0, elements from row to row, rows from there on, K): a row or
                 an element of K that is not there becomes zeros
    k0           the tile's first element of K
    destination  the tile's first byte in shared memory
    """
    address, pitch, rows, k = matrix
    size = tile.dtype.bytes
    places = copy.partition("src", Layout.identity(tile.extent))
    for part in range(places[2].size):
        i, j = places(thread, 0, part, 0)
        # A row that is there leaves the columns to decide: 16 bytes or more are no limit.
        valid = cutlass.min((k - k0 - j) * size, (rows - i) * VECTOR_BYTES)
        copy_async(destination + tile.byte(i, j), address + (Int64(i) * pitch + (k0 + j)) * size, valid)


def commit_copies() -> None:
    """cp.async.commit_group: close the group of this thread's copies since the last one."""
    cute.arch.cp_async_commit_group()


def wait_copies(pending: int) -> None:
    """cp.async.wait_group: until all but `pending` of this thread's groups are in shared memory."""
    cute.arch.cp_async_wait_group(pending)


def load_matrices(address: cute.Pointer, count: int) -> list[Int32]:
    """ldmatrix of 1, 2 or 4 matrices of 8x8 16-bit elements. Each gives a 32-bit register, two neighbours of a row.

    `address` is the row's of this lane: row i % 8 of matrix i // 8 for lane i.
    """
    words = primitives.ldmatrix(raw(address), count, primitives.MMALayout.ROW)
    return [words] if count == 1 else [words[i] for i in range(count)]


def load_vector(address: Int64, inside: Boolean) -> list[Int32]:
    """ld.global of 16 bytes into four registers; zeros, and no access, where `inside` is false."""
    return assembly(
        "{ .reg .pred p; setp.ne.b32 p, $5, 0; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; "
        "@p ld.global.v4.b32 {$0, $1, $2, $3}, [$4]; }",
        "=&r,=&r,=&r,=&r,l,r",
        [Int64(address), Int32(inside)],
        (Int32,) * 4,
    )


def keep_elements(words: Sequence[Int32], count: Int32) -> list[Int32]:
    """Registers of two 16-bit elements each; all but the first `count` elements become zeros."""
    kept = []
    for i, word in enumerate(words):
        bits = cutlass.max(cutlass.min(16 * Int32(count) - 32 * i, 32), 0)
        kept.append(word & Int32((Int64(1) << Int64(bits)) - 1))
    return kept


@dsl_user_op
def multiply_warp(
    mma: MmaAtom, a: Sequence[Int32], b: Sequence[Int32], c: Sequence[cutlass.Numeric], *, loc: object = None,
    ip: object = None,
) -> list[cutlass.Numeric]:  # fmt: skip
    """mma.sync of an MmaAtom. 32-bit registers of A, B and C (f32 or i32) -> those of D."""
    if ".kind::" in mma.ptx and mma.scale is None:
        return _multiply_by_name(mma, a, b, c)
    inputs = {mma.a_dtype.name, mma.b_dtype.name}
    if not inputs <= set(_MMA_TYPES) or mma.c_dtype.name not in ("f32", "i32"):
        raise PlanError(f"the bridge has mma.sync of {', '.join(_MMA_TYPES)} into f32 or i32, not {mma}")
    if mma.scale is not None:
        raise PlanError(f"{mma} takes scale factors: multiply_warp_scaled")
    whole = mma.c_dtype.name == "i32"
    number = Int32 if whole else Float32

    def register(word: Int32) -> ir.Value:
        value = Int32(word).ir_value(loc=loc, ip=ip)
        # the dialect wants registers of f16 as pairs of f16; of all other types it takes plain ones
        pair = mma.a_dtype.name == "f16"
        return llvm.bitcast(ir.VectorType.get([2], T.f16()), value, loc=loc, ip=ip) if pair else value

    found = primitives.mma_sync(
        llvm.StructType.get_literal([number.mlir_type] * len(c)),
        tuple(mma.shape_mnk),
        primitives.MMALayout.ROW,
        primitives.MMALayout.COL,
        [register(value) for value in a],
        [register(value) for value in b],
        [number(value).ir_value(loc=loc, ip=ip) for value in c],
        int_overflow_behavior=primitives.MMAIntOverflow.WRAPPED if whole else None,
        multiplicand_a_ptx_type=_MMA_TYPES[mma.a_dtype.name],
        multiplicand_b_ptx_type=_MMA_TYPES[mma.b_dtype.name],
        loc=loc,
        ip=ip,
    )
    value: Any = found.ir_value() if hasattr(found, "ir_value") else found
    return unpacked(value, [number] * len(c), loc=loc, ip=ip)


def multiply_warp_scaled(
    mma: MmaAtom, a: Sequence[Int32], b: Sequence[Int32], c: Sequence[cutlass.Numeric],
    factors: Sequence[Int32], selectors: Sequence[tuple[int, int]],
) -> list[cutlass.Numeric]:  # fmt: skip
    """mma.sync with block scales of an MmaAtom. 32-bit registers of A, B and C -> those of D.

    factors    a lane's words of A's factors and of B's
    selectors  (byte-id, thread-id) of A's and of B's: see `atoms.mma.block_scales`
    """
    return _multiply_by_name(mma, a, b, c, factors, selectors)


def _multiply_by_name(
    mma: MmaAtom, a: Sequence[Int32], b: Sequence[Int32], c: Sequence[cutlass.Numeric], factors: Sequence[Int32] = (),
    selectors: Sequence[tuple[int, int]] = (),
) -> list[cutlass.Numeric]:  # fmt: skip
    """The instruction by its name: the DSL has none of a kind."""
    names = iter(range(2 * len(c) + len(a) + len(b) + len(factors)))
    registers = ["{" + ", ".join([f"${next(names)}" for _ in each]) + "}" for each in (c, a, b, c)]
    scales = [f"${next(names)}, {{{byte}, {thread}}}" for byte, thread in selectors]
    constraints = ["=f"] * len(c) + ["r"] * (len(a) + len(b)) + ["f"] * len(c) + ["r"] * len(factors)
    operands = [*map(Int32, a), *map(Int32, b), *map(Float32, c), *map(Int32, factors)]
    text = f"{mma.ptx} {', '.join([*registers, *scales])};"
    return assembly(text, ",".join(constraints), operands, (Float32,) * len(c), pure=True)
