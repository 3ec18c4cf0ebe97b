"""The tensor copies of a tile as a value. Box, coordinates, shared offsets, bytes, and which block issues what.

A plan says everything that a kernel needs to fill (or empty) one tile. It has the tensor map to encode on the host, and
the start of every instruction's box, in the tensor and in shared memory. `tma_derive` makes plans from layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...arguments import Integer, checked, shown
from ...dtypes import DType
from ...errors import OperandError, TmaError
from ...layouts import Layout
from ...layouts.display import HasPicture, converted
from ...lazy_numpy import np
from . import engine
from .box import Digit
from .rules import MAX_DIM, MODES, Format, TensorMap, broken, format_of, line_overrun, whole_units

if TYPE_CHECKING:
    import numpy.typing as npt

# One digit of a tile's number along a mode: how many tiles (None: as many as are left), and what one step adds to the
# coordinate of each dimension named.


LISTED = 16  # instructions that explain() lists


@dataclass(frozen=True, slots=True)
class TmaCopy:
    """One instruction of a tile: where its box starts.

    coord_offset  in the tile, elements, innermost dimension first
    smem_offset   in the tile's shared memory, bytes
    rank          which block of a multicast group issues it
    """

    coord_offset: tuple[int, ...]
    smem_offset: int
    rank: int = 0


@dataclass(frozen=True, slots=True)
class TmaPlan(HasPicture):
    """The copies that fill one tile, or empty it.

    dtype         element type
    dims          names of the tensor map's dimensions, innermost (contiguous) first; merged ones joined by "+"
    box           box extents in elements, innermost first
    swizzle       a name of `MODES`
    instructions  one entry an instruction, in order of shared-memory offset
    steps         traversal strides, innermost first; () for steps of 1
    extents, strides   of the global tensor as the map sees it (elements; bytes, without the first); None where they
                  are given at run time
    operation     "load", "store" or "reduce"
    reduction     "add", ... for a reduce
    multicast     blocks of a cluster that share the tile; each issues the instructions of its rank
    starts        for each mode of the global layout, the digits that turn a tile's number into coordinates
    stages, stage_bytes   copies of the tile in shared memory, and how far apart they are
    conditions    what the sizes must obey besides, where they are symbols
    gmem, smem, tile   the layouts that the plan was derived from
    advice        where a tile takes many small boxes: a shared layout that takes fewer, "" for none
    """

    dtype: DType
    dims: tuple[str, ...]
    box: tuple[int, ...]
    swizzle: str
    instructions: tuple[TmaCopy, ...]
    steps: tuple[int, ...] = ()
    extents: tuple[Any, ...] | None = None
    strides: tuple[Any, ...] | None = None
    operation: str = "load"
    reduction: str = ""
    format: str = ""
    l2_promotion: str = "128B"
    oob_fill: str = "zeros"
    multicast: int = 1
    starts: tuple[tuple[Digit, ...], ...] = ()
    stages: int = 1
    stage_bytes: int = 0
    conditions: tuple[str, ...] = ()
    gmem: Layout | None = field(default=None, repr=False)
    smem: Any = field(default=None, repr=False)
    tile: tuple[object, ...] = field(default=(), repr=False)
    advice: str = field(default="", repr=False, compare=False)

    # -------------------------------------------------------------------------------------------------------- the map
    @checked(TmaError)
    def over(self, extents: Sequence[Integer], strides: Sequence[Integer]) -> TensorMap:
        """The tensor map of these extents (elements) and strides (bytes, without the first)."""
        return TensorMap(
            self.dtype, tuple(extents), tuple(strides), self.box, self.each_step, self.swizzle, self.format,
            self.l2_promotion, self.oob_fill,
        )  # fmt: skip

    @property
    def tensor_map(self) -> TensorMap:
        """The tensor map for the host to encode. Raises TmaError for a plan whose sizes are given at run time: see
        `over`."""
        if self.extents is None or self.strides is None:
            raise TmaError("the plan was derived without a global layout: give extents and strides to over()")
        return self.over(self.extents, self.strides)

    @property
    def each_step(self) -> tuple[int, ...]:
        """The traversal stride of every dimension of the box."""
        return self.steps or (1,) * len(self.box)

    @property
    def moved(self) -> tuple[int, ...]:
        """Elements that one instruction moves along each dimension, as of `TensorMap`."""
        return self._box_map.moved

    @property
    def _box_map(self) -> TensorMap:
        """A map with the plan's box over a tensor just as large: what does not depend on the tensor."""
        return self.over(self.box, (0,) * (len(self.box) - 1))

    @property
    def kind(self) -> Format:
        """The element format."""
        return format_of(self.dtype, self.format or None)

    @property
    def driver_swizzle(self) -> int:
        """The CUtensorMapSwizzle enumerator."""
        return MODES[self.swizzle].driver

    # ---------------------------------------------------------------------------------------------------------- bytes
    @property
    def box_bytes(self) -> int:
        """Bytes that one instruction moves and reports to the barrier. Elements outside the tensor count, as zeros."""
        return engine.bytes_moved(self._box_map)

    @property
    def bytes(self) -> int:
        """Bytes that arrive in one block for the tile, from all blocks of its group. What its barrier expects."""
        return self.box_bytes * len(self.instructions)

    @property
    def sent_bytes(self) -> int:
        """Bytes that one CTA of the multicast group reads from global memory for the group."""
        return self.bytes // self.multicast

    @property
    def alignment(self) -> int:
        """Bytes that the tile's shared address is a multiple of."""
        return MODES[self.swizzle].period

    @checked(TmaError)
    def issued_by(self, rank: int) -> tuple[TmaCopy, ...]:
        """The instructions of one block of the multicast group."""
        return tuple(copy for copy in self.instructions if copy.rank == rank)

    @checked(TmaError)
    def batched(self, name: str) -> TmaPlan:
        """The same copies from (or to) one matrix of many. The map has one more, outermost, dimension of that name.

        Boxes have one element along it, so shared memory and bytes stay as they are. For plans whose sizes are given at
        run time; raises TmaError for others, and where the map has five dimensions already.

        >>> from layoutgemm.atoms import smem_tile
        >>> from layoutgemm.atoms.tma.derive import derive
        >>> plan = derive(smem_tile((64, 64), "bf16", "K"), ("k", "m")).batched("l")
        >>> plan.dims, plan.box, plan.bytes
        (('k', 'm', 'l'), (64, 64, 1), 8192)
        """
        if self.extents is not None or name in self.dims:
            raise TmaError(
                f"dimension {shown(name)} cannot be added to {self.dims} of extents {self.extents}",
                rule="tile",
            )
        if len(self.box) == 5:
            raise TmaError("a tensor map has five dimensions at most", rule="rank")
        return replace(
            self,
            dims=(*self.dims, name),
            box=(*self.box, 1),
            steps=(*self.steps, 1) if self.steps else (),
            instructions=tuple(replace(i, coord_offset=(*i.coord_offset, 0)) for i in self.instructions),
        )

    # --------------------------------------------------------------------------------------------------------- places
    @checked(TmaError)
    def start(self, index: Sequence[Integer]) -> tuple[Integer, ...]:
        """Tile number along each mode of the global layout -> coordinates of its first element. The innermost comes
        first.

        Takes ints, symbols or traced integers.
        """
        if len(index) != len(self.starts):
            raise TmaError(
                f"{len(self.starts)} tile numbers, one a mode of {self.gmem}, not {shown(tuple(index))}", rule="tile"
            )
        out: list[Integer] = [0] * len(self.box)
        for number, digits in zip(index, self.starts, strict=True):
            for place, (count, adds) in enumerate(digits):
                last = place == len(digits) - 1
                digit = number if last else number % count
                number = number if last else number // count
                for dim, step in adds:
                    out[dim] = out[dim] + digit * step
        return tuple(out)

    @checked(TmaError)
    def coordinates(self, index: Sequence[Integer]) -> tuple[tuple[Any, ...], ...]:
        """The coordinates of every instruction of the tile of that number."""
        start = self.start(index)
        return tuple(tuple(a + b for a, b in zip(start, copy.coord_offset, strict=True)) for copy in self.instructions)

    @checked(TmaError)
    def inside(self, index: Sequence[int]) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each instruction, the part of its box in the tensor. It is (first, end) of box elements along each
        dimension.

        An empty range means that all of the box is outside. Elements outside are zeros in a load. A store writes
        `written`, which is more where a line ends within 16 bytes; the bytes moved are the same.
        """
        return self._parts(self.tensor_map, index)

    @checked(TmaError)
    def written(self, index: Sequence[int]) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The part of its box that each instruction of a store writes, like `inside`.

        That is the part in the tensor, and in the innermost dimension the rest of the line's last 16 bytes. Reductions
        touch the same elements. Raises TmaError for a load.

        >>> from layoutgemm.atoms import tma_store
        >>> store = tma_store(Layout((9, 37), (40, 1)), Layout((8, 32), (32, 1)), "bf16")
        >>> store.inside((1, 1)), store.written((1, 1))
        ((((0, 5), (0, 1)),), (((0, 8), (0, 1)),))
        """
        if self.operation == "load":
            raise TmaError("a load writes shared memory, all of its box", rule="direction")
        return self._parts(whole_units(self.tensor_map), index)

    @checked(TmaError)
    def line_overrun(self, extent: int) -> int:
        """Elements beyond a line of `extent` elements that the copies write. 0 of a load, and of whole 16-byte units.

        >>> from layoutgemm.atoms import smem_tile
        >>> from layoutgemm.atoms.tma.derive import derive
        >>> store = derive(smem_tile((64, 64), "bf16", "K"), ("n", "m"), "store")
        >>> store.line_overrun(1037), store.line_overrun(1040)
        (3, 0)
        """
        return 0 if self.operation == "load" else line_overrun(extent, self.kind)

    def _parts(self, tmap: TensorMap, index: Sequence[int]) -> tuple[tuple[tuple[int, int], ...], ...]:
        return tuple(
            tuple(
                (min(n, max(0, -(at // step))), max(0, min(n, -((at - extent) // step))))
                for at, step, n, extent in zip(start, tmap.steps, tmap.moved, tmap.extents, strict=True)
            )
            for start in self.coordinates(index)
        )

    @checked(TmaError)
    def box_addresses(self, smem_address: int) -> npt.NDArray[np.int64]:
        """The shared-memory addresses of one box. Array [innermost, ..., outermost] of the shared byte address of each
        element.

        The engine's arithmetic, which knows the box and the swizzle, not the tile's layout.
        """
        return engine.shared_bits(self._box_map, smem_address) // 8

    # ---------------------------------------------------------------------------------------------------------- rules
    @checked(TmaError)
    def check_global(self, name: str, address: int, shape: Sequence[int], strides: Sequence[int]) -> None:
        """Hold a global tensor against the rules of the tensor map.

        name     how errors call the tensor
        address  bytes; shape in elements, innermost first; strides in elements of every dimension but the innermost

        Raises OperandError naming the tensor, the rule and the numbers.
        """
        if len(shape) != len(self.box) or len(strides) != len(self.box) - 1:
            raise OperandError(f"{name} has {len(shape)} dimensions, its box has {len(self.box)}")
        for dim, extent in zip(self.dims, shape, strict=True):
            if not 1 <= extent <= MAX_DIM:
                raise OperandError(f"{name}: dimension {dim} has {extent} elements, a tensor map takes 1 to 2**32")
        bits = self.kind.gmem_bits
        for dim, stride in zip(self.dims[1:], strides, strict=True):
            if stride * bits % (8 * self.kind.unit):
                raise OperandError(
                    f"{name}: stride of {dim} is {stride} elements * {bits / 8:g} = {stride * bits / 8:g} bytes, "
                    f"a tensor map needs a multiple of {self.kind.unit} bytes"
                )
        tmap = self.over(shape, tuple(stride * bits // 8 for stride in strides))
        for fault in broken(tmap, address, self.operation, self.dims):
            raise OperandError(f"{name}: {fault.arithmetic}".replace(f"{name}: the tensor", name))

    # -------------------------------------------------------------------------------------------------------- the DSL
    def to_cute(self, tensor: object) -> Any:
        """The result of the CuTe DSL's make_tiled_tma_atom on its tensor and this tile. See interop.to_cute."""
        return converted(self, tensor=tensor)

    # ---------------------------------------------------------------------------------------------------------- words
    @property
    def ptx(self) -> str:
        """The instruction. Source: PTX ISA, cp.async.bulk.tensor and cp.reduce.async.bulk.tensor."""
        rank = len(self.box)
        if self.operation == "store":
            return f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
        if self.operation == "reduce":
            return f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{self.reduction}.tile.bulk_group"
        tail = ".multicast::cluster" if self.multicast > 1 else ""
        return f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{tail}"

    @property
    def prefetch(self) -> str:
        """The instruction that brings a load's box into L2 only. Same map, same coordinates, no shared memory."""
        return f"cp.async.bulk.prefetch.tensor.{len(self.box)}d.L2.global.tile"

    def explain(self) -> str:
        """The box and its instructions, as a table.

        >>> from layoutgemm.atoms import smem_tile
        >>> from layoutgemm.atoms.tma.derive import derive
        >>> print(derive(smem_tile((64, 128), "bf16", "K"), ("k", "m")).explain())
        box (k 64, m 64) of bf16, swizzle 128B, 8192 bytes, 2 instructions
          at (k +0, m +0) -> shared byte +0
          at (k +64, m +0) -> shared byte +8192
        """
        return "\n".join(self._lines())

    def __str__(self) -> str:
        """The first line of `explain()`."""
        return next(self._lines())

    def _lines(self) -> Iterator[str]:
        box = ", ".join(
            f"{dim} {extent}" + (f" in steps of {step}" if step > 1 else "")
            for dim, extent, step in zip(self.dims, self.box, self.each_step, strict=True)
        )
        count = f"{len(self.instructions)} instruction{'s' if len(self.instructions) > 1 else ''}"
        yield f"box ({box}) of {self.dtype}, swizzle {self.swizzle}, {self.box_bytes} bytes, {count}"
        if self.extents is not None and self.strides is not None:
            over = ", ".join(map(str, self.extents))
            yield f"  tensor ({over}), strides in bytes ({', '.join(map(str, self.strides))})"
        arrow = "->" if self.operation == "load" else "<-"
        if self.advice:
            yield f"  {self.advice}"
        listed = self.instructions if len(self.instructions) <= LISTED + 1 else self.instructions[:LISTED]
        for copy in listed:
            at = ", ".join(f"{dim} +{offset}" for dim, offset in zip(self.dims, copy.coord_offset, strict=True))
            sender = f", sent by block {copy.rank}" if self.multicast > 1 else ""
            yield f"  at ({at}) {arrow} shared byte +{copy.smem_offset}{sender}"
        if len(listed) < len(self.instructions):
            yield f"  ... and {len(self.instructions) - len(listed)} more: see .instructions"
        if self.multicast > 1:
            yield f"  each of {self.multicast} blocks sends {self.sent_bytes} bytes and receives {self.bytes}"
        for condition in self.conditions:
            yield f"  for {condition}"
