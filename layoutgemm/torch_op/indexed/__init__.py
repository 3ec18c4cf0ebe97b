"""matmul and grouped_matmul with row indices: rows=, out_rows=, row_weights=, copy_rows=.

product     a call, checked; by a Hopper kernel, or in float64 on the CPU
plans       its plan: the configuration, and whether A's rows are copied first
explain     the same in words
added       rows added to those that indices name, in order or in any
operators   torch.ops.layoutgemm.indexed_matmul, as compilers and autograd see it
api         what `matmul` and `grouped_matmul` call
"""
