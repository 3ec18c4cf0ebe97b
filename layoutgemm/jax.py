"""layoutgemm.jax: products of JAX arrays on the tensor cores.

>>> import layoutgemm.jax
>>> layoutgemm.jax.matmul.__module__
'layoutgemm.jax_op.matmul'
"""

from .jax_op.dot_general import dot_general
from .jax_op.matmul import matmul
from .jax_op.scaled_grouped.api import grouped_matmul, scaled_matmul
from .jax_op.scaled_grouped.training import fp8_grouped_matmul

__all__ = ["dot_general", "fp8_grouped_matmul", "grouped_matmul", "matmul", "scaled_matmul"]
