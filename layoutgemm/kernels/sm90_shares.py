"""Copies of a Hopper plan as its kernel and its checks see them: shares of a multicast tile, one matrix of a batch."""

from __future__ import annotations

from dataclasses import replace

from ..atoms import TmaPlan, smem_tile
from ..atoms.tma import derive as derive_tma
from ..atoms.tma_multicast import shared_out
from ..errors import PlanError
from .plan import OperandPlan


def shared(operand: OperandPlan, blocks: int, batch: bool) -> OperandPlan:
    """The operand with its copies dealt out to so many blocks of the cluster, and its map made for a batch."""
    tma = shared_out(operand.tma, blocks)
    if problem := uneven_shares(tma):
        of = f"{operand.name}'s tile of {'x'.join(map(str, operand.smem.extent))}, shared by {blocks} blocks"
        raise PlanError(f"{of}: {problem}")
    return replace(operand, tma=tma.batched("l") if batch else tma)


def few_rows(a: OperandPlan, rows: int, batch: bool) -> OperandPlan:
    """A with copies of its first rows only, each into the tile where the copy of all rows would have put them."""
    if a.major != "K":
        raise PlanError(f"rows = {rows} of a {a.order}-major A: its copies run along M, and a part of a line is no box")
    tma = derive_tma(smem_tile((rows, a.smem.extent[1]), a.dtype, "K", a.smem.swizzle_name), ("k", "m"))
    instructions = tuple(
        [replace(i, smem_offset=a.smem.byte(i.coord_offset[1], i.coord_offset[0])) for i in tma.instructions]
    )
    tma = replace(tma, instructions=instructions)
    return replace(a, tma=tma.batched("l") if batch else tma)


def uneven_shares(tma: TmaPlan) -> str:
    """Why the shares of a multicast tile are not rank times a distance, as the kernel computes them; "" when they are.

    >>> from layoutgemm.atoms import smem_tile
    >>> from layoutgemm.atoms.tma import derive
    >>> from layoutgemm.atoms.tma_multicast import shared_out
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


def one_matrix(tma: TmaPlan) -> TmaPlan:
    """A batch's copies without the dimension of the batch, along which a box has one element."""
    if len(tma.box) == 2:
        return tma
    assert tma.box[2:] == (1,) and all(copy.coord_offset[2:] == (0,) for copy in tma.instructions), tma
    copies = tuple(replace(copy, coord_offset=copy.coord_offset[:2]) for copy in tma.instructions)
    return replace(tma, dims=tma.dims[:2], box=tma.box[:2], steps=tma.steps[:2], instructions=copies)
