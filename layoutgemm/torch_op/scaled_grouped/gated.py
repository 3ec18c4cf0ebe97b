"""Gates of grouped products, as of experts with SwiGLU: act(A[g] @ W_gate[e]) * (A[g] @ W_up[e]), in the kernel.

b                                          by
-----------------------------------------  ------------------------------------------------------------------
(E, 2H, K) transposed: columns contiguous  the grouped kernel, of [gate | up] of each expert; of 8 bits always
(E, K, 2H): rows contiguous                the grouped kernel in float32, then torch
recorded by autograd                       the grouped product in the result's type, then torch, as of `matmul`
"""

from __future__ import annotations

import torch

from ...errors import OperandError
from ..bias_activation import GATES
from ..problem import half
from .scaled import FP8, ScaledFinish


def gate_of(finish: ScaledFinish) -> str | None:
    """The function of a gate, or None.

    >>> gate_of(ScaledFinish(None, "swiglu")), gate_of(ScaledFinish(None, "silu"))
    ('silu', None)
    """
    return GATES.get(finish.activation) if finish.activation is not None else None


def columns_of(b: torch.Tensor, finish: ScaledFinish, scaled: bool) -> int:
    """Columns of the result: b's, or half of [gate | up].

    Raises OperandError for a gate with a bias or scales, and TensorError for columns of an odd number.
    """
    if gate_of(finish) is None:
        return b.shape[-1]
    name = f"activation {finish.activation!r}"
    if finish.bias is not None:
        raise OperandError(f"bias: {name} of a grouped product takes none")
    if scaled:
        raise OperandError(
            f"{name} with scales: gate and up have scales of their own, and the kernel applies scales to one sum; "
            "multiply without it, and gate by torch"
        )
    return half(b.ndim, b.shape[-1])


def why_by_torch(b: torch.Tensor) -> str:
    """Why no kernel gates the product, or ""."""
    if b.dtype in FP8 or (b.stride(-2) == 1 and b.stride(-1) != 1):
        return ""
    return f"b: rows of {b.shape[-1]} contiguous elements; a gated product's kernel reads a K-major b"
