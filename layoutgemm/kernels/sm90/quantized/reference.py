"""The NumPy executor's packed weights. Bulk copies into a stage, and a stage's blocks as a warpgroup's registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ....atoms.copy.base import VECTOR_BYTES
from ....dtypes import u8
from ...quantized.formats import UNIT_ROWS
from ...quantized.fragments import block_scales, block_values
from ...quantized.packing import units_of
from ...run.hardware_model import SharedBytes
from .experts import weight_block

if TYPE_CHECKING:
    from ..plan import Sm90Plan


def load_blocks(
    plan: Sm90Plan, units: npt.NDArray[np.uint8], origin: Mapping[str, int], smem: SharedBytes, address: int
) -> None:
    """Copy a K tile's row blocks into a stage, as the kernel's bulk copies do."""
    (rows, along_k), k_tile = units_of(plan.m, plan.k), origin["k"] // plan.tile[2]
    if plan.a.strips is not None:
        vector = np.arange(VECTOR_BYTES)
        copied = np.array(plan.a.strips.copied(origin["m"], plan.m, along_k, k_tile))
        smem.write(address + copied[:, 1:] + vector, units[copied[:, :1] + vector], u8)
        return
    for number in range(plan.a.row_blocks):
        block = weight_block(plan.m, origin["l"], min(origin["m"] // UNIT_ROWS + number, rows - 1))
        for copy in plan.a.block_copies(block, k_tile, along_k):
            target = address + number * plan.a.block_bytes + copy.target
            smem.write(target + np.arange(copy.bytes), units[copy.source : copy.source + copy.bytes], u8)


def block_in_stage(plan: Sm90Plan, smem: SharedBytes, address: int, number: int) -> npt.NDArray[np.float32]:
    """(64, depth) weights of a stage's row block, as the instruction takes them from registers."""
    size = plan.a.block_bytes
    block = smem.read(address + number * size + np.arange(size), u8)
    return block_values(plan.a.packing, block, plan.tile[2], scaled=not plan.sums_apart, one_shift=plan.a.one_shift)


def scales_in_stage(plan: Sm90Plan, smem: SharedBytes, address: int, number: int) -> npt.NDArray[np.float32]:
    """(64, sums of a K tile) factors of the sums of a stage's row block."""
    size = plan.a.block_bytes
    block = smem.read(address + number * size + np.arange(size), u8)
    return block_scales(plan.a.packing, block, plan.tile[2])
