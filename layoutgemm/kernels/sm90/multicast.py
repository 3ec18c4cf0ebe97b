"""Copies of a Hopper plan as its kernel and its checks see them. Shares of a multicast tile, one matrix of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...atoms import MmaAtom, SmemTile, TmaPlan, smem_tile, wgmma
from ...atoms.smem.descriptor import derive as derive_descriptor
from ...atoms.smem.tile import SPANS
from ...atoms.tma.derive import derive as derive_tma
from ...atoms.tma.multicast import shared_out
from ...errors import PlanError
from ...layouts import Layout
from ..derive import Operand, OperandPlan, derive_operand, with_copies
from ..numbers import W
from ..store import StorePlan

TURNED = "turned"  # of a tile's origin: 1 where its pair shares A in place of B
LINE = SPANS["128B"]  # bytes of the widest span
# A kernel's tensor maps after A's and B's first: C's chunks of 64, 32, 16, 8 columns, the last rows of A, and of B
# either those or what its spans have in part.
OTHER_MAPS = 6


@dataclass(frozen=True)
class MulticastGroups:
    """Blocks of a cluster that share loads. Those of one row need the same A, those of one column the same B.

    A block's rank among them is row + rows * column. Ranks are ints or traced integers.

    >>> four = MulticastGroups(2, 2)
    >>> four.place(3), four.share("A", 3), four.group("A", 3), four.group("B", 3)
    ((1, 1), 1, (2, 1, 2), (2, 2, 1))
    """

    rows: int
    columns: int

    def place(self, rank: W) -> tuple[W, W]:
        """Row and column of a block."""
        return rank % self.rows, rank // self.rows

    def share(self, operand: str, rank: W) -> W:
        """Which share of the operand's tile a block sends to all that need it."""
        row, column = self.place(rank)
        return column if operand == "A" else row

    def group(self, operand: str, rank: W) -> tuple[int, W, int]:
        """Those that need the same tile of the operand as a block. How many, rank of the first, step to the next."""
        row, column = self.place(rank)
        return (self.columns, row, self.rows) if operand == "A" else (self.rows, column * self.rows, 1)

    @property
    def turned(self) -> MulticastGroups:
        """The same blocks with rows and columns exchanged."""
        return MulticastGroups(self.columns, self.rows)

    def sent(self, operand: str, rank: W, shares: int) -> list[tuple[W | int, tuple[int, W, int]]]:
        """Each share of a tile that a block sends, and the group that receives it.

        shares  into which the tile's copies are dealt: one for each block of the group, or any number where a block
                needs the tile alone, and sends itself all of them

        >>> pair = MulticastGroups(2, 1)
        >>> pair.sent("B", 1, 2), pair.turned.sent("B", 1, 2)
        ([(1, (2, 0, 1))], [(0, (1, 1, 1)), (1, (1, 1, 1))])
        """
        group = self.group(operand, rank)
        return [(self.share(operand, rank), group)] if group[0] > 1 else [(share, group) for share in range(shares)]


def check_maps(stores: Sequence[StorePlan | None], copies: int) -> None:
    """Raise PlanError for more tensor maps than a kernel has.

    stores  of C, one or two
    copies  tensor maps of A and B after their first
    """
    of_c = sum(len(store.maps) for store in stores if store is not None)
    if of_c + copies > OTHER_MAPS:
        way_out = "a tile with fewer chunks of columns has fewer, and store='direct' none of C's"
        if copies > OTHER_MAPS:
            way_out = "two pairs take at most three matrices B each"
        raise PlanError(
            f"{of_c} tensor maps of C's chunks and {copies} further ones of A and B: a kernel has {OTHER_MAPS} after "
            f"the first two; {way_out}"
        )


def columns_of(spec: Operand, tile_n: int, tile_k: int, atom: MmaAtom, halved: bool = False) -> OperandPlan:
    """B with a block's tile of `tile_n` columns. Of a row-major B its last span of 128 bytes need not be full.

    halved   the columns are multiplied half by half, too: the second half begins a span then

    Its room in shared memory is whole spans, where the instruction reads as many columns as it has. A box with rows
    narrower than the span leaves the rest of each span alone (CUDA Programming Guide, "TMA swizzle"). An H200 does so,
    and counts the bytes of the box: tests/vectors/tma_h200.json. It has a tensor map of its own beside that of the full
    spans.

    >>> from layoutgemm.atoms import wgmma
    >>> b = columns_of(Operand.parse("bf16:row"), 208, 64, wgmma(208))
    >>> b.smem.extent, [(tma.box, len(tma.instructions)) for tma in b.copies], b.rest.instructions[0].smem_offset
    ((256, 64), [((64, 64), 3), ((16, 64), 1)], 24576)
    """
    span = LINE // spec.dtype.bytes
    full, narrow = tile_n // span * span, tile_n % span
    whole = derive_operand("B", spec, "N", tile_n, tile_k, None, atom)
    if whole.major == "K" or not narrow or halved or len(whole.tma.instructions) == 1:
        return whole
    room = full + span
    reads = wgmma(room, atom.a_dtype, atom.b_dtype, atom.c_dtype)
    tile = smem_tile((room, tile_k), spec.dtype, "MN", "128B")
    lines = tile.layout[1]
    part = SmemTile(spec.dtype, "MN", "128B", Layout((narrow, lines.shape), (1, lines.stride)))
    rest = derive_tma(part, ("n", "k"))
    copies = [rest]
    if full:
        main = derive_tma(smem_tile((full, tile_k), spec.dtype, "MN", "128B"), ("n", "k"))
        at = tile.byte(full, 0)
        moved = [
            replace(i, coord_offset=(i.coord_offset[0] + full, i.coord_offset[1]), smem_offset=i.smem_offset + at)
            for i in rest.instructions
        ]
        copies = [main, replace(rest, instructions=tuple(moved))]
    descriptor = derive_descriptor(tile, reads, "B")
    return replace(whole, smem=tile, tma=copies[0], rest=copies[1] if full else None, descriptor=descriptor)


def shared(operand: OperandPlan, blocks: int, batch: bool) -> OperandPlan:
    """The operand with its copies shared out to CTAs, and its maps batched.

    Raises PlanError where the shares are not evenly apart; passes on TmaError where they cannot be dealt out.
    """
    dealt = [shared_out(tma, blocks) for tma in operand.copies]
    for tma in dealt:
        if problem := uneven_shares(tma):
            of = f"{operand.name}'s tile of {'x'.join(map(str, operand.smem.extent))}, shared by {blocks} blocks"
            raise PlanError(f"{of}: {problem}")
    return with_copies(operand, [tma.batched("l") if batch else tma for tma in dealt])


def few_rows(a: OperandPlan, rows: int, batch: bool) -> OperandPlan:
    """A with copies of its first rows only, to their places in the whole tile.

    Raises PlanError for an MN-major A.
    """
    if a.major != "K":
        raise PlanError(
            f"loaded_a_rows = {rows} of a {a.order}-major A: its copies run along M, and a part of a line is no box"
        )
    tma = derive_tma(smem_tile((rows, a.smem.extent[1]), a.dtype, "K", a.smem.swizzle_name), ("k", "m"))
    instructions = tuple(
        [replace(i, smem_offset=a.smem.byte(i.coord_offset[1], i.coord_offset[0])) for i in tma.instructions]
    )
    tma = replace(tma, instructions=instructions)
    return replace(a, tma=tma.batched("l") if batch else tma)


def uneven_shares(tma: TmaPlan) -> str:
    """The reason why a multicast tile's shares are not evenly apart, or "".

    >>> from layoutgemm.atoms import smem_tile
    >>> from layoutgemm.atoms.tma.derive import derive
    >>> from layoutgemm.atoms.tma.multicast import shared_out
    >>> tile = derive(smem_tile((64, 128), "bf16", "K"), ("k", "n"))
    >>> uneven_shares(shared_out(tile, 2))
    ''
    >>> uneven_shares(shared_out(tile, 4))
    'copy 0 of block 2 starts at (64, 0), byte 8192: 2 times the distance of block 1 is (0, 64), byte 8192'
    """
    shares = [tma.issued_by(rank) for rank in range(tma.multicast)]
    if len({len(share) for share in shares}) > 1:
        return f"the blocks send {[len(share) for share in shares]} boxes"
    for number, copies in enumerate(zip(*shares, strict=True)):
        first, *others = copies
        for rank, copy in enumerate(others, 1):
            steps = [b - a for a, b in zip(first.coord_offset, others[0].coord_offset, strict=True)]
            place = tuple(a + rank * step for a, step in zip(first.coord_offset, steps, strict=True))
            byte = first.smem_offset + rank * (others[0].smem_offset - first.smem_offset)
            if (copy.coord_offset, copy.smem_offset) != (place, byte):
                return (
                    f"copy {number} of block {rank} starts at {copy.coord_offset}, byte {copy.smem_offset}: {rank} "
                    f"times the distance of block 1 is {place}, byte {byte}"
                )
    return ""
