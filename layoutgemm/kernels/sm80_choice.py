"""Which configuration of the mma.sync kernel for a problem: what was fastest on an H200, and what is a guess."""

from __future__ import annotations

from ..arch import Arch
from ..arch import arch as arch_named
from .sm80_plan import Sm80Config

SECTOR = 32  # bytes that L2 serves at a time: checks.coalescing
_LARGE = (128, 256)


def choose_sm80(
    m: int, n: int, k: int, arch: str | Arch = "sm_80", processors: int = 132, line_bytes: int = 0
) -> tuple[Sm80Config, str]:
    """A configuration for 16-bit operands, and the reason in words.

    processors   multiprocessors of the GPU
    line_bytes   bytes from one line of A or B to the next, whichever is less aligned; 0: 2 * k

    Measured on an H200 (benchmarks/results/ampere_h200.json) for large squares and one ragged product; for few tiles
    the choice goes by their number and was not measured.

    >>> config, why = choose_sm80(8192, 8192, 8192, "sm_90a")
    >>> config.tile, config.persistent, why
    ((128, 256), True, '128x256x64: 2048 tiles, persistent')
    >>> choose_sm80(4000, 4040, 4072, "sm_90a")[1]
    '128x256x64 by tensor copies: lines of 8144 bytes are no whole sectors, and longer rows straddle fewer'
    """
    target = arch_named(arch)
    stmatrix = "stmatrix" in target.features
    tiles = -(-m // _LARGE[0]) * -(-n // _LARGE[1])
    if tiles < processors:
        small = -(-m // 64) * -(-n // 64)
        if small <= 4 * processors:
            return Sm80Config((64, 64), 64, 3, (2, 2), 8), f"64x64x64: {small} tiles, {tiles} of 128x256 (not measured)"
        return Sm80Config((128, 128), 32, 4, (2, 2), 8), f"128x128x32: {tiles} tiles of 128x256 (not measured)"
    if (line_bytes or 2 * k) % SECTOR:
        why = f"lines of {line_bytes or 2 * k} bytes are no whole sectors, and longer rows straddle fewer"
        # three stages of 48 KiB: what sm_90 and sm_100 hold
        if "cp.async.bulk.tensor" in target.features and target.smem_per_block >= 3 * 49152 + 64:
            return Sm80Config(_LARGE, 64, 3, loads="tma", stmatrix=stmatrix), f"128x256x64 by tensor copies: {why}"
        if target.smem_per_block >= 3 * 49152:
            return Sm80Config(_LARGE, 64, 3), f"128x256x64: {why}"
    if target.smem_per_block < 4 * 24576 + 32768:  # four stages, and C's buffers beside them
        return Sm80Config(_LARGE, 32, 4, stmatrix=stmatrix), f"128x256x32: {tiles} tiles"
    if stmatrix and target.smem_per_block >= 3 * 49152 + 65536:
        return Sm80Config(_LARGE, 64, 3, persistent=True, stmatrix=True), f"128x256x64: {tiles} tiles, persistent"
    return Sm80Config(_LARGE, 32, 4, persistent=True), f"128x256x32: {tiles} tiles, persistent"
