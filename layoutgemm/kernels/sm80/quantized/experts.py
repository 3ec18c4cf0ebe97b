"""Packed weights of several experts. Each group of x's rows times its own, in one launch.

Group e is rows offsets[e] to offsets[e + 1] of x and of C, and its weights lie behind those of the expert before. Or
groups are masked: each has as many rows, of which the first counts[e] count. Their tiles: see `sm80.groups`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....arguments import shown
from ....errors import PlanError
from ...numbers import W
from ...plan import check_settings, tile_count
from ...quantized.formats import UNIT_K, UNIT_ROWS
from ...ragged import Ragged, check_masked, check_room, check_writes_of_groups

if TYPE_CHECKING:
    from ...epilogue.chain import Epilogue
    from ..plan import Sm80Config, Sm80Plan


def check_experts(
    experts: Ragged, rows: int, groups: int, weights: object, config: Sm80Config, epilogue: Epilogue | None
) -> None:
    """Raise PlanError, naming the obstacle, for a problem without a kernel of several experts."""
    check_room("experts", experts, Ragged, groups)
    check_masked(experts, rows, groups, "m")
    if experts.ends:
        raise PlanError(f"experts = {shown(experts)}: groups of packed weights have offsets or counts, not ends")
    if weights is None:
        raise PlanError("experts without weights: they are groups of rows of a product with packed weights")
    check_settings(config, "a product of several experts takes", split=1)
    check_writes_of_groups(epilogue)


def expert_bytes(plan: Sm80Plan, n: W, k: W) -> W:
    """Bytes of an expert's packed weights; ints or traced integers."""
    return tile_count(n, UNIT_ROWS) * tile_count(k, UNIT_K) * plan.b.packing.unit_bytes
