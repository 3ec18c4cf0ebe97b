"""Products of JAX arrays with scales, and of groups. Their public names are in `layoutgemm.jax`.

api           scaled_matmul and grouped_matmul: checks, and the derivative of groups
training      fp8_grouped_matmul, which quantises its operands and those of its gradients, and calls `api`
described     the value that a product is traced as, and its refusals
primitive     vmap, shardings, and the lowering for each platform
sharded       factors of the dimensions, and which of them a mesh may cut
gpu           the plan of a product as a call of `cutlass.jax`
reference     on the CPU, by jax in float32, rounded once
"""
