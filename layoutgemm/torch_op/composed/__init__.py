"""matmul with several parts at once. Orders of tiles, two pairs, functions of A and of the sums, epilogues, rows.

parts       the parts of a call as one text, with the names of its operands
checks      a call's operands, checked against its parts
plans       the kernel's plan of a call, and the elements of C that it visits
product     a checked call, computed now: by one kernel, or in float64 on the CPU
derivatives its derivatives: products again, and the parts by torch
operators   torch.ops.layoutgemm.composed_matmul, as compilers, autograd and functorch see it
api         what `matmul` calls
"""
