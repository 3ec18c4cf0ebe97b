"""Hopper's warpgroup products: wgmma.mma_async."""

from __future__ import annotations

from ..dtypes import DType, bf16, dtype, f16, f32
from ..errors import AtomError
from ..layouts import Layout
from .mma import MmaAtom


def wgmma(n: int, a: DType | str = bf16, b: DType | str | None = None, c: DType | str = f32) -> MmaAtom:
    """Hopper's warpgroup product wgmma.mma_async m64 n`n` k16 for 16-bit inputs, A and B from shared memory.

    n      8 to 256 in steps of 8
    a, b   bf16 or f16, the same for both
    c      the accumulator: f32, or f16 for f16 inputs

    The accumulator's map: thread t of the warpgroup is in warp t//32 and lane t%32. A warp owns 16 rows; a lane owns
    rows lane//4 and lane//4 + 8 of them, and of every 8 columns the two at 2*(lane%4). Value v counts columns within
    the pair (v%2), then the two rows, then groups of 8 columns.

    Raises AtomError for any other n or type. Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate
    Operation using wgmma.mma_async", figures of the register fragments and shared memory layouts for
    wgmma.mma_async.m64nNk16.

    >>> atom = wgmma(64)
    >>> print(atom, atom.layout_C)
    wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 ((4,8,4),(2,2,8)):((128,1,16),(64,8,512))
    >>> atom.accumulator_registers
    32
    """
    a_type, c_type = dtype(a), dtype(c)
    b_type = a_type if b is None else dtype(b)
    if isinstance(n, bool) or not isinstance(n, int) or n % 8 or not 8 <= n <= 256:
        raise AtomError(f"wgmma for 16-bit types has N = 8, 16, ..., 256; N = {n!r} is none of them")
    if a_type not in (bf16, f16) or a_type != b_type:
        raise AtomError(f"this wgmma atom takes A and B both bf16 or both f16; got A {a_type} and B {b_type}")
    if c_type != f32 and not (c_type == f16 and a_type == f16):
        raise AtomError(
            f"wgmma accumulates {a_type} inputs in f32{' or f16' if a_type == f16 else ''}, not in {c_type}"
        )
    m, k, threads = 64, 16, 128
    return MmaAtom(
        ptx=f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{c_type}.{a_type}.{b_type}",
        archs=("sm_90a",),
        shape_mnk=(m, n, k),
        a_dtype=a_type,
        b_dtype=b_type,
        c_dtype=c_type,
        threads=threads,
        layout_A=Layout((threads, (m, k)), (0, (1, m))),
        layout_B=Layout((threads, (n, k)), (0, (1, n))),
        # lanes of a quad, quads of a warp, warps; then column of the pair, upper or lower eight rows, groups of 8
        # columns
        layout_C=Layout(((4, 8, 4), (2, 2, n // 8)), ((2 * m, 1, 16), (m, 8, 8 * m))),
        a_source="smem",
        b_source="smem",
        source="PTX ISA, wgmma.mma_async, register fragments of m64nNk16; cute/atom/mma_traits_sm90_gmma.hpp",
    )
