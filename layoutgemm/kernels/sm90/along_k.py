"""Which groups along K Hopper's kernel takes. Their K tiles and loads are those of `kernels.grouped.along_k`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import PlanError
from ..grouped.along_k import check_along_k as check_groups
from ..plan import check_settings
from ..ragged import AlongK as AlongK
from .mainloop import DEPTH, Promoted

if TYPE_CHECKING:
    from ..derive import Operand
    from .config import Sm90Config


def check_along_k(
    along_k: AlongK, sizes: tuple[int, int, int, int], config: Sm90Config, operands: tuple[Operand, Operand],
    mainloop: Promoted | None,
) -> None:  # fmt: skip
    """Raise PlanError, naming the obstacle, for a problem without a kernel of groups along K."""
    check_groups(along_k, sizes, operands, ("wgmma", (16,)), config.tile_k)
    if along_k.in_blocks:
        _check_loop(config, mainloop)
    elif mainloop is not None:
        raise PlanError(
            "mainloop: K blocks begin at multiples of their depth, and groups along K at any line; those of floats of "
            f"8 bits begin at multiples of {DEPTH}: AlongK.of(groups, multiple={DEPTH})"
        )
    check_settings(
        config, "a product with groups along K takes", loaded_a_rows=None, one_tile_per_cluster=False, split=1,
        launch="workers", schedule="cooperative", overlap=False, reverse_odd_tiles=False,
    )  # fmt: skip


def _check_loop(config: Sm90Config, mainloop: Promoted | None) -> None:
    """Raise PlanError for self-loading promotion, and for numbers of several K blocks at once."""
    if mainloop is not None and config.loader == "self":
        raise PlanError(
            "loader = 'self': a main loop that promotes groups along K has its numbers copied by a warp of the "
            "loader's: 'warp' or 'warpgroup'"
        )
    if mainloop is not None and mainloop.span > 1:
        raise PlanError(
            f"span = {mainloop.span}: groups begin at any K block, and numbers of {mainloop.span} come together from "
            f"every {mainloop.span} on"
        )
