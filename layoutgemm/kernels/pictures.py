"""A plan's pictures as plain data for `view`: fragments, shared memory, tile order."""

from __future__ import annotations

from typing import Any

from .. import view
from ..arguments import shown
from ..atoms.tmem.layout import WARP_LANES
from ..errors import PlanError
from ..layouts import Layout
from ..layouts.display import picture, table
from ..schedule import Linear
from ..view.smem_map import Region
from .plan import GemmPlan
from .quantized.formats import UNIT_K, UNIT_ROWS
from .quantized.order import PackedOrder
from .sm80.store import BUFFERS
from .sm100.store import load_of
from .streamed.plan import StreamedPlan

# What `plan.svg(of=...)` draws, and `plan.show(of=...)` prints.
PICTURES = {
    "fragment": "which thread holds an element of the accumulator in which value",
    "product": "A, B and C of one instruction",
    "smem": "what lies where in shared memory, by stage",
    "order": "the order in which the tiles of C are visited",
    "a": "A's tile in shared memory, by banks; of packed weights, which thread holds each",
    "b": "B's tile in shared memory, by banks; of packed weights, which thread holds each",
}
MOST_TILES = 64  # of a grid drawn, along each dimension


@picture.register(GemmPlan)
def plan_svg(plan: GemmPlan, of: str = "fragment", **options: Any) -> str:
    """One of `PICTURES` of any plan, as an SVG document. Options as of the view's function. Raises PlanError.

    >>> from layoutgemm.kernels import TeachingPlan
    >>> plan = TeachingPlan.derive(200, 136, 72)
    >>> "B stage 3" in plan_svg(plan, "smem"), "4x3 tiles" in plan_svg(plan, "order")
    (True, True)
    """
    check_name(of, plan)
    if of == "fragment":
        return str(plan.does("fragment")(plan, **options))
    if of == "product":
        return view.product_svg(plan.mma, **options)
    if of == "smem":
        title = {"title": f"{type(plan).__name__}: shared memory of a block, tile {'x'.join(map(str, plan.tile))}"}
        return view.smem_map_svg(
            regions_of(plan), total=plan.smem.total, limit=plan.arch.smem_per_block, **{**title, **options}
        )
    if of == "order":
        return view.schedule_svg(order_of(plan), grid_of(plan), **options)
    operand = plan.a if of == "a" else plan.b
    if (order := getattr(operand, "packing", None)) is not None:
        return packed_svg(operand.name, order, **options)
    return str(operand.smem.svg(**options))


@table.register(GemmPlan)
def plan_table(plan: GemmPlan, of: str = "fragment", **options: Any) -> str:
    """The same as text. Raises PlanError.

    >>> from layoutgemm.kernels import TeachingPlan
    >>> print(plan_table(TeachingPlan.derive(200, 136, 72), "smem").splitlines()[1])
          0   8192  A stage 0: 64x64 bf16, 128B
    """
    check_name(of, plan)
    if of == "smem":
        return view.smem_map_table(regions_of(plan), total=plan.smem.total, limit=plan.arch.smem_per_block)
    if of == "order":
        return view.schedule_table(order_of(plan), grid_of(plan))
    if of == "product":
        return view.product_table(plan.mma)
    if of == "fragment":
        return f"{plan.mma}, C: {view.tv_table(plan.mma.layout('C'), plan.mma.tile_of('C'), **options)}"
    operand = plan.a if of == "a" else plan.b
    if (order := getattr(operand, "packing", None)) is not None:
        return str(order.codes)
    tile = operand.smem
    return view.swizzle_table(tile.composed, tile.slot_bits, **options)


def check_name(of: str, plan: GemmPlan | None = None) -> None:
    """Raises PlanError for a picture that no plan has, or that this one lacks."""
    if of not in PICTURES:
        known = ", ".join(f"{name!r} ({what})" for name, what in PICTURES.items())
        raise PlanError(f"of={shown(of)}: a plan shows {known}")
    if isinstance(plan, StreamedPlan) and of in ("order", "b"):
        why = "its blocks take runs of strips" if of == "order" else "x lies there in plain lines"
        raise PlanError(f"of={shown(of)}: a streamed product has no picture of it, since {why}")


def fragment_of(plan: GemmPlan, **options: Any) -> str:
    """The accumulator's fragment map: which thread holds an element in which value."""
    return view.fragment_svg(plan.mma, "C", **options)


def packed_svg(name: str, order: PackedOrder, **options: Any) -> str:
    """Which thread holds each packed weight of a unit, and as which value."""
    code, word, thread, vector = order.codes
    parts = [thread, Layout((code.shape, word.shape, vector.shape), (code.stride, word.stride, vector.stride))]
    held = Layout(tuple(part.shape for part in parts), tuple(part.stride for part in parts))
    title = f"{name}, packed {order.format}: the codes of a unit of {UNIT_ROWS}x{UNIT_K}"
    return view.tv_svg(held, (UNIT_ROWS, UNIT_K), **{"title": title, "thread": 0, "axes": ("feature", "k"), **options})


def tmem_load_svg(plan: Any, **_: object) -> str:
    """Which thread and register a load of tensor memory brings each element to. The first chunk of a warp's rows."""
    chunk = plan.store.rounds[0].chunks[0]
    load = load_of(chunk)
    title = f"{load}: the first {chunk.width} columns of a warp's {WARP_LANES} rows of an accumulator"
    return view.tv_svg(load.tmem, (WARP_LANES, chunk.width), title=title, thread=0, axes=("lane", "column"))


def grid_of(plan: GemmPlan) -> tuple[int, int]:
    """Tiles along M and N, as many as are drawn."""
    return min(plan.tiles[0], MOST_TILES), min(plan.tiles[1], MOST_TILES)


def order_of(plan: GemmPlan) -> Any:
    """The order of the tiles. The plan's, or the one in which its blocks are numbered, along N first."""
    return getattr(plan, "order", None) or Linear("N")


def regions_of(plan: Any) -> list[Any]:
    """The regions of a CTA's shared memory: stages, buffers of C, barriers."""
    if isinstance(plan, StreamedPlan):
        return [Region(*each) for each in plan.smem_regions]
    smem, stages, out = plan.smem, range(plan.stages), []
    for operand in (plan.a, plan.b):
        tile, name = operand.smem, operand.name.lower()
        first, pitch = getattr(smem, f"{name}_offset"), getattr(smem, f"{name}_stage_bytes")
        kind = getattr(tile, "said", "") or f"{tile.dtype}, {tile.swizzle_name}"
        note = f"{'x'.join(map(str, tile.extent))} {kind}"
        out += [Region(operand.name, first + i * pitch, tile.bytes, i, note) for i in stages]
    size = getattr(smem, "c_buffer_bytes", 0)
    if size:
        out += [Region("C", smem.c_offset + i * size, size, i, "", "buffer") for i in range(buffers_of(plan))]
    if getattr(plan, "exchange", None) is not None:
        out.append(Region("partial sums", plan.exchange.offset, plan.exchange.bytes))
        out.append(Region("sums", smem.sums_offset, smem.barrier_bytes, None, "mbarrier"))
    rows = getattr(plan, "row_exchange", None)
    if rows is not None and rows.bytes:
        out.append(Region("rows", rows.offset, rows.bytes))
    scales = getattr(plan, "group_scales", None)
    if scales is not None:
        out.append(Region("scales of rows", scales.offset, scales.bytes))
    places = {
        "full": ("barrier_offset", plan.stages), "empty": ("empty_offset", plan.stages),
        "acc_full": ("acc_full_offset", accumulators_of(plan)),
        "acc_empty": ("acc_empty_offset", accumulators_of(plan)),
    }  # fmt: skip
    for name, (where, count) in places.items():
        at = getattr(smem, where, None)
        if at is not None and at + count * smem.barrier_bytes <= smem.total:
            counted, size = "accumulator" if name.startswith("acc") else "stage", smem.barrier_bytes
            out += [Region(name, at + i * size, size, i, "mbarrier", counted) for i in range(count)]
    if hasattr(smem, "slot_offset"):
        out.append(Region("slot", smem.slot_offset, smem.total - smem.slot_offset, None, "address of tensor memory"))
    return out


def buffers_of(plan: Any) -> int:
    """Buffers of C in a block. Each warp that stores has its own, or each group of warps."""
    if hasattr(plan.store, "bytes"):  # Hopper's and Blackwell's: as many as lie before what follows them
        warps = plan.config.consumers * 4 if hasattr(plan.config, "consumers") else 4
        return int(plan.store.bytes(warps)) // plan.smem.c_buffer_bytes
    return plan.config.warps[0] * plan.config.warps[1] * BUFFERS


def accumulators_of(plan: GemmPlan) -> int:
    """Accumulators in tensor memory, which have barriers of their own."""
    return int(getattr(plan.config, "accumulators", 0))
