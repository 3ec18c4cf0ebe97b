"""Tensor-core instructions as values: their shape, their types, and which thread holds which element.

An atom is a matrix product D[M,N] += A[M,K] * B[N,K]^T done by a fixed number of threads. Its three thread-value
layouts map (thread, value) to an element of the operand, counted column-major: A is m + M*k, B is n + N*k, C is m +
M*n.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..dtypes import DType, bf16, dtype, f16, f32
from ..errors import AtomError
from ..layouts import Layout


@dataclass(frozen=True)
class MmaAtom:
    """One matrix instruction.

    ptx          the instruction's name without its register lists
    archs        architectures that have it
    shape_mnk    (M, N, K) in elements
    a_dtype, b_dtype, c_dtype   types of A, B and of the accumulator
    threads      how many threads execute it together (32: a warp, 128: a warpgroup)
    layout_A, layout_B, layout_C   (thread, value) -> element of the operand, column-major
    a_source, b_source  "rmem" where the operand sits in registers, "smem" where a descriptor names it; a descriptor
                 operand has every thread see every element (thread stride 0)
    source       where the maps can be read
    """

    ptx: str
    archs: tuple[str, ...]
    shape_mnk: tuple[int, int, int]
    a_dtype: DType
    b_dtype: DType
    c_dtype: DType
    threads: int
    layout_A: Layout
    layout_B: Layout
    layout_C: Layout
    a_source: str
    b_source: str
    source: str

    @property
    def k_bytes(self) -> int:
        """Bytes that one instruction consumes along K."""
        return self.shape_mnk[2] * self.a_dtype.bits // 8

    def tile_of(self, operand: str) -> tuple[int, int]:
        """The two extents of operand "A" (M, K), "B" (N, K) or "C" (M, N), in elements."""
        m, n, k = self.shape_mnk
        try:
            return {"A": (m, k), "B": (n, k), "C": (m, n)}[operand]
        except KeyError:
            raise AtomError(f"{self.ptx} has operands A, B and C, not {operand!r}") from None

    def layout(self, operand: str) -> Layout:
        """The thread-value layout of operand "A", "B" or "C": (thread, value) -> element, column-major."""
        self.tile_of(operand)
        return {"A": self.layout_A, "B": self.layout_B, "C": self.layout_C}[operand]

    def coords(self, operand: str) -> Layout:
        """(thread, value) -> (row, column) of operand "A", "B" or "C": the same map with coordinate strides.

        It is the identity layout of the operand's tile composed with the thread-value layout, so it works wherever that
        composition exists, and evaluates on traced integers to a pair.

        >>> print(wgmma(64).coords("C"))
        ((4,8,4),(2,2,8)):((2@1,1@0,16@0),(1@1,8@0,8@1))
        >>> wgmma(64).coords("C")(37, 5)
        (17, 11)
        """
        return Layout.identity(self.tile_of(operand)).compose(self.layout(operand))

    @cached_property
    def coords_C(self) -> Layout:
        """`coords("C")`, the fragment map of the accumulator."""
        return self.coords("C")

    @property
    def accumulator_registers(self) -> int:
        """32-bit registers that the accumulator takes in each thread: its bits over all threads, divided evenly."""
        m, n, _ = self.shape_mnk
        return m * n * self.c_dtype.bits // (32 * self.threads)

    def __str__(self) -> str:
        return self.ptx


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
