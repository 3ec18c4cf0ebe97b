"""Multicast: a tile that several blocks of a cluster need is read once. Each block sends its share to all."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from ...arguments import checked, shown
from ...errors import TmaError
from ...layouts import Layout
from .plan import TmaCopy, TmaPlan
from .rules import MODES

MAX_BLOCKS = 16  # PTX ISA, cp.async.bulk.tensor: ctaMask has 16 bits


@checked(TmaError)
def shared_out(plan: TmaPlan, blocks: int) -> TmaPlan:
    """The plan with its instructions dealt out to `blocks` CTAs. Boxes are cut only if there are too few.

    A block then issues the instructions of its rank, each to all blocks, and every block receives the whole tile: its
    barrier expects `plan.bytes`, not what it sends. Raises TmaError, rule "multicast", where no equal cut exists.
    """
    if not 1 <= blocks <= MAX_BLOCKS:
        raise TmaError(f"multicast to {shown(blocks)} CTAs: a mask names 1 to {MAX_BLOCKS}", rule="multicast")
    if blocks == 1:
        return plan
    if plan.operation != "load":
        raise TmaError(f"a {plan.operation} is not multicast", rule="multicast")
    steps, moved = plan.each_step, list(plan.moved)
    pitch = _pitches(plan)
    cut = blocks // gcd(len(plan.instructions), blocks)
    left, offsets = cut, [((0,) * len(moved), 0)]
    for at in reversed(range(len(moved))):
        parts = gcd(left, moved[at])
        left //= parts
        moved[at] //= parts
        offsets = [
            (
                tuple(c + i * moved[at] * steps[at] * (place == at) for place, c in enumerate(coordinate)),
                byte + i * moved[at] * pitch[at] // 8,
            )
            for coordinate, byte in offsets
            for i in range(parts)
        ]
        if left == 1 or moved[at] != 1:
            break
    if left != 1:
        raise TmaError(
            f"{len(plan.instructions)} box(es) {plan.box} do not fall into {blocks} equal runs of shared memory",
            rule="multicast",
        )
    copies = sorted(
        (
            TmaCopy(tuple(a + b for a, b in zip(copy.coord_offset, coordinate, strict=True)), copy.smem_offset + byte)
            for copy in plan.instructions
            for coordinate, byte in offsets
        ),
        key=lambda copy: copy.smem_offset,
    )
    for copy in copies:
        if copy.smem_offset % 128:
            raise TmaError(
                f"a {blocks}-th of box {plan.box} would start at shared byte +{copy.smem_offset}, no multiple of 128",
                rule="multicast",
            )
    each = len(copies) // blocks
    return replace(
        plan,
        box=tuple(n * step for n, step in zip(moved, steps, strict=True)),
        instructions=tuple(replace(copy, rank=i // each) for i, copy in enumerate(copies)),
        multicast=blocks,
    )


def _pitches(plan: TmaPlan) -> list[int]:
    """Bits of shared memory between the box's elements along each dimension; a swizzled row is a span."""
    mode, bits = MODES[plan.swizzle], plan.kind.smem_bits
    moved = plan.moved
    out, pitch = [bits], max(moved[0] * bits, 8 * mode.span if mode.bits else 0)
    for extent in moved[1:]:
        out.append(pitch)
        pitch *= extent
    return out


@checked(TmaError)
def multicast_mask(cluster: Layout, coordinate: tuple[int, ...], mode: int) -> int:
    """The mask of the blocks that receive a multicast. Those that differ from `coordinate` in `mode` only.

    cluster  (block coordinate) -> rank of the block in the cluster

    >>> multicast_mask(Layout((2, 4)), (1, 2), 0), bin(multicast_mask(Layout((2, 4)), (1, 2), 1))
    (48, '0b10101010')
    """
    rank = cluster.rank if isinstance(cluster.shape, tuple) else 1
    if len(coordinate) != rank or not 0 <= mode < rank:
        raise TmaError(f"{coordinate} and mode {mode} in a cluster {cluster}", rule="multicast")
    mask = 0
    extents: int = cluster[mode].size
    for i in range(extents):
        block = cluster(*(i if place == mode else c for place, c in enumerate(coordinate)))
        if block >= MAX_BLOCKS:
            raise TmaError(f"block {block} of {cluster}: a mask names 0 to {MAX_BLOCKS - 1}", rule="multicast")
        mask |= 1 << block
    return mask
