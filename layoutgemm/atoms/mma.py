"""Tensor-core instructions as values: their shape, their types, and which thread holds which element.

An atom is a matrix product D[M,N] += A[M,K] * B[N,K]^T done by a fixed number of threads. Its three thread-value
layouts map (thread, value) to an element of the operand, counted column-major: A is m + M*k, B is n + N*k, C is m +
M*n.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..dtypes import DType
from ..errors import AtomError
from ..layouts import Layout


@dataclass(frozen=True)
class ScaleFactors:
    """The block scales of one matrix instruction: every `vector` elements along K share one factor.

    dtype       format of a factor: "ue8m0" or "ue4m3"
    vector      elements of K that one factor scales
    layout_A    (thread, value) -> factor of A, counted m + M*(k // vector)
    layout_B    (thread, value) -> factor of B, counted n + N*(k // vector)
    """

    dtype: DType
    vector: int
    layout_A: Layout
    layout_B: Layout


@dataclass(frozen=True)
class MmaAtom:
    """One matrix instruction.

    ptx          the instruction's name without its register lists
    archs        architectures that have it
    shape_mnk    (M, N, K) in elements
    a_dtype, b_dtype, c_dtype   types of A, B and of the accumulator
    threads      how many threads execute it together (32: a warp, 128: a warpgroup; for tcgen05, which one thread
                 issues, the thread mode counts the blocks of the group: 1 or 2)
    layout_A, layout_B, layout_C   (thread, value) -> element of the operand, column-major
    a_source, b_source, c_source   "rmem" where the operand sits in registers, "smem" where a descriptor names it,
                 "tmem" in tensor memory; a wgmma descriptor operand has every thread see every element (stride 0)
    source       where the maps can be read
    a_majors, b_majors  the majors that the instruction takes of an operand in shared memory
    thread_ids   (thread of the maps) -> thread of the warp; None where they are the same
    scale        the block scales, or None
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
    c_source: str = "rmem"
    a_majors: tuple[str, ...] = ("K",)
    b_majors: tuple[str, ...] = ("K",)
    thread_ids: Layout | None = None
    scale: ScaleFactors | None = None

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

        >>> from layoutgemm.atoms import wgmma
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
