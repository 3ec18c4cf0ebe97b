"""Register fragments of a warp: one formula for every mma.sync and wgmma operand.

Eight rows meet four lanes. Lane t is in group g = t // 4 and has place q = t % 4 in its quad. Of every 8 rows the group
takes one; of every 4*p columns the lane takes p that lie side by side, where p is how many elements fill a register.
Value v counts the p neighbours, then the blocks of 8 rows, then the blocks of 4*p columns:

    row    = g + 8*((v // p) % (rows // 8))            (+ 16*w in warp w of a warpgroup, whose warps take 16 rows each)
    column = p*q + v % p + 4*p*(v // (p * rows // 8))

A and B are taken with k as the column and p = max(1, 32 // bits); C and D with n as the column and p = 2, whatever
their type. Only mma.m8n8k4 on f16, made for sm_70, is older than this family: `quad_pair`.

Sources: PTX ISA, "Matrix Fragments for mma.m8n8k4" to "Matrix Fragments for mma.m16n8k256", and "Register Fragments and
Shared Memory Matrix Layouts" of wgmma.
"""

from __future__ import annotations

from ...arguments import checked
from ...errors import AtomError
from ...layouts import Layout

REGISTER_BITS = 32
QUAD, GROUPS = 4, 8
# Lanes 0-3 and 16-19 hold one 8x8 product of mma.m8n8k4, lanes 4-7 and 20-23 the next, and so on.
QUAD_PAIR_LANES = Layout((4, 2), (1, 16))


def run_of(bits: int) -> int:
    """The number of such elements side by side in a lane. Those of that many bits fill a 32-bit register, at least 1.

    >>> [run_of(bits) for bits in (1, 4, 8, 16, 32, 64)]
    [32, 8, 4, 2, 1, 1]
    """
    if bits < 1 or (REGISTER_BITS % bits and bits % REGISTER_BITS):
        raise AtomError(f"elements of {bits} bits do not fill a {REGISTER_BITS}-bit register")
    return max(1, REGISTER_BITS // bits)


@checked(AtomError)
def fragment(rows: int, columns: int, run: int, warps: int = 1) -> Layout:
    """(thread, value) -> row + rows*column of a matrix held by a warp or a warpgroup.

    rows     8 or 16 for each warp
    columns  a multiple of 4*run
    run      elements side by side in a lane
    warps    1, or 4 for a warpgroup, each warp with rows // warps rows

    Raises AtomError where the matrix is not made of whole blocks of 8 rows and 4*run columns.

    The operands A (p = 2), B and C of mma.m16n8k16 on 16-bit types:

    >>> print(fragment(16, 16, 2), fragment(8, 16, 2), fragment(16, 8, 2))
    ((4,8),(2,2,2)):((32,1),(16,8,128)) ((4,8),(2,2)):((16,1),(8,64)) ((4,8),(2,2)):((32,1),(16,8))
    """
    if min(rows, columns, run, warps) < 1:
        raise AtomError(f"a {rows}x{columns} matrix over {warps} warp(s) in runs of {run}: each is at least 1")
    own, block = rows // warps, QUAD * run
    if rows % (GROUPS * warps) or columns % block:
        raise AtomError(
            f"a {rows}x{columns} matrix over {warps} warp(s) is not made of blocks of {GROUPS} rows and {QUAD}*{run} "
            f"columns"
        )
    lanes: tuple[tuple[int, ...], tuple[int, ...]] = ((QUAD, GROUPS), (run * rows, 1))
    if warps > 1:
        lanes = (lanes[0] + (warps,), lanes[1] + (own,))
    # Extents of 1 say nothing: they are left out, as the published layouts leave them out.
    modes = [
        (extent, stride)
        for extent, stride in ((run, rows), (own // GROUPS, GROUPS), (columns // block, block * rows))
        if extent > 1
    ] or [(1, 0)]
    shape, stride = tuple(mode[0] for mode in modes), tuple(mode[1] for mode in modes)
    if len(modes) == 1:
        return Layout((lanes[0], shape[0]), (lanes[1], stride[0]))
    return Layout((lanes[0], shape), (lanes[1], stride))


def quad_pair(operand: str, along_k: bool = True, bits: int = 16) -> Layout:
    """(thread of a quad pair, value) -> element of an operand of mma.m8n8k4 on f16.

    operand  "A" or "B" (8x4, counted row + 8*k), or "C" (8x8, counted m + 8*n)
    along_k  A and B: whether a thread's four values run along k (A row-major, B column-major) or along the rows
    bits     C: 16 or 32

    A thread x + 4*h holds row x + 4*h along k, or column x of the rows 4*h to 4*h + 3. An f16 accumulator holds row
    x + 4*h; an f32 accumulator holds row (x & 1) + (v & 2) + 4*h, column (v & 4) + (x & 2) + (v & 1).

    >>> print(quad_pair("A"), quad_pair("A", along_k=False), quad_pair("C", bits=32))
    (8,4):(1,8) ((4,2),4):((8,4),1) ((2,2,2),(2,2,2)):((1,16,4),(8,2,32))
    """
    if operand == "C":
        return Layout((8, 8), (1, 8)) if bits == 16 else Layout(((2, 2, 2), (2, 2, 2)), ((1, 16, 4), (8, 2, 32)))
    return Layout((8, 4), (1, 8)) if along_k else Layout(((4, 2), 4), ((8, 4), 1))


def scale_fragment(rows: int, blocks: int) -> Layout:
    """(thread, value) -> row + rows*block of the block scales of mma.sync. A has 16 rows, B has 8.

    Value v is the factor of block v along k. Of A's scales, the lanes of a quad whose place is even hold row g, the
    others row g + 8; both pairs of the quad may hold them. Of B's scales, each lane of a quad may hold those of row g.
    The instruction's thread-id says which of the copies it reads: see `provider`.

    Sources: PTX ISA, "Block Scaling for mma.sync"; cute/atom/mma_traits_sm120.hpp.

    >>> print(scale_fragment(16, 2), scale_fragment(8, 2))
    ((2,2,8),2):((8,0,1),16) ((4,8),2):((0,1),8)
    """
    if rows == 2 * GROUPS:
        return Layout(((2, 2, GROUPS), blocks), ((GROUPS, 0, 1), rows))
    if rows == GROUPS:
        return Layout(((QUAD, GROUPS), blocks), ((0, 1), rows))
    raise AtomError(f"mma.sync scales 16 rows of A and 8 rows of B, not {rows}")
