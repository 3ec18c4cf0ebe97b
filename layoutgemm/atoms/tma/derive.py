"""Tensor copies (TMA), derived from a global and a shared layout.

The results are the map, the boxes and the coordinates.

One instruction copies a box of a global tensor, a run along each dimension, into consecutive bytes of shared memory,
and swizzles as it writes. To find the boxes of a tile, walk through shared memory: consecutive offsets run along one
dimension of the tensor, then along the next, and so on. The longest such walk within the hardware's rules is the box;
what the walk leaves over are further instructions.

    modes of the tile     cut so that each step of the shared layout stays inside one mode of the global layout
    dimensions            one a mode; modes that continue each other in memory may be merged, and a mode whose extent
                          allows may be split: every choice is tried, and the fewest instructions win, then the fewest
                          dimensions
    box                   the walk, in order of shared offsets, as far as it is compact and within the rules
    instructions          the rest of the walk, and the shares of the blocks of a multicast group

`atoms.tma.rules` has the rules, `atoms.tma.plan` the result, `atoms.tma.engine` what the hardware does with it,
`atoms.tma.suggest` what to do when a rule forbids a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...arguments import checked, plain, shown
from ...dtypes import DType, dtype
from ...errors import AtomError, LayoutError, TmaError
from ...layouts import ComposedLayout, Layout, Verdict
from ...layouts.int_tuple import leaves as flat_entries
from ...layouts.symbols.dims import dim
from ..smem.tile import SmemTile
from .box import Choice, Leaf, digits_of, leaves_of, plans_of, walk_of
from .multicast import multicast_mask, shared_out
from .plan import TmaCopy, TmaPlan
from .rules import (
    FORMATS,
    L2_PROMOTION,
    MAX_DIM,
    MAX_STRIDE,
    MODES,
    OOB_FILL,
    OPERATIONS,
    STRIDE_UNIT,
    TensorMap,
    broken,
    check_reduction,
    format_of,
    mode_of,
    multiple,
)
from .suggest import fewest, nearest


@dataclass(frozen=True)
class Request:
    """The arguments of a derivation; see `tma_load`."""

    gmem: Layout
    smem: Any
    dtype: DType | str | None = None
    tile: Any = None
    names: Sequence[str] | None = None
    operation: str = "load"
    reduction: str = ""
    multicast: int = 1
    split: bool = False
    format: str | None = None
    l2_promotion: str = "128B"
    oob_fill: str = "zeros"
    address: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tile", plain(self.tile))
        if self.tile is not None and isinstance(self.gmem, Layout) and len(_tuple(self.tile)) != self.gmem.rank:
            raise TmaError(f"a tile {shown(self.tile)} for the {self.gmem.rank} modes of {self.gmem}", rule="tile")

    def derive(self) -> TmaPlan:
        """The plan, or TmaError naming the rule."""
        return _derive(self)


@checked(TmaError)
def tma_load(
    gmem: Layout, smem: Layout | ComposedLayout | SmemTile, dtype: DType | str | None = None, *, tile: object = None,
    names: Sequence[str] | None = None, multicast: int = 1, split: bool = False, format: str | None = None,
    l2_promotion: str = "128B", oob_fill: str = "zeros", address: int = 0,
) -> TmaPlan:  # fmt: skip
    """The tensor copies that bring one tile of a global tensor into shared memory.

    gmem       coordinate -> offset in elements; modes in any order, nested, of symbols, of stride 0
    smem       tile coordinate -> offset in elements: a Layout, a swizzled ComposedLayout, an SmemTile; with one more
               mode than the tile it is staged
    dtype      element type (an SmemTile knows its own)
    tile       for each mode of gmem: an int, None (all of it), a Layout n:s (every s-th), or a tuple for a nested mode;
               by default the extents of smem's modes
    names      what to call gmem's modes; default m0, m1, ...
    multicast  blocks of a cluster that share the tile; each sends an equal part to all
    split      see a mode as two dimensions where that makes the boxes bigger
    format     a name of `atoms.tma.rules.FORMATS` where a type has several
    l2_promotion, oob_fill   see `TensorMap`
    address    of the tensor's first byte, or what it is known to be a multiple of

    Raises TmaError with the rule that forbids the copy and, where there is one, the nearest request that works.

    >>> from layoutgemm import Layout, dims
    >>> from layoutgemm.atoms import smem_tile
    >>> M, K = dims("M K", multiple_of=8)
    >>> A = Layout((M, K), (K, 1))
    >>> print(tma_load(A, smem_tile((128, 64), "bf16", "K"), names=("m", "k")).explain())
    box (k 64, m 128) of bf16, swizzle 128B, 16384 bytes, 1 instruction
      tensor (K, M), strides in bytes (2*K)
      at (k +0, m +0) -> shared byte +0
      for K <= 2**32
      for M <= 2**32
      for 2*K < 2**40
    >>> tma_load(A, Layout((128, 64), (1, 128)), "bf16").rule
    Traceback (most recent call last):
        ...
    layoutgemm.errors.TmaError: shared memory runs along m0 first, of which neighbours are K elements apart in global \
memory; a tensor copy does not transpose; nearest that works: shared layout S<3,4,3>[bytes] o (128,64):(64,1)
    """
    return _answered(
        Request(gmem, smem, dtype, tile, names, "load", "", multicast, split, format, l2_promotion, oob_fill, address)
    )


@checked(TmaError)
def tma_store(
    gmem: Layout, smem: Layout | ComposedLayout | SmemTile, dtype: DType | str | None = None, *, tile: object = None,
    names: Sequence[str] | None = None, split: bool = False, format: str | None = None, address: int = 0,
) -> TmaPlan:  # fmt: skip
    """The tensor copies that write one tile of shared memory to a global tensor. See `tma_load` for the arguments.

    Rows outside the tensor are not written. A line is written to the end of its last 16 bytes, though. The elements of
    these that lie beyond the tensor get what the tile holds (`TmaPlan.written`, `atoms.tma.rules.whole_units`; measured
    on an H200). No other line of the tensor begins there, but in a part of a larger matrix its neighbours do. Give such
    a part lines of whole 16-byte units, or store it otherwise.

    Raises TmaError as `tma_load` does, and where two coordinates of the tensor are one address.

    >>> tma_store(Layout((256, 512), (512, 1)), Layout((64, 32), (32, 1)), "f32").ptx
    'cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group'
    """
    return _answered(Request(gmem, smem, dtype, tile, names, "store", "", 1, split, format, address=address))


@checked(TmaError)
def tma_reduce(
    gmem: Layout, smem: Layout | ComposedLayout | SmemTile, dtype: DType | str | None = None, operation: str = "add",
    *, tile: object = None, names: Sequence[str] | None = None, split: bool = False, address: int = 0,
) -> TmaPlan:  # fmt: skip
    """The TMA reductions that combine a tile of shared memory into a global tensor. They are atomic, element by
    element.

    The ends of lines are those of `tma_store`: let the tile hold zeros (for "add") beyond the tensor.

    operation  "add", "min", "max", "inc", "dec", "and", "or" or "xor", where the type has it

    >>> tma_reduce(Layout((256, 512), (512, 1)), Layout((64, 32), (32, 1)), "f32", "max")
    Traceback (most recent call last):
        ...
    layoutgemm.errors.TmaError: max reduces u32, i32, u64, i64, f16, bf16 in global memory, not f32
    """
    return _answered(Request(gmem, smem, dtype, tile, names, "reduce", operation, 1, split, address=address))


@checked(TmaError)
def can_tma(gmem: Layout, smem: Any, dtype: Any = None, **options: Any) -> Verdict:
    """Verdict on TMA copies of the tile: ok, or the reason. The witness is the nearest request that works.

    The arguments are those of `tma_load`, and operation="store" or "reduce" with reduction="add" ...

    >>> bool(can_tma(Layout((64, 64), (64, 1)), Layout((64, 64), (64, 1)), "bf16"))
    True
    >>> verdict = can_tma(Layout((64, 60), (60, 1)), Layout((64, 32), (32, 1)), "bf16")
    >>> verdict.ok, str(verdict.witness)
    (False, 'global layout (64,60):(64,1)')
    """
    try:
        _answered(Request(gmem, smem, dtype, **options))
    except TmaError as error:
        return Verdict(False, str(error), error.nearest)
    return Verdict(True)


MANY = 8  # instructions of a tile from which on another shared layout is looked for


def _answered(request: Request) -> TmaPlan:
    try:
        plan = _derive(request)
        count = len(plan.issued_by(0))
        if count < MANY:
            return plan
        better = fewest(request, count)
        if better is None:
            return plan
        text, fewer = better
        return replace(plan, advice=f"{count} instructions of {plan.box_bytes} bytes; {text} needs {fewer}")
    except TmaError as error:
        raise TmaError(error.arithmetic, error.witness, error.rule, nearest(request, error)) from None


# --------------------------------------------------------------------------------------------------------- derivation


def _derive(request: Request) -> TmaPlan:
    shared = _shared(request)
    element, kind = shared.dtype, format_of(shared.dtype, request.format)
    if request.operation not in OPERATIONS:
        raise TmaError(f"a tensor copy is a {', '.join(OPERATIONS)}, not {shown(request.operation)}", rule="direction")
    if request.operation == "reduce":
        check_reduction(request.reduction, element)
    if request.l2_promotion not in L2_PROMOTION or request.oob_fill not in OOB_FILL:
        raise TmaError(
            f"l2_promotion is one of {', '.join(L2_PROMOTION)}, not {shown(request.l2_promotion)}; oob_fill one of "
            f"{', '.join(OOB_FILL)}, not {shown(request.oob_fill)}",
            rule="fill",
        )
    if not isinstance(request.gmem, Layout) or request.gmem.has_basis:
        raise TmaError(f"the global layout leads from coordinates to elements, not {shown(request.gmem)}", rule="tile")
    tile = shared.tile if request.tile is None else _tuple(request.tile)
    leaves = leaves_of(request.gmem, tile, _names(request))
    _writable(request, leaves)
    walk = walk_of(leaves, shared.layout)
    found, error = [], None
    for candidate in plans_of(leaves, walk, kind, shared.swizzle, request.split):
        try:
            found.append(_plan(request, shared, candidate()))
        except TmaError as refused:
            error = error or refused
    if not found:
        raise error or TmaError("no dimension is contiguous", rule="contiguous")
    return min(found, key=lambda plan: (len(plan.issued_by(0)), len(plan.box)))


@dataclass(frozen=True)
class _Shared:
    """One stage of the shared tile: element type, layout before the swizzle, swizzle mode, offset. Has the number of
    stages too."""

    dtype: DType
    layout: Layout
    swizzle: str
    offset: int
    stages: int
    stage_stride: int
    tile: tuple[int, ...]


def _shared(request: Request) -> _Shared:
    smem = request.smem
    if isinstance(smem, SmemTile):
        if request.dtype is not None and dtype(request.dtype) != smem.dtype:
            raise TmaError(f"the shared tile holds {smem.dtype}, not {request.dtype}", rule="format")
        element, layout, offset = smem.dtype, smem.layout, 0
        try:
            swizzle = mode_of(smem.swizzle, element.bits)  # its name there is the driver's
        except AtomError as error:
            raise TmaError(error.reason, rule="swizzle") from None
    else:
        if request.dtype is None:
            raise TmaError(f"{smem} does not say its element type: give dtype", rule="format")
        element = dtype(request.dtype)
        layout, swizzle, offset = smem, "none", 0
        if isinstance(smem, ComposedLayout):
            bits = format_of(element, request.format).smem_bits
            if smem.swizzle.unit not in (None, bits):
                smem = smem.recast(bits)  # what the swizzle counts, the layout counts
            swizzle, offset, layout = mode_of(smem.swizzle, bits), smem.offset, smem.layout
    if not isinstance(layout, Layout) or layout.has_basis:
        raise TmaError(f"the shared layout leads from tile coordinates to elements, not {shown(smem)}", rule="tile")
    modes = list(layout)
    rank = request.gmem.rank
    stages, stride = 1, 0
    wanted = rank if request.tile is None else len(_tuple(request.tile))
    if len(modes) == wanted + 1 and len(modes) > 1:
        last = modes.pop().coalesce()
        if isinstance(last.shape, tuple):
            raise TmaError(f"stages {last} are not evenly spaced", rule="tile")
        stages, stride = last.shape, last.stride if last.shape > 1 else 0
        layout = Layout.join(*modes)
    if not all(isinstance(x, int) for x in flat_entries(layout.shape) + flat_entries(layout.stride)):
        raise TmaError(f"the shared layout {layout} has symbols: a tile is of one size", rule="tile")
    verdict = layout.is_injective()
    if not verdict:
        raise TmaError(f"shared layout: {verdict.reason}", verdict.witness, rule="injective")
    return _Shared(element, layout, swizzle, offset, stages, stride, tuple(mode.size for mode in modes))


def _tuple(x: object) -> tuple[object, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _names(request: Request) -> tuple[str, ...]:
    rank = request.gmem.rank
    names = tuple(f"m{i}" for i in range(rank)) if request.names is None else tuple(request.names)
    if len(names) != rank or len(set(names)) != rank:
        raise TmaError(f"{rank} modes of {request.gmem} need as many different names, not {shown(names)}", rule="tile")
    return names


def _writable(request: Request, leaves: Sequence[Leaf]) -> None:
    """The addresses of a tensor: what is written must have one a coordinate; what is repeated must repeat evenly."""
    for leaf in leaves:
        if isinstance(leaf.stride, int) and leaf.stride < 0:
            raise TmaError(f"the stride of {leaf.name} is {leaf.stride}: strides are positive", rule="stride")
        if leaf.repeats and not multiple(leaf.extent, leaf.tile):
            raise TmaError(
                f"{leaf.name} repeats one element {leaf.extent} times in tiles of {leaf.tile}: the map has no such "
                "dimension, so its edge is not clipped",
                rule="tile",
            )
    if request.operation == "store":
        verdict = request.gmem.is_injective()
        if not verdict:
            raise TmaError(f"global layout: {verdict.reason}", verdict.witness, rule="injective")


def _plan(request: Request, shared: _Shared, candidate: Choice) -> TmaPlan:
    dims, box, rest = candidate
    kind = format_of(shared.dtype, request.format)
    bits = kind.smem_bits
    steps = tuple(dim.step for dim in dims)
    if any(stride.__class__ is int and stride * kind.gmem_bits % 8 for stride in (dim.stride for dim in dims[1:])):
        raise TmaError(f"strides {[str(dim.stride) for dim in dims]} split a byte", rule="stride")
    tmap = TensorMap(
        shared.dtype,
        tuple(dim.extent for dim in dims),
        tuple(dim.stride * kind.gmem_bits // 8 for dim in dims[1:]),
        tuple(n * step for n, step in zip(box, steps, strict=True)),
        steps,
        shared.swizzle,
        request.format or "",
        request.l2_promotion,
        request.oob_fill,
    )
    for fault in broken(tmap, request.address, request.operation, [one.name for one in dims]):
        raise TmaError(fault.arithmetic, rule=fault.rule.name)
    copies = [TmaCopy((0,) * len(dims), shared.offset * bits // 8)]
    for count, at, step, stride in rest:
        copies = [
            TmaCopy(
                tuple(c + i * step * (place == at) for place, c in enumerate(copy.coord_offset)),
                copy.smem_offset + i * stride * bits // 8,
            )
            for i in range(count)
            for copy in copies
        ]
    copies.sort(key=lambda copy: copy.smem_offset)
    plan = TmaPlan(
        dtype=shared.dtype, dims=tuple(dim.name for dim in dims), box=tmap.box, swizzle=shared.swizzle,
        instructions=tuple(copies), steps=steps if any(step != 1 for step in steps) else (),
        extents=tmap.extents, strides=tmap.strides, operation=request.operation, reduction=request.reduction,
        format=tmap.format, l2_promotion=tmap.l2_promotion, oob_fill=tmap.oob_fill,
        starts=tuple(digits_of(mode, dims) for mode in range(request.gmem.rank)),
        stages=shared.stages, stage_bytes=shared.stage_stride * bits // 8,
        conditions=_conditions(tmap), gmem=request.gmem, smem=request.smem,
        tile=shared.tile if request.tile is None else _tuple(request.tile),
    )  # fmt: skip
    _check_addresses(plan)
    return shared_out(plan, request.multicast)


def _check_addresses(plan: TmaPlan) -> None:
    for copy in plan.instructions:
        if copy.smem_offset % 128:
            raise TmaError(
                f"the box at {copy.coord_offset} would start at shared byte +{copy.smem_offset}; each copy works on "
                "multiples of 128 bytes",
                rule="shared address",
            )
    if plan.stage_bytes % plan.alignment:
        raise TmaError(
            f"stages lie {plan.stage_bytes} bytes apart; with swizzle {plan.swizzle} each begins at a multiple of "
            f"{plan.alignment}",
            rule="shared address",
        )


def _conditions(tmap: TensorMap) -> tuple[str, ...]:
    """Limits on symbols, which the sizes of a run must obey, and on architectures."""
    out = [f"{extent} <= 2**32" for extent in tmap.extents if not isinstance(extent, int)]
    out += [f"{stride} < 2**40" for stride in tmap.strides if not isinstance(stride, int)]
    archs = [arch for arch in tmap.kind.archs if arch in MODES[tmap.swizzle].archs]
    if "sm_90a" not in archs:
        out.append(f"{' and '.join(archs)} only")
    return tuple(dict.fromkeys(out))


# --------------------------------------------------------------------------------------------- sizes given at run time


def derive(tile: SmemTile, dims: tuple[str, str], operation: str = "load") -> TmaPlan:
    """The boxes of a tile in any matrix with its contiguous dimension innermost.

    dims       the names of the two global dimensions, innermost first
    operation  "load", or "store" for the boxes that empty the tile into the matrix

    The plan has no extents: they are given at run time, and `TmaPlan.check_global` holds them against the rules. Raises
    TmaError naming the rule and the arithmetic when a rule of the hardware forbids the copy.

    >>> from layoutgemm.atoms import smem_tile
    >>> plan = derive(smem_tile((64, 64), "bf16", "MN", "none"), ("n", "k"))
    >>> plan.box, len(plan.instructions)
    ((8, 64), 8)
    """
    if len(dims) != 2 or dims[0] == dims[1]:
        raise TmaError(
            f"a matrix has two dimensions of different names, innermost first; got {shown(dims)}",
            rule="tile",
        )
    inner = 1 if tile.major == "K" else 0
    unit = 8 * STRIDE_UNIT // min(tile.dtype.bits, 8 * STRIDE_UNIT)
    if tile.packing != "packed":  # its formats ask for lines of whole groups, which 6 bits do not divide
        unit = max(kind.inner for kind in FORMATS.values())
    extents = (dim("rows_", multiple_of=unit), dim("columns_", multiple_of=unit))
    # A store asks that no two coordinates share an address: lines as long as their pitch are the case that says it.
    pitch = dim("pitch_", multiple_of=unit) if operation == "load" else extents[inner]
    gmem = Layout(extents, (pitch, 1) if inner else (1, pitch))
    names = (dims[1], dims[0]) if inner else dims
    plan = _derive(Request(gmem, tile, names=names, operation=operation))
    return replace(plan, extents=None, strides=None, conditions=(), starts=(), gmem=None, smem=None, tile=())


__all__ = [
    "MAX_DIM",
    "MAX_STRIDE",
    "MODES",
    "STRIDE_UNIT",
    "LayoutError",
    "Request",
    "TensorMap",
    "TmaCopy",
    "TmaPlan",
    "can_tma",
    "derive",
    "multicast_mask",
    "tma_load",
    "tma_reduce",
    "tma_store",
]
