"""layoutgemm's operators on torch.distributed's DTensor: sharding rules for parallelize_module and others.

>>> from layoutgemm.distributed import register_shardings
>>> register_shardings()  # once; then DTensor multiplies with layoutgemm.matmul and layoutgemm.nn
"""

from .shardings import register_shardings

__all__ = ["register_shardings"]
