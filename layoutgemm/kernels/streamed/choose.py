"""Which products of packed weights are streamed, and how.

Times are those of `benchmarks/NOTES.md`, "Streamed weights". On an H200 up to four rows with 16 warps and four slots
took at most 5% longer than the fastest of twenty configurations. A K whose units leave some of 16 warps without one, or
keep each for more than eight turns, takes other numbers of warps: the kernel unrolls eight turns.

Every block copies its part of x. So blocks of a cluster share K where x is large, or units are more than 16 warps have
in eight turns. Five to eight rows take bands of two strips, eight warps, and two blocks or more. With wgmma they are
not streamed: on an H100 a sliced kernel takes 0.86 to 0.99 of the time (`benchmarks/NOTES.md`, "Sliced K").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ...arch import Arch
from ...errors import PlanError
from ..plan import tile_count
from ..quantized.blocks import STRIP
from ..quantized.formats import FLOAT8, UNIT_K, QuantizedFormat
from .plan import StreamedConfig, StreamedPlan

MOST_ROWS = 8  # of x
_WGMMA_ROWS = 4  # beside kernels of wgmma, whose warpgroups take K tiles in turn: five rows and more are faster there
_FEW = 4  # rows that are one warp's: more take bands and clusters
_MOST_X = {True: 100_000, False: 120_000}  # bytes of x of a block, for a few rows and for more
_LEAST_UNITS = 16  # along K
_MOST_TURNS = 8
_WARPS = {True: 16, False: 8}  # for a few rows and for more; from three quarters to twice as many
_SLOTS, _AHEAD = (4, 3, 2), 2
_MEASURED = ("int4", 128)  # the code and the group of which fewer slots and one shift were timed
_SLOTS_MEASURED = (3, 4, 2)
_ONE_SHIFT_TURNS = 2  # at most: the conversion by one shift spills where more turns are unrolled
_LEAST_SHARE, _LEAST_K = 5, 64  # of x in a block's weights (one part of so many), and units: then wgmma is faster
_STRIPS = (16, 8, 4, 2)  # whose sums wait: powers of two, so that sizes share kernels


@dataclass(frozen=True)
class StreamedChoice:
    """The streamed kernel in a configuration, among those that were measured for a product."""

    config: StreamedConfig


@cache
def streamed_config(
    fmt: QuantizedFormat, n: int, rows: int, k: int, sms: int, arch: Arch, become: str = "bf16", shared: int = 0
) -> StreamedConfig | None:
    """The configuration for `rows` activations and weights (n, k), which become that type. None for another kernel.

    shared  bytes of shared memory that a block may have, where they are fewer than the architecture's

    >>> from layoutgemm.arch import arch
    >>> int4 = QuantizedFormat("int4", 128)
    >>> streamed_config(int4, 8192, 1, 8192, 132, arch("sm_90a")) == StreamedConfig(slots=3, overlap=True, prefetch=2)
    True
    >>> streamed_config(int4, 8192, 16, 8192, 132, arch("sm_90a")) is None
    True
    """
    units, most = tile_count(k, UNIT_K), _WGMMA_ROWS if "wgmma" in arch.features else MOST_ROWS
    split = _split(rows, k, arch) if rows <= most else None
    if split is None or units < _LEAST_UNITS or become in FLOAT8:
        return None
    if "wgmma" in arch.features and rows > 2 and _by_wgmma(fmt, (n, rows, k), split, sms):
        return None
    epilogue = fmt.epilogue() or None
    for config in _candidates(fmt, tile_count(units, split), rows, split, tile_count(n, STRIP), sms, arch):
        try:
            plan = StreamedPlan.derive(
                n, rows, k, weights=fmt, arch=arch, a=become, config=config, epilogue=epilogue
            )  # fmt: skip
        except PlanError:  # slots, x and sums are too many bytes
            continue
        if plan.smem.total <= (shared or arch.smem_per_block):
            return config
    return None


def _split(rows: int, k: int, arch: Arch) -> int | None:
    """Blocks that share K; None if x is too large for as many as a cluster has."""
    few, units, room = rows <= _FEW, tile_count(k, UNIT_K), room_of(rows)
    most = arch.cluster_portable if "cluster" in arch.features else 1
    for split in (1, 2, 4, 8):
        if split > most:
            return None
        enough = few or split > 1 or most == 1
        if enough and room * k * 2 <= split * _MOST_X[few] and units <= split * _WARPS[True] * _MOST_TURNS:
            return split
    return None


def _by_wgmma(fmt: QuantizedFormat, sizes: tuple[int, int, int], split: int, sms: int) -> bool:
    """True where x is so large beside a block's weights that wgmma takes less time."""
    n, rows, k = sizes
    x, weights = room_of(rows) * k * 2 // split, n * k * fmt.bits // 8 // sms
    return (fmt.code, fmt.group) == _MEASURED and k >= _LEAST_K * UNIT_K and x * _LEAST_SHARE > weights


def room_of(rows: int) -> int:
    """Rows of x that a kernel has room for.

    >>> [room_of(rows) for rows in (1, 2, 3, 5)]
    [1, 2, 4, 8]
    """
    return 1 << (rows - 1).bit_length()


def _candidates(
    fmt: QuantizedFormat, units: int, rows: int, split: int, strips_of_c: int, sms: int, arch: Arch
) -> Iterator[StreamedConfig]:  # fmt: skip
    """Configurations, best first.

    units        of a block
    strips_of_c  of all clusters
    """
    few, early = rows <= _FEW, "griddepcontrol" in arch.features
    share = tile_count(strips_of_c, sms // split)
    largest = max(next((each for each in reversed(_STRIPS) if each >= share), _STRIPS[0]), 4)
    measured, warps = (fmt.code, fmt.group) == _MEASURED and few and early, warps_for(units, _WARPS[few])
    one_shift = measured and tile_count(units, warps) <= _ONE_SHIFT_TURNS
    for band in (1,) if few else (2, 1):
        for slots in _SLOTS_MEASURED if measured else _SLOTS:
            for strips in _STRIPS:
                if strips <= largest and strips % split == 0:
                    yield StreamedConfig(
                        warps, slots, strips, overlap=early, prefetch=_AHEAD if early else 0, band=band, split=split,
                        one_shift=one_shift,
                    )  # fmt: skip


def streamed_candidates(rows: int) -> Iterator[StreamedConfig]:
    """Configurations that could be the fastest for a few rows of x, from sm_90 on.

    >>> len({*streamed_candidates(1)}), [*streamed_candidates(9)]
    (24, [])
    """
    for split in (1, 2) if rows <= MOST_ROWS else ():
        for warps in (16, 8, 32):
            for slots in (*_SLOTS, 6):
                band = 1 if rows <= _FEW else 2
                yield StreamedConfig(warps, slots, 4, overlap=True, prefetch=_AHEAD, band=band, split=split)


def warps_for(units: int, about: int) -> int:
    """The number of warps that leaves the fewest idle turns for `units`. Of equals, the nearest to `about`.

    >>> [warps_for(units, 16) for units in (16, 56, 64, 86, 112)], warps_for(43, 8)
    ([16, 14, 16, 22, 16], 8)
    """
    numbers = range(3 * about // 4, 2 * about + 1, 2)
    able = [warps for warps in numbers if tile_count(units, warps) <= _MOST_TURNS] or [numbers[-1]]
    return min(able, key=lambda warps: (tile_count(units, warps) * warps, abs(warps - about), warps))
