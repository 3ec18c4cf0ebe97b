"""Which products of packed weights are streamed, and how."""

from __future__ import annotations

from functools import cache

from ...arch import Arch
from ...errors import PlanError
from ..plan import tile_count
from ..quantized.formats import FLOAT8, UNIT_K, QuantizedFormat
from .operands import STRIP
from .plan import StreamedConfig, StreamedPlan

MOST_ROWS = 2  # of x; more multiply faster in a kernel that shares x among features
_LEAST_UNITS = 16  # along K: one for each warp
_SLOTS, _AHEAD = 3, 2
_LEAST_STRIPS, _MOST_STRIPS = 4, 16  # whose sums wait


@cache
def streamed_config(
    fmt: QuantizedFormat, n: int, rows: int, k: int, sms: int, arch: Arch, become: str = "bf16",
    shared: int = 0,
) -> StreamedConfig | None:
    """The configuration for `rows` activations and weights (n, k), which become that type; None for another kernel.

    shared  bytes of shared memory that a block may have, where they are fewer than the architecture's: of 8.6 and 8.9

    >>> from layoutgemm.arch import arch
    >>> int4 = QuantizedFormat("int4", 128)
    >>> streamed_config(int4, 8192, 1, 8192, 132, arch("sm_90a"))
    StreamedConfig(warps=16, slots=3, strips=4, blocks_per_sm=2, overlap=True, prefetch=2)
    >>> streamed_config(int4, 8192, 16, 8192, 132, arch("sm_90a")) is None
    True
    """
    units = tile_count(k, UNIT_K)
    if rows > MOST_ROWS or units < _LEAST_UNITS or become in FLOAT8:
        return None
    early = "griddepcontrol" in arch.features
    strips = _LEAST_STRIPS  # powers of two, so that sizes share kernels
    while strips < min(_MOST_STRIPS, tile_count(tile_count(n, STRIP), sms)):
        strips *= 2
    for blocks in (2, 1):
        config = StreamedConfig(
            slots=_SLOTS, strips=strips, blocks_per_sm=blocks, overlap=early, prefetch=_AHEAD if early else 0
        )  # fmt: skip
        try:
            plan = StreamedPlan.derive(
                n, rows, k, weights=fmt, arch=arch, a=become, config=config, epilogue=fmt.epilogue() or None
            )  # fmt: skip
        except PlanError:  # x or slots are too many bytes
            continue
        if blocks * plan.smem.total <= (shared or arch.smem_per_block):
            return config
    return None
