"""scaled_matmul and grouped_matmul: products of torch tensors with more to them than A and B.

A call passes through these files, in this order:

    api          a kept launch, or checks and then the product, computed or by torch's dispatcher
    operators    torch.ops.layoutgemm.scaled_matmul and grouped_matmul, with derivatives
    grouped      forms, checks and products of groups
    scaled       checks and products with scales
    kept         launches, kept for the next call
    recipes      which part of an operand shares a scale
    training     fp8_matmul, which quantises its operands and those of its gradients, and calls `api`

Imported when first named.
"""

from ...kernels.sm90.mainloop import DEPTH
from .api import grouped_matmul, scaled_matmul
from .recipes import mainloop_of
from .scaled import check_config
from .training import fp8_matmul

__all__ = ["DEPTH", "check_config", "fp8_matmul", "grouped_matmul", "mainloop_of", "scaled_matmul"]
