"""Gates of grouped products, as of experts with SwiGLU, in the kernel.

They compute act(A[g] @ W_gate[e]) * (A[g] @ W_up[e]).

b                                          by
-----------------------------------------  ------------------------------------------------------------------
(E, 2H, K) transposed: columns contiguous  the grouped kernel, of [gate | up] of each expert; of 8 bits always
(E, K, 2H): rows contiguous                the grouped kernel in float32, then torch
block scales, H no multiple of 128         likewise
recorded by autograd                       the grouped product in the result's type, then torch, as of `matmul`

Scales are of 8 bits, and so of the first line.
"""

from __future__ import annotations

import torch

from ...kernels.operands.block_scales import CHUNK_ROWS
from ...kernels.operands.gated import HALVES


def why_by_torch(b: torch.Tensor, factors: bool = False) -> str:
    """Why no kernel gates the product, or "". `factors`: it has the tensor cores' own block scales."""
    columns = b.shape[-1] // HALVES
    if factors and columns % CHUNK_ROWS:
        return f"b: {columns} columns of a half; the other half's factors begin with a chunk of {CHUNK_ROWS} columns"
    if b.itemsize == 1 or (b.stride(-2) == 1 and b.stride(-1) != 1):
        return ""
    return f"b: rows of {b.shape[-1]} contiguous elements; a gated product's kernel reads a K-major b"
