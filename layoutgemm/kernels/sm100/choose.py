"""The configuration of the Blackwell kernel for a problem, by arithmetic. No GPU has run it here.

A tile's time is that of its products, or that of its loads. Products of 128 rows and K = 16 of bf16 take half a cycle a
column: 4096 multiply-adds an SM and cycle. For the same K an SM loads 32 bytes of each row of A and column of B, at 64
bytes a cycle; of a pair each SM loads half of B. Types of 8 and 4 bits have more of K in as many bytes, and the
same ratio. The tile with the fewest cycles in all rounds is taken; of equals the one that loads less.

Sources: NVIDIA, data sheet of the B200 (dense bf16 FLOP/s, SMs, clock); NVIDIA, A100 whitepaper (bytes an SM reads from
L2 in a cycle), whose number is assumed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...arch import Arch
from ...arch import arch as arch_named
from ...arguments import checked
from ...errors import PlanError
from ..plan import check_sizes
from .plan import BLOCK_ROWS, Sm100Config

_ALONE = (256, 224, 192, 160, 128, 96, 64, 32)  # columns of one block's tile
_PAIRS = (256, 192, 128, 64)  # and of a pair's
_MMA_CYCLES = 0.5  # of a column of 128 rows and K = 16
_LOAD_CYCLES = 32 / 64  # of a row or column, for the same K


@dataclass(frozen=True, slots=True)
class TileCost:
    """The estimate for a tile.

    cycles  of all rounds, for K = 16
    loaded  rows of A and columns of B that an SM loads for 128 rows and 256 columns of C
    rounds  of tiles that an SM computes
    """

    cycles: float
    loaded: float
    rounds: int
    config: Sm100Config


@checked(PlanError)
def choose_sm100(
    m: int, n: int, *, batch: int = 1, arch: str | Arch = "sm_100a", unit: int = 1, scaled: bool = False
) -> tuple[Sm100Config, str]:
    """A configuration for C of m x n, and the reason in words.

    unit    columns that a tile has a multiple of
    scaled  block-scaled operands: 128 columns, whose factors fit beside two accumulators

    Raises PlanError for sizes that are no positive ints.

    >>> config, why = choose_sm100(16, 4096)
    >>> config.tile, why
    ((128, 32), '128x32: 128 tiles in 1 round(s) of 148 SMs, an estimate: not measured')
    >>> choose_sm100(8192, 8192)[0].tile, choose_sm100(256, 256, arch="thor")[0].tile
    ((256, 256), (256, 64))
    """
    check_sizes(m=m, n=n, batch=batch, unit=unit)
    target = arch_named(arch)
    best = min(_costs(m, n, batch, target, unit, scaled), key=lambda cost: (cost.cycles, cost.loaded))
    rows, columns = best.config.tile
    tiles = -(-m // rows) * -(-n // columns) * batch
    said = f"{rows}x{columns}: {tiles} tiles in {best.rounds} round(s) of {target.gpu.multiprocessors} SMs"
    return best.config, f"{said}, an estimate: not measured"


def _costs(m: int, n: int, batch: int, target: Arch, unit: int, scaled: bool) -> Iterator[TileCost]:
    """The estimates for all tiles whose columns are a multiple of the unit."""
    for blocks, widths in ((2, _PAIRS), (1, _ALONE)):
        if m <= BLOCK_ROWS and blocks > 1:
            continue
        for columns in (128,) if scaled else widths:
            if columns % unit and columns != widths[0]:
                continue
            tiles = -(-m // (blocks * BLOCK_ROWS)) * -(-n // columns) * batch
            rounds = -(-tiles // max(1, target.gpu.multiprocessors // blocks))
            each = max(_MMA_CYCLES * columns, _LOAD_CYCLES * (BLOCK_ROWS + columns / blocks))
            loaded = (BLOCK_ROWS + columns / blocks) * _ALONE[0] / columns
            yield TileCost(rounds * each, loaded, rounds, Sm100Config((blocks * BLOCK_ROWS, columns)))
