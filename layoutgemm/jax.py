"""layoutgemm.jax: products of JAX arrays on the tensor cores.

>>> import layoutgemm.jax
>>> layoutgemm.jax.matmul.__module__
'layoutgemm.jax_op.matmul'
"""

from .jax_op.matmul import matmul

__all__ = ["matmul"]
