"""matmul with a function of a's elements: prologue=, given=.

product     a call, checked; by a Hopper kernel, or in float64 on the CPU
operators   torch.ops.layoutgemm.prologue_matmul, as compilers, autograd and functorch see it
api         what `matmul` calls
explain     the same in words
"""
