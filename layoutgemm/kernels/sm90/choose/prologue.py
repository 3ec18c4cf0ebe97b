"""The configuration of a product with a prologue. It was not measured: large tiles, by the rounds that they take."""

from __future__ import annotations

from functools import lru_cache

from ....errors import LayoutError
from ...epilogue.chain import Epilogue
from ...plan import present
from ..config import Sm90Config
from ..operands.prologue import Prologue
from ..plan import Sm90Plan
from .rounds import tile_of_rounds

# Tiles of C, and the warpgroups that multiply them. A's function is computed once a tile: tiles are wide.
_TILES = {(128, 256): 2, (128, 128): 2, (64, 256): 1, (64, 128): 1, (64, 64): 1}
_OVERHEAD = 128  # columns of a tile that its start, its store and A's function cost


@lru_cache(1024)
def prologue_config(m: int, n: int, batch: int = 1, multiprocessors: int | None = None) -> Sm90Config:
    """The configuration for M, N and the batch.

    >>> prologue_config(8192, 8192).tile, prologue_config(16, 4096).tile, prologue_config(512, 512).tile
    ((128, 256), (64, 64), (64, 64))
    """
    tile = tile_of_rounds(_TILES, m, n, _OVERHEAD, batch, multiprocessors)
    pairs = m > 2 * tile[0] and tile[0] == 128
    return Sm90Config(
        tile, consumers=_TILES[tile], loader="warpgroup", cluster=(2, 1) if pairs else (1, 1), chunks=1, buffers=2,
        l2_promotion="256B",
    )  # fmt: skip


@lru_cache(maxsize=1024)
def plan_with_prologue(
    sizes: tuple[int, int, int, int], names: tuple[str, str, str], prologue: Prologue, epilogue: Epilogue | None,
    config: Sm90Config | None, multiprocessors: int,
) -> Sm90Plan:  # fmt: skip
    """The plan of M, N, K and a batch. Raises the first refusal if no configuration has one.

    names   types and orders of A, B and C
    config  a caller's own; None for that of `prologue_config`, or a small tile of every order and result

    >>> relu = Prologue.of(lambda x, i, k, ops: ops.maximum(x, 0.0))
    >>> plan_with_prologue((512, 512, 512, 1), ("bf16", "bf16:col", "bf16"), relu, None, None, 132).tile
    (64, 64, 64)
    """
    (m, n, k, batch), (a, b, c) = sizes, names
    first = prologue_config(m, n, batch, multiprocessors) if config is None else config
    spare = Sm90Config((64, 64), consumers=1, loader="warp")
    refused: LayoutError | None = None
    for each in (first,) if config is not None else (first, spare):
        try:
            return Sm90Plan.derive(
                m, n, k, batch=batch, a=a, b=b, c=c, config=each, epilogue=epilogue, prologue=prologue
            )  # fmt: skip
        except LayoutError as error:
            refused = refused or error
    raise present(refused)
