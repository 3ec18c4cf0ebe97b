"""matmul and grouped_matmul with row indices: rows=, out_rows=, row_weights=.

product     a call, checked; by a Hopper kernel, or in float64 on the CPU
operators   torch.ops.layoutgemm.indexed_matmul, as compilers and autograd see it
api         what `matmul` and `grouped_matmul` call
"""
