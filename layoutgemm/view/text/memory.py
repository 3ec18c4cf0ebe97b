"""Shared memory, tensor copies and orders of tiles as tables of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from layoutgemm.atoms.tma.plan import TmaPlan
from layoutgemm.checks.smem.access_patterns import AccessPattern
from layoutgemm.layouts import ComposedLayout, Layout, Swizzle
from layoutgemm.schedule.persistent import Persistent
from layoutgemm.schedule.tile_order import Schedule
from layoutgemm.view.banks import LINE_BYTES, as_byte, lanes_at, on_elements, pair_reports, worst_phase
from layoutgemm.view.box import placed_of, told
from layoutgemm.view.grid import Drawable, offsets_of
from layoutgemm.view.schedule import named, numbered
from layoutgemm.view.smem_map import Region, check_regions
from layoutgemm.view.text.layouts import table

from ...arguments import checked
from ...checks.smem.bank_conflicts import BANK_BYTES

if TYPE_CHECKING:
    import numpy.typing as npt


@checked()
def swizzle_table(
    layout: Drawable, bits: int = 16, *, swizzle: Callable[[int], int] | None = None, rows: range | None = None,
    columns: range | None = None,
) -> str:  # fmt: skip
    """A shared-memory tile as a table of the banks that its elements begin in. Arguments as of `swizzle_svg`.

    >>> from layoutgemm.layouts import Layout, Swizzle
    >>> print(swizzle_table(Swizzle(3, 3, 3) @ Layout((8, 64), (64, 1)), rows=range(2), columns=range(0, 64, 8)))
    S<3,3,3> o 0 o (8,64):(64,1), first bank of each element of 16 bits
         0  8 16 24 32 40 48 56
      +------------------------
    0 |  0  4  8 12 16 20 24 28
    1 |  4  0 12  8 20 16 28 24
    """
    found = offsets_of(layout, rows, columns)
    cells = [[str(as_byte(c, bits, layout, swizzle) % LINE_BYTES // BANK_BYTES) for c in row] for row in found.values]
    name = str(layout) if swizzle is None else f"{swizzle} o {layout}"
    return f"{name}, first bank of each element of {bits} bits\n" + table(cells, found.rows, found.columns)


@checked()
def swizzle_pair_table(layout: Layout, swizzle: Swizzle, bits: int = 16, *, access: AccessPattern | None = None) -> str:
    """The lanes of one request before and after a swizzle. Byte, banks, and with which lanes each meets in a bank.

    Arguments as of `swizzle_pair_svg`.

    >>> print(swizzle_pair_table(Layout((8, 64), (64, 1)), Swizzle(3, 4, 3, "bytes")))
    S<3,4,3>[bytes] on (8,64):(64,1), elements of 16 bits: ldmatrix rows along K, request 0, phase 0
    before: 8-way conflict, after: conflict-free
    lane  (i,j)  before: byte  banks     after: byte  banks
       0  (0,0)             0  0-3   x             0  0-3
       1  (1,0)           128  0-3   x           144  4-7
       2  (2,0)           256  0-3   x           288  8-11
       3  (3,0)           384  0-3   x           432  12-15
       4  (4,0)           512  0-3   x           576  16-19
       5  (5,0)           640  0-3   x           720  20-23
       6  (6,0)           768  0-3   x           864  24-27
       7  (7,0)           896  0-3   x          1008  28-31
    """
    reports, access = pair_reports(layout, swizzle, bits, access)
    worst, extent = worst_phase(reports[0]), len(offsets_of(layout).rows)
    verdicts = ["conflict-free" if r.conflict_free else f"{r.ways}-way conflict" for r in reports]
    width = reports[0].parts[0].width
    lanes, _ = lanes_at(reports[0].parts[0], access, extent, *worst)
    meeting = [lanes_at(report.parts[0], access, extent, *worst)[1] for report in reports]
    after = ComposedLayout(on_elements(swizzle, bits), 0, layout)
    wide = max(len(f"({i},{j})") for i, j in lanes)
    lines = [
        f"{swizzle} on {layout}, elements of {bits} bits: {access.name}, request {worst[0]}, phase {worst[1]}",
        f"before: {verdicts[0]}, after: {verdicts[1]}",
        f"lane  {'(i,j)':<{wide}}  before: byte  banks     after: byte  banks",
    ]
    for (i, j), lane in lanes.items():
        line = f"{lane:>4}  {f'({i},{j})':<{wide}}"
        for report_lanes, at, room in zip(meeting, (layout(i, j), after(i, j)), (14, 14), strict=True):
            byte = int(at) * bits // 8
            first = byte % LINE_BYTES // BANK_BYTES
            banks = f"{first}-{first + width // BANK_BYTES - 1}" if width > BANK_BYTES else str(first)
            line += f"{byte:>{room}}  {banks:<5} {'x' if lane in report_lanes else ' '}"
        lines.append(line.rstrip())
    return "\n".join(lines)


@checked()
def box_table(plan: TmaPlan, index: Sequence[int] | None = None) -> str:
    """The tensor copies of one tile as a table. Coordinates, extents, and how much is in the tensor.

    >>> from layoutgemm.atoms import smem_tile, tma_load
    >>> print(box_table(tma_load(Layout((200, 104), (104, 1)), smem_tile((128, 128), "bf16", "K")), (1, 0)))
    load, boxes of 64x128 bf16, 16384 bytes each, tensor 104x200
    box 0  at (0, 128)   64x72 of 64x128 inside
    box 1  at (64, 128)  40x72 of 64x128 inside
    """
    placed, rest = placed_of(plan, index)
    over = f", tensor {'x'.join(map(str, plan.extents))}" if plan.extents is not None else ""
    head = f"{plan.operation}, boxes of {'x'.join(map(str, plan.box))} {plan.dtype}, {plan.box_bytes} bytes each{over}"
    rows = [told(box) for box in placed]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    lines = [f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in rows]
    return "\n".join([head, *lines, *([rest] if rest else [])])


@checked()
def smem_map_table(regions: Sequence[Region], *, total: int, limit: int | None = None) -> str:
    """A map of shared memory as a table in order of bytes. Arguments as of `smem_map_svg`.

    >>> regions = [Region("A", 0, 1024, 0), Region("A", 1024, 1024, 1), Region("full", 2048, 8)]
    >>> print(smem_map_table(regions, total=2056))
     offset  bytes  what
          0   1024  A stage 0
      0x400   1024  A stage 1
      0x800      8  full
    2056 bytes
    """
    check_regions(regions, total)
    lines = [" offset  bytes  what"]
    for region in sorted(regions, key=lambda r: r.offset):
        note = f": {region.note}" if region.note else ""
        at = f"{region.offset:#x}" if region.offset else "0"
        lines.append(f"{at:>7} {region.bytes:>6}  {region.label}{note}")
    return "\n".join([*lines, f"{total} bytes" + (f" of {limit}" if limit is not None else "")])


@checked()
def schedule_table(schedule: Schedule | Persistent | npt.ArrayLike, grid: tuple[int, int]) -> str:
    """An order of tiles as a table. The number at which each tile of the grid is visited. Raises as `schedule_svg`.

    >>> from layoutgemm.schedule import Grouped
    >>> print(schedule_table(Grouped(group=2), (3, 2)))
    Grouped(along='M', group=2, serpentine=False) over 3x2 tiles: the number of each
        0 1
      +----
    0 | 0 2
    1 | 1 3
    2 | 4 5
    """
    _, numbers = numbered(schedule, grid)
    cells = [[str(n) for n in row] for row in numbers.tolist()]
    head = f"{named(schedule)} over {grid[0]}x{grid[1]} tiles: the number of each"
    return f"{head}\n" + table(cells, range(grid[0]), range(grid[1]))
