"""Tensor-core instructions as values: their shape, their types, and which thread holds which element.

An atom is a matrix product D[M,N] = A[M,K] * B[N,K]^T + C[M,N] done by a fixed number of threads. Its thread-value
layouts map (thread, value) to an element of the operand, counted column-major: A is m + M*k, B is n + N*k, C is m +
M*n. Everything else about the fragments follows from them: coordinates, owners, closed forms, register positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...arguments import checked, shown
from ...dtypes import DType
from ...errors import AtomError
from ...layouts import CounterExample, E, Layout, Proof, Undecided
from ...layouts.display import Convertible, HasPage, HasPicture

NARROW = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")  # types of mma.sync and tcgen05 in kinds f8f6f4


@dataclass(frozen=True, slots=True)
class Container:
    """The field that an element narrower than a byte sits in. `bits` wide, the element's lowest bit at `low`."""

    bits: int
    low: int


def whole_tiles(divided: Layout, layout: Layout) -> Layout:
    """The divided layout, whose tiles hold the elements of `layout` alone.

    Raises AtomError where a tile reaches past the end of an entry: threads would be given places that are no elements.
    """
    if divided.size != layout.size:
        raise AtomError(
            f"the tiles {divided} of {layout} have {divided.size} places for {layout.size} elements: a tile ends "
            "inside an entry of the shape"
        )
    return divided


def _pairs(layout: Layout) -> Layout:
    """A layout onto coordinates whose second component never moves still gives pairs: a mode of extent 1 names it."""
    value = layout(0)
    known = len(value) if isinstance(value, tuple) else 0
    for component in range(known, 2):
        last = layout[layout.rank - 1]
        shape = (*_listed(last.shape), 1)
        stride = (*_listed(last.stride), E(component))
        heads = [layout[i] for i in range(layout.rank - 1)]
        layout = Layout((*(h.shape for h in heads), shape), (*(h.stride for h in heads), stride))
    return layout


def _listed(entry: object) -> tuple[object, ...]:
    return entry if isinstance(entry, tuple) else (entry,)


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
class MmaAtom(HasPicture, HasPage, Convertible):
    """One matrix instruction.

    ptx          the instruction's name without its register lists
    archs        architectures that have it
    shape_mnk    (M, N, K) in elements
    a_dtype, b_dtype, c_dtype   types of A, B and of the accumulator
    threads      how many threads execute it together (32: a warp, 128: a warpgroup, 8: a quad pair, of which a warp
                 runs four; for tcgen05, which one thread issues, the thread mode counts the blocks of the group: 1 or
                 2)
    layout_A, layout_B, layout_C   (thread, value) -> element of the operand, column-major
    a_source, b_source, c_source   "rmem" where the operand sits in registers, "smem" where a descriptor names it,
                 "tmem" in tensor memory; a wgmma descriptor operand has every thread see every element (stride 0)
    source       where the maps can be read
    a_majors, b_majors  the majors that the instruction takes of an operand in shared memory
    thread_ids   (thread of the maps) -> thread of the warp; None where they are the same
    scale        the block scales, or None
    d_dtype, layout_D   type and map of D; None where they are those of C
    a_container, b_container   the wider field that an element of A or B sits in, or None
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
    d_dtype: DType | None = None
    layout_D: Layout | None = None
    a_container: Container | None = None
    b_container: Container | None = None

    @property
    def k_bytes(self) -> int:
        """Bytes that one instruction consumes along K."""
        return self.shape_mnk[2] * self.a_dtype.bits // 8

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the operands. "A", "B", "C", "D", and "SFA", "SFB" where there are block scales."""
        return ("A", "B", "C", "D") if self.scale is None else ("A", "B", "C", "D", "SFA", "SFB")

    def _known(self, operand: str) -> None:
        if operand not in self.operands:
            names = ", ".join(self.operands[:-1])
            raise AtomError(f"{self.ptx} has operands {names} and {self.operands[-1]}, not {shown(operand)}")

    @checked(AtomError)
    def tile_of(self, operand: str) -> tuple[int, int]:
        """The two extents of an operand, in elements. "A" (M, K), "B" (N, K), "C" and "D" (M, N).

        "SFA" and "SFB" have (M, K // vector) and (N, K // vector) factors.
        """
        self._known(operand)
        m, n, k = self.shape_mnk
        blocks = 0 if self.scale is None else k // self.scale.vector
        return {"A": (m, k), "B": (n, k), "C": (m, n), "D": (m, n), "SFA": (m, blocks), "SFB": (n, blocks)}[operand]

    @checked(AtomError)
    def dtype_of(self, operand: str) -> DType:
        """The number format of an operand."""
        self._known(operand)
        if self.scale is not None and operand in ("SFA", "SFB"):
            return self.scale.dtype
        return {"A": self.a_dtype, "B": self.b_dtype, "C": self.c_dtype}.get(operand, self.d_dtype or self.c_dtype)

    @checked(AtomError)
    def layout(self, operand: str) -> Layout:
        """The thread-value layout of an operand: (thread, value) -> element, column-major."""
        self._known(operand)
        if self.scale is not None and operand in ("SFA", "SFB"):
            return self.scale.layout_A if operand == "SFA" else self.scale.layout_B
        found = {"A": self.layout_A, "B": self.layout_B, "C": self.layout_C}.get(operand)
        return found if found is not None else self.layout_D if self.layout_D is not None else self.layout_C

    @checked(AtomError)
    def coords(self, operand: str) -> Layout:
        """(thread, value) -> (row, column) of an operand: the same map with coordinate strides.

        It is the identity layout of the operand's tile composed with the thread-value layout, so it works wherever that
        composition exists, and evaluates on traced integers to a pair.

        >>> from layoutgemm.atoms import wgmma
        >>> print(wgmma(64).coords("C"))
        ((4,8,4),(2,2,8)):((2@1,1@0,16@0),(1@1,8@0,8@1))
        >>> wgmma(64).coords("C")(37, 5)
        (17, 11)
        """
        return _pairs(Layout.identity(self.tile_of(operand)).compose(self.layout(operand)))

    @checked(AtomError)
    def owner(self, operand: str) -> Layout:
        """(row, column) of an operand -> (thread, value) that holds the element. The inverse of `coords`.

        Where several hold it (a descriptor operand, block scales) it is the lowest thread, at its lowest value. Raises
        AtomError where some element has no holder.

        >>> from layoutgemm.atoms import wgmma
        >>> print(wgmma(64).owner("C"))
        ((8,2,4),(2,4,8)):((4@0,2@1,32@0),(1@1,1@0,4@1))
        >>> wgmma(64).owner("C")(17, 11)
        (37, 5)
        """
        layout, tile = self.layout(operand), self.tile_of(operand)
        proof = self.one_to_one(operand)
        if not proof:
            raise AtomError(f"operand {operand} of {self.ptx} has no inverse: {proof.reason}")
        inverse = layout.right_inverse().compose(Layout(tile))
        return _pairs(Layout.identity((layout[0].size, layout[1].size)).compose(inverse))

    @checked(AtomError)
    def copies(self, operand: str) -> int:
        """The number of (thread, value) pairs that hold each element: 1 for a register operand."""
        rows, columns = self.tile_of(operand)
        return int(self.layout(operand).size) // (rows * columns)

    @checked(AtomError)
    def one_to_one(self, operand: str) -> Proof | CounterExample | Undecided:
        """Prove that each element is held by exactly `copies` pairs, or give the CounterExample.

        A mode of stride 0 repeats what is there, so it is left out, and the rest must be a bijection onto the tile.

        >>> from layoutgemm.atoms import wgmma
        >>> wgmma(64).one_to_one("C").method, wgmma(64).copies("C"), wgmma(64).copies("B")
        ('injective onto its span', 1, 128)
        """
        rows, columns = self.tile_of(operand)
        distinct = self.layout(operand).filter()
        verdict: Proof | CounterExample | Undecided = distinct.is_bijective()
        if verdict and distinct.size != rows * columns:
            return Undecided(f"{distinct} reaches {distinct.size} of the {rows}x{columns} elements")
        return verdict

    @checked(AtomError)
    def formula(self, operand: str, thread: str = "t", value: str = "v") -> tuple[Any, Any]:
        """Row and column of an operand as SymPy expressions of the thread and the value.

        >>> from layoutgemm.atoms import wgmma
        >>> wgmma(64).formula("C")
        (16*(t//32) + (t//4)%8 + 8*((v//2)%2), 8*(v//4) + 2*(t%4) + v%2)
        """
        row, column = self.coords(operand).expr(thread, value)
        return row, column

    @checked(AtomError)
    def explain(self, operand: str) -> str:
        """The map of an operand in both directions, as text.

        >>> from layoutgemm.atoms import wgmma
        >>> print(wgmma(64).explain("C"))
        C of wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16: 64x64 f32, 128 threads x 32 values
          (t, v) -> row 16*(t//32) + (t//4)%8 + 8*((v//2)%2), column 8*(v//4) + 2*(t%4) + v%2
          (row, column) -> t = 32*(row//16) + 4*(row%8) + (column//2)%4, v = 4*(column//8) + column%2 + 2*((row//8)%2)
        """
        (rows, columns), layout = self.tile_of(operand), self.layout(operand)
        row, column = self.formula(operand)
        thread, value = self.owner(operand).expr("row", "column")
        copies = self.copies(operand)
        tail = "" if copies == 1 else f"; {copies} hold each element, this is the lowest"
        return (
            f"{operand} of {self.ptx}: {rows}x{columns} {self.dtype_of(operand)}, "
            f"{layout[0].size} threads x {layout[1].size} values\n"
            f"  (t, v) -> row {row}, column {column}\n"
            f"  (row, column) -> t = {thread}, v = {value}{tail}"
        )

    @cached_property
    def coords_C(self) -> Layout:
        """`coords("C")`, the fragment map of the accumulator."""
        return self.coords("C")

    @checked(AtomError)
    def element_bits(self, operand: str) -> int:
        """Bits that one element of an operand takes up, its container's where it has one."""
        container = {"A": self.a_container, "B": self.b_container}.get(operand)
        return self.dtype_of(operand).bits if container is None else container.bits

    @checked(AtomError)
    def slot(self, operand: str, value: int) -> tuple[int, int]:
        """The register of one value of a thread: (32-bit register, lowest bit). A 64-bit value takes two registers.

        Raises AtomError for an operand that is not in registers, or a value that the fragment has not.

        >>> from layoutgemm.atoms import mma_sync
        >>> mma_sync((16, 8, 16)).slot("A", 5), mma_sync((16, 8, 32), "e2m1", "e4m3", kind="f8f6f4").slot("A", 5)
        ((2, 16), (1, 10))
        """
        self._in_registers(operand)
        count = self.layout(operand)[1].size
        if not 0 <= value < count:
            raise AtomError(
                f"operand {operand} of {self.ptx} has values 0..{count - 1} in a thread, not {shown(value)}"
            )
        container = {"A": self.a_container, "B": self.b_container}.get(operand)
        bit = value * self.element_bits(operand)
        return bit // 32, bit % 32 + (0 if container is None else container.low)

    @checked(AtomError)
    def registers(self, operand: str) -> int:
        """32-bit registers that an operand takes in each thread. Raises AtomError where it is not in registers.

        >>> from layoutgemm.atoms import mma_sync
        >>> [mma_sync((16, 8, 16)).registers(operand) for operand in "ABCD"]
        [4, 2, 4, 4]
        """
        self._in_registers(operand)
        return -(-int(self.layout(operand)[1].size) * self.element_bits(operand) // 32)

    def _in_registers(self, operand: str) -> None:
        self._known(operand)
        place = {"A": self.a_source, "B": self.b_source}.get(operand, self.c_source)
        if place != "rmem":
            raise AtomError(f"operand {operand} of {self.ptx} is in {place}, not in registers")

    @property
    def accumulator_registers(self) -> int:
        """32-bit registers that the accumulator takes in each thread. Its bits over all threads, divided evenly."""
        m, n, _ = self.shape_mnk
        return m * n * self.c_dtype.bits // (32 * self.threads)

    def __str__(self) -> str:
        return self.ptx
