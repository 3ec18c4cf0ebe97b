"""A map of a block's shared memory. A line for each kind of region, to scale along the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from layoutgemm.errors import LayoutError
from layoutgemm.view.canvas import Canvas, width_of
from layoutgemm.view.palette import INK, hue, lighter
from layoutgemm.view.sheet import MARGIN, NOTE_SIZE, Note, header

from ..arguments import checked

WIDTH, HEIGHT, PITCH = 860.0, 30.0, 42.0
TICK = 11.0


class Region(NamedTuple):
    """Bytes [offset, offset + bytes) of a block's shared memory.

    name   of the contents, as in "A"; regions of one name share a line
    stage  its number among such, or None
    note   more about it, such as the shape of a tile
    of     the unit of the number, if not a stage
    """

    name: str
    offset: int
    bytes: int
    stage: int | None = None
    note: str = ""
    of: str = "stage"

    @property
    def label(self) -> str:
        """Its name and its number."""
        return self.name if self.stage is None else f"{self.name} {self.of} {self.stage}"


def _numbers(regions: Sequence[Region]) -> str:
    """The units that regions are counted in, in words: those of barriers are stages, too."""
    units = dict.fromkeys([region.of for region in regions if region.stage is not None and region.of != "buffer"])
    named = [f"an {unit}" if unit[0] in "aeiou" else f"a {unit}" for unit in units]
    return f"A number is {' or '.join(named) or 'a stage'}"


@checked()
def smem_map_svg(
    regions: Sequence[Region], *, total: int, limit: int | None = None, title: str = "shared memory of a block"
) -> str:
    """Draws a map of shared memory. Bytes to the right, a line for each kind of region, coloured by stage.

    total: bytes that the block takes; limit: bytes that it may have, marked where given. Regions in one column use the
    same memory at different times. A line too small to be seen is magnified over the whole width, and says so.

    Raises LayoutError for no region, and for one outside of `total`.

    >>> svg = smem_map_svg([Region("A", 0, 1024, 0), Region("A", 1024, 1024, 1), Region("full", 2048, 8)], total=2056)
    >>> svg.count("data-stage="), "A stage 1: bytes 1024 to 2047 (0x400), 1024 bytes" in svg
    (3, True)
    """
    check_regions(regions, total)
    end = max(total, limit or 0)
    names = list(dict.fromkeys(region.name for region in regions))
    sides = {name: side_text([r for r in regions if r.name == name]) for name in names}
    left = MARGIN + max(width_of(name, NOTE_SIZE) for name in names) + 10
    right = max(width_of(text, NOTE_SIZE) for text in sides.values()) + 20
    inner = max(left - MARGIN + WIDTH + 14 + right, width_of(title, 16) * 1.15)
    share = f" of {limit} that a block may have, {limit - total} free" if limit is not None else ""
    notes = [
        Note(f"{total} bytes{share}. {_numbers(regions)}; what stands over another uses its memory at another time.")
    ]
    canvas = Canvas()
    y = header(canvas, title, notes, inner) + 34
    first = y
    for name in names:
        canvas.text(left - 10, y + HEIGHT / 2 + 4, name, NOTE_SIZE, anchor="end", bold=True)
        line = [region for region in regions if region.name == name]
        start, stop = extent_of(line)
        magnified = (stop - start) / end * WIDTH < 4 * len(line)
        if not magnified:
            canvas.rect(left, y, WIDTH, HEIGHT, "track")
        for region in line:
            draw_region(canvas, region, left, y, *((start, stop) if magnified else (0, end)), thin=magnified)
        side = sides[name] + ("; magnified" if magnified else "")
        canvas.text(left + WIDTH + 14, y + HEIGHT / 2 + 4, side, NOTE_SIZE, fill="faint")
        y += PITCH
    bottom = y - PITCH + HEIGHT
    unit = tick_of(end)
    ticks = [(at, f"{at // 1024}K" if unit >= 1024 else str(at)) for at in range(0, end + 1, unit)]
    canvas.axis([(left + at / end * WIDTH, text) for at, text in ticks], first, 4)
    if limit is not None:
        for at, told in ((total, f"{total} taken"), (limit, f"{limit} at most")):
            x = left + at / end * WIDTH
            canvas.lines([(x, bottom, x, bottom + 8)], "ink", 1.5)
            canvas.text(
                x, bottom + 20 + (14 if at == limit else 0), told, TICK, anchor="end" if x > left + 120 else "start"
            )
        bottom += 36
    return canvas.render(inner + 2 * MARGIN, bottom + MARGIN, title, [note.text for note in notes])


def check_regions(regions: Sequence[Region], total: int) -> None:
    """Raises LayoutError for no region, and for one empty or not within `total` bytes."""
    if not regions:
        raise LayoutError("a map of shared memory has one region at least")
    for region in regions:
        if region.bytes < 1 or region.offset < 0 or region.offset + region.bytes > total:
            raise LayoutError(f"{region} does not lie in the {total} bytes of the block")


def said(region: Region) -> str:
    """A region in words."""
    note = f"; {region.note}" if region.note else ""
    last = region.offset + region.bytes - 1
    return f"{region.label}: bytes {region.offset} to {last} ({region.offset:#x}), {region.bytes} bytes{note}"


def extent_of(regions: Sequence[Region]) -> tuple[int, int]:
    """The first byte of them all, and the end of the last."""
    return min(region.offset for region in regions), max(region.offset + region.bytes for region in regions)


def side_text(regions: Sequence[Region]) -> str:
    """The text at the right of a line."""
    sizes = {region.bytes for region in regions}
    size = f"{regions[0].bytes}" if len(sizes) == 1 else f"{min(sizes)} to {max(sizes)}"
    count = f"{len(regions)} x {size}" if len(regions) > 1 else size
    return f"{count} bytes from {min(region.offset for region in regions):#x}" + (
        f"; {regions[0].note}" if regions[0].note else ""
    )


def draw_region(canvas: Canvas, region: Region, left: float, y: float, start: int, stop: int, thin: bool) -> None:
    """One rectangle, with its number where that fits."""
    scale = WIDTH / (stop - start)
    x, width = left + (region.offset - start) * scale, max(region.bytes * scale, 2.0)
    stage = region.stage or 0
    fill = hue(stage) if stage < 8 else lighter(hue(stage), 0.45)
    data = f'data-name="{region.name}" data-stage="{"" if region.stage is None else region.stage}"'
    top, height = (y + HEIGHT / 4, HEIGHT / 2) if thin else (y, HEIGHT)
    canvas.box(x, top, width, height, fill, said(region), stroke="#FFFFFF" if width > 6 else "", data=data)
    text = str(region.stage) if region.stage is not None else ""
    if text and width_of(text, 13) + 2 < width:
        canvas.text(x + width / 2, y + HEIGHT / 2 + 5, text, 13, fill=INK, anchor="middle")


def tick_of(end: int) -> int:
    """Bytes between two ticks: a power of two, sixteen ticks at most."""
    unit = 1
    while end / unit > 16:
        unit *= 2
    return unit
