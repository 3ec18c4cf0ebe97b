"""Shared memory's banks from the definition, in plain Python loops: the reference for the checks.

Nothing here is shared with the package. A phase is a list of byte addresses, one per lane, None for an idle lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def ways(phase: Sequence[int | None], width: int) -> int:
    """Different 4-byte words that the busiest of the 32 banks must give."""
    banks: list[set[int]] = [set() for _ in range(32)]
    for address in phase:
        if address is not None:
            for byte in range(address, address + width):
                banks[byte // 4 % 32].add(byte // 4)
    return max(map(len, banks))


def phases(request: Sequence[int | None], width: int) -> list[list[int | None]]:
    """Whole warp, half-warps or quarter-warps: written out, not computed."""
    lanes = {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[width]
    return [list(request[start : start + lanes]) for start in range(0, len(request), lanes)]


def all_ways(request: Sequence[int | None], width: int) -> list[int]:
    return [ways(phase, width) for phase in phases(request, width)]


def swizzled(B: int, M: int, S: int) -> Callable[[int], int]:
    """Bit by bit: target bit M + i (S > 0) is flipped where source bit M + S + i is set; S < 0 the other way."""

    def move(x: int) -> int:
        y = x
        for i in range(B):
            source, target = (M + S + i, M + i) if S > 0 else (M + i, M - S + i)
            if x >> source & 1:
                y ^= 1 << target
        return y

    return move


def forms(bits: int, total: int, vector: int) -> list[tuple[int, int, int]]:
    """Every (B, M, S) that permutes the tile's bytes and leaves aligned vectors whole. Its bits are address bits of the
    tile."""
    found = [(0, 4, 3)]
    for B in range(1, bits + 1):
        for shift in range(B, bits + 1):
            for M in range(bits - B - shift + 1):
                for S in (shift, -shift):
                    move = swizzled(B, M, S)
                    image = [move(x) for x in range(total)]
                    if sorted(image) != list(range(total)):
                        continue
                    starts = range(0, total - vector + 1, vector)
                    if all(image[x + i] == image[x] + i for x in starts for i in range(vector)):
                        found.append((B, M, S))
    return found
