"""The mma.sync kernels with an epilogue: the same three, with room for its operands. `steps` applies it."""

from __future__ import annotations

from ...dsl.entry import FusedEntry
from .gemm import Sm80GemmKernel
from .gemm_tma import Sm120GemmKernel
from .persistent import Sm80PersistentKernel


class Sm80FusedKernel(FusedEntry, Sm80GemmKernel):
    """A block for each tile."""


class Sm80FusedPersistentKernel(FusedEntry, Sm80PersistentKernel):
    """Blocks that take tile after tile."""


class Sm120FusedKernel(FusedEntry, Sm120GemmKernel):
    """A block for each tile, fed by tensor copies."""
