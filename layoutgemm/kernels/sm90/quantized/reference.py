"""The NumPy executor's packed weights: bulk copies into a stage, and a stage's units as a warpgroup's registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ....dtypes import u8
from ...run.hardware_model import SharedBytes
from .formats import UNIT_K, UNIT_ROWS
from .fragments import unit_values
from .packing import units_of

if TYPE_CHECKING:
    from ..plan import Sm90Plan


def load_units(
    plan: Sm90Plan, units: npt.NDArray[np.uint8], origin: Mapping[str, int], smem: SharedBytes, address: int
) -> None:
    """Copy the units of a K tile from global memory into a stage, as the kernel's bulk copies do."""
    size, (rows, along_k) = plan.a.packing.unit_bytes, units_of(plan.m, plan.k)
    for unit in range(plan.a.units):
        block = min(origin["m"] // UNIT_ROWS + unit, rows - 1)
        first = plan.a.unit_byte(block, origin["k"] // UNIT_K, along_k)
        smem.write(address + unit * size + np.arange(size), units[first : first + size], u8)


def unit_in_stage(plan: Sm90Plan, smem: SharedBytes, address: int, number: int) -> npt.NDArray[np.float32]:
    """(64, 128) weights of a stage's unit, as the instruction takes them from registers."""
    size = plan.a.packing.unit_bytes
    return unit_values(plan.a.packing, smem.read(address + number * size + np.arange(size), u8))
