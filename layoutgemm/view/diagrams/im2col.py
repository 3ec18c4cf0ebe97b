"""The pixels that one im2col load takes. A plane of an image, its padding and the pixel box."""

from __future__ import annotations

from layoutgemm.arguments import checked
from layoutgemm.atoms.tma.im2col import SPATIAL, Im2colCopy, Im2colPlan, base_pixels
from layoutgemm.errors import LayoutError
from layoutgemm.lazy_numpy import np
from layoutgemm.view.grid import MAX_CELLS
from layoutgemm.view.palette import hue, lighter
from layoutgemm.view.panel import MAX_TEXTS, Label, Panel
from layoutgemm.view.sheet import Note, Sheet
from layoutgemm.view.svg import fitted

OUTSIDE = 0.6  # how much lighter a pixel outside of the tensor is
TENSOR = lighter(hue(2), 0.5)


@checked()
def im2col_svg(plan: Im2colPlan, index: tuple[int, int] = (0, 0), box: int = 0, *, title: str | None = None) -> str:
    """Draws the pixels of one im2col load. They are of the plane in which it begins, W across and H downwards.

    index   the number of the tile along the rows and the columns of A
    box     the instruction of the tile

    A cell shows the row of the tile that its pixel becomes; pale: outside of the tensor, so zeros arrive. The outline
    is the pixel box, moved by the offsets of the tap. Raises LayoutError for a tile or an instruction that is not
    there, and for a plane of more than 65536 pixels.

    >>> from layoutgemm import Layout
    >>> from layoutgemm.atoms import smem_tile, tma_im2col
    >>> images = Layout((2, 7, 9, 64), (4032, 576, 64, 1))
    >>> svg = im2col_svg(tma_im2col(images, smem_tile((64, 64), "bf16", "K"), filter=(3, 3), padding=1), (1, 5))
    >>> "row 0 of the tile: pixel W 2, H 0 of image 1" in svg
    True
    """
    copy, tmap = _copy(plan, index, box), plan.tensor_map
    return Sheet(
        title=title or f"im2col load of {tmap.pixels} pixels x {tmap.channels} channels {tmap.dtype}",
        notes=_notes(plan, copy, index),
        legend=(
            (hue(0), "taken: row of the tile"),
            (lighter(hue(0), OUTSIDE), "taken, outside: zeros"),
            (TENSOR, "in the tensor"),
            ("empty", "padding"),
        ),
        panels=((_panel(plan, copy, plan.boxes[box].coord_offset[1]),),),
    ).render()


def _panel(plan: Im2colPlan, copy: Im2colCopy, first_row: int) -> Panel:
    """The plane: pixels that are taken with their rows of the tile, and the pixel box."""
    width, height = (*plan.tensor_map.spatial, 1)[:2]
    (left, right), (top, bottom) = (*_moved(plan, copy), (0, 0))[:2]
    columns, rows = range(min(0, left), max(width, right + 1)), range(min(0, top), max(height, bottom + 1))
    if len(rows) * len(columns) > MAX_CELLS:
        raise LayoutError(f"cannot draw a plane of {len(rows)} x {len(columns)} pixels: {MAX_CELLS} at most")
    taken = {at: row + first_row for row, at in _pixels(plan, copy).items()}
    names = [f"{name} {at}" for name, at in zip(SPATIAL[2:], copy.coordinates[3:-1])]
    plane = ", ".join([*names, f"image {copy.coordinates[-1]}"])

    def inside(w: int, h: int) -> bool:
        return 0 <= w < width and 0 <= h < height

    def fill(w: int, h: int) -> str:
        if (w, h) in taken:
            return hue(0) if inside(w, h) else lighter(hue(0), OUTSIDE)
        return TENSOR if inside(w, h) else "empty"

    def says(i: int, j: int) -> str:
        w, h = columns[j], rows[i]
        row = f"row {taken[w, h]} of the tile: " if (w, h) in taken else ""
        return f"{row}pixel W {w}, H {h} of {plane}" + ("" if inside(w, h) else ", outside: zeros")

    labels = tuple(
        Label(h - rows.start, w - columns.start, 1, (str(row),)) for (w, h), row in taken.items() if w in columns
    )
    labels = labels if len(labels) <= MAX_TEXTS else ()
    wide, high, font = fitted(labels, rows, columns)
    zones = [[0 if left <= w <= right and top <= h <= bottom else -1 for w in columns] for h in rows]
    return Panel(
        axes=("H", "W"), rows=rows, columns=columns, cell=(wide, high), labels=labels, font=font, zones=zones,
        zone_name="box", tells=says, says=says, caption=plane,
        fills=tuple(tuple(fill(w, h) for w in columns) for h in rows),
    )  # fmt: skip


@checked()
def im2col_table(plan: Im2colPlan, index: tuple[int, int] = (0, 0)) -> str:
    """The im2col loads of one tile as a table: coordinates, offsets and shared bytes.

    >>> from layoutgemm import Layout
    >>> from layoutgemm.atoms import smem_tile, tma_im2col
    >>> images = Layout((2, 7, 9, 64), (4032, 576, 64, 1))
    >>> print(im2col_table(tma_im2col(images, smem_tile((64, 64), "bf16", "K"), filter=(3, 3), padding=1), (1, 5)))
    im2col load of tile (1, 5), columns of 64 pixels x 64 channels bf16, swizzle 128B
    load 0  from (C 0, W 0, H -1, N 1)  offsets (W 2, H 1)  -> shared byte +0
    """
    tmap, names = plan.tensor_map, SPATIAL[: plan.tensor_map.rank - 2]
    lines = [
        f"im2col load of tile {index}, columns of {tmap.pixels} pixels x {tmap.channels} channels {tmap.dtype}, "
        f"swizzle {tmap.swizzle}"
    ]
    for number, copy in enumerate(plan.copies(index)):
        at = ", ".join(f"{name} {c}" for name, c in zip(("C", *names, "N"), copy.coordinates, strict=True))
        by = ", ".join(f"{name} {c}" for name, c in zip(names, copy.offsets, strict=True))
        lines.append(f"load {number}  from ({at})  offsets ({by})  -> shared byte +{copy.smem_offset}")
    return "\n".join(lines)


def _copy(plan: Im2colPlan, index: tuple[int, int], box: int) -> Im2colCopy:
    copies = plan.copies(index)
    if not 0 <= box < len(copies):
        raise LayoutError(f"instruction {box} of a tile that takes {len(copies)}")
    return copies[box]


def _moved(plan: Im2colPlan, copy: Im2colCopy) -> list[tuple[int, int]]:
    """The pixel box along W, H and D, moved by the offsets."""
    return [(first + by, last + by) for (first, last), by in zip(plan.tensor_map.box, copy.offsets, strict=True)]


def _pixels(plan: Im2colPlan, copy: Im2colCopy) -> dict[int, tuple[int, int]]:
    """Row of the column -> pixel (W, H), in the plane of the first pixel."""
    tmap = plan.tensor_map
    found = base_pixels(tmap, copy.coordinates)
    inner, outer = found[:-1][:2], [*found[2:-1], found[-1]]
    at = [axis + by for axis, by in zip(inner, copy.offsets)]
    if len(at) == 1:
        at.append(np.zeros_like(at[0]))
    here = np.ones(tmap.pixels, dtype=bool)
    for axis in outer:
        here &= axis == axis[0]
    return {row: (int(at[0][row]), int(at[1][row])) for row in np.flatnonzero(here).tolist()}


def _notes(plan: Im2colPlan, copy: Im2colCopy, index: tuple[int, int]) -> tuple[Note, ...]:
    tmap, names = plan.tensor_map, SPATIAL[: plan.tensor_map.rank - 2]
    tap = ", ".join(f"{name} {at}" for name, at in zip(names, plan.tap(index[1])[1], strict=True))
    by = ", ".join(f"{name} {at}" for name, at in zip(names, copy.offsets, strict=True))
    steps = ", ".join(f"{name} {step}" for name, step in zip(names, tmap.steps[1:-1], strict=True))
    shown, last = len(_pixels(plan, copy)), tmap.channels + copy.coordinates[0] - 1
    hidden = tmap.pixels - shown
    further = f" The planes that follow have {hidden} more pixel{'s' * (hidden != 1)}." if hidden else ""
    return (
        Note(
            f"Tile {index[0]}, {index[1]} of A: tap ({tap}), offsets ({by}), channels {copy.coordinates[0]} to {last}."
        ),
        Note(f"Outlined: the pixel box, moved by the offsets; visited in steps of {steps}.{further}"),
    )
