"""layoutgemm on several GPUs: sharding rules for DTensor, and products that overlap with communication.

>>> from layoutgemm.distributed import register_shardings
>>> register_shardings()  # once; then DTensor multiplies with layoutgemm.matmul and layoutgemm.nn

`all_gather_matmul` and `matmul_reduce_scatter` are for tensor and sequence parallel layers on the GPUs of one host.
"""

from .overlap import all_gather_matmul, matmul_reduce_scatter
from .shard_plans import Transfer
from .shardings import register_shardings
from .workspaces import check_ranks

__all__ = [
    "Transfer",
    "all_gather_matmul",
    "check_ranks",
    "matmul_reduce_scatter",
    "register_shardings",
]
