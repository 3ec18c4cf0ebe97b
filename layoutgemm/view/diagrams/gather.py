"""The rows that gather4 and scatter4 move. The tensor, the tile, and which row goes where."""

from __future__ import annotations

from collections.abc import Sequence

from layoutgemm.arguments import checked
from layoutgemm.atoms.tma.gather import ROWS, GatherPlan
from layoutgemm.errors import LayoutError
from layoutgemm.view.canvas import Canvas, width_of
from layoutgemm.view.palette import HUES, INK, hue, lighter
from layoutgemm.view.sheet import MARGIN, Legend, Note, header, legend

TENSOR, TILE, GAP = 180.0, 240.0, 150.0  # pixels across: the tensor, the tile, the room between
ROW, TALL = 18.0, 360.0  # height of a row of the tile, of the tensor at least
MOST = 256  # rows of a tile that is drawn


@checked()
def gather_svg(
    plan: GatherPlan, rows: Sequence[int] | None = None, column: int = 0, *, title: str | None = None
) -> str:
    """Draws a gather or a scatter. Rows of the tensor are at the left, rows of the tile at the right, lines between.

    rows     the tensor's row for each row of the tile; None: rows evenly spread over the tensor
    column   the first column of the tile

    Each instruction has a colour. A row outside of the tensor has no line. Raises LayoutError for a tensor with
    symbols and for a tile of more than 256 rows, and as `GatherPlan.coordinates`.

    >>> from layoutgemm import Layout
    >>> from layoutgemm.atoms import smem_tile, tma_gather
    >>> plan = tma_gather(Layout((100, 64), (64, 1)), smem_tile((8, 64), "bf16", "K"))
    >>> gather_svg(plan, [7, 7, 0, 99, *range(4)]).count("data-line=")
    8
    """
    extents = _extents(plan)
    chosen = _rows(plan, rows, extents[1])
    plan.coordinates(chosen, column)  # refuses what no instruction takes
    tmap, verb = plan.tensor_map, plan.direction
    heading = (
        title
        or f"{verb} of {plan.tile_rows} rows by {verb}4: {len(plan.boxes)} instruction{'s' * (len(plan.boxes) != 1)}"
    )
    swizzle = "" if tmap.swizzle == "none" else f", swizzle {tmap.swizzle}"
    outside = "zeros arrive" if verb == "gather" else "nothing is written"
    notes = [
        Note(f"{plan.ptx}", mono=True),
        Note(f"{plan.box_bytes} bytes an instruction, {plan.bytes} in all{swizzle}. Outside of the tensor {outside}."),
    ]
    canvas = Canvas()
    inner = max(
        TENSOR + GAP + TILE + 120, width_of(heading, 16) * 1.15, *(width_of(n.text, 12) for n in notes if n.mono)
    )
    y = header(canvas, heading, notes, inner)
    y = legend(canvas, _meanings(plan, chosen), y, inner) + 56
    height = max(TALL, ROW * plan.tile_rows)
    x = MARGIN + 50
    _draw_tensor(canvas, plan, chosen, (x, y, height), column)
    _draw_tile(canvas, plan, chosen, (x, y, height))
    return canvas.render(inner + 2 * MARGIN, y + height + MARGIN + 8, heading, [note.text for note in notes])


@checked()
def gather_table(plan: GatherPlan, rows: Sequence[int] | None = None, column: int = 0) -> str:
    """The instructions of a gather or a scatter as a table. Five coordinates and the shared byte of each.

    >>> from layoutgemm import Layout
    >>> from layoutgemm.atoms import smem_tile, tma_gather
    >>> print(gather_table(tma_gather(Layout((100, 64), (64, 1)), smem_tile((8, 64), "bf16", "K"))))
    gather4 of bf16, 64 columns of m1, rows of m0
    instruction 0  column 0  rows 0, 12, 25, 37  -> shared byte +0
    instruction 1  column 0  rows 50, 62, 75, 87  -> shared byte +512
    """
    chosen = _rows(plan, rows, _extents(plan)[1])
    arrow = "->" if plan.direction == "gather" else "<-"
    lines = [f"{plan.direction}4 of {plan.tensor_map.dtype}, {plan.tensor_map.box[0]} columns of {plan.dims[0]}, "
             f"rows of {plan.dims[1]}"]  # fmt: skip
    for number, (at, box) in enumerate(zip(plan.coordinates(chosen, column), plan.boxes, strict=True)):
        said = ", ".join(map(str, at[1:]))
        lines.append(f"instruction {number}  column {at[0]}  rows {said}  {arrow} shared byte +{box.smem_offset}")
    return "\n".join(lines)


def _extents(plan: GatherPlan) -> tuple[int, int]:
    across, down = plan.tensor_map.extents
    if not isinstance(across, int) or not isinstance(down, int):
        raise LayoutError(f"cannot draw a tensor of {plan.tensor_map.extents}: give its symbols values")
    return across, down


def _rows(plan: GatherPlan, rows: Sequence[int] | None, extent: int) -> list[int]:
    if plan.tile_rows > MOST:
        raise LayoutError(f"cannot draw a tile of {plan.tile_rows} rows; {MOST} at most")
    if rows is not None:
        return list(rows)
    return [i * extent // plan.tile_rows for i in range(plan.tile_rows)]


def _parts(plan: GatherPlan, row: int) -> list[int]:
    """The instructions that move a row of the tile."""
    return [n for n, box in enumerate(plan.boxes) if box.coord_offset[1] <= row < box.coord_offset[1] + ROWS]


def _meanings(plan: GatherPlan, rows: Sequence[int]) -> Legend:
    """The legend: a colour for each instruction, after eight the same ones again."""
    count, down = len(plan.boxes), _extents(plan)[1]
    found = [
        (hue(n), f"instruction {', '.join(map(str, range(n, min(count, n + 2 * len(HUES)), len(HUES))))}"
         + ", ..." * (n + 2 * len(HUES) < count))
        for n in range(min(count, len(HUES)))
    ]  # fmt: skip
    return (*found, *(("empty", "outside of the tensor"),) * any(not 0 <= row < down for row in rows))


def _draw_tensor(
    canvas: Canvas, plan: GatherPlan, rows: Sequence[int], place: tuple[float, float, float], column: int
) -> None:
    """The tensor with the chosen rows, and a line from each to the tile."""
    x, y, height = place
    across, down = _extents(plan)
    canvas.text(x, y - 26, f"tensor {plan.dims[1]} {down} x {plan.dims[0]} {across}", 13, bold=True)
    canvas.box(x, y, TENSOR, height, lighter(HUES[-1], 0.5), f"the tensor: {down} rows of {across}")
    canvas.text(x - 6, y + 10, "0", 11, fill="faint", anchor="end")
    canvas.text(x - 6, y + height, str(down), 11, fill="faint", anchor="end")
    canvas.text(x, y - 7, f"{plan.dims[0]} \u2192", 11, fill="faint")
    canvas.text(x - 6, y + height / 2, f"{plan.dims[1]} \u2193", 11, fill="faint", anchor="end")
    thick = max(2.0, height / down)
    tile = height / len(rows)
    for number, row in enumerate(rows):
        if not 0 <= row < down:
            continue
        at = y + row * height / down
        for part in _parts(plan, number):
            box = plan.boxes[part]
            first = (column + box.coord_offset[0]) / across * TENSOR
            wide = min(plan.tensor_map.box[0] / across * TENSOR, TENSOR - first)
            if wide > 0:
                canvas.box(x + first, at, wide, thick, hue(part), f"row {row}: instruction {part}")
        middle = y + (number + 0.5) * tile
        canvas.shape(
            f"M{x + TENSOR + 2:.1f} {at + thick / 2:.1f}L{x + TENSOR + GAP - 2:.1f} {middle:.1f}",
            f'fill="none" stroke="{hue(_parts(plan, number)[0])}" stroke-width="1.5" data-line="{number}"',
        )


def _draw_tile(canvas: Canvas, plan: GatherPlan, rows: Sequence[int], place: tuple[float, float, float]) -> None:
    """The tile in shared memory: a bar a row, with the tensor's row in it."""
    x, y, height = place
    x += TENSOR + GAP
    down = _extents(plan)[1]
    tile = height / len(rows)
    across = max(box.coord_offset[0] for box in plan.boxes) + plan.tensor_map.box[0]
    canvas.text(x, y - 26, f"tile {len(rows)} x {across} in shared memory", 13, bold=True)
    for number, row in enumerate(rows):
        for part in _parts(plan, number):
            box = plan.boxes[part]
            first, wide = box.coord_offset[0] / across * TILE, plan.tensor_map.box[0] / across * TILE
            fill = hue(part) if 0 <= row < down else "empty"
            said = f"row {number} of the tile: row {row} of the tensor, instruction {part}"
            canvas.box(x + first, y + number * tile, wide, tile - 1, fill, said, data=f'data-row="{number}"')
    canvas.open_texts(min(11.0, tile - 3), fill=INK)
    for number, row in enumerate(rows):
        canvas.put(x + TILE / 2, y + (number + 0.5) * tile + 4, f"row {row}")
    canvas.close()
    canvas.open_texts(min(11.0, tile - 3), fill="faint", anchor="start")
    for number in range(len(rows)):
        canvas.put(x + TILE + 6, y + (number + 0.5) * tile + 4, str(number))
    canvas.close()
