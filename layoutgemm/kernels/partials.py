"""Reductions of C in registers. The lanes that hold a row or a column, and where partial results of tiles lie.

    values of a thread --combine--> one tuple a row     (thread, value) -> (row, column) is the accumulator's layout
    lanes of a row     --shuffles--> one tuple a warp    the lanes: the nullspace of lane -> row, a layout
    tiles of a row     --second launch--> results        partial results: (matrix, reduction, component, line, place)

A place is a row (of a reduction to rows) or a column, a line the columns of a tile, or the rows of a warp. Lines are
combined in their order by threads that have places beside each other, so that reads of a line are contiguous.

Groups of rows of one matrix begin at any row, and each has columns of its own. Rows s to t of group e have the lines
s // 16 + e to s // 16 + e + ceil((t - s) / 16) - 1. They end before those of group e + 1: M // 16 + groups in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Protocol

import numpy as np

from ..atoms.copy.base import WARP
from ..errors import PlanError
from ..layouts import Layout
from ..report import Check
from ..schedule import Schedule
from .epilogue.chain import Epilogue
from .epilogue.reduce import QuantizeRows, ReductionStep
from .indexed.added_rows import added_bytes
from .numbers import W
from .orders import schedule_of
from .plan import tile_count
from .store import ROWS, WARP_ROWS

WORD_BYTES = 4  # of a component: f32 or i32
FINISH_PLACES, FINISH_LINES = 32, 16  # threads of a block of the second launch: places, and parts of the lines
_MAPS = {"m": (1, 0), "n": (0, 1)}  # (row, column) -> the coordinate of that axis


class _Fragment(Protocol):
    """A map (lane, value) -> (row, column) of an instruction's or a warp's accumulators."""

    @property
    def shape_mnk(self) -> tuple[int, int, int]: ...
    @property
    def layout_C(self) -> Layout: ...
    @property
    def coords_C(self) -> Callable[..., Any]: ...
    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class RowExchange:
    """Shared memory of rows' tuples, for a cluster that has all columns of C.

    Each CTA sends its tuple of each row to the first CTA of its row of the cluster, which combines them by columns.

    columns  CTAs along N; a single one has whole rows, and sends nothing
    rows     of a tile
    words    numbers of the tuples of all reductions
    offset   bytes from the beginning of the first CTA's shared memory

    >>> two = RowExchange(2, 128, 3, 4096)
    >>> two.bytes, two.byte(0, 0, 1), two.byte(1, 0, 0), RowExchange(1, 128, 3).bytes
    (3072, 4100, 5632, 0)
    """

    columns: int
    rows: int
    words: int
    offset: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the first CTA's shared memory."""
        return self.columns * self.rows * self.words * WORD_BYTES if self.columns > 1 else 0

    def byte(self, column: W, word: W | int, row: W) -> W:
        """The byte at which a number of a CTA's tuple of a row lies."""
        return self.offset + ((column * self.words + word) * self.rows + row) * WORD_BYTES


@dataclass(frozen=True)
class GroupScales:
    """Shared memory of scales of groups of rows, each group in one consumer's registers.

    Every warp leaves the largest |x| of its rows in each column. A thread a column combines them, and leaves the factor
    that all warps read.

    groups   of a consumer's rows
    columns  of its accumulators
    warps    that have rows of a group
    offset   bytes from the beginning of the CTA's shared memory

    >>> two = GroupScales(1, 224, 4, 2, 1024)
    >>> two.bytes, two.byte(0, 0, 0, 1), two.byte(1, 0, two.factors, 0)
    (8960, 1028, 9088)
    """

    groups: int
    columns: int
    warps: int
    consumers: int
    offset: int = 0

    @property
    def factors(self) -> int:
        """The line of the factors, behind one for each warp."""
        return self.warps

    @property
    def bytes(self) -> int:
        """Bytes of shared memory."""
        return self.consumers * self.groups * (self.warps + 1) * self.columns * WORD_BYTES

    def byte(self, consumer: W, group: W, line: W, column: W) -> W:
        """The byte of a warp's maximum, or of a factor."""
        return (
            self.offset
            + (((consumer * self.groups + group) * (self.warps + 1) + line) * self.columns + column) * WORD_BYTES
        )


class ReducingPlan:
    """A plan whose epilogue may reduce C. `partials` depends on the architecture, their memory does not.

    row_exchange  where a cluster has whole rows, whose reductions need no partial results; else None
    """

    m: int
    n: int
    batch: int
    epilogue: Epilogue
    row_exchange: RowExchange | None = None

    @property
    def matrices_of_c(self) -> int:
        """Matrices of C: one for each product."""
        return self.batch

    @property
    def partials(self) -> tuple[PartialResults, ...]:
        """The partial results of the epilogue's reductions."""
        raise NotImplementedError

    @property
    def partial_bytes(self) -> int:
        """Bytes of device memory of partial results.

        >>> from layoutgemm.kernels import Sm80Plan, Sm90Plan
        >>> from layoutgemm.kernels.epilogue.chain import RowReduce
        >>> sums = Epilogue(RowReduce())
        >>> Sm90Plan.derive(512, 512, 64, epilogue=sums).partial_bytes  # two tiles of columns
        4096
        >>> Sm80Plan.derive(512, 512, 64, epilogue=sums).partial_bytes  # of eight warps of 64 columns
        16384
        """
        return words_of_matrix(self.partials, self.m, self.n, self.batch) * self.matrices_of_c * WORD_BYTES

    @property
    def first_partials(self) -> tuple[tuple[int, np.generic], ...]:
        """Runs of equal words that partial results hold before a launch: (words, value). None where all are written.

        >>> from layoutgemm.kernels import Sm90Config, Sm90Plan
        >>> from layoutgemm.kernels.epilogue.chain import RowReduce
        >>> tile, most = Sm90Config((64, 64), consumers=1), Epilogue(RowReduce("argmax"))
        >>> Sm90Plan.derive(128, 128, 64, config=tile, epilogue=most, order="lower").first_partials
        ((256, np.float32(-inf)), (256, np.int32(2147483647)))
        >>> Sm90Plan.derive(128, 128, 64, config=tile, epilogue=most).first_partials
        ()
        """
        if not reads_tiles_left_out(self.epilogue, schedule_of(self)):
            return ()
        runs: list[tuple[int, np.generic]] = []
        for partial in self.partials:
            lines, places = partial.extents(self.m, self.n, 1)
            reduction = partial.step.reduction
            for kind, value in zip(reduction.kinds, reduction.identity, strict=True):
                runs.append((lines * places, np.int32(value) if kind == "int" else np.float32(value)))
        return tuple(runs) * self.matrices_of_c

    @property
    def workspace(self) -> int:
        """Bytes of device memory for partial results, and for rows that are added."""
        return self.partial_bytes + added_bytes(self)


@cache
def lanes_of(mma: _Fragment | None, axis: str) -> Layout:
    """The lanes that hold lane 0's row (axis "m") or column ("n"), as a layout.

    It is the nullspace of the map from lanes to rows; lanes of any other row are those, exclusive-or the row's first.
    With axis "" all lanes.

    >>> from layoutgemm.atoms import wgmma
    >>> [str(lanes_of(wgmma(64), axis)) for axis in ("m", "n", "")]
    ['4:1', '8:4', '32:1']
    """
    if not axis or mma is None:
        return Layout(WARP)
    threads = Layout(mma.layout_C.shape[0], mma.layout_C.stride[0])
    of_lane = Layout(tuple(mma.shape_mnk[:2]), _MAPS[axis]).compose(threads.compose(Layout(WARP)))
    return of_lane.nullspace()


@cache
def exchanges_of(mma: _Fragment | None, axis: str) -> tuple[int, ...]:
    """The exclusive-or distances of the exchanges between such lanes.

    >>> from layoutgemm.atoms import wgmma
    >>> exchanges_of(wgmma(64), "m"), exchanges_of(wgmma(64), "n")
    ((1, 2), (4, 8, 16))
    """
    lanes = lanes_of(mma, axis).coalesce()
    size = lanes.size
    return tuple(int(lanes(1 << bit)) for bit in range(size.bit_length() - 1))


@dataclass(frozen=True)
class PartialResults:
    """The partial results of one reduction.

    step   the reduction: of axis "m" one place a row, of axis "n" one a column
    span   columns, or rows, of C that one partial result is of
    joined groups of rows are those of one matrix of C
    other  of a symmetric product, the span of the same reduction where tiles are transposed; else 0. Those have lines
           of their own: the transposed tiles' come behind
    behind these are the transposed tiles' lines

    >>> from layoutgemm.kernels.epilogue.chain import RowReduce
    >>> both = (sums := PartialResults(RowReduce(), 128, other=WARP_ROWS)), sums.transposed
    >>> [(each.step.axes, each.span, each.extents(256, 256, 1), each.first_line(256)) for each in both]
    [('m', 128, (18, 256), 0), ('n', 16, (18, 256), 2)]
    """

    step: ReductionStep
    span: int
    joined: bool = False
    other: int = 0
    behind: bool = False

    @property
    def components(self) -> int:
        """Numbers of a tuple."""
        return len(self.step.reduction.kinds)

    def extents(self, m: W, n: W, groups: W) -> tuple[W, W]:
        """Lines and places, for a C of m rows and n columns. `groups` of joined rows."""
        if self.joined and self.step.axes == "n":
            return m // self.span + groups, n
        reduced, kept = (n, m) if self.step.axes == "m" else (m, n)
        lines = tile_count(reduced, self.span)
        return lines + tile_count(kept, self.other) if self.other else lines, kept

    def first_line(self, side: W) -> W:
        """The first of its lines; `side` is M, which is N, of a symmetric product."""
        return tile_count(side, self.other) if self.behind else side * 0

    @property
    def transposed(self) -> PartialResults:
        """Those of transposed tiles, of the other axis."""
        turned = self.step.transposed()
        assert isinstance(turned, ReductionStep), turned
        return PartialResults(turned, self.other, other=self.span, behind=not self.behind)

    def line(self, row: W, group: W) -> W:
        """The line of a warp's partial results. `row` is its first row, and `group` its group."""
        return row // self.span + group if self.joined else row // self.span

    def lines_of_group(self, start: W, end: W, group: W) -> tuple[W, W]:
        """First line and end of a group's columns.

        start, end  its first row among those of all groups, and the one behind its last

        >>> from layoutgemm.kernels.epilogue.chain import ColumnReduce
        >>> sums = PartialResults(ColumnReduce(), WARP_ROWS, joined=True)
        >>> [sums.lines_of_group(*rows) for rows in ((0, 17, 0), (17, 17, 1), (17, 33, 2))], sums.extents(33, 8, 3)
        ([(0, 2), (2, 2), (3, 4)], (5, 8))
        """
        first = self.line(start, group)
        return first, first + tile_count(end - start, self.span)


def partials_of(
    epilogue: Epilogue, columns: int, rows: int = WARP_ROWS, joined: bool = False, mirrored: bool = False
) -> tuple[PartialResults, ...]:
    """The partial results of an epilogue for `columns` columns and a warp's rows.

    joined    groups of rows are those of one matrix
    mirrored  tiles are reduced transposed, too
    """
    found = []
    for step in epilogue.partials:
        span, other = (columns, rows) if step.axes == "m" else (rows, columns)
        found.append(PartialResults(step, span, joined, other if mirrored else 0))
    return tuple(found)


def whole_rows(epilogue: Epilogue) -> tuple[ReductionStep, ...]:
    """The reductions of all of each row that are combined in order. A cluster with all columns has their results.

    >>> from layoutgemm.kernels.epilogue.chain import Amax, ColumnReduce, RowReduce
    >>> [step.name for step in whole_rows(Epilogue(RowReduce(), RowReduce("max", each=8), ColumnReduce(), Amax()))]
    ['row_sum']
    """
    return tuple(step for step in epilogue.partials if step.axes == "m")


def words_of_matrix(partials: Sequence[PartialResults], m: Any, n: Any, groups: Any = 1) -> Any:
    """Words of the partial results of one matrix; sizes as Python's or traced 64-bit integers.

    groups  of joined rows, which are those of one matrix

    >>> from layoutgemm.kernels.epilogue.chain import RowReduce
    >>> words_of_matrix(partials_of(Epilogue(RowReduce("softmax")), 128), 100, 300)
    600
    """
    total = m * 0
    for partial in partials:
        lines, places = partial.extents(m, n, groups)
        total += lines * places * partial.components
    return total


LANE_COLUMNS = 8  # of an accumulator in registers, of which the lanes of a row hold all, and no others


def quantized_rows(epilogue: Epilogue) -> QuantizeRows | None:
    """The last step, where its scales are of groups of rows.

    >>> from layoutgemm.kernels.epilogue.chain import Quantize
    >>> quantized_rows(Epilogue(Quantize())), quantized_rows(Epilogue(Quantize()).transposed()).each
    (None, 128)
    """
    last = epilogue.quantizes
    return last if isinstance(last, QuantizeRows) else None


def check_reductions(
    epilogue: Epilogue, sizes: tuple[int, int], c: str, lane_columns: int = LANE_COLUMNS, rows: int = 0
) -> None:  # fmt: skip
    """Raise PlanError for groups of columns that a store or C's end cuts.

    So it does for another type of C than `Quantize` gives.

    sizes         columns of C, and those of a tile that are stored at a time
    lane_columns  columns of which the lanes of a row hold all, and no others
    rows          of a warpgroup, whose warps combine groups of rows; 0 where none do
    """
    n, columns = sizes
    if (turned := quantized_rows(epilogue)) is not None and (rows == 0 or turned.each % ROWS or rows % turned.each):
        held = f"a warpgroup has {rows} rows" if rows else "no warpgroup of this kernel combines rows"
        raise PlanError(f"{turned.name}: {turned.each} rows a scale, and {held}: multiples of {ROWS} that divide them")
    check_groups_of_columns(epilogue, lane_columns)
    if n > 1:  # a plan of one column stands for all sizes, and its launches ask
        epilogue.check_columns(n)
        if n % epilogue.whole:
            raise PlanError(f"whole = {epilogue.whole}: C has {n} columns, {n % epilogue.whole} beyond a multiple")
    epilogue.check_columns(columns, "a tile is stored at a time by")
    for name, each in _groups_of_columns(epilogue):
        if columns % each:
            raise PlanError(
                f"{name}: each = {each} columns, and a tile is stored {columns} columns at a time; config= takes a "
                "tile with a multiple of them for each matrix B"
            )
    quantize = epilogue.quantizes
    if quantize is not None and quantize.dtype != c:
        raise PlanError(f"{quantize.name}: Quantize gives {quantize.dtype}, and c is {c}")


def reads_tiles_left_out(epilogue: Epilogue, order: Schedule) -> bool:
    """True if the second launch reads partial results of tiles that an order leaves out.

    No tile writes these: their memory holds the identities before the first launch, `ReducingPlan.first_partials`.

    >>> from layoutgemm.kernels.epilogue.chain import RowReduce
    >>> from layoutgemm.schedule import Triangular
    >>> [reads_tiles_left_out(Epilogue(RowReduce("max", ordered=kept)), Triangular("lower")) for kept in (True, False)]
    [True, False]
    """
    return bool(epilogue.partials) and not order.is_full


def check_groups_of_columns(epilogue: Epilogue, lane_columns: int = LANE_COLUMNS) -> None:
    """Raise PlanError for groups of columns that no tile's lanes share, whatever the tile."""
    for name, each in _groups_of_columns(epilogue):
        if each % lane_columns:
            raise PlanError(
                f"{name}: each = {each}: a multiple of {lane_columns} columns, those that lanes of a row share"
            )


def _groups_of_columns(epilogue: Epilogue) -> list[tuple[str, int]]:
    """(name, columns) of each result that groups of columns of a row have."""
    quantizing = () if epilogue.quantizes is None or quantized_rows(epilogue) is not None else (epilogue.quantizes,)
    return [(step.name, step.each) for step in (*epilogue.reductions, *quantizing) if step.each is not None]


def reductions_check(plan: ReducingPlan, mma: _Fragment, values: Sequence[int]) -> Check:
    """Each element is combined once into the tuple of its row or column.

    mma     the map of the accumulators, of which a warp combines these values
    """
    witness = _lines_met(plan)
    used = [step.axes for step in plan.epilogue.reductions if step.axes]
    if plan.epilogue.quantizes is not None:
        used.append("m" if quantized_rows(plan.epilogue) is None else "n")
    for axis in sorted(set(used)):
        witness = witness or _uncovered(mma, axis, values)
    lanes = ", ".join(
        f"{lanes_of(mma, axis)} hold a {'row' if axis == 'm' else 'column'}" for axis in sorted(set(used))
    )
    statement = f"lanes {lanes}; each element is combined once" if used else "all lanes are combined once"
    if any(partial.joined for partial in plan.partials):
        statement += "; columns of groups have lines of their own"
    if plan.partials:
        statement += f"; partial results take {plan.partial_bytes} bytes"
    return Check("reductions", statement, not witness, f"exhaustion ({WARP * len(values)} elements)", witness)


def _lines_met(plan: ReducingPlan) -> str:
    """The first line of columns that two groups share, or a warp misses; or ""."""
    for partial in [partial for partial in plan.partials if partial.joined and partial.step.axes == "n"]:
        span = partial.span
        for start, rows, after in product(range(2 * span), range(2 * span + 2), range(span + 1)):
            end = start + rows
            first, stop = partial.lines_of_group(start, end, 3)
            written = [partial.line(row, 3) for row in range(start, end, span)]
            if written != list(range(first, stop)):
                return f"rows {start} to {end} of group 3: warps write lines {written}, not {first} to {stop}"
            following, last = partial.lines_of_group(end, end + after, 4)
            if stop > following or last > partial.extents(end + after, 1, 5)[0]:
                return f"rows {start} to {end}, then {after} more: lines {first} to {stop}, {following} to {last}"
    return ""


def _uncovered(mma: _Fragment, axis: str, values: Sequence[int]) -> str:
    """The first element combined into another line, or not once; or ""."""
    lanes = np.arange(WARP)
    places = [mma.coords_C(lanes, v)[axis == "n"] for v in values]
    own = np.stack([np.broadcast_to(np.asarray(x), (WARP,)) for x in places], axis=1)
    group = [0]
    for distance in exchanges_of(mma, axis):
        group += [lane ^ distance for lane in group]
    if len(set(group)) < len(group):
        return f"exchanges over {exchanges_of(mma, axis)} lanes meet a lane twice"
    for lane in range(WARP):
        for other in group:
            unlike = np.nonzero(own[lane] != own[lane ^ other])[0]
            if len(unlike):
                v = int(unlike[0])
                return f"value {v} of lanes {lane} and {lane ^ other} is of {own[lane, v]} and {own[lane ^ other, v]}"
    # Lanes of one line are one such group: then each element of the line is in it, and in it once.
    leaders = [lane for lane in range(WARP) if lane == min(lane ^ other for other in group)]
    for v in range(len(values)):
        found = [int(own[lane, v]) for lane in leaders]
        if len(set(found)) < len(found):
            return f"value {v}: two groups of lanes hold line {next(x for x in found if found.count(x) > 1)}"
    return ""
