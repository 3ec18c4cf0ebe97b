"""A Blackwell GEMM with an epilogue: the production kernel with room for the operands. `loaded` applies the steps."""

from __future__ import annotations

from ...dsl.entry import FusedEntry
from .gemm import Sm100GemmKernel


class Sm100FusedKernel(FusedEntry, Sm100GemmKernel):
    """The Blackwell kernel with room for an epilogue's operands. The parameters are those of the Hopper kernel."""
