"""A word of bit fields. Its bits, the field that each belongs to, and what the fields say."""

from __future__ import annotations

from collections.abc import Mapping

from layoutgemm.atoms.smem.bit_fields import Field, FieldTable
from layoutgemm.errors import DescriptorError
from layoutgemm.view.canvas import Canvas, width_of
from layoutgemm.view.palette import hue
from layoutgemm.view.sheet import MARGIN, NOTE_SIZE, Note, header

from ..arguments import checked

LINE = 32  # bits in a line
BIT, HEIGHT = 27.0, 26.0  # pixels
LINE_HEIGHT = 100.0
ROW = 19.0
LEVELS = 4  # of names under a line of bits


@checked()
def fields_svg(
    table: FieldTable, word: int, *, reasons: Mapping[str, str] | None = None, title: str | None = None
) -> str:
    """Draws a word by its fields. 32 bits in a line, the highest first, and a table of the fields.

    A bit outside every field is grey. `reasons`: name of a field -> why it has its value. Raises DescriptorError for a
    word that does not fit the table's width. A word with stray bits, or with meaningless values, is drawn and says so.

    >>> from layoutgemm.atoms.smem.descriptor_words import smem_table
    >>> svg = fields_svg(smem_table("sm_90a"), 0x4000004000010040)
    >>> svg.count('data-bit="'), 'data-bit="62" data-field="swizzle_mode"' in svg
    (64, True)
    """
    stray = table.stray(word)
    owner = {bit: field for field in table.fields for bit in range(field.low, field.low + field.width)}
    colors = {field.name: hue(i) for i, field in enumerate(table.fields)}
    digits = table.bits // 4 + 2
    heading = title or f"{word:#0{digits}x}: {table.name} descriptor"
    notes = [
        Note(
            f"{table.bits} bits, the highest at the left. Grey: in no field."
            + (f" Set there: {stray}." if stray else "")
        )
    ]
    rows = [row_of(field, word, reasons) for field in reversed(table.fields)]
    widths = [max(width_of(row[i], NOTE_SIZE) for row in [HEADS, *rows]) + 14 for i in range(len(HEADS) - 1)]
    last = max(width_of(row[-1], NOTE_SIZE) * 0.87 for row in [HEADS, *rows])
    inner = max(LINE * BIT, sum(widths) + last + 20, width_of(heading, 16) * 1.15)
    canvas = Canvas()
    y = header(canvas, heading, notes, inner) + 30
    for top in range(table.bits - 1, -1, -LINE):
        bits = list(range(top, max(top - LINE, -1), -1))
        draw_bits(canvas, bits, word, owner, colors, y)
        y += LINE_HEIGHT
    starts = [MARGIN + 20 + sum(widths[:i]) for i in range(len(HEADS))]
    for x, text in zip(starts, HEADS, strict=True):
        canvas.text(x, y, text, NOTE_SIZE, fill="faint")
    for field, row in zip(reversed(table.fields), rows, strict=True):
        y += ROW
        canvas.box(MARGIN, y - 11, 13, 13, colors[field.name], field.name)
        for i, (x, text) in enumerate(zip(starts, row, strict=True)):
            canvas.text(x, y, text, NOTE_SIZE, mono=i < len(row) - 1)
    return canvas.render(inner + 2 * MARGIN, y + MARGIN, heading, [note.text for note in notes])


HEADS = ("bits", "field", "raw", "value", "meaning")


def row_of(field: Field, word: int, reasons: Mapping[str, str] | None) -> tuple[str, ...]:
    """The texts of a field in the list."""
    value = field.decode(word)
    try:
        said = f"{field.label(value)} {field.unit}".strip()
    except DescriptorError:
        said = f"{value}: no meaning"
    why = (reasons or {}).get(field.name)
    bits = f"{field.low + field.width - 1}:{field.low}" if field.width > 1 else str(field.low)
    return bits, field.name, f"{value >> field.shift:#x}", said, field.meaning + (f"; {why}" if why else "")


def draw_bits(
    canvas: Canvas, bits: list[int], word: int, owner: dict[int, Field], colors: dict[str, str], y: float
) -> None:
    """One line of bits with their numbers above and the fields' names below."""
    canvas.open_texts(10, fill="faint")
    for place, bit in enumerate(bits):
        if bit % 4 == 0 or place == 0:
            canvas.put(MARGIN + (place + 0.5) * BIT, y - 5, str(bit))
    canvas.close()
    for place, bit in enumerate(bits):
        field = owner.get(bit)
        name = field.name if field else ""
        told = f"bit {bit}: {word >> bit & 1}" + (f", {name} bit {bit - field.low}" if field else ", in no field")
        canvas.box(
            MARGIN + place * BIT, y, BIT, HEIGHT, colors[name] if field else "empty", told,
            stroke="#FFFFFF", data=f'data-bit="{bit}" data-field="{name}"',
        )  # fmt: skip
    canvas.open_texts(13, mono=True)
    for place, bit in enumerate(bits):
        canvas.put(MARGIN + (place + 0.5) * BIT, y + HEIGHT / 2 + 5, str(word >> bit & 1))
    canvas.close()
    ends = [MARGIN] * LEVELS  # of the last name on each level
    start = 0
    while start < len(bits):
        field = owner.get(bits[start])
        stop = start + 1
        while stop < len(bits) and owner.get(bits[stop]) is field:
            stop += 1
        x, width = MARGIN + start * BIT, (stop - start) * BIT
        if field is not None:
            canvas.frame(x, y, width, HEIGHT, 1.5)
            # Under its field, inside of the line of bits, on the first level where no name stands.
            room, middle = width_of(field.name, 11), x + width / 2
            left = min(max(middle - room / 2, MARGIN), MARGIN + len(bits) * BIT - room)
            level = next((n for n, end in enumerate(ends) if end <= left), LEVELS - 1)
            ends[level] = left + room + 6
            base = y + HEIGHT + 14 + 13 * level
            canvas.text(left + room / 2, base, field.name, 11, anchor="middle")
            if level:
                canvas.lines([(middle, y + HEIGHT + 2, middle, base - 10)], "line", 1)
        start = stop
