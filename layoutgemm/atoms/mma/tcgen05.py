"""Blackwell's matrix product tcgen05.mma. One thread issues it, and one block or a pair of blocks does it.

The accumulator is in tensor memory, B in shared memory, A in either. M and N are shared out: of a pair, each block
holds half the rows of A and of the accumulator, and half the rows of B. Everything follows from one table of kinds and
from that sharing.

What the maps rest on: the PTX ISA's tables, CUTLASS's traits, and agreement with the CuTe DSL; no such device has run
them. The K of sm_107a rests on the DSL alone.

Sources: PTX ISA, "Matrix Shape" (table of .kind and shapes), "Valid Combinations of Type-Size, Major-ness and
Swizzling", "Transpose and Negate operations", "Block Scaling", and "tcgen05.mma" (target notes). Pairs of types and
majors: cute/arch/mma_sm100_umma.hpp; media/docs/cpp/blackwell_functionality.md of CUTLASS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ...arguments import checked, shown
from ...dtypes import DType, dtype
from ...errors import AtomError
from ...layouts import Layout
from ..targets import TENSOR_MEMORY_ARCHS
from ..tmem.layout import DataPath, TmemLayout, accumulator, datapath, operand_a, scale_factors, sparse_metadata
from .base import NARROW, MmaAtom, ScaleFactors


@dataclass(frozen=True)
class Kind:
    """One .kind of tcgen05.mma.

    name         as PTX spells it after .kind::
    types        what A and B may be
    mixed        A and B may differ
    accumulators type of A and B -> types of the accumulator ("" for any other type)
    k            K of a dense instruction; a sparse one has twice as much
    m            cta_group -> legal M
    n_step       cta_group -> N is a multiple of it, from it to 256
    n_more       cta_group -> further N
    scales       type of a block scale -> elements of K that share one
    transposes   the operands in shared memory may be MN-major
    archs        architectures that have it
    more_k       further K -> architectures that have it
    """

    name: str
    types: tuple[str, ...]
    k: int
    accumulators: Mapping[str, tuple[str, ...]]
    mixed: bool = False
    m: Mapping[int, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({1: (64, 128), 2: (128, 256)}))
    n_step: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({1: 8, 2: 16}))
    n_more: tuple[int, ...] = ()
    scales: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    transposes: bool = True
    archs: tuple[str, ...] = TENSOR_MEMORY_ARCHS
    more_k: Mapping[int, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))


_F32 = {"": ("f32",)}
_EITHER = {"": ("f32", "f16")}
_BLOCK_M = {1: (128,), 2: (128, 256)}
# PTX ISA, table "Various combinations of .kind and shapes"; target notes of tcgen05.mma for i8, whose A and B have a
# type each in the instruction descriptor, as CUTLASS's SM100_MMA_S8_SS has them.
KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in (
    Kind("f16", ("f16", "bf16"), 16, {"f16": ("f32", "f16"), "bf16": ("f32",)}),
    Kind("tf32", ("tf32",), 8, _F32),
    Kind("f8f6f4", NARROW, 32, _EITHER, mixed=True, more_k={64: ("sm_107a",)}),
    Kind("i8", ("i8", "u8"), 32, {"": ("i32",)}, mixed=True, n_step={1: 16, 2: 32}, n_more=(8, 24),
         archs=("sm_100a", "sm_110a")),
    Kind("mxf8f6f4", NARROW, 32, _F32, mixed=True, m=_BLOCK_M, scales={"ue8m0": (32,)}, more_k={64: ("sm_107a",)}),
    Kind("mxf4", ("e2m1",), 64, _F32, m=_BLOCK_M, scales={"ue8m0": (32,)}, transposes=False,
         more_k={96: ("sm_103a",)}),
    Kind("mxf4nvf4", ("e2m1",), 64, _F32, m=_BLOCK_M, scales={"ue4m3": (16,), "ue8m0": (32, 16)}, transposes=False,
         more_k={96: ("sm_103a",), 128: ("sm_107a",)}),
)})  # fmt: skip
_WS_M = (32, 64, 128)
# N of the weight-stationary form, dense and sparse.
_WS_N = {False: (64, 128, 256), True: (64, 128)}
_LAST_N = 256


@dataclass(frozen=True)
class Tcgen05Atom(MmaAtom):
    """One tcgen05.mma. `threads`, and the thread modes of its maps, count the blocks that work together.

    kind       the .kind, by name
    ws         the weight-stationary form
    sparse     A is structured sparse; its map counts the K of the dense matrix

    >>> atom = tcgen05_mma("f16", 256, 128, "bf16", cta_group=2)
    >>> print(atom, atom.layout_A, atom.layout_B, atom.layout_C)
    tcgen05.mma.cta_group::2.kind::f16 (2,(128,16)):(128,(1,256)) (2,(64,16)):(64,(1,128)) (2,(128,128)):(128,(1,256))
    >>> print(atom.accumulator)
    accumulator, layout A: (128,128,1):(1@0,1@1,0)
    """

    kind: str = ""
    ws: bool = False
    sparse: bool = False

    @property
    def cta_group(self) -> int:
        """Blocks that do one instruction together."""
        return self.threads

    @property
    def accumulator_registers(self) -> int:
        """None: the accumulator is in tensor memory."""
        return 0

    @property
    def datapath(self) -> DataPath:
        """The rows of one CTA over the lanes.

        >>> tcgen05_mma("f16", 128, 64, cta_group=2).datapath
        DataPath(letter='B', rows=64, parts=2, spread=False)
        """
        return datapath(self.shape_mnk[0], self.threads, self.ws, self.sparse)

    @property
    def accumulator(self) -> TmemLayout:
        """The tensor memory of one CTA's part of the accumulator."""
        m, n, _ = self.shape_mnk
        return accumulator(m, n, self.threads, self.ws, self.sparse, self.c_dtype)

    @property
    def operand_a(self) -> TmemLayout:
        """The tensor memory of one CTA's rows of A. AtomError when A comes from shared memory."""
        m, _, k = self.shape_mnk
        if self.a_source != "tmem":
            raise AtomError(f"{self} reads A from shared memory")
        if self.sparse and self.datapath.spread:
            raise AtomError(f"{self}: no layout of a sparse A over half of the lanes is known here")
        stored = k // 2 if self.sparse else k
        return operand_a(m, stored, self.a_dtype, self.kind, self.threads, self.ws)

    @property
    def metadata(self) -> TmemLayout:
        """The tensor memory of one CTA's metadata of a sparse A. AtomError for a dense A.

        >>> print(tcgen05_mma("f8f6f4", 128, 64, sparse=True).metadata)
        sparse metadata, layout D: (128,(8,2),1):(1@0,(4@2,1@1),0)
        """
        if not self.sparse:
            raise AtomError(f"{self} has a dense A, without metadata")
        return sparse_metadata(self.shape_mnk[0], self.kind, self.threads, self.ws)

    @checked(AtomError)
    def scale_layout(self, operand: str, instructions: int = 1) -> TmemLayout:
        """The tensor memory of one CTA's scale factors of operand "A" or "B". They serve that many instructions along
        K.

        A's are those of the block's own rows; B's are all N, in both blocks of a pair. N is padded to whole 32 rows
        here, as are the factors to whole words. Raises AtomError without block scales.

        >>> atom = tcgen05_mma("mxf4nvf4", 256, 192, cta_group=2)
        >>> print(atom.scale_layout("B", 2).layout)
        ((32,6),(4,2),4):((1@0,1@1),(8@2,6@1),32@0)
        """
        if self.scale is None or operand not in ("A", "B"):
            raise AtomError(f"{self} has no scale factors of operand {shown(operand)}")
        m, n, k = self.shape_mnk
        halves = self.datapath.parts if operand == "B" else 1
        rows = m // self.threads if operand == "A" else -(-n // (32 * halves)) * 32 * halves
        needed = instructions * (k // self.scale.vector)
        return scale_factors(rows, needed if needed < 4 else -(-needed // 4) * 4, self.scale.dtype, halves)


@checked(AtomError)
def legal_n(kind: str, cta_group: int = 1, ws: bool = False, sparse: bool = False) -> tuple[int, ...]:
    """Every N of that kind, ascending.

    >>> legal_n("i8")[:6], legal_n("f16", 2)[:3], legal_n("tf32", ws=True)
    ((8, 16, 24, 32, 48, 64), (16, 32, 48), (64, 128, 256))
    """
    if ws:
        return _WS_N[sparse]
    entry = KINDS[kind]
    step = entry.n_step[cta_group]
    more = entry.n_more if cta_group == 1 else ()
    return tuple(sorted({*range(step, _LAST_N + 1, step), *more}))


@checked(AtomError)
def legal_m(
    kind: str, cta_group: int = 1, k: int | None = None, ws: bool = False, sparse: bool = False
) -> tuple[int, ...]:
    """Every M of that kind, ascending.

    Over two blocks the sparse block-scaled forms and K = 96 have M = 256 alone. (K = 96 in one block is in CUTLASS's
    sm_103 kernels and in the DSL; PTX's table lists it for two blocks.)

    >>> legal_m("f16"), legal_m("mxf4", 2), legal_m("mxf4", 2, k=96), legal_m("f16", ws=True)
    ((64, 128), (128, 256), (256,), (32, 64, 128))
    """
    if ws:
        return _WS_M
    entry = KINDS[kind]
    if cta_group == 2 and entry.scales and (sparse or k == 96):
        return (256,)
    return entry.m[cta_group]


def _one_of(value: object, legal: tuple[object, ...], what: str) -> None:
    if not any(value == entry and type(value) is type(entry) for entry in legal):
        raise AtomError(f"{what} = {shown(value)}: PTX allows {', '.join(map(str, legal))}")


def _shared(rows: int, depth: int, blocks: int) -> Layout:
    """(block, value) -> row + rows*column: the rows are shared out to the blocks, each sees its own as one matrix."""
    own = rows // blocks
    return Layout((blocks, (own, depth)), (own if blocks > 1 else 0, (1, rows)))


def _operand_types(
    kind: str, given: tuple[DType | str | None, DType | str | None, DType | str | None], legal: tuple[str, ...],
    where: str,
) -> tuple[DType, DType, DType]:  # fmt: skip
    """Types of A, B and the accumulator, the kind's own where none are given; raises AtomError."""
    entry, (a, b, c) = KINDS[kind], given
    a_type = dtype(entry.types[0] if a is None else a)
    b_type = a_type if b is None else dtype(b)
    for name, found in (("A", a_type), ("B", b_type)):
        _one_of(found.name, legal, f"the type of {name} of {where}")
    if a_type != b_type and not entry.mixed:
        raise AtomError(f"kind::{kind} multiplies equal types, not A {a_type} with B {b_type}")
    accumulators = entry.accumulators.get(a_type.name) or entry.accumulators[""]
    c_type = dtype(accumulators[0] if c is None else c)
    _one_of(c_type.name, accumulators, f"the accumulator of kind::{kind} with {a_type} inputs")
    return a_type, b_type, c_type


@checked(AtomError)
def tcgen05_mma(
    kind: str,
    m: int,
    n: int,
    a: DType | str | None = None,
    b: DType | str | None = None,
    c: DType | str | None = None,
    cta_group: int = 1,
    a_source: str = "smem",
    scale: DType | str | None = None,
    vector: int | None = None,
    k: int | None = None,
    ws: bool = False,
    sparse: bool = False,
) -> Tcgen05Atom:
    """Blackwell's matrix product tcgen05.mma of one kind, m x n x K.

    kind         "f16", "tf32", "f8f6f4", "i8", or block-scaled "mxf8f6f4", "mxf4", "mxf4nvf4"
    a, b, c      types of A (default: the kind's first), B (default: A's) and the accumulator (default: the widest)
    cta_group    1, or 2 for a pair of blocks
    a_source     "smem" or "tmem"
    scale, vector   type of a block scale and elements of K that share one (defaults: the kind's first)
    k            K, where a kind has several: 96 on sm_103a, twice the usual on sm_107a
    ws, sparse   the forms tcgen05.mma.ws and tcgen05.mma.sp

    The atom's majors are what this N allows: an 8-bit or narrower B that is MN-major needs N in steps of 16 (32 for two
    blocks). tf32 is MN-major only under the 128-byte swizzle of 32-byte chunks, and A in tensor memory is K-major.

    With A in tensor memory CUTLASS admits N in steps of 16 (M = 128) or 32 (two blocks) only; PTX's table and the DSL
    make no such difference, nor does this.

    Raises AtomError for every other combination, naming what PTX allows. Left out: the sub-forms .ashift, .collector
    and scale-input-d, which change no map.

    >>> print(tcgen05_mma("mxf4nvf4", 128, 64), tcgen05_mma("f16", 64, 8, a_source="tmem").a_source)
    tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 tmem
    >>> tcgen05_mma("f16", 256, 64)
    Traceback (most recent call last):
    ...
    layoutgemm.errors.AtomError: M of kind::f16, cta_group::1 = 256: PTX allows 64, 128
    """
    _one_of(kind, tuple(KINDS), "the kind of tcgen05.mma")
    entry = KINDS[kind]
    _one_of(cta_group, (1,) if ws else (1, 2), "cta_group of tcgen05.mma.ws" if ws else "cta_group")
    _one_of(a_source, ("smem", "tmem"), "the source of A")
    if ws and entry.scales:
        raise AtomError(f"kind::{kind} has no .ws form; PTX has it for {_names(lambda other: not other.scales)}")
    doubled = 2 if sparse else 1
    depths = [entry.k * doubled, *(() if sparse else entry.more_k)]
    depth = depths[0] if k is None else k
    _one_of(depth, tuple(depths), f"K of {'sparse ' if sparse else ''}kind::{kind}")
    form = f"{'.ws' if ws else ''}{'.sp' if sparse else ''}"
    where = f"kind::{kind}{form}, cta_group::{cta_group}"
    _one_of(m, legal_m(kind, cta_group, depth, ws, sparse), f"M of {where}{f', K = {depth}' if k else ''}")
    _one_of(n, legal_n(kind, cta_group, ws, sparse), f"N of {where}")
    a_type, b_type, c_type = _operand_types(kind, (a, b, c), _types(entry, depth, sparse), f"{where}, K = {depth}")
    factors = _scales(entry, m, n, depth, cta_group, scale, vector, doubled)
    archs = entry.archs if depth == depths[0] else entry.more_k[depth]
    block = f".block_scale.block{factors.vector // doubled}" if factors is not None else ""
    return Tcgen05Atom(
        ptx=f"tcgen05.mma{form}.cta_group::{cta_group}.kind::{kind}{block}",
        archs=archs,
        shape_mnk=(m, n, depth),
        a_dtype=a_type,
        b_dtype=b_type,
        c_dtype=c_type,
        threads=cta_group,
        layout_A=_shared(m, depth, cta_group),
        layout_B=_shared(n, depth, cta_group),
        layout_C=_shared(m, n, cta_group),
        a_source=a_source,
        b_source="smem",
        c_source="tmem",
        a_majors=("K", "MN") if entry.transposes and a_source == "smem" else ("K",),
        b_majors=("K", "MN") if entry.transposes and (b_type.bits > 8 or n % (16 * cta_group) == 0) else ("K",),
        scale=factors,
        source='PTX ISA, "tcgen05.mma" and "Matrix Shape"; cute/atom/mma_traits_sm100.hpp; no device has run it here',
        kind=kind,
        ws=ws,
        sparse=sparse,
    )


def _types(entry: Kind, k: int, sparse: bool = False) -> tuple[str, ...]:
    """The types of A and B at this K: sm_107a's longer f8f6f4 takes the 8-bit types alone, as the DSL has it."""
    return entry.types[:2] if entry.name == "f8f6f4" and k != entry.k and not sparse else entry.types


def _names(holds: Callable[[Kind], object]) -> str:
    return ", ".join(f"kind::{entry.name}" for entry in KINDS.values() if holds(entry))


def _scales(
    entry: Kind, m: int, n: int, k: int, blocks: int, scale: DType | str | None, vector: int | None, doubled: int
) -> ScaleFactors | None:
    """The block scales of an instruction, or None for a kind without them.

    A sparse instruction has as many factors as the dense one, so each is for twice (`doubled`) as much of K.
    """
    if not entry.scales:
        if scale is not None or vector is not None:
            having = _names(lambda kind: kind.scales)
            raise AtomError(f"kind::{entry.name} has no block scales; PTX has them for {having}")
        return None
    kind = dtype(next(iter(entry.scales)) if scale is None else scale)
    _one_of(kind.name, tuple(entry.scales), f"the scale type of kind::{entry.name}")
    vectors = entry.scales[kind.name]
    length = vectors[0] if vector is None else vector
    _one_of(length, vectors, f"elements that share a {kind} scale in kind::{entry.name}")
    span = length * doubled
    count = k // span
    # Each block scales its own rows of A, and needs the factors of every row of B.
    layout_b = Layout((blocks, (n, count)), (0, (1, n)))
    return ScaleFactors(kind, span, _shared(m, count, blocks), layout_b)


def tcgen05_mma_atoms(kind: str | None = None, every_n: bool = False) -> Iterator[Tcgen05Atom]:
    """Every dense tcgen05.mma, each with its block scales. They vary kind, types, accumulator, K, cta_group, M and
    source of A.

    kind      one kind alone
    every_n   every legal N instead of the smallest and the largest

    The .sp and .ws forms have the maps of the dense ones and are left to `tcgen05_mma`.

    >>> [len(list(tcgen05_mma_atoms(kind))) for kind in ("f16", "tf32", "mxf4")]
    [48, 16, 20]
    """
    if kind is not None:
        _one_of(kind, tuple(KINDS), "the kind of tcgen05.mma")
    for entry in [KINDS[kind]] if kind is not None else KINDS.values():
        for a_type in entry.types:
            for b_type in entry.types if entry.mixed else (a_type,):
                yield from _atoms_of(entry, a_type, b_type, every_n)


def _atoms_of(entry: Kind, a_type: str, b_type: str, every_n: bool) -> Iterator[Tcgen05Atom]:
    scales: list[tuple[str | None, int | None]] = [(s, v) for s, vs in entry.scales.items() for v in vs]
    scales = scales or [(None, None)]
    for k in (entry.k, *entry.more_k):
        if not {a_type, b_type} <= set(_types(entry, k)):
            continue
        for c_type in entry.accumulators.get(a_type) or entry.accumulators[""]:
            for scale, vector in scales:
                for group in (1, 2):
                    ns = legal_n(entry.name, group)
                    for m in legal_m(entry.name, group, k):
                        for n in ns if every_n else (ns[0], ns[-1]):
                            for a_source in ("smem", "tmem"):
                                yield tcgen05_mma(
                                    entry.name, m, n, a_type, b_type, c_type, group, a_source, scale, vector, k
                                )
