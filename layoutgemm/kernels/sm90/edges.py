"""Edge tiles: K-major operands are loaded in boxes of the remaining rows.

A TMA load zero-fills the out-of-bounds rows of a box. These are not free: many CTAs that load them at a time slow each
other down. 132 CTAs that loaded boxes of 128 rows took 350 cycles a box with all rows inside, 627 with 32 outside, 909
with 64, 1269 with 120. One CTA alone took 152 with any number (H200: benchmarks/NOTES.md, "Rows out of bounds"). So
each operand has a second tensor map, of boxes as high as the last one of the matrix, and a block's barrier expects what
its tile really brings:

    rows left from a share's first one on     its box                                     brings
    -------------------------------------     ----------------------------------------    --------------------
    a whole box of them, or more              the tile's, in its place                    `box` rows
    fewer                                     that of the last rows, in its place         `last(extent)` rows
    none: the tile, or share, is outside      that of the last rows, of the matrix's      `last(extent)` rows
                                              first rows

What shared memory holds where nothing is copied makes sums that are not stored. A tensor store ends a line of C with 16
bytes, all the same; so the last rows are as many as make whole ones, and those beyond the matrix are zeros. Shares
begin at multiples of a box, so that fewer rows than a box are always the last ones.
"""

from __future__ import annotations

from dataclasses import replace

from ...atoms import TmaPlan
from ...atoms.tma.derive import STRIDE_UNIT
from ...dtypes import DType
from ...report import Check
from ..derive import EdgeBoxes, OperandPlan, either


def ends_of(tma: TmaPlan, dim: str, tile: int, unit: int) -> EdgeBoxes | None:
    """The edge boxes of a tile of `tile` rows. None if rows are not the boxes' lines.

    unit  elements of C that a tensor store writes together: of a box, a divisor

    >>> from layoutgemm.atoms import smem_tile
    >>> from layoutgemm.atoms.tma.derive import derive
    >>> from layoutgemm.atoms.tma.multicast import shared_out
    >>> deep, flat = [derive(smem_tile((256, k), "bf16", "K"), ("k", "m")) for k in (128, 64)]
    >>> ends_of(deep, "m", 256, 8)
    EdgeBoxes(dim='m', box=256, shares=1, step=0, line=256, unit=8)
    >>> ends_of(shared_out(flat, 2), "m", 256, 8)
    EdgeBoxes(dim='m', box=128, shares=2, step=128, line=128, unit=8)
    """
    at = tma.dims.index(dim)
    shares = [[copy.coord_offset[at] for copy in tma.issued_by(rank)] for rank in range(tma.multicast)]
    box, step = tma.box[at], shares[1][0] if tma.multicast > 1 else 0
    if at == 0 or any(set(share) != {rank * step} for rank, share in enumerate(shares)):
        return None
    if step not in (0, box) or step * (tma.multicast - 1) + box != tile or box % unit:
        return None
    return EdgeBoxes(dim, box, tma.multicast, step, tma.sent_bytes // box, unit)


def with_ends(operand: OperandPlan, dim: str, tile: int, c: DType, wanted: bool) -> OperandPlan:
    """The operand with edge boxes, if wanted and if rows are its boxes' lines.

    c  the type of C
    """
    if not wanted or operand.major != "K":
        return operand
    return replace(operand, ends=ends_of(operand.tma, dim, tile, STRIDE_UNIT // c.bytes))


def ends_check(operand: OperandPlan, tile: int, c: DType) -> Check:
    """For every extent. The matrix's rows of a tile land in their places, nearly none from outside, as expected."""
    ends, tma = operand.ends, operand.tma
    assert ends is not None
    at, witness, tiles = tma.dims.index(ends.dim), "", 0
    if ends.unit * c.bytes != STRIDE_UNIT or ends.box % ends.unit:
        witness = f"boxes of {ends.box} rows, the last in steps of {ends.unit}: {ends.unit * c.bytes} bytes of C"
    places = [sorted(copy.coord_offset[at] for copy in tma.issued_by(share)) for share in range(tma.multicast)]
    boxes = {ends.last(extent): ends.of_last_rows(tma, extent) for extent in range(1, ends.box + 1)}
    sizes = {rows: (copies.box[at], copies.sent_bytes) for rows, copies in boxes.items()}
    whole = tma.box[at], tma.sent_bytes
    for extent in range(1, 2 * tile + 1):
        for first in range(0, extent + tile, tile):  # a cluster may have a tile that is all outside
            bytes_ = landed = 0
            for share, offsets in enumerate(places):
                in_whole, row = ends.place(extent, first, share, either)
                rows, sent = whole if in_whole else sizes[ends.last(extent)]
                bytes_ += sent
                for place in offsets:
                    start = row + place
                    if start < 0 or start + rows >= extent + ends.unit:
                        witness = witness or f"of {extent} rows, tile at {first}: rows {start} to {start + rows - 1}"
                    # Its own rows, next to those before.
                    if ends.left(extent, first, share) > 0 and row == first and place <= landed:
                        landed = max(landed, place + rows)
            if landed < min(tile, extent - first):
                witness = witness or f"of {extent} rows, tile at {first}: the first {landed} land in their places"
            if bytes_ != (said := ends.expected(extent, first, ends.last(extent), either)):
                witness = witness or f"of {extent} rows, tile at {first}: {bytes_} bytes are sent, {said} expected"
            tiles += 1
    statement = (
        f"boxes of {operand.name} end with its rows, up to {ends.unit - 1} more; a tile of {tile} rows has all of the "
        "matrix's in their places, and its barrier expects what is sent"
    )
    return Check(f"ends {operand.name}", statement, not witness, f"exhaustion ({tiles} tiles)", witness)


def explain_ends(operand: OperandPlan, extent: int) -> list[str]:
    """The edge boxes of the operand in words."""
    ends = operand.ends
    if ends is None:
        return []
    last = ends.last(extent)
    if last == ends.box:
        return [f"{operand.name}'s boxes end with its rows: {extent} are whole boxes of {ends.box}"]
    return [
        f"{operand.name}'s boxes end with its rows: of {extent} the last box has {last} of {ends.box}, by a tensor map "
        "of its own, and a stage's barrier expects as many bytes less"
    ]
