"""The TMA boxes of a tile on their tensor, with the elements out of bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layoutgemm.atoms.tma.plan import TmaPlan
from layoutgemm.errors import LayoutError
from layoutgemm.view.canvas import Canvas, width_of
from layoutgemm.view.palette import INK, hue, lighter
from layoutgemm.view.sheet import MARGIN, Note, header, legend

from ..arguments import checked

TENSOR, TILE = 400.0, 520.0  # pixels of the longer side of each
LEAST = 60.0  # of the shorter side
TICK = 11.0
MAX_LINES = 128  # tiles along a dimension between which lines are drawn


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """One instruction. It has its box in the tensor and the part inside, along the first two dimensions.

    start, extent   (innermost, next): coordinates and elements
    first, end      the part inside, counted from the box's corner; all of it without a known tensor
    """

    start: tuple[int, int]
    extent: tuple[int, int]
    first: tuple[int, int]
    end: tuple[int, int]
    number: int

    @property
    def clipped(self) -> tuple[int, int]:
        """Elements inside, (innermost, next)."""
        width, height = (max(e - f, 0) for f, e in zip(self.first, self.end, strict=True))
        return (width, height) if width and height else (0, 0)


@checked()
def box_svg(plan: TmaPlan, index: Sequence[int] | None = None, *, title: str | None = None) -> str:
    """Draws the TMA copies of one tile. The tensor with the tile marked, and the boxes with their coordinates.

    index: the tile's number along each mode of the global layout; None: the first. The innermost dimension runs across,
    the next downwards; coordinates along others are named. Elements out of bounds are grey, and the box counts those
    inside. A plan without a tensor (sizes given at run time) shows its boxes alone.

    Raises LayoutError for a tensor with symbols, and for a tile outside of it.

    >>> from layoutgemm import Layout
    >>> from layoutgemm.atoms import smem_tile, tma_load
    >>> plan = tma_load(Layout((200, 104), (104, 1)), smem_tile((128, 64), "bf16", "K"))
    >>> "40x72 of 64x128 inside" in box_svg(plan, (1, 1))
    True
    """
    placed, rest = placed_of(plan, index)
    x_name, y_name = axes_of(plan)
    heading = (
        title
        or f"{plan.operation} of {len(plan.instructions)} box{'es' if len(plan.instructions) > 1 else ''} "
        + ("x".join(map(str, plan.box)) + f" {plan.dtype}, swizzle {plan.swizzle}")
    )
    moved = f"{plan.box_bytes} bytes a box, {plan.bytes} in all"
    outside = {"load": "zeros arrive, and count", "store": "nothing is written", "reduce": "nothing is added"}[
        plan.operation
    ]
    if plan.operation == "load" and plan.oob_fill != "zeros":
        outside = "NaNs arrive, and count"
    notes = [Note(f"{moved}; outside the tensor {outside}. Coordinates: ({', '.join(plan.dims)}).")]
    if rest:
        notes.append(Note(rest))
    canvas = Canvas()
    left, top, right, bottom_ = bounds(placed)
    inner = 52 + (right - left) * scales(right - left, bottom_ - top, TILE)[0] + 24
    sizes = sizes_of(plan)
    if sizes is not None:
        width, height = max(sizes[0], right), max(sizes[1], bottom_)
        inner += max(width * scales(width, height, TENSOR)[0], TENSOR / 2) + 70
    inner = max(inner, width_of(heading, 16) * 1.15, 560.0)
    y = header(canvas, heading, notes, inner)
    some_outside = any(box.clipped != box.extent for box in placed)
    y = legend(canvas, ((hue(0), "in the tensor"), *(("empty", "outside"),) * some_outside), y, inner) + 60
    x, bottom = MARGIN + 52, y
    if plan.extents is not None:
        x, bottom = draw_tensor(canvas, plan, placed, x, y, (x_name, y_name))
        x += 70
    bottom = max(bottom, draw_tile(canvas, plan, placed, x, y, (x_name, y_name)))
    return canvas.render(inner + 2 * MARGIN, bottom + MARGIN, heading, [note.text for note in notes])


def axes_of(plan: TmaPlan) -> tuple[str, str]:
    """Names of the innermost dimension and of the next."""
    return plan.dims[0], plan.dims[1] if len(plan.dims) > 1 else ""


def sizes_of(plan: TmaPlan) -> tuple[int, int] | None:
    """Extents of the tensor along the two; None where it is not known. Raises LayoutError for symbols."""
    if plan.extents is None:
        return None
    if not all(isinstance(extent, int) for extent in plan.extents):
        raise LayoutError(
            f"cannot draw a tensor of {plan.extents}: a picture needs numbers, so give its symbols values"
        )
    return plan.extents[0], plan.extents[1] if len(plan.extents) > 1 else 1


def placed_of(plan: TmaPlan, index: Sequence[int] | None) -> tuple[list[PlacedBox], str]:
    """The boxes of a tile that share the first box's further coordinates, with a note."""
    sizes = sizes_of(plan)
    if plan.starts:
        index = tuple(index) if index is not None else (0,) * len(plan.starts)
        coordinates = plan.coordinates(index)
    elif index is not None:
        raise LayoutError(
            f"tile {tuple(index)}: the plan was derived without a tensor, so it has no tiles to choose from"
        )
    else:
        coordinates = tuple(copy.coord_offset for copy in plan.instructions)
    inside = plan.inside(index) if sizes is not None and index is not None else None
    first, out = coordinates[0], []
    for number, at in enumerate(coordinates):
        if at[2:] != first[2:]:
            continue
        whole = [(0, extent) for extent in plan.box]
        parts = list(inside[number]) if inside is not None else whole
        two = [*zip(at, plan.box, parts, strict=True), (0, 1, (0, 1))][:2]
        (x, width, px), (y, height, py) = two
        if any(b <= a for a, b in parts[2:]):
            px = py = (0, 0)
        out.append(PlacedBox((x, y), (width, height), (px[0], py[0]), (px[1], py[1]), number))
    if sizes is not None and not any(box.clipped[0] for box in out):
        raise LayoutError(f"tile {index} begins at {first}, outside of the tensor {plan.extents}")
    said = []
    if len(first) > 2:
        said.append(
            "Further coordinates: " + ", ".join(f"{name} {c}" for name, c in zip(plan.dims[2:], first[2:], strict=True))
        )
    if len(out) < len(coordinates):
        said.append(f"{len(coordinates) - len(out)} more boxes lie elsewhere along them")
    return out, "; ".join(said) + ("." if said else "")


def bounds(placed: Sequence[PlacedBox]) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of all boxes, in elements."""
    return (
        min(box.start[0] for box in placed), min(box.start[1] for box in placed),
        max(box.start[0] + box.extent[0] for box in placed), max(box.start[1] + box.extent[1] for box in placed),
    )  # fmt: skip


def scales(width: int, height: int, side: float) -> tuple[float, float]:
    """Pixels for an element across and downwards. The same where both sides then can be seen."""
    scale = side / max(width, height)
    return max(scale, min(LEAST, side) / width), max(scale, min(LEAST, side) / height)


def draw_tensor(
    canvas: Canvas, plan: TmaPlan, placed: Sequence[PlacedBox], x: float, y: float, names: tuple[str, str]
) -> tuple[float, float]:
    """The whole tensor in tiles, the chosen one marked. Returns where it ends to the right and below."""
    sizes = sizes_of(plan)
    assert sizes is not None
    left, top, right, bottom = bounds(placed)
    width, height = max(sizes[0], right), max(sizes[1], bottom)
    sx, sy = scales(width, height, TENSOR)
    canvas.text(x, y - 34, f"tensor {names[1]} {sizes[1]} x {names[0]} {sizes[0]}", 13, bold=True)
    canvas.box(
        x, y, sizes[0] * sx, sizes[1] * sy, lighter(hue(0), 0.65), f"the tensor: {sizes[0]} x {sizes[1]} elements"
    )
    tile = (right - left, bottom - top)
    lines: list[tuple[float, float, float, float]] = []
    if sizes[0] / tile[0] <= MAX_LINES and tile[0] * sx >= 3:
        lines += [(x + a * sx, y, x + a * sx, y + sizes[1] * sy) for a in range(left % tile[0], sizes[0], tile[0])]
    if sizes[1] / tile[1] <= MAX_LINES and tile[1] * sy >= 3:
        lines += [(x, y + b * sy, x + sizes[0] * sx, y + b * sy) for b in range(top % tile[1], sizes[1], tile[1])]
    canvas.lines(lines, "#FFFFFF", 1)
    w, h = max(tile[0] * sx, 4.0), max(tile[1] * sy, 4.0)
    canvas.box(x + left * sx, y + top * sy, w, h, "empty", "the tile", stroke=INK, data='data-tile=""')
    for box in placed:
        cw, ch = box.clipped
        if cw:
            canvas.rect(
                x + (box.start[0] + box.first[0]) * sx, y + (box.start[1] + box.first[1]) * sy, cw * sx, ch * sy, hue(0)
            )
    canvas.frame(x + left * sx, y + top * sy, w, h, 1.5)
    end_x, end_y = x + sizes[0] * sx, y + sizes[1] * sy
    border = [(x, y, end_x, y), (x, end_y, end_x, end_y), (x, y, x, end_y), (end_x, y, end_x, end_y)]
    canvas.lines(border, "line", 1.5)
    canvas.text(x, y - 6, "0", TICK, fill="faint")
    canvas.text(x + sizes[0] * sx, y - 6, str(sizes[0]), TICK, fill="faint", anchor="middle")
    canvas.text(x + sizes[0] * sx / 2, y - 6, names[0] + " \u2192", TICK, fill="faint", anchor="middle")
    canvas.text(x - 6, y + sizes[1] * sy, str(sizes[1]), TICK, fill="faint", anchor="end")
    canvas.text(x - 6, y + sizes[1] * sy / 2, names[1] + " \u2193", TICK, fill="faint", anchor="end")
    return x + max(width * sx, TENSOR / 2), y + height * sy


def draw_tile(
    canvas: Canvas, plan: TmaPlan, placed: Sequence[PlacedBox], x: float, y: float, names: tuple[str, str]
) -> float:
    """The tile's boxes with their coordinates; returns where they end below."""
    left, top, right, bottom = bounds(placed)
    sx, sy = scales(right - left, bottom - top, TILE)
    canvas.text(x, y - 34, f"tile {names[1]} {bottom - top} x {names[0]} {right - left}", 13, bold=True)
    sizes = sizes_of(plan)
    for box in placed:
        px, py = x + (box.start[0] - left) * sx, y + (box.start[1] - top) * sy
        width, height = box.extent[0] * sx, box.extent[1] * sy
        said = told(box)
        number = f'data-box="{box.number}"'
        canvas.box(px, py, width, height, "empty", f"{said[0]}: outside the tensor", data=number)
        cw, ch = box.clipped
        if cw:
            inside = f'data-inside="{cw}x{ch}"'
            fill = hue(0) if box.number % 2 == 0 else lighter(hue(0), 0.35)
            px_, py_ = px + box.first[0] * sx, py + box.first[1] * sy
            canvas.box(px_, py_, cw * sx, ch * sy, fill, " ".join(said), data=inside)
        canvas.frame(px, py, width, height, 1.5, "" if (cw, ch) == box.extent else "5 4")
        # In the part inside, if there is room: the tensor's edge crosses the others.
        part, whole = (px + box.first[0] * sx, py + box.first[1] * sy, cw * sx, ch * sy), (px, py, width, height)
        narrow = [*said[:2], *said[2].rsplit(" ", 1)]
        texts_at = ((part, said), (part, narrow), (whole, said), (part, said[:1]), (whole, said[:1]))
        for (ax, ay, aw, ah), texts in texts_at:
            if ah > 17 * len(texts) and all(width_of(line, 12) < aw for line in texts):
                for place, line in enumerate(texts):
                    middle = ay + ah / 2 + (place - (len(texts) - 1) / 2) * 16 + 4
                    canvas.text(ax + aw / 2, middle, line, 12, fill=INK, anchor="middle")
                break
    xs = sorted({box.start[0] for box in placed} | {right})
    ys = sorted({box.start[1] for box in placed} | {bottom})
    if sizes is not None:
        xs, ys = with_edge(xs, sizes[0], left, right), with_edge(ys, sizes[1], top, bottom)
    spaced(canvas, [(x + (at - left) * sx, y - 6, str(at)) for at in xs], "middle")
    for at in ys:
        canvas.text(x - 6, y + (at - top) * sy + 4, str(at), TICK, fill="faint", anchor="end")
    if sizes is not None:  # the tensor's edge
        edges: list[tuple[float, float, float, float]] = []
        if left < sizes[0] < right:
            edges.append((x + (sizes[0] - left) * sx, y, x + (sizes[0] - left) * sx, y + (bottom - top) * sy))
        if top < sizes[1] < bottom:
            edges.append((x, y + (sizes[1] - top) * sy, x + (right - left) * sx, y + (sizes[1] - top) * sy))
        canvas.lines(edges, INK, 2.5)
    return y + (bottom - top) * sy + 8


def with_edge(at: list[int], edge: int, low: int, high: int) -> list[int]:
    """The places and the tensor's edge, where that lies between."""
    return sorted({*at, edge}) if low < edge < high else at


def spaced(canvas: Canvas, texts: Sequence[tuple[float, float, str]], anchor: str) -> None:
    """Numbers of an axis, without those that would touch the one before."""
    end = -1e9
    for x, y, text in texts:
        if x - width_of(text, TICK) / 2 > end:
            canvas.text(x, y, text, TICK, fill="faint", anchor=anchor)
            end = x + width_of(text, TICK) / 2


def told(box: PlacedBox) -> list[str]:
    """The lines of text in a box."""
    size = f"{box.extent[0]}x{box.extent[1]}"
    width, height = box.clipped
    inside = f"{width}x{height} of {size} inside" if (width, height) != box.extent else f"{size}, all inside"
    return [f"box {box.number}", f"at ({box.start[0]}, {box.start[1]})", inside]
