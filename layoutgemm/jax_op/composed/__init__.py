"""Products of JAX arrays with several parts. An order of tiles, several B, two pairs, rows by index, functions.

product    the value that a product is traced as, and the refusals of parts that do not fit
api        `matmul`'s call: checks, vmap, meshes and the derivative
gpu        the kernel's plan, and its launch as a call of `cutlass.jax`
reference  by jax on the CPU, and where it is derived
"""
