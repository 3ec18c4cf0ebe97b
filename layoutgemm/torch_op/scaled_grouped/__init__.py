"""scaled_matmul and grouped_matmul: products of torch tensors with more to them than A and B.

A call passes through these files, in this order:

    api          a kept launch, or checks and then the product, computed or by torch's dispatcher
    operators    torch.ops.layoutgemm.scaled_matmul and grouped_matmul, with derivatives
    grouped      forms, checks and products of groups
    scaled       checks and products with scales
    block_factors  the tensor cores' own block scales: formats, orders, values
    block_scaled  operator, checks and products with the tensor cores' own block scales
    kept         launches, kept for the next call
    by_mma       the plan on GPUs without wgmma
    recipes      which part of an operand shares a scale: without torch, for JAX too
    gated        gates of grouped products
    epilogue, own_epilogue, grouped_epilogue   an epilogue with scales, with groups
    epilogue_gradients, kept_gradients         gradients behind an epilogue; of groups, by kept launches
    explain      its part of explain_matmul
    training     fp8_matmul, which quantises its operands and those of its gradients, and calls `api`
    grouped_training  fp8_grouped_matmul, likewise of groups

Imported when first named.
"""

from typing import TYPE_CHECKING

from ...lazy_names import named_later

if TYPE_CHECKING:
    from ...kernels.operands.promoted import DEPTH as DEPTH
    from ...kernels.operands.promoted import mainloop_of as mainloop_of
    from .api import grouped_matmul as grouped_matmul
    from .api import scaled_matmul as scaled_matmul
    from .grouped_training import fp8_grouped_matmul as fp8_grouped_matmul
    from .scaled import check_config as check_config
    from .training import fp8_matmul as fp8_matmul

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = named_later(__name__)
