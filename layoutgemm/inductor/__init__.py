"""layoutgemm inside torch.compile's Inductor. Its autotuning may choose our product, and a pass rewrites others.

    hook                                 products                                        how
    -----------------------------------  ----------------------------------------------  --------------------------
    config.external_matmul               mm, where Inductor autotunes                    the faster one is taken
    config.post_grad_custom_post_pass    addmm, bmm, _scaled_mm, _grouped_mm, and mm     rewritten, with the bias
                                         before an activation                            and activation fused

>>> import torch, layoutgemm.inductor
>>> with layoutgemm.inductor.register() as registered:  # and torch.compile(model) inside
...     print(registered)
0 graphs seen
"""

from .registration import Registration, register, unregister
from .rewrite import GraphReport, Rewrite

__all__ = ["GraphReport", "Registration", "Rewrite", "register", "unregister"]
