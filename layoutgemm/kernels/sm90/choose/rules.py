"""Which Hopper kernel for which product: a configuration, and whether the operands change places.

With swapped operands, C^T = B^T @ A^T, the rows of the weights fill wgmma's 64 rows, of which a small M leaves most
empty. M becomes the instruction's N, any multiple of 8: a larger M, too, may be split into more even tiles. C is then
written column by column, which a tensor store does as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ....arguments import as_int, checked, shown
from ....checks.budgets import WARPGROUP
from ....dtypes import DType, bf16
from ....errors import PlanError
from ...derive import Operand, OperandSpec
from ...epilogue.chain import Epilogue
from ...operand_orders import KernelChoice
from ...operands.combinations import PartOptions
from ...operands.combined import Combined
from ...operands.gated import combination
from ...partials import quantized_rows
from ...plan import STAGE_BYTES_OF_K as _STAGE_BYTES
from ...store import ROWS
from ..config import BESIDE_MATRICES
from ..multicast import LINE
from ..plan import Sm90Config, Sm90Plan
from ..types import operands, output_of
from .costs import cost_model
from .large_m import FMA_PER_CYCLE, LONG_WORK, SPAN, WIDE, Estimate, LargeMModel, dealt_along, early_parts
from .occupancy import ClusterOccupancy
from .reductions import ReductionCost
from .small_m import crowded, fetched, for_few_rows
from .stages import TALL, buffers, warpgroups

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Parts that hold operands in their places, and why.
_OF_PLACES = {
    "gated": "a gated product has its two halves in the kernel's B",
    "pair": "the second pair's A and B keep theirs",
    **dict.fromkeys(("ragged", "along_k", "indexed"), "groups of rows and row indices are of the kernel's A and C"),
    "mainloop": "a main loop's tables are of the kernel's A and B",
    **dict.fromkeys(
        ("order", "prologue", "triangles"), "an order, a prologue and triangles are of the kernel's C, A and B"
    ),
}


@dataclass(frozen=True)
class Sm90Choice(KernelChoice):
    """A configuration of the Hopper kernel, and its operand order. Swapped is C^T = B^T @ A^T."""

    config: Sm90Config
    swapped: bool = False

    def plan(
        self, m: int, n: int, k: int, *, batch: int = 1, a: OperandSpec = "bf16", b: OperandSpec | None = None,
        c: OperandSpec | None = None, epilogue: Epilogue | None = None, **parts: Unpack[PartOptions],
    ) -> Sm90Plan:  # fmt: skip
        """The plan of C[m, n] = A[m, k] @ B[k, n]. Arguments are those of Sm90Plan.derive.

        A tile of 128x256 that is finished by halves, with loads by a warp, is finished whole and loads for itself where
        ptxas serialises the halves. That is with an epilogue, and for other outputs or orders (`_IN_HALVES`).

        Raises PlanError for operands that change places in a gated product, and what Sm90Plan.derive raises.

        >>> Sm90Choice(Sm90Config((64, 16), consumers=1), swapped=True).plan(16, 4096, 4096, b="bf16:col").c.order
        'col'
        """
        a_, b_, c_ = self.operands(*operands(a, b, c))
        if self.swapped:
            for name, why in _OF_PLACES.items():
                if parts.get(name) is not None:
                    raise PlanError(f"operands that change places: {why}")
            m, n, epilogue = n, m, epilogue.transposed() if epilogue else None
        config = self.config
        orders = a_.order, b_.order
        plain = not epilogue and c_ is not None and c_.dtype.bits == a_.dtype.bits == 16 and orders == ("row", "col")
        if config.tile == WIDE and config.staged_epilogue_k_tiles and config.loader == "warp" and not plain:
            config = replace(config, **_WHOLE)
        if epilogue and quantized_rows(epilogue) is not None:  # no row has its scale before all blocks are complete
            config = replace(config, staged_epilogue_k_tiles=0)
        return Sm90Plan.derive(m, n, k, batch=batch, a=a_, b=b_, c=c_, config=config, epilogue=epilogue, **parts)


# ------------------------------------------------------------------------------------------------------ what is fastest

MODEL = cost_model("other_types")
_WIDTHS = (256, 224, 208, 192, 176, 160, 128, 96, 64)
_PINGPONG = (128, 160, 176, 192)  # columns of 128-row tiles that two warpgroups take in turn
_TALL_COLUMNS = 200  # of 192 rows beside a loader of their own

# A single tile of 128x256 is finished by halves of its columns, with loads by a warp of their own: 2048^3 +1%,
# 512x8192x8192 +0.4% (NOTES.md). ptxas finds registers for the halves of plain products of 16 bits and K-major
# operands; beside an epilogue, wide outputs or loads between the products it serialises them all (C7511).
_IN_HALVES: dict[str, Any] = {"loader": "warp", "staged_epilogue_k_tiles": 2}
_WHOLE: dict[str, Any] = {"loader": "self", "staged_epilogue_k_tiles": 0}


# Rows of a tile and clusters of gated products whose tiles are taken by the rounds in which the GPU deals clusters out:
# two matrices of 4096^3 1.0 to 1.4% faster on an H100. Clusters along the other axis are 0.7 to 4% slower so.
_DEALT = ((256, (1, 2)), (128, (2, 1)))
_MOST_COLUMNS = 256  # of a tile
NEXT = 24  # of the likeliest, how many are tried before SPARE
# What exists for every order of the operands: a B with N contiguous comes in whole spans of its tile.
SPARE = tuple(
    [
        Sm90Config(tile, consumers=consumers, loader="warp")
        for tile, consumers in (((128, 128), 2), ((64, 64), 1), ((64, 128), 1))
    ]
)


def spare_of_sums(how: Combined) -> Sm90Config:
    """A configuration for several sums of every type and order. 64 rows, and spans of 64 columns of each matrix.

    >>> from layoutgemm.kernels.operands.gated import Gated
    >>> spare_of_sums(Gated("silu")).tile
    (64, 128)
    """
    return Sm90Config((64, 64 * how.matrices), consumers=1, loader="warp")


# Tokens differ from step to step: they are rows of a layer's product, and the depth of its weight's gradient. A choice
# estimates hundreds of tiles, so sizes that differ by less than these share one.
ROWS_ALIKE = 16
DEPTH_ALIKE = 64  # a K tile


def near_rows(m: int) -> int:
    """The rows by which a kernel is chosen.

    Up to 64 these are their number, then the next multiple of 16.

    >>> near_rows(7), near_rows(231), near_rows(8192)
    (7, 240, 8192)
    """
    return m if m <= 64 else -(-m // ROWS_ALIKE) * ROWS_ALIKE


def near_depth(k: int) -> int:
    """The K by which a kernel is chosen.

    It has as many K tiles, and lines that begin at multiples of as many bytes.

    >>> near_depth(4096), near_depth(231), near_depth(232), near_depth(40)
    (4096, 193, 200, 40)
    """
    whole, rest = divmod(k, DEPTH_ALIKE)
    return k if not (whole and rest) else whole * DEPTH_ALIKE + (rest & -rest)


@checked(PlanError)
def choose(
    m: int, n: int, k: int, *, batch: int = 1, a: OperandSpec = "bf16", b_major: str = "K",
    multiprocessors: int | ClusterOccupancy = 132, gated: Combined | str | None = None, in_place: bool = False,
    epilogue: Epilogue | None = None,
) -> tuple[Sm90Choice, str]:  # fmt: skip
    """The configuration for C[m, n] = A[m, k] @ B[k, n], and the reason.

    a        A's type, as for Sm90Plan.derive. Products take as long as their operands' bytes: measurements of bf16 are
             scaled by the width, and what fp8 and integers have of their own is which blocks share loads, and who takes
             tiles in turn. C is taken to be of the type that follows from A's
    b_major  "K", or "MN" for a B whose rows are contiguous
    gated    as for Sm90Plan.derive: B has 2n columns, and a tile as many of the gate as of what it multiplies. Its
             halves are widths of the instruction, and operands keep their places. Or a Combined: each of its matrices
             has n columns, and a tile as many of each
    multiprocessors  the GPU's SMs, or its `ClusterOccupancy`; by their number alone it places clusters as an H200 does
    in_place whether the operands keep their places: nothing is computed as C^T = B^T @ A^T
    epilogue as it is launched; of 16 bits and more than 64 rows, matrices let operands change places for a
             larger gain alone, those that are read in lines (`Epilogue.read_in_lines`) cost other tiles and schedules
             other times, and reductions of rows and of columns cost what `ReductionCost` says

    Raises PlanError for sizes below 1, for an MN-major B that the instruction does not read, and for a gated product of
    such a B.

    >>> choice, why = choose(8192, 8192, 8192)
    >>> choice.config.tile, choice.config.cluster
    ((256, 224), (2, 1))
    >>> choose(16, 14336, 4096)[0].config.tile
    (64, 112)
    >>> choose(4096, 4096, 4096, a="tf32")[0].config.tile
    (128, 256)
    >>> choice, why = choose(4096, 14336, 4096, gated="silu")
    >>> choice.config.tile, choice.config.cluster, why.rpartition("; ")[2]
    ((256, 208), (1, 2), 'gated: 104 columns of C from 208 of B')
    """
    for name, size in (("m", m), ("n", n), ("k", k), ("batch", batch)):
        as_int(size, name, PlanError, least=1)
    kind = operands(a, None if b_major == "MN" else f"{Operand.parse(a).dtype}:col", None)[0].dtype
    halves = 1
    if (how := combination(gated)) is not None:
        if b_major != "K" and not how.separate:
            raise PlanError(f"b_major = {shown(b_major)}: {how}, a product is of one pair of matrices, B K-major")
        halves, n = how.matrices, how.matrices * n
    places = ClusterOccupancy.of(multiprocessors)
    if m <= 64:
        few = for_few_rows(
            m, n, k, batch, kind, b_major, places, _unit(kind, halves, b_major),
            halves == 1 and not in_place and (epilogue is None or epilogue.quantizes is None),
        )  # fmt: skip
        return Sm90Choice(few.config, few.swapped), few.reason + _gated_reason(few.config.tile[1], how)
    if kind.bits == 16 and halves == 1:
        ranked = likeliest(m, n, k, b_major, batch=batch, multiprocessors=places, epilogue=epilogue)
        best = next(each for each in ranked if not (in_place and each.swapped))
        return of_estimate(best, m, n, k, b_major, batch=batch)
    bits = kind.bits
    work = 2 * m * n * k * batch * bits // 16
    # The clock falls most under fp8, and most of all under two warpgroups in turn: 4096^3 2% slower (types_h200.json).
    fp8 = kind.bits == 8 and kind.kind == "float"
    estimates = [
        _estimate((rows, columns), m, n, k, batch, kind, places.multiprocessors, pingpong)
        for rows in (256, 128, 64)
        for columns in _WIDTHS
        for pingpong in ((False, True) if rows == 128 and columns in _PINGPONG and not fp8 else (False,))
        if (rows, columns) != (256, 256) and columns % _unit(kind, halves, b_major) == 0
    ]
    best = min(estimates, key=lambda e: (e.seconds, -e.tile[0] * e.tile[1], -e.tile[0]))
    lines = _on_lines(k, None if b_major == "K" else n, kind)
    if bits == 16 and best.waves > 1 and work >= LONG_WORK and (best.tile[0], best.cluster) in _DEALT:
        best = replace(best, gpc_rounds=places.gpc_rounds(2), along=dealt_along(best.cluster))
    config = _configured(best, k, batch, kind, work < MODEL.short_work and not best.gpc_rounds, False, lines)
    return Sm90Choice(config), _reason(best, config) + _gated_reason(best.tile[1], how)


def likeliest(
    m: int,
    n: int,
    k: int,
    b_major: str = "K",
    *,
    batch: int = 1,
    multiprocessors: int | ClusterOccupancy = 132,
    epilogue: Epilogue | None = None,
) -> list[Estimate]:
    """Estimates for more than 64 rows of 16-bit elements, the fastest first: in place, swapped, split-K. Arguments as
    for `choose`, which takes the first; `of_estimate` makes a kernel of one.

    >>> print(likeliest(304, 1856, 15616)[0])
    128x80 of the transposed product in 2 parts of K: 60 tiles, 1 wave(s) of 132, 27.9 us
    """
    rows_of, parts = None if b_major == "K" else n, batch == 1 and _overlaps(m, n, k, batch)
    places = ClusterOccupancy.of(multiprocessors)
    read, along = (0, 0), False
    if epilogue is not None:
        read, along = epilogue.read_in_lines, any(given.axes == "mn" for given in epilogue.given)
    reduced = ReductionCost.of(epilogue)
    straight = LargeMModel(m, n, k, batch, places, rows_of=rows_of, read=read, reduced=reduced)
    found = [*straight.estimates(), *(straight.in_parts() if parts else ())]
    if b_major != "K":
        found = [e for e in found if e.tile[1] % SPAN == 0 or (e.split == 1 and _spans_in_part_pay(e, k))]
    scales = None if epilogue is None or epilogue.quantizes is None else epilogue
    along = along and (scales is None or len(scales.steps) > 1)  # scales are no matrix of C's shape
    turned = LargeMModel(
        n, m, k, batch, places, swapped=True, matrices=along, rows_of=rows_of, read=read, reduced=reduced.turned
    )
    across = [*turned.estimates(), *(turned.in_parts() if parts else ())]
    if scales is not None:
        across = [e for e in across if _scales_rows(e, scales, 2 * m * n * k * batch)]
    found += across
    return sorted(found, key=lambda e: (e.seconds, -e.tile[0] * e.tile[1], -e.tile[0], e.swapped))


def _scales_rows(e: Estimate, epilogue: Epilogue, work: int) -> bool:
    """True for a transposed product with scales of groups of C's columns.

    Tiles of 256 rows without any other step, which a thread has no registers for; smaller products were not measured.
    """
    return e.tile[0] == 256 and e.split == 1 and len(epilogue.steps) == 1 and work >= LONG_WORK


def of_estimate(
    best: Estimate, m: int, n: int, k: int, b_major: str = "K", *, batch: int = 1
) -> tuple[Sm90Choice, str]:
    """The kernel of an estimate of 16-bit elements, and why.

    >>> choice, why = of_estimate(likeliest(128, 1024, 14336)[0], 128, 1024, 14336)
    >>> choice.config.tile, choice.config.split
    ((64, 96), 4)
    """
    if best.split > 1:
        return _of_parts(best)
    halves = b_major == "K" and not best.swapped
    lines = _on_lines(k, None if b_major == "K" else n, bf16)
    overlap = _overlaps(m, n, k, batch) and not best.gpc_rounds  # only an idle GPU deals clusters out as it is known to
    config = _configured(best, k, batch, bf16, overlap, halves, lines)
    return Sm90Choice(config, best.swapped), _reason(best, config)


def nearest(choice: Sm90Choice, why: str, k_major: bool) -> Iterator[tuple[Sm90Choice, str]]:
    """A choice, and its nearest neighbours for other kinds of A and C.

    k_major   whether the kernel's A is: else none of its rows can be left out of the copies
    """
    config = choice.config if k_major else replace(choice.config, loaded_a_rows=None)
    yield replace(choice, config=config), why
    if config.staged_epilogue_k_tiles:  # a C of wide elements leaves fewer stages
        yield replace(choice, config=replace(config, staged_epilogue_k_tiles=0)), why
    rows, columns = config.tile
    if columns % 16:  # lines of a C of 8 bits are whole 16 bytes
        yield replace(choice, config=replace(config, tile=(rows, -(-columns // 16) * 16))), why


def whole_columns(config: Sm90Config, columns: int) -> Sm90Config:
    """The configuration with a tile of a multiple of `columns` columns, up to 256.

    >>> found = Sm90Config((192, 160), consumers=3)
    >>> [whole_columns(found, columns).tile[1] for columns in (1, 32, 48, 128, 192, 384)]
    [160, 160, 144, 128, 192, 160]

    A wider tile has half of the rows where a consumer's registers do not hold the sums of all:

    >>> [whole_columns(Sm90Config((256, width)), 256).tile for width in (128, 192)]
    [(128, 256), (128, 256)]
    """
    rows, most = config.tile
    if most % columns == 0 or columns > _MOST_COLUMNS:
        return config
    width = max(columns, most // columns * columns)
    blocks = rows // ROWS // config.warpgroups_of_tile
    halved = blocks > 1 and blocks * ROWS * width // WARPGROUP > BESIDE_MATRICES
    return replace(config, tile=(rows // 2 if halved else rows, width))


def in_place(
    m: int, n: int, k: int, *, batch: int = 1, a: OperandSpec = "bf16", b_major: str = "K",
    multiprocessors: int | ClusterOccupancy = 132, gated: Combined | str | None = None,
    epilogue: Epilogue | None = None,
) -> Iterator[tuple[Sm90Choice, str]]:  # fmt: skip
    """Choices with the operands in their places, each with its reason. The fastest first, then those of every operand.

    Arguments as for `choose`; of a column-major A all rows are loaded. The first of which a plan can be derived is
    taken: some have none for a column-major operand, or for a C of 8 or 32 bits.

    >>> [choice.config.tile for choice, _ in in_place(16, 14336, 4096)]
    [(64, 112), (128, 128), (64, 64), (64, 128)]
    """
    first = Operand.parse(a)
    how = combination(gated)
    choice, why = choose(
        m, n, k, batch=batch, a=first.dtype, b_major=b_major, multiprocessors=multiprocessors, gated=how,
        in_place=True, epilogue=epilogue,
    )  # fmt: skip
    if how is not None and epilogue is not None:
        choice = replace(choice, config=whole_columns(choice.config, how.matrices * epilogue.columns))
    yield from nearest(choice, why, first.order == "row")
    if how is None and m > 64 and first.dtype.bits == 16:
        ranked = likeliest(m, n, k, b_major, batch=batch, multiprocessors=multiprocessors, epilogue=epilogue)
        for estimate in ranked[:NEXT]:
            if not estimate.swapped:
                yield from nearest(*of_estimate(estimate, m, n, k, b_major, batch=batch), k_major=True)
    spare = SPARE if how is None else (*SPARE, spare_of_sums(how))
    yield from [(Sm90Choice(config), "the operands' orders leave little choice") for config in spare]


def with_whole_rows(plan: Sm90Plan, derive: Callable[..., Sm90Plan]) -> Sm90Plan:
    """The plan, or its kernel's whose clusters reduce whole rows, with as many stages.

    A product of more columns has no such kernel, so the plan is of the product's own sizes.

    derive  the plan of another configuration
    """
    covered = plan.tile_c[1] * plan.config.cluster[1]
    asked, reduced = plan.config.tuning.finish, any(each.step.axes == "m" for each in plan.partials)
    if asked is not None or plan.n > covered or not reduced:
        return plan
    try:
        found = derive(config=plan.config.tuned(finish="cluster"))
    except PlanError:  # another launch, or a part that such a kernel has not
        return plan
    return found if found.stages == plan.stages else plan


def _overlaps(m: int, n: int, k: int, batch: int) -> bool:
    """True if a product of 16-bit elements is short enough for PDL."""
    return 2 * m * n * k * batch < MODEL.short_work


def _reason(best: Estimate, config: Sm90Config) -> str:
    """The choice in words."""
    rows, columns = best.cluster
    shared = "too short, or too few tiles, for a cluster to pay"
    if best.cluster != (1, 1):
        shared = f"blocks in clusters of {rows}x{columns} share loads"
    elif best.gpc_rounds:
        shared = "blocks that lie together on the GPU read the same lines"
    return f"{best}; {shared}" + "; starts while the kernel before it drains" * config.tuning.overlap


def _on_lines(k: int, row_of_b: int | None, kind: DType) -> bool:
    """True if all lines of A and B are aligned to 128 bytes.

    row_of_b  elements from row to row of B, if its rows are contiguous; else its lines are of K elements, as A's
    """
    return all(size * kind.bytes % LINE == 0 for size in (k, row_of_b or k))


def _configured(
    best: Estimate, k: int, batch: int, kind: DType, overlap: bool, halves: bool, on_lines: bool
) -> Sm90Config:
    """The configuration of an estimate.

    overlap  whether it starts while the kernel before it drains
    halves   whether a tile of 128x256 may be finished by halves
    on_lines whether all lines of A and B begin with memory's lines
    """
    (rows, columns), cluster, bits = best.tile, best.cluster, kind.bits
    # One warpgroup for 128 rows stores the first 64 of them under the products of the others: benchmarks/NOTES.md.
    tall = bits == 16 and _tall_wave(best)
    consumers, one = warpgroups(best.tile, once=tall), best.waves == 1
    loader = "self" if consumers == 2 else "warp" if one else "warpgroup"
    if rows == TALL:  # beside a loader's registers there are enough for 200 columns (`kernels.sm90.budget_checks`)
        loader = "warp" if one and columns <= _TALL_COLUMNS else "self"
    config = Sm90Config(
        best.tile,
        consumers=consumers,
        loader=loader,
        cluster=cluster,
        group=best.group,
        along=best.along,
        overlap=overlap,
        # +0.1 to 0.4% of several waves; of a single one up to -5%, and up to -15% where lines begin between.
        l2_promotion="256B" if best.waves > 1 and on_lines else "128B",
        chunks=1,
        buffers=buffers(best.tile, consumers),
        staged_epilogue_k_tiles=2 if (rows == 256 or tall) and k >= 1024 else 0,
        gpc_order=best.gpc_rounds,
    )
    if best.tile == WIDE and best.waves == 1 and bits == 16 and k >= 1024 and halves:
        config = replace(config, **_IN_HALVES)
    if best.pingpong:
        config = replace(config, schedule="pingpong", consumers=2, loader="warpgroup")
    elif best.waves == 1 and batch == 1 and (cluster != (1, 1) or best.tile != WIDE):
        config = replace(config, launch="tiles")
    if overlap:
        # Self-loading kernels in clusters always prefetch two K tiles: 512x28672x4096 +0.3 to 0.7%.
        stage = (rows // cluster[1] + columns // cluster[0]) * _STAGE_BYTES
        two = (config.loader == "self" and cluster != (1, 1)) or rows == TALL
        config = config.tuned(prefetch=2 if two else fetched(stage, MODEL.fetched))
    return config


def _spans_in_part_pay(e: Estimate, k: int) -> bool:
    """True if a tile of B's rows may end within a swizzle span. Its lines then begin within one, and are read twice.

    256 rows hide it (1 to 2% faster than whole spans); in one wave, wide tiles of blocks that share A do, or little K.
    """
    short = k * bf16.bytes < MODEL.cluster_bytes
    return e.tile[0] == 256 or (e.waves == 1 and ((e.cluster == (1, 2) and e.tile[1] >= 160) or short))


def _of_parts(best: Estimate) -> tuple[Sm90Choice, str]:
    """The configuration of a product in parts of K, and why."""
    rows, cluster = best.tile[0], best.cluster
    early = early_parts(cluster, best.split, best.tiles)
    config = Sm90Config(
        best.tile, consumers=rows // 64, loader="warp", one_tile_per_cluster=True, cluster=cluster, split=best.split,
        chunks=best.split, overlap=True, trigger="start" if early else "end", prefetch=2 * early, launch="tiles",
        along=best.along,
    )  # fmt: skip
    why = f"{best}; too few tiles to fill the machine: {best.split} blocks of a cluster share each sum over K"
    shared = f", {cluster[0]}x{cluster[1]} share loads" * (cluster != (1, 1))
    return Sm90Choice(config, best.swapped), why + shared


def _unit(kind: DType, sums: int, b_major: str) -> int:
    """The unit of a tile's columns: several sums have an instruction's width each, or spans of an MN-major B."""
    if sums == 1:
        return 1
    return sums * (LINE // kind.bytes if b_major != "K" else 8 if kind.kind == "float" else 16)


def _gated_reason(columns: int, how: Combined | None) -> str:
    """The columns of a tile, of several sums."""
    if how is None:
        return ""
    what = "gated" if not how.separate else f"{how.matrices} matrices B, A loaded once"
    return f"; {what}: {columns // how.matrices} columns of C from {columns} of B"


def _tall_wave(best: Estimate) -> bool:
    """True if each CTA has one tile of two accumulators that one warpgroup holds."""
    return best.waves == 1 and best.tile[0] == 128 and best.tile[1] <= 192


def _estimate(
    tile: tuple[int, int], m: int, n: int, k: int, batch: int, kind: DType, multiprocessors: int, pingpong: bool
) -> Estimate:
    """Waves times the cycles of a tile: products at the tile's rate, and the end that is exposed, once for pingpong."""
    rows, columns = tile
    grid = -(-m // rows), -(-n // columns)
    tiles = grid[0] * grid[1] * batch
    waves = -(-tiles // multiprocessors)
    cluster, group, along = _cluster(tile, grid, waves, k, kind)
    if waves == 1:
        along = "N" if cluster[0] > 1 else "M"
    rate = MODEL.rates.get(tile, 1 - 10 * max(0.0, 1 / rows + 1 / columns - 1 / 256 - 1 / 224))
    turns = pingpong and waves > 1
    long = k * kind.bytes >= MODEL.cluster_bytes
    if turns and long:
        rate *= MODEL.turns
    alone = waves > 1 and cluster == (1, 1)
    if alone and long:
        rate *= MODEL.unshared
    products = rows * columns * k * kind.bits / 16 / FMA_PER_CYCLE / rate / MODEL.clock
    line, shares = k * kind.bytes, [1.0 if blocks == 1 else MODEL.shared for blocks in cluster]
    reads = tiles * (rows * shares[1] + columns * shares[0]) * line / (MODEL.l2_alone if alone else MODEL.l2)
    reads = max(reads, waves * (rows + columns) * line / MODEL.one_sm)
    cycles = MODEL.tile_cycles + MODEL.low_tile_cycles * (rows == 64)
    ends = (1 if turns and not long else waves) * cycles / MODEL.clock
    moved = ((m + n) * k * kind.bytes + m * n * output_of(kind).bytes) * batch / MODEL.memory
    if waves == 1:
        moved *= 1 + crowded(tiles, multiprocessors)
    seconds = max(max(waves * products, reads) + ends, moved) + MODEL.launch
    return Estimate(tile, seconds, waves, tiles, multiprocessors, cluster, group, along, turns)


def _cluster(
    tile: tuple[int, int], grid: tuple[int, int], waves: int, k: int, kind: DType
) -> tuple[tuple[int, int], int, str]:
    """The cluster of two CTAs that leaves none without work, and the tile order."""
    if waves == 1 and kind.bits == 16 and tile != WIDE:
        flat = tile[0] == 256 and grid[0] == 2 and k * kind.bytes < MODEL.narrow_cluster_bytes  # 496x11456x1728 2.1%
        if grid[0] % 2 == 0 and not (flat and grid[1] % 2 == 0):  # 3 to 15%; shared along N they lose as much
            return (2, 1), 8, "N"
        # But where that cannot be: 1048x2240x8320 1.1%, 648x7232x2176 1.0%, 864x2304x1088 0.4 to 2.0%.
        along_n = tile[0] >= 128 and (grid[0] > 2 or flat) and grid[1] % 2 == 0
        return ((1, 2) if along_n else (1, 1)), 8, "M"
    least = MODEL.narrow_cluster_bytes if kind.bits == 8 and grid[0] > 2 else MODEL.cluster_bytes
    if k * kind.bytes < least or grid[0] * grid[1] < 64:
        return (1, 1), 8, "M"
    if tile[0] == 256 and grid[1] % 2 == 0 and grid[0] > 2:
        return ((1, 2), 16, "M") if grid[0] <= 16 else ((1, 2), 8, "N")
    if grid[0] % 2 == 0:
        return (2, 1), 8, "N" if tile[0] == 128 and grid[0] > 8 else "M"
    if grid[1] % 2 == 0 and tile[0] == 256:  # tiles of 128 rows lose 1 to 2% so
        return (1, 2), 8, "N"
    return (1, 1), 8, "M"
