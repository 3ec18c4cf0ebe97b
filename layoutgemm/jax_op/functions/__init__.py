"""matmul with functions of one's own: epilogue=, prologue=, given=.

product    the product as a value, and its checks, without jax
reference  the functions by jax.numpy: the CPU's product, and derivatives; math, reductions: their operations
sharded    what a mesh cuts
gpu        the launch of its kernel
api        the primitive, vmap, the derivative, and what `matmul` calls
"""
