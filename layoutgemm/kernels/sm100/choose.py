"""The configuration of the Blackwell kernel for a problem, by arithmetic. No GPU has run it here.

A tile's time is that of its products, or that of its loads. Products of 128 rows and K = 16 of bf16 take half a cycle a
column: 4096 multiply-adds an SM and cycle. For the same K an SM loads 32 bytes of each row of A and column of B, at 64
bytes a cycle; of a pair each SM loads half of B. Types of 8 and 4 bits have more of K in as many bytes, and the
same ratio. The tile with the fewest cycles in all rounds is taken; of equals the one that loads less.

Sources: NVIDIA, data sheet of the B200 (dense bf16 FLOP/s, SMs, clock); NVIDIA, A100 whitepaper (bytes an SM reads from
L2 in a cycle), whose number is assumed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...arch import Arch
from ...arch import arch as arch_named
from ...arguments import checked
from ...errors import PlanError
from ..derive import OperandSpec
from ..epilogue.chain import Epilogue
from ..grouped.rows import rows_of_group
from ..operand_orders import KernelChoice
from ..operands.combined import Combined
from ..operands.pair import SecondPair
from ..operands.promoted import Promoted, as_promoted
from ..plan import check_sizes, present
from ..ragged import Ragged, check_room
from .plan import BLOCK_ROWS, Sm100Config, Sm100Plan

_ALONE = (256, 224, 192, 160, 128, 96, 64, 32)  # columns of one block's tile
_PAIRS = (256, 192, 128, 64)  # and of a pair's
_PROMOTED, _EACH_COLUMN = 128, 32  # columns at most of totals in registers, and beside a number of each
_MMA_CYCLES = 0.5  # of a column of 128 rows and K = 16
_LOAD_CYCLES = 32 / 64  # of a row or column, for the same K


@dataclass(frozen=True)
class Sm100Choice(KernelChoice):
    """A configuration of the tcgen05 kernel, and its target. It stores C in either order: operands keep their places.

    >>> Sm100Choice(Sm100Config((128, 64)), "sm_103a").plan(16, 64, 64, b="bf16:col", c="f32:col").arch.name
    'sm_103a'
    """

    config: Sm100Config
    arch: str = "sm_100a"
    swapped: bool = field(default=False, init=False)

    def plan(
        self, m: int, n: int, k: int, *, batch: int = 1, a: OperandSpec = "bf16", b: OperandSpec | None = None,
        c: OperandSpec | None = None, epilogue: Epilogue | None = None, gated: Combined | str | None = None,
        pair: SecondPair | None = None,
    ) -> Sm100Plan:  # fmt: skip
        """The plan of C[m, n] = A[m, k] @ B[k, n]. Arguments are those of Sm100Plan.derive."""
        return Sm100Plan.derive(
            m, n, k, batch=batch, arch=self.arch, a=a, b=b, c=c, config=self.config, epilogue=epilogue, gated=gated,
            pair=pair,
        )  # fmt: skip


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
    m: int, n: int, *, batch: int = 1, arch: str | Arch = "sm_100a", unit: int = 1, scaled: bool = False,
    ragged: Ragged | None = None, mainloop: Promoted | None = None,
) -> tuple[Sm100Config, str]:  # fmt: skip
    """A configuration for C of m x n, and the reason in words.

    unit      columns that a tile has a multiple of
    scaled    block-scaled operands: 128 columns, whose factors fit beside two accumulators
    ragged    m rows in `batch` groups, or masked ones of m each; with scales by one CTA
    mainloop  that promotes: 128 columns at most, whose totals are registers of a thread; 32 with a number for each

    Raises PlanError for sizes that are no positive ints, and for other objects than those of groups or a main loop.

    >>> config, why = choose_sm100(16, 4096)
    >>> config.tile, why
    ((128, 32), '128x32: 128 tiles in 1 round(s) of 148 SMs, an estimate: not measured')
    >>> choose_sm100(8192, 8192)[0].tile, choose_sm100(256, 256, arch="thor")[0].tile
    ((256, 256), (256, 64))
    >>> choose_sm100(8192, 8192, batch=64, ragged=Ragged.of(64))[0].tile
    (128, 256)
    """
    check_sizes(m=m, n=n, batch=batch, unit=unit)
    target = arch_named(arch)
    if ragged is not None:
        check_room("ragged", ragged, Ragged, batch)
        m = rows_of_group(m, batch, ragged)
    joined = ragged is not None and not ragged.masked
    pairs: Sequence[int] = (128,) if scaled else _PAIRS
    alone: Sequence[int] = (128,) if scaled else _ALONE
    if mainloop is not None:
        most = _EACH_COLUMN if any(x.axis == "n" and x.group == 1 for x in as_promoted(mainloop).tables) else _PROMOTED
        pairs, alone = ([x for x in widths if x <= most] for widths in (pairs, alone))
    widths = {1: alone} if m <= BLOCK_ROWS or (scaled and joined) else {2: pairs, 1: alone}
    costs = (cost for blocks, of in widths.items() for cost in _costs((m, n, batch), target, unit, blocks, of))
    best = min(costs, key=lambda cost: (cost.cycles, cost.loaded))
    rows, columns = present(best.config.tile)
    tiles = -(-m // rows) * -(-n // columns) * batch
    said = f"{rows}x{columns}: {tiles} tiles in {best.rounds} round(s) of {target.gpu.multiprocessors} SMs"
    return best.config, f"{said}, an estimate: not measured"


def _costs(
    sizes: tuple[int, int, int], target: Arch, unit: int, blocks: int, widths: Sequence[int]
) -> Iterator[TileCost]:
    """The estimates for tiles by one CTA, or by a pair. `sizes`: m, n, batch."""
    m, n, batch = sizes
    for columns in widths:
        if columns % unit and columns != widths[0]:
            continue
        tiles = -(-m // (blocks * BLOCK_ROWS)) * -(-n // columns) * batch
        rounds = -(-tiles // max(1, target.gpu.multiprocessors // blocks))
        each = max(_MMA_CYCLES * columns, _LOAD_CYCLES * (BLOCK_ROWS + columns / blocks))
        loaded = (BLOCK_ROWS + columns / blocks) * _ALONE[0] / columns
        yield TileCost(rounds * each, loaded, rounds, Sm100Config((blocks * BLOCK_ROWS, columns)))
