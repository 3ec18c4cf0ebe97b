"""Operands: how a matrix is given, and the tile, copies and descriptor derived for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..arch import ARCHES
from ..arguments import checked, nearest, settle, shown, unnamed
from ..atoms import MmaAtom, OperandDescriptor, SmemTile, TmaPlan, smem_tile
from ..atoms.smem.descriptor import derive as derive_descriptor
from ..atoms.smem.operand_read import operand_read
from ..atoms.tma.derive import STRIDE_UNIT
from ..atoms.tma.derive import derive as derive_tma
from ..atoms.tma.plan import TmaCopy
from ..atoms.tma.rules import FORMATS
from ..dtypes import DType, dtype, multiply_together, u8, way_to_alike
from ..errors import OperandError, PlanError
from ..memo import memoized
from .numbers import W


@dataclass(frozen=True, slots=True)
class EdgeBoxes:
    """An operand's boxes along the dimension where its rows end; ints or traced integers alike.

    dim     "m" or "n"
    box     rows of a box
    shares  blocks that each send a part of a tile
    step    rows from one share to the next: a box, or 0 where shares are parts of K
    line    bytes of a row of a share
    unit    elements of C that a tensor store writes together
    """

    dim: str
    box: int
    shares: int
    step: int
    line: int
    unit: int

    @property
    def bytes(self) -> int:
        """The bytes of a tile of whole boxes."""
        return self.shares * self.box * self.line

    def last(self, extent: W) -> W:
        """Rows of the last box of a matrix with `extent` rows.

        >>> ends = EdgeBoxes("m", 128, 1, 128, 128, 8)
        >>> ends.last(408), ends.last(512), ends.last(5)
        (24, 128, 8)
        """
        rows = (extent - 1) % self.box + self.unit
        return rows - rows % self.unit

    def of_last_rows(self, tma: TmaPlan, extent: int) -> TmaPlan:
        """The copies with boxes of a matrix's last rows."""
        at = tma.dims.index(self.dim)
        return replace(tma, box=(*tma.box[:at], self.last(extent), *tma.box[at + 1 :]))

    def left(self, extent: W, first: W, share: W) -> W:
        """Rows of the matrix from a share's first one on, below 1 where it is outside. `first` is the tile's row."""
        return extent - first - share * self.step

    def place(self, extent: W, first: W, share: W, choose: Callable[[Any, Any, Any], Any]) -> tuple[Any, Any]:
        """(True if a share's box is whole, the tile's row that it is copied from).

        The row is the tile's own, or one that puts the share on the matrix's first rows.

        choose  (condition, yes, no) -> one of them

        >>> two = EdgeBoxes("n", 64, 2, 64, 128, 8)
        >>> [two.place(300, 256, share, either) for share in (0, 1)]  # 44 rows left, and none
        [(False, 256), (False, -64)]
        """
        left = self.left(extent, first, share)
        return left >= self.box, choose(left > 0, first, -share * self.step)

    def expected(self, extent: W, first: W, last: W, choose: Callable[[Any, Any, Any], Any]) -> W:
        """Bytes that all shares of a tile bring; `last` is `last(extent)`.

        >>> two = EdgeBoxes("n", 64, 2, 64, 128, 8)  # 128 rows, by two blocks
        >>> [two.expected(100, first, 40, either) // 128 for first in (0, 128)]
        [104, 80]
        """
        if not self.step:
            return choose(self.left(extent, first, 0) >= self.box, self.box, last) * (self.shares * self.line)
        rows = [choose(self.left(extent, first, share) >= self.box, self.box, last) for share in range(self.shares)]
        return sum(rows[1:], rows[0]) * self.line


def either(condition: object, yes: W, no: W) -> W:
    """One of two numbers, as the kernel chooses without a branch."""
    return yes if condition else no


ORDERS = ("row", "col")
OTHER_ORDER = {"row": "col", "col": "row"}


MOST_SHARED = max(entry.smem_per_block for entry in ARCHES.values())


def check_pair(a: Operand, b: Operand) -> None:
    """Raise PlanError, with the way out, for operands of two types that no instruction multiplies.

    >>> check_pair(Operand.parse("bf16"), Operand.parse("e4m3:col"))
    Traceback (most recent call last):
    ...
    layoutgemm.errors.PlanError: a is bf16 and b e4m3: no instruction multiplies them; convert b to bf16, which has \
all values of e4m3
    """
    if not multiply_together(a.dtype, b.dtype):
        way = way_to_alike(a.dtype, b.dtype)
        raise PlanError(f"a is {a.dtype} and b {b.dtype}: no instruction multiplies them; {way}")


def refused_output(c: DType, a: DType, known: Sequence[str], way: str = "") -> PlanError:
    """The refusal of a type of C. The types that are stored, and how to get the one asked for.

    known   types that the kernel stores of products of A's type, the accumulator's first
    way     what else makes such a C; by default it is converted afterwards

    >>> str(refused_output(dtype("i8"), dtype("i8"), ("i32", "f32")))
    'c is i8; of i8 inputs this kernel stores i32, f32: store i32 and convert it'
    """
    if c.name == "tf32" and "f32" in known:
        way = "store f32, which has all of its values"
    way = way or f"store {known[0]} and convert it"
    return PlanError(f"c is {c}; of {a} inputs this kernel stores {', '.join(known)}: {way}")


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand's element type and order.

    order  "row": the second index is contiguous (C order); "col": the first is (Fortran order, or a transposed view)

    >>> Operand.parse("bf16:col")
    Operand(dtype=dtype('bf16'), order='col')
    """

    dtype: DType
    order: str = "row"

    def __post_init__(self) -> None:
        settle(self, PlanError)
        if self.order not in ORDERS:
            raise PlanError(f"the order of a matrix is 'row' or 'col', not {shown(self.order)}")

    @classmethod
    @checked(PlanError)
    def parse(cls, spec: Operand | DType | str | object) -> Operand:
        """An operand from its name, as in "bf16:col", a dtype, or an Operand. Raises PlanError for anything else."""
        if isinstance(spec, Operand):
            return spec
        name, _, order = spec.partition(":") if isinstance(spec, str) else (spec, "", "")
        if order not in ("", *ORDERS):
            way_out = nearest(order, ORDERS).rstrip() or "'col' is the order of a row-major matrix's transpose"
            said = f"{shown(spec)}: the order is 'row' or 'col', not {shown(order)}"
            raise unnamed(PlanError(f"{said}; {way_out}"), spec)
        try:
            return cls(dtype(name), order or "row")
        except OperandError as error:
            raise unnamed(error, spec) from None

    def __str__(self) -> str:
        return f"{self.dtype} {self.order}-major"


OperandSpec = Operand | DType | str  # how a caller names an operand


@dataclass(frozen=True)
class OperandPlan:
    """One input operand. The global matrix, its tile in shared memory, the copies between, and its descriptor.

    name   "A" or "B"
    order  of the global matrix, A being M x K and B being K x N
    major  "K" when K is contiguous in it, else "MN": shared memory keeps the order, since a tensor copy does not
           transpose
    rest   where the tile's last span is not full: the copies of what it has, `tma` being those of the full ones
    others the copies from further matrices, which lie side by side in the tile: see `kernels.operands.combined`
    ends   where the copies end with the matrix, by a tensor map of the rows that are left: see `kernels.sm90.edges`
    turned the copies of a tile that CTAs share only where a pair of them has turned, by a tensor map of their own
    """

    name: str
    dtype: DType
    order: str
    major: str
    smem: SmemTile
    tma: TmaPlan
    descriptor: OperandDescriptor
    rest: TmaPlan | None = None
    ends: EdgeBoxes | None = None
    others: tuple[TmaPlan, ...] = ()
    turned: TmaPlan | None = None

    @property
    def unit(self) -> DType:
        """The type that memory counts in: bytes, of two elements each, where those have 4 bits.

        Of padded elements shared memory has a byte for each: 16 of them lie packed at the start of 16 bytes.
        """
        return memory_unit(self.dtype)

    @property
    def padded(self) -> bool:
        """True for elements of 6 or 4 bits that a tensor map pads to a byte each."""
        return self.smem.packing != "packed"

    @property
    def per_unit(self) -> int:
        """Elements of K in a unit of memory."""
        return 1 if self.padded else self.unit.bits // self.dtype.bits

    @property
    def unit_tile(self) -> SmemTile:
        """The tile in units of memory, as its copies see it."""
        return self.smem if self.unit == self.dtype else in_bytes(self.smem)

    @property
    def copies(self) -> tuple[TmaPlan, ...]:
        """The copies of a tile, those of each tensor map."""
        return (self.tma, *(() if self.rest is None else (self.rest,)), *self.others)

    @property
    def maps(self) -> int:
        """The number of its tensor maps."""
        return len(self.copies) + (self.ends is not None) + (self.turned is not None)

    @property
    def bytes(self) -> int:
        """The bytes that a barrier expects for one tile that lies inside of the matrix."""
        return sum(tma.bytes for tma in self.copies)

    @property
    def sent_bytes(self) -> int:
        """The bytes of a tile that one CTA reads from global memory for its sharers."""
        return sum(tma.sent_bytes for tma in self.copies)


@memoized(512)
def with_copies(operand: OperandPlan, copies: Sequence[TmaPlan]) -> OperandPlan:
    """The operand with other copies, those of each tensor map."""
    first, *rest = copies
    if operand.others:
        return replace(operand, tma=first, others=tuple(rest))
    return replace(operand, tma=first, rest=rest[0] if rest else None)


def derive_operand(
    name: str, spec: Operand, free: str, extent: int, tile_k: int, swizzle: str | None, atom: MmaAtom
) -> OperandPlan:
    """A is M x K and B is K x N. K is contiguous in a row-major A and in a column-major B.

    Raises PlanError where no thread block has shared memory for one tile.
    """
    if (tile_bytes := extent * tile_k * spec.dtype.bits // 8) > MOST_SHARED:
        raise PlanError(
            f"a tile of {name} of {extent}x{tile_k} {spec.dtype} elements has {tile_bytes} bytes; a thread block has "
            f"{MOST_SHARED} bytes of shared memory at most"
        )
    k_contiguous = (spec.order == "row") == (name == "A")
    major = "K" if k_contiguous else "MN"
    packing = "packed" if spec.dtype.bits >= u8.bits else operand_read(atom, name).packing
    if packing != "packed" and not k_contiguous:
        raise PlanError(f"{name.lower()} is {spec}: padded elements are copied along K here; a 'row' A and a 'col' B")
    tile = smem_tile((extent, tile_k), spec.dtype, major, swizzle, packing=packing)
    dims = ("k", free.lower()) if k_contiguous else (free.lower(), "k")
    if packing != "packed":
        return OperandPlan(name, spec.dtype, spec.order, major, tile, padded_copy(tile, (dims[0], dims[1])),
                           derive_descriptor(tile, atom, name))  # fmt: skip
    copied = tile if spec.dtype.bits >= u8.bits else in_bytes(tile)
    return OperandPlan(
        name=name,
        dtype=spec.dtype,
        order=spec.order,
        major=major,
        smem=tile,
        tma=derive_tma(copied, (dims[0], dims[1])),
        descriptor=derive_descriptor(tile, atom, name),
    )


def is_padded(operand: object) -> bool:
    """True for an operand whose elements a tensor map pads to a byte each."""
    return isinstance(operand, OperandPlan) and operand.padded


def padded_copy(tile: SmemTile, dims: tuple[str, str]) -> TmaPlan:
    """The copy of a K-major tile of padded elements. It is one box of 128 elements of K.

    Raises PlanError for a tile of another depth.

    >>> padded_copy(smem_tile((64, 128), "e3m2", "K"), ("k", "n")).format
    '16U6_ALIGN16B'
    """
    kind = next(x for x in FORMATS.values() if x.gmem_bits == tile.dtype.bits and x.smem_bits == u8.bits)
    rows, depth = tile.extent
    if depth != kind.inner_box:
        raise PlanError(f"tile_k = {depth}: a box of padded {tile.dtype} has {kind.inner_box} elements along K")
    return TmaPlan(tile.dtype, dims, (depth, rows), tile.swizzle_name, (TmaCopy((0, 0), 0, rank=0),), format=kind.name)


def memory_unit(kind: DType) -> DType:
    """The type that memory of such elements counts in.

    Bytes of two elements each, or the elements.

    >>> memory_unit(dtype("e2m1")), memory_unit(dtype("bf16"))
    (dtype('u8'), dtype('bf16'))
    """
    return u8 if kind.bits < u8.bits else kind


def in_bytes(tile: SmemTile) -> SmemTile:
    """A K-major tile of narrow elements as one of bytes. A byte has two of 4 bits, or a padded one.

    >>> print(in_bytes(smem_tile((128, 256), "e2m1", "K")))
    S<3,4,3>[bytes] o ((8,16),(128,1)):((128,1024),(1,0)) x u8
    """
    rows, depth = tile.extent
    if tile.packing == "packed":
        depth = depth * tile.dtype.bits // u8.bits
    return smem_tile((rows, depth), u8, tile.major, tile.swizzle_name)


@checked(PlanError)
def padded_leading(dtype: DType, extent: int) -> int:
    """The smallest leading dimension from `extent` elements on, in whole units of 16 bytes."""
    unit = STRIDE_UNIT * 8 // dtype.bits
    return -(-extent // unit) * unit


def one_matrix(tma: TmaPlan) -> TmaPlan:
    """Copies without the dimensions along which a box has one element: matrices, ends of groups."""
    if len(tma.box) == 2:
        return tma
    assert not any(x != 1 for x in tma.box[2:]) and not any(any(i.coord_offset[2:]) for i in tma.instructions), tma
    copies = tuple(replace(copy, coord_offset=copy.coord_offset[:2]) for copy in tma.instructions)
    return replace(tma, dims=tma.dims[:2], box=tma.box[:2], steps=tma.steps[:2], instructions=copies)
