"""matmul and grouped_matmul with a function of a's elements: prologue=, given=.

product     a call of matmul, checked; by a Hopper kernel, or in float64 on the CPU
operators   torch.ops.layoutgemm.prologue_matmul, as compilers, autograd and functorch see it
api         what `matmul` calls
rows        rows of a by index, which are copied first
traced      operands of a traced call, of two matrices or of groups
explain     the same in words, of groups too

grouped, grouped_operators and grouped_api are these of `grouped_matmul`.
"""
