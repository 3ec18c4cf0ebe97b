"""The JAX operator: products of JAX arrays by layoutgemm's kernels. Its public name is `layoutgemm.jax`.

matmul        checks, and vectors as matrices
derivatives   tangents and gradients, which are products too
dot_general   the same product by jax.lax.dot_general's arguments
product       the value that a product is traced as: shapes, types, bias, activation
primitive     one product of matrices or batches: vmap, shardings, and the lowering for each platform
shardings     axes of a mesh, factor by factor, and what each device multiplies
gpu           the problem's solution as a call of `cutlass.jax`
functions     epilogues and prologues; composed: products of several parts
outputs       what a product gives: C, and what an epilogue writes
reference     on the CPU, by jax in float32, rounded once; and all that follows the sums outside a kernel
"""
