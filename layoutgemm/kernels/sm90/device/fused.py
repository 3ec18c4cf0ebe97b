"""A Hopper GEMM with an epilogue: the production kernel with sixteen more 64-bit words.

The epilogue says what the words are; `dsl.fused` applies it.
"""

from __future__ import annotations

from ...dsl.entry import FusedEntry
from .gemm import Sm90GemmKernel


class Sm90FusedKernel(FusedEntry, Sm90GemmKernel):
    """The production kernel with room for an epilogue's operands."""
