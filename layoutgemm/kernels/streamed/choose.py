"""Which products of packed weights are streamed, and how.

Times are those of `benchmarks/NOTES.md`, "Streamed weights". On an H200 one or two rows with 16 warps and four slots
took at most 5% longer than the fastest of ten configurations. A K whose units leave some of 16 warps without one, or
keep each for more than eight turns, takes other numbers of warps: the kernel unrolls eight turns. Five to eight rows
take three slots. Every block copies x: 8 rows of K = 8192 took 1.15 times as long as the wgmma kernel on an H100.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from ...arch import Arch
from ...errors import PlanError
from ..plan import tile_count
from ..quantized.blocks import STRIP
from ..quantized.formats import FLOAT8, UNIT_K, QuantizedFormat
from .plan import StreamedConfig, StreamedPlan

MOST_ROWS = 8  # of x
_MOST_X = 120_000  # bytes of x, which every block copies
_LEAST_UNITS = 16  # along K: one for each warp
_MOST_TURNS = 8
_WARPS = range(16, 33, 2)
_SLOTS, _FEWER_SLOTS, _AHEAD = (4, 3), (3, 2), 2  # fewer for more rows than
_FEW = 4
_STRIPS = (16, 8, 4, 2)  # whose sums wait: powers of two, so that sizes share kernels


@cache
def streamed_config(
    fmt: QuantizedFormat, n: int, rows: int, k: int, sms: int, arch: Arch, become: str = "bf16", shared: int = 0
) -> StreamedConfig | None:
    """The configuration for `rows` activations and weights (n, k), which become that type; None for another kernel.

    shared  bytes of shared memory that a block may have, where they are fewer than the architecture's: of 8.6 and 8.9

    >>> from layoutgemm.arch import arch
    >>> int4 = QuantizedFormat("int4", 128)
    >>> streamed_config(int4, 8192, 1, 8192, 132, arch("sm_90a"))
    StreamedConfig(warps=16, slots=4, strips=4, blocks_per_sm=1, overlap=True, prefetch=2)
    >>> streamed_config(int4, 8192, 16, 8192, 132, arch("sm_90a")) is None
    True
    """
    units = tile_count(k, UNIT_K)
    if rows > MOST_ROWS or rows * k * 2 > _MOST_X or units < _LEAST_UNITS or become in FLOAT8:
        return None
    epilogue = fmt.epilogue() or None
    for config in _candidates(units, rows, tile_count(tile_count(n, STRIP), sms), "griddepcontrol" in arch.features):
        try:
            plan = StreamedPlan.derive(
                n, rows, k, weights=fmt, arch=arch, a=become, config=config, epilogue=epilogue
            )  # fmt: skip
        except PlanError:  # slots, x and sums are too many bytes
            continue
        if plan.smem.total <= (shared or arch.smem_per_block):
            return config
    return None


def _candidates(units: int, rows: int, share: int, early: bool) -> Iterator[StreamedConfig]:
    """Configurations, best first.

    share  strips of a block
    """
    warps = warps_for(units)
    largest = next((each for each in reversed(_STRIPS) if each >= share), _STRIPS[0])
    for slots in _SLOTS if rows <= _FEW else _FEWER_SLOTS:
        for strips in _STRIPS:
            if strips <= max(largest, 4):
                yield StreamedConfig(warps, slots, strips, overlap=early, prefetch=_AHEAD if early else 0)


def warps_for(units: int) -> int:
    """Warps that share so many units with the fewest idle turns; the fewest of equal ones.

    >>> [warps_for(units) for units in (16, 64, 86, 112, 160)]
    [16, 16, 22, 16, 20]
    """
    able = [warps for warps in _WARPS if tile_count(units, warps) <= _MOST_TURNS] or [_WARPS[-1]]
    return min(able, key=lambda warps: (tile_count(units, warps) * warps, warps))
